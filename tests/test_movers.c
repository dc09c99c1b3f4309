/* SPDX-License-Identifier: Apache-2.0 */
/* How data are moved: whatever the size of bursts and the quota of multiprocessors, every byte comes back; what was
 * chosen and measured is reported and leaves nothing behind; work in flight is bounded without a loss. */
#include "support.h"

#include <stdlib.h>

#include "../src/context.h"

#define N_BLOCKS 24u
#define TIMEOUT_NS 20000000000u

static const shape blocks = {"blocks", N_BLOCKS, 8, 2, {{2, 16384, 64, 0, BLOCK_MAJOR}}, 1, 0};

typedef struct stage {
    rig r;
    kvx_slot slots[N_BLOCKS];
    kvx_pair pairs[N_BLOCKS];
} stage;

static void stage_open(stage *s, const device *dev, const rig_options *options)
{
    rig_open(&s->r, dev, &blocks, options);
    slots_take(s->r.pool, N_BLOCKS, s->slots);
    pairs_set(s->pairs, N_BLOCKS, s->r.layout, 0, s->slots);
}

/* Stores all blocks and brings them back in reverse order. */
static void go_round(stage *s, uint32_t hints)
{
    kvx_options options = KVX_OPTIONS_INIT;
    kvx_ticket ticket;
    options.stream = s->r.stream;
    options.hints = hints;
    tensors_fill(&s->r.source, 0, N_BLOCKS, 1 + hints);
    pairs_set(s->pairs, N_BLOCKS, s->r.layout, 0, s->slots);
    expect_ok(kvx_store(s->r.ctx, N_BLOCKS, s->pairs, &options, &ticket));
    expect_all(s->r.ctx, ticket, N_BLOCKS, KVX_OK);
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        tensors_expect(&s->r.source, s->pairs[i].block = N_BLOCKS - 1 - i, 1 + hints + i);
    restore_all(&s->r, N_BLOCKS, s->pairs);
    tensors_check(&s->r.source);
}

static void any_burst_and_quota(const device *dev, const void *arg)
{
    static const rig_options all[] = {{.burst_bytes = 1},
                                      {.burst_bytes = 300001, .burst_sms = 1, .direct_sms = 1},
                                      {.ring_bytes = 4 << 20, .burst_bytes = 1 << 20, .burst_sms = 7, .direct_sms = 3},
                                      {.ring_bytes = 2 << 20, .burst_sms = UINT32_MAX, .direct_sms = UINT32_MAX},
                                      {.burst_bytes = 5 << 20}};
    (void)arg;
    for (size_t k = 0; k < COUNT(all); k++) {
        stage s;
        stage_open(&s, dev, &all[k]);
        for (uint32_t hints = 0; hints <= KVX_HINT_IDLE; hints++)
            go_round(&s, hints);
        rig_close(&s.r);
    }
}

/* A burst for each block where that is all that it may hold; early and late ones are small. */
static void stats_count_bursts(const device *dev, const void *arg)
{
    const rig_options options = {.burst_bytes = 1, .burst_sms = 5, .direct_sms = 3};
    stage s;
    (void)arg;
    stage_open(&s, dev, &options);
    go_round(&s, 0);
    go_round(&s, KVX_HINT_IDLE);
    const kvx_stats stats = stats_of(s.r.ctx);
    const uint32_t n = dev->engine == KVX_ENGINE_CUDA;
    assert_int_equal(stats.store_bursts, n * N_BLOCKS);
    assert_int_equal(stats.restore_bursts, n * 2 * N_BLOCKS);
    assert_int_equal(stats.direct_launches, n);
    assert_int_equal(stats.burst_bytes, n);
    assert_int_equal(stats.burst_sms, n * 5);
    assert_int_equal(stats.direct_sms, n * 3);
    assert_int_equal(stats.link_rate + stats.seal_rate + stats.measure_ns, 0); /* set, so not measured */
    rig_close(&s.r);
}

static void measuring_is_short_and_leaves_nothing(const device *dev, const void *arg)
{
    stage s;
    (void)arg;
    stage_open(&s, dev, NULL);
    const kvx_stats stats = stats_of(s.r.ctx);
    if (dev->engine == KVX_ENGINE_CUDA) {
        uint64_t n_bytes = 2 * (128u << 20), n_set = 0;
        uint8_t *rings = malloc(n_bytes);
        assert_non_null(rings);
        expect_ok(s.r.ctx->ops->export_rings(s.r.ctx->engine, rings, &n_bytes));
        for (uint64_t i = 0; i < n_bytes; i++)
            n_set += rings[i] != 0;
        assert_int_equal(n_set, 0);
        free(rings);
        assert_true(stats.seal_rate > 0 && stats.measure_ns > 0);
        assert_true(stats.measure_ns < 500000000u); /* 20 ms, if nobody else is at work */
        assert_in_range(stats.burst_bytes, 4 << 20, 32 << 20);
        assert_true(stats.burst_sms > 0 && stats.direct_sms > 0 && stats.direct_sms <= stats.burst_sms);
        assert_int_equal(stats.store_bursts + stats.launches + stats.host_syncs, 0);
    }
    go_round(&s, 0);
    rig_close(&s.r);
}

/* Calls of many bursts behind a gate: refused once too many are in flight, however often they are tried again. */
static void bursts_in_flight_are_bounded(const device *dev, const void *arg)
{
    const rig_options options = {.burst_bytes = 1, .max_pairs = 40 * N_BLOCKS};
    kvx_options call = KVX_OPTIONS_INIT;
    kvx_ticket tickets[30];
    uint32_t n_taken = 0;
    stage s;
    gate g;
    (void)arg;
    stage_open(&s, dev, &options);
    call.stream = s.r.stream;
    gate_close(&g, dev, s.r.stream);
    while (n_taken < COUNT(tickets) && kvx_store(s.r.ctx, N_BLOCKS, s.pairs, &call, &tickets[n_taken]) == KVX_OK)
        n_taken++;
    if (dev->engine == KVX_ENGINE_CUDA) {
        kvx_ticket none = 5;
        assert_in_range(n_taken, 2, COUNT(tickets) - 1);
        for (uint32_t i = 0; i < 1000; i++) /* 24,000 pairs, of 960 */
            expect_status(kvx_store(s.r.ctx, N_BLOCKS, s.pairs, &call, &none), KVX_AGAIN);
        assert_int_equal(none, 5);
    }
    gate_open(&g);
    expect_ok(kvx_wait(s.r.ctx, n_taken, tickets, TIMEOUT_NS));
    for (uint32_t i = 0; i < n_taken; i++) {
        kvx_status verdicts[N_BLOCKS];
        collect(s.r.ctx, tickets[i], N_BLOCKS, verdicts);
    }
    go_round(&s, 0);
    rig_close(&s.r);
}

/* The sealed bytes themselves come late, by work that the caller names. */
static void slots_written_before_the_event(const device *dev, const void *arg)
{
    kvx_options options = KVX_OPTIONS_INIT;
    kvx_event arrived = dev->event_create();
    kvx_stream second = dev->stream_create();
    kvx_ticket ticket;
    stage s;
    gate g;
    (void)arg;
    stage_open(&s, dev, NULL);
    store_all(&s.r, N_BLOCKS, s.pairs);
    uint8_t *bytes = slot_bytes(s.r.pool, s.slots[3]);
    bytes[100] ^= 1;
    gate_close(&g, dev, second);
    dev->event_record(arrived, second);
    options.stream = s.r.stream;
    options.wait_event = arrived;
    expect_ok(kvx_restore(s.r.ctx, N_BLOCKS, s.pairs, &options, &ticket));
    nap(20);
    expect_status(kvx_poll(s.r.ctx, ticket, NULL, 0, NULL), KVX_PENDING);
    bytes[100] ^= 1;
    gate_open(&g);
    expect_all(s.r.ctx, ticket, N_BLOCKS, KVX_OK);
    tensors_check(&s.r.source);
    rig_close(&s.r);
    dev->stream_destroy(second);
    dev->event_destroy(arrived);
}

/* Restores behind a closed gate fill the ring; nothing of them shows before the gate opens. */
static void restores_open_behind_their_stream(const device *dev, const void *arg)
{
    const rig_options options = {.burst_bytes = 1};
    kvx_options call = KVX_OPTIONS_INIT;
    kvx_ticket tickets[2];
    stage s;
    gate g;
    (void)arg;
    stage_open(&s, dev, &options);
    store_all(&s.r, N_BLOCKS, s.pairs);
    tensors_fill(&s.r.source, 0, N_BLOCKS, 501);
    call.stream = s.r.stream;
    gate_close(&g, dev, s.r.stream);
    for (uint32_t i = 0; i < 2; i++)
        expect_ok(kvx_restore(s.r.ctx, N_BLOCKS / 2, &s.pairs[i * N_BLOCKS / 2], &call, &tickets[i]));
    nap(20);
    tensors_check(&s.r.source);
    gate_open(&g);
    for (uint32_t i = 0; i < 2; i++)
        expect_all(s.r.ctx, tickets[i], N_BLOCKS / 2, KVX_OK);
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        tensors_expect(&s.r.source, i, 1 + i);
    tensors_check(&s.r.source);
    rig_close(&s.r);
}

/* Two arrays with something freed between them: begin and end of the lane are device memory, the middle is not. */
static void lane_over_a_hole(const device *dev, const void *arg)
{
    enum { BYTES = 64 << 20 };
    kvx_layout_desc desc = KVX_LAYOUT_DESC_INIT;
    kvx_lane lane = {.row_bytes = 4096, .n_blocks = 2, .n_rows = 1};
    kvx_layout *layout = NULL;
    uint8_t *parts[3], *first, *last;
    stage s;
    (void)arg;
    if (dev->engine != KVX_ENGINE_CUDA)
        skip();
    stage_open(&s, dev, NULL);
    for (uint32_t i = 0; i < 3; i++)
        parts[i] = dev->alloc(BYTES);
    first = parts[0] < parts[2] ? parts[0] : parts[2];
    last = parts[0] < parts[2] ? parts[2] : parts[0];
    dev->free(parts[1]);
    lane.dev_base = first;
    desc.lanes = &lane;
    desc.n_lanes = 1;
    lane.block_stride = BYTES / 2;
    expect_ok(kvx_layout_create(s.r.ctx, &desc, &layout));
    expect_ok(kvx_layout_destroy(layout));
    lane.block_stride = (uint64_t)(last - first);
    if (lane.block_stride > BYTES) /* else they are neighbours, and there is no hole */
        expect_status(kvx_layout_create(s.r.ctx, &desc, &layout), KVX_INVALID);
    dev->free(first);
    dev->free(last);
    rig_close(&s.r);
}

static const test_case cases[] = {
    {"any burst and quota", any_burst_and_quota, NULL},
    {"stats count bursts", stats_count_bursts, NULL},
    {"measuring is short and leaves nothing", measuring_is_short_and_leaves_nothing, NULL},
    {"bursts in flight are bounded", bursts_in_flight_are_bounded, NULL},
    {"slots written before the event", slots_written_before_the_event, NULL},
    {"restores open behind their stream", restores_open_behind_their_stream, NULL},
    {"lane over a hole", lane_over_a_hole, NULL},
};

int main(int argc, char **argv)
{
    return RUN_CASES("movers", cases, argc, argv);
}
