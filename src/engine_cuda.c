/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA engine's door: its layouts, its answers, and how it keeps out of the caller's way. */
#include "engine_cuda.h"

#include <string.h>

#include "secmem.h"
#include "../kernels/state.h"

/* Relaxed capture mode: a query by this thread must not break a capture that another thread has under way. Errors that
 * the caller left behind would be taken for those of kernel launches. */
cudaError_t kvx_cuda_enter(kvx_cuda_guard *guard, int device)
{
    cudaError_t error;
    guard->wanted = device;
    guard->device = device;
    guard->mode = cudaStreamCaptureModeRelaxed;
    error = cudaGetDevice(&guard->device);
    if (error == cudaSuccess && guard->device != device)
        error = cudaSetDevice(device);
    if (error == cudaSuccess)
        error = cudaThreadExchangeStreamCaptureMode(&guard->mode);
    if (error != cudaSuccess && guard->device != device)
        (void)cudaSetDevice(guard->device);
    (void)cudaGetLastError();
    return error;
}

void kvx_cuda_leave(const kvx_cuda_guard *guard)
{
    enum cudaStreamCaptureMode mode = guard->mode;
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    if (guard->device != guard->wanted)
        (void)cudaSetDevice(guard->device);
    (void)cudaGetLastError();
}

kvx_status kvx_cuda_note(const char *call, cudaError_t error)
{
    kvx_status status = KVX_INTERNAL;
    if (error == cudaErrorMemoryAllocation)
        status = KVX_NO_MEMORY;
    else if (error == cudaErrorNotSupported || error == cudaErrorNoKernelImageForDevice)
        status = KVX_UNSUPPORTED;
    return kvx_note(status, "%s: %s (%s)", call, cudaGetErrorString(error), cudaGetErrorName(error));
}

cudaError_t kvx_cuda_synchronize(kvx_cuda *engine, enum kvx_cuda_stream stream)
{
    if (engine->submitting)
        atomic_fetch_add(&engine->n_host_syncs, 1);
    return cudaStreamSynchronize(engine->streams[stream]);
}

kvx_status kvx_cuda_health(kvx_cuda *engine)
{
    uint32_t i;
    if (atomic_load(&engine->lost))
        return kvx_note(KVX_DEVICE_LOST, "the device failed earlier: destroy this context");
    for (i = 0; i < KVX_CUDA_STREAMS; i++) {
        cudaError_t error = cudaStreamQuery(engine->streams[i]);
        if (error == cudaSuccess || error == cudaErrorNotReady)
            continue;
        atomic_store(&engine->lost, 1);
        return kvx_note(KVX_DEVICE_LOST, "the GPU reported: %s (%s)", cudaGetErrorString(error),
                        cudaGetErrorName(error));
    }
    return KVX_OK;
}

/* ---------------------------------------------------------------------------------------------------------- layouts */

static kvx_status check_lanes(const kvx_cuda *engine, const kvx_dev_layout *layout)
{
    uint32_t i;
    for (i = 0; i < layout->n_lanes; i++) {
        const kvx_dev_lane *lane = &layout->lanes[i];
        const uint64_t bytes = (uint64_t)(layout->n_blocks - 1) * lane->block_stride +
                               (uint64_t)(lane->n_rows - 1) * lane->row_stride + lane->row_bytes;
        KVX_TRY(kvx_cuda_check_memory(engine, lane->base, bytes, "lane", i));
    }
    return KVX_OK;
}

static cudaError_t upload_layout(kvx_cuda *engine, uint32_t index, const kvx_dev_layout *layout)
{
    kvx_dev_layout *entry = (kvx_dev_layout *)(uintptr_t)engine->dev.layouts + index;
    kvx_dev_lane *lanes = engine->dev_lanes + (size_t)index * KVX_LANES_LIMIT;
    kvx_dev_segment *segments = engine->dev_segments + (size_t)index * KVX_UNITS_LIMIT;
    kvx_dev_layout copy = *layout;
    cudaError_t error = kvx_cuda_upload(engine, lanes, layout->lanes, layout->n_lanes * sizeof *lanes);
    if (error == cudaSuccess)
        error = kvx_cuda_upload(engine, segments, layout->segments, layout->n_segments * sizeof *segments);
    copy.lanes = lanes;
    copy.segments = segments;
    return error == cudaSuccess ? kvx_cuda_upload(engine, entry, &copy, sizeof copy) : error;
}

static kvx_status set_layout(kvx_cuda *engine, uint32_t index, const kvx_dev_layout *layout)
{
    const kvx_dev_layout none = {.n_blocks = 0};
    kvx_dev_segment *segments = engine->host_segments + (size_t)index * KVX_UNITS_LIMIT;
    cudaError_t error;
    if (layout)
        KVX_TRY(check_lanes(engine, layout));
    engine->host_layouts[index] = none;
    error = upload_layout(engine, index, layout ? layout : &none);
    if (error != cudaSuccess)
        return kvx_cuda_note("uploading a layout", error);
    if (!layout)
        return KVX_OK;
    memcpy(segments, layout->segments, layout->n_segments * sizeof *segments);
    engine->host_layouts[index] = *layout;
    engine->host_layouts[index].lanes = NULL;
    engine->host_layouts[index].segments = segments;
    return KVX_OK;
}

static kvx_status cuda_layout_set(void *handle, uint32_t index, const kvx_dev_layout *layout)
{
    kvx_cuda *engine = handle;
    kvx_cuda_guard guard;
    kvx_status status;
    cudaError_t error;
    if (index >= engine->config.max_layouts)
        return kvx_note(KVX_INVALID, "layout %u of %u", index, engine->config.max_layouts);
    if (layout && (layout->n_blocks == 0 || layout->n_lanes > KVX_LANES_LIMIT || layout->n_segments > KVX_UNITS_LIMIT))
        return kvx_note(KVX_INVALID, "a layout has no blocks, or too many lanes or segments");
    error = kvx_cuda_enter(&guard, engine->config.device);
    if (error != cudaSuccess)
        return kvx_cuda_note("cudaSetDevice", error);
    status = set_layout(engine, index, layout);
    kvx_cuda_leave(&guard);
    return status;
}

/* ---------------------------------------------------------------------------------------------------------- answers */

static uint32_t read_result(const kvx_cuda *engine, uint64_t ticket, uint32_t place, uint32_t index)
{
    uint64_t word = __atomic_load_n(&engine->results[place], __ATOMIC_ACQUIRE);
    return kvx_result_read(engine->secrets->prf_key, ticket, index, word);
}

static uint32_t cuda_poll(void *handle, uint64_t ticket, uint32_t entry, uint32_t index)
{
    const kvx_cuda *engine = handle;
    return entry < engine->config.max_pairs ? read_result(engine, ticket, entry, index) : (uint32_t)KVX_VERDICT_NONE;
}

static uint32_t cuda_released(void *handle, uint64_t ticket, uint32_t ticket_index)
{
    const kvx_cuda *engine = handle;
    if (ticket_index >= engine->config.max_tickets)
        return 0;
    return read_result(engine, ticket, engine->config.max_pairs + ticket_index, KVX_RESULT_RELEASED) == KVX_VERDICT_OK;
}

static kvx_status cuda_health(void *handle)
{
    kvx_cuda *engine = handle;
    kvx_cuda_guard guard;
    kvx_status status;
    cudaError_t error = kvx_cuda_enter(&guard, engine->config.device);
    if (error != cudaSuccess)
        return kvx_note(KVX_DEVICE_LOST, "cudaSetDevice: %s", cudaGetErrorString(error));
    status = kvx_cuda_health(engine);
    kvx_cuda_leave(&guard);
    return status;
}

static void cuda_counts(void *handle, kvx_engine_counts *counts)
{
    kvx_cuda *engine = handle;
    counts->launches = atomic_load(&engine->n_launches);
    counts->copies = atomic_load(&engine->n_copies);
    counts->host_syncs = atomic_load(&engine->n_host_syncs);
    counts->record_bytes = engine->record_bytes;
    counts->store_bursts = atomic_load(&engine->n_store_bursts);
    counts->direct_launches = atomic_load(&engine->n_direct_launches);
    counts->restore_bursts = atomic_load(&engine->n_restore_bursts);
    counts->burst_bytes = engine->pace.burst_bytes;
    counts->link_rate = engine->pace.link_rate;
    counts->seal_rate = engine->pace.seal_rate;
    counts->measure_ns = engine->pace.measure_ns;
    counts->burst_sms = engine->pace.burst_sms;
    counts->direct_sms = engine->pace.direct_sms;
}

#ifdef KVX_TESTING
static kvx_status read_slot(kvx_cuda *engine, uint32_t slot, kvx_header *header, kvx_record *records,
                            uint32_t n_records)
{
    const kvx_dev_class *slot_class = engine->config.pool->classes;
    cudaError_t error = cudaSuccess;
    uint64_t first;
    uint32_t i;
    for (i = 0; error == cudaSuccess && i < KVX_CUDA_STREAMS; i++)
        error = kvx_cuda_synchronize(engine, (enum kvx_cuda_stream)i);
    while (slot - slot_class->first_slot >= slot_class->n_slots)
        slot_class++;
    if (n_records > slot_class->max_units)
        return kvx_note(KVX_INVALID, "slot %u has %u records", slot, slot_class->max_units);
    first = slot_class->first_record + (uint64_t)(slot - slot_class->first_slot) * slot_class->max_units;
    if (error == cudaSuccess)
        error = kvx_cuda_download(engine, header, engine->dev.headers + slot, sizeof *header);
    if (error == cudaSuccess)
        error = kvx_cuda_download(engine, records, engine->dev.records + first, n_records * sizeof *records);
    return error == cudaSuccess ? KVX_OK : kvx_cuda_note("reading a slot's records", error);
}

static kvx_status cuda_export_slot(void *handle, uint32_t slot, kvx_header *header, kvx_record *records,
                                   uint32_t n_records)
{
    kvx_cuda *engine = handle;
    kvx_cuda_guard guard;
    kvx_status status;
    if (slot >= engine->config.pool->n_slots)
        return kvx_note(KVX_INVALID, "slot %u of %u", slot, engine->config.pool->n_slots);
    if (kvx_cuda_enter(&guard, engine->config.device) != cudaSuccess)
        return kvx_note(KVX_INTERNAL, "cudaSetDevice");
    status = read_slot(engine, slot, header, records, n_records);
    kvx_cuda_leave(&guard);
    return status;
}

static kvx_status cuda_words(void *handle, kvx_dev_words *words, int set)
{
    kvx_cuda *engine = handle;
    kvx_cuda_guard guard;
    cudaError_t error = kvx_cuda_enter(&guard, engine->config.device);
    if (error != cudaSuccess)
        return kvx_cuda_note("cudaSetDevice", error);
    error = set ? kvx_cuda_upload(engine, engine->dev.words, words, sizeof *words)
                : kvx_cuda_download(engine, words, engine->dev.words, sizeof *words);
    kvx_cuda_leave(&guard);
    return error == cudaSuccess ? KVX_OK : kvx_cuda_note("words", error);
}

static kvx_status cuda_export_rings(void *handle, void *bytes, uint64_t *n_bytes)
{
    kvx_cuda *engine = handle;
    const uint64_t ring_bytes = KVX_CUDA_RING_CHUNKS * engine->pace.chunk_bytes;
    kvx_cuda_guard guard;
    cudaError_t error;
    uint32_t i;
    if (*n_bytes < 2 * ring_bytes)
        return kvx_note(KVX_INVALID, "the rings have %llu bytes", (unsigned long long)(2 * ring_bytes));
    error = kvx_cuda_enter(&guard, engine->config.device);
    for (i = 0; error == cudaSuccess && i < KVX_CUDA_STREAMS; i++)
        error = kvx_cuda_synchronize(engine, (enum kvx_cuda_stream)i);
    if (error == cudaSuccess)
        error = kvx_cuda_download(engine, bytes, engine->store_ring.dev, ring_bytes);
    if (error == cudaSuccess)
        error = kvx_cuda_download(engine, (uint8_t *)bytes + ring_bytes, engine->restore_ring.dev, ring_bytes);
    kvx_cuda_leave(&guard);
    *n_bytes = 2 * ring_bytes;
    return error == cudaSuccess ? KVX_OK : kvx_cuda_note("reading the rings", error);
}

static uint64_t *cuda_results(void *handle, uint32_t *n_words)
{
    const kvx_cuda *engine = handle;
    *n_words = engine->config.max_pairs + engine->config.max_tickets;
    return engine->results;
}
#endif

const kvx_engine_ops kvx_engine_cuda = {
    .kind = KVX_ENGINE_CUDA,
    .identify = kvx_cuda_identify,
    .create = kvx_cuda_create,
    .destroy = kvx_cuda_destroy,
    .key_install = kvx_cuda_key_install,
    .tenant_set = kvx_cuda_tenant_set,
    .tenant_move = kvx_cuda_tenant_move,
    .tenant_current = kvx_cuda_tenant_current,
    .key_erase = kvx_cuda_key_erase,
    .key_census = kvx_cuda_key_census,
    .latch = kvx_cuda_latch,
    .incarnation_is = kvx_cuda_incarnation_is,
    .layout_set = cuda_layout_set,
    .submit = kvx_cuda_submit,
    .poll = cuda_poll,
    .released = cuda_released,
    .health = cuda_health,
    .counts = cuda_counts,
#ifdef KVX_TESTING
    .export_slot = cuda_export_slot,
    .words = cuda_words,
    .export_rings = cuda_export_rings,
    .results = cuda_results,
#endif
};
