/* SPDX-License-Identifier: MIT */
/* How `lend ls` prints exporters as JSON: one object, whose numbers are exact. Reports are sorted (ls_report.c), so the
 * holders of a storage are found by walking along. */
#include "cli.h"
#include "ls.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#define NAME "ls"

static json_t *json_allocation(const struct lend_report_allocation *a) {
    json_t *o = json_object();
    json_object_set_new(o, "index", json_size(a->index));
    json_object_set_new(o, "gen", json_size(a->gen));
    json_object_set_new(o, "bytes", json_size(a->bytes));
    json_object_set_new(o, "used_bytes", json_size(a->used_bytes));
    json_object_set_new(o, "inode", json_size(a->inode));
    json_object_set_new(o, "is_file", json_boolean(a->is_file));
    return o;
}

/* at: where the holds of this storage begin or before; moved behind them. */
static json_t *json_storage(const struct lend_report *r, const struct lend_report_storage *s, size_t *at) {
    json_t *o = json_object(), *holders = json_array();
    json_object_set_new(o, "slot", json_size(s->slot));
    json_object_set_new(o, "gen", json_size(s->gen));
    json_object_set_new(o, "allocation", ls_has_memory(s) ? json_size(s->allocation) : json_null());
    json_object_set_new(o, "offset", json_size(s->offset));
    json_object_set_new(o, "bytes", json_size(s->bytes));
    json_object_set_new(o, "pins", json_size(s->n_pins));
    json_object_set_new(o, "is_limbo", json_boolean(s->is_limbo));
    for (size_t end = ls_holds_find(r, s->slot, at); *at < end; ++*at) {
        const struct lend_report_hold *hold = &r->holds[*at];
        const struct lend_report_peer *peer = ls_peer_find(r, hold->pid);
        json_t *h = json_object();
        json_object_set_new(h, "pid", json_size(hold->pid));
        json_object_set_new(h, "count", json_size(hold->count));
        json_object_set_new(h, "command", peer ? json_text(peer->command) : json_null());
        json_object_set_new(h, "since_ns", peer ? json_size(peer->since_ns) : json_null());
        json_object_set_new(h, "age_ns", peer ? json_size(ls_age_ns(peer->since_ns)) : json_null());
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
    json_object_set_new(o, "storages", json_size(p->n_storages));
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
    json_object_set_new(o, "age_ns", json_size(ls_age_ns(p->since_ns)));
    return o;
}

static void json_set_report(json_t *o, const struct lend_report *r, bool with_all) {
    const struct lend_report_totals *t = &r->totals;
    json_t *allocations = json_array(), *pins = json_array(), *storages = json_array();
    json_t *holders = json_array(), *contacts = json_array();
    size_t at = 0;
    json_object_set_new(o, "pid", json_size(t->pid));
    json_object_set_new(o, "command", json_text(t->command));
    json_object_set_new(o, "up_ns", json_size(ls_age_ns(t->start_ns)));
    json_object_set_new(o, "used_fds", json_size(t->used_fds));
    json_object_set_new(o, "limit_fds", json_size(t->limit_fds));
    json_object_set_new(o, "n_storages", json_size(t->n_storages));
    json_object_set_new(o, "storage_bytes", json_size(t->storage_bytes));
    json_object_set_new(o, "n_limbo", json_size(t->n_limbo));
    json_object_set_new(o, "limbo_bytes", json_size(t->limbo_bytes));
    for (size_t i = 0; i < r->n_allocations; i++)
        json_array_append_new(allocations, json_allocation(&r->allocations[i]));
    for (size_t i = 0; i < r->n_pins; i++) json_array_append_new(pins, json_pin(r, &r->pins[i]));
    for (size_t i = 0; i < r->n_peers; i++)
        json_array_append_new(r->peers[i].n_storages ? holders : contacts, json_peer(&r->peers[i]));
    for (size_t i = 0; i < r->n_storages && with_all; i++)
        json_array_append_new(storages, json_storage(r, &r->storages[i], &at));
    json_object_set_new(o, "allocations", allocations);
    json_object_set_new(o, "pins", pins);
    json_object_set_new(o, "holders", holders);
    json_object_set_new(o, "contacts", contacts);
    if (with_all)
        json_object_set_new(o, "storages", storages);
    else
        json_decref(storages);
}

static json_t *json_totals(const struct ls_sums *s, size_t n) {
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
    json_object_set_new(o, "contacts", json_size(s->n_contacts));
    return o;
}

int ls_print_json(const struct answer *answers, size_t n, bool with_all) {
    json_t *root = json_object(), *exporters = json_array();
    struct ls_sums s = ls_sum_up(answers, n);
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
        if (a->silent_pid) {
            json_object_set_new(o, "pid", json_size(a->silent_pid));
            json_object_set_new(o, "command", json_text(a->silent_command));
        }
        json_array_append_new(exporters, o);
    }
    json_object_set_new(root, "exporters", exporters);
    return json_print(NAME, root);
}
