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

/* What only device code can tell. */
struct device_facts {
    uint32_t base;   /* where dynamic shared memory begins: tables are at addresses fixed when they were compiled */
    uint32_t tensor; /* nonzero: the code that this device runs can use its binary tensor cores */
};

__global__ void facts_kernel(device_facts *facts)
{
    facts->base = (uint32_t)__cvta_generic_to_shared(&kvx_cta_state());
    facts->tensor = KVX_HAS_TENSOR;
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

/* The largest variant that the device and the code for it allow. */
int largest_variant(int *largest)
{
    device_facts *dev_facts = nullptr, facts = {};
    cudaError_t error = cudaMalloc(&dev_facts, sizeof facts);
    if (error != cudaSuccess)
        return error;
    facts_kernel<<<1, 1, 1024>>>(dev_facts);
    error = cudaGetLastError();
    if (error == cudaSuccess)
        error = cudaMemcpy(&facts, dev_facts, sizeof facts, cudaMemcpyDeviceToHost);
    cudaFree(dev_facts);
    if (error != cudaSuccess)
        return error;
    *largest = kvx_variant_of_device();
    if (facts.base != KVX_SHARED_BASE || *largest == KVX_VARIANT_AUTO)
        return cudaErrorNotSupported;
    if (*largest == KVX_VARIANT_192K && facts.tensor)
        *largest = KVX_VARIANT_TENSOR;
    return cudaSuccess;
}

} // namespace

int kvx_launch_prepare(int variant, int *chosen)
{
    int largest = KVX_VARIANT_AUTO, error = largest_variant(&largest);
    if (error != cudaSuccess)
        return error;
    if ((variant != KVX_VARIANT_AUTO && variant < largest) || variant > KVX_VARIANT_96K)
        return cudaErrorNotSupported;
    error = kvx_prepare_seal(largest);
    if (error == cudaSuccess)
        error = kvx_prepare_open(largest);
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
