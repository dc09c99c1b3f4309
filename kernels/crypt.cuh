/* SPDX-License-Identifier: Apache-2.0 */
/* AES-256 in counter mode and GHASH by table look-up, several blocks of a lane at a time, and how a unit's blocks are
 * shared out among warps and lanes.
 *
 * GHASH is a polynomial in H whose coefficients are the blocks. A tile is 32 x n consecutive blocks; lane l takes every
 * 32nd block and runs Horner's rule with H^32. Tiles are aligned to the unit's end, as if zero blocks, which add
 * nothing, came before it: so each lane's last block has the same weight in every unit, H^(33-l). */
#ifndef KVX_KERNELS_CRYPT_CUH
#define KVX_KERNELS_CRYPT_CUH

#include "tables.cuh"

/* The part of a unit that one warp takes (with tensor cores, four warps). `first` may be negative (imaginary blocks);
 * `weight` is the distance to the unit's end, in blocks. */
struct kvx_piece {
    int32_t first, end;
    uint32_t weight;
};

template <class V>
__device__ __forceinline__ kvx_piece kvx_piece_of(uint32_t n_blocks, uint32_t index, uint32_t n_pieces)
{
    constexpr uint32_t step = V::step_blocks;
    const uint32_t n_steps = (n_blocks + step - 1) / step;
    const uint32_t piece_blocks = (n_steps + n_pieces - 1) / n_pieces * step;
    kvx_piece piece;
    piece.weight = (n_pieces - 1 - index) * piece_blocks;
    piece.end = (int32_t)n_blocks - (int32_t)piece.weight;
    piece.first = piece.end - (int32_t)piece_blocks;
    if (piece.first < 0) /* skip the steps that are all imaginary */
        piece.first += -piece.first / (int32_t)step * (int32_t)step;
    return piece;
}

/* ---------------------------------------------------------------------------------------------------------- cipher */

/* Rounds 1 and 2 as far as they do not depend on the low half of the counter: of the 32 look-ups ten remain. */
struct kvx_counter_cache {
    uint32_t high;      /* counter >> 16 */
    uint32_t round1[2]; /* columns 0 and 1, without the bytes that change */
    uint32_t round2[4]; /* what columns 2 and 3 of round 1 contribute */
    uint32_t last_word; /* round key 3 */
    const uint32_t *iv; /* its three words, as they stand in a block; in shared memory, registers are short */
};

template <class V>
__device__ void kvx_counter_cache_set(kvx_counter_cache *cache, const uint4 *round_keys, kvx_columns c, uint32_t high)
{
    const uint4 k0 = round_keys[0], k1 = round_keys[1], k2 = round_keys[2];
    const uint32_t s0 = cache->iv[0] ^ k0.x, s1 = cache->iv[1] ^ k0.y, s2 = cache->iv[2] ^ k0.z;
    const uint32_t s3 = kvx_bswap32(high << 16) ^ k0.w;
    const uint32_t t2 = kvx_aes_look_up<V, 0>(c, s2) ^ kvx_aes_look_up<V, 1>(c, s3) ^ kvx_aes_look_up<V, 2>(c, s0) ^
                        kvx_aes_look_up<V, 3>(c, s1) ^ k1.z;
    const uint32_t t3 = kvx_aes_look_up<V, 0>(c, s3) ^ kvx_aes_look_up<V, 1>(c, s0) ^ kvx_aes_look_up<V, 2>(c, s1) ^
                        kvx_aes_look_up<V, 3>(c, s2) ^ k1.w;
    cache->high = high;
    cache->last_word = k0.w;
    cache->round1[0] =
        kvx_aes_look_up<V, 0>(c, s0) ^ kvx_aes_look_up<V, 1>(c, s1) ^ kvx_aes_look_up<V, 2>(c, s2) ^ k1.x;
    cache->round1[1] =
        kvx_aes_look_up<V, 0>(c, s1) ^ kvx_aes_look_up<V, 1>(c, s2) ^ kvx_aes_look_up<V, 3>(c, s0) ^ k1.y;
    cache->round2[0] = kvx_aes_look_up<V, 2>(c, t2) ^ kvx_aes_look_up<V, 3>(c, t3) ^ k2.x;
    cache->round2[1] = kvx_aes_look_up<V, 1>(c, t2) ^ kvx_aes_look_up<V, 2>(c, t3) ^ k2.y;
    cache->round2[2] = kvx_aes_look_up<V, 0>(c, t2) ^ kvx_aes_look_up<V, 1>(c, t3) ^ k2.z;
    cache->round2[3] = kvx_aes_look_up<V, 0>(c, t3) ^ kvx_aes_look_up<V, 3>(c, t2) ^ k2.w;
}

/* The state after two rounds. */
template <class V>
__device__ __forceinline__ void kvx_aes_begin(const kvx_counter_cache &cache, kvx_columns c, uint32_t counter,
                                              uint32_t s[4])
{
    const uint32_t z = kvx_bswap32(counter) ^ cache.last_word;
    const uint32_t t0 = cache.round1[0] ^ kvx_aes_look_up<V, 3>(c, z);
    const uint32_t t1 = cache.round1[1] ^ kvx_aes_look_up<V, 2>(c, z);
    s[0] = kvx_aes_look_up<V, 0>(c, t0) ^ kvx_aes_look_up<V, 1>(c, t1) ^ cache.round2[0];
    s[1] = kvx_aes_look_up<V, 0>(c, t1) ^ kvx_aes_look_up<V, 3>(c, t0) ^ cache.round2[1];
    s[2] = kvx_aes_look_up<V, 2>(c, t0) ^ kvx_aes_look_up<V, 3>(c, t1) ^ cache.round2[2];
    s[3] = kvx_aes_look_up<V, 1>(c, t0) ^ kvx_aes_look_up<V, 2>(c, t1) ^ cache.round2[3];
}

template <class V>
__device__ __forceinline__ uint32_t kvx_aes_column(kvx_columns c, uint32_t a, uint32_t b, uint32_t d, uint32_t e,
                                                   uint32_t key)
{
    return kvx_aes_look_up<V, 0>(c, a) ^ kvx_aes_look_up<V, 1>(c, b) ^ kvx_aes_look_up<V, 2>(c, d) ^
           kvx_aes_look_up<V, 3>(c, e) ^ key;
}

template <class V> __device__ __forceinline__ void kvx_aes_round(kvx_columns c, uint4 key, uint32_t s[4])
{
    const uint32_t t0 = kvx_aes_column<V>(c, s[0], s[1], s[2], s[3], key.x);
    const uint32_t t1 = kvx_aes_column<V>(c, s[1], s[2], s[3], s[0], key.y);
    const uint32_t t2 = kvx_aes_column<V>(c, s[2], s[3], s[0], s[1], key.z);
    const uint32_t t3 = kvx_aes_column<V>(c, s[3], s[0], s[1], s[2], key.w);
    s[0] = t0;
    s[1] = t1;
    s[2] = t2;
    s[3] = t3;
}

template <class V>
__device__ __forceinline__ uint32_t kvx_aes_last_column(kvx_columns c, uint32_t a, uint32_t b, uint32_t d, uint32_t e)
{
    const uint32_t low = __byte_perm(kvx_aes_look_up_sbox<V, 0>(c, a), kvx_aes_look_up_sbox<V, 1>(c, b), 0x0051);
    const uint32_t high = __byte_perm(kvx_aes_look_up_sbox<V, 2>(c, d), kvx_aes_look_up_sbox<V, 3>(c, e), 0x6200);
    return __byte_perm(low, high, 0x7610);
}

template <class V> __device__ __forceinline__ void kvx_aes_end(kvx_columns c, uint4 key, uint32_t s[4])
{
    const uint32_t t0 = kvx_aes_last_column<V>(c, s[0], s[1], s[2], s[3]) ^ key.x;
    const uint32_t t1 = kvx_aes_last_column<V>(c, s[1], s[2], s[3], s[0]) ^ key.y;
    const uint32_t t2 = kvx_aes_last_column<V>(c, s[2], s[3], s[0], s[1]) ^ key.z;
    const uint32_t t3 = kvx_aes_last_column<V>(c, s[3], s[0], s[1], s[2]) ^ key.w;
    s[0] = t0;
    s[1] = t1;
    s[2] = t2;
    s[3] = t3;
}

/* The cipher's output for N counters: stream[n], little-endian words. Unroll: rounds in a row in the code. */
template <class V, unsigned N, unsigned Unroll>
__device__ __forceinline__ void kvx_key_stream(kvx_counter_cache *cache, const uint4 *round_keys, kvx_columns c,
                                               const uint32_t counters[N], uint32_t stream[N][4])
{
#pragma unroll
    for (unsigned n = 0; n < N; n++) {
        if (counters[n] >> 16 != cache->high)
            kvx_counter_cache_set<V>(cache, round_keys, c, counters[n] >> 16);
        kvx_aes_begin<V>(*cache, c, counters[n], stream[n]);
    }
#pragma unroll Unroll
    for (unsigned round = 3; round < 14; round++) {
        const uint4 key = round_keys[round];
#pragma unroll
        for (unsigned n = 0; n < N; n++)
            kvx_aes_round<V>(c, key, stream[n]);
    }
    const uint4 key = round_keys[14];
#pragma unroll
    for (unsigned n = 0; n < N; n++)
        kvx_aes_end<V>(c, key, stream[n]);
}

/* ----------------------------------------------------------------------------------------------------------- GHASH */

/* sum += (H^32 * x^(8 Table)) * (byte <Byte> of each word of y, at its word). */
template <class V, unsigned Table, unsigned Byte>
__device__ __forceinline__ void kvx_hash_add_bytes(kvx_columns c, kvx_gf y, uint32_t sum[8])
{
#pragma unroll
    for (unsigned i = 0; i < 4; i++) {
        const kvx_gf x = kvx_hash_look_up<V, Table, Byte>(c, y.w[i]);
#pragma unroll
        for (unsigned j = 0; j < 4; j++)
            sum[i + j] ^= x.w[j];
    }
}

__device__ __forceinline__ void kvx_shift_right_256(uint32_t x[8], unsigned n)
{
#pragma unroll
    for (unsigned i = 7; i > 0; i--)
        x[i] = __funnelshift_r(x[i], x[i - 1], n);
    x[0] >>= n;
}

/* y * H^32. Bytes that are 32 bits apart share a table, for their products differ by whole words only; the sums of
 * bytes that have no table of their own are shifted into place; one reduction at the end. */
template <class V> __device__ __forceinline__ kvx_gf kvx_hash_multiply(kvx_columns c, kvx_gf y)
{
    uint32_t sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (V::hash_tables == 2) {
        kvx_hash_add_bytes<V, 0, 2>(c, y, sum);
        kvx_hash_add_bytes<V, V::hash_tables - 1, 3>(c, y, sum);
        kvx_shift_right_256(sum, 16);
        kvx_hash_add_bytes<V, 0, 0>(c, y, sum);
        kvx_hash_add_bytes<V, V::hash_tables - 1, 1>(c, y, sum);
    } else {
        kvx_hash_add_bytes<V, 0, 3>(c, y, sum);
        kvx_shift_right_256(sum, 8);
        kvx_hash_add_bytes<V, 0, 2>(c, y, sum);
        kvx_shift_right_256(sum, 8);
        kvx_hash_add_bytes<V, 0, 1>(c, y, sum);
        kvx_shift_right_256(sum, 8);
        kvx_hash_add_bytes<V, 0, 0>(c, y, sum);
    }
    return kvx_gf_reduce(sum);
}

__device__ __forceinline__ kvx_gf kvx_gf_of_block(uint4 block)
{
    const kvx_gf x = {{kvx_bswap32(block.x), kvx_bswap32(block.y), kvx_bswap32(block.z), kvx_bswap32(block.w)}};
    return x;
}

__device__ __forceinline__ kvx_gf kvx_gf_shuffle_xor(kvx_gf x, unsigned mask)
{
    for (unsigned i = 0; i < 4; i++)
        x.w[i] = __shfl_xor_sync(0xffffffffu, x.w[i], mask);
    return x;
}

/* The sum over a warp, in every lane. */
__device__ __forceinline__ kvx_gf kvx_gf_warp_sum(kvx_gf x)
{
    for (unsigned mask = 16; mask > 0; mask >>= 1)
        x = kvx_gf_xor(x, kvx_gf_shuffle_xor(x, mask));
    return x;
}

/* H^exponent, in every lane: lane i contributes bit i. */
__device__ __forceinline__ kvx_gf kvx_warp_power(const kvx_gf *doublings, uint32_t exponent)
{
    kvx_gf x = kvx_lane() < KVX_KEY_DOUBLINGS && (exponent >> kvx_lane() & 1) ? doublings[kvx_lane()] : kvx_gf_one();
#pragma unroll 1
    for (unsigned mask = 16; mask > 0; mask >>= 1)
        x = kvx_gf_mul(x, kvx_gf_shuffle_xor(x, mask));
    return x;
}

#endif
