/* SPDX-License-Identifier: Apache-2.0 */
/* The planner. A pair's units lie one after the other in slot and ring alike, so a run of its segments is one piece;
 * pieces of neighbouring slots become one copy where nothing lies between them, neither in the pool nor in the ring. */
#include "plan.h"

#include <string.h>

static const kvx_dev_layout *layout_of(const kvx_plan *plan, uint32_t pair)
{
    return &plan->batch.layouts[plan->batch.pairs[pair].layout];
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* End of segments [first, end) as far as the pair has them; equal to `first` if it has none. */
static uint32_t segments_end(const kvx_plan *plan, uint32_t pair, uint32_t first, uint32_t end)
{
    uint32_t n_segments = layout_of(plan, pair)->n_segments;
    return n_segments <= first ? first : smaller(end, n_segments);
}

/* Sealed bytes of the pair's segments [first, end). */
static uint64_t piece_bytes(const kvx_plan *plan, uint32_t pair, uint32_t first, uint32_t end)
{
    const kvx_dev_segment *segments = layout_of(plan, pair)->segments;
    end = segments_end(plan, pair, first, end);
    if (end == first)
        return 0;
    return (uint64_t)segments[end - 1].slot_offset + segments[end - 1].bytes - segments[first].slot_offset;
}

static const kvx_dev_class *class_of(const kvx_pool_view *pool, uint32_t slot)
{
    uint32_t i;
    for (i = 0; i + 1 < pool->n_classes; i++)
        if (slot - pool->classes[i].first_slot < pool->classes[i].n_slots)
            break;
    return &pool->classes[i];
}

/* Where the pair's piece lies in the pool; ring_offset is left to the caller. */
static kvx_plan_copy piece_of(const kvx_plan *plan, uint32_t pair, uint64_t bytes)
{
    uint32_t slot = plan->batch.pairs[pair].slot;
    const kvx_dev_class *slot_class = class_of(plan->batch.pool, slot);
    uint32_t index = slot - slot_class->first_slot;
    kvx_plan_copy copy = {0};
    copy.chunk = slot_class->first_chunk + index / slot_class->slots_per_chunk;
    copy.pool_offset = (uint64_t)(index % slot_class->slots_per_chunk) * slot_class->slot_bytes +
                       layout_of(plan, pair)->segments[plan->run_first].slot_offset;
    copy.bytes = bytes;
    return copy;
}

/* Do the segments [run_first, end) of all pairs together carry enough? */
static int run_suffices(const kvx_plan *plan, uint32_t end)
{
    uint64_t sum = 0;
    uint32_t i;
    for (i = 0; i < plan->batch.n && sum < KVX_PLAN_RUN_BYTES; i++)
        sum += piece_bytes(plan, i, plan->run_first, end);
    return sum >= KVX_PLAN_RUN_BYTES;
}

/* Makes the run that begins at run_first: as long as everything before it, at least 1, at least RUN_BYTES. */
static void choose_run(kvx_plan *plan)
{
    uint32_t n = plan->run_first ? plan->run_first : 1;
    if (plan->batch.mode != KVX_PLAN_SEGMENTS)
        n = plan->n_segments;
    plan->run_end = smaller(plan->run_first + n, plan->n_segments);
    while (plan->run_end < plan->n_segments && !run_suffices(plan, plan->run_end))
        plan->run_end++;
    plan->next_pair = 0;
}

/* Pairs without a segment in the run need no burst. */
static void skip_empty(kvx_plan *plan)
{
    while (plan->next_pair < plan->batch.n &&
           segments_end(plan, plan->next_pair, plan->run_first, plan->run_end) == plan->run_first)
        plan->next_pair++;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* What the next burst may hold for the ramp's sake. */
static uint64_t ramp_limit(const kvx_plan *plan)
{
    const uint64_t least = KVX_PLAN_RAMP_BYTES, left = plan->n_bytes - plan->n_taken;
    const uint64_t factor = KVX_PLAN_RAMP_FACTOR;
    if (plan->n_bytes <= plan->batch.ramp_above)
        return UINT64_MAX;
    if (plan->batch.ramp == KVX_PLAN_GROW)
        return larger(plan->n_taken * factor, least);
    if (plan->batch.ramp == KVX_PLAN_SHRINK && left > 2 * least)
        return larger(left * factor / (factor + 1), least);
    return UINT64_MAX;
}

/* Bytes that the next burst may hold if it has more than one pair. */
static uint64_t burst_limit(const kvx_plan *plan)
{
    const kvx_plan_batch *batch = &plan->batch;
    const uint64_t ramp = ramp_limit(plan);
    uint64_t limit = batch->burst_bytes;
    if (limit == 0 || limit > batch->chunk_bytes)
        limit = batch->chunk_bytes;
    return ramp < limit ? ramp : limit;
}

/* Takes pairs while they fit a launch and, staged, the burst. */
static void take_pairs(kvx_plan *plan, kvx_burst *burst)
{
    const uint64_t limit = burst_limit(plan);
    int staged = plan->batch.mode != KVX_PLAN_DIRECT;
    while (plan->next_pair < plan->batch.n && burst->n_pairs < KVX_PAIRS_PER_LAUNCH) {
        uint32_t end = segments_end(plan, plan->next_pair, plan->run_first, plan->run_end);
        uint64_t bytes = piece_bytes(plan, plan->next_pair, plan->run_first, plan->run_end);
        uint64_t stride = (bytes + KVX_UNIT_ALIGN - 1) & ~(uint64_t)(KVX_UNIT_ALIGN - 1);
        if (stride < burst->staged_stride || !staged)
            stride = burst->staged_stride;
        if (burst->n_pairs && (burst->n_pairs + 1) * stride > limit)
            break;
        burst->staged_stride = stride;
        if (end - plan->run_first > burst->n_segments)
            burst->n_segments = end - plan->run_first;
        burst->n_pairs++;
        plan->next_pair++;
        plan->n_taken += bytes;
    }
}

static int follows(const kvx_plan_copy *last, const kvx_plan_copy *next)
{
    return last->chunk == next->chunk && last->pool_offset + last->bytes == next->pool_offset &&
           last->ring_offset + last->bytes == next->ring_offset;
}

static void list_copies(kvx_plan *plan, kvx_burst *burst)
{
    uint32_t i;
    for (i = 0; i < burst->n_pairs; i++) {
        uint64_t bytes = piece_bytes(plan, burst->first_pair + i, plan->run_first, plan->run_end);
        kvx_plan_copy copy;
        if (bytes == 0)
            continue;
        copy = piece_of(plan, burst->first_pair + i, bytes);
        copy.ring_offset = i * burst->staged_stride;
        if (burst->n_copies && follows(&plan->copies[burst->n_copies - 1], &copy))
            plan->copies[burst->n_copies - 1].bytes += bytes;
        else
            plan->copies[burst->n_copies++] = copy;
    }
    burst->copies = plan->copies;
}

void kvx_plan_begin(kvx_plan *plan, const kvx_plan_batch *batch)
{
    uint32_t i;
    plan->batch = *batch;
    plan->n_segments = 0;
    plan->n_bytes = 0;
    plan->n_taken = 0;
    for (i = 0; i < batch->n; i++) {
        const kvx_dev_layout *layout = layout_of(plan, i);
        if (layout->n_segments > plan->n_segments)
            plan->n_segments = layout->n_segments;
        plan->n_bytes += layout->sealed_bytes;
    }
    plan->run_first = 0;
    plan->run_end = 0;
    plan->next_pair = batch->n; /* the first call begins the first run */
}

int kvx_plan_next(kvx_plan *plan, kvx_burst *burst)
{
    memset(burst, 0, sizeof *burst);
    if (plan->next_pair == plan->batch.n) {
        if (plan->run_end == plan->n_segments)
            return 0;
        plan->run_first = plan->run_end;
        choose_run(plan);
        skip_empty(plan);
    }
    burst->first_pair = plan->next_pair;
    burst->first_segment = plan->run_first;
    burst->run_end = plan->run_end;
    take_pairs(plan, burst);
    if (plan->batch.mode != KVX_PLAN_DIRECT)
        list_copies(plan, burst);
    skip_empty(plan);
    burst->ends_run = plan->next_pair == plan->batch.n;
    burst->ends_batch = burst->ends_run && plan->run_end == plan->n_segments;
    return 1;
}
