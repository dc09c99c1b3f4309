/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_BENCH_DEVICE_H
#define KVX_BENCH_DEVICE_H
/*
 * The memory that an engine seals from and opens into, so that one program runs on a GPU and, with the CPU engine, on
 * any machine. Functions that return false have said why, and what to do, on stderr.
 */
#include <stdbool.h>
#include <stdint.h>

#include "kvx.h"
#include "report.h"

#ifndef KVX_WITH_CUDA
#define KVX_WITH_CUDA 0
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct device device;

typedef struct device_ops {
    bool (*alloc)(device *dev, uint64_t n_bytes, void **memory);
    void (*release)(device *dev, void *memory);
    bool (*fill)(device *dev, void *memory, uint64_t n_bytes, uint64_t seed, uint64_t position);
    bool (*compare)(device *dev, const void *memory, uint64_t n_bytes, uint64_t seed, uint64_t position,
                    uint64_t *n_wrong);
    bool (*copy)(device *dev, void *to, const void *from, uint64_t n_bytes);
    uint64_t (*host_span)(device *dev, const void *host);
    bool (*sync)(device *dev);
    bool (*mark)(device *dev);
    double (*seconds)(device *dev);
    void (*describe)(device *dev, report *r);
    void (*close)(device *dev);
} device_ops;

struct device {
    const device_ops *ops;
    kvx_engine engine;  /* KVX_ENGINE_CUDA or KVX_ENGINE_CPU */
    int ordinal;        /* CUDA only */
    kvx_stream stream;  /* all work below is in it */
    kvx_event begin;    /* of a timed stretch; NULL where events carry no time */
    kvx_event end;      /* the same: pass it as done_event */
    void *dev_counters; /* CUDA only: results of compare() */
};

/* AUTO takes a GPU if there is one. */
bool device_open(kvx_engine wanted, int ordinal, device *dev);
void device_close(device *dev);

bool device_alloc(device *dev, uint64_t n_bytes, void **memory);
void device_free(device *dev, void *memory);

/* Fills with the pattern of `seed`, the first byte being byte `position` of it. Both multiples of 8. */
bool device_fill(device *dev, void *memory, uint64_t n_bytes, uint64_t seed, uint64_t position);

/* Compares every byte with the pattern. `n_wrong` counts 8-byte words that differ. Complete on return. */
bool device_compare(device *dev, const void *memory, uint64_t n_bytes, uint64_t seed, uint64_t position,
                    uint64_t *n_wrong);

/* To, from or within the device. Complete on return. */
bool device_copy(device *dev, void *to, const void *from, uint64_t n_bytes);

/* How many bytes from `host` on one copy may cover: memory that was pinned in several parts is copied part by part. */
uint64_t device_host_span(device *dev, const void *host);

/* Waits for the stream. */
bool device_sync(device *dev);

/* Seconds of the device's own clock from device_mark() in the stream to the record of dev->end; negative where the
 * engine's events carry no time. */
bool device_mark(device *dev);
double device_seconds(device *dev);

/* GPU, driver, link and clocks, as facts of the report. */
void device_describe(device *dev, report *r);

#if KVX_WITH_CUDA
/* Says how many GPUs there are, or why CUDA cannot be used. */
int device_cuda_count(const char **why);
bool device_cuda_open(int ordinal, device *dev);

/* What NVML knows of the GPU at this PCI address: link in use and at most, clocks. Nothing where there is no NVML. */
void device_nvml_describe(const char *bus_id, report *r);
#endif

#ifdef __cplusplus
}
#endif
#endif
