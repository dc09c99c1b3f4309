/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU as a bench device: allocation, the pattern written and compared by kernels, one stream, two timing events. */
#include <cstdio>
#include <cstring>

#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include "device.h"
#include "pattern.h"

static bool ok(cudaError_t error, const char *doing)
{
    if (error != cudaSuccess)
        fprintf(stderr, "%s: %s\n", doing, cudaGetErrorString(error));
    return error == cudaSuccess;
}

/* ---------------------------------------------------------------------------------------------------------- kernels */

constexpr unsigned block_threads = 256;

static __global__ void fill_kernel(uint64_t *words, uint64_t n, uint64_t seed, uint64_t first)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        words[i] = pattern_word(seed, first + i);
}

static __global__ void compare_kernel(const uint64_t *words, uint64_t n, uint64_t seed, uint64_t first,
                                      unsigned long long *n_wrong)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    unsigned long long wrong = 0;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        wrong += words[i] != pattern_word(seed, first + i);
    if (wrong)
        atomicAdd(n_wrong, wrong);
}

static unsigned grid_for(uint64_t n_words)
{
    uint64_t needed = (n_words + block_threads - 1) / block_threads;
    return (unsigned)(needed < 4096 ? (needed ? needed : 1) : 4096);
}

/* ------------------------------------------------------------------------------------------------------- operations */

static bool cuda_alloc(device *, uint64_t n_bytes, void **memory)
{
    cudaError_t error = cudaMalloc(memory, n_bytes);
    if (error != cudaSuccess)
        fprintf(stderr, "no GPU memory for %.2f GiB (%s): try a smaller --bytes\n", (double)n_bytes / (1 << 30),
                cudaGetErrorString(error));
    return error == cudaSuccess;
}

static void cuda_release(device *, void *memory)
{
    ok(cudaFree(memory), "free GPU memory");
}

static bool cuda_fill(device *dev, void *memory, uint64_t n_bytes, uint64_t seed, uint64_t position)
{
    fill_kernel<<<grid_for(n_bytes / 8), block_threads, 0, dev->stream>>>((uint64_t *)memory, n_bytes / 8, seed,
                                                                          position / 8);
    return ok(cudaGetLastError(), "fill GPU memory");
}

static bool cuda_compare(device *dev, const void *memory, uint64_t n_bytes, uint64_t seed, uint64_t position,
                         uint64_t *n_wrong)
{
    unsigned long long *counter = (unsigned long long *)dev->dev_counters;
    if (!ok(cudaMemsetAsync(counter, 0, sizeof(*counter), dev->stream), "clear a counter"))
        return false;
    compare_kernel<<<grid_for(n_bytes / 8), block_threads, 0, dev->stream>>>((const uint64_t *)memory, n_bytes / 8,
                                                                             seed, position / 8, counter);
    unsigned long long wrong = 0;
    if (!ok(cudaGetLastError(), "compare GPU memory") ||
        !ok(cudaMemcpyAsync(&wrong, counter, sizeof(wrong), cudaMemcpyDefault, dev->stream), "read a counter") ||
        !ok(cudaStreamSynchronize(dev->stream), "compare GPU memory"))
        return false;
    *n_wrong = wrong;
    return true;
}

static bool cuda_copy(device *dev, void *to, const void *from, uint64_t n_bytes)
{
    return ok(cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyDefault, dev->stream), "copy") &&
           ok(cudaStreamSynchronize(dev->stream), "copy");
}

/* Only the driver knows where a registration ends. Without its answer nothing is known to end early. */
static uint64_t cuda_host_span(device *, const void *host)
{
    using get_attribute = CUresult (*)(void *, CUpointer_attribute, CUdeviceptr);
    static void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    static get_attribute get = driver ? (get_attribute)dlsym(driver, "cuPointerGetAttribute") : nullptr;
    CUdeviceptr start = 0;
    size_t n_bytes = 0;
    if (!get || get(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, (CUdeviceptr)host) != CUDA_SUCCESS ||
        get(&n_bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, (CUdeviceptr)host) != CUDA_SUCCESS)
        return UINT64_MAX;
    uint64_t before = (CUdeviceptr)host - start;
    return before < n_bytes ? n_bytes - before : UINT64_MAX;
}

static bool cuda_sync(device *dev)
{
    return ok(cudaStreamSynchronize(dev->stream), "wait for the GPU");
}

static bool cuda_mark(device *dev)
{
    return ok(cudaEventRecord(dev->begin, dev->stream), "record an event");
}

static double cuda_seconds(device *dev)
{
    float milliseconds = 0;
    if (!ok(cudaEventSynchronize(dev->end), "wait for an event") ||
        !ok(cudaEventElapsedTime(&milliseconds, dev->begin, dev->end), "read an event's time"))
        return -1;
    return milliseconds * 1e-3;
}

/* --------------------------------------------------------------------------------------------------------- machine */

static bool read_first_line(const char *path, char *text, int text_bytes)
{
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    bool found = fgets(text, text_bytes, file) != NULL;
    fclose(file);
    if (found)
        text[strcspn(text, "\n")] = '\0';
    return found;
}

static void describe_link(const char *bus_id, report *r)
{
    char path[128], speed[64] = "unknown", lanes[64] = "unknown", node[64] = "unknown", lower[32];
    size_t i;
    for (i = 0; i + 1 < sizeof(lower) && bus_id[i]; i++)
        lower[i] = (char)(bus_id[i] >= 'A' && bus_id[i] <= 'F' ? bus_id[i] + ('a' - 'A') : bus_id[i]);
    lower[i] = '\0';
    snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/current_link_speed", lower);
    read_first_line(path, speed, sizeof(speed));
    snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/current_link_width", lower);
    read_first_line(path, lanes, sizeof(lanes));
    snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/numa_node", lower);
    read_first_line(path, node, sizeof(node));
    report_machine(r, "pcie", "%s, width %s", speed, lanes);
    report_machine(r, "gpu_numa_node", "%s", node);
}

static void cuda_describe(device *dev, report *r)
{
    cudaDeviceProp properties;
    char text[256] = "unknown", bus_id[32] = "";
    int api = 0, runtime = 0;
    report_machine(r, "engine", "cuda");
    if (ok(cudaGetDeviceProperties(&properties, dev->ordinal), "read the GPU's properties"))
        report_machine(r, "gpu", "%s, compute %d.%d, %d SMs, %.0f GiB", properties.name, properties.major,
                       properties.minor, properties.multiProcessorCount, (double)properties.totalGlobalMem / (1 << 30));
    read_first_line("/proc/driver/nvidia/version", text, sizeof(text));
    ok(cudaDriverGetVersion(&api), "read the driver's version");
    report_machine(r, "driver", "CUDA %d.%d, %s", api / 1000, api % 1000 / 10, text);
    ok(cudaRuntimeGetVersion(&runtime), "read the runtime's version");
    report_machine(r, "cuda_runtime", "%d.%d", runtime / 1000, runtime % 1000 / 10);
    if (ok(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), dev->ordinal), "read the PCI address")) {
        describe_link(bus_id, r);
        device_nvml_describe(bus_id, r);
    }
}

/* ------------------------------------------------------------------------------------------------------ open, close */

static void cuda_close(device *dev)
{
    ok(cudaStreamSynchronize(dev->stream), "wait for the GPU");
    cudaFree(dev->dev_counters);
    cudaEventDestroy(dev->end);
    cudaEventDestroy(dev->begin);
    cudaStreamDestroy(dev->stream);
}

static const device_ops cuda_ops = {cuda_alloc, cuda_release, cuda_fill,    cuda_compare,  cuda_copy, cuda_host_span,
                                    cuda_sync,  cuda_mark,    cuda_seconds, cuda_describe, cuda_close};

int device_cuda_count(const char **why)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    *why = error == cudaSuccess ? "none found" : cudaGetErrorString(error);
    return error == cudaSuccess ? count : 0;
}

bool device_cuda_open(int ordinal, device *dev)
{
    if (!ok(cudaSetDevice(ordinal), "select the GPU"))
        return false;
    if (!ok(cudaStreamCreateWithFlags(&dev->stream, cudaStreamNonBlocking), "create a stream"))
        return false;
    if (!ok(cudaEventCreate(&dev->begin), "create an event"))
        goto destroy_stream;
    if (!ok(cudaEventCreate(&dev->end), "create an event"))
        goto destroy_begin;
    if (!ok(cudaMalloc(&dev->dev_counters, sizeof(unsigned long long)), "allocate a counter"))
        goto destroy_end;
    dev->ops = &cuda_ops;
    dev->engine = KVX_ENGINE_CUDA;
    dev->ordinal = ordinal;
    return true;
destroy_end:
    cudaEventDestroy(dev->end);
destroy_begin:
    cudaEventDestroy(dev->begin);
destroy_stream:
    cudaStreamDestroy(dev->stream);
    return false;
}
