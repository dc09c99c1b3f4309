/* SPDX-License-Identifier: Apache-2.0 */
/* A class is cut into groups of neighbouring slots (up to 2 MiB, at most 512). A bitmap says which are free, and a
 * dense list holds the groups that have any. A random group and a random run in it: placement cannot be foretold by who
 * does not know the random words, and copies stay large. */
#include "pool_free.h"

#include <stdlib.h>

#define GROUP_BYTES (2ull << 20)
#define GROUP_SLOTS_MAX 512u
#define GROUP_WORDS (GROUP_SLOTS_MAX / 64)

struct kvx_free_group {
    uint64_t free[GROUP_WORDS];
    uint32_t n_free;
    uint32_t place; /* in the set's list, if n_free > 0 */
};

int kvx_free_set_create(kvx_free_set *set, uint32_t n_slots, uint64_t slot_bytes)
{
    uint64_t fit = GROUP_BYTES / slot_bytes;
    set->group_slots = (uint32_t)(fit < 1 ? 1 : fit > GROUP_SLOTS_MAX ? GROUP_SLOTS_MAX : fit);
    set->n_groups = (n_slots - 1) / set->group_slots + 1;
    set->n_free = set->n_listed = 0;
    set->groups = calloc(set->n_groups, sizeof(*set->groups));
    set->listed = calloc(set->n_groups, sizeof(*set->listed));
    return set->groups && set->listed;
}

void kvx_free_set_destroy(kvx_free_set *set)
{
    free(set->groups);
    free(set->listed);
}

uint64_t kvx_free_set_bytes(const kvx_free_set *set)
{
    return set->n_groups * (sizeof(*set->groups) + sizeof(*set->listed));
}

void kvx_free_set_put(kvx_free_set *set, uint32_t index)
{
    uint32_t chosen = index / set->group_slots, bit = index % set->group_slots;
    kvx_free_group *g = &set->groups[chosen];
    if (g->n_free == 0) {
        g->place = set->n_listed;
        set->listed[set->n_listed++] = chosen;
    }
    g->free[bit / 64] |= 1ull << (bit % 64);
    g->n_free++;
    set->n_free++;
}

static int is_free(const kvx_free_group *g, uint32_t bit)
{
    return (int)(g->free[bit / 64] >> (bit % 64) & 1);
}

/* The first free slot at or after `from`, cyclically. The group has one. */
static uint32_t next_free(const kvx_free_group *g, uint32_t from)
{
    uint32_t w = from / 64;
    uint64_t word = g->free[w] & (UINT64_MAX << (from % 64));
    while (!word) {
        w = (w + 1) % GROUP_WORDS;
        word = g->free[w];
    }
    return w * 64 + (uint32_t)__builtin_ctzll(word);
}

static void unlist(kvx_free_set *set, const kvx_free_group *g)
{
    uint32_t last = set->listed[--set->n_listed];
    set->listed[g->place] = last;
    set->groups[last].place = g->place;
}

static uint32_t scale(uint32_t random, uint32_t bound)
{
    return (uint32_t)((uint64_t)random * bound >> 32);
}

uint32_t kvx_free_set_take(kvx_free_set *set, uint32_t want, uint64_t random, uint32_t *first_index)
{
    uint32_t chosen = set->listed[scale((uint32_t)(random >> 32), set->n_listed)];
    kvx_free_group *g = &set->groups[chosen];
    uint32_t first = next_free(g, scale((uint32_t)random, set->group_slots));
    uint32_t end = first + 1;
    while (end - first < want && end < set->group_slots && is_free(g, end))
        end++;
    while (end - first < want && first > 0 && is_free(g, first - 1))
        first--;
    for (uint32_t bit = first; bit < end; bit++)
        g->free[bit / 64] &= ~(1ull << (bit % 64));
    g->n_free -= end - first;
    set->n_free -= end - first;
    if (g->n_free == 0)
        unlist(set, g);
    *first_index = chosen * set->group_slots + first;
    return end - first;
}
