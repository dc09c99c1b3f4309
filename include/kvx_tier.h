/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_TIER_H
#define KVX_TIER_H
/**
 * @file kvx_tier.h
 * A cache tier above kvx_store() and kvx_restore(), for engines without an index of their own: it knows which block
 * (tenant, 32-byte hash) lies in which slot, decides what is stored and what makes room, and gathers stores to batches.
 *
 *     scheduler step:   kvx_tier_lookup -> kvx_tier_load (or kvx_tier_unpin) ... kvx_tier_load_poll
 *                       kvx_tier_offer (blocks filled, used again, or about to leave the GPU)
 *                       kvx_tier_pump (collects what has ended, starts what is due)
 *                       kvx_tier_may_drop (before a GPU block is used for something else)
 *
 * Conventions are those of kvx.h. In addition:
 *  - The tier has no thread. Work moves on in kvx_tier_pump(), which never waits; a scheduler calls it once per step.
 * No function needs a CUDA context to be current.
 *  - Nothing is allocated after kvx_tier_create(). About 79 bytes per block, and what the max_* fields ask for.
 *  - Time is the caller's: nanoseconds of any monotonic clock, given to kvx_tier_pump() and kept until its next call.
 *  - Without a context (config.ctx NULL) the tier is dry: index, policies, counters and events work, no byte moves, and
 *    a batch has ended as soon as it was started. For simulations and tests.
 *  - No lock that lookups, offers and queries need is held over a call of kvx.h, and none at all over the callback.
 */
#include "kvx.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVX_TIER_TENANTS_MAX 64u /**< tenants of a tier */

typedef struct kvx_tier kvx_tier;

/** Name of a block's content, usually the hash of the chain of tokens up to it. Any 32 bytes. */
typedef struct kvx_tier_hash {
    uint8_t bytes[32];
} kvx_tier_hash;

/** When a block is stored. */
typedef enum kvx_tier_write {
    KVX_TIER_WRITE_THROUGH = 0,   /**< when it is full; the GPU copy stays */
    KVX_TIER_WRITE_SELECTIVE = 1, /**< when it was used selective_hits times; the GPU copy stays */
    KVX_TIER_WRITE_BACK = 2, /**< when its GPU copy is about to leave; a block lives in one place: a load moves it */
} kvx_tier_write;

/** What makes room. Blocks that are pinned or being stored never do. */
typedef enum kvx_tier_evict {
    KVX_TIER_EVICT_AGED =
        0, /**< least recently used, but blocks used again may wait longer: see again_percent (default) */
    KVX_TIER_EVICT_LRU = 1, /**< least recently used */
} kvx_tier_evict;

/** Why a block left the tier. */
typedef enum kvx_tier_cause {
    KVX_TIER_BY_CAPACITY = 0, /**< evicted: the tier was full */
    KVX_TIER_BY_QUOTA = 1,    /**< evicted: its tenant was at its quota */
    KVX_TIER_BY_MOVE = 2,     /**< write-back: the block is on the GPU now */
    KVX_TIER_BY_CALLER = 3,   /**< kvx_tier_drop() */
    KVX_TIER_BY_ERASURE = 4,  /**< kvx_tier_forget() */
    KVX_TIER_BY_LOSS = 5,     /**< a load found the slot without the block (KVX_MISS, KVX_BUSY, KVX_STALE) */
    KVX_TIER_BY_REFUSAL = 6,  /**< a load found KVX_REFUSED: another layout or tenant */
    KVX_TIER_BY_TAMPERING = 7,
    KVX_TIER_CAUSES = 8,
} kvx_tier_cause;

typedef enum kvx_tier_event_kind {
    KVX_TIER_STORED = 1,  /**< can be loaded from now on */
    KVX_TIER_EVICTED = 2, /**< made room: causes CAPACITY, QUOTA */
    KVX_TIER_DROPPED = 3, /**< went for another cause */
} kvx_tier_event_kind;

/** A change of what the tier holds. */
typedef struct kvx_tier_event {
    kvx_tier_event_kind kind;
    kvx_tier_cause cause; /**< of EVICTED and DROPPED */
    uint64_t sequence;    /**< 1, 2, 3, ...: a gap means events were lost */
    uint32_t tenant;
    kvx_tier_hash hash;
} kvx_tier_event;

/** Called after blocks were evicted or dropped, from the function that caused it and on its thread, outside all locks:
 *  it may call the tier. Events lost to a full ring do not arrive. Two threads may be in it at once. */
typedef void kvx_tier_on_evict(void *arg, uint32_t n, const kvx_tier_event *events);

typedef struct kvx_tier_config {
    size_t size;
    kvx_ctx *ctx;        /**< must outlive the tier; NULL: dry */
    kvx_pool *pool;      /**< the context's pool (NULL when dry) */
    uint32_t slot_class; /**< a class with caller_managed set */
    uint32_t first_slot; /**< the tier owns slots first_slot .. first_slot + n_blocks - 1 of the class */
    uint32_t n_blocks;   /**< capacity; 1 .. 2^30 */
    uint32_t n_tenants;  /**< tenants 0 .. n-1, as in kvx_config; 0: 1 */
    kvx_tier_write write;
    kvx_tier_evict evict;
    uint32_t selective_hits;       /**< 0: 2; at most 100 */
    uint32_t again_percent;        /**< AGED: how long blocks used again may wait, others 100; 0: 250; at most 10000 */
    uint32_t max_stores;           /**< blocks queued or being stored; 0: 4096 */
    uint32_t max_loads;            /**< loads not yet collected; 0: 256 */
    uint32_t max_load_blocks;      /**< blocks of all those loads, and of announcements; 0: 16384 */
    uint32_t max_announced;        /**< announcements in force; 0: 256 */
    uint32_t max_events;           /**< ring of events; rounded up to a power of two; 0: 4096 */
    uint32_t batch_blocks;         /**< stores are gathered to this many (at most kvx_config.max_pairs) ...; 0: 64 */
    uint64_t batch_wait_ns;        /**< ... or until one has waited this long; 0: 2 ms */
    uint64_t max_wait_ns;          /**< stores wait for loads to end, but no longer than this; 0: 50 ms */
    uint32_t max_batches;          /**< batches of stores in flight; 0: 4. Beside a load only one */
    uint64_t store_bytes_per_s;    /**< stores start no faster than this; 0: no limit */
    uint64_t load_bytes_in_flight; /**< prefetches start only below this; 0: 256 MiB */
    uint64_t block_bytes;          /**< dry: bytes per block for the counters; else the slots say */
    kvx_tier_on_evict *on_evict;   /**< NULL: none */
    void *on_evict_arg;
} kvx_tier_config;
#define KVX_TIER_CONFIG_INIT                                                                                           \
    {                                                                                                                  \
        sizeof(kvx_tier_config), NULL, NULL, 0, 0, 0, 0, KVX_TIER_WRITE_THROUGH, KVX_TIER_EVICT_AGED, 0, 0, 0, 0, 0,   \
            0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL                                                                      \
    }

/**
 * Creates an empty tier and allocates all it will ever need.
 * @retval KVX_INVALID no capacity, a limit out of range, slots outside the class, or a class that the pool keeps.
 * @retval KVX_NO_MEMORY.  @retval KVX_INTERNAL no random numbers for the salts.
 */
KVX_API KVX_NODISCARD kvx_status kvx_tier_create(const kvx_tier_config *config, kvx_tier **tier);

/** Frees the tier; its blocks become unreachable. Call it before kvx_ctx_destroy(), once kvx_tier_idle() says so:
 *  KVX_AGAIN while loads or stores are in flight (nothing is done), unless the context is latched or lost.
 *  NULL is KVX_OK. In a forked child nothing is freed: KVX_FORKED. */
KVX_API kvx_status kvx_tier_destroy(kvx_tier *tier);

/** Rules for one tenant. */
typedef struct kvx_tier_tenant {
    size_t size;
    uint32_t quota_blocks; /**< most blocks it may hold; at the quota it makes room among its own; 0: no quota */
    uint32_t set_salt;     /**< nonzero: `salt` replaces the tenant's salt, random at first */
    uint8_t salt[32];
} kvx_tier_tenant;
#define KVX_TIER_TENANT_INIT                                                                                           \
    {                                                                                                                  \
        sizeof(kvx_tier_tenant), 0, 0,                                                                                 \
        {                                                                                                              \
            0                                                                                                          \
        }                                                                                                              \
    }

/** Sets a tenant's rules. The salt enters the key under which blocks are kept, so that nobody without it can tell where
 *  in the index a hash of the tenant lies. Only for a tenant that holds nothing: KVX_AGAIN otherwise. */
KVX_API KVX_NODISCARD kvx_status kvx_tier_tenant_set(kvx_tier *tier, uint32_t tenant, const kvx_tier_tenant *rules);

/* ----------------------------------------------------------------------------------------------- lookup and load */

/** A block that may not be evicted until it was loaded or unpinned. */
typedef uint64_t kvx_tier_pin;

/** How far a chain is held. After n_hits come n_pending, the rest is a miss. */
typedef struct kvx_tier_match {
    uint32_t n_hits;    /**< leading blocks that can be loaded now */
    uint32_t n_pending; /**< further blocks in a row that are held or will be once a store ends: ask again */
} kvx_tier_match;

/**
 * Finds the longest prefix of a chain of n hashes, and counts as a use of the blocks found.
 * @param pins  NULL, or space for n: the first n_hits are set, and each is to be given to kvx_tier_load(),
 *              kvx_tier_prefetch() or kvx_tier_unpin() once.
 * With a latched context everything is a miss. Errors: KVX_INVALID, KVX_FORKED.
 */
KVX_API KVX_NODISCARD kvx_status kvx_tier_lookup(kvx_tier *tier, uint32_t tenant, uint32_t n,
                                                 const kvx_tier_hash *hashes, kvx_tier_match *match,
                                                 kvx_tier_pin *pins);

/** Lets blocks go that will not be loaded. KVX_INVALID if one is not a pin in force (nothing is done). */
KVX_API kvx_status kvx_tier_unpin(kvx_tier *tier, uint32_t n, const kvx_tier_pin *pins);

/** A pinned block and where it goes. */
typedef struct kvx_tier_target {
    kvx_tier_pin pin;
    const kvx_layout *layout;
    uint32_t block;
} kvx_tier_target;

/** Names a load. 0 is never one. */
typedef uint64_t kvx_tier_load_id;

/**
 * Restores n pinned blocks at once, ahead of all stores that have not begun: kvx_restore() with `options` (stream,
 * events and flags work as there). The pins are used up; the blocks stay pinned until the load has ended.
 * @param load  set on success; to be collected with kvx_tier_load_poll().
 * @retval KVX_AGAIN max_loads, max_load_blocks, or kvx_restore()'s resources are short: the pins stay in force.
 * Other errors as for kvx_restore(); the pins stay in force then, too. options may be NULL. n >= 1, and at most the
 * context's max_pairs.
 */
KVX_API KVX_NODISCARD kvx_status kvx_tier_load(kvx_tier *tier, uint32_t n, const kvx_tier_target *targets,
                                               const kvx_options *options, kvx_tier_load_id *load);

/**
 * The same, later: kvx_tier_pump() starts it in the background, in its stream and in the order of the calls, before
 * stores and as long as fewer than load_bytes_in_flight are being loaded. The destinations must be free from now on.
 */
KVX_API KVX_NODISCARD kvx_status kvx_tier_prefetch(kvx_tier *tier, uint32_t n, const kvx_tier_target *targets,
                                                   kvx_tier_load_id *load);

/**
 * Asks after a load, never waits. KVX_OK: it has ended, and is forgotten with this call; `verdicts` (NULL, or space for
 * n_verdicts) has the first of them, each as kvx_restore() says. A block whose verdict is not KVX_OK is not in its
 * destination and must be computed; the tier has dropped it (except with KVX_LATCHED).
 * @param n_failed  may be NULL: verdicts other than KVX_OK.
 * @retval KVX_PENDING not ended.  @retval KVX_UNKNOWN no such load.  @retval KVX_FORKED.
 * After KVX_DEVICE_LOST, or an error when a prefetch started, that is every block's verdict.
 */
KVX_API KVX_NODISCARD kvx_status kvx_tier_load_poll(kvx_tier *tier, kvx_tier_load_id load, uint32_t *n_failed,
                                                    uint32_t n_verdicts, kvx_status *verdicts);

/* ------------------------------------------------------------------------------------------------ announcements */

/**
 * Announces a chain that will be needed: the leading blocks held are kept from eviction until the time `until_ns` or
 * kvx_tier_withdraw(); blocks of the chain that wait in a batch are stored with the next pump.
 * @param n_held        may be NULL: how many leading blocks are held.
 * @param announcement  set on success, 0 if nothing is held.
 * @retval KVX_AGAIN max_announced or max_load_blocks are used up.
 */
KVX_API KVX_NODISCARD kvx_status kvx_tier_announce(kvx_tier *tier, uint32_t tenant, uint32_t n,
                                                   const kvx_tier_hash *hashes, uint64_t until_ns, uint32_t *n_held,
                                                   uint64_t *announcement);

/** Ends an announcement. KVX_UNKNOWN if it has ended already. */
KVX_API kvx_status kvx_tier_withdraw(kvx_tier *tier, uint64_t announcement);

/* --------------------------------------------------------------------------------------------- blocks on the GPU */

/** A block on the GPU and its name. */
typedef struct kvx_tier_block {
    kvx_tier_hash hash;
    uint32_t tenant;
    uint32_t block;
    const kvx_layout *layout; /**< NULL when dry */
} kvx_tier_block;

typedef enum kvx_tier_occasion {
    KVX_TIER_USED = 1,    /**< the block has been filled, or was found in the GPU's cache again */
    KVX_TIER_LEAVING = 2, /**< its GPU copy is about to be evicted */
} kvx_tier_occasion;

typedef enum kvx_tier_outcome {
    KVX_TIER_QUEUED = 1,  /**< will be stored: the GPU block must stay as it is until kvx_tier_may_drop() says so */
    KVX_TIER_JOINED = 2,  /**< a store of the same content is queued or under way already */
    KVX_TIER_HELD = 3,    /**< the tier holds it */
    KVX_TIER_SKIPPED = 4, /**< the policy does not want it now */
    KVX_TIER_NO_ROOM = 5, /**< nothing can be evicted, the quota is full of pinned blocks, or max_stores are waiting */
} kvx_tier_outcome;

/**
 * Offers n blocks; the write policy decides. What is queued is stored by kvx_tier_pump(), after the work that is in its
 * stream at that time.
 * | policy    | USED                                    | LEAVING                         |
 * |-----------|-----------------------------------------|---------------------------------|
 * | through   | store                                   | store, if that failed before    |
 * | selective | count; store at selective_hits          | store, if it has its hits       |
 * | back      | not stored; a copy in the tier is dropped | store                         |
 * USED counts as a use of blocks the tier holds.
 * @param outcomes  n of them, NULL if nobody asks. With a latched context: all NO_ROOM.
 */
KVX_API KVX_NODISCARD kvx_status kvx_tier_offer(kvx_tier *tier, kvx_tier_occasion occasion, uint32_t n,
                                                const kvx_tier_block *blocks, kvx_tier_outcome *outcomes);

typedef enum kvx_tier_drop_answer {
    KVX_TIER_WAIT = 0, /**< the GPU block is still to be read, or being read */
    KVX_TIER_LOSE = 1, /**< may be dropped, but the tier does not hold the content */
    KVX_TIER_KEEP = 2, /**< may be dropped, the tier holds the content */
} kvx_tier_drop_answer;

/** Which of these GPU blocks may be used for something else? Does not count as a use. */
KVX_API KVX_NODISCARD kvx_status kvx_tier_may_drop(kvx_tier *tier, uint32_t n, const kvx_tier_block *blocks,
                                                   kvx_tier_drop_answer *answers);

/* ------------------------------------------------------------------------------------------------------ the rest */

/**
 * Moves work on: collects loads and stores that have ended, starts prefetches, then stores that are due. `stream`: as
 * in kvx_options; stores come after the work in it, and it does not wait for them (KVX_HINT_NO_JOIN); it waits for
 * prefetches. While another thread pumps, KVX_OK at once.
 * Errors of kvx_store() and kvx_restore() but KVX_AGAIN are returned; nothing is lost by them but the batch.
 */
KVX_API KVX_NODISCARD kvx_status kvx_tier_pump(kvx_tier *tier, uint64_t now_ns, kvx_stream stream);

/** Starts every queued store with the next pumps, without waiting for fuller batches. */
KVX_API kvx_status kvx_tier_flush(kvx_tier *tier);

/** KVX_OK if nothing is queued or in flight (loads that only wait to be collected do not count), else KVX_PENDING. */
KVX_API KVX_NODISCARD kvx_status kvx_tier_idle(kvx_tier *tier);

/** Drops blocks by name; unknown ones are passed over. Pinned blocks and those being stored go when that has ended, and
 *  are misses from now on. */
KVX_API kvx_status kvx_tier_drop(kvx_tier *tier, uint32_t tenant, uint32_t n, const kvx_tier_hash *hashes);

/** Drops all blocks of a tenant in the same way, and has their slots discarded by kvx_tier_pump(), so that what the
 * pool still holds can never be opened. Takes time in proportion to the capacity. */
KVX_API kvx_status kvx_tier_forget(kvx_tier *tier, uint32_t tenant);

/** Takes up to `max` events, oldest first. @param n  how many.  @param n_lost  may be NULL: events that the ring had no
 *  room for since the last call: whoever mirrors the tier's content starts afresh. */
KVX_API KVX_NODISCARD kvx_status kvx_tier_events(kvx_tier *tier, uint32_t max, kvx_tier_event *events, uint32_t *n,
                                                 uint64_t *n_lost);

/** Snapshot of a tier. Counters never go back; those that say "now" do. */
typedef struct kvx_tier_stats {
    size_t size;
    uint64_t lookups;       /**< calls */
    uint64_t lookup_blocks; /**< hashes asked for; = hit + pending + miss */
    uint64_t hit_blocks;    /**< by kind */
    uint64_t pending_blocks;
    uint64_t miss_blocks;
    uint64_t offered_blocks; /**< = queued + joined + held + skipped + no_room */
    uint64_t queued_blocks;
    uint64_t joined_blocks;
    uint64_t held_blocks;
    uint64_t skipped_blocks;
    uint64_t no_room_blocks; /**< allocation failures */
    uint64_t ghost_blocks;   /**< stored again soon after they were evicted (AGED) */
    uint64_t stored_blocks;  /**< stores that succeeded */
    uint64_t store_failed_blocks;
    uint64_t store_batches;
    uint64_t loaded_blocks; /**< loads that succeeded, prefetches too */
    uint64_t load_failed_blocks;
    uint64_t load_batches;
    uint64_t prefetched_blocks; /**< started by the pump; among those above */
    uint64_t stored_bytes;      /**< sealed bytes of stored_blocks */
    uint64_t loaded_bytes;
    uint64_t removed_blocks[KVX_TIER_CAUSES]; /**< by cause */
    uint64_t removed_residence_ns;            /**< sum over those, from stored to removed */
    uint64_t residence_log2_ms[24];           /**< how many stayed below 1, 2, 4, ... ms; the last: any longer time */
    uint64_t events_lost;
    uint64_t blocks_now;    /**< held, that can be loaded */
    uint64_t bytes_now;     /**< slots of those */
    uint64_t pending_now;   /**< queued or being stored */
    uint64_t leaving_now;   /**< dropped, but pinned, being stored or to be discarded */
    uint64_t free_now;      /**< sum of these four (not of bytes) = capacity */
    uint64_t pinned_now;    /**< blocks with at least one pin */
    uint64_t announced_now; /**< announcements in force */
    uint64_t capacity;      /**< blocks */
    uint64_t memory_bytes;  /**< memory of the tier itself */
    uint32_t latched;       /**< the context refuses work: everything is a miss */
} kvx_tier_stats;

/** Fills `stats` (set stats->size first). */
KVX_API KVX_NODISCARD kvx_status kvx_tier_stats_get(kvx_tier *tier, kvx_tier_stats *stats);

/** Blocks a tenant holds, those being stored included. */
KVX_API KVX_NODISCARD kvx_status kvx_tier_tenant_blocks(kvx_tier *tier, uint32_t tenant, uint32_t *n_blocks);

#ifdef __cplusplus
}
#endif
#endif
