/* SPDX-License-Identifier: Apache-2.0 */
/* AES-256 without tables and without secret-dependent branches or addresses: the S-box is a circuit of 67 three-input
 * gates over bit planes (one LOP3 each on a GPU), run on all bytes of a block at once. It serves key set-up and single
 * blocks on both sides, fills the GPU's shared-memory tables, and is the reference the table kernels are held to.
 * Words are little-endian: byte 0 of a word is its least significant one. */
#ifndef KVX_KERNELS_AES_H
#define KVX_KERNELS_AES_H

#include "hd.h"

#define KVX_AES256_ROUND_KEY_WORDS 60

/* The S-box on bit planes: in[0] and out[0] hold the most significant bit of each byte. The bit positions of a plane
 * are independent of each other, so that one call serves up to 32 bytes. */
KVX_HD void kvx_aes_sbox_planes(const uint32_t in[8], uint32_t out[8])
{
    const uint32_t s8 = in[6] ^ in[0];
    const uint32_t s9 = ~(in[5] ^ in[0]);
    const uint32_t s10 = in[3] ^ in[5];
    const uint32_t s11 = ~(s10 ^ s8);
    const uint32_t s12 = ~s11 ^ (in[4] ^ in[1]);
    const uint32_t s13 = ~in[2] ^ (s12 ^ in[0]);
    const uint32_t s14 = s10 ^ (s12 ^ s13);
    const uint32_t s15 = s9 ^ s13;
    const uint32_t s16 = in[7] ^ (s14 ^ s15);
    const uint32_t s17 = s13 ^ (s16 ^ in[1]);
    const uint32_t s18 = s17 ^ in[3];
    const uint32_t s19 = ~(s18 ^ s16);
    const uint32_t s20 = ~in[0] ^ (s19 ^ s16);
    const uint32_t s21 = ~(s12 | (s14 ^ s15));
    const uint32_t s22 = (s21 ^ s14) ^ (s14 | s10);
    const uint32_t s23 = s21 ^ (s15 & s13);
    const uint32_t s24 = s23 ^ (in[7] & s17);
    const uint32_t s25 = s23 ^ (s8 & s19);
    const uint32_t s26 = (s22 ^ s18) ^ (s18 & in[6]);
    const uint32_t s27 = s26 ^ (s8 | s19);
    const uint32_t s28 = s25 ^ (s20 | ~s16);
    const uint32_t s29 = ~s13 ^ (s20 ^ in[5]);
    const uint32_t s30 = ~s11 & (s29 ^ in[7]);
    const uint32_t s31 = s13 ^ (s30 ^ s24);
    const uint32_t s32 = s20 ^ s8;
    const uint32_t s33 = ~(s11 ^ s17);
    const uint32_t s34 = s30 ^ (s29 & s33);
    const uint32_t s35 = s22 ^ (s12 ^ s34);
    const uint32_t s36 = (s28 ^ s35) ^ (s28 | s31);
    const uint32_t s37 = s27 ^ s36;
    const uint32_t s38 = (s28 | s27) ^ (s37 & s27);
    const uint32_t s39 = ~s31 ^ (s35 & (s37 ^ s31));
    const uint32_t s40 = ~s28 ^ (s31 & (s39 ^ s28));
    const uint32_t s41 = (s40 & s35) | (s40 ^ (s35 ^ s31));
    const uint32_t s42 = s27 ^ (s38 & s40);
    const uint32_t s43 = s39 ^ s38;
    const uint32_t s44 = s19 & (s41 ^ s39);
    const uint32_t s45 = s44 ^ (s39 & s18);
    const uint32_t s46 = s45 ^ (s38 & s29);
    const uint32_t s47 = s41 ^ s42;
    const uint32_t s48 = s47 & ~(s10 ^ s9);
    const uint32_t s49 = s47 ^ s43;
    const uint32_t s50 = s48 ^ (s49 & s10);
    const uint32_t s51 = s50 ^ (s38 & s33);
    const uint32_t s52 = s51 ^ (s42 & s17);
    const uint32_t s53 = (s14 ^ s45) ^ (s14 | s49);
    const uint32_t s54 = s53 ^ (s47 & s12);
    const uint32_t s55 = s42 ^ s38;
    const uint32_t s56 = s55 & ~(s19 ^ s14);
    const uint32_t s57 = s56 ^ (s42 & in[7]);
    const uint32_t s58 = (s16 & s41) ^ (s41 ^ s57);
    const uint32_t s59 = s8 & (s55 ^ s49);
    const uint32_t s60 = s59 ^ (s15 & s43);
    const uint32_t s61 = (s11 ^ s51) ^ (s11 | s55);
    const uint32_t s62 = s56 ^ (s46 ^ s61);
    const uint32_t s63 = s54 ^ (s61 ^ s48);
    const uint32_t s64 = ~s48 ^ (s54 ^ s62);
    const uint32_t s65 = s57 ^ (s60 ^ s53);
    const uint32_t s66 = s65 ^ (s20 & s41);
    const uint32_t s67 = s66 ^ s52;
    const uint32_t s68 = s54 ^ s66;
    const uint32_t s69 = s68 ^ (s9 | ~s43);
    const uint32_t s70 = s58 ^ s44;
    const uint32_t s71 = s70 ^ (s39 & s32);
    const uint32_t s72 = ~s50 ^ (s71 ^ s59);
    const uint32_t s73 = s62 ^ s70;
    const uint32_t s74 = ~s65 ^ (s71 ^ s50);
    out[0] = s63;
    out[1] = s64;
    out[2] = s69;
    out[3] = s62;
    out[4] = s73;
    out[5] = s67;
    out[6] = s74;
    out[7] = s72;
}

/* The S-box on the four bytes of a word. */
KVX_HD uint32_t kvx_aes_sbox4(uint32_t x)
{
    uint32_t in[8], out[8], y = 0;
    for (unsigned i = 0; i < 8; i++)
        in[i] = x >> (7u - i);
    kvx_aes_sbox_planes(in, out);
    for (unsigned i = 0; i < 8; i++)
        y |= (out[i] & 0x01010101u) << (7u - i);
    return y;
}

/* Exchanges the bits of *a under `mask << n` with the bits of *b under `mask`; its own inverse. */
KVX_HD void kvx_aes_swap_bits(uint32_t *a, uint32_t *b, unsigned n, uint32_t mask)
{
    const uint32_t x = *a, y = *b;
    *a = (x & mask) | ((y & mask) << n);
    *b = ((x >> n) & mask) | (y & (mask << n));
}

/* Turns four words into four of which the i-th holds, in each byte, bit i of the four words' bytes there in its low
 * half and their bit i + 4 in its high half; and back. */
KVX_HD void kvx_aes_transpose(uint32_t w[4], int back)
{
    if (!back) {
        kvx_aes_swap_bits(&w[0], &w[1], 1, 0x55555555u);
        kvx_aes_swap_bits(&w[2], &w[3], 1, 0x55555555u);
    }
    kvx_aes_swap_bits(&w[0], &w[2], 2, 0x33333333u);
    kvx_aes_swap_bits(&w[1], &w[3], 2, 0x33333333u);
    if (back) {
        kvx_aes_swap_bits(&w[0], &w[1], 1, 0x55555555u);
        kvx_aes_swap_bits(&w[2], &w[3], 1, 0x55555555u);
    }
}

/* The S-box on the sixteen bytes of a block, in place. */
KVX_HD void kvx_aes_sbox16(uint32_t s[4])
{
    uint32_t in[8], out[8];
    kvx_aes_transpose(s, 0);
    for (unsigned i = 0; i < 4; i++) { /* the circuit does not mind that the other half-bytes hold something else */
        in[7 - i] = s[i];
        in[3 - i] = s[i] >> 4;
    }
    kvx_aes_sbox_planes(in, out);
    for (unsigned i = 0; i < 4; i++)
        s[i] = (out[7 - i] & 0x0f0f0f0fu) | ((out[3 - i] & 0x0f0f0f0fu) << 4);
    kvx_aes_transpose(s, 1);
}

/* Doubles each byte in GF(2^8). */
KVX_HD uint32_t kvx_aes_double4(uint32_t x)
{
    return ((x & 0x7f7f7f7fu) << 1) ^ (((x >> 7) & 0x01010101u) * 0x1bu);
}

/* Entry x of the round table T0: bytes {2s, s, s, 3s} with s = S-box(x), byte 0 the least significant. */
KVX_HD uint32_t kvx_aes_table_word(uint8_t x)
{
    const uint32_t s = kvx_aes_sbox4(x) & 0xffu;
    const uint32_t d = kvx_aes_double4(s);
    return d | (s << 8) | (s << 16) | ((d ^ s) << 24);
}

/* Expands a key; round_keys[i] holds bytes 4i to 4i+3 of the FIPS 197 schedule. The caller wipes them after use. */
KVX_HD void kvx_aes256_expand(const uint8_t key[32], uint32_t round_keys[KVX_AES256_ROUND_KEY_WORDS])
{
    uint32_t w[8], rcon = 1;
    for (unsigned i = 0; i < 8; i++)
        round_keys[i] = w[i] = kvx_load_le32(key + 4 * i);
    for (unsigned base = 8; base < KVX_AES256_ROUND_KEY_WORDS; base += 8, rcon <<= 1) {
        w[0] ^= kvx_aes_sbox4(kvx_rotr32(w[7], 8)) ^ rcon;
        w[1] ^= w[0];
        w[2] ^= w[1];
        w[3] ^= w[2];
        w[4] ^= kvx_aes_sbox4(w[3]);
        w[5] ^= w[4];
        w[6] ^= w[5];
        w[7] ^= w[6];
        const unsigned n = base + 8 > KVX_AES256_ROUND_KEY_WORDS ? 4 : 8;
        for (unsigned i = 0; i < 8; i++)
            if (i < n)
                round_keys[base + i] = w[i];
    }
}

/* Row r of the state (byte r of each word) moves r columns to the left. */
KVX_HD void kvx_aes_shift_rows(uint32_t s[4])
{
    uint32_t t[4];
    for (unsigned j = 0; j < 4; j++)
        t[j] =
            (s[j] & 0xffu) | (s[(j + 1) & 3] & 0xff00u) | (s[(j + 2) & 3] & 0xff0000u) | (s[(j + 3) & 3] & 0xff000000u);
    for (unsigned j = 0; j < 4; j++)
        s[j] = t[j];
}

KVX_HD uint32_t kvx_aes_mix_column(uint32_t x)
{
    const uint32_t d = kvx_aes_double4(x);
    return d ^ kvx_rotr32(d ^ x, 8) ^ kvx_rotr32(x, 16) ^ kvx_rotr32(x, 24);
}

/* Encrypts one block; `in` and `out` may be the same. */
KVX_HD void kvx_aes256_encrypt(const uint32_t round_keys[KVX_AES256_ROUND_KEY_WORDS], const uint32_t in[4],
                               uint32_t out[4])
{
    uint32_t s[4];
    for (unsigned j = 0; j < 4; j++)
        s[j] = in[j] ^ round_keys[j];
    for (unsigned round = 1; round < 14; round++) {
        kvx_aes_sbox16(s);
        kvx_aes_shift_rows(s);
        for (unsigned j = 0; j < 4; j++)
            s[j] = kvx_aes_mix_column(s[j]) ^ round_keys[4 * round + j];
    }
    kvx_aes_sbox16(s);
    kvx_aes_shift_rows(s);
    for (unsigned j = 0; j < 4; j++)
        out[j] = s[j] ^ round_keys[56 + j];
}

#endif
