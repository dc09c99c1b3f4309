/* SPDX-License-Identifier: Apache-2.0 */
/* The list of checks and what a policy makes of it. */
#include "posture.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "context.h"

void kvx_posture_add(kvx_posture *posture, const kvx_posture_subject *subject, const kvx_finding *finding,
                     const char *format, ...)
{
    kvx_check *check = &posture->checks[posture->n_checks];
    va_list arguments;
    if (posture->n_checks == KVX_CHECKS_MAX)
        return;
    posture->n_checks++;
    check->name = finding->name;
    check->remedy = finding->remedy;
    check->state = finding->state;
    if (finding->allowed & subject->allow && (check->state == KVX_CHECK_BAD || check->state == KVX_CHECK_UNKNOWN))
        check->state = KVX_CHECK_ALLOWED;
    va_start(arguments, format);
    (void)vsnprintf(check->found, sizeof check->found, format, arguments);
    va_end(arguments);
}

static void look_at_attestation(const kvx_posture_subject *subject, kvx_posture *posture)
{
    static const char *const found[] = {"no verdict", "passed", "failed", "evidence is stale",
                                        "evidence is of other GPUs than the context's"};
    kvx_finding finding = {.name = "attestation",
                           .remedy = "give kvx_key_config.verdict a function that has kvx_evidence verified"};
    finding.state = subject->attestation == KVX_ATTEST_PASS ? KVX_CHECK_GOOD
                    : subject->attestation == 0             ? KVX_CHECK_UNKNOWN
                                                            : KVX_CHECK_BAD;
    kvx_posture_add(posture, subject, &finding, "%s", found[subject->attestation]);
}

void kvx_posture_look(const kvx_posture_subject *subject, kvx_posture *posture)
{
    uint32_t i;
    posture->policy = subject->policy;
    posture->n_checks = 0;
    kvx_posture_look_at_tee(subject, posture);
    kvx_posture_look_at_process(subject, posture);
    kvx_posture_look_at_gpu(subject, posture);
    look_at_attestation(subject, posture);
    posture->good_enough = 1;
    for (i = 0; i < posture->n_checks; i++)
        if (posture->checks[i].state == KVX_CHECK_BAD || posture->checks[i].state == KVX_CHECK_UNKNOWN)
            posture->good_enough = 0;
}

kvx_status kvx_posture_gate(const kvx_posture *posture)
{
    char names[800];
    size_t n = 0;
    uint32_t i;
    if (posture->policy != KVX_POLICY_ENFORCE || posture->good_enough)
        return KVX_OK;
    for (i = 0; i < posture->n_checks && n < sizeof names; i++) {
        const kvx_check *check = &posture->checks[i];
        if (check->state == KVX_CHECK_BAD || check->state == KVX_CHECK_UNKNOWN)
            n += (size_t)snprintf(names + n, sizeof names - n, "%s%s%s", n ? ", " : "", check->name,
                                  check->state == KVX_CHECK_UNKNOWN ? " (unknown)" : "");
    }
    return kvx_note(KVX_UNTRUSTED, "policy ENFORCE refuses this platform: %s; kvx-info says what to do", names);
}

static enum kvx_secmem_rung rung_here(void)
{
    enum kvx_secmem_rung rung = KVX_SECMEM_NONE;
    void *page = NULL;
    if (kvx_secmem_map(1, &page, &rung) == KVX_OK)
        kvx_secmem_unmap(page, 1);
    return rung;
}

kvx_posture_subject kvx_trust_subject(const kvx_ctx *ctx)
{
    kvx_posture_subject subject = {.policy = ctx->trust.policy,
                                   .allow = ctx->trust.allow,
                                   .engine = ctx->ops->kind,
                                   .rung = kvx_keyring_rung(ctx->keyring),
                                   .attestation = atomic_load(&ctx->trust.attestation)};
    memcpy(subject.gpu_uuid, ctx->trust.identity.uuid, sizeof subject.gpu_uuid);
    return subject;
}

kvx_status kvx_posture_get(kvx_ctx *ctx, kvx_posture *posture)
{
    kvx_posture_subject subject = {.policy = KVX_POLICY_WARN, .engine = KVX_ENGINE_AUTO};
    kvx_posture own;
    size_t size;
    if (ctx)
        KVX_TRY(kvx_ctx_alive(ctx));
    KVX_TRY(kvx_copy_sized(&own, sizeof own, posture, "kvx_posture"));
    size = own.size;
    memset(&own, 0, sizeof own);
    own.size = size;
    if (ctx) {
        subject = kvx_trust_subject(ctx);
        own.engine = subject.engine;
        memcpy(own.key_id, ctx->trust.key_id, sizeof own.key_id);
    } else {
        subject.rung = rung_here();
    }
    kvx_posture_look(&subject, &own);
    memcpy(posture, &own, size);
    return KVX_OK;
}
