/* SPDX-License-Identifier: Apache-2.0 */
/* Command line of kvx-demo. */
#define _POSIX_C_SOURCE 200809L
#include "demo.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: kvx-demo [OPTIONS]\n"
    "\n"
    "Fills a KV cache shaped like Qwen3-32B's (64 layers, 4 MiB a block in 128 pieces of 32 KiB), stores it sealed in\n"
    "host memory, restores it, compares every byte, and sets the rates beside those of plaintext copies. Then it acts\n"
    "as a host that tampers with the stored blocks, and checks that each attempt is refused.\n"
    "\n"
    "  --bytes N        bytes of KV cache, with K, M or G (default 8G on a GPU, 256M on the CPU engine);\n"
    "                   as much host memory is needed, on the CPU engine twice as much\n"
    "  --batch N        blocks per store or restore call (default 512)\n"
    "  --segments N     64, 8 or 1: units that a block is sealed in (default 64)\n"
    "  --repeat N       runs of each measurement, of which the median counts (default 3)\n"
    "  --engine E       auto, cuda or cpu (default auto)\n"
    "  --device N       number of the GPU (default 0)\n"
    "  --seed N         of the test data (default 1)\n"
    "  --no-baselines   leave the plaintext copies out\n"
    "  --json FILE      write every figure to FILE\n"
    "  --help           this text\n"
    "\n"
    "Exit status: 0 everything passed, 1 something failed, 2 usage.\n";

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

static bool read_size(const char *text, uint64_t *n_bytes)
{
    static const char suffixes[] = "KMG";
    const char *rest, *suffix;
    unsigned shift = 0;
    if (!read_number(text, n_bytes, &rest))
        return false;
    if (*rest) {
        suffix = strchr(suffixes, *rest);
        if (!suffix || rest[1])
            return false;
        shift = 10 * ((unsigned)(suffix - suffixes) + 1);
    }
    if (*n_bytes > UINT64_MAX >> shift)
        return false;
    *n_bytes <<= shift;
    return *n_bytes / DEMO_BLOCK_BYTES >= DEMO_MIN_BLOCKS && *n_bytes / DEMO_BLOCK_BYTES <= 1u << 20;
}

static bool read_count(const char *text, uint32_t most, uint32_t *count)
{
    const char *rest;
    uint64_t number;
    if (!read_number(text, &number, &rest) || *rest || number < 1 || number > most)
        return false;
    *count = (uint32_t)number;
    return true;
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

static bool read_ordinal(const char *text, int *ordinal)
{
    const char *rest;
    uint64_t number;
    if (!read_number(text, &number, &rest) || *rest || number > 1023)
        return false;
    *ordinal = (int)number;
    return true;
}

static bool read_segments(const char *text, uint32_t *segments)
{
    return read_count(text, 64, segments) && (*segments == 64 || *segments == 8 || *segments == 1);
}

/* What the option takes, or NULL when the value is right. */
static const char *read_value(const char *name, const char *text, demo_options *o)
{
    const char *rest;
    if (strcmp(name, "--bytes") == 0)
        return read_size(text, &o->n_bytes) ? NULL : "a size from 32M to 4096G, for instance 8G";
    if (strcmp(name, "--batch") == 0)
        return read_count(text, 4096, &o->batch) ? NULL : "a number from 1 to 4096";
    if (strcmp(name, "--segments") == 0)
        return read_segments(text, &o->segments) ? NULL : "64, 8 or 1";
    if (strcmp(name, "--repeat") == 0)
        return read_count(text, 1000, &o->repeat) ? NULL : "a number from 1 to 1000";
    if (strcmp(name, "--engine") == 0)
        return read_engine(text, &o->engine) ? NULL : "auto, cuda or cpu";
    if (strcmp(name, "--device") == 0)
        return read_ordinal(text, &o->device) ? NULL : "the number of a GPU, from 0";
    if (strcmp(name, "--seed") == 0)
        return read_number(text, &o->seed, &rest) && !*rest ? NULL : "a number of at most 64 bits";
    o->json = text;
    return *text ? NULL : "the name of a file";
}

static bool takes_value(const char *name)
{
    static const char *const names[] = {"--bytes",  "--batch",  "--segments", "--repeat",
                                        "--engine", "--device", "--seed",     "--json"};
    size_t i;
    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

static demo_parse complain(const char *name, const char *about)
{
    fprintf(stderr, "%s: %s; see kvx-demo --help\n", name, about);
    return DEMO_USAGE;
}

demo_parse demo_options_parse(int argc, char **argv, demo_options *options)
{
    static const demo_options defaults = {0, 1, NULL, KVX_ENGINE_AUTO, 512, 64, 3, 0, false};
    const char *wanted;
    int i;
    *options = defaults;
    for (i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            fputs(help, stdout);
            return DEMO_HELP;
        }
        if (strcmp(argv[i], "--no-baselines") == 0) {
            options->no_baselines = true;
            continue;
        }
        if (!takes_value(argv[i]))
            return complain(argv[i], "no such option");
        if (i + 1 == argc)
            return complain(argv[i], "its value is missing");
        wanted = read_value(argv[i], argv[i + 1], options);
        if (wanted) {
            fprintf(stderr, "%s takes %s, not \"%s\"; see kvx-demo --help\n", argv[i], wanted, argv[i + 1]);
            return DEMO_USAGE;
        }
        i++;
    }
    return DEMO_RUN;
}
