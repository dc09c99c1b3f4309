/* SPDX-License-Identifier: Apache-2.0 */
/* Sealed store and verified restore of the whole cache. The clock runs from the first call to the end of the last
 * ticket; filling, overwriting and comparing are outside of it. */
#define _POSIX_C_SOURCE 200809L
#include "demo.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define WAIT_NS (120ull * 1000000000)

typedef struct mover {
    demo *demo;
    kvx_ctx *ctx;
    kvx_layout *layout;
    kvx_pair *pairs;     /* of all blocks */
    kvx_ticket *tickets; /* of one pass, in call order */
    uint32_t n_tickets, n_collected;
} mover;

/* Seconds of one pass. */
typedef struct pass_time {
    double wall;
    double events; /* negative: not measured */
} pass_time;

static bool collect_oldest(mover *m)
{
    kvx_ticket ticket = m->tickets[m->n_collected];
    kvx_result result;
    if (!demo_ok(kvx_wait(m->ctx, 1, &ticket, WAIT_NS), "kvx_wait") ||
        !demo_ok(kvx_poll(m->ctx, ticket, &result, 0, NULL), "kvx_poll"))
        return false;
    m->n_collected++;
    if (result.n_ok != result.n) {
        printf("FAIL  %u of %u blocks of a batch: %s\n", result.n - result.n_ok, result.n,
               kvx_status_text(result.first_error));
        m->demo->n_failed++;
    }
    return true;
}

/* Makes room for one more call. Where nothing is left to collect, the engine's own queue is full for a moment. */
static bool make_room(mover *m, double since)
{
    struct timespec moment = {0, 50000};
    if (m->n_collected < m->n_tickets)
        return collect_oldest(m);
    if (demo_now() - since > (double)WAIT_NS * 1e-9)
        return demo_ok(KVX_AGAIN, "a call found no room although nothing is in flight (try a smaller --batch)");
    nanosleep(&moment, NULL);
    return true;
}

static bool submit(mover *m, bool store, uint32_t first, uint32_t n)
{
    kvx_options options = KVX_OPTIONS_INIT;
    kvx_ticket *ticket = &m->tickets[m->n_tickets];
    double start = demo_now();
    kvx_status status;
    options.stream = m->demo->dev.stream;
    if (first + n == m->demo->n_blocks)
        options.done_event = m->demo->dev.end;
    for (;;) {
        if (store)
            status = kvx_store(m->ctx, n, m->pairs + first, &options, ticket);
        else
            status = kvx_restore(m->ctx, n, m->pairs + first, &options, ticket);
        if (status != KVX_AGAIN)
            break;
        if (!make_room(m, start))
            return false;
    }
    if (!demo_ok(status, store ? "kvx_store" : "kvx_restore"))
        return false;
    m->n_tickets++;
    return true;
}

static bool move_all(mover *m, bool store, pass_time *time)
{
    uint32_t first, n, n_blocks = m->demo->n_blocks, batch = m->demo->options.batch;
    double start;
    m->n_tickets = m->n_collected = 0;
    if (!device_sync(&m->demo->dev) || !device_mark(&m->demo->dev))
        return false;
    start = demo_now();
    for (first = 0; first < n_blocks; first += n) {
        n = n_blocks - first < batch ? n_blocks - first : batch;
        if (!submit(m, store, first, n))
            return false;
    }
    if (!demo_ok(kvx_wait(m->ctx, m->n_tickets - m->n_collected, m->tickets + m->n_collected, WAIT_NS), "kvx_wait"))
        return false;
    time->wall = demo_now() - start;
    while (m->n_collected < m->n_tickets)
        if (!collect_oldest(m))
            return false;
    time->events = device_seconds(&m->demo->dev);
    return true;
}

static bool run_once(mover *m, uint64_t seed, pass_time *store, pass_time *restore)
{
    return demo_cache_fill(m->demo, seed) && move_all(m, true, store) && demo_cache_fill(m->demo, ~seed) &&
           move_all(m, false, restore) && demo_cache_check(m->demo, seed, "sealed");
}

/* Median rate of one direction, into the report; events beside the host's clock where there are any. */
static double report_passes(demo *d, const char *metric, const pass_time *passes, double *scratch)
{
    double gigabytes = (double)d->n_blocks * (double)DEMO_BLOCK_BYTES / 1e9, rate;
    const demo_options *o = &d->options;
    char name[32];
    uint32_t i;
    for (i = 0; i < o->repeat; i++)
        scratch[i] = passes[i].wall;
    rate = gigabytes / demo_median(scratch, o->repeat);
    report_row(d->report, "sealed", metric, rate, "GB/s", "blocks=%u batch=%u segments=%u repeat=%u", d->n_blocks,
               o->batch, o->segments, o->repeat);
    for (i = 0; i < o->repeat; i++)
        scratch[i] = passes[i].events;
    if (demo_median(scratch, o->repeat) > 0 && scratch[0] > 0) {
        snprintf(name, sizeof(name), "%s_by_events", metric);
        report_row(d->report, "sealed", name, gigabytes / demo_median(scratch, o->repeat), "GB/s",
                   "blocks=%u batch=%u segments=%u repeat=%u", d->n_blocks, o->batch, o->segments, o->repeat);
    }
    return rate;
}

static void report_ratios(demo *d, const demo_rate *sealed, const demo_rate *plain, uint32_t n_plain)
{
    uint32_t i;
    for (i = 0; i < n_plain; i++) {
        double store = sealed->out / plain[i].out, restore = sealed->in / plain[i].in;
        printf("sealed / %-18s store %5.2fx   restore %5.2fx\n", plain[i].name, store, restore);
        report_row(d->report, "sealed", "store_ratio", store, "x", "to=%s", plain[i].name);
        report_row(d->report, "sealed", "restore_ratio", restore, "x", "to=%s", plain[i].name);
    }
}

static bool measure(mover *m, demo_rate *sealed)
{
    demo *d = m->demo;
    uint32_t i, n = d->options.repeat, n_failed = d->n_failed;
    pass_time *store = calloc(2 * (size_t)n, sizeof(*store)), *restore = store ? store + n : NULL;
    double *scratch = calloc(n, sizeof(*scratch));
    bool done = store && scratch;
    for (i = 0; done && i < n; i++) {
        demo_say("sealed store and restore, run %u of %u ...", i + 1, n);
        done = run_once(m, d->options.seed + i, &store[i], &restore[i]);
    }
    if (done) {
        sealed->out = report_passes(d, "store", store, scratch);
        sealed->in = report_passes(d, "restore", restore, scratch);
        printf("%-18s out %7.2f GB/s   in %7.2f GB/s   (AES-256-GCM, every tag checked)\n", "sealed", sealed->out,
               sealed->in);
        demo_verdict(d, d->n_failed == n_failed, "restored_exactly", "every byte restored is the byte stored");
    }
    free(scratch);
    free(store);
    return done;
}

static bool prepare(mover *m, const kvx_slot *slots)
{
    uint32_t i, n = m->demo->n_blocks;
    m->pairs = calloc(n, sizeof(*m->pairs));
    m->tickets = calloc(n, sizeof(*m->tickets));
    if (!m->pairs || !m->tickets) {
        fputs("no memory for the list of pairs: try a smaller --bytes\n", stderr);
        return false;
    }
    for (i = 0; i < n; i++) {
        kvx_pair pair = {.layout = m->layout, .block = i, .slot = slots[i]};
        m->pairs[i] = pair;
    }
    return true;
}

static bool with_context(mover *m, const kvx_slot *slots, demo_rate *sealed)
{
    kvx_stats stats = {.size = sizeof(stats)};
    bool done;
    if (demo_ok(kvx_stats_get(m->ctx, &stats), "kvx_stats_get"))
        demo_say("%s", stats.engine_note);
    if (!demo_layout_create(m->demo, m->ctx, &m->layout))
        return false;
    done = prepare(m, slots) && measure(m, sealed);
    if (done && demo_ok(kvx_stats_get(m->ctx, &stats), "kvx_stats_get")) {
        report_row(m->demo->report, "sealed", "launches", (double)stats.launches, "count", "blocks=%llu",
                   (unsigned long long)(stats.stored_blocks + stats.restored_blocks));
        report_row(m->demo->report, "sealed", "copies", (double)stats.copies, "count", "blocks=%llu",
                   (unsigned long long)(stats.stored_blocks + stats.restored_blocks));
        demo_verdict(m->demo, stats.host_syncs == 0, "host_syncs",
                     "store, restore and poll never waited for the device");
    }
    return done;
}

bool demo_sealed(demo *d, const demo_rate *plain, uint32_t n_plain)
{
    mover m = {.demo = d};
    kvx_config config = KVX_CONFIG_INIT;
    kvx_pool *pool;
    kvx_slot *slots;
    demo_rate sealed = {"sealed", 0, 0};
    bool done = false;
    if (!demo_pool_create(d, "sealed_pool", d->n_blocks, &pool, &slots))
        return false;
    config.engine = d->dev.engine;
    config.device = d->dev.engine == KVX_ENGINE_CUDA ? d->dev.ordinal + 1 : 0;
    if (demo_ok(kvx_ctx_create(pool, &config, &m.ctx), "kvx_ctx_create")) {
        done = with_context(&m, slots, &sealed);
        kvx_ctx_destroy(m.ctx);
    }
    free(m.tickets);
    free(m.pairs);
    free(slots);
    if (done)
        report_ratios(d, &sealed, plain, n_plain);
    return demo_ok(kvx_pool_destroy(pool), "kvx_pool_destroy") && done;
}
