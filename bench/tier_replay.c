/* SPDX-License-Identifier: Apache-2.0 */
/* One trace against one dry tier. A request asks for its chain, loads what is held, and offers the blocks it had to
 * compute, so that each block of a request counts as used once. Everything has settled before the next request. */
#include "tier.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CHUNK = 64 }; /* blocks offered before the tier gets a chance to store them */

const replay_policy replay_policies[TIER_POLICIES] = {
    {"LRU", "lru", "through", KVX_TIER_EVICT_LRU, KVX_TIER_WRITE_THROUGH, false},
    {"aged LRU", "aged", "through", KVX_TIER_EVICT_AGED, KVX_TIER_WRITE_THROUGH, false},
    {"through", "aged", "through", KVX_TIER_EVICT_AGED, KVX_TIER_WRITE_THROUGH, true},
    {"selective", "aged", "selective", KVX_TIER_EVICT_AGED, KVX_TIER_WRITE_SELECTIVE, true},
    {"back", "aged", "back", KVX_TIER_EVICT_AGED, KVX_TIER_WRITE_BACK, true},
};

typedef struct player {
    const trace *t;
    kvx_tier *tier;
    gpu_cache gpu;
    bool has_gpu;
    uint64_t now_ns;
    /* of the request at hand; room for the longest */
    uint32_t n;
    const uint32_t *blocks;
    kvx_tier_hash *hashes;
    kvx_tier_pin *pins;
    kvx_tier_target *targets;
    uint32_t *leaving, *used;
    uint32_t n_targets, n_used;
    replay_result *result;
} player;

/* Until nothing is queued or in flight. A dry batch has ended as soon as it was started. */
static bool settle(player *p)
{
    uint32_t i;
    if (!tier_ok(kvx_tier_flush(p->tier), "kvx_tier_flush"))
        return false;
    for (i = 0; i < 1000; i++) {
        if (!tier_ok(kvx_tier_pump(p->tier, p->now_ns, NULL), "kvx_tier_pump"))
            return false;
        if (kvx_tier_idle(p->tier) == KVX_OK)
            return true;
    }
    fputs("the tier does not come to rest\n", stderr);
    return false;
}

static bool offer_chunk(player *p, kvx_tier_occasion occasion, uint32_t n, const uint32_t *blocks, uint32_t *n_found)
{
    kvx_tier_block offered[CHUNK];
    kvx_tier_outcome outcomes[CHUNK];
    uint32_t i;
    for (i = 0; i < n; i++) {
        offered[i].hash = p->t->hashes[blocks[i]];
        offered[i].tenant = 0;
        offered[i].block = blocks[i];
        offered[i].layout = NULL;
    }
    if (!tier_ok(kvx_tier_offer(p->tier, occasion, n, offered, outcomes), "kvx_tier_offer"))
        return false;
    for (i = 0; i < n; i++) {
        *n_found += outcomes[i] == KVX_TIER_HELD || outcomes[i] == KVX_TIER_JOINED;
        p->result->n_no_room += outcomes[i] == KVX_TIER_NO_ROOM;
    }
    return settle(p);
}

/* n_found: blocks that the tier held already. */
static bool offer(player *p, kvx_tier_occasion occasion, uint32_t n, const uint32_t *blocks, uint32_t *n_found)
{
    uint32_t at, some;
    *n_found = 0;
    for (at = 0; at < n; at += some) {
        some = n - at < CHUNK ? n - at : CHUNK;
        if (!offer_chunk(p, occasion, some, blocks + at, n_found))
            return false;
    }
    return true;
}

/* ------------------------------------------------------------------------------------------------ without a GPU cache
 */

static bool play_plain(player *p)
{
    kvx_tier_match match;
    uint32_t n_found;
    if (!tier_ok(kvx_tier_lookup(p->tier, 0, p->n, p->hashes, &match, NULL), "kvx_tier_lookup"))
        return false;
    p->result->n_prefix += match.n_hits;
    if (!offer(p, KVX_TIER_USED, p->n - match.n_hits, p->blocks + match.n_hits, &n_found))
        return false;
    p->result->n_found += match.n_hits + n_found;
    return true;
}

/* --------------------------------------------------------------------------------------------------- behind a GPU
 * cache */

/* The chain's blocks become the newest, its head the very newest. What has to leave is offered. */
static bool enter_gpu(player *p)
{
    uint32_t i, n_leaving = 0, n_found;
    for (i = p->n; i-- > 0;)
        if (p->gpu.held[p->blocks[i]])
            gpu_touch(&p->gpu, p->blocks[i]);
    for (i = p->n; i-- > 0;)
        if (!p->gpu.held[p->blocks[i]] && gpu_insert(&p->gpu, p->blocks[i], &p->leaving[n_leaving]))
            n_leaving++;
    return offer(p, KVX_TIER_LEAVING, n_leaving, p->leaving, &n_found);
}

/* A stretch of the chain that the GPU does not have: what the tier has of it becomes targets. */
static bool find_stretch(player *p, uint32_t first, uint32_t n, uint32_t *n_hits)
{
    kvx_tier_match match;
    uint32_t i;
    if (!tier_ok(kvx_tier_lookup(p->tier, 0, n, p->hashes + first, &match, p->pins), "kvx_tier_lookup"))
        return false;
    *n_hits = match.n_hits;
    for (i = 0; i < match.n_hits; i++) {
        kvx_tier_target *target = &p->targets[p->n_targets++];
        target->pin = p->pins[i];
        target->layout = NULL;
        target->block = p->blocks[first + i];
    }
    return true;
}

/* Blocks of the GPU and of the tier may take turns. `used`: all blocks but those to be loaded. */
static bool find_prefix(player *p)
{
    uint32_t at = 0, end, n_hits = 0;
    p->n_targets = p->n_used = 0;
    while (at < p->n) {
        if (p->gpu.held[p->blocks[at]]) {
            p->used[p->n_used++] = p->blocks[at++];
            p->result->n_gpu++;
            continue;
        }
        for (end = at; end < p->n && !p->gpu.held[p->blocks[end]]; end++)
            ;
        if (!find_stretch(p, at, end - at, &n_hits))
            return false;
        at += n_hits;
        if (at < end)
            break;
    }
    p->result->n_prefix += at;
    while (at < p->n)
        p->used[p->n_used++] = p->blocks[at++];
    return true;
}

static bool load(player *p)
{
    kvx_tier_load_id id;
    uint32_t n_failed;
    if (p->n_targets == 0)
        return true;
    if (!tier_ok(kvx_tier_load(p->tier, p->n_targets, p->targets, NULL, &id), "kvx_tier_load") || !settle(p) ||
        !tier_ok(kvx_tier_load_poll(p->tier, id, &n_failed, 0, NULL), "kvx_tier_load_poll"))
        return false;
    if (n_failed)
        fprintf(stderr, "%u blocks of a dry load failed\n", n_failed);
    return n_failed == 0;
}

static bool play_behind_gpu(player *p)
{
    uint32_t n_found;
    return find_prefix(p) && enter_gpu(p) && load(p) && offer(p, KVX_TIER_USED, p->n_used, p->used, &n_found);
}

/* -------------------------------------------------------------------------------------------------------------- replay
 */

static bool play(player *p)
{
    const trace *t = p->t;
    uint64_t r;
    uint32_t i;
    for (r = 0; r < t->n_requests; r++) {
        p->n = t->requests[r].n;
        p->blocks = t->blocks + t->requests[r].first;
        for (i = 0; i < p->n; i++)
            p->hashes[i] = t->hashes[p->blocks[i]];
        if (t->requests[r].time_ns > p->now_ns)
            p->now_ns = t->requests[r].time_ns;
        if (p->n && !(p->has_gpu ? play_behind_gpu(p) : play_plain(p)))
            return false;
        p->result->n_blocks += p->n;
    }
    return true;
}

static bool read_counters(player *p)
{
    kvx_tier_stats stats;
    stats.size = sizeof(stats);
    if (!tier_ok(kvx_tier_stats_get(p->tier, &stats), "kvx_tier_stats_get"))
        return false;
    p->result->n_stored = stats.stored_blocks;
    return true;
}

static bool player_open(player *p, const tier_options *o, const replay_policy *policy, uint32_t capacity)
{
    kvx_tier_config config = KVX_TIER_CONFIG_INIT;
    const size_t longest = (size_t)p->t->longest + 1;
    p->hashes = malloc(longest * sizeof(*p->hashes));
    p->pins = malloc(longest * sizeof(*p->pins));
    p->targets = malloc(longest * sizeof(*p->targets));
    p->leaving = malloc(longest * sizeof(*p->leaving));
    p->used = malloc(longest * sizeof(*p->used));
    if (!p->hashes || !p->pins || !p->targets || !p->leaving || !p->used) {
        fputs("no memory for a request\n", stderr);
        return false;
    }
    if (policy->behind_gpu && !gpu_create(&p->gpu, p->t->n_distinct, o->gpu_blocks))
        return false;
    p->has_gpu = policy->behind_gpu;
    config.n_blocks = capacity ? capacity : p->t->n_distinct;
    config.write = policy->write;
    config.evict = policy->evict;
    config.selective_hits = o->hits;
    return tier_ok(kvx_tier_create(&config, &p->tier), "kvx_tier_create");
}

static bool player_close(player *p)
{
    const bool done = tier_ok(kvx_tier_destroy(p->tier), "kvx_tier_destroy");
    if (p->has_gpu)
        gpu_destroy(&p->gpu);
    free(p->hashes);
    free(p->pins);
    free(p->targets);
    free(p->leaving);
    free(p->used);
    return done;
}

bool replay(const trace *t, const tier_options *o, const replay_policy *policy, uint32_t capacity,
            replay_result *result)
{
    player p;
    bool done;
    memset(&p, 0, sizeof(p));
    memset(result, 0, sizeof(*result));
    p.t = t;
    p.result = result;
    done = player_open(&p, o, policy, capacity) && play(&p) && read_counters(&p);
    if (policy->behind_gpu) /* a block behind a gap is of no use there, and is not counted */
        result->n_found = result->n_prefix;
    return player_close(&p) && done;
}
