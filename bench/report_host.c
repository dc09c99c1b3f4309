/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about the machine that /proc and /sys give to everybody. What cannot be read is "unknown", never guessed. */
#define _POSIX_C_SOURCE 200809L
#include "report.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* The text after "key : " of the first line that begins with `key`, or after nothing if key is "". False if none. */
static bool read_line(const char *path, const char *key, char *text, int text_bytes)
{
    FILE *file = fopen(path, "r");
    bool found = false;
    if (!file)
        return false;
    while (!found && fgets(text, text_bytes, file))
        found = strncmp(text, key, strlen(key)) == 0;
    fclose(file);
    if (!found)
        return false;
    text[strcspn(text, "\n")] = '\0';
    if (*key) {
        const char *value = strchr(text, ':');
        if (!value)
            return false;
        value += 1 + strspn(value + 1, " \t");
        memmove(text, value, strlen(value) + 1);
    }
    return true;
}

static void add_cpu(report *r)
{
    char text[256];
    if (!read_line("/proc/cpuinfo", "model name", text, sizeof(text)))
        strcpy(text, "unknown");
    report_machine(r, "cpu", "%s", text);
    report_machine(r, "cores", "%ld", sysconf(_SC_NPROCESSORS_ONLN));
}

static void add_memory(report *r)
{
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    char text[256];
    if (pages > 0 && page_bytes > 0)
        report_machine(r, "memory", "%.1f GiB", (double)pages * (double)page_bytes / (1 << 30));
    if (!read_line("/sys/devices/system/node/online", "", text, sizeof(text)))
        strcpy(text, "unknown");
    report_machine(r, "numa_nodes", "%s", text);
}

/* A GPU runs in confidential-computing mode only inside a confidential VM, and such a VM shows in the CPU's flags. */
static void add_confidential(report *r)
{
    char text[8192];
    if (!read_line("/proc/cpuinfo", "flags", text, sizeof(text)))
        report_machine(r, "confidential_computing", "unknown");
    else if (strstr(text, " tdx_guest") || strstr(text, " sev_snp"))
        report_machine(r, "confidential_computing", "unknown (confidential VM; mode of the GPU not read)");
    else
        report_machine(r, "confidential_computing", "off (no confidential VM)");
}

void report_host(report *r)
{
    uint32_t version = kvx_version();
    struct utsname names;
    report_machine(r, "kvx", "%u.%u.%u", version >> 16, version >> 8 & 0xff, version & 0xff);
    add_cpu(r);
    add_memory(r);
    if (uname(&names) == 0)
        report_machine(r, "kernel", "%s %s %s", names.sysname, names.release, names.machine);
    add_confidential(r);
}
