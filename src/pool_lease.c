/* SPDX-License-Identifier: Apache-2.0 */
/* The table of leases. A robust mutex guards it: a process that dies with it leaves at worst a unit leased to the dead.
 * Such units are taken back once the process has ended with all its threads, which is when the kernel has closed its
 * files and with them the driver. Its pages are dropped from the file rather than reused, so a transfer that the GPU
 * might still be making ends in pages that nobody else will ever see. */
#include "pool_lease.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "status.h"

#ifndef MFD_NOEXEC_SEAL /* Linux 6.3 */
#define MFD_NOEXEC_SEAL 8u
#endif

#define TABLE_MAGIC 0x6b76786c65617365ull /* "kvxlease" */
#define TABLE_VERSION 1u
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

/* A process by number and start, because numbers are used again. */
typedef struct process {
    int64_t pid;
    uint64_t start;
} process;

typedef struct unit_state {
    process holder;
    uint64_t lessee; /* 0: free; else a number of its own for each lease object */
} unit_state;

typedef struct lease_table {
    uint64_t magic;
    uint32_t version, n_units;
    uint64_t unit_bytes;
    process owner;
    pthread_mutex_t lock; /* guards the rest */
    uint32_t closed;      /* the owner has destroyed its pool */
    uint64_t last_lessee;
    unit_state units[];
} lease_table;

struct kvx_lease {
    int memory_file, table_file;
    lease_table *table;
    size_t table_bytes;
    process self;
    uint64_t lessee, unit_bytes;
    uint32_t n_units; /* private copies: what the table says is checked once */
    int owns;
};

/* --------------------------------------------------------------------------------------------------- processes */

/* Start of a process in clock ticks since boot: field 22 of its stat, after a name that may hold anything. */
static int start_of(int64_t pid, uint64_t *start)
{
    char path[64], text[1024];
    unsigned long long value;
    snprintf(path, sizeof(path), "/proc/%lld/stat", (long long)pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    size_t n = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[n] = '\0';
    const char *at = strrchr(text, ')');
    if (!at || sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                      &value) != 1)
        return 0;
    *start = value;
    return 1;
}

static int same(process a, process b)
{
    return a.pid == b.pid && a.start == b.start;
}

/* Only what certainly ended counts as ended. */
static int has_ended(process p)
{
    uint64_t start;
    int fd = pidfd_open((pid_t)p.pid, 0);
    if (fd < 0)
        return errno == ESRCH;
    struct pollfd ended = {fd, POLLIN, 0};
    int reused = start_of(p.pid, &start) && start != p.start; /* asked while the descriptor holds the number */
    int over = reused || (poll(&ended, 1, 0) == 1 && (ended.revents & POLLIN));
    close(fd);
    return over;
}

/* -------------------------------------------------------------------------------------------------------- table */

static int lock_table(lease_table *table)
{
    int error = pthread_mutex_lock(&table->lock);
    if (error == EOWNERDEAD)
        error = pthread_mutex_consistent(&table->lock); /* every step leaves it valid */
    return error == 0;
}

static void unlock_table(lease_table *table)
{
    pthread_mutex_unlock(&table->lock);
}

static void free_unit(const kvx_lease *lease, uint32_t unit)
{
    (void)fallocate(lease->memory_file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(unit * lease->unit_bytes),
                    (off_t)lease->unit_bytes);
    lease->table->units[unit].lessee = 0;
}

static uint32_t reclaim_locked(kvx_lease *lease)
{
    process known = {0, 0};
    int known_ended = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < lease->n_units; i++) {
        const unit_state *unit = &lease->table->units[i];
        if (unit->lessee == 0 || same(unit->holder, lease->self))
            continue;
        if (!same(unit->holder, known)) {
            known = unit->holder;
            known_ended = has_ended(known);
        }
        if (known_ended) {
            free_unit(lease, i);
            n++;
        }
    }
    return n;
}

static uint32_t count_units(const kvx_lease *lease, uint64_t lessee)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < lease->n_units; i++)
        n += lease->table->units[i].lessee == lessee;
    return n;
}

uint32_t kvx_lease_reclaim(kvx_lease *lease)
{
    if (!lock_table(lease->table))
        return 0;
    uint32_t n = reclaim_locked(lease);
    unlock_table(lease->table);
    return n;
}

static void take_units(kvx_lease *lease, uint32_t n, uint64_t *offsets, size_t stride)
{
    uint32_t taken = 0;
    for (uint32_t i = 0; taken < n; i++) {
        unit_state *unit = &lease->table->units[i];
        if (unit->lessee != 0)
            continue;
        unit->holder = lease->self;
        unit->lessee = lease->lessee; /* last: before it the unit is free */
        uint64_t offset = i * lease->unit_bytes;
        memcpy((char *)offsets + taken++ * stride, &offset, sizeof(offset));
    }
}

kvx_status kvx_lease_take(kvx_lease *lease, uint32_t n, uint64_t *offsets, size_t stride)
{
    if (!lock_table(lease->table))
        return kvx_note(KVX_INTERNAL, "the table of leases cannot be locked");
    uint32_t n_free = count_units(lease, 0);
    if (n_free < n)
        n_free += reclaim_locked(lease);
    if (n_free >= n)
        take_units(lease, n, offsets, stride);
    unlock_table(lease->table);
    if (n_free < n)
        return kvx_note(KVX_AGAIN, "the shared pool has %u of %u leases of %llu bytes free, %u are needed", n_free,
                        lease->n_units, (unsigned long long)lease->unit_bytes, n);
    return KVX_OK;
}

/* ----------------------------------------------------------------------------------------------- open and close */

static kvx_status make_file(const char *name, uint64_t bytes, int *file)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL)
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return kvx_note(KVX_NO_MEMORY, "memfd_create failed: errno %d", errno);
    if (ftruncate(fd, (off_t)bytes) != 0 || fcntl(fd, F_ADD_SEALS, SEALS) != 0) {
        kvx_status status = kvx_note(KVX_NO_MEMORY, "a memfd of %llu bytes cannot be sized and sealed: errno %d",
                                     (unsigned long long)bytes, errno);
        close(fd);
        return status;
    }
    *file = fd;
    return KVX_OK;
}

static kvx_status map_table(kvx_lease *lease)
{
    void *table = mmap(NULL, lease->table_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, lease->table_file, 0);
    if (table == MAP_FAILED)
        return kvx_note(KVX_NO_MEMORY, "the table of leases cannot be mapped: errno %d", errno);
    (void)madvise(table, lease->table_bytes, MADV_DONTFORK);
    lease->table = table;
    return KVX_OK;
}

static kvx_status start_table(kvx_lease *lease)
{
    pthread_mutexattr_t attributes;
    lease_table *table = lease->table;
    table->version = TABLE_VERSION;
    table->n_units = lease->n_units;
    table->unit_bytes = lease->unit_bytes;
    table->owner = lease->self;
    table->last_lessee = lease->lessee = 1;
    if (pthread_mutexattr_init(&attributes) != 0)
        return kvx_note(KVX_NO_MEMORY, "no memory for a lock");
    int made = pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0 &&
               pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0 &&
               pthread_mutex_init(&table->lock, &attributes) == 0;
    pthread_mutexattr_destroy(&attributes);
    if (!made)
        return kvx_note(KVX_UNSUPPORTED, "no locks between processes here");
    table->magic = TABLE_MAGIC;
    return KVX_OK;
}

static kvx_status make_object(kvx_lease **lease)
{
    kvx_lease *made = calloc(1, sizeof(*made));
    if (!made)
        return kvx_note(KVX_NO_MEMORY, "no memory for leases");
    made->memory_file = made->table_file = -1;
    made->self.pid = getpid();
    if (!start_of(made->self.pid, &made->self.start)) {
        free(made);
        return kvx_note(KVX_UNSUPPORTED, "sharing needs /proc/PID/stat, to tell processes apart");
    }
    *lease = made;
    return KVX_OK;
}

static void free_object(kvx_lease *lease)
{
    if (lease->table)
        munmap(lease->table, lease->table_bytes);
    if (lease->table_file >= 0)
        close(lease->table_file);
    if (lease->memory_file >= 0)
        close(lease->memory_file);
    free(lease);
}

kvx_status kvx_lease_create(uint64_t unit_bytes, uint32_t n_units, kvx_lease **result)
{
    kvx_lease *lease = NULL;
    KVX_TRY(make_object(&lease));
    lease->unit_bytes = unit_bytes;
    lease->n_units = n_units;
    lease->owns = 1;
    lease->table_bytes = sizeof(lease_table) + n_units * sizeof(unit_state);
    kvx_status status = make_file("kvx-pool", unit_bytes * n_units, &lease->memory_file);
    if (status == KVX_OK)
        status = make_file("kvx-leases", lease->table_bytes, &lease->table_file);
    if (status == KVX_OK)
        status = map_table(lease);
    if (status == KVX_OK)
        status = start_table(lease);
    if (status != KVX_OK) {
        free_object(lease);
        return status;
    }
    *result = lease;
    return KVX_OK;
}

/* A file that could shrink would fault us. */
static kvx_status check_file(int fd, uint64_t *bytes)
{
    struct stat facts;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &facts) != 0 || facts.st_size <= 0)
        return kvx_note(KVX_INVALID,
                        "descriptor %d is none of a shared pool: not a memfd sealed against shrinking and "
                        "growing",
                        fd);
    *bytes = (uint64_t)facts.st_size;
    return KVX_OK;
}

static kvx_status check_table(kvx_lease *lease, uint64_t memory_bytes)
{
    lease_table *table = lease->table;
    uint64_t fit = (lease->table_bytes - sizeof(*table)) / sizeof(unit_state);
    lease->n_units = table->n_units;
    lease->unit_bytes = table->unit_bytes;
    if (table->magic != TABLE_MAGIC || table->version != TABLE_VERSION || lease->n_units == 0 || lease->n_units > fit ||
        lease->unit_bytes != memory_bytes / lease->n_units || memory_bytes % lease->n_units != 0)
        return kvx_note(KVX_INVALID, "the descriptors are not memory and leases of one shared pool of this version");
    if (!same(table->owner, lease->self) && has_ended(table->owner))
        return kvx_note(KVX_UNSUPPORTED, "process %lld, the owner of the shared pool, has ended",
                        (long long)table->owner.pid);
    if (!lock_table(table))
        return kvx_note(KVX_INTERNAL, "the table of leases cannot be locked");
    uint32_t closed = table->closed;
    lease->lessee = ++table->last_lessee;
    unlock_table(table);
    return closed ? kvx_note(KVX_UNSUPPORTED, "the owner has destroyed the shared pool") : KVX_OK;
}

kvx_status kvx_lease_open(const int fds[2], kvx_lease **result)
{
    uint64_t memory_bytes = 0, table_bytes = 0;
    KVX_TRY(check_file(fds[0], &memory_bytes));
    KVX_TRY(check_file(fds[1], &table_bytes));
    if (table_bytes < sizeof(lease_table))
        return kvx_note(KVX_INVALID, "descriptor %d is no table of leases", fds[1]);
    kvx_lease *lease = NULL;
    KVX_TRY(make_object(&lease));
    kvx_status status = KVX_OK;
    lease->table_bytes = table_bytes;
    lease->memory_file = fcntl(fds[0], F_DUPFD_CLOEXEC, 0);
    lease->table_file = fcntl(fds[1], F_DUPFD_CLOEXEC, 0);
    if (lease->memory_file < 0 || lease->table_file < 0)
        status = kvx_note(KVX_NO_MEMORY, "no descriptors left (see `ulimit -n`)");
    if (status == KVX_OK)
        status = map_table(lease);
    if (status == KVX_OK)
        status = check_table(lease, memory_bytes);
    if (status != KVX_OK) {
        free_object(lease);
        return status;
    }
    *result = lease;
    return KVX_OK;
}

void kvx_lease_close(kvx_lease *lease)
{
    if (lock_table(lease->table)) {
        for (uint32_t i = 0; i < lease->n_units; i++)
            if (lease->table->units[i].lessee == lease->lessee)
                free_unit(lease, i);
        lease->table->closed |= (uint32_t)lease->owns;
        unlock_table(lease->table);
    }
    free_object(lease);
}

uint64_t kvx_lease_unit_bytes(const kvx_lease *lease)
{
    return lease->unit_bytes;
}

int kvx_lease_file(const kvx_lease *lease)
{
    return lease->memory_file;
}

kvx_status kvx_lease_export(const kvx_lease *lease, int fds[2])
{
    int memory = fcntl(lease->memory_file, F_DUPFD_CLOEXEC, 0);
    int table = memory >= 0 ? fcntl(lease->table_file, F_DUPFD_CLOEXEC, 0) : -1;
    if (table < 0) {
        kvx_status status = kvx_note(KVX_NO_MEMORY, "no descriptors left: errno %d (see `ulimit -n`)", errno);
        if (memory >= 0)
            close(memory);
        return status;
    }
    fds[0] = memory;
    fds[1] = table;
    return KVX_OK;
}

void kvx_lease_report(kvx_lease *lease, kvx_pool_stats *stats)
{
    stats->lease_bytes = lease->unit_bytes;
    stats->leases = lease->n_units;
    if (!lock_table(lease->table))
        return;
    stats->leases_held = count_units(lease, lease->lessee);
    stats->leases_free = count_units(lease, 0);
    unlock_table(lease->table);
}
