/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/state.h by itself: the slot state machine against a model in every interleaving of two stores and a discard,
 * the checks of a restore, result words, the sequence counter. The very functions that the GPU runs. */
#include "cmocka_door.h"

#include <pthread.h>
#include <string.h>

#include "../kernels/state.h"

/* ------------------------------------------------------------------------------------------------- interleavings */

#define N_UNITS 2
#define STORE_STEPS (2 * N_UNITS + 1) /* claim and record per unit, commit */

/* A store or a discard as a sequence of steps that anything may come between. */
typedef struct actor {
    uint64_t id;
    int is_store;
    uint32_t failed; /* verdict of a unit that could not be sealed, or OK */
    uint32_t step, verdict, claimed;
} actor;

/* The state machine in other words: who holds the slot, and how. */
typedef struct model {
    uint64_t id;
    uint32_t state;
    uint64_t records[N_UNITS];
} model;

typedef struct world {
    kvx_header header;
    kvx_record records[N_UNITS];
    model model;
    actor actors[3];
} world;

static uint32_t model_claim(model *m, uint64_t id, uint32_t state)
{
    if (id > m->id) {
        m->id = id;
        m->state = state;
        return KVX_VERDICT_OK;
    }
    return m->id == id && m->state == state ? KVX_VERDICT_OK : KVX_VERDICT_SUPERSEDED;
}

static uint32_t model_commit(model *m, uint64_t id, uint32_t verdict)
{
    const int holds = m->id == id && m->state == KVX_SLOT_WRITING;
    for (uint32_t i = 0; i < N_UNITS && verdict == KVX_VERDICT_OK; i++)
        if (m->records[i] != id)
            verdict = KVX_VERDICT_SUPERSEDED;
    if (holds) {
        m->state = verdict == KVX_VERDICT_OK ? KVX_SLOT_VALID : KVX_SLOT_EMPTY;
        m->id += verdict != KVX_VERDICT_OK;
    }
    return holds || verdict != KVX_VERDICT_OK ? verdict : KVX_VERDICT_SUPERSEDED;
}

static kvx_header description_of(uint64_t id)
{
    kvx_header header;
    memset(&header, 0, sizeof header);
    header.fingerprint = id * 3;
    header.tenant = (uint32_t)id + 100;
    header.generation = (uint32_t)id + 200;
    header.key_slot = (uint32_t)id + 300;
    header.key_generation = (uint32_t)id + 400;
    header.n_units = N_UNITS;
    return header;
}

static uint32_t n_steps(const actor *a)
{
    return a->is_store ? STORE_STEPS : 1;
}

static void step_store(world *w, actor *a)
{
    const uint32_t unit = a->step / 2;
    if (a->step == STORE_STEPS - 1) {
        const uint32_t worst = a->claimed == (1u << N_UNITS) - 1 ? a->failed : KVX_VERDICT_SUPERSEDED;
        const kvx_header description = description_of(a->id);
        a->verdict = kvx_slot_commit(&w->header, w->records, a->id, worst, &description);
        assert_int_equal(a->verdict, model_commit(&w->model, a->id, worst));
    } else if (a->step % 2 == 0) {
        const uint32_t verdict = kvx_slot_claim(&w->header, a->id);
        assert_int_equal(verdict, model_claim(&w->model, a->id, KVX_SLOT_WRITING));
        a->claimed |= (verdict == KVX_VERDICT_OK ? 1u : 0u) << unit;
    } else if (a->claimed & 1u << unit && a->failed == KVX_VERDICT_OK) {
        w->records[unit].store_id = w->model.records[unit] = a->id;
    }
}

static void step_discard(world *w, actor *a)
{
    a->verdict = kvx_slot_discard(&w->header, a->id);
    assert_int_equal(a->verdict, model_claim(&w->model, a->id, KVX_SLOT_EMPTY));
}

/* What a restore may see now. */
static void check_world(const world *w, uint64_t word_before)
{
    const uint64_t word = w->header.word;
    kvx_header wanted = description_of(w->model.id);
    assert_true(word >= word_before);
    assert_int_equal(kvx_word_id(word), w->model.id);
    assert_int_equal(kvx_word_state(word), w->model.state);
    const uint32_t verdict = kvx_slot_check(&w->header, word, &wanted);
    assert_int_equal(verdict, w->model.state == KVX_SLOT_VALID     ? KVX_VERDICT_OK
                              : w->model.state == KVX_SLOT_WRITING ? KVX_VERDICT_BUSY
                                                                   : KVX_VERDICT_MISS);
    if (verdict != KVX_VERDICT_OK)
        return;
    for (uint32_t i = 0; i < 3; i++) /* only a store that was told OK made it so */
        if (w->actors[i].id == kvx_word_id(word))
            assert_int_equal(w->actors[i].verdict, KVX_VERDICT_OK);
}

/* At the end the newest event stands: nothing older is left behind. */
static void check_end(const world *w)
{
    const actor *newest = &w->actors[0];
    for (uint32_t i = 1; i < 3; i++)
        if (w->actors[i].id > newest->id)
            newest = &w->actors[i];
    assert_int_equal(w->model.id / 2, newest->id / 2);
    if (!newest->is_store)
        assert_int_equal(w->model.state, KVX_SLOT_EMPTY);
    else
        assert_int_equal(w->model.state == KVX_SLOT_VALID, newest->verdict == KVX_VERDICT_OK);
}

static uint64_t run_all(const world *w)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < 3; i++) {
        world next = *w;
        actor *a = &next.actors[i];
        if (a->step == n_steps(a))
            continue;
        if (a->is_store)
            step_store(&next, a);
        else
            step_discard(&next, a);
        a->step++;
        check_world(&next, w->header.word);
        n += run_all(&next);
    }
    if (n == 0) {
        check_end(w);
        return 1;
    }
    return n;
}

static void every_interleaving(void **state)
{
    static const uint64_t ids[6][3] = {{2, 4, 6}, {2, 6, 4}, {4, 2, 6}, {4, 6, 2}, {6, 2, 4}, {6, 4, 2}};
    static const uint32_t failures[3] = {KVX_VERDICT_OK, KVX_VERDICT_EXHAUSTED, KVX_VERDICT_LATCHED};
    (void)state;
    for (uint32_t order = 0; order < 6; order++)
        for (uint32_t k = 0; k < 3; k++) {
            world w;
            memset(&w, 0, sizeof w);
            for (uint32_t i = 0; i < 3; i++) {
                w.actors[i].id = ids[order][i];
                w.actors[i].is_store = i < 2;
                w.actors[i].failed = i == 0 ? failures[k] : KVX_VERDICT_OK;
            }
            assert_int_equal(run_all(&w), 11 * 252); /* 11! / (5! 5! 1!) */
        }
}

/* ------------------------------------------------------------------------------------------------ restore's checks */

static void check_tells_what_is_wrong(void **state)
{
    static const uint32_t states[4] = {KVX_SLOT_EMPTY, KVX_SLOT_WRITING, KVX_SLOT_COMMITTING, KVX_SLOT_VALID};
    static const uint32_t verdicts[4] = {KVX_VERDICT_MISS, KVX_VERDICT_BUSY, KVX_VERDICT_BUSY, KVX_VERDICT_OK};
    kvx_header header = description_of(8), wanted = description_of(8);
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        header.word = kvx_word(8, states[i]);
        assert_int_equal(kvx_slot_check(&header, header.word, &wanted), verdicts[i]);
    }
    wanted.tenant++;
    assert_int_equal(kvx_slot_check(&header, header.word, &wanted), KVX_VERDICT_REFUSED);
    wanted.generation++; /* a stranger is not told more */
    assert_int_equal(kvx_slot_check(&header, header.word, &wanted), KVX_VERDICT_REFUSED);
    wanted = description_of(8);
    wanted.fingerprint ^= 1ull << 63;
    assert_int_equal(kvx_slot_check(&header, header.word, &wanted), KVX_VERDICT_REFUSED);
    wanted = description_of(8);
    wanted.n_units++;
    assert_int_equal(kvx_slot_check(&header, header.word, &wanted), KVX_VERDICT_REFUSED);
    wanted = description_of(8);
    wanted.generation--;
    assert_int_equal(kvx_slot_check(&header, header.word, &wanted), KVX_VERDICT_STALE);
}

static void words_hold_ids_up_to_the_limit(void **state)
{
    static const uint64_t ids[] = {0, 1, 2, 255, 256, 1ull << 32, KVX_STORE_ID_LIMIT - 1, KVX_STORE_ID_LIMIT};
    (void)state;
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++)
        for (uint32_t s = KVX_SLOT_EMPTY; s <= KVX_SLOT_VALID; s++) {
            assert_true(kvx_word_id(kvx_word(ids[i], s)) == ids[i]);
            assert_int_equal(kvx_word_state(kvx_word(ids[i], s)), s);
            assert_true(i == 0 || kvx_word(ids[i], KVX_SLOT_EMPTY) > kvx_word(ids[i - 1], KVX_SLOT_VALID));
        }
}

/* -------------------------------------------------------------------------------------------------- result words */

static void result_words_cannot_be_altered(void **state)
{
    const uint64_t key[2] = {0x0706050403020100u, 0x0f0e0d0c0b0a0908u}, other[2] = {key[0], key[1] ^ 1};
    static const uint32_t indices[] = {0, 1, 255, 65535, KVX_RESULT_RELEASED};
    (void)state;
    for (uint64_t ticket = 1; ticket < 1ull << 40; ticket = ticket * 77 + 5)
        for (size_t k = 0; k < 5; k++)
            for (uint32_t verdict = KVX_VERDICT_OK; verdict <= KVX_VERDICT_FAULT; verdict++) {
                const uint64_t word = kvx_result_word(key, ticket, indices[k], verdict);
                assert_int_equal(kvx_result_read(key, ticket, indices[k], word), verdict);
                for (uint32_t bit = 0; bit < 64; bit++)
                    assert_int_equal(kvx_result_read(key, ticket, indices[k], word ^ 1ull << bit), KVX_VERDICT_NONE);
                assert_int_equal(kvx_result_read(key, ticket + 1, indices[k], word), KVX_VERDICT_NONE);
                assert_int_equal(kvx_result_read(key, ticket ^ 1ull << 63, indices[k], word), KVX_VERDICT_NONE);
                assert_int_equal(kvx_result_read(key, ticket, indices[k] ^ 1, word), KVX_VERDICT_NONE);
                assert_int_equal(kvx_result_read(other, ticket, indices[k], word), KVX_VERDICT_NONE);
            }
    const uint64_t none = kvx_result_word(key, 5, 6, KVX_VERDICT_NONE); /* a right MAC over "not yet" says not yet */
    assert_int_equal(kvx_result_read(key, 5, 6, none), KVX_VERDICT_NONE);
    assert_int_equal(kvx_result_read(key, 5, 6, 0), KVX_VERDICT_NONE);
    assert_int_equal(kvx_result_read(key, 5, 6, UINT64_MAX), KVX_VERDICT_NONE);
}

/* --------------------------------------------------------------------------------------------- counters and limits */

static void sequence_ends_for_good(void **state)
{
    kvx_dev_words words;
    uint64_t drawn = 0;
    (void)state;
    memset(&words, 0, sizeof words);
    for (uint64_t i = 0; i < 10; i++) {
        assert_int_not_equal(kvx_sequence_draw(&words, &drawn), 0);
        assert_true(drawn == i);
    }
    words.sequence = KVX_SEQUENCE_LIMIT - 1;
    assert_int_not_equal(kvx_sequence_draw(&words, &drawn), 0);
    assert_true(drawn == KVX_SEQUENCE_LIMIT - 1);
    for (uint32_t i = 0; i < 1000; i++)
        assert_int_equal(kvx_sequence_draw(&words, &drawn), 0);
    assert_true(words.sequence == KVX_SEQUENCE_LIMIT + 1000);
}

static void tampering_latches_after_the_budget(void **state)
{
    (void)state;
    for (uint32_t budget = 0; budget < 5; budget++) {
        kvx_dev_words words;
        memset(&words, 0, sizeof words);
        words.tamper_budget = budget;
        for (uint32_t i = 0; i < budget; i++) {
            kvx_tamper_count(&words);
            assert_int_equal(words.latch, 0);
        }
        kvx_tamper_count(&words);
        assert_int_equal(words.latch, 1);
        kvx_tamper_count(&words);
        assert_int_equal(words.latch, 1);
        assert_int_equal(words.tampered, budget + 2);
    }
}

static void entries_keep_the_first_failure(void **state)
{
    kvx_entry entry = {0, KVX_VERDICT_NONE};
    (void)state;
    kvx_entry_note(&entry, KVX_VERDICT_OK);
    assert_int_equal(entry.verdict, KVX_VERDICT_NONE);
    assert_int_equal(kvx_entry_done(&entry, 3), 0);
    kvx_entry_note(&entry, KVX_VERDICT_TAMPERED);
    assert_int_equal(kvx_entry_done(&entry, 3), 0);
    kvx_entry_note(&entry, KVX_VERDICT_LATCHED);
    assert_int_equal(entry.verdict, KVX_VERDICT_TAMPERED);
    assert_int_not_equal(kvx_entry_done(&entry, 3), 0);
}

/* --------------------------------------------------------------------------------------------------------- threads */

#define N_THREADS 4
#define N_ROUNDS 20000u

typedef struct arena {
    kvx_header header;
    kvx_record records[N_THREADS][N_UNITS]; /* own records: what is tested is the word */
    kvx_dev_words words;
    uint64_t next_id;
    uint64_t n_wrong, n_valid;
} arena;

typedef struct contender {
    arena *arena;
    uint32_t index;
} contender;

/* Stores and discards as fast as they go; ids from one counter, so the word must never go back. */
static void *contend(void *arg)
{
    const contender *self = arg;
    arena *a = self->arena;
    kvx_record *records = a->records[self->index];
    uint64_t last_word = 0, last_drawn = 0, n_wrong = 0, n_valid = 0;
    for (uint32_t i = 0; i < N_ROUNDS; i++) {
        const uint64_t id = kvx_atomic_add_u64(&a->next_id, 2);
        const kvx_header description = description_of(id);
        uint64_t drawn, word;
        n_wrong += !kvx_sequence_draw(&a->words, &drawn) || (i > 0 && drawn <= last_drawn);
        last_drawn = drawn;
        if (i % 4 == 3) {
            (void)kvx_slot_discard(&a->header, id);
        } else {
            for (uint32_t k = 0; k < N_UNITS; k++)
                records[k].store_id = kvx_slot_claim(&a->header, id) == KVX_VERDICT_OK ? id : 0;
            n_valid += kvx_slot_commit(&a->header, records, id, KVX_VERDICT_OK, &description) == KVX_VERDICT_OK;
        }
        word = kvx_load_acquire_u64(&a->header.word);
        n_wrong += word < last_word || kvx_word_id(word) < id;
        last_word = word;
    }
    (void)kvx_atomic_add_u64(&a->n_wrong, n_wrong);
    (void)kvx_atomic_add_u64(&a->n_valid, n_valid);
    return NULL;
}

static void words_grow_under_contention(void **state)
{
    static arena a;
    contender contenders[N_THREADS];
    pthread_t threads[N_THREADS];
    (void)state;
    memset(&a, 0, sizeof a);
    a.next_id = 2;
    for (uint32_t i = 0; i < N_THREADS; i++) {
        contenders[i] = (contender){&a, i};
        assert_int_equal(pthread_create(&threads[i], NULL, contend, &contenders[i]), 0);
    }
    for (uint32_t i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_true(a.n_wrong == 0);
    assert_true(a.n_valid > 0);
    assert_true(a.words.sequence == (uint64_t)N_THREADS * N_ROUNDS);
    const uint64_t word = a.header.word, id = kvx_word_id(word);
    assert_int_not_equal(kvx_word_state(word), KVX_SLOT_COMMITTING);
    if (kvx_word_state(word) == KVX_SLOT_VALID) {
        kvx_header wanted = description_of(id);
        assert_int_equal(kvx_slot_check(&a.header, word, &wanted), KVX_VERDICT_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_interleaving),
        cmocka_unit_test(check_tells_what_is_wrong),
        cmocka_unit_test(words_hold_ids_up_to_the_limit),
        cmocka_unit_test(result_words_cannot_be_altered),
        cmocka_unit_test(sequence_ends_for_good),
        cmocka_unit_test(tampering_latches_after_the_budget),
        cmocka_unit_test(entries_keep_the_first_failure),
        cmocka_unit_test(words_grow_under_contention),
    };
    return cmocka_run_group_tests_name("kernels: state.h", tests, NULL, NULL);
}
