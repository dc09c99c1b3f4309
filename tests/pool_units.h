/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_TESTS_POOL_UNITS_H
#define KVX_TESTS_POOL_UNITS_H
/* Small pools in shared memory: units of 2 MiB, one class of 64 KiB slots. */
#include "cmocka_door.h"
#include "kvx_pool.h"

#define UNIT (2ull << 20)
#define N_UNITS 8u
#define SLOT 65536u
#define PER_UNIT ((uint32_t)(UNIT / SLOT))

/* A pool that holds n_units of shared_units (0: not shared). */
kvx_status units_create(uint32_t n_units, uint64_t shared_units, kvx_pool **pool);
/* A shared pool with two of N_UNITS units leased, and its descriptors. */
kvx_pool *units_own(int fds[2]);
void units_disown(kvx_pool *pool, const int fds[2]);
/* *pool is NULL unless it worked. */
kvx_status units_join(const int fds[2], uint32_t n_units, kvx_pool **pool);
/* Joining ends with this status, and a note that says `word`. */
void units_refuse(const int fds[2], kvx_status wanted, const char *word);

#endif
