/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_SRC_SECMEM_H
#define KVX_SRC_SECMEM_H
#include "kvx.h"

/* Locked, undumpable, unforked memory (whole pages), zeroed; wiped when freed. KVX_NO_MEMORY names RLIMIT_MEMLOCK. */
kvx_status kvx_secmem_map(size_t bytes, void **memory);
void kvx_secmem_unmap(void *memory, size_t bytes); /* NULL is nothing */
void kvx_secmem_wipe(void *memory, size_t bytes);  /* not optimised away */

#endif
