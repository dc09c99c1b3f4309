/* SPDX-License-Identifier: Apache-2.0 */
/* GHASH by bit matrices, as the tensor cores do it, played through on the CPU: counts of ones that meet, their
 * parities, rows, and at the end one multiplication a row. Held to GHASH block by block. */
#include "cmocka_door.h"

#include <stdlib.h>
#include <string.h>

#include "arith_help.h"
#include "kernels/ghash_matrix.h"

typedef struct matrices {
    uint32_t words[KVX_MATRICES][KVX_MATRIX_WORDS];
    kvx_gf row_weights[KVX_MATRIX_ROWS];
} matrices;

static void make_matrices(kvx_gf h, matrices *m)
{
    kvx_gf powers[KVX_MATRIX_POWERS];
    for (unsigned i = 0; i < KVX_MATRIX_POWERS; i++)
        powers[i] = kvx_gf_pow(h, kvx_matrix_exponent(i));
    for (unsigned matrix = 0; matrix < KVX_MATRICES; matrix++)
        for (unsigned i = 0; i < KVX_MATRIX_WORDS; i++)
            m->words[matrix][i] = kvx_matrix_word(matrix, i, powers[kvx_matrix_power(matrix, i)]);
    for (unsigned row = 0; row < KVX_MATRIX_ROWS; row++)
        m->row_weights[row] = kvx_gf_pow(h, kvx_matrix_row_exponent(row));
}

/* counts[c] += ones of one row of A (4 threads x 2 words of 32 bits) that meet ones of column c. */
static void count(const uint32_t matrix[KVX_MATRIX_WORDS], uint32_t a[4][2], unsigned counts[128])
{
    for (unsigned i = 0; i < KVX_MATRIX_WORDS; i++) {
        const unsigned column = i / 64 * 8 + i / 4 % 8;
        counts[column] += (unsigned)__builtin_popcount(matrix[i] & a[i % 4][i / 32 % 2]);
    }
}

/* One step of one row; `blocks` are the row's four in the first tile. */
static void step_row(const matrices *m, const uint8_t *blocks, uint32_t row[4])
{
    uint32_t a[4][2];
    unsigned counts[128] = {0};
    for (unsigned j = 0; j < 4; j++) {
        a[j][0] = row[j];
        a[j][1] = 0xdeadbeefu; /* must not matter */
    }
    count(m->words[KVX_MATRIX_HORNER], a, counts);
    for (unsigned matrix = 0; matrix < KVX_MATRIX_HORNER; matrix++) {
        const uint8_t *tile = blocks + (size_t)(matrix / 2) * KVX_MATRIX_TILE_BLOCKS * 16;
        for (unsigned j = 0; j < 4; j++)
            for (unsigned half = 0; half < 2; half++)
                a[j][half] = kvx_load_le32(tile + 16 * j + 8 * (matrix % 2) + 4 * half);
        count(m->words[matrix], a, counts);
    }
    memset(row, 0, 4 * sizeof row[0]);
    for (unsigned column = 0; column < 128; column++) {
        assert_true(counts[column] < 1u << 11); /* the kernel packs counts eleven bits apart */
        row[column / 2 % 4] |= (counts[column] & 1u) << (2 * (column / 8) + column % 2);
    }
}

/* H times the hash of the message, as the kernels need it (for the length block follows). */
static kvx_gf hash_by_matrices(const matrices *m, const uint8_t *message, size_t n_blocks)
{
    const size_t n_steps = (n_blocks + KVX_MATRIX_STEP_BLOCKS - 1) / KVX_MATRIX_STEP_BLOCKS;
    const size_t padded = n_steps * KVX_MATRIX_STEP_BLOCKS * 16;
    uint8_t *blocks = calloc(1, padded + 1);
    kvx_gf sum = kvx_gf_zero();
    assert_non_null(blocks);
    memcpy(blocks + padded - n_blocks * 16, message, n_blocks * 16); /* zeroes come first */
    for (unsigned r = 0; r < KVX_MATRIX_ROWS; r++) {
        uint32_t row[4] = {0};
        kvx_gf x;
        for (size_t step = 0; step < n_steps; step++)
            step_row(m, blocks + step * KVX_MATRIX_STEP_BLOCKS * 16 + r * 64, row);
        for (unsigned j = 0; j < 4; j++)
            x.w[j] = kvx_bswap32(row[j]);
        sum = kvx_gf_xor(sum, kvx_gf_mul(x, m->row_weights[r]));
    }
    free(blocks);
    return sum;
}

static void check_key(kvx_gf h)
{
    static const size_t lengths[] = {0, 2, 3, 64, 254, 256, 1000, 1024, 1026, 2048, 2500};
    static matrices m;
    static uint8_t message[2500 * 16];
    make_matrices(h, &m);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        fill_random(message, lengths[i] * 16);
        const kvx_gf y = kvx_gf_mul(kvx_ghash_update(kvx_gf_zero(), h, message, lengths[i]), h);
        const kvx_gf z = hash_by_matrices(&m, message, lengths[i]);
        assert_memory_equal(&y, &z, sizeof y);
    }
}

static void random_keys(void **state)
{
    uint8_t block[16];
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        fill_random(block, sizeof block);
        check_key(kvx_gf_load(block));
    }
}

/* Nothing of the construction asks for an H with any property. */
static void odd_keys(void **state)
{
    kvx_gf last = kvx_gf_zero();
    (void)state;
    last.w[3] = 1;
    check_key(kvx_gf_zero());
    check_key(kvx_gf_one());
    check_key(last);
}

/* The largest counts there can be: all bits set. */
static void full_counts(void **state)
{
    uint32_t ones[4][2];
    static uint32_t matrix[KVX_MATRIX_WORDS];
    unsigned counts[128] = {0};
    (void)state;
    memset(ones, 0xff, sizeof ones);
    memset(matrix, 0xff, sizeof matrix);
    for (unsigned i = 0; i < KVX_MATRICES; i++)
        count(matrix, ones, counts);
    for (unsigned column = 0; column < 128; column++)
        assert_true(counts[column] == 256 * KVX_MATRICES && counts[column] < 1u << 11);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_keys),
        cmocka_unit_test(odd_keys),
        cmocka_unit_test(full_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
