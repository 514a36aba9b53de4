/* SPDX-License-Identifier: MIT */
/* Trees: any bytes, bytes with a right checksum, handles of this very process and of a living other one with fields
 * changed, decoded and rebuilt; and the property decode(encode(tree)) == tree for trees made of the input. Whatever
 * comes, the answer is a typed error or tensors that hold together, nothing stays behind, and what is allocated is a
 * constant times the length. */
#include "base/sys.h"
#include "share/context.h"
#include "share/peer.h"
#include "share/tree.h"
#include "trees.h"

#include <errno.h>

enum { RAW, SUMMED, OWN, THEIRS, ROUND_TRIP, N_MODES };
enum { N_OWN = N_SAMPLES + 2, HANDLE_MAX = 8192, BYTES_PER_BYTE = 64, BYTES_MORE = 65536, READ_BYTES_MAX = 65536 };

static struct {
    struct lend_pool *pool;
    struct lend_tensor *tensors[N_SAMPLES];
    struct lend_group *group;
    uint8_t handle[N_OWN][HANDLE_MAX]; /* of each tensor, of the group, of an empty one */
    size_t n[N_OWN];
    struct stranger stranger;
} own;

/* --- what is allocated ---------------------------------------------------------------------------------------------- */

static __thread bool is_counting;
static __thread uint64_t allocated;

static long counting_calloc(size_t n, size_t bytes, void **ret) {
    if (is_counting) allocated += n * bytes;
    return lend__sys_real.calloc(n, bytes, ret);
}

static long counting_realloc(void *old, size_t bytes, void **ret) {
    if (is_counting) allocated += bytes;
    return lend__sys_real.realloc(old, bytes, ret);
}

static void count_from_here(void) {
    is_counting = true;
    allocated = 0;
}

static void check_allocated(size_t n) {
    is_counting = false;
    PROPERTY(allocated <= BYTES_PER_BYTE * n + BYTES_MORE);
}

/* --- beginning ------------------------------------------------------------------------------------------------------- */

static void keep(int i, void *handle, size_t n) {
    PROPERTY(n <= HANDLE_MAX);
    memcpy(own.handle[i], handle, n);
    own.n[i] = n;
    lend_free(handle);
}

static void begin(void) {
    struct lend_group *empty = NULL;
    void *handle = NULL;
    size_t n = 0;
    if (own.pool) return;
    own.stranger = start_stranger();
    lend__sys.calloc = counting_calloc;
    lend__sys.realloc = counting_realloc;
    PROPERTY(lend_open(NULL, NULL) == 0 && lend_pool_new(NULL, &own.pool, NULL) == 0);
    for (int i = 0; i < N_SAMPLES; i++) {
        own.tensors[i] = sample(own.pool, i);
        PROPERTY(lend_reduce(own.tensors[i], NULL, own.handle[i], HANDLE_MAX, &own.n[i], NULL) == 0);
    }
    own.group = sample_group(own.pool);
    PROPERTY(lend_group_reduce(own.group, NULL, &handle, &n, NULL) == 0);
    keep(N_SAMPLES, handle, n);
    PROPERTY(lend_group_new(&empty, NULL) == 0 && lend_group_reduce(empty, NULL, &handle, &n, NULL) == 0);
    keep(N_SAMPLES + 1, handle, n);
    lend_group_unref(empty);
}

/* --- decoding and encoding -------------------------------------------------------------------------------------------- */

/* A tree as it is given to lend__tree_write; everything is borrowed. */
struct parts {
    struct lend__tree_source source;
    struct lend__wire_exporter *exporters;
    struct lend__tree_allocation *allocations;
    struct lend__tree_storage *storages;
    struct lend__tree_node *nodes;
    const char **names;
};

static void give_node(void *user, uint32_t i, struct lend__tree_node *ret) {
    *ret = ((const struct parts *)user)->nodes[i];
}

static void make_room(struct parts *parts, uint32_t n_exporters, uint32_t n_allocations, uint32_t n_storages,
                      uint32_t n_nodes) {
    parts->exporters = calloc(n_exporters + 1u, sizeof *parts->exporters);
    parts->allocations = calloc(n_allocations + 1u, sizeof *parts->allocations);
    parts->storages = calloc(n_storages + 1u, sizeof *parts->storages);
    parts->nodes = calloc(n_nodes + 1u, sizeof *parts->nodes);
    parts->names = calloc(n_nodes + 1u, sizeof *parts->names);
    PROPERTY(parts->exporters && parts->allocations && parts->storages && parts->nodes && parts->names);
    parts->source = (struct lend__tree_source){.n_exporters = n_exporters,
                                               .n_allocations = n_allocations,
                                               .n_storages = n_storages,
                                               .n_nodes = n_nodes,
                                               .exporters = parts->exporters,
                                               .allocations = parts->allocations,
                                               .storages = parts->storages,
                                               .names = parts->names,
                                               .node = give_node,
                                               .user = parts};
}

static void free_parts(struct parts *parts) {
    free(parts->exporters);
    free(parts->allocations);
    free(parts->storages);
    free(parts->nodes);
    free(parts->names);
}

/* Takes a tree that has been checked apart. */
static void take_apart(const struct lend__tree *tree, struct parts *ret) {
    uint32_t at = tree->nodes_at;
    const char *name = tree->names;
    make_room(ret, tree->n_exporters, tree->n_allocations, tree->n_storages, tree->n_nodes);
    ret->source.is_group = tree->is_group;
    ret->source.n_entries = tree->n_entries;
    lend__tree_exporters(tree, ret->exporters);
    for (uint32_t i = 0; i < tree->n_allocations; i++) lend__tree_allocation(tree, i, &ret->allocations[i]);
    for (uint32_t i = 0; i < tree->n_storages; i++) {
        lend__tree_storage(tree, i, &ret->storages[i]);
        PROPERTY(ret->storages[i].allocation < tree->n_allocations);
    }
    for (uint32_t i = 0; i < tree->n_nodes; i++)
        PROPERTY(lend__tree_next(tree, &at, &ret->nodes[i], "fuzz", NULL) == 0);
    PROPERTY(at == tree->nodes_end);
    for (uint32_t i = 0; tree->is_group && i < tree->n_entries; i++, name += strlen(name) + 1) ret->names[i] = name;
}

static bool are_equal_tensors(const struct lend__wire_tensor *a, const struct lend__wire_tensor *b) {
    return !memcmp(&a->dtype, &b->dtype, sizeof a->dtype) && a->is_read_only == b->is_read_only &&
           a->is_padded == b->is_padded && a->is_contiguous == b->is_contiguous && a->attrs == b->attrs &&
           a->ndim == b->ndim && a->offset_bits == b->offset_bits && a->user_tag == b->user_tag &&
           a->user_bytes == b->user_bytes && (!a->user_bytes || !memcmp(a->user, b->user, a->user_bytes)) &&
           !memcmp(a->dims, b->dims, (a->is_contiguous ? 1u : 2u) * a->ndim * sizeof a->dims[0]);
}

static bool are_equal_nodes(const struct lend__tree_node *a, const struct lend__tree_node *b) {
    if (a->layout != b->layout || a->n_components != b->n_components || a->storage != b->storage ||
        a->is_coalesced != b->is_coalesced || !are_equal_tensors(&a->tensor, &b->tensor))
        return false;
    if (a->layout == LEND_LAYOUT_STRIDED) return true;
    return a->dim == b->dim && !memcmp(&a->scale, &b->scale, sizeof a->scale) && a->zero_point == b->zero_point;
}

static bool are_equal(const struct parts *a, const struct parts *b) {
    const struct lend__tree_source *s = &a->source, *t = &b->source;
    if (s->is_group != t->is_group || s->n_exporters != t->n_exporters || s->n_allocations != t->n_allocations ||
        s->n_storages != t->n_storages || s->n_nodes != t->n_nodes || s->n_entries != t->n_entries)
        return false;
    for (uint32_t i = 0; i < s->n_exporters; i++) {
        const struct lend__wire_exporter *x = &a->exporters[i], *y = &b->exporters[i];
        if (memcmp(&x->identity, &y->identity, sizeof x->identity) || x->pin_token != y->pin_token ||
            x->socket_path_bytes != y->socket_path_bytes ||
            (x->socket_path_bytes && memcmp(x->socket_path, y->socket_path, x->socket_path_bytes)))
            return false;
    }
    for (uint32_t i = 0; i < s->n_nodes; i++)
        if (!are_equal_nodes(&a->nodes[i], &b->nodes[i])) return false;
    for (uint32_t i = 0; s->is_group && i < s->n_entries; i++)
        if (strcmp(a->names[i], b->names[i])) return false;
    return !memcmp(a->allocations, b->allocations, s->n_allocations * sizeof *a->allocations) &&
           !memcmp(a->storages, b->storages, s->n_storages * sizeof *a->storages);
}

/* What is written is read as what it was; and from then on the bytes are the same. */
static void go_round(const struct parts *parts) {
    void *once = NULL, *twice = NULL;
    size_t n_once = 0, n_twice = 0;
    struct lend__tree tree;
    struct parts back;
    struct lend_error error = {0};
    PROPERTY(lend__tree_write(&parts->source, &once, &n_once) == 0);
    int r = lend__tree_open(once, n_once, &tree, "fuzz", &error);
    if (r >= 0) r = lend__tree_check(&tree, "fuzz", &error);
    if (r < 0) fprintf(stderr, "%s\n", error.text);
    PROPERTY(r == 0);
    take_apart(&tree, &back);
    PROPERTY(are_equal(parts, &back));
    PROPERTY(lend__tree_write(&back.source, &twice, &n_twice) == 0);
    PROPERTY(n_once == n_twice && !memcmp(once, twice, n_once));
    free_parts(&back);
    free(once);
    free(twice);
}

static bool is_known(int r) {
    return r == 0 || r == -EBADMSG || r == -EPROTONOSUPPORT || r == -EINVAL;
}

static void check_text(const uint8_t *bytes, size_t n) {
    size_t n_back = 0, room = LEND_HANDLE_TEXT_BYTES(n);
    char *text = malloc(room);
    uint8_t *back = malloc(n);
    PROPERTY(text && back && lend_handle_format(bytes, n, text, room) == 0);
    PROPERTY(lend_handle_parse(text, back, n, &n_back) == 0);
    PROPERTY(n == n_back && !memcmp(bytes, back, n));
    free(text);
    free(back);
}

static void decode(const uint8_t *bytes, size_t n) {
    struct lend__tree tree;
    struct lend_error error = {0};
    struct lend_handle_info info = {.size = sizeof info};
    const char **names = NULL;
    size_t n_names = 0;
    if (!lend__wire_is_tree(bytes, n)) return;
    count_from_here();
    int r = lend__tree_open(bytes, n, &tree, "fuzz", &error);
    PROPERTY(r != -EINVAL);
    if (r == 0) r = lend__tree_check(&tree, "fuzz", &error);
    PROPERTY(allocated == 0);
    PROPERTY(is_known(r) && (r == 0 || (error.code == r && error.text[0])));
    PROPERTY(lend_handle_describe(bytes, n, &info, NULL) == r);
    int listed = lend_group_names(bytes, n, &names, &n_names, NULL);
    check_allocated(n);
    PROPERTY(listed == (r < 0 ? r : tree.is_group ? 0 : -EINVAL));
    PROPERTY(listed < 0 || n_names == tree.n_entries);
    lend_free(names);
    if (r < 0) return;
    PROPERTY(info.n_tensors == tree.n_entries && info.n_storages == tree.n_storages &&
             info.n_exporters == tree.n_exporters);
    struct parts parts;
    take_apart(&tree, &parts);
    go_round(&parts);
    free_parts(&parts);
    check_text(bytes, n);
}

/* --- rebuilding ------------------------------------------------------------------------------------------------------- */

static bool is_documented(int r) {
    static const int codes[] = {0,       -EBADMSG, -EPROTONOSUPPORT, -EINVAL, -ESTALE, -EOWNERDEAD,
                                -EAGAIN, -EREMOTE, -EPERM,           -EACCES, -ENODEV, -ENOENT};
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (codes[i] == r) return true;
    return false;
}

/* What was rebuilt could have been made by hand: its attributes and its components go together. */
static void check_sound(struct lend_tensor *tensor, int depth) {
    struct lend_tensor_info info = {.size = sizeof info};
    struct lend_tensor_attrs attrs = {.size = sizeof attrs};
    struct lend_tensor *again = NULL, *copy = NULL;
    PROPERTY(depth <= LEND_DEPTH_MAX);
    PROPERTY(lend_tensor_info(tensor, &info) == 0 && lend_tensor_attrs(tensor, &attrs) == 0);
    PROPERTY(lend_tensor_with_attrs(tensor, &attrs, &again, NULL) == 0);
    lend_tensor_unref(again);
    if (info.layout == LEND_LAYOUT_STRIDED) {
        bool can_be_read = info.device.device_type == kDLCPU && info.nbytes <= READ_BYTES_MAX;
        PROPERTY(!can_be_read || lend_tensor_copy(tensor, NULL, &copy, NULL) == 0);
        lend_tensor_unref(copy);
        return;
    }
    struct lend_compound compound = {.size = sizeof compound};
    PROPERTY(lend_tensor_components(tensor, &compound) == 0);
    PROPERTY(lend_tensor_new_compound(&compound, &again, NULL) == 0);
    lend_tensor_unref(again);
    for (uint32_t i = 0; i < compound.n_components; i++) check_sound(compound.components[i], depth + 1);
}

/* Whoever listens at a path that the input made up is left alone. */
static bool has_path(const uint8_t *bytes, size_t n) {
    struct lend__tree tree;
    if (lend__tree_open(bytes, n, &tree, "fuzz", NULL) < 0) return false;
    for (uint32_t i = 0; i < tree.n_exporters; i++)
        if (bytes[LEND__TREE_HEAD_BYTES + i * LEND__TREE_EXPORTER_BYTES + 56]) return true;
    return false;
}

static void rebuild_group(const uint8_t *bytes, size_t n, const struct lend_rebuild_opts *opts, bool is_part) {
    static const char *const names[] = {"tied", "", "view"};
    struct lend_group *group = NULL;
    struct lend_error error = {0};
    count_from_here();
    int r = lend_group_rebuild(bytes, n, is_part ? names : NULL, is_part ? 3 : 0, opts, &group, &error);
    check_allocated(n);
    PROPERTY(is_documented(r) && (r == 0 || (error.code == r && error.text[0] && !group)));
    if (r < 0) return;
    PROPERTY(!is_part || lend_group_count(group) == 3);
    for (size_t i = 0; i < lend_group_count(group); i++) {
        const char *name = NULL;
        struct lend_tensor *tensor = lend_group_get(group, i, &name);
        PROPERTY(tensor && lend_group_find(group, name));
        check_sound(tensor, 1);
    }
    lend_group_unref(group);
}

static void rebuild(const uint8_t *bytes, size_t n, uint8_t how) {
    static const uint32_t flags[] = {0, LEND_REBUILD_CHECK, LEND_REBUILD_READ_ONLY, LEND_REBUILD_WRITABLE};
    const struct lend_rebuild_opts opts = {.size = sizeof opts, .flags = flags[how % 4]};
    struct lend_tensor *tensor = NULL;
    struct lend_error error = {0};
    if (!lend__wire_is_tree(bytes, n) || has_path(bytes, n)) return;
    count_from_here();
    int r = lend_rebuild(bytes, n, &opts, &tensor, &error);
    check_allocated(n);
    PROPERTY(is_documented(r) && (r == 0 || (error.code == r && error.text[0] && !tensor)));
    if (r == 0) check_sound(tensor, 1);
    lend_tensor_unref(tensor);
    rebuild_group(bytes, n, &opts, how & 4);
    if (how & 8) (void)lend_pin_cancel(bytes, n, 0, NULL);
    PROPERTY(lend__peers_storages() == 0);
    PROPERTY(lend_check(NULL) == 0);
}

/* A handle with the input as changes: pairs of place (two bytes) and value. */
static void change(struct input *in, const uint8_t *handle, size_t n) {
    uint8_t how = input_byte(in), *bytes = malloc(n);
    PROPERTY(bytes);
    memcpy(bytes, handle, n);
    while (in->left) {
        uint16_t at = 0;
        input_take(in, &at, 2);
        bytes[at % n] ^= input_byte(in);
    }
    put_sum(bytes, n, LEND__WIRE_TREE);
    decode(bytes, n);
    rebuild(bytes, n, how);
    free(bytes);
}

/* --- trees of the input ----------------------------------------------------------------------------------------------- */

static void make_exporter(struct input *in, struct lend__wire_exporter *ret, char path[LEND__WIRE_PATH_MAX]) {
    input_take(in, &ret->identity.boot_id, 16);
    input_take(in, &ret->identity.id, 16);
    ret->identity.start_ns = input_u64(in);
    ret->identity.uid = (uint32_t)input_u64(in);
    ret->identity.pid = (uint32_t)input_u64(in);
    ret->pin_token = input_u64(in);
    ret->socket_path_bytes = input_byte(in) % (LEND__WIRE_PATH_MAX + 1);
    input_take(in, path, ret->socket_path_bytes);
    for (uint32_t i = 0; i < ret->socket_path_bytes; i++)
        if (!path[i]) path[i] = '/';
    ret->socket_path = ret->socket_path_bytes ? path : NULL;
}

static void make_tensor(struct input *in, struct lend__wire_tensor *t, const uint8_t *user) {
    uint8_t flags = input_byte(in);
    bool is_wide = flags & 8;
    t->is_read_only = flags & 1;
    t->is_padded = flags & 2;
    t->is_contiguous = flags & 4;
    t->attrs = input_byte(in) & 0x7f;
    t->dtype = (DLDataType){input_byte(in), 0, 0};
    t->dtype.bits = input_byte(in);
    t->dtype.lanes = input_byte(in);
    t->ndim = flags & 16 ? LEND_NDIM_MAX : input_byte(in) % 5;
    t->offset_bits = input_byte(in);
    t->user_bytes = flags & 32 ? LEND_USER_BYTES_MAX : input_byte(in) % 20;
    t->user = t->user_bytes ? user : NULL;
    t->user_tag = t->user_bytes ? input_byte(in) : 0;
    for (uint32_t i = 0; i < 2 * t->ndim; i++) t->dims[i] = is_wide ? (int64_t)input_u64(in) : (int8_t)input_byte(in);
}

/* A node and, as far as there is room, its components. Returns how many that makes. */
static uint32_t make_node(struct input *in, struct parts *parts, uint32_t at, uint32_t room, uint32_t depth) {
    static const uint8_t user[LEND_USER_BYTES_MAX] = "whatever";
    struct lend__tree_node *node = &parts->nodes[at];
    uint32_t n = 1, n_storages = parts->source.n_storages;
    make_tensor(in, &node->tensor, user);
    node->layout = input_byte(in) % (LEND_LAYOUT_WRAPPER + 1);
    if (node->layout == LEND_LAYOUT_STRIDED && !n_storages) node->layout = LEND_LAYOUT_WRAPPER;
    if (node->layout == LEND_LAYOUT_STRIDED) {
        node->storage = input_byte(in) % n_storages;
        return n;
    }
    bool has_dim = node->layout == LEND_LAYOUT_JAGGED || node->layout == LEND_LAYOUT_QUANTIZED_PER_CHANNEL;
    node->storage = LEND__TREE_NONE;
    node->tensor.is_contiguous = true;
    node->tensor.is_read_only = node->tensor.is_padded = false;
    node->tensor.offset_bits = 0;
    node->is_coalesced = node->layout == LEND_LAYOUT_COO && input_byte(in) % 2;
    node->dim = has_dim ? (int8_t)input_byte(in) : 0;
    if (node->layout == LEND_LAYOUT_QUANTIZED) {
        input_take(in, &node->scale, sizeof node->scale);
        node->zero_point = (int64_t)input_u64(in);
    }
    uint32_t wanted = depth < LEND_DEPTH_MAX ? input_byte(in) % (LEND_COMPONENTS_MAX + 1) : 0;
    while (node->n_components < wanted && n < room) {
        n += make_node(in, parts, at + n, room - n, depth + 1);
        node->n_components++;
    }
    return n;
}

static void make_tree(struct input *in) {
    enum { NODES_MAX = 64 };
    static char paths[4][LEND__WIRE_PATH_MAX], names[NODES_MAX][32];
    struct parts parts;
    uint8_t counts = input_byte(in);
    memset(paths, 0, sizeof paths);
    memset(names, 'n', sizeof names);
    uint32_t n_exporters = counts & 3, n_allocations = n_exporters ? counts >> 2 & 3 : 0;
    make_room(&parts, n_exporters, n_allocations, n_allocations ? counts >> 4 & 7 : 0, NODES_MAX);
    struct lend__tree_source *source = &parts.source;
    source->is_group = counts & 128;
    source->n_nodes = 0;
    for (uint32_t i = 0; i < n_exporters; i++) make_exporter(in, &parts.exporters[i], paths[i]);
    for (uint32_t i = 0; i < n_allocations; i++) {
        uint32_t exporter = input_byte(in) % n_exporters, index = (uint32_t)input_u64(in);
        parts.allocations[i] = (struct lend__tree_allocation){exporter, (int32_t)counts, index, counts, input_u64(in)};
    }
    for (uint32_t i = 0; i < source->n_storages; i++) {
        struct lend__tree_storage *row = &parts.storages[i];
        row->allocation = input_byte(in) % n_allocations;
        row->slot = (uint32_t)input_u64(in);
        row->slot_gen = input_u64(in);
        row->off = input_u64(in);
        row->bytes = input_u64(in);
    }
    uint32_t wanted = source->is_group ? input_byte(in) % 8 : 1;
    while (source->n_entries < wanted && source->n_nodes < NODES_MAX) {
        char *name = names[source->n_entries];
        name[input_byte(in) % sizeof names[0]] = '\0';
        for (char *c = name; *c; c++) *c = (char)(input_byte(in) | 1);
        parts.names[source->n_entries++] = name;
        source->n_nodes += make_node(in, &parts, source->n_nodes, NODES_MAX - source->n_nodes, 1);
    }
    go_round(&parts);
    free_parts(&parts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct input in = {data, bytes};
    begin();
    unsigned mode = input_byte(&in) % N_MODES;
    if (mode == RAW) {
        decode(in.at, in.left);
        rebuild(in.at, in.left, 1);
    } else if (mode == SUMMED) {
        uint8_t *copy = malloc(in.left + 1);
        PROPERTY(copy);
        if (in.left) memcpy(copy, in.at, in.left);
        put_sum(copy, in.left, LEND__WIRE_TREE);
        decode(copy, in.left);
        rebuild(copy, in.left, 1);
        free(copy);
    } else if (mode == OWN) {
        unsigned which = input_byte(&in) % N_OWN;
        change(&in, own.handle[which], own.n[which]);
    } else if (mode == THEIRS) {
        change(&in, own.stranger.handle, own.stranger.n);
    } else {
        make_tree(&in);
    }
    return 0;
}
