/* SPDX-License-Identifier: Apache-2.0 */
/* kvx-kat: runs published vector files through kvx's AES-256-GCM implementations (portable, the CPU engine's OpenSSL,
 * the portable one on the GPU) and counts right, wrong and skipped answers. */
#include "kat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/report.h"

#ifndef KVX_WITH_CUDA
#define KVX_WITH_CUDA 0
#endif

enum { RIGHT = 0, WRONG = 1, USAGE = 2, N_PATHS = 3 };

struct row {
    const char *path, *file;
    struct kat_count count;
};

struct run {
    int argc;
    char **argv;
    const char *json; /* report file or NULL */
    char **files;
    int n_files;
    struct row *rows; /* N_PATHS for each file */
    int n_rows;
};

#if KVX_WITH_CUDA
static const struct kat_path gpu = {"gpu", kvx_kat_gpu, kvx_kat_gpu_note};
#else
static int run_no_gpu(struct kat_request *requests, size_t n_requests)
{
    (void)requests;
    (void)n_requests;
    return 0;
}

static const char *note_no_gpu(void)
{
    return "built without CUDA";
}

static const struct kat_path gpu = {"gpu", run_no_gpu, note_no_gpu};
#endif

static const struct kat_path *const paths[N_PATHS] = {&kat_portable, &kat_openssl, &gpu};

static void print_usage(FILE *stream)
{
    fputs("usage: kvx-kat [--json REPORT] FILE...\n"
          "Checks AES-256-GCM against vector files: NIST CAVP (.rsp) or Wycheproof (JSON).\n"
          "  --json REPORT  also write the counts to REPORT\n"
          "  --help         print this\n"
          "Cases with other key or IV sizes are skipped and counted. Tags shorter than 128 bits are compared as the\n"
          "first bytes of the full tag. With KVX_REQUIRE_GPU=1 in the environment a missing GPU is a failure.\n"
          "Exit status: 0 all answers right; 1 a wrong answer, or nothing was run; 2 bad usage or unreadable file.\n",
          stream);
}

static void print_skipped(const struct kat_file *file)
{
    static const char *const reasons[KAT_N_SKIP] = {"", "key size", "IV size", "tag size", "open verdict"};
    size_t n[KAT_N_SKIP] = {0};
    for (size_t i = 0; i < file->n_cases; i++)
        n[file->cases[i].skip]++;
    printf("  skipped   %zu", file->n_cases - n[KAT_RUNS]);
    for (int reason = KAT_RUNS + 1; reason < KAT_N_SKIP; reason++)
        printf("%s %s %zu", reason == KAT_RUNS + 1 ? ":" : ",", reasons[reason], n[reason]);
    printf("\n");
}

static void print_row(const struct row *row, const struct kat_path *path)
{
    const char *note = path->note == NULL ? "" : path->note();
    if (row->count.status == 0)
        printf("  %s: not present (%s)\n", path->name, note);
    else if (row->count.status < 0)
        printf("  %s: FAILED (%s)\n", path->name, note);
    else
        printf("  %-9s run %zu, passed %zu, wrong %zu; tags by truncation %zu%s%s%s\n", path->name, row->count.run,
               row->count.passed, row->count.wrong, row->count.truncated, note[0] == '\0' ? "" : " (", note,
               note[0] == '\0' ? "" : ")");
}

/* Runs one file through all paths. Returns RIGHT, WRONG (memory short or a path failed) or USAGE (unreadable). */
static int run_file(struct run *run, const char *name)
{
    struct kat_file file;
    int status = RIGHT;
    if (!kat_read(name, &file)) {
        fprintf(stderr, "kvx-kat: %s: %s\n", name, file.error);
        kat_free(&file);
        return USAGE;
    }
    printf("%s: %zu cases\n", name, file.n_cases);
    for (int i = 0; i < N_PATHS; i++) {
        struct row *row = &run->rows[run->n_rows++];
        row->path = paths[i]->name;
        row->file = name;
        if (!kat_check(name, &file, paths[i], &row->count)) {
            fprintf(stderr, "kvx-kat: out of memory\n");
            status = WRONG;
        } else {
            print_row(row, paths[i]);
        }
        if (row->count.status < 0 || row->count.wrong > 0)
            status = WRONG;
    }
    print_skipped(&file);
    kat_free(&file);
    return status;
}

static int gpu_required(void)
{
    const char *value = getenv("KVX_REQUIRE_GPU");
    return value != NULL && strcmp(value, "1") == 0;
}

/* What the sums say: every path that is there ran something, and the GPU is there if it must be. */
static int judge_totals(const struct run *run)
{
    int status = RIGHT;
    for (int i = 0; i < N_PATHS; i++) {
        size_t n_run = 0, n_passed = 0;
        int present = 0;
        for (int r = i; r < run->n_rows; r += N_PATHS) {
            n_run += run->rows[r].count.run;
            n_passed += run->rows[r].count.passed;
            present |= run->rows[r].count.status != 0;
        }
        if (present)
            printf("total %-9s run %zu, passed %zu, wrong %zu\n", paths[i]->name, n_run, n_passed, n_run - n_passed);
        if (!present && (paths[i] != &gpu || gpu_required())) {
            fprintf(stderr, "kvx-kat: %s: not present, but required\n", paths[i]->name);
            status = WRONG;
        } else if (present && n_run == 0) {
            fprintf(stderr, "kvx-kat: %s: no case was run\n", paths[i]->name);
            status = WRONG;
        }
    }
    return status;
}

/* The last part of a path; in a report, blanks would end the value. */
static void base_name(const char *path, char *out, size_t out_bytes)
{
    const char *slash = strrchr(path, '/');
    snprintf(out, out_bytes, "%s", slash == NULL ? path : slash + 1);
    for (; *out != '\0'; out++)
        *out = *out == ' ' ? '_' : *out;
}

static void report_count(report *r, const struct row *row, const char *metric, size_t n)
{
    char file[256];
    base_name(row->file, file, sizeof file);
    report_row(r, "kat", metric, (double)n, "cases", "path=%s file=%s", row->path, file);
}

static int write_report(const struct run *run)
{
    int written = 0;
    report *r = report_create(run->argc, run->argv);
    if (r == NULL)
        return WRONG;
    report_host(r);
    report_machine(r, "gpu", "%s", gpu.note());
    for (int i = 0; i < run->n_rows; i++) {
        const struct row *row = &run->rows[i];
        if (row->count.status != 1)
            continue;
        report_count(r, row, "run", row->count.run);
        report_count(r, row, "passed", row->count.passed);
        report_count(r, row, "wrong", row->count.wrong);
        report_count(r, row, "truncated_tags", row->count.truncated);
    }
    written = report_write(r, run->json);
    report_destroy(r);
    return written ? RIGHT : USAGE;
}

/* ---- command line ---- */

static int parse(struct run *run)
{
    for (int i = 1; i < run->argc; i++) {
        if (strcmp(run->argv[i], "--json") == 0 && i + 1 < run->argc)
            run->json = run->argv[++i];
        else if (run->argv[i][0] == '-')
            return 0;
        else
            run->files[run->n_files++] = run->argv[i];
    }
    return run->n_files > 0;
}

static int run_all(struct run *run)
{
    int status = RIGHT;
    for (int i = 0; i < run->n_files; i++) {
        const int one = run_file(run, run->files[i]);
        status = one > status ? one : status;
    }
    if (status != USAGE) {
        const int totals = judge_totals(run);
        status = totals > status ? totals : status;
    }
    if (run->json != NULL) {
        const int written = write_report(run);
        status = written > status ? written : status;
    }
    return status;
}

int main(int argc, char **argv)
{
    struct run run = {argc, argv, NULL, NULL, 0, NULL, 0};
    int status = USAGE;
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        print_usage(stdout);
        return RIGHT;
    }
    run.files = (char **)calloc((size_t)argc + 1, sizeof *run.files);
    run.rows = (struct row *)calloc((size_t)argc * N_PATHS + 1, sizeof *run.rows);
    if (run.files == NULL || run.rows == NULL)
        fprintf(stderr, "kvx-kat: out of memory\n");
    else if (!parse(&run))
        print_usage(stderr);
    else
        status = run_all(&run);
    free(run.rows);
    free(run.files);
    return status;
}
