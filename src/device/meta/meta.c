/* SPDX-License-Identifier: MIT */
/* meta: shape without storage. There is nothing to allocate, to map or to give back, so no slot is filled and no
 * capability is set. The back end exists so that a meta tensor has a device like every other. */
#include "device/meta/meta.h"

const struct lend__device_ops lend__meta_ops = {
    .name = "meta",
    .device_type = LEND__DEVICE_META,
    .caps = 0,
};
