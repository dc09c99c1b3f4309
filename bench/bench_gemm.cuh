/* SPDX-License-Identifier: Apache-2.0 */
/* A bf16 matrix product on the tensor cores as engines run them, to have something that offload can disturb: C = A *
 * B^T, all row-major. A CTA takes tiles of 128 x 256, its eight warps 64 x 64 each; slices of 64 columns come through a
 * ring of four in shared memory. With as many CTAs as multiprocessors it is a persistent kernel; with one CTA a tile
 * the hardware deals the tiles out, wave by wave. Sizes must be multiples of the tile's. */
#ifndef KVX_BENCH_GEMM_CUH
#define KVX_BENCH_GEMM_CUH

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace gemm
{

constexpr int tile_m = 128, tile_n = 256, tile_k = 64, n_stages = 4, n_threads = 256;
constexpr uint32_t row_bytes = tile_k * 2, stage_bytes = (tile_m + tile_n) * row_bytes;
constexpr uint32_t shared_bytes = n_stages * stage_bytes;
constexpr int group_m = 8; /* tiles that share columns of B run close together, so that L2 serves them */

struct problem {
    const __nv_bfloat16 *a, *b;
    __nv_bfloat16 *c;
    int m, n, k;
};

__device__ __forceinline__ void copy_16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(to), "l"(from));
}

__device__ __forceinline__ void load_matrices(uint32_t address, uint32_t r[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

__device__ __forceinline__ void multiply(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Rows of 128 bytes; the 16-byte columns of a row are permuted so that eight rows of one column lie in eight banks. */
__device__ __forceinline__ uint32_t place(uint32_t base, int row, int column)
{
    return base + (uint32_t)row * row_bytes + (uint32_t)((column ^ row) & 7) * 16;
}

__device__ __forceinline__ void load_rows(uint32_t base, const __nv_bfloat16 *from, int stride, int n_rows)
{
    for (int i = threadIdx.x; i < n_rows * 8; i += n_threads)
        copy_16(place(base, i / 8, i % 8), from + (size_t)(i / 8) * stride + i % 8 * 8);
}

/* The slice of 64 columns at `k` into its place of the ring; one group of copies, empty past the end. */
__device__ __forceinline__ void load_stage(const problem &p, uint32_t shared, int row, int column, int slice)
{
    if (slice * tile_k < p.k) {
        const uint32_t base = shared + (uint32_t)(slice % n_stages) * stage_bytes;
        load_rows(base, p.a + (size_t)row * p.k + slice * tile_k, p.k, tile_m);
        load_rows(base + tile_m * row_bytes, p.b + (size_t)column * p.k + slice * tile_k, p.k, tile_n);
    }
    asm volatile("cp.async.commit_group;");
}

__device__ __forceinline__ void multiply_stage(uint32_t base, int warp, int lane, float sums[4][8][4])
{
    const uint32_t a_base = base, b_base = base + tile_m * row_bytes;
    const int a_row = warp % 2 * 64 + lane % 16, b_row = warp / 2 * 64 + lane % 8 + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < tile_k / 16; k++) {
        uint32_t a[4][4], b[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            load_matrices(place(a_base, a_row + i * 16, k * 2 + lane / 16), a[i]);
#pragma unroll
        for (int j = 0; j < 4; j++)
            load_matrices(place(b_base, b_row + j * 16, k * 2 + lane / 8 % 2), b[j]);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                multiply(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
}

__device__ __forceinline__ void write_tile(const problem &p, int row, int column, const float sums[4][8][4])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    row += warp % 2 * 64 + lane / 4;
    column += warp / 2 * 64 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) {
            __nv_bfloat16 *c = p.c + (size_t)(row + i * 16) * p.n + column + j * 8;
            *reinterpret_cast<__nv_bfloat162 *>(c) = __floats2bfloat162_rn(sums[i][j][0], sums[i][j][1]);
            *reinterpret_cast<__nv_bfloat162 *>(c + (size_t)8 * p.n) =
                __floats2bfloat162_rn(sums[i][j][2], sums[i][j][3]);
        }
}

__device__ __forceinline__ void find_tile(const problem &p, int tile, int *row, int *column)
{
    const int tiles_m = p.m / tile_m, tiles_n = p.n / tile_n, per_group = group_m * tiles_n;
    const int first = tile / per_group * group_m, rows = min(tiles_m - first, group_m);
    *row = (first + tile % per_group % rows) * tile_m;
    *column = tile % per_group / rows * tile_n;
}

__global__ void __launch_bounds__(n_threads, 1) kernel(const problem p)
{
    extern __shared__ __align__(1024) uint8_t bench_gemm_shared[];
    const uint32_t shared = (uint32_t)__cvta_generic_to_shared(bench_gemm_shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_tiles = p.m / tile_m * (p.n / tile_n);
    for (int tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
        float sums[4][8][4] = {};
        int row, column;
        find_tile(p, tile, &row, &column);
        for (int slice = 0; slice < n_stages - 1; slice++)
            load_stage(p, shared, row, column, slice);
        for (int slice = 0; slice < p.k / tile_k; slice++) {
            asm volatile("cp.async.wait_group %0;" : : "n"(n_stages - 2));
            __syncthreads();
            load_stage(p, shared, row, column, slice + n_stages - 1);
            multiply_stage(shared + (uint32_t)(slice % n_stages) * stage_bytes, warp, lane, sums);
        }
        write_tile(p, row, column, sums);
        asm volatile("cp.async.wait_all;");
        __syncthreads();
    }
}

} // namespace gemm

#endif
