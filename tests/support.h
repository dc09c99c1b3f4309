/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_TESTS_SUPPORT_H
#define KVX_TESTS_SUPPORT_H
/*
 * What the tests of stores and restores share: a device (memory, streams and events of one engine), tensors with guards
 * around every lane and a host mirror that says what every byte must be, and a rig of pool, context and layout.
 */
#include "cmocka_door.h"

#include <stdatomic.h>
#include <string.h>

#include "kvx.h"

/* ------------------------------------------------------------------------------------------------------- device */

typedef struct device {
    const char *name;
    kvx_engine engine;
    int (*usable)(const char **why);
    void *(*alloc)(size_t bytes);
    void (*free)(void *memory);
    /* Complete on return. */
    void (*upload)(void *dev, const void *host, size_t bytes);
    void (*download)(void *host, const void *dev, size_t bytes);
    void (*set)(void *dev, int value, size_t bytes);
    kvx_stream (*stream_create)(void);
    void (*stream_destroy)(kvx_stream stream);
    void (*stream_sync)(kvx_stream stream);
    /* In stream order: a host function, a wait, a copy within the device. */
    void (*stream_call)(kvx_stream stream, void (*fn)(void *), void *arg);
    void (*stream_wait)(kvx_stream stream, kvx_event event);
    void (*stream_copy)(kvx_stream stream, void *to, const void *from, size_t bytes);
    kvx_event (*event_create)(void);
    void (*event_destroy)(kvx_event event);
    void (*event_record)(kvx_event event, kvx_stream stream);
    int (*event_fired)(kvx_event event);
    void (*event_sync)(kvx_event event);
    /* NULL where streams cannot be captured. */
    void (*capture_begin)(kvx_stream stream);
    void (*capture_drop)(kvx_stream stream);
} device;

extern const device device_cpu;
#if KVX_WITH_CUDA
extern const device device_cuda;
#endif

/* Holds a stream until the test opens it. At most one closed gate at a time: CUDA may run host functions one by one. */
typedef struct gate {
    atomic_int open;
} gate;
void gate_close(gate *g, const device *dev, kvx_stream stream);
void gate_open(gate *g);

/* Holds a stream for some time. */
void stream_nap(const device *dev, kvx_stream stream, const unsigned *milliseconds);
void nap(unsigned milliseconds);
uint64_t clock_ns(void);

/* -------------------------------------------------------------------------------------------------------- cases */

typedef struct test_case {
    const char *name;
    void (*fn)(const device *dev, const void *arg);
    const void *arg;
} test_case;

/* Runs every case on every engine present. argv[1], if any, is a cmocka filter such as "*tamper*". A GPU that is
 * missing is reported, and fails if the environment has KVX_REQUIRE_GPU=1. */
int run_cases(const char *group, const test_case *cases, size_t n, int argc, char **argv);
#define RUN_CASES(group, cases, argc, argv) run_cases(group, cases, sizeof(cases) / sizeof((cases)[0]), argc, argv)
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ------------------------------------------------------------------------------------------------------- tensors */

/* One strided array in a table of shapes. TRANSPOSED: block index runs fastest (row_stride > block_stride). */
typedef struct lane_shape {
    uint32_t n_rows, row_bytes, row_gap, block_gap;
    enum { BLOCK_MAJOR, TRANSPOSED } order;
} lane_shape;

/* `pattern` repeated until there are n_lanes lanes; lanes_per_segment of them make a segment. */
typedef struct shape {
    const char *name;
    uint32_t n_blocks, n_lanes, lanes_per_segment;
    lane_shape pattern[4];
    uint32_t n_pattern;
    uint32_t skew; /* bytes added to each base: 8 makes it 8-byte aligned only */
} shape;

extern const shape shapes[]; /* odd and common layouts: a table in support_shapes.c */
extern const size_t n_shapes;
const shape *shape_named(const char *name);

uint32_t shape_segments(const shape *s);
uint64_t shape_unit_bytes(const shape *s, uint32_t segment);  /* without padding */
uint64_t shape_unit_offset(const shape *s, uint32_t segment); /* in the slot; segment == n: the block's sealed bytes */

typedef struct tensors {
    const device *dev;
    const shape *shape;
    kvx_lane *lanes;
    uint8_t *memory; /* device: guard, lane, guard, lane, ..., guard */
    uint8_t *mirror; /* host: what `memory` must hold */
    size_t bytes;
} tensors;

#define ALL_SEGMENTS UINT32_MAX

/* Everything is filled with a canary. extra_gap (a multiple of 8) widens every stride. */
void tensors_create(tensors *t, const device *dev, const shape *s, uint32_t extra_gap);
void tensors_destroy(tensors *t);
/* Mirror only: gives a block the content of a seed (never 0), or zeroes one segment or all. */
void tensors_expect(tensors *t, uint32_t block, uint64_t seed);
void tensors_expect_segment(tensors *t, uint32_t block, uint32_t segment, uint64_t seed);
void tensors_expect_zero(tensors *t, uint32_t block, uint32_t segment);
/* Mirror and device. */
void tensors_upload(tensors *t);
void tensors_fill(tensors *t, uint32_t first_block, uint32_t n, uint64_t first_seed); /* seeds ascending */
/* Compares every byte of the device's memory, guards and gaps too, with the mirror. */
void tensors_check(const tensors *t);
/* Nonzero if block `block` holds the content of `seed`. */
int tensors_holds(const tensors *t, uint32_t block, uint64_t seed);
int tensors_segment_holds(const tensors *t, uint32_t block, uint32_t segment, uint64_t seed);
/* The unit of a seed as it is sealed: gathered, zero-padded. `bytes` is its padded length. */
void unit_plain(const shape *s, uint32_t segment, uint64_t seed, uint8_t *plain);
/* A gather that knows nothing but the lanes: reads the mirror. Returns the bytes before padding. */
size_t tensors_gather(const tensors *t, uint32_t block, uint32_t segment, uint8_t *plain);

/* ----------------------------------------------------------------------------------------------------------- rig */

typedef struct rig_options {
    uint32_t n_slots; /* 0: two per block */
    uint64_t slot_bytes;
    uint32_t caller_managed;
    kvx_tamper_policy policy;
    uint32_t tamper_budget, n_tenants, max_tickets, max_pairs, max_layouts;
    uint64_t ring_bytes, burst_bytes;
    uint32_t burst_sms, direct_sms;
    const struct kvx_key_config *keys;
} rig_options;

typedef struct rig {
    const device *dev;
    kvx_pool *pool;
    kvx_ctx *ctx;
    kvx_stream stream;
    tensors source;
    kvx_layout *layout;
    uint32_t n_slots; /* class 0 */
} rig;

/* Source block b holds the content of seed b + 1. options NULL: defaults. */
void rig_open(rig *r, const device *dev, const shape *s, const rig_options *options);
void rig_close(rig *r);

kvx_pool *pool_make(const device *dev, const kvx_slot_class *classes, uint32_t n_classes);
kvx_ctx *ctx_make(const device *dev, kvx_pool *pool, const rig_options *options);
kvx_layout *layout_make(kvx_ctx *ctx, const tensors *t, uint64_t binding);
void slots_take(kvx_pool *pool, uint32_t n, kvx_slot *slots); /* of class 0 */

/* Pair i: block first_block + i, slots[i]. */
void pairs_set(kvx_pair *pairs, uint32_t n, const kvx_layout *layout, uint32_t first_block, const kvx_slot *slots);

/* ---------------------------------------------------------------------------------------------------- expectations */

#define expect_ok(call) expect_status(call, KVX_OK)
#define expect_status(call, wanted) check_status(call, wanted, #call, __FILE__, __LINE__)
void check_status(kvx_status got, kvx_status wanted, const char *what, const char *file, int line);

/* Waits (20 s at most), collects the ticket and checks every verdict. */
#define expect_all(ctx, ticket, n, wanted) check_all(ctx, ticket, n, wanted, __FILE__, __LINE__)
#define expect_verdicts(ctx, ticket, n, wanted) check_verdicts(ctx, ticket, n, wanted, __FILE__, __LINE__)
void check_all(kvx_ctx *ctx, kvx_ticket ticket, uint32_t n, kvx_status wanted, const char *file, int line);
void check_verdicts(kvx_ctx *ctx, kvx_ticket ticket, uint32_t n, const kvx_status *wanted, const char *file, int line);
void collect(kvx_ctx *ctx, kvx_ticket ticket, uint32_t n, kvx_status *verdicts);

/* Stores or restores on the rig's stream and expects KVX_OK for all. */
void store_all(rig *r, uint32_t n, const kvx_pair *pairs);
void restore_all(rig *r, uint32_t n, const kvx_pair *pairs);
/* Restores and collects; verdicts has room for n. */
void restore_some(rig *r, uint32_t n, const kvx_pair *pairs, kvx_status *verdicts);

uint8_t *slot_bytes(kvx_pool *pool, kvx_slot slot);
kvx_stats stats_of(kvx_ctx *ctx);
uint64_t random_word(uint64_t *state);

#endif
