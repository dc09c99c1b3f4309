/* SPDX-License-Identifier: Apache-2.0 */
/* Host-and-device ground: the KVX_HD function qualifier, byte order, rotation, and the few atomics that state code
 * shared by both sides needs. This is the only file that asks which compiler or which side it is compiled for; every
 * other kernels header is plain arithmetic in the common subset of C11 and C++17. */
#ifndef KVX_KERNELS_HD_H
#define KVX_KERNELS_HD_H

#include <stddef.h>
#include <stdint.h>

#if defined(__CUDACC__)
#define KVX_HD __host__ __device__ __forceinline__ static
#else
#define KVX_HD static inline
#endif

KVX_HD uint32_t kvx_rotl32(uint32_t x, unsigned n)
{
    return (x << n) | (x >> ((32u - n) & 31u));
}

KVX_HD uint32_t kvx_rotr32(uint32_t x, unsigned n)
{
    return (x >> n) | (x << ((32u - n) & 31u));
}

KVX_HD uint64_t kvx_rotl64(uint64_t x, unsigned n)
{
    return (x << n) | (x >> ((64u - n) & 63u));
}

KVX_HD uint32_t kvx_bswap32(uint32_t x)
{
#if defined(__CUDA_ARCH__)
    return __byte_perm(x, 0, 0x0123);
#else
    return (x << 24) | ((x & 0xff00u) << 8) | ((x >> 8) & 0xff00u) | (x >> 24);
#endif
}

KVX_HD uint64_t kvx_bswap64(uint64_t x)
{
    return ((uint64_t)kvx_bswap32((uint32_t)x) << 32) | kvx_bswap32((uint32_t)(x >> 32));
}

/* The loads and stores below take any alignment. */
KVX_HD uint32_t kvx_load_be32(const uint8_t *p)
{
    return ((uint32_t)p[0] << 24) | ((uint32_t)p[1] << 16) | ((uint32_t)p[2] << 8) | (uint32_t)p[3];
}

KVX_HD uint32_t kvx_load_le32(const uint8_t *p)
{
    return ((uint32_t)p[3] << 24) | ((uint32_t)p[2] << 16) | ((uint32_t)p[1] << 8) | (uint32_t)p[0];
}

KVX_HD uint64_t kvx_load_be64(const uint8_t *p)
{
    return ((uint64_t)kvx_load_be32(p) << 32) | kvx_load_be32(p + 4);
}

KVX_HD uint64_t kvx_load_le64(const uint8_t *p)
{
    return ((uint64_t)kvx_load_le32(p + 4) << 32) | kvx_load_le32(p);
}

KVX_HD void kvx_store_be32(uint8_t *p, uint32_t x)
{
    p[0] = (uint8_t)(x >> 24);
    p[1] = (uint8_t)(x >> 16);
    p[2] = (uint8_t)(x >> 8);
    p[3] = (uint8_t)x;
}

KVX_HD void kvx_store_le32(uint8_t *p, uint32_t x)
{
    p[0] = (uint8_t)x;
    p[1] = (uint8_t)(x >> 8);
    p[2] = (uint8_t)(x >> 16);
    p[3] = (uint8_t)(x >> 24);
}

KVX_HD void kvx_store_be64(uint8_t *p, uint64_t x)
{
    kvx_store_be32(p, (uint32_t)(x >> 32));
    kvx_store_be32(p + 4, (uint32_t)x);
}

KVX_HD void kvx_store_le64(uint8_t *p, uint64_t x)
{
    kvx_store_le32(p, (uint32_t)x);
    kvx_store_le32(p + 4, (uint32_t)(x >> 32));
}

/* Overwrites `n_bytes` bytes with zero in a way that the compiler may not drop. */
KVX_HD void kvx_wipe(void *p, size_t n_bytes)
{
    volatile uint8_t *bytes = (volatile uint8_t *)p;
    for (size_t i = 0; i < n_bytes; i++)
        bytes[i] = 0;
}

/* Atomics. Each read-modify-write returns the value before it. On the host they are sequentially consistent. On the
 * device they are relaxed and at GPU scope, as CUDA's own are: pair them with kvx_fence, or with the acquire loads and
 * release stores below, where data is published. The 64-bit casts are there because uint64_t is unsigned long on
 * Linux and the CUDA overloads take unsigned long long, of the same size. */
KVX_HD void kvx_fence(void)
{
#if defined(__CUDA_ARCH__)
    __threadfence();
#else
    __atomic_signal_fence(__ATOMIC_SEQ_CST); /* the atomics themselves are sequentially consistent there */
#endif
}

KVX_HD uint64_t kvx_load_acquire_u64(const uint64_t *p)
{
#if defined(__CUDA_ARCH__)
    unsigned long long x;
    asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(x) : "l"(p) : "memory");
    return x;
#else
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);
#endif
}

KVX_HD uint32_t kvx_load_acquire_u32(const uint32_t *p)
{
#if defined(__CUDA_ARCH__)
    uint32_t x;
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
#else
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);
#endif
}

KVX_HD void kvx_store_release_u64(uint64_t *p, uint64_t x)
{
#if defined(__CUDA_ARCH__)
    asm volatile("st.release.gpu.u64 [%0], %1;" : : "l"(p), "l"((unsigned long long)x) : "memory");
#else
    __atomic_store_n(p, x, __ATOMIC_SEQ_CST);
#endif
}

KVX_HD void kvx_store_release_u32(uint32_t *p, uint32_t x)
{
#if defined(__CUDA_ARCH__)
    asm volatile("st.release.gpu.u32 [%0], %1;" : : "l"(p), "r"(x) : "memory");
#else
    __atomic_store_n(p, x, __ATOMIC_SEQ_CST);
#endif
}

KVX_HD uint64_t kvx_atomic_cas_u64(uint64_t *p, uint64_t expect, uint64_t desired)
{
#if defined(__CUDA_ARCH__)
    return atomicCAS((unsigned long long *)p, (unsigned long long)expect, (unsigned long long)desired);
#else
    __atomic_compare_exchange_n(p, &expect, desired, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return expect;
#endif
}

KVX_HD uint32_t kvx_atomic_cas_u32(uint32_t *p, uint32_t expect, uint32_t desired)
{
#if defined(__CUDA_ARCH__)
    return atomicCAS(p, expect, desired);
#else
    __atomic_compare_exchange_n(p, &expect, desired, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return expect;
#endif
}

KVX_HD uint64_t kvx_atomic_add_u64(uint64_t *p, uint64_t x)
{
#if defined(__CUDA_ARCH__)
    return atomicAdd((unsigned long long *)p, (unsigned long long)x);
#else
    return __atomic_fetch_add(p, x, __ATOMIC_SEQ_CST);
#endif
}

KVX_HD uint32_t kvx_atomic_add_u32(uint32_t *p, uint32_t x)
{
#if defined(__CUDA_ARCH__)
    return atomicAdd(p, x);
#else
    return __atomic_fetch_add(p, x, __ATOMIC_SEQ_CST);
#endif
}

KVX_HD uint64_t kvx_atomic_max_u64(uint64_t *p, uint64_t x)
{
#if defined(__CUDA_ARCH__)
    return atomicMax((unsigned long long *)p, (unsigned long long)x);
#else
    uint64_t old = __atomic_load_n(p, __ATOMIC_SEQ_CST);
    while (old < x && !__atomic_compare_exchange_n(p, &old, x, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
    return old;
#endif
}

#endif
