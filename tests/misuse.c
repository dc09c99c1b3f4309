/* SPDX-License-Identifier: Apache-2.0 */
/* The bench that misuse tests share. */
#include "misuse.h"

static const shape small = {"small", N_BLOCKS, 4, 2, {{1, 2048, 0, 0, BLOCK_MAJOR}, {3, 104, 8, 0, BLOCK_MAJOR}}, 2, 0};

void refused(const char *what, kvx_status got, kvx_status wanted)
{
    print_message("    misuse: %-62s %s\n", what, kvx_status_text(got));
    check_status(got, wanted, what, __FILE__, __LINE__);
    assert_true(strlen(kvx_last_error()) > 0);
}

void bench_open(bench *b, const device *dev)
{
    const kvx_slot_class classes[4] = {{8192, 16, N_SEGMENTS, 0}, {8192, 8, 0, 1}, {4096, 8, 0, 1}, {8192, 8, 1, 1}};
    const rig_options options = {.n_tenants = 2, .max_pairs = 16, .max_tickets = 8, .max_layouts = 2};
    memset(b, 0, sizeof *b);
    b->dev = dev;
    b->pool = pool_make(dev, classes, 4);
    b->ctx = ctx_make(dev, b->pool, &options);
    b->other_ctx = ctx_make(dev, b->pool, &options);
    tensors_create(&b->t, dev, &small, 0);
    tensors_fill(&b->t, 0, N_BLOCKS, 1);
    b->layout = layout_make(b->ctx, &b->t, 0);
    b->other_layout = layout_make(b->other_ctx, &b->t, 0);
    slots_take(b->pool, N_BLOCKS, b->slots);
    pairs_set(b->pairs, N_BLOCKS, b->layout, 0, b->slots);
    b->ticket = POISON_TICKET;
}

/* Nothing was lost: everything stores and restores, and the counts are those of a context at rest. */
void bench_close(bench *b)
{
    kvx_ticket ticket;
    assert_true(b->ticket == POISON_TICKET);
    const kvx_stats stats = stats_of(b->ctx);
    assert_int_equal(stats.tickets_in_use, 0);
    assert_int_equal(stats.slots_in_flight, 0);
    assert_int_equal(stats.slots_used, N_BLOCKS);
    assert_int_equal(stats.latched, 0);
    expect_ok(kvx_store(b->ctx, N_BLOCKS, b->pairs, NULL, &ticket));
    expect_all(b->ctx, ticket, N_BLOCKS, KVX_OK);
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        tensors_expect(&b->t, b->pairs[i].block = N_BLOCKS - 1 - i, i + 1);
    expect_ok(kvx_restore(b->ctx, N_BLOCKS, b->pairs, NULL, &ticket));
    expect_all(b->ctx, ticket, N_BLOCKS, KVX_OK);
    tensors_check(&b->t);
    kvx_ctx_destroy(b->other_ctx);
    kvx_ctx_destroy(b->ctx);
    expect_ok(kvx_pool_destroy(b->pool));
    tensors_destroy(&b->t);
}
