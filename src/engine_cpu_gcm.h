/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU engine's AES-256-GCM: OpenSSL's EVP interface, with 12-byte IVs and 16-byte tags. A kvx_cpu_gcm is one key
 * with its two cipher contexts, keyed once; sealing and opening then only set the IV and allocate nothing. One thread
 * may seal while another opens. */
#ifndef KVX_ENGINE_CPU_GCM_H
#define KVX_ENGINE_CPU_GCM_H

#include <stddef.h>
#include <stdint.h>

struct kvx_cpu_gcm;

/* Makes a key ready; the 32 bytes may be wiped after the call. NULL if OpenSSL fails or memory is short. */
struct kvx_cpu_gcm *kvx_cpu_gcm_create(const uint8_t key[32]);

/* Replaces the key of the sealing (seals != 0) or the opening side, without allocating; NULL: by zeros, so that nothing
 * of the old key is left in memory. Returns 1, or -1 if OpenSSL fails. */
int kvx_cpu_gcm_rekey(struct kvx_cpu_gcm *gcm, const uint8_t key[32], int seals);

/* Wipes and frees; NULL is allowed. */
void kvx_cpu_gcm_destroy(struct kvx_cpu_gcm *gcm);

/* Seals `bytes` bytes from `in` to `out` (the same memory, or memory that does not overlap) and sets the tag.
 * Pointers to nothing (length 0) may be NULL. Returns 1, or -1 with `out` and the tag zeroed if OpenSSL fails. The
 * caller sees to it that no IV is used twice. */
int kvx_cpu_gcm_seal(struct kvx_cpu_gcm *gcm, const uint8_t iv[12], const void *aad, size_t aad_bytes, const void *in,
                     void *out, size_t bytes, uint8_t tag[16]);

/* Opens `bytes` bytes from `in` to `out`. Returns 1 if the tag is right; 0 if it is wrong, -1 if OpenSSL fails, both
 * with all of `out` zeroed. OpenSSL decrypts before it knows the tag: while the call runs, `out` holds unverified
 * plaintext. Where another thread or device could read it meanwhile, pass private scratch memory and copy on 1. */
int kvx_cpu_gcm_open(struct kvx_cpu_gcm *gcm, const uint8_t iv[12], const void *aad, size_t aad_bytes, const void *in,
                     void *out, size_t bytes, const uint8_t tag[16]);

#endif
