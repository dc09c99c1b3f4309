/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_BENCH_WORKLOAD_H
#define KVX_BENCH_WORKLOAD_H
/* Work of an engine on the GPU that offload may disturb. It runs on a stream of the highest priority. */
#include "bench.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum workload_kind {
    WORKLOAD_PERSISTENT, /* GEMM 8192 x 8192 x 8192, one CTA to a multiprocessor for the whole of it */
    WORKLOAD_WAVES,      /* the same, one CTA a tile */
    WORKLOAD_PREFILL,    /* GEMM 5120 x 2048 x 5120, persistent: a chunk of a prefill */
    WORKLOAD_DECODE,     /* 64 kernels that read 64 MiB each, in a CUDA graph: a step of decoding */
    WORKLOAD_TOKENS,     /* the same, each step followed by a copy of 2 KiB to the host, as of sampled tokens */
    WORKLOAD_KINDS
} workload_kind;

extern const char *const workload_names[WORKLOAD_KINDS];

typedef struct workload workload;

bool workload_open(bench *b, workload_kind kind, workload **made);
void workload_close(workload *w);

#define WORKLOAD_STEPS_MAX 1000u

static inline bool workload_is_decode(workload_kind kind)
{
    return kind == WORKLOAD_DECODE || kind == WORKLOAD_TOKENS;
}

/* What to do besides while steps run; called again and again, must not wait. */
typedef struct workload_meanwhile {
    bool (*step)(void *context);
    void *context;
} workload_meanwhile;

/* Steps one after the other, a few of them queued ahead; complete on return. `step_us` (may be NULL) gets the time of
 * each, `seconds` that of all, by the GPU's clock. `meanwhile` may be NULL. */
bool workload_run(workload *w, uint32_t n_steps, const workload_meanwhile *meanwhile, bench_samples *step_us,
                  double *seconds);

/* Seconds without a step that ended, after which the last run gave up what it did meanwhile and let the steps run out
 * alone; 0 if it did not. WORKLOAD_TOKENS only: other workloads that are kept from the GPU end the run. */
double workload_starved(const workload *w);

/* Compares what the last step computed with what the first step ever computed, which a few elements of a product by the
 * CPU vouch for; a difference is a failed check. */
bool workload_check(workload *w, const char *beside);

/* What a step amounts to: floating-point operations, or bytes read. */
double workload_amount(const workload *w, bool *is_bytes);

#ifdef __cplusplus
}
#endif
#endif
