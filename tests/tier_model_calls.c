/* SPDX-License-Identifier: Apache-2.0 */
/* The model: what the tier calls, loads, announcements, and the comparison. */
#include "tier_model.h"

#include <string.h>

#include "support.h"
#include "tier_model_parts.h"

/* ---- calls of the core ---- */

static void check_pair(const model *m, const kvx_pair *pair, int b, uint32_t gpu)
{
    assert_int_equal(pair->slot.index, m->config.first_slot + (uint32_t)b);
    assert_int_equal(pair->block, gpu);
    assert_int_equal(pair->tenant, model_tenant(m->blocks[b].key));
    assert_ptr_equal(pair->layout, fake_layout);
}

static int n_running_batches(const model *m)
{
    int n = 0;
    for (uint32_t i = 0; i < FAKE_BATCHES; i++)
        n += m->batches[i].running;
    return n;
}

static int n_running_loads(const model *m)
{
    int n = 0;
    for (uint32_t i = 0; i < MODEL_LOADS; i++)
        n += m->loads[i].state == L_RUNNING;
    return n;
}

static int is_due(const model *m)
{
    int running = n_running_batches(m);
    if (m->queue.n == 0 || running == (int)m->config.max_batches || m->now_ns < m->next_start_ns)
        return 0;
    uint64_t waited = m->now_ns - m->blocks[m->queue.item[0]].since_ns;
    if (n_running_loads(m) > 0 || m->prefetches.n > 0)
        return running == 0 && waited >= m->config.max_wait_ns;
    return m->queue.n >= (int)m->config.batch_blocks || waited >= m->config.batch_wait_ns || m->n_hurried > 0;
}

static void begin_batch(model *m, int tag, uint32_t n)
{
    model_batch *batch = &m->batches[tag];
    batch->running = 1;
    batch->released = 0;
    batch->blocks.n = 0;
    for (uint32_t i = 0; i < n; i++) {
        int b = m->queue.item[0];
        list_drop(&m->queue, b);
        list_add(&batch->blocks, b);
        m->blocks[b].state = B_STORING;
        m->n_hurried -= m->n_hurried > 0;
    }
}

static void end_batch(model *m, int tag, const kvx_status *verdicts, kvx_status all)
{
    model_batch *batch = &m->batches[tag];
    for (int i = 0; i < batch->blocks.n; i++)
        store_ended(m, batch->blocks.item[i], verdicts ? verdicts[i] : all);
    batch->running = 0;
}

static int on_store(void *self, kvx_status status, uint32_t n, const kvx_pair *pairs, const kvx_options *options)
{
    model *m = self;
    int tag = 0;
    assert_true(is_due(m));
    assert_int_equal(options->hints, KVX_HINT_NO_JOIN);
    assert_int_equal(n, m->queue.n < (int)m->config.batch_blocks ? (uint32_t)m->queue.n : m->config.batch_blocks);
    for (uint32_t i = 0; i < n; i++)
        check_pair(m, &pairs[i], m->queue.item[i], m->blocks[m->queue.item[i]].gpu);
    m->store_short |= status == KVX_AGAIN;
    m->store_error |= status == KVX_INVALID;
    if (status == KVX_AGAIN)
        return 0;
    while (m->batches[tag].running)
        tag++;
    begin_batch(m, tag, n);
    if (status != KVX_OK) {
        end_batch(m, tag, NULL, status);
        return 0;
    }
    m->stats.store_batches++;
    if (m->config.store_bytes_per_s)
        m->next_start_ns = m->now_ns + n * FAKE_SEALED * (1000000000u / m->config.store_bytes_per_s);
    return tag;
}

static void on_released(void *self, int tag)
{
    ((model *)self)->batches[tag].released = 1;
}

static void on_stored(void *self, int tag, const kvx_status *verdicts)
{
    end_batch(self, tag, verdicts, KVX_OK);
}

static void end_load(model *m, model_load *load, const kvx_status *verdicts, kvx_status all)
{
    for (uint32_t i = 0; i < load->n; i++) {
        load->verdicts[i] = verdicts ? verdicts[i] : all;
        load->n_failed += load->verdicts[i] != KVX_OK;
        load_ended(m, load->blocks[i], load->verdicts[i]);
    }
    if (load->state == L_RUNNING) {
        m->loading_bytes -= (uint64_t)load->n * FAKE_SEALED;
        m->stats.loaded_bytes += (uint64_t)(load->n - load->n_failed) * FAKE_SEALED;
    }
    load->state = L_ENDED;
}

/* A direct load, or the prefetch whose turn it is. */
static int on_restore(void *self, kvx_status status, uint32_t n, const kvx_pair *pairs)
{
    model *m = self;
    int direct = m->starting != MODEL_NONE, tag = direct ? m->starting : m->prefetches.item[0];
    model_load *load = &m->loads[tag];
    assert_true(direct || (m->prefetches.n > 0 && m->loading_bytes < m->config.load_bytes_in_flight));
    assert_int_equal(n, load->n);
    for (uint32_t i = 0; i < n; i++) {
        check_pair(m, &pairs[i], load->blocks[i], load->gpu[i]);
        assert_true(m->blocks[load->blocks[i]].pins > 0);
    }
    if (direct)
        return tag;
    m->prefetch_short |= status == KVX_AGAIN;
    if (status == KVX_AGAIN)
        return tag;
    list_drop(&m->prefetches, tag);
    if (status == KVX_OK) {
        m->stats.prefetched_blocks += n;
        model_load_started(m, load);
    } else {
        m->store_error = 1;
        end_load(m, load, NULL, status);
    }
    return tag;
}

static void on_restored(void *self, int tag, const kvx_status *verdicts)
{
    model *m = self;
    end_load(m, &m->loads[tag], verdicts, KVX_OK);
}

static void on_discard(void *self, kvx_status status, uint32_t n, const kvx_slot *slots)
{
    model *m = self;
    m->discard_short |= status == KVX_AGAIN;
    assert_true((int)n <= m->to_discard.n && n <= m->config.batch_blocks);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(slots[i].index, m->config.first_slot + (uint32_t)m->to_discard.item[i]);
    for (uint32_t i = 0; status != KVX_AGAIN && i < n; i++)
        free_discarded(m, m->to_discard.item[0]);
}

void model_open(model *m, const kvx_tier_config *config)
{
    const fake_observer observer = {m, on_store, on_restore, on_discard, on_released, on_stored, on_restored};
    memset(m, 0, sizeof *m);
    m->config = *config;
    m->starting = MODEL_NONE;
    fake.observer = observer;
    for (int b = 0; b < (int)config->n_blocks; b++)
        list_add(&m->free_slots, b);
}

/* ---- loads and announcements ---- */

static uint32_t nodes_in_use(const model *m)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < MODEL_LOADS; i++)
        n += m->loads[i].state == L_FREE ? 0 : m->loads[i].n;
    for (uint32_t i = 0; i < MODEL_ANNOUNCED; i++)
        n += (uint32_t)m->announced[i].blocks.n;
    return n;
}

model_load *model_load_begin(model *m, uint32_t n, const kvx_tier_target *targets)
{
    model_load *load = m->loads;
    if (nodes_in_use(m) + n > m->config.max_load_blocks)
        return NULL;
    while (load < m->loads + m->config.max_loads && load->state != L_FREE)
        load++;
    if (load == m->loads + m->config.max_loads)
        return NULL;
    memset(load, 0, sizeof *load);
    load->n = n;
    for (uint32_t i = 0; i < n; i++) {
        load->blocks[i] = model_pinned(m, targets[i].pin);
        load->keys[i] = m->blocks[load->blocks[i]].key;
        load->gpu[i] = targets[i].block;
    }
    return load;
}

void model_load_queue(model *m, model_load *load)
{
    load->state = L_QUEUED;
    list_add(&m->prefetches, (int)(load - m->loads));
}

void model_load_started(model *m, model_load *load)
{
    load->state = L_RUNNING;
    m->stats.load_batches++;
    m->loading_bytes += (uint64_t)load->n * FAKE_SEALED;
}

void model_load_collected(model *m, model_load *load)
{
    (void)m;
    load->state = L_FREE;
}

model_announced *model_announce(model *m, int first_key, uint32_t n, uint64_t until_ns)
{
    static model_announced none;
    model_announced *made = m->announced;
    list held = {0, {0}};
    uint32_t i = 0;
    int waits = 0, b;
    for (; i < n && (b = model_find(m, first_key + (int)i)) != MODEL_NONE && m->blocks[b].state == B_HELD; i++)
        list_add(&held, b);
    for (; i < n; i++)
        if ((b = model_find(m, first_key + (int)i)) != MODEL_NONE)
            waits |= m->blocks[b].state == B_QUEUED;
    while (made < m->announced + m->config.max_announced && made->blocks.n > 0)
        made++;
    int is_short = made == m->announced + m->config.max_announced ||
                   nodes_in_use(m) + (uint32_t)held.n > m->config.max_load_blocks;
    if (held.n > 0 && is_short)
        return NULL;
    if (waits)
        m->n_hurried = (uint64_t)m->queue.n;
    if (held.n == 0)
        return &none;
    made->blocks = held;
    made->until_ns = until_ns;
    for (int h = 0; h < held.n; h++)
        m->blocks[held.item[h]].pins++;
    return made;
}

void model_withdraw(model *m, model_announced *announced)
{
    for (int i = 0; i < announced->blocks.n; i++)
        model_release(m, announced->blocks.item[i]);
    announced->blocks.n = 0;
}

/* ---- the pump ---- */

void model_flush(model *m)
{
    m->n_hurried = (uint64_t)m->queue.n;
}

void model_pump_begin(model *m, uint64_t now_ns)
{
    m->now_ns = now_ns;
    m->store_short = m->discard_short = m->prefetch_short = m->store_error = 0;
    for (uint32_t i = 0; i < MODEL_ANNOUNCED; i++)
        if (m->announced[i].blocks.n > 0 && m->announced[i].until_ns <= now_ns)
            model_withdraw(m, &m->announced[i]);
}

/* Nothing that could have begun was left. */
void model_pump_end(model *m)
{
    assert_true(m->store_short || m->store_error || !is_due(m));
    assert_true(m->discard_short || m->to_discard.n == 0);
    assert_true(m->prefetch_short || m->prefetches.n == 0 || m->loading_bytes >= m->config.load_bytes_in_flight);
}

int model_idle(const model *m)
{
    return m->queue.n == 0 && m->prefetches.n == 0 && m->to_discard.n == 0 && n_running_batches(m) == 0 &&
           n_running_loads(m) == 0;
}

/* ---- comparison ---- */

static void fill_now(model *m)
{
    kvx_tier_stats *s = &m->stats;
    s->size = sizeof *s;
    s->capacity = m->config.n_blocks;
    s->blocks_now = s->pending_now = s->leaving_now = s->free_now = s->pinned_now = s->announced_now = 0;
    for (uint32_t b = 0; b < m->config.n_blocks; b++) {
        const model_block *x = &m->blocks[b];
        uint32_t pending = (x->state == B_QUEUED || x->state == B_STORING) && !x->doomed;
        s->blocks_now += x->state == B_HELD;
        s->pending_now += pending;
        s->leaving_now += x->doomed || x->state == B_LIMBO || x->state == B_DISCARDING;
        s->free_now += x->state == B_FREE;
        s->pinned_now += x->pins > 0;
    }
    s->bytes_now = s->blocks_now * 4096;
    for (uint32_t i = 0; i < MODEL_ANNOUNCED; i++)
        s->announced_now += m->announced[i].blocks.n > 0;
}

static void compare_events(model *m, kvx_tier *tier)
{
    static kvx_tier_event events[MODEL_LIST];
    uint32_t n;
    uint64_t n_lost;
    expect_ok(kvx_tier_events(tier, MODEL_LIST, events, &n, &n_lost));
    assert_int_equal(n_lost, 0);
    assert_int_equal(n, m->n_events);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(events[i].kind, m->events[i].kind);
        assert_int_equal(events[i].cause, m->events[i].cause);
        assert_int_equal(events[i].sequence, m->events[i].sequence);
        assert_int_equal(events[i].tenant, m->events[i].tenant);
        assert_memory_equal(&events[i].hash, &m->events[i].hash, sizeof events[i].hash);
    }
    m->n_events = 0;
}

void model_compare(model *m, kvx_tier *tier)
{
    kvx_tier_stats stats = {.size = sizeof stats};
    compare_events(m, tier);
    expect_ok(kvx_tier_stats_get(tier, &stats));
    fill_now(m);
    assert_memory_equal(&stats, &m->stats, offsetof(kvx_tier_stats, memory_bytes));
    assert_int_equal(stats.blocks_now + stats.pending_now + stats.leaving_now + stats.free_now, stats.capacity);
    for (uint32_t t = 0; t < MODEL_TENANTS; t++) {
        uint32_t n;
        expect_ok(kvx_tier_tenant_blocks(tier, t, &n));
        assert_int_equal(n, held_by(m, t));
    }
    expect_status(kvx_tier_idle(tier), model_idle(m) ? KVX_OK : KVX_PENDING);
}
