/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_TESTS_TIER_FAKE_H
#define KVX_TESTS_TIER_FAKE_H
/*
 * Stands in for the core beneath a tier, by linker wraps: GPU blocks and slots hold one word each, batches end some
 * polls after they began, a source is read late, and everything may fail at random. What the tier must never do (open a
 * slot that holds something else, name a slot of a running batch) is counted in n_wrong. One thread only.
 */
#include "cmocka_door.h"

#include "kvx_tier.h"

#define FAKE_SLOTS 96u
#define FAKE_BLOCKS 64u
#define FAKE_BATCHES 64u
#define FAKE_PAIRS 32u
#define FAKE_SEALED 1000u

typedef enum fake_kind { FAKE_FREE, FAKE_STORE, FAKE_RESTORE } fake_kind;

typedef struct fake_batch {
    fake_kind kind;
    int stage; /* 1: the source has been read */
    int tag;
    uint32_t n;
    kvx_pair pairs[FAKE_PAIRS];
    uint64_t content[FAKE_PAIRS];
    kvx_ticket ticket;
} fake_batch;

/* What happens is told to an observer before the tier learns of it. Its answer to `store` and `restore` is handed back
 * when that batch ends. */
typedef struct fake_observer {
    void *self;
    int (*store)(void *self, kvx_status status, uint32_t n, const kvx_pair *pairs, const kvx_options *options);
    int (*restore)(void *self, kvx_status status, uint32_t n, const kvx_pair *pairs);
    void (*discard)(void *self, kvx_status status, uint32_t n, const kvx_slot *slots);
    void (*released)(void *self, int tag);
    void (*stored)(void *self, int tag, const kvx_status *verdicts);
    void (*restored)(void *self, int tag, const kvx_status *verdicts);
} fake_observer;

typedef struct fake_core {
    fake_observer observer;
    uint64_t random;
    uint32_t again_percent, refuse_percent, store_fail_percent, load_fail_percent; /* chances */
    uint32_t n_wrong, n_running;
    int latched, hold; /* hold: no batch moves on */
    uint64_t gpu[FAKE_BLOCKS];
    struct {
        uint64_t content; /* 0: none */
        uint32_t generation, tenant;
    } slots[FAKE_SLOTS];
    fake_batch batches[FAKE_BATCHES];
    kvx_ticket last_ticket;
} fake_core;

extern fake_core fake;

/* Handles to put into a tier's configuration and blocks. */
extern kvx_ctx *const fake_ctx;
extern kvx_pool *const fake_pool;
extern const kvx_layout *const fake_layout;

void fake_reset(uint64_t seed);
uint32_t fake_roll(uint32_t n); /* 0 .. n - 1 */

#endif
