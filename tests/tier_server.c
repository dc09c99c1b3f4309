/* SPDX-License-Identifier: Apache-2.0 */
/* The model of serving code. It follows the order that kvx_tier.h gives: look up, make room, load, offer, pump. */
#include "tier_server.h"

#include <sched.h>
#include <stdlib.h>

#define TIMEOUT_NS 60000000000u

/* Two segments, of 4,096 and 640 bytes and the like. */
static const shape served = {"served", N_GPU, 4, 2, {{1, 2048, 0, 0, BLOCK_MAJOR}, {3, 104, 8, 0, BLOCK_MAJOR}}, 2, 0};

uint64_t chain_seed(uint32_t tenant, uint32_t talk, uint32_t i)
{
    return 1 + i + N_CHAIN * (talk + (uint64_t)N_TALKS * tenant);
}

kvx_tier_hash chain_hash(uint32_t talk, uint32_t i)
{
    uint64_t state = 77 + i + (uint64_t)N_CHAIN * talk;
    kvx_tier_hash hash;
    for (size_t k = 0; k < sizeof hash.bytes; k += 8) {
        const uint64_t word = random_word(&state);
        memcpy(hash.bytes + k, &word, 8);
    }
    return hash;
}

/* ---------------------------------------------------------------------------------------------------------- hall */

static void server_open(hall *h, uint32_t index)
{
    server *s = &h->servers[index];
    s->h = h;
    s->index = index;
    s->random = 100 + index;
    s->stream = h->dev->stream_create();
    tensors_create(&s->t, h->dev, &served, 0);
    s->layout = layout_make(h->ctx, &s->t, 7);
}

static void tier_open(hall *h, const hall_options *options)
{
    kvx_tier_config config = KVX_TIER_CONFIG_INIT;
    kvx_tier_tenant rules = KVX_TIER_TENANT_INIT;
    config.ctx = h->ctx;
    config.pool = h->pool;
    config.first_slot = 3;
    config.n_blocks = N_SLOTS;
    config.n_tenants = N_TENANTS;
    config.write = options->write;
    config.evict = options->evict;
    config.batch_blocks = 4;
    config.batch_wait_ns = 200000;
    expect_ok(kvx_tier_create(&config, &h->tier));
    rules.quota_blocks = QUOTA;
    expect_ok(kvx_tier_tenant_set(h->tier, 2, &rules));
}

void hall_open(hall *h, const device *dev, const hall_options *options)
{
    const kvx_slot_class class = {
        .slot_bytes = shape_unit_offset(&served, 2), .n_slots = N_SLOTS + 5, .max_units = 2, .caller_managed = 1};
    const rig_options o = {.policy = options->policy, .tamper_budget = 1u << 30, .n_tenants = N_TENANTS};
    memset(h, 0, sizeof *h);
    h->dev = dev;
    h->pool = pool_make(dev, &class, 1);
    h->ctx = ctx_make(dev, h->pool, &o);
    h->sealed = (size_t)shape_unit_offset(&served, 2);
    h->stolen = calloc(1, h->sealed);
    assert_non_null(h->stolen);
    h->n_servers = options->n_servers ? options->n_servers : 1;
    tier_open(h, options);
    for (uint32_t i = 0; i < h->n_servers; i++)
        server_open(h, i);
}

void hall_settle(hall *h)
{
    const uint64_t start = clock_ns();
    kvx_status status;
    expect_ok(kvx_tier_flush(h->tier));
    do {
        server_pump(&h->servers[0]);
        status = kvx_tier_idle(h->tier);
        assert_true(clock_ns() - start < TIMEOUT_NS);
    } while (status == KVX_PENDING);
    expect_status(status, KVX_OK);
}

kvx_tier_stats hall_stats(hall *h)
{
    kvx_tier_stats stats;
    memset(&stats, 0, sizeof stats);
    stats.size = sizeof stats;
    expect_ok(kvx_tier_stats_get(h->tier, &stats));
    return stats;
}

static void check_sums(const kvx_tier_stats *s)
{
    uint64_t removed = 0;
    for (int cause = 0; cause < KVX_TIER_CAUSES; cause++)
        removed += s->removed_blocks[cause];
    assert_int_equal(s->lookup_blocks, s->hit_blocks + s->pending_blocks + s->miss_blocks);
    assert_int_equal(s->offered_blocks,
                     s->queued_blocks + s->joined_blocks + s->held_blocks + s->skipped_blocks + s->no_room_blocks);
    assert_int_equal(s->capacity, s->blocks_now + s->pending_now + s->leaving_now + s->free_now);
    assert_int_equal(s->pinned_now, 0);
    assert_true(s->stored_blocks >= removed + s->blocks_now); /* more: dropped while being stored */
}

void hall_close(hall *h)
{
    hall_settle(h);
    const kvx_tier_stats stats = hall_stats(h);
    if (!stats.latched)
        check_sums(&stats);
    expect_ok(kvx_tier_destroy(h->tier));
    kvx_ctx_destroy(h->ctx);
    expect_ok(kvx_pool_destroy(h->pool));
    for (uint32_t i = 0; i < h->n_servers; i++) {
        h->dev->stream_sync(h->servers[i].stream);
        h->dev->stream_destroy(h->servers[i].stream);
        tensors_destroy(&h->servers[i].t);
    }
    free(h->stolen);
}

void hall_expect_nothing_wrong(const hall *h)
{
    for (uint32_t i = 0; i < h->n_servers; i++)
        assert_int_equal(h->servers[i].n_wrong, 0);
}

/* --------------------------------------------------------------------------------------------------- a GPU's blocks */

void server_pump(server *self)
{
    const kvx_status status = kvx_tier_pump(self->h->tier, clock_ns(), self->stream);
    NEED(status == KVX_OK || (self->h->may_latch && status == KVX_LATCHED));
}

/* Only this block's rows, for others may be under way. */
static void upload_block(server *self, uint32_t block)
{
    for (uint32_t i = 0; i < self->t.shape->n_lanes; i++) {
        const kvx_lane *lane = &self->t.lanes[i];
        for (uint32_t row = 0; row < lane->n_rows; row++) {
            uint8_t *dev = (uint8_t *)lane->dev_base + block * lane->block_stride + row * lane->row_stride;
            self->h->dev->upload(dev, self->t.mirror + (dev - self->t.memory), lane->row_bytes);
        }
    }
}

static void name_place(server *self, uint32_t block, uint32_t tenant, uint32_t talk, uint32_t i)
{
    place *p = &self->places[block];
    p->name = (kvx_tier_block){chain_hash(talk, i), tenant, block, self->layout};
    p->seed = chain_seed(tenant, talk, i);
    p->last_use = ++self->clock;
    tensors_expect(&self->t, block, p->seed);
}

void server_compute(server *self, uint32_t block, uint32_t tenant, uint32_t talk, uint32_t i)
{
    name_place(self, block, tenant, talk, i);
    upload_block(self, block);
}

kvx_tier_drop_answer server_evict(server *self, uint32_t block)
{
    const kvx_tier_block *name = &self->places[block].name;
    kvx_tier_drop_answer answer = KVX_TIER_WAIT;
    const uint64_t start = clock_ns();
    kvx_tier_outcome outcome;
    NEED(kvx_tier_offer(self->h->tier, KVX_TIER_LEAVING, 1, name, &outcome) == KVX_OK);
    NEED(kvx_tier_flush(self->h->tier) == KVX_OK);
    do {
        NEED(kvx_tier_may_drop(self->h->tier, 1, name, &answer) == KVX_OK);
        if (answer == KVX_TIER_WAIT) {
            server_pump(self);
            (void)sched_yield();
        }
    } while (answer == KVX_TIER_WAIT && clock_ns() - start < TIMEOUT_NS);
    NEED(answer != KVX_TIER_WAIT);
    self->places[block].seed = 0;
    return answer;
}

static uint32_t find_place(const server *self, uint64_t seed)
{
    uint32_t block = 0;
    while (block < N_GPU && self->places[block].seed != seed)
        block++;
    return block;
}

/* A free block, or the least recently used one; those of the chain at hand have just been used. */
static uint32_t take_place(server *self)
{
    uint32_t oldest = find_place(self, 0);
    if (oldest < N_GPU)
        return oldest;
    oldest = 0;
    for (uint32_t block = 1; block < N_GPU; block++)
        if (self->places[block].last_use < self->places[oldest].last_use)
            oldest = block;
    (void)server_evict(self, oldest);
    return oldest;
}

/* -------------------------------------------------------------------------------------------------------- a request */

typedef struct request {
    uint32_t tenant, talk, n;
    uint32_t block[N_CHAIN]; /* where block i of the chain lies on the GPU */
    enum { ON_GPU, LOADED, TO_COMPUTE } from[N_CHAIN];
    uint32_t n_missing, n_targets;
    kvx_tier_target targets[N_CHAIN];
    uint32_t target_of[N_CHAIN]; /* place in the chain */
} request;

/* Marks what the GPU holds as used, so that taking places spares it. */
static void find_on_gpu(server *self, request *r)
{
    for (uint32_t i = 0; i < r->n; i++) {
        r->block[i] = find_place(self, chain_seed(r->tenant, r->talk, i));
        r->from[i] = r->block[i] < N_GPU ? ON_GPU : TO_COMPUTE;
        if (r->from[i] == ON_GPU)
            self->places[r->block[i]].last_use = ++self->clock;
        else
            r->n_missing++;
    }
}

/* Pins what the tier has of the rest of the chain; what the GPU has behind a gap is let go again. */
static void find_in_tier(server *self, request *r)
{
    kvx_tier_hash hashes[N_CHAIN];
    kvx_tier_pin pins[N_CHAIN];
    kvx_tier_match match = {0, 0};
    uint32_t first = 0;
    while (first < r->n && r->from[first] == ON_GPU)
        first++;
    if (first == r->n)
        return;
    for (uint32_t i = first; i < r->n; i++)
        hashes[i] = chain_hash(r->talk, i);
    NEED(kvx_tier_lookup(self->h->tier, r->tenant, r->n - first, hashes + first, &match, pins + first) == KVX_OK);
    NEED(match.n_hits + match.n_pending <= r->n - first);
    for (uint32_t i = first; i < first + match.n_hits; i++) {
        if (r->from[i] == ON_GPU) {
            NEED(kvx_tier_unpin(self->h->tier, 1, &pins[i]) == KVX_OK);
            continue;
        }
        r->from[i] = LOADED;
        r->target_of[r->n_targets] = i;
        r->targets[r->n_targets++].pin = pins[i];
    }
}

static void take_places(server *self, request *r)
{
    for (uint32_t i = 0, k = 0; i < r->n; i++) {
        if (r->from[i] == ON_GPU)
            continue;
        r->block[i] = take_place(self);
        name_place(self, r->block[i], r->tenant, r->talk, i);
        if (r->from[i] == LOADED) {
            r->targets[k].layout = self->layout;
            r->targets[k++].block = r->block[i];
        }
    }
}

static kvx_status start_load(server *self, const request *r, kvx_tier_load_id *id)
{
    const uint64_t start = clock_ns();
    kvx_options options = KVX_OPTIONS_INIT;
    kvx_status status;
    options.stream = self->stream;
    do {
        status = random_word(&self->random) % 4 ? kvx_tier_load(self->h->tier, r->n_targets, r->targets, &options, id)
                                                : kvx_tier_prefetch(self->h->tier, r->n_targets, r->targets, id);
        if (status == KVX_AGAIN)
            server_pump(self);
    } while (status == KVX_AGAIN && clock_ns() - start < TIMEOUT_NS);
    return status;
}

static void drop_pins(server *self, request *r)
{
    for (uint32_t k = 0; k < r->n_targets; k++) {
        NEED(kvx_tier_unpin(self->h->tier, 1, &r->targets[k].pin) == KVX_OK);
        r->from[r->target_of[k]] = TO_COMPUTE;
    }
}

static void load(server *self, request *r)
{
    kvx_status verdicts[N_CHAIN], status;
    kvx_tier_load_id id = 0;
    uint32_t n_failed = 0, n_bad = 0;
    const uint64_t start = clock_ns();
    if (r->n_targets == 0)
        return;
    status = start_load(self, r, &id);
    if (status == KVX_LATCHED && self->h->may_latch) {
        drop_pins(self, r);
        return;
    }
    NEED(status == KVX_OK);
    do {
        server_pump(self);
        status = kvx_tier_load_poll(self->h->tier, id, &n_failed, r->n_targets, verdicts);
    } while (status == KVX_PENDING && clock_ns() - start < TIMEOUT_NS);
    NEED(status == KVX_OK);
    for (uint32_t k = 0; status == KVX_OK && k < r->n_targets; k++)
        if (verdicts[k] != KVX_OK) {
            r->from[r->target_of[k]] = TO_COMPUTE;
            n_bad++;
        }
    NEED(n_bad == n_failed);
    self->n_refused += n_bad;
}

/* Every byte that is served is right: the engine's own, or one that came back as it had gone. */
static void finish(server *self, request *r)
{
    kvx_tier_block offered[N_CHAIN];
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n; i++) {
        if (r->from[i] == TO_COMPUTE)
            server_compute(self, r->block[i], r->tenant, r->talk, i);
        NEED(tensors_holds(&self->t, r->block[i], chain_seed(r->tenant, r->talk, i)));
        if (r->from[i] != LOADED)
            offered[n++] = self->places[r->block[i]].name;
        self->n_on_gpu += r->from[i] == ON_GPU;
        self->n_loaded += r->from[i] == LOADED;
        self->n_computed += r->from[i] == TO_COMPUTE;
    }
    if (n)
        NEED(kvx_tier_offer(self->h->tier, KVX_TIER_USED, n, offered, NULL) == KVX_OK);
    server_pump(self);
}

/* Sometimes the scheduler knows of a request before its turn comes. */
static uint64_t announce(server *self, const request *r)
{
    kvx_tier_hash hashes[N_CHAIN];
    uint64_t announcement = 0;
    uint32_t n_held = 0;
    kvx_status status;
    if (random_word(&self->random) % 4)
        return 0;
    for (uint32_t i = 0; i < r->n; i++)
        hashes[i] = chain_hash(r->talk, i);
    status =
        kvx_tier_announce(self->h->tier, r->tenant, r->n, hashes, clock_ns() + 1000000000u, &n_held, &announcement);
    NEED(status == KVX_OK || status == KVX_AGAIN);
    NEED(n_held <= r->n);
    return announcement;
}

void serve(server *self, uint32_t tenant, uint32_t talk, uint32_t n)
{
    request r;
    memset(&r, 0, sizeof r);
    r.tenant = tenant;
    r.talk = talk;
    r.n = n;
    const uint64_t announcement = announce(self, &r);
    find_on_gpu(self, &r);
    find_in_tier(self, &r);
    take_places(self, &r);
    if (announcement) {
        const kvx_status status = kvx_tier_withdraw(self->h->tier, announcement);
        NEED(status == KVX_OK || status == KVX_UNKNOWN); /* it may have run out */
    }
    load(self, &r);
    finish(self, &r);
}

/* Some chains are wanted far more often than others. */
void serve_random(server *self)
{
    const uint64_t word = random_word(&self->random);
    const uint32_t talk = (uint32_t)(word % 3 ? word >> 8 & 3 : (word >> 8) % N_TALKS);
    serve(self, (uint32_t)(word >> 40) % N_TENANTS, talk, 1 + (uint32_t)(word >> 50) % N_CHAIN);
}

/* ---------------------------------------------------------------------------------------------------- the router */

static uint8_t *mirrored(router *m, const kvx_tier_event *event)
{
    for (uint32_t talk = 0; talk < N_TALKS; talk++)
        for (uint32_t i = 0; i < N_CHAIN; i++) {
            const kvx_tier_hash hash = chain_hash(talk, i);
            if (memcmp(&hash, &event->hash, sizeof hash) == 0)
                return &m->held[event->tenant][talk][i];
        }
    fail_msg("an event about an unknown block");
    return NULL;
}

void router_follow(router *m, hall *h)
{
    kvx_tier_event events[32];
    uint64_t n_lost = 0;
    uint32_t n = 0;
    do {
        expect_ok(kvx_tier_events(h->tier, COUNT(events), events, &n, &n_lost));
        assert_int_equal(n_lost, 0);
        for (uint32_t i = 0; i < n; i++) {
            uint8_t *held = mirrored(m, &events[i]);
            assert_int_equal(events[i].sequence, ++m->sequence);
            assert_int_equal(*held, events[i].kind != KVX_TIER_STORED);
            *held = events[i].kind == KVX_TIER_STORED;
        }
    } while (n == COUNT(events));
}

uint32_t router_count(const router *m)
{
    const uint8_t *held = &m->held[0][0][0];
    uint32_t n = 0;
    for (size_t i = 0; i < sizeof m->held; i++)
        n += held[i];
    return n;
}

/* ------------------------------------------------------------------------------------------------------ the host */

/* The host does not ask who is at work in the pool: ThreadSanitizer need not know. */
__attribute__((no_sanitize("thread"))) static void copy_bytes(volatile uint8_t *to, const volatile uint8_t *from,
                                                              size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = from[i];
}

__attribute__((no_sanitize("thread"))) static void swap_bytes(volatile uint8_t *a, volatile uint8_t *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint8_t byte = a[i];
        a[i] = b[i];
        b[i] = byte;
    }
}

__attribute__((no_sanitize("thread"))) static void flip_bit(volatile uint8_t *bytes, uint64_t bit)
{
    bytes[bit / 8] = (uint8_t)(bytes[bit / 8] ^ 1u << bit % 8);
}

__attribute__((no_sanitize("thread"))) static void clear_bytes(volatile uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        bytes[i] = 0;
}

static uint8_t *slot_of(hall *h, uint64_t index)
{
    const kvx_slot slot = {0, (uint32_t)(index % (N_SLOTS + 5)), 0};
    void *bytes = NULL;
    uint64_t n = 0;
    return kvx_pool_slot_bytes(h->pool, slot, &bytes, &n) == KVX_OK ? bytes : h->stolen;
}

void tamper(hall *h, uint64_t *random)
{
    const uint64_t word = random_word(random);
    uint8_t *bytes = slot_of(h, word >> 8), *other = slot_of(h, word >> 24);
    switch (word % 5) {
    case 0:
        flip_bit(bytes, (word >> 32) % (8 * h->sealed));
        break;
    case 1:
        clear_bytes(bytes, h->sealed);
        break;
    case 2:
        swap_bytes(bytes, other, h->sealed);
        break;
    case 3:
        copy_bytes(h->stolen, bytes, h->sealed);
        break;
    default:
        copy_bytes(bytes, h->stolen, h->sealed);
    }
}
