/* SPDX-License-Identifier: Apache-2.0 */
/* Stores and restores over pools that are still being filled, and over memory shared between processes: with the CUDA
 * engine the driver pins chunks while contexts over them exist. */
#include "support.h"

#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvx_pool.h"

#define CHUNK (2u << 20)
#define N_CHUNKS 24u
#define SLOT 65536u
#define PER_CHUNK (CHUNK / SLOT)
#define N_SLOTS (N_CHUNKS * PER_CHUNK)
#define N_BLOCKS 32u
#define TIMEOUT_NS 20000000000u

static const shape cache = {"cache", N_BLOCKS, 4, 2, {{1, 8192, 0, 0, BLOCK_MAJOR}, {3, 104, 8, 0, BLOCK_MAJOR}}, 2, 0};

typedef struct live {
    const device *dev;
    kvx_pool *pool;
    kvx_ctx *ctx;
    kvx_layout *layout;
    tensors t;
    kvx_pair pairs[N_BLOCKS];
} live;

static kvx_pool_config config_of(const device *dev, const kvx_slot_class *class)
{
    kvx_pool_config config = KVX_POOL_CONFIG_INIT;
    config.classes = class;
    config.n_classes = 1;
    config.engine = dev->engine;
    return config;
}

/* Context, layout and pairs over slots `step` apart, from the last one down. */
static void live_open(live *l, const device *dev, kvx_pool *pool, uint32_t last, uint32_t step)
{
    memset(l, 0, sizeof *l);
    l->dev = dev;
    l->pool = pool;
    l->ctx = ctx_make(dev, pool, NULL);
    tensors_create(&l->t, dev, &cache, 0);
    tensors_fill(&l->t, 0, N_BLOCKS, 1);
    l->layout = layout_make(l->ctx, &l->t, 0);
    for (uint32_t i = 0; i < N_BLOCKS; i++) {
        kvx_slot slot = {0, last - i * step, i};
        pairs_set(&l->pairs[i], 1, l->layout, i, &slot);
    }
}

static void live_close(live *l)
{
    kvx_ctx_destroy(l->ctx);
    tensors_destroy(&l->t);
}

static void store_and_restore(live *l, uint32_t hints)
{
    kvx_options options = KVX_OPTIONS_INIT;
    kvx_ticket ticket;
    options.hints = hints;
    expect_ok(kvx_store(l->ctx, N_BLOCKS, l->pairs, &options, &ticket));
    expect_all(l->ctx, ticket, N_BLOCKS, KVX_OK);
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        tensors_expect_zero(&l->t, i, ALL_SEGMENTS);
    tensors_upload(&l->t);
    expect_ok(kvx_restore(l->ctx, N_BLOCKS, l->pairs, NULL, &ticket));
    expect_all(l->ctx, ticket, N_BLOCKS, KVX_OK);
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        tensors_expect(&l->t, i, i + 1);
    tensors_check(&l->t);
}

/* The context is made when most chunks are not pinned; slots of all chunks must then work, stored either way. */
static void contexts_over_a_pool_that_fills(const device *dev, const void *arg)
{
    static const kvx_slot_class class = {SLOT, N_SLOTS, 4, 1};
    kvx_pool_config config = config_of(dev, &class);
    kvx_pool_stats stats = {.size = sizeof stats};
    kvx_pool *pool = NULL;
    kvx_ticket ticket;
    live l;
    (void)arg;
    config.chunk_bytes = CHUNK;
    config.background = 1;
    expect_ok(kvx_pool_create(&config, &pool));
    expect_ok(kvx_pool_quiesce(pool, TIMEOUT_NS));
    expect_ok(kvx_pool_stats_get(pool, &stats));
    live_open(&l, dev, pool, N_SLOTS - 1, N_SLOTS / N_BLOCKS);
    if (dev->engine == KVX_ENGINE_CUDA && stats.n_chunks_ready < N_CHUNKS)
        expect_status(kvx_store(l.ctx, N_BLOCKS, l.pairs, NULL, &ticket), KVX_AGAIN);
    expect_ok(kvx_pool_resume(pool));
    kvx_status status;
    while ((status = kvx_store(l.ctx, 1, l.pairs, NULL, NULL)) == KVX_AGAIN)
        nap(1);
    expect_ok(status);
    expect_ok(kvx_pool_wait(pool, TIMEOUT_NS));
    store_and_restore(&l, 0);
    store_and_restore(&l, KVX_HINT_IDLE);
    expect_ok(kvx_pool_stats_get(pool, &stats));
    assert_int_equal(stats.pinned, dev->engine == KVX_ENGINE_CUDA);
    assert_int_equal(stats.bytes_ready, (uint64_t)N_SLOTS * SLOT);
    live_close(&l);
    expect_ok(kvx_pool_destroy(pool));
}

/* Two contexts over leases of one shared memory. */
static void contexts_over_shared_memory(const device *dev, const void *arg)
{
    static const kvx_slot_class small = {SLOT, PER_CHUNK, 4, 1}, large = {SLOT, 2 * PER_CHUNK, 4, 1};
    kvx_pool_config config = config_of(dev, &small);
    kvx_pool *pool = NULL, *joined = NULL;
    live a, b;
    int fds[2];
    (void)arg;
    config.chunk_bytes = CHUNK;
    config.shared_bytes = 4ull * CHUNK;
    expect_ok(kvx_pool_create(&config, &pool));
    expect_ok(kvx_pool_export(pool, fds));
    config = config_of(dev, &large);
    expect_ok(kvx_pool_join(&config, fds, &joined));
    close(fds[0]);
    close(fds[1]);
    live_open(&a, dev, pool, PER_CHUNK - 1, 1);
    live_open(&b, dev, joined, 2 * PER_CHUNK - 1, 2);
    for (uint32_t i = 0; i < 2; i++) {
        store_and_restore(&a, i ? KVX_HINT_IDLE : 0);
        store_and_restore(&b, i ? KVX_HINT_IDLE : 0);
    }
    live_close(&a);
    expect_ok(kvx_pool_destroy(pool)); /* the owner goes first */
    store_and_restore(&b, 0);
    live_close(&b);
    expect_ok(kvx_pool_destroy(joined));
}

/* ------------------------------------------------------------------------------------- a peer with its own engine */

enum { PEER_MEMORY = 10, PEER_LEASES, PEER_LINK }; /* descriptors of the peer */

/* This program as a peer: joins, fills its slots again and again, and waits to be killed. */
static int be_peer(const char *engine)
{
    static const kvx_slot_class large = {SLOT, 2 * PER_CHUNK, 4, 1};
    const device *dev = &device_cpu;
    const int fds[2] = {PEER_MEMORY, PEER_LEASES};
    kvx_pool *joined = NULL;
    const char *why;
    live l;
#if KVX_WITH_CUDA
    if (strcmp(engine, device_cuda.name) == 0)
        dev = &device_cuda;
#endif
    if (strcmp(engine, dev->name) != 0 || !dev->usable(&why))
        return 1;
    kvx_pool_config config = config_of(dev, &large);
    expect_ok(kvx_pool_join(&config, fds, &joined));
    live_open(&l, dev, joined, 2 * PER_CHUNK - 1, 2);
    for (int told = 0;; told = 1) {
        kvx_ticket ticket;
        expect_ok(kvx_store(l.ctx, N_BLOCKS, l.pairs, NULL, &ticket));
        if (!told && write(PEER_LINK, "y", 1) != 1)
            return 1;
        expect_all(l.ctx, ticket, N_BLOCKS, KVX_OK);
    }
}

/* A process of its own from the start, because a forked child of one that uses CUDA may not use it. */
static pid_t start_peer(const device *dev, const int fds[2], int link)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid != 0)
        return pid;
    if (dup2(fds[0], PEER_MEMORY) < 0 || dup2(fds[1], PEER_LEASES) < 0 || dup2(link, PEER_LINK) < 0)
        _exit(1);
    execl("/proc/self/exe", "test_pool_live", "--peer", dev->name, (char *)NULL);
    _exit(1);
}

/* Killed with stores under way: its leases come back, and what takes them then works. */
static void peers_killed_at_work(const device *dev, const void *arg)
{
    static const kvx_slot_class small = {SLOT, PER_CHUNK, 4, 1}, large = {SLOT, 2 * PER_CHUNK, 4, 1};
    kvx_pool_config config = config_of(dev, &small);
    kvx_pool *pool = NULL, *joined = NULL;
    int fds[2], link[2], ended;
    uint32_t n = 0;
    char byte = 0;
    live l;
    (void)arg;
    config.chunk_bytes = CHUNK;
    config.shared_bytes = 3ull * CHUNK;
    expect_ok(kvx_pool_create(&config, &pool));
    expect_ok(kvx_pool_export(pool, fds));
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, link), 0);
    pid_t pid = start_peer(dev, fds, link[1]);
    close(link[1]);
    assert_int_equal(read(link[0], &byte, 1), 1);
    config = config_of(dev, &large);
    expect_status(kvx_pool_join(&config, fds, &joined), KVX_AGAIN);
    const uint64_t killed = clock_ns();
    kill(pid, SIGKILL);
    while (expect_ok(kvx_pool_reclaim(pool, &n)), n == 0)
        nap(1);
    printf("%s: leases back %.0f ms after SIGKILL\n", dev->name, (double)(clock_ns() - killed) / 1e6);
    assert_int_equal(n, 2);
    assert_int_equal(waitpid(pid, &ended, 0), pid);
    expect_ok(kvx_pool_join(&config, fds, &joined));
    live_open(&l, dev, joined, 2 * PER_CHUNK - 1, 2);
    store_and_restore(&l, 0);
    store_and_restore(&l, KVX_HINT_IDLE);
    live_close(&l);
    expect_ok(kvx_pool_destroy(joined));
    close(fds[0]);
    close(fds[1]);
    close(link[0]);
    expect_ok(kvx_pool_destroy(pool));
}

static const test_case cases[] = {
    {"contexts over a pool that fills", contexts_over_a_pool_that_fills, NULL},
    {"contexts over shared memory", contexts_over_shared_memory, NULL},
    {"peers killed at work", peers_killed_at_work, NULL},
};

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--peer") == 0)
        return be_peer(argv[2]);
    return RUN_CASES("pool_live", cases, argc, argv);
}
