/* SPDX-License-Identifier: Apache-2.0 */
/* Calls name the next blocks in turn. What has ended is found by polling, oldest first. */
#include "bench_offload.h"

#include <stdio.h>
#include <stdlib.h>

#define PATIENCE 20.0       /* seconds until a call that does not end counts as lost */
#define FULL_RATE_BLOCKS 8u /* of 4 MiB, to a call */
#define PACED_BLOCKS 4u

struct offload {
    bench_scene *scene;
    copier *copier;
    offload_plan plan;
    uint32_t n_started, n_ended; /* calls */
    double began, last_end;      /* on the host's clock */
    double bytes;
    uint32_t n_bad;     /* blocks without a good verdict */
    uint32_t n_touched; /* blocks from the first on that calls have named since they were prepared */
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

/* Has the call under that number ended? */
static bool look_at_call(offload *o, uint32_t number, bool *ended)
{
    kvx_result result;
    kvx_status status;
    if (is_plain(o->plan.mover))
        return copier_look(o->copier, number, ended);
    status = kvx_poll(o->scene->ctx, o->tickets[number], &result, 0, NULL);
    *ended = status == KVX_OK;
    if (*ended)
        o->n_bad += result.n - result.n_ok;
    return status == KVX_PENDING || bench_ok(status, "kvx_poll");
}

static bool take_in(offload *o)
{
    const double now = bench_now();
    bool ended = true;
    while (o->n_ended < o->n_started) {
        if (!look_at_call(o, o->n_ended % COPIER_IN_FLIGHT, &ended))
            return false;
        if (!ended)
            break;
        o->n_ended++;
        o->last_end = now;
    }
    if (o->n_ended == o->n_started)
        o->last_end = now;
    if (now - o->last_end < PATIENCE)
        return true;
    fprintf(stderr, "offload: call %u of %u has not ended after %.0f s\n", o->n_ended, o->n_started, PATIENCE);
    return false;
}

void offload_begin(offload *o, const offload_plan *plan)
{
    o->plan = *plan;
    o->n_started = o->n_ended = 0;
    o->bytes = 0;
    o->began = o->last_end = bench_now();
}

bool offload_step(offload *o)
{
    const uint32_t per_call = o->plan.rate > 0 ? PACED_BLOCKS : FULL_RATE_BLOCKS;
    const uint32_t n_groups = o->scene->shape.n_blocks / per_call;
    if (!take_in(o))
        return false;
    if (o->n_started - o->n_ended == COPIER_IN_FLIGHT ||
        (o->plan.rate > 0 && o->bytes > (bench_now() - o->began) * o->plan.rate))
        return true;
    if (!start_call(o, o->n_started % n_groups * per_call, per_call, o->n_started % COPIER_IN_FLIGHT))
        return false;
    o->n_started++;
    if (o->n_touched < n_groups * per_call && o->n_touched < o->n_started * per_call)
        o->n_touched = o->n_started * per_call;
    o->bytes += per_call * (double)o->scene->block_bytes;
    return true;
}

double offload_bytes(const offload *o)
{
    return o->bytes;
}

bool offload_end(offload *o)
{
    while (o->n_ended < o->n_started)
        if (!take_in(o))
            return false;
    return true;
}

/* Every block once, one way. */
static bool move_all(offload *o, const offload_plan *plan, bool store)
{
    offload_plan once = *plan;
    once.store = store;
    once.rate = 0;
    offload_begin(o, &once);
    while (o->n_started < o->scene->shape.n_blocks / FULL_RATE_BLOCKS)
        if (!offload_step(o))
            return false;
    return offload_end(o);
}

/* What stores find in the cache is not what the slots hold, and restores bring other bytes than they find: a call that
 * does nothing shows in the end. */
bool offload_prepare(offload *o, const offload_plan *plan)
{
    const uint64_t seed = o->scene->b->settings.seed;
    o->n_bad = 0;
    if (!bench_scene_fill(o->scene, seed) || !move_all(o, plan, true))
        return false;
    o->n_touched = 0;
    return bench_scene_fill(o->scene, plan->store ? seed + 1 : ~seed);
}

bool offload_check(offload *o, const offload_plan *plan, const char *name)
{
    const uint64_t seed = o->scene->b->settings.seed;
    const uint32_t n_blocks = o->scene->shape.n_blocks, n = o->n_touched < n_blocks ? o->n_touched : n_blocks;
    const bench_part touched = {0, n, false}, others = {n, n_blocks - n, false};
    if (!plan->store && !bench_scene_check_blocks(o->scene, &touched, seed, name))
        return false;
    if (!bench_scene_fill(o->scene, ~seed) || !move_all(o, plan, false))
        return false;
    if (o->n_bad)
        bench_fail(o->scene->b, "%s: %u blocks have no good verdict", name, o->n_bad);
    return bench_scene_check_blocks(o->scene, &touched, plan->store ? seed + 1 : seed, name) &&
           bench_scene_check_blocks(o->scene, &others, seed, name);
}
