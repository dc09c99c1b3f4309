/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU engine's plaintext baselines: memcpy, piece by piece and in long runs. */
#include "baseline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t baseline_run_length(const baseline_shape *shape, uint32_t first, uint32_t limit)
{
    uint64_t block_bytes = shape->n_lanes * shape->piece_bytes;
    uint32_t n = 1;
    while (n < limit && first + n < shape->n_blocks &&
           shape->host_blocks[first + n] == shape->host_blocks[first + n - 1] + block_bytes)
        n++;
    return n;
}

static void move(void *dev, void *host, uint64_t n_bytes, baseline_way way)
{
    memcpy(way == BASELINE_OUT ? host : dev, way == BASELINE_OUT ? dev : host, n_bytes);
}

static bool run_pieces(baseline *b, baseline_way way)
{
    const baseline_shape *s = &b->shape;
    uint64_t lane_bytes = s->n_blocks * s->piece_bytes;
    uint32_t block, lane;
    for (block = 0; block < s->n_blocks; block++)
        for (lane = 0; lane < s->n_lanes; lane++)
            move(s->dev_base + lane * lane_bytes + block * s->piece_bytes,
                 s->host_blocks[block] + lane * s->piece_bytes, s->piece_bytes, way);
    return true;
}

static bool run_contiguous(baseline *b, baseline_way way)
{
    const baseline_shape *s = &b->shape;
    uint64_t block_bytes = s->n_lanes * s->piece_bytes;
    uint32_t first, n;
    for (first = 0; first < s->n_blocks; first += n) {
        n = baseline_run_length(s, first, UINT32_MAX);
        move(s->dev_base + first * block_bytes, s->host_blocks[first], n * block_bytes, way);
    }
    return true;
}

static const baseline_kind cpu_kinds[] = {
    {"plain_pieces", "memcpy of every piece", run_pieces},
    {"plain_contiguous", "memcpy of everything in long runs", run_contiguous},
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
    if (dev->engine == KVX_ENGINE_CUDA) {
        if (!baseline_cuda_open(shape, &b))
            return false;
    }
#endif
    if (!b)
        b = calloc(1, sizeof(*b));
    if (!b) {
        fprintf(stderr, "no memory for the baselines: try a smaller --bytes\n");
        return false;
    }
    b->dev = dev;
    b->shape = *shape;
    *made = b;
    return true;
}

void baseline_close(baseline *b)
{
#if KVX_WITH_CUDA
    if (b && b->dev->engine == KVX_ENGINE_CUDA) {
        baseline_cuda_close(b);
        return;
    }
#endif
    free(b);
}
