/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_SRC_HOSTMEM_H
#define KVX_SRC_HOSTMEM_H
/*
 * The memory of a pool, as the pool sees it: a set of chunks that is reserved at once, filled by threads (touched, then
 * pinned, chunk by chunk) and taken down by threads. Behind this door: limits (hostmem_limits.c), page kinds
 * (hostmem_map.c), nodes (hostmem_numa.c), the driver (hostmem_cuda.c), the fill (hostmem_fill.c).
 */
#include "kvx_pool.h"

/* A piece of host memory, mapped and pinned on its own. */
typedef struct kvx_hostmem_chunk {
    uint8_t *host; /* as the CPU sees it */
    uint8_t *dev;  /* as a CUDA device sees it; NULL: not mapped for a device */
    uint64_t bytes;
    uint64_t file_offset; /* where in the shared file, if there is one */
} kvx_hostmem_chunk;

typedef struct kvx_hostmem kvx_hostmem;

typedef struct kvx_hostmem_config {
    kvx_engine engine; /* AUTO, CUDA, CPU: as in kvx_pool_config */
    int numa_node;     /* -1: the GPU's node where known, else the system's choice */
    uint32_t allow_pageable;
    uint32_t background;
    uint32_t n_threads; /* 0: by size and processors */
    kvx_page_kind pages;
    int file;                                    /* memfd to map; -1: private anonymous memory */
    void (*online)(void *owner, uint32_t chunk); /* the chunk is usable from now on; no lock is held */
    void *owner;
    kvx_pool_progress_fn progress; /* may be NULL */
    void *progress_argument;
} kvx_hostmem_config;

/* KVX_OK, or KVX_NO_MEMORY with the limit and the fix in the note if this machine or its cgroup cannot hold so much, so
 * that touching it would kill us. */
kvx_status kvx_hostmem_fits(uint64_t bytes, int hugetlb);
/* The largest kind up to `wanted` (AUTO: any) that the system could give for `bytes`. */
kvx_page_kind kvx_hostmem_choose_pages(kvx_page_kind wanted, uint64_t bytes, int shared);
/* Free hugetlb pages of the kind, in bytes; 0 for other kinds. */
uint64_t kvx_hostmem_huge_free(kvx_page_kind pages);
/* Nonzero if a CUDA device could be used; else *why names the reason (static or thread-local text). */
int kvx_hostmem_gpu_usable(const char **why);

/* Reserves and fills n chunks whose `bytes` (and `file_offset`) are set; sets `host` and `dev`, for good once this
 * returns. Returns when all chunks are usable, or, with config->background, when the first is and the addresses of all
 * are known. `chunks` must outlive the object. On failure nothing is left. */
kvx_status kvx_hostmem_create(const kvx_hostmem_config *config, kvx_hostmem_chunk *chunks, uint32_t n,
                              kvx_hostmem **memory);
/* Stops the fill, unpins and unmaps everything, by several threads. */
void kvx_hostmem_destroy(kvx_hostmem *memory);

/* KVX_OK: all chunks are usable. KVX_TIMEOUT. Else why the fill stopped, with the note set. */
kvx_status kvx_hostmem_wait(kvx_hostmem *memory, uint64_t timeout_ns);
/* The same without waiting: KVX_PENDING, KVX_OK, or why it stopped (without a note). */
kvx_status kvx_hostmem_state(kvx_hostmem *memory);
/* Between these two the fill makes no CUDA call. They nest. KVX_TIMEOUT: nothing is held. */
kvx_status kvx_hostmem_quiesce(kvx_hostmem *memory, uint64_t timeout_ns);
kvx_status kvx_hostmem_resume(kvx_hostmem *memory);

int kvx_hostmem_pinned(const kvx_hostmem *memory);
/* Fills in all that is about memory. */
void kvx_hostmem_report(kvx_hostmem *memory, kvx_pool_stats *stats);

#endif
