/* SPDX-License-Identifier: Apache-2.0 */
/* Telling copies of a process from the process. */
#include "incarnation.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "platform.h"
#include "status.h"

#define LOOK_EVERY_NS (100ull * 1000 * 1000)

/* What the kernel says. Returns 0 if it could not be asked (too many open files, no /proc). */
static int ask(char boot_id[40], uint64_t *start_ticks)
{
    char stat[1024];
    const char *at;
    memset(boot_id, 0, 40);
    *start_ticks = 0;
    if (kvx_platform_slurp("/proc/sys/kernel/random/boot_id", boot_id, 37) < 0 ||
        kvx_platform_slurp("/proc/self/stat", stat, sizeof stat) < 0)
        return 0;
    at = strrchr(stat, ')'); /* the name may hold anything; the 20th field after it is the start time */
    for (int field = 0; at && field < 20; field++)
        at = strchr(at + 1, ' ');
    if (at)
        *start_ticks = strtoull(at + 1, NULL, 10);
    return at != NULL;
}

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

kvx_status kvx_incarnation_begin(kvx_incarnation *incarnation)
{
    void *page = mmap(NULL, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return kvx_note(KVX_NO_MEMORY, "mmap of a page failed");
    (void)madvise(page, page_bytes(), MADV_WIPEONFORK); /* without it the process id remains */
    memcpy(page, &(uint32_t){1}, sizeof(uint32_t));
    incarnation->sentinel = page;
    incarnation->pid = kvx_platform()->getpid();
    incarnation->known = ask(incarnation->boot_id, &incarnation->start_ticks);
    atomic_store(&incarnation->looked_ns, kvx_platform()->clock_ns(KVX_CLOCK_REAL));
    return KVX_OK;
}

void kvx_incarnation_end(kvx_incarnation *incarnation)
{
    if (incarnation->sentinel)
        munmap((void *)(uintptr_t)incarnation->sentinel, page_bytes());
    incarnation->sentinel = NULL;
}

int kvx_incarnation_is_here(const kvx_incarnation *incarnation)
{
    return *incarnation->sentinel != 0 && incarnation->pid == kvx_platform()->getpid();
}

int kvx_incarnation_is_original(kvx_incarnation *incarnation)
{
    const uint64_t now = kvx_platform()->clock_ns(KVX_CLOCK_REAL);
    const uint64_t looked = atomic_load(&incarnation->looked_ns);
    char boot_id[40];
    uint64_t start_ticks;
    if (now >= looked && now - looked < LOOK_EVERY_NS)
        return 1;
    if (!incarnation->known || !ask(boot_id, &start_ticks))
        return 1;
    if (memcmp(boot_id, incarnation->boot_id, sizeof boot_id) != 0 || start_ticks != incarnation->start_ticks)
        return 0;
    atomic_store(&incarnation->looked_ns, now);
    return 1;
}
