/* SPDX-License-Identifier: Apache-2.0 */
/* Short forms of a dry tier's calls. */
#include "tier_dry.h"

kvx_tier_hash dry_hash(uint32_t name)
{
    kvx_tier_hash hash;
    uint64_t word = name;
    for (uint32_t w = 0; w < 4; w++) {
        uint64_t mixed = random_word(&word);
        memcpy(&hash.bytes[8 * w], &mixed, sizeof mixed);
    }
    return hash;
}

kvx_tier *dry_open(uint32_t n_blocks, kvx_tier_write write, kvx_tier_evict evict)
{
    kvx_tier_config config = KVX_TIER_CONFIG_INIT;
    kvx_tier *tier = NULL;
    config.n_blocks = n_blocks;
    config.write = write;
    config.evict = evict;
    config.n_tenants = 4;
    config.batch_blocks = 1;
    config.block_bytes = 100;
    expect_ok(kvx_tier_create(&config, &tier));
    return tier;
}

kvx_tier_outcome dry_offer(kvx_tier *tier, kvx_tier_occasion occasion, uint32_t tenant, uint32_t name)
{
    kvx_tier_block block = {dry_hash(name), tenant, name, NULL};
    kvx_tier_outcome outcome;
    expect_ok(kvx_tier_offer(tier, occasion, 1, &block, &outcome));
    return outcome;
}

void dry_pump(kvx_tier *tier)
{
    expect_ok(kvx_tier_pump(tier, 0, NULL));
}

void dry_store(kvx_tier *tier, uint32_t tenant, uint32_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(dry_offer(tier, KVX_TIER_USED, tenant, first + i), KVX_TIER_QUEUED);
        dry_pump(tier);
    }
}

uint32_t dry_hits(kvx_tier *tier, uint32_t tenant, uint32_t first, uint32_t n)
{
    kvx_tier_hash hashes[64];
    kvx_tier_match match;
    for (uint32_t i = 0; i < n; i++)
        hashes[i] = dry_hash(first + i);
    expect_ok(kvx_tier_lookup(tier, tenant, n, hashes, &match, NULL));
    return match.n_hits;
}

int dry_held(kvx_tier *tier, uint32_t tenant, uint32_t name)
{
    kvx_tier_block block = {dry_hash(name), tenant, name, NULL};
    kvx_tier_drop_answer answer;
    expect_ok(kvx_tier_may_drop(tier, 1, &block, &answer));
    return answer == KVX_TIER_KEEP;
}

kvx_tier_stats dry_stats(kvx_tier *tier)
{
    kvx_tier_stats stats = {.size = sizeof stats};
    expect_ok(kvx_tier_stats_get(tier, &stats));
    return stats;
}
