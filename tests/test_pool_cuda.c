/* SPDX-License-Identifier: Apache-2.0 */
/* The pool's door to CUDA with a runtime and a driver that are not there: every entry point is found, pushed contexts
 * are popped, capture modes given back, and no error of ours, nor of the caller's, is lost or left behind. */
#include "cmocka_door.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "kvx_pool.h"
#include "pool.h"

#define CHUNK (2ull << 20)
#define N_CHUNKS 4u

static struct {
    const char *missing; /* an entry point that the driver lacks */
    cudaError_t count_error, free_error;
    CUresult register_error, address_error;
    int blind; /* the GPU's writes are not seen */
    atomic_int pushed, captures_relaxed, registered, allocated, streams, clears;
    char *words; /* what the GPU was told to do, until the stream is waited for */
    unsigned value;
} gpu;

static const CUcontext own_context = (CUcontext)(void *)&gpu;

cudaError_t __wrap_cudaGetDeviceCount(int *n);
cudaError_t __wrap_cudaGetDeviceCount(int *n)
{
    *n = 1;
    return gpu.count_error;
}

cudaError_t __wrap_cudaGetDevice(int *device);
cudaError_t __wrap_cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

cudaError_t __wrap_cudaDeviceGetPCIBusId(char *bus, int n, int device);
cudaError_t __wrap_cudaDeviceGetPCIBusId(char *bus, int n, int device)
{
    (void)bus, (void)n, (void)device;
    return cudaErrorInvalidDevice;
}

cudaError_t __wrap_cudaGetLastError(void);
cudaError_t __wrap_cudaGetLastError(void)
{
    atomic_fetch_add(&gpu.clears, 1);
    return cudaSuccess;
}

cudaError_t __wrap_cudaFree(void *memory);
cudaError_t __wrap_cudaFree(void *memory)
{
    assert_null(memory);
    return gpu.free_error;
}

static CUresult fake_current(CUcontext *context)
{
    *context = own_context;
    return CUDA_SUCCESS;
}

static CUresult fake_push(CUcontext context)
{
    assert_ptr_equal(context, own_context);
    atomic_fetch_add(&gpu.pushed, 1);
    return CUDA_SUCCESS;
}

static CUresult fake_pop(CUcontext *context)
{
    *context = own_context;
    atomic_fetch_sub(&gpu.pushed, 1);
    return CUDA_SUCCESS;
}

static CUresult fake_exchange(CUstreamCaptureMode *mode)
{
    int relaxed = *mode == CU_STREAM_CAPTURE_MODE_RELAXED;
    atomic_fetch_add(&gpu.captures_relaxed, relaxed ? 1 : -1);
    *mode = relaxed ? CU_STREAM_CAPTURE_MODE_GLOBAL : CU_STREAM_CAPTURE_MODE_RELAXED;
    return CUDA_SUCCESS;
}

static CUresult fake_register(void *host, size_t bytes, unsigned flags)
{
    assert_int_equal((uintptr_t)host % 4096, 0);
    assert_int_equal(bytes, CHUNK);
    assert_int_equal(flags, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    if (gpu.register_error == CUDA_SUCCESS)
        atomic_fetch_add(&gpu.registered, 1);
    return gpu.register_error;
}

static CUresult fake_unregister(void *host)
{
    (void)host;
    atomic_fetch_sub(&gpu.registered, 1);
    return CUDA_SUCCESS;
}

static CUresult fake_address(CUdeviceptr *dev, void *host, unsigned flags)
{
    assert_int_equal(flags, 0);
    *dev = (CUdeviceptr)(uintptr_t)host;
    return gpu.address_error;
}

static CUresult fake_allocate(void **host, size_t bytes, unsigned flags)
{
    assert_int_equal(flags, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP); /* never write-combined */
    *host = aligned_alloc(4096, bytes);
    atomic_fetch_add(&gpu.allocated, 1);
    return CUDA_SUCCESS;
}

static CUresult fake_free(void *host)
{
    free(host);
    atomic_fetch_sub(&gpu.allocated, 1);
    return CUDA_SUCCESS;
}

static CUresult fake_stream_create(CUstream *stream, unsigned flags)
{
    assert_int_equal(flags, CU_STREAM_NON_BLOCKING);
    *stream = (CUstream)(void *)&gpu;
    atomic_fetch_add(&gpu.streams, 1);
    return CUDA_SUCCESS;
}

static CUresult fake_stream_destroy(CUstream stream)
{
    (void)stream;
    atomic_fetch_sub(&gpu.streams, 1);
    return CUDA_SUCCESS;
}

static CUresult fake_set(CUdeviceptr at, unsigned value, size_t n, CUstream stream)
{
    (void)n, (void)stream;
    gpu.words = (char *)(uintptr_t)at;
    gpu.value = value;
    return CUDA_SUCCESS;
}

static CUresult fake_copy(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream stream)
{
    (void)stream;
    assert_ptr_equal((char *)(uintptr_t)to, gpu.words + 8);
    assert_ptr_equal((char *)(uintptr_t)from, gpu.words + 4);
    assert_int_equal(n, 4);
    return CUDA_SUCCESS;
}

static CUresult fake_stream_wait(CUstream stream)
{
    (void)stream;
    if (!gpu.blind) {
        memcpy(gpu.words, &gpu.value, 4);
        memcpy(gpu.words + 8, gpu.words + 4, 4);
    }
    return CUDA_SUCCESS;
}

static CUresult fake_name(CUresult error, const char **name)
{
    *name = error == CUDA_ERROR_NOT_SUPPORTED ? "CUDA_ERROR_NOT_SUPPORTED" : "CUDA_ERROR_OTHER";
    return CUDA_SUCCESS;
}

typedef void function(void);

static const struct {
    const char *name;
    function *pointer;
} entry_points[] = {
    {"cuCtxGetCurrent", (function *)fake_current},
    {"cuCtxPushCurrent", (function *)fake_push},
    {"cuCtxPopCurrent", (function *)fake_pop},
    {"cuThreadExchangeStreamCaptureMode", (function *)fake_exchange},
    {"cuMemHostRegister", (function *)fake_register},
    {"cuMemHostUnregister", (function *)fake_unregister},
    {"cuMemHostGetDevicePointer", (function *)fake_address},
    {"cuMemHostAlloc", (function *)fake_allocate},
    {"cuMemFreeHost", (function *)fake_free},
    {"cuStreamCreate", (function *)fake_stream_create},
    {"cuStreamSynchronize", (function *)fake_stream_wait},
    {"cuStreamDestroy", (function *)fake_stream_destroy},
    {"cuMemsetD32Async", (function *)fake_set},
    {"cuMemcpyAsync", (function *)fake_copy},
    {"cuGetErrorName", (function *)fake_name},
};
#define N_ENTRY_POINTS (sizeof entry_points / sizeof *entry_points)

static cudaError_t find_entry_point(const char *name, void **found, enum cudaDriverEntryPointQueryResult *result)
{
    *found = NULL;
    *result = cudaDriverEntryPointSymbolNotFound;
    for (size_t i = 0; i < N_ENTRY_POINTS; i++)
        if (strcmp(name, entry_points[i].name) == 0 && (!gpu.missing || strcmp(name, gpu.missing) != 0)) {
            memcpy(found, &entry_points[i].pointer, sizeof *found);
            *result = cudaDriverEntryPointSuccess;
        }
    return cudaSuccess;
}

#if CUDART_VERSION >= 12050
cudaError_t __wrap_cudaGetDriverEntryPointByVersion(const char *name, void **found, unsigned version,
                                                    unsigned long long flags,
                                                    enum cudaDriverEntryPointQueryResult *result);
cudaError_t __wrap_cudaGetDriverEntryPointByVersion(const char *name, void **found, unsigned version,
                                                    unsigned long long flags,
                                                    enum cudaDriverEntryPointQueryResult *result)
{
    (void)version, (void)flags;
    return find_entry_point(name, found, result);
}
#else
cudaError_t __wrap_cudaGetDriverEntryPoint(const char *name, void **found, unsigned long long flags,
                                           enum cudaDriverEntryPointQueryResult *result);
cudaError_t __wrap_cudaGetDriverEntryPoint(const char *name, void **found, unsigned long long flags,
                                           enum cudaDriverEntryPointQueryResult *result)
{
    (void)flags;
    return find_entry_point(name, found, result);
}
#endif

/* -------------------------------------------------------------------------------------------------------- tests */

static const kvx_slot_class class = {65536, N_CHUNKS *(uint32_t)(CHUNK / 65536), 1, 0};

static kvx_status make(uint32_t background, kvx_pool **pool)
{
    kvx_pool_config config = KVX_POOL_CONFIG_INIT;
    config.classes = &class;
    config.n_classes = 1;
    config.engine = KVX_ENGINE_CUDA;
    config.chunk_bytes = CHUNK;
    config.background = background;
    config.n_threads = 2;
    return kvx_pool_create(&config, pool);
}

static void expect_balance(void)
{
    assert_int_equal(gpu.pushed, 0);
    assert_int_equal(gpu.captures_relaxed, 0);
    assert_int_equal(gpu.registered, 0);
    assert_int_equal(gpu.allocated, 0);
    assert_int_equal(gpu.streams, 0);
}

static int set_up(void **state)
{
    (void)state;
    memset(&gpu, 0, sizeof gpu);
    return 0;
}

static void chunks_are_registered(void **state)
{
    (void)state;
    for (uint32_t background = 0; background < 2; background++) {
        kvx_pool *pool = NULL;
        assert_int_equal(make(background, &pool), KVX_OK);
        assert_int_equal(kvx_pool_wait(pool, UINT64_MAX), KVX_OK);
        assert_int_equal(gpu.registered, N_CHUNKS);
        for (uint32_t i = 0; i < 12; i++)
            assert_int_equal(kvx_pool_view_of(pool)->chunks[0].host[i], 0); /* the probe left nothing */
        assert_int_equal(kvx_pool_destroy(pool), KVX_OK);
        expect_balance();
        assert_int_equal(gpu.clears, 1 + (int)background); /* of the bus id that the fake does not know */
    }
}

static void refusals_leave_no_error(void **state)
{
    kvx_pool *pool = NULL;
    (void)state;
    gpu.register_error = CUDA_ERROR_NOT_SUPPORTED;
    assert_int_equal(make(0, &pool), KVX_OK);
    assert_int_equal(gpu.allocated, N_CHUNKS);
    assert_int_equal(kvx_pool_destroy(pool), KVX_OK);
    expect_balance();
    gpu.register_error = CUDA_SUCCESS;
    gpu.address_error = CUDA_ERROR_INVALID_VALUE; /* registered, but not mapped; the same of what was allocated */
    pool = NULL;
    assert_int_equal(make(0, &pool), KVX_NO_MEMORY);
    assert_null(pool);
    expect_balance();
}

static void blind_memory_is_refused(void **state)
{
    kvx_pool *pool = NULL;
    (void)state;
    gpu.blind = 1;
    assert_int_equal(make(0, &pool), KVX_UNSUPPORTED);
    assert_non_null(strstr(kvx_last_error(), "see each other's writes"));
    expect_balance();
}

static void every_entry_point_is_needed(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_ENTRY_POINTS; i++) {
        kvx_pool *pool = NULL;
        gpu.missing = entry_points[i].name;
        assert_int_equal(make(0, &pool), KVX_INTERNAL);
        assert_null(pool);
        expect_balance();
    }
}

static void no_context_no_pool(void **state)
{
    kvx_pool *pool = NULL;
    (void)state;
    gpu.free_error = cudaErrorDevicesUnavailable;
    assert_int_equal(make(0, &pool), KVX_UNSUPPORTED);
    expect_balance();
    gpu.free_error = cudaSuccess;
    gpu.count_error = cudaErrorNoDevice;
    assert_int_equal(make(0, &pool), KVX_UNSUPPORTED);
    assert_null(pool);
    expect_balance();
}

#define TEST(name) cmocka_unit_test_setup(name, set_up)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(chunks_are_registered),       TEST(refusals_leave_no_error), TEST(blind_memory_is_refused),
        TEST(every_entry_point_is_needed), TEST(no_context_no_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
