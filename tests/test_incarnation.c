/* SPDX-License-Identifier: Apache-2.0 */
/* Forked children, and copies of a process: nothing of the parent's is usable, and nothing of it is touched. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../src/context.h"
#include "fake_platform.h"
#include "kvx_keys.h"

static const shape small = {"small", 4, 4, 2, {{1, 2048, 0, 0, BLOCK_MAJOR}, {3, 104, 8, 0, BLOCK_MAJOR}}, 2, 0};
static uint64_t skipped_ns;
static pid_t pid;
static kvx_platform_ops ops;

static uint64_t skipping_clock(enum kvx_platform_clock clock)
{
    return kvx_platform_real.clock_ns(clock) + skipped_ns;
}

static pid_t some_pid(void)
{
    return pid ? pid : getpid();
}

static void stage_open(rig *r, const device *dev, kvx_slot *slot, kvx_pair *pair)
{
    fake_reset();
    fake.boot_id = "11111111-2222-3333-4444-555555555555\n";
    fake.stat = "12 (a ) name) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 7777 20 21\n";
    skipped_ns = 0;
    pid = 0;
    ops = fake_platform;
    ops.clock_ns = skipping_clock;
    ops.getpid = some_pid;
    kvx_platform_replace(&ops);
    rig_open(r, dev, &small, NULL);
    slots_take(r->pool, 1, slot);
    pairs_set(pair, 1, r->layout, 0, slot);
    store_all(r, 1, pair);
}

static void stage_close(rig *r)
{
    pid = 0;
    rig_close(r);
    kvx_platform_replace(NULL);
}

/* Each call of a child says so; afterwards the parent's context is as it was. */
static int calls_of_a_child(rig *r, const kvx_pair *pair, const kvx_slot *slot)
{
    kvx_ticket ticket = 1;
    kvx_key_stats keys = {.size = sizeof keys};
    kvx_stats stats = {.size = sizeof stats};
    static kvx_posture posture;
    static kvx_evidence evidence;
    posture.size = sizeof posture;
    evidence.size = sizeof evidence;
    return kvx_store(r->ctx, 1, pair, NULL, &ticket) == KVX_FORKED &&
           kvx_restore(r->ctx, 1, pair, NULL, &ticket) == KVX_FORKED &&
           kvx_discard(r->ctx, 1, slot, NULL) == KVX_FORKED && kvx_poll(r->ctx, 1, NULL, 0, NULL) == KVX_FORKED &&
           kvx_wait(r->ctx, 1, &ticket, 0) == KVX_FORKED && kvx_drain(r->ctx, 0) == KVX_FORKED &&
           kvx_stats_get(r->ctx, &stats) == KVX_FORKED && kvx_tenant_open(r->ctx, 0) == KVX_FORKED &&
           kvx_tenant_erase(r->ctx, 0, NULL) == KVX_FORKED && kvx_key_rotate(r->ctx, 0) == KVX_FORKED &&
           kvx_keys_service(r->ctx) == KVX_FORKED && kvx_key_stats_get(r->ctx, 0, &keys) == KVX_FORKED &&
           kvx_selftest(r->ctx) == KVX_FORKED && kvx_posture_get(r->ctx, &posture) == KVX_FORKED &&
           kvx_evidence_get(r->ctx, NULL, 0, &evidence) == KVX_FORKED && kvx_reattest(r->ctx, NULL, 0) == KVX_FORKED;
}

static void child_has_nothing(const device *dev, const void *arg)
{
    const int same_pid = *(const int *)arg;
    kvx_slot slot;
    kvx_pair pair;
    kvx_status verdict;
    pid_t child;
    int ended = 0;
    rig r;
    stage_open(&r, dev, &slot, &pair);
    pid = same_pid ? getpid() : 0; /* a child that got the parent's number */
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const int good = calls_of_a_child(&r, &pair, &slot);
        kvx_ctx_destroy(r.ctx);
        _exit(good ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
    pid = 0;
    restore_some(&r, 1, &pair, &verdict);
    assert_int_equal(verdict, KVX_OK);
    stage_close(&r);
}

/* Whichever of the kernel's answers changes: the next call finds out, and the context is latched on both sides. */
static void copies_are_found(const device *dev, const void *arg)
{
    (void)arg;
    for (int change = 0; change < 4; change++) {
        kvx_key_stats keys = {.size = sizeof keys};
        kvx_dev_words words;
        kvx_ticket ticket;
        kvx_status verdict;
        kvx_slot slot;
        kvx_pair pair;
        rig r;
        stage_open(&r, dev, &slot, &pair);
        skipped_ns = 200000000u; /* time has passed: nothing else has changed */
        restore_some(&r, 1, &pair, &verdict);
        assert_int_equal(verdict, KVX_OK);
        if (change == 0)
            fake.boot_id = "11111111-2222-3333-4444-555555555556\n";
        else if (change == 1)
            fake.stat = "12 (a ) name) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 7778 20 21\n";
        skipped_ns += change < 3 ? 200000000u : 0;
        if (change == 2) {
            expect_ok(r.ctx->ops->words(r.ctx->engine, &words, 0));
            words.incarnation ^= 1;
            expect_ok(r.ctx->ops->words(r.ctx->engine, &words, 1));
        }
        if (change == 3) { /* the clock went back, and nothing else happened */
            skipped_ns = 0;
            expect_ok(kvx_restore(r.ctx, 1, &pair, NULL, &ticket));
            expect_all(r.ctx, ticket, 1, KVX_OK);
        } else {
            assert_int_equal(kvx_store(r.ctx, 1, &pair, NULL, &ticket), KVX_FORKED);
            assert_int_equal(stats_of(r.ctx).latched, 1);
            expect_ok(kvx_key_stats_get(r.ctx, 0, &keys));
            assert_int_equal(keys.epochs_readable, 0); /* keys are gone */
        }
        stage_close(&r);
    }
}

/* Too many open files, or no /proc: no false alarm. */
static void silence_is_no_alarm(const device *dev, const void *arg)
{
    kvx_status verdict;
    kvx_slot slot;
    kvx_pair pair;
    rig r;
    (void)arg;
    stage_open(&r, dev, &slot, &pair);
    fake.stat = "";
    for (int i = 0; i < 3; i++) {
        skipped_ns += 200000000u;
        restore_some(&r, 1, &pair, &verdict);
        assert_int_equal(verdict, KVX_OK);
    }
    stage_close(&r);
}

static const int fresh_pid = 0, same_pid = 1;
static const test_case cases[] = {
    {"a child has nothing", child_has_nothing, &fresh_pid},
    {"a child with the parent's number has nothing", child_has_nothing, &same_pid},
    {"copies are found", copies_are_found, NULL},
    {"silence is no alarm", silence_is_no_alarm, NULL},
};

int main(int argc, char **argv)
{
    return RUN_CASES("incarnation", cases, argc, argv);
}
