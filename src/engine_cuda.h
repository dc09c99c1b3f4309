/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_SRC_ENGINE_CUDA_H
#define KVX_SRC_ENGINE_CUDA_H
/*
 * What the files of the CUDA engine share. engine_cuda.c: layouts, answers; engine_cuda_keys.c: keys;
 * engine_cuda_create.c: life; engine_cuda_memory.c: memory of the device; engine_cuda_pace.c: how large bursts are and
 * how many multiprocessors they take; engine_cuda_submit.c: whether a batch can be taken; engine_cuda_transfer.c: its
 * streams and events; engine_cuda_copy.c: the copy engine. Functions that return a cudaError_t leave it to their caller
 * to note it.
 */
#include <stdatomic.h>

#include <cuda_runtime_api.h>

#include "../kernels/launch.h"
#include "engine.h"
#include "plan.h"
#include "status.h"

#define KVX_CUDA_RING_CHUNKS 4u
#define KVX_CUDA_BLOCKS 16u
#define KVX_CUDA_BURSTS 256u /* of one call, as far as the ring allows */
/* Launches of one pipeline in flight. The driver was seen to take 1,021 on one stream before it waits, or 120 with the
 * parameters of a large launch, which counts as so many. */
#define KVX_CUDA_PLACES 512u
#define KVX_CUDA_LARGE_PLACES 9u

enum kvx_cuda_stream {
    KVX_CUDA_STORE_COMPUTE,
    KVX_CUDA_STORE_COPY,
    KVX_CUDA_STORE_COMMIT,
    KVX_CUDA_RESTORE_COPY,
    KVX_CUDA_RESTORE_COMPUTE,
    KVX_CUDA_SETUP, /* keys, layouts, zeroing: never behind work of the caller's */
    KVX_CUDA_STREAMS
};

/* Device memory of the engine. */
typedef struct kvx_cuda_block {
    void *dev;
    uint64_t bytes;
    uint64_t handle; /* of cuMemCreate; 0: from cudaMalloc */
} kvx_cuda_block;

/* Chunk i is free for its producer once free_events[i] has happened. */
typedef struct kvx_cuda_ring {
    uint8_t *dev;
    cudaEvent_t free_events[KVX_CUDA_RING_CHUNKS];
    uint32_t next;
} kvx_cuda_ring;

/* How a batch is cut and spread. Constant after create. */
typedef struct kvx_cuda_pace {
    uint64_t chunk_bytes; /* of a ring chunk: the most that a burst may hold */
    uint64_t burst_bytes; /* what bursts aim at */
    uint32_t burst_sms, direct_sms;
    uint64_t link_rate, seal_rate, measure_ns; /* bytes a second, as measured at create; 0: not measured */
} kvx_cuda_pace;

/* Batches of one pipeline that may not have ended, oldest first, and their places in the driver's queues. These are
 * bounded: a call that found them full would wait for the device. */
typedef struct kvx_cuda_flight {
    uint64_t ticket;
    uint32_t ticket_index, n_places;
} kvx_cuda_flight;
typedef struct kvx_cuda_pipeline {
    kvx_cuda_flight *flights; /* max_tickets, used round */
    uint32_t first, n;
    uint64_t n_places; /* of all flights */
} kvx_cuda_pipeline;

/* Host memory that is locked, and wiped when the engine goes. */
typedef struct kvx_cuda_secrets {
    uint64_t prf_key[2];
    kvx_dev_words words;        /* on their way to the device */
    uint8_t key[KVX_KEY_BYTES]; /* likewise */
} kvx_cuda_secrets;

/* Arrays for one batched copy. */
typedef struct kvx_cuda_copier {
    uint32_t batched; /* cudaMemcpyBatchAsync works here */
    void **to, **from;
    size_t *bytes;
} kvx_cuda_copier;

typedef struct kvx_cuda {
    kvx_engine_config config; /* prf_key wiped; it lives in secrets */
    kvx_cuda_secrets *secrets;
    kvx_dev dev; /* what kernels get */
    uint8_t *dev_key;
    kvx_dev_lane *dev_lanes;       /* max_layouts x KVX_LANES_LIMIT */
    kvx_dev_segment *dev_segments; /* max_layouts x KVX_UNITS_LIMIT */
    kvx_dev_layout *host_layouts;  /* KVX_LAYOUTS_LIMIT, with arrays in host_segments; lanes NULL */
    kvx_dev_segment *host_segments;
    uint64_t *results; /* host address of dev.results */
    kvx_cuda_block blocks[KVX_CUDA_BLOCKS];
    uint32_t n_blocks;
    cudaStream_t streams[KVX_CUDA_STREAMS];
    cudaEvent_t mark;       /* recorded and waited for at once, for all joints */
    cudaEvent_t *done;      /* max_tickets */
    uint64_t *done_tickets; /* max_tickets: the ticket of each event's newest record */
    kvx_cuda_ring store_ring, restore_ring;
    kvx_cuda_pace pace;
    kvx_cuda_pipeline pipelines[2]; /* stores and discards; restores */
    kvx_cuda_copier copier;
    kvx_plan *plan;
    uint64_t tenant_refs[KVX_TENANTS_LIMIT]; /* current keys, as set */
    int n_devices;                           /* of the machine */
    uint32_t can_direct;                     /* every chunk of the pool is mapped for the device */
    uint32_t launched;                       /* by the submit that runs: something can no longer be taken back */
    enum kvx_cuda_stream store_tail;         /* stream that holds the newest commit or discard */
    atomic_int lost;
    uint32_t submitting;         /* host synchronisations count now */
    uint32_t n_bursts, n_places; /* of the batch that is being submitted */
    atomic_uint_fast64_t n_launches, n_copies, n_host_syncs;
    atomic_uint_fast64_t n_store_bursts, n_direct_launches, n_restore_bursts;
    uint64_t record_bytes;
} kvx_cuda;

/* The caller's device, capture mode and error, put aside while kvx works. */
typedef struct kvx_cuda_guard {
    int device, wanted;
    enum cudaStreamCaptureMode mode;
} kvx_cuda_guard;
cudaError_t kvx_cuda_enter(kvx_cuda_guard *guard, int device);
void kvx_cuda_leave(const kvx_cuda_guard *guard);

/* Notes a CUDA error under the name of the call that returned it. KVX_NO_MEMORY, KVX_UNSUPPORTED or KVX_INTERNAL. */
kvx_status kvx_cuda_note(const char *call, cudaError_t error);
/* KVX_OK, or KVX_DEVICE_LOST with the note set. Does not wait. */
kvx_status kvx_cuda_health(kvx_cuda *engine);

/* Allocates zeroed device memory, freed with the engine; `exportable`: from cuMemCreate where possible. */
kvx_status kvx_cuda_allocate(kvx_cuda *engine, uint64_t bytes, int exportable, const char *what, void **dev);
/* Zeroes all device memory, without waiting. */
void kvx_cuda_zero_all(kvx_cuda *engine);
void kvx_cuda_free_all(kvx_cuda *engine);
/* Copies between host and device on the setup stream and waits. */
cudaError_t kvx_cuda_upload(kvx_cuda *engine, void *dev, const void *host, uint64_t bytes);
cudaError_t kvx_cuda_download(kvx_cuda *engine, void *host, const void *dev, uint64_t bytes);
/* KVX_OK if [address, address + bytes) lies in memory of this device without a hole, else KVX_INVALID; `what` and
 * `index` name it in the note. Takes a driver call for each allocation that it meets. */
kvx_status kvx_cuda_check_memory(const kvx_cuda *engine, uint64_t address, uint64_t bytes, const char *what,
                                 uint32_t index);
/* The same for each call's small arrays: looks at the ends only; mapped host memory will do. */
kvx_status kvx_cuda_check_ends(const kvx_cuda *engine, uint64_t address, uint64_t bytes, const char *what);

/* Sizes the rings' chunks from the configuration. */
kvx_status kvx_cuda_pace_chunks(kvx_cuda *engine);
/* Chooses bursts and quotas: from the configuration, else by measuring. Before any key or layout is installed; leaves
 * rings and key slots zero. */
kvx_status kvx_cuda_pace_choose(kvx_cuda *engine);

/* Allocates the copier and finds out whether batched copies work. */
kvx_status kvx_cuda_copier_create(kvx_cuda *engine);
void kvx_cuda_copier_destroy(kvx_cuda *engine);
/* Enqueues a burst's copies between the ring chunk and the pool. */
cudaError_t kvx_cuda_copy(kvx_cuda *engine, const kvx_burst *burst, uint8_t *staged, int to_pool, cudaStream_t stream);

/* The one way to wait for the device; counted while a batch is being submitted. */
cudaError_t kvx_cuda_synchronize(kvx_cuda *engine, enum kvx_cuda_stream stream);

/* As in kvx_engine_ops. */
kvx_status kvx_cuda_create(const kvx_engine_config *config, void **engine);
int kvx_cuda_destroy(void *engine);
kvx_status kvx_cuda_submit(void *engine, const kvx_batch *batch);
kvx_status kvx_cuda_identify(int device, kvx_engine_identity *identity);
kvx_status kvx_cuda_key_install(void *engine, uint32_t key_slot, uint32_t generation, uint32_t state,
                                const uint8_t key[KVX_KEY_BYTES]);
kvx_status kvx_cuda_tenant_set(void *engine, uint32_t tenant, const kvx_tenant_keys *keys, int next_only);
kvx_status kvx_cuda_tenant_move(void *engine, uint32_t tenant, uint64_t from);
uint64_t kvx_cuda_tenant_current(void *engine, uint32_t tenant);
kvx_status kvx_cuda_key_erase(void *engine, uint32_t key_slot, uint32_t generation);
kvx_status kvx_cuda_key_census(void *engine, const kvx_key_census *census);
void kvx_cuda_latch(void *engine);
int kvx_cuda_incarnation_is(void *engine, uint64_t incarnation);

/* Places that a launch for n pairs takes. */
uint32_t kvx_cuda_places(uint64_t n_pairs);
/* Begins the plan of a store or restore, then enqueues; discards need no plan. The caller has checked everything. */
void kvx_cuda_begin_plan(kvx_cuda *engine, const kvx_batch *batch);
cudaError_t kvx_cuda_enqueue(kvx_cuda *engine, const kvx_batch *batch);

#endif
