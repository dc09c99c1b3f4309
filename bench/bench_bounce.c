/* SPDX-License-Identifier: Apache-2.0 */
/* Bounce memory. A lane of the GPU's part is one chunk: a stream and an event of its own. */
#include "bench_bounce.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bounce {
    bench *b;
    uint64_t chunk_bytes;
    uint8_t *memory;
#if KVX_WITH_CUDA
    bounce_lanes *lanes; /* NULL on the CPU engine */
#endif
};

static bool open_on_cpu(uint64_t n_bytes, bounce *x)
{
    x->memory = aligned_alloc(4096, n_bytes);
    if (!x->memory)
        return false;
    memset(x->memory, 0, n_bytes);
    return true;
}

bool bounce_open(bench *b, uint32_t n_threads, uint64_t chunk_bytes, bounce **made)
{
    bounce *x = calloc(1, sizeof(*x));
    bool done = x != NULL;
    if (done) {
        x->b = b;
        x->chunk_bytes = chunk_bytes;
#if KVX_WITH_CUDA
        if (!bench_on_cpu(b))
            done = bounce_cuda_open(b->dev.ordinal, n_threads * BOUNCE_CHUNKS, n_threads * BOUNCE_CHUNKS * chunk_bytes,
                                    &x->lanes, &x->memory);
        else
#endif
            done = open_on_cpu(n_threads * BOUNCE_CHUNKS * chunk_bytes, x);
    }
    if (!done) {
        fputs("no memory to bounce through\n", stderr);
        free(x);
        return false;
    }
    *made = x;
    return true;
}

void bounce_close(bounce *x)
{
    if (!x)
        return;
#if KVX_WITH_CUDA
    if (x->lanes)
        bounce_cuda_close(x->lanes, x->memory);
    else
#endif
        free(x->memory);
    free(x);
}

uint8_t *bounce_chunk(bounce *x, uint32_t thread, uint32_t chunk)
{
    return x->memory + (thread * (uint64_t)BOUNCE_CHUNKS + chunk) * x->chunk_bytes;
}

bool bounce_copy(bounce *x, uint32_t thread, uint32_t chunk, uint8_t *dev, bool out)
{
    uint8_t *here = bounce_chunk(x, thread, chunk);
#if KVX_WITH_CUDA
    if (x->lanes)
        return bounce_cuda_copy(x->lanes, thread * BOUNCE_CHUNKS + chunk, out ? here : dev, out ? dev : here,
                                x->chunk_bytes);
#endif
    memcpy(out ? here : dev, out ? dev : here, x->chunk_bytes);
    return true;
}

bool bounce_wait(bounce *x, uint32_t thread, uint32_t chunk)
{
#if KVX_WITH_CUDA
    if (x->lanes)
        return bounce_cuda_wait(x->lanes, thread * BOUNCE_CHUNKS + chunk);
#endif
    (void)x;
    (void)thread;
    (void)chunk;
    return true;
}
