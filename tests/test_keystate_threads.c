/* SPDX-License-Identifier: Apache-2.0 */
/* Key slots under threads: no key is overdrawn while a host puts in, retires and erases keys, and the units of a block
 * share one choice. */
#include "cmocka_door.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "../kernels/keystate.h"

#define N_SLOTS 3u

static struct world {
    kvx_key_state keys[N_SLOTS];
    kvx_tenant_keys tenant;
    kvx_dev_words limits;
    uint32_t generations[N_SLOTS]; /* of the newest key put in */
} w;

/* Two keys, the current one and the next. */
static void begin(void)
{
    memset(&w, 0, sizeof w);
    w.generations[0] = w.generations[1] = 1;
    kvx_key_start(&w.keys[0], 1, KVX_KEY_STATE_LIVE);
    kvx_key_start(&w.keys[1], 1, KVX_KEY_STATE_LIVE);
    w.tenant.current = kvx_key_ref(0, 1);
    w.tenant.next = kvx_key_ref(1, 1);
}

enum { N_THREADS = 4, N_TURNS = 20000, N_GENERATIONS = 100000 };
static atomic_uint paid[N_SLOTS][N_GENERATIONS];
static atomic_uint n_running, n_refused;

static void *spend(void *arg)
{
    uint64_t ref;
    for (uint32_t i = 0; i < N_TURNS; i++) {
        const uint64_t cost = 1 + (i + (uint32_t)(uintptr_t)arg) % 3;
        while (kvx_key_choose(&w.tenant, w.keys, N_SLOTS, &w.limits, cost, &ref) != KVX_VERDICT_OK) {
            atomic_fetch_add(&n_refused, 1);
            sched_yield();
        }
        kvx_key_state *key = &w.keys[kvx_key_ref_slot(ref)];
        if (kvx_key_enter(key, kvx_key_ref_generation(ref)))
            kvx_key_leave(key);
        atomic_fetch_add(&paid[kvx_key_ref_slot(ref)][kvx_key_ref_generation(ref)], (unsigned)cost);
        kvx_key_release(key);
    }
    atomic_fetch_sub(&n_running, 1);
    return NULL;
}

/* The host's part: follows, retires what is left, erases it, puts in the next. */
static void serve(void)
{
    for (uint32_t slot = 0; slot < N_SLOTS; slot++) {
        const uint32_t generation = w.generations[slot];
        if (generation && kvx_key_is_left(&w.keys[slot], generation)) {
            kvx_key_kill(&w.keys[slot], generation);
            while (!kvx_key_is_idle(&w.keys[slot]))
                ;
        }
    }
    if (kvx_load_acquire_u64(&w.tenant.current) != w.tenant.next)
        return;
    for (uint32_t slot = 0; slot < N_SLOTS; slot++)
        if (kvx_key_word_state(kvx_load_acquire_u64(&w.keys[slot].word)) == KVX_KEY_STATE_DEAD &&
            w.generations[slot] + 1 < N_GENERATIONS) {
            kvx_store_release_u64(&w.keys[slot].spent, 0);
            kvx_store_release_u64(&w.keys[slot].word, kvx_key_word(++w.generations[slot], KVX_KEY_STATE_LIVE));
            kvx_store_release_u64(&w.tenant.next, kvx_key_ref(slot, w.generations[slot]));
            return;
        }
}

static void no_key_is_overdrawn(void **state)
{
    pthread_t threads[N_THREADS];
    unsigned n_keys = 0;
    (void)state;
    begin();
    w.limits.key_soft_limit = 40;
    w.limits.key_hard_limit = 60;
    atomic_store(&n_running, N_THREADS);
    for (uintptr_t i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, spend, (void *)i), 0);
    while (atomic_load(&n_running)) {
        serve();
        sched_yield();
    }
    for (uint32_t i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (uint32_t slot = 0; slot < N_SLOTS; slot++)
        for (uint32_t g = 0; g < N_GENERATIONS; g++) {
            assert_true(atomic_load(&paid[slot][g]) <= 60);
            n_keys += atomic_load(&paid[slot][g]) != 0;
        }
    print_message("%u keys, %u refusals\n", n_keys, atomic_load(&n_refused));
    assert_true(n_keys >= N_THREADS * N_TURNS * 2 / 60);
}

/* ------------------------------------------------------------------------------------------------- units of a block */

enum { N_BLOCKS = 3000, N_UNITS = 4 };
static uint64_t places[N_BLOCKS], refs[N_BLOCKS][N_UNITS];
static uint32_t verdicts[N_BLOCKS][N_UNITS];
static atomic_uint n_units_done[N_BLOCKS];

static void *seal_units(void *arg)
{
    const uint32_t unit = (uint32_t)(uintptr_t)arg;
    for (uint32_t b = 0; b < N_BLOCKS; b++) {
        verdicts[b][unit] = kvx_block_key(&places[b], &w.tenant, w.keys, N_SLOTS, &w.limits, 5);
        refs[b][unit] = kvx_block_key_ref(kvx_load_acquire_u64(&places[b]));
        if (atomic_fetch_add(&n_units_done[b], 1) + 1 == N_UNITS)
            kvx_block_key_end(&places[b], w.keys);
    }
    atomic_fetch_sub(&n_running, 1);
    return NULL;
}

/* All units of a block find the same key, or the same refusal, and it is paid for once. */
static void units_share_a_choice(void **state)
{
    pthread_t threads[N_UNITS];
    uint64_t granted[N_SLOTS] = {0};
    uint32_t n_refused_blocks = 0;
    (void)state;
    begin();
    w.limits.key_soft_limit = w.limits.key_hard_limit = 5 * (N_BLOCKS / 3) + 2;
    atomic_store(&n_running, N_UNITS);
    for (uintptr_t i = 0; i < N_UNITS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, seal_units, (void *)i), 0);
    for (uint32_t i = 0; i < N_UNITS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (uint32_t b = 0; b < N_BLOCKS; b++) {
        for (uint32_t u = 1; u < N_UNITS; u++) {
            assert_int_equal(verdicts[b][u], verdicts[b][0]);
            assert_true(refs[b][u] == refs[b][0]);
        }
        assert_int_equal(verdicts[b][0], refs[b][0] ? KVX_VERDICT_OK : KVX_VERDICT_EXHAUSTED);
        if (refs[b][0])
            granted[kvx_key_ref_slot(refs[b][0])] += 5;
        n_refused_blocks += refs[b][0] == 0;
        assert_true(places[b] == 0);
    }
    assert_int_equal(granted[0], 5 * (N_BLOCKS / 3));
    assert_int_equal(granted[1], 5 * (N_BLOCKS / 3));
    assert_int_equal(n_refused_blocks, N_BLOCKS / 3);
    for (uint32_t i = 0; i < N_SLOTS; i++)
        assert_int_equal(w.keys[i].holders, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_key_is_overdrawn),
        cmocka_unit_test(units_share_a_choice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
