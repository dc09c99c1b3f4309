/* SPDX-License-Identifier: Apache-2.0 */
/* A ring of block numbers in the order of use. */
#include "tier.h"

#include <stdio.h>
#include <stdlib.h>

bool gpu_create(gpu_cache *g, uint32_t n_distinct, uint32_t n_most)
{
    const size_t n = (size_t)n_distinct + 1;
    g->older = malloc(n * sizeof(*g->older));
    g->newer = malloc(n * sizeof(*g->newer));
    g->held = calloc(n, sizeof(*g->held));
    if (!g->older || !g->newer || !g->held) {
        fputs("no memory for the GPU's cache\n", stderr);
        gpu_destroy(g);
        return false;
    }
    g->n_held = 0;
    g->n_most = n_most;
    g->head = n_distinct;
    g->older[g->head] = g->newer[g->head] = g->head;
    return true;
}

void gpu_destroy(gpu_cache *g)
{
    free(g->older);
    free(g->newer);
    free(g->held);
}

static void unlink_block(gpu_cache *g, uint32_t block)
{
    g->older[g->newer[block]] = g->older[block];
    g->newer[g->older[block]] = g->newer[block];
}

static void link_newest(gpu_cache *g, uint32_t block)
{
    g->newer[block] = g->head;
    g->older[block] = g->older[g->head];
    g->newer[g->older[block]] = block;
    g->older[g->head] = block;
}

void gpu_touch(gpu_cache *g, uint32_t block)
{
    unlink_block(g, block);
    link_newest(g, block);
}

bool gpu_insert(gpu_cache *g, uint32_t block, uint32_t *leaving)
{
    const bool full = g->n_held == g->n_most;
    if (full) {
        *leaving = g->newer[g->head];
        unlink_block(g, *leaving);
        g->held[*leaving] = false;
    } else {
        g->n_held++;
    }
    link_newest(g, block);
    g->held[block] = true;
    return full;
}
