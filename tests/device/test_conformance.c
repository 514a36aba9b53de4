/* SPDX-License-Identifier: MIT */
/* One suite for every back end: capabilities and slots agree, and each slot does what device.h says. Where a back end
 * lacks a capability its part is empty; the loop over all of them is in each test, so none can be forgotten. */
#include "base/sys.h"
#include "device/device.h"
#include "test.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FOR_EACH_DEVICE(device)                                                 \
    size_t n_devices_;                                                          \
    const struct lend__device_ops *const *all_ = lend__device_all(&n_devices_); \
    for (size_t i_ = 0; i_ < n_devices_; i_++)                                  \
        for (const struct lend__device_ops *device = all_[i_]; device; device = NULL)

static struct lend__extent extent_make(const struct lend__device_ops *device, uint64_t bytes, bool is_read_only) {
    struct lend_error error;
    struct lend__extent extent = {0};
    const struct lend__allocation_request request = {.bytes = bytes, .is_peers_read_only = is_read_only};
    CHECK_OK(device->allocation_new(&request, &extent, &error), &error);
    return extent;
}

LEND_TEST(capabilities_and_slots_agree) {
    FOR_EACH_DEVICE(device) {
        CHECK(device->name[0]);
        CHECK_PTR(lend__device_get(device->device_type), device);
        CHECK_INT(!!(device->caps & LEND__CAP_ALLOCATE), device->allocation_new != NULL);
        CHECK_INT(!!(device->caps & LEND__CAP_IMPORT), device->allocation_import != NULL);
        CHECK_INT(!!(device->caps & LEND__CAP_ADOPT), device->allocation_adopt != NULL);
        CHECK_INT(!!(device->caps & LEND__CAP_DISCARD), device->allocation_discard != NULL);
        bool can_map = device->allocation_new || device->allocation_import || device->allocation_adopt;
        CHECK_INT(device->allocation_free != NULL, can_map);
        /* These three are properties of an allocation. */
        if (!(device->caps & LEND__CAP_ALLOCATE))
            CHECK(!(device->caps & (LEND__CAP_READ_ONLY | LEND__CAP_HUGE_PAGES | LEND__CAP_NUMA)));
        if (device->thp_bytes) CHECK(device->caps & LEND__CAP_HUGE_PAGES);
    }
    CHECK_PTR(lend__device_get(12345), NULL);
}

LEND_TEST(the_cpu_and_meta_are_always_there) {
    CHECK_STR(lend__device_get(kDLCPU)->name, "cpu");
    CHECK_STR(lend__device_get(LEND__DEVICE_META)->name, "meta");
    CHECK_UINT(lend__device_get(LEND__DEVICE_META)->caps, 0);
}

LEND_TEST(new_memory_is_zero_writable_and_aligned) {
    FOR_EACH_DEVICE(device) {
        if (!(device->caps & LEND__CAP_ALLOCATE)) continue;
        for (uint64_t alignment = 0; alignment <= 2 << 20; alignment = alignment ? 4 * alignment : 64) {
            struct lend_error error;
            struct lend__extent e;
            const struct lend__allocation_request request = {.bytes = 3 * lend__page_bytes(), .alignment = alignment};
            CHECK_OK(device->allocation_new(&request, &e, &error), &error);
            CHECK_UINT(e.bytes, request.bytes);
            CHECK_UINT((uintptr_t)e.base % (alignment ? alignment : lend__page_bytes()), 0);
            CHECK(e.fd >= 0 && e.inode && e.is_writable && !e.is_peers_read_only);
            CHECK_UINT(e.fd_offset, 0);
            for (uint64_t i = 0; i < e.bytes; i++) CHECK_UINT(e.base[i], 0);
            memset(e.base, 1, e.bytes);
            device->allocation_free(&e);
            CHECK_PTR(e.base, NULL);
            CHECK_INT(e.fd, -1);
            device->allocation_free(&e); /* a second time does nothing */
        }
    }
}

LEND_TEST(more_than_there_is_is_refused_with_numbers) {
    FOR_EACH_DEVICE(device) {
        if (!(device->caps & LEND__CAP_ALLOCATE)) continue;
        struct lend_error error = {0};
        struct lend__extent e = {.fd = 77};
        const struct lend__allocation_request request = {.bytes = (uint64_t)1 << 46};
        CHECK_CODE(device->allocation_new(&request, &e, &error), -ENOMEM);
        CHECK_UINT(error.asked, request.bytes);
        CHECK(error.available > 0 && error.available < error.asked);
        CHECK_INT(e.fd, 77);
        CHECK_CODE(device->allocation_new(&request, &e, NULL), -ENOMEM);
    }
}

LEND_TEST(an_import_is_the_same_memory) {
    FOR_EACH_DEVICE(device) {
        if (!(device->caps & LEND__CAP_IMPORT)) continue;
        uint64_t page = lend__page_bytes();
        struct lend_error error;
        struct lend__extent e = extent_make(device, 4 * page, false), peer, reader;
        CHECK_OK(device->allocation_import(dup(e.fd), page, 2 * page, false, &peer, &error), &error);
        CHECK_UINT(peer.inode, e.inode);
        CHECK_UINT(peer.bytes, 2 * page);
        CHECK_UINT(peer.fd_offset, page);
        CHECK(peer.is_writable && peer.base != e.base + page);
        e.base[page + 5] = 7;
        CHECK_UINT(peer.base[5], 7);
        peer.base[6] = 8;
        CHECK_UINT(e.base[page + 6], 8);
        CHECK_OK(device->allocation_import(dup(e.fd), 0, 4 * page, true, &reader, &error), &error);
        CHECK(!reader.is_writable);
        CHECK_UINT(reader.base[page + 6], 8);
        device->allocation_free(&e);
        CHECK_UINT(peer.base[6], 8); /* it outlives its maker */
        device->allocation_free(&peer);
        device->allocation_free(&reader);
    }
}

LEND_TEST(an_import_of_anything_else_is_refused_and_leaves_the_descriptor) {
    FOR_EACH_DEVICE(device) {
        if (!(device->caps & LEND__CAP_IMPORT)) continue;
        uint64_t page = lend__page_bytes();
        struct lend_error error = {0};
        struct lend__extent e = extent_make(device, 4 * page, false), peer = {.fd = 77};
        static const struct {
            int64_t off, pages;
        } wrong[] = {{0, 5}, {1, 4}, {4, 1}, {5, 1}, {0, 0}, {1, -1}, {-1, 2}};
        for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
            uint64_t off = (uint64_t)wrong[i].off * page, bytes = (uint64_t)wrong[i].pages * page;
            CHECK_CODE(device->allocation_import(e.fd, off, bytes, false, &peer, &error), -EBADMSG);
            CHECK_INT(error.code, -EBADMSG);
        }
        CHECK_CODE(device->allocation_import(e.fd, 64, page, false, &peer, NULL), -EBADMSG);
        CHECK_CODE(device->allocation_import(-1, 0, page, false, &peer, &error), -EBADMSG);
        int pipes[2];
        CHECK_INT(pipe(pipes), 0);
        CHECK_CODE(device->allocation_import(pipes[0], 0, page, true, &peer, &error), -EBADMSG);
        close(pipes[0]);
        close(pipes[1]);
        CHECK_INT(peer.fd, 77);
        device->allocation_free(&e);
    }
}

LEND_TEST(read_only_memory_stays_writable_for_its_owner_alone) {
    FOR_EACH_DEVICE(device) {
        if (!(device->caps & LEND__CAP_READ_ONLY)) continue;
        struct lend_error error;
        struct lend__extent e = extent_make(device, lend__page_bytes(), true), peer;
        CHECK(e.is_peers_read_only && e.is_writable);
        e.base[0] = 9;
        CHECK_CODE(device->allocation_import(e.fd, 0, e.bytes, false, &peer, &error), -EACCES);
        CHECK_CONTAINS(error.text, "reading");
        CHECK_OK(device->allocation_import(dup(e.fd), 0, e.bytes, true, &peer, &error), &error);
        CHECK(peer.is_peers_read_only);
        CHECK_UINT(peer.base[0], 9);
        device->allocation_free(&peer);
        if (device->allocation_discard) CHECK_CODE(device->allocation_discard(&e), -EPERM);
        device->allocation_free(&e);
    }
}

LEND_TEST(discarded_pages_are_gone_for_peers_too) {
    FOR_EACH_DEVICE(device) {
        if (!(device->caps & LEND__CAP_DISCARD)) continue;
        struct lend_error error;
        struct lend__extent e = extent_make(device, 2 * lend__page_bytes(), false), peer;
        CHECK_OK(device->allocation_import(dup(e.fd), 0, e.bytes, false, &peer, &error), &error);
        struct stat st;
        peer.base[0] = 9;
        CHECK_INT(fstat(e.fd, &st), 0);
        CHECK_UINT((uint64_t)st.st_blocks * 512, e.bytes);
        CHECK_CODE(device->allocation_discard(&e), 0);
        CHECK_INT(fstat(e.fd, &st), 0);
        CHECK_UINT(st.st_blocks, 0);
        CHECK_UINT((uint64_t)st.st_size, e.bytes);
        CHECK_UINT(peer.base[0], 0);
        device->allocation_free(&e);
        device->allocation_free(&peer);
    }
}
