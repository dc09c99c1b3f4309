/* SPDX-License-Identifier: Apache-2.0 */
/* Erasing tenants, also under stores, and under a unit that is being sealed or opened. */
#include "support.h"

#include <pthread.h>
#include <openssl/evp.h>

#include "../kernels/keystate.h"
#include "../kernels/state.h"
#include "../src/context.h"
#include "../src/engine_cpu_gcm.h"
#include "../src/platform.h"
#include "kvx_keys.h"

#define N_UNITS 3
static const shape small = {"small", 8, 6, 2, {{1, 1024, 0, 0, BLOCK_MAJOR}, {3, 104, 8, 0, BLOCK_MAJOR}}, 2, 0};

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

/* ---------------------------------------------------------------------------------------------------------- erasing */

static void erased_blocks_are_misses(const device *dev, const void *arg)
{
    kvx_erase_receipt receipt = KVX_ERASE_RECEIPT_INIT;
    kvx_slot slots[8];
    kvx_pair pairs[8];
    rig r;
    (void)arg;
    open_with(&r, dev, 8, 2, NULL);
    slots_take(r.pool, 8, slots);
    pairs_set(pairs, 8, r.layout, 0, slots);
    for (uint32_t i = 0; i < 8; i++) {
        pairs[i].tenant = i % 2;
        assert_int_equal(store_one(&r, &pairs[i]), KVX_OK);
        if (i == 3)
            expect_ok(kvx_key_rotate(r.ctx, 1));
    }
    expect_ok(kvx_tenant_erase(r.ctx, 1, &receipt));
    assert_int_equal(receipt.blocks, 4);
    assert_int_equal(receipt.epochs, 3);
    assert_int_equal(receipt.key_slots, 3);
    assert_int_equal(kvx_tenant_erase(r.ctx, 1, &receipt), KVX_INVALID);
    assert_int_equal(kvx_key_rotate(r.ctx, 1), KVX_INVALID);
    assert_int_equal(keys_of(r.ctx, 1).open, 0);
    for (uint32_t reopened = 0; reopened < 2; reopened++) {
        tensors_fill(&r.source, 0, 8, 1);
        for (uint32_t i = 0; i < 8; i++) {
            assert_int_equal(restore_one(&r, &pairs[i]), i % 2 ? KVX_MISS : KVX_OK);
            if (i % 2)
                tensors_expect_zero(&r.source, i, ALL_SEGMENTS);
        }
        tensors_check(&r.source);
        tensors_fill(&r.source, 0, 8, 1);
        if (!reopened)
            expect_ok(kvx_tenant_open(r.ctx, 1));
    }
    assert_int_equal(kvx_tenant_open(r.ctx, 1), KVX_INVALID);
    assert_int_equal(kvx_tenant_open(r.ctx, 2), KVX_INVALID);
    assert_int_equal(store_one(&r, &pairs[1]), KVX_OK);
    assert_int_equal(restore_one(&r, &pairs[1]), KVX_OK);
    assert_int_equal(restore_one(&r, &pairs[3]), KVX_MISS);
    assert_int_equal(stats_of(r.ctx).latched, 0);
    rig_close(&r);
}

static void stores_of_an_erased_tenant(const device *dev, const void *arg)
{
    kvx_slot slots[2];
    kvx_pair pairs[2];
    rig r;
    (void)arg;
    open_with(&r, dev, 2, 2, NULL);
    slots_take(r.pool, 2, slots);
    pairs_set(pairs, 2, r.layout, 0, slots);
    pairs[1].tenant = 1;
    expect_ok(kvx_tenant_erase(r.ctx, 1, NULL));
    assert_int_equal(store_one(&r, &pairs[0]), KVX_OK);
    assert_int_equal(store_one(&r, &pairs[1]), KVX_REFUSED);
    for (size_t i = 0; i < shape_unit_offset(&small, N_UNITS); i++)
        assert_int_equal(slot_bytes(r.pool, slots[1])[i], 0);
    assert_int_equal(restore_one(&r, &pairs[1]), KVX_MISS);
    rig_close(&r);
}

/* A hundred lives of a tenant: no key slot is lost. */
static void many_lives(const device *dev, const void *arg)
{
    kvx_key_config keys = KVX_KEY_CONFIG_INIT;
    kvx_slot slot;
    kvx_pair pair;
    rig r;
    (void)arg;
    keys.n_key_slots = 2;
    open_with(&r, dev, 1, 1, &keys);
    slots_take(r.pool, 1, &slot);
    pairs_set(&pair, 1, r.layout, 0, &slot);
    for (uint32_t i = 0; i < 100; i++) {
        assert_int_equal(store_one(&r, &pair), KVX_OK);
        expect_ok(kvx_tenant_erase(r.ctx, 0, NULL));
        assert_int_equal(restore_one(&r, &pair), KVX_MISS);
        expect_ok(kvx_tenant_open(r.ctx, 0));
        assert_int_equal(restore_one(&r, &pair), KVX_MISS);
    }
    rig_close(&r);
}

/* ----------------------------------------------------------------------------------------------- erasing under load */

typedef struct storm {
    rig *r;
    kvx_pair pairs[8];
    atomic_int over;
    atomic_uint n_ok, n_refused;
} storm;

static void *store_on(void *arg)
{
    storm *s = arg;
    while (!atomic_load(&s->over)) {
        kvx_status verdicts[8];
        kvx_ticket ticket;
        if (kvx_store(s->r->ctx, 8, s->pairs, NULL, &ticket) != KVX_OK)
            continue;
        collect(s->r->ctx, ticket, 8, verdicts);
        for (uint32_t i = 0; i < 8; i++) {
            atomic_fetch_add(&s->n_ok, verdicts[i] == KVX_OK);
            atomic_fetch_add(&s->n_refused, verdicts[i] == KVX_REFUSED);
            if (verdicts[i] != KVX_OK && verdicts[i] != KVX_REFUSED)
                fail_msg("verdict %s", kvx_status_text(verdicts[i]));
        }
    }
    return NULL;
}

/* Were zeros sealed here under the all-zero key? Then the bytes are its keystream: decrypting the first block of them
 * gives the fixed field, a number, and the counter 2. */
static int is_zero_keystream(const uint8_t *block, uint32_t fixed_field)
{
    static const uint8_t zero_key[32];
    EVP_CIPHER_CTX *aes = EVP_CIPHER_CTX_new();
    uint8_t counter[32];
    int n = 0;
    assert_int_equal(EVP_DecryptInit_ex(aes, EVP_aes_256_ecb(), NULL, zero_key, NULL), 1);
    assert_int_equal(EVP_CIPHER_CTX_set_padding(aes, 0), 1);
    assert_int_equal(EVP_DecryptUpdate(aes, counter, &n, block, 16), 1);
    assert_int_equal(n, 16);
    EVP_CIPHER_CTX_free(aes);
    return kvx_load_be32(counter) == fixed_field && kvx_load_be32(counter + 12) == 2;
}

static void no_store_under_a_dead_key(const device *dev, const void *arg)
{
    kvx_dev_words words;
    kvx_slot slots[8];
    pthread_t thread;
    rig r;
    storm s;
    (void)arg;
    memset(&s, 0, sizeof s);
    open_with(&r, dev, 8, 1, NULL);
    dev->set(r.source.memory, 0, r.source.bytes);
    slots_take(r.pool, 8, slots);
    s.r = &r;
    pairs_set(s.pairs, 8, r.layout, 0, slots);
    assert_int_equal(pthread_create(&thread, NULL, store_on, &s), 0);
    for (uint32_t i = 0; i < 200 || atomic_load(&s.n_ok) < 500; i++) {
        expect_ok(kvx_tenant_erase(r.ctx, 0, NULL));
        expect_ok(kvx_tenant_open(r.ctx, 0));
    }
    atomic_store(&s.over, 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
    print_message("%u stored, %u refused\n", atomic_load(&s.n_ok), atomic_load(&s.n_refused));
    expect_ok(r.ctx->ops->words(r.ctx->engine, &words, 0));
    for (uint32_t i = 0; i < 8; i++)
        for (uint32_t u = 0; u < N_UNITS; u++)
            assert_false(
                is_zero_keystream(slot_bytes(r.pool, slots[i]) + shape_unit_offset(&small, u), words.fixed_field));
    dev->set(r.source.memory, 0, r.source.bytes);
    tensors_fill(&r.source, 0, 8, 1);
    rig_close(&r);
}

/* A unit is held in the middle of its work with the key. */
enum { NOWHERE, AT_SEAL, AT_OPEN };
static atomic_int hold_at, holding;

static void hold(int where)
{
    if (atomic_load(&hold_at) != where)
        return;
    atomic_store(&holding, 1);
    while (atomic_load(&hold_at) == where)
        nap(1);
    atomic_store(&holding, 0);
}

int __real_kvx_cpu_gcm_seal(struct kvx_cpu_gcm *gcm, const uint8_t iv[12], const void *aad, size_t aad_bytes,
                            const void *in, void *out, size_t bytes, uint8_t tag[16]);
int __wrap_kvx_cpu_gcm_seal(struct kvx_cpu_gcm *gcm, const uint8_t iv[12], const void *aad, size_t aad_bytes,
                            const void *in, void *out, size_t bytes, uint8_t tag[16]);
int __wrap_kvx_cpu_gcm_seal(struct kvx_cpu_gcm *gcm, const uint8_t iv[12], const void *aad, size_t aad_bytes,
                            const void *in, void *out, size_t bytes, uint8_t tag[16])
{
    hold(AT_SEAL);
    return __real_kvx_cpu_gcm_seal(gcm, iv, aad, aad_bytes, in, out, bytes, tag);
}

int __real_kvx_cpu_gcm_open(struct kvx_cpu_gcm *gcm, const uint8_t iv[12], const void *aad, size_t aad_bytes,
                            const void *in, void *out, size_t bytes, const uint8_t tag[16]);
int __wrap_kvx_cpu_gcm_open(struct kvx_cpu_gcm *gcm, const uint8_t iv[12], const void *aad, size_t aad_bytes,
                            const void *in, void *out, size_t bytes, const uint8_t tag[16]);
int __wrap_kvx_cpu_gcm_open(struct kvx_cpu_gcm *gcm, const uint8_t iv[12], const void *aad, size_t aad_bytes,
                            const void *in, void *out, size_t bytes, const uint8_t tag[16])
{
    hold(AT_OPEN);
    return __real_kvx_cpu_gcm_open(gcm, iv, aad, aad_bytes, in, out, bytes, tag);
}

typedef struct eraser {
    kvx_ctx *ctx;
    atomic_int returned;
    kvx_status status;
} eraser;

static void *erase_on(void *arg)
{
    eraser *e = arg;
    e->status = kvx_tenant_erase(e->ctx, 0, NULL);
    atomic_store(&e->returned, 1);
    return NULL;
}

/* The erasure waits for the unit; what the unit did does not count. */
static void erase_under_a_unit(const device *dev, const void *arg)
{
    const int where = *(const int *)arg;
    kvx_status verdict;
    kvx_slot slot;
    kvx_pair pair;
    kvx_ticket ticket;
    pthread_t thread;
    eraser e = {0};
    rig r;
    if (dev->engine != KVX_ENGINE_CPU)
        skip();
    open_with(&r, dev, 1, 1, NULL);
    slots_take(r.pool, 1, &slot);
    pairs_set(&pair, 1, r.layout, 0, &slot);
    if (where == AT_OPEN)
        assert_int_equal(store_one(&r, &pair), KVX_OK);
    atomic_store(&hold_at, where);
    expect_ok(where == AT_SEAL ? kvx_store(r.ctx, 1, &pair, NULL, &ticket)
                               : kvx_restore(r.ctx, 1, &pair, NULL, &ticket));
    while (!atomic_load(&holding))
        nap(1);
    e.ctx = r.ctx;
    assert_int_equal(pthread_create(&thread, NULL, erase_on, &e), 0);
    nap(30);
    assert_int_equal(atomic_load(&e.returned), 0);
    atomic_store(&hold_at, NOWHERE);
    assert_int_equal(pthread_join(thread, NULL), 0);
    expect_ok(e.status);
    collect(r.ctx, ticket, 1, &verdict);
    assert_int_equal(verdict, where == AT_SEAL ? KVX_REFUSED : KVX_MISS);
    if (where == AT_OPEN)
        tensors_expect_zero(&r.source, 0, ALL_SEGMENTS);
    tensors_check(&r.source);
    assert_int_equal(restore_one(&r, &pair), KVX_MISS);
    expect_ok(kvx_tenant_open(r.ctx, 0));
    assert_int_equal(restore_one(&r, &pair), KVX_MISS);
    rig_close(&r);
}

static const int at_seal = AT_SEAL, at_open = AT_OPEN;

static const test_case cases[] = {
    {"erased blocks are misses", erased_blocks_are_misses, NULL},
    {"stores of an erased tenant", stores_of_an_erased_tenant, NULL},
    {"many lives", many_lives, NULL},
    {"no store under a dead key", no_store_under_a_dead_key, NULL},
    {"erase under a unit that is sealed", erase_under_a_unit, &at_seal},
    {"erase under a unit that is opened", erase_under_a_unit, &at_open},
};

int main(int argc, char **argv)
{
    return RUN_CASES("erase", cases, argc, argv);
}
