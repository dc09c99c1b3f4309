/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_BENCH_LATENCY_H
#define KVX_BENCH_LATENCY_H
/* The bare copy that the sub-bench `latency` stands beside: one cudaMemcpyBatchAsync and an event to poll. */
#include "bench.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct latency_copy latency_copy;

typedef struct latency_ranges {
    uint8_t **dev, **host; /* n ranges of n_bytes each */
    uint32_t n;
    uint64_t n_bytes;
    bool out; /* from device to host */
} latency_ranges;

/* Keeps its own lists; the arrays of `ranges` may go. */
bool latency_copy_open(const latency_ranges *ranges, latency_copy **made);
void latency_copy_close(latency_copy *c);

/* The call alone: the batched copy and the record of the event. */
bool latency_copy_call(latency_copy *c);
/* One look: has it ended? */
bool latency_copy_poll(latency_copy *c, bool *ended);

#ifdef __cplusplus
}
#endif
#endif
