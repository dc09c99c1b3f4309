/* SPDX-License-Identifier: Apache-2.0 */
/* Questions to a pool, its contexts, and what is passed on to its memory and leases. */
#include <string.h>

#include "pool_books.h"

const kvx_pool_view *kvx_pool_view_of(const kvx_pool *pool)
{
    return &pool->view;
}

uint32_t kvx_pool_attach(kvx_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    uint32_t owner = ++pool->last_owner;
    pool->n_contexts++;
    pthread_mutex_unlock(&pool->lock);
    return owner;
}

void kvx_pool_detach(kvx_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->n_contexts--;
    pthread_mutex_unlock(&pool->lock);
}

void kvx_pool_counts(kvx_pool *pool, uint64_t *n_free, uint64_t *n_used, uint64_t *n_in_flight)
{
    pthread_mutex_lock(&pool->lock);
    *n_free = pool->n_free;
    *n_in_flight = pool->n_in_flight;
    *n_used = pool->n_kept - pool->n_free - pool->n_in_flight;
    pthread_mutex_unlock(&pool->lock);
}

kvx_status kvx_pool_wait(kvx_pool *pool, uint64_t timeout_ns)
{
    KVX_TRY(kvx_pool_alive(pool));
    return kvx_hostmem_wait(pool->memory, timeout_ns);
}

kvx_status kvx_pool_quiesce(kvx_pool *pool, uint64_t timeout_ns)
{
    KVX_TRY(kvx_pool_alive(pool));
    return kvx_hostmem_quiesce(pool->memory, timeout_ns);
}

kvx_status kvx_pool_resume(kvx_pool *pool)
{
    KVX_TRY(kvx_pool_alive(pool));
    return kvx_hostmem_resume(pool->memory);
}

static kvx_status check_shared(const kvx_pool *pool)
{
    KVX_TRY(kvx_pool_alive(pool));
    if (!pool->lease)
        return kvx_note(KVX_INVALID, "the pool is not shared: create it with shared_bytes");
    return KVX_OK;
}

kvx_status kvx_pool_export(kvx_pool *pool, int fds[2])
{
    KVX_TRY(check_shared(pool));
    if (!fds)
        return kvx_note(KVX_INVALID, "fds is NULL");
    return kvx_lease_export(pool->lease, fds);
}

kvx_status kvx_pool_reclaim(kvx_pool *pool, uint32_t *n_leases)
{
    KVX_TRY(check_shared(pool));
    uint32_t n = kvx_lease_reclaim(pool->lease);
    if (n_leases)
        *n_leases = n;
    return KVX_OK;
}

static uint64_t count_book_bytes(const kvx_pool *pool)
{
    uint64_t bytes = sizeof(*pool) + pool->view.n_slots * sizeof(*pool->slots) +
                     pool->view.n_chunks * (sizeof(*pool->chunks) + sizeof(*pool->chunk_usable));
    for (uint32_t c = 0; c < pool->view.n_classes; c++)
        if (!pool->books[c].caller_managed)
            bytes += kvx_free_set_bytes(&pool->books[c].set);
    return bytes;
}

kvx_status kvx_pool_stats_get(kvx_pool *pool, kvx_pool_stats *stats)
{
    kvx_pool_stats own;
    KVX_TRY(kvx_pool_alive(pool));
    if (!stats || stats->size < sizeof(stats->size) || stats->size > sizeof(own))
        return kvx_note(KVX_INVALID, "stats is NULL, or its size is not set");
    memset(&own, 0, sizeof(own));
    kvx_hostmem_report(pool->memory, &own);
    own.size = stats->size;
    own.bytes_asked = pool->bytes_asked;
    own.book_bytes = count_book_bytes(pool);
    own.record_bytes = pool->view.n_slots * sizeof(kvx_header) + pool->view.n_records * sizeof(kvx_record);
    kvx_pool_counts(pool, &own.slots_free, &own.slots_used, &own.slots_in_flight);
    if (pool->lease)
        kvx_lease_report(pool->lease, &own);
    memcpy(stats, &own, stats->size);
    return KVX_OK;
}
