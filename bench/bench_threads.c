/* SPDX-License-Identifier: Apache-2.0 */
/* Threads behind a gate, which opens once all of them are made. The clock runs from the first to pass it to the last to
 * end. */
#include "bench_threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"

typedef struct gate {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    enum { GATE_CLOSED, GATE_OPEN, GATE_CALLED_OFF } state;
} gate;

typedef struct part {
    pthread_t thread;
    gate *gate;
    bench_task *task;
    void *context;
    uint32_t index, n;
    double began, ended;
    bool good;
} part;

static bool gate_pass(gate *g)
{
    bool open;
    pthread_mutex_lock(&g->mutex);
    while (g->state == GATE_CLOSED)
        pthread_cond_wait(&g->changed, &g->mutex);
    open = g->state == GATE_OPEN;
    pthread_mutex_unlock(&g->mutex);
    return open;
}

static void gate_set(gate *g, bool open)
{
    pthread_mutex_lock(&g->mutex);
    g->state = open ? GATE_OPEN : GATE_CALLED_OFF;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->mutex);
}

static void *run_part(void *argument)
{
    part *p = argument;
    if (!gate_pass(p->gate))
        return NULL;
    p->began = bench_now();
    p->good = p->task(p->context, p->index, p->n);
    p->ended = bench_now();
    return NULL;
}

static bool run_parts(part *parts, uint32_t n, gate *g)
{
    uint32_t i, n_made;
    for (n_made = 0; n_made < n; n_made++)
        if (pthread_create(&parts[n_made].thread, NULL, run_part, &parts[n_made]) != 0)
            break;
    gate_set(g, n_made == n);
    for (i = 0; i < n_made; i++)
        pthread_join(parts[i].thread, NULL);
    if (n_made < n)
        fprintf(stderr, "of %u threads only %u could be made\n", n, n_made);
    return n_made == n;
}

static bool summarise(const part *parts, uint32_t n, double *seconds)
{
    double began = parts[0].began, ended = parts[0].ended;
    bool good = true;
    uint32_t i;
    for (i = 0; i < n; i++) {
        began = parts[i].began < began ? parts[i].began : began;
        ended = parts[i].ended > ended ? parts[i].ended : ended;
        good = good && parts[i].good;
    }
    *seconds = ended - began;
    return good;
}

bool bench_threads_run(uint32_t n, bench_task *task, void *context, double *seconds)
{
    gate g = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, GATE_CLOSED};
    part parts[BENCH_THREADS_MAX];
    uint32_t i;
    if (n == 0 || n > BENCH_THREADS_MAX)
        return false;
    memset(parts, 0, sizeof(parts));
    for (i = 0; i < n; i++) {
        parts[i].gate = &g;
        parts[i].task = task;
        parts[i].context = context;
        parts[i].index = i;
        parts[i].n = n;
    }
    return run_parts(parts, n, &g) && summarise(parts, n, seconds);
}

uint32_t bench_threads_available(void)
{
    cpu_set_t set;
    int n = 1;
    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        n = CPU_COUNT(&set);
    if (n < 1)
        return 1;
    return n < (int)BENCH_THREADS_MAX ? (uint32_t)n : BENCH_THREADS_MAX;
}

uint32_t bench_threads_list(bool all, uint32_t counts[16])
{
    uint32_t most = bench_threads_available(), n = 0, i;
    counts[n++] = 1;
    for (i = 2; all && i < most; i *= 2)
        counts[n++] = i;
    if (most > 1)
        counts[n++] = most;
    return n;
}
