/* SPDX-License-Identifier: Apache-2.0 */
/* kvx-bench-check FILE BENCH: reads the JSON that kvx-bench wrote and checks that it is whole: machine, date, a command
 * line without directories, and rows of that bench with names, finite values and quantiles in order. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

static int n_wrong;

static void expect(bool holds, const char *what, const char *where)
{
    if (holds)
        return;
    fprintf(stderr, "%s: %s\n", where, what);
    n_wrong++;
}

static char *read_file(const char *path, size_t *n_bytes)
{
    const size_t room = 16u << 20;
    FILE *file = fopen(path, "rb");
    char *text = file ? malloc(room) : NULL;
    if (text)
        *n_bytes = fread(text, 1, room, file);
    if (file)
        fclose(file);
    return text;
}

static bool is_kind(const struct json *object, const char *name, enum json_kind kind)
{
    const struct json *member = json_member(object, name);
    return member && member->kind == kind;
}

static void check_head(const struct json *root)
{
    const char *command = json_text(root, "command", "/");
    expect(is_kind(root, "machine", JSON_OBJECT), "is missing or no object", "machine");
    expect(*json_text(json_member(root, "machine"), "engine", "") != '\0', "is missing", "machine.engine");
    expect(strlen(json_text(root, "date", "")) == strlen("2026-01-31T12:00:00Z"), "is no date", "date");
    expect(strncmp(command, "kvx-bench ", 10) == 0, "does not begin with the program's name", "command");
    expect(strchr(command, '/') == NULL, "names a directory", "command");
    expect(strcmp(json_text(root, "outcome", ""), "pass") == 0, "is not pass", "outcome");
}

static void check_row(const struct json *row, const char *bench)
{
    const char *metric = json_text(row, "metric", "");
    double value = json_number(row, "value", NAN);
    expect(strcmp(json_text(row, "bench", ""), bench) == 0, "row of another bench", metric);
    expect(*metric != '\0', "row without a metric", bench);
    expect(*json_text(row, "unit", "") != '\0', "row without a unit", metric);
    expect(isfinite(value), "value is no number", metric);
    expect(is_kind(row, "params", JSON_OBJECT), "row without params", metric);
    if (!json_member(row, "n"))
        return;
    expect(json_number(row, "n", 0) >= 1, "no samples", metric);
    expect(json_number(row, "p10", NAN) <= value && value <= json_number(row, "p90", NAN), "quantiles out of order",
           metric);
}

static void check_rows(const struct json *root, const char *bench)
{
    const struct json *row = json_first(json_member(root, "rows"));
    expect(row != NULL, "there are none", "rows");
    for (; row; row = row->next)
        check_row(row, bench);
}

int main(int argc, char **argv)
{
    struct json_error error = {0, ""};
    struct json *root;
    size_t n_bytes = 0;
    char *text;
    if (argc != 3) {
        fputs("usage: kvx-bench-check FILE BENCH\n", stderr);
        return 2;
    }
    text = read_file(argv[1], &n_bytes);
    if (!text) {
        fprintf(stderr, "cannot read %s\n", argv[1]);
        return 1;
    }
    root = json_read(text, n_bytes, &error);
    free(text);
    if (!root) {
        fprintf(stderr, "%s:%zu: %s\n", argv[1], error.line, error.what);
        return 1;
    }
    check_head(root);
    check_rows(root, argv[2]);
    json_free(root);
    return n_wrong == 0 ? 0 : 1;
}
