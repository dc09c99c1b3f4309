/* SPDX-License-Identifier: Apache-2.0 */
/* kvx-bench interference: what offload costs the work beside it. Each workload runs alone and beside each offload,
 * which has been going on for a while when the clock starts. */
#include <stdio.h>
#include <stdlib.h>

#include "bench_crypt.h"

#if KVX_WITH_CUDA
#include "bench_offload.h"
#include "bench_workload.h"

#define PACED_RATE 2.6e9 /* bytes a second: new KV of one busy GPU */
#define ALLOWED_POINTS 3.0
#define N_BLOCKS_QUICK 64u
#define N_BLOCKS 256u
#define UNIT_BYTES 65536u
#define BURST_BYTES (64u << 20)
#define P99_STEPS 100u /* fewer have no 99th of 100 */

/* MATCHED: at the rate that the plaintext pieces reached beside the same workload. */
typedef enum pace { FULL, MATCHED, PACED } pace;

static const struct side {
    const char *name;
    offload_mover mover;
    bool store;
    pace pace;
} sides[] = {
    {"plain_pieces_out", OFFLOAD_PIECES, true, FULL},  {"plain_kernel_out", OFFLOAD_KERNEL, true, FULL},
    {"kvx_staged_out", OFFLOAD_STAGED, true, FULL},    {"kvx_staged_out", OFFLOAD_STAGED, true, MATCHED},
    {"kvx_direct_out", OFFLOAD_DIRECT, true, FULL},    {"plain_pieces_in", OFFLOAD_PIECES, false, FULL},
    {"plain_kernel_in", OFFLOAD_KERNEL, false, FULL},  {"kvx_restore", OFFLOAD_STAGED, false, FULL},
    {"kvx_restore", OFFLOAD_STAGED, false, MATCHED},   {"plain_pieces_out", OFFLOAD_PIECES, true, PACED},
    {"plain_kernel_out", OFFLOAD_KERNEL, true, PACED}, {"kvx_staged_out", OFFLOAD_STAGED, true, PACED},
    {"kvx_direct_out", OFFLOAD_DIRECT, true, PACED},   {"plain_pieces_in", OFFLOAD_PIECES, false, PACED},
    {"plain_kernel_in", OFFLOAD_KERNEL, false, PACED}, {"kvx_restore", OFFLOAD_STAGED, false, PACED},
};
static const char *const pace_names[] = {"full", "matched", "paced"};

typedef struct run_state {
    bench *b;
    offload *offload;
    workload *work;
    workload_kind kind;
    uint32_t n_steps, repeat;
    double seal_rate;         /* GB/s of the whole chip */
    double plain_rate[2];     /* GB/s of the pieces at full rate: in, out */
    double plain_slowdown[2]; /* per cent */
} run_state;

/* ------------------------------------------------------------------------------------------------------------- alone
 */

static bool choose_steps(run_state *r)
{
    const double wanted = r->b->settings.scale == BENCH_QUICK ? 0.04 : workload_is_decode(r->kind) ? 0.12 : 0.08;
    double seconds;
    uint32_t n;
    if (!workload_run(r->work, 4, NULL, NULL, &seconds) || !workload_check(r->work, "nothing") ||
        !workload_run(r->work, 8, NULL, NULL, &seconds))
        return false;
    n = (uint32_t)(wanted * 8 / seconds);
    r->n_steps = n < 10 ? 10 : n > WORKLOAD_STEPS_MAX ? WORKLOAD_STEPS_MAX : n;
    return true;
}

static void report_alone(run_state *r, bench_samples *steps)
{
    const char *name = workload_names[r->kind];
    const double median = bench_row(r->b, "step", "us", steps, "workload=%s beside=nothing", name);
    const double p99 = bench_quantile(steps, 0.99) - median;
    bool is_bytes;
    const double amount = workload_amount(r->work, &is_bytes), speed = amount / median / (is_bytes ? 1e3 : 1e6);
    const char *unit = is_bytes ? "GB/s" : "TFLOP/s";
    if (steps->n >= P99_STEPS)
        bench_value(r->b, "delay_p99", "us", p99, "workload=%s beside=nothing", name);
    bench_value(r->b, "speed", unit, speed, "workload=%s beside=nothing", name);
    printf("\n%s: %u steps of %.1f us alone; %.0f %s", name, r->n_steps, median, speed, unit);
    if (steps->n >= P99_STEPS)
        printf("; p99 %+.1f us", p99);
    putchar('\n');
}

static bool measure_alone(run_state *r)
{
    bench_samples steps = {0};
    double seconds;
    const bool done = choose_steps(r) && workload_run(r->work, r->n_steps, NULL, &steps, &seconds);
    if (done)
        report_alone(r, &steps);
    bench_samples_free(&steps);
    return done;
}

/* ------------------------------------------------------------------------------------------------------------ beside
 */

typedef struct figures {
    bench_samples alone_steps, steps, slowdown, rate;
    double starved; /* seconds without the end of a step; 0: never */
} figures;

static bool step_offload(void *context)
{
    return offload_step(context);
}

/* Offload alone, until it is in its stride. */
static bool run_in(offload *o)
{
    const double began = bench_now();
    while (bench_now() - began < 0.02)
        if (!offload_step(o))
            return false;
    return true;
}

static bool run_beside(run_state *r, const offload_plan *plan, figures *f, double *seconds)
{
    const workload_meanwhile meanwhile = {step_offload, r->offload};
    double bytes, began;
    offload_begin(r->offload, plan);
    if (!run_in(r->offload))
        return false;
    bytes = offload_bytes(r->offload);
    began = bench_now();
    if (!workload_run(r->work, r->n_steps, &meanwhile, &f->steps, seconds))
        return false;
    f->starved = workload_starved(r->work);
    bench_samples_add(&f->rate, (offload_bytes(r->offload) - bytes) / (bench_now() - began) / 1e9);
    return offload_end(r->offload);
}

/* Each run beside offload is held against one alone just before or after it: a GPU at its power limit does not keep the
 * same clock for long. A starved workload is not tried again. */
static bool measure_beside(run_state *r, const offload_plan *plan, figures *f)
{
    double alone, beside;
    uint32_t i;
    for (i = 0; i < r->repeat && f->starved <= 0; i++) {
        if (i % 2 == 0 && !workload_run(r->work, r->n_steps, NULL, &f->alone_steps, &alone))
            return false;
        if (!run_beside(r, plan, f, &beside))
            return false;
        if (i % 2 == 1 && !workload_run(r->work, r->n_steps, NULL, &f->alone_steps, &alone))
            return false;
        bench_samples_add(&f->slowdown, 100 * (beside / alone - 1));
    }
    return true;
}

/* The share of the chip that the bursts of a sealed offload take, in per cent; negative for what does not seal in
 * bursts. */
static double share_of(const run_state *r, const struct side *s, double rate)
{
    return s->mover == OFFLOAD_STAGED && r->seal_rate > 0 ? 100 * rate / r->seal_rate : -1;
}

/* What the slowdown may be: a little more than plaintext's at the same rate, and where the workload fills the chip the
 * bursts' share; 1 % when paced. Negative: nothing is asked of this one. */
static double bound_of(const run_state *r, const struct side *s, double share)
{
    if (s->mover != OFFLOAD_STAGED || s->pace == FULL)
        return -1;
    if (s->pace == PACED)
        return 1;
    return r->plain_slowdown[s->store] + ALLOWED_POINTS + (workload_is_decode(r->kind) ? 0 : share);
}

static void report_beside(run_state *r, const struct side *s, figures *f)
{
    const char *name = workload_names[r->kind], *pace_name = pace_names[s->pace];
    bench *b = r->b;
    const double rate =
        bench_row(b, "rate", "GB/s", &f->rate, "workload=%s beside=%s pace=%s", name, s->name, pace_name);
    const double slowdown =
        bench_row(b, "slowdown", "percent", &f->slowdown, "workload=%s beside=%s pace=%s", name, s->name, pace_name);
    const double delay = bench_quantile(&f->steps, 0.99) - bench_median(&f->alone_steps);
    const double share = share_of(r, s, rate);
    const double bound = bound_of(r, s, share);
    printf("  %-18s %-8s %8.2f %+10.2f %9.1f .. %-9.1f", s->name, pace_name, rate, slowdown,
           bench_quantile(&f->slowdown, 0.1), bench_quantile(&f->slowdown, 0.9));
    if (f->steps.n >= P99_STEPS) {
        bench_value(b, "delay_p99", "us", delay, "workload=%s beside=%s pace=%s", name, s->name, pace_name);
        printf(" %10.1f", delay);
    } else {
        printf(" %10s", "-");
    }
    if (share >= 0) {
        bench_value(b, "share", "percent", share, "workload=%s beside=%s pace=%s", name, s->name, pace_name);
        printf(" %8.2f", share);
    }
    if (bound >= 0) {
        bench_value(b, "bound", "percent", bound, "workload=%s beside=%s pace=%s", name, s->name, pace_name);
        printf(" %8.2f%s", bound, slowdown <= bound ? "" : "  above");
    }
    putchar('\n');
    fflush(stdout);
    if (s->mover == OFFLOAD_PIECES && s->pace == FULL) {
        r->plain_rate[s->store] = rate;
        r->plain_slowdown[s->store] = slowdown;
    }
}

/* Whether steps that end in a copy to the host could go on at all. Where not, there are no other figures. */
static void report_starved(run_state *r, const struct side *s, double seconds)
{
    bench_value(r->b, "starved", "s", seconds, "workload=%s beside=%s pace=%s", workload_names[r->kind], s->name,
                pace_names[s->pace]);
    if (seconds > 0)
        printf("  %-18s %-8s starved: no step ended for %.2f s, until the offload stopped\n", s->name,
               pace_names[s->pace], seconds);
    fflush(stdout);
}

static bool measure_side(run_state *r, const struct side *s)
{
    const double rates[] = {0, r->plain_rate[s->store] * 1e9, PACED_RATE};
    const offload_plan plan = {s->mover, s->store, rates[s->pace]};
    figures f = {{0}, {0}, {0}, {0}, 0};
    bool done;
    if (s->pace == MATCHED && rates[MATCHED] <= 0)
        return true; /* the rate to be matched could not be had */
    bench_say("%s beside %s, %s ...", workload_names[r->kind], s->name, pace_names[s->pace]);
    done = offload_prepare(r->offload, &plan) && measure_beside(r, &plan, &f) && workload_check(r->work, s->name) &&
           offload_check(r->offload, &plan, s->name);
    if (done && r->kind == WORKLOAD_TOKENS)
        report_starved(r, s, f.starved);
    if (done && f.starved <= 0)
        report_beside(r, s, &f);
    bench_samples_free(&f.alone_steps);
    bench_samples_free(&f.steps);
    bench_samples_free(&f.slowdown);
    bench_samples_free(&f.rate);
    return done;
}

static bool run_workload(run_state *r)
{
    const bool quick = r->b->settings.scale == BENCH_QUICK;
    size_t i;
    bool done;
    r->plain_rate[0] = r->plain_rate[1] = 0;
    if (!workload_open(r->b, r->kind, &r->work))
        return false;
    done = measure_alone(r);
    for (i = 0; done && i < sizeof(sides) / sizeof(sides[0]); i++)
        if (!quick || sides[i].mover != OFFLOAD_KERNEL)
            done = measure_side(r, &sides[i]);
    workload_close(r->work);
    return done;
}

static bool run_workloads(bench *b, bench_scene *scene)
{
    run_state r = {.b = b, .repeat = bench_repeat(b, 2, 3, 5)};
    workload_kind kind;
    bool done;
    r.seal_rate = crypt_seal_rate(b, UNIT_BYTES, BURST_BYTES);
    if (r.seal_rate <= 0 || !offload_open(scene, &r.offload))
        return false;
    bench_value(b, "seal_rate", "GB/s", r.seal_rate, "unit=%u burst=%u", UNIT_BYTES, BURST_BYTES);
    printf("the whole chip seals %.0f GB/s; share: of the chip, that the bursts take\n", r.seal_rate);
    printf("  %-18s %-8s %8s %10s %22s %10s %8s %8s\n", "beside", "pace", "GB/s", "slowdown %", "p10 .. p90", "p99 us",
           "share %", "bound %");
    for (done = true, kind = WORKLOAD_PERSISTENT; done && kind < WORKLOAD_KINDS; kind++) {
        r.kind = kind;
        done = run_workload(&r);
    }
    offload_close(r.offload);
    return done;
}

static bool run_on_gpu(bench *b)
{
    const bench_shape shape = {.n_blocks = b->settings.scale == BENCH_QUICK ? N_BLOCKS_QUICK : N_BLOCKS,
                               .n_layers = 64,
                               .n_kinds = 2,
                               .n_segments = 64,
                               .piece_bytes = {32768, 32768}};
    bench_scene scene;
    bool done;
    bench_no_picture(b);
    done = bench_scene_open(b, &shape, &scene) && run_workloads(b, &scene);
    return bench_scene_close(&scene) && done;
}
#endif

static bool run(bench *b)
{
#if KVX_WITH_CUDA
    if (!bench_on_cpu(b))
        return run_on_gpu(b);
#endif
    return bench_skip(b, "needs a GPU");
}

const bench_sub bench_interference = {
    "interference",
    "what offload costs the work beside it (needs a GPU)",
    "Matrix products that fill the GPU (one CTA to a multiprocessor, or one a tile), a prefill chunk and\n"
    "a step of decoding that does nothing but read memory, on a stream of high priority, each alone and\n"
    "beside offload of blocks of 4 MiB in 128 pieces. Pace: full, matched (the rate that plaintext pieces\n"
    "reached beside the same work), or paced to 2.6 GB/s. `slowdown`: of all steps together. `p99 us`: by\n"
    "how much the 99th of 100 steps is longer than the median step alone. `bound`: plaintext's slowdown +\n"
    "3 points, + the bursts' share where the work fills the chip; 1 % when paced. Results of the work and\n"
    "all bytes offloaded are compared afterwards. `decode_tokens` ends each step in a copy of 2 KiB to the\n"
    "host, as of sampled tokens: `starved` if no step ended for half a second, until the offload stopped.\n"
    "A p99 is left out where fewer than 100 steps were timed.",
    NULL,
    run,
};
