/* SPDX-License-Identifier: Apache-2.0 */
/* Life of the CUDA engine. Everything is allocated at create, zeroed there and again at destroy; a half-made engine is
 * taken down by the function that takes down a whole one. */
#include "engine_cuda.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/random.h>

#include "secmem.h"

#define QUIESCE_MS 30000
#define NO_KEY UINT32_MAX

static kvx_status make_streams(kvx_cuda *engine)
{
    int least = 0, greatest = 0;
    cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    uint32_t i;
    for (i = 0; error == cudaSuccess && i < KVX_CUDA_STREAMS; i++)
        error = cudaStreamCreateWithPriority(&engine->streams[i], cudaStreamNonBlocking, least);
    return error == cudaSuccess ? KVX_OK : kvx_cuda_note("cudaStreamCreateWithPriority", error);
}

static void destroy_streams(kvx_cuda *engine)
{
    uint32_t i;
    for (i = 0; i < KVX_CUDA_STREAMS; i++)
        if (engine->streams[i])
            (void)cudaStreamDestroy(engine->streams[i]);
}

static cudaError_t make_event(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDisableTiming);
}

static kvx_status make_events(kvx_cuda *engine)
{
    cudaError_t error = make_event(&engine->mark);
    uint32_t i;
    for (i = 0; error == cudaSuccess && i < KVX_CUDA_RING_CHUNKS; i++) {
        error = make_event(&engine->store_ring.free_events[i]);
        if (error == cudaSuccess)
            error = make_event(&engine->restore_ring.free_events[i]);
    }
    for (i = 0; error == cudaSuccess && i < engine->config.max_tickets; i++)
        error = make_event(&engine->done[i]);
    return error == cudaSuccess ? KVX_OK : kvx_cuda_note("cudaEventCreateWithFlags", error);
}

static void destroy_events(const cudaEvent_t *events, uint32_t n)
{
    uint32_t i;
    for (i = 0; i < n; i++)
        if (events[i])
            (void)cudaEventDestroy(events[i]);
}

static void destroy_all_events(kvx_cuda *engine)
{
    destroy_events(&engine->mark, 1);
    destroy_events(engine->store_ring.free_events, KVX_CUDA_RING_CHUNKS);
    destroy_events(engine->restore_ring.free_events, KVX_CUDA_RING_CHUNKS);
    if (engine->done)
        destroy_events(engine->done, engine->config.max_tickets);
}

static kvx_status make_host_memory(kvx_cuda *engine)
{
    const kvx_engine_config *config = &engine->config;
    void *secrets = NULL;
    uint32_t i;
    engine->done = calloc(config->max_tickets, sizeof *engine->done);
    engine->done_tickets = calloc(config->max_tickets, sizeof *engine->done_tickets);
    for (i = 0; i < 2; i++)
        engine->pipelines[i].flights = calloc(config->max_tickets, sizeof *engine->pipelines[i].flights);
    engine->host_layouts = calloc(KVX_LAYOUTS_LIMIT, sizeof *engine->host_layouts);
    engine->host_segments = calloc((size_t)config->max_layouts * KVX_UNITS_LIMIT, sizeof *engine->host_segments);
    engine->plan = calloc(1, sizeof *engine->plan);
    if (!engine->done || !engine->done_tickets || !engine->pipelines[0].flights || !engine->pipelines[1].flights ||
        !engine->host_layouts || !engine->host_segments || !engine->plan)
        return kvx_note(KVX_NO_MEMORY, "no host memory for %u tickets and %u layouts", config->max_tickets,
                        config->max_layouts);
    KVX_TRY(kvx_secmem_map_locked(sizeof *engine->secrets, &secrets)); /* the driver copies from it */
    engine->secrets = secrets;
    memcpy(engine->secrets->prf_key, config->prf_key, sizeof config->prf_key);
    kvx_secmem_wipe(engine->config.prf_key, sizeof engine->config.prf_key);
    return KVX_OK;
}

typedef struct wanted_block {
    uint64_t bytes;
    int exportable;
    const char *what;
    void *pointer; /* address of the pointer to set */
} wanted_block;

static kvx_status make_device_memory(kvx_cuda *engine)
{
    const kvx_engine_config *config = &engine->config;
    const kvx_pool_view *pool = config->pool;
    const uint64_t ring = engine->pace.chunk_bytes * KVX_CUDA_RING_CHUNKS;
    kvx_dev *dev = &engine->dev;
    const wanted_block wanted[] = {
        {ring, 1, "the store ring", &engine->store_ring.dev},
        {ring, 1, "the restore ring", &engine->restore_ring.dev},
        {pool->n_slots * sizeof *dev->headers, 0, "headers", &dev->headers},
        {pool->n_records * sizeof *dev->records, 0, "records", &dev->records},
        {pool->n_classes * sizeof *dev->classes, 0, "classes", &dev->classes},
        {KVX_CHUNKS_LIMIT * sizeof *dev->chunks, 0, "chunks", &dev->chunks},
        {KVX_LAYOUTS_LIMIT * sizeof *dev->layouts, 0, "layouts", &dev->layouts},
        {KVX_TENANTS_LIMIT * sizeof *dev->tenant_keys, 0, "tenants", &dev->tenant_keys},
        {config->n_key_slots * kvx_key_slot_bytes(), 0, "keys", &dev->keys},
        {sizeof *dev->words, 0, "words", &dev->words},
        {config->max_pairs * sizeof *dev->entries, 0, "entries", &dev->entries},
        {KVX_KEY_BYTES, 0, "a key", &engine->dev_key},
        {(uint64_t)config->max_layouts * KVX_LANES_LIMIT * sizeof *engine->dev_lanes, 0, "lanes", &engine->dev_lanes},
        {(uint64_t)config->max_layouts * KVX_UNITS_LIMIT * sizeof *engine->dev_segments, 0, "segments",
         &engine->dev_segments}};
    uint32_t i;
    for (i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *made = NULL;
        KVX_TRY(kvx_cuda_allocate(engine, wanted[i].bytes, wanted[i].exportable, wanted[i].what, &made));
        memcpy(wanted[i].pointer, &made, sizeof made);
    }
    engine->record_bytes = pool->n_slots * sizeof *dev->headers + pool->n_records * sizeof *dev->records;
    return KVX_OK;
}

static kvx_status make_results(kvx_cuda *engine)
{
    const size_t bytes = ((size_t)engine->config.max_pairs + engine->config.max_tickets) * sizeof *engine->results;
    void *host = NULL, *dev = NULL;
    cudaError_t error = cudaHostAlloc(&host, bytes, cudaHostAllocMapped | cudaHostAllocPortable);
    if (error != cudaSuccess)
        return kvx_cuda_note("cudaHostAlloc of the result words", error);
    memset(host, 0, bytes);
    engine->results = host;
    error = cudaHostGetDevicePointer(&dev, host, 0);
    if (error != cudaSuccess)
        return kvx_cuda_note("cudaHostGetDevicePointer", error);
    engine->dev.results = dev;
    return KVX_OK;
}

/* What kernels read. Device tables are written through pointers that kernels see as const. */
static cudaError_t upload_tables(kvx_cuda *engine)
{
    const kvx_pool_view *pool = engine->config.pool;
    const uint8_t *chunks[KVX_CHUNKS_LIMIT] = {NULL};
    uint32_t tenant_keys[KVX_TENANTS_LIMIT];
    kvx_dev_words *words = &engine->secrets->words;
    cudaError_t error;
    uint32_t i;
    engine->can_direct = 1;
    for (i = 0; i < pool->n_chunks; i++) {
        chunks[i] = pool->chunks[i].dev;
        engine->can_direct &= chunks[i] != NULL;
    }
    for (i = 0; i < KVX_TENANTS_LIMIT; i++)
        tenant_keys[i] = NO_KEY;
    memcpy(words->prf_key, engine->secrets->prf_key, sizeof words->prf_key);
    words->sequence = 1;
    words->fixed_field = engine->config.fixed_field;
    words->tamper_budget = engine->config.tamper_budget;
    words->key_soft_limit = engine->config.key_soft_limit;
    words->key_hard_limit = engine->config.key_hard_limit;
    words->incarnation = engine->config.incarnation;
    error = kvx_cuda_upload(engine, engine->dev.words, words, sizeof *words);
    kvx_secmem_wipe(words, sizeof *words);
    if (error == cudaSuccess)
        error = kvx_cuda_upload(engine, (void *)(uintptr_t)engine->dev.classes, pool->classes,
                                pool->n_classes * sizeof *pool->classes);
    if (error == cudaSuccess)
        error = kvx_cuda_upload(engine, (void *)(uintptr_t)engine->dev.chunks, chunks, sizeof chunks);
    if (error == cudaSuccess)
        error = kvx_cuda_upload(engine, (void *)(uintptr_t)engine->dev.tenant_keys, tenant_keys, sizeof tenant_keys);
    return error;
}

static kvx_status prepare_kernels(kvx_cuda *engine)
{
    const kvx_engine_config *config = &engine->config;
    int variant = KVX_VARIANT_AUTO, n_sms = 0;
    cudaError_t error = cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, config->device);
    if (error != cudaSuccess)
        return kvx_cuda_note("cudaDeviceGetAttribute", error);
    error = cudaGetDeviceCount(&engine->n_devices);
    if (error != cudaSuccess)
        return kvx_cuda_note("cudaGetDeviceCount", error);
    error = (cudaError_t)kvx_launch_prepare(KVX_VARIANT_AUTO, &variant);
    if (error != cudaSuccess)
        return kvx_cuda_note("preparing the kernels", error);
    engine->dev.n_slots = config->pool->n_slots;
    engine->dev.n_classes = config->pool->n_classes;
    engine->dev.n_tenants = config->n_tenants;
    engine->dev.n_keys = config->n_key_slots;
    engine->dev.n_entries = config->max_pairs;
    engine->dev.n_sms = (uint32_t)n_sms;
    engine->dev.variant = (uint32_t)variant;
    return KVX_OK;
}

static kvx_status make_all(kvx_cuda *engine)
{
    cudaError_t error;
    KVX_TRY(kvx_cuda_pace_chunks(engine));
    KVX_TRY(make_host_memory(engine));
    KVX_TRY(make_streams(engine));
    KVX_TRY(make_events(engine));
    KVX_TRY(prepare_kernels(engine));
    KVX_TRY(make_device_memory(engine));
    KVX_TRY(make_results(engine));
    KVX_TRY(kvx_cuda_copier_create(engine));
    error = upload_tables(engine); /* waits, so all zeroing has ended too */
    return error == cudaSuccess ? kvx_cuda_pace_choose(engine) : kvx_cuda_note("uploading the tables", error);
}

/* Nothing of what the memory held is left to its next owner. */
static void zero_and_wait(kvx_cuda *engine)
{
    if (!engine->streams[KVX_CUDA_SETUP])
        return;
    kvx_cuda_zero_all(engine);
    (void)kvx_cuda_synchronize(engine, KVX_CUDA_SETUP);
}

/* Frees whatever there is. `idle`: the device does nothing for this engine any more; else its memory must stay. */
static void free_all(kvx_cuda *engine, int idle)
{
    if (idle) {
        kvx_cuda_free_all(engine);
        if (engine->results)
            (void)cudaFreeHost(engine->results);
        destroy_all_events(engine);
        destroy_streams(engine);
    }
    kvx_cuda_copier_destroy(engine);
    kvx_secmem_unmap(engine->secrets, sizeof *engine->secrets);
    free(engine->plan);
    free(engine->host_segments);
    free(engine->host_layouts);
    free(engine->pipelines[1].flights);
    free(engine->pipelines[0].flights);
    free(engine->done_tickets);
    free(engine->done);
    free(engine);
}

kvx_status kvx_cuda_create(const kvx_engine_config *config, void **result)
{
    kvx_cuda *engine;
    kvx_cuda_guard guard;
    kvx_status status;
    int device = config->device;
    cudaError_t error = device < 0 ? cudaGetDevice(&device) : cudaSuccess;
    if (error == cudaSuccess)
        error = kvx_cuda_enter(&guard, device);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return error == cudaErrorInvalidDevice ? kvx_note(KVX_INVALID, "there is no CUDA device %d", device)
                                               : kvx_cuda_note("cudaSetDevice", error);
    }
    engine = calloc(1, sizeof *engine);
    if (!engine) {
        status = kvx_note(KVX_NO_MEMORY, "no memory for an engine");
        goto leave;
    }
    engine->config = *config;
    engine->config.device = device;
    engine->store_tail = KVX_CUDA_STORE_COMMIT;
    status = make_all(engine);
    if (status != KVX_OK) {
        kvx_secmem_wipe(engine->config.prf_key, sizeof engine->config.prf_key);
        zero_and_wait(engine);
        free_all(engine, 1);
        goto leave;
    }
    *result = engine;
leave:
    kvx_cuda_leave(&guard);
    return status;
}

/* ----------------------------------------------------------------------------------------------------------- destroy
 */

/* Nonzero once nothing of the engine runs (also because the device is lost); 0 after 30 s. */
static int quiesce(kvx_cuda *engine)
{
    const struct timespec pause = {0, 1000000};
    uint32_t i, waited_ms = 0;
    for (i = 0; i < KVX_CUDA_STREAMS; i++)
        while (cudaStreamQuery(engine->streams[i]) == cudaErrorNotReady) {
            if (waited_ms++ == QUIESCE_MS)
                return 0;
            nanosleep(&pause, NULL);
        }
    return 1;
}

static int keys_are_zero(kvx_cuda *engine)
{
    uint64_t words[512];
    const uint8_t *at = (const uint8_t *)engine->dev.keys;
    uint64_t left = engine->config.n_key_slots * kvx_key_slot_bytes(), seen = 0;
    while (left > 0 && seen == 0) {
        const uint64_t n = left < sizeof words ? left : sizeof words;
        uint32_t i;
        memset(words, 0, sizeof words);
        if (kvx_cuda_download(engine, words, at, n) != cudaSuccess)
            break;
        for (i = 0; i < 512; i++)
            seen |= words[i];
        at += n;
        left -= n;
    }
    kvx_secmem_wipe(words, sizeof words);
    return seen == 0 && left == 0;
}

static void wipe_keys(kvx_cuda *engine)
{
    cudaStream_t stream = engine->streams[KVX_CUDA_SETUP];
    uint64_t fill = 0;
    if (getrandom(&fill, sizeof fill, 0) != (ssize_t)sizeof fill)
        fill = 0x5a5a5a5a5a5a5a5au; /* any will do: what counts is that it is overwritten twice */
    (void)kvx_launch_key_wipe(engine->dev.keys, 0, engine->config.n_key_slots, fill, stream);
    (void)kvx_launch_key_wipe(engine->dev.keys, 0, engine->config.n_key_slots, 0, stream);
    if (keys_are_zero(engine))
        return;
    (void)cudaMemsetAsync(engine->dev.keys, 0, engine->config.n_key_slots * kvx_key_slot_bytes(), stream);
    if (!keys_are_zero(engine))
        (void)kvx_note(KVX_DEVICE_LOST, "keys in GPU memory could not be wiped: the device does not answer");
}

/* Work hangs behind a stream that does not move. Its memory is left allocated; whatever still comes finds no layout and
 * no key, so it touches no tensor and seals nothing. Never waits for the work itself. */
static void disarm(kvx_cuda *engine)
{
    const struct timespec pause = {0, 1000000};
    cudaStream_t stream = engine->streams[KVX_CUDA_SETUP];
    int i;
    (void)cudaMemsetAsync((void *)(uintptr_t)engine->dev.layouts, 0, KVX_LAYOUTS_LIMIT * sizeof *engine->dev.layouts,
                          stream);
    (void)kvx_launch_key_wipe(engine->dev.keys, 0, engine->config.n_key_slots, 0, stream);
    for (i = 0; i < 1000 && cudaStreamQuery(stream) == cudaErrorNotReady; i++)
        nanosleep(&pause, NULL);
}

int kvx_cuda_destroy(void *handle)
{
    kvx_cuda *engine = handle;
    kvx_cuda_guard guard;
    int idle;
    (void)kvx_cuda_enter(&guard, engine->config.device);
    idle = quiesce(engine);
    if (idle) {
        wipe_keys(engine);
        zero_and_wait(engine);
    } else {
        disarm(engine);
    }
    free_all(engine, idle);
    kvx_cuda_leave(&guard);
    return idle;
}
