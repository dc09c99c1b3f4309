/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-384 over fields that stand behind their lengths, so that no two lists of fields give the same bytes. */
#include "keyring.h"

#include <openssl/evp.h>

#include "status.h"

static int feed(EVP_MD_CTX *hash, const kvx_field *field)
{
    const uint8_t length[4] = {(uint8_t)(field->n >> 24), (uint8_t)(field->n >> 16), (uint8_t)(field->n >> 8),
                               (uint8_t)field->n};
    return EVP_DigestUpdate(hash, length, sizeof length) == 1 &&
           (field->n == 0 || EVP_DigestUpdate(hash, field->bytes, field->n) == 1);
}

kvx_status kvx_keyring_hash(const kvx_field *fields, uint32_t n, uint8_t hash[KVX_HASH_BYTES])
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    unsigned bytes = 0;
    int good = context && EVP_DigestInit_ex(context, EVP_sha384(), NULL) == 1;
    for (uint32_t i = 0; good && i < n; i++)
        good = fields[i].n <= UINT32_MAX && feed(context, &fields[i]);
    good = good && EVP_DigestFinal_ex(context, hash, &bytes) == 1 && bytes == KVX_HASH_BYTES;
    EVP_MD_CTX_free(context);
    return good ? KVX_OK : kvx_note(KVX_INTERNAL, "OpenSSL's SHA-384 failed");
}
