/* SPDX-License-Identifier: Apache-2.0 */
/* Known-answer cases: what a vector file says (kat_read.c), and the check of one implementation against it
 * (kat_check.c). */
#ifndef KVX_TESTS_KAT_H
#define KVX_TESTS_KAT_H

#include <stddef.h>
#include <stdint.h>

#include "kat_gpu.h"

enum kat_skip {
    KAT_RUNS,
    KAT_SKIP_KEY_SIZE, /* not 256 bits */
    KAT_SKIP_IV_SIZE,  /* not 96 bits */
    KAT_SKIP_TAG_SIZE, /* more than 128 bits, or less than 32 */
    KAT_SKIP_VERDICT,  /* the file leaves the verdict open */
    KAT_N_SKIP
};

struct kat_bytes {
    uint8_t *data; /* NULL if absent; never NULL if present, even when empty */
    size_t bytes;
};

struct kat_case {
    unsigned long id; /* CAVP: the line of its Count; Wycheproof: tcId */
    struct kat_bytes key, iv, aad, plain, cipher, tag;
    int valid;
    enum kat_skip skip;
};

struct kat_file {
    struct kat_case *cases;
    size_t n_cases, capacity;
    char error[160]; /* why reading failed */
};

/* Reads a NIST CAVP .rsp file or, if the text begins with '{', a Wycheproof JSON file. Returns 1, or 0 with `error`
 * set. kat_free in both cases. */
int kat_read(const char *path, struct kat_file *file);
void kat_free(struct kat_file *file);

/* An implementation under test; `run` as kvx_kat_gpu: 1 run, 0 not present, -1 failure. */
struct kat_path {
    const char *name;
    int (*run)(struct kat_request *requests, size_t n_requests);
    const char *(*note)(void); /* may be NULL */
};

struct kat_count {
    size_t run, passed, wrong;
    size_t truncated; /* of those run: tags shorter than 128 bits */
    int status;       /* as returned by run */
};

/* Checks all cases that run, prints each wrong one. Returns 0 only if memory is short. */
int kat_check(const char *name, const struct kat_file *file, const struct kat_path *path, struct kat_count *count);

extern const struct kat_path kat_portable, kat_openssl;

#endif
