/* SPDX-License-Identifier: Apache-2.0 */
/* Random takes, gives, pins and unpins against a model that knows nothing but the rules, over a pool that is still
 * filling when they begin. An argument gives the number of steps: 10,000,000 are the long form. Such steps
 * allocate nothing. */
#include "pool_fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pool.h"

#define N_CLASSES 3u
#define RUN_MAX 24u
#define PINS_MAX 512u

static const kvx_slot_class classes[N_CLASSES] = {{65536, 500, 2, 0}, {4096, 2000, 1, 0}, {1 << 20, 40, 1, 0}};
static uint64_t n_steps = 200000;

enum model_state { FREE, TAKEN, GIVEN };

typedef struct model_slot {
    uint8_t state, seen;
    uint32_t generation, pins;
    uint32_t place; /* in `taken` */
} model_slot;

typedef struct model {
    kvx_pool *pool;
    uint64_t random;
    uint32_t first[N_CLASSES], n_taken[N_CLASSES], n_free[N_CLASSES];
    model_slot *slots;
    kvx_slot *taken[N_CLASSES];
    uint32_t pinned[PINS_MAX], n_pinned; /* flat numbers */
    kvx_slot old;                        /* a handle that is not current */
    int filled;                          /* all chunks are there */
} model;

static uint32_t roll(model *m, uint32_t bound)
{
    m->random ^= m->random << 13;
    m->random ^= m->random >> 7;
    m->random ^= m->random << 17;
    return (uint32_t)((m->random >> 32) * bound >> 32);
}

static model_slot *slot_of(model *m, kvx_slot slot)
{
    return &m->slots[m->first[slot.slot_class] + slot.index];
}

static void model_take(model *m, kvx_slot slot)
{
    model_slot *s = slot_of(m, slot);
    assert_true(slot.index < classes[slot.slot_class].n_slots);
    assert_int_equal(s->state, FREE);
    if (s->seen)
        assert_int_equal(slot.generation, s->generation);
    s->seen = 1;
    s->generation = slot.generation;
    s->state = TAKEN;
    s->place = m->n_taken[slot.slot_class]++;
    m->taken[slot.slot_class][s->place] = slot;
    m->n_free[slot.slot_class]--;
}

static void model_give(model *m, kvx_slot slot)
{
    uint32_t c = slot.slot_class;
    model_slot *s = slot_of(m, slot);
    kvx_slot last = m->taken[c][--m->n_taken[c]];
    m->taken[c][s->place] = last;
    slot_of(m, last)->place = s->place;
    m->old = slot;
    s->generation++;
    s->state = s->pins ? GIVEN : FREE;
    m->n_free[c] += s->pins == 0;
}

static void step_take(model *m)
{
    kvx_slot slots[RUN_MAX];
    uint32_t c = roll(m, N_CLASSES), n = 1 + roll(m, RUN_MAX);
    kvx_status status = kvx_pool_take(m->pool, c, n, slots);
    if (m->filled)
        assert_int_equal(status, n <= m->n_free[c] ? KVX_OK : KVX_AGAIN);
    else
        assert_true(status == KVX_AGAIN || (status == KVX_OK && n <= m->n_free[c]));
    for (uint32_t i = 0; status == KVX_OK && i < n; i++)
        model_take(m, slots[i]);
}

static void step_give(model *m)
{
    kvx_slot slots[RUN_MAX + 1];
    uint32_t c = roll(m, N_CLASSES), n = 1 + roll(m, RUN_MAX), start;
    if (n > m->n_taken[c])
        return;
    start = roll(m, m->n_taken[c] - n + 1);
    memcpy(slots, m->taken[c] + start, n * sizeof *slots);
    if (roll(m, 8) == 0 && m->old.generation != UINT32_MAX) { /* all or none: an old handle, or one twice */
        int twice = (int)roll(m, 2);
        slots[n] = twice ? slots[0] : m->old;
        for (uint32_t i = 0; i < n; i++)
            twice |= slots[i].slot_class == slots[n].slot_class && slots[i].index == slots[n].index;
        assert_int_equal(kvx_pool_give(m->pool, n + 1, slots), twice ? KVX_INVALID : KVX_STALE);
        return;
    }
    assert_int_equal(kvx_pool_give(m->pool, n, slots), KVX_OK);
    for (uint32_t i = 0; i < n; i++)
        model_give(m, slots[i]);
}

static void step_pin(model *m)
{
    uint32_t c = roll(m, N_CLASSES), flat;
    if (m->n_taken[c] == 0 || m->n_pinned == PINS_MAX)
        return;
    kvx_slot slot = m->taken[c][roll(m, m->n_taken[c])];
    kvx_pool_pin pin = {1, 1, 1, &slot, sizeof slot, &flat, NULL};
    assert_int_equal(kvx_pool_pin_slots(m->pool, &pin), KVX_OK);
    assert_int_equal(flat, m->first[c] + slot.index);
    m->slots[flat].pins++;
    m->pinned[m->n_pinned++] = flat;
}

static void step_unpin(model *m)
{
    if (m->n_pinned == 0)
        return;
    uint32_t at = roll(m, m->n_pinned), flat = m->pinned[at], c = 0;
    kvx_pool_unpin(m->pool, 1, &flat);
    m->pinned[at] = m->pinned[--m->n_pinned];
    while (c + 1 < N_CLASSES && flat >= m->first[c + 1])
        c++;
    if (--m->slots[flat].pins == 0 && m->slots[flat].state == GIVEN) {
        m->slots[flat].state = FREE;
        m->n_free[c]++;
    }
}

static void check_counts(model *m)
{
    uint64_t n_free, n_used, n_in_flight, expected = 0;
    kvx_pool_counts(m->pool, &n_free, &n_used, &n_in_flight);
    if (!m->filled)
        return;
    for (uint32_t c = 0; c < N_CLASSES; c++)
        expected += m->n_free[c];
    assert_int_equal(n_free, expected);
    assert_int_equal(n_free + n_used + n_in_flight, 500 + 2000 + 40);
}

static void steps(model *m, uint64_t n)
{
    static void (*const kinds[])(model *) = {step_take, step_take, step_give, step_give, step_pin, step_unpin};
    for (uint64_t i = 0; i < n; i++) {
        kinds[roll(m, 6)](m);
        if (i % 64 == 0)
            check_counts(m);
    }
}

static void model_open(model *m)
{
    uint32_t n = 0;
    kvx_pool_config config = KVX_POOL_CONFIG_INIT;
    memset(m, 0, sizeof *m);
    fake_reset();
    fake.register_ns = 500000;
    config.classes = classes;
    config.n_classes = N_CLASSES;
    config.chunk_bytes = 2 << 20;
    config.background = 1;
    config.n_threads = 2;
    m->random = 0x9e3779b97f4a7c15u;
    m->old.generation = UINT32_MAX;
    for (uint32_t c = 0; c < N_CLASSES; c++) {
        m->first[c] = n;
        m->n_free[c] = classes[c].n_slots;
        n += classes[c].n_slots;
        m->taken[c] = calloc(classes[c].n_slots, sizeof *m->taken[c]);
        assert_non_null(m->taken[c]);
    }
    m->slots = calloc(n, sizeof *m->slots);
    assert_non_null(m->slots);
    assert_int_equal(kvx_pool_create(&config, &m->pool), KVX_OK);
}

static void model_close(model *m)
{
    while (m->n_pinned > 0)
        step_unpin(m);
    assert_int_equal(kvx_pool_destroy(m->pool), KVX_OK);
    fake_expect_nothing_left();
    for (uint32_t c = 0; c < N_CLASSES; c++)
        free(m->taken[c]);
    free(m->slots);
}

static void steps_agree_with_the_model(void **state)
{
    model m;
    (void)state;
    model_open(&m);
    steps(&m, 2000); /* while it fills */
    assert_int_equal(kvx_pool_wait(m.pool, UINT64_MAX), KVX_OK);
    m.filled = 1;
    steps(&m, n_steps);
    for (uint32_t c = 0; c < N_CLASSES; c++) /* every slot comes back */
        while (m.n_taken[c] > 0) {
            kvx_slot slot = m.taken[c][0];
            assert_int_equal(kvx_pool_give(m.pool, 1, &slot), KVX_OK);
            model_give(&m, slot);
        }
    while (m.n_pinned > 0)
        step_unpin(&m);
    check_counts(&m);
    assert_int_equal(m.n_free[0] + m.n_free[1] + m.n_free[2], 2540);
    model_close(&m);
}

static void steps_allocate_nothing(void **state)
{
    model m;
    (void)state;
    model_open(&m);
    assert_int_equal(kvx_pool_wait(m.pool, UINT64_MAX), KVX_OK);
    m.filled = 1;
    uint32_t n_threads = fake.n_threads;
    fake.counting = 1;
    steps(&m, 50000);
    fake.counting = 0;
    assert_int_equal(fake.allocations, 0);
    assert_int_equal(fake.n_threads, n_threads);
    model_close(&m);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_agree_with_the_model),
        cmocka_unit_test(steps_allocate_nothing),
    };
    if (argc > 1)
        n_steps = strtoull(argv[1], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
