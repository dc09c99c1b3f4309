/* SPDX-License-Identifier: Apache-2.0 */
/* kvx-demo: what sealed offload costs beside plaintext offload, and what a tampering host gets. See --help. */
#include "demo.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void demo_say(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

void demo_verdict(demo *d, bool passed, const char *metric, const char *text)
{
    printf("%s  %s\n", passed ? "PASS" : "FAIL", text);
    fflush(stdout);
    report_row(d->report, "check", metric, passed, "pass", "segments=%u", d->options.segments);
    d->n_failed += !passed;
}

bool demo_ok(kvx_status status, const char *doing)
{
    if (status != KVX_OK)
        fprintf(stderr, "%s: %s: %s\n", doing, kvx_status_text(status), kvx_last_error());
    return status == KVX_OK;
}

static void describe(demo *d)
{
    device_describe(&d->dev, d->report);
    report_host(d->report);
}

static bool run(demo *d)
{
    demo_rate plain[DEMO_RATES_MAX];
    uint32_t n_plain = 0;
    if (!d->options.no_baselines && !demo_plain(d, plain, &n_plain))
        return false;
    return demo_sealed(d, plain, n_plain) && demo_tamper(d);
}

/* On the CPU engine cache and pool are both host memory: rather say so now than be killed half-way. */
static bool fits(const demo *d)
{
    unsigned long long available = 0, needed = 2ull * d->options.n_bytes / 1024;
    char line[128];
    FILE *file = d->dev.engine == KVX_ENGINE_CPU ? fopen("/proc/meminfo", "r") : NULL;
    while (file && fgets(line, sizeof(line), file))
        if (sscanf(line, "MemAvailable: %llu kB", &available) == 1)
            break;
    if (file)
        fclose(file);
    if (available == 0 || needed <= available)
        return true;
    fprintf(stderr, "cache and pool need %.1f GiB of host memory, %.1f GiB are available: try a smaller --bytes\n",
            (double)needed / (1 << 20), (double)available / (1 << 20));
    return false;
}

static bool run_on_device(demo *d)
{
    bool done;
    describe(d);
    if (!fits(d))
        return false;
    if (!demo_cache_create(d))
        return false;
    done = run(d);
    demo_cache_destroy(d);
    report_print(d->report);
    if (d->options.json && !report_write(d->report, d->options.json))
        done = false;
    return done;
}

int main(int argc, char **argv)
{
    demo d;
    demo_parse parsed;
    bool done = false;
    memset(&d, 0, sizeof(d));
    parsed = demo_options_parse(argc, argv, &d.options);
    if (parsed != DEMO_RUN)
        return parsed == DEMO_HELP ? 0 : 2;
    d.report = report_create(argc, argv);
    if (!d.report) {
        fputs("no memory for the report\n", stderr);
        return 1;
    }
    if (device_open(d.options.engine, d.options.device, &d.dev)) {
        done = run_on_device(&d);
        device_close(&d.dev);
    }
    report_destroy(d.report);
    if (!done)
        puts("\nFAIL: the demonstration could not be completed; the reason is above");
    else if (d.n_failed)
        printf("\nFAIL: %u of the checks above failed\n", d.n_failed);
    else
        puts("\nPASS: every check passed");
    return done && d.n_failed == 0 ? 0 : 1;
}
