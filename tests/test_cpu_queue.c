/* SPDX-License-Identifier: Apache-2.0 */
/* Queues and events of the CPU engine: order in a queue, order across queues, what a record and a wait stand for, full
 * queues, destroying with work pending. A gate, a function that waits to be opened, holds a queue where a case wants
 * it.
 */
#include "cmocka_door.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "kvx_cpu.h"

typedef struct gate {
    atomic_int open;
} gate;

static void wait_for_gate(void *arg)
{
    gate *g = arg;
    while (!atomic_load(&g->open))
        sched_yield();
}

static void count(void *arg)
{
    atomic_fetch_add((atomic_uint *)arg, 1);
}

static void pause_a_moment(void)
{
    const struct timespec moment = {0, 10000000};
    nanosleep(&moment, NULL);
}

static kvx_stream new_queue(void)
{
    kvx_stream queue = NULL;
    assert_int_equal(kvx_cpu_queue_create(&queue), KVX_OK);
    return queue;
}

static kvx_event new_event(void)
{
    kvx_event event = NULL;
    assert_int_equal(kvx_cpu_event_create(&event), KVX_OK);
    return event;
}

static void call(kvx_stream queue, void (*fn)(void *), void *arg)
{
    assert_int_equal(kvx_cpu_queue_call(queue, fn, arg), KVX_OK);
}

static void sync_queue(kvx_stream queue)
{
    assert_int_equal(kvx_cpu_queue_sync(queue), KVX_OK);
}

static void refuses_null(void **state)
{
    kvx_stream queue = new_queue();
    kvx_event event = new_event();
    (void)state;
    assert_int_equal(kvx_cpu_queue_create(NULL), KVX_INVALID);
    assert_int_equal(kvx_cpu_queue_call(NULL, count, NULL), KVX_INVALID);
    assert_int_equal(kvx_cpu_queue_call(queue, NULL, NULL), KVX_INVALID);
    assert_int_equal(kvx_cpu_queue_sync(NULL), KVX_INVALID);
    assert_int_equal(kvx_cpu_event_create(NULL), KVX_INVALID);
    assert_int_equal(kvx_cpu_event_record(event, NULL), KVX_INVALID);
    assert_int_equal(kvx_cpu_event_wait(NULL, queue), KVX_INVALID);
    assert_int_equal(kvx_cpu_event_query(NULL), KVX_INVALID);
    assert_int_equal(kvx_cpu_event_sync(NULL), KVX_INVALID);
    kvx_cpu_event_destroy(NULL);
    kvx_cpu_queue_destroy(NULL);
    kvx_cpu_event_destroy(event);
    kvx_cpu_queue_destroy(queue);
}

typedef struct numbered {
    unsigned *last, number, in_order;
} numbered;

static void expect_next(void *arg)
{
    numbered *n = arg;
    n->in_order = *n->last + 1 == n->number;
    *n->last = n->number;
}

static void runs_in_order(void **state)
{
    static numbered calls[1000];
    kvx_stream queue = new_queue();
    unsigned last = 0, i;
    (void)state;
    for (i = 0; i < 1000; i++) {
        calls[i] = (numbered){&last, i + 1, 0};
        call(queue, expect_next, &calls[i]);
    }
    sync_queue(queue);
    for (i = 0; i < 1000; i++)
        assert_true(calls[i].in_order);
    kvx_cpu_queue_destroy(queue);
}

static void waits_across_queues(void **state)
{
    kvx_stream first = new_queue(), second = new_queue();
    kvx_event event = new_event();
    gate g = {0};
    atomic_uint n = 0;
    (void)state;
    call(first, wait_for_gate, &g);
    assert_int_equal(kvx_cpu_event_record(event, first), KVX_OK);
    assert_int_equal(kvx_cpu_event_wait(event, second), KVX_OK);
    call(second, count, &n);
    pause_a_moment();
    assert_int_equal(atomic_load(&n), 0);
    assert_int_equal(kvx_cpu_event_query(event), KVX_PENDING);
    atomic_store(&g.open, 1);
    assert_int_equal(kvx_cpu_event_sync(event), KVX_OK);
    assert_int_equal(kvx_cpu_event_query(event), KVX_OK);
    sync_queue(second);
    assert_int_equal(atomic_load(&n), 1);
    kvx_cpu_event_destroy(event);
    kvx_cpu_queue_destroy(first);
    kvx_cpu_queue_destroy(second);
}

static void unrecorded_is_no_wait(void **state)
{
    kvx_stream queue = new_queue();
    kvx_event event = new_event();
    (void)state;
    assert_int_equal(kvx_cpu_event_query(event), KVX_OK);
    assert_int_equal(kvx_cpu_event_sync(event), KVX_OK);
    assert_int_equal(kvx_cpu_event_wait(event, queue), KVX_OK);
    sync_queue(queue);
    kvx_cpu_event_destroy(event);
    kvx_cpu_queue_destroy(queue);
}

/* The early waiter waits for the early record alone, the late waiter for the late one, whichever is reached first. */
static void wait_keeps_its_record(void **state)
{
    kvx_stream slow = new_queue(), quick = new_queue(), early = new_queue(), late = new_queue();
    kvx_event event = new_event();
    gate g = {0};
    atomic_uint n_early = 0, n_late = 0;
    (void)state;
    call(slow, wait_for_gate, &g);
    assert_int_equal(kvx_cpu_event_record(event, slow), KVX_OK);
    assert_int_equal(kvx_cpu_event_wait(event, early), KVX_OK);
    assert_int_equal(kvx_cpu_event_record(event, quick), KVX_OK);
    assert_int_equal(kvx_cpu_event_wait(event, late), KVX_OK);
    kvx_cpu_event_destroy(event);
    call(early, count, &n_early);
    call(late, count, &n_late);
    sync_queue(late);
    assert_int_equal(atomic_load(&n_late), 1);
    pause_a_moment();
    assert_int_equal(atomic_load(&n_early), 0);
    atomic_store(&g.open, 1);
    sync_queue(early);
    assert_int_equal(atomic_load(&n_early), 1);
    kvx_cpu_queue_destroy(slow);
    kvx_cpu_queue_destroy(quick);
    kvx_cpu_queue_destroy(early);
    kvx_cpu_queue_destroy(late);
}

typedef struct filler {
    kvx_stream queue;
    atomic_uint n_run, n_put;
} filler;

static void *overfill(void *arg)
{
    filler *f = arg;
    unsigned i;
    for (i = 0; i < KVX_CPU_QUEUE_CAPACITY + 10; i++)
        if (kvx_cpu_queue_call(f->queue, count, &f->n_run) == KVX_OK)
            atomic_fetch_add(&f->n_put, 1);
    return NULL;
}

static void full_queue_blocks_the_caller(void **state)
{
    filler f = {new_queue(), 0, 0};
    kvx_event event = new_event();
    gate g = {0};
    pthread_t thread;
    (void)state;
    call(f.queue, wait_for_gate, &g);
    assert_int_equal(pthread_create(&thread, NULL, overfill, &f), 0);
    while (atomic_load(&f.n_put) < KVX_CPU_QUEUE_CAPACITY - 1)
        sched_yield();
    pause_a_moment();
    assert_int_equal(atomic_load(&f.n_put), KVX_CPU_QUEUE_CAPACITY - 1);
    assert_int_equal(kvx_cpu_event_record(event, f.queue), KVX_OK);
    atomic_store(&g.open, 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(kvx_cpu_event_sync(event), KVX_OK);
    sync_queue(f.queue);
    assert_int_equal(atomic_load(&f.n_run), KVX_CPU_QUEUE_CAPACITY + 10);
    kvx_cpu_event_destroy(event);
    kvx_cpu_queue_destroy(f.queue);
}

static void *open_later(void *arg)
{
    pause_a_moment();
    atomic_store(&((gate *)arg)->open, 1);
    return NULL;
}

static void destroy_drains(void **state)
{
    kvx_stream queue = new_queue();
    kvx_event event = new_event();
    gate g = {0};
    atomic_uint n = 0;
    pthread_t thread;
    unsigned i;
    (void)state;
    call(queue, wait_for_gate, &g);
    for (i = 0; i < 100; i++)
        call(queue, count, &n);
    assert_int_equal(kvx_cpu_event_record(event, queue), KVX_OK);
    assert_int_equal(pthread_create(&thread, NULL, open_later, &g), 0);
    kvx_cpu_queue_destroy(queue);
    assert_int_equal(atomic_load(&n), 100);
    assert_int_equal(kvx_cpu_event_query(event), KVX_OK); /* outlives its queue */
    assert_int_equal(pthread_join(thread, NULL), 0);
    kvx_cpu_event_destroy(event);
}

typedef struct crowd {
    kvx_stream queues[2];
    kvx_event event;
    unsigned value; /* only ever touched in queue 0 */
    atomic_uint n_failed;
} crowd;

static void add_plainly(void *arg)
{
    ((crowd *)arg)->value++;
}

static void *join_crowd(void *arg)
{
    crowd *c = arg;
    unsigned i;
    for (i = 0; i < 500; i++) {
        int failed = kvx_cpu_queue_call(c->queues[0], add_plainly, c) != KVX_OK;
        failed |= kvx_cpu_event_record(c->event, c->queues[0]) != KVX_OK;
        failed |= kvx_cpu_event_wait(c->event, c->queues[1]) != KVX_OK;
        failed |= kvx_cpu_event_query(c->event) > KVX_PENDING;
        if (failed)
            atomic_fetch_add(&c->n_failed, 1);
    }
    return NULL;
}

static void many_threads(void **state)
{
    crowd c = {{new_queue(), new_queue()}, new_event(), 0, 0};
    pthread_t threads[4];
    unsigned i;
    (void)state;
    for (i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, join_crowd, &c), 0);
    for (i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    sync_queue(c.queues[0]);
    sync_queue(c.queues[1]);
    assert_int_equal(c.value, 2000);
    assert_int_equal(atomic_load(&c.n_failed), 0);
    kvx_cpu_event_destroy(c.event);
    kvx_cpu_queue_destroy(c.queues[0]);
    kvx_cpu_queue_destroy(c.queues[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_null),          cmocka_unit_test(runs_in_order),
        cmocka_unit_test(waits_across_queues),   cmocka_unit_test(unrecorded_is_no_wait),
        cmocka_unit_test(wait_keeps_its_record), cmocka_unit_test(full_queue_blocks_the_caller),
        cmocka_unit_test(destroy_drains),        cmocka_unit_test(many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
