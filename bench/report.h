/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_BENCH_REPORT_H
#define KVX_BENCH_REPORT_H
/*
 * What a program measured, as a table for people and as one JSON object for machines:
 *   {"machine": {...}, "date": "2026-01-31T12:00:00Z", "command": "...", "outcome": "pass",
 *    "rows": [{"bench": "...", "metric": "...", "value": 1.5, "unit": "GB/s", "params": {"segments": 64}}]}
 * A row of samples also has "p10", "p90" and "n"; its value is their median. Of paths in the command line only the last
 * part is kept: where files lie on one machine concerns nobody else. "outcome" (pass or fail) is there where the
 * program judges its own run: figures of a run that failed must not be quoted.
 */
#include <stdarg.h>
#include <stdbool.h>

#include "kvx.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct report report;

/* Keeps argv as the command line. NULL when memory is short. */
report *report_create(int argc, char *const *argv);
void report_destroy(report *r);

/* One fact about the machine. A later fact under the same key replaces the earlier one. */
void report_machine(report *r, const char *key, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Facts that every program reports: CPU, cores, memory, NUMA nodes, kernel, kvx version, confidential-computing state.
 * Facts about the GPU come from device_describe(). */
void report_host(report *r);

/* One figure. `params` formats to words "key=value" with blanks between them; values that are numbers become numbers.
 */
void report_row(report *r, const char *bench, const char *metric, double value, const char *unit, const char *params,
                ...) __attribute__((format(printf, 6, 7)));

/* A figure and, where n is not 0, how far its n samples spread. */
typedef struct report_figure {
    double value, p10, p90;
    uint32_t n;
    const char *unit;
} report_figure;

/* As report_row(). */
void report_figure_row(report *r, const char *bench, const char *metric, const report_figure *figure,
                       const char *params, va_list arguments) __attribute__((format(printf, 5, 0)));

size_t report_n_rows(const report *r);

/* What "outcome" says; not written unless this was called. */
void report_outcome(report *r, bool passed);

/* The machine, to stdout. */
void report_print_machine(const report *r);

/* The machine and all rows so far, to stdout. */
void report_print(const report *r);

/* Writes the JSON object. False, with a message on stderr, when it could not be written or a row was lost for want of
 * memory. */
bool report_write(const report *r, const char *path);

#ifdef __cplusplus
}
#endif

#endif
