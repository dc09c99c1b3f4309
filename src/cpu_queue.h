/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_SRC_CPU_QUEUE_H
#define KVX_SRC_CPU_QUEUE_H
/*
 * Time as the CPU engine sees it. A timeline counts what has ended in something that works in order (a queue, a
 * pipeline of the engine); a mark is a position on one. Events and waits hold marks, never each other, so recording an
 * event is an assignment and either side may be destroyed first.
 */
#include "kvx_cpu.h"

typedef struct kvx_cpu_timeline kvx_cpu_timeline;

/* Holds a reference to its timeline. Timeline NULL: long past. */
typedef struct kvx_cpu_mark {
    kvx_cpu_timeline *timeline;
    uint64_t position;
} kvx_cpu_mark;

/* A timeline at position 0 with one reference; NULL if there is no memory. It is freed with its last reference. */
kvx_cpu_timeline *kvx_cpu_timeline_create(void);
void kvx_cpu_timeline_release(kvx_cpu_timeline *timeline); /* NULL is nothing */
/* Everything up to `position` has ended. Positions only grow. */
void kvx_cpu_timeline_advance(kvx_cpu_timeline *timeline, uint64_t position);

/* Marks come with a reference of their own; drop it. */
kvx_cpu_mark kvx_cpu_mark_at(kvx_cpu_timeline *timeline, uint64_t position);
void kvx_cpu_mark_drop(kvx_cpu_mark *mark);
/* Blocks until the mark is reached (returns 1), or until *stop is seen to be nonzero (returns 0; within some
 * milliseconds). `stop` may be NULL. */
int kvx_cpu_mark_wait(const kvx_cpu_mark *mark, const uint32_t *stop);

/* After everything that is in the queue now. */
kvx_cpu_mark kvx_cpu_queue_mark(kvx_stream queue);
/* Later work of the queue comes after `mark`, of which it keeps a copy. KVX_AGAIN, without a note, if the queue is
 * full. */
kvx_status kvx_cpu_queue_try_wait(kvx_stream queue, const kvx_cpu_mark *mark);

/* The event's most recent record. */
kvx_cpu_mark kvx_cpu_event_mark(kvx_event event);
/* Records: the event stands for position `position` of the timeline from now on. */
void kvx_cpu_event_set(kvx_event event, kvx_cpu_timeline *timeline, uint64_t position);

#endif
