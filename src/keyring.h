/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_SRC_KEYRING_H
#define KVX_SRC_KEYRING_H
/*
 * The secrets of one context: a root, one secret per tenant, one per epoch, all random and independent. The block key
 * of an epoch is derived from the three together, so without any one of them it is gone: wiping the epoch's secret
 * erases the epoch. They lie in memory for secrets (secmem.h). The keyring knows no engine; an epoch's place here is
 * the number of its key slot there.
 */
#include "kvx.h"
#include "../kernels/format.h"
#include "secmem.h"

typedef struct kvx_keyring kvx_keyring;

#define KVX_ROOT_BYTES 32
#define KVX_HASH_BYTES 48 /* SHA-384 */

/* Bytes that become part of a derivation or a hash, behind their length. */
typedef struct kvx_field {
    const void *bytes;
    size_t n;
} kvx_field;

typedef struct kvx_keyring_config {
    uint32_t n_tenants, n_epochs;
    uint32_t fips;            /* nonzero: nothing but OpenSSL's FIPS provider will do */
    const uint8_t *root;      /* KVX_ROOT_BYTES given by the caller's key broker; NULL: drawn */
    const kvx_field *binding; /* what every block key is bound to: sealing device, model, layout, ... */
    uint32_t n_binding;
} kvx_keyring_config;

/* Draws root (unless given) and context id. KVX_NO_MEMORY if memory cannot be locked, KVX_UNSUPPORTED without FIPS. */
kvx_status kvx_keyring_create(const kvx_keyring_config *config, kvx_keyring **keyring);
void kvx_keyring_destroy(kvx_keyring *keyring);
enum kvx_secmem_rung kvx_keyring_rung(const kvx_keyring *keyring);

/* Draws a tenant's secret; forgets it. */
kvx_status kvx_keyring_tenant_open(kvx_keyring *keyring, uint32_t tenant);
void kvx_keyring_tenant_close(kvx_keyring *keyring, uint32_t tenant);
/* Draws the secret of a tenant's epoch at `place`; forgets it. `number` is the epoch's, counted per tenant. */
kvx_status kvx_keyring_epoch_open(kvx_keyring *keyring, uint32_t place, uint32_t tenant, uint64_t number);
void kvx_keyring_epoch_close(kvx_keyring *keyring, uint32_t place);
/* Derives (SP 800-108 KBKDF, counter mode, HMAC-SHA-256) the block key of the epoch at `place`. The pointer is into
 * memory for secrets and lives until kvx_keyring_done(), the next call or destroy. KVX_INVALID: no epoch there. */
kvx_status kvx_keyring_block_key(kvx_keyring *keyring, uint32_t place, const uint8_t **key);
/* Wipes the key derived last. */
void kvx_keyring_done(kvx_keyring *keyring);
/* A public value that commits to root and context id. */
kvx_status kvx_keyring_commitment(kvx_keyring *keyring, uint8_t commitment[32]);

/* Random bytes that are not keys: prf key, fixed iv field. */
kvx_status kvx_keyring_random(void *bytes, size_t n);
/* SHA-384 over the fields, each behind its length (32 bits, big-endian). keyring_hash.c. */
kvx_status kvx_keyring_hash(const kvx_field *fields, uint32_t n, uint8_t hash[KVX_HASH_BYTES]);

#endif
