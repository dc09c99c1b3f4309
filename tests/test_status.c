/* SPDX-License-Identifier: Apache-2.0 */
/* Status texts, the note of the last failure (one per thread), verdicts and the version. */
#include "cmocka_door.h"

#include <pthread.h>
#include <string.h>

#include "../kernels/format.h"
#include "kvx.h"
#include "status.h"

static const kvx_status all[] = {KVX_OK,          KVX_PENDING,   KVX_AGAIN,       KVX_TIMEOUT,  KVX_INVALID,
                                 KVX_UNSUPPORTED, KVX_NO_MEMORY, KVX_UNTRUSTED,   KVX_UNKNOWN,  KVX_MISS,
                                 KVX_BUSY,        KVX_STALE,     KVX_REFUSED,     KVX_TAMPERED, KVX_SUPERSEDED,
                                 KVX_EXHAUSTED,   KVX_LATCHED,   KVX_DEVICE_LOST, KVX_FORKED,   KVX_INTERNAL};
#define N_ALL (sizeof(all) / sizeof(all[0]))

static void texts_are_distinct(void **state)
{
    (void)state;
    const char *unknown = kvx_status_text((kvx_status)9999);
    assert_non_null(unknown);
    for (size_t i = 0; i < N_ALL; i++) {
        assert_string_not_equal(kvx_status_text(all[i]), "");
        assert_string_not_equal(kvx_status_text(all[i]), unknown);
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(kvx_status_text(all[i]), kvx_status_text(all[j]));
    }
    assert_string_equal(kvx_status_text((kvx_status)-1), unknown);
}

static void *note_elsewhere(void *arg)
{
    (void)arg;
    int empty = strcmp(kvx_last_error(), "") == 0;
    (void)kvx_note(KVX_INVALID, "there");
    return empty && strcmp(kvx_last_error(), "there") == 0 ? arg : NULL;
}

static void notes_are_per_thread(void **state)
{
    pthread_t thread;
    void *result;
    int token = 0;
    (void)state;
    assert_string_equal(kvx_last_error(), "");
    assert_int_equal(kvx_note(KVX_BUSY, "here %d", 7), KVX_BUSY);
    assert_int_equal(pthread_create(&thread, NULL, note_elsewhere, &token), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_ptr_equal(result, &token);
    assert_string_equal(kvx_last_error(), "here 7");
}

static void long_notes_are_cut(void **state)
{
    char text[2000];
    (void)state;
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    (void)kvx_note(KVX_INVALID, "%s", text);
    size_t n = strlen(kvx_last_error());
    assert_in_range(n, 100, 1000);
    assert_memory_equal(kvx_last_error(), text, n);
}

static void verdicts_have_statuses(void **state)
{
    static const kvx_status wanted[] = {KVX_PENDING,   KVX_OK,      KVX_MISS,     KVX_BUSY,
                                        KVX_STALE,     KVX_REFUSED, KVX_TAMPERED, KVX_SUPERSEDED,
                                        KVX_EXHAUSTED, KVX_LATCHED, KVX_INTERNAL};
    (void)state;
    for (uint32_t v = 0; v < sizeof(wanted) / sizeof(wanted[0]); v++)
        assert_int_equal(kvx_verdict_status(v), wanted[v]);
    assert_int_equal(kvx_verdict_status(KVX_VERDICT_FAULT + 1), KVX_INTERNAL);
    assert_int_equal(kvx_verdict_status(UINT32_MAX), KVX_INTERNAL);
}

static void version_is_the_header_s(void **state)
{
    (void)state;
    assert_int_equal(kvx_version(), KVX_VERSION_MAJOR << 16 | KVX_VERSION_MINOR << 8 | KVX_VERSION_PATCH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_distinct),      cmocka_unit_test(notes_are_per_thread),
        cmocka_unit_test(long_notes_are_cut),      cmocka_unit_test(verdicts_have_statuses),
        cmocka_unit_test(version_is_the_header_s),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
