/* SPDX-License-Identifier: Apache-2.0 */
/* Command line of kvx-bench: options of the program may stand anywhere, those of a sub-bench after its name. Values are
 * checked here, so that the sub-benches read them without failing. */
#include "bench.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char head[] =
    "usage: kvx-bench [OPTIONS] SUB|all [OPTIONS OF SUB]\n"
    "       kvx-bench SUB --help\n"
    "\n"
    "Measures sealed offload and the plaintext offload that it stands beside, in one run. Every restored byte is\n"
    "compared with what was stored and every verdict is read: a measurement of wrong bytes is a failure.\n"
    "\n";

static const char common[] =
    "\n"
    "  --engine E      auto, cuda or cpu (default auto: a GPU if there is one)\n"
    "  --device N      number of the GPU (default 0)\n"
    "  --quick         few sizes and runs, seconds in all\n"
    "  --full          all sizes, minutes\n"
    "  --bytes N       data of one measurement, with K, M or G (default by SUB, engine and scale)\n"
    "  --repeat N      runs of each measurement (default by scale); shown is the median, and p10 and p90\n"
    "  --seed N        of the test data (default 1)\n"
    "  --json FILE     write every figure and the machine to FILE\n"
    "  --plot FILE     draw rates as SVG; with `all` one file for each SUB, named FILE-SUB.svg\n"
    "  --help          this text, or that of SUB\n"
    "\n"
    "Exit status: 0 everything measured and right, 1 something failed, 2 usage.\n";

/* ------------------------------------------------------------------------------------------------------------ values
 */

static bool read_number(const char *text, uint64_t *number, const char **rest)
{
    char *end;
    unsigned long long value;
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    value = strtoull(text, &end, 0);
    *number = value;
    *rest = end;
    return errno == 0;
}

/* A number, with K, M or G if it is a size. `rest` is where it ended. */
static bool read_size(const char *text, bool suffix, uint64_t *value, const char **rest)
{
    static const char suffixes[] = "KMG";
    const char *found;
    unsigned shift;
    if (!read_number(text, value, rest) || *value == 0)
        return false;
    found = suffix && **rest ? strchr(suffixes, **rest) : NULL;
    if (!found)
        return true;
    shift = 10 * ((unsigned)(found - suffixes) + 1);
    if (*value > UINT64_MAX >> shift)
        return false;
    *value <<= shift;
    ++*rest;
    return true;
}

static bool read_list(const char *text, bench_kind kind, bench_list *list)
{
    list->n = 0;
    for (;; text++) {
        if (list->n == BENCH_LIST_MAX || !read_size(text, kind == BENCH_SIZES, &list->values[list->n], &text))
            return false;
        list->n++;
        if (*text != ',')
            return *text == '\0';
    }
}

static bool read_up_to(const char *text, uint64_t most, uint64_t *number)
{
    const char *rest;
    return read_number(text, number, &rest) && !*rest && *number <= most;
}

static bool read_engine(const char *text, kvx_engine *engine)
{
    static const char *const names[] = {"auto", "cuda", "cpu"};
    static const kvx_engine engines[] = {KVX_ENGINE_AUTO, KVX_ENGINE_CUDA, KVX_ENGINE_CPU};
    size_t i;
    for (i = 0; i < 3; i++)
        if (strcmp(text, names[i]) == 0) {
            *engine = engines[i];
            return true;
        }
    return false;
}

/* ------------------------------------------------------------------------------------------------- program's options
 */

/* What the option takes, or NULL when the value is right. */
static const char *set_common(const char *name, const char *text, bench_settings *s)
{
    const char *rest;
    uint64_t number = 0;
    if (strcmp(name, "--engine") == 0)
        return read_engine(text, &s->engine) ? NULL : "auto, cuda or cpu";
    if (strcmp(name, "--bytes") == 0)
        return read_size(text, true, &s->n_bytes, &rest) && !*rest ? NULL : "a size, for instance 512M";
    if (strcmp(name, "--seed") == 0)
        return read_up_to(text, UINT64_MAX, &s->seed) ? NULL : "a number of at most 64 bits";
    if (strcmp(name, "--device") == 0) {
        if (!read_up_to(text, 1023, &number))
            return "the number of a GPU, from 0";
        s->device = (int)number;
        return NULL;
    }
    if (strcmp(name, "--repeat") == 0) {
        if (!read_up_to(text, 1000, &number) || number == 0)
            return "a number from 1 to 1000";
        s->repeat = (uint32_t)number;
        return NULL;
    }
    *(strcmp(name, "--json") == 0 ? &s->json : &s->plot) = text;
    return *text ? NULL : "the name of a file";
}

static bool is_common(const char *name)
{
    static const char *const names[] = {"--engine", "--bytes", "--seed", "--device", "--repeat", "--json", "--plot"};
    size_t i;
    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

static bool set_scale(const char *name, bench_settings *s)
{
    if (strcmp(name, "--quick") == 0)
        s->scale = BENCH_QUICK;
    else if (strcmp(name, "--full") == 0)
        s->scale = BENCH_FULL;
    else
        return false;
    return true;
}

/* -------------------------------------------------------------------------------------------------------------- help
 */

static void print_sub_help(const bench_sub *sub)
{
    const bench_option *option;
    printf("usage: kvx-bench [OPTIONS] %s [OPTIONS OF %s]\n\n%s: %s\n\n%s\n", sub->name, sub->name, sub->name,
           sub->summary, sub->help);
    for (option = sub->options; option && option->name; option++)
        printf("  %-15s %s\n", option->name, option->about);
    fputs(common, stdout);
}

static void print_help(const bench_sub *const *subs)
{
    size_t i;
    fputs(head, stdout);
    for (i = 0; subs[i]; i++)
        printf("  %-13s %s\n", subs[i]->name, subs[i]->summary);
    fputs(common, stdout);
}

/* ------------------------------------------------------------------------------------------------------------- parse
 */

static bench_parse complain(const char *name, const char *about)
{
    fprintf(stderr, "%s: %s; see kvx-bench --help\n", name, about);
    return BENCH_USAGE;
}

static const bench_sub *find_sub(const bench_sub *const *subs, const char *name)
{
    size_t i;
    for (i = 0; subs[i]; i++)
        if (strcmp(subs[i]->name, name) == 0)
            return subs[i];
    return NULL;
}

static const bench_option *find_option(const bench_sub *sub, const char *name)
{
    const bench_option *option;
    for (option = sub ? sub->options : NULL; option && option->name; option++)
        if (strcmp(option->name, name) == 0)
            return option;
    return NULL;
}

typedef struct parsing {
    int argc, at;
    char **argv;
    const bench_sub *const *subs;
    const bench_sub *sub;
    bool help;
    bench_settings *settings;
} parsing;

/* The value of the option at `at`, which is passed; NULL if there is none. */
static const char *take_value(parsing *p)
{
    return p->at + 1 < p->argc ? p->argv[++p->at] : NULL;
}

static bench_parse parse_sub_option(parsing *p, const bench_option *option)
{
    const char *text;
    bench_list list;
    if (option->kind == BENCH_FLAG)
        return BENCH_RUN;
    text = take_value(p);
    if (!text)
        return complain(option->name, "its value is missing");
    if (option->kind != BENCH_TEXT && !read_list(text, option->kind, &list))
        return complain(option->name, option->kind == BENCH_SIZES ? "takes sizes, for instance 4K,64K,1M"
                                                                  : "takes numbers from 1, for instance 1,16,256");
    return BENCH_RUN;
}

static bench_parse parse_common(parsing *p, const char *name)
{
    const char *text = take_value(p), *wanted;
    if (!text)
        return complain(name, "its value is missing");
    wanted = set_common(name, text, p->settings);
    if (!wanted)
        return BENCH_RUN;
    fprintf(stderr, "%s takes %s, not \"%s\"; see kvx-bench --help\n", name, wanted, text);
    return BENCH_USAGE;
}

static bench_parse parse_name(parsing *p, const char *name)
{
    if (name[0] == '-' && p->sub)
        return complain(name, "no such option here (options of a sub-bench: kvx-bench SUB --help)");
    if (name[0] == '-')
        return complain(name, "no such option, or it belongs after the name of its sub-bench");
    if (p->sub || p->settings->all)
        return complain(name, "one sub-bench at a time, or all");
    p->settings->all = strcmp(name, "all") == 0;
    p->sub = find_sub(p->subs, name);
    p->settings->arguments = p->argv + p->at + 1;
    p->settings->n_arguments = p->argc - p->at - 1;
    return p->sub || p->settings->all ? BENCH_RUN : complain(name, "no such sub-bench");
}

static bench_parse parse_one(parsing *p)
{
    const char *name = p->argv[p->at];
    const bench_option *option = find_option(p->sub, name);
    if (option)
        return parse_sub_option(p, option);
    if (strcmp(name, "--help") == 0) {
        p->help = true;
        return BENCH_RUN;
    }
    if (set_scale(name, p->settings))
        return BENCH_RUN;
    return is_common(name) ? parse_common(p, name) : parse_name(p, name);
}

bench_parse bench_options_parse(int argc, char **argv, const bench_sub *const *subs, bench_settings *settings,
                                const bench_sub **sub)
{
    static const bench_settings defaults = {.engine = KVX_ENGINE_AUTO, .scale = BENCH_NORMAL, .seed = 1};
    parsing p = {argc, 1, argv, subs, NULL, false, settings};
    bench_parse outcome = BENCH_RUN;
    *settings = defaults;
    for (; p.at < argc && outcome == BENCH_RUN; p.at++)
        outcome = parse_one(&p);
    if (outcome != BENCH_RUN)
        return outcome;
    if (!p.help && !p.sub && !settings->all)
        return complain("kvx-bench", "which sub-bench, or all?");
    if (p.help && p.sub)
        print_sub_help(p.sub);
    else if (p.help)
        print_help(subs);
    *sub = p.sub;
    return p.help ? BENCH_HELP : BENCH_RUN;
}

/* ---------------------------------------------------------------------------------------------- for the sub-benches */

/* Where the option was given last; the arguments' end if nowhere. */
static int find_given(const bench *b, const char *name)
{
    const bench_settings *s = &b->settings;
    int i = s->all ? -1 : s->n_arguments - 1;
    while (i >= 0 && strcmp(s->arguments[i], name) != 0)
        i--;
    return i < 0 ? s->n_arguments : i;
}

const char *bench_text(const bench *b, const char *name, const char *otherwise)
{
    int at = find_given(b, name);
    return at < b->settings.n_arguments ? b->settings.arguments[at + 1] : otherwise;
}

bench_list bench_list_of(const bench *b, const char *name, const char *otherwise)
{
    const bench_option *option = find_option(b->sub, name);
    const char *text = bench_text(b, name, otherwise);
    bench_list list = {{0}, 0};
    if (!option || !read_list(text, option->kind, &list))
        list.n = 0;
    return list;
}

bool bench_flag(const bench *b, const char *name)
{
    return find_given(b, name) < b->settings.n_arguments;
}

uint32_t bench_repeat(const bench *b, uint32_t quick, uint32_t normal, uint32_t full)
{
    const uint32_t by_scale[] = {quick, normal, full};
    return b->settings.repeat ? b->settings.repeat : by_scale[b->settings.scale];
}

uint64_t bench_bytes(const bench *b, uint64_t cpu, uint64_t quick, uint64_t normal, uint64_t full)
{
    const uint64_t by_scale[] = {quick, normal, full};
    if (b->settings.n_bytes)
        return b->settings.n_bytes;
    return bench_on_cpu(b) ? cpu : by_scale[b->settings.scale];
}
