/* Bulk operations. Rows are taken in groups, so that the cache misses of a group overlap. Where a batch touches much
 * of the heap, the order is left loose meanwhile and made once at the end, which costs less than sifting each. */
#include "th_private.h"

/* A batch of n is `large` from 1/16 of the heap on. */
static bool large(const th_heap *h, size_t n) { return n > h->len / 16; }

/* Rows of arguments with their hashes, fetched ahead of use in three steps a group apart: hash and index line, then the
 * rows that the line points to, then use. */
typedef struct rows {
    th_column ts, key, ns;
    size_t n;
    uint64_t hash[4 * TH_GROUP];
} rows;

TH_INLINE void fetch_lines(const th_heap *h, rows *r, size_t i) {
    for (size_t end = i + TH_GROUP < r->n ? i + TH_GROUP : r->n; i < end; i++) {
        uint64_t hash = th_hash(h, th_at(r->ts, i), th_at(r->key, i), th_at(r->ns, i));
        r->hash[i % (4 * TH_GROUP)] = hash;
        TH_PREFETCH(&h->line[th_home(h, hash)]);
    }
}

TH_INLINE void fetch_rows(const th_heap *h, const rows *r, size_t i) {
    for (size_t end = i + TH_GROUP < r->n ? i + TH_GROUP : r->n; i < end; i++) {
        uint64_t hash = r->hash[i % (4 * TH_GROUP)];
        const th_line *b = &h->line[th_home(h, hash)];
        unsigned m = th_match(b, th_tag(hash));
        if (!m) continue;
        size_t row = b->row[th_ctz(m)];
        TH_PREFETCH(h->key + row);
        TH_PREFETCH(h->ns + row);
        TH_PREFETCH(h->ts + row);
        TH_PREFETCH(h->slot + row);
    }
}

/* To be called for each row in sequence, from `start` on; returns the row's hash. */
TH_INLINE uint64_t fetch(const th_heap *h, rows *r, size_t start, size_t i, bool with_rows) {
    if ((i - start) % TH_GROUP == 0) {
        if (i == start) {
            fetch_lines(h, r, i);
            fetch_lines(h, r, i + TH_GROUP);
            if (with_rows) fetch_rows(h, r, i);
        }
        fetch_lines(h, r, i + 2 * TH_GROUP);
        if (with_rows) fetch_rows(h, r, i + TH_GROUP);
    }
    return r->hash[i % (4 * TH_GROUP)];
}

/* ---- push ---- */

size_t th_heap_push_rows(th_heap *heap, th_column ts, th_column key, th_column ns, size_t from, size_t n,
                         uint8_t *added, uint32_t *where) {
    if (!heap->cap) return from;
    th_heap h = *heap; /* a copy that stays in registers: stores to bytes might change any memory */
    rows r = {.ts = ts, .key = key, .ns = ns, .n = n};
    size_t i = from;
    for (; i < n; i++) {
        uint64_t hash = fetch(&h, &r, from, i, where);
        int64_t t = th_at(ts, i), k = th_at(key, i), s = th_at(ns, i);
        size_t row = th_lookup(&h, hash, t, k, s);
        added[i] = row == SIZE_MAX;
        if (row == SIZE_MAX) {
            if (h.len == h.cap) break;
            row = h.len++;
            h.ts[row] = t;
            h.key[row] = k;
            h.ns[row] = s;
            h.slot[row] = th_enter(&h, hash, row);
        }
        if (where) where[i] = (uint32_t)row;
    }
    heap->len = h.len;
    return i;
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
        th_sweep(h, lo, hi);
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

/* ---- find ---- */

void th_heap_find_many(const th_heap *h, th_column key, th_column ns, size_t n, uint8_t *found, int64_t *ts) {
    rows r = {.ts = key, .key = key, .ns = ns, .n = n};
    if (!h->len) {
        memset(found, 0, n);
        memset(ts, 0, n * sizeof *ts);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t hash = fetch(h, &r, 0, i, true);
        size_t row = th_lookup(h, hash, 0, th_at(key, i), th_at(ns, i));
        found[i] = row != SIZE_MAX;
        ts[i] = found[i] ? h->ts[row] : 0;
    }
}

/* ---- remove, reschedule ---- */

void th_heap_remove_many(th_heap *h, th_column ts, th_column key, th_column ns, size_t n, uint8_t *removed) {
    bool loose = large(h, n);
    rows r = {.ts = ts, .key = key, .ns = ns, .n = n};
    if (!h->len) {
        memset(removed, 0, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t hash = fetch(h, &r, 0, i, true);
        size_t row = th_lookup(h, hash, th_at(ts, i), th_at(key, i), th_at(ns, i));
        removed[i] = row != SIZE_MAX;
        if (row != SIZE_MAX) th_drop(h, row, hash, loose);
    }
    if (loose) th_heapify(h);
    h->changes++;
}

void th_heap_reschedule_many(th_heap *h, th_column ts, th_column new_ts, th_column key, th_column ns, size_t n,
                             uint8_t *moved) {
    bool loose = large(h, n);
    rows from = {.ts = ts, .key = key, .ns = ns, .n = n}, to = {.ts = new_ts, .key = key, .ns = ns, .n = n};
    if (!h->len) {
        memset(moved, 0, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t hash = fetch(h, &from, 0, i, true), new_hash = fetch(h, &to, 0, i, false);
        size_t row = th_lookup(h, hash, th_at(ts, i), th_at(key, i), th_at(ns, i));
        moved[i] = row != SIZE_MAX;
        if (row != SIZE_MAX) th_reschedule(h, row, hash, th_at(new_ts, i), new_hash, loose);
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
