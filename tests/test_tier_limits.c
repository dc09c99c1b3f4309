/* SPDX-License-Identifier: Apache-2.0 */
/* The tier at its limits: wrong arguments, no memory, no allocation after create, bytes per block, many threads, fork.
 */
#include "tier_dry.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- arguments ---- */

static void test_bad_config(void **state)
{
    kvx_tier_config good = KVX_TIER_CONFIG_INIT;
    kvx_tier *tier = NULL;
    (void)state;
    good.n_blocks = 4;
    kvx_tier_config bad[] = {good, good, good, good, good, good, good, good, good};
    bad[0].size = 0;
    bad[1].n_blocks = 0;
    bad[2].n_blocks = UINT32_MAX;
    bad[3].n_tenants = KVX_TIER_TENANTS_MAX + 1;
    bad[4].write = (kvx_tier_write)3;
    bad[5].evict = (kvx_tier_evict)-1;
    bad[6].selective_hits = 101;
    bad[7].again_percent = 10001;
    bad[8].max_events = UINT32_MAX;
    for (size_t i = 0; i < COUNT(bad); i++)
        expect_status(kvx_tier_create(&bad[i], &tier), KVX_INVALID);
    expect_status(kvx_tier_create(NULL, &tier), KVX_INVALID);
    expect_status(kvx_tier_create(&good, NULL), KVX_INVALID);
    assert_null(tier);
    expect_ok(kvx_tier_destroy(NULL));
}

static void test_bad_calls(void **state)
{
    kvx_tier *tier = dry_open(4, KVX_TIER_WRITE_THROUGH, KVX_TIER_EVICT_LRU);
    kvx_tier_block block = {dry_hash(1), 4, 0, NULL}; /* there are tenants 0 .. 3 */
    kvx_tier_hash hash = dry_hash(1);
    kvx_tier_match match;
    kvx_tier_drop_answer answer;
    kvx_tier_target target = {1, NULL, 0};
    kvx_tier_load_id load;
    kvx_tier_stats stats = {.size = 0};
    uint64_t id;
    uint32_t n;
    (void)state;
    expect_status(kvx_tier_lookup(NULL, 0, 1, &hash, &match, NULL), KVX_INVALID);
    expect_status(kvx_tier_lookup(tier, 4, 1, &hash, &match, NULL), KVX_INVALID);
    expect_status(kvx_tier_lookup(tier, 0, 1, NULL, &match, NULL), KVX_INVALID);
    expect_status(kvx_tier_lookup(tier, 0, 1, &hash, NULL, NULL), KVX_INVALID);
    expect_status(kvx_tier_offer(tier, KVX_TIER_USED, 1, &block, NULL), KVX_INVALID);
    expect_status(kvx_tier_offer(tier, KVX_TIER_USED, 1, NULL, NULL), KVX_INVALID);
    block.tenant = 0;
    expect_status(kvx_tier_offer(tier, (kvx_tier_occasion)0, 1, &block, NULL), KVX_INVALID);
    expect_status(kvx_tier_may_drop(tier, 1, &block, NULL), KVX_INVALID);
    expect_ok(kvx_tier_may_drop(tier, 1, &block, &answer));
    expect_status(kvx_tier_unpin(tier, 1, NULL), KVX_INVALID);
    expect_status(kvx_tier_load(tier, 1, &target, NULL, &load), KVX_INVALID);
    expect_status(kvx_tier_load(tier, 0, &target, NULL, &load), KVX_INVALID);
    expect_status(kvx_tier_load_poll(tier, 0, NULL, 0, NULL), KVX_UNKNOWN);
    expect_status(kvx_tier_load_poll(tier, 1, NULL, 1, NULL), KVX_INVALID);
    expect_status(kvx_tier_announce(tier, 0, 1, &hash, 1, NULL, NULL), KVX_INVALID);
    expect_ok(kvx_tier_announce(tier, 0, 1, &hash, 1, &n, &id));
    assert_int_equal(id, 0);
    expect_status(kvx_tier_withdraw(tier, 0), KVX_UNKNOWN);
    expect_status(kvx_tier_events(tier, 1, NULL, &n, NULL), KVX_INVALID);
    expect_status(kvx_tier_stats_get(tier, &stats), KVX_INVALID);
    expect_status(kvx_tier_tenant_set(tier, 0, NULL), KVX_INVALID);
    expect_status(kvx_tier_tenant_blocks(tier, 9, &n), KVX_INVALID);
    expect_status(kvx_tier_drop(tier, 9, 1, &hash), KVX_INVALID);
    expect_status(kvx_tier_forget(tier, 9), KVX_INVALID);
    expect_ok(kvx_tier_destroy(tier));
}

static void test_fork(void **state)
{
    kvx_tier *tier = dry_open(4, KVX_TIER_WRITE_THROUGH, KVX_TIER_EVICT_LRU);
    int status;
    (void)state;
    pid_t child = fork();
    if (child == 0)
        _exit(kvx_tier_pump(tier, 1, NULL) == KVX_FORKED && kvx_tier_destroy(tier) == KVX_FORKED ? 0 : 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    expect_ok(kvx_tier_destroy(tier));
}

/* ---- memory ---- */

static uint32_t n_allocations, fail_at; /* fail_at n: the n-th allocation from now fails; 0: none */

void *__real_calloc(size_t n, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__real_malloc(size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);

static int fails(void)
{
    return ++n_allocations == fail_at;
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    return fails() ? NULL : __real_calloc(n, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return fails() ? NULL : __real_aligned_alloc(alignment, bytes);
}

void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    return fails() ? NULL : __real_realloc(memory, bytes);
}

static void test_no_memory(void **state)
{
    kvx_tier_config config = KVX_TIER_CONFIG_INIT;
    kvx_tier *tier = NULL;
    uint32_t failures = 0;
    (void)state;
    config.n_blocks = 300000; /* large enough for huge pages */
    for (kvx_status status = KVX_NO_MEMORY; status == KVX_NO_MEMORY; failures++) {
        n_allocations = 0;
        fail_at = failures + 1;
        status = kvx_tier_create(&config, &tier);
        assert_true(status == KVX_OK || !tier);
    }
    fail_at = 0;
    assert_true(failures > 15);
    expect_ok(kvx_tier_destroy(tier));
}

/* Everything a tier can do, many times over, without one allocation. */
static void test_no_allocation(void **state)
{
    kvx_tier *tier = dry_open(64, KVX_TIER_WRITE_SELECTIVE, KVX_TIER_EVICT_AGED);
    kvx_tier_hash hashes[4];
    kvx_tier_match match;
    kvx_tier_target target = {0, NULL, 0};
    kvx_tier_load_id load;
    kvx_tier_event event;
    uint64_t id;
    uint32_t n;
    (void)state;
    n_allocations = 0;
    for (uint32_t i = 0; i < 5000; i++) {
        for (uint32_t j = 0; j < 4; j++) {
            hashes[j] = dry_hash(i / 8 + j);
            (void)dry_offer(tier, KVX_TIER_USED, i % 4, i / 8 + j);
        }
        expect_ok(kvx_tier_pump(tier, i * 1000, NULL));
        expect_ok(kvx_tier_announce(tier, i % 4, 4, hashes, i * 1000 + 1, NULL, &id));
        expect_ok(kvx_tier_lookup(tier, i % 4, 1, hashes, &match, &target.pin));
        if (match.n_hits == 1) {
            expect_ok(kvx_tier_prefetch(tier, 1, &target, &load));
            expect_ok(kvx_tier_pump(tier, i * 1000 + 2, NULL));
            expect_ok(kvx_tier_load_poll(tier, load, NULL, 0, NULL));
        }
        expect_ok(kvx_tier_events(tier, 1, &event, &n, NULL));
        if (i % 1000 == 999)
            expect_ok(kvx_tier_forget(tier, i % 3));
    }
    assert_int_equal(n_allocations, 0);
    kvx_tier_stats stats = dry_stats(tier);
    assert_true(stats.loaded_blocks > 1000 && stats.removed_blocks[KVX_TIER_BY_CAPACITY] > 100);
    expect_ok(kvx_tier_destroy(tier));
}

static uint64_t memory_of(uint32_t n_blocks)
{
    kvx_tier *tier = dry_open(n_blocks, KVX_TIER_WRITE_SELECTIVE, KVX_TIER_EVICT_AGED);
    uint64_t bytes = dry_stats(tier).memory_bytes;
    expect_ok(kvx_tier_destroy(tier));
    return bytes;
}

static void test_memory_per_block(void **state)
{
    (void)state;
    assert_true(memory_of(200000) - memory_of(100000) <= (uint64_t)100000 * 79); /* of 80: the rest is constant */
}

/* ---- threads ---- */

#define N_THREADS 4u

typedef struct worker {
    kvx_tier *tier;
    uint32_t index;
    uint64_t random, n_hits;
    uint32_t n_wrong;
} worker;

static void work_once(worker *w, uint64_t now_ns)
{
    uint32_t n = 1 + (uint32_t)random_word(&w->random) % 8, first = (uint32_t)(random_word(&w->random) >> 40) % 100;
    uint32_t tenant = (uint32_t)(random_word(&w->random) >> 40) % 4;
    kvx_tier_hash hashes[8];
    kvx_tier_block blocks[8];
    kvx_tier_pin pins[8];
    kvx_tier_target targets[8];
    kvx_tier_match match = {0, 0};
    kvx_tier_load_id load;
    for (uint32_t i = 0; i < n; i++) {
        hashes[i] = dry_hash(first + i);
        blocks[i] = (kvx_tier_block){hashes[i], tenant, w->index * 8 + i, NULL};
    }
    w->n_wrong += kvx_tier_lookup(w->tier, tenant, n, hashes, &match, pins) != KVX_OK;
    w->n_hits += match.n_hits;
    for (uint32_t i = 0; i < match.n_hits; i++)
        targets[i] = (kvx_tier_target){pins[i], NULL, w->index * 8 + i};
    if (match.n_hits > 0 && random_word(&w->random) >> 63)
        w->n_wrong += kvx_tier_unpin(w->tier, match.n_hits, pins) != KVX_OK;
    else if (match.n_hits > 0)
        w->n_wrong += kvx_tier_load(w->tier, match.n_hits, targets, NULL, &load) != KVX_OK ||
                      kvx_tier_load_poll(w->tier, load, NULL, 0, NULL) != KVX_OK;
    w->n_wrong += kvx_tier_offer(w->tier, KVX_TIER_USED, n, blocks, NULL) != KVX_OK;
    w->n_wrong += kvx_tier_pump(w->tier, now_ns, NULL) != KVX_OK;
}

static void *work(void *arg)
{
    worker *w = arg;
    kvx_tier_event events[32];
    kvx_tier_stats stats = {.size = sizeof stats};
    uint32_t n;
    for (uint32_t i = 0; i < 2000; i++) {
        work_once(w, i * 1000);
        if (i % 64 == 0)
            w->n_wrong += kvx_tier_events(w->tier, 32, events, &n, NULL) != KVX_OK ||
                          kvx_tier_stats_get(w->tier, &stats) != KVX_OK || kvx_tier_forget(w->tier, w->index) != KVX_OK;
        w->n_wrong += stats.blocks_now + stats.pending_now + stats.leaving_now + stats.free_now != stats.capacity;
    }
    return NULL;
}

static void test_threads(void **state)
{
    kvx_tier *tier = dry_open(60, KVX_TIER_WRITE_THROUGH, KVX_TIER_EVICT_AGED);
    worker workers[N_THREADS] = {{0}};
    pthread_t threads[N_THREADS];
    uint64_t n_hits = 0;
    (void)state;
    for (uint32_t i = 0; i < N_THREADS; i++) {
        workers[i].tier = tier;
        workers[i].index = i;
        workers[i].random = i + 1;
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (uint32_t i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(workers[i].n_wrong, 0);
        n_hits += workers[i].n_hits;
    }
    assert_true(n_hits > 0); /* of all: one thread may find another one pumping all the time */
    dry_pump(tier);
    assert_int_equal(dry_stats(tier).pinned_now, 0);
    expect_ok(kvx_tier_destroy(tier));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_config),    cmocka_unit_test(test_bad_calls),
        cmocka_unit_test(test_fork),          cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_no_allocation), cmocka_unit_test(test_memory_per_block),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests_name("limits of the tier", tests, NULL, NULL);
}
