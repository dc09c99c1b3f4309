/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_BENCH_DEMO_H
#define KVX_BENCH_DEMO_H
/*
 * The parts of kvx-demo: options, a KV cache shaped like Qwen3-32B's, the rates, and the host's attacks. Functions that
 * return false could not go on and have said why on stderr; a check that fails is counted in demo.n_failed.
 */
#include "device.h"
#include "report.h"

#define DEMO_LAYERS 64u
#define DEMO_LANES (2u * DEMO_LAYERS)                              /* K and V of each layer */
#define DEMO_PIECE_BYTES (16ull * 8 * 128 * 2)                     /* tokens, KV heads, head size, bf16 */
#define DEMO_BLOCK_BYTES ((uint64_t)DEMO_LANES * DEMO_PIECE_BYTES) /* 4 MiB */
#define DEMO_MIN_BLOCKS 8u                                         /* the attacks need five */

typedef struct demo_options {
    uint64_t n_bytes; /* 0: chosen by the engine */
    uint64_t seed;
    const char *json; /* NULL: none */
    kvx_engine engine;
    uint32_t batch;    /* blocks per call */
    uint32_t segments; /* 64, 8 or 1 */
    uint32_t repeat;
    int device;
    bool no_baselines;
} demo_options;

typedef struct demo {
    demo_options options;
    device dev;
    report *report;
    uint8_t *dev_cache; /* lane l of block b is the piece at (l * n_blocks + b) * DEMO_PIECE_BYTES */
    uint32_t n_blocks;
    uint32_t n_failed; /* checks */
} demo;

/* -------------------------------------------------------------------------------------------------- demo_options.c */

typedef enum demo_parse { DEMO_RUN, DEMO_HELP, DEMO_USAGE } demo_parse;

/* DEMO_USAGE has been explained on stderr. */
demo_parse demo_options_parse(int argc, char **argv, demo_options *options);

/* ---------------------------------------------------------------------------------------------------- demo_cache.c */

bool demo_cache_create(demo *d);
void demo_cache_destroy(demo *d);

/* The whole cache, or one block of it, with the pattern of `seed`. */
bool demo_cache_fill(demo *d, uint64_t seed);
bool demo_block_fill(demo *d, uint32_t block, uint64_t seed);

/* Compares every byte of the cache; a difference is a failed check named `what`. */
bool demo_cache_check(demo *d, uint64_t seed, const char *what);

/* What a block must hold, segment by segment: zeros where the bit of `zeroed` is set, else the pattern of `seed`. */
bool demo_block_check(demo *d, uint32_t block, uint64_t seed, uint64_t zeroed, bool *as_expected);

/* Bits of all segments. */
uint64_t demo_all_segments(const demo *d);

/* Registers the cache with a context. */
bool demo_layout_create(demo *d, kvx_ctx *ctx, kvx_layout **layout);

/* A pool of slots of one block each, all taken. */
bool demo_pool_create(demo *d, const char *what, uint32_t n_slots, kvx_pool **pool, kvx_slot **slots);

/* -------------------------------------------------------------------------------------- demo_plain.c, demo_speed.c */

/* GB/s of one mover. */
typedef struct demo_rate {
    const char *name;
    double out, in;
} demo_rate;

#define DEMO_RATES_MAX 3

/* Plaintext movers over the same bytes. */
bool demo_plain(demo *d, demo_rate rates[DEMO_RATES_MAX], uint32_t *n_rates);

/* Sealed store and restore of everything; also the ratios to `plain`. */
bool demo_sealed(demo *d, const demo_rate *plain, uint32_t n_plain);

/* Seconds on the host's clock. */
double demo_now(void);
double demo_median(double *values, uint32_t n);

/* --------------------------------------------------------------------------------------------------- demo_tamper.c */

bool demo_tamper(demo *d);

/* ----------------------------------------------------------------------------------------------------------- demo.c */

/* Progress, on stderr. */
void demo_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* One line PASS or FAIL on stdout, and a row of the report. */
void demo_verdict(demo *d, bool passed, const char *metric, const char *text);

/* False, with the reason on stderr, unless status is KVX_OK. */
bool demo_ok(kvx_status status, const char *doing);

#endif
