/* SPDX-License-Identifier: Apache-2.0 */
/* Quotes through configfs-tsm (Linux 6.7): an entry of our own for each quote; its generation counts writes, so if it
 * grew by more than ours, somebody else wrote to it and the quote may be for his bytes. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "evidence.h"
#include "platform.h"
#include "status.h"

#define ENTRIES "/sys/kernel/config/tsm/report"
#define ATTEMPTS 8

typedef struct entry {
    char path[96];
} entry;

static kvx_status make_entry(entry *e)
{
    uint8_t name[8];
    if (kvx_platform()->getrandom(name, sizeof name) != (ssize_t)sizeof name)
        return kvx_note(KVX_INTERNAL, "getrandom failed: errno %d", errno);
    (void)snprintf(e->path, sizeof e->path, ENTRIES "/kvx-%02x%02x%02x%02x%02x%02x%02x%02x", name[0], name[1], name[2],
                   name[3], name[4], name[5], name[6], name[7]);
    if (kvx_platform()->mkdir(e->path, 0700) == 0)
        return KVX_OK;
    if (errno == EEXIST)
        return kvx_note(KVX_AGAIN, "an entry of the same name exists in " ENTRIES);
    return kvx_note(KVX_UNSUPPORTED, "configfs-tsm: mkdir in " ENTRIES " failed: errno %d", errno);
}

static void drop_entry(const entry *e)
{
    (void)kvx_platform()->rmdir(e->path);
}

static ssize_t read_attribute(const entry *e, const char *name, void *bytes, size_t room)
{
    char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", e->path, name);
    return kvx_platform_slurp(path, bytes, room);
}

static kvx_status read_provider(const entry *e, char name[32])
{
    char text[64] = "";
    if (read_attribute(e, "provider", text, sizeof text) <= 0)
        return kvx_note(KVX_UNSUPPORTED, "configfs-tsm: no provider: errno %d", errno);
    text[strcspn(text, "\n")] = 0;
    if (strlen(text) > 31)
        return kvx_note(KVX_UNSUPPORTED, "configfs-tsm: an unknown provider");
    (void)snprintf(name, 32, "%.31s", text);
    return KVX_OK;
}

static kvx_status read_generation(const entry *e, uint64_t *generation)
{
    char text[32] = "", *end;
    if (read_attribute(e, "generation", text, sizeof text) <= 0)
        return kvx_note(KVX_UNSUPPORTED, "configfs-tsm: no generation: errno %d", errno);
    errno = 0;
    *generation = strtoull(text, &end, 10);
    if (end == text || errno || (*end != '\n' && *end != 0))
        return kvx_note(KVX_INTERNAL, "configfs-tsm: the generation is no number");
    return KVX_OK;
}

/* The bytes go in with one write: a second one would count. */
static kvx_status write_request(const entry *e, const uint8_t report_data[64])
{
    char path[128];
    ssize_t written;
    int file, why;
    (void)snprintf(path, sizeof path, "%s/inblob", e->path);
    file = kvx_platform()->open(path, O_WRONLY);
    if (file < 0)
        return kvx_note(KVX_UNSUPPORTED, "configfs-tsm: no inblob: errno %d", errno);
    do
        written = kvx_platform()->write(file, report_data, 64);
    while (written < 0 && errno == EINTR);
    why = errno;
    (void)kvx_platform()->close(file);
    if (written == 64)
        return KVX_OK;
    return kvx_note(written < 0 && why == EBUSY ? KVX_AGAIN : KVX_INTERNAL,
                    "configfs-tsm: writing the request: errno %d", written < 0 ? why : 0);
}

static kvx_status read_quote(const entry *e, kvx_tsm_quote *quote)
{
    ssize_t n = read_attribute(e, "outblob", quote->bytes, KVX_QUOTE_BYTES_MAX);
    if (n < 0 && (errno == EBUSY || errno == EWOULDBLOCK))
        return kvx_note(KVX_AGAIN, "configfs-tsm: the entry is being written to");
    if (n < 0 && errno == EFBIG)
        return kvx_note(KVX_UNSUPPORTED, "configfs-tsm: the quote is larger than this kernel allows (EFBIG)");
    if (n < 0)
        return kvx_note(KVX_INTERNAL, "configfs-tsm: reading the quote: errno %d", errno);
    if (n == 0 || n >= (ssize_t)KVX_QUOTE_BYTES_MAX)
        return kvx_note(KVX_INTERNAL, "configfs-tsm: a quote of %zd bytes", n);
    quote->n_bytes = (uint32_t)n;
    return KVX_OK;
}

static kvx_status ask(const entry *e, const uint8_t report_data[64], kvx_tsm_quote *quote)
{
    uint64_t before = 0, after = 0;
    KVX_TRY(read_provider(e, quote->provider));
    KVX_TRY(read_generation(e, &before));
    KVX_TRY(write_request(e, report_data));
    KVX_TRY(read_quote(e, quote));
    KVX_TRY(read_generation(e, &after));
    if (after != before + 1)
        return kvx_note(KVX_AGAIN, "configfs-tsm: somebody else wrote to the entry");
    if (!memmem(quote->bytes, quote->n_bytes, report_data, 64))
        return kvx_note(KVX_INTERNAL, "configfs-tsm: the quote does not carry the report data");
    return KVX_OK;
}

kvx_status kvx_tsm_get_quote(const uint8_t report_data[64], kvx_tsm_quote *quote)
{
    kvx_status status = KVX_AGAIN;
    int i;
    for (i = 0; i < ATTEMPTS && status == KVX_AGAIN; i++) {
        entry e;
        status = make_entry(&e);
        if (status != KVX_OK)
            continue;
        status = ask(&e, report_data, quote);
        drop_entry(&e);
    }
    if (status != KVX_OK)
        quote->n_bytes = 0;
    return status;
}

kvx_status kvx_tsm_provider(char name[32])
{
    kvx_status status;
    entry e;
    KVX_TRY(make_entry(&e));
    status = read_provider(&e, name);
    drop_entry(&e);
    return status;
}
