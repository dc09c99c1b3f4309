/* SPDX-License-Identifier: Apache-2.0 */
/* Sealed stores and verified restores in batches, many in flight. The host's clock runs from the first call to the end
 * of the last ticket; verdicts are read afterwards, or on the way where a call found no room. */
#include "bench.h"

#include <stdio.h>
#include <time.h>

#define WAIT_NS (120ull * 1000000000)

/* Tickets of one pass, stores and restores in the order of the calls. */
typedef struct pass {
    bench_scene *scene;
    const bench_work *work;
    uint32_t n_tickets, n_collected;
    double start;
} pass;

static bool collect_oldest(pass *p)
{
    kvx_ticket ticket = p->scene->tickets[p->n_collected];
    kvx_result result;
    if (!bench_ok(kvx_wait(p->scene->ctx, 1, &ticket, WAIT_NS), "kvx_wait") ||
        !bench_ok(kvx_poll(p->scene->ctx, ticket, &result, 0, NULL), "kvx_poll"))
        return false;
    p->n_collected++;
    if (result.n_ok != result.n)
        bench_fail(p->scene->b, "%u of %u blocks of a batch: %s", result.n - result.n_ok, result.n,
                   kvx_status_text(result.first_error));
    return true;
}

/* Makes room for one more call. Where nothing is left to collect, the engine's own queue is full for a moment. */
static bool make_room(pass *p, double since)
{
    struct timespec moment = {0, 50000};
    if (p->n_collected < p->n_tickets)
        return collect_oldest(p);
    if (bench_now() - since > (double)WAIT_NS * 1e-9)
        return bench_ok(KVX_AGAIN, "a call found no room although nothing is in flight (try a smaller batch)");
    nanosleep(&moment, NULL);
    return true;
}

static bool submit(pass *p, bool store, uint32_t first, uint32_t n)
{
    const bench_scene *s = p->scene;
    kvx_ticket *ticket = &s->tickets[p->n_tickets];
    kvx_options options = KVX_OPTIONS_INIT;
    double since = bench_now();
    kvx_status status;
    options.stream = s->b->dev.stream;
    options.hints = KVX_HINT_NO_JOIN | (store ? p->work->hints : 0);
    for (;;) {
        if (store)
            status = kvx_store(s->ctx, n, s->pairs + first, &options, ticket);
        else
            status = kvx_restore(s->ctx, n, s->pairs + first, &options, ticket);
        if (status != KVX_AGAIN)
            break;
        if (!make_room(p, since))
            return false;
    }
    if (!bench_ok(status, store ? "kvx_store" : "kvx_restore"))
        return false;
    p->n_tickets++;
    return true;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* One call of each part in turn, so that both directions always have work. */
static bool submit_all(pass *p)
{
    const bench_work *w = p->work;
    uint32_t stored = 0, restored = 0, n;
    while (stored < w->n_store || restored < w->n_restore) {
        n = least(w->batch, w->n_store - stored);
        if (n && !submit(p, true, w->store_first + stored, n))
            return false;
        stored += n;
        n = least(w->batch, w->n_restore - restored);
        if (n && !submit(p, false, w->restore_first + restored, n))
            return false;
        restored += n;
    }
    return true;
}

bool bench_move(bench_scene *s, const bench_work *work, double *seconds)
{
    pass p = {s, work, 0, 0, 0};
    if (!device_sync(&s->b->dev))
        return false;
    p.start = bench_now();
    if (!submit_all(&p))
        return false;
    if (!bench_ok(kvx_wait(s->ctx, p.n_tickets - p.n_collected, s->tickets + p.n_collected, WAIT_NS), "kvx_wait"))
        return false;
    *seconds = bench_now() - p.start;
    while (p.n_collected < p.n_tickets)
        if (!collect_oldest(&p))
            return false;
    return true;
}
