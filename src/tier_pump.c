/* SPDX-License-Identifier: Apache-2.0 */
/* One step of all that goes on in the background, in the order of importance: what has ended, prefetches, stores. */
#include "tier.h"

#include "status.h"

static void advance(kvx_tier *tier, uint64_t now_ns)
{
    pthread_mutex_lock(&tier->book);
    if (now_ns > tier->now_ns)
        tier->now_ns = now_ns;
    kvx_tier_expire(tier);
    pthread_mutex_unlock(&tier->book);
}

static kvx_status step(kvx_tier *tier, kvx_stream stream)
{
    if (tier->config.ctx) {
        kvx_tier_collect_loads(tier);
        kvx_tier_collect_stores(tier);
    }
    kvx_status prefetches = kvx_tier_start_prefetches(tier, stream);
    kvx_status stores = kvx_tier_start_stores(tier, stream);
    kvx_tier_start_discards(tier);
    return prefetches != KVX_OK ? prefetches : stores;
}

kvx_status kvx_tier_pump(kvx_tier *tier, uint64_t now_ns, kvx_stream stream)
{
    KVX_TRY(kvx_tier_alive(tier));
    if (pthread_mutex_trylock(&tier->pumping) != 0)
        return KVX_OK;
    advance(tier, now_ns);
    kvx_status status = step(tier, stream);
    pthread_mutex_unlock(&tier->pumping);
    kvx_tier_deliver(tier);
    return status;
}

kvx_status kvx_tier_flush(kvx_tier *tier)
{
    KVX_TRY(kvx_tier_alive(tier));
    pthread_mutex_lock(&tier->book);
    tier->n_hurried = tier->queue.n;
    pthread_mutex_unlock(&tier->book);
    return KVX_OK;
}

kvx_status kvx_tier_idle(kvx_tier *tier)
{
    KVX_TRY(kvx_tier_alive(tier));
    pthread_mutex_lock(&tier->book);
    int idle = tier->queue.n == 0 && tier->n_running_batches == 0 && tier->prefetches.n == 0 &&
               tier->n_running_loads == 0 && tier->to_discard.n == 0;
    pthread_mutex_unlock(&tier->book);
    return idle ? KVX_OK : KVX_PENDING;
}
