/* SPDX-License-Identifier: Apache-2.0 */
/* The scene of a crime: stored blocks, their bytes in the pool, and what must be found of them. */
#include "scene.h"

#include <stdlib.h>

/* Units of 73,736 bytes: over a 64 KiB tile, not a multiple of 16. */
const shape victim = {
    "victim", N_BLOCKS, 2 * N_SEGMENTS, 2, {{1, 65536, 0, 64, BLOCK_MAJOR}, {25, 328, 8, 0, BLOCK_MAJOR}}, 2, 0};

void save_all(scene *s)
{
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        memcpy(s->saved[i], s->slot[i], s->sealed);
}

void put_back(scene *s)
{
    for (uint32_t i = 0; i < N_BLOCKS; i++) {
        memcpy(s->slot[i], s->saved[i], s->sealed);
        s->bad[i] = 0;
    }
}

void store_seeds(scene *s, uint64_t first_seed)
{
    tensors_fill(&s->r.source, 0, N_BLOCKS, first_seed);
    store_all(&s->r, N_BLOCKS, s->store);
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        s->seed[i] = first_seed + i;
}

void scene_open_with(scene *s, const device *dev, const rig_options *options)
{
    memset(s, 0, sizeof *s);
    rig_open(&s->r, dev, &victim, options);
    tensors_create(&s->dest, dev, &victim, 0);
    s->into = layout_make(s->r.ctx, &s->dest, 7);
    s->sealed = (size_t)shape_unit_offset(&victim, N_SEGMENTS);
    slots_take(s->r.pool, N_BLOCKS, s->slots);
    pairs_set(s->store, N_BLOCKS, s->r.layout, 0, s->slots);
    pairs_set(s->open, N_BLOCKS, s->into, 0, s->slots);
    for (uint32_t i = 0; i < N_BLOCKS; i++) {
        s->slot[i] = slot_bytes(s->r.pool, s->slots[i]);
        s->saved[i] = malloc(s->sealed);
        assert_non_null(s->saved[i]);
    }
    store_seeds(s, OLD_SEED);
    save_all(s);
}

void scene_open(scene *s, const device *dev)
{
    const rig_options options = {.policy = KVX_TAMPER_MISS, .tamper_budget = 1u << 30, .n_tenants = 3};
    scene_open_with(s, dev, &options);
}

void scene_close(scene *s)
{
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        free(s->saved[i]);
    rig_close(&s->r);
    tensors_destroy(&s->dest);
}

/* Mirror of what a restore must leave: plaintext where the tag is right, zeros where not. */
void expect_content(scene *s)
{
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        for (uint32_t segment = 0; segment < N_SEGMENTS; segment++)
            if (s->bad[i] & 1u << segment)
                tensors_expect_zero(&s->dest, i, segment);
            else
                tensors_expect_segment(&s->dest, i, segment, s->seed[i]);
}

/* Opens all blocks over somebody's stale content and checks verdicts and every byte of the destination. */
void expect_found(scene *s, kvx_status verdict)
{
    kvx_status verdicts[N_BLOCKS];
    tensors_fill(&s->dest, 0, N_BLOCKS, STALE_SEED);
    restore_some(&s->r, N_BLOCKS, s->open, verdicts);
    expect_content(s);
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        check_status(verdicts[i], s->bad[i] ? verdict : KVX_OK, "verdict", __FILE__, __LINE__);
    tensors_check(&s->dest);
}

/* Finds the damage, and after it is undone the blocks open again: nothing was forgotten, nothing latched. */
void expect_tampered(scene *s)
{
    expect_found(s, KVX_TAMPERED);
    put_back(s);
    expect_found(s, KVX_TAMPERED);
    assert_int_equal(stats_of(s->r.ctx).latched, 0);
}

size_t unit_at(uint32_t segment)
{
    return (size_t)shape_unit_offset(&victim, segment);
}

size_t unit_padded(uint32_t segment)
{
    return unit_at(segment + 1) - unit_at(segment);
}
