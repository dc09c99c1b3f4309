/* SPDX-License-Identifier: Apache-2.0 */
/* The table of leases: a word for each unit says which process holds it. Every step is one atomic change of one word,
 * so there is no lock that a process could die with or be stopped with, and no pointer or index in the table that could
 * lead anybody astray: whatever a word is changed to, it names a process, or none. Units of a process are taken back
 * once it has ended with all its threads, which is when the kernel has closed its files and with them the driver. Its
 * pages are dropped from the file rather than reused, so a transfer that the GPU might still be making ends in pages
 * that nobody else will ever see. */
#include "pool_lease.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "../kernels/format.h"
#include "status.h"

#ifndef MFD_NOEXEC_SEAL /* Linux 6.3 */
#define MFD_NOEXEC_SEAL 8u
#endif

#define TABLE_MAGIC 0x6b76786c65617365ull /* "kvxlease" */
#define TABLE_VERSION 2u
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW)
#define UNIT_BYTES_MAX (64ull << 30) /* no chunk may be larger */
#define TRIES 64u                    /* of processes that want the last units at the same time */

/* A process by number and start, because numbers are used again: start << PID_BITS | pid. 0: none. */
typedef uint64_t process;
#define PID_BITS 22 /* Linux has no larger ones */
#define PID_MASK ((1u << PID_BITS) - 1)

/* The files that belong together, and who can tell who lives. Written once. */
typedef struct table_facts {
    uint64_t magic;
    uint32_t version, n_units;
    uint64_t unit_bytes;
    uint64_t memory_device, memory_inode;
    uint64_t pid_namespace; /* process numbers mean nothing in another one */
    process owner;
} table_facts;

typedef struct lease_table {
    table_facts facts;
    atomic_uint_least64_t closed; /* the owner has destroyed its pool */
    atomic_uint_least64_t units[];
} lease_table;

struct kvx_lease {
    int memory_file, table_file;
    lease_table *table;
    size_t table_bytes;
    process self;
    uint64_t unit_bytes; /* private copies: what the table says is checked once */
    uint32_t n_units;
    uint32_t *held; /* units of this object, known here and nowhere else */
    uint32_t n_held;
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

static process process_of(int64_t pid, uint64_t start)
{
    return start << PID_BITS | ((uint64_t)pid & PID_MASK);
}

static kvx_status find_self(process *self)
{
    uint64_t start;
    int64_t pid = getpid();
    if (!start_of(pid, &start))
        return kvx_note(KVX_UNSUPPORTED, "sharing needs /proc/%lld/stat, to tell processes apart: errno %d",
                        (long long)pid, errno);
    *self = process_of(pid, start);
    return KVX_OK;
}

/* Only what certainly ended counts as ended. No process has number 0. */
static int has_ended(process p)
{
    uint64_t start;
    int64_t pid = (int64_t)(p & PID_MASK);
    int fd = pidfd_open((pid_t)pid, 0);
    if (fd < 0)
        return pid == 0 || errno == ESRCH;
    struct pollfd ended = {fd, POLLIN, 0};
    int reused = start_of(pid, &start) && process_of(pid, start) != p; /* asked while the descriptor holds the number */
    int over = reused || (poll(&ended, 1, 0) == 1 && (ended.revents & POLLIN));
    close(fd);
    return over;
}

static uint64_t own_pid_namespace(void)
{
    struct stat facts;
    return stat("/proc/self/ns/pid", &facts) == 0 ? (uint64_t)facts.st_ino : 0;
}

/* -------------------------------------------------------------------------------------------------------- units */

static process holder_of(const kvx_lease *lease, uint32_t unit)
{
    return atomic_load(&lease->table->units[unit]);
}

static int change_holder(const kvx_lease *lease, uint32_t unit, process from, process to)
{
    return atomic_compare_exchange_strong(&lease->table->units[unit], &from, to);
}

static int drop_pages(const kvx_lease *lease, uint32_t unit)
{
    int failed;
    do
        failed = fallocate(lease->memory_file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                           (off_t)(unit * lease->unit_bytes), (off_t)lease->unit_bytes) != 0;
    while (failed && errno == EINTR);
    return !failed;
}

/* Of a unit that this process holds. One whose pages cannot be dropped is never given to anybody. */
static int free_unit(const kvx_lease *lease, uint32_t unit)
{
    return drop_pages(lease, unit) && change_holder(lease, unit, lease->self, 0);
}

static uint32_t count_free(const kvx_lease *lease)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < lease->n_units; i++)
        n += holder_of(lease, i) == 0;
    return n;
}

/* A unit of the dead is first made ours, so that one process drops its pages; if that dies too, it is next. */
uint32_t kvx_lease_reclaim(kvx_lease *lease)
{
    process known = 0;
    int known_ended = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < lease->n_units; i++) {
        process holder = holder_of(lease, i);
        if (holder == 0 || holder == lease->self)
            continue;
        if (holder != known) {
            known = holder;
            known_ended = has_ended(known);
        }
        if (known_ended && change_holder(lease, i, holder, lease->self))
            n += (uint32_t)free_unit(lease, i);
    }
    return n;
}

/* Untouched so far, so there is nothing to drop. */
static void untake(kvx_lease *lease)
{
    while (lease->n_held > 0)
        (void)change_holder(lease, lease->held[--lease->n_held], lease->self, 0);
}

static int take_units(kvx_lease *lease, uint32_t n)
{
    for (uint32_t i = 0; i < lease->n_units && lease->n_held < n; i++)
        if (change_holder(lease, i, 0, lease->self))
            lease->held[lease->n_held++] = i;
    if (lease->n_held == n)
        return 1;
    untake(lease);
    return 0;
}

static void pause_for(uint32_t try, process self)
{
    struct timespec nap = {0, (long)(10000 + (self >> try) % 64 * 10000)};
    nanosleep(&nap, NULL);
}

kvx_status kvx_lease_take(kvx_lease *lease, uint32_t n, uint64_t *offsets, size_t stride)
{
    uint32_t n_free = 0;
    lease->held = calloc(n, sizeof(*lease->held));
    if (!lease->held)
        return kvx_note(KVX_NO_MEMORY, "no memory for %u leases", n);
    for (uint32_t try = 0; try < TRIES && !take_units(lease, n); try++) {
        n_free = count_free(lease);
        if (n_free < n)
            n_free += kvx_lease_reclaim(lease);
        if (n_free < n)
            break;
        pause_for(try % 48, lease->self); /* enough are free, but others tried at the same time */
    }
    if (lease->n_held < n)
        return kvx_note(KVX_AGAIN, "the shared pool has %u of %u leases of %llu bytes free, %u are needed", n_free,
                        lease->n_units, (unsigned long long)lease->unit_bytes, n);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t offset = lease->held[i] * lease->unit_bytes;
        memcpy((char *)offsets + i * stride, &offset, sizeof(offset));
    }
    return KVX_OK;
}

/* ----------------------------------------------------------------------------------------------- open and close */

/* A size above RLIMIT_FSIZE would end the process by a signal. */
static kvx_status check_file_limit(uint64_t bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur)
        return KVX_OK;
    return kvx_note(KVX_NO_MEMORY,
                    "shared memory of %llu bytes is more than RLIMIT_FSIZE allows a file, %llu bytes: raise it "
                    "(`ulimit -f unlimited`, systemd LimitFSIZE=infinity)",
                    (unsigned long long)bytes, (unsigned long long)limit.rlim_cur);
}

/* Nobody who has the descriptor can add a seal that would keep pages from being dropped. */
static kvx_status make_file(const char *name, uint64_t bytes, int *file)
{
    KVX_TRY(check_file_limit(bytes));
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL)
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return kvx_note(KVX_NO_MEMORY, "memfd_create failed: errno %d", errno);
    if (ftruncate(fd, (off_t)bytes) != 0 || fcntl(fd, F_ADD_SEALS, SEALS | F_SEAL_SEAL) != 0) {
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

static kvx_status identify(int file, table_facts *facts)
{
    struct stat memory;
    if (fstat(file, &memory) != 0)
        return kvx_note(KVX_INVALID, "descriptor %d cannot be asked: errno %d", file, errno);
    facts->memory_device = (uint64_t)memory.st_dev;
    facts->memory_inode = (uint64_t)memory.st_ino;
    facts->pid_namespace = own_pid_namespace();
    return KVX_OK;
}

static kvx_status start_table(kvx_lease *lease)
{
    table_facts facts = {.magic = TABLE_MAGIC,
                         .version = TABLE_VERSION,
                         .n_units = lease->n_units,
                         .unit_bytes = lease->unit_bytes,
                         .owner = lease->self};
    KVX_TRY(identify(lease->memory_file, &facts));
    lease->table->facts = facts;
    return KVX_OK;
}

static kvx_status make_object(kvx_lease **lease)
{
    kvx_lease *made = calloc(1, sizeof(*made));
    if (!made)
        return kvx_note(KVX_NO_MEMORY, "no memory for leases");
    made->memory_file = made->table_file = -1;
    kvx_status status = find_self(&made->self);
    if (status != KVX_OK) {
        free(made);
        return status;
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
    free(lease->held);
    free(lease);
}

kvx_status kvx_lease_create(uint64_t unit_bytes, uint32_t n_units, kvx_lease **result)
{
    kvx_lease *lease = NULL;
    KVX_TRY(make_object(&lease));
    lease->unit_bytes = unit_bytes;
    lease->n_units = n_units;
    lease->owns = 1;
    lease->table_bytes = sizeof(lease_table) + n_units * sizeof(lease->table->units[0]);
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

/* A descriptor of our own, so that what is checked is what is used. A file that could shrink would fault us. */
static kvx_status open_file(int given, int *file, uint64_t *bytes)
{
    struct stat facts;
    *file = fcntl(given, F_DUPFD_CLOEXEC, 0);
    if (*file < 0 && errno == EMFILE)
        return kvx_note(KVX_NO_MEMORY, "no descriptors left (see `ulimit -n`)");
    int seals = *file >= 0 ? fcntl(*file, F_GET_SEALS) : -1;
    if (seals < 0 || (seals & SEALS) != SEALS || fstat(*file, &facts) != 0 || facts.st_size <= 0)
        return kvx_note(KVX_INVALID,
                        "descriptor %d is none of a shared pool: not a memfd sealed against shrinking and "
                        "growing",
                        given);
    *bytes = (uint64_t)facts.st_size;
    return KVX_OK;
}

/* Everything in the table is looked at once; another process may change it at any time. */
static kvx_status check_table(kvx_lease *lease, uint64_t memory_bytes, int given)
{
    table_facts facts = lease->table->facts, own = {0};
    uint64_t fit = (lease->table_bytes - sizeof(lease_table)) / sizeof(lease->table->units[0]);
    KVX_TRY(identify(lease->memory_file, &own));
    if (facts.magic != TABLE_MAGIC || facts.version != TABLE_VERSION)
        return kvx_note(KVX_INVALID, "descriptor %d is no table of leases of this version", given);
    if (facts.n_units == 0 || facts.n_units > fit || facts.n_units > KVX_LEASES_MAX || facts.unit_bytes == 0 ||
        facts.unit_bytes % KVX_SLOT_ALIGN != 0 || facts.unit_bytes > UNIT_BYTES_MAX ||
        facts.unit_bytes != memory_bytes / facts.n_units || memory_bytes % facts.n_units != 0 ||
        facts.memory_device != own.memory_device || facts.memory_inode != own.memory_inode)
        return kvx_note(KVX_INVALID, "the descriptors are not memory and leases of one shared pool");
    if (facts.pid_namespace != own.pid_namespace)
        return kvx_note(KVX_UNSUPPORTED, "the owner of the shared pool is in another pid namespace: it could not be "
                                         "told who has ended");
    lease->n_units = facts.n_units;
    lease->unit_bytes = facts.unit_bytes;
    if (facts.owner != lease->self && has_ended(facts.owner))
        return kvx_note(KVX_UNSUPPORTED, "process %llu, the owner of the shared pool, has ended",
                        (unsigned long long)(facts.owner & PID_MASK));
    return atomic_load(&lease->table->closed) ? kvx_note(KVX_UNSUPPORTED, "the owner has destroyed the shared pool")
                                              : KVX_OK;
}

static kvx_status open_table(kvx_lease *lease, const int fds[2])
{
    uint64_t memory_bytes = 0, table_bytes = 0, most = sizeof(lease_table) + KVX_LEASES_MAX * sizeof(process);
    KVX_TRY(open_file(fds[0], &lease->memory_file, &memory_bytes));
    KVX_TRY(open_file(fds[1], &lease->table_file, &table_bytes));
    if (table_bytes < sizeof(lease_table))
        return kvx_note(KVX_INVALID, "descriptor %d is no table of leases", fds[1]);
    lease->table_bytes = table_bytes < most ? table_bytes : most;
    KVX_TRY(map_table(lease));
    return check_table(lease, memory_bytes, fds[1]);
}

kvx_status kvx_lease_open(const int fds[2], kvx_lease **result)
{
    kvx_lease *lease = NULL;
    KVX_TRY(make_object(&lease));
    kvx_status status = open_table(lease, fds);
    if (status != KVX_OK) {
        free_object(lease);
        return status;
    }
    *result = lease;
    return KVX_OK;
}

void kvx_lease_close(kvx_lease *lease)
{
    for (uint32_t i = 0; i < lease->n_held; i++)
        (void)free_unit(lease, lease->held[i]);
    if (lease->owns)
        atomic_store(&lease->table->closed, 1);
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

uint32_t kvx_lease_n_units(const kvx_lease *lease)
{
    return lease->n_units;
}

void kvx_lease_report(kvx_lease *lease, kvx_pool_stats *stats)
{
    stats->lease_bytes = lease->unit_bytes;
    stats->leases = lease->n_units;
    stats->leases_held = lease->n_held;
    stats->leases_free = count_free(lease);
}
