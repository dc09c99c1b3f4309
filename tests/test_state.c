/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a slot through the public API: who wins when two stores meet, what a restore sees in between, discards,
 * handles that grow old, stores that stop half-way. Nothing of it is ever taken for tampering. */
#include "support.h"

#include <stdlib.h>

#include "../kernels/state.h"
#include "../src/context.h"

#define N_BLOCKS 8
#define N_SEGMENTS 3
#define TIMEOUT_NS 20000000000u

static const shape small = {
    "small", N_BLOCKS, 2 * N_SEGMENTS, 2, {{1, 2048, 0, 0, BLOCK_MAJOR}, {3, 104, 8, 0, BLOCK_MAJOR}}, 2, 0};

/* Blocks 0 .. 3 are sources with seeds 1 .. 4, blocks 4 .. 7 are destinations. */
typedef struct life {
    rig r;
    kvx_slot slots[N_BLOCKS];
    kvx_options options;
    gate g;
} life;

static void life_open(life *l, const device *dev)
{
    const rig_options options = {.n_slots = N_BLOCKS};
    memset(l, 0, sizeof *l);
    rig_open(&l->r, dev, &small, &options);
    slots_take(l->r.pool, N_BLOCKS, l->slots);
    l->options = (kvx_options)KVX_OPTIONS_INIT;
    l->options.stream = l->r.stream;
}

static kvx_ticket store_one(life *l, uint32_t block, kvx_slot slot)
{
    kvx_pair pair;
    kvx_ticket ticket = 0;
    pairs_set(&pair, 1, l->r.layout, block, &slot);
    expect_ok(kvx_store(l->r.ctx, 1, &pair, &l->options, &ticket));
    return ticket;
}

static kvx_ticket restore_one(life *l, uint32_t block, kvx_slot slot)
{
    kvx_pair pair;
    kvx_ticket ticket = 0;
    pairs_set(&pair, 1, l->r.layout, block, &slot);
    expect_ok(kvx_restore(l->r.ctx, 1, &pair, &l->options, &ticket));
    return ticket;
}

static kvx_ticket discard_one(life *l, kvx_slot slot)
{
    kvx_ticket ticket = 0;
    expect_ok(kvx_discard(l->r.ctx, 1, &slot, &ticket));
    return ticket;
}

static kvx_status verdict_of(life *l, kvx_ticket ticket)
{
    kvx_status verdict = KVX_PENDING;
    collect(l->r.ctx, ticket, 1, &verdict);
    return verdict;
}

/* A restore into block 7 that must find nothing, and leave zeros. */
static void expect_verdict_and_zeros(life *l, kvx_slot slot, kvx_status wanted)
{
    tensors_fill(&l->r.source, 7, 1, 900);
    check_status(verdict_of(l, restore_one(l, 7, slot)), wanted, "restore", __FILE__, __LINE__);
    tensors_expect_zero(&l->r.source, 7, ALL_SEGMENTS);
    tensors_check(&l->r.source);
}

static void expect_holds(life *l, kvx_slot slot, uint64_t seed)
{
    tensors_fill(&l->r.source, 7, 1, 900);
    check_status(verdict_of(l, restore_one(l, 7, slot)), KVX_OK, "restore", __FILE__, __LINE__);
    tensors_expect(&l->r.source, 7, seed);
    tensors_check(&l->r.source);
}

static void life_close(life *l)
{
    const kvx_stats stats = stats_of(l->r.ctx);
    assert_int_equal(stats.latched, 0);
    assert_int_equal(stats.tampered_blocks, 0);
    rig_close(&l->r);
}

static void newest_of_two_stores_wins(const device *dev, const void *arg)
{
    kvx_pair pairs[2];
    kvx_ticket first, second, none = 5;
    life l;
    (void)arg;
    life_open(&l, dev);
    const kvx_slot twice[2] = {l.slots[0], l.slots[0]};
    pairs_set(pairs, 2, l.r.layout, 0, twice);
    expect_status(kvx_store(l.r.ctx, 2, pairs, NULL, &none), KVX_INVALID);
    assert_int_equal(none, 5);
    expect_verdict_and_zeros(&l, l.slots[0], KVX_MISS);
    first = store_one(&l, 0, l.slots[0]);
    second = store_one(&l, 1, l.slots[0]);
    const kvx_status older = verdict_of(&l, first);
    assert_true(older == KVX_OK || older == KVX_SUPERSEDED);
    assert_int_equal(verdict_of(&l, second), KVX_OK);
    expect_holds(&l, l.slots[0], 2);
    life_close(&l);
}

/* Several streams that know nothing of each other: the order of the calls is kept, contents are never mixed. */
static void interleaved_on_one_slot(const device *dev, const void *arg)
{
    kvx_stream streams[3];
    life l;
    (void)arg;
    life_open(&l, dev);
    for (uint32_t i = 0; i < 3; i++)
        streams[i] = dev->stream_create();
    for (uint32_t i = 0; i < 1000; i++) {
        const uint32_t a = i % 4, b = (i / 4 + 1) % 4;
        kvx_ticket tickets[4];
        l.options.stream = streams[0];
        l.options.hints = i & 8 ? KVX_HINT_IDLE : 0;
        tickets[0] = store_one(&l, a, l.slots[2]);
        l.options.stream = streams[1];
        tickets[1] = restore_one(&l, 4, l.slots[2]);
        l.options.stream = streams[2];
        tickets[2] = store_one(&l, b, l.slots[2]);
        l.options.stream = streams[i % 3];
        tickets[3] = restore_one(&l, 5, l.slots[2]);
        expect_ok(kvx_wait(l.r.ctx, 4, tickets, TIMEOUT_NS));
        for (uint32_t k = 0; k < 4; k++)
            assert_int_equal(verdict_of(&l, tickets[k]), KVX_OK);
        assert_true(tensors_holds(&l.r.source, 4, a + 1));
        assert_true(tensors_holds(&l.r.source, 5, b + 1));
    }
    tensors_expect(&l.r.source, 4, 999 % 4 + 1);
    tensors_expect(&l.r.source, 5, (999 / 4 + 1) % 4 + 1);
    tensors_check(&l.r.source);
    life_close(&l);
    for (uint32_t i = 0; i < 3; i++)
        dev->stream_destroy(streams[i]);
}

static void discarded_is_a_miss(const device *dev, const void *arg)
{
    life l;
    (void)arg;
    life_open(&l, dev);
    assert_int_equal(verdict_of(&l, discard_one(&l, l.slots[1])), KVX_OK); /* an empty one */
    expect_verdict_and_zeros(&l, l.slots[1], KVX_MISS);
    assert_int_equal(verdict_of(&l, store_one(&l, 0, l.slots[1])), KVX_OK);
    assert_int_equal(verdict_of(&l, store_one(&l, 1, l.slots[2])), KVX_OK);
    assert_int_equal(verdict_of(&l, discard_one(&l, l.slots[1])), KVX_OK);
    expect_verdict_and_zeros(&l, l.slots[1], KVX_MISS);
    expect_holds(&l, l.slots[2], 2); /* the neighbour is untouched */
    assert_int_equal(verdict_of(&l, store_one(&l, 2, l.slots[1])), KVX_OK);
    expect_holds(&l, l.slots[1], 3);
    life_close(&l);
}

/* Store, discard, store, restore in one breath, held at the first. */
static void discard_in_flight(const device *dev, const void *arg)
{
    kvx_ticket store, discard, miss, again, hit;
    life l;
    (void)arg;
    life_open(&l, dev);
    gate_close(&l.g, dev, l.r.stream);
    store = store_one(&l, 0, l.slots[3]);
    discard = discard_one(&l, l.slots[3]);
    miss = restore_one(&l, 4, l.slots[3]);
    again = store_one(&l, 1, l.slots[3]);
    hit = restore_one(&l, 5, l.slots[3]);
    expect_status(kvx_poll(l.r.ctx, discard, NULL, 0, NULL), KVX_PENDING);
    gate_open(&l.g);
    const kvx_status stored = verdict_of(&l, store);
    assert_true(stored == KVX_OK || stored == KVX_SUPERSEDED);
    assert_int_equal(verdict_of(&l, discard), KVX_OK);
    assert_int_equal(verdict_of(&l, miss), KVX_MISS);
    assert_int_equal(verdict_of(&l, again), KVX_OK);
    assert_int_equal(verdict_of(&l, hit), KVX_OK);
    tensors_expect_zero(&l.r.source, 4, ALL_SEGMENTS);
    tensors_expect(&l.r.source, 5, 2);
    tensors_check(&l.r.source);
    life_close(&l);
}

static void old_handles_are_refused(const device *dev, const void *arg)
{
    kvx_ticket none = 5;
    kvx_pair pair;
    kvx_slot again;
    life l;
    (void)arg;
    life_open(&l, dev);
    const kvx_slot old = l.slots[0];
    assert_int_equal(verdict_of(&l, store_one(&l, 0, old)), KVX_OK);
    expect_ok(kvx_pool_give(l.r.pool, 1, &old));
    expect_status(kvx_pool_give(l.r.pool, 1, &old), KVX_STALE);
    for (uint32_t taken = 0; taken < 2; taken++) { /* free, then taken by somebody else */
        if (taken)
            slots_take(l.r.pool, 1, &again);
        pairs_set(&pair, 1, l.r.layout, 1, &old);
        expect_status(kvx_store(l.r.ctx, 1, &pair, NULL, &none), KVX_STALE);
        expect_status(kvx_discard(l.r.ctx, 1, &old, &none), KVX_STALE);
        expect_verdict_and_zeros(&l, old, KVX_STALE);
    }
    assert_int_equal(none, 5);
    assert_int_equal(again.index, old.index);
    assert_int_not_equal(again.generation, old.generation);
    const kvx_status fresh = verdict_of(&l, restore_one(&l, 7, again)); /* nothing of the former owner comes back */
    assert_true(fresh == KVX_MISS || fresh == KVX_STALE);
    tensors_check(&l.r.source);
    assert_int_equal(verdict_of(&l, store_one(&l, 2, again)), KVX_OK);
    expect_holds(&l, again, 3);
    expect_verdict_and_zeros(&l, old, KVX_STALE);
    life_close(&l);
}

/* Given back under a store or a restore in flight: not free before that ends, and its ticket still tells the truth. */
static void given_while_in_flight(const device *dev, const void *arg)
{
    kvx_slot taken;
    kvx_ticket store, restore;
    life l;
    (void)arg;
    life_open(&l, dev);
    assert_int_equal(verdict_of(&l, store_one(&l, 1, l.slots[1])), KVX_OK);
    gate_close(&l.g, dev, l.r.stream);
    store = store_one(&l, 0, l.slots[0]);
    restore = restore_one(&l, 4, l.slots[1]);
    expect_ok(kvx_pool_give(l.r.pool, 2, l.slots));
    kvx_stats stats = stats_of(l.r.ctx);
    assert_int_equal(stats.slots_in_flight, 2);
    assert_int_equal(stats.slots_free, 0);
    assert_int_equal(stats.slots_free + stats.slots_used + stats.slots_in_flight, N_BLOCKS);
    expect_status(kvx_pool_take(l.r.pool, 0, 1, &taken), KVX_AGAIN);
    gate_open(&l.g);
    assert_int_equal(verdict_of(&l, store), KVX_OK);
    assert_int_equal(verdict_of(&l, restore), KVX_OK);
    tensors_expect(&l.r.source, 4, 2);
    tensors_check(&l.r.source);
    stats = stats_of(l.r.ctx);
    assert_int_equal(stats.slots_in_flight, 0);
    assert_int_equal(stats.slots_free, 2);
    slots_take(l.r.pool, 1, &taken);
    assert_int_equal(verdict_of(&l, store_one(&l, 3, taken)), KVX_OK);
    kvx_result result;
    expect_ok(kvx_poll(l.r.ctx, store, &result, 0, NULL)); /* of the slot's former life */
    assert_int_equal(result.n_ok, 1);
    expect_holds(&l, taken, 4);
    life_close(&l);
}

static kvx_dev_words words_of(const life *l)
{
    kvx_dev_words words;
    memset(&words, 0, sizeof words);
    expect_ok(l->r.ctx->ops->words(l->r.ctx->engine, &words, 0));
    return words;
}

static uint32_t state_of(const life *l, kvx_slot slot)
{
    kvx_header header;
    kvx_record records[N_SEGMENTS];
    expect_ok(l->r.ctx->ops->export_slot(l->r.ctx->engine, slot.index, &header, records, N_SEGMENTS));
    return kvx_word_state(header.word);
}

/* Nonces run out in the middle of a block, over a slot that held one: neither the old nor half of the new is left. */
static void store_that_runs_out_half_way(const device *dev, const void *arg)
{
    life l;
    (void)arg;
    life_open(&l, dev);
    assert_int_equal(verdict_of(&l, store_one(&l, 0, l.slots[0])), KVX_OK);
    assert_int_equal(verdict_of(&l, store_one(&l, 1, l.slots[1])), KVX_OK);
    kvx_dev_words words = words_of(&l);
    words.sequence = KVX_SEQUENCE_LIMIT - 1;
    expect_ok(l.r.ctx->ops->words(l.r.ctx->engine, &words, 1));
    assert_int_equal(verdict_of(&l, store_one(&l, 2, l.slots[0])), KVX_EXHAUSTED);
    assert_int_equal(state_of(&l, l.slots[0]), KVX_SLOT_EMPTY);
    expect_verdict_and_zeros(&l, l.slots[0], KVX_MISS);
    assert_int_equal(verdict_of(&l, store_one(&l, 3, l.slots[2])), KVX_EXHAUSTED);
    expect_verdict_and_zeros(&l, l.slots[2], KVX_MISS);
    expect_holds(&l, l.slots[1], 2);
    assert_int_equal(verdict_of(&l, discard_one(&l, l.slots[1])), KVX_OK);
    expect_verdict_and_zeros(&l, l.slots[1], KVX_MISS);
    life_close(&l);
}

/* Latched on the device before the host has heard of it: the store ends LATCHED and its slot is not readable. */
static void store_that_meets_the_latch(const device *dev, const void *arg)
{
    kvx_pair pair;
    kvx_ticket none = 5;
    life l;
    (void)arg;
    life_open(&l, dev);
    assert_int_equal(verdict_of(&l, store_one(&l, 0, l.slots[0])), KVX_OK);
    kvx_dev_words words = words_of(&l);
    words.latch = 1;
    expect_ok(l.r.ctx->ops->words(l.r.ctx->engine, &words, 1));
    gate_close(&l.g, dev, l.r.stream);
    const kvx_ticket fresh = store_one(&l, 1, l.slots[1]), over = store_one(&l, 1, l.slots[0]);
    const kvx_ticket restore = restore_one(&l, 5, l.slots[0]);
    gate_open(&l.g);
    assert_int_equal(verdict_of(&l, fresh), KVX_LATCHED);
    assert_int_equal(verdict_of(&l, over), KVX_LATCHED);
    assert_int_equal(verdict_of(&l, restore), KVX_LATCHED);
    assert_int_not_equal(state_of(&l, l.slots[1]), KVX_SLOT_VALID);
    tensors_expect_zero(&l.r.source, 5, ALL_SEGMENTS);
    tensors_check(&l.r.source);
    pairs_set(&pair, 1, l.r.layout, 0, &l.slots[2]);
    expect_status(kvx_store(l.r.ctx, 1, &pair, NULL, &none), KVX_LATCHED);
    assert_int_equal(none, 5);
    rig_close(&l.r);
}

/* Never stored: a miss in every slot, whatever bytes the host put there. */
static void never_stored_is_a_miss(const device *dev, const void *arg)
{
    life l;
    (void)arg;
    life_open(&l, dev);
    for (uint32_t i = 0; i < N_BLOCKS; i++) {
        memset(slot_bytes(l.r.pool, l.slots[i]), (int)(17 * i), 4096);
        expect_verdict_and_zeros(&l, l.slots[i], KVX_MISS);
    }
    life_close(&l);
}

enum walk_op { WALK_STORE, WALK_RESTORE, WALK_DISCARD };

typedef struct walk_step {
    enum walk_op op;
    uint32_t slot, version; /* of the slot, which counts stores and discards */
    kvx_ticket ticket;
    uint64_t wanted; /* restore: seed of the slot's content at the time of the call, 0: none */
} walk_step;

typedef struct walk {
    life l;
    walk_step steps[4];
    uint64_t holds[4];   /* seed in each slot by the book, 0: none */
    uint32_t version[4]; /* of each slot */
} walk;

/* Step in place k of the ring; a restore goes into block 4 + k, so no two in flight share one. */
static void walk_begin(walk *w, uint32_t k, uint32_t block)
{
    walk_step *step = &w->steps[k];
    const kvx_slot slot = w->l.slots[step->slot];
    step->wanted = w->holds[step->slot];
    step->version = w->version[step->slot] += step->op != WALK_RESTORE;
    if (step->op == WALK_STORE) {
        step->ticket = store_one(&w->l, block, slot);
        w->holds[step->slot] = block + 1;
    } else if (step->op == WALK_RESTORE) {
        step->ticket = restore_one(&w->l, 4 + k, slot);
    } else {
        step->ticket = discard_one(&w->l, slot);
        w->holds[step->slot] = 0;
    }
}

static void walk_end(walk *w, uint32_t k)
{
    walk_step *step = &w->steps[k];
    if (!step->ticket)
        return;
    const kvx_status verdict = verdict_of(&w->l, step->ticket);
    const int overtaken = step->version != w->version[step->slot];
    step->ticket = 0;
    if (step->op != WALK_RESTORE) {
        assert_true(verdict == KVX_OK || (overtaken && verdict == KVX_SUPERSEDED));
        return;
    }
    check_status(verdict, step->wanted ? KVX_OK : KVX_MISS, "walk", __FILE__, __LINE__);
    assert_true(!step->wanted || tensors_holds(&w->l.r.source, 4 + k, step->wanted));
}

/* Slots overwritten, discarded and restored at random, four calls in flight: a simple book says what each must hold. */
static void random_walk(const device *dev, const void *arg)
{
    uint64_t state = 99;
    walk w;
    (void)arg;
    memset(&w, 0, sizeof w);
    life_open(&w.l, dev);
    for (uint32_t i = 0; i < 1500; i++) {
        const uint64_t word = random_word(&state);
        const uint32_t k = i % 4;
        walk_end(&w, k);
        w.steps[k].op = (enum walk_op)(word % 5 % 3); /* discards are rarer */
        w.steps[k].slot = (uint32_t)(word >> 8 & 3);
        w.l.options.hints = word >> 20 & KVX_HINT_IDLE;
        walk_begin(&w, k, (uint32_t)(word >> 12 & 3));
    }
    for (uint32_t k = 0; k < 4; k++)
        walk_end(&w, k);
    life_close(&w.l);
}

static const test_case cases[] = {
    {"two stores: refused in one call, newest of two calls wins", newest_of_two_stores_wins, NULL},
    {"1000 interleavings on one slot from three streams", interleaved_on_one_slot, NULL},
    {"discarded is a miss", discarded_is_a_miss, NULL},
    {"discard in flight", discard_in_flight, NULL},
    {"old handles are refused", old_handles_are_refused, NULL},
    {"given back while in flight", given_while_in_flight, NULL},
    {"store that runs out of nonces half-way", store_that_runs_out_half_way, NULL},
    {"store that meets the latch", store_that_meets_the_latch, NULL},
    {"never stored is a miss", never_stored_is_a_miss, NULL},
    {"random walk against a book", random_walk, NULL},
};

int main(int argc, char **argv)
{
    return RUN_CASES("state", cases, argc, argv);
}
