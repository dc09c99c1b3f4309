/* SPDX-License-Identifier: Apache-2.0 */
/* Recursive descent over a cursor. The first error sticks: it moves the cursor to the end and every reader after it
 * finds nothing more to read. */
#include "json.h"

#include <stdlib.h>
#include <string.h>

struct cursor {
    const char *at, *end;
    size_t line;
    const char *what; /* first error or NULL */
};

static struct json *read_value(struct cursor *c, int depth);

static void fail(struct cursor *c, const char *what)
{
    if (c->what == NULL)
        c->what = what;
    c->at = c->end;
}

static void skip_space(struct cursor *c)
{
    for (; c->at < c->end && memchr(" \t\r\n", *c->at, 4) != NULL; c->at++)
        c->line += *c->at == '\n';
}

/* Takes the character if it is next. */
static int take(struct cursor *c, char wanted)
{
    if (c->at == c->end || *c->at != wanted)
        return 0;
    c->at++;
    return 1;
}

static int is_digit(const struct cursor *c)
{
    return c->at < c->end && *c->at >= '0' && *c->at <= '9';
}

static unsigned read_hex4(struct cursor *c)
{
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    unsigned value = 0;
    for (int i = 0; i < 4; i++) {
        const char *digit = c->at < c->end ? (const char *)memchr(digits, *c->at, 32) : NULL;
        if (digit == NULL) {
            fail(c, "bad \\u escape");
            return 0;
        }
        value = value << 4 | ((unsigned)(digit - digits) & 15u);
        c->at++;
    }
    return value;
}

static unsigned read_code_point(struct cursor *c)
{
    const unsigned first = read_hex4(c);
    if (first < 0xd800 || first > 0xdfff)
        return first;
    if (first > 0xdbff || !take(c, '\\') || !take(c, 'u')) {
        fail(c, "lone surrogate");
        return 0;
    }
    const unsigned second = read_hex4(c);
    if (second < 0xdc00 || second > 0xdfff)
        fail(c, "lone surrogate");
    return 0x10000u + ((first - 0xd800u) << 10) + (second & 0x3ffu);
}

static char *put_utf8(char *out, unsigned point)
{
    if (point < 0x80) {
        *out++ = (char)point;
        return out;
    }
    const int n_more = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
    const unsigned lead = n_more == 1 ? 0xc0u : n_more == 2 ? 0xe0u : 0xf0u;
    *out++ = (char)(lead | (point >> (6 * n_more)));
    for (int i = n_more - 1; i >= 0; i--)
        *out++ = (char)(0x80u | ((point >> (6 * i)) & 0x3fu));
    return out;
}

/* After a backslash. A decoded escape is never longer than its source. */
static char *read_escape(struct cursor *c, char *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (take(c, 'u')) {
        const unsigned point = read_code_point(c);
        if (point == 0)
            fail(c, "NUL in a string");
        return c->what == NULL ? put_utf8(out, point) : out;
    }
    const char *found = c->at < c->end ? (const char *)memchr(from, *c->at, 8) : NULL;
    if (found == NULL) {
        fail(c, "bad escape");
        return out;
    }
    c->at++;
    *out++ = to[found - from];
    return out;
}

/* After the opening quote: the bytes up to the closing one, an upper bound of the decoded length. */
static size_t string_room(const struct cursor *c)
{
    const char *p = c->at;
    while (p < c->end && *p != '"')
        p += *p == '\\' && p + 1 < c->end ? 2 : 1;
    return (size_t)(p - c->at);
}

static char *read_string(struct cursor *c)
{
    if (!take(c, '"')) {
        fail(c, "string expected");
        return NULL;
    }
    char *text = (char *)malloc(string_room(c) + 1);
    char *out = text;
    if (text == NULL)
        fail(c, "out of memory");
    while (c->at < c->end && *c->at != '"') {
        const char next = *c->at++;
        if (next == '\\')
            out = read_escape(c, out);
        else if ((unsigned char)next < 0x20)
            fail(c, "control character in a string");
        else
            *out++ = next;
    }
    if (!take(c, '"')) {
        fail(c, "unfinished string");
        free(text);
        return NULL;
    }
    *out = '\0';
    return text;
}

static void skip_digits(struct cursor *c)
{
    if (!is_digit(c))
        fail(c, "digit expected");
    while (is_digit(c))
        c->at++;
}

static void read_number(struct cursor *c, struct json *value)
{
    const char *start = c->at;
    char copy[64];
    take(c, '-');
    if (!take(c, '0'))
        skip_digits(c);
    if (take(c, '.'))
        skip_digits(c);
    if (take(c, 'e') || take(c, 'E')) {
        if (!take(c, '+'))
            take(c, '-');
        skip_digits(c);
    }
    const size_t n = (size_t)(c->at - start);
    if (n >= sizeof copy)
        fail(c, "number too long");
    if (c->what != NULL)
        return;
    memcpy(copy, start, n);
    copy[n] = '\0';
    value->kind = JSON_NUMBER;
    value->number = strtod(copy, NULL);
}

static void read_word(struct cursor *c, const char *word)
{
    const size_t n = strlen(word);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n) != 0)
        fail(c, "value expected");
    else
        c->at += n;
}

static struct json *read_member(struct cursor *c, int depth)
{
    skip_space(c);
    char *name = read_string(c);
    skip_space(c);
    if (name != NULL && !take(c, ':'))
        fail(c, "':' expected");
    struct json *value = c->what == NULL ? read_value(c, depth) : NULL;
    if (value == NULL)
        free(name);
    else
        value->name = name;
    return value;
}

/* After the opening bracket. */
static void read_children(struct cursor *c, struct json *parent, char close, int depth)
{
    struct json **link = &parent->child;
    skip_space(c);
    if (take(c, close))
        return;
    do {
        *link = parent->kind == JSON_OBJECT ? read_member(c, depth) : read_value(c, depth);
        if (*link == NULL)
            return;
        link = &(*link)->next;
        skip_space(c);
    } while (take(c, ','));
    if (!take(c, close))
        fail(c, "',' or closing bracket expected");
}

static void read_into(struct cursor *c, struct json *value, int depth)
{
    const char next = c->at < c->end ? *c->at : '\0';
    if (next == '{' || next == '[') {
        c->at++;
        value->kind = next == '{' ? JSON_OBJECT : JSON_ARRAY;
        read_children(c, value, next == '{' ? '}' : ']', depth + 1);
    } else if (next == '"') {
        value->kind = JSON_STRING;
        value->text = read_string(c);
    } else if (next == 't' || next == 'f') {
        value->kind = next == 't' ? JSON_TRUE : JSON_FALSE;
        read_word(c, next == 't' ? "true" : "false");
    } else if (next == 'n') {
        read_word(c, "null");
    } else if (next == '-' || is_digit(c)) {
        read_number(c, value);
    } else {
        fail(c, "value expected");
    }
}

/* NULL exactly if there was an error. */
static struct json *read_value(struct cursor *c, int depth)
{
    if (depth > JSON_MAX_DEPTH) {
        fail(c, "nested too deeply");
        return NULL;
    }
    struct json *value = (struct json *)calloc(1, sizeof *value);
    if (value == NULL) {
        fail(c, "out of memory");
        return NULL;
    }
    value->kind = JSON_NULL;
    skip_space(c);
    read_into(c, value, depth);
    if (c->what == NULL)
        return value;
    json_free(value);
    return NULL;
}

struct json *json_read(const char *text, size_t bytes, struct json_error *error)
{
    struct cursor c = {text, text + bytes, 1, NULL};
    struct json *value = read_value(&c, 0);
    skip_space(&c);
    if (value != NULL && c.at != c.end) {
        fail(&c, "text after the value");
        json_free(value);
        value = NULL;
    }
    error->line = c.line;
    error->what = c.what;
    return value;
}

void json_free(struct json *value)
{
    while (value != NULL) {
        struct json *next = value->next;
        json_free(value->child); /* as deep as JSON_MAX_DEPTH at most */
        free(value->name);
        free(value->text);
        free(value);
        value = next;
    }
}

const struct json *json_member(const struct json *object, const char *name)
{
    if (object == NULL || object->kind != JSON_OBJECT)
        return NULL;
    const struct json *member = object->child;
    while (member != NULL && strcmp(member->name, name) != 0)
        member = member->next;
    return member;
}

const struct json *json_first(const struct json *value)
{
    return value == NULL ? NULL : value->child;
}

const char *json_text(const struct json *object, const char *name, const char *otherwise)
{
    const struct json *member = json_member(object, name);
    return member != NULL && member->kind == JSON_STRING ? member->text : otherwise;
}

double json_number(const struct json *object, const char *name, double otherwise)
{
    const struct json *member = json_member(object, name);
    return member != NULL && member->kind == JSON_NUMBER ? member->number : otherwise;
}
