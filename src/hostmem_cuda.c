/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's part in pinning. Its own entry points are used, found through the runtime: they leave nothing in the
 * runtime's last error, neither ours for the caller to trip over, nor does clearing it swallow one of the caller's. */
#include "hostmem_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if KVX_WITH_CUDA

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

struct kvx_hostmem_driver {
    CUcontext context;
    PFN_cuCtxGetCurrent_v4000 current;
    PFN_cuCtxPushCurrent_v4000 push;
    PFN_cuCtxPopCurrent_v4000 pop;
    PFN_cuThreadExchangeStreamCaptureMode_v10010 exchange_mode;
    PFN_cuMemHostRegister_v6050 register_memory;
    PFN_cuMemHostUnregister_v4000 unregister_memory;
    PFN_cuMemHostGetDevicePointer_v3020 device_pointer;
    PFN_cuMemHostAlloc_v2020 allocate;
    PFN_cuMemFreeHost_v2000 free_memory;
    PFN_cuStreamCreate_v2000 stream_create;
    PFN_cuStreamSynchronize_v2000 stream_wait;
    PFN_cuStreamDestroy_v4000 stream_destroy;
    PFN_cuMemsetD32Async_v3020 set;
    PFN_cuMemcpyAsync_v4000 copy;
    PFN_cuGetErrorName_v6000 error_name;
};

int kvx_hostmem_gpu_usable(const char **why)
{
    int n = 0;
    cudaError_t error = cudaGetDeviceCount(&n);
    if (error == cudaSuccess && n > 0)
        return 1;
    (void)cudaGetLastError();
    *why = error == cudaSuccess ? "no CUDA device" : cudaGetErrorString(error);
    return 0;
}

int kvx_hostmem_gpu_node(void)
{
    char bus[32], path[96];
    int device, node = -1;
    if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetPCIBusId(bus, sizeof(bus), device) != cudaSuccess) {
        (void)cudaGetLastError();
        return -1;
    }
    for (char *c = bus; *c; c++)
        if (*c >= 'A' && *c <= 'F')
            *c = (char)(*c - 'A' + 'a');
    snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/numa_node", bus);
    FILE *file = fopen(path, "re");
    if (!file)
        return -1;
    if (fscanf(file, "%d", &node) != 1)
        node = -1;
    fclose(file);
    return node;
}

static int find(const char *name, void *function)
{
    void *found = NULL;
    enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, 10020, cudaEnableDefault, &result);
#else
    cudaError_t error = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
    if (error != cudaSuccess)
        (void)cudaGetLastError();
    if (error != cudaSuccess || result != cudaDriverEntryPointSuccess || !found)
        return 0;
    memcpy(function, &found, sizeof(found));
    return 1;
}

static int find_all(kvx_hostmem_driver *d)
{
    return find("cuCtxGetCurrent", &d->current) && find("cuCtxPushCurrent", &d->push) &&
           find("cuCtxPopCurrent", &d->pop) && find("cuThreadExchangeStreamCaptureMode", &d->exchange_mode) &&
           find("cuMemHostRegister", &d->register_memory) && find("cuMemHostUnregister", &d->unregister_memory) &&
           find("cuMemHostGetDevicePointer", &d->device_pointer) && find("cuMemHostAlloc", &d->allocate) &&
           find("cuMemFreeHost", &d->free_memory) && find("cuStreamCreate", &d->stream_create) &&
           find("cuStreamSynchronize", &d->stream_wait) && find("cuStreamDestroy", &d->stream_destroy) &&
           find("cuMemsetD32Async", &d->set) && find("cuMemcpyAsync", &d->copy) &&
           find("cuGetErrorName", &d->error_name);
}

kvx_status kvx_hostmem_driver_open(kvx_hostmem_driver **driver)
{
    kvx_hostmem_driver *made = calloc(1, sizeof(*made));
    if (!made)
        return kvx_note(KVX_NO_MEMORY, "no memory for the driver's entry points");
    kvx_status status = KVX_OK;
    cudaError_t error = cudaFree(NULL); /* makes the current device's context, if nobody has yet */
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        status = kvx_note(KVX_UNSUPPORTED, "no CUDA context: %s", cudaGetErrorString(error));
    } else if (!find_all(made) || made->current(&made->context) != CUDA_SUCCESS || !made->context) {
        status = kvx_note(KVX_INTERNAL, "the CUDA driver lacks a call that pinning needs");
    }
    if (status != KVX_OK) {
        free(made);
        return status;
    }
    *driver = made;
    return KVX_OK;
}

void kvx_hostmem_driver_close(kvx_hostmem_driver *driver)
{
    free(driver);
}

void kvx_hostmem_driver_enter(kvx_hostmem_driver *driver, int *capture_mode)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    (void)driver->exchange_mode(&mode);
    *capture_mode = (int)mode;
    (void)driver->push(driver->context);
}

void kvx_hostmem_driver_leave(kvx_hostmem_driver *driver, int capture_mode)
{
    CUcontext own;
    CUstreamCaptureMode mode = (CUstreamCaptureMode)capture_mode;
    (void)driver->pop(&own);
    (void)driver->exchange_mode(&mode);
}

static CUresult find_dev(kvx_hostmem_driver *driver, void *host, uint8_t **dev)
{
    CUdeviceptr address = 0;
    CUresult error = driver->device_pointer(&address, host, 0);
    if (error == CUDA_SUCCESS)
        *dev = (uint8_t *)(uintptr_t)address;
    return error;
}

int kvx_hostmem_driver_register(kvx_hostmem_driver *driver, void *host, uint64_t bytes, uint8_t **dev)
{
    CUresult error = driver->register_memory(host, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    if (error != CUDA_SUCCESS)
        return (int)error;
    error = find_dev(driver, host, dev);
    if (error != CUDA_SUCCESS)
        (void)driver->unregister_memory(host);
    return (int)error;
}

int kvx_hostmem_driver_unregister(kvx_hostmem_driver *driver, void *host)
{
    return (int)driver->unregister_memory(host);
}

int kvx_hostmem_driver_allocate(kvx_hostmem_driver *driver, uint64_t bytes, uint8_t **host, uint8_t **dev)
{
    void *memory = NULL;
    CUresult error = driver->allocate(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    if (error != CUDA_SUCCESS)
        return (int)error;
    error = find_dev(driver, memory, dev);
    if (error != CUDA_SUCCESS) {
        (void)driver->free_memory(memory);
        return (int)error;
    }
    *host = memory;
    return 0;
}

int kvx_hostmem_driver_free(kvx_hostmem_driver *driver, void *host)
{
    return (int)driver->free_memory(host);
}

/* The GPU writes the first word, then copies the second, which the host wrote, to the third. */
static CUresult write_and_copy(kvx_hostmem_driver *driver, uint8_t *dev, CUstream stream)
{
    CUdeviceptr words = (CUdeviceptr)(uintptr_t)dev;
    CUresult error = driver->set(words, 0x600df00du, 1, stream);
    if (error == CUDA_SUCCESS)
        error = driver->copy(words + 8, words + 4, 4, stream);
    CUresult ended = driver->stream_wait(stream);
    return error == CUDA_SUCCESS ? ended : error;
}

int kvx_hostmem_driver_probe(kvx_hostmem_driver *driver, uint8_t *host, uint8_t *dev)
{
    volatile uint32_t *words = (volatile uint32_t *)(void *)host;
    CUstream stream = NULL;
    CUresult error = driver->stream_create(&stream, CU_STREAM_NON_BLOCKING);
    if (error != CUDA_SUCCESS)
        return (int)error;
    words[1] = 0xfeedbeefu;
    error = write_and_copy(driver, dev, stream);
    int seen = words[0] == 0x600df00du && words[2] == 0xfeedbeefu;
    words[0] = words[1] = words[2] = 0;
    (void)driver->stream_destroy(stream);
    return error != CUDA_SUCCESS ? (int)error : seen ? 0 : KVX_HOSTMEM_NOT_SEEN;
}

const char *kvx_hostmem_driver_error(kvx_hostmem_driver *driver, int error)
{
    const char *name = NULL;
    if (error == KVX_HOSTMEM_NOT_SEEN)
        return "GPU and host do not see each other's writes";
    return driver->error_name((CUresult)error, &name) == CUDA_SUCCESS && name ? name : "unknown CUDA error";
}

#else

int kvx_hostmem_gpu_usable(const char **why)
{
    *why = "built without CUDA";
    return 0;
}

int kvx_hostmem_gpu_node(void)
{
    return -1;
}

kvx_status kvx_hostmem_driver_open(kvx_hostmem_driver **driver)
{
    (void)driver;
    return kvx_note(KVX_UNSUPPORTED, "built without CUDA");
}

/* Nobody comes here without a driver. */
void kvx_hostmem_driver_close(kvx_hostmem_driver *driver)
{
    (void)driver;
}

void kvx_hostmem_driver_enter(kvx_hostmem_driver *driver, int *capture_mode)
{
    (void)driver;
    *capture_mode = 0;
}

void kvx_hostmem_driver_leave(kvx_hostmem_driver *driver, int capture_mode)
{
    (void)driver, (void)capture_mode;
}

int kvx_hostmem_driver_register(kvx_hostmem_driver *driver, void *host, uint64_t bytes, uint8_t **dev)
{
    (void)driver, (void)host, (void)bytes, (void)dev;
    return KVX_HOSTMEM_NOT_SEEN;
}

int kvx_hostmem_driver_unregister(kvx_hostmem_driver *driver, void *host)
{
    (void)driver, (void)host;
    return 0;
}

int kvx_hostmem_driver_allocate(kvx_hostmem_driver *driver, uint64_t bytes, uint8_t **host, uint8_t **dev)
{
    (void)driver, (void)bytes, (void)host, (void)dev;
    return KVX_HOSTMEM_NOT_SEEN;
}

int kvx_hostmem_driver_free(kvx_hostmem_driver *driver, void *host)
{
    (void)driver, (void)host;
    return 0;
}

int kvx_hostmem_driver_probe(kvx_hostmem_driver *driver, uint8_t *host, uint8_t *dev)
{
    (void)driver, (void)host, (void)dev;
    return KVX_HOSTMEM_NOT_SEEN;
}

const char *kvx_hostmem_driver_error(kvx_hostmem_driver *driver, int error)
{
    (void)driver, (void)error;
    return "built without CUDA";
}

#endif
