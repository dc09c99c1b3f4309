/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels on a real GPU: every build, against OpenSSL bit by bit; what they must refuse; how fast they are.
 * Arguments, for compute-sanitizer: --short leaves out the long units and the rates, --tiny the many layouts as well.
 * --rates: nothing but rates; --checks: everything but rates; --cases N: N units of random shapes on each build;
 * --measure: the measurement kernels alone, which are no part of the library, so that they fail by themselves.
 * Exits 77 without a GPU. */
#include "gpu_rates.cuh"
#include "kernels/gcm.h"
#include "kernels/measure.h"

namespace
{

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

/* The two halves alone: cipher and hash of units under two keys, against the portable code. */
void test_measure(uint32_t variant, uint32_t n_units, uint32_t unit_bytes)
{
    scene s({{{{64, 1, 64}}}}, 1, 1, (int)variant);
    mirror<uint8_t> from, to, hashes;
    mirror<uint32_t> units_key;
    from.create((size_t)n_units * unit_bytes);
    to.create((size_t)n_units * unit_bytes);
    hashes.create(n_units * 16);
    units_key.create(n_units);
    for (size_t i = 0; i < from.host.size(); i++)
        from.host[i] = (uint8_t)(i * 7 + i / 251);
    for (uint32_t i = 0; i < n_units; i++)
        units_key.host[i] = i * i % 3;
    from.put();
    units_key.put();
    kvx_measure measure = {s.dev.keys, units_key.dev, from.dev, to.dev, 0xfffffffeu, unit_bytes, n_units, 2, variant};
    need(kvx_measure_ctr(&measure, nullptr), "ctr");
    measure.to = hashes.dev;
    need(kvx_measure_ghash(&measure, nullptr), "ghash");
    done();
    to.get();
    hashes.get();
    for (uint32_t i = 0; i < n_units; i++) {
        kvx_gcm_key key;
        uint8_t iv[12] = {0, 0, 0, 0}, *plain = &from.host[(size_t)i * unit_bytes];
        const bytes &k = s.keys[units_key.host[i]];
        kvx_store_be64(iv + 4, 0xfffffffeu + (uint64_t)i);
        const bytes expected = openssl_seal(k, iv, bytes(plain, plain + unit_bytes));
        check(memcmp(&to.host[(size_t)i * unit_bytes], expected.data(), unit_bytes) == 0, "counter mode alone");
        kvx_gcm_key_init(&key, k.data());
        kvx_gf hash = kvx_gcm_hash_padded(kvx_gf_zero(), key.h, plain, unit_bytes);
        hash = kvx_gf_mul(kvx_gf_xor(hash, kvx_gf{{0, 0, 0, unit_bytes * 8}}), key.h);
        uint8_t block[16];
        kvx_gf_store(block, hash);
        check(memcmp(&hashes.host[i * 16], block, 16) == 0, "GHASH alone");
    }
}

uint32_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (uint32_t)(*state >> 32);
}

/* A layout of up to 16 units of random lengths, now and then long ones, in random pieces. */
layout_spec random_layout(uint64_t *state)
{
    layout_spec spec(1 + next_random(state) % 16);
    for (segment_spec &segment : spec) {
        const uint32_t limit_log = 4 + next_random(state) % (next_random(state) % 64 == 0 ? 19 : 9);
        uint32_t left = 1 + next_random(state) % (1u << (limit_log - 3));
        while (left > 0) {
            const uint32_t words = 1 + next_random(state) % left, n_rows = segment.size() < 6 ? 1 : left / words;
            segment.push_back({words * 8, n_rows, words * 8 + next_random(state) % 3 * 8});
            left -= words * n_rows;
        }
    }
    return spec;
}

/* At least n units of random shapes under random keys, on random numbers of SMs, each against OpenSSL and back. */
void random_cases(int variant, uint64_t n, uint64_t state)
{
    for (uint64_t done_units = 0; done_units < n;) {
        const layout_spec spec = random_layout(&state);
        uint64_t spec_bytes = 0;
        for (const segment_spec &segment : spec)
            for (const lane_spec &lane : segment)
                spec_bytes += (uint64_t)lane.row_stride * lane.n_rows;
        const uint32_t n_pairs = 1 + next_random(&state) % (spec_bytes < (1u << 20) ? 64 : 4);
        scene s({spec}, n_pairs, n_pairs, variant);
        s.dev.n_sms = 1 + next_random(&state) % 132;
        round_trip(s, make_pairs(n_pairs, 0, 1 + next_random(&state) % 8), "random");
        done_units += spec.size() * n_pairs;
    }
    printf("variant %d: %llu random units at least, %d checks, %d failures so far\n", variant, (unsigned long long)n,
           n_checks, n_failures);
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
    const char *cases = argc > 2 && strcmp(argv[1], "--cases") == 0 ? argv[2] : nullptr;
    const bool tiny = argc > 1 && strcmp(argv[1], "--tiny") == 0;
    const bool brief = tiny || (argc > 1 && strcmp(argv[1], "--short") == 0);
    const bool only_rates = argc > 1 && strcmp(argv[1], "--rates") == 0;
    const bool only_measure = argc > 1 && strcmp(argv[1], "--measure") == 0;
    const bool only_checks = argc > 1 && strcmp(argv[1], "--checks") == 0;
    const char *require = getenv("KVX_REQUIRE_GPU");
    int n_devices = 0, largest = 0;
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
        printf("no GPU\n");
        return require && strcmp(require, "1") == 0 ? 1 : 77;
    }
    need(kvx_launch_prepare(KVX_VARIANT_AUTO, &largest), "prepare");
    for (int variant = largest; variant <= KVX_VARIANT_96K && cases; variant++)
        random_cases(variant, strtoull(cases, nullptr, 10), 88172645463325252u);
    for (int variant = largest; variant <= KVX_VARIANT_96K && only_measure; variant++) {
        test_measure((uint32_t)variant, 21, 4128);
        test_measure((uint32_t)variant, 90, 66016);
    }
    for (int variant = largest; variant <= KVX_VARIANT_96K && !only_rates && !only_measure && !cases; variant++)
        test_variant(variant, brief, tiny);
    test_flags();
    if (!brief && !only_checks && !only_measure && !cases)
        rates(largest);
    printf("%d passed, %d failed\n", n_checks - n_failures, n_failures);
    return n_failures == 0 ? 0 : 1;
}
