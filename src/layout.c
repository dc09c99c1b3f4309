/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts: from the caller's lanes to the geometry that the device reads. Everything that could make a kernel touch a
 * wrong address, or two lanes write one byte, is refused here. */
#include <stdlib.h>
#include <string.h>

#include "../kernels/hd.h"
#include "../kernels/prf.h"
#include "context.h"

/* Rows that follow each other without a gap are one row; the rest of the library sees only the merged form. */
static kvx_lane merged(const kvx_lane *lane)
{
    kvx_lane result = *lane;
    if (lane->n_rows > 1 && lane->row_stride == lane->row_bytes) {
        result.row_bytes = lane->row_bytes * lane->n_rows;
        result.n_rows = 1;
    }
    if (result.n_rows == 1)
        result.row_stride = result.row_bytes;
    return result;
}

static uint64_t row_span(const kvx_lane *lane)
{
    return (lane->n_rows - 1) * lane->row_stride + lane->row_bytes;
}

static uint64_t lane_extent(const kvx_lane *lane)
{
    return (lane->n_blocks - 1) * lane->block_stride + row_span(lane);
}

/* Multiplications in row_span and lane_extent cannot overflow: each factor and sum is bounded. */
static kvx_status check_size(const kvx_lane *given, uint32_t i)
{
    const uint64_t limit = 1ull << 46;
    if (!given->dev_base)
        return kvx_note(KVX_INVALID, "lane %u: dev_base is NULL", i);
    if (given->n_blocks == 0 || given->n_rows == 0 || given->row_bytes == 0)
        return kvx_note(KVX_INVALID, "lane %u: n_blocks, n_rows and row_bytes must not be 0", i);
    if (given->row_bytes > KVX_UNIT_BYTES_LIMIT || given->row_bytes * given->n_rows > KVX_UNIT_BYTES_LIMIT)
        return kvx_note(KVX_INVALID, "lane %u: more than %u bytes a block", i, KVX_UNIT_BYTES_LIMIT);
    if ((given->n_rows > 1 && given->row_stride > limit / given->n_rows) ||
        given->block_stride > limit / given->n_blocks || (uintptr_t)given->dev_base > (1ull << 62))
        return kvx_note(KVX_INVALID, "lane %u: strides reach beyond any address", i);
    return KVX_OK;
}

static kvx_status check_alignment(const kvx_lane *lane, uint32_t i)
{
    uint64_t bits = (uintptr_t)lane->dev_base | lane->row_bytes | lane->row_stride;
    if (lane->n_blocks > 1)
        bits |= lane->block_stride;
    if (bits % KVX_WORD_ALIGN)
        return kvx_note(KVX_INVALID, "lane %u: base, strides and row_bytes must be multiples of %u", i, KVX_WORD_ALIGN);
    return KVX_OK;
}

/* Does an interval of `bytes_b` at distance `distance` + k * stride (any |k| < n) meet one of `bytes_a` at 0? */
static int meets(int64_t distance, uint64_t bytes_a, uint64_t bytes_b, uint64_t stride, uint32_t n)
{
    int64_t step = (int64_t)stride, limit = step ? (int64_t)n - 1 : 0, room = -(int64_t)bytes_b - distance, t = 0, at;
    if (step) {
        t = room / step - (room % step < 0) + 1; /* the first with distance + t * step > -bytes_b */
        if (t < -limit)
            t = -limit;
    }
    at = distance + t * step;
    return t <= limit && at > -(int64_t)bytes_b && at < (int64_t)bytes_a;
}

static int overlaps_itself(const kvx_lane *lane)
{
    uint32_t r;
    if (lane->n_blocks > 1 && lane->block_stride < lane->row_bytes)
        return 1;
    if (lane->n_rows > 1 && lane->row_stride < lane->row_bytes)
        return 1;
    for (r = 1; r < lane->n_rows; r++)
        if (meets((int64_t)(r * lane->row_stride), lane->row_bytes, lane->row_bytes, lane->block_stride,
                  lane->n_blocks))
            return 1;
    return 0;
}

/* Lanes that interleave with one block stride: compare every row of the one with every row of the other. */
static int rows_overlap(const kvx_lane *a, const kvx_lane *b, uint32_t n_blocks)
{
    int64_t base = (int64_t)((uintptr_t)b->dev_base - (uintptr_t)a->dev_base);
    uint32_t i, j;
    for (i = 0; i < a->n_rows; i++)
        for (j = 0; j < b->n_rows; j++) {
            int64_t distance = base + (int64_t)(j * b->row_stride) - (int64_t)(i * a->row_stride);
            if (meets(distance, a->row_bytes, b->row_bytes, a->block_stride, n_blocks))
                return 1;
        }
    return 0;
}

static int lanes_overlap(const kvx_lane *a, const kvx_lane *b)
{
    const uint64_t pairs_limit = 1u << 22;
    uintptr_t start_a = (uintptr_t)a->dev_base, start_b = (uintptr_t)b->dev_base;
    if (start_a + lane_extent(a) <= start_b || start_b + lane_extent(b) <= start_a)
        return 0;
    /* Unlike strides that interleave cannot be compared cheaply; no engine lays tensors out so. */
    if (a->block_stride != b->block_stride || (uint64_t)a->n_rows * b->n_rows > pairs_limit)
        return 1;
    return rows_overlap(a, b, a->n_blocks > b->n_blocks ? a->n_blocks : b->n_blocks);
}

static kvx_status check_overlaps(const kvx_lane *lanes, uint32_t n)
{
    uint32_t i, j;
    for (i = 0; i < n; i++) {
        if (overlaps_itself(&lanes[i]))
            return kvx_note(KVX_INVALID, "lane %u overlaps itself: look at its strides", i);
        for (j = 0; j < i; j++)
            if (lanes_overlap(&lanes[i], &lanes[j]))
                return kvx_note(KVX_INVALID, "lanes %u and %u overlap", j, i);
    }
    return KVX_OK;
}

static kvx_status check_segments(const kvx_lane *lanes, uint32_t n)
{
    uint32_t i, expected = 0;
    for (i = 0; i < n; i++) {
        if (i > 0 && lanes[i].segment == expected + 1)
            expected++;
        if (lanes[i].segment != expected)
            return kvx_note(KVX_INVALID, "lane %u: segments must be 0, 1, 2, .. in lane order, found %u", i,
                            lanes[i].segment);
    }
    if (expected >= KVX_UNITS_LIMIT)
        return kvx_note(KVX_INVALID, "more than %u segments", KVX_UNITS_LIMIT);
    return KVX_OK;
}

static kvx_status check_lanes(const kvx_layout_desc *desc, kvx_lane *lanes)
{
    uint32_t i;
    if (!desc->lanes || desc->n_lanes == 0 || desc->n_lanes > KVX_LANES_LIMIT)
        return kvx_note(KVX_INVALID, "a layout has 1 .. %u lanes", KVX_LANES_LIMIT);
    for (i = 0; i < desc->n_lanes; i++) {
        KVX_TRY(check_size(&desc->lanes[i], i));
        lanes[i] = merged(&desc->lanes[i]);
        KVX_TRY(check_alignment(&lanes[i], i));
    }
    KVX_TRY(check_segments(lanes, desc->n_lanes));
    return check_overlaps(lanes, desc->n_lanes);
}

/* Identity of the sealed form: what a block is made of, not where it lies. Nobody hostile chooses layouts, so a keyed
 * hash with a fixed key is enough. */
static uint64_t fingerprint(const kvx_layout_desc *desc)
{
    uint64_t key[2] = {0x6b76782d6c61796full, 0};
    uint32_t i;
    key[1] = kvx_prf(key, desc->binding, desc->n_lanes);
    for (i = 0; i < desc->n_lanes; i++) {
        const kvx_lane *lane = &desc->lanes[i];
        key[1] = kvx_prf(key, (uint64_t)lane->segment << 32 | lane->n_rows, lane->row_bytes);
    }
    return key[1];
}

static int lane_aligned16(const kvx_dev_lane *lane)
{
    return (lane->base | lane->block_stride | lane->row_stride | lane->row_bytes) % 16 == 0;
}

static void add_lane(kvx_dev_segment *segment, kvx_dev_lane *out, const kvx_lane *lane)
{
    memset(out, 0, sizeof *out);
    out->base = (uintptr_t)lane->dev_base;
    out->block_stride = lane->n_blocks > 1 ? lane->block_stride : 0;
    out->row_stride = lane->row_stride;
    out->row_bytes = (uint32_t)lane->row_bytes;
    out->n_rows = lane->n_rows;
    out->unit_offset = segment->plain_bytes;
    segment->plain_bytes += out->row_bytes * out->n_rows;
    segment->n_lanes++;
    segment->aligned &= (uint32_t)lane_aligned16(out);
}

/* Lays units one after the other. Sizes stay below 2^32: each lane was bounded, the sum is checked by the caller. */
static kvx_status build(kvx_dev_layout *geometry, kvx_dev_lane *out, kvx_dev_segment *segments, const kvx_lane *lanes)
{
    uint64_t sealed = 0;
    uint32_t i;
    geometry->n_blocks = UINT32_MAX;
    for (i = 0; i < geometry->n_lanes; i++) {
        kvx_dev_segment *segment = &segments[lanes[i].segment];
        if (segment->n_lanes == 0) {
            segment->first_lane = i;
            segment->slot_offset = (uint32_t)sealed;
            segment->aligned = 1;
        }
        add_lane(segment, &out[i], &lanes[i]);
        if (segment->plain_bytes > KVX_UNIT_BYTES_LIMIT)
            return kvx_note(KVX_INVALID, "segment %u has more than %u bytes", lanes[i].segment, KVX_UNIT_BYTES_LIMIT);
        segment->bytes = (segment->plain_bytes + KVX_UNIT_ALIGN - 1) / KVX_UNIT_ALIGN * KVX_UNIT_ALIGN;
        if (i + 1 == geometry->n_lanes || lanes[i + 1].segment != lanes[i].segment)
            sealed += segment->bytes;
        if (sealed > KVX_SLOT_BYTES_MAX)
            return kvx_note(KVX_INVALID, "a block has more than %u bytes", KVX_SLOT_BYTES_MAX);
        if (lanes[i].n_blocks < geometry->n_blocks)
            geometry->n_blocks = lanes[i].n_blocks;
    }
    geometry->sealed_bytes = (uint32_t)sealed;
    return KVX_OK;
}

void kvx_layout_free(kvx_layout *layout)
{
    free((void *)(uintptr_t)layout->geometry.lanes);
    free((void *)(uintptr_t)layout->geometry.segments);
    free(layout->block_marks);
    free(layout);
}

static kvx_status layout_new(kvx_ctx *ctx, const kvx_layout_desc *desc, const kvx_lane *lanes, kvx_layout **result)
{
    kvx_layout *layout = calloc(1, sizeof *layout);
    kvx_dev_layout *geometry;
    kvx_status status;
    kvx_dev_lane *dev_lanes = calloc(desc->n_lanes, sizeof *dev_lanes);
    kvx_dev_segment *segments = calloc(lanes[desc->n_lanes - 1].segment + 1, sizeof *segments);
    if (!layout || !dev_lanes || !segments) {
        status = kvx_note(KVX_NO_MEMORY, "no memory for a layout of %u lanes", desc->n_lanes);
        goto free_parts;
    }
    geometry = &layout->geometry;
    geometry->n_lanes = desc->n_lanes;
    geometry->n_segments = lanes[desc->n_lanes - 1].segment + 1;
    geometry->fingerprint = fingerprint(desc);
    status = build(geometry, dev_lanes, segments, lanes);
    if (status != KVX_OK)
        goto free_parts;
    layout->block_marks = calloc(geometry->n_blocks, sizeof *layout->block_marks);
    if (!layout->block_marks) {
        status = kvx_note(KVX_NO_MEMORY, "no memory for a layout of %u blocks", geometry->n_blocks);
        goto free_parts;
    }
    geometry->lanes = dev_lanes;
    geometry->segments = segments;
    layout->ctx = ctx;
    *result = layout;
    return KVX_OK;
free_parts:
    free(segments);
    free(dev_lanes);
    free(layout);
    return status;
}

static kvx_status layout_install(kvx_ctx *ctx, kvx_layout *layout)
{
    uint32_t i;
    uint32_t index = ctx->next_layout; /* the one given up longest ago: late units of the old one find it empty */
    for (i = 0; i < ctx->max_layouts && ctx->layouts[index]; i++)
        index = (index + 1) % ctx->max_layouts;
    if (i == ctx->max_layouts)
        return kvx_note(KVX_AGAIN, "all %u layouts are in use: raise max_layouts or destroy one", ctx->max_layouts);
    layout->index = index;
    KVX_TRY(ctx->ops->layout_set(ctx->engine, index, &layout->geometry));
    ctx->layouts[index] = layout;
    ctx->next_layout = (index + 1) % ctx->max_layouts;
    return KVX_OK;
}

kvx_status kvx_layout_create(kvx_ctx *ctx, const kvx_layout_desc *desc, kvx_layout **layout)
{
    kvx_layout_desc own;
    kvx_layout *made = NULL;
    kvx_lane *lanes;
    kvx_status status;
    KVX_TRY(kvx_ctx_alive(ctx));
    if (!layout)
        return kvx_note(KVX_INVALID, "layout is NULL");
    KVX_TRY(kvx_copy_sized(&own, sizeof own, desc, "kvx_layout_desc"));
    lanes = calloc(KVX_LANES_LIMIT, sizeof *lanes);
    if (!lanes)
        return kvx_note(KVX_NO_MEMORY, "no memory to check a layout");
    status = check_lanes(&own, lanes);
    if (status == KVX_OK)
        status = layout_new(ctx, &own, lanes, &made);
    free(lanes);
    if (status != KVX_OK)
        return status;
    pthread_mutex_lock(&ctx->submit);
    status = layout_install(ctx, made);
    pthread_mutex_unlock(&ctx->submit);
    if (status != KVX_OK) {
        kvx_layout_free(made);
        return status;
    }
    *layout = made;
    return KVX_OK;
}

void kvx_layout_info(const kvx_layout *layout, uint64_t *sealed_bytes, uint32_t *n_segments)
{
    if (sealed_bytes)
        *sealed_bytes = layout ? layout->geometry.sealed_bytes : 0;
    if (n_segments)
        *n_segments = layout ? layout->geometry.n_segments : 0;
}

kvx_status kvx_layout_destroy(kvx_layout *layout)
{
    kvx_ctx *ctx;
    uint32_t n_running;
    int lost;
    kvx_status status = KVX_OK;
    if (!layout)
        return KVX_OK;
    ctx = layout->ctx;
    KVX_TRY(kvx_ctx_alive(ctx));
    pthread_mutex_lock(&ctx->submit);
    pthread_mutex_lock(&ctx->book);
    kvx_ticket_reap(ctx);
    n_running = layout->n_running;
    pthread_mutex_unlock(&ctx->book);
    lost = atomic_load(&ctx->lost);
    if (n_running && !lost)
        status = kvx_note(KVX_AGAIN, "%u blocks of the layout are in flight: wait for their tickets", n_running);
    if (n_running && lost) { /* late words may still name it: the context keeps it until it is destroyed */
        pthread_mutex_unlock(&ctx->submit);
        return KVX_OK;
    }
    if (status == KVX_OK) {
        (void)ctx->ops->layout_set(ctx->engine, layout->index, NULL);
        ctx->layouts[layout->index] = NULL;
    }
    pthread_mutex_unlock(&ctx->submit);
    if (status == KVX_OK)
        kvx_layout_free(layout);
    return status;
}
