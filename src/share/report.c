/* SPDX-License-Identifier: MIT */
/* The exporter's answer to REPORT. Everything is read under the ledger lock; a page's counts are its importer's words,
 * so they only fill records. */
#include "share/report.h"

#include "base/atomic.h"
#include "base/sys.h"
#include "share/context.h"
#include "share/ledger.h"
#include "share/shm.h"

#include <dirent.h>
#include <errno.h>
#include <lend/inspect.h>
#include <string.h>
#include <sys/resource.h>

#define LEDGER (&lend__ledger)

/* Where the records go. */
struct writer {
    uint8_t *at;
    size_t room, n_bytes;
    uint64_t n;
};

static bool put(struct writer *writer, const void *record, size_t bytes) {
    if (writer->room - writer->n_bytes < bytes) return false;
    memcpy(writer->at + writer->n_bytes, record, bytes);
    writer->n_bytes += bytes;
    writer->n++;
    return true;
}

static uint64_t count_fds(void) {
    DIR *dir = opendir("/proc/self/fd");
    uint64_t n = 0;
    while (dir && readdir(dir)) n++;
    if (dir) closedir(dir);
    return n > 3 ? n - 3 : 0; /* ".", ".." and the folder itself */
}

static uint64_t put_totals(struct writer *writer) {
    struct rlimit limit = {0};
    getrlimit(RLIMIT_NOFILE, &limit);
    struct lend_report_totals totals = {
        .pid = lend__context.identity.pid,
        .n_peers = LEDGER->n_pages,
        .start_ns = lend__context.identity.start_ns,
        .n_storages = LEDGER->n_lent,
        .storage_bytes = LEDGER->lent_bytes,
        .n_limbo = LEDGER->n_limbo,
        .limbo_bytes = LEDGER->limbo_bytes,
        .n_pins = LEDGER->n_pins,
        .pin_bytes = LEDGER->pin_bytes,
        .limit_fds = limit.rlim_cur,
        .used_fds = count_fds(),
        .is_answering = 1,
    };
    for (uint32_t i = 0; i < LEDGER->n_allocations; i++) {
        if (!LEDGER->allocations[i]) continue;
        totals.n_allocations++;
        totals.allocation_bytes += LEDGER->allocations[i]->extent.bytes;
    }
    put(writer, &totals, sizeof totals);
    return UINT64_MAX;
}

static uint64_t used_bytes(uint32_t index) {
    uint64_t bytes = 0;
    for (uint32_t slot = 0; slot < LEDGER->n_slots; slot++) {
        const struct lend__storage *storage = LEDGER->slots[slot].storage;
        if (storage && storage->block && storage->block->allocation->index == index) bytes += storage->bytes;
    }
    return bytes;
}

static uint64_t put_allocations(struct writer *writer, uint64_t from) {
    for (uint32_t i = (uint32_t)from; i < LEDGER->n_allocations; i++) {
        const struct lend__allocation *allocation = LEDGER->allocations[i];
        if (!allocation) continue;
        struct lend_report_allocation record = {.index = i,
                                                .gen = allocation->gen,
                                                .bytes = allocation->extent.bytes,
                                                .used_bytes = used_bytes(i),
                                                .inode = allocation->extent.inode,
                                                .is_file = allocation->extent.is_file};
        if (!put(writer, &record, sizeof record)) return i;
    }
    return UINT64_MAX;
}

/* From the oldest on; the cursor is a position. */
static uint64_t put_pins(struct writer *writer, uint64_t from) {
    uint64_t now = lend__boottime_ns(), at = 0;
    for (const struct lend__pin *pin = LEDGER->oldest_pin; pin; pin = pin->newer, at++) {
        if (at < from) continue;
        struct lend_report_pin record = {.token = pin->token,
                                         .bytes = pin->bytes,
                                         .age_ns = now - pin->made_ns,
                                         .slot = pin->slots[0],
                                         .n_storages = pin->n_slots,
                                         .sender_pid = pin->sender_page == LEND__PAGE_NONE ? 0 : pin->sender_pid};
        if (!put(writer, &record, sizeof record)) return at;
    }
    return UINT64_MAX;
}

static bool has_chunk(const struct lend__page *page, uint32_t slot) {
    uint32_t chunk = slot / LEND_SHM_CHUNK_SLOTS;
    return lend__load_relaxed(&page->shm->chunks[chunk / 64]) >> chunk % 64 & 1;
}

static uint64_t put_peers(struct writer *writer, uint64_t from) {
    for (uint32_t i = (uint32_t)from; i < LEDGER->n_pages; i++) {
        const struct lend__page *page = LEDGER->pages[i];
        struct lend_report_peer record = {.pid = lend__page_pid(page), .since_ns = page->since_ns};
        for (uint32_t slot = 0; slot < LEDGER->n_slots; slot++) {
            if (!has_chunk(page, slot)) {
                slot |= LEND_SHM_CHUNK_SLOTS - 1; /* on to the next chunk */
                continue;
            }
            const struct lend__storage *storage = LEDGER->slots[slot].storage;
            if (!storage || !lend__page_held(page, slot)) continue;
            record.n_storages++;
            record.bytes += storage->bytes;
        }
        if (!put(writer, &record, sizeof record)) return i;
    }
    return UINT64_MAX;
}

static uint64_t put_storages(struct writer *writer, uint64_t from) {
    for (uint32_t slot = (uint32_t)from; slot < LEDGER->n_slots; slot++) {
        const struct lend__slot *mine = &LEDGER->slots[slot];
        if (!mine->storage) continue;
        const struct lend__block *block = mine->storage->block;
        struct lend_report_storage record = {.slot = slot,
                                             .allocation = block ? block->allocation->index : UINT32_MAX,
                                             .gen = mine->gen,
                                             .offset = block ? block->off : 0,
                                             .bytes = mine->storage->bytes,
                                             .n_pins = mine->n_pins,
                                             .is_limbo = mine->is_limbo};
        for (uint32_t i = 0; i < LEDGER->n_pages; i++) record.n_holders += lend__page_held(LEDGER->pages[i], slot) != 0;
        if (!put(writer, &record, sizeof record)) return slot;
    }
    return UINT64_MAX;
}

/* The cursor is page << 32 | slot. */
static uint64_t put_holds(struct writer *writer, uint64_t from) {
    for (uint32_t i = (uint32_t)(from >> 32), first = (uint32_t)from; i < LEDGER->n_pages; i++, first = 0)
        for (uint32_t slot = first; slot < LEDGER->n_slots; slot++) {
            uint32_t count = LEDGER->slots[slot].storage ? lend__page_held(LEDGER->pages[i], slot) : 0;
            if (!count) continue;
            struct lend_report_hold record = {.slot = slot, .pid = lend__page_pid(LEDGER->pages[i]), .count = count};
            if (!put(writer, &record, sizeof record)) return (uint64_t)i << 32 | slot;
        }
    return UINT64_MAX;
}

size_t lend__report_fill(const struct lend__control_request *request, struct lend__control_reply *reply, void *records,
                         size_t room) {
    struct writer writer = {.at = records, .room = room};
    if (request->layout != lend__shm_layout()) {
        reply->code = -EPROTONOSUPPORT;
        return 0;
    }
    uint64_t from = request->report_from;
    lend__ledger_lock();
    switch (request->report_part) {
    case LEND__REPORT_TOTALS:
        for (uint32_t i = 0; i < LEDGER->n_pages; i++) lend__page_drain(LEDGER->pages[i]); /* figures of now */
        reply->report_next = put_totals(&writer);
        break;
    case LEND__REPORT_ALLOCATIONS: reply->report_next = put_allocations(&writer, from); break;
    case LEND__REPORT_PINS: reply->report_next = put_pins(&writer, from); break;
    case LEND__REPORT_PEERS: reply->report_next = put_peers(&writer, from); break;
    case LEND__REPORT_STORAGES: reply->report_next = put_storages(&writer, from); break;
    case LEND__REPORT_HOLDS: reply->report_next = put_holds(&writer, from); break;
    default: reply->code = -EBADMSG; break;
    }
    lend__ledger_unlock();
    reply->n_records = writer.n;
    return writer.n_bytes;
}
