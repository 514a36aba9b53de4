// SPDX-License-Identifier: MIT
// Two processes in one program: without an argument it lends and starts itself as the borrower; with a handle it borrows.
//
//     c++ -std=c++11 share.cpp -o share $(pkg-config --cflags --libs liblend)
//     ./share
#include "lend.hpp"
#include <cstdio>
#include <cstdlib>

static int borrow(const char *text) {
    lend::context context;
    lend::tensor tensor = lend::rebuild(lend::parse(text));
    static_cast<float *>(lend_tensor_data(tensor.get()))[0] += 41;
    return 0;
}

int main(int argc, char **argv) try {
    if (argc == 2) return borrow(argv[1]);
    lend::context context;
    lend::pool pool = lend::make_pool();
    lend::tensor tensor = lend::make_tensor(pool, DLDataType{kDLFloat, 32, 1}, {4});
    float *x = static_cast<float *>(lend_tensor_data(tensor.get()));
    x[0] = 1;

    if (std::system((argv[0] + (" " + lend::format(lend::reduce(tensor)))).c_str()) != 0) return 1;
    std::printf("x[0] is %g\n", static_cast<double>(x[0]));
    return 0;
} catch (const lend::error &e) {
    std::fprintf(stderr, "%s (%s)\n", e.what(), lend_strerror(e.code));
    return 1;
}
