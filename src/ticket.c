/* SPDX-License-Identifier: Apache-2.0 */
/* Tickets: from the result words of the engine to verdicts, released slots and counters. Verdicts are kept in private
 * memory once their word was believed. Nothing here calls CUDA except the engine's health check of a long wait. */
#include <sched.h>
#include <string.h>
#include <time.h>

#include "context.h"

static uint32_t place_of(uint64_t ticket)
{
    return (uint32_t)(ticket & ((1u << KVX_TICKET_PLACE_BITS) - 1));
}

static kvx_entry_state *entry_of(kvx_ctx *ctx, const kvx_ticket_state *state, uint32_t i)
{
    return &ctx->entries[(state->first + i) % ctx->max_pairs];
}

/* NULL if the ticket is unknown, or if its entries have been used for later batches. */
static kvx_ticket_state *find(kvx_ctx *ctx, uint64_t ticket)
{
    uint32_t place = place_of(ticket);
    kvx_ticket_state *state;
    if (ticket == 0 || place >= ctx->max_tickets)
        return NULL;
    state = &ctx->tickets[place];
    if (state->ticket != ticket || state->phase == KVX_TICKET_TAKEN)
        return NULL;
    if (state->phase == KVX_TICKET_FREE && ctx->next_entry - state->first > ctx->max_pairs)
        return NULL;
    return state;
}

static void set_free(kvx_ctx *ctx, kvx_ticket_state *state)
{
    uint32_t tail = (ctx->free_head + ctx->n_free_places) % ctx->max_tickets;
    state->phase = KVX_TICKET_FREE;
    ctx->free_places[tail] = place_of(state->ticket);
    ctx->n_free_places++;
}

static void count_verdict(kvx_ctx *ctx, kvx_ticket_state *state, const kvx_entry_state *entry)
{
    kvx_status status = kvx_verdict_status(entry->verdict);
    uint64_t bytes = entry->has_layout ? ctx->layouts[entry->layout]->geometry.sealed_bytes : 0;
    if (status == KVX_OK) {
        state->n_ok++;
        ctx->counts.stored_blocks += state->op == KVX_OP_STORE;
        ctx->counts.stored_bytes += state->op == KVX_OP_STORE ? bytes : 0;
        ctx->counts.restored_blocks += state->op == KVX_OP_RESTORE;
        ctx->counts.restored_bytes += state->op == KVX_OP_RESTORE ? bytes : 0;
        return;
    }
    ctx->counts.failed_blocks++;
    if (status == KVX_TAMPERED)
        ctx->counts.tampered_blocks++;
    if (status == KVX_LATCHED || ctx->counts.tampered_blocks > ctx->tamper_budget)
        atomic_store(&ctx->latched, 1);
}

static void release_entry(kvx_ctx *ctx, const kvx_entry_state *entry)
{
    if (entry->has_layout)
        ctx->layouts[entry->layout]->n_running--;
    kvx_pool_unpin(ctx->pool, 1, &entry->flat);
}

/* Takes in the verdicts of one batch, in order, as far as they have arrived. */
static void reap_one(kvx_ctx *ctx, kvx_ticket_state *state)
{
    while (state->n_seen < state->n) {
        kvx_entry_state *entry = entry_of(ctx, state, state->n_seen);
        uint32_t place = (uint32_t)((state->first + state->n_seen) % ctx->max_pairs);
        uint32_t verdict = ctx->ops->poll(ctx->engine, state->ticket, place, state->n_seen);
        if (verdict == KVX_VERDICT_NONE)
            return;
        entry->verdict = (uint8_t)verdict;
        count_verdict(ctx, state, entry);
        if (state->first_error == KVX_OK)
            state->first_error = kvx_verdict_status(verdict);
        release_entry(ctx, entry);
        state->n_seen++;
    }
    state->phase = KVX_TICKET_ENDED;
    if (!state->wanted)
        set_free(ctx, state);
}

void kvx_ticket_reap(kvx_ctx *ctx)
{
    uint32_t place;
    for (place = 0; place < ctx->max_tickets; place++)
        if (ctx->tickets[place].phase == KVX_TICKET_RUNNING)
            reap_one(ctx, &ctx->tickets[place]);
}

/* Running number of the oldest entry that is still needed. */
static uint64_t oldest_entry(const kvx_ctx *ctx)
{
    uint64_t oldest = ctx->next_entry;
    uint32_t place;
    for (place = 0; place < ctx->max_tickets; place++)
        if (ctx->tickets[place].phase != KVX_TICKET_FREE && ctx->tickets[place].first < oldest)
            oldest = ctx->tickets[place].first;
    return oldest;
}

kvx_status kvx_ticket_take(kvx_ctx *ctx, enum kvx_op op, uint32_t n, uint64_t *ticket, uint64_t *first)
{
    kvx_status status = KVX_OK;
    kvx_ticket_state *state;
    uint32_t place;
    pthread_mutex_lock(&ctx->book);
    kvx_ticket_reap(ctx);
    if (ctx->n_free_places == 0 || ctx->next_entry + n - oldest_entry(ctx) > ctx->max_pairs) {
        status = kvx_note(KVX_AGAIN, "tickets or pairs are short: wait for and collect earlier tickets");
    } else {
        place = ctx->free_places[ctx->free_head];
        ctx->free_head = (ctx->free_head + 1) % ctx->max_tickets;
        ctx->n_free_places--;
        state = &ctx->tickets[place];
        memset(state, 0, sizeof *state);
        state->ticket = ctx->next_serial++ << KVX_TICKET_PLACE_BITS | place;
        state->op = op;
        state->n = n;
        state->first = ctx->next_entry;
        state->phase = KVX_TICKET_TAKEN;
        ctx->next_entry += n;
        *ticket = state->ticket;
        *first = state->first;
    }
    pthread_mutex_unlock(&ctx->book);
    return status;
}

void kvx_ticket_untake(kvx_ctx *ctx, uint64_t ticket)
{
    kvx_ticket_state *state = &ctx->tickets[place_of(ticket)];
    pthread_mutex_lock(&ctx->book);
    if (ctx->next_entry == state->first + state->n) /* calls that go on and on being refused use up no places */
        ctx->next_entry = state->first;
    state->n = 0;
    if (state->phase != KVX_TICKET_FREE) /* an empty batch that nobody asks for may have been reaped already */
        set_free(ctx, state);
    state->ticket = 0;
    pthread_mutex_unlock(&ctx->book);
}

int kvx_ticket_running(kvx_ctx *ctx, uint64_t ticket)
{
    const kvx_ticket_state *state;
    int running;
    if (ticket == 0)
        return 0;
    pthread_mutex_lock(&ctx->book);
    state = &ctx->tickets[place_of(ticket)];
    running = state->ticket == ticket && state->phase == KVX_TICKET_RUNNING;
    pthread_mutex_unlock(&ctx->book);
    return running;
}

static void fill_result(kvx_ctx *ctx, const kvx_ticket_state *state, kvx_result *result)
{
    int ended = state->phase != KVX_TICKET_RUNNING;
    result->cookie = state->cookie;
    result->n = state->n;
    result->n_ok = state->n_ok;
    result->first_error = state->first_error;
    result->released = 1;
    if (!ended && state->op == KVX_OP_STORE)
        result->released = ctx->ops->released(ctx->engine, state->ticket, place_of(state->ticket)) != 0;
}

static kvx_status poll_locked(kvx_ctx *ctx, kvx_ticket ticket, kvx_result *result, uint32_t n_verdicts,
                              kvx_status *verdicts)
{
    kvx_ticket_state *state = find(ctx, ticket);
    uint32_t i;
    if (!state)
        return kvx_note(KVX_UNKNOWN, "no such ticket, or its place was reused");
    if (state->phase == KVX_TICKET_RUNNING)
        reap_one(ctx, state);
    if (state->phase == KVX_TICKET_RUNNING && atomic_load(&ctx->lost))
        return kvx_note(KVX_DEVICE_LOST, "the device failed: the batch will not end");
    if (result)
        fill_result(ctx, state, result);
    if (state->phase == KVX_TICKET_RUNNING)
        return KVX_PENDING;
    for (i = 0; verdicts && i < n_verdicts && i < state->n; i++)
        verdicts[i] = kvx_verdict_status(entry_of(ctx, state, i)->verdict);
    if (state->phase == KVX_TICKET_ENDED)
        set_free(ctx, state);
    return KVX_OK;
}

kvx_status kvx_poll(kvx_ctx *ctx, kvx_ticket ticket, kvx_result *result, uint32_t n_verdicts, kvx_status *verdicts)
{
    kvx_status status;
    KVX_TRY(kvx_ctx_alive(ctx));
    if (n_verdicts && !verdicts)
        return kvx_note(KVX_INVALID, "verdicts is NULL");
    pthread_mutex_lock(&ctx->book);
    status = poll_locked(ctx, ticket, result, n_verdicts, verdicts);
    pthread_mutex_unlock(&ctx->book);
    return status;
}

/* KVX_OK if none of the tickets (NULL: of all) runs, KVX_PENDING if one does, KVX_UNKNOWN. */
static kvx_status look(kvx_ctx *ctx, uint32_t n, const kvx_ticket *tickets)
{
    kvx_status status = KVX_OK;
    uint32_t i;
    pthread_mutex_lock(&ctx->book);
    kvx_ticket_reap(ctx);
    for (i = 0; tickets && i < n && status != KVX_UNKNOWN; i++) {
        const kvx_ticket_state *state = find(ctx, tickets[i]);
        if (!state)
            status = kvx_note(KVX_UNKNOWN, "ticket %u of %u is unknown, or its place was reused", i, n);
        else if (state->phase == KVX_TICKET_RUNNING)
            status = KVX_PENDING;
    }
    for (i = 0; !tickets && i < ctx->max_tickets; i++)
        if (ctx->tickets[i].phase == KVX_TICKET_RUNNING)
            status = KVX_PENDING;
    pthread_mutex_unlock(&ctx->book);
    return status;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Politely: spin for the first microseconds, then sleep longer and longer, at most 200 us. */
static void pause_between_looks(uint64_t waited_ns)
{
    struct timespec t = {0, waited_ns > 1000000 ? 200000 : 20000};
    if (waited_ns < 50000)
        sched_yield();
    else
        nanosleep(&t, NULL);
}

static kvx_status wait_for(kvx_ctx *ctx, uint32_t n, const kvx_ticket *tickets, uint64_t timeout_ns)
{
    const uint64_t health_period_ns = 10000000;
    uint64_t start = now_ns(), next_health = health_period_ns, waited = 0;
    for (;;) {
        kvx_status status = look(ctx, n, tickets);
        if (status != KVX_PENDING)
            return status;
        if (atomic_load(&ctx->lost))
            return kvx_note(KVX_DEVICE_LOST, "the device failed while work was in flight");
        if (waited >= timeout_ns)
            return kvx_note(KVX_TIMEOUT, "not ended after %llu ns", (unsigned long long)waited);
        if (waited >= next_health) {
            next_health = waited + health_period_ns;
            if (ctx->ops->health(ctx->engine) != KVX_OK)
                atomic_store(&ctx->lost, 1);
        }
        pause_between_looks(waited);
        waited = now_ns() - start;
    }
}

kvx_status kvx_wait(kvx_ctx *ctx, uint32_t n, const kvx_ticket *tickets, uint64_t timeout_ns)
{
    kvx_status status;
    KVX_TRY(kvx_ctx_alive(ctx));
    if (n == 0)
        return KVX_OK;
    if (!tickets)
        return kvx_note(KVX_INVALID, "tickets is NULL");
    status = wait_for(ctx, n, tickets, timeout_ns);
    kvx_ctx_wipe_if_latched(ctx);
    return status;
}

kvx_status kvx_ticket_drain(kvx_ctx *ctx, uint64_t timeout_ns)
{
    return wait_for(ctx, 0, NULL, timeout_ns);
}

kvx_status kvx_drain(kvx_ctx *ctx, uint64_t timeout_ns)
{
    kvx_status status;
    KVX_TRY(kvx_ctx_alive(ctx));
    status = kvx_ticket_drain(ctx, timeout_ns);
    kvx_ctx_wipe_if_latched(ctx);
    return status;
}
