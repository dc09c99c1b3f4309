/* SPDX-License-Identifier: Apache-2.0 */
/* Link and clocks of a GPU as NVML tells them. The library belongs to the driver, so it is looked for at run time; its
 * few functions are declared here by their published C interface. */
#include "device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef struct nvml_device *nvml_handle;

enum { NVML_CLOCK_SM = 1, NVML_CLOCK_MEMORY = 2 };

typedef int (*nvml_init_fn)(void);
typedef int (*nvml_find_fn)(const char *bus_id, nvml_handle *device);
typedef int (*nvml_number_fn)(nvml_handle gpu, unsigned *value);
typedef int (*nvml_clock_fn)(nvml_handle gpu, int clock, unsigned *mhz);

/* ISO C has no conversion from an object pointer to a function pointer; POSIX demands that it works. */
static bool find(void *library, const char *name, void *function, size_t function_bytes)
{
    void *symbol = dlsym(library, name);
    if (symbol)
        memcpy(function, &symbol, function_bytes);
    return symbol != NULL;
}

static unsigned read_number(void *library, const char *name, nvml_handle gpu)
{
    nvml_number_fn get;
    unsigned value = 0;
    if (!find(library, name, &get, sizeof(get)) || get(gpu, &value) != 0)
        return 0;
    return value;
}

static unsigned read_clock(void *library, const char *name, nvml_handle gpu, int clock)
{
    nvml_clock_fn get;
    unsigned mhz = 0;
    if (!find(library, name, &get, sizeof(get)) || get(gpu, clock, &mhz) != 0)
        return 0;
    return mhz;
}

/* 0 stands for "not told". */
static void describe(void *library, nvml_handle gpu, report *r)
{
    report_machine(r, "pcie_nvml", "gen %u of %u, width %u of %u",
                   read_number(library, "nvmlDeviceGetCurrPcieLinkGeneration", gpu),
                   read_number(library, "nvmlDeviceGetMaxPcieLinkGeneration", gpu),
                   read_number(library, "nvmlDeviceGetCurrPcieLinkWidth", gpu),
                   read_number(library, "nvmlDeviceGetMaxPcieLinkWidth", gpu));
    report_machine(r, "sm_clock", "%u MHz of %u", read_clock(library, "nvmlDeviceGetClockInfo", gpu, NVML_CLOCK_SM),
                   read_clock(library, "nvmlDeviceGetMaxClockInfo", gpu, NVML_CLOCK_SM));
    report_machine(r, "memory_clock", "%u MHz of %u",
                   read_clock(library, "nvmlDeviceGetClockInfo", gpu, NVML_CLOCK_MEMORY),
                   read_clock(library, "nvmlDeviceGetMaxClockInfo", gpu, NVML_CLOCK_MEMORY));
}

void device_nvml_describe(const char *bus_id, report *r)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    nvml_handle gpu = NULL;
    nvml_init_fn init, shutdown;
    nvml_find_fn find_device;
    if (!library)
        return;
    if (find(library, "nvmlInit_v2", &init, sizeof(init)) &&
        find(library, "nvmlShutdown", &shutdown, sizeof(shutdown)) &&
        find(library, "nvmlDeviceGetHandleByPciBusId_v2", &find_device, sizeof(find_device)) && init() == 0) {
        if (find_device(bus_id, &gpu) == 0)
            describe(library, gpu, r);
        shutdown();
    }
    dlclose(library);
}
