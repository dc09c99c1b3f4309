/* SPDX-License-Identifier: Apache-2.0 */
/* Every way we know of creating things wrongly: pools, slots, contexts, layouts. One clear status, a note, outputs
 * untouched, and everything else as good as before. */
#include "misuse.h"

#include <limits.h>

/* ---------------------------------------------------------------------------------------------------------- pools */

static void refused_pool(const char *what, kvx_pool_config config)
{
    kvx_pool *pool = POISON;
    refused(what, kvx_pool_create(&config, &pool), KVX_INVALID);
    assert_ptr_equal(pool, POISON);
}

static void pool_configs(const device *dev, const void *arg)
{
    static const struct {
        const char *what;
        kvx_slot_class class;
    } classes[] = {
        {"pool: slot_bytes 0", {0, 8, 0, 0}},
        {"pool: slot_bytes over the limit", {(64u << 20) + 1, 8, 0, 0}},
        {"pool: slot_bytes 2^64 - 1", {UINT64_MAX, 8, 0, 0}},
        {"pool: n_slots 0", {4096, 0, 0, 0}},
        {"pool: n_slots over KVX_SLOTS_MAX", {4096, KVX_SLOTS_MAX + 1u, 0, 0}},
        {"pool: max_units over KVX_UNITS_MAX", {4096, 8, KVX_UNITS_MAX + 1, 0}},
        {"pool: max_units 2^32 - 1", {4096, 8, UINT32_MAX, 0}},
    };
    static const size_t sizes[] = {0, 1, 7, sizeof(kvx_pool_config) + 8, SIZE_MAX};
    const kvx_slot_class fine = {4096, 4, 0, 0};
    kvx_slot_class many[KVX_CLASSES_MAX + 1];
    kvx_pool_config config = KVX_POOL_CONFIG_INIT;
    kvx_pool *pool = POISON;
    bench b;
    (void)arg;
    bench_open(&b, dev);
    config.engine = dev->engine;
    config.classes = &fine;
    config.n_classes = 1;
    refused("pool: config NULL", kvx_pool_create(NULL, &pool), KVX_INVALID);
    refused("pool: output NULL", kvx_pool_create(&config, NULL), KVX_INVALID);
    for (size_t i = 0; i < COUNT(sizes); i++) {
        config.size = sizes[i];
        refused_pool("pool: wrong struct size", config);
    }
    config.size = sizeof config;
    config.n_classes = 0;
    refused_pool("pool: no classes", config);
    config.n_classes = 1;
    config.classes = NULL;
    refused_pool("pool: classes NULL", config);
    for (size_t i = 0; i < COUNT(many); i++)
        many[i] = fine;
    config.classes = many;
    config.n_classes = COUNT(many);
    refused_pool("pool: too many classes", config);
    config.n_classes = UINT32_MAX;
    refused_pool("pool: 2^32 - 1 classes", config);
    for (size_t i = 0; i < COUNT(classes); i++) {
        config.classes = &classes[i].class;
        config.n_classes = 1;
        refused_pool(classes[i].what, config);
    }
    for (uint32_t i = 0; i < 2; i++) /* together over the limit */
        many[i] = (kvx_slot_class){4096, KVX_SLOTS_MAX / 2 + 2, 0, 0};
    config.classes = many;
    config.n_classes = 2;
    refused_pool("pool: slots of all classes over KVX_SLOTS_MAX", config);
    config.classes = &fine;
    config.n_classes = 1;
    config.engine = (kvx_engine)17;
    refused_pool("pool: unknown engine", config);
    assert_ptr_equal(pool, POISON);
    bench_close(&b);
}

static void slots(const device *dev, const void *arg)
{
    kvx_slot out[2] = {{7, 7, 7}, {7, 7, 7}};
    void *bytes = POISON;
    uint64_t n_bytes = 77;
    bench b;
    (void)arg;
    bench_open(&b, dev);
    refused("take: pool NULL", kvx_pool_take(NULL, 0, 1, out), KVX_INVALID);
    refused("take: slots NULL", kvx_pool_take(b.pool, 0, 1, NULL), KVX_INVALID);
    refused("take: unknown class", kvx_pool_take(b.pool, 4, 1, out), KVX_INVALID);
    refused("take: class 2^32 - 1", kvx_pool_take(b.pool, UINT32_MAX, 1, out), KVX_INVALID);
    refused("take: class of the caller", kvx_pool_take(b.pool, 1, 1, out), KVX_INVALID);
    refused("take: more than are free", kvx_pool_take(b.pool, 0, 9, out), KVX_AGAIN);
    refused("take: 2^32 - 1", kvx_pool_take(b.pool, 0, UINT32_MAX, out), KVX_AGAIN);
    assert_int_equal(out[0].index, 7);
    refused("give: pool NULL", kvx_pool_give(NULL, 1, b.slots), KVX_INVALID);
    refused("give: slots NULL", kvx_pool_give(b.pool, 1, NULL), KVX_INVALID);
    out[0] = out[1] = b.slots[0];
    refused("give: a slot twice", kvx_pool_give(b.pool, 2, out), KVX_INVALID);
    out[1] = (kvx_slot){0, 16, 0};
    refused("give: index out of range, with a good one", kvx_pool_give(b.pool, 2, out), KVX_INVALID);
    out[1] = (kvx_slot){1, 0, 0};
    refused("give: class of the caller", kvx_pool_give(b.pool, 2, out), KVX_INVALID);
    out[1] = (kvx_slot){9, 0, 0};
    refused("give: unknown class", kvx_pool_give(b.pool, 2, out), KVX_INVALID);
    out[1] = b.slots[1];
    out[1].generation ^= 1;
    refused("give: an old handle", kvx_pool_give(b.pool, 2, out), KVX_STALE);
    out[0] = (kvx_slot){0, UINT32_MAX, 0};
    refused("slot_bytes: pool NULL", kvx_pool_slot_bytes(NULL, b.slots[0], &bytes, &n_bytes), KVX_INVALID);
    refused("slot_bytes: out of range", kvx_pool_slot_bytes(b.pool, out[0], &bytes, &n_bytes), KVX_INVALID);
    refused("slot_bytes: output NULL", kvx_pool_slot_bytes(b.pool, b.slots[0], NULL, &n_bytes), KVX_INVALID);
    refused("pool destroyed under a context", kvx_pool_destroy(b.pool), KVX_INVALID);
    expect_ok(kvx_pool_destroy(NULL));
    assert_ptr_equal(bytes, POISON);
    assert_int_equal(n_bytes, 77);
    bench_close(&b);
}

/* ------------------------------------------------------------------------------------------------------- contexts */

static void refused_ctx(const char *what, kvx_pool *pool, const kvx_config *config)
{
    kvx_ctx *ctx = POISON;
    refused(what, kvx_ctx_create(pool, config, &ctx), KVX_INVALID);
    assert_ptr_equal(ctx, POISON);
}

static kvx_config config_of(const device *dev)
{
    kvx_config config = KVX_CONFIG_INIT;
    config.engine = dev->engine;
    return config;
}

static void ctx_configs(const device *dev, const void *arg)
{
    static const size_t sizes[] = {0, 3, sizeof(kvx_config) + 1, SIZE_MAX};
    kvx_config config = config_of(dev);
    bench b;
    (void)arg;
    bench_open(&b, dev);
    refused_ctx("ctx: pool NULL", NULL, &config);
    refused_ctx("ctx: config NULL", b.pool, NULL);
    refused("ctx: output NULL", kvx_ctx_create(b.pool, &config, NULL), KVX_INVALID);
    for (size_t i = 0; i < COUNT(sizes); i++) {
        config.size = sizes[i];
        refused_ctx("ctx: wrong struct size", b.pool, &config);
    }
#define REFUSED_FIELD(field, value)                                                                                    \
    config = config_of(dev);                                                                                           \
    config.field = value;                                                                                              \
    refused_ctx("ctx: " #field " = " #value, b.pool, &config)
    REFUSED_FIELD(engine, (kvx_engine)9);
    REFUSED_FIELD(tamper_policy, (kvx_tamper_policy)9);
    REFUSED_FIELD(device, -1);
    REFUSED_FIELD(device, INT_MIN);
    REFUSED_FIELD(n_tenants, 1025);
    REFUSED_FIELD(n_tenants, UINT32_MAX);
    REFUSED_FIELD(max_tickets, UINT32_MAX);
    REFUSED_FIELD(max_pairs, UINT32_MAX);
    REFUSED_FIELD(max_layouts, 257);
    REFUSED_FIELD(max_layouts, UINT32_MAX);
#undef REFUSED_FIELD
    kvx_ctx_destroy(NULL);
    bench_close(&b);
}

/* -------------------------------------------------------------------------------------------------------- layouts */

static void refused_layout(bench *b, const char *what, const kvx_lane *lanes, uint32_t n)
{
    kvx_layout_desc desc = KVX_LAYOUT_DESC_INIT;
    kvx_layout *layout = POISON;
    desc.lanes = lanes;
    desc.n_lanes = n;
    refused(what, kvx_layout_create(b->ctx, &desc, &layout), KVX_INVALID);
    assert_ptr_equal(layout, POISON);
}

/* One field of one good lane made wrong. */
static void lane_fields(const device *dev, const void *arg)
{
    bench b;
    kvx_lane lane;
    (void)arg;
    bench_open(&b, dev);
    uint8_t *memory = dev->alloc(1 << 16);
    const kvx_lane good = {memory, 1024, 128, 64, 8, 4, 0};
#define REFUSED_LANE(field, value)                                                                                     \
    lane = good;                                                                                                       \
    lane.field = value;                                                                                                \
    refused_layout(&b, "lane: " #field " = " #value, &lane, 1)
    REFUSED_LANE(dev_base, NULL);
    REFUSED_LANE(dev_base, memory + 4);
    REFUSED_LANE(dev_base, memory + 1);
    REFUSED_LANE(n_blocks, 0);
    REFUSED_LANE(n_rows, 0);
    REFUSED_LANE(n_rows, UINT32_MAX);
    REFUSED_LANE(row_bytes, 0);
    REFUSED_LANE(row_bytes, 60);
    REFUSED_LANE(row_bytes, UINT64_MAX - 7);
    REFUSED_LANE(row_bytes, (64ull << 20) + 8);
    REFUSED_LANE(row_stride, 0);
    REFUSED_LANE(row_stride, 32);
    REFUSED_LANE(row_stride, 132);
    REFUSED_LANE(row_stride, UINT64_MAX - 7);
    REFUSED_LANE(row_stride, 1ull << 63);
    REFUSED_LANE(block_stride, 0);
    REFUSED_LANE(block_stride, 32);
    REFUSED_LANE(block_stride, 1028);
    REFUSED_LANE(block_stride, 128);
    REFUSED_LANE(block_stride, 256);
    REFUSED_LANE(block_stride, UINT64_MAX - 7);
    REFUSED_LANE(block_stride, 1ull << 62);
    REFUSED_LANE(segment, 1);
    REFUSED_LANE(segment, UINT32_MAX);
#undef REFUSED_LANE
    dev->free(memory);
    bench_close(&b);
}

static void layouts(const device *dev, const void *arg)
{
    static const size_t sizes[] = {0, 4, sizeof(kvx_layout_desc) + 8, SIZE_MAX};
    kvx_layout_desc desc = KVX_LAYOUT_DESC_INIT;
    kvx_layout *layout = POISON, *last;
    bench b;
    (void)arg;
    bench_open(&b, dev);
    uint8_t *memory = dev->alloc(1 << 16);
    kvx_lane lanes[KVX_LANES_MAX + 1];
    for (uint32_t i = 0; i <= KVX_LANES_MAX; i++)
        lanes[i] = (kvx_lane){memory + i * 32, 32, 0, 32, 1, 1, 0};
    refused_layout(&b, "layout: no lanes", lanes, 0);
    refused_layout(&b, "layout: lanes NULL", NULL, 1);
    refused_layout(&b, "layout: too many lanes", lanes, KVX_LANES_MAX + 1);
    refused_layout(&b, "layout: 2^32 - 1 lanes", lanes, UINT32_MAX);
    lanes[1].segment = 2;
    refused_layout(&b, "layout: a segment left out", lanes, 2);
    lanes[0].segment = 1;
    lanes[1].segment = 0;
    refused_layout(&b, "layout: segments descending", lanes, 2);
    lanes[0].segment = 0;
    lanes[1] = lanes[0];
    refused_layout(&b, "layout: a lane twice", lanes, 2);
    lanes[1].dev_base = memory + 24;
    refused_layout(&b, "layout: lanes overlap by 8 bytes", lanes, 2);
    lanes[0] = (kvx_lane){memory, 256, 0, 64, 8, 1, 0};
    lanes[1] = (kvx_lane){memory + 56, 256, 0, 64, 8, 1, 0};
    refused_layout(&b, "layout: interleaved lanes overlap", lanes, 2);
    lanes[1] = (kvx_lane){memory + 256, 128, 64, 32, 4, 2, 0};
    refused_layout(&b, "layout: lanes of other strides overlap", lanes, 2);
    if (dev->engine == KVX_ENGINE_CUDA) {
        lanes[0].dev_base = lanes;
        refused_layout(&b, "layout: an address of the host", lanes, 1);
        lanes[0].dev_base = (void *)(uintptr_t)0x7000000000000000u;
        refused_layout(&b, "layout: an address of nobody", lanes, 1);
        lanes[0].dev_base = memory;
    }
    desc.lanes = lanes;
    desc.n_lanes = 1;
    for (size_t i = 0; i < COUNT(sizes); i++) {
        desc.size = sizes[i];
        refused("layout: wrong struct size", kvx_layout_create(b.ctx, &desc, &layout), KVX_INVALID);
    }
    desc.size = sizeof desc;
    refused("layout: ctx NULL", kvx_layout_create(NULL, &desc, &layout), KVX_INVALID);
    refused("layout: desc NULL", kvx_layout_create(b.ctx, NULL, &layout), KVX_INVALID);
    refused("layout: output NULL", kvx_layout_create(b.ctx, &desc, NULL), KVX_INVALID);
    expect_ok(kvx_layout_create(b.ctx, &desc, &last));
    refused("layout: more than max_layouts", kvx_layout_create(b.ctx, &desc, &layout), KVX_AGAIN);
    assert_ptr_equal(layout, POISON);
    expect_ok(kvx_layout_destroy(last));
    expect_ok(kvx_layout_destroy(NULL));
    kvx_layout_info(NULL, NULL, NULL);
    kvx_layout_info(b.layout, NULL, NULL);
    dev->free(memory);
    bench_close(&b);
}

static const test_case cases[] = {
    {"pool configurations", pool_configs, NULL},
    {"slots", slots, NULL},
    {"context configurations", ctx_configs, NULL},
    {"fields of a lane", lane_fields, NULL},
    {"layouts", layouts, NULL},
};

int main(int argc, char **argv)
{
    return RUN_CASES("misuse", cases, argc, argv);
}
