/* SPDX-License-Identifier: Apache-2.0 */
/* Curves of kvx-bench: a mover keeps its place, and so its colour, in every panel. */
#include "bench.h"

#include <stdio.h>
#include <string.h>

void bench_curve_add(bench_curve *c, double x, double y)
{
    size_t i = c->n, most = sizeof(c->x) / sizeof(c->x[0]);
    if (c->n == most)
        return;
    for (; i > 0 && c->x[i - 1] > x; i--) {
        c->x[i] = c->x[i - 1];
        c->y[i] = c->y[i - 1];
    }
    c->x[i] = x;
    c->y[i] = y;
    c->n++;
}

static size_t find_mover(bench_picture *p, const char *name)
{
    size_t i;
    for (i = 0; i < p->n && strcmp(p->names[i], name) != 0; i++)
        ;
    if (i == p->n && i < BENCH_MOVERS_MAX)
        p->names[p->n++] = name;
    return i;
}

void bench_picture_add(bench_picture *p, double x, const bench_outcome *outcome)
{
    uint32_t i;
    for (i = 0; i < outcome->n; i++) {
        const bench_rates *rates = &outcome->movers[i];
        size_t place;
        if (strcmp(rates->name, "plain_contiguous") == 0) {
            p->store_bound = rates->store;
            p->restore_bound = rates->restore;
            continue;
        }
        place = find_mover(p, rates->name);
        if (place == BENCH_MOVERS_MAX)
            continue;
        if (rates->store > 0)
            bench_curve_add(&p->store[place], x, rates->store);
        if (rates->restore > 0)
            bench_curve_add(&p->restore[place], x, rates->restore);
    }
}

static void fill_panel(plot_panel *panel, const bench_picture *p, const bench_curve *curves, const char *title,
                       double bound)
{
    size_t i;
    memset(panel, 0, sizeof(*panel));
    panel->title = title;
    panel->bound = bound;
    for (i = 0; i < p->n; i++)
        if (curves[i].n) {
            plot_line line = {p->names[i], curves[i].x, curves[i].y, curves[i].n};
            panel->lines[panel->n_lines++] = line;
        }
}

void bench_picture_panels(const bench_picture *p, const char *store_title, const char *restore_title,
                          plot_panel panels[2])
{
    fill_panel(&panels[0], p, p->store, store_title, p->store_bound);
    fill_panel(&panels[1], p, p->restore, restore_title, p->restore_bound);
}

bool bench_plot(const bench *b, const plot *p)
{
    const char *path = b->settings.plot, *dot = path ? strrchr(path, '.') : NULL;
    char name[4096];
    int stem;
    if (!path)
        return true;
    if (!b->settings.all)
        return plot_write(p, path);
    if (!dot || strchr(dot, '/'))
        dot = path + strlen(path);
    stem = (int)(dot - path);
    if ((size_t)snprintf(name, sizeof(name), "%.*s-%s%s", stem, path, b->sub->name, dot) >= sizeof(name)) {
        fprintf(stderr, "the name %s is too long\n", path);
        return false;
    }
    return plot_write(p, name);
}

void bench_no_picture(const bench *b)
{
    if (b->settings.plot && !b->settings.all)
        bench_say("%s draws no picture: --plot is ignored", b->sub->name);
}
