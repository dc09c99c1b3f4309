/* SPDX-License-Identifier: Apache-2.0 */
/* Seals units: gather, encrypt, hash, write once. What goes straight to the host is hashed while it is still in
 * registers and never read back; what stays in GPU memory at first may be (tensor cores). */
#include "launch.cuh"

namespace
{

/* Blocks from the caller's tensors to the chunk or the slot. */
template <class V> struct seal_io {
    const kvx_unit &unit; /* in shared memory: what runs and rare tiles need again takes no registers */
    uint32_t lane;        /* where the last search ended */
    uint64_t from;        /* of the pair that is next in a run */
    uint4 *to;

    __device__ __forceinline__ explicit seal_io(const kvx_unit &sealed_unit)
        : unit(sealed_unit), lane(0), from(0), to(nullptr)
    {
    }
    __device__ __forceinline__ uint4 *sealed(int32_t i) const
    {
        return reinterpret_cast<uint4 *>(unit.sealed) + i;
    }
    __device__ __forceinline__ int32_t begin(int32_t i)
    {
        kvx_cursor cursor = kvx_cursor_begin(&unit.place, lane);
        if (!unit.aligned)
            return 0;
        const int32_t n = kvx_cursor_pairs(&cursor, i, V::tile_blocks * 16, unit.plain_bytes);
        lane = cursor.lane;
        from = kvx_cursor_pair(cursor, i);
        to = sealed(i);
        return n;
    }
    __device__ __forceinline__ void load(uint4 text[2])
    {
        text[0] = __ldcs(reinterpret_cast<const uint4 *>(from));
        text[1] = __ldcs(reinterpret_cast<const uint4 *>(from + KVX_PAIR_BYTES));
        from += V::tile_blocks * 16;
    }
    __device__ __forceinline__ void store(const uint4 text[2])
    {
        __stwb(to, text[0]);
        __stwb(to + KVX_PAIR_BYTES / 16, text[1]);
        to += V::tile_blocks;
    }
    __device__ __forceinline__ void load_slow(int32_t i, uint4 text[2])
    {
        kvx_cursor cursor = kvx_cursor_begin(&unit.place, lane);
        kvx_gather_pair(&cursor, i, unit.plain_bytes, text);
        lane = cursor.lane;
    }
    __device__ __forceinline__ void store_slow(int32_t i, const uint4 text[2])
    {
        if (i >= 0)
            *sealed(i) = text[0];
        if (i + 32 >= 0)
            *sealed(i + 32) = text[1];
    }
};

/* Takes the key of the tenant and pays for the unit's blocks. Returns the verdict, NONE for none. */
__device__ uint32_t take_key(const kvx_dev &dev, uint32_t tenant, kvx_unit *unit)
{
    const uint64_t n_blocks = unit->bytes / 16 + 1;
    unit->key_slot = dev.tenant_keys[tenant];
    if (unit->key_slot >= dev.n_keys)
        return KVX_VERDICT_FAULT;
    kvx_key_slot *key = &dev.keys[unit->key_slot];
    unit->key_generation = kvx_load_acquire_u32(&key->generation);
    if (!kvx_key_is_live(key, unit->key_generation))
        return KVX_VERDICT_REFUSED;
    if (kvx_atomic_add_u64(&key->n_blocks, n_blocks) + n_blocks > KVX_KEY_BLOCKS_LIMIT)
        return KVX_VERDICT_EXHAUSTED;
    return KVX_VERDICT_NONE;
}

/* Not inlined, as settle below: their values would be spilled in the loop around them.
 * Everything that must have happened before a byte leaves: bounds, claim, key, number. */
__device__ __noinline__ void resolve(const kvx_dev &dev, const kvx_work &work, const kvx_work_pair *pairs,
                                     uint32_t item, kvx_unit *unit)
{
    const kvx_unit_range range = {work.first_segment, work.first_segment + work.n_segments};
    unit->pair = (uint16_t)(item / work.n_segments);
    const kvx_work_pair pair = pairs[unit->pair];
    kvx_unit_resolve(dev, work, pair, work.first_segment + item % work.n_segments, range, unit);
    if (unit->verdict != KVX_VERDICT_NONE)
        return;
    if (kvx_slot_claim(&dev.headers[pair.slot], work.store_id) != KVX_VERDICT_OK) {
        unit->verdict = KVX_VERDICT_SUPERSEDED;
        return;
    }
    unit->verdict = take_key(dev, pair.tenant, unit);
    if (unit->verdict != KVX_VERDICT_NONE)
        return;
    uint64_t sequence;
    if (!kvx_sequence_draw(dev.words, &sequence))
        unit->verdict = KVX_VERDICT_EXHAUSTED;
    kvx_unit_number(unit, dev.words->fixed_field, sequence);
}

/* By one thread, after all of the unit's bytes were written. */
__device__ __forceinline__ void write_record(const kvx_work &work, kvx_unit *unit, uint4 tag)
{
    kvx_record *record = unit->record;
    record->sequence = kvx_unit_sequence(*unit);
    record->store_id = work.store_id;
    *reinterpret_cast<uint4 *>(record->tag) = tag;
    unit->verdict = KVX_VERDICT_OK;
}

/* Notes the verdict of a unit; the unit that completes its block commits it, if that is up to this launch. */
__device__ __noinline__ void settle(const kvx_dev &dev, const kvx_work &work, const kvx_work_pair *pairs,
                                    const kvx_unit *unit)
{
    if (unit->n_expected == 0)
        return;
    kvx_entry *entry = kvx_entry_of(dev, work, unit->pair);
    kvx_entry_note(entry, unit->verdict);
    if (!work.commit)
        return;
    __threadfence_system();
    if (!kvx_entry_done(entry, unit->n_expected))
        return;
    __threadfence_system();
    kvx_pair_commit(dev, work, unit->pair, pairs[unit->pair]);
}

/* By one thread of each CTA, after its last read of the source: the last of all CTAs tells the host. */
__device__ void release_source(const kvx_dev &dev, const kvx_work &work)
{
    __threadfence();
    if (kvx_atomic_add_u32(&dev.words->n_ctas_done, 1) + 1 != gridDim.x)
        return;
    __threadfence();
    dev.words->n_ctas_done = 0;
    kvx_store_release_host(&dev.results[work.released_result],
                           kvx_result_word(dev.words->prf_key, work.ticket, KVX_RESULT_RELEASED, KVX_VERDICT_OK));
}

/* From the hashes of a unit's pieces to its record. */
template <class V>
__device__ __forceinline__ void finish_turn(kvx_cta &cta, const kvx_work &work, kvx_turn turn, bool has_piece,
                                            kvx_gf hash)
{
    if (work.commit)
        __threadfence_system();
    if (!kvx_turn_sum<V>(cta, turn, has_piece, &hash))
        return;
    const uint4 tag = kvx_turn_tag<V>(cta, turn, hash);
    if (kvx_lane() == 0)
        write_record(work, &cta.units[turn.unit], tag);
}

/* All units of a key, a group's one after the other. */
template <class V> __device__ __forceinline__ void seal_units(kvx_cta &cta, const kvx_work &work, uint32_t units)
{
    while (units != 0) {
        const kvx_turn turn = kvx_turn_take<V>(&units, 0);
        const kvx_gf lane_sum = kvx_table_seal<V>(cta, turn, seal_io<V>(cta.units[turn.unit]));
        finish_turn<V>(cta, work, turn, true, kvx_table_fold(cta, lane_sum));
    }
}

/* The same with tensor cores: a cipher pass, a hash pass. A group goes on while one of its warps makes the tag. */
template <class V> __device__ __forceinline__ void seal_units_tensor(kvx_cta &cta, const kvx_work &work, uint32_t units)
{
    for (uint32_t side = 0; units != 0; side ^= 1) {
        const kvx_turn turn = kvx_turn_take<V>(&units, side);
        kvx_tensor_cipher<V>(cta, turn, seal_io<V>(cta.units[turn.unit]));
        kvx_tensor_hash<V>(cta, turn);
        kvx_turn_sync(turn);
        const bool folds = kvx_tensor_folds<V>(turn);
        finish_turn<V>(cta, work, turn, folds, folds ? kvx_tensor_fold<V>(turn) : kvx_gf_zero());
    }
}

template <class V>
__device__ __forceinline__ void seal_round(kvx_cta &cta, const kvx_dev &dev, const kvx_work &work, uint32_t n_units)
{
    uint32_t waiting = kvx_units_waiting(cta, n_units);
    while (waiting != 0) {
        const uint32_t units = kvx_units_same_key<V>(cta, waiting);
        waiting &= ~units;
        if (!kvx_units_key<V>(cta, dev.keys, units, KVX_VERDICT_REFUSED))
            continue;
        kvx_units_masks<V>(cta, units);
        if constexpr (V::tensor)
            seal_units_tensor<V>(cta, work, units);
        else
            seal_units<V>(cta, work, units);
    }
    __syncthreads();
}

/* The copy engine takes a block's piece as a whole: of a unit that was not sealed it must find zeros, not what an
 * earlier batch left. By the whole CTA. */
__device__ __forceinline__ void clear_refused(const kvx_cta &cta, uint32_t n_units)
{
    for (uint32_t u = 0; u < n_units; u++) {
        const kvx_unit &unit = cta.units[u];
        if (unit.verdict == KVX_VERDICT_OK || !unit.sealed)
            continue;
        for (uint32_t at = threadIdx.x * 16; at < unit.bytes; at += KVX_CTA_THREADS * 16)
            *reinterpret_cast<uint4 *>(unit.sealed + at) = make_uint4(0, 0, 0, 0);
    }
}

template <class V, unsigned Pairs>
__global__ void __launch_bounds__(KVX_CTA_THREADS, 1) seal_kernel(const __grid_constant__ kvx_params<Pairs> p)
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
        seal_round<V>(cta, p.dev, p.work, n_units);
        if (p.work.staged)
            clear_refused(cta, n_units);
        if (threadIdx.x < n_units)
            settle(p.dev, p.work, p.pairs, &cta.units[threadIdx.x]);
        if (threadIdx.x == 0)
            cta.first_item = first + V::units_per_round;
        __syncthreads();
    }
    if (p.work.released_result != 0 && threadIdx.x == 0)
        release_source(p.dev, p.work);
    kvx_cta_end<V>();
}

struct seal_kernels {
    template <class V, unsigned Pairs> static const void *get()
    {
        return reinterpret_cast<const void *>(seal_kernel<V, Pairs>);
    }
};

} // namespace

int kvx_launch_seal(const kvx_dev *dev, const kvx_work *work, const kvx_work_pair *pairs, void *stream)
{
    return kvx_launch_units<seal_kernels>(dev, work, pairs, stream);
}

int kvx_prepare_seal(int largest)
{
    return kvx_prepare_units<seal_kernels>(largest);
}
