/* SPDX-License-Identifier: Apache-2.0 */
/* The plaintext baselines of the demonstration. Their host memory is a second pool, used as nothing but memory: pinned
 * in the same way and on the same NUMA node as the sealed one, and gone before that is made. Its slots are sorted by
 * address, the order that suits plain copies best. */
#define _POSIX_C_SOURCE 200809L
#include "demo.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "baseline.h"

double demo_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare_numbers(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double demo_median(double *values, uint32_t n)
{
    qsort(values, n, sizeof(*values), compare_numbers);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static int compare_addresses(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t) * (uint8_t *const *)a, y = (uintptr_t) * (uint8_t *const *)b;
    return (x > y) - (x < y);
}

static bool list_blocks(kvx_pool *pool, const kvx_slot *slots, uint32_t n, uint8_t **blocks)
{
    uint64_t n_bytes;
    void *bytes;
    uint32_t i;
    for (i = 0; i < n; i++) {
        if (!demo_ok(kvx_pool_slot_bytes(pool, slots[i], &bytes, &n_bytes), "kvx_pool_slot_bytes"))
            return false;
        blocks[i] = bytes;
    }
    qsort(blocks, n, sizeof(*blocks), compare_addresses);
    return true;
}

/* Out, overwrite, back, compare. Every run has data of its own, so leftovers of an earlier one cannot pass. */
static bool run_once(demo *d, baseline *b, const baseline_kind *kind, uint64_t seed, double seconds[2])
{
    baseline_work out = {BASELINE_OUT, 0, d->n_blocks}, in = {BASELINE_IN, 0, d->n_blocks};
    double start;
    if (!demo_cache_fill(d, seed))
        return false;
    start = demo_now();
    if (!kind->run(b, &out))
        return false;
    seconds[0] = demo_now() - start;
    if (!demo_cache_fill(d, ~seed))
        return false;
    start = demo_now();
    if (!kind->run(b, &in))
        return false;
    seconds[1] = demo_now() - start;
    return demo_cache_check(d, seed, kind->name);
}

static bool measure(demo *d, baseline *b, const baseline_kind *kind, demo_rate *rate)
{
    double gigabytes = (double)d->n_blocks * (double)DEMO_BLOCK_BYTES / 1e9, seconds[2];
    uint32_t i, n = d->options.repeat;
    double *out = calloc(2 * (size_t)n, sizeof(*out)), *in = out ? out + n : NULL;
    bool done = out != NULL;
    for (i = 0; done && i < n; i++) {
        done = run_once(d, b, kind, d->options.seed + i, seconds);
        if (done) {
            out[i] = seconds[0];
            in[i] = seconds[1];
        }
    }
    if (done) {
        rate->name = kind->name;
        rate->out = gigabytes / demo_median(out, n);
        rate->in = gigabytes / demo_median(in, n);
        printf("%-18s out %7.2f GB/s   in %7.2f GB/s   (%s)\n", kind->name, rate->out, rate->in, kind->about);
        fflush(stdout);
        report_row(d->report, kind->name, "out", rate->out, "GB/s", "blocks=%u repeat=%u", d->n_blocks, n);
        report_row(d->report, kind->name, "in", rate->in, "GB/s", "blocks=%u repeat=%u", d->n_blocks, n);
    }
    free(out);
    return done;
}

static bool measure_all(demo *d, uint8_t **host_blocks, demo_rate *rates, uint32_t *n_rates)
{
    uint64_t lane_bytes[DEMO_LANES];
    baseline_shape shape = {d->dev_cache, host_blocks, d->n_blocks, DEMO_LANES, lane_bytes};
    const baseline_kind *kinds;
    baseline *b;
    uint32_t i, n_kinds = 0;
    bool done = true;
    for (i = 0; i < DEMO_LANES; i++)
        lane_bytes[i] = DEMO_PIECE_BYTES;
    if (!baseline_open(&d->dev, &shape, &b))
        return false;
    kinds = baseline_kinds(&d->dev, &n_kinds);
    for (i = 0; done && i < n_kinds && i < DEMO_RATES_MAX; i++) {
        demo_say("%s, %u runs ...", kinds[i].name, d->options.repeat);
        done = measure(d, b, &kinds[i], &rates[i]);
    }
    baseline_close(b);
    *n_rates = i;
    return done;
}

bool demo_plain(demo *d, demo_rate rates[DEMO_RATES_MAX], uint32_t *n_rates)
{
    kvx_pool *pool;
    kvx_slot *slots;
    uint8_t **blocks;
    bool done = false;
    if (!demo_pool_create(d, "plain_pool", d->n_blocks, &pool, &slots))
        return false;
    blocks = calloc(d->n_blocks, sizeof(*blocks));
    if (!blocks)
        fputs("no memory for the list of blocks: try a smaller --bytes\n", stderr);
    else if (list_blocks(pool, slots, d->n_blocks, blocks))
        done = measure_all(d, blocks, rates, n_rates);
    free(blocks);
    free(slots);
    return demo_ok(kvx_pool_destroy(pool), "kvx_pool_destroy") && done;
}
