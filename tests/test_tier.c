/* SPDX-License-Identifier: Apache-2.0 */
/* What the policies do to a few blocks, in a dry tier. test_tier_model.c checks the same at random, test_tier_limits.c
 * what is wrong or scarce, test_tier_batch.c what is in flight. */
#include "tier_dry.h"

static void test_chain(void **state)
{
    kvx_tier *tier = dry_open(16, KVX_TIER_WRITE_THROUGH, KVX_TIER_EVICT_LRU);
    (void)state;
    dry_store(tier, 0, 0, 3);
    assert_int_equal(dry_offer(tier, KVX_TIER_USED, 0, 3), KVX_TIER_QUEUED);
    assert_int_equal(dry_offer(tier, KVX_TIER_USED, 0, 3), KVX_TIER_JOINED);
    kvx_tier_hash hashes[6];
    kvx_tier_match match;
    for (uint32_t i = 0; i < 6; i++)
        hashes[i] = dry_hash(i);
    expect_ok(kvx_tier_lookup(tier, 0, 6, hashes, &match, NULL));
    assert_int_equal(match.n_hits, 3);
    assert_int_equal(match.n_pending, 1);
    expect_ok(kvx_tier_lookup(tier, 1, 6, hashes, &match, NULL)); /* another tenant */
    assert_int_equal(match.n_hits + match.n_pending, 0);
    dry_pump(tier);
    assert_int_equal(dry_hits(tier, 0, 0, 6), 4);
    assert_int_equal(dry_offer(tier, KVX_TIER_USED, 0, 3), KVX_TIER_HELD);
    kvx_tier_stats stats = dry_stats(tier);
    assert_int_equal(stats.hit_blocks, 7);
    assert_int_equal(stats.pending_blocks, 1);
    assert_int_equal(stats.miss_blocks, 10);
    assert_int_equal(stats.joined_blocks, 1);
    assert_int_equal(stats.stored_bytes, 400);
    expect_ok(kvx_tier_destroy(tier));
}

/* ---- what makes room ---- */

static void test_lru(void **state)
{
    kvx_tier *tier = dry_open(4, KVX_TIER_WRITE_THROUGH, KVX_TIER_EVICT_LRU);
    (void)state;
    dry_store(tier, 0, 0, 4);
    assert_int_equal(dry_hits(tier, 0, 0, 1), 1); /* 0 is the youngest now */
    dry_store(tier, 0, 4, 2);                     /* 1 and 2 go */
    assert_true(dry_held(tier, 0, 0) && dry_held(tier, 0, 3) && dry_held(tier, 0, 4) && dry_held(tier, 0, 5));
    assert_int_equal(dry_stats(tier).removed_blocks[KVX_TIER_BY_CAPACITY], 2);
    expect_ok(kvx_tier_destroy(tier));
}

/* Blocks that were used again survive a scan longer than the tier. */
static void test_scan(void **state)
{
    kvx_tier *tier = dry_open(40, KVX_TIER_WRITE_THROUGH, KVX_TIER_EVICT_AGED);
    (void)state;
    dry_store(tier, 0, 0, 10);
    assert_int_equal(dry_hits(tier, 0, 0, 10), 10);
    dry_store(tier, 0, 1000, 60);
    for (uint32_t i = 0; i < 10; i++)
        assert_true(dry_held(tier, 0, i));
    assert_int_equal(dry_stats(tier).ghost_blocks, 0);
    dry_store(tier, 0, 1025, 1); /* was evicted a moment ago */
    assert_int_equal(dry_stats(tier).ghost_blocks, 1);
    expect_ok(kvx_tier_destroy(tier));
}

static void test_quota(void **state)
{
    kvx_tier *tier = dry_open(8, KVX_TIER_WRITE_THROUGH, KVX_TIER_EVICT_LRU);
    kvx_tier_tenant rules = KVX_TIER_TENANT_INIT;
    uint32_t n;
    (void)state;
    rules.quota_blocks = 3;
    expect_ok(kvx_tier_tenant_set(tier, 1, &rules));
    dry_store(tier, 0, 0, 4);
    dry_store(tier, 1, 0, 5);
    expect_ok(kvx_tier_tenant_blocks(tier, 1, &n));
    assert_int_equal(n, 3);
    assert_int_equal(dry_hits(tier, 0, 0, 4), 4); /* nobody else paid for it */
    assert_int_equal(dry_hits(tier, 1, 2, 3), 3);
    assert_int_equal(dry_stats(tier).removed_blocks[KVX_TIER_BY_QUOTA], 2);
    expect_status(kvx_tier_tenant_set(tier, 1, &rules), KVX_AGAIN);
    expect_ok(kvx_tier_forget(tier, 1));
    expect_ok(kvx_tier_tenant_set(tier, 1, &rules));
    expect_ok(kvx_tier_destroy(tier));
}

static void test_pins(void **state)
{
    kvx_tier *tier = dry_open(3, KVX_TIER_WRITE_THROUGH, KVX_TIER_EVICT_AGED);
    kvx_tier_hash hashes[3] = {dry_hash(0), dry_hash(1), dry_hash(2)};
    kvx_tier_match match;
    kvx_tier_pin pins[3];
    (void)state;
    dry_store(tier, 0, 0, 3);
    expect_ok(kvx_tier_lookup(tier, 0, 3, hashes, &match, pins));
    assert_int_equal(match.n_hits, 3);
    assert_int_equal(dry_offer(tier, KVX_TIER_USED, 0, 7), KVX_TIER_NO_ROOM);
    expect_ok(kvx_tier_unpin(tier, 1, &pins[1]));
    expect_status(kvx_tier_unpin(tier, 1, &pins[1]), KVX_INVALID);
    dry_store(tier, 0, 7, 1);
    assert_true(dry_held(tier, 0, 0) && !dry_held(tier, 0, 1) && dry_held(tier, 0, 2));
    expect_ok(kvx_tier_drop(tier, 0, 1, hashes)); /* pinned: a miss at once, its place is not free yet */
    assert_int_equal(dry_hits(tier, 0, 0, 1), 0);
    assert_int_equal(dry_stats(tier).leaving_now, 1);
    expect_ok(kvx_tier_unpin(tier, 1, &pins[0]));
    assert_int_equal(dry_stats(tier).leaving_now, 0);
    expect_ok(kvx_tier_unpin(tier, 1, &pins[2]));
    expect_ok(kvx_tier_destroy(tier));
}

/* ---- what is stored ---- */

static void test_selective(void **state)
{
    kvx_tier *tier = dry_open(8, KVX_TIER_WRITE_SELECTIVE, KVX_TIER_EVICT_LRU);
    (void)state;
    assert_int_equal(dry_offer(tier, KVX_TIER_USED, 0, 1), KVX_TIER_SKIPPED);
    assert_int_equal(dry_offer(tier, KVX_TIER_LEAVING, 0, 1), KVX_TIER_SKIPPED);
    assert_int_equal(dry_offer(tier, KVX_TIER_USED, 0, 1), KVX_TIER_QUEUED);
    assert_int_equal(dry_offer(tier, KVX_TIER_USED, 1, 1), KVX_TIER_SKIPPED); /* another tenant's */
    dry_pump(tier);
    expect_ok(kvx_tier_drop(tier, 0, 1, (kvx_tier_hash[]){dry_hash(1)}));
    assert_int_equal(dry_offer(tier, KVX_TIER_LEAVING, 0, 1), KVX_TIER_QUEUED); /* has its hits */
    expect_ok(kvx_tier_destroy(tier));
}

/* A block lives in one place: the load takes it out of the tier, its eviction brings it back. */
static void test_write_back(void **state)
{
    kvx_tier *tier = dry_open(8, KVX_TIER_WRITE_BACK, KVX_TIER_EVICT_LRU);
    kvx_tier_hash hash = dry_hash(1);
    kvx_tier_match match;
    kvx_tier_target target = {0, NULL, 5};
    kvx_tier_load_id load;
    uint32_t n_failed;
    (void)state;
    assert_int_equal(dry_offer(tier, KVX_TIER_USED, 0, 1), KVX_TIER_SKIPPED);
    assert_int_equal(dry_offer(tier, KVX_TIER_LEAVING, 0, 1), KVX_TIER_QUEUED);
    dry_pump(tier);
    expect_ok(kvx_tier_lookup(tier, 0, 1, &hash, &match, &target.pin));
    expect_ok(kvx_tier_load(tier, 1, &target, NULL, &load));
    expect_ok(kvx_tier_load_poll(tier, load, &n_failed, 0, NULL));
    assert_int_equal(n_failed, 0);
    assert_int_equal(dry_hits(tier, 0, 1, 1), 0);
    assert_int_equal(dry_stats(tier).removed_blocks[KVX_TIER_BY_MOVE], 1);
    assert_int_equal(dry_offer(tier, KVX_TIER_LEAVING, 0, 1), KVX_TIER_QUEUED);
    dry_pump(tier);
    assert_int_equal(dry_offer(tier, KVX_TIER_USED, 0, 1), KVX_TIER_SKIPPED); /* computed again: the GPU has it */
    assert_int_equal(dry_hits(tier, 0, 1, 1), 0);
    expect_ok(kvx_tier_destroy(tier));
}

/* ---- tenants ---- */

static void test_forget(void **state)
{
    kvx_tier *tier = dry_open(8, KVX_TIER_WRITE_THROUGH, KVX_TIER_EVICT_AGED);
    (void)state;
    dry_store(tier, 0, 0, 3);
    dry_store(tier, 1, 0, 3);
    assert_int_equal(dry_offer(tier, KVX_TIER_USED, 1, 9), KVX_TIER_QUEUED);
    expect_ok(kvx_tier_forget(tier, 1));
    assert_int_equal(dry_hits(tier, 1, 0, 3), 0);
    assert_int_equal(dry_hits(tier, 0, 0, 3), 3);
    kvx_tier_stats stats = dry_stats(tier);
    assert_int_equal(stats.removed_blocks[KVX_TIER_BY_ERASURE], 3);
    assert_int_equal(stats.free_now, 5);
    assert_int_equal(stats.pending_now, 0);
    expect_ok(kvx_tier_destroy(tier));
}

static void test_salt(void **state)
{
    kvx_tier *tier = dry_open(8, KVX_TIER_WRITE_THROUGH, KVX_TIER_EVICT_LRU);
    kvx_tier_tenant rules = KVX_TIER_TENANT_INIT;
    kvx_tier_event events[4];
    uint32_t n;
    (void)state;
    rules.set_salt = 1;
    memset(rules.salt, 0xa5, sizeof rules.salt);
    expect_ok(kvx_tier_tenant_set(tier, 0, &rules));
    expect_ok(kvx_tier_tenant_set(tier, 1, &rules)); /* the same salt does not make tenants the same */
    dry_store(tier, 0, 1, 1);
    assert_int_equal(dry_hits(tier, 1, 1, 1), 0);
    expect_ok(kvx_tier_events(tier, 4, events, &n, NULL));
    assert_int_equal(n, 1);
    kvx_tier_hash hash = dry_hash(1);
    assert_memory_equal(&events[0].hash, &hash, sizeof hash); /* without the salt */
    expect_status(kvx_tier_tenant_set(tier, 0, &rules), KVX_AGAIN);
    expect_ok(kvx_tier_destroy(tier));
}

/* ---- events ---- */

static void test_events_lost(void **state)
{
    kvx_tier_config config = KVX_TIER_CONFIG_INIT;
    kvx_tier_event events[16];
    kvx_tier *tier;
    uint64_t n_lost;
    uint32_t n;
    (void)state;
    config.n_blocks = 100;
    config.batch_blocks = 1;
    config.max_events = 7; /* becomes 8 */
    expect_ok(kvx_tier_create(&config, &tier));
    dry_store(tier, 0, 0, 20);
    assert_int_equal(dry_stats(tier).events_lost, 12);
    expect_ok(kvx_tier_events(tier, 3, events, &n, &n_lost));
    assert_int_equal(n, 3);
    assert_int_equal(n_lost, 12);
    assert_int_equal(events[0].sequence, 13);
    expect_ok(kvx_tier_events(tier, 16, events, &n, &n_lost));
    assert_int_equal(n, 5);
    assert_int_equal(n_lost, 0);
    assert_int_equal(events[4].kind, KVX_TIER_STORED);
    assert_int_equal(dry_stats(tier).events_lost, 12);
    expect_ok(kvx_tier_destroy(tier));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chain),       cmocka_unit_test(test_lru),    cmocka_unit_test(test_scan),
        cmocka_unit_test(test_quota),       cmocka_unit_test(test_pins),   cmocka_unit_test(test_selective),
        cmocka_unit_test(test_write_back),  cmocka_unit_test(test_forget), cmocka_unit_test(test_salt),
        cmocka_unit_test(test_events_lost),
    };
    return cmocka_run_group_tests_name("tier", tests, NULL, NULL);
}
