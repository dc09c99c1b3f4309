/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_KEYSTATE_H
#define KVX_KEYSTATE_H
/*
 * The life of a key slot and a tenant's way from key to key: the same functions on the GPU and in the CPU engine.
 *
 *   DEAD --install--> LIVE --moved on--> OPEN_ONLY --retired, erased--> DEAD          (a generation each time round)
 *
 * A block chooses its key once, when its first unit is sealed, and pays for all of its units there. Whoever works with
 * key material enters the key before and looks at its state after that; whoever erases it marks it DEAD first and then
 * waits until nobody is in. So either the erasing side sees the user, or the user sees the mark.
 */
#include "format.h"
#include "hd.h"

/* Between two atomic steps. A test may define it, to let something else happen right there. */
#ifndef KVX_KEY_STEP
#define KVX_KEY_STEP() ((void)0)
#endif

/* How often a block tries again because the tenant moved on under its hands. */
#define KVX_KEY_ATTEMPTS 8u

KVX_HD uint64_t kvx_key_word(uint32_t generation, uint32_t state)
{
    return (uint64_t)generation << 8 | state;
}

KVX_HD uint32_t kvx_key_word_state(uint64_t word)
{
    return (uint32_t)(word & 0xff);
}

KVX_HD uint32_t kvx_key_word_generation(uint64_t word)
{
    return (uint32_t)(word >> 8);
}

KVX_HD uint64_t kvx_key_ref(uint32_t key_slot, uint32_t generation)
{
    return (uint64_t)generation << 32 | (key_slot + 1);
}

/* UINT32_MAX of no key. */
KVX_HD uint32_t kvx_key_ref_slot(uint64_t ref)
{
    return (uint32_t)ref - 1;
}

KVX_HD uint32_t kvx_key_ref_generation(uint64_t ref)
{
    return (uint32_t)(ref >> 32);
}

/* What a unit costs its key: its counter blocks, the tag's block, and the operation itself. */
KVX_HD uint64_t kvx_key_cost(uint64_t unit_bytes)
{
    return unit_bytes / 16 + 2;
}

/* Begins work with key material. Nonzero if the key is there and has this generation; then kvx_key_leave() ends it.
 * Called before the material is loaded, and kept until it is no longer needed. */
KVX_HD uint32_t kvx_key_enter(kvx_key_state *key, uint32_t generation)
{
    uint64_t word;
    kvx_atomic_add_u32(&key->in_use, 1);
    kvx_fence();
    KVX_KEY_STEP();
    word = kvx_load_acquire_u64(&key->word);
    if (kvx_key_word_generation(word) == generation && kvx_key_word_state(word) != KVX_KEY_STATE_DEAD)
        return 1;
    KVX_KEY_STEP();
    kvx_atomic_add_u32(&key->in_use, UINT32_MAX);
    return 0;
}

KVX_HD void kvx_key_leave(kvx_key_state *key)
{
    kvx_fence();
    kvx_atomic_add_u32(&key->in_use, UINT32_MAX);
}

/* Is the key still there? Asked again after the work, before its result counts. */
KVX_HD uint32_t kvx_key_is_there(const kvx_key_state *key, uint32_t generation)
{
    uint64_t word = kvx_load_acquire_u64(&key->word);
    return kvx_key_word_generation(word) == generation && kvx_key_word_state(word) != KVX_KEY_STATE_DEAD;
}

/* Moves the tenant on to its next key, if `from` is still its current one and there is a next. Nonzero if it moved.
 * The key left behind opens from now on and seals no more blocks. */
KVX_HD uint32_t kvx_tenant_move(kvx_tenant_keys *tenant, kvx_key_state *keys, uint32_t n_keys, uint64_t from)
{
    uint32_t key_slot = kvx_key_ref_slot(from), generation = kvx_key_ref_generation(from);
    uint64_t next = kvx_load_acquire_u64(&tenant->next);
    if (next == 0 || next == from || key_slot >= n_keys)
        return 0;
    KVX_KEY_STEP();
    if (kvx_atomic_cas_u64(&tenant->current, from, next) != from)
        return 0;
    KVX_KEY_STEP();
    kvx_atomic_cas_u64(&keys[key_slot].word, kvx_key_word(generation, KVX_KEY_STATE_LIVE),
                       kvx_key_word(generation, KVX_KEY_STATE_OPEN_ONLY));
    return 1;
}

/* Reserves `cost`. Nonzero if all of it lies within the hard limit. *after is what has been spent or tried then. What
 * was refused stays counted, and nothing is added past the limit, so the counter never wraps. */
KVX_HD uint32_t kvx_key_reserve(kvx_key_state *key, uint64_t cost, uint64_t hard_limit, uint64_t *after)
{
    uint64_t before = kvx_load_acquire_u64(&key->spent);
    *after = before;
    if (before >= hard_limit || cost > hard_limit)
        return 0;
    KVX_KEY_STEP();
    before = kvx_atomic_add_u64(&key->spent, cost);
    *after = before + cost;
    return before < hard_limit && cost <= hard_limit - before;
}

KVX_HD void kvx_key_release(kvx_key_state *key)
{
    kvx_fence();
    kvx_atomic_add_u32(&key->holders, UINT32_MAX);
}

/* Chooses the key of a block and pays `cost` for all of its units. With OK *ref names the key, which holds on to its
 * slot until kvx_key_release(). REFUSED: the tenant has no key (erased, or never opened). EXHAUSTED: its budget is used
 * up and no next key is there. */
KVX_HD uint32_t kvx_key_choose(kvx_tenant_keys *tenant, kvx_key_state *keys, uint32_t n_keys,
                               const kvx_dev_words *limits, uint64_t cost, uint64_t *ref)
{
    uint32_t attempt;
    if (cost > limits->key_hard_limit)
        return KVX_VERDICT_EXHAUSTED;
    for (attempt = 0; attempt < KVX_KEY_ATTEMPTS; attempt++) {
        uint64_t after = 0, current = kvx_load_acquire_u64(&tenant->current);
        uint32_t refusal = KVX_VERDICT_REFUSED;
        kvx_key_state *key;
        if (current == 0)
            return KVX_VERDICT_REFUSED;
        if (kvx_key_ref_slot(current) >= n_keys)
            return KVX_VERDICT_FAULT;
        key = &keys[kvx_key_ref_slot(current)];
        KVX_KEY_STEP();
        kvx_atomic_add_u32(&key->holders, 1);
        kvx_fence();
        KVX_KEY_STEP();
        if (kvx_load_acquire_u64(&key->word) == kvx_key_word(kvx_key_ref_generation(current), KVX_KEY_STATE_LIVE)) {
            uint32_t granted = kvx_key_reserve(key, cost, limits->key_hard_limit, &after);
            if (!granted || after > limits->key_soft_limit)
                kvx_tenant_move(tenant, keys, n_keys, current);
            *ref = current;
            if (granted)
                return KVX_VERDICT_OK;
            refusal = KVX_VERDICT_EXHAUSTED;
        }
        kvx_key_release(key);
        KVX_KEY_STEP();
        if (kvx_load_acquire_u64(&tenant->current) == current)
            return refusal;
    }
    return KVX_VERDICT_EXHAUSTED;
}

/* Where a block keeps its choice: 0 at first, then CHOOSING, then the reference of its key, or why it got none. What is
 * no reference has the generation 0, which no key has. */
#define KVX_BLOCK_KEY_CHOOSING 1ull
#define KVX_BLOCK_KEY_REFUSED 2ull

/* The key that the block has chosen; 0: none. */
KVX_HD uint64_t kvx_block_key_ref(uint64_t place)
{
    return kvx_key_ref_generation(place) ? place : 0;
}

/* Any unit of a block comes here before it is sealed, at any time; the first one chooses and pays for all of them
 * (`cost`), the others find what it chose. None waits longer than kvx_key_choose takes. Ends with kvx_block_key_end().
 */
KVX_HD uint32_t kvx_block_key(uint64_t *place, kvx_tenant_keys *tenant, kvx_key_state *keys, uint32_t n_keys,
                              const kvx_dev_words *limits, uint64_t cost)
{
    uint64_t ref = 0, seen = kvx_load_acquire_u64(place);
    uint32_t verdict;
    if (seen == 0) {
        KVX_KEY_STEP();
        seen = kvx_atomic_cas_u64(place, 0, KVX_BLOCK_KEY_CHOOSING);
    }
    if (seen == 0) {
        verdict = kvx_key_choose(tenant, keys, n_keys, limits, cost, &ref);
        kvx_store_release_u64(place, verdict == KVX_VERDICT_OK ? ref : (uint64_t)verdict << 8 | KVX_BLOCK_KEY_REFUSED);
        return verdict;
    }
    while (seen == KVX_BLOCK_KEY_CHOOSING)
        seen = kvx_load_acquire_u64(place);
    return kvx_block_key_ref(seen) ? (uint32_t)KVX_VERDICT_OK : (uint32_t)(seen >> 8);
}

/* After the block's commit, whatever came of it: the key is no longer held, and the place is as at first. */
KVX_HD void kvx_block_key_end(uint64_t *place, kvx_key_state *keys)
{
    uint64_t ref = kvx_block_key_ref(kvx_load_acquire_u64(place));
    if (ref)
        kvx_key_release(&keys[kvx_key_ref_slot(ref)]);
    kvx_store_release_u64(place, 0);
}

/* Puts a key into a slot that is DEAD, once its material is in place. */
KVX_HD void kvx_key_start(kvx_key_state *key, uint32_t generation, uint32_t state)
{
    key->spent = 0;
    kvx_fence();
    kvx_store_release_u64(&key->word, kvx_key_word(generation, state));
}

/* Marks the key DEAD, whatever it was, if it still has this generation. Its material may be overwritten when nobody is
 * in any more: kvx_key_is_idle(). */
KVX_HD void kvx_key_kill(kvx_key_state *key, uint32_t generation)
{
    uint64_t word = kvx_load_acquire_u64(&key->word);
    while (kvx_key_word_generation(word) == generation && kvx_key_word_state(word) != KVX_KEY_STATE_DEAD) {
        uint64_t seen;
        KVX_KEY_STEP();
        seen = kvx_atomic_cas_u64(&key->word, word, kvx_key_word(generation, KVX_KEY_STATE_DEAD));
        if (seen == word)
            break;
        word = seen;
    }
    kvx_fence();
}

KVX_HD uint32_t kvx_key_is_idle(const kvx_key_state *key)
{
    return kvx_load_acquire_u32(&key->in_use) == 0;
}

/* May the key be retired, as far as its state tells: it seals no more, and no block that chose it is still under way?
 * The caller looks for blocks that need it after this, not before. */
KVX_HD uint32_t kvx_key_is_left(const kvx_key_state *key, uint32_t generation)
{
    uint64_t word = kvx_load_acquire_u64(&key->word);
    return kvx_key_word_generation(word) == generation && kvx_key_word_state(word) != KVX_KEY_STATE_LIVE &&
           kvx_load_acquire_u32(&key->holders) == 0;
}

#endif
