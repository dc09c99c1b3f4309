/* SPDX-License-Identifier: Apache-2.0 */
/* What the link carries without any sealing: the bounds and the plaintext ways that sealed offload is set beside. */
#include "bench.h"

#include <stdio.h>
#include <string.h>

#define LINK_LANES 16u /* pieces of a block */
#define LINK_PIECES_MAX 65536u

static const bench_option options[] = {
    {"--pieces", BENCH_SIZES, "bytes of a piece, multiples of 16 (default 4K,16K,64K,256K,1M)"},
    {NULL, BENCH_FLAG, NULL},
};

static const char help[] =
    "Plaintext copies between device and host memory, each way and both at once:\n"
    "  plain_pieces      one batched copy call for 4,096 pieces (cudaMemcpyBatchAsync)\n"
    "  plain_gather      a kernel gathers pieces into chunks, long copies behind it; the reverse on the way back\n"
    "  plain_contiguous  long copies that know nothing of pieces: the bound of the link\n"
    "  plain_loop        one copy call for each piece\n"
    "  plain_mapped      a kernel moves the pieces between device memory and mapped host memory\n"
    "On the CPU engine plain_pieces and plain_contiguous are memcpy.\n"
    "A block has 16 pieces, which lie apart in device memory and together in host memory. A rate under `both` is that\n"
    "of one direction while the other runs too, until both have ended. 4 KiB pieces move 256 MiB, larger ones more.\n";

static bench_shape shape_of(const bench *b, uint64_t piece)
{
    uint64_t n_bytes = bench_bytes(b, 32ull << 20, 256ull << 20, 1ull << 30, 4ull << 30), block = LINK_LANES * piece;
    bench_shape shape = {.n_layers = LINK_LANES, .n_kinds = 1, .n_segments = 1, .piece_bytes = {piece}};
    if (n_bytes > LINK_PIECES_MAX * piece)
        n_bytes = LINK_PIECES_MAX * piece;
    shape.n_blocks = (uint32_t)(n_bytes / block);
    if (shape.n_blocks < 2)
        shape.n_blocks = 2;
    return shape;
}

static bool measure_piece(bench *b, uint64_t piece, bool first, bench_outcome *outcome)
{
    bench_shape shape = shape_of(b, piece);
    char title[128], params[128];
    bench_case c = {.title = title,
                    .params = params,
                    .repeat = bench_repeat(b, 3, 7, 15),
                    .n_plain = BENCH_MOVERS_MAX,
                    .pieces_only = !first};
    bench_scene scene;
    bool done;
    snprintf(title, sizeof(title), "pieces of %s, %u blocks of %u", bench_size(piece), shape.n_blocks, LINK_LANES);
    snprintf(params, sizeof(params), "piece=%llu blocks=%u lanes=%u", (unsigned long long)piece, shape.n_blocks,
             LINK_LANES);
    bench_say("link: pieces of %s ...", bench_size(piece));
    done = bench_scene_open(b, &shape, &scene) && bench_measure(&scene, &c, outcome);
    return bench_scene_close(&scene) && done;
}

static bool draw(const bench *b, const bench_picture *drawing)
{
    plot_panel panels[2];
    plot made = {.title = "Plaintext copies by size of piece",
                 .x_label = "bytes of a piece",
                 .y_label = "GB/s",
                 .bound_name = "long copies, the same way",
                 .panels = panels,
                 .n_panels = 2,
                 .x_bytes = true};
    bench_picture_panels(drawing, "device to host", "host to device", panels);
    return bench_plot(b, &made);
}

static bool run(bench *b)
{
    bool small = bench_on_cpu(b) || b->settings.scale == BENCH_QUICK;
    bench_list pieces = bench_list_of(b, "--pieces", small ? "4K,64K,1M" : "4K,16K,64K,256K,1M");
    bench_picture drawing;
    bench_outcome outcome;
    uint32_t i;
    memset(&drawing, 0, sizeof(drawing));
    for (i = 0; i < pieces.n; i++) {
        if (pieces.values[i] % 16 || pieces.values[i] > KVX_SLOT_BYTES_MAX / LINK_LANES) {
            fprintf(stderr, "--pieces takes multiples of 16 up to 4M\n");
            return false;
        }
        if (!measure_piece(b, pieces.values[i], i == 0, &outcome))
            return false;
        bench_picture_add(&drawing, (double)pieces.values[i], &outcome);
    }
    return draw(b, &drawing);
}

const bench_sub bench_link = {"link", "plaintext copies over the link: bounds and baselines", help, options, run};
