/* SPDX-License-Identifier: Apache-2.0 */
/* The KV cache, pool, context and layout that the sub-benches measure with. Lanes lie one after the other in one
 * stretch of device memory; the pattern's position is the byte's place in that stretch, so that a piece in the wrong
 * place never compares equal. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t bench_shape_lanes(const bench_shape *shape)
{
    uint32_t kind, n = 0;
    for (kind = 0; kind < shape->n_kinds; kind++)
        n += shape->n_layers - shape->first_layer[kind];
    return n;
}

/* Where a lane belongs. */
typedef struct place {
    uint32_t layer, kind;
} place;

static place find_lane(const bench_shape *shape, uint32_t lane)
{
    place p = {0, 0};
    uint32_t i = 0;
    for (p.layer = 0; p.layer < shape->n_layers; p.layer++)
        for (p.kind = 0; p.kind < shape->n_kinds; p.kind++)
            if (p.layer >= shape->first_layer[p.kind] && i++ == lane)
                return p;
    return p;
}

uint64_t bench_lane_bytes(const bench_shape *shape, uint32_t lane)
{
    return shape->piece_bytes[find_lane(shape, lane).kind];
}

uint64_t bench_shape_block_bytes(const bench_shape *shape)
{
    uint64_t n_bytes = 0;
    uint32_t kind;
    for (kind = 0; kind < shape->n_kinds; kind++)
        n_bytes += shape->piece_bytes[kind] * (shape->n_layers - shape->first_layer[kind]);
    return n_bytes;
}

/* Layers are dealt out so that no segment has more than one layer more than another. */
static uint32_t segment_of(const bench_shape *shape, uint32_t lane)
{
    return (uint32_t)((uint64_t)find_lane(shape, lane).layer * shape->n_segments / shape->n_layers);
}

/* As the library computes it: each segment padded to 32 bytes. */
static uint64_t sealed_bytes_of(const bench_shape *shape)
{
    uint64_t n_bytes = 0, segment = 0;
    uint32_t lane, n = bench_shape_lanes(shape);
    for (lane = 0; lane < n; lane++) {
        segment += bench_lane_bytes(shape, lane);
        if (lane + 1 == n || segment_of(shape, lane + 1) != segment_of(shape, lane)) {
            n_bytes += (segment + 31) & ~(uint64_t)31;
            segment = 0;
        }
    }
    return n_bytes;
}

static bool allocate_lists(bench_scene *s)
{
    uint32_t n_slots = s->shape.n_slots, n_blocks = s->shape.n_blocks, n_most = n_slots > n_blocks ? n_slots : n_blocks;
    s->lane_at = calloc(bench_shape_lanes(&s->shape), sizeof(*s->lane_at));
    s->slots = calloc(n_slots, sizeof(*s->slots));
    s->pairs = calloc(n_most, sizeof(*s->pairs));
    s->tickets = calloc(2 * (size_t)n_most, sizeof(*s->tickets));
    if (s->lane_at && s->slots && s->pairs && s->tickets)
        return true;
    fputs("no memory for the lists of blocks: try a smaller --bytes\n", stderr);
    return false;
}

static bool create_cache(bench_scene *s)
{
    uint32_t lane, n = bench_shape_lanes(&s->shape);
    void *memory = NULL;
    s->cache_bytes = 0;
    for (lane = 0; lane < n; lane++) {
        s->lane_at[lane] = s->cache_bytes;
        s->cache_bytes += bench_lane_bytes(&s->shape, lane) * s->shape.n_blocks;
    }
    if (!device_alloc(&s->b->dev, s->cache_bytes, &memory))
        return false;
    s->dev_cache = memory;
    return true;
}

static bool create_pool(bench_scene *s)
{
    kvx_slot_class slot_class = {
        .slot_bytes = s->sealed_bytes, .n_slots = s->shape.n_slots, .max_units = s->shape.n_segments};
    kvx_pool_config config = KVX_POOL_CONFIG_INIT;
    double start = bench_now();
    config.classes = &slot_class;
    config.n_classes = 1;
    config.engine = s->b->dev.engine;
    if (!bench_ok(kvx_pool_create(&config, &s->pool), "kvx_pool_create (a smaller --bytes needs less host memory)"))
        return false;
    s->pool_seconds = bench_now() - start;
    return bench_ok(kvx_pool_take(s->pool, 0, s->shape.n_slots, s->slots), "kvx_pool_take");
}

static bool create_context(bench_scene *s)
{
    kvx_config config = KVX_CONFIG_INIT;
    config.engine = s->b->dev.engine;
    config.device = bench_on_cpu(s->b) ? 0 : s->b->dev.ordinal + 1;
    config.n_tenants = s->shape.n_tenants;
    return bench_ok(kvx_ctx_create(s->pool, &config, &s->ctx), "kvx_ctx_create");
}

static kvx_lane describe_lane(const bench_scene *s, uint32_t lane)
{
    uint64_t n_bytes = bench_lane_bytes(&s->shape, lane);
    kvx_lane made = {.dev_base = s->dev_cache + s->lane_at[lane],
                     .block_stride = n_bytes,
                     .row_stride = n_bytes,
                     .row_bytes = n_bytes,
                     .n_blocks = s->shape.n_blocks,
                     .n_rows = 1,
                     .segment = segment_of(&s->shape, lane)};
    return made;
}

static bool create_layout(bench_scene *s)
{
    kvx_layout_desc desc = KVX_LAYOUT_DESC_INIT;
    uint32_t i, n = bench_shape_lanes(&s->shape);
    kvx_lane *lanes = calloc(n, sizeof(*lanes));
    uint64_t sealed = 0;
    bool done;
    if (!lanes) {
        fputs("no memory for the lanes\n", stderr);
        return false;
    }
    for (i = 0; i < n; i++)
        lanes[i] = describe_lane(s, i);
    desc.lanes = lanes;
    desc.n_lanes = n;
    done = bench_ok(kvx_layout_create(s->ctx, &desc, &s->layout), "kvx_layout_create");
    free(lanes);
    if (!done)
        return false;
    kvx_layout_info(s->layout, &sealed, NULL);
    if (sealed != s->sealed_bytes)
        bench_fail(s->b, "the library says %llu sealed bytes per block, %llu expected", (unsigned long long)sealed,
                   (unsigned long long)s->sealed_bytes);
    return sealed == s->sealed_bytes;
}

static void list_pairs(bench_scene *s)
{
    uint32_t i, n_tenants = s->shape.n_tenants ? s->shape.n_tenants : 1;
    for (i = 0; i < s->shape.n_blocks && i < s->shape.n_slots; i++) {
        kvx_pair pair = {.layout = s->layout, .block = i, .slot = s->slots[i], .tenant = i % n_tenants};
        s->pairs[i] = pair;
    }
}

bool bench_scene_open(bench *b, const bench_shape *shape, bench_scene *s)
{
    uint64_t host_bytes;
    memset(s, 0, sizeof(*s));
    s->b = b;
    s->shape = *shape;
    if (s->shape.n_slots == 0)
        s->shape.n_slots = s->shape.n_blocks;
    s->block_bytes = bench_shape_block_bytes(shape);
    s->sealed_bytes = sealed_bytes_of(shape);
    host_bytes = s->sealed_bytes * s->shape.n_slots + (bench_on_cpu(b) ? s->block_bytes * shape->n_blocks : 0);
    if (!bench_fits(host_bytes) || !allocate_lists(s) || !create_cache(s) || !create_pool(s) || !create_context(s) ||
        !create_layout(s))
        return false;
    list_pairs(s);
    return true;
}

bool bench_scene_close(bench_scene *s)
{
    bool done = true;
    kvx_ctx_destroy(s->ctx);
    done = bench_ok(kvx_pool_destroy(s->pool), "kvx_pool_destroy");
    if (s->dev_cache)
        device_free(&s->b->dev, s->dev_cache);
    free(s->tickets);
    free(s->pairs);
    free(s->slots);
    free(s->lane_at);
    memset(s, 0, sizeof(*s));
    return done;
}

bool bench_scene_fill(bench_scene *s, uint64_t seed)
{
    return device_fill(&s->b->dev, s->dev_cache, s->cache_bytes, seed, 0) && device_sync(&s->b->dev);
}

static bool check_stretch(bench_scene *s, uint64_t at, uint64_t n_bytes, uint64_t seed, uint64_t *n_wrong)
{
    uint64_t wrong = 0;
    if (!device_compare(&s->b->dev, s->dev_cache + at, n_bytes, seed, at, &wrong))
        return false;
    *n_wrong += wrong;
    return true;
}

static void judge(bench_scene *s, uint64_t n_wrong, const char *what)
{
    if (n_wrong)
        bench_fail(s->b, "%s: %llu words are not what was stored", what, (unsigned long long)n_wrong);
}

bool bench_scene_check(bench_scene *s, uint64_t seed, const char *what)
{
    uint64_t n_wrong = 0;
    if (!check_stretch(s, 0, s->cache_bytes, seed, &n_wrong))
        return false;
    judge(s, n_wrong, what);
    return true;
}

bool bench_scene_check_blocks(bench_scene *s, const bench_part *part, uint64_t seed, const char *what)
{
    uint64_t n_wrong = 0;
    uint32_t lane, n_lanes = part->linear ? 0 : bench_shape_lanes(&s->shape);
    if (part->linear && !check_stretch(s, part->first * s->block_bytes, part->n * s->block_bytes, seed, &n_wrong))
        return false;
    for (lane = 0; lane < n_lanes; lane++) {
        uint64_t n_bytes = bench_lane_bytes(&s->shape, lane);
        if (!check_stretch(s, s->lane_at[lane] + part->first * n_bytes, part->n * n_bytes, seed, &n_wrong))
            return false;
    }
    judge(s, n_wrong, what);
    return true;
}
