/* SPDX-License-Identifier: Apache-2.0 */
/* How a pool gets its memory when all goes well and when anything fails: each failure ends in the stated status with
 * nothing left behind. The driver is the fake of pool_fake.c, so no GPU is needed. */
#include "pool_scene.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

/* --------------------------------------------------------------------------------------------------- going well */

static void all_is_pinned(void **state)
{
    kvx_pool_config config = fill_config();
    (void)state;
    kvx_pool *pool = fill_create(&config);
    kvx_pool_stats stats = fill_stats(pool);
    assert_int_equal(fake.n_registered, N_CHUNKS);
    assert_int_equal(stats.fill, KVX_OK);
    assert_int_equal(stats.pinned, 1);
    assert_int_equal(stats.from_driver, 0);
    assert_int_equal(stats.n_chunks, N_CHUNKS);
    assert_int_equal(stats.n_chunks_ready, N_CHUNKS);
    assert_int_equal(stats.bytes_asked, N_CHUNKS * CHUNK);
    assert_int_equal(stats.bytes_held, N_CHUNKS * CHUNK);
    assert_int_equal(stats.bytes_pinned, N_CHUNKS * CHUNK);
    assert_int_equal(stats.record_bytes, 8 * PER_CHUNK * (sizeof(kvx_header) + sizeof(kvx_record)));
    assert_int_equal(stats.slots_free, 6 * PER_CHUNK);
    assert_true(stats.first_ns > 0 && stats.first_ns <= stats.ready_ns && stats.touch_ns <= stats.ready_ns);
    assert_int_equal(kvx_pool_wait(pool, 0), KVX_OK);
    fill_expect_zero(pool);
    fill_destroy(pool);
}

static void sizes_are_exact(void **state)
{
    static const kvx_slot_class odd = {5000, 1001, 2, 0};
    kvx_pool_config config = KVX_POOL_CONFIG_INIT;
    (void)state;
    config.classes = &odd;
    config.n_classes = 1;
    kvx_pool *pool = fill_create(&config);
    kvx_pool_stats stats = fill_stats(pool);
    assert_int_equal(stats.bytes_asked, 5000 * 1001);
    assert_int_equal(stats.bytes_held, 8192 * 1001);
    fill_destroy(pool);
    config.chunk_bytes = 8 * MIB + 5000; /* ends on a slot */
    pool = fill_create(&config);
    assert_int_equal(kvx_pool_view_of(pool)->chunks[0].bytes % 8192, 0);
    fill_destroy(pool);
}

static void registrations_are_bounded(void **state)
{
    kvx_slot_class large = {64 * MIB, 8, 1, 0};
    kvx_pool_config config = KVX_POOL_CONFIG_INIT;
    (void)state;
    fake.touch_unknown = 0;
    fake.huge_2m = 1u << 20;
    fake.huge_maps = 1; /* so that nothing is really touched */
    config.classes = &large;
    config.n_classes = 1;
    kvx_pool *pool = fill_create(&config);
    assert_int_equal(kvx_pool_view_of(pool)->n_chunks, 1);
    assert_int_equal(fake.largest, 512 * MIB);
    fill_destroy(pool);
    config.chunk_bytes = (64ull << 30) + 1;
    fill_refuse(&config, KVX_INVALID, "chunk_bytes", "64 GiB");
    config.chunk_bytes = 64 * MIB - 1;
    fill_refuse(&config, KVX_INVALID, "chunk_bytes", "slot");
}

static void without_a_gpu(void **state)
{
    kvx_pool_config config = fill_config();
    (void)state;
    fake.gpu = 0;
    kvx_pool *pool = fill_create(&config);
    assert_int_equal(fill_stats(pool).pinned, 0);
    assert_int_equal(fake.n_registering, 0);
    fill_destroy(pool);
    config.engine = KVX_ENGINE_CUDA;
    fill_refuse(&config, KVX_UNSUPPORTED, "the fake has no GPU", "");
    fake.gpu = 1;
    config.engine = KVX_ENGINE_CPU;
    pool = fill_create(&config);
    assert_int_equal(fake.n_registering, 0);
    fill_destroy(pool);
}

/* --------------------------------------------------------------------------------------------- pinning refused */

static void registration_refused_at_any_chunk(void **state)
{
    kvx_pool_config config = fill_config();
    (void)state;
    for (uint32_t k = 0; k < N_CHUNKS; k++) {
        fake_reset();
        fake.register_fails_from = k;
        fake.register_error = 2;
        fake.allocate_fails_from = 0;
        fill_refuse(&config, KVX_NO_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "RLIMIT_MEMLOCK");
    }
}

/* Confidential computing: 801 for every registration. */
static void the_driver_allocates_instead(void **state)
{
    kvx_pool_config config = fill_config();
    (void)state;
    fake.register_fails_from = 0;
    for (uint32_t background = 0; background < 2; background++) {
        config.background = background;
        kvx_pool *pool = fill_create(&config);
        kvx_pool_stats stats = fill_stats(pool);
        assert_int_equal(fake.allocated_now, N_CHUNKS);
        assert_int_equal(fake.registered_now, 0);
        assert_int_equal(stats.pinned, 1);
        assert_int_equal(stats.from_driver, 1);
        assert_int_equal(stats.fill, KVX_OK); /* also in the background: addresses must be known */
        fill_expect_zero(pool);
        fill_destroy(pool);
        fake.allocate_fails_from = 3;
        fake.n_allocated = 0;
        fill_refuse(&config, KVX_NO_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "chunk");
        fake.allocate_fails_from = NEVER;
    }
}

static void one_refusal_among_many(void **state)
{
    kvx_pool_config config = fill_config();
    (void)state;
    config.n_threads = 1;
    fake.register_fails_from = 5;
    fake.register_fails_to = 6;
    kvx_pool *pool = fill_create(&config);
    assert_true(fake.allocated_now >= 1);
    assert_int_equal(fake.allocated_now + fake.registered_now, N_CHUNKS);
    assert_int_equal(fill_stats(pool).pinned, 1);
    fill_expect_zero(pool);
    fill_destroy(pool);
}

static void pageable_only_if_allowed(void **state)
{
    kvx_pool_config config = fill_config();
    (void)state;
    config.allow_pageable = 1;
    for (uint32_t background = 0; background < 2; background++)
        for (uint32_t k = 0; k < (background ? 1 : N_CHUNKS); k++) {
            fake_reset();
            fake.register_fails_from = k;
            fake.allocate_fails_from = 0;
            config.background = background;
            kvx_pool *pool = fill_create(&config);
            assert_int_equal(kvx_pool_wait(pool, 20 * SECONDS), KVX_OK);
            assert_int_equal(fill_stats(pool).pinned, 0);
            assert_int_equal(kvx_pool_view_of(pool)->pinned, 0);
            if (k == 0) /* else it may have been pinned already */
                assert_null(kvx_pool_view_of(pool)->chunks[N_CHUNKS - 1].dev);
            fill_expect_zero(pool);
            fill_destroy(pool);
        }
    fake_reset();
    fake.open_fails = 1;
    config.background = 0;
    kvx_pool *pool = fill_create(&config);
    assert_int_equal(fill_stats(pool).pinned, 0);
    fill_destroy(pool);
    config.allow_pageable = 0;
    fill_refuse(&config, KVX_UNSUPPORTED, "no context", "");
}

/* Where the driver was going to allocate nothing is touched; where it then cannot, that is made up for. */
static void pageable_memory_is_touched(void **state)
{
    kvx_pool_config config = fill_config();
    unsigned char there[CHUNK / 4096];
    (void)state;
    config.allow_pageable = 1;
    for (uint32_t k = 0; k < N_CHUNKS; k++) {
        fake_reset();
        fake.register_fails_from = 0;
        fake.allocate_fails_from = k;
        kvx_pool *pool = fill_create(&config);
        const kvx_pool_view *view = kvx_pool_view_of(pool);
        for (uint32_t i = 0; i < N_CHUNKS; i++) {
            uint8_t *page = view->chunks[i].host;
            if ((uintptr_t)page % 4096 != 0 || mincore(page, CHUNK, there) != 0)
                fail_msg("chunk %u cannot be asked", i);
            for (uint32_t j = 0; j < CHUNK / 4096; j++)
                assert_int_equal(there[j] & 1, 1);
        }
        assert_int_equal(fill_stats(pool).pinned, 0);
        fill_destroy(pool);
    }
}

static void writes_that_are_not_seen(void **state)
{
    kvx_pool_config config = fill_config();
    (void)state;
    fake.probe_fails = 1;
    fill_refuse(&config, KVX_UNSUPPORTED, "pinned memory does not work", "NOT_SEEN");
    config.background = 1;
    fill_refuse(&config, KVX_UNSUPPORTED, "pinned memory does not work", "NOT_SEEN");
    config.allow_pageable = 1;
    kvx_pool *pool = fill_create(&config);
    assert_int_equal(kvx_pool_wait(pool, 20 * SECONDS), KVX_OK);
    assert_int_equal(fill_stats(pool).pinned, 0);
    fill_destroy(pool);
}

static void device_addresses_are_checked(void **state)
{
    kvx_pool_config config = fill_config();
    (void)state;
    fake.dev_offset = 1 << 20;
    kvx_pool *pool = fill_create(&config);
    const kvx_pool_view *view = kvx_pool_view_of(pool);
    for (uint32_t i = 0; i < view->n_chunks; i++)
        assert_ptr_equal(view->chunks[i].dev, view->chunks[i].host + fake.dev_offset);
    fill_destroy(pool);
    config.background = 1; /* contexts were told that they are equal */
    fill_refuse(&config, KVX_UNSUPPORTED, "device address", "background");
}

static void memlock_is_named(void **state)
{
    struct rlimit before, low;
    kvx_pool_config config = fill_config();
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &before), 0);
    low = before;
    low.rlim_cur = 65536;
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &low), 0);
    fake.register_fails_from = fake.allocate_fails_from = 0;
    fill_refuse(&config, KVX_NO_MEMORY, "RLIMIT_MEMLOCK is lower", "ulimit -l unlimited");
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &before), 0);
}

/* ------------------------------------------------------------------------------------------ memory refused */

static void touching_fails(void **state)
{
    kvx_pool_config config = fill_config();
    (void)state;
    for (uint32_t k = 0; k < N_CHUNKS; k++) {
        fake_reset();
        fake.touch_fails_at = k;
        fill_refuse(&config, KVX_NO_MEMORY, "touching", "errno 12");
    }
    fake_reset();
    fake.touch_fails_at = 2;
    fake.touch_errno = EINTR; /* goes on */
    fill_destroy(fill_create(&config));
    fake_reset();
    fake.touch_unknown = 1; /* an old kernel */
    kvx_pool *pool = fill_create(&config);
    fill_expect_zero(pool);
    fill_destroy(pool);
}

static void mapping_fails(void **state)
{
    kvx_pool_config config = fill_config();
    (void)state;
    for (uint32_t k = 0; k < N_CHUNKS; k++) {
        fake_reset();
        fake.map_fails_from = k;
        fill_refuse(&config, KVX_NO_MEMORY, "mmap", "errno 12");
    }
}

static void threads_cannot_be_had(void **state)
{
    kvx_pool_config config = fill_config();
    (void)state;
    for (uint32_t k = 0; k < 3; k++)
        for (uint32_t background = 0; background < 2; background++) {
            fake_reset();
            fake.thread_fails_from = k;
            config.background = background;
            kvx_pool *pool = fill_create(&config);
            assert_int_equal(kvx_pool_wait(pool, 20 * SECONDS), KVX_OK);
            assert_int_equal(fill_stats(pool).n_threads, k ? k : 1);
            fill_destroy(pool);
        }
}

static void limits_are_named(void **state)
{
    kvx_pool_config config = fill_config();
    (void)state;
    fake.cgroup = "0::/outer/inner\n";
    fake.limit = "20000000\n";
    fake.usage = "15000000\n";
    fake.stat = "anon 4096\ninactive_file 1000000\n";
    fill_refuse(&config, KVX_NO_MEMORY, "/sys/fs/cgroup/outer/inner/memory.max", "raise it");
    fake.cgroup = "5:cpu:/inner\n4:memory:/inner/deep\n"; /* an ancestor's limit */
    fake.stat = "total_inactive_file 1000000\n";
    fill_refuse(&config, KVX_NO_MEMORY, "/sys/fs/cgroup/memory/inner/deep/memory.limit_in_bytes", "raise it");
    fake.cgroup = "0::/inner\n";
    fake.stat = "inactive_file 14000000\n"; /* cache is given up */
    fill_destroy(fill_create(&config));
    fake.limit = "max\n";
    fill_destroy(fill_create(&config));
    fake.cgroup = NULL;
    fake.meminfo = "MemTotal: 99999999 kB\nMemAvailable:     2048 kB\n";
    fill_refuse(&config, KVX_NO_MEMORY, "MemAvailable", "ask for less");
}

/* ------------------------------------------------------------------------------------------- pages and nodes */

static void huge_pages_if_free(void **state)
{
    kvx_pool_config config = fill_config();
    (void)state;
    fake.huge_2m = N_CHUNKS;
    fake.huge_maps = 1;
    kvx_pool *pool = fill_create(&config);
    assert_int_equal(fill_stats(pool).pages, KVX_PAGES_2M);
    assert_int_equal(fake.huge_2m_maps, N_CHUNKS);
    fill_destroy(pool);
    fake.huge_maps = 0; /* taken by somebody else meanwhile */
    fake.transparent = "always [madvise] never\n";
    pool = fill_create(&config);
    assert_int_equal(fill_stats(pool).pages, KVX_PAGES_TRANSPARENT);
    fill_destroy(pool);
    fake.huge_maps = 1;
    fake.huge_2m = N_CHUNKS - 1; /* not enough for all */
    pool = fill_create(&config);
    assert_int_equal(fill_stats(pool).pages, KVX_PAGES_TRANSPARENT);
    fill_destroy(pool);
    fake.huge_2m = N_CHUNKS;
    config.pages = KVX_PAGES_SMALL;
    pool = fill_create(&config);
    assert_int_equal(fill_stats(pool).pages, KVX_PAGES_SMALL);
    fill_destroy(pool);
    config.pages = KVX_PAGES_AUTO;
    fake.huge_2m = 0;
    fake.transparent = "always madvise [never]\n";
    pool = fill_create(&config);
    assert_int_equal(fill_stats(pool).pages, KVX_PAGES_SMALL);
    fill_destroy(pool);
}

static void gigantic_pages_if_free(void **state)
{
    kvx_slot_class large = {MIB, 1536, 1, 0}; /* 1.5 GiB: rounding would cost too much in 1 GiB pages */
    kvx_pool_config config = KVX_POOL_CONFIG_INIT;
    (void)state;
    config.classes = &large;
    config.n_classes = 1;
    fake.huge_1g = 8;
    fake.huge_maps = 1;
    large.n_slots = 2048;
    kvx_pool *pool = fill_create(&config);
    kvx_pool_stats stats = fill_stats(pool);
    assert_int_equal(stats.pages, KVX_PAGES_1G);
    assert_int_equal(fake.huge_1g_maps, 2);
    assert_int_equal(stats.bytes_held, 2ull << 30);
    fill_destroy(pool);
    large.n_slots = 2000; /* whole pages, and the sum says so */
    pool = fill_create(&config);
    stats = fill_stats(pool);
    assert_int_equal(stats.bytes_held, 2ull << 30);
    assert_int_equal(stats.bytes_asked, 2000 * MIB);
    fill_destroy(pool);
}

static void nodes(void **state)
{
    kvx_pool_config config = fill_config();
    (void)state;
    config.numa_node = 900; /* node 899 */
    fill_refuse(&config, KVX_INVALID, "NUMA node 899", "offline");
    config.numa_node = 0;
    fake.gpu_node = 899; /* the GPU's node has no memory: reported, not fatal */
    kvx_pool *pool = fill_create(&config);
    kvx_pool_stats stats = fill_stats(pool);
    assert_int_equal(stats.gpu_node, 899);
    assert_int_equal(stats.node, -1);
    fill_destroy(pool);
    fake.gpu_node = 0;
    pool = fill_create(&config);
    stats = fill_stats(pool);
    assert_int_equal(stats.gpu_node, 0);
    if (stats.node == 0) /* else this machine has no libnuma to speak of */
        assert_in_range(stats.bytes_off_node, 0, stats.bytes_held);
    fill_destroy(pool);
}

static void arguments_are_checked(void **state)
{
    kvx_pool_config config = fill_config();
    kvx_pool_stats stats = {.size = sizeof stats + 1};
    (void)state;
    config.pages = (kvx_page_kind)9;
    fill_refuse(&config, KVX_INVALID, "page", "");
    config = fill_config();
    config.n_threads = 65;
    fill_refuse(&config, KVX_INVALID, "n_threads", "");
    config = fill_config();
    kvx_pool *pool = fill_create(&config);
    assert_int_equal(kvx_pool_stats_get(pool, &stats), KVX_INVALID);
    assert_int_equal(kvx_pool_stats_get(pool, NULL), KVX_INVALID);
    assert_int_equal(kvx_pool_stats_get(NULL, &stats), KVX_INVALID);
    assert_int_equal(kvx_pool_wait(NULL, 0), KVX_INVALID);
    assert_int_equal(kvx_pool_quiesce(NULL, 0), KVX_INVALID);
    assert_int_equal(kvx_pool_resume(NULL), KVX_INVALID);
    fill_destroy(pool);
}

#define TEST(name) cmocka_unit_test_setup(name, fill_set_up)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(all_is_pinned),
        TEST(sizes_are_exact),
        TEST(registrations_are_bounded),
        TEST(without_a_gpu),
        TEST(registration_refused_at_any_chunk),
        TEST(the_driver_allocates_instead),
        TEST(one_refusal_among_many),
        TEST(pageable_only_if_allowed),
        TEST(pageable_memory_is_touched),
        TEST(writes_that_are_not_seen),
        TEST(device_addresses_are_checked),
        TEST(memlock_is_named),
        TEST(touching_fails),
        TEST(mapping_fails),
        TEST(threads_cannot_be_had),
        TEST(limits_are_named),
        TEST(huge_pages_if_free),
        TEST(gigantic_pages_if_free),
        TEST(nodes),
        TEST(arguments_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
