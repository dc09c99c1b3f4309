/* SPDX-License-Identifier: Apache-2.0 */
/* Sub-bench `pool`: how long a pool of host memory takes to be ready and to go away, by size and kind of page, beside
 * cudaHostAlloc and memory touched by one thread; and whether copies run as fast from it. */
#include "bench_pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvx_pool.h"

#define SLOT_BYTES (1ull << 20)
#define SMALL_PAGES_MAX (8ull << 30) /* larger ones take minutes and show the same rate */
#define COPY_BYTES (64ull << 20)
#define COPIES 32u
#define GB 1e9

static const bench_option options[] = {
    {"--sizes", BENCH_SIZES, "pools to make (default 256M,1G; at normal scale to 16G)"},
    {"--threads", BENCH_COUNTS, "threads that touch and pin (default: the pool's choice)"},
    {"--cold", BENCH_FLAG, "do not touch the memory once before measuring"},
    {"--no-others", BENCH_FLAG, "leave out cudaHostAlloc and the single thread"},
    {"--killed", BENCH_FLAG, "also time the end of a process that is killed"},
    {"--hold", BENCH_FLAG, "make one pool and wait: the process that --killed kills"},
    {NULL, BENCH_FLAG, NULL}};

static const char help[] =
    "Makes pools of each size on each kind of page that the system has, and takes them down again. `ready`\n"
    "is the time of kvx_pool_create(); `first` the time until the first slots, when the pool is filled in\n"
    "the background; `gone` the time of kvx_pool_destroy(). With a GPU the memory is pinned, else only\n"
    "touched. Small pages up to 8 GiB only. Beside it: cudaHostAlloc() of the same size, and memory on transparent "
    "huge pages that one\n"
    "thread touches and one call registers. Then copies of 64 MiB between GPU and both kinds of memory.\n"
    "--bytes makes pools of one size only. With --killed `gone` is also shown for a process that ends by\n"
    "SIGKILL with its pool: until the kernel has unpinned and freed everything.\n"
    "A virtual machine may get its memory from its host only when it is first used; unless --cold, all of\n"
    "the largest size is touched once before, by a pool that is not measured.\n";

static const char *const kind_names[] = {"auto", "small", "transparent", "2M", "1G"};

enum curve { CURVE_READY, CURVE_FIRST, CURVE_CUDA, CURVE_ONE_THREAD, N_CURVES };

/* What is drawn: seconds by GiB. */
typedef struct picture {
    bench_curve curves[N_CURVES];
} picture;

/* One pool, made and taken down. */
typedef struct trial {
    double ready, first, gone;
    kvx_pool_stats stats;
} trial;

static kvx_pool_config config_of(const bench *b, const kvx_slot_class *class, kvx_page_kind pages)
{
    kvx_pool_config config = KVX_POOL_CONFIG_INIT;
    config.classes = class;
    config.n_classes = 1;
    config.engine = b->dev.engine;
    config.pages = pages;
    config.n_threads = (uint32_t)bench_list_of(b, "--threads", "0").values[0];
    return config;
}

static bool make_and_break(bench *b, uint64_t bytes, kvx_page_kind pages, bool background, trial *t)
{
    kvx_slot_class class = {SLOT_BYTES, (uint32_t)(bytes / SLOT_BYTES), 1, 0};
    kvx_pool_config config = config_of(b, &class, pages);
    kvx_pool *pool = NULL;
    kvx_slot slot;
    config.background = background;
    double begin = bench_now();
    if (!bench_ok(kvx_pool_create(&config, &pool), "kvx_pool_create"))
        return false;
    bool done = bench_ok(kvx_pool_take(pool, 0, 1, &slot), "kvx_pool_take");
    t->first = bench_now() - begin;
    done = bench_ok(kvx_pool_wait(pool, UINT64_MAX), "kvx_pool_wait") && done;
    t->ready = bench_now() - begin;
    t->stats.size = sizeof(t->stats);
    done = bench_ok(kvx_pool_stats_get(pool, &t->stats), "kvx_pool_stats_get") && done;
    begin = bench_now();
    done = bench_ok(kvx_pool_destroy(pool), "kvx_pool_destroy") && done;
    t->gone = bench_now() - begin;
    return done;
}

/* ---------------------------------------------------------------------------------------------------- kvx's pools */

static double gib(uint64_t bytes)
{
    return (double)bytes / (double)(1ull << 30);
}

static void print_line(const char *what, uint64_t bytes, double first, double ready, double gone)
{
    printf("%-6s %-24s %9.3f %9.3f %9.3f %10.2f %12.1f\n", bench_size(bytes), what, first, ready, gone,
           ready > 0 ? (double)bytes / ready / GB : 0.0, gone / gib(bytes) * 1000.0);
    fflush(stdout);
}

static void check_stats(bench *b, const kvx_pool_stats *stats, uint64_t bytes)
{
    if (stats->bytes_ready != bytes || stats->bytes_asked != bytes)
        bench_fail(b, "a pool of %s holds %s", bench_size(bytes), bench_size(stats->bytes_ready));
    if (!bench_on_cpu(b) && (!stats->pinned || stats->bytes_pinned != bytes))
        bench_fail(b, "only %s of a pool of %s are pinned", bench_size(stats->bytes_pinned), bench_size(bytes));
}

/* What a pool of the size costs besides time. */
static void show_cost(bench *b, const kvx_pool_stats *stats, uint64_t bytes)
{
    printf("%-6s asked, %s held; books %s; records and headers %s of device memory a context\n", bench_size(bytes),
           bench_size(stats->bytes_held), bench_size(stats->book_bytes), bench_size(stats->record_bytes));
    bench_value(b, "pool_held", "bytes", (double)stats->bytes_held, "bytes=%llu", (unsigned long long)bytes);
    bench_value(b, "pool_records", "bytes", (double)stats->record_bytes, "bytes=%llu slot_bytes=%llu units=1",
                (unsigned long long)bytes, (unsigned long long)SLOT_BYTES);
}

/* A kind that the system did not give is not shown under its name. */
static bool measure_pool(bench *b, uint64_t bytes, kvx_page_kind pages, bool background, double *shown)
{
    bench_samples ready = {0}, first = {0}, gone = {0};
    uint32_t n = bench_repeat(b, 1, 3, 5);
    trial t = {0};
    bool done = true;
    for (uint32_t i = 0; done && i < n; i++) {
        done = make_and_break(b, bytes, pages, background, &t);
        bench_samples_add(&ready, t.ready * 1e6);
        bench_samples_add(&first, t.first * 1e6);
        bench_samples_add(&gone, t.gone * 1e6);
    }
    if (done && t.stats.pages == pages) {
        const char *kind = kind_names[pages];
        const char *how = background ? "background" : "whole";
        char what[64];
        check_stats(b, &t.stats, bytes);
        if (!background && pages != KVX_PAGES_SMALL)
            show_cost(b, &t.stats, bytes);
        double r = bench_row(b, "pool_ready", "us", &ready, "bytes=%llu pages=%s fill=%s threads=%u",
                             (unsigned long long)bytes, kind, how, t.stats.n_threads);
        double f = bench_row(b, "pool_first", "us", &first, "bytes=%llu pages=%s fill=%s", (unsigned long long)bytes,
                             kind, how);
        double g =
            bench_row(b, "pool_gone", "us", &gone, "bytes=%llu pages=%s fill=%s", (unsigned long long)bytes, kind, how);
        bench_value(b, "pool_touch", "us", (double)t.stats.touch_ns / 1e3, "bytes=%llu pages=%s fill=%s",
                    (unsigned long long)bytes, kind, how);
        bench_value(b, "pool_pin", "us", (double)t.stats.pin_ns / 1e3, "bytes=%llu pages=%s fill=%s",
                    (unsigned long long)bytes, kind, how);
        bench_value(b, "pool_huge", "x", (double)t.stats.bytes_huge / (double)bytes, "bytes=%llu pages=%s fill=%s",
                    (unsigned long long)bytes, kind, how);
        snprintf(what, sizeof(what), "kvx %s%s", kind, background ? ", behind" : "");
        print_line(what, bytes, f / 1e6, r / 1e6, g / 1e6);
        *shown = (background ? f : r) / 1e6;
    }
    bench_samples_free(&ready);
    bench_samples_free(&first);
    bench_samples_free(&gone);
    return done;
}

/* From the best kind that the system gave on; that one is drawn. */
static bool measure_kinds(bench *b, uint64_t bytes, kvx_page_kind best, picture *drawn)
{
    static const kvx_page_kind kinds[] = {KVX_PAGES_1G, KVX_PAGES_2M, KVX_PAGES_TRANSPARENT, KVX_PAGES_SMALL};
    for (uint32_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
        double ready = 0, first = 0;
        if (kinds[i] > best || (kinds[i] == KVX_PAGES_SMALL && bytes > SMALL_PAGES_MAX))
            continue;
        if (!measure_pool(b, bytes, kinds[i], false, &ready) || !measure_pool(b, bytes, kinds[i], true, &first))
            return false;
        if (kinds[i] == best) {
            bench_curve_add(&drawn->curves[CURVE_READY], gib(bytes), ready);
            bench_curve_add(&drawn->curves[CURVE_FIRST], gib(bytes), first);
        }
    }
    return true;
}

/* ----------------------------------------------------------------------------------------------------- the others */

static bool single_thread(bench *b, uint64_t bytes, double *ready, double *gone)
{
    double begin = bench_now(), spent = 0;
    bool done = true;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return bench_ok(KVX_NO_MEMORY, "mmap");
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 0, bytes);
#if KVX_WITH_CUDA
    done = bench_on_cpu(b) || bench_pool_register(memory, bytes, &spent);
#endif
    *ready = bench_now() - begin;
    begin = bench_now();
#if KVX_WITH_CUDA
    done = done && (bench_on_cpu(b) || bench_pool_unregister(memory, &spent));
#endif
    (void)b, (void)spent;
    munmap(memory, bytes);
    *gone = bench_now() - begin;
    return done;
}

static bool cuda_allocator(bench *b, uint64_t bytes, double *ready, double *gone)
{
    void *memory = NULL;
    (void)b, (void)bytes, (void)memory;
    *ready = *gone = 0;
#if KVX_WITH_CUDA
    return bench_pool_host_alloc(bytes, &memory, ready) && bench_pool_host_free(memory, gone);
#else
    return true;
#endif
}

typedef bool other_fn(bench *b, uint64_t bytes, double *ready, double *gone);

static bool measure_other(bench *b, uint64_t bytes, other_fn *fn, const char *metric, bench_curve *curve)
{
    bench_samples ready = {0}, gone = {0};
    uint32_t n = bench_repeat(b, 1, 1, 3);
    char metrics[2][48];
    bool done = true;
    for (uint32_t i = 0; done && i < n; i++) {
        double r = 0, g = 0;
        done = fn(b, bytes, &r, &g);
        bench_samples_add(&ready, r * 1e6);
        bench_samples_add(&gone, g * 1e6);
    }
    snprintf(metrics[0], sizeof(metrics[0]), "%s_ready", metric);
    snprintf(metrics[1], sizeof(metrics[1]), "%s_gone", metric);
    if (done) {
        double r = bench_row(b, metrics[0], "us", &ready, "bytes=%llu", (unsigned long long)bytes);
        double g = bench_row(b, metrics[1], "us", &gone, "bytes=%llu", (unsigned long long)bytes);
        print_line(curve->name, bytes, r / 1e6, r / 1e6, g / 1e6);
        bench_curve_add(curve, gib(bytes), r / 1e6);
    }
    bench_samples_free(&ready);
    bench_samples_free(&gone);
    return done;
}

/* ------------------------------------------------------------------------------------------ a process that is killed
 */

#define HOLDING "holding the pool"

/* The child's part: says that the pool is there, and waits to be killed. */
static bool hold(bench *b, uint64_t bytes)
{
    kvx_slot_class class = {SLOT_BYTES, (uint32_t)(bytes / SLOT_BYTES), 1, 0};
    kvx_pool_config config = config_of(b, &class, KVX_PAGES_AUTO);
    kvx_pool *pool = NULL;
    if (!bench_ok(kvx_pool_create(&config, &pool), "kvx_pool_create"))
        return false;
    puts("\n" HOLDING);
    fflush(stdout);
    for (;;)
        pause();
}

/* A program of its own: a forked child may not use CUDA. */
static pid_t start_holder(const bench *b, uint64_t bytes, FILE **output)
{
    int ends[2];
    char size[32];
    snprintf(size, sizeof(size), "%llu", (unsigned long long)bytes);
    if (pipe(ends) != 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        execl("/proc/self/exe", "kvx-bench", "pool", "--engine", bench_on_cpu(b) ? "cpu" : "cuda", "--bytes", size,
              "--hold", (char *)NULL);
        _exit(1);
    }
    close(ends[1]);
    *output = fdopen(ends[0], "r");
    return pid;
}

static bool measure_killed(bench *b, uint64_t bytes)
{
    char line[256] = "";
    FILE *output = NULL;
    int ended = 0;
    pid_t pid = start_holder(b, bytes, &output);
    while (pid > 0 && output && strncmp(line, HOLDING, strlen(HOLDING)) != 0)
        if (!fgets(line, sizeof(line), output))
            break;
    double begin = bench_now();
    if (pid > 0) {
        kill(pid, SIGKILL);
        (void)waitpid(pid, &ended, 0);
    }
    double spent = bench_now() - begin;
    if (output)
        fclose(output);
    if (strncmp(line, HOLDING, strlen(HOLDING)) != 0) {
        fprintf(stderr, "the process that was to be killed did not come up\n");
        return false;
    }
    bench_value(b, "pool_killed", "us", spent * 1e6, "bytes=%llu", (unsigned long long)bytes);
    printf("%-6s %-24s %29.3f %10s %12.1f\n", bench_size(bytes), "kvx, process killed", spent, "",
           spent / gib(bytes) * 1000.0);
    return true;
}

/* ---------------------------------------------------------------------------------------------------------- copies */

#if KVX_WITH_CUDA

static bool copy_rates(bench *b, void *const *pieces, const char *name, void *dev_memory)
{
    static const char *const directions[] = {"out", "in"};
    bool done = true;
    for (uint32_t d = 0; done && d < 2; d++) {
        bench_samples rate = {0};
        for (uint32_t i = 0; done && i <= bench_repeat(b, 3, 9, 15); i++) {
            double seconds = 0;
            done = bench_pool_copy(b, pieces, COPIES, COPY_BYTES, dev_memory, d == 0, &seconds);
            if (done && i > 0) /* the first warms up */
                bench_samples_add(&rate, (double)(COPIES * COPY_BYTES) / seconds / GB);
        }
        if (done)
            printf("copies of 64M %-4s %-16s %6.1f GB/s\n", directions[d], name,
                   bench_row(b, "pool_copy", "GB/s", &rate, "memory=%s direction=%s", name, directions[d]));
        bench_samples_free(&rate);
    }
    return done;
}

static bool copy_pool(bench *b, void *dev_memory)
{
    kvx_slot_class class = {COPY_BYTES, COPIES, 1, 1};
    kvx_pool_config config = config_of(b, &class, KVX_PAGES_AUTO);
    kvx_pool *pool = NULL;
    void *pieces[COPIES];
    uint64_t n_bytes;
    if (!bench_ok(kvx_pool_create(&config, &pool), "kvx_pool_create"))
        return false;
    bool done = true;
    for (uint32_t i = 0; done && i < COPIES; i++) {
        kvx_slot slot = {0, i, 0};
        done = bench_ok(kvx_pool_slot_bytes(pool, slot, &pieces[i], &n_bytes), "kvx_pool_slot_bytes");
    }
    done = done && copy_rates(b, pieces, "kvx_pool", dev_memory);
    return bench_ok(kvx_pool_destroy(pool), "kvx_pool_destroy") && done;
}

static bool copy_cuda(bench *b, void *dev_memory)
{
    void *memory = NULL, *pieces[COPIES];
    double seconds;
    if (!bench_pool_host_alloc(COPIES * COPY_BYTES, &memory, &seconds))
        return false;
    for (uint32_t i = 0; i < COPIES; i++)
        pieces[i] = (uint8_t *)memory + i * COPY_BYTES;
    bool done = copy_rates(b, pieces, "cudaHostAlloc", dev_memory);
    return bench_pool_host_free(memory, &seconds) && done;
}

static bool measure_copies(bench *b)
{
    void *dev_memory = NULL;
    if (bench_on_cpu(b))
        return true;
    if (!device_alloc(&b->dev, COPY_BYTES, &dev_memory))
        return false;
    puts("");
    bool done = copy_pool(b, dev_memory) && copy_cuda(b, dev_memory);
    device_free(&b->dev, dev_memory);
    return done;
}

#else

static bool measure_copies(bench *b)
{
    (void)b;
    return true;
}

#endif

/* ------------------------------------------------------------------------------------------------------------- run */

static bool measure_size(bench *b, uint64_t bytes, kvx_page_kind best, picture *drawn)
{
    if (!measure_kinds(b, bytes, best, drawn))
        return false;
    if (bench_flag(b, "--killed") && !measure_killed(b, bytes))
        return false;
    if (bench_flag(b, "--no-others"))
        return true;
    if (!bench_on_cpu(b) && !measure_other(b, bytes, cuda_allocator, "cudaHostAlloc", &drawn->curves[CURVE_CUDA]))
        return false;
    return measure_other(b, bytes, single_thread, "single_thread", &drawn->curves[CURVE_ONE_THREAD]);
}

static bool draw(const bench *b, const picture *drawn)
{
    plot_panel panel = {.title = "until usable"};
    plot made = {
        .title = "Host memory for a pool", .x_label = "GiB", .y_label = "seconds", .panels = &panel, .n_panels = 1};
    for (uint32_t i = 0; i < N_CURVES; i++)
        if (drawn->curves[i].n > 0)
            panel.lines[panel.n_lines++] =
                (plot_line){drawn->curves[i].name, drawn->curves[i].x, drawn->curves[i].y, drawn->curves[i].n};
    return bench_plot(b, &made);
}

/* Also finds out which kind of page the system has. */
static bool warm_up(bench *b, uint64_t bytes, kvx_page_kind *best)
{
    trial t = {0};
    bool cold = bench_flag(b, "--cold");
    if (!make_and_break(b, cold ? SLOT_BYTES * 64 : bytes, KVX_PAGES_AUTO, false, &t))
        return false;
    *best = t.stats.pages;
    if (cold)
        return true;
    bench_say("pool: touched %s once in %.2f s, so that the machine has them", bench_size(bytes), t.ready);
    bench_value(b, "pool_warm_up", "us", t.ready * 1e6, "bytes=%llu", (unsigned long long)bytes);
    return true;
}

static bench_list sizes_of(const bench *b)
{
    bool small = bench_on_cpu(b) || b->settings.scale == BENCH_QUICK;
    bench_list sizes = bench_list_of(b, "--sizes",
                                     small                             ? "256M,1G"
                                     : b->settings.scale == BENCH_FULL ? "1G,4G,16G,64G"
                                                                       : "1G,4G,16G");
    if (b->settings.n_bytes > 0) {
        sizes.n = 1;
        sizes.values[0] = b->settings.n_bytes;
    }
    for (uint32_t i = 0; i < sizes.n; i++) {
        sizes.values[i] = sizes.values[i] / SLOT_BYTES * SLOT_BYTES;
        if (sizes.values[i] == 0)
            sizes.values[i] = SLOT_BYTES;
    }
    return sizes;
}

static bool measure_all(bench *b, const bench_list *sizes, picture *drawn)
{
    kvx_page_kind best = KVX_PAGES_AUTO;
    uint64_t largest = 0;
    for (uint32_t i = 0; i < sizes->n; i++)
        largest = sizes->values[i] > largest ? sizes->values[i] : largest;
    if (!bench_fits(largest) || !warm_up(b, largest, &best))
        return false;
    printf("%-6s %-24s %9s %9s %9s %10s %12s\n", "size", "memory", "first s", "ready s", "gone s", "GB/s",
           "gone ms/GiB");
    for (uint32_t i = 0; i < sizes->n; i++)
        if (!measure_size(b, sizes->values[i], best, drawn))
            return false;
    return measure_copies(b);
}

static bool run(bench *b)
{
    bench_list sizes = sizes_of(b);
    if (bench_flag(b, "--hold"))
        return hold(b, sizes.values[0]);
    picture drawn = {{[CURVE_READY] = {.name = "kvx pool, all of it"},
                      [CURVE_FIRST] = {.name = "kvx pool, first slots"},
                      [CURVE_CUDA] = {.name = "cudaHostAlloc"},
                      [CURVE_ONE_THREAD] = {.name = "one thread"}}};
    return measure_all(b, &sizes, &drawn) && draw(b, &drawn);
}

const bench_sub bench_pool = {"pool", "pools of host memory: time to be ready and to go away", help, options, run};
