/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_SRC_EVIDENCE_H
#define KVX_SRC_EVIDENCE_H
/* Evidence for a relying party. evidence_tsm.c: quotes through the kernel's configfs-tsm; evidence.c: what is hashed,
 * collecting, and the verdict. */
#include "kvx_keys.h"

/* Name of the kernel's quote provider. KVX_UNSUPPORTED: there is none. */
kvx_status kvx_tsm_provider(char name[32]);

typedef struct kvx_tsm_quote {
    uint8_t *bytes; /* room for KVX_QUOTE_BYTES_MAX */
    uint32_t n_bytes;
    char provider[32];
} kvx_tsm_quote;
/* A quote that carries the 64 bytes. KVX_UNSUPPORTED: no provider, or the quote is larger than the kernel allows.
 * KVX_AGAIN: others kept writing to our entry. KVX_INTERNAL: a quote for other bytes, or nonsense. */
kvx_status kvx_tsm_get_quote(const uint8_t report_data[64], kvx_tsm_quote *quote);

/* Called by kvx_ctx_create: asks the verdict callback, if there is one. */
kvx_status kvx_evidence_ask(kvx_ctx *ctx, const void *nonce, size_t nonce_bytes);

#endif
