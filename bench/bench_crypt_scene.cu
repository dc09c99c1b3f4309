/* SPDX-License-Identifier: Apache-2.0 */
/* Memory, tables and keys for the kernels of the sub-bench `crypt`. */
#include "bench_crypt_scene.cuh"

#include <cstdio>
#include <cstring>

namespace
{

constexpr uint32_t n_entries = 4096;

template <class T> bool make(crypt_scene *s, size_t n, T **made)
{
    void *memory = nullptr;
    if (!crypt_cuda_ok(cudaMalloc(&memory, n * sizeof(T)), "allocate GPU memory (try a smaller --bytes)"))
        return false;
    s->memory.push_back(memory);
    *made = static_cast<T *>(memory);
    return crypt_cuda_ok(cudaMemset(memory, 0, n * sizeof(T)), "clear GPU memory");
}

template <class T> bool upload(crypt_scene *s, const std::vector<T> &host, T **made)
{
    return make(s, host.size(), made) &&
           crypt_cuda_ok(cudaMemcpy(*made, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "upload");
}

std::vector<kvx_dev_lane> lanes_of(const crypt_scene *s)
{
    const uint64_t piece_bytes = s->shape.piece_bytes;
    std::vector<kvx_dev_lane> lanes(CRYPT_BLOCK_UNITS * s->n_pieces);
    for (uint32_t i = 0; i < lanes.size(); i++) {
        lanes[i].base = reinterpret_cast<uint64_t>(s->dev_plain) + (uint64_t)i * s->n_blocks * piece_bytes;
        lanes[i].block_stride = piece_bytes;
        lanes[i].row_stride = piece_bytes;
        lanes[i].row_bytes = (uint32_t)piece_bytes;
        lanes[i].n_rows = 1;
        lanes[i].unit_offset = (uint32_t)(i % s->n_pieces * piece_bytes);
    }
    return lanes;
}

std::vector<kvx_dev_segment> segments_of(const crypt_scene *s)
{
    std::vector<kvx_dev_segment> segments(CRYPT_BLOCK_UNITS);
    for (uint32_t i = 0; i < CRYPT_BLOCK_UNITS; i++) {
        segments[i].first_lane = i * s->n_pieces;
        segments[i].n_lanes = s->n_pieces;
        segments[i].slot_offset = (uint32_t)(i * s->shape.unit_bytes);
        segments[i].bytes = segments[i].plain_bytes = (uint32_t)s->shape.unit_bytes;
        segments[i].aligned = 1;
    }
    return segments;
}

bool make_layouts(crypt_scene *s)
{
    static const uint32_t n_segments[CRYPT_N_LAYOUTS] = {CRYPT_BLOCK_UNITS, 1};
    std::vector<kvx_dev_layout> layouts(KVX_LAYOUTS_LIMIT);
    kvx_dev_lane *lanes = nullptr;
    kvx_dev_segment *segments = nullptr;
    kvx_dev_layout *made = nullptr;
    if (!upload(s, lanes_of(s), &lanes) || !upload(s, segments_of(s), &segments))
        return false;
    for (uint32_t i = 0; i < CRYPT_N_LAYOUTS; i++) {
        layouts[i].lanes = lanes;
        layouts[i].segments = segments;
        layouts[i].fingerprint = 1 + i;
        layouts[i].n_segments = n_segments[i];
        layouts[i].n_lanes = n_segments[i] * s->n_pieces;
        layouts[i].n_blocks = s->n_blocks;
        layouts[i].sealed_bytes = (uint32_t)(n_segments[i] * s->shape.unit_bytes);
    }
    if (!upload(s, layouts, &made))
        return false;
    s->dev.layouts = made;
    return true;
}

bool make_slots(crypt_scene *s)
{
    std::vector<kvx_dev_class> classes(1);
    kvx_dev_class *dev_classes = nullptr;
    uint8_t **chunks = nullptr;
    classes[0].n_slots = s->n_blocks;
    classes[0].slot_bytes = (uint32_t)(CRYPT_BLOCK_UNITS * s->shape.unit_bytes);
    classes[0].max_units = CRYPT_BLOCK_UNITS;
    if (!upload(s, classes, &dev_classes) || !make(s, 1, &chunks) || !make(s, s->n_blocks, &s->dev.headers) ||
        !make(s, (size_t)s->n_blocks * CRYPT_BLOCK_UNITS, &s->dev.records))
        return false;
    s->dev.classes = dev_classes;
    s->dev.chunks = chunks; /* no slot is mapped: sealed bytes stay in GPU memory */
    s->dev.n_classes = 1;
    s->dev.n_slots = s->n_blocks;
    return true;
}

bool make_keys(crypt_scene *s)
{
    std::vector<uint32_t> tenant_keys(CRYPT_KEYS);
    std::vector<uint8_t> bytes(CRYPT_KEYS * 32);
    uint32_t *dev_tenants = nullptr;
    uint8_t *slots = nullptr, *dev_bytes = nullptr;
    for (uint32_t i = 0; i < CRYPT_KEYS; i++) {
        tenant_keys[i] = i;
        crypt_key(i, &bytes[i * 32]);
    }
    if (!upload(s, tenant_keys, &dev_tenants) || !upload(s, bytes, &dev_bytes) ||
        !make(s, CRYPT_KEYS * kvx_key_slot_bytes(), &slots))
        return false;
    s->dev.tenant_keys = dev_tenants;
    s->dev.keys = reinterpret_cast<kvx_key_slot *>(slots);
    s->dev.n_tenants = s->dev.n_keys = CRYPT_KEYS;
    for (uint32_t i = 0; i < CRYPT_KEYS; i++)
        if (!crypt_cuda_ok(kvx_launch_key_install(s->dev.keys, i, i + 1, dev_bytes + i * 32, s->b->dev.stream),
                           "install a key"))
            return false;
    return crypt_cuda_ok(cudaStreamSynchronize(s->b->dev.stream), "install keys");
}

bool make_words(crypt_scene *s)
{
    const size_t n_bytes = n_entries * sizeof(*s->results);
    std::vector<kvx_dev_words> words(1);
    words[0].sequence = 0xffffff00u; /* the iv's words carry */
    words[0].prf_key[0] = 11;
    words[0].prf_key[1] = 22;
    words[0].fixed_field = 0x01020304;
    words[0].tamper_budget = 1u << 30;
    s->words = words[0];
    if (!upload(s, words, &s->dev.words) || !make(s, n_entries, &s->dev.entries) ||
        !crypt_cuda_ok(cudaHostAlloc(reinterpret_cast<void **>(&s->results), n_bytes, cudaHostAllocMapped), "results"))
        return false;
    memset(s->results, 0, n_bytes);
    s->dev.results = s->results;
    s->dev.n_entries = n_entries;
    return true;
}

} // namespace

bool crypt_cuda_ok(int error, const char *doing)
{
    if (error != cudaSuccess)
        fprintf(stderr, "crypt: %s: %s\n", doing, cudaGetErrorString(static_cast<cudaError_t>(error)));
    return error == cudaSuccess;
}

bool crypt_scene_make(crypt_scene *s)
{
    const uint64_t n_bytes = s->shape.n_units * s->shape.unit_bytes;
    int variant = 0;
    s->n_pieces = (uint32_t)(s->shape.unit_bytes / s->shape.piece_bytes);
    s->n_blocks = s->shape.n_units / CRYPT_BLOCK_UNITS;
    if (!crypt_cuda_ok(kvx_launch_prepare(KVX_VARIANT_AUTO, &variant), "prepare the kernels") ||
        !make(s, n_bytes, &s->dev_plain) || !make(s, n_bytes, &s->dev_sealed) ||
        !make(s, 2 * CRYPT_SMS_MAX, &s->dev_stamps))
        return false;
    s->dev.variant = (uint32_t)variant;
    return make_layouts(s) && make_slots(s) && make_words(s) && make_keys(s);
}

void crypt_scene_free(crypt_scene *s)
{
    cudaStreamSynchronize(s->b->dev.stream);
    for (void *memory : s->memory)
        cudaFree(memory);
    cudaFreeHost(s->results);
}

kvx_work crypt_work_next(crypt_scene *s, uint32_t layout, uint32_t n)
{
    const uint32_t n_segments = layout == CRYPT_LAYOUT_FEW ? 1 : CRYPT_BLOCK_UNITS;
    kvx_work work = {};
    work.ticket = ++s->ticket;
    work.store_id = s->store_id += 2;
    work.staged = s->dev_sealed;
    work.staged_stride = n_segments * s->shape.unit_bytes;
    work.n_pairs = n;
    work.n_segments = n_segments;
    return work;
}

std::vector<kvx_work_pair> crypt_pairs(uint32_t layout, uint32_t n, uint32_t n_keys)
{
    std::vector<kvx_work_pair> pairs(n);
    for (uint32_t i = 0; i < n; i++) {
        pairs[i].block = pairs[i].slot = i;
        pairs[i].generation = 1;
        pairs[i].layout = (uint8_t)layout;
        pairs[i].tenant = (uint16_t)(i % n_keys);
    }
    return pairs;
}
