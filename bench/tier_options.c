/* SPDX-License-Identifier: Apache-2.0 */
/* Command line of kvx-tier. */
#define _POSIX_C_SOURCE 200809L
#include "tier.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: kvx-tier [OPTIONS] [TRACE...]\n"
    "\n"
    "Replays traces of requests against the cache tier and prints its hit rate against its capacity, for each "
    "eviction\n"
    "and write policy. Then it times lookups in a large index. The tier is dry: policies and index are the library's,\n"
    "but no byte is sealed, so no GPU is needed.\n"
    "\n"
    "TRACE is a file of lines {\"timestamp\": ms, \"input_length\": n, \"output_length\": n, \"hash_ids\": [n, ...]}, "
    "as\n"
    "published with Mooncake: equal ids stand for blocks of equal content and equal history. At most four files.\n"
    "\n"
    "  --capacity LIST  of the tier, in blocks (default 1000,5000,10000,30000,50000; unlimited is always added)\n"
    "  --gpu N          blocks in the GPU's own cache, for the write policies (default 1000)\n"
    "  --hits N         uses after which the selective policy stores a block (default 2)\n"
    "  --index N        blocks in the large index (default 10000000; 0: leave it out)\n"
    "  --chain N        blocks per lookup in it (default 1000)\n"
    "  --repeat N       lookups timed (default 2000)\n"
    "  --json FILE      write every figure to FILE\n"
    "  --plot FILE      draw the hit rates into FILE, as SVG\n"
    "  --help           this text\n"
    "\n"
    "Exit status: 0 done, 1 something failed, 2 usage.\n";

static bool read_count(const char *text, uint32_t least, uint32_t most, uint32_t *count, const char **rest)
{
    char *end;
    unsigned long long value;
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno != 0 || value < least || value > most)
        return false;
    *count = (uint32_t)value;
    *rest = end;
    return true;
}

static bool read_one(const char *text, uint32_t least, uint32_t most, uint32_t *count)
{
    const char *rest;
    return read_count(text, least, most, count, &rest) && !*rest;
}

static bool read_capacities(const char *text, tier_options *o)
{
    uint32_t *at = o->capacities;
    for (o->n_capacities = 0; o->n_capacities < TIER_CAPACITIES_MAX; text++) {
        if (!read_count(text, 1, 1u << 30, &at[o->n_capacities], &text))
            return false;
        if (o->n_capacities && at[o->n_capacities] <= at[o->n_capacities - 1])
            return false;
        o->n_capacities++;
        if (!*text)
            return true;
        if (*text != ',')
            return false;
    }
    return false;
}

/* What the option takes, or NULL when the value is right. */
static const char *read_value(const char *name, const char *text, tier_options *o)
{
    if (strcmp(name, "--capacity") == 0)
        return read_capacities(text, o) ? NULL : "at most 16 ascending numbers with commas between them";
    if (strcmp(name, "--gpu") == 0)
        return read_one(text, 1, 1u << 30, &o->gpu_blocks) ? NULL : "a number of blocks, at least 1";
    if (strcmp(name, "--hits") == 0)
        return read_one(text, 1, 100, &o->hits) ? NULL : "a number from 1 to 100";
    if (strcmp(name, "--index") == 0)
        return read_one(text, 0, 100000000, &o->index_blocks) ? NULL : "a number from 0 to 100000000";
    if (strcmp(name, "--chain") == 0)
        return read_one(text, 1, 16384, &o->chain) ? NULL : "a number from 1 to 16384";
    if (strcmp(name, "--repeat") == 0)
        return read_one(text, 1, 1000000, &o->repeat) ? NULL : "a number from 1 to 1000000";
    if (strcmp(name, "--plot") == 0)
        o->plot = text;
    else
        o->json = text;
    return *text ? NULL : "the name of a file";
}

static bool takes_value(const char *name)
{
    static const char *const names[] = {"--capacity", "--gpu",    "--hits", "--index",
                                        "--chain",    "--repeat", "--json", "--plot"};
    size_t i;
    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

static tier_parse complain(const char *name, const char *about)
{
    fprintf(stderr, "%s: %s; see kvx-tier --help\n", name, about);
    return TIER_USAGE;
}

static tier_parse read_trace_name(const char *name, tier_options *options)
{
    if (options->n_traces == TIER_TRACES_MAX)
        return complain(name, "one trace too many");
    options->traces[options->n_traces++] = name;
    return TIER_RUN;
}

/* What has to hold between options. */
static tier_parse check(const tier_options *o)
{
    if (o->plot && o->n_traces == 0)
        return complain("--plot", "there is nothing to draw without a trace");
    if (o->n_traces == 0 && o->index_blocks == 0)
        return complain("--index 0", "nothing to do without a trace");
    if (o->index_blocks != 0 && o->index_blocks < o->chain)
        return complain("--index", "is smaller than a chain");
    return TIER_RUN;
}

tier_parse tier_options_parse(int argc, char **argv, tier_options *options)
{
    static const tier_options defaults = {
        {1000, 5000, 10000, 30000, 50000}, 5, 1000, 2, 10000000, 1000, 2000, NULL, NULL, {NULL}, 0};
    const char *wanted;
    int i;
    *options = defaults;
    for (i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            fputs(help, stdout);
            return TIER_HELP;
        }
        if (argv[i][0] != '-') {
            if (read_trace_name(argv[i], options) != TIER_RUN)
                return TIER_USAGE;
            continue;
        }
        if (!takes_value(argv[i]))
            return complain(argv[i], "no such option");
        if (i + 1 == argc)
            return complain(argv[i], "its value is missing");
        wanted = read_value(argv[i], argv[i + 1], options);
        if (wanted) {
            fprintf(stderr, "%s takes %s, not \"%s\"; see kvx-tier --help\n", argv[i], wanted, argv[i + 1]);
            return TIER_USAGE;
        }
        i++;
    }
    return check(options);
}
