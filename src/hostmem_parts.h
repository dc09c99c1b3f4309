/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_SRC_HOSTMEM_PARTS_H
#define KVX_SRC_HOSTMEM_PARTS_H
/*
 * Between the files of hostmem. Each library has a file of its own here: libnuma is called in hostmem_numa.c only, CUDA
 * in hostmem_cuda.c only.
 */
#include <pthread.h>

#include "hostmem.h"
#include "status.h"

/* -------------------------------------------------------------------------------------------- hostmem_limits.c */

/* The first number in a file of the system; `otherwise` where there is none. */
uint64_t kvx_hostmem_read_number(const char *path, uint64_t otherwise);
/* What RLIMIT_MEMLOCK has to do with a refusal to pin `bytes` more after `pinned` bytes. */
const char *kvx_hostmem_pin_hint(uint64_t pinned, uint64_t bytes);

/* ----------------------------------------------------------------------------------------------- hostmem_map.c */

/* How one chunk is mapped. */
typedef struct kvx_hostmem_mapping {
    uint8_t *host;
    uint64_t bytes; /* held: rounded up to pages */
    kvx_page_kind pages;
} kvx_hostmem_mapping;

/* Bytes of a page of this kind. */
uint64_t kvx_hostmem_page_bytes(kvx_page_kind pages);
/* Maps chunk->bytes without touching them, on pages of this kind or, where they are short, a smaller one. */
kvx_status kvx_hostmem_map(const kvx_hostmem_chunk *chunk, int file, kvx_page_kind pages, kvx_hostmem_mapping *mapping);
/* Makes the pages present, zeroed where they are new. */
kvx_status kvx_hostmem_touch(uint8_t *memory, uint64_t bytes);
/* Gives the pages back and keeps the addresses. */
void kvx_hostmem_drop(const kvx_hostmem_chunk *chunk, int file);
void kvx_hostmem_unmap(const kvx_hostmem_mapping *mapping);
/* Bytes in [from, from + bytes) of each chunk that lie on huge pages, as the kernel says. */
uint64_t kvx_hostmem_huge_bytes(const kvx_hostmem_chunk *chunks, uint32_t n);

/* ---------------------------------------------------------------------------------------------- hostmem_numa.c */

/* The node to bind to, -1 for none. Only a node that was asked for by number can be wrong. */
kvx_status kvx_hostmem_choose_node(int asked, int gpu_node, int *node);
/* Pages go to the node while it has any, then elsewhere. */
void kvx_hostmem_bind(uint8_t *memory, uint64_t bytes, int node);
/* Moves the calling thread to the node's processors. */
void kvx_hostmem_run_on(int node);
/* Processors of the node, or of the machine. */
uint32_t kvx_hostmem_n_cpus(int node);
/* Estimates, from at most 4096 samples, how many of the chunk's bytes lie on other nodes. */
uint64_t kvx_hostmem_off_node(const kvx_hostmem_chunk *chunk, int node);

/* ---------------------------------------------------------------------------------------------- hostmem_cuda.c */

typedef struct kvx_hostmem_driver kvx_hostmem_driver;

/* Node of the current device as sysfs says; -1 if unknown. */
int kvx_hostmem_gpu_node(void);
/* Entry points and the current CUDA context, which all threads of the pool will use. */
kvx_status kvx_hostmem_driver_open(kvx_hostmem_driver **driver);
void kvx_hostmem_driver_close(kvx_hostmem_driver *driver);
/* Around a thread's calls: the pool's context is current, and a capture elsewhere is not disturbed. */
void kvx_hostmem_driver_enter(kvx_hostmem_driver *driver, int *capture_mode);
void kvx_hostmem_driver_leave(kvx_hostmem_driver *driver, int capture_mode);
/* These return the driver's error, 0 for success, and leave no error behind for the caller to find. */
int kvx_hostmem_driver_register(kvx_hostmem_driver *driver, void *host, uint64_t bytes, uint8_t **dev);
int kvx_hostmem_driver_unregister(kvx_hostmem_driver *driver, void *host);
int kvx_hostmem_driver_allocate(kvx_hostmem_driver *driver, uint64_t bytes, uint8_t **host, uint8_t **dev);
int kvx_hostmem_driver_free(kvx_hostmem_driver *driver, void *host);
/* Does the GPU see what the host wrote, and the host what the GPU wrote? Uses 12 bytes and zeroes them again. The
 * result is KVX_HOSTMEM_NOT_SEEN if all calls went well and the bytes did not arrive. */
#define KVX_HOSTMEM_NOT_SEEN (-1)
int kvx_hostmem_driver_probe(kvx_hostmem_driver *driver, uint8_t *host, uint8_t *dev);
const char *kvx_hostmem_driver_error(kvx_hostmem_driver *driver, int error);

/* -------------------------------------------------------------------------------------- hostmem.c, hostmem_fill.c */

#define KVX_HOSTMEM_THREADS_MAX 64u
#define KVX_HOSTMEM_NOTE_BYTES 320

enum kvx_hostmem_phase { KVX_CHUNK_RESERVED, KVX_CHUNK_TOUCHED, KVX_CHUNK_PINNING, KVX_CHUNK_ONLINE };

typedef struct kvx_hostmem_part {
    kvx_hostmem_mapping mapping; /* host NULL: memory of the driver */
    uint64_t untouched;          /* bytes */
    enum kvx_hostmem_phase phase;
    uint32_t registered;
} kvx_hostmem_part;

struct kvx_hostmem {
    kvx_hostmem_config config;
    kvx_hostmem_driver *driver; /* NULL: nothing is to be pinned */
    kvx_hostmem_chunk *chunks;
    kvx_hostmem_part *parts;
    uint32_t n_chunks, n_threads, n_pins_max;
    uint32_t n_used; /* threads that filled, the caller's if there was no other */
    int gpu_node, node;
    uint64_t start_ns;
    pthread_t threads[KVX_HOSTMEM_THREADS_MAX];

    pthread_mutex_t lock; /* guards the rest, and `parts`; never held over a CUDA call, a touch or a callback */
    pthread_cond_t changed;
    uint32_t touch_chunk; /* cursor of the touch */
    uint64_t touch_offset;
    uint32_t next_pin, n_pinning, n_online, n_workers;
    uint32_t n_quiesced, stop;
    uint32_t from_driver;           /* registering was refused: the driver allocates */
    uint32_t pageable;              /* nothing can be pinned, and the caller allows it */
    uint32_t reporting, unreported; /* a thread is in the callback; there is news for it */
    kvx_status failure;
    char note[KVX_HOSTMEM_NOTE_BYTES];
    uint64_t online_bytes, pinned_bytes;
    uint64_t first_ns, touched_ns, pin_ns, ready_ns; /* since start; pin_ns is the sum over all threads */
};

uint64_t kvx_hostmem_now(void);
/* hostmem_fill.c. Starts the threads, or fills on the calling thread if none is needed or can be had. */
void kvx_hostmem_fill_start(kvx_hostmem *memory);
/* Ends the threads. */
void kvx_hostmem_fill_stop(kvx_hostmem *memory);
/* With the lock held: waits for a change until the deadline (UINT64_MAX: none). Zero when the time is up. */
int kvx_hostmem_wait_change(kvx_hostmem *memory, uint64_t deadline_ns);
/* hostmem_pin.c. Pins the chunk as far as it goes, on a thread that entered the driver; 0 or why it failed. */
kvx_status kvx_hostmem_pin(kvx_hostmem *memory, uint32_t chunk);
/* Undoes whatever was done to the chunk. */
void kvx_hostmem_take_down(kvx_hostmem *memory, uint32_t chunk);
/* Starts a thread that takes no signals. Zero if it cannot be had. */
int kvx_hostmem_thread(pthread_t *thread, void *(*run)(void *), void *argument);

#endif
