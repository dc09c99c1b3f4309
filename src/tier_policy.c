/* SPDX-License-Identifier: Apache-2.0 */
/* LRU, and LRU with two queues: a block that was used again may wait 2.5 times as long as one that was not, before it
 * makes room. On conversations most blocks never come back, but those that do come back after one turn, late: policies
 * that put new blocks to the test quickly (S3-FIFO, 2Q, SIEVE) throw them out before that. A pinned block at the end of
 * a queue goes back to its beginning: it is in use now. */
#include "tier_policy.h"

#include <string.h>

void kvx_tier_policy_init(kvx_tier_policy *policy, kvx_tier_index *index, kvx_tier_ghost *ghost)
{
    memset(policy, 0, sizeof(*policy));
    policy->index = index;
    policy->ghost = ghost;
    policy->n_groups = 1;
    for (uint32_t g = 0; g <= KVX_TIER_TENANTS_MAX; g++)
        for (uint32_t q = 0; q < KVX_TIER_QUEUES; q++)
            policy->groups[g].queues[q].head = policy->groups[g].queues[q].tail = KVX_TIER_NONE;
}

void kvx_tier_policy_group(kvx_tier_policy *policy, uint32_t tenant, int own)
{
    policy->group_of[tenant] = own ? (uint8_t)(tenant + 1) : (uint8_t)0;
    if (own && policy->n_groups < tenant + 2)
        policy->n_groups = tenant + 2;
}

static kvx_tier_group *group_of(kvx_tier_policy *policy, uint32_t entry)
{
    return &policy->groups[policy->group_of[policy->index->entries[entry].tenant]];
}

static void link_first(kvx_tier_policy *policy, uint32_t entry, uint32_t q)
{
    kvx_tier_queue *queue = &group_of(policy, entry)->queues[q];
    kvx_tier_link *links = policy->index->links;
    links[entry] = (kvx_tier_link){KVX_TIER_NONE, queue->head, ++policy->clock};
    if (queue->head != KVX_TIER_NONE)
        links[queue->head].prev = entry;
    else
        queue->tail = entry;
    queue->head = entry;
    queue->n++;
    policy->index->entries[entry].queue = (uint8_t)q;
}

static void unlink_entry(kvx_tier_policy *policy, uint32_t entry)
{
    kvx_tier_queue *queue = &group_of(policy, entry)->queues[policy->index->entries[entry].queue];
    kvx_tier_link *links = policy->index->links;
    uint32_t prev = links[entry].prev, next = links[entry].next;
    if (prev != KVX_TIER_NONE)
        links[prev].next = next;
    else
        queue->head = next;
    if (next != KVX_TIER_NONE)
        links[next].prev = prev;
    else
        queue->tail = prev;
    queue->n--;
}

static void move_first(kvx_tier_policy *policy, uint32_t entry, uint32_t q)
{
    unlink_entry(policy, entry);
    link_first(policy, entry, q);
}

static uint32_t fingerprint(const kvx_tier_policy *policy, uint32_t entry)
{
    return kvx_tier_index_tag(policy->index, &policy->index->keys[entry]);
}

/* Was it here lately? Then this is not its first use. */
static int came_back(kvx_tier_policy *policy, uint32_t entry)
{
    uint8_t *notes = kvx_tier_ghost_find(policy->ghost, fingerprint(policy, entry));
    if (!notes || !(*notes & KVX_TIER_GHOST_EVICTED))
        return 0;
    *notes &= KVX_TIER_GHOST_USES;
    policy->n_ghosts++;
    return 1;
}

void kvx_tier_policy_add(kvx_tier_policy *policy, uint32_t entry)
{
    int again = policy->kind == KVX_TIER_EVICT_LRU || came_back(policy, entry);
    link_first(policy, entry, again ? KVX_TIER_AGAIN : KVX_TIER_ONCE);
}

void kvx_tier_policy_use(kvx_tier_policy *policy, uint32_t entry)
{
    move_first(policy, entry, KVX_TIER_AGAIN);
}

void kvx_tier_policy_prefetch(const kvx_tier_policy *policy, uint32_t entry)
{
    __builtin_prefetch(&policy->index->links[entry], 1);
}

void kvx_tier_policy_prefetch_around(const kvx_tier_policy *policy, uint32_t entry)
{
    const kvx_tier_link *link = &policy->index->links[entry];
    if (link->prev < policy->index->n_entries) /* else none, or a record's number */
        __builtin_prefetch(&policy->index->links[link->prev], 1);
    if (link->next < policy->index->n_entries)
        __builtin_prefetch(&policy->index->links[link->next], 1);
}

void kvx_tier_policy_remove(kvx_tier_policy *policy, uint32_t entry)
{
    unlink_entry(policy, entry);
}

/* How long ago the last entry of a queue was linked. */
static uint64_t age_of(const kvx_tier_policy *policy, const kvx_tier_queue *queue)
{
    return policy->clock - policy->index->links[queue->tail].stamp;
}

/* The queue whose turn it is: the one whose last entry has waited longer, by its own measure. */
static uint32_t turn(const kvx_tier_policy *policy, const kvx_tier_group *group)
{
    const kvx_tier_queue *once = &group->queues[KVX_TIER_ONCE], *again = &group->queues[KVX_TIER_AGAIN];
    if (once->n == 0 || again->n == 0)
        return once->n == 0 ? KVX_TIER_AGAIN : KVX_TIER_ONCE;
    return age_of(policy, once) * policy->again_percent >= age_of(policy, again) * 100 ? KVX_TIER_ONCE : KVX_TIER_AGAIN;
}

static void remember(kvx_tier_policy *policy, uint32_t entry)
{
    uint8_t *notes;
    if (policy->kind == KVX_TIER_EVICT_LRU)
        return;
    notes = kvx_tier_ghost_add(policy->ghost, fingerprint(policy, entry));
    if (notes)
        *notes |= KVX_TIER_GHOST_EVICTED;
}

/* Ends: a step finds the victim or passes a pinned entry, and no queue is passed farther than it is long. */
static uint32_t victim_in(kvx_tier_policy *policy, kvx_tier_group *group)
{
    uint32_t n_passed[KVX_TIER_QUEUES] = {0, 0};
    for (;;) {
        uint32_t q = turn(policy, group);
        if (n_passed[q] >= group->queues[q].n)
            q = 1 - q;
        if (n_passed[q] >= group->queues[q].n)
            return KVX_TIER_NONE;
        uint32_t last = group->queues[q].tail;
        if (policy->index->entries[last].pins == 0) {
            remember(policy, last);
            return last;
        }
        move_first(policy, last, q);
        n_passed[q]++;
    }
}

uint32_t kvx_tier_policy_victim_of(kvx_tier_policy *policy, uint32_t tenant)
{
    return victim_in(policy, &policy->groups[policy->group_of[tenant]]);
}

/* How long ago the entry was linked that the group would look at first; -1: the group is empty. */
static int64_t age(const kvx_tier_policy *policy, const kvx_tier_group *group)
{
    uint32_t last = group->queues[turn(policy, group)].tail;
    return last == KVX_TIER_NONE ? -1 : (int64_t)(policy->clock - policy->index->links[last].stamp);
}

/* The group whose candidate waits longest; if all of its blocks are pinned, the next one. */
uint32_t kvx_tier_policy_victim(kvx_tier_policy *policy)
{
    uint8_t tried[KVX_TIER_TENANTS_MAX + 1] = {0};
    for (;;) {
        int64_t oldest = -1;
        uint32_t best = 0, found;
        for (uint32_t g = 0; g < policy->n_groups; g++) {
            int64_t its = tried[g] ? -1 : age(policy, &policy->groups[g]);
            if (its > oldest) {
                oldest = its;
                best = g;
            }
        }
        if (oldest < 0)
            return KVX_TIER_NONE;
        found = victim_in(policy, &policy->groups[best]);
        if (found != KVX_TIER_NONE)
            return found;
        tried[best] = 1;
    }
}
