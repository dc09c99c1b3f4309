/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_SRC_TIER_GHOST_H
#define KVX_SRC_TIER_GHOST_H
/*
 * A memory of blocks that the tier does not hold: the last n fingerprints (32 bits) that were added, each once, with
 * one byte of notes. Two blocks with one fingerprint share their notes: that costs a wrong guess, never a wrong block.
 */
#include <stdint.h>

#define KVX_TIER_GHOST_USES 0x7fu    /* notes: how often it was used (write-through-selective) */
#define KVX_TIER_GHOST_EVICTED 0x80u /* notes: evicted, and not stored again since (AGED) */

typedef struct kvx_tier_ghost {
    uint32_t *ring;         /* fingerprints in the order of their coming; 0: none */
    uint32_t *fingerprints; /* a hash table of them: Robin Hood, as in tier_index.c */
    uint8_t *notes;         /* beside it */
    uint32_t n, n_buckets, oldest;
} kvx_tier_ghost;

/* n 0: remembers nothing. Nonzero on success. */
int kvx_tier_ghost_create(kvx_tier_ghost *ghost, uint32_t n, uint64_t *memory_bytes);
void kvx_tier_ghost_destroy(kvx_tier_ghost *ghost);

/* The notes of a fingerprint, NULL if it is not remembered. Valid until the next add. */
uint8_t *kvx_tier_ghost_find(const kvx_tier_ghost *ghost, uint32_t fingerprint);
/* The same, but adds it without notes, which lets the oldest go. NULL only if nothing can be remembered. */
uint8_t *kvx_tier_ghost_add(kvx_tier_ghost *ghost, uint32_t fingerprint);

#endif
