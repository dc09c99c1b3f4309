/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_SRC_STATUS_H
#define KVX_SRC_STATUS_H
/* Status helpers. The first function to know a cause writes the note and returns the code; callers pass the code on. */
#include "kvx.h"

/* Writes this thread's last-error note and returns `status`, so that a check can be one line. Notes carry no secrets.
 */
kvx_status kvx_note(kvx_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* kvx_verdict -> kvx_status; NONE -> KVX_PENDING, FAULT -> KVX_INTERNAL. */
kvx_status kvx_verdict_status(uint32_t verdict);

/* For functions that own nothing. */
#define KVX_TRY(expression)                                                                                            \
    do {                                                                                                               \
        kvx_status kvx_try_status = (expression);                                                                      \
        if (kvx_try_status != KVX_OK)                                                                                  \
            return kvx_try_status;                                                                                     \
    } while (0)

#endif
