/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A batch on its way through five streams. Nothing waits on the host; "->" is an event recorded on the left and waited
 * for on the right. C is the caller's stream, A the done event of the batch named by `after`, W the wait event.
 *
 *   staged store    C, W, A -> [store compute]  per burst: free[k] ->  seal into chunk k
 *                                                          seal    ->  [store copy]    chunk k -> slots, record free[k]
 *                              per COMMIT_PAIRS pairs, and at the end: free[k] ->  [store commit]  commit
 *                              after the last seal: record released, C waits (join); after the last commit: done
 *   direct store    C, W, A, store commit's tail -> [store compute]  seal and commit, <= 2000 pairs a launch;
 *                                                                    released, done, C waits (join)
 *   discard         A, store compute's tail if a direct store was last -> [store commit]  discard; done
 *   restore         W, A -> [restore copy]      per burst: free[k] ->  slots -> chunk k
 *                   C, copied  ->  [restore compute]  open chunk k, record free[k];
 *                              after a run of segments: its events, its flags; after the last: done, C waits (join)
 *
 * The copy streams carry copies only, so that one follows the other without a gap (docs/benchmarks.md has what a commit
 * between two copies cost). Seal launches all run on one stream, one after the other: the count of CTAs that tells the
 * last one needs that. Commits and discards are in the order of the calls: both run on store commit, a direct store
 * waits for that stream, and what follows a direct store there waits for store compute (through the seal event of each
 * burst, or explicitly). `mark` serves all joints: to wait for an event means for its newest record, and calls of one
 * engine are serialised.
 *
 * A restore's copies do not wait for the caller's stream, so that of two joined restores the second one's copies run
 * while the first one is opened. Nothing of the caller's is touched by them: they read slots, which only calls of this
 * context write (A orders those) or work that the caller names by W, and write the ring.
 */
#include "engine_cuda.h"

#define COMMIT_PAIRS 1000u /* a launch for fewer would be one more a burst */
#define URGENT_BYTES                                                                                                   \
    (8ull << 20) /* a direct store below that is over before anybody could miss the multiprocessors                    \
                  */

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

/* `first` begins after the caller's event and the batch of the other pipeline, `caller` after the caller's stream. */
static cudaError_t fork_from(kvx_cuda *engine, const kvx_batch *batch, enum kvx_cuda_stream first,
                             enum kvx_cuda_stream caller)
{
    cudaError_t error = cudaSuccess;
    if (batch->op != KVX_OP_DISCARD) {
        error = cudaEventRecord(engine->mark, batch->options->stream);
        if (error == cudaSuccess)
            error = wait_for(engine, caller, engine->mark);
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
    engine->done_tickets[batch->ticket_index] = batch->ticket;
    return error == cudaSuccess ? record(engine, batch->options->done_event, last) : error;
}

/* The caller's stream goes on after `event`. */
static cudaError_t join(const kvx_batch *batch, cudaEvent_t event)
{
    if (batch->options->hints & KVX_HINT_NO_JOIN)
        return cudaSuccess;
    return cudaStreamWaitEvent(batch->options->stream, event, 0);
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

static int is_direct(const kvx_cuda *engine, const kvx_batch *batch)
{
    return batch->op == KVX_OP_STORE && (batch->options->hints & KVX_HINT_IDLE) && engine->can_direct;
}

static int is_by_segment(const kvx_options *options)
{
    return options->n_segment_events || options->n_flags;
}

void kvx_cuda_begin_plan(kvx_cuda *engine, const kvx_batch *batch)
{
    const kvx_cuda_pace *pace = &engine->pace;
    kvx_plan_batch plan = {.pool = engine->config.pool,
                           .layouts = engine->host_layouts,
                           .pairs = batch->pairs,
                           .n = batch->n,
                           .mode = KVX_PLAN_WHOLE,
                           .ramp = batch->op == KVX_OP_STORE ? KVX_PLAN_GROW : KVX_PLAN_SHRINK,
                           .ramp_above = 2 * pace->burst_bytes,
                           .chunk_bytes = pace->chunk_bytes,
                           .burst_bytes = pace->burst_bytes};
    if (is_direct(engine, batch))
        plan.mode = KVX_PLAN_DIRECT;
    else if (batch->op == KVX_OP_RESTORE && is_by_segment(batch->options))
        plan.mode = KVX_PLAN_SEGMENTS;
    if (batch->options->hints & KVX_HINT_IDLE)
        plan.ramp_above = 2 * KVX_PLAN_RAMP_BYTES;
    kvx_plan_begin(engine->plan, &plan);
    if (engine->plan->n_bytes / KVX_CUDA_BURSTS > pace->burst_bytes)
        engine->plan->batch.burst_bytes = engine->plan->n_bytes / KVX_CUDA_BURSTS;
}

/* The place of the batch's "source released" word. Never 0: result words of pairs come first. */
static uint32_t released_result(const kvx_cuda *engine, const kvx_batch *batch)
{
    return engine->config.max_pairs + batch->ticket_index;
}

/* ----------------------------------------------------------------------------------------------------------- stores */

uint32_t kvx_cuda_places(uint64_t n_pairs)
{
    return n_pairs <= KVX_PAIRS_PER_SMALL_LAUNCH ? 1 : KVX_CUDA_LARGE_PLACES;
}

static void count_burst(kvx_cuda *engine, const kvx_burst *burst)
{
    engine->n_bursts++;
    engine->n_places += kvx_cuda_places(burst->n_pairs);
}

/* What seals or opens, on at most n_sms multiprocessors. */
static kvx_dev limited(const kvx_cuda *engine, uint32_t n_sms)
{
    kvx_dev dev = engine->dev;
    dev.n_sms = n_sms;
    return dev;
}

static cudaError_t seal_burst(kvx_cuda *engine, const kvx_batch *batch, const kvx_burst *burst, uint8_t *staged)
{
    const kvx_dev dev = limited(engine, engine->pace.burst_sms);
    kvx_work work = work_of(batch, burst);
    cudaError_t error;
    work.staged = staged;
    work.released_result = burst->ends_batch ? released_result(engine, batch) : 0;
    error = launched(engine, kvx_launch_seal(&dev, &work, batch->pairs + burst->first_pair,
                                             engine->streams[KVX_CUDA_STORE_COMPUTE]));
    return error == cudaSuccess ? order(engine, KVX_CUDA_STORE_COMPUTE, KVX_CUDA_STORE_COPY) : error;
}

static cudaError_t store_burst(kvx_cuda *engine, const kvx_batch *batch, const kvx_burst *burst)
{
    const uint32_t chunk = engine->store_ring.next;
    uint8_t *staged = engine->store_ring.dev + chunk * engine->pace.chunk_bytes;
    cudaEvent_t chunk_free = engine->store_ring.free_events[chunk];
    cudaError_t error = wait_for(engine, KVX_CUDA_STORE_COMPUTE, chunk_free);
    engine->store_ring.next = (chunk + 1) % KVX_CUDA_RING_CHUNKS;
    count_burst(engine, burst);
    if (error == cudaSuccess)
        error = seal_burst(engine, batch, burst, staged);
    if (error == cudaSuccess)
        error = kvx_cuda_copy(engine, burst, staged, 1, engine->streams[KVX_CUDA_STORE_COPY]);
    return error == cudaSuccess ? record(engine, chunk_free, KVX_CUDA_STORE_COPY) : error;
}

typedef int (*pairs_launch)(const kvx_dev *, const kvx_work *, const kvx_work_pair *, void *);

/* Launches a kernel that moves no data for pairs [first, end), on store commit. */
static cudaError_t launch_pairs(kvx_cuda *engine, const kvx_batch *batch, pairs_launch launch, uint32_t first,
                                uint32_t end)
{
    cudaError_t error = cudaSuccess;
    while (error == cudaSuccess && first < end) {
        kvx_burst burst = {.first_pair = first};
        kvx_work work;
        burst.n_pairs = end - first < KVX_PAIRS_PER_LAUNCH ? end - first : KVX_PAIRS_PER_LAUNCH;
        work = work_of(batch, &burst);
        error =
            launched(engine, launch(&engine->dev, &work, batch->pairs + first, engine->streams[KVX_CUDA_STORE_COMMIT]));
        first += burst.n_pairs;
    }
    return error;
}

/* Commits what store copy has been given up to now. */
static cudaError_t commit(kvx_cuda *engine, const kvx_batch *batch, uint32_t first, uint32_t end)
{
    const uint32_t newest = (engine->store_ring.next + KVX_CUDA_RING_CHUNKS - 1) % KVX_CUDA_RING_CHUNKS;
    cudaError_t error = wait_for(engine, KVX_CUDA_STORE_COMMIT, engine->store_ring.free_events[newest]);
    return error == cudaSuccess ? launch_pairs(engine, batch, kvx_launch_commit, first, end) : error;
}

static cudaError_t store_staged(kvx_cuda *engine, const kvx_batch *batch)
{
    uint32_t committed = 0;
    cudaError_t error = cudaSuccess;
    kvx_burst burst;
    if (batch->n == 0)
        return order(engine, KVX_CUDA_STORE_COMPUTE, KVX_CUDA_STORE_COMMIT);
    while (error == cudaSuccess && kvx_plan_next(engine->plan, &burst)) {
        const uint32_t end = burst.first_pair + burst.n_pairs;
        error = store_burst(engine, batch, &burst);
        if (error != cudaSuccess || (!burst.ends_batch && end - committed < COMMIT_PAIRS))
            continue;
        error = commit(engine, batch, committed, end);
        committed = end;
    }
    atomic_fetch_add(&engine->n_store_bursts, engine->n_bursts);
    return error;
}

static cudaError_t store_direct(kvx_cuda *engine, const kvx_batch *batch)
{
    const int urgent = engine->plan->n_bytes < URGENT_BYTES && engine->config.direct_sms == 0;
    const kvx_dev dev = limited(engine, urgent ? engine->dev.n_sms : engine->pace.direct_sms);
    cudaError_t error = cudaSuccess;
    kvx_burst burst;
    if (engine->store_tail != KVX_CUDA_STORE_COMPUTE)
        error = order(engine, KVX_CUDA_STORE_COMMIT, KVX_CUDA_STORE_COMPUTE);
    while (error == cudaSuccess && kvx_plan_next(engine->plan, &burst)) {
        kvx_work work = work_of(batch, &burst);
        work.commit = 1;
        work.released_result = burst.ends_batch ? released_result(engine, batch) : 0;
        error = launched(engine, kvx_launch_seal(&dev, &work, batch->pairs + burst.first_pair,
                                                 engine->streams[KVX_CUDA_STORE_COMPUTE]));
        count_burst(engine, &burst);
    }
    atomic_fetch_add(&engine->n_direct_launches, engine->n_bursts);
    return error;
}

/* What follows the last seal on store compute is "released": copies and commits are on other streams. Of a staged
 * store `mark` is that place already: its last burst was handed on there. */
static cudaError_t enqueue_store(kvx_cuda *engine, const kvx_batch *batch)
{
    const int direct = is_direct(engine, batch);
    const enum kvx_cuda_stream last = direct ? KVX_CUDA_STORE_COMPUTE : KVX_CUDA_STORE_COMMIT;
    cudaError_t error = fork_from(engine, batch, KVX_CUDA_STORE_COMPUTE, KVX_CUDA_STORE_COMPUTE);
    if (error == cudaSuccess)
        error = direct ? store_direct(engine, batch) : store_staged(engine, batch);
    if (error == cudaSuccess)
        error = record(engine, batch->options->released_event, KVX_CUDA_STORE_COMPUTE);
    if (error == cudaSuccess)
        error = finish(engine, batch, last);
    if (error == cudaSuccess)
        error = join(batch, direct ? engine->done[batch->ticket_index] : engine->mark);
    if (error == cudaSuccess)
        engine->store_tail = last;
    return error;
}

static cudaError_t enqueue_discard(kvx_cuda *engine, const kvx_batch *batch)
{
    cudaError_t error = fork_from(engine, batch, KVX_CUDA_STORE_COMMIT, KVX_CUDA_STORE_COMMIT);
    if (error == cudaSuccess && engine->store_tail == KVX_CUDA_STORE_COMPUTE)
        error = order(engine, KVX_CUDA_STORE_COMPUTE, KVX_CUDA_STORE_COMMIT);
    if (error == cudaSuccess)
        error = launch_pairs(engine, batch, kvx_launch_discard, 0, batch->n);
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
    const kvx_dev dev = limited(engine, engine->pace.burst_sms);
    kvx_work work = work_of(batch, burst);
    cudaError_t error = wait_for(engine, KVX_CUDA_RESTORE_COPY, chunk_free);
    work.staged = engine->restore_ring.dev + chunk * engine->pace.chunk_bytes;
    engine->restore_ring.next = (chunk + 1) % KVX_CUDA_RING_CHUNKS;
    count_burst(engine, burst);
    if (error == cudaSuccess)
        error = kvx_cuda_copy(engine, burst, work.staged, 0, engine->streams[KVX_CUDA_RESTORE_COPY]);
    if (error == cudaSuccess)
        error = order(engine, KVX_CUDA_RESTORE_COPY, KVX_CUDA_RESTORE_COMPUTE);
    if (error == cudaSuccess)
        error = launched(engine, kvx_launch_open(&dev, &work, batch->pairs + burst->first_pair, compute_stream));
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
    engine->n_places += first < end_flags;
    if (error == cudaSuccess && first < end_flags)
        error = launched(engine, kvx_launch_flags(options->dev_flags, first, end_flags - first, options->flag_value,
                                                  engine->streams[KVX_CUDA_RESTORE_COMPUTE]));
    return error;
}

static cudaError_t restore_bursts(kvx_cuda *engine, const kvx_batch *batch)
{
    const kvx_options *options = batch->options;
    uint32_t announced = 0;
    cudaError_t error = cudaSuccess;
    kvx_burst burst;
    if (batch->n == 0)
        error = order(engine, KVX_CUDA_RESTORE_COPY, KVX_CUDA_RESTORE_COMPUTE);
    while (error == cudaSuccess && kvx_plan_next(engine->plan, &burst)) {
        error = restore_burst(engine, batch, &burst);
        if (error != cudaSuccess || !burst.ends_run || burst.ends_batch)
            continue;
        error = announce(engine, options, announced, burst.run_end);
        announced = burst.run_end;
    }
    atomic_fetch_add(&engine->n_restore_bursts, engine->n_bursts);
    return error == cudaSuccess ? announce(engine, options, announced, UINT32_MAX) : error;
}

static cudaError_t enqueue_restore(kvx_cuda *engine, const kvx_batch *batch)
{
    cudaError_t error = fork_from(engine, batch, KVX_CUDA_RESTORE_COPY, KVX_CUDA_RESTORE_COMPUTE);
    if (error == cudaSuccess)
        error = restore_bursts(engine, batch);
    if (error == cudaSuccess)
        error = finish(engine, batch, KVX_CUDA_RESTORE_COMPUTE);
    return error == cudaSuccess ? join(batch, engine->done[batch->ticket_index]) : error;
}

cudaError_t kvx_cuda_enqueue(kvx_cuda *engine, const kvx_batch *batch)
{
    static cudaError_t (*const enqueues[])(kvx_cuda *, const kvx_batch *) = {
        [KVX_OP_STORE] = enqueue_store, [KVX_OP_RESTORE] = enqueue_restore, [KVX_OP_DISCARD] = enqueue_discard};
    return enqueues[batch->op](engine, batch);
}
