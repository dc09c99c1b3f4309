/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for secrets: whole pages of their own, locked, left out of core dumps and of forked children. */
#include "secmem.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "status.h"

/* 0 if it cannot be rounded. */
static size_t whole_pages(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return bytes == 0 || bytes > SIZE_MAX - page ? 0 : (bytes + page - 1) / page * page;
}

kvx_status kvx_secmem_map(size_t bytes, void **memory)
{
    kvx_status status;
    size_t size = whole_pages(bytes);
    if (size == 0)
        return kvx_note(KVX_INVALID, "%zu bytes of locked memory cannot be mapped", bytes);
    void *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        return kvx_note(KVX_NO_MEMORY, "mmap of %zu bytes for keys failed: errno %d", size, errno);
    if (mlock(pages, size) != 0) {
        status = kvx_note(KVX_NO_MEMORY,
                          "mlock of %zu bytes for keys and records failed (errno %d): raise RLIMIT_MEMLOCK (`ulimit "
                          "-l`), or lower n_slots or "
                          "max_units",
                          size, errno);
        goto unmap_pages;
    }
    if (madvise(pages, size, MADV_DONTDUMP) != 0 || madvise(pages, size, MADV_DONTFORK) != 0) {
        status = kvx_note(KVX_NO_MEMORY, "madvise on memory for keys failed: errno %d", errno);
        goto unmap_pages;
    }
    *memory = pages;
    return KVX_OK;

unmap_pages:
    munmap(pages, size);
    return status;
}

void kvx_secmem_unmap(void *memory, size_t bytes)
{
    if (!memory)
        return;
    kvx_secmem_wipe(memory, bytes);
    munmap(memory, whole_pages(bytes)); /* unlocks too */
}

void kvx_secmem_wipe(void *memory, size_t bytes)
{
    if (bytes > 0)
        explicit_bzero(memory, bytes);
}
