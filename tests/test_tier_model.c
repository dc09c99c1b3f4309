/* SPDX-License-Identifier: Apache-2.0 */
/* Random operations on a tier over the fake core, every answer compared with the model: all write policies with all
 * eviction policies. argv[1]: how many operations in all (10^7 take a few minutes); argv[2]: the seed. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tier_model.h"

#define DEFAULT_OPERATIONS 1000000u
#define OPERATIONS_PER_TIER 4000u
#define CHAIN 12u
#define MAX_PINS 64u

/* What a GPU block of the test holds. */
typedef struct gpu_block {
    int key;     /* MODEL_NONE: nothing */
    int loading; /* a load will write it */
} gpu_block;

typedef struct run {
    model m;
    kvx_tier *tier;
    uint64_t now_ns;
    gpu_block gpu[FAKE_BLOCKS];
    kvx_tier_pin pins[MAX_PINS];
    uint32_t n_pins;
    uint32_t n_called_back;
} run;

static uint32_t roll(uint32_t n)
{
    return fake_roll(n);
}

/* A chain within one tenant; short ranges of keys come up often. */
static int some_chain(uint32_t *n)
{
    uint32_t tenant = roll(MODEL_TENANTS), first = roll(4) ? roll(16) : roll(MODEL_TENANT_KEYS - CHAIN);
    *n = 1 + roll(CHAIN);
    return (int)(tenant * MODEL_TENANT_KEYS + first);
}

static void chain_hashes(int first, uint32_t n, kvx_tier_hash *hashes)
{
    for (uint32_t i = 0; i < n; i++)
        hashes[i] = model_hash(first + (int)i);
}

static kvx_tier_block describe(int key, uint32_t gpu)
{
    kvx_tier_block block = {model_hash(key), model_tenant(key), gpu, fake_layout};
    return block;
}

static uint64_t content_of(int key)
{
    return (uint64_t)key + 1;
}

/* ---- GPU blocks ---- */

static kvx_tier_drop_answer may_drop(run *r, uint32_t gpu)
{
    int key = r->gpu[gpu].key == MODEL_NONE ? 0 : r->gpu[gpu].key;
    kvx_tier_block block = describe(key, gpu);
    kvx_tier_drop_answer answer;
    expect_ok(kvx_tier_may_drop(r->tier, 1, &block, &answer));
    assert_int_equal(answer, model_may_drop(&r->m, key, gpu));
    return answer;
}

/* A GPU block that may be overwritten, or FAKE_BLOCKS. */
static uint32_t free_gpu_block(run *r)
{
    for (uint32_t tries = 0; tries < 8; tries++) {
        uint32_t gpu = roll(FAKE_BLOCKS);
        if (!r->gpu[gpu].loading && may_drop(r, gpu) != KVX_TIER_WAIT)
            return gpu;
    }
    return FAKE_BLOCKS;
}

static void do_fill_and_offer(run *r)
{
    uint32_t n, n_blocks = 0;
    int first = some_chain(&n), keys[CHAIN];
    kvx_tier_occasion occasion = roll(3) ? KVX_TIER_USED : KVX_TIER_LEAVING;
    kvx_tier_block blocks[CHAIN];
    kvx_tier_outcome outcomes[CHAIN];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t gpu = free_gpu_block(r);
        if (gpu == FAKE_BLOCKS || (n_blocks > 0 && blocks[n_blocks - 1].block == gpu))
            break;
        for (uint32_t j = 0; j < n_blocks; j++)
            if (blocks[j].block == gpu)
                goto offer; /* named already */
        keys[n_blocks] = first + (int)i;
        blocks[n_blocks++] = describe(first + (int)i, gpu);
        r->gpu[gpu].key = first + (int)i;
        fake.gpu[gpu] = content_of(first + (int)i);
    }
offer:
    expect_ok(kvx_tier_offer(r->tier, occasion, n_blocks, blocks, outcomes));
    for (uint32_t i = 0; i < n_blocks; i++)
        assert_int_equal(outcomes[i], model_offer(&r->m, occasion, keys[i], blocks[i].block));
}

/* A block of the GPU's cache is used again, or leaves. */
static void do_offer_again(run *r)
{
    uint32_t gpu = roll(FAKE_BLOCKS);
    kvx_tier_occasion occasion = roll(2) ? KVX_TIER_USED : KVX_TIER_LEAVING;
    kvx_tier_outcome outcome;
    if (r->gpu[gpu].key == MODEL_NONE || r->gpu[gpu].loading)
        return;
    kvx_tier_block block = describe(r->gpu[gpu].key, gpu);
    expect_ok(kvx_tier_offer(r->tier, occasion, 1, &block, &outcome));
    assert_int_equal(outcome, model_offer(&r->m, occasion, r->gpu[gpu].key, gpu));
}

/* ---- chains ---- */

static void do_lookup(run *r)
{
    uint32_t n, pinning = roll(2) && r->n_pins + CHAIN <= MAX_PINS;
    int first = some_chain(&n);
    kvx_tier_hash hashes[CHAIN];
    kvx_tier_pin pins[CHAIN];
    kvx_tier_match match;
    chain_hashes(first, n, hashes);
    expect_ok(kvx_tier_lookup(r->tier, model_tenant(first), n, hashes, &match, pinning ? pins : NULL));
    kvx_tier_match wanted = model_lookup(&r->m, first, n, pinning ? pins : NULL);
    assert_int_equal(match.n_hits, wanted.n_hits);
    assert_int_equal(match.n_pending, wanted.n_pending);
    for (uint32_t i = 0; pinning && i < match.n_hits; i++)
        r->pins[r->n_pins++] = pins[i];
}

static void do_unpin(run *r)
{
    uint32_t n = r->n_pins ? roll(r->n_pins + 1) : 0;
    if (roll(8) == 0) {
        kvx_tier_pin bad = (uint64_t)1 << 40 | roll(100);
        if (model_pinned(&r->m, bad) == MODEL_NONE)
            expect_status(kvx_tier_unpin(r->tier, 1, &bad), KVX_INVALID);
    }
    r->n_pins -= n;
    expect_ok(kvx_tier_unpin(r->tier, n, &r->pins[r->n_pins]));
    for (uint32_t i = 0; i < n; i++)
        model_release(&r->m, model_pinned(&r->m, r->pins[r->n_pins + i]));
}

static void do_announce(run *r)
{
    uint32_t n, n_held = 0;
    int first = some_chain(&n);
    uint64_t id = 0, until_ns = r->now_ns + roll(40000000);
    kvx_tier_hash hashes[CHAIN];
    chain_hashes(first, n, hashes);
    kvx_status status = kvx_tier_announce(r->tier, model_tenant(first), n, hashes, until_ns, &n_held, &id);
    model_announced *made = model_announce(&r->m, first, n, until_ns);
    assert_int_equal(status, made ? KVX_OK : KVX_AGAIN);
    if (!made)
        return;
    assert_int_equal(n_held, made->blocks.n);
    assert_true((id != 0) == (n_held > 0));
    made->id = id;
}

static void do_withdraw(run *r)
{
    model_announced *announced = &r->m.announced[roll(MODEL_ANNOUNCED)];
    expect_status(kvx_tier_withdraw(r->tier, announced->id), announced->blocks.n > 0 ? KVX_OK : KVX_UNKNOWN);
    model_withdraw(&r->m, announced);
}

static void do_drop(run *r)
{
    uint32_t n;
    int first = some_chain(&n);
    kvx_tier_hash hashes[CHAIN];
    chain_hashes(first, n, hashes);
    expect_ok(kvx_tier_drop(r->tier, model_tenant(first), n, hashes));
    for (uint32_t i = 0; i < n; i++)
        model_drop(&r->m, first + (int)i);
}

static void do_forget(run *r)
{
    uint32_t tenant = roll(MODEL_TENANTS);
    if (roll(10))
        return;
    expect_ok(kvx_tier_forget(r->tier, tenant));
    model_forget(&r->m, tenant);
}

/* ---- loads ---- */

static uint32_t choose_targets(run *r, kvx_tier_target *targets)
{
    uint32_t n = r->n_pins < CHAIN ? r->n_pins : CHAIN, done = 0;
    for (; done < n; done++) {
        uint32_t gpu = free_gpu_block(r);
        if (gpu == FAKE_BLOCKS)
            break;
        r->gpu[gpu].loading = 1;
        r->gpu[gpu].key = MODEL_NONE;
        targets[done] = (kvx_tier_target){r->pins[r->n_pins - 1 - done], fake_layout, gpu};
    }
    return done;
}

static void let_go(run *r, uint32_t n, const kvx_tier_target *targets)
{
    for (uint32_t i = 0; i < n; i++)
        r->gpu[targets[i].block].loading = 0;
}

static void load_now(run *r, uint32_t n, const kvx_tier_target *targets, model_load *load)
{
    kvx_tier_load_id id = 0;
    r->m.starting = load ? (int)(load - r->m.loads) : MODEL_NONE;
    kvx_status status = kvx_tier_load(r->tier, n, targets, NULL, &id);
    r->m.starting = MODEL_NONE;
    assert_true(load || status == KVX_AGAIN);
    if (status != KVX_OK) {
        let_go(r, n, targets);
        return;
    }
    load->id = id;
    model_load_started(&r->m, load);
    r->n_pins -= n;
}

static void prefetch(run *r, uint32_t n, const kvx_tier_target *targets, model_load *load)
{
    kvx_tier_load_id id = 0;
    expect_status(kvx_tier_prefetch(r->tier, n, targets, &id), load ? KVX_OK : KVX_AGAIN);
    if (!load) {
        let_go(r, n, targets);
        return;
    }
    load->id = id;
    model_load_queue(&r->m, load);
    r->n_pins -= n;
}

static void do_load(run *r)
{
    kvx_tier_target targets[CHAIN];
    uint32_t n = choose_targets(r, targets);
    if (n == 0)
        return;
    model_load *load = model_load_begin(&r->m, n, targets);
    if (roll(3))
        load_now(r, n, targets, load);
    else
        prefetch(r, n, targets, load);
}

static void check_loaded(run *r, const model_load *load, const kvx_status *verdicts)
{
    for (uint32_t i = 0; i < load->n; i++) {
        gpu_block *gpu = &r->gpu[load->gpu[i]];
        assert_int_equal(verdicts[i], load->verdicts[i]);
        gpu->loading = 0;
        gpu->key = verdicts[i] == KVX_OK ? load->keys[i] : MODEL_NONE;
        if (verdicts[i] == KVX_OK)
            assert_int_equal(fake.gpu[load->gpu[i]], content_of(load->keys[i]));
    }
}

static void do_poll(run *r)
{
    model_load *load = &r->m.loads[roll(MODEL_LOADS)];
    kvx_status verdicts[FAKE_PAIRS];
    uint32_t n_failed = 0;
    if (load->state == L_FREE)
        return;
    kvx_status status = kvx_tier_load_poll(r->tier, load->id, &n_failed, FAKE_PAIRS, verdicts);
    assert_int_equal(status, load->state == L_ENDED ? KVX_OK : KVX_PENDING);
    if (status != KVX_OK)
        return;
    assert_int_equal(n_failed, load->n_failed);
    check_loaded(r, load, verdicts);
    model_load_collected(&r->m, load);
    expect_status(kvx_tier_load_poll(r->tier, load->id, NULL, 0, NULL), KVX_UNKNOWN);
}

/* ---- time ---- */

static void do_pump(run *r)
{
    r->now_ns += roll(4) ? roll(1000000) : roll(60000000);
    model_pump_begin(&r->m, r->now_ns);
    kvx_status status = kvx_tier_pump(r->tier, r->now_ns, NULL);
    assert_int_equal(status, r->m.store_error ? KVX_INVALID : KVX_OK);
    model_pump_end(&r->m);
}

static void do_flush(run *r)
{
    expect_ok(kvx_tier_flush(r->tier));
    model_flush(&r->m);
}

/* ---- a run ---- */

static const struct {
    void (*fn)(run *r);
    uint32_t weight;
} operations[] = {
    {do_fill_and_offer, 25}, {do_offer_again, 12}, {do_lookup, 22},  {do_unpin, 4},    {do_load, 12}, {do_poll, 14},
    {do_pump, 25},           {do_flush, 1},        {do_announce, 3}, {do_withdraw, 1}, {do_drop, 1},  {do_forget, 1},
};

static void one_operation(run *r)
{
    uint32_t all = 0, chosen, i = 0;
    for (uint32_t o = 0; o < COUNT(operations); o++)
        all += operations[o].weight;
    chosen = roll(all);
    while (chosen >= operations[i].weight)
        chosen -= operations[i++].weight;
    operations[i].fn(r);
}

/* The callback comes for removals only, and may call the tier. */
static void on_evict(void *arg, uint32_t n, const kvx_tier_event *events)
{
    run *r = arg;
    uint32_t n_blocks;
    for (uint32_t i = 0; i < n; i++)
        assert_int_not_equal(events[i].kind, KVX_TIER_STORED);
    expect_ok(kvx_tier_tenant_blocks(r->tier, events[0].tenant, &n_blocks));
    r->n_called_back += n;
}

static kvx_tier_config random_config(uint32_t variant, run *r)
{
    kvx_tier_config config = KVX_TIER_CONFIG_INIT;
    config.ctx = fake_ctx;
    config.pool = fake_pool;
    config.first_slot = roll(FAKE_SLOTS - MODEL_BLOCKS);
    config.n_blocks = 1 + roll(MODEL_BLOCKS);
    config.n_tenants = MODEL_TENANTS;
    config.write = (kvx_tier_write)(variant % 3);
    config.evict = (kvx_tier_evict)(variant / 3 % 2);
    config.selective_hits = 1 + roll(3);
    config.again_percent = 50 + roll(500);
    config.max_stores = 1 + roll(24);
    config.max_loads = 1 + roll(MODEL_LOADS);
    config.max_load_blocks = 8 + roll(40);
    config.max_announced = 1 + roll(MODEL_ANNOUNCED);
    config.batch_blocks = 1 + roll(config.max_stores);
    config.batch_wait_ns = 1 + roll(5000000);
    config.max_wait_ns = 1 + roll(50000000);
    config.max_batches = 1 + roll(4);
    config.store_bytes_per_s = roll(3) ? 0 : 1000000;
    config.load_bytes_in_flight = 1 + roll(20000);
    config.on_evict = roll(2) ? on_evict : NULL;
    config.on_evict_arg = r;
    return config;
}

static void set_quotas(run *r)
{
    for (uint32_t t = 0; t < MODEL_TENANTS; t++) {
        kvx_tier_tenant rules = KVX_TIER_TENANT_INIT;
        rules.quota_blocks = r->m.quota[t] = roll(2) ? 0 : 1 + roll(r->m.config.n_blocks);
        rules.set_salt = roll(2);
        rules.salt[t] = (uint8_t)roll(256);
        expect_ok(kvx_tier_tenant_set(r->tier, t, &rules));
    }
}

static void run_open(run *r, uint32_t variant, uint64_t seed)
{
    memset(r, 0, sizeof *r);
    fake_reset(seed);
    kvx_tier_config config = random_config(variant, r);
    model_open(&r->m, &config);
    for (uint32_t b = 0; b < FAKE_BLOCKS; b++)
        r->gpu[b].key = MODEL_NONE;
    expect_ok(kvx_tier_create(&config, &r->tier));
    set_quotas(r);
    if (roll(4)) {
        fake.again_percent = roll(10);
        fake.refuse_percent = roll(3);
        fake.store_fail_percent = roll(10);
        fake.load_fail_percent = roll(10);
    }
}

/* Pins go, loads are collected, everything ends. */
static void run_close(run *r)
{
    uint64_t removed = 0;
    do_flush(r);
    for (uint32_t i = 0; i < 2000; i++) {
        do_pump(r);
        do_poll(r);
    }
    r->m.store_error = 0;
    assert_true(model_idle(&r->m));
    expect_ok(kvx_tier_unpin(r->tier, r->n_pins, r->pins));
    for (uint32_t i = 0; i < r->n_pins; i++)
        model_release(&r->m, model_pinned(&r->m, r->pins[i]));
    model_compare(&r->m, r->tier);
    for (uint32_t c = 0; c < KVX_TIER_CAUSES; c++)
        removed += r->m.stats.removed_blocks[c];
    assert_true(!r->m.config.on_evict || r->n_called_back == removed);
    assert_int_equal(fake.n_wrong, 0);
    expect_ok(kvx_tier_destroy(r->tier));
}

static uint64_t n_operations = DEFAULT_OPERATIONS, first_seed = 1;

static void test_against_model(void **state)
{
    static run r;
    (void)state;
    for (uint64_t done = 0, i = 0; done < n_operations; i++) {
        run_open(&r, (uint32_t)i, first_seed + i);
        for (uint32_t op = 0; op < OPERATIONS_PER_TIER; op++, done++) {
            one_operation(&r);
            model_compare(&r.m, r.tier);
            assert_int_equal(fake.n_wrong, 0);
        }
        run_close(&r);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_model)};
    if (argc > 1)
        n_operations = strtoull(argv[1], NULL, 10);
    if (argc > 2)
        first_seed = strtoull(argv[2], NULL, 10);
    return cmocka_run_group_tests_name("tier against its model", tests, NULL, NULL);
}
