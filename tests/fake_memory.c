/* SPDX-License-Identifier: Apache-2.0 */
/* See fake_memory.h. */
#include "fake_memory.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>

#include "platform.h"

fake_memory fake = {.fail = ""};

int fake_fails(const char *name)
{
    if (strcmp(fake.fail, name) != 0)
        return 0;
    if (fake.fail_after == 0) {
        fake.fail = fake.fail_once ? "" : fake.fail;
        return 1;
    }
    fake.fail_after--;
    return 0;
}

void *__real_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset)
{
    if (fake_fails("mmap")) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    fake.n_maps++;
    return __real_mmap(at, bytes, protection, flags, file, offset);
}

int __real_munmap(void *at, size_t bytes);
int __wrap_munmap(void *at, size_t bytes);
int __wrap_munmap(void *at, size_t bytes)
{
    fake.n_maps--;
    return __real_munmap(at, bytes);
}

int __real_mlock(const void *at, size_t bytes);
int __wrap_mlock(const void *at, size_t bytes);
int __wrap_mlock(const void *at, size_t bytes)
{
    if (fake_fails("mlock")) {
        errno = ENOMEM;
        return -1;
    }
    return __real_mlock(at, bytes);
}

int __real_madvise(void *at, size_t bytes, int advice);
int __wrap_madvise(void *at, size_t bytes, int advice);
int __wrap_madvise(void *at, size_t bytes, int advice)
{
    return fake_fails("madvise") ? -1 : __real_madvise(at, bytes, advice);
}

static kvx_platform_ops platform;

static int memfd_secret(void)
{
    if (!fake.no_secret_memory)
        return kvx_platform_real.memfd_secret();
    errno = ENOSYS;
    return -1;
}

void fake_memory_reset(void)
{
    fake = (fake_memory){.fail = ""};
    platform = kvx_platform_real;
    platform.memfd_secret = memfd_secret;
    kvx_platform_replace(&platform);
}
