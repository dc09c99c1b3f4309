/* SPDX-License-Identifier: Apache-2.0 */
/* AES-256-GCM for 12-byte IVs and 16-byte tags, any length and any AAD, one block after the other: the reference that
 * every faster path must equal bit for bit, on the host and on the device. Opening checks the tag before it decrypts.
 * Also here, because both engines use it: how a unit's IV is made. */
#ifndef KVX_KERNELS_GCM_H
#define KVX_KERNELS_GCM_H

#include "aes.h"
#include "ghash.h"

#define KVX_GCM_IV_BYTES 12
#define KVX_GCM_TAG_BYTES 16
/* SP 800-38D: 2^39 - 256 bits. */
#define KVX_GCM_MAX_BYTES ((((uint64_t)1 << 32) - 2) * 16)

/* A key made ready. Secret: kvx_gcm_key_wipe it after use. */
typedef struct kvx_gcm_key {
    uint32_t round_keys[KVX_AES256_ROUND_KEY_WORDS];
    kvx_gf h;
} kvx_gcm_key;

/* One message. `in` and `out` hold `bytes` bytes each and may be the same memory, but may not overlap otherwise.
 * Pointers to nothing (length 0) may be NULL. */
typedef struct kvx_gcm_message {
    const uint8_t *iv;
    const uint8_t *aad;
    size_t aad_bytes;
    const uint8_t *in;
    uint8_t *out;
    size_t bytes;
} kvx_gcm_message;

/* The IV of a unit: 32-bit fixed field, then 64-bit sequence, both big-endian. A (key, IV) pair seals once, ever. */
KVX_HD void kvx_unit_iv(uint32_t fixed_field, uint64_t sequence, uint8_t iv[KVX_GCM_IV_BYTES])
{
    kvx_store_be32(iv, fixed_field);
    kvx_store_be64(iv + 4, sequence);
}

/* 1 if the tags are equal, else 0; the time does not depend on where they differ. */
KVX_HD int kvx_tag_equal(const uint8_t a[KVX_GCM_TAG_BYTES], const uint8_t b[KVX_GCM_TAG_BYTES])
{
    uint32_t difference = 0;
    for (unsigned i = 0; i < KVX_GCM_TAG_BYTES; i += 4)
        difference |= kvx_load_le32(a + i) ^ kvx_load_le32(b + i);
    return (int)(1u ^ ((difference | (0u - difference)) >> 31));
}

KVX_HD void kvx_gcm_key_init(kvx_gcm_key *gcm, const uint8_t key[32])
{
    uint32_t block[4];
    kvx_aes256_expand(key, gcm->round_keys);
    block[0] = block[1] = block[2] = block[3] = 0;
    kvx_aes256_encrypt(gcm->round_keys, block, block);
    for (unsigned i = 0; i < 4; i++)
        gcm->h.w[i] = kvx_bswap32(block[i]);
}

KVX_HD void kvx_gcm_key_wipe(kvx_gcm_key *gcm)
{
    kvx_wipe(gcm, sizeof *gcm);
}

/* Hashes a string as if zeroes filled its last block. */
KVX_HD kvx_gf kvx_gcm_hash_padded(kvx_gf y, kvx_gf h, const uint8_t *data, size_t data_bytes)
{
    const size_t n_blocks = data_bytes / 16, rest = data_bytes % 16;
    uint8_t last[16];
    y = kvx_ghash_update(y, h, data, n_blocks);
    if (rest == 0)
        return y;
    for (size_t i = 0; i < 16; i++)
        last[i] = (uint8_t)0;
    for (size_t i = 0; i < rest; i++)
        last[i] = data[16 * n_blocks + i];
    return kvx_ghash_update(y, h, last, 1);
}

/* The cipher's output for one 32-bit counter under an IV. Counter 1 masks the tag, data starts at 2. */
KVX_HD void kvx_gcm_key_stream(const kvx_gcm_key *gcm, const uint8_t *iv, uint32_t counter, uint8_t stream[16])
{
    uint32_t block[4];
    for (unsigned i = 0; i < 3; i++)
        block[i] = kvx_load_le32(iv + 4 * i);
    block[3] = kvx_bswap32(counter);
    kvx_aes256_encrypt(gcm->round_keys, block, block);
    for (unsigned i = 0; i < 4; i++)
        kvx_store_le32(stream + 4 * i, block[i]);
}

/* Counter mode over the message: encrypts or decrypts. */
KVX_HD void kvx_gcm_apply_stream(const kvx_gcm_key *gcm, const kvx_gcm_message *message)
{
    uint8_t stream[16];
    uint32_t counter = 2;
    for (size_t at = 0; at < message->bytes; at += 16, counter++) {
        const size_t left = message->bytes - at;
        const size_t n = left < 16 ? left : 16;
        kvx_gcm_key_stream(gcm, message->iv, counter, stream);
        for (size_t i = 0; i < n; i++)
            message->out[at + i] = (uint8_t)(message->in[at + i] ^ stream[i]);
    }
}

/* The tag of a message whose sealed bytes are at `sealed`. */
KVX_HD void kvx_gcm_tag(const kvx_gcm_key *gcm, const kvx_gcm_message *message, const uint8_t *sealed,
                        uint8_t tag[KVX_GCM_TAG_BYTES])
{
    uint8_t lengths[16], mask[16];
    kvx_gf y = kvx_gcm_hash_padded(kvx_gf_zero(), gcm->h, message->aad, message->aad_bytes);
    y = kvx_gcm_hash_padded(y, gcm->h, sealed, message->bytes);
    kvx_store_be64(lengths, (uint64_t)message->aad_bytes * 8);
    kvx_store_be64(lengths + 8, (uint64_t)message->bytes * 8);
    y = kvx_ghash_update(y, gcm->h, lengths, 1);
    kvx_gcm_key_stream(gcm, message->iv, 1, mask);
    kvx_gf_store(tag, kvx_gf_xor(y, kvx_gf_load(mask)));
}

/* Seals `in` to `out` and sets the tag. Returns 1, or 0 with nothing written if the message is too long. */
KVX_HD int kvx_gcm_seal(const kvx_gcm_key *gcm, const kvx_gcm_message *message, uint8_t tag[KVX_GCM_TAG_BYTES])
{
    if (message->bytes > KVX_GCM_MAX_BYTES)
        return 0;
    kvx_gcm_apply_stream(gcm, message);
    kvx_gcm_tag(gcm, message, message->out, tag);
    return 1;
}

/* Opens `in` to `out`. Returns 1, or 0 with `out` zeroed if the tag is wrong or the message is too long. */
KVX_HD int kvx_gcm_open(const kvx_gcm_key *gcm, const kvx_gcm_message *message, const uint8_t tag[KVX_GCM_TAG_BYTES])
{
    uint8_t expected[KVX_GCM_TAG_BYTES];
    int good = message->bytes <= KVX_GCM_MAX_BYTES;
    if (good) {
        kvx_gcm_tag(gcm, message, message->in, expected);
        good = kvx_tag_equal(expected, tag);
    }
    if (good)
        kvx_gcm_apply_stream(gcm, message);
    else
        for (size_t i = 0; i < message->bytes; i++)
            message->out[i] = 0;
    kvx_wipe(expected, sizeof expected); /* the right tag of a wrong message is a forgery */
    return good;
}

#endif
