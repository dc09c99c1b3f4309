/* SPDX-License-Identifier: Apache-2.0 */
/* An SVG is text: axes, grid, lines, markers. Colours are told apart also by people who see few of them (Okabe and
 * Ito's set), and each line has a marker of its own. */
#include "plot.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    PANEL_WIDTH = 400,
    PANEL_HEIGHT = 290,
    LEFT = 64,      /* of a panel: the y axis' numbers and name */
    RIGHT = 20,     /* of a panel */
    TOP = 76,       /* title of the plot and of the panel */
    BELOW = 52,     /* the x axis' numbers and name */
    LEGEND_ROW = 22 /* height of one row of the legend */
};

typedef struct style {
    const char *colour, *dash;
} style;

static const style styles[PLOT_SERIES_MAX] = {
    {"#0072b2", "none"}, {"#d55e00", "none"}, {"#009e73", "7 3"}, {"#cc79a7", "7 3"},
    {"#e69f00", "2 3"},  {"#56b4e9", "2 3"},  {"#000000", "9 3"}, {"#7f7f7f", "9 3"},
};

typedef struct frame {
    FILE *file;
    double left, top;       /* of the panel's drawing area */
    double x_least, x_most; /* logarithms */
    double y_most, y_step;
} frame;

static void write_text(FILE *file, const char *text)
{
    for (; *text; text++) {
        if (*text == '<')
            fputs("&lt;", file);
        else if (*text == '&')
            fputs("&amp;", file);
        else if ((unsigned char)*text >= 0x20)
            fputc(*text, file);
    }
}

static void text_at(FILE *file, double x, double y, const char *anchor, const char *text)
{
    fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    write_text(file, text);
    fputs("</text>\n", file);
}

static double x_of(const frame *f, double x)
{
    return f->left + (log10(x) - f->x_least) / (f->x_most - f->x_least) * PANEL_WIDTH;
}

static double y_of(const frame *f, double y)
{
    return f->top + (1 - y / f->y_most) * PANEL_HEIGHT;
}

/* A step of 1, 2 or 5 times a power of ten that gives four to nine of them. */
static double step_for(double most)
{
    double power = pow(10, floor(log10(most))), parts = most / power;
    if (parts < 2)
        return power / 5;
    return parts < 5 ? power / 2 : power;
}

static void scale(frame *f, const plot_panel *panel)
{
    double least = 1e300, most = 0, highest = panel->bound;
    size_t i, k;
    for (i = 0; i < panel->n_lines; i++)
        for (k = 0; k < panel->lines[i].n; k++) {
            least = fmin(least, panel->lines[i].x[k]);
            most = fmax(most, panel->lines[i].x[k]);
            highest = fmax(highest, panel->lines[i].y[k]);
        }
    if (most <= 0)
        least = most = 1;
    f->x_least = log10(least) - 0.06;
    f->x_most = log10(most) + 0.06;
    f->y_step = step_for(highest > 0 ? highest : 1);
    f->y_most = ceil(highest / f->y_step + 0.1) * f->y_step;
}

static void write_capacity(char text[32], double x, bool x_bytes)
{
    const double kilo = x_bytes ? 1024 : 1000;
    if (x >= kilo * kilo)
        snprintf(text, 32, "%gM", x / (kilo * kilo));
    else if (x >= kilo)
        snprintf(text, 32, x_bytes ? "%gK" : "%gk", x / kilo);
    else
        snprintf(text, 32, "%g", x);
}

static void draw_y_axis(const frame *f)
{
    char text[32];
    double y;
    for (y = 0; y <= f->y_most + f->y_step / 2; y += f->y_step) {
        fprintf(f->file, "<path class=\"grid\" d=\"M%.1f %.1fh%d\"/>\n", f->left, y_of(f, y), PANEL_WIDTH);
        snprintf(text, sizeof(text), "%g", y);
        text_at(f->file, f->left - 8, y_of(f, y) + 4, "end", text);
    }
}

/* Marks where the first line has points; too close a number is left out. */
static void draw_x_axis(const frame *f, const plot_panel *panel, bool x_bytes)
{
    const plot_line *line = &panel->lines[0];
    double last = -1e300;
    char text[32];
    size_t k;
    for (k = 0; panel->n_lines && k < line->n; k++) {
        double x = x_of(f, line->x[k]);
        fprintf(f->file, "<path class=\"axis\" d=\"M%.1f %.1fv5\"/>\n", x, f->top + PANEL_HEIGHT);
        write_capacity(text, line->x[k], x_bytes);
        if (x - last >= 26) {
            text_at(f->file, x, f->top + PANEL_HEIGHT + 19, "middle", text);
            last = x;
        }
    }
    fprintf(f->file, "<path class=\"axis\" d=\"M%.1f %.1fv%dh%d\"/>\n", f->left, f->top, PANEL_HEIGHT, PANEL_WIDTH);
}

static void draw_marker(FILE *file, size_t which, double x, double y)
{
    const char *colour = styles[which].colour;
    if (which % 4 == 0)
        fprintf(file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.6\" fill=\"%s\"/>\n", x, y, colour);
    else if (which % 4 == 1)
        fprintf(file, "<path d=\"M%.1f %.1fl4.5 8h-9z\" fill=\"%s\"/>\n", x, y - 5, colour);
    else if (which % 4 == 2)
        fprintf(file, "<rect x=\"%.1f\" y=\"%.1f\" width=\"7\" height=\"7\" fill=\"%s\"/>\n", x - 3.5, y - 3.5, colour);
    else
        fprintf(file, "<path d=\"M%.1f %.1fl5 5l-5 5l-5 -5z\" fill=\"%s\"/>\n", x, y - 5, colour);
}

static void draw_line(const frame *f, const plot_line *line, size_t which)
{
    size_t k;
    fprintf(f->file, "<polyline class=\"line\" stroke=\"%s\" stroke-dasharray=\"%s\" points=\"", styles[which].colour,
            styles[which].dash);
    for (k = 0; k < line->n; k++)
        fprintf(f->file, "%s%.1f,%.1f", k ? " " : "", x_of(f, line->x[k]), y_of(f, line->y[k]));
    fputs("\"/>\n", f->file);
    for (k = 0; k < line->n; k++)
        draw_marker(f->file, which, x_of(f, line->x[k]), y_of(f, line->y[k]));
}

/* -------------------------------------------------------------------------------------------------------- legend */

typedef struct legend {
    const char *names[PLOT_SERIES_MAX];
    size_t n;
} legend;

static size_t legend_find(const legend *l, const char *name)
{
    size_t i;
    for (i = 0; i < l->n && strcmp(l->names[i], name) != 0; i++)
        ;
    return i;
}

static void legend_collect(legend *l, const plot *p)
{
    size_t i, k;
    l->n = 0;
    for (i = 0; i < p->n_panels; i++)
        for (k = 0; k < p->panels[i].n_lines; k++)
            if (legend_find(l, p->panels[i].lines[k].name) == l->n && l->n < PLOT_SERIES_MAX)
                l->names[l->n++] = p->panels[i].lines[k].name;
}

/* A column under each panel; the bound comes last. */
static void draw_legend(FILE *file, const legend *l, const char *bound_name, size_t n_columns, double top)
{
    const double column = LEFT + PANEL_WIDTH + RIGHT;
    size_t i, n = l->n + (bound_name ? 1 : 0);
    for (i = 0; i < n; i++) {
        double x = LEFT + (double)(i % n_columns) * column, y = top + (double)(i / n_columns) * LEGEND_ROW;
        if (i < l->n) {
            fprintf(file, "<path class=\"line\" stroke=\"%s\" stroke-dasharray=\"%s\" d=\"M%.1f %.1fh30\"/>\n",
                    styles[i].colour, styles[i].dash, x, y);
            draw_marker(file, i, x + 15, y);
        } else {
            fprintf(file, "<path class=\"bound\" d=\"M%.1f %.1fh30\"/>\n", x, y);
        }
        text_at(file, x + 38, y + 4, "start", i < l->n ? l->names[i] : bound_name);
    }
}

/* --------------------------------------------------------------------------------------------------------- picture */

static void draw_panel(FILE *file, const plot *p, const legend *l, size_t index)
{
    const plot_panel *panel = &p->panels[index];
    frame f;
    double middle;
    size_t i;
    f.file = file;
    f.left = LEFT + (double)index * (LEFT + PANEL_WIDTH + RIGHT);
    f.top = TOP;
    middle = f.left + PANEL_WIDTH / 2.0;
    scale(&f, panel);
    draw_y_axis(&f);
    draw_x_axis(&f, panel, p->x_bytes);
    fputs("<g class=\"name\">\n", file);
    text_at(file, middle, f.top - 14, "middle", panel->title);
    fputs("</g>\n", file);
    text_at(file, middle, f.top + PANEL_HEIGHT + 42, "middle", p->x_label);
    fprintf(file, "<g transform=\"translate(%.1f %.1f) rotate(-90)\">\n", f.left - 42, f.top + PANEL_HEIGHT / 2.0);
    text_at(file, 0, 0, "middle", p->y_label);
    fputs("</g>\n", file);
    if (panel->bound > 0)
        fprintf(file, "<path class=\"bound\" d=\"M%.1f %.1fh%d\"/>\n", f.left, y_of(&f, panel->bound), PANEL_WIDTH);
    for (i = panel->n_lines; i-- > 0;) /* the first line is drawn last and lies on top */
        draw_line(&f, &panel->lines[i], legend_find(l, panel->lines[i].name));
}

static void draw(FILE *file, const plot *p)
{
    const size_t n_columns = p->n_panels;
    size_t i, rows;
    double width = (double)p->n_panels * (LEFT + PANEL_WIDTH + RIGHT), height;
    legend l;
    legend_collect(&l, p);
    rows = (l.n + (p->bound_name ? 1 : 0) + n_columns - 1) / n_columns;
    height = TOP + PANEL_HEIGHT + BELOW + 14 + (double)rows * LEGEND_ROW;
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" "
            "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#222\">\n",
            width, height, width, height);
    fputs("<style>.grid{stroke:#e2e2e2;fill:none}.axis{stroke:#444;fill:none}.line{fill:none;stroke-width:2}"
          ".bound{stroke:#444;fill:none;stroke-dasharray:4 4}.name{font-size:13px;font-weight:bold}"
          ".title{font-size:16px;font-weight:bold}</style>\n",
          file);
    fputs("<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n<g class=\"title\">\n", file);
    text_at(file, width / 2, 28, "middle", p->title);
    fputs("</g>\n", file);
    for (i = 0; i < p->n_panels; i++)
        draw_panel(file, p, &l, i);
    draw_legend(file, &l, p->bound_name, n_columns, TOP + PANEL_HEIGHT + BELOW + 14);
    fputs("</svg>\n", file);
}

bool plot_write(const plot *p, const char *path)
{
    FILE *file = fopen(path, "w");
    bool failed;
    if (!file) {
        fprintf(stderr, "cannot write %s: %s: name a file in a directory that exists\n", path, strerror(errno));
        return false;
    }
    draw(file, p);
    failed = ferror(file) != 0;
    failed = fclose(file) != 0 || failed;
    if (failed)
        fprintf(stderr, "cannot write all of %s: %s\n", path, strerror(errno));
    return !failed;
}
