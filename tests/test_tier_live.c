/* SPDX-License-Identifier: Apache-2.0 */
/* A tier on a real engine: a block changed in the pool becomes a miss or latches, a block of another layout is refused,
 * and many threads share one tier. Threads count what is wrong; meant to be run under ThreadSanitizer too. */
#include "support.h"

#include <pthread.h>
#include <sched.h>

#include "kvx_tier.h"

#define N_NAMES 16u
#define N_THREADS 4u
#define N_ROUNDS 150u
#define TIMEOUT_NS 60000000000u

static const shape small = {"small", N_NAMES, 4, 2, {{1, 2048, 0, 0, BLOCK_MAJOR}, {3, 104, 8, 0, BLOCK_MAJOR}}, 2, 0};

typedef struct scene {
    rig r; /* source block b holds seed b + 1: the block named b */
    kvx_tier *tier;
    tensors dest;
    kvx_layout *into;
} scene;

static void scene_open(scene *s, const device *dev, kvx_tamper_policy policy, uint32_t n_blocks)
{
    const rig_options options = {.caller_managed = 1, .policy = policy, .tamper_budget = 100, .n_slots = 64};
    kvx_tier_config config = KVX_TIER_CONFIG_INIT;
    rig_open(&s->r, dev, &small, &options);
    tensors_create(&s->dest, dev, &small, 8);
    s->into = layout_make(s->r.ctx, &s->dest, 7);
    config.ctx = s->r.ctx;
    config.pool = s->r.pool;
    config.first_slot = 3;
    config.n_blocks = n_blocks;
    config.batch_blocks = 4;
    config.batch_wait_ns = 1;
    expect_ok(kvx_tier_create(&config, &s->tier));
}

static void scene_close(scene *s)
{
    expect_ok(kvx_tier_destroy(s->tier));
    expect_ok(kvx_layout_destroy(s->into));
    rig_close(&s->r);
    tensors_destroy(&s->dest);
}

static kvx_tier_block block_of(uint32_t name, const kvx_layout *layout)
{
    kvx_tier_block block = {{{0}}, 0, name, layout};
    memcpy(block.hash.bytes, &name, sizeof name);
    return block;
}

static void pump_until_idle(scene *s)
{
    uint64_t begin = clock_ns();
    expect_ok(kvx_tier_flush(s->tier));
    while (kvx_tier_idle(s->tier) != KVX_OK) {
        expect_ok(kvx_tier_pump(s->tier, clock_ns(), s->r.stream));
        assert_true(clock_ns() - begin < TIMEOUT_NS);
        sched_yield();
    }
}

static void store_names(scene *s, uint32_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        kvx_tier_block block = block_of(first + i, s->r.layout);
        kvx_tier_outcome outcome;
        expect_ok(kvx_tier_offer(s->tier, KVX_TIER_USED, 1, &block, &outcome));
        assert_int_equal(outcome, KVX_TIER_QUEUED);
    }
    pump_until_idle(s);
}

static uint32_t n_held(scene *s, uint32_t n)
{
    kvx_tier_hash hashes[N_NAMES] = {{{0}}};
    kvx_tier_match match;
    for (uint32_t i = 0; i < n; i++)
        hashes[i] = block_of(i, NULL).hash;
    expect_ok(kvx_tier_lookup(s->tier, 0, n, hashes, &match, NULL));
    return match.n_hits;
}

/* Loads names 0 .. n - 1 into blocks of these numbers. */
static void load_names(scene *s, uint32_t n, const kvx_layout *into, kvx_status *verdicts)
{
    kvx_tier_hash hashes[N_NAMES] = {{{0}}};
    kvx_tier_pin pins[N_NAMES] = {0};
    kvx_tier_target targets[N_NAMES];
    kvx_tier_match match;
    kvx_tier_load_id load;
    kvx_options options = KVX_OPTIONS_INIT;
    uint32_t n_failed = 0, n_bad = 0;
    options.stream = s->r.stream;
    for (uint32_t i = 0; i < n; i++)
        hashes[i] = block_of(i, NULL).hash;
    expect_ok(kvx_tier_lookup(s->tier, 0, n, hashes, &match, pins));
    assert_int_equal(match.n_hits, n);
    for (uint32_t i = 0; i < n; i++)
        targets[i] = (kvx_tier_target){pins[i], into, i};
    expect_ok(kvx_tier_load(s->tier, n, targets, &options, &load));
    expect_ok(kvx_drain(s->r.ctx, TIMEOUT_NS));
    expect_ok(kvx_tier_load_poll(s->tier, load, &n_failed, n, verdicts));
    for (uint32_t i = 0; i < n; i++)
        n_bad += verdicts[i] != KVX_OK;
    assert_int_equal(n_failed, n_bad);
}

/* The tier's slots are 3, 4, ... in the order of the first stores. */
static void flip(scene *s, uint32_t name)
{
    slot_bytes(s->r.pool, (kvx_slot){0, 3 + name, 0})[17] ^= 1;
}

static kvx_tier_stats stats(scene *s)
{
    kvx_tier_stats got = {.size = sizeof got};
    expect_ok(kvx_tier_stats_get(s->tier, &got));
    return got;
}

static void test_round_trip(const device *dev, const void *arg)
{
    kvx_status verdicts[N_NAMES];
    scene s;
    uint64_t sealed;
    (void)arg;
    scene_open(&s, dev, KVX_TAMPER_LATCH, 20);
    kvx_layout_info(s.r.layout, &sealed, NULL);
    store_names(&s, 0, N_NAMES);
    load_names(&s, N_NAMES, s.into, verdicts);
    for (uint32_t i = 0; i < N_NAMES; i++) {
        assert_int_equal(verdicts[i], KVX_OK);
        tensors_expect(&s.dest, i, i + 1);
    }
    tensors_check(&s.dest);
    assert_int_equal(stats(&s).stored_bytes, N_NAMES * sealed);
    assert_int_equal(stats(&s).loaded_bytes, N_NAMES * sealed);
    scene_close(&s);
}

static void test_tampered_is_a_miss(const device *dev, const void *arg)
{
    kvx_status verdicts[N_NAMES];
    scene s;
    (void)arg;
    scene_open(&s, dev, KVX_TAMPER_MISS, 20);
    store_names(&s, 0, 8);
    flip(&s, 5);
    load_names(&s, 8, s.into, verdicts);
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(verdicts[i], i == 5 ? KVX_TAMPERED : KVX_OK);
        assert_true(i == 5 || tensors_holds(&s.dest, i, i + 1));
    }
    assert_int_equal(n_held(&s, 8), 5);
    assert_int_equal(stats(&s).removed_blocks[KVX_TIER_BY_TAMPERING], 1);
    store_names(&s, 5, 1); /* computed again */
    load_names(&s, 8, s.into, verdicts);
    assert_int_equal(verdicts[5], KVX_OK);
    assert_int_equal(stats(&s).latched, 0);
    scene_close(&s);
}

static void test_tampered_latches(const device *dev, const void *arg)
{
    kvx_status verdicts[N_NAMES];
    scene s;
    (void)arg;
    scene_open(&s, dev, KVX_TAMPER_LATCH, 20);
    store_names(&s, 0, 4);
    flip(&s, 3);
    load_names(&s, 4, s.into, verdicts);
    assert_int_equal(verdicts[3], KVX_TAMPERED);
    assert_int_equal(stats(&s).latched, 1);
    assert_int_equal(n_held(&s, 4), 0);
    scene_close(&s);
}

/* The slot was discarded or belongs to another layout: what the tier believed is not so, and it learns of it. */
static void test_gone_and_refused(const device *dev, const void *arg)
{
    kvx_status verdicts[N_NAMES];
    const kvx_slot slot = {0, 3 + 2, 0};
    tensors other_tensors;
    scene s;
    (void)arg;
    scene_open(&s, dev, KVX_TAMPER_LATCH, 20);
    tensors_create(&other_tensors, dev, &small, 0);
    kvx_layout *other = layout_make(s.r.ctx, &other_tensors, 77); /* another binding */
    store_names(&s, 0, 4);
    expect_ok(kvx_discard(s.r.ctx, 1, &slot, NULL));
    load_names(&s, 4, s.into, verdicts);
    assert_int_equal(verdicts[2], KVX_MISS);
    assert_int_equal(n_held(&s, 4), 2);
    load_names(&s, 2, other, verdicts);
    assert_int_equal(verdicts[0], KVX_REFUSED);
    assert_int_equal(n_held(&s, 1), 0);
    assert_int_equal(stats(&s).removed_blocks[KVX_TIER_BY_LOSS], 1);
    assert_int_equal(stats(&s).removed_blocks[KVX_TIER_BY_REFUSAL], 2);
    assert_int_equal(stats(&s).latched, 0);
    expect_ok(kvx_layout_destroy(other));
    scene_close(&s);
    tensors_destroy(&other_tensors);
}

/* ---- threads ---- */

typedef struct worker {
    scene *s;
    kvx_stream stream;
    tensors dest;
    kvx_layout *into;
    uint64_t random;
    uint32_t n_wrong, n_loaded;
} worker;

static void pump_once(worker *w)
{
    w->n_wrong += kvx_tier_pump(w->s->tier, clock_ns(), w->stream) != KVX_OK;
    sched_yield();
}

static void load_one(worker *w, uint32_t name, kvx_tier_pin pin)
{
    uint32_t block = (uint32_t)(random_word(&w->random) >> 40) % N_NAMES;
    kvx_tier_target target = {pin, w->into, block};
    kvx_tier_load_id load;
    kvx_status verdict = KVX_PENDING, status = KVX_PENDING;
    kvx_options options = KVX_OPTIONS_INIT;
    options.stream = w->stream;
    int later = random_word(&w->random) >> 63 != 0;
    status = later ? kvx_tier_prefetch(w->s->tier, 1, &target, &load)
                   : kvx_tier_load(w->s->tier, 1, &target, &options, &load);
    if (status != KVX_OK) {
        w->n_wrong += status != KVX_AGAIN || kvx_tier_unpin(w->s->tier, 1, &pin) != KVX_OK;
        return;
    }
    while ((status = kvx_tier_load_poll(w->s->tier, load, NULL, 1, &verdict)) == KVX_PENDING)
        pump_once(w);
    w->n_wrong += status != KVX_OK || verdict != KVX_OK || !tensors_holds(&w->dest, block, name + 1);
    w->n_loaded++;
}

/* Waits for a store that is under way. Nonzero with a pin if the block is held. */
static int look_up(worker *w, const kvx_tier_hash *hash, kvx_tier_pin *pin)
{
    kvx_tier_match match = {0, 0};
    for (;;) {
        w->n_wrong += kvx_tier_lookup(w->s->tier, 0, 1, hash, &match, pin) != KVX_OK;
        if (match.n_pending == 0)
            return match.n_hits == 1;
        pump_once(w);
    }
}

static void *work(void *arg)
{
    worker *w = arg;
    for (uint32_t i = 0; i < N_ROUNDS; i++) {
        kvx_tier_block block = block_of((uint32_t)(random_word(&w->random) >> 40) % N_NAMES, w->s->r.layout);
        kvx_tier_pin pin;
        if (look_up(w, &block.hash, &pin))
            load_one(w, block.block, pin);
        else
            w->n_wrong += kvx_tier_offer(w->s->tier, KVX_TIER_USED, 1, &block, NULL) != KVX_OK;
        pump_once(w);
        if (i % 50 == 49)
            w->n_wrong += kvx_tier_forget(w->s->tier, 0) != KVX_OK;
    }
    return NULL;
}

static void workers_run(scene *s, worker *workers)
{
    pthread_t threads[N_THREADS];
    uint32_t n_loaded = 0;
    for (uint32_t i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    for (uint32_t i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(workers[i].n_wrong, 0);
        n_loaded += workers[i].n_loaded;
    }
    pump_until_idle(s);
    assert_true(n_loaded > N_ROUNDS / 2);
    assert_int_equal(stats(s).pinned_now, 0);
    assert_int_equal(stats(s).loaded_blocks, n_loaded);
}

/* Fewer slots than names: blocks come and go under the threads. */
static void test_threads(const device *dev, const void *arg)
{
    worker workers[N_THREADS];
    scene s;
    (void)arg;
    memset(workers, 0, sizeof workers);
    scene_open(&s, dev, KVX_TAMPER_LATCH, N_NAMES - 4);
    for (uint32_t i = 0; i < N_THREADS; i++) {
        workers[i].s = &s;
        workers[i].random = i + 1;
        workers[i].stream = dev->stream_create();
        tensors_create(&workers[i].dest, dev, &small, 0);
        workers[i].into = layout_make(s.r.ctx, &workers[i].dest, 7);
    }
    workers_run(&s, workers);
    for (uint32_t i = 0; i < N_THREADS; i++)
        expect_ok(kvx_layout_destroy(workers[i].into));
    scene_close(&s);
    for (uint32_t i = 0; i < N_THREADS; i++) {
        dev->stream_destroy(workers[i].stream);
        tensors_destroy(&workers[i].dest);
    }
}

int main(int argc, char **argv)
{
    const test_case cases[] = {
        {"round_trip", test_round_trip, NULL},
        {"tampered_is_a_miss", test_tampered_is_a_miss, NULL},
        {"tampered_latches", test_tampered_latches, NULL},
        {"gone_and_refused", test_gone_and_refused, NULL},
        {"threads", test_threads, NULL},
    };
    return RUN_CASES("tier on an engine", cases, argc, argv);
}
