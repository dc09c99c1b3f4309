/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU engine: OpenSSL, two workers, and the order that CUDA's streams would give. A batch is accepted by handing
 * out positions on its pipeline's timeline; events and the caller's queue then hold marks on these, so nothing is ever
 * waited for here. */
#include <stdlib.h>
#include <string.h>

#include "../kernels/state.h"
#include "engine_cpu.h"
#include "secmem.h"
#include "status.h"

/* ----------------------------------------------------------------------------------------------- create and destroy */

static size_t largest_slot(const kvx_pool_view *pool)
{
    size_t largest = 0;
    uint32_t i;
    for (i = 0; i < pool->n_classes; i++)
        if (pool->classes[i].slot_bytes > largest)
            largest = pool->classes[i].slot_bytes;
    return largest;
}

static size_t aligned_to_line(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* One locked mapping: words, headers, records, key states, tenants' keys. */
static kvx_status map_locked(kvx_cpu_engine *engine)
{
    const kvx_pool_view *pool = engine->config.pool;
    size_t words_bytes = aligned_to_line(sizeof *engine->words);
    size_t headers_bytes = aligned_to_line(pool->n_slots * sizeof *engine->headers);
    size_t records_bytes = aligned_to_line(pool->n_records * sizeof *engine->records);
    size_t states_bytes = aligned_to_line(engine->config.n_key_slots * sizeof *engine->key_states);
    size_t tenants_bytes = aligned_to_line(engine->config.n_tenants * sizeof *engine->tenant_keys);
    uint8_t *at;
    engine->locked_bytes = words_bytes + headers_bytes + records_bytes + states_bytes + tenants_bytes;
    KVX_TRY(kvx_secmem_map_locked(engine->locked_bytes, &engine->locked));
    at = engine->locked;
    engine->words = engine->locked;
    engine->headers = (kvx_header *)(void *)(at += words_bytes);
    engine->records = (kvx_record *)(void *)(at += headers_bytes);
    engine->key_states = (kvx_key_state *)(void *)(at += records_bytes);
    engine->tenant_keys = (kvx_tenant_keys *)(void *)(at + states_bytes);
    engine->words->key_soft_limit = engine->config.key_soft_limit;
    engine->words->key_hard_limit = engine->config.key_hard_limit;
    engine->words->incarnation = engine->config.incarnation;
    engine->words->prf_key[0] = engine->config.prf_key[0];
    engine->words->prf_key[1] = engine->config.prf_key[1];
    engine->words->fixed_field = engine->config.fixed_field;
    engine->words->tamper_budget = engine->config.tamper_budget;
    kvx_secmem_wipe(engine->config.prf_key, sizeof engine->config.prf_key);
    return KVX_OK;
}

/* Three unit buffers; a unit is no larger than the largest slot. They hold sealed bytes, or plaintext that lies in the
 * caller's ordinary memory as well, so they are wiped at the end but need not be locked. */
static kvx_status allocate_buffers(kvx_cpu_engine *engine)
{
    engine->buffer_bytes = aligned_to_line(largest_slot(engine->config.pool));
    engine->gathered = calloc(3, engine->buffer_bytes);
    if (!engine->gathered)
        return kvx_note(KVX_NO_MEMORY, "no memory for three buffers of %zu bytes", engine->buffer_bytes);
    engine->staged = engine->gathered + engine->buffer_bytes;
    engine->opened = engine->staged + engine->buffer_bytes;
    return KVX_OK;
}

/* OpenSSL keeps its key schedules in ordinary memory, so there is one context, without a key between two units. */
static kvx_status make_cipher(kvx_cpu_engine *engine)
{
    static const uint8_t none[KVX_KEY_BYTES];
    void *memory = NULL;
    KVX_TRY(kvx_secmem_map((size_t)engine->config.n_key_slots * KVX_KEY_BYTES, &memory, NULL));
    engine->keys = memory;
    engine->gcm = kvx_cpu_gcm_create(none);
    return engine->gcm ? KVX_OK : kvx_note(KVX_INTERNAL, "OpenSSL could not make an AES-256-GCM context");
}

static kvx_status allocate(kvx_cpu_engine *engine)
{
    const kvx_engine_config *config = &engine->config;
    KVX_TRY(allocate_buffers(engine));
    KVX_TRY(make_cipher(engine));
    engine->layouts = calloc(config->max_layouts, sizeof *engine->layouts);
    engine->pairs = calloc(config->max_pairs, sizeof *engine->pairs);
    engine->progress = calloc(config->max_pairs, sizeof *engine->progress);
    engine->results = calloc((size_t)config->max_pairs + config->max_tickets, sizeof *engine->results);
    engine->ends = calloc(config->max_tickets, sizeof *engine->ends);
    if (!engine->layouts || !engine->pairs || !engine->progress || !engine->results || !engine->ends)
        return kvx_note(KVX_NO_MEMORY, "no memory for %u pairs in %u tickets", config->max_pairs, config->max_tickets);
    return KVX_OK;
}

static void forget_layout(kvx_dev_layout *layout)
{
    free((void *)(uintptr_t)layout->lanes);
    free((void *)(uintptr_t)layout->segments);
    memset(layout, 0, sizeof *layout);
}

/* Also of an engine that was only half made. */
static int cpu_destroy(void *arg)
{
    kvx_cpu_engine *engine = arg;
    uint32_t i;
    __atomic_store_n(&engine->stopping, 1, __ATOMIC_RELEASE);
    for (i = 0; i < engine->n_pipelines; i++)
        kvx_cpu_pipeline_stop(&engine->pipelines[i]);
    kvx_cpu_gcm_destroy(engine->gcm);
    kvx_secmem_unmap(engine->keys, (size_t)engine->config.n_key_slots * KVX_KEY_BYTES);
    for (i = 0; engine->layouts && i < engine->config.max_layouts; i++)
        forget_layout(&engine->layouts[i]);
    kvx_secmem_unmap(engine->locked, engine->locked_bytes);
    if (engine->gathered)
        kvx_secmem_wipe(engine->gathered, 3 * engine->buffer_bytes);
    free(engine->gathered);
    free(engine->layouts);
    free(engine->pairs);
    free(engine->progress);
    free(engine->results);
    free(engine->ends);
    kvx_secmem_wipe(engine, sizeof *engine);
    free(engine);
    return 1;
}

static kvx_status cpu_create(const kvx_engine_config *config, void **result)
{
    kvx_cpu_engine *engine = calloc(1, sizeof *engine);
    kvx_status status;
    if (!engine)
        return kvx_note(KVX_NO_MEMORY, "no memory for the CPU engine");
    engine->config = *config;
    status = map_locked(engine);
    if (status == KVX_OK)
        status = allocate(engine);
    while (status == KVX_OK && engine->n_pipelines < KVX_CPU_N_PIPELINES) {
        status = kvx_cpu_pipeline_start(engine, engine->n_pipelines);
        engine->n_pipelines += status == KVX_OK;
    }
    if (status != KVX_OK) {
        (void)cpu_destroy(engine);
        return status;
    }
    *result = engine;
    return KVX_OK;
}

/* ---------------------------------------------------------------------------------------------------------- layouts */

static void *copy_of(const void *array, size_t bytes)
{
    void *copy = malloc(bytes);
    if (copy)
        memcpy(copy, array, bytes);
    return copy;
}

static kvx_status cpu_layout_set(void *arg, uint32_t index, const kvx_dev_layout *layout)
{
    kvx_cpu_engine *engine = arg;
    kvx_dev_layout own;
    uint32_t i;
    if (!layout) {
        forget_layout(&engine->layouts[index]);
        return KVX_OK;
    }
    for (i = 0; i < layout->n_lanes; i++)
        if (!layout->lanes[i].base)
            return kvx_note(KVX_INVALID, "lane %u: dev_base is NULL", i);
    own = *layout;
    own.lanes = copy_of(layout->lanes, layout->n_lanes * sizeof *layout->lanes);
    own.segments = copy_of(layout->segments, layout->n_segments * sizeof *layout->segments);
    if (!own.lanes || !own.segments) {
        forget_layout(&own);
        return kvx_note(KVX_NO_MEMORY, "no memory for a layout of %u lanes", layout->n_lanes);
    }
    forget_layout(&engine->layouts[index]);
    engine->layouts[index] = own;
    return KVX_OK;
}

/* ----------------------------------------------------------------------------------------------------------- submit */

static kvx_cpu_job job_of(const kvx_batch *batch)
{
    const kvx_options *options = batch->options;
    kvx_cpu_job job = {.op = batch->op,
                       .n = batch->n,
                       .first_entry = batch->first_entry,
                       .ticket_index = batch->ticket_index,
                       .ticket = batch->ticket,
                       .store_id = batch->store_id};
    if (batch->op != KVX_OP_RESTORE)
        return job;
    job.n_segment_events = options->n_segment_events;
    job.n_flags = options->n_flags;
    job.flags = options->dev_flags;
    job.flag_value = options->flag_value;
    return job;
}

static uint64_t released_position(const kvx_cpu_job *job)
{
    return job->first_position + job->n_segment_events;
}

static uint64_t done_position(const kvx_cpu_job *job)
{
    return released_position(job) + 1;
}

/* A ticket that has been replaced in the table has ended. */
static kvx_cpu_mark end_of(const kvx_cpu_engine *engine, const kvx_batch *batch)
{
    const kvx_cpu_pipeline *other = &engine->pipelines[batch->op == KVX_OP_RESTORE ? KVX_CPU_STORES : KVX_CPU_RESTORES];
    if (!batch->after || engine->ends[batch->after_index].ticket != batch->after)
        return kvx_cpu_mark_at(NULL, 0);
    return kvx_cpu_mark_at(other->timeline, engine->ends[batch->after_index].position);
}

static void set_start(const kvx_cpu_engine *engine, const kvx_batch *batch, kvx_cpu_job *job)
{
    const kvx_options *options = batch->options;
    if (options->stream)
        job->starts_after[0] = kvx_cpu_queue_mark(options->stream);
    if (options->wait_event)
        job->starts_after[1] = kvx_cpu_event_mark(options->wait_event);
    job->starts_after[2] = end_of(engine, batch);
}

/* What the caller puts into its queue from now on comes after the batch. */
static kvx_status join(const kvx_cpu_pipeline *pipeline, const kvx_batch *batch, const kvx_cpu_job *job)
{
    kvx_cpu_mark mark = {pipeline->timeline, batch->op == KVX_OP_RESTORE ? done_position(job) : released_position(job)};
    if (!batch->options->stream || batch->options->hints & KVX_HINT_NO_JOIN || batch->op == KVX_OP_DISCARD)
        return KVX_OK;
    if (kvx_cpu_queue_try_wait(batch->options->stream, &mark) != KVX_OK)
        return kvx_note(KVX_AGAIN, "the queue holds %u operations: wait until some have ended", KVX_CPU_QUEUE_CAPACITY);
    return KVX_OK;
}

static void record_events(const kvx_cpu_pipeline *pipeline, const kvx_batch *batch, const kvx_cpu_job *job)
{
    const kvx_options *options = batch->options;
    uint32_t s;
    for (s = 0; s < job->n_segment_events; s++)
        if (options->segment_events[s])
            kvx_cpu_event_set(options->segment_events[s], pipeline->timeline, job->first_position + s);
    if (options->released_event)
        kvx_cpu_event_set(options->released_event, pipeline->timeline, released_position(job));
    if (options->done_event)
        kvx_cpu_event_set(options->done_event, pipeline->timeline, done_position(job));
}

static void copy_pairs(kvx_cpu_engine *engine, const kvx_batch *batch)
{
    uint32_t i, entry = batch->first_entry;
    for (i = 0; i < batch->n; i++) {
        engine->pairs[entry] = batch->pairs[i];
        memset(&engine->progress[entry], 0, sizeof engine->progress[entry]);
        entry = entry + 1 == engine->config.max_pairs ? 0 : entry + 1;
    }
}

static kvx_status cpu_submit(void *arg, const kvx_batch *batch)
{
    kvx_cpu_engine *engine = arg;
    kvx_cpu_pipeline *pipeline = &engine->pipelines[batch->op == KVX_OP_RESTORE ? KVX_CPU_RESTORES : KVX_CPU_STORES];
    kvx_cpu_job job = job_of(batch);
    kvx_status status;
    uint32_t i;
    if (!kvx_cpu_pipeline_has_room(pipeline))
        return kvx_note(KVX_AGAIN, "too many empty batches are in flight");
    job.first_position = pipeline->last_position + 1;
    set_start(engine, batch, &job);
    status = join(pipeline, batch, &job);
    if (status != KVX_OK) {
        for (i = 0; i < sizeof job.starts_after / sizeof job.starts_after[0]; i++)
            kvx_cpu_mark_drop(&job.starts_after[i]);
        return status;
    }
    pipeline->last_position = done_position(&job);
    engine->ends[batch->ticket_index].ticket = batch->ticket;
    engine->ends[batch->ticket_index].position = pipeline->last_position;
    record_events(pipeline, batch, &job);
    copy_pairs(engine, batch);
    kvx_cpu_pipeline_put(pipeline, &job);
    return KVX_OK;
}

/* -------------------------------------------------------------------------------------------------------- answering */

static uint32_t cpu_poll(void *arg, uint64_t ticket, uint32_t entry, uint32_t index)
{
    const kvx_cpu_engine *engine = arg;
    uint64_t word = kvx_load_acquire_u64(&engine->results[entry]);
    return kvx_result_read(engine->words->prf_key, ticket, index, word);
}

static uint32_t cpu_released(void *arg, uint64_t ticket, uint32_t ticket_index)
{
    const kvx_cpu_engine *engine = arg;
    uint64_t word = kvx_load_acquire_u64(&engine->results[engine->config.max_pairs + ticket_index]);
    return kvx_result_read(engine->words->prf_key, ticket, KVX_RESULT_RELEASED, word) == KVX_VERDICT_OK;
}

static kvx_status cpu_health(void *arg)
{
    (void)arg;
    return KVX_OK;
}

static void cpu_counts(void *arg, kvx_engine_counts *counts)
{
    const kvx_cpu_engine *engine = arg;
    const kvx_pool_view *pool = engine->config.pool;
    memset(counts, 0, sizeof *counts);
    counts->record_bytes = pool->n_slots * sizeof *engine->headers + pool->n_records * sizeof *engine->records;
}

static kvx_status cpu_identify(int device, kvx_engine_identity *identity)
{
    (void)device;
    *identity = (kvx_engine_identity){.name = "cpu"};
    return KVX_OK;
}

static void cpu_latch(void *arg)
{
    kvx_cpu_engine *engine = arg;
    kvx_store_release_u32(&engine->words->latch, 1);
}

static int cpu_incarnation_is(void *arg, uint64_t incarnation)
{
    const kvx_cpu_engine *engine = arg;
    return engine->words->incarnation == incarnation;
}

#ifdef KVX_TESTING
static void wait_idle(kvx_cpu_engine *engine)
{
    uint32_t i;
    for (i = 0; i < KVX_CPU_N_PIPELINES; i++)
        kvx_cpu_pipeline_idle(&engine->pipelines[i]);
}

static kvx_status cpu_export_slot(void *arg, uint32_t slot, kvx_header *header, kvx_record *records, uint32_t n_records)
{
    kvx_cpu_engine *engine = arg;
    const kvx_pool_view *pool = engine->config.pool;
    uint32_t i;
    for (i = 0; i < pool->n_classes; i++) {
        const kvx_dev_class *slots = &pool->classes[i];
        uint64_t k = (uint64_t)slot - slots->first_slot;
        if (slot < slots->first_slot || k >= slots->n_slots || n_records > slots->max_units)
            continue;
        wait_idle(engine);
        *header = engine->headers[slot];
        memcpy(records, &engine->records[slots->first_record + k * slots->max_units], n_records * sizeof *records);
        return KVX_OK;
    }
    return kvx_note(KVX_INVALID, "no slot %u with %u records", slot, n_records);
}

static kvx_status cpu_words(void *arg, kvx_dev_words *words, int set)
{
    kvx_cpu_engine *engine = arg;
    wait_idle(engine);
    if (set) { /* the PRF key stays: any thread may be polling with it */
        kvx_store_release_u64(&engine->words->sequence, words->sequence);
        kvx_store_release_u32(&engine->words->latch, words->latch);
        kvx_store_release_u32(&engine->words->tampered, words->tampered);
        engine->words->tamper_budget = words->tamper_budget;
        engine->words->fixed_field = words->fixed_field;
        engine->words->key_soft_limit = words->key_soft_limit;
        engine->words->key_hard_limit = words->key_hard_limit;
        engine->words->incarnation = words->incarnation;
    }
    *words = *engine->words;
    return KVX_OK;
}

static kvx_status cpu_export_rings(void *handle, void *bytes, uint64_t *n_bytes)
{
    kvx_cpu_engine *engine = handle;
    uint32_t i;
    for (i = 0; i < engine->n_pipelines; i++)
        kvx_cpu_pipeline_idle(&engine->pipelines[i]);
    if (*n_bytes < engine->buffer_bytes)
        return kvx_note(KVX_INVALID, "the staging buffer has %zu bytes", engine->buffer_bytes);
    memcpy(bytes, engine->staged, engine->buffer_bytes);
    *n_bytes = engine->buffer_bytes;
    return KVX_OK;
}

static uint64_t *cpu_results(void *arg, uint32_t *n_words)
{
    kvx_cpu_engine *engine = arg;
    *n_words = engine->config.max_pairs + engine->config.max_tickets;
    return engine->results;
}
#endif

const kvx_engine_ops kvx_engine_cpu = {
    .kind = KVX_ENGINE_CPU,
    .identify = cpu_identify,
    .create = cpu_create,
    .destroy = cpu_destroy,
    .selftest = kvx_cpu_selftest,
    .key_install = kvx_cpu_key_install,
    .tenant_set = kvx_cpu_tenant_set,
    .tenant_move = kvx_cpu_tenant_move,
    .tenant_current = kvx_cpu_tenant_current,
    .key_erase = kvx_cpu_key_erase,
    .key_census = kvx_cpu_key_census,
    .latch = cpu_latch,
    .incarnation_is = cpu_incarnation_is,
    .layout_set = cpu_layout_set,
    .submit = cpu_submit,
    .poll = cpu_poll,
    .released = cpu_released,
    .health = cpu_health,
    .counts = cpu_counts,
#ifdef KVX_TESTING
    .export_slot = cpu_export_slot,
    .words = cpu_words,
    .export_rings = cpu_export_rings,
    .results = cpu_results,
#endif
};
