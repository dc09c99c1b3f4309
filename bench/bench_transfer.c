/* SPDX-License-Identifier: Apache-2.0 */
/* Sealed stores and verified restores by size of slot, piece and batch, beside plaintext copies of the same pieces. */
#include "bench.h"

#include <stdio.h>
#include <string.h>

static const bench_option options[] = {
    {"--slots", BENCH_SIZES, "bytes of a slot, 64K .. 16M; with any of these lists every combination is measured"},
    {"--pieces", BENCH_SIZES, "bytes of a piece, 4K .. 1M, that divide the slot into at most 1,024"},
    {"--batches", BENCH_COUNTS, "blocks per call, 1 .. 4096"},
    {"--unit", BENCH_SIZES, "bytes sealed under one tag, at least a piece (default 64K)"},
    {NULL, BENCH_FLAG, NULL},
};

static const char help[] =
    "kvx_store and kvx_restore of many blocks, calls in flight behind each other, beside plaintext copies of the same\n"
    "pieces to the same memory in the same run (`kvx-bench link --help` says which):\n"
    "  sealed_staged  sealed in bursts into GPU memory, drained by the copy engine; restored through the copy engine,\n"
    "                 every tag checked\n"
    "  sealed_direct  the same with KVX_HINT_IDLE: sealed straight into host memory (stores only)\n"
    "Rates are payload bytes by the host's clock from the first call to the end of the last; under `both` that of one\n"
    "direction while the other runs too. The last columns divide by the plaintext rates above them.\n"
    "Without lists the sizes of piece, slot and batch vary one at a time; --full takes all combinations of the "
    "sizes.\n";

/* One scene: a slot, a piece, and batches of which the first is also set beside the baselines. */
typedef struct place {
    uint64_t slot, piece;
    uint32_t batches[BENCH_LIST_MAX];
    uint32_t n_batches;
} place;

#define PLACES_MAX 128u

typedef struct transfer {
    bench *b;
    uint64_t measured[PLACES_MAX][2]; /* slots and pieces of the places so far */
    uint32_t n_measured;
    uint64_t unit;
    bench_picture by_piece, by_slot;
    uint64_t slot_drawn, piece_drawn; /* what is held still in the two pictures */
} transfer;

/* ------------------------------------------------------------------------------------------------------------ measure
 */

static bool possible(uint64_t slot, uint64_t piece)
{
    return piece <= slot && slot % piece == 0 && slot / piece <= KVX_LANES_MAX && piece % 16 == 0;
}

static uint32_t least(uint64_t a, uint64_t b)
{
    return (uint32_t)(a < b ? a : b);
}

static bench_shape shape_of(const transfer *t, const place *p)
{
    uint64_t n_bytes = bench_bytes(t->b, 64ull << 20, 512ull << 20, 1ull << 30, 4ull << 30);
    uint64_t unit = t->unit > p->piece ? t->unit : p->piece;
    bench_shape shape = {.n_kinds = 1, .piece_bytes = {p->piece}};
    shape.n_layers = (uint32_t)(p->slot / p->piece);
    shape.n_segments = least(p->slot > unit ? p->slot / unit : 1, KVX_UNITS_MAX);
    shape.n_blocks = least(n_bytes / p->slot, 65536);
    if (shape.n_blocks < 2)
        shape.n_blocks = 2;
    return shape;
}

static bool measure_batch(transfer *t, bench_scene *s, const place *p, uint32_t batch, bool first)
{
    char title[160], params[160];
    bench_case c = {.title = title,
                    .params = params,
                    .batch = batch,
                    .repeat = bench_repeat(t->b, 2, 5, 9),
                    .n_plain = first ? BASELINE_OFFLOADS : 0,
                    .pieces_only = p->slot != t->slot_drawn || p->piece != t->piece_drawn,
                    .sealed = true,
                    .idle = true};
    bench_outcome outcome;
    snprintf(title, sizeof(title), "slots of %s, pieces of %s, batches of %u (%u blocks, %u units each)",
             bench_size(p->slot), bench_size(p->piece), batch, s->shape.n_blocks, s->shape.n_segments);
    snprintf(params, sizeof(params), "slot=%llu piece=%llu batch=%u segments=%u blocks=%u", (unsigned long long)p->slot,
             (unsigned long long)p->piece, batch, s->shape.n_segments, s->shape.n_blocks);
    if (!bench_measure(s, &c, &outcome))
        return false;
    if (first && p->slot == t->slot_drawn)
        bench_picture_add(&t->by_piece, (double)p->piece, &outcome);
    if (first && p->piece == t->piece_drawn)
        bench_picture_add(&t->by_slot, (double)p->slot, &outcome);
    return true;
}

/* True the first time. */
static bool is_new(transfer *t, const place *p)
{
    uint32_t i;
    for (i = 0; i < t->n_measured; i++)
        if (t->measured[i][0] == p->slot && t->measured[i][1] == p->piece)
            return false;
    if (t->n_measured < PLACES_MAX) {
        t->measured[t->n_measured][0] = p->slot;
        t->measured[t->n_measured++][1] = p->piece;
    }
    return true;
}

/* Batches that are as large as all blocks are measured once. */
static bool measure_place(transfer *t, const place *p)
{
    bench_shape shape = shape_of(t, p);
    bench_scene scene;
    uint32_t i, batch, before = 0;
    bool done;
    if (!is_new(t, p))
        return true;
    bench_say("transfer: slots of %s, pieces of %s ...", bench_size(p->slot), bench_size(p->piece));
    done = bench_scene_open(t->b, &shape, &scene);
    for (i = 0; done && i < p->n_batches; i++) {
        batch = least(p->batches[i], shape.n_blocks);
        if (batch != before)
            done = measure_batch(t, &scene, p, batch, i == 0);
        before = batch;
    }
    return bench_scene_close(&scene) && done;
}

/* ------------------------------------------------------------------------------------------------------ what to
 * measure
 */

/* A batch of 256 MiB, at most 4,096 blocks. */
static uint32_t usual_batch(uint64_t slot)
{
    return least((256ull << 20) / slot, 4096);
}

static bool measure_usual(transfer *t, uint64_t slot, uint64_t piece)
{
    place p = {.slot = slot, .piece = piece, .batches = {usual_batch(slot)}, .n_batches = 1};
    return !possible(slot, piece) || measure_place(t, &p);
}

static bool measure_batches(transfer *t, uint64_t slot, uint64_t piece, const bench_list *batches)
{
    place p = {.slot = slot, .piece = piece, .n_batches = batches->n};
    uint32_t i;
    for (i = 0; i < batches->n; i++)
        p.batches[i] = least(batches->values[i], 4096);
    return !possible(slot, piece) || measure_place(t, &p);
}

static bool measure_lists(transfer *t, const bench_list *slots, const bench_list *pieces, const bench_list *batches)
{
    uint32_t i, k;
    for (i = 0; i < slots->n; i++)
        for (k = 0; k < pieces->n; k++)
            if (!(batches->n ? measure_batches(t, slots->values[i], pieces->values[k], batches)
                             : measure_usual(t, slots->values[i], pieces->values[k])))
                return false;
    return true;
}

static bool fits(const bench_list *list, uint64_t least_value, uint64_t most, const char *name)
{
    uint32_t i;
    for (i = 0; i < list->n; i++)
        if (list->values[i] < least_value || list->values[i] > most) {
            fprintf(stderr, "%s is out of range; see kvx-bench transfer --help\n", name);
            return false;
        }
    return true;
}

static void say_what_is_left_out(const bench_list *slots, const bench_list *pieces)
{
    uint32_t i, k;
    for (i = 0; i < slots->n; i++)
        for (k = 0; k < pieces->n; k++)
            if (!possible(slots->values[i], pieces->values[k]))
                bench_say("transfer: slots of %s cannot be made of pieces of %s: left out",
                          bench_size(slots->values[i]), bench_size(pieces->values[k]));
}

static bool measure_given(transfer *t)
{
    bench_list slots = bench_list_of(t->b, "--slots", "2M"), pieces = bench_list_of(t->b, "--pieces", "32K");
    bench_list batches = bench_list_of(t->b, "--batches", "");
    say_what_is_left_out(&slots, &pieces);
    t->slot_drawn = slots.values[0];
    t->piece_drawn = pieces.values[0];
    return fits(&slots, 4096, KVX_SLOT_BYTES_MAX, "--slots") && fits(&pieces, 16, KVX_SLOT_BYTES_MAX, "--pieces") &&
           fits(&batches, 1, 4096, "--batches") && measure_lists(t, &slots, &pieces, &batches);
}

typedef struct sweep {
    bench_list slots, pieces;
    bench_list batches;       /* at the place where the sweeps meet, and */
    bench_list small_batches; /* for slots of 64 KiB; the first one also beside plaintext */
} sweep;

/* One size varies while the others stand still. */
static bool measure_sweep(transfer *t, const sweep *s)
{
    bool done = measure_batches(t, t->slot_drawn, t->piece_drawn, &s->batches) &&
                measure_batches(t, 65536, t->piece_drawn, &s->small_batches);
    uint32_t i;
    for (i = 0; done && i < s->pieces.n; i++)
        done = measure_usual(t, t->slot_drawn, s->pieces.values[i]);
    for (i = 0; done && i < s->slots.n; i++)
        done = measure_usual(t, s->slots.values[i], t->piece_drawn);
    return done;
}

static bool measure_usual_sizes(transfer *t)
{
    static const sweep quick = {{{4u << 20}, 1}, {{8192, 32768}, 2}, {{128, 16}, 2}, {{4096}, 1}};
    static const sweep normal = {{{256u << 10, 1u << 20, 16u << 20}, 3},
                                 {{4096, 8192, 16384, 65536, 1u << 20}, 5},
                                 {{128, 1, 4, 16, 64, 512}, 6},
                                 {{4096, 16, 256}, 3}};
    if (bench_on_cpu(t->b) || t->b->settings.scale == BENCH_QUICK)
        return measure_sweep(t, &quick);
    return measure_sweep(t, &normal);
}

/* Every slot with every piece, and for a large, a middling and a small slot every batch. */
static bool measure_full(transfer *t)
{
    static const bench_list slots = {{65536, 256u << 10, 1u << 20, 2u << 20, 4u << 20, 16u << 20}, 6};
    static const bench_list pieces = {{4096, 8192, 16384, 32768, 65536, 131072, 256u << 10, 1u << 20}, 8};
    static const bench_list few = {{128, 1, 4, 16, 64, 512, 4096}, 7}, many = {{4096, 1, 4, 16, 64, 256, 1024}, 7};
    static const bench_list none = {{0}, 0};
    return measure_batches(t, t->slot_drawn, t->piece_drawn, &few) && measure_batches(t, 65536, 32768, &many) &&
           measure_batches(t, 16u << 20, 32768, &few) && measure_lists(t, &slots, &pieces, &none);
}

/* ------------------------------------------------------------------------------------------------------------ picture
 */

static bool draw(const transfer *t)
{
    plot_panel panels[4];
    char store[64], restore[64], store_slot[64], restore_slot[64];
    plot made = {.title = "Sealed and plaintext offload",
                 .x_label = "bytes of a piece, or of a slot",
                 .y_label = "GB/s",
                 .bound_name = "long plaintext copies, the same way",
                 .panels = panels,
                 .n_panels = 4,
                 .x_bytes = true};
    snprintf(store, sizeof(store), "store by size of piece, slots of %s", bench_size(t->slot_drawn));
    snprintf(restore, sizeof(restore), "restore by size of piece, slots of %s", bench_size(t->slot_drawn));
    snprintf(store_slot, sizeof(store_slot), "store by size of slot, pieces of %s", bench_size(t->piece_drawn));
    snprintf(restore_slot, sizeof(restore_slot), "restore by size of slot, pieces of %s", bench_size(t->piece_drawn));
    bench_picture_panels(&t->by_piece, store, restore, panels);
    bench_picture_panels(&t->by_slot, store_slot, restore_slot, panels + 2);
    return bench_plot(t->b, &made);
}

static bool run(bench *b)
{
    transfer t;
    bool done, given = bench_flag(b, "--slots") || bench_flag(b, "--pieces") || bench_flag(b, "--batches");
    memset(&t, 0, sizeof(t));
    t.b = b;
    t.unit = bench_list_of(b, "--unit", "64K").values[0];
    t.slot_drawn = 2u << 20;
    t.piece_drawn = 32768;
    if (given)
        done = measure_given(&t);
    else if (b->settings.scale == BENCH_FULL && !bench_on_cpu(b))
        done = measure_full(&t);
    else
        done = measure_usual_sizes(&t);
    return done && draw(&t);
}

const bench_sub bench_transfer = {"transfer", "sealed store and verified restore beside plaintext copies", help,
                                  options, run};
