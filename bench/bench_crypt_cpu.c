/* SPDX-License-Identifier: Apache-2.0 */
/* The sub-bench `crypt` on CPU threads: OpenSSL over ordinary memory. Units are dealt out to the threads in turn. Piece
 * p of unit u is the u-th of lane p, and lanes follow one another; a contiguous unit is one piece. */
#include "bench_crypt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_gcm.h"
#include "bench_threads.h"

#define PIECES_MAX 64u

struct crypt_scene {
    bench *b;
    crypt_shape shape;
    uint32_t n_pieces; /* of a unit */
    void *plain, *sealed;
    uint8_t *tags;
    const crypt_case *now;
    crypt_op op;       /* what the threads do at the moment */
    uint64_t first_iv; /* number of unit 0's */
    bench_gcm **gcm;   /* n_keys for each thread */
    uint64_t seed;
};

static bool has(crypt_op op)
{
    return op < CRYPT_N_OPS;
}

static uint64_t bytes_of(const crypt_scene *s)
{
    return s->shape.n_units * s->shape.unit_bytes;
}

static void close_scene(crypt_scene *s)
{
    if (!s)
        return;
    device_free(&s->b->dev, s->plain);
    device_free(&s->b->dev, s->sealed);
    free(s->tags);
    free(s);
}

static bool open_scene(bench *b, const crypt_shape *shape, crypt_scene **scene)
{
    crypt_scene *s = calloc(1, sizeof(*s));
    if (!s)
        return false;
    s->b = b;
    s->shape = *shape;
    s->n_pieces = (uint32_t)(shape->unit_bytes / shape->piece_bytes);
    s->seed = b->settings.seed;
    s->tags = calloc(shape->n_units, BENCH_TAG_BYTES);
    if (!s->tags || s->n_pieces > PIECES_MAX || !device_alloc(&b->dev, bytes_of(s), &s->plain) ||
        !device_alloc(&b->dev, bytes_of(s), &s->sealed)) {
        close_scene(s);
        return false;
    }
    memset(s->sealed, 0, bytes_of(s));
    *scene = s;
    return true;
}

/* ----------------------------------------------------------------------------------------------------------- threads
 */

static bool work_on(crypt_scene *s, bench_gcm *g, uint32_t unit)
{
    uint8_t *pieces[PIECES_MAX], iv[BENCH_IV_BYTES];
    bench_message m = {pieces, s->n_pieces, s->shape.piece_bytes, NULL, iv, s->tags + unit * BENCH_TAG_BYTES};
    uint32_t p;
    for (p = 0; p < s->n_pieces; p++)
        pieces[p] = (uint8_t *)s->plain + (p * (uint64_t)s->shape.n_units + unit) * s->shape.piece_bytes;
    m.sealed = (uint8_t *)s->sealed + unit * s->shape.unit_bytes;
    crypt_iv(s->first_iv + unit, iv);
    switch (s->op) {
    case CRYPT_SEAL:
        return bench_gcm_seal(g, &m);
    case CRYPT_OPEN:
        return bench_gcm_open(g, &m);
    case CRYPT_CTR:
        return bench_gcm_ctr(g, &m);
    default:
        return bench_gcm_mac(g, &m);
    }
}

static bool task(void *context, uint32_t thread, uint32_t n_threads)
{
    crypt_scene *s = context;
    bench_gcm **mine = s->gcm + thread * s->now->n_keys;
    uint32_t unit;
    for (unit = thread; unit < s->now->n_units; unit += n_threads)
        if (!work_on(s, mine[unit / CRYPT_BLOCK_UNITS % s->now->n_keys], unit))
            return false;
    return true;
}

static bool pass(crypt_scene *s, crypt_op op, double *seconds)
{
    const uint32_t n_workers = s->now->n_workers, n_units = s->now->n_units;
    s->op = op;
    return bench_threads_run(n_workers < n_units ? n_workers : n_units, task, s, seconds);
}

/* ----------------------------------------------------------------------------------------------------------- measure
 */

static bool fill(crypt_scene *s)
{
    return device_fill(&s->b->dev, s->plain, bytes_of(s), s->seed, 0) && device_sync(&s->b->dev);
}

/* What was sealed comes back to the byte, and only then: units that were not sealed keep their zeros. */
static bool check(crypt_scene *s)
{
    const uint64_t lane_bytes = s->shape.n_units * s->shape.piece_bytes;
    uint64_t n_wrong = 0, wrong;
    double seconds;
    uint32_t p;
    memset(s->plain, 0, bytes_of(s));
    if (!pass(s, CRYPT_OPEN, &seconds)) {
        bench_fail(s->b, "a tag is wrong");
        return true;
    }
    for (p = 0; p < s->n_pieces; p++) {
        if (!device_compare(&s->b->dev, (uint8_t *)s->plain + p * lane_bytes, s->now->n_units * s->shape.piece_bytes,
                            s->seed, p * lane_bytes, &wrong))
            return false;
        n_wrong += wrong;
    }
    if (n_wrong)
        bench_fail(s->b, "%llu words differ after seal and open", (unsigned long long)n_wrong);
    return true;
}

/* Counter mode alone must give the ciphertext of the sealed unit. */
static bool check_ctr(crypt_scene *s)
{
    uint8_t *first = malloc(s->shape.unit_bytes);
    bool good = first != NULL;
    if (good) {
        memcpy(first, s->sealed, s->shape.unit_bytes);
        s->op = CRYPT_SEAL;
        good = work_on(s, s->gcm[0], 0);
        if (good && memcmp(first, s->sealed, s->shape.unit_bytes) != 0)
            bench_fail(s->b, "counter mode differs from what GCM encrypts");
    }
    free(first);
    return good;
}

/* The hash of the last unit, which is contiguous where hashes are measured, once more. */
static bool check_mac(crypt_scene *s)
{
    const uint32_t unit = s->now->n_units - 1;
    uint8_t *piece = (uint8_t *)s->plain + unit * s->shape.unit_bytes, iv[BENCH_IV_BYTES], tag[BENCH_TAG_BYTES];
    const bench_message m = {&piece, 1, s->shape.unit_bytes, NULL, iv, tag};
    crypt_iv(s->first_iv + unit, iv);
    if (!bench_gcm_mac(s->gcm[unit / CRYPT_BLOCK_UNITS % s->now->n_keys], &m))
        return false;
    if (memcmp(tag, s->tags + unit * BENCH_TAG_BYTES, sizeof(tag)) != 0)
        bench_fail(s->b, "the hash alone is not that of its unit");
    return true;
}

static bool measure(crypt_scene *s, bench_samples *samples)
{
    const crypt_op op = s->now->op;
    double seconds;
    uint32_t i;
    if (!fill(s) || (op == CRYPT_OPEN && !pass(s, CRYPT_SEAL, &seconds)))
        return false;
    for (i = 0; i <= s->now->n_samples; i++) {
        if (op != CRYPT_OPEN)
            s->first_iv += s->shape.n_units;
        if (!pass(s, op, &seconds))
            return false;
        if (i > 0) /* the first warms up */
            bench_samples_add(samples, seconds);
    }
    if (op == CRYPT_SEAL || op == CRYPT_OPEN)
        return check(s);
    return op == CRYPT_CTR ? check_ctr(s) : check_mac(s);
}

static bool run(crypt_scene *s, const crypt_case *c, bench_samples *seconds, double *clock_hz)
{
    const uint32_t n = c->n_workers * c->n_keys;
    uint8_t key[BENCH_KEY_BYTES];
    uint32_t i;
    bool done;
    s->now = c;
    *clock_hz = 0;
    s->gcm = calloc(n, sizeof(*s->gcm));
    done = s->gcm != NULL;
    for (i = 0; done && i < n; i++) {
        crypt_key(i % c->n_keys, key);
        s->gcm[i] = bench_gcm_create(key);
        done = s->gcm[i] != NULL;
    }
    done = done && measure(s, seconds);
    for (i = 0; s->gcm && i < n; i++)
        bench_gcm_destroy(s->gcm[i]);
    free(s->gcm);
    return done;
}

static uint32_t most_workers(bench *b)
{
    (void)b;
    return bench_threads_available();
}

const crypt_backend crypt_cpu = {"threads", most_workers, has, open_scene, run, close_scene};
