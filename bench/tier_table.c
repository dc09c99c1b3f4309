/* SPDX-License-Identifier: Apache-2.0 */
/* Hit rates against capacity, as a table and as a picture. */
#include "plot.h"
#include "tier.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double rate(const replay_result *got)
{
    return got->n_blocks ? 100.0 * (double)got->n_found / (double)got->n_blocks : 0;
}

static double stored(const replay_result *got)
{
    return got->n_blocks ? 100.0 * (double)got->n_stored / (double)got->n_blocks : 0;
}

static void name_policy(char name[64], const replay_policy *policy, const tier_options *o)
{
    if (policy->behind_gpu)
        snprintf(name, 64, "write-%s behind %u GPU blocks", policy->name, o->gpu_blocks);
    else
        snprintf(name, 64, "%s", policy->name);
}

static void print_part(const tier_options *o, const trace_results *results, const char *what,
                       double (*figure)(const replay_result *))
{
    char name[64];
    uint32_t p, c;
    printf("  %-36s", what);
    for (c = 0; c < o->n_capacities; c++)
        printf(" %9u", o->capacities[c]);
    printf(" %9s\n", "unlimited");
    for (p = 0; p < TIER_POLICIES; p++) {
        name_policy(name, &replay_policies[p], o);
        printf("  %-36s", name);
        for (c = 0; c <= o->n_capacities; c++)
            printf(" %9.2f", figure(&results->of[p][c]));
        putchar('\n');
    }
}

void table_print(const tier_options *o, const trace_results *results)
{
    print_part(o, results, "hits, % of blocks asked for", rate);
    print_part(o, results, "stores, % of blocks asked for", stored);
    putchar('\n');
    fflush(stdout);
}

/* ----------------------------------------------------------------------------------------------------------- picture
 */

typedef struct drawing {
    double capacities[TIER_CAPACITIES_MAX];
    double rates[TIER_TRACES_MAX][TIER_POLICIES][TIER_CAPACITIES_MAX];
    char names[TIER_POLICIES][64];
    plot_panel panels[TIER_TRACES_MAX];
} drawing;

static void fill_panel(drawing *d, const tier_options *o, const trace_results *results, uint32_t index)
{
    plot_panel *panel = &d->panels[index];
    uint32_t p, c;
    panel->title = results->name;
    panel->n_lines = TIER_POLICIES;
    panel->bound = rate(&results->of[0][o->n_capacities]);
    for (p = 0; p < TIER_POLICIES; p++) {
        plot_line *line = &panel->lines[p];
        for (c = 0; c < o->n_capacities; c++)
            d->rates[index][p][c] = rate(&results->of[p][c]);
        line->name = d->names[p];
        line->x = d->capacities;
        line->y = d->rates[index][p];
        line->n = o->n_capacities;
    }
}

bool table_plot(const tier_options *o, const trace_results *results, uint32_t n)
{
    drawing *d = calloc(1, sizeof(*d));
    plot picture = {"Hit rate against capacity",
                    "capacity of the tier, blocks",
                    "hits, % of blocks asked for",
                    "unlimited capacity",
                    NULL,
                    n,
                    false};
    bool done;
    uint32_t i;
    if (!d) {
        fputs("no memory for the picture\n", stderr);
        return false;
    }
    for (i = 0; i < o->n_capacities; i++)
        d->capacities[i] = o->capacities[i];
    for (i = 0; i < TIER_POLICIES; i++)
        name_policy(d->names[i], &replay_policies[i], o);
    for (i = 0; i < n; i++)
        fill_panel(d, o, &results[i], i);
    picture.panels = d->panels;
    done = plot_write(&picture, o->plot);
    free(d);
    return done;
}
