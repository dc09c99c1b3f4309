/* SPDX-License-Identifier: Apache-2.0 */
/* AES-256-GCM, the portable one of kernels/gcm.h and the CPU engine's, against fresh OpenSSL contexts: lengths, counter
 * carries, refused messages, and that the CPU engine allocates nothing per message. */
#include "cmocka_door.h"

#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "arith_help.h"
#include "kernels/gcm.h"
#include "src/engine_cpu_gcm.h"

#define MIB ((size_t)1 << 20)

static uint8_t *allocate(size_t bytes)
{
    uint8_t *p = (uint8_t *)malloc(bytes + 1); /* never malloc(0) */
    assert_non_null(p);
    return p;
}

static void assert_all_zero(const uint8_t *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(p[i], 0);
}

struct sealed {
    uint8_t key[32], iv[12], aad[64], tag[16];
    size_t aad_bytes, bytes;
    uint8_t *plain, *cipher, *work;
};

/* A random message, sealed by a fresh OpenSSL context. */
static void sealed_open(struct sealed *s, size_t bytes, size_t aad_bytes)
{
    int n = 0;
    s->bytes = bytes;
    s->aad_bytes = aad_bytes;
    s->plain = allocate(bytes);
    s->cipher = allocate(bytes);
    s->work = allocate(bytes);
    fill_random(s->key, sizeof s->key);
    fill_random(s->iv, sizeof s->iv);
    fill_random(s->aad, sizeof s->aad);
    fill_random(s->plain, bytes);
    memset(s->work, 0xaa, bytes);
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    assert_int_equal(EVP_EncryptInit_ex(context, EVP_aes_256_gcm(), NULL, s->key, s->iv), 1);
    if (aad_bytes > 0)
        assert_int_equal(EVP_EncryptUpdate(context, NULL, &n, s->aad, (int)aad_bytes), 1);
    if (bytes > 0)
        assert_int_equal(EVP_EncryptUpdate(context, s->cipher, &n, s->plain, (int)bytes), 1);
    assert_int_equal(EVP_EncryptFinal_ex(context, s->work, &n), 1);
    assert_int_equal(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, 16, s->tag), 1);
    EVP_CIPHER_CTX_free(context);
}

static void sealed_close(struct sealed *s)
{
    free(s->plain);
    free(s->cipher);
    free(s->work);
}

static kvx_gcm_message message_of(const struct sealed *s, const uint8_t *in)
{
    const kvx_gcm_message message = {s->iv, s->aad, s->aad_bytes, in, s->work, s->bytes};
    return message;
}

static void check_portable(struct sealed *s)
{
    kvx_gcm_key gcm;
    uint8_t tag[16];
    kvx_gcm_key_init(&gcm, s->key);
    const kvx_gcm_message seal = message_of(s, s->plain);
    assert_int_equal(kvx_gcm_seal(&gcm, &seal, tag), 1);
    assert_memory_equal(s->work, s->cipher, s->bytes);
    assert_memory_equal(tag, s->tag, 16);
    const kvx_gcm_message in_place = message_of(s, s->work);
    assert_int_equal(kvx_gcm_open(&gcm, &in_place, s->tag), 1);
    assert_memory_equal(s->work, s->plain, s->bytes);
    kvx_gcm_key_wipe(&gcm);
    assert_all_zero((const uint8_t *)&gcm, sizeof gcm);
}

static void check_engine(struct sealed *s)
{
    struct kvx_cpu_gcm *gcm = kvx_cpu_gcm_create(s->key);
    uint8_t tag[16];
    assert_non_null(gcm);
    memset(s->work, 0xaa, s->bytes);
    for (unsigned i = 0; i < 2; i++) { /* twice: the second finds the contexts used */
        assert_int_equal(kvx_cpu_gcm_seal(gcm, s->iv, s->aad, s->aad_bytes, s->plain, s->work, s->bytes, tag), 1);
        assert_memory_equal(s->work, s->cipher, s->bytes);
        assert_memory_equal(tag, s->tag, 16);
        assert_int_equal(kvx_cpu_gcm_open(gcm, s->iv, s->aad, s->aad_bytes, s->work, s->work, s->bytes, tag), 1);
        assert_memory_equal(s->work, s->plain, s->bytes);
    }
    kvx_cpu_gcm_destroy(gcm);
}

static void check_length(size_t bytes, size_t aad_bytes)
{
    struct sealed s;
    sealed_open(&s, bytes, aad_bytes);
    check_portable(&s);
    check_engine(&s);
    sealed_close(&s);
}

static void gcm_equals_openssl_short(void **state)
{
    (void)state;
    for (size_t bytes = 0; bytes <= 200; bytes++)
        check_length(bytes, bytes % 41);
}

static void gcm_equals_openssl_around_256_blocks(void **state)
{
    (void)state;
    for (size_t bytes = 4096 - 80; bytes < 4096 + 32; bytes++) /* the data counter starts at 2 */
        check_length(bytes, 0);
    for (size_t bytes = 16384; bytes < 16384 + 32; bytes++)
        check_length(bytes, 3);
}

static void gcm_equals_openssl_long(void **state)
{
    (void)state;
    const size_t lengths[] = {MIB - 32, MIB - 16, MIB, MIB + 16, MIB + 33, 2 * MIB - 5, 2 * MIB};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        check_length(lengths[i], i);
}

static void changed_message_is_refused(const struct sealed *s, const uint8_t *cipher, const uint8_t tag[16])
{
    kvx_gcm_key gcm;
    kvx_gcm_key_init(&gcm, s->key);
    memset(s->work, 0xaa, s->bytes);
    const kvx_gcm_message message = message_of(s, cipher);
    assert_int_equal(kvx_gcm_open(&gcm, &message, tag), 0);
    assert_all_zero(s->work, s->bytes);

    struct kvx_cpu_gcm *engine = kvx_cpu_gcm_create(s->key);
    assert_non_null(engine);
    memset(s->work, 0xaa, s->bytes);
    assert_int_equal(kvx_cpu_gcm_open(engine, s->iv, s->aad, s->aad_bytes, cipher, s->work, s->bytes, tag), 0);
    assert_all_zero(s->work, s->bytes);
    assert_int_equal(kvx_cpu_gcm_open(engine, s->iv, s->aad, s->aad_bytes, s->cipher, s->work, s->bytes, s->tag), 1);
    assert_memory_equal(s->work, s->plain, s->bytes);
    kvx_cpu_gcm_destroy(engine);
}

static void every_changed_tag_bit_is_refused(void **state)
{
    (void)state;
    struct sealed s;
    sealed_open(&s, 96, 8);
    for (unsigned bit = 0; bit < 128; bit++) {
        uint8_t tag[16];
        memcpy(tag, s.tag, 16);
        tag[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        assert_int_equal(kvx_tag_equal(tag, s.tag), 0);
        changed_message_is_refused(&s, s.cipher, tag);
    }
    assert_int_equal(kvx_tag_equal(s.tag, s.tag), 1);
    sealed_close(&s);
}

static void every_changed_data_byte_is_refused(void **state)
{
    (void)state;
    struct sealed s;
    sealed_open(&s, 77, 0);
    uint8_t *cipher = allocate(s.bytes);
    memcpy(cipher, s.cipher, s.bytes);
    for (size_t i = 0; i < s.bytes; i++) {
        cipher[i] ^= 0x40u;
        changed_message_is_refused(&s, cipher, s.tag);
        cipher[i] ^= 0x40u;
    }
    free(cipher);
    sealed_close(&s);
}

static void too_long_a_message_is_refused(void **state)
{
    (void)state;
    kvx_gcm_key gcm;
    uint8_t key[32] = {0}, iv[12] = {0}, tag[16] = {0};
    kvx_gcm_key_init(&gcm, key);
    const kvx_gcm_message message = {iv, NULL, 0, NULL, NULL, (size_t)(KVX_GCM_MAX_BYTES + 1)};
    assert_int_equal(kvx_gcm_seal(&gcm, &message, tag), 0);
    assert_all_zero(tag, sizeof tag);
}

static void unit_iv_is_big_endian(void **state)
{
    (void)state;
    const uint8_t want[12] = {0x01, 0x02, 0x03, 0x04, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18};
    uint8_t iv[12];
    kvx_unit_iv(0x01020304u, 0x1112131415161718u, iv);
    assert_memory_equal(iv, want, 12);
}

/* ---- the CPU engine allocates nothing per message ---- */

static unsigned long n_openssl_allocations;

static void *counting_malloc(size_t bytes, const char *file, int line)
{
    (void)file;
    (void)line;
    n_openssl_allocations++;
    return malloc(bytes);
}

static void *counting_realloc(void *p, size_t bytes, const char *file, int line)
{
    (void)file;
    (void)line;
    n_openssl_allocations++;
    return realloc(p, bytes);
}

static void plain_free(void *p, const char *file, int line)
{
    (void)file;
    (void)line;
    free(p);
}

static void engine_allocates_nothing_per_message(void **state)
{
    (void)state;
    struct sealed s;
    uint8_t tag[16];
    sealed_open(&s, 4096, 0);
    struct kvx_cpu_gcm *gcm = kvx_cpu_gcm_create(s.key);
    assert_non_null(gcm);
    const unsigned long before = n_openssl_allocations;
    assert_true(before > 0); /* the counter is in place */
    for (unsigned i = 0; i < 100; i++) {
        assert_int_equal(kvx_cpu_gcm_seal(gcm, s.iv, NULL, 0, s.plain, s.work, s.bytes, tag), 1);
        assert_int_equal(kvx_cpu_gcm_open(gcm, s.iv, NULL, 0, s.work, s.work, s.bytes, tag), 1);
        tag[i % 16] ^= 1;
        assert_int_equal(kvx_cpu_gcm_open(gcm, s.iv, NULL, 0, s.cipher, s.work, s.bytes, tag), 0);
    }
    assert_int_equal(n_openssl_allocations, before);
    kvx_cpu_gcm_destroy(gcm);
    kvx_cpu_gcm_destroy(NULL);
    sealed_close(&s);
}

int main(void)
{
    if (CRYPTO_set_mem_functions(counting_malloc, counting_realloc, plain_free) != 1)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gcm_equals_openssl_short),
        cmocka_unit_test(gcm_equals_openssl_around_256_blocks),
        cmocka_unit_test(gcm_equals_openssl_long),
        cmocka_unit_test(every_changed_tag_bit_is_refused),
        cmocka_unit_test(every_changed_data_byte_is_refused),
        cmocka_unit_test(too_long_a_message_is_refused),
        cmocka_unit_test(unit_iv_is_big_endian),
        cmocka_unit_test(engine_allocates_nothing_per_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
