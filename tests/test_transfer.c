/* SPDX-License-Identifier: Apache-2.0 */
/* What is stored comes back, for every layout, placement and option; and nothing else is written anywhere. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>

#include "../kernels/format.h"

/* Fisher-Yates with a fixed seed. */
static void shuffle(kvx_slot *slots, uint32_t n)
{
    uint64_t state = 42;
    for (uint32_t i = n; i > 1; i--) {
        const uint32_t j = (uint32_t)(random_word(&state) % i);
        const kvx_slot swapped = slots[i - 1];
        slots[i - 1] = slots[j];
        slots[j] = swapped;
    }
}

typedef struct trip {
    const shape *shape;
    uint32_t hints;
} trip;

/* Stores every block, restores each into another block of tensors registered at other addresses and strides. */
static void round_trip(const device *dev, const void *arg)
{
    const trip *t = arg;
    const uint32_t n = t->shape->n_blocks;
    rig r;
    tensors dest;
    kvx_slot *slots = calloc(2 * (size_t)n, sizeof *slots);
    kvx_pair *pairs = calloc(n, sizeof *pairs);
    kvx_options options = KVX_OPTIONS_INIT;
    kvx_ticket ticket;
    assert_true(slots && pairs);
    rig_open(&r, dev, t->shape, NULL);
    tensors_create(&dest, dev, t->shape, 64);
    kvx_layout *into = layout_make(r.ctx, &dest, 7);
    slots_take(r.pool, 2 * n, slots);
    shuffle(slots, 2 * n);
    pairs_set(pairs, n, r.layout, 0, slots);
    options.stream = r.stream;
    options.hints = t->hints;
    expect_ok(kvx_store(r.ctx, n, pairs, &options, &ticket));
    expect_all(r.ctx, ticket, n, KVX_OK);
    tensors_check(&r.source);
    for (uint32_t i = 0; i < n; i++) {
        pairs[i].layout = into;
        pairs[i].block = n - 1 - i;
        tensors_expect(&dest, n - 1 - i, i + 1);
    }
    expect_ok(kvx_restore(r.ctx, n, pairs, &options, &ticket));
    expect_all(r.ctx, ticket, n, KVX_OK);
    tensors_check(&dest);
    tensors_check(&r.source);
    rig_close(&r);
    tensors_destroy(&dest);
    free(pairs);
    free(slots);
}

static const shape small = {"small", 12, 4, 2, {{1, 1024, 0, 0, BLOCK_MAJOR}, {3, 104, 8, 0, BLOCK_MAJOR}}, 2, 0};

/* Slots that lie side by side travel in one copy, others do not: both must be right, and so must a mixture. */
static void adjacent_and_scattered(const device *dev, const void *arg)
{
    static const uint32_t order[12] = {0, 1, 2, 3, 20, 6, 5, 4, 23, 22, 9, 10};
    const rig_options options = {.n_slots = 24, .caller_managed = 1};
    kvx_slot slots[12];
    kvx_pair pairs[12];
    rig r;
    (void)arg;
    rig_open(&r, dev, &small, &options);
    for (uint32_t i = 0; i < 12; i++)
        slots[i] = (kvx_slot){0, order[i], 1};
    pairs_set(pairs, 12, r.layout, 0, slots);
    store_all(&r, 12, pairs);
    for (uint32_t i = 0; i < 12; i++)
        tensors_expect(&r.source, pairs[i].block = 11 - i, i + 1);
    restore_all(&r, 12, pairs);
    tensors_check(&r.source);
    rig_close(&r);
}

#define N_LAYOUTS 3

/* Three KV-cache groups and three tenants in one call. */
static void layouts_and_tenants_mixed(const device *dev, const void *arg)
{
    static const char *const names[N_LAYOUTS] = {"plain", "8-byte aligned", "64 segments"};
    const kvx_slot_class class = {.slot_bytes = 128 << 10, .n_slots = 64, .max_units = 64};
    const rig_options options = {.n_tenants = 3};
    kvx_pool *pool = pool_make(dev, &class, 1);
    kvx_ctx *ctx = ctx_make(dev, pool, &options);
    tensors source[N_LAYOUTS], dest[N_LAYOUTS];
    kvx_layout *from[N_LAYOUTS], *into[N_LAYOUTS];
    kvx_slot slots[12];
    kvx_pair pairs[12];
    kvx_ticket ticket;
    (void)arg;
    for (uint32_t i = 0; i < N_LAYOUTS; i++) {
        tensors_create(&source[i], dev, shape_named(names[i]), 0);
        tensors_create(&dest[i], dev, shape_named(names[i]), 8);
        tensors_fill(&source[i], 0, 4, 100 * (i + 1));
        from[i] = layout_make(ctx, &source[i], i);
        into[i] = layout_make(ctx, &dest[i], i);
    }
    slots_take(pool, 12, slots);
    for (uint32_t i = 0; i < 12; i++)
        pairs[i] = (kvx_pair){from[i % 3], i / 3, slots[i], (i + i / 3) % 3};
    expect_ok(kvx_store(ctx, 12, pairs, NULL, &ticket));
    expect_all(ctx, ticket, 12, KVX_OK);
    for (uint32_t i = 0; i < 12; i++) {
        pairs[i].layout = into[i % 3];
        tensors_expect(&dest[i % 3], i / 3, 100 * (i % 3 + 1) + i / 3);
    }
    expect_ok(kvx_restore(ctx, 12, pairs, NULL, &ticket));
    expect_all(ctx, ticket, 12, KVX_OK);
    for (uint32_t i = 0; i < N_LAYOUTS; i++)
        tensors_check(&dest[i]);
    kvx_ctx_destroy(ctx);
    expect_ok(kvx_pool_destroy(pool));
    for (uint32_t i = 0; i < N_LAYOUTS; i++) {
        tensors_destroy(&source[i]);
        tensors_destroy(&dest[i]);
    }
}

/* One slot opened into several blocks at once. */
static void one_slot_into_many_blocks(const device *dev, const void *arg)
{
    kvx_slot slots[12];
    kvx_pair pairs[12];
    rig r;
    (void)arg;
    rig_open(&r, dev, &small, NULL);
    slots_take(r.pool, 1, slots);
    pairs_set(pairs, 1, r.layout, 4, slots);
    store_all(&r, 1, pairs);
    for (uint32_t i = 0; i < 12; i++) {
        slots[i] = slots[0];
        tensors_expect(&r.source, i, 5);
    }
    pairs_set(pairs, 12, r.layout, 0, slots);
    restore_all(&r, 12, pairs);
    tensors_check(&r.source);
    rig_close(&r);
}

static void ten_thousand_tiny_blocks(const device *dev, const void *arg)
{
    static const shape tiny = {"10,000 tiny", 10000, 1, 1, {{1, 40, 0, 8, BLOCK_MAJOR}}, 1, 0};
    const rig_options options = {.n_slots = 10000};
    kvx_slot *slots = calloc(10000, sizeof *slots);
    kvx_pair *pairs = calloc(10000, sizeof *pairs);
    rig r;
    (void)arg;
    assert_true(slots && pairs);
    rig_open(&r, dev, &tiny, &options);
    slots_take(r.pool, 10000, slots);
    pairs_set(pairs, 10000, r.layout, 0, slots);
    store_all(&r, 10000, pairs);
    for (uint32_t i = 0; i < 10000; i++)
        tensors_expect(&r.source, pairs[i].block = 9999 - i, i + 1);
    restore_all(&r, 10000, pairs);
    tensors_check(&r.source);
    rig_close(&r);
    free(pairs);
    free(slots);
}

/* A batch many times larger than the ring. */
static void ring_far_too_small(const device *dev, const void *arg)
{
    static const shape large = {"large", 24, 2, 1, {{1, 1 << 20, 0, 0, BLOCK_MAJOR}}, 1, 0};
    const rig_options options = {.n_slots = 24, .ring_bytes = 8 << 20, .burst_bytes = 2 << 20};
    kvx_slot slots[24];
    kvx_pair pairs[24];
    rig r;
    (void)arg;
    rig_open(&r, dev, &large, &options);
    slots_take(r.pool, 24, slots);
    pairs_set(pairs, 24, r.layout, 0, slots);
    store_all(&r, 24, pairs);
    for (uint32_t i = 0; i < 24; i++)
        tensors_expect(&r.source, pairs[i].block = 23 - i, i + 1);
    restore_all(&r, 24, pairs);
    tensors_check(&r.source);
    rig_close(&r);
}

/* The same rows, once without gaps (merged inside) and once with: one geometry, so the blocks restore. */
static void merged_rows_restore_into_gapped_rows(const device *dev, const void *arg)
{
    static const shape merged = {"merged", 6, 2, 1, {{16, 656, 0, 0, BLOCK_MAJOR}}, 1, 0};
    static const shape gapped = {"gapped", 6, 2, 1, {{16, 656, 16, 0, BLOCK_MAJOR}}, 1, 8};
    static const shape turned = {"turned", 6, 2, 1, {{16, 656, 0, 0, TRANSPOSED}}, 1, 0};
    const shape *const others[] = {&gapped, &turned};
    kvx_slot slots[6];
    kvx_pair pairs[6];
    rig r;
    (void)arg;
    rig_open(&r, dev, &merged, NULL);
    slots_take(r.pool, 6, slots);
    pairs_set(pairs, 6, r.layout, 0, slots);
    store_all(&r, 6, pairs);
    for (size_t k = 0; k < COUNT(others); k++) {
        tensors dest;
        tensors_create(&dest, dev, others[k], 0);
        kvx_layout *into = layout_make(r.ctx, &dest, 7);
        pairs_set(pairs, 6, into, 0, slots);
        for (uint32_t i = 0; i < 6; i++)
            tensors_expect(&dest, i, i + 1);
        restore_all(&r, 6, pairs);
        tensors_check(&dest);
        expect_ok(kvx_layout_destroy(into));
        tensors_destroy(&dest);
    }
    rig_close(&r);
}

/* Few tickets and entries: their places are used again and again, results must never be mixed up. */
static void tickets_and_entries_reused(const device *dev, const void *arg)
{
    const rig_options options = {.max_tickets = 4, .max_pairs = 11, .n_slots = 12};
    kvx_ticket held[4] = {0}, first = 0, extra = 99;
    uint32_t sizes[4] = {0};
    kvx_slot slots[12];
    kvx_pair pairs[12];
    rig r;
    (void)arg;
    rig_open(&r, dev, &small, &options);
    slots_take(r.pool, 12, slots);
    pairs_set(pairs, 12, r.layout, 0, slots);
    expect_status(kvx_store(r.ctx, 12, pairs, NULL, &extra), KVX_INVALID);
    store_all(&r, 11, pairs);
    for (uint32_t round = 0; round < 200; round++) {
        const uint32_t k = round % 4;
        if (held[k])
            expect_all(r.ctx, held[k], sizes[k], KVX_OK);
        sizes[k] = round % 3 + 1;
        if (round % 2)
            expect_ok(kvx_restore(r.ctx, sizes[k], &pairs[0], NULL, &held[k]));
        else
            expect_ok(kvx_store(r.ctx, sizes[k], &pairs[round % 9], NULL, &held[k]));
        first = first ? first : held[k];
    }
    expect_status(kvx_store(r.ctx, 1, pairs, NULL, &extra), KVX_AGAIN);
    assert_int_equal(extra, 99);
    for (uint32_t k = 0; k < 4; k++)
        expect_all(r.ctx, held[k], sizes[k], KVX_OK);
    expect_status(kvx_poll(r.ctx, first, NULL, 0, NULL), KVX_UNKNOWN);
    expect_ok(kvx_store(r.ctx, 11, pairs, NULL, &extra));
    expect_all(r.ctx, extra, 11, KVX_OK);
    tensors_check(&r.source);
    rig_close(&r);
}

/* Without a ticket a store collects itself and takes no place for good. */
static void stores_without_tickets(const device *dev, const void *arg)
{
    const rig_options options = {.max_tickets = 4};
    kvx_slot slots[2];
    kvx_pair pairs[2];
    rig r;
    (void)arg;
    rig_open(&r, dev, &small, &options);
    slots_take(r.pool, 2, slots);
    pairs_set(pairs, 2, r.layout, 0, slots);
    for (uint32_t i = 0; i < 40; i++) {
        kvx_status status = kvx_store(r.ctx, 2, pairs, NULL, NULL);
        assert_true(status == KVX_OK || status == KVX_AGAIN);
        if (status == KVX_AGAIN)
            expect_ok(kvx_drain(r.ctx, 20000000000u));
    }
    expect_ok(kvx_drain(r.ctx, 20000000000u));
    assert_int_equal(stats_of(r.ctx).tickets_in_use, 0);
    restore_all(&r, 2, pairs);
    tensors_check(&r.source);
    rig_close(&r);
}

/* Empty batches beyond every table behind a closed gate: each is taken or refused with "again", none is lost or kept.
 */
static void many_empty_batches(const device *dev, const void *arg)
{
    const rig_options options = {.max_tickets = 4};
    kvx_options call = KVX_OPTIONS_INIT;
    kvx_event last = dev->event_create();
    uint32_t n_taken = 0;
    rig r;
    gate g;
    (void)arg;
    rig_open(&r, dev, &small, &options);
    call.stream = r.stream;
    call.done_event = last;
    gate_close(&g, dev, r.stream);
    for (uint32_t i = 0; i < 300; i++) {
        const kvx_status status = kvx_store(r.ctx, 0, NULL, &call, NULL);
        assert_true(status == KVX_OK || status == KVX_AGAIN);
        n_taken += status == KVX_OK;
    }
    assert_true(n_taken > 0);
    assert_false(dev->event_fired(last));
    gate_open(&g);
    dev->event_sync(last);
    expect_ok(kvx_drain(r.ctx, 20000000000u));
    assert_int_equal(stats_of(r.ctx).tickets_in_use, 0);
    rig_close(&r);
    dev->event_destroy(last);
}

/* Caller-managed slots: overwriting is legal, a block restores under the generation it was stored with only. */
static void caller_managed_slots(const device *dev, const void *arg)
{
    const rig_options options = {.n_slots = 4, .caller_managed = 1};
    kvx_pair pair, many[4];
    kvx_slot slots[4];
    kvx_status verdict;
    rig r;
    (void)arg;
    rig_open(&r, dev, &small, &options);
    expect_status(kvx_pool_take(r.pool, 0, 1, slots), KVX_INVALID);
    slots[0] = (kvx_slot){0, 3, 0xfffffff0u};
    pairs_set(&pair, 1, r.layout, 2, slots);
    restore_some(&r, 1, &pair, &verdict);
    assert_int_equal(verdict, KVX_MISS);
    tensors_expect_zero(&r.source, 2, ALL_SEGMENTS);
    tensors_check(&r.source);
    tensors_fill(&r.source, 0, 4, 1);
    for (uint32_t i = 0; i < 40; i++) {
        pair.block = i % 3;
        pair.slot.generation = 0xfffffff0u + i; /* wraps */
        store_all(&r, 1, &pair);
        pair.block = 3;
        tensors_expect(&r.source, 3, i % 3 + 1);
        restore_all(&r, 1, &pair);
        tensors_check(&r.source);
        pair.slot.generation--;
        restore_some(&r, 1, &pair, &verdict);
        assert_int_equal(verdict, KVX_STALE);
        tensors_expect_zero(&r.source, 3, ALL_SEGMENTS);
        tensors_check(&r.source);
    }
    for (uint32_t i = 0; i < 4; i++)
        slots[i] = (kvx_slot){0, i, i};
    pairs_set(many, 4, r.layout, 0, slots);
    store_all(&r, 4, many);
    restore_all(&r, 4, many);
    tensors_check(&r.source);
    rig_close(&r);
}

/* Contexts have keys and records of their own: none opens what another one stored, all work side by side. */
static void several_contexts_on_one_pool(const device *dev, const void *arg)
{
    kvx_slot slots[6];
    kvx_pair pairs[3], foreign[3];
    kvx_status verdicts[3];
    kvx_ticket ticket;
    rig r;
    (void)arg;
    rig_open(&r, dev, &small, NULL);
    kvx_ctx *other = ctx_make(dev, r.pool, NULL);
    kvx_layout *layout = layout_make(other, &r.source, 7);
    slots_take(r.pool, 6, slots);
    pairs_set(pairs, 3, r.layout, 0, slots);
    store_all(&r, 3, pairs);
    pairs_set(foreign, 3, layout, 3, slots + 3);
    expect_ok(kvx_store(other, 3, foreign, NULL, &ticket));
    expect_all(other, ticket, 3, KVX_OK);
    expect_ok(kvx_restore(other, 3, foreign, NULL, &ticket));
    expect_all(other, ticket, 3, KVX_OK);
    restore_all(&r, 3, pairs);
    tensors_check(&r.source);
    pairs_set(pairs, 3, r.layout, 0, slots + 3); /* what `other` stored */
    restore_some(&r, 3, pairs, verdicts);
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(verdicts[i] == KVX_STALE || verdicts[i] == KVX_MISS);
        tensors_expect_zero(&r.source, i, ALL_SEGMENTS);
    }
    tensors_check(&r.source);
    pairs_set(foreign, 1, layout, 3, slots); /* overwrites what `r` stored: gone, but no attack */
    expect_ok(kvx_store(other, 1, foreign, NULL, &ticket));
    expect_all(other, ticket, 1, KVX_OK);
    pairs_set(pairs, 1, r.layout, 0, slots);
    restore_some(&r, 1, pairs, verdicts);
    assert_int_equal(verdicts[0], KVX_STALE);
    expect_ok(kvx_restore(other, 1, foreign, NULL, &ticket));
    expect_all(other, ticket, 1, KVX_OK);
    tensors_check(&r.source);
    assert_int_equal(kvx_pool_destroy(r.pool), KVX_INVALID);
    kvx_ctx_destroy(other);
    pairs_set(pairs, 3, r.layout, 6, slots + 3); /* overwrites them */
    store_all(&r, 3, pairs);
    restore_all(&r, 3, pairs);
    tensors_check(&r.source);
    assert_int_equal(stats_of(r.ctx).latched, 0);
    rig_close(&r);
}

static void stats_add_up(const device *dev, const void *arg)
{
    kvx_slot slots[24];
    kvx_pair pairs[12];
    kvx_status verdicts[12];
    rig r;
    (void)arg;
    rig_open(&r, dev, &small, NULL);
    const uint64_t sealed = shape_unit_offset(&small, 2);
    slots_take(r.pool, 24, slots);
    expect_ok(kvx_pool_give(r.pool, 4, slots + 20));
    pairs_set(pairs, 12, r.layout, 0, slots);
    store_all(&r, 12, pairs);
    restore_all(&r, 5, pairs);
    pairs[0].slot = slots[13];
    restore_some(&r, 1, pairs, verdicts);
    assert_int_equal(verdicts[0], KVX_MISS);
    const kvx_stats stats = stats_of(r.ctx);
    assert_int_equal(stats.engine, dev->engine);
    assert_int_equal(stats.stored_blocks, 12);
    assert_int_equal(stats.stored_bytes, 12 * sealed);
    assert_int_equal(stats.restored_blocks, 5);
    assert_int_equal(stats.restored_bytes, 5 * sealed);
    assert_int_equal(stats.failed_blocks, 1);
    assert_int_equal(stats.tampered_blocks, 0);
    assert_int_equal(stats.latched, 0);
    assert_int_equal(stats.tickets_in_use, 0);
    assert_int_equal(stats.host_syncs, 0);
    assert_int_equal(stats.slots_free, 4);
    assert_int_equal(stats.slots_used, 20);
    assert_int_equal(stats.slots_in_flight, 0);
    assert_true(stats.pool_bytes >= 24 * 4096);
    assert_true(stats.record_bytes >= 24 * (sizeof(kvx_header) + 2 * sizeof(kvx_record)));
    assert_true(dev->engine != KVX_ENGINE_CUDA || (stats.launches >= 3 && stats.copies >= 2 && stats.pinned));
    assert_non_null(memchr(stats.engine_note, 0, sizeof stats.engine_note));
    rig_close(&r);
}

static const test_case cases[] = {
    {"adjacent, scattered and mixed slots", adjacent_and_scattered, NULL},
    {"three layouts and three tenants in one call", layouts_and_tenants_mixed, NULL},
    {"one slot into many blocks", one_slot_into_many_blocks, NULL},
    {"10,000 tiny blocks in one call", ten_thousand_tiny_blocks, NULL},
    {"batch far larger than the ring", ring_far_too_small, NULL},
    {"merged rows restore into gapped and transposed rows", merged_rows_restore_into_gapped_rows, NULL},
    {"tickets and entries are used again", tickets_and_entries_reused, NULL},
    {"stores without tickets", stores_without_tickets, NULL},
    {"many empty batches", many_empty_batches, NULL},
    {"caller-managed slots and generations", caller_managed_slots, NULL},
    {"several contexts on one pool", several_contexts_on_one_pool, NULL},
    {"stats add up, host_syncs is 0", stats_add_up, NULL},
};

#define MAX_TRIPS 64

int main(int argc, char **argv)
{
    static trip trips[MAX_TRIPS];
    static char names[MAX_TRIPS][96];
    static test_case all[MAX_TRIPS + COUNT(cases)];
    size_t n = 0;
    for (size_t i = 0; i < n_shapes && n + 2 <= MAX_TRIPS; i++)
        for (uint32_t hints = 0; hints <= KVX_HINT_IDLE; hints++, n++) {
            trips[n] = (trip){&shapes[i], hints};
            (void)snprintf(names[n], sizeof names[n], "round trip, %s%s", shapes[i].name, hints ? ", direct" : "");
            all[n] = (test_case){names[n], round_trip, &trips[n]};
        }
    memcpy(all + n, cases, sizeof cases);
    return run_cases("transfer", all, n + COUNT(cases), argc, argv);
}
