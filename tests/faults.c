/* SPDX-License-Identifier: Apache-2.0 */
/* The wrapped functions of libc, pthreads and OpenSSL (WRAPS of test_faults.c). */
#include "faults.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/types.h>

#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/rand.h>

static _Atomic(const fault *) armed;
static atomic_uint n_calls, failing_call;

void fault_arm(const fault *f, uint32_t k)
{
    atomic_store(&n_calls, 0);
    atomic_store(&failing_call, k);
    atomic_store(&armed, f);
}

uint32_t fault_calls(void)
{
    return atomic_load(&n_calls);
}

int fault_disarm(void)
{
    atomic_store(&armed, NULL);
    return atomic_load(&n_calls) >= atomic_load(&failing_call);
}

int fault_due(const fault *f)
{
    if (atomic_load(&armed) != f || atomic_fetch_add(&n_calls, 1) + 1 != atomic_load(&failing_call))
        return 0;
    errno = ENOMEM;
    return 1;
}

/* clang-format off */
FAULT(void *, malloc, (size_t n), (n), NULL, 1)
FAULT(void *, calloc, (size_t n, size_t bytes), (n, bytes), NULL, 1)
FAULT(void *, realloc, (void *p, size_t n), (p, n), NULL, 1)
FAULT(void *, aligned_alloc, (size_t align, size_t n), (align, n), NULL, 1)
FAULT(int, posix_memalign, (void **p, size_t align, size_t n), (p, align, n), ENOMEM, 1)
FAULT(void *, mmap, (void *at, size_t n, int prot, int flags, int fd, off_t offset), (at, n, prot, flags, fd, offset),
      MAP_FAILED, 1)
FAULT(int, mlock, (const void *at, size_t n), (at, n), -1, 1)
FAULT(int, madvise, (void *at, size_t n, int advice), (at, n, advice), -1, 1)
FAULT(ssize_t, getrandom, (void *p, size_t n, unsigned flags), (p, n, flags), -1, 0)
FAULT(int, pthread_create, (pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *), void *arg),
      (thread, attr, fn, arg), EAGAIN, 1)
FAULT(int, RAND_priv_bytes_ex, (OSSL_LIB_CTX *lib, unsigned char *p, size_t n, unsigned strength), (lib, p, n, strength), 0,
      0)
FAULT(OSSL_LIB_CTX *, OSSL_LIB_CTX_new, (void), (), NULL, 1)
FAULT(EVP_KDF *, EVP_KDF_fetch, (OSSL_LIB_CTX *lib, const char *name, const char *properties), (lib, name, properties),
      NULL, 1)
FAULT(EVP_KDF_CTX *, EVP_KDF_CTX_new, (EVP_KDF *kdf), (kdf), NULL, 1)
FAULT(int, EVP_KDF_derive, (EVP_KDF_CTX *kdf, unsigned char *key, size_t n, const OSSL_PARAM params[]),
      (kdf, key, n, params), 0, 0)
FAULT(EVP_CIPHER_CTX *, EVP_CIPHER_CTX_new, (void), (), NULL, 1)
FAULT(int, EVP_CipherInit_ex,
      (EVP_CIPHER_CTX *c, const EVP_CIPHER *type, ENGINE *e, const unsigned char *key, const unsigned char *iv, int enc),
      (c, type, e, key, iv, enc), 0, 0)
FAULT(int, EVP_CipherUpdate, (EVP_CIPHER_CTX *c, unsigned char *out, int *n, const unsigned char *in, int bytes),
      (c, out, n, in, bytes), 0, 0)
FAULT(int, EVP_CIPHER_CTX_ctrl, (EVP_CIPHER_CTX *c, int type, int arg, void *p), (c, type, arg, p), 0, 0)
/* clang-format on */

static const fault *const faults_cpu[] = {
    &fault_malloc,
    &fault_calloc,
    &fault_realloc,
    &fault_aligned_alloc,
    &fault_posix_memalign,
    &fault_mmap,
    &fault_mlock,
    &fault_madvise,
    &fault_getrandom,
    &fault_pthread_create,
    &fault_RAND_priv_bytes_ex,
    &fault_OSSL_LIB_CTX_new,
    &fault_EVP_KDF_fetch,
    &fault_EVP_KDF_CTX_new,
    &fault_EVP_KDF_derive,
    &fault_EVP_CIPHER_CTX_new,
    &fault_EVP_CipherInit_ex,
    &fault_EVP_CipherUpdate,
    &fault_EVP_CIPHER_CTX_ctrl,
    NULL,
};

const fault *const *faults_of(const device *dev)
{
#if KVX_WITH_CUDA
    if (dev->engine == KVX_ENGINE_CUDA)
        return faults_cuda;
#endif
    (void)dev;
    return faults_cpu;
}
