/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_SRC_KEYRING_H
#define KVX_SRC_KEYRING_H
/*
 * Keys of one context: a random root, a random context id, and one block key per tenant derived from both. They lie in
 * locked memory that is left out of core dumps and forked children, and are wiped when the keyring goes.
 */
#include "kvx.h"
#include "../kernels/format.h"

typedef struct kvx_keyring kvx_keyring;

/* Draws root and context id: RAND_priv_bytes XOR getrandom. KVX_NO_MEMORY if memory cannot be locked. */
kvx_status kvx_keyring_create(kvx_keyring **keyring);
void kvx_keyring_destroy(kvx_keyring *keyring);
/* Derives (SP 800-108 KBKDF, HMAC-SHA-256) the block key of a tenant. The pointer is into locked memory and lives until
 * the next call or destroy; the caller copies it nowhere but to the engine. */
kvx_status kvx_keyring_block_key(kvx_keyring *keyring, uint32_t tenant, const uint8_t **key);
/* Random bytes that are not keys: prf key, fixed iv field. */
kvx_status kvx_keyring_random(void *bytes, size_t n);

#endif
