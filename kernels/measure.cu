/* SPDX-License-Identifier: Apache-2.0 */
/* Measurement kernels: what seal.cu and open.cu do to a unit between resolving and settling it, cut in two. */
#include "launch.cuh"
#include "measure.h"

namespace
{

struct measure_params {
    kvx_measure measure;
    uint32_t n_ctas;
};

/* Blocks from one contiguous buffer to another. */
template <class V> struct flat_io {
    const uint4 *from, *from_next;
    uint4 *to, *to_next;
    uint32_t n_blocks;

    __device__ __forceinline__ flat_io(const kvx_unit &unit, uint8_t *to_unit)
        : from(reinterpret_cast<const uint4 *>(unit.sealed)), from_next(nullptr),
          to(reinterpret_cast<uint4 *>(to_unit)), to_next(nullptr), n_blocks(unit.bytes / 16)
    {
    }
    __device__ __forceinline__ int32_t begin(int32_t i)
    {
        from_next = from + i;
        to_next = to + i;
        return i < 0 || (uint32_t)i + 33 > n_blocks ? 0 : (int32_t)((n_blocks - (uint32_t)i - 33) / V::tile_blocks + 1);
    }
    __device__ __forceinline__ void load(uint4 text[2])
    {
        text[0] = __ldcs(from_next);
        text[1] = __ldcs(from_next + 32);
        from_next += V::tile_blocks;
    }
    __device__ __forceinline__ void store(const uint4 text[2])
    {
        __stcs(to_next, text[0]);
        __stcs(to_next + 32, text[1]);
        to_next += V::tile_blocks;
    }
    __device__ __forceinline__ void load_slow(int32_t i, uint4 text[2])
    {
        text[0] = i >= 0 ? from[i] : make_uint4(0, 0, 0, 0);
        text[1] = i + 32 >= 0 ? from[i + 32] : make_uint4(0, 0, 0, 0);
    }
    __device__ __forceinline__ void store_slow(int32_t i, const uint4 text[2])
    {
        if (i >= 0)
            to[i] = text[0];
        if (i + 32 >= 0)
            to[i + 32] = text[1];
    }
};

__device__ void resolve(const kvx_measure &measure, uint32_t item, kvx_unit *unit)
{
    unit->sealed = const_cast<uint8_t *>(measure.from) + (uint64_t)item * measure.unit_bytes; /* read only */
    unit->bytes = measure.unit_bytes;
    unit->key_slot = measure.units_key ? measure.units_key[item] : 0;
    unit->key_generation = measure.keys[unit->key_slot].generation;
    unit->verdict = KVX_VERDICT_NONE;
    kvx_unit_number(unit, 0, measure.first_number + item);
}

/* Counter mode alone. */
struct ctr {
    template <class V>
    static __device__ __forceinline__ void turn(kvx_cta &cta, const kvx_measure &measure, kvx_turn turn)
    {
        const uint32_t item = cta.first_item + turn.unit;
        const flat_io<V> io(cta.units[turn.unit], measure.to + (uint64_t)item * measure.unit_bytes);
        if constexpr (V::tensor)
            kvx_tensor_cipher<V>(cta, turn, io);
        else
            kvx_table_cipher<V>(cta, turn, io);
    }
};

/* GHASH alone. */
struct ghash {
    template <class V>
    static __device__ __forceinline__ void turn(kvx_cta &cta, const kvx_measure &measure, kvx_turn turn)
    {
        if constexpr (V::tensor) {
            kvx_tensor_hash<V>(cta, turn);
            kvx_turn_sync(turn);
            fold<V>(measure, turn);
        } else {
            finish<V>(cta, measure, turn, true, kvx_table_fold(cta, kvx_table_hash<V>(cta, turn)));
        }
    }

    /* Not inlined: its values would be spilled in the loop around it. */
    template <class V> static __device__ __noinline__ void fold(const kvx_measure &measure, kvx_turn turn)
    {
        const bool folds = kvx_tensor_folds<V>(turn);
        finish<V>(kvx_cta_state(), measure, turn, folds, folds ? kvx_tensor_fold<V>(turn) : kvx_gf_zero());
    }

    template <class V>
    static __device__ __forceinline__ void finish(kvx_cta &cta, const kvx_measure &measure, kvx_turn turn,
                                                  bool has_piece, kvx_gf hash)
    {
        if (!kvx_turn_sum<V>(cta, turn, has_piece, &hash))
            return;
        hash = kvx_gf_xor(hash, kvx_unit_lengths(cta, cta.units[turn.unit]));
        if (kvx_lane() == 0)
            reinterpret_cast<uint4 *>(measure.to)[cta.first_item + turn.unit] = make_uint4(
                kvx_bswap32(hash.w[0]), kvx_bswap32(hash.w[1]), kvx_bswap32(hash.w[2]), kvx_bswap32(hash.w[3]));
    }
};

template <class V, class Half>
__device__ __forceinline__ void measure_round(kvx_cta &cta, const kvx_measure &measure, uint32_t n_units)
{
    uint32_t waiting = kvx_units_waiting(cta, n_units);
    while (waiting != 0) {
        uint32_t units = kvx_units_same_key<V>(cta, waiting);
        waiting &= ~units;
        if (!kvx_units_key<V>(cta, measure.keys, units, KVX_VERDICT_REFUSED))
            continue;
        for (uint32_t side = 0; units != 0; side ^= 1)
            Half::template turn<V>(cta, measure, kvx_turn_take<V>(&units, side));
    }
    __syncthreads();
}

template <class V, class Half>
__global__ void __launch_bounds__(KVX_CTA_THREADS, 1) measure_kernel(const __grid_constant__ measure_params p)
{
    if constexpr (!kvx_variant_runs<V>())
        return;
    kvx_cta &cta = kvx_cta_state();
    kvx_cta_begin<V>(cta, kvx_cta_items(p.measure.n_units, p.n_ctas));
    __syncthreads();
    while (cta.first_item < cta.end_item) {
        const uint32_t first = cta.first_item, n_units = min(V::units_per_round, cta.end_item - first);
        if (threadIdx.x < n_units)
            resolve(p.measure, first + threadIdx.x, &cta.units[threadIdx.x]);
        __syncthreads();
        measure_round<V, Half>(cta, p.measure, n_units);
        if (threadIdx.x == 0)
            cta.first_item = first + V::units_per_round;
        __syncthreads();
    }
    kvx_cta_end<V>();
}

template <class Half> kvx_build build_of(uint32_t variant)
{
    switch (variant) {
    case KVX_VARIANT_TENSOR:
        return {reinterpret_cast<const void *>(measure_kernel<kvx_variant_tensor, Half>),
                kvx_variant_tensor::shared_bytes};
    case KVX_VARIANT_192K:
        return {reinterpret_cast<const void *>(measure_kernel<kvx_variant_192k, Half>), kvx_variant_192k::shared_bytes};
    case KVX_VARIANT_160K:
        return {reinterpret_cast<const void *>(measure_kernel<kvx_variant_160k, Half>), kvx_variant_160k::shared_bytes};
    case KVX_VARIANT_96K:
        return {reinterpret_cast<const void *>(measure_kernel<kvx_variant_96k, Half>), kvx_variant_96k::shared_bytes};
    default:
        return {nullptr, 0};
    }
}

template <class Half> int launch(const kvx_measure *measure, void *stream)
{
    const kvx_build build = build_of<Half>(measure->variant);
    if (!build.kernel || measure->unit_bytes == 0 || measure->unit_bytes % KVX_UNIT_ALIGN != 0 ||
        measure->unit_bytes > KVX_UNIT_BYTES_LIMIT)
        return cudaErrorInvalidValue;
    const cudaError_t error =
        cudaFuncSetAttribute(build.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)build.shared_bytes);
    if (error != cudaSuccess)
        return error;
    measure_params params = {*measure, kvx_ctas_of(measure->n_sms, measure->n_units)};
    void *arguments[] = {&params};
    return cudaLaunchKernel(build.kernel, dim3(params.n_ctas), dim3(KVX_CTA_THREADS), arguments, build.shared_bytes,
                            static_cast<cudaStream_t>(stream));
}

} // namespace

int kvx_measure_ctr(const kvx_measure *measure, void *stream)
{
    return launch<ctr>(measure, stream);
}

int kvx_measure_ghash(const kvx_measure *measure, void *stream)
{
    return launch<ghash>(measure, stream);
}
