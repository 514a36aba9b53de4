/* SPDX-License-Identifier: MIT */
/* The line of the progress bar, at every width of a terminal. When it is drawn is a matter of time and not tested. */
#include "progress.h"
#include "test.h"

#include <stdint.h>
#include <string.h>

#define MIB 1048576ull

static const struct progress loading = {.what = "loading", .total_bytes = 900 * MIB};

LEND_TEST(the_first_piece_shows_the_time) {
    char line[128];
    CHECK_STR(progress_format(&loading, 0, 3, 80, line, sizeof line),
              "loading [                              ]   0 % of 900.0 MiB, 3 s");
}

LEND_TEST(the_bar_fills) {
    char line[128];
    CHECK_STR(progress_format(&loading, 450 * MIB, 12, 80, line, sizeof line),
              "loading [###############               ]  50 % of 900.0 MiB, 12 s");
    CHECK_STR(progress_format(&loading, 900 * MIB, 12, 80, line, sizeof line),
              "loading [##############################] 100 % of 900.0 MiB, 12 s");
    /* A file that grew cannot draw beyond the end. */
    CHECK_STR(progress_format(&loading, 1800 * MIB, 12, 80, line, sizeof line),
              "loading [##############################] 100 % of 900.0 MiB, 12 s");
}

LEND_TEST(a_narrow_terminal_gets_a_shorter_bar_then_none) {
    char line[128];
    CHECK_STR(progress_format(&loading, 450 * MIB, 3, 45, line, sizeof line),
              "loading [#####     ]  50 % of 900.0 MiB, 3 s");
    CHECK_STR(progress_format(&loading, 450 * MIB, 3, 36, line, sizeof line), "loading  50 % of 900.0 MiB, 3 s");
    CHECK_STR(progress_format(&loading, 450 * MIB, 3, 10, line, sizeof line), "loading  ");
}

LEND_TEST(no_line_is_as_wide_as_the_terminal) {
    char line[128];
    for (size_t columns = 1; columns <= 200; columns++)
        CHECK(strlen(progress_format(&loading, 333 * MIB, 100000, columns, line, sizeof line)) < columns);
}

LEND_TEST(nothing_to_load_is_complete) {
    const struct progress empty = {.what = "loading"};
    char line[128];
    CHECK_STR(progress_format(&empty, 0, 0, 80, line, sizeof line),
              "loading [##############################] 100 % of 0.0 MiB, 0 s");
}
