/* SPDX-License-Identifier: Apache-2.0 */
/* Look-up tables in shared memory, laid out so that time tells nothing. Each AES table has a copy for each of a warp's
 * 32 lanes and lane l reads bank l alone; each GHASH table has eight copies of 16 bytes, one for each lane of a quarter
 * warp. Whatever the indices are, a look-up is one wavefront (four for 16 bytes).
 *
 * A row is 256 bytes, so the address is {lane's column, index} in its two low bytes: one PRMT makes it, and where the
 * table begins is an immediate in the load. That takes tables at a shared address known at compile time. */
#ifndef KVX_KERNELS_TABLES_CUH
#define KVX_KERNELS_TABLES_CUH

#include "key_slot.cuh"

#define KVX_CTA_THREADS 512u
#define KVX_CTA_WARPS (KVX_CTA_THREADS / 32)

/* Shared addresses. The first KiB is the system's; kvx_launch_prepare checks that ours begins behind it. */
#define KVX_SHARED_BASE 1024u
#define KVX_UNITS_LIMIT_PER_ROUND 32u /* a lane each */
#define KVX_ROW_BYTES 256u
#define KVX_PLANE_BYTES (256u * KVX_ROW_BYTES) /* two tables side by side */

#define KVX_LANE_BLOCKS 2u /* blocks of one lane in flight */
#define KVX_TILE_BLOCKS (32u * KVX_LANE_BLOCKS)

/* How many tables there is room for. The missing ones are rotations of those that are there. */
template <unsigned AesTables, unsigned HashTables> struct kvx_variant {
    static constexpr bool tensor = false;
    static constexpr unsigned units_per_round = 16;
    static constexpr unsigned tile_blocks = KVX_TILE_BLOCKS;
    static constexpr unsigned piece_warps = 1;               /* that share a piece of a unit */
    static constexpr unsigned step_blocks = KVX_TILE_BLOCKS; /* a piece is a multiple of it */
    static constexpr unsigned aes_tables = AesTables;        /* 4: T0 to T3, or 2: T0, T1 */
    static constexpr unsigned hash_tables = HashTables;      /* 2: bytes 0 and 1, or 1: byte 0, in rows of 128 bytes */
    static constexpr unsigned aes_at = 4096;
    static constexpr unsigned hash_at = aes_at + AesTables / 2 * KVX_PLANE_BYTES;
    static constexpr unsigned end = hash_at + HashTables * KVX_PLANE_BYTES / 2;
    static constexpr unsigned shared_bytes = end - KVX_SHARED_BASE;
};
using kvx_variant_192k = kvx_variant<4, 2>;
using kvx_variant_160k = kvx_variant<4, 1>;
using kvx_variant_96k = kvx_variant<2, 1>;

/* All AES tables, and matrices for the tensor cores instead of GHASH tables (tensor.cuh). */
struct kvx_variant_tensor {
    static constexpr bool tensor = true;
    static constexpr unsigned units_per_round = KVX_UNITS_LIMIT_PER_ROUND;
    static constexpr unsigned tile_blocks = KVX_MATRIX_TILE_BLOCKS;
    static constexpr unsigned piece_warps = 4;
    static constexpr unsigned step_blocks = KVX_MATRIX_STEP_BLOCKS;
    static constexpr unsigned aes_tables = 4, hash_tables = 0;
    static constexpr unsigned aes_at = 6144;
    static constexpr unsigned hash_at = aes_at + 2 * KVX_PLANE_BYTES;
    static constexpr unsigned weights_at = hash_at + offsetof(kvx_key_matrices, row_weights);
    static constexpr unsigned masks_at = hash_at + sizeof(kvx_key_matrices); /* of tags; a set for each group */
    static constexpr unsigned rows_at = masks_at + KVX_CTA_WARPS / piece_warps * units_per_round * KVX_TAG_BYTES;
    static constexpr unsigned rows_bytes = KVX_MATRIX_ROWS * sizeof(kvx_gf); /* of a piece; two sets for each group */
    static constexpr unsigned end = rows_at + KVX_CTA_WARPS / piece_warps * 2 * rows_bytes;
    static constexpr unsigned shared_bytes = end - KVX_SHARED_BASE;
};
static_assert(kvx_variant_160k::shared_bytes <= 163 * 1024, "sm_80");
static_assert(kvx_variant_96k::shared_bytes <= 99 * 1024, "sm_86, sm_89, sm_120");

/* A lane's column in the rows of either kind of table, in the form that addresses are made from. */
struct kvx_columns {
    uint32_t aes, hash;
};

__device__ __forceinline__ uint32_t kvx_lane()
{
    return threadIdx.x & 31u;
}

template <unsigned Table> __device__ __forceinline__ uint32_t kvx_shared_word(uint32_t at)
{
    uint32_t x;
    asm("ld.shared.u32 %0, [%1 + %2];" : "=r"(x) : "r"(at), "n"(Table));
    return x;
}

template <unsigned Table> __device__ __forceinline__ kvx_gf kvx_shared_gf(uint32_t at)
{
    kvx_gf x;
    asm("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4 + %5];"
        : "=r"(x.w[0]), "=r"(x.w[1]), "=r"(x.w[2]), "=r"(x.w[3])
        : "r"(at), "n"(Table));
    return x;
}

__device__ __forceinline__ void kvx_shared_store(uint32_t at, uint32_t x)
{
    asm volatile("st.shared.u32 [%0], %1;" : : "r"(at), "r"(x) : "memory");
}

__device__ __forceinline__ void kvx_shared_store(uint32_t at, kvx_gf x)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(at), "r"(x.w[0]), "r"(x.w[1]), "r"(x.w[2]), "r"(x.w[3])
                 : "memory");
}

/* Not one of the pure look-ups: what it reads changes. */
__device__ __forceinline__ kvx_gf kvx_shared_load(uint32_t at)
{
    kvx_gf x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.w[0]), "=r"(x.w[1]), "=r"(x.w[2]), "=r"(x.w[3])
                 : "r"(at)
                 : "memory");
    return x;
}

/* The columns, opaque to the compiler: it takes the look-ups for pure functions of their address, and must not move one
 * above the barrier after which the tables are there. To be asked for after that barrier. */
template <class Variant> __device__ __forceinline__ kvx_columns kvx_lane_columns()
{
    kvx_columns c;
    c.aes = kvx_lane() * 4;
    c.hash = (kvx_lane() & 7u) * (Variant::hash_tables == 2 ? 16 : 32);
    asm volatile("" : "+r"(c.aes), "+r"(c.hash) : : "memory");
    return c;
}

/* T<Byte>[byte <Byte> of x]: byte b of a little-endian state word always goes through table b. */
template <class Variant, unsigned Byte> __device__ __forceinline__ uint32_t kvx_aes_look_up(kvx_columns c, uint32_t x)
{
    constexpr unsigned half = Byte & 1, plane = Variant::aes_tables == 4 ? Byte / 2 : 0;
    const uint32_t at = __byte_perm(x, c.aes, 0x7604 | Byte << 4);
    const uint32_t y = kvx_shared_word<Variant::aes_at + plane * KVX_PLANE_BYTES + half * 128>(at);
    return Variant::aes_tables == 4 || Byte < 2 ? y : kvx_rotl32(y, 16);
}

/* T0[byte <Byte> of x], whose bytes 1 and 2 are the S-box: for the last round. */
template <class Variant, unsigned Byte>
__device__ __forceinline__ uint32_t kvx_aes_look_up_sbox(kvx_columns c, uint32_t x)
{
    return kvx_shared_word<Variant::aes_at>(__byte_perm(x, c.aes, 0x7604 | Byte << 4));
}

/* H^32 times the element whose byte <Table> is byte <Byte> of the big-endian word x (byte 0 is the highest). */
template <class Variant, unsigned Table, unsigned Byte>
__device__ __forceinline__ kvx_gf kvx_hash_look_up(kvx_columns c, uint32_t x)
{
    const uint32_t at = __byte_perm(x, c.hash, 0x7604 | (3 - Byte) << 4);
    return kvx_shared_gf<Variant::hash_at + Table * 128>(Variant::hash_tables == 2 ? at : at >> 1);
}

/* Fills the AES tables, which are public. A lane computes one entry; the warp then writes row after row. */
template <class Variant> __device__ void kvx_fill_aes_tables()
{
    constexpr unsigned rows = 256 / KVX_CTA_WARPS;
    const uint32_t first = threadIdx.x / 32 * rows;
    const uint32_t mine = kvx_aes_table_word((uint8_t)(first + kvx_lane() % rows));
    for (unsigned i = 0; i < rows; i++) {
        const uint32_t word = __shfl_sync(0xffffffffu, mine, i);
        const uint32_t at = Variant::aes_at + (first + i) * KVX_ROW_BYTES + kvx_lane() * 4;
        for (unsigned table = 0; table < Variant::aes_tables; table++)
            kvx_shared_store(at + table / 2 * KVX_PLANE_BYTES + table % 2 * 128, kvx_rotl32(word, 8 * table));
    }
}

/* Copies a key's matrices, which the tensor cores then read past the ordinary path. */
template <class Variant> __device__ void kvx_fill_matrices(const kvx_key_slot *key)
{
    const uint4 *from = reinterpret_cast<const uint4 *>(&key->matrices);
    for (uint32_t i = threadIdx.x; i < sizeof key->matrices / 16; i += KVX_CTA_THREADS) {
        const uint4 x = __ldcg(from + i);
        kvx_shared_store(Variant::hash_at + i * 16, kvx_gf{{x.x, x.y, x.z, x.w}});
    }
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}

/* Fills the GHASH tables with those of a key. Lanes start at different copies so as not to meet in a bank. */
template <class Variant> __device__ void kvx_fill_hash_tables(const kvx_key_slot *key)
{
    constexpr unsigned row_bytes = Variant::hash_tables * 128;
    for (uint32_t i = threadIdx.x; i < Variant::hash_tables * 256; i += KVX_CTA_THREADS) {
        const uint32_t table = i / 256, entry = i % 256;
        const uint4 x = __ldcg(reinterpret_cast<const uint4 *>(&key->tables[table][entry]));
        const kvx_gf value = {{x.x, x.y, x.z, x.w}};
        for (unsigned copy = 0; copy < 8; copy++)
            kvx_shared_store(Variant::hash_at + entry * row_bytes + table * 128 + (copy + i) % 8 * 16, value);
    }
}

template <class Variant> __device__ void kvx_clear_hash_tables()
{
    for (uint32_t at = Variant::hash_at + threadIdx.x * 16; at < Variant::end; at += KVX_CTA_THREADS * 16)
        kvx_shared_store(at, kvx_gf_zero());
}

#endif
