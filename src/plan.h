/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_SRC_PLAN_H
#define KVX_SRC_PLAN_H
/*
 * Splits a batch into bursts, each one launch and one copy operation: a run of pairs, a run of their segments, where
 * their sealed bytes lie in a ring chunk and which pieces of the pool they are. Pure arithmetic on what the host knows;
 * an iterator over memory of its own, so nothing is allocated.
 */
#include "../kernels/format.h"
#include "../kernels/launch.h"
#include "pool.h"

/* Runs of segments grow until a run carries as much, so that copies stay worth their start. */
#define KVX_PLAN_RUN_BYTES (1u << 20)

enum kvx_plan_mode {
    KVX_PLAN_WHOLE,    /* all segments of a pair in one burst */
    KVX_PLAN_SEGMENTS, /* segment runs outside (1, 1, 2, 4, ...), pairs inside: early segments of all pairs come first
                        */
    KVX_PLAN_DIRECT    /* straight to the slots: nothing staged, no copies, as many pairs as a launch takes */
};

/* While the first burst is being sealed, and while the last is being opened, the link has nothing to do: these bursts
 * are small. Those beside them may be larger by about as much as sealing and opening are faster than the link. */
enum kvx_plan_ramp {
    KVX_PLAN_EVEN,
    KVX_PLAN_GROW,  /* no burst is larger than RAMP_FACTOR times all before it */
    KVX_PLAN_SHRINK /* no burst is larger than RAMP_FACTOR times all after it */
};
#define KVX_PLAN_RAMP_BYTES (4u << 20) /* small enough; what is left at the end is parted only above twice as much */
#define KVX_PLAN_RAMP_FACTOR 6u

/* The batch to split. Everything pointed to stays as it is until the last burst was taken. */
typedef struct kvx_plan_batch {
    const kvx_pool_view *pool;
    const kvx_dev_layout *layouts; /* with arrays in host memory; each pair's layout, slot and fit have been checked */
    const kvx_work_pair *pairs;
    uint32_t n;
    enum kvx_plan_mode mode;
    enum kvx_plan_ramp ramp;
    uint64_t ramp_above;  /* batches of no more bytes have no ramp: one burst more would cost more than it gains */
    uint64_t chunk_bytes; /* of a ring chunk, which no burst exceeds; at least the largest slot */
    uint64_t
        burst_bytes; /* what bursts aim at; 0: a chunk. One pair's part is never parted, so a burst may be larger */
} kvx_plan_batch;

/* Bytes of one pool chunk that are one piece in the ring chunk too. */
typedef struct kvx_plan_copy {
    uint64_t pool_offset; /* in the pool chunk */
    uint64_t ring_offset; /* in the ring chunk */
    uint64_t bytes;
    uint32_t chunk;
} kvx_plan_copy;

typedef struct kvx_burst {
    uint32_t first_pair, n_pairs;
    uint32_t first_segment, n_segments; /* n_segments: the most that any of the pairs has of the run */
    uint64_t staged_stride;             /* a multiple of 32; pair i of the burst begins at i * stride */
    uint32_t run_end;                   /* first segment after the run */
    uint32_t ends_run;                  /* nonzero: the run is complete with this burst */
    uint32_t ends_batch;                /* nonzero: nothing follows */
    uint32_t n_copies;
    const kvx_plan_copy *copies; /* valid until the next call */
} kvx_burst;

typedef struct kvx_plan {
    kvx_plan_batch batch;
    uint64_t n_bytes, n_taken;   /* sealed bytes of the batch; of the bursts so far */
    uint32_t n_segments;         /* the most that any pair has */
    uint32_t run_first, run_end; /* segments of the current run */
    uint32_t next_pair;
    kvx_plan_copy copies[KVX_PAIRS_PER_LAUNCH];
} kvx_plan;

void kvx_plan_begin(kvx_plan *plan, const kvx_plan_batch *batch);
/* Nonzero and a burst, or 0 after the last (at once for n = 0). */
int kvx_plan_next(kvx_plan *plan, kvx_burst *burst);

#endif
