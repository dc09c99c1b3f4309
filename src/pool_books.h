/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_SRC_POOL_BOOKS_H
#define KVX_SRC_POOL_BOOKS_H
/* What a pool holds, between its files: pool.c (life), pool_slots.c (take, give), pool_pins.c (pins) and pool_lease.c
 * (memory shared between processes). */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "hostmem.h"
#include "pool.h"
#include "pool_free.h"
#include "pool_lease.h"
#include "status.h"

enum kvx_slot_state { KVX_SLOT_FREE, KVX_SLOT_TAKEN, KVX_SLOT_GIVEN /* becomes free at its last unpin */ };

typedef struct kvx_slot_book {
    uint32_t generation;
    uint32_t pins;
    uint32_t owner;          /* context that stored last; 0: none */
    uint32_t previous_owner; /* before the newest pin for writing */
    uint8_t state;
    uint8_t marked; /* named by the give that is being checked */
} kvx_slot_book;

typedef struct kvx_class_book {
    uint32_t caller_managed;
    kvx_free_set set; /* unused if caller-managed */
} kvx_class_book;

struct kvx_pool {
    pid_t pid;
    pthread_mutex_t lock; /* guards all below but the view, what it points to, the memory and the leases */
    kvx_pool_view view;
    kvx_dev_class classes[KVX_CLASSES_LIMIT];
    kvx_hostmem_chunk *chunks;
    kvx_hostmem *memory;
    kvx_lease *lease; /* NULL: not shared */
    uint64_t bytes_asked;
    atomic_int watching; /* the fill may still have news for kvx_pool_take() */
    kvx_class_book books[KVX_CLASSES_LIMIT];
    kvx_slot_book *slots;
    uint8_t *chunk_usable; /* of each chunk */
    uint32_t n_chunks_missing;
    uint64_t n_kept, n_free, n_in_flight; /* usable slots of the classes that the pool keeps */
    uint64_t random_key[2], random_count;
    uint32_t n_contexts, last_owner;
};

/* The next four need the lock, or constant fields only. */
void kvx_pool_slot_free(kvx_pool *pool, uint32_t slot_class, uint32_t flat);
int kvx_pool_in_range(const kvx_pool *pool, kvx_slot slot);
uint32_t kvx_pool_flat_of(const kvx_pool *pool, kvx_slot slot);
int kvx_pool_is_current(const kvx_pool *pool, kvx_slot slot);
kvx_status kvx_pool_out_of_range(kvx_slot slot); /* KVX_INVALID with its note */

/* A chunk is usable: its slots may be taken. For kvx_hostmem_config.online. */
void kvx_pool_chunk_online(void *pool, uint32_t chunk);

#endif
