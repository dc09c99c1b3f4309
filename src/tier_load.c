/* SPDX-License-Identifier: Apache-2.0 */
/* Loads: pinned blocks on their way back, at once or as prefetches. A block whose verdict is bad leaves the tier. */
#include "tier.h"

#include "status.h"

/* ---- nodes, with `book` held ---- */

void kvx_tier_list_nodes(kvx_tier *tier, kvx_tier_list *list, uint32_t entry)
{
    uint32_t node = tier->free_nodes.first;
    kvx_tier_node *n = &tier->nodes[node];
    uint32_t last = list->n ? list->last : node;
    tier->free_nodes.first = n->next;
    tier->free_nodes.n--;
    *n = (kvx_tier_node){.entry = entry, .next = KVX_TIER_NONE, .verdict = KVX_PENDING};
    kvx_tier_list_push(list, node, &tier->nodes[last].next);
}

static void free_nodes(kvx_tier *tier, kvx_tier_list *list)
{
    if (list->n == 0)
        return;
    tier->nodes[list->last].next = tier->free_nodes.first;
    tier->free_nodes.first = list->first;
    tier->free_nodes.n += list->n;
    list->n = 0;
}

void kvx_tier_release_nodes(kvx_tier *tier, kvx_tier_list *list)
{
    uint32_t node = list->first;
    for (uint32_t i = 0; i < list->n; i++) {
        kvx_tier_release(tier, tier->nodes[node].entry);
        node = tier->nodes[node].next;
    }
    free_nodes(tier, list);
}

/* ---- what comes of a load ---- */

/* The context may have latched with this verdict: its own word for it. */
static int has_latched(kvx_tier *tier)
{
    kvx_stats stats = {.size = sizeof(stats)};
    return tier->config.ctx && kvx_stats_get(tier->config.ctx, &stats) == KVX_OK && stats.latched;
}

/* Nonzero if a block with this verdict is gone; the cause. */
static int is_lost(kvx_status verdict, kvx_tier_cause *cause)
{
    switch (verdict) {
    case KVX_MISS:
    case KVX_BUSY:
    case KVX_STALE:
    case KVX_SUPERSEDED:
    case KVX_INTERNAL:
        *cause = KVX_TIER_BY_LOSS;
        return 1;
    case KVX_REFUSED:
        *cause = KVX_TIER_BY_REFUSAL;
        return 1;
    case KVX_TAMPERED:
        *cause = KVX_TIER_BY_TAMPERING;
        return 1;
    default: /* nothing was learned about the block */
        return 0;
    }
}

static void end_node(kvx_tier *tier, kvx_tier_load_record *load, kvx_tier_node *node)
{
    kvx_tier_entry *e = &tier->index.entries[node->entry];
    kvx_tier_cause cause;
    if (node->verdict == KVX_OK) {
        tier->stats.loaded_blocks++;
        if (tier->config.write == KVX_TIER_WRITE_BACK && e->state == KVX_TIER_HELD_STATE)
            e->flags |= KVX_TIER_MOVED;
    } else {
        tier->stats.load_failed_blocks++;
        load->n_failed++;
        if (e->state == KVX_TIER_HELD_STATE && is_lost(node->verdict, &cause))
            kvx_tier_remove(tier, node->entry, cause, 0);
    }
    kvx_tier_release(tier, node->entry);
}

/* With `book` held. `verdicts` NULL: `all` is the verdict of each. */
static void end_load(kvx_tier *tier, kvx_tier_load_record *load, const kvx_status *verdicts, kvx_status all)
{
    uint32_t node = load->nodes.first;
    for (uint32_t i = 0; i < load->nodes.n; i++) {
        kvx_tier_node *n = &tier->nodes[node];
        n->verdict = verdicts ? verdicts[i] : all;
        tier->latched |= n->verdict == KVX_LATCHED;
        end_node(tier, load, n);
        node = n->next;
    }
    if (load->state == KVX_TIER_LOAD_RUNNING) {
        tier->n_running_loads--;
        tier->loading_bytes -= load->bytes;
        tier->stats.loaded_bytes += load->bytes / load->nodes.n * (load->nodes.n - load->n_failed);
    }
    load->state = KVX_TIER_LOAD_ENDED;
}

/* With `loading` held, which makes this the only one to ask for the ticket. */
static void collect(kvx_tier *tier, kvx_tier_load_record *load)
{
    kvx_result result;
    kvx_status status = kvx_poll(tier->config.ctx, load->ticket, &result, load->nodes.n, tier->load_verdicts);
    if (status == KVX_PENDING)
        return;
    int latched = (status != KVX_OK || result.first_error != KVX_OK) && has_latched(tier);
    pthread_mutex_lock(&tier->book);
    tier->latched |= latched;
    end_load(tier, load, status == KVX_OK ? tier->load_verdicts : NULL, status);
    pthread_mutex_unlock(&tier->book);
}

/* The first running load from number i on; max_loads if there is none. */
static uint32_t next_running(kvx_tier *tier, uint32_t i)
{
    pthread_mutex_lock(&tier->book);
    if (tier->n_running_loads == 0)
        i = tier->config.max_loads;
    while (i < tier->config.max_loads && tier->loads[i].state != KVX_TIER_LOAD_RUNNING)
        i++;
    pthread_mutex_unlock(&tier->book);
    return i;
}

void kvx_tier_collect_loads(kvx_tier *tier)
{
    pthread_mutex_lock(&tier->loading);
    for (uint32_t i = next_running(tier, 0); i < tier->config.max_loads; i = next_running(tier, i + 1))
        collect(tier, &tier->loads[i]);
    pthread_mutex_unlock(&tier->loading);
}

/* ---- starting ---- */

/* Fills load_pairs; with `loading` held: entries of a load are pinned. */
static void describe(kvx_tier *tier, kvx_tier_load_record *load)
{
    uint32_t node = load->nodes.first;
    load->bytes = 0;
    for (uint32_t i = 0; i < load->nodes.n; i++) {
        const kvx_tier_node *n = &tier->nodes[node];
        const kvx_tier_entry *e = &tier->index.entries[n->entry];
        kvx_slot slot = {tier->config.slot_class, tier->config.first_slot + n->entry, e->generation};
        uint64_t bytes = tier->config.block_bytes;
        if (tier->config.ctx)
            kvx_layout_info(n->layout, &bytes, NULL);
        tier->load_pairs[i] = (kvx_pair){n->layout, n->block, slot, e->tenant};
        load->bytes += bytes;
        node = n->next;
    }
}

static kvx_status restore(kvx_tier *tier, kvx_tier_load_record *load, const kvx_options *options)
{
    describe(tier, load);
    if (!tier->config.ctx)
        return KVX_OK;
    return kvx_restore(tier->config.ctx, load->nodes.n, tier->load_pairs, options, &load->ticket);
}

/* With `book` held. */
static void started(kvx_tier *tier, kvx_tier_load_record *load)
{
    load->state = KVX_TIER_LOAD_RUNNING;
    tier->n_running_loads++;
    tier->loading_bytes += load->bytes;
    tier->stats.load_batches++;
    if (!tier->config.ctx)
        end_load(tier, load, NULL, KVX_OK);
}

/* A load record with its nodes. With `book` held. */
static kvx_status make_load(kvx_tier *tier, uint32_t n, const kvx_tier_target *targets, kvx_tier_load_record **load)
{
    uint32_t n_good = kvx_tier_count_pins(tier, n, &targets->pin, sizeof(*targets));
    if (n_good < n)
        return kvx_note(KVX_INVALID, "target %u: its pin is not in force", n_good);
    if (tier->free_loads.n == 0 || tier->free_nodes.n < n)
        return kvx_note(KVX_AGAIN, "%u loads and %u of their blocks are free, not 1 and %u", tier->free_loads.n,
                        tier->free_nodes.n, n);
    kvx_tier_load_record *made = &tier->loads[tier->free_loads.first];
    tier->free_loads.first = made->next;
    tier->free_loads.n--;
    made->nodes.n = made->n_failed = 0;
    made->state = KVX_TIER_LOAD_QUEUED;
    for (uint32_t i = 0; i < n; i++) {
        kvx_tier_list_nodes(tier, &made->nodes, (uint32_t)targets[i].pin);
        tier->nodes[made->nodes.last].layout = targets[i].layout;
        tier->nodes[made->nodes.last].block = targets[i].block;
    }
    *load = made;
    return KVX_OK;
}

static uint32_t number_of(const kvx_tier *tier, const kvx_tier_load_record *load)
{
    return (uint32_t)(load - tier->loads);
}

static void free_load(kvx_tier *tier, kvx_tier_load_record *load)
{
    free_nodes(tier, &load->nodes);
    load->state = KVX_TIER_LOAD_FREE;
    load->generation++;
    load->next = tier->free_loads.first;
    tier->free_loads.first = number_of(tier, load);
    tier->free_loads.n++;
}

static kvx_tier_load_id id_of(const kvx_tier *tier, const kvx_tier_load_record *load)
{
    return (uint64_t)load->generation << 32 | (number_of(tier, load) + 1);
}

static kvx_status check_call(const kvx_tier *tier, uint32_t n, const kvx_tier_target *targets,
                             const kvx_tier_load_id *load)
{
    KVX_TRY(kvx_tier_alive(tier));
    if (!targets || !load || n == 0)
        return kvx_note(KVX_INVALID, "no targets, or the output is NULL");
    for (uint32_t i = 0; tier->config.ctx && i < n; i++)
        if (!targets[i].layout)
            return kvx_note(KVX_INVALID, "target %u: layout is NULL", i);
    return KVX_OK;
}

/* With `loading` held. */
static kvx_status load_now(kvx_tier *tier, uint32_t n, const kvx_tier_target *targets, const kvx_options *options,
                           kvx_tier_load_id *id)
{
    kvx_tier_load_record *load = NULL;
    pthread_mutex_lock(&tier->book);
    kvx_status status = make_load(tier, n, targets, &load);
    pthread_mutex_unlock(&tier->book);
    KVX_TRY(status);
    status = restore(tier, load, options);
    pthread_mutex_lock(&tier->book);
    if (status == KVX_OK) {
        *id = id_of(tier, load);
        started(tier, load);
    } else {
        tier->latched |= status == KVX_LATCHED;
        free_load(tier, load);
    }
    pthread_mutex_unlock(&tier->book);
    return status;
}

kvx_status kvx_tier_load(kvx_tier *tier, uint32_t n, const kvx_tier_target *targets, const kvx_options *options,
                         kvx_tier_load_id *load)
{
    KVX_TRY(check_call(tier, n, targets, load));
    pthread_mutex_lock(&tier->loading);
    kvx_status status = load_now(tier, n, targets, options, load);
    pthread_mutex_unlock(&tier->loading);
    kvx_tier_deliver(tier);
    return status;
}

kvx_status kvx_tier_prefetch(kvx_tier *tier, uint32_t n, const kvx_tier_target *targets, kvx_tier_load_id *load)
{
    kvx_tier_load_record *made = NULL;
    KVX_TRY(check_call(tier, n, targets, load));
    pthread_mutex_lock(&tier->book);
    kvx_status status = make_load(tier, n, targets, &made);
    if (status == KVX_OK) {
        uint32_t number = number_of(tier, made), last = tier->prefetches.n ? tier->prefetches.last : number;
        kvx_tier_list_push(&tier->prefetches, number, &tier->loads[last].next);
        *load = id_of(tier, made);
    }
    pthread_mutex_unlock(&tier->book);
    return status;
}

/* With `loading` held: the prefetch whose turn it is, NULL if none may start. It stays queued. */
static kvx_tier_load_record *next_prefetch(kvx_tier *tier)
{
    kvx_tier_load_record *load = NULL;
    pthread_mutex_lock(&tier->book);
    if (tier->prefetches.n > 0 && tier->loading_bytes < tier->config.load_bytes_in_flight)
        load = &tier->loads[tier->prefetches.first];
    pthread_mutex_unlock(&tier->book);
    return load;
}

static void prefetch_went(kvx_tier *tier, kvx_tier_load_record *load, kvx_status status)
{
    pthread_mutex_lock(&tier->book);
    tier->prefetches.first = load->next;
    tier->prefetches.n--;
    if (status == KVX_OK) {
        tier->stats.prefetched_blocks += load->nodes.n;
        started(tier, load);
    } else {
        end_load(tier, load, NULL, status);
    }
    pthread_mutex_unlock(&tier->book);
}

kvx_status kvx_tier_start_prefetches(kvx_tier *tier, kvx_stream stream)
{
    kvx_options options = KVX_OPTIONS_INIT;
    kvx_status first_error = KVX_OK;
    kvx_tier_load_record *load;
    options.stream = stream;
    pthread_mutex_lock(&tier->loading);
    while ((load = next_prefetch(tier)) != NULL) {
        kvx_status status = restore(tier, load, &options);
        if (status == KVX_AGAIN || status == KVX_UNSUPPORTED) /* short of tickets; a stream under capture */
            break;
        if (first_error == KVX_OK)
            first_error = status;
        prefetch_went(tier, load, status);
    }
    pthread_mutex_unlock(&tier->loading);
    return first_error;
}

/* ---- asking ---- */

static kvx_tier_load_record *find_load(kvx_tier *tier, kvx_tier_load_id id)
{
    uint32_t number = (uint32_t)id - 1;
    if (number >= tier->config.max_loads)
        return NULL;
    kvx_tier_load_record *load = &tier->loads[number];
    return load->generation == (uint32_t)(id >> 32) && load->state != KVX_TIER_LOAD_FREE ? load : NULL;
}

/* With `loading` and `book` held. */
static kvx_status hand_over(kvx_tier *tier, kvx_tier_load_record *load, uint32_t *n_failed, uint32_t n_verdicts,
                            kvx_status *verdicts)
{
    uint32_t node = load->nodes.first;
    if (load->state != KVX_TIER_LOAD_ENDED)
        return KVX_PENDING;
    for (uint32_t i = 0; i < load->nodes.n && i < n_verdicts; i++) {
        verdicts[i] = tier->nodes[node].verdict;
        node = tier->nodes[node].next;
    }
    if (n_failed)
        *n_failed = load->n_failed;
    free_load(tier, load);
    return KVX_OK;
}

kvx_status kvx_tier_load_poll(kvx_tier *tier, kvx_tier_load_id id, uint32_t *n_failed, uint32_t n_verdicts,
                              kvx_status *verdicts)
{
    kvx_status status = KVX_UNKNOWN;
    KVX_TRY(kvx_tier_alive(tier));
    if (n_verdicts && !verdicts)
        return kvx_note(KVX_INVALID, "verdicts is NULL");
    pthread_mutex_lock(&tier->loading);
    pthread_mutex_lock(&tier->book);
    kvx_tier_load_record *load = find_load(tier, id);
    int running = load && load->state == KVX_TIER_LOAD_RUNNING;
    pthread_mutex_unlock(&tier->book);
    if (running)
        collect(tier, load);
    pthread_mutex_lock(&tier->book);
    if (load)
        status = hand_over(tier, load, n_failed, n_verdicts, verdicts);
    pthread_mutex_unlock(&tier->book);
    pthread_mutex_unlock(&tier->loading);
    kvx_tier_deliver(tier);
    return status == KVX_UNKNOWN ? kvx_note(KVX_UNKNOWN, "no such load, or it was collected") : status;
}
