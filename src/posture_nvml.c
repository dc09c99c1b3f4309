/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU, as NVML tells of it. The library is loaded when asked and let go after; its declarations are ours. A
 * function that is missing or fails leaves what it would have told unknown: never "off", never "fine". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "platform.h"
#include "posture.h"
#include "status.h"

#define NVML_LIBRARY "libnvidia-ml.so.1"
#define OLDEST_DRIVER 550u
enum { NVML_SUCCESS = 0, NVML_NOT_SUPPORTED = 3, NVML_INSUFFICIENT_SIZE = 7 };

typedef struct cc_state {
    unsigned environment, feature, devtools;
} cc_state;
typedef struct cc_settings {
    unsigned version, environment, feature, devtools, multi_gpu;
} cc_settings;
typedef struct cc_caps {
    unsigned cpu, gpus;
} cc_caps;
typedef struct cc_memory {
    unsigned long long protected_kib, unprotected_kib;
} cc_memory;
typedef struct cc_report {
    unsigned has_cec, report_bytes, cec_bytes;
    unsigned char nonce[32], report[0x2000], cec[0x1000];
} cc_report;
typedef struct cc_certificates {
    unsigned chain_bytes, attestation_bytes;
    unsigned char chain[0x1000], attestation[0x1400];
} cc_certificates;

/* NULL where the library lacks the function. */
typedef struct nvml {
    void *library;
    void *device; /* NULL: there is none */
    int (*init)(void);
    int (*shutdown)(void);
    int (*driver)(char *text, unsigned n);
    int (*by_index)(unsigned index, void **device);
    int (*by_uuid)(const char *uuid, void **device);
    int (*uuid)(void *device, char *text, unsigned n);
    int (*settings)(cc_settings *settings);
    int (*state)(cc_state *state);
    int (*caps)(cc_caps *caps);
    int (*ready)(unsigned *accepting);
    int (*memory)(void *device, cc_memory *memory);
    int (*ecc)(void *device, unsigned *current, unsigned *pending);
    int (*mig)(void *device, unsigned *current, unsigned *pending);
    int (*mps)(void *device, unsigned *n, void *infos);
    int (*report)(void *device, cc_report *report);
    int (*certificates)(void *device, cc_certificates *certificates);
} nvml;

static void find(nvml *n, const char *name, void *function)
{
    void *symbol = kvx_platform()->dlsym(n->library, name);
    memcpy(function, &symbol, sizeof symbol);
}

static void find_all(nvml *n)
{
    find(n, "nvmlInit_v2", &n->init);
    find(n, "nvmlShutdown", &n->shutdown);
    find(n, "nvmlSystemGetDriverVersion", &n->driver);
    find(n, "nvmlDeviceGetHandleByIndex_v2", &n->by_index);
    find(n, "nvmlDeviceGetHandleByUUID", &n->by_uuid);
    find(n, "nvmlDeviceGetUUID", &n->uuid);
    find(n, "nvmlSystemGetConfComputeSettings", &n->settings);
    find(n, "nvmlSystemGetConfComputeState", &n->state);
    find(n, "nvmlSystemGetConfComputeCapabilities", &n->caps);
    find(n, "nvmlSystemGetConfComputeGpusReadyState", &n->ready);
    find(n, "nvmlDeviceGetConfComputeMemSizeInfo", &n->memory);
    find(n, "nvmlDeviceGetEccMode", &n->ecc);
    find(n, "nvmlDeviceGetMigMode", &n->mig);
    find(n, "nvmlDeviceGetMPSComputeRunningProcesses_v3", &n->mps);
    find(n, "nvmlDeviceGetConfComputeGpuAttestationReport", &n->report);
    find(n, "nvmlDeviceGetConfComputeGpuCertificate", &n->certificates);
}

static void leave(nvml *n)
{
    if (n->shutdown)
        (void)n->shutdown();
    (void)kvx_platform()->dlclose(n->library);
}

/* The GPU with the UUID; zeros: the first one. Returns 0 if there is no NVML or no such GPU. */
static int enter(nvml *n, const uint8_t uuid[16])
{
    static const uint8_t any[16];
    char text[48];
    memset(n, 0, sizeof *n);
    n->library = kvx_platform()->dlopen(NVML_LIBRARY);
    if (!n->library)
        return 0;
    find_all(n);
    if (!n->init || n->init() != NVML_SUCCESS) {
        n->shutdown = NULL;
        leave(n);
        return 0;
    }
    kvx_gpu_uuid_text(uuid, text);
    if (memcmp(uuid, any, sizeof any) == 0) {
        if (!n->by_index || n->by_index(0, &n->device) != NVML_SUCCESS)
            n->device = NULL;
    } else if (!n->by_uuid || n->by_uuid(text, &n->device) != NVML_SUCCESS) {
        n->device = NULL;
    }
    if (n->device)
        return 1;
    leave(n);
    return 0;
}

void kvx_gpu_uuid_text(const uint8_t u[16], char text[48])
{
    (void)snprintf(text, 48, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
                   u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

/* -------------------------------------------------------------------------------------------------------- judgement */

typedef struct view {
    const kvx_posture_subject *subject;
    kvx_posture *posture;
    nvml *nvml;
} view;

static void add(const view *v, const char *name, kvx_check_state state, const char *found, const char *remedy)
{
    const kvx_finding finding = {.name = name, .remedy = remedy, .state = state};
    kvx_posture_add(v->posture, v->subject, &finding, "%s", found);
}

static void add_or_allow(const view *v, const kvx_finding *finding, const char *found)
{
    kvx_posture_add(v->posture, v->subject, finding, "%s", found);
}

static void look_at_driver(const view *v)
{
    char text[80] = "";
    unsigned major = 0;
    kvx_check_state state = KVX_CHECK_UNKNOWN;
    if (v->nvml->driver && v->nvml->driver(text, sizeof text) == NVML_SUCCESS && sscanf(text, "%u", &major) == 1)
        state = major >= OLDEST_DRIVER ? KVX_CHECK_GOOD : KVX_CHECK_BAD;
    text[sizeof text - 1] = 0;
    add(v, "gpu.driver", state, text[0] ? text : "unknown", "install a driver of branch 550 or later");
}

/* Newer drivers tell all; older ones nothing of several GPUs. */
static int read_settings(const nvml *n, cc_settings *settings, int *has_multi_gpu)
{
    cc_state state;
    memset(settings, 0, sizeof *settings);
    settings->version = (unsigned)sizeof *settings | 1u << 24;
    *has_multi_gpu = n->settings && n->settings(settings) == NVML_SUCCESS;
    if (*has_multi_gpu)
        return 1;
    if (!n->state || n->state(&state) != NVML_SUCCESS)
        return 0;
    settings->environment = state.environment;
    settings->feature = state.feature;
    settings->devtools = state.devtools;
    settings->multi_gpu = 0;
    return 1;
}

enum { MULTI_GPU_NONE, MULTI_GPU_PPCIE, MULTI_GPU_NVLE };

/* With protected PCIe the feature itself is reported as disabled. */
static void judge_cc(const view *v, const cc_settings *s, int known, int has_multi_gpu)
{
    kvx_finding finding = {.name = "gpu.cc",
                           .remedy =
                               "switch the GPU to confidential-computing mode (on the host, before the VM starts)"};
    const char *found = "unknown: NVML does not tell";
    if (known && has_multi_gpu && s->multi_gpu == MULTI_GPU_PPCIE) {
        finding.state = KVX_CHECK_BAD;
        finding.allowed = KVX_ALLOW_PPCIE;
        finding.remedy = "protected PCIe leaves NVLink in the clear: use single-GPU CC, or set KVX_ALLOW_PPCIE";
        found = "protected PCIe";
    } else if (known && (s->feature == 1 || (has_multi_gpu && s->multi_gpu == MULTI_GPU_NVLE))) {
        finding.state = KVX_CHECK_GOOD;
        found = s->multi_gpu == MULTI_GPU_NVLE ? "on, NVLink encrypted" : "on";
    } else if (known && s->feature == 0) {
        finding.state = KVX_CHECK_BAD;
        found = "off";
    }
    add_or_allow(v, &finding, found);
}

static void judge_environment(const view *v, const cc_settings *s, int known)
{
    static const char *const found[] = {"unavailable", "SIMULATION", "production"};
    const int in_range = known && s->environment <= 2;
    add(v, "gpu.environment",
        !in_range             ? KVX_CHECK_UNKNOWN
        : s->environment == 2 ? KVX_CHECK_GOOD
        : s->environment == 1 ? KVX_CHECK_BAD
                              : KVX_CHECK_UNKNOWN,
        in_range ? found[s->environment] : "unknown", "the GPU must be in CC production mode, without developer tools");
    add(v, "gpu.devtools",
        !known             ? KVX_CHECK_UNKNOWN
        : s->devtools == 0 ? KVX_CHECK_GOOD
                           : KVX_CHECK_BAD,
        !known             ? "unknown"
        : s->devtools == 0 ? "off"
                           : "ON",
        "switch the GPU's CC DevTools mode off: it opens the GPU to debuggers");
}

static void look_at_ready(const view *v)
{
    unsigned accepting = 0;
    kvx_check_state state = KVX_CHECK_UNKNOWN;
    if (v->nvml->ready && v->nvml->ready(&accepting) == NVML_SUCCESS)
        state = accepting == 1 ? KVX_CHECK_GOOD : KVX_CHECK_BAD;
    add(v, "gpu.ready", state,
        state == KVX_CHECK_UNKNOWN ? "unknown"
        : accepting == 1           ? "accepts work (says nothing about attestation)"
                                   : "does not accept work",
        "attest the GPU and set its ready state (nvidia-smi conf-compute -srs 1)");
}

static void look_at_caps(const view *v)
{
    static const unsigned wanted[] = {
        [KVX_TEE_NONE] = 99, [KVX_TEE_TDX] = 2, [KVX_TEE_SEV_SNP] = 3, [KVX_TEE_PARAVISOR] = 98};
    cc_caps caps = {0, 0};
    kvx_check_state state = KVX_CHECK_UNKNOWN;
    char found[64] = "unknown";
    if (v->nvml->caps && v->nvml->caps(&caps) == NVML_SUCCESS) {
        const int vtom = v->posture->tee == KVX_TEE_PARAVISOR && (caps.cpu == 2 || caps.cpu == 4);
        state = caps.gpus == 1 && (caps.cpu == wanted[v->posture->tee] || vtom) ? KVX_CHECK_GOOD : KVX_CHECK_BAD;
        (void)snprintf(found, sizeof found, "processor kind %u, GPUs %s", caps.cpu,
                       caps.gpus == 1 ? "capable" : "not capable");
    }
    add(v, "gpu.caps", state, found, "the driver must see the same trusted environment, and GPUs capable of CC");
}

static void look_at_memory(const view *v)
{
    cc_memory memory = {0, 0};
    kvx_check_state state = KVX_CHECK_UNKNOWN;
    char found[64] = "unknown";
    if (v->nvml->memory && v->nvml->memory(v->nvml->device, &memory) == NVML_SUCCESS) {
        state = memory.protected_kib > 0 ? KVX_CHECK_GOOD : KVX_CHECK_BAD;
        (void)snprintf(found, sizeof found, "%llu MiB protected", memory.protected_kib >> 10);
    }
    add(v, "gpu.protected_memory", state, found, "give the GPU protected memory: it has none while CC is off");
}

static void look_at_ecc(const view *v)
{
    unsigned current = 0, pending = 0;
    kvx_finding finding = {.name = "gpu.ecc", .remedy = "nvidia-smi -e 1", .allowed = KVX_ALLOW_NO_ECC};
    if (v->nvml->ecc && v->nvml->ecc(v->nvml->device, &current, &pending) == NVML_SUCCESS)
        finding.state = current == 1 ? KVX_CHECK_GOOD : KVX_CHECK_BAD;
    add_or_allow(v, &finding, finding.state == KVX_CHECK_UNKNOWN ? "unknown" : current == 1 ? "on" : "off");
}

static void look_at_sharing(const view *v)
{
    unsigned current = 0, pending = 0, n = 0;
    kvx_finding mig = {.name = "gpu.mig", .remedy = "nvidia-smi -mig 0", .allowed = KVX_ALLOW_GPU_SHARING};
    kvx_finding mps = {.name = "gpu.mps", .remedy = "stop the MPS server", .allowed = KVX_ALLOW_GPU_SHARING};
    int answer = v->nvml->mig ? v->nvml->mig(v->nvml->device, &current, &pending) : -1;
    if (answer == NVML_SUCCESS || answer == NVML_NOT_SUPPORTED)
        mig.state = answer == NVML_SUCCESS && current != 0 ? KVX_CHECK_BAD : KVX_CHECK_GOOD;
    add_or_allow(v, &mig, mig.state == KVX_CHECK_UNKNOWN ? "unknown" : mig.state == KVX_CHECK_BAD ? "on" : "off");
    answer = v->nvml->mps ? v->nvml->mps(v->nvml->device, &n, NULL) : -1;
    if (answer == NVML_SUCCESS || answer == NVML_INSUFFICIENT_SIZE)
        mps.state = n == 0 && answer == NVML_SUCCESS ? KVX_CHECK_GOOD : KVX_CHECK_BAD;
    add_or_allow(v, &mps,
                 mps.state == KVX_CHECK_UNKNOWN ? "unknown"
                 : mps.state == KVX_CHECK_BAD   ? "has clients"
                                                : "no clients");
}

static void read_uuid(const view *v)
{
    if (!v->nvml->uuid ||
        v->nvml->uuid(v->nvml->device, v->posture->gpu_uuid, sizeof v->posture->gpu_uuid) != NVML_SUCCESS)
        v->posture->gpu_uuid[0] = 0;
    v->posture->gpu_uuid[sizeof v->posture->gpu_uuid - 1] = 0;
}

void kvx_posture_look_at_gpu(const kvx_posture_subject *subject, kvx_posture *posture)
{
    nvml n;
    const view v = {subject, posture, &n};
    cc_settings settings;
    int known, has_multi_gpu;
    if (subject->engine == KVX_ENGINE_CPU) {
        add(&v, "gpu", KVX_CHECK_NONE, "the CPU engine: no GPU is used", "");
        return;
    }
    if (!enter(&n, subject->gpu_uuid)) {
        add(&v, "gpu.nvml", KVX_CHECK_UNKNOWN, NVML_LIBRARY ": not there, or it knows no such GPU",
            "install the driver's libnvidia-ml.so.1 where this process finds it");
        return;
    }
    read_uuid(&v);
    add(&v, "gpu.nvml", KVX_CHECK_GOOD, posture->gpu_uuid[0] ? posture->gpu_uuid : "loaded", "");
    look_at_driver(&v);
    known = read_settings(&n, &settings, &has_multi_gpu);
    judge_cc(&v, &settings, known, has_multi_gpu);
    judge_environment(&v, &settings, known);
    look_at_ready(&v);
    look_at_caps(&v);
    look_at_memory(&v);
    look_at_ecc(&v);
    look_at_sharing(&v);
    leave(&n);
}

/* --------------------------------------------------------------------------------------------------------- evidence */

static kvx_status take_report(const nvml *n, const uint8_t nonce[32], kvx_gpu_report *out)
{
    cc_report *report = calloc(1, sizeof *report);
    kvx_status status = KVX_OK;
    if (!report)
        return kvx_note(KVX_NO_MEMORY, "no memory for a GPU report");
    memcpy(report->nonce, nonce, 32);
    if (!n->report || n->report(n->device, report) != NVML_SUCCESS || report->report_bytes == 0)
        status = kvx_note(KVX_UNSUPPORTED, "the GPU gives no attestation report");
    else if (report->report_bytes > sizeof report->report)
        status = kvx_note(KVX_INTERNAL, "NVML says that the GPU's report has %u bytes", report->report_bytes);
    else if (!memmem(report->report, report->report_bytes, nonce, 32))
        status = kvx_note(KVX_INTERNAL, "the GPU's report does not carry the nonce");
    if (status == KVX_OK) {
        memcpy(out->report, report->report, report->report_bytes);
        out->report_bytes = report->report_bytes;
    }
    free(report);
    return status;
}

static kvx_status take_certificates(const nvml *n, kvx_gpu_report *out)
{
    cc_certificates *certificates = calloc(1, sizeof *certificates);
    kvx_status status = KVX_OK;
    if (!certificates)
        return kvx_note(KVX_NO_MEMORY, "no memory for the GPU's certificates");
    if (!n->certificates || n->certificates(n->device, certificates) != NVML_SUCCESS)
        status = kvx_note(KVX_UNSUPPORTED, "the GPU gives no certificates");
    else if (certificates->attestation_bytes > sizeof certificates->attestation)
        status =
            kvx_note(KVX_INTERNAL, "NVML says that the certificates have %u bytes", certificates->attestation_bytes);
    if (status == KVX_OK) {
        memcpy(out->certificates, certificates->attestation, certificates->attestation_bytes);
        out->certificates_bytes = certificates->attestation_bytes;
    }
    free(certificates);
    return status;
}

/* The handle was asked for by UUID; the answer is compared as well. */
static kvx_status check_uuid(const nvml *n, const uint8_t uuid[16])
{
    char wanted[48], got[96] = "";
    kvx_gpu_uuid_text(uuid, wanted);
    if (!n->uuid || n->uuid(n->device, got, sizeof got) != NVML_SUCCESS)
        return kvx_note(KVX_UNSUPPORTED, "NVML does not tell the GPU's UUID");
    got[sizeof got - 1] = 0;
    if (strcmp(wanted, got) != 0)
        return kvx_note(KVX_INTERNAL, "NVML answers for GPU %s, the context uses %s", got, wanted);
    return KVX_OK;
}

kvx_status kvx_gpu_attest(const uint8_t uuid[16], const uint8_t nonce[32], kvx_gpu_report *report)
{
    nvml n;
    kvx_status status;
    report->report_bytes = report->certificates_bytes = 0;
    if (!enter(&n, uuid))
        return kvx_note(KVX_UNSUPPORTED, NVML_LIBRARY " is not there, or knows no such GPU");
    status = check_uuid(&n, uuid);
    if (status == KVX_OK)
        status = take_report(&n, nonce, report);
    if (status == KVX_OK)
        status = take_certificates(&n, report);
    leave(&n);
    return status;
}
