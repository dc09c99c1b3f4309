/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of the CPU engine: 32 bytes each in memory for secrets, beside the states that keystate.h knows. */
#include <sched.h>
#include <string.h>
#include <time.h>

#include "../kernels/keystate.h"
#include "../kernels/state.h"
#include "engine_cpu.h"
#include "platform.h"
#include "secmem.h"
#include "status.h"

#define DRAIN_NS (30ull * 1000 * 1000 * 1000)

kvx_status kvx_cpu_key_install(void *arg, uint32_t key_slot, uint32_t generation, uint32_t state,
                               const uint8_t key[KVX_KEY_BYTES])
{
    kvx_cpu_engine *engine = arg;
    if (key_slot >= engine->config.n_key_slots ||
        kvx_key_word_state(kvx_load_acquire_u64(&engine->key_states[key_slot].word)) != KVX_KEY_STATE_DEAD)
        return kvx_note(KVX_INVALID, "key slot %u is out of range or in use", key_slot);
    memcpy(engine->keys[key_slot], key, KVX_KEY_BYTES);
    kvx_key_start(&engine->key_states[key_slot], generation, state);
    return KVX_OK;
}

kvx_status kvx_cpu_tenant_set(void *arg, uint32_t tenant, const kvx_tenant_keys *keys, int next_only)
{
    kvx_cpu_engine *engine = arg;
    kvx_tenant_keys *mine;
    if (tenant >= engine->config.n_tenants)
        return kvx_note(KVX_INVALID, "tenant %u of %u", tenant, engine->config.n_tenants);
    mine = &engine->tenant_keys[tenant];
    kvx_store_release_u64(&mine->next, keys->next);
    if (!next_only)
        kvx_store_release_u64(&mine->current, keys->current);
    return KVX_OK;
}

kvx_status kvx_cpu_tenant_move(void *arg, uint32_t tenant, uint64_t from)
{
    kvx_cpu_engine *engine = arg;
    (void)kvx_tenant_move(&engine->tenant_keys[tenant], engine->key_states, engine->config.n_key_slots, from);
    return KVX_OK;
}

uint64_t kvx_cpu_tenant_current(void *arg, uint32_t tenant)
{
    const kvx_cpu_engine *engine = arg;
    return kvx_load_acquire_u64(&engine->tenant_keys[tenant].current);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* A unit takes milliseconds at most. */
static int drain(const kvx_key_state *key)
{
    const uint64_t start = now_ns();
    while (!kvx_key_is_idle(key)) {
        if (now_ns() - start > DRAIN_NS)
            return 0;
        sched_yield();
    }
    return 1;
}

/* Random, then zero. */
static void overwrite(uint8_t key[KVX_KEY_BYTES])
{
    if (kvx_platform()->getrandom(key, KVX_KEY_BYTES) != KVX_KEY_BYTES)
        memset(key, 0x5a, KVX_KEY_BYTES);
    kvx_secmem_wipe(key, KVX_KEY_BYTES);
}

kvx_status kvx_cpu_key_erase(void *arg, uint32_t key_slot, uint32_t generation)
{
    kvx_cpu_engine *engine = arg;
    kvx_key_state *state;
    if (key_slot >= engine->config.n_key_slots)
        return kvx_note(KVX_INVALID, "key slot %u of %u", key_slot, engine->config.n_key_slots);
    state = &engine->key_states[key_slot];
    if (kvx_key_word_generation(kvx_load_acquire_u64(&state->word)) != generation)
        return KVX_OK;
    kvx_key_kill(state, generation);
    if (!drain(state))
        return kvx_note(KVX_TIMEOUT, "key slot %u is dead, but a unit has been working with it for 30 s", key_slot);
    overwrite(engine->keys[key_slot]);
    return KVX_OK;
}

/* The key that a VALID header names; 0: it is not VALID. A header that changes meanwhile is read again. A commit writes
 * these fields plainly, between two words that differ; hence no thread sanitizer here. */
__attribute__((no_sanitize("thread"))) static uint64_t key_of(const kvx_header *header)
{
    for (;;) {
        const uint64_t word = kvx_load_acquire_u64(&header->word);
        const uint64_t ref = kvx_key_ref(__atomic_load_n(&header->key_slot, __ATOMIC_ACQUIRE),
                                         __atomic_load_n(&header->key_generation, __ATOMIC_ACQUIRE));
        if (kvx_word_state(word) != KVX_SLOT_VALID)
            return 0;
        if (kvx_load_acquire_u64(&header->word) == word)
            return ref;
    }
}

/* Left keys first, blocks afterwards: a block that is committed in between is counted, or its key was not left. */
kvx_status kvx_cpu_key_census(void *arg, const kvx_key_census *census)
{
    kvx_cpu_engine *engine = arg;
    const uint32_t n = engine->config.n_key_slots;
    uint32_t i;
    for (i = 0; i < n; i++) {
        const kvx_key_state *key = &engine->key_states[i];
        census->is_left[i] = kvx_key_is_left(key, kvx_key_word_generation(kvx_load_acquire_u64(&key->word))) != 0;
        census->spent[i] = kvx_load_acquire_u64(&key->spent);
        census->n_blocks[i] = 0;
    }
    for (i = 0; i < engine->config.pool->n_slots; i++) {
        const uint64_t ref = key_of(&engine->headers[i]);
        const uint32_t key_slot = kvx_key_ref_slot(ref);
        if (ref && key_slot < n && kvx_key_is_there(&engine->key_states[key_slot], kvx_key_ref_generation(ref)))
            census->n_blocks[key_slot]++;
    }
    return KVX_OK;
}

/* ---------------------------------------------------------------------------------------------------- known answers */

/* Case 15 of the GCM specification by McGrew and Viega: AES-256, 96-bit iv, no AAD. */
static const uint8_t known_key[32] = {0xfe, 0xff, 0xe9, 0x92, 0x86, 0x65, 0x73, 0x1c, 0x6d, 0x6a, 0x8f,
                                      0x94, 0x67, 0x30, 0x83, 0x08, 0xfe, 0xff, 0xe9, 0x92, 0x86, 0x65,
                                      0x73, 0x1c, 0x6d, 0x6a, 0x8f, 0x94, 0x67, 0x30, 0x83, 0x08};
static const uint8_t known_iv[12] = {0xca, 0xfe, 0xba, 0xbe, 0xfa, 0xce, 0xdb, 0xad, 0xde, 0xca, 0xf8, 0x88};
static const uint8_t known_plain[64] = {0xd9, 0x31, 0x32, 0x25, 0xf8, 0x84, 0x06, 0xe5, 0xa5, 0x59, 0x09, 0xc5, 0xaf,
                                        0xf5, 0x26, 0x9a, 0x86, 0xa7, 0xa9, 0x53, 0x15, 0x34, 0xf7, 0xda, 0x2e, 0x4c,
                                        0x30, 0x3d, 0x8a, 0x31, 0x8a, 0x72, 0x1c, 0x3c, 0x0c, 0x95, 0x95, 0x68, 0x09,
                                        0x53, 0x2f, 0xcf, 0x0e, 0x24, 0x49, 0xa6, 0xb5, 0x25, 0xb1, 0x6a, 0xed, 0xf5,
                                        0xaa, 0x0d, 0xe6, 0x57, 0xba, 0x63, 0x7b, 0x39, 0x1a, 0xaf, 0xd2, 0x55};
static const uint8_t known_sealed[64] = {0x52, 0x2d, 0xc1, 0xf0, 0x99, 0x56, 0x7d, 0x07, 0xf4, 0x7f, 0x37, 0xa3, 0x2a,
                                         0x84, 0x42, 0x7d, 0x64, 0x3a, 0x8c, 0xdc, 0xbf, 0xe5, 0xc0, 0xc9, 0x75, 0x98,
                                         0xa2, 0xbd, 0x25, 0x55, 0xd1, 0xaa, 0x8c, 0xb0, 0x8e, 0x48, 0x59, 0x0d, 0xbb,
                                         0x3d, 0xa7, 0xb0, 0x8b, 0x10, 0x56, 0x82, 0x88, 0x38, 0xc5, 0xf6, 0x1e, 0x63,
                                         0x93, 0xba, 0x7a, 0x0a, 0xbc, 0xc9, 0xf6, 0x62, 0x89, 0x80, 0x15, 0xad};
static const uint8_t known_tag[16] = {0xb0, 0x94, 0xda, 0xc5, 0xd9, 0x34, 0x71, 0xbd,
                                      0xec, 0x1a, 0x50, 0x22, 0x70, 0xe3, 0xcc, 0x6c};

/* Public values, so memcmp will do. */
static const char *wrong_answer(struct kvx_cpu_gcm *gcm)
{
    uint8_t out[64], tag[16], zero[64] = {0};
    if (kvx_cpu_gcm_seal(gcm, known_iv, NULL, 0, known_plain, out, 64, tag) != 1)
        return "sealing failed";
    if (memcmp(out, known_sealed, 64) != 0)
        return "the ciphertext is wrong";
    for (unsigned i = 0; i < 16; i++)
        if (tag[i] != known_tag[i])
            return "the tag is wrong";
    if (kvx_cpu_gcm_open(gcm, known_iv, NULL, 0, known_sealed, out, 64, known_tag) != 1)
        return "the right tag is refused";
    if (memcmp(out, known_plain, 64) != 0)
        return "the plaintext is wrong";
    tag[15] ^= 1;
    if (kvx_cpu_gcm_open(gcm, known_iv, NULL, 0, known_sealed, out, 64, tag) != 0)
        return "a wrong tag is accepted";
    return memcmp(out, zero, 64) == 0 ? NULL : "a wrong tag leaves plaintext";
}

kvx_status kvx_cpu_selftest(void *engine)
{
    struct kvx_cpu_gcm *gcm = kvx_cpu_gcm_create(known_key);
    const char *wrong = gcm ? wrong_answer(gcm) : "no cipher context";
    (void)engine;
    kvx_cpu_gcm_destroy(gcm);
    return wrong ? kvx_note(KVX_INTERNAL, "known-answer test of the CPU engine: %s", wrong) : KVX_OK;
}
