/* SPDX-License-Identifier: Apache-2.0 */
/* Movers side by side. Each repetition stores everything, overwrites the cache, restores and compares; then the first
 * half is stored while the second half, stored before, comes back. Every repetition has data of its own, so that
 * leftovers of an earlier one cannot pass. */
#include "bench.h"

#include <stdio.h>
#include <string.h>

/* A mover: a plaintext kind, or kvx where there is none. */
typedef struct mover {
    const char *name;
    bench_scene *scene;
    bench_plain *plain;
    const baseline_kind *kind;
    uint32_t batch, hints;
    bool warming; /* not counted yet: code is loaded, clocks rise */
    bench_samples store, restore, both;
} mover;

static bool move(mover *m, bench_work work, double *seconds)
{
    work.batch = m->batch;
    work.hints = m->hints;
    return m->kind ? bench_plain_move(m->plain, m->kind, &work, seconds) : bench_move(m->scene, &work, seconds);
}

static bool sample(mover *m, bench_samples *samples, bench_work work)
{
    uint32_t n = work.n_store > work.n_restore ? work.n_store : work.n_restore;
    double seconds;
    if (!move(m, work, &seconds))
        return false;
    if (!m->warming)
        bench_samples_add(samples, (double)n * (double)m->scene->block_bytes / seconds / 1e9);
    return true;
}

static bool one_way(mover *m, uint64_t seed)
{
    bench_scene *s = m->scene;
    bench_work store = {.n_store = s->shape.n_blocks}, restore = {.n_restore = s->shape.n_blocks};
    return bench_scene_fill(s, seed) && sample(m, &m->store, store) && bench_scene_fill(s, ~seed) &&
           sample(m, &m->restore, restore) && bench_scene_check(s, seed, m->name);
}

/* The mover has everything stored with `seed`. */
static bool both_ways(mover *m, uint64_t seed)
{
    bench_scene *s = m->scene;
    uint32_t n = s->shape.n_blocks / 2;
    bench_work both = {.n_store = n, .restore_first = n, .n_restore = n}, back = {.n_restore = n};
    uint64_t other = seed + (1ull << 32);
    bench_part stored = {0, n, m->kind && m->kind->linear}, restored = {n, n, stored.linear};
    double seconds;
    if (n == 0)
        return true;
    if (!bench_scene_fill(s, other) || !sample(m, &m->both, both))
        return false;
    return bench_scene_check_blocks(s, &restored, seed, "restored while others were stored") &&
           bench_scene_fill(s, ~other) && move(m, back, &seconds) &&
           bench_scene_check_blocks(s, &stored, other, "stored while others were restored");
}

/* -------------------------------------------------------------------------------------------------------------- table
 */

static void print_cell(bench_samples *s, bool shown)
{
    if (shown && s->n)
        printf("  %7.2f (%6.2f-%6.2f)", bench_median(s), bench_quantile(s, 0.1), bench_quantile(s, 0.9));
    else
        printf("  %7s %15s", "-", "");
}

static void report_mover(mover *m, const bench_case *c, bench_rates *rates)
{
    bench *b = m->scene->b;
    rates->name = m->name;
    printf("  %-18s", m->name);
    print_cell(&m->store, true);
    print_cell(&m->restore, !m->hints);
    print_cell(&m->both, true);
    rates->store = bench_row(b, "store", "GB/s", &m->store, "mover=%s %s", m->name, c->params);
    if (!m->hints)
        rates->restore = bench_row(b, "restore", "GB/s", &m->restore, "mover=%s %s", m->name, c->params);
    if (m->both.n)
        rates->both = bench_row(b, "both", "GB/s", &m->both, "mover=%s %s", m->name, c->params);
}

static void report_ratio(bench *b, const bench_case *c, const char *metric, const bench_rates *of,
                         const bench_rates *to, double value, double base)
{
    if (value > 0 && base > 0)
        bench_value(b, metric, "x", value / base, "mover=%s to=%s %s", of->name, to->name, c->params);
}

static void report_ratios(bench *b, const bench_case *c, const bench_outcome *o, const bench_rates *of)
{
    uint32_t i;
    for (i = 0; i < o->n && strncmp(o->movers[i].name, "plain", 5) == 0; i++) {
        const bench_rates *to = &o->movers[i];
        printf("  %s %.2f", to->name + strlen("plain_"), of->store / to->store);
        if (of->restore > 0)
            printf("/%.2f", of->restore / to->restore);
        report_ratio(b, c, "store_ratio", of, to, of->store, to->store);
        report_ratio(b, c, "restore_ratio", of, to, of->restore, to->restore);
        report_ratio(b, c, "both_ratio", of, to, of->both, to->both);
    }
}

/* ------------------------------------------------------------------------------------------------------------ measure
 */

static bool measure_one(mover *m, const bench_case *c, bench_outcome *o)
{
    uint64_t seed = m->scene->b->settings.seed;
    bench_rates *rates = &o->movers[o->n];
    bool done = true;
    uint32_t i;
    for (i = 0; done && i <= c->repeat; i++) {
        m->warming = i == 0;
        done = one_way(m, seed + i) && both_ways(m, seed + i);
    }
    if (done) {
        report_mover(m, c, rates);
        if (!m->kind)
            report_ratios(m->scene->b, c, o, rates);
        putchar('\n');
        fflush(stdout);
        o->n++;
    }
    bench_samples_free(&m->store);
    bench_samples_free(&m->restore);
    bench_samples_free(&m->both);
    return done;
}

static bool measure_plain(bench_scene *s, const bench_case *c, bench_outcome *o)
{
    bench_plain plain;
    bool done = bench_plain_open(s, &plain);
    uint32_t i, n = done && plain.n_kinds < c->n_plain ? plain.n_kinds : c->n_plain;
    for (i = 0; done && i < n; i++) {
        mover m = {.name = plain.kinds[i].name, .scene = s, .plain = &plain, .kind = &plain.kinds[i]};
        if (!c->pieces_only || !m.kind->linear)
            done = measure_one(&m, c, o);
    }
    bench_plain_close(&plain);
    return done;
}

static bool measure_sealed(bench_scene *s, const bench_case *c, bench_outcome *o)
{
    mover staged = {.name = bench_on_cpu(s->b) ? "sealed" : "sealed_staged", .scene = s, .batch = c->batch};
    mover direct = {.name = "sealed_direct", .scene = s, .batch = c->batch, .hints = KVX_HINT_IDLE};
    if (!measure_one(&staged, c, o))
        return false;
    return !c->idle || bench_on_cpu(s->b) || measure_one(&direct, c, o);
}

bool bench_measure(bench_scene *s, const bench_case *c, bench_outcome *outcome)
{
    memset(outcome, 0, sizeof(*outcome));
    printf("\n%s; %u runs\n  %-18s  %-23s  %-23s  %-23s%s\n", c->title, c->repeat, "GB/s (p10-p90)", "store", "restore",
           "both, each", c->sealed ? "  store/restore: times plaintext" : "");
    fflush(stdout);
    return measure_plain(s, c, outcome) && (!c->sealed || measure_sealed(s, c, outcome));
}

bench_rates bench_rates_of(const bench_outcome *outcome, const char *name)
{
    static const bench_rates none = {"", 0, 0, 0};
    uint32_t i;
    for (i = 0; i < outcome->n; i++)
        if (strcmp(outcome->movers[i].name, name) == 0)
            return outcome->movers[i];
    return none;
}
