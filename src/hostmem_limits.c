/* SPDX-License-Identifier: Apache-2.0 */
/* Limits that a large pool runs into, found before memory is touched: what touches more than its cgroup allows is
 * killed, not told. Each error names the limit and the fix. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "hostmem_parts.h"

#define PATH_BYTES 512
#define GIB(bytes) ((double)(bytes) / (double)(1ull << 30))

uint64_t kvx_hostmem_read_number(const char *path, uint64_t otherwise)
{
    unsigned long long value;
    FILE *file = fopen(path, "re");
    if (!file)
        return otherwise;
    int n = fscanf(file, "%llu", &value);
    fclose(file);
    return n == 1 ? (uint64_t)value : otherwise;
}

/* "name value" or "name: value" lines, as in memory.stat and meminfo. */
static uint64_t read_field(const char *path, const char *name, uint64_t otherwise)
{
    char line[256];
    unsigned long long value;
    uint64_t found = otherwise;
    size_t length = strlen(name);
    FILE *file = fopen(path, "re");
    if (!file)
        return otherwise;
    while (found == otherwise && fgets(line, sizeof(line), file))
        if (strncmp(line, name, length) == 0 && (line[length] == ' ' || line[length] == ':') &&
            sscanf(line + length + 1, "%llu", &value) == 1)
            found = (uint64_t)value;
    fclose(file);
    return found;
}

/* One hierarchy of cgroups: where it is mounted and what its files are called. */
typedef struct cgroup_kind {
    const char *mount, *limit, *usage, *cache;
} cgroup_kind;

static const cgroup_kind unified = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};
static const cgroup_kind legacy = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                   "total_inactive_file"};

/* A limit binds if it is below what the machine has; file cache is given up for us. */
static kvx_status check_cgroup(const cgroup_kind *kind, const char *group, uint64_t bytes)
{
    char limit_path[PATH_BYTES], path[PATH_BYTES];
    snprintf(limit_path, sizeof(limit_path), "%s%s/%s", kind->mount, group, kind->limit);
    uint64_t limit = kvx_hostmem_read_number(limit_path, UINT64_MAX);
    if (limit >= 1ull << 62)
        return KVX_OK;
    snprintf(path, sizeof(path), "%s%s/%s", kind->mount, group, kind->usage);
    uint64_t used = kvx_hostmem_read_number(path, 0);
    snprintf(path, sizeof(path), "%s%s/memory.stat", kind->mount, group);
    uint64_t cache = read_field(path, kind->cache, 0);
    used = used > cache ? used - cache : 0;
    uint64_t left = limit > used ? limit - used : 0;
    if (bytes <= left)
        return KVX_OK;
    return kvx_note(KVX_NO_MEMORY,
                    "the pool needs %.2f GiB, the cgroup's limit %s is %.2f GiB with %.2f GiB in use: raise it "
                    "(docker --memory, systemd MemoryMax=) or ask for less",
                    GIB(bytes), limit_path, GIB(limit), GIB(used));
}

/* The group and all above it. */
static kvx_status check_cgroups(const cgroup_kind *kind, char *group, uint64_t bytes)
{
    for (;;) {
        KVX_TRY(check_cgroup(kind, group, bytes));
        char *end = strrchr(group, '/');
        if (!end)
            return KVX_OK;
        *end = '\0';
    }
}

/* Lines are "id:controllers:path"; the unified hierarchy has id 0 and no controllers. */
static kvx_status check_own_cgroups(uint64_t bytes)
{
    char line[PATH_BYTES];
    kvx_status status = KVX_OK;
    int seen = 0;
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file && status == KVX_OK && fgets(line, sizeof(line), file)) {
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        line[strcspn(line, "\n")] = '\0';
        *group++ = '\0';
        if (strcmp(controllers + 1, "") != 0 && strcmp(controllers + 1, "memory") != 0)
            continue;
        if (strcmp(group, "/") == 0)
            *group = '\0';
        seen = 1;
        status = check_cgroups(controllers[1] ? &legacy : &unified, group, bytes);
    }
    if (file)
        fclose(file);
    return seen ? status : check_cgroup(&unified, "", bytes);
}

kvx_status kvx_hostmem_fits(uint64_t bytes, int hugetlb)
{
    uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t available = read_field("/proc/meminfo", "MemAvailable", machine / 1024) * 1024;
    if (bytes > machine)
        return kvx_note(KVX_NO_MEMORY, "the pool needs %.2f GiB, the machine has %.2f GiB", GIB(bytes), GIB(machine));
    if (hugetlb)
        return KVX_OK; /* set aside at boot, and not charged to memory limits */
    if (bytes > available)
        return kvx_note(KVX_NO_MEMORY,
                        "the pool needs %.2f GiB, MemAvailable in /proc/meminfo is %.2f GiB: end what holds the rest "
                        "or ask for less",
                        GIB(bytes), GIB(available));
    return check_own_cgroups(bytes);
}

const char *kvx_hostmem_pin_hint(uint64_t pinned, uint64_t bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && pinned + bytes > limit.rlim_cur)
        return "RLIMIT_MEMLOCK is lower than that: raise it (`ulimit -l unlimited`, systemd LimitMEMLOCK=infinity, "
               "docker --ulimit memlock=-1)";
    return "RLIMIT_MEMLOCK is not the cause; see the kernel log and the cgroup's memory limit, or set allow_pageable";
}
