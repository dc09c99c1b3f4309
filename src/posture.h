/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_SRC_POSTURE_H
#define KVX_SRC_POSTURE_H
/*
 * What can be found out about the platform, as a list of checks. posture.c: the list, the judgement, the API;
 * posture_tee.c: processor and guest; posture_process.c: kernel and process; posture_nvml.c: the GPU, the one place
 * that knows NVML. Everything is asked through platform.h.
 */
#include "kvx_keys.h"
#include "secmem.h"

/* What is looked at, and how strictly. */
typedef struct kvx_posture_subject {
    kvx_policy policy;
    uint32_t allow;
    kvx_engine engine; /* CUDA: the GPU counts. CPU: there is none. AUTO: the first GPU, if there is one */
    uint8_t gpu_uuid[16];
    enum kvx_secmem_rung rung;
    int attestation; /* a kvx_attestation; 0: no verdict */
} kvx_posture_subject;

/* Fills everything but size, engine and key_id. */
void kvx_posture_look(const kvx_posture_subject *subject, kvx_posture *posture);
/* KVX_OK, or KVX_UNTRUSTED with every check that is not good in the note, if the policy is ENFORCE. */
kvx_status kvx_posture_gate(const kvx_posture *posture);

/* For the files that look. `allowed`: the KVX_ALLOW_ bit that makes it ALLOWED when it is not good; 0: none. */
typedef struct kvx_finding {
    const char *name, *remedy;
    kvx_check_state state;
    uint32_t allowed;
} kvx_finding;
void kvx_posture_add(kvx_posture *posture, const kvx_posture_subject *subject, const kvx_finding *finding,
                     const char *format, ...) __attribute__((format(printf, 4, 5)));
void kvx_posture_look_at_tee(const kvx_posture_subject *subject, kvx_posture *posture);
void kvx_posture_look_at_process(const kvx_posture_subject *subject, kvx_posture *posture);
void kvx_posture_look_at_gpu(const kvx_posture_subject *subject, kvx_posture *posture);

/* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" */
void kvx_gpu_uuid_text(const uint8_t uuid[16], char text[48]);

/* The attestation report of the GPU with this UUID for a nonce, and its certificates. KVX_UNSUPPORTED: it gives none.
 * KVX_INTERNAL: another GPU's, or one for another nonce. */
typedef struct kvx_gpu_report {
    uint8_t *report, *certificates; /* KVX_GPU_REPORT_BYTES_MAX, KVX_GPU_CERTIFICATES_BYTES_MAX */
    uint32_t report_bytes, certificates_bytes;
} kvx_gpu_report;
kvx_status kvx_gpu_attest(const uint8_t uuid[16], const uint8_t nonce[32], kvx_gpu_report *report);

#endif
