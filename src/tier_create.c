/* SPDX-License-Identifier: Apache-2.0 */
/* A tier comes and goes: its limits, its memory, its tenants. */
#include "tier.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "status.h"

#define GHOSTS(n_blocks) ((uint32_t)((uint64_t)(n_blocks)*7 / 8)) /* fewer than blocks: 80 bytes per block in all */

/* ---- checks ---- */

kvx_status kvx_tier_alive(const kvx_tier *tier)
{
    if (!tier)
        return kvx_note(KVX_INVALID, "tier is NULL");
    if (tier->pid != getpid())
        return kvx_note(KVX_FORKED, "the tier belongs to process %ld: create one in this process", (long)tier->pid);
    return KVX_OK;
}

kvx_status kvx_tier_known_tenant(const kvx_tier *tier, uint32_t tenant)
{
    if (tenant >= tier->config.n_tenants)
        return kvx_note(KVX_INVALID, "tenant %u of %u", tenant, tier->config.n_tenants);
    return KVX_OK;
}

/* ---- configuration ---- */

static void default_u32(uint32_t *value, uint32_t standard)
{
    if (*value == 0)
        *value = standard;
}

static void default_u64(uint64_t *value, uint64_t standard)
{
    if (*value == 0)
        *value = standard;
}

static uint32_t power_of_two(uint32_t n)
{
    return n <= 1 ? 1 : 1u << (32 - __builtin_clz(n - 1));
}

static void fill_defaults(kvx_tier_config *config)
{
    default_u32(&config->n_tenants, 1);
    default_u32(&config->selective_hits, 2);
    default_u32(&config->again_percent, 250);
    default_u32(&config->max_stores, 4096);
    default_u32(&config->max_loads, 256);
    default_u32(&config->max_load_blocks, 16384);
    default_u32(&config->max_announced, 256);
    default_u32(&config->max_events, 4096);
    default_u32(&config->batch_blocks, 64);
    default_u32(&config->max_batches, 4);
    default_u64(&config->batch_wait_ns, 2000000);
    default_u64(&config->max_wait_ns, 50000000);
    default_u64(&config->load_bytes_in_flight, (uint64_t)256 << 20);
}

static kvx_status check_limits(const kvx_tier_config *config)
{
    const uint32_t most = 1u << 30;
    if (config->n_blocks == 0 || config->n_blocks > most)
        return kvx_note(KVX_INVALID, "n_blocks is %u: 1 to %u", config->n_blocks, most);
    if (config->n_tenants > KVX_TIER_TENANTS_MAX)
        return kvx_note(KVX_INVALID, "%u tenants: at most %u", config->n_tenants, KVX_TIER_TENANTS_MAX);
    if (config->selective_hits > 100 || config->again_percent > 10000)
        return kvx_note(KVX_INVALID, "selective_hits is %u (at most 100), again_percent %u (at most 10000)",
                        config->selective_hits, config->again_percent);
    if (config->max_stores > most || config->max_loads > most || config->max_load_blocks > most ||
        config->max_announced > most || config->max_events > most || config->batch_blocks > most ||
        config->max_batches > most)
        return kvx_note(KVX_INVALID, "a limit is above %u", most);
    if ((uint32_t)config->write > KVX_TIER_WRITE_BACK || (uint32_t)config->evict > KVX_TIER_EVICT_LRU)
        return kvx_note(KVX_INVALID, "no such policy: write %d, evict %d", (int)config->write, (int)config->evict);
    if (!config->ctx != !config->pool)
        return kvx_note(KVX_INVALID, "ctx and pool come together, or neither (dry)");
    return KVX_OK;
}

static kvx_status read_config(const kvx_tier_config *given, kvx_tier_config *config)
{
    memset(config, 0, sizeof(*config));
    if (!given)
        return kvx_note(KVX_INVALID, "config is NULL");
    if (given->size < sizeof(given->size) || given->size > sizeof(*config))
        return kvx_note(KVX_INVALID, "kvx_tier_config.size is %zu: set it with KVX_TIER_CONFIG_INIT", given->size);
    memcpy(config, given, given->size);
    fill_defaults(config);
    KVX_TRY(check_limits(config));
    config->max_events = power_of_two(config->max_events);
    if (config->batch_blocks > config->max_stores)
        config->batch_blocks = config->max_stores;
    return KVX_OK;
}

/* The slots must exist, and be the caller's to number. */
static kvx_status check_slots(kvx_tier *tier)
{
    const kvx_tier_config *config = &tier->config;
    kvx_slot first = {config->slot_class, config->first_slot, 0};
    kvx_slot last = {config->slot_class, config->first_slot + (config->n_blocks - 1), 0};
    void *bytes;
    tier->slot_bytes = config->block_bytes;
    if (!config->ctx)
        return KVX_OK;
    if (last.index < first.index)
        return kvx_note(KVX_INVALID, "no slots %u + %u", config->first_slot, config->n_blocks);
    KVX_TRY(kvx_pool_slot_bytes(config->pool, first, &bytes, &tier->slot_bytes));
    KVX_TRY(kvx_pool_slot_bytes(config->pool, last, &bytes, &tier->slot_bytes));
    kvx_slot none;
    if (kvx_pool_take(config->pool, config->slot_class, 0, &none) == KVX_OK)
        return kvx_note(KVX_INVALID, "the pool keeps slot class %u: make one with caller_managed", config->slot_class);
    return KVX_OK;
}

/* ---- memory ---- */

static int alloc(kvx_tier *tier, void *pointer, uint64_t n, size_t item_bytes)
{
    void *memory = kvx_tier_alloc(n, item_bytes, &tier->memory_bytes);
    memcpy(pointer, &memory, sizeof(memory));
    return memory != NULL;
}

static int make_store_memory(kvx_tier *tier)
{
    const kvx_tier_config *config = &tier->config;
    tier->n_alike = power_of_two(config->max_stores);
    return alloc(tier, &tier->records, config->max_stores, sizeof(*tier->records)) &&
           alloc(tier, &tier->alike, tier->n_alike, sizeof(*tier->alike)) &&
           alloc(tier, &tier->batches, config->max_batches, sizeof(*tier->batches)) &&
           alloc(tier, &tier->store_pairs, config->batch_blocks, sizeof(*tier->store_pairs)) &&
           alloc(tier, &tier->store_verdicts, config->batch_blocks, sizeof(*tier->store_verdicts)) &&
           alloc(tier, &tier->discards, config->batch_blocks, sizeof(*tier->discards)) &&
           alloc(tier, &tier->events, config->max_events, sizeof(*tier->events));
}

static int make_load_memory(kvx_tier *tier)
{
    const kvx_tier_config *config = &tier->config;
    return alloc(tier, &tier->loads, config->max_loads, sizeof(*tier->loads)) &&
           alloc(tier, &tier->nodes, config->max_load_blocks, sizeof(*tier->nodes)) &&
           alloc(tier, &tier->announced, config->max_announced, sizeof(*tier->announced)) &&
           alloc(tier, &tier->load_pairs, config->max_load_blocks, sizeof(*tier->load_pairs)) &&
           alloc(tier, &tier->load_verdicts, config->max_load_blocks, sizeof(*tier->load_verdicts));
}

static int make_index(kvx_tier *tier, const uint64_t seed[4])
{
    const kvx_tier_config *config = &tier->config;
    int remembers = config->evict == KVX_TIER_EVICT_AGED || config->write == KVX_TIER_WRITE_SELECTIVE;
    if (!kvx_tier_index_create(&tier->index, config->n_blocks, seed))
        return 0;
    tier->memory_bytes += tier->index.memory_bytes;
    kvx_tier_policy_init(&tier->policy, &tier->index, &tier->ghost);
    tier->policy.kind = config->evict;
    tier->policy.again_percent = config->again_percent;
    return kvx_tier_ghost_create(&tier->ghost, remembers ? GHOSTS(config->n_blocks) + 1 : 0, &tier->memory_bytes);
}

static void free_memory(kvx_tier *tier)
{
    kvx_tier_index_destroy(&tier->index);
    kvx_tier_ghost_destroy(&tier->ghost);
    free(tier->records);
    free(tier->alike);
    free(tier->batches);
    free(tier->store_pairs);
    free(tier->store_verdicts);
    free(tier->discards);
    free(tier->events);
    free(tier->loads);
    free(tier->nodes);
    free(tier->announced);
    free(tier->load_pairs);
    free(tier->load_verdicts);
}

/* Everything is free; the last places first, so that lists begin with the first ones. */
static void fill_lists(kvx_tier *tier)
{
    const kvx_tier_config *config = &tier->config;
    for (uint32_t i = 0; i < config->n_blocks; i++)
        tier->index.links[i].next = i + 1;
    tier->free = (kvx_tier_list){0, config->n_blocks - 1, config->n_blocks};
    for (uint32_t i = 0; i < config->max_stores; i++)
        tier->records[i].next = i + 1;
    tier->free_records.n = config->max_stores;
    for (uint32_t i = 0; i < tier->n_alike; i++)
        tier->alike[i] = KVX_TIER_NONE;
    for (uint32_t i = 0; i < config->max_loads; i++)
        tier->loads[i].next = i + 1;
    tier->free_loads.n = config->max_loads;
    for (uint32_t i = 0; i < config->max_load_blocks; i++)
        tier->nodes[i].next = i + 1;
    tier->free_nodes.n = config->max_load_blocks;
}

/* ---- create and destroy ---- */

static kvx_status draw(void *bytes, size_t n)
{
    size_t done = 0;
    while (done < n) {
        ssize_t got = getrandom((char *)bytes + done, n - done, 0);
        if (got < 0 && errno != EINTR)
            return kvx_note(KVX_INTERNAL, "getrandom failed: no salts for the index");
        done += got > 0 ? (size_t)got : 0;
    }
    return KVX_OK;
}

static kvx_status build(kvx_tier *tier)
{
    uint64_t seed[4];
    KVX_TRY(check_slots(tier));
    KVX_TRY(draw(seed, sizeof(seed)));
    for (uint32_t i = 0; i < tier->config.n_tenants; i++)
        KVX_TRY(draw(&tier->tenants[i].salt, sizeof(tier->tenants[i].salt)));
    if (!make_index(tier, seed) || !make_store_memory(tier) || !make_load_memory(tier)) {
        free_memory(tier);
        return kvx_note(KVX_NO_MEMORY, "no memory for a tier of %u blocks", tier->config.n_blocks);
    }
    fill_lists(tier);
    return KVX_OK;
}

static int make_locks(kvx_tier *tier)
{
    if (pthread_mutex_init(&tier->pumping, NULL) != 0)
        return 0;
    if (pthread_mutex_init(&tier->loading, NULL) != 0)
        goto destroy_pumping;
    if (pthread_mutex_init(&tier->book, NULL) != 0)
        goto destroy_loading;
    return 1;

destroy_loading:
    pthread_mutex_destroy(&tier->loading);
destroy_pumping:
    pthread_mutex_destroy(&tier->pumping);
    return 0;
}

kvx_status kvx_tier_create(const kvx_tier_config *config, kvx_tier **tier)
{
    kvx_tier_config own;
    kvx_status status;
    if (!tier)
        return kvx_note(KVX_INVALID, "tier is NULL");
    KVX_TRY(read_config(config, &own));
    kvx_tier *made = calloc(1, sizeof(*made));
    if (!made)
        return kvx_note(KVX_NO_MEMORY, "no memory for a tier");
    made->config = own;
    made->pid = getpid();
    made->memory_bytes = sizeof(*made);
    status = build(made);
    if (status != KVX_OK)
        goto free_tier;
    if (!make_locks(made)) {
        status = kvx_note(KVX_NO_MEMORY, "no memory for locks");
        goto free_parts;
    }
    *tier = made;
    return KVX_OK;

free_parts:
    free_memory(made);
free_tier:
    free(made);
    return status;
}

static int in_flight(kvx_tier *tier)
{
    kvx_stats stats = {.size = sizeof(stats)};
    if (tier->n_running_loads == 0 && tier->n_running_batches == 0)
        return 0;
    return kvx_stats_get(tier->config.ctx, &stats) == KVX_OK && !stats.latched;
}

kvx_status kvx_tier_destroy(kvx_tier *tier)
{
    if (!tier)
        return KVX_OK;
    KVX_TRY(kvx_tier_alive(tier));
    if (tier->config.ctx) {
        kvx_tier_collect_loads(tier);
        kvx_tier_collect_stores(tier);
    }
    if (in_flight(tier))
        return kvx_note(KVX_AGAIN, "%u loads and %u batches of stores are in flight: pump until the tier is idle",
                        tier->n_running_loads, tier->n_running_batches);
    pthread_mutex_destroy(&tier->book);
    pthread_mutex_destroy(&tier->loading);
    pthread_mutex_destroy(&tier->pumping);
    free_memory(tier);
    free(tier);
    return KVX_OK;
}

/* ---- tenants ---- */

kvx_status kvx_tier_tenant_set(kvx_tier *tier, uint32_t tenant, const kvx_tier_tenant *rules)
{
    kvx_tier_tenant own = KVX_TIER_TENANT_INIT;
    KVX_TRY(kvx_tier_alive(tier));
    KVX_TRY(kvx_tier_known_tenant(tier, tenant));
    if (!rules || rules->size < sizeof(rules->size) || rules->size > sizeof(own))
        return kvx_note(KVX_INVALID, "rules is NULL, or its size not set with KVX_TIER_TENANT_INIT");
    memcpy(&own, rules, rules->size);
    pthread_mutex_lock(&tier->book);
    kvx_tier_owner *owner = &tier->tenants[tenant];
    uint32_t n_blocks = owner->n_blocks;
    if (n_blocks == 0) {
        owner->quota_blocks = own.quota_blocks;
        kvx_tier_policy_group(&tier->policy, tenant, own.quota_blocks > 0);
        if (own.set_salt)
            memcpy(&owner->salt, own.salt, sizeof(own.salt));
    }
    pthread_mutex_unlock(&tier->book);
    if (n_blocks > 0)
        return kvx_note(KVX_AGAIN, "tenant %u holds %u blocks: forget them first", tenant, n_blocks);
    return KVX_OK;
}

kvx_status kvx_tier_tenant_blocks(kvx_tier *tier, uint32_t tenant, uint32_t *n_blocks)
{
    KVX_TRY(kvx_tier_alive(tier));
    KVX_TRY(kvx_tier_known_tenant(tier, tenant));
    if (!n_blocks)
        return kvx_note(KVX_INVALID, "n_blocks is NULL");
    pthread_mutex_lock(&tier->book);
    *n_blocks = tier->tenants[tenant].n_blocks;
    pthread_mutex_unlock(&tier->book);
    return KVX_OK;
}
