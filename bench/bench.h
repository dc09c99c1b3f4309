/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_BENCH_BENCH_H
#define KVX_BENCH_BENCH_H
/*
 * The parts of kvx-bench. A sub-bench is one file that defines a bench_sub; it measures, prints its own tables on
 * stdout and leaves every figure in the report. Functions that return false could not go on and have said why on
 * stderr; wrong bytes and wrong verdicts are counted by bench_fail() and make the program fail.
 */
#include "baseline.h"
#include "device.h"
#include "plot.h"
#include "report.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bench bench;

/* ------------------------------------------------------------------------------------------------------- sub-benches
 */

typedef enum bench_kind {
    BENCH_SIZES,  /* one or more byte counts, "4K,64K,1M" */
    BENCH_COUNTS, /* one or more numbers from 1 */
    BENCH_TEXT,   /* any text */
    BENCH_FLAG,   /* no value */
} bench_kind;

/* An option of one sub-bench. The value has been checked before run() is called. */
typedef struct bench_option {
    const char *name; /* with the dashes; NULL ends the list */
    bench_kind kind;
    const char *about;
} bench_option;

typedef struct bench_sub {
    const char *name;
    const char *summary;         /* one line for the list of sub-benches */
    const char *help;            /* what is measured and how to read it, for --help; lines of at most 100 characters */
    const bench_option *options; /* NULL: none */
    bool (*run)(bench *b);
} bench_sub;

extern const bench_sub bench_link;
extern const bench_sub bench_transfer;
extern const bench_sub bench_layouts;
extern const bench_sub bench_pool;
extern const bench_sub bench_crypt;
extern const bench_sub bench_latency;
extern const bench_sub bench_interference;
extern const bench_sub bench_cpu_gcm;

/* ----------------------------------------------------------------------------------------------------------- context
 */

typedef enum bench_scale { BENCH_QUICK, BENCH_NORMAL, BENCH_FULL } bench_scale;

typedef struct bench_settings {
    const char *json, *plot; /* NULL: none */
    kvx_engine engine;
    int device;
    bench_scale scale;
    uint32_t repeat;  /* 0: chosen by the sub-bench, see bench_repeat() */
    uint64_t n_bytes; /* data of one measurement; 0: chosen by the sub-bench, see bench_bytes() */
    uint64_t seed;
    bool all; /* every sub-bench runs */
    int n_arguments;
    char *const *arguments; /* of the sub-bench, options and values */
} bench_settings;

struct bench {
    bench_settings settings;
    device dev;
    report *report;
    const bench_sub *sub; /* the one that runs */
    uint32_t n_failed;    /* checks, of all sub-benches */
    uint32_t n_skipped;   /* sub-benches, see bench_skip() */
    double began;         /* see bench_begin() */
};

static inline bool bench_on_cpu(const bench *b)
{
    return b->dev.engine == KVX_ENGINE_CPU;
}

/* What the command line says, else one of three by scale. */
uint32_t bench_repeat(const bench *b, uint32_t quick, uint32_t normal, uint32_t full);
/* The same for bytes; on the CPU engine `cpu` whatever the scale. */
uint64_t bench_bytes(const bench *b, uint64_t cpu, uint64_t quick, uint64_t normal, uint64_t full);

#define BENCH_LIST_MAX 16u

typedef struct bench_list {
    uint64_t values[BENCH_LIST_MAX];
    uint32_t n;
} bench_list;

/* The values given for an option of the running sub-bench; `otherwise`, in the same syntax, where it was not given. */
bench_list bench_list_of(const bench *b, const char *name, const char *otherwise);
const char *bench_text(const bench *b, const char *name, const char *otherwise);
bool bench_flag(const bench *b, const char *name);

/* Progress, on stderr. */
void bench_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A check that failed: one line on stdout, counted. */
void bench_fail(bench *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* For a sub-bench that cannot run on this engine: says so. What it returns is what run() shall return: among all others
 * it does no harm, alone nothing was measured. */
bool bench_skip(bench *b, const char *why);

/* False, with the reason on stderr, unless status is KVX_OK. */
bool bench_ok(kvx_status status, const char *doing);

/* False, with a message, if host memory of that size would not be available. */
bool bench_fits(uint64_t n_bytes);

/* "64K", "1.5M": static storage, good for the next eight calls. */
const char *bench_size(uint64_t n_bytes);

/* ----------------------------------------------------------------------------------------------------------- figures
 */

typedef struct bench_samples {
    double *values;
    uint32_t n, room;
    bool lost; /* memory was short */
} bench_samples;

void bench_samples_add(bench_samples *s, double value);
void bench_samples_free(bench_samples *s);

/* Quantile 0 .. 1, between neighbours in proportion; 0 if there is no value. Sorts the values. */
double bench_quantile(bench_samples *s, double q);
static inline double bench_median(bench_samples *s)
{
    return bench_quantile(s, 0.5);
}

/* A row of the running sub-bench: median with p10, p90 and the number of samples. Returns the median. `params` as for
 * report_row(). */
double bench_row(bench *b, const char *metric, const char *unit, bench_samples *s, const char *params, ...)
    __attribute__((format(printf, 5, 6)));

/* A row with one value, for what is computed and not sampled. */
void bench_value(bench *b, const char *metric, const char *unit, double value, const char *params, ...)
    __attribute__((format(printf, 5, 6)));

/* ------------------------------------------------------------------------------------------------------------- time */

/* Seconds on the host's clock. */
double bench_now(void);

/*
 * A stretch of work in the device's stream, timed by the device's own marks where events carry time (CUDA), else by the
 * host's clock:   bench_begin(b); work, whose last call records b->dev.end (done_event); bench_end(b, &seconds);
 * bench_end() waits. On the CPU engine the work must have been waited for by then.
 */
bool bench_begin(bench *b);
bool bench_end(bench *b, double *seconds);

/* ------------------------------------------------------------------------------------------------------------- scene
 */

#define BENCH_KINDS_MAX 4u

/*
 * A KV cache and a pool for it. A block has one piece for each layer and kind that the layer has, and each of these is
 * a lane: layer by layer, within a layer in the order of kinds. Lanes lie one after the other in device memory, each
 * with all its blocks.
 */
typedef struct bench_shape {
    uint32_t n_blocks;
    uint32_t n_layers;
    uint32_t n_kinds;    /* K and V: 2 */
    uint32_t n_segments; /* at most n_layers; layers are dealt out as evenly as they go */
    uint64_t piece_bytes[BENCH_KINDS_MAX];
    uint32_t first_layer[BENCH_KINDS_MAX]; /* that has the kind */
    uint32_t n_slots;                      /* 0: one for each block */
    uint32_t n_tenants;                    /* 0: 1 */
} bench_shape;

typedef struct bench_scene {
    bench *b;
    bench_shape shape;
    uint8_t *dev_cache;
    uint64_t cache_bytes;
    uint64_t block_bytes;  /* payload of a block */
    uint64_t sealed_bytes; /* what it takes in a slot */
    kvx_pool *pool;
    kvx_ctx *ctx;
    kvx_layout *layout;
    kvx_slot *slots;     /* all taken, in the order in which the pool gave them */
    kvx_pair *pairs;     /* block i and slot i */
    uint64_t *lane_at;   /* offset of each lane in dev_cache */
    kvx_ticket *tickets; /* for bench_move() */
    double pool_seconds;
} bench_scene;

typedef struct bench_part {
    uint32_t first, n;
    bool linear;
} bench_part;

/* Cache, pool of slots of one block, context, layout. Zeroes `s` first; close it also after a failure. */
bool bench_scene_open(bench *b, const bench_shape *shape, bench_scene *s);
bool bench_scene_close(bench_scene *s);

uint64_t bench_shape_block_bytes(const bench_shape *shape);
uint32_t bench_shape_lanes(const bench_shape *shape);
uint64_t bench_lane_bytes(const bench_shape *shape, uint32_t lane); /* of one piece of it */

/* The whole cache with the pattern of `seed`. Complete on return. */
bool bench_scene_fill(bench_scene *s, uint64_t seed);
/* Compares every byte of the cache; a difference is a failed check named `what`. */
bool bench_scene_check(bench_scene *s, uint64_t seed, const char *what);
/* The same for blocks first .. first + n - 1. `linear`: a block is what bare long copies take for one, the next
 * block_bytes of the cache. */
bool bench_scene_check_blocks(bench_scene *s, const bench_part *part, uint64_t seed, const char *what);

/*
 * Work on blocks first .. first + n - 1 in calls of `batch` pairs; a store and a restore part go on at once. Either
 * part may be empty (n = 0). Calls do not wait for each other in the stream (KVX_HINT_NO_JOIN).
 */
typedef struct bench_work {
    uint32_t store_first, n_store;
    uint32_t restore_first, n_restore;
    uint32_t batch;
    uint32_t hints; /* of stores */
} bench_work;

/* From the first call to the end of the last ticket on the host's clock. A verdict other than OK is a failed check. */
bool bench_move(bench_scene *s, const bench_work *work, double *seconds);

/* --------------------------------------------------------------------------------------------------------- comparison
 */

/*
 * Plaintext copies of the scene's blocks, by the kinds of baseline.h, in the pool's own memory: what they leave there
 * is overwritten by the next store. Blocks lie in the order of addresses, packed without gaps.
 */
typedef struct bench_plain {
    bench_scene *scene;
    const baseline_kind *kinds;
    uint32_t n_kinds;
    uint8_t **host_blocks;
    uint64_t *lane_bytes;
    baseline *ways[2]; /* by baseline_way: both may run at once, each on a thread of its own */
} bench_plain;

bool bench_plain_open(bench_scene *s, bench_plain *p);
void bench_plain_close(bench_plain *p);
/* As bench_move(), without hints and batches. */
bool bench_plain_move(bench_plain *p, const baseline_kind *kind, const bench_work *work, double *seconds);

#define BENCH_MOVERS_MAX 8u

/* Medians of one mover in GB/s of payload; 0: not measured. */
typedef struct bench_rates {
    const char *name;
    double store, restore;
    double both; /* each direction while the other runs as well */
} bench_rates;

typedef struct bench_case {
    const char *title;  /* the line above the table */
    const char *params; /* of every row, "slot=.. piece=.." */
    uint32_t batch;
    uint32_t repeat;
    uint32_t n_plain; /* kinds of baseline.h, from the first */
    bool sealed;      /* measure kvx, and its ratios to the baselines */
    bool idle;        /* also with KVX_HINT_IDLE; no effect on the CPU engine */
    bool pieces_only; /* leave out kinds that know nothing of pieces */
} bench_case;

typedef struct bench_outcome {
    bench_rates movers[BENCH_MOVERS_MAX];
    uint32_t n;
} bench_outcome;

/* Measures every mover on the scene with data of its own, compares all bytes, prints a table, adds rows "store",
 * "restore", "both" with mover=.., and "store_ratio", "restore_ratio", "both_ratio" with to=... */
bool bench_measure(bench_scene *s, const bench_case *c, bench_outcome *outcome);

/* The mover's rates; zeros where it was not measured. */
bench_rates bench_rates_of(const bench_outcome *outcome, const char *name);

/* -------------------------------------------------------------------------------------------------------------- plot
 */

typedef struct bench_curve {
    const char *name;
    double x[64], y[64];
    size_t n;
} bench_curve;

/* Points are kept in the order of x; those beyond the 64th are dropped. */
void bench_curve_add(bench_curve *c, double x, double y);

/* One curve for each mover and direction, over whatever varies. */
typedef struct bench_picture {
    const char *names[BENCH_MOVERS_MAX];
    bench_curve store[BENCH_MOVERS_MAX], restore[BENCH_MOVERS_MAX];
    size_t n;
    double store_bound, restore_bound; /* long plaintext copies; 0: not measured */
} bench_picture;

void bench_picture_add(bench_picture *p, double x, const bench_outcome *outcome);

/* Panels of stores and of restores. The picture must live as long. */
void bench_picture_panels(const bench_picture *p, const char *store_title, const char *restore_title,
                          plot_panel panels[2]);

/* Writes the picture if --plot was given; with `all` the name of the sub-bench goes into the file's name. */
bool bench_plot(const bench *b, const plot *p);
/* For a sub-bench that draws nothing: says so if --plot was given for it. */
void bench_no_picture(const bench *b);

/* --------------------------------------------------------------------------------------------------- bench_options.c
 */

typedef enum bench_parse { BENCH_RUN, BENCH_HELP, BENCH_USAGE } bench_parse;

/* `sub` is set to NULL for `all`. BENCH_USAGE has been explained on stderr. */
bench_parse bench_options_parse(int argc, char **argv, const bench_sub *const *subs, bench_settings *settings,
                                const bench_sub **sub);

#ifdef __cplusplus
}
#endif
#endif
