/* SPDX-License-Identifier: Apache-2.0 */
/* A small JSON reader (RFC 8259) for vector files and reports: the whole text becomes a tree. Malformed, truncated or
 * too deeply nested text is refused with its place; a NUL inside a string is refused so that strings are C strings. */
#ifndef KVX_TESTS_JSON_H
#define KVX_TESTS_JSON_H

#include <stddef.h>

#define JSON_MAX_DEPTH 64

enum json_kind { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json {
    enum json_kind kind;
    char *name;         /* of a member of an object, else NULL */
    char *text;         /* of a string, else NULL */
    double number;      /* of a number, else 0 */
    struct json *child; /* first element or member of an array or object */
    struct json *next;  /* in the parent's order */
};

struct json_error {
    size_t line; /* from 1 */
    const char *what;
};

/* Reads `bytes` bytes. NULL on error, with `error` set; else json_free the result. */
struct json *json_read(const char *text, size_t bytes, struct json_error *error);

/* NULL is allowed. */
void json_free(struct json *value);

/* The member of that name; NULL if there is none or if `object` is NULL or no object. */
const struct json *json_member(const struct json *object, const char *name);

/* The first element or member, NULL if none or if `value` is NULL. */
const struct json *json_first(const struct json *value);

/* The member's string or number, or the given default if it is missing or of another kind. */
const char *json_text(const struct json *object, const char *name, const char *otherwise);
double json_number(const struct json *object, const char *name, double otherwise);

#endif
