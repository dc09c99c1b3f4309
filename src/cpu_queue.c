/* SPDX-License-Identifier: Apache-2.0 */
/* Queues and events of the CPU engine. A queue is a ring of operations and a thread; its timeline counts the operations
 * that have ended, so a record is the number of those put in so far. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "cpu_queue.h"
#include "status.h"

#define STOP_CHECK_NS 5000000L

struct kvx_cpu_timeline {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    uint64_t position;
    uint32_t n_references; /* guarded by `lock` */
};

/* fn NULL: a wait for `mark`. */
typedef struct operation {
    void (*fn)(void *);
    void *arg;
    kvx_cpu_mark mark;
} operation;

typedef struct cpu_queue {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    kvx_cpu_timeline *timeline;
    uint64_t n_put, n_ended;
    int closing;
    operation ring[KVX_CPU_QUEUE_CAPACITY];
} cpu_queue;

typedef struct cpu_event {
    pthread_mutex_t lock;
    kvx_cpu_mark mark;
} cpu_event;

static cpu_queue *queue_of(kvx_stream stream)
{
    return (cpu_queue *)(void *)stream;
}

static cpu_event *event_of(kvx_event event)
{
    return (cpu_event *)(void *)event;
}

/* ------------------------------------------------------------------------------------------------------- timelines */

static int init_monotonic(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;
    int failed;
    if (pthread_condattr_init(&attributes))
        return 0;
    failed = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) || pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
    return !failed;
}

kvx_cpu_timeline *kvx_cpu_timeline_create(void)
{
    kvx_cpu_timeline *timeline = calloc(1, sizeof *timeline);
    if (!timeline)
        return NULL;
    timeline->n_references = 1;
    if (!init_monotonic(&timeline->moved))
        goto free_timeline;
    if (pthread_mutex_init(&timeline->lock, NULL))
        goto destroy_cond;
    return timeline;
destroy_cond:
    pthread_cond_destroy(&timeline->moved);
free_timeline:
    free(timeline);
    return NULL;
}

void kvx_cpu_timeline_release(kvx_cpu_timeline *timeline)
{
    uint32_t n_left;
    if (!timeline)
        return;
    pthread_mutex_lock(&timeline->lock);
    n_left = --timeline->n_references;
    pthread_mutex_unlock(&timeline->lock);
    if (n_left)
        return;
    pthread_cond_destroy(&timeline->moved);
    pthread_mutex_destroy(&timeline->lock);
    free(timeline);
}

void kvx_cpu_timeline_advance(kvx_cpu_timeline *timeline, uint64_t position)
{
    pthread_mutex_lock(&timeline->lock);
    if (position > timeline->position)
        timeline->position = position;
    pthread_cond_broadcast(&timeline->moved);
    pthread_mutex_unlock(&timeline->lock);
}

kvx_cpu_mark kvx_cpu_mark_at(kvx_cpu_timeline *timeline, uint64_t position)
{
    kvx_cpu_mark mark = {timeline, position};
    if (!timeline)
        return mark;
    pthread_mutex_lock(&timeline->lock);
    timeline->n_references++;
    pthread_mutex_unlock(&timeline->lock);
    return mark;
}

void kvx_cpu_mark_drop(kvx_cpu_mark *mark)
{
    kvx_cpu_timeline_release(mark->timeline);
    mark->timeline = NULL;
}

/* Waits for the timeline to move, not much longer than STOP_CHECK_NS. */
static void wait_a_while(kvx_cpu_timeline *timeline)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += STOP_CHECK_NS;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&timeline->moved, &timeline->lock, &until);
}

int kvx_cpu_mark_wait(const kvx_cpu_mark *mark, const uint32_t *stop)
{
    kvx_cpu_timeline *timeline = mark->timeline;
    int reached;
    if (!timeline)
        return 1;
    pthread_mutex_lock(&timeline->lock);
    while (timeline->position < mark->position && !(stop && __atomic_load_n(stop, __ATOMIC_ACQUIRE))) {
        if (stop)
            wait_a_while(timeline);
        else
            pthread_cond_wait(&timeline->moved, &timeline->lock);
    }
    reached = timeline->position >= mark->position;
    pthread_mutex_unlock(&timeline->lock);
    return reached;
}

static int mark_reached(const kvx_cpu_mark *mark)
{
    int reached;
    if (!mark->timeline)
        return 1;
    pthread_mutex_lock(&mark->timeline->lock);
    reached = mark->timeline->position >= mark->position;
    pthread_mutex_unlock(&mark->timeline->lock);
    return reached;
}

/* ---------------------------------------------------------------------------------------------------------- queues */

/* The oldest operation, or 0 once the queue is empty and closing. */
static int next_operation(cpu_queue *queue, operation *next)
{
    int found;
    pthread_mutex_lock(&queue->lock);
    while (queue->n_ended == queue->n_put && !queue->closing)
        pthread_cond_wait(&queue->changed, &queue->lock);
    found = queue->n_ended < queue->n_put;
    if (found)
        *next = queue->ring[queue->n_ended % KVX_CPU_QUEUE_CAPACITY];
    pthread_mutex_unlock(&queue->lock);
    return found;
}

static void end_operation(cpu_queue *queue)
{
    uint64_t n_ended;
    pthread_mutex_lock(&queue->lock);
    n_ended = ++queue->n_ended;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
    kvx_cpu_timeline_advance(queue->timeline, n_ended);
}

static void *run_queue(void *arg)
{
    cpu_queue *queue = arg;
    operation next;
    while (next_operation(queue, &next)) {
        if (next.fn)
            next.fn(next.arg);
        else
            (void)kvx_cpu_mark_wait(&next.mark, NULL);
        kvx_cpu_mark_drop(&next.mark);
        end_operation(queue);
    }
    return NULL;
}

static int start_queue(cpu_queue *queue)
{
    if (pthread_mutex_init(&queue->lock, NULL))
        return 0;
    if (pthread_cond_init(&queue->changed, NULL))
        goto destroy_lock;
    if (pthread_create(&queue->thread, NULL, run_queue, queue))
        goto destroy_cond;
    return 1;
destroy_cond:
    pthread_cond_destroy(&queue->changed);
destroy_lock:
    pthread_mutex_destroy(&queue->lock);
    return 0;
}

kvx_status kvx_cpu_queue_create(kvx_stream *queue)
{
    cpu_queue *created;
    if (!queue)
        return kvx_note(KVX_INVALID, "queue is NULL");
    created = calloc(1, sizeof *created);
    if (!created)
        return kvx_note(KVX_NO_MEMORY, "no memory for a queue");
    created->timeline = kvx_cpu_timeline_create();
    if (!created->timeline || !start_queue(created)) {
        kvx_cpu_timeline_release(created->timeline);
        free(created);
        return kvx_note(KVX_NO_MEMORY, "no memory or no thread for a queue");
    }
    *queue = (kvx_stream)(void *)created;
    return KVX_OK;
}

void kvx_cpu_queue_destroy(kvx_stream stream)
{
    cpu_queue *queue = queue_of(stream);
    if (!queue)
        return;
    pthread_mutex_lock(&queue->lock);
    queue->closing = 1;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
    pthread_join(queue->thread, NULL);
    pthread_cond_destroy(&queue->changed);
    pthread_mutex_destroy(&queue->lock);
    kvx_cpu_timeline_release(queue->timeline);
    free(queue);
}

/* Puts an operation in; with `block` waits for room, else returns KVX_AGAIN if there is none. */
static kvx_status put(cpu_queue *queue, const operation *added, int block)
{
    kvx_status status = KVX_OK;
    pthread_mutex_lock(&queue->lock);
    while (block && queue->n_put - queue->n_ended == KVX_CPU_QUEUE_CAPACITY)
        pthread_cond_wait(&queue->changed, &queue->lock);
    if (queue->n_put - queue->n_ended == KVX_CPU_QUEUE_CAPACITY) {
        status = KVX_AGAIN;
    } else {
        queue->ring[queue->n_put++ % KVX_CPU_QUEUE_CAPACITY] = *added;
        pthread_cond_broadcast(&queue->changed);
    }
    pthread_mutex_unlock(&queue->lock);
    return status;
}

kvx_status kvx_cpu_queue_call(kvx_stream queue, void (*fn)(void *), void *arg)
{
    operation call = {fn, arg, {NULL, 0}};
    if (!queue || !fn)
        return kvx_note(KVX_INVALID, "queue or function is NULL");
    return put(queue_of(queue), &call, 1);
}

kvx_status kvx_cpu_queue_try_wait(kvx_stream queue, const kvx_cpu_mark *mark)
{
    operation wait = {NULL, NULL, kvx_cpu_mark_at(mark->timeline, mark->position)};
    kvx_status status = put(queue_of(queue), &wait, 0);
    if (status != KVX_OK)
        kvx_cpu_mark_drop(&wait.mark);
    return status;
}

kvx_cpu_mark kvx_cpu_queue_mark(kvx_stream stream)
{
    cpu_queue *queue = queue_of(stream);
    uint64_t n_put;
    pthread_mutex_lock(&queue->lock);
    n_put = queue->n_put;
    pthread_mutex_unlock(&queue->lock);
    return kvx_cpu_mark_at(queue->timeline, n_put);
}

kvx_status kvx_cpu_queue_sync(kvx_stream queue)
{
    kvx_cpu_mark mark;
    if (!queue)
        return kvx_note(KVX_INVALID, "queue is NULL");
    mark = kvx_cpu_queue_mark(queue);
    (void)kvx_cpu_mark_wait(&mark, NULL);
    kvx_cpu_mark_drop(&mark);
    return KVX_OK;
}

/* ---------------------------------------------------------------------------------------------------------- events */

kvx_status kvx_cpu_event_create(kvx_event *event)
{
    cpu_event *created;
    if (!event)
        return kvx_note(KVX_INVALID, "event is NULL");
    created = calloc(1, sizeof *created);
    if (!created || pthread_mutex_init(&created->lock, NULL)) {
        free(created);
        return kvx_note(KVX_NO_MEMORY, "no memory for an event");
    }
    *event = (kvx_event)(void *)created;
    return KVX_OK;
}

void kvx_cpu_event_destroy(kvx_event handle)
{
    cpu_event *event = event_of(handle);
    if (!event)
        return;
    kvx_cpu_mark_drop(&event->mark);
    pthread_mutex_destroy(&event->lock);
    free(event);
}

kvx_cpu_mark kvx_cpu_event_mark(kvx_event handle)
{
    cpu_event *event = event_of(handle);
    kvx_cpu_mark mark;
    pthread_mutex_lock(&event->lock);
    mark = kvx_cpu_mark_at(event->mark.timeline, event->mark.position);
    pthread_mutex_unlock(&event->lock);
    return mark;
}

static void replace_mark(cpu_event *event, kvx_cpu_mark mark)
{
    kvx_cpu_mark old;
    pthread_mutex_lock(&event->lock);
    old = event->mark;
    event->mark = mark;
    pthread_mutex_unlock(&event->lock);
    kvx_cpu_mark_drop(&old);
}

void kvx_cpu_event_set(kvx_event event, kvx_cpu_timeline *timeline, uint64_t position)
{
    replace_mark(event_of(event), kvx_cpu_mark_at(timeline, position));
}

kvx_status kvx_cpu_event_record(kvx_event event, kvx_stream queue)
{
    if (!event || !queue)
        return kvx_note(KVX_INVALID, "event or queue is NULL");
    replace_mark(event_of(event), kvx_cpu_queue_mark(queue));
    return KVX_OK;
}

kvx_status kvx_cpu_event_wait(kvx_event event, kvx_stream queue)
{
    operation wait = {NULL, NULL, {NULL, 0}};
    if (!event || !queue)
        return kvx_note(KVX_INVALID, "event or queue is NULL");
    wait.mark = kvx_cpu_event_mark(event);
    return put(queue_of(queue), &wait, 1);
}

kvx_status kvx_cpu_event_query(kvx_event event)
{
    kvx_cpu_mark mark;
    int reached;
    if (!event)
        return kvx_note(KVX_INVALID, "event is NULL");
    mark = kvx_cpu_event_mark(event);
    reached = mark_reached(&mark);
    kvx_cpu_mark_drop(&mark);
    return reached ? KVX_OK : KVX_PENDING;
}

kvx_status kvx_cpu_event_sync(kvx_event event)
{
    kvx_cpu_mark mark;
    if (!event)
        return kvx_note(KVX_INVALID, "event is NULL");
    mark = kvx_cpu_event_mark(event);
    (void)kvx_cpu_mark_wait(&mark, NULL);
    kvx_cpu_mark_drop(&mark);
    return KVX_OK;
}
