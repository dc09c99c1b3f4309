/* SPDX-License-Identifier: Apache-2.0 */
/* kvx-bench: how fast sealed offload is, and what it costs beside plaintext offload. See --help. */
#include "bench.h"

#include <stdio.h>
#include <string.h>

static const bench_sub *const subs[] = {
    &bench_link,         &bench_transfer, &bench_layouts, &bench_crypt, &bench_latency,
    &bench_interference, &bench_cpu_gcm,  &bench_pool,    NULL,
};

/* A run that adds no figure has measured nothing, whatever it says. */
static bool run_one(bench *b, const bench_sub *sub)
{
    double start = bench_now();
    size_t n_rows = report_n_rows(b->report);
    uint32_t n_skipped = b->n_skipped;
    bool done;
    b->sub = sub;
    printf("\n== %s: %s\n", sub->name, sub->summary);
    fflush(stdout);
    done = sub->run(b);
    if (done && report_n_rows(b->report) == n_rows && b->n_skipped == n_skipped)
        bench_fail(b, "the options leave nothing to measure");
    fflush(stdout);
    bench_say("%s: %s after %.1f s", sub->name, done ? "done" : "broken off", bench_now() - start);
    return done;
}

/* A sub-bench that cannot run here does not keep the others from running. */
static bool run_all(bench *b)
{
    bool done = true;
    size_t i;
    for (i = 0; subs[i]; i++)
        done = run_one(b, subs[i]) && done;
    return done;
}

/* Every check of bytes is one of device_compare(): it must see the pattern where it is, and nowhere else. */
static bool comparison_works(bench *b)
{
    const uint64_t n_bytes = 1u << 20, half = n_bytes / 2;
    uint64_t same = 1, shifted = 0, other = 0;
    void *memory = NULL;
    bool done = device_alloc(&b->dev, n_bytes, &memory) && device_fill(&b->dev, memory, n_bytes, 1, 0) &&
                device_fill(&b->dev, memory, half, 2, 0) &&
                device_compare(&b->dev, (uint8_t *)memory + half, half, 1, half, &same) &&
                device_compare(&b->dev, (uint8_t *)memory + half, half, 1, half + 16, &shifted) &&
                device_compare(&b->dev, memory, n_bytes, 1, 0, &other);
    device_free(&b->dev, memory);
    if (done && same == 0 && shifted == half / 8 && other == half / 8)
        return true;
    fputs("the comparison of bytes does not tell right from wrong: nothing was measured\n", stderr);
    return false;
}

static bool run_on_device(bench *b, const bench_sub *sub)
{
    bool done;
    device_describe(&b->dev, b->report);
    report_host(b->report);
    report_print_machine(b->report);
    done = comparison_works(b) && (sub ? run_one(b, sub) : run_all(b));
    report_outcome(b->report, done && b->n_failed == 0);
    if (b->settings.json && !report_write(b->report, b->settings.json))
        done = false;
    return done;
}

int main(int argc, char **argv)
{
    const bench_sub *sub = NULL;
    bench_parse parsed;
    bool done = false;
    bench b;
    memset(&b, 0, sizeof(b));
    parsed = bench_options_parse(argc, argv, subs, &b.settings, &sub);
    if (parsed != BENCH_RUN)
        return parsed == BENCH_HELP ? 0 : 2;
    b.report = report_create(argc, argv);
    if (!b.report) {
        fputs("no memory for the report\n", stderr);
        return 1;
    }
    if (device_open(b.settings.engine, b.settings.device, &b.dev)) {
        done = run_on_device(&b, sub);
        device_close(&b.dev);
    }
    report_destroy(b.report);
    if (!done)
        puts("\nFAIL: not everything could be measured; the reason is above");
    else if (b.n_failed)
        printf("\nFAIL: %u of the checks failed, see above\n", b.n_failed);
    else if (b.n_skipped)
        puts("\nPASS: every restored byte was the byte stored; what was not measured here is said above");
    else
        puts("\nPASS: everything was measured, and every restored byte was the byte stored");
    return done && b.n_failed == 0 ? 0 : 1;
}
