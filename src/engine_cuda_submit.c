/* SPDX-License-Identifier: Apache-2.0 */
/* May a batch be taken? Everything that can be wrong with its stream and events is found before anything is launched,
 * for then there is no way back; and there must be room for it in the driver's queues, or the call would wait. */
#include "engine_cuda.h"

static kvx_status check_stream(const kvx_cuda *engine, cudaStream_t stream)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    cudaError_t error = cudaStreamIsCapturing(stream, &capture);
    if (error == cudaErrorStreamCaptureImplicit || capture != cudaStreamCaptureStatusNone)
        return kvx_note(KVX_UNSUPPORTED, "the stream is being captured: stores and restores cannot be");
    if (error != cudaSuccess)
        return kvx_cuda_note("cudaStreamIsCapturing", error);
#if CUDART_VERSION >= 12080
    int device = engine->config.device;
    if (!stream || engine->n_devices < 2) /* NULL: the default stream of the context's device */
        return KVX_OK;
    error = cudaStreamGetDevice(stream, &device);
    if (error != cudaSuccess && error != cudaErrorCallRequiresNewerDriver)
        return kvx_cuda_note("cudaStreamGetDevice", error);
    if (device != engine->config.device)
        return kvx_note(KVX_INVALID, "the stream is of device %d, the context of device %d", device,
                        engine->config.device);
#else
    (void)engine;
#endif
    return KVX_OK;
}

/* Bad events must be found now: once something was launched there is no way back. */
static kvx_status check_event(cudaEvent_t event, const char *name)
{
    cudaError_t error = event ? cudaEventQuery(event) : cudaSuccess;
    if (error == cudaSuccess || error == cudaErrorNotReady)
        return KVX_OK;
    if (error == cudaErrorInvalidResourceHandle || error == cudaErrorInvalidValue)
        return kvx_note(KVX_INVALID, "%s is no event of this process: %s", name, cudaGetErrorString(error));
    if (error == cudaErrorCapturedEvent || error == cudaErrorStreamCaptureUnsupported)
        return kvx_note(KVX_UNSUPPORTED, "%s belongs to a capture: %s", name, cudaGetErrorString(error));
    return kvx_cuda_note("cudaEventQuery", error);
}

static kvx_status check_options(const kvx_cuda *engine, const kvx_options *options)
{
    uint32_t s;
    KVX_TRY(check_stream(engine, options->stream));
    KVX_TRY(check_event(options->wait_event, "wait_event"));
    KVX_TRY(check_event(options->released_event, "released_event"));
    KVX_TRY(check_event(options->done_event, "done_event"));
    for (s = 0; s < options->n_segment_events; s++)
        KVX_TRY(check_event(options->segment_events[s], "a segment event"));
    if (options->n_flags == 0)
        return KVX_OK;
    return kvx_cuda_check_ends(engine, (uint64_t)(uintptr_t)options->dev_flags,
                               (uint64_t)options->n_flags * sizeof *options->dev_flags, "dev_flags of");
}

/* --------------------------------------------------------------------------------------------------- what is in flight
 */

static kvx_cuda_pipeline *pipeline_of(kvx_cuda *engine, enum kvx_op op)
{
    return &engine->pipelines[op == KVX_OP_RESTORE];
}

/* Forgets flights that have ended, oldest first: one batch of a pipeline ends after the other. The place that a new
 * batch has been given is that of one that ended. */
static void land(kvx_cuda *engine, kvx_cuda_pipeline *pipeline, uint32_t new_place)
{
    while (pipeline->n > 0) {
        const kvx_cuda_flight *oldest = &pipeline->flights[pipeline->first];
        const uint32_t place = oldest->ticket_index;
        if (place != new_place && engine->done_tickets[place] == oldest->ticket &&
            cudaEventQuery(engine->done[place]) == cudaErrorNotReady)
            return;
        pipeline->n_places -= oldest->n_places;
        pipeline->first = (pipeline->first + 1) % engine->config.max_tickets;
        pipeline->n--;
    }
}

static uint64_t estimate_places(const kvx_cuda *engine, const kvx_batch *batch)
{
    const kvx_plan_batch *plan = &engine->plan->batch;
    uint64_t n_bursts = batch->n / KVX_PAIRS_PER_LAUNCH + 1, by_bytes;
    if (batch->op == KVX_OP_DISCARD || plan->mode == KVX_PLAN_DIRECT)
        return n_bursts * kvx_cuda_places(batch->n);
    by_bytes = engine->plan->n_bytes / plan->burst_bytes + 1;
    if (by_bytes > batch->n) /* a block is never parted */
        by_bytes = batch->n;
    if (n_bursts < by_bytes)
        n_bursts = by_bytes;
    return n_bursts * kvx_cuda_places(batch->n / n_bursts);
}

/* A batch that is too large by itself is taken when nothing else is in flight: no waiting would make it fit. */
static kvx_status admit(kvx_cuda *engine, const kvx_batch *batch)
{
    kvx_cuda_pipeline *pipeline = pipeline_of(engine, batch->op);
    uint64_t wanted;
    if (batch->n == 0)
        return KVX_OK;
    wanted = estimate_places(engine, batch);
    if (pipeline->n == engine->config.max_tickets || pipeline->n_places + wanted > KVX_CUDA_PLACES)
        land(engine, pipeline, batch->ticket_index);
    if (pipeline->n == 0)
        return KVX_OK;
    if (pipeline->n < engine->config.max_tickets && pipeline->n_places + wanted <= KVX_CUDA_PLACES)
        return KVX_OK;
    return kvx_note(KVX_AGAIN, "%llu launches are in flight: wait for some to end",
                    (unsigned long long)pipeline->n_places);
}

static void take_off(kvx_cuda *engine, const kvx_batch *batch)
{
    kvx_cuda_pipeline *pipeline = pipeline_of(engine, batch->op);
    const uint32_t place = (pipeline->first + pipeline->n) % engine->config.max_tickets;
    const uint32_t n_places = engine->n_places ? engine->n_places : 1;
    if (batch->n == 0)
        return;
    pipeline->flights[place] = (kvx_cuda_flight){batch->ticket, batch->ticket_index, n_places};
    pipeline->n_places += n_places;
    pipeline->n++;
}

static kvx_status enqueue(kvx_cuda *engine, const kvx_batch *batch)
{
    cudaError_t error;
    if (batch->op != KVX_OP_DISCARD)
        kvx_cuda_begin_plan(engine, batch);
    KVX_TRY(admit(engine, batch));
    engine->launched = 0;
    engine->n_bursts = 0;
    engine->n_places = 0;
    (void)cudaGetLastError(); /* an event that was not ready would look like a failed launch */
    error = kvx_cuda_enqueue(engine, batch);
    if (error == cudaSuccess) {
        take_off(engine, batch);
        return KVX_OK;
    }
    if (!engine->launched && error == cudaErrorInvalidResourceHandle)
        return kvx_note(KVX_INVALID, "a stream or event is not of the context's device: %s", cudaGetErrorString(error));
    if (!engine->launched)
        return kvx_cuda_note("enqueueing a batch", error);
    atomic_store(&engine->lost, 1);
    return kvx_note(KVX_DEVICE_LOST, "a batch was enqueued half-way: %s", cudaGetErrorString(error));
}

kvx_status kvx_cuda_submit(void *handle, const kvx_batch *batch)
{
    kvx_cuda *engine = handle;
    kvx_cuda_guard guard;
    kvx_status status = KVX_OK;
    cudaError_t error = kvx_cuda_enter(&guard, engine->config.device);
    if (error != cudaSuccess) {
        atomic_store(&engine->lost, 1);
        return kvx_note(KVX_DEVICE_LOST, "the GPU reported: %s", cudaGetErrorString(error));
    }
    engine->submitting = 1;
    if (atomic_load(&engine->lost))
        status = kvx_note(KVX_DEVICE_LOST, "the device failed earlier: destroy this context");
    if (status == KVX_OK && batch->op != KVX_OP_DISCARD)
        status = check_options(engine, batch->options);
    if (status == KVX_OK)
        status = enqueue(engine, batch);
    if (status == KVX_INTERNAL && kvx_cuda_health(engine) != KVX_OK)
        status = KVX_DEVICE_LOST;
    engine->submitting = 0;
    kvx_cuda_leave(&guard);
    return status;
}
