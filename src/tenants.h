/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_SRC_TENANTS_H
#define KVX_SRC_TENANTS_H
/*
 * Which epoch of which tenant lives in which key slot: the books that join keyring and engine. An epoch is a key: NEXT
 * until the tenant's sealing moves on to it, then CURRENT, then OLD until its last block is gone. Guarded by the
 * context's `submit` lock.
 */
#include "kvx_keys.h"
#include "keyring.h"

enum kvx_epoch_phase { KVX_EPOCH_FREE, KVX_EPOCH_NEXT, KVX_EPOCH_CURRENT, KVX_EPOCH_OLD };

#define KVX_NO_PLACE UINT32_MAX

typedef struct kvx_epoch {
    uint64_t number; /* counted per tenant, from 1; never used twice */
    uint32_t tenant;
    uint32_t generation; /* of the key slot; stays when the epoch goes */
    enum kvx_epoch_phase phase;
} kvx_epoch;

typedef struct kvx_tenant {
    uint64_t last_number;   /* of epochs made so far, erased lives included */
    uint64_t n_epochs;      /* in this life */
    uint64_t since_ns;      /* when the current key took over */
    uint32_t current, next; /* places; KVX_NO_PLACE: none */
    uint32_t is_open;
} kvx_tenant;

typedef struct kvx_tenants {
    uint32_t n_tenants, n_places, n_free;
    uint64_t rotate_ns, soft_limit, hard_limit;
    uint64_t retry_ns;          /* when to look for a place again */
    kvx_tenant *tenants;        /* n_tenants */
    kvx_epoch *epochs;          /* n_places: one for each key slot */
    uint64_t *n_blocks, *spent; /* n_places each: the last census */
    uint8_t *is_left;
} kvx_tenants;

/* Fills in defaults and checks limits. */
kvx_status kvx_tenants_check(kvx_key_config *config, uint32_t n_tenants);
kvx_status kvx_tenants_create(const kvx_key_config *config, uint32_t n_tenants, kvx_tenants **tenants);
void kvx_tenants_destroy(kvx_tenants *tenants);

/* Opens every tenant, when the context is made. */
kvx_status kvx_tenants_open_all(kvx_ctx *ctx);
/* Erases every tenant, as far as the engine lets go of keys. */
void kvx_tenants_erase_all(kvx_ctx *ctx);
/* Before a store: has the tenant moved on, is it time to? Never waits; what cannot be done now is done at the next
 * call. `tenant` is in range. */
void kvx_tenants_serve(kvx_ctx *ctx, uint32_t tenant);

#endif
