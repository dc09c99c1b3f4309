/* SPDX-License-Identifier: Apache-2.0 */
/* From a place in a unit to an address in the caller's tensors. A unit is the rows of its lanes one after the other; a
 * cursor remembers the row it is in, and looks for another only when it leaves it. */
#ifndef KVX_KERNELS_GATHER_CUH
#define KVX_KERNELS_GATHER_CUH

#include "format.h"
#include "hd.h"

/* The lanes of a segment, at one block. */
struct kvx_place {
    const kvx_dev_lane *lanes;
    uint32_t n_lanes;
    uint32_t block;
};

/* `place` lies in shared memory: what only a new row needs takes no registers. */
struct kvx_cursor {
    const kvx_place *place;
    uint64_t base; /* add an offset in the unit to get an address, in the row only */
    uint32_t lane;
    uint32_t row_begin, row_end; /* offsets in the unit */
};

__device__ __forceinline__ kvx_cursor kvx_cursor_begin(const kvx_place *place, uint32_t lane = 0)
{
    kvx_cursor cursor;
    cursor.place = place;
    cursor.base = 0;
    cursor.lane = lane;
    cursor.row_begin = cursor.row_end = 0;
    return cursor;
}

/* Finds the row that holds `offset`, which never goes back. */
__device__ __forceinline__ void kvx_cursor_seek(kvx_cursor *cursor, uint32_t offset)
{
    uint32_t low = cursor->lane, high = cursor->place->n_lanes;
    for (uint32_t step = 1; low + step < high; step *= 2) { /* mostly the lane is the next one */
        if (cursor->place->lanes[low + step].unit_offset > offset)
            high = low + step;
        else
            low += step;
    }
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (cursor->place->lanes[middle].unit_offset <= offset)
            low = middle;
        else
            high = middle;
    }
    const kvx_dev_lane lane = cursor->place->lanes[low];
    const uint32_t row = (offset - lane.unit_offset) / lane.row_bytes;
    cursor->lane = low;
    cursor->row_begin = lane.unit_offset + row * lane.row_bytes;
    cursor->row_end = cursor->row_begin + lane.row_bytes;
    cursor->base =
        lane.base + (uint64_t)cursor->place->block * lane.block_stride + row * lane.row_stride - cursor->row_begin;
}

template <class T> __device__ __forceinline__ T *kvx_cursor_at(kvx_cursor *cursor, uint32_t offset)
{
    if (offset - cursor->row_begin >= cursor->row_end - cursor->row_begin)
        kvx_cursor_seek(cursor, offset);
    return reinterpret_cast<T *>(cursor->base + offset);
}

__device__ __forceinline__ uint2 kvx_gather_word(kvx_cursor *cursor, uint32_t offset, uint32_t plain_bytes)
{
    return offset < plain_bytes ? *kvx_cursor_at<const uint2>(cursor, offset) : make_uint2(0, 0);
}

/* The 16 bytes at `offset`, zeroes where the unit is padding. Not aligned: 8-byte words, each from its own row. */
__device__ __forceinline__ uint4 kvx_gather_block(kvx_cursor *cursor, uint32_t offset, uint32_t plain_bytes,
                                                  bool aligned)
{
    if (aligned)
        return offset < plain_bytes ? *kvx_cursor_at<const uint4>(cursor, offset) : make_uint4(0, 0, 0, 0);
    const uint2 low = kvx_gather_word(cursor, offset, plain_bytes);
    const uint2 high = kvx_gather_word(cursor, offset + 8, plain_bytes);
    return make_uint4(low.x, low.y, high.x, high.y);
}

/* The other direction; padding is dropped. */
__device__ __forceinline__ void kvx_scatter_block(kvx_cursor *cursor, uint32_t offset, uint32_t plain_bytes,
                                                  bool aligned, uint4 block)
{
    if (offset >= plain_bytes)
        return;
    if (aligned) {
        *kvx_cursor_at<uint4>(cursor, offset) = block;
        return;
    }
    *kvx_cursor_at<uint2>(cursor, offset) = make_uint2(block.x, block.y);
    if (offset + 8 < plain_bytes)
        *kvx_cursor_at<uint2>(cursor, offset + 8) = make_uint2(block.z, block.w);
}

/* --------------------------------------------------------------------------------------------------- pairs of blocks
 */

#define KVX_PAIR_BYTES 512u /* from the first block to the second */

/* How many pairs, `step` bytes from each to the next and the first at block i, lie whole in the row of the first one.
 * If any, the cursor is there. */
__device__ __forceinline__ int32_t kvx_cursor_pairs(kvx_cursor *cursor, int32_t i, uint32_t step, uint32_t plain_bytes)
{
    const uint32_t offset = (uint32_t)i * 16;
    if (i < 0 || offset >= plain_bytes)
        return 0;
    kvx_cursor_seek(cursor, offset);
    const uint32_t rest = cursor->row_end - offset, pair = KVX_PAIR_BYTES + 16;
    return rest < pair ? 0 : (int32_t)((rest - pair) / step + 1);
}

/* Where the pair at block i is, if there is one. */
__device__ __forceinline__ uint64_t kvx_cursor_pair(const kvx_cursor &cursor, int32_t i)
{
    return cursor.base + (uint32_t)i * 16;
}

/* The words of a pair, one at a time: word k is half k % 2 of block k / 2. */
__device__ __forceinline__ uint32_t kvx_pair_offset(int32_t i, uint32_t k)
{
    return (uint32_t)i * 16 + k / 2 * KVX_PAIR_BYTES + k % 2 * 8;
}

/* Is the word real? A block may come before the unit, a word after its end. */
__device__ __forceinline__ bool kvx_pair_has_word(int32_t i, uint32_t k, uint32_t plain_bytes)
{
    return i + (int32_t)(k / 2) * 32 >= 0 && kvx_pair_offset(i, k) < plain_bytes;
}

/* Blocks i and i + 32 of the unit, wherever they are; what is not real is zero. Words move down as they come in: short
 * code matters more here than speed. */
__device__ __forceinline__ void kvx_gather_pair(kvx_cursor *cursor, int32_t i, uint32_t plain_bytes, uint4 text[2])
{
    text[0] = text[1] = make_uint4(0, 0, 0, 0);
#pragma unroll 1
    for (uint32_t k = 0; k < 4; k++) {
        uint2 word = make_uint2(0, 0);
        if (kvx_pair_has_word(i, k, plain_bytes))
            word = *kvx_cursor_at<const uint2>(cursor, kvx_pair_offset(i, k));
        text[0] = make_uint4(text[0].z, text[0].w, text[1].x, text[1].y);
        text[1] = make_uint4(text[1].z, text[1].w, word.x, word.y);
    }
}

/* The other direction; what is not real is dropped. */
__device__ __forceinline__ void kvx_scatter_pair(kvx_cursor *cursor, int32_t i, uint32_t plain_bytes, uint4 text[2])
{
#pragma unroll 1
    for (uint32_t k = 0; k < 4; k++) {
        if (kvx_pair_has_word(i, k, plain_bytes))
            *kvx_cursor_at<uint2>(cursor, kvx_pair_offset(i, k)) = make_uint2(text[0].x, text[0].y);
        text[0] = make_uint4(text[0].z, text[0].w, text[1].x, text[1].y);
        text[1] = make_uint4(text[1].z, text[1].w, 0, 0);
    }
}

#endif
