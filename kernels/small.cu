/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that move no data (commit, discard, flags; a thread a pair), and the preparation of all kernels. */
#include "launch.cuh"

namespace
{

constexpr uint32_t n_threads = 64;

template <unsigned Pairs> __global__ void commit_kernel(const __grid_constant__ kvx_params<Pairs> p)
{
    const uint32_t i = blockIdx.x * n_threads + threadIdx.x;
    if (i < p.work.n_pairs)
        kvx_pair_commit(p.dev, p.work, i, p.pairs[i]);
}

template <unsigned Pairs> __global__ void discard_kernel(const __grid_constant__ kvx_params<Pairs> p)
{
    const uint32_t i = blockIdx.x * n_threads + threadIdx.x;
    if (i >= p.work.n_pairs)
        return;
    const kvx_work_pair pair = p.pairs[i];
    uint32_t verdict = pair.refusal;
    if (pair.slot >= p.dev.n_slots)
        verdict = KVX_VERDICT_FAULT;
    else if (verdict == KVX_VERDICT_NONE && kvx_latched(p.dev))
        verdict = KVX_VERDICT_LATCHED;
    else if (verdict == KVX_VERDICT_NONE)
        verdict = kvx_slot_discard(&p.dev.headers[pair.slot], p.work.store_id);
    kvx_result_write(p.dev, p.work, i, verdict);
}

__global__ void flags_kernel(uint32_t *flags, uint32_t n, uint32_t value)
{
    const uint32_t i = blockIdx.x * n_threads + threadIdx.x;
    if (i < n) {
        kvx_fence();
        kvx_store_release_u32(&flags[i], value);
    }
}

/* Where dynamic shared memory begins: the unit kernels' tables are at addresses fixed when they were compiled. */
__global__ void base_kernel(uint32_t *base)
{
    *base = (uint32_t)__cvta_generic_to_shared(&kvx_cta_state());
}

template <unsigned Pairs>
int launch_sized(const void *kernel, const kvx_dev *dev, const kvx_work *work, const kvx_work_pair *pairs, void *stream)
{
    kvx_params<Pairs> params;
    void *arguments[] = {&params};
    if (work->n_pairs > Pairs)
        return cudaErrorInvalidValue;
    if (work->n_pairs == 0)
        return cudaSuccess;
    kvx_params_set(&params, dev, work, pairs);
    return cudaLaunchKernel(kernel, dim3(kvx_divide_up(work->n_pairs, n_threads)), dim3(n_threads), arguments, 0,
                            static_cast<cudaStream_t>(stream));
}

/* Loads the kernels now: a first launch that had to would wait for the device. */
int load_all()
{
    const void *kernels[] = {reinterpret_cast<const void *>(commit_kernel<KVX_PAIRS_PER_SMALL_LAUNCH>),
                             reinterpret_cast<const void *>(commit_kernel<KVX_PAIRS_PER_LAUNCH>),
                             reinterpret_cast<const void *>(discard_kernel<KVX_PAIRS_PER_SMALL_LAUNCH>),
                             reinterpret_cast<const void *>(discard_kernel<KVX_PAIRS_PER_LAUNCH>),
                             reinterpret_cast<const void *>(flags_kernel)};
    for (const void *kernel : kernels) {
        cudaFuncAttributes attributes;
        const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
        if (error != cudaSuccess)
            return error;
    }
    return cudaSuccess;
}

int check_base()
{
    uint32_t *dev_base = nullptr, base = 0;
    cudaStream_t stream; /* of its own: the default stream would wait for the caller's */
    cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (error != cudaSuccess)
        return error;
    error = cudaMalloc(&dev_base, sizeof base);
    if (error == cudaSuccess) {
        base_kernel<<<1, 1, 1024, stream>>>(dev_base);
        error = cudaGetLastError();
    }
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(&base, dev_base, sizeof base, cudaMemcpyDeviceToHost, stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(stream);
    cudaFree(dev_base);
    cudaStreamDestroy(stream);
    if (error != cudaSuccess)
        return error;
    return base == KVX_SHARED_BASE ? cudaSuccess : cudaErrorNotSupported;
}

} // namespace

int kvx_launch_prepare(int variant, int *chosen)
{
    const int largest = kvx_variant_of_device();
    if (largest == KVX_VARIANT_AUTO || (variant != KVX_VARIANT_AUTO && variant < largest) || variant > KVX_VARIANT_96K)
        return cudaErrorNotSupported;
    int error = check_base();
    if (error == cudaSuccess)
        error = kvx_prepare_seal();
    if (error == cudaSuccess)
        error = kvx_prepare_open();
    if (error == cudaSuccess)
        error = load_all();
    if (error == cudaSuccess)
        *chosen = variant == KVX_VARIANT_AUTO ? largest : variant;
    return error;
}

int kvx_launch_commit(const kvx_dev *dev, const kvx_work *work, const kvx_work_pair *pairs, void *stream)
{
    if (work->n_pairs <= KVX_PAIRS_PER_SMALL_LAUNCH)
        return launch_sized<KVX_PAIRS_PER_SMALL_LAUNCH>(
            reinterpret_cast<const void *>(commit_kernel<KVX_PAIRS_PER_SMALL_LAUNCH>), dev, work, pairs, stream);
    return launch_sized<KVX_PAIRS_PER_LAUNCH>(reinterpret_cast<const void *>(commit_kernel<KVX_PAIRS_PER_LAUNCH>), dev,
                                              work, pairs, stream);
}

int kvx_launch_discard(const kvx_dev *dev, const kvx_work *work, const kvx_work_pair *pairs, void *stream)
{
    if (work->n_pairs <= KVX_PAIRS_PER_SMALL_LAUNCH)
        return launch_sized<KVX_PAIRS_PER_SMALL_LAUNCH>(
            reinterpret_cast<const void *>(discard_kernel<KVX_PAIRS_PER_SMALL_LAUNCH>), dev, work, pairs, stream);
    return launch_sized<KVX_PAIRS_PER_LAUNCH>(reinterpret_cast<const void *>(discard_kernel<KVX_PAIRS_PER_LAUNCH>), dev,
                                              work, pairs, stream);
}

int kvx_launch_flags(uint32_t *dev_flags, uint32_t first, uint32_t n, uint32_t value, void *stream)
{
    if (n > 0)
        flags_kernel<<<kvx_divide_up(n, n_threads), n_threads, 0, static_cast<cudaStream_t>(stream)>>>(
            dev_flags + first, n, value);
    return cudaGetLastError();
}
