/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_SRC_PLATFORM_H
#define KVX_SRC_PLATFORM_H
/*
 * The one seam to what surrounds the process: processor, files, devices, other libraries, clocks, randomness. In the
 * library the table is a constant that nothing can redirect. Builds with KVX_TESTING can put fakes in its place.
 * Functions behave as the system calls of their names: -1 and errno, or NULL.
 */
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum kvx_platform_clock { KVX_CLOCK_MONOTONIC, KVX_CLOCK_REAL };

typedef struct kvx_platform_ops {
    /* registers: eax, ebx, ecx, edx. Returns 0 where there is no such instruction. */
    int (*cpuid)(uint32_t leaf, uint32_t sub_leaf, uint32_t registers[4]);
    int (*open)(const char *path, int flags);
    ssize_t (*read)(int file, void *bytes, size_t n);
    ssize_t (*write)(int file, const void *bytes, size_t n);
    int (*close)(int file);
    int (*ioctl)(int file, unsigned long request, void *argument);
    int (*mkdir)(const char *path, mode_t mode);
    int (*rmdir)(const char *path);
    int (*access)(const char *path, int mode);
    void *(*dlopen)(const char *name);
    void *(*dlsym)(void *library, const char *name);
    int (*dlclose)(void *library);
    uint64_t (*clock_ns)(enum kvx_platform_clock clock);
    ssize_t (*getrandom)(void *bytes, size_t n);
    int (*memfd_secret)(void); /* a file, or -1 */
    int (*getrlimit_core)(uint64_t *soft_bytes);
    pid_t (*getpid)(void);
} kvx_platform_ops;

#ifdef KVX_TESTING
const kvx_platform_ops *kvx_platform(void);
/* NULL: the real one again. */
void kvx_platform_replace(const kvx_platform_ops *fake);
#else
#define kvx_platform() (&kvx_platform_real)
#endif
extern const kvx_platform_ops kvx_platform_real;

/* Reads a whole small file: as many reads as it takes. Returns the bytes, of which at most `room` - 1 were kept, with a
 * zero behind them; -1 and errno if it cannot be opened or read. */
ssize_t kvx_platform_slurp(const char *path, void *bytes, size_t room);

#endif
