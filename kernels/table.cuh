/* SPDX-License-Identifier: Apache-2.0 */
/* A piece of a unit by a warp, by look-ups in tables alone. Lane l has blocks l and l + 32 of each tile of 64. Tiles
 * end where the unit ends, as if zero blocks came before it. */
#ifndef KVX_KERNELS_TABLE_CUH
#define KVX_KERNELS_TABLE_CUH

#include "cta.cuh"

static_assert(KVX_LANE_BLOCKS == 2, "a lane's blocks are a pair");

__device__ __forceinline__ uint4 kvx_block_with(uint4 text, const uint32_t stream[4])
{
    return make_uint4(text.x ^ stream[0], text.y ^ stream[1], text.z ^ stream[2], text.w ^ stream[3]);
}

/* Passes the blocks from i on through the cipher: those are what a lane has of a tile. */
template <class V>
__device__ __forceinline__ void kvx_table_crypt(const kvx_cta &cta, kvx_columns columns, kvx_counter_cache *cache,
                                                int32_t i, uint4 text[2])
{
    const uint32_t counters[2] = {(uint32_t)max(i, 0) + 2, (uint32_t)max(i + 32, 0) + 2};
    uint32_t stream[2][4];
    kvx_key_stream<V, 2, 11>(cache, cta.key.round_keys, columns, counters, stream);
    text[0] = kvx_block_with(text[0], stream[0]);
    text[1] = kvx_block_with(text[1], stream[1]);
}

/* Takes the blocks into the lane's hash; imaginary ones are zero. */
template <class V> __device__ __forceinline__ kvx_gf kvx_table_add(kvx_columns columns, kvx_gf sum, const uint4 text[2])
{
    sum = kvx_gf_xor(kvx_hash_multiply<V>(columns, sum), kvx_gf_of_block(text[0]));
    return kvx_gf_xor(kvx_hash_multiply<V>(columns, sum), kvx_gf_of_block(text[1]));
}

template <class Io> __device__ __forceinline__ bool kvx_table_load(Io &io, int32_t i, uint4 text[2])
{
    if (io.begin(i) == 0) {
        io.load_slow(i, text);
        return false;
    }
    io.load(text);
    return true;
}

template <class Io> __device__ __forceinline__ void kvx_table_store(Io &io, bool fast, int32_t i, uint4 text[2])
{
    if (fast)
        io.store(text);
    else
        io.store_slow(i, text);
}

/* Passes the piece through the cipher. Io: as for kvx_tensor_cipher. */
template <class V, class Io> __device__ __forceinline__ void kvx_table_cipher(const kvx_cta &cta, kvx_turn turn, Io io)
{
    const kvx_columns columns = kvx_lane_columns<V>();
    const kvx_piece piece = kvx_turn_piece<V>(cta, turn);
    kvx_counter_cache cache = kvx_unit_counters(cta.units[turn.unit]);
#pragma unroll 1
    for (int32_t i = piece.first + (int32_t)kvx_lane(); i < piece.end; i += (int32_t)KVX_TILE_BLOCKS) {
        uint4 text[2];
        const bool fast = kvx_table_load(io, i, text);
        kvx_table_crypt<V>(cta, columns, &cache, i, text);
        kvx_table_store(io, fast, i, text);
    }
}

/* The same, and the hash of what comes out, before it is stored: each lane's part. */
template <class V, class Io> __device__ __forceinline__ kvx_gf kvx_table_seal(const kvx_cta &cta, kvx_turn turn, Io io)
{
    const kvx_columns columns = kvx_lane_columns<V>();
    const kvx_piece piece = kvx_turn_piece<V>(cta, turn);
    kvx_counter_cache cache = kvx_unit_counters(cta.units[turn.unit]);
    kvx_gf sum = kvx_gf_zero();
#pragma unroll 1
    for (int32_t i = piece.first + (int32_t)kvx_lane(); i < piece.end; i += (int32_t)KVX_TILE_BLOCKS) {
        uint4 text[2];
        const bool fast = kvx_table_load(io, i, text);
        kvx_table_crypt<V>(cta, columns, &cache, i, text);
        for (int n = 0; n < 2; n++)
            if (i + 32 * n < 0)
                text[n] = make_uint4(0, 0, 0, 0);
        kvx_table_store(io, fast, i, text);
        sum = kvx_table_add<V>(columns, sum, text);
    }
    return sum;
}

/* The hash of the piece's sealed bytes: each lane's part. */
template <class V> __device__ __forceinline__ kvx_gf kvx_table_hash(const kvx_cta &cta, kvx_turn turn)
{
    const kvx_columns columns = kvx_lane_columns<V>();
    const kvx_piece piece = kvx_turn_piece<V>(cta, turn);
    const uint4 *sealed = reinterpret_cast<const uint4 *>(cta.units[turn.unit].sealed);
    kvx_gf sum = kvx_gf_zero();
#pragma unroll 1
    for (int32_t i = piece.first + (int32_t)kvx_lane(); i < piece.end; i += (int32_t)KVX_TILE_BLOCKS) {
        uint4 text[2];
        text[0] = i >= 0 ? sealed[i] : make_uint4(0, 0, 0, 0);
        text[1] = i + 32 >= 0 ? sealed[i + 32] : make_uint4(0, 0, 0, 0);
        sum = kvx_table_add<V>(columns, sum, text);
    }
    return sum;
}

/* From the lanes' parts to the piece's hash, in all lanes. */
__device__ __forceinline__ kvx_gf kvx_table_fold(const kvx_cta &cta, kvx_gf lane_sum)
{
    return kvx_gf_warp_sum(kvx_gf_mul(lane_sum, cta.key.weights[kvx_lane()]));
}

#endif
