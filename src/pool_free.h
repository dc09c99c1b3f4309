/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_SRC_POOL_FREE_H
#define KVX_SRC_POOL_FREE_H
/* The free slots of one class. Put and take cost O(1) a slot and allocate nothing. Not locked: the pool's lock is. */
#include <stdint.h>

typedef struct kvx_free_group kvx_free_group;

typedef struct kvx_free_set {
    uint32_t group_slots, n_groups, n_free;
    uint32_t n_listed;
    uint32_t *listed; /* groups with a free slot, in any order */
    kvx_free_group *groups;
} kvx_free_set;

/* An empty set for n_slots slots. Returns 1, or 0 if memory is short; destroy in both cases. */
int kvx_free_set_create(kvx_free_set *set, uint32_t n_slots, uint64_t slot_bytes);
void kvx_free_set_destroy(kvx_free_set *set);
uint64_t kvx_free_set_bytes(const kvx_free_set *set);
/* Adds a slot that is not in the set. */
void kvx_free_set_put(kvx_free_set *set, uint32_t index);
/* Takes a run of 1 to `want` neighbours, chosen by `random`, from a set that is not empty. Returns its length. */
uint32_t kvx_free_set_take(kvx_free_set *set, uint32_t want, uint64_t random, uint32_t *first_index);

#endif
