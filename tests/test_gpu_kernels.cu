/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels on a real GPU: every build, against OpenSSL bit by bit; what they must refuse; how fast they are.
 * Arguments, for compute-sanitizer: --short leaves out the long units and the rates, --tiny the many layouts as well.
 * --rates: nothing but rates; --checks: everything but rates. Exits 77 without a GPU. */
#include <algorithm>

#include "gpu_scene.cuh"

namespace
{

int n_checks, n_failures;

void check(bool good, const char *what, const char *where = "")
{
    n_checks++;
    if (good)
        return;
    if (n_failures++ < 40)
        printf("FAILED: %s %s\n", what, where);
}

void done()
{
    need(cudaDeviceSynchronize(), "kernels");
}

std::vector<kvx_work_pair> make_pairs(uint32_t n, uint32_t layout, uint32_t n_tenants)
{
    std::vector<kvx_work_pair> pairs;
    for (uint32_t i = 0; i < n; i++)
        pairs.push_back({i, i, 9, (uint8_t)layout, 0, (uint16_t)(i % n_tenants)});
    return pairs;
}

void check_verdicts(const scene &s, const kvx_work &work, uint32_t expected, const char *where)
{
    for (uint32_t i = 0; i < work.n_pairs; i++)
        check(s.verdict(work, i) == expected, "verdict", where);
}

/* Every unit of every pair, at sealed + pair * stride, must be what OpenSSL makes of it under the record's iv. */
void check_sealed(scene &s, const kvx_work &work, const std::vector<kvx_work_pair> &pairs, const uint8_t *sealed,
                  const char *where)
{
    s.records.get();
    for (size_t i = 0; i < pairs.size(); i++) {
        const layout_view &view = s.layouts[pairs[i].layout];
        for (uint32_t u = 0; u < view.segments.size(); u++) {
            const kvx_record &record = s.records.host[pairs[i].slot * s.max_units + u];
            uint8_t iv[12];
            kvx_store_be32(iv, s.words.host[0].fixed_field);
            kvx_store_be64(iv + 4, record.sequence);
            const bytes plain = s.plain_of(s.arena.host, pairs[i].layout, u, pairs[i].block);
            const bytes expected = openssl_seal(s.keys[pairs[i].tenant], iv, plain);
            const uint8_t *at = sealed + i * s.slot_bytes + view.segments[u].slot_offset;
            check(record.store_id == work.store_id, "record's store id", where);
            check(memcmp(at, expected.data(), plain.size()) == 0, "ciphertext", where);
            check(memcmp(record.tag, expected.data() + plain.size(), 16) == 0, "tag", where);
        }
    }
}

/* Opens over a canary. What came back must be the plaintext in the rows of units that are good, zero in the rows of the
 * others, and the canary everywhere else. good(pair, unit) */
template <class F>
kvx_work open_and_compare(scene &s, const std::vector<kvx_work_pair> &pairs, F good, const char *where)
{
    bytes original = s.arena.host, expected(original.size(), scene::canary);
    kvx_work work = s.begin(pairs, false);
    s.arena.host = expected;
    s.arena.put();
    need(kvx_launch_open(&s.dev, &work, pairs.data(), nullptr), "open");
    done();
    s.arena.get();
    for (size_t i = 0; i < pairs.size(); i++)
        for (uint32_t u = 0; u < s.layouts[pairs[i].layout].segments.size(); u++) {
            const bool filled = good(i, u);
            s.each_row(pairs[i].layout, u, pairs[i].block, [&](uint32_t, uint64_t at, uint32_t n) {
                if (filled)
                    memcpy(&expected[at], &original[at], n);
                else
                    memset(&expected[at], 0, n);
            });
        }
    check(s.arena.host == expected, "opened bytes", where);
    s.arena.host = original;
    s.arena.put();
    return work;
}

bool all_good(size_t, uint32_t)
{
    return true;
}

bool none_good(size_t, uint32_t)
{
    return false;
}

/* Seals into the ring and commits. */
kvx_work store(scene &s, const std::vector<kvx_work_pair> &pairs, const char *where)
{
    kvx_work work = s.begin(pairs, false);
    work.released_result = scene::n_entries + 1;
    s.ring.host.assign(s.ring.host.size(), 0);
    s.ring.put();
    need(kvx_launch_seal(&s.dev, &work, pairs.data(), nullptr), "seal");
    need(kvx_launch_commit(&s.dev, &work, pairs.data(), nullptr), "commit");
    done();
    check(kvx_result_read(s.words.host[0].prf_key, work.ticket, KVX_RESULT_RELEASED, s.results[work.released_result]) ==
              KVX_VERDICT_OK,
          "released word", where);
    s.ring.get();
    return work;
}

void round_trip(scene &s, const std::vector<kvx_work_pair> &pairs, const char *where)
{
    kvx_work work = store(s, pairs, where);
    check_verdicts(s, work, KVX_VERDICT_OK, where);
    check_sealed(s, work, pairs, s.ring.host.data(), where);
    work = open_and_compare(s, pairs, all_good, where);
    check_verdicts(s, work, KVX_VERDICT_OK, where);
    s.entries.get();
    for (const kvx_entry &entry : s.entries.host)
        check(entry.n_done == 0 && entry.verdict == 0, "entry reset", where);
}

/* Straight into the mapped pool; opened from a copy of it in the ring. */
void direct_round_trip(scene &s, const std::vector<kvx_work_pair> &pairs)
{
    kvx_work work = s.begin(pairs, true);
    work.commit = 1;
    need(kvx_launch_seal(&s.dev, &work, pairs.data(), nullptr), "seal");
    done();
    check_verdicts(s, work, KVX_VERDICT_OK, "direct");
    check_sealed(s, work, pairs, s.pool, "direct");
    memcpy(s.ring.host.data(), s.pool, s.ring.host.size());
    s.ring.put();
    open_and_compare(s, pairs, all_good, "direct");
}

/* Units of all lengths up to 2400 bytes, so of all positions of the padding and of the last tile. */
layout_spec every_length(uint32_t n)
{
    layout_spec spec;
    for (uint32_t i = 1; i <= n; i++)
        spec.push_back({{8 * i, 1, 8 * i}});
    return spec;
}

layout_spec odd_layout()
{
    segment_spec small_lanes;
    for (uint32_t i = 0; i < 200; i++)
        small_lanes.push_back({8 * (i % 7 + 1), i % 3 + 1, 64});
    return {{{656, 16, 704}, {656, 16, 704}},
            {{656, 9, 664}, {132 * 64, 1, 132 * 64}},
            small_lanes,
            {{4096, 2, 8192}, {8, 3, 16}, {16, 5, 32}},
            {{64, 40, 128}}};
}

/* With one SM, n units of equal length get 16 / n warps each. */
void test_shapes(int variant, bool brief)
{
    const uint32_t length = brief ? 3000 : 33000;
    scene s({{{{length / 16 * 16, 1, length}}}}, 40, 40, variant);
    for (uint32_t n_sms : {1u, 3u})
        for (uint32_t n : {1u, 2u, 3u, 4u, 7u, 8u, 16u, 40u}) {
            s.dev.n_sms = n_sms;
            round_trip(s, make_pairs(n, 0, 1), "warps per unit");
        }
}

void test_layouts(int variant, bool brief)
{
    scene s({every_length(brief ? 40 : 300), odd_layout()}, 6, 6, variant);
    round_trip(s, make_pairs(6, 0, 1), "every length");
    round_trip(s, make_pairs(6, 1, 1), "odd layout");
    std::vector<kvx_work_pair> mixed = make_pairs(6, 0, 8);
    for (size_t i = 0; i < mixed.size(); i += 2)
        mixed[i].layout = 1;
    round_trip(s, mixed, "layouts and keys mixed");
    direct_round_trip(s, mixed);
    s.dev.n_sms = 2;
    round_trip(s, mixed, "layouts and keys mixed, two SMs");
}

/* Counters cross 2^8 and 2^16 blocks. */
void test_long_units(int variant)
{
    const uint32_t mib = 1u << 20;
    scene s({{{{4096 + 32, 1, 8192}}, {{mib - 32, 1, mib}}, {{mib + 64, 1, 2 * mib}}, {{mib / 2, 5, mib}}}}, 2, 2,
            variant);
    round_trip(s, make_pairs(2, 0, 2), "long units");
    s.dev.n_sms = 1;
    round_trip(s, make_pairs(2, 0, 1), "long units, one SM");
}

/* The longest unit there may be. */
void test_longest_unit(int variant)
{
    scene s({{{{KVX_UNIT_BYTES_LIMIT, 1, KVX_UNIT_BYTES_LIMIT}}}}, 1, 1, variant);
    round_trip(s, make_pairs(1, 0, 1), "64 MiB");
}

/* Keys mixed in larger numbers than a round holds. */
void test_many(int variant)
{
    scene s({{{{2048, 1, 2048}}, {{1000, 1, 1000}}}}, 300, 300, variant);
    round_trip(s, make_pairs(300, 0, 8), "300 pairs, 8 keys");
    s.dev.n_sms = 4;
    round_trip(s, make_pairs(300, 0, 8), "300 pairs, 8 keys, 4 SMs");
    round_trip(s, make_pairs(300, 0, 1), "300 pairs, 4 SMs");
}

/* One byte of the middle unit of each block is changed, a different one in each. */
void test_tampering(int variant)
{
    scene s({{{{40, 1, 40}}, {{96, 1, 96}}, {{8, 1, 8}}}}, 112, 112, variant);
    const std::vector<kvx_work_pair> pairs = make_pairs(112, 0, 1);
    store(s, pairs, "tampering");
    s.records.get();
    for (uint32_t i = 0; i < 96; i++)
        s.ring.host[i * s.slot_bytes + 64 + i] ^= (uint8_t)(1 << i % 8);
    for (uint32_t i = 96; i < 112; i++)
        s.records.host[i * 3 + 1].tag[i - 96] ^= 0x80;
    s.ring.put();
    s.records.put();
    const kvx_work work = open_and_compare(
        s, pairs, [](size_t, uint32_t u) { return u != 1; }, "tampering");
    check_verdicts(s, work, KVX_VERDICT_TAMPERED, "tampering");
    s.words.get();
    check(s.words.host[0].tampered == 112 && s.words.host[0].latch == 0, "blocks counted", "tampering");
}

void test_latch(int variant)
{
    scene s({{{{64, 1, 64}}, {{64, 1, 64}}}}, 2, 2, variant);
    const std::vector<kvx_work_pair> pairs = make_pairs(2, 0, 1), first = make_pairs(1, 0, 1);
    store(s, pairs, "latch");
    s.words.get();
    s.words.host[0].tamper_budget = 0;
    s.words.put();
    s.ring.host[0] ^= 1;
    s.ring.put();
    kvx_work work = open_and_compare(
        s, first, [](size_t, uint32_t u) { return u == 1; }, "latch");
    check_verdicts(s, work, KVX_VERDICT_TAMPERED, "latch");
    work = open_and_compare(s, pairs, none_good, "latched");
    check_verdicts(s, work, KVX_VERDICT_LATCHED, "latched open");
    const bytes before = s.ring.host;
    work = s.begin(pairs, false);
    need(kvx_launch_seal(&s.dev, &work, pairs.data(), nullptr), "seal");
    need(kvx_launch_commit(&s.dev, &work, pairs.data(), nullptr), "commit");
    done();
    s.ring.get();
    check_verdicts(s, work, KVX_VERDICT_LATCHED, "latched seal");
    const size_t covered = pairs.size() * work.staged_stride;
    bytes expected = before;
    std::fill(expected.begin(), expected.begin() + (long)covered, (uint8_t)0);
    check(s.ring.host == expected, "nothing is sealed, zeros are left", "latched");
}

/* One open that must end with `expected` and zeroes. */
void refused(scene &s, kvx_work_pair pair, uint32_t expected, const char *where)
{
    const kvx_work work = open_and_compare(s, {pair}, none_good, where);
    check_verdicts(s, work, expected, where);
}

void test_states(int variant)
{
    scene s({{{{64, 1, 64}}, {{72, 1, 72}}}, {{{64, 1, 64}}}}, 4, 4, variant);
    const std::vector<kvx_work_pair> pairs = make_pairs(4, 0, 4);
    refused(s, pairs[0], KVX_VERDICT_MISS, "empty slot");
    store(s, pairs, "states");
    refused(s, {0, 0, 8, 0, 0, 0}, KVX_VERDICT_STALE, "generation");
    refused(s, {0, 0, 9, 0, 0, 1}, KVX_VERDICT_REFUSED, "tenant");
    refused(s, {0, 0, 9, 1, 0, 0}, KVX_VERDICT_REFUSED, "layout");
    refused(s, {0, 0, 9, 0, KVX_VERDICT_STALE, 0}, KVX_VERDICT_STALE, "refusal of the host");
    kvx_work work = s.begin({pairs[1]}, false);
    need(kvx_launch_discard(&s.dev, &work, &pairs[1], nullptr), "discard");
    done();
    check_verdicts(s, work, KVX_VERDICT_OK, "discard");
    refused(s, pairs[1], KVX_VERDICT_MISS, "discarded");
    s.headers.get();
    s.headers.host[2].word = kvx_word(s.store_id, KVX_SLOT_WRITING);
    s.headers.put();
    refused(s, pairs[2], KVX_VERDICT_BUSY, "slot that is being written");
    need(kvx_launch_key_wipe((kvx_key_slot *)s.key_slots.dev, 3, 1, 0x1111222233334444u, nullptr), "wipe");
    done();
    refused(s, pairs[3], KVX_VERDICT_MISS, "key that was wiped");
    work = s.begin({pairs[3]}, true);
    work.commit = 1;
    need(kvx_launch_seal(&s.dev, &work, &pairs[3], nullptr), "seal");
    done();
    check_verdicts(s, work, KVX_VERDICT_REFUSED, "seal with a key that was wiped");
    check(std::all_of(s.pool, s.pool + s.n_slots * s.slot_bytes, [](uint8_t b) { return b == 0; }), "pool untouched");
}

void test_supersede(int variant)
{
    scene s({{{{64, 1, 64}}}}, 1, 1, variant);
    const std::vector<kvx_work_pair> pairs = make_pairs(1, 0, 1);
    kvx_work older = s.begin(pairs, false);
    kvx_work newer = store(s, pairs, "supersede");
    check_verdicts(s, newer, KVX_VERDICT_OK, "newer store");
    s.ring.get();
    const bytes newest = s.ring.host; /* the refused store clears its place in the chunk, which is the same here */
    need(kvx_launch_seal(&s.dev, &older, pairs.data(), nullptr), "seal");
    need(kvx_launch_commit(&s.dev, &older, pairs.data(), nullptr), "commit");
    done();
    check_verdicts(s, older, KVX_VERDICT_SUPERSEDED, "older store");
    s.ring.host = newest;
    s.ring.put();
    newer = open_and_compare(s, pairs, all_good, "supersede");
    check_verdicts(s, newer, KVX_VERDICT_OK, "newer store stays");
}

/* Pairs out of range: FAULT, and not a byte of anything changes (but the tensors of a block whose slot is wrong). */
void test_faults(int variant)
{
    scene s({{{{64, 1, 64}}, {{64, 1, 64}}}}, 2, 2, variant);
    const std::vector<kvx_work_pair> pairs = {
        {2, 0, 9, 0, 0, 0}, {0, 0, 9, 7, 0, 0}, {UINT32_MAX, 0, 9, 0, 0, 0}, {0, UINT32_MAX, 9, 9, 0, 0xffff}};
    const std::vector<kvx_work_pair> bad_slots = {{0, 2, 9, 0, 0, 0}, {1, 0, 9, 0, 0, 8}};
    const bytes tensors = s.arena.host;
    for (int direct = 0; direct < 2; direct++) {
        std::vector<kvx_work_pair> all = pairs;
        all.insert(all.end(), bad_slots.begin(), bad_slots.end());
        kvx_work work = s.begin(all, direct);
        work.commit = (uint32_t)direct;
        need(kvx_launch_seal(&s.dev, &work, all.data(), nullptr), "seal");
        if (!direct)
            need(kvx_launch_commit(&s.dev, &work, all.data(), nullptr), "commit");
        done();
        check_verdicts(s, work, KVX_VERDICT_FAULT, "seal");
    }
    kvx_work work = s.begin(pairs, false);
    need(kvx_launch_open(&s.dev, &work, pairs.data(), nullptr), "open");
    done();
    check_verdicts(s, work, KVX_VERDICT_FAULT, "open");
    s.arena.get();
    s.ring.get();
    s.headers.get();
    check(s.arena.host == tensors, "tensors untouched", "faults");
    check(std::all_of(s.ring.host.begin(), s.ring.host.end(), [](uint8_t b) { return b == 0; }), "ring untouched");
    check(s.headers.host[0].word == 0 && s.headers.host[1].word == 0, "headers untouched", "faults");
    work = open_and_compare(s, bad_slots, none_good, "bad slots");
    check_verdicts(s, work, KVX_VERDICT_FAULT, "bad slots");
}

void test_flags()
{
    mirror<uint32_t> flags;
    flags.create(200);
    need(kvx_launch_flags(flags.dev, 3, 150, 7, nullptr), "flags");
    done();
    flags.get();
    for (uint32_t i = 0; i < 200; i++)
        check(flags.host[i] == (i >= 3 && i < 153 ? 7u : 0u), "flag");
}

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

/* Blocks of units of 64 KiB, each of two pieces of 32 KiB; HBM to HBM. */
void rate(scene &s, uint32_t n_pairs, uint32_t n_tenants)
{
    const std::vector<kvx_work_pair> pairs = make_pairs(n_pairs, 0, n_tenants);
    const double gigabytes = n_pairs * 65536e-9 * s.max_units;
    const double seal = median_seconds([&] {
        kvx_work work = s.begin(pairs, false);
        need(kvx_launch_seal(&s.dev, &work, pairs.data(), nullptr), "seal");
    });
    store(s, pairs, "rates");
    const double open = median_seconds([&] {
        const kvx_work work = s.begin(pairs, false);
        need(kvx_launch_open(&s.dev, &work, pairs.data(), nullptr), "open");
    });
    printf("variant %u, %4u blocks of %2u units, %u keys: seal %6.1f GB/s (%7.1f us), open %6.1f GB/s (%7.1f us)\n",
           s.dev.variant, n_pairs, s.max_units, n_tenants, gigabytes / seal, seal * 1e6, gigabytes / open, open * 1e6);
}

void rates(int variant)
{
    const segment_spec unit(2, lane_spec{32768, 1, 32768});
    scene tall({layout_spec(16, unit)}, 1024, 1024, variant), flat({layout_spec(1, unit)}, 2000, 2000, variant);
    for (uint32_t n_tenants : {1u, 8u}) {
        for (uint32_t n : {1024u, 64u, 4u})
            rate(tall, n, n_tenants);
        for (uint32_t n : {2000u, 64u, 1u})
            rate(flat, n, n_tenants);
    }
}

void test_variant(int variant, bool brief, bool tiny)
{
    const int before = n_checks;
    test_shapes(variant, brief);
    if (!tiny)
        test_layouts(variant, brief);
    test_tampering(variant);
    test_latch(variant);
    test_states(variant);
    test_supersede(variant);
    test_faults(variant);
    if (!brief) {
        test_many(variant);
        test_long_units(variant);
        test_longest_unit(variant);
    }
    printf("variant %d: %d checks, %d failures so far\n", variant, n_checks - before, n_failures);
    fflush(stdout);
}

} // namespace

int main(int argc, char **argv)
{
    const bool tiny = argc > 1 && strcmp(argv[1], "--tiny") == 0;
    const bool brief = tiny || (argc > 1 && strcmp(argv[1], "--short") == 0);
    const bool only_rates = argc > 1 && strcmp(argv[1], "--rates") == 0;
    const bool only_checks = argc > 1 && strcmp(argv[1], "--checks") == 0;
    const char *require = getenv("KVX_REQUIRE_GPU");
    int n_devices = 0, largest = 0;
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
        printf("no GPU\n");
        return require && strcmp(require, "1") == 0 ? 1 : 77;
    }
    need(kvx_launch_prepare(KVX_VARIANT_AUTO, &largest), "prepare");
    for (int variant = largest; variant <= KVX_VARIANT_96K && !only_rates; variant++)
        test_variant(variant, brief, tiny);
    test_flags();
    if (!brief && !only_checks)
        for (int variant = largest; variant <= KVX_VARIANT_96K; variant++)
            rates(variant);
    printf("%d passed, %d failed\n", n_checks - n_failures, n_failures);
    return n_failures == 0 ? 0 : 1;
}
