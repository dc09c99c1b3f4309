/* SPDX-License-Identifier: Apache-2.0 */
/* The S-box circuit of aes.h gate by gate, one LOP3 each: the compiler's own merging of the C expressions takes a
 * quarter more. Each line is output = truth table (three inputs); inputs may repeat. */
#ifndef KVX_KERNELS_SBOX_CUH
#define KVX_KERNELS_SBOX_CUH

#include "aes.h"

template <unsigned Table> __device__ __forceinline__ uint32_t kvx_lop3(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(d) : "r"(a), "r"(b), "r"(c), "n"(Table));
    return d;
}

/* As kvx_aes_sbox_planes, but x[7] holds the most significant bits; in place. */
__device__ __forceinline__ void kvx_sbox_planes(uint32_t x[8])
{
    const uint32_t s0 = x[7], s1 = x[6], s2 = x[5], s3 = x[4], s4 = x[3], s5 = x[2], s6 = x[1], s7 = x[0];
    const uint32_t s8 = kvx_lop3<0x3c>(s6, s0, s0);
    const uint32_t s9 = kvx_lop3<0xa5>(s5, s0, s0);
    const uint32_t s10 = kvx_lop3<0x66>(s3, s5, s3);
    const uint32_t s11 = kvx_lop3<0xc3>(s10, s8, s8);
    const uint32_t s12 = kvx_lop3<0x69>(s11, s4, s1);
    const uint32_t s13 = kvx_lop3<0x69>(s2, s12, s0);
    const uint32_t s14 = kvx_lop3<0x96>(s10, s12, s13);
    const uint32_t s15 = kvx_lop3<0x66>(s9, s13, s9);
    const uint32_t s16 = kvx_lop3<0x96>(s7, s14, s15);
    const uint32_t s17 = kvx_lop3<0x96>(s13, s16, s1);
    const uint32_t s18 = kvx_lop3<0x66>(s17, s3, s17);
    const uint32_t s19 = kvx_lop3<0xa5>(s18, s16, s16);
    const uint32_t s20 = kvx_lop3<0x69>(s0, s19, s16);
    const uint32_t s21 = kvx_lop3<0x41>(s14, s15, s12);
    const uint32_t s22 = kvx_lop3<0xd2>(s21, s14, s10);
    const uint32_t s23 = kvx_lop3<0x78>(s21, s15, s13);
    const uint32_t s24 = kvx_lop3<0x6c>(s7, s23, s17);
    const uint32_t s25 = kvx_lop3<0x78>(s23, s8, s19);
    const uint32_t s26 = kvx_lop3<0xb4>(s22, s18, s6);
    const uint32_t s27 = kvx_lop3<0x1e>(s26, s8, s19);
    const uint32_t s28 = kvx_lop3<0x4b>(s25, s16, s20);
    const uint32_t s29 = kvx_lop3<0x69>(s13, s20, s5);
    const uint32_t s30 = kvx_lop3<0x12>(s29, s11, s7);
    const uint32_t s31 = kvx_lop3<0x96>(s13, s30, s24);
    const uint32_t s32 = kvx_lop3<0x66>(s20, s8, s20);
    const uint32_t s33 = kvx_lop3<0xa5>(s11, s17, s17);
    const uint32_t s34 = kvx_lop3<0x78>(s30, s29, s33);
    const uint32_t s35 = kvx_lop3<0x96>(s22, s12, s34);
    const uint32_t s36 = kvx_lop3<0xc6>(s28, s35, s31);
    const uint32_t s37 = kvx_lop3<0x3c>(s27, s36, s36);
    const uint32_t s38 = kvx_lop3<0x72>(s28, s37, s27);
    const uint32_t s39 = kvx_lop3<0x35>(s35, s37, s31);
    const uint32_t s40 = kvx_lop3<0x35>(s31, s39, s28);
    const uint32_t s41 = kvx_lop3<0xd6>(s40, s35, s31);
    const uint32_t s42 = kvx_lop3<0x6c>(s38, s27, s40);
    const uint32_t s43 = kvx_lop3<0x3c>(s39, s38, s38);
    const uint32_t s44 = kvx_lop3<0x60>(s19, s41, s39);
    const uint32_t s45 = kvx_lop3<0x6c>(s39, s44, s18);
    const uint32_t s46 = kvx_lop3<0x6c>(s38, s45, s29);
    const uint32_t s47 = kvx_lop3<0x5a>(s41, s42, s42);
    const uint32_t s48 = kvx_lop3<0x90>(s47, s10, s9);
    const uint32_t s49 = kvx_lop3<0x3c>(s47, s43, s43);
    const uint32_t s50 = kvx_lop3<0x6a>(s49, s10, s48);
    const uint32_t s51 = kvx_lop3<0x6c>(s38, s50, s33);
    const uint32_t s52 = kvx_lop3<0x6c>(s42, s51, s17);
    const uint32_t s53 = kvx_lop3<0xc6>(s14, s45, s49);
    const uint32_t s54 = kvx_lop3<0x6a>(s47, s12, s53);
    const uint32_t s55 = kvx_lop3<0x66>(s42, s38, s42);
    const uint32_t s56 = kvx_lop3<0x90>(s55, s19, s14);
    const uint32_t s57 = kvx_lop3<0x78>(s56, s42, s7);
    const uint32_t s58 = kvx_lop3<0xa6>(s16, s41, s57);
    const uint32_t s59 = kvx_lop3<0x48>(s55, s8, s49);
    const uint32_t s60 = kvx_lop3<0x6a>(s15, s43, s59);
    const uint32_t s61 = kvx_lop3<0xc6>(s11, s51, s55);
    const uint32_t s62 = kvx_lop3<0x96>(s56, s46, s61);
    const uint32_t s63 = kvx_lop3<0x96>(s54, s61, s48);
    const uint32_t s64 = kvx_lop3<0x69>(s48, s54, s62);
    const uint32_t s65 = kvx_lop3<0x96>(s57, s60, s53);
    const uint32_t s66 = kvx_lop3<0x6c>(s20, s65, s41);
    const uint32_t s67 = kvx_lop3<0x3c>(s66, s52, s52);
    const uint32_t s68 = kvx_lop3<0x5a>(s54, s66, s66);
    const uint32_t s69 = kvx_lop3<0x39>(s9, s68, s43);
    const uint32_t s70 = kvx_lop3<0x3c>(s58, s44, s44);
    const uint32_t s71 = kvx_lop3<0x6c>(s39, s70, s32);
    const uint32_t s72 = kvx_lop3<0x69>(s50, s71, s59);
    const uint32_t s73 = kvx_lop3<0x66>(s62, s70, s62);
    const uint32_t s74 = kvx_lop3<0x69>(s65, s71, s50);
    x[7] = s63;
    x[6] = s64;
    x[5] = s69;
    x[4] = s62;
    x[3] = s73;
    x[2] = s67;
    x[1] = s74;
    x[0] = s72;
}

#endif
