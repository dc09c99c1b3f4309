/* SPDX-License-Identifier: Apache-2.0 */
/* GHASH's field, GF(2^128) modulo x^128 + x^7 + x^2 + x + 1, without tables and without secret-dependent branches.
 * Polynomials are multiplied with ordinary 32x32->64 integer multiplication: bits are spread four apart, a sum of at
 * most fifteen then cannot carry into the next used bit, and its lowest bit is the parity. Elements are four big-endian
 * words: the most significant bit of w[0] is the coefficient of x^0, the least significant of w[3] that of x^127. */
#ifndef KVX_KERNELS_GHASH_H
#define KVX_KERNELS_GHASH_H

#include "hd.h"

typedef struct kvx_gf {
    uint32_t w[4];
} kvx_gf;

KVX_HD kvx_gf kvx_gf_load(const uint8_t *block)
{
    kvx_gf r;
    for (unsigned i = 0; i < 4; i++)
        r.w[i] = kvx_load_be32(block + 4 * i);
    return r;
}

KVX_HD void kvx_gf_store(uint8_t *block, kvx_gf a)
{
    for (unsigned i = 0; i < 4; i++)
        kvx_store_be32(block + 4 * i, a.w[i]);
}

KVX_HD kvx_gf kvx_gf_zero(void)
{
    kvx_gf r;
    r.w[0] = r.w[1] = r.w[2] = r.w[3] = 0;
    return r;
}

KVX_HD kvx_gf kvx_gf_one(void)
{
    kvx_gf r = kvx_gf_zero();
    r.w[0] = 0x80000000u;
    return r;
}

KVX_HD kvx_gf kvx_gf_xor(kvx_gf a, kvx_gf b)
{
    for (unsigned i = 0; i < 4; i++)
        a.w[i] ^= b.w[i];
    return a;
}

/* sum + x * y, one instruction on a GPU. */
KVX_HD uint64_t kvx_mul_add(uint32_t x, uint32_t y, uint64_t sum)
{
    return (uint64_t)x * y + sum;
}

/* The carry-less product of two 32-bit polynomials. xi and yi hold every fourth bit from bit i on; bit 4n + k of z_k is
 * the parity of the bit pairs that meet there. A product x_i y_j has at most 8 of them at one place, and at most 7 at
 * the place where a product with i + j smaller or larger by 4 has 8: such two may be added, their sum of at most 15
 * still fits in four bits. Others must be joined by exclusive or. */
KVX_HD uint64_t kvx_clmul32(uint32_t x, uint32_t y)
{
    const uint32_t m = 0x11111111u;
    const uint64_t wide = 0x1111111111111111u;
    const uint32_t x0 = x & m, x1 = x & (m << 1), x2 = x & (m << 2), x3 = x & (m << 3);
    const uint32_t y0 = y & m, y1 = y & (m << 1), y2 = y & (m << 2), y3 = y & (m << 3);
    const uint64_t z0 = kvx_mul_add(x0, y0, kvx_mul_add(x1, y3, 0)) ^ kvx_mul_add(x2, y2, 0) ^ kvx_mul_add(x3, y1, 0);
    const uint64_t z1 = kvx_mul_add(x0, y1, kvx_mul_add(x2, y3, 0)) ^ kvx_mul_add(x1, y0, kvx_mul_add(x3, y2, 0));
    const uint64_t z2 = kvx_mul_add(x0, y2, kvx_mul_add(x3, y3, 0)) ^ kvx_mul_add(x1, y1, 0) ^ kvx_mul_add(x2, y0, 0);
    const uint64_t z3 =
        kvx_mul_add(x0, y3, 0) ^ kvx_mul_add(x1, y2, 0) ^ kvx_mul_add(x2, y1, 0) ^ kvx_mul_add(x3, y0, 0);
    return (z0 & wide) | (z1 & (wide << 1)) | (z2 & (wide << 2)) | (z3 & (wide << 3));
}

/* The carry-less product of {x0,x1} by {y0,y1}, most significant word first. */
KVX_HD void kvx_clmul64(uint32_t x0, uint32_t x1, uint32_t y0, uint32_t y1, uint32_t r[4])
{
    const uint64_t high = kvx_clmul32(x0, y0);
    const uint64_t low = kvx_clmul32(x1, y1);
    const uint64_t mid = kvx_clmul32(x0 ^ x1, y0 ^ y1) ^ high ^ low;
    r[0] = (uint32_t)(high >> 32);
    r[1] = (uint32_t)high ^ (uint32_t)(mid >> 32);
    r[2] = (uint32_t)(low >> 32) ^ (uint32_t)mid;
    r[3] = (uint32_t)low;
}

/* Bits shifted out of `high` come in at the top of `low`. */
KVX_HD uint32_t kvx_shift_right_pair(uint32_t high, uint32_t low, unsigned n)
{
    return (low >> n) | (high << (32u - n));
}

/* Reduces a product of 256 bits, p[0] first, whose most significant bit is the coefficient of x^0. */
KVX_HD kvx_gf kvx_gf_reduce(const uint32_t p[8])
{
    /* x^(128+k) = x^k (1 + x + x^2 + x^7): the last seven coefficients fold twice, first into the upper half. */
    const uint32_t fold = (p[7] << 31) ^ (p[7] << 30) ^ (p[7] << 25);
    const uint32_t v0 = p[4] ^ fold, v1 = p[5], v2 = p[6], v3 = p[7];
    kvx_gf r;
    r.w[0] = p[0] ^ v0 ^ (v0 >> 1) ^ (v0 >> 2) ^ (v0 >> 7);
    r.w[1] =
        p[1] ^ v1 ^ kvx_shift_right_pair(v0, v1, 1) ^ kvx_shift_right_pair(v0, v1, 2) ^ kvx_shift_right_pair(v0, v1, 7);
    r.w[2] =
        p[2] ^ v2 ^ kvx_shift_right_pair(v1, v2, 1) ^ kvx_shift_right_pair(v1, v2, 2) ^ kvx_shift_right_pair(v1, v2, 7);
    r.w[3] =
        p[3] ^ v3 ^ kvx_shift_right_pair(v2, v3, 1) ^ kvx_shift_right_pair(v2, v3, 2) ^ kvx_shift_right_pair(v2, v3, 7);
    return r;
}

/* Nine independent 32-bit products (two levels of Karatsuba), then one shift, since the product of two bit-reversed
 * polynomials comes out one place low, and the reduction. */
KVX_HD kvx_gf kvx_gf_mul(kvx_gf a, kvx_gf b)
{
    uint32_t high[4], low[4], mid[4], p[8];
    kvx_clmul64(a.w[0], a.w[1], b.w[0], b.w[1], high);
    kvx_clmul64(a.w[2], a.w[3], b.w[2], b.w[3], low);
    kvx_clmul64(a.w[0] ^ a.w[2], a.w[1] ^ a.w[3], b.w[0] ^ b.w[2], b.w[1] ^ b.w[3], mid);
    for (unsigned i = 0; i < 4; i++)
        mid[i] ^= high[i] ^ low[i];
    high[2] ^= mid[0];
    high[3] ^= mid[1];
    low[0] ^= mid[2];
    low[1] ^= mid[3];
    for (unsigned i = 0; i < 3; i++) {
        p[i] = kvx_shift_right_pair(high[i], high[i + 1], 31);
        p[i + 4] = kvx_shift_right_pair(low[i], low[i + 1], 31);
    }
    p[3] = kvx_shift_right_pair(high[3], low[0], 31);
    p[7] = low[3] << 1;
    return kvx_gf_reduce(p);
}

/* Puts bit i of x at bit 2i+1. */
KVX_HD uint64_t kvx_spread_bits(uint32_t x)
{
    uint64_t y = x;
    y = (y | (y << 16)) & 0x0000ffff0000ffffu;
    y = (y | (y << 8)) & 0x00ff00ff00ff00ffu;
    y = (y | (y << 4)) & 0x0f0f0f0f0f0f0f0fu;
    y = (y | (y << 2)) & 0x3333333333333333u;
    y = (y | (y << 1)) & 0x5555555555555555u;
    return y << 1;
}

KVX_HD kvx_gf kvx_gf_square(kvx_gf a)
{
    uint32_t p[8];
    for (unsigned i = 0; i < 4; i++) {
        const uint64_t spread = kvx_spread_bits(a.w[i]);
        p[2 * i] = (uint32_t)(spread >> 32);
        p[2 * i + 1] = (uint32_t)spread;
    }
    return kvx_gf_reduce(p);
}

/* base to the power `exponent`, which is public: time depends on it. */
KVX_HD kvx_gf kvx_gf_pow(kvx_gf base, uint64_t exponent)
{
    kvx_gf r = kvx_gf_one();
    for (; exponent != 0; exponent >>= 1) {
        if (exponent & 1u)
            r = kvx_gf_mul(r, base);
        base = kvx_gf_square(base);
    }
    return r;
}

/* a * x^n, 1 <= n <= 24. */
KVX_HD kvx_gf kvx_gf_shift(kvx_gf a, unsigned n)
{
    const uint32_t o = a.w[3] << (32u - n);
    kvx_gf r;
    r.w[0] = (a.w[0] >> n) ^ o ^ (o >> 1) ^ (o >> 2) ^ (o >> 7);
    r.w[1] = kvx_shift_right_pair(a.w[0], a.w[1], n) ^ (o << 31) ^ (o << 30) ^ (o << 25);
    r.w[2] = kvx_shift_right_pair(a.w[1], a.w[2], n);
    r.w[3] = kvx_shift_right_pair(a.w[2], a.w[3], n);
    return r;
}

/* Entry b of GHASH table t (0 or 1): k times the element whose byte t is b and whose other bytes are zero. */
KVX_HD kvx_gf kvx_ghash_tables(kvx_gf k, unsigned t, unsigned b)
{
    kvx_gf r = kvx_gf_zero();
    if (t != 0)
        k = kvx_gf_shift(k, 8);
    for (unsigned i = 0; i < 8; i++) {
        const uint32_t mask = 0u - ((b >> (7u - i)) & 1u);
        for (unsigned j = 0; j < 4; j++)
            r.w[j] ^= k.w[j] & mask;
        k = kvx_gf_shift(k, 1);
    }
    return r;
}

/* Takes `n_blocks` whole blocks into the running hash y under the hash key h; returns the new y. */
KVX_HD kvx_gf kvx_ghash_update(kvx_gf y, kvx_gf h, const uint8_t *blocks, size_t n_blocks)
{
    for (size_t i = 0; i < n_blocks; i++)
        y = kvx_gf_mul(kvx_gf_xor(y, kvx_gf_load(blocks + 16 * i)), h);
    return y;
}

#endif
