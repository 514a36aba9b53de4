/* SPDX-License-Identifier: MIT */
/* Contact with an exporter: identities, table, page and the first allocation in one round trip; later allocations,
 * spare pages, pins and cancels in one each (call.c). All or nothing, one deadline; what comes back is checked against
 * the real objects before it is mapped, and put in its place under one hold of the import lock. */
#include "base/error.h"
#include "base/point.h"
#include "base/sys.h"
#include "share/call.h"
#include "share/context.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define OPERATION "lend_rebuild"

static int map_table(int fd, const uint8_t id[LEND__ID_BYTES], struct lend_shm_table **ret) {
    int r = lend__call_check_sealed(fd, LEND_SHM_TABLE_BYTES);
    if (r < 0) return r;
    void *at = NULL;
    long n = lend__sys.mmap(NULL, LEND_SHM_TABLE_BYTES, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0, &at);
    if (n < 0) return (int)n;
    struct lend_shm_table *table = at;
    if (table->magic != LEND_SHM_TABLE_MAGIC || table->layout != lend__shm_layout() ||
        memcmp(table->exporter_id, id, LEND__ID_BYTES) != 0) {
        lend__sys.munmap(at, LEND_SHM_TABLE_BYTES);
        return -EBADMSG;
    }
    *ret = table;
    return 0;
}

/* Maps the allocation that a storage lies in. What it is, the table says (I-5: the real object is checked against that).
 * The region lock is outermost, so without the import lock. fd is consumed on success. */
static int map_allocation(struct lend__peer *peer, const struct lend_shm_table *table,
                          const struct lend__contact_request *wanted, int *fd, struct lend__mapping **ret,
                          struct lend_error *error) {
    if (wanted->allocation == LEND__CONTROL_NONE) return 0;
    if (wanted->allocation >= LEND_SHM_ALLOCATIONS_MAX || *fd < 0)
        return lend__call_explain(peer, -EBADMSG, NULL, OPERATION, error);
    struct lend_shm_allocation *entry = &lend__shm_allocations(table)[wanted->allocation];
    const uint64_t living = (uint64_t)wanted->allocation_gen << 1;
    bool is_living = lend__load_acquire(&entry->state) == living;
    struct lend__mapping_request request = {.peer = peer,
                                            .index = wanted->allocation,
                                            .gen = wanted->allocation_gen,
                                            .fd_offset = entry->fd_offset,
                                            .bytes = entry->bytes,
                                            .flags = entry->flags};
    /* The fields change only while the state says retired: the same state before and after vouches for them. */
    if (!is_living || lend__load_seq_cst(&entry->state) != living)
        return lend__call_explain(peer, -ESTALE, NULL, OPERATION, error);
    /* Not even its size is asked for: it may lie on a file system that never answers. */
    if ((request.flags & LEND_SHM_ALLOCATION_FILE) && !wanted->accepts_files)
        return lend__refuse_file(OPERATION, error);
    return lend__mapping_new(&request, fd, ret, error);
}

/* Puts a mapping into its place; one that is there already (of an older, retired generation) must hold nothing. */
static int install_mapping(struct lend__peer *peer, struct lend__mapping **mapping, struct lend__mapping **ret_old) {
    if (!*mapping) return 0;
    uint32_t index = (*mapping)->index;
    int r = lend__peer_room_mappings(peer, index);
    if (r < 0) return r;
    struct lend__mapping *old = peer->mappings[index];
    if (old && old->gen == (*mapping)->gen && !old->is_given) { /* inherited; now our own page has been given it, too */
        old->is_given = true;
        *ret_old = *mapping;
        *mapping = NULL;
        return 0;
    }
    if (old && old->n_storages) return -EBADMSG; /* an exporter that gives one index twice */
    *ret_old = old;
    peer->mappings[index] = *mapping;
    *mapping = NULL;
    return 0;
}

static int install_contact(struct lend__peer *peer, struct lend__answer *answer, struct lend_shm_table *table,
                           struct lend__mapping *mapping) {
    struct lend__mapping *old = NULL;
    lend__import_lock();
    int r = install_mapping(peer, &mapping, &old);
    if (r >= 0 && table) {
        peer->table = table;
        peer->table_fd = LEND__TAKE_FD(answer->table_fd);
        peer->seen_retired = lend__load_acquire(&table->n_retired);
    }
    if (r >= 0 && answer->reply.has_page) {
        peer->page = peer->pending_page;
        peer->page_index = answer->reply.page_index;
        peer->page_nonce = answer->reply.page_nonce;
        peer->pending_page = NULL;
        peer->ring_head = 0;
    }
    lend__import_unlock();
    lend__mapping_free(r < 0 ? mapping : old);
    LEND_POINT("C7.installed");
    return r;
}

static int first_contact(struct lend__peer *peer, const struct lend__contact_request *wanted,
                         struct lend_error *error) {
    struct lend__answer answer;
    struct lend__control_request hello = lend__call_request(peer, LEND__CONTROL_HELLO);
    hello.allocation = wanted->allocation;
    hello.allocation_gen = wanted->allocation_gen;
    lend__call_disconnect(peer); /* a greeted connection whose page we no longer have would be refused */
    int r = lend__peer_call(peer, &hello, &answer, wanted->deadline, OPERATION, error);
    if (r < 0) return r;
    struct lend_shm_table *table = NULL;
    struct lend__mapping *mapping = NULL;
    if (!answer.reply.has_page || (!answer.reply.has_table && !peer->table))
        r = lend__call_explain(peer, -EBADMSG, NULL, OPERATION, error);
    if (r >= 0 && !peer->table && (r = map_table(answer.table_fd, peer->id, &table)) < 0)
        lend__call_explain(peer, r, NULL, OPERATION, error);
    if (r >= 0) r = map_allocation(peer, table ? table : peer->table, wanted, &answer.allocation_fd, &mapping, error);
    if (r >= 0 && (r = install_contact(peer, &answer, table, mapping)) < 0) {
        lend__call_explain(peer, r, NULL, OPERATION, error);
        mapping = NULL;
    }
    if (r < 0) {
        if (table) lend__sys.munmap(table, LEND_SHM_TABLE_BYTES);
        lend__call_disconnect(peer);
    }
    lend__answer_drop(peer, &answer);
    return r;
}

static int more_contact(struct lend__peer *peer, const struct lend__contact_request *wanted, struct lend_error *error) {
    struct lend__answer answer;
    struct lend__control_request request = lend__call_request(peer, LEND__CONTROL_ALLOCATION);
    request.allocation = wanted->allocation;
    request.allocation_gen = wanted->allocation_gen;
    int r = lend__peer_call(peer, &request, &answer, wanted->deadline, OPERATION, error);
    if (r < 0) return r;
    struct lend__mapping *mapping = NULL;
    r = map_allocation(peer, peer->table, wanted, &answer.allocation_fd, &mapping, error);
    if (r >= 0 && (r = install_contact(peer, &answer, NULL, mapping)) < 0)
        lend__call_explain(peer, r, NULL, OPERATION, error);
    lend__answer_drop(peer, &answer);
    return r;
}

int lend__contact(struct lend__peer *peer, const struct lend__contact_request *wanted, struct lend_error *error) {
    if (memcmp(wanted->exporter->identity.boot_id, lend__context.identity.boot_id, LEND__ID_BYTES) != 0)
        return lend__fail(error, -EREMOTE, OPERATION,
                          "the handle was made on another host (or before a reboot), and there is no gateway; send the "
                          "bytes instead");
    int r = lend__peer_begin_call(peer, wanted->deadline);
    if (r < 0) return lend__call_explain(peer, r, NULL, OPERATION, error);
    lend__import_lock();
    bool has_page = peer->page != NULL;
    bool has_all = has_page && (wanted->allocation == LEND__CONTROL_NONE ||
                                lend__peer_mapping(peer, wanted->allocation, wanted->allocation_gen));
    lend__import_unlock();
    if (!has_all) {
        if (lend__peer_is_dead(peer))
            r = lend__call_explain(peer, -EOWNERDEAD, NULL, OPERATION, error);
        else
            r = has_page ? more_contact(peer, wanted, error) : first_contact(peer, wanted, error);
    }
    lend__peer_end_call(peer);
    return r;
}

int lend__contact_frozen(struct lend__peer *peer, const struct lend__contact_request *wanted, int *table_fd,
                         int *allocation_fd, struct lend_error *error) {
    struct lend_shm_table *table = NULL;
    struct lend__mapping *mapping = NULL;
    int r = lend__peer_begin_call(peer, UINT64_MAX);
    if (r < 0) return lend__call_explain(peer, r, NULL, OPERATION, error);
    if (!peer->table && (r = map_table(*table_fd, peer->id, &table)) < 0)
        lend__call_explain(peer, r, NULL, OPERATION, error);
    /* A table that we have already speaks for itself; one without a lock cannot say that its exporter is dead, and
     * without that there is no telling what the word is worth. */
    if (r >= 0 && (table ? !table->has_lock : !lend__peer_is_dead(peer)))
        r = lend__call_explain(peer, -EOWNERDEAD, NULL, OPERATION, error);
    lend__import_lock();
    bool has_mapping = lend__peer_mapping(peer, wanted->allocation, wanted->allocation_gen) != NULL;
    lend__import_unlock();
    if (r >= 0 && !has_mapping)
        r = map_allocation(peer, table ? table : peer->table, wanted, allocation_fd, &mapping, error);
    if (r >= 0) {
        struct lend__answer answer = {.table_fd = table ? LEND__TAKE_FD(*table_fd) : -1, .allocation_fd = -1};
        lend__store_release(&peer->is_dead, true);
        r = install_contact(peer, &answer, table, mapping);
        if (r < 0) lend__call_explain(peer, r, NULL, OPERATION, error);
        lend__fd_close(&answer.table_fd);
    }
    if (r < 0 && table) lend__sys.munmap(table, LEND_SHM_TABLE_BYTES);
    lend__peer_end_call(peer);
    return r;
}

/* --- pins, spares, kicks ------------------------------------------------------------------------------------------ */

/* A round trip whose answer is only a code and a token. */
static int simple_call(struct lend__peer *peer, struct lend__control_request *request, uint64_t deadline,
                       uint64_t *ret_token, const char *operation, struct lend_error *error) {
    struct lend__answer answer;
    int r = lend__peer_call(peer, request, &answer, deadline, operation, error);
    if (r < 0) return r;
    if (ret_token) *ret_token = answer.reply.token;
    lend__answer_drop(peer, &answer);
    return 0;
}

/* A message of requests fits the service's buffer; what does not is added to the same token. */
static int pin_some(struct lend__peer *peer, const struct lend__control_slot *slots, uint32_t n, uint64_t ns_max,
                    uint64_t deadline, uint64_t *token, struct lend_error *error) {
    struct {
        struct lend__control_request request;
        struct lend__control_slot slots[LEND__CONTROL_SLOTS_MAX];
    } message = {.request = lend__call_request(peer, LEND__CONTROL_PIN)};
    message.request.token = *token;
    message.request.pin_ns_max = ns_max;
    message.request.bytes = (uint32_t)(sizeof message.request + n * sizeof *slots);
    memcpy(message.slots, slots, n * sizeof *slots);
    return simple_call(peer, &message.request, deadline, token, "lend_reduce", error);
}

int lend__contact_pin(struct lend__peer *peer, const struct lend__control_slot *slots, uint32_t n, uint64_t ns_max,
                      uint64_t deadline, uint64_t *ret_token, struct lend_error *error) {
    int r = lend__peer_begin_call(peer, deadline);
    if (r < 0) return lend__call_explain(peer, r, NULL, "lend_reduce", error);
    uint64_t token = 0;
    for (uint32_t done = 0, some; r >= 0 && done < n; done += some) {
        some = n - done < LEND__CONTROL_SLOTS_MAX ? n - done : LEND__CONTROL_SLOTS_MAX;
        r = lend__peer_is_dead(peer) ? lend__call_explain(peer, -EOWNERDEAD, NULL, "lend_reduce", error)
                                     : pin_some(peer, slots + done, some, ns_max, deadline, &token, error);
    }
    lend__peer_end_call(peer);
    if (r >= 0)
        *ret_token = token;
    else if (token)
        (void)lend__contact_cancel(peer, token, deadline, NULL);
    return r;
}

int lend__contact_cancel(struct lend__peer *peer, uint64_t token, uint64_t deadline, struct lend_error *error) {
    int r = lend__peer_begin_call(peer, deadline);
    if (r < 0) return lend__call_explain(peer, r, NULL, "lend_pin_cancel", error);
    struct lend__control_request request = lend__call_request(peer, LEND__CONTROL_CANCEL);
    request.token = token;
    r = lend__peer_is_dead(peer) ? lend__call_explain(peer, -EOWNERDEAD, NULL, "lend_pin_cancel", error)
                                 : simple_call(peer, &request, deadline, NULL, "lend_pin_cancel", error);
    lend__peer_end_call(peer);
    return r;
}

void lend__peer_get_spare(struct lend__peer *peer, uint64_t deadline) {
    if (lend__peer_begin_call(peer, deadline) < 0) return;
    struct lend__answer answer;
    struct lend__control_request request = lend__call_request(peer, LEND__CONTROL_SPARE);
    if (peer->page && !lend__peer_is_dead(peer) &&
        lend__peer_call(peer, &request, &answer, deadline, "fork", NULL) >= 0) {
        lend__import_lock();
        peer->spare = (struct lend__spare){peer->pending_page, answer.reply.page_index, answer.reply.page_nonce};
        peer->pending_page = NULL;
        lend__import_unlock();
        lend__answer_drop(peer, &answer);
    }
    lend__peer_end_call(peer);
}

void lend__peer_kick(struct lend__peer *peer) {
    if (peer->connection_fd < 0) return;
    struct lend__control_request kick = {.magic = LEND__CONTROL_MAGIC,
                                         .type = LEND__CONTROL_KICK,
                                         .major = LEND_WIRE_MAJOR,
                                         .bytes = sizeof kick,
                                         .allocation = LEND__CONTROL_NONE,
                                         .page_index = LEND__CONTROL_NONE};
    lend__control_send(peer->connection_fd, &kick, sizeof kick, NULL, 0);
}
