/* SPDX-License-Identifier: Apache-2.0 */
/* What a pool is compared with: the CUDA runtime's own pinned memory and one large registration. */
#include <cstdio>

#include <cuda_runtime.h>

#include "bench_pool.h"

static bool ok(cudaError_t error, const char *doing)
{
    if (error != cudaSuccess)
        fprintf(stderr, "%s: %s\n", doing, cudaGetErrorString(error));
    return error == cudaSuccess;
}

bool bench_pool_host_alloc(uint64_t n_bytes, void **memory, double *seconds)
{
    double begin = bench_now();
    bool done = ok(cudaHostAlloc(memory, n_bytes, cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc");
    *seconds = bench_now() - begin;
    return done;
}

bool bench_pool_host_free(void *memory, double *seconds)
{
    double begin = bench_now();
    bool done = ok(cudaFreeHost(memory), "cudaFreeHost");
    *seconds = bench_now() - begin;
    return done;
}

bool bench_pool_register(void *memory, uint64_t n_bytes, double *seconds)
{
    double begin = bench_now();
    bool done =
        ok(cudaHostRegister(memory, n_bytes, cudaHostRegisterPortable | cudaHostRegisterMapped), "cudaHostRegister");
    *seconds = bench_now() - begin;
    return done;
}

bool bench_pool_unregister(void *memory, double *seconds)
{
    double begin = bench_now();
    bool done = ok(cudaHostUnregister(memory), "cudaHostUnregister");
    *seconds = bench_now() - begin;
    return done;
}

bool bench_pool_copy(bench *b, void *const *pieces, uint32_t n, uint64_t piece_bytes, void *dev_memory, bool to_host,
                     double *seconds)
{
    cudaStream_t stream = b->dev.stream;
    if (!bench_begin(b))
        return false;
    for (uint32_t i = 0; i < n; i++) {
        cudaError_t error = to_host
                                ? cudaMemcpyAsync(pieces[i], dev_memory, piece_bytes, cudaMemcpyDeviceToHost, stream)
                                : cudaMemcpyAsync(dev_memory, pieces[i], piece_bytes, cudaMemcpyHostToDevice, stream);
        if (!ok(error, "cudaMemcpyAsync"))
            return false;
    }
    return ok(cudaEventRecord(b->dev.end, stream), "cudaEventRecord") && bench_end(b, seconds);
}
