/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of kernels/ (AES, GF(2^128), SipHash, the host's atomics) against published vectors, against algebraic
 * definitions written here a second time in the slowest way, and against OpenSSL. */
#include "cmocka_door.h"

#include <stdlib.h>
#include <string.h>

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include "arith_help.h"
#include "kernels/aes.h"
#include "kernels/ghash.h"
#include "kernels/prf.h"

static kvx_gf random_gf(void)
{
    uint8_t block[16];
    fill_random(block, sizeof block);
    return kvx_gf_load(block);
}

static void from_hex(const char *hex, uint8_t *out)
{
    for (; hex[0] != '\0'; hex += 2) {
        const char digits[3] = {hex[0], hex[1], '\0'};
        *out++ = (uint8_t)strtoul(digits, NULL, 16);
    }
}

/* ---- AES ---- */

static unsigned gf8_mul(unsigned a, unsigned b)
{
    unsigned r = 0;
    for (; b != 0; b >>= 1) {
        if (b & 1u)
            r ^= a;
        a = (a << 1) ^ ((a & 0x80u) ? 0x11bu : 0u);
    }
    return r;
}

/* FIPS 197, 5.1.1: the inverse in GF(2^8), then an affine map. */
static unsigned slow_sbox(unsigned x)
{
    unsigned inverse = 0, r = 0;
    for (unsigned y = 1; y < 256; y++)
        if (gf8_mul(x, y) == 1)
            inverse = y;
    for (unsigned i = 0; i < 8; i++) {
        const unsigned bits = (inverse >> i) ^ (inverse >> ((i + 4) % 8)) ^ (inverse >> ((i + 5) % 8)) ^
                              (inverse >> ((i + 6) % 8)) ^ (inverse >> ((i + 7) % 8)) ^ (0x63u >> i);
        r |= (bits & 1u) << i;
    }
    return r;
}

static void sbox_is_the_algebraic_one(void **state)
{
    (void)state;
    for (unsigned x = 0; x < 256; x++) {
        const uint32_t s = slow_sbox(x);
        const uint32_t others = (uint32_t)next_random() & 0xffffff00u;
        assert_int_equal(kvx_aes_sbox4(x | others) & 0xffu, s);
        for (unsigned n = 8; n < 32; n += 8)
            assert_int_equal((kvx_aes_sbox4(kvx_rotl32(x | others, n)) >> n) & 0xffu, s);
        const uint32_t word = gf8_mul(s, 2) | s << 8 | s << 16 | gf8_mul(s, 3) << 24;
        assert_int_equal(kvx_aes_table_word((uint8_t)x), word);
    }
}

static void encrypt_bytes(const uint32_t round_keys[60], const uint8_t in[16], uint8_t out[16])
{
    uint32_t block[4];
    for (unsigned i = 0; i < 4; i++)
        block[i] = kvx_load_le32(in + 4 * i);
    kvx_aes256_encrypt(round_keys, block, block);
    for (unsigned i = 0; i < 4; i++)
        kvx_store_le32(out + 4 * i, block[i]);
}

static void assert_encrypts(const char *key_hex, const char *in_hex, const char *out_hex)
{
    uint8_t key[32], in[16], out[16], got[16];
    uint32_t round_keys[60];
    from_hex(key_hex, key);
    from_hex(in_hex, in);
    from_hex(out_hex, out);
    kvx_aes256_expand(key, round_keys);
    encrypt_bytes(round_keys, in, got);
    assert_memory_equal(got, out, 16);
}

static void aes_published_vectors(void **state)
{
    (void)state;
    assert_encrypts("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f", /* FIPS 197, C.3 */
                    "00112233445566778899aabbccddeeff", "8ea2b7ca516745bfeafc49904b496089");
    const char *key = "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4"; /* SP 800-38A, F.1.5 */
    assert_encrypts(key, "6bc1bee22e409f96e93d7e117393172a", "f3eed1bdb5d2a03c064b5a7e3db181f8");
    assert_encrypts(key, "ae2d8a571e03ac9c9eb76fac45af8e51", "591ccb10d410ed26dc5ba74a31362870");
    assert_encrypts(key, "30c81c46a35ce411e5fbc1191a0a52ef", "b6ed21b99ca6f4f9f153e7b1beafed1d");
    assert_encrypts(key, "f69f2445df4f9b17ad2b417be66c3710", "23304b7a39f9f3ff067d8d8f9e24ecc7");
}

static void key_schedule_published_vector(void **state)
{
    (void)state;
    const uint32_t last[4] = {0xfe4890d1u, 0xe6188d0bu, 0x046df344u, 0x706c631eu}; /* FIPS 197, A.3: w56 to w59 */
    uint8_t key[32];
    uint32_t round_keys[60];
    from_hex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4", key);
    kvx_aes256_expand(key, round_keys);
    assert_int_equal(kvx_bswap32(round_keys[8]), 0x9ba35411u);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(kvx_bswap32(round_keys[56 + i]), last[i]);
}

static void aes_equals_openssl(void **state)
{
    (void)state;
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    assert_non_null(context);
    for (unsigned i = 0; i < 2000; i++) {
        uint8_t key[32], in[16], got[16], want[16];
        uint32_t round_keys[60];
        int n = 0;
        fill_random(key, sizeof key);
        fill_random(in, sizeof in);
        kvx_aes256_expand(key, round_keys);
        encrypt_bytes(round_keys, in, got);
        assert_int_equal(EVP_EncryptInit_ex(context, EVP_aes_256_ecb(), NULL, key, NULL), 1);
        assert_int_equal(EVP_EncryptUpdate(context, want, &n, in, 16), 1);
        assert_memory_equal(got, want, 16);
    }
    EVP_CIPHER_CTX_free(context);
}

/* ---- GF(2^128) ---- */

static kvx_gf times_x(kvx_gf a)
{
    const int folds = (a.w[3] & 1u) != 0;
    for (unsigned j = 3; j > 0; j--)
        a.w[j] = (a.w[j] >> 1) | (a.w[j - 1] << 31);
    a.w[0] = (a.w[0] >> 1) ^ (folds ? 0xe1000000u : 0u);
    return a;
}

/* SP 800-38D, algorithm 1. */
static kvx_gf slow_mul(kvx_gf a, kvx_gf b)
{
    kvx_gf r = kvx_gf_zero();
    for (unsigned i = 0; i < 128; i++) {
        if ((a.w[i / 32] >> (31 - i % 32)) & 1u)
            r = kvx_gf_xor(r, b);
        b = times_x(b);
    }
    return r;
}

static void assert_gf_equal(kvx_gf a, kvx_gf b)
{
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(a.w[i], b.w[i]);
}

static void clmul32_is_the_slow_one(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 20000; i++) {
        const uint32_t dense_x = i % 3 == 0 ? 0xffffffffu : 0, dense_y = i % 5 == 0 ? 0xffffffffu : 0;
        const uint32_t x = (uint32_t)next_random() | dense_x, y = (uint32_t)next_random() | dense_y;
        uint64_t product = 0;
        for (unsigned bit = 0; bit < 32; bit++)
            product ^= ((y >> bit) & 1u) ? (uint64_t)x << bit : 0;
        assert_true(kvx_clmul32(x, y) == product);
    }
}

static void gf_mul_is_the_slow_one(void **state)
{
    (void)state;
    kvx_gf all = kvx_gf_zero();
    for (unsigned i = 0; i < 4; i++)
        all.w[i] = 0xffffffffu; /* the fullest sums of the spread multiplication */
    assert_gf_equal(kvx_gf_mul(all, all), slow_mul(all, all));
    for (unsigned i = 0; i < 5000; i++) {
        const kvx_gf a = random_gf(), b = random_gf();
        assert_gf_equal(kvx_gf_mul(a, b), slow_mul(a, b));
        assert_gf_equal(kvx_gf_mul(a, all), slow_mul(a, all));
    }
    for (unsigned i = 0; i < 128; i++) {
        for (unsigned j = 0; j < 128; j++) {
            kvx_gf a = kvx_gf_zero(), b = kvx_gf_zero();
            a.w[i / 32] = 1u << (31 - i % 32);
            b.w[j / 32] = 1u << (31 - j % 32);
            assert_gf_equal(kvx_gf_mul(a, b), slow_mul(a, b));
        }
    }
}

static void gf_identities(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2000; i++) {
        const kvx_gf a = random_gf(), b = random_gf(), c = random_gf();
        assert_gf_equal(kvx_gf_mul(a, b), kvx_gf_mul(b, a));
        assert_gf_equal(kvx_gf_mul(kvx_gf_mul(a, b), c), kvx_gf_mul(a, kvx_gf_mul(b, c)));
        assert_gf_equal(kvx_gf_mul(kvx_gf_xor(a, b), c), kvx_gf_xor(kvx_gf_mul(a, c), kvx_gf_mul(b, c)));
        assert_gf_equal(kvx_gf_mul(a, kvx_gf_one()), a);
        assert_gf_equal(kvx_gf_mul(a, kvx_gf_zero()), kvx_gf_zero());
        assert_gf_equal(kvx_gf_square(a), slow_mul(a, a));
        uint8_t block[16];
        kvx_gf_store(block, a);
        assert_gf_equal(kvx_gf_load(block), a);
    }
}

static void gf_pow_and_shift(void **state)
{
    (void)state;
    const kvx_gf base = random_gf();
    kvx_gf product = kvx_gf_one();
    for (uint64_t n = 0; n < 300; n++, product = kvx_gf_mul(product, base))
        assert_gf_equal(kvx_gf_pow(base, n), product);
    for (unsigned i = 0; i < 50; i++) {
        const uint64_t m = next_random() >> 1, n = next_random() >> 1;
        assert_gf_equal(kvx_gf_pow(base, m + n), kvx_gf_mul(kvx_gf_pow(base, m), kvx_gf_pow(base, n)));
    }
    kvx_gf shifted = base;
    for (unsigned n = 1; n <= 24; n++) {
        shifted = times_x(shifted);
        assert_gf_equal(kvx_gf_shift(base, n), shifted);
    }
    kvx_gf last = base; /* Fermat: the 2^128-th power of an element is itself */
    for (unsigned i = 0; i < 128; i++)
        last = kvx_gf_square(last);
    assert_gf_equal(last, base);
}

static void ghash_tables_are_products(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 8; i++) {
        const kvx_gf k = random_gf();
        for (unsigned t = 0; t < 2; t++) {
            for (unsigned b = 0; b < 256; b++) {
                kvx_gf element = kvx_gf_zero();
                element.w[0] = b << (24 - 8 * t);
                assert_gf_equal(kvx_ghash_tables(k, t, b), slow_mul(element, k));
            }
        }
    }
}

static void ghash_update_is_horner(void **state)
{
    (void)state;
    uint8_t blocks[16 * 20];
    fill_random(blocks, sizeof blocks);
    const kvx_gf h = random_gf();
    kvx_gf sum = kvx_gf_zero();
    for (unsigned i = 0; i < 20; i++)
        sum = kvx_gf_xor(sum, slow_mul(kvx_gf_load(blocks + 16 * i), kvx_gf_pow(h, 20 - i)));
    assert_gf_equal(kvx_ghash_update(kvx_gf_zero(), h, blocks, 20), sum);
    const kvx_gf part = kvx_ghash_update(kvx_gf_zero(), h, blocks, 7);
    assert_gf_equal(kvx_ghash_update(part, h, blocks + 16 * 7, 13), sum);
}

/* ---- SipHash ---- */

static void sip_test_key(uint64_t key[2], uint8_t key_bytes[16])
{
    for (unsigned i = 0; i < 16; i++)
        key_bytes[i] = (uint8_t)i;
    key[0] = kvx_load_le64(key_bytes);
    key[1] = kvx_load_le64(key_bytes + 8);
}

/* The first of the authors' reference vectors: key 00..0f, message 00, 01, .. of length 0, 1, .. */
static void siphash_published_vectors(void **state)
{
    (void)state;
    static const uint8_t vectors[16][8] = {
        {0x31, 0x0e, 0x0e, 0xdd, 0x47, 0xdb, 0x6f, 0x72}, {0xfd, 0x67, 0xdc, 0x93, 0xc5, 0x39, 0xf8, 0x74},
        {0x5a, 0x4f, 0xa9, 0xd9, 0x09, 0x80, 0x6c, 0x0d}, {0x2d, 0x7e, 0xfb, 0xd7, 0x96, 0x66, 0x67, 0x85},
        {0xb7, 0x87, 0x71, 0x27, 0xe0, 0x94, 0x27, 0xcf}, {0x8d, 0xa6, 0x99, 0xcd, 0x64, 0x55, 0x76, 0x18},
        {0xce, 0xe3, 0xfe, 0x58, 0x6e, 0x46, 0xc9, 0xcb}, {0x37, 0xd1, 0x01, 0x8b, 0xf5, 0x00, 0x02, 0xab},
        {0x62, 0x24, 0x93, 0x9a, 0x79, 0xf5, 0xf5, 0x93}, {0xb0, 0xe4, 0xa9, 0x0b, 0xdf, 0x82, 0x00, 0x9e},
        {0xf3, 0xb9, 0xdd, 0x94, 0xc5, 0xbb, 0x5d, 0x7a}, {0xa7, 0xad, 0x6b, 0x22, 0x46, 0x2f, 0xb3, 0xf4},
        {0xfb, 0xe5, 0x0e, 0x86, 0xbc, 0x8f, 0x1e, 0x75}, {0x90, 0x3d, 0x84, 0xc0, 0x27, 0x56, 0xea, 0x14},
        {0xee, 0xf2, 0x7a, 0x8e, 0x90, 0xca, 0x23, 0xf7}, {0xe5, 0x45, 0xbe, 0x49, 0x61, 0xca, 0x29, 0xa1},
    };
    uint64_t key[2];
    uint8_t message[16], got[8];
    sip_test_key(key, message); /* the message is the key's bytes */
    for (size_t n = 0; n < 16; n++) {
        kvx_store_le64(got, kvx_prf_bytes(key, message, n));
        assert_memory_equal(got, vectors[n], 8);
    }
    assert_true(kvx_prf(key, key[0], key[1]) == kvx_prf_bytes(key, message, 16));
}

static void openssl_siphash(const uint8_t key[16], const uint8_t *message, size_t bytes, uint8_t out[8])
{
    size_t size = 8, n = 0;
    EVP_MAC *mac = EVP_MAC_fetch(NULL, "SIPHASH", NULL);
    EVP_MAC_CTX *context = EVP_MAC_CTX_new(mac);
    const OSSL_PARAM params[] = {OSSL_PARAM_construct_size_t(OSSL_MAC_PARAM_SIZE, &size), OSSL_PARAM_construct_end()};
    assert_int_equal(EVP_MAC_init(context, key, 16, params), 1);
    assert_int_equal(EVP_MAC_update(context, message, bytes), 1);
    assert_int_equal(EVP_MAC_final(context, out, &n, 8), 1);
    assert_int_equal(n, 8);
    EVP_MAC_CTX_free(context);
    EVP_MAC_free(mac);
}

static void siphash_equals_openssl(void **state)
{
    (void)state;
    for (size_t bytes = 0; bytes < 300; bytes++) {
        uint8_t key_bytes[16], message[300], want[8], got[8];
        fill_random(key_bytes, sizeof key_bytes);
        fill_random(message, sizeof message);
        const uint64_t key[2] = {kvx_load_le64(key_bytes), kvx_load_le64(key_bytes + 8)};
        openssl_siphash(key_bytes, message, bytes, want);
        kvx_store_le64(got, kvx_prf_bytes(key, message, bytes));
        assert_memory_equal(got, want, 8);
        const uint64_t a = kvx_load_le64(message), b = kvx_load_le64(message + 8);
        assert_true(kvx_prf(key, a, b) == kvx_prf_bytes(key, message, 16));
    }
}

/* ---- hd.h ---- */

static void byte_order_and_rotation(void **state)
{
    (void)state;
    uint8_t p[8];
    assert_int_equal(kvx_bswap32(0x01020304u), 0x04030201u);
    assert_true(kvx_bswap64(0x0102030405060708u) == 0x0807060504030201u);
    kvx_store_be64(p, 0x0102030405060708u);
    assert_int_equal(p[0], 1);
    assert_int_equal(kvx_load_be32(p + 1), 0x02030405u);
    assert_int_equal(kvx_load_le32(p + 1), 0x05040302u);
    assert_true(kvx_load_be64(p) == 0x0102030405060708u);
    kvx_store_le64(p, 0x0102030405060708u);
    assert_int_equal(p[0], 8);
    assert_true(kvx_load_le64(p) == 0x0102030405060708u);
    assert_int_equal(kvx_rotl32(0x80000001u, 1), 3);
    assert_int_equal(kvx_rotl32(7, 0), 7);
    assert_int_equal(kvx_rotr32(3, 1), 0x80000001u);
    assert_true(kvx_rotl64(0x8000000000000001u, 1) == 3);
}

static void atomics_return_the_value_before(void **state)
{
    (void)state;
    uint64_t x = 5;
    uint32_t y = 5;
    assert_true(kvx_atomic_max_u64(&x, 4) == 5 && x == 5);
    assert_true(kvx_atomic_max_u64(&x, 0xffffffff00000001u) == 5 && x == 0xffffffff00000001u);
    assert_true(kvx_atomic_cas_u64(&x, 1, 2) == 0xffffffff00000001u && x == 0xffffffff00000001u);
    assert_true(kvx_atomic_cas_u64(&x, 0xffffffff00000001u, 2) == 0xffffffff00000001u && x == 2);
    assert_true(kvx_atomic_add_u64(&x, 3) == 2 && kvx_load_acquire_u64(&x) == 5);
    assert_true(kvx_atomic_add_u32(&y, 0xffffffffu) == 5 && y == 4);
    assert_true(kvx_atomic_cas_u32(&y, 5, 6) == 4 && y == 4);
    assert_true(kvx_atomic_cas_u32(&y, 4, 6) == 4 && kvx_load_acquire_u32(&y) == 6);
    kvx_store_release_u64(&x, 9);
    kvx_store_release_u32(&y, 9);
    assert_true(x == 9 && y == 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sbox_is_the_algebraic_one),
        cmocka_unit_test(aes_published_vectors),
        cmocka_unit_test(key_schedule_published_vector),
        cmocka_unit_test(aes_equals_openssl),
        cmocka_unit_test(clmul32_is_the_slow_one),
        cmocka_unit_test(gf_mul_is_the_slow_one),
        cmocka_unit_test(gf_identities),
        cmocka_unit_test(gf_pow_and_shift),
        cmocka_unit_test(ghash_tables_are_products),
        cmocka_unit_test(ghash_update_is_horner),
        cmocka_unit_test(siphash_published_vectors),
        cmocka_unit_test(siphash_equals_openssl),
        cmocka_unit_test(byte_order_and_rotation),
        cmocka_unit_test(atomics_return_the_value_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
