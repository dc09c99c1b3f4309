/* SPDX-License-Identifier: Apache-2.0 */
/* Stores and restores of a scene, each result compared bit by bit with what OpenSSL says. */
#ifndef KVX_TESTS_GPU_TRIP_CUH
#define KVX_TESTS_GPU_TRIP_CUH

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

} // namespace

#endif
