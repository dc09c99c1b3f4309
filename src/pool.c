/* SPDX-License-Identifier: Apache-2.0 */
/* The books of a pool: classes over chunks of host memory, and per slot its generation, pins and last owner. Which
 * slots are free, and where the next ones come from, is known to pool_free.c. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "../kernels/prf.h"
#include "pool.h"
#include "pool_free.h"
#include "status.h"

#define CHUNK_BYTES_MAX (16ull << 30)
#define DEFAULT_UNITS 64u

enum slot_state { SLOT_FREE, SLOT_TAKEN, SLOT_GIVEN /* becomes free at its last unpin */ };

typedef struct slot_book {
    uint32_t generation;
    uint32_t pins;
    uint32_t owner;          /* context that stored last; 0: none */
    uint32_t previous_owner; /* before the newest pin for writing */
    uint8_t state;
    uint8_t marked; /* named by the give that is being checked */
} slot_book;

typedef struct class_book {
    uint32_t caller_managed;
    kvx_free_set set; /* unused if caller-managed */
} class_book;

struct kvx_pool {
    pid_t pid;
    pthread_mutex_t lock; /* guards all below but the view and what it points to */
    kvx_pool_view view;
    kvx_dev_class classes[KVX_CLASSES_LIMIT];
    kvx_hostmem_chunk *chunks;
    class_book books[KVX_CLASSES_LIMIT];
    slot_book *slots;
    uint64_t n_kept, n_free, n_in_flight; /* of the classes that the pool keeps */
    uint64_t random_key[2], random_count;
    uint32_t n_contexts, last_owner;
};

static void slot_free(kvx_pool *pool, uint32_t c, uint32_t flat)
{
    pool->slots[flat].state = SLOT_FREE;
    kvx_free_set_put(&pool->books[c].set, flat - pool->classes[c].first_slot);
    pool->n_free++;
}

static kvx_status check_config(const kvx_pool_config *config)
{
    uint64_t n_slots = 0;
    if (!config->classes || config->n_classes == 0 || config->n_classes > KVX_CLASSES_MAX)
        return kvx_note(KVX_INVALID, "a pool has 1 to %u slot classes", KVX_CLASSES_MAX);
    if (config->engine != KVX_ENGINE_AUTO && config->engine != KVX_ENGINE_CUDA && config->engine != KVX_ENGINE_CPU)
        return kvx_note(KVX_INVALID, "no such engine: %d", (int)config->engine);
    if (config->numa_node < 0)
        return kvx_note(KVX_INVALID, "numa_node is the node + 1, or 0");
    for (uint32_t c = 0; c < config->n_classes; c++) {
        const kvx_slot_class *given = &config->classes[c];
        if (given->slot_bytes == 0 || given->slot_bytes > KVX_SLOT_BYTES_MAX)
            return kvx_note(KVX_INVALID, "class %u: slot_bytes must be 1 to %u", c, KVX_SLOT_BYTES_MAX);
        if (given->n_slots == 0 || given->max_units > KVX_UNITS_MAX)
            return kvx_note(KVX_INVALID, "class %u: n_slots must be at least 1, max_units at most %u", c,
                            KVX_UNITS_MAX);
        n_slots += given->n_slots;
    }
    if (n_slots > KVX_SLOTS_MAX)
        return kvx_note(KVX_INVALID, "a pool has at most %u slots in all", KVX_SLOTS_MAX);
    return KVX_OK;
}

/* Lays the classes out over slots, records and chunks. Nothing here can overflow: at most 2^31 slots of 2^26 bytes. */
static kvx_status plan(kvx_pool *pool, const kvx_pool_config *config)
{
    kvx_pool_view *view = &pool->view;
    uint64_t n_chunks = 0;
    for (uint32_t c = 0; c < config->n_classes; c++) {
        const kvx_slot_class *given = &config->classes[c];
        kvx_dev_class *class = &pool->classes[c];
        uint64_t slot_bytes = (given->slot_bytes + KVX_SLOT_ALIGN - 1) / KVX_SLOT_ALIGN * KVX_SLOT_ALIGN;
        uint64_t per_chunk = CHUNK_BYTES_MAX / slot_bytes;
        class->slot_bytes = (uint32_t)slot_bytes;
        class->n_slots = given->n_slots;
        class->max_units = given->max_units ? given->max_units : DEFAULT_UNITS;
        class->first_slot = view->n_slots;
        class->first_record = view->n_records;
        class->first_chunk = (uint32_t)n_chunks;
        class->slots_per_chunk = (uint32_t)(per_chunk < given->n_slots ? per_chunk : given->n_slots);
        pool->books[c].caller_managed = given->caller_managed;
        n_chunks += (given->n_slots + class->slots_per_chunk - 1) / class->slots_per_chunk;
        view->n_slots += given->n_slots;
        view->n_records += (uint64_t)given->n_slots * class->max_units;
        view->bytes += slot_bytes * given->n_slots;
    }
    if (n_chunks > KVX_CHUNKS_LIMIT)
        return kvx_note(KVX_NO_MEMORY, "%llu bytes are more than a pool can hold", (unsigned long long)view->bytes);
    view->n_classes = config->n_classes;
    view->classes = pool->classes;
    return kvx_hostmem_fits(view->bytes);
}

static void free_books(kvx_pool *pool)
{
    for (uint32_t c = 0; c < pool->view.n_classes; c++)
        kvx_free_set_destroy(&pool->books[c].set);
    free(pool->slots);
    free(pool->chunks);
}

static kvx_status make_class_book(kvx_pool *pool, uint32_t c)
{
    class_book *book = &pool->books[c];
    const kvx_dev_class *class = &pool->classes[c];
    if (book->caller_managed)
        return KVX_OK;
    if (!kvx_free_set_create(&book->set, class->n_slots, class->slot_bytes))
        return kvx_note(KVX_NO_MEMORY, "no memory for the books of %u slots", class->n_slots);
    for (uint32_t i = 0; i < class->n_slots; i++)
        slot_free(pool, c, class->first_slot + i);
    pool->n_kept += class->n_slots;
    return KVX_OK;
}

static kvx_status make_books(kvx_pool *pool)
{
    const kvx_dev_class *last = &pool->classes[pool->view.n_classes - 1];
    uint32_t n_chunks = last->first_chunk + (last->n_slots - 1) / last->slots_per_chunk + 1;
    pool->slots = calloc(pool->view.n_slots, sizeof(*pool->slots));
    pool->chunks = calloc(n_chunks, sizeof(*pool->chunks));
    if (!pool->slots || !pool->chunks)
        return kvx_note(KVX_NO_MEMORY, "no memory for the books of %u slots", pool->view.n_slots);
    pool->view.chunks = pool->chunks;
    for (uint32_t c = 0; c < pool->view.n_classes; c++)
        KVX_TRY(make_class_book(pool, c));
    return KVX_OK;
}

static void unmap_chunks(kvx_pool *pool)
{
    while (pool->view.n_chunks > 0)
        kvx_hostmem_unmap(&pool->chunks[--pool->view.n_chunks]);
}

static kvx_status map_class(kvx_pool *pool, const kvx_dev_class *class, kvx_hostmem_config *memory)
{
    for (uint32_t done = 0; done < class->n_slots;) {
        uint32_t left = class->n_slots - done, pinned = 0;
        uint32_t n = left < class->slots_per_chunk ? left : class->slots_per_chunk;
        memory->chunk_bytes = (uint64_t)n * class->slot_bytes;
        KVX_TRY(kvx_hostmem_map(memory, &pool->chunks[pool->view.n_chunks], &pinned));
        pool->view.n_chunks++;
        pool->view.pinned &= pinned;
        done += n;
    }
    return KVX_OK;
}

static kvx_status map_chunks(kvx_pool *pool, const kvx_pool_config *config)
{
    kvx_hostmem_config memory = {0, config->engine, config->numa_node - 1, config->allow_pageable};
    pool->view.pinned = 1;
    for (uint32_t c = 0; c < pool->view.n_classes; c++)
        KVX_TRY(map_class(pool, &pool->classes[c], &memory));
    return KVX_OK;
}

static kvx_status seed_random(kvx_pool *pool)
{
    ssize_t got;
    do
        got = getrandom(pool->random_key, sizeof(pool->random_key), 0);
    while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof(pool->random_key))
        return kvx_note(KVX_INTERNAL, "getrandom failed: no seed for the placement of slots");
    return KVX_OK;
}

static kvx_status read_config(const kvx_pool_config *given, kvx_pool_config *config)
{
    memset(config, 0, sizeof(*config));
    if (!given)
        return kvx_note(KVX_INVALID, "config is NULL");
    if (given->size < sizeof(given->size) || given->size > sizeof(*config))
        return kvx_note(KVX_INVALID, "kvx_pool_config.size is %zu: set it with KVX_POOL_CONFIG_INIT", given->size);
    memcpy(config, given, given->size);
    return check_config(config);
}

static kvx_status build(kvx_pool *pool, const kvx_pool_config *config)
{
    kvx_status status;
    KVX_TRY(plan(pool, config));
    KVX_TRY(seed_random(pool));
    status = make_books(pool);
    if (status == KVX_OK)
        status = map_chunks(pool, config);
    if (status != KVX_OK) {
        unmap_chunks(pool);
        free_books(pool);
    }
    return status;
}

kvx_status kvx_pool_create(const kvx_pool_config *config, kvx_pool **pool)
{
    kvx_pool_config own;
    kvx_status status;
    if (!pool)
        return kvx_note(KVX_INVALID, "pool is NULL");
    KVX_TRY(read_config(config, &own));
    kvx_pool *made = calloc(1, sizeof(*made));
    if (!made)
        return kvx_note(KVX_NO_MEMORY, "no memory for a pool");
    made->pid = getpid();
    if (pthread_mutex_init(&made->lock, NULL) != 0) {
        status = kvx_note(KVX_NO_MEMORY, "no memory for a lock");
        goto free_pool;
    }
    status = build(made, &own);
    if (status != KVX_OK)
        goto destroy_lock;
    *pool = made;
    return KVX_OK;

destroy_lock:
    pthread_mutex_destroy(&made->lock);
free_pool:
    free(made);
    return status;
}

kvx_status kvx_pool_alive(const kvx_pool *pool)
{
    if (!pool)
        return kvx_note(KVX_INVALID, "pool is NULL");
    if (pool->pid != getpid())
        return kvx_note(KVX_FORKED, "the pool belongs to process %ld: create one in this process", (long)pool->pid);
    return KVX_OK;
}

kvx_status kvx_pool_destroy(kvx_pool *pool)
{
    if (!pool)
        return KVX_OK;
    KVX_TRY(kvx_pool_alive(pool));
    pthread_mutex_lock(&pool->lock);
    uint32_t n_contexts = pool->n_contexts;
    pthread_mutex_unlock(&pool->lock);
    if (n_contexts > 0)
        return kvx_note(KVX_INVALID, "%u contexts still use the pool: destroy them first", n_contexts);
    unmap_chunks(pool);
    free_books(pool);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
    return KVX_OK;
}

static void hand_out(kvx_pool *pool, uint32_t c, uint32_t index, kvx_slot *slot)
{
    slot_book *s = &pool->slots[pool->classes[c].first_slot + index];
    s->state = SLOT_TAKEN;
    s->owner = 0;
    pool->n_free--;
    if (s->pins > 0) /* by a restore under an old handle */
        pool->n_in_flight++;
    slot->slot_class = c;
    slot->index = index;
    slot->generation = s->generation;
}

kvx_status kvx_pool_take(kvx_pool *pool, uint32_t slot_class, uint32_t n, kvx_slot *slots)
{
    uint32_t first, done = 0, n_free;
    KVX_TRY(kvx_pool_alive(pool));
    if (!slots && n > 0)
        return kvx_note(KVX_INVALID, "slots is NULL");
    if (slot_class >= pool->view.n_classes)
        return kvx_note(KVX_INVALID, "the pool has no slot class %u", slot_class);
    class_book *book = &pool->books[slot_class];
    if (book->caller_managed)
        return kvx_note(KVX_INVALID, "the caller keeps slot class %u: pick an index", slot_class);
    pthread_mutex_lock(&pool->lock);
    n_free = book->set.n_free;
    while (n <= n_free && done < n) {
        uint64_t random = kvx_prf(pool->random_key, pool->random_count++, 0);
        uint32_t run = kvx_free_set_take(&book->set, n - done, random, &first);
        for (uint32_t i = 0; i < run; i++)
            hand_out(pool, slot_class, first + i, &slots[done++]);
    }
    pthread_mutex_unlock(&pool->lock);
    if (n > n_free)
        return kvx_note(KVX_AGAIN, "%u slots of class %u are free, not %u", n_free, slot_class, n);
    return KVX_OK;
}

static int in_range(const kvx_pool *pool, kvx_slot slot)
{
    return slot.slot_class < pool->view.n_classes && slot.index < pool->classes[slot.slot_class].n_slots;
}

static uint32_t flat_of(const kvx_pool *pool, kvx_slot slot)
{
    return pool->classes[slot.slot_class].first_slot + slot.index;
}

static int is_current(const kvx_pool *pool, kvx_slot slot)
{
    const slot_book *s = &pool->slots[flat_of(pool, slot)];
    return pool->books[slot.slot_class].caller_managed || (s->state == SLOT_TAKEN && s->generation == slot.generation);
}

static kvx_status out_of_range(kvx_slot slot)
{
    return kvx_note(KVX_INVALID, "no slot %u in class %u", slot.index, slot.slot_class);
}

static kvx_status check_give(kvx_pool *pool, kvx_slot slot)
{
    if (!in_range(pool, slot))
        return out_of_range(slot);
    if (pool->books[slot.slot_class].caller_managed)
        return kvx_note(KVX_INVALID, "the caller keeps slot class %u: nothing to give back", slot.slot_class);
    slot_book *s = &pool->slots[flat_of(pool, slot)];
    if (s->marked)
        return kvx_note(KVX_INVALID, "slot %u of class %u is named twice", slot.index, slot.slot_class);
    if (!is_current(pool, slot))
        return kvx_note(KVX_STALE, "the handle of slot %u of class %u is not current", slot.index, slot.slot_class);
    s->marked = 1;
    return KVX_OK;
}

static void give_one(kvx_pool *pool, kvx_slot slot)
{
    uint32_t flat = flat_of(pool, slot);
    slot_book *s = &pool->slots[flat];
    s->generation++;
    if (s->pins > 0)
        s->state = SLOT_GIVEN;
    else
        slot_free(pool, slot.slot_class, flat);
}

kvx_status kvx_pool_give(kvx_pool *pool, uint32_t n, const kvx_slot *slots)
{
    kvx_status status = KVX_OK;
    uint32_t n_checked = 0;
    KVX_TRY(kvx_pool_alive(pool));
    if (!slots && n > 0)
        return kvx_note(KVX_INVALID, "slots is NULL");
    pthread_mutex_lock(&pool->lock);
    while (n_checked < n && (status = check_give(pool, slots[n_checked])) == KVX_OK)
        n_checked++;
    for (uint32_t i = 0; i < n_checked; i++) {
        pool->slots[flat_of(pool, slots[i])].marked = 0;
        if (status == KVX_OK)
            give_one(pool, slots[i]);
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}

kvx_status kvx_pool_slot_bytes(kvx_pool *pool, kvx_slot slot, void **bytes, uint64_t *n_bytes)
{
    KVX_TRY(kvx_pool_alive(pool));
    if (!bytes || !n_bytes)
        return kvx_note(KVX_INVALID, "an output is NULL");
    if (!in_range(pool, slot))
        return out_of_range(slot);
    const kvx_dev_class *class = &pool->classes[slot.slot_class];
    const kvx_hostmem_chunk *chunk = &pool->chunks[class->first_chunk + slot.index / class->slots_per_chunk];
    *bytes = chunk->host + (uint64_t)(slot.index % class->slots_per_chunk) * class->slot_bytes;
    *n_bytes = class->slot_bytes;
    return KVX_OK;
}

const kvx_pool_view *kvx_pool_view_of(const kvx_pool *pool)
{
    return &pool->view;
}

uint32_t kvx_pool_attach(kvx_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    uint32_t owner = ++pool->last_owner;
    pool->n_contexts++;
    pthread_mutex_unlock(&pool->lock);
    return owner;
}

void kvx_pool_detach(kvx_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->n_contexts--;
    pthread_mutex_unlock(&pool->lock);
}

static kvx_slot pin_slot(const kvx_pool_pin *pin, uint32_t i)
{
    kvx_slot slot;
    memcpy(&slot, (const char *)pin->slots + (size_t)i * pin->stride, sizeof(slot));
    return slot;
}

static kvx_status check_pins(const kvx_pool *pool, const kvx_pool_pin *pin)
{
    for (uint32_t i = 0; i < pin->n; i++) {
        kvx_slot slot = pin_slot(pin, i);
        if (!in_range(pool, slot))
            return out_of_range(slot);
        if (pin->writing && !is_current(pool, slot))
            return kvx_note(KVX_STALE, "pair %u: the handle of slot %u of class %u is not current", i, slot.index,
                            slot.slot_class);
        /* Contexts do not see each other's queues: a write here would race with the other's copies. */
        const slot_book *s = &pool->slots[flat_of(pool, slot)];
        if (pin->writing && s->pins > 0 && s->owner != 0 && s->owner != pin->owner)
            return kvx_note(KVX_AGAIN, "pair %u: slot %u is in use by another context", i, slot.index);
    }
    return KVX_OK;
}

static void pin_one(kvx_pool *pool, const kvx_pool_pin *pin, uint32_t i)
{
    kvx_slot slot = pin_slot(pin, i);
    uint32_t flat = flat_of(pool, slot);
    slot_book *s = &pool->slots[flat];
    int foreign = s->owner != 0 && s->owner != pin->owner;
    int kept = !pool->books[slot.slot_class].caller_managed;
    pin->flat[i] = flat;
    if (pin->refusals)
        pin->refusals[i] =
            !pin->writing && (foreign || !is_current(pool, slot)) ? (uint8_t)KVX_VERDICT_STALE : (uint8_t)0;
    if (pin->writing) {
        s->previous_owner = s->owner;
        s->owner = pin->owner;
    }
    if (s->pins++ == 0 && kept && s->state == SLOT_TAKEN)
        pool->n_in_flight++;
}

kvx_status kvx_pool_pin_slots(kvx_pool *pool, const kvx_pool_pin *pin)
{
    pthread_mutex_lock(&pool->lock);
    kvx_status status = check_pins(pool, pin);
    for (uint32_t i = 0; status == KVX_OK && i < pin->n; i++)
        pin_one(pool, pin, i);
    pthread_mutex_unlock(&pool->lock);
    return status;
}

static uint32_t class_of(const kvx_pool *pool, uint32_t flat)
{
    uint32_t c = 0;
    while (flat - pool->classes[c].first_slot >= pool->classes[c].n_slots)
        c++;
    return c;
}

static void unpin_one(kvx_pool *pool, uint32_t flat)
{
    slot_book *s = &pool->slots[flat];
    uint32_t c = class_of(pool, flat);
    if (--s->pins > 0 || s->state == SLOT_FREE)
        return;
    if (!pool->books[c].caller_managed)
        pool->n_in_flight--;
    if (s->state == SLOT_GIVEN)
        slot_free(pool, c, flat);
}

void kvx_pool_unpin(kvx_pool *pool, uint32_t n, const uint32_t *flat)
{
    pthread_mutex_lock(&pool->lock);
    for (uint32_t i = 0; i < n; i++)
        unpin_one(pool, flat[i]);
    pthread_mutex_unlock(&pool->lock);
}

void kvx_pool_pin_undo(kvx_pool *pool, const kvx_pool_pin *pin)
{
    pthread_mutex_lock(&pool->lock);
    for (uint32_t i = 0; pin->writing && i < pin->n; i++)
        pool->slots[pin->flat[i]].owner = pool->slots[pin->flat[i]].previous_owner;
    pthread_mutex_unlock(&pool->lock);
    kvx_pool_unpin(pool, pin->n, pin->flat);
}

void kvx_pool_counts(kvx_pool *pool, uint64_t *n_free, uint64_t *n_used, uint64_t *n_in_flight)
{
    pthread_mutex_lock(&pool->lock);
    *n_free = pool->n_free;
    *n_in_flight = pool->n_in_flight;
    *n_used = pool->n_kept - pool->n_free - pool->n_in_flight;
    pthread_mutex_unlock(&pool->lock);
}
