/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of events and the snapshot of counters. The ring has two readers, kvx_tier_events() and the callback, each
 * with a position of its own; a writer never waits for them. */
#include "tier.h"

#include <string.h>

#include "status.h"

#define CALLBACK_EVENTS 16

static kvx_tier_event *event_at(const kvx_tier *tier, uint64_t n)
{
    return &tier->events[n & (tier->config.max_events - 1)];
}

static kvx_tier_event *add_event(kvx_tier *tier, uint32_t entry)
{
    kvx_tier_event *event = event_at(tier, tier->n_events++);
    const kvx_tier_key *salt = &tier->tenants[tier->index.entries[entry].tenant].salt;
    kvx_tier_key key = tier->index.keys[entry];
    for (uint32_t i = 0; i < 4; i++)
        key.word[i] ^= salt->word[i];
    event->sequence = tier->n_events;
    event->tenant = tier->index.entries[entry].tenant;
    memcpy(&event->hash, &key, sizeof(key));
    return event;
}

void kvx_tier_record_stored(kvx_tier *tier, uint32_t entry)
{
    kvx_tier_event *event = add_event(tier, entry);
    event->kind = KVX_TIER_STORED;
    event->cause = KVX_TIER_BY_CAPACITY;
}

static uint32_t residence_class(uint32_t ms)
{
    uint32_t class = ms ? 32 - (uint32_t)__builtin_clz(ms) : 0;
    return class < 24 ? class : 23;
}

void kvx_tier_record_removed(kvx_tier *tier, uint32_t entry, kvx_tier_cause cause)
{
    kvx_tier_event *event = add_event(tier, entry);
    uint32_t ms = (uint32_t)(tier->now_ns / 1000000) - tier->index.entries[entry].since_ms;
    int evicted = cause == KVX_TIER_BY_CAPACITY || cause == KVX_TIER_BY_QUOTA;
    event->kind = evicted ? KVX_TIER_EVICTED : KVX_TIER_DROPPED;
    event->cause = cause;
    tier->stats.removed_blocks[cause]++;
    tier->stats.removed_residence_ns += (uint64_t)ms * 1000000;
    tier->stats.residence_log2_ms[residence_class(ms)]++;
}

/* Passes over what was overwritten; says how many those were. */
static uint64_t catch_up(const kvx_tier *tier, uint64_t *position)
{
    uint64_t n_behind = tier->n_events - *position, n_lost = 0;
    if (n_behind > tier->config.max_events)
        n_lost = n_behind - tier->config.max_events;
    *position += n_lost;
    return n_lost;
}

kvx_status kvx_tier_events(kvx_tier *tier, uint32_t max, kvx_tier_event *events, uint32_t *n, uint64_t *n_lost)
{
    KVX_TRY(kvx_tier_alive(tier));
    if (!n || (!events && max > 0))
        return kvx_note(KVX_INVALID, "an output is NULL");
    pthread_mutex_lock(&tier->book);
    uint64_t lost = catch_up(tier, &tier->n_read);
    tier->stats.events_lost += lost;
    for (*n = 0; *n < max && tier->n_read < tier->n_events; tier->n_read++)
        events[(*n)++] = *event_at(tier, tier->n_read);
    pthread_mutex_unlock(&tier->book);
    if (n_lost)
        *n_lost = lost;
    return KVX_OK;
}

static uint32_t next_removals(kvx_tier *tier, kvx_tier_event *events)
{
    uint32_t n = 0;
    pthread_mutex_lock(&tier->book);
    (void)catch_up(tier, &tier->n_called);
    for (; n < CALLBACK_EVENTS && tier->n_called < tier->n_events; tier->n_called++)
        if (event_at(tier, tier->n_called)->kind != KVX_TIER_STORED)
            events[n++] = *event_at(tier, tier->n_called);
    pthread_mutex_unlock(&tier->book);
    return n;
}

void kvx_tier_deliver(kvx_tier *tier)
{
    kvx_tier_event events[CALLBACK_EVENTS];
    uint32_t n;
    if (!tier->config.on_evict)
        return;
    while ((n = next_removals(tier, events)) > 0)
        tier->config.on_evict(tier->config.on_evict_arg, n, events);
}

static void fill_now(const kvx_tier *tier, kvx_tier_stats *stats)
{
    uint64_t unread = tier->n_events - tier->n_read;
    stats->size = sizeof(*stats);
    stats->ghost_blocks = tier->policy.n_ghosts;
    stats->bytes_now = stats->blocks_now * tier->slot_bytes;
    stats->free_now = tier->free.n;
    stats->capacity = tier->config.n_blocks;
    stats->memory_bytes = tier->memory_bytes;
    stats->latched = (uint32_t)tier->latched;
    if (unread > tier->config.max_events)
        stats->events_lost += unread - tier->config.max_events;
}

kvx_status kvx_tier_stats_get(kvx_tier *tier, kvx_tier_stats *stats)
{
    kvx_tier_stats own;
    KVX_TRY(kvx_tier_alive(tier));
    if (!stats || stats->size < sizeof(stats->size) || stats->size > sizeof(own))
        return kvx_note(KVX_INVALID, "stats is NULL or its size is not set");
    pthread_mutex_lock(&tier->book);
    own = tier->stats;
    fill_now(tier, &own);
    pthread_mutex_unlock(&tier->book);
    size_t size = stats->size;
    memcpy(stats, &own, size);
    stats->size = size;
    return KVX_OK;
}
