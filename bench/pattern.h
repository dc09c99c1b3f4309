/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_BENCH_PATTERN_H
#define KVX_BENCH_PATTERN_H
/* Test data whose every word says where it belongs: splitmix64 of (seed, position), the same on CPU and GPU. Data that
 * landed in the wrong place, or comes from an earlier fill under another seed, therefore never compares equal. */
#include <stdint.h>

#ifdef __CUDACC__
#define PATTERN_HD __host__ __device__
#else
#define PATTERN_HD
#endif

/* `index` is a byte position divided by 8. */
static inline PATTERN_HD uint64_t pattern_word(uint64_t seed, uint64_t index)
{
    uint64_t z = seed * 0xd1342543de82ef95u + (index + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

#endif
