/* SPDX-License-Identifier: Apache-2.0 */
/* The binary tensor cores of sm_90a: a warpgroup (four warps) multiplies 64 rows of 256 bits, which its threads hold in
 * registers, by a matrix of ghash_matrix.h in shared memory, and counts the ones that meet. Thread 4g + j of warp w has
 * the bits of row 16w + g and of row 16w + g + 8 that meet words j of the matrix, and gets the counts that are the bits
 * of word j of the rows' products. */
#ifndef KVX_KERNELS_WGMMA_CUH
#define KVX_KERNELS_WGMMA_CUH

#include "tables.cuh"

/* Only code for sm_90a itself has the instructions; other code gets kernels without a body, never launched. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define KVX_HAS_TENSOR true
#else
#define KVX_HAS_TENSOR false
#endif

template <class V> __device__ constexpr bool kvx_variant_runs()
{
    return !V::tensor || KVX_HAS_TENSOR;
}

/* What the tensor cores are told of a matrix: where it is, and the distances of its cores along depth and columns. */
__device__ __forceinline__ uint64_t kvx_matrix_descriptor(uint32_t at)
{
    return (uint64_t)(at >> 4) | (uint64_t)(128 >> 4) << 16 | (uint64_t)(256 >> 4) << 32;
}
#define KVX_MATRIX_DESCRIPTORS (KVX_MATRIX_WORDS * 4 >> 4) /* from one matrix to the next */

__device__ __forceinline__ void kvx_wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
}

#define KVX_COUNTS_4(c, i) c(d[i]), c(d[(i) + 1]), c(d[(i) + 2]), c(d[(i) + 3])
#define KVX_COUNTS_16(c, i)                                                                                            \
    KVX_COUNTS_4(c, i), KVX_COUNTS_4(c, (i) + 4), KVX_COUNTS_4(c, (i) + 8), KVX_COUNTS_4(c, (i) + 12)
#define KVX_COUNTS(c) KVX_COUNTS_16(c, 0), KVX_COUNTS_16(c, 16), KVX_COUNTS_16(c, 32), KVX_COUNTS_16(c, 48)
#define KVX_WGMMA(add)                                                                                                 \
    "{\n.reg .pred add;\nsetp.ne.b32 add, " add ", 0;\n"                                                               \
    "wgmma.mma_async.sync.aligned.m64n128k256.s32.b1.b1.and.popc "                                                     \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"  \
    "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57," \
    "%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, add;\n}\n"

/* d = a * matrix. a: {row g, row g + 8} of the first words, then of the second. */
__device__ __forceinline__ void kvx_wgmma_set(uint32_t (&d)[64], const uint32_t a[4], uint64_t matrix)
{
    asm volatile(KVX_WGMMA("0") : KVX_COUNTS("=r") : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(matrix));
}

/* d += a * matrix */
__device__ __forceinline__ void kvx_wgmma_add(uint32_t (&d)[64], const uint32_t a[4], uint64_t matrix)
{
    asm volatile(KVX_WGMMA("1") : KVX_COUNTS("+r") : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(matrix));
}

__device__ __forceinline__ void kvx_wgmma_wait(uint32_t (&d)[64])
{
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" : KVX_COUNTS("+r") : : "memory");
}

#define KVX_COUNT_BITS 11
static_assert(KVX_MATRICES * 256 < 1u << KVX_COUNT_BITS, "a count may need more bits");

/* The parities of a thread's 32 counts for row g (upper 0) or g + 8 (upper 1), as a word. Three counts side by side in
 * a word are masked and moved together. */
__device__ __forceinline__ uint32_t kvx_parities(const uint32_t (&d)[64], unsigned upper)
{
    constexpr uint32_t one = 1u << KVX_COUNT_BITS, mask = 1u | one | one << KVX_COUNT_BITS;
    uint32_t word = 0;
#pragma unroll
    for (int bit = KVX_COUNT_BITS - 1; bit >= 0; bit--) {
        uint32_t packed = 0;
#pragma unroll
        for (int place = 2; place >= 0; place--) {
            const int i = bit + place * KVX_COUNT_BITS;
            if (i < 32)
                packed = packed * one + d[4 * (i >> 1) + (i & 1) + 2 * upper];
        }
        word = word * 2 + (packed & mask);
    }
    return word;
}

#endif
