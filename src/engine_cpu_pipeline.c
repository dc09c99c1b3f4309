/* SPDX-License-Identifier: Apache-2.0 */
/* The workers of the CPU engine: each takes batches from its ring in order, waits for what a batch comes after, and
 * runs it. */
#include <stdlib.h>

#include "engine_cpu.h"
#include "status.h"

static int next_job(kvx_cpu_pipeline *pipeline, kvx_cpu_job *job)
{
    int found;
    pthread_mutex_lock(&pipeline->lock);
    while (pipeline->n_ended == pipeline->n_put && !__atomic_load_n(&pipeline->engine->stopping, __ATOMIC_ACQUIRE))
        pthread_cond_wait(&pipeline->changed, &pipeline->lock);
    found = pipeline->n_ended < pipeline->n_put;
    if (found)
        *job = pipeline->ring[pipeline->n_ended % pipeline->ring_size];
    pthread_mutex_unlock(&pipeline->lock);
    return found;
}

/* Nonzero unless the engine stopped before the batch could start. */
static int wait_for_start(kvx_cpu_engine *engine, kvx_cpu_job *job)
{
    const uint32_t n = sizeof job->starts_after / sizeof job->starts_after[0];
    uint32_t i;
    int started = 1;
    for (i = 0; i < n; i++) {
        started = started && kvx_cpu_mark_wait(&job->starts_after[i], &engine->stopping);
        kvx_cpu_mark_drop(&job->starts_after[i]);
    }
    return started;
}

static void run_job(kvx_cpu_engine *engine, const kvx_cpu_job *job)
{
    if (job->op == KVX_OP_STORE)
        kvx_cpu_run_stores(engine, job);
    else if (job->op == KVX_OP_DISCARD)
        kvx_cpu_run_discards(engine, job);
    else
        kvx_cpu_run_restores(engine, job);
}

static void *run_pipeline(void *arg)
{
    kvx_cpu_pipeline *pipeline = arg;
    kvx_cpu_job job;
    while (next_job(pipeline, &job)) {
        if (wait_for_start(pipeline->engine, &job))
            run_job(pipeline->engine, &job);
        pthread_mutex_lock(&pipeline->lock);
        pipeline->n_ended++;
        pthread_mutex_unlock(&pipeline->lock);
        kvx_cpu_timeline_advance(pipeline->timeline, job.first_position + job.n_segment_events + 1);
    }
    return NULL;
}

/* Tickets end for the library with their last result word, a moment before their job leaves the ring: one more place.
 * Empty batches hold no ticket, so the ring can still be full. */
kvx_status kvx_cpu_pipeline_start(kvx_cpu_engine *engine, uint32_t index)
{
    kvx_cpu_pipeline *pipeline = &engine->pipelines[index];
    pipeline->engine = engine;
    pipeline->ring_size = engine->config.max_tickets + 1;
    pipeline->ring = calloc(pipeline->ring_size, sizeof *pipeline->ring);
    pipeline->timeline = kvx_cpu_timeline_create();
    if (!pipeline->ring || !pipeline->timeline)
        goto free_parts;
    if (pthread_mutex_init(&pipeline->lock, NULL))
        goto free_parts;
    if (pthread_cond_init(&pipeline->changed, NULL))
        goto destroy_lock;
    if (pthread_create(&pipeline->thread, NULL, run_pipeline, pipeline))
        goto destroy_cond;
    return KVX_OK;
destroy_cond:
    pthread_cond_destroy(&pipeline->changed);
destroy_lock:
    pthread_mutex_destroy(&pipeline->lock);
free_parts:
    kvx_cpu_timeline_release(pipeline->timeline);
    free(pipeline->ring);
    return kvx_note(KVX_NO_MEMORY, "no memory or no thread for a worker of the CPU engine");
}

void kvx_cpu_pipeline_stop(kvx_cpu_pipeline *pipeline)
{
    pthread_mutex_lock(&pipeline->lock);
    pthread_cond_broadcast(&pipeline->changed);
    pthread_mutex_unlock(&pipeline->lock);
    pthread_join(pipeline->thread, NULL);
    pthread_cond_destroy(&pipeline->changed);
    pthread_mutex_destroy(&pipeline->lock);
    kvx_cpu_timeline_release(pipeline->timeline);
    free(pipeline->ring);
}

int kvx_cpu_pipeline_has_room(kvx_cpu_pipeline *pipeline)
{
    int has_room;
    pthread_mutex_lock(&pipeline->lock);
    has_room = pipeline->n_put - pipeline->n_ended < pipeline->ring_size;
    pthread_mutex_unlock(&pipeline->lock);
    return has_room;
}

void kvx_cpu_pipeline_put(kvx_cpu_pipeline *pipeline, const kvx_cpu_job *job)
{
    pthread_mutex_lock(&pipeline->lock);
    pipeline->ring[pipeline->n_put++ % pipeline->ring_size] = *job;
    pthread_cond_signal(&pipeline->changed);
    pthread_mutex_unlock(&pipeline->lock);
}

void kvx_cpu_pipeline_idle(kvx_cpu_pipeline *pipeline)
{
    kvx_cpu_mark last = kvx_cpu_mark_at(pipeline->timeline, pipeline->last_position);
    (void)kvx_cpu_mark_wait(&last, NULL);
    kvx_cpu_mark_drop(&last);
}
