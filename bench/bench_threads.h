/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_BENCH_THREADS_H
#define KVX_BENCH_THREADS_H
/* Work that several CPU threads do at once, timed from their common start to the end of the last. */
#include <stdbool.h>
#include <stdint.h>

#define BENCH_THREADS_MAX 256u

/* One thread's part. False: it could not be done. */
typedef bool bench_task(void *context, uint32_t thread, uint32_t n_threads);

/* Runs task(context, i, n) for i < n on a thread each. False if a thread could not be made or a part failed. */
bool bench_threads_run(uint32_t n, bench_task *task, void *context, double *seconds);

/* How many threads can run at once; at most BENCH_THREADS_MAX. */
uint32_t bench_threads_available(void);

/* 1 and what is available, with the powers of two between them where `all`. Returns how many. */
uint32_t bench_threads_list(bool all, uint32_t counts[16]);

#endif
