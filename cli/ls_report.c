/* SPDX-License-Identifier: MIT */
/* Reports in the order that printing needs, so that an exporter with very many storages and holds is printed in one
 * walk over both; searches in them; and sums over all. */
#include "ls.h"

#include <stdlib.h>
#include <time.h>

static int compare(uint64_t a, uint64_t b) {
    return a < b ? -1 : a > b;
}

static int storage_by_slot(const void *left, const void *right) {
    const struct lend_report_storage *a = left, *b = right;
    return compare(a->slot, b->slot);
}

static int hold_by_slot(const void *left, const void *right) {
    const struct lend_report_hold *a = left, *b = right;
    return a->slot != b->slot ? compare(a->slot, b->slot) : compare(a->pid, b->pid);
}

static int peer_by_pid(const void *left, const void *right) {
    const struct lend_report_peer *a = left, *b = right;
    return compare(a->pid, b->pid);
}

static int pin_by_sender(const void *left, const void *right) {
    const struct lend_report_pin *a = left, *b = right;
    return a->sender_pid != b->sender_pid ? compare(a->sender_pid, b->sender_pid) : compare(b->age_ns, a->age_ns);
}

static void sort(void *array, size_t n, size_t bytes, int (*by)(const void *, const void *)) {
    if (n) qsort(array, n, bytes, by); /* an empty array may be NULL, which qsort does not allow */
}

void ls_sort(struct lend_report *r) {
    sort(r->storages, r->n_storages, sizeof *r->storages, storage_by_slot);
    sort(r->holds, r->n_holds, sizeof *r->holds, hold_by_slot);
    sort(r->peers, r->n_peers, sizeof *r->peers, peer_by_pid);
    sort(r->pins, r->n_pins, sizeof *r->pins, pin_by_sender);
}

size_t ls_holds_find(const struct lend_report *r, uint32_t slot, size_t *at) {
    while (*at < r->n_holds && r->holds[*at].slot < slot) ++*at;
    size_t end = *at;
    while (end < r->n_holds && r->holds[end].slot == slot) end++;
    return end;
}

const struct lend_report_peer *ls_peer_find(const struct lend_report *r, uint32_t pid) {
    const struct lend_report_peer wanted = {.pid = pid};
    return r->n_peers ? bsearch(&wanted, r->peers, r->n_peers, sizeof *r->peers, peer_by_pid) : NULL;
}

bool ls_has_memory(const struct lend_report_storage *storage) {
    return storage->allocation != UINT32_MAX;
}

struct ls_sums ls_sum_up(const struct answer *answers, size_t n) {
    struct ls_sums s = {.n_answering = 0};
    for (size_t i = 0; i < n; i++) {
        const struct lend_report *r = answers[i].report;
        if (!r) continue;
        s.n_answering++;
        s.n_allocations += r->totals.n_allocations;
        s.allocation_bytes += r->totals.allocation_bytes;
        s.n_storages += r->totals.n_storages;
        s.storage_bytes += r->totals.storage_bytes;
        s.n_limbo += r->totals.n_limbo;
        s.limbo_bytes += r->totals.limbo_bytes;
        s.n_pins += r->totals.n_pins;
        s.pin_bytes += r->totals.pin_bytes;
        for (size_t k = 0; k < r->n_peers; k++) {
            s.n_holders += r->peers[k].n_storages != 0;
            s.n_contacts += r->peers[k].n_storages == 0;
        }
    }
    return s;
}

uint64_t ls_age_ns(uint64_t since_ns) {
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    uint64_t now = (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
    return now > since_ns ? now - since_ns : 0;
}
