/* SPDX-License-Identifier: Apache-2.0 */
/* The wrapped functions of the CUDA runtime. The test's own CUDA calls are wrapped too, but no fault is armed then.
 *
 * WRAPS_CUDA: cudaMalloc cudaHostAlloc cudaHostRegister cudaHostGetDevicePointer cudaStreamCreateWithPriority
 *   cudaStreamCreateWithFlags cudaEventCreateWithFlags cudaMemcpy cudaMemcpyAsync cudaMemset cudaMemsetAsync
 *   cudaEventRecord cudaStreamWaitEvent cudaStreamSynchronize cudaFuncSetAttribute cudaPointerGetAttributes
 *   cudaStreamIsCapturing cudaFuncGetAttributes cudaLaunchKernel cudaMemcpyBatchAsync
 *   cudaGetDriverEntryPointByVersion
 */
#include "faults.h"

#include <cuda_runtime_api.h>

/* clang-format off */
#define FAULT_CUDA(name, parameters, arguments, error, allocates) \
    FAULT(cudaError_t, name, parameters, arguments, error, allocates)

FAULT_CUDA(cudaMalloc, (void **p, size_t n), (p, n), cudaErrorMemoryAllocation, 1)
FAULT_CUDA(cudaHostAlloc, (void **p, size_t n, unsigned flags), (p, n, flags), cudaErrorMemoryAllocation, 1)
FAULT_CUDA(cudaHostRegister, (void *p, size_t n, unsigned flags), (p, n, flags), cudaErrorMemoryAllocation, 1)
FAULT_CUDA(cudaHostGetDevicePointer, (void **dev, void *host, unsigned flags), (dev, host, flags), cudaErrorUnknown, 0)
FAULT_CUDA(cudaStreamCreateWithPriority, (cudaStream_t *s, unsigned flags, int priority), (s, flags, priority),
           cudaErrorMemoryAllocation, 1)
FAULT_CUDA(cudaStreamCreateWithFlags, (cudaStream_t *s, unsigned flags), (s, flags), cudaErrorMemoryAllocation, 1)
FAULT_CUDA(cudaEventCreateWithFlags, (cudaEvent_t *e, unsigned flags), (e, flags), cudaErrorMemoryAllocation, 1)
FAULT_CUDA(cudaMemcpy, (void *to, const void *from, size_t n, enum cudaMemcpyKind kind), (to, from, n, kind),
           cudaErrorUnknown, 0)
FAULT_CUDA(cudaMemcpyAsync, (void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s),
           (to, from, n, kind, s), cudaErrorUnknown, 0)
FAULT_CUDA(cudaMemset, (void *p, int value, size_t n), (p, value, n), cudaErrorUnknown, 0)
FAULT_CUDA(cudaMemsetAsync, (void *p, int value, size_t n, cudaStream_t s), (p, value, n, s), cudaErrorUnknown, 0)
FAULT_CUDA(cudaEventRecord, (cudaEvent_t e, cudaStream_t s), (e, s), cudaErrorUnknown, 0)
FAULT_CUDA(cudaStreamWaitEvent, (cudaStream_t s, cudaEvent_t e, unsigned flags), (s, e, flags), cudaErrorUnknown, 0)
FAULT_CUDA(cudaStreamSynchronize, (cudaStream_t s), (s), cudaErrorUnknown, 1)
FAULT_CUDA(cudaFuncSetAttribute, (const void *f, enum cudaFuncAttribute a, int value), (f, a, value), cudaErrorUnknown,
           0)
FAULT_CUDA(cudaPointerGetAttributes, (struct cudaPointerAttributes *a, const void *p), (a, p), cudaErrorUnknown, 0)
FAULT_CUDA(cudaStreamIsCapturing, (cudaStream_t s, enum cudaStreamCaptureStatus *status), (s, status), cudaErrorUnknown,
           0)
FAULT_CUDA(cudaFuncGetAttributes, (struct cudaFuncAttributes *a, const void *f), (a, f), cudaErrorUnknown, 0)
FAULT_CUDA(cudaLaunchKernel, (const void *f, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t s),
           (f, grid, block, args, shared, s), cudaErrorUnknown, 0)
#if CUDART_VERSION >= 12050
FAULT_CUDA(cudaGetDriverEntryPointByVersion,
           (const char *name, void **p, unsigned version, unsigned long long flags,
            enum cudaDriverEntryPointQueryResult *result),
           (name, p, version, flags, result), cudaErrorUnknown, 0)
#endif
#if CUDART_VERSION >= 13000
FAULT_CUDA(cudaMemcpyBatchAsync,
           (void *const *to, const void *const *from, const size_t *sizes, size_t n,
            struct cudaMemcpyAttributes *attributes, size_t *indices, size_t n_attributes, cudaStream_t s),
           (to, from, sizes, n, attributes, indices, n_attributes, s), cudaErrorUnknown, 0)
#else
FAULT_CUDA(cudaMemcpyBatchAsync,
           (void **to, void **from, size_t *sizes, size_t n, struct cudaMemcpyAttributes *attributes, size_t *indices,
            size_t n_attributes, size_t *failed, cudaStream_t s),
           (to, from, sizes, n, attributes, indices, n_attributes, failed, s), cudaErrorUnknown, 0)
#endif
/* clang-format on */

const fault *const faults_cuda[] = {
    &fault_cudaMalloc,
    &fault_cudaHostAlloc,
    &fault_cudaHostRegister,
    &fault_cudaHostGetDevicePointer,
    &fault_cudaStreamCreateWithPriority,
    &fault_cudaStreamCreateWithFlags,
    &fault_cudaEventCreateWithFlags,
    &fault_cudaMemcpy,
    &fault_cudaMemcpyAsync,
    &fault_cudaMemset,
    &fault_cudaMemsetAsync,
    &fault_cudaEventRecord,
    &fault_cudaStreamWaitEvent,
    &fault_cudaStreamSynchronize,
    &fault_cudaFuncSetAttribute,
    &fault_cudaPointerGetAttributes,
    &fault_cudaStreamIsCapturing,
    &fault_cudaFuncGetAttributes,
    &fault_cudaLaunchKernel,
    &fault_cudaMemcpyBatchAsync,
#if CUDART_VERSION >= 12050
    &fault_cudaGetDriverEntryPointByVersion,
#endif
    NULL,
};
