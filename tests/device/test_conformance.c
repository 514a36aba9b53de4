/* SPDX-License-Identifier: MIT */
/* One suite for every back end: capabilities and slots agree, and each slot does what device.h says. Where a back end
 * lacks a capability its part is empty; the loop over all of them is in each test, so none can be forgotten. */
#include "base/sys.h"
#include "device/device.h"
#include "file.h"
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <lend/tensor.h>
#include <stdio.h>
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
        CHECK_INT(!!(device->caps & LEND__CAP_FILE), device->file_adopt != NULL);
        CHECK_INT(!!(device->caps & LEND__CAP_FILE), device->file_import != NULL);
        bool can_map =
            device->allocation_new || device->allocation_import || device->allocation_adopt || device->file_adopt;
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
    CHECK_STR(lend__device_get(LEND_DEVICE_META)->name, "meta");
    CHECK_UINT(lend__device_get(LEND_DEVICE_META)->caps, 0);
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

/* --- files ------------------------------------------------------------------------------------------------------- */

static void check_file(const struct lend__device_ops *device, struct lend__extent *e, int writer) {
    struct stat st;
    CHECK_INT(fstat(writer, &st), 0);
    CHECK_UINT(e->inode, st.st_ino);
    CHECK_UINT(e->bytes, 5);
    CHECK_UINT(e->fd_offset, 0);
    CHECK(e->is_file && e->is_peers_read_only && !e->is_writable);
    CHECK_MEM(e->base, "hello", 5);
    CHECK_INT(mprotect(e->base, 5, PROT_READ | PROT_WRITE) ? errno : 0, EACCES);
    CHECK_INT(pwrite(writer, "j", 1, 0), 1);
    CHECK_UINT(*(volatile uint8_t *)e->base, 'j');
    CHECK_INT(pwrite(writer, "h", 1, 0), 1);
    CHECK_CODE(lend__extent_file_check(e, 0, 5, "test", NULL), 0);
    if (device->allocation_discard) CHECK_CODE(device->allocation_discard(e), -EPERM);
    CHECK_MEM(e->base, "hello", 5);
}

LEND_TEST(a_file_is_mapped_where_it_lies_and_for_reading) {
    FOR_EACH_DEVICE(device) {
        if (!(device->caps & LEND__CAP_FILE)) continue;
        struct lend_error error = {0};
        struct lend__extent own = {0}, peer = {0};
        int fd = test_file_make("hello world", 11), sent;
        CHECK_OK(device->file_adopt(fd, 0, 5, &own, &error), &error);
        CHECK(own.fd != fd);
        CHECK_INT(fcntl(own.fd, F_GETFL) & O_ACCMODE, O_RDONLY);
        check_file(device, &own, fd);
        sent = dup(own.fd);
        CHECK_OK(device->file_import(sent, 0, 5, &peer, &error), &error);
        CHECK_INT(peer.fd, sent);
        check_file(device, &peer, fd);
        /* Cut: an error for who asks, at the byte. */
        CHECK_INT(ftruncate(fd, 4), 0);
        CHECK_CODE(lend__extent_file_check(&peer, 0, 4, "test", &error), 0);
        CHECK_CODE(lend__extent_file_check(&peer, 0, 5, "test", &error), -ESTALE);
        CHECK_CONTAINS(error.text, "cut to 4 bytes");
        CHECK_CODE(lend__extent_file_check(&peer, UINT64_MAX, 2, "test", &error), -ESTALE);
        device->allocation_free(&own);
        device->allocation_free(&peer);
        close(fd);
    }
}

/* Memory cannot be cut, so nobody is asked about it. */
LEND_TEST(other_memory_always_reaches_far_enough) {
    FOR_EACH_DEVICE(device) {
        if (!(device->caps & LEND__CAP_ALLOCATE)) continue;
        struct lend__extent e = extent_make(device, lend__page_bytes(), false);
        CHECK(!e.is_file);
        CHECK_CODE(lend__extent_file_check(&e, 0, UINT64_MAX, "test", NULL), 0);
        device->allocation_free(&e);
    }
}

LEND_TEST(what_is_no_file_or_a_shorter_one_is_refused) {
    FOR_EACH_DEVICE(device) {
        if (!(device->caps & LEND__CAP_FILE)) continue;
        struct lend_error error = {0};
        struct lend__extent e = {.fd = 77};
        uint64_t page = lend__page_bytes();
        int fd = test_file_make("hello world", 11), pipes[2];
        CHECK_INT(pipe2(pipes, O_CLOEXEC), 0);
        const int others[] = {-1, pipes[0], open("/tmp", O_RDONLY | O_CLOEXEC),
                              open("/dev/zero", O_RDONLY | O_CLOEXEC)};
        for (unsigned i = 0; i < sizeof others / sizeof others[0]; i++) {
            CHECK_CODE(device->file_adopt(others[i], 0, 5, &e, &error), -EINVAL);
            CHECK_INT(error.code, -EINVAL);
            CHECK_CODE(device->file_import(others[i], 0, 5, &e, &error), -EBADMSG);
            CHECK_INT(error.code, -EBADMSG);
        }
        CHECK_CODE(device->file_adopt(fd, 0, 12, &e, &error), -EINVAL);
        CHECK_CODE(device->file_import(fd, 0, 12, &e, &error), -ESTALE);
        CHECK_CONTAINS(error.text, "cut to 11 bytes");
        CHECK_CODE(device->file_import(fd, page, 1, &e, &error), -ESTALE);
        CHECK_CODE(device->file_import(fd, -page, 2 * page, &e, &error), -ESTALE);
        CHECK_CODE(device->file_import(fd, 1, 5, &e, &error), -EBADMSG);
        CHECK_CODE(device->file_import(fd, 0, 0, &e, &error), -EBADMSG);
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        int write_only = open(path, O_WRONLY | O_CLOEXEC);
        CHECK_CODE(device->file_import(write_only, 0, 5, &e, &error), -EBADMSG);
        CHECK_CONTAINS(error.text, "not open for reading");
        /* Neither does a file pass where sealed memory is expected. */
        CHECK_CODE(device->allocation_import(fd, 0, 11, true, &e, &error), -EBADMSG);
        CHECK_INT(e.fd, 77);
        close(write_only);
        for (unsigned i = 1; i < sizeof others / sizeof others[0]; i++) close(others[i]);
        close(pipes[1]);
        close(fd);
    }
}
