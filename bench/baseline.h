/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_BENCH_BASELINE_H
#define KVX_BENCH_BASELINE_H
/*
 * Plaintext movers of the same bytes in the same pieces, to set sealed offload beside. Each is written to be as fast as
 * it can be: lists of pieces are made beforehand, host blocks that adjoin travel in one copy.
 */
#include "device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct baseline_shape {
    uint8_t *dev_base;     /* lane l of block b is the piece at dev_base + (l * n_blocks + b) * piece_bytes */
    uint8_t **host_blocks; /* one for each block, n_lanes * piece_bytes long; ascending addresses travel fastest */
    uint32_t n_blocks;
    uint32_t n_lanes;
    uint64_t piece_bytes;
} baseline_shape;

typedef enum baseline_way { BASELINE_OUT, BASELINE_IN } baseline_way;

typedef struct baseline baseline;

/* One way of copying. run() is complete on return and may be timed with the host's clock. */
typedef struct baseline_kind {
    const char *name;
    const char *about;
    bool (*run)(baseline *b, baseline_way way);
} baseline_kind;

/* The kinds of this device, the piecewise copy first. */
const baseline_kind *baseline_kinds(const device *dev, uint32_t *n_kinds);

/* Prepares for all kinds of the device. The shape's arrays must live as long. */
bool baseline_open(device *dev, const baseline_shape *shape, baseline **made);
void baseline_close(baseline *b);

/* Blocks from `first` on, at most `limit`, whose host memory adjoins. */
uint32_t baseline_run_length(const baseline_shape *shape, uint32_t first, uint32_t limit);

#if KVX_WITH_CUDA
const baseline_kind *baseline_cuda_kinds(uint32_t *n_kinds);
bool baseline_cuda_open(const baseline_shape *shape, baseline **made);
void baseline_cuda_close(baseline *b);
#endif

struct baseline {
    baseline_shape shape;
    device *dev;
};

#ifdef __cplusplus
}
#endif
#endif
