// SPDX-License-Identifier: MIT
// RAII over the C calls: a context, a pool, a tensor and a handle that give back what they hold. Errors are exceptions.
#pragma once
#include <lend/lend.h>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace lend {

struct error : std::runtime_error {
    int code;
    explicit error(const lend_error &e) : std::runtime_error(e.text), code(e.code) {}
};

// Calls fn(args..., &error) and throws what it says; returns a positive outcome (LEND_COPIED) as it is.
template <class Fn, class... Args> int call(Fn fn, Args... args) {
    lend_error e = {};
    int r = fn(args..., &e);
    if (r < 0) throw error(e);
    return r;
}

// The process's context. Declare it first: everything else must be gone before it closes.
struct context {
    explicit context(const lend_opts *opts = nullptr) { call(lend_open, opts); }
    ~context() { lend_close(nullptr); }
    context(const context &) = delete;
    context &operator=(const context &) = delete;
};

using pool = std::shared_ptr<lend_pool>;
using tensor = std::shared_ptr<lend_tensor>;
using handle = std::vector<unsigned char>;

inline pool make_pool(const lend_pool_opts *opts = nullptr) {
    lend_pool *p = nullptr;
    call(lend_pool_new, opts, &p);
    return pool(p, lend_pool_unref);
}

inline tensor make_tensor(const pool &in, DLDataType dtype, const std::vector<int64_t> &shape) {
    lend_tensor *t = nullptr;
    call(lend_tensor_new, in.get(), dtype, static_cast<int32_t>(shape.size()), shape.data(), &t);
    return tensor(t, lend_tensor_unref);
}

inline handle reduce(const tensor &t, const lend_reduce_opts *opts = nullptr) {
    handle bytes(LEND_HANDLE_BYTES_MAX);
    size_t n = 0;
    call(lend_reduce, t.get(), opts, static_cast<void *>(bytes.data()), bytes.size(), &n);
    bytes.resize(n);
    return bytes;
}

inline tensor rebuild(const handle &h, const lend_rebuild_opts *opts = nullptr) {
    lend_tensor *t = nullptr;
    call(lend_rebuild, static_cast<const void *>(h.data()), h.size(), opts, &t);
    return tensor(t, lend_tensor_unref);
}

} // namespace lend
