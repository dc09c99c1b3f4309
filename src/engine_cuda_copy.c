/* SPDX-License-Identifier: Apache-2.0 */
/* The one door to the copy engine. A burst is one operation: a single copy if its slots are neighbours, else one batch;
 * where the driver has no batched copies, a loop. */
#include "engine_cuda.h"

#include <stdlib.h>

#if CUDART_VERSION >= 12080
static cudaError_t copy_batch(const kvx_cuda_copier *copier, uint32_t n, cudaStream_t stream)
{
    struct cudaMemcpyAttributes attributes = {.srcAccessOrder = cudaMemcpySrcAccessOrderStream};
    size_t first = 0;
#if CUDART_VERSION >= 13000
    return cudaMemcpyBatchAsync((void *const *)copier->to, (const void *const *)copier->from, copier->bytes, n,
                                &attributes, &first, 1, stream);
#else
    size_t failed = 0;
    return cudaMemcpyBatchAsync(copier->to, copier->from, copier->bytes, n, &attributes, &first, 1, &failed, stream);
#endif
}
#else
static cudaError_t copy_batch(const kvx_cuda_copier *copier, uint32_t n, cudaStream_t stream)
{
    (void)copier;
    (void)n;
    (void)stream;
    return cudaErrorNotSupported;
}
#endif

/* Two words of zeros, from the result table to the ring, before anything else uses them. */
static void probe(kvx_cuda *engine)
{
    kvx_cuda_copier *copier = &engine->copier;
    cudaError_t error;
    uint32_t i;
    for (i = 0; i < 2; i++) {
        copier->to[i] = engine->restore_ring.dev + 64 * i;
        copier->from[i] = engine->results + i;
        copier->bytes[i] = sizeof *engine->results;
    }
    error = copy_batch(copier, 2, engine->streams[KVX_CUDA_SETUP]);
    if (error == cudaSuccess)
        error = kvx_cuda_synchronize(engine, KVX_CUDA_SETUP);
    copier->batched = error == cudaSuccess;
    (void)cudaGetLastError();
}

kvx_status kvx_cuda_copier_create(kvx_cuda *engine)
{
    kvx_cuda_copier *copier = &engine->copier;
    copier->to = calloc(KVX_PAIRS_PER_LAUNCH, sizeof *copier->to);
    copier->from = calloc(KVX_PAIRS_PER_LAUNCH, sizeof *copier->from);
    copier->bytes = calloc(KVX_PAIRS_PER_LAUNCH, sizeof *copier->bytes);
    if (!copier->to || !copier->from || !copier->bytes)
        return kvx_note(KVX_NO_MEMORY, "no host memory for lists of copies");
    probe(engine);
    return KVX_OK;
}

void kvx_cuda_copier_destroy(kvx_cuda *engine)
{
    free(engine->copier.bytes);
    free(engine->copier.from);
    free(engine->copier.to);
}

static cudaError_t copy_loop(kvx_cuda *engine, uint32_t n, int to_pool, cudaStream_t stream)
{
    const kvx_cuda_copier *copier = &engine->copier;
    enum cudaMemcpyKind kind = to_pool ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;
    uint32_t i;
    for (i = 0; i < n; i++) {
        cudaError_t error = cudaMemcpyAsync(copier->to[i], copier->from[i], copier->bytes[i], kind, stream);
        if (error != cudaSuccess)
            return error;
        atomic_fetch_add(&engine->n_copies, 1);
    }
    return cudaSuccess;
}

cudaError_t kvx_cuda_copy(kvx_cuda *engine, const kvx_burst *burst, uint8_t *staged, int to_pool, cudaStream_t stream)
{
    kvx_cuda_copier *copier = &engine->copier;
    cudaError_t error;
    uint32_t i;
    for (i = 0; i < burst->n_copies; i++) {
        const kvx_plan_copy *copy = &burst->copies[i];
        void *host = engine->config.pool->chunks[copy->chunk].host + copy->pool_offset;
        void *ring = staged + copy->ring_offset;
        copier->to[i] = to_pool ? host : ring;
        copier->from[i] = to_pool ? ring : host;
        copier->bytes[i] = copy->bytes;
    }
    if (burst->n_copies < 2 || !copier->batched)
        return copy_loop(engine, burst->n_copies, to_pool, stream);
    error = copy_batch(copier, burst->n_copies, stream);
    if (error == cudaSuccess)
        atomic_fetch_add(&engine->n_copies, 1);
    return error;
}
