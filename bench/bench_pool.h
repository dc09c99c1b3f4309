/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_BENCH_BENCH_POOL_H
#define KVX_BENCH_BENCH_POOL_H
/* What the pool's sub-bench asks of CUDA itself: its own allocator, and plain copies. bench_pool_cuda.cu. */
#include "bench.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Pinned memory of the CUDA runtime. Seconds of the allocation and of the free, and the memory in between. */
bool bench_pool_host_alloc(uint64_t n_bytes, void **memory, double *seconds);
bool bench_pool_host_free(void *memory, double *seconds);
/* Registers memory of ours in one call. */
bool bench_pool_register(void *memory, uint64_t n_bytes, double *seconds);
bool bench_pool_unregister(void *memory, double *seconds);
/* Seconds for n copies of piece_bytes each, one after the other, between host pieces and device memory. */
bool bench_pool_copy(bench *b, void *const *pieces, uint32_t n, uint64_t piece_bytes, void *dev_memory, bool to_host,
                     double *seconds);

#ifdef __cplusplus
}
#endif
#endif
