/* SPDX-License-Identifier: MIT */
/* docs/kinds.md, what no tensor of lend can be: memory of devices without a back end, opaque layouts, things that are no
 * tensors, views that leave their storage. Each is refused where it would come in, with a sentence. */
#include "kind.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static unsigned n_deleted;

static void count_deleted(struct DLManagedTensorVersioned *managed) {
    (void)managed;
    n_deleted++;
}

/* Offers memory of that device; the producer must still own its struct afterwards. */
static void offer(DLDevice device, DLDataType dtype, int64_t n, int code, const char *words) {
    float memory[4] = {0};
    struct lend_tensor *tensor = NULL;
    struct lend_error error = {0};
    struct DLManagedTensorVersioned managed = {
        .version = {LEND_DLPACK_MAJOR, 0},
        .deleter = count_deleted,
        .dl_tensor = {.data = n ? memory : NULL, .device = device, .ndim = 1, .dtype = dtype, .shape = &n},
    };
    n_deleted = 0;
    CHECK_CODE(lend_tensor_from_dlpack(&managed, &tensor, &error), code);
    CHECK_CONTAINS(error.text, words);
    CHECK_INT(error.code, code);
    CHECK_PTR(tensor, NULL);
    CHECK_UINT(n_deleted, 0);
}

static void refuse_pool(int32_t device_type) {
    struct lend_pool_opts opts = {.size = sizeof opts, .device_type = device_type};
    struct lend_pool *pool = NULL;
    struct lend_error error = {0};
    CHECK_CODE(lend_pool_new(&opts, &pool, &error), -ENODEV);
    CHECK_PTR(pool, NULL);
}

LEND_TEST(cuda_tensor) {
    offer((DLDevice){kDLCUDA, 0}, float32, 4, -ENODEV, "there is no back end for device type 2 in this build");
    offer((DLDevice){kDLCUDA, 7}, uint8, 4, -ENODEV, "there is no back end for device type 2 in this build");
    open_with(NULL);
    refuse_pool(kDLCUDA);
    close_all(NULL);
}

LEND_TEST(cuda_tensor_without_elements) {
    offer((DLDevice){kDLCUDA, 0}, float32, 0, -ENODEV, "there is no back end for device type 2 in this build");
}

LEND_TEST(cuda_memory_of_other_allocators) {
    offer((DLDevice){kDLCUDAManaged, 0}, float32, 4, -ENODEV, "there is no back end for device type 13 in this build");
    open_with(NULL);
    refuse_pool(kDLCUDAManaged);
    close_all(NULL);
}

LEND_TEST(other_devices) {
    static const struct {
        DLDeviceType type;
        const char *words;
    } devices[] = {
        {kDLOpenCL, "device type 4 "}, {kDLVulkan, "device type 7 "},  {kDLMetal, "device type 8 "},
        {kDLROCM, "device type 10 "},  {kDLExtDev, "device type 12 "}, {kDLOneAPI, "device type 14 "},
    };
    open_with(NULL);
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        offer((DLDevice){devices[i].type, 0}, float32, 4, -ENODEV, devices[i].words);
        refuse_pool((int32_t)devices[i].type);
    }
    close_all(NULL);
}

/* What a binding can do for it: a copy on the CPU, which is private memory like any other. */
LEND_TEST(device_tensor_copied_to_the_cpu) {
    struct fixture f;
    begin(&f);
    offer((DLDevice){kDLMAIA, 0}, float32, 4, -ENODEV, "there is no back end for device type 17 in this build");
    struct lend_tensor *copy = new_private(1000, 6);
    give(&f, 0, copy, NULL, LEND_COPIED);
    CHECK_INT(actor_int(&f.peer, "filled 0"), 6);
    lend_tensor_unref(copy);
    end(&f);
}

/* An event, a stream or a generator is a pointer of its process: DLPack's opaque handle, which no dtype of lend is. */
LEND_TEST(events_streams_generators) {
    static const DLDataType opaque = {kDLOpaqueHandle, 64, 1};
    CHECK_INT(lend_dtype_is_valid(opaque), 0);
    offer((DLDevice){kDLCPU, 0}, opaque, 2, -EOPNOTSUPP, "is not one that lend carries");
}

LEND_TEST(opaque_layout) {
    int64_t shape[] = {4};
    struct lend_tensor *tensor = NULL;
    struct lend_error error = {0};
    struct fixture f;
    begin(&f);
    struct lend_tensor *part = new_floats(f.pool, 4, 1);
    struct lend_compound compound = {.size = sizeof compound,
                                     .layout = LEND_LAYOUT_OPAQUE,
                                     .n_components = 1,
                                     .components = &part,
                                     .ndim = 1,
                                     .shape = shape,
                                     .dtype = float32};
    CHECK_CODE(lend_tensor_new_compound(&compound, &tensor, &error), -EOPNOTSUPP);
    CHECK_CONTAINS(error.text, "opaque");
    compound.layout = LEND_LAYOUT_OPAQUE + 1;
    CHECK_CODE(lend_tensor_new_compound(&compound, &tensor, &error), -EOPNOTSUPP);
    CHECK_PTR(tensor, NULL);
    lend_tensor_unref(part);
    end(&f);
}

LEND_TEST(view_that_leaves_its_storage) {
    int64_t shape[] = {3, 4}, strides[] = {4, 1};
    struct lend_tensor *view = NULL;
    struct lend_error error = {0};
    struct fixture f;
    begin(&f);
    struct lend_tensor *tensor = new_floats(f.pool, 12, 1);
    CHECK_CODE(lend_tensor_as_strided(tensor, 2, shape, strides, 1, &view, &error), -ERANGE);
    CHECK_CONTAINS(error.text, "storage");
    strides[0] = -4;
    CHECK_CODE(lend_tensor_as_strided(tensor, 2, shape, strides, 0, &view, &error), -ERANGE);
    CHECK_PTR(view, NULL);
    /* A peer that writes such a handle gets no further: hostile handles are test_hostile's. */
    round_trip_and_drop(&f, tensor);
    end(&f);
}

LEND_TEST(resize_of_what_is_shared) {
    struct lend_error error = {0};
    struct fixture f;
    begin(&f);
    struct lend_tensor *tensor = new_floats(f.pool, 12, 1);
    give(&f, 0, tensor, NULL, 0);
    CHECK_CODE(lend_tensor_resize(tensor, 96, &error), -EOPNOTSUPP);
    CHECK_CONTAINS(error.text, "cannot be resized to 96; make a new tensor and copy");
    CHECK_INT(actor_code(&f.peer, "resize 0 96"), -EOPNOTSUPP);
    CHECK_CONTAINS(actor_sentence, "cannot be resized to 96; make a new tensor and copy");
    lend_tensor_unref(tensor);
    end(&f);
}
