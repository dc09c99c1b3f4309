/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_BENCH_INFO_H
#define KVX_BENCH_INFO_H
/* kvx-info: what kvx finds out about this machine, and what to do about it. info.c: command line, table; info_json.c:
 * the same for machines; info_try.c: contexts under each policy. */
#include <stdbool.h>

#include "kvx_keys.h"

enum { INFO_N_POLICIES = 3 };

/* What came of a context under a policy. */
typedef struct info_attempt {
    kvx_policy policy;
    kvx_status status;
    kvx_engine engine;
    char note[1024];
} info_attempt;

extern const char *const info_policies[INFO_N_POLICIES];

/* One character string for each kvx_check_state. */
const char *info_state(kvx_check_state state);

/* Creates a small pool and a context under each policy, and takes them down again. */
void info_try(kvx_engine engine, info_attempt attempts[INFO_N_POLICIES]);

/* False, with a message on stderr, if the file could not be written. `attempts` NULL: none were made. */
bool info_write_json(const char *path, const kvx_posture *posture, const info_attempt *attempts);

#endif
