/* SPDX-License-Identifier: Apache-2.0 */
/* Announcements: chains that will be needed soon, pinned for a time. */
#include "tier.h"

#include "status.h"

/* ---- with `book` held ---- */

static uint64_t id_of(const kvx_tier *tier, const kvx_tier_announced *announced)
{
    return (uint64_t)announced->generation << 32 | ((uint32_t)(announced - tier->announced) + 1);
}

static kvx_tier_announced *idle_place(kvx_tier *tier)
{
    for (uint32_t i = 0; i < tier->config.max_announced; i++)
        if (tier->announced[i].nodes.n == 0)
            return &tier->announced[i];
    return NULL;
}

static void end(kvx_tier *tier, kvx_tier_announced *announced)
{
    kvx_tier_release_nodes(tier, &announced->nodes);
    announced->generation++;
    tier->stats.announced_now--;
}

void kvx_tier_expire(kvx_tier *tier)
{
    for (uint32_t i = 0; tier->stats.announced_now > 0 && i < tier->config.max_announced; i++)
        if (tier->announced[i].nodes.n > 0 && tier->announced[i].until_ns <= tier->now_ns)
            end(tier, &tier->announced[i]);
}

static int can_hold(const kvx_tier *tier, uint32_t entry)
{
    return entry != KVX_TIER_NONE && tier->index.entries[entry].state == KVX_TIER_HELD_STATE &&
           tier->index.entries[entry].pins < UINT16_MAX;
}

/* How many leading blocks are held; and whether one behind them waits for its store. */
static uint32_t measure(kvx_tier *tier, uint32_t tenant, uint32_t n, const kvx_tier_hash *hashes, int *waits)
{
    uint32_t n_held = 0;
    while (n_held < n && can_hold(tier, kvx_tier_find(tier, tenant, &hashes[n_held])))
        n_held++;
    *waits = 0;
    for (uint32_t i = n_held; i < n && !*waits; i++) {
        uint32_t entry = kvx_tier_find(tier, tenant, &hashes[i]);
        *waits = entry != KVX_TIER_NONE && tier->index.entries[entry].state == KVX_TIER_QUEUED_STATE;
    }
    return n_held;
}

static kvx_status announce(kvx_tier *tier, uint32_t tenant, uint32_t n, const kvx_tier_hash *hashes,
                           kvx_tier_announced **made)
{
    int waits = 0;
    uint32_t n_held = tier->latched ? 0 : measure(tier, tenant, n, hashes, &waits);
    if (tier->latched || (n_held == 0 && !waits)) {
        *made = NULL;
        return KVX_OK;
    }
    kvx_tier_announced *announced = idle_place(tier);
    if (n_held > 0 && (!announced || tier->free_nodes.n < n_held))
        return kvx_note(KVX_AGAIN, "announcements or their blocks are short");
    if (waits)
        tier->n_hurried = tier->queue.n;
    for (uint32_t i = 0; i < n_held; i++) {
        uint32_t entry = kvx_tier_find(tier, tenant, &hashes[i]);
        kvx_tier_hold(tier, entry);
        kvx_tier_list_nodes(tier, &announced->nodes, entry);
    }
    tier->stats.announced_now += n_held > 0;
    *made = n_held > 0 ? announced : NULL;
    return KVX_OK;
}

/* ---- the calls ---- */

kvx_status kvx_tier_announce(kvx_tier *tier, uint32_t tenant, uint32_t n, const kvx_tier_hash *hashes,
                             uint64_t until_ns, uint32_t *n_held, uint64_t *announcement)
{
    kvx_tier_announced *made = NULL;
    KVX_TRY(kvx_tier_alive(tier));
    KVX_TRY(kvx_tier_known_tenant(tier, tenant));
    if (!announcement || (!hashes && n > 0))
        return kvx_note(KVX_INVALID, "hashes or an output is NULL");
    pthread_mutex_lock(&tier->book);
    kvx_status status = announce(tier, tenant, n, hashes, &made);
    if (status == KVX_OK) {
        if (made)
            made->until_ns = until_ns;
        *announcement = made ? id_of(tier, made) : 0;
        if (n_held)
            *n_held = made ? made->nodes.n : 0;
    }
    pthread_mutex_unlock(&tier->book);
    return status;
}

kvx_status kvx_tier_withdraw(kvx_tier *tier, uint64_t announcement)
{
    uint32_t number = (uint32_t)announcement - 1;
    int known = 0;
    KVX_TRY(kvx_tier_alive(tier));
    pthread_mutex_lock(&tier->book);
    if (number < tier->config.max_announced) {
        kvx_tier_announced *announced = &tier->announced[number];
        known = announced->nodes.n > 0 && announced->generation == (uint32_t)(announcement >> 32);
        if (known)
            end(tier, announced);
    }
    pthread_mutex_unlock(&tier->book);
    kvx_tier_deliver(tier);
    return known ? KVX_OK : kvx_note(KVX_UNKNOWN, "no such announcement, or it has ended");
}
