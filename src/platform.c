/* SPDX-License-Identifier: Apache-2.0 */
/* The real platform, and reading small files through it. */
#include "platform.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

static int real_cpuid(uint32_t leaf, uint32_t sub_leaf, uint32_t registers[4])
{
#if defined(__x86_64__) || defined(__i386__)
    return __get_cpuid_count(leaf, sub_leaf, &registers[0], &registers[1], &registers[2], &registers[3]);
#else
    (void)leaf;
    (void)sub_leaf;
    (void)registers;
    return 0;
#endif
}

static int real_open(const char *path, int flags)
{
    return open(path, flags | O_CLOEXEC | O_NOCTTY);
}

static int real_ioctl(int file, unsigned long request, void *argument)
{
    return ioctl(file, request, argument);
}

static void *real_dlopen(const char *name)
{
    return dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

static uint64_t real_clock_ns(enum kvx_platform_clock clock)
{
    struct timespec now;
    (void)clock_gettime(clock == KVX_CLOCK_REAL ? CLOCK_REALTIME : CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static ssize_t real_getrandom(void *bytes, size_t n)
{
    return getrandom(bytes, n, 0);
}

static int real_memfd_secret(void)
{
#ifdef SYS_memfd_secret
    return (int)syscall(SYS_memfd_secret, O_CLOEXEC);
#else
    errno = ENOSYS;
    return -1;
#endif
}

static int real_getrlimit_core(uint64_t *soft_bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_CORE, &limit) != 0)
        return -1;
    *soft_bytes = limit.rlim_cur;
    return 0;
}

const kvx_platform_ops kvx_platform_real = {
    .cpuid = real_cpuid,
    .open = real_open,
    .read = read,
    .write = write,
    .close = close,
    .ioctl = real_ioctl,
    .mkdir = mkdir,
    .rmdir = rmdir,
    .access = access,
    .dlopen = real_dlopen,
    .dlsym = dlsym,
    .dlclose = dlclose,
    .clock_ns = real_clock_ns,
    .getrandom = real_getrandom,
    .memfd_secret = real_memfd_secret,
    .getrlimit_core = real_getrlimit_core,
    .getpid = getpid,
};

#ifdef KVX_TESTING
static const kvx_platform_ops *in_place = &kvx_platform_real;

const kvx_platform_ops *kvx_platform(void)
{
    return in_place;
}

void kvx_platform_replace(const kvx_platform_ops *fake)
{
    in_place = fake ? fake : &kvx_platform_real;
}
#endif

ssize_t kvx_platform_slurp(const char *path, void *bytes, size_t room)
{
    char *at = bytes, rest[256];
    size_t kept = 0, seen = 0;
    ssize_t got;
    int file = kvx_platform()->open(path, O_RDONLY);
    if (file < 0)
        return -1;
    do {
        size_t left = room - 1 - kept;
        got = kvx_platform()->read(file, left ? at + kept : rest, left ? left : sizeof rest);
        if (got > 0) {
            kept += left ? (size_t)got : 0;
            seen += (size_t)got;
        }
    } while (got > 0 || (got < 0 && errno == EINTR));
    at[kept] = 0;
    if (got < 0) {
        int why = errno;
        (void)kvx_platform()->close(file);
        errno = why;
        return -1;
    }
    (void)kvx_platform()->close(file);
    return (ssize_t)seen;
}
