/* SPDX-License-Identifier: Apache-2.0 */
/* Statuses in words, and the note of this thread's last failure: a thread-local line, the one mutable global of kvx. */
#include "status.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "../kernels/format.h"

#define NOTE_BYTES 1000

static _Thread_local char last_note[NOTE_BYTES];

/* The public limits are the format's. */
static_assert(KVX_CLASSES_MAX == KVX_CLASSES_LIMIT, "slot classes");
static_assert(KVX_SLOT_BYTES_MAX == KVX_UNIT_BYTES_LIMIT, "a unit may fill a slot");
static_assert(KVX_LANES_MAX == KVX_LANES_LIMIT, "lanes");
static_assert(KVX_UNITS_MAX == KVX_UNITS_LIMIT, "units");
static_assert(KVX_OK == 0, "zero is success");

kvx_status kvx_note(kvx_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(last_note, sizeof(last_note), format, arguments);
    va_end(arguments);
    if (n < 0)
        last_note[0] = '\0';
    return status;
}

const char *kvx_last_error(void)
{
    return last_note;
}

uint32_t kvx_version(void)
{
    return (uint32_t)KVX_VERSION_MAJOR << 16 | (uint32_t)KVX_VERSION_MINOR << 8 | (uint32_t)KVX_VERSION_PATCH;
}

/* Straight-line tables: without `default`, the compiler tells of a status that has no text. */
const char *kvx_status_text(kvx_status status)
{
    switch (status) {
    case KVX_OK:
        return "ok";
    case KVX_PENDING:
        return "not ended yet";
    case KVX_AGAIN:
        return "a bounded resource is short, try again";
    case KVX_TIMEOUT:
        return "the time was up";
    case KVX_INVALID:
        return "invalid argument";
    case KVX_UNSUPPORTED:
        return "not supported here";
    case KVX_NO_MEMORY:
        return "memory could not be had";
    case KVX_UNTRUSTED:
        return "the policy does not accept this platform";
    case KVX_UNKNOWN:
        return "no such ticket";
    case KVX_MISS:
        return "the slot holds no block";
    case KVX_BUSY:
        return "a store to the slot is under way";
    case KVX_STALE:
        return "the slot handle is not current";
    case KVX_REFUSED:
        return "the slot holds a block of another tenant or layout";
    case KVX_TAMPERED:
        return "the block was tampered with";
    case KVX_SUPERSEDED:
        return "a newer store or discard took the slot";
    case KVX_EXHAUSTED:
        return "the budget of the key or of the nonces is used up";
    case KVX_LATCHED:
        return "the context stopped after tampering";
    case KVX_DEVICE_LOST:
        return "the device is lost";
    case KVX_FORKED:
        return "the object belongs to the parent process";
    case KVX_INTERNAL:
        return "a library beneath kvx failed";
    }
    return "unknown status";
}

kvx_status kvx_verdict_status(uint32_t verdict)
{
    static const kvx_status statuses[] = {
        [KVX_VERDICT_NONE] = KVX_PENDING,        [KVX_VERDICT_OK] = KVX_OK,
        [KVX_VERDICT_MISS] = KVX_MISS,           [KVX_VERDICT_BUSY] = KVX_BUSY,
        [KVX_VERDICT_STALE] = KVX_STALE,         [KVX_VERDICT_REFUSED] = KVX_REFUSED,
        [KVX_VERDICT_TAMPERED] = KVX_TAMPERED,   [KVX_VERDICT_SUPERSEDED] = KVX_SUPERSEDED,
        [KVX_VERDICT_EXHAUSTED] = KVX_EXHAUSTED, [KVX_VERDICT_LATCHED] = KVX_LATCHED,
        [KVX_VERDICT_FAULT] = KVX_INTERNAL,
    };
    static_assert(sizeof(statuses) / sizeof(statuses[0]) == KVX_VERDICT_FAULT + 1, "each verdict has a status");
    return verdict <= KVX_VERDICT_FAULT ? statuses[verdict] : KVX_INTERNAL;
}
