/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_TESTS_FAULTS_H
#define KVX_TESTS_FAULTS_H
/*
 * Faults by linker wraps: a wrapped function asks fault_due() whether this is the call that fails. One fault is armed
 * at a time; calls are counted on all threads.
 */
#include "support.h"

typedef struct fault {
    const char *name;
    int allocates; /* must not be called in steady state */
} fault;

/* Faults that can happen with the device's engine, NULL-terminated. */
const fault *const *faults_of(const device *dev);
extern const fault *const faults_cuda[]; /* faults_cuda.c */

/* The k-th call from now on fails, once. UINT32_MAX: none does, they are counted. */
void fault_arm(const fault *f, uint32_t k);
uint32_t fault_calls(void);
/* Nonzero if the call came and failed. */
int fault_disarm(void);
int fault_due(const fault *f);

/* Defines NAME's wrapper; `failed` is what a failing call returns. */
#define FAULT(result, name, parameters, arguments, failed, allocates)                                                  \
    static const fault fault_##name = {#name, allocates};                                                              \
    result __real_##name parameters;                                                                                   \
    result __wrap_##name parameters;                                                                                   \
    result __wrap_##name parameters                                                                                    \
    {                                                                                                                  \
        if (fault_due(&fault_##name))                                                                                  \
            return failed;                                                                                             \
        return __real_##name arguments;                                                                                \
    }

#endif
