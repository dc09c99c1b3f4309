/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_TESTS_TIER_SERVER_H
#define KVX_TESTS_TIER_SERVER_H
/*
 * A model of serving code on the cache tier: requests name chains of blocks; what is neither on the GPU nor in the tier
 * is computed. Every block that is served, be it found or loaded, is compared with what it must hold. Servers count
 * what is wrong instead of asserting, for they also run in threads.
 */
#include "support.h"

#include "kvx_tier.h"

#define N_GPU 20u   /* blocks on each server's GPU */
#define N_CHAIN 8u  /* blocks of the longest chain */
#define N_TALKS 10u /* chains per tenant */
#define N_TENANTS 3u
#define N_SLOTS 40u /* of the tier; the working set is six times as large */
#define N_SERVERS 4u
#define QUOTA 9u /* of tenant 2 */

typedef struct hall hall;

/* A block of the GPU and what it holds. */
typedef struct place {
    kvx_tier_block name;
    uint64_t seed; /* 0: nothing */
    uint32_t last_use;
} place;

typedef struct server {
    hall *h;
    uint32_t index;
    uint32_t n_wrong;
    kvx_stream stream;
    tensors t;
    kvx_layout *layout;
    place places[N_GPU];
    uint32_t clock;
    uint64_t random;
    uint32_t n_on_gpu, n_loaded, n_refused, n_computed; /* blocks served, by where they came from; loads refused */
} server;

/* What the servers share. */
struct hall {
    const device *dev;
    kvx_pool *pool;
    kvx_ctx *ctx;
    kvx_tier *tier;
    uint32_t n_servers;
    server servers[N_SERVERS];
    uint8_t *stolen; /* a slot's bytes, kept to be put back later */
    size_t sealed;
    uint32_t may_latch; /* KVX_LATCHED is no surprise */
    atomic_int stop;
};

typedef struct hall_options {
    kvx_tier_write write;
    kvx_tier_evict evict;
    kvx_tamper_policy policy;
    uint32_t n_servers; /* 0: 1 */
} hall_options;

void hall_open(hall *h, const device *dev, const hall_options *options);
/* Waits until the tier is idle, checks that its counters agree with each other, and takes all down. */
void hall_close(hall *h);
void hall_settle(hall *h);
void hall_expect_nothing_wrong(const hall *h);
kvx_tier_stats hall_stats(hall *h);

/* Content, name and seed of block i of a chain: seeds differ between tenants, hashes do not. */
uint64_t chain_seed(uint32_t tenant, uint32_t talk, uint32_t i);
kvx_tier_hash chain_hash(uint32_t talk, uint32_t i);

/* Serves the first n blocks of a chain. */
void serve(server *self, uint32_t tenant, uint32_t talk, uint32_t n);
void serve_random(server *self);

/* Gives a GPU block content and name. */
void server_compute(server *self, uint32_t block, uint32_t tenant, uint32_t talk, uint32_t i);
/* Empties a GPU block as an engine would: offers it, and waits until it may be dropped. */
kvx_tier_drop_answer server_evict(server *self, uint32_t block);
void server_pump(server *self);

/* Somebody who knows what the tier holds from its events only. */
typedef struct router {
    uint8_t held[N_TENANTS][N_TALKS][N_CHAIN];
    uint64_t sequence;
} router;

void router_follow(router *m, hall *h);
uint32_t router_count(const router *m);

/* The host changes the pool: flips, zeroes, swaps, keeps a slot for later, puts it back. */
void tamper(hall *h, uint64_t *random);

#define NEED(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            print_error("server %u: %s is false; note: %s\n", self->index, #condition, kvx_last_error());              \
            self->n_wrong++;                                                                                           \
        }                                                                                                              \
    } while (0)

#endif
