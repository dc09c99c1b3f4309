/* SPDX-License-Identifier: Apache-2.0 */
/* The cache tier with bytes: serving code on a tier far smaller than the working set, while the host changes the pool.
 * Every block served is compared with what it must hold, so a wrong byte from anywhere fails. */
#include "tier_server.h"

#include <pthread.h>
#include <sched.h>

#define N_ROUNDS 500u
#define N_THREAD_ROUNDS 120u

typedef struct mode {
    kvx_tier_write write;
    kvx_tier_evict evict;
} mode;

static const mode modes[] = {
    {KVX_TIER_WRITE_THROUGH, KVX_TIER_EVICT_LRU},   {KVX_TIER_WRITE_THROUGH, KVX_TIER_EVICT_AGED},
    {KVX_TIER_WRITE_SELECTIVE, KVX_TIER_EVICT_LRU}, {KVX_TIER_WRITE_SELECTIVE, KVX_TIER_EVICT_AGED},
    {KVX_TIER_WRITE_BACK, KVX_TIER_EVICT_LRU},      {KVX_TIER_WRITE_BACK, KVX_TIER_EVICT_AGED},
};

static hall_options options_of(const mode *m, kvx_tamper_policy policy, uint32_t n_servers)
{
    return (hall_options){.write = m->write, .evict = m->evict, .policy = policy, .n_servers = n_servers};
}

static uint32_t tenant_blocks(hall *h, uint32_t tenant)
{
    uint32_t n = 0;
    expect_ok(kvx_tier_tenant_blocks(h->tier, tenant, &n));
    return n;
}

/* Blocks of the chain that the tier would serve now. */
static uint32_t held(hall *h, uint32_t tenant, uint32_t talk, uint32_t n)
{
    kvx_tier_hash hashes[N_CHAIN];
    kvx_tier_match match;
    for (uint32_t i = 0; i < n; i++)
        hashes[i] = chain_hash(talk, i);
    expect_ok(kvx_tier_lookup(h->tier, tenant, n, hashes, &match, NULL));
    return match.n_hits + match.n_pending;
}

/* ------------------------------------------------------------------------------------------------------ random runs */

static void test_tampering_host(const device *dev, const void *arg)
{
    const mode *m = arg;
    const hall_options options = options_of(m, KVX_TAMPER_MISS, 1);
    uint64_t random = 5;
    router watcher = {.sequence = 0};
    hall h;
    hall_open(&h, dev, &options);
    for (uint32_t round = 0; round < N_ROUNDS; round++) {
        serve_random(&h.servers[0]);
        router_follow(&watcher, &h);
        if (round % 2)
            tamper(&h, &random);
        if (round % 16 == 0)
            hall_settle(&h);
        assert_true(tenant_blocks(&h, 2) <= QUOTA);
    }
    hall_settle(&h);
    router_follow(&watcher, &h);
    tensors_check(&h.servers[0].t);
    hall_expect_nothing_wrong(&h);
    const kvx_tier_stats stats = hall_stats(&h);
    const server *s = &h.servers[0];
    assert_int_equal(router_count(&watcher), stats.blocks_now);
    assert_true(s->n_on_gpu > 0 && s->n_loaded > 0 && s->n_computed > 0 && s->n_refused > 0);
    assert_int_equal(stats.load_failed_blocks, s->n_refused);
    assert_int_equal(stats.loaded_blocks, s->n_loaded);
    assert_int_equal(stats.removed_blocks[KVX_TIER_BY_TAMPERING], s->n_refused);
    assert_true(stats.removed_blocks[KVX_TIER_BY_CAPACITY] > 0 && stats.removed_blocks[KVX_TIER_BY_QUOTA] > 0);
    assert_int_equal(stats.removed_blocks[KVX_TIER_BY_MOVE] > 0, m->write == KVX_TIER_WRITE_BACK);
    assert_int_equal(stats_of(h.ctx).latched, 0);
    hall_close(&h);
}

/* Without tampering nothing is ever refused or lost. */
static void test_honest_host(const device *dev, const void *arg)
{
    const hall_options options = options_of(arg, KVX_TAMPER_LATCH, 1);
    hall h;
    hall_open(&h, dev, &options);
    for (uint32_t round = 0; round < N_ROUNDS; round++)
        serve_random(&h.servers[0]);
    hall_settle(&h);
    tensors_check(&h.servers[0].t);
    hall_expect_nothing_wrong(&h);
    const kvx_tier_stats stats = hall_stats(&h);
    assert_int_equal(stats.load_failed_blocks + stats.store_failed_blocks, 0);
    assert_int_equal(stats.removed_blocks[KVX_TIER_BY_LOSS] + stats.removed_blocks[KVX_TIER_BY_REFUSAL] +
                         stats.removed_blocks[KVX_TIER_BY_TAMPERING],
                     0);
    assert_true(stats.loaded_blocks > 0);
    hall_close(&h);
}

/* ---------------------------------------------------------------------------------------------------------- threads */

static void *serve_rounds(void *arg)
{
    server *self = arg;
    for (uint32_t round = 0; round < N_THREAD_ROUNDS; round++)
        serve_random(self);
    return NULL;
}

static void *tamper_until_told(void *arg)
{
    hall *h = arg;
    uint64_t random = 9;
    while (!atomic_load(&h->stop)) {
        tamper(h, &random);
        nap(1);
    }
    return NULL;
}

static void test_threads(const device *dev, const void *arg)
{
    const hall_options options = options_of(arg, KVX_TAMPER_MISS, N_SERVERS);
    pthread_t threads[N_SERVERS], host;
    hall h;
    hall_open(&h, dev, &options);
    assert_int_equal(pthread_create(&host, NULL, tamper_until_told, &h), 0);
    for (uint32_t i = 0; i < N_SERVERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, serve_rounds, &h.servers[i]), 0);
    for (uint32_t i = 0; i < N_SERVERS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    atomic_store(&h.stop, 1);
    assert_int_equal(pthread_join(host, NULL), 0);
    hall_settle(&h);
    hall_expect_nothing_wrong(&h);
    for (uint32_t i = 0; i < N_SERVERS; i++)
        tensors_check(&h.servers[i].t);
    assert_true(hall_stats(&h).loaded_blocks > 0);
    hall_close(&h);
}

/* -------------------------------------------------------------------------------------------------------- directed */

/* One block of tenant 0's chain 0 into GPU block `block`: expects the content of block 0 of that chain. */
static void load_one(hall *h, uint32_t block)
{
    server *self = &h->servers[0];
    const kvx_tier_hash hash = chain_hash(0, 0);
    kvx_status verdict = KVX_PENDING, status;
    kvx_tier_match match;
    kvx_tier_target target = {0, self->layout, block};
    kvx_tier_load_id id;
    expect_ok(kvx_tier_lookup(h->tier, 0, 1, &hash, &match, &target.pin));
    assert_int_equal(match.n_hits, 1);
    expect_ok(kvx_tier_load(h->tier, 1, &target, NULL, &id));
    do {
        server_pump(self);
        status = kvx_tier_load_poll(h->tier, id, NULL, 1, &verdict);
    } while (status == KVX_PENDING);
    expect_ok(status);
    expect_status(verdict, KVX_OK);
    assert_true(tensors_holds(&self->t, block, chain_seed(0, 0, 0)));
    expect_status(kvx_tier_load_poll(h->tier, id, NULL, 1, &verdict), KVX_UNKNOWN);
}

/* The same content twice on the GPU is stored once, and the copy that is not read may go at once. */
static void test_joined(const device *dev, const void *arg)
{
    const hall_options options = options_of(&modes[0], KVX_TAMPER_LATCH, 1);
    kvx_tier_outcome outcomes[2];
    kvx_tier_drop_answer answers[2];
    kvx_tier_block both[2];
    hall h;
    (void)arg;
    hall_open(&h, dev, &options);
    server *self = &h.servers[0];
    for (uint32_t block = 0; block < 2; block++) {
        server_compute(self, block, 0, 0, 0);
        both[block] = self->places[block].name;
    }
    expect_ok(kvx_tier_offer(h.tier, KVX_TIER_USED, 2, both, outcomes));
    assert_int_equal(outcomes[0], KVX_TIER_QUEUED);
    assert_int_equal(outcomes[1], KVX_TIER_JOINED);
    expect_ok(kvx_tier_may_drop(h.tier, 2, both, answers));
    assert_int_equal(answers[0], KVX_TIER_WAIT);
    assert_int_equal(answers[1], KVX_TIER_LOSE);
    server_compute(self, 1, 1, 4, 0);
    hall_settle(&h);
    expect_ok(kvx_tier_may_drop(h.tier, 1, both, answers));
    assert_int_equal(answers[0], KVX_TIER_KEEP);
    expect_ok(kvx_tier_offer(h.tier, KVX_TIER_USED, 1, both, outcomes));
    assert_int_equal(outcomes[0], KVX_TIER_HELD);
    load_one(&h, 2);
    assert_int_equal(hall_stats(&h).joined_blocks, 1);
    assert_int_equal(hall_stats(&h).stored_blocks, 1);
    hall_expect_nothing_wrong(&h);
    hall_close(&h);
}

/* Write-back: stored when it leaves, gone from the tier when it is back. */
static void test_one_place(const device *dev, const void *arg)
{
    const hall_options options = options_of(&modes[4], KVX_TAMPER_LATCH, 1);
    kvx_tier_outcome outcome;
    hall h;
    (void)arg;
    hall_open(&h, dev, &options);
    server *self = &h.servers[0];
    server_compute(self, 0, 0, 0, 0);
    expect_ok(kvx_tier_offer(h.tier, KVX_TIER_USED, 1, &self->places[0].name, &outcome));
    assert_int_equal(outcome, KVX_TIER_SKIPPED);
    assert_int_equal(held(&h, 0, 0, 1), 0);
    (void)server_evict(self, 0);
    server_compute(self, 0, 1, 1, 1);
    hall_settle(&h);
    load_one(&h, 3);
    assert_int_equal(held(&h, 0, 0, 1), 0);
    hall_settle(&h);
    assert_int_equal(hall_stats(&h).blocks_now, 0);
    assert_int_equal(hall_stats(&h).removed_blocks[KVX_TIER_BY_MOVE], 1);
    hall_expect_nothing_wrong(&h);
    hall_close(&h);
}

static void expect_nothing_held(hall *h, uint32_t tenant)
{
    for (uint32_t talk = 0; talk < N_TALKS; talk++)
        assert_int_equal(held(h, tenant, talk, 1), 0);
}

/* A tenant disappears at once, with stores queued and a block pinned; the others notice nothing. */
static void test_erased_tenant(const device *dev, const void *arg)
{
    const hall_options options = options_of(arg, KVX_TAMPER_LATCH, 1);
    const kvx_tier_hash hash = chain_hash(3, 0);
    kvx_tier_match match;
    kvx_tier_pin pin;
    uint32_t before[N_TENANTS];
    hall h;
    hall_open(&h, dev, &options);
    server *self = &h.servers[0];
    for (uint32_t i = 0; i < 9; i++)
        serve(self, i % N_TENANTS, 3 + i / N_TENANTS, 3);
    hall_settle(&h);
    for (uint32_t tenant = 0; tenant < N_TENANTS; tenant++)
        before[tenant] = tenant_blocks(&h, tenant);
    assert_true(before[1] > 0);
    expect_ok(kvx_tier_lookup(h.tier, 1, 1, &hash, &match, &pin));
    assert_int_equal(match.n_hits, 1);
    serve(self, 1, 8, 4); /* some of it is still queued */
    expect_ok(kvx_tier_forget(h.tier, 1));
    expect_nothing_held(&h, 1);
    expect_ok(kvx_tier_unpin(h.tier, 1, &pin));
    hall_settle(&h);
    expect_nothing_held(&h, 1);
    assert_int_equal(tenant_blocks(&h, 1), 0);
    assert_int_equal(tenant_blocks(&h, 0), before[0]);
    assert_int_equal(tenant_blocks(&h, 2), before[2]);
    assert_int_equal(hall_stats(&h).leaving_now, 0);
    assert_true(hall_stats(&h).removed_blocks[KVX_TIER_BY_ERASURE] >= before[1]);
    for (uint32_t i = 0; i < 30; i++)
        serve(self, i % N_TENANTS, 3 + i % 5, 3);
    hall_expect_nothing_wrong(&h);
    hall_close(&h);
}

/* The default policy: the first bad tag latches, and from then on the engine computes everything itself. */
static void test_latched(const device *dev, const void *arg)
{
    const hall_options options = options_of(&modes[1], KVX_TAMPER_LATCH, 1);
    uint64_t random = 1;
    uint32_t n_loaded;
    hall h;
    (void)arg;
    hall_open(&h, dev, &options);
    server *self = &h.servers[0];
    for (uint32_t i = 0; i < 60; i++)
        serve_random(self);
    h.may_latch = 1;
    for (uint32_t i = 0; i < 2000 && !hall_stats(&h).latched; i++) {
        tamper(&h, &random);
        serve_random(self);
    }
    assert_int_equal(hall_stats(&h).latched, 1);
    assert_int_equal(stats_of(h.ctx).latched, 1);
    n_loaded = self->n_loaded;
    for (uint32_t i = 0; i < 60; i++)
        serve_random(self);
    assert_int_equal(self->n_loaded, n_loaded);
    hall_expect_nothing_wrong(&h);
    hall_close(&h);
}

int main(int argc, char **argv)
{
    static const test_case cases[] = {
        {"tampering host, write-through, LRU", test_tampering_host, &modes[0]},
        {"tampering host, write-through, aged", test_tampering_host, &modes[1]},
        {"tampering host, selective, LRU", test_tampering_host, &modes[2]},
        {"tampering host, selective, aged", test_tampering_host, &modes[3]},
        {"tampering host, write-back, LRU", test_tampering_host, &modes[4]},
        {"tampering host, write-back, aged", test_tampering_host, &modes[5]},
        {"honest host, write-through", test_honest_host, &modes[1]},
        {"honest host, selective", test_honest_host, &modes[3]},
        {"honest host, write-back", test_honest_host, &modes[5]},
        {"threads, write-through", test_threads, &modes[1]},
        {"threads, write-back", test_threads, &modes[5]},
        {"joined stores", test_joined, NULL},
        {"a block lives in one place", test_one_place, NULL},
        {"erased tenant, write-through", test_erased_tenant, &modes[1]},
        {"latched", test_latched, NULL},
    };
    return RUN_CASES("tier_e2e", cases, argc, argv);
}
