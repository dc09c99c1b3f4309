/* SPDX-License-Identifier: Apache-2.0 */
/* Running cases on every engine, the rig, and expectations. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* -------------------------------------------------------------------------------------------------------- cases */

typedef struct bound_case {
    const device *dev;
    const test_case *test;
} bound_case;

static void run_bound(void **state)
{
    const bound_case *bound = *state;
    bound->test->fn(bound->dev, bound->test->arg);
}

static int run_on(const device *dev, const char *group, const test_case *cases, size_t n)
{
    struct CMUnitTest *tests = calloc(n, sizeof *tests);
    bound_case *bound = calloc(n, sizeof *bound);
    char(*names)[128] = calloc(n, sizeof *names);
    char title[128];
    int failed = 1;
    if (tests && bound && names) {
        for (size_t i = 0; i < n; i++) {
            bound[i] = (bound_case){dev, &cases[i]};
            (void)snprintf(names[i], sizeof names[i], "%s: %s", dev->name, cases[i].name);
            tests[i] = (struct CMUnitTest){names[i], run_bound, NULL, NULL, &bound[i]};
        }
        (void)snprintf(title, sizeof title, "%s on %s", group, dev->name);
        failed = _cmocka_run_group_tests(title, tests, n, NULL, NULL);
    }
    free(names);
    free(bound);
    free(tests);
    return failed;
}

int run_cases(const char *group, const test_case *cases, size_t n, int argc, char **argv)
{
    static const device *const devices[] = {
        &device_cpu,
#if KVX_WITH_CUDA
        &device_cuda,
#endif
    };
    const char *require = getenv("KVX_REQUIRE_GPU");
    int failed = 0, n_gpus = 0;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    for (size_t i = 0; i < COUNT(devices); i++) {
        const char *why = "";
        if (!devices[i]->usable(&why)) {
            print_message("[  SKIPPED ] %s on %s: %s\n", group, devices[i]->name, why);
            continue;
        }
        n_gpus += devices[i]->engine == KVX_ENGINE_CUDA;
        failed += run_on(devices[i], group, cases, n);
    }
    if (require && strcmp(require, "1") == 0 && n_gpus == 0) {
        print_error("KVX_REQUIRE_GPU=1 and no usable GPU\n");
        failed++;
    }
    return failed != 0;
}

/* --------------------------------------------------------------------------------------------------- time, gates */

uint64_t clock_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void nap(unsigned milliseconds)
{
    struct timespec left = {(time_t)(milliseconds / 1000), (long)(milliseconds % 1000) * 1000000};
    while (nanosleep(&left, &left) != 0)
        ;
}

static void nap_call(void *arg)
{
    nap(*(const unsigned *)arg);
}

void stream_nap(const device *dev, kvx_stream stream, const unsigned *milliseconds)
{
    dev->stream_call(stream, nap_call, (void *)(uintptr_t)milliseconds);
}

static void gate_call(void *arg)
{
    const gate *g = arg;
    while (!atomic_load(&g->open))
        nap(1);
}

void gate_close(gate *g, const device *dev, kvx_stream stream)
{
    atomic_store(&g->open, 0);
    dev->stream_call(stream, gate_call, g);
}

void gate_open(gate *g)
{
    atomic_store(&g->open, 1);
}

uint64_t random_word(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* ---------------------------------------------------------------------------------------------------- expectations */

void check_status(kvx_status got, kvx_status wanted, const char *what, const char *file, int line)
{
    if (got == wanted)
        return;
    print_error("%s: %s, expected %s; note: %s\n", what, kvx_status_text(got), kvx_status_text(wanted),
                kvx_last_error());
    _fail(file, line);
}

void collect(kvx_ctx *ctx, kvx_ticket ticket, uint32_t n, kvx_status *verdicts)
{
    kvx_result result;
    expect_ok(kvx_wait(ctx, 1, &ticket, 20000000000u));
    expect_ok(kvx_poll(ctx, ticket, &result, n, verdicts));
    assert_int_equal(result.n, n);
}

void check_verdicts(kvx_ctx *ctx, kvx_ticket ticket, uint32_t n, const kvx_status *wanted, const char *file, int line)
{
    kvx_status *got = calloc(n ? n : 1, sizeof *got);
    uint32_t n_wrong = 0;
    assert_non_null(got);
    collect(ctx, ticket, n, got);
    for (uint32_t i = 0; i < n; i++) {
        if (got[i] != wanted[i] && n_wrong++ < 8)
            print_error("pair %u of %u: %s, expected %s\n", i, n, kvx_status_text(got[i]), kvx_status_text(wanted[i]));
    }
    free(got);
    if (n_wrong)
        _fail(file, line);
}

void check_all(kvx_ctx *ctx, kvx_ticket ticket, uint32_t n, kvx_status wanted, const char *file, int line)
{
    kvx_status *all = calloc(n ? n : 1, sizeof *all);
    assert_non_null(all);
    for (uint32_t i = 0; i < n; i++)
        all[i] = wanted;
    check_verdicts(ctx, ticket, n, all, file, line);
    free(all);
}

/* ----------------------------------------------------------------------------------------------------------- rig */

kvx_pool *pool_make(const device *dev, const kvx_slot_class *classes, uint32_t n_classes)
{
    kvx_pool_config config = KVX_POOL_CONFIG_INIT;
    kvx_pool *pool = NULL;
    config.classes = classes;
    config.n_classes = n_classes;
    config.engine = dev->engine;
    expect_ok(kvx_pool_create(&config, &pool));
    assert_non_null(pool);
    return pool;
}

kvx_ctx *ctx_make(const device *dev, kvx_pool *pool, const rig_options *options)
{
    static const rig_options defaults;
    const rig_options *o = options ? options : &defaults;
    kvx_config config = KVX_CONFIG_INIT;
    kvx_ctx *ctx = NULL;
    config.engine = dev->engine;
    config.tamper_policy = o->policy;
    config.tamper_budget = o->tamper_budget;
    config.n_tenants = o->n_tenants;
    config.max_tickets = o->max_tickets;
    config.max_pairs = o->max_pairs;
    config.max_layouts = o->max_layouts;
    config.ring_bytes = o->ring_bytes;
    config.burst_bytes = o->burst_bytes;
    config.burst_sms = o->burst_sms;
    config.direct_sms = o->direct_sms;
    config.keys = o->keys;
    expect_ok(kvx_ctx_create(pool, &config, &ctx));
    assert_non_null(ctx);
    return ctx;
}

kvx_layout *layout_make(kvx_ctx *ctx, const tensors *t, uint64_t binding)
{
    kvx_layout_desc desc = KVX_LAYOUT_DESC_INIT;
    kvx_layout *layout = NULL;
    desc.lanes = t->lanes;
    desc.n_lanes = t->shape->n_lanes;
    desc.binding = binding;
    expect_ok(kvx_layout_create(ctx, &desc, &layout));
    assert_non_null(layout);
    return layout;
}

void slots_take(kvx_pool *pool, uint32_t n, kvx_slot *slots)
{
    expect_ok(kvx_pool_take(pool, 0, n, slots));
}

void rig_open(rig *r, const device *dev, const shape *s, const rig_options *options)
{
    static const rig_options defaults;
    const rig_options *o = options ? options : &defaults;
    const uint32_t n_segments = shape_segments(s);
    const kvx_slot_class class = {
        .slot_bytes = o->slot_bytes ? o->slot_bytes : shape_unit_offset(s, n_segments),
        .n_slots = o->n_slots ? o->n_slots : 2 * s->n_blocks,
        .max_units = n_segments,
        .caller_managed = o->caller_managed,
    };
    r->dev = dev;
    r->n_slots = class.n_slots;
    r->pool = pool_make(dev, &class, 1);
    r->ctx = ctx_make(dev, r->pool, o);
    r->stream = dev->stream_create();
    tensors_create(&r->source, dev, s, 0);
    tensors_fill(&r->source, 0, s->n_blocks, 1);
    r->layout = layout_make(r->ctx, &r->source, 7);
}

void rig_close(rig *r)
{
    kvx_ctx_destroy(r->ctx);
    expect_ok(kvx_pool_destroy(r->pool));
    r->dev->stream_sync(r->stream);
    r->dev->stream_destroy(r->stream);
    tensors_destroy(&r->source);
}

void pairs_set(kvx_pair *pairs, uint32_t n, const kvx_layout *layout, uint32_t first_block, const kvx_slot *slots)
{
    for (uint32_t i = 0; i < n; i++)
        pairs[i] = (kvx_pair){.layout = layout, .block = first_block + i, .slot = slots[i], .tenant = 0};
}

void store_all(rig *r, uint32_t n, const kvx_pair *pairs)
{
    kvx_options options = KVX_OPTIONS_INIT;
    kvx_ticket ticket = 0;
    options.stream = r->stream;
    expect_ok(kvx_store(r->ctx, n, pairs, &options, &ticket));
    expect_all(r->ctx, ticket, n, KVX_OK);
}

void restore_some(rig *r, uint32_t n, const kvx_pair *pairs, kvx_status *verdicts)
{
    kvx_options options = KVX_OPTIONS_INIT;
    kvx_ticket ticket = 0;
    options.stream = r->stream;
    expect_ok(kvx_restore(r->ctx, n, pairs, &options, &ticket));
    collect(r->ctx, ticket, n, verdicts);
}

void restore_all(rig *r, uint32_t n, const kvx_pair *pairs)
{
    kvx_options options = KVX_OPTIONS_INIT;
    kvx_ticket ticket = 0;
    options.stream = r->stream;
    expect_ok(kvx_restore(r->ctx, n, pairs, &options, &ticket));
    expect_all(r->ctx, ticket, n, KVX_OK);
}

uint8_t *slot_bytes(kvx_pool *pool, kvx_slot slot)
{
    void *bytes = NULL;
    uint64_t n_bytes = 0;
    expect_ok(kvx_pool_slot_bytes(pool, slot, &bytes, &n_bytes));
    assert_non_null(bytes);
    return bytes;
}

kvx_stats stats_of(kvx_ctx *ctx)
{
    kvx_stats stats;
    memset(&stats, 0, sizeof stats);
    stats.size = sizeof stats;
    expect_ok(kvx_stats_get(ctx, &stats));
    return stats;
}
