/* SPDX-License-Identifier: Apache-2.0 */
/* One check for every implementation, in three batches of plain seal and open requests. First, sealing the ciphertext
 * recovers the plaintext, since counter mode is its own inverse. Second, sealing the plaintext must give the
 * ciphertext, and a tag that begins with the file's one exactly if the case is valid. Third, opening must accept or
 * refuse as the file says, and leave the plaintext or zeroes. kvx knows full tags only; a shorter one in the file is
 * completed with the bytes computed in the second batch. */
#include "kat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/gcm.h"
#include "src/engine_cpu_gcm.h"

enum { FILLING = 0xaa };

/* A case while it is checked. */
struct trial {
    const struct kat_case *c;
    uint8_t *recovered, *sealed, *opened; /* parts of one allocation */
    uint8_t tag[16];
    const char *wrong; /* first complaint */
};

static void complain(struct trial *t, const char *what)
{
    if (t->wrong == NULL)
        t->wrong = what;
}

static int same(const uint8_t *a, const uint8_t *b, size_t n)
{
    return n == 0 || memcmp(a, b, n) == 0;
}

/* The plaintext that the file gives, or that was recovered. */
static const uint8_t *plain_of(const struct trial *t)
{
    return t->c->valid ? t->c->plain.data : t->recovered;
}

static struct kat_request request_of(const struct trial *t, const uint8_t *in, uint8_t *out, int opens)
{
    struct kat_request r;
    memset(&r, 0, sizeof r);
    r.key = t->c->key.data;
    r.iv = t->c->iv.data;
    r.aad = t->c->aad.data;
    r.aad_bytes = t->c->aad.bytes;
    r.in = in;
    r.out = out;
    r.bytes = t->c->cipher.bytes;
    r.opens = opens;
    r.result = -1;
    return r;
}

static void prepare(struct trial *t, struct kat_request *r, int batch)
{
    if (batch == 0) {
        *r = request_of(t, t->c->cipher.data, t->recovered, 0);
    } else if (batch == 1) {
        *r = request_of(t, plain_of(t), t->sealed, 0);
    } else {
        *r = request_of(t, t->c->cipher.data, t->opened, 1);
        memcpy(r->tag, t->tag, 16);
        memcpy(r->tag, t->c->tag.data, t->c->tag.bytes);
    }
}

static void judge_sealed(struct trial *t, const struct kat_request *r)
{
    memcpy(t->tag, r->tag, 16);
    if (!same(t->sealed, t->c->cipher.data, r->bytes))
        complain(t, "ciphertext");
    if (same(t->tag, t->c->tag.data, t->c->tag.bytes) != t->c->valid)
        complain(t, "tag");
}

static void judge_opened(struct trial *t, const struct kat_request *r)
{
    if (r->result != t->c->valid)
        complain(t, t->c->valid ? "refused what is valid" : "accepted what is invalid");
    if (t->c->valid && !same(t->opened, t->c->plain.data, r->bytes))
        complain(t, "opened plaintext");
    for (size_t i = 0; !t->c->valid && i < r->bytes; i++)
        if (t->opened[i] != 0)
            complain(t, "output of a refused message is not zeroed");
}

static void judge(struct trial *t, const struct kat_request *r, int batch)
{
    if (r->result < 0 || (batch < 2 && r->result != 1))
        complain(t, "the operation failed");
    else if (batch == 0 && !same(t->recovered, plain_of(t), r->bytes))
        complain(t, "recovered plaintext");
    else if (batch == 1)
        judge_sealed(t, r);
    else if (batch == 2)
        judge_opened(t, r);
}

static int run_batches(struct trial *trials, struct kat_request *requests, size_t n, const struct kat_path *path)
{
    for (int batch = 0; batch < 3; batch++) {
        for (size_t i = 0; i < n; i++)
            prepare(&trials[i], &requests[i], batch);
        const int status = path->run(requests, n);
        if (status != 1)
            return status;
        for (size_t i = 0; i < n; i++)
            judge(&trials[i], &requests[i], batch);
    }
    return 1;
}

/* Places the trials' outputs in one buffer full of a filling that no output may keep by chance. */
static uint8_t *place_outputs(struct trial *trials, size_t n)
{
    size_t total = 1, at = 0;
    for (size_t i = 0; i < n; i++)
        total += 3 * trials[i].c->cipher.bytes;
    uint8_t *buffer = (uint8_t *)malloc(total);
    if (buffer == NULL)
        return NULL;
    memset(buffer, FILLING, total);
    for (size_t i = 0; i < n; i++) {
        const size_t bytes = trials[i].c->cipher.bytes;
        trials[i].recovered = buffer + at;
        trials[i].sealed = buffer + at + bytes;
        trials[i].opened = buffer + at + 2 * bytes;
        at += 3 * bytes;
    }
    return buffer;
}

static void count_trials(const char *name, const struct trial *trials, size_t n, const struct kat_path *path,
                         struct kat_count *count)
{
    for (size_t i = 0; i < n; i++) {
        const struct trial *t = &trials[i];
        count->run++;
        count->truncated += t->c->tag.bytes < 16;
        count->passed += t->wrong == NULL;
        count->wrong += t->wrong != NULL;
        if (t->wrong != NULL)
            printf("%s:%lu: %s: WRONG: %s\n", name, t->c->id, path->name, t->wrong);
    }
}

int kat_check(const char *name, const struct kat_file *file, const struct kat_path *path, struct kat_count *count)
{
    size_t n = 0;
    uint8_t *outputs = NULL;
    struct trial *trials = (struct trial *)calloc(file->n_cases + 1, sizeof *trials);
    struct kat_request *requests = (struct kat_request *)calloc(file->n_cases + 1, sizeof *requests);
    memset(count, 0, sizeof *count);
    if (trials == NULL || requests == NULL)
        goto free_arrays;
    for (size_t i = 0; i < file->n_cases; i++)
        if (file->cases[i].skip == KAT_RUNS)
            trials[n++].c = &file->cases[i];
    outputs = place_outputs(trials, n);
    if (outputs == NULL)
        goto free_arrays;
    count->status = run_batches(trials, requests, n, path);
    if (count->status == 1)
        count_trials(name, trials, n, path, count);
free_arrays:
    free(requests);
    free(trials);
    free(outputs);
    return outputs != NULL;
}

/* ---- the two implementations that every machine has ---- */

static int run_portable(struct kat_request *requests, size_t n_requests)
{
    for (size_t i = 0; i < n_requests; i++) {
        struct kat_request *r = &requests[i];
        const kvx_gcm_message message = {r->iv, r->aad, r->aad_bytes, r->in, r->out, r->bytes};
        kvx_gcm_key gcm;
        kvx_gcm_key_init(&gcm, r->key);
        r->result = r->opens ? kvx_gcm_open(&gcm, &message, r->tag) : kvx_gcm_seal(&gcm, &message, r->tag);
        kvx_gcm_key_wipe(&gcm);
    }
    return 1;
}

static void run_one_openssl(struct kvx_cpu_gcm *gcm, struct kat_request *r)
{
    if (r->opens)
        r->result = kvx_cpu_gcm_open(gcm, r->iv, r->aad, r->aad_bytes, r->in, r->out, r->bytes, r->tag);
    else
        r->result = kvx_cpu_gcm_seal(gcm, r->iv, r->aad, r->aad_bytes, r->in, r->out, r->bytes, r->tag);
}

static int run_openssl(struct kat_request *requests, size_t n_requests)
{
    for (size_t i = 0; i < n_requests; i++) {
        struct kvx_cpu_gcm *gcm = kvx_cpu_gcm_create(requests[i].key);
        if (gcm == NULL)
            return -1;
        run_one_openssl(gcm, &requests[i]);
        kvx_cpu_gcm_destroy(gcm);
    }
    return 1;
}

const struct kat_path kat_portable = {"portable", run_portable, NULL};
const struct kat_path kat_openssl = {"openssl", run_openssl, NULL};
