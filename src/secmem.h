/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_SRC_SECMEM_H
#define KVX_SRC_SECMEM_H
/*
 * Memory for secrets, in whole pages of its own, zeroed, locked, left out of core dumps and of forked children; wiped
 * when freed. There are two rungs: pages that the kernel itself cannot reach through its map of memory (memfd_secret),
 * and locked pages where these are not to be had.
 */
#include "kvx.h"

enum kvx_secmem_rung { KVX_SECMEM_NONE, KVX_SECMEM_LOCKED, KVX_SECMEM_SECRET };

/* KVX_NO_MEMORY names RLIMIT_MEMLOCK. *rung says what was got; NULL: nobody asks. */
kvx_status kvx_secmem_map(size_t bytes, void **memory, enum kvx_secmem_rung *rung);
/* The lower rung at once: for much memory that holds no keys (records), which would take the kernel's large pages
 * apart. */
kvx_status kvx_secmem_map_locked(size_t bytes, void **memory);
void kvx_secmem_unmap(void *memory, size_t bytes); /* NULL is nothing */
void kvx_secmem_wipe(void *memory, size_t bytes);  /* not optimised away */

#endif
