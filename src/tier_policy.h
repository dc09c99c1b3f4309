/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_SRC_TIER_POLICY_H
#define KVX_SRC_TIER_POLICY_H
/*
 * Which held block makes room. LRU has one queue per group of tenants, AGED two: `once` for blocks that were not used
 * again yet, `again` for those that were, each in the order of the last use. Tenants without a quota form group 0; a
 * tenant with one is a group of its own, so that it can make room among its own blocks in constant time.
 */
#include "kvx_tier.h"
#include "tier_ghost.h"
#include "tier_index.h"

enum { KVX_TIER_ONCE, KVX_TIER_AGAIN, KVX_TIER_QUEUES };

typedef struct kvx_tier_queue {
    uint32_t head, tail, n;
} kvx_tier_queue;

typedef struct kvx_tier_group {
    kvx_tier_queue queues[KVX_TIER_QUEUES];
} kvx_tier_group;

typedef struct kvx_tier_policy {
    kvx_tier_index *index;
    kvx_tier_ghost *ghost;
    kvx_tier_evict kind;
    uint32_t again_percent;
    uint32_t clock;
    uint32_t n_groups; /* those that are in use, and a few */
    uint64_t n_ghosts; /* blocks that came back */
    uint8_t group_of[KVX_TIER_TENANTS_MAX];
    kvx_tier_group groups[KVX_TIER_TENANTS_MAX + 1];
} kvx_tier_policy;

void kvx_tier_policy_init(kvx_tier_policy *policy, kvx_tier_index *index, kvx_tier_ghost *ghost);

/* A tenant that holds nothing gets a group of its own, or none. */
void kvx_tier_policy_group(kvx_tier_policy *policy, uint32_t tenant, int own);

/* An entry has come, was used, has gone. */
void kvx_tier_policy_add(kvx_tier_policy *policy, uint32_t entry);
void kvx_tier_policy_use(kvx_tier_policy *policy, uint32_t entry);
void kvx_tier_policy_remove(kvx_tier_policy *policy, uint32_t entry);

/* Hints to the CPU: fetches the entry's link; then, once that has come, its neighbours, which a use would change. */
void kvx_tier_policy_prefetch(const kvx_tier_policy *policy, uint32_t entry);
void kvx_tier_policy_prefetch_around(const kvx_tier_policy *policy, uint32_t entry);

/* An entry without pins that is to go, or KVX_TIER_NONE: of this tenant's group, or of any. It stays queued. */
uint32_t kvx_tier_policy_victim_of(kvx_tier_policy *policy, uint32_t tenant);
uint32_t kvx_tier_policy_victim(kvx_tier_policy *policy);

#endif
