/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_TESTS_SCENE_H
#define KVX_TESTS_SCENE_H
/*
 * Six stored blocks of three segments whose bytes in the pool the test changes as a hostile host would. `bad` says
 * which segments must be found; expect_found opens all blocks over somebody's stale content and compares every byte.
 */
#include "support.h"

#define N_BLOCKS 6
#define N_SEGMENTS 3
#define ALL_BAD ((1u << N_SEGMENTS) - 1)
#define OLD_SEED 1
#define NEW_SEED 51
#define STALE_SEED 901 /* what lies in the destination: somebody else's block */

extern const shape victim;

/* Blocks 0 .. 5 in slots 0 .. 5, to be opened into other tensors. */
typedef struct scene {
    rig r;
    tensors dest;
    kvx_layout *into;
    kvx_slot slots[N_BLOCKS];
    kvx_pair store[N_BLOCKS], open[N_BLOCKS];
    uint8_t *slot[N_BLOCKS], *saved[N_BLOCKS];
    uint32_t bad[N_BLOCKS]; /* segments expected to fail, a bit each */
    uint64_t seed[N_BLOCKS];
    size_t sealed;
} scene;

/* MISS policy with a budget that no test uses up, three tenants. */
void scene_open(scene *s, const device *dev);
void scene_open_with(scene *s, const device *dev, const rig_options *options);
void scene_close(scene *s);

/* Stores blocks of these seeds over what the slots hold. */
void store_seeds(scene *s, uint64_t first_seed);
/* Keeps the slots' bytes, and brings them back (then nothing is bad). */
void save_all(scene *s);
void put_back(scene *s);

/* Sets the mirror of `dest` to what a restore must leave: plaintext where the tag is right, zeros where not. */
void expect_content(scene *s);
/* Restores and checks: blocks with a bad segment have `verdict`, the others KVX_OK, every byte is as it must be. */
void expect_found(scene *s, kvx_status verdict);
/* The same for KVX_TAMPERED; then undoes the damage, after which all blocks open again and nothing has latched. */
void expect_tampered(scene *s);

/* Where a unit lies in its slot, and its bytes with padding. */
size_t unit_at(uint32_t segment);
size_t unit_padded(uint32_t segment);

#endif
