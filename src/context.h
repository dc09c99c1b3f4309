/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_SRC_CONTEXT_H
#define KVX_SRC_CONTEXT_H
/*
 * What a context holds, shared by context.c (life), layout.c (tensors), transfer.c (store, restore, discard) and
 * ticket.c (completion). Two locks, taken in this order: `submit` orders calls and may be held over an engine's
 * enqueue; `book` guards tickets and counters and is held for a few instructions, so that a poll never waits for
 * somebody's launch.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "engine.h"
#include "incarnation.h"
#include "keyring.h"
#include "kvx_keys.h"
#include "pool.h"
#include "status.h"
#include "tenants.h"

enum kvx_ticket_phase {
    KVX_TICKET_FREE,    /* may be reused; still answers if its entries were not reused */
    KVX_TICKET_RUNNING, /* handed to the engine */
    KVX_TICKET_ENDED,   /* all verdicts are in; waits to be collected */
    KVX_TICKET_TAKEN    /* of a call that is being made: nobody knows it yet */
};

typedef struct kvx_ticket_state {
    uint64_t ticket; /* serial << 16 | place in the table; 0: never used */
    uint64_t cookie;
    uint64_t first; /* running number of its first entry; entry = number % max_pairs */
    uint32_t n;
    uint32_t n_seen; /* entries whose verdict is in */
    uint32_t n_ok;
    kvx_status first_error;
    enum kvx_op op;
    enum kvx_ticket_phase phase;
    uint32_t wanted; /* somebody holds the ticket and will collect it */
} kvx_ticket_state;

#define KVX_TICKET_PLACE_BITS 16

/* One pair in flight. */
typedef struct kvx_entry_state {
    uint32_t flat;      /* slot */
    uint8_t layout;     /* index; not for discards */
    uint8_t verdict;    /* enum kvx_verdict, once seen */
    uint8_t has_layout; /* zero for discards */
} kvx_entry_state;

struct kvx_layout {
    kvx_ctx *ctx;
    uint32_t index;
    uint32_t n_running;      /* pairs in flight; under `book` */
    kvx_dev_layout geometry; /* its arrays are host copies */
    uint32_t *block_marks;   /* n_blocks; call number that named the block last, to find duplicates */
};

/* What the platform is held to, and what it and a verifier said. */
typedef struct kvx_trust {
    kvx_policy policy;
    uint32_t allow;
    kvx_verdict_fn verdict; /* NULL: nobody verifies */
    void *arg;
    atomic_int attestation; /* a kvx_attestation; 0: no verdict */
    kvx_engine_identity identity;
    char key_id[64];
    uint8_t commitment[32], instance[32];
} kvx_trust;

struct kvx_ctx {
    kvx_pool *pool;
    const kvx_pool_view *view;
    const kvx_engine_ops *ops;
    void *engine;
    kvx_keyring *keyring;
    kvx_tenants *tenants; /* under `submit` */
    kvx_trust trust;
    kvx_incarnation incarnation;
    uint32_t owner; /* number in the pool */
    uint32_t max_tickets, max_pairs, max_layouts, n_tenants, tamper_budget;
    char engine_note[96];
    atomic_int latched, lost;
    atomic_int keys_wiped; /* after the latch */

    pthread_mutex_t submit;
    uint64_t next_serial, next_store_id;
    uint32_t call;          /* running number of calls, for the marks; never 0 */
    kvx_work_pair *work;    /* max_pairs: the call being built */
    kvx_slot *handles;      /* max_pairs */
    uint32_t *flats;        /* max_pairs */
    uint8_t *refusals;      /* max_pairs */
    uint32_t *slot_marks;   /* n_slots: call that named the slot last */
    uint64_t *last_store;   /* n_slots: ticket of the newest store or discard */
    uint64_t *last_restore; /* n_slots: ticket of the newest restore */
    kvx_layout **layouts;   /* max_layouts */
    uint32_t next_layout;   /* where to look for a free one */

    pthread_mutex_t book;
    kvx_ticket_state *tickets; /* max_tickets */
    uint32_t *free_places;     /* queue of max_tickets places, oldest first */
    uint32_t free_head, n_free_places;
    kvx_entry_state *entries; /* max_pairs */
    uint64_t next_entry;      /* running number */
    kvx_stats counts;         /* the counters only */
};

/* KVX_OK; KVX_FORKED, KVX_DEVICE_LOST or KVX_LATCHED with the note set. Also finds out whether this is a copy. */
kvx_status kvx_ctx_usable(kvx_ctx *ctx);
/* Refuses work from now on, also on the engine's side, and wipes the keys. `submit` is not held by the caller. */
void kvx_ctx_latch(kvx_ctx *ctx);
/* Wipes the keys if the context has latched, once. For calls that may take a moment; `submit` is not held. */
void kvx_ctx_wipe_if_latched(kvx_ctx *ctx);
/* KVX_OK, or KVX_INVALID (NULL) / KVX_FORKED. */
kvx_status kvx_ctx_alive(const kvx_ctx *ctx);

/* Copies a size-first struct given by a caller into `own` (own_bytes, zeroed by this function). The first field of both
 * is a size_t. KVX_INVALID if the size is none that this version knows. */
kvx_status kvx_copy_sized(void *own, size_t own_bytes, const void *given, const char *what);

/* What a posture of this context is about. posture.c. */
struct kvx_posture_subject kvx_trust_subject(const kvx_ctx *ctx);

/* Takes a ticket and n entries. KVX_AGAIN with nothing taken. `book` is not held by the caller. */
kvx_status kvx_ticket_take(kvx_ctx *ctx, enum kvx_op op, uint32_t n, uint64_t *ticket, uint64_t *first);
/* Undoes a take whose batch was not accepted. */
void kvx_ticket_untake(kvx_ctx *ctx, uint64_t ticket);
/* Is the batch still to end? (0 counts as ended.) */
int kvx_ticket_running(kvx_ctx *ctx, uint64_t ticket);
/* Looks for verdicts that have arrived: unpins slots, counts, latches. `book` is held by the caller. */
void kvx_ticket_reap(kvx_ctx *ctx);
/* Frees a layout's host side only. */
void kvx_layout_free(kvx_layout *layout);
/* Waits until nothing runs, at most timeout_ns. */
kvx_status kvx_ticket_drain(kvx_ctx *ctx, uint64_t timeout_ns);

#endif
