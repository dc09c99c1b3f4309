/* SPDX-License-Identifier: Apache-2.0 */
/* kvx-bench cpu-gcm: what offload costs when the CPU does the cryptography. Each thread copies a chunk out of the
 * device into bounce memory while it encrypts the chunk before into a second buffer, a message of 64 KiB at a time; and
 * the way back. Chunks are dealt out to the threads in turn. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_bounce.h"
#include "bench_crypt.h"
#include "bench_gcm.h"
#include "bench_threads.h"

#define UNIT_BYTES 65536ull
#define CHUNK_BYTES (2ull << 20)
#define CHUNK_UNITS (CHUNK_BYTES / UNIT_BYTES)
#define BLOCK_BYTES (4ull << 20)

/* The parts that a pass consists of. */
enum { COPY = 1, CIPHER = 2 };
static const struct {
    const char *name;
    int parts;
} kinds[] = {{"copy_and_gcm", COPY | CIPHER}, {"gcm_alone", CIPHER}, {"copy_alone", COPY}};
enum { N_KINDS = sizeof(kinds) / sizeof(kinds[0]) };

/* Medians by threads, out and in, and those of kvx. */
typedef struct picture {
    bench_curve curves[2][N_KINDS];
    double kvx[2];
} picture;

typedef struct bounce_pipe {
    bench *b;
    uint8_t *dev;
    uint32_t n_chunks;
    uint8_t *sealed, *tags;
    bounce *bounce;
    bench_gcm *gcm[BENCH_THREADS_MAX];
    uint64_t first_iv;
    int parts;
    picture drawn;
} bounce_pipe;

static bool cipher_chunk(bounce_pipe *p, uint32_t thread, uint32_t chunk, uint8_t *plain, bool out)
{
    uint64_t i, unit;
    uint8_t iv[BENCH_IV_BYTES], *piece;
    for (i = 0; i < CHUNK_UNITS; i++) {
        bench_message m = {&piece, 1, UNIT_BYTES, NULL, iv, NULL};
        unit = chunk * CHUNK_UNITS + i;
        piece = plain + i * UNIT_BYTES;
        m.sealed = p->sealed + unit * UNIT_BYTES;
        m.tag = p->tags + unit * BENCH_TAG_BYTES;
        crypt_iv(p->first_iv + unit, iv);
        if (!(out ? bench_gcm_seal(p->gcm[thread], &m) : bench_gcm_open(p->gcm[thread], &m)))
            return false;
    }
    return true;
}

static uint8_t *dev_chunk(const bounce_pipe *p, uint32_t chunk)
{
    return p->dev + chunk * CHUNK_BYTES;
}

/* The copy of the next chunk goes on while this one is encrypted. */
static bool go_out(void *context, uint32_t thread, uint32_t n_threads)
{
    bounce_pipe *p = context;
    uint32_t c, turn = 0;
    if (thread < p->n_chunks && (p->parts & COPY) && !bounce_copy(p->bounce, thread, 0, dev_chunk(p, thread), true))
        return false;
    for (c = thread; c < p->n_chunks; c += n_threads, turn ^= 1) {
        if (p->parts & COPY) {
            if (c + n_threads < p->n_chunks &&
                !bounce_copy(p->bounce, thread, turn ^ 1, dev_chunk(p, c + n_threads), true))
                return false;
            if (!bounce_wait(p->bounce, thread, turn))
                return false;
        }
        if ((p->parts & CIPHER) && !cipher_chunk(p, thread, c, bounce_chunk(p->bounce, thread, turn), true))
            return false;
    }
    return true;
}

/* The copy of one chunk goes on while the next is decrypted. */
static bool come_back(void *context, uint32_t thread, uint32_t n_threads)
{
    bounce_pipe *p = context;
    uint32_t c, turn = 0;
    for (c = thread; c < p->n_chunks; c += n_threads, turn ^= 1) {
        if (!bounce_wait(p->bounce, thread, turn))
            return false;
        if ((p->parts & CIPHER) && !cipher_chunk(p, thread, c, bounce_chunk(p->bounce, thread, turn), false))
            return false;
        if ((p->parts & COPY) && !bounce_copy(p->bounce, thread, turn, dev_chunk(p, c), false))
            return false;
    }
    return bounce_wait(p->bounce, thread, 0) && bounce_wait(p->bounce, thread, 1);
}

/* ----------------------------------------------------------------------------------------------------------- measure
 */

static void report_pass(bench *b, const char *name, uint32_t n_threads, bench_samples rates[2], double medians[2])
{
    static const char *const ways[2] = {"out", "in"};
    int way;
    printf("%-28s %7u", name, n_threads);
    for (way = 0; way < 2; way++) {
        const double median = bench_row(b, ways[way], "GB/s", &rates[way], "what=%s threads=%u", name, n_threads);
        medians[way] = median;
        printf("  %8.2f %7.2f .. %-7.2f", median, bench_quantile(&rates[way], 0.1), bench_quantile(&rates[way], 0.9));
        bench_samples_free(&rates[way]);
    }
    putchar('\n');
    fflush(stdout);
}

/* Out, overwritten, back, compared. Tags are checked whenever there is a cipher. Copies alone bring back what lies in
 * bounce memory: the last two chunks of each thread. */
static bool run_once(bounce_pipe *p, uint32_t n_threads, uint64_t seed, double seconds[2])
{
    const uint64_t n_bytes = p->n_chunks * CHUNK_BYTES;
    uint64_t n_wrong = 0, first = 0;
    p->first_iv += p->n_chunks * CHUNK_UNITS;
    if (!device_fill(&p->b->dev, p->dev, n_bytes, seed, 0) || !device_sync(&p->b->dev) ||
        !bench_threads_run(n_threads, go_out, p, &seconds[0]) || !device_fill(&p->b->dev, p->dev, n_bytes, ~seed, 0) ||
        !device_sync(&p->b->dev))
        return false;
    if (!bench_threads_run(n_threads, come_back, p, &seconds[1])) {
        bench_fail(p->b, "what was sealed cannot be opened");
        return true;
    }
    if (p->parts == CIPHER)
        return true;
    if (p->parts == COPY && p->n_chunks > BOUNCE_CHUNKS * n_threads)
        first = (p->n_chunks - BOUNCE_CHUNKS * n_threads) * CHUNK_BYTES;
    if (!device_compare(&p->b->dev, p->dev + first, n_bytes - first, seed, first, &n_wrong))
        return false;
    if (n_wrong)
        bench_fail(p->b, "%llu words differ after the way out and back", (unsigned long long)n_wrong);
    return true;
}

static bool measure(bounce_pipe *p, uint32_t kind, uint32_t n_threads, uint32_t repeat)
{
    const double gigabytes = (double)p->n_chunks * (double)CHUNK_BYTES / 1e9;
    bench_samples rates[2] = {{0}, {0}};
    double seconds[2], medians[2];
    uint32_t i;
    p->parts = kinds[kind].parts;
    if (!run_once(p, n_threads, p->b->settings.seed, seconds)) /* warm-up */
        return false;
    for (i = 0; i < repeat; i++) {
        if (!run_once(p, n_threads, p->b->settings.seed + i, seconds))
            return false;
        bench_samples_add(&rates[0], gigabytes / seconds[0]);
        bench_samples_add(&rates[1], gigabytes / seconds[1]);
    }
    report_pass(p->b, kinds[kind].name, n_threads, rates, medians);
    for (i = 0; i < 2; i++)
        bench_curve_add(&p->drawn.curves[i][kind], n_threads, medians[i]);
    return true;
}

static bool measure_all(bounce_pipe *p, uint32_t repeat)
{
    uint32_t counts[16], n, i, kind;
    n = bench_threads_list(p->b->settings.scale != BENCH_QUICK, counts);
    for (kind = 0; kind < N_KINDS; kind++)
        for (i = 0; i < n; i++)
            if (!measure(p, kind, counts[i], repeat))
                return false;
    return true;
}

static bool with_threads(bounce_pipe *p, uint32_t repeat)
{
    const uint64_t n_bytes = p->n_chunks * CHUNK_BYTES;
    uint32_t i, n = bench_threads_available();
    uint8_t key[BENCH_KEY_BYTES];
    bool done;
    crypt_key(0, key);
    p->sealed = aligned_alloc(4096, n_bytes);
    p->tags = calloc(n_bytes / UNIT_BYTES, BENCH_TAG_BYTES);
    done = p->sealed && p->tags && bounce_open(p->b, n, CHUNK_BYTES, &p->bounce);
    for (i = 0; done && i < n; i++) {
        p->gcm[i] = bench_gcm_create(key);
        done = p->gcm[i] != NULL;
    }
    if (done) {
        memset(p->sealed, 0, n_bytes); /* pages are there before the clock runs */
        done = measure_all(p, repeat);
    }
    for (i = 0; i < n; i++)
        bench_gcm_destroy(p->gcm[i]);
    bounce_close(p->bounce);
    free(p->tags);
    free(p->sealed);
    return done;
}

/* The same bytes by the library, in messages of the same size. */
static bool measure_kvx(bench_scene *s, uint32_t repeat, double medians[2])
{
    const uint32_t n = s->shape.n_blocks;
    const bench_work store = {.n_store = n, .batch = n}, restore = {.n_restore = n, .batch = n};
    const double gigabytes = (double)n * (double)s->block_bytes / 1e9;
    bench_samples rates[2] = {{0}, {0}};
    double seconds[2];
    uint32_t i;
    for (i = 0; i <= repeat; i++) {
        const uint64_t seed = s->b->settings.seed + i;
        if (!bench_scene_fill(s, seed) || !bench_move(s, &store, &seconds[0]) || !bench_scene_fill(s, ~seed) ||
            !bench_move(s, &restore, &seconds[1]) || !bench_scene_check(s, seed, "kvx"))
            return false;
        if (i == 0) /* warm-up */
            continue;
        bench_samples_add(&rates[0], gigabytes / seconds[0]);
        bench_samples_add(&rates[1], gigabytes / seconds[1]);
    }
    report_pass(s->b, "kvx", 0, rates, medians);
    return true;
}

static bool draw(const bounce_pipe *p)
{
    static const char *const titles[2] = {"out of the device", "into the device"};
    plot_panel panels[2];
    plot made = {.title = "Offload with AES-256-GCM on the CPU",
                 .x_label = "threads",
                 .y_label = "GB/s",
                 .bound_name = "kvx, the same bytes",
                 .panels = panels,
                 .n_panels = 2};
    uint32_t way, kind;
    memset(panels, 0, sizeof(panels));
    for (way = 0; way < 2; way++) {
        panels[way].title = titles[way];
        panels[way].bound = p->drawn.kvx[way];
        panels[way].n_lines = N_KINDS;
        for (kind = 0; kind < N_KINDS; kind++) {
            const bench_curve *c = &p->drawn.curves[way][kind];
            const plot_line line = {kinds[kind].name, c->x, c->y, c->n};
            panels[way].lines[kind] = line;
        }
    }
    return bench_plot(p->b, &made);
}

static bool run(bench *b)
{
    const bool quick = b->settings.scale == BENCH_QUICK;
    const uint64_t n_bytes = bench_bytes(b, quick ? 8ull << 20 : 64ull << 20, 128ull << 20, 512ull << 20, 1ull << 30);
    const uint32_t repeat = bench_repeat(b, 3, 5, 9);
    const bench_shape shape = {.n_blocks = n_bytes >= BLOCK_BYTES ? (uint32_t)(n_bytes / BLOCK_BYTES) : 1,
                               .n_layers = 64,
                               .n_kinds = 2,
                               .n_segments = 64,
                               .piece_bytes = {32768, 32768}};
    bounce_pipe p = {.b = b};
    bench_scene s;
    bool done = bench_scene_open(b, &shape, &s) && bench_fits(shape.n_blocks * BLOCK_BYTES);
    p.dev = s.dev_cache;
    p.n_chunks = (uint32_t)(shape.n_blocks * BLOCK_BYTES / CHUNK_BYTES);
    if (done) {
        printf("%-28s %7s  %8s %18s  %8s %18s\n", "what", "threads", "out GB/s", "p10 .. p90", "in GB/s", "p10 .. p90");
        done = measure_kvx(&s, repeat, p.drawn.kvx) && with_threads(&p, repeat) && draw(&p);
    }
    return bench_scene_close(&s) && done;
}

const bench_sub bench_cpu_gcm = {
    "cpu-gcm",
    "offload with AES-256-GCM on the CPU, by threads",
    "Copy out of the device into bounce memory, AES-256-GCM by OpenSSL into a second buffer, and the way\n"
    "back: the shape of a confidential VM's bounce path and of sealing on the CPU. Chunks of 2 MiB in\n"
    "messages of 64 KiB, contiguous in device memory; each thread copies one chunk while it works on\n"
    "another. Beside it the cipher without copies, the copies without cipher, and the same bytes sealed\n"
    "by kvx in blocks of 128 pieces.",
    NULL,
    run,
};
