/* SPDX-License-Identifier: Apache-2.0 */
/* Pools over the fake driver: made, refused, asked, taken down. */
#include "pool_scene.h"

#include <string.h>
#include <time.h>

/* 8 chunks: 6 of a class kept by the pool, then 2 of one kept by the caller. */
static const kvx_slot_class classes[] = {{SLOT, 6 * PER_CHUNK, 1, 0}, {SLOT, 2 * PER_CHUNK, 1, 1}};

kvx_pool_config fill_config(void)
{
    kvx_pool_config config = KVX_POOL_CONFIG_INIT;
    config.classes = classes;
    config.n_classes = 2;
    config.chunk_bytes = CHUNK;
    config.n_threads = 3;
    return config;
}

int fill_set_up(void **state)
{
    (void)state;
    fake_reset();
    return 0;
}

kvx_pool *fill_create(const kvx_pool_config *config)
{
    kvx_pool *pool = NULL;
    kvx_status status = kvx_pool_create(config, &pool);
    if (status != KVX_OK)
        fail_msg("%s: %s", kvx_status_text(status), kvx_last_error());
    return pool;
}

/* Ends in `wanted` with both words in the note, and nothing left. */
void fill_refuse(const kvx_pool_config *config, kvx_status wanted, const char *word, const char *other)
{
    kvx_pool *pool = NULL;
    assert_int_equal(kvx_pool_create(config, &pool), wanted);
    assert_null(pool);
    if (!strstr(kvx_last_error(), word) || !strstr(kvx_last_error(), other))
        fail_msg("the note names not \"%s\" and \"%s\": %s", word, other, kvx_last_error());
    fake_expect_nothing_left();
}

void fill_destroy(kvx_pool *pool)
{
    assert_int_equal(kvx_pool_destroy(pool), KVX_OK);
    fake_expect_nothing_left();
}

kvx_pool_stats fill_stats(kvx_pool *pool)
{
    kvx_pool_stats stats = {.size = sizeof stats};
    assert_int_equal(kvx_pool_stats_get(pool, &stats), KVX_OK);
    return stats;
}

void fill_expect_zero(kvx_pool *pool)
{
    const kvx_pool_view *view = kvx_pool_view_of(pool);
    for (uint32_t i = 0; i < view->n_chunks; i++)
        for (uint64_t at = 0; at < view->chunks[i].bytes; at += 4096)
            assert_int_equal(view->chunks[i].host[at], 0);
}

kvx_status fill_pin_one(kvx_pool *pool, kvx_slot slot, int writing)
{
    uint32_t flat;
    uint8_t refusal;
    kvx_pool_pin pin = {1, (uint32_t)writing, 1, &slot, sizeof slot, &flat, &refusal};
    kvx_status status = kvx_pool_pin_slots(pool, &pin);
    if (status == KVX_OK)
        kvx_pool_unpin(pool, 1, &flat);
    return status;
}

void fill_nap(void)
{
    struct timespec time = {0, 1000000};
    nanosleep(&time, NULL);
}
