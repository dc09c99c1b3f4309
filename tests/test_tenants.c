/* SPDX-License-Identifier: Apache-2.0 */
/* Tenants and epochs through the API: moving on at the soft limit, on request and by time; the hard limit; many epochs
 * readable at once; retiring; configuration. Erasing is in test_erase.c. */
#include "support.h"

#include <pthread.h>
#include <stdlib.h>

#include "../kernels/keystate.h"
#include "../kernels/state.h"
#include "../src/context.h"
#include "../src/engine_cpu_gcm.h"
#include "../src/platform.h"
#include "kvx_keys.h"

#define N_UNITS 3
static atomic_int wrong_answers; /* of the cipher */
static const shape small = {"small", 8, 6, 2, {{1, 1024, 0, 0, BLOCK_MAJOR}, {3, 104, 8, 0, BLOCK_MAJOR}}, 2, 0};

/* What one block costs its key. */
static uint64_t block_cost(void)
{
    uint64_t cost = 0;
    for (uint32_t s = 0; s < N_UNITS; s++)
        cost += kvx_key_cost(shape_unit_offset(&small, s + 1) - shape_unit_offset(&small, s));
    return cost;
}

static void open_with(rig *r, const device *dev, uint32_t n_slots, uint32_t n_tenants, const kvx_key_config *keys)
{
    const rig_options options = {.n_slots = n_slots, .n_tenants = n_tenants, .keys = keys};
    rig_open(r, dev, &small, &options);
}

static kvx_key_stats keys_of(kvx_ctx *ctx, uint32_t tenant)
{
    kvx_key_stats stats = {.size = sizeof stats};
    expect_ok(kvx_key_stats_get(ctx, tenant, &stats));
    return stats;
}

static kvx_status store_one(rig *r, const kvx_pair *pair)
{
    kvx_status verdict = KVX_PENDING;
    kvx_ticket ticket = 0;
    expect_ok(kvx_store(r->ctx, 1, pair, NULL, &ticket));
    collect(r->ctx, ticket, 1, &verdict);
    return verdict;
}

static kvx_status restore_one(rig *r, const kvx_pair *pair)
{
    kvx_status verdict = KVX_PENDING;
    restore_some(r, 1, pair, &verdict);
    return verdict;
}

/* --------------------------------------------------------------------------------------------------------- rotation */

/* Every second block ends a key. All stays readable; the books follow. */
static void soft_limit_moves_on(const device *dev, const void *arg)
{
    enum { N = 40 };
    kvx_key_config keys = KVX_KEY_CONFIG_INIT;
    kvx_slot slots[N];
    kvx_pair pairs[N];
    rig r;
    (void)arg;
    keys.soft_limit = block_cost() + 1;
    keys.hard_limit = 3 * block_cost();
    open_with(&r, dev, N, 2, &keys);
    slots_take(r.pool, N, slots);
    for (uint32_t i = 0; i < N; i++)
        pairs[i] = (kvx_pair){.layout = r.layout, .block = i % 8, .slot = slots[i], .tenant = i % 2};
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(store_one(&r, &pairs[i]), KVX_OK);
        for (uint32_t k = 0; k <= i; k++)
            assert_int_equal(restore_one(&r, &pairs[k]), KVX_OK);
        tensors_check(&r.source);
    }
    for (uint32_t t = 0; t < 2; t++) {
        const kvx_key_stats stats = keys_of(r.ctx, t);
        assert_in_range(stats.epoch, N / 4, N / 4 + 2);
        assert_true(stats.next_ready && stats.open);
        assert_true(stats.spent <= keys.hard_limit);
        assert_int_equal(stats.soft_limit, keys.soft_limit);
    }
    rig_close(&r);
}

/* One call names more blocks than a key may seal: the pre-installed next one serves, then it is over until the host
 * puts in another. What was refused left nothing in its slots. */
static void one_call_over_two_keys(const device *dev, const void *arg)
{
    kvx_key_config keys = KVX_KEY_CONFIG_INIT;
    kvx_status verdicts[8];
    kvx_slot slots[8];
    kvx_pair pairs[8];
    kvx_ticket ticket;
    uint32_t n_ok = 0;
    rig r;
    (void)arg;
    keys.soft_limit = 2 * block_cost();
    keys.hard_limit = 2 * block_cost();
    open_with(&r, dev, 8, 1, &keys);
    slots_take(r.pool, 8, slots);
    pairs_set(pairs, 8, r.layout, 0, slots);
    expect_ok(kvx_store(r.ctx, 8, pairs, NULL, &ticket));
    collect(r.ctx, ticket, 8, verdicts);
    for (uint32_t i = 0; i < 8; i++) {
        n_ok += verdicts[i] == KVX_OK;
        assert_int_equal(verdicts[i], i < 4 ? KVX_OK : KVX_EXHAUSTED);
        assert_int_equal(restore_one(&r, &pairs[i]), i < 4 ? KVX_OK : KVX_MISS);
    }
    assert_int_equal(n_ok, 4);
    for (uint32_t i = 4; i < 8; i++) /* each call lets the books catch up */
        assert_int_equal(store_one(&r, &pairs[i]), KVX_OK);
    rig_close(&r);
}

/* No slot left for a next key: the current one serves to its hard limit and not further. Discarding blocks of an old
 * epoch makes room again. */
static void hard_limit_is_the_end(const device *dev, const void *arg)
{
    kvx_key_config keys = KVX_KEY_CONFIG_INIT;
    kvx_slot slots[16];
    kvx_pair pairs[16];
    kvx_ticket ticket;
    uint32_t n = 0;
    rig r;
    (void)arg;
    keys.n_key_slots = 3;
    keys.soft_limit = 2 * block_cost();
    keys.hard_limit = 2 * block_cost();
    keys.rotate_ns = UINT64_MAX;
    open_with(&r, dev, 16, 1, &keys);
    slots_take(r.pool, 16, slots);
    for (uint32_t i = 0; i < 16; i++)
        pairs[i] = (kvx_pair){.layout = r.layout, .block = i % 8, .slot = slots[i]};
    while (n < 16 && store_one(&r, &pairs[n]) == KVX_OK)
        n++;
    assert_int_equal(n, 6);
    assert_int_equal(restore_one(&r, &pairs[n]), KVX_MISS);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(restore_one(&r, &pairs[i]), KVX_OK);
    assert_int_equal(kvx_key_rotate(r.ctx, 0), KVX_AGAIN);
    assert_int_equal(keys_of(r.ctx, 0).key_slots_free, 0);
    expect_ok(kvx_discard(r.ctx, 2, slots, &ticket));
    expect_all(r.ctx, ticket, 2, KVX_OK);
    expect_ok(kvx_keys_service(r.ctx));
    assert_int_equal(store_one(&r, &pairs[n]), KVX_OK);
    for (uint32_t i = 2; i <= n; i++)
        assert_int_equal(restore_one(&r, &pairs[i]), KVX_OK);
    rig_close(&r);
}

/* 300 epochs of one tenant hold a block each; all can be read. When the blocks go, so do their keys. */
static void many_epochs_readable(const device *dev, const void *arg)
{
    enum { N = 300 };
    kvx_key_config keys = KVX_KEY_CONFIG_INIT;
    static kvx_slot slots[N];
    static kvx_pair pairs[N];
    kvx_ticket ticket;
    rig r;
    (void)arg;
    keys.n_key_slots = N + 2;
    open_with(&r, dev, N, 1, &keys);
    slots_take(r.pool, N, slots);
    for (uint32_t i = 0; i < N; i++) {
        pairs[i] = (kvx_pair){.layout = r.layout, .block = i % 8, .slot = slots[i]};
        assert_int_equal(store_one(&r, &pairs[i]), KVX_OK);
        expect_ok(kvx_key_rotate(r.ctx, 0));
    }
    assert_int_equal(keys_of(r.ctx, 0).epochs_readable, N + 2);
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(restore_one(&r, &pairs[i]), KVX_OK);
    tensors_check(&r.source);
    expect_ok(kvx_discard(r.ctx, N / 2, slots, &ticket));
    expect_all(r.ctx, ticket, N / 2, KVX_OK);
    expect_ok(kvx_keys_service(r.ctx));
    assert_int_equal(keys_of(r.ctx, 0).epochs_readable, N / 2 + 2);
    for (uint32_t i = N / 2; i < N; i++)
        assert_int_equal(restore_one(&r, &pairs[i]), KVX_OK);
    rig_close(&r);
}

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* A key for every three blocks, while everything that was stored is restored again and again: nothing fails, and no
 * call stalls. */
static void rotation_under_load(const device *dev, const void *arg)
{
    enum { N = 64, ROUNDS = 40 };
    static uint64_t times[N * ROUNDS];
    kvx_key_config keys = KVX_KEY_CONFIG_INIT;
    static kvx_slot slots[N];
    static kvx_pair pairs[N];
    size_t n = 0;
    rig r;
    (void)arg;
    keys.soft_limit = 2 * block_cost();
    keys.hard_limit = 100 * block_cost();
    keys.n_key_slots = 80;
    open_with(&r, dev, N, 1, &keys);
    slots_take(r.pool, N, slots);
    for (uint32_t i = 0; i < N; i++)
        pairs[i] = (kvx_pair){.layout = r.layout, .block = i % 8, .slot = slots[i]};
    for (uint32_t round = 0; round < ROUNDS; round++) {
        kvx_ticket tickets[N], reads[8];
        for (uint32_t i = 0; i < N; i++) {
            const uint64_t start = clock_ns();
            expect_ok(kvx_store(r.ctx, 1, &pairs[i], NULL, &tickets[i]));
            times[n++] = clock_ns() - start;
        }
        for (uint32_t i = 0; i < N; i++)
            expect_all(r.ctx, tickets[i], 1, KVX_OK);
        for (uint32_t i = 0; i < 8; i++)
            expect_ok(kvx_restore(r.ctx, 8, &pairs[8 * i], NULL, &reads[i]));
        for (uint32_t i = 0; i < 8; i++)
            expect_all(r.ctx, reads[i], 8, KVX_OK);
        tensors_check(&r.source);
    }
    qsort(times, n, sizeof times[0], by_value);
    print_message("epoch %lu; kvx_store: median %lu us, p99 %lu us, longest %lu us\n",
                  (unsigned long)keys_of(r.ctx, 0).epoch, (unsigned long)times[n / 2] / 1000,
                  (unsigned long)times[n * 99 / 100] / 1000, (unsigned long)times[n - 1] / 1000);
    assert_true(keys_of(r.ctx, 0).epoch > ROUNDS);
    assert_true(times[n * 99 / 100] < 20000000u); /* on a machine that others use too */
    rig_close(&r);
}

static uint64_t skipped_ns;

static uint64_t skipping_clock(enum kvx_platform_clock clock)
{
    return kvx_platform_real.clock_ns(clock) + skipped_ns;
}

static void rotates_by_time(const device *dev, const void *arg)
{
    kvx_platform_ops ops = kvx_platform_real;
    kvx_slot slot;
    kvx_pair pair;
    rig r;
    (void)arg;
    ops.clock_ns = skipping_clock;
    skipped_ns = 0;
    kvx_platform_replace(&ops);
    open_with(&r, dev, 1, 1, NULL);
    slots_take(r.pool, 1, &slot);
    pairs_set(&pair, 1, r.layout, 0, &slot);
    assert_int_equal(store_one(&r, &pair), KVX_OK);
    assert_int_equal(keys_of(r.ctx, 0).epoch, 1);
    for (uint64_t i = 2; i < 6; i++) {
        skipped_ns += 599ull * 1000000000u;
        assert_int_equal(keys_of(r.ctx, 0).epoch, i - 1);
        skipped_ns += 2ull * 1000000000u;
        assert_int_equal(store_one(&r, &pair), KVX_OK);
        assert_int_equal(keys_of(r.ctx, 0).epoch, i);
        assert_int_equal(restore_one(&r, &pair), KVX_OK);
    }
    rig_close(&r);
    kvx_platform_replace(NULL);
}

/* ---------------------------------------------------------------------------------------------------- known answers */

int __real_kvx_cpu_gcm_seal(struct kvx_cpu_gcm *gcm, const uint8_t iv[12], const void *aad, size_t aad_bytes,
                            const void *in, void *out, size_t bytes, uint8_t tag[16]);
int __wrap_kvx_cpu_gcm_seal(struct kvx_cpu_gcm *gcm, const uint8_t iv[12], const void *aad, size_t aad_bytes,
                            const void *in, void *out, size_t bytes, uint8_t tag[16]);
int __wrap_kvx_cpu_gcm_seal(struct kvx_cpu_gcm *gcm, const uint8_t iv[12], const void *aad, size_t aad_bytes,
                            const void *in, void *out, size_t bytes, uint8_t tag[16])
{
    int sealed;
    sealed = __real_kvx_cpu_gcm_seal(gcm, iv, aad, aad_bytes, in, out, bytes, tag);
    tag[3] ^= (uint8_t)atomic_load(&wrong_answers);
    return sealed;
}

static void failing_self_test_latches(const device *dev, const void *arg)
{
    static const kvx_slot_class class = {.slot_bytes = 8192, .n_slots = 2, .max_units = 2};
    kvx_config config = KVX_CONFIG_INIT;
    kvx_pool *pool = pool_make(dev, &class, 1);
    kvx_ctx *ctx = NULL;
    (void)arg;
    if (dev->engine != KVX_ENGINE_CPU)
        skip();
    config.engine = dev->engine;
    expect_ok(kvx_ctx_create(pool, &config, &ctx));
    expect_ok(kvx_selftest(ctx));
    atomic_store(&wrong_answers, 1);
    assert_int_equal(kvx_selftest(ctx), KVX_INTERNAL);
    assert_non_null(strstr(kvx_last_error(), "known-answer"));
    assert_int_equal(kvx_selftest(ctx), KVX_LATCHED);
    assert_int_equal(stats_of(ctx).latched, 1);
    kvx_ctx_destroy(ctx);
    ctx = NULL;
    assert_int_equal(kvx_ctx_create(pool, &config, &ctx), KVX_INTERNAL);
    assert_null(ctx);
    atomic_store(&wrong_answers, 0);
    expect_ok(kvx_pool_destroy(pool));
}

/* ---------------------------------------------------------------------------------------------------- configuration */

static kvx_status try_config(const device *dev, kvx_pool *pool, const kvx_key_config *keys, uint32_t n_tenants)
{
    kvx_config config = KVX_CONFIG_INIT;
    kvx_ctx *ctx = NULL;
    kvx_status status;
    config.engine = dev->engine;
    config.n_tenants = n_tenants;
    config.keys = keys;
    status = kvx_ctx_create(pool, &config, &ctx);
    assert_int_equal(ctx != NULL, status == KVX_OK);
    kvx_ctx_destroy(ctx);
    return status;
}

static void configuration_is_checked(const device *dev, const void *arg)
{
    static const kvx_slot_class class = {.slot_bytes = 8192, .n_slots = 2, .max_units = 2};
    const kvx_key_config good = KVX_KEY_CONFIG_INIT;
    kvx_key_config bad[12];
    uint32_t n = 0;
    kvx_pool *pool = pool_make(dev, &class, 1);
    (void)arg;
    for (uint32_t i = 0; i < 12; i++)
        bad[i] = good;
    bad[n++].policy = (kvx_policy)3;
    bad[n++].allow = 1u << 30;
    bad[n++].n_key_slots = 3; /* two tenants need four */
    bad[n++].n_key_slots = KVX_KEY_SLOTS_MAX + 1;
    bad[n++].hard_limit = KVX_KEY_HARD_LIMIT + 1;
    bad[n].hard_limit = 10;
    bad[n++].soft_limit = 11;
    bad[n++].n_binding = 1;
    bad[n++].n_binding = KVX_BINDING_PARTS_MAX + 1;
    bad[n++].nonce_bytes = 1;
    bad[n].nonce_bytes = 65;
    bad[n++].nonce = bad;
    bad[n++].size = 4;
    bad[n++].size = sizeof good + 8;
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(try_config(dev, pool, &bad[i], 2), KVX_INVALID);
    expect_ok(try_config(dev, pool, &good, 2));
    expect_ok(try_config(dev, pool, &good, 200));
    assert_int_equal(try_config(dev, pool, &good, 1025), KVX_INVALID);
    expect_ok(kvx_pool_destroy(pool));
}

static kvx_status give_root(void *arg, uint8_t root[32], char key_id[64])
{
    memset(root, 7, 32);
    memcpy(key_id, "broker/42", 10);
    return *(kvx_status *)arg;
}

static void root_from_a_broker(const device *dev, const void *arg)
{
    const kvx_binding_part parts[2] = {{"model", 5}, {"bf16", 4}};
    kvx_key_config keys = KVX_KEY_CONFIG_INIT;
    kvx_posture posture = {.size = sizeof posture};
    kvx_status answer = KVX_OK;
    kvx_slot slot;
    kvx_pair pair;
    rig r;
    (void)arg;
    keys.root = give_root;
    keys.arg = &answer;
    keys.binding = parts;
    keys.n_binding = 2;
    open_with(&r, dev, 1, 1, &keys);
    slots_take(r.pool, 1, &slot);
    pairs_set(&pair, 1, r.layout, 0, &slot);
    assert_int_equal(store_one(&r, &pair), KVX_OK);
    assert_int_equal(restore_one(&r, &pair), KVX_OK);
    expect_ok(kvx_posture_get(r.ctx, &posture));
    assert_string_equal(posture.key_id, "broker/42");
    answer = KVX_TIMEOUT;
    assert_int_equal(try_config(dev, r.pool, &keys, 1), KVX_INTERNAL);
    assert_non_null(strstr(kvx_last_error(), "root"));
    rig_close(&r);
}

static void fips_or_nothing(const device *dev, const void *arg)
{
    static const kvx_slot_class class = {.slot_bytes = 8192, .n_slots = 2, .max_units = 2};
    kvx_key_config keys = KVX_KEY_CONFIG_INIT;
    kvx_pool *pool = pool_make(dev, &class, 1);
    kvx_status status;
    (void)arg;
    keys.fips = 1;
    status = try_config(dev, pool, &keys, 1);
    if (status != KVX_OK)
        assert_int_equal(status, KVX_UNSUPPORTED);
    expect_ok(kvx_pool_destroy(pool));
}

static const test_case cases[] = {
    {"soft limit moves on", soft_limit_moves_on, NULL},
    {"one call over two keys", one_call_over_two_keys, NULL},
    {"hard limit is the end", hard_limit_is_the_end, NULL},
    {"many epochs readable", many_epochs_readable, NULL},
    {"rotation under load", rotation_under_load, NULL},
    {"rotates by time", rotates_by_time, NULL},
    {"failing self-test latches", failing_self_test_latches, NULL},
    {"configuration is checked", configuration_is_checked, NULL},
    {"root from a broker", root_from_a_broker, NULL},
    {"FIPS or nothing", fips_or_nothing, NULL},
};

int main(int argc, char **argv)
{
    return RUN_CASES("tenants", cases, argc, argv);
}
