/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for secrets: both rungs, what they keep out, and falling from one to the other. Calls of the system fail
 * through fake_memory.h. */
#include "cmocka_door.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_memory.h"
#include "platform.h"
#include "secmem.h"

/* The sanitizers make mlock do nothing. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static int reset(void **state)
{
    (void)state;
    fake_memory_reset();
    return 0;
}

/* Does the mapping that begins at `memory` have all these flags? */
static int has_flags(const void *memory, const char *flags[], size_t n)
{
    char line[512], start[32];
    int inside = 0, found = 0;
    snprintf(start, sizeof(start), "%lx-", (unsigned long)(uintptr_t)memory);
    FILE *file = fopen("/proc/self/smaps", "r");
    assert_non_null(file);
    while (!found && fgets(line, sizeof(line), file)) {
        inside = inside || strncmp(line, start, strlen(start)) == 0;
        found = inside && strncmp(line, "VmFlags:", 8) == 0;
    }
    fclose(file);
    for (size_t i = 0; found && i < n; i++)
        found = strstr(line, flags[i]) != NULL;
    return found;
}

static void secmem_is_wiped_and_checked(void **state)
{
    uint8_t zero[5000] = {0};
    (void)state;
    for (fake.no_secret_memory = 0; fake.no_secret_memory < 2; fake.no_secret_memory++) {
        void *memory = NULL;
        assert_int_equal(kvx_secmem_map(5000, &memory, NULL), KVX_OK);
        assert_memory_equal(memory, zero, 5000);
        memset(memory, 0x5a, 5000);
        kvx_secmem_wipe(memory, 4999);
        assert_memory_equal(memory, zero, 4999);
        assert_int_equal(((uint8_t *)memory)[4999], 0x5a);
        kvx_secmem_unmap(memory, 5000);
        kvx_secmem_unmap(NULL, 5000);
        assert_int_equal(fake.n_maps, 0);
        assert_int_equal(kvx_secmem_map(0, &memory, NULL), KVX_INVALID);
        assert_int_equal(kvx_secmem_map(SIZE_MAX, &memory, NULL), KVX_INVALID);
    }
}

static void expect_absent_in_child(const void *memory)
{
    int ended = 0, pipes[2];
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) /* write(2) says EFAULT for memory that is not there, without a signal */
        _exit(write(pipes[1], memory, 1) == -1 && errno == EFAULT ? 0 : 1);
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended));
    assert_int_equal(WEXITSTATUS(ended), 0);
    close(pipes[0]);
    close(pipes[1]);
}

static void locked_memory_is_private(void **state)
{
    const char *flags[] = {" lo", " dd", " dc"}; /* locked; no dump, no copy */
    enum kvx_secmem_rung rung = KVX_SECMEM_NONE;
    void *memory = NULL;
    (void)state;
    fake.no_secret_memory = 1;
    assert_int_equal(kvx_secmem_map(100, &memory, &rung), KVX_OK);
    assert_int_equal(rung, KVX_SECMEM_LOCKED);
    assert_true(has_flags(memory, flags + SANITIZED, 3 - SANITIZED));
    expect_absent_in_child(memory);
    kvx_secmem_unmap(memory, 100);
}

/* The kernel itself does not read it on anybody's behalf. */
static void secret_memory_is_unreachable(void **state)
{
    const char *flags[] = {" dd", " dc"};
    enum kvx_secmem_rung rung = KVX_SECMEM_NONE;
    void *memory = NULL;
    char byte;
    (void)state;
    assert_int_equal(kvx_secmem_map(100, &memory, &rung), KVX_OK);
    if (rung == KVX_SECMEM_SECRET) {
        int file = open("/proc/self/mem", O_RDONLY);
        assert_true(file >= 0);
        memset(memory, 0x5a, 100);
        assert_int_equal(pread(file, &byte, 1, (off_t)(uintptr_t)memory), -1);
        close(file);
        assert_true(has_flags(memory, flags, 2));
        expect_absent_in_child(memory);
    }
    kvx_secmem_unmap(memory, 100);
    assert_int_equal(fake.n_maps, 0);
    if (rung != KVX_SECMEM_SECRET) {
        print_message("this kernel has no memfd_secret\n");
        skip();
    }
}

/* Whatever step on the upper rung fails, the lower one is taken and nothing is left. */
static void falls_back(void **state)
{
    static const struct {
        const char *call;
        unsigned after;
    } cases[] = {{"mmap", 0}, {"madvise", 0}, {"madvise", 1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        enum kvx_secmem_rung rung = KVX_SECMEM_NONE;
        void *memory = NULL;
        fake.fail_once = 1;
        fake.fail = cases[i].call;
        fake.fail_after = cases[i].after;
        assert_int_equal(kvx_secmem_map(100, &memory, &rung), KVX_OK);
        assert_int_equal(rung, KVX_SECMEM_LOCKED);
        kvx_secmem_unmap(memory, 100);
        assert_int_equal(fake.n_maps, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(secmem_is_wiped_and_checked, reset),
        cmocka_unit_test_setup(locked_memory_is_private, reset),
        cmocka_unit_test_setup(secret_memory_is_unreachable, reset),
        cmocka_unit_test_setup(falls_back, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
