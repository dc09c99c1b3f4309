/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_CPU_H
#define KVX_CPU_H
/**
 * @file kvx_cpu.h
 * Queues and events for the CPU engine, with the ordering rules of CUDA's streams and events. A queue runs what is put
 * into it one after the other, on a thread of its own; different queues are ordered by events only. An event stands for
 * "everything that was in the queue when it was recorded"; a wait takes the most recent record at the time of the call,
 * so recording the event again later does not change it.
 *
 * A queue holds KVX_CPU_QUEUE_CAPACITY operations. When it is full, kvx_cpu_queue_call() and kvx_cpu_event_wait() block
 * until there is room; kvx_store() and kvx_restore() never block, but return KVX_AGAIN. Recording needs no room.
 * Nothing but the two create functions allocates. Conventions as in kvx.h; handles of CUDA may not be passed here.
 */
#include "kvx.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVX_CPU_QUEUE_CAPACITY 4096u

/** Creates an empty queue and its thread. @param queue  set on success; end it with kvx_cpu_queue_destroy().
 *  @retval KVX_NO_MEMORY no memory or no thread. */
KVX_API KVX_NODISCARD kvx_status kvx_cpu_queue_create(kvx_stream *queue);

/** Runs what is still in the queue to its end, then frees it: blocks if an operation waits for something that has not
 *  happened. Not from a function that the queue itself runs. Events recorded in it stay valid. NULL does nothing. */
KVX_API void kvx_cpu_queue_destroy(kvx_stream queue);

/** Puts a call of fn(arg) into the queue. Blocks while the queue is full, so fn must not put work into its own full
 *  queue. */
KVX_API KVX_NODISCARD kvx_status kvx_cpu_queue_call(kvx_stream queue, void (*fn)(void *), void *arg);

/** Blocks until everything that was in the queue at the time of the call has ended. */
KVX_API KVX_NODISCARD kvx_status kvx_cpu_queue_sync(kvx_stream queue);

/** Creates an event that was never recorded. @retval KVX_NO_MEMORY. */
KVX_API KVX_NODISCARD kvx_status kvx_cpu_event_create(kvx_event *event);

/** Frees the event; waits already made on it stay in force. NULL does nothing. */
KVX_API void kvx_cpu_event_destroy(kvx_event event);

/** The event now stands for everything that is in the queue at this moment. Never blocks. */
KVX_API KVX_NODISCARD kvx_status kvx_cpu_event_record(kvx_event event, kvx_stream queue);

/** What is put into `queue` from now on comes after the event's most recent record. No wait if it was never recorded.
 *  Blocks the caller only while the queue is full. */
KVX_API KVX_NODISCARD kvx_status kvx_cpu_event_wait(kvx_event event, kvx_stream queue);

/** KVX_OK if the most recent record has been reached (or there is none), else KVX_PENDING. */
KVX_API KVX_NODISCARD kvx_status kvx_cpu_event_query(kvx_event event);

/** Blocks until the record that is the most recent at the time of the call has been reached. */
KVX_API KVX_NODISCARD kvx_status kvx_cpu_event_sync(kvx_event event);

#ifdef __cplusplus
}
#endif
#endif
