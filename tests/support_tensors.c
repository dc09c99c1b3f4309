/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors with guards. Every byte outside the blocks is a canary, so that a write that strays is seen by comparing the
 * whole allocation with its mirror. */
#include "support.h"

#include <stdlib.h>

#define GUARD_BYTES 256u
#define CANARY 0xa5

static const lane_shape *pattern_of(const shape *s, uint32_t lane)
{
    return &s->pattern[lane % s->n_pattern];
}

static uint64_t lane_bytes(const shape *s, uint32_t lane)
{
    const lane_shape *p = pattern_of(s, lane);
    return (uint64_t)p->n_rows * p->row_bytes;
}

uint32_t shape_segments(const shape *s)
{
    return (s->n_lanes + s->lanes_per_segment - 1) / s->lanes_per_segment;
}

uint64_t shape_unit_bytes(const shape *s, uint32_t segment)
{
    uint64_t bytes = 0;
    for (uint32_t i = segment * s->lanes_per_segment; i < s->n_lanes && i < (segment + 1) * s->lanes_per_segment; i++)
        bytes += lane_bytes(s, i);
    return bytes;
}

uint64_t shape_unit_offset(const shape *s, uint32_t segment)
{
    uint64_t offset = 0;
    for (uint32_t i = 0; i < segment; i++)
        offset += (shape_unit_bytes(s, i) + 31) / 32 * 32;
    return offset;
}

static uint8_t *row_at(uint8_t *base, const kvx_lane *lane, uint32_t block, uint32_t row)
{
    return base + block * lane->block_stride + row * lane->row_stride;
}

static uint8_t *mirror_of(const tensors *t, const kvx_lane *lane)
{
    return t->mirror + ((uint8_t *)lane->dev_base - t->memory);
}

static void lane_describe(kvx_lane *lane, const shape *s, uint32_t i, uint32_t extra_gap)
{
    const lane_shape *p = pattern_of(s, i);
    const uint64_t row_gap = p->row_gap + (p->row_gap || p->order == TRANSPOSED ? extra_gap : 0);
    const uint64_t cell = p->row_bytes + row_gap;
    lane->n_blocks = s->n_blocks;
    lane->n_rows = p->n_rows;
    lane->row_bytes = p->row_bytes;
    lane->segment = i / s->lanes_per_segment;
    lane->row_stride = p->order == TRANSPOSED ? cell * s->n_blocks : cell;
    lane->block_stride = p->order == TRANSPOSED ? cell : cell * p->n_rows + p->block_gap + extra_gap;
}

static size_t lane_span(const kvx_lane *lane)
{
    const uint64_t last = (lane->n_blocks - 1) * lane->block_stride + (lane->n_rows - 1) * lane->row_stride;
    return (size_t)(last + lane->row_bytes + 15) / 16 * 16;
}

void tensors_create(tensors *t, const device *dev, const shape *s, uint32_t extra_gap)
{
    size_t at = GUARD_BYTES;
    memset(t, 0, sizeof *t);
    t->dev = dev;
    t->shape = s;
    t->lanes = calloc(s->n_lanes, sizeof *t->lanes);
    assert_non_null(t->lanes);
    t->bytes = GUARD_BYTES;
    for (uint32_t i = 0; i < s->n_lanes; i++) {
        lane_describe(&t->lanes[i], s, i, extra_gap);
        t->bytes += lane_span(&t->lanes[i]) + GUARD_BYTES;
    }
    t->memory = dev->alloc(t->bytes);
    t->mirror = malloc(t->bytes);
    assert_non_null(t->memory);
    assert_non_null(t->mirror);
    for (uint32_t i = 0; i < s->n_lanes; i++) {
        t->lanes[i].dev_base = t->memory + at + s->skew;
        at += lane_span(&t->lanes[i]) + GUARD_BYTES;
    }
    memset(t->mirror, CANARY, t->bytes);
    tensors_upload(t);
}

void tensors_destroy(tensors *t)
{
    t->dev->free(t->memory);
    free(t->mirror);
    free(t->lanes);
}

/* Bytes of the plaintext stream of a seed; segments follow each other without padding. */
static void content(uint64_t seed, uint64_t segment, uint8_t *out, size_t bytes)
{
    uint64_t state = seed * 0x100000001b3u ^ (segment + 1) * 0xd6e8feb86659fd93u;
    for (size_t i = 0; i < bytes; i += 8) {
        const uint64_t word = random_word(&state);
        memcpy(out + i, &word, bytes - i < 8 ? bytes - i : 8);
    }
}

void unit_plain(const shape *s, uint32_t segment, uint64_t seed, uint8_t *plain)
{
    const size_t bytes = (size_t)shape_unit_bytes(s, segment);
    memset(plain, 0, (bytes + 31) / 32 * 32);
    content(seed, segment, plain, bytes);
}

typedef void row_fn(uint8_t *row, uint8_t *plain, size_t bytes);

static void row_from_plain(uint8_t *row, uint8_t *plain, size_t bytes)
{
    memcpy(row, plain, bytes);
}

static void row_to_plain(uint8_t *row, uint8_t *plain, size_t bytes)
{
    memcpy(plain, row, bytes);
}

static void row_zero(uint8_t *row, uint8_t *plain, size_t bytes)
{
    (void)plain;
    memset(row, 0, bytes);
}

/* Walks the rows of a unit in the order in which they are sealed. */
static size_t for_rows(const tensors *t, uint32_t block, uint32_t segment, row_fn *fn, uint8_t *plain)
{
    size_t at = 0;
    for (uint32_t i = 0; i < t->shape->n_lanes; i++) {
        const kvx_lane *lane = &t->lanes[i];
        if (lane->segment != segment)
            continue;
        for (uint32_t row = 0; row < lane->n_rows; row++, at += lane->row_bytes)
            fn(row_at(mirror_of(t, lane), lane, block, row), plain ? plain + at : NULL, lane->row_bytes);
    }
    return at;
}

size_t tensors_gather(const tensors *t, uint32_t block, uint32_t segment, uint8_t *plain)
{
    return for_rows(t, block, segment, row_to_plain, plain);
}

void tensors_expect_segment(tensors *t, uint32_t block, uint32_t segment, uint64_t seed)
{
    uint8_t *plain = malloc((size_t)shape_unit_bytes(t->shape, segment) + 32);
    assert_non_null(plain);
    unit_plain(t->shape, segment, seed, plain);
    (void)for_rows(t, block, segment, row_from_plain, plain);
    free(plain);
}

void tensors_expect(tensors *t, uint32_t block, uint64_t seed)
{
    for (uint32_t segment = 0; segment < shape_segments(t->shape); segment++)
        tensors_expect_segment(t, block, segment, seed);
}

void tensors_expect_zero(tensors *t, uint32_t block, uint32_t segment)
{
    for (uint32_t i = 0; i < shape_segments(t->shape); i++)
        if (segment == ALL_SEGMENTS || segment == i)
            (void)for_rows(t, block, i, row_zero, NULL);
}

void tensors_upload(tensors *t)
{
    t->dev->upload(t->memory, t->mirror, t->bytes);
}

void tensors_fill(tensors *t, uint32_t first_block, uint32_t n, uint64_t first_seed)
{
    for (uint32_t i = 0; i < n; i++)
        tensors_expect(t, first_block + i, first_seed + i);
    tensors_upload(t);
}

/* Says where a byte lies, for a human. */
static void report_byte(const tensors *t, size_t at, const uint8_t *got)
{
    for (uint32_t i = 0; i < t->shape->n_lanes; i++) {
        const kvx_lane *lane = &t->lanes[i];
        const size_t start = (size_t)((uint8_t *)lane->dev_base - t->memory);
        if (at >= start && at < start + lane_span(lane))
            print_error("in lane %u at %zu (block stride %llu, row stride %llu): ", i, at - start,
                        (unsigned long long)lane->block_stride, (unsigned long long)lane->row_stride);
    }
    print_error("offset %zu holds %02x, expected %02x (%s)\n", at, got[at], t->mirror[at], t->shape->name);
}

void tensors_check(const tensors *t)
{
    uint8_t *got = malloc(t->bytes);
    assert_non_null(got);
    t->dev->download(got, t->memory, t->bytes);
    if (memcmp(got, t->mirror, t->bytes) != 0) {
        size_t n_wrong = 0;
        for (size_t i = 0; i < t->bytes; i++)
            if (got[i] != t->mirror[i] && n_wrong++ < 3)
                report_byte(t, i, got);
        free(got);
        fail_msg("%zu of %zu bytes differ", n_wrong, t->bytes);
    }
    free(got);
}

/* Reads nothing but the rows of the unit, so that work on other blocks may go on meanwhile. */
static void download_unit(const tensors *t, uint32_t block, uint32_t segment, uint8_t *plain)
{
    for (uint32_t i = 0; i < t->shape->n_lanes; i++) {
        const kvx_lane *lane = &t->lanes[i];
        if (lane->segment != segment)
            continue;
        for (uint32_t row = 0; row < lane->n_rows; row++, plain += lane->row_bytes)
            t->dev->download(plain, row_at(lane->dev_base, lane, block, row), lane->row_bytes);
    }
}

int tensors_segment_holds(const tensors *t, uint32_t block, uint32_t segment, uint64_t seed)
{
    const size_t bytes = (size_t)shape_unit_bytes(t->shape, segment);
    uint8_t *got = malloc(bytes + 32), *wanted = malloc(bytes + 32);
    assert_true(got && wanted);
    download_unit(t, block, segment, got);
    unit_plain(t->shape, segment, seed, wanted);
    const int same = memcmp(got, wanted, bytes) == 0;
    free(wanted);
    free(got);
    return same;
}

int tensors_holds(const tensors *t, uint32_t block, uint64_t seed)
{
    for (uint32_t segment = 0; segment < shape_segments(t->shape); segment++)
        if (!tensors_segment_holds(t, block, segment, seed))
            return 0;
    return 1;
}
