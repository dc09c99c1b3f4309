/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_BENCH_GCM_H
#define KVX_BENCH_GCM_H
/* AES-256-GCM by OpenSSL, whole and by halves: what CPU-side sealing can do, and the judge of what GPU kernels wrote.
 */
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BENCH_KEY_BYTES 32
#define BENCH_IV_BYTES 12
#define BENCH_TAG_BYTES 16

typedef struct bench_gcm bench_gcm; /* of one key; for one thread at a time */

/* NULL, with a message, if OpenSSL fails. */
bench_gcm *bench_gcm_create(const uint8_t key[BENCH_KEY_BYTES]);
void bench_gcm_destroy(bench_gcm *g);

/* One message whose plaintext lies in n_pieces equal pieces. The sealed form is contiguous. */
typedef struct bench_message {
    uint8_t *const *pieces;
    uint32_t n_pieces;
    uint64_t piece_bytes;
    uint8_t *sealed;
    const uint8_t *iv;
    uint8_t *tag;
} bench_message;

/* False if OpenSSL fails. Empty AAD. */
bool bench_gcm_seal(bench_gcm *g, const bench_message *m);

/* The same for the way back; also false if the tag is wrong. */
bool bench_gcm_open(bench_gcm *g, const bench_message *m);

/* The cipher half: sealed bytes without a tag. */
bool bench_gcm_ctr(bench_gcm *g, const bench_message *m);

/* The hash half: m->tag = GHASH of the pieces as ciphertext, with the length block. OpenSSL offers the hash alone only
 * as the tag of a message that is nothing but AAD; that is what bench_gcm_mac() computes, at the same cost. */
bool bench_gcm_ghash(bench_gcm *g, const bench_message *m);
bool bench_gcm_mac(bench_gcm *g, const bench_message *m);

#ifdef __cplusplus
}
#endif
#endif
