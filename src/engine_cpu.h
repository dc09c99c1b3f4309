/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_SRC_ENGINE_CPU_H
#define KVX_SRC_ENGINE_CPU_H
/*
 * Inside the CPU engine. engine_cpu.c: create, destroy, layouts, submit. engine_cpu_keys.c: key slots, tenants' keys,
 * known answers. engine_cpu_pipeline.c: the two workers and what a batch waits for. engine_cpu_transfer.c: sealing and
 * opening.
 */
#include <pthread.h>

#include "cpu_queue.h"
#include "engine.h"
#include "engine_cpu_gcm.h"

/* A batch on its way. Its pairs lie in the engine's `pairs`, from first_entry on. It takes n_segment_events + 2
 * positions of its pipeline's timeline, from first_position on: a segment each, source read, all done. */
typedef struct kvx_cpu_job {
    enum kvx_op op;
    uint32_t n, first_entry, ticket_index;
    uint32_t n_segment_events, n_flags, flag_value;
    uint32_t *flags;
    uint64_t ticket, store_id, first_position;
    kvx_cpu_mark starts_after[3]; /* caller's stream, wait_event, the other pipeline */
} kvx_cpu_job;

enum { KVX_CPU_STORES, KVX_CPU_RESTORES, KVX_CPU_N_PIPELINES };

/* One FIFO of batches and the thread that works through it. */
typedef struct kvx_cpu_pipeline {
    struct kvx_cpu_engine *engine;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    kvx_cpu_timeline *timeline;
    uint64_t last_position; /* handed out so far; the submitter's */
    uint64_t n_put, n_ended;
    kvx_cpu_job *ring;
    uint32_t ring_size;
} kvx_cpu_pipeline;

/* What is known of one pair while its batch is worked on. */
typedef struct kvx_cpu_progress {
    uint64_t key;     /* what the block chose (kvx_block_key) */
    uint32_t verdict; /* the first failure, NONE so far */
    uint32_t tampered;
} kvx_cpu_progress;

typedef struct kvx_cpu_engine {
    kvx_engine_config config;
    void *locked; /* one mapping for words, headers, records, key states and tenants' keys */
    size_t locked_bytes;
    kvx_dev_words *words;
    kvx_header *headers;
    kvx_record *records;
    uint8_t *gathered; /* a unit's plaintext; the store worker's */
    uint8_t *staged;   /* the private copy of sealed bytes; the restore worker's, like `opened` */
    uint8_t *opened;
    size_t buffer_bytes;            /* of each of the three, which are one allocation */
    kvx_key_state *key_states;      /* n_key_slots */
    kvx_tenant_keys *tenant_keys;   /* n_tenants */
    uint8_t (*keys)[KVX_KEY_BYTES]; /* n_key_slots, in memory for secrets. Read inside kvx_key_enter only */
    struct kvx_cpu_gcm *gcm; /* keyed for the length of a unit; the store worker seals, the restore worker opens */
    kvx_dev_layout *layouts;
    kvx_work_pair *pairs;       /* max_pairs, as are the next two */
    kvx_cpu_progress *progress; /* private */
    uint64_t *results;          /* max_pairs result words, then max_tickets released words; stands for host memory */
    struct kvx_cpu_ticket_end {
        uint64_t ticket, position;
    } * ends; /* max_tickets: where on its pipeline's timeline a ticket ends */
    kvx_cpu_pipeline pipelines[KVX_CPU_N_PIPELINES];
    uint32_t n_pipelines; /* running */
    uint32_t stopping;    /* atomic: waits are given up */
} kvx_cpu_engine;

/* As in kvx_engine_ops; engine_cpu_keys.c. */
kvx_status kvx_cpu_selftest(void *engine);
kvx_status kvx_cpu_key_install(void *engine, uint32_t key_slot, uint32_t generation, uint32_t state,
                               const uint8_t key[KVX_KEY_BYTES]);
kvx_status kvx_cpu_tenant_set(void *engine, uint32_t tenant, const kvx_tenant_keys *keys, int next_only);
kvx_status kvx_cpu_tenant_move(void *engine, uint32_t tenant, uint64_t from);
uint64_t kvx_cpu_tenant_current(void *engine, uint32_t tenant);
kvx_status kvx_cpu_key_erase(void *engine, uint32_t key_slot, uint32_t generation);
kvx_status kvx_cpu_key_census(void *engine, const kvx_key_census *census);

/* Starts the worker of pipeline `index`. KVX_NO_MEMORY with the note set. */
kvx_status kvx_cpu_pipeline_start(kvx_cpu_engine *engine, uint32_t index);
/* With engine->stopping set: batches whose wait has not ended do nothing but advance; then the thread ends. */
void kvx_cpu_pipeline_stop(kvx_cpu_pipeline *pipeline);
/* Nonzero if one more batch fits in. Only submit puts batches in, so the answer stays true for it. */
int kvx_cpu_pipeline_has_room(kvx_cpu_pipeline *pipeline);
void kvx_cpu_pipeline_put(kvx_cpu_pipeline *pipeline, const kvx_cpu_job *job);
/* Waits until everything that was put in has ended. */
void kvx_cpu_pipeline_idle(kvx_cpu_pipeline *pipeline);

/* The work of a batch between its waits and its last position. */
void kvx_cpu_run_stores(kvx_cpu_engine *engine, const kvx_cpu_job *job);
void kvx_cpu_run_discards(kvx_cpu_engine *engine, const kvx_cpu_job *job);
void kvx_cpu_run_restores(kvx_cpu_engine *engine, const kvx_cpu_job *job);

#endif
