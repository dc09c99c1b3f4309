/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for secrets. Pages of memfd_secret are shared mappings, so what MADV_WIPEONFORK does for private ones has to
 * be done by MADV_DONTFORK: a child finds nothing at the address. They are locked by nature, and count as locked
 * memory. */
#include "secmem.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "platform.h"
#include "status.h"

/* 0 if it cannot be rounded. */
static size_t whole_pages(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return bytes == 0 || bytes > SIZE_MAX - page ? 0 : (bytes + page - 1) / page * page;
}

static int hide(void *pages, size_t size)
{
    return madvise(pages, size, MADV_DONTDUMP) == 0 && madvise(pages, size, MADV_DONTFORK) == 0;
}

/* NULL if this kernel has no such memory, or not so much. Pages are touched here: a fault later would be fatal. */
static void *map_secret(size_t size)
{
    void *pages = MAP_FAILED;
    int file = kvx_platform()->memfd_secret();
    if (file < 0)
        return NULL;
    if (ftruncate(file, (off_t)size) == 0)
        pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
    (void)close(file);
    if (pages == MAP_FAILED)
        return NULL;
    if (hide(pages, size))
        return pages;
    munmap(pages, size);
    return NULL;
}

kvx_status kvx_secmem_map_locked(size_t bytes, void **memory)
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
                          "-l`), or lower n_slots, max_units or n_key_slots",
                          size, errno);
        goto unmap_pages;
    }
    if (!hide(pages, size)) {
        status = kvx_note(KVX_NO_MEMORY, "madvise on memory for keys failed: errno %d", errno);
        goto unmap_pages;
    }
    *memory = pages;
    return KVX_OK;

unmap_pages:
    munmap(pages, size);
    return status;
}

kvx_status kvx_secmem_map(size_t bytes, void **memory, enum kvx_secmem_rung *rung)
{
    size_t size = whole_pages(bytes);
    void *pages = size ? map_secret(size) : NULL;
    if (!pages)
        KVX_TRY(kvx_secmem_map_locked(bytes, memory));
    else
        *memory = pages;
    if (rung)
        *rung = pages ? KVX_SECMEM_SECRET : KVX_SECMEM_LOCKED;
    return KVX_OK;
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
