/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_TESTS_TIER_DRY_H
#define KVX_TESTS_TIER_DRY_H
/* A dry tier and short forms of its calls. Blocks have numbers for names. */
#include "support.h"

#include "kvx_tier.h"

kvx_tier_hash dry_hash(uint32_t name);
/* Four tenants, batches of one, so that an offer and a pump make a block held. */
kvx_tier *dry_open(uint32_t n_blocks, kvx_tier_write write, kvx_tier_evict evict);
kvx_tier_outcome dry_offer(kvx_tier *tier, kvx_tier_occasion occasion, uint32_t tenant, uint32_t name);
void dry_pump(kvx_tier *tier);
/* Blocks first, first + 1, ... are new, and held afterwards. */
void dry_store(kvx_tier *tier, uint32_t tenant, uint32_t first, uint32_t n);
/* Leading blocks of the chain first, first + 1, ... (at most 64) that are held; counts as a use. */
uint32_t dry_hits(kvx_tier *tier, uint32_t tenant, uint32_t first, uint32_t n);
/* Held? Does not count as a use. */
int dry_held(kvx_tier *tier, uint32_t tenant, uint32_t name);
kvx_tier_stats dry_stats(kvx_tier *tier);

#endif
