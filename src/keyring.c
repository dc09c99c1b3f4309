/* SPDX-License-Identifier: Apache-2.0 */
/* Keys from two sources of randomness, each enough alone, and their derivation by SP 800-108. OpenSSL is used in a
 * library context of our own, so that what the application configures or loads does not reach our keys. */
#include "keyring.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/provider.h>
#include <openssl/rand.h>

#include "platform.h"
#include "status.h"

#define CONTEXT_ID_BYTES 16
#define BLOCK_LABEL "kvx/2 block key"
#define COMMITMENT_LABEL "kvx/2 commitment"

/* Of the epoch at a place. */
typedef struct epoch {
    uint8_t secret[KVX_KEY_BYTES];
    uint64_t number;
    uint32_t tenant;
    uint32_t is_open;
} epoch;

typedef struct tenant {
    uint8_t secret[KVX_KEY_BYTES];
    uint32_t is_open;
} tenant;

/* What must stay secret, in one mapping; `tenants` and `epochs` follow it. OpenSSL's own copies are cleansed by
 * OpenSSL. */
typedef struct vault {
    uint8_t root[KVX_ROOT_BYTES];
    uint8_t derived[KVX_KEY_BYTES]; /* the block key made last */
    uint8_t mixed[KVX_KEY_BYTES];   /* an input, while it is being put together */
} vault;

struct kvx_keyring {
    vault *vault;
    tenant *tenants;
    epoch *epochs;
    size_t vault_bytes;
    uint32_t n_tenants, n_epochs;
    enum kvx_secmem_rung rung;
    uint8_t context_id[CONTEXT_ID_BYTES];
    uint8_t binding[KVX_HASH_BYTES];
    OSSL_LIB_CTX *library;
    OSSL_PROVIDER *provider; /* NULL: OpenSSL's default one */
    EVP_KDF *kdf;
};

/* ------------------------------------------------------------------------------------------------------- randomness */

static kvx_status system_random(uint8_t *bytes, size_t n)
{
    while (n > 0) {
        ssize_t got = kvx_platform()->getrandom(bytes, n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return kvx_note(KVX_INTERNAL, "getrandom failed: errno %d", errno);
        bytes += got;
        n -= (size_t)got;
    }
    return KVX_OK;
}

/* bytes = OpenSSL's generator XOR the kernel's, through `mixed`; all n bytes (at most KVX_KEY_BYTES) or an error. */
static kvx_status draw(OSSL_LIB_CTX *library, uint8_t *mixed, uint8_t *bytes, size_t n)
{
    kvx_status status = KVX_OK;
    if (RAND_priv_bytes_ex(library, bytes, n, 0) != 1)
        status = kvx_note(KVX_INTERNAL, "OpenSSL's RAND_priv_bytes_ex failed");
    if (status == KVX_OK)
        status = system_random(mixed, n);
    for (size_t i = 0; status == KVX_OK && i < n; i++)
        bytes[i] ^= mixed[i];
    kvx_secmem_wipe(mixed, n);
    if (status != KVX_OK)
        kvx_secmem_wipe(bytes, n);
    return status;
}

kvx_status kvx_keyring_random(void *bytes, size_t n)
{
    uint8_t mixed[KVX_KEY_BYTES], drawn[KVX_KEY_BYTES];
    kvx_status status = KVX_OK;
    uint8_t *out = bytes;
    for (size_t done = 0; status == KVX_OK && done < n;) {
        size_t part = n - done < sizeof(drawn) ? n - done : sizeof(drawn);
        status = draw(NULL, mixed, drawn, part);
        if (status == KVX_OK)
            memcpy(out + done, drawn, part);
        done += part;
    }
    kvx_secmem_wipe(drawn, sizeof(drawn));
    return status;
}

/* ------------------------------------------------------------------------------------------------------------- life */

static kvx_status open_library(kvx_keyring *keyring, uint32_t fips)
{
    keyring->library = OSSL_LIB_CTX_new();
    if (!keyring->library)
        return kvx_note(KVX_INTERNAL, "OpenSSL's OSSL_LIB_CTX_new failed");
    if (fips) {
        keyring->provider = OSSL_PROVIDER_load(keyring->library, "fips");
        if (!keyring->provider || EVP_set_default_properties(keyring->library, "fips=yes") != 1)
            return kvx_note(KVX_UNSUPPORTED, "OpenSSL's FIPS provider cannot be loaded: install it, or set fips to 0");
    }
    keyring->kdf = EVP_KDF_fetch(keyring->library, "KBKDF", fips ? "fips=yes" : NULL);
    if (!keyring->kdf)
        return kvx_note(KVX_INTERNAL, "OpenSSL has no KBKDF: is its default provider missing?");
    return KVX_OK;
}

static kvx_status map_vault(kvx_keyring *keyring)
{
    void *memory = NULL;
    size_t tenants_at = sizeof(vault), epochs_at = tenants_at + keyring->n_tenants * sizeof(tenant);
    epochs_at = (epochs_at + 7) / 8 * 8;
    keyring->vault_bytes = epochs_at + keyring->n_epochs * sizeof(epoch);
    KVX_TRY(kvx_secmem_map(keyring->vault_bytes, &memory, &keyring->rung));
    keyring->vault = memory;
    keyring->tenants = (tenant *)(void *)((uint8_t *)memory + tenants_at);
    keyring->epochs = (epoch *)(void *)((uint8_t *)memory + epochs_at);
    return KVX_OK;
}

static kvx_status fill(kvx_keyring *made, const kvx_keyring_config *config)
{
    KVX_TRY(map_vault(made));
    KVX_TRY(open_library(made, config->fips));
    KVX_TRY(kvx_keyring_hash(config->binding, config->n_binding, made->binding));
    if (config->root)
        memcpy(made->vault->root, config->root, KVX_ROOT_BYTES);
    else
        KVX_TRY(draw(made->library, made->vault->mixed, made->vault->root, KVX_ROOT_BYTES));
    return draw(made->library, made->vault->mixed, made->context_id, CONTEXT_ID_BYTES);
}

kvx_status kvx_keyring_create(const kvx_keyring_config *config, kvx_keyring **keyring)
{
    kvx_keyring *made = calloc(1, sizeof *made);
    kvx_status status;
    if (!made)
        return kvx_note(KVX_NO_MEMORY, "no memory for a keyring");
    made->n_tenants = config->n_tenants;
    made->n_epochs = config->n_epochs;
    status = fill(made, config);
    if (status != KVX_OK) {
        kvx_keyring_destroy(made);
        return status;
    }
    *keyring = made;
    return KVX_OK;
}

void kvx_keyring_destroy(kvx_keyring *keyring)
{
    if (!keyring)
        return;
    EVP_KDF_free(keyring->kdf);
    if (keyring->provider)
        (void)OSSL_PROVIDER_unload(keyring->provider);
    OSSL_LIB_CTX_free(keyring->library);
    kvx_secmem_unmap(keyring->vault, keyring->vault_bytes);
    kvx_secmem_wipe(keyring, sizeof *keyring);
    free(keyring);
}

enum kvx_secmem_rung kvx_keyring_rung(const kvx_keyring *keyring)
{
    return keyring->rung;
}

/* ----------------------------------------------------------------------------------------------- tenants and epochs */

kvx_status kvx_keyring_tenant_open(kvx_keyring *keyring, uint32_t number)
{
    tenant *t = &keyring->tenants[number];
    KVX_TRY(draw(keyring->library, keyring->vault->mixed, t->secret, sizeof(t->secret)));
    t->is_open = 1;
    return KVX_OK;
}

void kvx_keyring_tenant_close(kvx_keyring *keyring, uint32_t number)
{
    kvx_secmem_wipe(&keyring->tenants[number], sizeof(tenant));
}

kvx_status kvx_keyring_epoch_open(kvx_keyring *keyring, uint32_t place, uint32_t owner, uint64_t number)
{
    epoch *e = &keyring->epochs[place];
    KVX_TRY(draw(keyring->library, keyring->vault->mixed, e->secret, sizeof(e->secret)));
    e->number = number;
    e->tenant = owner;
    e->is_open = 1;
    return KVX_OK;
}

void kvx_keyring_epoch_close(kvx_keyring *keyring, uint32_t place)
{
    kvx_secmem_wipe(&keyring->epochs[place], sizeof(epoch));
}

/* ------------------------------------------------------------------------------------------------------- derivation */

static uint8_t *put_u32(uint8_t *at, uint32_t value)
{
    for (unsigned i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> (24 - 8 * i));
    return at + 4;
}

static uint8_t *put_field(uint8_t *at, const void *bytes, size_t n)
{
    at = put_u32(at, (uint32_t)n);
    memcpy(at, bytes, n);
    return at + n;
}

/* Each field behind its length, so that no two contexts of use read the same. */
#define INFO_BYTES (4 + CONTEXT_ID_BYTES + 4 + KVX_HASH_BYTES + 4 + 4 + 4 + 8)
static void write_info(const kvx_keyring *keyring, uint32_t owner, uint64_t number, uint8_t info[INFO_BYTES])
{
    uint8_t word[8], *at = put_field(info, keyring->context_id, CONTEXT_ID_BYTES);
    at = put_field(at, keyring->binding, KVX_HASH_BYTES);
    (void)put_u32(word, owner);
    at = put_field(at, word, 4);
    (void)put_u32(put_u32(word, (uint32_t)(number >> 32)), (uint32_t)number);
    (void)put_field(at, word, 8);
}

/* SP 800-108: `label` is the Label, `info` the Context. */
static kvx_status derive(const kvx_keyring *keyring, const char *label, const uint8_t info[INFO_BYTES],
                         uint8_t out[KVX_KEY_BYTES])
{
    char mode[] = "counter", mac[] = "HMAC", digest[] = "SHA256";
    const OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_MODE, mode, 0),
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_MAC, mac, 0),
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, keyring->vault->mixed, sizeof(keyring->vault->mixed)),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, (void *)(uintptr_t)label, strlen(label)),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, (void *)(uintptr_t)info, INFO_BYTES),
        OSSL_PARAM_construct_end(),
    };
    EVP_KDF_CTX *derivation = EVP_KDF_CTX_new(keyring->kdf);
    int done = derivation && EVP_KDF_derive(derivation, out, KVX_KEY_BYTES, params) == 1;
    EVP_KDF_CTX_free(derivation);
    if (done)
        return KVX_OK;
    kvx_secmem_wipe(out, KVX_KEY_BYTES);
    return kvx_note(KVX_INTERNAL, "OpenSSL's KBKDF failed");
}

kvx_status kvx_keyring_block_key(kvx_keyring *keyring, uint32_t place, const uint8_t **key)
{
    uint8_t info[INFO_BYTES];
    vault *v = keyring->vault;
    const epoch *e = place < keyring->n_epochs ? &keyring->epochs[place] : NULL;
    kvx_status status;
    kvx_keyring_done(keyring);
    if (!e || !e->is_open || !keyring->tenants[e->tenant].is_open)
        return kvx_note(KVX_INVALID, "there is no epoch at place %u", place);
    for (unsigned i = 0; i < KVX_KEY_BYTES; i++)
        v->mixed[i] = v->root[i] ^ keyring->tenants[e->tenant].secret[i] ^ e->secret[i];
    write_info(keyring, e->tenant, e->number, info);
    status = derive(keyring, BLOCK_LABEL, info, v->derived);
    kvx_secmem_wipe(v->mixed, sizeof(v->mixed));
    if (status == KVX_OK)
        *key = v->derived;
    return status;
}

void kvx_keyring_done(kvx_keyring *keyring)
{
    kvx_secmem_wipe(keyring->vault->derived, sizeof(keyring->vault->derived));
}

kvx_status kvx_keyring_commitment(kvx_keyring *keyring, uint8_t commitment[32])
{
    uint8_t info[INFO_BYTES];
    kvx_status status;
    memcpy(keyring->vault->mixed, keyring->vault->root, KVX_ROOT_BYTES);
    write_info(keyring, UINT32_MAX, 0, info);
    status = derive(keyring, COMMITMENT_LABEL, info, commitment);
    kvx_secmem_wipe(keyring->vault->mixed, sizeof(keyring->vault->mixed));
    return status;
}
