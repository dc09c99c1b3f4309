/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_LAUNCH_H
#define KVX_LAUNCH_H
/*
 * The kernels as the CUDA engine sees them. Each function checks nothing but what only the device can know, launches on
 * `stream` and returns the CUDA error (0: launched). All pointers in kvx_dev are device pointers. Nothing here
 * allocates or synchronises except kvx_launch_prepare.
 */
#include "format.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvx_key_slot kvx_key_slot; /* kernels/key_slot.cuh; the engine knows its size only */

#define KVX_PAIRS_PER_LAUNCH 2000u /* 16 bytes each, in kernel parameters (32,764 bytes on sm_70 and later) */
#define KVX_PAIRS_PER_SMALL_LAUNCH 64u

/* Where everything is. Passed by value to each kernel. */
typedef struct kvx_dev {
    kvx_header *headers;          /* one per slot, flat numbering */
    kvx_record *records;          /* class.first_record + slot in class * class.max_units + unit */
    const kvx_dev_class *classes; /* n_classes */
    uint8_t *const *chunks; /* n_chunks device addresses of the mapped pool, for direct stores; NULL entries: none */
    const kvx_dev_layout *layouts; /* KVX_LAYOUTS_LIMIT */
    const uint32_t *tenant_keys;   /* current key slot of each tenant; read when the kernel runs */
    kvx_key_slot *keys;
    kvx_dev_words *words;
    kvx_entry *entries; /* n_entries, indexed by (batch's first entry + pair) % n_entries */
    uint64_t *results;  /* n_entries + max_tickets words, host memory mapped for the device */
    uint32_t n_slots, n_classes, n_tenants, n_keys, n_entries, n_sms;
    uint32_t variant; /* as chosen by kvx_launch_prepare; 0: ask the device at each launch */
} kvx_dev;

/* One launch: a run of pairs of one batch and a run of their segments. */
typedef struct kvx_work {
    uint64_t ticket;
    uint64_t store_id;
    uint8_t *staged; /* ring chunk, in GPU memory, with the sealed bytes; NULL: straight to the slots (store only) */
    uint64_t staged_stride; /* bytes from one pair's first unit in the chunk to the next pair's */
    uint32_t n_pairs;
    uint32_t first_index; /* of pairs[0] in the batch */
    uint32_t first_entry; /* of pairs[0] in the entries */
    uint32_t first_segment,
        n_segments;           /* segments [first, first + n) of every pair; those past a layout's end do not exist */
    uint32_t commit;          /* seal: this launch ends the block; commit here as its last unit ends (direct stores) */
    uint32_t released_result; /* seal, nonzero: this launch ends the reading of the batch's source; its last CTA writes
                                 the result word (KVX_RESULT_RELEASED, OK) to results[released_result] */
} kvx_work;

/* Sets attributes of all kernels for the current device and picks the best variant that it allows. `variant`:
 * KVX_VARIANT_AUTO, or one to force (tests). Blocking. Returns 0, or a CUDA error. */
enum {
    KVX_VARIANT_AUTO = 0,
    KVX_VARIANT_TENSOR = 1, /* sm_90a: GHASH on tensor cores */
    KVX_VARIANT_192K = 2,
    KVX_VARIANT_160K = 3,
    KVX_VARIANT_96K = 4
};
int kvx_launch_prepare(int variant, int *chosen);

size_t kvx_key_slot_bytes(void);

/* Expands `dev_key` (32 bytes, device) into key slot `index`: round keys, H, its powers and tables, generation, state
 * live. Branch-free and table-free. The caller wipes dev_key. */
int kvx_launch_key_install(kvx_key_slot *keys, uint32_t index, uint32_t generation, const uint8_t *dev_key,
                           void *stream);

/* Overwrites n key slots with `fill` words (random from the caller, then 0). */
int kvx_launch_key_wipe(kvx_key_slot *keys, uint32_t first, uint32_t n, uint64_t fill, void *stream);

/* Seals: claims each slot, draws numbers, gathers, encrypts, writes sealed bytes to the chunk or the slots, writes the
 * records, notes verdicts in entries. With work.commit also commits and writes the result words. */
int kvx_launch_seal(const kvx_dev *dev, const kvx_work *work, const kvx_work_pair *pairs, void *stream);

/* Commits blocks whose bytes were copied to the slots, and writes their result words. */
int kvx_launch_commit(const kvx_dev *dev, const kvx_work *work, const kvx_work_pair *pairs, void *stream);

/* Opens: for each unit checks header and record, verifies the tag over the chunk, only then decrypts into the lanes;
 * zeroes the destination otherwise. The unit that completes a block (all segments of its layout, over all launches of
 * the batch) writes its result word. */
int kvx_launch_open(const kvx_dev *dev, const kvx_work *work, const kvx_work_pair *pairs, void *stream);

/* Makes slots EMPTY and writes the result words. */
int kvx_launch_discard(const kvx_dev *dev, const kvx_work *work, const kvx_work_pair *pairs, void *stream);

/* Sets dev_flags[first .. first + n) to value, after what the stream did before is visible to the whole device. */
int kvx_launch_flags(uint32_t *dev_flags, uint32_t first, uint32_t n, uint32_t value, void *stream);

#ifdef __cplusplus
}
#endif
#endif
