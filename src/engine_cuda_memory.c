/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory. Rings come from cuMemCreate with a handle that could be exported, so that a mover other than the CUDA
 * runtime can be given them; everything else from cudaMalloc. The driver is reached through the runtime, never linked.
 */
#include "engine_cuda.h"

#include <string.h>

#include <cuda.h>
#include <cudaTypedefs.h>

typedef struct driver {
    PFN_cuMemGetAllocationGranularity_v10020 granularity;
    PFN_cuMemCreate_v10020 create;
    PFN_cuMemAddressReserve_v10020 reserve;
    PFN_cuMemMap_v10020 map;
    PFN_cuMemSetAccess_v10020 set_access;
    PFN_cuMemUnmap_v10020 unmap;
    PFN_cuMemAddressFree_v10020 free_address;
    PFN_cuMemRelease_v10020 release;
} driver;

static int find(const char *name, int version, void *function)
{
    void *found = NULL;
    enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    cudaError_t error;
#if CUDART_VERSION >= 12050
    error = cudaGetDriverEntryPointByVersion(name, &found, (unsigned)version, cudaEnableDefault, &result);
#else
    (void)version;
    error = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
    if (error != cudaSuccess || result != cudaDriverEntryPointSuccess || !found)
        return 0;
    memcpy(function, &found, sizeof found);
    return 1;
}

static int find_driver(driver *d)
{
    return find("cuMemGetAllocationGranularity", 10020, &d->granularity) && find("cuMemCreate", 10020, &d->create) &&
           find("cuMemAddressReserve", 10020, &d->reserve) && find("cuMemMap", 10020, &d->map) &&
           find("cuMemSetAccess", 10020, &d->set_access) && find("cuMemUnmap", 10020, &d->unmap) &&
           find("cuMemAddressFree", 10020, &d->free_address) && find("cuMemRelease", 10020, &d->release);
}

static CUmemAllocationProp properties(int device)
{
    CUmemAllocationProp p;
    memset(&p, 0, sizeof p);
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = device;
    return p;
}

/* Nonzero if the memory was had; the block is filled then. */
static int create_exportable(int device, uint64_t bytes, kvx_cuda_block *block)
{
    CUmemAllocationProp p = properties(device);
    CUmemAccessDesc access = {.location = p.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr at = 0;
    size_t granularity = 0;
    driver d;
    if (!find_driver(&d))
        return 0;
    if (d.granularity(&granularity, &p, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS || granularity == 0)
        return 0;
    bytes = (bytes + granularity - 1) / granularity * granularity;
    if (d.create(&handle, bytes, &p, 0) != CUDA_SUCCESS)
        return 0;
    if (d.reserve(&at, bytes, 0, 0, 0) != CUDA_SUCCESS)
        goto release;
    if (d.map(at, bytes, 0, handle, 0) != CUDA_SUCCESS)
        goto free_address;
    if (d.set_access(at, bytes, &access, 1) != CUDA_SUCCESS)
        goto unmap;
    block->dev = (void *)(uintptr_t)at;
    block->bytes = bytes;
    block->handle = handle;
    return 1;
unmap:
    d.unmap(at, bytes);
free_address:
    d.free_address(at, bytes);
release:
    d.release(handle);
    return 0;
}

static void free_exportable(const kvx_cuda_block *block)
{
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)block->dev;
    driver d;
    if (!find_driver(&d))
        return;
    d.unmap(at, block->bytes);
    d.free_address(at, block->bytes);
    d.release(block->handle);
}

kvx_status kvx_cuda_allocate(kvx_cuda *engine, uint64_t bytes, int exportable, const char *what, void **dev)
{
    kvx_cuda_block block = {NULL, bytes, 0};
    cudaError_t error = cudaSuccess;
    if (engine->n_blocks == KVX_CUDA_BLOCKS)
        return kvx_note(KVX_INTERNAL, "too many blocks of device memory");
    if (!exportable || !create_exportable(engine->config.device, bytes, &block))
        error = cudaMalloc(&block.dev, bytes);
    if (error != cudaSuccess)
        return kvx_note(KVX_NO_MEMORY, "cudaMalloc of %llu bytes of device memory for %s: %s",
                        (unsigned long long)bytes, what, cudaGetErrorString(error));
    engine->blocks[engine->n_blocks++] = block;
    error = cudaMemsetAsync(block.dev, 0, block.bytes, engine->streams[KVX_CUDA_SETUP]);
    if (error != cudaSuccess)
        return kvx_cuda_note("cudaMemsetAsync", error);
    *dev = block.dev;
    return KVX_OK;
}

void kvx_cuda_zero_all(kvx_cuda *engine)
{
    uint32_t i;
    for (i = 0; i < engine->n_blocks; i++)
        (void)cudaMemsetAsync(engine->blocks[i].dev, 0, engine->blocks[i].bytes, engine->streams[KVX_CUDA_SETUP]);
}

void kvx_cuda_free_all(kvx_cuda *engine)
{
    while (engine->n_blocks > 0) {
        const kvx_cuda_block *block = &engine->blocks[--engine->n_blocks];
        if (block->handle)
            free_exportable(block);
        else
            (void)cudaFree(block->dev);
    }
}

/* The copy is ordered by a stream of its own: a plain cudaMemcpy goes behind the caller's work in the default stream,
 * and from pageable memory it may return before the bytes are there. */
static cudaError_t copy_and_wait(kvx_cuda *engine, void *to, const void *from, uint64_t bytes, enum cudaMemcpyKind kind)
{
    cudaError_t error = cudaSuccess;
    if (bytes > 0)
        error = cudaMemcpyAsync(to, from, bytes, kind, engine->streams[KVX_CUDA_SETUP]);
    return error == cudaSuccess ? kvx_cuda_synchronize(engine, KVX_CUDA_SETUP) : error;
}

cudaError_t kvx_cuda_upload(kvx_cuda *engine, void *dev, const void *host, uint64_t bytes)
{
    return copy_and_wait(engine, dev, host, bytes, cudaMemcpyHostToDevice);
}

cudaError_t kvx_cuda_download(kvx_cuda *engine, void *host, const void *dev, uint64_t bytes)
{
    return copy_and_wait(engine, host, dev, bytes, cudaMemcpyDeviceToHost);
}

static kvx_status check_address(const kvx_cuda *engine, uint64_t address, int host_too, const char *what,
                                uint32_t index)
{
    struct cudaPointerAttributes attributes;
    cudaError_t error = cudaPointerGetAttributes(&attributes, (const void *)(uintptr_t)address);
    if (error != cudaSuccess)
        return kvx_cuda_note("cudaPointerGetAttributes", error);
    if (attributes.type == cudaMemoryTypeManaged || (host_too && attributes.type == cudaMemoryTypeHost))
        return KVX_OK;
    if (attributes.type != cudaMemoryTypeDevice)
        return kvx_note(KVX_INVALID, "%s %u: 0x%llx is not device memory", what, index, (unsigned long long)address);
    if (attributes.device != engine->config.device)
        return kvx_note(KVX_INVALID, "%s %u: 0x%llx is memory of device %d, the context is on device %d", what, index,
                        (unsigned long long)address, attributes.device, engine->config.device);
    return KVX_OK;
}

kvx_status kvx_cuda_check_ends(const kvx_cuda *engine, uint64_t address, uint64_t bytes, const char *what)
{
    KVX_TRY(check_address(engine, address, 1, what, 0));
    return check_address(engine, address + bytes - 1, 1, what, 0);
}

/* Memory without a hole may be several allocations side by side: mapped one by one into a reserved range. */
kvx_status kvx_cuda_check_memory(const kvx_cuda *engine, uint64_t address, uint64_t bytes, const char *what,
                                 uint32_t index)
{
    PFN_cuMemGetAddressRange_v3020 range_of;
    uint64_t at = address;
    if (!find("cuMemGetAddressRange", 3020, &range_of))
        return kvx_note(KVX_UNSUPPORTED, "the driver has no cuMemGetAddressRange");
    while (at - address < bytes) {
        CUdeviceptr base = 0;
        size_t size = 0;
        KVX_TRY(check_address(engine, at, 0, what, index));
        if (range_of(&base, &size, (CUdeviceptr)at) != CUDA_SUCCESS || at - base >= size)
            return kvx_note(KVX_INVALID, "%s %u: nothing is allocated at 0x%llx", what, index, (unsigned long long)at);
        at = base + size;
    }
    return KVX_OK;
}
