/* SPDX-License-Identifier: Apache-2.0 */
/* The host may do to the pool what it likes: every change is found, what failed is zeroed, and nothing else suffers.
 * These cases run under the MISS policy with a large budget, where each verdict is exact. */
#include "scene.h"

#include <pthread.h>
#include <stdlib.h>

/* ------------------------------------------------------------------------------------------------ changed bytes */

/* A single bit at the first and last byte of every unit, at block and tile borders, in the padding. */
static void flips_at_borders(const device *dev, const void *arg)
{
    static const size_t offsets[] = {0, 1, 7, 15, 16, 31, 32, 511, 512, 4095, 4096, 16384, 65535, 65536};
    scene s;
    (void)arg;
    scene_open(&s, dev);
    const size_t n_offsets = 2 * COUNT(offsets);
    for (size_t k = 0; k < n_offsets * N_SEGMENTS; k++) {
        for (uint32_t i = 0; i < N_BLOCKS; i += 2) { /* every second block stays whole */
            const size_t which = (k + i) % n_offsets;
            const uint32_t segment = (uint32_t)(k / n_offsets);
            const size_t offset = offsets[which % COUNT(offsets)];
            const size_t at = which < COUNT(offsets) ? offset : unit_padded(segment) - 1 - offset;
            s.slot[i][unit_at(segment) + at] ^= (uint8_t)(1u << (k % 8));
            s.bad[i] = 1u << segment;
        }
        expect_found(&s, KVX_TAMPERED);
        put_back(&s);
    }
    expect_tampered(&s);
    scene_close(&s);
}

static void flips_at_random(const device *dev, const void *arg)
{
    uint64_t state = 7;
    scene s;
    (void)arg;
    scene_open(&s, dev);
    for (uint32_t round = 0; round < 60; round++) {
        for (uint32_t i = 0; i < N_BLOCKS; i++) {
            const uint64_t word = random_word(&state);
            const uint32_t segment = (uint32_t)(word % (N_SEGMENTS + 1));
            if (segment == N_SEGMENTS)
                continue;
            s.slot[i][unit_at(segment) + (word >> 8) % unit_padded(segment)] ^= (uint8_t)(1u << (word >> 5 & 7));
            s.bad[i] = 1u << segment;
        }
        expect_found(&s, KVX_TAMPERED);
        put_back(&s);
    }
    expect_tampered(&s);
    scene_close(&s);
}

/* The bad unit at every place of the batch. */
static void bad_unit_at_every_place(const device *dev, const void *arg)
{
    scene s;
    (void)arg;
    scene_open(&s, dev);
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        for (uint32_t bad = 1; bad <= ALL_BAD; bad++) {
            for (uint32_t segment = 0; segment < N_SEGMENTS; segment++)
                if (bad & 1u << segment)
                    s.slot[i][unit_at(segment) + 100] ^= 1;
            s.bad[i] = bad;
            expect_found(&s, KVX_TAMPERED);
            put_back(&s);
        }
    scene_close(&s);
}

/* One difference in two places, which a hash that forgot the place would cancel. */
static void same_difference_twice(const device *dev, const void *arg)
{
    static const size_t distances[] = {16, 32, 128, 512, 1024, 4096, 8192, 16384, 65536};
    uint64_t state = 3;
    scene s;
    (void)arg;
    scene_open(&s, dev);
    for (size_t k = 0; k < COUNT(distances); k++)
        for (uint32_t round = 0; round < 3; round++) {
            for (uint32_t i = 0; i < N_BLOCKS; i++) {
                const uint32_t segment = (i + round) % N_SEGMENTS;
                const size_t room = (unit_padded(segment) - distances[k]) / 16;
                const size_t at = unit_at(segment) + (round ? random_word(&state) % room * 16 : 0);
                for (size_t byte = 0; byte < 16; byte++) {
                    const uint8_t delta = (uint8_t)(random_word(&state) | 1);
                    s.slot[i][at + byte] ^= delta;
                    s.slot[i][at + byte + distances[k]] ^= delta;
                }
                s.bad[i] = 1u << segment;
            }
            expect_tampered(&s);
        }
    scene_close(&s);
}

static void zeroed(const device *dev, const void *arg)
{
    scene s;
    (void)arg;
    scene_open(&s, dev);
    memset(s.slot[1], 0, s.sealed);
    s.bad[1] = ALL_BAD;
    memset(s.slot[4] + unit_at(2), 0, unit_padded(2));
    s.bad[4] = 4;
    memset(s.slot[5] + unit_at(1) + 64, 0, 16);
    s.bad[5] = 2;
    expect_tampered(&s);
    scene_close(&s);
}

/* ------------------------------------------------------------------------------------------------- moved, replayed */

static void swap_bytes(uint8_t *a, uint8_t *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint8_t byte = a[i];
        a[i] = b[i];
        b[i] = byte;
    }
}

static void slots_swapped(const device *dev, const void *arg)
{
    scene s;
    (void)arg;
    scene_open(&s, dev);
    swap_bytes(s.slot[0], s.slot[3], s.sealed);
    s.bad[0] = s.bad[3] = ALL_BAD;
    expect_tampered(&s);
    scene_close(&s);
}

/* Also of equal plaintext: a unit opens in its own place only. */
static void units_swapped(const device *dev, const void *arg)
{
    scene s;
    (void)arg;
    scene_open(&s, dev);
    swap_bytes(s.slot[2] + unit_at(0), s.slot[2] + unit_at(2), unit_padded(0));
    s.bad[2] = 1 | 4;
    swap_bytes(s.slot[4] + unit_at(1), s.slot[5] + unit_at(1), unit_padded(1));
    s.bad[4] = s.bad[5] = 2;
    expect_tampered(&s);
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        tensors_expect(&s.r.source, i, 77);
    tensors_upload(&s.r.source);
    store_all(&s.r, N_BLOCKS, s.store);
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        s.seed[i] = 77;
    save_all(&s);
    assert_memory_not_equal(s.slot[0], s.slot[1], s.sealed);
    swap_bytes(s.slot[0], s.slot[1], s.sealed);
    s.bad[0] = s.bad[1] = ALL_BAD;
    expect_tampered(&s);
    scene_close(&s);
}

/* Bytes that were good once: of one block, of one unit, and of the whole pool at once. */
static void replayed(const device *dev, const void *arg)
{
    uint8_t *old[N_BLOCKS];
    scene s;
    (void)arg;
    scene_open(&s, dev);
    for (uint32_t i = 0; i < N_BLOCKS; i++) {
        old[i] = malloc(s.sealed);
        assert_non_null(old[i]);
        memcpy(old[i], s.slot[i], s.sealed);
    }
    store_seeds(&s, NEW_SEED);
    save_all(&s);
    memcpy(s.slot[2], old[2], s.sealed);
    s.bad[2] = ALL_BAD;
    memcpy(s.slot[3] + unit_at(1), old[3] + unit_at(1), unit_padded(1));
    s.bad[3] = 2;
    expect_tampered(&s);
    for (uint32_t i = 0; i < N_BLOCKS; i++) { /* the pool of an earlier moment */
        memcpy(s.slot[i], old[i], s.sealed);
        s.bad[i] = ALL_BAD;
    }
    expect_tampered(&s);
    store_seeds(&s, OLD_SEED); /* the same plaintext again makes no old ciphertext good */
    save_all(&s);
    for (uint32_t i = 0; i < N_BLOCKS; i++) {
        memcpy(s.slot[i], old[i], s.sealed);
        s.bad[i] = ALL_BAD;
    }
    expect_tampered(&s);
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        free(old[i]);
    scene_close(&s);
}

/* The head of the new and the tail of the old ciphertext, at many 16-byte boundaries, and the other way round. */
static void spliced(const device *dev, const void *arg)
{
    uint8_t *old = malloc((size_t)shape_unit_offset(&victim, N_SEGMENTS) * N_BLOCKS);
    scene s;
    (void)arg;
    assert_non_null(old);
    scene_open(&s, dev);
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        memcpy(old + i * s.sealed, s.slot[i], s.sealed);
    store_seeds(&s, NEW_SEED);
    save_all(&s);
    const size_t n_boundaries = unit_padded(0) / 16;
    for (size_t k = 1; k < n_boundaries; k += k < 48 || k + 48 > n_boundaries ? 6 : 613) {
        for (uint32_t i = 0; i < N_BLOCKS; i++) {
            const uint32_t segment = i % N_SEGMENTS;
            const size_t cut = (k + i) % (n_boundaries - 1) * 16 + 16, from = i < 3 ? cut : 0;
            const size_t bytes = i < 3 ? unit_padded(segment) - cut : cut;
            memcpy(s.slot[i] + unit_at(segment) + from, old + i * s.sealed + unit_at(segment) + from, bytes);
            s.bad[i] = 1u << segment;
        }
        expect_tampered(&s);
    }
    free(old);
    scene_close(&s);
}

/* ------------------------------------------------------------------------------------------------ a racing host */

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define NO_RACING_HOST 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define NO_RACING_HOST 1
#endif

#if !defined(NO_RACING_HOST) /* the race is the point of the case */
typedef struct racer {
    uint8_t *at;
    atomic_int stop;
} racer;

static void *flip_for_ever(void *arg)
{
    racer *racing = arg;
    while (!atomic_load(&racing->stop))
        __atomic_fetch_xor(racing->at, 1, __ATOMIC_RELAXED);
    return NULL;
}

/* A byte that changes while it is read: the block is whole or it is found, never half of each. */
static void host_races_the_restore(const device *dev, const void *arg)
{
    kvx_status verdicts[N_BLOCKS];
    racer racing;
    pthread_t thread;
    scene s;
    (void)arg;
    scene_open(&s, dev);
    racing.at = s.slot[2] + unit_at(1) + 40000;
    atomic_init(&racing.stop, 0);
    assert_int_equal(pthread_create(&thread, NULL, flip_for_ever, &racing), 0);
    for (uint32_t round = 0; round < 100; round++) {
        tensors_fill(&s.dest, 2, 1, STALE_SEED);
        restore_some(&s.r, N_BLOCKS, s.open, verdicts);
        assert_true(verdicts[2] == KVX_OK || verdicts[2] == KVX_TAMPERED);
        s.bad[2] = verdicts[2] == KVX_OK ? 0 : 2;
        expect_content(&s);
        tensors_check(&s.dest);
    }
    atomic_store(&racing.stop, 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
    scene_close(&s);
}
#endif

static const test_case cases[] = {
    {"flips at borders of units, blocks and tiles", flips_at_borders, NULL},
    {"flips at random", flips_at_random, NULL},
    {"a bad unit at every place of a batch", bad_unit_at_every_place, NULL},
    {"the same difference twice at tile distances", same_difference_twice, NULL},
    {"zeroed slot, unit and block", zeroed, NULL},
    {"two slots swapped", slots_swapped, NULL},
    {"units swapped within and between slots", units_swapped, NULL},
    {"older ciphertext replayed, pool rolled back", replayed, NULL},
    {"old and new spliced at 16-byte boundaries", spliced, NULL},
#if !defined(NO_RACING_HOST)
    {"host races the restore", host_races_the_restore, NULL},
#endif
};

int main(int argc, char **argv)
{
    return RUN_CASES("tamper", cases, argc, argv);
}
