/* SPDX-License-Identifier: Apache-2.0 */
/* kvx-bench-layouts-check FILE: reads the JSON of `kvx-bench layouts --table` and compares its sizes with numbers that
 * were worked out by hand from the models' public configurations: bytes of one token and pieces of one block. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

/* Of one rank. A block of n tokens has n times the bytes and the same pieces. */
static const struct expected {
    const char *model;
    int tp;
    long token_bytes, pieces;
} table[] = {
    {"Llama-3-8B", 1, 131072, 64},      /* 128 KiB: 2 x 32 layers x 8 heads x 128 x 2 bytes */
    {"Llama-3-8B", 4, 32768, 64},       /* a quarter */
    {"Llama-3-8B", 8, 16384, 64},       /* one head of each layer */
    {"Llama-3-70B", 1, 327680, 160},    /* 320 KiB: 80 layers */
    {"Llama-3-70B", 4, 81920, 160},     /* two heads */
    {"Llama-3-70B", 8, 40960, 160},     /* one head */
    {"Qwen3-8B", 1, 147456, 72},        /* 144 KiB: 36 layers */
    {"Qwen3-8B", 2, 73728, 72},         /* half */
    {"Qwen3-32B", 1, 262144, 128},      /* 256 KiB: 64 layers; 4 MiB in 16 tokens */
    {"Qwen3-32B", 2, 131072, 128},      /* half */
    {"MiniMax-M2", 1, 253952, 124},     /* 248 KiB: 62 layers */
    {"MiniMax-M3", 1, 137472, 177},     /* 60 x 2 x 4 x 256 + 57 index keys of 256 */
    {"MiniMax-M3", 4, 45312, 177},      /* 60 x 2 x 256 + the same index keys */
    {"DeepSeek-V3-bf16", 1, 70272, 61}, /* 61 x (512 + 64) x 2 */
    {"DeepSeek-V3-fp8", 1, 35136, 61},  /* 61 x 576 */
    {"DeepSeek-V3.2", 1, 48068, 122},   /* 61 x (656 + 132) */
    {"gpt-oss-120b", 1, 36864, 36},     /* 18 of 36 layers x 2 x 8 heads x 64 x 2 bytes */
};

enum { N_EXPECTED = sizeof(table) / sizeof(table[0]), N_TOKENS = 2 };

static int n_wrong;

static const struct expected *find(const char *model, double tp)
{
    size_t i;
    for (i = 0; i < N_EXPECTED; i++)
        if (strcmp(table[i].model, model) == 0 && table[i].tp == (int)tp)
            return &table[i];
    return NULL;
}

/* True if the row is a size that was compared. */
static bool check_row(const struct json *row)
{
    const struct json *params = json_member(row, "params");
    const char *metric = json_text(row, "metric", ""), *model = json_text(params, "model", "");
    const double tp = json_number(params, "tp", 0), tokens = json_number(params, "tokens", 0);
    const double value = json_number(row, "value", 0);
    const bool bytes = strcmp(metric, "block_bytes") == 0;
    const struct expected *e = find(model, tp);
    double wanted;
    if (!bytes && strcmp(metric, "block_pieces") != 0)
        return false;
    wanted = !e ? -1 : bytes ? (double)e->token_bytes * tokens : (double)e->pieces;
    if (value < wanted || value > wanted || (tokens < 16 || tokens > 16) == (tokens < 64 || tokens > 64)) {
        fprintf(stderr, "%s, tp %g, %g tokens: %s is %.0f, expected %.0f\n", model, tp, tokens, metric, value, wanted);
        n_wrong++;
    }
    return true;
}

static struct json *read_json(const char *path)
{
    static char text[1u << 20];
    struct json_error error = {0, ""};
    FILE *file = fopen(path, "rb");
    struct json *root = NULL;
    if (file) {
        root = json_read(text, fread(text, 1, sizeof(text), file), &error);
        fclose(file);
    }
    if (!root)
        fprintf(stderr, "%s:%zu: %s\n", path, error.line, file ? error.what : "cannot be read");
    return root;
}

int main(int argc, char **argv)
{
    const struct json *row;
    struct json *root;
    int n_rows = 0;
    if (argc != 2) {
        fputs("usage: kvx-bench-layouts-check FILE\n", stderr);
        return 2;
    }
    root = read_json(argv[1]);
    if (!root)
        return 1;
    for (row = json_first(json_member(root, "rows")); row; row = row->next)
        n_rows += check_row(row);
    json_free(root);
    if (n_rows != N_EXPECTED * N_TOKENS * 2)
        fprintf(stderr, "%d sizes, expected %d\n", n_rows, N_EXPECTED * N_TOKENS * 2);
    return n_wrong == 0 && n_rows == N_EXPECTED * N_TOKENS * 2 ? 0 : 1;
}
