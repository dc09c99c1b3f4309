/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_MEASURE_H
#define KVX_MEASURE_H
/*
 * The two halves of the unit kernels alone, for measurement: counter mode without a tag, and GHASH without the cipher.
 * The same device code as in seal.cu and open.cu, over contiguous buffers instead of slots and tensors. Not in the
 * library's interface; programs in bench/ and tests link the kernels' objects.
 */
#include "launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Device pointers, 16-byte aligned. Unit i is bytes [i * unit_bytes, (i + 1) * unit_bytes) of each buffer. */
typedef struct kvx_measure {
    kvx_key_slot *keys;        /* as filled by kvx_launch_key_install */
    const uint32_t *units_key; /* n_units key slots, one for each unit; NULL: slot 0 for all */
    const uint8_t *from;
    uint8_t *to;           /* CTR: n_units * unit_bytes; GHASH: 16 bytes a unit, the hash with the length block */
    uint64_t first_number; /* of unit 0's iv: fixed field 0, then first_number + i */
    uint32_t unit_bytes;   /* a multiple of 32, at most KVX_UNIT_BYTES_LIMIT */
    uint32_t n_units;
    uint32_t n_sms;   /* at most so many CTAs, one to an SM */
    uint32_t variant; /* as chosen by kvx_launch_prepare, which must have been called */
} kvx_measure;

/* Launch on `stream`; return the CUDA error, 0: launched. Units whose key is dead are left alone. */
int kvx_measure_ctr(const kvx_measure *measure, void *stream);
int kvx_measure_ghash(const kvx_measure *measure, void *stream);

#ifdef __cplusplus
}
#endif
#endif
