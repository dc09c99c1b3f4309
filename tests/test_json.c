/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON reader of the tests: values, escapes, and that malformed text of many kinds is refused without harm. */
#include "cmocka_door.h"

#include <stdlib.h>
#include <string.h>

#include "json.h"

static const char sample[] = "{\"a\": [1, -2.5e+3, true, false, null, \"x\\n\\u00e9\\ud83d\\ude00\\\\\"],\n"
                             " \"b\": {\"c\": {}, \"d\": []}, \"e\": \"\", \"n\": 0.5}";

/* From a copy of exact size, so that a read past the end is seen by a sanitizer. */
static struct json *read_exact(const char *text, size_t bytes, struct json_error *error)
{
    char *copy = (char *)malloc(bytes + (bytes == 0));
    assert_non_null(copy);
    memcpy(copy, text, bytes);
    struct json *value = json_read(copy, bytes, error);
    free(copy);
    return value;
}

static void values_are_read(void **state)
{
    (void)state;
    struct json_error error;
    struct json *value = read_exact(sample, strlen(sample), &error);
    assert_non_null(value);
    const struct json *a = json_first(json_member(value, "a"));
    assert_int_equal(a->kind, JSON_NUMBER);
    assert_true(a->next->number < -2499 && a->next->number > -2501);
    assert_int_equal(a->next->next->kind, JSON_TRUE);
    assert_int_equal(a->next->next->next->kind, JSON_FALSE);
    assert_int_equal(a->next->next->next->next->kind, JSON_NULL);
    assert_string_equal(a->next->next->next->next->next->text, "x\n\xc3\xa9\xf0\x9f\x98\x80\\");
    assert_non_null(json_member(json_member(value, "b"), "c"));
    assert_null(json_first(json_member(json_member(value, "b"), "d")));
    assert_string_equal(json_text(value, "e", "?"), "");
    assert_string_equal(json_text(value, "n", "?"), "?");
    assert_true(json_number(value, "n", 0) > 0.4 && json_number(value, "absent", 7) > 6);
    json_free(value);
}

static void every_prefix_is_refused(void **state)
{
    (void)state;
    struct json_error error;
    for (size_t n = 0; n < strlen(sample); n++) {
        assert_null(read_exact(sample, n, &error));
        assert_non_null(error.what);
    }
}

static void every_changed_byte_is_survived(void **state)
{
    (void)state;
    char text[sizeof sample];
    for (size_t i = 0; i + 1 < sizeof sample; i++) {
        for (int b = 0; b < 256; b++) {
            struct json_error error;
            memcpy(text, sample, sizeof sample);
            text[i] = (char)b;
            json_free(read_exact(text, strlen(sample), &error));
        }
    }
}

static void malformed_text_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",        " ",           "tru",        "nul",         "[1,]",
        "[1 2]",   "{,}",         "{\"a\"}",    "{\"a\":}",    "{1:2}",
        "[",       "]",           "01",         "-",           "1.",
        "1e",      ".5",          "+1",         "\"",          "\"\\x\"",
        "\"\\u12", "\"\\u0000\"", "\"\n\"",     "\"\\ud800\"", "\"\\udc00\"",
        "1 1",     "{\"a\":1,}",  "[\"a\" :1]", "NaN",         "\"\\ud800\\u0041\"",
        "'a'",     "[1}",
    };
    struct json_error error;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_null(read_exact(texts[i], strlen(texts[i]), &error));
    assert_null(read_exact("[\n\n x]", 6, &error));
    assert_int_equal(error.line, 3);
}

static void depth_is_bounded(void **state)
{
    (void)state;
    enum { DEEP = 100000 };
    struct json_error error;
    char *text = (char *)malloc(2 * DEEP);
    assert_non_null(text);
    memset(text, '[', DEEP);
    memset(text + DEEP, ']', DEEP);
    assert_null(json_read(text, 2 * DEEP, &error));
    struct json *value = json_read(text + DEEP - JSON_MAX_DEPTH, 2 * JSON_MAX_DEPTH, &error);
    assert_non_null(value);
    json_free(value);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_read),
        cmocka_unit_test(every_prefix_is_refused),
        cmocka_unit_test(every_changed_byte_is_survived),
        cmocka_unit_test(malformed_text_is_refused),
        cmocka_unit_test(depth_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
