/* SPDX-License-Identifier: MIT */
/* The array of back ends. It is constant and needs no lock; order has no meaning. */
#include "device/device.h"

#include "device/cpu/cpu.h"
#include "device/meta/meta.h"

static const struct lend__device_ops *const devices[] = {
    &lend__cpu_ops,
    &lend__meta_ops,
};

#define N_DEVICES (sizeof devices / sizeof devices[0])

const struct lend__device_ops *lend__device_get(int32_t device_type) {
    for (size_t i = 0; i < N_DEVICES; i++)
        if ((int32_t)devices[i]->device_type == device_type) return devices[i];
    return NULL;
}

const struct lend__device_ops *const *lend__device_all(size_t *ret_n) {
    *ret_n = N_DEVICES;
    return devices;
}
