/* SPDX-License-Identifier: Apache-2.0 */
/* One batched copy, called and polled by hand. */
#include <cstdio>
#include <new>
#include <vector>

#include <cuda_runtime.h>

#include "bench_latency.h"

struct latency_copy {
    std::vector<void *> to, from;
    std::vector<size_t> sizes;
    cudaStream_t stream;
    cudaEvent_t event;
};

static bool ok(cudaError_t error, const char *doing)
{
    if (error != cudaSuccess)
        fprintf(stderr, "latency: %s: %s\n", doing, cudaGetErrorString(error));
    return error == cudaSuccess;
}

static cudaError_t copy_batch(latency_copy *c)
{
    cudaMemcpyAttributes attributes = {};
    size_t first = 0;
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
#if CUDART_VERSION >= 13000
    return cudaMemcpyBatchAsync(c->to.data(), const_cast<const void **>(c->from.data()), c->sizes.data(),
                                c->sizes.size(), &attributes, &first, 1, c->stream);
#else
    size_t failed = 0;
    return cudaMemcpyBatchAsync(c->to.data(), c->from.data(), c->sizes.data(), c->sizes.size(), &attributes, &first, 1,
                                &failed, c->stream);
#endif
}

bool latency_copy_open(const latency_ranges *ranges, latency_copy **made)
{
    latency_copy *c = new (std::nothrow) latency_copy();
    if (!c)
        return false;
    for (uint32_t i = 0; i < ranges->n; i++) {
        c->to.push_back(ranges->out ? ranges->host[i] : ranges->dev[i]);
        c->from.push_back(ranges->out ? ranges->dev[i] : ranges->host[i]);
        c->sizes.push_back(ranges->n_bytes);
    }
    if (!ok(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), "create a stream") ||
        !ok(cudaEventCreateWithFlags(&c->event, cudaEventDisableTiming), "create an event")) {
        latency_copy_close(c);
        return false;
    }
    *made = c;
    return true;
}

void latency_copy_close(latency_copy *c)
{
    if (!c)
        return;
    if (c->stream)
        cudaStreamSynchronize(c->stream);
    if (c->event)
        cudaEventDestroy(c->event);
    if (c->stream)
        cudaStreamDestroy(c->stream);
    delete c;
}

bool latency_copy_call(latency_copy *c)
{
    return ok(copy_batch(c), "batched copy") && ok(cudaEventRecord(c->event, c->stream), "record an event");
}

bool latency_copy_poll(latency_copy *c, bool *ended)
{
    const cudaError_t error = cudaEventQuery(c->event);
    *ended = error == cudaSuccess;
    return error == cudaErrorNotReady || ok(error, "wait for a copy");
}
