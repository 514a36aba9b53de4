/* SPDX-License-Identifier: MIT */
/* Pools that map a file: what they give out, what they refuse, what they cost, and how they end. */
#include "fault.h"
#include "file_pools.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

/* The descriptor that peers would get. */
static int fd_of(struct lend_pool *pool) {
    const struct lend__extent *extent = NULL;
    CHECK_CODE(lend__pool_file(pool, &extent, "test", NULL), 0);
    return extent->fd;
}

LEND_TEST(tensors_lie_where_the_file_has_them) {
    uint64_t page = lend__page_bytes(), bytes = 3 * page + 101;
    int fd = test_file_patterned(bytes);
    struct stat st;
    CHECK_INT(fstat(fd, &st), 0);
    struct lend_pool *pool = pool_make(file_opts(fd, page, bytes - page));
    /* Any byte may be the first, and the file's last one can be reached. */
    struct lend_tensor *first = tensor_at(pool, 0, 5), *odd = tensor_at(pool, 77, (int64_t)page);
    struct lend_tensor *last = tensor_at(pool, bytes - page - 1, 1), *matrix = NULL;
    CHECK_CODE(lend_tensor_new_at(pool, 13, float32, 2, (int64_t[]){3, 4}, &matrix, NULL), 0);
    const uint8_t *data = lend_tensor_data(odd);
    for (uint64_t i = 0; i < page; i++) CHECK_UINT(data[i], test_file_byte(page + 77 + i));
    CHECK_UINT(*(uint8_t *)lend_tensor_data(first), test_file_byte(page));
    CHECK_UINT(*(uint8_t *)lend_tensor_data(last), test_file_byte(bytes - 1));
    struct lend_tensor_info info = info_of(matrix);
    CHECK_INT(info.ndim, 2);
    CHECK_INT(info.shape[1], 4);
    CHECK_INT(info.strides[0], 4);
    CHECK_UINT(info.nbytes, 48);
    CHECK_UINT(info.storage_bytes, 48);
    CHECK_UINT(info.allocation_offset, 13);
    CHECK_UINT(info.allocation_bytes, bytes - page);
    CHECK_UINT(info.allocation_inode, st.st_ino);
    CHECK(info.is_read_only && info.is_file && info.is_contiguous);
    CHECK(!info.is_shared && !info.is_imported && !info.is_private);
    CHECK_PTR(info.data, (const uint8_t *)lend_tensor_data(first) + 13);
    pool_check(pool);
    lend_tensor_unref(first);
    lend_tensor_unref(odd);
    lend_tensor_unref(last);
    lend_tensor_unref(matrix);
    lend_pool_unref(pool);
    close(fd);
}

LEND_TEST(packed_elements_begin_at_any_byte) {
    int fd = test_file_patterned(100);
    struct lend_error error = {0};
    struct lend_pool *pool = pool_make(file_opts(fd, 0, 100));
    struct lend_tensor *tensor = NULL;
    int64_t n = 7;
    CHECK_OK(lend_tensor_new_at(pool, 3, (DLDataType){LEND_FLOAT4_E2M1FN, 4, 1}, 1, &n, &tensor, &error), &error);
    struct lend_tensor_info info = info_of(tensor);
    CHECK_UINT(info.storage_bytes, 4); /* 28 bits */
    CHECK_UINT(*(uint8_t *)info.data, 21);
    lend_tensor_unref(tensor);
    lend_pool_unref(pool);
    close(fd);
}

LEND_TEST(one_range_is_one_storage_while_it_lives) {
    int fd = test_file_patterned(1000);
    struct lend_pool *pool = pool_make(file_opts(fd, 0, 1000));
    struct lend_tensor *a = tensor_at(pool, 10, 40), *b = NULL;
    struct lend_tensor *shifted = tensor_at(pool, 11, 40), *shorter = tensor_at(pool, 10, 39);
    /* The range counts, not dtype or shape. */
    CHECK_CODE(lend_tensor_new_at(pool, 10, float32, 2, (int64_t[]){5, 2}, &b, NULL), 0);
    CHECK_UINT(info_of(b).storage_id, info_of(a).storage_id);
    CHECK(info_of(shifted).storage_id != info_of(a).storage_id);
    CHECK(info_of(shorter).storage_id != info_of(a).storage_id);
    CHECK_PTR(info_of(shorter).data, info_of(a).data);
    CHECK_UINT(stats_of(pool).n_blocks, 3);
    lend_tensor_unref(a);
    CHECK_UINT(stats_of(pool).n_blocks, 3);
    lend_tensor_unref(b);
    CHECK_UINT(stats_of(pool).n_blocks, 2);
    a = tensor_at(pool, 10, 40);
    CHECK_UINT(*(uint8_t *)lend_tensor_data(a), 70);
    pool_check(pool);
    lend_tensor_unref(a);
    lend_tensor_unref(shifted);
    lend_tensor_unref(shorter);
    lend_pool_unref(pool);
    close(fd);
}

LEND_TEST(tensors_without_elements_need_no_block) {
    int fd = test_file_patterned(100);
    struct lend_pool *pool = pool_make(file_opts(fd, 0, 100));
    struct lend_tensor *tensor = tensor_at(pool, 100, 0), *beyond = NULL;
    int64_t none = 0;
    CHECK_INT(info_of(tensor).numel, 0);
    CHECK(info_of(tensor).is_read_only);
    CHECK_UINT(stats_of(pool).n_blocks, 0);
    CHECK_CODE(lend_tensor_new_at(pool, 101, uint8, 1, &none, &beyond, NULL), -ERANGE);
    lend_tensor_unref(tensor);
    lend_pool_unref(pool);
    close(fd);
}

static void expect_no_pool(struct lend_pool_opts opts, const char *why) {
    struct lend_error error = {0};
    struct lend_pool *pool = NULL;
    lend__memory_hooks.require_context = NULL;
    CHECK_CODE(lend_pool_new(&opts, &pool, &error), -EINVAL);
    CHECK_CONTAINS(error.text, why);
    CHECK_PTR(pool, NULL);
}

LEND_TEST(files_and_options_that_are_refused) {
    int fd = test_file_patterned(10000), ends[2];
    struct lend_pool_opts opts = file_opts(fd, 0, 10000);
    expect_no_pool(file_opts(fd, 0, 0), "adopt_bytes");
    expect_no_pool(file_opts(fd, 0, 10001), "10000 bytes");
    expect_no_pool(file_opts(fd, 1, 9999), "page size");
    expect_no_pool(file_opts(fd, 1 << 20, 1), "10000 bytes");
    expect_no_pool(file_opts(fd, -(uint64_t)lend__page_bytes(), 8192), "10000 bytes");
    expect_no_pool(file_opts(-1, 0, 100), "adopt_fd");
    opts.flags |= LEND_POOL_PRETOUCH;
    expect_no_pool(opts, "no other flags");
    opts = file_opts(fd, 0, 10000);
    opts.alignment = 64;
    expect_no_pool(opts, "alignment");
    opts = file_opts(fd, 0, 10000);
    opts.budget_bytes = 1;
    expect_no_pool(opts, "budget");
    CHECK_INT(pipe2(ends, O_CLOEXEC), 0);
    expect_no_pool(file_opts(ends[0], 0, 100), "not a regular file");
    close(ends[0]);
    close(ends[1]);
    int other = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    expect_no_pool(file_opts(other, 0, 100), "not a regular file");
    close(other);
    other = open("/dev/zero", O_RDWR | O_CLOEXEC);
    expect_no_pool(file_opts(other, 0, 100), "not a regular file");
    close(other);
    close(fd);
}

LEND_TEST(only_tensors_at_a_place_come_from_a_file) {
    int fd = test_file_patterned(1000);
    struct lend_error error = {0};
    struct lend_pool *pool = pool_make(file_opts(fd, 0, 1000)), *plain = pool_make(POOL_OPTS(.alignment = 64));
    struct lend_tensor *tensor = NULL, *source = tensor_at(pool, 0, 100);
    int64_t n = 10, sizes[2] = {INT64_MAX, 3};
    CHECK_CODE(lend_tensor_new(pool, uint8, 1, &n, &tensor, &error), -EOPNOTSUPP);
    CHECK_CONTAINS(error.text, "lend_tensor_new_at");
    CHECK_CODE(lend_tensor_copy(source, pool, &tensor, &error), -EOPNOTSUPP);
    CHECK_CODE(lend_tensor_new_at(plain, 0, uint8, 1, &n, &tensor, &error), -EINVAL);
    CHECK_CONTAINS(error.text, "LEND_POOL_FILE_IN_PLACE");
    CHECK_CODE(lend_tensor_new_at(pool, 991, uint8, 1, &n, &tensor, &error), -ERANGE);
    CHECK_CONTAINS(error.text, "10 bytes at offset 991");
    CHECK_CODE(lend_tensor_new_at(pool, UINT64_MAX, uint8, 1, &n, &tensor, &error), -ERANGE);
    CHECK_CODE(lend_tensor_new_at(pool, 0, float32, 2, sizes, &tensor, &error), -EOVERFLOW);
    CHECK_CODE(lend_tensor_new_at(pool, 0, (DLDataType){99, 8, 1}, 1, &n, &tensor, &error), -EINVAL);
    CHECK_CODE(lend_tensor_new_at(pool, 0, uint8, 1, NULL, &tensor, &error), -EINVAL);
    CHECK_CODE(lend_tensor_new_at(NULL, 0, uint8, 1, &n, &tensor, &error), -EINVAL);
    CHECK_PTR(tensor, NULL);
    CHECK_UINT(stats_of(pool).n_blocks, 1);
    CHECK_CODE(lend_tensor_copy(source, plain, &tensor, &error), 0); /* the way to memory that can be written */
    CHECK(!info_of(tensor).is_read_only && !info_of(tensor).is_file);
    CHECK_MEM(lend_tensor_data(tensor), lend_tensor_data(source), 100);
    lend_tensor_unref(tensor);
    lend_tensor_unref(source);
    lend_pool_unref(plain);
    lend_pool_unref(pool);
    close(fd);
}

LEND_TEST(a_cut_file_is_an_error_before_it_is_a_signal) {
    int fd = test_file_patterned(10000);
    struct lend_error error = {0};
    struct lend_pool *pool = pool_make(file_opts(fd, 0, 10000));
    struct lend_tensor *tensor = NULL;
    int64_t n = 100;
    CHECK_INT(ftruncate(fd, 5000), 0);
    CHECK_CODE(lend_tensor_new_at(pool, 4901, uint8, 1, &n, &tensor, &error), -ESTALE);
    CHECK_CONTAINS(error.text, "cut to 5000 bytes; the tensor needs 5001");
    CHECK_UINT(error.asked, 5001);
    CHECK_UINT(error.available, 5000);
    tensor = tensor_at(pool, 4900, 100);
    CHECK_UINT(((uint8_t *)lend_tensor_data(tensor))[99], test_file_byte(4999));
    struct lend_tensor *copy = NULL;
    CHECK_INT(ftruncate(fd, 0), 0); /* the library looks before it reads */
    CHECK_CODE(lend_tensor_copy(tensor, NULL, &copy, &error), -ESTALE);
    CHECK_CONTAINS(error.text, "cut to 0 bytes");
    CHECK_PTR(copy, NULL);
    lend_tensor_unref(tensor);
    CHECK_INT(ftruncate(fd, 10000), 0);
    tensor = tensor_at(pool, 4901, 100); /* it is what it was, and now zero */
    CHECK_UINT(((uint8_t *)lend_tensor_data(tensor))[99], 0);
    lend_tensor_unref(tensor);
    lend_pool_unref(pool);
    close(fd);
}

LEND_TEST(the_figures_of_a_file) {
    int fd = test_file_patterned(10000);
    struct lend_pool *pool = pool_make(file_opts(fd, 0, 10000));
    struct lend_tensor *a = tensor_at(pool, 0, 9000), *b = tensor_at(pool, 500, 9001);
    struct lend_pool_stats s = stats_of(pool);
    CHECK_UINT(s.n_allocations, 1);
    CHECK_UINT(s.reserved_bytes, 10000);
    CHECK_UINT(s.allocated_bytes, 18001); /* they overlap */
    CHECK_UINT(s.allocated_bytes_peak, 18001);
    CHECK_UINT(s.requested_bytes, 18001);
    CHECK_UINT(s.cached_bytes, 0);
    CHECK_UINT(s.n_blocks, 2);
    pool_check(pool);
    lend_tensor_unref(a);
    lend_tensor_unref(b);
    s = stats_of(pool);
    CHECK_UINT(s.allocated_bytes, 0);
    CHECK_UINT(s.n_allocs, 2);
    CHECK_UINT(s.n_frees, 2);
    /* Nothing can be given back, and the file stays as it is. */
    uint64_t returned = 99;
    struct stat before, after;
    CHECK_INT(fstat(fd, &before), 0);
    CHECK_CODE(lend_pool_trim(pool, 0, &returned), 0);
    CHECK_UINT(returned, 0);
    CHECK_UINT(stats_of(pool).n_allocations, 1);
    pool_check(pool);
    lend_pool_unref(pool);
    CHECK_INT(fstat(fd, &after), 0);
    CHECK_INT(after.st_size, before.st_size);
    CHECK_INT(after.st_blocks, before.st_blocks);
    close(fd);
}

static uint64_t heap_bytes;

static long counted_calloc(size_t n, size_t bytes, void **ret) {
    heap_bytes += n * bytes;
    return lend__sys_real.calloc(n, bytes, ret);
}

LEND_TEST(a_file_of_100_gib_costs_what_a_small_one_does) {
    const uint64_t bytes = (uint64_t)100 << 30;
    if (test_is_emulated()) SKIP("an emulator has no room for 100 GiB of addresses");
    int fd = memfd_create("lend-test", MFD_CLOEXEC), small = test_file_patterned(100);
    CHECK_INT(ftruncate(fd, (off_t)bytes), 0);
    uint64_t cost[2];
    for (int i = 0; i < 2; i++) {
        struct lend__sys before = lend__sys;
        lend__sys.calloc = counted_calloc;
        heap_bytes = 0;
        struct lend_pool *pool = pool_make(i ? file_opts(fd, 0, bytes) : file_opts(small, 0, 100));
        struct lend_tensor *tensor = tensor_at(pool, i ? bytes - 1 : 99, 1);
        cost[i] = heap_bytes;
        lend__sys = before;
        CHECK_UINT(*(uint8_t *)lend_tensor_data(tensor), test_file_byte(i ? 0 : 99));
        pool_check(pool);
        lend_tensor_unref(tensor);
        lend_pool_unref(pool);
    }
    CHECK_UINT(cost[1], cost[0]);
    close(small);
    close(fd);
}

static unsigned n_descriptors(void) {
    unsigned n = 0;
    for (int fd = 0; fd < 1024; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* With the last tensor go descriptor, mapping and books; until then everything stays usable. */
LEND_TEST(the_last_tensor_takes_the_pool_along) {
    int fd = test_file_patterned(10000);
    unsigned before = n_descriptors();
    for (int order = 0; order < 2; order++) {
        struct lend_pool *pool = pool_make(file_opts(fd, 0, 10000));
        struct lend_tensor *a = tensor_at(pool, 0, 9), *b = tensor_at(pool, 5000, 9);
        CHECK_UINT(n_descriptors(), before + 1);
        lend_pool_unref(pool);
        lend_tensor_unref(order ? a : b);
        CHECK_UINT(n_descriptors(), before + 1);
        struct lend_tensor *left = order ? b : a;
        CHECK_UINT(((uint8_t *)lend_tensor_data(left))[8], test_file_byte(order ? 5008 : 8));
        void *page = (void *)((uintptr_t)lend_tensor_data(left) & ~(uintptr_t)(lend__page_bytes() - 1));
        unsigned char is_resident;
        CHECK_INT(mincore(page, 1, &is_resident), 0);
        lend_tensor_unref(left);
        CHECK_UINT(n_descriptors(), before);
        CHECK_INT(mincore(page, 1, &is_resident) ? errno : 0, ENOMEM); /* nothing is mapped there */
    }
    uint64_t n_pools, n_blocks;
    lend__pools_count(&n_pools, &n_blocks);
    CHECK_UINT(n_pools + n_blocks, 0);
    close(fd);
}

/* The caller's right to write stays the caller's. */
LEND_TEST(the_pools_descriptor_cannot_write) {
    int fd = test_file_patterned(10000);
    struct lend_pool *pool = pool_make(file_opts(fd, 0, 10000));
    struct lend_tensor *tensor = tensor_at(pool, 0, 100);
    int own = fd_of(pool);
    CHECK(own != fd);
    CHECK_INT(fcntl(own, F_GETFL) & O_ACCMODE, O_RDONLY);
    CHECK_INT(fcntl(own, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    CHECK_INT(lseek(own, 123, SEEK_SET), 123);
    CHECK_INT(lseek(fd, 0, SEEK_CUR), 10000); /* another open file */
    CHECK_INT(mprotect(lend_tensor_data(tensor), 100, PROT_READ | PROT_WRITE) ? errno : 0, EACCES);
    CHECK(mmap(NULL, 100, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0) == MAP_FAILED);
    /* What the caller writes is seen: the pages are the file's. */
    CHECK_INT(pwrite(fd, "x", 1, 50), 1);
    CHECK_UINT(((volatile uint8_t *)lend_tensor_data(tensor))[50], 'x');
    lend_tensor_unref(tensor);
    lend_pool_unref(pool);
    close(fd);
}

/* Where the file cannot be opened anew, a descriptor that cannot write is as good. */
LEND_TEST(a_file_that_cannot_be_opened_anew) {
    int fd = test_file_patterned(1000);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int reader = open(path, O_RDONLY | O_CLOEXEC), handle = open(path, O_PATH | O_CLOEXEC);
    struct lend_error error = {0};
    struct lend_pool *pool = NULL;
    struct lend_pool_opts opts = file_opts(fd, 0, 1000);
    lend__memory_hooks.require_context = NULL;
    fault_arm_call("open", 0, -EACCES);
    CHECK_CODE(lend_pool_new(&opts, &pool, &error), -EINVAL);
    CHECK_STR(fault_disarm(), "open");
    CHECK_CONTAINS(error.text, "open for reading only");
    opts = file_opts(handle, 0, 1000);
    fault_arm_call("open", 0, -ENOENT);
    CHECK_CODE(lend_pool_new(&opts, &pool, &error), -EINVAL);
    CHECK_STR(fault_disarm(), "open");
    opts = file_opts(reader, 0, 1000);
    fault_arm_call("open", 0, -EACCES);
    CHECK_OK(lend_pool_new(&opts, &pool, &error), &error);
    CHECK_STR(fault_disarm(), "open");
    CHECK(fd_of(pool) != reader);
    CHECK_INT(fcntl(fd_of(pool), F_GETFL) & O_ACCMODE, O_RDONLY);
    struct lend_tensor *tensor = tensor_at(pool, 3, 5);
    CHECK_UINT(*(uint8_t *)lend_tensor_data(tensor), test_file_byte(3));
    lend_tensor_unref(tensor);
    lend_pool_unref(pool);
    opts = file_opts(handle, 0, 1000); /* what only names the file is enough to open it */
    CHECK_OK(lend_pool_new(&opts, &pool, &error), &error);
    lend_pool_unref(pool);
    close(handle);
    close(reader);
    close(fd);
}

/* DLPack brings only an address: the smallest storage around it is the one that was meant. */
LEND_TEST(addresses_find_the_smallest_storage_around_them) {
    int fd = test_file_patterned(1000);
    struct lend_error error = {0};
    struct lend_pool *pool = pool_make(file_opts(fd, 0, 1000));
    struct lend_tensor *outer = tensor_at(pool, 0, 1000), *inner = tensor_at(pool, 100, 50), *back = NULL;
    struct lend_tensor *edge = tensor_at(pool, 120, 100);
    struct lend_tensor *const each[] = {outer, inner, edge};
    for (unsigned i = 0; i < 3; i++) {
        DLManagedTensorVersioned *managed = NULL;
        CHECK_OK(lend_tensor_to_dlpack(each[i], &managed, &error), &error);
        CHECK(managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY);
        CHECK_OK(lend_tensor_from_dlpack(managed, &back, &error), &error);
        CHECK_UINT(info_of(back).storage_id, info_of(each[i]).storage_id);
        CHECK(info_of(back).is_read_only);
        lend_tensor_unref(back);
    }
    /* A view that begins in one and ends in another lies in neither. */
    const uint8_t *base = lend_tensor_data(outer);
    struct lend__storage *found = lend__region_find(base + 110, 80);
    CHECK_UINT((uintptr_t)found, info_of(outer).storage_id);
    lend__storage_unref(found);
    lend_tensor_unref(outer);
    CHECK_PTR(lend__region_find(base + 110, 80), NULL);
    found = lend__region_find(base + 130, 20);
    CHECK_UINT((uintptr_t)found, info_of(inner).storage_id);
    lend__storage_unref(found);
    lend_tensor_unref(inner);
    lend_tensor_unref(edge);
    lend_pool_unref(pool);
    close(fd);
}

LEND_TEST(every_call_of_a_file_pool_fails_once) {
    int fd = test_file_patterned(10000);
    unsigned before = n_descriptors();
    struct lend_pool_opts opts = file_opts(fd, 0, 10000);
    lend__memory_hooks.require_context = NULL;
    for (unsigned n = 0;; n++) {
        struct lend_error error = {0};
        struct lend_pool *pool = NULL;
        fault_arm_thread(n);
        int r = lend_pool_new(&opts, &pool, &error);
        const char *failed = fault_disarm();
        CHECK_INT(r < 0, failed != NULL);
        if (!failed) {
            CHECK(n >= 5); /* records of pool and allocation, fstat, open, mmap, the list of ranges */
            lend_pool_unref(pool);
            break;
        }
        CHECK_INT(error.code, r);
        CHECK(error.text[0]);
        CHECK_PTR(pool, NULL);
        CHECK_UINT(n_descriptors(), before);
    }
    for (unsigned n = 0;; n++) {
        struct lend_pool *pool = pool_make(opts);
        struct lend_error error = {0};
        struct lend_tensor *tensor = NULL;
        int64_t bytes = 100;
        fault_arm_thread(n);
        int r = lend_tensor_new_at(pool, 1, uint8, 1, &bytes, &tensor, &error);
        const char *failed = fault_disarm();
        CHECK_INT(r < 0, failed != NULL);
        if (failed) {
            CHECK_INT(error.code, r);
            CHECK(error.text[0]);
            CHECK_PTR(tensor, NULL);
            CHECK_UINT(stats_of(pool).n_blocks, 0);
            tensor = tensor_at(pool, 1, 100);
        }
        pool_check(pool);
        lend_tensor_unref(tensor);
        lend_pool_unref(pool);
        if (!failed) {
            CHECK(n >= 4); /* fstat, the storage, the block, its table, the tensor */
            break;
        }
    }
    close(fd);
}
