/* SPDX-License-Identifier: Apache-2.0 */
/* A piece of a unit by a warpgroup: a cipher pass by tables, and a hash pass by tensor cores over the sealed bytes, in
 * GPU memory, by the threads that wrote them. Thread l of warp w has blocks 64w + l and 64w + l + 32 of each tile, in
 * both passes. Pieces end where tiles end, as if zero blocks came before the unit. */
#ifndef KVX_KERNELS_TENSOR_CUH
#define KVX_KERNELS_TENSOR_CUH

#include "cta.cuh"
#include "sbox.cuh"
#include "wgmma.cuh"

/* The place of the thread's first block in a tile. */
__device__ __forceinline__ int32_t kvx_tile_place()
{
    return (int32_t)(threadIdx.x / 32 % 4 * 64 + kvx_lane());
}

/* -------------------------------------------------------------------------------------------------------- counters */

/* A thread's two counters keep their low bytes from tile to tile, and the byte above is the tile: the state after two
 * rounds is a(low byte) ^ b(byte above). What lies further up counts in `a`, and changes once in 65536 blocks. */
struct kvx_tile_counters {
    uint32_t a[2][4], b[4];
    uint32_t round1;    /* column 1 without the byte that changes */
    uint32_t last_word; /* round key 3 */
    uint32_t high;      /* the sum of both counters' upper halves that `a` is for */
};

template <class V>
__device__ __forceinline__ void kvx_tile_counters_low(const kvx_counter_cache &cache, kvx_columns c, uint32_t counter,
                                                      uint32_t a[4])
{
    const uint32_t t = cache.round1[0] ^ kvx_aes_look_up<V, 3>(c, kvx_bswap32(counter) ^ cache.last_word);
    a[0] = cache.round2[0] ^ kvx_aes_look_up<V, 0>(c, t);
    a[1] = cache.round2[1] ^ kvx_aes_look_up<V, 3>(c, t);
    a[2] = cache.round2[2] ^ kvx_aes_look_up<V, 2>(c, t);
    a[3] = cache.round2[3] ^ kvx_aes_look_up<V, 1>(c, t);
}

template <class V>
__device__ __forceinline__ void kvx_tile_counters_next(const kvx_tile_counters &counters, kvx_columns c,
                                                       uint32_t counter, uint32_t b[4])
{
    const uint32_t t = counters.round1 ^ kvx_aes_look_up<V, 2>(c, kvx_bswap32(counter) ^ counters.last_word);
    b[0] = kvx_aes_look_up<V, 1>(c, t);
    b[1] = kvx_aes_look_up<V, 0>(c, t);
    b[2] = kvx_aes_look_up<V, 3>(c, t);
    b[3] = kvx_aes_look_up<V, 2>(c, t);
}

__device__ __forceinline__ uint32_t kvx_tile_counters_high(uint32_t counter)
{
    return (counter >> 16) + ((counter + 32) >> 16);
}

/* For a thread whose first counter is `counter`. */
template <class V>
__device__ __forceinline__ void kvx_tile_counters_set(kvx_tile_counters *counters, const kvx_cta &cta,
                                                      const kvx_unit &unit, kvx_columns c, uint32_t counter)
{
    kvx_counter_cache cache = kvx_unit_counters(unit);
#pragma unroll
    for (unsigned n = 0; n < 2; n++) {
        if (cache.high != (counter + 32 * n) >> 16)
            kvx_counter_cache_set<V>(&cache, cta.key.round_keys, c, (counter + 32 * n) >> 16);
        kvx_tile_counters_low<V>(cache, c, counter + 32 * n, counters->a[n]);
    }
    counters->round1 = cache.round1[1];
    counters->last_word = cache.last_word;
    counters->high = kvx_tile_counters_high(counter);
    kvx_tile_counters_next<V>(*counters, c, counter, counters->b);
}

/* How many tiles there are from the thread's block i until the piece ends or the upper half of a counter changes. */
__device__ __forceinline__ int32_t kvx_tiles_left(int32_t i, int32_t end)
{
    constexpr uint32_t tile = KVX_MATRIX_TILE_BLOCKS;
    const uint32_t counter = (uint32_t)i + 2, low = max(counter & 0xffffu, (counter + 32) & 0xffffu);
    const uint32_t n_same = (0xffffu - low) / tile + 1;
    return (int32_t)min(n_same, ((uint32_t)(end - i) + tile - 1) / tile);
}

/* The states after two rounds, then on to the next tile. */
template <class V>
__device__ __forceinline__ void kvx_tile_counters_begin(kvx_tile_counters *counters, kvx_columns c, uint32_t counter,
                                                        uint32_t s[2][4])
{
    const bool carries = (counter & 0xffu) >= 0x100u - 32;
    uint32_t next[4];
    kvx_tile_counters_next<V>(*counters, c, counter + KVX_MATRIX_TILE_BLOCKS, next);
#pragma unroll
    for (unsigned j = 0; j < 4; j++) {
        s[0][j] = counters->a[0][j] ^ counters->b[j];
        s[1][j] = counters->a[1][j] ^ (carries ? next[j] : counters->b[j]);
        counters->b[j] = next[j];
    }
}

/* ------------------------------------------------------------------------------------------------ the last round */

/* Words to bit planes and back: the thread's two blocks are 32 bytes, as many as a word has bits. Bit
 * 8k + i of plane b is bit b of byte k of word i. */
__device__ __forceinline__ void kvx_planes_exchange(uint32_t *a, uint32_t *b, unsigned n, uint32_t mask)
{
    const uint32_t x = *a, y = *b, up = y << n, down = x >> n;
    *a = kvx_lop3<0xe4>(x, up, mask); /* mask ? x : up */
    *b = kvx_lop3<0xe4>(down, y, mask);
}

__device__ __forceinline__ void kvx_planes_transpose(uint32_t x[8])
{
#pragma unroll
    for (unsigned i = 0; i < 4; i++)
        kvx_planes_exchange(&x[i], &x[i + 4], 4, 0x0f0f0f0fu);
#pragma unroll
    for (unsigned i = 0; i < 4; i++)
        kvx_planes_exchange(&x[i + i / 2 * 2], &x[i + i / 2 * 2 + 2], 2, 0x33333333u);
#pragma unroll
    for (unsigned i = 0; i < 4; i++)
        kvx_planes_exchange(&x[2 * i], &x[2 * i + 1], 1, 0x55555555u);
}

__device__ __forceinline__ void kvx_shift_rows(const uint32_t s[4], uint32_t t[4])
{
    const uint32_t a = __byte_perm(s[0], s[2], 0x2460), b = __byte_perm(s[1], s[3], 0x3571);
    const uint32_t c = __byte_perm(s[1], s[3], 0x2460), d = __byte_perm(s[2], s[0], 0x3571);
    t[0] = __byte_perm(a, b, 0x5140);
    t[1] = __byte_perm(c, d, 0x5140);
    t[2] = __byte_perm(a, b, 0x7362);
    t[3] = __byte_perm(c, d, 0x7362);
}

/* The last round without its key, on both blocks at once and without look-ups: the load/store unit is full, the
 * arithmetic units are not. */
__device__ __forceinline__ void kvx_last_round(uint32_t s[2][4])
{
    uint32_t x[8];
    kvx_shift_rows(s[0], x);
    kvx_shift_rows(s[1], x + 4);
    kvx_planes_transpose(x);
    kvx_sbox_planes(x);
    kvx_planes_transpose(x);
#pragma unroll
    for (unsigned i = 0; i < 8; i++)
        s[i / 4][i % 4] = x[i];
}

/* ---------------------------------------------------------------------------------------------------------- passes */

/* How many round keys stay in registers during a cipher pass; the others are read from shared memory for each tile. */
#define KVX_KEPT_ROUNDS 10u

/* A round key into registers, to stay there: the compiler would load it again for each tile. */
__device__ __forceinline__ uint4 kvx_key_to_registers(const uint4 *key)
{
    const kvx_gf x = kvx_shared_load((uint32_t)__cvta_generic_to_shared(key));
    return make_uint4(x.w[0], x.w[1], x.w[2], x.w[3]);
}

__device__ __forceinline__ uint4 kvx_block_xor(uint4 text, const uint32_t s[4], uint4 key)
{
    return make_uint4(text.x ^ s[0] ^ key.x, text.y ^ s[1] ^ key.y, text.z ^ s[2] ^ key.z, text.w ^ s[3] ^ key.w);
}

/* Rounds 3 to 14, all but the last key. */
template <class V>
__device__ __forceinline__ void kvx_tile_rounds(const kvx_cta &cta, kvx_columns columns,
                                                const uint4 keys[KVX_KEPT_ROUNDS], uint32_t s[2][4])
{
#pragma unroll
    for (unsigned round = 3; round < 14; round++) {
        const uint4 key = round < 3 + KVX_KEPT_ROUNDS ? keys[round - 3] : cta.key.round_keys[round];
        kvx_aes_round<V>(columns, key, s[0]);
        kvx_aes_round<V>(columns, key, s[1]);
    }
    kvx_last_round(s);
}

/* Passes the piece through the cipher, in runs of tiles for which everything is known beforehand. Io: begin(i) gets
 * ready for blocks i and i + 32 and tells for how many tiles from there load() and store() may follow each other; 0:
 * only load_slow(i) and store_slow(i), for this tile. Either block may be imaginary (negative). */
template <class V, class Io> __device__ __forceinline__ void kvx_tensor_cipher(const kvx_cta &cta, kvx_turn turn, Io io)
{
    constexpr int32_t tile = (int32_t)KVX_MATRIX_TILE_BLOCKS;
    const kvx_columns columns = kvx_lane_columns<V>();
    const kvx_piece piece = kvx_turn_piece<V>(cta, turn);
    int32_t i = piece.first + kvx_tile_place();
    kvx_tile_counters counters = {}; /* not for its values: unset, it would take registers in all that comes before */
    uint4 keys[KVX_KEPT_ROUNDS];
    if (piece.first >= piece.end)
        return;
#pragma unroll
    for (unsigned round = 3; round < 3 + KVX_KEPT_ROUNDS; round++)
        keys[round - 3] = kvx_key_to_registers(&cta.key.round_keys[round]);
    while (i + 32 < 0) /* tiles whose blocks are imaginary in this thread */
        i += tile;
    counters.high = UINT32_MAX; /* none yet */
#pragma unroll 1
    while (i < piece.end) {
        if (counters.high != kvx_tile_counters_high((uint32_t)i + 2))
            kvx_tile_counters_set<V>(&counters, cta, cta.units[turn.unit], columns, (uint32_t)i + 2);
        const int32_t n_fast = min(io.begin(i), kvx_tiles_left(i, piece.end));
        const int32_t run_end = i + max(n_fast, 1) * tile;
#pragma unroll 1
        do {
            uint4 text[2];
            uint32_t s[2][4];
            if (n_fast > 0)
                io.load(text);
            else
                io.load_slow(i, text);
            kvx_tile_counters_begin<V>(&counters, columns, (uint32_t)i + 2, s);
            kvx_tile_rounds<V>(cta, columns, keys, s);
            const uint4 key = cta.key.round_keys[14];
            text[0] = kvx_block_xor(text[0], s[0], key);
            text[1] = kvx_block_xor(text[1], s[1], key);
            if (n_fast > 0)
                io.store(text);
            else
                io.store_slow(i, text);
            i += tile;
        } while (i < run_end);
    }
}

/* Where the rows of the warp's piece are. */
template <class V> __device__ __forceinline__ uint32_t kvx_rows_at(kvx_turn turn)
{
    return V::rows_at + (threadIdx.x / 32 / V::piece_warps * 2 + turn.side) * V::rows_bytes;
}

/* Loads what this thread may have stored before: not to be moved up by the compiler. */
__device__ __forceinline__ uint4 kvx_load_again(const uint4 *p)
{
    uint4 x;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(p)
                 : "memory");
    return x;
}

/* The thread's blocks of a step, as the tensor cores take them: for each tile words 0 and 1 of both blocks, then 2
 * and 3.
 */
__device__ __forceinline__ void kvx_step_load(const uint4 *sealed, int32_t first, int32_t end,
                                              uint32_t a[KVX_MATRICES - 1][4])
{
#pragma unroll
    for (int n = 0; n < (int)KVX_MATRICES - 1; n++) {
        const int32_t i = first + n / 2 * (int)KVX_MATRIX_TILE_BLOCKS + n % 2 * 32;
        const uint4 x = i >= 0 && first < end ? kvx_load_again(sealed + i) : make_uint4(0, 0, 0, 0);
        a[n / 2 * 2][n % 2] = x.x;
        a[n / 2 * 2][n % 2 + 2] = x.y;
        a[n / 2 * 2 + 1][n % 2] = x.z;
        a[n / 2 * 2 + 1][n % 2 + 2] = x.w;
    }
}

/* Hashes the piece and leaves its rows in shared memory, for kvx_tensor_fold, once the group has met. */
template <class V> __device__ __forceinline__ void kvx_tensor_hash(const kvx_cta &cta, kvx_turn turn)
{
    const kvx_piece piece = kvx_turn_piece<V>(cta, turn);
    const uint4 *sealed = reinterpret_cast<const uint4 *>(cta.units[turn.unit].sealed);
    const uint64_t matrices = kvx_matrix_descriptor(V::hash_at);
    uint32_t rows[4] = {0, 0, 0, 0}; /* the last two are the words that Horner's matrix does not have */
    int32_t i = piece.first + kvx_tile_place();
    uint32_t next[KVX_MATRICES - 1][4];
    kvx_step_load(sealed, i, piece.end, next);
#pragma unroll 1
    while (i < piece.end) {
        uint32_t a[KVX_MATRICES - 1][4], counts[64];
#pragma unroll
        for (unsigned n = 0; n < (KVX_MATRICES - 1) * 4; n++)
            a[n / 4][n % 4] = next[n / 4][n % 4];
        i += (int32_t)KVX_MATRIX_STEP_BLOCKS;
        kvx_step_load(sealed, i, piece.end, next);
        kvx_wgmma_fence();
        kvx_wgmma_set(counts, rows, matrices + KVX_MATRIX_HORNER * KVX_MATRIX_DESCRIPTORS);
#pragma unroll
        for (unsigned n = 0; n < KVX_MATRICES - 1; n++)
            kvx_wgmma_add(counts, a[n], matrices + n * KVX_MATRIX_DESCRIPTORS);
        kvx_wgmma_wait(counts);
        rows[0] = kvx_parities(counts, 0);
        rows[1] = kvx_parities(counts, 1);
    }
    const uint32_t at = kvx_rows_at<V>(turn) + threadIdx.x / 32 % 4 * (V::rows_bytes / 4) + kvx_lane() * 4;
    kvx_shared_store(at, rows[0]); /* word j of row g, in thread 4g + j */
    kvx_shared_store(at + 8 * sizeof(kvx_gf), rows[1]);
}

/* Is this the warp that folds its piece's rows? */
template <class V> __device__ __forceinline__ bool kvx_tensor_folds(kvx_turn turn)
{
    const uint32_t first = threadIdx.x / 32 / turn.n_warps * turn.n_warps / V::piece_warps;
    return threadIdx.x / 32 % V::piece_warps == first % V::piece_warps;
}

/* The hash of the piece from its rows, in all lanes: two rows a lane. */
template <class V> __device__ __forceinline__ kvx_gf kvx_tensor_fold(kvx_turn turn)
{
    kvx_gf sum = kvx_gf_zero();
#pragma unroll 1
    for (uint32_t at = kvx_lane() * sizeof(kvx_gf); at < V::rows_bytes; at += 32 * sizeof(kvx_gf)) {
        kvx_gf row = kvx_shared_load(kvx_rows_at<V>(turn) + at);
        for (unsigned j = 0; j < 4; j++)
            row.w[j] = kvx_bswap32(row.w[j]);
        sum = kvx_gf_xor(sum, kvx_gf_mul(row, kvx_shared_load(V::weights_at + at)));
    }
    return kvx_gf_warp_sum(sum);
}

#endif
