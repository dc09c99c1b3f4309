/* SPDX-License-Identifier: Apache-2.0 */
/* No plaintext leaves the device. Memory is filled with canaries and freed before the library allocates its own, and
 * pool and rings are searched at every byte for the canary and for every word of plaintext. */
#include "support.h"

#include <stdlib.h>

#include "../kernels/format.h"
#include "../src/context.h"

#define CANARY 0x5ec2e7ca9a21e55au
#define POOL_SLOTS 32u
#define RING_BYTES (1u << 20)

/* Words that must not be found: an open hash table. */
typedef struct word_set {
    uint64_t *slots;
    size_t mask;
} word_set;

static size_t home_of(const word_set *set, uint64_t word)
{
    return (size_t)(word * 0x9e3779b97f4a7c15u >> 20) & set->mask;
}

static void set_add(word_set *set, uint64_t word)
{
    size_t i = home_of(set, word);
    while (set->slots[i] != 0 && set->slots[i] != word)
        i = (i + 1) & set->mask;
    set->slots[i] = word;
}

static int set_has(const word_set *set, uint64_t word)
{
    size_t i = home_of(set, word);
    if (word == 0)
        return 0;
    while (set->slots[i] != 0 && set->slots[i] != word)
        i = (i + 1) & set->mask;
    return set->slots[i] == word;
}

/* Every aligned word of device memory is a secret: of blocks, of gaps and guards. */
static void set_add_tensors(word_set *set, const tensors *t)
{
    for (size_t at = 0; at + 8 <= t->bytes; at += 8) {
        uint64_t word;
        memcpy(&word, t->mirror + at, 8);
        set_add(set, word);
    }
}

static word_set set_make(void)
{
    word_set set = {calloc(1u << 20, 8), (1u << 20) - 1};
    assert_non_null(set.slots);
    set_add(&set, CANARY);
    return set;
}

/* Any such word at any byte of the pool? */
static void expect_no_secret(kvx_pool *pool, uint32_t n_slots, uint64_t bytes_each, const word_set *set)
{
    for (uint32_t i = 0; i < n_slots; i++) {
        const uint8_t *bytes = slot_bytes(pool, (kvx_slot){0, i, 0});
        for (size_t at = 0; at + 8 <= bytes_each; at++) {
            uint64_t word;
            memcpy(&word, bytes + at, 8);
            if (set_has(set, word))
                fail_msg("slot %u, byte %zu: a word of device memory", i, at);
        }
    }
}

/* Nor in the rings, where sealed bytes wait for the copy engine. */
static void expect_no_secret_in_rings(kvx_ctx *ctx, const word_set *set)
{
    uint64_t n_bytes = 2 * RING_BYTES;
    uint8_t *bytes = malloc(n_bytes);
    assert_non_null(bytes);
    expect_ok(ctx->ops->export_rings(ctx->engine, bytes, &n_bytes));
    assert_true(n_bytes > 0);
    for (uint64_t at = 0; at + 8 <= n_bytes; at++) {
        uint64_t word;
        memcpy(&word, bytes + at, 8);
        if (set_has(set, word))
            fail_msg("ring, byte %llu: a word of device memory", (unsigned long long)at);
    }
    free(bytes);
}

static void expect_zero_from(kvx_pool *pool, uint32_t slot, uint64_t first, uint64_t end)
{
    const uint8_t *bytes = slot_bytes(pool, (kvx_slot){0, slot, 0});
    for (uint64_t at = first; at < end; at++)
        assert_int_equal(bytes[at], 0);
}

/* Device memory as an engine leaves it: full of somebody's data. */
static void litter(const device *dev)
{
    enum { PIECES = 24 };
    const size_t bytes = 8u << 20;
    void *pieces[PIECES];
    uint64_t *pattern = malloc(bytes);
    assert_non_null(pattern);
    for (size_t i = 0; i < bytes / 8; i++)
        pattern[i] = CANARY;
    for (size_t i = 0; i < PIECES; i++) {
        pieces[i] = dev->alloc(i % 2 ? bytes : bytes >> (i / 2 % 12));
        dev->upload(pieces[i], pattern, i % 2 ? bytes : bytes >> (i / 2 % 12));
    }
    for (size_t i = 0; i < PIECES; i++)
        dev->free(pieces[i]);
    free(pattern);
}

static const char *const odd_shapes[] = {"one word",       "rows of 656 (mla)", "rows of 132 merged (indexer)",
                                         "8-byte aligned", "mixed orders",      "64 segments"};

#define SLOT_BYTES (192u << 10)

static void store_odd(const device *dev, kvx_pool *pool, const shape *s, uint32_t hints, word_set *set)
{
    kvx_options options = KVX_OPTIONS_INIT;
    kvx_pair pairs[POOL_SLOTS];
    kvx_slot slots[POOL_SLOTS];
    kvx_ticket ticket;
    tensors t;
    const uint32_t n = s->n_blocks < POOL_SLOTS ? s->n_blocks : POOL_SLOTS;
    const rig_options small_rings = {.ring_bytes = RING_BYTES};
    kvx_ctx *ctx = ctx_make(dev, pool, &small_rings);
    tensors_create(&t, dev, s, 24);
    tensors_fill(&t, 0, s->n_blocks, 1000);
    set_add_tensors(set, &t);
    kvx_layout *layout = layout_make(ctx, &t, 0);
    options.hints = hints;
    slots_take(pool, n, slots);
    pairs_set(pairs, n, layout, 0, slots);
    expect_ok(kvx_store(ctx, n, pairs, &options, &ticket));
    expect_all(ctx, ticket, n, KVX_OK);
    for (uint32_t i = 0; i < POOL_SLOTS; i++) {
        int used = 0;
        for (uint32_t k = 0; k < n; k++)
            used |= slots[k].index == i;
        expect_zero_from(pool, i, used ? shape_unit_offset(s, shape_segments(s)) : 0, SLOT_BYTES);
    }
    expect_no_secret(pool, POOL_SLOTS, SLOT_BYTES, set);
    expect_no_secret_in_rings(ctx, set);
    expect_ok(kvx_restore(ctx, n, pairs, NULL, &ticket));
    expect_all(ctx, ticket, n, KVX_OK);
    expect_no_secret(pool, POOL_SLOTS, SLOT_BYTES, set);
    expect_no_secret_in_rings(ctx, set);
    expect_ok(kvx_pool_give(pool, n, slots));
    kvx_ctx_destroy(ctx);
    expect_no_secret(pool, POOL_SLOTS, SLOT_BYTES, set);
    tensors_destroy(&t);
}

static void no_canary_and_no_plaintext_in_the_pool(const device *dev, const void *arg)
{
    const kvx_slot_class class = {.slot_bytes = SLOT_BYTES, .n_slots = POOL_SLOTS, .max_units = 64};
    (void)arg;
    for (size_t k = 0; k < COUNT(odd_shapes); k++)
        for (uint32_t hints = 0; hints <= KVX_HINT_IDLE; hints++) {
            word_set set = set_make();
            litter(dev);
            kvx_pool *pool = pool_make(dev, &class, 1);
            store_odd(dev, pool, shape_named(odd_shapes[k]), hints, &set);
            expect_ok(kvx_pool_destroy(pool));
            free(set.slots);
        }
}

static const shape block = {"block", 8, 4, 2, {{1, 4096, 0, 0, BLOCK_MAJOR}, {3, 104, 8, 0, BLOCK_MAJOR}}, 2, 0};

/* Makes the pool say nothing of what was stored, so that what comes later is seen. */
static void scramble(rig *r, const kvx_slot *slots)
{
    for (uint32_t i = 0; i < 8; i++)
        memset(slot_bytes(r->pool, slots[i]), 0, 3 * 4096);
}

/* A store that is stopped (nonces used up, latch) leaves zeros or what was there before, never plaintext. */
static void stopped_stores_leave_nothing(const device *dev, const void *arg)
{
    const rig_options options = {.n_slots = 8};
    const uint64_t sealed = shape_unit_offset(&block, 2);
    kvx_options call = KVX_OPTIONS_INIT;
    kvx_pair pairs[8];
    kvx_slot slots[8];
    kvx_dev_words words;
    kvx_ticket ticket;
    rig r;
    (void)arg;
    for (uint32_t k = 0; k < 4; k++) { /* exhausted or latched; staged or direct */
        word_set set = set_make();
        litter(dev);
        rig_open(&r, dev, &block, &options);
        set_add_tensors(&set, &r.source);
        slots_take(r.pool, 8, slots);
        pairs_set(pairs, 8, r.layout, 0, slots);
        for (uint32_t i = 0; i < 8; i++) /* every chunk of the ring has held something */
            store_all(&r, 8, pairs);
        scramble(&r, slots);
        expect_ok(r.ctx->ops->words(r.ctx->engine, &words, 0));
        words.sequence = k & 1 ? KVX_SEQUENCE_LIMIT - 3 : words.sequence;
        words.latch = !(k & 1);
        expect_ok(r.ctx->ops->words(r.ctx->engine, &words, 1));
        call.hints = k & 2 ? KVX_HINT_IDLE : 0;
        expect_ok(kvx_store(r.ctx, 8, pairs, &call, &ticket));
        kvx_status verdicts[8];
        uint32_t n_ok = 0;
        collect(r.ctx, ticket, 8, verdicts);
        for (uint32_t i = 0; i < 8; i++) {
            assert_true(verdicts[i] == KVX_OK || verdicts[i] == (k & 1 ? KVX_EXHAUSTED : KVX_LATCHED));
            n_ok += verdicts[i] == KVX_OK;
            expect_zero_from(r.pool, i, words.latch ? 0 : sealed, 3 * 4096);
        }
        assert_true(n_ok <= (k & 1)); /* three numbers make one block of two units at most */
        expect_no_secret(r.pool, 8, 3 * 4096, &set);
        rig_close(&r);
        free(set.slots);
    }
}

/* Restores only read the pool, also failing ones. */
static void restores_do_not_write_the_pool(const device *dev, const void *arg)
{
    const rig_options options = {.n_slots = 8, .policy = KVX_TAMPER_MISS, .n_tenants = 2};
    static uint8_t image[8][3 * 4096];
    kvx_pair pairs[8];
    kvx_slot slots[8];
    kvx_status verdicts[8];
    rig r;
    (void)arg;
    rig_open(&r, dev, &block, &options);
    slots_take(r.pool, 8, slots);
    pairs_set(pairs, 8, r.layout, 0, slots);
    store_all(&r, 7, pairs);
    slot_bytes(r.pool, slots[3])[17] ^= 1;
    for (uint32_t i = 0; i < 8; i++)
        memcpy(image[i], slot_bytes(r.pool, slots[i]), sizeof image[i]);
    pairs[5].tenant = 1;
    restore_some(&r, 8, pairs, verdicts);
    for (uint32_t i = 0; i < 8; i++) {
        const kvx_status wanted = i == 3 ? KVX_TAMPERED : i == 5 ? KVX_REFUSED : i == 7 ? KVX_MISS : KVX_OK;
        assert_int_equal(verdicts[i], wanted);
        assert_memory_equal(image[i], slot_bytes(r.pool, slots[i]), sizeof image[i]);
    }
    rig_close(&r);
}

static const test_case cases[] = {
    {"no canary and no plaintext in the pool", no_canary_and_no_plaintext_in_the_pool, NULL},
    {"stopped stores leave nothing", stopped_stores_leave_nothing, NULL},
    {"restores do not write the pool", restores_do_not_write_the_pool, NULL},
};

int main(int argc, char **argv)
{
    return RUN_CASES("leak", cases, argc, argv);
}
