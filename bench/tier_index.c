/* SPDX-License-Identifier: Apache-2.0 */
/* A dry tier filled to the last block with chains. Chains are looked up in random order, so that hardly anything but
 * their hashes is in a cache of the CPU. */
#define _POSIX_C_SOURCE 200809L
#include "tier.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK = 4096 };

typedef struct timing {
    kvx_tier *tier;
    uint32_t n_chains, chain;
    kvx_tier_hash *hashes; /* of one chain */
    kvx_tier_pin *pins;
    kvx_tier_block *blocks; /* CHUNK of them */
    double *times_us;
    uint64_t state; /* of the random numbers */
} timing;

static uint64_t clock_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Memory of this process in use, 0 if unknown. */
static uint64_t resident_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long long total, resident = 0;
    if (!file)
        return 0;
    if (fscanf(file, "%llu %llu", &total, &resident) != 2)
        resident = 0;
    fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint32_t random_below(timing *t, uint32_t n)
{
    t->state = t->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((t->state >> 33) % n);
}

static void chain_hashes(timing *t, uint32_t chain)
{
    uint32_t i;
    for (i = 0; i < t->chain; i++)
        t->hashes[i] = trace_hash(chain, (uint64_t)i + 1);
}

/* -------------------------------------------------------------------------------------------------------------
 * building */

static bool store_chunk(timing *t, uint32_t n)
{
    uint32_t i;
    if (!tier_ok(kvx_tier_offer(t->tier, KVX_TIER_USED, n, t->blocks, NULL), "kvx_tier_offer") ||
        !tier_ok(kvx_tier_flush(t->tier), "kvx_tier_flush"))
        return false;
    for (i = 0; i < 1000; i++) {
        if (!tier_ok(kvx_tier_pump(t->tier, 1, NULL), "kvx_tier_pump"))
            return false;
        if (kvx_tier_idle(t->tier) == KVX_OK)
            return true;
    }
    fputs("the tier does not come to rest\n", stderr);
    return false;
}

/* Making up the hashes is not counted. */
static bool fill(timing *t, uint64_t *spent_ns)
{
    const uint64_t n = (uint64_t)t->n_chains * t->chain;
    uint64_t done, begin;
    uint32_t i, some;
    *spent_ns = 0;
    for (done = 0; done < n; done += some) {
        some = n - done < CHUNK ? (uint32_t)(n - done) : CHUNK;
        for (i = 0; i < some; i++) {
            t->blocks[i].hash = trace_hash((done + i) / t->chain, (done + i) % t->chain + 1);
            t->blocks[i].block = i;
        }
        begin = clock_now();
        if (!store_chunk(t, some))
            return false;
        *spent_ns += clock_now() - begin;
    }
    return true;
}

/* --------------------------------------------------------------------------------------------------------------
 * lookups */

static int compare_times(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static bool look_up(timing *t, uint32_t wanted, kvx_tier_pin *pins, double *time_us)
{
    kvx_tier_match match;
    uint64_t begin = clock_now();
    kvx_status status = kvx_tier_lookup(t->tier, 0, t->chain, t->hashes, &match, pins);
    *time_us = (double)(clock_now() - begin) / 1e3;
    if (!tier_ok(status, "kvx_tier_lookup"))
        return false;
    if (match.n_hits != wanted) {
        fprintf(stderr, "%u blocks of a chain found, expected %u\n", match.n_hits, wanted);
        return false;
    }
    return !pins || match.n_hits == 0 || tier_ok(kvx_tier_unpin(t->tier, match.n_hits, pins), "kvx_tier_unpin");
}

/* absent: chains that were never stored. */
static bool time_lookups(timing *t, const tier_options *o, report *r, const char *kind)
{
    const bool absent = strcmp(kind, "absent") == 0, pinned = strcmp(kind, "pinned") == 0;
    uint32_t i;
    for (i = 0; i < o->repeat; i++) {
        chain_hashes(t, random_below(t, t->n_chains) + (absent ? t->n_chains : 0));
        if (!look_up(t, absent ? 0 : t->chain, pinned ? t->pins : NULL, &t->times_us[i]))
            return false;
    }
    qsort(t->times_us, o->repeat, sizeof(*t->times_us), compare_times);
    report_row(r, "index", "lookup_median", t->times_us[o->repeat / 2], "us", "blocks=%u chain=%u kind=%s",
               t->n_chains * t->chain, t->chain, kind);
    report_row(r, "index", "lookup_p99", t->times_us[(uint64_t)o->repeat * 99 / 100], "us",
               "blocks=%u chain=%u kind=%s", t->n_chains * t->chain, t->chain, kind);
    return true;
}

/* --------------------------------------------------------------------------------------------------------------- index
 */

static bool measure(timing *t, const tier_options *o, report *r, uint64_t resident_before)
{
    const double n = (double)t->n_chains * t->chain;
    kvx_tier_stats stats;
    uint64_t spent_ns, resident;
    stats.size = sizeof(stats);
    if (!fill(t, &spent_ns) || !tier_ok(kvx_tier_stats_get(t->tier, &stats), "kvx_tier_stats_get"))
        return false;
    resident = resident_bytes();
    if ((double)stats.blocks_now != n) {
        fprintf(stderr, "the index holds %llu blocks, expected %.0f\n", (unsigned long long)stats.blocks_now, n);
        return false;
    }
    report_row(r, "index", "build", (double)spent_ns / 1e9, "s", "blocks=%.0f", n);
    report_row(r, "index", "build_per_block", (double)spent_ns / n, "ns", "blocks=%.0f", n);
    report_row(r, "index", "memory_per_block", (double)stats.memory_bytes / (double)stats.capacity, "bytes",
               "blocks=%.0f", n);
    if (resident > resident_before)
        report_row(r, "index", "resident_per_block", (double)(resident - resident_before) / n, "bytes", "blocks=%.0f",
                   n);
    return time_lookups(t, o, r, "found") && time_lookups(t, o, r, "pinned") && time_lookups(t, o, r, "absent");
}

static bool make_room(timing *t, const tier_options *o)
{
    t->hashes = malloc(o->chain * sizeof(*t->hashes));
    t->pins = malloc(o->chain * sizeof(*t->pins));
    t->blocks = calloc(CHUNK, sizeof(*t->blocks));
    t->times_us = calloc(o->repeat, sizeof(*t->times_us));
    if (t->hashes && t->pins && t->blocks && t->times_us)
        return true;
    fputs("no memory for the lookups\n", stderr);
    return false;
}

bool index_measure(const tier_options *o, report *r)
{
    kvx_tier_config config = KVX_TIER_CONFIG_INIT;
    uint64_t resident_before;
    timing t;
    bool done;
    memset(&t, 0, sizeof(t));
    t.chain = o->chain;
    t.n_chains = o->index_blocks / o->chain;
    t.state = 1;
    config.n_blocks = t.n_chains * t.chain;
    done = make_room(&t, o);
    resident_before = resident_bytes();
    done = done && tier_ok(kvx_tier_create(&config, &t.tier), "kvx_tier_create") && measure(&t, o, r, resident_before);
    done = tier_ok(kvx_tier_destroy(t.tier), "kvx_tier_destroy") && done;
    free(t.hashes);
    free(t.pins);
    free(t.blocks);
    free(t.times_us);
    return done;
}
