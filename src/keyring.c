/* SPDX-License-Identifier: Apache-2.0 */
/* Keys from two sources of randomness, each enough alone, and their derivation by SP 800-108. OpenSSL is used in a
 * library context of our own, so that what the application configures or loads does not reach our keys. */
#include "keyring.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/random.h>

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include "secmem.h"
#include "status.h"

#define CONTEXT_ID_BYTES 16
#define LABEL "kvx block key v1"

/* The whole keyring lies in locked memory; OpenSSL's own copies are cleansed by OpenSSL. */
struct kvx_keyring {
    uint8_t root[KVX_KEY_BYTES];
    uint8_t block_key[KVX_KEY_BYTES]; /* the one derived last */
    uint8_t mixed[KVX_KEY_BYTES];     /* the second source, while it is mixed in */
    uint8_t context_id[CONTEXT_ID_BYTES];
    OSSL_LIB_CTX *library;
    EVP_KDF *kdf;
};

static kvx_status system_random(uint8_t *bytes, size_t n)
{
    while (n > 0) {
        ssize_t got = getrandom(bytes, n, 0);
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

static kvx_status open_library(kvx_keyring *keyring)
{
    keyring->library = OSSL_LIB_CTX_new();
    if (!keyring->library)
        return kvx_note(KVX_INTERNAL, "OpenSSL's OSSL_LIB_CTX_new failed");
    keyring->kdf = EVP_KDF_fetch(keyring->library, "KBKDF", NULL);
    if (!keyring->kdf)
        return kvx_note(KVX_INTERNAL, "OpenSSL has no KBKDF: is its default provider missing?");
    return KVX_OK;
}

kvx_status kvx_keyring_create(kvx_keyring **keyring)
{
    void *memory;
    KVX_TRY(kvx_secmem_map(sizeof(kvx_keyring), &memory));
    kvx_keyring *made = memory;
    kvx_status status = open_library(made);
    if (status == KVX_OK)
        status = draw(made->library, made->mixed, made->root, sizeof(made->root));
    if (status == KVX_OK)
        status = draw(made->library, made->mixed, made->context_id, sizeof(made->context_id));
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
    OSSL_LIB_CTX_free(keyring->library);
    kvx_secmem_unmap(keyring, sizeof(*keyring));
}

static void put_u32(uint8_t *bytes, uint32_t value)
{
    for (unsigned i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(value >> (24 - 8 * i));
}

/* Each field behind its length, so that no two contexts of use read the same. */
#define INFO_BYTES (4 + CONTEXT_ID_BYTES + 4 + 4)
static void write_info(const kvx_keyring *keyring, uint32_t tenant, uint8_t info[INFO_BYTES])
{
    put_u32(info, CONTEXT_ID_BYTES);
    memcpy(info + 4, keyring->context_id, CONTEXT_ID_BYTES);
    put_u32(info + 4 + CONTEXT_ID_BYTES, 4);
    put_u32(info + 8 + CONTEXT_ID_BYTES, tenant);
}

kvx_status kvx_keyring_block_key(kvx_keyring *keyring, uint32_t tenant, const uint8_t **key)
{
    uint8_t info[INFO_BYTES];
    char mode[] = "counter", mac[] = "HMAC", digest[] = "SHA256", label[] = LABEL;
    write_info(keyring, tenant, info);
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_MODE, mode, 0),
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_MAC, mac, 0),
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, keyring->root, sizeof(keyring->root)),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, label, sizeof(label) - 1), /* SP 800-108: Label */
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info, sizeof(info)),       /* Context */
        OSSL_PARAM_construct_end(),
    };
    kvx_secmem_wipe(keyring->block_key, sizeof(keyring->block_key));
    EVP_KDF_CTX *derivation = EVP_KDF_CTX_new(keyring->kdf);
    int done = derivation && EVP_KDF_derive(derivation, keyring->block_key, sizeof(keyring->block_key), params) == 1;
    EVP_KDF_CTX_free(derivation);
    if (!done) {
        kvx_secmem_wipe(keyring->block_key, sizeof(keyring->block_key));
        return kvx_note(KVX_INTERNAL, "OpenSSL's KBKDF failed");
    }
    *key = keyring->block_key;
    return KVX_OK;
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
