/* SPDX-License-Identifier: Apache-2.0 */
/* GHASH as matrix products over GF(2). To multiply by a constant is linear, so it is a 128 x 128 bit matrix; tensor
 * cores that take bits count the ones that meet, and the parity of a count is the sum in GF(2).
 *
 * A tile is 256 consecutive blocks, a step KVX_MATRIX_TILES tiles. A step ends with 64 sums, the rows: row R is for the
 * blocks 4R to 4R + 3 of each tile. Of these, block 4R + j has its words in thread j of a quad, and each thread feeds
 * its words in where the matrix stands for their place in the block times H^(3-j), times H^256 for each later tile of
 * the step. Thread j also holds word j of the row's sum so far; a matrix of its own multiplies that by H^256 for each
 * tile of the step (Horner's rule). Bytes and bits are never reversed: blocks come as little-endian words, and which
 * coefficient a bit stands for is the matrices' business. */
#ifndef KVX_KERNELS_GHASH_MATRIX_H
#define KVX_KERNELS_GHASH_MATRIX_H

#include "ghash.h"

#define KVX_MATRIX_TILE_BLOCKS 256u
#define KVX_MATRIX_TILES 2u
#define KVX_MATRIX_STEP_BLOCKS (KVX_MATRIX_TILES * KVX_MATRIX_TILE_BLOCKS)
#define KVX_MATRIX_ROWS 64u

/* Matrix 2t serves words 0 and 1 of tile t's blocks, matrix 2t + 1 words 2 and 3, the last one the sum so far. Each is
 * 256 bits deep and 128 columns wide, in 8 x 128 bit cores as the tensor cores read it from shared memory: word i holds
 * 32 bits of depth of column 8 * (i / 64) + i / 4 % 8, namely those of thread i % 4 and word i / 32 % 2 of the two. */
#define KVX_MATRICES (2u * KVX_MATRIX_TILES + 1)
#define KVX_MATRIX_HORNER (KVX_MATRICES - 1)
#define KVX_MATRIX_WORDS 1024u

/* The powers of H that the matrices are made of, each once: thread j of tile t, then Horner's. */
#define KVX_MATRIX_POWERS (4u * KVX_MATRIX_TILES + 1)

KVX_HD uint32_t kvx_matrix_exponent(unsigned power)
{
    if (power == KVX_MATRIX_POWERS - 1)
        return KVX_MATRIX_STEP_BLOCKS;
    return KVX_MATRIX_TILE_BLOCKS * (KVX_MATRIX_TILES - 1 - power / 4) + 3 - power % 4;
}

/* Which of the powers word i of a matrix is made of. */
KVX_HD unsigned kvx_matrix_power(unsigned matrix, unsigned i)
{
    return matrix == KVX_MATRIX_HORNER ? KVX_MATRIX_POWERS - 1 : matrix / 2 * 4 + i % 4;
}

/* What a row's sum must be multiplied by at the end of a message: the last block weighs H^2, for the length block
 * follows. */
KVX_HD uint32_t kvx_matrix_row_exponent(unsigned row)
{
    return 4 * (KVX_MATRIX_ROWS - 1 - row) + 2;
}

/* Word i of a matrix, given its power of H. Column c is bit 2 * (c / 8) + c % 2 of word c / 2 % 4 of the product, so
 * that a thread's counts are the bits of the word that belongs to it. */
KVX_HD uint32_t kvx_matrix_word(unsigned matrix, unsigned i, kvx_gf power)
{
    const unsigned column_low = i / 4 % 8, half = i / 32 % 2;
    const unsigned bit = 2 * (i / 64) + column_low % 2; /* of a little-endian word; as a coefficient, bit ^ 7 */
    const unsigned from = matrix == KVX_MATRIX_HORNER ? i % 4 : matrix % 2 * 2 + half;
    uint32_t word = 0;
    if (matrix == KVX_MATRIX_HORNER && half != 0)
        return 0; /* the sum is one word a thread */
    for (unsigned n = 0; n < 2 * from; n++)
        power = kvx_gf_shift(power, 16);
    for (unsigned n = 0; n < 32; n++) {
        uint32_t to = 0;
        for (unsigned j = 0; j < 4; j++) /* no index that is not known at compile time: it would cost local memory */
            to |= power.w[j] & (0u - (uint32_t)(column_low / 2 == j));
        word |= ((to >> (31 - (bit ^ 7))) & 1u) << (n ^ 7);
        power = kvx_gf_shift(power, 1);
    }
    return word;
}

#endif
