/* SPDX-License-Identifier: MIT */
/* Pins: tokens that keep storages alive for one delivery each. All of them stand in the exporter's ledger, also those
 * that importers ask for (docs/decisions/0004), so a forwarder's death loses none. Everything here runs under the
 * ledger lock.
 *
 * A token is never repeated, and it cannot be guessed from another: it is a serial number sent through a keyed
 * bijection, so that a peer that writes nonsense into its cells ends nobody else's delivery (L-4). */
#include "base/error.h"
#include "base/point.h"
#include "base/sys.h"
#include "share/context.h"
#include "share/ledger.h"

#include <errno.h>
#include <lend/group.h>
#include <lend/watch.h>
#include <stdlib.h>
#include <string.h>

#define LEDGER (&lend__ledger)

/* Four Feistel rounds over 32-bit halves: a permutation of the 64-bit serials, whatever the round function. */
static uint64_t scramble(uint64_t serial, uint64_t key) {
    uint32_t left = (uint32_t)(serial >> 32), right = (uint32_t)serial;
    for (uint32_t round = 0; round < 4; round++) {
        uint64_t x = (right ^ key) * 0x9e3779b97f4a7c15ull + round;
        x = (x ^ x >> 29) * (key | 1);
        uint32_t next = left ^ (uint32_t)(x >> 32);
        left = right;
        right = next;
    }
    return (uint64_t)left << 32 | right;
}

static uint64_t next_token(void) {
    uint64_t token;
    do token = scramble(++LEDGER->n_pins_made, LEDGER->pin_key);
    while (!token); /* 0 means "no pin" on the wire */
    return token;
}

static struct lend__pin **bucket(uint64_t token) {
    return &LEDGER->pin_hash[(token * 0x9e3779b97f4a7c15ull >> 32) & (LEDGER->pin_hash_room - 1)];
}

/* Doubles the hash when it holds as many pins as buckets. */
static int make_room(void) {
    if (LEDGER->n_pins < LEDGER->pin_hash_room) return 0;
    uint32_t room = LEDGER->pin_hash_room ? LEDGER->pin_hash_room * 2 : 64;
    struct lend__pin **fresh = lend__zalloc(room * sizeof *fresh);
    if (!fresh) return -ENOMEM;
    free(LEDGER->pin_hash);
    LEDGER->pin_hash = fresh;
    LEDGER->pin_hash_room = room;
    for (struct lend__pin *pin = LEDGER->oldest_pin; pin; pin = pin->newer) {
        struct lend__pin **b = bucket(pin->token);
        pin->hash_next = *b;
        *b = pin;
    }
    return 0;
}

static void unlink_pin(struct lend__pin *pin) {
    struct lend__pin **at = bucket(pin->token);
    while (*at != pin) at = &(*at)->hash_next;
    *at = pin->hash_next;
    *(pin->older ? &pin->older->newer : &LEDGER->oldest_pin) = pin->newer;
    *(pin->newer ? &pin->newer->older : &LEDGER->newest_pin) = pin->older;
    LEDGER->n_pins--;
    if (pin->expires_ns != UINT64_MAX) LEDGER->n_pins_expiring--;
    LEDGER->pin_bytes -= pin->bytes;
}

static int refuse_over_budget(uint64_t bytes, struct lend_error *error) {
    const struct lend__pin *oldest = LEDGER->oldest_pin;
    uint64_t left = lend__context.pin_bytes_max - LEDGER->pin_bytes;
    lend__ledger_note(LEND_WATCH_PIN_EXCEEDED, oldest ? oldest->sender_pid : 0, LEDGER->pin_bytes);
    if (!oldest)
        return lend__fail_bytes(error, -ENOSPC, "lend_reduce", bytes, left,
                                "a pin of %llu bytes is more than the pin budget of %llu bytes; raise pin_bytes_max",
                                (unsigned long long)bytes, (unsigned long long)lend__context.pin_bytes_max);
    return lend__fail_bytes(error, -ENOSPC, "lend_reduce", bytes, left,
                            "live pins hold %llu of %llu bytes, so %llu more do not fit; the oldest (pid %u, slot %u, "
                            "%llu ms old) waits for its delivery: rebuild or cancel it, or raise pin_bytes_max",
                            (unsigned long long)LEDGER->pin_bytes, (unsigned long long)lend__context.pin_bytes_max,
                            (unsigned long long)bytes, oldest->sender_pid, oldest->slots[0],
                            (unsigned long long)((lend__boottime_ns() - oldest->made_ns) / 1000000));
}

static struct lend__pin *find_pin(uint64_t token) {
    struct lend__pin *pin = LEDGER->pin_hash_room ? *bucket(token) : NULL;
    while (pin && pin->token != token) pin = pin->hash_next;
    return pin;
}

static struct lend__pin *new_pin(const struct lend__pin_request *request) {
    struct lend__pin *pin = make_room() < 0 ? NULL : lend__zalloc(sizeof *pin);
    if (!pin) return NULL;
    uint64_t now = lend__boottime_ns(), ns_max = request->ns_max;
    *pin = (struct lend__pin){
        .token = next_token(),
        .made_ns = now,
        .expires_ns = ns_max && ns_max < UINT64_MAX - now ? now + ns_max : UINT64_MAX,
        .sender_page = request->sender_page,
        .sender_pid = request->sender_pid,
        .older = LEDGER->newest_pin,
    };
    struct lend__pin **b = bucket(pin->token);
    pin->hash_next = *b;
    *b = pin;
    *(pin->older ? &pin->older->newer : &LEDGER->oldest_pin) = pin;
    LEDGER->newest_pin = pin;
    LEDGER->n_pins++;
    if (pin->expires_ns != UINT64_MAX) LEDGER->n_pins_expiring++;
    return pin;
}

static void free_pin(struct lend__pin *pin) {
    unlink_pin(pin);
    free(pin->slots);
    free(pin);
}

int lend__pin_add(const struct lend__pin_request *request, const uint32_t *slots, uint32_t n, uint64_t *token,
                  struct lend_error *error) {
    uint64_t bytes = 0, budget = lend__context.pin_bytes_max;
    for (uint32_t i = 0; i < n; i++) bytes += LEDGER->slots[slots[i]].storage->bytes;
    if (budget && (bytes > budget || LEDGER->pin_bytes > budget - bytes)) return refuse_over_budget(bytes, error);
    struct lend__pin *pin = *token ? find_pin(*token) : NULL;
    if (n + (pin ? pin->n_slots : 0) > LEND_GROUP_TENSORS_MAX) /* no handle names more */
        return lend__fail_bytes(error, -ENOSPC, "lend_reduce", n, LEND_GROUP_TENSORS_MAX,
                                "a pin holds at most %u storages", LEND_GROUP_TENSORS_MAX);
    if (!*token) pin = new_pin(request);
    if (*token && (!pin || pin->sender_page != request->sender_page))
        return lend__fail(error, -ESTALE, "lend_reduce", "the pin ended before all of its storages were named");
    void *grown = NULL;
    if (!pin || lend__sys.realloc(pin->slots, ((size_t)pin->n_slots + n) * sizeof *slots, &grown) < 0) {
        if (pin && !*token) free_pin(pin);
        return lend__fail(error, -ENOMEM, "lend_reduce", "no memory for the record of a pin");
    }
    pin->slots = grown;
    memcpy(pin->slots + pin->n_slots, slots, n * sizeof *slots);
    pin->n_slots += n;
    pin->bytes += bytes;
    LEDGER->pin_bytes += bytes;
    for (uint32_t i = 0; i < n; i++) LEDGER->slots[slots[i]].n_pins++;
    LEND_POINT("P1.pin-made");
    *token = pin->token;
    return 0;
}

static void end_pin(struct lend__pin *pin) {
    uint32_t n = pin->n_slots, *slots = pin->slots;
    unlink_pin(pin);
    free(pin);
    LEND_POINT("P5.pin-ended");
    for (uint32_t i = 0; i < n; i++)
        if (--LEDGER->slots[slots[i]].n_pins == 0) lend__ledger_try_reuse(slots[i]);
    free(slots);
}

void lend__pin_consume(uint64_t token) {
    struct lend__pin *pin = token && LEDGER->n_pins ? find_pin(token) : NULL;
    if (pin) end_pin(pin);
}

void lend__pins_orphan(uint32_t sender_page) {
#ifdef LEND_MUTANT_NOORPHAN
    return;
#endif
    uint64_t end = lend__boottime_ns() + lend__context.pin_orphan_ns;
    for (struct lend__pin *pin = LEDGER->oldest_pin; pin; pin = pin->newer) {
        if (pin->sender_page != sender_page) continue;
        pin->sender_page = LEND__PAGE_NONE;
        if (pin->expires_ns == UINT64_MAX) LEDGER->n_pins_expiring++;
        if (end < pin->expires_ns) pin->expires_ns = end;
    }
}

void lend__pins_expire(void) {
    if (!LEDGER->n_pins_expiring) return;
    uint64_t now = lend__boottime_ns();
    for (struct lend__pin *pin = LEDGER->oldest_pin, *newer; pin; pin = newer) {
        newer = pin->newer;
        if (pin->expires_ns > now) continue;
        lend__ledger_note(LEND_WATCH_PIN_EXPIRED, pin->sender_pid, pin->bytes);
        end_pin(pin);
    }
}

void lend__pins_drop_all(void) {
    for (struct lend__pin *pin = LEDGER->oldest_pin, *newer; pin; pin = newer) {
        newer = pin->newer;
        free(pin->slots);
        free(pin);
    }
    free(LEDGER->pin_hash);
    LEDGER->pin_hash = NULL;
    LEDGER->oldest_pin = LEDGER->newest_pin = NULL;
    LEDGER->pin_hash_room = LEDGER->n_pins = LEDGER->n_pins_expiring = 0;
    LEDGER->pin_bytes = 0;
}
