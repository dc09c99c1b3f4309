/* SPDX-License-Identifier: Apache-2.0 */
/* Messages, samples, rows and clocks of kvx-bench. */
#include "bench.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---------------------------------------------------------------------------------------------------------- messages
 */

void bench_say(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

void bench_fail(bench *b, const char *format, ...)
{
    va_list arguments;
    printf("FAIL  %s: ", b->sub->name);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    fflush(stdout);
    b->n_failed++;
}

bool bench_skip(bench *b, const char *why)
{
    printf("%s %s: not measured\n", b->sub->name, why);
    b->n_skipped++;
    return b->settings.all;
}

bool bench_ok(kvx_status status, const char *doing)
{
    if (status != KVX_OK)
        fprintf(stderr, "%s: %s: %s\n", doing, kvx_status_text(status), kvx_last_error());
    return status == KVX_OK;
}

bool bench_fits(uint64_t n_bytes)
{
    unsigned long long available = 0;
    char line[128];
    FILE *file = fopen("/proc/meminfo", "r");
    while (file && fgets(line, sizeof(line), file))
        if (sscanf(line, "MemAvailable: %llu kB", &available) == 1)
            break;
    if (file)
        fclose(file);
    if (available == 0 || n_bytes / 1024 <= available)
        return true;
    fprintf(stderr, "%.1f GiB of host memory are needed, %.1f GiB are available: try a smaller --bytes\n",
            (double)n_bytes / (1 << 30), (double)available / (1 << 20));
    return false;
}

const char *bench_size(uint64_t n_bytes)
{
    static _Thread_local char texts[8][24];
    static _Thread_local unsigned turn;
    static const char suffixes[] = "KMG";
    char *text = texts[turn++ % 8];
    double value = (double)n_bytes;
    int i = -1;
    while (value >= 1024 && i < 2) {
        value /= 1024;
        i++;
    }
    if (i < 0)
        snprintf(text, sizeof(texts[0]), "%g", value);
    else
        snprintf(text, sizeof(texts[0]), "%.4g%c", value, suffixes[i]);
    return text;
}

/* ----------------------------------------------------------------------------------------------------------- samples
 */

void bench_samples_add(bench_samples *s, double value)
{
    if (s->n == s->room) {
        uint32_t room = s->room ? 2 * s->room : 16;
        double *grown = realloc(s->values, room * sizeof(*grown));
        if (!grown) {
            s->lost = true;
            return;
        }
        s->values = grown;
        s->room = room;
    }
    s->values[s->n++] = value;
}

void bench_samples_free(bench_samples *s)
{
    free(s->values);
    memset(s, 0, sizeof(*s));
}

static int compare_numbers(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_quantile(bench_samples *s, double q)
{
    double place, part;
    uint32_t below;
    if (s->n == 0)
        return 0;
    qsort(s->values, s->n, sizeof(*s->values), compare_numbers);
    place = q * (s->n - 1);
    below = (uint32_t)place;
    part = place - below;
    if (below + 1 >= s->n)
        return s->values[s->n - 1];
    return s->values[below] * (1 - part) + s->values[below + 1] * part;
}

/* -------------------------------------------------------------------------------------------------------------- rows
 */

double bench_row(bench *b, const char *metric, const char *unit, bench_samples *s, const char *params, ...)
{
    report_figure figure = {bench_median(s), bench_quantile(s, 0.1), bench_quantile(s, 0.9), s->n, unit};
    va_list arguments;
    if (s->lost)
        bench_fail(b, "%s: samples were lost for want of memory", metric);
    va_start(arguments, params);
    report_figure_row(b->report, b->sub->name, metric, &figure, params, arguments);
    va_end(arguments);
    return figure.value;
}

void bench_value(bench *b, const char *metric, const char *unit, double value, const char *params, ...)
{
    report_figure figure = {value, 0, 0, 0, unit};
    va_list arguments;
    va_start(arguments, params);
    report_figure_row(b->report, b->sub->name, metric, &figure, params, arguments);
    va_end(arguments);
}

/* -------------------------------------------------------------------------------------------------------------- time
 */

double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

bool bench_begin(bench *b)
{
    if (!device_sync(&b->dev))
        return false;
    b->began = bench_now();
    return device_mark(&b->dev);
}

bool bench_end(bench *b, double *seconds)
{
    double by_clock = bench_now() - b->began;
    *seconds = b->dev.end ? device_seconds(&b->dev) : by_clock;
    return *seconds >= 0;
}
