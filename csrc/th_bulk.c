/* Bulk operations. Rows are taken in groups, so that the cache misses of a group overlap. Where a batch touches much
 * of the heap, the order is left loose meanwhile and made once at the end, which costs less than sifting each. */
#include "th_private.h"

/* A batch of n is `large` from 1/16 of the heap on. */
static bool large(const th_heap *h, size_t n) { return n > h->len / 16; }

static size_t group(size_t i, size_t n) { return n - i < TH_GROUP ? n - i : TH_GROUP; }

/* Hashes the rows [i, i + n) and fetches what th_lookup will read: first the lines, then the rows they point to. */
static void fetch_group(const th_heap *h, th_column ts, th_column key, th_column ns, size_t i, size_t n,
                        uint64_t *hash) {
    for (size_t k = 0; k < n; k++) {
        hash[k] = th_hash(h, th_at(ts, i + k), th_at(key, i + k), th_at(ns, i + k));
        TH_PREFETCH(&h->line[th_home(h, hash[k])]);
    }
    for (size_t k = 0; k < n; k++) {
        const th_line *b = &h->line[th_home(h, hash[k])];
        unsigned m = th_match(b, th_tag(hash[k]));
        if (!m) continue;
        size_t row = b->row[th_ctz(m)];
        TH_PREFETCH(h->ts + row);
        TH_PREFETCH(h->key + row);
        TH_PREFETCH(h->ns + row);
        TH_PREFETCH(h->slot + row);
    }
}

/* ---- push ---- */

size_t th_heap_push_rows(th_heap *h, th_column ts, th_column key, th_column ns, size_t from, size_t n, uint8_t *added,
                         uint32_t *where) {
    uint64_t hash[TH_GROUP];
    if (!h->cap) return from;
    for (size_t i = from; i < n; i += TH_GROUP) {
        size_t m = group(i, n);
        fetch_group(h, ts, key, ns, i, m, hash);
        for (size_t k = 0; k < m; k++) {
            int64_t t = th_at(ts, i + k), key_hash = th_at(key, i + k), space = th_at(ns, i + k);
            size_t row = th_lookup(h, hash[k], t, key_hash, space);
            added[i + k] = row == SIZE_MAX;
            if (added[i + k]) {
                if (h->len == h->cap) return i + k;
                row = h->len++;
                th_put(h, row, (th_row){t, key_hash, space, th_enter(h, hash[k], row)});
            }
            if (where) where[i + k] = (uint32_t)row;
        }
    }
    return n;
}

/* Restores the order when rows [first, len) are new: below their ancestors everything is in order already, so only
 * these sift down, the deepest first. A few rows sift up instead. */
static void settle_tail(th_heap *h, size_t first) {
    size_t lo = first, hi = h->len;
    if (hi - lo < TH_ARITY) {
        for (size_t i = lo; i < hi; i++) th_sift_up(h, i, th_get(h, i));
        return;
    }
    do {
        lo = lo ? (lo - 1) / TH_ARITY : 0;
        hi = (hi - 2) / TH_ARITY + 1;
        for (size_t i = hi; i-- > lo;) th_sift_down(h, i, h->len, th_get(h, i));
    } while (lo);
}

void th_heap_push_finish(th_heap *h, size_t first, th_column ts, th_column key, th_column ns, size_t n,
                         const uint8_t *added, const uint32_t *where) {
    bool all_new = h->len - first == n;
    if (!h->by_key || all_new) {
        settle_tail(h, first);
    } else if (large(h, n)) {
        for (size_t i = 0; i < n; i++)
            if (!added[i]) h->ts[where[i]] = th_at(ts, i);
        th_heapify(h);
    } else {
        /* The rows before `first` are a heap of their own until the tail is settled. */
        for (size_t i = 0; i < n; i++) {
            size_t row;
            if (added[i]) continue;
            th_heap_find(h, 0, th_at(key, i), th_at(ns, i), &row);
            th_row x = th_get(h, row);
            x.ts = th_at(ts, i);
            if (row < first) th_settle(h, row, first, x);
            else th_put(h, row, x);
        }
        settle_tail(h, first);
    }
    h->changes++;
}

void th_heap_push_undo(th_heap *h, size_t first) {
    while (h->len > first) {
        size_t i = --h->len;
        th_leave(h, th_hash_row(h, i), h->slot[i]);
    }
}

/* ---- remove, reschedule ---- */

void th_heap_remove_many(th_heap *h, th_column ts, th_column key, th_column ns, size_t n, uint8_t *removed) {
    uint64_t hash[TH_GROUP];
    bool loose = large(h, n);
    if (!h->len) {
        memset(removed, 0, n);
        return;
    }
    for (size_t i = 0; i < n; i += TH_GROUP) {
        size_t m = group(i, n);
        fetch_group(h, ts, key, ns, i, m, hash);
        for (size_t k = 0; k < m; k++) {
            size_t row = th_lookup(h, hash[k], th_at(ts, i + k), th_at(key, i + k), th_at(ns, i + k));
            removed[i + k] = row != SIZE_MAX;
            if (removed[i + k]) th_drop(h, row, hash[k], loose);
        }
    }
    if (loose) th_heapify(h);
    h->changes++;
}

void th_heap_reschedule_many(th_heap *h, th_column ts, th_column new_ts, th_column key, th_column ns, size_t n,
                             uint8_t *moved) {
    uint64_t from[TH_GROUP], to[TH_GROUP];
    bool loose = large(h, n);
    if (!h->len) {
        memset(moved, 0, n);
        return;
    }
    for (size_t i = 0; i < n; i += TH_GROUP) {
        size_t m = group(i, n);
        fetch_group(h, ts, key, ns, i, m, from);
        fetch_group(h, new_ts, key, ns, i, m, to);
        for (size_t k = 0; k < m; k++) {
            int64_t old = th_at(ts, i + k), new = th_at(new_ts, i + k);
            int64_t key_hash = th_at(key, i + k), space = th_at(ns, i + k);
            size_t row = th_lookup(h, from[k], old, key_hash, space);
            moved[i + k] = row != SIZE_MAX;
            if (!moved[i + k] || old == new) continue;
            if (th_lookup(h, to[k], new, key_hash, space) != SIZE_MAX) {
                th_drop(h, row, from[k], loose); /* two timers become one */
                continue;
            }
            th_leave(h, from[k], h->slot[row]);
            th_row x = {new, key_hash, space, th_enter(h, to[k], row)};
            if (loose) th_put(h, row, x);
            else th_settle(h, row, h->len, x);
        }
    }
    if (loose) th_heapify(h);
    h->changes++;
}

/* ---- remove by key ---- */

void th_heap_remove_keys(th_heap *h, th_column key, size_t n, uint32_t *table, size_t size) {
    size_t before = h->len, mask = size - 1;
    for (size_t i = 0; i < n; i++) { /* the set of keys: open addressing, entries are i + 1 */
        size_t at = th_mix((uint64_t)th_at(key, i) ^ h->seed[0], h->seed[2]) & mask;
        while (table[at] && th_at(key, table[at] - 1) != th_at(key, i)) at = (at + 1) & mask;
        table[at] = (uint32_t)i + 1;
    }
    for (size_t i = h->len; i--;) { /* from the end, so that the row that fills a gap has been looked at */
        size_t at = th_mix((uint64_t)h->key[i] ^ h->seed[0], h->seed[2]) & mask;
        while (table[at] && th_at(key, table[at] - 1) != h->key[i]) at = (at + 1) & mask;
        if (table[at]) th_drop(h, i, th_hash_row(h, i), true);
    }
    if (h->len == before) return;
    th_heapify(h);
    h->changes++;
}
