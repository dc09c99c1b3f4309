/* SPDX-License-Identifier: Apache-2.0 */
/* Records of stores: the queue of those that wait, and the table that finds them by the GPU block they read. */
#include "tier.h"

static uint32_t *alike(const kvx_tier *tier, const kvx_layout *layout, uint32_t block)
{
    uint64_t hash = ((uint64_t)(uintptr_t)layout >> 4 ^ (uint64_t)block << 32 ^ block) * 0x9e3779b97f4a7c15u;
    return &tier->alike[(uint32_t)(hash >> 32) & (tier->n_alike - 1)];
}

uint32_t kvx_tier_enqueue(kvx_tier *tier, uint32_t entry, const kvx_tier_block *block)
{
    uint32_t record = tier->free_records.first, *first = alike(tier, block->layout, block->block);
    kvx_tier_record *r = &tier->records[record];
    tier->free_records.first = r->next;
    tier->free_records.n--;
    uint32_t prev = tier->queue.n ? tier->queue.last : KVX_TIER_NONE;
    *r = (kvx_tier_record){.layout = block->layout,
                           .since_ns = tier->now_ns,
                           .block = block->block,
                           .entry = entry,
                           .prev = prev,
                           .next = KVX_TIER_NONE,
                           .next_alike = *first,
                           .batch = KVX_TIER_NONE};
    *first = record;
    kvx_tier_list_push(&tier->queue, record, prev == KVX_TIER_NONE ? NULL : &tier->records[prev].next);
    tier->index.links[entry].prev = record;
    return record;
}

static void forget_record(kvx_tier *tier, uint32_t record)
{
    kvx_tier_record *r = &tier->records[record];
    uint32_t *place = alike(tier, r->layout, r->block);
    while (*place != record)
        place = &tier->records[*place].next_alike;
    *place = r->next_alike;
    r->next = tier->free_records.first;
    tier->free_records.first = record;
    tier->free_records.n++;
}

static void leave_queue(kvx_tier *tier, uint32_t record)
{
    kvx_tier_record *r = &tier->records[record];
    if (r->prev != KVX_TIER_NONE)
        tier->records[r->prev].next = r->next;
    else
        tier->queue.first = r->next;
    if (r->next != KVX_TIER_NONE)
        tier->records[r->next].prev = r->prev;
    else
        tier->queue.last = r->prev;
    tier->queue.n--;
    if (tier->n_hurried > tier->queue.n)
        tier->n_hurried = tier->queue.n;
}

void kvx_tier_cancel(kvx_tier *tier, uint32_t record)
{
    leave_queue(tier, record);
    forget_record(tier, record);
}

void kvx_tier_to_batch(kvx_tier *tier, uint32_t batch, uint32_t max)
{
    kvx_tier_batch *b = &tier->batches[batch];
    b->records = (kvx_tier_list){KVX_TIER_NONE, KVX_TIER_NONE, 0};
    b->released = b->n_hurried = 0;
    while (tier->queue.n > 0 && b->records.n < max) {
        uint32_t record = tier->queue.first;
        uint32_t last = b->records.n ? b->records.last : record;
        if (tier->n_hurried > 0) {
            tier->n_hurried--;
            b->n_hurried++;
        }
        leave_queue(tier, record);
        tier->records[record].batch = batch;
        tier->records[record].prev = last;
        tier->records[record].next = KVX_TIER_NONE;
        tier->index.entries[tier->records[record].entry].state = KVX_TIER_STORING;
        kvx_tier_list_push(&b->records, record, &tier->records[last].next);
    }
    tier->n_running_batches++;
}

void kvx_tier_end_batch(kvx_tier *tier, uint32_t batch)
{
    kvx_tier_batch *b = &tier->batches[batch];
    uint32_t record = b->records.first;
    for (uint32_t i = 0; i < b->records.n; i++) {
        uint32_t next = tier->records[record].next;
        forget_record(tier, record);
        record = next;
    }
    b->records.n = 0;
    tier->n_running_batches--;
}

static void return_to_queue(kvx_tier *tier, uint32_t record)
{
    kvx_tier_record *r = &tier->records[record];
    r->batch = KVX_TIER_NONE;
    r->prev = KVX_TIER_NONE;
    r->next = tier->queue.n ? tier->queue.first : KVX_TIER_NONE;
    if (tier->queue.n++ > 0)
        tier->records[r->next].prev = record;
    else
        tier->queue.last = record;
    tier->queue.first = record;
    tier->index.entries[r->entry].state = KVX_TIER_QUEUED_STATE;
}

/* The youngest first, each before what waits already. Those dropped in between are gone. */
void kvx_tier_undo_batch(kvx_tier *tier, uint32_t batch)
{
    kvx_tier_batch *b = &tier->batches[batch];
    uint32_t record = b->records.last;
    for (uint32_t i = 0; i < b->records.n; i++) {
        kvx_tier_record *r = &tier->records[record];
        uint32_t prev = r->prev;
        if (tier->index.entries[r->entry].flags & KVX_TIER_DOOMED) {
            kvx_tier_fail(tier, r->entry);
            forget_record(tier, record);
        } else {
            return_to_queue(tier, record);
        }
        record = prev;
    }
    tier->n_hurried += b->n_hurried;
    if (tier->n_hurried > tier->queue.n)
        tier->n_hurried = tier->queue.n;
    b->records.n = 0;
    tier->n_running_batches--;
}

int kvx_tier_source_busy(const kvx_tier *tier, const kvx_tier_block *block)
{
    uint32_t record = *alike(tier, block->layout, block->block);
    for (; record != KVX_TIER_NONE; record = tier->records[record].next_alike) {
        const kvx_tier_record *r = &tier->records[record];
        int released = r->batch != KVX_TIER_NONE && tier->batches[r->batch].released;
        if (r->layout == block->layout && r->block == block->block && !released)
            return 1;
    }
    return 0;
}
