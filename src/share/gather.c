/* SPDX-License-Identifier: MIT */
/* Many tensors to one handle, in this order, so that whatever fails leaves nothing behind:
 *
 *   collect   every tensor with its components is looked at; what is refused is refused here; storages are found equal
 *   copy      private memory (and all of it for a snapshot) into a pool of the context: the view, when one tensor alone
 *             views the storage; the whole storage, once, when several do, so that they go on aliasing
 *   pin       imported storages at their exporters, one token each (no lock is held)
 *   lend      own storages get slots and one pin, under one hold of the ledger lock
 *   write     tables and nodes */
#include "share/gather.h"

#include "base/error.h"
#include "base/map.h"
#include "base/sys.h"
#include "share/cancel.h"
#include "share/carry.h"
#include "share/context.h"
#include "share/ledger.h"
#include "share/meta.h"
#include "share/peer.h"
#include "share/service.h"
#include "tensor/tensor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A tensor of the tree, in pre-order. */
struct node {
    struct lend_tensor *tensor; /* borrowed */
    struct lend_tensor *copy;   /* of this view alone; NULL: none */
    uint32_t storage;           /* row; LEND__TREE_NONE for a layout of components */
};

/* A storage that the handle names. */
struct held {
    struct lend__storage *storage; /* with a reference: the original, then its copy if there is one */
    uint32_t n_uses;
    bool copies, is_copy; /* it is to be copied; it was */
    uint32_t exporter;
};

struct lend__gather {
    struct lend__gather_request request;
    struct lend_reduce_opts opts;
    struct lend_error *error;
    struct node *nodes;
    struct held *held;
    struct lend__tree_storage *storages; /* rows: one for each held */
    struct lend__tree_allocation *allocations;
    int *allocation_fds;
    struct lend__wire_exporter *exporters;
    struct lend__peer **peers; /* by exporter; NULL: this process, or meta */
    char (*paths)[108];
    uint32_t n_nodes, n_held, n_allocations, n_exporters;
    uint32_t nodes_room, held_room, exporters_room; /* allocations: as many as held */
    struct lend__map by_storage, by_allocation;
    bool has_copied, has_own;
    void *bytes;
    size_t n_bytes;
};

static int no_memory(struct lend__gather *g) {
    return lend__fail(g->error, -ENOMEM, g->request.operation, "no memory to reduce %u tensors", g->n_nodes);
}

/* Room for one more, doubling. */
static int room_for(void **array, uint32_t n, uint32_t *room, size_t bytes) {
    if (n < *room) return 0;
    uint32_t wanted = *room ? *room * 2 : 16;
    void *grown = NULL;
    if (lend__sys.realloc(*array, wanted * bytes, &grown) < 0) return -ENOMEM;
    *array = grown;
    *room = wanted;
    return 0;
}

/* --- collect ---------------------------------------------------------------------------------------------------------- */

/* Two private storages over the same bytes are one: DLPack brings a tied weight twice. */
static bool is_same(const struct lend__storage *a, const struct lend__storage *b) {
    if (a == b) return true;
    return a->kind == LEND__STORAGE_PRIVATE && b->kind == LEND__STORAGE_PRIVATE && a->data && a->data == b->data &&
           a->bytes == b->bytes;
}

/* The same for storages that are; what it is the same for besides, is_same tells. */
static uint64_t key_of(const struct lend__storage *storage) {
    bool is_private = storage->kind == LEND__STORAGE_PRIVATE && storage->data;
    return is_private ? (uintptr_t)storage->data + storage->bytes * 0x9e3779b97f4a7c15ull : (uintptr_t)storage;
}

static int collect_storage(struct lend__gather *g, struct lend__storage *storage, bool copies, uint32_t *ret) {
    void *array = g->held;
    uint64_t key = key_of(storage);
    int r = room_for(&array, g->n_held, &g->held_room, sizeof *g->held);
    g->held = array;
    if (r < 0) return no_memory(g);
    while ((r = lend__map_get(&g->by_storage, key ? key : 1, g->n_held, ret)) == 1) {
        if (is_same(g->held[*ret].storage, storage)) {
            g->held[*ret].n_uses++;
            return 0;
        }
        key += 2; /* another's: the next place */
    }
    if (r < 0) return no_memory(g);
    *ret = g->n_held++;
    g->held[*ret] = (struct held){.storage = lend__storage_ref(storage), .n_uses = 1, .copies = copies};
    return 0;
}

static int collect(struct lend__gather *g, struct lend_tensor *tensor, bool is_outer) {
    const char *operation = g->request.operation;
    void *array = g->nodes;
    int r = room_for(&array, g->n_nodes, &g->nodes_room, sizeof *g->nodes);
    g->nodes = array;
    if (r < 0) return no_memory(g);
    if (g->n_nodes == LEND_GROUP_TENSORS_MAX)
        return lend__fail_bytes(g->error, -ENOSPC, operation, (uint64_t)g->n_nodes + 1, LEND_GROUP_TENSORS_MAX,
                                "the tensors with their components are more than %u; use several groups",
                                LEND_GROUP_TENSORS_MAX);
    r = lend__carry_check_attrs(tensor, is_outer, operation, g->error);
    if (r < 0) return r;
    uint32_t at = g->n_nodes++;
    g->nodes[at] = (struct node){.tensor = tensor, .storage = LEND__TREE_NONE};
    if (tensor->layout != LEND_LAYOUT_STRIDED) {
        for (uint32_t i = 0; r >= 0 && i < tensor->extra->n_components; i++)
            r = collect(g, tensor->extra->components[i], false);
        return r;
    }
    struct lend__storage *storage = NULL;
    bool copies = false;
    r = lend__tensor_storage(tensor, &storage, operation, g->error);
    if (r >= 0) r = lend__carry_check_storage(storage, &g->opts, &copies, operation, g->error);
    return r < 0 ? r : collect_storage(g, storage, copies, &g->nodes[at].storage);
}

static int collect_all(struct lend__gather *g) {
    for (uint32_t i = 0; i < g->request.n; i++) {
        int r = collect(g, g->request.tensors[i], true);
        if (r >= 0) continue;
        if (g->request.is_group) lend__error_add_name(g->error, g->request.names[i]);
        return r;
    }
    return 0;
}

/* Says which tensor of a group an error is about: the one that has this node. Returns the error. */
static int name_node(struct lend__gather *g, int code, uint32_t node) {
    uint32_t entry = 0;
    for (uint32_t n; g->request.is_group && (n = lend__tensor_count(g->request.tensors[entry])) <= node; entry++)
        node -= n;
    if (g->request.is_group) lend__error_add_name(g->error, g->request.names[entry]);
    return code;
}

/* --- copy ------------------------------------------------------------------------------------------------------------- */

/* Puts `copy` in the original's place. */
static void replace(struct held *held, struct lend__storage *copy) {
    lend__storage_unref(held->storage);
    held->storage = copy;
    held->is_copy = true;
}

static int copy_whole(struct lend__gather *g, struct held *held, struct lend_pool *pool) {
    const struct lend__storage *from = held->storage;
    struct lend__storage *copy = NULL;
    int r = lend__storage_check_file(from, g->request.operation, g->error);
    if (r >= 0) r = lend__storage_new_pool(pool, from->bytes, &copy, g->error);
    if (r < 0) return r;
    if (from->data)
        memcpy(copy->data, from->data, from->bytes);
    else if (from->bytes)
        memset(copy->data, 0, from->bytes); /* a zero tensor's */
    replace(held, copy);
    return 0;
}

static int copy_view(struct lend__gather *g, struct node *node, struct held *held, struct lend_pool *pool) {
    int r = lend__tensor_copy_raw(node->tensor, pool, &node->copy, g->request.operation, g->error);
    if (r < 0) return r;
    replace(held, lend__storage_ref(node->copy->storage));
    return 0;
}

static int copy_all(struct lend__gather *g) {
    struct lend_pool *pool = NULL;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        struct node *node = &g->nodes[i];
        struct held *held = node->storage == LEND__TREE_NONE ? NULL : &g->held[node->storage];
        if (!held || !held->copies) continue;
        g->has_copied |= held->storage->kind == LEND__STORAGE_PRIVATE || held->storage->kind == LEND__STORAGE_ZERO;
        held->copies = false;
        int r = pool ? 0 : lend__context_pool(&pool, g->error);
        if (r >= 0) r = held->n_uses == 1 ? copy_view(g, node, held, pool) : copy_whole(g, held, pool);
        if (r < 0) return name_node(g, r, i);
    }
    return 0;
}

/* --- exporters -------------------------------------------------------------------------------------------------------- */

static int new_exporter(struct lend__gather *g, uint32_t *ret) {
    if (g->n_exporters == LEND_GROUP_EXPORTERS_MAX)
        return lend__fail_bytes(
            g->error, -ENOSPC, g->request.operation, g->n_exporters + 1ull, LEND_GROUP_EXPORTERS_MAX,
            "the tensors belong to more than %u processes; use several groups", LEND_GROUP_EXPORTERS_MAX);
    uint32_t room = g->exporters_room;
    void *exporters = g->exporters, *peers = g->peers, *paths = g->paths;
    int r = room_for(&exporters, g->n_exporters, &room, sizeof *g->exporters);
    g->exporters = exporters;
    room = g->exporters_room;
    if (r >= 0) r = room_for(&peers, g->n_exporters, &room, sizeof *g->peers);
    g->peers = peers;
    room = g->exporters_room;
    if (r >= 0) r = room_for(&paths, g->n_exporters, &room, sizeof *g->paths);
    g->paths = paths;
    if (r < 0) return no_memory(g);
    g->exporters_room = room;
    *ret = g->n_exporters++;
    g->exporters[*ret] = (struct lend__wire_exporter){.pin_token = 0};
    g->peers[*ret] = NULL;
    return 0;
}

/* There are few, so they are searched by their ids. */
static int exporter_of_id(struct lend__gather *g, const struct lend__identity *identity, struct lend__peer *peer,
                          uint32_t *ret) {
    for (*ret = 0; *ret < g->n_exporters; ++*ret)
        if (!memcmp(g->exporters[*ret].identity.id, identity->id, LEND__ID_BYTES)) break;
    if (*ret == g->n_exporters) {
        int r = new_exporter(g, ret);
        if (r < 0) return r;
        g->exporters[*ret].identity = *identity;
    }
    if (!peer || g->peers[*ret]) return 0;
    g->peers[*ret] = peer;
    lend__import_lock();
    peer->n_users++;
    lend__import_unlock();
    lend__carry_fill_peer(&g->exporters[*ret], peer, g->paths[*ret]);
    return 0;
}

static int find_exporter(struct lend__gather *g, struct held *held, uint64_t *ret_meta_number) {
    const struct lend__storage *storage = held->storage;
    if (storage->kind == LEND__STORAGE_META) {
        struct lend__identity identity;
        int r = lend__meta_name(held->storage, &identity, ret_meta_number);
        return r < 0 ? no_memory(g) : exporter_of_id(g, &identity, NULL, &held->exporter);
    }
    if (storage->kind == LEND__STORAGE_IMPORTED) {
        struct lend__identity identity = {.start_ns = 0};
        memcpy(identity.id, storage->peer->id, LEND__ID_BYTES);
        return exporter_of_id(g, &identity, storage->peer, &held->exporter);
    }
    g->has_own = true;
    return exporter_of_id(g, &lend__context.identity, NULL, &held->exporter);
}

static int find_exporters(struct lend__gather *g) {
    g->storages = lend__zalloc((g->n_held + 1ull) * sizeof *g->storages);
    g->allocations = lend__zalloc((g->n_held + 1ull) * sizeof *g->allocations);
    g->allocation_fds = lend__zalloc((g->n_held + 1ull) * sizeof *g->allocation_fds);
    if (!g->storages || !g->allocations || !g->allocation_fds) return no_memory(g);
    for (uint32_t i = 0; i < g->n_held; i++) {
        uint64_t meta_number = 0;
        int r = find_exporter(g, &g->held[i], &meta_number);
        if (r < 0) return r;
        g->storages[i].slot_gen = meta_number;
    }
    return 0;
}

/* --- pin and lend ------------------------------------------------------------------------------------------------------ */

static int pin_at_peer(struct lend__gather *g, uint32_t exporter) {
    struct lend__peer *peer = g->peers[exporter];
    uint32_t n = 0;
    if (lend__peer_is_dead(peer)) return 0; /* it reuses nothing any more */
    struct lend__control_slot *slots = lend__zalloc((g->n_held + 1ull) * sizeof *slots);
    if (!slots) return no_memory(g);
    for (uint32_t i = 0; i < g->n_held; i++) {
        const struct lend__storage *storage = g->held[i].storage;
        if (g->held[i].exporter != exporter || storage->kind != LEND__STORAGE_IMPORTED) continue;
        slots[n++] = (struct lend__control_slot){.slot = storage->slot, .gen = storage->slot_gen};
    }
    int r = n ? lend__contact_pin(peer, slots, n, g->opts.pin_ns_max, lend__context_deadline(g->opts.deadline_ns),
                                  &g->exporters[exporter].pin_token, g->error)
              : 0;
    free(slots);
    return r == -EOWNERDEAD && lend__peer_is_dead(peer) ? 0 : r;
}

/* Gives every own storage its slot; the slots in `ret_slots`, if it is not NULL. Locked. */
static int lend_own(struct lend__gather *g, uint32_t *ret_slots, uint32_t *ret_n, uint32_t *ret_exporter) {
    for (uint32_t i = 0; i < g->n_held; i++) {
        struct lend__storage *storage = g->held[i].storage;
        if (storage->kind != LEND__STORAGE_POOL) continue;
        int r = lend__ledger_lend_locked(storage, g->request.operation, g->error);
        if (r < 0) return r;
        *ret_exporter = g->held[i].exporter;
        if (ret_slots) ret_slots[(*ret_n)++] = storage->slot;
    }
    return 0;
}

static int lend_and_pin_own(struct lend__gather *g, bool with_pin) {
    uint32_t n = 0, exporter = 0, *slots = NULL;
    if (with_pin && !(slots = lend__zalloc((g->n_held + 1ull) * sizeof *slots))) return no_memory(g);
    int r = lend__service_start(g->error);
    if (r >= 0) {
        lend__ledger_lock();
        r = lend_own(g, slots, &n, &exporter);
        if (r >= 0 && with_pin) {
            const struct lend__pin_request pin = {LEND__PAGE_NONE, lend__context.identity.pid, g->opts.pin_ns_max};
            r = lend__pin_add(&pin, slots, n, &g->exporters[exporter].pin_token, g->error);
        }
        lend__ledger_unlock();
    }
    free(slots);
    if (r < 0) return r;
    if (with_pin && g->opts.pin_ns_max) lend__service_wake(); /* somebody must look at the clock */
    lend__carry_fill_self(&g->exporters[exporter], g->paths[exporter]);
    return 0;
}

static int lend_all(struct lend__gather *g) {
    bool with_pin = lend__carry_is_pinned(&g->opts) || g->has_copied;
    for (uint32_t i = 0; with_pin && i < g->n_exporters; i++) {
        int r = g->peers[i] ? pin_at_peer(g, i) : 0;
        if (r < 0) return r;
    }
    return g->has_own ? lend_and_pin_own(g, with_pin) : 0;
}

/* The arrays may have moved since the paths were filled in. */
static void fix_paths(struct lend__gather *g) {
    for (uint32_t i = 0; i < g->n_exporters; i++)
        if (g->exporters[i].socket_path) g->exporters[i].socket_path = g->paths[i];
}

static void cancel_pins(struct lend__gather *g) {
    fix_paths(g);
    for (uint32_t i = 0; i < g->n_exporters; i++)
        if (g->exporters[i].pin_token) lend__pin_cancel_at(&g->exporters[i], 0, NULL);
}

/* --- write ------------------------------------------------------------------------------------------------------------ */

/* Allocations are told apart by their records; those that are none, by exporter and device (odd keys). */
static uint64_t allocation_key(const struct held *held) {
    const struct lend__storage *storage = held->storage;
    if (storage->block) return (uintptr_t)storage->block->allocation;
    if (storage->mapping) return (uintptr_t)storage->mapping;
    return (uint64_t)held->exporter << 2 | (storage->kind == LEND__STORAGE_META ? 3 : 1);
}

static int fill_storages(struct lend__gather *g) {
    for (uint32_t i = 0; i < g->n_held; i++) {
        const struct held *held = &g->held[i];
        struct lend__tree_storage *row = &g->storages[i];
        struct lend__wire_storage wire;
        lend__carry_fill_storage(&wire, held->storage);
        int r = lend__map_get(&g->by_allocation, allocation_key(held), g->n_allocations, &row->allocation);
        if (r < 0) return no_memory(g);
        if (!r) {
            const struct lend__extent *extent = lend__storage_extent(held->storage);
            g->allocation_fds[g->n_allocations] = extent ? extent->fd : -1;
            g->allocations[g->n_allocations++] = (struct lend__tree_allocation){.exporter = held->exporter,
                                                                                .device_type = wire.device_type,
                                                                                .index = wire.allocation,
                                                                                .gen = wire.allocation_gen,
                                                                                .bytes = wire.allocation_bytes};
        }
        row->slot = wire.slot;
        if (held->storage->kind != LEND__STORAGE_META) row->slot_gen = wire.slot_gen;
        row->off = wire.off;
        row->bytes = wire.bytes;
    }
    return 0;
}

static void fill_node(void *user, uint32_t i, struct lend__tree_node *ret) {
    const struct lend__gather *g = user;
    const struct node *node = &g->nodes[i];
    const struct lend_tensor *tensor = node->tensor;
    struct lend__wire_tensor *wire = &ret->tensor;
    ret->layout = tensor->layout;
    ret->storage = node->storage;
    ret->n_components = 0;
    ret->is_coalesced = false;
    lend__carry_fill_tensor(wire, tensor, g->opts.flags);
    if (tensor->layout != LEND_LAYOUT_STRIDED) {
        const struct lend__extra *extra = tensor->extra;
        ret->n_components = extra->n_components;
        ret->is_coalesced = extra->is_coalesced;
        ret->dim = extra->dim;
        ret->scale = extra->scale;
        ret->zero_point = extra->zero_point;
        wire->is_read_only = wire->is_padded = false; /* its components say */
    } else if (g->held[node->storage].is_copy) {      /* nobody's but ours */
        wire->is_read_only = g->opts.flags & LEND_REDUCE_READ_ONLY;
        if (!node->copy) return;
        wire->is_contiguous = true;
        wire->offset_bits = node->copy->offset_bits;
    }
}

static int write_bytes(struct lend__gather *g) {
    int r = fill_storages(g);
    if (r < 0) return r;
    fix_paths(g);
    const struct lend__tree_source source = {
        .is_group = g->request.is_group,
        .n_exporters = g->n_exporters,
        .n_allocations = g->n_allocations,
        .n_storages = g->n_held,
        .n_nodes = g->n_nodes,
        .n_entries = g->request.n,
        .exporters = g->exporters,
        .allocations = g->allocations,
        .storages = g->storages,
        .names = g->request.names,
        .node = fill_node,
        .user = g,
    };
    r = lend__tree_write(&source, &g->bytes, &g->n_bytes);
    if (r == -ENOSPC)
        return lend__fail(g->error, r, g->request.operation,
                          "the handle would be longer than %u bytes; use several groups, or shorter names",
                          LEND_GROUP_BYTES_MAX);
    return r < 0 ? no_memory(g) : 0;
}

static void warn_of_hooks(struct lend__gather *g) {
    uint32_t n = 0;
    const char *first = NULL;
    for (uint32_t i = 0; i < g->request.n; i++) {
        if (!lend__carry_has_news_of_hooks(g->request.tensors[i])) continue;
        if (!n++) first = g->request.is_group ? g->request.names[i] : NULL;
    }
    if (!n) return;
    lend__log(LEND_LOG_WARNING,
              "%s: %u tensor%s hooks, which do not travel%s%.100s%s; mark them with LEND_ATTR_HOOKS_MARKED if they are "
              "meant to stay behind",
              g->request.operation, n, n == 1 ? " has" : "s have", first ? " (first: \"" : "", first ? first : "",
              first ? "\")" : "");
}

/* --- the whole -------------------------------------------------------------------------------------------------------- */

int lend__gather_begin(const struct lend__gather_request *request, struct lend__gather **ret,
                       struct lend_error *error) {
    struct lend__gather *g = lend__zalloc(sizeof *g);
    if (!g) return lend__fail(error, -ENOMEM, request->operation, "no memory to reduce %u tensors", request->n);
    g->request = *request;
    g->error = error;
    g->opts = request->opts ? *request->opts : (struct lend_reduce_opts){.size = sizeof g->opts};
    int r = lend__carry_check_opts(&g->opts, request->operation, error);
    if (r >= 0) r = collect_all(g);
    if (r >= 0) r = copy_all(g);
    if (r >= 0) r = find_exporters(g);
    if (r >= 0) r = lend_all(g);
    if (r >= 0) r = write_bytes(g);
    if (r < 0) {
        lend__gather_end(g, false);
        return r;
    }
    warn_of_hooks(g);
    *ret = g;
    return g->has_copied ? LEND_COPIED : 0;
}

const void *lend__gather_bytes(const struct lend__gather *g, size_t *ret_n) {
    *ret_n = g->n_bytes;
    return g->bytes;
}

void *lend__gather_take_bytes(struct lend__gather *g, size_t *ret_n) {
    void *bytes = g->bytes;
    *ret_n = g->n_bytes;
    g->bytes = NULL;
    return bytes;
}

uint32_t lend__gather_count(const struct lend__gather *g, uint32_t *ret_allocations) {
    *ret_allocations = g->n_allocations;
    return g->n_exporters;
}

int lend__gather_table_fd(const struct lend__gather *g, uint32_t i) {
    if (g->peers[i]) return g->peers[i]->table_fd;
    bool is_self = !memcmp(g->exporters[i].identity.id, lend__context.identity.id, LEND__ID_BYTES);
    return is_self && g->has_own ? lend__ledger.table_fd : -1;
}

int lend__gather_allocation_fd(const struct lend__gather *g, uint32_t i) {
    return g->allocation_fds[i];
}

void lend__gather_end(struct lend__gather *g, bool is_sent) {
    if (!is_sent) cancel_pins(g);
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        struct node *node = &g->nodes[i];
        if (is_sent && g->opts.mode == LEND_MODE_MOVE) lend__carry_move_away(node->tensor);
        lend_tensor_unref(node->copy);
    }
    for (uint32_t i = 0; i < g->n_held; i++) lend__storage_unref(g->held[i].storage);
    for (uint32_t i = 0; i < g->n_exporters; i++)
        if (g->peers[i]) lend__peer_release(g->peers[i]);
    lend__map_free(&g->by_storage);
    lend__map_free(&g->by_allocation);
    free(g->nodes);
    free(g->held);
    free(g->storages);
    free(g->allocations);
    free(g->allocation_fds);
    free(g->exporters);
    free(g->peers);
    free(g->paths);
    free(g->bytes);
    free(g);
}
