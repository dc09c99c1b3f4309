/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_STATE_H
#define KVX_STATE_H
/*
 * The slot state machine, the checks of a restore and the result words: the same functions on the GPU and in the CPU
 * engine. EMPTY -> WRITING (claim) -> VALID (commit) -> EMPTY (discard) or WRITING (overwrite). The word of a header
 * only ever grows, so of two stores the older loses. A restore also demands that the unit's record carries the word's
 * id: a late record of a store that lost makes a miss, never a false alarm.
 */
#include "format.h"
#include "hd.h"
#include "prf.h"

KVX_HD uint64_t kvx_word(uint64_t store_id, uint32_t state)
{
    return store_id << KVX_STATE_BITS | state;
}

KVX_HD uint64_t kvx_word_id(uint64_t word)
{
    return word >> KVX_STATE_BITS;
}

KVX_HD uint32_t kvx_word_state(uint64_t word)
{
    return (uint32_t)(word & ((1u << KVX_STATE_BITS) - 1u));
}

/* Moves the word to `next` unless something later holds the slot. Nobody interrupts a commit, which ends by itself. */
KVX_HD uint64_t kvx_slot_advance(kvx_header *header, uint64_t next)
{
    uint64_t old = kvx_load_acquire_u64(&header->word);
    for (;;) {
        if (kvx_word_id(old) >= kvx_word_id(next))
            return old;
        if (kvx_word_state(old) == KVX_SLOT_COMMITTING) {
            old = kvx_load_acquire_u64(&header->word);
            continue;
        }
        uint64_t seen = kvx_atomic_cas_u64(&header->word, old, next);
        if (seen == old)
            return next;
        old = seen;
    }
}

/* Claims the slot for a store, before any byte leaves. Every unit of the block calls it, in any order. */
KVX_HD uint32_t kvx_slot_claim(kvx_header *header, uint64_t store_id)
{
    uint64_t writing = kvx_word(store_id, KVX_SLOT_WRITING);
    return kvx_slot_advance(header, writing) == writing ? KVX_VERDICT_OK : KVX_VERDICT_SUPERSEDED;
}

/* Makes a fully sealed slot readable, once its bytes have landed: every record must carry the store id. `verdict` is
 * the worst verdict of the block's units, `description` what the header will say (its word is ignored). A store that
 * failed leaves the slot EMPTY under the id store_id + 1, so that the word still grows; ids are handed out in steps of
 * two. */
KVX_HD uint32_t kvx_slot_commit(kvx_header *header, const kvx_record *records, uint64_t store_id, uint32_t verdict,
                                const kvx_header *description)
{
    uint32_t i;
    uint64_t writing = kvx_word(store_id, KVX_SLOT_WRITING), difference = 0;
    for (i = 0; i < description->n_units; i++) /* no early exit: a GPU has all loads under way at once */
        difference |= records[i].store_id ^ store_id;
    if (verdict == KVX_VERDICT_OK && difference != 0)
        verdict = KVX_VERDICT_SUPERSEDED;
    if (verdict != KVX_VERDICT_OK) {
        (void)kvx_atomic_cas_u64(&header->word, writing, kvx_word(store_id + 1, KVX_SLOT_EMPTY));
        return verdict;
    }
    if (kvx_atomic_cas_u64(&header->word, writing, kvx_word(store_id, KVX_SLOT_COMMITTING)) != writing)
        return KVX_VERDICT_SUPERSEDED;
    header->fingerprint = description->fingerprint;
    header->tenant = description->tenant;
    header->generation = description->generation;
    header->key_slot = description->key_slot;
    header->key_generation = description->key_generation;
    header->n_units = description->n_units;
    kvx_store_release_u64(&header->word, kvx_word(store_id, KVX_SLOT_VALID));
    return KVX_VERDICT_OK;
}

/* Discards what the slot holds, unless something later does. */
KVX_HD uint32_t kvx_slot_discard(kvx_header *header, uint64_t store_id)
{
    uint64_t empty = kvx_word(store_id, KVX_SLOT_EMPTY);
    return kvx_slot_advance(header, empty) == empty ? KVX_VERDICT_OK : KVX_VERDICT_SUPERSEDED;
}

/* May what the slot holds be opened as `wanted`? `word` is the snapshot that the caller read with acquire; it checks
 * that the word is still the same before it believes the answer (and before it calls a wrong tag tampering). */
KVX_HD uint32_t kvx_slot_check(const kvx_header *header, uint64_t word, const kvx_header *wanted)
{
    if (kvx_word_state(word) == KVX_SLOT_WRITING || kvx_word_state(word) == KVX_SLOT_COMMITTING)
        return KVX_VERDICT_BUSY;
    if (kvx_word_state(word) != KVX_SLOT_VALID)
        return KVX_VERDICT_MISS;
    if (header->tenant != wanted->tenant || header->fingerprint != wanted->fingerprint ||
        header->n_units != wanted->n_units)
        return KVX_VERDICT_REFUSED;
    if (header->generation != wanted->generation)
        return KVX_VERDICT_STALE;
    return KVX_VERDICT_OK;
}

/* Draws one sequence number. Spent whatever happens next. Returns 0 when the counter is used up. */
KVX_HD uint32_t kvx_sequence_draw(kvx_dev_words *words, uint64_t *sequence)
{
    *sequence = kvx_atomic_add_u64(&words->sequence, 1);
    return *sequence < KVX_SEQUENCE_LIMIT;
}

/* Counts a tampered block and sets the latch once the budget is exceeded. */
KVX_HD void kvx_tamper_count(kvx_dev_words *words)
{
    if (kvx_atomic_add_u32(&words->tampered, 1) >= words->tamper_budget)
        kvx_atomic_cas_u32(&words->latch, 0, 1);
}

/* Notes a unit's verdict: the first failure of a block stands. */
KVX_HD void kvx_entry_note(kvx_entry *entry, uint32_t verdict)
{
    if (verdict != KVX_VERDICT_OK)
        kvx_atomic_cas_u32(&entry->verdict, KVX_VERDICT_NONE, verdict);
}

/* Counts a unit as done; returns nonzero to the caller that completes the block. The caller has made the unit's effects
 * visible (kvx_fence) before. */
KVX_HD uint32_t kvx_entry_done(kvx_entry *entry, uint32_t n_units)
{
    return kvx_atomic_add_u32(&entry->n_done, 1) + 1 == n_units;
}

/* The word that tells the host of a verdict; never 0. */
KVX_HD uint64_t kvx_result_word(const uint64_t prf_key[2], uint64_t ticket, uint32_t index, uint32_t verdict)
{
    uint64_t mac = kvx_prf(prf_key, ticket, (uint64_t)index << 8 | verdict);
    return (mac & ~(uint64_t)0xff) | verdict;
}

/* The verdict in a word that anybody may have written: NONE unless its MAC is right. */
KVX_HD uint32_t kvx_result_read(const uint64_t prf_key[2], uint64_t ticket, uint32_t index, uint64_t word)
{
    uint32_t verdict = (uint32_t)(word & 0xff);
    if (verdict == KVX_VERDICT_NONE || kvx_result_word(prf_key, ticket, index, verdict) != word)
        return KVX_VERDICT_NONE;
    return verdict;
}

#endif
