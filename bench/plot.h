/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_BENCH_PLOT_H
#define KVX_BENCH_PLOT_H
/* Line charts as one SVG file: panels side by side, a logarithmic x axis, one legend for all of them. */
#include <stdbool.h>
#include <stddef.h>

#define PLOT_SERIES_MAX 8

typedef struct plot_line {
    const char *name; /* the same name in several panels: the same colour, one entry in the legend */
    const double *x, *y;
    size_t n;
} plot_line;

typedef struct plot_panel {
    const char *title;
    plot_line lines[PLOT_SERIES_MAX];
    size_t n_lines;
    double bound; /* a dashed horizontal line, 0: none */
} plot_panel;

typedef struct plot {
    const char *title, *x_label, *y_label;
    const char *bound_name; /* as the legend says it */
    const plot_panel *panels;
    size_t n_panels;
    bool x_bytes; /* x counts bytes: 4K, 1M */
} plot;

/* x positive, y from 0. False, with a message on stderr, when the file could not be written. */
bool plot_write(const plot *p, const char *path);

#endif
