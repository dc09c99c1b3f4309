/* SPDX-License-Identifier: Apache-2.0 */
/* What a relying party gets to verify: hashes that tie keys, policy, instance, nonce, GPU and guest together, the quote
 * and the GPU's report. The verdict is the relying party's. */
#include "evidence.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "posture.h"

static kvx_field text(const char *name)
{
    return (kvx_field){name, strlen(name)};
}

static void put_be32(uint8_t *bytes, uint32_t value)
{
    for (unsigned i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(value >> (24 - 8 * i));
}

#define N_CLAIMS 5
/* Fields 1 .. N_CLAIMS; the caller's label is field 0. `policy` holds 8 bytes and must live as long. */
static void fill_claims(const kvx_evidence *e, uint8_t policy[8], kvx_field *fields)
{
    put_be32(policy, (uint32_t)e->policy);
    put_be32(policy + 4, e->allow);
    fields[1] = text("kvx/claims/1");
    fields[2] = (kvx_field){e->key_commitment, sizeof e->key_commitment};
    fields[3] = (kvx_field){policy, 8};
    fields[4] = (kvx_field){e->instance, sizeof e->instance};
    fields[5] = (kvx_field){e->nonce, e->nonce_bytes};
}

static kvx_status make_gpu_nonce(kvx_evidence *e)
{
    kvx_field fields[1 + N_CLAIMS] = {text("kvx/gpu-nonce/1")};
    uint8_t policy[8], hash[KVX_HASH_BYTES];
    fill_claims(e, policy, fields);
    KVX_TRY(kvx_keyring_hash(fields, 1 + N_CLAIMS, hash));
    memcpy(e->gpu_nonce, hash, sizeof e->gpu_nonce);
    return KVX_OK;
}

static kvx_status hash_gpu_evidence(kvx_evidence *e)
{
    const kvx_field fields[] = {text("kvx/gpu-evidence/1"),
                                {e->gpu_uuid, strlen(e->gpu_uuid)},
                                {e->gpu_report, e->gpu_report_bytes},
                                {e->gpu_certificates, e->gpu_certificates_bytes}};
    if (e->gpu_report_bytes == 0)
        return KVX_OK; /* zeros */
    return kvx_keyring_hash(fields, 4, e->gpu_evidence);
}

static kvx_status make_report_data(kvx_evidence *e)
{
    kvx_field fields[2 + N_CLAIMS] = {text("kvx/report-data/1")};
    uint8_t policy[8];
    fill_claims(e, policy, fields);
    fields[1 + N_CLAIMS] = (kvx_field){e->gpu_evidence, sizeof e->gpu_evidence};
    return kvx_keyring_hash(fields, 2 + N_CLAIMS, e->report_data);
}

/* What cannot be had is named; an answer that does not fit is an error. */
static kvx_status tolerate(kvx_evidence *e, kvx_status status)
{
    const size_t n = strlen(e->note);
    if (status == KVX_UNSUPPORTED)
        (void)snprintf(e->note + n, sizeof e->note - n, "%s%s", n ? "; " : "", kvx_last_error());
    return status == KVX_UNSUPPORTED ? KVX_OK : status;
}

static kvx_status add_gpu(const kvx_ctx *ctx, kvx_evidence *e)
{
    kvx_gpu_report report = {.report = e->gpu_report, .certificates = e->gpu_certificates};
    kvx_status status;
    if (ctx->ops->kind != KVX_ENGINE_CUDA)
        return KVX_OK;
    kvx_gpu_uuid_text(ctx->trust.identity.uuid, e->gpu_uuid);
    status = kvx_gpu_attest(ctx->trust.identity.uuid, e->gpu_nonce, &report);
    if (status == KVX_OK) {
        e->gpu_report_bytes = report.report_bytes;
        e->gpu_certificates_bytes = report.certificates_bytes;
    }
    return tolerate(e, status);
}

static kvx_status add_quote(kvx_evidence *e)
{
    kvx_tsm_quote quote = {.bytes = e->quote};
    kvx_status status = kvx_tsm_get_quote(e->report_data, &quote);
    if (status == KVX_OK) {
        e->quote_bytes = quote.n_bytes;
        memcpy(e->provider, quote.provider, sizeof e->provider);
    }
    return tolerate(e, status);
}

static kvx_status collect(kvx_ctx *ctx, const void *nonce, size_t nonce_bytes, kvx_evidence *e)
{
    const size_t size = e->size;
    if (nonce_bytes > KVX_NONCE_BYTES_MAX || (nonce_bytes && !nonce))
        return kvx_note(KVX_INVALID, "a nonce of %zu bytes: at most %u", nonce_bytes, KVX_NONCE_BYTES_MAX);
    memset(e, 0, sizeof *e);
    e->size = size;
    if (nonce_bytes)
        memcpy(e->nonce, nonce, nonce_bytes);
    e->nonce_bytes = (uint32_t)nonce_bytes;
    e->policy = ctx->trust.policy;
    e->allow = ctx->trust.allow;
    memcpy(e->key_commitment, ctx->trust.commitment, sizeof e->key_commitment);
    memcpy(e->instance, ctx->trust.instance, sizeof e->instance);
    KVX_TRY(make_gpu_nonce(e));
    KVX_TRY(add_gpu(ctx, e));
    KVX_TRY(hash_gpu_evidence(e));
    KVX_TRY(make_report_data(e));
    return add_quote(e);
}

kvx_status kvx_evidence_get(kvx_ctx *ctx, const void *nonce, size_t nonce_bytes, kvx_evidence *evidence)
{
    kvx_evidence *own;
    kvx_status status;
    KVX_TRY(kvx_ctx_alive(ctx));
    own = calloc(1, sizeof *own);
    if (!own)
        return kvx_note(KVX_NO_MEMORY, "no memory for evidence");
    status = kvx_copy_sized(own, sizeof *own, evidence, "kvx_evidence");
    if (status == KVX_OK)
        status = collect(ctx, nonce, nonce_bytes, own);
    if (status == KVX_OK)
        memcpy(evidence, own, own->size);
    free(own);
    return status;
}

kvx_status kvx_evidence_ask(kvx_ctx *ctx, const void *nonce, size_t nonce_bytes)
{
    kvx_evidence *e;
    kvx_attestation attestation = (kvx_attestation)0;
    kvx_status status;
    if (!ctx->trust.verdict)
        return KVX_OK;
    atomic_store(&ctx->trust.attestation, 0);
    e = calloc(1, sizeof *e);
    if (!e)
        return kvx_note(KVX_NO_MEMORY, "no memory for evidence");
    e->size = sizeof *e;
    status = collect(ctx, nonce, nonce_bytes, e);
    if (status == KVX_OK && ctx->trust.verdict(ctx->trust.arg, e, &attestation) == KVX_OK &&
        attestation >= KVX_ATTEST_PASS && attestation <= KVX_ATTEST_WRONG_DEVICE)
        atomic_store(&ctx->trust.attestation, (int)attestation);
    free(e);
    return status;
}

kvx_status kvx_reattest(kvx_ctx *ctx, const void *nonce, size_t nonce_bytes)
{
    kvx_status status;
    uint32_t tenant;
    KVX_TRY(kvx_ctx_usable(ctx));
    if (!ctx->trust.verdict)
        return kvx_note(KVX_INVALID, "the context was created without a verdict callback");
    status = kvx_evidence_ask(ctx, nonce, nonce_bytes);
    if (ctx->trust.policy == KVX_POLICY_ENFORCE && atomic_load(&ctx->trust.attestation) != KVX_ATTEST_PASS) {
        kvx_ctx_latch(ctx);
        return kvx_note(KVX_LATCHED, "the new verdict is not a pass: the context is out of use");
    }
    KVX_TRY(status);
    for (tenant = 0; tenant < ctx->n_tenants; tenant++)
        (void)kvx_key_rotate(ctx, tenant); /* those that are open, where the engine can */
    return KVX_OK;
}
