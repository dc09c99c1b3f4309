/* SPDX-License-Identifier: Apache-2.0 */
/* Plaintext offload on the GPU three ways: a batched copy of the pieces as they lie, a gather or scatter kernel with
 * long copies behind it (two chunks in HBM, one stream each, so that the kernel of one runs beside the copy of the
 * other), and bare long copies that know nothing of pieces. */
#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>

#include <cuda_runtime.h>

#include "baseline.h"

namespace
{

constexpr size_t pieces_per_call = 4096;
constexpr uint64_t chunk_bytes = 32u << 20;

struct cuda_baseline {
    baseline common; /* first, so that the two pointers are one */
    std::vector<void *> dev_pieces, host_pieces;
    std::vector<size_t> sizes;
    cudaStream_t streams[2];
    void *dev_chunks[2];
};

bool ok(cudaError_t error, const char *doing)
{
    if (error != cudaSuccess)
        fprintf(stderr, "baseline: %s: %s\n", doing, cudaGetErrorString(error));
    return error == cudaSuccess;
}

bool sync_both(const cuda_baseline *b)
{
    return ok(cudaStreamSynchronize(b->streams[0]), "wait") && ok(cudaStreamSynchronize(b->streams[1]), "wait");
}

/* ------------------------------------------------------------------------------------------------------ (a) batched */

cudaError_t copy_batch(void *const *to, void *const *from, const size_t *sizes, size_t n, cudaStream_t stream)
{
    cudaMemcpyAttributes attributes = {};
    size_t first = 0;
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
#if CUDART_VERSION >= 13000
    return cudaMemcpyBatchAsync(to, const_cast<const void *const *>(from), sizes, n, &attributes, &first, 1, stream);
#else
    size_t failed = 0;
    return cudaMemcpyBatchAsync(const_cast<void **>(to), const_cast<void **>(from), const_cast<size_t *>(sizes), n,
                                &attributes, &first, 1, &failed, stream);
#endif
}

bool run_batched(baseline *common, baseline_way way)
{
    cuda_baseline *b = reinterpret_cast<cuda_baseline *>(common);
    void **to = way == BASELINE_OUT ? b->host_pieces.data() : b->dev_pieces.data();
    void **from = way == BASELINE_OUT ? b->dev_pieces.data() : b->host_pieces.data();
    for (size_t first = 0, n_all = b->sizes.size(); first < n_all; first += pieces_per_call) {
        size_t n = n_all - first < pieces_per_call ? n_all - first : pieces_per_call;
        if (!ok(copy_batch(to + first, from + first, b->sizes.data() + first, n, b->streams[0]), "batched copy"))
            return false;
    }
    return sync_both(b);
}

/* -------------------------------------------------------------------------------------------------- (b) gather first
 */

/* One CTA for each piece of the chunk. */
template <bool gather>
__global__ void move_pieces(uint4 *chunk, uint4 *lanes, uint32_t first_block, uint32_t n_blocks, uint32_t n_lanes,
                            uint64_t piece_words)
{
    uint32_t block = blockIdx.x / n_lanes, lane = blockIdx.x % n_lanes;
    uint4 *packed = chunk + blockIdx.x * piece_words;
    uint4 *piece = lanes + ((uint64_t)lane * n_blocks + first_block + block) * piece_words;
    const uint4 *from = gather ? piece : packed;
    uint4 *to = gather ? packed : piece;
#pragma unroll 4
    for (uint64_t i = threadIdx.x; i < piece_words; i += blockDim.x)
        to[i] = from[i];
}

template <bool gather>
void launch_move(const baseline_shape *s, void *chunk, uint32_t first, uint32_t n, cudaStream_t stream)
{
    move_pieces<gather><<<n * s->n_lanes, 512, 0, stream>>>((uint4 *)chunk, (uint4 *)s->dev_base, first, s->n_blocks,
                                                            s->n_lanes, s->piece_bytes / sizeof(uint4));
}

/* The chunk's blocks to or from the host, in as few copies as the host's addresses allow. */
bool copy_chunk(const baseline_shape *s, char *chunk, uint32_t first, uint32_t n, baseline_way way, cudaStream_t stream)
{
    uint64_t block_bytes = s->n_lanes * s->piece_bytes;
    for (uint32_t done = 0, run; done < n; done += run) {
        run = baseline_run_length(s, first + done, n - done);
        void *dev = chunk + done * block_bytes, *host = s->host_blocks[first + done];
        void *to = way == BASELINE_OUT ? host : dev, *from = way == BASELINE_OUT ? dev : host;
        if (!ok(cudaMemcpyAsync(to, from, run * block_bytes, cudaMemcpyDefault, stream), "copy of a chunk"))
            return false;
    }
    return true;
}

bool run_gathered(baseline *common, baseline_way way)
{
    cuda_baseline *b = reinterpret_cast<cuda_baseline *>(common);
    const baseline_shape *s = &common->shape;
    uint32_t per_chunk = (uint32_t)(chunk_bytes / (s->n_lanes * s->piece_bytes)), turn = 0;
    for (uint32_t first = 0; first < s->n_blocks; first += per_chunk, turn ^= 1) {
        uint32_t n = s->n_blocks - first < per_chunk ? s->n_blocks - first : per_chunk;
        if (way == BASELINE_OUT)
            launch_move<true>(s, b->dev_chunks[turn], first, n, b->streams[turn]);
        if (!copy_chunk(s, (char *)b->dev_chunks[turn], first, n, way, b->streams[turn]))
            return false;
        if (way == BASELINE_IN)
            launch_move<false>(s, b->dev_chunks[turn], first, n, b->streams[turn]);
        if (!ok(cudaGetLastError(), "gather or scatter kernel"))
            return false;
    }
    return sync_both(b);
}

/* --------------------------------------------------------------------------------------------------- (c) contiguous */

bool run_contiguous(baseline *common, baseline_way way)
{
    cuda_baseline *b = reinterpret_cast<cuda_baseline *>(common);
    const baseline_shape *s = &common->shape;
    return copy_chunk(s, (char *)s->dev_base, 0, s->n_blocks, way, b->streams[0]) && sync_both(b);
}

/* ------------------------------------------------------------------------------------------------------ open, close */

const baseline_kind kinds[] = {
    {"plain_pieces", "cudaMemcpyBatchAsync of every piece", run_batched},
    {"plain_gather", "gather or scatter kernel, copies of 32 MiB chunks", run_gathered},
    {"plain_contiguous", "bare copies of everything in long runs", run_contiguous},
};

void list_pieces(cuda_baseline *b, const baseline_shape *s)
{
    uint64_t lane_bytes = s->n_blocks * s->piece_bytes;
    for (uint32_t block = 0; block < s->n_blocks; block++)
        for (uint32_t lane = 0; lane < s->n_lanes; lane++) {
            b->dev_pieces.push_back(s->dev_base + lane * lane_bytes + block * s->piece_bytes);
            b->host_pieces.push_back(s->host_blocks[block] + lane * s->piece_bytes);
            b->sizes.push_back(s->piece_bytes);
        }
}

bool open_streams(cuda_baseline *b)
{
    for (int i = 0; i < 2; i++)
        if (!ok(cudaStreamCreateWithFlags(&b->streams[i], cudaStreamNonBlocking), "create a stream") ||
            !ok(cudaMalloc(&b->dev_chunks[i], chunk_bytes), "allocate a chunk (try a smaller --bytes)"))
            return false;
    return true;
}

} // namespace

const baseline_kind *baseline_cuda_kinds(uint32_t *n_kinds)
{
    *n_kinds = sizeof(kinds) / sizeof(kinds[0]);
    return kinds;
}

bool baseline_cuda_open(const baseline_shape *shape, baseline **made)
{
    cuda_baseline *b = new (std::nothrow) cuda_baseline();
    if (!b)
        return false;
    try {
        list_pieces(b, shape);
    } catch (const std::bad_alloc &) {
        fprintf(stderr, "no memory for the list of pieces: try a smaller --bytes\n");
        baseline_cuda_close(&b->common);
        return false;
    }
    if (!open_streams(b)) {
        baseline_cuda_close(&b->common);
        return false;
    }
    *made = &b->common;
    return true;
}

void baseline_cuda_close(baseline *common)
{
    cuda_baseline *b = reinterpret_cast<cuda_baseline *>(common);
    for (int i = 0; i < 2; i++) {
        if (b->dev_chunks[i])
            cudaFree(b->dev_chunks[i]);
        if (b->streams[i])
            cudaStreamDestroy(b->streams[i]);
    }
    delete b;
}
