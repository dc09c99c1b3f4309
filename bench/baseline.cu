/* SPDX-License-Identifier: Apache-2.0 */
/* Plaintext offload on the GPU: (a) a batched copy of the pieces as they lie, (b) a gather or scatter kernel with long
 * copies behind it (two chunks in HBM, one stream each, so that the kernel of one runs beside the copy of the other),
 * (c) bare long copies that know nothing of pieces, (d) one copy call for each piece, (e) a kernel that moves the
 * pieces between HBM and mapped host memory. */
#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>

#include <cuda_runtime.h>

#include "baseline.h"

namespace
{

constexpr size_t pieces_per_call = 4096;
constexpr uint64_t least_chunk_bytes = 32u << 20;
constexpr unsigned mapped_ctas = 32, mapped_threads = 512;

/* Of one lane, in 16-byte words. */
struct lane_place {
    uint64_t at;        /* of its first piece in the device's memory */
    uint64_t packed_at; /* of its piece in a block as the host has it */
    uint64_t words;     /* of a piece */
};

struct cuda_baseline {
    baseline common; /* first, so that the two pointers are one */
    std::vector<void *> dev_pieces, host_pieces;
    std::vector<size_t> sizes;
    cudaStream_t streams[2];
    void *dev_chunks[2];
    uint64_t chunk_bytes;
    lane_place *dev_lanes;
    uint4 **dev_hosts; /* the host's blocks as the device reaches them */
};

bool ok(cudaError_t error, const char *doing)
{
    if (error != cudaSuccess)
        fprintf(stderr, "baseline: %s: %s\n", doing, cudaGetErrorString(error));
    return error == cudaSuccess;
}

/* Runs come from threads of their own, which begin with device 0. */
bool enter(const cuda_baseline *b)
{
    return ok(cudaSetDevice(b->common.dev->ordinal), "select the GPU");
}

bool sync_both(const cuda_baseline *b)
{
    return ok(cudaStreamSynchronize(b->streams[0]), "wait") && ok(cudaStreamSynchronize(b->streams[1]), "wait");
}

/* ------------------------------------------------------------------------------------------------- (a) batched pieces
 */

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

bool run_batched(baseline *common, const baseline_work *work)
{
    cuda_baseline *b = reinterpret_cast<cuda_baseline *>(common);
    void **to = work->way == BASELINE_OUT ? b->host_pieces.data() : b->dev_pieces.data();
    void **from = work->way == BASELINE_OUT ? b->dev_pieces.data() : b->host_pieces.data();
    size_t n_lanes = common->shape.n_lanes, end = (work->first + (size_t)work->n) * n_lanes;
    if (!enter(b))
        return false;
    for (size_t first = work->first * n_lanes; first < end; first += pieces_per_call) {
        size_t n = end - first < pieces_per_call ? end - first : pieces_per_call;
        if (!ok(copy_batch(to + first, from + first, b->sizes.data() + first, n, b->streams[0]), "batched copy"))
            return false;
    }
    return sync_both(b);
}

/* --------------------------------------------------------------------------------------------------- (b) gather first
 */

/* One CTA for each piece of the chunk. */
template <bool gather>
__global__ void move_pieces(uint4 *chunk, uint4 *cache, const lane_place *lanes, uint32_t n_lanes, uint32_t first_block,
                            uint64_t block_words)
{
    uint32_t block = blockIdx.x / n_lanes;
    lane_place lane = lanes[blockIdx.x % n_lanes];
    uint4 *packed = chunk + block * block_words + lane.packed_at;
    uint4 *piece = cache + lane.at + (uint64_t)(first_block + block) * lane.words;
    const uint4 *from = gather ? piece : packed;
    uint4 *to = gather ? packed : piece;
#pragma unroll 4
    for (uint64_t i = threadIdx.x; i < lane.words; i += blockDim.x)
        to[i] = from[i];
}

template <bool gather> void launch_move(const cuda_baseline *b, int turn, uint32_t first, uint32_t n)
{
    const baseline_shape *s = &b->common.shape;
    move_pieces<gather><<<n * s->n_lanes, 512, 0, b->streams[turn]>>>((uint4 *)b->dev_chunks[turn],
                                                                      (uint4 *)s->dev_base, b->dev_lanes, s->n_lanes,
                                                                      first, b->common.block_bytes / sizeof(uint4));
}

/* Blocks between the chunk and the host, in as few copies as the host's addresses allow. */
bool copy_chunk(const baseline *b, uint8_t *chunk, const baseline_work *work, cudaStream_t stream)
{
    for (uint32_t done = 0, run; done < work->n; done += run) {
        run = baseline_run_length(b, work->first + done, work->n - done);
        void *dev = chunk + done * b->block_bytes, *host = b->shape.host_blocks[work->first + done];
        void *to = work->way == BASELINE_OUT ? host : dev, *from = work->way == BASELINE_OUT ? dev : host;
        if (!ok(cudaMemcpyAsync(to, from, run * b->block_bytes, cudaMemcpyDefault, stream), "copy of a chunk"))
            return false;
    }
    return true;
}

bool run_gathered(baseline *common, const baseline_work *work)
{
    cuda_baseline *b = reinterpret_cast<cuda_baseline *>(common);
    uint32_t per_chunk = (uint32_t)(b->chunk_bytes / common->block_bytes), end = work->first + work->n;
    int turn = 0;
    if (!enter(b))
        return false;
    for (uint32_t first = work->first; first < end; first += per_chunk, turn ^= 1) {
        baseline_work part = {work->way, first, end - first < per_chunk ? end - first : per_chunk};
        if (work->way == BASELINE_OUT)
            launch_move<true>(b, turn, first, part.n);
        if (!copy_chunk(common, (uint8_t *)b->dev_chunks[turn], &part, b->streams[turn]))
            return false;
        if (work->way == BASELINE_IN)
            launch_move<false>(b, turn, first, part.n);
        if (!ok(cudaGetLastError(), "gather or scatter kernel"))
            return false;
    }
    return sync_both(b);
}

/* ----------------------------------------------------------------------------------------------------- (c) contiguous
 */

bool run_contiguous(baseline *common, const baseline_work *work)
{
    cuda_baseline *b = reinterpret_cast<cuda_baseline *>(common);
    return enter(b) &&
           copy_chunk(common, common->shape.dev_base + work->first * common->block_bytes, work, b->streams[0]) &&
           sync_both(b);
}

/* ------------------------------------------------------------------------------------------------- (d) loop of copies
 */

bool run_loop(baseline *common, const baseline_work *work)
{
    cuda_baseline *b = reinterpret_cast<cuda_baseline *>(common);
    bool out = work->way == BASELINE_OUT;
    size_t n_lanes = common->shape.n_lanes, end = (work->first + (size_t)work->n) * n_lanes;
    if (!enter(b))
        return false;
    for (size_t i = work->first * n_lanes; i < end; i++) {
        void *to = out ? b->host_pieces[i] : b->dev_pieces[i], *from = out ? b->dev_pieces[i] : b->host_pieces[i];
        if (!ok(cudaMemcpyAsync(to, from, b->sizes[i], cudaMemcpyDefault, b->streams[0]), "copy of a piece"))
            return false;
    }
    return sync_both(b);
}

/* ------------------------------------------------------------------------------------------------ (e) mapped memory */

template <bool out>
__global__ void move_mapped(uint4 *const *hosts, uint4 *cache, const lane_place *lanes, uint32_t n_lanes,
                            uint32_t first, uint64_t n_pieces)
{
    for (uint64_t p = blockIdx.x; p < n_pieces; p += gridDim.x) {
        uint64_t block = first + p / n_lanes;
        lane_place lane = lanes[p % n_lanes];
        uint4 *host = hosts[block] + lane.packed_at, *piece = cache + lane.at + block * lane.words;
        const uint4 *from = out ? piece : host;
        uint4 *to = out ? host : piece;
#pragma unroll 4
        for (uint64_t i = threadIdx.x; i < lane.words; i += blockDim.x)
            to[i] = from[i];
    }
}

bool run_mapped(baseline *common, const baseline_work *work)
{
    cuda_baseline *b = reinterpret_cast<cuda_baseline *>(common);
    const baseline_shape *s = &common->shape;
    uint64_t n_pieces = (uint64_t)work->n * s->n_lanes;
    if (!enter(b))
        return false;
    auto kernel = work->way == BASELINE_OUT ? move_mapped<true> : move_mapped<false>;
    kernel<<<mapped_ctas, mapped_threads, 0, b->streams[0]>>>(b->dev_hosts, (uint4 *)s->dev_base, b->dev_lanes,
                                                              s->n_lanes, work->first, n_pieces);
    return ok(cudaGetLastError(), "kernel on mapped memory") && sync_both(b);
}

/* ------------------------------------------------------------------------------------------------------ open, close */

const baseline_kind kinds[] = {
    {"plain_pieces", "cudaMemcpyBatchAsync of every piece", run_batched, false},
    {"plain_gather", "gather or scatter kernel, copies of 32 MiB chunks", run_gathered, false},
    {"plain_contiguous", "bare copies of everything in long runs", run_contiguous, true},
    {"plain_loop", "cudaMemcpyAsync of every piece", run_loop, false},
    {"plain_mapped", "kernel that copies every piece to or from host memory", run_mapped, false},
};

void list_pieces(cuda_baseline *b, const baseline_shape *s)
{
    for (uint32_t block = 0; block < s->n_blocks; block++) {
        uint8_t *lane_at = s->dev_base, *host = s->host_blocks[block];
        for (uint32_t lane = 0; lane < s->n_lanes; lane++) {
            uint64_t n_bytes = s->lane_bytes[lane];
            b->dev_pieces.push_back(lane_at + block * n_bytes);
            b->host_pieces.push_back(host);
            b->sizes.push_back(n_bytes);
            lane_at += s->n_blocks * n_bytes;
            host += n_bytes;
        }
    }
}

bool upload_lanes(cuda_baseline *b, const baseline_shape *s)
{
    std::vector<lane_place> lanes(s->n_lanes);
    uint64_t at = 0, packed_at = 0;
    for (uint32_t i = 0; i < s->n_lanes; i++) {
        uint64_t words = s->lane_bytes[i] / sizeof(uint4);
        lanes[i] = {at, packed_at, words};
        at += words * s->n_blocks;
        packed_at += words;
    }
    size_t n_bytes = lanes.size() * sizeof(lanes[0]);
    return ok(cudaMalloc((void **)&b->dev_lanes, n_bytes), "allocate a table") &&
           ok(cudaMemcpy(b->dev_lanes, lanes.data(), n_bytes, cudaMemcpyHostToDevice), "copy a table");
}

bool upload_hosts(cuda_baseline *b, const baseline_shape *s)
{
    std::vector<void *> hosts(s->n_blocks);
    for (uint32_t i = 0; i < s->n_blocks; i++)
        if (!ok(cudaHostGetDevicePointer(&hosts[i], s->host_blocks[i], 0), "reach the host's memory"))
            return false;
    size_t n_bytes = hosts.size() * sizeof(hosts[0]);
    return ok(cudaMalloc((void **)&b->dev_hosts, n_bytes), "allocate a table") &&
           ok(cudaMemcpy(b->dev_hosts, hosts.data(), n_bytes, cudaMemcpyHostToDevice), "copy a table");
}

bool open_streams(cuda_baseline *b)
{
    for (int i = 0; i < 2; i++)
        if (!ok(cudaStreamCreateWithFlags(&b->streams[i], cudaStreamNonBlocking), "create a stream") ||
            !ok(cudaMalloc(&b->dev_chunks[i], b->chunk_bytes), "allocate a chunk (try a smaller --bytes)"))
            return false;
    return true;
}

bool prepare(cuda_baseline *b, const baseline_shape *s)
{
    uint64_t block_bytes = baseline_block_bytes(s);
    b->chunk_bytes = block_bytes > least_chunk_bytes ? block_bytes : least_chunk_bytes;
    try {
        list_pieces(b, s);
        return upload_lanes(b, s) && upload_hosts(b, s) && open_streams(b);
    } catch (const std::bad_alloc &) {
        fprintf(stderr, "no memory for the list of pieces: try a smaller --bytes\n");
        return false;
    }
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
    if (!prepare(b, shape)) {
        baseline_cuda_close(&b->common);
        return false;
    }
    *made = &b->common;
    return true;
}

void baseline_cuda_close(baseline *common)
{
    cuda_baseline *b = reinterpret_cast<cuda_baseline *>(common);
    cudaFree(b->dev_lanes);
    cudaFree(b->dev_hosts);
    for (int i = 0; i < 2; i++) {
        cudaFree(b->dev_chunks[i]);
        if (b->streams[i])
            cudaStreamDestroy(b->streams[i]);
    }
    delete b;
}
