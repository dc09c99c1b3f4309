/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of engine.h, below the public API: what lies in the pool is AES-256-GCM as OpenSSL knows it, no iv
 * serves twice, and words that the host could forge are believed only when their MAC is right. */
#include "support.h"

#include <stdlib.h>

#include <openssl/evp.h>

#include "../kernels/state.h"
#include "../src/context.h"

/* ------------------------------------------------------------------------------------------- format, with OpenSSL */

/* One AES-256-GCM message without AAD. */
static void evp_seal(const uint8_t *key, const uint8_t iv[12], const uint8_t *plain, size_t n, uint8_t *out,
                     uint8_t tag[16])
{
    EVP_CIPHER_CTX *gcm = EVP_CIPHER_CTX_new();
    int bytes = 0;
    assert_non_null(gcm);
    assert_int_equal(EVP_EncryptInit_ex(gcm, EVP_aes_256_gcm(), NULL, key, iv), 1);
    assert_int_equal(EVP_EncryptUpdate(gcm, out, &bytes, plain, (int)n), 1);
    assert_int_equal((size_t)bytes, n);
    assert_int_equal(EVP_EncryptFinal_ex(gcm, out + n, &bytes), 1);
    assert_int_equal(EVP_CIPHER_CTX_ctrl(gcm, EVP_CTRL_GCM_GET_TAG, 16, tag), 1);
    EVP_CIPHER_CTX_free(gcm);
}

static uint32_t flat_of(const rig *r, kvx_slot slot)
{
    return kvx_pool_view_of(r->pool)->classes[slot.slot_class].first_slot + slot.index;
}

static void export_of(const rig *r, kvx_slot slot, kvx_header *header, kvx_record *records, uint32_t n)
{
    expect_ok(r->ctx->ops->export_slot(r->ctx->engine, flat_of(r, slot), header, records, n));
}

static kvx_dev_words words_of(const rig *r)
{
    kvx_dev_words words;
    memset(&words, 0, sizeof words);
    expect_ok(r->ctx->ops->words(r->ctx->engine, &words, 0));
    return words;
}

/* The unit as the test computes it: its own gather, its own padding, OpenSSL's cipher. */
static void expect_unit(const rig *r, const kvx_pair *pair, uint32_t segment, uint32_t key_slot,
                        const kvx_record *record)
{
    const shape *s = r->source.shape;
    const size_t padded = (size_t)(shape_unit_offset(s, segment + 1) - shape_unit_offset(s, segment));
    uint8_t *plain = calloc(1, padded), *sealed = malloc(padded + 16), tag[16], iv[12];
    const uint8_t *key;
    assert_true(plain && sealed);
    (void)tensors_gather(&r->source, pair->block, segment, plain);
    kvx_store_be32(iv, words_of(r).fixed_field);
    kvx_store_be64(iv + 4, record->sequence);
    expect_ok(kvx_keyring_block_key(r->ctx->keyring, key_slot, &key));
    evp_seal(key, iv, plain, padded, sealed, tag);
    assert_memory_equal(slot_bytes(r->pool, pair->slot) + shape_unit_offset(s, segment), sealed, padded);
    assert_memory_equal(record->tag, tag, 16);
    free(sealed);
    free(plain);
}

static void pool_is_plain_gcm(const device *dev, const void *arg)
{
    static const char *const names[] = {
        "plain",        "rows of 132 merged (indexer)", "8-byte aligned", "mixed orders", "64 segments", "one word",
        "unit of 5 MiB"};
    const rig_options options = {.n_tenants = 3};
    (void)arg;
    for (size_t k = 0; k < COUNT(names); k++) {
        const shape *s = shape_named(names[k]);
        const uint32_t n = s->n_blocks < 3 ? s->n_blocks : 3, n_segments = shape_segments(s);
        kvx_slot slots[3];
        kvx_pair pairs[3];
        kvx_record records[64];
        kvx_header header;
        rig r;
        rig_open(&r, dev, s, &options);
        slots_take(r.pool, n, slots);
        pairs_set(pairs, n, r.layout, 0, slots);
        for (uint32_t i = 0; i < n; i++)
            pairs[i].tenant = (i + 1) % 3;
        store_all(&r, n, pairs);
        for (uint32_t i = 0; i < n; i++) {
            export_of(&r, slots[i], &header, records, n_segments);
            assert_int_equal(kvx_word_state(header.word), KVX_SLOT_VALID);
            assert_int_equal(header.n_units, n_segments);
            assert_int_equal(header.tenant, pairs[i].tenant);
            assert_int_equal(header.generation, slots[i].generation);
            for (uint32_t segment = 0; segment < n_segments; segment++) {
                assert_int_equal(records[segment].store_id, kvx_word_id(header.word));
                expect_unit(&r, &pairs[i], segment, header.key_slot, &records[segment]);
            }
        }
        rig_close(&r);
    }
}

static const shape small = {"small", 8, 6, 2, {{1, 1024, 0, 0, BLOCK_MAJOR}, {3, 104, 8, 0, BLOCK_MAJOR}}, 2, 0};
#define N_UNITS 3

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Over many stores, overwrites and tenants: one counter, no number twice. The state word only grows. */
static void no_iv_twice(const device *dev, const void *arg)
{
    enum { ROUNDS = 25 };
    static uint64_t seen[ROUNDS * 8 * N_UNITS];
    const rig_options options = {.n_tenants = 3, .n_slots = 8};
    uint64_t last_word[8] = {0};
    kvx_slot slots[8];
    kvx_pair pairs[8];
    size_t n = 0;
    rig r;
    (void)arg;
    rig_open(&r, dev, &small, &options);
    slots_take(r.pool, 8, slots);
    pairs_set(pairs, 8, r.layout, 0, slots);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < 8; i++)
            pairs[i].tenant = (i + round) % 3;
        store_all(&r, 8, pairs);
        for (uint32_t i = 0; i < 8; i++) {
            kvx_header header;
            kvx_record records[N_UNITS];
            export_of(&r, slots[i], &header, records, N_UNITS);
            assert_true(header.word > last_word[i]);
            last_word[i] = header.word;
            for (uint32_t k = 0; k < N_UNITS; k++)
                seen[n++] = records[k].sequence;
        }
    }
    qsort(seen, n, sizeof seen[0], by_value);
    for (size_t i = 1; i < n; i++)
        assert_true(seen[i - 1] < seen[i]);
    rig_close(&r);
}

static void contexts_share_no_key(const device *dev, const void *arg)
{
    const rig_options options = {.n_tenants = 4};
    uint8_t keys[8][KVX_KEY_BYTES];
    rig r;
    (void)arg;
    rig_open(&r, dev, &small, &options);
    kvx_ctx *other = ctx_make(dev, r.pool, &options);
    for (uint32_t i = 0; i < 8; i++) {
        const uint8_t *key;
        expect_ok(kvx_keyring_block_key(i < 4 ? r.ctx->keyring : other->keyring, i % 4, &key));
        memcpy(keys[i], key, KVX_KEY_BYTES);
        for (uint32_t k = 0; k < i; k++)
            assert_memory_not_equal(keys[i], keys[k], KVX_KEY_BYTES);
    }
    kvx_ctx_destroy(other);
    rig_close(&r);
}

/* ---------------------------------------------------------------------------------------------------- exhaustion */

static void set_sequence(const rig *r, uint64_t sequence)
{
    kvx_dev_words words = words_of(r);
    words.sequence = sequence;
    expect_ok(r->ctx->ops->words(r->ctx->engine, &words, 1));
}

static void expect_zero_slot(const rig *r, kvx_slot slot)
{
    const uint8_t *bytes = slot_bytes(r->pool, slot);
    for (size_t i = 0; i < shape_unit_offset(&small, N_UNITS); i++)
        assert_int_equal(bytes[i], 0);
}

static void sequence_near_its_end(const device *dev, const void *arg)
{
    kvx_options options = KVX_OPTIONS_INIT;
    kvx_slot slots[4];
    kvx_pair pairs[4];
    kvx_status verdict;
    kvx_ticket ticket;
    rig r;
    (void)arg;
    rig_open(&r, dev, &small, NULL);
    options.stream = r.stream;
    slots_take(r.pool, 4, slots);
    pairs_set(pairs, 4, r.layout, 0, slots);
    store_all(&r, 1, &pairs[0]);
    set_sequence(&r, KVX_SEQUENCE_LIMIT - N_UNITS);
    store_all(&r, 1, &pairs[1]); /* spends the last ones */
    assert_true(words_of(&r).sequence == KVX_SEQUENCE_LIMIT);
    for (uint32_t hints = 0; hints <= KVX_HINT_IDLE; hints++) {
        options.hints = hints;
        expect_ok(kvx_store(r.ctx, 1, &pairs[2 + hints], &options, &ticket));
        expect_all(r.ctx, ticket, 1, KVX_EXHAUSTED);
        expect_zero_slot(&r, slots[2 + hints]);
    }
    assert_true(words_of(&r).sequence >= KVX_SEQUENCE_LIMIT);
    restore_all(&r, 2, pairs); /* what is stored stays readable */
    tensors_check(&r.source);
    restore_some(&r, 1, &pairs[2], &verdict);
    assert_int_equal(verdict, KVX_MISS);
    assert_int_equal(stats_of(r.ctx).latched, 0);
    rig_close(&r);
}

/* -------------------------------------------------------------------------------------------------- result words */

/* A ticket that the test holds in flight, and the forgeable words. */
typedef struct forgery {
    rig r;
    kvx_slot slots[4];
    kvx_pair pairs[4];
    kvx_options options;
    kvx_ticket earlier, ticket;
    uint64_t *words;
    uint32_t n_words;
    gate g;
} forgery;

static void forgery_open(forgery *f, const device *dev)
{
    const rig_options options = {.max_tickets = 4, .max_pairs = 8};
    memset(f, 0, sizeof *f);
    rig_open(&f->r, dev, &small, &options);
    f->options = (kvx_options)KVX_OPTIONS_INIT;
    f->options.stream = f->r.stream;
    slots_take(f->r.pool, 4, f->slots);
    pairs_set(f->pairs, 4, f->r.layout, 0, f->slots);
    f->words = f->r.ctx->ops->results(f->r.ctx->engine, &f->n_words);
    assert_int_equal(f->n_words, 8 + 4);
    expect_ok(kvx_store(f->r.ctx, 4, f->pairs, &f->options, &f->earlier));
    expect_all(f->r.ctx, f->earlier, 4, KVX_OK);
    gate_close(&f->g, dev, f->r.stream);
    expect_ok(kvx_store(f->r.ctx, 4, f->pairs, &f->options, &f->ticket));
}

static void forge(forgery *f, uint64_t word)
{
    for (uint32_t i = 0; i < f->n_words; i++)
        __atomic_store_n(&f->words[i], word, __ATOMIC_SEQ_CST);
}

static void expect_not_fooled(forgery *f)
{
    kvx_result result;
    expect_status(kvx_poll(f->r.ctx, f->ticket, &result, 0, NULL), KVX_PENDING);
    assert_int_equal(result.n_ok, 0);
    assert_int_equal(result.released, 0);
    assert_int_equal(result.first_error, KVX_OK);
    expect_status(kvx_wait(f->r.ctx, 1, &f->ticket, 0), KVX_TIMEOUT);
}

static void forged_words_stay_pending(const device *dev, const void *arg)
{
    uint64_t state = 11, real[12];
    kvx_status verdict;
    forgery f;
    (void)arg;
    forgery_open(&f, dev);
    for (uint32_t i = 0; i < 12; i++) /* of the earlier ticket */
        real[i] = __atomic_load_n(&f.words[i], __ATOMIC_SEQ_CST);
    expect_not_fooled(&f);
    for (uint32_t i = 0; i < 200; i++) {
        forge(&f, random_word(&state));
        expect_not_fooled(&f);
    }
    for (uint32_t verdict_byte = 0; verdict_byte < 256; verdict_byte++) {
        forge(&f, verdict_byte);
        expect_not_fooled(&f);
        forge(&f, (random_word(&state) & ~(uint64_t)0xff) | verdict_byte);
        expect_not_fooled(&f);
    }
    for (uint32_t i = 0; i < 12; i++) { /* replayed: the words of the earlier ticket, everywhere */
        forge(&f, real[i]);
        expect_not_fooled(&f);
    }
    forge(&f, UINT64_MAX);
    gate_open(&f.g);
    expect_all(f.r.ctx, f.ticket, 4, KVX_OK); /* the real ones are believed */
    restore_some(&f.r, 1, f.pairs, &verdict);
    assert_int_equal(verdict, KVX_OK);
    tensors_check(&f.r.source);
    rig_close(&f.r);
}

/* The engine's own answers: only the right ticket, entry and index together. */
static void poll_and_released_by_contract(const device *dev, const void *arg)
{
    const uint32_t place_mask = (1u << KVX_TICKET_PLACE_BITS) - 1;
    forgery f;
    (void)arg;
    forgery_open(&f, dev);
    const kvx_engine_ops *ops = f.r.ctx->ops;
    void *engine = f.r.ctx->engine;
    const uint32_t place = (uint32_t)(f.ticket & place_mask);
    const uint32_t first = (uint32_t)(f.r.ctx->tickets[place].first % f.r.ctx->max_pairs);
    assert_int_equal(ops->kind, dev->engine);
    assert_int_equal(ops->poll(engine, f.ticket, first, 0), KVX_VERDICT_NONE);
    assert_int_equal(ops->released(engine, f.ticket, place), 0);
    gate_open(&f.g);
    expect_ok(kvx_wait(f.r.ctx, 1, &f.ticket, 20000000000u));
    assert_int_not_equal(ops->released(engine, f.ticket, place), 0);
    assert_int_equal(ops->released(engine, f.ticket + (1u << KVX_TICKET_PLACE_BITS), place), 0);
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t entry = (first + i) % f.r.ctx->max_pairs;
        assert_int_equal(ops->poll(engine, f.ticket, entry, i), KVX_VERDICT_OK);
        assert_int_equal(ops->poll(engine, f.ticket, entry, i + 1), KVX_VERDICT_NONE);
        assert_int_equal(ops->poll(engine, f.ticket + 1, entry, i), KVX_VERDICT_NONE);
        assert_int_equal(ops->poll(engine, f.ticket, (entry + 1) % f.r.ctx->max_pairs, i), KVX_VERDICT_NONE);
    }
    expect_ok(ops->health(engine));
    expect_all(f.r.ctx, f.ticket, 4, KVX_OK);
    rig_close(&f.r);
}

/* Batches whose entries go round the end of the table. */
static void entries_wrap(const device *dev, const void *arg)
{
    const rig_options options = {.max_tickets = 3, .max_pairs = 7};
    kvx_slot slots[5];
    kvx_pair pairs[5];
    rig r;
    (void)arg;
    rig_open(&r, dev, &small, &options);
    slots_take(r.pool, 5, slots);
    pairs_set(pairs, 5, r.layout, 0, slots);
    for (uint32_t round = 0; round < 60; round++) {
        kvx_ticket ticket;
        const uint32_t n = round % 5 + 1;
        if (round % 5 == 0)
            store_all(&r, 5, pairs);
        restore_all(&r, n, pairs);
        pairs[n - 1].slot.generation++;
        expect_ok(kvx_restore(r.ctx, n, pairs, NULL, &ticket));
        kvx_status verdicts[5];
        collect(r.ctx, ticket, n, verdicts);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(verdicts[i], i == n - 1 ? KVX_STALE : KVX_OK);
        pairs[n - 1].slot.generation--;
        tensors_fill(&r.source, 0, 8, 1);
    }
    rig_close(&r);
}

static void steady_state_waits_for_nobody(const device *dev, const void *arg)
{
    kvx_engine_counts before, after;
    kvx_slot slots[8];
    kvx_pair pairs[8];
    rig r;
    (void)arg;
    rig_open(&r, dev, &small, NULL);
    slots_take(r.pool, 8, slots);
    pairs_set(pairs, 8, r.layout, 0, slots);
    memset(&before, 0, sizeof before);
    memset(&after, 0, sizeof after);
    r.ctx->ops->counts(r.ctx->engine, &before);
    for (uint32_t round = 0; round < 50; round++) {
        kvx_ticket ticket;
        store_all(&r, 8, pairs);
        restore_all(&r, 8, pairs);
        expect_ok(kvx_discard(r.ctx, 8, slots, &ticket));
        expect_all(r.ctx, ticket, 8, KVX_OK);
    }
    r.ctx->ops->counts(r.ctx->engine, &after);
    assert_int_equal(before.host_syncs, 0);
    assert_int_equal(after.host_syncs, 0);
    assert_int_equal(after.record_bytes, before.record_bytes);
    assert_true(after.launches >= before.launches && after.copies >= before.copies);
    rig_close(&r);
}

static const test_case cases[] = {
    {"pool image is AES-256-GCM by OpenSSL", pool_is_plain_gcm, NULL},
    {"no iv twice, state words grow", no_iv_twice, NULL},
    {"contexts and tenants share no key", contexts_share_no_key, NULL},
    {"sequence near its end: exhausted, nothing sealed", sequence_near_its_end, NULL},
    {"forged result words stay pending", forged_words_stay_pending, NULL},
    {"poll and released by contract", poll_and_released_by_contract, NULL},
    {"entries wrap", entries_wrap, NULL},
    {"steady state never synchronises the host", steady_state_waits_for_nobody, NULL},
};

int main(int argc, char **argv)
{
    return RUN_CASES("engine", cases, argc, argv);
}
