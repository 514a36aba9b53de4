/* SPDX-License-Identifier: MIT */
/* Trees, little-endian; every part begins at a multiple of 8:
 *
 *   0 envelope (wire.c), form 1 | 16 exporters | 20 allocations | 24 storages | 28 nodes | 32 entries
 *   36 bytes of the nodes | 40 bytes of the names | 44 flags u16 (1: group) | 46 sections u16
 *   48 exporters     64 each: boot id 16, id 16, start u64, uid u32, pid u32, pin token u64, bytes of the path u16, zeros
 *      allocations   32 each: exporter u32, device type u32, index u32, generation u32, bytes u64, zeros
 *      storages      32 each: allocation u32, slot u32, slot generation u64, offset u64, bytes u64
 *      nodes         32 and more each: layout u8, ndim u8, flags u16, components u8, zeros, user tag u32, user bytes u32,
 *                    dtype 4, storage u32, offset in bits u64 (with components: dim i32, zeros, scale f64, zero point
 *                    i64), dims, user bytes
 *      paths         one after another, zeros to a multiple of 8
 *      names         one after another, each with its NUL, zeros to a multiple of 8
 *      sections      as in wire.c; none is known */
#include "share/tree.h"

#include "base/error.h"
#include "base/sys.h"
#include "share/wire_parts.h"

#include <errno.h>
#include <string.h>

enum { FLAG_GROUP = 1 };

static int bad(struct lend_error *error, const char *operation, const char *what) {
    return lend__wire_bad(error, operation, what);
}

/* --- reading: tables -------------------------------------------------------------------------------------------------- */

static const uint8_t *exporter_at(const struct lend__tree *t, uint32_t i) {
    return t->bytes + LEND__TREE_HEAD_BYTES + (size_t)i * LEND__TREE_EXPORTER_BYTES;
}

static const uint8_t *allocation_at(const struct lend__tree *t, uint32_t i) {
    return exporter_at(t, t->n_exporters) + (size_t)i * LEND__TREE_ALLOCATION_BYTES;
}

static const uint8_t *storage_at(const struct lend__tree *t, uint32_t i) {
    return allocation_at(t, t->n_allocations) + (size_t)i * LEND__TREE_STORAGE_BYTES;
}

/* The tables and what they refer to. `ret_paths` becomes the sum of the paths' bytes. */
static int check_tables(const struct lend__tree *t, uint64_t *ret_paths, const char *operation,
                        struct lend_error *error) {
    *ret_paths = 0;
    for (uint32_t i = 0; i < t->n_exporters; i++) {
        const uint8_t *p = exporter_at(t, i);
        uint32_t bytes = lend__get16(p + 56);
        if (bytes > LEND__WIRE_PATH_MAX || !lend__bytes_are_zero(p + 58, 6))
            return bad(error, operation, "an exporter is malformed");
        *ret_paths += bytes;
    }
    for (uint32_t i = 0; i < t->n_allocations; i++) {
        const uint8_t *p = allocation_at(t, i);
        if (lend__get32(p) >= t->n_exporters || !lend__bytes_are_zero(p + 24, 8))
            return bad(error, operation, "an allocation is malformed");
    }
    for (uint32_t i = 0; i < t->n_storages; i++)
        if (lend__get32(storage_at(t, i)) >= t->n_allocations) return bad(error, operation, "a storage is malformed");
    return 0;
}

/* None is known yet. */
static int take_section(void *user, uint32_t type, const uint8_t *payload, uint32_t bytes, const char *operation,
                        struct lend_error *error) {
    (void)user, (void)type, (void)payload, (void)bytes, (void)operation, (void)error;
    return 1;
}

/* One name for each entry, each with its NUL and not too long. */
int lend__tree_names(const struct lend__tree *t, const char **ret, const char *operation, struct lend_error *error) {
    const char *at = t->names, *end = t->names + t->names_bytes;
    uint32_t n = 0, n_wanted = t->is_group ? t->n_entries : 0;
    for (; at < end && n < n_wanted; n++) {
        const char *nul = memchr(at, 0, (size_t)(end - at));
        if (!nul || nul - at > LEND_GROUP_NAME_MAX) return bad(error, operation, "a name is malformed");
        if (ret) ret[n] = at;
        at = nul + 1;
    }
    return n == n_wanted && at == end ? 0 : bad(error, operation, "names and entries do not agree");
}

static int take_head(const uint8_t *p, struct lend__tree *ret, const char *operation, struct lend_error *error) {
    uint32_t flags = lend__get16(p + 44);
    *ret = (struct lend__tree){
        .bytes = p,
        .major = lend__get16(p + 4),
        .minor = p[6],
        .is_group = flags & FLAG_GROUP,
        .n_exporters = lend__get32(p + 16),
        .n_allocations = lend__get32(p + 20),
        .n_storages = lend__get32(p + 24),
        .n_nodes = lend__get32(p + 28),
        .n_entries = lend__get32(p + 32),
        .names_bytes = lend__get32(p + 40),
    };
    if (flags & ~(uint32_t)FLAG_GROUP)
        return lend__fail(error, -EPROTONOSUPPORT, operation,
                          "the handle has flags 0x%x that this library (wire %d.%d) does not know; update lend", flags,
                          LEND_WIRE_MAJOR, LEND_WIRE_MINOR);
    if (ret->n_exporters > LEND_GROUP_EXPORTERS_MAX || ret->n_nodes > LEND_GROUP_TENSORS_MAX ||
        ret->n_entries > ret->n_nodes || (!ret->is_group && ret->n_entries != 1))
        return bad(error, operation, "its counts are impossible");
    return 0;
}

int lend__tree_open(const void *bytes, size_t n, struct lend__tree *ret, const char *operation,
                    struct lend_error *error) {
    const uint8_t *p = bytes;
    uint64_t paths = 0;
    int r = lend__wire_open(p, n, LEND__WIRE_TREE, operation, error);
    if (r >= 0) r = take_head(p, ret, operation, error);
    if (r < 0) return r;
    /* Each count is below 2^32 and each part below 2^40: the sums fit. */
    uint64_t nodes_at = LEND__TREE_HEAD_BYTES + (uint64_t)ret->n_exporters * LEND__TREE_EXPORTER_BYTES +
                        (uint64_t)ret->n_allocations * LEND__TREE_ALLOCATION_BYTES +
                        (uint64_t)ret->n_storages * LEND__TREE_STORAGE_BYTES;
    uint64_t nodes_end = nodes_at + lend__get32(p + 36);
    if (nodes_end > n || nodes_end % 8) return bad(error, operation, "its tables are cut off");
    /* Readers make room for as many as are announced. */
    if (ret->n_nodes > lend__get32(p + 36) / LEND__TREE_NODE_BYTES)
        return bad(error, operation, "it has fewer tensors than it says");
    ret->nodes_at = (uint32_t)nodes_at;
    ret->nodes_end = (uint32_t)nodes_end;
    r = check_tables(ret, &paths, operation, error);
    if (r < 0) return r;
    uint64_t names_at = nodes_end + (paths + 7) / 8 * 8, end = names_at + ((uint64_t)ret->names_bytes + 7) / 8 * 8;
    if (end > n) return bad(error, operation, "its names are cut off");
    ret->paths = (const char *)p + nodes_end;
    ret->names = (const char *)p + names_at;
    if (memchr(ret->paths, 0, paths)) return bad(error, operation, "a socket path is malformed");
    if (!lend__bytes_are_zero(p + nodes_end + paths, names_at - nodes_end - paths) ||
        !lend__bytes_are_zero(p + names_at + ret->names_bytes, end - names_at - ret->names_bytes))
        return bad(error, operation, "its padding is not zero");
    return lend__wire_take_sections(p + end, p + n, lend__get16(p + 46), take_section, NULL, operation, error);
}

void lend__tree_exporters(const struct lend__tree *tree, struct lend__wire_exporter *ret) {
    const char *path = tree->paths;
    for (uint32_t i = 0; i < tree->n_exporters; i++) {
        const uint8_t *p = exporter_at(tree, i);
        struct lend__wire_exporter *e = &ret[i];
        memcpy(e->identity.boot_id, p, 16);
        memcpy(e->identity.id, p + 16, 16);
        e->identity.start_ns = lend__get64(p + 32);
        e->identity.uid = lend__get32(p + 40);
        e->identity.pid = lend__get32(p + 44);
        e->pin_token = lend__get64(p + 48);
        e->socket_path_bytes = lend__get16(p + 56);
        e->socket_path = e->socket_path_bytes ? path : NULL;
        path += e->socket_path_bytes;
    }
}

void lend__tree_allocation(const struct lend__tree *tree, uint32_t i, struct lend__tree_allocation *ret) {
    const uint8_t *p = allocation_at(tree, i);
    *ret = (struct lend__tree_allocation){.exporter = lend__get32(p),
                                          .device_type = (int32_t)lend__get32(p + 4),
                                          .index = lend__get32(p + 8),
                                          .gen = lend__get32(p + 12),
                                          .bytes = lend__get64(p + 16)};
}

void lend__tree_storage(const struct lend__tree *tree, uint32_t i, struct lend__tree_storage *ret) {
    const uint8_t *p = storage_at(tree, i);
    *ret = (struct lend__tree_storage){.allocation = lend__get32(p),
                                       .slot = lend__get32(p + 4),
                                       .slot_gen = lend__get64(p + 8),
                                       .off = lend__get64(p + 16),
                                       .bytes = lend__get64(p + 24)};
}

/* --- reading: nodes --------------------------------------------------------------------------------------------------- */

/* What a layout does not have is zero. */
static bool has_only_its_own(const struct lend__tree_node *node, uint64_t scale_bits) {
    bool has_dim = node->layout == LEND_LAYOUT_JAGGED || node->layout == LEND_LAYOUT_QUANTIZED_PER_CHANNEL;
    if (node->tensor.is_read_only || node->tensor.is_padded || !node->tensor.is_contiguous) return false;
    if (node->is_coalesced && node->layout != LEND_LAYOUT_COO) return false;
    if (node->dim && !has_dim) return false;
    return node->layout == LEND_LAYOUT_QUANTIZED || (!scale_bits && !node->zero_point);
}

static int take_compound(const uint8_t *p, struct lend__tree_node *node, const char *operation,
                         struct lend_error *error) {
    uint64_t scale = lend__get64(p + 32);
    node->dim = (int32_t)lend__get32(p + 24);
    memcpy(&node->scale, &scale, sizeof scale);
    node->zero_point = (int64_t)lend__get64(p + 40);
    node->tensor.offset_bits = 0;
    if (node->layout > LEND_LAYOUT_WRAPPER)
        return lend__fail(error, -EPROTONOSUPPORT, operation,
                          "the handle has a tensor of layout %u, which this library (wire %d.%d) does not know; update "
                          "lend",
                          node->layout, LEND_WIRE_MAJOR, LEND_WIRE_MINOR);
    if (node->storage != LEND__TREE_NONE || node->n_components > LEND_COMPONENTS_MAX || lend__get32(p + 28) ||
        !has_only_its_own(node, scale))
        return bad(error, operation, "a tensor of components is malformed");
    return 0;
}

int lend__tree_next(const struct lend__tree *tree, uint32_t *at, struct lend__tree_node *ret, const char *operation,
                    struct lend_error *error) {
    const uint8_t *p = tree->bytes + *at;
    uint32_t left = tree->nodes_end - *at;
    if (left < LEND__TREE_NODE_BYTES) return bad(error, operation, "a tensor is cut off");
    struct lend__wire_tensor *t = &ret->tensor;
    uint32_t flags = lend__get16(p + 2);
    bool is_wide = false;
    ret->layout = p[0];
    ret->n_components = p[4];
    ret->storage = lend__get32(p + 20);
    ret->is_coalesced = flags & LEND__WIRE_FLAG_COALESCED;
    t->ndim = p[1];
    t->user_tag = lend__get32(p + 8);
    t->user_bytes = lend__get32(p + 12);
    t->dtype = (DLDataType){p[16], p[17], lend__get16(p + 18)};
    t->offset_bits = lend__get64(p + 24);
    int r =
        lend__wire_take_flags(t, flags, LEND__WIRE_FLAGS_KNOWN | LEND__WIRE_FLAG_COALESCED, &is_wide, operation, error);
    if (r < 0) return r;
    if (!lend__bytes_are_zero(p + 5, 3) || t->user_bytes > LEND_USER_BYTES_MAX || (t->user_tag && !t->user_bytes))
        return bad(error, operation, "a tensor is malformed");
    uint32_t used = LEND__TREE_NODE_BYTES;
    if (ret->layout == LEND_LAYOUT_STRIDED) {
        if (ret->storage >= tree->n_storages || ret->n_components || ret->is_coalesced)
            return bad(error, operation, "a strided tensor is malformed");
    } else {
        used += LEND__TREE_COMPOUND_BYTES;
        if (left < used) return bad(error, operation, "a tensor is cut off");
        r = take_compound(p, ret, operation, error);
        if (r < 0) return r;
    }
    r = lend__wire_take_dims(t, is_wide, p + used, left - used, operation, error);
    if (r < 0) return r;
    used += (uint32_t)r;
    uint32_t user = lend__padded8(t->user_bytes);
    if (user > left - used) return bad(error, operation, "a user attribute is cut off");
    t->user = t->user_bytes ? p + used : NULL;
    if (!lend__bytes_are_zero(p + used + t->user_bytes, user - t->user_bytes))
        return bad(error, operation, "its padding is not zero");
    *at += used + user;
    return 0;
}

/* Recursion is bounded by depth, its work by the bytes. */
static int check_node(const struct lend__tree *tree, uint32_t depth, uint32_t *at, uint32_t *left,
                      const char *operation, struct lend_error *error) {
    struct lend__tree_node node;
    if (depth > LEND_DEPTH_MAX) return bad(error, operation, "it is too deep");
    if (!*left) return bad(error, operation, "it has more tensors than it says");
    --*left;
    node.n_components = 0; /* of what cannot be read, too */
    int r = lend__tree_next(tree, at, &node, operation, error);
    uint32_t n = node.n_components;
    for (uint32_t i = 0; r >= 0 && i < n; i++) r = check_node(tree, depth + 1, at, left, operation, error);
    return r;
}

int lend__tree_check(const struct lend__tree *tree, const char *operation, struct lend_error *error) {
    uint32_t at = tree->nodes_at, left = tree->n_nodes;
    int r = lend__tree_names(tree, NULL, operation, error);
    for (uint32_t i = 0; r >= 0 && i < tree->n_entries; i++) r = check_node(tree, 1, &at, &left, operation, error);
    if (r < 0) return r;
    return at == tree->nodes_end && !left ? 0 : bad(error, operation, "it has fewer tensors than it says");
}

/* --- writing ---------------------------------------------------------------------------------------------------------- */

static uint32_t node_bytes(const struct lend__tree_node *node) {
    return LEND__TREE_NODE_BYTES + (node->layout == LEND_LAYOUT_STRIDED ? 0 : LEND__TREE_COMPOUND_BYTES) +
           lend__wire_dims_bytes(&node->tensor) + lend__padded8(node->tensor.user_bytes);
}

static uint8_t *put_node(const struct lend__tree_node *node, uint8_t *p) {
    const struct lend__wire_tensor *t = &node->tensor;
    uint8_t *dims = p + LEND__TREE_NODE_BYTES;
    p[0] = node->layout;
    p[1] = (uint8_t)t->ndim;
    lend__put16(p + 2, (uint16_t)(lend__wire_flags(t) | (node->is_coalesced ? LEND__WIRE_FLAG_COALESCED : 0)));
    p[4] = (uint8_t)node->n_components;
    lend__put32(p + 8, t->user_tag);
    lend__put32(p + 12, t->user_bytes);
    p[16] = t->dtype.code;
    p[17] = t->dtype.bits;
    lend__put16(p + 18, t->dtype.lanes);
    lend__put32(p + 20, node->storage);
    if (node->layout == LEND_LAYOUT_STRIDED) {
        lend__put64(p + 24, t->offset_bits);
    } else {
        uint64_t scale;
        memcpy(&scale, &node->scale, sizeof scale);
        lend__put32(p + 24, (uint32_t)node->dim);
        lend__put64(p + 32, scale);
        lend__put64(p + 40, (uint64_t)node->zero_point);
        dims += LEND__TREE_COMPOUND_BYTES;
    }
    lend__wire_put_dims(t, dims);
    uint8_t *user = dims + lend__wire_dims_bytes(t);
    if (t->user_bytes) memcpy(user, t->user, t->user_bytes);
    return user + lend__padded8(t->user_bytes);
}

static uint8_t *put_exporter(const struct lend__wire_exporter *e, uint8_t *p) {
    memcpy(p, e->identity.boot_id, 16);
    memcpy(p + 16, e->identity.id, 16);
    lend__put64(p + 32, e->identity.start_ns);
    lend__put32(p + 40, e->identity.uid);
    lend__put32(p + 44, e->identity.pid);
    lend__put64(p + 48, e->pin_token);
    lend__put16(p + 56, (uint16_t)(e->socket_path ? e->socket_path_bytes : 0));
    return p + LEND__TREE_EXPORTER_BYTES;
}

static uint8_t *put_tables(const struct lend__tree_source *s, uint8_t *p) {
    for (uint32_t i = 0; i < s->n_exporters; i++) p = put_exporter(&s->exporters[i], p);
    for (uint32_t i = 0; i < s->n_allocations; i++, p += LEND__TREE_ALLOCATION_BYTES) {
        const struct lend__tree_allocation *a = &s->allocations[i];
        lend__put32(p, a->exporter);
        lend__put32(p + 4, (uint32_t)a->device_type);
        lend__put32(p + 8, a->index);
        lend__put32(p + 12, a->gen);
        lend__put64(p + 16, a->bytes);
    }
    for (uint32_t i = 0; i < s->n_storages; i++, p += LEND__TREE_STORAGE_BYTES) {
        const struct lend__tree_storage *t = &s->storages[i];
        lend__put32(p, t->allocation);
        lend__put32(p + 4, t->slot);
        lend__put64(p + 8, t->slot_gen);
        lend__put64(p + 16, t->off);
        lend__put64(p + 24, t->bytes);
    }
    return p;
}

/* The lengths of the parts whose length is not a product. */
struct lengths {
    uint64_t tables, nodes, paths, names;
};

static uint64_t measure(const struct lend__tree_source *s, struct lengths *ret) {
    struct lend__tree_node node;
    *ret = (struct lengths){.tables = (uint64_t)s->n_exporters * LEND__TREE_EXPORTER_BYTES +
                                      (uint64_t)s->n_allocations * LEND__TREE_ALLOCATION_BYTES +
                                      (uint64_t)s->n_storages * LEND__TREE_STORAGE_BYTES};
    for (uint32_t i = 0; i < s->n_nodes; i++) {
        s->node(s->user, i, &node);
        ret->nodes += node_bytes(&node);
    }
    for (uint32_t i = 0; i < s->n_exporters; i++)
        if (s->exporters[i].socket_path) ret->paths += s->exporters[i].socket_path_bytes;
    for (uint32_t i = 0; s->is_group && i < s->n_entries; i++) ret->names += strlen(s->names[i]) + 1;
    return LEND__TREE_HEAD_BYTES + ret->tables + ret->nodes + (ret->paths + 7) / 8 * 8 + (ret->names + 7) / 8 * 8;
}

static void put_head(const struct lend__tree_source *s, const struct lengths *lengths, uint8_t *p) {
    lend__put32(p + 16, s->n_exporters);
    lend__put32(p + 20, s->n_allocations);
    lend__put32(p + 24, s->n_storages);
    lend__put32(p + 28, s->n_nodes);
    lend__put32(p + 32, s->n_entries);
    lend__put32(p + 36, (uint32_t)lengths->nodes);
    lend__put32(p + 40, (uint32_t)lengths->names);
    lend__put16(p + 44, s->is_group ? FLAG_GROUP : 0);
}

int lend__tree_write(const struct lend__tree_source *s, void **ret_bytes, size_t *ret_n) {
    struct lengths lengths;
    uint64_t total = measure(s, &lengths);
    if (total > LEND_GROUP_BYTES_MAX) return -ENOSPC;
    uint8_t *bytes = lend__zalloc(total);
    if (!bytes) return -ENOMEM;
    put_head(s, &lengths, bytes);
    uint8_t *p = put_tables(s, bytes + LEND__TREE_HEAD_BYTES);
    struct lend__tree_node node;
    for (uint32_t i = 0; i < s->n_nodes; i++) {
        s->node(s->user, i, &node);
        p = put_node(&node, p);
    }
    uint8_t *names = p + (lengths.paths + 7) / 8 * 8;
    for (uint32_t i = 0; i < s->n_exporters; i++) {
        const struct lend__wire_exporter *e = &s->exporters[i];
        if (!e->socket_path) continue;
        memcpy(p, e->socket_path, e->socket_path_bytes);
        p += e->socket_path_bytes;
    }
    for (uint32_t i = 0; s->is_group && i < s->n_entries; i++) {
        size_t n = strlen(s->names[i]) + 1;
        memcpy(names, s->names[i], n);
        names += n;
    }
    lend__wire_close(bytes, (uint32_t)total, LEND__WIRE_TREE);
    *ret_bytes = bytes;
    *ret_n = total;
    return 0;
}
