/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of memory for secrets share: mmap, munmap, mlock and madvise wrapped at link time so that a call can be
 * made to fail, maps that are still there counted, and kernels without memfd_secret. */
#ifndef KVX_TESTS_FAKE_MEMORY_H
#define KVX_TESTS_FAKE_MEMORY_H

typedef struct fake_memory {
    const char *fail;     /* name of the call that fails, of these or of a test's own wraps; "": none */
    unsigned fail_after;  /* calls of that name that still succeed */
    int fail_once;        /* what follows the call that fails succeeds */
    int n_maps;           /* made and not unmapped since the reset */
    int no_secret_memory; /* memfd_secret answers ENOSYS */
} fake_memory;

extern fake_memory fake;

/* Nonzero if the call of this name is to fail now. */
int fake_fails(const char *name);

/* Nothing fails, nothing is counted, and the platform is the real one but for memfd_secret. */
void fake_memory_reset(void);

#endif
