/* SPDX-License-Identifier: Apache-2.0 */
/* OpenSSL's EVP contexts, keyed once and given a new iv for each message. */
#include "bench_gcm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/err.h>
#include <openssl/evp.h>

struct bench_gcm {
    EVP_CIPHER_CTX *seal, *open, *ctr, *block;
};

static EVP_CIPHER_CTX *keyed(const EVP_CIPHER *cipher, const uint8_t *key, int encrypt)
{
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    if (context && EVP_CipherInit_ex(context, cipher, NULL, key, NULL, encrypt) == 1)
        return context;
    EVP_CIPHER_CTX_free(context);
    return NULL;
}

bench_gcm *bench_gcm_create(const uint8_t key[BENCH_KEY_BYTES])
{
    bench_gcm *g = calloc(1, sizeof(*g));
    if (g) {
        g->seal = keyed(EVP_aes_256_gcm(), key, 1);
        g->open = keyed(EVP_aes_256_gcm(), key, 0);
        g->ctr = keyed(EVP_aes_256_ctr(), key, 1);
        g->block = keyed(EVP_aes_256_ecb(), key, 1);
        if (g->seal && g->open && g->ctr && g->block)
            return g;
    }
    fprintf(stderr, "OpenSSL's AES-256 cannot be had: %s\n", ERR_error_string(ERR_peek_last_error(), NULL));
    bench_gcm_destroy(g);
    return NULL;
}

void bench_gcm_destroy(bench_gcm *g)
{
    if (!g)
        return;
    EVP_CIPHER_CTX_free(g->seal);
    EVP_CIPHER_CTX_free(g->open);
    EVP_CIPHER_CTX_free(g->ctr);
    EVP_CIPHER_CTX_free(g->block);
    free(g);
}

/* All pieces through a context that has its iv. `to` NULL: they are AAD; else what comes out is contiguous there. */
static bool update(EVP_CIPHER_CTX *context, const bench_message *m, uint8_t *to)
{
    uint32_t i;
    int n;
    for (i = 0; i < m->n_pieces; i++)
        if (EVP_CipherUpdate(context, to ? to + i * m->piece_bytes : NULL, &n, m->pieces[i], (int)m->piece_bytes) != 1)
            return false;
    return true;
}

static bool final_tag(EVP_CIPHER_CTX *context, const bench_message *m)
{
    uint8_t none[BENCH_TAG_BYTES];
    int n;
    return EVP_CipherFinal_ex(context, none, &n) == 1 &&
           EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, BENCH_TAG_BYTES, m->tag) == 1;
}

bool bench_gcm_seal(bench_gcm *g, const bench_message *m)
{
    return EVP_CipherInit_ex(g->seal, NULL, NULL, NULL, m->iv, 1) == 1 && update(g->seal, m, m->sealed) &&
           final_tag(g->seal, m);
}

bool bench_gcm_open(bench_gcm *g, const bench_message *m)
{
    uint8_t none[BENCH_TAG_BYTES];
    uint32_t i;
    int n;
    if (EVP_CipherInit_ex(g->open, NULL, NULL, NULL, m->iv, 0) != 1)
        return false;
    for (i = 0; i < m->n_pieces; i++)
        if (EVP_CipherUpdate(g->open, m->pieces[i], &n, m->sealed + i * m->piece_bytes, (int)m->piece_bytes) != 1)
            return false;
    return EVP_CIPHER_CTX_ctrl(g->open, EVP_CTRL_AEAD_SET_TAG, BENCH_TAG_BYTES, m->tag) == 1 &&
           EVP_CipherFinal_ex(g->open, none, &n) == 1;
}

static void counter_block(const uint8_t iv[BENCH_IV_BYTES], uint8_t counter, uint8_t block[16])
{
    memset(block, 0, 16);
    memcpy(block, iv, BENCH_IV_BYTES);
    block[15] = counter;
}

bool bench_gcm_ctr(bench_gcm *g, const bench_message *m)
{
    uint8_t block[16];
    counter_block(m->iv, 2, block); /* GCM's first counter for text */
    return EVP_CipherInit_ex(g->ctr, NULL, NULL, NULL, block, 1) == 1 && update(g->ctr, m, m->sealed);
}

bool bench_gcm_mac(bench_gcm *g, const bench_message *m)
{
    return EVP_CipherInit_ex(g->seal, NULL, NULL, NULL, m->iv, 1) == 1 && update(g->seal, m, NULL) &&
           final_tag(g->seal, m);
}

/* Decrypting the bytes gives the plaintext whose ciphertext they are; its tag is their hash behind a mask. */
bool bench_gcm_ghash(bench_gcm *g, const bench_message *m)
{
    const uint64_t n_bytes = m->n_pieces * m->piece_bytes;
    uint8_t *text = malloc(2 * n_bytes), block[16], mask[16];
    bench_message whole = {&text, 1, n_bytes, text ? text + n_bytes : NULL, m->iv, m->tag};
    bench_message decrypted = *m;
    bool good;
    int n, i;
    counter_block(m->iv, 1, block);
    decrypted.sealed = text;
    good = text && bench_gcm_ctr(g, &decrypted) && bench_gcm_seal(g, &whole) &&
           EVP_CipherUpdate(g->block, mask, &n, block, sizeof(block)) == 1;
    for (i = 0; good && i < 16; i++)
        m->tag[i] ^= mask[i];
    free(text);
    return good;
}
