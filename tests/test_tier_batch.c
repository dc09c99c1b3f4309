/* SPDX-License-Identifier: Apache-2.0 */
/* What a tier has in flight, over the fake core: when stores begin, what goes first, what failures and the latch do. */
#include "support.h"

#include "tier_fake.h"

#define MS 1000000u

typedef struct scene {
    kvx_tier *tier;
    uint64_t now_ns;
    uint32_t n_stores, n_restores; /* calls of the core */
    uint32_t last_n;
} scene;

static int on_store(void *self, kvx_status status, uint32_t n, const kvx_pair *pairs, const kvx_options *options)
{
    scene *s = self;
    (void)pairs;
    (void)options;
    s->n_stores += status == KVX_OK;
    s->last_n = n;
    return 0;
}

static int on_restore(void *self, kvx_status status, uint32_t n, const kvx_pair *pairs)
{
    scene *s = self;
    (void)pairs;
    s->n_restores += status == KVX_OK;
    s->last_n = n;
    return 0;
}

static kvx_tier_config config_of(void)
{
    kvx_tier_config config = KVX_TIER_CONFIG_INIT;
    config.ctx = fake_ctx;
    config.pool = fake_pool;
    config.n_blocks = 32;
    config.batch_blocks = 4;
    config.batch_wait_ns = 2 * MS;
    config.max_wait_ns = 50 * MS;
    return config;
}

static void scene_open(scene *s, const kvx_tier_config *config)
{
    memset(s, 0, sizeof *s);
    fake_reset(1);
    fake.observer.self = s;
    fake.observer.store = on_store;
    fake.observer.restore = on_restore;
    s->now_ns = 1000 * MS;
    expect_ok(kvx_tier_create(config, &s->tier));
    expect_ok(kvx_tier_pump(s->tier, s->now_ns, NULL));
}

static void scene_pump(scene *s, uint64_t ns)
{
    s->now_ns += ns;
    expect_ok(kvx_tier_pump(s->tier, s->now_ns, NULL));
}

static void settle(scene *s)
{
    fake.hold = 0;
    for (uint32_t i = 0; i < 200; i++)
        scene_pump(s, MS);
    expect_ok(kvx_tier_idle(s->tier));
}

static void scene_close(scene *s)
{
    assert_int_equal(fake.n_wrong, 0);
    expect_ok(kvx_tier_destroy(s->tier));
}

static kvx_tier_block block_of(uint32_t name)
{
    kvx_tier_block block = {{{0}}, 0, name, fake_layout};
    memcpy(block.hash.bytes, &name, sizeof name);
    return block;
}

/* Names first, first + 1, ... lie in GPU blocks of these numbers. */
static void offer(scene *s, uint32_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        kvx_tier_block block = block_of(first + i);
        kvx_tier_outcome outcome;
        fake.gpu[first + i] = first + i + 1;
        expect_ok(kvx_tier_offer(s->tier, KVX_TIER_USED, 1, &block, &outcome));
        assert_int_equal(outcome, KVX_TIER_QUEUED);
    }
}

static kvx_tier_drop_answer may_drop(scene *s, uint32_t name)
{
    kvx_tier_block block = block_of(name);
    kvx_tier_drop_answer answer;
    expect_ok(kvx_tier_may_drop(s->tier, 1, &block, &answer));
    return answer;
}

static kvx_tier_match lookup(scene *s, uint32_t name, kvx_tier_pin *pin)
{
    kvx_tier_block block = block_of(name);
    kvx_tier_match match;
    expect_ok(kvx_tier_lookup(s->tier, 0, 1, &block.hash, &match, pin));
    return match;
}

static kvx_tier_load_id load(scene *s, uint32_t name, uint32_t into)
{
    kvx_tier_target target = {0, fake_layout, into};
    kvx_tier_load_id id;
    assert_int_equal(lookup(s, name, &target.pin).n_hits, 1);
    expect_ok(kvx_tier_load(s->tier, 1, &target, NULL, &id));
    return id;
}

static kvx_status ended(scene *s, kvx_tier_load_id id)
{
    kvx_status verdict = KVX_PENDING, status = KVX_PENDING;
    fake.hold = 0;
    while (status == KVX_PENDING)
        status = kvx_tier_load_poll(s->tier, id, NULL, 1, &verdict);
    assert_int_equal(status, KVX_OK);
    return verdict;
}

static kvx_tier_stats stats(scene *s)
{
    kvx_tier_stats got = {.size = sizeof got};
    expect_ok(kvx_tier_stats_get(s->tier, &got));
    return got;
}

/* Full batches at once, others when their oldest block has waited long enough, or when asked for. */
static void test_gathering(void **state)
{
    kvx_tier_config config = config_of();
    scene s;
    (void)state;
    scene_open(&s, &config);
    offer(&s, 0, 3);
    scene_pump(&s, MS);
    assert_int_equal(s.n_stores, 0);
    offer(&s, 3, 3);
    scene_pump(&s, 0);
    assert_int_equal(s.n_stores, 1);
    assert_int_equal(s.last_n, 4);
    scene_pump(&s, 2 * MS);
    assert_int_equal(s.n_stores, 2);
    assert_int_equal(s.last_n, 2);
    offer(&s, 6, 1);
    expect_ok(kvx_tier_flush(s.tier));
    scene_pump(&s, 0);
    assert_int_equal(s.n_stores, 3);
    settle(&s);
    assert_int_equal(stats(&s).blocks_now, 7);
    assert_int_equal(stats(&s).stored_bytes, 7 * FAKE_SEALED);
    scene_close(&s);
}

/* Announced blocks do not wait for a full batch, and stay until their time is over. */
static void test_announcement(void **state)
{
    kvx_tier_config config = config_of();
    kvx_tier_hash chain[2] = {block_of(0).hash, block_of(1).hash};
    uint32_t n_held;
    uint64_t id;
    scene s;
    (void)state;
    config.n_blocks = 2;
    scene_open(&s, &config);
    offer(&s, 0, 2);
    expect_ok(kvx_tier_announce(s.tier, 0, 2, chain, UINT64_MAX, &n_held, &id));
    assert_int_equal(n_held, 0);
    scene_pump(&s, 0);
    assert_int_equal(s.n_stores, 1);
    settle(&s);
    expect_ok(kvx_tier_announce(s.tier, 0, 2, chain, s.now_ns + 10 * MS, &n_held, &id));
    assert_int_equal(n_held, 2);
    kvx_tier_block other = block_of(9);
    kvx_tier_outcome outcome;
    expect_ok(kvx_tier_offer(s.tier, KVX_TIER_USED, 1, &other, &outcome));
    assert_int_equal(outcome, KVX_TIER_NO_ROOM);
    scene_pump(&s, 10 * MS);
    expect_status(kvx_tier_withdraw(s.tier, id), KVX_UNKNOWN); /* over */
    expect_ok(kvx_tier_offer(s.tier, KVX_TIER_USED, 1, &other, &outcome));
    assert_int_equal(outcome, KVX_TIER_QUEUED);
    settle(&s);
    scene_close(&s);
}

/* While a load runs no store begins, until one has waited max_wait_ns; then one batch at a time. */
static void test_loads_first(void **state)
{
    kvx_tier_config config = config_of();
    scene s;
    (void)state;
    scene_open(&s, &config);
    offer(&s, 0, 4);
    settle(&s);
    uint32_t before = s.n_stores;
    fake.hold = 1;
    kvx_tier_load_id id = load(&s, 0, 40);
    offer(&s, 4, 12);
    scene_pump(&s, 49 * MS);
    assert_int_equal(s.n_stores, before);
    scene_pump(&s, MS);
    assert_int_equal(s.n_stores, before + 1);
    scene_pump(&s, 50 * MS);
    assert_int_equal(s.n_stores, before + 1);
    assert_int_equal(ended(&s, id), KVX_OK);
    assert_int_equal(fake.gpu[40], 1);
    scene_pump(&s, 0);
    assert_true(s.n_stores >= before + 2);
    settle(&s);
    scene_close(&s);
}

/* Prefetches begin in the pump, before stores, up to a number of bytes in flight. */
static void test_prefetch(void **state)
{
    kvx_tier_config config = config_of();
    kvx_tier_load_id ids[3];
    scene s;
    (void)state;
    config.load_bytes_in_flight = FAKE_SEALED + 1;
    scene_open(&s, &config);
    offer(&s, 0, 4);
    settle(&s);
    fake.hold = 1;
    for (uint32_t i = 0; i < 3; i++) {
        kvx_tier_target target = {0, fake_layout, 40 + i};
        assert_int_equal(lookup(&s, i, &target.pin).n_hits, 1);
        expect_ok(kvx_tier_prefetch(s.tier, 1, &target, &ids[i]));
    }
    assert_int_equal(s.n_restores, 0);
    offer(&s, 4, 4);
    uint32_t before = s.n_stores;
    scene_pump(&s, 0);
    assert_int_equal(s.n_restores, 2);
    assert_int_equal(s.n_stores, before);
    expect_status(kvx_tier_load_poll(s.tier, ids[2], NULL, 0, NULL), KVX_PENDING);
    settle(&s);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(ended(&s, ids[i]), KVX_OK);
        assert_int_equal(fake.gpu[40 + i], i + 1);
    }
    assert_int_equal(stats(&s).prefetched_blocks, 3);
    scene_close(&s);
}

static void test_rate(void **state)
{
    kvx_tier_config config = config_of();
    scene s;
    (void)state;
    config.store_bytes_per_s = 1000 * FAKE_SEALED; /* a block per ms */
    scene_open(&s, &config);
    offer(&s, 0, 12);
    scene_pump(&s, 0);
    assert_int_equal(s.n_stores, 1);
    scene_pump(&s, 3 * MS);
    assert_int_equal(s.n_stores, 1);
    scene_pump(&s, MS);
    assert_int_equal(s.n_stores, 2);
    settle(&s);
    scene_close(&s);
}

/* A GPU block is needed until its store has read it, also if the block was dropped in between. */
static void test_may_drop(void **state)
{
    kvx_tier_config config = config_of();
    scene s;
    (void)state;
    scene_open(&s, &config);
    assert_int_equal(may_drop(&s, 0), KVX_TIER_LOSE);
    offer(&s, 0, 4);
    assert_int_equal(may_drop(&s, 0), KVX_TIER_WAIT);
    fake.hold = 1;
    scene_pump(&s, 0);
    assert_int_equal(may_drop(&s, 0), KVX_TIER_WAIT);
    expect_ok(kvx_tier_forget(s.tier, 0));
    assert_int_equal(lookup(&s, 0, NULL).n_pending, 0);
    assert_int_equal(may_drop(&s, 0), KVX_TIER_WAIT);
    expect_status(kvx_tier_destroy(s.tier), KVX_AGAIN);
    settle(&s);
    assert_int_equal(may_drop(&s, 0), KVX_TIER_LOSE);
    assert_int_equal(stats(&s).free_now, 32);
    for (uint32_t i = 0; i < FAKE_SLOTS; i++)
        assert_int_equal(fake.slots[i].content, 0); /* discarded */
    offer(&s, 0, 4);
    settle(&s);
    assert_int_equal(may_drop(&s, 0), KVX_TIER_KEEP);
    scene_close(&s);
}

/* The core is short of tickets: nothing is lost, and the order stays. */
static void test_again(void **state)
{
    kvx_tier_config config = config_of();
    scene s;
    (void)state;
    scene_open(&s, &config);
    fake.again_percent = 100;
    offer(&s, 0, 6);
    scene_pump(&s, 0);
    assert_int_equal(s.n_stores, 0);
    assert_int_equal(stats(&s).pending_now, 6);
    fake.again_percent = 0;
    settle(&s);
    assert_int_equal(stats(&s).blocks_now, 6);
    kvx_tier_target target = {0, fake_layout, 40};
    kvx_tier_load_id id;
    assert_int_equal(lookup(&s, 0, &target.pin).n_hits, 1);
    fake.again_percent = 100;
    expect_status(kvx_tier_load(s.tier, 1, &target, NULL, &id), KVX_AGAIN);
    fake.again_percent = 0;
    expect_ok(kvx_tier_load(s.tier, 1, &target, NULL, &id)); /* the pin was still in force */
    assert_int_equal(ended(&s, id), KVX_OK);
    scene_close(&s);
}

/* After the latch everything is a miss and nothing is stored; the tier can be destroyed with work in flight. */
static void test_latch(void **state)
{
    kvx_tier_config config = config_of();
    scene s;
    (void)state;
    scene_open(&s, &config);
    offer(&s, 0, 4);
    settle(&s);
    fake.hold = 1;
    kvx_tier_load_id id = load(&s, 0, 40);
    fake.latched = 1;
    assert_int_equal(ended(&s, id), KVX_LATCHED);
    assert_int_equal(stats(&s).latched, 1);
    assert_int_equal(lookup(&s, 1, NULL).n_hits, 0);
    assert_int_equal(may_drop(&s, 1), KVX_TIER_LOSE);
    kvx_tier_block block = block_of(9);
    kvx_tier_outcome outcome;
    expect_ok(kvx_tier_offer(s.tier, KVX_TIER_USED, 1, &block, &outcome));
    assert_int_equal(outcome, KVX_TIER_NO_ROOM);
    expect_ok(kvx_tier_forget(s.tier, 0));
    scene_pump(&s, MS);
    assert_int_equal(stats(&s).free_now, 32);
    scene_close(&s);
}

static void test_latch_in_flight(void **state)
{
    kvx_tier_config config = config_of();
    scene s;
    (void)state;
    scene_open(&s, &config);
    offer(&s, 0, 4);
    fake.hold = 1;
    scene_pump(&s, 0);
    expect_status(kvx_tier_destroy(s.tier), KVX_AGAIN);
    fake.latched = 1;
    scene_close(&s);
}

/* Slots must be numbered by the caller, and exist. */
static void test_slots(void **state)
{
    kvx_tier_config config = config_of();
    kvx_tier *tier;
    (void)state;
    fake_reset(1);
    config.slot_class = 1;
    expect_status(kvx_tier_create(&config, &tier), KVX_INVALID);
    config.slot_class = 0;
    config.first_slot = FAKE_SLOTS - 31;
    expect_status(kvx_tier_create(&config, &tier), KVX_INVALID);
    config.first_slot = UINT32_MAX - 3;
    expect_status(kvx_tier_create(&config, &tier), KVX_INVALID);
    config.first_slot = 0;
    config.pool = NULL;
    expect_status(kvx_tier_create(&config, &tier), KVX_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gathering), cmocka_unit_test(test_announcement), cmocka_unit_test(test_loads_first),
        cmocka_unit_test(test_prefetch),  cmocka_unit_test(test_rate),         cmocka_unit_test(test_may_drop),
        cmocka_unit_test(test_again),     cmocka_unit_test(test_latch),        cmocka_unit_test(test_latch_in_flight),
        cmocka_unit_test(test_slots),
    };
    return cmocka_run_group_tests_name("work of the tier in flight", tests, NULL, NULL);
}
