/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_BENCH_COPIER_H
#define KVX_BENCH_COPIER_H
/* Plaintext offload of runs of blocks, asynchronous, on a stream of the lowest priority: a batched copy of the pieces
 * by the copy engine, or a kernel that reads and writes host memory itself. */
#include "bench.h"

#ifdef __cplusplus
extern "C" {
#endif

#define COPIER_IN_FLIGHT 4u

typedef struct copier copier;

/* The blocks of the scene and its slots; what the pool holds is overwritten. */
bool copier_open(bench_scene *s, copier **made);
void copier_close(copier *p);

typedef struct copier_run {
    bool by_kernel, out;
    uint32_t first, n; /* blocks */
} copier_run;

/* Starts a run under one of COPIER_IN_FLIGHT numbers; says whether the run under a number has ended. */
bool copier_start(copier *p, const copier_run *run, uint32_t number);
bool copier_look(copier *p, uint32_t number, bool *ended);

#ifdef __cplusplus
}
#endif
#endif
