/* SPDX-License-Identifier: Apache-2.0 */
/* Keyring and locked memory. Calls that can fail are wrapped: RAND_priv_bytes_ex, OSSL_LIB_CTX_new, EVP_KDF_fetch,
 * EVP_KDF_CTX_new, EVP_KDF_derive, getrandom, mmap, munmap, mlock, madvise. `fail` names the call that fails, and maps
 * that are still there are counted. The key derivation is recomputed with HMAC alone from what the draws returned. */
#include "cmocka_door.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include "keyring.h"
#include "secmem.h"

/* The sanitizers make mlock do nothing. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static const char *fail = "";
static unsigned fail_after;          /* calls of that name that still succeed */
static int short_draws, interrupted; /* getrandom: at most 5 bytes a call; EINTR once */
static int n_maps;

/* What the last two draws of each source returned: root, then context id. */
static uint8_t openssl_drawn[2][32], system_drawn[2][32];
static unsigned n_openssl_drawn;
static size_t system_bytes;

static int fails(const char *name)
{
    if (strcmp(fail, name) != 0)
        return 0;
    if (fail_after == 0)
        return 1;
    fail_after--;
    return 0;
}

int __real_RAND_priv_bytes_ex(OSSL_LIB_CTX *library, unsigned char *bytes, size_t n, unsigned strength);
int __wrap_RAND_priv_bytes_ex(OSSL_LIB_CTX *library, unsigned char *bytes, size_t n, unsigned strength);
int __wrap_RAND_priv_bytes_ex(OSSL_LIB_CTX *library, unsigned char *bytes, size_t n, unsigned strength)
{
    if (fails("RAND_priv_bytes_ex"))
        return 0;
    int result = __real_RAND_priv_bytes_ex(library, bytes, n, strength);
    if (n_openssl_drawn < 2 && n <= 32)
        memcpy(openssl_drawn[n_openssl_drawn++], bytes, n);
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
    if (fails("getrandom")) {
        errno = ENOSYS;
        return -1;
    }
    ssize_t got = __real_getrandom(bytes, short_draws && n > 5 ? 5 : n, flags);
    if (got > 0 && system_bytes + (size_t)got <= 48) /* 32 of the root, 16 of the id: lines of 32 */
        memcpy((uint8_t *)system_drawn + system_bytes, bytes, (size_t)got);
    system_bytes += got > 0 ? (size_t)got : 0;
    return got;
}

OSSL_LIB_CTX *__real_OSSL_LIB_CTX_new(void);
OSSL_LIB_CTX *__wrap_OSSL_LIB_CTX_new(void);
OSSL_LIB_CTX *__wrap_OSSL_LIB_CTX_new(void)
{
    return fails("OSSL_LIB_CTX_new") ? NULL : __real_OSSL_LIB_CTX_new();
}

EVP_KDF *__real_EVP_KDF_fetch(OSSL_LIB_CTX *library, const char *name, const char *properties);
EVP_KDF *__wrap_EVP_KDF_fetch(OSSL_LIB_CTX *library, const char *name, const char *properties);
EVP_KDF *__wrap_EVP_KDF_fetch(OSSL_LIB_CTX *library, const char *name, const char *properties)
{
    return fails("EVP_KDF_fetch") ? NULL : __real_EVP_KDF_fetch(library, name, properties);
}

EVP_KDF_CTX *__real_EVP_KDF_CTX_new(EVP_KDF *kdf);
EVP_KDF_CTX *__wrap_EVP_KDF_CTX_new(EVP_KDF *kdf);
EVP_KDF_CTX *__wrap_EVP_KDF_CTX_new(EVP_KDF *kdf)
{
    return fails("EVP_KDF_CTX_new") ? NULL : __real_EVP_KDF_CTX_new(kdf);
}

int __real_EVP_KDF_derive(EVP_KDF_CTX *ctx, unsigned char *key, size_t n, const OSSL_PARAM params[]);
int __wrap_EVP_KDF_derive(EVP_KDF_CTX *ctx, unsigned char *key, size_t n, const OSSL_PARAM params[]);
int __wrap_EVP_KDF_derive(EVP_KDF_CTX *ctx, unsigned char *key, size_t n, const OSSL_PARAM params[])
{
    return fails("EVP_KDF_derive") ? 0 : __real_EVP_KDF_derive(ctx, key, n, params);
}

void *__real_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset)
{
    if (fails("mmap")) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    n_maps++;
    return __real_mmap(at, bytes, protection, flags, file, offset);
}

int __real_munmap(void *at, size_t bytes);
int __wrap_munmap(void *at, size_t bytes);
int __wrap_munmap(void *at, size_t bytes)
{
    n_maps--;
    return __real_munmap(at, bytes);
}

int __real_mlock(const void *at, size_t bytes);
int __wrap_mlock(const void *at, size_t bytes);
int __wrap_mlock(const void *at, size_t bytes)
{
    if (fails("mlock")) {
        errno = ENOMEM;
        return -1;
    }
    return __real_mlock(at, bytes);
}

int __real_madvise(void *at, size_t bytes, int advice);
int __wrap_madvise(void *at, size_t bytes, int advice);
int __wrap_madvise(void *at, size_t bytes, int advice)
{
    return fails("madvise") ? -1 : __real_madvise(at, bytes, advice);
}

static int reset(void **state)
{
    (void)state;
    fail = "";
    fail_after = 0;
    short_draws = interrupted = 0;
    n_openssl_drawn = 0;
    system_bytes = 0;
    n_maps = 0;
    return 0;
}

static kvx_keyring *make(void)
{
    kvx_keyring *keyring = NULL;
    assert_int_equal(kvx_keyring_create(&keyring), KVX_OK);
    return keyring;
}

static void key_of(kvx_keyring *keyring, uint32_t tenant, uint8_t key[32])
{
    const uint8_t *derived = NULL;
    assert_int_equal(kvx_keyring_block_key(keyring, tenant, &derived), KVX_OK);
    memcpy(key, derived, 32);
}

static void keys_differ_and_repeat(void **state)
{
    uint8_t a0[32], a1[32], again[32], b0[32];
    kvx_keyring *a = make(), *b = make();
    (void)state;
    key_of(a, 0, a0);
    key_of(a, 1, a1);
    key_of(a, 0, again);
    key_of(b, 0, b0);
    assert_memory_equal(a0, again, 32);
    assert_memory_not_equal(a0, a1, 32);
    assert_memory_not_equal(a0, b0, 32);
    kvx_keyring_destroy(a);
    kvx_keyring_destroy(b);
    kvx_keyring_destroy(NULL);
    assert_int_equal(n_maps, 0);
}

/* SP 800-108 counter mode, one block: HMAC(root, [1]32 | label | 00 | context | [256]32). */
static void expected_key(uint32_t tenant, uint8_t key[32])
{
    uint8_t root[32], id[16], message[4 + 16 + 1 + 28 + 4], *m = message;
    char digest[] = "SHA256";
    const uint8_t number[4] = {(uint8_t)(tenant >> 24), (uint8_t)(tenant >> 16), (uint8_t)(tenant >> 8),
                               (uint8_t)tenant};
    for (size_t i = 0; i < 32; i++)
        root[i] = openssl_drawn[0][i] ^ system_drawn[0][i];
    for (size_t i = 0; i < 16; i++)
        id[i] = openssl_drawn[1][i] ^ system_drawn[1][i];
    m = (uint8_t *)memcpy(m, "\0\0\0\1", 4) + 4;
    m = (uint8_t *)memcpy(m, "kvx block key v1", 17) + 17;
    m = (uint8_t *)memcpy(m, "\0\0\0\20", 4) + 4;
    m = (uint8_t *)memcpy(m, id, 16) + 16;
    m = (uint8_t *)memcpy(m, "\0\0\0\4", 4) + 4;
    m = (uint8_t *)memcpy(m, number, 4) + 4;
    memcpy(m, "\0\0\1\0", 4);
    OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                           OSSL_PARAM_construct_end()};
    size_t n = 0;
    EVP_MAC *mac = EVP_MAC_fetch(NULL, "HMAC", NULL);
    EVP_MAC_CTX *ctx = EVP_MAC_CTX_new(mac);
    assert_int_equal(EVP_MAC_init(ctx, root, 32, params), 1);
    assert_int_equal(EVP_MAC_update(ctx, message, sizeof(message)), 1);
    assert_int_equal(EVP_MAC_final(ctx, key, &n, 32), 1);
    EVP_MAC_CTX_free(ctx);
    EVP_MAC_free(mac);
}

static void derivation_is_sp800_108(void **state)
{
    static const uint32_t tenants[] = {0, 1, 63, 0x01020304};
    uint8_t key[32], wanted[32];
    (void)state;
    kvx_keyring *keyring = make();
    for (size_t i = 0; i < 4; i++) {
        key_of(keyring, tenants[i], key);
        expected_key(tenants[i], wanted);
        assert_memory_equal(key, wanted, 32);
    }
    kvx_keyring_destroy(keyring);
}

static void short_and_interrupted_draws(void **state)
{
    uint8_t key[32], wanted[32];
    (void)state;
    short_draws = interrupted = 1;
    kvx_keyring *keyring = make();
    assert_int_equal(system_bytes, 48);
    key_of(keyring, 5, key);
    expected_key(5, wanted);
    assert_memory_equal(key, wanted, 32);
    kvx_keyring_destroy(keyring);
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
    fail = "getrandom";
    assert_int_equal(kvx_keyring_random(a, 8), KVX_INTERNAL);
    fail = "RAND_priv_bytes_ex";
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
        {"mmap", 0, KVX_NO_MEMORY, "mmap"},
        {"mlock", 0, KVX_NO_MEMORY, "RLIMIT_MEMLOCK"},
        {"mlock", 0, KVX_NO_MEMORY, "ulimit -l"},
        {"madvise", 0, KVX_NO_MEMORY, "madvise"},
        {"madvise", 1, KVX_NO_MEMORY, "madvise"},
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
        fail = cases[i].call;
        fail_after = cases[i].after;
        assert_int_equal(kvx_keyring_create(&keyring), cases[i].status);
        assert_ptr_equal(keyring, state);
        assert_non_null(strstr(kvx_last_error(), cases[i].note));
        assert_int_equal(n_maps, 0);
    }
}

static void failed_derivations(void **state)
{
    static const char *const calls[] = {"EVP_KDF_CTX_new", "EVP_KDF_derive"};
    uint8_t before[32], after[32];
    const uint8_t *first = NULL, zero[32] = {0};
    (void)state;
    kvx_keyring *keyring = make();
    assert_int_equal(kvx_keyring_block_key(keyring, 0, &first), KVX_OK);
    memcpy(before, first, 32);
    for (size_t i = 0; i < 2; i++) {
        const uint8_t *key = before;
        fail = calls[i];
        assert_int_equal(kvx_keyring_block_key(keyring, 0, &key), KVX_INTERNAL);
        assert_ptr_equal(key, before);
        assert_memory_equal(first, zero, 32); /* the older key is wiped, and nothing half-made stands there */
    }
    fail = "";
    key_of(keyring, 0, after);
    assert_memory_equal(before, after, 32);
    kvx_keyring_destroy(keyring);
    assert_int_equal(n_maps, 0);
}

/* Does the mapping that begins at `memory` have all these flags? */
static int has_flags(const void *memory, const char *flags[], size_t n)
{
    char line[512], start[32];
    int inside = 0, found = 0;
    snprintf(start, sizeof(start), "%lx-", (unsigned long)(uintptr_t)memory);
    FILE *file = fopen("/proc/self/smaps", "r");
    assert_non_null(file);
    while (!found && fgets(line, sizeof(line), file)) {
        inside = inside || strncmp(line, start, strlen(start)) == 0;
        found = inside && strncmp(line, "VmFlags:", 8) == 0;
    }
    fclose(file);
    for (size_t i = 0; found && i < n; i++)
        found = strstr(line, flags[i]) != NULL;
    return found;
}

static void secmem_is_wiped_and_checked(void **state)
{
    void *memory = NULL;
    uint8_t zero[5000] = {0};
    (void)state;
    assert_int_equal(kvx_secmem_map(5000, &memory), KVX_OK);
    assert_memory_equal(memory, zero, 5000);
    memset(memory, 0x5a, 5000);
    kvx_secmem_wipe(memory, 4999);
    assert_memory_equal(memory, zero, 4999);
    assert_int_equal(((uint8_t *)memory)[4999], 0x5a);
    kvx_secmem_unmap(memory, 5000);
    kvx_secmem_unmap(NULL, 5000);
    assert_int_equal(n_maps, 0);
    assert_int_equal(kvx_secmem_map(0, &memory), KVX_INVALID);
    assert_int_equal(kvx_secmem_map(SIZE_MAX, &memory), KVX_INVALID);
}

static void secmem_is_locked_and_private(void **state)
{
    const char *flags[] = {" lo", " dd", " dc"}; /* locked; no dump, no copy */
    void *memory = NULL;
    int ended = 0, pipes[2];
    (void)state;
    assert_int_equal(kvx_secmem_map(100, &memory), KVX_OK);
    assert_true(has_flags(memory, flags + SANITIZED, 3 - SANITIZED));
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) /* write(2) says EFAULT for memory that is not there, without a signal */
        _exit(write(pipes[1], memory, 1) == -1 && errno == EFAULT ? 0 : 1);
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended));
    assert_int_equal(WEXITSTATUS(ended), 0);
    close(pipes[0]);
    close(pipes[1]);
    kvx_secmem_unmap(memory, 100);
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
        cmocka_unit_test_setup(secmem_is_wiped_and_checked, reset),
        cmocka_unit_test_setup(secmem_is_locked_and_private, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
