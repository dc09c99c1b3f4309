/* SPDX-License-Identifier: Apache-2.0 */
/* Ring and table always hold the same fingerprints: what leaves the one leaves the other. */
#include "tier_ghost.h"

#include <stdlib.h>
#include <string.h>

#include "tier_index.h"

int kvx_tier_ghost_create(kvx_tier_ghost *ghost, uint32_t n, uint64_t *memory_bytes)
{
    memset(ghost, 0, sizeof(*ghost));
    if (n == 0)
        return 1;
    ghost->n = n;
    ghost->n_buckets = n + n / 4 + 8;
    ghost->ring = kvx_tier_alloc(n, sizeof(*ghost->ring), memory_bytes);
    ghost->fingerprints = kvx_tier_alloc(ghost->n_buckets, sizeof(*ghost->fingerprints), memory_bytes);
    ghost->notes = kvx_tier_alloc(ghost->n_buckets, sizeof(*ghost->notes), memory_bytes);
    return ghost->ring && ghost->fingerprints && ghost->notes;
}

void kvx_tier_ghost_destroy(kvx_tier_ghost *ghost)
{
    free(ghost->ring);
    free(ghost->fingerprints);
    free(ghost->notes);
    memset(ghost, 0, sizeof(*ghost));
}

static uint32_t home_of(const kvx_tier_ghost *ghost, uint32_t fingerprint)
{
    return (uint32_t)((uint64_t)fingerprint * ghost->n_buckets >> 32);
}

static uint32_t after(const kvx_tier_ghost *ghost, uint32_t i)
{
    return i + 1 < ghost->n_buckets ? i + 1 : 0;
}

static uint32_t distance(const kvx_tier_ghost *ghost, uint32_t i)
{
    uint32_t home = home_of(ghost, ghost->fingerprints[i]);
    return i >= home ? i - home : i + ghost->n_buckets - home;
}

/* 0 means an empty bucket. */
static uint32_t not_zero(uint32_t fingerprint)
{
    return fingerprint ? fingerprint : 1;
}

/* Its place, or n_buckets. */
static uint32_t place_of(const kvx_tier_ghost *ghost, uint32_t fingerprint)
{
    uint32_t i = home_of(ghost, fingerprint);
    for (uint32_t d = 0; ghost->fingerprints[i] != 0 && distance(ghost, i) >= d; d++, i = after(ghost, i))
        if (ghost->fingerprints[i] == fingerprint)
            return i;
    return ghost->n_buckets;
}

static void insert(kvx_tier_ghost *ghost, uint32_t fingerprint)
{
    uint32_t i = home_of(ghost, fingerprint), d = 0;
    uint8_t notes = 0;
    for (; ghost->fingerprints[i] != 0; i = after(ghost, i), d++) {
        uint32_t other = distance(ghost, i), displaced = ghost->fingerprints[i];
        uint8_t displaced_notes = ghost->notes[i];
        if (other >= d)
            continue;
        ghost->fingerprints[i] = fingerprint;
        ghost->notes[i] = notes;
        fingerprint = displaced;
        notes = displaced_notes;
        d = other;
    }
    ghost->fingerprints[i] = fingerprint;
    ghost->notes[i] = notes;
}

static void erase(kvx_tier_ghost *ghost, uint32_t fingerprint)
{
    uint32_t i = place_of(ghost, fingerprint), next = after(ghost, i);
    for (; ghost->fingerprints[next] != 0 && distance(ghost, next) > 0; next = after(ghost, next)) {
        ghost->fingerprints[i] = ghost->fingerprints[next];
        ghost->notes[i] = ghost->notes[next];
        i = next;
    }
    ghost->fingerprints[i] = 0;
}

uint8_t *kvx_tier_ghost_find(const kvx_tier_ghost *ghost, uint32_t fingerprint)
{
    if (ghost->n == 0)
        return NULL;
    uint32_t i = place_of(ghost, not_zero(fingerprint));
    return i == ghost->n_buckets ? NULL : &ghost->notes[i];
}

uint8_t *kvx_tier_ghost_add(kvx_tier_ghost *ghost, uint32_t fingerprint)
{
    uint8_t *notes = kvx_tier_ghost_find(ghost, fingerprint);
    if (notes || ghost->n == 0)
        return notes;
    uint32_t *place = &ghost->ring[ghost->oldest];
    if (*place != 0)
        erase(ghost, *place);
    *place = not_zero(fingerprint);
    ghost->oldest = ghost->oldest + 1 < ghost->n ? ghost->oldest + 1 : 0;
    insert(ghost, *place);
    return kvx_tier_ghost_find(ghost, fingerprint);
}
