/* SPDX-License-Identifier: Apache-2.0 */
/* Mappings and their pages: hugetlb pages where they are free, else transparent huge pages, else small ones. A mapping
 * is exact but for the last page, and a kind whose rounding would cost more than a sixteenth is not used. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <linux/mman.h>

#include "../kernels/format.h"
#include "hostmem_parts.h"

#ifndef MADV_POPULATE_WRITE /* Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

#define HUGE_2M (2ull << 20)
#define HUGE_1G (1ull << 30)

uint64_t kvx_hostmem_page_bytes(kvx_page_kind pages)
{
    return pages == KVX_PAGES_1G ? HUGE_1G : pages == KVX_PAGES_2M ? HUGE_2M : KVX_SLOT_ALIGN;
}

uint64_t kvx_hostmem_huge_free(kvx_page_kind pages)
{
    const char *of_2m = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
    const char *of_1g = "/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages";
    if (pages != KVX_PAGES_2M && pages != KVX_PAGES_1G)
        return 0;
    return kvx_hostmem_read_number(pages == KVX_PAGES_1G ? of_1g : of_2m, 0) * kvx_hostmem_page_bytes(pages);
}

/* Is the bracketed word of the setting one of the two that give huge pages to who asks? */
static int transparent_possible(int shared)
{
    char line[128];
    FILE *file = fopen(shared ? "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
                              : "/sys/kernel/mm/transparent_hugepage/enabled",
                       "re");
    if (!file)
        return 0;
    char *got = fgets(line, sizeof(line), file);
    fclose(file);
    return got && !strstr(line, "[never]") && !strstr(line, "[deny]");
}

static uint64_t round_up(uint64_t bytes, uint64_t page)
{
    return (bytes + page - 1) / page * page;
}

static int worth(kvx_page_kind pages, uint64_t bytes)
{
    return round_up(bytes, kvx_hostmem_page_bytes(pages)) - bytes <= bytes / 16;
}

kvx_page_kind kvx_hostmem_choose_pages(kvx_page_kind wanted, uint64_t bytes, int shared)
{
    static const kvx_page_kind kinds[] = {KVX_PAGES_1G, KVX_PAGES_2M};
    for (uint32_t i = 0; i < 2; i++)
        if ((wanted == KVX_PAGES_AUTO || wanted >= kinds[i]) && worth(kinds[i], bytes) &&
            kvx_hostmem_huge_free(kinds[i]) >= bytes)
            return kinds[i];
    if (wanted != KVX_PAGES_SMALL && transparent_possible(shared))
        return KVX_PAGES_TRANSPARENT;
    return KVX_PAGES_SMALL;
}

static int page_flags(kvx_page_kind pages)
{
    return pages == KVX_PAGES_1G ? MAP_HUGETLB | MAP_HUGE_1GB : pages == KVX_PAGES_2M ? MAP_HUGETLB | MAP_HUGE_2MB : 0;
}

static int map_huge(const kvx_hostmem_chunk *chunk, kvx_page_kind pages, kvx_hostmem_mapping *mapping)
{
    uint64_t bytes = round_up(chunk->bytes, kvx_hostmem_page_bytes(pages));
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | page_flags(pages);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED)
        return 0;
    *mapping = (kvx_hostmem_mapping){memory, bytes, pages};
    return 1;
}

/* A mapping that begins at a multiple of 2 MiB, so that huge pages fit: maps more and trims. */
static void *map_aligned(const kvx_hostmem_chunk *chunk, int file)
{
    uint64_t bytes = chunk->bytes, extra = bytes >= HUGE_2M ? HUGE_2M : 0;
    int reserve = MAP_PRIVATE | MAP_ANONYMOUS | (file >= 0 ? MAP_NORESERVE : 0);
    uint8_t *all = mmap(NULL, bytes + extra, file >= 0 ? PROT_NONE : PROT_READ | PROT_WRITE, reserve, -1, 0);
    if (all == MAP_FAILED)
        return all;
    uint64_t before = extra ? round_up((uint64_t)(uintptr_t)all, HUGE_2M) - (uint64_t)(uintptr_t)all : 0;
    if (before > 0)
        munmap(all, before);
    if (extra > before)
        munmap(all + before + bytes, extra - before);
    if (file < 0)
        return all + before;
    void *placed =
        mmap(all + before, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, (off_t)chunk->file_offset);
    if (placed == MAP_FAILED)
        munmap(all + before, bytes);
    return placed;
}

kvx_status kvx_hostmem_map(const kvx_hostmem_chunk *chunk, int file, kvx_page_kind pages, kvx_hostmem_mapping *mapping)
{
    int done = 0;
    if (file < 0 && pages == KVX_PAGES_1G && worth(pages, chunk->bytes))
        done = map_huge(chunk, KVX_PAGES_1G, mapping);
    if (!done && file < 0 && pages >= KVX_PAGES_2M && worth(KVX_PAGES_2M, chunk->bytes))
        done = map_huge(chunk, KVX_PAGES_2M, mapping);
    if (!done) {
        void *memory = map_aligned(chunk, file);
        if (memory == MAP_FAILED)
            return kvx_note(KVX_NO_MEMORY,
                            "mmap of %llu bytes failed: errno %d (12: see `ulimit -v`, vm.overcommit_memory, "
                            "vm.max_map_count)",
                            (unsigned long long)chunk->bytes, errno);
        int transparent = pages != KVX_PAGES_SMALL && chunk->bytes >= HUGE_2M &&
                          madvise(memory, chunk->bytes, MADV_HUGEPAGE) == 0 && transparent_possible(file >= 0);
        if (pages == KVX_PAGES_SMALL)
            (void)madvise(memory, chunk->bytes, MADV_NOHUGEPAGE);
        *mapping = (kvx_hostmem_mapping){memory, chunk->bytes, transparent ? KVX_PAGES_TRANSPARENT : KVX_PAGES_SMALL};
    }
    /* For tidiness, no reason to fail. */
    (void)madvise(mapping->host, mapping->bytes, MADV_DONTFORK);
    (void)madvise(mapping->host, mapping->bytes, MADV_DONTDUMP);
    return KVX_OK;
}

/* For kernels before 5.14: one write a page, which changes nothing. A shortage kills us there. */
static void touch_pages(uint8_t *memory, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes; at += KVX_SLOT_ALIGN) {
        volatile uint8_t *byte = memory + at;
        *byte = *byte;
    }
}

kvx_status kvx_hostmem_touch(uint8_t *memory, uint64_t bytes)
{
    int failed;
    do
        failed = madvise(memory, bytes, MADV_POPULATE_WRITE) != 0;
    while (failed && (errno == EINTR || errno == EAGAIN));
    if (!failed)
        return KVX_OK;
    if (errno != EINVAL)
        return kvx_note(KVX_NO_MEMORY,
                        "touching %llu bytes failed: errno %d (12: the machine, its cgroup or its hugetlb pages are "
                        "exhausted; 14: hugetlb pages of this node are)",
                        (unsigned long long)bytes, errno);
    touch_pages(memory, bytes);
    return KVX_OK;
}

void kvx_hostmem_drop(const kvx_hostmem_chunk *chunk, int file)
{
    if (file >= 0)
        (void)fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)chunk->file_offset,
                        (off_t)chunk->bytes);
    else
        (void)madvise(chunk->host, chunk->bytes, MADV_DONTNEED);
}

/* Pages go first, by madvise: that takes the address space's lock shared, so that several threads do it at once. */
void kvx_hostmem_unmap(const kvx_hostmem_mapping *mapping)
{
    (void)madvise(mapping->host, mapping->bytes, MADV_DONTNEED);
    munmap(mapping->host, mapping->bytes);
}

static int is_ours(const kvx_hostmem_chunk *chunks, uint32_t n, uint64_t start, uint64_t end)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t first = (uint64_t)(uintptr_t)chunks[i].host;
        if (first < end && first + chunks[i].bytes > start)
            return 1;
    }
    return 0;
}

uint64_t kvx_hostmem_huge_bytes(const kvx_hostmem_chunk *chunks, uint32_t n)
{
    char line[512];
    unsigned long long start, end, kib;
    uint64_t bytes = 0;
    int ours = 0;
    FILE *file = fopen("/proc/self/smaps", "re");
    while (file && fgets(line, sizeof(line), file)) {
        if (sscanf(line, "%llx-%llx ", &start, &end) == 2)
            ours = is_ours(chunks, n, start, end);
        else if (ours &&
                 (sscanf(line, "AnonHugePages: %llu", &kib) == 1 || sscanf(line, "ShmemPmdMapped: %llu", &kib) == 1 ||
                  sscanf(line, "Private_Hugetlb: %llu", &kib) == 1))
            bytes += kib * 1024;
    }
    if (file)
        fclose(file);
    return bytes;
}
