/* SPDX-License-Identifier: Apache-2.0 */
/* The library under a model of SGLang's hierarchical cache: pages of the device pool are backed up to host indices of
 * SGLang's own choosing for all layers at once, and loaded layer by layer while the model already computes: layer i is
 * used as soon as its event has fired. */
#include "support.h"

#define N_PAGES 12
#define N_LAYERS 16
#define N_HOST_PAGES 20
#define TIMEOUT_NS 20000000000u

/* K and V of each layer make a segment. */
static const shape pool_shape = {"pages", N_PAGES, 2 * N_LAYERS, 2, {{1, 2048, 0, 0, BLOCK_MAJOR}}, 1, 0};

typedef struct hicache {
    rig r;
    tensors seen; /* what the model read, layer by layer */
    kvx_stream compute, load;
    kvx_event layer_done[N_LAYERS];
    uint32_t writes[N_HOST_PAGES]; /* generation of each host page */
} hicache;

static void hicache_open(hicache *h, const device *dev)
{
    const rig_options options = {.n_slots = N_HOST_PAGES, .caller_managed = 1};
    memset(h, 0, sizeof *h);
    rig_open(&h->r, dev, &pool_shape, &options);
    tensors_create(&h->seen, dev, &pool_shape, 0);
    h->compute = dev->stream_create();
    h->load = dev->stream_create();
    for (uint32_t i = 0; i < N_LAYERS; i++)
        h->layer_done[i] = dev->event_create();
}

static void hicache_close(hicache *h)
{
    const device *dev = h->r.dev;
    dev->stream_sync(h->compute);
    dev->stream_sync(h->load);
    rig_close(&h->r);
    for (uint32_t i = 0; i < N_LAYERS; i++)
        dev->event_destroy(h->layer_done[i]);
    dev->stream_destroy(h->compute);
    dev->stream_destroy(h->load);
    tensors_destroy(&h->seen);
}

/* backup_from_device_all_layer(device_indices, host_indices) */
static kvx_ticket backup_from_device_all_layer(hicache *h, uint32_t n, const uint32_t *pages, const uint32_t *host)
{
    kvx_options options = KVX_OPTIONS_INIT;
    kvx_pair pairs[N_PAGES];
    kvx_ticket ticket;
    for (uint32_t i = 0; i < n; i++)
        pairs[i] = (kvx_pair){h->r.layout, pages[i], {0, host[i], ++h->writes[host[i]]}, 0};
    options.stream = h->compute;
    options.hints = KVX_HINT_NO_JOIN;
    expect_ok(kvx_store(h->r.ctx, n, pairs, &options, &ticket));
    return ticket;
}

/* load_to_device_per_layer for all layers in one call: an event per layer. */
static kvx_ticket load_to_device_per_layer(hicache *h, uint32_t n, const uint32_t *pages, const uint32_t *host)
{
    kvx_options options = KVX_OPTIONS_INIT;
    kvx_pair pairs[N_PAGES];
    kvx_ticket ticket;
    for (uint32_t i = 0; i < n; i++)
        pairs[i] = (kvx_pair){h->r.layout, pages[i], {0, host[i], h->writes[host[i]]}, 0};
    options.stream = h->load;
    options.segment_events = h->layer_done;
    options.n_segment_events = N_LAYERS;
    options.hints = KVX_HINT_NO_JOIN;
    expect_ok(kvx_restore(h->r.ctx, n, pairs, &options, &ticket));
    return ticket;
}

/* The model: for each layer wait for its event, then read the layer's K and V. */
static void compute_layers(hicache *h)
{
    const tensors *cache = &h->r.source;
    for (uint32_t i = 0; i < N_LAYERS; i++) {
        h->r.dev->stream_wait(h->compute, h->layer_done[i]);
        for (uint32_t k = 2 * i; k < 2 * i + 2; k++) {
            uint8_t *from = cache->lanes[k].dev_base;
            h->r.dev->stream_copy(h->compute, h->seen.memory + (from - cache->memory), from, (size_t)N_PAGES * 2048);
        }
    }
}

static void evict_all(hicache *h)
{
    tensors_fill(&h->r.source, 0, N_PAGES, 9001);
}

static void layers_are_right_when_their_event_fires(const device *dev, const void *arg)
{
    static const uint32_t pages[N_PAGES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    static const uint32_t host[N_PAGES] = {19, 3, 4, 5, 0, 11, 12, 10, 17, 1, 2, 8};
    hicache h;
    (void)arg;
    hicache_open(&h, dev);
    for (uint32_t round = 0; round < 10; round++) {
        tensors_fill(&h.r.source, 0, N_PAGES, 100 * round + 1);
        const kvx_ticket backup = backup_from_device_all_layer(&h, N_PAGES, pages, host);
        expect_all(h.r.ctx, backup, N_PAGES, KVX_OK);
        evict_all(&h);
        const kvx_ticket load = load_to_device_per_layer(&h, N_PAGES, pages, host);
        compute_layers(&h);
        dev->stream_sync(h.compute); /* the host has asked nothing of kvx yet */
        for (uint32_t i = 0; i < N_PAGES; i++) {
            tensors_expect(&h.seen, i, 100 * round + 1 + i);
            tensors_expect(&h.r.source, i, 100 * round + 1 + i);
        }
        tensors_check(&h.seen);
        expect_all(h.r.ctx, load, N_PAGES, KVX_OK);
        tensors_check(&h.r.source);
    }
    hicache_close(&h);
}

/* Layers fire in order: when one has, all before it have. */
static void layers_fire_in_order(const device *dev, const void *arg)
{
    static const uint32_t pages[4] = {8, 1, 7, 2}, host[4] = {0, 1, 2, 3};
    hicache h;
    (void)arg;
    hicache_open(&h, dev);
    expect_all(h.r.ctx, backup_from_device_all_layer(&h, 4, pages, host), 4, KVX_OK);
    for (uint32_t round = 0; round < 20; round++) {
        const kvx_ticket load = load_to_device_per_layer(&h, 4, pages, host);
        const uint64_t start = clock_ns();
        uint32_t n_fired = 0;
        while (n_fired < N_LAYERS && clock_ns() - start < TIMEOUT_NS) {
            uint32_t last = N_LAYERS;
            while (last > n_fired && !dev->event_fired(h.layer_done[last - 1]))
                last--;
            for (uint32_t i = 0; i < last; i++)
                assert_true(dev->event_fired(h.layer_done[i]));
            n_fired = last;
        }
        assert_int_equal(n_fired, N_LAYERS);
        expect_all(h.r.ctx, load, 4, KVX_OK);
    }
    tensors_check(&h.r.source);
    hicache_close(&h);
}

/* Host pages are written again for other requests while loads of them are under way: each load gets what its page held
 * when it was called, and an index that was written since is stale, never somebody else's page. */
static void host_pages_are_written_again(const device *dev, const void *arg)
{
    static const uint32_t first[4] = {0, 1, 2, 3}, second[4] = {4, 5, 6, 7}, into[4] = {8, 9, 10, 11};
    static const uint32_t host[4] = {5, 6, 7, 8};
    kvx_status verdict;
    hicache h;
    (void)arg;
    hicache_open(&h, dev);
    const kvx_ticket one = backup_from_device_all_layer(&h, 4, first, host);
    const kvx_ticket load = load_to_device_per_layer(&h, 4, into, host);
    const kvx_ticket two = backup_from_device_all_layer(&h, 4, second, host);
    expect_all(h.r.ctx, load, 4, KVX_OK);
    expect_all(h.r.ctx, one, 4, KVX_OK);
    expect_all(h.r.ctx, two, 4, KVX_OK);
    for (uint32_t i = 0; i < 4; i++)
        tensors_expect(&h.r.source, into[i], first[i] + 1);
    tensors_check(&h.r.source);
    kvx_pair pair = {h.r.layout, into[0], {0, host[0], h.writes[host[0]] - 1}, 0};
    restore_some(&h.r, 1, &pair, &verdict);
    assert_int_equal(verdict, KVX_STALE);
    tensors_expect_zero(&h.r.source, into[0], ALL_SEGMENTS);
    tensors_check(&h.r.source);
    expect_all(h.r.ctx, load_to_device_per_layer(&h, 4, into, host), 4, KVX_OK);
    for (uint32_t i = 0; i < 4; i++)
        tensors_expect(&h.r.source, into[i], second[i] + 1);
    tensors_check(&h.r.source);
    hicache_close(&h);
}

static const test_case cases[] = {
    {"layers are right when their event fires", layers_are_right_when_their_event_fires, NULL},
    {"layers fire in order", layers_fire_in_order, NULL},
    {"host pages are written again", host_pages_are_written_again, NULL},
};

int main(int argc, char **argv)
{
    return RUN_CASES("sglang", cases, argc, argv);
}
