/* SPDX-License-Identifier: Apache-2.0 */
/* Robin Hood hashing with linear probing: whoever is farther from home takes the bucket, so that a search may end as
 * soon as it meets a bucket that is nearer to its home. Removal shifts back; there are no tombstones. Load: at most
 * 0.8. */
#include "tier_index.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE ((uint64_t)2 << 20)

__extension__ typedef unsigned __int128 wide;

void *kvx_tier_alloc(uint64_t n, uint64_t item_bytes, uint64_t *memory_bytes)
{
    uint64_t bytes = n * item_bytes;
    void *memory;
    if (bytes < 4 * HUGE_PAGE) {
        memory = calloc(n, item_bytes);
    } else {
        bytes = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
        memory = aligned_alloc(HUGE_PAGE, bytes);
        if (memory) {
            (void)madvise(memory, bytes, MADV_HUGEPAGE); /* a hint: small pages do as well */
            memset(memory, 0, bytes);
        }
    }
    if (memory)
        *memory_bytes += bytes;
    return memory;
}

int kvx_tier_index_create(kvx_tier_index *index, uint32_t n_entries, const uint64_t seed[4])
{
    memset(index, 0, sizeof(*index));
    index->n_entries = n_entries;
    index->n_buckets = n_entries + n_entries / 4 + 8;
    memcpy(index->seed, seed, sizeof(index->seed));
    index->keys = kvx_tier_alloc(n_entries, sizeof(*index->keys), &index->memory_bytes);
    index->entries = kvx_tier_alloc(n_entries, sizeof(*index->entries), &index->memory_bytes);
    index->links = kvx_tier_alloc(n_entries, sizeof(*index->links), &index->memory_bytes);
    index->buckets = kvx_tier_alloc(index->n_buckets, sizeof(*index->buckets), &index->memory_bytes);
    return index->keys && index->entries && index->links && index->buckets;
}

void kvx_tier_index_destroy(kvx_tier_index *index)
{
    free(index->keys);
    free(index->entries);
    free(index->links);
    free(index->buckets);
    memset(index, 0, sizeof(*index));
}

static uint64_t fold(uint64_t a, uint64_t b)
{
    wide product = (wide)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Keyed by the seed: whoever can choose hashes but does not know it cannot aim at one bucket. */
uint32_t kvx_tier_index_tag(const kvx_tier_index *index, const kvx_tier_key *key)
{
    const uint64_t *seed = index->seed;
    uint64_t low = fold(key->word[0] ^ seed[0], key->word[1] ^ seed[1]);
    uint64_t high = fold(key->word[2] ^ seed[2], key->word[3] ^ seed[3]);
    return (uint32_t)(fold(low ^ seed[1], high ^ seed[2] ^ 0x9e3779b97f4a7c15u) >> 32);
}

static uint32_t home_of(const kvx_tier_index *index, uint32_t tag)
{
    return (uint32_t)((uint64_t)tag * index->n_buckets >> 32);
}

static uint32_t after(const kvx_tier_index *index, uint32_t i)
{
    return i + 1 < index->n_buckets ? i + 1 : 0;
}

/* How far the bucket in place i is from its home. */
static uint32_t distance(const kvx_tier_index *index, uint32_t i)
{
    uint32_t home = home_of(index, (uint32_t)(index->buckets[i] >> 32));
    return i >= home ? i - home : i + index->n_buckets - home;
}

void kvx_tier_index_prefetch(const kvx_tier_index *index, uint32_t tag)
{
    __builtin_prefetch(&index->buckets[home_of(index, tag)]);
}

/* The first place whose bucket has this tag, from place i at a distance of d on; n_buckets if there is none. */
static uint32_t probe(const kvx_tier_index *index, uint32_t tag, uint32_t i, uint32_t d)
{
    for (;; i = after(index, i), d++) {
        uint64_t bucket = index->buckets[i];
        if (bucket == 0)
            return index->n_buckets;
        if (bucket >> 32 == tag)
            return i;
        if (distance(index, i) < d)
            return index->n_buckets;
    }
}

static uint32_t entry_at(const kvx_tier_index *index, uint32_t i)
{
    return (uint32_t)index->buckets[i] - 1;
}

uint32_t kvx_tier_index_guess(const kvx_tier_index *index, uint32_t tag)
{
    uint32_t i = probe(index, tag, home_of(index, tag), 0);
    if (i == index->n_buckets)
        return KVX_TIER_NONE;
    uint32_t entry = entry_at(index, i);
    __builtin_prefetch(&index->keys[entry]);
    __builtin_prefetch(&index->entries[entry], 1);
    return entry;
}

static int is_same(const kvx_tier_index *index, uint32_t entry, const kvx_tier_key *key, uint32_t tenant)
{
    const kvx_tier_key *own = &index->keys[entry];
    uint64_t differs = (own->word[0] ^ key->word[0]) | (own->word[1] ^ key->word[1]) | (own->word[2] ^ key->word[2]) |
                       (own->word[3] ^ key->word[3]);
    return differs == 0 && index->entries[entry].tenant == tenant;
}

/* The place of a key, or n_buckets. */
static uint32_t place_of(const kvx_tier_index *index, uint32_t tag, const kvx_tier_key *key, uint32_t tenant)
{
    uint32_t home = home_of(index, tag);
    uint32_t i = probe(index, tag, home, 0);
    while (i != index->n_buckets && !is_same(index, entry_at(index, i), key, tenant)) {
        i = after(index, i);
        i = probe(index, tag, i, i >= home ? i - home : i + index->n_buckets - home);
    }
    return i;
}

uint32_t kvx_tier_index_find(const kvx_tier_index *index, uint32_t tag, const kvx_tier_key *key, uint32_t tenant)
{
    uint32_t i = place_of(index, tag, key, tenant);
    return i == index->n_buckets ? KVX_TIER_NONE : entry_at(index, i);
}

uint32_t kvx_tier_index_confirm(const kvx_tier_index *index, uint32_t guess, uint32_t tag, const kvx_tier_key *key,
                                uint32_t tenant)
{
    if (guess == KVX_TIER_NONE || is_same(index, guess, key, tenant))
        return guess;
    return kvx_tier_index_find(index, tag, key, tenant);
}

void kvx_tier_index_add(kvx_tier_index *index, uint32_t entry)
{
    uint32_t tag = kvx_tier_index_tag(index, &index->keys[entry]);
    uint64_t carried = (uint64_t)tag << 32 | (entry + 1);
    uint32_t i = home_of(index, tag), d = 0;
    while (index->buckets[i] != 0) {
        uint32_t other = distance(index, i);
        if (other < d) {
            uint64_t displaced = index->buckets[i];
            index->buckets[i] = carried;
            carried = displaced;
            d = other;
        }
        i = after(index, i);
        d++;
    }
    index->buckets[i] = carried;
}

void kvx_tier_index_remove(kvx_tier_index *index, uint32_t entry)
{
    const kvx_tier_key *key = &index->keys[entry];
    uint32_t i = place_of(index, kvx_tier_index_tag(index, key), key, index->entries[entry].tenant);
    uint32_t next = after(index, i);
    while (index->buckets[next] != 0 && distance(index, next) > 0) {
        index->buckets[i] = index->buckets[next];
        i = next;
        next = after(index, next);
    }
    index->buckets[i] = 0;
}
