/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks as well-known models have them: how many bytes in how many pieces, and how fast they are stored and restored.
 * Sizes follow from the models' public config.json (num_hidden_layers, num_key_value_heads, head_dim and, for latent
 * attention, kv_lora_rank and qk_rope_head_dim); what an engine adds to them is said beside each model. */
#include "bench.h"

#include <stdio.h>
#include <string.h>

typedef struct model {
    const char *name;
    uint32_t n_ranks;  /* of tensor parallelism; bytes are those of one */
    uint32_t n_layers; /* that share a block */
    uint32_t n_kinds;
    uint32_t token_bytes[BENCH_KINDS_MAX]; /* of one token in one layer, by kind */
    uint32_t first_layer[BENCH_KINDS_MAX];
    bool quick; /* measured also with --quick and on the CPU engine */
} model;

/* K and V as two pieces: heads of this rank, head size, bytes of a number. */
#define KV(heads, dim, number)                                                                                         \
    {                                                                                                                  \
        (heads) * (dim) * (number), (heads) * (dim) * (number)                                                         \
    }

static const model models[] = {
    /* 32 layers, 8 KV heads of 128, bf16 */
    {"Llama-3-8B", 1, 32, 2, KV(8, 128, 2), {0}, true},
    {"Llama-3-8B", 4, 32, 2, KV(2, 128, 2), {0}, false},
    {"Llama-3-8B", 8, 32, 2, KV(1, 128, 2), {0}, false},
    /* 80 layers, 8 KV heads of 128, bf16 */
    {"Llama-3-70B", 1, 80, 2, KV(8, 128, 2), {0}, false},
    {"Llama-3-70B", 4, 80, 2, KV(2, 128, 2), {0}, false},
    {"Llama-3-70B", 8, 80, 2, KV(1, 128, 2), {0}, true},
    /* 36 layers, 8 KV heads of 128, bf16 */
    {"Qwen3-8B", 1, 36, 2, KV(8, 128, 2), {0}, false},
    {"Qwen3-8B", 2, 36, 2, KV(4, 128, 2), {0}, false},
    /* 64 layers, 8 KV heads of 128, bf16 */
    {"Qwen3-32B", 1, 64, 2, KV(8, 128, 2), {0}, false},
    {"Qwen3-32B", 2, 64, 2, KV(4, 128, 2), {0}, false},
    /* 62 layers, 8 KV heads of 128, bf16 */
    {"MiniMax-M2", 1, 62, 2, KV(8, 128, 2), {0}, false},
    /* 60 layers, 4 KV heads of 128, bf16; all but the first three layers have an index key of 128 numbers, assumed to
     * be bf16, a tensor of its own, and the same on every rank */
    {"MiniMax-M3", 1, 60, 3, {1024, 1024, 256}, {0, 0, 3}, false},
    {"MiniMax-M3", 4, 60, 3, {256, 256, 256}, {0, 0, 3}, true},
    /* 61 layers, latent of 512 and rotary key of 64 numbers: one piece per layer, the same on every rank */
    {"DeepSeek-V3-bf16", 1, 61, 1, {576 * 2}, {0}, false},
    /* assumed: one byte a number, scales kept per tensor and not in the cache */
    {"DeepSeek-V3-fp8", 1, 61, 1, {576}, {0}, false},
    /* assumed, as vLLM's fp8_ds_mla: 512 bytes of latent, four float scales, 64 rotary numbers in bf16; the indexer's
     * key of 128 bytes and a float scale in a tensor of its own */
    {"DeepSeek-V3.2", 1, 61, 2, {512 + 16 + 128, 128 + 4}, {0}, true},
    /* 36 layers, 8 KV heads of 64, bf16; every second layer looks through a window, so that engines keep two groups of
     * 18 layers: assumed is a block of one group, those of the other have the same shape */
    {"gpt-oss-120b", 1, 18, 2, KV(8, 64, 2), {0}, true},
};

enum { N_MODELS = sizeof(models) / sizeof(models[0]) };

static const bench_option options[] = {
    {"--models", BENCH_TEXT, "only models whose name contains this"},
    {"--tokens", BENCH_COUNTS, "tokens per block, multiples of 4 (default 16,64)"},
    {"--unit", BENCH_SIZES, "least bytes sealed under one tag, in whole layers (default 64K)"},
    {"--table", BENCH_FLAG, "print the sizes and measure nothing"},
    {NULL, BENCH_FLAG, NULL},
};

static const char help[] =
    "First a table of what a block of each model is: its pieces (K and V, latent, index key of every layer) and "
    "bytes.\n"
    "Then stores and restores of such blocks, sealed and plaintext (see `kvx-bench transfer --help`), in batches of\n"
    "256 MiB. tp is the number of ranks of tensor parallelism; everything is that of one rank. Sizes come from the\n"
    "models' public configurations. Assumed beyond them: index keys of MiniMax-M3 in bf16 on every rank; DeepSeek-V3\n"
    "in fp8 without scales in the cache; V3.2 as vLLM's fp8_ds_mla (656 bytes of a token and layer) with an indexer\n"
    "of 132; gpt-oss-120b in two groups of 18 layers, a block being that of one. No picture is drawn.\n"
    "With --quick and on the CPU engine five of the models are measured, with 16 tokens only.\n";

/* ----------------------------------------------------------------------------------------------------------------
 * sizes
 */

static bench_shape shape_of(const model *m, uint64_t n_tokens, uint64_t unit)
{
    bench_shape shape = {.n_layers = m->n_layers, .n_kinds = m->n_kinds};
    uint64_t n_segments;
    uint32_t kind;
    for (kind = 0; kind < m->n_kinds; kind++) {
        shape.piece_bytes[kind] = m->token_bytes[kind] * n_tokens;
        shape.first_layer[kind] = m->first_layer[kind];
    }
    n_segments = bench_shape_block_bytes(&shape) / unit;
    if (n_segments > m->n_layers)
        n_segments = m->n_layers;
    shape.n_segments = n_segments ? (uint32_t)n_segments : 1;
    return shape;
}

static void list_pieces(const bench_shape *shape, char *text, size_t text_bytes)
{
    uint32_t kind;
    size_t at = 0;
    for (kind = 0; kind < shape->n_kinds && at < text_bytes; kind++)
        at += (size_t)snprintf(text + at, text_bytes - at, "%s%u x %s", kind ? " + " : "",
                               shape->n_layers - shape->first_layer[kind], bench_size(shape->piece_bytes[kind]));
}

static void print_sizes(bench *b, const model *m, uint64_t n_tokens, uint64_t unit)
{
    bench_shape shape = shape_of(m, n_tokens, unit);
    uint64_t n_bytes = bench_shape_block_bytes(&shape);
    uint32_t n_pieces = bench_shape_lanes(&shape);
    char pieces[96];
    list_pieces(&shape, pieces, sizeof(pieces));
    printf("  %-17s %2u  %6llu  %6u  %7u  %10llu  %11llu  %5u  %s\n", m->name, m->n_ranks, (unsigned long long)n_tokens,
           shape.n_layers, n_pieces, (unsigned long long)n_bytes, (unsigned long long)(n_bytes / n_tokens),
           shape.n_segments, pieces);
    bench_value(b, "block_bytes", "bytes", (double)n_bytes, "model=%s tp=%u tokens=%llu", m->name, m->n_ranks,
                (unsigned long long)n_tokens);
    bench_value(b, "block_pieces", "count", n_pieces, "model=%s tp=%u tokens=%llu", m->name, m->n_ranks,
                (unsigned long long)n_tokens);
}

/* -------------------------------------------------------------------------------------------------------------- rates
 */

static uint32_t least(uint64_t a, uint64_t b)
{
    return (uint32_t)(a < b ? a : b);
}

static bool measure_model(bench *b, const model *m, uint64_t n_tokens, uint64_t unit)
{
    bench_shape shape = shape_of(m, n_tokens, unit);
    uint64_t n_bytes = bench_bytes(b, 32ull << 20, 256ull << 20, 512ull << 20, 4ull << 30);
    uint64_t block_bytes = bench_shape_block_bytes(&shape);
    char title[160], params[160], pieces[96];
    bench_case c = {.title = title,
                    .params = params,
                    .repeat = bench_repeat(b, 2, 3, 9),
                    .n_plain = BASELINE_OFFLOADS,
                    .sealed = true};
    bench_outcome outcome;
    bench_scene scene;
    bool done;
    shape.n_blocks = least(n_bytes / block_bytes, 65536);
    if (shape.n_blocks < 2)
        shape.n_blocks = 2;
    c.batch = least(least((256ull << 20) / block_bytes + 1, 4096), shape.n_blocks);
    list_pieces(&shape, pieces, sizeof(pieces));
    snprintf(title, sizeof(title), "%s, tp %u, blocks of %llu tokens: %s in %s", m->name, m->n_ranks,
             (unsigned long long)n_tokens, bench_size(block_bytes), pieces);
    snprintf(params, sizeof(params), "model=%s tp=%u tokens=%llu batch=%u segments=%u blocks=%u", m->name, m->n_ranks,
             (unsigned long long)n_tokens, c.batch, shape.n_segments, shape.n_blocks);
    bench_say("layouts: %s, tp %u, %llu tokens ...", m->name, m->n_ranks, (unsigned long long)n_tokens);
    done = bench_scene_open(b, &shape, &scene) && bench_measure(&scene, &c, &outcome);
    return bench_scene_close(&scene) && done;
}

static bool wanted(const bench *b, const model *m)
{
    return strstr(m->name, bench_text(b, "--models", "")) != NULL;
}

static bool measure_all(bench *b, const bench_list *tokens, uint64_t unit)
{
    bool small = bench_on_cpu(b) || b->settings.scale == BENCH_QUICK;
    bool chosen = bench_flag(b, "--models") || bench_flag(b, "--tokens");
    uint32_t i, n = small && !chosen ? 1 : tokens->n;
    size_t k;
    for (i = 0; i < n; i++)
        for (k = 0; k < N_MODELS; k++) {
            if (!wanted(b, &models[k]) || (small && !chosen && !models[k].quick))
                continue;
            if (!measure_model(b, &models[k], tokens->values[i], unit))
                return false;
        }
    return true;
}

static bool run(bench *b)
{
    bench_list tokens = bench_list_of(b, "--tokens", "16,64");
    uint64_t unit = bench_list_of(b, "--unit", "64K").values[0];
    uint32_t i;
    size_t k;
    for (i = 0; i < tokens.n; i++)
        if (tokens.values[i] % 4 || tokens.values[i] > 1024) {
            fprintf(stderr, "--tokens takes multiples of 4 up to 1024\n");
            return false;
        }
    printf("\n  %-17s %2s  %6s  %6s  %7s  %10s  %11s  %5s  %s\n", "model", "tp", "tokens", "layers", "pieces", "bytes",
           "bytes/token", "units", "pieces of a block");
    for (k = 0; k < N_MODELS; k++)
        for (i = 0; i < tokens.n && wanted(b, &models[k]); i++)
            print_sizes(b, &models[k], tokens.values[i], unit);
    fflush(stdout);
    return bench_flag(b, "--table") || measure_all(b, &tokens, unit);
}

const bench_sub bench_layouts = {"layouts", "blocks of well-known models: sizes and rates", help, options, run};
