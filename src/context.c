/* SPDX-License-Identifier: Apache-2.0 */
/* Life of a context: checks the configuration, chooses the engine, makes keys, allocates everything that steady state
 * will need, and takes it all down again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "evidence.h"
#include "posture.h"
#include "secmem.h"

#define DESTROY_TIMEOUT_NS (30ull * 1000 * 1000 * 1000)

kvx_status kvx_copy_sized(void *own, size_t own_bytes, const void *given, const char *what)
{
    size_t given_bytes;
    memset(own, 0, own_bytes);
    if (!given)
        return kvx_note(KVX_INVALID, "%s is NULL", what);
    memcpy(&given_bytes, given, sizeof given_bytes);
    if (given_bytes < sizeof given_bytes || given_bytes > own_bytes)
        return kvx_note(KVX_INVALID, "%s.size is %zu, this library knows up to %zu: set it with the INIT macro", what,
                        given_bytes, own_bytes);
    memcpy(own, given, given_bytes);
    return KVX_OK;
}

kvx_status kvx_ctx_alive(const kvx_ctx *ctx)
{
    if (!ctx)
        return kvx_note(KVX_INVALID, "ctx is NULL");
    if (!kvx_incarnation_is_here(&ctx->incarnation))
        return kvx_note(KVX_FORKED, "the context belongs to process %ld: create one in this process",
                        (long)ctx->incarnation.pid);
    return KVX_OK;
}

void kvx_ctx_latch(kvx_ctx *ctx)
{
    atomic_store(&ctx->latched, 1);
    ctx->ops->latch(ctx->engine);
    kvx_ctx_wipe_if_latched(ctx);
}

void kvx_ctx_wipe_if_latched(kvx_ctx *ctx)
{
    if (!atomic_load(&ctx->latched) || atomic_exchange(&ctx->keys_wiped, 1))
        return;
    pthread_mutex_lock(&ctx->submit);
    kvx_tenants_erase_all(ctx);
    pthread_mutex_unlock(&ctx->submit);
}

/* A process that was restored from an image would draw the numbers of another life once more. */
static kvx_status check_original(kvx_ctx *ctx)
{
    if (kvx_incarnation_is_original(&ctx->incarnation) &&
        ctx->ops->incarnation_is(ctx->engine, ctx->incarnation.number))
        return KVX_OK;
    kvx_ctx_latch(ctx);
    return kvx_note(KVX_FORKED, "this process is a copy of the one that made the context: create a new one");
}

kvx_status kvx_ctx_usable(kvx_ctx *ctx)
{
    KVX_TRY(kvx_ctx_alive(ctx));
    KVX_TRY(check_original(ctx));
    if (atomic_load(&ctx->lost))
        return kvx_note(KVX_DEVICE_LOST, "the device failed earlier: destroy this context");
    kvx_ctx_wipe_if_latched(ctx);
    if (atomic_load(&ctx->latched))
        return kvx_note(KVX_LATCHED, "tampering was detected: destroy this context and create a new one on the pool");
    return KVX_OK;
}

static kvx_status check_limit(uint32_t *value, uint32_t fallback, uint32_t limit, const char *name)
{
    if (*value == 0)
        *value = fallback;
    if (*value > limit)
        return kvx_note(KVX_INVALID, "kvx_config.%s is %u, at most %u", name, *value, limit);
    return KVX_OK;
}

static kvx_status check_config(kvx_config *config)
{
    if (config->engine < KVX_ENGINE_AUTO || config->engine > KVX_ENGINE_CPU)
        return kvx_note(KVX_INVALID, "kvx_config.engine is %d", (int)config->engine);
    if (config->tamper_policy != KVX_TAMPER_LATCH && config->tamper_policy != KVX_TAMPER_MISS)
        return kvx_note(KVX_INVALID, "kvx_config.tamper_policy is %d", (int)config->tamper_policy);
    if (config->device < 0)
        return kvx_note(KVX_INVALID, "kvx_config.device is %d: ordinal + 1, or 0", config->device);
    if (config->tamper_policy == KVX_TAMPER_LATCH)
        config->tamper_budget = 0;
    else if (config->tamper_budget == 0)
        config->tamper_budget = 16;
    KVX_TRY(check_limit(&config->n_tenants, 1, KVX_TENANTS_LIMIT, "n_tenants"));
    KVX_TRY(check_limit(&config->max_tickets, 256, 1u << KVX_TICKET_PLACE_BITS, "max_tickets"));
    KVX_TRY(check_limit(&config->max_pairs, 65536, 1u << 24, "max_pairs"));
    return check_limit(&config->max_layouts, 16, KVX_LAYOUTS_LIMIT, "max_layouts");
}

static kvx_status use_cpu(kvx_ctx *ctx, const char *why)
{
    ctx->ops = &kvx_engine_cpu;
    snprintf(ctx->engine_note, sizeof ctx->engine_note, "CPU engine: %s", why);
    return KVX_OK;
}

static kvx_status choose_engine(kvx_ctx *ctx, kvx_engine wanted)
{
    const char *why = "asked for";
    if (wanted == KVX_ENGINE_CPU)
        return use_cpu(ctx, why);
#if KVX_WITH_CUDA
    if (kvx_hostmem_gpu_usable(&why)) {
        if (ctx->view->pinned) {
            ctx->ops = &kvx_engine_cuda;
            snprintf(ctx->engine_note, sizeof ctx->engine_note, "CUDA engine");
            return KVX_OK;
        }
        if (wanted == KVX_ENGINE_CUDA)
            return kvx_note(KVX_INVALID, "the CUDA engine needs a pinned pool: create it with engine AUTO or CUDA");
        return use_cpu(ctx, "the pool is not pinned");
    }
#else
    (void)kvx_hostmem_gpu_usable(&why);
#endif
    if (wanted == KVX_ENGINE_CUDA)
        return kvx_note(KVX_UNSUPPORTED, "no usable GPU: %s", why);
    return use_cpu(ctx, why);
}

static void free_books(kvx_ctx *ctx)
{
    free(ctx->entries);
    free(ctx->free_places);
    free(ctx->tickets);
    free(ctx->layouts);
    free(ctx->last_restore);
    free(ctx->last_store);
    free(ctx->slot_marks);
    free(ctx->refusals);
    free(ctx->flats);
    free(ctx->handles);
    free(ctx->work);
}

static kvx_status make_books(kvx_ctx *ctx)
{
    uint32_t i, n_slots = ctx->view->n_slots;
    ctx->work = calloc(ctx->max_pairs, sizeof *ctx->work);
    ctx->handles = calloc(ctx->max_pairs, sizeof *ctx->handles);
    ctx->flats = calloc(ctx->max_pairs, sizeof *ctx->flats);
    ctx->refusals = calloc(ctx->max_pairs, sizeof *ctx->refusals);
    ctx->slot_marks = calloc(n_slots, sizeof *ctx->slot_marks);
    ctx->last_store = calloc(n_slots, sizeof *ctx->last_store);
    ctx->last_restore = calloc(n_slots, sizeof *ctx->last_restore);
    ctx->layouts = calloc(ctx->max_layouts, sizeof *ctx->layouts);
    ctx->tickets = calloc(ctx->max_tickets, sizeof *ctx->tickets);
    ctx->free_places = calloc(ctx->max_tickets, sizeof *ctx->free_places);
    ctx->entries = calloc(ctx->max_pairs, sizeof *ctx->entries);
    if (!ctx->work || !ctx->handles || !ctx->flats || !ctx->refusals || !ctx->slot_marks || !ctx->last_store ||
        !ctx->last_restore || !ctx->layouts || !ctx->tickets || !ctx->free_places || !ctx->entries)
        return kvx_note(KVX_NO_MEMORY, "no host memory for the books of %u slots and %u pairs", n_slots,
                        ctx->max_pairs);
    for (i = 0; i < ctx->max_tickets; i++)
        ctx->free_places[i] = i;
    ctx->n_free_places = ctx->max_tickets;
    ctx->next_serial = 1;
    ctx->next_store_id = 2;
    return KVX_OK;
}

/* What every block key is bound to: the format, what seals, and the caller's parts. */
static kvx_status make_keyring(kvx_ctx *ctx, const kvx_key_config *config, const uint8_t *root)
{
    const kvx_engine_identity *identity = &ctx->trust.identity;
    kvx_field binding[3 + KVX_BINDING_PARTS_MAX] = {
        {"kvx/2 AES-256-GCM", 17}, {identity->name, strlen(identity->name)}, {identity->uuid, sizeof identity->uuid}};
    kvx_keyring_config keyring = {.n_tenants = ctx->n_tenants,
                                  .n_epochs = config->n_key_slots,
                                  .fips = config->fips,
                                  .root = root,
                                  .binding = binding,
                                  .n_binding = 3 + config->n_binding};
    uint32_t i;
    for (i = 0; i < config->n_binding; i++)
        binding[3 + i] = (kvx_field){config->binding[i].bytes, config->binding[i].n_bytes};
    return kvx_keyring_create(&keyring, &ctx->keyring);
}

/* The root lies in memory for secrets while the caller's function fills it in. */
static kvx_status make_keyring_from(kvx_ctx *ctx, const kvx_key_config *config)
{
    void *root = NULL;
    kvx_status status;
    if (!config->root)
        return make_keyring(ctx, config, NULL);
    KVX_TRY(kvx_secmem_map(KVX_ROOT_BYTES, &root, NULL));
    status = config->root(config->arg, root, ctx->trust.key_id);
    ctx->trust.key_id[sizeof ctx->trust.key_id - 1] = 0;
    if (status != KVX_OK)
        status = kvx_note(KVX_INTERNAL, "kvx_key_config.root returned: %s", kvx_status_text(status));
    else
        status = make_keyring(ctx, config, root);
    kvx_secmem_unmap(root, KVX_ROOT_BYTES);
    return status;
}

/* Before any key reaches the engine: is this a platform that the policy accepts? */
static kvx_status gate(kvx_ctx *ctx, const kvx_key_config *config)
{
    kvx_posture_subject subject;
    kvx_posture posture;
    KVX_TRY(kvx_keyring_commitment(ctx->keyring, ctx->trust.commitment));
    KVX_TRY(kvx_keyring_random(ctx->trust.instance, sizeof ctx->trust.instance));
    KVX_TRY(kvx_evidence_ask(ctx, config->nonce, config->nonce_bytes));
    if (ctx->trust.policy != KVX_POLICY_ENFORCE)
        return KVX_OK;
    memset(&posture, 0, sizeof posture);
    subject = kvx_trust_subject(ctx);
    kvx_posture_look(&subject, &posture);
    return kvx_posture_gate(&posture);
}

static kvx_status make_keys(kvx_ctx *ctx, const kvx_key_config *config)
{
    KVX_TRY(kvx_incarnation_begin(&ctx->incarnation));
    KVX_TRY(kvx_keyring_random(&ctx->incarnation.number, sizeof ctx->incarnation.number));
    KVX_TRY(kvx_tenants_create(config, ctx->n_tenants, &ctx->tenants));
    KVX_TRY(make_keyring_from(ctx, config));
    return gate(ctx, config);
}

static void destroy_keys(kvx_ctx *ctx)
{
    kvx_keyring_destroy(ctx->keyring);
    kvx_tenants_destroy(ctx->tenants);
    kvx_incarnation_end(&ctx->incarnation);
}

static kvx_status make_engine(kvx_ctx *ctx, const kvx_config *config)
{
    kvx_engine_config engine = {.pool = ctx->view,
                                .device = config->device - 1,
                                .n_tenants = ctx->n_tenants,
                                .n_key_slots = ctx->tenants->n_places,
                                .key_soft_limit = ctx->tenants->soft_limit,
                                .key_hard_limit = ctx->tenants->hard_limit,
                                .incarnation = ctx->incarnation.number,
                                .max_tickets = ctx->max_tickets,
                                .max_pairs = ctx->max_pairs,
                                .max_layouts = ctx->max_layouts,
                                .tamper_budget = ctx->tamper_budget,
                                .ring_bytes = config->ring_bytes,
                                .burst_bytes = config->burst_bytes,
                                .burst_sms = config->burst_sms,
                                .direct_sms = config->direct_sms};
    kvx_status status = kvx_keyring_random(engine.prf_key, sizeof engine.prf_key);
    if (status == KVX_OK)
        status = kvx_keyring_random(&engine.fixed_field, sizeof engine.fixed_field);
    if (status == KVX_OK)
        status = ctx->ops->create(&engine, &ctx->engine);
    kvx_secmem_wipe(engine.prf_key, sizeof engine.prf_key);
    return status;
}

static kvx_status check_keys(const kvx_config *config, kvx_key_config *keys)
{
    const kvx_key_config fallback = KVX_KEY_CONFIG_INIT;
    const uint32_t allowed = KVX_ALLOW_PPCIE | KVX_ALLOW_GPU_SHARING | KVX_ALLOW_SWAP | KVX_ALLOW_LOCKED |
                             KVX_ALLOW_NO_ECC | KVX_ALLOW_NO_QUOTE;
    KVX_TRY(kvx_copy_sized(keys, sizeof *keys, config->keys ? config->keys : &fallback, "kvx_key_config"));
    if (keys->policy < KVX_POLICY_WARN || keys->policy > KVX_POLICY_DEV)
        return kvx_note(KVX_INVALID, "kvx_key_config.policy is %d", (int)keys->policy);
    if (keys->allow & ~allowed)
        return kvx_note(KVX_INVALID, "kvx_key_config.allow has unknown bits: 0x%x", keys->allow);
    if (keys->n_binding > KVX_BINDING_PARTS_MAX || (keys->n_binding && !keys->binding))
        return kvx_note(KVX_INVALID, "kvx_key_config.binding has %u parts, at most %u", keys->n_binding,
                        KVX_BINDING_PARTS_MAX);
    if (keys->nonce_bytes > KVX_NONCE_BYTES_MAX || (keys->nonce_bytes && !keys->nonce))
        return kvx_note(KVX_INVALID, "kvx_key_config.nonce has %zu bytes, at most %u", keys->nonce_bytes,
                        KVX_NONCE_BYTES_MAX);
    return kvx_tenants_check(keys, config->n_tenants);
}

static kvx_ctx *ctx_new(kvx_pool *pool, const kvx_config *config, const kvx_key_config *keys)
{
    kvx_ctx *ctx = calloc(1, sizeof *ctx);
    if (!ctx)
        return NULL;
    ctx->pool = pool;
    ctx->view = kvx_pool_view_of(pool);
    ctx->trust.policy = keys->policy;
    ctx->trust.allow = keys->allow;
    ctx->trust.verdict = keys->verdict;
    ctx->trust.arg = keys->arg;
    ctx->max_tickets = config->max_tickets;
    ctx->max_pairs = config->max_pairs;
    ctx->max_layouts = config->max_layouts;
    ctx->n_tenants = config->n_tenants;
    ctx->tamper_budget = config->tamper_budget;
    return ctx;
}

kvx_status kvx_ctx_create(kvx_pool *pool, const kvx_config *config, kvx_ctx **result)
{
    kvx_config own;
    kvx_key_config keys;
    kvx_ctx *ctx;
    kvx_status status;
    if (!pool || !result)
        return kvx_note(KVX_INVALID, "pool or ctx is NULL");
    KVX_TRY(kvx_pool_alive(pool));
    KVX_TRY(kvx_copy_sized(&own, sizeof own, config, "kvx_config"));
    KVX_TRY(check_config(&own));
    KVX_TRY(check_keys(&own, &keys));
    ctx = ctx_new(pool, &own, &keys);
    if (!ctx)
        return kvx_note(KVX_NO_MEMORY, "no memory for a context");
    status = choose_engine(ctx, own.engine);
    if (status == KVX_OK)
        status = ctx->ops->identify(own.device - 1, &ctx->trust.identity);
    if (status == KVX_OK)
        status = make_books(ctx);
    if (status != KVX_OK)
        goto free_ctx;
    status = make_keys(ctx, &keys);
    if (status != KVX_OK)
        goto destroy_keys;
    status = make_engine(ctx, &own);
    if (status != KVX_OK)
        goto destroy_keys;
    if (ctx->ops->selftest)
        status = ctx->ops->selftest(ctx->engine);
    if (status == KVX_OK)
        status = kvx_tenants_open_all(ctx);
    if (status != KVX_OK)
        goto destroy_engine;
    pthread_mutex_init(&ctx->submit, NULL);
    pthread_mutex_init(&ctx->book, NULL);
    ctx->owner = kvx_pool_attach(pool);
    *result = ctx;
    return KVX_OK;
destroy_engine:
    (void)ctx->ops->destroy(ctx->engine);
destroy_keys:
    destroy_keys(ctx);
free_ctx:
    free_books(ctx);
    free(ctx);
    return status;
}

/* Slots of batches that never ended (device lost) are given back to the pool's books. */
static void unpin_running(kvx_ctx *ctx)
{
    uint32_t place, i;
    for (place = 0; place < ctx->max_tickets; place++) {
        const kvx_ticket_state *ticket = &ctx->tickets[place];
        if (ticket->phase != KVX_TICKET_RUNNING)
            continue;
        for (i = ticket->n_seen; i < ticket->n; i++)
            kvx_pool_unpin(ctx->pool, 1, &ctx->entries[(ticket->first + i) % ctx->max_pairs].flat);
    }
}

void kvx_ctx_destroy(kvx_ctx *ctx)
{
    uint32_t i;
    int drained, idle;
    if (!ctx)
        return;
    if (!kvx_incarnation_is_here(&ctx->incarnation))
        return; /* nothing in a child is ours to touch: locked memory and device state are the parent's */
    drained = kvx_ticket_drain(ctx, DESTROY_TIMEOUT_NS) == KVX_OK;
    idle = ctx->ops->destroy(ctx->engine);
    destroy_keys(ctx);
    if (idle) { /* else copies may still run into the slots: they stay pinned, and the pool cannot be destroyed */
        if (!drained)
            unpin_running(ctx);
        kvx_pool_detach(ctx->pool);
    }
    for (i = 0; i < ctx->max_layouts; i++)
        if (ctx->layouts[i])
            kvx_layout_free(ctx->layouts[i]);
    pthread_mutex_destroy(&ctx->book);
    pthread_mutex_destroy(&ctx->submit);
    free_books(ctx);
    free(ctx);
}

static void fill_stats(kvx_ctx *ctx, kvx_stats *stats)
{
    kvx_engine_counts counts = {0};
    pthread_mutex_lock(&ctx->book);
    kvx_ticket_reap(ctx);
    *stats = ctx->counts;
    stats->tickets_in_use = ctx->max_tickets - ctx->n_free_places;
    pthread_mutex_unlock(&ctx->book);
    ctx->ops->counts(ctx->engine, &counts);
    stats->engine = ctx->ops->kind;
    stats->pinned = ctx->view->pinned;
    stats->latched = atomic_load(&ctx->latched) != 0;
    stats->launches = counts.launches;
    stats->copies = counts.copies;
    stats->host_syncs = counts.host_syncs;
    stats->record_bytes = counts.record_bytes;
    stats->store_bursts = counts.store_bursts;
    stats->direct_launches = counts.direct_launches;
    stats->restore_bursts = counts.restore_bursts;
    stats->burst_bytes = counts.burst_bytes;
    stats->link_rate = counts.link_rate;
    stats->seal_rate = counts.seal_rate;
    stats->measure_ns = counts.measure_ns;
    stats->burst_sms = counts.burst_sms;
    stats->direct_sms = counts.direct_sms;
    stats->pool_bytes = ctx->view->bytes;
    kvx_pool_counts(ctx->pool, &stats->slots_free, &stats->slots_used, &stats->slots_in_flight);
    memcpy(stats->engine_note, ctx->engine_note, sizeof stats->engine_note);
}

kvx_status kvx_stats_get(kvx_ctx *ctx, kvx_stats *stats)
{
    kvx_stats own;
    size_t size;
    KVX_TRY(kvx_ctx_alive(ctx));
    KVX_TRY(kvx_copy_sized(&own, sizeof own, stats, "kvx_stats"));
    size = own.size;
    fill_stats(ctx, &own);
    own.size = size;
    memcpy(stats, &own, size);
    return KVX_OK;
}
