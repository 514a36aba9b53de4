/* SPDX-License-Identifier: MIT */
/* lend_pin_cancel: the delivery will not happen. Each exporter that a handle names is told of its own pin. */
#include "share/cancel.h"

#include "base/error.h"
#include "base/point.h"
#include "base/sys.h"
#include "share/context.h"
#include "share/ledger.h"
#include "share/peer.h"
#include "share/tree.h"

#include <errno.h>
#include <lend/handle.h>
#include <stdlib.h>
#include <string.h>

int lend__pin_cancel_at(const struct lend__wire_exporter *exporter, int64_t deadline_ns, struct lend_error *error) {
    if (!memcmp(exporter->identity.id, lend__context.identity.id, LEND__ID_BYTES)) {
        lend__ledger_lock();
        lend__pin_consume(exporter->pin_token);
        lend__ledger_unlock();
        return 0;
    }
    const struct lend__contact_request books = {
        .exporter = exporter, .allocation = LEND__CONTROL_NONE, .deadline = lend__context_deadline(deadline_ns)};
    lend__import_lock();
    struct lend__peer *peer = lend__peer_obtain(exporter);
    lend__import_unlock();
    if (!peer) return lend__fail(error, -ENOMEM, "lend_pin_cancel", "no memory for the record of an exporter");
    int r = lend__contact(peer, &books, error);
    if (r >= 0) r = lend__contact_cancel(peer, exporter->pin_token, books.deadline, error);
    lend__peer_release(peer);
    return r;
}

/* Every exporter's part of the pin; the first failure is what the caller hears of. */
static int cancel_all(const struct lend__wire_exporter *exporters, uint32_t n, int64_t deadline_ns,
                      struct lend_error *error) {
    bool has_pin = false;
    int code = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct lend__wire_exporter *exporter = &exporters[i];
        if (!exporter->pin_token) continue;
        has_pin = true;
        int r;
        if (!exporter->socket_path && exporter->identity.uid != lend__context.identity.uid)
            r = lend__fail(code < 0 ? NULL : error, -EPERM, "lend_pin_cancel",
                           "the handle names an exporter of user %u, and this process runs as %u",
                           exporter->identity.uid, lend__context.identity.uid);
        else
            r = lend__pin_cancel_at(exporter, deadline_ns, code < 0 ? NULL : error);
        if (code >= 0) code = r;
    }
    if (!has_pin)
        return lend__fail(error, -EINVAL, "lend_pin_cancel", "the handle has no pin: there is nothing to cancel");
    return code;
}

static int cancel_tree(const void *handle, size_t bytes, int64_t deadline_ns, struct lend_error *error) {
    struct lend__tree tree;
    int r = lend__tree_open(handle, bytes, &tree, "lend_pin_cancel", error);
    if (r >= 0) r = lend__tree_check(&tree, "lend_pin_cancel", error);
    if (r < 0) return r;
    struct lend__wire_exporter *exporters = lend__zalloc((tree.n_exporters + 1ull) * sizeof *exporters);
    if (!exporters) return lend__fail(error, -ENOMEM, "lend_pin_cancel", "no memory for a list of exporters");
    lend__tree_exporters(&tree, exporters);
    r = cancel_all(exporters, tree.n_exporters, deadline_ns, error);
    free(exporters);
    return r;
}

int lend_pin_cancel(const void *handle, size_t bytes, int64_t deadline_ns, struct lend_error *error) {
    struct lend__wire wire;
    int r = lend__context_check("lend_pin_cancel", error);
    if (r < 0) return r;
    LEND_POINT("P7.cancel");
    if (lend__wire_is_tree(handle, bytes)) return cancel_tree(handle, bytes, deadline_ns, error);
    r = lend__wire_decode(handle, bytes, &wire, "lend_pin_cancel", error);
    return r < 0 ? r : cancel_all(&wire.exporter, 1, deadline_ns, error);
}
