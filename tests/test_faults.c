/* SPDX-License-Identifier: Apache-2.0 */
/* Every library call beneath kvx fails once, at each of its occurrences, in every function that makes objects and in
 * stores and restores. Each time: a clean status with a note, outputs untouched, nothing leaked (run it under ASan),
 * and the same call succeeds right after. The linker redirects the calls of the static library: link with
 *
 *   -Wl,--wrap=NAME for each of WRAPS: malloc calloc realloc aligned_alloc posix_memalign mmap mlock madvise getrandom
 *   pthread_create RAND_priv_bytes_ex OSSL_LIB_CTX_new EVP_KDF_fetch EVP_KDF_CTX_new EVP_KDF_derive EVP_CIPHER_CTX_new
 *   EVP_CipherInit_ex EVP_CipherUpdate EVP_CIPHER_CTX_ctrl
 *
 *   and, where the CUDA engine is built, WRAPS_CUDA: see faults_cuda.c
 */
#include "faults.h"

#include <stdlib.h>

#define TIMEOUT_NS 20000000000u

static const shape small = {"small", 4, 4, 2, {{1, 2048, 0, 0, BLOCK_MAJOR}, {3, 104, 8, 0, BLOCK_MAJOR}}, 2, 0};

/* ------------------------------------------------------------------------------------------------ what may fail when
 */

/* The objects so far, each made without faults. */
typedef struct trial {
    const device *dev;
    const fault *fault;
    tensors t;
    kvx_pool *pool;
    kvx_ctx *ctx;
    kvx_layout *layout;
    kvx_slot slots[4];
    kvx_pair pairs[4];
} trial;

#define POISON ((void *)(uintptr_t)0x5a5a5a5a5a5a5a58u)

static kvx_status make_pool(trial *t)
{
    static const kvx_slot_class class = {.slot_bytes = 8192, .n_slots = 8, .max_units = 2};
    kvx_pool_config config = KVX_POOL_CONFIG_INIT;
    config.classes = &class;
    config.n_classes = 1;
    config.engine = t->dev->engine;
    return kvx_pool_create(&config, &t->pool);
}

static kvx_status make_ctx(trial *t)
{
    kvx_config config = KVX_CONFIG_INIT;
    config.engine = t->dev->engine;
    config.n_tenants = 2;
    config.max_tickets = 8;
    config.max_pairs = 64;
    config.ring_bytes = 1 << 20;
    return kvx_ctx_create(t->pool, &config, &t->ctx);
}

static kvx_status make_layout(trial *t)
{
    kvx_layout_desc desc = KVX_LAYOUT_DESC_INIT;
    desc.lanes = t->t.lanes;
    desc.n_lanes = small.n_lanes;
    return kvx_layout_create(t->ctx, &desc, &t->layout);
}

static void expect_clean(const trial *t, kvx_status status, uint32_t k)
{
    const int fine =
        status == KVX_NO_MEMORY || status == KVX_INTERNAL || status == KVX_UNSUPPORTED || status == KVX_DEVICE_LOST;
    if (!fine || strlen(kvx_last_error()) == 0)
        fail_msg("%s, occurrence %u: %s, note \"%s\"", t->fault->name, k, kvx_status_text(status), kvx_last_error());
}

/* Calls `make` with the k-th occurrence failing. Nonzero if there was no k-th occurrence: the object is made. */
static int make_failing(trial *t, kvx_status (*make)(trial *), void **object, uint32_t k)
{
    *object = POISON;
    fault_arm(t->fault, k);
    const kvx_status status = make(t);
    const int happened = fault_disarm();
    if (status == KVX_OK) { /* none so late, or one that the library can do without */
        assert_ptr_not_equal(*object, POISON);
        return !happened;
    }
    assert_true(happened);
    expect_clean(t, status, k);
    assert_ptr_equal(*object, POISON);
    *object = NULL;
    return 0;
}

static void trial_open(trial *t, const device *dev, const fault *f)
{
    memset(t, 0, sizeof *t);
    t->dev = dev;
    t->fault = f;
    tensors_create(&t->t, dev, &small, 0);
    tensors_fill(&t->t, 0, 4, 1);
}

static void trial_close(trial *t)
{
    kvx_ctx_destroy(t->ctx);
    expect_ok(kvx_pool_destroy(t->pool));
    tensors_destroy(&t->t);
}

static void make_the_rest(trial *t)
{
    if (!t->pool)
        expect_ok(make_pool(t));
    if (!t->ctx)
        expect_ok(make_ctx(t));
    if (!t->layout)
        expect_ok(make_layout(t));
    slots_take(t->pool, 4, t->slots);
    pairs_set(t->pairs, 4, t->layout, 0, t->slots);
}

static void expect_round_trip(trial *t)
{
    kvx_ticket ticket;
    expect_ok(kvx_store(t->ctx, 4, t->pairs, NULL, &ticket));
    expect_all(t->ctx, ticket, 4, KVX_OK);
    expect_ok(kvx_restore(t->ctx, 4, t->pairs, NULL, &ticket));
    expect_all(t->ctx, ticket, 4, KVX_OK);
    tensors_check(&t->t);
}

enum step { STEP_POOL, STEP_CTX, STEP_LAYOUT };

static void fail_creation(const device *dev, const fault *f, enum step step)
{
    int over = 0;
    for (uint32_t k = 1; !over; k++) {
        trial t;
        assert_true(k < 2000);
        trial_open(&t, dev, f);
        if (step > STEP_POOL)
            expect_ok(make_pool(&t));
        if (step > STEP_CTX)
            expect_ok(make_ctx(&t));
        over = step == STEP_POOL  ? make_failing(&t, make_pool, (void **)&t.pool, k)
               : step == STEP_CTX ? make_failing(&t, make_ctx, (void **)&t.ctx, k)
                                  : make_failing(&t, make_layout, (void **)&t.layout, k);
        make_the_rest(&t);
        expect_round_trip(&t);
        trial_close(&t);
    }
}

static void creation(const device *dev, const void *arg)
{
    const fault *const *table = faults_of(dev);
    for (; *table; table++)
        fail_creation(dev, *table, *(const enum step *)arg);
}

/* -------------------------------------------------------------------------------------------------- store, restore */

typedef kvx_status transfer_fn(kvx_ctx *, uint32_t, const kvx_pair *, const kvx_options *, kvx_ticket *);

/* Blocks of a restore that failed are zeros, the others what was stored. */
static void expect_restored(trial *t, const kvx_status *verdicts)
{
    for (uint32_t i = 0; i < 4; i++)
        if (verdicts[i] == KVX_OK)
            assert_true(tensors_holds(&t->t, i, i + 1));
        else
            for (uint32_t segment = 0; segment < 2; segment++)
                if (!tensors_segment_holds(&t->t, i, segment, i + 1))
                    tensors_expect_zero(&t->t, i, segment);
    tensors_check(&t->t);
}

/* The k-th occurrence fails within one call or on the engine's threads. Nonzero if there was none. */
static int transfer_failing(trial *t, transfer_fn *fn, uint32_t k)
{
    kvx_status verdicts[4] = {KVX_OK, KVX_OK, KVX_OK, KVX_OK};
    kvx_ticket ticket = 4711;
    fault_arm(t->fault, k);
    const kvx_status status = fn(t->ctx, 4, t->pairs, NULL, &ticket);
    if (status == KVX_OK)
        collect(t->ctx, ticket, 4, verdicts);
    const int happened = fault_disarm();
    if (status == KVX_OK) {
        if (fn == kvx_restore)
            expect_restored(t, verdicts);
        for (uint32_t i = 0; i < 4; i++)
            assert_true(verdicts[i] != KVX_TAMPERED); /* a failing library is no attack */
        return !happened;
    }
    assert_true(happened);
    expect_clean(t, status, k);
    assert_int_equal(ticket, 4711);
    if (status == KVX_DEVICE_LOST) { /* the context is out of use, the pool is not */
        kvx_ctx_destroy(t->ctx);
        expect_ok(make_ctx(t));
        expect_ok(make_layout(t));
        pairs_set(t->pairs, 4, t->layout, 0, t->slots);
    }
    return 0;
}

static void fail_transfer(const device *dev, const fault *f, transfer_fn *fn)
{
    int over = 0;
    trial t;
    trial_open(&t, dev, f);
    make_the_rest(&t);
    expect_round_trip(&t);
    for (uint32_t k = 1; !over; k++) {
        assert_true(k < 2000);
        over = transfer_failing(&t, fn, k);
        tensors_fill(&t.t, 0, 4, 1);
        expect_round_trip(&t);
    }
    trial_close(&t);
}

static void transfers(const device *dev, const void *arg)
{
    const fault *const *table = faults_of(dev);
    for (; *table; table++)
        fail_transfer(dev, *table, *(transfer_fn *const *)arg);
}

/* --------------------------------------------------------------------------------------------------- steady state */

static void steady_state_allocates_nothing(const device *dev, const void *arg)
{
    const fault *const *table = faults_of(dev);
    trial t;
    (void)arg;
    trial_open(&t, dev, table[0]);
    make_the_rest(&t);
    expect_round_trip(&t);
    for (; *table; table++) {
        if (!(*table)->allocates)
            continue;
        fault_arm(*table, UINT32_MAX);
        for (uint32_t i = 0; i < 100; i++) {
            kvx_ticket tickets[3];
            kvx_status verdicts[4];
            kvx_result result;
            expect_ok(kvx_store(t.ctx, 4, t.pairs, NULL, &tickets[0]));
            expect_ok(kvx_restore(t.ctx, 4, t.pairs, NULL, &tickets[1]));
            expect_ok(kvx_discard(t.ctx, 4, t.slots, &tickets[2]));
            expect_ok(kvx_wait(t.ctx, 3, tickets, TIMEOUT_NS));
            for (uint32_t k = 0; k < 3; k++)
                expect_ok(kvx_poll(t.ctx, tickets[k], &result, 4, verdicts));
        }
        const uint32_t n = fault_calls();
        (void)fault_disarm();
        if (n != 0)
            fail_msg("%s was called %u times in 100 rounds of store, restore, discard, wait, poll", (*table)->name, n);
    }
    expect_round_trip(&t);
    trial_close(&t);
}

static const enum step steps[3] = {STEP_POOL, STEP_CTX, STEP_LAYOUT};
static transfer_fn *const transfer_fns[2] = {kvx_store, kvx_restore};

static const test_case cases[] = {
    {"pool creation", creation, &steps[0]},   {"context creation", creation, &steps[1]},
    {"layout creation", creation, &steps[2]}, {"store", transfers, &transfer_fns[0]},
    {"restore", transfers, &transfer_fns[1]}, {"steady state allocates nothing", steady_state_allocates_nothing, NULL},
};

int main(int argc, char **argv)
{
    return RUN_CASES("faults", cases, argc, argv);
}
