/* SPDX-License-Identifier: Apache-2.0 */
/* A kvx_dev built by hand for tests of the kernels: tensors, slots, keys, ring, and the host's copies of what is needed
 * to say, with OpenSSL alone, what the kernels must have written. */
#ifndef KVX_TESTS_GPU_SCENE_CUH
#define KVX_TESTS_GPU_SCENE_CUH

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <openssl/evp.h>

#include "kernels/launch.h"
#include "kernels/state.h"

using bytes = std::vector<uint8_t>;

inline void need(int error, const char *what)
{
    if (error == 0)
        return;
    printf("FAILED: %s: %s\n", what, cudaGetErrorString((cudaError_t)error));
    exit(1);
}

struct lane_spec {
    uint32_t row_bytes, n_rows;
    uint64_t row_stride;
};
using segment_spec = std::vector<lane_spec>;
using layout_spec = std::vector<segment_spec>;

/* Device memory with a host copy that is fetched and stored as a whole. */
template <class T> struct mirror {
    std::vector<T> host;
    T *dev = nullptr;

    void create(size_t n)
    {
        host.resize(n);
        need(cudaMalloc(&dev, n * sizeof(T) + 256), "cudaMalloc");
        put();
    }
    void put()
    {
        need(cudaMemcpy(dev, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "upload");
    }
    void get()
    {
        need(cudaMemcpy(host.data(), dev, host.size() * sizeof(T), cudaMemcpyDeviceToHost), "download");
    }
    ~mirror()
    {
        cudaFree(dev);
    }
};

struct layout_view {
    std::vector<kvx_dev_segment> segments;
    std::vector<kvx_dev_lane> lanes;
    uint32_t sealed_bytes = 0;
};

/* AES-256-GCM by OpenSSL. Returns ciphertext followed by the tag. */
inline bytes openssl_seal(const bytes &key, const uint8_t iv[12], const bytes &plain)
{
    bytes out(plain.size() + 16);
    int n = 0;
    EVP_CIPHER_CTX *cipher = EVP_CIPHER_CTX_new();
    EVP_EncryptInit_ex(cipher, EVP_aes_256_gcm(), nullptr, key.data(), iv);
    EVP_EncryptUpdate(cipher, out.data(), &n, plain.data(), (int)plain.size());
    EVP_EncryptFinal_ex(cipher, out.data() + n, &n);
    EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_GCM_GET_TAG, 16, out.data() + plain.size());
    EVP_CIPHER_CTX_free(cipher);
    return out;
}

struct scene {
    static constexpr uint32_t n_tenants = 8, n_entries = 4096, n_tickets = 4;
    static constexpr uint8_t canary = 0xa5;

    std::vector<layout_view> layouts;
    std::vector<bytes> keys;
    uint32_t n_blocks, n_slots, slot_bytes = 0, max_units = 0;
    mirror<uint8_t> arena, ring;
    mirror<kvx_header> headers;
    mirror<kvx_record> records;
    mirror<kvx_dev_class> classes;
    mirror<uint8_t *> chunks;
    mirror<kvx_dev_layout> dev_layouts;
    mirror<kvx_dev_lane> dev_lanes;
    mirror<kvx_dev_segment> dev_segments;
    mirror<uint32_t> tenant_keys;
    mirror<uint8_t> key_slots;
    mirror<kvx_dev_words> words;
    mirror<kvx_entry> entries;
    uint8_t *pool = nullptr;
    uint64_t *results = nullptr;
    kvx_dev dev = {};
    uint64_t ticket = 100, store_id = 1000;

    scene(const std::vector<layout_spec> &specs, uint32_t blocks, uint32_t slots, int variant)
        : n_blocks(blocks), n_slots(slots)
    {
        uint64_t arena_bytes = 0;
        for (const layout_spec &spec : specs)
            add_layout(spec, &arena_bytes);
        slot_bytes = (slot_bytes + 4095) / 4096 * 4096;
        arena.create(arena_bytes);
        ring.create((size_t)slots * slot_bytes);
        create_tables();
        create_keys();
        fill_dev(variant);
        fill_tensors();
    }

    scene(const scene &) = delete;

    ~scene()
    {
        cudaFreeHost(pool);
        cudaFreeHost(results);
    }

    /* Lanes get addresses later; until then `base` is an offset in the arena. */
    void add_layout(const layout_spec &spec, uint64_t *arena_bytes)
    {
        layout_view view;
        for (const segment_spec &segment : spec) {
            kvx_dev_segment s = {};
            s.first_lane = (uint32_t)view.lanes.size();
            s.n_lanes = (uint32_t)segment.size();
            s.slot_offset = view.sealed_bytes;
            s.aligned = 1;
            for (const lane_spec &lane : segment)
                add_lane(lane, &view, &s, arena_bytes);
            s.bytes = (s.plain_bytes + 31) / 32 * 32;
            view.sealed_bytes += s.bytes;
            view.segments.push_back(s);
        }
        slot_bytes = slot_bytes > view.sealed_bytes ? slot_bytes : view.sealed_bytes;
        max_units = max_units > spec.size() ? max_units : (uint32_t)spec.size();
        layouts.push_back(view);
    }

    void add_lane(const lane_spec &lane, layout_view *view, kvx_dev_segment *s, uint64_t *arena_bytes)
    {
        const bool odd = (lane.row_bytes | lane.row_stride) % 16 != 0;
        kvx_dev_lane l = {};
        l.base = (*arena_bytes + 15) / 16 * 16 + (odd ? 8 : 16);
        l.row_bytes = lane.row_bytes;
        l.n_rows = lane.n_rows;
        l.row_stride = lane.row_stride;
        l.block_stride = lane.row_stride * lane.n_rows + (odd ? 8 : 16);
        l.unit_offset = s->plain_bytes;
        s->plain_bytes += lane.row_bytes * lane.n_rows;
        s->aligned &= (lane.row_bytes | lane.row_stride) % 16 == 0;
        *arena_bytes = l.base + l.block_stride * n_blocks;
        view->lanes.push_back(l);
    }

    void create_tables()
    {
        size_t n_lanes = 0, n_segments = 0;
        for (const layout_view &view : layouts) {
            n_lanes += view.lanes.size();
            n_segments += view.segments.size();
        }
        dev_lanes.create(n_lanes);
        dev_segments.create(n_segments);
        dev_layouts.create(KVX_LAYOUTS_LIMIT);
        n_lanes = n_segments = 0;
        for (size_t i = 0; i < layouts.size(); i++) {
            const layout_view &view = layouts[i];
            for (const kvx_dev_lane &lane : view.lanes) {
                dev_lanes.host[n_lanes] = lane;
                dev_lanes.host[n_lanes++].base += (uint64_t)arena.dev;
            }
            std::copy(view.segments.begin(), view.segments.end(), dev_segments.host.begin() + (long)n_segments);
            kvx_dev_layout *l = &dev_layouts.host[i];
            l->lanes = dev_lanes.dev + n_lanes - view.lanes.size();
            l->segments = dev_segments.dev + n_segments;
            n_segments += view.segments.size();
            l->fingerprint = 77 + i;
            l->n_lanes = (uint32_t)view.lanes.size();
            l->n_segments = (uint32_t)view.segments.size();
            l->n_blocks = n_blocks;
            l->sealed_bytes = view.sealed_bytes;
        }
        dev_lanes.put();
        dev_segments.put();
        dev_layouts.put();
    }

    void create_keys()
    {
        mirror<uint8_t> key;
        key.create(32);
        key_slots.create(n_tenants * kvx_key_slot_bytes());
        for (uint32_t i = 0; i < n_tenants; i++) {
            bytes k(32);
            for (uint32_t j = 0; j < 32; j++)
                key.host[j] = k[j] = (uint8_t)(i * 59 + j * 17 + 3);
            key.put();
            need(kvx_launch_key_install((kvx_key_slot *)key_slots.dev, i, i + 1, key.dev, nullptr), "key install");
            need(cudaDeviceSynchronize(), "key install");
            keys.push_back(k);
        }
    }

    void fill_dev(int variant)
    {
        int chosen = 0;
        need(kvx_launch_prepare(variant, &chosen), "prepare");
        headers.create(n_slots);
        records.create((size_t)n_slots * max_units);
        tenant_keys.create(n_tenants);
        words.create(1);
        entries.create(n_entries);
        for (uint32_t i = 0; i < n_tenants; i++)
            tenant_keys.host[i] = i;
        tenant_keys.put();
        words.host[0].sequence = 0xfffffff0u; /* the iv's words carry */
        words.host[0].prf_key[0] = 11;
        words.host[0].prf_key[1] = 22;
        words.host[0].fixed_field = 0x01020304;
        words.host[0].tamper_budget = 1u << 30;
        words.put();
        need(cudaHostAlloc(&results, (n_entries + n_tickets) * sizeof *results, cudaHostAllocMapped), "results");
        need(cudaHostAlloc(&pool, (size_t)n_slots * slot_bytes, cudaHostAllocMapped), "pool");
        memset(results, 0, (n_entries + n_tickets) * sizeof *results);
        memset(pool, 0, (size_t)n_slots * slot_bytes);
        classes.create(1);
        classes.host[0] = {0, 0, n_slots, slot_bytes, max_units, 0, n_slots};
        classes.put();
        chunks.create(1);
        chunks.host[0] = pool;
        chunks.put();
        dev = {headers.dev,
               records.dev,
               classes.dev,
               chunks.dev,
               dev_layouts.dev,
               tenant_keys.dev,
               (kvx_key_slot *)key_slots.dev,
               words.dev,
               entries.dev,
               results,
               n_slots,
               1,
               n_tenants,
               n_tenants,
               n_entries,
               132,
               (uint32_t)chosen};
    }

    void fill_tensors()
    {
        uint64_t x = 88172645463325252u;
        for (size_t i = 0; i + 8 <= arena.host.size(); i += 8) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            memcpy(&arena.host[i], &x, 8);
        }
        arena.put();
    }

    /* Calls visit(offset in the unit, offset in the arena, bytes) for each row of a unit. */
    template <class F> void each_row(uint32_t layout, uint32_t segment, uint32_t block, F visit) const
    {
        const kvx_dev_segment &s = layouts[layout].segments[segment];
        for (uint32_t i = s.first_lane; i < s.first_lane + s.n_lanes; i++) {
            const kvx_dev_lane &l = layouts[layout].lanes[i];
            for (uint32_t r = 0; r < l.n_rows; r++)
                visit(l.unit_offset + r * l.row_bytes, l.base + block * l.block_stride + r * l.row_stride, l.row_bytes);
        }
    }

    bytes plain_of(const bytes &tensors, uint32_t layout, uint32_t segment, uint32_t block) const
    {
        bytes out(layouts[layout].segments[segment].bytes, 0);
        each_row(layout, segment, block,
                 [&](uint32_t at, uint64_t from, uint32_t n) { memcpy(out.data() + at, tensors.data() + from, n); });
        return out;
    }

    kvx_work begin(const std::vector<kvx_work_pair> &pairs, bool direct)
    {
        kvx_work work = {};
        work.ticket = ++ticket;
        work.store_id = store_id += 2;
        work.staged = direct ? nullptr : ring.dev;
        work.staged_stride = slot_bytes;
        work.n_pairs = (uint32_t)pairs.size();
        work.first_index = 5;
        work.first_entry = n_entries - 3; /* wraps */
        work.n_segments = max_units;
        return work;
    }

    uint32_t verdict(const kvx_work &work, uint32_t pair) const
    {
        const uint64_t word = results[(work.first_entry + pair) % n_entries];
        return kvx_result_read(words.host[0].prf_key, work.ticket, work.first_index + pair, word);
    }
};

#endif
