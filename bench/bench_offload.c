/* SPDX-License-Identifier: Apache-2.0 */
/* The offload thread. Its calls name the next blocks in turn; before a call that would be the fifth in flight it waits
 * for the oldest. */
#define _POSIX_C_SOURCE 200809L
#include "bench_offload.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define WAIT_NS (30ull * 1000000000)
#define FULL_RATE_BLOCKS 8u /* of 4 MiB, to a call */
#define PACED_BLOCKS 4u

struct offload {
    bench_scene *scene;
    copier *copier;
    offload_plan plan;
    pthread_t thread;
    atomic_bool stop;
    _Atomic double bytes;
    bool good;
    uint32_t n_bad; /* blocks without a good verdict */
    kvx_ticket tickets[COPIER_IN_FLIGHT];
};

static bool is_plain(offload_mover mover)
{
    return mover == OFFLOAD_PIECES || mover == OFFLOAD_KERNEL;
}

bool offload_open(bench_scene *s, offload **made)
{
    offload *o = calloc(1, sizeof(*o));
    if (!o || !copier_open(s, &o->copier)) {
        free(o);
        return false;
    }
    o->scene = s;
    *made = o;
    return true;
}

void offload_close(offload *o)
{
    if (!o)
        return;
    copier_close(o->copier);
    free(o);
}

static bool start_call(offload *o, uint32_t first, uint32_t n, uint32_t number)
{
    const copier_run run = {o->plan.mover == OFFLOAD_KERNEL, o->plan.store, first, n};
    const kvx_pair *pairs = o->scene->pairs + first;
    kvx_options options = KVX_OPTIONS_INIT;
    kvx_status status;
    if (is_plain(o->plan.mover))
        return copier_start(o->copier, &run, number);
    options.stream = o->scene->b->dev.stream; /* nothing else is in it */
    options.hints = KVX_HINT_NO_JOIN | (o->plan.store && o->plan.mover == OFFLOAD_DIRECT ? KVX_HINT_IDLE : 0);
    if (o->plan.store)
        status = kvx_store(o->scene->ctx, n, pairs, &options, &o->tickets[number]);
    else
        status = kvx_restore(o->scene->ctx, n, pairs, &options, &o->tickets[number]);
    return bench_ok(status, o->plan.store ? "kvx_store" : "kvx_restore");
}

static bool end_call(offload *o, uint32_t number)
{
    kvx_result result;
    if (is_plain(o->plan.mover))
        return copier_wait(o->copier, number);
    if (!bench_ok(kvx_wait(o->scene->ctx, 1, &o->tickets[number], WAIT_NS), "kvx_wait") ||
        !bench_ok(kvx_poll(o->scene->ctx, o->tickets[number], &result, 0, NULL), "kvx_poll"))
        return false;
    o->n_bad += result.n - result.n_ok;
    return true;
}

/* Calls up to `n_calls`, or until told to stop; then waits for what is in flight. */
static bool run_calls(offload *o, uint32_t n_calls)
{
    const uint32_t per_call = o->plan.rate > 0 ? PACED_BLOCKS : FULL_RATE_BLOCKS, n_blocks = o->scene->shape.n_blocks;
    const double call_bytes = per_call * (double)o->scene->block_bytes, began = bench_now();
    const struct timespec moment = {0, 20000};
    uint32_t i, ended = 0;
    bool good = true;
    for (i = 0; good && i < n_calls && !o->stop; i++) {
        while (o->plan.rate > 0 && o->bytes > (bench_now() - began) * o->plan.rate && !o->stop)
            nanosleep(&moment, NULL);
        if (i >= COPIER_IN_FLIGHT)
            good = end_call(o, ended++ % COPIER_IN_FLIGHT);
        good = good && start_call(o, i % (n_blocks / per_call) * per_call, per_call, i % COPIER_IN_FLIGHT);
        o->bytes = o->bytes + call_bytes;
    }
    while (good && ended < i)
        good = end_call(o, ended++ % COPIER_IN_FLIGHT);
    return good;
}

static void *thread_main(void *argument)
{
    offload *o = argument;
    o->good = run_calls(o, UINT32_MAX);
    return NULL;
}

bool offload_start(offload *o, const offload_plan *plan)
{
    o->plan = *plan;
    o->stop = false;
    o->bytes = 0;
    if (pthread_create(&o->thread, NULL, thread_main, o) == 0)
        return true;
    fputs("no thread for the offload\n", stderr);
    return false;
}

double offload_bytes(offload *o)
{
    return o->bytes;
}

bool offload_stop(offload *o)
{
    o->stop = true;
    pthread_join(o->thread, NULL);
    return o->good;
}

/* Every block once, one way. */
static bool move_all(offload *o, const offload_plan *plan, bool store)
{
    o->plan = *plan;
    o->plan.store = store;
    o->plan.rate = 0;
    o->stop = false;
    return run_calls(o, o->scene->shape.n_blocks / FULL_RATE_BLOCKS);
}

bool offload_prepare(offload *o, const offload_plan *plan)
{
    o->n_bad = 0;
    return bench_scene_fill(o->scene, o->scene->b->settings.seed) && move_all(o, plan, true);
}

bool offload_check(offload *o, const offload_plan *plan, const char *name)
{
    const uint64_t seed = o->scene->b->settings.seed;
    if (!bench_scene_fill(o->scene, ~seed) || !move_all(o, plan, false))
        return false;
    if (o->n_bad)
        bench_fail(o->scene->b, "%s: %u blocks have no good verdict", name, o->n_bad);
    return bench_scene_check(o->scene, seed, name);
}
