/* SPDX-License-Identifier: Apache-2.0 */
/* Would a context be created here, under each policy? */
#include "info.h"

#include <stdio.h>
#include <string.h>

static void keep_note(info_attempt *attempt)
{
    (void)snprintf(attempt->note, sizeof attempt->note, "%s", kvx_last_error());
}

static void try_policy(kvx_pool *pool, kvx_engine engine, info_attempt *attempt)
{
    kvx_key_config keys = KVX_KEY_CONFIG_INIT;
    kvx_config config = KVX_CONFIG_INIT;
    kvx_stats stats = {.size = sizeof stats};
    kvx_ctx *ctx = NULL;
    keys.policy = attempt->policy;
    config.engine = engine;
    config.keys = &keys;
    config.max_tickets = 4;
    config.max_pairs = 16;
    attempt->status = kvx_ctx_create(pool, &config, &ctx);
    if (attempt->status != KVX_OK) {
        keep_note(attempt);
        return;
    }
    if (kvx_stats_get(ctx, &stats) == KVX_OK) {
        attempt->engine = stats.engine;
        (void)snprintf(attempt->note, sizeof attempt->note, "%s", stats.engine_note);
    }
    kvx_ctx_destroy(ctx);
}

void info_try(kvx_engine engine, info_attempt attempts[INFO_N_POLICIES])
{
    static const kvx_slot_class class = {.slot_bytes = 65536, .n_slots = 4, .max_units = 4};
    kvx_pool_config config = KVX_POOL_CONFIG_INIT;
    kvx_pool *pool = NULL;
    kvx_status status;
    config.classes = &class;
    config.n_classes = 1;
    config.engine = engine;
    status = kvx_pool_create(&config, &pool);
    for (int i = 0; i < INFO_N_POLICIES; i++) {
        memset(&attempts[i], 0, sizeof attempts[i]);
        attempts[i].policy = (kvx_policy)i;
        attempts[i].status = status;
        if (status == KVX_OK)
            try_policy(pool, engine, &attempts[i]);
        else
            keep_note(&attempts[i]);
    }
    (void)kvx_pool_destroy(pool);
}
