/* SPDX-License-Identifier: Apache-2.0 */
/* The library under a model of vLLM's OffloadingWorker: the scheduler hands over jobs by id, the worker turns them into
 * stores and loads of two KV-cache groups, reports what has finished, flushes before blocks of a preempted request are
 * used again, and names the blocks whose load failed so that they are computed again. */
#include "support.h"

#include <stdlib.h>

#define N_GPU_BLOCKS 16
#define N_GROUPS 2
#define MAX_JOBS 16
#define MAX_BLOCKS 8 /* per job and group */
#define TIMEOUT_NS 20000000000u

/* Full attention, and a group of a sliding window with fewer layers and smaller blocks. */
static const shape groups[N_GROUPS] = {
    {"full", N_GPU_BLOCKS, 8, 2, {{1, 4096, 0, 0, BLOCK_MAJOR}}, 1, 0},
    {"window", N_GPU_BLOCKS, 4, 2, {{16, 96, 32, 0, BLOCK_MAJOR}}, 1, 0},
};

typedef enum job_state { JOB_FREE, JOB_RUNNING, JOB_DONE, JOB_FAILED } job_state;

typedef struct job {
    uint64_t id;
    job_state state;
    kvx_ticket ticket;
    uint32_t n;
    kvx_pair pairs[N_GROUPS * MAX_BLOCKS];
} job;

typedef struct offloading_worker {
    const device *dev;
    kvx_pool *pool;
    kvx_ctx *ctx;
    kvx_stream compute;
    tensors caches[N_GROUPS];
    kvx_layout *layouts[N_GROUPS];
    job jobs[MAX_JOBS];
    uint32_t n_bad;
    uint32_t bad_blocks[N_GROUPS * MAX_BLOCKS]; /* of the last failed load: group << 16 | block */
} offloading_worker;

static void worker_open(offloading_worker *w, const device *dev)
{
    const kvx_slot_class class = {.slot_bytes = 32768, .n_slots = 64, .max_units = 4};
    const rig_options options = {.policy = KVX_TAMPER_MISS, .tamper_budget = 100, .max_tickets = MAX_JOBS};
    memset(w, 0, sizeof *w);
    w->dev = dev;
    w->pool = pool_make(dev, &class, 1);
    w->ctx = ctx_make(dev, w->pool, &options);
    w->compute = dev->stream_create();
    for (uint32_t i = 0; i < N_GROUPS; i++) {
        tensors_create(&w->caches[i], dev, &groups[i], 0);
        tensors_fill(&w->caches[i], 0, N_GPU_BLOCKS, 100 * i + 1);
        w->layouts[i] = layout_make(w->ctx, &w->caches[i], i);
    }
}

static void worker_close(offloading_worker *w)
{
    kvx_ctx_destroy(w->ctx);
    expect_ok(kvx_pool_destroy(w->pool));
    w->dev->stream_sync(w->compute);
    w->dev->stream_destroy(w->compute);
    for (uint32_t i = 0; i < N_GROUPS; i++)
        tensors_destroy(&w->caches[i]);
}

static job *job_new(offloading_worker *w, uint64_t id)
{
    for (uint32_t i = 0; i < MAX_JOBS; i++)
        if (w->jobs[i].state == JOB_FREE) {
            w->jobs[i].id = id;
            return &w->jobs[i];
        }
    fail_msg("no place for job %llu", (unsigned long long)id);
    return NULL;
}

/* Blocks first .. first + n - 1 of both groups; two slots per index, group by group. */
static void job_describe(offloading_worker *w, job *j, uint32_t first, uint32_t n, const kvx_slot *slots)
{
    j->n = N_GROUPS * n;
    for (uint32_t i = 0; i < j->n; i++)
        j->pairs[i] = (kvx_pair){w->layouts[i / n], first + i % n, slots[i], 0};
}

typedef kvx_status transfer_fn(kvx_ctx *, uint32_t, const kvx_pair *, const kvx_options *, kvx_ticket *);

/* submit_store and submit_load: ordered after the compute stream, which does not wait for them. */
static void submit(offloading_worker *w, job *j, transfer_fn *fn)
{
    kvx_options options = KVX_OPTIONS_INIT;
    options.stream = w->compute;
    options.hints = KVX_HINT_NO_JOIN;
    options.cookie = j->id;
    expect_ok(fn(w->ctx, j->n, j->pairs, &options, &j->ticket));
    j->state = JOB_RUNNING;
}

static void note_bad_blocks(offloading_worker *w, const job *j, const kvx_status *verdicts)
{
    w->n_bad = 0;
    for (uint32_t i = 0; i < j->n; i++)
        if (verdicts[i] != KVX_OK)
            w->bad_blocks[w->n_bad++] = (j->pairs[i].layout == w->layouts[1] ? 1u << 16 : 0) | j->pairs[i].block;
}

/* get_finished: looks at every running job once, never waits. Returns how many have ended since the last call. */
static uint32_t get_finished(offloading_worker *w)
{
    uint32_t n_finished = 0;
    for (uint32_t i = 0; i < MAX_JOBS; i++) {
        job *j = &w->jobs[i];
        kvx_status verdicts[N_GROUPS * MAX_BLOCKS];
        kvx_result result;
        if (j->state != JOB_RUNNING || kvx_poll(w->ctx, j->ticket, &result, j->n, verdicts) != KVX_OK)
            continue;
        assert_true(result.cookie == j->id);
        j->state = result.first_error == KVX_OK ? JOB_DONE : JOB_FAILED;
        if (j->state == JOB_FAILED)
            note_bad_blocks(w, j, verdicts);
        n_finished++;
    }
    return n_finished;
}

/* wait(job ids), then they are reported. */
static void wait_for_jobs(offloading_worker *w)
{
    kvx_ticket tickets[MAX_JOBS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < MAX_JOBS; i++)
        if (w->jobs[i].state == JOB_RUNNING)
            tickets[n++] = w->jobs[i].ticket;
    expect_ok(kvx_wait(w->ctx, n, tickets, TIMEOUT_NS));
    assert_int_equal(get_finished(w), n);
}

/* Mirror: what the blocks of both groups must hold. */
static void expect_blocks(offloading_worker *w, uint32_t first, uint32_t n, uint64_t first_seed)
{
    for (uint32_t g = 0; g < N_GROUPS; g++)
        for (uint32_t i = 0; i < n; i++)
            tensors_expect(&w->caches[g], first + i, 100 * g + first_seed + i);
}

static void check_caches(const offloading_worker *w)
{
    for (uint32_t g = 0; g < N_GROUPS; g++)
        tensors_check(&w->caches[g]);
}

/* The next request writes its KV into blocks: in the compute stream, from other tensors. */
static void overwrite_in_stream(offloading_worker *w, const tensors *from, uint32_t group)
{
    w->dev->stream_copy(w->compute, w->caches[group].memory, from->memory, from->bytes);
}

static void jobs_store_and_load_two_groups(const device *dev, const void *arg)
{
    kvx_slot slots[4][N_GROUPS * 4];
    offloading_worker w;
    (void)arg;
    worker_open(&w, dev);
    for (uint32_t i = 0; i < 4; i++) { /* requests of four blocks each */
        job *j = job_new(&w, 1000 + i);
        slots_take(w.pool, N_GROUPS * 4, slots[i]);
        job_describe(&w, j, 4 * i, 4, slots[i]);
        submit(&w, j, kvx_store);
    }
    wait_for_jobs(&w);
    for (uint32_t i = 0; i < MAX_JOBS; i++)
        w.jobs[i].state = w.jobs[i].state == JOB_DONE ? JOB_FREE : w.jobs[i].state;
    for (uint32_t i = 0; i < 4; i++) { /* back into other blocks */
        job *j = job_new(&w, 2000 + i);
        job_describe(&w, j, 4 * (3 - i), 4, slots[i]);
        submit(&w, j, kvx_restore);
        expect_blocks(&w, 4 * (3 - i), 4, 4 * i + 1);
    }
    const uint64_t start = clock_ns();
    uint32_t n_finished = 0;
    while (n_finished < 4 && clock_ns() - start < TIMEOUT_NS)
        n_finished += get_finished(&w);
    assert_int_equal(n_finished, 4);
    assert_int_equal(get_finished(&w), 0);
    check_caches(&w);
    worker_close(&w);
}

/* Preemption: blocks of a request whose store is in flight are given to another one. Before that, the worker flushes:
 * the compute stream waits until the sources have been read, which is sooner than the end of the job. */
static void flush_on_preemption(const device *dev, const void *arg)
{
    kvx_options options = KVX_OPTIONS_INIT;
    kvx_event released = dev->event_create();
    kvx_slot slots[N_GROUPS * 8];
    tensors next[N_GROUPS];
    offloading_worker w;
    (void)arg;
    worker_open(&w, dev);
    for (uint32_t g = 0; g < N_GROUPS; g++) {
        tensors_create(&next[g], dev, &groups[g], 0);
        tensors_fill(&next[g], 0, N_GPU_BLOCKS, 100 * g + 5001);
    }
    job *j = job_new(&w, 1);
    slots_take(w.pool, N_GROUPS * 8, slots);
    job_describe(&w, j, 0, 8, slots);
    options.stream = w.compute;
    options.hints = KVX_HINT_NO_JOIN;
    options.released_event = released;
    options.cookie = j->id;
    expect_ok(kvx_store(w.ctx, j->n, j->pairs, &options, &j->ticket));
    j->state = JOB_RUNNING;
    dev->stream_wait(w.compute, released);
    for (uint32_t g = 0; g < N_GROUPS; g++)
        overwrite_in_stream(&w, &next[g], g);
    dev->stream_sync(w.compute);
    wait_for_jobs(&w);
    assert_int_equal(j->state, JOB_DONE);
    expect_blocks(&w, 0, N_GPU_BLOCKS, 5001);
    check_caches(&w);
    j = job_new(&w, 2); /* the request is resumed elsewhere */
    job_describe(&w, j, 8, 8, slots);
    submit(&w, j, kvx_restore);
    wait_for_jobs(&w);
    expect_blocks(&w, 8, 8, 1);
    check_caches(&w);
    worker_close(&w);
    for (uint32_t g = 0; g < N_GROUPS; g++)
        tensors_destroy(&next[g]);
    dev->event_destroy(released);
}

/* Three kinds of loss in one load. The worker names exactly those blocks, they are zeros, the others are good; computed
 * and stored again, they load. */
static void failed_load_names_bad_blocks(const device *dev, const void *arg)
{
    static const uint32_t bad[3] = {1, 2, 4}; /* positions in the job: tampered, discarded, zeroed */
    kvx_slot slots[N_GROUPS * 4];
    kvx_ticket ticket;
    offloading_worker w;
    (void)arg;
    worker_open(&w, dev);
    job *j = job_new(&w, 7);
    slots_take(w.pool, N_GROUPS * 4, slots);
    job_describe(&w, j, 0, 4, slots);
    submit(&w, j, kvx_store);
    wait_for_jobs(&w);
    slot_bytes(w.pool, slots[bad[0]])[9000] ^= 4;
    expect_ok(kvx_discard(w.ctx, 1, &slots[bad[1]], &ticket));
    expect_all(w.ctx, ticket, 1, KVX_OK);
    memset(slot_bytes(w.pool, slots[bad[2]]), 0, 4096);
    submit(&w, j, kvx_restore);
    wait_for_jobs(&w);
    assert_int_equal(j->state, JOB_FAILED);
    assert_int_equal(w.n_bad, 3);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(w.bad_blocks[i], bad[i] / 4 << 16 | bad[i] % 4);
    tensors_expect_zero(&w.caches[0], 1, 1); /* byte 9000 is in the second unit */
    tensors_expect_zero(&w.caches[0], 2, ALL_SEGMENTS);
    for (uint64_t at = 0; at < shape_segments(&groups[1]); at++)
        if (shape_unit_offset(&groups[1], (uint32_t)at) < 4096)
            tensors_expect_zero(&w.caches[1], 0, (uint32_t)at);
    check_caches(&w);
    for (uint32_t g = 0; g < N_GROUPS; g++) /* computed again */
        tensors_fill(&w.caches[g], 0, 4, 100 * g + 1);
    submit(&w, j, kvx_store);
    wait_for_jobs(&w);
    submit(&w, j, kvx_restore);
    wait_for_jobs(&w);
    assert_int_equal(j->state, JOB_DONE);
    check_caches(&w);
    worker_close(&w);
}

/* More work than tickets: submit answers "again", the worker collects and goes on; nothing is lost. */
static void more_jobs_than_tickets(const device *dev, const void *arg)
{
    kvx_slot slots[N_GROUPS * 4];
    uint32_t n_again = 0;
    offloading_worker w;
    gate g;
    (void)arg;
    worker_open(&w, dev);
    slots_take(w.pool, N_GROUPS * 4, slots);
    gate_close(&g, dev, w.compute);
    for (uint32_t i = 0; i < 3 * MAX_JOBS; i++) {
        kvx_options options = KVX_OPTIONS_INIT;
        job scratch = {.id = i}, *j = &scratch;
        kvx_ticket ticket = 77;
        job_describe(&w, j, i % 4 * 4, 2, slots + i % 2 * 4);
        options.stream = w.compute;
        options.cookie = i;
        const kvx_status status = kvx_store(w.ctx, j->n, j->pairs, &options, &ticket);
        if (status == KVX_AGAIN) {
            assert_int_equal(ticket, 77);
            n_again++;
            gate_open(&g);
            wait_for_jobs(&w);
            for (uint32_t k = 0; k < MAX_JOBS; k++)
                w.jobs[k].state = JOB_FREE;
            continue;
        }
        expect_ok(status);
        job *kept = job_new(&w, i);
        *kept = *j;
        kept->ticket = ticket;
        kept->state = JOB_RUNNING;
    }
    assert_true(n_again > 0);
    expect_ok(kvx_drain(w.ctx, TIMEOUT_NS));
    (void)get_finished(&w);
    for (uint32_t i = 0; i < MAX_JOBS; i++)
        assert_int_not_equal(w.jobs[i].state, JOB_RUNNING);
    check_caches(&w);
    worker_close(&w);
}

static const test_case cases[] = {
    {"jobs store and load two groups", jobs_store_and_load_two_groups, NULL},
    {"flush on preemption", flush_on_preemption, NULL},
    {"a failed load names its bad blocks", failed_load_names_bad_blocks, NULL},
    {"more jobs than tickets", more_jobs_than_tickets, NULL},
};

int main(int argc, char **argv)
{
    return RUN_CASES("vllm", cases, argc, argv);
}
