/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the posture of this machine: a line for each check, and under each that is not good what to do. */
#include "info.h"

#include <stdio.h>
#include <string.h>

const char *const info_policies[INFO_N_POLICIES] = {"WARN", "ENFORCE", "DEV"};

static const char help[] =
    "usage: kvx-info [OPTIONS]\n"
    "\n"
    "Shows what kvx can find out about this machine: the trusted execution environment, the process, the GPU. None of\n"
    "it is proof; proof is a verdict on the evidence of kvx_evidence_get().\n"
    "\n"
    "  --contexts    also create a context under each policy, and say what came of it\n"
    "  --engine NAME auto, cuda or cpu: the engine of these contexts (default auto)\n"
    "  --json FILE   write the same as JSON; - is standard output, and then there is no table\n"
    "  --help        this text\n"
    "\n"
    "Exit status: 0 the policy ENFORCE would accept this machine, 1 it would not, 2 usage, 3 something failed.\n";

typedef struct options {
    const char *json;
    bool contexts;
    kvx_engine engine;
} options;

const char *info_state(kvx_check_state state)
{
    static const char *const names[] = {"unknown", "good", "BAD", "allowed", "-"};
    return names[state];
}

static bool read_engine(const char *text, kvx_engine *engine)
{
    static const char *const names[] = {"auto", "cuda", "cpu"};
    for (int i = 0; i < 3; i++)
        if (strcmp(text, names[i]) == 0) {
            *engine = (kvx_engine)i;
            return true;
        }
    return false;
}

/* 0: go on; else the exit status, negated if it is 0. */
static int read_options(int argc, char **argv, options *o)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--help") == 0) {
            fputs(help, stdout);
            return -1;
        }
        if (strcmp(argv[i], "--contexts") == 0) {
            o->contexts = true;
        } else if (strcmp(argv[i], "--json") == 0 && value) {
            o->json = value;
            i++;
        } else if (strcmp(argv[i], "--engine") == 0 && value && read_engine(value, &o->engine)) {
            i++;
        } else {
            fprintf(stderr, "kvx-info: %s is not understood here; --help\n", argv[i]);
            return 2;
        }
    }
    return 0;
}

static void print_table(const kvx_posture *p)
{
    for (uint32_t i = 0; i < p->n_checks; i++) {
        const kvx_check *check = &p->checks[i];
        printf("%-22s %-8s %s\n", check->name, info_state(check->state), check->found);
        if (check->state == KVX_CHECK_BAD || check->state == KVX_CHECK_UNKNOWN)
            printf("%-22s %-8s -> %s\n", "", "", check->remedy);
    }
    printf("\n%s\n", p->good_enough ? "The policy ENFORCE would accept this machine."
                                    : "The policy ENFORCE would refuse this machine; WARN and DEV go on.");
}

static void print_attempts(const info_attempt *attempts)
{
    puts("");
    for (int i = 0; i < INFO_N_POLICIES; i++)
        printf("context under %-8s %s: %s\n", info_policies[attempts[i].policy], kvx_status_text(attempts[i].status),
               attempts[i].note);
}

int main(int argc, char **argv)
{
    static kvx_posture posture = {.size = sizeof posture};
    static info_attempt attempts[INFO_N_POLICIES];
    options o = {0};
    int status = read_options(argc, argv, &o);
    if (status != 0)
        return status < 0 ? 0 : status;
    if (kvx_posture_get(NULL, &posture) != KVX_OK) {
        fprintf(stderr, "kvx-info: %s\n", kvx_last_error());
        return 3;
    }
    if (o.contexts)
        info_try(o.engine, attempts);
    if (!o.json || strcmp(o.json, "-") != 0) {
        print_table(&posture);
        if (o.contexts)
            print_attempts(attempts);
    }
    if (o.json && !info_write_json(o.json, &posture, o.contexts ? attempts : NULL))
        return 3;
    return posture.good_enough ? 0 : 1;
}
