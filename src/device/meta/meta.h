/* SPDX-License-Identifier: MIT */
/* The back end of tensors that have a shape and no memory. */
#ifndef LEND_DEVICE_META_META_H_
#define LEND_DEVICE_META_META_H_

#include "device/device.h"

extern const struct lend__device_ops lend__meta_ops;

#endif
