/* SPDX-License-Identifier: MIT */
/* A line for each tensor, indented by its depth. Storages are numbered as they come, so that the numbers say which are
 * one and the same, and nothing else. */
#include "picture.h"

#include "base/crc32c.h"
#include "peer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* Private memory is told apart by where it lies, everything else by its storage. */
struct key {
    uint64_t id, bytes;
};

struct picture {
    const struct sending *sending;
    FILE *out;
    struct key used[4 * FOREST_TENSORS_MAX]; /* for each tensor over a storage */
    unsigned n_used;
    struct key seen[4 * FOREST_TENSORS_MAX]; /* numbered */
    unsigned n_seen;
};

static struct key key_of(const struct lend_tensor_info *info) {
    if (info->is_private && info->storage_data) return (struct key){(uintptr_t)info->storage_data, info->storage_bytes};
    return (struct key){info->storage_id, UINT64_MAX};
}

static bool is_same(struct key a, struct key b) {
    return a.id == b.id && a.bytes == b.bytes;
}

static unsigned number_of(struct picture *picture, const struct lend_tensor_info *info) {
    struct key key = key_of(info);
    unsigned i = 0;
    while (i < picture->n_seen && !is_same(picture->seen[i], key)) i++;
    CHECK(i < sizeof picture->seen / sizeof picture->seen[0]);
    if (i == picture->n_seen) picture->seen[picture->n_seen++] = key;
    return i;
}

static unsigned uses_of(const struct picture *picture, const struct lend_tensor_info *info) {
    unsigned n = 0;
    for (unsigned i = 0; i < picture->n_used; i++) n += is_same(picture->used[i], key_of(info));
    return n;
}

static void count_uses(struct picture *picture, struct lend_tensor *tensor) {
    struct lend_tensor_info info = info_of(tensor);
    struct lend_compound compound = {.size = sizeof compound};
    if (info.layout == LEND_LAYOUT_STRIDED) {
        CHECK(picture->n_used < sizeof picture->used / sizeof picture->used[0]);
        picture->used[picture->n_used++] = key_of(&info);
        return;
    }
    CHECK_OK(lend_tensor_components(tensor, &compound), NULL);
    for (uint32_t i = 0; i < compound.n_components; i++) count_uses(picture, compound.components[i]);
}

static void list(FILE *out, const char *name, const int64_t *dims, int32_t n) {
    fprintf(out, " %s", name);
    for (int32_t i = 0; i < n; i++) fprintf(out, ",%lld", (long long)dims[i]);
}

static void put_attributes(const struct picture *picture, struct lend_tensor *tensor) {
    const uint32_t local = LEND_ATTR_HOOKS | LEND_ATTR_HOOKS_MARKED;
    struct lend_tensor_attrs attrs = {.size = sizeof attrs};
    CHECK_OK(lend_tensor_attrs(tensor, &attrs), NULL);
    if (!picture->sending && (attrs.flags & local)) fprintf(picture->out, " with-local-marks");
    fprintf(picture->out, " attrs %x", attrs.flags & ~local);
    if (attrs.user)
        fprintf(picture->out, " user %x:%zu:%08x", attrs.user_tag, attrs.user_bytes,
                lend__crc32c(0, attrs.user, attrs.user_bytes));
}

/* What becomes of a storage on its way. */
struct fate {
    bool is_copied; /* the whole of it */
    bool is_view;   /* of it only what this tensor shows */
    bool is_read_only;
};

static struct fate fate_of(const struct picture *picture, const struct lend_tensor_info *info) {
    struct fate fate = {.is_read_only = info->is_read_only};
    if (!picture->sending) return fate;
    const struct lend_reduce_opts *opts = picture->sending->opts;
    bool has_memory = (int)info->device.device_type != LEND_DEVICE_META;
    fate.is_copied = info->is_private || info->is_zero || (opts->mode == LEND_MODE_SNAPSHOT && has_memory);
    fate.is_view = fate.is_copied && uses_of(picture, info) == 1;
    if (fate.is_copied) fate.is_read_only = false; /* the original is what must not be written */
    for (unsigned i = 0; !fate.is_copied && i < picture->sending->n_read_only_ids; i++)
        fate.is_read_only |= picture->sending->read_only_ids[i] == info->storage_id;
    fate.is_read_only |= (opts->flags & LEND_REDUCE_READ_ONLY) != 0;
    return fate;
}

static void put_place(const struct picture *picture, struct lend_tensor *tensor, const struct lend_tensor_info *info,
                      struct fate fate) {
    struct lend_tensor *bytes = NULL;
    if (fate.is_copied)
        fprintf(picture->out, " in ?");
    else
        fprintf(picture->out, " in %llu.%llu.%llu", (unsigned long long)info->allocation_inode,
                (unsigned long long)info->allocation_offset, (unsigned long long)info->allocation_bytes);
    if ((int)info->device.device_type == LEND_DEVICE_META) return;
    fprintf(picture->out, " sum %08x", sum_of(tensor));
    if (fate.is_view) {
        fprintf(picture->out, " all ?");
        return;
    }
    CHECK_OK(lend_tensor_as_bytes(tensor, &bytes, NULL), NULL);
    fprintf(picture->out, " all %08x", sum_of(bytes));
    lend_tensor_unref(bytes);
}

static void put_strided(struct picture *picture, struct lend_tensor *tensor, const struct lend_tensor_info *info) {
    struct fate fate = fate_of(picture, info);
    int64_t strides[LEND_NDIM_MAX], stride = 1;
    for (int32_t i = info->ndim - 1; i >= 0; i--) {
        strides[i] = stride;
        stride *= info->shape[i] > 1 ? info->shape[i] : 1;
    }
    FILE *out = picture->out;
    list(out, "strides", fate.is_view ? strides : info->strides, info->ndim);
    fprintf(out, " device %d padded %d read-only %d storage %u", (int)info->device.device_type, info->is_padded,
            fate.is_read_only, number_of(picture, info));
    fprintf(out, " of %llu at %llu", (unsigned long long)(fate.is_view ? info->nbytes : info->storage_bytes),
            fate.is_view ? 0 : (unsigned long long)info->storage_offset_bits);
    put_place(picture, tensor, info, fate);
    fputc('\n', out);
}

static void put_tensor(struct picture *picture, struct lend_tensor *tensor, int depth) {
    struct lend_tensor_info info = info_of(tensor);
    struct lend_compound compound = {.size = sizeof compound};
    FILE *out = picture->out;
    fprintf(out, "%*slayout %u dtype %u.%u.%u", 2 * depth, "", info.layout, info.dtype.code, info.dtype.bits,
            info.dtype.lanes);
    put_attributes(picture, tensor);
    list(out, "shape", info.shape, info.ndim);
    fprintf(out, " numel %lld nbytes %llu", (long long)info.numel, (unsigned long long)info.nbytes);
    if (info.layout == LEND_LAYOUT_STRIDED) {
        put_strided(picture, tensor, &info);
        return;
    }
    CHECK_OK(lend_tensor_components(tensor, &compound), NULL);
    uint64_t scale;
    memcpy(&scale, &compound.scale, sizeof scale);
    fprintf(out, " coalesced %d dim %d scale %llx zero-point %lld components %u\n", compound.is_coalesced, compound.dim,
            (unsigned long long)scale, (long long)compound.zero_point, compound.n_components);
    for (uint32_t i = 0; i < compound.n_components; i++) put_tensor(picture, compound.components[i], depth + 1);
}

char *picture_of(const struct tree *tree, const struct sending *sending, const bool *is_wanted) {
    static struct picture picture;
    char *text = NULL;
    size_t bytes;
    picture = (struct picture){.sending = sending, .out = open_memstream(&text, &bytes)};
    if (!picture.out) FAIL("no memory for a picture");
    for (unsigned i = 0; i < tree->n; i++) count_uses(&picture, tree->tensors[i]);
    for (unsigned i = 0; i < tree->n; i++) {
        if (is_wanted && !is_wanted[i]) continue;
        if (tree->is_group) fputs("name ", picture.out);
        for (const char *at = tree->names[i]; tree->is_group && *at; at++) fprintf(picture.out, "%02x", (uint8_t)*at);
        if (tree->is_group) fputc('\n', picture.out);
        put_tensor(&picture, tree->tensors[i], 0);
    }
    fclose(picture.out);
    return text;
}

/* Up to the end of the line. */
static int line_bytes(const char *text) {
    return (int)strcspn(text, "\n");
}

void picture_compare(const char *actual, const char *expected) {
    const char *a = actual, *e = expected;
    while (*a || *e) {
        if (*e == '?') { /* any word */
            e++;
            a += strcspn(a, " \n");
        } else if (*a == *e) {
            actual = *a == '\n' ? a + 1 : actual;
            expected = *e == '\n' ? e + 1 : expected;
            a++;
            e++;
        } else {
            FAIL("what arrived:\n  %.*s\nis not what was sent:\n  %.*s", line_bytes(actual), actual,
                 line_bytes(expected), expected);
        }
    }
}
