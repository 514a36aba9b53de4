// SPDX-License-Identifier: MIT
// RAII over the C calls: a context, pools, tensors, groups and handles that give back what they hold. Errors are
// exceptions.
#pragma once
#include <lend/lend.h>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace lend {

struct error : std::runtime_error {
    int code;
    explicit error(const lend_error &e) : std::runtime_error(e.text), code(e.code) {
    }
    explicit error(int r) : std::runtime_error(lend_strerror(r)), code(r) {
    }
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
    explicit context(const lend_opts *opts = nullptr) {
        call(lend_open, opts);
    }
    ~context() {
        lend_close(nullptr);
    }
    context(const context &) = delete;
    context &operator=(const context &) = delete;
};

using pool = std::shared_ptr<lend_pool>;
using tensor = std::shared_ptr<lend_tensor>;
using group = std::shared_ptr<lend_group>;
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

// A tensor of components: sparse, nested, quantized or wrapped. `of` has its layout, and what that needs besides.
inline tensor make_compound(lend_compound of, const std::vector<tensor> &parts, const std::vector<int64_t> &shape) {
    std::vector<lend_tensor *> components;
    for (const tensor &part : parts) components.push_back(part.get());
    of.size = sizeof of;
    of.n_components = static_cast<uint32_t>(components.size());
    of.components = components.data();
    of.ndim = static_cast<int32_t>(shape.size());
    of.shape = shape.data();
    lend_tensor *t = nullptr;
    call(lend_tensor_new_compound, static_cast<const lend_compound *>(&of), &t);
    return tensor(t, lend_tensor_unref);
}

// What it is made of, in the order of layout.h; nothing for a strided tensor.
inline std::vector<tensor> components(const tensor &whole) {
    lend_compound of = {};
    of.size = sizeof of;
    std::vector<tensor> parts;
    if (lend_tensor_components(whole.get(), &of) < 0) return parts;
    for (uint32_t i = 0; i < of.n_components; i++)
        parts.push_back(tensor(lend_tensor_ref(of.components[i]), lend_tensor_unref));
    return parts;
}

inline group make_group() {
    lend_group *g = nullptr;
    call(lend_group_new, &g);
    return group(g, lend_group_unref);
}

inline void add(const group &to, const std::string &name, const tensor &t) {
    call(lend_group_add, to.get(), name.c_str(), t.get());
}

// The tensor with this name, or null.
inline tensor find(const group &in, const std::string &name) {
    lend_tensor *t = lend_group_find(in.get(), name.c_str());
    return tensor(t ? lend_tensor_ref(t) : nullptr, lend_tensor_unref);
}

inline handle reduce(const group &g, const lend_reduce_opts *opts = nullptr) {
    void *bytes = nullptr;
    size_t n = 0;
    call(lend_group_reduce, g.get(), opts, &bytes, &n);
    std::unique_ptr<void, void (*)(void *)> owner(bytes, lend_free);
    return handle(static_cast<unsigned char *>(bytes), static_cast<unsigned char *>(bytes) + n);
}

// Without names: all of it.
inline group rebuild_group(const handle &h, const std::vector<const char *> &names = {},
                           const lend_rebuild_opts *opts = nullptr) {
    lend_group *g = nullptr;
    call(lend_group_rebuild, static_cast<const void *>(h.data()), h.size(), names.empty() ? nullptr : names.data(),
         names.size(), opts, &g);
    return group(g, lend_group_unref);
}

// The text form of a handle, and back.
inline std::string format(const handle &h) {
    std::vector<char> text(LEND_HANDLE_TEXT_BYTES(h.size()));
    int r = lend_handle_format(h.data(), h.size(), text.data(), text.size());
    if (r < 0) throw error(r);
    return text.data();
}

inline handle parse(const std::string &text) {
    handle bytes(text.size()); // a handle is shorter than its text
    size_t n = 0;
    int r = lend_handle_parse(text.c_str(), bytes.data(), bytes.size(), &n);
    if (r < 0) throw error(r);
    bytes.resize(n);
    return bytes;
}

} // namespace lend
