/* SPDX-License-Identifier: Apache-2.0 */
/* The host's side of a launch: which build of a kernel, how many warps to a unit, how many CTAs. */
#ifndef KVX_KERNELS_LAUNCH_CUH
#define KVX_KERNELS_LAUNCH_CUH

#include <cuda_runtime.h>
#include <cstring>

#include "tensor.cuh"

/* The attributes of the kernels of seal.cu and open.cu, of `largest` and all smaller variants; called by
 * kvx_launch_prepare. */
int kvx_prepare_seal(int largest);
int kvx_prepare_open(int largest);

struct kvx_shape {
    uint32_t warps_per_unit, units_per_round, n_ctas;
};

inline uint32_t kvx_divide_up(uint32_t a, uint32_t b)
{
    return (a + b - 1) / b;
}

/* Do tenants, and so keys, change often from pair to pair? */
inline bool kvx_pairs_mix_tenants(const kvx_work_pair *pairs, uint32_t n_pairs)
{
    uint32_t n_changes = 0;
    for (uint32_t i = 1; i < n_pairs; i++)
        n_changes += pairs[i].tenant != pairs[i - 1].tenant;
    return n_changes * 16 > n_pairs;
}

/* As few warps to a unit as keep all SMs equally busy: more cost a little, idle SMs cost more. */
inline uint32_t kvx_warps_per_unit(uint32_t least, uint32_t n_units, uint32_t n_sms)
{
    uint32_t best = least, best_cost = UINT32_MAX;
    for (uint32_t warps = least; warps <= KVX_CTA_WARPS; warps *= 2) {
        const uint32_t n_turns = kvx_divide_up(n_units, n_sms * (KVX_CTA_WARPS / warps));
        const uint32_t cost = n_turns * (KVX_CTA_WARPS / warps); /* time, in sixteenths of a unit on one warp */
        if (best_cost == UINT32_MAX || cost + cost / 16 < best_cost) {
            best = warps;
            best_cost = cost;
        }
    }
    return best;
}

/* The same where a CTA can only take the units of one pair together, for the next pair has another key. A turn costs
 * about as much again as one unit on all warps. */
inline uint32_t kvx_warps_per_unit_mixed(uint32_t least, uint32_t n_segments)
{
    uint32_t best = KVX_CTA_WARPS, best_cost = UINT32_MAX;
    for (uint32_t warps = KVX_CTA_WARPS; warps >= least; warps /= 2) {
        const uint32_t n_groups = KVX_CTA_WARPS / warps;
        const uint32_t cost = kvx_divide_up(n_segments, n_groups) * (n_groups + 1);
        if (cost < best_cost) {
            best = warps;
            best_cost = cost;
        }
    }
    return best;
}

inline kvx_shape kvx_shape_of(int variant, const kvx_dev *dev, const kvx_work *work, const kvx_work_pair *pairs)
{
    const bool tensor = variant == KVX_VARIANT_TENSOR;
    const uint32_t least = tensor ? kvx_variant_tensor::piece_warps : kvx_variant_192k::piece_warps;
    const uint32_t round_limit = tensor ? kvx_variant_tensor::units_per_round : kvx_variant_192k::units_per_round;
    const uint32_t n_units = work->n_pairs * work->n_segments, n_sms = dev->n_sms > 0 ? dev->n_sms : 1;
    kvx_shape shape;
    shape.warps_per_unit = kvx_warps_per_unit(least, n_units, n_sms);
    if (kvx_pairs_mix_tenants(pairs, work->n_pairs)) {
        const uint32_t warps = kvx_warps_per_unit_mixed(least, work->n_segments);
        shape.warps_per_unit = warps > shape.warps_per_unit ? warps : shape.warps_per_unit;
    }
    const uint32_t n_groups = KVX_CTA_WARPS / shape.warps_per_unit;
    const uint32_t n_turns = kvx_divide_up(n_units, n_sms * n_groups);
    const uint32_t n_rounds = kvx_divide_up(n_turns, round_limit / n_groups);
    shape.units_per_round = n_groups * (n_rounds > 0 ? kvx_divide_up(n_turns, n_rounds) : 1);
    const uint32_t n_ctas = kvx_divide_up(n_units, shape.units_per_round);
    shape.n_ctas = n_ctas == 0 ? 1 : n_ctas < n_sms ? n_ctas : n_sms;
    return shape;
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
    params->warps_per_unit = 0;
    params->units_per_round = 0;
    params->n_ctas = 0;
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
    const kvx_shape shape = kvx_shape_of(variant, dev, work, pairs);
    if (!build.kernel)
        return cudaErrorNotSupported;
    kvx_params<Pairs> params;
    void *arguments[] = {&params};
    kvx_params_set(&params, dev, work, pairs);
    params.warps_per_unit = shape.warps_per_unit;
    params.units_per_round = shape.units_per_round;
    params.n_ctas = shape.n_ctas;
    return cudaLaunchKernel(build.kernel, dim3(shape.n_ctas), dim3(KVX_CTA_THREADS), arguments, build.shared_bytes,
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
