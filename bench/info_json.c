/* SPDX-License-Identifier: Apache-2.0 */
/* The posture as one JSON object. */
#include "info.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "json_out.h"

static void pair(FILE *file, const char *before, const char *key, const char *value)
{
    fputs(before, file);
    json_out_string(file, key);
    fputs(": ", file);
    json_out_string(file, value);
}

static void hex(FILE *file, const char *before, const char *key, const uint8_t *bytes, size_t n)
{
    char text[2 * 48 + 1] = "";
    for (size_t i = 0; i < n && i < 48; i++)
        (void)snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    pair(file, before, key, text);
}

static void write_checks(FILE *file, const kvx_posture *p)
{
    fputs(",\n \"checks\": [", file);
    for (uint32_t i = 0; i < p->n_checks; i++) {
        const kvx_check *check = &p->checks[i];
        const bool failing = check->state == KVX_CHECK_BAD || check->state == KVX_CHECK_UNKNOWN;
        pair(file, i ? ",\n  {" : "\n  {", "name", check->name);
        pair(file, ", ", "state", info_state(check->state));
        pair(file, ", ", "found", check->found);
        if (failing)
            pair(file, ", ", "remedy", check->remedy);
        fputs("}", file);
    }
    fputs("]", file);
}

static void write_measurements(FILE *file, const kvx_posture *p)
{
    static const char *const names[] = {"rtmr0", "rtmr1", "rtmr2", "rtmr3"};
    hex(file, ",\n \"measurements\": {", "mrtd", p->mrtd, sizeof p->mrtd);
    for (int i = 0; i < 4; i++)
        hex(file, ", ", names[i], p->rtmr[i], sizeof p->rtmr[i]);
    fputs("}", file);
}

static void write_attempts(FILE *file, const info_attempt *attempts)
{
    fputs(",\n \"contexts\": [", file);
    for (int i = 0; i < INFO_N_POLICIES; i++) {
        pair(file, i ? ",\n  {" : "\n  {", "policy", info_policies[attempts[i].policy]);
        pair(file, ", ", "status", kvx_status_text(attempts[i].status));
        pair(file, ", ", "note", attempts[i].note);
        fputs("}", file);
    }
    fputs("]", file);
}

bool info_write_json(const char *path, const kvx_posture *p, const info_attempt *attempts)
{
    static const char *const tees[] = {"none", "tdx", "sev-snp", "paravisor"};
    const bool to_stdout = strcmp(path, "-") == 0;
    FILE *file = to_stdout ? stdout : fopen(path, "w");
    bool good;
    if (!file) {
        fprintf(stderr, "kvx-info: cannot write %s: %s\n", path, strerror(errno));
        return false;
    }
    pair(file, "{", "tee", tees[p->tee]);
    pair(file, ", ", "gpu_uuid", p->gpu_uuid);
    fprintf(file, ", \"enforce_would_accept\": %s", p->good_enough ? "true" : "false");
    write_checks(file, p);
    if (p->has_measurements)
        write_measurements(file, p);
    if (attempts)
        write_attempts(file, attempts);
    fputs("}\n", file);
    good = !ferror(file);
    if (to_stdout ? fflush(file) != 0 : fclose(file) != 0)
        good = false;
    if (!good)
        fprintf(stderr, "kvx-info: %s could not be written completely\n", path);
    return good;
}
