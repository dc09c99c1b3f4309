/* SPDX-License-Identifier: Apache-2.0 */
/* Life of a pool's memory: reserves the addresses of all chunks, starts the fill, answers questions about it, and takes
 * everything down by several threads. */
#include "hostmem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "hostmem_parts.h"

#define TEARDOWN_THREADS_MAX 8u
#define TEARDOWN_BYTES_MIN (1ull << 30) /* less is not worth a thread */

/* --------------------------------------------------------------------------------------------------- teardown */

typedef struct teardown {
    kvx_hostmem *memory;
    atomic_uint next;
} teardown;

static void *take_down_some(void *argument)
{
    teardown *all = argument;
    kvx_hostmem *memory = all->memory;
    int capture_mode = 0;
    if (memory->driver)
        kvx_hostmem_driver_enter(memory->driver, &capture_mode);
    for (uint32_t i = atomic_fetch_add(&all->next, 1); i < memory->n_chunks; i = atomic_fetch_add(&all->next, 1))
        kvx_hostmem_take_down(memory, i);
    if (memory->driver)
        kvx_hostmem_driver_leave(memory->driver, capture_mode);
    return NULL;
}

static void take_down_all(kvx_hostmem *memory)
{
    pthread_t threads[TEARDOWN_THREADS_MAX];
    teardown all = {memory, 0};
    uint64_t bytes = 0;
    uint32_t started = 0;
    for (uint32_t i = 0; i < memory->n_chunks; i++)
        bytes += memory->parts[i].mapping.bytes;
    while (started < TEARDOWN_THREADS_MAX && started + 1 < memory->n_chunks && started < bytes / TEARDOWN_BYTES_MIN &&
           kvx_hostmem_thread(&threads[started], take_down_some, &all))
        started++;
    (void)take_down_some(&all);
    while (started > 0)
        pthread_join(threads[--started], NULL);
}

static void free_object(kvx_hostmem *memory)
{
    if (memory->driver)
        kvx_hostmem_driver_close(memory->driver);
    pthread_cond_destroy(&memory->changed);
    pthread_mutex_destroy(&memory->lock);
    free(memory->parts);
    free(memory);
}

void kvx_hostmem_destroy(kvx_hostmem *memory)
{
    kvx_hostmem_fill_stop(memory);
    take_down_all(memory);
    free_object(memory);
}

/* --------------------------------------------------------------------------------------------------- creation */

static int make_locks(kvx_hostmem *memory)
{
    pthread_condattr_t attributes;
    if (pthread_mutex_init(&memory->lock, NULL) != 0)
        return 0;
    int made = pthread_condattr_init(&attributes) == 0;
    if (made) {
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        made = pthread_cond_init(&memory->changed, &attributes) == 0;
        pthread_condattr_destroy(&attributes);
    }
    if (!made)
        pthread_mutex_destroy(&memory->lock);
    return made;
}

static kvx_hostmem *make_object(const kvx_hostmem_config *config, kvx_hostmem_chunk *chunks, uint32_t n)
{
    kvx_hostmem *memory = calloc(1, sizeof(*memory));
    kvx_hostmem_part *parts = calloc(n, sizeof(*parts));
    if (!memory || !parts || !make_locks(memory)) {
        free(parts);
        free(memory);
        return NULL;
    }
    memory->start_ns = kvx_hostmem_now();
    memory->config = *config;
    memory->chunks = chunks;
    memory->parts = parts;
    memory->gpu_node = memory->node = -1;
    return memory;
}

static kvx_status open_driver(kvx_hostmem *memory)
{
    const char *why = "";
    if (memory->config.engine == KVX_ENGINE_CPU)
        return KVX_OK;
    if (!kvx_hostmem_gpu_usable(&why))
        return memory->config.engine == KVX_ENGINE_CUDA ? kvx_note(KVX_UNSUPPORTED, "no usable GPU: %s", why) : KVX_OK;
    memory->gpu_node = kvx_hostmem_gpu_node();
    kvx_status status = kvx_hostmem_driver_open(&memory->driver);
    return status != KVX_OK && memory->config.allow_pageable ? KVX_OK : status;
}

/* Where addresses are to be known before chunks are pinned, the device's are taken to be the host's; each is checked
 * when its chunk is pinned. */
static kvx_status reserve(kvx_hostmem *memory, uint32_t n)
{
    for (; memory->n_chunks < n; memory->n_chunks++) {
        kvx_hostmem_chunk *chunk = &memory->chunks[memory->n_chunks];
        kvx_hostmem_part *part = &memory->parts[memory->n_chunks];
        KVX_TRY(kvx_hostmem_map(chunk, memory->config.file, memory->config.pages, &part->mapping));
        kvx_hostmem_bind(part->mapping.host, part->mapping.bytes, memory->node);
        part->untouched = chunk->bytes;
        chunk->host = part->mapping.host;
        chunk->dev = memory->driver ? chunk->host : NULL;
    }
    return KVX_OK;
}

static int filled_enough(const kvx_hostmem *memory)
{
    int all = !memory->config.background || memory->from_driver;
    return memory->failure != KVX_OK || memory->n_online == memory->n_chunks || (!all && memory->n_online > 0);
}

static kvx_status fill(kvx_hostmem *memory)
{
    kvx_hostmem_fill_start(memory);
    pthread_mutex_lock(&memory->lock);
    while (!filled_enough(memory))
        (void)kvx_hostmem_wait_change(memory, UINT64_MAX);
    int usable =
        memory->failure == KVX_OK || (memory->config.background && !memory->from_driver && memory->n_online > 0);
    pthread_mutex_unlock(&memory->lock);
    if (!usable)
        return kvx_note(memory->failure, "%s", memory->note);
    if (!memory->config.background)
        kvx_hostmem_fill_stop(memory);
    return KVX_OK;
}

kvx_status kvx_hostmem_create(const kvx_hostmem_config *config, kvx_hostmem_chunk *chunks, uint32_t n,
                              kvx_hostmem **result)
{
    kvx_hostmem *memory = make_object(config, chunks, n);
    if (!memory)
        return kvx_note(KVX_NO_MEMORY, "no memory for the books of %u chunks", n);
    kvx_status status = open_driver(memory);
    if (status == KVX_OK)
        status = kvx_hostmem_choose_node(config->numa_node, memory->gpu_node, &memory->node);
    if (status == KVX_OK)
        status = reserve(memory, n);
    if (status == KVX_OK)
        status = fill(memory);
    if (status != KVX_OK) {
        kvx_hostmem_destroy(memory);
        return status;
    }
    *result = memory;
    return KVX_OK;
}

/* -------------------------------------------------------------------------------------------------- questions */

static uint64_t deadline_of(uint64_t timeout_ns)
{
    uint64_t now = kvx_hostmem_now();
    return timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
}

static kvx_status state_of(const kvx_hostmem *memory)
{
    if (memory->failure != KVX_OK)
        return memory->failure;
    return memory->n_online == memory->n_chunks ? KVX_OK : KVX_PENDING;
}

kvx_status kvx_hostmem_state(kvx_hostmem *memory)
{
    pthread_mutex_lock(&memory->lock);
    kvx_status status = state_of(memory);
    pthread_mutex_unlock(&memory->lock);
    return status;
}

kvx_status kvx_hostmem_wait(kvx_hostmem *memory, uint64_t timeout_ns)
{
    uint64_t deadline = deadline_of(timeout_ns);
    kvx_status status;
    pthread_mutex_lock(&memory->lock);
    while ((status = state_of(memory)) == KVX_PENDING && kvx_hostmem_wait_change(memory, deadline))
        ;
    uint32_t n_online = memory->n_online;
    pthread_mutex_unlock(&memory->lock);
    if (status == KVX_PENDING)
        return kvx_note(KVX_TIMEOUT, "%u of %u chunks are usable", n_online, memory->n_chunks);
    return status == KVX_OK ? KVX_OK : kvx_note(status, "%s", memory->note);
}

kvx_status kvx_hostmem_quiesce(kvx_hostmem *memory, uint64_t timeout_ns)
{
    uint64_t deadline = deadline_of(timeout_ns);
    pthread_mutex_lock(&memory->lock);
    memory->n_quiesced++;
    while (memory->n_pinning > 0 && kvx_hostmem_wait_change(memory, deadline))
        ;
    int held = memory->n_pinning == 0;
    if (!held) {
        memory->n_quiesced--;
        pthread_cond_broadcast(&memory->changed);
    }
    pthread_mutex_unlock(&memory->lock);
    return held ? KVX_OK : kvx_note(KVX_TIMEOUT, "a chunk is still being pinned");
}

kvx_status kvx_hostmem_resume(kvx_hostmem *memory)
{
    pthread_mutex_lock(&memory->lock);
    int held = memory->n_quiesced > 0;
    memory->n_quiesced -= (uint32_t)held;
    pthread_cond_broadcast(&memory->changed);
    pthread_mutex_unlock(&memory->lock);
    return held ? KVX_OK : kvx_note(KVX_INVALID, "kvx_pool_resume() without kvx_pool_quiesce()");
}

int kvx_hostmem_pinned(const kvx_hostmem *memory)
{
    return memory->driver != NULL && !memory->pageable;
}

/* Chunks that are online do not move any more, and before this can be called none of the others does. Within the
 * background they come online in order. */
static void report_pages(const kvx_hostmem *memory, uint32_t n_online, kvx_pool_stats *stats)
{
    stats->pages = memory->parts[0].mapping.pages;
    for (uint32_t i = 0; i < memory->n_chunks; i++) {
        const kvx_hostmem_mapping *mapping = &memory->parts[i].mapping;
        stats->bytes_held += mapping->bytes;
        if (mapping->pages < stats->pages)
            stats->pages = mapping->pages;
        if (i < n_online)
            stats->bytes_off_node += kvx_hostmem_off_node(&memory->chunks[i], memory->node);
    }
    stats->bytes_huge = kvx_hostmem_huge_bytes(memory->chunks, memory->n_chunks);
}

void kvx_hostmem_report(kvx_hostmem *memory, kvx_pool_stats *stats)
{
    pthread_mutex_lock(&memory->lock);
    stats->fill = state_of(memory);
    stats->from_driver = memory->from_driver;
    stats->n_chunks = memory->n_chunks;
    stats->n_chunks_ready = memory->n_online;
    stats->bytes_ready = memory->online_bytes;
    stats->bytes_pinned = memory->pinned_bytes;
    stats->first_ns = memory->first_ns;
    stats->touch_ns = memory->touched_ns;
    stats->pin_ns = memory->pin_ns;
    stats->ready_ns = memory->n_online == memory->n_chunks ? memory->ready_ns : 0;
    pthread_mutex_unlock(&memory->lock);
    stats->pinned = (uint32_t)kvx_hostmem_pinned(memory);
    stats->gpu_node = memory->gpu_node;
    stats->node = memory->node;
    stats->n_threads = memory->n_used;
    report_pages(memory, stats->n_chunks_ready, stats);
}
