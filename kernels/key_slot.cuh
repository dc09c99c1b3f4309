/* SPDX-License-Identifier: Apache-2.0 */
/* A key in GPU memory, with everything that can be computed from it once: what kernels load, instead of recomputing it
 * for each unit. Made and wiped by keys.cu. */
#ifndef KVX_KERNELS_KEY_SLOT_CUH
#define KVX_KERNELS_KEY_SLOT_CUH

#include "aes.h"
#include "format.h"
#include "ghash_matrix.h"
#include "launch.h"

#define KVX_KEY_LIVE 0x4c495645u /* any other state is dead */

/* H^(2^i) for the distances between the pieces of a unit, in blocks. Twice the longest unit is enough. */
#define KVX_KEY_DOUBLINGS 24u
static_assert(KVX_UNIT_BYTES_LIMIT / 16 * 2 < 1ull << KVX_KEY_DOUBLINGS, "a distance has more bits");

/* What a CTA keeps in shared memory of the key it works with. */
struct kvx_key_powers {
    uint4 round_keys[KVX_AES256_ROUND_KEY_WORDS / 4];
    kvx_gf weights[32]; /* of lane l: H^(33-l). The last block of a message weighs H^2, for the length block follows. */
    kvx_gf doublings[KVX_KEY_DOUBLINGS];
};

/* What it keeps beside them where tensor cores do the hashing, as it lies in shared memory. */
struct kvx_key_matrices {
    uint32_t words[KVX_MATRICES][KVX_MATRIX_WORDS];
    kvx_gf row_weights[KVX_MATRIX_ROWS];
};

struct alignas(16) kvx_key_slot {
    uint32_t state;
    uint32_t generation;
    uint64_t n_blocks; /* AES blocks spent */
    kvx_key_powers powers;
    kvx_gf tables[2][256]; /* H^32 times each value of byte 0, of byte 1: a lane's blocks are 32 apart */
    kvx_key_matrices matrices;
};

/* Is the key alive under this generation? Asked again after the key was loaded: whoever wipes it marks it dead first.
 */
__device__ __forceinline__ bool kvx_key_is_live(const kvx_key_slot *key, uint32_t generation)
{
    return kvx_load_acquire_u32(&key->state) == KVX_KEY_LIVE && kvx_load_acquire_u32(&key->generation) == generation;
}

#endif
