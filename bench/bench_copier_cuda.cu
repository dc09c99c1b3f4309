/* SPDX-License-Identifier: Apache-2.0 */
/* Plaintext offload. Lists of pieces are made beforehand, block by block. The kernel takes few multiprocessors: four
 * fill the link, and more would only take more from the work beside it. */
#include <cstdio>
#include <new>
#include <vector>

#include <cuda_runtime.h>

#include "bench_copier.h"

struct copier {
    uint32_t n_lanes;
    uint64_t piece_bytes;
    std::vector<void *> dev_pieces, host_pieces; /* n_lanes for each block */
    std::vector<size_t> sizes;
    void **dev_lists; /* device: the two lists, as the device addresses host memory */
    cudaStream_t stream;
    cudaEvent_t events[COPIER_IN_FLIGHT];
};

static bool ok(cudaError_t error, const char *doing)
{
    if (error != cudaSuccess)
        fprintf(stderr, "plaintext offload: %s: %s\n", doing, cudaGetErrorString(error));
    return error == cudaSuccess;
}

static constexpr uint32_t kernel_ctas = 4, kernel_threads = 1024;

/* Pieces in turn to the CTAs. */
static __global__ void __launch_bounds__(kernel_threads)
    copy_kernel(void *const *to, void *const *from, uint32_t n, uint64_t n_words)
{
    for (uint32_t piece = blockIdx.x; piece < n; piece += gridDim.x) {
        const uint4 *source = static_cast<const uint4 *>(from[piece]);
        uint4 *target = static_cast<uint4 *>(to[piece]);
#pragma unroll 4
        for (uint64_t i = threadIdx.x; i < n_words; i += kernel_threads)
            target[i] = source[i];
    }
}

static bool list_block(copier *p, const bench_scene *s, uint32_t block)
{
    uint64_t n_bytes;
    void *slot;
    if (!bench_ok(kvx_pool_slot_bytes(s->pool, s->slots[block], &slot, &n_bytes), "kvx_pool_slot_bytes"))
        return false;
    for (uint32_t lane = 0; lane < p->n_lanes; lane++) {
        p->dev_pieces.push_back(s->dev_cache + s->lane_at[lane] + block * p->piece_bytes);
        p->host_pieces.push_back(static_cast<uint8_t *>(slot) + lane * p->piece_bytes);
        p->sizes.push_back(p->piece_bytes);
    }
    return true;
}

static bool make_dev_lists(copier *p)
{
    const size_t n = p->sizes.size();
    std::vector<void *> lists(p->dev_pieces);
    for (void *host : p->host_pieces) {
        void *mapped = nullptr;
        if (!ok(cudaHostGetDevicePointer(&mapped, host, 0), "map the pool"))
            return false;
        lists.push_back(mapped);
    }
    return ok(cudaMalloc(&p->dev_lists, 2 * n * sizeof(void *)), "allocate lists") &&
           ok(cudaMemcpy(p->dev_lists, lists.data(), 2 * n * sizeof(void *), cudaMemcpyDefault), "write lists");
}

static bool make_stream(copier *p)
{
    int least = 0, greatest = 0;
    if (!ok(cudaDeviceGetStreamPriorityRange(&least, &greatest), "ask for priorities") ||
        !ok(cudaStreamCreateWithPriority(&p->stream, cudaStreamNonBlocking, least), "create a stream"))
        return false;
    for (cudaEvent_t &event : p->events)
        if (!ok(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "create an event"))
            return false;
    return true;
}

bool copier_open(bench_scene *s, copier **made)
{
    copier *p = new (std::nothrow) copier();
    if (!p)
        return false;
    p->n_lanes = bench_shape_lanes(&s->shape);
    p->piece_bytes = s->shape.piece_bytes[0];
    bool done = make_stream(p);
    for (uint32_t block = 0; done && block < s->shape.n_blocks; block++)
        done = list_block(p, s, block);
    if (!done || !make_dev_lists(p)) {
        copier_close(p);
        return false;
    }
    *made = p;
    return true;
}

void copier_close(copier *p)
{
    if (!p)
        return;
    if (p->stream)
        cudaStreamSynchronize(p->stream);
    for (cudaEvent_t event : p->events)
        if (event)
            cudaEventDestroy(event);
    cudaFree(p->dev_lists);
    if (p->stream)
        cudaStreamDestroy(p->stream);
    delete p;
}

static cudaError_t copy_batch(copier *p, void **to, void **from, size_t first, size_t n)
{
    cudaMemcpyAttributes attributes = {};
    size_t start = 0;
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
#if CUDART_VERSION >= 13000
    return cudaMemcpyBatchAsync(to, const_cast<const void **>(from), &p->sizes[first], n, &attributes, &start, 1,
                                p->stream);
#else
    size_t failed = 0;
    return cudaMemcpyBatchAsync(to, from, &p->sizes[first], n, &attributes, &start, 1, &failed, p->stream);
#endif
}

bool copier_start(copier *p, const copier_run *run, uint32_t number)
{
    const size_t first = (size_t)run->first * p->n_lanes, n = (size_t)run->n * p->n_lanes, all = p->sizes.size();
    if (run->by_kernel) {
        void **dev = p->dev_lists + first, **host = p->dev_lists + all + first;
        copy_kernel<<<kernel_ctas, kernel_threads, 0, p->stream>>>(run->out ? host : dev, run->out ? dev : host,
                                                                   (uint32_t)n, p->piece_bytes / sizeof(uint4));
        if (!ok(cudaGetLastError(), "copy by a kernel"))
            return false;
    } else {
        void **dev = &p->dev_pieces[first], **host = &p->host_pieces[first];
        if (!ok(copy_batch(p, run->out ? host : dev, run->out ? dev : host, first, n), "batched copy"))
            return false;
    }
    return ok(cudaEventRecord(p->events[number], p->stream), "record an event");
}

bool copier_look(copier *p, uint32_t number, bool *ended)
{
    const cudaError_t error = cudaEventQuery(p->events[number]);
    *ended = error == cudaSuccess;
    return error == cudaErrorNotReady || ok(error, "look at a copy");
}
