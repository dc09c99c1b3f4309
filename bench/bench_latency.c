/* SPDX-License-Identifier: Apache-2.0 */
/* kvx-bench latency: how long a single call takes until the host can see that it ended, what the call itself costs the
 * host, and what a poll costs. One call is in flight at a time. */
#include "bench_latency.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WAIT_NS (30ull * 1000000000)
#define COUNTS_MAX 3u
#define P99_CALLS 100u /* fewer have no 99th of 100 */

#define N_SUBJECTS 2u
#define CURVES_MAX 8u

/* Medians in ms until the end is visible, by blocks to a call: a panel for each kind of block. */
typedef struct picture {
    bench_curve curves[N_SUBJECTS][CURVES_MAX];
    char names[CURVES_MAX][32];
    uint32_t n;
} picture;

typedef enum way { STORE_STAGED, STORE_DIRECT, RESTORE, N_WAYS } way;
static const char *const way_names[N_WAYS] = {"store_staged", "store_direct", "restore"};

/* What is measured: blocks of one kind, singly and several to a call. */
typedef struct subject {
    const char *name;
    bench_shape shape;
    uint32_t counts[COUNTS_MAX]; /* blocks to a call, 1 first */
    picture *drawn;
    uint32_t panel;
} subject;

typedef struct timing {
    bench_samples call, total; /* us */
} timing;

static void timing_add(timing *t, double began, double called, double ended)
{
    bench_samples_add(&t->call, (called - began) * 1e6);
    bench_samples_add(&t->total, (ended - began) * 1e6);
}

static void draw_point(const subject *s, const char *name, uint32_t n, double median)
{
    picture *p = s->drawn;
    uint32_t i;
    for (i = 0; i < p->n && strcmp(p->names[i], name) != 0; i++)
        ;
    if (i == p->n && i < CURVES_MAX)
        snprintf(p->names[p->n++], sizeof(p->names[0]), "%s", name);
    if (i < CURVES_MAX)
        bench_curve_add(&p->curves[s->panel][i], n, median);
}

/* Rows of n blocks to a call, and a line of the table. */
static void timing_report(bench *b, const subject *s, const char *name, uint32_t n, timing *t)
{
    const double call = bench_row(b, "call", "us", &t->call, "what=%s block=%s blocks=%u", name, s->name, n);
    const double total = bench_row(b, "until_visible", "us", &t->total, "what=%s block=%s blocks=%u", name, s->name, n);
    const double p99 = bench_quantile(&t->total, 0.99), call_p99 = bench_quantile(&t->call, 0.99);
    draw_point(s, name, n, total / 1e3);
    printf("%-6s %-22s %6u %6u %10.1f ", s->name, name, n, t->total.n, total);
    if (t->total.n < P99_CALLS) {
        printf("%10s %10.2f %10s", "-", call, "-");
        return;
    }
    bench_value(b, "until_visible_p99", "us", p99, "what=%s block=%s blocks=%u", name, s->name, n);
    bench_value(b, "call_p99", "us", call_p99, "what=%s block=%s blocks=%u", name, s->name, n);
    printf("%10.1f %10.2f %10.2f", p99, call, call_p99);
}

static void timing_free(timing *t)
{
    bench_samples_free(&t->call);
    bench_samples_free(&t->total);
}

/* ------------------------------------------------------------------------------------------------------------ sealed
 */

static kvx_status start(bench_scene *s, way w, uint32_t first, uint32_t n, kvx_ticket *ticket)
{
    kvx_options options = KVX_OPTIONS_INIT;
    options.stream = s->b->dev.stream;
    options.hints = KVX_HINT_NO_JOIN | (w == STORE_DIRECT ? KVX_HINT_IDLE : 0);
    if (w == RESTORE)
        return kvx_restore(s->ctx, n, s->pairs + first, &options, ticket);
    return kvx_store(s->ctx, n, s->pairs + first, &options, ticket);
}

/* One call and its end, by nothing but polling. */
static bool call_once(bench_scene *s, way w, uint32_t first, uint32_t n, timing *t)
{
    kvx_status status;
    kvx_result result;
    kvx_ticket ticket;
    double began = bench_now(), called;
    if (!bench_ok(start(s, w, first, n, &ticket), way_names[w]))
        return false;
    called = bench_now();
    do
        status = kvx_poll(s->ctx, ticket, &result, 0, NULL);
    while (status == KVX_PENDING && bench_now() - began < (double)WAIT_NS * 1e-9);
    timing_add(t, began, called, bench_now());
    if (!bench_ok(status, "kvx_poll"))
        return false;
    if (result.n_ok != n)
        bench_fail(s->b, "%s: %u of %u blocks: %s", way_names[w], n - result.n_ok, n,
                   kvx_status_text(result.first_error));
    return bench_ok(kvx_drain(s->ctx, WAIT_NS), "kvx_drain") && device_sync(&s->b->dev);
}

static void report_operations(bench_scene *s, const subject *what, way w, uint32_t n, const kvx_stats stats[2],
                              uint32_t n_calls)
{
    const double launches = (double)(stats[1].launches - stats[0].launches) / n_calls;
    const double copies = (double)(stats[1].copies - stats[0].copies) / n_calls;
    const double syncs = (double)(stats[1].host_syncs - stats[0].host_syncs) / n_calls;
    printf(" %8.2f %8.2f %5.0f\n", launches, copies, syncs);
    bench_value(s->b, "launches", "count", launches, "what=%s block=%s blocks=%u", way_names[w], what->name, n);
    bench_value(s->b, "copies", "count", copies, "what=%s block=%s blocks=%u", way_names[w], what->name, n);
    bench_value(s->b, "host_syncs", "count", syncs, "what=%s block=%s blocks=%u", way_names[w], what->name, n);
    if (syncs > 0)
        bench_fail(s->b, "%s waited for the device", way_names[w]);
}

/* Stores find other bytes in the cache than the slots hold, restores other bytes than they bring: what a measured call
 * leaves out or does wrong shows in finish_way(). */
static bool prepare_way(bench_scene *s, way w, uint64_t seed)
{
    const bench_work all = {.n_store = s->shape.n_blocks, .batch = s->shape.n_blocks};
    double seconds;
    if (w != RESTORE)
        return bench_scene_fill(s, seed);
    return bench_scene_fill(s, seed) && bench_move(s, &all, &seconds) && bench_scene_fill(s, ~seed);
}

/* Compares the first n_touched blocks, which the measured calls have stored or restored. */
static bool finish_way(bench_scene *s, way w, uint64_t seed, uint32_t n_touched)
{
    const bench_work back = {.n_restore = n_touched, .batch = n_touched};
    const bench_part touched = {0, n_touched, false};
    double seconds;
    if (w != RESTORE && (!bench_scene_fill(s, ~seed) || !bench_move(s, &back, &seconds)))
        return false;
    return bench_scene_check_blocks(s, &touched, seed, way_names[w]);
}

static bool measure_way(bench_scene *s, const subject *what, way w, uint32_t n, uint32_t n_calls)
{
    const uint64_t seed = s->b->settings.seed + (uint64_t)w * 65536 + n;
    kvx_stats stats[2] = {{.size = sizeof(stats[0])}, {.size = sizeof(stats[0])}};
    timing t = {{0}, {0}}, warm = {{0}, {0}};
    uint32_t i, n_groups = s->shape.n_blocks / n;
    bool done = prepare_way(s, w, seed) && call_once(s, w, 0, n, &warm) &&
                bench_ok(kvx_stats_get(s->ctx, &stats[0]), "kvx_stats_get");
    for (i = 0; done && i < n_calls; i++)
        done = call_once(s, w, i % n_groups * n, n, &t);
    if (done && bench_ok(kvx_stats_get(s->ctx, &stats[1]), "kvx_stats_get")) {
        timing_report(s->b, what, way_names[w], n, &t);
        report_operations(s, what, w, n, stats, n_calls);
        done = finish_way(s, w, seed, (n_calls < n_groups ? n_calls : n_groups) * n);
    }
    timing_free(&t);
    timing_free(&warm);
    return done;
}

static bool measure_sealed(bench_scene *s, const subject *what, uint32_t n_calls)
{
    way w;
    uint32_t i;
    for (w = STORE_STAGED; w < N_WAYS; w++) {
        if (w == STORE_DIRECT && bench_on_cpu(s->b))
            continue; /* the CPU engine knows one way only */
        for (i = 0; i < COUNTS_MAX && what->counts[i] <= s->shape.n_blocks; i++)
            if (!measure_way(s, what, w, what->counts[i], i == 0 ? n_calls : n_calls / 10 + 1))
                return false;
    }
    return true;
}

/* What polling costs: an ended ticket of one block, and one of all blocks that is still going on. */
static bool measure_poll(bench_scene *s, const subject *what)
{
    bench_samples ended = {0}, pending = {0};
    kvx_status status = KVX_OK;
    kvx_ticket ticket;
    double began;
    uint32_t i, j;
    if (!bench_ok(start(s, STORE_STAGED, 0, 1, &ticket), "kvx_store") || !bench_ok(kvx_drain(s->ctx, WAIT_NS), "drain"))
        return false;
    for (i = 0; i < 50; i++) {
        began = bench_now();
        for (j = 0; j < 1000 && status == KVX_OK; j++)
            status = kvx_poll(s->ctx, ticket, NULL, 0, NULL);
        bench_samples_add(&ended, (bench_now() - began) * 1e9 / 1000);
    }
    if (!bench_ok(status, "kvx_poll") || !bench_ok(start(s, STORE_STAGED, 0, s->shape.n_blocks, &ticket), "kvx_store"))
        return false;
    do {
        began = bench_now();
        status = kvx_poll(s->ctx, ticket, NULL, 0, NULL);
        if (status == KVX_PENDING)
            bench_samples_add(&pending, (bench_now() - began) * 1e9);
    } while (status == KVX_PENDING);
    printf("%-6s poll: %.0f ns of an ended ticket; %.0f ns while %u blocks are on their way\n", what->name,
           bench_row(s->b, "poll_ended", "ns", &ended, "block=%s blocks=1", what->name),
           bench_row(s->b, "poll_pending", "ns", &pending, "block=%s blocks=%u", what->name, s->shape.n_blocks),
           s->shape.n_blocks);
    bench_samples_free(&ended);
    bench_samples_free(&pending);
    return bench_ok(status, "kvx_poll");
}

/* ------------------------------------------------------------------------------------------------------------- plain
 */

#if KVX_WITH_CUDA
static bool copy_once(latency_copy *c, timing *t)
{
    double began = bench_now(), called;
    bool ended = false;
    if (!latency_copy_call(c))
        return false;
    called = bench_now();
    while (!ended)
        if (!latency_copy_poll(c, &ended))
            return false;
    timing_add(t, began, called, bench_now());
    return true;
}

/* Blocks 0 .. n - 1 in ranges of a slot, or piece by piece. The pool's bytes are only memory here. */
static bool list_ranges(bench_scene *s, uint32_t n, bool pieces, latency_ranges *r)
{
    const uint32_t per_block = pieces ? bench_shape_lanes(&s->shape) : 1;
    uint64_t n_slot;
    void *slot;
    uint32_t block, i;
    r->n_bytes = pieces ? s->shape.piece_bytes[0] : s->block_bytes;
    for (r->n = 0, block = 0; block < n; block++) {
        if (!bench_ok(kvx_pool_slot_bytes(s->pool, s->slots[block], &slot, &n_slot), "kvx_pool_slot_bytes"))
            return false;
        for (i = 0; i < per_block; i++, r->n++) {
            r->host[r->n] = (uint8_t *)slot + i * r->n_bytes;
            r->dev[r->n] = s->dev_cache + (pieces ? s->lane_at[i] : 0) + block * r->n_bytes;
        }
    }
    return true;
}

static bool measure_copy(bench_scene *s, const subject *what, const latency_ranges *r, uint32_t n, uint32_t n_calls)
{
    timing t = {{0}, {0}}, warm = {{0}, {0}};
    latency_copy *c;
    char name[64];
    bool done;
    uint32_t i;
    if (!latency_copy_open(r, &c))
        return false;
    done = copy_once(c, &warm);
    for (i = 0; done && i < n_calls; i++)
        done = copy_once(c, &t);
    if (done) {
        snprintf(name, sizeof(name), "plain_%s_%s", r->n == n ? "slots" : "pieces", r->out ? "out" : "in");
        timing_report(s->b, what, name, n, &t);
        printf(" %8u %8u %5u\n", 0, 1, 0);
    }
    latency_copy_close(c);
    timing_free(&t);
    timing_free(&warm);
    return done;
}

/* The bare batched copy of the same bytes, called once for n blocks. */
static bool measure_plain(bench_scene *s, const subject *what, uint32_t n_calls)
{
    const size_t most = (size_t)s->shape.n_blocks * bench_shape_lanes(&s->shape);
    latency_ranges r = {calloc(most, sizeof(*r.dev)), calloc(most, sizeof(*r.host)), 0, 0, true};
    uint32_t i, variant;
    bool done = r.dev && r.host;
    for (variant = 0; done && variant < 4; variant++) {
        r.out = variant < 2;
        for (i = 0; done && i < COUNTS_MAX && what->counts[i] <= s->shape.n_blocks; i++)
            done = list_ranges(s, what->counts[i], variant % 2 == 1, &r) &&
                   measure_copy(s, what, &r, what->counts[i], i == 0 ? n_calls : n_calls / 10 + 1);
    }
    free(r.dev);
    free(r.host);
    return done;
}
#endif

/* --------------------------------------------------------------------------------------------------------------- run
 */

static bool run_subject(bench *b, const subject *what, uint32_t n_calls)
{
    bench_scene s;
    bool done = bench_scene_open(b, &what->shape, &s) && measure_sealed(&s, what, n_calls) && measure_poll(&s, what);
#if KVX_WITH_CUDA
    if (done && !bench_on_cpu(b))
        done = measure_plain(&s, what, n_calls);
#endif
    return bench_scene_close(&s) && done;
}

static bool draw(bench *b, const picture *drawn)
{
    static const char *const titles[N_SUBJECTS] = {"blocks of 4 MiB, 64 units", "blocks of 64 KiB, 1 unit"};
    plot_panel panels[N_SUBJECTS];
    plot made = {.title = "One call, until its end is visible",
                 .x_label = "blocks to a call",
                 .y_label = "ms",
                 .panels = panels,
                 .n_panels = N_SUBJECTS};
    uint32_t panel, i;
    memset(panels, 0, sizeof(panels));
    for (panel = 0; panel < N_SUBJECTS; panel++) {
        panels[panel].title = titles[panel];
        for (i = 0; i < drawn->n; i++)
            if (drawn->curves[panel][i].n) {
                const bench_curve *c = &drawn->curves[panel][i];
                const plot_line line = {drawn->names[i], c->x, c->y, c->n};
                panels[panel].lines[panels[panel].n_lines++] = line;
            }
    }
    return bench_plot(b, &made);
}

static bool run(bench *b)
{
    static picture drawn;
    const bool on_cpu = bench_on_cpu(b);
    const subject subjects[] = {
        {"4M",
         {.n_blocks = on_cpu ? 4 : 64, .n_layers = 64, .n_kinds = 2, .n_segments = 64, .piece_bytes = {32768, 32768}},
         {1, 16, 64},
         &drawn,
         0},
        {"64K",
         {.n_blocks = on_cpu ? 64 : 1024, .n_layers = 1, .n_kinds = 2, .n_segments = 1, .piece_bytes = {32768, 32768}},
         {1, 64, 1024},
         &drawn,
         1},
    };
    const uint32_t n_calls = on_cpu ? bench_repeat(b, 20, 200, 1000) : bench_repeat(b, 300, 1000, 5000);
    uint32_t i;
    memset(&drawn, 0, sizeof(drawn));
    printf("%-6s %-22s %6s %6s %10s %10s %10s %10s %8s %8s %5s\n", "block", "what", "blocks", "calls", "median us",
           "p99 us", "call us", "p99 us", "launches", "copies", "syncs");
    for (i = 0; i < N_SUBJECTS; i++)
        if (!run_subject(b, &subjects[i], n_calls))
            return false;
    return draw(b, &drawn);
}

const bench_sub bench_latency = {
    "latency",
    "one call at a time: until its end is visible, and what it costs the host",
    "A block of 4 MiB in 64 units (128 pieces of 32 KiB), and one of 64 KiB in a single unit (2 pieces);\n"
    "one block to a call, then several. `median us` and its p99: from the call to the poll that sees the\n"
    "end, by polling alone. `call us`: time in the call itself, which never waits. p99 is left out where\n"
    "fewer than 100 calls were timed. Every block is compared. Launches, copy\n"
    "operations and host synchronisations per call come from kvx_stats. `plain`: a bare\n"
    "cudaMemcpyBatchAsync of the same blocks, slot by slot or piece by piece.",
    NULL,
    run,
};
