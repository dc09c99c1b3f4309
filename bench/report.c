/* SPDX-License-Identifier: Apache-2.0 */
/* Facts and rows in growing arrays of strings. A report that runs out of memory remembers that and says so at the end,
 * so that the callers in the middle of a measurement need not look. */
#define _POSIX_C_SOURCE 200809L
#include "report.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "json_out.h"

typedef struct fact {
    char *key, *value;
} fact;

typedef struct row {
    char *bench, *metric, *unit, *params;
    double value, p10, p90;
    uint32_t n; /* samples; 0: none */
} row;

struct report {
    char *command;
    char date[32];
    fact *facts;
    row *rows;
    size_t n_facts, n_rows;
    const char *outcome; /* NULL: not judged */
    bool incomplete;     /* something did not fit into memory */
};

/* Paths lose their directories. */
static const char *shown(const char *argument)
{
    const char *slash = strrchr(argument, '/');
    return slash ? slash + 1 : argument;
}

static char *join(int argc, char *const *argv)
{
    size_t bytes = 1, at = 0;
    char *text;
    int i;
    for (i = 0; i < argc; i++)
        bytes += strlen(argv[i]) + 1;
    text = malloc(bytes);
    if (!text)
        return NULL;
    for (i = 0; i < argc; i++)
        at += (size_t)sprintf(text + at, "%s%s", i ? " " : "", shown(argv[i]));
    text[at] = '\0';
    return text;
}

report *report_create(int argc, char *const *argv)
{
    report *r = calloc(1, sizeof(*r));
    time_t now = time(NULL);
    struct tm utc;
    if (!r)
        return NULL;
    r->command = join(argc, argv);
    if (!r->command || !gmtime_r(&now, &utc)) {
        report_destroy(r);
        return NULL;
    }
    strftime(r->date, sizeof(r->date), "%Y-%m-%dT%H:%M:%SZ", &utc);
    return r;
}

static void free_row(const row *entry)
{
    free(entry->bench);
    free(entry->metric);
    free(entry->unit);
    free(entry->params);
}

void report_destroy(report *r)
{
    size_t i;
    if (!r)
        return;
    for (i = 0; i < r->n_facts; i++) {
        free(r->facts[i].key);
        free(r->facts[i].value);
    }
    for (i = 0; i < r->n_rows; i++)
        free_row(&r->rows[i]);
    free(r->facts);
    free(r->rows);
    free(r->command);
    free(r);
}

static char *format_text(const char *format, va_list arguments) __attribute__((format(printf, 1, 0)));
static char *format_text(const char *format, va_list arguments)
{
    va_list again;
    char *text = NULL;
    int n;
    va_copy(again, arguments);
    n = vsnprintf(NULL, 0, format, again);
    va_end(again);
    if (n >= 0)
        text = malloc((size_t)n + 1);
    if (text)
        vsnprintf(text, (size_t)n + 1, format, arguments);
    return text;
}

/* The fact of that key, added if there was none; NULL when memory is short. */
static fact *find_fact(report *r, const char *key)
{
    fact *grown;
    size_t i;
    for (i = 0; i < r->n_facts; i++)
        if (strcmp(r->facts[i].key, key) == 0)
            return &r->facts[i];
    grown = realloc(r->facts, (r->n_facts + 1) * sizeof(*grown));
    if (!grown)
        return NULL;
    r->facts = grown;
    grown[r->n_facts].value = NULL;
    grown[r->n_facts].key = strdup(key);
    return grown[r->n_facts].key ? &grown[r->n_facts++] : NULL;
}

void report_machine(report *r, const char *key, const char *format, ...)
{
    fact *entry = find_fact(r, key);
    va_list arguments;
    char *text;
    va_start(arguments, format);
    text = format_text(format, arguments);
    va_end(arguments);
    if (!entry || !text) {
        r->incomplete = true;
        free(text);
        return;
    }
    free(entry->value);
    entry->value = text;
}

void report_figure_row(report *r, const char *bench, const char *metric, const report_figure *figure,
                       const char *params, va_list arguments)
{
    row entry = {strdup(bench), strdup(metric), strdup(figure->unit), NULL, 0, 0, 0, figure->n};
    row *grown;
    entry.value = figure->value;
    entry.p10 = figure->p10;
    entry.p90 = figure->p90;
    entry.params = format_text(params, arguments);
    grown = realloc(r->rows, (r->n_rows + 1) * sizeof(*grown));
    if (grown)
        r->rows = grown;
    if (!grown || !entry.bench || !entry.metric || !entry.unit || !entry.params) {
        r->incomplete = true;
        free_row(&entry);
        return;
    }
    grown[r->n_rows++] = entry;
}

void report_row(report *r, const char *bench, const char *metric, double value, const char *unit, const char *params,
                ...)
{
    report_figure figure = {value, 0, 0, 0, unit};
    va_list arguments;
    va_start(arguments, params);
    report_figure_row(r, bench, metric, &figure, params, arguments);
    va_end(arguments);
}

size_t report_n_rows(const report *r)
{
    return r->n_rows;
}

void report_outcome(report *r, bool passed)
{
    r->outcome = passed ? "pass" : "fail";
}

/* ------------------------------------------------------------------------------------------------------- for people */

static int width(size_t so_far, const char *text)
{
    size_t n = strlen(text);
    return (int)(n > so_far ? n : so_far);
}

void report_print_machine(const report *r)
{
    int w_key = 4;
    size_t i;
    for (i = 0; i < r->n_facts; i++)
        w_key = width((size_t)w_key, r->facts[i].key);
    printf("%-*s  %s\n", w_key, "date", r->date);
    for (i = 0; i < r->n_facts; i++)
        printf("%-*s  %s\n", w_key, r->facts[i].key, r->facts[i].value ? r->facts[i].value : "");
    fflush(stdout);
}

void report_print(const report *r)
{
    int w_bench = 5, w_metric = 6, w_unit = 4;
    size_t i;
    for (i = 0; i < r->n_rows; i++) {
        w_bench = width((size_t)w_bench, r->rows[i].bench);
        w_metric = width((size_t)w_metric, r->rows[i].metric);
        w_unit = width((size_t)w_unit, r->rows[i].unit);
    }
    putchar('\n');
    report_print_machine(r);
    printf("\n%-*s  %-*s  %12s  %-*s  params\n", w_bench, "bench", w_metric, "metric", "value", w_unit, "unit");
    for (i = 0; i < r->n_rows; i++) {
        const row *e = &r->rows[i];
        printf("%-*s  %-*s  %12.6g  %-*s  %s\n", w_bench, e->bench, w_metric, e->metric, e->value, w_unit, e->unit,
               e->params);
    }
    fflush(stdout);
}

/* ----------------------------------------------------------------------------------------------------- for machines */

/* Words "key=value"; a word without '=' becomes a key that is true. */
static void write_params(FILE *file, const char *params)
{
    char *copy = strdup(params), *rest = NULL, *word, *value;
    const char *comma = "";
    fputc('{', file);
    for (word = copy ? strtok_r(copy, " ", &rest) : NULL; word; word = strtok_r(NULL, " ", &rest)) {
        value = strchr(word, '=');
        if (value)
            *value++ = '\0';
        fputs(comma, file);
        json_out_string(file, word);
        fputs(": ", file);
        if (value)
            json_out_scalar(file, value);
        else
            fputs("true", file);
        comma = ", ";
    }
    fputc('}', file);
    free(copy);
}

static void write_row(FILE *file, const row *entry)
{
    fputs("{\"bench\": ", file);
    json_out_string(file, entry->bench);
    fputs(", \"metric\": ", file);
    json_out_string(file, entry->metric);
    fputs(", \"value\": ", file);
    json_out_number(file, entry->value);
    if (entry->n) {
        fputs(", \"p10\": ", file);
        json_out_number(file, entry->p10);
        fputs(", \"p90\": ", file);
        json_out_number(file, entry->p90);
        fprintf(file, ", \"n\": %u", entry->n);
    }
    fputs(", \"unit\": ", file);
    json_out_string(file, entry->unit);
    fputs(", \"params\": ", file);
    write_params(file, entry->params);
    fputc('}', file);
}

static void write_object(const report *r, FILE *file)
{
    size_t i;
    fputs("{\"machine\": {", file);
    for (i = 0; i < r->n_facts; i++) {
        fputs(i ? ", " : "", file);
        json_out_string(file, r->facts[i].key);
        fputs(": ", file);
        json_out_string(file, r->facts[i].value ? r->facts[i].value : "");
    }
    fputs("},\n \"date\": ", file);
    json_out_string(file, r->date);
    fputs(",\n \"command\": ", file);
    json_out_string(file, r->command);
    if (r->outcome)
        fprintf(file, ",\n \"outcome\": \"%s\"", r->outcome);
    fputs(",\n \"rows\": [", file);
    for (i = 0; i < r->n_rows; i++) {
        fputs(i ? ",\n  " : "\n  ", file);
        write_row(file, &r->rows[i]);
    }
    fputs("\n ]}\n", file);
}

bool report_write(const report *r, const char *path)
{
    FILE *file = fopen(path, "w");
    bool failed;
    if (!file) {
        fprintf(stderr, "cannot write %s: %s: name a file in a directory that exists\n", path, strerror(errno));
        return false;
    }
    write_object(r, file);
    failed = ferror(file) != 0;
    failed = fclose(file) != 0 || failed;
    if (failed)
        fprintf(stderr, "cannot write all of %s: %s\n", path, strerror(errno));
    if (r->incomplete)
        fprintf(stderr, "%s is incomplete: memory ran short\n", path);
    return !failed && !r->incomplete;
}
