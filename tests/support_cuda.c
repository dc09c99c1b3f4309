/* SPDX-License-Identifier: Apache-2.0 */
/* The device of the CUDA engine. Uploads and downloads use a stream of their own, so that they never wait for a stream
 * that a test holds shut. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime_api.h>

static void cuda_ok(cudaError_t error, const char *what)
{
    if (error != cudaSuccess)
        fail_msg("%s: %s", what, cudaGetErrorString(error));
}

static int cuda_usable(const char **why)
{
    static char text[160];
    int n = 0;
    /* A kernel that is loaded at its first launch may wait for the device, which a closed gate would make for ever. */
    (void)setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    cudaError_t error = cudaGetDeviceCount(&n);
    if (error == cudaSuccess && n > 0)
        error = cudaFree(NULL);
    (void)snprintf(text, sizeof text, "no usable GPU (%s)", n > 0 ? cudaGetErrorString(error) : "none found");
    *why = text;
    (void)cudaGetLastError();
    return n > 0 && error == cudaSuccess;
}

static void *cuda_alloc(size_t bytes)
{
    void *memory = NULL;
    cuda_ok(cudaMalloc(&memory, bytes), "cudaMalloc");
    return memory;
}

static void cuda_free(void *memory)
{
    cuda_ok(cudaFree(memory), "cudaFree");
}

static kvx_stream cuda_stream_create(void)
{
    cudaStream_t stream = NULL;
    cuda_ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return stream;
}

static void cuda_stream_destroy(kvx_stream stream)
{
    cuda_ok(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

static void cuda_stream_sync(kvx_stream stream)
{
    cuda_ok(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

/* One for each thread, kept until the process ends. */
static kvx_stream own_stream(void)
{
    static _Thread_local kvx_stream stream;
    if (!stream)
        stream = cuda_stream_create();
    return stream;
}

static void copy_now(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    cuda_ok(cudaMemcpyAsync(to, from, bytes, kind, own_stream()), "cudaMemcpyAsync");
    cuda_stream_sync(own_stream());
}

static void cuda_upload(void *dev, const void *host, size_t bytes)
{
    copy_now(dev, host, bytes, cudaMemcpyHostToDevice);
}

static void cuda_download(void *host, const void *dev, size_t bytes)
{
    copy_now(host, dev, bytes, cudaMemcpyDeviceToHost);
}

static void cuda_set(void *dev, int value, size_t bytes)
{
    cuda_ok(cudaMemsetAsync(dev, value, bytes, own_stream()), "cudaMemsetAsync");
    cuda_stream_sync(own_stream());
}

static void cuda_stream_call(kvx_stream stream, void (*fn)(void *), void *arg)
{
    cuda_ok(cudaLaunchHostFunc(stream, fn, arg), "cudaLaunchHostFunc");
}

static void cuda_stream_wait(kvx_stream stream, kvx_event event)
{
    cuda_ok(cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent");
}

static void cuda_stream_copy(kvx_stream stream, void *to, const void *from, size_t bytes)
{
    cuda_ok(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
}

static kvx_event cuda_event_create(void)
{
    cudaEvent_t event = NULL;
    cuda_ok(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    return event;
}

static void cuda_event_destroy(kvx_event event)
{
    cuda_ok(cudaEventDestroy(event), "cudaEventDestroy");
}

static void cuda_event_record(kvx_event event, kvx_stream stream)
{
    cuda_ok(cudaEventRecord(event, stream), "cudaEventRecord");
}

static int cuda_event_fired(kvx_event event)
{
    return cudaEventQuery(event) == cudaSuccess;
}

static void cuda_event_sync(kvx_event event)
{
    cuda_ok(cudaEventSynchronize(event), "cudaEventSynchronize");
}

static void cuda_capture_begin(kvx_stream stream)
{
    cuda_ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
}

static void cuda_capture_drop(kvx_stream stream)
{
    cudaGraph_t graph = NULL;
    (void)cudaStreamEndCapture(stream, &graph);
    if (graph)
        cuda_ok(cudaGraphDestroy(graph), "cudaGraphDestroy");
    (void)cudaGetLastError();
}

const device device_cuda = {
    .name = "cuda",
    .engine = KVX_ENGINE_CUDA,
    .usable = cuda_usable,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .upload = cuda_upload,
    .download = cuda_download,
    .set = cuda_set,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .stream_sync = cuda_stream_sync,
    .stream_call = cuda_stream_call,
    .stream_wait = cuda_stream_wait,
    .stream_copy = cuda_stream_copy,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_fired = cuda_event_fired,
    .event_sync = cuda_event_sync,
    .capture_begin = cuda_capture_begin,
    .capture_drop = cuda_capture_drop,
};
