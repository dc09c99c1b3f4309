/* SPDX-License-Identifier: Apache-2.0 */
/* Every way we know of calling store, restore, discard, poll and the rest wrongly: one clear status, a note, outputs
 * untouched, nothing taken. */
#include "misuse.h"

/* ------------------------------------------------------------------------------------------------- store, restore */

typedef kvx_status transfer_fn(kvx_ctx *, uint32_t, const kvx_pair *, const kvx_options *, kvx_ticket *);

static const struct {
    const char *name;
    transfer_fn *fn;
} transfers[2] = {{"store", kvx_store}, {"restore", kvx_restore}};

/* Two pairs, the second wrong. */
static void refused_pair(bench *b, const char *what, kvx_pair pair)
{
    const kvx_pair pairs[2] = {b->pairs[0], pair};
    for (uint32_t k = 0; k < 2; k++) {
        print_message("    %s", transfers[k].name);
        refused(what, transfers[k].fn(b->ctx, 2, pairs, NULL, &b->ticket), KVX_INVALID);
    }
}

static void pairs(const device *dev, const void *arg)
{
    kvx_pair pair;
    bench b;
    (void)arg;
    bench_open(&b, dev);
#define REFUSED_PAIR(field, value)                                                                                     \
    pair = b.pairs[1];                                                                                                 \
    pair.field = value;                                                                                                \
    refused_pair(&b, "pair: " #field " = " #value, pair)
    REFUSED_PAIR(layout, NULL);
    REFUSED_PAIR(layout, (const kvx_layout *)POISON);
    REFUSED_PAIR(layout, b.other_layout);
    REFUSED_PAIR(block, N_BLOCKS);
    REFUSED_PAIR(block, UINT32_MAX);
    REFUSED_PAIR(tenant, 2);
    REFUSED_PAIR(tenant, 65536);
    REFUSED_PAIR(tenant, UINT32_MAX);
    REFUSED_PAIR(slot.slot_class, 4);
    REFUSED_PAIR(slot.slot_class, UINT32_MAX);
    REFUSED_PAIR(slot.index, 16);
    REFUSED_PAIR(slot.index, UINT32_MAX);
    REFUSED_PAIR(slot, ((kvx_slot){2, 0, 0}));
    REFUSED_PAIR(slot, ((kvx_slot){3, 0, 0}));
#undef REFUSED_PAIR
    const kvx_pair twice[2] = {b.pairs[0], b.pairs[0]};
    refused("store: a slot twice", kvx_store(b.ctx, 2, twice, NULL, &b.ticket), KVX_INVALID);
    refused("restore: a block twice", kvx_restore(b.ctx, 2, twice, NULL, &b.ticket), KVX_INVALID);
    pair = b.pairs[1];
    pair.slot.generation += 2;
    refused("store: an old handle", kvx_store(b.ctx, 1, &pair, NULL, &b.ticket), KVX_STALE);
    bench_close(&b);
}

static void calls(const device *dev, const void *arg)
{
    static const size_t sizes[] = {0, 5, sizeof(kvx_options) + 8, SIZE_MAX};
    kvx_pair many[17];
    kvx_options options = KVX_OPTIONS_INIT;
    bench b;
    (void)arg;
    bench_open(&b, dev);
    for (uint32_t i = 0; i < 17; i++)
        many[i] = b.pairs[i % N_BLOCKS];
    for (uint32_t k = 0; k < 2; k++) {
        transfer_fn *fn = transfers[k].fn;
        print_message("    %s\n", transfers[k].name);
        refused("ctx NULL", fn(NULL, 1, b.pairs, NULL, &b.ticket), KVX_INVALID);
        refused("pairs NULL", fn(b.ctx, 1, NULL, NULL, &b.ticket), KVX_INVALID);
        refused("n over max_pairs", fn(b.ctx, 17, many, NULL, &b.ticket), KVX_INVALID);
        refused("n = 2^32 - 1", fn(b.ctx, UINT32_MAX, many, NULL, &b.ticket), KVX_INVALID);
        for (size_t i = 0; i < COUNT(sizes); i++) {
            options.size = sizes[i];
            refused("options: wrong struct size", fn(b.ctx, 1, b.pairs, &options, &b.ticket), KVX_INVALID);
        }
        options = (kvx_options)KVX_OPTIONS_INIT;
        options.hints = 0x80000000u;
        refused("options: unknown hint", fn(b.ctx, 1, b.pairs, &options, &b.ticket), KVX_INVALID);
        options = (kvx_options)KVX_OPTIONS_INIT;
        options.n_segment_events = 1;
        refused("options: segment_events NULL or for a store", fn(b.ctx, 1, b.pairs, &options, &b.ticket), KVX_INVALID);
        options.n_segment_events = UINT32_MAX;
        refused("options: 2^32 - 1 segment events", fn(b.ctx, 1, b.pairs, &options, &b.ticket), KVX_INVALID);
        options = (kvx_options)KVX_OPTIONS_INIT;
        options.n_flags = 1;
        refused("options: dev_flags NULL or for a store", fn(b.ctx, 1, b.pairs, &options, &b.ticket), KVX_INVALID);
        options.dev_flags = (uint32_t *)(uintptr_t)0x1002;
        refused("options: dev_flags misaligned", fn(b.ctx, 1, b.pairs, &options, &b.ticket), KVX_INVALID);
    }
    refused("restore: ticket NULL", kvx_restore(b.ctx, 1, b.pairs, NULL, NULL), KVX_INVALID);
    bench_close(&b);
}

static void a_destroyed_layout(const device *dev, const void *arg)
{
    bench b;
    (void)arg;
    bench_open(&b, dev);
    kvx_layout *gone = layout_make(b.ctx, &b.t, 3);
    kvx_pair pair = b.pairs[1];
    pair.layout = gone;
    expect_ok(kvx_layout_destroy(gone));
    refused_pair(&b, "pair: a layout that was destroyed", pair);
    bench_close(&b);
}

static void captured_streams(const device *dev, const void *arg)
{
    kvx_options options = KVX_OPTIONS_INIT;
    bench b;
    (void)arg;
    if (!dev->capture_begin)
        skip();
    bench_open(&b, dev);
    options.stream = dev->stream_create();
    for (uint32_t k = 0; k < 2; k++) {
        dev->capture_begin(options.stream);
        refused("a stream that is being captured", transfers[k].fn(b.ctx, 1, b.pairs, &options, &b.ticket),
                KVX_UNSUPPORTED);
        dev->capture_drop(options.stream);
    }
    dev->stream_destroy(options.stream);
    bench_close(&b);
}

/* ------------------------------------------------------------------------------------------------- discard, tickets */

static void discards(const device *dev, const void *arg)
{
    kvx_slot slot, two[2];
    bench b;
    (void)arg;
    bench_open(&b, dev);
    refused("discard: ctx NULL", kvx_discard(NULL, 1, b.slots, &b.ticket), KVX_INVALID);
    refused("discard: slots NULL", kvx_discard(b.ctx, 1, NULL, &b.ticket), KVX_INVALID);
    refused("discard: n over max_pairs", kvx_discard(b.ctx, 17, b.slots, &b.ticket), KVX_INVALID);
    refused("discard: n = 2^32 - 1", kvx_discard(b.ctx, UINT32_MAX, b.slots, &b.ticket), KVX_INVALID);
    two[0] = two[1] = b.slots[0];
    refused("discard: a slot twice", kvx_discard(b.ctx, 2, two, &b.ticket), KVX_INVALID);
    slot = (kvx_slot){0, 16, 0};
    refused("discard: index out of range", kvx_discard(b.ctx, 1, &slot, &b.ticket), KVX_INVALID);
    slot = (kvx_slot){4, 0, 0};
    refused("discard: unknown class", kvx_discard(b.ctx, 1, &slot, &b.ticket), KVX_INVALID);
    slot = b.slots[1];
    slot.generation--;
    refused("discard: an old handle", kvx_discard(b.ctx, 1, &slot, &b.ticket), KVX_STALE);
    bench_close(&b);
}

static void tickets(const device *dev, const void *arg)
{
    kvx_result result, poison;
    kvx_ticket ticket, wrong[2];
    kvx_status verdict = KVX_FORKED;
    bench b;
    (void)arg;
    bench_open(&b, dev);
    memset(&poison, 0x5a, sizeof poison);
    result = poison;
    expect_ok(kvx_store(b.ctx, 1, b.pairs, NULL, &ticket));
    wrong[0] = ticket;
    refused("poll: ctx NULL", kvx_poll(NULL, ticket, &result, 1, &verdict), KVX_INVALID);
    refused("poll: verdicts NULL", kvx_poll(b.ctx, ticket, &result, 1, NULL), KVX_INVALID);
    refused("poll: ticket 0", kvx_poll(b.ctx, 0, &result, 1, &verdict), KVX_UNKNOWN);
    refused("poll: ticket 2^64 - 1", kvx_poll(b.ctx, UINT64_MAX, &result, 1, &verdict), KVX_UNKNOWN);
    for (uint32_t bit = 0; bit < 64; bit += 5)
        refused("poll: another ticket", kvx_poll(b.ctx, ticket ^ 1ull << bit, &result, 1, &verdict), KVX_UNKNOWN);
    refused("poll: ticket of another context", kvx_poll(b.other_ctx, ticket, &result, 1, &verdict), KVX_UNKNOWN);
    for (uint32_t i = 0; i < 2; i++) {
        wrong[1] = i ? UINT64_MAX : 0;
        refused("wait: an unknown ticket among others", kvx_wait(b.ctx, 2, wrong, UINT64_MAX), KVX_UNKNOWN);
    }
    refused("wait: ctx NULL", kvx_wait(NULL, 1, wrong, 0), KVX_INVALID);
    refused("wait: tickets NULL", kvx_wait(b.ctx, 1, NULL, 0), KVX_INVALID);
    refused("drain: ctx NULL", kvx_drain(NULL, 0), KVX_INVALID);
    assert_memory_equal(&result, &poison, sizeof result);
    assert_int_equal(verdict, KVX_FORKED);
    expect_ok(kvx_wait(b.ctx, 0, NULL, 0));
    expect_all(b.ctx, ticket, 1, KVX_OK);
    bench_close(&b);
}

static void figures(const device *dev, const void *arg)
{
    static const size_t sizes[] = {0, 3, sizeof(kvx_stats) + 8, SIZE_MAX};
    kvx_stats stats, poison;
    bench b;
    (void)arg;
    bench_open(&b, dev);
    memset(&poison, 0x5a, sizeof poison);
    refused("stats: ctx NULL", kvx_stats_get(NULL, &poison), KVX_INVALID);
    refused("stats: output NULL", kvx_stats_get(b.ctx, NULL), KVX_INVALID);
    for (size_t i = 0; i < COUNT(sizes); i++) {
        poison.size = sizes[i];
        stats = poison;
        refused("stats: wrong struct size", kvx_stats_get(b.ctx, &stats), KVX_INVALID);
        assert_memory_equal(&stats, &poison, sizeof stats);
    }
    assert_non_null(kvx_status_text((kvx_status)12345));
    assert_non_null(kvx_status_text((kvx_status)-1));
    assert_int_equal(kvx_version(), KVX_VERSION_MAJOR << 16 | KVX_VERSION_MINOR << 8 | KVX_VERSION_PATCH);
    for (int status = KVX_OK; status <= KVX_INTERNAL; status++)
        assert_true(strlen(kvx_status_text((kvx_status)status)) > 0);
    bench_close(&b);
}

static const test_case cases[] = {
    {"fields of a pair", pairs, NULL},
    {"calls and options", calls, NULL},
    {"a destroyed layout", a_destroyed_layout, NULL},
    {"captured streams", captured_streams, NULL},
    {"discards", discards, NULL},
    {"tickets", tickets, NULL},
    {"figures and texts", figures, NULL},
};

int main(int argc, char **argv)
{
    return RUN_CASES("misuse of calls", cases, argc, argv);
}
