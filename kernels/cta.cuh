/* SPDX-License-Identifier: Apache-2.0 */
/* How a CTA works through units: in rounds. A warp resolves the round's units, a lane each. Then the CTA's groups of
 * warps share out those with the same key, for the CTA holds the tables of one key at a time, and each group works
 * through its units without waiting for the others. */
#ifndef KVX_KERNELS_CTA_CUH
#define KVX_KERNELS_CTA_CUH

#include "crypt.cuh"
#include "gather.cuh"
#include "unit.cuh"

/* Shared memory below the tables. */
struct kvx_cta {
    kvx_key_powers key;
    kvx_gf partial[KVX_CTA_WARPS];
    kvx_gf piece_power[KVX_CTA_WARPS]; /* H^piece_weight, as each warp used it last */
    uint32_t piece_weight[KVX_CTA_WARPS];
    uint32_t key_slot, key_generation; /* of what is loaded */
    uint32_t key_good;
    uint32_t first_item, end_item;             /* left to do, from this round on: kept here, registers are short */
    kvx_unit units[KVX_UNITS_LIMIT_PER_ROUND]; /* not all are there in variants with smaller rounds */
};

template <class V> constexpr unsigned kvx_cta_bytes = offsetof(kvx_cta, units) + V::units_per_round * sizeof(kvx_unit);
template <class V> constexpr bool kvx_cta_fits = kvx_cta_bytes<V> <= V::aes_at - KVX_SHARED_BASE;
static_assert(kvx_cta_fits<kvx_variant_192k> && kvx_cta_fits<kvx_variant_tensor>, "the tables begin too early");

__device__ __forceinline__ kvx_cta &kvx_cta_state()
{
    extern __shared__ __align__(16) uint8_t kvx_shared[];
    return *reinterpret_cast<kvx_cta *>(kvx_shared);
}

/* A unit that this warp's group works on. */
struct kvx_turn {
    uint32_t unit;    /* of the round */
    uint32_t n_warps; /* of the group: a power of two */
    uint32_t side;    /* alternates from turn to turn: of what a slow warp may still read, there are two */
};

/* Ready after the next barrier. */
template <class V> __device__ __forceinline__ void kvx_cta_begin(kvx_cta &cta, kvx_span items)
{
    kvx_fill_aes_tables<V>();
    if (threadIdx.x == 0) {
        cta.key_slot = UINT32_MAX;
        cta.key_good = 0;
        cta.first_item = items.first;
        cta.end_item = items.end;
    }
}

/* Nothing of a key outlives the CTA. */
template <class V> __device__ __forceinline__ void kvx_cta_end()
{
    __syncthreads();
    for (uint32_t at = KVX_SHARED_BASE + threadIdx.x * 4; at < V::aes_at; at += KVX_CTA_THREADS * 4)
        kvx_shared_store(at, 0u);
    kvx_clear_hash_tables<V>();
}

/* Bit u: unit u of the round still waits to be worked on. By the whole CTA, which then may work. */
__device__ __forceinline__ uint32_t kvx_units_waiting(const kvx_cta &cta, uint32_t n_units)
{
    const bool waits = kvx_lane() < n_units && cta.units[kvx_lane()].verdict == KVX_VERDICT_NONE;
    const uint32_t waiting = __ballot_sync(0xffffffffu, waits);
    __syncthreads(); /* or a warp that is late might see verdicts of this very round */
    return waiting;
}

/* Of the units in `waiting`, those with the first one's key. */
template <class V> __device__ __forceinline__ uint32_t kvx_units_same_key(const kvx_cta &cta, uint32_t waiting)
{
    const kvx_unit &first = cta.units[__ffs(waiting) - 1];
    const kvx_unit &mine = cta.units[kvx_lane() % V::units_per_round];
    const bool same = mine.key_slot == first.key_slot && mine.key_generation == first.key_generation;
    return __ballot_sync(0xffffffffu, same) & waiting;
}

/* Takes a unit for each group out of `units`, which has some. All warps get the same sets, each the unit of its group.
 * There are as many groups as have a unit each: of the last few units each gets more warps than the others had. */
template <class V> __device__ __forceinline__ kvx_turn kvx_turn_take(uint32_t *units, uint32_t side)
{
    constexpr uint32_t n_groups_limit = KVX_CTA_WARPS / V::piece_warps;
    const uint32_t n = min((uint32_t)__popc(*units), n_groups_limit);
    const uint32_t n_groups = 1u << (31 - __clz((int)n));
    kvx_turn turn = {0, KVX_CTA_WARPS / n_groups, side};
    for (uint32_t group = 0; group < n_groups; group++) {
        if (group == threadIdx.x / 32 / turn.n_warps)
            turn.unit = (uint32_t)__ffs((int)*units) - 1;
        *units &= *units - 1;
    }
    return turn;
}

/* The part of the unit that this warp takes, or its piece's warps together. */
template <class V> __device__ __forceinline__ kvx_piece kvx_turn_piece(const kvx_cta &cta, kvx_turn turn)
{
    return kvx_piece_of<V>(cta.units[turn.unit].bytes / 16, threadIdx.x / 32 % turn.n_warps / V::piece_warps,
                           turn.n_warps / V::piece_warps);
}

/* Waits for the other warps of the group. Each group of each size has a barrier of its own. */
__device__ __forceinline__ void kvx_turn_sync(kvx_turn turn)
{
    if (turn.n_warps == 1)
        __syncwarp();
    else
        asm volatile("bar.sync %0, %1;"
                     :
                     : "r"((KVX_CTA_WARPS + threadIdx.x / 32) / turn.n_warps), "r"(turn.n_warps * 32)
                     : "memory");
}

/* Copies a key into shared memory and only then asks whether it was alive. Called by all threads, `slot` < n_keys. */
template <class V>
__device__ __forceinline__ void kvx_key_load(kvx_cta &cta, const kvx_key_slot *key, uint32_t slot, uint32_t generation)
{
    constexpr uint32_t n = sizeof(kvx_key_powers) / 16;
    __syncthreads(); /* nobody uses the key before it any more */
    if (threadIdx.x < n)
        reinterpret_cast<uint4 *>(&cta.key)[threadIdx.x] =
            __ldcg(reinterpret_cast<const uint4 *>(&key->powers) + threadIdx.x);
    if constexpr (V::tensor)
        kvx_fill_matrices<V>(key);
    else
        kvx_fill_hash_tables<V>(key);
    if (threadIdx.x < KVX_CTA_WARPS)
        cta.piece_weight[threadIdx.x] = 0;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        cta.key_good = kvx_key_is_live(key, generation);
        cta.key_slot = slot;
        cta.key_generation = generation;
    }
    __syncthreads();
}

/* Makes the key of `units`, which is the same, the loaded one. False: it is dead; the units get `refusal`. */
template <class V>
__device__ __forceinline__ bool kvx_units_key(kvx_cta &cta, const kvx_key_slot *keys, uint32_t units, uint32_t refusal)
{
    const kvx_unit &first = cta.units[__ffs(units) - 1];
    const uint32_t slot = first.key_slot, generation = first.key_generation;
    if (!cta.key_good || cta.key_slot != slot || cta.key_generation != generation)
        kvx_key_load<V>(cta, &keys[slot], slot, generation);
    if (cta.key_good)
        return true;
    if (threadIdx.x < V::units_per_round && (units >> threadIdx.x & 1))
        cta.units[threadIdx.x].verdict = refusal;
    __syncthreads();
    return false;
}

__device__ __forceinline__ kvx_counter_cache kvx_unit_counters(const kvx_unit &unit)
{
    kvx_counter_cache cache;
    cache.high = UINT32_MAX; /* none yet */
    cache.iv = unit.iv;
    return cache;
}

/* H^weight, weight != 0; the same weight comes again and again. */
__device__ __forceinline__ kvx_gf kvx_piece_power(kvx_cta &cta, uint32_t weight)
{
    const uint32_t warp = threadIdx.x / 32;
    if (cta.piece_weight[warp] != weight) {
        const kvx_gf power = kvx_warp_power(cta.key.doublings, weight);
        __syncwarp();
        if (kvx_lane() == 0) {
            cta.piece_power[warp] = power;
            cta.piece_weight[warp] = weight;
        }
        __syncwarp();
    }
    return cta.piece_power[warp];
}

/* Is this the warp that sees to the unit's tag? Those of different groups run on different quarters of the SM. */
template <class V> __device__ __forceinline__ bool kvx_turn_is_tagger(kvx_turn turn)
{
    const uint32_t warp = threadIdx.x / 32, group = warp / turn.n_warps;
    if constexpr (V::tensor) /* one of those that fold, whatever the group's size */
        return warp % turn.n_warps == group * turn.n_warps / V::piece_warps % V::piece_warps;
    else
        return warp % turn.n_warps == group % turn.n_warps;
}

/* From the hashes of the unit's pieces, each in all lanes of one warp (`has_piece`), to that of the unit, times H (for
 * the length block will follow). True in the tagger, which gets it. The group waits for its tagger, which may still be
 * at the last unit's. */
template <class V>
__device__ __forceinline__ bool kvx_turn_sum(kvx_cta &cta, kvx_turn turn, bool has_piece, kvx_gf *hash)
{
    const uint32_t warp = threadIdx.x / 32, n_pieces = turn.n_warps / V::piece_warps;
    const uint32_t weight = kvx_turn_piece<V>(cta, turn).weight;
    if (n_pieces == 1)
        return kvx_turn_is_tagger<V>(turn);
    if (has_piece && weight != 0)
        *hash = kvx_gf_mul(*hash, kvx_piece_power(cta, weight));
    if (!V::tensor) /* there the group has met already */
        kvx_turn_sync(turn);
    if (has_piece && kvx_lane() == 0)
        cta.partial[warp / V::piece_warps] = *hash;
    kvx_turn_sync(turn);
    if (!kvx_turn_is_tagger<V>(turn))
        return false;
    const uint32_t first = warp / turn.n_warps * n_pieces;
    *hash = kvx_gf_warp_sum(kvx_lane() < n_pieces ? cta.partial[first + kvx_lane()] : kvx_gf_zero());
    return true;
}

/* What the length block adds to the hash of a unit. */
__device__ __forceinline__ kvx_gf kvx_unit_lengths(const kvx_cta &cta, const kvx_unit &unit)
{
    return kvx_gf_mul({{0, 0, unit.bytes >> 29, unit.bytes << 3}}, cta.key.doublings[0]);
}

/* What is added to the hash of a unit to make its tag, as words of the tag: the cipher's output for counter 1, and
 * the length block's part. */
template <class V> __device__ __forceinline__ kvx_gf kvx_unit_mask(const kvx_cta &cta, const kvx_unit &unit)
{
    const kvx_columns columns = kvx_lane_columns<V>();
    const uint32_t counter = 1;
    kvx_counter_cache cache = kvx_unit_counters(unit);
    uint32_t mask[1][4];
    kvx_key_stream<V, 1, 1>(&cache, cta.key.round_keys, columns, &counter, mask);
    const kvx_gf lengths = kvx_unit_lengths(cta, unit);
    return {{mask[0][0] ^ kvx_bswap32(lengths.w[0]), mask[0][1] ^ kvx_bswap32(lengths.w[1]),
             mask[0][2] ^ kvx_bswap32(lengths.w[2]), mask[0][3] ^ kvx_bswap32(lengths.w[3])}};
}

template <class V> __device__ __forceinline__ uint32_t kvx_mask_at(uint32_t unit)
{
    const uint32_t set = threadIdx.x / 32 / V::piece_warps;
    return V::masks_at + (set * V::units_per_round + unit) * KVX_TAG_BYTES;
}

/* Masks for all of `units` at once, a lane each, where there is room for them. Each warp that may have to make tags
 * makes its own set. */
template <class V> __device__ __forceinline__ void kvx_units_masks(const kvx_cta &cta, uint32_t units)
{
    if constexpr (V::tensor) {
        if (!kvx_turn_is_tagger<V>({0, V::piece_warps, 0}))
            return;
        const kvx_gf mask = kvx_unit_mask<V>(cta, cta.units[kvx_lane()]);
        if (units >> kvx_lane() & 1)
            kvx_shared_store(kvx_mask_at<V>(kvx_lane()), mask);
        __syncwarp();
    }
}

/* The unit's tag, as four little-endian words, from its hash; by one warp. */
template <class V> __device__ __forceinline__ uint4 kvx_turn_tag(const kvx_cta &cta, kvx_turn turn, kvx_gf hash)
{
    kvx_gf mask;
    if constexpr (V::tensor) /* made before */
        mask = kvx_shared_load(kvx_mask_at<V>(turn.unit));
    else
        mask = kvx_unit_mask<V>(cta, cta.units[turn.unit]);
    return make_uint4(kvx_bswap32(hash.w[0]) ^ mask.w[0], kvx_bswap32(hash.w[1]) ^ mask.w[1],
                      kvx_bswap32(hash.w[2]) ^ mask.w[2], kvx_bswap32(hash.w[3]) ^ mask.w[3]);
}

#endif
