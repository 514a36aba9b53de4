/* SPDX-License-Identifier: MIT */
/* How `lend show` prints as JSON: one object with all that can be told, of every tensor of a group and of every
 * component, so that all their elements are read. */
#include "show.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>

#define NAME "show"

/* JSON has neither infinities nor NaNs (the mean of both infinities): they become texts. */
static json_t *json_number(double v) {
    if (isfinite(v)) return json_real(v);
    return json_string(isnan(v) ? "nan" : v > 0 ? "inf" : "-inf");
}

static json_t *json_extreme(const struct stats *s, DLDataType dtype, bool is_max) {
    int64_t exact = is_max ? s->int_max : s->int_min;
    double v = is_max ? s->max : s->min;
    if (!s->has_values) return json_null();
    /* Above 2^63 - 1 jansson has no integers. */
    if (s->is_integer && (dtype.code != LEND_UINT || exact >= 0)) return json_integer(exact);
    return json_number(v);
}

static json_t *json_attributes(uint32_t attrs) {
    json_t *array = json_array();
    for (unsigned i = 0; attribute_name(i); i++)
        if (attrs >> i & 1) json_array_append_new(array, json_string(attribute_name(i)));
    return array;
}

static json_t *json_user(const struct lend_tensor *tensor) {
    struct lend_tensor_attrs attrs = {.size = sizeof attrs};
    if (lend_tensor_attrs(tensor, &attrs) < 0 || !attrs.user) return json_null();
    json_t *o = json_object();
    json_object_set_new(o, "tag", json_size(attrs.user_tag));
    json_object_set_new(o, "bytes", json_size(attrs.user_bytes));
    return o;
}

/* What every tensor has. */
static void json_set_head(json_t *o, const struct lend_tensor *tensor, const struct lend_tensor_info *t) {
    char dtype[32];
    lend_dtype_format(t->dtype, dtype, sizeof dtype);
    json_object_set_new(o, "layout", json_string(layout_name(t->layout)));
    json_object_set_new(o, "dtype", json_string(dtype));
    json_object_set_new(o, "shape", json_dims(t->ndim, t->shape));
    json_object_set_new(o, "elements", json_integer(t->numel));
    json_object_set_new(o, "bytes", json_size(t->nbytes));
    json_object_set_new(o, "attributes", json_attributes(t->attrs));
    json_object_set_new(o, "user", json_user(tensor));
    json_object_set_new(o, "is_read_only", json_boolean(t->is_read_only));
    json_object_set_new(o, "is_file", json_boolean(t->is_file));
    json_object_set_new(o, "is_meta", json_boolean(is_meta(t)));
}

/* `s`: NULL for a meta tensor, which has no values. */
static void json_set_stats(json_t *o, const struct stats *s, DLDataType dtype) {
    json_object_set_new(o, "min", s ? json_extreme(s, dtype, false) : json_null());
    json_object_set_new(o, "max", s ? json_extreme(s, dtype, true) : json_null());
    json_object_set_new(o, "mean", s && s->has_values ? json_number(s->mean) : json_null());
    json_object_set_new(o, "is_magnitude", json_boolean(dtype.code == LEND_COMPLEX));
    json_object_set_new(o, "nan", s ? json_size(s->n_nan) : json_null());
    json_object_set_new(o, "sha256", s ? json_string(s->sha256) : json_null());
}

static int json_set_strided(json_t *o, struct lend_tensor *tensor, const struct lend_tensor_info *t,
                            struct lend_error *error) {
    struct stats stats = {.has_values = false};
    int r = is_meta(t) ? 0 : stats_compute(tensor, &stats, error);
    if (r < 0) return r;
    json_object_set_new(o, "strides", json_dims(t->ndim, t->strides));
    json_set_stats(o, is_meta(t) ? NULL : &stats, t->dtype);
    json_object_set_new(o, "inode", json_size(t->allocation_inode));
    json_object_set_new(o, "allocation_offset", json_size(t->allocation_offset));
    json_object_set_new(o, "allocation_bytes", json_size(t->allocation_bytes));
    json_object_set_new(o, "storage_bytes", json_size(t->storage_bytes));
    json_object_set_new(o, "storage_id", json_size(t->storage_id));
    return 0;
}

static int json_set_tensor(json_t *o, struct lend_tensor *tensor, struct lend_error *error);

static int json_set_components(json_t *o, const struct lend_tensor *tensor, struct lend_error *error) {
    struct lend_compound c = {.size = sizeof c};
    json_t *components = json_array();
    lend_tensor_components(tensor, &c);
    if (c.layout == LEND_LAYOUT_COO) json_object_set_new(o, "is_coalesced", json_boolean(c.is_coalesced));
    if (c.layout == LEND_LAYOUT_JAGGED || c.layout == LEND_LAYOUT_QUANTIZED_PER_CHANNEL)
        json_object_set_new(o, "dim", json_integer(c.dim));
    if (c.layout == LEND_LAYOUT_QUANTIZED) {
        json_object_set_new(o, "scale", json_number(c.scale));
        json_object_set_new(o, "zero_point", json_integer(c.zero_point));
    }
    int r = 0;
    for (uint32_t i = 0; i < c.n_components && r == 0; i++) {
        char number[FORMAT_BYTES];
        json_t *component = json_object();
        json_object_set_new(component, "name", json_string(component_name(c.layout, i, number)));
        r = json_set_tensor(component, c.components[i], error);
        json_array_append_new(components, component);
    }
    json_object_set_new(o, "components", components);
    return r;
}

static int json_set_tensor(json_t *o, struct lend_tensor *tensor, struct lend_error *error) {
    struct lend_tensor_info t = {.size = sizeof t};
    int r = lend_tensor_info(tensor, &t);
    if (r < 0) {
        snprintf(error->text, sizeof error->text, "%s", lend_strerror(r));
        return error->code = r;
    }
    json_set_head(o, tensor, &t);
    if (t.layout == LEND_LAYOUT_STRIDED) return json_set_strided(o, tensor, &t, error);
    return json_set_components(o, tensor, error);
}

static int json_set_group(json_t *root, const struct lend_group *group, struct lend_error *error) {
    json_t *tensors = json_array();
    int r = 0;
    for (size_t i = 0; i < lend_group_count(group) && r == 0; i++) {
        const char *name = NULL;
        json_t *o = json_object();
        struct lend_tensor *tensor = lend_group_get(group, i, &name);
        json_object_set_new(o, "name", json_text(name));
        r = json_set_tensor(o, tensor, error);
        json_array_append_new(tensors, o);
    }
    json_object_set_new(root, "tensors", tensors);
    return r;
}

int show_json(const struct shown *shown) {
    const struct lend_handle_info *handle = &shown->handle;
    struct lend_error error = {0};
    json_t *root = json_object();
    if (shown->name) json_object_set_new(root, "name", json_text(shown->name));
    int r = shown->tensor ? json_set_tensor(root, shown->tensor, &error) : json_set_group(root, shown->group, &error);
    if (r < 0) {
        json_decref(root);
        return fail(NAME, &error);
    }
    if (!shown->tensor) json_object_set_new(root, "n_storages", json_size(handle->n_storages));
    json_object_set_new(root, "exporter_pid", handle->n_exporters ? json_size(handle->exporter_pid) : json_null());
    json_object_set_new(root, "n_exporters", json_size(handle->n_exporters));
    json_object_set_new(root, "is_pinned", json_boolean(handle->pin_token != 0));
    return json_print(NAME, root);
}
