/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_BENCH_BOUNCE_H
#define KVX_BENCH_BOUNCE_H
/* Bounce memory between a device and CPU threads: two chunks for each thread, with asynchronous copies to and from the
 * device on a GPU (pinned memory, a stream a thread), and with memcpy on the CPU engine. */
#include "bench.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BOUNCE_CHUNKS 2u /* of a thread */

typedef struct bounce bounce;

bool bounce_open(bench *b, uint32_t n_threads, uint64_t chunk_bytes, bounce **made);
void bounce_close(bounce *x);

/* For one thread at a time, each with a number of its own. */
uint8_t *bounce_chunk(bounce *x, uint32_t thread, uint32_t chunk);
bool bounce_copy(bounce *x, uint32_t thread, uint32_t chunk, uint8_t *dev, bool out);
bool bounce_wait(bounce *x, uint32_t thread, uint32_t chunk);

#if KVX_WITH_CUDA
typedef struct bounce_lanes bounce_lanes;
bool bounce_cuda_open(int ordinal, uint32_t n_threads, uint64_t n_bytes, bounce_lanes **lanes, uint8_t **memory);
void bounce_cuda_close(bounce_lanes *lanes, uint8_t *memory);
bool bounce_cuda_copy(bounce_lanes *lanes, uint32_t lane, void *to, const void *from, uint64_t n_bytes);
bool bounce_cuda_wait(bounce_lanes *lanes, uint32_t lane);
#endif

#ifdef __cplusplus
}
#endif
#endif
