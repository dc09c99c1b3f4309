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
    uint8_t *dev_base;     /* lanes one after the other, each n_blocks pieces long */
    uint8_t **host_blocks; /* one for each block, its pieces in lane order; ascending addresses travel fastest */
    uint32_t n_blocks;
    uint32_t n_lanes;
    const uint64_t *lane_bytes; /* of one piece of each lane; multiples of 16 */
} baseline_shape;

typedef enum baseline_way { BASELINE_OUT, BASELINE_IN } baseline_way;

/* Blocks first .. first + n - 1, one way. */
typedef struct baseline_work {
    baseline_way way;
    uint32_t first, n;
} baseline_work;

typedef struct baseline baseline;

/* One way of copying. run() is complete on return and may be timed with the host's clock. Threads: any, one at a time
 * for each baseline. */
typedef struct baseline_kind {
    const char *name;
    const char *about;
    bool (*run)(baseline *b, const baseline_work *work);
    bool linear; /* takes the device's memory as one stretch, block after block, and knows nothing of pieces */
} baseline_kind;

#define BASELINE_OFFLOADS 3u /* the first kinds: what an engine could offload with; the others show the link */

/* The kinds of this device, the piecewise copy first. */
const baseline_kind *baseline_kinds(const device *dev, uint32_t *n_kinds);

/* Prepares for all kinds of the device. The shape's arrays must live as long. */
bool baseline_open(device *dev, const baseline_shape *shape, baseline **made);
void baseline_close(baseline *b);

uint64_t baseline_block_bytes(const baseline_shape *shape);

/* Blocks from `first` on, at most `limit`, whose host memory one copy may cover. */
uint32_t baseline_run_length(const baseline *b, uint32_t first, uint32_t limit);

#if KVX_WITH_CUDA
const baseline_kind *baseline_cuda_kinds(uint32_t *n_kinds);
bool baseline_cuda_open(const baseline_shape *shape, baseline **made);
void baseline_cuda_close(baseline *b);
#endif

struct baseline {
    baseline_shape shape;
    uint64_t block_bytes;
    uint32_t *run_ends; /* by block: the first block that one copy can no longer cover */
    device *dev;
};

#ifdef __cplusplus
}
#endif
#endif
