/* SPDX-License-Identifier: Apache-2.0 */
/* The cipher and the hash alone, over the scene's memory as one row of contiguous units, all under key 0. */
#include <cstring>

#include "bench_crypt_scene.cuh"
#include "bench_gcm.h"
#include "kernels/measure.h"
#include "pattern.h"

namespace
{

constexpr uint64_t first_number = 0xffffff00u; /* the iv's words carry */

/* One unit of the output against OpenSSL. */
bool check_unit(const crypt_scene *s, crypt_op op, uint32_t unit)
{
    const uint64_t unit_bytes = s->shape.unit_bytes, out_bytes = op == CRYPT_CTR ? unit_bytes : BENCH_TAG_BYTES;
    std::vector<uint8_t> text(unit_bytes), expected(unit_bytes), found(out_bytes);
    uint8_t key[BENCH_KEY_BYTES], iv[BENCH_IV_BYTES], tag[BENCH_TAG_BYTES], *piece = text.data();
    const bench_message m = {&piece, 1, unit_bytes, expected.data(), iv, tag};
    for (uint64_t i = 0; i < unit_bytes / 8; i++) {
        const uint64_t word = pattern_word(s->b->settings.seed, unit * unit_bytes / 8 + i);
        memcpy(&text[i * 8], &word, 8);
    }
    if (!crypt_cuda_ok(cudaMemcpy(found.data(), s->dev_sealed + unit * out_bytes, out_bytes, cudaMemcpyDeviceToHost),
                       "read what was computed"))
        return false;
    crypt_key(0, key);
    crypt_iv(first_number + unit, iv);
    bench_gcm *gcm = bench_gcm_create(key);
    const bool done = gcm && (op == CRYPT_CTR ? bench_gcm_ctr(gcm, &m) : bench_gcm_ghash(gcm, &m));
    bench_gcm_destroy(gcm);
    if (done && memcmp(found.data(), op == CRYPT_CTR ? expected.data() : tag, out_bytes) != 0)
        bench_fail(s->b, "%s of unit %u is not what OpenSSL computes", op == CRYPT_CTR ? "ctr" : "ghash", unit);
    return done;
}

} // namespace

bool crypt_half_launch(crypt_scene *s, const crypt_case *c)
{
    kvx_measure measure = {};
    measure.keys = s->dev.keys;
    measure.from = s->dev_plain;
    measure.to = s->dev_sealed;
    measure.first_number = first_number;
    measure.unit_bytes = (uint32_t)s->shape.unit_bytes;
    measure.n_units = c->n_units;
    measure.n_sms = c->n_workers;
    measure.variant = s->dev.variant;
    if (c->op == CRYPT_CTR)
        return crypt_cuda_ok(kvx_measure_ctr(&measure, s->b->dev.stream), "counter mode");
    return crypt_cuda_ok(kvx_measure_ghash(&measure, s->b->dev.stream), "hash");
}

bool crypt_half_check(crypt_scene *s, const crypt_case *c)
{
    return check_unit(s, c->op, 0) && check_unit(s, c->op, c->n_units / 2) && check_unit(s, c->op, c->n_units - 1);
}
