/* SPDX-License-Identifier: Apache-2.0 */
/* Many threads on one context and one pool, destroying with work in flight, a forked child. Threads count what is wrong
 * instead of asserting, for an assertion may leave the main thread only. Meant to be run under ThreadSanitizer too. */
#include "support.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define N_THREADS 8u
#define N_ROUNDS 60u
#define TIMEOUT_NS 60000000000u

static const shape small = {"small", 4, 4, 2, {{1, 2048, 0, 0, BLOCK_MAJOR}, {3, 104, 8, 0, BLOCK_MAJOR}}, 2, 0};

struct party;

/* A thread with tensors, layout and stream of its own. */
typedef struct worker {
    struct party *party;
    uint32_t index, n_wrong;
    tensors t;
    kvx_layout *layout;
    kvx_stream stream;
    uint64_t random;
} worker;

typedef struct party {
    const device *dev;
    kvx_pool *pool;
    kvx_ctx *ctx;
    worker workers[N_THREADS];
    atomic_uint holders[64]; /* of pool slots: never more than one */
} party;

#define NEED(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            print_error("thread %u: %s is false; note: %s\n", self->index, #condition, kvx_last_error());              \
            self->n_wrong++;                                                                                           \
        }                                                                                                              \
    } while (0)

static void party_open(party *p, const device *dev, uint32_t caller_managed)
{
    const kvx_slot_class class = {.slot_bytes = 8192, .n_slots = 24, .max_units = 2, .caller_managed = caller_managed};
    const rig_options options = {.max_tickets = 12, .max_pairs = 64, .max_layouts = N_THREADS};
    memset(p, 0, sizeof *p);
    p->dev = dev;
    p->pool = pool_make(dev, &class, 1);
    p->ctx = ctx_make(dev, p->pool, &options);
    for (uint32_t i = 0; i < N_THREADS; i++) {
        worker *w = &p->workers[i];
        w->party = p;
        w->index = i;
        w->random = 1000 + i;
        w->stream = dev->stream_create();
        tensors_create(&w->t, dev, &small, 0);
        tensors_fill(&w->t, 0, 4, 10 * i + 1);
        w->layout = layout_make(p->ctx, &w->t, 0);
    }
}

static void party_run(party *p, void *(*fn)(void *))
{
    pthread_t threads[N_THREADS];
    uint32_t n_wrong = 0;
    for (uint32_t i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, fn, &p->workers[i]), 0);
    for (uint32_t i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        n_wrong += p->workers[i].n_wrong;
    }
    assert_int_equal(n_wrong, 0);
}

static void party_close(party *p)
{
    kvx_ctx_destroy(p->ctx);
    expect_ok(kvx_pool_destroy(p->pool));
    for (uint32_t i = 0; i < N_THREADS; i++) {
        p->dev->stream_sync(p->workers[i].stream);
        p->dev->stream_destroy(p->workers[i].stream);
        tensors_destroy(&p->workers[i].t);
    }
}

typedef enum kvx_op_name { DO_STORE, DO_RESTORE, DO_DISCARD } kvx_op_name;

/* Submits, again and again while the context is short of tickets, and waits for the one verdict. */
static kvx_status do_one(worker *self, kvx_op_name op, uint32_t block, kvx_slot slot)
{
    kvx_ctx *ctx = self->party->ctx;
    kvx_options options = KVX_OPTIONS_INIT;
    kvx_pair pair;
    kvx_ticket ticket = 0;
    kvx_status status, verdict = KVX_PENDING;
    pairs_set(&pair, 1, self->layout, block, &slot);
    options.stream = self->stream;
    do {
        status = op == DO_STORE     ? kvx_store(ctx, 1, &pair, &options, &ticket)
                 : op == DO_RESTORE ? kvx_restore(ctx, 1, &pair, &options, &ticket)
                                    : kvx_discard(ctx, 1, &slot, &ticket);
        if (status == KVX_AGAIN)
            (void)sched_yield();
    } while (status == KVX_AGAIN);
    NEED(status == KVX_OK);
    if (status != KVX_OK)
        return status;
    if (random_word(&self->random) % 2)
        NEED(kvx_wait(ctx, 1, &ticket, TIMEOUT_NS) == KVX_OK);
    const uint64_t start = clock_ns();
    do {
        status = kvx_poll(ctx, ticket, NULL, 1, &verdict);
    } while (status == KVX_PENDING && clock_ns() - start < TIMEOUT_NS);
    NEED(status == KVX_OK);
    return verdict;
}

static int take_one(worker *self, kvx_slot *slot)
{
    const kvx_status status = kvx_pool_take(self->party->pool, 0, 1, slot);
    NEED(status == KVX_OK || status == KVX_AGAIN);
    if (status == KVX_OK)
        NEED(atomic_fetch_add(&self->party->holders[slot->index], 1) == 0);
    return status == KVX_OK;
}

static void give_one(worker *self, kvx_slot slot)
{
    NEED(atomic_fetch_sub(&self->party->holders[slot.index], 1) == 1);
    NEED(kvx_pool_give(self->party->pool, 1, &slot) == KVX_OK);
}

/* Takes a slot, stores, restores, discards, gives it back; sometimes asks for figures in between. */
static void *live(void *arg)
{
    worker *self = arg;
    for (uint32_t i = 0; i < N_ROUNDS; i++) {
        const uint32_t block = i % 3;
        kvx_slot slot;
        kvx_stats stats = {.size = sizeof stats};
        if (!take_one(self, &slot))
            continue;
        const kvx_status fresh = do_one(self, DO_RESTORE, 3, slot);
        NEED(fresh == KVX_MISS || fresh == KVX_STALE); /* what the slot's former owner left is nobody's */
        NEED(do_one(self, DO_STORE, block, slot) == KVX_OK);
        NEED(do_one(self, DO_RESTORE, 3, slot) == KVX_OK);
        NEED(tensors_holds(&self->t, 3, 10 * self->index + 1 + block));
        NEED(kvx_stats_get(self->party->ctx, &stats) == KVX_OK);
        NEED(stats.slots_free + stats.slots_used + stats.slots_in_flight == 24);
        if (i % 2) {
            NEED(do_one(self, DO_DISCARD, 0, slot) == KVX_OK);
            NEED(do_one(self, DO_RESTORE, 3, slot) == KVX_MISS);
        }
        give_one(self, slot);
    }
    return NULL;
}

static void eight_threads_on_one_context(const device *dev, const void *arg)
{
    party p;
    (void)arg;
    party_open(&p, dev, 0);
    party_run(&p, live);
    const kvx_stats stats = stats_of(p.ctx);
    assert_int_equal(stats.slots_free, 24);
    assert_int_equal(stats.tickets_in_use, 0);
    assert_int_equal(stats.tampered_blocks, 0);
    assert_int_equal(stats.host_syncs, 0);
    party_close(&p);
}

/* All on one slot of the caller's: whatever comes back is whole and was stored by somebody. */
static void *fight(void *arg)
{
    worker *self = arg;
    const kvx_slot slot = {0, 5, 1};
    for (uint32_t i = 0; i < N_ROUNDS; i++) {
        const uint64_t what = random_word(&self->random) % 8;
        if (what < 3) {
            const kvx_status verdict = do_one(self, DO_STORE, i % 3, slot);
            NEED(verdict == KVX_OK || verdict == KVX_SUPERSEDED);
        } else if (what < 7) {
            uint32_t n_found = 0;
            const kvx_status verdict = do_one(self, DO_RESTORE, 3, slot);
            NEED(verdict == KVX_OK || verdict == KVX_MISS);
            for (uint32_t k = 0; verdict == KVX_OK && k < N_THREADS * 3; k++)
                n_found += (uint32_t)tensors_holds(&self->t, 3, 10 * (k / 3) + 1 + k % 3);
            NEED(n_found == (verdict == KVX_OK));
        } else {
            const kvx_status verdict = do_one(self, DO_DISCARD, 0, slot);
            NEED(verdict == KVX_OK || verdict == KVX_SUPERSEDED);
        }
    }
    return NULL;
}

static void eight_threads_on_one_slot(const device *dev, const void *arg)
{
    party p;
    (void)arg;
    party_open(&p, dev, 1);
    party_run(&p, fight);
    assert_int_equal(stats_of(p.ctx).tampered_blocks, 0);
    assert_int_equal(stats_of(p.ctx).latched, 0);
    party_close(&p);
}

/* Runs of slots, also more than there are: the books stay right. */
static void *take_and_give(void *arg)
{
    worker *self = arg;
    for (uint32_t i = 0; i < 40 * N_ROUNDS; i++) {
        kvx_slot slots[9];
        const uint32_t n = (uint32_t)(random_word(&self->random) % 9) + 1;
        const kvx_status status = kvx_pool_take(self->party->pool, 0, n, slots);
        NEED(status == KVX_OK || status == KVX_AGAIN);
        if (status != KVX_OK)
            continue;
        for (uint32_t k = 0; k < n; k++)
            NEED(slots[k].index < 24 && atomic_fetch_add(&self->party->holders[slots[k].index], 1) == 0);
        for (uint32_t k = 0; k < n; k++)
            NEED(atomic_fetch_sub(&self->party->holders[slots[k].index], 1) == 1);
        NEED(kvx_pool_give(self->party->pool, n, slots) == KVX_OK);
        NEED(kvx_pool_give(self->party->pool, n, slots) == KVX_STALE);
    }
    return NULL;
}

static void eight_threads_on_one_pool(const device *dev, const void *arg)
{
    party p;
    (void)arg;
    party_open(&p, dev, 0);
    party_run(&p, take_and_give);
    assert_int_equal(stats_of(p.ctx).slots_free, 24);
    party_close(&p);
}

/* Contexts come and go on a pool that others use. */
static void *come_and_go(void *arg)
{
    worker *self = arg;
    party *p = self->party;
    for (uint32_t i = 0; i < 4; i++) {
        kvx_config config = KVX_CONFIG_INIT;
        kvx_layout_desc desc = KVX_LAYOUT_DESC_INIT;
        kvx_layout *layout = NULL;
        kvx_ctx *ctx = NULL;
        kvx_slot slot;
        kvx_pair pair;
        config.engine = p->dev->engine;
        config.max_pairs = 16;
        config.ring_bytes = 1 << 20;
        desc.lanes = self->t.lanes;
        desc.n_lanes = small.n_lanes;
        NEED(kvx_ctx_create(p->pool, &config, &ctx) == KVX_OK);
        NEED(kvx_layout_create(ctx, &desc, &layout) == KVX_OK);
        NEED(kvx_pool_take(p->pool, 0, 1, &slot) == KVX_OK);
        pairs_set(&pair, 1, layout, i % 3, &slot);
        NEED(kvx_store(ctx, 1, &pair, NULL, NULL) == KVX_OK);
        kvx_ctx_destroy(ctx); /* with the store in flight */
        NEED(kvx_pool_give(p->pool, 1, &slot) == KVX_OK);
    }
    return NULL;
}

static void contexts_come_and_go(const device *dev, const void *arg)
{
    party p;
    (void)arg;
    party_open(&p, dev, 0);
    party_run(&p, come_and_go);
    assert_int_equal(stats_of(p.ctx).slots_free, 24);
    assert_int_equal(stats_of(p.ctx).slots_in_flight, 0);
    party_close(&p);
}

/* Destroying waits for what is in flight; events of the caller have fired, slots are free to be given back. */
static void destroy_with_work_in_flight(const device *dev, const void *arg)
{
    static const unsigned milliseconds = 30;
    (void)arg;
    for (uint32_t round = 0; round < 4; round++) {
        kvx_options options = KVX_OPTIONS_INIT;
        kvx_event done = dev->event_create();
        kvx_slot slots[4];
        kvx_pair pairs[4];
        kvx_ticket ticket;
        rig r;
        rig_open(&r, dev, &small, NULL);
        slots_take(r.pool, 4, slots);
        pairs_set(pairs, 4, r.layout, 0, slots);
        if (round % 2)
            stream_nap(dev, r.stream, &milliseconds);
        options.stream = r.stream;
        options.done_event = done;
        options.hints = round & 2 ? KVX_HINT_NO_JOIN : 0;
        expect_ok(kvx_store(r.ctx, 2, pairs, &options, &ticket));
        expect_ok(kvx_restore(r.ctx, 2, pairs, &options, &ticket));
        expect_ok(kvx_discard(r.ctx, 1, &slots[3], NULL));
        kvx_ctx_destroy(r.ctx);
        assert_true(dev->event_fired(done));
        dev->stream_sync(r.stream);
        tensors_check(&r.source);
        expect_ok(kvx_pool_give(r.pool, 4, slots));
        r.ctx = ctx_make(dev, r.pool, NULL);
        assert_int_equal(stats_of(r.ctx).slots_free, r.n_slots);
        rig_close(&r);
        dev->event_destroy(done);
    }
}

static void *wait_for_it(void *arg)
{
    worker *self = arg;
    const kvx_ticket ticket = self->random;
    if (self->index % 2)
        NEED(kvx_drain(self->party->ctx, TIMEOUT_NS) == KVX_OK);
    else
        NEED(kvx_wait(self->party->ctx, 1, &ticket, TIMEOUT_NS) == KVX_OK);
    NEED(kvx_wait(self->party->ctx, 1, &ticket, 0) == KVX_OK);
    return NULL;
}

static void many_waiters_on_one_ticket(const device *dev, const void *arg)
{
    static const unsigned milliseconds = 30;
    kvx_options options = KVX_OPTIONS_INIT;
    kvx_ticket ticket;
    kvx_slot slot;
    kvx_pair pair;
    party p;
    (void)arg;
    party_open(&p, dev, 0);
    options.stream = p.workers[0].stream;
    slots_take(p.pool, 1, &slot);
    pairs_set(&pair, 1, p.workers[0].layout, 0, &slot);
    stream_nap(dev, options.stream, &milliseconds);
    expect_ok(kvx_store(p.ctx, 1, &pair, &options, &ticket));
    for (uint32_t i = 0; i < N_THREADS; i++)
        p.workers[i].random = ticket;
    party_run(&p, wait_for_it);
    expect_all(p.ctx, ticket, 1, KVX_OK);
    party_close(&p);
}

static void *fail_and_look(void *arg)
{
    worker *self = arg;
    NEED(strcmp(kvx_last_error(), "") == 0);
    for (uint32_t i = 0; i < 200; i++) {
        kvx_slot slot;
        const int wrong_class = self->index % 2;
        NEED(kvx_pool_take(wrong_class ? self->party->pool : NULL, 77, 1, &slot) == KVX_INVALID);
        NEED((strstr(kvx_last_error(), "77") != NULL || strstr(kvx_last_error(), "class") != NULL) == wrong_class);
    }
    return NULL;
}

static void notes_belong_to_their_thread(const device *dev, const void *arg)
{
    party p;
    (void)arg;
    party_open(&p, dev, 0);
    party_run(&p, fail_and_look);
    party_close(&p);
}

/* What the child of a fork is told. Returns the number of the first wrong answer, or 0. */
static int ask_as_child(party *p, kvx_ticket ticket, kvx_slot slot)
{
    worker *w = &p->workers[0];
    kvx_config config = KVX_CONFIG_INIT;
    kvx_layout_desc desc = KVX_LAYOUT_DESC_INIT;
    kvx_stats stats = {.size = sizeof stats};
    kvx_layout *layout = NULL;
    kvx_ctx *ctx = NULL;
    kvx_slot taken;
    kvx_pair pair;
    pairs_set(&pair, 1, w->layout, 0, &slot);
    desc.lanes = w->t.lanes;
    desc.n_lanes = small.n_lanes;
    const kvx_status answers[] = {
        kvx_store(p->ctx, 1, &pair, NULL, &ticket),
        kvx_restore(p->ctx, 1, &pair, NULL, &ticket),
        kvx_discard(p->ctx, 1, &slot, &ticket),
        kvx_poll(p->ctx, ticket, NULL, 0, NULL),
        kvx_wait(p->ctx, 1, &ticket, UINT64_MAX),
        kvx_drain(p->ctx, UINT64_MAX),
        kvx_stats_get(p->ctx, &stats),
        kvx_layout_create(p->ctx, &desc, &layout),
        kvx_layout_destroy(w->layout),
        kvx_pool_take(p->pool, 0, 1, &taken),
        kvx_pool_give(p->pool, 1, &slot),
        kvx_ctx_create(p->pool, &config, &ctx),
        kvx_pool_destroy(p->pool),
    };
    for (size_t i = 0; i < COUNT(answers); i++)
        if (answers[i] != KVX_FORKED)
            return (int)i + 1;
    kvx_ctx_destroy(p->ctx);
    return 0;
}

static void a_forked_child_is_refused(const device *dev, const void *arg)
{
    kvx_ticket ticket;
    kvx_slot slot;
    kvx_pair pair;
    party p;
    int status = -1;
    (void)arg;
    party_open(&p, dev, 0);
    slots_take(p.pool, 1, &slot);
    pairs_set(&pair, 1, p.workers[0].layout, 0, &slot);
    expect_ok(kvx_store(p.ctx, 1, &pair, NULL, &ticket));
    const pid_t child = fork();
    if (child == 0)
        _exit(ask_as_child(&p, ticket, slot));
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    expect_all(p.ctx, ticket, 1, KVX_OK); /* the parent goes on */
    expect_ok(kvx_restore(p.ctx, 1, &pair, NULL, &ticket));
    expect_all(p.ctx, ticket, 1, KVX_OK);
    tensors_check(&p.workers[0].t);
    party_close(&p);
}

static const test_case cases[] = {
    {"eight threads on one context", eight_threads_on_one_context, NULL},
    {"eight threads on one slot", eight_threads_on_one_slot, NULL},
    {"eight threads on one pool", eight_threads_on_one_pool, NULL},
    {"contexts come and go", contexts_come_and_go, NULL},
    {"destroy with work in flight", destroy_with_work_in_flight, NULL},
    {"many waiters on one ticket", many_waiters_on_one_ticket, NULL},
    {"notes belong to their thread", notes_belong_to_their_thread, NULL},
    {"a forked child is refused", a_forked_child_is_refused, NULL},
};

int main(int argc, char **argv)
{
    return RUN_CASES("threads", cases, argc, argv);
}
