/* SPDX-License-Identifier: Apache-2.0 */
/* What latches and what does not: a wrong tenant, layout or handle has a verdict of its own; a wrong tag stops the
 * context, at once or after a budget, and what was in flight still ends. */
#include "scene.h"

/* ----------------------------------------------------------------------------------------- wrong, but not tampered */

static void wrong_tenant_is_refused(const device *dev, const void *arg)
{
    scene s;
    (void)arg;
    scene_open(&s, dev);
    s.open[1].tenant = 1;
    s.open[4].tenant = 2;
    s.bad[1] = s.bad[4] = ALL_BAD;
    expect_found(&s, KVX_REFUSED);
    s.open[1].tenant = s.open[4].tenant = 0;
    s.bad[1] = s.bad[4] = 0;
    expect_found(&s, KVX_REFUSED);
    assert_int_equal(stats_of(s.r.ctx).latched, 0);
    scene_close(&s);
}

/* Another binding, or lanes cut in another way though of the same size. */
static void wrong_layout_is_refused(const device *dev, const void *arg)
{
    static const shape fewer_segments = {
        "cut", N_BLOCKS, 6, 6, {{1, 65536, 0, 64, BLOCK_MAJOR}, {25, 328, 8, 0, BLOCK_MAJOR}}, 2, 0};
    static const shape other_rows = {
        "rows", N_BLOCKS, 6, 2, {{1, 65536, 0, 64, BLOCK_MAJOR}, {41, 200, 8, 0, BLOCK_MAJOR}}, 2, 0};
    static const shape *const others[] = {&victim, &fewer_segments, &other_rows};
    kvx_status verdicts[N_BLOCKS];
    scene s;
    (void)arg;
    scene_open(&s, dev);
    for (size_t k = 0; k < COUNT(others); k++) {
        tensors dest;
        tensors_create(&dest, dev, others[k], 0);
        tensors_fill(&dest, 0, N_BLOCKS, STALE_SEED);
        kvx_layout *layout = layout_make(s.r.ctx, &dest, k == 0 ? 8 : 7);
        pairs_set(s.open, N_BLOCKS, layout, 0, s.slots);
        restore_some(&s.r, N_BLOCKS, s.open, verdicts);
        for (uint32_t i = 0; i < N_BLOCKS; i++) {
            check_status(verdicts[i], KVX_REFUSED, others[k]->name, __FILE__, __LINE__);
            tensors_expect_zero(&dest, i, ALL_SEGMENTS);
        }
        tensors_check(&dest);
        expect_ok(kvx_layout_destroy(layout));
        tensors_destroy(&dest);
    }
    pairs_set(s.open, N_BLOCKS, s.into, 0, s.slots);
    expect_found(&s, KVX_OK);
    assert_int_equal(stats_of(s.r.ctx).latched, 0);
    scene_close(&s);
}

static void stale_handles(const device *dev, const void *arg)
{
    scene s;
    (void)arg;
    scene_open(&s, dev);
    s.open[0].slot.generation++;
    s.open[3].slot.generation--;
    s.bad[0] = s.bad[3] = ALL_BAD;
    expect_found(&s, KVX_STALE);
    s.open[0].slot = s.slots[0];
    s.open[3].slot = s.slots[3];
    s.bad[0] = s.bad[3] = 0;
    expect_ok(kvx_pool_give(s.r.pool, 1, &s.slots[5]));
    s.bad[5] = ALL_BAD;
    expect_found(&s, KVX_STALE);
    assert_int_equal(stats_of(s.r.ctx).latched, 0);
    scene_close(&s);
}

/* --------------------------------------------------------------------------------------------------------- latch */

static void expect_latched_refusals(kvx_ctx *ctx, const scene *s)
{
    kvx_ticket ticket = 4711;
    expect_status(kvx_store(ctx, 1, s->store, NULL, &ticket), KVX_LATCHED);
    assert_true(strlen(kvx_last_error()) > 0);
    expect_status(kvx_restore(ctx, 1, s->open, NULL, &ticket), KVX_LATCHED);
    expect_status(kvx_discard(ctx, 1, s->slots, &ticket), KVX_LATCHED);
    expect_status(kvx_store(ctx, 0, NULL, NULL, &ticket), KVX_LATCHED);
    assert_int_equal(ticket, 4711);
    assert_int_equal(stats_of(ctx).latched, 1);
}

/* Everything a new context needs still works after the latched one has gone. */
static void expect_new_context_works(scene *s)
{
    kvx_ticket ticket;
    kvx_ctx *ctx = ctx_make(s->r.dev, s->r.pool, NULL);
    kvx_layout *layout = layout_make(ctx, &s->r.source, 7);
    pairs_set(s->store, N_BLOCKS, layout, 0, s->slots);
    expect_ok(kvx_store(ctx, N_BLOCKS, s->store, NULL, &ticket));
    expect_all(ctx, ticket, N_BLOCKS, KVX_OK);
    tensors_expect_zero(&s->r.source, 0, ALL_SEGMENTS);
    tensors_upload(&s->r.source);
    tensors_expect(&s->r.source, 0, s->seed[0]);
    expect_ok(kvx_restore(ctx, N_BLOCKS, s->store, NULL, &ticket));
    expect_all(ctx, ticket, N_BLOCKS, KVX_OK);
    tensors_check(&s->r.source);
    kvx_ctx_destroy(ctx);
}

/* Units beside a bad one may have passed before the latch or have been stopped by it. */
static void expect_plain_or_zero(scene *s, uint32_t block, uint32_t segment)
{
    if (tensors_segment_holds(&s->dest, block, segment, s->seed[block]))
        tensors_expect_segment(&s->dest, block, segment, s->seed[block]);
    else
        tensors_expect_zero(&s->dest, block, segment);
}

static void first_bad_tag_latches(const device *dev, const void *arg)
{
    const rig_options options = {.n_slots = N_BLOCKS + 2};
    kvx_status verdicts[N_BLOCKS];
    scene s;
    (void)arg;
    scene_open_with(&s, dev, &options);
    s.slot[3][unit_at(2)] ^= 0x80;
    s.bad[3] = 4;
    tensors_fill(&s.dest, 0, N_BLOCKS, STALE_SEED);
    restore_some(&s.r, N_BLOCKS, s.open, verdicts);
    assert_int_equal(verdicts[3], KVX_TAMPERED);
    for (uint32_t i = 0; i < N_BLOCKS; i++) {
        assert_true(i == 3 || verdicts[i] == KVX_OK || verdicts[i] == KVX_LATCHED);
        for (uint32_t segment = 0; segment < N_SEGMENTS; segment++)
            expect_plain_or_zero(&s, i, segment);
        assert_true(verdicts[i] != KVX_OK || tensors_holds(&s.dest, i, s.seed[i]));
    }
    tensors_expect_zero(&s.dest, 3, 2);
    tensors_check(&s.dest);
    assert_int_equal(stats_of(s.r.ctx).tampered_blocks, 1);
    expect_latched_refusals(s.r.ctx, &s);
    expect_new_context_works(&s);
    scene_close(&s);
}

/* MISS: `tamper_budget` blocks may fail, the next one latches. */
static void miss_policy_latches_after_its_budget(const device *dev, const void *arg)
{
    const rig_options options = {.policy = KVX_TAMPER_MISS, .tamper_budget = 3};
    kvx_status verdicts[1];
    scene s;
    (void)arg;
    scene_open_with(&s, dev, &options);
    s.slot[1][5] ^= 2;
    for (uint32_t k = 0; k < 4; k++) {
        assert_int_equal(stats_of(s.r.ctx).latched, 0);
        restore_some(&s.r, 1, &s.open[0], verdicts);
        assert_int_equal(verdicts[0], KVX_OK);
        restore_some(&s.r, 1, &s.open[1], verdicts);
        assert_int_equal(verdicts[0], KVX_TAMPERED);
    }
    assert_int_equal(stats_of(s.r.ctx).tampered_blocks, 4);
    expect_latched_refusals(s.r.ctx, &s);
    scene_close(&s);
}

#define FLAG_VALUE 1234567u

/* Work that was accepted before the latch still ends: verdict LATCHED, zeros, events and flags fire, nobody hangs. */
static void work_in_flight_ends_latched(const device *dev, const void *arg)
{
    uint32_t flags[N_SEGMENTS] = {0};
    kvx_event events[N_SEGMENTS + 2];
    kvx_options options = KVX_OPTIONS_INIT;
    kvx_ticket bad, restore, store;
    scene s;
    gate g;
    (void)arg;
    scene_open_with(&s, dev, NULL);
    uint32_t *dev_flags = dev->alloc(sizeof flags);
    dev->upload(dev_flags, flags, sizeof flags);
    for (uint32_t i = 0; i < COUNT(events); i++)
        events[i] = dev->event_create();
    tensors_fill(&s.dest, 0, N_BLOCKS, STALE_SEED);
    s.slot[0][0] ^= 1;
    options.stream = s.r.stream;
    gate_close(&g, dev, s.r.stream);
    expect_ok(kvx_restore(s.r.ctx, 1, &s.open[0], &options, &bad));
    expect_ok(kvx_store(s.r.ctx, 1, &s.store[0], &options, &store));
    options.segment_events = events;
    options.n_segment_events = N_SEGMENTS;
    options.done_event = events[N_SEGMENTS];
    options.dev_flags = dev_flags;
    options.n_flags = N_SEGMENTS;
    options.flag_value = FLAG_VALUE;
    expect_ok(kvx_restore(s.r.ctx, 3, &s.open[1], &options, &restore));
    dev->event_record(events[N_SEGMENTS + 1], s.r.stream);
    gate_open(&g);
    expect_all(s.r.ctx, bad, 1, KVX_TAMPERED);
    expect_all(s.r.ctx, store, 1, KVX_LATCHED);
    expect_all(s.r.ctx, restore, 3, KVX_LATCHED);
    for (uint32_t i = 0; i < COUNT(events); i++)
        dev->event_sync(events[i]);
    dev->download(flags, dev_flags, sizeof flags);
    for (uint32_t i = 0; i < N_SEGMENTS; i++)
        assert_int_equal(flags[i], FLAG_VALUE);
    tensors_expect_zero(&s.dest, 0, 0);
    for (uint32_t i = 1; i < 4; i++)
        tensors_expect_zero(&s.dest, i, ALL_SEGMENTS);
    for (uint32_t segment = 1; segment < N_SEGMENTS; segment++)
        expect_plain_or_zero(&s, 0, segment);
    tensors_check(&s.dest);
    expect_latched_refusals(s.r.ctx, &s);
    for (uint32_t i = 0; i < COUNT(events); i++)
        dev->event_destroy(events[i]);
    scene_close(&s);
    dev->free(dev_flags);
}

static const test_case cases[] = {
    {"wrong tenant is refused", wrong_tenant_is_refused, NULL},
    {"wrong layout or binding is refused", wrong_layout_is_refused, NULL},
    {"stale handles are stale", stale_handles, NULL},
    {"first bad tag latches, new context works", first_bad_tag_latches, NULL},
    {"miss policy latches after its budget", miss_policy_latches_after_its_budget, NULL},
    {"work in flight ends latched", work_in_flight_ends_latched, NULL},
};

int main(int argc, char **argv)
{
    return RUN_CASES("latch", cases, argc, argv);
}
