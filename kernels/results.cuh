/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels do for a whole pair: find its slot, commit it, tell the host its verdict. */
#ifndef KVX_KERNELS_RESULTS_CUH
#define KVX_KERNELS_RESULTS_CUH

#include "key_slot.cuh"
#include "state.h"

/* The pairs and everything else that a kernel needs, as its one parameter. */
template <unsigned Pairs> struct kvx_params {
    kvx_dev dev;
    kvx_work work;
    uint32_t n_ctas; /* gridDim.x, from the constant bank: it takes no register for the whole kernel */
    kvx_work_pair pairs[Pairs];
};
static_assert(sizeof(kvx_params<KVX_PAIRS_PER_LAUNCH>) <= 32764, "kernel parameters");

/* The items (pairs x segments) that a CTA sees to: a run, as long as the other CTAs' or one longer. */
struct kvx_span {
    uint32_t first, end;
};

__device__ __forceinline__ kvx_span kvx_cta_items(uint32_t n_items, uint32_t n_ctas)
{
    const uint32_t each = n_items / n_ctas, n_longer = n_items - each * n_ctas, cta = blockIdx.x;
    const uint32_t first = cta * each + min(cta, n_longer);
    return {first, first + each + (cta < n_longer)};
}

/* Ordered after everything that this thread did or saw, for the host to read. */
__device__ __forceinline__ void kvx_store_release_host(uint64_t *p, uint64_t x)
{
    asm volatile("st.release.sys.u64 [%0], %1;" : : "l"(p), "l"(x) : "memory");
}

__device__ __forceinline__ bool kvx_latched(const kvx_dev &dev)
{
    return kvx_load_acquire_u32(&dev.words->latch) != 0;
}

__device__ __forceinline__ uint32_t kvx_entry_index(const kvx_dev &dev, const kvx_work &work, uint32_t pair)
{
    return (work.first_entry + pair) % dev.n_entries;
}

__device__ __forceinline__ kvx_entry *kvx_entry_of(const kvx_dev &dev, const kvx_work &work, uint32_t pair)
{
    return &dev.entries[kvx_entry_index(dev, work, pair)];
}

/* Frees the pair's entry, then writes its result word. */
__device__ inline void kvx_result_write(const kvx_dev &dev, const kvx_work &work, uint32_t pair, uint32_t verdict)
{
    const uint32_t index = kvx_entry_index(dev, work, pair);
    dev.entries[index].n_done = 0;
    dev.entries[index].verdict = KVX_VERDICT_NONE;
    kvx_store_release_host(&dev.results[index],
                           kvx_result_word(dev.words->prf_key, work.ticket, work.first_index + pair, verdict));
}

/* The verdict of a block whose units are all done. */
__device__ __forceinline__ uint32_t kvx_entry_verdict(const kvx_dev &dev, const kvx_work &work, uint32_t pair)
{
    const uint32_t verdict = kvx_load_acquire_u32(&kvx_entry_of(dev, work, pair)->verdict);
    return verdict == KVX_VERDICT_NONE ? (uint32_t)KVX_VERDICT_OK : verdict;
}

/* Finds the class of a slot and the slot's place in it; false if there is no such slot. */
__device__ inline bool kvx_slot_find(const kvx_dev &dev, uint32_t slot, kvx_dev_class *slot_class, uint32_t *index)
{
    if (slot >= dev.n_slots)
        return false;
    for (uint32_t i = 0; i < dev.n_classes; i++) {
        *slot_class = dev.classes[i];
        *index = slot - slot_class->first_slot;
        if (slot >= slot_class->first_slot && *index < slot_class->n_slots)
            return true;
    }
    return false;
}

__device__ __forceinline__ kvx_record *kvx_record_of(const kvx_dev &dev, const kvx_dev_class &slot_class,
                                                     uint32_t index, uint32_t unit)
{
    return &dev.records[slot_class.first_record + (uint64_t)index * slot_class.max_units + unit];
}

/* The last step of a store: makes the slot readable, or empty if the verdict is a failure. Returns the new verdict. */
__device__ inline uint32_t kvx_slot_commit_pair(const kvx_dev &dev, const kvx_work &work, kvx_work_pair pair,
                                                uint32_t verdict)
{
    const kvx_dev_layout layout = dev.layouts[pair.layout];
    const uint32_t fault = verdict == KVX_VERDICT_OK ? (uint32_t)KVX_VERDICT_FAULT : verdict;
    kvx_header description = {};
    kvx_dev_class slot_class;
    uint32_t index;
    if (layout.n_blocks == 0 || pair.tenant >= dev.n_tenants || !kvx_slot_find(dev, pair.slot, &slot_class, &index) ||
        layout.n_segments > slot_class.max_units)
        return fault;
    description.key_slot = dev.tenant_keys[pair.tenant];
    if (description.key_slot >= dev.n_keys)
        return fault;
    description.key_generation = dev.keys[description.key_slot].generation;
    description.fingerprint = layout.fingerprint;
    description.tenant = pair.tenant;
    description.generation = pair.generation;
    description.n_units = layout.n_segments;
    return kvx_slot_commit(&dev.headers[pair.slot], kvx_record_of(dev, slot_class, index, 0), work.store_id, verdict,
                           &description);
}

/* Ends a store of a block whose units have all been sealed or refused. */
__device__ inline void kvx_pair_commit(const kvx_dev &dev, const kvx_work &work, uint32_t pair_index,
                                       kvx_work_pair pair)
{
    uint32_t verdict = kvx_entry_verdict(dev, work, pair_index);
    if (verdict == KVX_VERDICT_OK && pair.refusal != KVX_VERDICT_NONE)
        verdict = pair.refusal;
    if (verdict == KVX_VERDICT_OK && kvx_latched(dev))
        verdict = KVX_VERDICT_LATCHED;
    kvx_result_write(dev, work, pair_index, kvx_slot_commit_pair(dev, work, pair, verdict));
}

#endif
