/* SPDX-License-Identifier: Apache-2.0 */
#include <kvx.h>
#include <stdio.h>

static uint64_t cache[8][2048]; /* 8 blocks of 16 KiB; memory of the GPU with the CUDA engine */

int main(void)
{
    kvx_slot_class slots = {.slot_bytes = sizeof cache[0], .n_slots = 100};
    kvx_pool_config memory = {.size = sizeof memory, .classes = &slots, .n_classes = 1, .engine = KVX_ENGINE_CPU};
    kvx_config config = {.size = sizeof config, .engine = KVX_ENGINE_CPU};
    kvx_lane lane = {.dev_base = cache, .block_stride = 16384, .row_bytes = 16384, .n_blocks = 8, .n_rows = 1};
    kvx_layout_desc tensors = {.size = sizeof tensors, .lanes = &lane, .n_lanes = 1};
    kvx_pool *pool;
    kvx_ctx *ctx;
    kvx_layout *layout;
    kvx_slot slot;
    kvx_ticket ticket;
    kvx_status verdict;
    if (kvx_pool_create(&memory, &pool) || kvx_ctx_create(pool, &config, &ctx) ||
        kvx_layout_create(ctx, &tensors, &layout) || kvx_pool_take(pool, 0, 1, &slot))
        return puts(kvx_last_error()), 1;
    kvx_pair out = {layout, 3, slot, 0}, back = {layout, 5, slot, 0};
    if (kvx_store(ctx, 1, &out, NULL, NULL) ||       /* block 3 leaves, sealed */
        kvx_restore(ctx, 1, &back, NULL, &ticket) || /* and comes back as block 5 if its tag is right */
        kvx_wait(ctx, 1, &ticket, UINT64_MAX) || kvx_poll(ctx, ticket, NULL, 1, &verdict))
        return puts(kvx_last_error()), 1;
    puts(kvx_status_text(verdict));
    kvx_ctx_destroy(ctx);
    return kvx_pool_destroy(pool) != KVX_OK || verdict != KVX_OK;
}
