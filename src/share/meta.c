/* SPDX-License-Identifier: MIT */
/* The table of meta storages that have a name: a hash of records, each over a living storage. A record goes with its
 * storage (private_release), so the table never keeps one alive. It grows with the records, and names are hashed with a
 * key, since both come with handles: any number of them, chosen by anybody.
 *
 * Locking: the import lock, which is held across fork. A storage whose count has just reached 0 may still be found
 * here: lend__storage_ref_unless_zero says so, and the next one takes its place. */
#include "share/meta.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/sys.h"
#include "share/context.h"
#include "share/peer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_ROOM 64

struct record {
    struct lend__identity identity;
    uint64_t number;
    struct lend__storage *storage;
    struct record *next;
};

static struct {
    struct record **buckets; /* NULL: there are no records */
    uint64_t room, n;        /* room: a power of two */
    uint64_t key;
} table;
static uint64_t n_named; /* in this process; with its id, which changes in a forked child, never the same twice */

static struct record **bucket_of(const uint8_t id[LEND__ID_BYTES], uint64_t number) {
    uint64_t words[3] = {0, 0, number}, hash = table.key;
    memcpy(words, id, LEND__ID_BYTES);
    for (int i = 0; i < 3; i++) hash = lend__hash_fold(hash ^ words[i], table.key ^ 0x9e3779b97f4a7c15ull);
    return &table.buckets[hash & (table.room - 1)];
}

/* Makes room for one more; afterwards there are buckets. Locked. */
static int make_room(void) {
    if (table.n < table.room) return 0;
    struct record **old = table.buckets, **fresh;
    uint64_t old_room = table.room, room = old_room ? old_room * 2 : FIRST_ROOM;
    fresh = lend__zalloc(room * sizeof(struct record *));
    if (!fresh) return old ? 0 : -ENOMEM; /* longer chains are no failure */
    if (!old && lend__sys.getrandom(&table.key, sizeof table.key) < 0) table.key = (uintptr_t)fresh;
    table.buckets = fresh;
    table.room = room;
    for (uint64_t i = 0; old && i < old_room; i++) {
        for (struct record *record = old[i], *next; record; record = next) {
            struct record **bucket = bucket_of(record->identity.id, record->number);
            next = record->next;
            record->next = *bucket;
            *bucket = record;
        }
    }
    free(old);
    return 0;
}

static void forget(void *ctx) {
    struct record *record = ctx, **done = NULL;
    lend__import_lock();
    struct record **at = bucket_of(record->identity.id, record->number);
    while (*at != record) at = &(*at)->next;
    *at = record->next;
    if (!--table.n) {
        done = table.buckets;
        table.buckets = NULL;
        table.room = 0;
    }
    lend__import_unlock();
    free(record);
    free(done);
}

/* Locked, with room. */
static void insert(struct record *record, const struct lend__identity *identity, uint64_t number,
                   struct lend__storage *storage) {
    struct record **bucket = bucket_of(identity->id, number);
    *record = (struct record){*identity, number, storage, *bucket};
    *bucket = record;
    table.n++;
    storage->private_ctx = record;
    storage->private_release = forget;
    lend__store_relaxed(&storage->is_shared, true);
}

int lend__meta_name(struct lend__storage *storage, struct lend__identity *ret_identity, uint64_t *ret_number) {
    void *fresh = NULL;
    if (lend__sys.realloc(NULL, sizeof(struct record), &fresh) < 0) return -ENOMEM;
    lend__import_lock();
    int r = storage->private_ctx ? 0 : make_room();
    if (r >= 0 && !storage->private_ctx) {
        insert(fresh, &lend__context.identity, ++n_named, storage);
        fresh = NULL;
    }
    const struct record *record = storage->private_ctx;
    if (record) {
        *ret_identity = record->identity;
        *ret_number = record->number;
    }
    lend__import_unlock();
    free(fresh);
    return r;
}

static struct lend__storage *find(const uint8_t id[LEND__ID_BYTES], uint64_t number) {
    if (!table.buckets) return NULL;
    for (struct record *record = *bucket_of(id, number); record; record = record->next)
        if (record->number == number && !memcmp(record->identity.id, id, LEND__ID_BYTES) &&
            lend__storage_ref_unless_zero(record->storage))
            return record->storage;
    return NULL;
}

static int no_memory(struct record *record, struct lend__storage *fresh, struct lend_error *error) {
    free(record);
    lend__storage_unref(fresh);
    return lend__fail(error, -ENOMEM, "lend_rebuild", "no memory for the record of a meta storage");
}

int lend__meta_obtain(const struct lend__identity *identity, const struct lend__wire_storage *wire,
                      struct lend__storage **ret, struct lend_error *error) {
    struct lend__storage *fresh = NULL;
    void *record = NULL;
    int r = lend__storage_new_empty(LEND__STORAGE_META, wire->bytes, &fresh, error);
    if (r < 0) return r;
    if (lend__sys.realloc(NULL, sizeof(struct record), &record) < 0) return no_memory(NULL, fresh, error);
    lend__import_lock();
    struct lend__storage *living = find(identity->id, wire->slot_gen);
    r = living ? 0 : make_room();
    if (r >= 0 && !living) insert(record, identity, wire->slot_gen, fresh);
    lend__import_unlock();
    if (r < 0) return no_memory(record, fresh, error);
    if (!living) {
        *ret = fresh;
        return 0;
    }
    free(record);
    lend__storage_unref(fresh);
    *ret = living;
    if (living->bytes == wire->bytes) return 0;
    *ret = NULL;
    r = lend__fail(error, -EBADMSG, "lend_rebuild", "the handle says %llu bytes of a meta storage that has %llu here",
                   (unsigned long long)wire->bytes, (unsigned long long)living->bytes);
    lend__storage_unref(living);
    return r;
}
