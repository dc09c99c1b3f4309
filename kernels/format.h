/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_FORMAT_H
#define KVX_FORMAT_H
/*
 * The format and every limit of it, in one place: what a sealed unit is, what is kept privately about it, and what the
 * engine's device reads. Plain structs, the same bytes on both sides.
 *
 *   slot (pool, host memory, untrusted)        | unit 0 | unit 1 | ... | unit n-1 | unused |     4 KiB aligned
 *   unit = block x segment                     AES-256-GCM ciphertext, no header, no tag, padded to 32 bytes
 *   iv                                         u32 fixed field | u64 sequence, big-endian
 *   per slot  kvx_header  (private memory)     who stored it: state word, tenant, layout, key
 *   per unit  kvx_record  (private memory)     sequence (so the iv), store id, tag
 */
#include <stddef.h>
#include <stdint.h>

#define KVX_IV_BYTES 12
#define KVX_TAG_BYTES 16
#define KVX_KEY_BYTES 32
#define KVX_UNIT_ALIGN 32u
#define KVX_UNIT_BYTES_LIMIT (64u << 20) /* counters stay far below 2^32 - 2 blocks (SP 800-38D 5.2.1.1) */
#define KVX_SLOT_ALIGN 4096u
#define KVX_WORD_ALIGN 8u /* bases, strides, row sizes */

#define KVX_CLASSES_LIMIT 16u
#define KVX_CHUNKS_LIMIT 1024u /* separately mapped pieces of a pool; a slot never straddles two */
#define KVX_LAYOUTS_LIMIT 256u /* 8 bits in kvx_work_pair */
#define KVX_TENANTS_LIMIT 1024u
#define KVX_KEY_SLOTS_LIMIT 4096u
#define KVX_LANES_LIMIT 1024u
#define KVX_UNITS_LIMIT 1024u

/* Sequence numbers are spent when drawn. Those above the limit are never used, so that concurrent draws cannot wrap. */
#define KVX_SEQUENCE_LIMIT (UINT64_MAX - (1ull << 40))
/* What one key may spend: AES blocks plus operations, the s + q of draft-irtf-cfrg-aead-limits. Past the soft limit
 * (2^34.5, an advantage of 2^-60) sealing moves on to the tenant's next key; past the hard one (2^36) it is refused. */
#define KVX_KEY_SOFT_LIMIT 24296003999ull
#define KVX_KEY_HARD_LIMIT (1ull << 36)
/* The limit of kernels that do not move on to a next key. */
#define KVX_KEY_BLOCKS_LIMIT (1ull << 44)

/* State of a slot, the low byte of its word; the rest is the store id. The word only ever grows: a larger word is a
 * later event, so the older of two stores loses. COMMITTING lasts a few instructions, while the header is being
 * described. */
enum { KVX_SLOT_EMPTY = 0, KVX_SLOT_WRITING = 1, KVX_SLOT_COMMITTING = 2, KVX_SLOT_VALID = 3 };
#define KVX_STATE_BITS 8
#define KVX_STORE_ID_LIMIT (1ull << 55)

/* Verdicts as the device knows them; 0 is "none yet". src/status.c maps them to kvx_status. */
enum kvx_verdict {
    KVX_VERDICT_NONE = 0,
    KVX_VERDICT_OK = 1,
    KVX_VERDICT_MISS = 2,
    KVX_VERDICT_BUSY = 3,
    KVX_VERDICT_STALE = 4,
    KVX_VERDICT_REFUSED = 5,
    KVX_VERDICT_TAMPERED = 6,
    KVX_VERDICT_SUPERSEDED = 7,
    KVX_VERDICT_EXHAUSTED = 8,
    KVX_VERDICT_LATCHED = 9,
    KVX_VERDICT_FAULT = 10 /* something read from a table was out of bounds: refused, nothing touched */
};

typedef struct kvx_header {
    uint64_t word; /* store id << 8 | state; changed by compare-and-swap only */
    uint64_t fingerprint;
    uint32_t tenant;
    uint32_t generation;
    uint32_t key_slot;
    uint32_t key_generation;
    uint32_t n_units;
    uint32_t reserved[5];
} kvx_header;

typedef struct kvx_record {
    uint64_t sequence;
    uint64_t store_id;
    uint8_t tag[KVX_TAG_BYTES];
} kvx_record;

/* One row-strided array of a layout, as the device reads it. Rows without gaps have been merged. */
typedef struct kvx_dev_lane {
    uint64_t base;
    uint64_t block_stride;
    uint64_t row_stride;
    uint32_t row_bytes;
    uint32_t n_rows;
    uint32_t unit_offset; /* where the lane's rows begin in its unit */
    uint32_t reserved;
} kvx_dev_lane;

typedef struct kvx_dev_segment {
    uint32_t first_lane, n_lanes; /* in the layout's lanes */
    uint32_t slot_offset;         /* of the unit in the slot */
    uint32_t bytes;               /* of the unit, padded to 32 */
    uint32_t plain_bytes;         /* before padding */
    uint32_t aligned;             /* nonzero: every base, stride and row size is a multiple of 16 */
} kvx_dev_segment;

typedef struct kvx_dev_layout {
    const kvx_dev_lane *lanes;
    const kvx_dev_segment *segments;
    uint64_t fingerprint;
    uint32_t n_lanes, n_segments;
    uint32_t n_blocks;     /* 0: no such layout */
    uint32_t sealed_bytes; /* of a block */
} kvx_dev_layout;

typedef struct kvx_dev_class {
    uint64_t first_record;
    uint32_t first_slot, n_slots; /* in the flat numbering of all slots */
    uint32_t slot_bytes, max_units;
    uint32_t first_chunk, slots_per_chunk;
} kvx_dev_class;

/* A pair as it rides in kernel parameters: 16 bytes. `refusal` is a verdict that the host already knows (stale handle).
 */
typedef struct kvx_work_pair {
    uint32_t block;
    uint32_t slot; /* flat number */
    uint32_t generation;
    uint8_t layout;
    uint8_t refusal;
    uint16_t tenant;
} kvx_work_pair;

/* Progress of one pair in the result table: units that have their verdict, and the worst verdict so far. */
typedef struct kvx_entry {
    uint32_t n_done;
    uint32_t verdict;
} kvx_entry;

/* A MACed result: PRF(ticket, index << 8 | verdict) with its low byte replaced by the verdict. Index is the pair's
 * place in the batch; KVX_RESULT_RELEASED stands for "source released". */
#define KVX_RESULT_RELEASED 0xffffffffu

/* The words of a context that every kernel reads or counts in. One instance, private memory. */
typedef struct kvx_dev_words {
    uint64_t sequence;      /* next number; one counter for all keys */
    uint64_t prf_key[2];    /* for result words */
    uint32_t fixed_field;   /* first 4 bytes of every iv of this context */
    uint32_t latch;         /* nonzero: fail-stop */
    uint32_t tampered;      /* blocks found tampered with */
    uint32_t tamper_budget; /* latch when tampered exceeds it; 0 latches at the first */
    uint32_t n_ctas_done;   /* of the seal launch that is running (they run one after the other); returns to 0 */
    uint32_t reserved;
    uint64_t key_soft_limit, key_hard_limit; /* as in kvx_key_state.spent */
    uint64_t incarnation;                    /* a random number of the context, kept on both sides */
} kvx_dev_words;

/* State of a key slot, the low byte of its word; the rest is the slot's generation, which grows with each key put in.
 * Kept beside the key material, in private memory. LIVE seals and opens, OPEN_ONLY opens, DEAD does neither. */
enum { KVX_KEY_STATE_DEAD = 0, KVX_KEY_STATE_OPEN_ONLY = 1, KVX_KEY_STATE_LIVE = 2 };

typedef struct kvx_key_state {
    uint64_t word;    /* generation << 8 | state */
    uint64_t spent;   /* AES blocks and operations, reserved before they are used */
    uint32_t in_use;  /* units that work with the key at this moment: whoever erases it waits for them */
    uint32_t holders; /* blocks that chose the key and have not been committed */
    uint32_t reserved[2];
} kvx_key_state;

/* The keys of a tenant, as references: generation << 32 | key slot + 1; 0: none. Sealing reads `current` when it runs
 * and moves it on to `next` by itself. next == current: the next key has not been put in yet. */
typedef struct kvx_tenant_keys {
    uint64_t current, next;
} kvx_tenant_keys;

#endif
