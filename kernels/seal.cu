/* SPDX-License-Identifier: Apache-2.0 */
/* Seals units: gather, encrypt, hash, write once. What goes straight to the host is hashed while it is still in
 * registers and never read back; what stays in GPU memory at first may be (tensor cores). */
#include "launch.cuh"

namespace
{

/* One warp's piece of a unit; returns each lane's part of the hash. */
template <class V> __device__ __forceinline__ kvx_gf seal_piece(const kvx_cta &cta, const kvx_turn &turn)
{
    const kvx_unit &unit = *turn.unit;
    const kvx_columns columns = kvx_lane_columns<V>();
    const uint32_t plain_bytes = unit.plain_bytes;
    const bool aligned = unit.aligned != 0;
    uint4 *const sealed = reinterpret_cast<uint4 *>(unit.sealed);
    kvx_cursor cursor = kvx_cursor_begin(&unit.place);
    kvx_counter_cache cache = kvx_unit_counters(unit);
    kvx_gf sum = kvx_gf_zero();
#pragma unroll 1
    for (int32_t at = turn.piece.first; at < turn.piece.end; at += (int32_t)KVX_TILE_BLOCKS) {
        uint4 text[KVX_LANE_BLOCKS];
        uint32_t counters[KVX_LANE_BLOCKS], stream[KVX_LANE_BLOCKS][4];
        const int32_t first = at + (int32_t)kvx_lane();
#pragma unroll
        for (int n = 0; n < (int)KVX_LANE_BLOCKS; n++) {
            const int32_t i = first + 32 * n;
            counters[n] = (uint32_t)max(i, 0) + 2;
            text[n] = make_uint4(0, 0, 0, 0);
            if (i >= 0)
                text[n] = kvx_gather_block(&cursor, (uint32_t)i * 16, plain_bytes, aligned);
        }
        kvx_key_stream<V, KVX_LANE_BLOCKS, 11>(&cache, cta.key.round_keys, columns, counters, stream);
#pragma unroll
        for (int n = 0; n < (int)KVX_LANE_BLOCKS; n++) {
            const int32_t i = first + 32 * n;
            sum = kvx_hash_multiply<V>(columns, sum);
            if (i >= 0) {
                const uint4 block = make_uint4(text[n].x ^ stream[n][0], text[n].y ^ stream[n][1],
                                               text[n].z ^ stream[n][2], text[n].w ^ stream[n][3]);
                sealed[i] = block;
                sum = kvx_gf_xor(sum, kvx_gf_of_block(block));
            }
        }
    }
    return sum;
}

/* The same for the cipher pass of a warpgroup; a hash pass follows. */
struct seal_io {
    kvx_cursor cursor;
    uint4 *sealed;
    uint32_t plain_bytes;
    bool aligned;

    __device__ __forceinline__ explicit seal_io(const kvx_unit &unit)
        : cursor(kvx_cursor_begin(&unit.place)), sealed(reinterpret_cast<uint4 *>(unit.sealed)),
          plain_bytes(unit.plain_bytes), aligned(unit.aligned != 0)
    {
    }
    __device__ __forceinline__ uint4 load(int32_t i)
    {
        return kvx_gather_block(&cursor, (uint32_t)i * 16, plain_bytes, aligned);
    }
    __device__ __forceinline__ void store(int32_t i, uint4 block)
    {
        sealed[i] = block;
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

/* A group's unit, from its first byte to its record. */
template <class V> __device__ __forceinline__ void seal_turn(kvx_cta &cta, const kvx_work &work, const kvx_turn &turn)
{
    if (!turn.unit)
        return;
    kvx_gf lane_sum;
    if constexpr (V::tensor) {
        kvx_tensor_cipher<V>(cta, turn, seal_io(*turn.unit));
        lane_sum = kvx_tensor_hash<V>(turn);
    } else {
        lane_sum = seal_piece<V>(cta, turn);
    }
    if (work.commit)
        __threadfence_system();
    kvx_turn_hash(cta, turn, lane_sum, kvx_lane_weight<V>(cta));
    if (!kvx_turn_is_tagger(turn))
        return;
    const uint4 tag = kvx_turn_tag<V>(cta, turn);
    if (kvx_lane() == 0)
        write_record(work, turn.unit, tag);
}

template <class V>
__device__ __forceinline__ void seal_round(kvx_cta &cta, const kvx_dev &dev, const kvx_work &work,
                                           uint32_t warps_per_unit, uint32_t n_units)
{
    uint32_t waiting = kvx_units_waiting(cta, n_units);
    while (waiting != 0) {
        uint32_t units = kvx_units_same_key<V>(cta, waiting);
        waiting &= ~units;
        if (!kvx_units_key<V>(cta, dev, units, KVX_VERDICT_REFUSED))
            continue;
        kvx_units_masks<V>(cta, units, warps_per_unit);
        while (units != 0)
            seal_turn<V>(cta, work, kvx_turn_take<V>(cta, &units, warps_per_unit));
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
    const uint32_t n_items = p.work.n_pairs * p.work.n_segments;
    kvx_cta_begin<V>(cta);
    for (uint32_t first = blockIdx.x * p.units_per_round; first < n_items; first += p.n_ctas * p.units_per_round) {
        const uint32_t n_units = min(p.units_per_round, n_items - first);
        if (threadIdx.x < n_units)
            resolve(p.dev, p.work, p.pairs, first + threadIdx.x, &cta.units[threadIdx.x]);
        __syncthreads();
        seal_round<V>(cta, p.dev, p.work, p.warps_per_unit, n_units);
        if (p.work.staged)
            clear_refused(cta, n_units);
        if (threadIdx.x < n_units)
            settle(p.dev, p.work, p.pairs, &cta.units[threadIdx.x]);
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
