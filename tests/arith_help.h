/* SPDX-License-Identifier: Apache-2.0 */
/* Repeatable test data (xorshift64*): the same bytes in every run. */
#ifndef KVX_TESTS_ARITH_HELP_H
#define KVX_TESTS_ARITH_HELP_H

#include <stddef.h>
#include <stdint.h>

static uint64_t random_state = 0x9e3779b97f4a7c15u;

static inline uint64_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state * 0x2545f4914f6cdd1du;
}

static inline void fill_random(uint8_t *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)(next_random() >> 56);
}

#endif
