/* SPDX-License-Identifier: Apache-2.0 */
/* Makes and wipes keys. All arithmetic here is the portable, branch-free one; a thread computes a table entry. */
#include <cuda_runtime.h>

#include "key_slot.cuh"

namespace
{

constexpr uint32_t n_threads = 512;
static_assert(sizeof(kvx_key_slot) % sizeof(uint64_t) == 0, "wiped in words");

/* By one thread: round keys, and H where H^1 belongs. */
__device__ void expand(kvx_key_slot *key, const uint8_t *bytes)
{
    uint32_t *round_keys = reinterpret_cast<uint32_t *>(key->powers.round_keys);
    uint32_t block[4] = {0, 0, 0, 0};
    kvx_aes256_expand(bytes, round_keys);
    kvx_aes256_encrypt(round_keys, block, block);
    for (unsigned i = 0; i < 4; i++)
        key->powers.doublings[0].w[i] = kvx_bswap32(block[i]);
}

__device__ kvx_gf square_often(kvx_gf x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x = kvx_gf_square(x);
    return x;
}

/* By all threads; reads H^1. */
__device__ void make_matrices(kvx_key_slot *key)
{
    __shared__ kvx_gf powers[KVX_MATRIX_POWERS];
    const kvx_gf h = key->powers.doublings[0];
    if (threadIdx.x < KVX_MATRIX_POWERS)
        powers[threadIdx.x] = kvx_gf_pow(h, kvx_matrix_exponent(threadIdx.x));
    else if (threadIdx.x >= n_threads - KVX_MATRIX_ROWS)
        key->matrices.row_weights[n_threads - 1 - threadIdx.x] =
            kvx_gf_pow(h, kvx_matrix_row_exponent(n_threads - 1 - threadIdx.x));
    __syncthreads();
    for (uint32_t n = threadIdx.x; n < KVX_MATRICES * KVX_MATRIX_WORDS; n += n_threads) {
        const uint32_t matrix = n / KVX_MATRIX_WORDS, i = n % KVX_MATRIX_WORDS;
        key->matrices.words[matrix][i] = kvx_matrix_word(matrix, i, powers[kvx_matrix_power(matrix, i)]);
    }
    __syncthreads();
    if (threadIdx.x < KVX_MATRIX_POWERS)
        powers[threadIdx.x] = kvx_gf_zero();
}

__global__ void install(kvx_key_slot *key, uint32_t generation, const uint8_t *bytes)
{
    if (threadIdx.x == 0) {
        key->state = 0;
        __threadfence();
        key->generation = generation;
        key->n_blocks = 0;
        expand(key, bytes);
    }
    __syncthreads();
    const kvx_gf h = key->powers.doublings[0];
    if (threadIdx.x < 32)
        key->powers.weights[threadIdx.x] = kvx_gf_pow(h, 33 - threadIdx.x);
    else if (threadIdx.x > 32 && threadIdx.x < 32 + KVX_KEY_DOUBLINGS)
        key->powers.doublings[threadIdx.x - 32] = square_often(h, threadIdx.x - 32);
    key->tables[threadIdx.x / 256][threadIdx.x % 256] =
        kvx_ghash_tables(square_often(h, 5), threadIdx.x / 256, threadIdx.x % 256);
    make_matrices(key);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        kvx_store_release_u32(&key->state, KVX_KEY_LIVE);
}

/* Dead first, so that a kernel which loads a key while it vanishes finds out (kvx_key_is_live). */
__global__ void wipe(kvx_key_slot *keys, uint64_t fill)
{
    kvx_key_slot *key = &keys[blockIdx.x];
    uint64_t *words = reinterpret_cast<uint64_t *>(key);
    if (threadIdx.x == 0)
        key->state = 0;
    __threadfence();
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < sizeof *key / sizeof *words; i += n_threads)
        words[i] = i == 0 ? fill << 32 : fill; /* the state stays dead whatever the filling is */
}

static_assert(offsetof(kvx_key_slot, state) == 0, "wipe() keeps it dead");

} // namespace

size_t kvx_key_slot_bytes(void)
{
    return sizeof(kvx_key_slot);
}

int kvx_launch_key_install(kvx_key_slot *keys, uint32_t index, uint32_t generation, const uint8_t *dev_key,
                           void *stream)
{
    install<<<1, n_threads, 0, static_cast<cudaStream_t>(stream)>>>(keys + index, generation, dev_key);
    return cudaGetLastError();
}

int kvx_launch_key_wipe(kvx_key_slot *keys, uint32_t first, uint32_t n, uint64_t fill, void *stream)
{
    if (n > 0)
        wipe<<<n, n_threads, 0, static_cast<cudaStream_t>(stream)>>>(keys + first, fill);
    return cudaGetLastError();
}
