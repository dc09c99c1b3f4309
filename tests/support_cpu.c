/* SPDX-License-Identifier: Apache-2.0 */
/* The device of the CPU engine: ordinary memory, and the queues and events of kvx_cpu.h. */
#include "support.h"

#include <stdlib.h>

#include "kvx_cpu.h"

static int cpu_usable(const char **why)
{
    *why = "";
    return 1;
}

static void *cpu_alloc(size_t bytes)
{
    return aligned_alloc(256, (bytes + 255) / 256 * 256);
}

static void cpu_upload(void *dev, const void *host, size_t bytes)
{
    memcpy(dev, host, bytes);
}

static void cpu_set(void *dev, int value, size_t bytes)
{
    memset(dev, value, bytes);
}

static kvx_stream cpu_stream_create(void)
{
    kvx_stream stream = NULL;
    expect_ok(kvx_cpu_queue_create(&stream));
    return stream;
}

static void cpu_stream_destroy(kvx_stream stream)
{
    kvx_cpu_queue_destroy(stream);
}

static void cpu_stream_sync(kvx_stream stream)
{
    expect_ok(kvx_cpu_queue_sync(stream));
}

static void cpu_stream_call(kvx_stream stream, void (*fn)(void *), void *arg)
{
    expect_ok(kvx_cpu_queue_call(stream, fn, arg));
}

static void cpu_stream_wait(kvx_stream stream, kvx_event event)
{
    expect_ok(kvx_cpu_event_wait(event, stream));
}

typedef struct copy_call {
    void *to;
    const void *from;
    size_t bytes;
} copy_call;

static void run_copy(void *arg)
{
    copy_call *call = arg;
    memcpy(call->to, call->from, call->bytes);
    free(call);
}

static void cpu_stream_copy(kvx_stream stream, void *to, const void *from, size_t bytes)
{
    copy_call *call = malloc(sizeof *call);
    assert_non_null(call);
    *call = (copy_call){to, from, bytes};
    cpu_stream_call(stream, run_copy, call);
}

static kvx_event cpu_event_create(void)
{
    kvx_event event = NULL;
    expect_ok(kvx_cpu_event_create(&event));
    return event;
}

static void cpu_event_destroy(kvx_event event)
{
    kvx_cpu_event_destroy(event);
}

static void cpu_event_record(kvx_event event, kvx_stream stream)
{
    expect_ok(kvx_cpu_event_record(event, stream));
}

static int cpu_event_fired(kvx_event event)
{
    return kvx_cpu_event_query(event) == KVX_OK;
}

static void cpu_event_sync(kvx_event event)
{
    expect_ok(kvx_cpu_event_sync(event));
}

const device device_cpu = {
    .name = "cpu",
    .engine = KVX_ENGINE_CPU,
    .usable = cpu_usable,
    .alloc = cpu_alloc,
    .free = free,
    .upload = cpu_upload,
    .download = cpu_upload,
    .set = cpu_set,
    .stream_create = cpu_stream_create,
    .stream_destroy = cpu_stream_destroy,
    .stream_sync = cpu_stream_sync,
    .stream_call = cpu_stream_call,
    .stream_wait = cpu_stream_wait,
    .stream_copy = cpu_stream_copy,
    .event_create = cpu_event_create,
    .event_destroy = cpu_event_destroy,
    .event_record = cpu_event_record,
    .event_fired = cpu_event_fired,
    .event_sync = cpu_event_sync,
};
