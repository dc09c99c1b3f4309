/* SPDX-License-Identifier: Apache-2.0 */
/* Store, restore and discard, side by side: check everything, take a ticket, pin the slots, hand the batch to the
 * engine. What fails on the way is undone in reverse order, so a refused call changed nothing. */
#include <string.h>

#include "context.h"

/* One call being built. Guarded by ctx->submit. */
typedef struct call {
    kvx_ctx *ctx;
    enum kvx_op op;
    uint32_t n;
    const kvx_pair *pairs; /* NULL for discards, whose slots are copied to ctx->handles by the caller */
    kvx_options options;
    uint64_t ticket, first;
} call;

static int known_layout(const kvx_ctx *ctx, const kvx_layout *layout)
{
    uint32_t i;
    if (!layout)
        return 0;
    for (i = 0; i < ctx->max_layouts; i++)
        if (ctx->layouts[i] == layout)
            return 1;
    return 0;
}

static kvx_status check_options(const kvx_options *options, enum kvx_op op)
{
    if (options->hints & ~(uint32_t)(KVX_HINT_IDLE | KVX_HINT_NO_JOIN))
        return kvx_note(KVX_INVALID, "kvx_options.hints has unknown bits: 0x%x", options->hints);
    if (op == KVX_OP_STORE && (options->n_segment_events || options->n_flags))
        return kvx_note(KVX_INVALID, "segment events and flags are for restores");
    if (op == KVX_OP_RESTORE && options->released_event)
        return kvx_note(KVX_INVALID, "released_event is for stores; use done_event");
    if (options->n_segment_events > KVX_UNITS_LIMIT || options->n_flags > KVX_UNITS_LIMIT)
        return kvx_note(KVX_INVALID, "more than %u segment events or flags", KVX_UNITS_LIMIT);
    if (options->n_segment_events && !options->segment_events)
        return kvx_note(KVX_INVALID, "segment_events is NULL");
    if (options->n_flags && (!options->dev_flags || (uintptr_t)options->dev_flags % sizeof(uint32_t)))
        return kvx_note(KVX_INVALID, "dev_flags is NULL or misaligned");
    return KVX_OK;
}

/* Starts a new generation of marks: a mark equal to ctx->call was set by this call. */
static void next_call(kvx_ctx *ctx)
{
    uint32_t i;
    if (++ctx->call != 0)
        return;
    memset(ctx->slot_marks, 0, ctx->view->n_slots * sizeof *ctx->slot_marks);
    for (i = 0; i < ctx->max_layouts; i++)
        if (ctx->layouts[i])
            memset(ctx->layouts[i]->block_marks, 0,
                   ctx->layouts[i]->geometry.n_blocks * sizeof *ctx->layouts[i]->block_marks);
    ctx->call = 1;
}

static kvx_status check_slot(const kvx_ctx *ctx, kvx_slot slot, uint32_t i)
{
    if (slot.slot_class >= ctx->view->n_classes || slot.index >= ctx->view->classes[slot.slot_class].n_slots)
        return kvx_note(KVX_INVALID, "pair %u: no slot %u in class %u", i, slot.index, slot.slot_class);
    return KVX_OK;
}

static kvx_status check_pair(const kvx_ctx *ctx, const kvx_pair *pair, uint32_t i)
{
    const kvx_dev_class *slot_class;
    const kvx_dev_layout *geometry = &pair->layout->geometry;
    KVX_TRY(check_slot(ctx, pair->slot, i));
    slot_class = &ctx->view->classes[pair->slot.slot_class];
    if (pair->block >= geometry->n_blocks)
        return kvx_note(KVX_INVALID, "pair %u: block %u of %u", i, pair->block, geometry->n_blocks);
    if (pair->tenant >= ctx->n_tenants)
        return kvx_note(KVX_INVALID, "pair %u: tenant %u of %u", i, pair->tenant, ctx->n_tenants);
    if (geometry->sealed_bytes > slot_class->slot_bytes || geometry->n_segments > slot_class->max_units)
        return kvx_note(KVX_INVALID, "pair %u: the layout needs %u bytes in %u units, class %u has %u in %u", i,
                        geometry->sealed_bytes, geometry->n_segments, pair->slot.slot_class, slot_class->slot_bytes,
                        slot_class->max_units);
    return KVX_OK;
}

static uint32_t flat_of(const kvx_ctx *ctx, kvx_slot slot)
{
    return ctx->view->classes[slot.slot_class].first_slot + slot.index;
}

/* A store may not name a slot twice, a restore not a block twice: both would race with themselves. */
static kvx_status check_duplicate(kvx_ctx *ctx, enum kvx_op op, const kvx_pair *pair, uint32_t i)
{
    uint32_t *mark =
        op == KVX_OP_RESTORE ? &pair->layout->block_marks[pair->block] : &ctx->slot_marks[flat_of(ctx, pair->slot)];
    if (*mark == ctx->call)
        return kvx_note(KVX_INVALID, "pair %u names a %s a second time", i, op == KVX_OP_RESTORE ? "block" : "slot");
    *mark = ctx->call;
    return KVX_OK;
}

static kvx_status check_pairs(const call *c)
{
    const kvx_layout *last = NULL;
    uint32_t i;
    for (i = 0; i < c->n; i++) {
        const kvx_pair *pair = &c->pairs[i];
        if (pair->layout != last && !known_layout(c->ctx, pair->layout))
            return kvx_note(KVX_INVALID, "pair %u: the layout is not one of this context", i);
        last = pair->layout;
        KVX_TRY(check_pair(c->ctx, pair, i));
        KVX_TRY(check_duplicate(c->ctx, c->op, pair, i));
        c->ctx->handles[i] = pair->slot;
    }
    return KVX_OK;
}

/* Before their stores: tenants follow their keys. */
static void serve_tenants(const call *c)
{
    uint32_t i, last = UINT32_MAX;
    for (i = 0; i < c->n; i++) {
        if (c->pairs[i].tenant != last)
            kvx_tenants_serve(c->ctx, c->pairs[i].tenant);
        last = c->pairs[i].tenant;
    }
}

static kvx_status check_discards(const call *c)
{
    uint32_t i;
    for (i = 0; i < c->n; i++) {
        kvx_pair pair = {.slot = c->ctx->handles[i]};
        KVX_TRY(check_slot(c->ctx, pair.slot, i));
        KVX_TRY(check_duplicate(c->ctx, c->op, &pair, i));
    }
    return KVX_OK;
}

/* Describes the batch in private memory, then lets reapers see it. */
static void describe(const call *c, int wanted)
{
    kvx_ctx *ctx = c->ctx;
    kvx_ticket_state *state = &ctx->tickets[c->ticket & ((1u << KVX_TICKET_PLACE_BITS) - 1)];
    uint32_t i;
    pthread_mutex_lock(&ctx->book);
    for (i = 0; i < c->n; i++) {
        kvx_entry_state *entry = &ctx->entries[(c->first + i) % ctx->max_pairs];
        memset(entry, 0, sizeof *entry);
        entry->flat = ctx->flats[i];
        if (!c->pairs)
            continue;
        entry->layout = (uint8_t)c->pairs[i].layout->index;
        entry->has_layout = 1;
        ctx->layouts[entry->layout]->n_running++;
    }
    state->cookie = c->options.cookie;
    state->wanted = wanted != 0;
    state->phase = KVX_TICKET_RUNNING;
    pthread_mutex_unlock(&ctx->book);
}

static void undescribe(const call *c)
{
    uint32_t i;
    pthread_mutex_lock(&c->ctx->book);
    for (i = 0; c->pairs && i < c->n; i++)
        c->ctx->layouts[c->pairs[i].layout->index]->n_running--;
    pthread_mutex_unlock(&c->ctx->book);
}

/* Fills the 16-byte pairs and finds the newest batch of the other direction that still uses one of the slots. */
static uint64_t build_work(const call *c)
{
    kvx_ctx *ctx = c->ctx;
    uint64_t after = 0;
    uint32_t i;
    for (i = 0; i < c->n; i++) {
        uint32_t flat = ctx->flats[i];
        uint64_t other = c->op == KVX_OP_RESTORE ? ctx->last_store[flat] : ctx->last_restore[flat];
        kvx_work_pair *work = &ctx->work[i];
        memset(work, 0, sizeof *work);
        work->slot = flat;
        work->generation = ctx->handles[i].generation;
        work->refusal = c->op == KVX_OP_RESTORE ? ctx->refusals[i] : 0;
        if (c->pairs) {
            work->block = c->pairs[i].block;
            work->layout = (uint8_t)c->pairs[i].layout->index;
            work->tenant = (uint16_t)c->pairs[i].tenant;
        }
        if (other > after)
            after = other;
    }
    return kvx_ticket_running(ctx, after) ? after : 0;
}

static void remember_slots(const call *c)
{
    uint64_t *last = c->op == KVX_OP_RESTORE ? c->ctx->last_restore : c->ctx->last_store;
    uint32_t i;
    for (i = 0; i < c->n; i++)
        last[c->ctx->flats[i]] = c->ticket;
}

static kvx_status submit_batch(const call *c)
{
    kvx_ctx *ctx = c->ctx;
    const uint64_t place_mask = (1u << KVX_TICKET_PLACE_BITS) - 1;
    kvx_batch batch = {.op = c->op,
                       .n = c->n,
                       .first_entry = (uint32_t)(c->first % ctx->max_pairs),
                       .ticket_index = (uint32_t)(c->ticket & place_mask),
                       .ticket = c->ticket,
                       .store_id = ctx->next_store_id,
                       .pairs = ctx->work,
                       .options = &c->options};
    batch.after = build_work(c);
    batch.after_index = (uint32_t)(batch.after & place_mask);
    if (c->op != KVX_OP_RESTORE)
        ctx->next_store_id += 2;
    return ctx->ops->submit(ctx->engine, &batch);
}

/* Checked arguments in, accepted batch out. */
static kvx_status run(call *c, kvx_ticket *ticket)
{
    kvx_ctx *ctx = c->ctx;
    kvx_pool_pin pin = {.owner = ctx->owner,
                        .writing = c->op != KVX_OP_RESTORE,
                        .n = c->n,
                        .slots = ctx->handles,
                        .stride = sizeof *ctx->handles,
                        .flat = ctx->flats,
                        .refusals = ctx->refusals};
    kvx_status status = kvx_ticket_take(ctx, c->op, c->n, &c->ticket, &c->first);
    if (status != KVX_OK)
        return status;
    status = kvx_pool_pin_slots(ctx->pool, &pin);
    if (status != KVX_OK)
        goto untake;
    describe(c, ticket != NULL);
    status = submit_batch(c);
    if (status == KVX_DEVICE_LOST) {
        /* Half of the batch may be on its way: the slots stay pinned until the context is destroyed. */
        atomic_store(&ctx->lost, 1);
        return status;
    }
    if (status != KVX_OK)
        goto undescribe_and_unpin;
    remember_slots(c);
    if (ticket)
        *ticket = c->ticket;
    return KVX_OK;
undescribe_and_unpin:
    undescribe(c);
    kvx_pool_pin_undo(ctx->pool, &pin);
untake:
    kvx_ticket_untake(ctx, c->ticket);
    return status;
}

static kvx_status check_call(kvx_ctx *ctx, uint32_t n, const void *array)
{
    KVX_TRY(kvx_ctx_usable(ctx));
    if (n && !array)
        return kvx_note(KVX_INVALID, "n is %u and the array is NULL", n);
    if (n > ctx->max_pairs)
        return kvx_note(KVX_INVALID, "n is %u, the context was created for max_pairs %u", n, ctx->max_pairs);
    return KVX_OK;
}

static kvx_status transfer(enum kvx_op op, call *c, const kvx_options *options, kvx_ticket *ticket)
{
    const kvx_options fallback = KVX_OPTIONS_INIT;
    kvx_status status;
    KVX_TRY(check_call(c->ctx, c->n, c->pairs));
    KVX_TRY(kvx_copy_sized(&c->options, sizeof c->options, options ? options : &fallback, "kvx_options"));
    KVX_TRY(check_options(&c->options, op));
    c->op = op;
    pthread_mutex_lock(&c->ctx->submit);
    next_call(c->ctx);
    status = check_pairs(c);
    if (status == KVX_OK && op == KVX_OP_STORE)
        serve_tenants(c);
    if (status == KVX_OK)
        status = run(c, ticket);
    pthread_mutex_unlock(&c->ctx->submit);
    return status;
}

kvx_status kvx_store(kvx_ctx *ctx, uint32_t n, const kvx_pair *pairs, const kvx_options *options, kvx_ticket *ticket)
{
    call c = {.ctx = ctx, .n = n, .pairs = pairs};
    return transfer(KVX_OP_STORE, &c, options, ticket);
}

kvx_status kvx_restore(kvx_ctx *ctx, uint32_t n, const kvx_pair *pairs, const kvx_options *options, kvx_ticket *ticket)
{
    call c = {.ctx = ctx, .n = n, .pairs = pairs};
    if (!ticket)
        return kvx_note(KVX_INVALID, "a restore needs a ticket: its verdicts must be read");
    return transfer(KVX_OP_RESTORE, &c, options, ticket);
}

kvx_status kvx_discard(kvx_ctx *ctx, uint32_t n, const kvx_slot *slots, kvx_ticket *ticket)
{
    call c = {.ctx = ctx, .op = KVX_OP_DISCARD, .n = n, .options = KVX_OPTIONS_INIT};
    kvx_status status;
    KVX_TRY(check_call(ctx, n, slots));
    pthread_mutex_lock(&ctx->submit);
    next_call(ctx);
    if (n)
        memcpy(ctx->handles, slots, n * sizeof *slots);
    status = check_discards(&c);
    if (status == KVX_OK)
        status = run(&c, ticket);
    pthread_mutex_unlock(&ctx->submit);
    return status;
}
