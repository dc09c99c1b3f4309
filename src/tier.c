/* SPDX-License-Identifier: Apache-2.0 */
/* What a scheduler asks: how far a chain is held, what is to be done with a block of the GPU, what may be dropped. */
#include "tier.h"

#include "status.h"

#define WINDOW 32u /* hashes in the air at once during a lookup: hides the misses of the CPU's caches */

static kvx_status check_chain(const kvx_tier *tier, uint32_t tenant, uint32_t n, const kvx_tier_hash *hashes)
{
    KVX_TRY(kvx_tier_alive(tier));
    KVX_TRY(kvx_tier_known_tenant(tier, tenant));
    if (!hashes && n > 0)
        return kvx_note(KVX_INVALID, "hashes is NULL");
    return KVX_OK;
}

/* ---- lookup ---- */

typedef struct window {
    kvx_tier_key keys[WINDOW];
    uint32_t tags[WINDOW];
    uint32_t guesses[WINDOW]; /* entries, or KVX_TIER_NONE */
    uint32_t n;
} window;

/* Rounds, each of which asks for the memory that the next needs. */
static void look_ahead(const kvx_tier *tier, uint32_t tenant, uint32_t n, const kvx_tier_hash *hashes, window *w)
{
    w->n = n < WINDOW ? n : WINDOW;
    for (uint32_t i = 0; i < w->n; i++) {
        w->keys[i] = kvx_tier_key_of(tier, tenant, &hashes[i]);
        w->tags[i] = kvx_tier_index_tag(&tier->index, &w->keys[i]);
        kvx_tier_index_prefetch(&tier->index, w->tags[i]);
    }
    for (uint32_t i = 0; i < w->n; i++) {
        w->guesses[i] = kvx_tier_index_guess(&tier->index, w->tags[i]);
        if (w->guesses[i] != KVX_TIER_NONE)
            kvx_tier_policy_prefetch(&tier->policy, w->guesses[i]);
    }
    for (uint32_t i = 0; i < w->n; i++)
        if (w->guesses[i] != KVX_TIER_NONE)
            kvx_tier_policy_prefetch_around(&tier->policy, w->guesses[i]);
}

/* Nonzero if the entry is a hit; counts as a use of it. */
static int hit(kvx_tier *tier, uint32_t entry, kvx_tier_pin *pin)
{
    kvx_tier_entry *e = &tier->index.entries[entry];
    if (e->state != KVX_TIER_HELD_STATE || e->pins == UINT16_MAX)
        return 0;
    kvx_tier_policy_use(&tier->policy, entry);
    if (pin) {
        kvx_tier_hold(tier, entry);
        *pin = (uint64_t)e->generation << 32 | entry;
    }
    return 1;
}

/* With `book` held: hits first, then what is known at all. */
static void walk(kvx_tier *tier, uint32_t tenant, uint32_t n, const kvx_tier_hash *hashes, kvx_tier_match *match,
                 kvx_tier_pin *pins)
{
    window w;
    for (uint32_t done = 0; done < n; done += w.n) {
        look_ahead(tier, tenant, n - done, &hashes[done], &w);
        for (uint32_t i = 0; i < w.n; i++) {
            uint32_t entry = kvx_tier_index_confirm(&tier->index, w.guesses[i], w.tags[i], &w.keys[i], tenant);
            if (entry == KVX_TIER_NONE)
                return;
            if (match->n_pending == 0 && hit(tier, entry, pins ? &pins[match->n_hits] : NULL))
                match->n_hits++;
            else
                match->n_pending++;
        }
    }
}

kvx_status kvx_tier_lookup(kvx_tier *tier, uint32_t tenant, uint32_t n, const kvx_tier_hash *hashes,
                           kvx_tier_match *match, kvx_tier_pin *pins)
{
    kvx_tier_match found = {0, 0};
    KVX_TRY(check_chain(tier, tenant, n, hashes));
    if (!match)
        return kvx_note(KVX_INVALID, "match is NULL");
    pthread_mutex_lock(&tier->book);
    if (!tier->latched)
        walk(tier, tenant, n, hashes, &found, pins);
    tier->stats.lookups++;
    tier->stats.lookup_blocks += n;
    tier->stats.hit_blocks += found.n_hits;
    tier->stats.pending_blocks += found.n_pending;
    tier->stats.miss_blocks += n - found.n_hits - found.n_pending;
    pthread_mutex_unlock(&tier->book);
    *match = found;
    return KVX_OK;
}

kvx_status kvx_tier_unpin(kvx_tier *tier, uint32_t n, const kvx_tier_pin *pins)
{
    KVX_TRY(kvx_tier_alive(tier));
    if (!pins && n > 0)
        return kvx_note(KVX_INVALID, "pins is NULL");
    pthread_mutex_lock(&tier->book);
    uint32_t n_good = kvx_tier_count_pins(tier, n, pins, sizeof(*pins));
    for (uint32_t i = 0; n_good == n && i < n; i++)
        kvx_tier_release(tier, (uint32_t)pins[i]);
    pthread_mutex_unlock(&tier->book);
    kvx_tier_deliver(tier);
    return n_good == n ? KVX_OK : kvx_note(KVX_INVALID, "pin %u is not in force", n_good);
}

/* ---- offers ---- */

/* Counts a use of a block that the tier does not hold. Nonzero if it has had enough of them. */
static int used_often(kvx_tier *tier, kvx_tier_occasion occasion, uint32_t tag)
{
    uint8_t *notes =
        occasion == KVX_TIER_USED ? kvx_tier_ghost_add(&tier->ghost, tag) : kvx_tier_ghost_find(&tier->ghost, tag);
    if (!notes)
        return 0;
    if (occasion == KVX_TIER_USED && (*notes & KVX_TIER_GHOST_USES) < KVX_TIER_GHOST_USES)
        ++*notes;
    return (*notes & KVX_TIER_GHOST_USES) >= tier->config.selective_hits;
}

static int is_wanted(kvx_tier *tier, kvx_tier_occasion occasion, uint32_t tag)
{
    switch (tier->config.write) {
    case KVX_TIER_WRITE_THROUGH:
        return 1;
    case KVX_TIER_WRITE_SELECTIVE:
        return used_often(tier, occasion, tag);
    case KVX_TIER_WRITE_BACK:
        return occasion == KVX_TIER_LEAVING;
    }
    return 0;
}

/* Write-back, and the GPU has the block as well: the tier's copy goes, with its last pin if it has some. */
static kvx_tier_outcome leave_to_gpu(kvx_tier *tier, uint32_t entry)
{
    kvx_tier_entry *e = &tier->index.entries[entry];
    if (e->pins > 0)
        e->flags |= KVX_TIER_MOVED;
    else
        kvx_tier_remove(tier, entry, KVX_TIER_BY_MOVE, 0);
    return KVX_TIER_SKIPPED;
}

static kvx_tier_outcome offer_known(kvx_tier *tier, kvx_tier_occasion occasion, uint32_t entry)
{
    kvx_tier_entry *e = &tier->index.entries[entry];
    if (e->state != KVX_TIER_HELD_STATE)
        return KVX_TIER_JOINED;
    if (occasion == KVX_TIER_LEAVING) {
        e->flags &= (uint8_t)~KVX_TIER_MOVED;
        return KVX_TIER_HELD;
    }
    if (tier->config.write == KVX_TIER_WRITE_BACK)
        return leave_to_gpu(tier, entry);
    kvx_tier_policy_use(&tier->policy, entry);
    return KVX_TIER_HELD;
}

static kvx_tier_outcome offer_one(kvx_tier *tier, kvx_tier_occasion occasion, const kvx_tier_block *block)
{
    kvx_tier_key key = kvx_tier_key_of(tier, block->tenant, &block->hash);
    uint32_t tag = kvx_tier_index_tag(&tier->index, &key);
    uint32_t entry = kvx_tier_index_find(&tier->index, tag, &key, block->tenant);
    if (tier->latched)
        return KVX_TIER_NO_ROOM;
    if (entry != KVX_TIER_NONE)
        return offer_known(tier, occasion, entry);
    if (!is_wanted(tier, occasion, tag))
        return KVX_TIER_SKIPPED;
    if (tier->free_records.n == 0)
        return KVX_TIER_NO_ROOM;
    entry = kvx_tier_take(tier, block->tenant, &key);
    if (entry == KVX_TIER_NONE)
        return KVX_TIER_NO_ROOM;
    kvx_tier_enqueue(tier, entry, block);
    return KVX_TIER_QUEUED;
}

static void count_outcome(kvx_tier_stats *stats, kvx_tier_outcome outcome)
{
    stats->offered_blocks++;
    stats->queued_blocks += outcome == KVX_TIER_QUEUED;
    stats->joined_blocks += outcome == KVX_TIER_JOINED;
    stats->held_blocks += outcome == KVX_TIER_HELD;
    stats->skipped_blocks += outcome == KVX_TIER_SKIPPED;
    stats->no_room_blocks += outcome == KVX_TIER_NO_ROOM;
}

static kvx_status check_blocks(const kvx_tier *tier, uint32_t n, const kvx_tier_block *blocks)
{
    KVX_TRY(kvx_tier_alive(tier));
    if (!blocks && n > 0)
        return kvx_note(KVX_INVALID, "blocks is NULL");
    for (uint32_t i = 0; i < n; i++) {
        KVX_TRY(kvx_tier_known_tenant(tier, blocks[i].tenant));
        if (tier->config.ctx && !blocks[i].layout)
            return kvx_note(KVX_INVALID, "block %u: layout is NULL", i);
    }
    return KVX_OK;
}

kvx_status kvx_tier_offer(kvx_tier *tier, kvx_tier_occasion occasion, uint32_t n, const kvx_tier_block *blocks,
                          kvx_tier_outcome *outcomes)
{
    KVX_TRY(check_blocks(tier, n, blocks));
    if (occasion != KVX_TIER_USED && occasion != KVX_TIER_LEAVING)
        return kvx_note(KVX_INVALID, "no such occasion: %d", (int)occasion);
    pthread_mutex_lock(&tier->book);
    for (uint32_t i = 0; i < n; i++) {
        kvx_tier_outcome outcome = offer_one(tier, occasion, &blocks[i]);
        count_outcome(&tier->stats, outcome);
        if (outcomes)
            outcomes[i] = outcome;
    }
    pthread_mutex_unlock(&tier->book);
    kvx_tier_deliver(tier);
    return KVX_OK;
}

/* ---- drops ---- */

static kvx_tier_drop_answer answer(const kvx_tier *tier, const kvx_tier_block *block)
{
    if (kvx_tier_source_busy(tier, block))
        return KVX_TIER_WAIT;
    uint32_t entry = kvx_tier_find(tier, block->tenant, &block->hash);
    if (tier->latched || entry == KVX_TIER_NONE)
        return KVX_TIER_LOSE;
    const kvx_tier_entry *e = &tier->index.entries[entry];
    return e->state == KVX_TIER_HELD_STATE && !(e->flags & KVX_TIER_MOVED) ? KVX_TIER_KEEP : KVX_TIER_LOSE;
}

kvx_status kvx_tier_may_drop(kvx_tier *tier, uint32_t n, const kvx_tier_block *blocks, kvx_tier_drop_answer *answers)
{
    KVX_TRY(check_blocks(tier, n, blocks));
    if (!answers && n > 0)
        return kvx_note(KVX_INVALID, "answers is NULL");
    pthread_mutex_lock(&tier->book);
    for (uint32_t i = 0; i < n; i++)
        answers[i] = answer(tier, &blocks[i]);
    pthread_mutex_unlock(&tier->book);
    return KVX_OK;
}

kvx_status kvx_tier_drop(kvx_tier *tier, uint32_t tenant, uint32_t n, const kvx_tier_hash *hashes)
{
    KVX_TRY(check_chain(tier, tenant, n, hashes));
    pthread_mutex_lock(&tier->book);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t entry = kvx_tier_find(tier, tenant, &hashes[i]);
        if (entry != KVX_TIER_NONE)
            kvx_tier_remove(tier, entry, KVX_TIER_BY_CALLER, 0);
    }
    pthread_mutex_unlock(&tier->book);
    kvx_tier_deliver(tier);
    return KVX_OK;
}

/* Slots of entries that are on their way out are discarded as well: they may hold the tenant's blocks. */
static void forget_entry(kvx_tier *tier, uint32_t entry)
{
    kvx_tier_entry *e = &tier->index.entries[entry];
    if (e->state == KVX_TIER_LIMBO || e->flags & KVX_TIER_DOOMED)
        e->flags |= KVX_TIER_DISCARD;
    else if (e->state != KVX_TIER_FREE && e->state != KVX_TIER_TO_BE_DISCARDED)
        kvx_tier_remove(tier, entry, KVX_TIER_BY_ERASURE, KVX_TIER_DISCARD);
}

kvx_status kvx_tier_forget(kvx_tier *tier, uint32_t tenant)
{
    KVX_TRY(kvx_tier_alive(tier));
    KVX_TRY(kvx_tier_known_tenant(tier, tenant));
    pthread_mutex_lock(&tier->book);
    for (uint32_t i = 0; i < tier->config.n_blocks; i++)
        if (tier->index.entries[i].tenant == tenant)
            forget_entry(tier, i);
    pthread_mutex_unlock(&tier->book);
    kvx_tier_deliver(tier);
    return KVX_OK;
}
