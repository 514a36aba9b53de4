/* SPDX-License-Identifier: MIT */
/* The same in C++11: the headers give the names C linkage. */
#include <iostream>
#include <lend/lend.h>

int main() {
    lend_version_info info = {};
    lend_version(&info);
    if (info.major != LEND_VERSION_MAJOR || info.minor != LEND_VERSION_MINOR || info.abi != LEND_ABI_VERSION) return 1;
    if (info.shm_layout == 0) return 2;
    std::cout << "lend " << info.major << '.' << info.minor << '.' << info.patch << ": " << lend_strerror(0) << '\n';
    return 0;
}
