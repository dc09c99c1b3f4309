/* SPDX-License-Identifier: Apache-2.0 */
/* kvx-tier's parts: the reader of traces, the replay (against the plainest possible LRU), the picture. */
#include "cmocka_door.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../bench/plot.h"
#include "../bench/tier.h"

#define N_REQUESTS 300u
#define N_IDS 60u

bool tier_ok(kvx_status status, const char *doing)
{
    if (status != KVX_OK)
        print_error("%s: %s: %s\n", doing, kvx_status_text(status), kvx_last_error());
    return status == KVX_OK;
}

static void write_file(char path[32], const char *text)
{
    strcpy(path, "/tmp/kvx-trace-XXXXXX");
    const int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, text, strlen(text)), strlen(text));
    assert_int_equal(close(file), 0);
}

static bool read_text(const char *text, trace *t)
{
    char path[32];
    write_file(path, text);
    const bool done = trace_read(path, t);
    assert_int_equal(unlink(path), 0);
    return done;
}

static void test_reads(void **state)
{
    static const char text[] =
        "{\"timestamp\": 5, \"input_length\": 9, \"output_length\": 1, \"hash_ids\": [7, 900719925474099100, 3]}\n"
        "\n"
        "{\"hash_ids\":[],\"timestamp\":6}\r\n"
        "{\"timestamp\": 7.25, \"hash_ids\": [ 7,3 ,8 ]}";
    static const uint32_t blocks[] = {1, 3, 0, 1, 0, 2};
    trace t;
    (void)state;
    assert_true(read_text(text, &t));
    assert_int_equal(t.n_requests, 3);
    assert_int_equal(t.n_blocks, 6);
    assert_int_equal(t.n_distinct, 4);
    assert_int_equal(t.longest, 3);
    assert_memory_equal(t.blocks, blocks, sizeof blocks);
    assert_int_equal(t.requests[0].time_ns, 5000000);
    assert_int_equal(t.requests[1].n, 0);
    assert_int_equal(t.requests[2].first, 3);
    assert_int_equal(t.requests[2].time_ns, 7000000);
    assert_int_equal(strncmp(t.name, "kvx-trace-", 10), 0);
    for (uint32_t i = 1; i < t.n_distinct; i++)
        assert_memory_not_equal(&t.hashes[0], &t.hashes[i], sizeof t.hashes[0]);
    trace_free(&t);
}

static void test_refuses(void **state)
{
    static const char *const texts[] = {
        "",
        "\n\n",
        "{\"timestamp\": 5, \"hash_ids\": []}\n",
        "{\"timestamp\": 5}\n",
        "{\"hash_ids\": [1]}\n",
        "{\"timestamp\": \"x\", \"hash_ids\": [1]}\n",
        "{\"timestamp\": 5, \"hash_ids\": 1}\n",
        "{\"timestamp\": 5, \"hash_ids\": [1, x]}\n",
        "{\"timestamp\": 5, \"hash_ids\": [-1]}\n",
        "{\"timestamp\": 5, \"hash_ids\": [1",
        "{\"timestamp\": 5, \"hash_ids\": [1 2]}\n",
        "{\"timestamp\": 5, \"hash_ids\": [99999999999999999999999]}\n",
        "{\"timestamp\" 5, \"hash_ids\": [1]}\n",
        "{\"timestamp\": 5, \"hash_ids\": [1]}\nnonsense\n",
    };
    trace t;
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_false(read_text(texts[i], &t));
    assert_false(trace_read("/nowhere/trace.jsonl", &t));
}

/* ---------------------------------------------------------------------------------------------------------- replay */

/* Chains that share their beginnings, as conversations do. */
static void make_trace(trace *t)
{
    char *text = malloc(N_REQUESTS * 256u), *at = text;
    uint64_t state = 3;
    assert_non_null(text);
    for (uint32_t r = 0; r < N_REQUESTS; r++) {
        at += sprintf(at, "{\"timestamp\": %u, \"hash_ids\": [0", r);
        state = state * 6364136223846793005u + 1442695040888963407u;
        const uint32_t talk = (uint32_t)(state >> 40) % 10, n = 1 + (uint32_t)(state >> 50) % 5;
        for (uint32_t i = 0; i < n; i++)
            at += sprintf(at, ", %u", 1 + talk * 5 + i);
        at += sprintf(at, "]}\n");
    }
    assert_true(read_text(text, t));
    free(text);
}

/* Least recently used, with a list that is searched from end to end. */
static uint64_t plain_lru(const trace *t, uint32_t capacity)
{
    uint32_t list[N_IDS], n = 0;
    uint64_t n_found = 0;
    for (uint64_t k = 0; k < t->n_blocks; k++) {
        uint32_t at = 0;
        while (at < n && list[at] != t->blocks[k])
            at++;
        n_found += at < n;
        if (at == n && n < capacity)
            n++;
        if (at == n)
            at--;
        memmove(list + 1, list, at * sizeof list[0]);
        list[0] = t->blocks[k];
    }
    return n_found;
}

static tier_options options_for_replay(void)
{
    tier_options o;
    memset(&o, 0, sizeof o);
    o.gpu_blocks = 8;
    o.hits = 2;
    return o;
}

static void test_lru(void **state)
{
    static const uint32_t capacities[] = {8, 13, 20, 35, 0};
    const tier_options o = options_for_replay();
    replay_result got;
    trace t;
    (void)state;
    make_trace(&t);
    for (size_t i = 0; i < sizeof capacities / sizeof capacities[0]; i++) {
        assert_true(replay(&t, &o, &replay_policies[0], capacities[i], &got));
        assert_int_equal(got.n_blocks, t.n_blocks);
        assert_int_equal(got.n_found, plain_lru(&t, capacities[i] ? capacities[i] : t.n_distinct));
        assert_int_equal(got.n_stored, got.n_blocks - got.n_found);
        assert_int_equal(got.n_no_room, 0);
    }
    trace_free(&t);
}

static void test_policies(void **state)
{
    const tier_options o = options_for_replay();
    replay_result small, unlimited;
    trace t;
    (void)state;
    make_trace(&t);
    for (uint32_t p = 0; p < TIER_POLICIES; p++) {
        const replay_policy *policy = &replay_policies[p];
        assert_true(replay(&t, &o, policy, 16, &small));
        assert_true(replay(&t, &o, policy, 0, &unlimited));
        assert_true(small.n_found > 0 && small.n_found <= unlimited.n_found);
        assert_true(small.n_prefix <= small.n_found);
        assert_int_equal(small.n_gpu > 0, policy->behind_gpu);
        if (policy->write != KVX_TIER_WRITE_SELECTIVE)
            assert_int_equal(unlimited.n_found, t.n_blocks - t.n_distinct);
        else
            assert_true(unlimited.n_found < t.n_blocks - t.n_distinct);
    }
    trace_free(&t);
}

/* --------------------------------------------------------------------------------------------------------- picture */

static void test_picture(void **state)
{
    static const double x[] = {1000, 5000}, y[] = {10, 20.5};
    static const plot_panel panels[] = {{"a < b & c", {{"one", x, y, 2}, {"two", x, y, 1}}, 2, 36},
                                        {"d", {{"one", x, y, 2}}, 1, 0}};
    const plot p = {"title", "x", "y", "bound", panels, 2, false};
    char path[32], text[16384];
    (void)state;
    write_file(path, "");
    assert_true(plot_write(&p, path));
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    assert_int_equal(fclose(file), 0);
    assert_int_equal(strncmp(text, "<svg ", 5), 0);
    assert_string_equal(text + strlen(text) - 7, "</svg>\n");
    assert_non_null(strstr(text, "a &lt; b &amp; c"));
    assert_null(strstr(text, "nan"));
    assert_int_equal(unlink(path), 0);
    assert_false(plot_write(&p, "/nowhere/picture.svg"));
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads),    cmocka_unit_test(test_refuses), cmocka_unit_test(test_lru),
        cmocka_unit_test(test_policies), cmocka_unit_test(test_picture),
    };
    return cmocka_run_group_tests_name("tier_replay", tests, NULL, NULL);
}
