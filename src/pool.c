/* SPDX-License-Identifier: Apache-2.0 */
/* Life of a pool: lays the classes out over chunks of memory, keeps a book per slot, and lets hostmem bring the memory.
 * A pool that joins another process's memory leases its chunks there; all else is the same. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "pool_books.h"

#define CHUNK_BYTES_MAX (64ull << 30)
#define CHUNK_BYTES_DEFAULT_MAX (16ull << 30)
#define CHUNK_BYTES_DEFAULT_MIN (512ull << 20)
#define CHUNKS_DEFAULT 256u
#define THREADS_MAX 64u
#define HUGE_PAGE (2ull << 20)
#define DEFAULT_UNITS 64u

static uint64_t round_up(uint64_t bytes, uint64_t to)
{
    return (bytes + to - 1) / to * to;
}

/* ----------------------------------------------------------------------------------------------- configuration */

static kvx_status check_classes(const kvx_pool_config *config)
{
    uint64_t n_slots = 0;
    if (!config->classes || config->n_classes == 0 || config->n_classes > KVX_CLASSES_MAX)
        return kvx_note(KVX_INVALID, "a pool has 1 to %u slot classes", KVX_CLASSES_MAX);
    for (uint32_t c = 0; c < config->n_classes; c++) {
        const kvx_slot_class *given = &config->classes[c];
        if (given->slot_bytes == 0 || given->slot_bytes > KVX_SLOT_BYTES_MAX)
            return kvx_note(KVX_INVALID, "class %u: slot_bytes must be 1 to %u", c, KVX_SLOT_BYTES_MAX);
        if (given->n_slots == 0 || given->max_units > KVX_UNITS_MAX)
            return kvx_note(KVX_INVALID, "class %u: n_slots must be at least 1, max_units at most %u", c,
                            KVX_UNITS_MAX);
        if (config->chunk_bytes > 0 && config->chunk_bytes < round_up(given->slot_bytes, KVX_SLOT_ALIGN))
            return kvx_note(KVX_INVALID, "class %u: chunk_bytes is less than a slot", c);
        n_slots += given->n_slots;
    }
    if (n_slots > KVX_SLOTS_MAX)
        return kvx_note(KVX_INVALID, "a pool has at most %u slots in all", KVX_SLOTS_MAX);
    return KVX_OK;
}

static kvx_status check_config(const kvx_pool_config *config)
{
    if (config->engine != KVX_ENGINE_AUTO && config->engine != KVX_ENGINE_CUDA && config->engine != KVX_ENGINE_CPU)
        return kvx_note(KVX_INVALID, "no such engine: %d", (int)config->engine);
    if (config->numa_node < 0)
        return kvx_note(KVX_INVALID, "numa_node is the node + 1, or 0");
    if ((int)config->pages < KVX_PAGES_AUTO || config->pages > KVX_PAGES_1G)
        return kvx_note(KVX_INVALID, "no such kind of page: %d", (int)config->pages);
    if (config->n_threads > THREADS_MAX)
        return kvx_note(KVX_INVALID, "n_threads is %u, at most %u", config->n_threads, THREADS_MAX);
    if (config->chunk_bytes > CHUNK_BYTES_MAX)
        return kvx_note(KVX_INVALID, "chunk_bytes is above 64 GiB: larger registrations fail or block the node");
    if (config->shared_bytes >= 1ull << 62)
        return kvx_note(KVX_INVALID, "shared_bytes is out of range");
    return check_classes(config);
}

static kvx_status read_config(const kvx_pool_config *given, kvx_pool_config *config)
{
    memset(config, 0, sizeof(*config));
    if (!given)
        return kvx_note(KVX_INVALID, "config is NULL");
    if (given->size < sizeof(given->size) || given->size > sizeof(*config))
        return kvx_note(KVX_INVALID, "kvx_pool_config.size is %zu: set it with KVX_POOL_CONFIG_INIT", given->size);
    memcpy(config, given, given->size);
    return check_config(config);
}

/* ------------------------------------------------------------------------------------------------------ layout */

/* Slots rounded up. Nothing here can overflow: at most 2^31 slots of 2^26 bytes. */
static uint64_t count_bytes(const kvx_pool_config *config, uint64_t *largest)
{
    uint64_t bytes = 0;
    *largest = 0;
    for (uint32_t c = 0; c < config->n_classes; c++) {
        uint64_t slot_bytes = round_up(config->classes[c].slot_bytes, KVX_SLOT_ALIGN);
        bytes += slot_bytes * config->classes[c].n_slots;
        *largest = slot_bytes > *largest ? slot_bytes : *largest;
    }
    return bytes;
}

/* Small enough that the first is there soon, large enough that there are few; whole huge pages. */
static uint64_t default_chunk(uint64_t bytes, kvx_page_kind pages)
{
    uint64_t chunk = round_up(bytes / CHUNKS_DEFAULT, pages == KVX_PAGES_1G ? 1ull << 30 : HUGE_PAGE);
    if (chunk < CHUNK_BYTES_DEFAULT_MIN)
        chunk = pages == KVX_PAGES_1G ? 1ull << 30 : CHUNK_BYTES_DEFAULT_MIN;
    return chunk > CHUNK_BYTES_DEFAULT_MAX ? CHUNK_BYTES_DEFAULT_MAX : chunk;
}

static uint64_t lay_out_class(kvx_pool *pool, uint32_t c, const kvx_slot_class *given, uint64_t chunk_bytes)
{
    kvx_pool_view *view = &pool->view;
    kvx_dev_class *class = &pool->classes[c];
    uint64_t slot_bytes = round_up(given->slot_bytes, KVX_SLOT_ALIGN);
    uint64_t per_chunk = chunk_bytes / slot_bytes;
    class->slot_bytes = (uint32_t)slot_bytes;
    class->n_slots = given->n_slots;
    class->max_units = given->max_units ? given->max_units : DEFAULT_UNITS;
    class->first_slot = view->n_slots;
    class->first_record = view->n_records;
    class->slots_per_chunk = (uint32_t)(per_chunk < given->n_slots ? per_chunk : given->n_slots);
    pool->books[c].caller_managed = given->caller_managed;
    view->n_slots += given->n_slots;
    view->n_records += (uint64_t)given->n_slots * class->max_units;
    view->bytes += slot_bytes * given->n_slots;
    pool->bytes_asked += given->slot_bytes * given->n_slots;
    return (given->n_slots - 1) / class->slots_per_chunk + 1;
}

static kvx_status lay_out(kvx_pool *pool, const kvx_pool_config *config, uint64_t chunk_bytes)
{
    uint64_t n_chunks = 0;
    for (uint32_t c = 0; c < config->n_classes; c++) {
        pool->classes[c].first_chunk = (uint32_t)n_chunks;
        n_chunks += lay_out_class(pool, c, &config->classes[c], chunk_bytes);
    }
    if (n_chunks > KVX_CHUNKS_LIMIT)
        return kvx_note(KVX_NO_MEMORY, "%llu bytes in chunks of %llu are more than the %u chunks that a pool can hold",
                        (unsigned long long)pool->view.bytes, (unsigned long long)chunk_bytes, KVX_CHUNKS_LIMIT);
    pool->view.n_classes = config->n_classes;
    pool->view.classes = pool->classes;
    pool->view.n_chunks = (uint32_t)n_chunks;
    return KVX_OK;
}

static kvx_status share(kvx_pool *pool, const kvx_pool_config *config, uint64_t largest)
{
    uint64_t unit = config->chunk_bytes;
    if (unit == 0)
        unit = default_chunk(config->shared_bytes, KVX_PAGES_AUTO);
    if (unit > config->shared_bytes)
        unit = config->shared_bytes;
    unit = unit >= HUGE_PAGE ? unit / HUGE_PAGE * HUGE_PAGE : unit / KVX_SLOT_ALIGN * KVX_SLOT_ALIGN;
    if (unit < largest || config->shared_bytes / unit > KVX_LEASES_MAX)
        return kvx_note(KVX_INVALID, "shared_bytes must be 1 to %u chunks, and a chunk no less than a slot",
                        KVX_LEASES_MAX);
    return kvx_lease_create(unit, (uint32_t)(config->shared_bytes / unit), &pool->lease);
}

/* `fds`: those of the pool to join, or NULL. */
static kvx_status plan(kvx_pool *pool, const kvx_pool_config *config, const int *fds, kvx_page_kind *pages)
{
    uint64_t largest, bytes = count_bytes(config, &largest);
    uint64_t chunk_bytes = config->chunk_bytes;
    int shared = fds || config->shared_bytes > 0;
    kvx_page_kind wanted = config->pages;
    if (shared && (wanted == KVX_PAGES_AUTO || wanted > KVX_PAGES_TRANSPARENT))
        wanted = KVX_PAGES_TRANSPARENT;
    *pages = kvx_hostmem_choose_pages(wanted, bytes, shared);
    KVX_TRY(kvx_hostmem_fits(bytes, *pages >= KVX_PAGES_2M));
    if (shared) {
        KVX_TRY(fds ? kvx_lease_open(fds, &pool->lease) : share(pool, config, largest));
        chunk_bytes = kvx_lease_unit_bytes(pool->lease);
        if (chunk_bytes < largest)
            return kvx_note(KVX_INVALID, "a lease has %llu bytes, less than a slot", (unsigned long long)chunk_bytes);
    } else if (chunk_bytes == 0) {
        chunk_bytes = default_chunk(bytes, *pages);
    }
    KVX_TRY(lay_out(pool, config, chunk_bytes));
    if (shared && !fds && pool->view.n_chunks > kvx_lease_n_units(pool->lease))
        return kvx_note(KVX_INVALID, "the classes need %u chunks of %llu bytes, shared_bytes is %u of them",
                        pool->view.n_chunks, (unsigned long long)chunk_bytes, kvx_lease_n_units(pool->lease));
    return KVX_OK;
}

/* ------------------------------------------------------------------------------------------------------- books */

static void free_books(kvx_pool *pool)
{
    for (uint32_t c = 0; c < pool->view.n_classes; c++)
        kvx_free_set_destroy(&pool->books[c].set);
    free(pool->slots);
    free(pool->chunk_usable);
    free(pool->chunks);
}

/* Nothing is free until its chunk is there. */
static kvx_status make_books(kvx_pool *pool)
{
    kvx_pool_view *view = &pool->view;
    pool->slots = calloc(view->n_slots, sizeof(*pool->slots));
    pool->chunks = calloc(view->n_chunks, sizeof(*pool->chunks));
    pool->chunk_usable = calloc(view->n_chunks, sizeof(*pool->chunk_usable));
    if (!pool->slots || !pool->chunks || !pool->chunk_usable)
        return kvx_note(KVX_NO_MEMORY, "no memory for the books of %u slots", view->n_slots);
    view->chunks = pool->chunks;
    pool->n_chunks_missing = view->n_chunks;
    for (uint32_t c = 0; c < view->n_classes; c++) {
        const kvx_dev_class *class = &pool->classes[c];
        if (!pool->books[c].caller_managed &&
            !kvx_free_set_create(&pool->books[c].set, class->n_slots, class->slot_bytes))
            return kvx_note(KVX_NO_MEMORY, "no memory for the books of %u slots", class->n_slots);
    }
    return KVX_OK;
}

static void size_chunks(kvx_pool *pool)
{
    for (uint32_t c = 0; c < pool->view.n_classes; c++) {
        const kvx_dev_class *class = &pool->classes[c];
        kvx_hostmem_chunk *chunk = &pool->chunks[class->first_chunk];
        for (uint32_t done = 0; done < class->n_slots; done += class->slots_per_chunk, chunk++) {
            uint32_t left = class->n_slots - done;
            chunk->bytes =
                (uint64_t)(left < class->slots_per_chunk ? left : class->slots_per_chunk) * class->slot_bytes;
        }
    }
}

static kvx_status seed_random(kvx_pool *pool)
{
    ssize_t got;
    do
        got = getrandom(pool->random_key, sizeof(pool->random_key), 0);
    while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof(pool->random_key))
        return kvx_note(KVX_INTERNAL, "getrandom failed: no seed for the placement of slots");
    return KVX_OK;
}

/* ---------------------------------------------------------------------------------------- creation and the end */

static kvx_status bring_memory(kvx_pool *pool, const kvx_pool_config *config, kvx_page_kind pages)
{
    kvx_hostmem_config memory = {.engine = config->engine,
                                 .numa_node = config->numa_node - 1,
                                 .allow_pageable = config->allow_pageable,
                                 .background = config->background,
                                 .n_threads = config->n_threads,
                                 .pages = pages,
                                 .file = pool->lease ? kvx_lease_file(pool->lease) : -1,
                                 .online = kvx_pool_chunk_online,
                                 .owner = pool,
                                 .progress = config->progress,
                                 .progress_argument = config->progress_argument};
    size_chunks(pool);
    if (pool->lease)
        KVX_TRY(kvx_lease_take(pool->lease, pool->view.n_chunks, &pool->chunks[0].file_offset, sizeof(*pool->chunks)));
    KVX_TRY(kvx_hostmem_create(&memory, pool->chunks, pool->view.n_chunks, &pool->memory));
    pool->view.pinned = (uint32_t)kvx_hostmem_pinned(pool->memory);
    atomic_store(&pool->watching, config->background != 0);
    return KVX_OK;
}

static kvx_status build(kvx_pool *pool, const kvx_pool_config *config, const int *fds)
{
    kvx_page_kind pages = KVX_PAGES_SMALL;
    kvx_status status = plan(pool, config, fds, &pages);
    if (status == KVX_OK)
        status = seed_random(pool);
    if (status == KVX_OK)
        status = make_books(pool);
    if (status == KVX_OK)
        status = bring_memory(pool, config, pages);
    if (status != KVX_OK) {
        free_books(pool);
        if (pool->lease)
            kvx_lease_close(pool->lease);
    }
    return status;
}

static kvx_status create(const kvx_pool_config *config, const int *fds, kvx_pool **pool)
{
    kvx_status status;
    kvx_pool *made = calloc(1, sizeof(*made));
    if (!made)
        return kvx_note(KVX_NO_MEMORY, "no memory for a pool");
    made->pid = getpid();
    if (pthread_mutex_init(&made->lock, NULL) != 0) {
        status = kvx_note(KVX_NO_MEMORY, "no memory for a lock");
        goto free_pool;
    }
    status = build(made, config, fds);
    if (status != KVX_OK)
        goto destroy_lock;
    *pool = made;
    return KVX_OK;

destroy_lock:
    pthread_mutex_destroy(&made->lock);
free_pool:
    free(made);
    return status;
}

kvx_status kvx_pool_create(const kvx_pool_config *config, kvx_pool **pool)
{
    kvx_pool_config own;
    if (!pool)
        return kvx_note(KVX_INVALID, "pool is NULL");
    KVX_TRY(read_config(config, &own));
    return create(&own, NULL, pool);
}

kvx_status kvx_pool_join(const kvx_pool_config *config, const int fds[2], kvx_pool **pool)
{
    kvx_pool_config own;
    if (!pool || !fds)
        return kvx_note(KVX_INVALID, "pool or fds is NULL");
    KVX_TRY(read_config(config, &own));
    if (own.shared_bytes > 0 || own.chunk_bytes > 0)
        return kvx_note(KVX_INVALID, "shared_bytes and chunk_bytes are the owner's to choose: leave them 0");
    return create(&own, fds, pool);
}

kvx_status kvx_pool_alive(const kvx_pool *pool)
{
    if (!pool)
        return kvx_note(KVX_INVALID, "pool is NULL");
    if (pool->pid != getpid())
        return kvx_note(KVX_FORKED, "the pool belongs to process %ld: create one in this process", (long)pool->pid);
    return KVX_OK;
}

kvx_status kvx_pool_destroy(kvx_pool *pool)
{
    if (!pool)
        return KVX_OK;
    KVX_TRY(kvx_pool_alive(pool));
    pthread_mutex_lock(&pool->lock);
    uint32_t n_contexts = pool->n_contexts;
    pthread_mutex_unlock(&pool->lock);
    if (n_contexts > 0)
        return kvx_note(KVX_INVALID, "%u contexts still use the pool: destroy them first", n_contexts);
    kvx_hostmem_destroy(pool->memory);
    free_books(pool);
    if (pool->lease)
        kvx_lease_close(pool->lease);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
    return KVX_OK;
}
