/* SPDX-License-Identifier: Apache-2.0 */
/* Where memory and threads are placed. The only file that knows libnuma. A node is preferred, never demanded of the
 * kernel: a bind that cannot be met ends in the out-of-memory killer. What lies elsewhere is counted instead. */
#include <numa.h>
#include <numaif.h>
#include <sched.h>
#include <stdio.h>

#include "../kernels/format.h"
#include "hostmem_parts.h"

#define SAMPLES_MAX 4096u
#define SAMPLES_AT_ONCE 64u

static int usable_node(int node)
{
    return node >= 0 && node <= numa_max_node() && numa_bitmask_isbitset(numa_all_nodes_ptr, (unsigned)node);
}

kvx_status kvx_hostmem_choose_node(int asked, int gpu_node, int *node)
{
    int there = numa_available() >= 0;
    if (asked >= 0 && (!there || !usable_node(asked)))
        return kvx_note(
            KVX_INVALID,
            "NUMA node %d is absent, offline or not allowed by this process's cpuset (see numactl --hardware)", asked);
    *node = asked >= 0 ? asked : gpu_node;
    if (!there || !usable_node(*node))
        *node = -1;
    return KVX_OK;
}

void kvx_hostmem_bind(uint8_t *memory, uint64_t bytes, int node)
{
    if (node < 0)
        return;
    struct bitmask *mask = numa_allocate_nodemask();
    if (!mask)
        return;
    numa_bitmask_setbit(mask, (unsigned)node);
    (void)mbind(memory, bytes, MPOL_PREFERRED, mask->maskp, mask->size + 1, 0);
    numa_free_nodemask(mask);
}

/* libnuma's own list of a node's processors is cached without a lock. This reads "0-3,8" from sysfs, and keeps what
 * this thread may use. Returns how many. */
static uint32_t find_cpus(int node, cpu_set_t *cpus)
{
    char path[96];
    unsigned first, last;
    cpu_set_t allowed;
    CPU_ZERO(cpus);
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
        return 0;
    snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/cpulist", node);
    FILE *file = fopen(path, "re");
    while (file && fscanf(file, "%u", &first) == 1) {
        last = first;
        (void)!fscanf(file, "-%u", &last);
        for (unsigned cpu = first; cpu <= last && cpu < CPU_SETSIZE; cpu++)
            if (CPU_ISSET(cpu, &allowed))
                CPU_SET(cpu, cpus);
        if (fgetc(file) != ',')
            break;
    }
    if (file)
        fclose(file);
    return (uint32_t)CPU_COUNT(cpus);
}

void kvx_hostmem_run_on(int node)
{
    cpu_set_t cpus;
    if (node >= 0 && find_cpus(node, &cpus) > 0)
        (void)sched_setaffinity(0, sizeof(cpus), &cpus);
}

uint32_t kvx_hostmem_n_cpus(int node)
{
    cpu_set_t cpus;
    uint32_t n = node >= 0 ? find_cpus(node, &cpus) : 0;
    if (n == 0 && sched_getaffinity(0, sizeof(cpus), &cpus) == 0)
        n = (uint32_t)CPU_COUNT(&cpus);
    return n > 0 ? n : 1;
}

uint64_t kvx_hostmem_off_node(const kvx_hostmem_chunk *chunk, int node)
{
    uint64_t step = chunk->bytes / SAMPLES_MAX / KVX_SLOT_ALIGN * KVX_SLOT_ALIGN + KVX_SLOT_ALIGN;
    uint64_t seen = 0, elsewhere = 0, at = 0;
    if (node < 0)
        return 0;
    while (at < chunk->bytes) {
        void *pages[SAMPLES_AT_ONCE];
        int nodes[SAMPLES_AT_ONCE];
        unsigned long n = 0;
        for (; n < SAMPLES_AT_ONCE && at < chunk->bytes; at += step)
            pages[n++] = chunk->host + at;
        if (numa_move_pages(0, n, pages, NULL, nodes, 0) != 0)
            return 0;
        for (unsigned long i = 0; i < n; i++) {
            seen += nodes[i] >= 0;
            elsewhere += nodes[i] >= 0 && nodes[i] != node;
        }
    }
    return seen ? (uint64_t)((double)chunk->bytes * (double)elsewhere / (double)seen) : 0;
}
