/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_POOL_H
#define KVX_POOL_H
/**
 * @file kvx_pool.h
 * More about pools (kvx.h has the core): waiting for a fill in the background and holding it, what was got and what it
 * cost, and memory shared between processes. The conventions of kvx.h hold.
 */
#include "kvx.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Waits until all of the pool is usable. A driver that never answers is noticed by a pool filled in the background and
 * a timeout here.
 * @param timeout_ns  0: only ask; UINT64_MAX: for ever.
 * @retval KVX_OK all is there.  @retval KVX_TIMEOUT not yet.
 * @retval KVX_NO_MEMORY, KVX_UNSUPPORTED the fill stopped; the slots that are there stay usable.
 * Threads: any, also at the same time. */
KVX_API KVX_NODISCARD kvx_status kvx_pool_wait(kvx_pool *pool, uint64_t timeout_ns);

/**
 * Holds the fill: once this has returned KVX_OK nothing is pinned, registered or allocated through CUDA for the pool
 * until kvx_pool_resume(), so that graphs may be captured. Waits for the chunk that is being pinned. Calls nest.
 * Touching of memory goes on.
 * @retval KVX_TIMEOUT the chunk was not pinned in time; nothing is held.
 * Threads: any, also at the same time. */
KVX_API KVX_NODISCARD kvx_status kvx_pool_quiesce(kvx_pool *pool, uint64_t timeout_ns);

/** Ends one kvx_pool_quiesce(). KVX_INVALID if there is none.
 * Threads: any, also at the same time. */
KVX_API KVX_NODISCARD kvx_status kvx_pool_resume(kvx_pool *pool);

/** What was got, and what it cost. */
typedef struct kvx_pool_stats {
    size_t size;
    kvx_status fill;      /**< KVX_PENDING while filling, KVX_OK when all is there, else why the fill stopped */
    uint32_t pinned;      /**< nonzero: pinned, all that is there */
    uint32_t from_driver; /**< nonzero: registering was refused, CUDA allocated the memory */
    kvx_page_kind pages;  /**< smallest kind in use; of memory of the driver: KVX_PAGES_SMALL */
    int gpu_node;         /**< node of the GPU; -1: not known, or no GPU wanted */
    int node;             /**< node asked of the system; -1: none. Other than gpu_node: a mismatch */
    uint32_t n_threads;   /**< that filled */
    uint32_t n_chunks, n_chunks_ready;
    uint64_t bytes_asked; /**< slots times bytes, as configured */
    uint64_t bytes_held;  /**< mapped for it: rounded to slots, then to pages */
    uint64_t bytes_ready, bytes_pinned;
    uint64_t bytes_huge;     /**< on huge pages, as /proc/self/smaps says */
    uint64_t bytes_off_node; /**< on other nodes than `node`: an estimate from samples */
    uint64_t book_bytes;     /**< ordinary host memory for the books */
    uint64_t record_bytes;   /**< device memory that each context over the pool takes for headers and records */
    uint64_t slots_free, slots_used, slots_in_flight; /**< of the classes kept by the pool, of what is there */
    uint64_t first_ns;                                /**< from the call until the first chunk was usable */
    uint64_t touch_ns;                                /**< until the last page was touched */
    uint64_t ready_ns;                                /**< until all was usable */
    uint64_t pin_ns;                                  /**< spent pinning, all threads together */
    uint64_t lease_bytes;                             /**< of a shared pool: unit of leasing; else 0 */
    uint32_t leases, leases_held, leases_free;        /**< units there are, held through this object, free */
} kvx_pool_stats;

/** Fills `stats` (set stats->size first). Asks the kernel where pages lie: milliseconds for a large pool.
 * Threads: any, also at the same time. */
KVX_API KVX_NODISCARD kvx_status kvx_pool_stats_get(kvx_pool *pool, kvx_pool_stats *stats);

/**
 * Shares memory between processes of one node. The process that creates a pool with `shared_bytes` owns it; memory and
 * a table of leases lie in two memfds that nobody can shrink or grow and that have no name, so that nothing is left
 * when all processes are gone, however they ended. Pass the two descriptors to another process (SCM_RIGHTS, or
 * inherited), which joins with kvx_pool_join(). Only memory is shared: every process leases chunks of its own and keeps
 * its own slots, books, keys and records; blocks cannot be exchanged. They must trust each other as threads do: whoever
 * has the descriptors can write the table. What a process that ended had leased is taken back only once it has ended
 * with all its threads and closed the driver, and its pages are dropped, never reused. A process that is stopped keeps
 * its leases and holds up nobody. A child forked without exec keeps the parent's descriptors open: while it lives, so
 * does the memory, and so may the driver's side of a parent that was killed.
 * @param fds  set to two new descriptors (memory, leases), close-on-exec; the caller closes them.
 * @retval KVX_INVALID the pool is not shared.
 * Threads: any, also at the same time. */
KVX_API KVX_NODISCARD kvx_status kvx_pool_export(kvx_pool *pool, int fds[2]);

/**
 * Joins a shared pool: leases chunks for config->classes and makes a pool of them, to be used and destroyed like any
 * other; destroying it gives the leases back. The processes must see each other's process ids (one pid namespace).
 * Contexts of one process may join as well, each with classes of its own: then their records cover only what they hold.
 * @param config  as for kvx_pool_create(); chunk_bytes, shared_bytes and pages are the owner's.
 * @param fds     from kvx_pool_export(); not closed.
 * @retval KVX_AGAIN fewer leases are free than the classes need.
 * @retval KVX_INVALID not the descriptors of a pool, or of two.
 * @retval KVX_UNSUPPORTED the owner has ended, or is in another pid namespace.
 * Threads: any, also at the same time. */
KVX_API KVX_NODISCARD kvx_status kvx_pool_join(const kvx_pool_config *config, const int fds[2], kvx_pool **pool);

/** Takes back the leases of processes that have ended. kvx_pool_join() does so itself when leases are short.
 * @param n_leases  how many were taken back; may be NULL.
 * Threads: any, also at the same time. */
KVX_API KVX_NODISCARD kvx_status kvx_pool_reclaim(kvx_pool *pool, uint32_t *n_leases);

#ifdef __cplusplus
}
#endif
#endif
