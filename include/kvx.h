/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_H
#define KVX_H
/**
 * @file kvx.h
 * kvx keeps KV-cache blocks in host memory that is not trusted. kvx_store() seals blocks with AES-256-GCM on the GPU
 * before a byte leaves it; kvx_restore() brings them back into GPU memory, checks every tag there, and only then writes
 * plaintext into the KV cache. Nothing the host does to the pool is believed.
 *
 *     kvx_pool_create -> kvx_ctx_create -> kvx_layout_create -> kvx_pool_take -> kvx_store ... kvx_restore -> kvx_poll
 *
 * Conventions, said once:
 *  - Arguments: the object first, then inputs (a count before its array), then options, then outputs.
 *  - Status: every fallible function returns a kvx_status. Outputs are written only with KVX_OK unless said otherwise.
 * A call that fails changed nothing; kvx_last_error() says why in words. KVX_AGAIN means that a bounded resource is
 *    short: nothing was taken, call again after collecting tickets.
 *  - Structs that may grow begin with their own size: set it with the KVX_*_INIT macro and then the fields you need. A
 *    zero field means the default.
 *  - Memory: `dev_` pointers are addresses that the engine's device reads (GPU memory for the CUDA engine, ordinary
 *    memory for the CPU engine). All other pointers are host pointers, used only during the call unless said otherwise.
 *  - Streams and events are CUDA's (cudaStream_t, cudaEvent_t) with the CUDA engine and those of kvx_cpu.h with the CPU
 *    engine. kvx_store() and kvx_restore() are asynchronous and stream-ordered: they begin after the work already in
 *    `stream`, and work put into `stream` afterwards comes after the source was read (store) or the data is in place
 *    (restore). The host is never synchronised by them. One thing a restore does not wait for `stream` with: sealed
 * bytes are copied from the slots to the GPU as soon as earlier calls of the context and `wait_event` allow, for only
 * what is opened touches the caller's memory. Whoever has work in a stream that writes to the slots' bytes themselves
 *    (see kvx_pool_slot_bytes()) names it by `wait_event`, or restores when it has ended.
 *  - Calls of one context that name the same slot take effect in the order in which the calls were made.
 *  - Threads: every function may be called from any thread; functions on one object may run at once, except that create
 *    and destroy need the object to themselves. Nothing here calls back into the caller, except
 *    kvx_pool_config.progress.
 *  - fork(): a child process may not use the parent's objects; its calls return KVX_FORKED.
 *  - kvx never prints, never exits, and reads no environment variable.
 */
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVX_VERSION_MAJOR 0
#define KVX_VERSION_MINOR 1
#define KVX_VERSION_PATCH 0

#if defined(__GNUC__)
#define KVX_API __attribute__((visibility("default")))
#define KVX_NODISCARD __attribute__((warn_unused_result))
#else
#define KVX_API
#define KVX_NODISCARD
#endif

/** Outcome of a call, or verdict on one block. Grouped by how much is affected. */
typedef enum kvx_status {
    KVX_OK = 0,
    /* not yet */
    KVX_PENDING = 1, /**< the ticket's work has not ended */
    KVX_AGAIN = 2,   /**< a bounded resource (tickets, result entries, slots) is short; nothing was taken */
    KVX_TIMEOUT = 3, /**< the time was up; the work goes on */
    /* one call */
    KVX_INVALID = 10,     /**< an argument is wrong; nothing was done */
    KVX_UNSUPPORTED = 11, /**< not available here (engine, driver, stream that is being captured) */
    KVX_NO_MEMORY = 12,   /**< memory could not be had, pinned, locked or registered */
    KVX_UNTRUSTED = 14,   /**< the policy does not accept this platform (kvx_keys.h) */
    KVX_UNKNOWN = 13,     /**< no such ticket: never issued, or so old that its place was reused */
    /* one block: verdicts, read with kvx_poll(); none of these but KVX_TAMPERED can latch */
    KVX_MISS = 20,       /**< the slot holds no block (never stored, discarded, or its store did not complete) */
    KVX_BUSY = 21,       /**< a store to the slot is under way or ended half-way */
    KVX_STALE = 22,      /**< the handle is older (or newer) than what the slot holds */
    KVX_REFUSED = 23,    /**< the slot holds a block of another tenant or layout geometry; store: tenant erased */
    KVX_TAMPERED = 24,   /**< a tag did not match: the host changed, swapped, replayed or zeroed the block */
    KVX_SUPERSEDED = 25, /**< a newer store or a discard took the slot before this one was complete */
    KVX_EXHAUSTED = 26,  /**< the key's or the nonce counter's budget is used up; nothing was sealed */
    /* one context: it completes what is in flight and refuses the rest */
    KVX_LATCHED = 30,     /**< tampering was detected earlier in this context (fail-stop) */
    KVX_DEVICE_LOST = 31, /**< the GPU reported an error that ends the CUDA context */
    KVX_FORKED = 32,      /**< the object belongs to the parent process, or this process is a copy of another */
    KVX_INTERNAL = 33,    /**< a library beneath kvx failed; see kvx_last_error() */
} kvx_status;

/** English text of a status, static storage. Never NULL, also for unknown values.
 * Threads: any, also at the same time. */
KVX_API const char *kvx_status_text(kvx_status status);

/** What the last failed call on this thread found, in one line with a hint at the remedy. Thread-local storage, valid
 *  until the next failing call of this thread; "" if there was none. Never holds secrets.
 * Threads: any, also at the same time. */
KVX_API const char *kvx_last_error(void);

/** Version of the library at run time, KVX_VERSION_MAJOR << 16 | MINOR << 8 | PATCH.
 * Threads: any, also at the same time. */
KVX_API uint32_t kvx_version(void);

typedef struct kvx_pool kvx_pool;
typedef struct kvx_ctx kvx_ctx;
typedef struct kvx_layout kvx_layout;
typedef struct CUstream_st *kvx_stream; /**< cudaStream_t, or a queue of kvx_cpu.h; NULL: the default stream */
typedef struct CUevent_st *kvx_event;   /**< cudaEvent_t, or an event of kvx_cpu.h; NULL: none */

/** Which engine does the work. */
typedef enum kvx_engine {
    KVX_ENGINE_AUTO = 0, /**< CUDA where there is a usable GPU, else the CPU; kvx_stats_get() says which */
    KVX_ENGINE_CUDA = 1,
    KVX_ENGINE_CPU =
        2, /**< OpenSSL on the CPU: the same semantics anywhere; sees plaintext, so only for trusted hosts */
} kvx_engine;

/* ------------------------------------------------------------------------------------------------ pool and slots */

#define KVX_CLASSES_MAX 16             /**< slot classes per pool */
#define KVX_SLOT_BYTES_MAX (64u << 20) /**< largest slot */
#define KVX_SLOTS_MAX 0x7fffffffu      /**< slots per pool, all classes together */
#define KVX_UNITS_MAX 1024u            /**< most units (segments) in one slot */

/** Name of a slot. For classes kept by the pool, values come from kvx_pool_take(). For classes kept by the caller,
 *  `index` is any index of the class and `generation` any number the caller likes: what was stored under one generation
 *  is restored only under the same one. */
typedef struct kvx_slot {
    uint32_t slot_class;
    uint32_t index;
    uint32_t generation;
} kvx_slot;

/** One size of slot. */
typedef struct kvx_slot_class {
    uint64_t slot_bytes;     /**< usable bytes of a slot; rounded up to 4096; at most KVX_SLOT_BYTES_MAX */
    uint32_t n_slots;        /**< how many; at least 1 */
    uint32_t max_units;      /**< most segments of a layout stored here; 0: 64. 32 bytes each of device memory a slot
                                  (CPU engine: of locked memory, see RLIMIT_MEMLOCK) */
    uint32_t caller_managed; /**< nonzero: the caller picks indices, kvx_pool_take() refuses; overwriting is legal */
} kvx_slot_class;

/** Pages under a pool, from small to large. In a configuration: the largest kind to try. */
typedef enum kvx_page_kind {
    KVX_PAGES_AUTO = 0,        /**< the largest kind that the system has free */
    KVX_PAGES_SMALL = 1,       /**< 4 KiB */
    KVX_PAGES_TRANSPARENT = 2, /**< transparent huge pages (madvise), never more than was asked for */
    KVX_PAGES_2M = 3,          /**< hugetlb pages, if enough are free for the whole pool (vm.nr_hugepages) */
    KVX_PAGES_1G = 4,
} kvx_page_kind;

/** How far the fill of a pool has come. */
typedef struct kvx_pool_progress {
    uint64_t bytes_ready; /**< usable so far */
    uint64_t bytes_total;
    uint64_t elapsed_ns; /**< since the pool was asked for */
    kvx_status fill;     /**< KVX_PENDING; KVX_OK with the last bytes; else why the fill stopped */
} kvx_pool_progress;

/** Told of each step, by one thread of the pool at a time and in order; steps may be merged. May call anything but
 *  kvx_pool_wait(), kvx_pool_quiesce() and kvx_pool_destroy() of its own pool. */
typedef void (*kvx_pool_progress_fn)(void *argument, const kvx_pool_progress *progress);

typedef struct kvx_pool_config {
    size_t size;
    const kvx_slot_class *classes;
    uint32_t n_classes;
    kvx_engine engine;       /**< CPU: never pin. CUDA: fail unless pinned. AUTO: pin where there is a usable GPU */
    int numa_node;           /**< node + 1; 0: the GPU's node where known, else the system's choice */
    uint32_t allow_pageable; /**< nonzero: go on with unpinned memory where pinning fails (stats say pinned = 0) */
    uint32_t background;     /**< nonzero: return when the first chunk is usable and bring the rest behind */
    kvx_page_kind pages;     /**< largest kind of page to try */
    uint32_t n_threads;      /**< to touch and pin with; 0: by size and processors, at most 16; at most 64 */
    uint64_t chunk_bytes;    /**< most bytes pinned at once; 0: a 256th of the pool, 512 MiB to 16 GiB; at most 64 GiB.
                                  Rounded down to whole slots */
    uint64_t shared_bytes;   /**< 0: memory of this process only. Else: memory that other processes can join, so many
                                  bytes for all of them and this one together; see kvx_pool_export() */
    kvx_pool_progress_fn progress; /**< may be NULL */
    void *progress_argument;
} kvx_pool_config;
#define KVX_POOL_CONFIG_INIT                                                                                           \
    {                                                                                                                  \
        sizeof(kvx_pool_config), NULL, 0, KVX_ENGINE_AUTO, 0, 0, 0, KVX_PAGES_AUTO, 0, 0, 0, NULL, NULL                \
    }

/**
 * Creates a pool of host memory divided into slots. The memory is mapped once, touched by several threads on the GPU's
 * node and pinned in chunks for every CUDA device of the process; a pool outlives contexts (also latched ones), so
 * nothing need be pinned again. Memory of this process only is zeroed. The size is exact: slot sizes are rounded up to
 * 4 KiB and chunks to whole pages, nothing else (kvx_pool_stats_get() has the sum).
 * Where registering memory with CUDA is refused, CUDA is asked to allocate it. Where nothing can be pinned the call
 * fails, unless allow_pageable.
 * With `background` the call returns when the first chunk is usable. Contexts may be created at once. Slots come online
 * chunk by chunk: kvx_pool_take() gives only slots that are there, and a store to (or restore from) a slot of the
 * caller's that is not there yet is KVX_AGAIN. What fails before the first chunk is usable fails the call. A later
 * chunk that cannot be had in the background ends the fill: the next kvx_pool_take() says so once and takes nothing,
 * kvx_pool_wait() (kvx_pool.h) says so always, and slots that are there stay usable. Where CUDA has to allocate the
 * memory the call returns when all of it is there.
 * @param config  at least one class.  @param pool  set on success; free with kvx_pool_destroy().
 * @retval KVX_INVALID no classes, a size, count, limit or node out of range.
 * @retval KVX_NO_MEMORY memory could not be mapped, touched or pinned (the note names the limit and the fix).
 * @retval KVX_UNSUPPORTED CUDA demanded and no usable GPU, or GPU and host do not see each other's writes.
 * Threads: any, also at the same time. */
KVX_API KVX_NODISCARD kvx_status kvx_pool_create(const kvx_pool_config *config, kvx_pool **pool);

/** Unpins and frees the pool, by several threads; a fill under way ends with the chunk at hand. All its contexts must
 *  have been destroyed: KVX_INVALID otherwise (nothing is freed). NULL is KVX_OK. In a forked child: KVX_FORKED,
 * nothing is freed. Threads: no other call on the object may run or follow. */
KVX_API kvx_status kvx_pool_destroy(kvx_pool *pool);

/**
 * Takes n free slots of a class, all or none. O(n). A restore before a store finds KVX_MISS, or KVX_STALE.
 * @retval KVX_AGAIN fewer than n are free.  @retval KVX_INVALID unknown class, or one kept by the caller.
 * @retval KVX_NO_MEMORY, KVX_UNSUPPORTED once, if a background fill stopped: call again to take of what is there.
 * Threads: any, also at the same time. */
KVX_API KVX_NODISCARD kvx_status kvx_pool_take(kvx_pool *pool, uint32_t slot_class, uint32_t n, kvx_slot *slots);

/**
 * Gives n slots back, all or none. A slot that is still named by work in flight becomes free when that work has been
 * collected. Handles given back are stale from now on. What they held need not be discarded first.
 * @retval KVX_STALE a handle is not current (double give); KVX_INVALID out of range, a duplicate, or caller's class.
 * Threads: any, also at the same time. */
KVX_API KVX_NODISCARD kvx_status kvx_pool_give(kvx_pool *pool, uint32_t n, const kvx_slot *slots);

/** The slot's bytes as the host sees them (ciphertext), for tests and for carrying them elsewhere. KVX_INVALID if out
 * of range. The pointer lives as long as the pool.
 * Threads: any, also at the same time. */
KVX_API KVX_NODISCARD kvx_status kvx_pool_slot_bytes(kvx_pool *pool, kvx_slot slot, void **bytes, uint64_t *n_bytes);

/* ------------------------------------------------------------------------------------------------------- context */

/** What a failed tag does to the context. */
typedef enum kvx_tamper_policy {
    KVX_TAMPER_LATCH = 0, /**< fail-stop: later work of the context is refused, and its keys are wiped by the next call
                               that is not kvx_poll() (default) */
    KVX_TAMPER_MISS = 1,  /**< the block's verdict only, until `tamper_budget` blocks have failed; then latch */
} kvx_tamper_policy;

/**
 * Bursts. A store seals into a ring on the GPU, a burst of blocks at a time; the copy engine drains it while the next
 * burst is sealed. A restore is copied into a ring and opened in bursts likewise. A burst takes the whole GPU (or
 * `burst_sms` of it) for a short time, on streams of the lowest priority; then the ring is full and the next one waits
 * for the copy engine. So kvx takes about link rate / seal rate of the GPU while it moves data, in pieces of
 * burst_bytes / seal rate, and nothing in between.
 *  - `burst_bytes` 0: at create, kvx times copies from the pool into the ring and sealing zeros within it, under a key
 *    that is wiped again, for about 20 ms, and chooses bursts that last 100 us, or a quarter of the ring if that is
 *    less. kvx_stats has what it saw. With burst_bytes set, or a ring below 16 MiB, nothing is measured. A burst holds
 *    at least one block and at most a quarter of the ring.
 *  - The link has nothing to do while the first burst of a store is sealed and the last of a restore is opened. In
 *    batches of more than two bursts, and of more than 8 MiB with KVX_HINT_IDLE, these are small (4 MiB). Where a call
 *    would need more than 256 bursts they are made larger, as far as the ring allows.
 *  - Rate: kvx holds no burst back, since nothing can wait on a GPU without holding a part of it. To stay below a rate,
 *    submit at that rate, and in small calls: all of a call's bursts come one after the other at the rate of the link.
 *  - Bursts take places in the driver's queues. When the launches in flight in one direction would come near what the
 *    driver takes (512 of ours; one of more than 64 blocks counts as 9), calls return KVX_AGAIN. A call that needs more
 *    by itself is taken when nothing is in flight, and may wait for the device.
 *  - Direct stores (KVX_HINT_IDLE) write to the pool from `direct_sms` multiprocessors and hold these until the batch
 *    ends: kernels that expect to own the GPU can lose far more than that share. A batch below 8 MiB takes as many as
 *    it has segments, for it is soon over, unless direct_sms is set. */
typedef struct kvx_config {
    size_t size;
    kvx_engine engine;
    int device; /**< CUDA ordinal + 1; 0: the calling thread's current device */
    kvx_tamper_policy tamper_policy;
    uint32_t tamper_budget; /**< MISS: failed blocks before the latch; 0: 16 */
    uint32_t n_tenants;     /**< tenants 0 .. n-1 exist, each with keys of its own; 0: 1; at most 1024 */
    uint32_t max_tickets;   /**< batches in flight or not yet collected; 0: 256 */
    uint32_t max_pairs;     /**< pairs in all of them together, the most one call may name; 0: 65536 */
    uint32_t max_layouts;   /**< 0: 16; at most 256 */
    uint64_t ring_bytes;    /**< device memory for each direction's ring; 0: 128 MiB, or four largest slots */
    uint64_t burst_bytes;   /**< bytes sealed or opened per launch, see "Bursts"; 0: by measurement */
    uint32_t burst_sms;     /**< most multiprocessors that a burst takes; 0: all */
    uint32_t direct_sms;    /**< most that a direct store takes; 0: as many as fill the link, by measurement */
    const struct kvx_key_config *keys; /**< kvx_keys.h; NULL: the defaults. Used during the call only */
} kvx_config;
#define KVX_CONFIG_INIT                                                                                                \
    {                                                                                                                  \
        sizeof(kvx_config), KVX_ENGINE_AUTO, 0, KVX_TAMPER_LATCH, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL                      \
    }

/**
 * Creates a context: fresh random keys that never leave this process and its GPU, records for every slot of the pool in
 * device memory, rings, tickets. All memory is allocated here; stores and restores allocate nothing.
 * @retval KVX_UNSUPPORTED CUDA demanded and no usable GPU.  @retval KVX_NO_MEMORY device, pinned or locked memory.
 * @retval KVX_INVALID a limit is out of range, or the CUDA engine asked for on a pool that is not pinned.
 * @retval KVX_INTERNAL CUDA or OpenSSL failed, or a known-answer test of the engine did.
 * @retval KVX_UNTRUSTED the policy is KVX_POLICY_ENFORCE and the note names the checks that are not good.
 * Threads: any, also at the same time. */
KVX_API KVX_NODISCARD kvx_status kvx_ctx_create(kvx_pool *pool, const kvx_config *config, kvx_ctx **ctx);

/** Waits for the work in flight (bounded: after 30 s the device is taken as lost), wipes keys and records on both sides
 *  and frees the context and its layouts. NULL does nothing; in a forked child nothing is touched but the child's copy
 *  of host memory. What the context stored can never be opened again.
 * Threads: no other call on the object may run or follow. */
KVX_API void kvx_ctx_destroy(kvx_ctx *ctx);

/* -------------------------------------------------------------------------------------------------------- layout */

#define KVX_LANES_MAX 1024u /**< lanes per layout */

/** One strided array of the KV cache, for instance K of one layer. Block b, row r lies at
 *  dev_base + b * block_stride + r * row_stride and has row_bytes bytes. Base, strides and row_bytes are multiples of
 * 8, except that rows that follow each other without a gap (row_stride == row_bytes) count as one row. */
typedef struct kvx_lane {
    void *dev_base;
    uint64_t block_stride;
    uint64_t row_stride; /**< ignored when n_rows is 1 */
    uint64_t row_bytes;
    uint32_t n_blocks;
    uint32_t n_rows;
    uint32_t segment; /**< lanes of one segment are sealed together; in lane order, segments ascending */
} kvx_lane;

typedef struct kvx_layout_desc {
    size_t size;
    const kvx_lane *lanes;
    uint32_t n_lanes;
    uint64_t binding; /**< caller's tag of model, dtype, rank, ...: blocks restore only under the same binding */
} kvx_layout_desc;
#define KVX_LAYOUT_DESC_INIT                                                                                           \
    {                                                                                                                  \
        sizeof(kvx_layout_desc), NULL, 0, 0                                                                            \
    }

/**
 * Registers the tensors of one KV-cache group. The sealed form of a block is, per segment, the rows of its lanes one
 * after the other, padded to 32 bytes: one AES-256-GCM message with one tag. Tensors registered again at other
 * addresses with other strides restore the same blocks as long as lanes' row counts, sizes, segments and the binding
 * agree.
 * @retval KVX_INVALID no lanes, segments not 0,1,2,.. ascending, misaligned, a lane that overlaps itself or another
 *         lane, zero sizes, addresses not of this device, or more segments than KVX_UNITS_MAX.
 * @retval KVX_AGAIN max_layouts are in use.
 * Threads: any, also at the same time. */
KVX_API KVX_NODISCARD kvx_status kvx_layout_create(kvx_ctx *ctx, const kvx_layout_desc *desc, kvx_layout **layout);

/** Bytes one sealed block takes in a slot, and its segments. Either output may be NULL.
 * Threads: any, also at the same time. */
KVX_API void kvx_layout_info(const kvx_layout *layout, uint64_t *sealed_bytes, uint32_t *n_segments);

/** Forgets the tensors. Work in flight that names the layout must have ended: KVX_AGAIN otherwise (nothing is done).
 *  NULL is KVX_OK.
 * Threads: no other call on the object may run or follow. */
KVX_API kvx_status kvx_layout_destroy(kvx_layout *layout);

/* ----------------------------------------------------------------------------------------------- store and restore */

/** One block and its slot. */
typedef struct kvx_pair {
    const kvx_layout *layout;
    uint32_t block; /**< block index in the layout's lanes */
    kvx_slot slot;
    uint32_t tenant; /**< 0 is the default tenant */
} kvx_pair;

/** Names a batch. 0 is never a ticket. */
typedef uint64_t kvx_ticket;

enum {
    KVX_HINT_IDLE = 1,    /**< the GPU has nothing else to do, or the batch is urgent: store straight to host memory,
                               restore in smaller bursts */
    KVX_HINT_NO_JOIN = 2, /**< later work in `stream` does not wait for this batch; use the events or the ticket */
};

typedef struct kvx_options {
    size_t size;
    kvx_stream stream;               /**< the batch comes after the work in it; see "Streams" above */
    kvx_event wait_event;            /**< the batch also comes after this event */
    kvx_event released_event;        /**< store: recorded when the source blocks have been read */
    kvx_event done_event;            /**< recorded when everything is stored or restored */
    const kvx_event *segment_events; /**< restore: event s is recorded when segment s of every pair has its verdict */
    uint32_t *dev_flags;             /**< restore: device array; flag s is set to flag_value at the same moment */
    uint32_t n_segment_events;
    uint32_t n_flags;
    uint32_t flag_value;
    uint32_t hints;
    uint64_t cookie; /**< given back by kvx_poll() */
} kvx_options;
#define KVX_OPTIONS_INIT                                                                                               \
    {                                                                                                                  \
        sizeof(kvx_options), NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0                                         \
    }

/**
 * Seals n blocks into n slots. A slot is readable once the batch is done; until then it holds nothing.
 * @param pairs    n pairs; no slot twice. A slot already holding a block is overwritten.
 * @param options  NULL for the defaults.
 * @param ticket   set on success; NULL: nobody will ask (the batch collects itself).
 * Verdicts: KVX_OK, KVX_SUPERSEDED, KVX_STALE, KVX_REFUSED (the tenant was erased), KVX_EXHAUSTED, KVX_LATCHED.
 * @retval KVX_INVALID NULL or out of range arguments, a slot too small for the layout, n > max_pairs, a slot named
 * twice.
 * @retval KVX_STALE a handle is not current.
 * @retval KVX_AGAIN tickets or pairs are short, too many bursts are in flight (see kvx_config), another context that
 *         stored to a slot has not collected its work, or a slot of the caller's is not there yet (background fill;
 *         KVX_NO_MEMORY if it never will be).
 * @retval KVX_LATCHED, KVX_DEVICE_LOST, KVX_FORKED  the context is out of use.
 * @retval KVX_UNSUPPORTED the stream is being captured.
 * n = 0 is legal: events and flags advance in stream order; the ticket, which has no verdicts, ends at once.
 * Threads: any, also at the same time. */
KVX_API KVX_NODISCARD kvx_status kvx_store(kvx_ctx *ctx, uint32_t n, const kvx_pair *pairs, const kvx_options *options,
                                           kvx_ticket *ticket);

/**
 * Opens n slots into n blocks. A block's verdict is the AND of its segments; the destination of a segment that failed
 * is zeroed. Segments that passed may be used as soon as their event or flag fires, but no token computed from them may
 * leave before the verdicts were read.
 * @param pairs   n pairs; no block of a layout twice. One slot may be opened into several blocks.
 * @param ticket  required: a restore whose verdicts are not read is a mistake.
 * Verdicts: KVX_OK, KVX_MISS, KVX_BUSY, KVX_STALE, KVX_REFUSED, KVX_TAMPERED, KVX_LATCHED. Stale handles are verdicts
 * here, never an error of the call. Other errors as for kvx_store().
 * Threads: any, also at the same time. */
KVX_API KVX_NODISCARD kvx_status kvx_restore(kvx_ctx *ctx, uint32_t n, const kvx_pair *pairs,
                                             const kvx_options *options, kvx_ticket *ticket);

/**
 * Makes n slots EMPTY: their records are dead and what the pool still holds can never be opened. Asynchronous, in call
 * order with stores and restores; not ordered with any stream. The slots stay taken.
 * Errors as for kvx_store(); verdicts: KVX_OK, KVX_SUPERSEDED (a newer store holds the slot).
 * Threads: any, also at the same time. */
KVX_API KVX_NODISCARD kvx_status kvx_discard(kvx_ctx *ctx, uint32_t n, const kvx_slot *slots, kvx_ticket *ticket);

/* ----------------------------------------------------------------------------------------------------- completion */

/** State of a batch, filled by kvx_poll() with KVX_OK and with KVX_PENDING. */
typedef struct kvx_result {
    uint64_t cookie;
    uint32_t n;             /**< pairs of the batch */
    uint32_t n_ok;          /**< pairs with verdict KVX_OK so far */
    uint32_t released;      /**< store: nonzero once the source blocks may be overwritten */
    kvx_status first_error; /**< verdict of the first pair that is not KVX_OK, else KVX_OK; final only with KVX_OK */
} kvx_result;

/**
 * Asks after a batch without waiting and without a CUDA call. The answer comes from words that carry a MAC: the host
 * can withhold it but not forge it. A ticket answered with KVX_OK counts as collected; it goes on answering until its
 * place is reused (KVX_UNKNOWN from then on). A device that failed is noticed by kvx_wait() and kvx_drain(), not here.
 * @param result    may be NULL.
 * @param verdicts  NULL, or space for n_verdicts; the first min(n, n_verdicts) pairs' verdicts, only with KVX_OK.
 * @retval KVX_OK ended.  KVX_PENDING not ended.  KVX_UNKNOWN no such ticket.  KVX_DEVICE_LOST, KVX_FORKED.
 * Threads: any, also at the same time. */
KVX_API KVX_NODISCARD kvx_status kvx_poll(kvx_ctx *ctx, kvx_ticket ticket, kvx_result *result, uint32_t n_verdicts,
                                          kvx_status *verdicts);

/**
 * Waits until all n tickets have ended. Does not collect them: verdicts are still to be read with kvx_poll().
 * @param timeout_ns  0: only look; UINT64_MAX: for ever.
 * @retval KVX_TIMEOUT at least one has not ended.   @retval KVX_UNKNOWN one is not a ticket of this context.
 * Threads: any, also at the same time. */
KVX_API KVX_NODISCARD kvx_status kvx_wait(kvx_ctx *ctx, uint32_t n, const kvx_ticket *tickets, uint64_t timeout_ns);

/** Waits until nothing of the context is in flight. @retval KVX_TIMEOUT the time was up.
 * Threads: any, also at the same time. */
KVX_API KVX_NODISCARD kvx_status kvx_drain(kvx_ctx *ctx, uint64_t timeout_ns);

/* --------------------------------------------------------------------------------------------------------- figures */

/** Snapshot of a context and its pool. Counters never go back. */
typedef struct kvx_stats {
    size_t size;
    kvx_engine engine;        /**< the one in use */
    uint32_t pinned;          /**< pool memory is pinned */
    uint32_t latched;         /**< the context refuses work */
    uint32_t tickets_in_use;  /**< in flight or not collected */
    uint64_t stored_blocks;   /**< verdict KVX_OK */
    uint64_t restored_blocks; /**< verdict KVX_OK */
    uint64_t stored_bytes;    /**< sealed bytes of those */
    uint64_t restored_bytes;
    uint64_t failed_blocks;   /**< any other verdict */
    uint64_t tampered_blocks; /**< KVX_TAMPERED among them */
    uint64_t launches;        /**< kernels started */
    uint64_t copies;          /**< copy operations given to the copy engine (a batch counts once) */
    uint64_t host_syncs;      /**< host synchronisations by store, restore, discard and poll: always 0 */
    uint64_t pool_bytes;      /**< host memory held */
    uint64_t record_bytes;    /**< device memory held for headers and records */
    uint64_t slots_free, slots_used, slots_in_flight; /**< sum = slots kept by the pool */
    char engine_note[96]; /**< why this engine (for instance: no usable GPU, with the driver's words) */
    /* How the CUDA engine moves data; all 0 with the CPU engine. */
    uint64_t store_bursts;    /**< sealed into the ring, for the copy engine */
    uint64_t direct_launches; /**< sealed straight into the pool */
    uint64_t restore_bursts;
    uint64_t burst_bytes; /**< what a burst aims at: from kvx_config, or chosen by measurement */
    uint64_t link_rate;   /**< bytes per second from the pool to the GPU, measured at create; 0: not measured */
    uint64_t seal_rate;   /**< bytes per second that the whole GPU seals; likewise */
    uint64_t measure_ns;  /**< how long measuring took */
    uint32_t burst_sms;   /**< multiprocessors that bursts and direct stores may take */
    uint32_t direct_sms;
} kvx_stats;

/** Fills `stats` (set stats->size first). KVX_INVALID on NULL or a size that is not this library's or smaller.
 * Threads: any, also at the same time. */
KVX_API KVX_NODISCARD kvx_status kvx_stats_get(kvx_ctx *ctx, kvx_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
