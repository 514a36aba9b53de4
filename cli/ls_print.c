/* SPDX-License-Identifier: MIT */
/* How `lend ls` prints exporters, for people and as JSON. Commands are what other processes call themselves: they are
 * made safe for the terminal. Ages are measured against CLOCK_BOOTTIME, the clock of all times in a report. */
#include "cli.h"
#include "ls.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#define NAME "ls"

struct sums {
    size_t n_answering;
    uint64_t n_allocations, allocation_bytes, n_storages, storage_bytes, n_limbo, limbo_bytes, n_pins, pin_bytes;
    uint64_t n_holders;
};

static uint64_t boottime_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static uint64_t age_ns(uint64_t since_ns) {
    uint64_t now = boottime_ns();
    return now > since_ns ? now - since_ns : 0;
}

static struct sums sum_up(const struct answer *answers, size_t n) {
    struct sums s = {.n_answering = 0};
    for (size_t i = 0; i < n; i++) {
        if (!answers[i].report) continue;
        const struct lend_report_totals *t = &answers[i].report->totals;
        s.n_answering++;
        s.n_allocations += t->n_allocations;
        s.allocation_bytes += t->allocation_bytes;
        s.n_storages += t->n_storages;
        s.storage_bytes += t->storage_bytes;
        s.n_limbo += t->n_limbo;
        s.limbo_bytes += t->limbo_bytes;
        s.n_pins += t->n_pins;
        s.pin_bytes += t->pin_bytes;
        s.n_holders += answers[i].report->n_peers;
    }
    return s;
}

static const char *plural(uint64_t n) {
    return n == 1 ? "" : "s";
}

/* "  storages     12   64.0 MiB" */
static void print_count(const char *what, uint64_t n, uint64_t bytes, const char *rest) {
    char text[FORMAT_BYTES];
    printf("  %-12s %6" PRIu64 "  %10s%s\n", what, n, format_bytes(bytes, text), rest);
}

static const struct lend_report_peer *find_peer(const struct lend_report *r, uint32_t pid) {
    for (size_t i = 0; i < r->n_peers; i++)
        if (r->peers[i].pid == pid) return &r->peers[i];
    return NULL;
}

static void print_holders(const struct lend_report *r) {
    char command[64], bytes[FORMAT_BYTES], age[FORMAT_BYTES];
    for (size_t i = 0; i < r->n_peers; i++) {
        const struct lend_report_peer *p = &r->peers[i];
        printf("  held by pid %" PRIu32 " (%s): %" PRIu32 " storage%s, %s, in contact for %s\n", p->pid,
               format_safe(p->command, command, sizeof command), p->n_storages, plural(p->n_storages),
               format_bytes(p->bytes, bytes), format_duration(age_ns(p->since_ns), age));
    }
}

static void print_pins(const struct lend_report *r) {
    char bytes[FORMAT_BYTES], age[FORMAT_BYTES];
    for (size_t i = 0; i < r->n_pins; i++) {
        const struct lend_report_pin *p = &r->pins[i];
        uint32_t sender = p->sender_pid ? p->sender_pid : r->totals.pid;
        printf("  pin %#" PRIx64 " on storage %" PRIu32 ": %s, %s old, sent by pid %" PRIu32 "\n", p->token, p->slot,
               format_bytes(p->bytes, bytes), format_duration(p->age_ns, age), sender);
    }
}

static void print_storages(const struct lend_report *r) {
    char command[64];
    for (size_t i = 0; i < r->n_storages; i++) {
        const struct lend_report_storage *s = &r->storages[i];
        printf("  storage %" PRIu32 ": %" PRIu64 " bytes at %" PRIu64 " of allocation %" PRIu32 ", %" PRIu32
               " pin%s%s\n",
               s->slot, s->bytes, s->offset, s->allocation, s->n_pins, plural(s->n_pins), s->is_limbo ? ", limbo" : "");
        for (size_t k = 0; k < r->n_holds; k++) {
            const struct lend_report_hold *h = &r->holds[k];
            if (h->slot != s->slot) continue;
            const struct lend_report_peer *peer = find_peer(r, h->pid);
            printf("    held by pid %" PRIu32 " (%s), %" PRIu32 " time%s\n", h->pid,
                   peer ? format_safe(peer->command, command, sizeof command) : "?", h->count, plural(h->count));
        }
    }
}

static void print_exporter(const struct answer *a, const struct style *style, bool with_all) {
    char text[128], up[FORMAT_BYTES];
    if (!a->report) {
        format_safe(a->exporter.address, text, sizeof text);
        if (a->code == -ETIMEDOUT)
            printf("\n%s%s: not answering%s\n", style->warn, text, style->off);
        else
            printf("\n%s%s: %s%s\n", style->warn, text, *a->error.text ? a->error.text : lend_strerror(a->code),
                   style->off);
        return;
    }
    const struct lend_report *r = a->report;
    const struct lend_report_totals *t = &r->totals;
    printf("\n%spid %" PRIu32 "%s (%s), up %s, %" PRIu64 " of %" PRIu64 " descriptors used\n", style->bold, t->pid,
           style->off, format_safe(t->command, text, sizeof text), format_duration(age_ns(t->start_ns), up),
           t->used_fds, t->limit_fds);
    print_count("allocations", t->n_allocations, t->allocation_bytes, "");
    print_count("storages", t->n_storages, t->storage_bytes, " lent");
    if (t->n_limbo) print_count("limbo", t->n_limbo, t->limbo_bytes, " dropped here, held by others");
    if (t->n_pins) print_count("pins", t->n_pins, t->pin_bytes, "");
    print_pins(r);
    print_holders(r);
    if (with_all) print_storages(r);
}

int ls_print_text(const struct answer *answers, size_t n, bool with_all) {
    struct style style = style_get();
    struct sums s = sum_up(answers, n);
    char a[FORMAT_BYTES], b[FORMAT_BYTES], c[FORMAT_BYTES], d[FORMAT_BYTES];
    printf("%s%zu exporter%s%s", style.bold, n, plural(n), style.off);
    if (s.n_answering < n) printf(" (%zu not answering)", n - s.n_answering);
    printf(": %" PRIu64 " allocation%s (%s), %" PRIu64 " storage%s (%s), %" PRIu64 " in limbo (%s), %" PRIu64
           " pin%s (%s), %" PRIu64 " holder%s\n",
           s.n_allocations, plural(s.n_allocations), format_bytes(s.allocation_bytes, a), s.n_storages,
           plural(s.n_storages), format_bytes(s.storage_bytes, b), s.n_limbo, format_bytes(s.limbo_bytes, c), s.n_pins,
           plural(s.n_pins), format_bytes(s.pin_bytes, d), s.n_holders, plural(s.n_holders));
    for (size_t i = 0; i < n; i++) print_exporter(&answers[i], &style, with_all);
    return finish_output(NAME);
}

static json_t *json_allocation(const struct lend_report_allocation *a) {
    json_t *o = json_object();
    json_object_set_new(o, "index", json_size(a->index));
    json_object_set_new(o, "gen", json_size(a->gen));
    json_object_set_new(o, "bytes", json_size(a->bytes));
    json_object_set_new(o, "used_bytes", json_size(a->used_bytes));
    json_object_set_new(o, "inode", json_size(a->inode));
    return o;
}

static json_t *json_storage(const struct lend_report *r, const struct lend_report_storage *s) {
    json_t *o = json_object(), *holders = json_array();
    json_object_set_new(o, "slot", json_size(s->slot));
    json_object_set_new(o, "gen", json_size(s->gen));
    json_object_set_new(o, "allocation", json_size(s->allocation));
    json_object_set_new(o, "offset", json_size(s->offset));
    json_object_set_new(o, "bytes", json_size(s->bytes));
    json_object_set_new(o, "pins", json_size(s->n_pins));
    json_object_set_new(o, "is_limbo", json_boolean(s->is_limbo));
    for (size_t i = 0; i < r->n_holds; i++) {
        if (r->holds[i].slot != s->slot) continue;
        json_t *h = json_object();
        json_object_set_new(h, "pid", json_size(r->holds[i].pid));
        json_object_set_new(h, "count", json_size(r->holds[i].count));
        json_array_append_new(holders, h);
    }
    json_object_set_new(o, "holders", holders);
    return o;
}

static json_t *json_pin(const struct lend_report *r, const struct lend_report_pin *p) {
    json_t *o = json_object();
    char token[FORMAT_BYTES];
    snprintf(token, sizeof token, "%#" PRIx64, p->token); /* 64 bits: more than JSON's readers keep in a number */
    json_object_set_new(o, "token", json_string(token));
    json_object_set_new(o, "bytes", json_size(p->bytes));
    json_object_set_new(o, "age_ns", json_size(p->age_ns));
    json_object_set_new(o, "slot", json_size(p->slot));
    json_object_set_new(o, "sender_pid", json_size(p->sender_pid ? p->sender_pid : r->totals.pid));
    return o;
}

static json_t *json_peer(const struct lend_report_peer *p) {
    json_t *o = json_object();
    json_object_set_new(o, "pid", json_size(p->pid));
    json_object_set_new(o, "command", json_text(p->command));
    json_object_set_new(o, "storages", json_size(p->n_storages));
    json_object_set_new(o, "bytes", json_size(p->bytes));
    json_object_set_new(o, "since_ns", json_size(p->since_ns));
    json_object_set_new(o, "age_ns", json_size(age_ns(p->since_ns)));
    return o;
}

static void json_set_report(json_t *o, const struct lend_report *r, bool with_all) {
    const struct lend_report_totals *t = &r->totals;
    json_t *allocations = json_array(), *pins = json_array(), *holders = json_array(), *storages = json_array();
    json_object_set_new(o, "pid", json_size(t->pid));
    json_object_set_new(o, "command", json_text(t->command));
    json_object_set_new(o, "up_ns", json_size(age_ns(t->start_ns)));
    json_object_set_new(o, "used_fds", json_size(t->used_fds));
    json_object_set_new(o, "limit_fds", json_size(t->limit_fds));
    json_object_set_new(o, "n_storages", json_size(t->n_storages));
    json_object_set_new(o, "storage_bytes", json_size(t->storage_bytes));
    json_object_set_new(o, "n_limbo", json_size(t->n_limbo));
    json_object_set_new(o, "limbo_bytes", json_size(t->limbo_bytes));
    for (size_t i = 0; i < r->n_allocations; i++)
        json_array_append_new(allocations, json_allocation(&r->allocations[i]));
    for (size_t i = 0; i < r->n_pins; i++) json_array_append_new(pins, json_pin(r, &r->pins[i]));
    for (size_t i = 0; i < r->n_peers; i++) json_array_append_new(holders, json_peer(&r->peers[i]));
    for (size_t i = 0; i < r->n_storages && with_all; i++)
        json_array_append_new(storages, json_storage(r, &r->storages[i]));
    json_object_set_new(o, "allocations", allocations);
    json_object_set_new(o, "pins", pins);
    json_object_set_new(o, "holders", holders);
    if (with_all)
        json_object_set_new(o, "storages", storages);
    else
        json_decref(storages);
}

static json_t *json_totals(const struct sums *s, size_t n) {
    json_t *o = json_object();
    json_object_set_new(o, "exporters", json_size(n));
    json_object_set_new(o, "not_answering", json_size(n - s->n_answering));
    json_object_set_new(o, "allocations", json_size(s->n_allocations));
    json_object_set_new(o, "allocation_bytes", json_size(s->allocation_bytes));
    json_object_set_new(o, "storages", json_size(s->n_storages));
    json_object_set_new(o, "storage_bytes", json_size(s->storage_bytes));
    json_object_set_new(o, "limbo", json_size(s->n_limbo));
    json_object_set_new(o, "limbo_bytes", json_size(s->limbo_bytes));
    json_object_set_new(o, "pins", json_size(s->n_pins));
    json_object_set_new(o, "pin_bytes", json_size(s->pin_bytes));
    json_object_set_new(o, "holders", json_size(s->n_holders));
    return o;
}

int ls_print_json(const struct answer *answers, size_t n, bool with_all) {
    json_t *root = json_object(), *exporters = json_array();
    struct sums s = sum_up(answers, n);
    json_object_set_new(root, "totals", json_totals(&s, n));
    for (size_t i = 0; i < n; i++) {
        const struct answer *a = &answers[i];
        json_t *o = json_object();
        json_object_set_new(o, "address", json_text(a->exporter.address));
        json_object_set_new(o, "is_answering", json_boolean(a->report != NULL));
        if (a->report)
            json_set_report(o, a->report, with_all);
        else
            json_object_set_new(o, "error", json_text(a->code == -ETIMEDOUT ? "not answering" : a->error.text));
        json_array_append_new(exporters, o);
    }
    json_object_set_new(root, "exporters", exporters);
    return json_print(NAME, root);
}
