/* SPDX-License-Identifier: Apache-2.0 */
/* The wraps. */
#include "tier_fake.h"

#include <string.h>

#include "support.h"

fake_core fake;
static char handles[3];
kvx_ctx *const fake_ctx = (kvx_ctx *)(void *)&handles[0];
kvx_pool *const fake_pool = (kvx_pool *)(void *)&handles[1];
const kvx_layout *const fake_layout = (const kvx_layout *)(const void *)&handles[2];

kvx_status __wrap_kvx_store(kvx_ctx *ctx, uint32_t n, const kvx_pair *pairs, const kvx_options *options,
                            kvx_ticket *ticket);
kvx_status __wrap_kvx_restore(kvx_ctx *ctx, uint32_t n, const kvx_pair *pairs, const kvx_options *options,
                              kvx_ticket *ticket);
kvx_status __wrap_kvx_discard(kvx_ctx *ctx, uint32_t n, const kvx_slot *slots, kvx_ticket *ticket);
kvx_status __wrap_kvx_poll(kvx_ctx *ctx, kvx_ticket ticket, kvx_result *result, uint32_t n_verdicts,
                           kvx_status *verdicts);
void __wrap_kvx_layout_info(const kvx_layout *layout, uint64_t *sealed_bytes, uint32_t *n_segments);
kvx_status __wrap_kvx_stats_get(kvx_ctx *ctx, kvx_stats *stats);
kvx_status __wrap_kvx_pool_slot_bytes(kvx_pool *pool, kvx_slot slot, void **bytes, uint64_t *n_bytes);
kvx_status __wrap_kvx_pool_take(kvx_pool *pool, uint32_t slot_class, uint32_t n, kvx_slot *slots);

void fake_reset(uint64_t seed)
{
    memset(&fake, 0, sizeof fake);
    fake.random = seed;
}

uint32_t fake_roll(uint32_t n)
{
    return (uint32_t)(random_word(&fake.random) >> 33) % n;
}

static int chance(uint32_t percent)
{
    return percent > 0 && fake_roll(100) < percent;
}

static kvx_status outcome_of_call(void)
{
    if (fake.latched)
        return KVX_LATCHED;
    if (fake.n_running == FAKE_BATCHES || chance(fake.again_percent))
        return KVX_AGAIN;
    return chance(fake.refuse_percent) ? KVX_INVALID : KVX_OK;
}

/* No slot may be in two batches at once unless both only read it. */
static void check_running(fake_kind kind, uint32_t n, const kvx_pair *pairs)
{
    for (uint32_t b = 0; b < FAKE_BATCHES; b++)
        for (uint32_t i = 0; fake.batches[b].kind != FAKE_FREE && i < fake.batches[b].n; i++)
            for (uint32_t j = 0; j < n; j++)
                if (fake.batches[b].pairs[i].slot.index == pairs[j].slot.index)
                    fake.n_wrong += kind == FAKE_STORE || fake.batches[b].kind == FAKE_STORE;
}

static fake_batch *begin(fake_kind kind, uint32_t n, const kvx_pair *pairs, kvx_ticket *ticket)
{
    fake_batch *batch = fake.batches;
    while (batch->kind != FAKE_FREE)
        batch++;
    if (n == 0 || n > FAKE_PAIRS)
        fail_msg("a batch of %u", n);
    check_running(kind, n, pairs);
    batch->kind = kind;
    batch->stage = 0;
    batch->n = n;
    memcpy(batch->pairs, pairs, n * sizeof *pairs);
    *ticket = batch->ticket = ++fake.last_ticket;
    fake.n_running++;
    return batch;
}

kvx_status __wrap_kvx_store(kvx_ctx *ctx, uint32_t n, const kvx_pair *pairs, const kvx_options *options,
                            kvx_ticket *ticket)
{
    kvx_status status = ctx == fake_ctx ? outcome_of_call() : KVX_INTERNAL;
    int tag = fake.observer.store ? fake.observer.store(fake.observer.self, status, n, pairs, options) : 0;
    if (status == KVX_OK)
        begin(FAKE_STORE, n, pairs, ticket)->tag = tag;
    return status;
}

kvx_status __wrap_kvx_restore(kvx_ctx *ctx, uint32_t n, const kvx_pair *pairs, const kvx_options *options,
                              kvx_ticket *ticket)
{
    (void)options;
    kvx_status status = ctx == fake_ctx ? outcome_of_call() : KVX_INTERNAL;
    int tag = fake.observer.restore ? fake.observer.restore(fake.observer.self, status, n, pairs) : 0;
    if (status == KVX_OK)
        begin(FAKE_RESTORE, n, pairs, ticket)->tag = tag;
    return status;
}

kvx_status __wrap_kvx_discard(kvx_ctx *ctx, uint32_t n, const kvx_slot *slots, kvx_ticket *ticket)
{
    kvx_status status = ctx == fake_ctx && !ticket ? outcome_of_call() : KVX_INTERNAL;
    if (fake.observer.discard)
        fake.observer.discard(fake.observer.self, status, n, slots);
    for (uint32_t i = 0; status == KVX_OK && i < n; i++) {
        kvx_pair pair = {.slot = slots[i]};
        check_running(FAKE_STORE, 1, &pair);
        fake.slots[slots[i].index].content = 0;
    }
    return status;
}

static void read_sources(fake_batch *batch)
{
    for (uint32_t i = 0; i < batch->n; i++)
        batch->content[i] = fake.gpu[batch->pairs[i].block];
    if (fake.observer.released)
        fake.observer.released(fake.observer.self, batch->tag);
}

static kvx_status store_one(const fake_batch *batch, uint32_t i)
{
    const kvx_pair *pair = &batch->pairs[i];
    if (fake.latched)
        return KVX_LATCHED;
    if (chance(fake.store_fail_percent))
        return fake_roll(2) ? KVX_SUPERSEDED : KVX_EXHAUSTED;
    /* Two blocks of one slot never have one handle. */
    fake.n_wrong += fake.slots[pair->slot.index].generation == pair->slot.generation;
    fake.slots[pair->slot.index].content = batch->content[i];
    fake.slots[pair->slot.index].generation = pair->slot.generation;
    fake.slots[pair->slot.index].tenant = pair->tenant;
    return KVX_OK;
}

static kvx_status restore_one(const fake_batch *batch, uint32_t i)
{
    static const kvx_status bad[] = {KVX_MISS, KVX_BUSY, KVX_STALE, KVX_REFUSED, KVX_TAMPERED, KVX_DEVICE_LOST};
    const kvx_pair *pair = &batch->pairs[i];
    uint32_t slot = pair->slot.index;
    fake.gpu[pair->block] = 0;
    if (fake.latched)
        return KVX_LATCHED;
    if (chance(fake.load_fail_percent))
        return bad[fake_roll(COUNT(bad))];
    fake.n_wrong += fake.slots[slot].content == 0 || fake.slots[slot].generation != pair->slot.generation ||
                    fake.slots[slot].tenant != pair->tenant;
    fake.gpu[pair->block] = fake.slots[slot].content;
    return KVX_OK;
}

static void finish(fake_batch *batch, kvx_result *result, kvx_status *verdicts)
{
    for (uint32_t i = 0; i < batch->n; i++) {
        verdicts[i] = batch->kind == FAKE_STORE ? store_one(batch, i) : restore_one(batch, i);
        if (verdicts[i] != KVX_OK && result->first_error == KVX_OK)
            result->first_error = verdicts[i];
    }
    if (batch->kind == FAKE_STORE && fake.observer.stored)
        fake.observer.stored(fake.observer.self, batch->tag, verdicts);
    if (batch->kind == FAKE_RESTORE && fake.observer.restored)
        fake.observer.restored(fake.observer.self, batch->tag, verdicts);
    batch->kind = FAKE_FREE;
    fake.n_running--;
}

kvx_status __wrap_kvx_poll(kvx_ctx *ctx, kvx_ticket ticket, kvx_result *result, uint32_t n_verdicts,
                           kvx_status *verdicts)
{
    fake_batch *batch = fake.batches;
    assert_ptr_equal(ctx, fake_ctx);
    while (batch < fake.batches + FAKE_BATCHES && (batch->kind == FAKE_FREE || batch->ticket != ticket))
        batch++;
    if (batch == fake.batches + FAKE_BATCHES)
        return KVX_UNKNOWN;
    assert_true(n_verdicts == batch->n);
    memset(result, 0, sizeof *result);
    int moves = !fake.hold && fake_roll(2);
    if (batch->stage == 0 && moves) {
        batch->stage = 1;
        if (batch->kind == FAKE_STORE)
            read_sources(batch);
        moves = (int)fake_roll(2);
    }
    result->released = (uint32_t)batch->stage;
    if (batch->stage == 0 || !moves)
        return KVX_PENDING;
    finish(batch, result, verdicts);
    return KVX_OK;
}

void __wrap_kvx_layout_info(const kvx_layout *layout, uint64_t *sealed_bytes, uint32_t *n_segments)
{
    assert_ptr_equal(layout, fake_layout);
    assert_null(n_segments);
    *sealed_bytes = FAKE_SEALED;
}

kvx_status __wrap_kvx_stats_get(kvx_ctx *ctx, kvx_stats *stats)
{
    assert_ptr_equal(ctx, fake_ctx);
    stats->latched = (uint32_t)fake.latched;
    return KVX_OK;
}

kvx_status __wrap_kvx_pool_slot_bytes(kvx_pool *pool, kvx_slot slot, void **bytes, uint64_t *n_bytes)
{
    assert_ptr_equal(pool, fake_pool);
    *bytes = NULL;
    *n_bytes = 4096;
    return slot.index < FAKE_SLOTS ? KVX_OK : KVX_INVALID;
}

kvx_status __wrap_kvx_pool_take(kvx_pool *pool, uint32_t slot_class, uint32_t n, kvx_slot *slots)
{
    (void)slots;
    assert_ptr_equal(pool, fake_pool);
    assert_int_equal(n, 0);
    return slot_class == 0 ? KVX_INVALID : KVX_OK; /* class 0 is the caller's */
}
