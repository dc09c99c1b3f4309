/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_KEYS_H
#define KVX_KEYS_H
/**
 * @file kvx_keys.h
 * Keys, posture and evidence. Keys are born in this process, bounded, and erasable; the posture says what could be
 * found out about the platform that is to protect them; evidence is what a relying party verifies. What kvx finds by
 * itself is no proof: CPUID, device files and NVML report about themselves. Under KVX_POLICY_ENFORCE a context is
 * created only if every check is good and the caller's verdict callback, which asks a verifier, says yes.
 *
 *     kvx_key_config keys = KVX_KEY_CONFIG_INIT;   keys.policy = KVX_POLICY_ENFORCE;   keys.verdict = ask_verifier;
 *     kvx_config config = KVX_CONFIG_INIT;         config.keys = &keys;                kvx_ctx_create(pool, &config,
 * ..);
 *
 * The conventions of kvx.h hold, with one addition: the callbacks of kvx_key_config are called by kvx_ctx_create() and
 * kvx_reattest(), on the calling thread, and never by anything else.
 */
#include "kvx.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------- configuration */

/** What is done with a platform that could not be shown to be good. */
typedef enum kvx_policy {
    KVX_POLICY_WARN = 0,    /**< go on; kvx_posture_get() says what is wrong (default) */
    KVX_POLICY_ENFORCE = 1, /**< kvx_ctx_create() refuses, and its note names every check that is not good */
    KVX_POLICY_DEV = 2,     /**< for development: nothing is expected of the platform */
} kvx_policy;

/** What ENFORCE accepts although it is not the default. */
enum {
    KVX_ALLOW_PPCIE = 1,       /**< multi-GPU protected PCIe: NVLink carries plaintext */
    KVX_ALLOW_GPU_SHARING = 2, /**< MIG, or MPS clients of other processes */
    KVX_ALLOW_SWAP = 4,        /**< swap is on: the engine's plaintext may reach it; keys are locked in memory */
    KVX_ALLOW_LOCKED = 8,      /**< keys in locked memory, where memfd_secret is not to be had */
    KVX_ALLOW_NO_ECC = 16,     /**< a GPU without ECC */
    KVX_ALLOW_NO_QUOTE = 32,   /**< no quote through configfs-tsm, as behind a paravisor: the caller brings its own */
};

/** What the verifier said about the evidence. */
typedef enum kvx_attestation {
    KVX_ATTEST_PASS = 1,         /**< measurements, certificates, nonce, devices, debug states: all good */
    KVX_ATTEST_FAIL = 2,         /**< verified, and not good */
    KVX_ATTEST_STALE = 3,        /**< good, but older than the verifier's policy allows */
    KVX_ATTEST_WRONG_DEVICE = 4, /**< the GPUs of the evidence are not those that the context uses */
} kvx_attestation;

struct kvx_evidence;

/** Asks a verifier. `evidence` has everything that the platform could produce (see kvx_evidence_get()). Any return that
 *  is not KVX_OK, or a value that is not listed, counts as "no verdict". May take its time. */
typedef kvx_status (*kvx_verdict_fn)(void *arg, const struct kvx_evidence *evidence, kvx_attestation *attestation);

/** Supplies a root secret of 32 bytes, for instance from a key broker, and its name (public, NUL-terminated). Block
 *  keys are derived from it together with random secrets of the context, so it never determines one alone. */
typedef kvx_status (*kvx_root_fn)(void *arg, uint8_t root[32], char key_id[64]);

/** A part of what block keys are bound to: model, layout, dtype, rank, ... */
typedef struct kvx_binding_part {
    const void *bytes;
    size_t n_bytes;
} kvx_binding_part;

#define KVX_BINDING_PARTS_MAX 16u
#define KVX_KEY_SLOTS_MAX 4096u

/** How keys are made, how long they serve, and what is demanded of the platform. */
typedef struct kvx_key_config {
    size_t size;
    kvx_policy policy;
    uint32_t allow;       /**< KVX_ALLOW_* */
    uint32_t fips;        /**< nonzero: derive with OpenSSL's FIPS provider, or fail. The GPU code is not validated */
    uint32_t n_key_slots; /**< keys that can exist at once; 0: 2 * n_tenants + 256. An open tenant holds two for
                               sealing; the others keep older epochs readable. At most KVX_KEY_SLOTS_MAX */
    uint64_t soft_limit;  /**< AES blocks + operations after which a tenant's next key takes over; 0: 2^34.5 */
    uint64_t hard_limit;  /**< and after which a key refuses: KVX_EXHAUSTED; 0: 2^36, which is also the most */
    uint64_t rotate_ns;   /**< a key is replaced at this age by the next store; 0: 10 min; UINT64_MAX: never */
    const kvx_binding_part *binding;
    uint32_t n_binding;
    kvx_root_fn root;       /**< NULL: the root is drawn */
    kvx_verdict_fn verdict; /**< NULL: nobody verifies, so ENFORCE refuses */
    void *arg;              /**< of both callbacks */
    const void *nonce;      /**< the verifier's, for the evidence that `verdict` gets; at most 64 bytes */
    size_t nonce_bytes;
} kvx_key_config;
#define KVX_KEY_CONFIG_INIT                                                                                            \
    {                                                                                                                  \
        sizeof(kvx_key_config), KVX_POLICY_WARN, 0, 0, 0, 0, 0, 0, NULL, 0, NULL, NULL, NULL, NULL, 0                  \
    }

/* ----------------------------------------------------------------------------------------------- tenants and epochs */

/** What an erasure did. */
typedef struct kvx_erase_receipt {
    size_t size;
    uint64_t epochs;    /**< epochs that the tenant has had since it was opened */
    uint32_t key_slots; /**< keys overwritten with random bytes, zeroed and read back (CPU engine: cleansed) */
    uint64_t blocks;    /**< readable blocks that are misses from now on */
} kvx_erase_receipt;
#define KVX_ERASE_RECEIPT_INIT                                                                                         \
    {                                                                                                                  \
        sizeof(kvx_erase_receipt), 0, 0, 0                                                                             \
    }

/**
 * Gives a tenant fresh secrets and keys. Tenants 0 .. n_tenants - 1 are open when the context is created.
 * @retval KVX_INVALID no such tenant, or it is open.  @retval KVX_AGAIN no key slots are free.
 * Threads: any, also at the same time. */
KVX_API KVX_NODISCARD kvx_status kvx_tenant_open(kvx_ctx *ctx, uint32_t tenant);

/**
 * Erases a tenant: its secrets here and its keys on the device. When this returns KVX_OK nothing can open its blocks
 * any more: restores of them are KVX_MISS for ever, also if the tenant is opened again. Stores that name the tenant end
 * with KVX_REFUSED, those in flight too unless they were complete. Waits for units that are being sealed or opened at
 * this moment, but for no stream of the caller's.
 * @param receipt  may be NULL.
 * @retval KVX_INVALID no such tenant, or it is not open.
 * @retval KVX_TIMEOUT the device did not let go of a key within 30 s: it is dead, but was not overwritten; call again.
 * Threads: any, also at the same time. */
KVX_API kvx_status kvx_tenant_erase(kvx_ctx *ctx, uint32_t tenant, kvx_erase_receipt *receipt);

/**
 * Moves a tenant on to its next key now; older blocks stay readable. Also retires keys that no block needs any more.
 * @retval KVX_INVALID no such tenant, or it is not open.  @retval KVX_AGAIN every key slot is needed: nothing was done.
 * @retval KVX_UNSUPPORTED the engine cannot.
 * Threads: any, also at the same time. */
KVX_API kvx_status kvx_key_rotate(kvx_ctx *ctx, uint32_t tenant);

/** Does what stores do on the side: puts in next keys where the device has moved on, rotates keys whose time has come,
 *  retires keys without blocks. For contexts that store by graph replay only; call it now and then.
 * Threads: any, also at the same time. */
KVX_API kvx_status kvx_keys_service(kvx_ctx *ctx);

/** Snapshot of a tenant's keys. */
typedef struct kvx_key_stats {
    size_t size;
    uint32_t open;
    uint32_t next_ready;      /**< a next key is in place */
    uint32_t epochs_readable; /**< keys of the tenant that exist: sealing, next and older ones */
    uint32_t key_slots_free;  /**< of the context */
    uint64_t epoch;           /**< number of the epoch that seals, from 1 */
    uint64_t spent;           /**< AES blocks + operations under it */
    uint64_t soft_limit, hard_limit;
    uint64_t age_ns; /**< since it took over */
} kvx_key_stats;

/** Fills `stats` (set stats->size first). KVX_INVALID as above.
 * Threads: any, also at the same time. */
KVX_API KVX_NODISCARD kvx_status kvx_key_stats_get(kvx_ctx *ctx, uint32_t tenant, kvx_key_stats *stats);

/** Runs the known-answer test of the engine in use again, as kvx_ctx_create() did: seal, open, refuse a wrong tag.
 *  KVX_INTERNAL: a wrong answer; the context is latched.
 * Threads: any, also at the same time. */
KVX_API KVX_NODISCARD kvx_status kvx_selftest(kvx_ctx *ctx);

/* ---------------------------------------------------------------------------------------------------------- posture */

/** What a check found. Only GOOD is good: a library, a symbol or a file that is missing leaves a check UNKNOWN. */
typedef enum kvx_check_state {
    KVX_CHECK_UNKNOWN = 0,
    KVX_CHECK_GOOD = 1,
    KVX_CHECK_BAD = 2,
    KVX_CHECK_ALLOWED = 3, /**< bad or unknown, and allowed by `allow` */
    KVX_CHECK_NONE = 4,    /**< does not apply here */
} kvx_check_state;

typedef struct kvx_check {
    const char *name;   /**< static, for instance "gpu.cc" */
    const char *remedy; /**< static: what to do if it is not good */
    kvx_check_state state;
    char found[100];
} kvx_check;

#define KVX_CHECKS_MAX 40u

/** What kind of trusted execution environment the processor reports. */
typedef enum kvx_tee {
    KVX_TEE_NONE = 0,
    KVX_TEE_TDX = 1,
    KVX_TEE_SEV_SNP = 2,
    KVX_TEE_PARAVISOR = 3, /**< a TD or SNP guest behind a paravisor: only its vTPM attests */
} kvx_tee;

typedef struct kvx_posture {
    size_t size;
    kvx_policy policy;
    kvx_tee tee;
    kvx_engine engine;    /**< of the context; AUTO: none */
    uint32_t good_enough; /**< ENFORCE would accept this */
    uint32_t n_checks;
    kvx_check checks[KVX_CHECKS_MAX];
    uint32_t has_measurements; /**< TDX: the next two are there */
    uint8_t mrtd[48];
    uint8_t rtmr[4][48];
    char gpu_uuid[48]; /**< "" if there is no GPU */
    char key_id[64];   /**< of the root provider; "" */
} kvx_posture;

/**
 * Looks at the platform. With a context: at its GPU, under its policy, with its memory for secrets and its last
 * verdict. ctx NULL: at the process and the first GPU, as if for KVX_POLICY_WARN. Takes milliseconds; no secrets in it.
 * Set posture->size first.
 * Threads: any, also at the same time. */
KVX_API KVX_NODISCARD kvx_status kvx_posture_get(kvx_ctx *ctx, kvx_posture *posture);

/* --------------------------------------------------------------------------------------------------------- evidence */

#define KVX_NONCE_BYTES_MAX 64u
#define KVX_QUOTE_BYTES_MAX 32768u
#define KVX_GPU_REPORT_BYTES_MAX 8192u
#define KVX_GPU_CERTIFICATES_BYTES_MAX 5120u

/**
 * What a relying party verifies. All hashes are SHA-384 over fields that each stand behind their length (32 bits,
 * big-endian):
 *
 *     claims       = "kvx/claims/1", key_commitment, policy (4 bytes: policy, 4 bytes: allow), instance, nonce
 *     gpu_nonce    = first 32 bytes of the hash of: "kvx/gpu-nonce/1", claims...
 *     gpu_evidence = hash of: "kvx/gpu-evidence/1", gpu_uuid, gpu_report, gpu_certificates   (zeros without a GPU)
 *     report_data  = hash of: "kvx/report-data/1", claims..., gpu_evidence, then 16 zero bytes
 *
 * The TD's quote carries report_data, the GPU's report carries gpu_nonce. So one verification ties the guest, the GPU,
 * the keys and the policy together; kvx itself verifies nothing.
 */
typedef struct kvx_evidence {
    size_t size;
    uint8_t report_data[64];
    uint8_t gpu_nonce[32];
    uint8_t gpu_evidence[48];
    uint8_t key_commitment[32];
    uint8_t instance[32]; /**< of this context: fresh at create */
    uint8_t nonce[KVX_NONCE_BYTES_MAX];
    uint32_t nonce_bytes;
    kvx_policy policy;
    uint32_t allow;
    char provider[32]; /**< of the quote: "tdx_guest", "sev_guest", ... */
    char gpu_uuid[48];
    uint32_t quote_bytes, gpu_report_bytes, gpu_certificates_bytes; /**< 0: none */
    uint8_t quote[KVX_QUOTE_BYTES_MAX];
    uint8_t gpu_report[KVX_GPU_REPORT_BYTES_MAX];
    uint8_t gpu_certificates[KVX_GPU_CERTIFICATES_BYTES_MAX];
    char note[160]; /**< what could not be had, and why; "" */
} kvx_evidence;

/**
 * Collects evidence for a verifier's nonce (at most 64 bytes). Set evidence->size first. What the platform cannot
 * produce is left out and named in `note`; the hashes always cover what is there. Takes up to seconds.
 * @retval KVX_AGAIN others kept writing to the quote interface.  @retval KVX_INVALID a nonce that is too long.
 * @retval KVX_INTERNAL the platform gave an answer that does not fit: another GPU's report, a quote for other data.
 * Threads: any, also at the same time. */
KVX_API KVX_NODISCARD kvx_status kvx_evidence_get(kvx_ctx *ctx, const void *nonce, size_t nonce_bytes,
                                                  kvx_evidence *evidence);

/** Collects evidence for a fresh nonce and asks the verdict callback again. The tenants move on to their next keys.
 *  With ENFORCE and a verdict that is not KVX_ATTEST_PASS the context is latched and KVX_LATCHED returned.
 * @retval KVX_INVALID the context has no verdict callback.
 * Threads: any, also at the same time. */
KVX_API KVX_NODISCARD kvx_status kvx_reattest(kvx_ctx *ctx, const void *nonce, size_t nonce_bytes);

#ifdef __cplusplus
}
#endif
#endif
