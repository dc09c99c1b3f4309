/* SPDX-License-Identifier: Apache-2.0 */
/* Peers of a shared pool that stop, die at a bad moment, scribble over the table of leases or hand over wrong files.
 * Nobody may crash, wait or lose count for it. */
#include "cmocka_door.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kvx_pool.h"
#include "pool_peer.h"
#include "pool_units.h"

#define FACTS_BYTES 64u /* of the table, before the units */

static int signal_in_fallocate, signal_in_pidfd_open, fallocate_fails;

int __real_fallocate(int file, int mode, off_t offset, off_t bytes);
int __wrap_fallocate(int file, int mode, off_t offset, off_t bytes);
int __wrap_fallocate(int file, int mode, off_t offset, off_t bytes)
{
    if (signal_in_fallocate)
        raise(signal_in_fallocate);
    errno = EPERM;
    return fallocate_fails ? -1 : __real_fallocate(file, mode, offset, bytes);
}

int __real_pidfd_open(pid_t pid, unsigned flags);
int __wrap_pidfd_open(pid_t pid, unsigned flags);
int __wrap_pidfd_open(pid_t pid, unsigned flags)
{
    if (signal_in_pidfd_open)
        raise(signal_in_pidfd_open);
    return __real_pidfd_open(pid, flags);
}

static kvx_pool_stats stats_of(kvx_pool *pool)
{
    kvx_pool_stats stats = {.size = sizeof stats};
    assert_int_equal(kvx_pool_stats_get(pool, &stats), KVX_OK);
    return stats;
}

static uint32_t reclaim(kvx_pool *pool)
{
    uint32_t n = 99;
    assert_int_equal(kvx_pool_reclaim(pool, &n), KVX_OK);
    return n;
}

/* ----------------------------------------------------------------------------------------------- stopped and killed */

static void get_signal_while_leaving(int link, const int fds[2])
{
    kvx_pool *pool;
    if (units_join(fds, 3, &pool) != KVX_OK)
        _exit(1);
    signal_in_fallocate = peer_hear(link);
    peer_tell(link, 'y');
    (void)kvx_pool_destroy(pool);
}

static void get_signal_while_asking(int link, const int fds[2])
{
    kvx_pool *pool;
    if (units_join(fds, 3, &pool) != KVX_OK)
        _exit(1);
    signal_in_pidfd_open = peer_hear(link);
    peer_tell(link, 'y');
    (void)!kvx_pool_reclaim(pool, NULL);
}

static void wait_for_stop(pid_t pid)
{
    int state;
    assert_int_equal(waitpid(pid, &state, WUNTRACED), pid);
    assert_true(WIFSTOPPED(state));
}

/* Whatever a peer was doing when it stopped, the others go on without it. */
static void stopped_peers_hold_up_nobody(void **state)
{
    static void (*const kinds[])(int link, const int fds[2]) = {get_signal_while_leaving, get_signal_while_asking};
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        kvx_pool *pool, *joined;
        int fds[2];
        pool = units_own(fds);
        peer a = peer_start(kinds[kind], fds);
        peer_tell(a.link, SIGSTOP);
        assert_int_equal(peer_hear(a.link), 'y');
        wait_for_stop(a.pid);
        assert_int_equal(stats_of(pool).leases_free, 3);
        assert_int_equal(reclaim(pool), 0);
        assert_int_equal(units_join(fds, 4, &joined), KVX_AGAIN);
        assert_int_equal(units_join(fds, 3, &joined), KVX_OK);
        assert_int_equal(kvx_pool_destroy(joined), KVX_OK);
        kill(a.pid, SIGKILL);
        peer_end(a, 1);
        assert_int_equal(reclaim(pool), 3);
        assert_int_equal(stats_of(pool).leases_free, 6);
        units_disown(pool, fds);
    }
}

static void die_while_reclaiming(int link, const int fds[2])
{
    kvx_pool *pool;
    if (units_join(fds, 1, &pool) != KVX_OK)
        _exit(1);
    peer_tell(link, 'y');
    (void)peer_hear(link);
    signal_in_fallocate = SIGKILL;
    (void)!kvx_pool_reclaim(pool, NULL);
}

/* What it was taking back from another comes back with what it had itself. */
static void killed_while_taking_back(void **state)
{
    kvx_pool *pool;
    int fds[2];
    (void)state;
    pool = units_own(fds);
    peer a = peer_start(get_signal_while_leaving, fds), b = peer_start(die_while_reclaiming, fds);
    assert_int_equal(peer_hear(b.link), 'y');
    peer_tell(a.link, SIGKILL);
    assert_int_equal(peer_hear(a.link), 'y');
    peer_end(a, 1);
    peer_tell(b.link, 'g');
    peer_end(b, 1);
    assert_int_equal(stats_of(pool).leases_free, 2);
    assert_int_equal(reclaim(pool), 4);
    assert_int_equal(stats_of(pool).leases_free, 6);
    units_disown(pool, fds);
}

/* Two always fit, whoever is quicker. */
static void come_and_go(int link, const int fds[2])
{
    (void)link;
    for (int i = 0; i < 300; i++) {
        kvx_pool *pool;
        if (units_join(fds, 3, &pool) != KVX_OK || kvx_pool_destroy(pool) != KVX_OK)
            _exit(1);
    }
}

static void crowds_lose_no_lease(void **state)
{
    kvx_pool *pool;
    int fds[2];
    (void)state;
    pool = units_own(fds);
    peer a = peer_start(come_and_go, fds), b = peer_start(come_and_go, fds);
    peer_end(a, 0);
    peer_end(b, 0);
    assert_int_equal(stats_of(pool).leases_free, 6);
    units_disown(pool, fds);
}

/* Pages that stay in the file could still be written to by the GPU of the dead: nobody gets them. */
static void pages_that_cannot_be_dropped(void **state)
{
    kvx_pool *pool, *joined;
    int fds[2];
    (void)state;
    pool = units_own(fds);
    peer a = peer_start(get_signal_while_leaving, fds);
    peer_tell(a.link, SIGKILL);
    assert_int_equal(peer_hear(a.link), 'y');
    peer_end(a, 1);
    fallocate_fails = 1;
    assert_int_equal(reclaim(pool), 0);
    assert_int_equal(units_join(fds, 4, &joined), KVX_AGAIN);
    fallocate_fails = 0;
    assert_int_equal(stats_of(pool).leases_free, 3);
    units_disown(pool, fds);
}

/* -------------------------------------------------------------------------------------------------------- scribblers
 */

static void scribble(int link, const int fds[2])
{
    uint64_t random = 88172645463325252u;
    uint64_t *table = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds[1], 0);
    if (table == MAP_FAILED)
        _exit(1);
    peer_tell(link, 'y');
    for (;;) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        uint64_t word = FACTS_BYTES / 8 + (random >> 40) % N_UNITS;
        table[word] = random % 3 ? random : 0;
    }
}

/* Any status will do, but no crash, no hang, no write elsewhere. */
static void live_with_it(int link, const int fds[2])
{
    (void)link;
    alarm(120);
    time_t end = time(NULL) + 3;
    for (int i = 0; time(NULL) < end; i++) {
        kvx_pool *pool;
        kvx_slot slots[PER_UNIT];
        void *bytes;
        uint64_t n;
        kvx_status status = units_join(fds, 1 + (uint32_t)i % 4, &pool);
        if (status == KVX_AGAIN)
            continue;
        if (status != KVX_OK || kvx_pool_take(pool, 0, PER_UNIT, slots) != KVX_OK)
            _exit(2);
        for (uint32_t j = 0; j < PER_UNIT; j++) {
            if (kvx_pool_slot_bytes(pool, slots[j], &bytes, &n) != KVX_OK)
                _exit(3);
            memset(bytes, i, 64);
        }
        if (kvx_pool_reclaim(pool, NULL) != KVX_OK || kvx_pool_destroy(pool) != KVX_OK)
            _exit(4);
    }
}

static void scribbled_tables_mislead_nobody(void **state)
{
    kvx_pool *pool;
    int fds[2];
    (void)state;
    pool = units_own(fds);
    peer a = peer_start(scribble, fds);
    assert_int_equal(peer_hear(a.link), 'y');
    peer b = peer_start(live_with_it, fds);
    peer_end(b, 0);
    kill(a.pid, SIGKILL);
    peer_end(a, 1);
    assert_true(stats_of(pool).leases_free <= N_UNITS);
    units_disown(pool, fds);
}

static int sealed_file(uint64_t bytes)
{
    int file = memfd_create("forged", MFD_ALLOW_SEALING | MFD_CLOEXEC);
    assert_true(file >= 0);
    assert_int_equal(ftruncate(file, (off_t)bytes), 0);
    assert_int_equal(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    return file;
}

/* Sizes that agree with each other and still make no pool. */
static void forged_geometry(void **state)
{
    static const struct {
        uint32_t n_units;
        uint64_t unit_bytes;
        kvx_status status;
    } forged[] = {{2, UNIT, KVX_OK},
                  {2, 65536 + 2048, KVX_INVALID},
                  {1, 65ull << 30, KVX_INVALID},
                  {65537, SLOT, KVX_INVALID},
                  {0, UNIT, KVX_INVALID}};
    kvx_pool *pool, *joined;
    int fds[2];
    uint64_t facts[FACTS_BYTES / 8];
    (void)state;
    pool = units_own(fds);
    assert_int_equal(pread(fds[1], facts, sizeof facts, 0), sizeof facts);
    for (size_t i = 0; i < sizeof forged / sizeof *forged; i++) {
        uint64_t n = forged[i].n_units ? forged[i].n_units : 1;
        struct stat memory;
        const int made[2] = {sealed_file(n * forged[i].unit_bytes), sealed_file(1 << 20)};
        assert_int_equal(fstat(made[0], &memory), 0);
        memcpy((char *)facts + 12, &forged[i].n_units, 4);
        facts[2] = forged[i].unit_bytes;
        facts[4] = (uint64_t)memory.st_ino;
        assert_int_equal(pwrite(made[1], facts, sizeof facts, 0), sizeof facts);
        assert_int_equal(units_join(made, 1, &joined), forged[i].status);
        if (joined)
            assert_int_equal(kvx_pool_destroy(joined), KVX_OK);
        close(made[0]);
        close(made[1]);
    }
    units_disown(pool, fds);
}

static void files_of_two_pools(void **state)
{
    kvx_pool *a, *b;
    int fds_a[2], fds_b[2];
    (void)state;
    a = units_own(fds_a);
    b = units_own(fds_b);
    const int mixed[2] = {fds_a[0], fds_b[1]};
    units_refuse(mixed, KVX_INVALID, "one shared pool");
    const int zero[2] = {open("/dev/zero", O_RDWR | O_CLOEXEC), fds_b[1]};
    units_refuse(zero, KVX_INVALID, "not a memfd");
    close(zero[0]);
    for (int i = 0; i < 2; i++) { /* no seal that would keep pages in the file, or anybody from writing */
        assert_int_equal(fcntl(fds_a[i], F_ADD_SEALS, F_SEAL_FUTURE_WRITE), -1);
        assert_int_equal(fcntl(fds_a[i], F_ADD_SEALS, F_SEAL_WRITE), -1);
    }
    units_disown(a, fds_a);
    units_disown(b, fds_b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stopped_peers_hold_up_nobody),
        cmocka_unit_test(killed_while_taking_back),
        cmocka_unit_test(crowds_lose_no_lease),
        cmocka_unit_test(pages_that_cannot_be_dropped),
        cmocka_unit_test(scribbled_tables_mislead_nobody),
        cmocka_unit_test(forged_geometry),
        cmocka_unit_test(files_of_two_pools),
    };
    alarm(300); /* nobody waits for ever */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
