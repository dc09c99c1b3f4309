/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_BENCH_CRYPT_H
#define KVX_BENCH_CRYPT_H
/*
 * What the sub-bench `crypt` drives: the kernels on a GPU without the library around them, or OpenSSL on CPU threads.
 * Units are dealt with alone: no slots in host memory, no copies.
 */
#include "bench.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CRYPT_KEYS 8u
#define CRYPT_BLOCK_UNITS 16u /* units that share a key and, on the GPU, a pair */

typedef enum crypt_op { CRYPT_SEAL, CRYPT_OPEN, CRYPT_CTR, CRYPT_GHASH, CRYPT_N_OPS } crypt_op;

/* How the units of a scene lie in memory. */
typedef struct crypt_shape {
    uint64_t unit_bytes;
    uint64_t piece_bytes; /* a unit's bytes come from so large pieces; unit_bytes: contiguous */
    uint32_t n_units;     /* a multiple of CRYPT_BLOCK_UNITS */
} crypt_shape;

/* One measurement. */
typedef struct crypt_case {
    crypt_op op;
    uint32_t n_units;   /* a multiple of CRYPT_BLOCK_UNITS unless `few` */
    bool few;           /* a handful of units, each with a key of its own choice: how long from launch to end */
    uint32_t n_workers; /* multiprocessors or threads */
    uint32_t n_keys;    /* dealt out in turn: block i has key i % n_keys */
    uint32_t n_samples;
} crypt_case;

typedef struct crypt_scene crypt_scene;

typedef struct crypt_backend {
    const char *worker;                 /* what n_workers counts */
    uint32_t (*most_workers)(bench *b); /* 0, with a message, if that cannot be found out */
    bool (*has)(crypt_op op);
    bool (*open)(bench *b, const crypt_shape *shape, crypt_scene **scene);
    /* Measures, then checks what was computed; wrong bytes or tags are failed checks. `clock_hz`: the mean clock of the
     * workers while measuring, 0 where unknown. */
    bool (*run)(crypt_scene *scene, const crypt_case *c, bench_samples *seconds, double *clock_hz);
    void (*close)(crypt_scene *scene);
} crypt_backend;

extern const crypt_backend crypt_cpu;
#if KVX_WITH_CUDA
extern const crypt_backend crypt_gpu;
#endif

/* Key i, and the iv of unit i where the bench chooses ivs (number i of fixed field 0). */
void crypt_key(uint32_t index, uint8_t key[32]);
void crypt_iv(uint64_t number, uint8_t iv[12]);

/* GB/s at which the kernels seal units of that size in bursts of n_bytes, all multiprocessors busy: what a burst costs
 * a GPU. 0 after a failure. */
double crypt_seal_rate(bench *b, uint64_t unit_bytes, uint64_t n_bytes);

#ifdef __cplusplus
}
#endif
#endif
