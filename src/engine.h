/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_SRC_ENGINE_H
#define KVX_SRC_ENGINE_H
/*
 * The seam between the library (context.c, transfer.c) and what does the work (engine_cuda*.c, engine_cpu*.c). The
 * library has checked every argument, numbered the batch and pinned the slots before it calls; the engine owns records,
 * headers, keys on its side, rings and queues. Calls on one engine are serialised by the context's lock, except `poll`,
 * which any thread may call at any time.
 */
#include "kvx.h"
#include "../kernels/format.h"
#include "pool.h"

typedef struct kvx_engine_config {
    const struct kvx_pool_view *pool; /* lives longer than the engine */
    int device;                       /* CUDA ordinal, -1: current */
    uint32_t n_tenants, n_key_slots, max_tickets, max_pairs, max_layouts;
    uint32_t tamper_budget; /* latch when more blocks than this were tampered with */
    uint32_t fixed_field;   /* first 4 bytes of every iv */
    uint64_t prf_key[2];
    uint64_t key_soft_limit, key_hard_limit;
    uint64_t incarnation;             /* the context's random number, for the engine's side */
    uint64_t ring_bytes, burst_bytes; /* 0: the engine's choice */
    uint32_t burst_sms, direct_sms;   /* likewise */
} kvx_engine_config;

enum kvx_op { KVX_OP_STORE, KVX_OP_RESTORE, KVX_OP_DISCARD };

/* A batch. Everything pointed to may vanish when submit returns. Two FIFO pipelines: stores with discards, restores. */
typedef struct kvx_batch {
    enum kvx_op op;
    uint32_t n;
    uint32_t first_entry;  /* entries first_entry .. first_entry + n - 1, modulo max_pairs, are this batch's */
    uint32_t ticket_index; /* place in the ticket table, < max_tickets */
    uint64_t ticket;       /* serial, never reused, ascending */
    uint64_t after;        /* newest ticket of the OTHER pipeline that must end first; 0: none */
    uint32_t after_index;  /* its place in the ticket table */
    uint64_t store_id;     /* STORE, DISCARD: even, larger than that of any earlier batch */
    const kvx_work_pair *pairs;
    const kvx_options *options; /* never NULL; a local copy, defaults filled in */
} kvx_batch;

/* Counters of an engine, all since create, and how it cuts and spreads work; see kvx_stats. */
typedef struct kvx_engine_counts {
    uint64_t launches, copies, host_syncs, record_bytes;
    uint64_t store_bursts, direct_launches, restore_bursts;
    uint64_t burst_bytes, link_rate, seal_rate, measure_ns;
    uint32_t burst_sms, direct_sms;
} kvx_engine_counts;

/* What seals: a processor, or one GPU. */
typedef struct kvx_engine_identity {
    uint8_t uuid[16]; /* of the GPU; the CPU engine has none: zeros */
    char name[16];    /* "cpu" or "cuda" */
} kvx_engine_identity;

/* Of the keys in the key slots, by key slot. An array of n_key_slots each. */
typedef struct kvx_key_census {
    uint64_t *n_blocks; /* VALID slots whose header names the key as it is now */
    uint64_t *spent;    /* as in kvx_key_state */
    uint8_t *is_left; /* nonzero: OPEN_ONLY, and no block that chose it was under way before the blocks were counted */
} kvx_key_census;

typedef struct kvx_engine_ops {
    kvx_engine kind;
    /* Needs no engine. */
    kvx_status (*identify)(int device, kvx_engine_identity *identity);
    /* Allocates everything. The note says what failed. */
    kvx_status (*create)(const kvx_engine_config *config, void **engine);
    /* All work has ended, or it is given up. Wipes keys and records. Returns 0 if work is still under way on the device
     * after a bounded wait: then memory that it may touch must not be freed, and its keys are dead. */
    int (*destroy)(void *engine);
    /* The known answers, on what is in use: seals, opens, refuses a wrong tag. KVX_INTERNAL with the note set. NULL:
     * there is none. */
    kvx_status (*selftest)(void *engine);
    /* Keys. A slot that gets a key is DEAD; `generation` is larger than any before in that slot; `state` is LIVE or
     * OPEN_ONLY. The caller wipes its copy. In steady state neither function waits for work in flight. */
    kvx_status (*key_install)(void *engine, uint32_t key_slot, uint32_t generation, uint32_t state,
                              const uint8_t key[KVX_KEY_BYTES]);
    /* Names a tenant's keys (kvx_key_ref), once they are installed; 0: none. `current` is written if `next_only` is 0,
     * for tenants whose current key is 0 or is to be 0. Sealing that starts afterwards sees it. */
    kvx_status (*tenant_set)(void *engine, uint32_t tenant, const kvx_tenant_keys *keys, int next_only);
    /* Moves the tenant on from key `from` now, if it has not moved by itself. KVX_UNSUPPORTED: it cannot. */
    kvx_status (*tenant_move)(void *engine, uint32_t tenant, uint64_t from);
    /* The tenant's current key, as far as known without waiting. */
    uint64_t (*tenant_current)(void *engine, uint32_t tenant);
    /* Marks the key DEAD, waits until no unit works with it, overwrites its material (random, zero), and looks whether
     * it is gone. Nothing happens if the slot has another generation by now. KVX_TIMEOUT: it is DEAD, and in use. */
    kvx_status (*key_erase)(void *engine, uint32_t key_slot, uint32_t generation);
    /* Blocking, seldom called. */
    kvx_status (*key_census)(void *engine, const kvx_key_census *census);
    /* Sets the latch, without waiting for work in flight. */
    void (*latch)(void *engine);
    /* Does the engine's side still hold this number? Without waiting. */
    int (*incarnation_is)(void *engine, uint64_t incarnation);
    /* Installs or (layout NULL) forgets layout `index`; the arrays in `layout` are host copies to be copied. Blocking.
     * Not called while work names the layout. Checks that lane addresses belong to the engine's device. */
    kvx_status (*layout_set)(void *engine, uint32_t index, const kvx_dev_layout *layout);
    /* Enqueues; does not wait for the device (but see kvx_config on calls that are too large by themselves).
     * KVX_UNSUPPORTED if the stream is being captured; KVX_AGAIN if too much is
     * in flight. After any error nothing of the batch will happen. A batch that was accepted always ends: each pair
     * gets a result word, also when latched. */
    kvx_status (*submit)(void *engine, const kvx_batch *batch);
    /* Verdict of entry `entry` (absolute, < max_pairs) for pair `index` of `ticket`: a kvx_verdict, NONE if not yet. */
    uint32_t (*poll)(void *engine, uint64_t ticket, uint32_t entry, uint32_t index);
    /* Nonzero once the source of the store `ticket` has been read. */
    uint32_t (*released)(void *engine, uint64_t ticket, uint32_t ticket_index);
    /* KVX_OK, or KVX_DEVICE_LOST with the note set. Called now and then by waiters. Does not wait. */
    kvx_status (*health)(void *engine);
    void (*counts)(void *engine, kvx_engine_counts *counts);
#ifdef KVX_TESTING
    /* For tests that decrypt a pool image with OpenSSL alone: header and records of a flat slot. Waits for the device.
     */
    kvx_status (*export_slot)(void *engine, uint32_t slot, kvx_header *header, kvx_record *records, uint32_t n_records);
    /* Overwrite words for tests of limits (sequence near its end, latch, ...). `words` in/out; set != 0 writes. */
    kvx_status (*words)(void *engine, kvx_dev_words *words, int set);
    /* Copies what the rings or staging buffers hold, `*n_bytes` of it at most; sets *n_bytes. Waits for the device. */
    kvx_status (*export_rings)(void *engine, void *bytes, uint64_t *n_bytes);
    /* The words that the host could forge: max_pairs result words, then max_tickets released words. */
    uint64_t *(*results)(void *engine, uint32_t *n_words);
#endif
} kvx_engine_ops;

extern const kvx_engine_ops kvx_engine_cpu;
#if KVX_WITH_CUDA
extern const kvx_engine_ops kvx_engine_cuda;
#endif

#endif
