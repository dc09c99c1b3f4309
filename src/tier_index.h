/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_SRC_TIER_INDEX_H
#define KVX_SRC_TIER_INDEX_H
/*
 * Entries of the cache tier and the table that finds them. Entry number = slot number. What a lookup reads lies in
 * arrays of power-of-two items, so that no item straddles a cache line. The table holds tag and entry number; a tag
 * says where its bucket would like to be, so that buckets can be moved without reading entries.
 */
#include <stddef.h>
#include <stdint.h>

#define KVX_TIER_NONE UINT32_MAX

/* The caller's hash xor the tenant's salt. */
typedef struct kvx_tier_key {
    uint64_t word[4];
} kvx_tier_key;

typedef enum kvx_tier_state {
    KVX_TIER_FREE,
    KVX_TIER_QUEUED_STATE,    /* waits for its store to start */
    KVX_TIER_STORING,         /* its store is in flight */
    KVX_TIER_HELD_STATE,      /* can be loaded; in a queue of the policy */
    KVX_TIER_LIMBO,           /* out of the table, still pinned */
    KVX_TIER_TO_BE_DISCARDED, /* out of the table, waits for kvx_discard() */
} kvx_tier_state;

enum {
    KVX_TIER_DOOMED = 1,  /* out of the table, its store still in flight */
    KVX_TIER_MOVED = 2,   /* on the GPU now: goes with its last pin */
    KVX_TIER_DISCARD = 4, /* the slot is to be discarded before it is free */
};

typedef struct kvx_tier_entry {
    uint32_t generation; /* of the slot; grows whenever the entry is taken */
    uint32_t since_ms;   /* when it was stored */
    uint16_t pins;
    uint8_t state;
    uint8_t flags;
    uint8_t tenant;
    uint8_t queue; /* the policy's */
    uint8_t used;  /* the policy's: used since it was queued */
    uint8_t spare;
} kvx_tier_entry;

/* Neighbours in a queue of the policy, in the list of free entries, or of those to be discarded; while a store is
 * queued or in flight, `prev` is its record. */
typedef struct kvx_tier_link {
    uint32_t prev, next;
    uint32_t stamp; /* the policy's clock when it was linked */
} kvx_tier_link;

typedef struct kvx_tier_index {
    kvx_tier_key *keys;
    kvx_tier_entry *entries;
    kvx_tier_link *links;
    uint64_t *buckets; /* tag << 32 | entry + 1; 0: empty */
    uint32_t n_entries, n_buckets;
    uint64_t seed[4];
    uint64_t memory_bytes;
} kvx_tier_index;

/* Zeroed memory, in huge pages where it is large and they can be had; NULL if there is none. */
void *kvx_tier_alloc(uint64_t n, uint64_t item_bytes, uint64_t *memory_bytes);

/* Nonzero on success; destroy also takes what create left behind. `seed` is to be random. */
int kvx_tier_index_create(kvx_tier_index *index, uint32_t n_entries, const uint64_t seed[4]);
void kvx_tier_index_destroy(kvx_tier_index *index);

uint32_t kvx_tier_index_tag(const kvx_tier_index *index, const kvx_tier_key *key);

/* Hints to the CPU: fetches the bucket of a tag; then, once that has come, what belongs to the entry that it probably
 * names, which is returned (or KVX_TIER_NONE). */
void kvx_tier_index_prefetch(const kvx_tier_index *index, uint32_t tag);
uint32_t kvx_tier_index_guess(const kvx_tier_index *index, uint32_t tag);

/* The entry with this key and tenant, or KVX_TIER_NONE. */
uint32_t kvx_tier_index_find(const kvx_tier_index *index, uint32_t tag, const kvx_tier_key *key, uint32_t tenant);

/* The same, given a guess made since the table last changed: a good guess saves the search. */
uint32_t kvx_tier_index_confirm(const kvx_tier_index *index, uint32_t guess, uint32_t tag, const kvx_tier_key *key,
                                uint32_t tenant);

/* Makes an entry, whose key and tenant are set, findable, and no longer. It must not be, and must be. */
void kvx_tier_index_add(kvx_tier_index *index, uint32_t entry);
void kvx_tier_index_remove(kvx_tier_index *index, uint32_t entry);

#endif
