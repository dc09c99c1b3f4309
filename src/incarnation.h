/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_SRC_INCARNATION_H
#define KVX_SRC_INCARNATION_H
/*
 * Is this still the process that made the context? A forked child is told by a page that the kernel empties in
 * children. A process that was checkpointed and restored, or came to life again with its machine, is told by what the
 * kernel says about it: boot id, process id, start time. That is best effort: a copy of a whole machine that goes on at
 * the same moment cannot be told from inside.
 */
#include <stdatomic.h>
#include <sys/types.h>

#include "kvx.h"

typedef struct kvx_incarnation {
    const uint32_t *sentinel; /* nonzero in the process that made it */
    uint64_t number;          /* random, also on the engine's side */
    uint64_t start_ticks;     /* of the process since boot */
    char boot_id[40];
    int known; /* the kernel's answers were to be had */
    pid_t pid;
    atomic_uint_fast64_t looked_ns; /* real time of the last look at the kernel's answers */
} kvx_incarnation;

kvx_status kvx_incarnation_begin(kvx_incarnation *incarnation);
void kvx_incarnation_end(kvx_incarnation *incarnation);
/* Nonzero in the process itself; 0 in a forked child. Reads a word and asks for the process id. */
int kvx_incarnation_is_here(const kvx_incarnation *incarnation);
/* Nonzero unless the kernel's answers have changed. Asks at most ten times a second, and always after a pause: a copy
 * comes to life after one. */
int kvx_incarnation_is_original(kvx_incarnation *incarnation);

#endif
