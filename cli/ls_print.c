/* SPDX-License-Identifier: MIT */
/* How `lend ls` prints exporters for people. Commands are what other processes call themselves: they are made safe for
 * the terminal. Reports are sorted (ls_report.c). */
#include "cli.h"
#include "ls.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#define NAME "ls"

static const char *plural(uint64_t n) {
    return n == 1 ? "" : "s";
}

/* "  storages     12   64.0 MiB" */
static void print_count(const char *what, uint64_t n, uint64_t bytes, const char *rest) {
    char text[FORMAT_BYTES];
    printf("  %-12s %6" PRIu64 "  %10s%s\n", what, n, format_bytes(bytes, text), rest);
}

static void print_allocations(const struct lend_report *r) {
    char bytes[FORMAT_BYTES], used[FORMAT_BYTES];
    for (size_t i = 0; i < r->n_allocations; i++) {
        const struct lend_report_allocation *a = &r->allocations[i];
        printf("  allocation %" PRIu32 ": generation %" PRIu32 ", %s, %s used, inode %" PRIu64 "%s\n", a->index, a->gen,
               format_bytes(a->bytes, bytes), format_bytes(a->used_bytes, used), a->inode,
               a->is_file ? ", file, not sealed" : "");
    }
}

/* Those that hold something, and those that are only in contact. */
static void print_peers(const struct lend_report *r) {
    char command[64], bytes[FORMAT_BYTES], age[FORMAT_BYTES];
    for (size_t i = 0; i < r->n_peers; i++) {
        const struct lend_report_peer *p = &r->peers[i];
        if (!p->n_storages) continue;
        printf("  held by pid %" PRIu32 " (%s): %" PRIu32 " storage%s, %s, in contact for %s\n", p->pid,
               format_safe(p->command, command, sizeof command), p->n_storages, plural(p->n_storages),
               format_bytes(p->bytes, bytes), format_duration(ls_age_ns(p->since_ns), age));
    }
    for (size_t i = 0; i < r->n_peers; i++) {
        const struct lend_report_peer *p = &r->peers[i];
        if (p->n_storages) continue;
        printf("  pid %" PRIu32 " (%s) is in contact for %s and holds nothing\n", p->pid,
               format_safe(p->command, command, sizeof command), format_duration(ls_age_ns(p->since_ns), age));
    }
}

static uint32_t sender_of(const struct lend_report *r, const struct lend_report_pin *pin) {
    return pin->sender_pid ? pin->sender_pid : r->totals.pid;
}

/* One line for each sender; the first of its pins is the oldest. */
static void print_senders(const struct lend_report *r) {
    char bytes[FORMAT_BYTES], age[FORMAT_BYTES];
    for (size_t begin = 0, end; begin < r->n_pins; begin = end) {
        uint64_t sum = 0;
        for (end = begin; end < r->n_pins && r->pins[end].sender_pid == r->pins[begin].sender_pid; end++)
            sum += r->pins[end].bytes;
        printf("  sent by pid %" PRIu32 ": %zu pin%s, %s, the oldest %s old\n", sender_of(r, &r->pins[begin]),
               end - begin, plural(end - begin), format_bytes(sum, bytes), format_duration(r->pins[begin].age_ns, age));
    }
}

static void print_pins(const struct lend_report *r) {
    char bytes[FORMAT_BYTES], age[FORMAT_BYTES];
    for (size_t i = 0; i < r->n_pins; i++) {
        const struct lend_report_pin *p = &r->pins[i];
        printf("  pin %#" PRIx64 " on storage %" PRIu32, p->token, p->slot);
        if (p->n_storages > 1) printf(" and %" PRIu32 " more", p->n_storages - 1);
        printf(": %s, %s old, sent by pid %" PRIu32 "\n", format_bytes(p->bytes, bytes),
               format_duration(p->age_ns, age), sender_of(r, p));
    }
}

static void print_storages(const struct lend_report *r) {
    char command[64], age[FORMAT_BYTES];
    size_t at = 0;
    for (size_t i = 0; i < r->n_storages; i++) {
        const struct lend_report_storage *s = &r->storages[i];
        printf("  storage %" PRIu32 ": ", s->slot);
        if (ls_has_memory(s))
            printf("%" PRIu64 " bytes at %" PRIu64 " of allocation %" PRIu32, s->bytes, s->offset, s->allocation);
        else
            printf("no memory");
        printf(", %" PRIu32 " pin%s%s\n", s->n_pins, plural(s->n_pins), s->is_limbo ? ", limbo" : "");
        for (size_t end = ls_holds_find(r, s->slot, &at); at < end; at++) {
            const struct lend_report_hold *h = &r->holds[at];
            const struct lend_report_peer *peer = ls_peer_find(r, h->pid);
            printf("    held by pid %" PRIu32 " (%s), %" PRIu32 " time%s", h->pid,
                   peer ? format_safe(peer->command, command, sizeof command) : "?", h->count, plural(h->count));
            if (peer) printf(", in contact for %s", format_duration(ls_age_ns(peer->since_ns), age));
            putchar('\n');
        }
    }
}

static void print_silent(const struct answer *a, const struct style *style) {
    char address[128], command[64];
    format_safe(a->exporter.address, address, sizeof address);
    printf("\n%s", style->warn);
    if (a->code != -ETIMEDOUT)
        printf("%s: %s", address, *a->error.text ? a->error.text : lend_strerror(a->code));
    else if (a->silent_pid)
        printf("pid %" PRIu32 " (%s): not answering (stopped?)", a->silent_pid,
               format_safe(a->silent_command, command, sizeof command));
    else
        printf("%s: not answering (stopped?)", address);
    printf("%s\n", style->off);
}

static void print_exporter(const struct answer *a, const struct style *style, bool with_all) {
    char command[64], up[FORMAT_BYTES];
    if (!a->report) {
        print_silent(a, style);
        return;
    }
    const struct lend_report *r = a->report;
    const struct lend_report_totals *t = &r->totals;
    printf("\n%spid %" PRIu32 "%s (%s), up %s, %" PRIu64 " of %" PRIu64 " descriptors used\n", style->bold, t->pid,
           style->off, format_safe(t->command, command, sizeof command), format_duration(ls_age_ns(t->start_ns), up),
           t->used_fds, t->limit_fds);
    print_count("allocations", t->n_allocations, t->allocation_bytes, "");
    print_count("storages", t->n_storages, t->storage_bytes, " lent");
    if (t->n_limbo) print_count("limbo", t->n_limbo, t->limbo_bytes, " dropped here, held by others or by pins");
    if (t->n_pins) print_count("pins", t->n_pins, t->pin_bytes, "");
    if (!with_all) print_senders(r);
    print_peers(r);
    if (!with_all) return;
    print_allocations(r);
    print_pins(r);
    print_storages(r);
}

int ls_print_text(const struct answer *answers, size_t n, bool with_all) {
    struct style style = style_get();
    struct ls_sums s = ls_sum_up(answers, n);
    char a[FORMAT_BYTES], b[FORMAT_BYTES], c[FORMAT_BYTES], d[FORMAT_BYTES];
    printf("%s%zu exporter%s%s", style.bold, n, plural(n), style.off);
    if (s.n_answering < n) printf(" (%zu not answering)", n - s.n_answering);
    printf(": %" PRIu64 " allocation%s (%s), %" PRIu64 " storage%s (%s), %" PRIu64 " in limbo (%s), %" PRIu64
           " pin%s (%s), %" PRIu64 " holder%s",
           s.n_allocations, plural(s.n_allocations), format_bytes(s.allocation_bytes, a), s.n_storages,
           plural(s.n_storages), format_bytes(s.storage_bytes, b), s.n_limbo, format_bytes(s.limbo_bytes, c), s.n_pins,
           plural(s.n_pins), format_bytes(s.pin_bytes, d), s.n_holders, plural(s.n_holders));
    if (s.n_contacts) printf(", %" PRIu64 " more in contact", s.n_contacts);
    putchar('\n');
    for (size_t i = 0; i < n; i++) print_exporter(&answers[i], &style, with_all);
    return finish_output(NAME);
}
