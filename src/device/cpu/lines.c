/* SPDX-License-Identifier: MIT */
/* Reads the kernel's text files (/proc, cgroup) line by line without the heap. A file that cannot be opened or read
 * simply has no lines: every caller treats missing knowledge as "no limit known". Owned by one thread at a time. */
#include "base/sys.h"
#include "device/cpu/cpu.h"

int lend__lines_open(struct lend__lines *lines, const char *path) {
    lines->at = lines->n = 0;
    lines->fd = (int)lend__sys.open(path, O_RDONLY);
    return lines->fd < 0 ? lines->fd : 0;
}

static bool next_char(struct lend__lines *lines, char *ret) {
    if (lines->at == lines->n) {
        long n = lend__sys.read(lines->fd, lines->buf, sizeof lines->buf);
        if (n <= 0) return false;
        lines->at = 0;
        lines->n = (size_t)n;
    }
    *ret = lines->buf[lines->at++];
    return true;
}

bool lend__lines_next(struct lend__lines *lines, char *line, size_t room) {
    size_t n = 0;
    bool has_any = false;
    char c;
    while (next_char(lines, &c)) {
        has_any = true;
        if (c == '\n') break;
        if (n + 1 < room) line[n++] = c;
    }
    line[n] = '\0';
    return has_any;
}

void lend__lines_close(struct lend__lines *lines) {
    lend__fd_close(&lines->fd);
}
