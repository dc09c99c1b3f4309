/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of the CUDA engine. A tenant has one key at a time: kernels do not move on to a next one by themselves. */
#include "engine_cuda.h"

#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "secmem.h"
#include "../kernels/keystate.h"
#include "../kernels/state.h"

#define NO_KEY UINT32_MAX
#define DRAIN_MS 30000

kvx_status kvx_cuda_identify(int device, kvx_engine_identity *identity)
{
    struct cudaDeviceProp properties;
    cudaError_t error = device < 0 ? cudaGetDevice(&device) : cudaSuccess;
    if (error == cudaSuccess)
        error = cudaGetDeviceProperties(&properties, device);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return error == cudaErrorInvalidDevice ? kvx_note(KVX_INVALID, "there is no CUDA device %d", device)
                                               : kvx_cuda_note("cudaGetDeviceProperties", error);
    }
    *identity = (kvx_engine_identity){.name = "cuda"};
    memcpy(identity->uuid, &properties.uuid, sizeof identity->uuid);
    return KVX_OK;
}

static cudaError_t install(kvx_cuda *engine, uint32_t key_slot, uint32_t generation)
{
    cudaStream_t stream = engine->streams[KVX_CUDA_SETUP];
    cudaError_t error = kvx_cuda_upload(engine, engine->dev_key, engine->secrets->key, KVX_KEY_BYTES);
    kvx_secmem_wipe(engine->secrets->key, KVX_KEY_BYTES);
    if (error == cudaSuccess)
        error = (cudaError_t)kvx_launch_key_install(engine->dev.keys, key_slot, generation, engine->dev_key, stream);
    if (cudaMemsetAsync(engine->dev_key, 0xff, KVX_KEY_BYTES, stream) != cudaSuccess && error == cudaSuccess)
        error = cudaErrorUnknown;
    if (cudaMemsetAsync(engine->dev_key, 0, KVX_KEY_BYTES, stream) != cudaSuccess && error == cudaSuccess)
        error = cudaErrorUnknown;
    return error;
}

kvx_status kvx_cuda_key_install(void *handle, uint32_t key_slot, uint32_t generation, uint32_t state,
                                const uint8_t key[KVX_KEY_BYTES])
{
    kvx_cuda *engine = handle;
    kvx_cuda_guard guard;
    cudaError_t error;
    if (key_slot >= engine->config.n_key_slots || state != KVX_KEY_STATE_LIVE)
        return kvx_note(KVX_INVALID, "key slot %u is out of range, or its key would not be live", key_slot);
    error = kvx_cuda_enter(&guard, engine->config.device);
    if (error != cudaSuccess)
        return kvx_cuda_note("cudaSetDevice", error);
    memcpy(engine->secrets->key, key, KVX_KEY_BYTES);
    error = install(engine, key_slot, generation);
    kvx_cuda_leave(&guard);
    return error == cudaSuccess ? KVX_OK : kvx_cuda_note("installing a key", error);
}

/* After the key is live: the same stream. */
kvx_status kvx_cuda_tenant_set(void *handle, uint32_t tenant, const kvx_tenant_keys *keys, int next_only)
{
    kvx_cuda *engine = handle;
    const uint32_t key_slot = keys->current ? kvx_key_ref_slot(keys->current) : NO_KEY;
    kvx_cuda_guard guard;
    cudaError_t error;
    if (next_only)
        return KVX_OK;
    if (tenant >= engine->config.n_tenants)
        return kvx_note(KVX_INVALID, "tenant %u of %u", tenant, engine->config.n_tenants);
    error = kvx_cuda_enter(&guard, engine->config.device);
    if (error != cudaSuccess)
        return kvx_cuda_note("cudaSetDevice", error);
    error =
        kvx_cuda_upload(engine, (uint32_t *)(uintptr_t)engine->dev.tenant_keys + tenant, &key_slot, sizeof key_slot);
    kvx_cuda_leave(&guard);
    if (error != cudaSuccess)
        return kvx_cuda_note("naming a tenant's key", error);
    engine->tenant_refs[tenant] = keys->current;
    return KVX_OK;
}

kvx_status kvx_cuda_tenant_move(void *handle, uint32_t tenant, uint64_t from)
{
    (void)handle;
    (void)from;
    return kvx_note(KVX_UNSUPPORTED, "tenant %u: the CUDA engine cannot move on to another key", tenant);
}

uint64_t kvx_cuda_tenant_current(void *handle, uint32_t tenant)
{
    const kvx_cuda *engine = handle;
    return engine->tenant_refs[tenant];
}

/* Nonzero once every stream of the engine's has been empty, so that no kernel holds a copy of a key. */
static int drain(kvx_cuda *engine)
{
    const struct timespec pause = {0, 1000000};
    uint32_t i, waited_ms = 0;
    for (i = 0; i < KVX_CUDA_STREAMS; i++)
        while (cudaStreamQuery(engine->streams[i]) == cudaErrorNotReady) {
            if (waited_ms++ == DRAIN_MS)
                return 0;
            nanosleep(&pause, NULL);
        }
    return 1;
}

static kvx_status overwrite(kvx_cuda *engine, uint32_t key_slot)
{
    cudaStream_t stream = engine->streams[KVX_CUDA_SETUP];
    uint64_t fill = 0;
    cudaError_t error;
    if (getrandom(&fill, sizeof fill, 0) != (ssize_t)sizeof fill)
        fill = 0x5a5a5a5a5a5a5a5au;
    error = (cudaError_t)kvx_launch_key_wipe(engine->dev.keys, key_slot, 1, fill, stream);
    if (!drain(engine))
        return kvx_note(KVX_TIMEOUT, "key slot %u is dead, but work has been in flight for 30 s", key_slot);
    if (error == cudaSuccess)
        error = (cudaError_t)kvx_launch_key_wipe(engine->dev.keys, key_slot, 1, fill, stream);
    if (error == cudaSuccess)
        error = (cudaError_t)kvx_launch_key_wipe(engine->dev.keys, key_slot, 1, 0, stream);
    if (error == cudaSuccess)
        error = kvx_cuda_synchronize(engine, KVX_CUDA_SETUP);
    return error == cudaSuccess ? KVX_OK : kvx_cuda_note("erasing a key", error);
}

kvx_status kvx_cuda_key_erase(void *handle, uint32_t key_slot, uint32_t generation)
{
    kvx_cuda *engine = handle;
    kvx_cuda_guard guard;
    kvx_status status;
    cudaError_t error;
    (void)generation;
    if (key_slot >= engine->config.n_key_slots)
        return kvx_note(KVX_INVALID, "key slot %u of %u", key_slot, engine->config.n_key_slots);
    error = kvx_cuda_enter(&guard, engine->config.device);
    if (error != cudaSuccess)
        return kvx_cuda_note("cudaSetDevice", error);
    status = overwrite(engine, key_slot);
    kvx_cuda_leave(&guard);
    return status;
}

enum { HEADERS_AT_ONCE = 256 };

static cudaError_t count_blocks(kvx_cuda *engine, const kvx_key_census *census)
{
    kvx_header headers[HEADERS_AT_ONCE];
    const uint32_t n_slots = engine->config.pool->n_slots;
    cudaError_t error = cudaSuccess;
    uint32_t at, i;
    for (at = 0; error == cudaSuccess && at < n_slots; at += HEADERS_AT_ONCE) {
        const uint32_t n = n_slots - at < HEADERS_AT_ONCE ? n_slots - at : HEADERS_AT_ONCE;
        error = kvx_cuda_download(engine, headers, engine->dev.headers + at, n * sizeof *headers);
        for (i = 0; error == cudaSuccess && i < n; i++)
            if (kvx_word_state(headers[i].word) == KVX_SLOT_VALID && headers[i].key_slot < engine->config.n_key_slots)
                census->n_blocks[headers[i].key_slot]++;
    }
    return error;
}

/* A key is in its slot until it is erased, so no header can name an earlier one of it that matters: those of erased
 * keys are counted with the slot's next key, which only keeps it longer. */
kvx_status kvx_cuda_key_census(void *handle, const kvx_key_census *census)
{
    kvx_cuda *engine = handle;
    kvx_cuda_guard guard;
    cudaError_t error = kvx_cuda_enter(&guard, engine->config.device);
    if (error != cudaSuccess)
        return kvx_cuda_note("cudaSetDevice", error);
    memset(census->n_blocks, 0, engine->config.n_key_slots * sizeof *census->n_blocks);
    memset(census->spent, 0, engine->config.n_key_slots * sizeof *census->spent);
    memset(census->is_left, 0, engine->config.n_key_slots * sizeof *census->is_left);
    error = count_blocks(engine, census);
    kvx_cuda_leave(&guard);
    return error == cudaSuccess ? KVX_OK : kvx_cuda_note("counting blocks", error);
}

void kvx_cuda_latch(void *handle)
{
    kvx_cuda *engine = handle;
    kvx_cuda_guard guard;
    if (kvx_cuda_enter(&guard, engine->config.device) != cudaSuccess)
        return;
    (void)cudaMemsetAsync(&engine->dev.words->latch, 1, sizeof engine->dev.words->latch,
                          engine->streams[KVX_CUDA_SETUP]);
    kvx_cuda_leave(&guard);
}

int kvx_cuda_incarnation_is(void *handle, uint64_t incarnation)
{
    const kvx_cuda *engine = handle;
    return engine->config.incarnation == incarnation;
}
