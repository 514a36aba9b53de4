// SPDX-License-Identifier: MIT
// One handle for two named tensors, one of them sparse. Two processes in one program, as in share.cpp: the borrower
// takes the sparse one alone and doubles its first element.
//
//     c++ -std=c++11 group.cpp -o group $(pkg-config --cflags --libs liblend)
//     ./group
#include "lend.hpp"
#include <algorithm>
#include <cstdio>
#include <cstdlib>

static int borrow(const char *text) {
    lend::context context;
    lend_rebuild_opts checked = {};
    checked.size = sizeof checked;
    checked.flags = LEND_REBUILD_CHECK; // the indices are the lender's to write
    lend::group group = lend::rebuild_group(lend::parse(text), {"sparse"}, &checked);
    lend::tensor values = lend::components(lend::find(group, "sparse")).at(2);
    static_cast<float *>(lend_tensor_data(values.get()))[0] *= 2;
    return 0;
}

template <class T> lend::tensor row(const lend::pool &pool, DLDataType dtype, const std::vector<T> &elements) {
    lend::tensor tensor = lend::make_tensor(pool, dtype, {static_cast<int64_t>(elements.size())});
    std::copy(elements.begin(), elements.end(), static_cast<T *>(lend_tensor_data(tensor.get())));
    return tensor;
}

int main(int argc, char **argv) try {
    if (argc == 2) return borrow(argv[1]);
    const DLDataType float32 = {kDLFloat, 32, 1}, int64 = {kDLInt, 64, 1};
    lend::context context;
    lend::pool pool = lend::make_pool();
    lend::tensor bias = row<float>(pool, float32, {0.5, 0.25});
    // [[7, 0, 8], [0, 9, 0]]: where each row begins in the other two, the columns, the elements.
    lend::tensor values = row<float>(pool, float32, {7, 8, 9});
    lend_compound csr = {};
    csr.layout = LEND_LAYOUT_CSR;
    lend::tensor sparse = lend::make_compound(
        csr, {row<int64_t>(pool, int64, {0, 2, 3}), row<int64_t>(pool, int64, {0, 2, 1}), values}, {2, 3});

    lend::group group = lend::make_group();
    lend::add(group, "bias", bias);
    lend::add(group, "sparse", sparse);
    if (std::system((argv[0] + (" " + lend::format(lend::reduce(group)))).c_str()) != 0) return 1;
    std::printf("sparse[0][0] is %g\n", static_cast<double>(static_cast<float *>(lend_tensor_data(values.get()))[0]));
    return 0;
} catch (const std::exception &e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
}
