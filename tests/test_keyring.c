/* SPDX-License-Identifier: Apache-2.0 */
/* The keyring. RAND_priv_bytes_ex, OSSL_LIB_CTX_new, EVP_KDF_fetch, EVP_KDF_CTX_new, EVP_KDF_derive and getrandom are
 * wrapped, beside the calls of fake_memory.h: fake.fail names the one that fails. The key derivation is recomputed with
 * HMAC alone from what the draws returned. */
#include "cmocka_door.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/types.h>

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include "fake_memory.h"
#include "keyring.h"
#include "platform.h"
#include "secmem.h"

static int short_draws, interrupted; /* getrandom: at most 5 bytes a call; EINTR once */

/* What the first draws of each source returned: root, context id, then secrets of tenants and epochs. */
enum { ROOT, CONTEXT_ID, TENANT, EPOCH, N_DRAWS };
static uint8_t openssl_drawn[N_DRAWS][32], system_drawn[N_DRAWS][32];
static size_t system_bytes[N_DRAWS];
static unsigned n_drawn;

int __real_RAND_priv_bytes_ex(OSSL_LIB_CTX *library, unsigned char *bytes, size_t n, unsigned strength);
int __wrap_RAND_priv_bytes_ex(OSSL_LIB_CTX *library, unsigned char *bytes, size_t n, unsigned strength);
int __wrap_RAND_priv_bytes_ex(OSSL_LIB_CTX *library, unsigned char *bytes, size_t n, unsigned strength)
{
    if (fake_fails("RAND_priv_bytes_ex"))
        return 0;
    int result = __real_RAND_priv_bytes_ex(library, bytes, n, strength);
    if (n_drawn < N_DRAWS && n <= 32)
        memcpy(openssl_drawn[n_drawn], bytes, n);
    n_drawn++;
    return result;
}

ssize_t __real_getrandom(void *bytes, size_t n, unsigned flags);
ssize_t __wrap_getrandom(void *bytes, size_t n, unsigned flags);
ssize_t __wrap_getrandom(void *bytes, size_t n, unsigned flags)
{
    if (interrupted) {
        interrupted = 0;
        errno = EINTR;
        return -1;
    }
    if (fake_fails("getrandom")) {
        errno = ENOSYS;
        return -1;
    }
    ssize_t got = __real_getrandom(bytes, short_draws && n > 5 ? 5 : n, flags);
    if (got > 0 && n_drawn > 0 && n_drawn <= N_DRAWS && system_bytes[n_drawn - 1] + (size_t)got <= 32) {
        memcpy(system_drawn[n_drawn - 1] + system_bytes[n_drawn - 1], bytes, (size_t)got);
        system_bytes[n_drawn - 1] += (size_t)got;
    }
    return got;
}

OSSL_LIB_CTX *__real_OSSL_LIB_CTX_new(void);
OSSL_LIB_CTX *__wrap_OSSL_LIB_CTX_new(void);
OSSL_LIB_CTX *__wrap_OSSL_LIB_CTX_new(void)
{
    return fake_fails("OSSL_LIB_CTX_new") ? NULL : __real_OSSL_LIB_CTX_new();
}

EVP_KDF *__real_EVP_KDF_fetch(OSSL_LIB_CTX *library, const char *name, const char *properties);
EVP_KDF *__wrap_EVP_KDF_fetch(OSSL_LIB_CTX *library, const char *name, const char *properties);
EVP_KDF *__wrap_EVP_KDF_fetch(OSSL_LIB_CTX *library, const char *name, const char *properties)
{
    return fake_fails("EVP_KDF_fetch") ? NULL : __real_EVP_KDF_fetch(library, name, properties);
}

EVP_KDF_CTX *__real_EVP_KDF_CTX_new(EVP_KDF *kdf);
EVP_KDF_CTX *__wrap_EVP_KDF_CTX_new(EVP_KDF *kdf);
EVP_KDF_CTX *__wrap_EVP_KDF_CTX_new(EVP_KDF *kdf)
{
    return fake_fails("EVP_KDF_CTX_new") ? NULL : __real_EVP_KDF_CTX_new(kdf);
}

int __real_EVP_KDF_derive(EVP_KDF_CTX *ctx, unsigned char *key, size_t n, const OSSL_PARAM params[]);
int __wrap_EVP_KDF_derive(EVP_KDF_CTX *ctx, unsigned char *key, size_t n, const OSSL_PARAM params[]);
int __wrap_EVP_KDF_derive(EVP_KDF_CTX *ctx, unsigned char *key, size_t n, const OSSL_PARAM params[])
{
    return fake_fails("EVP_KDF_derive") ? 0 : __real_EVP_KDF_derive(ctx, key, n, params);
}

static int reset(void **state)
{
    (void)state;
    short_draws = interrupted = 0;
    n_drawn = 0;
    memset(system_bytes, 0, sizeof system_bytes);
    fake_memory_reset();
    return 0;
}

static const kvx_field parts[2] = {{"model", 5}, {"", 0}};
static kvx_keyring_config config = {.n_tenants = 3, .n_epochs = 4, .binding = parts, .n_binding = 2};

/* With tenants open: all. */
static kvx_keyring *make(void)
{
    kvx_keyring *keyring = NULL;
    assert_int_equal(kvx_keyring_create(&config, &keyring), KVX_OK);
    for (uint32_t t = 0; t < config.n_tenants; t++)
        assert_int_equal(kvx_keyring_tenant_open(keyring, t), KVX_OK);
    return keyring;
}

static void key_of(kvx_keyring *keyring, uint32_t place, uint8_t key[32])
{
    const uint8_t *derived = NULL;
    assert_int_equal(kvx_keyring_block_key(keyring, place, &derived), KVX_OK);
    memcpy(key, derived, 32);
}

static void keys_differ_and_repeat(void **state)
{
    uint8_t keys[8][32], again[32];
    kvx_keyring *rings[2] = {make(), make()};
    (void)state;
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(kvx_keyring_epoch_open(rings[i / 4], i % 4, i % 2, 1 + i % 4), KVX_OK);
        key_of(rings[i / 4], i % 4, keys[i]);
        key_of(rings[i / 4], i % 4, again);
        assert_memory_equal(keys[i], again, 32);
        for (uint32_t k = 0; k < i; k++)
            assert_memory_not_equal(keys[i], keys[k], 32);
    }
    kvx_keyring_epoch_close(rings[0], 1); /* the same epoch once more has another secret */
    assert_int_equal(kvx_keyring_epoch_open(rings[0], 1, 1, 2), KVX_OK);
    key_of(rings[0], 1, again);
    assert_memory_not_equal(keys[1], again, 32);
    kvx_keyring_destroy(rings[0]);
    kvx_keyring_destroy(rings[1]);
    kvx_keyring_destroy(NULL);
    assert_int_equal(fake.n_maps, 0);
}

static uint8_t *put(uint8_t *at, const void *bytes, size_t n)
{
    return (uint8_t *)memcpy(at, bytes, n) + n;
}

static void hmac(const uint8_t key[32], const uint8_t *message, size_t n, uint8_t out[32])
{
    char digest[] = "SHA256";
    OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                           OSSL_PARAM_construct_end()};
    EVP_MAC *mac = EVP_MAC_fetch(NULL, "HMAC", NULL);
    EVP_MAC_CTX *ctx = EVP_MAC_CTX_new(mac);
    assert_int_equal(EVP_MAC_init(ctx, key, 32, params), 1);
    assert_int_equal(EVP_MAC_update(ctx, message, n), 1);
    assert_int_equal(EVP_MAC_final(ctx, out, &n, 32), 1);
    EVP_MAC_CTX_free(ctx);
    EVP_MAC_free(mac);
}

/* SP 800-108 counter mode, one block: HMAC(inputs XORed, [1]32 | label | 00 | context | [256]32). The commitment,
 * of tenant 2^32 - 1, has the root alone as its input. */
static void expected_key(const uint8_t root[32], const uint8_t number[4], const uint8_t epoch[8], uint8_t key[32])
{
    static const char label[] = "kvx/2 block key", other[] = "kvx/2 commitment";
    uint8_t input[32], id[16], binding[48], message[256], *m = message;
    const int block = memcmp(number, "\377\377\377\377", 4) != 0;
    unsigned n = 0;
    memcpy(input, root, 32);
    for (size_t i = 0; block && i < 32; i++)
        input[i] ^= (uint8_t)(openssl_drawn[TENANT][i] ^ system_drawn[TENANT][i] ^ openssl_drawn[EPOCH][i] ^
                              system_drawn[EPOCH][i]);
    for (size_t i = 0; i < 16; i++)
        id[i] = openssl_drawn[CONTEXT_ID][i] ^ system_drawn[CONTEXT_ID][i];
    assert_int_equal(EVP_Digest("\0\0\0\5model\0\0\0\0", 13, binding, &n, EVP_sha384(), NULL), 1);
    m = put(m, "\0\0\0\1", 4);
    m = block ? put(m, label, sizeof label) : put(m, other, sizeof other);
    m = put(put(m, "\0\0\0\20", 4), id, 16);
    m = put(put(m, "\0\0\0\60", 4), binding, 48);
    m = put(put(m, "\0\0\0\4", 4), number, 4);
    m = put(put(m, "\0\0\0\10", 4), epoch, 8);
    m = put(m, "\0\0\1\0", 4);
    hmac(input, message, (size_t)(m - message), key);
}

static void drawn_root(uint8_t root[32])
{
    for (size_t i = 0; i < 32; i++)
        root[i] = openssl_drawn[ROOT][i] ^ system_drawn[ROOT][i];
}

static void check_derivation(void)
{
    static const uint8_t two[4] = {0, 0, 0, 2}, epoch[8] = {1, 2, 3, 4, 5, 6, 7, 8}, none[8] = {0};
    static const uint8_t nobody[4] = {255, 255, 255, 255};
    uint8_t root[32], key[32], wanted[32];
    kvx_keyring *keyring = NULL;
    assert_int_equal(kvx_keyring_create(&config, &keyring), KVX_OK);
    assert_int_equal(kvx_keyring_tenant_open(keyring, 2), KVX_OK);
    assert_int_equal(kvx_keyring_epoch_open(keyring, 3, 2, 0x0102030405060708u), KVX_OK);
    assert_int_equal(system_bytes[ROOT] + system_bytes[CONTEXT_ID] + system_bytes[EPOCH], 32 + 16 + 32);
    drawn_root(root);
    key_of(keyring, 3, key);
    expected_key(root, two, epoch, wanted);
    assert_memory_equal(key, wanted, 32);
    assert_int_equal(kvx_keyring_commitment(keyring, key), KVX_OK);
    expected_key(root, nobody, none, wanted);
    assert_memory_equal(key, wanted, 32);
    kvx_keyring_destroy(keyring);
}

static void derivation_is_sp800_108(void **state)
{
    (void)state;
    check_derivation();
}

static void short_and_interrupted_draws(void **state)
{
    (void)state;
    short_draws = interrupted = 1;
    check_derivation();
}

/* A root given by a broker: two contexts with the same root share no key. */
static void given_root(void **state)
{
    static const uint8_t root[32] = {1, 2, 3};
    uint8_t a[32], b[32], commitments[2][32];
    (void)state;
    config.root = root;
    kvx_keyring *rings[2] = {make(), make()};
    config.root = NULL;
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(kvx_keyring_epoch_open(rings[i], 0, 0, 1), KVX_OK);
        assert_int_equal(kvx_keyring_commitment(rings[i], commitments[i]), KVX_OK);
    }
    key_of(rings[0], 0, a);
    key_of(rings[1], 0, b);
    assert_memory_not_equal(a, b, 32);
    assert_memory_not_equal(commitments[0], commitments[1], 32);
    kvx_keyring_destroy(rings[0]);
    kvx_keyring_destroy(rings[1]);
}

/* Whatever is closed is gone: the key cannot be derived again. */
static void closed_is_gone(void **state)
{
    const uint8_t *key = NULL;
    kvx_keyring *keyring = make();
    (void)state;
    assert_int_equal(kvx_keyring_block_key(keyring, 0, &key), KVX_INVALID);
    assert_int_equal(kvx_keyring_epoch_open(keyring, 0, 1, 1), KVX_OK);
    assert_int_equal(kvx_keyring_epoch_open(keyring, 2, 2, 1), KVX_OK);
    kvx_keyring_epoch_close(keyring, 0);
    assert_int_equal(kvx_keyring_block_key(keyring, 0, &key), KVX_INVALID);
    kvx_keyring_tenant_close(keyring, 2);
    assert_int_equal(kvx_keyring_block_key(keyring, 2, &key), KVX_INVALID);
    assert_int_equal(kvx_keyring_block_key(keyring, 99, &key), KVX_INVALID);
    assert_null(key);
    kvx_keyring_destroy(keyring);
}

/* Hashes cover lengths: fields cannot be moved into each other. */
static void hashes_are_unambiguous(void **state)
{
    const kvx_field lists[4][2] = {
        {{"ab", 2}, {"c", 1}}, {{"a", 1}, {"bc", 2}}, {{"abc", 3}, {"", 0}}, {{"", 0}, {"abc", 3}}};
    uint8_t hashes[4][KVX_HASH_BYTES], one[KVX_HASH_BYTES], wanted[KVX_HASH_BYTES];
    unsigned n = 0;
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(kvx_keyring_hash(lists[i], 2, hashes[i]), KVX_OK);
        for (size_t k = 0; k < i; k++)
            assert_memory_not_equal(hashes[i], hashes[k], KVX_HASH_BYTES);
    }
    assert_int_equal(kvx_keyring_hash(lists[2], 1, one), KVX_OK);
    assert_int_equal(EVP_Digest("\0\0\0\3abc", 7, wanted, &n, EVP_sha384(), NULL), 1);
    assert_memory_equal(one, wanted, KVX_HASH_BYTES);
}

static void random_bytes(void **state)
{
    uint8_t a[100] = {0}, b[100] = {0}, zero[16] = {0};
    (void)state;
    assert_int_equal(kvx_keyring_random(a, 99), KVX_OK);
    assert_int_equal(kvx_keyring_random(b, 99), KVX_OK);
    assert_int_equal(kvx_keyring_random(b, 0), KVX_OK);
    assert_memory_not_equal(a, b, 99);
    assert_memory_not_equal(a + 83, zero, 16);
    assert_int_equal(a[99], 0);
    fake.fail = "getrandom";
    assert_int_equal(kvx_keyring_random(a, 8), KVX_INTERNAL);
    fake.fail = "RAND_priv_bytes_ex";
    assert_int_equal(kvx_keyring_random(a, 8), KVX_INTERNAL);
}

static void failed_creates(void **state)
{
    static const struct {
        const char *call;
        unsigned after;
        kvx_status status;
        const char *note;
    } cases[] = {
        {"mlock", 0, KVX_NO_MEMORY, "RLIMIT_MEMLOCK"},
        {"mlock", 0, KVX_NO_MEMORY, "ulimit -l"},
        {"mlock", 0, KVX_NO_MEMORY, "n_key_slots"},
        {"madvise", 0, KVX_NO_MEMORY, "madvise"},
        {"madvise", 1, KVX_NO_MEMORY, "madvise"},
        {"mmap", 0, KVX_NO_MEMORY, "mmap"},
        {"OSSL_LIB_CTX_new", 0, KVX_INTERNAL, "OSSL_LIB_CTX_new"},
        {"EVP_KDF_fetch", 0, KVX_INTERNAL, "KBKDF"},
        {"RAND_priv_bytes_ex", 0, KVX_INTERNAL, "RAND_priv_bytes_ex"},
        {"RAND_priv_bytes_ex", 1, KVX_INTERNAL, "RAND_priv_bytes_ex"},
        {"getrandom", 0, KVX_INTERNAL, "getrandom"},
        {"getrandom", 1, KVX_INTERNAL, "getrandom"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        kvx_keyring *keyring = (kvx_keyring *)state;
        reset(NULL);
        fake.no_secret_memory = 1;
        fake.fail = cases[i].call;
        fake.fail_after = cases[i].after;
        assert_int_equal(kvx_keyring_create(&config, &keyring), cases[i].status);
        assert_ptr_equal(keyring, state);
        assert_non_null(strstr(kvx_last_error(), cases[i].note));
        assert_int_equal(fake.n_maps, 0);
    }
}

static void failed_derivations(void **state)
{
    static const char *const calls[] = {"EVP_KDF_CTX_new", "EVP_KDF_derive"};
    uint8_t before[32], after[32];
    const uint8_t *first = NULL, zero[32] = {0};
    (void)state;
    kvx_keyring *keyring = make();
    assert_int_equal(kvx_keyring_epoch_open(keyring, 0, 0, 1), KVX_OK);
    assert_int_equal(kvx_keyring_block_key(keyring, 0, &first), KVX_OK);
    memcpy(before, first, 32);
    for (size_t i = 0; i < 2; i++) {
        const uint8_t *key = before;
        fake.fail = calls[i];
        assert_int_equal(kvx_keyring_block_key(keyring, 0, &key), KVX_INTERNAL);
        assert_ptr_equal(key, before);
        assert_memory_equal(first, zero, 32); /* the older key is wiped, and nothing half-made stands there */
    }
    fake.fail = "";
    key_of(keyring, 0, after);
    assert_memory_equal(before, after, 32);
    kvx_keyring_destroy(keyring);
    assert_int_equal(fake.n_maps, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(keys_differ_and_repeat, reset),
        cmocka_unit_test_setup(derivation_is_sp800_108, reset),
        cmocka_unit_test_setup(short_and_interrupted_draws, reset),
        cmocka_unit_test_setup(random_bytes, reset),
        cmocka_unit_test_setup(failed_creates, reset),
        cmocka_unit_test_setup(failed_derivations, reset),
        cmocka_unit_test_setup(given_root, reset),
        cmocka_unit_test_setup(closed_is_gone, reset),
        cmocka_unit_test_setup(hashes_are_unambiguous, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
