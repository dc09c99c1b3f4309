/* SPDX-License-Identifier: Apache-2.0 */
/* The made-up platform. */
#include "fake_platform.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

fake_world fake;
const uint8_t fake_uuid[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
#define UUID_TEXT "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"

void fake_reset(void)
{
    fake = (fake_world){.tdx_leaf = 1,
                        .tdx_device = 1,
                        .provider = "tdx_guest",
                        .release = "6.11.0-kvx",
                        .environment = "HOME=/root",
                        .swaps = "Filename\tType\tSize\tUsed\tPriority\n",
                        .status = "Name:\ttest\nTracerPid:\t0\nUid:\t0\n",
                        .missing = "",
                        .driver = "580.159.03",
                        .environment_kind = 2,
                        .cc_feature = 1,
                        .ready = 1,
                        .cpu_caps = 2,
                        .gpu_caps = 1,
                        .ecc = 1,
                        .protected_kib = 1u << 20,
                        .uuid = UUID_TEXT};
}

/* -------------------------------------------------------------------------------------------------------- processor */

static int fake_cpuid(uint32_t leaf, uint32_t sub_leaf, uint32_t r[4])
{
    (void)sub_leaf;
    if (fake.no_cpuid)
        return 0;
    memset(r, 0, 4 * sizeof r[0]);
    if (leaf == 0) {
        r[0] = 0x21;
    } else if (leaf == 0x21 && fake.tdx_leaf) {
        memcpy(&r[1], "Inte", 4);
        memcpy(&r[3], "lTDX", 4);
        memcpy(&r[2], "    ", 4);
    } else if (leaf == 0x40000000u && fake.hyperv_isolation) {
        r[0] = 0x4000000c;
        memcpy(&r[1], "Micr", 4);
        memcpy(&r[2], "osof", 4);
        memcpy(&r[3], "t Hv", 4);
    } else if (leaf == 0x4000000cu) {
        r[1] = (uint32_t)fake.hyperv_isolation;
    }
    return 1;
}

static int fake_access(const char *path, int mode)
{
    (void)mode;
    if ((strcmp(path, "/dev/tdx_guest") == 0 && fake.tdx_device) ||
        (strcmp(path, "/dev/sev-guest") == 0 && fake.sev_device) ||
        (strncmp(path, "/dev/tpm", 8) == 0 && fake.tpm_device))
        return 0;
    errno = ENOENT;
    return -1;
}

static int fake_ioctl(int file, unsigned long request, void *argument)
{
    uint8_t *bytes = argument, *report = bytes + 64;
    (void)file;
    if (request != 0xc4405401ul || fake.report_fails) {
        errno = ENOTTY;
        return -1;
    }
    memset(report, 0, 1024);
    memcpy(report + 128, bytes, 64);
    report[130] ^= (uint8_t)fake.report_of_other_data;
    report[512] = (uint8_t)(fake.report_debug != 0);
    report[515] = 0x10; /* SEPT_VE_DISABLE */
    if (!fake.no_measurements) {
        memset(report + 528, 0xab, 48);
        for (int i = 0; i < 4; i++)
            memset(report + 720 + 48 * i, 0xc0 + i, 48);
    }
    return 0;
}

/* ------------------------------------------------------------------------------------------------------------ files */

enum { FIRST_FILE = 1000, N_FILES = 8, FILE_BYTES = 1 << 19 };
enum kind { CONTENT, INBLOB, OUTBLOB, DEVICE };
static struct file {
    int is_open;
    enum kind kind;
    size_t n, at;
    uint8_t *bytes;
} files[N_FILES];

static char entry_path[128];
static uint64_t generation;
static uint8_t inblob[64];

static int open_file(enum kind kind, const void *bytes, size_t n)
{
    for (int i = 0; i < N_FILES; i++)
        if (!files[i].is_open) {
            files[i] = (struct file){.is_open = 1, .kind = kind, .n = n, .bytes = malloc(n + 1)};
            if (n)
                memcpy(files[i].bytes, bytes, n);
            return FIRST_FILE + i;
        }
    errno = EMFILE;
    return -1;
}

static int open_text(const char *text)
{
    if (text)
        return open_file(CONTENT, text, strlen(text));
    errno = ENOENT;
    return -1;
}

/* The quote: some header, the report data, some more. */
static int open_outblob(void)
{
    static uint8_t quote[1 << 16];
    const size_t n = fake.tsm_empty ? 0 : fake.tsm_huge ? sizeof quote : 5006;
    memset(quote, 0x51, sizeof quote);
    memcpy(quote + 568, inblob, 64);
    quote[570] ^= (uint8_t)fake.tsm_wrong_data;
    fake.n_quotes++;
    return open_file(OUTBLOB, quote, n);
}

static int open_entry_file(const char *name)
{
    char text[64];
    if (strcmp(name, "provider") == 0) {
        (void)snprintf(text, sizeof text, "%s\n", fake.provider);
        return open_text(text);
    }
    if (strcmp(name, "generation") == 0) {
        if (fake.tsm_no_generation)
            return open_text(NULL);
        (void)snprintf(text, sizeof text, fake.tsm_bad_generation ? "x%llu\n" : "%llu\n",
                       (unsigned long long)generation);
        return open_text(text);
    }
    if (strcmp(name, "inblob") == 0)
        return open_file(INBLOB, "", 0);
    if (strcmp(name, "outblob") == 0)
        return open_outblob();
    return open_text(NULL);
}

static int fake_open(const char *path, int flags)
{
    const size_t n = strlen(entry_path);
    if (n && strncmp(path, entry_path, n) == 0 && path[n] == '/')
        return open_entry_file(path + n + 1);
    if (strcmp(path, "/dev/tdx_guest") == 0)
        return fake.tdx_device ? open_file(DEVICE, "", 0) : open_text(NULL);
    if (strcmp(path, "/proc/sys/kernel/osrelease") == 0)
        return open_text(fake.release);
    if (strcmp(path, "/proc/self/environ") == 0 && fake.environment)
        return open_file(CONTENT, fake.environment,
                         fake.environment_bytes ? fake.environment_bytes : strlen(fake.environment) + 1);
    if (strcmp(path, "/proc/self/environ") == 0)
        return open_text(NULL);
    if (strcmp(path, "/proc/swaps") == 0)
        return open_text(fake.swaps);
    if (strcmp(path, "/proc/self/status") == 0)
        return open_text(fake.status);
    if (strcmp(path, "/proc/sys/kernel/random/boot_id") == 0 && fake.boot_id)
        return open_text(fake.boot_id);
    if (strcmp(path, "/proc/self/stat") == 0 && fake.stat)
        return open_text(fake.stat);
    return kvx_platform_real.open(path, flags);
}

static int interrupted(void)
{
    if (fake.tsm_interrupts <= 0)
        return 0;
    fake.tsm_interrupts--;
    errno = EINTR;
    return 1;
}

static ssize_t fail_with(int why)
{
    errno = why;
    return -1;
}

static ssize_t fake_read(int number, void *bytes, size_t n)
{
    struct file *file;
    if (number < FIRST_FILE)
        return kvx_platform_real.read(number, bytes, n);
    file = &files[number - FIRST_FILE];
    if (interrupted())
        return -1;
    if (file->kind == OUTBLOB && file->at == 0) {
        if (fake.tsm_blocked_reads > 0 && fake.tsm_blocked_reads--)
            return fail_with(EWOULDBLOCK);
        if (fake.tsm_too_big)
            return fail_with(EFBIG);
        if (fake.tsm_io_error)
            return fail_with(EIO);
        if (fake.tsm_overtaken > 0 && fake.tsm_overtaken--)
            generation++;
    }
    if (fake.read_at_most && n > fake.read_at_most)
        n = fake.read_at_most;
    if (n > file->n - file->at)
        n = file->n - file->at;
    memcpy(bytes, file->bytes + file->at, n);
    file->at += n;
    return (ssize_t)n;
}

static ssize_t fake_write(int number, const void *bytes, size_t n)
{
    if (number < FIRST_FILE || files[number - FIRST_FILE].kind != INBLOB)
        return fail_with(EBADF);
    if (interrupted())
        return -1;
    if (fake.tsm_busy_writes > 0 && fake.tsm_busy_writes--)
        return fail_with(EBUSY);
    if (n > sizeof inblob)
        return fail_with(EINVAL);
    memcpy(inblob, bytes, n);
    generation++;
    return (ssize_t)n;
}

static int fake_close(int number)
{
    if (number < FIRST_FILE)
        return kvx_platform_real.close(number);
    free(files[number - FIRST_FILE].bytes);
    files[number - FIRST_FILE] = (struct file){0};
    return 0;
}

static int fake_mkdir(const char *path, mode_t mode)
{
    (void)mode;
    if (!fake.provider)
        return (int)fail_with(ENOENT);
    if (fake.tsm_exists > 0 && fake.tsm_exists--)
        return (int)fail_with(EEXIST);
    (void)snprintf(entry_path, sizeof entry_path, "%s", path);
    generation = 0;
    fake.n_entries++;
    fake.n_entries_made++;
    return 0;
}

static int fake_rmdir(const char *path)
{
    if (strcmp(path, entry_path) != 0)
        return (int)fail_with(ENOENT);
    entry_path[0] = 0;
    fake.n_entries--;
    return 0;
}

static int fake_getrlimit_core(uint64_t *soft_bytes)
{
    *soft_bytes = fake.core_bytes;
    return fake.core_fails ? -1 : 0;
}

/* ------------------------------------------------------------------------------------------------------------- NVML */

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, UNKNOWN = 999 };
static int library, device;

static int nvml_init(void)
{
    return fake.init_fails ? UNKNOWN : OK;
}

static int nvml_shutdown(void)
{
    return OK;
}

static int nvml_driver(char *text, unsigned n)
{
    (void)snprintf(text, n, "%s", fake.driver);
    return OK;
}

static int nvml_by_index(unsigned index, void **handle)
{
    *handle = &device;
    return fake.no_device || index != 0 ? INVALID : OK;
}

static int nvml_by_uuid(const char *uuid, void **handle)
{
    *handle = &device;
    return fake.no_device || strcmp(uuid, UUID_TEXT) != 0 ? NOT_FOUND : OK;
}

static int nvml_uuid(void *handle, char *text, unsigned n)
{
    (void)snprintf(text, n, "%s", fake.uuid);
    return handle == &device ? OK : INVALID;
}

static int nvml_settings(unsigned *s)
{
    if (s[0] != (20u | 1u << 24))
        return INVALID;
    s[1] = fake.environment_kind;
    s[2] = fake.cc_feature;
    s[3] = fake.devtools;
    s[4] = fake.multi_gpu;
    return OK;
}

static int nvml_state(unsigned *s)
{
    s[0] = fake.environment_kind;
    s[1] = fake.cc_feature;
    s[2] = fake.devtools;
    return OK;
}

static int nvml_caps(unsigned *caps)
{
    caps[0] = fake.cpu_caps;
    caps[1] = fake.gpu_caps;
    return OK;
}

static int nvml_ready(unsigned *accepting)
{
    *accepting = fake.ready;
    return OK;
}

static int nvml_memory(void *handle, unsigned long long *memory)
{
    memory[0] = fake.protected_kib;
    memory[1] = 0;
    return handle == &device ? OK : INVALID;
}

static int nvml_ecc(void *handle, unsigned *current, unsigned *pending)
{
    *current = *pending = fake.ecc;
    return handle == &device ? OK : INVALID;
}

static int nvml_mig(void *handle, unsigned *current, unsigned *pending)
{
    *current = *pending = fake.mig;
    return handle != &device ? INVALID : fake.mig_unsupported ? NOT_SUPPORTED : OK;
}

static int nvml_mps(void *handle, unsigned *n, void *infos)
{
    (void)infos;
    *n = fake.mps_clients;
    return handle != &device ? INVALID : fake.mps_clients ? INSUFFICIENT_SIZE : OK;
}

typedef struct report {
    unsigned has_cec, bytes, cec_bytes;
    unsigned char nonce[32], report[0x2000], cec[0x1000];
} report;

static int nvml_report(void *handle, report *r)
{
    if (handle != &device || fake.gpu_report_fails)
        return NOT_SUPPORTED;
    memset(r->report, 0x47, sizeof r->report);
    if (!fake.gpu_report_without_nonce)
        memcpy(r->report + 4, r->nonce, 32);
    r->bytes = fake.gpu_report_too_long ? 0x2001 : 3000;
    return OK;
}

static int nvml_certificates(void *handle, unsigned char *c)
{
    const unsigned sizes[2] = {0, 2222};
    memcpy(c, sizes, sizeof sizes);
    memset(c + 8 + 0x1000, 0x43, 2222);
    return handle == &device ? OK : INVALID;
}

/* Functions as data: the standard has no cast for that, POSIX does. */
#define FUNCTION(name, function)                                                                                       \
    {                                                                                                                  \
        name, (void (*)(void))(function)                                                                               \
    }
static const struct {
    const char *name;
    void (*function)(void);
} functions[] = {
    FUNCTION("nvmlInit_v2", nvml_init),
    FUNCTION("nvmlShutdown", nvml_shutdown),
    FUNCTION("nvmlSystemGetDriverVersion", nvml_driver),
    FUNCTION("nvmlDeviceGetHandleByIndex_v2", nvml_by_index),
    FUNCTION("nvmlDeviceGetHandleByUUID", nvml_by_uuid),
    FUNCTION("nvmlDeviceGetUUID", nvml_uuid),
    FUNCTION("nvmlSystemGetConfComputeSettings", nvml_settings),
    FUNCTION("nvmlSystemGetConfComputeState", nvml_state),
    FUNCTION("nvmlSystemGetConfComputeCapabilities", nvml_caps),
    FUNCTION("nvmlSystemGetConfComputeGpusReadyState", nvml_ready),
    FUNCTION("nvmlDeviceGetConfComputeMemSizeInfo", nvml_memory),
    FUNCTION("nvmlDeviceGetEccMode", nvml_ecc),
    FUNCTION("nvmlDeviceGetMigMode", nvml_mig),
    FUNCTION("nvmlDeviceGetMPSComputeRunningProcesses_v3", nvml_mps),
    FUNCTION("nvmlDeviceGetConfComputeGpuAttestationReport", nvml_report),
    FUNCTION("nvmlDeviceGetConfComputeGpuCertificate", nvml_certificates),
};

static void *fake_dlopen(const char *name)
{
    if (strcmp(name, "libnvidia-ml.so.1") != 0 || fake.no_nvml)
        return NULL;
    fake.n_loaded++;
    return &library;
}

static void *fake_dlsym(void *handle, const char *name)
{
    void *symbol = NULL;
    if (handle != &library || strstr(fake.missing, name))
        return NULL;
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++)
        if (strcmp(functions[i].name, name) == 0)
            memcpy(&symbol, &functions[i].function, sizeof symbol);
    return symbol;
}

static int fake_dlclose(void *handle)
{
    fake.n_loaded -= handle == &library;
    return 0;
}

/* ----------------------------------------------------------------------------------------------- not made up at all */

static uint64_t clock_ns(enum kvx_platform_clock clock)
{
    return kvx_platform_real.clock_ns(clock);
}

static ssize_t random_bytes(void *bytes, size_t n)
{
    return kvx_platform_real.getrandom(bytes, n);
}

static int memfd_secret_file(void)
{
    return kvx_platform_real.memfd_secret();
}

static pid_t process(void)
{
    return kvx_platform_real.getpid();
}

const kvx_platform_ops fake_platform = {
    .cpuid = fake_cpuid,
    .open = fake_open,
    .read = fake_read,
    .write = fake_write,
    .close = fake_close,
    .ioctl = fake_ioctl,
    .mkdir = fake_mkdir,
    .rmdir = fake_rmdir,
    .access = fake_access,
    .dlopen = fake_dlopen,
    .dlsym = fake_dlsym,
    .dlclose = fake_dlclose,
    .clock_ns = clock_ns,
    .getrandom = random_bytes,
    .memfd_secret = memfd_secret_file,
    .getrlimit_core = fake_getrlimit_core,
    .getpid = process,
};
