/* SPDX-License-Identifier: Apache-2.0 */
/* Pinned memory and a stream for each chunk of it. */
#include <cstdio>
#include <new>
#include <vector>

#include <cuda_runtime.h>

#include "bench_bounce.h"

struct bounce_lanes {
    int ordinal;
    std::vector<cudaStream_t> streams;
};

static bool ok(cudaError_t error, const char *doing)
{
    if (error != cudaSuccess)
        fprintf(stderr, "bounce memory: %s: %s\n", doing, cudaGetErrorString(error));
    return error == cudaSuccess;
}

bool bounce_cuda_open(int ordinal, uint32_t n_lanes, uint64_t n_bytes, bounce_lanes **lanes, uint8_t **memory)
{
    bounce_lanes *made = new (std::nothrow) bounce_lanes{ordinal, std::vector<cudaStream_t>(n_lanes)};
    bool done = made && ok(cudaHostAlloc(reinterpret_cast<void **>(memory), n_bytes, cudaHostAllocDefault), "pin");
    if (!made)
        return false;
    for (cudaStream_t &stream : made->streams)
        done = done && ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create a stream");
    if (!done) {
        bounce_cuda_close(made, *memory);
        return false;
    }
    *lanes = made;
    return true;
}

void bounce_cuda_close(bounce_lanes *lanes, uint8_t *memory)
{
    for (cudaStream_t stream : lanes->streams)
        if (stream)
            cudaStreamDestroy(stream);
    cudaFreeHost(memory);
    delete lanes;
}

bool bounce_cuda_copy(bounce_lanes *lanes, uint32_t lane, void *to, const void *from, uint64_t n_bytes)
{
    return ok(cudaSetDevice(lanes->ordinal), "select the GPU") &&
           ok(cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyDefault, lanes->streams[lane]), "copy");
}

bool bounce_cuda_wait(bounce_lanes *lanes, uint32_t lane)
{
    return ok(cudaStreamSynchronize(lanes->streams[lane]), "wait for a copy");
}
