/* SPDX-License-Identifier: MIT */
/* Tensors of components: each layout built and taken apart, and what the whole says about itself. */
#include "compounds.h"
#include "fault.h"
#include "naive.h"
#include "pools.h"
#include "test.h"

#include "base/process.h"
#include "tensor/compound.h"

#include <errno.h>
#include <math.h>

/* Takes a tensor apart and compares it with what it was made of. */
static void check_components(const struct lend_tensor *tensor, const struct sample *s) {
    struct lend_compound got = {.size = sizeof got};
    CHECK_CODE(lend_tensor_components(tensor, &got), 0);
    CHECK_UINT(got.size, sizeof got);
    CHECK_UINT(got.layout, s->compound.layout);
    CHECK_UINT(got.n_components, s->compound.n_components);
    for (uint32_t i = 0; i < got.n_components; i++) CHECK_PTR(got.components[i], s->parts[i]);
    CHECK_INT(got.ndim, s->compound.ndim);
    CHECK_MEM(got.shape, s->shape, (size_t)got.ndim * sizeof(int64_t));
    CHECK_UINT(got.is_coalesced, s->compound.is_coalesced);
    CHECK_INT(got.dim, s->compound.dim);
    CHECK(got.scale == s->compound.scale);
    CHECK_INT(got.zero_point, s->compound.zero_point);
}

static void check_info(const struct lend_tensor *tensor, const struct sample *s) {
    struct lend_tensor_info info = naive_info(tensor);
    const struct lend_tensor *values = s->parts[lend__layout_values(s->compound.layout)];
    bool is_ragged = s->compound.layout == LEND_LAYOUT_NESTED || s->compound.layout == LEND_LAYOUT_JAGGED;
    int64_t numel = is_ragged ? values->numel : 1;
    for (int32_t i = 0; !is_ragged && i < s->compound.ndim; i++) numel *= s->shape[i];
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->compound.n_components; i++) bytes += naive_info(s->parts[i]).nbytes;
    CHECK_UINT(info.size, sizeof info);
    CHECK_UINT(info.layout, s->compound.layout);
    CHECK_MEM(&info.dtype, &values->dtype, sizeof info.dtype);
    CHECK_INT(info.device.device_type, kDLCPU);
    CHECK_INT(info.ndim, s->compound.ndim);
    CHECK_MEM(info.shape, s->shape, (size_t)info.ndim * sizeof(int64_t));
    CHECK_PTR(info.strides, NULL);
    CHECK_PTR(info.data, NULL);
    CHECK_PTR(info.storage_data, NULL);
    CHECK_UINT(info.storage_id + info.storage_bytes + info.allocation_inode, 0);
    CHECK_INT(info.numel, numel);
    CHECK_UINT(info.nbytes, bytes);
    CHECK_UINT(info.attrs, 0);
    CHECK_INT(info.is_private, 1);
    CHECK_INT(info.is_read_only + info.is_imported + info.is_shared + info.is_contiguous + info.is_zero + info.is_file,
              0);
    CHECK_PTR(lend_tensor_data(tensor), NULL);
}

LEND_TEST(compound_every_layout_is_built_and_taken_apart) {
    for (uint32_t layout = LEND_LAYOUT_COO; layout <= LEND_LAYOUT_QUANTIZED_PER_CHANNEL; layout++) {
        for (int is_wide = 0; is_wide < 2; is_wide++) {
            for (uint32_t n_more = 0; n_more <= (layout == LEND_LAYOUT_JAGGED); n_more++) { /* lengths */
                struct sample s;
                sample_make(&s, layout, is_wide ? dtype_int64 : dtype_int32);
                s.compound.n_components += n_more;
                struct lend_tensor *tensor = sample_tensor(&s);
                check_components(tensor, &s);
                check_info(tensor, &s);
                for (uint32_t i = 0; i < s.compound.n_components; i++) CHECK_UINT(s.parts[i]->n_refs, 2);
                lend_tensor_unref(tensor);
                for (uint32_t i = 0; i < s.compound.n_components; i++) CHECK_UINT(s.parts[i]->n_refs, 1);
                sample_end(&s);
            }
        }
    }
}

/* The components live as long as the whole, and no longer. */
LEND_TEST(compound_keeps_its_components) {
    struct lend_pool *pool = pool_without_context();
    struct lend_error error;
    struct sample s;
    sample_make(&s, LEND_LAYOUT_CSR, dtype_int32);
    for (int i = 0; i < 3; i++) {
        struct lend_tensor *in_pool;
        CHECK_OK(lend_tensor_copy(s.parts[i], pool, &in_pool, &error), &error);
        sample_replace(&s, (uint32_t)i, in_pool);
    }
    struct lend_tensor *tensor = sample_tensor(&s), *held = lend_tensor_ref(tensor);
    sample_end(&s);
    CHECK_UINT(pool_blocks_in_use(pool), 3);
    CHECK_INT(naive_info(tensor).is_private, 0);
    lend_tensor_unref(tensor);
    CHECK_UINT(pool_blocks_in_use(pool), 3);
    lend_tensor_unref(held);
    CHECK_UINT(pool_blocks_in_use(pool), 0);
    pool_end(pool);
}

/* What only one layout has is not kept by another. */
LEND_TEST(compound_keeps_only_what_its_layout_has) {
    struct sample s;
    struct lend_compound got = {.size = sizeof got};
    sample_make(&s, LEND_LAYOUT_CSR, dtype_int64);
    s.compound.is_coalesced = 1;
    s.compound.dim = 1;
    s.compound.scale = NAN;
    s.compound.zero_point = 7;
    s.compound.dtype = dtype_uint8; /* not read */
    struct lend_tensor *tensor = sample_tensor(&s);
    CHECK_CODE(lend_tensor_components(tensor, &got), 0);
    CHECK_UINT(got.is_coalesced, 0);
    CHECK_INT(got.dim, 0);
    CHECK(got.scale == 0);
    CHECK_INT(got.zero_point, 0);
    CHECK_MEM(&got.dtype, &dtype_float32, sizeof got.dtype);
    lend_tensor_unref(tensor);
    sample_end(&s);
}

LEND_TEST(compound_components_writes_only_what_fits) {
    struct sample s;
    sample_make(&s, LEND_LAYOUT_COO, dtype_int64);
    struct lend_tensor *tensor = sample_tensor(&s);
    struct lend_compound got;
    memset(&got, 0xee, sizeof got);
    got.size = offsetof(struct lend_compound, ndim);
    CHECK_CODE(lend_tensor_components(tensor, &got), 0);
    CHECK_UINT(got.n_components, 2);
    CHECK_UINT((uint32_t)got.ndim, 0xeeeeeeee);
    struct {
        struct lend_compound compound;
        uint64_t behind;
    } newer = {.compound.size = sizeof newer, .behind = 77};
    CHECK_CODE(lend_tensor_components(tensor, &newer.compound), 0);
    CHECK_UINT(newer.behind, 77);
    got.size = 4;
    CHECK_CODE(lend_tensor_components(tensor, &got), -EINVAL);
    CHECK_CODE(lend_tensor_components(tensor, NULL), -EINVAL);
    CHECK_CODE(lend_tensor_components(NULL, &newer.compound), -EINVAL);
    CHECK_CODE(lend_tensor_components(s.parts[0], &newer.compound), -EINVAL); /* strided */
    lend_tensor_unref(tensor);
    sample_end(&s);
}

LEND_TEST(compound_sizes_that_do_not_fit) {
    struct lend_error error;
    int64_t huge = (int64_t)1 << 40;
    struct sample s;
    sample_make(&s, LEND_LAYOUT_COO, dtype_int64);
    s.shape[0] = s.shape[1] = huge;
    struct lend_tensor *tensor = NULL, *none = NULL;
    CHECK_CODE(lend_tensor_new_compound(&s.compound, &none, &error), -EOVERFLOW);
    CHECK_CONTAINS(error.text, "the number of elements does not fit 63 bits (dimension 1 has size 1099511627776)");
    sample_end(&s);

    /* Views of one byte as 2^60 bytes: each fits, the sum of sixteen does not. */
    int64_t shape = (int64_t)1 << 60, stride = 0;
    struct lend_tensor *byte = tensor_of(dtype_uint8, SHAPE(1)), *view;
    CHECK_OK(lend_tensor_as_strided(byte, 1, &shape, &stride, 0, &view, &error), &error);
    s = (struct sample){.compound = {.size = sizeof s.compound, .layout = LEND_LAYOUT_WRAPPER, .dtype = dtype_uint8}};
    s.compound.components = s.parts;
    for (int i = 0; i < 16; i++) s.parts[i] = view;
    s.compound.n_components = 15;
    CHECK_OK(lend_tensor_new_compound(&s.compound, &tensor, &error), &error);
    CHECK_UINT(naive_info(tensor).nbytes, 15 * (uint64_t)shape);
    s.compound.n_components = 16;
    CHECK_CODE(lend_tensor_new_compound(&s.compound, &none, &error), -EOVERFLOW);
    CHECK_CONTAINS(error.text, "the bytes of the 16 components do not fit 64 bits");
    s.parts[1] = tensor; /* also when some of them lie deeper */
    s.compound.n_components = 2;
    CHECK_CODE(lend_tensor_new_compound(&s.compound, &none, &error), -EOVERFLOW);
    lend_tensor_unref(tensor);
    lend_tensor_unref(view);
    lend_tensor_unref(byte);
}

/* --- wrappers -------------------------------------------------------------------------------------------------------- */

static struct lend_tensor *wrap(uint32_t n, struct lend_tensor *const *parts) {
    struct lend_error error;
    struct lend_tensor *tensor;
    int64_t shape[] = {7, 0};
    const struct lend_compound compound = {.size = sizeof compound,
                                           .layout = LEND_LAYOUT_WRAPPER,
                                           .n_components = n,
                                           .components = parts,
                                           .ndim = 2,
                                           .shape = shape,
                                           .dtype = {LEND_BFLOAT, 16, 1}};
    CHECK_OK(lend_tensor_new_compound(&compound, &tensor, &error), &error);
    return tensor;
}

LEND_TEST(compound_wrapper_takes_any_layout) {
    struct lend_tensor *parts[LEND_COMPONENTS_MAX];
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < LEND_COMPONENTS_MAX; i++) {
        struct sample s;
        sample_make(&s, LEND_LAYOUT_COO + i % LEND_LAYOUT_QUANTIZED_PER_CHANNEL, dtype_int32);
        parts[i] = i % 2 ? sample_tensor(&s) : lend_tensor_ref(s.parts[0]);
        bytes += naive_info(parts[i]).nbytes;
        sample_end(&s);
    }
    struct lend_tensor *tensor = wrap(LEND_COMPONENTS_MAX, parts);
    struct lend_tensor_info info = naive_info(tensor);
    CHECK_INT(info.dtype.code, LEND_BFLOAT);
    CHECK_INT(info.ndim, 2);
    CHECK_INT(info.numel, 0);
    CHECK_UINT(info.nbytes, bytes);
    CHECK_UINT(tensor->item_bits, 16);
    for (uint32_t i = 0; i < LEND_COMPONENTS_MAX; i++) lend_tensor_unref(parts[i]);
    lend_tensor_unref(tensor);
    tensor = wrap(0, NULL); /* of nothing */
    CHECK_INT(naive_info(tensor).is_shared + naive_info(tensor).is_zero + naive_info(tensor).is_private, 0);
    lend_tensor_unref(tensor);

    struct lend_error error;
    int64_t shape = 1;
    struct lend_compound compound = {
        .size = sizeof compound, .layout = LEND_LAYOUT_WRAPPER, .n_components = 17, .components = parts};
    CHECK_CODE(lend_tensor_new_compound(&compound, &tensor, &error), -EINVAL);
    CHECK_CONTAINS(error.text, "a wrapper tensor has 0 to 16 components, not 17");
    compound = (struct lend_compound){.size = sizeof compound, .layout = LEND_LAYOUT_WRAPPER, .dtype = {3, 64, 1}};
    CHECK_CODE(lend_tensor_new_compound(&compound, &tensor, &error), -EINVAL);
    CHECK_CONTAINS(error.text, "dtype (code 3, bits 64, lanes 1) of a wrapper");
    compound = (struct lend_compound){.size = sizeof compound,
                                      .layout = LEND_LAYOUT_WRAPPER,
                                      .n_components = 1,
                                      .components = (struct lend_tensor *[]){NULL},
                                      .ndim = 1,
                                      .shape = &shape,
                                      .dtype = dtype_uint8};
    CHECK_CODE(lend_tensor_new_compound(&compound, &tensor, &error), -EINVAL);
    CHECK_STR(error.text, "component number 0 of a wrapper tensor is NULL");
}

/* Only wrappers take what is not strided. */
LEND_TEST(compound_components_are_strided) {
    struct lend_error error;
    struct lend_tensor *none = NULL;
    struct sample s;
    sample_make(&s, LEND_LAYOUT_QUANTIZED, dtype_int64);
    struct lend_tensor *quantized = sample_tensor(&s);
    sample_replace(&s, 0, quantized);
    CHECK_CODE(lend_tensor_new_compound(&s.compound, &none, &error), -EINVAL);
    CHECK_STR(error.text, "component values of a quantized tensor is itself a quantized tensor and must be strided");
    CHECK_PTR(none, NULL);
    sample_end(&s);
}

LEND_TEST(compound_depth_is_bounded) {
    struct lend_error error;
    struct lend_tensor *tensor = tensor_of(dtype_uint8, SHAPE(3)), *none = NULL;
    struct lend_compound compound = {
        .size = sizeof compound, .layout = LEND_LAYOUT_WRAPPER, .n_components = 1, .dtype = dtype_uint8};
    for (uint32_t depth = 2; depth <= LEND_DEPTH_MAX; depth++) {
        struct lend_tensor *inner = tensor;
        compound.components = &inner;
        CHECK_OK(lend_tensor_new_compound(&compound, &tensor, &error), &error);
        CHECK_UINT(tensor->extra->depth, depth);
        CHECK_UINT(naive_info(tensor).nbytes, 3);
        lend_tensor_unref(inner);
    }
    compound.components = &tensor;
    CHECK_CODE(lend_tensor_new_compound(&compound, &none, &error), -EINVAL);
    CHECK_CONTAINS(error.text, "8 deep, and LEND_DEPTH_MAX = 8");
    CHECK_PTR(none, NULL);
    lend_tensor_unref(tensor);
}

/* --- what the whole says --------------------------------------------------------------------------------------------- */

LEND_TEST(compound_says_what_any_or_all_components_say) {
    struct lend_pool *pool = pool_without_context();
    struct lend_error error;
    struct lend_tensor *parts[2];
    CHECK_OK(lend_tensor_new(pool, dtype_uint8, SHAPE(3), &parts[0], &error), &error);
    CHECK_OK(lend_tensor_new(pool, dtype_uint8, SHAPE(5), &parts[1], &error), &error);
    struct lend_tensor *tensor = wrap(2, parts);
    struct lend_tensor_info info = naive_info(tensor);
    CHECK_INT(info.is_read_only + info.is_imported + info.is_private + info.is_file + info.is_shared, 0);
    struct lend__extent *extent = &parts[0]->storage->block->allocation->extent;
    parts[1]->is_read_only = true;
    parts[1]->storage->is_shared = true;
    extent->is_file = true;
    info = naive_info(tensor);
    CHECK_INT(info.is_read_only, 1);
    CHECK_INT(info.is_file, 1);
    CHECK_INT(info.is_shared, 0);
    CHECK_INT(naive_info(parts[0]).is_file, 1);
    parts[0]->storage->is_shared = true;
    CHECK_INT(naive_info(tensor).is_shared, 1);
    parts[0]->storage->is_shared = parts[1]->storage->is_shared = false;
    extent->is_file = false;
    lend_tensor_unref(tensor);
    lend_tensor_unref(parts[1]);

    CHECK_OK(lend_tensor_new_zero(dtype_uint8, SHAPE(4), &parts[1], &error), &error);
    tensor = wrap(2, parts);
    CHECK_INT(naive_info(tensor).is_zero, 0);
    lend_tensor_unref(tensor);
    tensor = wrap(1, &parts[1]);
    CHECK_INT(naive_info(tensor).is_zero, 1);
    lend_tensor_unref(tensor);
    lend_tensor_unref(parts[0]);
    lend_tensor_unref(parts[1]);
    pool_end(pool);
}

LEND_TEST(compound_of_meta_is_on_the_meta_device) {
    struct lend_error error;
    struct sample s;
    sample_make(&s, LEND_LAYOUT_COO, dtype_int64);
    struct lend_tensor *meta;
    CHECK_OK(lend_tensor_new_meta(dtype_float32, SHAPE(3, 2), &meta, &error), &error);
    sample_replace(&s, 1, meta);
    struct lend_tensor *tensor = sample_tensor(&s), *outer = wrap(1, &meta);
    CHECK_INT(naive_info(tensor).device.device_type, LEND_DEVICE_META);
    CHECK_INT(naive_info(outer).device.device_type, LEND_DEVICE_META);
    lend_tensor_unref(outer);
    lend_tensor_unref(tensor);
    sample_end(&s);
}

LEND_TEST(compound_whose_component_is_gone) {
    struct lend_tensor *parts[2] = {tensor_of(dtype_uint8, SHAPE(3)), tensor_of(dtype_uint8, SHAPE(5))}, *none = NULL;
    struct lend_tensor *tensor = wrap(2, parts), *outer = wrap(1, &tensor);
    struct lend_tensor_info info = {.size = sizeof info};
    struct lend_compound got = {.size = sizeof got};
    struct lend_error error;
    struct lend_compound again = {.size = sizeof again, .layout = LEND_LAYOUT_WRAPPER, .dtype = dtype_uint8};
    again.n_components = 1;
    again.components = &outer;
    struct lend__storage *storage = parts[1]->storage;
    static const int codes[] = {-ECHILD, -ESTALE};
    for (int i = 0; i < 2; i++) {
        if (i == 0)
            storage->kind = LEND__STORAGE_DROPPED;
        else
            parts[1]->storage = NULL;
        CHECK_CODE(lend_tensor_info(tensor, &info), codes[i]);
        CHECK_CODE(lend_tensor_info(outer, &info), codes[i]);
        CHECK_CODE(lend_tensor_check(outer, &error), codes[i]);
        CHECK_CODE(lend_tensor_with_attrs(tensor, NULL, &none, &error), codes[i]);
        CHECK_CODE(lend_tensor_resolve(outer, NULL, &none, &error), codes[i]);
        CHECK_CODE(lend_tensor_new_compound(&again, &none, &error), codes[i]);
        CHECK_CONTAINS(error.text, i ? "component number 0 of a wrapper tensor: the tensor was moved away"
                                     : "component number 0 of a wrapper tensor: the tensor belongs to the parent");
        CHECK_CODE(lend_tensor_components(tensor, &got), 0);
        CHECK_PTR(got.components[1], parts[1]);
        storage->kind = LEND__STORAGE_PRIVATE;
    }
    CHECK_PTR(none, NULL);
    parts[1]->storage = storage;
    CHECK_CODE(lend_tensor_info(outer, &info), 0);
    lend_tensor_unref(outer);
    lend_tensor_unref(tensor);
    lend_tensor_unref(parts[0]);
    lend_tensor_unref(parts[1]);
}

/* Calls that want one memory name the layout and the way out. */
LEND_TEST(compound_has_no_memory_of_its_own) {
    struct lend_error error;
    struct lend_tensor *view = NULL;
    DLManagedTensorVersioned *managed = NULL;
    DLManagedTensor *legacy = NULL;
    struct sample s;
    sample_make(&s, LEND_LAYOUT_CSR, dtype_int64);
    struct lend_tensor *tensor = sample_tensor(&s);
    int64_t one = 1;
#define REFUSED(call)                                                                                                \
    do {                                                                                                             \
        CHECK_CODE(call, -EOPNOTSUPP);                                                                               \
        CHECK_STR(error.text, "a CSR tensor has no memory of its own: use its components (lend_tensor_components)"); \
    } while (0)
    REFUSED(lend_tensor_select(tensor, 0, 0, &view, &error));
    REFUSED(lend_tensor_slice(tensor, 0, 0, 1, 1, &view, &error));
    REFUSED(lend_tensor_transpose(tensor, 0, 1, &view, &error));
    REFUSED(lend_tensor_expand(tensor, 1, &one, &view, &error));
    REFUSED(lend_tensor_reshape(tensor, 1, &one, &view, &error));
    REFUSED(lend_tensor_as_strided(tensor, 1, &one, &one, 0, &view, &error));
    REFUSED(lend_tensor_as_bytes(tensor, &view, &error));
    REFUSED(lend_tensor_resize(tensor, 0, &error));
    REFUSED(lend_tensor_to_dlpack(tensor, &managed, &error));
    REFUSED(lend_tensor_to_dlpack_legacy(tensor, &legacy, &error));
#undef REFUSED
    CHECK_PTR(view, NULL);
    CHECK_PTR(managed, NULL);
    CHECK_PTR(legacy, NULL);
    lend_tensor_unref(tensor);
    sample_end(&s);
}

LEND_TEST(compound_in_a_raw_clone) {
    static const volatile uint32_t wiped = 0;
    const volatile uint32_t *word = lend__process_word;
    struct lend_tensor *none = NULL;
    struct lend_tensor_info info = {.size = sizeof info};
    struct lend_compound got = {.size = sizeof got};
    struct sample s;
    sample_make(&s, LEND_LAYOUT_COO, dtype_int64);
    struct lend_tensor *tensor = sample_tensor(&s), *empty = wrap(0, NULL);
    lend__process_word = &wiped;
    CHECK_CODE(lend_tensor_new_compound(&s.compound, &none, NULL), -ECHILD);
    CHECK_CODE(lend_tensor_components(tensor, &got), -ECHILD);
    CHECK_CODE(lend_tensor_info(tensor, &info), -ECHILD);
    CHECK_CODE(lend_tensor_info(empty, &info), -ECHILD);
    CHECK_CODE(lend_tensor_check(tensor, NULL), -ECHILD);
    CHECK_CODE(lend_tensor_check(empty, NULL), -ECHILD);
    lend__process_word = word;
    lend_tensor_unref(empty);
    lend_tensor_unref(tensor);
    sample_end(&s);
}

LEND_TEST(compound_when_memory_is_short) {
    struct sample s;
    sample_make(&s, LEND_LAYOUT_BSR, dtype_int64);
    for (unsigned n = 0;; n++) {
        struct lend_error error;
        struct lend_tensor *tensor = NULL;
        fault_arm(n);
        int r = lend_tensor_new_compound(&s.compound, &tensor, &error);
        if (!fault_disarm()) {
            CHECK_OK(r, &error);
            CHECK_UINT(n, 2); /* the tensor, and what it is made of */
            lend_tensor_unref(tensor);
            break;
        }
        CHECK_INT(r, -ENOMEM);
        CHECK_INT(error.code, -ENOMEM);
        CHECK_PTR(tensor, NULL);
        for (int i = 0; i < 3; i++) CHECK_UINT(s.parts[i]->n_refs, 1);
    }
    sample_end(&s);
}

/* Every layout: the copy says the same and shares no storage. */
LEND_TEST(a_copy_copies_every_component) {
    struct lend_error error = {0};
    for (uint32_t layout = LEND_LAYOUT_COO; layout <= LEND_LAYOUT_QUANTIZED_PER_CHANNEL; layout++) {
        struct sample s;
        sample_make(&s, layout, dtype_int64);
        struct lend_tensor *tensor = sample_tensor(&s), *copy = NULL;
        struct lend_compound was = {.size = sizeof was}, is = {.size = sizeof is};
        CHECK_OK(lend_tensor_copy(tensor, NULL, &copy, &error), &error);
        CHECK(copy != tensor);
        CHECK_OK(lend_tensor_components(tensor, &was), NULL);
        CHECK_OK(lend_tensor_components(copy, &is), NULL);
        CHECK_UINT(is.layout, layout);
        CHECK_UINT(is.n_components, was.n_components);
        CHECK_INT(is.ndim, was.ndim);
        CHECK_MEM(is.shape, was.shape, (size_t)was.ndim * sizeof *was.shape);
        CHECK_INT(is.is_coalesced, was.is_coalesced);
        CHECK_INT(is.dim, was.dim);
        CHECK(is.scale == was.scale && is.zero_point == was.zero_point);
        for (uint32_t i = 0; i < was.n_components; i++) {
            struct lend_tensor_info a = {.size = sizeof a}, b = {.size = sizeof b};
            CHECK_OK(lend_tensor_info(was.components[i], &a), NULL);
            CHECK_OK(lend_tensor_info(is.components[i], &b), NULL);
            CHECK(a.storage_id != b.storage_id);
            CHECK_UINT(b.nbytes, a.nbytes);
            CHECK_MEM(b.data, a.data, a.nbytes);
        }
        CHECK_OK(lend_tensor_check(copy, &error), &error);
        lend_tensor_unref(copy);
        lend_tensor_unref(tensor);
        sample_end(&s);
    }
}
