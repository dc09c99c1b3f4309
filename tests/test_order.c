/* SPDX-License-Identifier: Apache-2.0 */
/* Stream order, events, flags and waits: when a batch begins, what may be touched after it, and what fires when. Gates
 * hold a stream shut, so that "not yet" is seen for certain and not by luck. */
#include "support.h"

#define N_BLOCKS 4
#define N_SEGMENTS 8
#define TIMEOUT_NS 20000000000u

static const shape layers = {
    "layers", N_BLOCKS, 2 * N_SEGMENTS, 2, {{1, 16384, 0, 32, BLOCK_MAJOR}, {4, 520, 24, 0, BLOCK_MAJOR}}, 2, 0};

/* A rig with four pairs, other tensors of the same shape, a second stream and some events. */
typedef struct stage {
    rig r;
    tensors other;
    kvx_layout *into;
    kvx_slot slots[N_BLOCKS];
    kvx_pair store[N_BLOCKS], restore[N_BLOCKS];
    kvx_stream second;
    kvx_event events[N_SEGMENTS + 2];
    kvx_options options;
    gate g;
} stage;

static void stage_open(stage *s, const device *dev)
{
    memset(s, 0, sizeof *s);
    rig_open(&s->r, dev, &layers, NULL);
    tensors_create(&s->other, dev, &layers, 0);
    tensors_fill(&s->other, 0, N_BLOCKS, 101);
    s->into = layout_make(s->r.ctx, &s->other, 7);
    slots_take(s->r.pool, N_BLOCKS, s->slots);
    pairs_set(s->store, N_BLOCKS, s->r.layout, 0, s->slots);
    pairs_set(s->restore, N_BLOCKS, s->into, 0, s->slots);
    s->second = dev->stream_create();
    for (size_t i = 0; i < COUNT(s->events); i++)
        s->events[i] = dev->event_create();
    s->options = (kvx_options)KVX_OPTIONS_INIT;
    s->options.stream = s->r.stream;
}

static void stage_close(stage *s)
{
    const device *dev = s->r.dev;
    dev->stream_sync(s->second);
    for (size_t i = 0; i < COUNT(s->events); i++)
        dev->event_destroy(s->events[i]);
    dev->stream_destroy(s->second);
    rig_close(&s->r);
    tensors_destroy(&s->other);
}

/* In stream order: all of `to` becomes what `from` holds. */
static void stream_copy_all(const device *dev, kvx_stream stream, const tensors *to, const tensors *from)
{
    dev->stream_copy(stream, to->memory, from->memory, from->bytes);
}

/* After all streams are quiet: restoring everything into `other` gives these seeds. */
static void expect_stored(stage *s, uint64_t first_seed)
{
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        tensors_expect(&s->other, i, first_seed + i);
    restore_all(&s->r, N_BLOCKS, s->restore);
    tensors_check(&s->other);
}

static void store_waits_for_its_stream(const device *dev, const void *arg)
{
    static const unsigned milliseconds = 30;
    kvx_ticket ticket;
    stage s;
    (void)arg;
    stage_open(&s, dev);
    stream_nap(dev, s.r.stream, &milliseconds);
    stream_copy_all(dev, s.r.stream, &s.r.source, &s.other);
    expect_ok(kvx_store(s.r.ctx, N_BLOCKS, s.store, &s.options, &ticket));
    expect_all(s.r.ctx, ticket, N_BLOCKS, KVX_OK);
    expect_stored(&s, 101);
    stage_close(&s);
}

static void store_waits_for_an_event(const device *dev, const void *arg)
{
    kvx_ticket ticket;
    stage s;
    (void)arg;
    stage_open(&s, dev);
    gate_close(&s.g, dev, s.second);
    stream_copy_all(dev, s.second, &s.r.source, &s.other);
    dev->event_record(s.events[0], s.second);
    s.options.wait_event = s.events[0];
    expect_ok(kvx_store(s.r.ctx, N_BLOCKS, s.store, &s.options, &ticket));
    nap(20);
    expect_status(kvx_poll(s.r.ctx, ticket, NULL, 0, NULL), KVX_PENDING);
    gate_open(&s.g);
    expect_all(s.r.ctx, ticket, N_BLOCKS, KVX_OK);
    expect_stored(&s, 101);
    stage_close(&s);
}

/* Joined: the stream's next work overwrites the source, and what was stored is what was there before. */
static void source_overwritten_after_join(const device *dev, const void *arg)
{
    kvx_ticket ticket;
    stage s;
    (void)arg;
    stage_open(&s, dev);
    for (uint32_t hints = 0; hints <= KVX_HINT_IDLE; hints++) {
        tensors_fill(&s.r.source, 0, N_BLOCKS, 1);
        tensors_fill(&s.other, 0, N_BLOCKS, 101);
        s.options.hints = hints;
        expect_ok(kvx_store(s.r.ctx, N_BLOCKS, s.store, &s.options, &ticket));
        stream_copy_all(dev, s.r.stream, &s.r.source, &s.other);
        expect_all(s.r.ctx, ticket, N_BLOCKS, KVX_OK);
        dev->stream_sync(s.r.stream);
        expect_stored(&s, 1);
    }
    stage_close(&s);
}

/* The same through the event, with a stream that knows nothing of the store. */
static void source_overwritten_after_release(const device *dev, const void *arg)
{
    kvx_result result;
    kvx_ticket ticket;
    stage s;
    (void)arg;
    stage_open(&s, dev);
    s.options.released_event = s.events[0];
    s.options.done_event = s.events[1];
    s.options.hints = KVX_HINT_NO_JOIN;
    gate_close(&s.g, dev, s.r.stream);
    expect_ok(kvx_store(s.r.ctx, N_BLOCKS, s.store, &s.options, &ticket));
    dev->stream_wait(s.second, s.events[0]);
    stream_copy_all(dev, s.second, &s.r.source, &s.other);
    nap(20);
    assert_false(dev->event_fired(s.events[0]));
    assert_false(dev->event_fired(s.events[1]));
    expect_status(kvx_poll(s.r.ctx, ticket, &result, 0, NULL), KVX_PENDING);
    assert_int_equal(result.released, 0);
    gate_open(&s.g);
    dev->stream_sync(s.second);
    dev->event_sync(s.events[1]);
    expect_ok(kvx_wait(s.r.ctx, 1, &ticket, TIMEOUT_NS));
    expect_ok(kvx_poll(s.r.ctx, ticket, &result, 0, NULL));
    assert_int_equal(result.released, 1);
    expect_stored(&s, 1);
    stage_close(&s);
}

/* `released` in a result may turn before the end, and is the licence to overwrite from the host. */
static void source_overwritten_once_polled_released(const device *dev, const void *arg)
{
    kvx_result result = {0};
    kvx_ticket ticket;
    kvx_status status = KVX_PENDING;
    stage s;
    (void)arg;
    stage_open(&s, dev);
    for (uint32_t round = 0; round < 20; round++) {
        tensors_fill(&s.r.source, 0, N_BLOCKS, 1 + round);
        expect_ok(kvx_store(s.r.ctx, N_BLOCKS, s.store, &s.options, &ticket));
        const uint64_t start = clock_ns();
        do {
            status = kvx_poll(s.r.ctx, ticket, &result, 0, NULL);
            assert_true(status == KVX_OK || status == KVX_PENDING);
            assert_true(clock_ns() - start < TIMEOUT_NS);
        } while (!result.released);
        tensors_fill(&s.r.source, 0, N_BLOCKS, 501);
        expect_all(s.r.ctx, ticket, N_BLOCKS, KVX_OK);
        expect_stored(&s, 1 + round);
        memset(&result, 0, sizeof result);
    }
    stage_close(&s);
}

/* The second store names the same slots: the first may lose them before it commits. */
static void join_and_no_join(const device *dev, const void *arg)
{
    kvx_status first[N_BLOCKS];
    kvx_ticket tickets[2];
    stage s;
    (void)arg;
    stage_open(&s, dev);
    gate_close(&s.g, dev, s.second);
    dev->event_record(s.events[0], s.second);
    s.options.wait_event = s.events[0];
    s.options.hints = KVX_HINT_NO_JOIN;
    expect_ok(kvx_store(s.r.ctx, N_BLOCKS, s.store, &s.options, &tickets[0]));
    dev->event_record(s.events[1], s.r.stream);
    dev->event_sync(s.events[1]); /* the stream goes on */
    s.options.hints = 0;
    expect_ok(kvx_store(s.r.ctx, N_BLOCKS, s.store, &s.options, &tickets[1]));
    dev->event_record(s.events[2], s.r.stream);
    nap(20);
    assert_false(dev->event_fired(s.events[2])); /* the stream waits */
    expect_status(kvx_poll(s.r.ctx, tickets[0], NULL, 0, NULL), KVX_PENDING);
    gate_open(&s.g);
    dev->event_sync(s.events[2]);
    collect(s.r.ctx, tickets[0], N_BLOCKS, first);
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        assert_true(first[i] == KVX_OK || first[i] == KVX_SUPERSEDED);
    expect_all(s.r.ctx, tickets[1], N_BLOCKS, KVX_OK);
    expect_stored(&s, 1);
    stage_close(&s);
}

/* The stream's next work reads what was restored. */
static void restore_then_read_in_stream(const device *dev, const void *arg)
{
    kvx_ticket ticket;
    tensors seen;
    stage s;
    (void)arg;
    stage_open(&s, dev);
    tensors_create(&seen, dev, &layers, 0);
    store_all(&s.r, N_BLOCKS, s.store);
    expect_ok(kvx_restore(s.r.ctx, N_BLOCKS, s.restore, &s.options, &ticket));
    stream_copy_all(dev, s.r.stream, &seen, &s.other);
    dev->stream_sync(s.r.stream);
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        tensors_expect(&seen, i, i + 1);
    tensors_check(&seen);
    expect_all(s.r.ctx, ticket, N_BLOCKS, KVX_OK);
    stage_close(&s);
    tensors_destroy(&seen);
}

/* Write after read: a restore that waits for the reader's event leaves it the old content. */
static void restore_waits_for_a_reader(const device *dev, const void *arg)
{
    kvx_ticket ticket;
    tensors seen;
    stage s;
    (void)arg;
    stage_open(&s, dev);
    tensors_create(&seen, dev, &layers, 0);
    store_all(&s.r, N_BLOCKS, s.store);
    gate_close(&s.g, dev, s.second);
    stream_copy_all(dev, s.second, &seen, &s.other);
    dev->event_record(s.events[0], s.second);
    s.options.wait_event = s.events[0];
    expect_ok(kvx_restore(s.r.ctx, N_BLOCKS, s.restore, &s.options, &ticket));
    nap(20);
    expect_status(kvx_poll(s.r.ctx, ticket, NULL, 0, NULL), KVX_PENDING);
    gate_open(&s.g);
    expect_all(s.r.ctx, ticket, N_BLOCKS, KVX_OK);
    dev->stream_sync(s.second);
    for (uint32_t i = 0; i < N_BLOCKS; i++) {
        tensors_expect(&seen, i, 101 + i);
        tensors_expect(&s.other, i, 1 + i);
    }
    tensors_check(&seen);
    tensors_check(&s.other);
    stage_close(&s);
    tensors_destroy(&seen);
}

/* Two calls, two streams, one slot, no order by the caller: the calls' order holds. */
static void calls_on_one_slot_keep_their_order(const device *dev, const void *arg)
{
    kvx_ticket store, restore;
    stage s;
    (void)arg;
    stage_open(&s, dev);
    gate_close(&s.g, dev, s.r.stream);
    expect_ok(kvx_store(s.r.ctx, N_BLOCKS, s.store, &s.options, &store));
    s.options.stream = s.second;
    expect_ok(kvx_restore(s.r.ctx, N_BLOCKS, s.restore, &s.options, &restore));
    nap(20);
    expect_status(kvx_poll(s.r.ctx, restore, NULL, 0, NULL), KVX_PENDING);
    gate_open(&s.g);
    expect_all(s.r.ctx, restore, N_BLOCKS, KVX_OK);
    expect_all(s.r.ctx, store, N_BLOCKS, KVX_OK);
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        tensors_expect(&s.other, i, i + 1);
    tensors_check(&s.other);
    stage_close(&s);
}

/* In stream order: one segment of all blocks. */
static void stream_copy_segment(const device *dev, kvx_stream stream, const tensors *to, const tensors *from,
                                uint32_t segment)
{
    for (uint32_t i = 2 * segment; i < 2 * segment + 2; i++) {
        const kvx_lane *lane = &from->lanes[i];
        const size_t bytes = (size_t)((N_BLOCKS - 1) * lane->block_stride + lane->n_rows * lane->row_stride);
        dev->stream_copy(stream, to->lanes[i].dev_base, lane->dev_base, bytes);
    }
}

/* As soon as event s has fired, segment s of every block is in place. Events beyond the segments fire too; NULL is
 * none. */
static void segment_events_in_order(const device *dev, const void *arg)
{
    kvx_event events[N_SEGMENTS + 1];
    kvx_ticket ticket;
    tensors seen;
    stage s;
    (void)arg;
    stage_open(&s, dev);
    store_all(&s.r, N_BLOCKS, s.store);
    tensors_create(&seen, dev, &layers, 0);
    memcpy(events, s.events, sizeof events);
    s.options.segment_events = events;
    s.options.n_segment_events = N_SEGMENTS + 1;
    s.options.done_event = s.events[N_SEGMENTS + 1];
    expect_ok(kvx_restore(s.r.ctx, N_BLOCKS, s.restore, &s.options, &ticket));
    memset(events, 0, sizeof events); /* used during the call only */
    for (uint32_t i = 0; i < N_SEGMENTS; i++) {
        dev->stream_wait(s.second, s.events[i]);
        stream_copy_segment(dev, s.second, &seen, &s.other, i);
    }
    dev->stream_sync(s.second);
    for (size_t i = 0; i < COUNT(s.events); i++)
        dev->event_sync(s.events[i]);
    for (uint32_t block = 0; block < N_BLOCKS; block++)
        assert_true(tensors_holds(&seen, block, block + 1));
    expect_all(s.r.ctx, ticket, N_BLOCKS, KVX_OK);
    s.options.n_segment_events = 2;
    events[1] = s.events[0];
    expect_ok(kvx_restore(s.r.ctx, N_BLOCKS, s.restore, &s.options, &ticket));
    expect_all(s.r.ctx, ticket, N_BLOCKS, KVX_OK);
    dev->event_sync(s.events[0]);
    stage_close(&s);
    tensors_destroy(&seen);
}

static void flags_are_set(const device *dev, const void *arg)
{
    uint32_t flags[N_SEGMENTS + 2];
    kvx_ticket ticket;
    stage s;
    (void)arg;
    stage_open(&s, dev);
    store_all(&s.r, N_BLOCKS, s.store);
    memset(flags, 0xee, sizeof flags);
    uint32_t *dev_flags = dev->alloc(sizeof flags);
    dev->upload(dev_flags, flags, sizeof flags);
    s.options.dev_flags = dev_flags + 1;
    s.options.n_flags = N_SEGMENTS;
    for (uint32_t value = 1; value < 6; value++) {
        s.options.flag_value = value * 0x01010101u;
        gate_close(&s.g, dev, s.r.stream);
        expect_ok(kvx_restore(s.r.ctx, N_BLOCKS, s.restore, &s.options, &ticket));
        dev->download(flags, dev_flags, sizeof flags);
        for (uint32_t i = 1; i <= N_SEGMENTS; i++)
            assert_int_not_equal(flags[i], s.options.flag_value);
        gate_open(&s.g);
        dev->stream_sync(s.r.stream);
        expect_all(s.r.ctx, ticket, N_BLOCKS, KVX_OK);
        dev->download(flags, dev_flags, sizeof flags);
        for (uint32_t i = 1; i <= N_SEGMENTS; i++)
            assert_int_equal(flags[i], s.options.flag_value);
        assert_int_equal(flags[0], 0xeeeeeeeeu);
        assert_int_equal(flags[N_SEGMENTS + 1], 0xeeeeeeeeu);
    }
    stage_close(&s);
    dev->free(dev_flags);
}

/* n = 0 moves nothing, and everybody who waits for it goes on, after what was before it. */
static void empty_batches_advance_events_and_flags(const device *dev, const void *arg)
{
    uint32_t flag = 0;
    kvx_ticket tickets[2];
    kvx_result result;
    stage s;
    (void)arg;
    stage_open(&s, dev);
    uint32_t *dev_flag = dev->alloc(sizeof flag);
    dev->upload(dev_flag, &flag, sizeof flag);
    gate_close(&s.g, dev, s.r.stream);
    s.options.released_event = s.events[0];
    s.options.done_event = s.events[1];
    s.options.cookie = 31;
    expect_ok(kvx_store(s.r.ctx, 0, NULL, &s.options, &tickets[0]));
    s.options.released_event = NULL;
    s.options.done_event = s.events[2];
    s.options.segment_events = &s.events[3];
    s.options.n_segment_events = 2;
    s.options.dev_flags = dev_flag;
    s.options.n_flags = 1;
    s.options.flag_value = 9;
    s.options.cookie = 32;
    expect_ok(kvx_restore(s.r.ctx, 0, NULL, &s.options, &tickets[1]));
    nap(20);
    for (uint32_t i = 0; i < 5; i++)
        assert_false(dev->event_fired(s.events[i]));
    gate_open(&s.g);
    for (uint32_t i = 0; i < 5; i++)
        dev->event_sync(s.events[i]);
    dev->stream_sync(s.r.stream);
    dev->download(&flag, dev_flag, sizeof flag);
    assert_int_equal(flag, 9);
    for (uint32_t i = 0; i < 2; i++) {
        expect_ok(kvx_wait(s.r.ctx, 1, &tickets[i], TIMEOUT_NS));
        expect_ok(kvx_poll(s.r.ctx, tickets[i], &result, 0, NULL));
        assert_int_equal(result.cookie, 31 + i);
        assert_int_equal(result.n, 0);
        assert_int_equal(result.first_error, KVX_OK);
    }
    expect_ok(kvx_discard(s.r.ctx, 0, NULL, &tickets[0]));
    expect_all(s.r.ctx, tickets[0], 0, KVX_OK);
    stage_close(&s);
    dev->free(dev_flag);
}

static void waits_and_timeouts(const device *dev, const void *arg)
{
    kvx_ticket tickets[2];
    kvx_result result;
    stage s;
    (void)arg;
    stage_open(&s, dev);
    expect_ok(kvx_drain(s.r.ctx, 0));
    s.options.cookie = UINT64_MAX;
    gate_close(&s.g, dev, s.r.stream);
    for (uint32_t i = 0; i < 2; i++)
        expect_ok(kvx_store(s.r.ctx, 2, s.store + 2 * i, &s.options, &tickets[i]));
    expect_status(kvx_wait(s.r.ctx, 2, tickets, 0), KVX_TIMEOUT);
    const uint64_t start = clock_ns();
    expect_status(kvx_wait(s.r.ctx, 2, tickets, 20000000), KVX_TIMEOUT);
    expect_status(kvx_drain(s.r.ctx, 20000000), KVX_TIMEOUT);
    const uint64_t waited = clock_ns() - start;
    assert_true(waited >= 40000000 && waited < 10000000000u);
    expect_status(kvx_poll(s.r.ctx, tickets[1], &result, 0, NULL), KVX_PENDING);
    assert_int_equal(result.n, 2);
    assert_int_equal(result.n_ok, 0);
    assert_true(result.cookie == UINT64_MAX);
    expect_status(kvx_layout_destroy(s.r.layout), KVX_AGAIN);
    gate_open(&s.g);
    expect_ok(kvx_wait(s.r.ctx, 2, tickets, UINT64_MAX));
    expect_ok(kvx_drain(s.r.ctx, UINT64_MAX));
    for (uint32_t i = 0; i < 2; i++)
        expect_all(s.r.ctx, tickets[i], 2, KVX_OK);
    expect_ok(kvx_poll(s.r.ctx, tickets[0], &result, 0, NULL)); /* goes on answering */
    assert_int_equal(result.n_ok, 2);
    expect_stored(&s, 1);
    stage_close(&s);
}

static void default_stream(const device *dev, const void *arg)
{
    kvx_ticket ticket;
    stage s;
    (void)arg;
    stage_open(&s, dev);
    expect_ok(kvx_store(s.r.ctx, N_BLOCKS, s.store, NULL, &ticket));
    expect_ok(kvx_restore(s.r.ctx, N_BLOCKS, s.restore, NULL, &ticket));
    expect_all(s.r.ctx, ticket, N_BLOCKS, KVX_OK);
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        tensors_expect(&s.other, i, i + 1);
    tensors_check(&s.other);
    stage_close(&s);
}

static const test_case cases[] = {
    {"store waits for its stream", store_waits_for_its_stream, NULL},
    {"store waits for an event", store_waits_for_an_event, NULL},
    {"source overwritten after the join", source_overwritten_after_join, NULL},
    {"source overwritten after the released event", source_overwritten_after_release, NULL},
    {"source overwritten once polled as released", source_overwritten_once_polled_released, NULL},
    {"join holds the stream, NO_JOIN does not", join_and_no_join, NULL},
    {"restore, then read in the stream", restore_then_read_in_stream, NULL},
    {"restore waits for a reader", restore_waits_for_a_reader, NULL},
    {"calls on one slot keep their order", calls_on_one_slot_keep_their_order, NULL},
    {"segment events: data in place when they fire", segment_events_in_order, NULL},
    {"flags are set, and only those", flags_are_set, NULL},
    {"empty batches advance events and flags", empty_batches_advance_events_and_flags, NULL},
    {"waits, timeouts, cookies", waits_and_timeouts, NULL},
    {"default stream", default_stream, NULL},
};

int main(int argc, char **argv)
{
    return RUN_CASES("order", cases, argc, argv);
}
