/* SPDX-License-Identifier: Apache-2.0 */
/* The host as an attacker: it changes what lies in the pool, and every attempt must be refused, with zeros in place of
 * what failed and the other blocks of the call untouched. Five blocks travel in each call; the attacks hit the inner
 * ones. */
#include "demo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_BLOCKS 5u
#define VICTIM 2u /* and its neighbours, for the swap */
#define WAIT_NS (30ull * 1000000000)

typedef struct scene {
    demo *demo;
    kvx_pool *pool;
    kvx_ctx *ctx;
    kvx_layout *layout;
    kvx_slot *slots;
    kvx_pair pairs[N_BLOCKS];
    uint8_t *host[N_BLOCKS]; /* the slots as the host sees them */
    uint8_t *saved;          /* one slot's bytes */
    uint64_t seed;           /* of what was stored last */
} scene;

/* What must come back: bit b of `tampered` for block b, and which segments of those are zeros. */
typedef struct expectation {
    uint32_t tampered;
    uint64_t zeroed;
} expectation;

static bool finish(scene *s, kvx_ticket ticket, kvx_status verdicts[N_BLOCKS])
{
    return demo_ok(kvx_wait(s->ctx, 1, &ticket, WAIT_NS), "kvx_wait") &&
           demo_ok(kvx_poll(s->ctx, ticket, NULL, N_BLOCKS, verdicts), "kvx_poll");
}

/* Fills the blocks with new data and stores them. Verdicts other than OK count as a failed check. */
static bool store(scene *s)
{
    kvx_options options = KVX_OPTIONS_INIT;
    kvx_status verdicts[N_BLOCKS];
    kvx_ticket ticket;
    uint32_t b;
    s->seed++;
    for (b = 0; b < N_BLOCKS; b++)
        if (!demo_block_fill(s->demo, b, s->seed))
            return false;
    options.stream = s->demo->dev.stream;
    if (!demo_ok(kvx_store(s->ctx, N_BLOCKS, s->pairs, &options, &ticket), "kvx_store") || !finish(s, ticket, verdicts))
        return false;
    for (b = 0; b < N_BLOCKS; b++)
        if (verdicts[b] != KVX_OK) {
            printf("FAIL  store of block %u: %s\n", b, kvx_status_text(verdicts[b]));
            s->demo->n_failed++;
        }
    return true;
}

/* Overwrites the blocks, restores them, and looks at every verdict and every byte. */
static bool restore(scene *s, expectation expected, bool *as_expected)
{
    kvx_options options = KVX_OPTIONS_INIT;
    kvx_status verdicts[N_BLOCKS];
    kvx_ticket ticket;
    uint32_t b;
    bool good = true, block_good;
    for (b = 0; b < N_BLOCKS; b++)
        if (!demo_block_fill(s->demo, b, ~s->seed))
            return false;
    options.stream = s->demo->dev.stream;
    if (!demo_ok(kvx_restore(s->ctx, N_BLOCKS, s->pairs, &options, &ticket), "kvx_restore") ||
        !finish(s, ticket, verdicts))
        return false;
    for (b = 0; b < N_BLOCKS; b++) {
        bool hit = expected.tampered >> b & 1;
        if (!demo_block_check(s->demo, b, s->seed, hit ? expected.zeroed : 0, &block_good))
            return false;
        if (verdicts[b] != (hit ? KVX_TAMPERED : KVX_OK) || !block_good) {
            printf("      block %u: verdict \"%s\", contents %s\n", b, kvx_status_text(verdicts[b]),
                   block_good ? "right" : "wrong");
            good = false;
        }
    }
    *as_expected = good;
    return true;
}

/* ---------------------------------------------------------------------------------------------------------- attacks */

/* Each leaves the pool changed and says what must come back. */
static bool flip(scene *s, expectation *expected)
{
    uint64_t at = DEMO_BLOCK_BYTES / 2 + 12345; /* in the unit of the segment in the middle */
    s->host[VICTIM][at] ^= 0x10;
    expected->tampered = 1u << VICTIM;
    expected->zeroed = 1ull << (at / (DEMO_BLOCK_BYTES / s->demo->options.segments));
    return true;
}

static bool swap(scene *s, expectation *expected)
{
    uint8_t *a = s->host[VICTIM - 1], *b = s->host[VICTIM + 1];
    memcpy(s->saved, a, DEMO_BLOCK_BYTES);
    memcpy(a, b, DEMO_BLOCK_BYTES);
    memcpy(b, s->saved, DEMO_BLOCK_BYTES);
    expected->tampered = 1u << (VICTIM - 1) | 1u << (VICTIM + 1);
    return true;
}

static bool replay(scene *s, expectation *expected)
{
    memcpy(s->saved, s->host[VICTIM], DEMO_BLOCK_BYTES);
    if (!store(s))
        return false;
    memcpy(s->host[VICTIM], s->saved, DEMO_BLOCK_BYTES);
    expected->tampered = 1u << VICTIM;
    return true;
}

static bool zero(scene *s, expectation *expected)
{
    memset(s->host[VICTIM], 0, DEMO_BLOCK_BYTES);
    expected->tampered = 1u << VICTIM;
    return true;
}

static const struct attack {
    const char *metric, *text;
    bool (*run)(scene *s, expectation *expected);
} attacks[] = {
    {"flip", "one flipped bit: refused, its unit zeroed, the rest exact", flip},
    {"swap", "two slots swapped: both refused and zeroed, neighbours exact", swap},
    {"replay", "an older ciphertext of the same slot: refused and zeroed, neighbours exact", replay},
    {"zero", "a zeroed slot: refused and zeroed, neighbours exact", zero},
};

static bool run_attack(scene *s, const struct attack *attack)
{
    const expectation all_well = {0, 0};
    expectation expected = {0, demo_all_segments(s->demo)};
    char text[128], metric[64];
    bool passed;
    if (!store(s) || !attack->run(s, &expected) || !restore(s, expected, &passed))
        return false;
    demo_verdict(s->demo, passed, attack->metric, attack->text);
    if (!store(s) || !restore(s, all_well, &passed))
        return false;
    snprintf(text, sizeof(text), "%s: stored again into the same slots, restored exactly", attack->metric);
    snprintf(metric, sizeof(metric), "after_%s", attack->metric);
    demo_verdict(s->demo, passed, metric, text);
    return true;
}

/* Not one word of the plaintext, seen at its own place in the slot, may be in the pool. */
static bool look_for_plaintext(scene *s)
{
    const uint64_t lane_bytes = s->demo->n_blocks * DEMO_PIECE_BYTES;
    uint64_t *plain = malloc(DEMO_PIECE_BYTES), n_equal = 0;
    uint32_t b, lane;
    size_t i;
    bool done = plain != NULL;
    for (b = 0; done && b < N_BLOCKS; b++)
        for (lane = 0; done && lane < DEMO_LANES; lane++) {
            const uint8_t *host = s->host[b] + lane * DEMO_PIECE_BYTES;
            done = device_copy(&s->demo->dev, plain, s->demo->dev_cache + lane * lane_bytes + b * DEMO_PIECE_BYTES,
                               DEMO_PIECE_BYTES);
            for (i = 0; done && i < DEMO_PIECE_BYTES / 8; i++)
                n_equal += memcmp(host + 8 * i, &plain[i], 8) == 0;
        }
    free(plain);
    if (done)
        demo_verdict(s->demo, n_equal == 0, "ciphertext_only", "the pool holds no word of the plaintext at its place");
    return done;
}

/* ------------------------------------------------------------------------------------------------- context and latch
 */

static bool open_context(scene *s, kvx_tamper_policy policy, uint32_t budget)
{
    kvx_config config = KVX_CONFIG_INIT;
    uint32_t b;
    config.engine = s->demo->dev.engine;
    config.device = config.engine == KVX_ENGINE_CUDA ? s->demo->dev.ordinal + 1 : 0;
    config.tamper_policy = policy;
    config.tamper_budget = budget;
    if (!demo_ok(kvx_ctx_create(s->pool, &config, &s->ctx), "kvx_ctx_create"))
        return false;
    if (!demo_layout_create(s->demo, s->ctx, &s->layout)) {
        kvx_ctx_destroy(s->ctx);
        return false;
    }
    for (b = 0; b < N_BLOCKS; b++) {
        kvx_pair pair = {.layout = s->layout, .block = b, .slot = s->slots[b]};
        s->pairs[b] = pair;
    }
    return true;
}

static bool run_attacks(scene *s)
{
    size_t i;
    bool done;
    if (!open_context(s, KVX_TAMPER_MISS, 1000000))
        return false;
    done = store(s) && look_for_plaintext(s);
    for (i = 0; done && i < sizeof(attacks) / sizeof(attacks[0]); i++)
        done = run_attack(s, &attacks[i]);
    kvx_ctx_destroy(s->ctx);
    return done;
}

/* One flipped bit under the default policy: its block is refused, and from then on every call is. What the other
 * blocks of that call got is not looked at: they may have come before the latch or after it. */
static bool trip_latch(scene *s, bool *tampered)
{
    kvx_options options = KVX_OPTIONS_INIT;
    kvx_status verdicts[N_BLOCKS];
    expectation unused = {0, 0};
    kvx_ticket ticket;
    if (!store(s) || !flip(s, &unused))
        return false;
    options.stream = s->demo->dev.stream;
    if (!demo_ok(kvx_restore(s->ctx, N_BLOCKS, s->pairs, &options, &ticket), "kvx_restore") ||
        !finish(s, ticket, verdicts))
        return false;
    *tampered = verdicts[VICTIM] == KVX_TAMPERED;
    return true;
}

static void check_latched(scene *s)
{
    kvx_stats stats = {.size = sizeof(stats)};
    kvx_ticket ticket;
    kvx_status stored = kvx_store(s->ctx, N_BLOCKS, s->pairs, NULL, &ticket);
    kvx_status restored = kvx_restore(s->ctx, N_BLOCKS, s->pairs, NULL, &ticket);
    bool says_so = kvx_stats_get(s->ctx, &stats) == KVX_OK && stats.latched;
    demo_verdict(s->demo, stored == KVX_LATCHED, "latched_store", "latched: the next store is refused");
    demo_verdict(s->demo, restored == KVX_LATCHED, "latched_restore", "latched: the next restore is refused");
    demo_verdict(s->demo, says_so, "latched_stats", "latched: the context says so");
}

static bool run_latch(scene *s)
{
    bool tampered, done;
    if (!open_context(s, KVX_TAMPER_LATCH, 0))
        return false;
    done = trip_latch(s, &tampered);
    if (done) {
        demo_verdict(s->demo, tampered, "latch_flip", "fail-stop policy: one flipped bit is refused");
        check_latched(s);
    }
    kvx_ctx_destroy(s->ctx);
    return done;
}

static bool run_fresh_context(scene *s)
{
    const expectation all_well = {0, 0};
    bool passed, done;
    if (!open_context(s, KVX_TAMPER_LATCH, 0))
        return false;
    done = store(s) && restore(s, all_well, &passed);
    if (done)
        demo_verdict(s->demo, passed, "fresh_context", "a new context on the same pool stores and restores exactly");
    kvx_ctx_destroy(s->ctx);
    return done;
}

static bool find_host_bytes(scene *s)
{
    uint64_t n_bytes;
    void *bytes;
    uint32_t b;
    for (b = 0; b < N_BLOCKS; b++) {
        if (!demo_ok(kvx_pool_slot_bytes(s->pool, s->slots[b], &bytes, &n_bytes), "kvx_pool_slot_bytes"))
            return false;
        s->host[b] = bytes;
    }
    return true;
}

bool demo_tamper(demo *d)
{
    scene s = {.demo = d, .seed = d->options.seed + 1000000};
    bool done = false;
    if (!demo_pool_create(d, "tamper_pool", N_BLOCKS, &s.pool, &s.slots))
        return false;
    s.saved = malloc(DEMO_BLOCK_BYTES);
    if (!s.saved)
        fputs("no memory for a copy of one slot\n", stderr);
    else
        done = find_host_bytes(&s) && run_attacks(&s) && run_latch(&s) && run_fresh_context(&s);
    free(s.saved);
    free(s.slots);
    return demo_ok(kvx_pool_destroy(s.pool), "kvx_pool_destroy") && done;
}
