/* SPDX-License-Identifier: Apache-2.0 */
/* The trusted execution environment, as the processor and the guest's kernel report it. None of this is proof: the
 * quote is, once somebody has verified it. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "evidence.h"
#include "platform.h"
#include "posture.h"

/* What was seen, before it is judged. */
typedef struct seen {
    int has_cpuid, tdx_leaf, hyperv_isolation; /* isolation type: 2 SNP, 3 TDX; 0 none */
    int tdx_device, snp_device, tpm_device;
    int has_report; /* the TD report that follows */
    uint64_t attributes;
    char provider[32];
} seen;

#define TD_DEBUG 1u

/* From Linux' interface for TDX guests: 64 bytes of report data in, the TD report out. */
typedef struct td_report_request {
    uint8_t report_data[64];
    uint8_t report[1024];
} td_report_request;
#define TD_GET_REPORT 0xc4405401ul /* _IOWR('T', 1, struct of 1088 bytes) */

/* Where things lie in a TD report. */
enum { REPORT_DATA_AT = 128, ATTRIBUTES_AT = 512, MRTD_AT = 528, RTMR_AT = 720 };

static int hyperv_isolation(void)
{
    uint32_t r[4] = {0, 0, 0, 0};
    if (!kvx_platform()->cpuid(0x40000000u, 0, r) || r[1] != 0x7263694du || r[2] != 0x666f736fu || r[3] != 0x76482074u)
        return 0; /* "Microsoft Hv" */
    if (r[0] < 0x4000000cu || !kvx_platform()->cpuid(0x4000000cu, 0, r))
        return 0;
    return (int)(r[1] & 0xf);
}

static int exists(const char *path)
{
    return kvx_platform()->access(path, F_OK) == 0;
}

static void read_report(seen *s, kvx_posture *posture)
{
    td_report_request request;
    int file = kvx_platform()->open("/dev/tdx_guest", O_RDWR);
    if (file < 0)
        return;
    memset(&request, 0, sizeof request);
    memset(request.report_data, 0x6b, sizeof request.report_data); /* a report of something else is no report */
    if (kvx_platform()->ioctl(file, TD_GET_REPORT, &request) == 0 &&
        memcmp(request.report + REPORT_DATA_AT, request.report_data, sizeof request.report_data) == 0) {
        s->has_report = 1;
        memcpy(&s->attributes, request.report + ATTRIBUTES_AT, sizeof s->attributes);
        memcpy(posture->mrtd, request.report + MRTD_AT, sizeof posture->mrtd);
        memcpy(posture->rtmr, request.report + RTMR_AT, sizeof posture->rtmr);
        posture->has_measurements = 1;
    }
    (void)kvx_platform()->close(file);
}

static void look(seen *s, kvx_posture *posture)
{
    uint32_t r[4] = {0, 0, 0, 0};
    memset(s, 0, sizeof *s);
    s->has_cpuid = kvx_platform()->cpuid(0, 0, r);
    s->tdx_leaf = s->has_cpuid && r[0] >= 0x21 && kvx_platform()->cpuid(0x21, 0, r) && r[1] == 0x65746e49u &&
                  r[3] == 0x5844546cu && r[2] == 0x20202020u; /* "IntelTDX    " */
    s->hyperv_isolation = s->has_cpuid ? hyperv_isolation() : 0;
    s->tdx_device = exists("/dev/tdx_guest");
    s->snp_device = exists("/dev/sev-guest");
    s->tpm_device = exists("/dev/tpmrm0") || exists("/dev/tpm0");
    if (kvx_tsm_provider(s->provider) != KVX_OK)
        s->provider[0] = 0;
    if (s->tdx_device)
        read_report(s, posture);
}

/* A paravisor shows its guest no TDX leaf and no device, but an isolated partition and a vTPM. */
static kvx_tee kind(const seen *s)
{
    if (s->tdx_leaf && !(s->hyperv_isolation && !s->tdx_device))
        return KVX_TEE_TDX;
    if (s->hyperv_isolation >= 2 && !s->tdx_device && !s->snp_device)
        return KVX_TEE_PARAVISOR;
    return s->snp_device || strcmp(s->provider, "sev_guest") == 0 ? KVX_TEE_SEV_SNP : KVX_TEE_NONE;
}

static void judge_cpu(const kvx_posture_subject *subject, kvx_posture *posture, const seen *s)
{
    static const char *const names[] = {"no trusted execution environment", "Intel TDX", "AMD SEV-SNP",
                                        "a guest behind a paravisor"};
    const kvx_finding finding = {.name = "tee.cpu",
                                 .remedy = "run inside an Intel TDX guest",
                                 .state = posture->tee != KVX_TEE_NONE ? KVX_CHECK_GOOD
                                          : s->has_cpuid               ? KVX_CHECK_BAD
                                                                       : KVX_CHECK_UNKNOWN};
    kvx_posture_add(posture, subject, &finding, "%s", names[posture->tee]);
}

static void judge_device(const kvx_posture_subject *subject, kvx_posture *posture, const seen *s)
{
    const char *name = posture->tee == KVX_TEE_SEV_SNP     ? "/dev/sev-guest"
                       : posture->tee == KVX_TEE_PARAVISOR ? "/dev/tpmrm0"
                                                           : "/dev/tdx_guest";
    const int there = posture->tee == KVX_TEE_SEV_SNP     ? s->snp_device
                      : posture->tee == KVX_TEE_PARAVISOR ? s->tpm_device
                                                          : s->tdx_device;
    const kvx_finding finding = {.name = "tee.device",
                                 .remedy = "load the guest driver (modprobe tdx_guest) and give the process access",
                                 .state = there ? KVX_CHECK_GOOD : KVX_CHECK_BAD};
    kvx_posture_add(posture, subject, &finding, "%s %s", name, there ? "is there" : "is not there");
}

static void judge_debug(const kvx_posture_subject *subject, kvx_posture *posture, const seen *s)
{
    kvx_finding finding = {.name = "tee.debug",
                           .remedy = "start the TD without the debug attribute; on SEV-SNP the verifier has to look"};
    if (!s->has_report) {
        kvx_posture_add(posture, subject, &finding, "no TD report could be read");
        return;
    }
    finding.state = s->attributes & TD_DEBUG ? KVX_CHECK_BAD : KVX_CHECK_GOOD;
    kvx_posture_add(posture, subject, &finding, "attributes 0x%llx: debug is %s", (unsigned long long)s->attributes,
                    s->attributes & TD_DEBUG ? "ON" : "off");
}

static void judge_measurements(const kvx_posture_subject *subject, kvx_posture *posture)
{
    static const uint8_t zero[48];
    const int there = posture->has_measurements && memcmp(posture->mrtd, zero, sizeof zero) != 0;
    const kvx_finding finding = {.name = "tee.measurements",
                                 .remedy = "compare MRTD and RTMRs with those of your image: kvx cannot know them",
                                 .state = there ? KVX_CHECK_GOOD : KVX_CHECK_UNKNOWN};
    if (there)
        kvx_posture_add(posture, subject, &finding, "MRTD %02x%02x%02x%02x...", posture->mrtd[0], posture->mrtd[1],
                        posture->mrtd[2], posture->mrtd[3]);
    else
        kvx_posture_add(posture, subject, &finding, "none could be read");
}

static void judge_quote(const kvx_posture_subject *subject, kvx_posture *posture, const seen *s)
{
    const char *wanted = posture->tee == KVX_TEE_SEV_SNP ? "sev_guest" : "tdx_guest";
    kvx_finding finding = {.name = "tee.quote",
                           .remedy = "mount configfs and load the tsm provider (Linux 6.7 or later)",
                           .allowed = KVX_ALLOW_NO_QUOTE};
    if (!s->provider[0]) {
        kvx_posture_add(posture, subject, &finding, "configfs-tsm is not there");
        return;
    }
    finding.state = strcmp(s->provider, wanted) == 0 ? KVX_CHECK_GOOD : KVX_CHECK_BAD;
    kvx_posture_add(posture, subject, &finding, "configfs-tsm, provider %s", s->provider);
}

void kvx_posture_look_at_tee(const kvx_posture_subject *subject, kvx_posture *posture)
{
    seen s;
    look(&s, posture);
    posture->tee = kind(&s);
    judge_cpu(subject, posture, &s);
    judge_device(subject, posture, &s);
    judge_debug(subject, posture, &s);
    judge_measurements(subject, posture);
    judge_quote(subject, posture, &s);
}
