/* SPDX-License-Identifier: Apache-2.0 */
/* AES-256-GCM through OpenSSL's EVP interface. The key schedule is set once per context; a message only sets its IV,
 * which EVP does without allocating. */
#include "engine_cpu_gcm.h"

#include <stdlib.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>

enum {
    TAG_BYTES = 16,
    /* EVP takes lengths as int; a multiple of the block size keeps each piece on OpenSSL's fast path. */
    PIECE_BYTES = 1 << 30
};

struct kvx_cpu_gcm {
    EVP_CIPHER_CTX *sealer;
    EVP_CIPHER_CTX *opener;
};

static EVP_CIPHER_CTX *new_context(const uint8_t key[32], int seals)
{
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    if (context == NULL)
        return NULL;
    if (EVP_CipherInit_ex(context, EVP_aes_256_gcm(), NULL, key, NULL, seals) == 1)
        return context;
    EVP_CIPHER_CTX_free(context);
    return NULL;
}

struct kvx_cpu_gcm *kvx_cpu_gcm_create(const uint8_t key[32])
{
    struct kvx_cpu_gcm *gcm = (struct kvx_cpu_gcm *)calloc(1, sizeof *gcm);
    if (gcm == NULL)
        return NULL;
    gcm->sealer = new_context(key, 1);
    gcm->opener = new_context(key, 0);
    if (gcm->sealer != NULL && gcm->opener != NULL)
        return gcm;
    kvx_cpu_gcm_destroy(gcm);
    return NULL;
}

void kvx_cpu_gcm_destroy(struct kvx_cpu_gcm *gcm)
{
    if (gcm == NULL)
        return;
    EVP_CIPHER_CTX_free(gcm->sealer); /* wipes the key schedule */
    EVP_CIPHER_CTX_free(gcm->opener);
    free(gcm);
}

int kvx_cpu_gcm_rekey(struct kvx_cpu_gcm *gcm, const uint8_t key[32], int seals)
{
    static const uint8_t none[32] = {0};
    EVP_CIPHER_CTX *context = seals ? gcm->sealer : gcm->opener;
    return EVP_CipherInit_ex(context, NULL, NULL, key ? key : none, NULL, -1) == 1 ? 1 : -1;
}

/* Feeds `bytes` bytes to the cipher; `out` NULL means that they are AAD. */
static int feed(EVP_CIPHER_CTX *context, const void *in, void *out, size_t bytes)
{
    const unsigned char *from = (const unsigned char *)in;
    unsigned char *to = (unsigned char *)out;
    while (bytes > 0) {
        const int piece = bytes < (size_t)PIECE_BYTES ? (int)bytes : PIECE_BYTES;
        int written = 0;
        if (EVP_CipherUpdate(context, to, &written, from, piece) != 1 || written != piece)
            return 0;
        from += piece;
        to = to == NULL ? NULL : to + piece;
        bytes -= (size_t)piece;
    }
    return 1;
}

static void zero(void *p, size_t bytes)
{
    if (bytes > 0)
        OPENSSL_cleanse(p, bytes);
}

int kvx_cpu_gcm_seal(struct kvx_cpu_gcm *gcm, const uint8_t iv[12], const void *aad, size_t aad_bytes, const void *in,
                     void *out, size_t bytes, uint8_t tag[16])
{
    EVP_CIPHER_CTX *context = gcm->sealer;
    unsigned char nothing[TAG_BYTES];
    int written = 0;
    if (EVP_CipherInit_ex(context, NULL, NULL, NULL, iv, -1) == 1 && feed(context, aad, NULL, aad_bytes) &&
        feed(context, in, out, bytes) && EVP_CipherFinal_ex(context, nothing, &written) == 1 &&
        EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, TAG_BYTES, tag) == 1)
        return 1;
    zero(out, bytes);
    zero(tag, TAG_BYTES);
    return -1;
}

int kvx_cpu_gcm_open(struct kvx_cpu_gcm *gcm, const uint8_t iv[12], const void *aad, size_t aad_bytes, const void *in,
                     void *out, size_t bytes, const uint8_t tag[16])
{
    EVP_CIPHER_CTX *context = gcm->opener;
    unsigned char expected[TAG_BYTES], nothing[TAG_BYTES];
    int written = 0, result = -1;
    for (int i = 0; i < TAG_BYTES; i++)
        expected[i] = tag[i]; /* the control call takes a pointer to what is not const */
    if (EVP_CipherInit_ex(context, NULL, NULL, NULL, iv, -1) == 1 && feed(context, aad, NULL, aad_bytes) &&
        feed(context, in, out, bytes) && EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, TAG_BYTES, expected) == 1)
        result = EVP_CipherFinal_ex(context, nothing, &written) == 1;
    if (result != 1)
        zero(out, bytes);
    return result;
}
