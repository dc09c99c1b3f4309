/* SPDX-License-Identifier: Apache-2.0 */
/* See pool_units.h. */
#include "pool_units.h"

#include <string.h>
#include <unistd.h>

kvx_status units_create(uint32_t n_units, uint64_t shared_units, kvx_pool **pool)
{
    kvx_slot_class class = {SLOT, n_units * PER_UNIT, 1, 0};
    kvx_pool_config config = KVX_POOL_CONFIG_INIT;
    config.classes = &class;
    config.n_classes = 1;
    config.engine = KVX_ENGINE_CPU;
    config.shared_bytes = shared_units * UNIT;
    config.chunk_bytes = UNIT;
    return kvx_pool_create(&config, pool);
}

kvx_pool *units_own(int fds[2])
{
    kvx_pool *pool = NULL;
    assert_int_equal(units_create(2, N_UNITS, &pool), KVX_OK);
    assert_int_equal(kvx_pool_export(pool, fds), KVX_OK);
    return pool;
}

void units_disown(kvx_pool *pool, const int fds[2])
{
    close(fds[0]);
    close(fds[1]);
    assert_int_equal(kvx_pool_destroy(pool), KVX_OK);
}

kvx_status units_join(const int fds[2], uint32_t n_units, kvx_pool **pool)
{
    kvx_slot_class class = {SLOT, n_units * PER_UNIT, 1, 0};
    kvx_pool_config config = KVX_POOL_CONFIG_INIT;
    config.classes = &class;
    config.n_classes = 1;
    config.engine = KVX_ENGINE_CPU;
    *pool = NULL;
    return kvx_pool_join(&config, fds, pool);
}

void units_refuse(const int fds[2], kvx_status wanted, const char *word)
{
    kvx_pool *pool;
    assert_int_equal(units_join(fds, 1, &pool), wanted);
    assert_null(pool);
    if (!strstr(kvx_last_error(), word))
        fail_msg("the note does not say \"%s\": %s", word, kvx_last_error());
}
