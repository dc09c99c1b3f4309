/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory of a pool: mapped, bound to the GPU's node, touched in parallel with huge pages, then registered with
 * CUDA. Touching first makes pinning fast; where registering is refused, CUDA's own allocator is asked. */
#include <errno.h>
#include <numa.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pool.h"
#include "status.h"

#if KVX_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

#define TOUCH_THREADS_MAX 8u
#define TOUCH_BYTES_MIN (64ull << 20) /* less is not worth a thread */

/* ------------------------------------------------------------------------------------------------ limits */

/* A number from a one-line file of the system; `otherwise` where it is absent or not a number. */
static uint64_t read_number(const char *path, uint64_t otherwise)
{
    unsigned long long value;
    FILE *file = fopen(path, "re");
    if (!file)
        return otherwise;
    int n = fscanf(file, "%llu", &value);
    fclose(file);
    return n == 1 ? (uint64_t)value : otherwise;
}

kvx_status kvx_hostmem_fits(uint64_t bytes)
{
    uint64_t cgroup = read_number("/sys/fs/cgroup/memory.max", UINT64_MAX);
    uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (bytes > machine)
        return kvx_note(KVX_NO_MEMORY, "the pool needs %llu bytes, the machine has %llu", (unsigned long long)bytes,
                        (unsigned long long)machine);
    if (bytes > cgroup)
        return kvx_note(KVX_NO_MEMORY, "the pool needs %llu bytes, the cgroup's memory.max is %llu",
                        (unsigned long long)bytes, (unsigned long long)cgroup);
    return KVX_OK;
}

/* ------------------------------------------------------------------------------------------------ CUDA's side */

#if KVX_WITH_CUDA

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

static int gpu_node(void)
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

static cudaError_t device_address(void *host, uint8_t **dev)
{
    void *address = NULL;
    cudaError_t error = cudaHostGetDevicePointer(&address, host, 0);
    if (error == cudaSuccess)
        *dev = address;
    return error;
}

static cudaError_t register_chunk(kvx_hostmem_chunk *chunk)
{
    cudaError_t error = cudaHostRegister(chunk->host, chunk->bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (error == cudaSuccess) {
        error = device_address(chunk->host, &chunk->dev);
        if (error != cudaSuccess)
            (void)cudaHostUnregister(chunk->host);
    }
    if (error != cudaSuccess)
        (void)cudaGetLastError();
    return error;
}

static cudaError_t allocate_chunk(kvx_hostmem_chunk *chunk)
{
    void *host = NULL;
    cudaError_t error = cudaHostAlloc(&host, chunk->bytes, cudaHostAllocPortable | cudaHostAllocMapped);
    if (error == cudaSuccess) {
        error = device_address(host, &chunk->dev);
        if (error != cudaSuccess)
            (void)cudaFreeHost(host);
    }
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return error;
    }
    memset(host, 0, chunk->bytes);
    (void)madvise(host, chunk->bytes, MADV_DONTDUMP);
    chunk->host = host;
    chunk->from_cuda = 1;
    return cudaSuccess;
}

/* Pins the mapped chunk, or replaces it by CUDA's own memory. On failure the chunk is mapped as before. */
static kvx_status pin(kvx_hostmem_chunk *chunk)
{
    kvx_hostmem_chunk mapped = *chunk;
    cudaError_t refused = register_chunk(chunk);
    if (refused == cudaSuccess)
        return KVX_OK;
    /* Both copies at once could exceed the cgroup: give the pages back, keep the mapping. */
    (void)madvise(mapped.host, mapped.bytes, MADV_DONTNEED);
    cudaError_t error = allocate_chunk(chunk);
    if (error != cudaSuccess)
        return kvx_note(KVX_NO_MEMORY,
                        "pinning %llu bytes failed (%s; %s): see RLIMIT_MEMLOCK (`ulimit -l`) and the cgroup's "
                        "memory.max, or set allow_pageable",
                        (unsigned long long)mapped.bytes, cudaGetErrorString(refused), cudaGetErrorString(error));
    munmap(mapped.host, mapped.bytes);
    return KVX_OK;
}

void kvx_hostmem_unmap(kvx_hostmem_chunk *chunk)
{
    /* What CUDA allocated it frees; what it registered, it unregisters and we unmap, also if the device is lost. */
    cudaError_t error = cudaSuccess;
    if (chunk->dev)
        error = chunk->from_cuda ? cudaFreeHost(chunk->host) : cudaHostUnregister(chunk->host);
    if (error != cudaSuccess)
        (void)cudaGetLastError();
    if (!chunk->from_cuda)
        munmap(chunk->host, chunk->bytes);
    memset(chunk, 0, sizeof(*chunk));
}

#else

int kvx_hostmem_gpu_usable(const char **why)
{
    *why = "built without CUDA";
    return 0;
}

static int gpu_node(void)
{
    return -1;
}

static kvx_status pin(kvx_hostmem_chunk *chunk)
{
    (void)chunk;
    return kvx_note(KVX_UNSUPPORTED, "built without CUDA");
}

void kvx_hostmem_unmap(kvx_hostmem_chunk *chunk)
{
    munmap(chunk->host, chunk->bytes);
    memset(chunk, 0, sizeof(*chunk));
}

#endif

/* ------------------------------------------------------------------------------------------------ map, touch */

typedef struct touch_range {
    uint8_t *memory;
    uint64_t bytes;
} touch_range;

static void *touch(void *argument)
{
    touch_range *range = argument;
    memset(range->memory, 0, range->bytes);
    return NULL;
}

/* First touch; a thread that cannot be had is done without. */
static void touch_all(uint8_t *memory, uint64_t bytes)
{
    pthread_t threads[TOUCH_THREADS_MAX];
    touch_range ranges[TOUCH_THREADS_MAX];
    int started[TOUCH_THREADS_MAX];
    long n_cpus = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t n = bytes / TOUCH_BYTES_MIN + 1;
    n = n > TOUCH_THREADS_MAX ? TOUCH_THREADS_MAX : n;
    n = n_cpus > 0 && n > (uint64_t)n_cpus ? (uint64_t)n_cpus : n;
    uint64_t part = bytes / n / KVX_SLOT_ALIGN * KVX_SLOT_ALIGN;
    for (uint64_t i = 0; i < n; i++) {
        ranges[i].memory = memory + i * part;
        ranges[i].bytes = i + 1 < n ? part : bytes - i * part;
        started[i] = i + 1 < n && pthread_create(&threads[i], NULL, touch, &ranges[i]) == 0;
        if (!started[i])
            touch(&ranges[i]);
    }
    for (uint64_t i = 0; i < n; i++)
        if (started[i])
            pthread_join(threads[i], NULL);
}

/* The node to bind to, -1 for none. Only a node that was asked for by number can be wrong. */
static kvx_status choose_node(const kvx_hostmem_config *config, int want_pinned, int *node)
{
    int there = numa_available() >= 0;
    *node = config->numa_node >= 0 ? config->numa_node : want_pinned ? gpu_node() : -1;
    if (config->numa_node >= 0 && (!there || config->numa_node > numa_max_node()))
        return kvx_note(KVX_INVALID, "there is no NUMA node %d", config->numa_node);
    if (!there || *node > numa_max_node())
        *node = -1;
    return KVX_OK;
}

static kvx_status map_touched(uint64_t bytes, int node, kvx_hostmem_chunk *chunk)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return kvx_note(KVX_NO_MEMORY, "mmap of %llu bytes failed: errno %d", (unsigned long long)bytes, errno);
    /* Huge pages and the node are for speed, the other two for tidiness: none is a reason to fail. */
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
    (void)madvise(memory, bytes, MADV_DONTFORK);
    (void)madvise(memory, bytes, MADV_DONTDUMP);
    if (node >= 0)
        numa_tonode_memory(memory, bytes, node);
    touch_all(memory, bytes);
    chunk->host = memory;
    chunk->dev = NULL;
    chunk->from_cuda = 0;
    chunk->bytes = bytes;
    return KVX_OK;
}

kvx_status kvx_hostmem_map(const kvx_hostmem_config *config, kvx_hostmem_chunk *chunk, uint32_t *pinned)
{
    const char *why = "";
    kvx_hostmem_chunk made;
    int node;
    int wanted = config->engine != KVX_ENGINE_CPU && kvx_hostmem_gpu_usable(&why);
    if (config->engine == KVX_ENGINE_CUDA && !wanted)
        return kvx_note(KVX_UNSUPPORTED, "no usable GPU: %s", why);
    KVX_TRY(choose_node(config, wanted, &node));
    KVX_TRY(map_touched(config->chunk_bytes, node, &made));
    kvx_status status = wanted ? pin(&made) : KVX_OK;
    if (status != KVX_OK && !config->allow_pageable) {
        kvx_hostmem_unmap(&made);
        return status;
    }
    *pinned = made.dev != NULL;
    *chunk = made;
    return KVX_OK;
}
