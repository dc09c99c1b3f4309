/* SPDX-License-Identifier: Apache-2.0 */
/* The KV cache: one stretch of device memory that holds 128 tensors of n_blocks pieces each, K and V of layer 0 first.
 * The pattern's position is the byte's place in that stretch, so a piece in the wrong place never compares equal. */
#include "demo.h"

#include <stdio.h>
#include <stdlib.h>

static uint64_t piece_at(const demo *d, uint32_t lane, uint32_t block)
{
    return ((uint64_t)lane * d->n_blocks + block) * DEMO_PIECE_BYTES;
}

static uint64_t cache_bytes(const demo *d)
{
    return d->n_blocks * DEMO_BLOCK_BYTES;
}

bool demo_cache_create(demo *d)
{
    void *memory = NULL;
    if (d->options.n_bytes == 0)
        d->options.n_bytes = d->dev.engine == KVX_ENGINE_CUDA ? 8ull << 30 : 256ull << 20;
    d->n_blocks = (uint32_t)(d->options.n_bytes / DEMO_BLOCK_BYTES);
    demo_say("KV cache: %u blocks of 4 MiB in 128 pieces, %.2f GiB", d->n_blocks, (double)cache_bytes(d) / (1 << 30));
    if (!device_alloc(&d->dev, cache_bytes(d), &memory))
        return false;
    d->dev_cache = memory;
    return true;
}

void demo_cache_destroy(demo *d)
{
    device_free(&d->dev, d->dev_cache);
    d->dev_cache = NULL;
}

bool demo_cache_fill(demo *d, uint64_t seed)
{
    return device_fill(&d->dev, d->dev_cache, cache_bytes(d), seed, 0) && device_sync(&d->dev);
}

bool demo_block_fill(demo *d, uint32_t block, uint64_t seed)
{
    uint32_t lane;
    for (lane = 0; lane < DEMO_LANES; lane++) {
        uint64_t at = piece_at(d, lane, block);
        if (!device_fill(&d->dev, d->dev_cache + at, DEMO_PIECE_BYTES, seed, at))
            return false;
    }
    return device_sync(&d->dev);
}

bool demo_cache_check(demo *d, uint64_t seed, const char *what)
{
    uint64_t n_wrong = 0;
    if (!device_compare(&d->dev, d->dev_cache, cache_bytes(d), seed, 0, &n_wrong))
        return false;
    if (n_wrong) {
        printf("FAIL  %s: %llu of %llu words differ\n", what, (unsigned long long)n_wrong,
               (unsigned long long)(cache_bytes(d) / 8));
        d->n_failed++;
    }
    return true;
}

static bool piece_is_zero(demo *d, uint64_t at, bool *is_zero)
{
    uint64_t words[DEMO_PIECE_BYTES / 8], any = 0;
    size_t i;
    if (!device_copy(&d->dev, words, d->dev_cache + at, DEMO_PIECE_BYTES))
        return false;
    for (i = 0; i < DEMO_PIECE_BYTES / 8; i++)
        any |= words[i];
    *is_zero = any == 0;
    return true;
}

static uint32_t segment_of(const demo *d, uint32_t lane)
{
    return lane / (DEMO_LANES / d->options.segments);
}

uint64_t demo_all_segments(const demo *d)
{
    return UINT64_MAX >> (64 - d->options.segments);
}

bool demo_block_check(demo *d, uint32_t block, uint64_t seed, uint64_t zeroed, bool *as_expected)
{
    uint32_t lane;
    bool good = true;
    for (lane = 0; lane < DEMO_LANES; lane++) {
        uint64_t at = piece_at(d, lane, block), n_wrong = 0;
        bool is_zero = true, done;
        if (zeroed >> segment_of(d, lane) & 1)
            done = piece_is_zero(d, at, &is_zero);
        else
            done = device_compare(&d->dev, d->dev_cache + at, DEMO_PIECE_BYTES, seed, at, &n_wrong);
        if (!done)
            return false;
        good = good && is_zero && n_wrong == 0;
    }
    *as_expected = good;
    return true;
}

bool demo_layout_create(demo *d, kvx_ctx *ctx, kvx_layout **layout)
{
    kvx_lane lanes[DEMO_LANES];
    kvx_layout_desc desc = KVX_LAYOUT_DESC_INIT;
    uint32_t i;
    for (i = 0; i < DEMO_LANES; i++) {
        kvx_lane lane = {.dev_base = d->dev_cache + piece_at(d, i, 0),
                         .block_stride = DEMO_PIECE_BYTES,
                         .row_stride = DEMO_PIECE_BYTES,
                         .row_bytes = DEMO_PIECE_BYTES,
                         .n_blocks = d->n_blocks,
                         .n_rows = 1,
                         .segment = segment_of(d, i)};
        lanes[i] = lane;
    }
    desc.lanes = lanes;
    desc.n_lanes = DEMO_LANES;
    return demo_ok(kvx_layout_create(ctx, &desc, layout), "kvx_layout_create");
}

bool demo_pool_create(demo *d, const char *what, uint32_t n_slots, kvx_pool **pool, kvx_slot **slots)
{
    kvx_slot_class slot_class = {.slot_bytes = DEMO_BLOCK_BYTES, .n_slots = n_slots};
    kvx_pool_config config = KVX_POOL_CONFIG_INIT;
    double start = demo_now(), seconds, n_bytes = (double)n_slots * (double)DEMO_BLOCK_BYTES;
    config.classes = &slot_class;
    config.n_classes = 1;
    config.engine = d->dev.engine;
    demo_say("%s: %.2f GiB of host memory ...", what, n_bytes / (1 << 30));
    if (!demo_ok(kvx_pool_create(&config, pool), "kvx_pool_create (a smaller --bytes needs less host memory)"))
        return false;
    seconds = demo_now() - start;
    demo_say("%s: ready in %.2f s, %.2f GB/s", what, seconds, n_bytes / seconds / 1e9);
    report_row(d->report, "pool", what, n_bytes / seconds / 1e9, "GB/s", "slots=%u seconds=%.3f pinned=%s", n_slots,
               seconds, d->dev.engine == KVX_ENGINE_CUDA ? "yes" : "no");
    *slots = calloc(n_slots, sizeof(**slots));
    if (!*slots) {
        fputs("no memory for the list of slots: try a smaller --bytes\n", stderr);
        goto destroy_pool;
    }
    if (!demo_ok(kvx_pool_take(*pool, 0, n_slots, *slots), "kvx_pool_take"))
        goto free_slots;
    return true;
free_slots:
    free(*slots);
destroy_pool:
    kvx_pool_destroy(*pool);
    return false;
}
