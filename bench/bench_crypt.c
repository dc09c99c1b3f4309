/* SPDX-License-Identifier: Apache-2.0 */
/* kvx-bench crypt: how fast units are sealed and opened where nothing is copied to or from the host, and where the time
 * goes: cipher alone, hash alone, few workers, many keys, gathered units, few units. */
#include "bench_crypt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pattern.h"

static const char *const op_names[CRYPT_N_OPS] = {"seal", "open", "ctr", "ghash"};

void crypt_key(uint32_t index, uint8_t key[32])
{
    uint32_t i;
    for (i = 0; i < 4; i++) {
        uint64_t word = pattern_word(0x6b6579 + index, i);
        memcpy(key + 8 * i, &word, 8);
    }
}

void crypt_iv(uint64_t number, uint8_t iv[12])
{
    int i;
    memset(iv, 0, 12);
    for (i = 11; i >= 4; i--) {
        iv[i] = (uint8_t)number;
        number >>= 8;
    }
}

/* What the run is made of. */
typedef struct plan {
    bench *b;
    const crypt_backend *backend;
    uint64_t n_bytes;
    uint32_t most_workers, n_samples;
    bench_list workers, sizes, pieces;
    bench_curve (*curves)[CRYPT_N_OPS]; /* rates by workers, of each size */
} plan;

static crypt_case case_of(const plan *p, const crypt_shape *shape, crypt_op op, uint32_t n_workers, uint32_t n_keys)
{
    crypt_case c = {op, shape->n_units, false, n_workers, n_keys, p->n_samples};
    return c;
}

/* One line of the table and the rows. `found` (may be NULL) gets the median. False: could not go on. */
static bool measure(const plan *p, crypt_scene *scene, const crypt_shape *shape, const crypt_case *c, double *found)
{
    bench_samples seconds = {0}, figures = {0};
    const double gigabytes = (double)c->n_units * (double)shape->unit_bytes / 1e9;
    double clock_hz = 0, median;
    char params[160];
    uint32_t i;
    const bool done = p->backend->run(scene, c, &seconds, &clock_hz);
    for (i = 0; done && i < seconds.n; i++)
        bench_samples_add(&figures, c->few ? seconds.values[i] * 1e6 : gigabytes / seconds.values[i]);
    if (done) {
        snprintf(params, sizeof(params), "unit=%s piece=%s units=%u %s=%u keys=%u", bench_size(shape->unit_bytes),
                 bench_size(shape->piece_bytes), c->n_units, p->backend->worker, c->n_workers, c->n_keys);
        median = bench_row(p->b, op_names[c->op], c->few ? "us" : "GB/s", &figures, "%s", params);
        printf("%-6s %6s %6s %6u %7u %5u  %9.2f %-5s %8.2f .. %-8.2f", op_names[c->op], bench_size(shape->unit_bytes),
               bench_size(shape->piece_bytes), c->n_units, c->n_workers, c->n_keys, median, c->few ? "us" : "GB/s",
               bench_quantile(&figures, 0.1), bench_quantile(&figures, 0.9));
        if (!c->few)
            printf(" %7.2f", median / c->n_workers);
        if (clock_hz > 0) {
            printf("%s %6.0f MHz", c->few ? "        " : "", clock_hz / 1e6);
            bench_value(p->b, "sm_clock", "MHz", clock_hz / 1e6, "op=%s %s", op_names[c->op], params);
        }
        putchar('\n');
        fflush(stdout);
        if (found)
            *found = median;
    }
    bench_samples_free(&seconds);
    bench_samples_free(&figures);
    return done;
}

/* Fewer workers get less to do, so that every measurement takes about as long. */
static uint32_t units_for(const plan *p, const crypt_shape *shape, uint32_t n_workers)
{
    const uint32_t most = p->most_workers;
    const uint32_t blocks = shape->n_units / CRYPT_BLOCK_UNITS;
    const uint32_t mine = (uint32_t)(((uint64_t)blocks * n_workers + most - 1) / most);
    return (mine < 1 ? 1 : mine) * CRYPT_BLOCK_UNITS;
}

static bool by_workers(const plan *p, crypt_scene *scene, const crypt_shape *shape, bench_curve *curves)
{
    double rate;
    crypt_op op;
    uint32_t i;
    for (op = CRYPT_SEAL; op < CRYPT_N_OPS; op++)
        for (i = 0; i < p->workers.n && p->backend->has(op); i++) {
            crypt_case c = case_of(p, shape, op, (uint32_t)p->workers.values[i], 1);
            c.n_units = units_for(p, shape, c.n_workers);
            if (!measure(p, scene, shape, &c, &rate))
                return false;
            bench_curve_add(&curves[op], c.n_workers, rate);
        }
    return true;
}

static bool by_keys(const plan *p, crypt_scene *scene, const crypt_shape *shape, bool one_key_too)
{
    crypt_op op;
    for (op = CRYPT_SEAL; op <= CRYPT_OPEN; op++) {
        crypt_case c = case_of(p, shape, op, p->most_workers, 1);
        if (one_key_too && !measure(p, scene, shape, &c, NULL))
            return false;
        c.n_keys = CRYPT_KEYS;
        if (!measure(p, scene, shape, &c, NULL))
            return false;
    }
    return true;
}

/* From launch to end where there is not enough to do for everybody. */
static bool by_few_units(const plan *p, crypt_scene *scene, const crypt_shape *shape)
{
    static const uint32_t counts[] = {1, 64};
    crypt_op op;
    size_t i;
    for (op = CRYPT_SEAL; op <= CRYPT_OPEN; op++)
        for (i = 0; i < 2; i++) {
            crypt_case c = case_of(p, shape, op, p->most_workers, 1);
            c.few = true;
            c.n_units = counts[i];
            c.n_samples = 4 * p->n_samples;
            if (counts[i] <= shape->n_units / CRYPT_BLOCK_UNITS && !measure(p, scene, shape, &c, NULL))
                return false;
        }
    return true;
}

static bool run_shape(const plan *p, uint32_t size, uint64_t piece_bytes)
{
    const uint64_t unit_bytes = p->sizes.values[size];
    const uint64_t block_bytes = unit_bytes * CRYPT_BLOCK_UNITS, n_blocks = p->n_bytes / block_bytes;
    const crypt_shape shape = {unit_bytes, piece_bytes, (uint32_t)(n_blocks ? n_blocks : 1) * CRYPT_BLOCK_UNITS};
    const bool contiguous = unit_bytes == piece_bytes;
    crypt_scene *scene = NULL;
    bool done;
    if (!p->backend->open(p->b, &shape, &scene))
        return false;
    done = (!contiguous || by_workers(p, scene, &shape, p->curves[size])) && by_keys(p, scene, &shape, !contiguous) &&
           (!contiguous || by_few_units(p, scene, &shape));
    p->backend->close(scene);
    return done;
}

static bool run_all(const plan *p)
{
    uint32_t i, j;
    printf("%-6s %6s %6s %6s %7s %5s  %9s %-5s %20s %7s %6s\n", "what", "unit", "piece", "units", p->backend->worker,
           "keys", "median", "", "p10 .. p90", "each", "clock");
    for (i = 0; i < p->sizes.n; i++) {
        if (!run_shape(p, i, p->sizes.values[i]))
            return false;
        for (j = 0; j < p->pieces.n; j++)
            if (p->pieces.values[j] < p->sizes.values[i] && !run_shape(p, i, p->pieces.values[j]))
                return false;
    }
    return true;
}

/* Numbers above what the machine has, and those given twice, are left out. */
static void fit_workers(plan *p)
{
    uint32_t i, n = 0;
    for (i = 0; i < p->workers.n; i++)
        if (p->workers.values[i] < p->most_workers)
            p->workers.values[n++] = p->workers.values[i];
    if (n < BENCH_LIST_MAX)
        p->workers.values[n++] = p->most_workers;
    p->workers.n = n;
}

static bool sizes_fit(const plan *p)
{
    uint32_t i, j;
    for (i = 0; i < p->sizes.n; i++)
        for (j = 0; j <= p->pieces.n; j++) {
            const uint64_t unit = p->sizes.values[i], piece = j < p->pieces.n ? p->pieces.values[j] : unit;
            if (unit % 32 == 0 && unit <= 4u << 20 && piece % 16 == 0 &&
                (piece >= unit || (unit % piece == 0 && unit / piece <= 64)))
                continue;
            fprintf(stderr,
                    "units of %s in pieces of %s: units are multiples of 32 bytes up to 4M, in at most 64 equal "
                    "pieces of multiples of 16\n",
                    bench_size(unit), bench_size(piece));
            return false;
        }
    return true;
}

#define PANELS_MAX 4u

/* The first sizes side by side. */
static bool draw(const plan *p)
{
    plot_panel panels[PANELS_MAX];
    char titles[PANELS_MAX][32], label[32];
    plot picture = {"AES-256-GCM within the device's memory", label, "GB/s", NULL, panels, 0, false};
    crypt_op op;
    memset(panels, 0, sizeof(panels));
    snprintf(label, sizeof(label), "%s", p->backend->worker);
    for (; picture.n_panels < PANELS_MAX && picture.n_panels < p->sizes.n; picture.n_panels++) {
        plot_panel *panel = &panels[picture.n_panels];
        const bench_curve *curves = p->curves[picture.n_panels];
        snprintf(titles[picture.n_panels], sizeof(titles[0]), "units of %s",
                 bench_size(p->sizes.values[picture.n_panels]));
        panel->title = titles[picture.n_panels];
        for (op = CRYPT_SEAL; op < CRYPT_N_OPS; op++)
            if (curves[op].n) {
                const plot_line line = {op_names[op], curves[op].x, curves[op].y, curves[op].n};
                panel->lines[panel->n_lines++] = line;
            }
    }
    return bench_plot(p->b, &picture);
}

static bool run(bench *b)
{
    bool done;
    const bool quick = b->settings.scale == BENCH_QUICK, on_cpu = bench_on_cpu(b);
    plan p = {.b = b, .backend = &crypt_cpu};
#if KVX_WITH_CUDA
    if (!on_cpu)
        p.backend = &crypt_gpu;
#endif
    p.most_workers = p.backend->most_workers(b);
    if (p.most_workers == 0)
        return false;
    p.n_bytes = bench_bytes(b, quick ? 2ull << 20 : 32ull << 20, 256ull << 20, 1ull << 30, 2ull << 30);
    p.n_samples = bench_repeat(b, 3, on_cpu ? 5 : 9, 15);
    p.workers = bench_list_of(b, "--workers", on_cpu ? "1" : quick ? "8" : "8,16,33,66");
    p.sizes = bench_list_of(b, "--units", quick ? "64K,256K" : "64K,256K,1M");
    p.pieces = bench_list_of(b, "--pieces", quick ? "16K" : "16K,64K");
    fit_workers(&p);
    p.curves = calloc(BENCH_LIST_MAX, sizeof(*p.curves));
    done = p.curves && sizes_fit(&p) && run_all(&p) && draw(&p);
    free(p.curves);
    return done;
}

double crypt_seal_rate(bench *b, uint64_t unit_bytes, uint64_t n_bytes)
{
#if KVX_WITH_CUDA
    const crypt_backend *backend = bench_on_cpu(b) ? &crypt_cpu : &crypt_gpu;
#else
    const crypt_backend *backend = &crypt_cpu;
#endif
    const uint64_t block_bytes = unit_bytes * CRYPT_BLOCK_UNITS;
    const crypt_shape shape = {unit_bytes, unit_bytes, (uint32_t)(n_bytes / block_bytes) * CRYPT_BLOCK_UNITS};
    const crypt_case c = {CRYPT_SEAL, shape.n_units, false, backend->most_workers(b), 1, 15};
    bench_samples seconds = {0};
    double clock_hz, rate = 0;
    crypt_scene *scene;
    if (c.n_workers == 0 || shape.n_units == 0 || !backend->open(b, &shape, &scene))
        return 0;
    if (backend->run(scene, &c, &seconds, &clock_hz))
        rate = (double)shape.n_units * (double)unit_bytes / 1e9 / bench_median(&seconds);
    backend->close(scene);
    bench_samples_free(&seconds);
    return rate;
}

static const bench_option options[] = {
    {"--units", BENCH_SIZES, "sizes of units (default 64K,256K,1M)"},
    {"--pieces", BENCH_SIZES, "sizes of the pieces that units are gathered from (default 16K,64K)"},
    {"--workers", BENCH_COUNTS, "multiprocessors (default 8,16,33,66), or threads (default 1); all of them always"},
    {NULL, BENCH_FLAG, NULL},
};

const bench_sub bench_crypt = {
    "crypt",
    "seal, open and their halves within the device's memory",
    "Drives the kernels without the library around them, from GPU memory to GPU memory; on the CPU engine\n"
    "OpenSSL on threads. `ctr` is the cipher alone, `ghash` the hash alone. Rates of all units of a\n"
    "launch by the number of multiprocessors, with 1 key and with 8 that change every 16 units,\n"
    "contiguous and gathered from pieces; then the time from launch to end of 1 and of 64 units. `each`\n"
    "is the rate of one multiprocessor or thread, `clock` the mean clock of the multiprocessors while\n"
    "measuring. Samples of the sealed units are compared with OpenSSL, and all of them are opened again\n"
    "and compared.\n",
    options,
    run,
};
