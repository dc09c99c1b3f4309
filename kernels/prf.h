/* SPDX-License-Identifier: Apache-2.0 */
/* SipHash-2-4: the keyed 64-bit function behind result words. kvx_prf hashes two fixed words, the form that kernels
 * use; kvx_prf_bytes hashes any string and is what the published vectors check. Both agree on sixteen bytes. */
#ifndef KVX_KERNELS_PRF_H
#define KVX_KERNELS_PRF_H

#include "hd.h"

typedef struct kvx_sip {
    uint64_t v[4];
} kvx_sip;

KVX_HD kvx_sip kvx_sip_start(const uint64_t key[2])
{
    kvx_sip s;
    s.v[0] = key[0] ^ 0x736f6d6570736575u;
    s.v[1] = key[1] ^ 0x646f72616e646f6du;
    s.v[2] = key[0] ^ 0x6c7967656e657261u;
    s.v[3] = key[1] ^ 0x7465646279746573u;
    return s;
}

KVX_HD kvx_sip kvx_sip_round(kvx_sip s)
{
    s.v[0] += s.v[1];
    s.v[2] += s.v[3];
    s.v[1] = kvx_rotl64(s.v[1], 13) ^ s.v[0];
    s.v[3] = kvx_rotl64(s.v[3], 16) ^ s.v[2];
    s.v[0] = kvx_rotl64(s.v[0], 32);
    s.v[2] += s.v[1];
    s.v[0] += s.v[3];
    s.v[1] = kvx_rotl64(s.v[1], 17) ^ s.v[2];
    s.v[3] = kvx_rotl64(s.v[3], 21) ^ s.v[0];
    s.v[2] = kvx_rotl64(s.v[2], 32);
    return s;
}

KVX_HD kvx_sip kvx_sip_word(kvx_sip s, uint64_t word)
{
    s.v[3] ^= word;
    s = kvx_sip_round(kvx_sip_round(s));
    s.v[0] ^= word;
    return s;
}

KVX_HD uint64_t kvx_sip_end(kvx_sip s)
{
    s.v[2] ^= 0xffu;
    for (unsigned i = 0; i < 4; i++)
        s = kvx_sip_round(s);
    return s.v[0] ^ s.v[1] ^ s.v[2] ^ s.v[3];
}

/* SipHash-2-4 of the sixteen bytes of a then b, each little-endian. */
KVX_HD uint64_t kvx_prf(const uint64_t key[2], uint64_t a, uint64_t b)
{
    kvx_sip s = kvx_sip_start(key);
    s = kvx_sip_word(s, a);
    s = kvx_sip_word(s, b);
    s = kvx_sip_word(s, (uint64_t)16 << 56);
    return kvx_sip_end(s);
}

/* SipHash-2-4 of a string. */
KVX_HD uint64_t kvx_prf_bytes(const uint64_t key[2], const uint8_t *message, size_t message_bytes)
{
    kvx_sip s = kvx_sip_start(key);
    uint64_t last = (uint64_t)(message_bytes & 0xffu) << 56;
    size_t done = 0;
    for (; done + 8 <= message_bytes; done += 8)
        s = kvx_sip_word(s, kvx_load_le64(message + done));
    for (unsigned i = 0; done + i < message_bytes; i++)
        last |= (uint64_t)message[done + i] << (8 * i);
    return kvx_sip_end(kvx_sip_word(s, last));
}

#endif
