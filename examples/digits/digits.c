/* SPDX-License-Identifier: MIT */
/* The digits example: `digits lend FILE TO FROM TO FROM` and `digits classify 0|1`. demo.sh starts one of the first and
 * two of the second, joined by FIFOs only. Here is what both need; lender.c and classifier.c are the roles. */
#include "digits.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fflush(stdout);
    fprintf(stderr, "digits (pid %ld): ", (long)getpid());
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

void must(int r, const struct lend_error *error) {
    if (r < 0) die("%s", error && error->text[0] ? error->text : lend_strerror(r));
}

void channel_say(struct channel *channel, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vfprintf(channel->out, format, args);
    va_end(args);
    if (n < 0 || fflush(channel->out)) die("the other process has gone");
    channel->bytes += (uint64_t)n;
}

void channel_hear(struct channel *channel, char *line, int line_bytes) {
    if (!fgets(line, line_bytes, channel->in)) die("the other process has gone");
    size_t n = strlen(line);
    channel->bytes += n;
    if (n == 0 || line[n - 1] != '\n') die("a line was cut");
    line[n - 1] = 0;
}

void channel_expect(struct channel *channel, const char *word) {
    char line[64];
    channel_hear(channel, line, sizeof line);
    if (strcmp(line, word)) die("the other process said '%s', not '%s'", line, word);
}

struct io io_now(void) {
    char text[1024];
    FILE *file = fopen("/proc/self/io", "r");
    size_t n = file ? fread(text, 1, sizeof text - 1, file) : 0;
    unsigned long long rchar, wchar;
    text[n] = 0;
    if (!file || sscanf(text, "rchar: %llu wchar: %llu", &rchar, &wchar) != 2) die("/proc/self/io cannot be read");
    fclose(file);
    return (struct io){.bytes = rchar + wchar, .own_bytes = n};
}

uint64_t io_between(struct io before, struct io after) {
    return after.bytes - before.bytes - before.own_bytes;
}

int64_t private_bytes(void) {
    char line[256];
    long long kib = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "RssAnon: %lld kB", &kib) == 1) break;
    if (kib < 0) die("/proc/self/status does not tell RssAnon");
    fclose(file);
    return kib * 1024;
}

int64_t pool_bytes(struct lend_pool *pool) {
    struct lend_pool_stats stats = {.size = sizeof stats};
    must(lend_pool_stats(pool, &stats), NULL);
    return (int64_t)stats.reserved_bytes;
}

uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc == 3 + 2 * N_CLASSIFIERS && !strcmp(argv[1], "lend")) return lend_main(argv[2], argv + 3);
    if (argc == 3 && !strcmp(argv[1], "classify")) return classify_main(atoi(argv[2]));
    fprintf(stderr, "Usage: digits lend FILE TO FROM TO FROM\n       digits classify 0|1\ndemo.sh joins them.\n");
    return 2;
}
