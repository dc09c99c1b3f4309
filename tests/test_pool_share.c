/* SPDX-License-Identifier: Apache-2.0 */
/* Memory shared between processes: joined over a socket, leased in units, taken back only from processes that have
 * ended with all their threads, also when they were killed while giving back; nothing keeps a name. */
#include "cmocka_door.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kvx_pool.h"
#include "pool.h"
#include "pool_peer.h"

#define UNIT (2ull << 20)
#define N_UNITS 8u
#define SLOT 65536u
#define PER_UNIT ((uint32_t)(UNIT / SLOT))

static int die_in_fallocate; /* between the steps of giving back */

int __real_fallocate(int file, int mode, off_t offset, off_t bytes);
int __wrap_fallocate(int file, int mode, off_t offset, off_t bytes);
int __wrap_fallocate(int file, int mode, off_t offset, off_t bytes)
{
    if (die_in_fallocate)
        raise(SIGKILL);
    return __real_fallocate(file, mode, offset, bytes);
}

static kvx_slot_class class_of_units(uint32_t n_units)
{
    kvx_slot_class class = {SLOT, n_units * PER_UNIT, 1, 0};
    return class;
}

static kvx_pool_config config_of(const kvx_slot_class *class)
{
    kvx_pool_config config = KVX_POOL_CONFIG_INIT;
    config.classes = class;
    config.n_classes = 1;
    config.engine = KVX_ENGINE_CPU;
    return config;
}

static kvx_pool *own(uint32_t n_units)
{
    kvx_slot_class class = class_of_units(n_units);
    kvx_pool_config config = config_of(&class);
    kvx_pool *pool = NULL;
    config.shared_bytes = N_UNITS * UNIT;
    config.chunk_bytes = UNIT;
    assert_int_equal(kvx_pool_create(&config, &pool), KVX_OK);
    return pool;
}

static kvx_status join(const int fds[2], uint32_t n_units, kvx_pool **pool)
{
    kvx_slot_class class = class_of_units(n_units);
    kvx_pool_config config = config_of(&class);
    return kvx_pool_join(&config, fds, pool);
}

static void expect_leases(kvx_pool *pool, uint32_t held, uint32_t n_free)
{
    kvx_pool_stats stats = {.size = sizeof stats};
    assert_int_equal(kvx_pool_stats_get(pool, &stats), KVX_OK);
    assert_int_equal(stats.leases, N_UNITS);
    assert_int_equal(stats.lease_bytes, UNIT);
    assert_int_equal(stats.leases_held, held);
    assert_int_equal(stats.leases_free, n_free);
}

static uint32_t reclaim(kvx_pool *pool)
{
    uint32_t n = 99;
    assert_int_equal(kvx_pool_reclaim(pool, &n), KVX_OK);
    return n;
}

static void close_both(const int fds[2])
{
    (void)close(fds[0]), (void)close(fds[1]);
}

static void *bytes_of(kvx_pool *pool, uint32_t index)
{
    kvx_slot slot = {0, index, 0};
    void *bytes = NULL;
    uint64_t n;
    assert_int_equal(kvx_pool_slot_bytes(pool, slot, &bytes, &n), KVX_OK);
    return bytes;
}

/* ---------------------------------------------------------------------------------------------------- other process */

/* Holds three units, full of a pattern, until it is told to leave. */
static void hold_three(int link, const int fds[2])
{
    kvx_pool *pool = NULL;
    kvx_slot slots[3 * PER_UNIT];
    int good = join(fds, 3, &pool) == KVX_OK && kvx_pool_take(pool, 0, 3 * PER_UNIT, slots) == KVX_OK;
    if (good)
        memset(bytes_of(pool, 0), 0x77, SLOT);
    peer_tell(link, good ? 'y' : 'n');
    if (peer_hear(link) == 'q' && kvx_pool_destroy(pool) != KVX_OK)
        _exit(1);
}

static void others_join_and_leave(void **state)
{
    kvx_pool *pool = own(2);
    int fds[2];
    (void)state;
    expect_leases(pool, 2, 6);
    assert_int_equal(kvx_pool_export(pool, fds), KVX_OK);
    peer a = peer_start(hold_three, fds), b = peer_start(hold_three, fds);
    assert_int_equal(peer_hear(a.link), 'y');
    assert_int_equal(peer_hear(b.link), 'y');
    expect_leases(pool, 2, 0);
    peer c = peer_start(hold_three, fds);
    assert_int_equal(peer_hear(c.link), 'n'); /* KVX_AGAIN: nothing taken */
    assert_int_equal(reclaim(pool), 0);       /* all are alive */
    peer_tell(a.link, 'q');
    peer_end(a, 0);
    expect_leases(pool, 2, 3);
    close(c.link);
    (void)waitpid(c.pid, NULL, 0);
    peer_tell(b.link, 'q');
    peer_end(b, 0);
    expect_leases(pool, 2, 6);
    close_both(fds);
    assert_int_equal(kvx_pool_destroy(pool), KVX_OK);
}

static void killed_peers_are_taken_back(void **state)
{
    kvx_pool *pool = own(2), *again = NULL;
    int fds[2];
    (void)state;
    assert_int_equal(kvx_pool_export(pool, fds), KVX_OK);
    peer a = peer_start(hold_three, fds), b = peer_start(hold_three, fds);
    assert_int_equal(peer_hear(a.link), 'y');
    assert_int_equal(peer_hear(b.link), 'y');
    kill(a.pid, SIGSTOP); /* not dead */
    assert_int_equal(reclaim(pool), 0);
    kill(a.pid, SIGKILL);
    peer_end(a, 1);
    assert_int_equal(reclaim(pool), 3);
    expect_leases(pool, 2, 3);
    kill(b.pid, SIGKILL);
    while (reclaim(pool) == 0) /* also while it is still to be waited for */
        ;
    peer_end(b, 1);
    expect_leases(pool, 2, 6);
    assert_int_equal(join(fds, 6, &again), KVX_OK); /* pages of the dead are not seen again */
    for (uint32_t i = 0; i < 6 * PER_UNIT; i++)
        assert_int_equal(*(uint8_t *)bytes_of(again, i), 0);
    assert_int_equal(kvx_pool_destroy(again), KVX_OK);
    close_both(fds);
    assert_int_equal(kvx_pool_destroy(pool), KVX_OK);
}

/* Joining takes back by itself. */
static void joining_takes_back(void **state)
{
    kvx_pool *pool = own(2), *more = NULL;
    int fds[2];
    (void)state;
    assert_int_equal(kvx_pool_export(pool, fds), KVX_OK);
    peer a = peer_start(hold_three, fds);
    assert_int_equal(peer_hear(a.link), 'y');
    assert_int_equal(join(fds, 4, &more), KVX_AGAIN);
    assert_null(more);
    expect_leases(pool, 2, 3);
    kill(a.pid, SIGKILL);
    peer_end(a, 1);
    assert_int_equal(join(fds, 4, &more), KVX_OK);
    expect_leases(pool, 2, 2);
    expect_leases(more, 4, 2);
    assert_int_equal(kvx_pool_destroy(more), KVX_OK);
    close_both(fds);
    assert_int_equal(kvx_pool_destroy(pool), KVX_OK);
}

static void *wait_for_ever(void *link)
{
    (void)peer_hear(*(int *)link);
    return NULL;
}

/* The first thread has ended, another lives, and with it all that the process has open. */
static void hold_without_first_thread(int link, const int fds[2])
{
    static int own_link;
    pthread_t thread;
    kvx_pool *pool = NULL;
    own_link = link;
    if (join(fds, 3, &pool) != KVX_OK || pthread_create(&thread, NULL, wait_for_ever, &own_link) != 0)
        _exit(1);
    peer_tell(link, 'y');
    pthread_exit(NULL);
}

static void half_dead_peers_keep_their_leases(void **state)
{
    kvx_pool *pool = own(2);
    struct timespec nap = {0, 50000000};
    int fds[2];
    (void)state;
    assert_int_equal(kvx_pool_export(pool, fds), KVX_OK);
    peer a = peer_start(hold_without_first_thread, fds);
    assert_int_equal(peer_hear(a.link), 'y');
    nanosleep(&nap, NULL);
    assert_int_equal(reclaim(pool), 0);
    kill(a.pid, SIGKILL);
    peer_end(a, 1);
    assert_int_equal(reclaim(pool), 3);
    close_both(fds);
    assert_int_equal(kvx_pool_destroy(pool), KVX_OK);
}

static void die_while_leaving(int link, const int fds[2])
{
    kvx_pool *pool = NULL;
    if (join(fds, 3, &pool) != KVX_OK)
        _exit(1);
    peer_tell(link, 'y');
    die_in_fallocate = 1;
    (void)!kvx_pool_destroy(pool);
}

static void killed_while_leaving(void **state)
{
    kvx_pool *pool = own(2);
    int fds[2];
    (void)state;
    assert_int_equal(kvx_pool_export(pool, fds), KVX_OK);
    for (uint32_t i = 0; i < 3; i++) {
        peer a = peer_start(die_while_leaving, fds);
        assert_int_equal(peer_hear(a.link), 'y');
        peer_end(a, 1);
        expect_leases(pool, 2, 3);
        assert_int_equal(reclaim(pool), 3);
        expect_leases(pool, 2, 6);
    }
    close_both(fds);
    assert_int_equal(kvx_pool_destroy(pool), KVX_OK);
}

/* Joins and leaves until it is killed. */
static void come_and_go(int link, const int fds[2])
{
    peer_tell(link, 'y');
    for (;;) {
        kvx_pool *pool = NULL;
        if (join(fds, 2, &pool) == KVX_OK && kvx_pool_destroy(pool) != KVX_OK)
            _exit(1);
    }
}

static void killed_at_any_time(void **state)
{
    kvx_pool *pool = own(2);
    int fds[2];
    (void)state;
    assert_int_equal(kvx_pool_export(pool, fds), KVX_OK);
    for (uint32_t i = 0; i < 40; i++) {
        struct timespec nap = {0, (long)(i * 37 % 40) * 50000};
        peer a = peer_start(come_and_go, fds), b = peer_start(come_and_go, fds);
        assert_int_equal(peer_hear(a.link), 'y');
        assert_int_equal(peer_hear(b.link), 'y');
        nanosleep(&nap, NULL);
        kill(a.pid, SIGKILL);
        kill(b.pid, SIGKILL);
        peer_end(a, 1);
        peer_end(b, 1);
        (void)reclaim(pool);
        expect_leases(pool, 2, 6);
    }
    close_both(fds);
    assert_int_equal(kvx_pool_destroy(pool), KVX_OK);
}

/* ------------------------------------------------------------------------------------------------- owner, names, fds
 */

static void own_and_hand_over(int link, const int fds[2])
{
    int own_fds[2];
    kvx_pool *pool = own(1);
    char control[CMSG_SPACE(sizeof own_fds)] = {0}, byte = 'f';
    struct iovec part = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    (void)fds;
    if (kvx_pool_export(pool, own_fds) != KVX_OK)
        _exit(1);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof own_fds);
    memcpy(CMSG_DATA(header), own_fds, sizeof own_fds);
    if (sendmsg(link, &message, 0) != 1)
        _exit(1);
    if (peer_hear(link) == 'd') {
        if (kvx_pool_destroy(pool) != KVX_OK)
            _exit(1);
        peer_tell(link, 'd');
        (void)peer_hear(link);
    }
}

static void receive(int link, int fds[2])
{
    char control[CMSG_SPACE(2 * sizeof(int))], byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    assert_int_equal(recvmsg(link, &message, MSG_CMSG_CLOEXEC), 1);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    assert_non_null(header);
    assert_int_equal(header->cmsg_len, CMSG_LEN(2 * sizeof(int)));
    memcpy(fds, CMSG_DATA(header), 2 * sizeof(int));
}

static uint32_t count_names(void)
{
    uint32_t n = 0;
    DIR *directory = opendir("/dev/shm");
    for (struct dirent *entry; directory && (entry = readdir(directory));)
        n++;
    if (directory)
        closedir(directory);
    return n;
}

static void owners_that_ended(void **state)
{
    kvx_slot slots[2 * PER_UNIT];
    uint32_t n_names = count_names();
    (void)state;
    for (int killed = 0; killed < 2; killed++) {
        int none[2] = {-1, -1}, fds[2];
        kvx_pool *pool = NULL, *late = NULL;
        peer owner = peer_start(own_and_hand_over, none);
        receive(owner.link, fds);
        assert_int_equal(join(fds, 2, &pool), KVX_OK);
        if (killed) {
            kill(owner.pid, SIGKILL);
            peer_end(owner, 1);
        } else {
            peer_tell(owner.link, 'd');
            assert_int_equal(peer_hear(owner.link), 'd');
        }
        assert_int_equal(join(fds, 1, &late), KVX_UNSUPPORTED);
        assert_null(late);
        assert_int_equal(kvx_pool_take(pool, 0, 2 * PER_UNIT, slots), KVX_OK); /* what is leased stays */
        memset(bytes_of(pool, 0), 1, SLOT);
        assert_int_equal(reclaim(pool), killed);
        close_both(fds);
        assert_int_equal(kvx_pool_destroy(pool), KVX_OK);
        if (!killed) {
            peer_tell(owner.link, 'q');
            peer_end(owner, 0);
        }
    }
    assert_int_equal(count_names(), n_names);
}

static void one_process_may_join_itself(void **state)
{
    kvx_pool *pool = own(2), *a = NULL, *b = NULL;
    int fds[2];
    (void)state;
    assert_int_equal(kvx_pool_export(pool, fds), KVX_OK);
    assert_int_equal(join(fds, 3, &a), KVX_OK);
    assert_int_equal(join(fds, 3, &b), KVX_OK);
    close_both(fds);
    assert_int_equal(kvx_pool_view_of(a)->n_slots, 3 * PER_UNIT); /* records cover what it holds, no more */
    for (uint32_t i = 0; i < 3 * PER_UNIT; i++) {
        memset(bytes_of(a, i), 0xaa, SLOT);
        memset(bytes_of(b, i), 0xbb, SLOT);
    }
    for (uint32_t i = 0; i < 2 * PER_UNIT; i++)
        assert_int_equal(*(uint8_t *)bytes_of(pool, i), 0); /* nobody's lease overlaps another's */
    for (uint32_t i = 0; i < 3 * PER_UNIT; i++)
        assert_int_equal(((uint8_t *)bytes_of(a, i))[SLOT - 1], 0xaa);
    assert_int_equal(reclaim(pool), 0);
    assert_int_equal(kvx_pool_destroy(a), KVX_OK);
    assert_int_equal(kvx_pool_destroy(pool), KVX_OK); /* the owner may go first */
    assert_int_equal(((uint8_t *)bytes_of(b, 0))[0], 0xbb);
    assert_int_equal(kvx_pool_destroy(b), KVX_OK);
}

static void files_are_checked(void **state)
{
    kvx_pool *pool = own(2), *other = NULL, *private = NULL;
    int fds[2], swapped[2], wrong[2];
    (void)state;
    assert_int_equal(kvx_pool_export(pool, fds), KVX_OK);
    assert_int_equal(fcntl(fds[0], F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW), F_SEAL_SHRINK | F_SEAL_GROW);
    assert_int_equal(fcntl(fds[0], F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_int_not_equal(ftruncate(fds[0], 4096), 0);
    assert_int_not_equal(ftruncate(fds[1], 0), 0);
    swapped[0] = fds[1];
    swapped[1] = fds[0];
    assert_int_equal(join(swapped, 1, &other), KVX_INVALID);
    wrong[0] = memfd_create("unsealed", MFD_ALLOW_SEALING | MFD_CLOEXEC);
    wrong[1] = fds[1];
    assert_int_equal(ftruncate(wrong[0], (off_t)(N_UNITS * UNIT)), 0);
    assert_int_equal(join(wrong, 1, &other), KVX_INVALID); /* could shrink under us */
    assert_int_equal(ftruncate(wrong[0], (off_t)UNIT), 0);
    assert_int_equal(fcntl(wrong[0], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    assert_int_equal(join(wrong, 1, &other), KVX_INVALID); /* another pool's memory */
    wrong[1] = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert_int_equal(join(wrong, 1, &other), KVX_INVALID);
    close_both(wrong);
    assert_int_equal(join(wrong, 1, &other), KVX_INVALID); /* not open */
    assert_int_equal(join(fds, 9, &other), KVX_AGAIN);
    assert_null(other);
    expect_leases(pool, 2, 6);
    close_both(fds);
    assert_int_equal(kvx_pool_destroy(pool), KVX_OK);
    kvx_slot_class class = class_of_units(1);
    kvx_pool_config config = config_of(&class);
    assert_int_equal(kvx_pool_create(&config, &private), KVX_OK);
    assert_int_equal(kvx_pool_export(private, fds), KVX_INVALID);
    assert_int_equal(kvx_pool_reclaim(private, NULL), KVX_INVALID);
    assert_int_equal(kvx_pool_destroy(private), KVX_OK);
}

/* A table with impossible numbers is refused, whatever they are. */
static void tables_are_checked(void **state)
{
    kvx_pool *pool = own(2), *other = NULL;
    int fds[2];
    (void)state;
    assert_int_equal(kvx_pool_export(pool, fds), KVX_OK);
    uint32_t *table = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds[1], 0);
    assert_ptr_not_equal(table, MAP_FAILED);
    for (uint32_t word = 0; word < 6; word++) /* magic, version, units, bytes of a unit */
        for (uint32_t bit = 0; bit < 32; bit++) {
            table[word] ^= 1u << bit;
            assert_int_equal(join(fds, 1, &other), KVX_INVALID);
            table[word] ^= 1u << bit;
        }
    munmap(table, 4096);
    assert_int_equal(join(fds, 1, &other), KVX_OK);
    assert_int_equal(kvx_pool_destroy(other), KVX_OK);
    close_both(fds);
    assert_int_equal(kvx_pool_destroy(pool), KVX_OK);
}

static void children_are_refused(int link, const int fds[2])
{
    kvx_pool *pool;
    int more[2];
    (void)fds;
    if (read(link, &pool, sizeof pool) != sizeof pool)
        _exit(1);
    int good = kvx_pool_export(pool, more) == KVX_FORKED && kvx_pool_reclaim(pool, NULL) == KVX_FORKED &&
               kvx_pool_wait(pool, 0) == KVX_FORKED && kvx_pool_quiesce(pool, 0) == KVX_FORKED &&
               kvx_pool_resume(pool) == KVX_FORKED && kvx_pool_destroy(pool) == KVX_FORKED;
    kvx_pool_stats stats = {.size = sizeof stats};
    good = good && kvx_pool_stats_get(pool, &stats) == KVX_FORKED;
    peer_tell(link, good ? 'y' : 'n');
}

static void forked_children(void **state)
{
    kvx_pool *pool = own(2);
    int none[2] = {-1, -1};
    (void)state;
    peer child = peer_start(children_are_refused, none);
    assert_int_equal(write(child.link, &pool, sizeof pool), sizeof pool);
    assert_int_equal(peer_hear(child.link), 'y');
    peer_end(child, 0);
    expect_leases(pool, 2, 6);
    assert_int_equal(kvx_pool_destroy(pool), KVX_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_join_and_leave), cmocka_unit_test(killed_peers_are_taken_back),
        cmocka_unit_test(joining_takes_back),    cmocka_unit_test(half_dead_peers_keep_their_leases),
        cmocka_unit_test(killed_at_any_time),    cmocka_unit_test(killed_while_leaving),
        cmocka_unit_test(owners_that_ended),     cmocka_unit_test(one_process_may_join_itself),
        cmocka_unit_test(files_are_checked),     cmocka_unit_test(tables_are_checked),
        cmocka_unit_test(forked_children),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
