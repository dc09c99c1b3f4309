/* SPDX-License-Identifier: Apache-2.0 */
/* kvx-tier: hit rates of the cache tier on traces, and the speed of its index. See --help. */
#include "tier.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool tier_ok(kvx_status status, const char *doing)
{
    if (status != KVX_OK)
        fprintf(stderr, "%s: %s: %s\n", doing, kvx_status_text(status), kvx_last_error());
    return status == KVX_OK;
}

static double percent(uint64_t part, uint64_t whole)
{
    return whole ? 100.0 * (double)part / (double)whole : 0;
}

typedef struct row {
    const char *metric, *unit;
    double value;
} row;

static void add_rows(report *r, const trace *t, const tier_options *o, const replay_policy *policy,
                     const char *capacity, const replay_result *got)
{
    const row rows[] = {
        {"hit_rate", "%", percent(got->n_found, got->n_blocks)},
        {"prefix_hit_rate", "%", percent(got->n_prefix, got->n_blocks)},
        {"gpu_hit_rate", "%", percent(got->n_gpu, got->n_blocks)},
        {"stored", "%", percent(got->n_stored, got->n_blocks)},
        {"no_room", "blocks", (double)got->n_no_room},
    };
    size_t i;
    for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (i == 0 || rows[i].value > 0)
            report_row(r, "replay", rows[i].metric, rows[i].value, rows[i].unit,
                       "trace=%s evict=%s write=%s gpu=%u capacity=%s", t->name, policy->evict_name, policy->write_name,
                       policy->behind_gpu ? o->gpu_blocks : 0, capacity);
}

static bool replay_policies_of(const trace *t, const tier_options *o, report *r, trace_results *results)
{
    char capacity[32];
    uint32_t p, c;
    for (p = 0; p < TIER_POLICIES; p++)
        for (c = 0; c <= o->n_capacities; c++) {
            const uint32_t blocks = c < o->n_capacities ? o->capacities[c] : 0;
            replay_result *got = &results->of[p][c];
            if (!replay(t, o, &replay_policies[p], blocks, got))
                return false;
            snprintf(capacity, sizeof(capacity), blocks ? "%u" : "unlimited", blocks);
            add_rows(r, t, o, &replay_policies[p], capacity, got);
        }
    return true;
}

static bool replay_trace(const char *path, const tier_options *o, report *r, trace_results *results)
{
    trace t;
    bool done;
    if (!trace_read(path, &t))
        return false;
    printf("%s: %llu requests, %llu blocks, %u distinct, the longest chain %u\n", t.name,
           (unsigned long long)t.n_requests, (unsigned long long)t.n_blocks, t.n_distinct, t.longest);
    fflush(stdout);
    snprintf(results->name, sizeof(results->name), "%s", t.name);
    done = replay_policies_of(&t, o, r, results);
    trace_free(&t);
    if (done)
        table_print(o, results);
    return done;
}

static bool run(const tier_options *o, report *r)
{
    trace_results *results = calloc(TIER_TRACES_MAX, sizeof(*results));
    bool done = results != NULL;
    uint32_t i;
    report_host(r);
    for (i = 0; done && i < o->n_traces; i++)
        done = replay_trace(o->traces[i], o, r, &results[i]);
    if (done && o->plot)
        done = table_plot(o, results, o->n_traces);
    free(results);
    if (done && o->index_blocks)
        done = index_measure(o, r);
    report_print(r);
    if (o->json && !report_write(r, o->json))
        done = false;
    return done;
}

int main(int argc, char **argv)
{
    tier_options options;
    tier_parse parsed = tier_options_parse(argc, argv, &options);
    report *r;
    bool done;
    if (parsed != TIER_RUN)
        return parsed == TIER_HELP ? 0 : 2;
    r = report_create(argc, argv);
    if (!r) {
        fputs("no memory for the report\n", stderr);
        return 1;
    }
    done = run(&options, r);
    report_destroy(r);
    return done ? 0 : 1;
}
