/* SPDX-License-Identifier: Apache-2.0 */
/* Entries from taken to free. An entry leaves the table at once when it is dropped; its slot becomes free only when
 * neither a store nor a pin nor a discard needs it any more. */
#include "tier.h"

#include <string.h>

void kvx_tier_list_push(kvx_tier_list *list, uint32_t item, uint32_t *next_of_last)
{
    if (list->n++ == 0)
        list->first = item;
    else
        *next_of_last = item;
    list->last = item;
}

kvx_tier_key kvx_tier_key_of(const kvx_tier *tier, uint32_t tenant, const kvx_tier_hash *hash)
{
    const kvx_tier_key *salt = &tier->tenants[tenant].salt;
    kvx_tier_key key;
    memcpy(&key, hash, sizeof(key));
    for (uint32_t i = 0; i < 4; i++)
        key.word[i] ^= salt->word[i];
    return key;
}

uint32_t kvx_tier_find(const kvx_tier *tier, uint32_t tenant, const kvx_tier_hash *hash)
{
    kvx_tier_key key = kvx_tier_key_of(tier, tenant, hash);
    return kvx_tier_index_find(&tier->index, kvx_tier_index_tag(&tier->index, &key), &key, tenant);
}

static void push_entry(kvx_tier *tier, kvx_tier_list *list, uint32_t entry)
{
    uint32_t last = list->n ? list->last : entry;
    tier->index.links[entry].next = KVX_TIER_NONE;
    kvx_tier_list_push(list, entry, &tier->index.links[last].next);
}

static void make_free(kvx_tier *tier, uint32_t entry)
{
    tier->index.entries[entry].state = KVX_TIER_FREE;
    tier->index.entries[entry].flags = 0;
    tier->stats.leaving_now--;
    push_entry(tier, &tier->free, entry);
}

void kvx_tier_free_discarded(kvx_tier *tier, uint32_t entry)
{
    make_free(tier, entry);
}

/* A LIMBO entry goes on if nothing holds it. */
static void settle(kvx_tier *tier, uint32_t entry)
{
    kvx_tier_entry *e = &tier->index.entries[entry];
    if (e->state != KVX_TIER_LIMBO || e->pins > 0)
        return;
    if (!(e->flags & KVX_TIER_DISCARD) || !tier->config.ctx || tier->latched) {
        make_free(tier, entry);
        return;
    }
    e->state = KVX_TIER_TO_BE_DISCARDED;
    push_entry(tier, &tier->to_discard, entry);
}

/* Evicts what is needed so that the tenant may take an entry: one at most. Nonzero if it may. */
static int make_room(kvx_tier *tier, uint32_t tenant)
{
    const kvx_tier_owner *owner = &tier->tenants[tenant];
    uint32_t victim;
    if (owner->quota_blocks && owner->n_blocks >= owner->quota_blocks) {
        victim = kvx_tier_policy_victim_of(&tier->policy, tenant);
        if (victim != KVX_TIER_NONE)
            kvx_tier_remove(tier, victim, KVX_TIER_BY_QUOTA, 0);
        return victim != KVX_TIER_NONE;
    }
    if (tier->free.n > 0)
        return 1;
    victim = kvx_tier_policy_victim(&tier->policy);
    if (victim != KVX_TIER_NONE)
        kvx_tier_remove(tier, victim, KVX_TIER_BY_CAPACITY, 0);
    return victim != KVX_TIER_NONE;
}

uint32_t kvx_tier_take(kvx_tier *tier, uint32_t tenant, const kvx_tier_key *key)
{
    if (!make_room(tier, tenant))
        return KVX_TIER_NONE;
    uint32_t entry = tier->free.first;
    kvx_tier_entry *e = &tier->index.entries[entry];
    tier->free.first = tier->index.links[entry].next;
    tier->free.n--;
    e->generation++;
    e->state = KVX_TIER_QUEUED_STATE;
    e->tenant = (uint8_t)tenant;
    tier->index.keys[entry] = *key;
    kvx_tier_index_add(&tier->index, entry);
    tier->tenants[tenant].n_blocks++;
    tier->stats.pending_now++;
    return entry;
}

static void leave_table(kvx_tier *tier, uint32_t entry)
{
    kvx_tier_index_remove(&tier->index, entry);
    tier->tenants[tier->index.entries[entry].tenant].n_blocks--;
    tier->stats.leaving_now++;
}

void kvx_tier_remove(kvx_tier *tier, uint32_t entry, kvx_tier_cause cause, uint8_t flags)
{
    kvx_tier_entry *e = &tier->index.entries[entry];
    leave_table(tier, entry);
    e->flags = flags;
    if (e->state == KVX_TIER_STORING) {
        e->flags |= KVX_TIER_DOOMED;
        tier->stats.pending_now--;
        return;
    }
    if (e->state == KVX_TIER_QUEUED_STATE) {
        kvx_tier_cancel(tier, tier->index.links[entry].prev);
        tier->stats.pending_now--;
        e->flags = 0; /* the slot was not written */
    } else {
        kvx_tier_policy_remove(&tier->policy, entry);
        kvx_tier_record_removed(tier, entry, cause);
        tier->stats.blocks_now--;
    }
    e->state = KVX_TIER_LIMBO;
    settle(tier, entry);
}

static void end_doomed(kvx_tier *tier, uint32_t entry)
{
    tier->index.entries[entry].flags &= (uint8_t)~KVX_TIER_DOOMED;
    tier->index.entries[entry].state = KVX_TIER_LIMBO;
    settle(tier, entry);
}

void kvx_tier_arrive(kvx_tier *tier, uint32_t entry)
{
    kvx_tier_entry *e = &tier->index.entries[entry];
    if (e->flags & KVX_TIER_DOOMED) {
        end_doomed(tier, entry);
        return;
    }
    e->state = KVX_TIER_HELD_STATE;
    e->since_ms = (uint32_t)(tier->now_ns / 1000000);
    kvx_tier_policy_add(&tier->policy, entry);
    tier->stats.pending_now--;
    tier->stats.blocks_now++;
    kvx_tier_record_stored(tier, entry);
}

void kvx_tier_fail(kvx_tier *tier, uint32_t entry)
{
    kvx_tier_entry *e = &tier->index.entries[entry];
    if (!(e->flags & KVX_TIER_DOOMED)) {
        leave_table(tier, entry);
        tier->stats.pending_now--;
    }
    end_doomed(tier, entry);
}

static const kvx_tier_pin *pin_at(const kvx_tier_pin *pins, uint32_t i, size_t stride)
{
    return (const kvx_tier_pin *)((const char *)pins + i * stride);
}

static kvx_tier_entry *entry_of(kvx_tier *tier, kvx_tier_pin pin)
{
    uint32_t entry = (uint32_t)pin;
    if (entry >= tier->config.n_blocks || tier->index.entries[entry].generation != (uint32_t)(pin >> 32))
        return NULL;
    return &tier->index.entries[entry];
}

/* Takes them off one by one, then puts them back. */
uint32_t kvx_tier_count_pins(kvx_tier *tier, uint32_t n, const kvx_tier_pin *pins, size_t stride)
{
    uint32_t n_good = 0;
    for (; n_good < n; n_good++) {
        kvx_tier_entry *e = entry_of(tier, *pin_at(pins, n_good, stride));
        if (!e || e->pins == 0)
            break;
        e->pins--;
    }
    for (uint32_t i = 0; i < n_good; i++)
        entry_of(tier, *pin_at(pins, i, stride))->pins++;
    return n_good;
}

void kvx_tier_hold(kvx_tier *tier, uint32_t entry)
{
    if (tier->index.entries[entry].pins++ == 0)
        tier->stats.pinned_now++;
}

void kvx_tier_release(kvx_tier *tier, uint32_t entry)
{
    kvx_tier_entry *e = &tier->index.entries[entry];
    if (--e->pins > 0)
        return;
    tier->stats.pinned_now--;
    if (e->state == KVX_TIER_HELD_STATE && (e->flags & KVX_TIER_MOVED))
        kvx_tier_remove(tier, entry, KVX_TIER_BY_MOVE, 0);
    else
        settle(tier, entry);
}
