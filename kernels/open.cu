/* SPDX-License-Identifier: Apache-2.0 */
/* Opens units: hash the staged bytes, compare the tag, and only then decrypt the same bytes into the caller's tensors.
 * Where anything is wrong the destination is zeroed. */
#include "launch.cuh"

namespace
{

__device__ __forceinline__ uint4 load_sealed(const kvx_unit &unit, int32_t i)
{
    return i >= 0 ? reinterpret_cast<const uint4 *>(unit.sealed)[i] : make_uint4(0, 0, 0, 0);
}

/* The hash of one warp's piece; returns each lane's part. */
template <class V> __device__ __forceinline__ kvx_gf hash_piece(const kvx_turn &turn)
{
    const kvx_columns columns = kvx_lane_columns<V>();
    kvx_gf sum = kvx_gf_zero();
#pragma unroll 1
    for (int32_t at = turn.piece.first; at < turn.piece.end; at += (int32_t)KVX_TILE_BLOCKS) {
        uint4 text[KVX_LANE_BLOCKS];
#pragma unroll
        for (int n = 0; n < (int)KVX_LANE_BLOCKS; n++)
            text[n] = load_sealed(*turn.unit, at + (int32_t)kvx_lane() + 32 * n);
#pragma unroll
        for (unsigned n = 0; n < KVX_LANE_BLOCKS; n++)
            sum = kvx_gf_xor(kvx_hash_multiply<V>(columns, sum), kvx_gf_of_block(text[n]));
    }
    return sum;
}

/* Decrypts one warp's piece into the caller's tensors. */
template <class V> __device__ __forceinline__ void decrypt_piece(const kvx_cta &cta, const kvx_turn &turn)
{
    const kvx_unit &unit = *turn.unit;
    const kvx_columns columns = kvx_lane_columns<V>();
    const uint32_t plain_bytes = unit.plain_bytes;
    const bool aligned = unit.aligned != 0;
    kvx_cursor cursor = kvx_cursor_begin(&unit.place);
    kvx_counter_cache cache = kvx_unit_counters(unit);
#pragma unroll 1
    for (int32_t at = turn.piece.first; at < turn.piece.end; at += (int32_t)KVX_TILE_BLOCKS) {
        uint4 text[KVX_LANE_BLOCKS];
        uint32_t counters[KVX_LANE_BLOCKS], stream[KVX_LANE_BLOCKS][4];
        const int32_t first = at + (int32_t)kvx_lane();
#pragma unroll
        for (int n = 0; n < (int)KVX_LANE_BLOCKS; n++) {
            counters[n] = (uint32_t)max(first + 32 * n, 0) + 2;
            text[n] = load_sealed(unit, first + 32 * n);
        }
        kvx_key_stream<V, KVX_LANE_BLOCKS, 11>(&cache, cta.key.round_keys, columns, counters, stream);
#pragma unroll
        for (int n = 0; n < (int)KVX_LANE_BLOCKS; n++) {
            const int32_t i = first + 32 * n;
            if (i >= 0)
                kvx_scatter_block(&cursor, (uint32_t)i * 16, plain_bytes, aligned,
                                  make_uint4(text[n].x ^ stream[n][0], text[n].y ^ stream[n][1],
                                             text[n].z ^ stream[n][2], text[n].w ^ stream[n][3]));
        }
    }
}

/* The same for the cipher pass of a warpgroup, over bytes that a hash pass has found good. */
struct open_io {
    kvx_cursor cursor;
    const uint4 *sealed;
    uint32_t plain_bytes;
    bool aligned;

    __device__ __forceinline__ explicit open_io(const kvx_unit &unit)
        : cursor(kvx_cursor_begin(&unit.place)), sealed(reinterpret_cast<const uint4 *>(unit.sealed)),
          plain_bytes(unit.plain_bytes), aligned(unit.aligned != 0)
    {
    }
    __device__ __forceinline__ uint4 load(int32_t i)
    {
        return sealed[i];
    }
    __device__ __forceinline__ void store(int32_t i, uint4 block)
    {
        kvx_scatter_block(&cursor, (uint32_t)i * 16, plain_bytes, aligned, block);
    }
};

/* Zeroes the unit's destination; by the whole CTA. */
__device__ __forceinline__ void zero_destination(const kvx_unit &unit)
{
    kvx_cursor cursor = kvx_cursor_begin(&unit.place);
#pragma unroll 1
    for (uint32_t at = threadIdx.x * 16; at < unit.plain_bytes; at += KVX_CTA_THREADS * 16)
        kvx_scatter_block(&cursor, at, unit.plain_bytes, unit.aligned != 0, make_uint4(0, 0, 0, 0));
}

/* What the slot's header and the unit's record say about opening it as `wanted`; NONE: nothing against it. */
__device__ uint32_t check_slot(const kvx_dev &dev, const kvx_header *header, const kvx_header *wanted, kvx_unit *unit)
{
    unit->word = kvx_load_acquire_u64(&header->word);
    const kvx_header seen = *header;
    uint32_t verdict = kvx_slot_check(&seen, unit->word, wanted);
    unit->key_slot = seen.key_slot;
    unit->key_generation = seen.key_generation;
    kvx_unit_number(unit, dev.words->fixed_field, unit->record->sequence);
    const uint64_t record_id = unit->record->store_id;
    kvx_fence();
    if (kvx_load_acquire_u64(&header->word) != unit->word)
        return KVX_VERDICT_BUSY;
    if (verdict != KVX_VERDICT_OK)
        return verdict;
    if (record_id != kvx_word_id(unit->word))
        return KVX_VERDICT_MISS;
    if (unit->key_slot >= dev.n_keys)
        return KVX_VERDICT_FAULT;
    return kvx_key_is_live(&dev.keys[unit->key_slot], unit->key_generation) ? KVX_VERDICT_NONE : KVX_VERDICT_MISS;
}

__device__ void resolve(const kvx_dev &dev, const kvx_work &work, const kvx_work_pair *pairs, uint32_t item,
                        kvx_unit *unit)
{
    const kvx_unit_range range = {0, UINT32_MAX};
    unit->pair = (uint16_t)(item / work.n_segments);
    const kvx_work_pair pair = pairs[unit->pair];
    kvx_unit_resolve(dev, work, pair, work.first_segment + item % work.n_segments, range, unit);
    if (unit->verdict == KVX_VERDICT_NONE && !work.staged)
        unit->verdict = KVX_VERDICT_FAULT; /* sealed bytes are never opened where the host can change them */
    if (unit->verdict != KVX_VERDICT_NONE)
        return;
    kvx_header wanted = {};
    wanted.fingerprint = dev.layouts[pair.layout].fingerprint;
    wanted.n_units = dev.layouts[pair.layout].n_segments;
    wanted.tenant = pair.tenant;
    wanted.generation = pair.generation;
    unit->verdict = check_slot(dev, &dev.headers[pair.slot], &wanted, unit);
}

/* By one thread: the verdict from the tag of the staged bytes. A wrong tag means tampering only if the slot and the
 * record are still what they were; a block counts once. */
__device__ uint32_t judge(const kvx_dev &dev, const kvx_work &work, const kvx_work_pair *pairs, const kvx_unit &unit,
                          uint4 tag)
{
    const uint4 expected = __ldcg(reinterpret_cast<const uint4 *>(unit.record->tag));
    const uint32_t difference =
        (tag.x ^ expected.x) | (tag.y ^ expected.y) | (tag.z ^ expected.z) | (tag.w ^ expected.w);
    kvx_fence();
    if (kvx_load_acquire_u64(&dev.headers[pairs[unit.pair].slot].word) != unit.word ||
        kvx_load_acquire_u64(&unit.record->sequence) != kvx_unit_sequence(unit))
        return KVX_VERDICT_BUSY;
    if (difference == 0)
        return KVX_VERDICT_OK;
    kvx_entry *entry = kvx_entry_of(dev, work, unit.pair);
    if (kvx_atomic_cas_u32(&entry->verdict, KVX_VERDICT_NONE, KVX_VERDICT_TAMPERED) != KVX_VERDICT_TAMPERED)
        kvx_tamper_count(dev.words);
    return KVX_VERDICT_TAMPERED;
}

/* Not inlined: what it needs would be spilled in the loop around it. Counts the unit as done; the unit that completes
 * its block tells the host. */
__device__ __noinline__ void settle(const kvx_dev &dev, const kvx_work &work, const kvx_unit *unit)
{
    if (unit->n_expected == 0)
        return;
    kvx_entry *entry = kvx_entry_of(dev, work, unit->pair);
    kvx_entry_note(entry, unit->verdict);
    kvx_fence();
    if (!kvx_entry_done(entry, unit->n_expected))
        return;
    kvx_fence();
    kvx_result_write(dev, work, unit->pair, kvx_entry_verdict(dev, work, unit->pair));
}

/* A group's unit: its hash, its verdict, and only then its plaintext. */
template <class V>
__device__ __forceinline__ void open_turn(kvx_cta &cta, const kvx_dev &dev, const kvx_work &work,
                                          const kvx_work_pair *pairs, const kvx_turn &turn)
{
    if (!turn.unit)
        return;
    kvx_gf lane_sum;
    if constexpr (V::tensor)
        lane_sum = kvx_tensor_hash<V>(turn);
    else
        lane_sum = hash_piece<V>(turn);
    kvx_turn_hash(cta, turn, lane_sum, kvx_lane_weight<V>(cta));
    if (kvx_turn_is_tagger(turn)) {
        const uint4 tag = kvx_turn_tag<V>(cta, turn);
        if (kvx_lane() == 0)
            turn.unit->verdict = judge(dev, work, pairs, *turn.unit, tag);
    }
    kvx_turn_sync(turn);
    if (turn.unit->verdict != KVX_VERDICT_OK)
        return;
    if constexpr (V::tensor)
        kvx_tensor_cipher<V>(cta, turn, open_io(*turn.unit));
    else
        decrypt_piece<V>(cta, turn);
}

template <class V>
__device__ __forceinline__ void open_round(kvx_cta &cta, const kvx_dev &dev, const kvx_work &work,
                                           const kvx_work_pair *pairs, uint32_t warps_per_unit, uint32_t n_units)
{
    uint32_t waiting = kvx_units_waiting(cta, n_units);
    while (waiting != 0) {
        uint32_t units = kvx_units_same_key<V>(cta, waiting);
        waiting &= ~units;
        if (!kvx_units_key<V>(cta, dev, units, KVX_VERDICT_MISS))
            continue;
        kvx_units_masks<V>(cta, units, warps_per_unit);
        while (units != 0)
            open_turn<V>(cta, dev, work, pairs, kvx_turn_take<V>(cta, &units, warps_per_unit));
    }
    __syncthreads();
    for (uint32_t u = 0; u < n_units; u++)
        if (cta.units[u].verdict != KVX_VERDICT_OK && cta.units[u].place.n_lanes != 0)
            zero_destination(cta.units[u]);
}

template <class V, unsigned Pairs>
__global__ void __launch_bounds__(KVX_CTA_THREADS, 1) open_kernel(const __grid_constant__ kvx_params<Pairs> p)
{
    if constexpr (!kvx_variant_runs<V>())
        return;
    kvx_cta &cta = kvx_cta_state();
    const uint32_t n_items = p.work.n_pairs * p.work.n_segments;
    kvx_cta_begin<V>(cta);
    for (uint32_t first = blockIdx.x * p.units_per_round; first < n_items; first += p.n_ctas * p.units_per_round) {
        const uint32_t n_units = min(p.units_per_round, n_items - first);
        if (threadIdx.x < n_units)
            resolve(p.dev, p.work, p.pairs, first + threadIdx.x, &cta.units[threadIdx.x]);
        __syncthreads();
        open_round<V>(cta, p.dev, p.work, p.pairs, p.warps_per_unit, n_units);
        __threadfence();
        __syncthreads();
        if (threadIdx.x < n_units)
            settle(p.dev, p.work, &cta.units[threadIdx.x]);
        __syncthreads();
    }
    kvx_cta_end<V>();
}

struct open_kernels {
    template <class V, unsigned Pairs> static const void *get()
    {
        return reinterpret_cast<const void *>(open_kernel<V, Pairs>);
    }
};

} // namespace

int kvx_launch_open(const kvx_dev *dev, const kvx_work *work, const kvx_work_pair *pairs, void *stream)
{
    return kvx_launch_units<open_kernels>(dev, work, pairs, stream);
}

int kvx_prepare_open(int largest)
{
    return kvx_prepare_units<open_kernels>(largest);
}
