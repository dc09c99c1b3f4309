/* SPDX-License-Identifier: Apache-2.0 */
/* A bf16 matrix product on the tensor cores as engines run them, to have something that offload can disturb: C = A *
 * B^T, all row-major. A CTA takes tiles of 128 x 256, its eight warps 64 x 64 each; slices of 64 columns come through a
 * ring of four in shared memory. With as many CTAs as multiprocessors it is a persistent kernel; with one CTA a tile
 * the hardware deals the tiles out, wave by wave. Sizes must be multiples of the tile's, and at
 * least four slices. */
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

/* Where a thread's copies come from and go to: one 16-byte column of every 32nd row. */
struct loader {
    const __nv_bfloat16 *a, *b;
    uint32_t place;
};

__device__ __forceinline__ loader loader_of(const problem &p, uint32_t shared, int row, int column)
{
    const int mine = threadIdx.x / 8, at = threadIdx.x % 8;
    return {p.a + (size_t)(row + mine) * p.k + at * 8, p.b + (size_t)(column + mine) * p.k + at * 8,
            place(shared, mine, at)};
}

constexpr int n_parts = (tile_m + tile_n) / 128; /* of a slice's copies: 128 rows each, A's first */

__device__ __forceinline__ void load_part(const problem &p, const loader &l, int slice, int part)
{
    const __nv_bfloat16 *from = (part == 0 ? l.a : l.b + (size_t)(part - 1) * 128 * p.k) + slice * tile_k;
    const uint32_t to = l.place + (uint32_t)(slice % n_stages) * stage_bytes + (uint32_t)part * 128 * row_bytes;
#pragma unroll
    for (int i = 0; i < 4; i++)
        copy_16(to + (uint32_t)i * 32 * row_bytes, from + (size_t)i * 32 * p.k);
}

/* Ends the copies of one slice as a group; the groups past the last slice are empty. */
__device__ __forceinline__ void end_slice()
{
    asm volatile("cp.async.commit_group;");
}

/* What a warp multiplies in one step of 16 columns. */
struct fragments {
    uint32_t a[4][4], b[4][4];
};

__device__ __forceinline__ void load_fragments(uint32_t base, int warp, int lane, int k, fragments *f)
{
    const uint32_t b_base = base + tile_m * row_bytes;
    const int a_row = warp % 2 * 64 + lane % 16, b_row = warp / 2 * 64 + lane % 8 + lane / 16 * 8;
#pragma unroll
    for (int i = 0; i < 4; i++)
        load_matrices(place(base, a_row + i * 16, k * 2 + lane / 16), f->a[i]);
#pragma unroll
    for (int j = 0; j < 4; j++)
        load_matrices(place(b_base, b_row + j * 16, k * 2 + lane / 8 % 2), f->b[j]);
}

__device__ __forceinline__ void multiply_all(const fragments &f, float sums[4][8][4])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            multiply(sums[i][j], f.a[i], f.b[j / 2][j % 2 * 2], f.b[j / 2][j % 2 * 2 + 1]);
}

/* One slice: the next step's fragments and a part of a later slice are on their way while this step multiplies. */
__device__ __forceinline__ void multiply_slice(const problem &p, const loader &l, uint32_t shared, int slice,
                                               float sums[4][8][4])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, later = slice + n_stages - 1;
    const uint32_t base = shared + (uint32_t)(slice % n_stages) * stage_bytes;
    fragments f[2];
    load_fragments(base, warp, lane, 0, &f[0]);
#pragma unroll
    for (int k = 0; k < tile_k / 16; k++) {
        if (k + 1 < tile_k / 16)
            load_fragments(base, warp, lane, k + 1, &f[(k + 1) % 2]);
        if (k < n_parts && later * tile_k < p.k)
            load_part(p, l, later, k);
        multiply_all(f[k % 2], sums);
    }
    end_slice();
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
    const int n_tiles = p.m / tile_m * (p.n / tile_n);
    for (int tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
        float sums[4][8][4] = {};
        int row, column;
        find_tile(p, tile, &row, &column);
        const loader l = loader_of(p, shared, row, column);
        for (int slice = 0; slice < n_stages - 1; slice++) {
            for (int part = 0; part < n_parts; part++)
                load_part(p, l, slice, part);
            end_slice();
        }
        for (int slice = 0; slice < p.k / tile_k; slice++) {
            asm volatile("cp.async.wait_group %0;" : : "n"(n_stages - 2));
            __syncthreads();
            multiply_slice(p, l, shared, slice, sums);
        }
        write_tile(p, row, column, sums);
        __syncthreads();
    }
}

} // namespace gemm

#endif
