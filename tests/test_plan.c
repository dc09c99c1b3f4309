/* SPDX-License-Identifier: Apache-2.0 */
/* The planner of the CUDA engine, without CUDA: bursts fit, every unit travels exactly once, copies carry exactly the
 * sealed bytes and merge only where slots touch. Random batches are checked byte by byte against that. */
#include "cmocka_door.h"

#include <stdlib.h>
#include <string.h>

#include "src/plan.h"

#define N_LAYOUTS 3u
#define N_SLOTS 8192u
#define BURST_LIMIT (8u << 20)
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

typedef struct scene {
    kvx_dev_class classes[2];
    kvx_pool_view pool;
    kvx_dev_segment segments[N_LAYOUTS][64];
    kvx_dev_layout layouts[N_LAYOUTS];
    kvx_work_pair pairs[N_SLOTS];
    kvx_plan plan;
} scene;

/* Layout i: n segments of `bytes` each. */
static void set_layout(scene *s, uint32_t i, uint32_t n, uint32_t bytes)
{
    for (uint32_t k = 0; k < n; k++)
        s->segments[i][k] = (kvx_dev_segment){.slot_offset = k * bytes, .bytes = bytes, .plain_bytes = bytes};
    s->layouts[i] =
        (kvx_dev_layout){.segments = s->segments[i], .n_segments = n, .n_blocks = 1, .sealed_bytes = n * bytes};
}

/* Two classes of N_SLOTS / 2 slots, 16 to a chunk. */
static scene *scene_new(uint32_t slot_bytes, uint32_t other_bytes)
{
    scene *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->classes[0] = (kvx_dev_class){.n_slots = N_SLOTS / 2, .slot_bytes = slot_bytes, .slots_per_chunk = 16};
    s->classes[1] = (kvx_dev_class){.first_slot = N_SLOTS / 2,
                                    .n_slots = N_SLOTS / 2,
                                    .slot_bytes = other_bytes,
                                    .first_chunk = N_SLOTS / 32,
                                    .slots_per_chunk = 16};
    s->pool = (kvx_pool_view){.classes = s->classes, .n_classes = 2, .n_slots = N_SLOTS};
    for (uint32_t i = 0; i < N_SLOTS; i++)
        s->pairs[i].slot = i;
    return s;
}

static void begin(scene *s, enum kvx_plan_mode mode, uint32_t n, uint64_t burst_bytes)
{
    const kvx_plan_batch batch = {
        .pool = &s->pool, .layouts = s->layouts, .pairs = s->pairs, .n = n, .mode = mode, .chunk_bytes = burst_bytes};
    kvx_plan_begin(&s->plan, &batch);
}

static void nothing_makes_no_burst(void **state)
{
    scene *s = scene_new(4096, 4096);
    kvx_burst burst;
    (void)state;
    for (int mode = KVX_PLAN_WHOLE; mode <= KVX_PLAN_DIRECT; mode++) {
        begin(s, (enum kvx_plan_mode)mode, 0, 1 << 20);
        assert_false(kvx_plan_next(&s->plan, &burst));
        assert_false(kvx_plan_next(&s->plan, &burst));
    }
    free(s);
}

static void full_neighbours_are_one_copy(void **state)
{
    scene *s = scene_new(8192, 4096);
    kvx_burst burst;
    (void)state;
    set_layout(s, 0, 2, 4096);
    begin(s, KVX_PLAN_WHOLE, 16, 1 << 20);
    assert_true(kvx_plan_next(&s->plan, &burst));
    assert_int_equal(burst.n_pairs, 16);
    assert_int_equal(burst.n_segments, 2);
    assert_int_equal(burst.staged_stride, 8192);
    assert_true(burst.ends_run && burst.ends_batch);
    assert_int_equal(burst.n_copies, 1);
    assert_int_equal(burst.copies[0].bytes, 16 * 8192);
    assert_int_equal(burst.copies[0].pool_offset, 0);
    assert_false(kvx_plan_next(&s->plan, &burst));
    free(s);
}

static void chunks_and_gaps_part_copies(void **state)
{
    scene *s = scene_new(8192, 4096);
    kvx_burst burst;
    (void)state;
    set_layout(s, 0, 2, 4096);
    begin(s, KVX_PLAN_WHOLE, 17, 1 << 20); /* the 17th slot is in the next chunk */
    assert_true(kvx_plan_next(&s->plan, &burst));
    assert_int_equal(burst.n_copies, 2);
    assert_int_equal(burst.copies[1].chunk, 1);
    assert_int_equal(burst.copies[1].ring_offset, 16 * 8192);
    s->pairs[1].slot = 5; /* no neighbour of 0 or 2 */
    begin(s, KVX_PLAN_WHOLE, 3, 1 << 20);
    assert_true(kvx_plan_next(&s->plan, &burst));
    assert_int_equal(burst.n_copies, 3);
    set_layout(s, 0, 2, 4064); /* the slots' ends hold nothing of this batch */
    s->pairs[1].slot = 1;
    begin(s, KVX_PLAN_WHOLE, 16, 1 << 20);
    assert_true(kvx_plan_next(&s->plan, &burst));
    assert_int_equal(burst.staged_stride, 2 * 4064);
    assert_int_equal(burst.n_copies, 16);
    assert_int_equal(burst.copies[3].bytes, 2 * 4064);
    free(s);
}

static void bursts_are_full(void **state)
{
    scene *s = scene_new(8192, 4096);
    uint32_t sizes[3] = {0, 0, 0}, n = 0;
    kvx_burst burst;
    (void)state;
    set_layout(s, 0, 1, 8192);
    begin(s, KVX_PLAN_WHOLE, 20, 8 * 8192);
    while (kvx_plan_next(&s->plan, &burst)) {
        assert_in_range(n, 0, 2);
        assert_int_equal(burst.ends_batch, n == 2);
        sizes[n++] = burst.n_pairs;
    }
    assert_int_equal(sizes[0], 8);
    assert_int_equal(sizes[1], 8);
    assert_int_equal(sizes[2], 4);
    free(s);
}

/* Pairs in each burst of n pairs of 1 MiB. */
static uint32_t sizes_of(scene *s, uint32_t n, enum kvx_plan_ramp ramp, uint64_t burst_bytes, uint32_t *sizes)
{
    const kvx_plan_batch batch = {.pool = &s->pool,
                                  .layouts = s->layouts,
                                  .pairs = s->pairs,
                                  .n = n,
                                  .ramp = ramp,
                                  .ramp_above = 8 << 20,
                                  .chunk_bytes = 32 << 20,
                                  .burst_bytes = burst_bytes};
    uint32_t n_bursts = 0;
    kvx_burst burst;
    kvx_plan_begin(&s->plan, &batch);
    assert_int_equal(s->plan.n_bytes, (uint64_t)n << 20);
    while (kvx_plan_next(&s->plan, &burst))
        sizes[n_bursts++] = burst.n_pairs;
    assert_int_equal(s->plan.n_taken, s->plan.n_bytes);
    return n_bursts;
}

static void bursts_aim_at_a_size(void **state)
{
    scene *s = scene_new(1 << 20, 4096);
    uint32_t sizes[64];
    (void)state;
    set_layout(s, 0, 1, 1 << 20);
    assert_int_equal(sizes_of(s, 64, KVX_PLAN_EVEN, 16 << 20, sizes), 4);
    assert_int_equal(sizes[3], 16);
    assert_int_equal(sizes_of(s, 64, KVX_PLAN_EVEN, 0, sizes), 2); /* none: chunks */
    assert_int_equal(sizes_of(s, 64, KVX_PLAN_EVEN, 64 << 20, sizes), 2);
    assert_int_equal(sizes_of(s, 3, KVX_PLAN_EVEN, 1 << 18, sizes), 3); /* a block is never parted */
    free(s);
}

static void bursts_grow_and_shrink(void **state)
{
    static const uint32_t grown[] = {4, 16, 16, 14}, shrunk[] = {16, 16, 15, 3}, far[] = {4, 24, 32, 20};
    scene *s = scene_new(1 << 20, 4096);
    uint32_t sizes[64];
    (void)state;
    set_layout(s, 0, 1, 1 << 20);
    assert_int_equal(sizes_of(s, 50, KVX_PLAN_GROW, 16 << 20, sizes), COUNT(grown));
    assert_memory_equal(sizes, grown, sizeof grown);
    assert_int_equal(sizes_of(s, 50, KVX_PLAN_SHRINK, 16 << 20, sizes), COUNT(shrunk));
    assert_memory_equal(sizes, shrunk, sizeof shrunk);
    assert_int_equal(sizes_of(s, 80, KVX_PLAN_GROW, 0, sizes), COUNT(far));
    assert_memory_equal(sizes, far, sizeof far);
    assert_int_equal(sizes_of(s, 8, KVX_PLAN_GROW, 16 << 20, sizes), 1);
    assert_int_equal(sizes_of(s, 8, KVX_PLAN_SHRINK, 16 << 20, sizes), 1);
    assert_int_equal(sizes_of(s, 9, KVX_PLAN_GROW, 16 << 20, sizes), 2);
    assert_int_equal(sizes[0], 4);
    assert_int_equal(sizes_of(s, 50, KVX_PLAN_GROW, 2 << 20, sizes), 25);
    free(s);
}

static void direct_stages_nothing(void **state)
{
    scene *s = scene_new(1 << 20, 4096);
    kvx_burst burst;
    (void)state;
    set_layout(s, 0, 4, 1 << 18);
    begin(s, KVX_PLAN_DIRECT, KVX_PAIRS_PER_LAUNCH + 1, 1 << 20);
    assert_true(kvx_plan_next(&s->plan, &burst));
    assert_int_equal(burst.n_pairs, KVX_PAIRS_PER_LAUNCH);
    assert_int_equal(burst.n_segments, 4);
    assert_int_equal(burst.n_copies, 0);
    assert_false(burst.ends_batch);
    assert_true(kvx_plan_next(&s->plan, &burst));
    assert_int_equal(burst.first_pair, KVX_PAIRS_PER_LAUNCH);
    assert_int_equal(burst.n_pairs, 1);
    assert_true(burst.ends_batch);
    assert_false(kvx_plan_next(&s->plan, &burst));
    free(s);
}

/* The first segments of the runs of a batch. */
static uint32_t runs_of(scene *s, uint32_t n, uint32_t *ends)
{
    uint32_t n_runs = 0;
    kvx_burst burst;
    begin(s, KVX_PLAN_SEGMENTS, n, BURST_LIMIT);
    while (kvx_plan_next(&s->plan, &burst))
        if (burst.ends_run)
            ends[n_runs++] = burst.run_end;
    return n_runs;
}

static void segment_runs_grow(void **state)
{
    static const uint32_t wanted[] = {1, 2, 4, 8, 10};
    scene *s = scene_new(1 << 20, 4096);
    uint32_t ends[64];
    (void)state;
    set_layout(s, 0, 10, 65536);
    assert_int_equal(runs_of(s, 16, ends), 5);
    assert_memory_equal(ends, wanted, sizeof wanted);
    assert_int_equal(runs_of(s, 1, ends), 1); /* too little to be worth parting */
    assert_int_equal(ends[0], 10);
    assert_int_equal(runs_of(s, 4, ends), 3); /* 1 MiB is 4 segments of 4 pairs */
    assert_int_equal(ends[0], 4);
    assert_int_equal(ends[1], 8);
    free(s);
}

static void pairs_without_the_segment_are_passed_over(void **state)
{
    scene *s = scene_new(1 << 20, 1 << 20);
    kvx_burst burst;
    (void)state;
    set_layout(s, 0, 1, 1 << 20);
    set_layout(s, 1, 2, 1 << 19);
    for (uint32_t i = 0; i < 12; i++)
        s->pairs[i].layout = i == 5;
    begin(s, KVX_PLAN_SEGMENTS, 12, 1 << 20);
    for (uint32_t i = 0; i < 12; i++) {
        assert_true(kvx_plan_next(&s->plan, &burst));
        assert_int_equal(burst.first_pair, i);
        assert_int_equal(burst.ends_run, i == 11);
        assert_false(burst.ends_batch);
    }
    assert_true(kvx_plan_next(&s->plan, &burst));
    assert_int_equal(burst.first_segment, 1);
    assert_int_equal(burst.first_pair, 5);
    assert_int_equal(burst.copies[0].pool_offset, (5 << 20) + (1 << 19));
    assert_true(burst.ends_batch);
    assert_false(kvx_plan_next(&s->plan, &burst));
    free(s);
}

/* ------------------------------------------------------------------------------------------------- random batches */

static uint32_t draw(uint32_t *random, uint32_t limit)
{
    *random = *random * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)*random * limit >> 32);
}

/* Sealed bytes and place of the pair's part of the burst; 0 if it has none. */
static uint64_t expected_piece(const scene *s, const kvx_burst *burst, uint32_t pair, kvx_plan_copy *piece)
{
    const kvx_work_pair *p = &s->pairs[pair];
    const kvx_dev_layout *layout = &s->layouts[p->layout];
    const kvx_dev_class *c = &s->classes[p->slot >= s->classes[1].first_slot];
    const uint32_t index = p->slot - c->first_slot;
    memset(piece, 0, sizeof *piece);
    for (uint32_t k = burst->first_segment; k < burst->run_end && k < layout->n_segments; k++)
        piece->bytes += layout->segments[k].bytes;
    if (piece->bytes == 0)
        return 0;
    piece->chunk = c->first_chunk + index / c->slots_per_chunk;
    piece->pool_offset =
        (uint64_t)(index % c->slots_per_chunk) * c->slot_bytes + layout->segments[burst->first_segment].slot_offset;
    piece->ring_offset = (pair - burst->first_pair) * burst->staged_stride;
    return piece->bytes;
}

/* The copies, cut at the pairs' borders again, are exactly the pairs' pieces. */
static void check_copies(const scene *s, const kvx_burst *burst)
{
    uint32_t at = 0;
    uint64_t used = 0;
    for (uint32_t i = 0; i < burst->n_pairs; i++) {
        kvx_plan_copy piece;
        if (expected_piece(s, burst, burst->first_pair + i, &piece) == 0)
            continue;
        assert_true(at < burst->n_copies);
        assert_int_equal(burst->copies[at].chunk, piece.chunk);
        assert_int_equal(burst->copies[at].pool_offset + used, piece.pool_offset);
        assert_int_equal(burst->copies[at].ring_offset + used, piece.ring_offset);
        assert_true(piece.bytes <= burst->staged_stride);
        used += piece.bytes;
        assert_true(used <= burst->copies[at].bytes);
        if (used == burst->copies[at].bytes) {
            at++;
            used = 0;
        }
    }
    assert_int_equal(at, burst->n_copies);
    assert_int_equal(used, 0);
}

/* Counts the units that the burst carries. */
static uint64_t check_burst(const scene *s, const kvx_burst *burst, uint64_t burst_bytes)
{
    uint64_t n_units = 0;
    assert_in_range(burst->n_pairs, 1, KVX_PAIRS_PER_LAUNCH);
    assert_int_equal(burst->staged_stride % KVX_UNIT_ALIGN, 0);
    assert_true(burst->n_pairs * burst->staged_stride <= burst_bytes);
    for (uint32_t i = 0; i < burst->n_pairs; i++) {
        const uint32_t n = s->layouts[s->pairs[burst->first_pair + i].layout].n_segments;
        const uint32_t end = n < burst->run_end ? n : burst->run_end;
        if (end <= burst->first_segment)
            continue;
        assert_true(end - burst->first_segment <= burst->n_segments);
        n_units += end - burst->first_segment;
    }
    assert_true(n_units > 0);
    check_copies(s, burst);
    return n_units;
}

static void check_batch(scene *s, enum kvx_plan_mode mode, uint32_t n, uint64_t burst_bytes)
{
    uint64_t n_units = 0, expected = 0;
    uint32_t next = 0, run_end = 0;
    int ended = 0;
    kvx_burst burst;
    for (uint32_t i = 0; i < n; i++)
        expected += s->layouts[s->pairs[i].layout].n_segments;
    begin(s, mode, n, burst_bytes);
    s->plan.batch.ramp = (enum kvx_plan_ramp)(n % 3);
    s->plan.batch.burst_bytes = n % 2 ? 0 : burst_bytes / 2;
    while (kvx_plan_next(&s->plan, &burst)) {
        assert_false(ended);
        if (burst.first_segment == run_end) { /* a new run */
            run_end = burst.run_end;
            next = 0;
        }
        assert_int_equal(burst.run_end, run_end);
        assert_true(burst.first_pair >= next);
        next = burst.first_pair + burst.n_pairs;
        n_units += check_burst(s, &burst, burst_bytes);
        ended = burst.ends_batch != 0;
    }
    assert_true(ended);
    assert_int_equal(s->plan.n_taken, s->plan.n_bytes);
    assert_int_equal(n_units, expected); /* with ascending pairs and runs: each exactly once */
}

static void random_batches(void **state)
{
    uint32_t random = 7;
    (void)state;
    for (uint32_t round = 0; round < 300; round++) {
        scene *s = scene_new(1 << 18, 1 << 16);
        const uint32_t n = 1 + draw(&random, round % 10 == 0 ? N_SLOTS : 200);
        const uint64_t burst_bytes = (1 << 18) + draw(&random, BURST_LIMIT);
        for (uint32_t i = 0; i < N_LAYOUTS; i++)
            set_layout(s, i, 1 + draw(&random, 32), 32 * (1 + draw(&random, 64)));
        set_layout(s, 0, 1 + draw(&random, 4), 1 << 14); /* with 4 segments it fills a slot of class 1 */
        for (uint32_t i = 0; i < n; i++) {
            s->pairs[i].layout = (uint8_t)(draw(&random, 4) ? 0 : draw(&random, N_LAYOUTS));
            s->pairs[i].slot =
                draw(&random, 3) || i == 0 ? draw(&random, N_SLOTS) : (s->pairs[i - 1].slot + 1) % N_SLOTS;
        }
        check_batch(s, KVX_PLAN_WHOLE, n, burst_bytes);
        check_batch(s, KVX_PLAN_SEGMENTS, n, burst_bytes);
        free(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_makes_no_burst),
        cmocka_unit_test(full_neighbours_are_one_copy),
        cmocka_unit_test(chunks_and_gaps_part_copies),
        cmocka_unit_test(bursts_are_full),
        cmocka_unit_test(bursts_aim_at_a_size),
        cmocka_unit_test(bursts_grow_and_shrink),
        cmocka_unit_test(direct_stages_nothing),
        cmocka_unit_test(segment_runs_grow),
        cmocka_unit_test(pairs_without_the_segment_are_passed_over),
        cmocka_unit_test(random_batches),
    };
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
