/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_SRC_TIER_H
#define KVX_SRC_TIER_H
/*
 * The tier from within. Life of an entry: FREE -> QUEUED -> STORING -> HELD -> (LIMBO while pinned, TO_BE_DISCARDED)
 * -> FREE. Everything is under `book`, which is never held over a call of kvx.h. `pumping` is held by the one thread
 * that pumps, `loading` by whoever starts a load or asks after one. Order: pumping, loading, book.
 */
#include "kvx_tier.h"

#include <pthread.h>
#include <sys/types.h>

#include "tier_ghost.h"
#include "tier_index.h"
#include "tier_policy.h"

/* A list through `next` (and, for records, `prev`) of an array. */
typedef struct kvx_tier_list {
    uint32_t first, last, n;
} kvx_tier_list;

/* A block that waits to be stored, or is being stored. */
typedef struct kvx_tier_record {
    const kvx_layout *layout;
    uint64_t since_ns; /* when it was offered */
    uint64_t bytes;    /* sealed; known once its batch has started */
    uint32_t block;
    uint32_t entry;
    uint32_t prev, next; /* in the queue, in its batch, or among the free ones */
    uint32_t next_alike; /* with the same hash of (layout, block) */
    uint32_t batch;      /* KVX_TIER_NONE while queued */
} kvx_tier_record;

/* Stores in flight. */
typedef struct kvx_tier_batch {
    kvx_ticket ticket;
    kvx_tier_list records; /* n 0: not in use */
    uint32_t released;     /* the source has been read */
    uint32_t n_hurried;    /* of them */
} kvx_tier_batch;

/* A pinned block of a load or an announcement. */
typedef struct kvx_tier_node {
    const kvx_layout *layout;
    uint32_t block;
    uint32_t entry;
    uint32_t next;
    kvx_status verdict;
} kvx_tier_node;

typedef enum kvx_tier_load_state {
    KVX_TIER_LOAD_FREE,
    KVX_TIER_LOAD_QUEUED, /* a prefetch that has not started */
    KVX_TIER_LOAD_RUNNING,
    KVX_TIER_LOAD_ENDED, /* waits to be collected */
} kvx_tier_load_state;

typedef struct kvx_tier_load_record {
    kvx_ticket ticket;
    uint64_t bytes;
    kvx_tier_list nodes;
    kvx_tier_load_state state;
    uint32_t generation;
    uint32_t next; /* free, or the queue of prefetches */
    uint32_t n_failed;
} kvx_tier_load_record;

typedef struct kvx_tier_announced {
    uint64_t until_ns;
    kvx_tier_list nodes; /* n 0: not in use */
    uint32_t generation;
} kvx_tier_announced;

typedef struct kvx_tier_owner {
    kvx_tier_key salt;
    uint32_t quota_blocks, n_blocks;
} kvx_tier_owner;

struct kvx_tier {
    kvx_tier_config config; /* with the defaults filled in */
    uint64_t slot_bytes;
    uint64_t memory_bytes;
    pid_t pid;
    pthread_mutex_t pumping, loading, book;

    kvx_tier_index index;
    kvx_tier_ghost ghost;
    kvx_tier_policy policy;
    kvx_tier_owner tenants[KVX_TIER_TENANTS_MAX];
    kvx_tier_list free;       /* entries */
    kvx_tier_list to_discard; /* entries */
    uint64_t now_ns;
    int latched;

    kvx_tier_record *records;
    uint32_t *alike; /* first record by hash of (layout, block) */
    uint32_t n_alike;
    kvx_tier_list free_records, queue;
    kvx_tier_batch *batches;
    uint32_t n_running_batches;
    uint64_t next_start_ns; /* no store before: the rate */
    uint32_t n_hurried;     /* this many of the queue's first go without waiting for a full batch */

    kvx_tier_load_record *loads;
    kvx_tier_node *nodes;
    kvx_tier_announced *announced;
    kvx_tier_list free_loads, free_nodes, prefetches;
    uint32_t n_running_loads;
    uint64_t loading_bytes;

    /* Scratch: of the pumping thread, and of the loading one. */
    kvx_pair *store_pairs, *load_pairs;
    kvx_status *store_verdicts, *load_verdicts;
    kvx_slot *discards;

    kvx_tier_event *events;
    uint64_t n_events, n_read, n_called; /* ever written, taken by kvx_tier_events, seen by the callback */
    kvx_tier_stats stats;                /* the counters; what is "now" is filled in by the snapshot */
};

/* ---- tier_create.c ---- */
kvx_status kvx_tier_alive(const kvx_tier *tier);
kvx_status kvx_tier_known_tenant(const kvx_tier *tier, uint32_t tenant);

/* ---- tier_entry.c: with `book` held ---- */
void kvx_tier_list_push(kvx_tier_list *list, uint32_t item, uint32_t *next_of_last);
kvx_tier_key kvx_tier_key_of(const kvx_tier *tier, uint32_t tenant, const kvx_tier_hash *hash);
uint32_t kvx_tier_find(const kvx_tier *tier, uint32_t tenant, const kvx_tier_hash *hash);
/* Takes a free entry, making room if need be, or KVX_TIER_NONE. It is in the table then, and QUEUED. */
uint32_t kvx_tier_take(kvx_tier *tier, uint32_t tenant, const kvx_tier_key *key);
/* From STORING: can be loaded now, unless it was dropped in between; or will never be. */
void kvx_tier_arrive(kvx_tier *tier, uint32_t entry);
void kvx_tier_fail(kvx_tier *tier, uint32_t entry);
/* Out of the table; free as soon as nothing needs the slot. `flags`: KVX_TIER_DISCARD or 0. */
void kvx_tier_remove(kvx_tier *tier, uint32_t entry, kvx_tier_cause cause, uint8_t flags);
/* How many pins, `stride` bytes apart, are in force before the first that is not; one may be named several times. */
uint32_t kvx_tier_count_pins(kvx_tier *tier, uint32_t n, const kvx_tier_pin *pins, size_t stride);
void kvx_tier_hold(kvx_tier *tier, uint32_t entry);
void kvx_tier_release(kvx_tier *tier, uint32_t entry);
void kvx_tier_free_discarded(kvx_tier *tier, uint32_t entry);

/* ---- tier_queue.c: records, with `book` held ---- */
uint32_t kvx_tier_enqueue(kvx_tier *tier, uint32_t entry, const kvx_tier_block *block);
void kvx_tier_cancel(kvx_tier *tier, uint32_t record);
/* The queue's first `max` become a batch; a batch that could not start goes back, one that has ended is forgotten. */
void kvx_tier_to_batch(kvx_tier *tier, uint32_t batch, uint32_t max);
void kvx_tier_undo_batch(kvx_tier *tier, uint32_t batch);
void kvx_tier_end_batch(kvx_tier *tier, uint32_t batch);
/* Is the GPU block still to be read? */
int kvx_tier_source_busy(const kvx_tier *tier, const kvx_tier_block *block);

/* ---- tier_store.c: with `pumping` held ---- */
void kvx_tier_collect_stores(kvx_tier *tier);
kvx_status kvx_tier_start_stores(kvx_tier *tier, kvx_stream stream);
void kvx_tier_start_discards(kvx_tier *tier);

/* ---- tier_load.c ---- */
void kvx_tier_collect_loads(kvx_tier *tier);
kvx_status kvx_tier_start_prefetches(kvx_tier *tier, kvx_stream stream);
void kvx_tier_list_nodes(kvx_tier *tier, kvx_tier_list *list, uint32_t entry); /* with `book` held */
void kvx_tier_release_nodes(kvx_tier *tier, kvx_tier_list *list);              /* with `book` held */

/* ---- tier_announce.c: with `book` held ---- */
void kvx_tier_expire(kvx_tier *tier);

/* ---- tier_event.c ---- */
/* With `book` held. */
void kvx_tier_record_stored(kvx_tier *tier, uint32_t entry);
void kvx_tier_record_removed(kvx_tier *tier, uint32_t entry, kvx_tier_cause cause);
/* Calls on_evict for what it has not seen; without locks. */
void kvx_tier_deliver(kvx_tier *tier);

#endif
