/* SPDX-License-Identifier: Apache-2.0 */
/* Plaintext movers over the same device memory and the same pinned host memory as the sealed ones. Slots are sorted by
 * address and blocks packed one behind the other, which suits plain copies best. */
#include "bench.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare_addresses(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t) * (uint8_t *const *)a, y = (uintptr_t) * (uint8_t *const *)b;
    return (x > y) - (x < y);
}

static bool list_slots(bench_plain *p)
{
    const bench_scene *s = p->scene;
    uint64_t n_bytes;
    void *bytes;
    uint32_t i;
    for (i = 0; i < s->shape.n_blocks; i++) {
        if (!bench_ok(kvx_pool_slot_bytes(s->pool, s->slots[i], &bytes, &n_bytes), "kvx_pool_slot_bytes"))
            return false;
        p->host_blocks[i] = bytes;
    }
    qsort(p->host_blocks, s->shape.n_blocks, sizeof(*p->host_blocks), compare_addresses);
    return true;
}

/* Moves each block down to the end of the one before, where their slots adjoin and were pinned together. */
static void pack(bench_plain *p)
{
    const bench_scene *s = p->scene;
    uint64_t slot_bytes = (s->sealed_bytes + 4095) & ~(uint64_t)4095;
    uint8_t *slot, *slot_before = NULL;
    uint32_t i;
    for (i = 0; i < s->shape.n_blocks; i++) {
        slot = p->host_blocks[i];
        if (i > 0 && slot == slot_before + slot_bytes && device_host_span(&s->b->dev, slot_before) > slot_bytes)
            p->host_blocks[i] = p->host_blocks[i - 1] + s->block_bytes;
        slot_before = slot;
    }
}

bool bench_plain_open(bench_scene *s, bench_plain *p)
{
    uint32_t lane, n_lanes = bench_shape_lanes(&s->shape);
    baseline_shape shape;
    memset(p, 0, sizeof(*p));
    p->scene = s;
    p->kinds = baseline_kinds(&s->b->dev, &p->n_kinds);
    p->host_blocks = calloc(s->shape.n_blocks, sizeof(*p->host_blocks));
    p->lane_bytes = calloc(n_lanes, sizeof(*p->lane_bytes));
    if (!p->host_blocks || !p->lane_bytes) {
        fputs("no memory for the list of blocks: try a smaller --bytes\n", stderr);
        return false;
    }
    if (!list_slots(p))
        return false;
    pack(p);
    for (lane = 0; lane < n_lanes; lane++)
        p->lane_bytes[lane] = bench_lane_bytes(&s->shape, lane);
    memset(&shape, 0, sizeof(shape));
    shape.dev_base = s->dev_cache;
    shape.host_blocks = p->host_blocks;
    shape.n_blocks = s->shape.n_blocks;
    shape.n_lanes = n_lanes;
    shape.lane_bytes = p->lane_bytes;
    return baseline_open(&s->b->dev, &shape, &p->ways[BASELINE_OUT]) &&
           baseline_open(&s->b->dev, &shape, &p->ways[BASELINE_IN]);
}

void bench_plain_close(bench_plain *p)
{
    baseline_close(p->ways[BASELINE_OUT]);
    baseline_close(p->ways[BASELINE_IN]);
    free(p->lane_bytes);
    free(p->host_blocks);
    memset(p, 0, sizeof(*p));
}

typedef struct run {
    bench_plain *plain;
    const baseline_kind *kind;
    baseline_work work;
    bool done;
} run;

static void *run_way(void *argument)
{
    run *r = argument;
    r->done = r->work.n == 0 || r->kind->run(r->plain->ways[r->work.way], &r->work);
    return NULL;
}

bool bench_plain_move(bench_plain *p, const baseline_kind *kind, const bench_work *work, double *seconds)
{
    run out = {p, kind, {BASELINE_OUT, work->store_first, work->n_store}, false};
    run in = {p, kind, {BASELINE_IN, work->restore_first, work->n_restore}, false};
    bool both = work->n_store && work->n_restore;
    pthread_t thread;
    double start;
    if (!device_sync(&p->scene->b->dev))
        return false;
    start = bench_now();
    if (both && pthread_create(&thread, NULL, run_way, &out) != 0) {
        fputs("no thread for the second direction\n", stderr);
        return false;
    }
    if (!both)
        run_way(&out);
    run_way(&in);
    if (both)
        pthread_join(thread, NULL);
    *seconds = bench_now() - start;
    return out.done && in.done;
}
