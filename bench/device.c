/* SPDX-License-Identifier: Apache-2.0 */
/* Choice of the device, and the one of the CPU engine: ordinary memory and a queue of kvx_cpu.h. */
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvx_cpu.h"
#include "pattern.h"

/* ---------------------------------------------------------------------------------------------------------- the CPU */

static bool cpu_alloc(device *dev, uint64_t n_bytes, void **memory)
{
    uint64_t rounded = (n_bytes + 4095) & ~(uint64_t)4095;
    (void)dev;
    *memory = rounded >= n_bytes ? aligned_alloc(4096, rounded) : NULL;
    if (!*memory)
        fprintf(stderr, "no memory for %.2f GiB: try a smaller --bytes\n", (double)n_bytes / (1 << 30));
    return *memory != NULL;
}

static void cpu_release(device *dev, void *memory)
{
    (void)dev;
    free(memory);
}

static bool cpu_sync(device *dev)
{
    kvx_status status = kvx_cpu_queue_sync(dev->stream);
    if (status != KVX_OK)
        fprintf(stderr, "the CPU queue failed: %s\n", kvx_last_error());
    return status == KVX_OK;
}

static bool cpu_fill(device *dev, void *memory, uint64_t n_bytes, uint64_t seed, uint64_t position)
{
    uint64_t *words = memory, i;
    if (!cpu_sync(dev))
        return false;
    for (i = 0; i < n_bytes / 8; i++)
        words[i] = pattern_word(seed, position / 8 + i);
    return true;
}

static bool cpu_compare(device *dev, const void *memory, uint64_t n_bytes, uint64_t seed, uint64_t position,
                        uint64_t *n_wrong)
{
    const uint64_t *words = memory;
    uint64_t i, wrong = 0;
    if (!cpu_sync(dev))
        return false;
    for (i = 0; i < n_bytes / 8; i++)
        wrong += words[i] != pattern_word(seed, position / 8 + i);
    *n_wrong = wrong;
    return true;
}

static bool cpu_copy(device *dev, void *to, const void *from, uint64_t n_bytes)
{
    if (!cpu_sync(dev))
        return false;
    memcpy(to, from, n_bytes);
    return true;
}

static uint64_t cpu_host_span(device *dev, const void *host)
{
    (void)dev;
    (void)host;
    return UINT64_MAX;
}

static bool cpu_mark(device *dev)
{
    (void)dev;
    return true;
}

static double cpu_seconds(device *dev)
{
    (void)dev;
    return -1;
}

static void cpu_describe(device *dev, report *r)
{
    (void)dev;
    report_machine(r, "engine", "cpu");
}

static void cpu_close(device *dev)
{
    kvx_cpu_queue_destroy(dev->stream);
}

static const device_ops cpu_ops = {cpu_alloc, cpu_release, cpu_fill,    cpu_compare,  cpu_copy, cpu_host_span,
                                   cpu_sync,  cpu_mark,    cpu_seconds, cpu_describe, cpu_close};

static bool cpu_open(device *dev)
{
    kvx_stream queue = NULL;
    if (kvx_cpu_queue_create(&queue) != KVX_OK) {
        fprintf(stderr, "no CPU queue: %s\n", kvx_last_error());
        return false;
    }
    dev->ops = &cpu_ops;
    dev->engine = KVX_ENGINE_CPU;
    dev->stream = queue;
    return true;
}

/* ------------------------------------------------------------------------------------------------------------ choice
 */

static bool gpu_open(bool required, int ordinal, device *dev)
{
#if KVX_WITH_CUDA
    const char *why = "";
    int count = device_cuda_count(&why);
    if (ordinal < count)
        return device_cuda_open(ordinal, dev);
    if (count > 0)
        fprintf(stderr, "there is no device %d: --device takes 0 to %d\n", ordinal, count - 1);
    else if (required)
        fprintf(stderr, "no usable GPU (%s): try --engine cpu\n", why);
    return count == 0 && !required && cpu_open(dev);
#else
    (void)ordinal;
    if (required)
        fprintf(stderr, "this program was built without CUDA: try --engine cpu, or build with CUDA\n");
    return !required && cpu_open(dev);
#endif
}

bool device_open(kvx_engine wanted, int ordinal, device *dev)
{
    memset(dev, 0, sizeof(*dev));
    if (wanted == KVX_ENGINE_CPU)
        return cpu_open(dev);
    return gpu_open(wanted == KVX_ENGINE_CUDA, ordinal, dev);
}

void device_close(device *dev)
{
    if (dev->ops)
        dev->ops->close(dev);
    memset(dev, 0, sizeof(*dev));
}

bool device_alloc(device *dev, uint64_t n_bytes, void **memory)
{
    return dev->ops->alloc(dev, n_bytes, memory);
}

void device_free(device *dev, void *memory)
{
    if (memory)
        dev->ops->release(dev, memory);
}

bool device_fill(device *dev, void *memory, uint64_t n_bytes, uint64_t seed, uint64_t position)
{
    return dev->ops->fill(dev, memory, n_bytes, seed, position);
}

bool device_compare(device *dev, const void *memory, uint64_t n_bytes, uint64_t seed, uint64_t position,
                    uint64_t *n_wrong)
{
    return dev->ops->compare(dev, memory, n_bytes, seed, position, n_wrong);
}

bool device_copy(device *dev, void *to, const void *from, uint64_t n_bytes)
{
    return dev->ops->copy(dev, to, from, n_bytes);
}

uint64_t device_host_span(device *dev, const void *host)
{
    return dev->ops->host_span(dev, host);
}

bool device_sync(device *dev)
{
    return dev->ops->sync(dev);
}

bool device_mark(device *dev)
{
    return dev->ops->mark(dev);
}

double device_seconds(device *dev)
{
    return dev->ops->seconds(dev);
}

void device_describe(device *dev, report *r)
{
    dev->ops->describe(dev, r);
}
