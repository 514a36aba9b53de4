/* SPDX-License-Identifier: MIT */
/* Checked arithmetic at its edges. */
#include "base/checked.h"
#include "test.h"

LEND_TEST(round_up_gives_the_next_multiple) {
    uint64_t r = 7;
    CHECK(!lend__round_up_overflows(0, 64, &r));
    CHECK_UINT(r, 0);
    CHECK(!lend__round_up_overflows(1, 64, &r));
    CHECK_UINT(r, 64);
    CHECK(!lend__round_up_overflows(64, 64, &r));
    CHECK_UINT(r, 64);
    CHECK(!lend__round_up_overflows(65, 64, &r));
    CHECK_UINT(r, 128);
    CHECK(!lend__round_up_overflows(12345, 1, &r));
    CHECK_UINT(r, 12345);
}

LEND_TEST(round_up_tells_overflow_and_keeps_the_output) {
    uint64_t r = 7;
    CHECK(lend__round_up_overflows(UINT64_MAX, 64, &r));
    CHECK(lend__round_up_overflows(UINT64_MAX - 62, 64, &r));
    CHECK_UINT(r, 7);
    CHECK(!lend__round_up_overflows(UINT64_MAX - 63, 64, &r));
    CHECK_UINT(r, UINT64_MAX - 63);
    CHECK(!lend__round_up_overflows(UINT64_MAX, 1, &r));
    CHECK_UINT(r, UINT64_MAX);
}

LEND_TEST(range_fits_without_wrapping) {
    CHECK(lend__range_fits(0, 0, 0));
    CHECK(lend__range_fits(0, 10, 10));
    CHECK(lend__range_fits(10, 0, 10));
    CHECK(lend__range_fits(4, 6, 10));
    CHECK(!lend__range_fits(4, 7, 10));
    CHECK(!lend__range_fits(11, 0, 10));
    CHECK(!lend__range_fits(UINT64_MAX, 1, 10));
    CHECK(!lend__range_fits(8, UINT64_MAX - 4, 10));
    CHECK(lend__range_fits(1, UINT64_MAX - 1, UINT64_MAX));
}

LEND_TEST(powers_of_two) {
    CHECK(!lend__is_power_of_two(0));
    for (unsigned bit = 0; bit < 64; bit++) {
        uint64_t v = UINT64_C(1) << bit;
        CHECK(lend__is_power_of_two(v));
        CHECK(bit < 1 || !lend__is_power_of_two(v | 1));
        CHECK(bit < 2 || !lend__is_power_of_two(v - 1));
    }
}

LEND_TEST(overflow_is_told_per_type) {
    uint64_t u;
    int64_t i;
    CHECK(lend__add_overflows(UINT64_MAX, 1u, &u));
    CHECK(lend__sub_overflows(0u, 1u, &u));
    CHECK(lend__mul_overflows(UINT64_C(1) << 33, UINT64_C(1) << 31, &u));
    CHECK(lend__mul_overflows(INT64_MIN, -1, &i));
    CHECK(!lend__mul_overflows(INT64_C(-3), INT64_C(4), &i));
    CHECK_INT(i, -12);
    CHECK(!lend__sub_overflows(INT64_C(3), INT64_C(5), &i));
    CHECK_INT(i, -2);
}
