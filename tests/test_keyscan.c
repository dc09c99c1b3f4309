/* SPDX-License-Identifier: Apache-2.0 */
/* Where are keys? Every readable byte of the process is compared with the keys that were in use, their round keys and
 * H: after a unit has been sealed nothing but the memory for secrets may hold them, and after destroy, latch or erasure
 * nothing at all. Likewise a core dump of the process, which may not even hold them while the context lives. What is
 * looked for is kept masked, so that the search does not find itself. */
#include "support.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../kernels/aes.h"
#include "../src/context.h"
#include "../src/engine_cpu.h"
#include "kvx_keys.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

#define MASK 0x5ac3a55a3c96e10full
#define N_RUNS 100

static const shape small = {"small", 4, 4, 2, {{1, 2048, 0, 0, BLOCK_MAJOR}, {3, 104, 8, 0, BLOCK_MAJOR}}, 2, 0};

/* -------------------------------------------------------------------------------------------------------- what is
 * sought */

/* 16-byte patterns, masked. */
enum { N_PATTERNS = 64 };
typedef struct patterns {
    uint64_t halves[N_PATTERNS][2];
    uint32_t n;
    uint8_t may_begin[1 << 16]; /* a pattern begins with these two (masked) bytes */
} patterns;

static void add(patterns *p, const uint8_t bytes[16])
{
    uint64_t halves[2];
    memcpy(halves, bytes, 16);
    assert_true(p->n < N_PATTERNS);
    p->halves[p->n][0] = halves[0] ^ MASK;
    p->may_begin[p->halves[p->n][0] & 0xffff] = 1;
    p->halves[p->n++][1] = halves[1] ^ MASK;
    explicit_bzero(halves, sizeof halves);
}

static void add_reversed(patterns *p, const uint8_t bytes[16])
{
    uint8_t other[16];
    for (int i = 0; i < 16; i++)
        other[i] = bytes[15 - i];
    add(p, other); /* as GHASH code for little-endian machines keeps H */
    for (int i = 0; i < 16; i++)
        other[i] = bytes[i / 8 * 8 + 7 - i % 8];
    add(p, other); /* as two words */
    explicit_bzero(other, sizeof other);
}

/* The key, every round key in memory order and as words, and H in three orders. */
static void add_key(patterns *p, const uint8_t key[32])
{
    uint32_t schedule[60], block[4] = {0};
    uint8_t bytes[16];
    kvx_aes256_expand(key, schedule);
    for (unsigned r = 0; r < 15; r++) {
        for (unsigned i = 0; i < 4; i++)
            kvx_store_le32(bytes + 4 * i, schedule[4 * r + i]);
        add(p, bytes);
        for (unsigned i = 0; i < 4; i++)
            kvx_store_be32(bytes + 4 * i, schedule[4 * r + i]);
        add(p, bytes);
    }
    kvx_aes256_encrypt(schedule, block, block);
    for (unsigned i = 0; i < 4; i++)
        kvx_store_le32(bytes + 4 * i, block[i]);
    add(p, bytes);
    add_reversed(p, bytes);
    explicit_bzero(schedule, sizeof schedule);
    explicit_bzero(block, sizeof block);
    explicit_bzero(bytes, sizeof bytes);
}

/* Overwrites what earlier calls left on this thread's stack. */
__attribute__((noinline)) static void clear_stack(void)
{
    uint8_t junk[65536];
    explicit_bzero(junk, sizeof junk);
}

/* -------------------------------------------------------------------------------------------------------- searching */

/* Patterns lie at multiples of 4 wherever code keeps them. */
static uint64_t hits_in(const patterns *p, const uint8_t *bytes, size_t n)
{
    uint64_t hits = 0;
    for (size_t at = 0; at + 16 <= n; at += 4) {
        uint64_t first, second;
        memcpy(&first, bytes + at, 8);
        first ^= MASK;
        if (!p->may_begin[first & 0xffff])
            continue;
        for (uint32_t i = 0; i < p->n; i++) {
            if (first != p->halves[i][0])
                continue;
            memcpy(&second, bytes + at + 8, 8);
            hits += (second ^ MASK) == p->halves[i][1];
        }
    }
    return hits;
}

enum { CHUNK = 1 << 20 };
static uint8_t *chunk; /* in a mapping of its own, which the search leaves out */

typedef struct found {
    uint64_t ordinary, secret; /* hits in memory for secrets, which /proc/self/mem does not give away */
    uint64_t bytes;
} found;

static void search_range(const patterns *p, int file, uint64_t from, uint64_t to, found *f)
{
    for (uint64_t at = from; at < to;) {
        const size_t n = to - at < CHUNK ? (size_t)(to - at) : CHUNK;
        const ssize_t got = pread(file, chunk, n, (off_t)at);
        if (got <= 0)
            break;
        f->ordinary += hits_in(p, chunk, (size_t)got);
        f->bytes += (size_t)got;
        at += (size_t)got > 16 && (size_t)got == n && at + n < to ? (size_t)got - 16 : (size_t)got;
    }
}

static found search_process(const patterns *p)
{
    found f = {0};
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    int file = open("/proc/self/mem", O_RDONLY);
    assert_true(maps != NULL && file >= 0);
    while (fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        char access[8];
        if (sscanf(line, "%lx-%lx %7s", &from, &to, access) != 3 || access[0] != 'r')
            continue;
        if (chunk >= (uint8_t *)from && chunk < (uint8_t *)to)
            continue;
        if (strstr(line, "secretmem"))
            f.secret += hits_in(p, (const uint8_t *)from, to - from);
        else
            search_range(p, file, from, to, &f);
    }
    close(file);
    fclose(maps);
    explicit_bzero(chunk, CHUNK);
    return f;
}

/* -------------------------------------------------------------------------------------------------------- scenarios */

typedef struct stage {
    rig r;
    kvx_slot slots[4];
    kvx_pair pairs[4];
    patterns *sought;
} stage;

/* The key that the blocks need: of an epoch that has been moved on from. */
static void learn_keys(stage *s)
{
    kvx_header header;
    kvx_record records[2];
    const uint8_t *key;
    expect_ok(s->r.ctx->ops->export_slot(s->r.ctx->engine, 0, &header, records, 2));
    expect_ok(kvx_keyring_block_key(s->r.ctx->keyring, header.key_slot, &key));
    add_key(s->sought, key);
    kvx_keyring_done(s->r.ctx->keyring);
    explicit_bzero(&records, sizeof records);
    clear_stack();
}

static void stage_open(stage *s, patterns *sought)
{
    const rig_options options = {.n_slots = 4, .n_tenants = 2};
    memset(s, 0, sizeof *s);
    memset(sought, 0, sizeof *sought);
    s->sought = sought;
    rig_open(&s->r, &device_cpu, &small, &options);
    slots_take(s->r.pool, 4, s->slots);
    pairs_set(s->pairs, 4, s->r.layout, 0, s->slots);
    store_all(&s->r, 4, s->pairs);
    expect_ok(kvx_key_rotate(s->r.ctx, 0));
    restore_all(&s->r, 4, s->pairs);
    learn_keys(s);
}

static void expect_nothing(const patterns *sought)
{
    const found f = search_process(sought);
    assert_true(f.bytes > 1 << 20);
    if (f.ordinary || f.secret)
        fail_msg("%lu hits in ordinary memory, %lu in memory for secrets", (unsigned long)f.ordinary,
                 (unsigned long)f.secret);
}

static int has_secret_memory(const stage *s)
{
    return kvx_keyring_rung(s->r.ctx->keyring) == KVX_SECMEM_SECRET;
}

/* The search finds keys where they are, and nowhere else. */
static void expect_in_secret_only(const stage *s)
{
    const found f = search_process(s->sought);
    if (!has_secret_memory(s)) { /* they are in locked memory: found among the rest */
        assert_true(f.ordinary > 0);
        return;
    }
    assert_int_equal(f.ordinary, 0);
    assert_true(f.secret > 0);
}

static void latch(stage *s)
{
    kvx_ticket ticket;
    slot_bytes(s->r.pool, s->slots[2])[7] ^= 1;
    expect_ok(kvx_restore(s->r.ctx, 4, s->pairs, NULL, &ticket));
    expect_ok(kvx_wait(s->r.ctx, 1, &ticket, 20000000000u));
    assert_int_equal(kvx_restore(s->r.ctx, 4, s->pairs, NULL, &ticket), KVX_LATCHED);
}

enum ending { DESTROY, LATCH, ERASE, ALIVE };

static void run_once(enum ending ending, patterns *sought)
{
    stage s;
    stage_open(&s, sought);
    expect_in_secret_only(&s);
    if (ending == LATCH)
        latch(&s);
    if (ending == ERASE)
        expect_ok(kvx_tenant_erase(s.r.ctx, 0, NULL));
    if (ending != DESTROY)
        expect_nothing(sought);
    rig_close(&s.r);
    expect_nothing(sought);
}

static void nothing_is_left(void **state)
{
    const enum ending ending = *(const enum ending *)*state;
    patterns *sought;
    if (SANITIZED)
        skip(); /* shadow memory and quarantines are too large to search, and keep copies */
    sought = calloc(1, sizeof *sought);
    assert_non_null(sought);
    chunk = mmap(NULL, CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(chunk != MAP_FAILED);
    for (int i = 0; i < N_RUNS; i++)
        run_once(ending, sought);
    munmap(chunk, CHUNK);
    free(sought);
}

/* Keys that are looked for are found: a search that finds nothing is no proof without this. */
static void the_search_finds(void **state)
{
    static uint8_t key[32], schedule_bytes[240];
    uint32_t schedule[60];
    patterns *sought;
    (void)state;
    if (SANITIZED)
        skip();
    sought = calloc(1, sizeof *sought);
    assert_non_null(sought);
    chunk = mmap(NULL, CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(chunk != MAP_FAILED);
    assert_int_equal(kvx_keyring_random(key, sizeof key), KVX_OK);
    add_key(sought, key);
    assert_true(search_process(sought).ordinary >= 2);
    kvx_aes256_expand(key, schedule);
    memcpy(schedule_bytes, schedule, 240);
    explicit_bzero(key, 32);
    assert_true(search_process(sought).ordinary >= 15);
    explicit_bzero(schedule, sizeof schedule);
    explicit_bzero(schedule_bytes, 240);
    clear_stack();
    assert_int_equal(search_process(sought).ordinary, 0);
    munmap(chunk, CHUNK);
    free(sought);
}

/* -------------------------------------------------------------------------------------------------------- core dump */

/* In the child: makes a context, tells the parent what to look for, and dies. */
static void die(int pipe_end, enum ending ending, int raise_it)
{
    static patterns sought; /* masked */
    const struct rlimit unlimited = {RLIM_INFINITY, RLIM_INFINITY};
    stage s;
    (void)setrlimit(RLIMIT_CORE, &unlimited);
    stage_open(&s, &sought);
    if (ending == LATCH)
        latch(&s);
    if (ending == ERASE)
        (void)kvx_tenant_erase(s.r.ctx, 0, NULL);
    if (ending == DESTROY)
        rig_close(&s.r);
    if (write(pipe_end, &sought, sizeof sought) != (ssize_t)sizeof sought) /* blocks until all of it is read */
        _exit(1);
    if (raise_it)
        abort();
    _exit(0);
}

static int core_file(const char *folder, char *path, size_t room)
{
    struct dirent *entry;
    DIR *dir = opendir(folder);
    int n = 0;
    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL)
        if (strncmp(entry->d_name, "core", 4) == 0)
            n = snprintf(path, room, "%s/%s", folder, entry->d_name);
    closedir(dir);
    return n > 0;
}

static uint64_t hits_in_file(const patterns *sought, const char *path, uint64_t *bytes)
{
    struct stat about;
    uint64_t hits;
    int file = open(path, O_RDONLY);
    assert_true(file >= 0 && fstat(file, &about) == 0 && about.st_size > 0);
    const uint8_t *all = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    assert_true(all != MAP_FAILED);
    hits = hits_in(sought, all, (size_t)about.st_size);
    *bytes = (uint64_t)about.st_size;
    munmap((void *)(uintptr_t)all, (size_t)about.st_size);
    close(file);
    return hits;
}

/* Returns 0 if this machine writes no core files into the folder. */
static int dump_once(enum ending ending)
{
    char folder[] = "/tmp/kvx-core-XXXXXX", path[512];
    patterns sought;
    uint64_t bytes = 0, hits;
    int pipes[2], ended = 0, got_core;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(pipe(pipes), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (chdir(folder) == 0)
            die(pipes[1], ending, 1);
        _exit(1);
    }
    close(pipes[1]);
    for (size_t at = 0; at < sizeof sought;) {
        const ssize_t got = read(pipes[0], (char *)&sought + at, sizeof sought - at);
        assert_true(got > 0);
        at += (size_t)got;
    }
    close(pipes[0]);
    assert_int_equal(waitpid(child, &ended, 0), child);
    got_core = WIFSIGNALED(ended) && core_file(folder, path, sizeof path);
    if (got_core) {
        hits = hits_in_file(&sought, path, &bytes);
        (void)unlink(path);
        assert_true(bytes > 100000);
        assert_int_equal(hits, 0);
    }
    (void)rmdir(folder);
    return got_core;
}

/* Also of a context that is alive: its keys are in memory that is not dumped. */
static void core_dumps_hold_no_keys(void **state)
{
    (void)state;
    if (SANITIZED)
        skip();
    for (int i = 0; i < N_RUNS; i++)
        if (!dump_once((enum ending)(i % 4))) {
            print_message("this machine writes no core files here\n");
            skip();
        }
}

int main(void)
{
    static enum ending destroy = DESTROY, latched = LATCH, erase = ERASE;
    static enum ending *const endings[] = {&destroy, &latched, &erase};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_search_finds),
        {"nothing is left after destroy", nothing_is_left, NULL, NULL, (void *)(uintptr_t)endings[0]},
        {"nothing is left after the latch", nothing_is_left, NULL, NULL, (void *)(uintptr_t)endings[1]},
        {"nothing is left after an erasure", nothing_is_left, NULL, NULL, (void *)(uintptr_t)endings[2]},
        cmocka_unit_test(core_dumps_hold_no_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
