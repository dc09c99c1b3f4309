/* SPDX-License-Identifier: Apache-2.0 */
/* Slots taken and given back. Which are free, and where the next ones come from, is known to pool_free.c. */
#include <string.h>

#include "../kernels/prf.h"
#include "pool_books.h"

void kvx_pool_slot_free(kvx_pool *pool, uint32_t c, uint32_t flat)
{
    pool->slots[flat].state = KVX_SLOT_FREE;
    kvx_free_set_put(&pool->books[c].set, flat - pool->classes[c].first_slot);
    pool->n_free++;
}

/* A large chunk goes online in steps, so that nobody waits for the lock meanwhile. */
#define SLOTS_AT_ONCE 4096u

static uint32_t class_of_chunk(const kvx_pool *pool, uint32_t chunk)
{
    uint32_t c = pool->view.n_classes - 1;
    while (pool->classes[c].first_chunk > chunk)
        c--;
    return c;
}

void kvx_pool_chunk_online(void *owner, uint32_t chunk)
{
    kvx_pool *pool = owner;
    uint32_t c = class_of_chunk(pool, chunk);
    const kvx_dev_class *class = &pool->classes[c];
    uint32_t kept = !pool->books[c].caller_managed;
    uint32_t next = (chunk - class->first_chunk) * class->slots_per_chunk;
    uint32_t left = class->n_slots - next < class->slots_per_chunk ? class->n_slots - next : class->slots_per_chunk;
    pthread_mutex_lock(&pool->lock);
    pool->chunk_usable[chunk] = 1;
    pool->n_chunks_missing--;
    pthread_mutex_unlock(&pool->lock);
    while (kept && left > 0) {
        uint32_t n = left < SLOTS_AT_ONCE ? left : SLOTS_AT_ONCE;
        pthread_mutex_lock(&pool->lock);
        for (uint32_t i = 0; i < n; i++)
            kvx_pool_slot_free(pool, c, class->first_slot + next++);
        pool->n_kept += n;
        pthread_mutex_unlock(&pool->lock);
        left -= n;
    }
}

int kvx_pool_in_range(const kvx_pool *pool, kvx_slot slot)
{
    return slot.slot_class < pool->view.n_classes && slot.index < pool->classes[slot.slot_class].n_slots;
}

uint32_t kvx_pool_flat_of(const kvx_pool *pool, kvx_slot slot)
{
    return pool->classes[slot.slot_class].first_slot + slot.index;
}

int kvx_pool_is_current(const kvx_pool *pool, kvx_slot slot)
{
    const kvx_slot_book *s = &pool->slots[kvx_pool_flat_of(pool, slot)];
    return pool->books[slot.slot_class].caller_managed ||
           (s->state == KVX_SLOT_TAKEN && s->generation == slot.generation);
}

kvx_status kvx_pool_out_of_range(kvx_slot slot)
{
    return kvx_note(KVX_INVALID, "no slot %u in class %u", slot.index, slot.slot_class);
}

/* A fill that stopped behind the caller's back is told once. */
static kvx_status news_of_fill(kvx_pool *pool)
{
    if (!atomic_load(&pool->watching))
        return KVX_OK;
    kvx_status status = kvx_hostmem_state(pool->memory);
    if (status == KVX_PENDING || !atomic_exchange(&pool->watching, 0))
        return KVX_OK;
    return status == KVX_OK ? KVX_OK : kvx_hostmem_wait(pool->memory, 0);
}

static void hand_out(kvx_pool *pool, uint32_t c, uint32_t index, kvx_slot *slot)
{
    kvx_slot_book *s = &pool->slots[pool->classes[c].first_slot + index];
    s->state = KVX_SLOT_TAKEN;
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
    kvx_class_book *book = &pool->books[slot_class];
    if (book->caller_managed)
        return kvx_note(KVX_INVALID, "the caller keeps slot class %u: pick an index", slot_class);
    if (n > 0)
        KVX_TRY(news_of_fill(pool));
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

static kvx_status check_give(kvx_pool *pool, kvx_slot slot)
{
    if (!kvx_pool_in_range(pool, slot))
        return kvx_pool_out_of_range(slot);
    if (pool->books[slot.slot_class].caller_managed)
        return kvx_note(KVX_INVALID, "the caller keeps slot class %u: nothing to give back", slot.slot_class);
    kvx_slot_book *s = &pool->slots[kvx_pool_flat_of(pool, slot)];
    if (s->marked)
        return kvx_note(KVX_INVALID, "slot %u of class %u is named twice", slot.index, slot.slot_class);
    if (!kvx_pool_is_current(pool, slot))
        return kvx_note(KVX_STALE, "the handle of slot %u of class %u is not current", slot.index, slot.slot_class);
    s->marked = 1;
    return KVX_OK;
}

static void give_one(kvx_pool *pool, kvx_slot slot)
{
    uint32_t flat = kvx_pool_flat_of(pool, slot);
    kvx_slot_book *s = &pool->slots[flat];
    s->generation++;
    if (s->pins > 0)
        s->state = KVX_SLOT_GIVEN;
    else
        kvx_pool_slot_free(pool, slot.slot_class, flat);
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
        pool->slots[kvx_pool_flat_of(pool, slots[i])].marked = 0;
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
    if (!kvx_pool_in_range(pool, slot))
        return kvx_pool_out_of_range(slot);
    const kvx_dev_class *class = &pool->classes[slot.slot_class];
    const kvx_hostmem_chunk *chunk = &pool->chunks[class->first_chunk + slot.index / class->slots_per_chunk];
    *bytes = chunk->host + (uint64_t)(slot.index % class->slots_per_chunk) * class->slot_bytes;
    *n_bytes = class->slot_bytes;
    return KVX_OK;
}
