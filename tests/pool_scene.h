/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_TESTS_POOL_SCENE_H
#define KVX_TESTS_POOL_SCENE_H
/* What the tests of a pool's memory share: 8 chunks of 2 MiB, 6 of a class kept by the pool, then 2 of one kept by the
 * caller. */
#include "pool_fake.h"

#include "pool.h"

#define MIB (1ull << 20)
#define CHUNK (2 * MIB)
#define N_CHUNKS 8u
#define SLOT 65536u
#define PER_CHUNK ((uint32_t)(CHUNK / SLOT))
#define SECONDS 1000000000ull

int fill_set_up(void **state);
kvx_pool_config fill_config(void); /* three threads */
kvx_pool *fill_create(const kvx_pool_config *config);
/* Ends in `wanted` with both words in the note, and nothing left. */
void fill_refuse(const kvx_pool_config *config, kvx_status wanted, const char *word, const char *other);
void fill_destroy(kvx_pool *pool); /* expects that nothing is left */
kvx_pool_stats fill_stats(kvx_pool *pool);
void fill_expect_zero(kvx_pool *pool); /* every page */
kvx_status fill_pin_one(kvx_pool *pool, kvx_slot slot, int writing);
void fill_nap(void); /* a millisecond */

#endif
