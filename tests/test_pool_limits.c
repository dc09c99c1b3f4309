/* SPDX-License-Identifier: Apache-2.0 */
/* What a pool does at limits of the system and in other processes: file sizes, descriptors, pid namespaces, forks at
 * any moment, memory that stays out of children and core dumps. */
#include "cmocka_door.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
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
#include <unistd.h>

#include "kvx_pool.h"
#include "pool_peer.h"
#include "pool_units.h"

/* ------------------------------------------------------------------------------------------------- limits, namespaces
 */

static void limit_files(int link, const int fds[2])
{
    struct rlimit low = {UNIT, UNIT};
    kvx_pool *pool = NULL;
    (void)link, (void)fds;
    if (setrlimit(RLIMIT_FSIZE, &low) != 0)
        _exit(1);
    if (units_create(2, N_UNITS, &pool) != KVX_NO_MEMORY || !strstr(kvx_last_error(), "ulimit -f") || pool)
        _exit(2);
}

static void file_sizes_are_limited(void **state)
{
    const int none[2] = {-1, -1};
    kvx_pool *pool = NULL;
    (void)state;
    peer_end(peer_start(limit_files, none), 0); /* and not by SIGXFSZ */
    assert_int_equal(units_create(N_UNITS + 1, N_UNITS, &pool), KVX_INVALID);
    assert_non_null(strstr(kvx_last_error(), "shared_bytes"));
    assert_null(pool);
}

/* There, every process of ours would look as if it had ended. */
static void join_from_elsewhere(int link, const int fds[2])
{
    kvx_pool *pool;
    int ended;
    (void)link;
    if (unshare(CLONE_NEWPID) != 0)
        _exit(0); /* may not try */
    pid_t child = fork();
    if (child == 0)
        _exit(units_join(fds, 1, &pool) == KVX_UNSUPPORTED && strstr(kvx_last_error(), "pid namespace") ? 0 : 1);
    _exit(child > 0 && waitpid(child, &ended, 0) == child && WIFEXITED(ended) ? WEXITSTATUS(ended) : 1);
}

static void other_pid_namespaces(void **state)
{
    kvx_pool *pool;
    int fds[2];
    (void)state;
    pool = units_own(fds);
    peer_end(peer_start(join_from_elsewhere, fds), 0);
    units_disown(pool, fds);
}

static uint32_t count_descriptors(void)
{
    uint32_t n = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (directory && readdir(directory))
        n++;
    if (directory)
        closedir(directory);
    return n;
}

static void descriptors_are_closed(void **state)
{
    kvx_pool *pool, *joined;
    uint32_t before = count_descriptors();
    struct rlimit limit, low;
    int fds[2], more[2];
    (void)state;
    pool = units_own(fds);
    const int swapped[2] = {fds[1], fds[0]}, half[2] = {fds[0], -1};
    uint32_t with_pool = count_descriptors();
    units_refuse(swapped, KVX_INVALID, "descriptor");
    units_refuse(half, KVX_INVALID, "descriptor -1");
    assert_int_equal(units_join(fds, 7, &joined), KVX_AGAIN);
    assert_int_equal(units_join(fds, 6, &joined), KVX_OK);
    assert_int_equal(kvx_pool_destroy(joined), KVX_OK);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    int next = dup(fds[0]); /* as many as that are open, and one more */
    close(next);
    for (rlim_t n = 0; n < 3; n++) {
        low = limit;
        low.rlim_cur = (rlim_t)next + n;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
        kvx_status exported = kvx_pool_export(pool, more), status = units_join(fds, 1, &joined);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
        assert_int_equal(exported, n < 2 ? KVX_NO_MEMORY : KVX_OK);
        if (exported == KVX_OK)
            close(more[0]), close(more[1]);
        assert_true(n == 2 || (status != KVX_OK && !joined));
        if (joined)
            assert_int_equal(kvx_pool_destroy(joined), KVX_OK);
        assert_int_equal(count_descriptors(), with_pool);
    }
    units_disown(pool, fds);
    assert_int_equal(count_descriptors(), before);
}

/* -------------------------------------------------------------------------------------------------- forks and dumps */

static int has_flag(const void *memory, const char *flag)
{
    char line[512];
    unsigned long long start, end, wanted = (unsigned long long)(uintptr_t)memory;
    int inside = 0, found = -1;
    FILE *file = fopen("/proc/self/smaps", "re");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%llx-%llx ", &start, &end) == 2)
            inside = start <= wanted && wanted < end;
        else if (inside && strncmp(line, "VmFlags:", 8) == 0)
            found = strstr(line, flag) != NULL;
    }
    if (file)
        fclose(file);
    return found;
}

static void memory_stays_out_of_children_and_dumps(void **state)
{
    (void)state;
    for (uint64_t shared = 0; shared <= N_UNITS; shared += N_UNITS) {
        kvx_pool *pool = NULL;
        kvx_slot slot = {0, 0, 0};
        void *bytes = NULL;
        uint64_t n;
        assert_int_equal(units_create(2, shared, &pool), KVX_OK);
        assert_int_equal(kvx_pool_slot_bytes(pool, slot, &bytes, &n), KVX_OK);
        assert_int_equal(has_flag(bytes, " dc"), 1);
        assert_int_equal(has_flag(bytes, " dd"), 1);
        assert_int_equal(kvx_pool_destroy(pool), KVX_OK);
        assert_int_equal(has_flag(bytes, " dc"), -1); /* gone */
    }
}

typedef struct taker {
    kvx_pool *pool;
    atomic_int stop;
} taker;

static void *take_and_give(void *argument)
{
    taker *t = argument;
    kvx_slot slots[5];
    while (!atomic_load(&t->stop))
        if (kvx_pool_take(t->pool, 0, 5, slots) == KVX_OK && kvx_pool_give(t->pool, 5, slots) != KVX_OK)
            return NULL;
    return t;
}

/* Whatever locks were held when it was born. */
static int child_is_refused(kvx_pool *pool)
{
    kvx_pool_stats stats = {.size = sizeof stats};
    kvx_slot slot = {0, 0, 0};
    kvx_pool *fresh = NULL;
    int fds[2];
    alarm(20);
    return kvx_pool_take(pool, 0, 1, &slot) == KVX_FORKED && kvx_pool_give(pool, 1, &slot) == KVX_FORKED &&
           kvx_pool_stats_get(pool, &stats) == KVX_FORKED && kvx_pool_wait(pool, 0) == KVX_FORKED &&
           kvx_pool_quiesce(pool, 0) == KVX_FORKED && kvx_pool_resume(pool) == KVX_FORKED &&
           kvx_pool_export(pool, fds) == KVX_FORKED && kvx_pool_reclaim(pool, NULL) == KVX_FORKED &&
           kvx_pool_destroy(pool) == KVX_FORKED && units_create(1, 0, &fresh) == KVX_OK &&
           kvx_pool_destroy(fresh) == KVX_OK;
}

static void forks_at_any_moment(void **state)
{
    taker t = {NULL, 0};
    pthread_t threads[2];
    void *result;
    int ended, fds[2];
    (void)state;
    t.pool = units_own(fds);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, take_and_give, &t), 0);
    for (int i = 0; i < 60; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0)
            _exit(child_is_refused(t.pool) ? 0 : 1);
        assert_int_equal(waitpid(child, &ended, 0), child);
        assert_int_equal(ended, 0);
    }
    atomic_store(&t.stop, 1);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_ptr_equal(result, &t);
    }
    units_disown(t.pool, fds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(file_sizes_are_limited), cmocka_unit_test(other_pid_namespaces),
        cmocka_unit_test(descriptors_are_closed), cmocka_unit_test(memory_stays_out_of_children_and_dumps),
        cmocka_unit_test(forks_at_any_moment),
    };
    alarm(300); /* nobody waits for ever */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
