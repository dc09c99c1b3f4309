/* SPDX-License-Identifier: Apache-2.0 */
/* How large bursts are and how many multiprocessors they take: from the configuration, or from what the link and the
 * kernels do here. Measured within the rings, which hold nothing yet: the restore ring is source and holds the tables,
 * the store ring is target. What was measured with is zeroed again. */
#include "engine_cuda.h"

#include <string.h>
#include <time.h>
#include <sys/random.h>

#include "secmem.h"

#define DEFAULT_RING (128u << 20)
#define BURST_NS 100000u /* a longer burst keeps others waiting; a shorter one spends more of itself on its start */
#define LEAST_BURST (4u << 20)
#define MEASURE_NS (20u * 1000 * 1000)
#define UNIT (64u << 10)
#define N_PAIRS 512u /* at most: 32 MiB */
#define NS_PER_S 1000000000ull

static uint64_t largest_slot(const kvx_pool_view *pool)
{
    uint64_t largest = 0;
    uint32_t i;
    for (i = 0; i < pool->n_classes; i++)
        if (pool->classes[i].slot_bytes > largest)
            largest = pool->classes[i].slot_bytes;
    return largest;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

kvx_status kvx_cuda_pace_chunks(kvx_cuda *engine)
{
    const kvx_engine_config *config = &engine->config;
    const uint64_t largest = largest_slot(config->pool), limit = 1ull << 40;
    uint64_t ring = config->ring_bytes, chunk;
    if (ring > limit || config->burst_bytes > limit)
        return kvx_note(KVX_INVALID, "kvx_config.ring_bytes or burst_bytes is above 2^40");
    if (ring == 0)
        ring = larger(DEFAULT_RING, KVX_CUDA_RING_CHUNKS * larger(largest, config->burst_bytes));
    chunk = ring / KVX_CUDA_RING_CHUNKS / KVX_SLOT_ALIGN * KVX_SLOT_ALIGN;
    if (chunk < largest || chunk < config->burst_bytes)
        return kvx_note(KVX_INVALID, "kvx_config.ring_bytes is %llu: must hold %u slots of %llu and bursts of %llu",
                        (unsigned long long)ring, KVX_CUDA_RING_CHUNKS, (unsigned long long)largest,
                        (unsigned long long)config->burst_bytes);
    engine->pace.chunk_bytes = chunk;
    return KVX_OK;
}

/* ------------------------------------------------------------------------------------------------------- measuring */

typedef struct meter {
    kvx_cuda *engine;
    cudaStream_t stream;
    cudaEvent_t begin, end;
    kvx_dev dev;
    kvx_work work;
    kvx_work_pair pairs[N_PAIRS];
    uint32_t key_slot; /* the last: no key is in any yet */
    uint64_t copy_bytes;
    uint64_t copy_ns, seal_ns, small_ns, direct_ns; /* the best so far; UINT64_MAX: none */
} meter;

/* What the kernels need to seal unit i from the restore ring into the store ring, in the restore ring's last chunk. */
typedef struct tables {
    kvx_dev_words words;
    kvx_dev_class slot_class;
    kvx_dev_layout layout;
    kvx_dev_segment segment;
    kvx_dev_lane lane;
    uint8_t *chunk;
    uint32_t key_slot;
} tables;
typedef struct dev_tables {
    tables head;
    uint8_t pad[4096 - sizeof(tables)];
    kvx_header headers[N_PAIRS];
    kvx_record records[N_PAIRS];
    kvx_entry entries[N_PAIRS];
} dev_tables;

static uint64_t now_ns(void)
{
    struct timespec t = {0, 0};
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static void describe(meter *m, dev_tables *dev, uint32_t n, tables *t)
{
    t->words.sequence = 1;
    t->slot_class = (kvx_dev_class){.n_slots = n, .slot_bytes = UNIT, .max_units = 1, .slots_per_chunk = n};
    t->layout = (kvx_dev_layout){.n_lanes = 1, .n_segments = 1, .n_blocks = n, .sealed_bytes = UNIT};
    t->segment = (kvx_dev_segment){.n_lanes = 1, .bytes = UNIT, .plain_bytes = UNIT, .aligned = 1};
    t->lane = (kvx_dev_lane){.block_stride = UNIT, .row_stride = UNIT, .row_bytes = UNIT, .n_rows = 1};
    t->layout.lanes = &dev->head.lane;
    t->layout.segments = &dev->head.segment;
    t->lane.base = (uint64_t)(uintptr_t)m->engine->restore_ring.dev;
    t->chunk = m->engine->store_ring.dev;
    t->key_slot = m->key_slot;
}

static cudaError_t upload_tables(meter *m)
{
    kvx_cuda *engine = m->engine;
    const uint64_t chunk = engine->pace.chunk_bytes;
    dev_tables *dev = (dev_tables *)(void *)(engine->restore_ring.dev + (KVX_CUDA_RING_CHUNKS - 1) * chunk);
    const uint32_t n = (uint32_t)smaller(chunk / UNIT, N_PAIRS);
    tables t = {.key_slot = 0};
    uint32_t i;
    describe(m, dev, n, &t);
    m->dev = engine->dev;
    m->dev.headers = dev->headers;
    m->dev.records = dev->records;
    m->dev.entries = dev->entries;
    m->dev.classes = &dev->head.slot_class;
    m->dev.chunks = &dev->head.chunk;
    m->dev.layouts = &dev->head.layout;
    m->dev.tenant_keys = &dev->head.key_slot;
    m->dev.words = &dev->head.words;
    m->dev.n_slots = m->dev.n_entries = n;
    m->dev.n_classes = m->dev.n_tenants = 1;
    m->work = (kvx_work){.ticket = 1, .store_id = 2, .staged_stride = UNIT, .n_pairs = n, .n_segments = 1};
    for (i = 0; i < n; i++)
        m->pairs[i].block = m->pairs[i].slot = i;
    return kvx_cuda_upload(engine, dev, &t, sizeof t);
}

/* A key for nothing else: its numbers begin where those of the real ones do. */
static cudaError_t install_key(meter *m)
{
    kvx_cuda *engine = m->engine;
    uint8_t *key = engine->secrets->key;
    cudaError_t error = cudaErrorUnknown;
    if (getrandom(key, KVX_KEY_BYTES, 0) == KVX_KEY_BYTES)
        error = kvx_cuda_upload(engine, engine->dev_key, key, KVX_KEY_BYTES);
    kvx_secmem_wipe(key, KVX_KEY_BYTES);
    if (error == cudaSuccess)
        error = (cudaError_t)kvx_launch_key_install(engine->dev.keys, m->key_slot, 1, engine->dev_key, m->stream);
    return error;
}

/* Zeroes all that measuring wrote. */
static cudaError_t clean(meter *m)
{
    kvx_cuda *engine = m->engine;
    const uint64_t ring = KVX_CUDA_RING_CHUNKS * engine->pace.chunk_bytes;
    cudaError_t error = (cudaError_t)kvx_launch_key_wipe(engine->dev.keys, m->key_slot, 1, 0, m->stream);
    if (error == cudaSuccess)
        error = cudaMemsetAsync(engine->dev_key, 0, KVX_KEY_BYTES, m->stream);
    if (error == cudaSuccess)
        error = cudaMemsetAsync(engine->store_ring.dev, 0, ring, m->stream);
    if (error == cudaSuccess)
        error = cudaMemsetAsync(engine->restore_ring.dev, 0, ring, m->stream);
    return error == cudaSuccess ? kvx_cuda_synchronize(engine, KVX_CUDA_SETUP) : error;
}

/* Ends a timed piece of work. Lowers *ns to how long it took. */
static cudaError_t time_up(meter *m, uint64_t *ns)
{
    float ms = 0;
    cudaError_t error = cudaEventRecord(m->end, m->stream);
    if (error == cudaSuccess)
        error = kvx_cuda_synchronize(m->engine, KVX_CUDA_SETUP);
    if (error == cudaSuccess)
        error = cudaEventElapsedTime(&ms, m->begin, m->end);
    if (error == cudaSuccess && ms > 0)
        *ns = smaller(*ns, (uint64_t)((double)ms * 1e6));
    return error;
}

static cudaError_t time_copy(meter *m)
{
    kvx_cuda *engine = m->engine;
    const kvx_hostmem_chunk *from = &engine->config.pool->chunks[0];
    cudaError_t error = cudaEventRecord(m->begin, m->stream);
    m->copy_bytes = smaller(from->bytes, (KVX_CUDA_RING_CHUNKS - 1) * engine->pace.chunk_bytes);
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(engine->restore_ring.dev, from->host, m->copy_bytes, cudaMemcpyHostToDevice, m->stream);
    return error == cudaSuccess ? time_up(m, &m->copy_ns) : error;
}

/* One launch of n units on n_sms multiprocessors, staged or as if into a pool that is the store ring. */
static cudaError_t time_seal(meter *m, uint32_t n, uint32_t n_sms, int direct, uint64_t *ns)
{
    cudaError_t error = cudaEventRecord(m->begin, m->stream);
    m->dev.n_sms = n_sms;
    m->work.n_pairs = n;
    m->work.staged = direct ? NULL : m->engine->store_ring.dev;
    if (error == cudaSuccess)
        error = (cudaError_t)kvx_launch_seal(&m->dev, &m->work, m->pairs, m->stream);
    return error == cudaSuccess ? time_up(m, ns) : error;
}

/* The best of several: a GPU that was idle takes some milliseconds to reach its clock. */
static cudaError_t time_all(meter *m)
{
    const uint64_t start = now_ns();
    const uint32_t n = m->dev.n_slots, n_sms = m->engine->dev.n_sms, few = n_sms / 8 ? n_sms / 8 : 1;
    cudaError_t error = cudaSuccess;
    while (error == cudaSuccess && now_ns() - start < MEASURE_NS / 2)
        error = time_seal(m, n, n_sms, 0, &m->seal_ns);
    while (error == cudaSuccess && now_ns() - start < MEASURE_NS * 3 / 4) {
        error = time_seal(m, n / 8, n_sms, 0, &m->small_ns);
        if (error == cudaSuccess)
            error = time_seal(m, n, few, 1, &m->direct_ns);
    }
    if (m->engine->config.pool->chunks[0].bytes < LEAST_BURST)
        return error; /* too little to tell */
    do
        error = error == cudaSuccess ? time_copy(m) : error;
    while (error == cudaSuccess && now_ns() - start < MEASURE_NS);
    return error;
}

/* A launch of b bytes takes start + b / rate, by the times of a large and a small one. */
static void conclude(const meter *m)
{
    kvx_cuda_pace *pace = &m->engine->pace;
    const uint64_t large = (uint64_t)m->dev.n_slots * UNIT, small = large / 8;
    const uint64_t ns = m->seal_ns > m->small_ns ? m->seal_ns - m->small_ns : 1;
    const double rate = (double)(large - small) / (double)ns, start = (double)m->seal_ns - (double)large / rate;
    const double burst = ((double)BURST_NS - start) * rate;
    const uint32_t few = m->engine->dev.n_sms / 8 ? m->engine->dev.n_sms / 8 : 1;
    if (m->seal_ns == UINT64_MAX || m->small_ns == UINT64_MAX || m->direct_ns == UINT64_MAX)
        return;
    pace->burst_bytes = burst > (double)LEAST_BURST ? (uint64_t)burst >> 20 << 20 : LEAST_BURST;
    pace->burst_bytes = smaller(pace->burst_bytes, pace->chunk_bytes);
    pace->seal_rate = (uint64_t)((double)pace->burst_bytes * 1e9 / (start + (double)pace->burst_bytes / rate));
    if (m->copy_ns == UINT64_MAX)
        return;
    pace->link_rate = m->copy_bytes * NS_PER_S / m->copy_ns;
    /* Stores by multiprocessors reach fifteen sixteenths of what the copy engine does. */
    pace->direct_sms = (uint32_t)(pace->link_rate / 16 * 15 * m->direct_ns / NS_PER_S * few / large) + 1;
}

static kvx_status measure(kvx_cuda *engine)
{
    const uint64_t start = now_ns(), none = UINT64_MAX;
    meter m = {.engine = engine, .copy_ns = none, .seal_ns = none, .small_ns = none, .direct_ns = none};
    cudaError_t error = cudaEventCreate(&m.begin);
    m.stream = engine->streams[KVX_CUDA_SETUP];
    m.key_slot = engine->dev.n_keys - 1;
    if (error == cudaSuccess)
        error = cudaEventCreate(&m.end);
    if (error == cudaSuccess)
        error = upload_tables(&m);
    if (error == cudaSuccess)
        error = install_key(&m);
    if (error == cudaSuccess)
        error = time_all(&m);
    if (error == cudaSuccess)
        error = clean(&m);
    if (error == cudaSuccess)
        conclude(&m);
    if (m.end)
        (void)cudaEventDestroy(m.end);
    if (m.begin)
        (void)cudaEventDestroy(m.begin);
    engine->pace.measure_ns = now_ns() - start;
    return error == cudaSuccess ? KVX_OK : kvx_cuda_note("measuring link and kernels", error);
}

kvx_status kvx_cuda_pace_choose(kvx_cuda *engine)
{
    const kvx_engine_config *config = &engine->config;
    kvx_cuda_pace *pace = &engine->pace;
    const uint32_t n_sms = engine->dev.n_sms;
    pace->burst_bytes = config->burst_bytes ? config->burst_bytes : pace->chunk_bytes;
    pace->direct_sms = n_sms / 8 ? n_sms / 8 : 1;
    /* With smaller chunks a burst would be a chunk in any case. */
    if (config->burst_bytes == 0 && pace->chunk_bytes > LEAST_BURST)
        KVX_TRY(measure(engine));
    pace->burst_sms = config->burst_sms ? (uint32_t)smaller(config->burst_sms, n_sms) : n_sms;
    pace->direct_sms = (uint32_t)smaller(config->direct_sms ? config->direct_sms : pace->direct_sms, n_sms);
    return KVX_OK;
}
