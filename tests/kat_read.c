/* SPDX-License-Identifier: Apache-2.0 */
/* Readers of vector files. CAVP: "Name = hex" lines, a case from one Count to the next; the word FAIL marks a case that
 * must be refused. Wycheproof: JSON, groups of tests with a result. Anything unexpected is an error with its place. */
#include "kat.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

enum { MAX_FILE_BYTES = 256 << 20 };

static int fail(struct kat_file *file, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(file->error, sizeof file->error, format, arguments);
    va_end(arguments);
    return 0;
}

static struct kat_case *add_case(struct kat_file *file, unsigned long id)
{
    if (file->n_cases == file->capacity) {
        const size_t capacity = file->capacity == 0 ? 256 : 2 * file->capacity;
        struct kat_case *cases = (struct kat_case *)realloc(file->cases, capacity * sizeof *cases);
        if (cases == NULL)
            return NULL;
        file->cases = cases;
        file->capacity = capacity;
    }
    struct kat_case *added = &file->cases[file->n_cases++];
    memset(added, 0, sizeof *added);
    added->id = id;
    added->valid = 1;
    return added;
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Takes n hex digits; 0 if they are not hex, odd in number, or the field is already there. */
static int take_hex(struct kat_bytes *field, const char *hex, size_t n)
{
    if (field->data != NULL || n % 2 != 0)
        return 0;
    uint8_t *data = (uint8_t *)malloc(n / 2 + 1);
    if (data == NULL)
        return 0;
    for (size_t i = 0; i < n / 2; i++) {
        const int high = hex_value(hex[2 * i]), low = hex_value(hex[2 * i + 1]);
        if (high < 0 || low < 0) {
            free(data);
            return 0;
        }
        data[i] = (uint8_t)(high << 4 | low);
    }
    field->data = data;
    field->bytes = n / 2;
    return 1;
}

/* Called when all fields of a case are there. */
static int finish_case(struct kat_file *file, struct kat_case *c)
{
    if (c->key.data == NULL || c->iv.data == NULL || c->cipher.data == NULL || c->tag.data == NULL)
        return fail(file, "case %lu: a field is missing", c->id);
    if (c->valid && c->plain.data == NULL)
        return fail(file, "case %lu: neither plaintext nor FAIL", c->id);
    if (c->valid && c->plain.bytes != c->cipher.bytes)
        return fail(file, "case %lu: plaintext and ciphertext differ in length", c->id);
    if (c->skip != KAT_RUNS)
        return 1;
    if (c->key.bytes != 32)
        c->skip = KAT_SKIP_KEY_SIZE;
    else if (c->iv.bytes != 12)
        c->skip = KAT_SKIP_IV_SIZE;
    else if (c->tag.bytes > 16 || c->tag.bytes < 4)
        c->skip = KAT_SKIP_TAG_SIZE;
    return 1;
}

/* ---- CAVP ---- */

static struct kat_bytes *rsp_field(struct kat_case *c, const char *name, size_t n)
{
    static const char *const names[] = {"Key", "IV", "AAD", "PT", "CT", "Tag"};
    struct kat_bytes *const fields[] = {&c->key, &c->iv, &c->aad, &c->plain, &c->cipher, &c->tag};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strlen(names[i]) == n && memcmp(names[i], name, n) == 0)
            return fields[i];
    return NULL;
}

static size_t trim(const char *text, size_t n)
{
    while (n > 0 && memchr(" \t\r", text[n - 1], 3) != NULL)
        n--;
    return n;
}

static int rsp_begin_case(struct kat_file *file, unsigned long line)
{
    if (file->n_cases > 0 && !finish_case(file, &file->cases[file->n_cases - 1]))
        return 0;
    return add_case(file, line) != NULL || fail(file, "out of memory");
}

/* One line, trimmed, neither empty nor comment nor [section]. */
static int rsp_line(struct kat_file *file, const char *text, size_t n, unsigned long line)
{
    const char *equals = (const char *)memchr(text, '=', n);
    const size_t name_bytes = trim(text, equals == NULL ? n : (size_t)(equals - text));
    if (name_bytes == 5 && memcmp(text, "Count", 5) == 0 && equals != NULL)
        return rsp_begin_case(file, line);
    struct kat_case *c = file->n_cases > 0 ? &file->cases[file->n_cases - 1] : NULL;
    if (c == NULL)
        return fail(file, "line %lu: no Count before it", line);
    if (name_bytes == 4 && memcmp(text, "FAIL", 4) == 0 && equals == NULL) {
        c->valid = 0;
        return 1;
    }
    struct kat_bytes *field = equals == NULL ? NULL : rsp_field(c, text, name_bytes);
    if (field == NULL)
        return fail(file, "line %lu: not understood", line);
    const char *value = equals + 1;
    size_t value_bytes = n - (size_t)(value - text);
    for (; value_bytes > 0 && (*value == ' ' || *value == '\t'); value_bytes--)
        value++;
    return take_hex(field, value, value_bytes) || fail(file, "line %lu: bad or repeated value", line);
}

static int read_rsp(struct kat_file *file, const char *text, size_t bytes)
{
    unsigned long line = 1;
    for (const char *end = text + bytes; text < end; line++) {
        const char *newline = (const char *)memchr(text, '\n', (size_t)(end - text));
        const char *next = newline == NULL ? end : newline + 1;
        const size_t n = trim(text, (size_t)((newline == NULL ? end : newline) - text));
        if (n > 0 && text[0] != '#' && text[0] != '[' && !rsp_line(file, text, n, line))
            return 0;
        text = next;
    }
    if (file->n_cases == 0)
        return fail(file, "no cases in it");
    return finish_case(file, &file->cases[file->n_cases - 1]);
}

/* ---- Wycheproof ---- */

static int json_hex(const struct json *test, const char *name, struct kat_bytes *field)
{
    const char *hex = json_text(test, name, NULL);
    return hex != NULL && take_hex(field, hex, strlen(hex));
}

static int read_wycheproof_test(struct kat_file *file, const struct json *test)
{
    const double id = json_number(test, "tcId", -1);
    const char *result = json_text(test, "result", "");
    if (!(id >= 0 && id < 1e9))
        return fail(file, "a test without tcId after %zu tests", file->n_cases);
    struct kat_case *c = add_case(file, (unsigned long)id);
    if (c == NULL)
        return fail(file, "out of memory");
    if (!json_hex(test, "key", &c->key) || !json_hex(test, "iv", &c->iv) || !json_hex(test, "aad", &c->aad) ||
        !json_hex(test, "msg", &c->plain) || !json_hex(test, "ct", &c->cipher) || !json_hex(test, "tag", &c->tag))
        return fail(file, "tcId %lu: a field is missing or not hex", c->id);
    c->valid = strcmp(result, "valid") == 0;
    if (strcmp(result, "acceptable") == 0)
        c->skip = KAT_SKIP_VERDICT;
    else if (!c->valid && strcmp(result, "invalid") != 0)
        return fail(file, "tcId %lu: unknown result", c->id);
    return finish_case(file, c);
}

static int read_wycheproof(struct kat_file *file, const struct json *root)
{
    if (strcmp(json_text(root, "algorithm", ""), "AES-GCM") != 0)
        return fail(file, "the algorithm is not AES-GCM");
    const struct json *group = json_first(json_member(root, "testGroups"));
    for (; group != NULL; group = group->next) {
        const struct json *test = json_first(json_member(group, "tests"));
        for (; test != NULL; test = test->next)
            if (!read_wycheproof_test(file, test))
                return 0;
    }
    return file->n_cases > 0 || fail(file, "no tests in it");
}

static int read_json(struct kat_file *file, const char *text, size_t bytes)
{
    struct json_error error;
    struct json *root = json_read(text, bytes, &error);
    if (root == NULL)
        return fail(file, "line %zu: %s", error.line, error.what);
    const int good = read_wycheproof(file, root);
    json_free(root);
    return good;
}

/* ---- files ---- */

static char *read_text(FILE *stream, size_t *bytes)
{
    size_t capacity = 1 << 16, n = 0, got = 1;
    char *text = (char *)malloc(capacity);
    while (text != NULL && got > 0) {
        if (n == capacity) {
            char *grown = capacity < MAX_FILE_BYTES ? (char *)realloc(text, 2 * capacity) : NULL;
            if (grown == NULL) {
                free(text);
                return NULL;
            }
            text = grown;
            capacity *= 2;
        }
        got = fread(text + n, 1, capacity - n, stream);
        n += got;
    }
    *bytes = n;
    return text;
}

int kat_read(const char *path, struct kat_file *file)
{
    size_t bytes = 0;
    int good = 0;
    memset(file, 0, sizeof *file);
    FILE *stream = fopen(path, "rb");
    if (stream == NULL)
        return fail(file, "cannot be opened");
    char *text = read_text(stream, &bytes);
    if (text == NULL)
        fail(file, "too large");
    else if (ferror(stream))
        fail(file, "cannot be read");
    else if (bytes > 0 && text[0] == '{')
        good = read_json(file, text, bytes);
    else
        good = read_rsp(file, text, bytes);
    free(text);
    fclose(stream);
    return good;
}

void kat_free(struct kat_file *file)
{
    for (size_t i = 0; i < file->n_cases; i++) {
        struct kat_case *c = &file->cases[i];
        free(c->key.data);
        free(c->iv.data);
        free(c->aad.data);
        free(c->plain.data);
        free(c->cipher.data);
        free(c->tag.data);
    }
    free(file->cases);
    memset(file, 0, sizeof *file);
}
