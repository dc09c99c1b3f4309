/* SPDX-License-Identifier: Apache-2.0 */
/* Opens units: hash the staged bytes, compare the tag, and only then decrypt the same bytes into the caller's tensors.
 * Where anything is wrong the destination is zeroed. */
#include "launch.cuh"

namespace
{

/* Blocks from the chunk, after they were found good, to the caller's tensors. */
template <class V> struct open_io {
    const kvx_unit &unit; /* in shared memory: what runs and rare tiles need again takes no registers */
    uint32_t lane;        /* where the last search ended */
    const uint4 *from;    /* of the pair that is next in a run */
    uint64_t to;

    __device__ __forceinline__ explicit open_io(const kvx_unit &good_unit)
        : unit(good_unit), lane(0), from(nullptr), to(0)
    {
    }
    __device__ __forceinline__ const uint4 *sealed(int32_t i) const
    {
        return reinterpret_cast<const uint4 *>(unit.sealed) + i;
    }
    __device__ __forceinline__ int32_t begin(int32_t i)
    {
        kvx_cursor cursor = kvx_cursor_begin(&unit.place, lane);
        if (!unit.aligned)
            return 0;
        const int32_t n = kvx_cursor_pairs(&cursor, i, V::tile_blocks * 16, unit.plain_bytes);
        lane = cursor.lane;
        to = kvx_cursor_pair(cursor, i);
        from = sealed(i);
        return n;
    }
    __device__ __forceinline__ void load(uint4 text[2])
    {
        text[0] = __ldcs(from);
        text[1] = __ldcs(from + KVX_PAIR_BYTES / 16);
        from += V::tile_blocks;
    }
    __device__ __forceinline__ void store(const uint4 text[2])
    {
        __stcs(reinterpret_cast<uint4 *>(to), text[0]);
        __stcs(reinterpret_cast<uint4 *>(to + KVX_PAIR_BYTES), text[1]);
        to += V::tile_blocks * 16;
    }
    __device__ __forceinline__ void load_slow(int32_t i, uint4 text[2])
    {
        text[0] = i >= 0 ? *sealed(i) : make_uint4(0, 0, 0, 0);
        text[1] = i + 32 >= 0 ? *sealed(i + 32) : make_uint4(0, 0, 0, 0);
    }
    __device__ __forceinline__ void store_slow(int32_t i, uint4 text[2])
    {
        kvx_cursor cursor = kvx_cursor_begin(&unit.place, lane);
        kvx_scatter_pair(&cursor, i, unit.plain_bytes, text);
        lane = cursor.lane;
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

/* Hashes a group's unit and lets its tagger decide on it. The group has the verdict when it meets again. */
template <class V>
__device__ __forceinline__ void verify_turn(kvx_cta &cta, const kvx_dev &dev, const kvx_work &work,
                                            const kvx_work_pair *pairs, kvx_turn turn)
{
    kvx_gf hash = kvx_gf_zero();
    bool has_piece = true;
    if constexpr (V::tensor) {
        kvx_tensor_hash<V>(cta, turn);
        kvx_turn_sync(turn);
        has_piece = kvx_tensor_folds<V>(turn);
        if (has_piece)
            hash = kvx_tensor_fold<V>(turn);
    } else {
        hash = kvx_table_fold(cta, kvx_table_hash<V>(cta, turn));
        kvx_turn_sync(turn);
    }
    if (!kvx_turn_sum<V>(cta, turn, has_piece, &hash))
        return;
    const uint4 tag = kvx_turn_tag<V>(cta, turn, hash);
    if (kvx_lane() == 0)
        cta.units[turn.unit].verdict = judge(dev, work, pairs, cta.units[turn.unit], tag);
}

/* Decrypts a unit if it was found good, and not before. */
template <class V> __device__ __forceinline__ void decrypt_turn(const kvx_cta &cta, kvx_turn turn)
{
    if (cta.units[turn.unit].verdict != KVX_VERDICT_OK)
        return;
    if constexpr (V::tensor)
        kvx_tensor_cipher<V>(cta, turn, open_io<V>(cta.units[turn.unit]));
    else
        kvx_table_cipher<V>(cta, turn, open_io<V>(cta.units[turn.unit]));
}

/* All units of a key. A group hashes a unit before it decrypts the last: meanwhile the verdict is made. */
template <class V>
__device__ __forceinline__ void open_units(kvx_cta &cta, const kvx_dev &dev, const kvx_work &work,
                                           const kvx_work_pair *pairs, uint32_t units)
{
    uint32_t hashed = 0, side = 0; /* the unit hashed last | its warps << 8; 0: none */
    do {
        const kvx_turn turn = {hashed & 0xff, hashed >> 8, 0};
        hashed = 0;
        if (units != 0) {
            const kvx_turn next = kvx_turn_take<V>(&units, side ^= 1);
            hashed = next.n_warps << 8 | next.unit;
            verify_turn<V>(cta, dev, work, pairs, next); /* and the group has met */
        } else {
            kvx_turn_sync(turn);
        }
        if (turn.n_warps != 0)
            decrypt_turn<V>(cta, turn);
    } while (hashed != 0);
}

template <class V>
__device__ __forceinline__ void open_round(kvx_cta &cta, const kvx_dev &dev, const kvx_work &work,
                                           const kvx_work_pair *pairs, uint32_t n_units)
{
    uint32_t waiting = kvx_units_waiting(cta, n_units);
    while (waiting != 0) {
        const uint32_t units = kvx_units_same_key<V>(cta, waiting);
        waiting &= ~units;
        if (!kvx_units_key<V>(cta, dev.keys, units, KVX_VERDICT_MISS))
            continue;
        kvx_units_masks<V>(cta, units);
        open_units<V>(cta, dev, work, pairs, units);
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
    kvx_cta_begin<V>(cta, kvx_cta_items(p.work.n_pairs * p.work.n_segments, p.n_ctas));
    __syncthreads();
    while (cta.first_item < cta.end_item) {
        const uint32_t first = cta.first_item, n_units = min(V::units_per_round, cta.end_item - first);
        if (threadIdx.x < n_units)
            resolve(p.dev, p.work, p.pairs, first + threadIdx.x, &cta.units[threadIdx.x]);
        __syncthreads();
        open_round<V>(cta, p.dev, p.work, p.pairs, n_units);
        __threadfence();
        __syncthreads();
        if (threadIdx.x < n_units)
            settle(p.dev, p.work, &cta.units[threadIdx.x]);
        if (threadIdx.x == 0)
            cta.first_item = first + V::units_per_round;
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
