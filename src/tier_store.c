/* SPDX-License-Identifier: Apache-2.0 */
/* Stores in the background: when a batch is due, starting it, and what comes of it. Restores go first: while one is
 * running or waiting, a batch starts only when its oldest block has waited too long, and only one at a time. */
#include "tier.h"

/* Called with `book` held. `verdicts` NULL: `all` is the verdict of each. */
static void end_stores(kvx_tier *tier, uint32_t batch, const kvx_status *verdicts, kvx_status all)
{
    const kvx_tier_list *records = &tier->batches[batch].records;
    uint32_t record = records->first;
    for (uint32_t i = 0; i < records->n; i++) {
        const kvx_tier_record *r = &tier->records[record];
        kvx_status verdict = verdicts ? verdicts[i] : all;
        record = r->next;
        if (verdict == KVX_OK) {
            tier->stats.stored_blocks++;
            tier->stats.stored_bytes += r->bytes;
            kvx_tier_arrive(tier, r->entry);
            continue;
        }
        tier->latched |= verdict == KVX_LATCHED;
        tier->stats.store_failed_blocks++;
        kvx_tier_fail(tier, r->entry);
    }
    kvx_tier_end_batch(tier, batch);
}

static void collect_batch(kvx_tier *tier, uint32_t batch)
{
    kvx_tier_batch *b = &tier->batches[batch];
    kvx_result result;
    kvx_status status = kvx_poll(tier->config.ctx, b->ticket, &result, b->records.n, tier->store_verdicts);
    pthread_mutex_lock(&tier->book);
    if (status == KVX_PENDING)
        b->released |= result.released;
    else
        end_stores(tier, batch, status == KVX_OK ? tier->store_verdicts : NULL, status);
    pthread_mutex_unlock(&tier->book);
}

void kvx_tier_collect_stores(kvx_tier *tier)
{
    for (uint32_t i = 0; i < tier->config.max_batches; i++)
        if (tier->batches[i].records.n > 0)
            collect_batch(tier, i);
}

/* With `book` held. */
static int is_due(const kvx_tier *tier)
{
    const kvx_tier_config *config = &tier->config;
    if (tier->queue.n == 0 || tier->n_running_batches == config->max_batches || tier->now_ns < tier->next_start_ns)
        return 0;
    uint64_t waited = tier->now_ns - tier->records[tier->queue.first].since_ns;
    if (tier->n_running_loads > 0 || tier->prefetches.n > 0)
        return waited >= config->max_wait_ns && tier->n_running_batches == 0;
    return tier->queue.n >= config->batch_blocks || waited >= config->batch_wait_ns || tier->n_hurried > 0;
}

static uint32_t idle_batch(const kvx_tier *tier)
{
    uint32_t i = 0;
    while (tier->batches[i].records.n > 0)
        i++;
    return i;
}

static uint64_t sealed_bytes(const kvx_tier *tier, const kvx_layout *layout)
{
    uint64_t bytes = tier->config.block_bytes;
    if (tier->config.ctx)
        kvx_layout_info(layout, &bytes, NULL);
    return bytes;
}

static kvx_slot slot_of(const kvx_tier *tier, uint32_t entry)
{
    kvx_slot slot = {tier->config.slot_class, tier->config.first_slot + entry, tier->index.entries[entry].generation};
    return slot;
}

/* Fills store_pairs from a batch; returns its bytes. */
static uint64_t describe(kvx_tier *tier, const kvx_tier_list *records)
{
    uint64_t bytes = 0;
    uint32_t record = records->first;
    for (uint32_t i = 0; i < records->n; i++) {
        kvx_tier_record *r = &tier->records[record];
        kvx_pair pair = {r->layout, r->block, slot_of(tier, r->entry), tier->index.entries[r->entry].tenant};
        tier->store_pairs[i] = pair;
        r->bytes = sealed_bytes(tier, r->layout);
        bytes += r->bytes;
        record = r->next;
    }
    return bytes;
}

static kvx_status submit(kvx_tier *tier, uint32_t batch, kvx_stream stream)
{
    kvx_options options = KVX_OPTIONS_INIT;
    kvx_tier_batch *b = &tier->batches[batch];
    options.stream = stream;
    options.hints = KVX_HINT_NO_JOIN;
    return tier->config.ctx ? kvx_store(tier->config.ctx, b->records.n, tier->store_pairs, &options, &b->ticket)
                            : KVX_OK;
}

/* With `book` held. */
static void started(kvx_tier *tier, uint32_t batch, uint64_t bytes)
{
    uint64_t rate = tier->config.store_bytes_per_s;
    tier->stats.store_batches++;
    if (rate)
        tier->next_start_ns = tier->now_ns + (uint64_t)((double)bytes * 1e9 / (double)rate);
    if (!tier->config.ctx)
        end_stores(tier, batch, NULL, KVX_OK);
}

/* Without locks a block that is being stored is the pumping thread's: others only mark it as doomed. */
static kvx_status start_batch(kvx_tier *tier, uint32_t batch, kvx_stream stream)
{
    uint64_t bytes = describe(tier, &tier->batches[batch].records);
    kvx_status status = submit(tier, batch, stream);
    pthread_mutex_lock(&tier->book);
    if (status == KVX_OK)
        started(tier, batch, bytes);
    else if (status == KVX_AGAIN || status == KVX_UNSUPPORTED) /* short of tickets; a stream under capture */
        kvx_tier_undo_batch(tier, batch);
    else
        end_stores(tier, batch, NULL, status);
    pthread_mutex_unlock(&tier->book);
    return status;
}

kvx_status kvx_tier_start_stores(kvx_tier *tier, kvx_stream stream)
{
    kvx_status status = KVX_OK;
    while (status == KVX_OK) {
        uint32_t batch = 0;
        pthread_mutex_lock(&tier->book);
        int due = is_due(tier);
        if (due) {
            batch = idle_batch(tier);
            kvx_tier_to_batch(tier, batch, tier->config.batch_blocks);
        }
        pthread_mutex_unlock(&tier->book);
        if (!due)
            break;
        status = start_batch(tier, batch, stream);
    }
    return status == KVX_AGAIN ? KVX_OK : status;
}

/* With `book` held: the first of the entries that wait, into `discards`. They stay in the list. */
static uint32_t gather_discards(kvx_tier *tier)
{
    uint32_t n = 0, entry = tier->to_discard.first;
    for (; n < tier->to_discard.n && n < tier->config.batch_blocks; n++) {
        tier->discards[n] = slot_of(tier, entry);
        entry = tier->index.links[entry].next;
    }
    return n;
}

static void free_first_discards(kvx_tier *tier, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t entry = tier->to_discard.first;
        tier->to_discard.first = tier->index.links[entry].next;
        tier->to_discard.n--;
        kvx_tier_free_discarded(tier, entry);
    }
}

/* A slot is free once its discard was accepted: what is stored into it later comes after that. */
void kvx_tier_start_discards(kvx_tier *tier)
{
    for (;;) {
        pthread_mutex_lock(&tier->book);
        uint32_t n = gather_discards(tier);
        pthread_mutex_unlock(&tier->book);
        if (n == 0 || kvx_discard(tier->config.ctx, n, tier->discards, NULL) == KVX_AGAIN)
            return;
        pthread_mutex_lock(&tier->book);
        free_first_discards(tier, n);
        pthread_mutex_unlock(&tier->book);
    }
}
