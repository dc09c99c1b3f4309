/* SPDX-License-Identifier: Apache-2.0 */
/* Pins one chunk, or finds out that it cannot be: CUDA registers what we mapped; where it refuses (confidential
 * computing answers 801) CUDA allocates instead; where that fails too, memory stays unpinned only if the caller said
 * so. And the way back. */
#include <string.h>
#include <sys/mman.h>

#include "hostmem_parts.h"

static int locked_flag(kvx_hostmem *memory, const uint32_t *flag)
{
    pthread_mutex_lock(&memory->lock);
    int set = *flag != 0;
    pthread_mutex_unlock(&memory->lock);
    return set;
}

static kvx_status refuse(kvx_hostmem *memory, uint32_t chunk, int registering, const char *allocating)
{
    uint64_t bytes = memory->chunks[chunk].bytes;
    pthread_mutex_lock(&memory->lock);
    uint64_t pinned = memory->pinned_bytes;
    pthread_mutex_unlock(&memory->lock);
    return kvx_note(KVX_NO_MEMORY, "chunk %u: pinning %llu bytes failed (%s; %s): %s", chunk, (unsigned long long)bytes,
                    registering ? kvx_hostmem_driver_error(memory->driver, registering) : "not registered", allocating,
                    kvx_hostmem_pin_hint(pinned, bytes));
}

static kvx_status allocate(kvx_hostmem *memory, uint32_t index, int registering)
{
    kvx_hostmem_chunk *chunk = &memory->chunks[index];
    kvx_hostmem_part *part = &memory->parts[index];
    uint8_t *host = NULL, *dev = NULL;
    /* Both copies at once could exceed the cgroup: give the pages back, keep the mapping. */
    kvx_hostmem_drop(chunk, -1);
    int error = kvx_hostmem_driver_allocate(memory->driver, chunk->bytes, &host, &dev);
    if (error != 0)
        return refuse(memory, index, registering, kvx_hostmem_driver_error(memory->driver, error));
    memset(host, 0, chunk->bytes);
    (void)madvise(host, chunk->bytes, MADV_DONTDUMP);
    kvx_hostmem_unmap(&part->mapping);
    part->mapping = (kvx_hostmem_mapping){NULL, chunk->bytes, KVX_PAGES_SMALL};
    part->registered = 1;
    chunk->host = host;
    chunk->dev = dev;
    pthread_mutex_lock(&memory->lock);
    memory->from_driver = 1;
    pthread_mutex_unlock(&memory->lock);
    return KVX_OK;
}

/* From the first refusal on nothing more is pinned. */
static kvx_status stay_pageable(kvx_hostmem *memory, uint32_t index)
{
    pthread_mutex_lock(&memory->lock);
    memory->pageable = 1;
    memory->chunks[index].dev = NULL;
    for (uint32_t i = memory->next_pin; i < memory->n_chunks; i++)
        memory->chunks[i].dev = NULL;
    pthread_mutex_unlock(&memory->lock);
    return kvx_hostmem_touch(memory->chunks[index].host, memory->chunks[index].bytes);
}

static kvx_status probe(kvx_hostmem *memory, uint32_t index)
{
    kvx_hostmem_chunk *chunk = &memory->chunks[index];
    int error = index == 0 ? kvx_hostmem_driver_probe(memory->driver, chunk->host, chunk->dev) : 0;
    if (error == 0)
        return KVX_OK;
    return kvx_note(KVX_UNSUPPORTED, "pinned memory does not work: %s",
                    kvx_hostmem_driver_error(memory->driver, error));
}

/* Contexts were told the addresses of all chunks when there was one. */
static kvx_status check_address(const kvx_hostmem *memory, uint32_t index, const uint8_t *dev)
{
    if (!memory->config.background || dev == memory->chunks[index].host)
        return KVX_OK;
    return kvx_note(KVX_UNSUPPORTED,
                    "chunk %u: the device address is not the host's: create the pool without "
                    "background",
                    index);
}

static kvx_status register_chunk(kvx_hostmem *memory, uint32_t index, int *refused)
{
    kvx_hostmem_chunk *chunk = &memory->chunks[index];
    uint8_t *dev = NULL;
    *refused = kvx_hostmem_driver_register(memory->driver, chunk->host, chunk->bytes, &dev);
    if (*refused != 0)
        return KVX_OK;
    kvx_status status = check_address(memory, index, dev);
    if (status != KVX_OK) {
        (void)kvx_hostmem_driver_unregister(memory->driver, chunk->host);
        return status;
    }
    memory->parts[index].registered = 1;
    if (chunk->dev != dev)
        chunk->dev = dev;
    return KVX_OK;
}

static kvx_status register_or_allocate(kvx_hostmem *memory, uint32_t index)
{
    int refused = 0, from_driver = locked_flag(memory, &memory->from_driver);
    if (!from_driver)
        KVX_TRY(register_chunk(memory, index, &refused));
    if (!from_driver && refused == 0)
        return KVX_OK;
    if (!from_driver && memory->config.background && index > 0)
        return refuse(memory, index, refused, "its address is known to contexts, so nothing else was tried");
    if (memory->config.file >= 0)
        return refuse(memory, index, refused, "memory of the driver cannot be shared between processes");
    return allocate(memory, index, refused);
}

kvx_status kvx_hostmem_pin(kvx_hostmem *memory, uint32_t index)
{
    if (!memory->driver || locked_flag(memory, &memory->pageable)) {
        kvx_hostmem_chunk *chunk = &memory->chunks[index];
        if (chunk->dev)
            chunk->dev = NULL;
        /* Not touched yet if the driver was to allocate it. */
        return locked_flag(memory, &memory->from_driver) ? kvx_hostmem_touch(chunk->host, chunk->bytes) : KVX_OK;
    }
    kvx_status status = register_or_allocate(memory, index);
    if (status == KVX_OK)
        status = probe(memory, index);
    if (status == KVX_OK) {
        pthread_mutex_lock(&memory->lock);
        memory->pinned_bytes += memory->chunks[index].bytes;
        pthread_mutex_unlock(&memory->lock);
        return KVX_OK;
    }
    int may_stay = memory->config.allow_pageable && !(memory->config.background && index > 0);
    return may_stay && memory->parts[index].mapping.host ? stay_pageable(memory, index) : status;
}

void kvx_hostmem_take_down(kvx_hostmem *memory, uint32_t index)
{
    kvx_hostmem_part *part = &memory->parts[index];
    uint8_t *host = memory->chunks[index].host;
    /* What CUDA allocated it frees; what it registered, it unregisters and we unmap, also if the device is lost. */
    if (part->registered && !part->mapping.host)
        (void)kvx_hostmem_driver_free(memory->driver, host);
    else if (part->registered)
        (void)kvx_hostmem_driver_unregister(memory->driver, host);
    if (part->mapping.host)
        kvx_hostmem_unmap(&part->mapping);
    memset(part, 0, sizeof(*part));
}
