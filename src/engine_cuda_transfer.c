/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A batch on its way through five streams. Nothing waits on the host; "->" is an event recorded on the left and waited
 * for on the right. C is the caller's stream, A the done event of the batch named by `after`, W the wait event.
 *
 *   staged store    C, W, A -> [store compute]  per burst: free[k] ->  seal into chunk k
 *                                                          seal    ->  [store copy]    chunk k -> slots, record free[k]
 *                                                          free[k] ->  [store commit]  commit
 *                              after the last seal: record released, C waits (join); after the last commit: done
 *   direct store    C, W, A, store commit's tail -> [store compute]  seal and commit, <= 2000 pairs a launch;
 *                                                                    released, join, done
 *   discard         A, store compute's tail if a direct store was last -> [store commit]  discard; done
 *   restore         C, W, A -> [restore copy]   per burst: free[k] ->  slots -> chunk k
 *                                               copied  ->  [restore compute]  open chunk k, record free[k];
 *                              after a run of segments: its events, its flags; after the last: done, C waits (join)
 *
 * The copy streams carry copies only, so that one follows the other without a gap (docs/benchmarks.md has what a commit
 * between two copies cost). Seal launches all run on one stream, one after the
 * other: the count of CTAs that tells the last one needs that. Commits and discards are in the order of the calls: both
 * run on store commit, a direct store waits for that stream, and what follows a direct store there waits for store
 * compute (through the seal event of each burst, or explicitly). `mark` serves all joints: to wait for an event means
 * for its newest record, and calls of one engine are serialised.
 */
#include "engine_cuda.h"

/* From here on nothing can be taken back. */
static cudaError_t launched(kvx_cuda *engine, int error)
{
    if (error == 0) {
        engine->launched = 1;
        atomic_fetch_add(&engine->n_launches, 1);
    }
    return (cudaError_t)error;
}

static cudaError_t wait_for(kvx_cuda *engine, enum kvx_cuda_stream stream, cudaEvent_t event)
{
    return cudaStreamWaitEvent(engine->streams[stream], event, 0);
}

static cudaError_t record(kvx_cuda *engine, cudaEvent_t event, enum kvx_cuda_stream stream)
{
    return event ? cudaEventRecord(event, engine->streams[stream]) : cudaSuccess;
}

/* What `later` gets from now on comes after what `earlier` has now. */
static cudaError_t order(kvx_cuda *engine, enum kvx_cuda_stream earlier, enum kvx_cuda_stream later)
{
    cudaError_t error = record(engine, engine->mark, earlier);
    return error == cudaSuccess ? wait_for(engine, later, engine->mark) : error;
}

/* An event of another device shows only when it is recorded: tried here, where the call can still be refused. Each is
 * recorded again at its real place. */
static cudaError_t try_events(kvx_cuda *engine, const kvx_options *options, enum kvx_cuda_stream first)
{
    cudaError_t error;
    uint32_t s;
    if (engine->n_devices < 2)
        return cudaSuccess;
    error = record(engine, options->released_event, first);
    if (error == cudaSuccess)
        error = record(engine, options->done_event, first);
    for (s = 0; error == cudaSuccess && s < options->n_segment_events; s++)
        error = record(engine, options->segment_events[s], first);
    return error;
}

/* The batch begins after the caller's stream and event, and after the batch of the other pipeline. */
static cudaError_t fork_from(kvx_cuda *engine, const kvx_batch *batch, enum kvx_cuda_stream first)
{
    cudaError_t error = cudaSuccess;
    if (batch->op != KVX_OP_DISCARD) {
        error = cudaEventRecord(engine->mark, batch->options->stream);
        if (error == cudaSuccess)
            error = wait_for(engine, first, engine->mark);
        if (error == cudaSuccess && batch->options->wait_event)
            error = wait_for(engine, first, batch->options->wait_event);
    }
    if (error == cudaSuccess && batch->after)
        error = wait_for(engine, first, engine->done[batch->after_index]);
    return error == cudaSuccess ? try_events(engine, batch->options, first) : error;
}

/* Records the end of the batch on the stream that ends it. */
static cudaError_t finish(kvx_cuda *engine, const kvx_batch *batch, enum kvx_cuda_stream last)
{
    cudaError_t error = record(engine, engine->done[batch->ticket_index], last);
    return error == cudaSuccess ? record(engine, batch->options->done_event, last) : error;
}

/* The caller's stream goes on after what `stream` has now. */
static cudaError_t join(kvx_cuda *engine, const kvx_batch *batch, enum kvx_cuda_stream stream)
{
    cudaError_t error;
    if (batch->options->hints & KVX_HINT_NO_JOIN)
        return cudaSuccess;
    error = record(engine, engine->mark, stream);
    return error == cudaSuccess ? cudaStreamWaitEvent(batch->options->stream, engine->mark, 0) : error;
}

static kvx_work work_of(const kvx_batch *batch, const kvx_burst *burst)
{
    kvx_work work = {.ticket = batch->ticket,
                     .store_id = batch->store_id,
                     .staged_stride = burst->staged_stride,
                     .n_pairs = burst->n_pairs,
                     .first_index = burst->first_pair,
                     .first_entry = batch->first_entry + burst->first_pair,
                     .first_segment = burst->first_segment,
                     .n_segments = burst->n_segments};
    return work;
}

static void begin_plan(kvx_cuda *engine, const kvx_batch *batch, enum kvx_plan_mode mode)
{
    const kvx_plan_batch plan = {.pool = engine->config.pool,
                                 .layouts = engine->host_layouts,
                                 .pairs = batch->pairs,
                                 .n = batch->n,
                                 .mode = mode,
                                 .burst_bytes = engine->burst_bytes};
    kvx_plan_begin(engine->plan, &plan);
}

/* The place of the batch's "source released" word. Never 0: result words of pairs come first. */
static uint32_t released_result(const kvx_cuda *engine, const kvx_batch *batch)
{
    return engine->config.max_pairs + batch->ticket_index;
}

/* ----------------------------------------------------------------------------------------------------------- stores */

static cudaError_t store_burst(kvx_cuda *engine, const kvx_batch *batch, const kvx_burst *burst)
{
    const uint32_t chunk = engine->store_ring.next;
    const kvx_work_pair *pairs = batch->pairs + burst->first_pair;
    cudaEvent_t chunk_free = engine->store_ring.free_events[chunk];
    kvx_work work = work_of(batch, burst);
    cudaError_t error = wait_for(engine, KVX_CUDA_STORE_COMPUTE, chunk_free);
    work.staged = engine->store_ring.dev + chunk * engine->burst_bytes;
    work.released_result = burst->ends_batch ? released_result(engine, batch) : 0;
    engine->store_ring.next = (chunk + 1) % KVX_CUDA_RING_CHUNKS;
    if (error == cudaSuccess)
        error = launched(engine, kvx_launch_seal(&engine->dev, &work, pairs, engine->streams[KVX_CUDA_STORE_COMPUTE]));
    if (error == cudaSuccess)
        error = order(engine, KVX_CUDA_STORE_COMPUTE, KVX_CUDA_STORE_COPY);
    if (error == cudaSuccess)
        error = kvx_cuda_copy(engine, burst, work.staged, 1, engine->streams[KVX_CUDA_STORE_COPY]);
    if (error == cudaSuccess)
        error = record(engine, chunk_free, KVX_CUDA_STORE_COPY);
    if (error == cudaSuccess)
        error = wait_for(engine, KVX_CUDA_STORE_COMMIT, chunk_free);
    if (error == cudaSuccess)
        error = launched(engine, kvx_launch_commit(&engine->dev, &work, pairs, engine->streams[KVX_CUDA_STORE_COMMIT]));
    return error;
}

static cudaError_t store_staged(kvx_cuda *engine, const kvx_batch *batch)
{
    cudaError_t error = cudaSuccess;
    kvx_burst burst;
    begin_plan(engine, batch, KVX_PLAN_WHOLE);
    if (batch->n == 0)
        return order(engine, KVX_CUDA_STORE_COMPUTE, KVX_CUDA_STORE_COMMIT);
    while (error == cudaSuccess && kvx_plan_next(engine->plan, &burst))
        error = store_burst(engine, batch, &burst);
    return error;
}

static cudaError_t store_direct(kvx_cuda *engine, const kvx_batch *batch)
{
    cudaError_t error = cudaSuccess;
    kvx_burst burst;
    if (engine->store_tail != KVX_CUDA_STORE_COMPUTE)
        error = order(engine, KVX_CUDA_STORE_COMMIT, KVX_CUDA_STORE_COMPUTE);
    begin_plan(engine, batch, KVX_PLAN_DIRECT);
    while (error == cudaSuccess && kvx_plan_next(engine->plan, &burst)) {
        kvx_work work = work_of(batch, &burst);
        work.commit = 1;
        work.released_result = burst.ends_batch ? released_result(engine, batch) : 0;
        error = launched(engine, kvx_launch_seal(&engine->dev, &work, batch->pairs + burst.first_pair,
                                                 engine->streams[KVX_CUDA_STORE_COMPUTE]));
    }
    return error;
}

/* What follows the last seal on store compute is "released": copies and commits are on the other stream. */
static cudaError_t enqueue_store(kvx_cuda *engine, const kvx_batch *batch)
{
    const int direct = (batch->options->hints & KVX_HINT_IDLE) && engine->can_direct;
    const enum kvx_cuda_stream last = direct ? KVX_CUDA_STORE_COMPUTE : KVX_CUDA_STORE_COMMIT;
    cudaError_t error = fork_from(engine, batch, KVX_CUDA_STORE_COMPUTE);
    if (error == cudaSuccess)
        error = direct ? store_direct(engine, batch) : store_staged(engine, batch);
    if (error == cudaSuccess)
        error = record(engine, batch->options->released_event, KVX_CUDA_STORE_COMPUTE);
    if (error == cudaSuccess)
        error = finish(engine, batch, last);
    if (error == cudaSuccess)
        error = join(engine, batch, KVX_CUDA_STORE_COMPUTE);
    if (error == cudaSuccess)
        engine->store_tail = last;
    return error;
}

static cudaError_t enqueue_discard(kvx_cuda *engine, const kvx_batch *batch)
{
    cudaError_t error = fork_from(engine, batch, KVX_CUDA_STORE_COMMIT);
    uint32_t first, n;
    if (error == cudaSuccess && engine->store_tail == KVX_CUDA_STORE_COMPUTE)
        error = order(engine, KVX_CUDA_STORE_COMPUTE, KVX_CUDA_STORE_COMMIT);
    for (first = 0; error == cudaSuccess && first < batch->n; first += n) {
        const uint32_t left = batch->n - first;
        kvx_burst burst = {.first_pair = first};
        kvx_work work;
        n = left < KVX_PAIRS_PER_LAUNCH ? left : KVX_PAIRS_PER_LAUNCH;
        burst.n_pairs = n;
        work = work_of(batch, &burst);
        error = launched(engine, kvx_launch_discard(&engine->dev, &work, batch->pairs + first,
                                                    engine->streams[KVX_CUDA_STORE_COMMIT]));
    }
    if (error == cudaSuccess)
        error = finish(engine, batch, KVX_CUDA_STORE_COMMIT);
    if (error == cudaSuccess)
        engine->store_tail = KVX_CUDA_STORE_COMMIT;
    return error;
}

/* --------------------------------------------------------------------------------------------------------- restores */

static cudaError_t restore_burst(kvx_cuda *engine, const kvx_batch *batch, const kvx_burst *burst)
{
    const uint32_t chunk = engine->restore_ring.next;
    cudaEvent_t chunk_free = engine->restore_ring.free_events[chunk];
    cudaStream_t compute_stream = engine->streams[KVX_CUDA_RESTORE_COMPUTE];
    kvx_work work = work_of(batch, burst);
    cudaError_t error = wait_for(engine, KVX_CUDA_RESTORE_COPY, chunk_free);
    work.staged = engine->restore_ring.dev + chunk * engine->burst_bytes;
    engine->restore_ring.next = (chunk + 1) % KVX_CUDA_RING_CHUNKS;
    if (error == cudaSuccess)
        error = kvx_cuda_copy(engine, burst, work.staged, 0, engine->streams[KVX_CUDA_RESTORE_COPY]);
    if (error == cudaSuccess)
        error = order(engine, KVX_CUDA_RESTORE_COPY, KVX_CUDA_RESTORE_COMPUTE);
    if (error == cudaSuccess)
        error =
            launched(engine, kvx_launch_open(&engine->dev, &work, batch->pairs + burst->first_pair, compute_stream));
    return error == cudaSuccess ? record(engine, chunk_free, KVX_CUDA_RESTORE_COMPUTE) : error;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Events and flags of segments [first, end): all their verdicts come before this place of restore compute. */
static cudaError_t announce(kvx_cuda *engine, const kvx_options *options, uint32_t first, uint32_t end)
{
    const uint32_t end_flags = smaller(end, options->n_flags);
    cudaError_t error = cudaSuccess;
    uint32_t s;
    for (s = first; error == cudaSuccess && s < end && s < options->n_segment_events; s++)
        error = record(engine, options->segment_events[s], KVX_CUDA_RESTORE_COMPUTE);
    if (error == cudaSuccess && first < end_flags)
        error = launched(engine, kvx_launch_flags(options->dev_flags, first, end_flags - first, options->flag_value,
                                                  engine->streams[KVX_CUDA_RESTORE_COMPUTE]));
    return error;
}

static cudaError_t restore_bursts(kvx_cuda *engine, const kvx_batch *batch)
{
    const kvx_options *options = batch->options;
    const int by_segment = options->n_segment_events || options->n_flags;
    uint32_t announced = 0;
    cudaError_t error = cudaSuccess;
    kvx_burst burst;
    if (batch->n == 0)
        error = order(engine, KVX_CUDA_RESTORE_COPY, KVX_CUDA_RESTORE_COMPUTE);
    begin_plan(engine, batch, by_segment ? KVX_PLAN_SEGMENTS : KVX_PLAN_WHOLE);
    while (error == cudaSuccess && kvx_plan_next(engine->plan, &burst)) {
        error = restore_burst(engine, batch, &burst);
        if (error != cudaSuccess || !burst.ends_run || burst.ends_batch)
            continue;
        error = announce(engine, options, announced, burst.run_end);
        announced = burst.run_end;
    }
    return error == cudaSuccess ? announce(engine, options, announced, UINT32_MAX) : error;
}

static cudaError_t enqueue_restore(kvx_cuda *engine, const kvx_batch *batch)
{
    cudaError_t error = fork_from(engine, batch, KVX_CUDA_RESTORE_COPY);
    if (error == cudaSuccess)
        error = restore_bursts(engine, batch);
    if (error == cudaSuccess)
        error = finish(engine, batch, KVX_CUDA_RESTORE_COMPUTE);
    return error == cudaSuccess ? join(engine, batch, KVX_CUDA_RESTORE_COMPUTE) : error;
}

/* ----------------------------------------------------------------------------------------------------------- submit */

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
    if (!stream) /* the default stream of the context's device */
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
    return kvx_cuda_check_memory(engine, (uint64_t)(uintptr_t)options->dev_flags,
                                 (uint64_t)options->n_flags * sizeof *options->dev_flags, 1, "dev_flags of", 0);
}

static kvx_status enqueue(kvx_cuda *engine, const kvx_batch *batch)
{
    static cudaError_t (*const enqueues[])(kvx_cuda *, const kvx_batch *) = {
        [KVX_OP_STORE] = enqueue_store, [KVX_OP_RESTORE] = enqueue_restore, [KVX_OP_DISCARD] = enqueue_discard};
    cudaError_t error;
    engine->launched = 0;
    (void)cudaGetLastError(); /* an event that was not ready would look like a failed launch */
    error = enqueues[batch->op](engine, batch);
    if (error == cudaSuccess)
        return KVX_OK;
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
