/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_BENCH_TIER_H
#define KVX_BENCH_TIER_H
/*
 * The parts of kvx-tier: options, traces, the replay of a trace against a dry tier, and the speed of a large index.
 * Functions that return false have said why on stderr.
 */
#include "kvx_tier.h"
#include "report.h"

bool tier_ok(kvx_status status, const char *doing);

/* --------------------------------------------------------------------------------------------------- tier_options.c */

#define TIER_CAPACITIES_MAX 16u
#define TIER_TRACES_MAX 4u

typedef struct tier_options {
    uint32_t capacities[TIER_CAPACITIES_MAX]; /* ascending */
    uint32_t n_capacities;
    uint32_t gpu_blocks;   /* of the GPU's own cache, where there is one */
    uint32_t hits;         /* of the selective policy */
    uint32_t index_blocks; /* 0: leave the index out */
    uint32_t chain;        /* blocks per lookup of the index */
    uint32_t repeat;       /* lookups timed */
    const char *json, *plot;
    const char *traces[TIER_TRACES_MAX];
    uint32_t n_traces;
} tier_options;

typedef enum tier_parse { TIER_RUN, TIER_HELP, TIER_USAGE } tier_parse;

/* TIER_USAGE has been explained on stderr. */
tier_parse tier_options_parse(int argc, char **argv, tier_options *options);

/* ----------------------------------------------------------------------------------------------------- tier_trace.c */

typedef struct trace_request {
    uint64_t time_ns;
    uint64_t first; /* its blocks are blocks[first .. first + n - 1] */
    uint32_t n;
} trace_request;

/* Blocks are numbered 0 .. n_distinct - 1, whatever ids the file gives them. */
typedef struct trace {
    char name[64];
    trace_request *requests;
    uint32_t *blocks;
    kvx_tier_hash *hashes; /* by number */
    uint64_t n_requests, n_blocks;
    uint32_t n_distinct, longest;
} trace;

/* Lines {"timestamp": ms, ..., "hash_ids": [n, ...]}, in the order of time. */
bool trace_read(const char *path, trace *t);
void trace_free(trace *t);

/* A hash that depends on both words. */
kvx_tier_hash trace_hash(uint64_t word, uint64_t other);

/* ------------------------------------------------------------------------------------------------------- tier_gpu.c */

/* The cache that an engine has on the GPU itself: least recently used blocks go first. */
typedef struct gpu_cache {
    uint32_t *older, *newer; /* by block number; n_distinct is the ring's head */
    bool *held;
    uint32_t n_held, n_most, head;
} gpu_cache;

bool gpu_create(gpu_cache *g, uint32_t n_distinct, uint32_t n_most);
void gpu_destroy(gpu_cache *g);
void gpu_touch(gpu_cache *g, uint32_t block); /* held blocks only */
/* True and the block that has to leave, if the cache was full. */
bool gpu_insert(gpu_cache *g, uint32_t block, uint32_t *leaving);

/* ---------------------------------------------------------------------------------------------------- tier_replay.c */

#define TIER_POLICIES 5u

typedef struct replay_policy {
    const char *name;                    /* for people */
    const char *evict_name, *write_name; /* for the report */
    kvx_tier_evict evict;
    kvx_tier_write write;
    bool behind_gpu; /* the tier sees only what the GPU's own cache does not have */
} replay_policy;

extern const replay_policy replay_policies[TIER_POLICIES];

typedef struct replay_result {
    uint64_t n_blocks;  /* asked for */
    uint64_t n_prefix;  /* found with all blocks before them in the request */
    uint64_t n_found;   /* found, be it behind a gap */
    uint64_t n_gpu;     /* of n_prefix: in the GPU's own cache */
    uint64_t n_stored;  /* blocks stored into the tier */
    uint64_t n_no_room; /* blocks that could not be */
} replay_result;

/* capacity 0: as many as the trace has. */
bool replay(const trace *t, const tier_options *o, const replay_policy *policy, uint32_t capacity,
            replay_result *result);

/* ----------------------------------------------------------------------------------------------------- tier_table.c */

/* results[policy][capacity], the last capacity being the unlimited one. */
typedef struct trace_results {
    char name[64];
    replay_result of[TIER_POLICIES][TIER_CAPACITIES_MAX + 1];
} trace_results;

void table_print(const tier_options *o, const trace_results *results);
bool table_plot(const tier_options *o, const trace_results *results, uint32_t n);

/* ----------------------------------------------------------------------------------------------------- tier_index.c */

/* Lookups of chains in a full index of o->index_blocks; the index's memory and building time. */
bool index_measure(const tier_options *o, report *r);

#endif
