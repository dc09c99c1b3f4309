/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU engine's plaintext baselines: memcpy, piece by piece and in long runs. */
#include "baseline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t baseline_block_bytes(const baseline_shape *shape)
{
    uint64_t n_bytes = 0;
    uint32_t lane;
    for (lane = 0; lane < shape->n_lanes; lane++)
        n_bytes += shape->lane_bytes[lane];
    return n_bytes;
}

uint32_t baseline_run_length(const baseline *b, uint32_t first, uint32_t limit)
{
    uint32_t n = b->run_ends[first] - first;
    return n < limit ? n : limit;
}

/* Blocks that adjoin and were pinned together. */
static bool list_runs(baseline *b)
{
    uint8_t *const *blocks = b->shape.host_blocks;
    uint32_t i, n = b->shape.n_blocks;
    b->run_ends = calloc(n, sizeof(*b->run_ends));
    if (!b->run_ends)
        return false;
    for (i = n; i-- > 0;) {
        bool joined = i + 1 < n && blocks[i + 1] == blocks[i] + b->block_bytes &&
                      device_host_span(b->dev, blocks[i]) > b->block_bytes;
        b->run_ends[i] = joined ? b->run_ends[i + 1] : i + 1;
    }
    return true;
}

static void move(void *dev, void *host, uint64_t n_bytes, baseline_way way)
{
    memcpy(way == BASELINE_OUT ? host : dev, way == BASELINE_OUT ? dev : host, n_bytes);
}

static void move_block(const baseline_shape *s, uint32_t block, baseline_way way)
{
    uint8_t *lane_at = s->dev_base, *host = s->host_blocks[block];
    uint32_t lane;
    for (lane = 0; lane < s->n_lanes; lane++) {
        move(lane_at + block * s->lane_bytes[lane], host, s->lane_bytes[lane], way);
        lane_at += s->n_blocks * s->lane_bytes[lane];
        host += s->lane_bytes[lane];
    }
}

static bool run_pieces(baseline *b, const baseline_work *work)
{
    uint32_t i;
    for (i = 0; i < work->n; i++)
        move_block(&b->shape, work->first + i, work->way);
    return true;
}

static bool run_contiguous(baseline *b, const baseline_work *work)
{
    const baseline_shape *s = &b->shape;
    uint32_t at, n, end = work->first + work->n;
    for (at = work->first; at < end; at += n) {
        n = baseline_run_length(b, at, end - at);
        move(s->dev_base + at * b->block_bytes, s->host_blocks[at], n * b->block_bytes, work->way);
    }
    return true;
}

static const baseline_kind cpu_kinds[] = {
    {"plain_pieces", "memcpy of every piece", run_pieces, false},
    {"plain_contiguous", "memcpy of everything in long runs", run_contiguous, true},
};

const baseline_kind *baseline_kinds(const device *dev, uint32_t *n_kinds)
{
#if KVX_WITH_CUDA
    if (dev->engine == KVX_ENGINE_CUDA)
        return baseline_cuda_kinds(n_kinds);
#endif
    (void)dev;
    *n_kinds = sizeof(cpu_kinds) / sizeof(cpu_kinds[0]);
    return cpu_kinds;
}

bool baseline_open(device *dev, const baseline_shape *shape, baseline **made)
{
    baseline *b = NULL;
#if KVX_WITH_CUDA
    if (dev->engine == KVX_ENGINE_CUDA && !baseline_cuda_open(shape, &b))
        return false;
#endif
    if (!b)
        b = calloc(1, sizeof(*b));
    if (b) {
        b->dev = dev;
        b->shape = *shape;
        b->block_bytes = baseline_block_bytes(shape);
    }
    if (!b || !list_runs(b)) {
        fprintf(stderr, "no memory for the baselines: try a smaller --bytes\n");
        baseline_close(b);
        return false;
    }
    *made = b;
    return true;
}

void baseline_close(baseline *b)
{
    if (!b)
        return;
    free(b->run_ends);
#if KVX_WITH_CUDA
    if (b->dev->engine == KVX_ENGINE_CUDA) {
        baseline_cuda_close(b);
        return;
    }
#endif
    free(b);
}
