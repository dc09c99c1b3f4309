/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_TESTS_POOL_FAKE_H
#define KVX_TESTS_POOL_FAKE_H
/*
 * A driver and a system that refuse what a test wants refused. The linker puts them between hostmem and CUDA, libc and
 * the kernel, so that pinned pools are tested on machines without a GPU. Everything acquired is counted, and that no
 * thread holds a lock while it calls the driver or touches memory.
 */
#include "cmocka_door.h"

#include <stdatomic.h>

#include "kvx_pool.h"

#define NEVER UINT32_MAX

typedef struct pool_fake {
    /* What to do; reset by fake_reset(). `*_from`: the call with this number (from 0) and all later ones fail. */
    int gpu, gpu_node, probe_fails, open_fails;
    ptrdiff_t dev_offset; /* of device addresses */
    uint32_t register_fails_from, register_fails_to, allocate_fails_from;
    int register_error;
    uint32_t touch_fails_at, map_fails_from, thread_fails_from;
    int touch_errno;
    int touch_unknown;                                                 /* the kernel does not know the advice */
    unsigned huge_2m, huge_1g;                                         /* free pages, as sysfs says */
    int huge_maps;                                                     /* mmap gives such pages (small ones in truth) */
    const char *cgroup, *limit, *usage, *stat, *meminfo, *transparent; /* contents of files; NULL: the real ones */
    /* A gate: registrations beyond the first wait while it is shut, unless there is a permit. */
    atomic_int gate_shut, permits;
    /* What was seen. */
    atomic_uint n_registering, n_registered, n_allocated, n_touches, n_maps, n_threads;
    atomic_int registered_now, allocated_now, drivers_open, threads_inside, locked_calls, waiting;
    atomic_llong mapped_bytes;
    atomic_uint huge_2m_maps, huge_1g_maps, allocations; /* malloc, calloc, mmap and the like while counting */
    atomic_int counting;
    atomic_ullong largest;
    atomic_llong register_ns; /* how long each takes */
} pool_fake;

extern pool_fake fake;

void fake_reset(void);
/* Nothing is registered, allocated, mapped or open. */
void fake_expect_nothing_left(void);

#endif
