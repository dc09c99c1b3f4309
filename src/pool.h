/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_SRC_POOL_H
#define KVX_SRC_POOL_H
/*
 * Slots over host memory. All allocator state is private; the pool memory holds sealed bytes only. Slots of all classes
 * have one flat numbering. The pool*.c files keep the books and know no CUDA; hostmem*.c bring the memory.
 */
#include "../kernels/format.h"
#include "hostmem.h"

/* What an engine needs to know of a pool. Constant for the pool's life, also while chunks are still being filled: no
 * slot of those is handed out or pinned. Slot s of class c lies in chunk
 * c.first_chunk + k / c.slots_per_chunk at (k % c.slots_per_chunk) * c.slot_bytes, with k = s - c.first_slot. */
typedef struct kvx_pool_view {
    const kvx_dev_class *classes;
    const kvx_hostmem_chunk *chunks;
    uint32_t n_classes, n_chunks, n_slots;
    uint32_t pinned;
    uint64_t n_records, bytes;
} kvx_pool_view;

const kvx_pool_view *kvx_pool_view_of(const kvx_pool *pool);
/* KVX_OK, or KVX_FORKED with the note set. */
kvx_status kvx_pool_alive(const kvx_pool *pool);

/* Contexts announce themselves; each gets a number of its own, never reused. */
uint32_t kvx_pool_attach(kvx_pool *pool);
void kvx_pool_detach(kvx_pool *pool);

/* Pins n slots for a batch of context `owner`, all or none, in one critical section: checks each handle again. STORE
 * (writing != 0): a handle that is not current fails with KVX_STALE and nothing is pinned; the context becomes the
 * slots' owner; KVX_AGAIN while another context that owns a slot has it pinned. KVX_AGAIN also for a slot that is not
 * there yet, and why the fill stopped if it never will be. RESTORE: `refusals[i]` is set to
 * KVX_VERDICT_STALE for a handle that is not current or a slot that another context wrote last, else to 0; every slot
 * in range is pinned. KVX_INVALID: out of range. */
typedef struct kvx_pool_pin {
    uint32_t owner, writing, n;
    const kvx_slot *slots; /* n handles, `stride` bytes apart */
    size_t stride;
    uint32_t *flat;    /* n, out */
    uint8_t *refusals; /* n, out; may be NULL when writing */
} kvx_pool_pin;
kvx_status kvx_pool_pin_slots(kvx_pool *pool, const kvx_pool_pin *pin);
/* Undoes a pin whose batch was refused: pins and owners are as before. */
void kvx_pool_pin_undo(kvx_pool *pool, const kvx_pool_pin *pin);
/* Ends the pins; slots given back meanwhile become free. */
void kvx_pool_unpin(kvx_pool *pool, uint32_t n, const uint32_t *flat);

/* Free, used and in flight (pinned), of the classes that the pool keeps: their sum is constant. */
void kvx_pool_counts(kvx_pool *pool, uint64_t *n_free, uint64_t *n_used, uint64_t *n_in_flight);

#endif
