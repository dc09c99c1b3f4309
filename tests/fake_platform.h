/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_TESTS_FAKE_PLATFORM_H
#define KVX_TESTS_FAKE_PLATFORM_H
/*
 * A platform that a test makes up: processor, device files, configfs-tsm with its generations and its races, NVML with
 * functions that are missing. fake_reset() gives a good Intel TDX guest with a GPU in CC mode; a test then breaks what
 * it is about. What is not faked (clocks, randomness, secret memory) is real.
 */
#include "../src/platform.h"

typedef struct fake_world {
    /* processor and guest */
    int no_cpuid, tdx_leaf, hyperv_isolation;
    int tdx_device, sev_device, tpm_device;
    int report_fails, report_debug, report_of_other_data, no_measurements;
    /* configfs-tsm; provider NULL: it is not mounted */
    const char *provider;
    int tsm_overtaken;     /* so many quotes: somebody else writes in between */
    int tsm_busy_writes;   /* so many writes of a request fail with EBUSY */
    int tsm_blocked_reads; /* so many reads of a quote fail with EWOULDBLOCK */
    int tsm_interrupts;    /* so many reads and writes fail with EINTR */
    int tsm_too_big, tsm_io_error, tsm_bad_generation, tsm_no_generation, tsm_wrong_data, tsm_empty, tsm_huge;
    int tsm_exists;      /* so many mkdirs find that the name is taken */
    size_t read_at_most; /* bytes a read; 0: all */
    unsigned n_entries, n_entries_made, n_quotes;
    /* process */
    const char *release, *environment, *swaps, *status;
    size_t environment_bytes; /* 0: strlen */
    uint64_t core_bytes;
    int core_fails;
    const char *boot_id, *stat; /* NULL: the real ones */
    /* NVML; missing: names of functions, separated by blanks */
    int no_nvml, init_fails, no_device;
    const char *missing, *driver;
    unsigned environment_kind, cc_feature, devtools, multi_gpu, ready, cpu_caps, gpu_caps, ecc, mig, mps_clients;
    int mig_unsupported;
    unsigned long long protected_kib;
    const char *uuid;
    int gpu_report_fails, gpu_report_without_nonce, gpu_report_too_long;
    unsigned n_loaded; /* dlopen less dlclose */
} fake_world;

extern fake_world fake;
extern const uint8_t fake_uuid[16];

void fake_reset(void);
extern const kvx_platform_ops fake_platform;

#endif
