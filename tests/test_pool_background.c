/* SPDX-License-Identifier: Apache-2.0 */
/* Pools that are filled in the background, over the fake driver: slots that come behind, failures that are told,
 * registration held, progress. */
#include "pool_scene.h"

#include <pthread.h>
#include <string.h>

/* ---------------------------------------------------------------------------------------------- in the background */

static void slots_come_behind(void **state)
{
    kvx_pool_config config = fill_config();
    kvx_slot slots[6 * PER_CHUNK], late = {1, PER_CHUNK, 7}, beyond = {1, 2 * PER_CHUNK, 0};
    (void)state;
    config.background = 1;
    fake.gate_shut = 1;
    kvx_pool *pool = fill_create(&config);
    assert_int_equal(fill_stats(pool).n_chunks_ready, 1);
    assert_int_equal(fill_stats(pool).fill, KVX_PENDING);
    assert_int_equal(kvx_pool_wait(pool, 1000000), KVX_TIMEOUT);
    assert_int_equal(kvx_pool_view_of(pool)->pinned, 1);
    assert_ptr_equal(kvx_pool_view_of(pool)->chunks[7].dev, kvx_pool_view_of(pool)->chunks[7].host);
    assert_int_equal(kvx_pool_take(pool, 0, PER_CHUNK + 1, slots), KVX_AGAIN);
    assert_int_equal(kvx_pool_take(pool, 0, PER_CHUNK, slots), KVX_OK);
    for (uint32_t i = 0; i < PER_CHUNK; i++)
        assert_true(slots[i].index < PER_CHUNK);
    assert_int_equal(kvx_pool_take(pool, 0, 1, slots), KVX_AGAIN);
    assert_int_equal(fill_pin_one(pool, late, 1), KVX_AGAIN);
    assert_int_equal(fill_pin_one(pool, late, 0), KVX_AGAIN);
    assert_int_equal(fill_pin_one(pool, beyond, 1), KVX_INVALID);
    fake.gate_shut = 0;
    assert_int_equal(kvx_pool_wait(pool, 20 * SECONDS), KVX_OK);
    assert_int_equal(fill_pin_one(pool, late, 1), KVX_OK);
    assert_int_equal(kvx_pool_take(pool, 0, 5 * PER_CHUNK, slots), KVX_OK);
    assert_int_equal(kvx_pool_take(pool, 0, 1, slots), KVX_AGAIN);
    kvx_pool_stats stats = fill_stats(pool);
    assert_int_equal(stats.slots_free + stats.slots_used + stats.slots_in_flight, 6 * PER_CHUNK);
    fill_destroy(pool);
}

static void failures_behind_are_told_once(void **state)
{
    kvx_pool_config config = fill_config();
    kvx_slot slot, there = {1, 0, 0};
    (void)state;
    config.background = 1;
    fake.register_fails_from = 3;
    kvx_pool *pool = fill_create(&config);
    assert_int_equal(kvx_pool_wait(pool, 20 * SECONDS), KVX_NO_MEMORY);
    assert_non_null(strstr(kvx_last_error(), "chunk 3"));
    assert_int_equal(fake.n_allocated, 0); /* its address is known: it may not move */
    assert_int_equal(kvx_pool_take(pool, 0, 1, &slot), KVX_NO_MEMORY);
    assert_non_null(strstr(kvx_last_error(), "chunk 3"));
    for (uint32_t i = 0; i < 3 * PER_CHUNK; i++) {
        assert_int_equal(kvx_pool_take(pool, 0, 1, &slot), KVX_OK);
        assert_true(slot.index < 3 * PER_CHUNK);
        assert_int_equal(fill_pin_one(pool, slot, 1), KVX_OK);
    }
    assert_int_equal(kvx_pool_take(pool, 0, 1, &slot), KVX_AGAIN);
    assert_int_equal(fill_pin_one(pool, there, 1), KVX_NO_MEMORY);
    assert_int_equal(kvx_pool_wait(pool, 0), KVX_NO_MEMORY);
    assert_int_equal(fill_stats(pool).fill, KVX_NO_MEMORY);
    assert_int_equal(fill_stats(pool).bytes_ready, 3 * CHUNK);
    fill_destroy(pool);
    fake_reset();
    fake.touch_fails_at = 6;
    config.n_threads = 1; /* else that may be before the first chunk is there, and create itself fails */
    pool = fill_create(&config);
    assert_int_equal(kvx_pool_wait(pool, 20 * SECONDS), KVX_NO_MEMORY);
    assert_non_null(strstr(kvx_last_error(), "touching"));
    fill_destroy(pool);
}

typedef struct waiter {
    kvx_pool *pool;
    atomic_int done;
} waiter;

static void *quiesce(void *argument)
{
    waiter *w = argument;
    int status = (int)kvx_pool_quiesce(w->pool, 20 * SECONDS);
    atomic_store(&w->done, 1);
    return status == KVX_OK ? argument : NULL;
}

/* Lets chunks through one by one until the pool is held. */
static void quiesce_between(kvx_pool *pool)
{
    waiter w = {pool, 0};
    pthread_t thread;
    void *result = NULL;
    assert_int_equal(pthread_create(&thread, NULL, quiesce, &w), 0);
    for (int i = 0; i < 40; i++)
        fill_nap();
    while (!atomic_load(&w.done)) {
        atomic_fetch_add(&fake.permits, 1);
        for (int i = 0; i < 200 && !atomic_load(&w.done); i++)
            fill_nap();
    }
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_ptr_equal(result, &w);
}

static void quiesce_holds_the_driver(void **state)
{
    kvx_pool_config config = fill_config();
    (void)state;
    config.background = 1;
    fake.gate_shut = 1;
    kvx_pool *pool = fill_create(&config);
    assert_int_equal(kvx_pool_resume(pool), KVX_INVALID);
    while (atomic_load(&fake.waiting) == 0)
        fill_nap();
    assert_int_equal(kvx_pool_quiesce(pool, 1000000), KVX_TIMEOUT); /* a chunk is stuck: nothing is held */
    quiesce_between(pool);
    assert_int_equal(kvx_pool_quiesce(pool, 20 * SECONDS), KVX_OK); /* twice */
    fake.gate_shut = 0;
    uint32_t before = atomic_load(&fake.n_registering);
    assert_true(before < N_CHUNKS);
    for (int i = 0; i < 30; i++)
        fill_nap();
    assert_int_equal(kvx_pool_resume(pool), KVX_OK);
    for (int i = 0; i < 10; i++)
        fill_nap();
    assert_int_equal(atomic_load(&fake.n_registering), before);
    assert_int_equal(kvx_pool_resume(pool), KVX_OK);
    assert_int_equal(kvx_pool_wait(pool, 20 * SECONDS), KVX_OK);
    assert_int_equal(fake.n_registering, N_CHUNKS);
    fill_destroy(pool);
}

static void destroyed_half_way(void **state)
{
    kvx_pool_config config = fill_config();
    (void)state;
    config.background = 1;
    for (uint32_t i = 0; i < 4; i++) {
        fake_reset();
        fake.register_ns = 40000000;
        kvx_pool *pool = fill_create(&config);
        while (i == 1 && atomic_load(&fake.n_registered) < 3)
            fill_nap();
        if (i == 2)
            assert_int_equal(kvx_pool_quiesce(pool, 20 * SECONDS), KVX_OK);
        fill_destroy(pool);
        assert_true(fake.n_registering < N_CHUNKS);
    }
}

typedef struct diary {
    atomic_uint n, wrong;
    atomic_int inside;
    kvx_pool_progress last;
} diary;

static void write_diary(void *argument, const kvx_pool_progress *progress)
{
    diary *d = argument;
    int alone = atomic_fetch_add(&d->inside, 1) == 0;
    int onward = progress->bytes_ready >= d->last.bytes_ready && progress->elapsed_ns >= d->last.elapsed_ns;
    atomic_fetch_add(&d->wrong, (unsigned)!(alone && onward && d->last.fill == KVX_PENDING));
    d->last = *progress;
    atomic_fetch_add(&d->n, 1);
    atomic_fetch_sub(&d->inside, 1);
}

static void progress_is_told(void **state)
{
    kvx_pool_config config = fill_config();
    (void)state;
    config.progress = write_diary;
    for (uint32_t i = 0; i < 3; i++) {
        diary d = {.last = {.fill = KVX_PENDING}};
        kvx_pool *pool = NULL;
        fake_reset();
        config.progress_argument = &d;
        config.background = i > 0;
        fake.register_fails_from = i == 2 ? 4 : NEVER;
        pool = fill_create(&config);
        (void)!kvx_pool_wait(pool, 20 * SECONDS);
        fill_destroy(pool); /* ends the threads */
        assert_int_equal(d.wrong, 0);
        assert_in_range(d.n, 1, N_CHUNKS + 1);
        assert_int_equal(d.last.fill, i == 2 ? KVX_NO_MEMORY : KVX_OK);
        assert_int_equal(d.last.bytes_total, N_CHUNKS * CHUNK);
        assert_int_equal(d.last.bytes_ready, (i == 2 ? 4 : N_CHUNKS) * CHUNK);
    }
}

#define TEST(name) cmocka_unit_test_setup(name, fill_set_up)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(slots_come_behind),        TEST(failures_behind_are_told_once),
        TEST(quiesce_holds_the_driver), TEST(destroyed_half_way),
        TEST(progress_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
