/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts that engines use and layouts that nobody should need: the table that round trips run over. */
#include "support.h"

const shape shapes[] = {
    /* name, blocks, lanes, per segment, {rows, row bytes, row gap, block gap, order}, patterns, skew */
    {"plain", 8, 4, 2, {{1, 4096, 0, 0, BLOCK_MAJOR}}, 1, 0},
    {"tiny", 64, 1, 1, {{1, 32, 0, 0, BLOCK_MAJOR}}, 1, 0},
    {"one word", 16, 1, 1, {{1, 8, 0, 0, BLOCK_MAJOR}}, 1, 8},
    {"one lane", 8, 1, 1, {{1, 16384, 0, 0, BLOCK_MAJOR}}, 1, 0},
    {"block gaps", 8, 6, 2, {{1, 1024, 0, 512, BLOCK_MAJOR}, {1, 2048, 0, 8, BLOCK_MAJOR}}, 2, 0},
    {"rows with gaps", 6, 4, 2, {{16, 128, 64, 0, BLOCK_MAJOR}, {7, 72, 8, 24, BLOCK_MAJOR}}, 2, 0},
    {"rows of 656 (mla)", 5, 3, 1, {{64, 656, 0, 0, BLOCK_MAJOR}, {64, 656, 16, 0, BLOCK_MAJOR}}, 2, 0},
    {"rows of 132 merged (indexer)", 6, 4, 4, {{64, 132, 0, 0, BLOCK_MAJOR}, {2, 132, 0, 0, BLOCK_MAJOR}}, 2, 0},
    {"8-byte aligned", 7, 5, 2, {{3, 1048, 8, 0, BLOCK_MAJOR}, {1, 24, 0, 0, BLOCK_MAJOR}}, 2, 8},
    {"transposed", 9, 4, 2, {{16, 256, 0, 0, TRANSPOSED}, {5, 40, 8, 0, TRANSPOSED}}, 2, 0},
    {"mixed orders", 6, 9, 4, {{8, 64, 0, 0, TRANSPOSED}, {8, 64, 0, 0, BLOCK_MAJOR}, {1, 8, 0, 0, BLOCK_MAJOR}}, 3, 8},
    {"200 lanes", 4, 200, 50, {{1, 512, 0, 0, BLOCK_MAJOR}, {2, 104, 8, 0, BLOCK_MAJOR}}, 2, 0},
    {"64 segments", 4, 128, 2, {{1, 1024, 0, 0, BLOCK_MAJOR}, {1, 40, 0, 0, BLOCK_MAJOR}}, 2, 0},
    {"large units", 2, 4, 2, {{1, 1048576, 0, 0, BLOCK_MAJOR}, {16, 65544, 56, 0, BLOCK_MAJOR}}, 2, 0},
    {"unit of 5 MiB", 2, 1, 1, {{1, 5242904, 0, 0, BLOCK_MAJOR}}, 1, 0},
};

const size_t n_shapes = COUNT(shapes);

const shape *shape_named(const char *name)
{
    for (size_t i = 0; i < n_shapes; i++)
        if (strcmp(shapes[i].name, name) == 0)
            return &shapes[i];
    fail_msg("no shape named %s", name);
    return NULL;
}
