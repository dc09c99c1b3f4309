/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_BENCH_OFFLOAD_H
#define KVX_BENCH_OFFLOAD_H
/* Offload that goes on while something else is measured: blocks of a scene over and over, in calls of a few blocks, at
 * most four in flight, as fast as it goes or at a given rate. No thread of its own: whoever measures calls
 * offload_step() again and again, which never waits. */
#include "bench_copier.h"

typedef enum offload_mover {
    OFFLOAD_PIECES, /* batched copy of plaintext pieces by the copy engine */
    OFFLOAD_KERNEL, /* plaintext, by a kernel over the link */
    OFFLOAD_STAGED, /* kvx; restores always come this way */
    OFFLOAD_DIRECT  /* kvx, stores straight to host memory */
} offload_mover;

typedef struct offload_plan {
    offload_mover mover;
    bool store;
    double rate; /* bytes per second; 0: as fast as it goes */
} offload_plan;

typedef struct offload offload;

bool offload_open(bench_scene *s, offload **made);
void offload_close(offload *o);

/* Fills the cache with the pattern of the seed and moves all of it out, so that every slot holds a block; then fills it
 * with another pattern, which stores take out or restores overwrite. */
bool offload_prepare(offload *o, const offload_plan *plan);

/* Begins to go on as planned; a step takes in what has ended and makes a call if it is time for one; bytes given to the
 * device so far; waits for what is in flight. */
void offload_begin(offload *o, const offload_plan *plan);
bool offload_step(offload *o);
double offload_bytes(const offload *o);
bool offload_end(offload *o);

/* Compares what the calls since then have restored; brings all blocks back over other contents and compares them, those
 * that were stored anew with the new pattern. A difference is a failed check. */
bool offload_check(offload *o, const offload_plan *plan, const char *name);

#endif
