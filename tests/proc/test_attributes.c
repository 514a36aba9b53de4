/* SPDX-License-Identifier: MIT */
/* docs/kinds.md, attributes: what a tensor carries besides its elements arrives exactly; what cannot cross is refused,
 * or told. */
#include "kind.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { TAG = 0x746f7263 };
enum { NON_LEAF = LEND_ATTR_REQUIRES_GRAD | LEND_ATTR_NON_LEAF };

static const struct lend_reduce_opts move = {.size = sizeof move, .mode = LEND_MODE_MOVE};
static const struct lend_reduce_opts snapshot = {.size = sizeof snapshot, .mode = LEND_MODE_SNAPSHOT};

/* lend_tensor_with_attrs says no, with these words. */
static void expect_no_mark(struct lend_tensor *tensor, uint32_t flags, const char *words) {
    struct lend_tensor_attrs attrs = {.size = sizeof attrs, .flags = flags};
    struct lend_tensor *with = NULL;
    struct lend_error error = {0};
    CHECK_CODE(lend_tensor_with_attrs(tensor, &attrs, &with, &error), -EINVAL);
    CHECK_PTR(with, NULL);
    CHECK_CONTAINS(error.text, words);
}

/* Does the actor's tensor 0 carry exactly these marks? */
static void expect_marks(struct fixture *f, uint32_t flags) {
    char part[32];
    snprintf(part, sizeof part, " attrs %x ", flags);
    CHECK_CONTAINS(actor_ok(&f->peer, "describe 0"), part);
}

/* A tensor with these marks goes there and back, and has them on both sides. */
static void expect_carried(struct fixture *f, struct lend_tensor *tensor, uint32_t flags) {
    CHECK_UINT(info_of(tensor).attrs, flags);
    round_trip(f, tensor);
    give(f, 0, tensor, NULL, 0);
    expect_marks(f, flags);
    actor_ok(&f->peer, "drop 0");
    lend_tensor_unref(tensor);
}

LEND_TEST(leaf_that_requires_grad) {
    int64_t n = 4;
    struct fixture f;
    begin(&f);
    struct lend_tensor *weight = marked(new_floats(f.pool, 5, 1), LEND_ATTR_REQUIRES_GRAD);
    struct lend_tensor *integers = make(f.pool, int64, 1, &n), *gradient = new_floats(f.pool, 5, -3);
    expect_carried(&f, lend_tensor_ref(weight), LEND_ATTR_REQUIRES_GRAD);
    expect_carried(&f, marked(make(f.pool, complex64, 1, &n), LEND_ATTR_REQUIRES_GRAD), LEND_ATTR_REQUIRES_GRAD);
    /* Its gradient is a tensor of its own; a group keeps the two together. */
    struct lend_group *group = new_group();
    add_and_drop(group, "weight", weight);
    add_and_drop(group, "weight.grad", gradient);
    give_group(&f, group, NULL, 0);
    lend_group_unref(group);
    expect_no_mark(integers, LEND_ATTR_REQUIRES_GRAD, "needs a float or complex dtype");
    lend_tensor_unref(integers);
    end(&f);
}

/* In every mode, of a subclass, of a compound, in a group. A leaf's component is none of lend's business. */
LEND_TEST(non_leaf_that_requires_grad) {
    static const char words[] = "autograd does not cross a process boundary";
    struct fixture f;
    begin(&f);
    struct lend_tensor *plain = new_floats(f.pool, 5, 1), *tensor = marked(lend_tensor_ref(plain), NON_LEAF);
    expect_refused(tensor, NULL, -EOPNOTSUPP, words);
    expect_refused(tensor, NULL, -EOPNOTSUPP, "detach");
    expect_refused(tensor, &move, -EOPNOTSUPP, words);
    expect_refused(tensor, &snapshot, -EOPNOTSUPP, words);
    CHECK(lend_tensor_data(tensor) != NULL);
    struct lend_group *group = new_group();
    add(group, "first", plain);
    add_and_drop(group, "hidden.state", tensor);
    struct books before = books_now();
    expect_group_refused(group, NULL, -EOPNOTSUPP, "hidden.state", words);
    expect_books(before);
    lend_group_unref(group);
    tensor = tagged(lend_tensor_ref(plain), NON_LEAF, TAG, "Subclass");
    expect_refused(tensor, NULL, -EOPNOTSUPP, words);
    lend_tensor_unref(tensor);
    tensor = marked(new_of(f.pool, LEND_LAYOUT_CSR), NON_LEAF);
    expect_refused(tensor, NULL, -EOPNOTSUPP, words);
    lend_tensor_unref(tensor);
    expect_no_mark(plain, LEND_ATTR_NON_LEAF, "REQUIRES_GRAD");
    /* The way out. */
    expect_carried(&f, plain, 0);
    end(&f);
}

LEND_TEST(hooks) {
    struct fixture f;
    begin(&f);
    struct lend_tensor *plain = new_floats(f.pool, 5, 1);
    struct lend_tensor *first = marked(lend_tensor_ref(plain), LEND_ATTR_REQUIRES_GRAD | LEND_ATTR_HOOKS);
    struct lend_tensor *second = marked(lend_tensor_ref(plain), LEND_ATTR_HOOKS);
    struct lend_tensor *told = marked(lend_tensor_ref(plain), LEND_ATTR_HOOKS | LEND_ATTR_HOOKS_MARKED);
    give(&f, 0, first, NULL, 0);
    CHECK_UINT(f.n_warnings, 1);
    CHECK_CONTAINS(f.warning, "hooks");
    CHECK_CONTAINS(f.warning, "stay behind");
    expect_marks(&f, LEND_ATTR_REQUIRES_GRAD);
    /* Once a tensor, however often it is sent. */
    give(&f, 0, first, NULL, 0);
    struct lend_group *group = new_group();
    add(group, "first", first);
    handle_drop(reduce_group(group, NULL, 0));
    CHECK_UINT(f.n_warnings, 1);
    add(group, "second", second);
    add(group, "told", told);
    handle_drop(reduce_group(group, NULL, 0));
    CHECK_UINT(f.n_warnings, 2);
    give(&f, 0, told, NULL, 0);
    expect_marks(&f, 0);
    CHECK_UINT(f.n_warnings, 2);
    lend_group_unref(group);
    lend_tensor_unref(told);
    lend_tensor_unref(second);
    lend_tensor_unref(first);
    lend_tensor_unref(plain);
    end(&f);
}

/* Bytes of a binding: any, NULs among them, as many as the limit says, on any layout. */
LEND_TEST(python_attributes) {
    uint8_t bytes[LEND_USER_BYTES_MAX + 1];
    struct lend_tensor_attrs attrs = {.size = sizeof attrs, .user_tag = TAG, .user = bytes}, got = {.size = sizeof got};
    struct lend_tensor *tensor = NULL, *again = NULL;
    struct lend_error error = {0};
    struct fixture f;
    char text[LEND_HANDLE_TEXT_MAX];
    begin(&f);
    struct lend_tensor *plain = new_floats(f.pool, 5, 1);
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)(i * 7);
    for (attrs.user_bytes = 1; attrs.user_bytes <= LEND_USER_BYTES_MAX; attrs.user_bytes += 73) {
        CHECK_OK(lend_tensor_with_attrs(plain, &attrs, &tensor, &error), &error);
        round_trip(&f, tensor);
        give(&f, 0, tensor, NULL, 0);
        snprintf(text, sizeof text, "%s", actor_ok(&f.peer, "reduce 0"));
        CHECK_OK(rebuild_text(text, NULL, &again, &error), &error);
        CHECK_OK(lend_tensor_attrs(again, &got), NULL);
        CHECK_UINT(got.user_tag, TAG);
        CHECK_UINT(got.user_bytes, attrs.user_bytes);
        CHECK_MEM(got.user, bytes, attrs.user_bytes);
        lend_tensor_unref(again);
        lend_tensor_unref(tensor);
    }
    attrs.user_bytes = LEND_USER_BYTES_MAX;
    struct lend_tensor *sparse = new_of(f.pool, LEND_LAYOUT_BSC);
    CHECK_OK(lend_tensor_with_attrs(sparse, &attrs, &tensor, &error), &error);
    round_trip_and_drop(&f, tensor);
    attrs.user_bytes++;
    CHECK_CODE(lend_tensor_with_attrs(plain, &attrs, &tensor, &error), -EINVAL);
    CHECK_CONTAINS(error.text, "LEND_USER_BYTES_MAX");
    lend_tensor_unref(sparse);
    lend_tensor_unref(plain);
    end(&f);
}

LEND_TEST(parameter) {
    int64_t n = 4;
    struct fixture f;
    begin(&f);
    enum { TRAINED = LEND_ATTR_PARAMETER | LEND_ATTR_REQUIRES_GRAD };
    expect_carried(&f, marked(new_floats(f.pool, 5, 1), TRAINED), TRAINED);
    expect_carried(&f, marked(new_floats(f.pool, 5, 1), LEND_ATTR_PARAMETER), LEND_ATTR_PARAMETER);
    expect_carried(&f, marked(make(f.pool, int64, 1, &n), LEND_ATTR_PARAMETER), LEND_ATTR_PARAMETER);
    /* Two of one storage, as tied weights are, are still tied. */
    struct lend_tensor *plain = new_floats(f.pool, 5, 1), *tied = marked(lend_tensor_ref(plain), TRAINED);
    give(&f, 0, plain, NULL, 0);
    give(&f, 1, tied, NULL, 0);
    CHECK_INT(actor_int(&f.peer, "same 0 1"), 1);
    expect_no_mark(plain, LEND_ATTR_PARAMETER | LEND_ATTR_BUFFER, "BUFFER");
    lend_tensor_unref(plain);
    lend_tensor_unref(tied);
    end(&f);
}

/* The subclass is named by the binding's bytes, and a leaf stays one. */
LEND_TEST(parameter_of_a_subclass) {
    struct fixture f;
    begin(&f);
    enum { TRAINED = LEND_ATTR_PARAMETER | LEND_ATTR_REQUIRES_GRAD };
    expect_carried(&f, tagged(new_floats(f.pool, 5, 1), TRAINED, TAG, "my.module.Weight"), TRAINED);
    end(&f);
}

LEND_TEST(plain_subclass) {
    struct fixture f;
    begin(&f);
    struct lend_tensor *tensor = tagged(new_floats(f.pool, 5, 1), 0, TAG, "my.module.Image\n{'dpi': 300}");
    give(&f, 0, tensor, NULL, 0);
    expect_equal(&f.peer, 0, tensor);
    /* A view is another tensor, and has no attributes of its own yet. */
    actor_ok(&f.peer, "slice 1 0 1 3");
    CHECK_CONTAINS(actor_ok(&f.peer, "describe 1"), " user 0,0,00000000");
    CHECK_INT(actor_int(&f.peer, "same 0 1"), 1);
    expect_carried(&f, tensor, 0);
    end(&f);
}

LEND_TEST(uninitialized_parameter) {
    struct fixture f;
    begin(&f);
    struct lend_tensor *tensor = marked(new_floats(f.pool, 0, 1), LEND_ATTR_PARAMETER | LEND_ATTR_UNINITIALIZED);
    expect_refused(tensor, NULL, -EOPNOTSUPP, "it has neither shape nor memory");
    expect_refused(tensor, &snapshot, -EOPNOTSUPP, "it has neither shape nor memory");
    lend_tensor_unref(tensor);
    end(&f);
}

LEND_TEST(buffer) {
    struct fixture f;
    begin(&f);
    expect_carried(&f, marked(new_floats(f.pool, 5, 1), LEND_ATTR_BUFFER), LEND_ATTR_BUFFER);
    /* Persistent or not is the binding's to say. */
    expect_carried(&f, tagged(new_floats(f.pool, 5, 1), LEND_ATTR_BUFFER, TAG, "persistent=0"), LEND_ATTR_BUFFER);
    end(&f);
}

LEND_TEST(inference_tensor) {
    struct fixture f;
    begin(&f);
    expect_carried(&f, marked(new_floats(f.pool, 5, 1), LEND_ATTR_INFERENCE), LEND_ATTR_INFERENCE);
    end(&f);
}

LEND_TEST(named_dimensions) {
    struct fixture f;
    begin(&f);
    struct lend_tensor *tensor = marked(new_floats(f.pool, 5, 1), LEND_ATTR_NAMED);
    expect_refused(tensor, NULL, -EOPNOTSUPP, "drop the names");
    expect_carried(&f, marked(tensor, 0), 0);
    end(&f);
}

/* The memory says 1+2i, 3-4i; the values are 1-2i, 3+4i. */
LEND_TEST(conjugate) {
    static const float memory[] = {1, 2, 3, -4}, values[] = {1, -2, 3, 4};
    int64_t n = 2;
    struct lend_tensor *copy = NULL, *view = NULL;
    struct lend_error error = {0};
    struct fixture f;
    begin(&f);
    struct lend_tensor *plain = make(f.pool, complex64, 1, &n);
    memcpy(lend_tensor_data(plain), memory, sizeof memory);
    struct lend_tensor *tensor = marked(lend_tensor_ref(plain), LEND_ATTR_CONJ);
    give(&f, 0, tensor, NULL, 0);
    give(&f, 1, plain, NULL, 0);
    CHECK_INT(actor_int(&f.peer, "same 0 1"), 1);
    expect_marks(&f, LEND_ATTR_CONJ);
    CHECK_STR(actor_ok(&f.peer, "float 0 1"), "2"); /* as it lies there: nothing was copied */
    actor_ok(&f.peer, "resolve 2 0");
    for (int i = 0; i < 4; i++) CHECK_INT(actor_int(&f.peer, "float 2 %d", i), (int)values[i]);
    CHECK_CONTAINS(actor_ok(&f.peer, "describe 2"), " attrs 0 ");
    actor_ok(&f.peer, "resolve 2 1"); /* nothing to do: the tensor itself */
    CHECK_INT(actor_int(&f.peer, "same 2 1"), 1);
    CHECK_OK(lend_tensor_copy(tensor, NULL, &copy, &error), &error);
    CHECK_MEM(lend_tensor_data(copy), values, sizeof values);
    lend_tensor_unref(copy);
    /* A view keeps it, here and there. */
    CHECK_OK(lend_tensor_slice(tensor, 0, 1, 2, 1, &view, &error), &error);
    expect_carried(&f, view, LEND_ATTR_CONJ);
    give(&f, 0, tensor, NULL, 0);
    actor_ok(&f.peer, "slice 0 0 1 2");
    expect_marks(&f, LEND_ATTR_CONJ);
    actor_ok(&f.peer, "resolve 2 0");
    CHECK_STR(actor_ok(&f.peer, "float 2 1"), "4");
    expect_carried(&f, tensor, LEND_ATTR_CONJ);
    struct lend_tensor *reals = new_floats(f.pool, 2, 1);
    expect_no_mark(reals, LEND_ATTR_CONJ, "needs a complex dtype");
    lend_tensor_unref(reals);
    lend_tensor_unref(plain);
    end(&f);
}

/* The imaginary part of a conjugate: every second float, negated. */
LEND_TEST(negative) {
    static const DLDataType boolean = {kDLBool, 8, 1};
    static const float values[] = {-2, -4, -6};
    int64_t n = 3;
    struct lend_tensor *imaginary = NULL, *copy = NULL;
    struct lend_error error = {0};
    struct fixture f;
    begin(&f);
    struct lend_tensor *plain = new_floats(f.pool, 6, 1);
    CHECK_OK(lend_tensor_slice(plain, 0, 1, 6, 2, &imaginary, &error), &error);
    struct lend_tensor *tensor = marked(imaginary, LEND_ATTR_NEG);
    give(&f, 0, tensor, NULL, 0);
    expect_marks(&f, LEND_ATTR_NEG);
    CHECK_STR(actor_ok(&f.peer, "float 0 0"), "2");
    actor_ok(&f.peer, "resolve 2 0");
    for (int i = 0; i < 3; i++) CHECK_INT(actor_int(&f.peer, "float 2 %d", i), (int)values[i]);
    CHECK_OK(lend_tensor_copy(tensor, NULL, &copy, &error), &error);
    CHECK_MEM(lend_tensor_data(copy), values, sizeof values);
    lend_tensor_unref(copy);
    expect_carried(&f, tensor, LEND_ATTR_NEG);
    struct lend_tensor *both = marked(make(f.pool, complex64, 1, &n), LEND_ATTR_CONJ | LEND_ATTR_NEG);
    expect_carried(&f, both, LEND_ATTR_CONJ | LEND_ATTR_NEG);
    struct lend_tensor *truths = make(f.pool, boolean, 1, &n);
    expect_no_mark(truths, LEND_ATTR_NEG, "needs a dtype with negatives");
    lend_tensor_unref(truths);
    lend_tensor_unref(plain);
    end(&f);
}

LEND_TEST(zero_tensor) {
    struct lend_reduce_opts give_memory = {.size = sizeof give_memory, .flags = LEND_REDUCE_MATERIALIZE};
    struct lend_reduce_opts no_copy = {.size = sizeof no_copy, .flags = LEND_REDUCE_MATERIALIZE | LEND_REDUCE_NO_COPY};
    int64_t shape[] = {30, 40};
    struct lend_tensor *tensor = NULL;
    struct lend_error error = {0};
    struct fixture f;
    begin(&f);
    CHECK_OK(lend_tensor_new_zero(float32, 2, shape, &tensor, &error), &error);
    CHECK_INT(info_of(tensor).is_zero, 1);
    CHECK_PTR(info_of(tensor).data, NULL);
    expect_refused(tensor, NULL, -EOPNOTSUPP, "LEND_REDUCE_MATERIALIZE");
    expect_refused(tensor, &move, -EOPNOTSUPP, "LEND_REDUCE_MATERIALIZE");
    give(&f, 0, tensor, &no_copy, LEND_COPIED); /* there is nothing to copy from, and memory was asked for */
    CHECK_INT(actor_int(&f.peer, "filled 0"), 0);
    give(&f, 0, tensor, &give_memory, LEND_COPIED);
    CHECK_CONTAINS(actor_ok(&f.peer, "describe 0"), "dtype 2.32.1 device 1.0 shape,30,40 strides,40,1 ");
    CHECK_INT(actor_int(&f.peer, "filled 0"), 0);
    CHECK_CONTAINS(actor_ok(&f.peer, "info 0"), "read_only 0 ");
    CHECK_INT(info_of(tensor).is_zero, 1);
    /* Or its owner gives it memory first. */
    struct lend_tensor *copy = NULL, *resolved = NULL;
    CHECK_OK(lend_tensor_copy(tensor, f.pool, &copy, &error), &error);
    round_trip_and_drop(&f, copy);
    CHECK_OK(lend_tensor_resolve(tensor, f.pool, &resolved, &error), &error);
    CHECK(is_filled(resolved, 0));
    round_trip_and_drop(&f, resolved);
    lend_tensor_unref(tensor);
    end(&f);
}
