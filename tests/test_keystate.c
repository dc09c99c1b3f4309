/* SPDX-License-Identifier: Apache-2.0 */
/* The state machine of key slots. A small world of three slots and one tenant with tiny limits is driven through every
 * sequence of operations up to a depth; then one more operation runs while, at each of its steps in turn, every other
 * operation comes in between. A model knows who holds what and says what may never be. */
#include "cmocka_door.h"

#include <string.h>

static void step(void);
#define KVX_KEY_STEP() step()
#include "../kernels/keystate.h"

#define N_SLOTS 3u
#define HARD 8u
#define N_HELD 12u

typedef struct world {
    kvx_key_state keys[N_SLOTS];
    kvx_tenant_keys tenant;
    kvx_dev_words limits;
    /* the model */
    uint32_t generations[N_SLOTS]; /* of the newest key put in */
    uint32_t is_dead[N_SLOTS];     /* the newest key was killed */
    uint64_t granted[N_SLOTS];     /* to the newest key */
    uint64_t held[N_HELD], entered[N_HELD];
    uint32_t n_held, n_entered, closed;
} world;

static world w;
static uint64_t soft_limit = 4;
static unsigned long n_checked;

/* ------------------------------------------------------------------------------------------------ who comes between */

static void run(int op);
static int intruder = -1, intrude_at, n_steps, inside;

static void step(void)
{
    int op = intruder;
    if (inside || op < 0 || n_steps++ != intrude_at)
        return;
    inside = 1;
    run(op);
    inside = 0;
}

/* ------------------------------------------------------------------------------------------------------- operations */

static uint32_t count(const uint64_t *refs, uint32_t n, uint64_t ref)
{
    uint32_t i, found = 0;
    for (i = 0; i < n; i++)
        found += refs[i] == ref;
    return found;
}

static uint32_t slot_is_free(uint32_t slot)
{
    const uint64_t ref = kvx_key_ref(slot, w.generations[slot]);
    return kvx_key_word_state(w.keys[slot].word) == KVX_KEY_STATE_DEAD && kvx_key_is_idle(&w.keys[slot]) &&
           count(w.held, w.n_held, ref) == 0;
}

/* As the host does it: a next key once the tenant has moved on. */
static void put_in_next(void)
{
    uint32_t slot;
    if (w.closed || w.tenant.next != w.tenant.current)
        return;
    for (slot = 0; slot < N_SLOTS && !slot_is_free(slot); slot++)
        ;
    if (slot == N_SLOTS)
        return;
    w.granted[slot] = 0;
    w.is_dead[slot] = 0;
    kvx_key_start(&w.keys[slot], ++w.generations[slot], KVX_KEY_STATE_LIVE);
    kvx_store_release_u64(&w.tenant.next, kvx_key_ref(slot, w.generations[slot]));
}

static void choose(uint64_t cost)
{
    uint64_t ref = 0;
    const uint32_t was_closed = w.closed;
    uint32_t dead[N_SLOTS], generations[N_SLOTS], verdict, slot;
    memcpy(dead, w.is_dead, sizeof dead);
    memcpy(generations, w.generations, sizeof generations);
    if (w.n_held + 2 >= N_HELD)
        return;
    verdict = kvx_key_choose(&w.tenant, w.keys, N_SLOTS, &w.limits, cost, &ref);
    if (verdict != KVX_VERDICT_OK) {
        assert_true(verdict == KVX_VERDICT_REFUSED || verdict == KVX_VERDICT_EXHAUSTED);
        assert_true(!was_closed || cost > HARD || verdict == KVX_VERDICT_REFUSED);
        if (verdict == KVX_VERDICT_EXHAUSTED && cost <= HARD && intruder < 0) /* there was nothing to move on to */
            assert_true(w.tenant.next == w.tenant.current || w.is_dead[kvx_key_ref_slot(w.tenant.next)]);
        return;
    }
    assert_false(was_closed);
    slot = kvx_key_ref_slot(ref);
    assert_true(slot < N_SLOTS);
    assert_false(dead[slot] && generations[slot] == kvx_key_ref_generation(ref)); /* it was dead when we came */
    if (kvx_key_ref_generation(ref) == w.generations[slot]) {
        w.granted[slot] += cost;
        assert_true(w.granted[slot] <= HARD);
    }
    w.held[w.n_held++] = ref;
}

static void release(void)
{
    if (w.n_held == 0)
        return;
    w.n_held--;
    kvx_key_release(&w.keys[kvx_key_ref_slot(w.held[w.n_held])]);
}

/* A unit of the block that chose last, or of the current key. */
static void enter(void)
{
    const uint64_t ref = w.n_held ? w.held[w.n_held - 1] : w.tenant.current;
    const uint32_t slot = kvx_key_ref_slot(ref);
    uint32_t was_dead;
    if (ref == 0 || w.n_entered + 2 >= N_HELD)
        return;
    was_dead = w.is_dead[slot] || w.generations[slot] != kvx_key_ref_generation(ref);
    if (!kvx_key_enter(&w.keys[slot], kvx_key_ref_generation(ref)))
        return;
    assert_false(was_dead);
    w.entered[w.n_entered++] = ref;
}

static void leave(void)
{
    if (w.n_entered == 0)
        return;
    w.n_entered--;
    kvx_key_leave(&w.keys[kvx_key_ref_slot(w.entered[w.n_entered])]);
}

static void move(void)
{
    (void)kvx_tenant_move(&w.tenant, w.keys, N_SLOTS, w.tenant.current);
}

/* Erases what may be erased: after the mark, idle means that nobody is in, whatever happened between. */
static void erase(uint32_t slot)
{
    const uint32_t generation = w.generations[slot];
    if (generation == 0)
        return;
    kvx_key_kill(&w.keys[slot], generation);
    if (w.generations[slot] != generation)
        return;
    w.is_dead[slot] = 1;
    if (kvx_key_is_idle(&w.keys[slot]))
        assert_int_equal(count(w.entered, w.n_entered, kvx_key_ref(slot, generation)), 0);
    assert_false(kvx_key_is_there(&w.keys[slot], generation));
}

static void retire(void)
{
    uint32_t slot;
    for (slot = 0; slot < N_SLOTS; slot++)
        if (w.generations[slot] && kvx_key_is_left(&w.keys[slot], w.generations[slot])) {
            assert_int_equal(count(w.held, w.n_held, kvx_key_ref(slot, w.generations[slot])), 0);
            if (!inside) /* what holds it in the middle of a step is not in the model yet */
                erase(slot);
        }
}

static void close_tenant(void)
{
    kvx_store_release_u64(&w.tenant.next, 0);
    kvx_store_release_u64(&w.tenant.current, 0);
    w.closed = 1;
}

enum {
    PUT_IN,
    CHOOSE_1,
    CHOOSE_3,
    CHOOSE_7,
    CHOOSE_9,
    RELEASE,
    ENTER,
    LEAVE,
    MOVE,
    ERASE_0,
    ERASE_1,
    RETIRE,
    CLOSE,
    N_OPS
};

static void run(int op)
{
    static const uint64_t costs[] = {1, 3, 7, 9};
    switch (op) {
    case PUT_IN:
        put_in_next();
        break;
    case CHOOSE_1:
    case CHOOSE_3:
    case CHOOSE_7:
    case CHOOSE_9:
        choose(costs[op - CHOOSE_1]);
        break;
    case RELEASE:
        release();
        break;
    case ENTER:
        enter();
        break;
    case LEAVE:
        leave();
        break;
    case MOVE:
        move();
        break;
    case ERASE_0:
    case ERASE_1:
        erase((uint32_t)(op - ERASE_0));
        break;
    case RETIRE:
        retire();
        break;
    default:
        close_tenant();
        break;
    }
}

/* ------------------------------------------------------------------------------------------------------- invariants */

static void check(void)
{
    uint32_t slot, in_use = 0, holders = 0;
    for (slot = 0; slot < N_SLOTS; slot++) {
        const uint32_t state = kvx_key_word_state(w.keys[slot].word);
        in_use += w.keys[slot].in_use;
        holders += w.keys[slot].holders;
        assert_true(w.keys[slot].spent < 4 * HARD);
        assert_int_equal(kvx_key_word_generation(w.keys[slot].word), w.generations[slot]);
        assert_true(!w.is_dead[slot] || state == KVX_KEY_STATE_DEAD);
    }
    assert_int_equal(in_use, w.n_entered);
    assert_int_equal(holders, w.n_held);
    assert_true(!w.closed || w.tenant.current == 0);
    n_checked++;
}

static void begin(void)
{
    memset(&w, 0, sizeof w);
    w.limits.key_soft_limit = soft_limit;
    w.limits.key_hard_limit = HARD;
    w.generations[0] = w.generations[1] = 1;
    kvx_key_start(&w.keys[0], 1, KVX_KEY_STATE_LIVE);
    kvx_key_start(&w.keys[1], 1, KVX_KEY_STATE_LIVE);
    w.tenant.current = kvx_key_ref(0, 1);
    w.tenant.next = kvx_key_ref(1, 1);
}

static void run_prefix(const int *ops, int n)
{
    int i;
    intruder = -1;
    begin();
    for (i = 0; i < n; i++) {
        run(ops[i]);
        check();
    }
}

/* Every operation, with every other one at each of its steps. */
static void run_interrupted(const int *prefix, int n)
{
    int op, other, at;
    for (op = 0; op < N_OPS; op++)
        for (other = 0; other < N_OPS; other++)
            for (at = 0;; at++) {
                run_prefix(prefix, n);
                intruder = other;
                intrude_at = at;
                n_steps = 0;
                run(op);
                intruder = -1;
                if (n_steps <= at)
                    break; /* it has no such step */
                check();
            }
}

static void every_sequence(uint64_t soft)
{
    enum { DEPTH = 4 };
    int ops[DEPTH] = {0}, depth, i;
    soft_limit = soft;
    for (depth = 0; depth <= DEPTH; depth++) {
        memset(ops, 0, sizeof ops);
        do {
            if (depth < DEPTH)
                run_interrupted(ops, depth);
            else
                run_prefix(ops, depth);
            for (i = 0; i < depth && ++ops[i] == N_OPS; i++)
                ops[i] = 0;
        } while (i < depth);
    }
}

static void every_sequence_soft(void **state)
{
    (void)state;
    every_sequence(4);
    print_message("%lu states checked\n", n_checked);
    assert_true(n_checked > 1000000);
}

static void every_sequence_soft_is_hard(void **state)
{
    (void)state;
    every_sequence(HARD);
    soft_limit = 4;
}

/* With a next key in place there is always room. */
static void next_key_takes_over(void **state)
{
    uint64_t ref, total = 0;
    uint32_t i;
    (void)state;
    intruder = -1;
    begin();
    for (i = 0; i < 10000; i++) {
        assert_int_equal(kvx_key_choose(&w.tenant, w.keys, N_SLOTS, &w.limits, 1 + i % HARD, &ref), KVX_VERDICT_OK);
        total += 1 + i % HARD;
        kvx_key_release(&w.keys[kvx_key_ref_slot(ref)]);
        retire();
        put_in_next();
    }
    assert_true(w.generations[0] + w.generations[1] + w.generations[2] > total / (HARD + soft_limit));
}

/* ----------------------------------------------------------------------------------------- counters near their ends */

/* The counter begins `k` below `from`; the limits are around it. What was granted fits, and nothing wraps. */
static void counter_near(uint64_t from, uint64_t k, uint64_t hard)
{
    kvx_dev_words limits = {.key_soft_limit = hard, .key_hard_limit = hard};
    kvx_key_state key = {0};
    kvx_tenant_keys tenant = {kvx_key_ref(0, 7), kvx_key_ref(0, 7)};
    uint64_t ref, granted = 0;
    uint32_t i;
    kvx_key_start(&key, 7, KVX_KEY_STATE_LIVE);
    key.spent = from - k;
    for (i = 0; i < 20; i++)
        granted += kvx_key_choose(&tenant, &key, 1, &limits, 1 + i % 3, &ref) == KVX_VERDICT_OK ? 1 + i % 3 : 0;
    if (from - k >= hard)
        assert_true(granted == 0 && key.spent == from - k);
    else
        assert_true(granted <= hard - (from - k) && granted + 3 > hard - (from - k));
    assert_true(key.spent >= from - k);
}

static void counters_near_their_ends(void **state)
{
    uint64_t k, hard;
    (void)state;
    intruder = -1;
    for (k = 0; k < 12; k++) {
        for (hard = 0; hard < 12; hard++) {
            counter_near(1ull << 32, k, (1ull << 32) - 6 + hard);
            counter_near(KVX_KEY_HARD_LIMIT, k, KVX_KEY_HARD_LIMIT - 6 + hard);
        }
        counter_near(0, k + 1, KVX_KEY_HARD_LIMIT); /* 2^64 - k - 1 */
        counter_near(0, k + 1, 1ull << 32);
    }
}

static void references_are_exact(void **state)
{
    static const uint32_t numbers[] = {0, 1, 4095, 0x7fffffff, 0xfffffffe};
    size_t i, j;
    (void)state;
    for (i = 0; i < 5; i++)
        for (j = 0; j < 5; j++) {
            const uint64_t ref = kvx_key_ref(numbers[i], numbers[j] + 1);
            assert_int_equal(kvx_key_ref_slot(ref), numbers[i]);
            assert_int_equal(kvx_key_ref_generation(ref), numbers[j] + 1);
            assert_true(ref != 0);
            assert_int_equal(kvx_key_word_generation(kvx_key_word(numbers[j] + 1, KVX_KEY_STATE_LIVE)), numbers[j] + 1);
        }
    assert_int_equal(kvx_key_ref_slot(0), UINT32_MAX);
    assert_int_equal(kvx_key_cost(64u << 20), (64u << 20) / 16 + 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_sequence_soft),  cmocka_unit_test(every_sequence_soft_is_hard),
        cmocka_unit_test(next_key_takes_over),  cmocka_unit_test(counters_near_their_ends),
        cmocka_unit_test(references_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
