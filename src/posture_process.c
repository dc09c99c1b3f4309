/* SPDX-License-Identifier: Apache-2.0 */
/* Kernel and process. The environment is read as the process was started with it, from /proc, and only to see whether
 * other libraries were told to load code or to dump memory; kvx itself takes nothing from it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "platform.h"
#include "posture.h"

static void look_at_kernel(const kvx_posture_subject *subject, kvx_posture *posture)
{
    char release[80] = "";
    unsigned major = 0, minor = 0;
    kvx_finding finding = {.name = "kernel.random",
                           .remedy =
                               "use Linux 6.9 or later: earlier ones may seed a guest from the host (CVE-2024-35875)"};
    if (kvx_platform_slurp("/proc/sys/kernel/osrelease", release, sizeof release) > 0 &&
        sscanf(release, "%u.%u", &major, &minor) == 2)
        finding.state = major > 6 || (major == 6 && minor >= 9) ? KVX_CHECK_GOOD : KVX_CHECK_BAD;
    release[strcspn(release, "\n")] = 0;
    kvx_posture_add(posture, subject, &finding, "Linux %s", release[0] ? release : "of unknown version");
}

static void look_at_core(const kvx_posture_subject *subject, kvx_posture *posture)
{
    uint64_t bytes = 0;
    kvx_finding finding = {.name = "process.core",
                           .remedy = "ulimit -c 0: keys are left out of core dumps, the engine's plaintext is not"};
    if (kvx_platform()->getrlimit_core(&bytes) == 0)
        finding.state = bytes == 0 ? KVX_CHECK_GOOD : KVX_CHECK_BAD;
    kvx_posture_add(posture, subject, &finding, "core dumps %s",
                    finding.state == KVX_CHECK_GOOD  ? "are off"
                    : finding.state == KVX_CHECK_BAD ? "are on"
                                                     : "unknown");
}

/* The first variable of the list that is set in an environment; NULL. */
static const char *first_set(const char *environment, size_t n, const char *const *names)
{
    size_t at, k;
    for (at = 0; at < n; at += strlen(environment + at) + 1)
        for (k = 0; names[k]; k++) {
            const size_t length = strlen(names[k]);
            if (strncmp(environment + at, names[k], length) == 0 && environment[at + length] == '=' &&
                environment[at + length + 1] != 0 && strcmp(environment + at + length, "=0") != 0)
                return names[k];
        }
    return NULL;
}

static void look_at_environment(const kvx_posture_subject *subject, kvx_posture *posture)
{
    static const char *const dumps[] = {"CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "CUDA_ENABLE_USER_TRIGGERED_COREDUMP",
                                        "CUDA_ENABLE_LIGHTWEIGHT_COREDUMP", NULL};
    static const char *const loads[] = {"CUDA_INJECTION64_PATH",
                                        "CUDA_INJECTION32_PATH",
                                        "NVTX_INJECTION64_PATH",
                                        "NVTX_INJECTION32_PATH",
                                        "LD_PRELOAD",
                                        "LD_AUDIT",
                                        NULL};
    kvx_finding gpu_core = {.name = "process.gpu_core",
                            .remedy = "unset the variable: a GPU core dump would hold keys and plaintext"};
    kvx_finding injection = {.name = "process.injection",
                             .remedy = "unset the variable: it loads code into this process"};
    const size_t room = 256u << 10;
    char *environment = malloc(room);
    const ssize_t n = environment ? kvx_platform_slurp("/proc/self/environ", environment, room) : -1;
    const char *dump = NULL, *load = NULL;
    if (n >= 0 && (size_t)n < room) { /* else unknown */
        dump = first_set(environment, (size_t)n, dumps);
        load = first_set(environment, (size_t)n, loads);
        gpu_core.state = dump ? KVX_CHECK_BAD : KVX_CHECK_GOOD;
        injection.state = load ? KVX_CHECK_BAD : KVX_CHECK_GOOD;
    }
    kvx_posture_add(posture, subject, &gpu_core, "%s", dump ? dump : gpu_core.state ? "none asked for" : "unknown");
    kvx_posture_add(posture, subject, &injection, "%s", load ? load : injection.state ? "none asked for" : "unknown");
    free(environment);
}

static void look_at_swap(const kvx_posture_subject *subject, kvx_posture *posture)
{
    char swaps[4096];
    const ssize_t n = kvx_platform_slurp("/proc/swaps", swaps, sizeof swaps);
    const char *second = n > 0 ? strchr(swaps, '\n') : NULL;
    kvx_finding finding = {.name = "process.swap",
                           .remedy = "swapoff -a: keys are locked in memory, the engine's plaintext is not",
                           .allowed = KVX_ALLOW_SWAP};
    if (n >= 0)
        finding.state = second && second[1] ? KVX_CHECK_BAD : KVX_CHECK_GOOD;
    kvx_posture_add(posture, subject, &finding, "swap %s",
                    n < 0                            ? "unknown"
                    : finding.state == KVX_CHECK_BAD ? "is on"
                                                     : "is off");
}

static void look_at_tracer(const kvx_posture_subject *subject, kvx_posture *posture)
{
    char status[8192];
    long tracer = -1;
    const char *at;
    kvx_finding finding = {.name = "process.tracer", .remedy = "detach the debugger: it can read keys"};
    if (kvx_platform_slurp("/proc/self/status", status, sizeof status) > 0 &&
        (at = strstr(status, "TracerPid:")) != NULL)
        tracer = strtol(at + strlen("TracerPid:"), NULL, 10);
    if (tracer >= 0)
        finding.state = tracer == 0 ? KVX_CHECK_GOOD : KVX_CHECK_BAD;
    if (tracer > 0)
        kvx_posture_add(posture, subject, &finding, "traced by process %ld", tracer);
    else
        kvx_posture_add(posture, subject, &finding, "%s", tracer == 0 ? "not traced" : "unknown");
}

static void look_at_memory(const kvx_posture_subject *subject, kvx_posture *posture)
{
    static const char *const found[] = {"keys have no memory of their own", "locked memory", "memfd_secret"};
    const kvx_finding finding = {.name = "process.secret_memory",
                                 .remedy =
                                     "use Linux 6.5 or later (or boot with secretmem.enable=y) and raise ulimit -l",
                                 .state = subject->rung == KVX_SECMEM_SECRET   ? KVX_CHECK_GOOD
                                          : subject->rung == KVX_SECMEM_LOCKED ? KVX_CHECK_BAD
                                                                               : KVX_CHECK_UNKNOWN,
                                 .allowed = KVX_ALLOW_LOCKED};
    kvx_posture_add(posture, subject, &finding, "%s", found[subject->rung]);
}

void kvx_posture_look_at_process(const kvx_posture_subject *subject, kvx_posture *posture)
{
    look_at_kernel(subject, posture);
    look_at_core(subject, posture);
    look_at_environment(subject, posture);
    look_at_swap(subject, posture);
    look_at_tracer(subject, posture);
    look_at_memory(subject, posture);
}
