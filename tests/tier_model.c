/* SPDX-License-Identifier: Apache-2.0 */
/* The model: what becomes of blocks. Calls of the core and comparisons are in tier_model_calls.c. */
#include "tier_model.h"

#include <string.h>

#include "support.h"
#include "tier_model_parts.h"

/* ---- lists ---- */

void list_add(list *l, int item)
{
    assert_true(l->n < (int)MODEL_LIST);
    l->item[l->n++] = item;
}

int list_find(const list *l, int item)
{
    for (int i = 0; i < l->n; i++)
        if (l->item[i] == item)
            return i;
    return MODEL_NONE;
}

void list_drop(list *l, int item)
{
    int i = list_find(l, item);
    assert_true(i >= 0);
    memmove(&l->item[i], &l->item[i + 1], (size_t)(l->n - i - 1) * sizeof(int));
    l->n--;
}

/* ---- names ---- */

uint32_t model_tenant(int key)
{
    return (uint32_t)key / MODEL_TENANT_KEYS;
}

kvx_tier_hash model_hash(int key)
{
    kvx_tier_hash hash;
    uint64_t word = (uint32_t)key % MODEL_TENANT_KEYS; /* tenants share hashes */
    for (uint32_t i = 0; i < 4; i++) {
        uint64_t mixed = random_word(&word);
        memcpy(&hash.bytes[8 * i], &mixed, sizeof mixed);
    }
    return hash;
}

int model_find(const model *m, int key)
{
    for (int b = 0; b < (int)m->config.n_blocks; b++) {
        block_state state = m->blocks[b].state;
        if (m->blocks[b].key == key && !m->blocks[b].doomed && state >= B_QUEUED && state <= B_HELD)
            return b;
    }
    return MODEL_NONE;
}

/* ---- counters and events ---- */

static void event(model *m, int b, kvx_tier_event_kind kind, kvx_tier_cause cause)
{
    assert_true(m->n_events < MODEL_LIST);
    kvx_tier_event *e = &m->events[m->n_events++];
    memset(e, 0, sizeof *e);
    e->sequence = ++m->sequence;
    e->tenant = model_tenant(m->blocks[b].key);
    e->hash = model_hash(m->blocks[b].key);
    e->kind = kind;
    e->cause = cause;
}

static void count_removal(model *m, int b, kvx_tier_cause cause)
{
    uint32_t ms = (uint32_t)(m->now_ns / 1000000) - m->blocks[b].since_ms, class = 0;
    while (class < 23 && ms >= 1u << class)
        class ++;
    m->stats.removed_blocks[cause]++;
    m->stats.removed_residence_ns += (uint64_t)ms * 1000000;
    m->stats.residence_log2_ms[class]++;
    event(m, b, cause <= KVX_TIER_BY_QUOTA ? KVX_TIER_EVICTED : KVX_TIER_DROPPED, cause);
}

uint32_t held_by(const model *m, uint32_t tenant)
{
    uint32_t n = 0;
    for (int k = 0; k < (int)MODEL_TENANT_KEYS; k++)
        n += model_find(m, (int)(tenant * MODEL_TENANT_KEYS) + k) != MODEL_NONE;
    return n;
}

/* ---- queues of the policy: the first item goes next ---- */

static list *queue_of(model *m, int b, int q)
{
    uint32_t tenant = model_tenant(m->blocks[b].key);
    return &m->queues[m->quota[tenant] ? tenant + 1 : 0][q];
}

static void put(model *m, int b, int q)
{
    list_add(queue_of(m, b, q), b);
    m->blocks[b].queue = q;
    m->stamps[b] = ++m->clock;
}

static void take_out(model *m, int b)
{
    list_drop(queue_of(m, b, m->blocks[b].queue), b);
}

void use(model *m, int b)
{
    take_out(m, b);
    put(m, b, 1);
}

/* Adds it if it is not there; the oldest goes. */
static void ghost_add(model *m, int key)
{
    if (list_find(&m->ghosts, key) != MODEL_NONE)
        return;
    if (m->ghosts.n == (int)(m->config.n_blocks * 7 / 8 + 1))
        list_drop(&m->ghosts, m->ghosts.item[0]);
    list_add(&m->ghosts, key);
    m->ghost_uses[key] = m->ghost_evicted[key] = 0;
}

static void arrive_in_policy(model *m, int b)
{
    int key = m->blocks[b].key, q = 0;
    if (m->config.evict == KVX_TIER_EVICT_LRU) {
        q = 1;
    } else if (list_find(&m->ghosts, key) != MODEL_NONE && m->ghost_evicted[key]) {
        q = 1;
        m->ghost_evicted[key] = 0;
        m->stats.ghost_blocks++;
    }
    put(m, b, q);
}

static int turn(const model *m, list queues[2])
{
    if (queues[0].n == 0 || queues[1].n == 0)
        return queues[0].n == 0 ? 1 : 0;
    uint64_t once = m->clock - m->stamps[queues[0].item[0]], again = m->clock - m->stamps[queues[1].item[0]];
    return once * m->config.again_percent >= again * 100 ? 0 : 1;
}

static int all_pinned(const model *m, const list *l)
{
    for (int i = 0; i < l->n; i++)
        if (m->blocks[l->item[i]].pins == 0)
            return 0;
    return 1;
}

/* Pinned blocks are passed over; with nothing but pinned ones everything goes round once, and that is what the tier
 * does, too. */
static int victim_in(model *m, list queues[2])
{
    int passed[2] = {0, 0};
    for (;;) {
        int q = turn(m, queues);
        if (passed[q] >= queues[q].n)
            q = !q;
        if (passed[q] >= queues[q].n) {
            assert_true(all_pinned(m, &queues[0]) && all_pinned(m, &queues[1]));
            return MODEL_NONE;
        }
        int b = queues[q].item[0];
        if (m->blocks[b].pins == 0)
            return b;
        take_out(m, b);
        put(m, b, q);
        passed[q]++;
    }
}

static int victim_anywhere(model *m)
{
    int tried[MODEL_TENANTS + 1] = {0};
    for (;;) {
        int best = MODEL_NONE, b;
        uint64_t oldest = UINT64_MAX;
        for (int g = 0; g <= (int)MODEL_TENANTS; g++) {
            const list *l = &m->queues[g][turn(m, m->queues[g])];
            if (!tried[g] && l->n > 0 && m->stamps[l->item[0]] < oldest) {
                oldest = m->stamps[l->item[0]];
                best = g;
            }
        }
        if (best == MODEL_NONE)
            return MODEL_NONE;
        b = victim_in(m, m->queues[best]);
        if (b != MODEL_NONE)
            return b;
        tried[best] = 1;
    }
}

/* ---- blocks ---- */

static void make_free(model *m, int b)
{
    memset(&m->blocks[b], 0, sizeof m->blocks[b]);
    list_add(&m->free_slots, b);
}

static void settle(model *m, int b)
{
    model_block *x = &m->blocks[b];
    if (x->state != B_LIMBO || x->pins > 0)
        return;
    if (!x->discard) {
        make_free(m, b);
        return;
    }
    x->state = B_DISCARDING;
    list_add(&m->to_discard, b);
}

void free_discarded(model *m, int b)
{
    list_drop(&m->to_discard, b);
    make_free(m, b);
}

static void remove_block(model *m, int b, kvx_tier_cause cause, int discard)
{
    model_block *x = &m->blocks[b];
    if (x->state == B_STORING) {
        x->doomed = 1;
        x->discard = discard;
        return;
    }
    if (x->state == B_QUEUED) {
        list_drop(&m->queue, b);
        if (m->n_hurried > (uint64_t)m->queue.n)
            m->n_hurried = (uint64_t)m->queue.n;
        make_free(m, b);
        return;
    }
    take_out(m, b);
    count_removal(m, b, cause);
    x->state = B_LIMBO;
    x->discard = discard;
    x->moved = 0;
    settle(m, b);
}

static void evict(model *m, int b, kvx_tier_cause cause)
{
    int key = m->blocks[b].key;
    if (m->config.evict == KVX_TIER_EVICT_AGED) {
        ghost_add(m, key);
        m->ghost_evicted[key] = 1;
    }
    remove_block(m, b, cause, 0);
}

static int take(model *m, int key)
{
    uint32_t tenant = model_tenant(key);
    int at_quota = m->quota[tenant] > 0 && held_by(m, tenant) >= m->quota[tenant];
    if (at_quota || m->free_slots.n == 0) {
        int b = at_quota ? victim_in(m, m->queues[tenant + 1]) : victim_anywhere(m);
        if (b == MODEL_NONE)
            return MODEL_NONE;
        evict(m, b, at_quota ? KVX_TIER_BY_QUOTA : KVX_TIER_BY_CAPACITY);
    }
    int b = m->free_slots.item[0];
    list_drop(&m->free_slots, b);
    m->blocks[b].state = B_QUEUED;
    m->blocks[b].key = key;
    m->blocks[b].since_ns = m->now_ns;
    return b;
}

void store_ended(model *m, int b, kvx_status verdict)
{
    model_block *x = &m->blocks[b];
    m->stats.stored_blocks += verdict == KVX_OK;
    m->stats.stored_bytes += verdict == KVX_OK ? FAKE_SEALED : 0;
    m->stats.store_failed_blocks += verdict != KVX_OK;
    if (x->doomed || verdict != KVX_OK) {
        x->doomed = 0;
        x->state = B_LIMBO;
        settle(m, b);
        return;
    }
    x->state = B_HELD;
    x->since_ms = (uint32_t)(m->now_ns / 1000000);
    arrive_in_policy(m, b);
    event(m, b, KVX_TIER_STORED, KVX_TIER_BY_CAPACITY);
}

void load_ended(model *m, int b, kvx_status verdict)
{
    model_block *x = &m->blocks[b];
    m->stats.loaded_blocks += verdict == KVX_OK;
    m->stats.load_failed_blocks += verdict != KVX_OK;
    if (x->state == B_HELD) {
        if (verdict == KVX_OK)
            x->moved |= m->config.write == KVX_TIER_WRITE_BACK;
        else if (verdict == KVX_REFUSED)
            remove_block(m, b, KVX_TIER_BY_REFUSAL, 0);
        else if (verdict == KVX_TAMPERED)
            remove_block(m, b, KVX_TIER_BY_TAMPERING, 0);
        else if (verdict == KVX_MISS || verdict == KVX_BUSY || verdict == KVX_STALE)
            remove_block(m, b, KVX_TIER_BY_LOSS, 0);
    }
    model_release(m, b);
}

void model_release(model *m, int b)
{
    model_block *x = &m->blocks[b];
    assert_true(x->pins > 0);
    if (--x->pins > 0)
        return;
    if (x->state == B_HELD && x->moved)
        remove_block(m, b, KVX_TIER_BY_MOVE, 0);
    else
        settle(m, b);
}

/* ---- the tier's calls ---- */

kvx_tier_match model_lookup(model *m, int first_key, uint32_t n, const kvx_tier_pin *pins)
{
    kvx_tier_match match = {0, 0};
    for (uint32_t i = 0; i < n; i++) {
        int b = model_find(m, first_key + (int)i);
        if (b == MODEL_NONE)
            break;
        if (match.n_pending > 0 || m->blocks[b].state != B_HELD) {
            match.n_pending++;
            continue;
        }
        use(m, b);
        if (pins) {
            m->blocks[b].pins++;
            assert_true(m->blocks[b].pin == 0 || m->blocks[b].pin == pins[i]);
            m->blocks[b].pin = pins[i];
        }
        match.n_hits++;
    }
    m->stats.lookups++;
    m->stats.lookup_blocks += n;
    m->stats.hit_blocks += match.n_hits;
    m->stats.pending_blocks += match.n_pending;
    m->stats.miss_blocks += n - match.n_hits - match.n_pending;
    return match;
}

int model_pinned(const model *m, kvx_tier_pin pin)
{
    for (int b = 0; b < (int)m->config.n_blocks; b++)
        if (m->blocks[b].pins > 0 && m->blocks[b].pin == pin)
            return b;
    return MODEL_NONE;
}

static int is_wanted(model *m, kvx_tier_occasion occasion, int key)
{
    if (m->config.write == KVX_TIER_WRITE_THROUGH)
        return 1;
    if (m->config.write == KVX_TIER_WRITE_BACK)
        return occasion == KVX_TIER_LEAVING;
    if (occasion == KVX_TIER_USED) {
        ghost_add(m, key);
        m->ghost_uses[key]++;
    }
    return list_find(&m->ghosts, key) != MODEL_NONE && m->ghost_uses[key] >= (int)m->config.selective_hits;
}

static kvx_tier_outcome offer_known(model *m, kvx_tier_occasion occasion, int b)
{
    model_block *x = &m->blocks[b];
    if (x->state != B_HELD)
        return KVX_TIER_JOINED;
    if (occasion == KVX_TIER_LEAVING) {
        x->moved = 0;
    } else if (m->config.write == KVX_TIER_WRITE_BACK) {
        if (x->pins > 0)
            x->moved = 1;
        else
            remove_block(m, b, KVX_TIER_BY_MOVE, 0);
        return KVX_TIER_SKIPPED;
    } else {
        use(m, b);
    }
    return KVX_TIER_HELD;
}

static uint32_t records_in_use(const model *m)
{
    uint32_t n = (uint32_t)m->queue.n;
    for (uint32_t i = 0; i < FAKE_BATCHES; i++)
        n += m->batches[i].running ? (uint32_t)m->batches[i].blocks.n : 0;
    return n;
}

static kvx_tier_outcome offer(model *m, kvx_tier_occasion occasion, int key, uint32_t gpu)
{
    int b = model_find(m, key);
    if (b != MODEL_NONE)
        return offer_known(m, occasion, b);
    if (!is_wanted(m, occasion, key))
        return KVX_TIER_SKIPPED;
    if (records_in_use(m) == m->config.max_stores)
        return KVX_TIER_NO_ROOM;
    b = take(m, key);
    if (b == MODEL_NONE)
        return KVX_TIER_NO_ROOM;
    m->blocks[b].gpu = gpu;
    list_add(&m->queue, b);
    return KVX_TIER_QUEUED;
}

kvx_tier_outcome model_offer(model *m, kvx_tier_occasion occasion, int key, uint32_t gpu)
{
    kvx_tier_outcome outcome = offer(m, occasion, key, gpu);
    uint64_t *counters[] = {NULL,
                            &m->stats.queued_blocks,
                            &m->stats.joined_blocks,
                            &m->stats.held_blocks,
                            &m->stats.skipped_blocks,
                            &m->stats.no_room_blocks};
    ++*counters[outcome];
    m->stats.offered_blocks++;
    return outcome;
}

kvx_tier_drop_answer model_may_drop(const model *m, int key, uint32_t gpu)
{
    for (int i = 0; i < m->queue.n; i++)
        if (m->blocks[m->queue.item[i]].gpu == gpu)
            return KVX_TIER_WAIT;
    for (uint32_t t = 0; t < FAKE_BATCHES; t++)
        for (int i = 0; m->batches[t].running && !m->batches[t].released && i < m->batches[t].blocks.n; i++)
            if (m->blocks[m->batches[t].blocks.item[i]].gpu == gpu)
                return KVX_TIER_WAIT;
    int b = model_find(m, key);
    return b != MODEL_NONE && m->blocks[b].state == B_HELD && !m->blocks[b].moved ? KVX_TIER_KEEP : KVX_TIER_LOSE;
}

void model_drop(model *m, int key)
{
    int b = model_find(m, key);
    if (b != MODEL_NONE)
        remove_block(m, b, KVX_TIER_BY_CALLER, 0);
}

void model_forget(model *m, uint32_t tenant)
{
    for (int b = 0; b < (int)m->config.n_blocks; b++) {
        model_block *x = &m->blocks[b];
        if (x->state == B_FREE || x->state == B_DISCARDING || model_tenant(x->key) != tenant)
            continue;
        if (x->state == B_LIMBO || x->doomed)
            x->discard = 1;
        else
            remove_block(m, b, KVX_TIER_BY_ERASURE, 1);
    }
}
