/* SPDX-License-Identifier: Apache-2.0 */
/* What the CPU engine does with a batch: the steps of the kernels, one unit at a time. Sealed bytes are read from the
 * pool once, into private memory; plaintext reaches the caller's tensors only from a private buffer whose tag passed.
 */
#include <string.h>

#include "../kernels/keystate.h"
#include "../kernels/state.h"
#include "engine_cpu.h"

/* A pair with everything it names, looked up and checked. */
typedef struct transfer {
    kvx_cpu_engine *engine;
    const kvx_work_pair *pair;
    const kvx_dev_layout *layout; /* NULL: unknown, or the block is not one of its blocks */
    kvx_cpu_progress *progress;
    kvx_header *header;
    kvx_record *records;
    uint8_t *slot;
    uint32_t verdict; /* why the pair may not be worked on, else OK */
} transfer;

static uint32_t entry_of(const kvx_cpu_engine *engine, const kvx_cpu_job *job, uint32_t i)
{
    return (uint32_t)(((uint64_t)job->first_entry + i) % engine->config.max_pairs);
}

static int latched(const kvx_cpu_engine *engine)
{
    return kvx_load_acquire_u32(&engine->words->latch) != 0;
}

static const kvx_dev_class *class_of(const kvx_pool_view *pool, uint32_t slot)
{
    uint32_t i;
    for (i = 0; i < pool->n_classes; i++)
        if (slot >= pool->classes[i].first_slot && slot - pool->classes[i].first_slot < pool->classes[i].n_slots)
            return &pool->classes[i];
    return NULL;
}

static const kvx_dev_layout *layout_of(const kvx_cpu_engine *engine, const kvx_work_pair *pair)
{
    if (pair->layout >= engine->config.max_layouts || pair->block >= engine->layouts[pair->layout].n_blocks)
        return NULL;
    return &engine->layouts[pair->layout];
}

/* Sets header, records and slot. */
static uint32_t find_slot(transfer *t)
{
    const kvx_pool_view *pool = t->engine->config.pool;
    const kvx_dev_class *slots = class_of(pool, t->pair->slot);
    uint32_t k;
    if (!slots || !t->layout || t->pair->tenant >= t->engine->config.n_tenants)
        return KVX_VERDICT_FAULT;
    if (t->layout->sealed_bytes > slots->slot_bytes || t->layout->n_segments > slots->max_units)
        return KVX_VERDICT_FAULT;
    k = t->pair->slot - slots->first_slot;
    t->header = &t->engine->headers[t->pair->slot];
    t->records = &t->engine->records[slots->first_record + (uint64_t)k * slots->max_units];
    t->slot = pool->chunks[slots->first_chunk + k / slots->slots_per_chunk].host +
              (uint64_t)(k % slots->slots_per_chunk) * slots->slot_bytes;
    return KVX_VERDICT_OK;
}

static transfer transfer_of(kvx_cpu_engine *engine, const kvx_cpu_job *job, uint32_t i)
{
    uint32_t entry = entry_of(engine, job, i);
    transfer t = {.engine = engine, .pair = &engine->pairs[entry], .progress = &engine->progress[entry]};
    t.layout = layout_of(engine, t.pair);
    t.verdict = find_slot(&t);
    if (t.verdict == KVX_VERDICT_OK && t.pair->refusal)
        t.verdict = t.pair->refusal;
    return t;
}

static void note(kvx_cpu_progress *progress, uint32_t verdict)
{
    if (verdict != KVX_VERDICT_OK && progress->verdict == KVX_VERDICT_NONE)
        progress->verdict = verdict;
}

static uint32_t verdict_of(const kvx_cpu_progress *progress)
{
    return progress->verdict == KVX_VERDICT_NONE ? KVX_VERDICT_OK : progress->verdict;
}

/* After this the library may use the entry for another batch. */
static void publish(kvx_cpu_engine *engine, const kvx_cpu_job *job, uint32_t i, uint32_t verdict)
{
    uint64_t word = kvx_result_word(engine->words->prf_key, job->ticket, i, verdict);
    kvx_store_release_u64(&engine->results[entry_of(engine, job, i)], word);
}

static void make_iv(const kvx_cpu_engine *engine, uint64_t sequence, uint8_t iv[KVX_IV_BYTES])
{
    kvx_store_be32(iv, engine->words->fixed_field);
    kvx_store_be64(iv + 4, sequence);
}

/* ------------------------------------------------------------------------------------------------------------- rows */

static uint8_t *row_of(const kvx_dev_lane *lane, uint32_t block, uint32_t row)
{
    return (uint8_t *)(uintptr_t)(lane->base + block * lane->block_stride + row * lane->row_stride);
}

static void gather(const transfer *t, const kvx_dev_segment *segment, uint8_t *unit)
{
    uint32_t i, row;
    for (i = 0; i < segment->n_lanes; i++) {
        const kvx_dev_lane *lane = &t->layout->lanes[segment->first_lane + i];
        for (row = 0; row < lane->n_rows; row++)
            memcpy(unit + lane->unit_offset + (size_t)row * lane->row_bytes, row_of(lane, t->pair->block, row),
                   lane->row_bytes);
    }
    memset(unit + segment->plain_bytes, 0, segment->bytes - segment->plain_bytes);
}

/* Writes a unit's rows; zeroes where `unit` is NULL. */
static void scatter(const transfer *t, const kvx_dev_segment *segment, const uint8_t *unit)
{
    uint32_t i, row;
    for (i = 0; i < segment->n_lanes; i++) {
        const kvx_dev_lane *lane = &t->layout->lanes[segment->first_lane + i];
        for (row = 0; row < lane->n_rows; row++) {
            uint8_t *to = row_of(lane, t->pair->block, row);
            if (unit)
                memcpy(to, unit + lane->unit_offset + (size_t)row * lane->row_bytes, lane->row_bytes);
            else
                memset(to, 0, lane->row_bytes);
        }
    }
}

/* ------------------------------------------------------------------------------------------------------------ store */

/* The block's key, paid for all of its units. */
static uint32_t choose_key(const transfer *t)
{
    uint64_t cost = 0;
    uint32_t s;
    for (s = 0; s < t->layout->n_segments; s++)
        cost += kvx_key_cost(t->layout->segments[s].bytes);
    return kvx_key_choose(&t->engine->tenant_keys[t->pair->tenant], t->engine->key_states,
                          t->engine->config.n_key_slots, t->engine->words, cost, &t->progress->key);
}

static uint32_t seal_with(const transfer *t, const uint8_t *key, uint32_t s, uint64_t store_id)
{
    kvx_cpu_engine *engine = t->engine;
    const kvx_dev_segment *segment = &t->layout->segments[s];
    kvx_record *record = &t->records[s];
    uint8_t iv[KVX_IV_BYTES];
    uint64_t sequence;
    int sealed = -1;
    if (!kvx_sequence_draw(engine->words, &sequence))
        return KVX_VERDICT_EXHAUSTED;
    make_iv(engine, sequence, iv);
    gather(t, segment, engine->gathered);
    record->store_id = 0;
    if (kvx_cpu_gcm_rekey(engine->gcm, key, 1) == 1)
        sealed = kvx_cpu_gcm_seal(engine->gcm, iv, NULL, 0, engine->gathered, t->slot + segment->slot_offset,
                                  segment->bytes, record->tag);
    if (kvx_cpu_gcm_rekey(engine->gcm, NULL, 1) != 1 || sealed != 1)
        return KVX_VERDICT_FAULT;
    record->sequence = sequence;
    record->store_id = store_id;
    return KVX_VERDICT_OK;
}

static uint32_t seal_unit(const transfer *t, uint32_t s, uint64_t store_id)
{
    kvx_cpu_engine *engine = t->engine;
    const uint32_t key_slot = kvx_key_ref_slot(t->progress->key);
    kvx_key_state *state = &engine->key_states[key_slot];
    uint32_t verdict;
    if (latched(engine))
        return KVX_VERDICT_LATCHED;
    if (!kvx_key_enter(state, kvx_key_ref_generation(t->progress->key)))
        return KVX_VERDICT_REFUSED;
    verdict = seal_with(t, engine->keys[key_slot], s, store_id);
    kvx_key_leave(state);
    return verdict;
}

static uint32_t seal_pair(const transfer *t, uint64_t store_id)
{
    uint32_t s, verdict = t->verdict;
    if (latched(t->engine))
        return KVX_VERDICT_LATCHED;
    if (verdict != KVX_VERDICT_OK)
        return verdict;
    verdict = kvx_slot_claim(t->header, store_id);
    if (verdict == KVX_VERDICT_OK)
        verdict = choose_key(t);
    for (s = 0; verdict == KVX_VERDICT_OK && s < t->layout->n_segments; s++)
        verdict = seal_unit(t, s, store_id);
    return verdict;
}

static uint32_t commit_pair(const transfer *t, uint64_t store_id)
{
    const uint64_t key = kvx_block_key_ref(t->progress->key);
    uint32_t verdict = verdict_of(t->progress);
    kvx_header description = {.generation = t->pair->generation, .tenant = t->pair->tenant};
    if (t->verdict != KVX_VERDICT_OK)
        return verdict;
    description.fingerprint = t->layout->fingerprint;
    description.n_units = t->layout->n_segments;
    if (key) {
        description.key_slot = kvx_key_ref_slot(key);
        description.key_generation = kvx_key_ref_generation(key);
        if (verdict == KVX_VERDICT_OK &&
            !kvx_key_is_there(&t->engine->key_states[description.key_slot], description.key_generation))
            verdict = KVX_VERDICT_REFUSED; /* erased since: what was sealed can never be opened */
    }
    if (verdict == KVX_VERDICT_OK && latched(t->engine))
        verdict = KVX_VERDICT_LATCHED;
    verdict = kvx_slot_commit(t->header, t->records, store_id, verdict, &description);
    kvx_block_key_end(&t->progress->key, t->engine->key_states);
    return verdict;
}

void kvx_cpu_run_stores(kvx_cpu_engine *engine, const kvx_cpu_job *job)
{
    uint64_t *released = &engine->results[engine->config.max_pairs + job->ticket_index];
    uint32_t i;
    for (i = 0; i < job->n; i++) {
        transfer t = transfer_of(engine, job, i);
        note(t.progress, seal_pair(&t, job->store_id));
    }
    kvx_store_release_u64(released,
                          kvx_result_word(engine->words->prf_key, job->ticket, KVX_RESULT_RELEASED, KVX_VERDICT_OK));
    kvx_cpu_timeline_advance(engine->pipelines[KVX_CPU_STORES].timeline, job->first_position + job->n_segment_events);
    for (i = 0; i < job->n; i++) {
        transfer t = transfer_of(engine, job, i);
        publish(engine, job, i, commit_pair(&t, job->store_id));
    }
}

void kvx_cpu_run_discards(kvx_cpu_engine *engine, const kvx_cpu_job *job)
{
    uint32_t i, verdict;
    for (i = 0; i < job->n; i++) {
        uint32_t slot = engine->pairs[entry_of(engine, job, i)].slot;
        if (latched(engine))
            verdict = KVX_VERDICT_LATCHED;
        else if (slot >= engine->config.pool->n_slots)
            verdict = KVX_VERDICT_FAULT;
        else
            verdict = kvx_slot_discard(&engine->headers[slot], job->store_id);
        publish(engine, job, i, verdict);
    }
}

/* ---------------------------------------------------------------------------------------------------------- restore */

/* Is the header, as of `word`, that of what the pair wants? */
static uint32_t check_header(const transfer *t, uint64_t word)
{
    kvx_header wanted = {.fingerprint = t->layout->fingerprint,
                         .tenant = t->pair->tenant,
                         .generation = t->pair->generation,
                         .n_units = t->layout->n_segments};
    return kvx_slot_check(t->header, word, &wanted);
}

/* Record and tag of one unit; with OK its plaintext is in engine->opened. */
static uint32_t open_with(const transfer *t, const uint8_t *key, uint32_t s, uint64_t word)
{
    kvx_cpu_engine *engine = t->engine;
    const kvx_dev_segment *segment = &t->layout->segments[s];
    const kvx_record record = t->records[s];
    uint8_t iv[KVX_IV_BYTES];
    int opened = -1;
    if (record.store_id != kvx_word_id(word))
        return KVX_VERDICT_MISS;
    make_iv(engine, record.sequence, iv);
    memcpy(engine->staged, t->slot + segment->slot_offset, segment->bytes); /* the only read of sealed bytes */
    if (kvx_cpu_gcm_rekey(engine->gcm, key, 0) == 1)
        opened = kvx_cpu_gcm_open(engine->gcm, iv, NULL, 0, engine->staged, engine->opened, segment->bytes, record.tag);
    if (kvx_cpu_gcm_rekey(engine->gcm, NULL, 0) != 1 || opened < 0)
        return KVX_VERDICT_FAULT;
    return opened ? KVX_VERDICT_OK : KVX_VERDICT_TAMPERED;
}

/* The key may be erased at any moment: then the block is a miss. Plaintext is in place before the key is let go, so
 * none comes after an erasure. A word that changed meanwhile means that a newer store is at work: nothing that was seen
 * counts. */
static uint32_t open_and_place(const transfer *t, uint32_t s, uint64_t word)
{
    kvx_cpu_engine *engine = t->engine;
    const uint32_t key_slot = t->header->key_slot, generation = t->header->key_generation;
    kvx_key_state *state;
    uint32_t verdict;
    if (key_slot >= engine->config.n_key_slots)
        return KVX_VERDICT_MISS;
    state = &engine->key_states[key_slot];
    if (!kvx_key_enter(state, generation))
        return KVX_VERDICT_MISS;
    verdict = open_with(t, engine->keys[key_slot], s, word);
    if (!kvx_key_is_there(state, generation))
        verdict = KVX_VERDICT_MISS;
    if (kvx_load_acquire_u64(&t->header->word) != word)
        verdict = KVX_VERDICT_BUSY;
    if (verdict == KVX_VERDICT_OK)
        scatter(t, &t->layout->segments[s], engine->opened);
    kvx_key_leave(state);
    return verdict;
}

/* With OK the unit is in place. */
static uint32_t open_unit(const transfer *t, uint32_t s)
{
    uint64_t word;
    uint32_t verdict = t->verdict;
    if (latched(t->engine))
        return KVX_VERDICT_LATCHED;
    if (verdict != KVX_VERDICT_OK)
        return verdict;
    word = kvx_load_acquire_u64(&t->header->word);
    verdict = check_header(t, word);
    if (verdict == KVX_VERDICT_OK)
        verdict = open_and_place(t, s, word);
    if (verdict != KVX_VERDICT_OK && kvx_load_acquire_u64(&t->header->word) != word)
        return KVX_VERDICT_BUSY;
    if (verdict == KVX_VERDICT_TAMPERED && !t->progress->tampered) {
        t->progress->tampered = 1;
        kvx_tamper_count(t->engine->words);
    }
    return verdict;
}

static void restore_unit(const transfer *t, uint32_t s)
{
    uint32_t verdict = open_unit(t, s);
    note(t->progress, verdict);
    if (t->layout && verdict != KVX_VERDICT_OK)
        scatter(t, &t->layout->segments[s], NULL);
}

static uint32_t n_segments_of(const transfer *t)
{
    return t->layout ? t->layout->n_segments : 0;
}

/* A pair that has nothing to restore into gets its verdict here. */
static void finish_restore(kvx_cpu_engine *engine, const kvx_cpu_job *job, uint32_t i, const transfer *t)
{
    if (!t->layout)
        note(t->progress, latched(engine) ? KVX_VERDICT_LATCHED : t->verdict);
    publish(engine, job, i, verdict_of(t->progress));
}

static void restore_by_pairs(kvx_cpu_engine *engine, const kvx_cpu_job *job)
{
    uint32_t i, s;
    for (i = 0; i < job->n; i++) {
        transfer t = transfer_of(engine, job, i);
        for (s = 0; s < n_segments_of(&t); s++)
            restore_unit(&t, s);
        finish_restore(engine, job, i, &t);
    }
}

/* Segment s of every pair. Returns nonzero if there may be more segments. */
static int restore_segment(kvx_cpu_engine *engine, const kvx_cpu_job *job, uint32_t s)
{
    uint32_t i;
    int more = 0;
    for (i = 0; i < job->n; i++) {
        transfer t = transfer_of(engine, job, i);
        if (s < n_segments_of(&t))
            restore_unit(&t, s);
        more |= s + 1 < n_segments_of(&t);
    }
    return more;
}

static void restore_by_segments(kvx_cpu_engine *engine, const kvx_cpu_job *job)
{
    kvx_cpu_timeline *timeline = engine->pipelines[KVX_CPU_RESTORES].timeline;
    uint32_t i, s;
    int more = 1;
    for (s = 0; more || s < job->n_segment_events || s < job->n_flags; s++) {
        more = restore_segment(engine, job, s);
        if (s < job->n_flags)
            kvx_store_release_u32(&job->flags[s], job->flag_value);
        if (s < job->n_segment_events)
            kvx_cpu_timeline_advance(timeline, job->first_position + s);
    }
    for (i = 0; i < job->n; i++) {
        transfer t = transfer_of(engine, job, i);
        finish_restore(engine, job, i, &t);
    }
}

void kvx_cpu_run_restores(kvx_cpu_engine *engine, const kvx_cpu_job *job)
{
    if (job->n_segment_events || job->n_flags)
        restore_by_segments(engine, job);
    else
        restore_by_pairs(engine, job);
}
