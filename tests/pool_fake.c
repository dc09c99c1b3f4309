/* SPDX-License-Identifier: Apache-2.0 */
/* The wrapped functions: hostmem's door to CUDA, mmap and madvise, files of the system, threads and locks. */
#include "pool_fake.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <time.h>

#include "hostmem_parts.h"

#define POPULATE_WRITE 23
#define FAKE_DRIVER ((kvx_hostmem_driver *)(void *)&fake)

pool_fake fake;
static _Thread_local int locks_held;

void fake_reset(void)
{
    memset(&fake, 0, sizeof fake);
    fake.gpu = 1;
    fake.gpu_node = -1;
    fake.register_fails_from = fake.register_fails_to = fake.allocate_fails_from = NEVER;
    fake.touch_fails_at = fake.map_fails_from = fake.thread_fails_from = NEVER;
    fake.register_error = 801;
    fake.touch_errno = ENOMEM;
}

void fake_expect_nothing_left(void)
{
    assert_int_equal(atomic_load(&fake.registered_now), 0);
    assert_int_equal(atomic_load(&fake.allocated_now), 0);
    assert_int_equal(atomic_load(&fake.mapped_bytes), 0);
    assert_int_equal(atomic_load(&fake.drivers_open), 0);
    assert_int_equal(atomic_load(&fake.threads_inside), 0);
    assert_int_equal(atomic_load(&fake.locked_calls), 0);
}

static void note_call(void)
{
    if (locks_held > 0)
        atomic_fetch_add(&fake.locked_calls, 1);
}

/* ------------------------------------------------------------------------------------------------------- driver */

int __wrap_kvx_hostmem_gpu_usable(const char **why);
int __wrap_kvx_hostmem_gpu_usable(const char **why)
{
    *why = "the fake has no GPU";
    return fake.gpu;
}

int __wrap_kvx_hostmem_gpu_node(void);
int __wrap_kvx_hostmem_gpu_node(void)
{
    return fake.gpu_node;
}

kvx_status __wrap_kvx_hostmem_driver_open(kvx_hostmem_driver **driver);
kvx_status __wrap_kvx_hostmem_driver_open(kvx_hostmem_driver **driver)
{
    note_call();
    if (fake.open_fails)
        return kvx_note(KVX_UNSUPPORTED, "no context");
    atomic_fetch_add(&fake.drivers_open, 1);
    *driver = FAKE_DRIVER;
    return KVX_OK;
}

void __wrap_kvx_hostmem_driver_close(kvx_hostmem_driver *driver);
void __wrap_kvx_hostmem_driver_close(kvx_hostmem_driver *driver)
{
    (void)driver;
    atomic_fetch_sub(&fake.drivers_open, 1);
}

void __wrap_kvx_hostmem_driver_enter(kvx_hostmem_driver *driver, int *capture_mode);
void __wrap_kvx_hostmem_driver_enter(kvx_hostmem_driver *driver, int *capture_mode)
{
    (void)driver;
    *capture_mode = 2;
    atomic_fetch_add(&fake.threads_inside, 1);
}

void __wrap_kvx_hostmem_driver_leave(kvx_hostmem_driver *driver, int capture_mode);
void __wrap_kvx_hostmem_driver_leave(kvx_hostmem_driver *driver, int capture_mode)
{
    (void)driver;
    if (capture_mode == 2)
        atomic_fetch_sub(&fake.threads_inside, 1);
}

static void sleep_ns(long long ns)
{
    struct timespec time = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    nanosleep(&time, NULL);
}

static int use_permit(void)
{
    int n = atomic_load(&fake.permits);
    return n > 0 && atomic_compare_exchange_strong(&fake.permits, &n, n - 1);
}

int __wrap_kvx_hostmem_driver_register(kvx_hostmem_driver *driver, void *host, uint64_t bytes, uint8_t **dev);
int __wrap_kvx_hostmem_driver_register(kvx_hostmem_driver *driver, void *host, uint64_t bytes, uint8_t **dev)
{
    (void)driver;
    note_call();
    uint32_t n = atomic_fetch_add(&fake.n_registering, 1);
    if (bytes > atomic_load(&fake.largest))
        atomic_store(&fake.largest, bytes);
    atomic_fetch_add(&fake.waiting, 1);
    while (n > 0 && atomic_load(&fake.gate_shut) && !use_permit())
        sleep_ns(1000000);
    sleep_ns(atomic_load(&fake.register_ns));
    atomic_fetch_sub(&fake.waiting, 1);
    if (n >= fake.register_fails_from && n < fake.register_fails_to)
        return fake.register_error;
    atomic_fetch_add(&fake.n_registered, 1);
    atomic_fetch_add(&fake.registered_now, 1);
    *dev = (uint8_t *)host + fake.dev_offset;
    return 0;
}

int __wrap_kvx_hostmem_driver_unregister(kvx_hostmem_driver *driver, void *host);
int __wrap_kvx_hostmem_driver_unregister(kvx_hostmem_driver *driver, void *host)
{
    (void)driver, (void)host;
    note_call();
    atomic_fetch_sub(&fake.registered_now, 1);
    return 0;
}

int __wrap_kvx_hostmem_driver_allocate(kvx_hostmem_driver *driver, uint64_t bytes, uint8_t **host, uint8_t **dev);
int __wrap_kvx_hostmem_driver_allocate(kvx_hostmem_driver *driver, uint64_t bytes, uint8_t **host, uint8_t **dev)
{
    (void)driver;
    note_call();
    if (atomic_fetch_add(&fake.n_allocated, 1) >= fake.allocate_fails_from)
        return 2;
    atomic_fetch_add(&fake.allocated_now, 1);
    *host = aligned_alloc(4096, bytes);
    assert_non_null(*host);
    memset(*host, 0x5a, bytes); /* as it comes */
    *dev = *host;
    return 0;
}

int __wrap_kvx_hostmem_driver_free(kvx_hostmem_driver *driver, void *host);
int __wrap_kvx_hostmem_driver_free(kvx_hostmem_driver *driver, void *host)
{
    (void)driver;
    atomic_fetch_sub(&fake.allocated_now, 1);
    free(host);
    return 0;
}

int __wrap_kvx_hostmem_driver_probe(kvx_hostmem_driver *driver, uint8_t *host, uint8_t *dev);
int __wrap_kvx_hostmem_driver_probe(kvx_hostmem_driver *driver, uint8_t *host, uint8_t *dev)
{
    (void)driver, (void)host, (void)dev;
    return fake.probe_fails ? KVX_HOSTMEM_NOT_SEEN : 0;
}

const char *__wrap_kvx_hostmem_driver_error(kvx_hostmem_driver *driver, int error);
const char *__wrap_kvx_hostmem_driver_error(kvx_hostmem_driver *driver, int error)
{
    (void)driver;
    return error == 801 ? "CUDA_ERROR_NOT_SUPPORTED" : error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "NOT_SEEN";
}

/* ------------------------------------------------------------------------------------------------------- memory */

static void count_allocation(void)
{
    if (atomic_load(&fake.counting))
        atomic_fetch_add(&fake.allocations, 1);
}

void *__real_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset)
{
    count_allocation();
    if (flags & MAP_HUGETLB) {
        if (!fake.huge_maps) {
            errno = ENOMEM;
            return MAP_FAILED;
        }
        atomic_fetch_add((flags >> 26 & 63) == 30 ? &fake.huge_1g_maps : &fake.huge_2m_maps, 1);
        flags = MAP_PRIVATE | MAP_ANONYMOUS;
    }
    if (atomic_fetch_add(&fake.n_maps, 1) >= fake.map_fails_from) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    void *memory = __real_mmap(at, bytes, protection, flags, file, offset);
    if (memory != MAP_FAILED && !(flags & MAP_FIXED))
        atomic_fetch_add(&fake.mapped_bytes, (long long)bytes);
    return memory;
}

int __real_munmap(void *at, size_t bytes);
int __wrap_munmap(void *at, size_t bytes);
int __wrap_munmap(void *at, size_t bytes)
{
    atomic_fetch_sub(&fake.mapped_bytes, (long long)bytes);
    return __real_munmap(at, bytes);
}

int __real_madvise(void *at, size_t bytes, int advice);
int __wrap_madvise(void *at, size_t bytes, int advice);
int __wrap_madvise(void *at, size_t bytes, int advice)
{
    if (advice != POPULATE_WRITE)
        return __real_madvise(at, bytes, advice);
    note_call();
    errno = fake.touch_unknown ? EINVAL : fake.touch_errno;
    if (fake.touch_unknown || atomic_fetch_add(&fake.n_touches, 1) == fake.touch_fails_at)
        return -1;
    return fake.huge_maps ? 0 : __real_madvise(at, bytes, advice); /* terabytes of huge pages are not really there */
}

void *__real_calloc(size_t n, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes)
{
    count_allocation();
    return __real_calloc(n, bytes);
}

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes)
{
    count_allocation();
    return __real_malloc(bytes);
}

/* -------------------------------------------------------------------------------------------------------- files */

static FILE *file_of(const char *text)
{
    FILE *file = tmpfile();
    assert_non_null(file);
    fputs(text, file);
    rewind(file);
    return file;
}

static FILE *file_of_number(unsigned n)
{
    char text[16];
    snprintf(text, sizeof text, "%u\n", n);
    return file_of(text);
}

static int ends_with(const char *path, const char *end)
{
    size_t n = strlen(path), m = strlen(end);
    return n >= m && strcmp(path + n - m, end) == 0;
}

FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode)
{
    count_allocation();
    if (ends_with(path, "hugepages-2048kB/free_hugepages"))
        return file_of_number(fake.huge_2m);
    if (ends_with(path, "hugepages-1048576kB/free_hugepages"))
        return file_of_number(fake.huge_1g);
    if (fake.transparent && ends_with(path, "transparent_hugepage/enabled"))
        return file_of(fake.transparent);
    if (fake.meminfo && ends_with(path, "/proc/meminfo"))
        return file_of(fake.meminfo);
    if (fake.cgroup && ends_with(path, "/proc/self/cgroup"))
        return file_of(fake.cgroup);
    if (fake.cgroup && strncmp(path, "/sys/fs/cgroup", 14) == 0) {
        const char *text = ends_with(path, "memory.max") || ends_with(path, "limit_in_bytes") ? fake.limit
                           : ends_with(path, "memory.stat")                                   ? fake.stat
                                                                                              : fake.usage;
        return strstr(path, "/inner") && text ? file_of(text) : NULL;
    }
    return __real_fopen(path, mode);
}

/* ---------------------------------------------------------------------------------------------------- threads */

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *), void *arg)
{
    if (atomic_fetch_add(&fake.n_threads, 1) >= fake.thread_fails_from)
        return EAGAIN;
    return __real_pthread_create(thread, attr, fn, arg);
}

int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    locks_held++;
    return __real_pthread_mutex_lock(mutex);
}

int __real_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    locks_held--;
    return __real_pthread_mutex_unlock(mutex);
}
