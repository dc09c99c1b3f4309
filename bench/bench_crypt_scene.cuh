/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels need around them, made by hand: tables as the engine would fill them, for one layout of 16 units a
 * block (rates) and one of a single unit a block (few units), both over the same memory. Lanes follow one another;
 * piece p of unit s of block b is the b-th of lane s * n_pieces + p. */
#ifndef KVX_BENCH_CRYPT_SCENE_CUH
#define KVX_BENCH_CRYPT_SCENE_CUH

#include <vector>

#include <cuda_runtime.h>

#include "bench_crypt.h"
#include "kernels/launch.h"

enum { CRYPT_LAYOUT_RATES, CRYPT_LAYOUT_FEW, CRYPT_N_LAYOUTS };

struct crypt_stamp {
    unsigned long long clock, nanoseconds;
};

struct crypt_scene {
    bench *b;
    crypt_shape shape;
    uint32_t n_pieces; /* of a unit */
    uint32_t n_blocks;
    uint8_t *dev_plain, *dev_sealed;
    crypt_stamp *dev_stamps; /* before and after, for CRYPT_SMS_MAX multiprocessors each */
    kvx_dev dev;
    kvx_dev_words words; /* what they were at the start */
    uint64_t *results;   /* in host memory */
    uint64_t ticket, store_id;
    std::vector<void *> memory; /* on the device, to be freed */
};

#define CRYPT_SMS_MAX 512u

bool crypt_cuda_ok(int error, const char *doing);

/* All memory and tables; keys installed. False: some may have been made, to be freed by crypt_scene_free(). */
bool crypt_scene_make(crypt_scene *s);
void crypt_scene_free(crypt_scene *s);

/* The next launch's work on n blocks of a layout, and its pairs with n_keys keys in turn. */
kvx_work crypt_work_next(crypt_scene *s, uint32_t layout, uint32_t n);
std::vector<kvx_work_pair> crypt_pairs(uint32_t layout, uint32_t n, uint32_t n_keys);

/* bench_crypt_halves.cu: one launch of the cipher or the hash alone; what it left, against OpenSSL. */
bool crypt_half_launch(crypt_scene *s, const crypt_case *c);
bool crypt_half_check(crypt_scene *s, const crypt_case *c);

#endif
