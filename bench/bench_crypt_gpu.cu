/* SPDX-License-Identifier: Apache-2.0 */
/* The sub-bench `crypt` on a GPU: launches between two events each, and what they computed held against OpenSSL. */
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

#include "bench_crypt_scene.cuh"
#include "bench_gcm.h"
#include "kernels/state.h"
#include "pattern.h"

namespace
{

constexpr uint32_t warm_ups = 2;

/* ------------------------------------------------------------------------------------------------------------- clock
 */

/* Cycles and time of each multiprocessor that a CTA comes to. */
__global__ void stamp_kernel(crypt_stamp *stamps)
{
    uint32_t sm;
    crypt_stamp stamp;
    asm("mov.u32 %0, %%smid;" : "=r"(sm));
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(stamp.nanoseconds));
    stamp.clock = (unsigned long long)clock64();
    if (sm < CRYPT_SMS_MAX && threadIdx.x == 0)
        reinterpret_cast<ulonglong2 *>(stamps)[sm] = make_ulonglong2(stamp.clock, stamp.nanoseconds);
}

bool stamp(crypt_scene *s, uint32_t which)
{
    stamp_kernel<<<4 * CRYPT_SMS_MAX, 32, 0, s->b->dev.stream>>>(s->dev_stamps + which * CRYPT_SMS_MAX);
    return crypt_cuda_ok(cudaGetLastError(), "read the clocks");
}

/* The median over the multiprocessors of cycles by time between the two stamps. */
double clock_between(const crypt_scene *s)
{
    std::vector<crypt_stamp> stamps(2 * CRYPT_SMS_MAX);
    std::vector<double> hz;
    if (cudaMemcpy(stamps.data(), s->dev_stamps, stamps.size() * sizeof(crypt_stamp), cudaMemcpyDeviceToHost))
        return 0;
    for (uint32_t i = 0; i < CRYPT_SMS_MAX; i++) {
        const crypt_stamp &begin = stamps[i], &end = stamps[CRYPT_SMS_MAX + i];
        if (begin.nanoseconds != 0 && end.nanoseconds > begin.nanoseconds)
            hz.push_back((double)(end.clock - begin.clock) * 1e9 / (double)(end.nanoseconds - begin.nanoseconds));
    }
    std::sort(hz.begin(), hz.end());
    return hz.empty() ? 0 : hz[hz.size() / 2];
}

/* ---------------------------------------------------------------------------------------------------------- launches
 */

struct launch_plan {
    crypt_scene *scene;
    const crypt_case *c;
    uint32_t layout;
    std::vector<kvx_work_pair> pairs;
};

launch_plan plan_of(crypt_scene *s, const crypt_case *c)
{
    const uint32_t layout = c->few ? CRYPT_LAYOUT_FEW : CRYPT_LAYOUT_RATES;
    const uint32_t n = c->few ? c->n_units : c->n_units / CRYPT_BLOCK_UNITS;
    s->dev.n_sms = c->n_workers;
    return {s, c, layout, crypt_pairs(layout, n, c->n_keys)};
}

bool launch(const launch_plan &p, crypt_op op, kvx_work *work)
{
    crypt_scene *s = p.scene;
    if (op == CRYPT_CTR || op == CRYPT_GHASH)
        return crypt_half_launch(s, p.c);
    *work = crypt_work_next(s, p.layout, (uint32_t)p.pairs.size());
    if (op == CRYPT_OPEN)
        return crypt_cuda_ok(kvx_launch_open(&s->dev, work, p.pairs.data(), s->b->dev.stream), "open");
    return crypt_cuda_ok(kvx_launch_seal(&s->dev, work, p.pairs.data(), s->b->dev.stream), "seal");
}

bool verdicts_are_ok(const launch_plan &p, const kvx_work &work, const char *what)
{
    const crypt_scene *s = p.scene;
    uint32_t n_bad = 0;
    if (!crypt_cuda_ok(cudaStreamSynchronize(s->b->dev.stream), what))
        return false;
    for (uint32_t i = 0; i < p.pairs.size(); i++)
        n_bad += kvx_result_read(s->words.prf_key, work.ticket, i, s->results[i]) != KVX_VERDICT_OK;
    if (n_bad)
        bench_fail(s->b, "%s: %u of %u blocks have no good verdict", what, n_bad, (uint32_t)p.pairs.size());
    return true;
}

/* Seals and makes the slots readable, as a store does. */
bool store(const launch_plan &p)
{
    crypt_scene *s = p.scene;
    kvx_work work;
    return launch(p, CRYPT_SEAL, &work) &&
           crypt_cuda_ok(kvx_launch_commit(&s->dev, &work, p.pairs.data(), s->b->dev.stream), "commit") &&
           verdicts_are_ok(p, work, "seal");
}

/* ------------------------------------------------------------------------------------------------------------ checks
 */

/* By CTA i: the words of lane i's first piece_words * n_blocks that are not the pattern. */
__global__ void check_kernel(const uint64_t *plain, uint64_t lane_words, uint64_t n_words, uint64_t seed,
                             unsigned long long *n_wrong)
{
    const uint64_t first = blockIdx.x * lane_words;
    unsigned long long wrong = 0;
    for (uint64_t i = threadIdx.x; i < n_words; i += blockDim.x)
        wrong += plain[first + i] != pattern_word(seed, first + i);
    if (wrong)
        atomicAdd(n_wrong, wrong);
}

bool compare_plain(const launch_plan &p)
{
    const crypt_scene *s = p.scene;
    const uint32_t n_lanes = p.layout == CRYPT_LAYOUT_FEW ? s->n_pieces : CRYPT_BLOCK_UNITS * s->n_pieces;
    const uint64_t piece_words = s->shape.piece_bytes / 8;
    unsigned long long *dev_wrong = static_cast<unsigned long long *>(s->b->dev.dev_counters), wrong = 0;
    cudaStream_t stream = s->b->dev.stream;
    if (!crypt_cuda_ok(cudaMemsetAsync(dev_wrong, 0, sizeof wrong, stream), "clear a counter"))
        return false;
    check_kernel<<<n_lanes, 1024, 0, stream>>>(reinterpret_cast<const uint64_t *>(s->dev_plain),
                                               piece_words * s->n_blocks, piece_words * p.pairs.size(),
                                               s->b->settings.seed, dev_wrong);
    if (!crypt_cuda_ok(cudaMemcpyAsync(&wrong, dev_wrong, sizeof wrong, cudaMemcpyDefault, stream), "compare") ||
        !crypt_cuda_ok(cudaStreamSynchronize(stream), "compare"))
        return false;
    if (wrong)
        bench_fail(s->b, "%llu words differ after seal and open", wrong);
    return true;
}

/* The plaintext of a unit, from the pattern alone. */
std::vector<uint8_t> plain_of(const crypt_scene *s, uint32_t block, uint32_t unit)
{
    const uint64_t piece_bytes = s->shape.piece_bytes;
    std::vector<uint8_t> plain(s->shape.unit_bytes);
    for (uint64_t at = 0; at < plain.size(); at += 8) {
        const uint64_t lane = unit * s->n_pieces + at / piece_bytes;
        const uint64_t word =
            pattern_word(s->b->settings.seed, ((lane * s->n_blocks + block) * piece_bytes + at % piece_bytes) / 8);
        memcpy(&plain[at], &word, 8);
    }
    return plain;
}

/* One sealed unit, its bytes and its tag, against OpenSSL. */
bool check_unit(const launch_plan &p, uint32_t block, uint32_t unit)
{
    const crypt_scene *s = p.scene;
    const uint64_t unit_bytes = s->shape.unit_bytes, per_block = p.layout == CRYPT_LAYOUT_FEW ? 1 : CRYPT_BLOCK_UNITS;
    std::vector<uint8_t> plain = plain_of(s, block, unit), sealed(unit_bytes), expected(unit_bytes);
    uint8_t key[BENCH_KEY_BYTES], iv[BENCH_IV_BYTES], tag[BENCH_TAG_BYTES], *piece = plain.data();
    const uint32_t fixed = __builtin_bswap32(s->words.fixed_field);
    const bench_message m = {&piece, 1, unit_bytes, expected.data(), iv, tag};
    kvx_record record;
    if (!crypt_cuda_ok(cudaMemcpy(&record, &s->dev.records[block * CRYPT_BLOCK_UNITS + unit], sizeof record,
                                  cudaMemcpyDeviceToHost),
                       "read a record") ||
        !crypt_cuda_ok(cudaMemcpy(sealed.data(), s->dev_sealed + (block * per_block + unit) * unit_bytes, unit_bytes,
                                  cudaMemcpyDeviceToHost),
                       "read a sealed unit"))
        return false;
    crypt_key(p.pairs[block].tenant, key);
    crypt_iv(record.sequence, iv);
    memcpy(iv, &fixed, 4);
    bench_gcm *gcm = bench_gcm_create(key);
    const bool done = gcm && bench_gcm_seal(gcm, &m);
    bench_gcm_destroy(gcm);
    if (done && (memcmp(tag, record.tag, sizeof tag) != 0 || sealed != expected))
        bench_fail(s->b, "unit %u of block %u is not what OpenSSL seals", unit, block);
    return done;
}

/* The first and last blocks, a unit each; then everything opened over zeros and compared. */
bool check(const launch_plan &p)
{
    crypt_scene *s = p.scene;
    const uint32_t last = (uint32_t)p.pairs.size() - 1, last_unit = p.layout == CRYPT_LAYOUT_FEW ? 0 : 15;
    kvx_work work;
    if (p.c->op == CRYPT_CTR || p.c->op == CRYPT_GHASH)
        return crypt_half_check(s, p.c);
    return store(p) && check_unit(p, 0, 0) && check_unit(p, last, last_unit) &&
           crypt_cuda_ok(cudaMemsetAsync(s->dev_plain, 0, s->shape.n_units * s->shape.unit_bytes, s->b->dev.stream),
                         "clear the plaintext") &&
           launch(p, CRYPT_OPEN, &work) && verdicts_are_ok(p, work, "open") && compare_plain(p);
}

/* ----------------------------------------------------------------------------------------------------------- measure
 */

/* Events carry the time of each launch. */
bool time_launches(const launch_plan &p, std::vector<cudaEvent_t> &events, double *clock_hz)
{
    cudaStream_t stream = p.scene->b->dev.stream;
    kvx_work work;
    for (uint32_t i = 0; i < warm_ups; i++)
        if (!launch(p, p.c->op, &work))
            return false;
    if (!stamp(p.scene, 0))
        return false;
    for (uint32_t i = 0; i < p.c->n_samples; i++)
        if (!crypt_cuda_ok(cudaEventRecord(events[2 * i], stream), "event") || !launch(p, p.c->op, &work) ||
            !crypt_cuda_ok(cudaEventRecord(events[2 * i + 1], stream), "event"))
            return false;
    if (!stamp(p.scene, 1) || !crypt_cuda_ok(cudaStreamSynchronize(stream), "run the kernels"))
        return false;
    *clock_hz = clock_between(p.scene);
    return true;
}

bool measure(const launch_plan &p, bench_samples *seconds, double *clock_hz)
{
    std::vector<cudaEvent_t> events(2 * p.c->n_samples);
    bool done = true;
    for (cudaEvent_t &event : events)
        done = crypt_cuda_ok(cudaEventCreate(&event), "create an event") && done;
    done = done && time_launches(p, events, clock_hz);
    for (uint32_t i = 0; done && i < p.c->n_samples; i++) {
        float ms = 0;
        done = crypt_cuda_ok(cudaEventElapsedTime(&ms, events[2 * i], events[2 * i + 1]), "read an event");
        bench_samples_add(seconds, ms * 1e-3);
    }
    for (cudaEvent_t event : events)
        cudaEventDestroy(event);
    return done;
}

bool run(crypt_scene *s, const crypt_case *c, bench_samples *seconds, double *clock_hz)
{
    const launch_plan p = plan_of(s, c);
    if (!device_fill(&s->b->dev, s->dev_plain, s->shape.n_units * s->shape.unit_bytes, s->b->settings.seed, 0))
        return false;
    return (c->op != CRYPT_OPEN || store(p)) && measure(p, seconds, clock_hz) && check(p);
}

void close_scene(crypt_scene *s)
{
    crypt_scene_free(s);
    delete s;
}

bool open_scene(bench *b, const crypt_shape *shape, crypt_scene **made)
{
    crypt_scene *s = new (std::nothrow) crypt_scene();
    if (!s)
        return false;
    s->b = b;
    s->shape = *shape;
    if (!crypt_scene_make(s)) {
        close_scene(s);
        return false;
    }
    *made = s;
    return true;
}

bool has(crypt_op op)
{
    return op < CRYPT_N_OPS;
}

uint32_t most_workers(bench *b)
{
    int n = 0;
    return crypt_cuda_ok(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, b->dev.ordinal), "count SMs")
               ? (uint32_t)n
               : 0;
}

} // namespace

const crypt_backend crypt_gpu = {"sms", most_workers, has, open_scene, run, close_scene};
