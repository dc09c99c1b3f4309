/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_TESTS_TIER_MODEL_H
#define KVX_TESTS_TIER_MODEL_H
/*
 * What a tier must do, written as plainly as can be: arrays that are searched from end to end, keys as small numbers,
 * no hashing. It follows the tier's calls to the fake core, checks each of them, and predicts every answer and counter.
 */
#include "tier_fake.h"

#define MODEL_TENANTS 3u
#define MODEL_TENANT_KEYS 64u
#define MODEL_KEYS (MODEL_TENANTS * MODEL_TENANT_KEYS)
#define MODEL_BLOCKS 64u /* largest capacity */
#define MODEL_LIST 512u
#define MODEL_LOADS 8u
#define MODEL_ANNOUNCED 4u
#define MODEL_NONE (-1)

typedef struct list {
    int n;
    int item[MODEL_LIST];
} list;

typedef enum block_state { B_FREE, B_QUEUED, B_STORING, B_HELD, B_LIMBO, B_DISCARDING } block_state;

typedef struct model_block {
    block_state state;
    int key, doomed, moved, discard, queue;
    unsigned pins;
    kvx_tier_pin pin; /* as the tier gave it out, 0: not yet */
    uint32_t gpu, since_ms;
    uint64_t since_ns;
} model_block;

typedef struct model_load {
    enum { L_FREE, L_QUEUED, L_RUNNING, L_ENDED } state;
    kvx_tier_load_id id;
    uint32_t n, n_failed;
    int blocks[FAKE_PAIRS], keys[FAKE_PAIRS];
    uint32_t gpu[FAKE_PAIRS];
    kvx_status verdicts[FAKE_PAIRS];
} model_load;

typedef struct model_announced {
    uint64_t id, until_ns;
    list blocks;
} model_announced;

typedef struct model_batch {
    int running, released;
    list blocks;
} model_batch;

typedef struct model {
    kvx_tier_config config;
    uint32_t quota[MODEL_TENANTS];
    uint64_t now_ns, next_start_ns, clock, n_hurried, loading_bytes;
    model_block blocks[MODEL_BLOCKS];
    uint64_t stamps[MODEL_BLOCKS];
    list free_slots, queue, to_discard, prefetches, queues[MODEL_TENANTS + 1][2]; /* first item: next to go */
    list ghosts;                                                                  /* keys */
    int ghost_uses[MODEL_KEYS], ghost_evicted[MODEL_KEYS];
    model_load loads[MODEL_LOADS];
    int starting; /* the load in a call of kvx_tier_load() */
    model_announced announced[MODEL_ANNOUNCED];
    model_batch batches[FAKE_BATCHES];
    int store_short, discard_short, prefetch_short; /* the core said AGAIN in this pump */
    int store_error;
    kvx_tier_event events[MODEL_LIST];
    uint32_t n_events;
    uint64_t sequence;
    kvx_tier_stats stats;
} model;

void model_open(model *m, const kvx_tier_config *config);
int model_find(const model *m, int key);
kvx_tier_match model_lookup(model *m, int first_key, uint32_t n, const kvx_tier_pin *pins);
int model_pinned(const model *m, kvx_tier_pin pin); /* the block, or MODEL_NONE */
void model_release(model *m, int b);
kvx_tier_outcome model_offer(model *m, kvx_tier_occasion occasion, int key, uint32_t gpu);
kvx_tier_drop_answer model_may_drop(const model *m, int key, uint32_t gpu);
void model_drop(model *m, int key);
void model_forget(model *m, uint32_t tenant);

/* A load that may begin, or NULL if the tier must say KVX_AGAIN. */
model_load *model_load_begin(model *m, uint32_t n, const kvx_tier_target *targets);
void model_load_queue(model *m, model_load *load);
void model_load_started(model *m, model_load *load);
void model_load_collected(model *m, model_load *load);

/* The announcement, NULL if the tier must say KVX_AGAIN; its list is empty if nothing is held. */
model_announced *model_announce(model *m, int first_key, uint32_t n, uint64_t until_ns);
void model_withdraw(model *m, model_announced *announced);

void model_flush(model *m);
void model_pump_begin(model *m, uint64_t now_ns);
void model_pump_end(model *m);
int model_idle(const model *m);

/* Counters, events, quotas of the tier are those of the model. */
void model_compare(model *m, kvx_tier *tier);
kvx_tier_hash model_hash(int key);
uint32_t model_tenant(int key);

#endif
