/* SPDX-License-Identifier: Apache-2.0 */
/* Evidence: quotes through a made-up configfs-tsm with its generations, races and errors; the GPU's report; and the
 * hashes, computed a second time from what kvx_keys.h says. */
#include "support.h"

#include <stdlib.h>

#include <openssl/evp.h>

#include "../src/context.h"
#include "../src/evidence.h"
#include "../src/posture.h"
#include "fake_platform.h"
#include "kvx_keys.h"

static const kvx_slot_class two_slots = {.slot_bytes = 8192, .n_slots = 2, .max_units = 2};
static uint8_t data[64];

static int reset(void **state)
{
    (void)state;
    fake_reset();
    for (int i = 0; i < 64; i++)
        data[i] = (uint8_t)(7 * i + 1);
    kvx_platform_replace(&fake_platform);
    return 0;
}

static int restore(void **state)
{
    (void)state;
    kvx_platform_replace(NULL);
    return 0;
}

/* ------------------------------------------------------------------------------------------------------- configfs-tsm
 */

static kvx_status ask(kvx_tsm_quote *quote)
{
    static uint8_t bytes[KVX_QUOTE_BYTES_MAX];
    memset(bytes, 0, sizeof bytes);
    *quote = (kvx_tsm_quote){.bytes = bytes};
    const kvx_status status = kvx_tsm_get_quote(data, quote);
    assert_int_equal(fake.n_entries, 0); /* every entry is removed again */
    assert_int_equal(quote->n_bytes != 0, status == KVX_OK);
    return status;
}

static void expect_quote(void)
{
    kvx_tsm_quote quote;
    expect_ok(ask(&quote));
    assert_int_equal(quote.n_bytes, 5006);
    assert_memory_equal(quote.bytes + 568, data, 64);
    assert_string_equal(quote.provider, "tdx_guest");
}

static void a_quote_in_pieces(void **state)
{
    (void)state;
    expect_quote();
    assert_int_equal(fake.n_entries_made, 1);
    for (size_t n = 1; n < 4096; n = 2 * n + 1) {
        fake.read_at_most = n;
        expect_quote();
    }
    fake.read_at_most = 100;
    fake.tsm_interrupts = 20;
    expect_quote();
}

/* What others do in between costs attempts, and each gets an entry of its own. */
static void races_are_noticed(void **state)
{
    kvx_tsm_quote quote;
    int *const races[] = {&fake.tsm_overtaken, &fake.tsm_busy_writes, &fake.tsm_blocked_reads, &fake.tsm_exists};
    (void)state;
    for (size_t i = 0; i < 4; i++)
        for (int n = 1; n < 8; n++) {
            fake_reset();
            *races[i] = n;
            expect_quote();
            assert_int_equal(fake.n_entries_made, i == 3 ? 1 : n + 1);
        }
    for (size_t i = 0; i < 4; i++) {
        fake_reset();
        *races[i] = 1000;
        assert_int_equal(ask(&quote), KVX_AGAIN);
        assert_in_range(fake.n_entries_made, 0, 8);
    }
}

static void errors_are_told_apart(void **state)
{
    kvx_tsm_quote quote;
    static const struct {
        size_t field;
        kvx_status status;
        const char *note;
    } cases[] = {
        {offsetof(fake_world, tsm_too_big), KVX_UNSUPPORTED, "EFBIG"},
        {offsetof(fake_world, tsm_io_error), KVX_INTERNAL, "errno"},
        {offsetof(fake_world, tsm_bad_generation), KVX_INTERNAL, "no number"},
        {offsetof(fake_world, tsm_no_generation), KVX_UNSUPPORTED, "generation"},
        {offsetof(fake_world, tsm_wrong_data), KVX_INTERNAL, "report data"},
        {offsetof(fake_world, tsm_empty), KVX_INTERNAL, "0 bytes"},
        {offsetof(fake_world, tsm_huge), KVX_INTERNAL, "bytes"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        fake_reset();
        memcpy((char *)&fake + cases[i].field, &(int){1}, sizeof(int));
        assert_int_equal(ask(&quote), cases[i].status);
        assert_non_null(strstr(kvx_last_error(), cases[i].note));
    }
    fake_reset();
    fake.provider = NULL;
    assert_int_equal(ask(&quote), KVX_UNSUPPORTED);
    fake.provider = "a provider whose name is far too long to be one";
    assert_int_equal(ask(&quote), KVX_UNSUPPORTED);
}

/* ------------------------------------------------------------------------------------------------------- GPU report */

static void gpu_reports(void **state)
{
    uint8_t report_bytes[KVX_GPU_REPORT_BYTES_MAX], certificates[KVX_GPU_CERTIFICATES_BYTES_MAX], nonce[32] = {9, 8, 7};
    kvx_gpu_report report = {.report = report_bytes, .certificates = certificates};
    (void)state;
    expect_ok(kvx_gpu_attest(fake_uuid, nonce, &report));
    assert_int_equal(report.report_bytes, 3000);
    assert_int_equal(report.certificates_bytes, 2222);
    assert_memory_equal(report_bytes + 4, nonce, 32);
    assert_int_equal(certificates[2221], 0x43);
    fake.gpu_report_without_nonce = 1;
    assert_int_equal(kvx_gpu_attest(fake_uuid, nonce, &report), KVX_INTERNAL);
    assert_int_equal(report.report_bytes, 0);
    fake_reset();
    fake.gpu_report_too_long = 1;
    assert_int_equal(kvx_gpu_attest(fake_uuid, nonce, &report), KVX_INTERNAL);
    fake_reset();
    fake.uuid = "GPU-another"; /* asked for ours, another answers */
    assert_int_equal(kvx_gpu_attest(fake_uuid, nonce, &report), KVX_INTERNAL);
    assert_non_null(strstr(kvx_last_error(), "GPU-another"));
    fake_reset();
    fake.gpu_report_fails = 1;
    assert_int_equal(kvx_gpu_attest(fake_uuid, nonce, &report), KVX_UNSUPPORTED);
    fake_reset();
    fake.no_nvml = 1;
    assert_int_equal(kvx_gpu_attest(fake_uuid, nonce, &report), KVX_UNSUPPORTED);
    fake_reset();
    fake.missing = "nvmlDeviceGetConfComputeGpuCertificate";
    assert_int_equal(kvx_gpu_attest(fake_uuid, nonce, &report), KVX_UNSUPPORTED);
    assert_int_equal(fake.n_loaded, 0);
}

/* ----------------------------------------------------------------------------------------------------------- hashes */

static EVP_MD_CTX *hash;

static void hash_begin(void)
{
    hash = EVP_MD_CTX_new();
    assert_int_equal(EVP_DigestInit_ex(hash, EVP_sha384(), NULL), 1);
}

static void hash_field(const void *bytes, size_t n)
{
    const uint8_t length[4] = {0, 0, (uint8_t)(n >> 8), (uint8_t)n};
    assert_int_equal(EVP_DigestUpdate(hash, length, 4), 1);
    assert_int_equal(EVP_DigestUpdate(hash, bytes, n), 1);
}

static void hash_end(uint8_t out[48])
{
    assert_int_equal(EVP_DigestFinal_ex(hash, out, NULL), 1);
    EVP_MD_CTX_free(hash);
}

static void hash_claims(const kvx_evidence *e, const char *label)
{
    const uint8_t policy[8] = {0, 0, 0, (uint8_t)e->policy, 0, 0, 0, (uint8_t)e->allow};
    hash_begin();
    hash_field(label, strlen(label));
    hash_field("kvx/claims/1", 12);
    hash_field(e->key_commitment, 32);
    hash_field(policy, 8);
    hash_field(e->instance, 32);
    hash_field(e->nonce, e->nonce_bytes);
}

static void expect_hashes(const kvx_evidence *e)
{
    uint8_t wanted[48], zero[48] = {0};
    hash_claims(e, "kvx/gpu-nonce/1");
    hash_end(wanted);
    assert_memory_equal(e->gpu_nonce, wanted, 32);
    if (e->gpu_report_bytes) {
        hash_begin();
        hash_field("kvx/gpu-evidence/1", 18);
        hash_field(e->gpu_uuid, strlen(e->gpu_uuid));
        hash_field(e->gpu_report, e->gpu_report_bytes);
        hash_field(e->gpu_certificates, e->gpu_certificates_bytes);
        hash_end(wanted);
        assert_memory_equal(e->gpu_evidence, wanted, 48);
    } else {
        assert_memory_equal(e->gpu_evidence, zero, 48);
    }
    hash_claims(e, "kvx/report-data/1");
    hash_field(e->gpu_evidence, 48);
    hash_end(wanted);
    assert_memory_equal(e->report_data, wanted, 48);
    assert_memory_equal(e->report_data + 48, zero, 16);
    if (e->quote_bytes)
        assert_memory_equal(e->quote + 568, e->report_data, 64);
}

static kvx_ctx *context(kvx_pool *pool, uint32_t allow)
{
    kvx_key_config keys = KVX_KEY_CONFIG_INIT;
    kvx_config config = KVX_CONFIG_INIT;
    kvx_ctx *ctx = NULL;
    config.engine = KVX_ENGINE_CPU;
    config.keys = &keys;
    keys.allow = allow;
    expect_ok(kvx_ctx_create(pool, &config, &ctx));
    return ctx;
}

/* Every input that changes changes the report data. */
static void everything_is_bound(void **state)
{
    enum { N = 6 };
    kvx_pool *pool = pool_make(&device_cpu, &two_slots, 1);
    kvx_evidence *e = calloc(N, sizeof *e);
    kvx_ctx *ctxs[3];
    (void)state;
    assert_non_null(e);
    ctxs[0] = context(pool, 0);
    ctxs[1] = context(pool, 0); /* another instance with other keys */
    ctxs[2] = context(pool, KVX_ALLOW_SWAP);
    for (int i = 0; i < N; i++)
        e[i].size = sizeof *e;
    expect_ok(kvx_evidence_get(ctxs[0], "nonce", 5, &e[0]));
    expect_ok(kvx_evidence_get(ctxs[1], "nonce", 5, &e[1]));
    expect_ok(kvx_evidence_get(ctxs[2], "nonce", 5, &e[2]));
    expect_ok(kvx_evidence_get(ctxs[0], "nonce2", 6, &e[3]));
    expect_ok(kvx_evidence_get(ctxs[0], NULL, 0, &e[4]));
    expect_ok(kvx_evidence_get(ctxs[0], data, 64, &e[5]));
    for (int i = 0; i < N; i++) {
        expect_hashes(&e[i]);
        assert_int_equal(e[i].quote_bytes, 5006);
        assert_string_equal(e[i].provider, "tdx_guest");
        assert_string_equal(e[i].note, "");
        for (int k = 0; k < i; k++)
            assert_memory_not_equal(e[i].report_data, e[k].report_data, 48);
    }
    assert_memory_equal(e[0].key_commitment, e[3].key_commitment, 32);
    assert_memory_not_equal(e[0].key_commitment, e[1].key_commitment, 32);
    assert_memory_not_equal(e[0].instance, e[1].instance, 32);
    for (int i = 0; i < 3; i++)
        kvx_ctx_destroy(ctxs[i]);
    free(e);
    expect_ok(kvx_pool_destroy(pool));
}

/* The same context, with a GPU as its engine would report one. */
static void the_gpu_is_bound(void **state)
{
    kvx_pool *pool = pool_make(&device_cpu, &two_slots, 1);
    kvx_evidence *e = calloc(1, sizeof *e);
    kvx_ctx *ctx = context(pool, 0);
    const kvx_engine_ops *cpu = ctx->ops;
    kvx_engine_ops with_gpu = *cpu;
    (void)state;
    assert_non_null(e);
    with_gpu.kind = KVX_ENGINE_CUDA;
    ctx->ops = &with_gpu;
    memcpy(ctx->trust.identity.uuid, fake_uuid, 16);
    e->size = sizeof *e;
    expect_ok(kvx_evidence_get(ctx, "n", 1, e));
    assert_int_equal(e->gpu_report_bytes, 3000);
    assert_memory_equal(e->gpu_report + 4, e->gpu_nonce, 32);
    assert_string_equal(e->gpu_uuid, fake.uuid);
    expect_hashes(e);
    fake.gpu_report_fails = 1;
    fake.provider = NULL;
    expect_ok(kvx_evidence_get(ctx, "n", 1, e));
    assert_int_equal(e->gpu_report_bytes + e->quote_bytes, 0);
    assert_non_null(strstr(e->note, "GPU"));
    assert_non_null(strstr(e->note, "configfs-tsm"));
    expect_hashes(e);
    fake_reset();
    fake.uuid = "GPU-another";
    assert_int_equal(kvx_evidence_get(ctx, "n", 1, e), KVX_INTERNAL);
    ctx->ops = cpu;
    kvx_ctx_destroy(ctx);
    free(e);
    expect_ok(kvx_pool_destroy(pool));
}

static void bad_calls(void **state)
{
    kvx_pool *pool = pool_make(&device_cpu, &two_slots, 1);
    kvx_evidence *e = calloc(1, sizeof *e);
    kvx_ctx *ctx = context(pool, 0);
    uint8_t long_nonce[65] = {0};
    (void)state;
    assert_non_null(e);
    e->size = sizeof *e;
    assert_int_equal(kvx_evidence_get(ctx, long_nonce, 65, e), KVX_INVALID);
    assert_int_equal(kvx_evidence_get(ctx, NULL, 4, e), KVX_INVALID);
    assert_int_equal(kvx_evidence_get(NULL, long_nonce, 4, e), KVX_INVALID);
    assert_int_equal(kvx_evidence_get(ctx, long_nonce, 4, NULL), KVX_INVALID);
    e->size = 12345678;
    assert_int_equal(kvx_evidence_get(ctx, long_nonce, 4, e), KVX_INVALID);
    e->size = sizeof *e;
    fake.tsm_overtaken = 1000;
    assert_int_equal(kvx_evidence_get(ctx, long_nonce, 4, e), KVX_AGAIN);
    assert_int_equal(e->quote_bytes, 0);
    kvx_ctx_destroy(ctx);
    free(e);
    expect_ok(kvx_pool_destroy(pool));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_quote_in_pieces, reset, restore),
        cmocka_unit_test_setup_teardown(races_are_noticed, reset, restore),
        cmocka_unit_test_setup_teardown(errors_are_told_apart, reset, restore),
        cmocka_unit_test_setup_teardown(gpu_reports, reset, restore),
        cmocka_unit_test_setup_teardown(everything_is_bound, reset, restore),
        cmocka_unit_test_setup_teardown(the_gpu_is_bound, reset, restore),
        cmocka_unit_test_setup_teardown(bad_calls, reset, restore),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
