/* SPDX-License-Identifier: Apache-2.0 */
/* The pool's books, without an engine: take, give, pins, generations, owners, counts, placement, limits, threads, fork.
 * Calls are wrapped for failures: getrandom, mmap, calloc. */
#include "cmocka_door.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvx.h"
#include "pool.h"

#define N_KEPT 64u
#define BIG 4096u /* slots of the class for placement */

static const char *fail = "";
static unsigned fail_after;
static int64_t mapped_bytes;

static int fails(const char *name)
{
    if (strcmp(fail, name) != 0)
        return 0;
    if (fail_after == 0)
        return 1;
    fail_after--;
    return 0;
}

ssize_t __real_getrandom(void *bytes, size_t n, unsigned flags);
ssize_t __wrap_getrandom(void *bytes, size_t n, unsigned flags);
ssize_t __wrap_getrandom(void *bytes, size_t n, unsigned flags)
{
    return fails("getrandom") ? -1 : __real_getrandom(bytes, n, flags);
}

void *__real_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset)
{
    if (fails("mmap")) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    void *memory = __real_mmap(at, bytes, protection, flags, file, offset);
    if (memory != MAP_FAILED && !(flags & MAP_FIXED))
        mapped_bytes += (int64_t)bytes;
    return memory;
}

int __real_munmap(void *at, size_t bytes);
int __wrap_munmap(void *at, size_t bytes);
int __wrap_munmap(void *at, size_t bytes)
{
    mapped_bytes -= (int64_t)bytes;
    return __real_munmap(at, bytes);
}

void *__real_calloc(size_t n, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes)
{
    return fails("calloc") ? NULL : __real_calloc(n, bytes);
}

/* Class 0 kept by the pool, 1 by the caller, 2 many small slots. */
static const kvx_slot_class classes[] = {{5000, N_KEPT, 4, 0}, {4096, 8, 0, 1}, {16384, BIG, 1, 0}};

static kvx_status make(const kvx_slot_class *given, uint32_t n, kvx_pool **pool)
{
    kvx_pool_config config = KVX_POOL_CONFIG_INIT;
    config.classes = given;
    config.n_classes = n;
    config.engine = KVX_ENGINE_CPU;
    return kvx_pool_create(&config, pool);
}

static int set_up(void **state)
{
    kvx_pool *pool = NULL;
    fail = "";
    mapped_bytes = 0;
    if (make(classes, 3, &pool) != KVX_OK)
        return -1;
    *state = pool;
    return 0;
}

static int tear_down(void **state)
{
    fail = "";
    return kvx_pool_destroy(*state) == KVX_OK && mapped_bytes == 0 ? 0 : -1;
}

static void expect_counts(kvx_pool *pool, uint64_t n_free, uint64_t n_used, uint64_t n_in_flight)
{
    uint64_t f, u, i;
    kvx_pool_counts(pool, &f, &u, &i);
    assert_int_equal(f, n_free + BIG);
    assert_int_equal(u, n_used);
    assert_int_equal(i, n_in_flight);
}

static kvx_status pin(kvx_pool *pool, uint32_t owner, uint32_t writing, kvx_slot slot, uint32_t *flat, uint8_t *refusal)
{
    kvx_pool_pin request = {owner, writing, 1, &slot, sizeof(slot), flat, refusal};
    return kvx_pool_pin_slots(pool, &request);
}

static void view_is_consistent(void **state)
{
    kvx_pool *pool = *state;
    const kvx_pool_view *view = kvx_pool_view_of(pool);
    void *bytes;
    uint64_t n_bytes;
    assert_int_equal(view->n_classes, 3);
    assert_int_equal(view->n_chunks, 3);
    assert_int_equal(view->pinned, 0);
    assert_int_equal(view->n_slots, N_KEPT + 8 + BIG);
    assert_int_equal(view->n_records, N_KEPT * 4 + 8 * 64 + BIG);
    assert_int_equal(view->bytes, (uint64_t)N_KEPT * 8192 + 8 * 4096 + (uint64_t)BIG * 16384);
    assert_int_equal(view->classes[0].slot_bytes, 8192);
    kvx_slot last = {1, 7, 0}, beyond = {1, 8, 0}, no_class = {3, 0, 0};
    assert_int_equal(kvx_pool_slot_bytes(pool, last, &bytes, &n_bytes), KVX_OK);
    assert_ptr_equal(bytes, view->chunks[1].host + 7 * 4096);
    assert_int_equal(n_bytes, 4096);
    assert_int_equal(((uint8_t *)bytes)[4095], 0);
    assert_int_equal(kvx_pool_slot_bytes(pool, beyond, &bytes, &n_bytes), KVX_INVALID);
    assert_int_equal(kvx_pool_slot_bytes(pool, no_class, &bytes, &n_bytes), KVX_INVALID);
}

static void takes_are_all_or_nothing(void **state)
{
    kvx_pool *pool = *state;
    kvx_slot slots[N_KEPT + 1], poison, more;
    uint8_t seen[N_KEPT] = {0};
    memset(&poison, 0x5a, sizeof(poison));
    slots[0] = poison;
    assert_int_equal(kvx_pool_take(pool, 0, N_KEPT + 1, slots), KVX_AGAIN);
    assert_memory_equal(&slots[0], &poison, sizeof(poison));
    expect_counts(pool, N_KEPT, 0, 0);
    assert_int_equal(kvx_pool_take(pool, 0, 0, NULL), KVX_OK);
    assert_int_equal(kvx_pool_take(pool, 0, 40, slots), KVX_OK);
    assert_int_equal(kvx_pool_take(pool, 0, 25, slots + 40), KVX_AGAIN);
    assert_int_equal(kvx_pool_take(pool, 0, 24, slots + 40), KVX_OK);
    assert_int_equal(kvx_pool_take(pool, 0, 1, &more), KVX_AGAIN);
    expect_counts(pool, 0, N_KEPT, 0);
    for (uint32_t i = 0; i < N_KEPT; i++)
        assert_int_equal(seen[slots[i].index]++, 0);
    assert_int_equal(kvx_pool_give(pool, N_KEPT, slots), KVX_OK);
    expect_counts(pool, N_KEPT, 0, 0);
}

static void gives_are_all_or_nothing(void **state)
{
    kvx_pool *pool = *state;
    kvx_slot slots[3];
    kvx_slot caller = {1, 0, 0}, beyond = {0, N_KEPT, 0};
    assert_int_equal(kvx_pool_take(pool, 0, 2, slots), KVX_OK);
    slots[2] = slots[0];
    assert_int_equal(kvx_pool_give(pool, 3, slots), KVX_INVALID); /* twice */
    slots[2] = caller;
    assert_int_equal(kvx_pool_give(pool, 3, slots), KVX_INVALID);
    slots[2] = beyond;
    assert_int_equal(kvx_pool_give(pool, 3, slots), KVX_INVALID);
    slots[2] = slots[1];
    slots[2].generation++;
    assert_int_equal(kvx_pool_give(pool, 1, &slots[2]), KVX_STALE);
    expect_counts(pool, N_KEPT - 2, 2, 0);
    assert_int_equal(kvx_pool_give(pool, 2, slots), KVX_OK);
    assert_int_equal(kvx_pool_give(pool, 1, slots), KVX_STALE); /* double give */
    expect_counts(pool, N_KEPT, 0, 0);
}

static void old_handles_are_stale(void **state)
{
    kvx_pool *pool = *state;
    kvx_slot old[N_KEPT], now[N_KEPT];
    uint32_t flat;
    uint8_t refusal = 0;
    assert_int_equal(kvx_pool_take(pool, 0, N_KEPT, old), KVX_OK);
    assert_int_equal(kvx_pool_give(pool, N_KEPT, old), KVX_OK);
    assert_int_equal(pin(pool, 1, 1, old[0], &flat, NULL), KVX_STALE);
    assert_int_equal(kvx_pool_take(pool, 0, N_KEPT, now), KVX_OK);
    assert_int_equal(kvx_pool_give(pool, 1, &old[0]), KVX_STALE);
    assert_int_equal(pin(pool, 1, 1, old[0], &flat, NULL), KVX_STALE);
    expect_counts(pool, 0, N_KEPT, 0);
    assert_int_equal(pin(pool, 1, 0, old[0], &flat, &refusal), KVX_OK);
    assert_int_equal(refusal, KVX_VERDICT_STALE);
    expect_counts(pool, 0, N_KEPT - 1, 1);
    kvx_pool_unpin(pool, 1, &flat);
    expect_counts(pool, 0, N_KEPT, 0);
}

static void pinned_slots_are_freed_later(void **state)
{
    kvx_pool *pool = *state;
    kvx_slot slots[N_KEPT], again;
    uint32_t flat[2];
    uint8_t refusal = 9;
    assert_int_equal(kvx_pool_take(pool, 0, N_KEPT, slots), KVX_OK);
    assert_int_equal(pin(pool, 1, 1, slots[3], &flat[0], NULL), KVX_OK);
    assert_int_equal(pin(pool, 1, 0, slots[3], &flat[1], &refusal), KVX_OK);
    assert_int_equal(refusal, 0);
    assert_int_equal(kvx_pool_give(pool, 1, &slots[3]), KVX_OK);
    expect_counts(pool, 0, N_KEPT - 1, 1);
    assert_int_equal(kvx_pool_give(pool, 1, &slots[3]), KVX_STALE);
    assert_int_equal(kvx_pool_take(pool, 0, 1, &again), KVX_AGAIN);
    kvx_pool_unpin(pool, 1, &flat[0]);
    assert_int_equal(kvx_pool_take(pool, 0, 1, &again), KVX_AGAIN);
    kvx_pool_unpin(pool, 1, &flat[1]);
    expect_counts(pool, 1, N_KEPT - 1, 0);
    assert_int_equal(kvx_pool_take(pool, 0, 1, &again), KVX_OK);
    assert_int_equal(again.index, slots[3].index);
    assert_int_not_equal(again.generation, slots[3].generation);
}

/* A restore under an old handle may pin a slot that is free, and that is taken meanwhile. */
static void free_slots_may_be_pinned(void **state)
{
    kvx_pool *pool = *state;
    kvx_slot slots[N_KEPT];
    uint32_t flat;
    uint8_t refusal;
    assert_int_equal(kvx_pool_take(pool, 0, N_KEPT, slots), KVX_OK);
    assert_int_equal(kvx_pool_give(pool, 1, slots), KVX_OK);
    assert_int_equal(pin(pool, 1, 0, slots[0], &flat, &refusal), KVX_OK);
    assert_int_equal(refusal, KVX_VERDICT_STALE);
    expect_counts(pool, 1, N_KEPT - 1, 0);
    assert_int_equal(kvx_pool_take(pool, 0, 1, slots), KVX_OK);
    expect_counts(pool, 0, N_KEPT - 1, 1);
    kvx_pool_unpin(pool, 1, &flat);
    expect_counts(pool, 0, N_KEPT, 0);
}

static void pins_are_all_or_nothing(void **state)
{
    kvx_pool *pool = *state;
    kvx_pair pairs[3];
    uint32_t flat[3];
    memset(pairs, 0, sizeof(pairs));
    assert_int_equal(kvx_pool_take(pool, 0, 1, &pairs[0].slot), KVX_OK);
    assert_int_equal(kvx_pool_take(pool, 0, 1, &pairs[1].slot), KVX_OK);
    pairs[2].slot = pairs[1].slot;
    pairs[2].slot.generation++;
    kvx_pool_pin request = {1, 1, 3, &pairs[0].slot, sizeof(kvx_pair), flat, NULL};
    assert_int_equal(kvx_pool_pin_slots(pool, &request), KVX_STALE);
    expect_counts(pool, N_KEPT - 2, 2, 0);
    pairs[2].slot.index = N_KEPT;
    assert_int_equal(kvx_pool_pin_slots(pool, &request), KVX_INVALID);
    expect_counts(pool, N_KEPT - 2, 2, 0);
    request.n = 2;
    assert_int_equal(kvx_pool_pin_slots(pool, &request), KVX_OK);
    assert_int_equal(flat[1], pairs[1].slot.index);
    expect_counts(pool, N_KEPT - 2, 0, 2);
    kvx_pool_unpin(pool, 2, flat);
}

static void foreign_slots_are_stale(void **state)
{
    kvx_pool *pool = *state;
    kvx_slot slot;
    uint32_t flat;
    uint8_t refusal;
    uint32_t a = kvx_pool_attach(pool), b = kvx_pool_attach(pool);
    assert_int_not_equal(a, b);
    assert_int_not_equal(a, 0);
    assert_int_equal(kvx_pool_take(pool, 0, 1, &slot), KVX_OK);
    assert_int_equal(pin(pool, b, 0, slot, &flat, &refusal), KVX_OK);
    assert_int_equal(refusal, 0); /* nobody stored */
    assert_int_equal(pin(pool, a, 1, slot, &flat, NULL), KVX_OK);
    assert_int_equal(pin(pool, b, 0, slot, &flat, &refusal), KVX_OK);
    assert_int_equal(refusal, KVX_VERDICT_STALE);
    for (int i = 0; i < 3; i++)
        kvx_pool_unpin(pool, 1, &flat);
    assert_int_equal(kvx_pool_destroy(pool), KVX_INVALID); /* contexts are attached */
    kvx_pool_detach(pool);
    kvx_pool_detach(pool);
    assert_true(kvx_pool_attach(pool) > b); /* never reused */
    kvx_pool_detach(pool);
}

/* A batch that was refused leaves pins and owner as they were. */
static void undone_pins_change_nothing(void **state)
{
    kvx_pool *pool = *state;
    kvx_slot slot = {1, 3, 9};
    uint32_t flat;
    uint8_t refusal;
    kvx_pool_pin refused = {2, 1, 1, &slot, sizeof(slot), &flat, NULL};
    assert_int_equal(pin(pool, 1, 1, slot, &flat, NULL), KVX_OK);
    kvx_pool_unpin(pool, 1, &flat);
    assert_int_equal(kvx_pool_pin_slots(pool, &refused), KVX_OK);
    kvx_pool_pin_undo(pool, &refused);
    assert_int_equal(pin(pool, 1, 0, slot, &flat, &refusal), KVX_OK);
    assert_int_equal(refusal, 0); /* still context 1's block */
    kvx_pool_unpin(pool, 1, &flat);
    assert_int_equal(pin(pool, 2, 0, slot, &flat, &refusal), KVX_OK);
    assert_int_equal(refusal, KVX_VERDICT_STALE);
    kvx_pool_unpin(pool, 1, &flat);
}

static void caller_keeps_class_1(void **state)
{
    kvx_pool *pool = *state;
    kvx_slot slot = {1, 7, 12345}, beyond = {1, 8, 0};
    uint32_t flat;
    uint8_t refusal;
    assert_int_equal(kvx_pool_take(pool, 1, 1, &slot), KVX_INVALID);
    assert_int_equal(kvx_pool_give(pool, 1, &slot), KVX_INVALID);
    assert_int_equal(pin(pool, 1, 1, beyond, &flat, NULL), KVX_INVALID);
    assert_int_equal(pin(pool, 1, 1, slot, &flat, NULL), KVX_OK);
    assert_int_equal(flat, N_KEPT + 7);
    slot.generation = 1;
    assert_int_equal(pin(pool, 1, 0, slot, &flat, &refusal), KVX_OK);
    assert_int_equal(refusal, 0); /* the generation is the engine's to compare */
    expect_counts(pool, N_KEPT, 0, 0);
    kvx_pool_unpin(pool, 1, &flat);
    kvx_pool_unpin(pool, 1, &flat);
    expect_counts(pool, N_KEPT, 0, 0);
}

/* Groups of class 2 are 128 slots: of 1024 taken at once at most about one neighbour in 100 may be apart. */
static void runs_are_long_and_random(void **state)
{
    kvx_pool *pool = *state;
    kvx_slot *slots = calloc(BIG, sizeof(*slots));
    uint32_t adjacent = 0, first[8], repeats = 0;
    assert_non_null(slots);
    assert_int_equal(kvx_pool_take(pool, 2, 1024, slots), KVX_OK);
    for (uint32_t i = 1; i < 1024; i++)
        adjacent += slots[i].index == slots[i - 1].index + 1;
    assert_in_range(adjacent, 990, 1023);
    assert_int_equal(kvx_pool_give(pool, 1024, slots), KVX_OK);
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(kvx_pool_take(pool, 2, 1, slots), KVX_OK);
        first[i] = slots[0].index;
        for (uint32_t j = 0; j < i; j++)
            repeats += first[j] == first[i];
        assert_int_equal(kvx_pool_give(pool, 1, slots), KVX_OK);
    }
    assert_in_range(repeats, 0, 3);
    assert_int_equal(kvx_pool_take(pool, 2, BIG, slots), KVX_OK);
    assert_int_equal(kvx_pool_give(pool, BIG, slots), KVX_OK);
    free(slots);
}

static void *hammer(void *argument)
{
    kvx_pool *pool = argument;
    kvx_slot slots[12];
    uint32_t flat[12];
    kvx_pool_pin request = {1, 1, 12, slots, sizeof(slots[0]), flat, NULL};
    for (int round = 0; round < 2000; round++) {
        uint64_t f, u, i;
        kvx_pool_counts(pool, &f, &u, &i);
        if (f + u + i != N_KEPT + BIG)
            return NULL;
        kvx_status status = kvx_pool_take(pool, 0, 12, slots);
        if (status == KVX_AGAIN)
            continue;
        if (status != KVX_OK || kvx_pool_pin_slots(pool, &request) != KVX_OK ||
            kvx_pool_give(pool, 12, slots) != KVX_OK)
            return NULL;
        kvx_pool_unpin(pool, 12, flat);
    }
    return pool;
}

static void threads_keep_the_sum(void **state)
{
    pthread_t threads[8];
    void *result;
    for (int i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, hammer, *state), 0);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_ptr_equal(result, *state);
    }
    expect_counts(*state, N_KEPT, 0, 0);
}

static void children_get_forked(void **state)
{
    kvx_pool *pool = *state;
    kvx_slot slot = {0, 0, 0};
    void *bytes;
    uint64_t n;
    int ended;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(!(kvx_pool_take(pool, 0, 1, &slot) == KVX_FORKED && kvx_pool_give(pool, 1, &slot) == KVX_FORKED &&
                kvx_pool_slot_bytes(pool, slot, &bytes, &n) == KVX_FORKED && kvx_pool_destroy(pool) == KVX_FORKED &&
                kvx_pool_alive(pool) == KVX_FORKED));
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended));
    assert_int_equal(WEXITSTATUS(ended), 0);
    assert_int_equal(kvx_pool_take(pool, 0, 1, &slot), KVX_OK);
}

static void refuse(kvx_slot_class class, kvx_status wanted)
{
    kvx_pool *pool = NULL;
    assert_int_equal(make(&class, 1, &pool), wanted);
    assert_null(pool);
    assert_string_not_equal(kvx_last_error(), "");
}

static void limits(void **state)
{
    kvx_slot_class many[KVX_CLASSES_MAX + 1];
    kvx_pool *pool = NULL;
    (void)state;
    mapped_bytes = 0;
    for (uint32_t i = 0; i <= KVX_CLASSES_MAX; i++)
        many[i] = (kvx_slot_class){4096, 1, 1, 0};
    assert_int_equal(make(many, KVX_CLASSES_MAX + 1, &pool), KVX_INVALID);
    assert_int_equal(make(many, 0, &pool), KVX_INVALID);
    assert_int_equal(make(NULL, 1, &pool), KVX_INVALID);
    assert_int_equal(kvx_pool_create(NULL, &pool), KVX_INVALID);
    many[0].n_slots = KVX_SLOTS_MAX;
    assert_int_equal(make(many, 2, &pool), KVX_INVALID);
    refuse((kvx_slot_class){0, 1, 1, 0}, KVX_INVALID);
    refuse((kvx_slot_class){4096, 0, 1, 0}, KVX_INVALID);
    refuse((kvx_slot_class){KVX_SLOT_BYTES_MAX + 1ull, 1, 1, 0}, KVX_INVALID);
    refuse((kvx_slot_class){UINT64_MAX, 1, 1, 0}, KVX_INVALID);
    refuse((kvx_slot_class){4096, 1, KVX_UNITS_MAX + 1, 0}, KVX_INVALID);
    refuse((kvx_slot_class){4096, KVX_SLOTS_MAX + 1u, 1, 0}, KVX_INVALID);
    refuse((kvx_slot_class){KVX_SLOT_BYTES_MAX, KVX_SLOTS_MAX, 1, 0}, KVX_NO_MEMORY);
    refuse((kvx_slot_class){KVX_SLOT_BYTES_MAX, 1u << 17, 1, 0}, KVX_NO_MEMORY); /* 8 TiB */
    many[0].n_slots = 1;
    assert_int_equal(make(many, KVX_CLASSES_MAX, &pool), KVX_OK);
    assert_int_equal(kvx_pool_destroy(pool), KVX_OK);
    assert_int_equal(kvx_pool_destroy(NULL), KVX_OK);
    assert_int_equal(mapped_bytes, 0);
}

/* Every allocation, map and draw of a create fails once. */
static void failures_leave_nothing(void **state)
{
    static const char *const calls[] = {"calloc", "mmap", "getrandom"};
    static const unsigned n_calls[] = {10, 3, 1};
    (void)state;
    mapped_bytes = 0;
    for (size_t c = 0; c < 3; c++)
        for (unsigned after = 0; after < n_calls[c]; after++) {
            kvx_pool *pool = NULL;
            fail_after = after;
            fail = calls[c];
            kvx_status status = make(classes, 3, &pool);
            fail = "";
            assert_int_equal(status, c == 2 ? KVX_INTERNAL : KVX_NO_MEMORY);
            assert_null(pool);
            assert_int_equal(mapped_bytes, 0);
        }
}

#define WITH_POOL(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_POOL(view_is_consistent),
        WITH_POOL(takes_are_all_or_nothing),
        WITH_POOL(gives_are_all_or_nothing),
        WITH_POOL(old_handles_are_stale),
        WITH_POOL(pinned_slots_are_freed_later),
        WITH_POOL(free_slots_may_be_pinned),
        WITH_POOL(pins_are_all_or_nothing),
        WITH_POOL(foreign_slots_are_stale),
        WITH_POOL(undone_pins_change_nothing),
        WITH_POOL(caller_keeps_class_1),
        WITH_POOL(runs_are_long_and_random),
        WITH_POOL(threads_keep_the_sum),
        WITH_POOL(children_get_forked),
        cmocka_unit_test(limits),
        cmocka_unit_test(failures_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
