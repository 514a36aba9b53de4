/* SPDX-License-Identifier: MIT */
/* Results as a table for people while they come, and as JSON at the end. */
#include "bench.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

static struct result results[256];
static size_t n_results;

void die(const char *file, int line, const char *format, ...) {
    va_list args;
    fprintf(stderr, "%s:%d: ", file, line);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, " (last errno: %s)\n", strerror(errno));
    exit(1);
}

void must(int r, const struct lend_error *error, const char *what) {
    MUST(r >= 0, "%s: %s: %s", what, lend_strerror(r), error ? error->text : "");
}

static bool is_met(const struct result *r) {
    if (r->aim_kind == AIM_VALUE) return r->ours.best <= r->aim;
    return r->ours.best <= r->aim * r->floor.best;
}

static const char *unit_of(const struct result *r) {
    return r->unit ? r->unit : "ns";
}

/* Nanoseconds are shown in the unit that leaves one to four digits before the point. */
static void print_value(const struct result *r, double v) {
    if (r->unit)
        printf(" %8.2f %-6s", v, r->unit);
    else if (v < 10000)
        printf(" %8.1f ns    ", v);
    else if (v < 1e7)
        printf(" %8.1f us    ", v / 1e3);
    else
        printf(" %8.1f ms    ", v / 1e6);
}

void report(const struct result *r) {
    MUST(n_results < sizeof results / sizeof results[0], "more results than fit");
    if (!n_results || strcmp(results[n_results - 1].group, r->group) != 0)
        printf("\n%-52s %12s %15s %15s  %6s\n", r->group, "best", "median", "floor", "ratio");
    results[n_results++] = *r;
    printf("  %-50s", r->name);
    print_value(r, r->ours.best);
    print_value(r, r->ours.median);
    if (r->floor_name) {
        print_value(r, r->floor.best);
        printf(" %6.2f", r->ours.best / r->floor.best);
    } else {
        printf("%23s", "");
    }
    if (r->aim_kind)
        printf("  aim %g%s: %s", r->aim, r->aim_kind == AIM_RATIO ? "x" : "", is_met(r) ? "met" : "MISSED");
    if (r->floor_name) printf("  [%s]", r->floor_name);
    printf("\n");
    fflush(stdout);
}

void report_note(const char *text) {
    printf("  (%s)\n", text);
}

static void cpu_name(char *ret, size_t n) {
    snprintf(ret, n, "unknown");
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[256];
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (!colon || strncmp(line, "model name", 10) != 0) continue;
        line[strcspn(line, "\n\"\\")] = 0;
        snprintf(ret, n, "%s", colon + 2);
        break;
    }
    if (f) fclose(f);
}

static void write_result(FILE *f, const struct result *r) {
    fprintf(f, "{\"group\":\"%s\",\"name\":\"%s\",\"unit\":\"%s\",\"best\":%.2f,\"median\":%.2f", r->group, r->name,
            unit_of(r), r->ours.best, r->ours.median);
    if (r->floor_name)
        fprintf(f, ",\"floor_name\":\"%s\",\"floor_best\":%.2f,\"floor_median\":%.2f,\"ratio\":%.3f", r->floor_name,
                r->floor.best, r->floor.median, r->ours.best / r->floor.best);
    if (r->aim_kind)
        fprintf(f, ",\"aim\":%g,\"aim_of\":\"%s\",\"is_met\":%s", r->aim, r->aim_kind == AIM_RATIO ? "ratio" : "best",
                is_met(r) ? "true" : "false");
    fprintf(f, "}");
}

static void write_json(const char *path) {
    FILE *f = fopen(path, "we");
    MUST(f, "cannot write %s", path);
    struct utsname machine;
    uname(&machine);
    char cpu[160];
    cpu_name(cpu, sizeof cpu);
    double load[1] = {0};
    (void)getloadavg(load, 1);
    fprintf(f,
            "{\"lend\":\"%s\",\"machine\":{\"cpu\":\"%s\",\"processors\":%ld,\"architecture\":\"%s\",\"kernel\":\"%s\","
            "\"page_bytes\":%ld,\"load_average\":%.2f},\"results\":[",
            LEND_VERSION_STRING, cpu, sysconf(_SC_NPROCESSORS_ONLN), machine.machine, machine.release,
            sysconf(_SC_PAGESIZE), load[0]);
    for (size_t i = 0; i < n_results; i++) {
        fprintf(f, i ? ",\n" : "\n");
        write_result(f, &results[i]);
    }
    fprintf(f, "\n]}\n");
    MUST(fclose(f) == 0, "cannot write %s", path);
}

void report_end(const char *json_path) {
    size_t n_aims = 0, n_met = 0;
    for (size_t i = 0; i < n_results; i++) {
        if (!results[i].aim_kind) continue;
        n_aims++;
        n_met += is_met(&results[i]);
    }
    double load[1] = {0};
    (void)getloadavg(load, 1);
    if (json_path) write_json(json_path);
    printf("\n%zu figures, %zu of %zu aims met; load average %.2f%s%s\n", n_results, n_met, n_aims, load[0],
           json_path ? "; JSON in " : "", json_path ? json_path : "");
}
