/* SPDX-License-Identifier: Apache-2.0 */
/* Slots pinned by batches in flight: what is pinned is neither handed out again nor written by another context. */
#include <string.h>

#include "pool_books.h"

static kvx_slot pin_slot(const kvx_pool_pin *pin, uint32_t i)
{
    kvx_slot slot;
    memcpy(&slot, (const char *)pin->slots + (size_t)i * pin->stride, sizeof(slot));
    return slot;
}

/* Of slots that the caller picks, the memory may not be there yet. */
static kvx_status check_there(const kvx_pool *pool, kvx_slot slot, uint32_t i)
{
    const kvx_dev_class *class = &pool->classes[slot.slot_class];
    if (pool->n_chunks_missing == 0 || pool->chunk_usable[class->first_chunk + slot.index / class->slots_per_chunk])
        return KVX_OK;
    kvx_status fill = kvx_hostmem_state(pool->memory);
    if (fill != KVX_OK && fill != KVX_PENDING)
        return kvx_note(fill, "pair %u: slot %u of class %u never came: see kvx_pool_wait()", i, slot.index,
                        slot.slot_class);
    return kvx_note(KVX_AGAIN, "pair %u: slot %u of class %u is not usable yet", i, slot.index, slot.slot_class);
}

static kvx_status check_pins(const kvx_pool *pool, const kvx_pool_pin *pin)
{
    for (uint32_t i = 0; i < pin->n; i++) {
        kvx_slot slot = pin_slot(pin, i);
        if (!kvx_pool_in_range(pool, slot))
            return kvx_pool_out_of_range(slot);
        KVX_TRY(check_there(pool, slot, i));
        if (pin->writing && !kvx_pool_is_current(pool, slot))
            return kvx_note(KVX_STALE, "pair %u: the handle of slot %u of class %u is not current", i, slot.index,
                            slot.slot_class);
        /* Contexts do not see each other's queues: a write here would race with the other's copies. */
        const kvx_slot_book *s = &pool->slots[kvx_pool_flat_of(pool, slot)];
        if (pin->writing && s->pins > 0 && s->owner != 0 && s->owner != pin->owner)
            return kvx_note(KVX_AGAIN, "pair %u: slot %u is in use by another context", i, slot.index);
    }
    return KVX_OK;
}

static void pin_one(kvx_pool *pool, const kvx_pool_pin *pin, uint32_t i)
{
    kvx_slot slot = pin_slot(pin, i);
    uint32_t flat = kvx_pool_flat_of(pool, slot);
    kvx_slot_book *s = &pool->slots[flat];
    int foreign = s->owner != 0 && s->owner != pin->owner;
    int kept = !pool->books[slot.slot_class].caller_managed;
    pin->flat[i] = flat;
    if (pin->refusals)
        pin->refusals[i] =
            !pin->writing && (foreign || !kvx_pool_is_current(pool, slot)) ? (uint8_t)KVX_VERDICT_STALE : (uint8_t)0;
    if (pin->writing) {
        s->previous_owner = s->owner;
        s->owner = pin->owner;
    }
    if (s->pins++ == 0 && kept && s->state == KVX_SLOT_TAKEN)
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
    kvx_slot_book *s = &pool->slots[flat];
    uint32_t c = class_of(pool, flat);
    if (--s->pins > 0 || s->state == KVX_SLOT_FREE)
        return;
    if (!pool->books[c].caller_managed)
        pool->n_in_flight--;
    if (s->state == KVX_SLOT_GIVEN)
        kvx_pool_slot_free(pool, c, flat);
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
