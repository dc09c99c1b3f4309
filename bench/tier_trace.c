/* SPDX-License-Identifier: Apache-2.0 */
/* Reads Mooncake's form of a trace. The reader looks for two keys in each line and for nothing else; ids are numbered
 * anew, so that arrays can be indexed by block. */
#define _POSIX_C_SOURCE 200809L
#include "tier.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NS_PER_MS 1000000u

/* What is read, before blocks are numbered. */
typedef struct reading {
    uint64_t *ids;
    uint64_t n_ids, room_ids, n_requests, room_requests;
    trace_request *requests;
} reading;

static bool grow(void *array, uint64_t n, uint64_t *room, size_t element_bytes)
{
    void **memory = array, *grown;
    uint64_t wanted = *room ? 2 * *room : 1024;
    if (n < *room)
        return true;
    grown = realloc(*memory, (size_t)wanted * element_bytes);
    if (!grown)
        return false;
    *memory = grown;
    *room = wanted;
    return true;
}

/* The text after "key": in the line, or NULL. */
static const char *value_of(const char *line, const char *key)
{
    const char *at = strstr(line, key);
    if (!at)
        return NULL;
    at += strlen(key);
    at += strspn(at, " ");
    if (*at != ':')
        return NULL;
    return at + 1 + strspn(at + 1, " ");
}

static const char *read_number(const char *text, uint64_t *number)
{
    char *end;
    if (*text < '0' || *text > '9')
        return NULL;
    errno = 0;
    *number = strtoull(text, &end, 10);
    if (errno != 0)
        return NULL;
    if (*end == '.')
        end += 1 + strspn(end + 1, "0123456789");
    return end + strspn(end, " ");
}

static const char *read_ids(reading *in, const char *at, trace_request *request)
{
    if (!at || *at != '[')
        return "\"hash_ids\" is not a list";
    at += 1 + strspn(at + 1, " ");
    request->first = in->n_ids;
    request->n = 0;
    while (*at != ']') {
        if (!grow((void *)&in->ids, in->n_ids, &in->room_ids, sizeof(*in->ids)))
            return "no memory";
        at = read_number(at, &in->ids[in->n_ids]);
        if (!at || (*at != ',' && *at != ']'))
            return "\"hash_ids\" holds something that is not a number";
        in->n_ids++;
        request->n++;
        at += *at == ',';
        at += strspn(at, " ");
    }
    return in->n_ids > UINT32_MAX / 2 ? "too many blocks" : NULL;
}

/* What is wrong with the line, or NULL. */
static const char *read_request(reading *in, const char *line)
{
    const char *at = value_of(line, "\"timestamp\""), *wrong;
    trace_request *request;
    uint64_t milliseconds;
    if (!at || !read_number(at, &milliseconds) || milliseconds > UINT64_MAX / NS_PER_MS)
        return "\"timestamp\" is missing or not a number";
    if (!grow((void *)&in->requests, in->n_requests, &in->room_requests, sizeof(*in->requests)))
        return "no memory";
    request = &in->requests[in->n_requests];
    request->time_ns = milliseconds * NS_PER_MS;
    wrong = read_ids(in, value_of(line, "\"hash_ids\""), request);
    if (!wrong)
        in->n_requests++;
    return wrong;
}

static bool read_lines(FILE *file, const char *path, reading *in)
{
    const char *wrong = NULL;
    uint64_t n_lines = 0;
    size_t room = 0;
    char *line = NULL;
    while (!wrong && getline(&line, &room, file) >= 0) {
        n_lines++;
        if (line[strspn(line, " \r\n")])
            wrong = read_request(in, line);
    }
    free(line);
    if (wrong)
        fprintf(stderr, "%s, line %llu: %s\n", path, (unsigned long long)n_lines, wrong);
    else if (ferror(file))
        fprintf(stderr, "cannot read %s: %s\n", path, strerror(errno));
    else if (in->n_ids == 0)
        fprintf(stderr, "%s holds no blocks\n", path);
    return !wrong && !ferror(file) && in->n_ids > 0;
}

/* ------------------------------------------------------------------------------------------------------- numbering */

static int compare_ids(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

kvx_tier_hash trace_hash(uint64_t word, uint64_t other)
{
    uint64_t words[4];
    kvx_tier_hash hash;
    size_t i;
    for (i = 0; i < 4; i++)
        words[i] = mix(mix(word + (i + 1) * 0x9e3779b97f4a7c15u) + other);
    memcpy(hash.bytes, words, sizeof(hash.bytes));
    return hash;
}

/* Sorted, each once; the number of an id is its place. */
static uint32_t distinct(uint64_t *ids, uint64_t n)
{
    uint64_t i, n_kept = 0;
    qsort(ids, (size_t)n, sizeof(*ids), compare_ids);
    for (i = 0; i < n; i++)
        if (n_kept == 0 || ids[n_kept - 1] != ids[i])
            ids[n_kept++] = ids[i];
    return (uint32_t)n_kept;
}

static bool number_blocks(const reading *in, trace *t)
{
    uint64_t *sorted = malloc((size_t)in->n_ids * sizeof(*sorted)), i;
    t->blocks = malloc((size_t)in->n_ids * sizeof(*t->blocks));
    t->hashes = malloc((size_t)in->n_ids * sizeof(*t->hashes));
    if (!sorted || !t->blocks || !t->hashes) {
        free(sorted);
        return false;
    }
    memcpy(sorted, in->ids, (size_t)in->n_ids * sizeof(*sorted));
    t->n_distinct = distinct(sorted, in->n_ids);
    for (i = 0; i < in->n_ids; i++) {
        const uint64_t *at = bsearch(&in->ids[i], sorted, t->n_distinct, sizeof(*sorted), compare_ids);
        t->blocks[i] = (uint32_t)(at - sorted);
    }
    for (i = 0; i < t->n_distinct; i++)
        t->hashes[i] = trace_hash(sorted[i], 0);
    free(sorted);
    return true;
}

/* ----------------------------------------------------------------------------------------------------------- trace */

/* The file's name without folder and ending; blanks would split the report's words. */
static void name_trace(trace *t, const char *path)
{
    const char *slash = strrchr(path, '/');
    size_t i;
    snprintf(t->name, sizeof(t->name), "%s", slash ? slash + 1 : path);
    if (strrchr(t->name, '.') && t->name[0] != '.')
        *strrchr(t->name, '.') = '\0';
    for (i = 0; t->name[i]; i++)
        if (t->name[i] == ' ' || t->name[i] == '=')
            t->name[i] = '_';
}

static bool take_over(trace *t, reading *in)
{
    uint64_t i;
    t->requests = in->requests;
    in->requests = NULL;
    t->n_requests = in->n_requests;
    t->n_blocks = in->n_ids;
    for (i = 0; i < t->n_requests; i++)
        if (t->requests[i].n > t->longest)
            t->longest = t->requests[i].n;
    if (!number_blocks(in, t)) {
        fputs("no memory for the trace\n", stderr);
        trace_free(t);
        return false;
    }
    return true;
}

bool trace_read(const char *path, trace *t)
{
    FILE *file = fopen(path, "r");
    reading in;
    bool done;
    memset(t, 0, sizeof(*t));
    memset(&in, 0, sizeof(in));
    if (!file) {
        fprintf(stderr, "cannot read %s: %s\n", path, strerror(errno));
        return false;
    }
    name_trace(t, path);
    done = read_lines(file, path, &in) && take_over(t, &in);
    fclose(file);
    free(in.ids);
    free(in.requests);
    return done;
}

void trace_free(trace *t)
{
    free(t->requests);
    free(t->blocks);
    free(t->hashes);
    memset(t, 0, sizeof(*t));
}
