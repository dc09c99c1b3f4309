/* SPDX-License-Identifier: Apache-2.0 */
/* The host's side of a launch: which build of a kernel, how many warps to a unit, how many CTAs. */
#ifndef KVX_KERNELS_LAUNCH_CUH
#define KVX_KERNELS_LAUNCH_CUH

#include <cuda_runtime.h>
#include <cstring>

#include "table.cuh"
#include "tensor.cuh"

/* The attributes of the kernels of seal.cu and open.cu, of `largest` and all smaller variants; called by
 * kvx_launch_prepare. */
int kvx_prepare_seal(int largest);
int kvx_prepare_open(int largest);

inline uint32_t kvx_divide_up(uint32_t a, uint32_t b)
{
    return (a + b - 1) / b;
}

/* One CTA on each SM, but none without a unit; how many warps a unit gets, CTAs see for themselves. */
inline uint32_t kvx_ctas_of(uint32_t n_sms, uint32_t n_units)
{
    const uint32_t n_ctas = n_units < n_sms ? n_units : n_sms;
    return n_ctas > 0 ? n_ctas : 1;
}

/* The largest variant without tensor cores that fits the current device, or AUTO if none does. */
inline int kvx_variant_of_device()
{
    int device = 0, limit = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
        return KVX_VARIANT_AUTO;
    if (limit >= (int)kvx_variant_192k::shared_bytes)
        return KVX_VARIANT_192K;
    if (limit >= (int)kvx_variant_160k::shared_bytes)
        return KVX_VARIANT_160K;
    return limit >= (int)kvx_variant_96k::shared_bytes ? KVX_VARIANT_96K : KVX_VARIANT_AUTO;
}

struct kvx_build {
    const void *kernel;
    uint32_t shared_bytes;
};

template <class Kernels, unsigned Pairs> kvx_build kvx_build_of(int variant)
{
    switch (variant) {
    case KVX_VARIANT_TENSOR:
        return {Kernels::template get<kvx_variant_tensor, Pairs>(), kvx_variant_tensor::shared_bytes};
    case KVX_VARIANT_192K:
        return {Kernels::template get<kvx_variant_192k, Pairs>(), kvx_variant_192k::shared_bytes};
    case KVX_VARIANT_160K:
        return {Kernels::template get<kvx_variant_160k, Pairs>(), kvx_variant_160k::shared_bytes};
    case KVX_VARIANT_96K:
        return {Kernels::template get<kvx_variant_96k, Pairs>(), kvx_variant_96k::shared_bytes};
    default:
        return {nullptr, 0};
    }
}

/* Allows each build of a kernel that fits the device its shared memory. This also loads it. */
template <class Kernels> int kvx_prepare_units(int largest)
{
    for (int variant = largest; variant <= KVX_VARIANT_96K; variant++) {
        const kvx_build builds[] = {kvx_build_of<Kernels, KVX_PAIRS_PER_SMALL_LAUNCH>(variant),
                                    kvx_build_of<Kernels, KVX_PAIRS_PER_LAUNCH>(variant)};
        for (const kvx_build &build : builds) {
            const cudaError_t error = cudaFuncSetAttribute(build.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                           (int)build.shared_bytes);
            if (error != cudaSuccess)
                return error;
        }
    }
    return cudaSuccess;
}

template <unsigned Pairs>
void kvx_params_set(kvx_params<Pairs> *params, const kvx_dev *dev, const kvx_work *work, const kvx_work_pair *pairs)
{
    params->dev = *dev;
    params->work = *work;
    params->n_ctas = kvx_ctas_of(dev->n_sms, work->n_pairs * work->n_segments);
    memcpy(params->pairs, pairs, work->n_pairs * sizeof *pairs);
}

/* Tensor cores hash what is already in GPU memory; what goes straight to the host is hashed from registers. */
inline int kvx_variant_for(const kvx_dev *dev, const kvx_work *work)
{
    if (dev->variant == KVX_VARIANT_AUTO)
        return kvx_variant_of_device();
    return dev->variant == KVX_VARIANT_TENSOR && !work->staged ? (int)KVX_VARIANT_192K : (int)dev->variant;
}

template <class Kernels, unsigned Pairs>
int kvx_launch_sized(const kvx_dev *dev, const kvx_work *work, const kvx_work_pair *pairs, void *stream)
{
    const int variant = kvx_variant_for(dev, work);
    const kvx_build build = kvx_build_of<Kernels, Pairs>(variant);
    if (!build.kernel)
        return cudaErrorNotSupported;
    kvx_params<Pairs> params;
    void *arguments[] = {&params};
    kvx_params_set(&params, dev, work, pairs);
    return cudaLaunchKernel(build.kernel, dim3(params.n_ctas), dim3(KVX_CTA_THREADS), arguments, build.shared_bytes,
                            static_cast<cudaStream_t>(stream));
}

template <class Kernels>
int kvx_launch_units(const kvx_dev *dev, const kvx_work *work, const kvx_work_pair *pairs, void *stream)
{
    if (work->n_pairs > KVX_PAIRS_PER_LAUNCH)
        return cudaErrorInvalidValue;
    if (work->n_pairs <= KVX_PAIRS_PER_SMALL_LAUNCH)
        return kvx_launch_sized<Kernels, KVX_PAIRS_PER_SMALL_LAUNCH>(dev, work, pairs, stream);
    return kvx_launch_sized<Kernels, KVX_PAIRS_PER_LAUNCH>(dev, work, pairs, stream);
}

#endif
