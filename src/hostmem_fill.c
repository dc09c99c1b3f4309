/* SPDX-License-Identifier: Apache-2.0 */
/* The fill of a pool: threads on the GPU's node touch pieces of memory in order; as soon as a chunk is touched one of
 * them pins it and tells the pool. The first chunk goes alone, because it decides how the others are pinned; in the
 * background they go one by one, with pauses, because other CUDA calls of the node wait meanwhile. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>

#include "hostmem_parts.h"

#define PIECE_BYTES (64ull << 20)
#define DEFAULT_THREADS_MAX 16u
#define PINS_AT_ONCE 4u
#define PAUSE_SHARE 8u /* in the background: an eighth of the time that pinning took */
#define SECOND_NS 1000000000ull

enum job_kind { JOB_TOUCH, JOB_PIN };

typedef struct job {
    enum job_kind kind;
    uint32_t chunk;
    uint64_t offset, bytes;
} job;

uint64_t kvx_hostmem_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
}

static struct timespec timespec_of(uint64_t ns)
{
    struct timespec time = {(time_t)(ns / SECOND_NS), (long)(ns % SECOND_NS)};
    return time;
}

int kvx_hostmem_wait_change(kvx_hostmem *memory, uint64_t deadline_ns)
{
    struct timespec deadline = timespec_of(deadline_ns);
    if (deadline_ns == UINT64_MAX)
        return pthread_cond_wait(&memory->changed, &memory->lock) == 0;
    return pthread_cond_timedwait(&memory->changed, &memory->lock, &deadline) != ETIMEDOUT;
}

int kvx_hostmem_thread(pthread_t *thread, void *(*run)(void *), void *argument)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the caller's handlers are for the caller's threads */
    int failed = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return !failed;
}

/* ------------------------------------------------------------------------------------- what to do next; locked */

static int next_pin(kvx_hostmem *memory, job *next)
{
    uint32_t chunk = memory->next_pin;
    if (chunk == memory->n_chunks || memory->parts[chunk].phase != KVX_CHUNK_TOUCHED)
        return 0;
    if (memory->n_quiesced > 0 || memory->n_pinning >= memory->n_pins_max)
        return 0;
    if (chunk > 0 && memory->parts[0].phase != KVX_CHUNK_ONLINE)
        return 0;
    memory->parts[chunk].phase = KVX_CHUNK_PINNING;
    memory->next_pin++;
    memory->n_pinning++;
    *next = (job){JOB_PIN, chunk, 0, 0};
    return 1;
}

static int next_touch(kvx_hostmem *memory, job *next)
{
    uint32_t chunk = memory->touch_chunk;
    if (chunk == memory->n_chunks)
        return 0;
    uint64_t page = kvx_hostmem_page_bytes(memory->parts[chunk].mapping.pages);
    uint64_t left = memory->chunks[chunk].bytes - memory->touch_offset;
    uint64_t piece = page > PIECE_BYTES ? page : PIECE_BYTES;
    *next = (job){JOB_TOUCH, chunk, memory->touch_offset, left < piece ? left : piece};
    memory->touch_offset += next->bytes;
    if (next->bytes == left) {
        memory->touch_chunk++;
        memory->touch_offset = 0;
    }
    return 1;
}

/* Zero: nothing will be left to do. */
static int next_job(kvx_hostmem *memory, job *next)
{
    while (!memory->stop && memory->failure == KVX_OK && memory->n_online < memory->n_chunks) {
        if (next_pin(memory, next) || next_touch(memory, next))
            return 1;
        (void)kvx_hostmem_wait_change(memory, UINT64_MAX);
    }
    return 0;
}

/* --------------------------------------------------------------------------------------------------- progress */

static void note_failure(kvx_hostmem *memory, kvx_status status)
{
    if (memory->failure != KVX_OK)
        return;
    memory->failure = status;
    snprintf(memory->note, sizeof(memory->note), "%s", kvx_last_error());
}

static kvx_pool_progress progress_of(const kvx_hostmem *memory)
{
    kvx_pool_progress progress = {memory->online_bytes, 0, kvx_hostmem_now() - memory->start_ns, KVX_PENDING};
    for (uint32_t i = 0; i < memory->n_chunks; i++)
        progress.bytes_total += memory->chunks[i].bytes;
    if (memory->failure != KVX_OK)
        progress.fill = memory->failure;
    else if (memory->n_online == memory->n_chunks)
        progress.fill = KVX_OK;
    return progress;
}

/* Locked; unlocks for the callback. One thread at a time is in it and picks up what the others have done meanwhile. */
static void report(kvx_hostmem *memory)
{
    memory->unreported = memory->config.progress != NULL;
    if (memory->reporting)
        return;
    memory->reporting = 1;
    while (memory->unreported) {
        kvx_pool_progress progress = progress_of(memory);
        memory->unreported = 0;
        pthread_mutex_unlock(&memory->lock);
        memory->config.progress(memory->config.progress_argument, &progress);
        pthread_mutex_lock(&memory->lock);
    }
    memory->reporting = 0;
}

/* ------------------------------------------------------------------------------------------------------- jobs */

static void touch(kvx_hostmem *memory, const job *todo)
{
    kvx_hostmem_part *part = &memory->parts[todo->chunk];
    int needed = !memory->from_driver;
    pthread_mutex_unlock(&memory->lock);
    kvx_status status =
        needed ? kvx_hostmem_touch(memory->chunks[todo->chunk].host + todo->offset, todo->bytes) : KVX_OK;
    pthread_mutex_lock(&memory->lock);
    if (status != KVX_OK)
        note_failure(memory, status);
    part->untouched -= todo->bytes;
    if (part->untouched == 0) {
        part->phase = KVX_CHUNK_TOUCHED;
        memory->touched_ns = kvx_hostmem_now() - memory->start_ns;
    }
    pthread_cond_broadcast(&memory->changed);
    if (status != KVX_OK)
        report(memory);
}

static void pause_between(const kvx_hostmem *memory, uint32_t chunk, uint64_t spent_ns)
{
    struct timespec pause = timespec_of(spent_ns / PAUSE_SHARE);
    if (memory->config.background && memory->driver && chunk > 0 && chunk + 1 < memory->n_chunks)
        nanosleep(&pause, NULL);
}

static void pin(kvx_hostmem *memory, const job *todo)
{
    uint64_t begin = kvx_hostmem_now();
    pthread_mutex_unlock(&memory->lock);
    kvx_status status = kvx_hostmem_pin(memory, todo->chunk);
    uint64_t spent = kvx_hostmem_now() - begin;
    if (status == KVX_OK)
        memory->config.online(memory->config.owner, todo->chunk);
    pause_between(memory, todo->chunk, spent);
    pthread_mutex_lock(&memory->lock);
    memory->n_pinning--;
    memory->pin_ns += spent;
    if (status == KVX_OK) {
        memory->parts[todo->chunk].phase = KVX_CHUNK_ONLINE;
        memory->online_bytes += memory->chunks[todo->chunk].bytes;
        memory->ready_ns = kvx_hostmem_now() - memory->start_ns;
        if (memory->n_online++ == 0)
            memory->first_ns = memory->ready_ns;
    } else {
        note_failure(memory, status);
    }
    pthread_cond_broadcast(&memory->changed);
    report(memory);
}

/* What will not come is given back to the system; its addresses stay. */
static void drop_the_rest(kvx_hostmem *memory)
{
    for (uint32_t i = 0; i < memory->n_chunks; i++)
        if (memory->parts[i].phase != KVX_CHUNK_ONLINE && memory->parts[i].mapping.host)
            kvx_hostmem_drop(&memory->chunks[i], memory->config.file);
}

static void work(kvx_hostmem *memory)
{
    job next;
    int capture_mode = 0;
    if (memory->driver)
        kvx_hostmem_driver_enter(memory->driver, &capture_mode);
    pthread_mutex_lock(&memory->lock);
    while (next_job(memory, &next))
        (next.kind == JOB_TOUCH ? touch : pin)(memory, &next);
    int last = --memory->n_workers == 0 && memory->failure != KVX_OK;
    pthread_mutex_unlock(&memory->lock);
    if (memory->driver)
        kvx_hostmem_driver_leave(memory->driver, capture_mode);
    if (last)
        drop_the_rest(memory);
}

static void *work_on_node(void *argument)
{
    kvx_hostmem *memory = argument;
    kvx_hostmem_run_on(memory->node);
    work(memory);
    return NULL;
}

/* ----------------------------------------------------------------------------------------------- start and stop */

/* By default no more than there are pieces: small pools are filled by the calling thread. */
static uint32_t count_threads(const kvx_hostmem *memory)
{
    uint64_t pieces = 1;
    if (memory->config.n_threads > 0)
        return memory->config.n_threads;
    for (uint32_t i = 0; i < memory->n_chunks; i++)
        pieces += memory->chunks[i].bytes / PIECE_BYTES;
    uint32_t n = kvx_hostmem_n_cpus(memory->node);
    n = n > DEFAULT_THREADS_MAX ? DEFAULT_THREADS_MAX : n;
    return n < pieces ? n : (uint32_t)pieces;
}

void kvx_hostmem_fill_start(kvx_hostmem *memory)
{
    uint32_t wanted = count_threads(memory);
    memory->n_pins_max = !memory->driver ? KVX_HOSTMEM_THREADS_MAX : memory->config.background ? 1 : PINS_AT_ONCE;
    if (wanted == 1 && !memory->config.background)
        wanted = 0; /* not worth a thread */
    pthread_mutex_lock(&memory->lock);
    while (memory->n_threads < wanted &&
           kvx_hostmem_thread(&memory->threads[memory->n_threads], work_on_node, memory)) {
        memory->n_threads++;
        memory->n_workers++;
    }
    int alone = memory->n_threads == 0;
    memory->n_workers += (uint32_t)alone;
    memory->n_used = memory->n_workers;
    pthread_mutex_unlock(&memory->lock);
    if (alone)
        work(memory);
}

void kvx_hostmem_fill_stop(kvx_hostmem *memory)
{
    pthread_mutex_lock(&memory->lock);
    memory->stop = 1;
    pthread_cond_broadcast(&memory->changed);
    pthread_mutex_unlock(&memory->lock);
    for (uint32_t i = 0; i < memory->n_threads; i++)
        pthread_join(memory->threads[i], NULL);
    memory->n_threads = 0;
}
