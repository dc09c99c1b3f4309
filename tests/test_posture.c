/* SPDX-License-Identifier: Apache-2.0 */
/* The posture: a truth table of platforms, GPU modes, verdicts and policies against an oracle of its own, then each
 * check by itself. Everything is seen through the made-up platform. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>

#include "../src/posture.h"
#include "fake_platform.h"
#include "kvx_keys.h"

static int reset(void **state)
{
    (void)state;
    fake_reset();
    kvx_platform_replace(&fake_platform);
    return 0;
}

static int restore(void **state)
{
    (void)state;
    kvx_platform_replace(NULL);
    return 0;
}

static kvx_posture_subject good_subject(void)
{
    kvx_posture_subject subject = {.policy = KVX_POLICY_ENFORCE,
                                   .engine = KVX_ENGINE_CUDA,
                                   .rung = KVX_SECMEM_SECRET,
                                   .attestation = KVX_ATTEST_PASS};
    memcpy(subject.gpu_uuid, fake_uuid, 16);
    return subject;
}

static kvx_check_state state_of(const kvx_posture *posture, const char *name)
{
    for (uint32_t i = 0; i < posture->n_checks; i++)
        if (strcmp(posture->checks[i].name, name) == 0)
            return posture->checks[i].state;
    return KVX_CHECK_NONE;
}

static kvx_posture look(const kvx_posture_subject *subject)
{
    kvx_posture posture;
    memset(&posture, 0, sizeof posture);
    kvx_posture_look(subject, &posture);
    assert_int_equal(fake.n_entries, 0);
    assert_int_equal(fake.n_loaded, 0);
    for (uint32_t i = 0; i < posture.n_checks; i++) {
        assert_true(strlen(posture.checks[i].found) > 0);
        assert_non_null(posture.checks[i].remedy);
    }
    return posture;
}

/* ------------------------------------------------------------------------------------------------------ truth table */

enum { GUEST_TDX, GUEST_NO_DEVICE, GUEST_SNP, GUEST_PARAVISOR, GUEST_NONE, GUEST_MISMATCH, N_GUESTS };
enum { GPU_CC, GPU_OFF, GPU_DEVTOOLS, GPU_SIM, GPU_PPCIE, GPU_NVLE, GPU_NO_NVML, GPU_NO_SYMBOLS, GPU_OLD_NVML, N_GPUS };

static void set_guest(int guest)
{
    fake.tdx_leaf = guest == GUEST_TDX || guest == GUEST_NO_DEVICE || guest == GUEST_MISMATCH;
    fake.tdx_device = guest == GUEST_TDX || guest == GUEST_MISMATCH;
    fake.sev_device = guest == GUEST_SNP;
    fake.hyperv_isolation = guest == GUEST_PARAVISOR ? 3 : 0;
    fake.tpm_device = guest == GUEST_PARAVISOR;
    fake.provider = guest == GUEST_TDX || guest == GUEST_NO_DEVICE  ? "tdx_guest"
                    : guest == GUEST_SNP || guest == GUEST_MISMATCH ? "sev_guest"
                                                                    : NULL;
    fake.cpu_caps = guest == GUEST_SNP ? 3 : guest == GUEST_NONE ? 0 : 2;
}

static void set_gpu(int gpu)
{
    fake.cc_feature = gpu != GPU_OFF && gpu != GPU_PPCIE;
    fake.protected_kib = gpu == GPU_OFF ? 0 : 1u << 20;
    fake.devtools = gpu == GPU_DEVTOOLS;
    fake.environment_kind = gpu == GPU_SIM ? 1 : gpu == GPU_OFF ? 0 : 2;
    fake.multi_gpu = gpu == GPU_PPCIE ? 1 : gpu == GPU_NVLE ? 2 : 0;
    fake.no_nvml = gpu == GPU_NO_NVML;
    fake.missing = gpu == GPU_NO_SYMBOLS ? "nvmlSystemGetConfComputeSettings nvmlSystemGetConfComputeState"
                   : gpu == GPU_OLD_NVML ? "nvmlSystemGetConfComputeSettings"
                                         : "";
}

static int bad(kvx_check_state state)
{
    return state == KVX_CHECK_BAD || state == KVX_CHECK_UNKNOWN;
}

/* What must hold of a look at this combination, said without the code. */
static void expect_row(const kvx_posture *p, int guest, int debug, int gpu, int ready, int attestation)
{
    const int has_report = guest == GUEST_TDX || guest == GUEST_MISMATCH;
    static const kvx_tee tees[] = {KVX_TEE_TDX,       KVX_TEE_TDX,  KVX_TEE_SEV_SNP,
                                   KVX_TEE_PARAVISOR, KVX_TEE_NONE, KVX_TEE_TDX};
    static const kvx_check_state cc[] = {KVX_CHECK_GOOD, KVX_CHECK_BAD,     KVX_CHECK_GOOD,
                                         KVX_CHECK_GOOD, KVX_CHECK_BAD,     KVX_CHECK_GOOD,
                                         KVX_CHECK_NONE, KVX_CHECK_UNKNOWN, KVX_CHECK_GOOD};
    assert_int_equal(p->tee, tees[guest]);
    assert_int_equal(state_of(p, "tee.cpu"), guest == GUEST_NONE ? KVX_CHECK_BAD : KVX_CHECK_GOOD);
    assert_int_equal(bad(state_of(p, "tee.device")), guest == GUEST_NO_DEVICE || guest == GUEST_NONE);
    assert_int_equal(state_of(p, "tee.debug"), !has_report ? KVX_CHECK_UNKNOWN
                                               : debug     ? KVX_CHECK_BAD
                                                           : KVX_CHECK_GOOD);
    assert_int_equal(bad(state_of(p, "tee.quote")),
                     guest == GUEST_PARAVISOR || guest == GUEST_NONE || guest == GUEST_MISMATCH);
    assert_int_equal(p->has_measurements, has_report);
    assert_int_equal(state_of(p, "gpu.cc"), cc[gpu]);
    if (gpu == GPU_NO_NVML) {
        assert_int_equal(state_of(p, "gpu.nvml"), KVX_CHECK_UNKNOWN);
    } else {
        assert_int_equal(bad(state_of(p, "gpu.ready")), !ready);
        assert_int_equal(bad(state_of(p, "gpu.devtools")), gpu == GPU_DEVTOOLS || gpu == GPU_NO_SYMBOLS);
        assert_int_equal(bad(state_of(p, "gpu.environment")),
                         gpu == GPU_SIM || gpu == GPU_OFF || gpu == GPU_NO_SYMBOLS);
        assert_int_equal(bad(state_of(p, "gpu.caps")), guest == GUEST_NONE);
    }
    assert_int_equal(bad(state_of(p, "attestation")), attestation != KVX_ATTEST_PASS);
    assert_int_equal(p->good_enough, guest == GUEST_TDX && !debug && ready && attestation == KVX_ATTEST_PASS &&
                                         (gpu == GPU_CC || gpu == GPU_NVLE || gpu == GPU_OLD_NVML));
}

/* The note names what is bad, and nothing that is good. */
static void expect_gate(const kvx_posture *p)
{
    const kvx_status status = kvx_posture_gate(p);
    if (p->policy != KVX_POLICY_ENFORCE || p->good_enough) {
        assert_int_equal(status, KVX_OK);
        return;
    }
    assert_int_equal(status, KVX_UNTRUSTED);
    for (uint32_t i = 0; i < p->n_checks; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, " %s%s", p->checks[i].name,
                       p->checks[i].state == KVX_CHECK_UNKNOWN ? " (unknown)" : "");
        assert_int_equal(strstr(kvx_last_error(), name) != NULL, bad(p->checks[i].state));
    }
}

static void truth_table(void **state)
{
    unsigned n = 0, n_accepted = 0;
    (void)state;
    for (int i = 0; i < N_GUESTS * 2 * N_GPUS * 2 * 5 * 3; i++) {
        const int policy = i % 3, attestation = i / 3 % 5, ready = i / 15 % 2, gpu = i / 30 % N_GPUS,
                  debug = i / (30 * N_GPUS) % 2, guest = i / (60 * N_GPUS);
        kvx_posture_subject subject = good_subject();
        kvx_posture posture;
        fake_reset();
        set_guest(guest);
        set_gpu(gpu);
        fake.report_debug = debug;
        fake.ready = (unsigned)ready;
        subject.attestation = attestation;
        subject.policy = (kvx_policy)policy;
        posture = look(&subject);
        expect_row(&posture, guest, debug, gpu, ready, attestation);
        expect_gate(&posture);
        n++;
        n_accepted += posture.good_enough;
    }
    print_message("%u combinations, %u good enough\n", n, n_accepted);
    assert_true(n >= 3000);
    assert_int_equal(n_accepted, 3 * 3);
}

/* ------------------------------------------------------------------------------------------------------- one by one */

static void expect_only(const kvx_posture_subject *subject, const char *name, kvx_check_state wanted)
{
    const kvx_posture posture = look(subject);
    for (uint32_t i = 0; i < posture.n_checks; i++) {
        const int is_it = strcmp(posture.checks[i].name, name) == 0;
        if (is_it ? posture.checks[i].state != wanted : bad(posture.checks[i].state))
            fail_msg("%s: %d (%s), while looking at %s", posture.checks[i].name, (int)posture.checks[i].state,
                     posture.checks[i].found, name);
    }
    assert_int_equal(posture.good_enough, !bad(wanted));
    fake_reset();
}

static void each_breach_is_found(void **state)
{
    kvx_posture_subject s = good_subject();
    (void)state;
    expect_only(&s, "", KVX_CHECK_GOOD);
#define BREACH(change, name, wanted)                                                                                   \
    do {                                                                                                               \
        change;                                                                                                        \
        expect_only(&s, name, wanted);                                                                                 \
    } while (0)
    BREACH(fake.release = "6.8.12-generic\n", "kernel.random", KVX_CHECK_BAD);
    BREACH(fake.release = "5.99.1", "kernel.random", KVX_CHECK_BAD);
    BREACH(fake.release = "7.0.0", "kernel.random", KVX_CHECK_GOOD);
    BREACH(fake.release = NULL, "kernel.random", KVX_CHECK_UNKNOWN);
    BREACH(fake.core_bytes = 1, "process.core", KVX_CHECK_BAD);
    BREACH(fake.core_fails = 1, "process.core", KVX_CHECK_UNKNOWN);
    BREACH(fake.environment = "A=1\0CUDA_ENABLE_COREDUMP_ON_EXCEPTION=1\0";
           fake.environment_bytes = 41, "process.gpu_core", KVX_CHECK_BAD);
    BREACH(fake.environment = "CUDA_ENABLE_COREDUMP_ON_EXCEPTION=0", "process.gpu_core", KVX_CHECK_GOOD);
    BREACH(fake.environment = "XCUDA_ENABLE_COREDUMP_ON_EXCEPTION=1", "process.gpu_core", KVX_CHECK_GOOD);
    BREACH(fake.environment = "CUDA_INJECTION64_PATH=/x.so", "process.injection", KVX_CHECK_BAD);
    BREACH(fake.environment = "NVTX_INJECTION64_PATH=/x.so", "process.injection", KVX_CHECK_BAD);
    BREACH(fake.environment = "NVTX_INJECTION64_PATH=", "process.injection", KVX_CHECK_GOOD);
    BREACH(fake.environment = "LD_PRELOAD=/x.so", "process.injection", KVX_CHECK_BAD);
    BREACH(fake.swaps = "Filename\n/swapfile file 1 0 -2\n", "process.swap", KVX_CHECK_BAD);
    BREACH(fake.swaps = NULL, "process.swap", KVX_CHECK_UNKNOWN);
    BREACH(fake.status = "TracerPid:\t77\n", "process.tracer", KVX_CHECK_BAD);
    BREACH(fake.status = "Name:\tx\n", "process.tracer", KVX_CHECK_UNKNOWN);
    BREACH(fake.no_measurements = 1, "tee.measurements", KVX_CHECK_UNKNOWN);
    BREACH(fake.provider = NULL, "tee.quote", KVX_CHECK_UNKNOWN);
    BREACH(fake.provider = "arm_cca_guest", "tee.quote", KVX_CHECK_BAD);
    BREACH(fake.report_debug = 1, "tee.debug", KVX_CHECK_BAD);
    BREACH(fake.driver = "535.104.05", "gpu.driver", KVX_CHECK_BAD);
    BREACH(fake.missing = "nvmlSystemGetDriverVersion", "gpu.driver", KVX_CHECK_UNKNOWN);
    BREACH(fake.environment_kind = 9, "gpu.environment", KVX_CHECK_UNKNOWN);
    BREACH(fake.cc_feature = 5, "gpu.cc", KVX_CHECK_UNKNOWN);
    BREACH(fake.ready = 0, "gpu.ready", KVX_CHECK_BAD);
    BREACH(fake.missing = "nvmlSystemGetConfComputeGpusReadyState", "gpu.ready", KVX_CHECK_UNKNOWN);
    BREACH(fake.cpu_caps = 3, "gpu.caps", KVX_CHECK_BAD);
    BREACH(fake.gpu_caps = 0, "gpu.caps", KVX_CHECK_BAD);
    BREACH(fake.missing = "nvmlSystemGetConfComputeCapabilities", "gpu.caps", KVX_CHECK_UNKNOWN);
    BREACH(fake.protected_kib = 0, "gpu.protected_memory", KVX_CHECK_BAD);
    BREACH(fake.missing = "nvmlDeviceGetConfComputeMemSizeInfo", "gpu.protected_memory", KVX_CHECK_UNKNOWN);
    BREACH(fake.ecc = 0, "gpu.ecc", KVX_CHECK_BAD);
    BREACH(fake.missing = "nvmlDeviceGetEccMode", "gpu.ecc", KVX_CHECK_UNKNOWN);
    BREACH(fake.mig = 1, "gpu.mig", KVX_CHECK_BAD);
    BREACH(fake.mig_unsupported = 1, "gpu.mig", KVX_CHECK_GOOD);
    BREACH(fake.missing = "nvmlDeviceGetMigMode", "gpu.mig", KVX_CHECK_UNKNOWN);
    BREACH(fake.mps_clients = 2, "gpu.mps", KVX_CHECK_BAD);
    BREACH(fake.missing = "nvmlDeviceGetMPSComputeRunningProcesses_v3", "gpu.mps", KVX_CHECK_UNKNOWN);
    BREACH(fake.missing = "nvmlDeviceGetUUID", "gpu.nvml", KVX_CHECK_GOOD);
    s.rung = KVX_SECMEM_LOCKED;
    expect_only(&s, "process.secret_memory", KVX_CHECK_BAD);
    s.rung = KVX_SECMEM_NONE;
    expect_only(&s, "process.secret_memory", KVX_CHECK_UNKNOWN);
}

static void what_may_be_allowed(void **state)
{
    kvx_posture_subject s = good_subject();
    (void)state;
    s.allow = KVX_ALLOW_PPCIE | KVX_ALLOW_GPU_SHARING | KVX_ALLOW_SWAP | KVX_ALLOW_LOCKED | KVX_ALLOW_NO_ECC |
              KVX_ALLOW_NO_QUOTE;
    BREACH(fake.multi_gpu = 1; fake.cc_feature = 0, "gpu.cc", KVX_CHECK_ALLOWED);
    BREACH(fake.cc_feature = 0, "gpu.cc", KVX_CHECK_BAD); /* off is off */
    BREACH(fake.mig = 1, "gpu.mig", KVX_CHECK_ALLOWED);
    BREACH(fake.mps_clients = 1, "gpu.mps", KVX_CHECK_ALLOWED);
    BREACH(fake.swaps = "Filename\n/swapfile file 1 0 -2\n", "process.swap", KVX_CHECK_ALLOWED);
    BREACH(fake.ecc = 0, "gpu.ecc", KVX_CHECK_ALLOWED);
    BREACH(fake.provider = NULL, "tee.quote", KVX_CHECK_ALLOWED);
    BREACH(fake.report_debug = 1, "tee.debug", KVX_CHECK_BAD);
    BREACH(fake.core_bytes = 1, "process.core", KVX_CHECK_BAD);
    s.rung = KVX_SECMEM_LOCKED;
    expect_only(&s, "process.secret_memory", KVX_CHECK_ALLOWED);
}

/* Whatever is missing or fails is never taken for good. */
static void nothing_known_is_nothing_good(void **state)
{
    kvx_posture_subject s = good_subject();
    kvx_posture p;
    (void)state;
    fake.report_of_other_data = 1;
    p = look(&s);
    assert_int_equal(state_of(&p, "tee.debug"), KVX_CHECK_UNKNOWN);
    assert_int_equal(p.has_measurements, 0);
    fake_reset();
    fake.report_fails = 1;
    p = look(&s);
    assert_int_equal(state_of(&p, "tee.debug"), KVX_CHECK_UNKNOWN);
    fake_reset();
    fake.no_cpuid = 1;
    p = look(&s);
    assert_int_equal(state_of(&p, "tee.cpu"), KVX_CHECK_UNKNOWN);
    fake_reset();
    fake.init_fails = 1;
    p = look(&s);
    assert_int_equal(state_of(&p, "gpu.nvml"), KVX_CHECK_UNKNOWN);
    fake_reset();
    s.gpu_uuid[3] ^= 1; /* NVML knows no such GPU */
    p = look(&s);
    assert_int_equal(state_of(&p, "gpu.nvml"), KVX_CHECK_UNKNOWN);
    assert_int_equal(p.good_enough, 0);
    s = good_subject();
    fake.environment_bytes = 1 << 19; /* longer than is read */
    fake.environment = calloc(1, 1 << 19);
    p = look(&s);
    free((void *)(uintptr_t)fake.environment);
    assert_int_equal(state_of(&p, "process.injection"), KVX_CHECK_UNKNOWN);
}

static void cpu_engine_has_no_gpu(void **state)
{
    kvx_posture_subject s = good_subject();
    kvx_posture p;
    (void)state;
    s.engine = KVX_ENGINE_CPU;
    fake.no_nvml = 1;
    p = look(&s);
    assert_int_equal(state_of(&p, "gpu"), KVX_CHECK_NONE);
    assert_int_equal(p.good_enough, 1);
}

/* -------------------------------------------------------------------------------------------------- through the API */

static kvx_attestation answer;
static unsigned n_asked;

static kvx_status verify(void *arg, const struct kvx_evidence *evidence, kvx_attestation *attestation)
{
    n_asked++;
    assert_ptr_equal(arg, &answer);
    assert_int_equal(evidence->nonce_bytes, 5);
    *attestation = answer;
    return answer == 0 ? KVX_TIMEOUT : KVX_OK;
}

static void policies_at_create(void **state)
{
    static const kvx_slot_class class = {.slot_bytes = 8192, .n_slots = 2, .max_units = 2};
    kvx_key_config keys = KVX_KEY_CONFIG_INIT;
    kvx_config config = KVX_CONFIG_INIT;
    kvx_posture posture;
    kvx_pool *pool = pool_make(&device_cpu, &class, 1);
    (void)state;
    config.engine = KVX_ENGINE_CPU;
    config.keys = &keys;
    keys.verdict = verify;
    keys.arg = &answer;
    keys.nonce = "nonce";
    keys.nonce_bytes = 5;
    for (int policy = 0; policy < 3; policy++)
        for (int a = 0; a < 6; a++)
            for (int is_tdx = 0; is_tdx < 2; is_tdx++) {
                const int wanted = policy != KVX_POLICY_ENFORCE || (is_tdx && a == KVX_ATTEST_PASS);
                kvx_ctx *ctx = NULL;
                fake_reset();
                fake.tdx_leaf = is_tdx;
                answer = (kvx_attestation)a;
                keys.policy = (kvx_policy)policy;
                n_asked = 0;
                assert_int_equal(kvx_ctx_create(pool, &config, &ctx), wanted ? KVX_OK : KVX_UNTRUSTED);
                assert_int_equal(n_asked, 1);
                assert_int_equal(ctx != NULL, wanted);
                if (!wanted && !is_tdx)
                    assert_non_null(strstr(kvx_last_error(), "tee.cpu"));
                if (!ctx)
                    continue;
                memset(&posture, 0, sizeof posture);
                posture.size = sizeof posture;
                expect_ok(kvx_posture_get(ctx, &posture));
                assert_int_equal(posture.engine, KVX_ENGINE_CPU);
                assert_int_equal(posture.policy, policy);
                assert_int_equal(posture.good_enough, is_tdx && a == KVX_ATTEST_PASS);
                kvx_ctx_destroy(ctx);
            }
    expect_ok(kvx_pool_destroy(pool));
}

static void posture_without_a_context(void **state)
{
    kvx_posture posture = {.size = sizeof posture};
    (void)state;
    fake.uuid = "GPU-any";
    expect_ok(kvx_posture_get(NULL, &posture));
    assert_int_equal(posture.policy, KVX_POLICY_WARN);
    assert_int_equal(posture.engine, KVX_ENGINE_AUTO);
    assert_string_equal(posture.gpu_uuid, "GPU-any");
    assert_int_equal(state_of(&posture, "attestation"), KVX_CHECK_UNKNOWN);
    assert_int_equal(posture.mrtd[5], 0xab);
    assert_int_equal(posture.rtmr[3][7], 0xc3);
    posture.size = 3;
    assert_int_equal(kvx_posture_get(NULL, &posture), KVX_INVALID);
    assert_int_equal(kvx_posture_get(NULL, NULL), KVX_INVALID);
}

/* A verdict that is no pass any more ends an enforcing context. */
static void verdicts_may_change(void **state)
{
    static const kvx_slot_class class = {.slot_bytes = 8192, .n_slots = 2, .max_units = 2};
    kvx_key_config keys = KVX_KEY_CONFIG_INIT;
    kvx_config config = KVX_CONFIG_INIT;
    kvx_key_stats stats = {.size = sizeof stats};
    kvx_pool *pool = pool_make(&device_cpu, &class, 1);
    kvx_ctx *ctx = NULL;
    (void)state;
    config.engine = KVX_ENGINE_CPU;
    config.keys = &keys;
    keys.policy = KVX_POLICY_ENFORCE;
    keys.verdict = verify;
    keys.arg = &answer;
    keys.nonce = "nonce";
    keys.nonce_bytes = 5;
    answer = KVX_ATTEST_PASS;
    expect_ok(kvx_ctx_create(pool, &config, &ctx));
    expect_ok(kvx_reattest(ctx, "other", 5));
    expect_ok(kvx_key_stats_get(ctx, 0, &stats));
    assert_int_equal(stats.epoch, 2);
    answer = KVX_ATTEST_STALE;
    assert_int_equal(kvx_reattest(ctx, "other", 5), KVX_LATCHED);
    assert_int_equal(kvx_reattest(ctx, "other", 5), KVX_LATCHED);
    stats.size = sizeof stats;
    expect_ok(kvx_key_stats_get(ctx, 0, &stats));
    assert_int_equal(stats.epochs_readable, 0);
    kvx_ctx_destroy(ctx);
    keys.verdict = NULL;
    keys.policy = KVX_POLICY_WARN;
    expect_ok(kvx_ctx_create(pool, &config, &ctx));
    assert_int_equal(kvx_reattest(ctx, "other", 5), KVX_INVALID);
    kvx_ctx_destroy(ctx);
    expect_ok(kvx_pool_destroy(pool));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(truth_table, reset, restore),
        cmocka_unit_test_setup_teardown(each_breach_is_found, reset, restore),
        cmocka_unit_test_setup_teardown(what_may_be_allowed, reset, restore),
        cmocka_unit_test_setup_teardown(nothing_known_is_nothing_good, reset, restore),
        cmocka_unit_test_setup_teardown(cpu_engine_has_no_gpu, reset, restore),
        cmocka_unit_test_setup_teardown(policies_at_create, reset, restore),
        cmocka_unit_test_setup_teardown(posture_without_a_context, reset, restore),
        cmocka_unit_test_setup_teardown(verdicts_may_change, reset, restore),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
