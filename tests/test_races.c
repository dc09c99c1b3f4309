/* SPDX-License-Identifier: Apache-2.0 */
/* What only happens when something comes between two steps of the CPU engine: the test steps in through functions that
 * are called there. The latch between sealing and commit, a newer store or a late record under a restore, a key that
 * has no blocks left. */
#include "support.h"

#include "../kernels/state.h"
#include "../src/context.h"
#include "../src/engine_cpu.h"

#define N_SEGMENTS 2
#define ALL_ZERO ALL_SEGMENTS

static const shape small = {"small", 4, 4, 2, {{1, 2048, 0, 0, BLOCK_MAJOR}, {3, 104, 8, 0, BLOCK_MAJOR}}, 2, 0};

/* What the next call of a wrapped function does to the engine first; once. */
enum step_in { NOTHING, LATCH_AT_RELEASE, NEWER_STORE_AT_OPEN };
static kvx_cpu_engine *_Atomic victim;
static atomic_int armed;
static const uint32_t *_Atomic flags; /* of a restore: none may be set before its segment has been opened */
static atomic_uint n_opened, n_early;

void __real_kvx_cpu_timeline_advance(kvx_cpu_timeline *timeline, uint64_t position);
void __wrap_kvx_cpu_timeline_advance(kvx_cpu_timeline *timeline, uint64_t position);
/* Called between the last seal of a store and its first commit. */
void __wrap_kvx_cpu_timeline_advance(kvx_cpu_timeline *timeline, uint64_t position)
{
    int wanted = LATCH_AT_RELEASE;
    if (victim && timeline == victim->pipelines[KVX_CPU_STORES].timeline &&
        atomic_compare_exchange_strong(&armed, &wanted, NOTHING))
        kvx_atomic_cas_u32(&victim->words->latch, 0, 1);
    __real_kvx_cpu_timeline_advance(timeline, position);
}

int __real_kvx_cpu_gcm_open(struct kvx_cpu_gcm *gcm, const uint8_t iv[12], const void *aad, size_t aad_bytes,
                            const void *in, void *out, size_t bytes, const uint8_t tag[16]);
int __wrap_kvx_cpu_gcm_open(struct kvx_cpu_gcm *gcm, const uint8_t iv[12], const void *aad, size_t aad_bytes,
                            const void *in, void *out, size_t bytes, const uint8_t tag[16]);
/* Called between a restore's two looks at the header. */
int __wrap_kvx_cpu_gcm_open(struct kvx_cpu_gcm *gcm, const uint8_t iv[12], const void *aad, size_t aad_bytes,
                            const void *in, void *out, size_t bytes, const uint8_t tag[16])
{
    int wanted = NEWER_STORE_AT_OPEN;
    if (victim && atomic_compare_exchange_strong(&armed, &wanted, NOTHING))
        (void)kvx_slot_claim(&victim->headers[0], 1u << 20);
    if (flags) {
        const uint32_t segment = atomic_fetch_add(&n_opened, 1);
        for (uint32_t i = segment; i < N_SEGMENTS; i++)
            atomic_fetch_add(&n_early, kvx_load_acquire_u32(&flags[i]) != 0);
    }
    return __real_kvx_cpu_gcm_open(gcm, iv, aad, aad_bytes, in, out, bytes, tag);
}

typedef struct stage {
    rig r;
    kvx_slot slot;
    kvx_pair pair;
    kvx_ticket ticket;
} stage;

static int stage_open(stage *s, const device *dev)
{
    const rig_options options = {.n_slots = 1};
    if (dev->engine != KVX_ENGINE_CPU)
        return 0;
    rig_open(&s->r, dev, &small, &options);
    slots_take(s->r.pool, 1, &s->slot);
    pairs_set(&s->pair, 1, s->r.layout, 0, &s->slot);
    victim = s->r.ctx->engine;
    return 1;
}

static void stage_close(stage *s)
{
    victim = NULL;
    rig_close(&s->r);
}

static void latch_before_commit(const device *dev, const void *arg)
{
    kvx_header header;
    kvx_record records[N_SEGMENTS];
    stage s;
    (void)arg;
    if (!stage_open(&s, dev))
        skip();
    atomic_store(&armed, LATCH_AT_RELEASE);
    expect_ok(kvx_store(s.r.ctx, 1, &s.pair, NULL, &s.ticket));
    expect_all(s.r.ctx, s.ticket, 1, KVX_LATCHED);
    expect_ok(s.r.ctx->ops->export_slot(s.r.ctx->engine, 0, &header, records, N_SEGMENTS));
    assert_int_equal(kvx_word_state(header.word), KVX_SLOT_EMPTY);
    stage_close(&s);
}

/* The slot is taken while a unit is opened: busy and zeros, also if the bytes no longer fit; never tampering. */
static void newer_store_under_a_restore(const device *dev, const void *arg)
{
    kvx_status verdict;
    stage s;
    (void)arg;
    for (uint32_t flipped = 0; flipped < 2; flipped++) {
        if (!stage_open(&s, dev))
            skip();
        store_all(&s.r, 1, &s.pair);
        slot_bytes(s.r.pool, s.slot)[5] ^= (uint8_t)flipped;
        atomic_store(&armed, NEWER_STORE_AT_OPEN);
        restore_some(&s.r, 1, &s.pair, &verdict);
        assert_int_equal(verdict, KVX_BUSY);
        assert_int_equal(stats_of(s.r.ctx).latched, 0);
        tensors_expect_zero(&s.r.source, 0, ALL_ZERO);
        tensors_check(&s.r.source);
        stage_close(&s);
    }
}

/* A record of another store under a VALID header: a miss, whatever its tag says; never tampering. */
static void record_of_another_store(const device *dev, const void *arg)
{
    kvx_status verdict;
    stage s;
    (void)arg;
    if (!stage_open(&s, dev))
        skip();
    store_all(&s.r, 1, &s.pair);
    victim->records[1].store_id += 2;
    restore_some(&s.r, 1, &s.pair, &verdict);
    assert_int_equal(verdict, KVX_MISS);
    tensors_expect_zero(&s.r.source, 0, 1);
    tensors_check(&s.r.source);
    victim->records[1].store_id -= 2;
    stage_close(&s);
}

/* The header names a key slot whose key was replaced. */
static void key_of_another_generation(const device *dev, const void *arg)
{
    kvx_status verdict;
    stage s;
    (void)arg;
    if (!stage_open(&s, dev))
        skip();
    store_all(&s.r, 1, &s.pair);
    victim->headers[0].key_generation++;
    restore_some(&s.r, 1, &s.pair, &verdict);
    assert_int_equal(verdict, KVX_MISS);
    assert_int_equal(stats_of(s.r.ctx).latched, 0);
    stage_close(&s);
}

/* A key pays for its last unit, not for one more; what is stored stays readable. */
static void key_without_blocks(const device *dev, const void *arg)
{
    kvx_status verdict;
    stage s;
    (void)arg;
    if (!stage_open(&s, dev))
        skip();
    store_all(&s.r, 1, &s.pair);
    restore_some(&s.r, 1, &s.pair, &verdict);
    assert_int_equal(verdict, KVX_OK);
    victim->key_states[0].spent = victim->words->key_hard_limit - 1;
    victim->tenant_keys[0].next = 0;
    expect_ok(kvx_store(s.r.ctx, 1, &s.pair, NULL, &s.ticket));
    expect_all(s.r.ctx, s.ticket, 1, KVX_EXHAUSTED);
    restore_some(&s.r, 1, &s.pair, &verdict);
    assert_int_equal(verdict, KVX_MISS);
    assert_int_equal(stats_of(s.r.ctx).latched, 0);
    stage_close(&s);
}

/* Flag s is set after segment s was opened, not before. */
static void flags_come_after_their_segment(const device *dev, const void *arg)
{
    uint32_t seen[N_SEGMENTS] = {0};
    kvx_options options = KVX_OPTIONS_INIT;
    stage s;
    (void)arg;
    if (!stage_open(&s, dev))
        skip();
    store_all(&s.r, 1, &s.pair);
    options.dev_flags = seen;
    options.n_flags = N_SEGMENTS;
    options.flag_value = 1;
    flags = seen;
    expect_ok(kvx_restore(s.r.ctx, 1, &s.pair, &options, &s.ticket));
    expect_all(s.r.ctx, s.ticket, 1, KVX_OK);
    flags = NULL;
    assert_int_equal(atomic_load(&n_opened), N_SEGMENTS);
    assert_int_equal(atomic_load(&n_early), 0);
    assert_int_equal(seen[0] + seen[1], 2);
    stage_close(&s);
}

static const test_case cases[] = {
    {"flags come after their segment", flags_come_after_their_segment, NULL},
    {"latch between sealing and commit", latch_before_commit, NULL},
    {"newer store under a restore", newer_store_under_a_restore, NULL},
    {"record of another store", record_of_another_store, NULL},
    {"key of another generation", key_of_another_generation, NULL},
    {"key without blocks", key_without_blocks, NULL},
};

int main(int argc, char **argv)
{
    return RUN_CASES("races", cases, argc, argv);
}
