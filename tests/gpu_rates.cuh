/* SPDX-License-Identifier: Apache-2.0 */
/* How fast the kernels seal and open, GPU memory to GPU memory, by the shape of the units. */
#ifndef KVX_TESTS_GPU_RATES_CUH
#define KVX_TESTS_GPU_RATES_CUH

#include "gpu_trip.cuh"

namespace
{

template <class F> double median_seconds(F launch)
{
    cudaEvent_t begin, end;
    std::vector<float> times;
    need(cudaEventCreate(&begin), "event");
    need(cudaEventCreate(&end), "event");
    for (int i = 0; i < 8; i++) {
        float ms = 0;
        need(cudaEventRecord(begin), "event");
        launch();
        need(cudaEventRecord(end), "event");
        need(cudaEventSynchronize(end), "event");
        need(cudaEventElapsedTime(&ms, begin, end), "event");
        if (i > 0)
            times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2] / 1e3;
}

/* HBM to HBM. */
void rate(scene &s, const char *what, uint32_t n_pairs, uint32_t n_tenants, uint32_t n_sms)
{
    const std::vector<kvx_work_pair> pairs = make_pairs(n_pairs, 0, n_tenants);
    const double gigabytes = n_pairs * 1e-9 * s.layouts[0].sealed_bytes;
    s.dev.n_sms = n_sms;
    const double seal = median_seconds([&] {
        kvx_work work = s.begin(pairs, false);
        need(kvx_launch_seal(&s.dev, &work, pairs.data(), nullptr), "seal");
    });
    store(s, pairs, "rates");
    const double open = median_seconds([&] {
        const kvx_work work = s.begin(pairs, false);
        need(kvx_launch_open(&s.dev, &work, pairs.data(), nullptr), "open");
    });
    printf("variant %u, %-26s %4u blocks, %u keys, %3u SMs: seal %6.1f GB/s (%7.1f us), open %6.1f GB/s (%7.1f us)\n",
           s.dev.variant, what, n_pairs, n_tenants, n_sms, gigabytes / seal, seal * 1e6, gigabytes / open, open * 1e6);
    fflush(stdout);
}

void rates_of(int variant, const char *what, uint32_t n_units, uint32_t unit_bytes, uint32_t piece_bytes)
{
    const segment_spec unit(unit_bytes / piece_bytes, lane_spec{piece_bytes, 1, piece_bytes});
    const uint32_t n_blocks = (1u << 30) / (n_units * unit_bytes) < 2000 ? (1u << 30) / (n_units * unit_bytes) : 2000;
    scene s({layout_spec(n_units, unit)}, n_blocks, n_blocks, variant);
    rate(s, what, n_blocks, 1, 132);
    rate(s, what, n_blocks, 8, 132);
    rate(s, what, n_blocks / 8, 1, 8);
    rate(s, what, 1, 1, 132);
}

void rates(int variant)
{
    rates_of(variant, "16 x 64 KiB, whole", 16, 65536, 65536);
    rates_of(variant, "64 x 64 KiB of 32 KiB", 64, 65536, 32768);
    rates_of(variant, "64 x 64 KiB of 16 KiB", 64, 65536, 16384);
    rates_of(variant, "16 x 256 KiB, whole", 16, 262144, 262144);
    rates_of(variant, "16 x 256 KiB of 16 KiB", 16, 262144, 16384);
    rates_of(variant, "1 x 64 KiB, whole", 1, 65536, 65536);
}

} // namespace

#endif
