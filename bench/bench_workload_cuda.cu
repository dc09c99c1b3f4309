/* SPDX-License-Identifier: Apache-2.0 */
/* The workloads: matrix products, and a graph of kernels that read memory. Both are deterministic to the bit. */
#include <cmath>
#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

#include "bench_gemm.cuh"
#include "bench_workload.h"
#include "pattern.h"

const char *const workload_names[WORKLOAD_KINDS] = {"gemm_persistent", "gemm_waves", "prefill", "decode",
                                                    "decode_tokens"};

struct workload {
    bench *b;
    workload_kind kind;
    gemm::problem product;
    int n_ctas;
    uint8_t *dev_memory;   /* decode: what is read */
    uint64_t *dev_result;  /* decode: sums, one for each CTA and kernel */
    uint64_t *host_tokens; /* tokens: the copy of the first sums */
    uint64_t *dev_checksum;
    cudaStream_t stream;
    cudaGraphExec_t graph;
    std::vector<cudaEvent_t> events; /* of all steps, and one before them */
    uint64_t checksum;               /* of the first step; 0: none yet */
    double starved;                  /* seconds, see workload_starved() */
};

namespace
{

constexpr uint32_t steps_ahead = 16;
constexpr double patience = 20;          /* seconds until a step that does not end counts as lost */
constexpr double starved_patience = 0.5; /* tokens: the same, until the rest of the run goes on alone */
constexpr uint32_t tokens_ahead = 2;     /* steps, as an engine that schedules one ahead */
constexpr size_t token_bytes = 2048;     /* 256 requests, 8 bytes each */
constexpr uint32_t decode_kernels = 64, decode_threads = 512;
constexpr uint64_t decode_bytes = 64u << 20, decode_memory = decode_kernels * decode_bytes;

bool ok(cudaError_t error, const char *doing)
{
    if (error != cudaSuccess)
        fprintf(stderr, "interference: %s: %s\n", doing, cudaGetErrorString(error));
    return error == cudaSuccess;
}

/* ------------------------------------------------------------------------------------------------------------ kernels
 */

/* Values from -1 to 1 with seven bits: products of them are exact in f32. */
__global__ void fill_matrix(__nv_bfloat16 *matrix, size_t n, uint64_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        matrix[i] = __float2bfloat16(((int)(pattern_word(seed, i) & 0xff) - 128) / 128.0f);
}

__global__ void __launch_bounds__(decode_threads) read_memory(const uint4 *from, uint64_t *sums)
{
    const uint64_t n = decode_bytes / sizeof(uint4), step = (uint64_t)gridDim.x * decode_threads;
    uint64_t sum = 0;
#pragma unroll 4
    for (uint64_t i = (uint64_t)blockIdx.x * decode_threads + threadIdx.x; i < n; i += step) {
        const uint4 x = __ldcs(from + i);
        sum += (uint64_t)(x.x ^ x.z) << 32 | (x.y ^ x.w);
    }
    for (int mask = 16; mask > 0; mask /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    if (threadIdx.x % 32 == 0)
        sums[blockIdx.x * (decode_threads / 32) + threadIdx.x / 32] = sum;
}

__global__ void add_up(const uint64_t *words, size_t n, uint64_t *checksum)
{
    unsigned long long sum = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        sum += pattern_word(words[i], i);
    atomicAdd(reinterpret_cast<unsigned long long *>(checksum), sum);
}

/* ------------------------------------------------------------------------------------------------------------ opening
 */

template <class T> bool make(size_t n, T **memory)
{
    return ok(cudaMalloc(reinterpret_cast<void **>(memory), n * sizeof(T)), "allocate GPU memory for a workload");
}

bool open_product(workload *w, int m, int n, int k)
{
    __nv_bfloat16 *a = nullptr, *b = nullptr;
    w->product = {nullptr, nullptr, nullptr, m, n, k};
    if (!make((size_t)m * k, &a))
        return false;
    w->product.a = a;
    if (!make((size_t)n * k, &b))
        return false;
    w->product.b = b;
    if (!make((size_t)m * n, &w->product.c))
        return false;
    fill_matrix<<<1024, 256, 0, w->stream>>>(a, (size_t)m * k, 1);
    fill_matrix<<<1024, 256, 0, w->stream>>>(b, (size_t)n * k, 2);
    if (w->kind == WORKLOAD_WAVES)
        w->n_ctas = m / gemm::tile_m * (n / gemm::tile_n);
    return ok(cudaGetLastError(), "fill matrices") &&
           ok(cudaFuncSetAttribute(gemm::kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, gemm::shared_bytes),
              "take shared memory for a matrix product");
}

bool open_decode(workload *w)
{
    cudaGraph_t graph = nullptr;
    w->n_ctas *= 4;
    const size_t n_sums = (size_t)w->n_ctas * (decode_threads / 32);
    if (!make(decode_memory, &w->dev_memory) || !make(decode_kernels * n_sums, &w->dev_result) ||
        !device_fill(&w->b->dev, w->dev_memory, decode_memory, 3, 0) || !device_sync(&w->b->dev) ||
        !ok(cudaStreamBeginCapture(w->stream, cudaStreamCaptureModeThreadLocal), "capture"))
        return false;
    for (uint32_t i = 0; i < decode_kernels; i++)
        read_memory<<<w->n_ctas, decode_threads, 0, w->stream>>>(
            reinterpret_cast<const uint4 *>(w->dev_memory + i * decode_bytes), w->dev_result + i * n_sums);
    const bool done = ok(cudaStreamEndCapture(w->stream, &graph), "capture") &&
                      ok(cudaGraphInstantiate(&w->graph, graph, 0), "make a graph");
    if (graph)
        cudaGraphDestroy(graph);
    return done;
}

bool open_tokens(workload *w)
{
    if (!ok(cudaHostAlloc(reinterpret_cast<void **>(&w->host_tokens), token_bytes, cudaHostAllocDefault), "pin memory"))
        return false;
    memset(w->host_tokens, 0, token_bytes);
    return open_decode(w);
}

bool make_events(workload *w)
{
    w->events.resize(WORKLOAD_STEPS_MAX + 1);
    for (cudaEvent_t &event : w->events)
        if (!ok(cudaEventCreate(&event), "create an event"))
            return false;
    return true;
}

bool open_kind(workload *w)
{
    switch (w->kind) {
    case WORKLOAD_PREFILL:
        return open_product(w, 5120, 2048, 5120);
    case WORKLOAD_DECODE:
        return open_decode(w);
    case WORKLOAD_TOKENS:
        return open_tokens(w);
    default:
        return open_product(w, 8192, 8192, 8192);
    }
}

bool step(workload *w)
{
    if (workload_is_decode(w->kind))
        return ok(cudaGraphLaunch(w->graph, w->stream), "launch a graph") &&
               (!w->host_tokens ||
                ok(cudaMemcpyAsync(w->host_tokens, w->dev_result, token_bytes, cudaMemcpyDeviceToHost, w->stream),
                   "copy tokens"));
    gemm::kernel<<<w->n_ctas, gemm::n_threads, gemm::shared_bytes, w->stream>>>(w->product);
    return ok(cudaGetLastError(), "launch a matrix product");
}

/* ------------------------------------------------------------------------------------------------------------- checks
 */

/* One element by the CPU: sums of products that are multiples of 2^-14 and below 2^13, so exact in double. */
bool check_element(workload *w, int row, int column)
{
    const int k = w->product.k;
    std::vector<__nv_bfloat16> a(k), b(k);
    __nv_bfloat16 c;
    double sum = 0;
    if (!ok(cudaMemcpy(a.data(), w->product.a + (size_t)row * k, k * 2, cudaMemcpyDefault), "read a matrix") ||
        !ok(cudaMemcpy(b.data(), w->product.b + (size_t)column * k, k * 2, cudaMemcpyDefault), "read a matrix") ||
        !ok(cudaMemcpy(&c, w->product.c + (size_t)row * w->product.n + column, 2, cudaMemcpyDefault), "read a matrix"))
        return false;
    for (int i = 0; i < k; i++)
        sum += (double)__bfloat162float(a[i]) * __bfloat162float(b[i]);
    if (fabs(__bfloat162float(c) - sum) > fabs(sum) / 128 + 0.01)
        bench_fail(w->b, "%s: element %d, %d is %g and not %g", workload_names[w->kind], row, column,
                   __bfloat162float(c), sum);
    return true;
}

bool check_product(workload *w)
{
    bool done = true;
    for (int i = 0; i < 16 && done; i++) {
        const uint64_t x = pattern_word(4, (uint64_t)i);
        done = check_element(w, (int)(x % (uint64_t)w->product.m), (int)((x >> 32) % (uint64_t)w->product.n));
    }
    return done;
}

/* The copy of the tokens is what it was copied from; the next run must bring it again. */
bool check_tokens(workload *w)
{
    uint64_t sums[token_bytes / sizeof(uint64_t)];
    if (!device_copy(&w->b->dev, sums, w->dev_result, token_bytes))
        return false;
    if (memcmp(sums, w->host_tokens, token_bytes) != 0)
        bench_fail(w->b, "%s: the copy to the host is another than its source", workload_names[w->kind]);
    memset(w->host_tokens, 0, token_bytes);
    return true;
}

bool sum_up(workload *w, uint64_t *checksum)
{
    const bool decode = workload_is_decode(w->kind);
    const uint64_t *words = decode ? w->dev_result : reinterpret_cast<const uint64_t *>(w->product.c);
    const size_t n =
        decode ? decode_kernels * (size_t)w->n_ctas * (decode_threads / 32) : (size_t)w->product.m * w->product.n / 4;
    /* Not in the workload's stream: see run_steps(). */
    if (!ok(cudaMemsetAsync(w->dev_checksum, 0, sizeof *checksum, w->b->dev.stream), "clear a checksum"))
        return false;
    add_up<<<1024, 256, 0, w->b->dev.stream>>>(words, n, w->dev_checksum);
    return ok(cudaGetLastError(), "checksum") && device_copy(&w->b->dev, checksum, w->dev_checksum, sizeof *checksum);
}

struct progress {
    uint32_t n_started, n_ended;
    double last_end; /* on the host's clock */
};

/* Takes in the steps that have ended. */
bool count_ended(workload *w, progress *p)
{
    cudaError_t error = cudaSuccess;
    while (error == cudaSuccess && p->n_ended < p->n_started) {
        error = cudaEventQuery(w->events[p->n_ended + 1]);
        if (error == cudaSuccess) {
            p->n_ended++;
            p->last_end = bench_now();
        }
    }
    if (error != cudaErrorNotReady)
        return ok(error, "look at a step");
    const double waited = bench_now() - p->last_end;
    if (w->kind == WORKLOAD_TOKENS && waited > starved_patience)
        w->starved = waited;
    if (waited < patience)
        return true;
    fprintf(stderr, "interference: %s: step %u has not ended after %.0f s: it is kept from the GPU\n",
            workload_names[w->kind], p->n_ended, patience);
    return false;
}

/* One thread does everything: of two that called the driver all the time, one was seen to wait for its lock for good.
 * But for that of the tokens the stream holds nothing but kernels: after a copy to the host in it, its next kernel was
 * seen to wait for as long as stores kept the copy engine busy. */
bool run_steps(workload *w, uint32_t n_steps, const workload_meanwhile *meanwhile)
{
    const uint32_t ahead = w->kind == WORKLOAD_TOKENS ? tokens_ahead : steps_ahead;
    progress p = {0, 0, bench_now()};
    w->starved = 0;
    if (!ok(cudaEventRecord(w->events[0], w->stream), "event"))
        return false;
    while (p.n_ended < n_steps) {
        if (p.n_started < n_steps && p.n_started - p.n_ended < ahead) {
            p.n_started++;
            if (!step(w) || !ok(cudaEventRecord(w->events[p.n_started], w->stream), "event"))
                return false;
        } else if (meanwhile && w->starved <= 0 && !meanwhile->step(meanwhile->context))
            return false;
        if (!count_ended(w, &p))
            return false;
    }
    return true;
}

} // namespace

/* -------------------------------------------------------------------------------------------------------- the
 * interface
 */

bool workload_open(bench *b, workload_kind kind, workload **made)
{
    workload *w = new (std::nothrow) workload();
    int least = 0, greatest = 0;
    if (!w)
        return false;
    w->b = b;
    w->kind = kind;
    if (!ok(cudaDeviceGetStreamPriorityRange(&least, &greatest), "ask for priorities") ||
        !ok(cudaStreamCreateWithPriority(&w->stream, cudaStreamNonBlocking, greatest), "create a stream") ||
        !ok(cudaDeviceGetAttribute(&w->n_ctas, cudaDevAttrMultiProcessorCount, b->dev.ordinal), "count SMs") ||
        !make_events(w) || !make(1, &w->dev_checksum) || !open_kind(w)) {
        workload_close(w);
        return false;
    }
    *made = w;
    return true;
}

void workload_close(workload *w)
{
    if (w->stream)
        cudaStreamSynchronize(w->stream);
    for (cudaEvent_t event : w->events)
        if (event)
            cudaEventDestroy(event);
    if (w->graph)
        cudaGraphExecDestroy(w->graph);
    cudaFree(const_cast<__nv_bfloat16 *>(w->product.a));
    cudaFree(const_cast<__nv_bfloat16 *>(w->product.b));
    cudaFree(w->product.c);
    cudaFree(w->dev_memory);
    cudaFree(w->dev_result);
    cudaFree(w->dev_checksum);
    cudaFreeHost(w->host_tokens);
    if (w->stream)
        cudaStreamDestroy(w->stream);
    delete w;
}

bool workload_run(workload *w, uint32_t n_steps, const workload_meanwhile *meanwhile, bench_samples *step_us,
                  double *seconds)
{
    float ms = 0;
    bool done = n_steps < w->events.size() && run_steps(w, n_steps, meanwhile);
    for (uint32_t i = 0; done && step_us && i < n_steps; i++) {
        done = ok(cudaEventElapsedTime(&ms, w->events[i], w->events[i + 1]), "read an event");
        bench_samples_add(step_us, ms * 1e3);
    }
    done = done && ok(cudaEventElapsedTime(&ms, w->events[0], w->events[n_steps]), "read an event");
    *seconds = ms * 1e-3;
    return done;
}

bool workload_check(workload *w, const char *beside)
{
    uint64_t checksum = 0;
    if (!sum_up(w, &checksum) || (w->host_tokens && !check_tokens(w)))
        return false;
    if (w->checksum == 0) {
        w->checksum = checksum;
        return workload_is_decode(w->kind) || check_product(w);
    }
    if (checksum != w->checksum)
        bench_fail(w->b, "%s beside %s: another result than alone", workload_names[w->kind], beside);
    return true;
}

double workload_starved(const workload *w)
{
    return w->starved;
}

double workload_amount(const workload *w, bool *is_bytes)
{
    *is_bytes = workload_is_decode(w->kind);
    return *is_bytes ? (double)decode_memory : 2.0 * w->product.m * w->product.n * w->product.k;
}
