/* SPDX-License-Identifier: Apache-2.0 */
/* One GCM operation as plain data, and the way to run many of them on the GPU. */
#ifndef KVX_TESTS_KAT_GPU_H
#define KVX_TESTS_KAT_GPU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kat_request {
    const uint8_t *key; /* 32 bytes */
    const uint8_t *iv;  /* 12 bytes */
    const uint8_t *aad;
    const uint8_t *in;
    uint8_t *out;
    size_t aad_bytes, bytes;
    uint8_t tag[16]; /* set by sealing, checked by opening */
    int opens;       /* 0 seals, 1 opens */
    int result;      /* 1 done, 0 tag refused, -1 failure */
};

/* Runs kernels/gcm.h on the first GPU, one thread per request. Returns 1, 0 if there is no GPU (nothing run), or -1 if
 * the GPU fails, with the reason in kvx_kat_gpu_note. */
int kvx_kat_gpu(struct kat_request *requests, size_t n_requests);

/* The name of the GPU used last, or the reason for 0 or -1. */
const char *kvx_kat_gpu_note(void);

#ifdef __cplusplus
}
#endif

#endif
