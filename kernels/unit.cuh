/* SPDX-License-Identifier: Apache-2.0 */
/* A unit (pair x segment) as a kernel works on it: resolved once, by one thread, from the tables in GPU memory, with
 * every bound checked, into a context that the warps of the unit then share. */
#ifndef KVX_KERNELS_UNIT_CUH
#define KVX_KERNELS_UNIT_CUH

#include "gather.cuh"
#include "results.cuh"

struct kvx_unit {
    uint8_t *sealed;    /* the unit's bytes in the chunk or in the slot; NULL: nowhere */
    kvx_place place;    /* n_lanes 0: no such place in the caller's tensors */
    kvx_record *record; /* NULL: no such slot */
    uint64_t word;      /* opening: the header's word as it was when checked */
    uint32_t bytes, plain_bytes;
    uint32_t aligned;
    uint32_t key_slot, key_generation;
    uint32_t iv[3]; /* words as they stand in a block; the last two are the sequence */
    uint16_t pair;
    uint16_t n_expected; /* units to count until the block is complete; 0: this unit does not exist */
    uint32_t verdict;    /* NONE: work to do */
};

__device__ __forceinline__ void kvx_unit_number(kvx_unit *unit, uint32_t fixed_field, uint64_t sequence)
{
    unit->iv[0] = kvx_bswap32(fixed_field);
    unit->iv[1] = kvx_bswap32((uint32_t)(sequence >> 32));
    unit->iv[2] = kvx_bswap32((uint32_t)sequence);
}

__device__ __forceinline__ uint64_t kvx_unit_sequence(const kvx_unit &unit)
{
    return (uint64_t)kvx_bswap32(unit.iv[1]) << 32 | kvx_bswap32(unit.iv[2]);
}

/* Which of its units a pair must have counted: those of this launch (seal), or all (open). */
struct kvx_unit_range {
    uint32_t first, end;
};

/* Finds the unit's bytes in the caller's tensors. False: no such unit, or a fault (n_expected != 0). */
__device__ inline bool kvx_unit_place(const kvx_dev_layout &layout, kvx_work_pair pair, uint32_t segment,
                                      kvx_unit *unit)
{
    if (pair.block >= layout.n_blocks || segment >= layout.n_segments)
        return false;
    const kvx_dev_segment s = layout.segments[segment];
    if (s.bytes == 0 || s.bytes % KVX_UNIT_ALIGN != 0 || s.bytes > KVX_UNIT_BYTES_LIMIT || s.plain_bytes > s.bytes)
        return false;
    if (s.n_lanes == 0 || s.first_lane >= layout.n_lanes || s.n_lanes > layout.n_lanes - s.first_lane)
        return false;
    unit->place.lanes = layout.lanes + s.first_lane;
    unit->place.n_lanes = s.n_lanes;
    unit->bytes = s.bytes;
    unit->plain_bytes = s.plain_bytes;
    unit->aligned = s.aligned;
    unit->place.block = pair.block;
    return true;
}

/* The address of a slot, or NULL if it is not mapped for the device. */
__device__ inline uint8_t *kvx_slot_address(const kvx_dev &dev, const kvx_dev_class &slot_class, uint32_t index)
{
    if (slot_class.slots_per_chunk == 0)
        return nullptr;
    const uint32_t chunk = slot_class.first_chunk + index / slot_class.slots_per_chunk;
    uint8_t *base = chunk < KVX_CHUNKS_LIMIT ? dev.chunks[chunk] : nullptr;
    return base ? base + (uint64_t)(index % slot_class.slots_per_chunk) * slot_class.slot_bytes : nullptr;
}

/* Finds the unit's sealed bytes, in the chunk or in the slot; NULL if they are not where they must be. */
__device__ inline uint8_t *kvx_unit_sealed(const kvx_dev &dev, const kvx_work &work, const kvx_dev_layout &layout,
                                           const kvx_dev_class &slot_class, uint32_t index, uint32_t segment,
                                           const kvx_unit &unit)
{
    const uint64_t offset = layout.segments[segment].slot_offset;
    if (offset + unit.bytes > slot_class.slot_bytes)
        return nullptr;
    if (!work.staged) {
        uint8_t *slot = kvx_slot_address(dev, slot_class, index);
        return slot ? slot + offset : nullptr;
    }
    const uint64_t first = layout.segments[work.first_segment].slot_offset;
    if (offset < first || (work.n_pairs > 1 && offset - first + unit.bytes > work.staged_stride))
        return nullptr;
    return work.staged + unit.pair * work.staged_stride + (offset - first);
}

/* Finds header, record and sealed bytes of the unit. */
__device__ inline bool kvx_unit_slot(const kvx_dev &dev, const kvx_work &work, const kvx_dev_layout &layout,
                                     kvx_work_pair pair, uint32_t segment, kvx_unit *unit)
{
    kvx_dev_class slot_class;
    uint32_t index;
    if (!kvx_slot_find(dev, pair.slot, &slot_class, &index) || pair.tenant >= dev.n_tenants)
        return false;
    if (layout.n_segments > slot_class.max_units)
        return false;
    unit->sealed = kvx_unit_sealed(dev, work, layout, slot_class, index, segment, *unit);
    if (!unit->sealed || reinterpret_cast<uintptr_t>(unit->sealed) % 16 != 0)
        return false;
    unit->record = kvx_record_of(dev, slot_class, index, segment);
    return true;
}

/* Fills the context as far as the tables tell. Leaves the verdict NONE if there is work to do. A pair without units in
 * this launch, or without a layout, is answered for by the unit that would be the first of `range`. */
__device__ inline void kvx_unit_resolve(const kvx_dev &dev, const kvx_work &work, kvx_work_pair pair, uint32_t segment,
                                        kvx_unit_range range, kvx_unit *unit)
{
    const kvx_dev_layout layout = dev.layouts[pair.layout];
    const uint32_t end = layout.n_blocks == 0 ? 0 : min(range.end, layout.n_segments);
    unit->verdict = KVX_VERDICT_NONE;
    unit->sealed = nullptr;
    unit->record = nullptr;
    unit->place.n_lanes = 0;
    if (segment >= end) {
        unit->n_expected = end <= range.first && segment == range.first;
        unit->verdict = layout.n_blocks == 0 ? (uint32_t)KVX_VERDICT_FAULT : (uint32_t)KVX_VERDICT_OK;
        return;
    }
    unit->n_expected = (uint16_t)(end - range.first);
    if (!kvx_unit_place(layout, pair, segment, unit) || !kvx_unit_slot(dev, work, layout, pair, segment, unit))
        unit->verdict = KVX_VERDICT_FAULT;
    else if (pair.refusal != KVX_VERDICT_NONE)
        unit->verdict = pair.refusal;
    else if (kvx_latched(dev))
        unit->verdict = KVX_VERDICT_LATCHED;
}

#endif
