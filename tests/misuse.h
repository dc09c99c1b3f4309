/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_TESTS_MISUSE_H
#define KVX_TESTS_MISUSE_H
/*
 * A bench to misuse the library on: everything a call may name, right and wrong. Each misuse is printed with its
 * answer; closing the bench makes a round trip, which shows that context and device are as good as before.
 */
#include "support.h"

#define N_BLOCKS 8
#define N_SEGMENTS 2

/* Poison for outputs. */
#define POISON ((void *)(uintptr_t)0x5a5a5a5a5a5a5a58u)
#define POISON_TICKET 0x5a5a5a5a5a5a5a5au

/* Class 0 is kept by the pool, 1 by the caller, 2 is too small for the layout, 3 has too few units. */
typedef struct bench {
    const device *dev;
    kvx_pool *pool;
    kvx_ctx *ctx, *other_ctx;
    tensors t;
    kvx_layout *layout, *other_layout;
    kvx_slot slots[N_BLOCKS];
    kvx_pair pairs[N_BLOCKS];
    kvx_ticket ticket; /* must stay poison */
} bench;

void bench_open(bench *b, const device *dev);
void bench_close(bench *b);

/* Prints the misuse and checks status and note. */
void refused(const char *what, kvx_status got, kvx_status wanted);

#endif
