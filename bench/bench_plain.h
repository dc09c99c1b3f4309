/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_BENCH_PLAIN_H
#define KVX_BENCH_PLAIN_H
/* Plaintext offload of runs of blocks, asynchronous, on a stream of the lowest priority: a batched copy of the pieces
 * by the copy engine, or a kernel that reads and writes host memory itself. */
#include "bench.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PLAIN_IN_FLIGHT 4u

typedef struct plain plain;

/* The blocks of the scene and its slots; what the pool holds is overwritten. */
bool plain_open(bench_scene *s, plain **made);
void plain_close(plain *p);

typedef struct plain_run {
    bool by_kernel, out;
    uint32_t first, n; /* blocks */
} plain_run;

/* Starts a run under one of PLAIN_IN_FLIGHT numbers; waits for the run under a number. From one thread at a time. */
bool plain_start(plain *p, const plain_run *run, uint32_t number);
bool plain_wait(plain *p, uint32_t number);

#ifdef __cplusplus
}
#endif
#endif
