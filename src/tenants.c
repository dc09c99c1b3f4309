/* SPDX-License-Identifier: Apache-2.0 */
/* Tenants and their epochs: opening, moving on, retiring, erasing. The order that keeps blocks safe: a key is named to
 * the engine when its material is in place, and its secret is forgotten when the material is gone. */
#include "tenants.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "../kernels/keystate.h"
#include "context.h"
#include "platform.h"
#include "secmem.h"

#define DEFAULT_OLD_EPOCHS 256u
#define RETRY_NS (5ull * 1000 * 1000)
#define DEFAULT_ROTATE_NS (600ull * 1000 * 1000 * 1000)

static_assert(KVX_KEY_SLOTS_MAX == KVX_KEY_SLOTS_LIMIT, "key slots");

/* ------------------------------------------------------------------------------------------------------------ books */

kvx_status kvx_tenants_check(kvx_key_config *config, uint32_t n_tenants)
{
    if (config->n_key_slots == 0)
        config->n_key_slots = 2 * n_tenants + DEFAULT_OLD_EPOCHS;
    if (config->n_key_slots < 2 * n_tenants || config->n_key_slots > KVX_KEY_SLOTS_LIMIT)
        return kvx_note(KVX_INVALID, "kvx_key_config.n_key_slots is %u: %u tenants need at least %u, at most %u",
                        config->n_key_slots, n_tenants, 2 * n_tenants, KVX_KEY_SLOTS_LIMIT);
    if (config->hard_limit == 0)
        config->hard_limit = KVX_KEY_HARD_LIMIT;
    if (config->hard_limit > KVX_KEY_HARD_LIMIT)
        return kvx_note(KVX_INVALID, "kvx_key_config.hard_limit is above 2^36");
    if (config->soft_limit == 0)
        config->soft_limit = config->hard_limit < KVX_KEY_SOFT_LIMIT ? config->hard_limit / 2 : KVX_KEY_SOFT_LIMIT;
    if (config->soft_limit > config->hard_limit)
        return kvx_note(KVX_INVALID, "kvx_key_config.soft_limit is above hard_limit");
    if (config->rotate_ns == 0)
        config->rotate_ns = DEFAULT_ROTATE_NS;
    return KVX_OK;
}

kvx_status kvx_tenants_create(const kvx_key_config *config, uint32_t n_tenants, kvx_tenants **tenants)
{
    const uint32_t n_places = config->n_key_slots;
    kvx_tenants *made = calloc(1, sizeof *made);
    uint32_t i;
    if (!made)
        return kvx_note(KVX_NO_MEMORY, "no memory for the books of keys");
    made->n_tenants = n_tenants;
    made->n_places = made->n_free = n_places;
    made->rotate_ns = config->rotate_ns;
    made->soft_limit = config->soft_limit;
    made->hard_limit = config->hard_limit;
    made->tenants = calloc(n_tenants, sizeof *made->tenants);
    made->epochs = calloc(n_places, sizeof *made->epochs);
    made->n_blocks = calloc(n_places, sizeof *made->n_blocks);
    made->spent = calloc(n_places, sizeof *made->spent);
    made->is_left = calloc(n_places, sizeof *made->is_left);
    if (!made->tenants || !made->epochs || !made->n_blocks || !made->spent || !made->is_left) {
        kvx_tenants_destroy(made);
        return kvx_note(KVX_NO_MEMORY, "no memory for the books of %u keys", n_places);
    }
    for (i = 0; i < n_tenants; i++)
        made->tenants[i].current = made->tenants[i].next = KVX_NO_PLACE;
    *tenants = made;
    return KVX_OK;
}

void kvx_tenants_destroy(kvx_tenants *tenants)
{
    if (!tenants)
        return;
    free(tenants->is_left);
    free(tenants->spent);
    free(tenants->n_blocks);
    free(tenants->epochs);
    free(tenants->tenants);
    free(tenants);
}

static uint64_t ref_of(const kvx_tenants *books, uint32_t place)
{
    return place == KVX_NO_PLACE ? 0 : kvx_key_ref(place, books->epochs[place].generation);
}

static uint32_t free_place(const kvx_tenants *books)
{
    uint32_t place;
    for (place = 0; place < books->n_places; place++)
        if (books->epochs[place].phase == KVX_EPOCH_FREE && books->epochs[place].generation < UINT32_MAX)
            return place;
    return KVX_NO_PLACE;
}

/* ----------------------------------------------------------------------------------------------------- epochs' life */

/* Overwrites the key of the epoch, forgets its secret and frees its place. */
static kvx_status end_epoch(kvx_ctx *ctx, uint32_t place)
{
    kvx_epoch *epoch = &ctx->tenants->epochs[place];
    kvx_keyring_epoch_close(ctx->keyring, place);
    KVX_TRY(ctx->ops->key_erase(ctx->engine, place, epoch->generation));
    epoch->phase = KVX_EPOCH_FREE;
    ctx->tenants->n_free++;
    ctx->tenants->retry_ns = 0;
    return KVX_OK;
}

static kvx_status take_census(kvx_ctx *ctx)
{
    kvx_tenants *books = ctx->tenants;
    const kvx_key_census census = {books->n_blocks, books->spent, books->is_left};
    return ctx->ops->key_census(ctx->engine, &census);
}

/* Ends old epochs that no block needs. */
static kvx_status retire(kvx_ctx *ctx)
{
    kvx_tenants *books = ctx->tenants;
    uint32_t place;
    KVX_TRY(take_census(ctx));
    for (place = 0; place < books->n_places; place++)
        if (books->epochs[place].phase == KVX_EPOCH_OLD && books->is_left[place] && books->n_blocks[place] == 0)
            KVX_TRY(end_epoch(ctx, place));
    return KVX_OK;
}

/* Draws, derives, installs. The place is free until all of it has worked. */
static kvx_status begin_epoch(kvx_ctx *ctx, uint32_t tenant, uint32_t *result)
{
    kvx_tenants *books = ctx->tenants;
    kvx_tenant *t = &books->tenants[tenant];
    const uint32_t place = free_place(books);
    const uint8_t *key;
    kvx_epoch *epoch;
    kvx_status status;
    if (place == KVX_NO_PLACE)
        return kvx_note(KVX_AGAIN,
                        "all %u key slots hold keys that blocks need: discard older blocks, or raise "
                        "n_key_slots",
                        books->n_places);
    epoch = &books->epochs[place];
    KVX_TRY(kvx_keyring_epoch_open(ctx->keyring, place, tenant, t->last_number + 1));
    status = kvx_keyring_block_key(ctx->keyring, place, &key);
    if (status == KVX_OK)
        status = ctx->ops->key_install(ctx->engine, place, epoch->generation + 1, KVX_KEY_STATE_LIVE, key);
    kvx_keyring_done(ctx->keyring);
    if (status != KVX_OK) {
        kvx_keyring_epoch_close(ctx->keyring, place);
        return status;
    }
    epoch->number = ++t->last_number;
    epoch->tenant = tenant;
    epoch->generation++;
    epoch->phase = KVX_EPOCH_NEXT;
    books->n_free--;
    t->n_epochs++;
    *result = place;
    return KVX_OK;
}

/* The engine has moved on to the next key: the books follow. */
static void follow(kvx_ctx *ctx, kvx_tenant *t)
{
    kvx_tenants *books = ctx->tenants;
    books->epochs[t->current].phase = KVX_EPOCH_OLD;
    books->epochs[t->next].phase = KVX_EPOCH_CURRENT;
    t->current = t->next;
    t->next = KVX_NO_PLACE;
    t->since_ns = kvx_platform()->clock_ns(KVX_CLOCK_MONOTONIC);
}

/* Looking for keys that nobody needs takes a look at every slot's header; so it is done when places run short. */
static kvx_status put_in_next(kvx_ctx *ctx, uint32_t tenant)
{
    kvx_tenants *books = ctx->tenants;
    kvx_tenant *t = &books->tenants[tenant];
    kvx_tenant_keys keys;
    uint32_t place;
    if (books->n_free <= books->n_places / 4)
        KVX_TRY(retire(ctx));
    KVX_TRY(begin_epoch(ctx, tenant, &place));
    t->next = place;
    keys.current = ref_of(books, t->current);
    keys.next = ref_of(books, place);
    return ctx->ops->tenant_set(ctx->engine, tenant, &keys, 1);
}

/* Follows the engine, and sees to it that there is a next key. */
static kvx_status keep_up(kvx_ctx *ctx, uint32_t tenant)
{
    kvx_tenants *books = ctx->tenants;
    kvx_tenant *t = &books->tenants[tenant];
    if (t->next != KVX_NO_PLACE && ctx->ops->tenant_current(ctx->engine, tenant) == ref_of(books, t->next))
        follow(ctx, t);
    return t->next == KVX_NO_PLACE ? put_in_next(ctx, tenant) : KVX_OK;
}

static kvx_status move_on(kvx_ctx *ctx, uint32_t tenant)
{
    kvx_tenant *t = &ctx->tenants->tenants[tenant];
    KVX_TRY(keep_up(ctx, tenant));
    KVX_TRY(ctx->ops->tenant_move(ctx->engine, tenant, ref_of(ctx->tenants, t->current)));
    (void)keep_up(ctx, tenant); /* has moved; the next key may come later */
    return KVX_OK;
}

/* While there is no place for a next key, it is looked for now and then, not at every store. */
static void serve(kvx_ctx *ctx, uint32_t tenant, uint64_t now_ns)
{
    kvx_tenants *books = ctx->tenants;
    kvx_tenant *t = &books->tenants[tenant];
    const int moved = ctx->ops->tenant_current(ctx->engine, tenant) != ref_of(books, t->current);
    kvx_status status = KVX_OK;
    if (moved || (t->next == KVX_NO_PLACE && now_ns >= books->retry_ns))
        status = keep_up(ctx, tenant);
    if (status == KVX_OK && t->next != KVX_NO_PLACE && books->rotate_ns != UINT64_MAX && now_ns > t->since_ns &&
        now_ns - t->since_ns >= books->rotate_ns)
        status = move_on(ctx, tenant);
    if (status == KVX_UNSUPPORTED)
        books->rotate_ns = UINT64_MAX;
    else if (status != KVX_OK)
        books->retry_ns = now_ns + RETRY_NS;
}

void kvx_tenants_serve(kvx_ctx *ctx, uint32_t tenant)
{
    if (ctx->tenants->tenants[tenant].is_open)
        serve(ctx, tenant, kvx_platform()->clock_ns(KVX_CLOCK_MONOTONIC));
}

/* ---------------------------------------------------------------------------------------------- opening and erasing */

/* Ends every epoch of the tenant that has a key. Goes on after a failure, which is returned. */
static kvx_status end_all(kvx_ctx *ctx, uint32_t tenant, uint32_t *n_ended)
{
    kvx_tenants *books = ctx->tenants;
    kvx_status first = KVX_OK;
    uint32_t place;
    for (place = 0; place < books->n_places; place++) {
        kvx_status status;
        if (books->epochs[place].phase == KVX_EPOCH_FREE || books->epochs[place].tenant != tenant)
            continue;
        status = end_epoch(ctx, place);
        *n_ended += status == KVX_OK;
        if (first == KVX_OK)
            first = status;
    }
    return first;
}

static kvx_status open_keys(kvx_ctx *ctx, uint32_t tenant)
{
    kvx_tenants *books = ctx->tenants;
    kvx_tenant *t = &books->tenants[tenant];
    kvx_tenant_keys keys;
    KVX_TRY(begin_epoch(ctx, tenant, &t->current));
    KVX_TRY(begin_epoch(ctx, tenant, &t->next));
    books->epochs[t->current].phase = KVX_EPOCH_CURRENT;
    keys.current = ref_of(books, t->current);
    keys.next = ref_of(books, t->next);
    return ctx->ops->tenant_set(ctx->engine, tenant, &keys, 0);
}

static void forget(kvx_ctx *ctx, uint32_t tenant)
{
    kvx_tenant *t = &ctx->tenants->tenants[tenant];
    kvx_keyring_tenant_close(ctx->keyring, tenant);
    t->current = t->next = KVX_NO_PLACE;
    t->n_epochs = 0;
    t->is_open = 0;
}

static kvx_status open_tenant(kvx_ctx *ctx, uint32_t tenant)
{
    kvx_tenant *t = &ctx->tenants->tenants[tenant];
    kvx_status status;
    uint32_t n = 0;
    if (t->is_open)
        return kvx_note(KVX_INVALID, "tenant %u is open", tenant);
    if (ctx->tenants->n_free < 2)
        KVX_TRY(retire(ctx));
    KVX_TRY(kvx_keyring_tenant_open(ctx->keyring, tenant));
    status = open_keys(ctx, tenant);
    if (status != KVX_OK) {
        (void)end_all(ctx, tenant, &n);
        forget(ctx, tenant);
        return status;
    }
    t->is_open = 1;
    t->since_ns = kvx_platform()->clock_ns(KVX_CLOCK_MONOTONIC);
    return KVX_OK;
}

kvx_status kvx_tenants_open_all(kvx_ctx *ctx)
{
    uint32_t tenant;
    for (tenant = 0; tenant < ctx->n_tenants; tenant++)
        KVX_TRY(open_tenant(ctx, tenant));
    return KVX_OK;
}

static uint64_t blocks_of(const kvx_tenants *books, uint32_t tenant)
{
    uint64_t n = 0;
    uint32_t place;
    for (place = 0; place < books->n_places; place++)
        if (books->epochs[place].phase != KVX_EPOCH_FREE && books->epochs[place].tenant == tenant)
            n += books->n_blocks[place];
    return n;
}

/* No store begins after the first step, and none that began before is committed after its key is dead. */
static kvx_status erase_tenant(kvx_ctx *ctx, uint32_t tenant, kvx_erase_receipt *receipt)
{
    const kvx_tenant_keys none = {0, 0};
    receipt->epochs = ctx->tenants->tenants[tenant].n_epochs;
    KVX_TRY(ctx->ops->tenant_set(ctx->engine, tenant, &none, 0));
    KVX_TRY(take_census(ctx));
    receipt->blocks = blocks_of(ctx->tenants, tenant);
    KVX_TRY(end_all(ctx, tenant, &receipt->key_slots));
    forget(ctx, tenant);
    return KVX_OK;
}

void kvx_tenants_erase_all(kvx_ctx *ctx)
{
    const kvx_tenant_keys none = {0, 0};
    uint32_t tenant, n = 0;
    for (tenant = 0; tenant < ctx->n_tenants; tenant++) {
        if (!ctx->tenants->tenants[tenant].is_open)
            continue;
        (void)ctx->ops->tenant_set(ctx->engine, tenant, &none, 0);
        if (end_all(ctx, tenant, &n) == KVX_OK)
            forget(ctx, tenant);
    }
}

/* -------------------------------------------------------------------------------------------------------------- API */

static kvx_status check_tenant(const kvx_ctx *ctx, uint32_t tenant, int must_be_open)
{
    if (tenant >= ctx->n_tenants)
        return kvx_note(KVX_INVALID, "tenant %u of %u", tenant, ctx->n_tenants);
    if (must_be_open && !ctx->tenants->tenants[tenant].is_open)
        return kvx_note(KVX_INVALID, "tenant %u is not open", tenant);
    return KVX_OK;
}

kvx_status kvx_tenant_open(kvx_ctx *ctx, uint32_t tenant)
{
    kvx_status status;
    KVX_TRY(kvx_ctx_usable(ctx));
    pthread_mutex_lock(&ctx->submit);
    status = check_tenant(ctx, tenant, 0);
    if (status == KVX_OK)
        status = open_tenant(ctx, tenant);
    pthread_mutex_unlock(&ctx->submit);
    return status;
}

/* Also of a latched context: what can no longer be used can still be erased. */
kvx_status kvx_tenant_erase(kvx_ctx *ctx, uint32_t tenant, kvx_erase_receipt *receipt)
{
    kvx_erase_receipt own = KVX_ERASE_RECEIPT_INIT;
    kvx_status status;
    KVX_TRY(kvx_ctx_alive(ctx));
    if (receipt)
        KVX_TRY(kvx_copy_sized(&own, sizeof own, receipt, "kvx_erase_receipt"));
    pthread_mutex_lock(&ctx->submit);
    status = check_tenant(ctx, tenant, 1);
    own = (kvx_erase_receipt){.size = own.size};
    if (status == KVX_OK)
        status = erase_tenant(ctx, tenant, &own);
    pthread_mutex_unlock(&ctx->submit);
    if (status == KVX_OK && receipt)
        memcpy(receipt, &own, own.size);
    return status;
}

kvx_status kvx_key_rotate(kvx_ctx *ctx, uint32_t tenant)
{
    kvx_status status;
    KVX_TRY(kvx_ctx_usable(ctx));
    pthread_mutex_lock(&ctx->submit);
    status = check_tenant(ctx, tenant, 1);
    if (status == KVX_OK)
        status = move_on(ctx, tenant);
    pthread_mutex_unlock(&ctx->submit);
    return status;
}

kvx_status kvx_keys_service(kvx_ctx *ctx)
{
    kvx_status status;
    uint32_t tenant;
    KVX_TRY(kvx_ctx_usable(ctx));
    pthread_mutex_lock(&ctx->submit);
    status = retire(ctx);
    for (tenant = 0; tenant < ctx->n_tenants; tenant++)
        kvx_tenants_serve(ctx, tenant);
    pthread_mutex_unlock(&ctx->submit);
    return status;
}

static void fill_key_stats(kvx_ctx *ctx, uint32_t tenant, kvx_key_stats *stats)
{
    const kvx_tenants *books = ctx->tenants;
    const kvx_tenant *t = &books->tenants[tenant];
    uint32_t place;
    stats->open = t->is_open;
    stats->next_ready = t->next != KVX_NO_PLACE;
    stats->key_slots_free = books->n_free;
    stats->soft_limit = books->soft_limit;
    stats->hard_limit = books->hard_limit;
    for (place = 0; place < books->n_places; place++)
        stats->epochs_readable += books->epochs[place].phase != KVX_EPOCH_FREE && books->epochs[place].tenant == tenant;
    if (!t->is_open)
        return;
    stats->epoch = books->epochs[t->current].number;
    stats->spent = books->spent[t->current];
    stats->age_ns = kvx_platform()->clock_ns(KVX_CLOCK_MONOTONIC) - t->since_ns;
}

kvx_status kvx_key_stats_get(kvx_ctx *ctx, uint32_t tenant, kvx_key_stats *stats)
{
    kvx_key_stats own;
    size_t size;
    kvx_status status;
    KVX_TRY(kvx_ctx_alive(ctx));
    KVX_TRY(kvx_copy_sized(&own, sizeof own, stats, "kvx_key_stats"));
    size = own.size;
    own = (kvx_key_stats){.size = size};
    pthread_mutex_lock(&ctx->submit);
    status = check_tenant(ctx, tenant, 0);
    if (status == KVX_OK && ctx->tenants->tenants[tenant].is_open)
        kvx_tenants_serve(ctx, tenant);
    if (status == KVX_OK)
        status = take_census(ctx);
    if (status == KVX_OK)
        fill_key_stats(ctx, tenant, &own);
    pthread_mutex_unlock(&ctx->submit);
    if (status == KVX_OK)
        memcpy(stats, &own, size);
    return status;
}

kvx_status kvx_selftest(kvx_ctx *ctx)
{
    kvx_status status;
    KVX_TRY(kvx_ctx_usable(ctx));
    if (!ctx->ops->selftest)
        return kvx_note(KVX_UNSUPPORTED, "this engine has no known-answer test");
    pthread_mutex_lock(&ctx->submit);
    status = ctx->ops->selftest(ctx->engine);
    pthread_mutex_unlock(&ctx->submit);
    if (status == KVX_INTERNAL)
        kvx_ctx_latch(ctx);
    return status;
}
