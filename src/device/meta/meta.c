/* SPDX-License-Identifier: MIT */
/* meta: shape without storage. There is nothing to allocate, to map or to give back, so no slot is filled and no
 * capability is set. The back end exists so that a meta tensor has a device like every other. */
#include "device/meta/meta.h"

#include <lend/tensor.h>

const struct lend__device_ops lend__meta_ops = {
    .name = "meta",
    .device_type = (DLDeviceType)LEND_DEVICE_META,
    .caps = 0,
};
