/* Bulk operations. The index lines and rows of many arguments are on their way at once, so that their cache misses
 * overlap. Where a batch touches much of the heap, the order is left loose meanwhile and made once at the end, which
 * costs less than sifting each. */
#include "th_private.h"

/* A batch of n is `large` from 1/16 of the heap on. */
static bool large(const th_heap *h, size_t n) { return n > h->len / 16; }

/* Arguments are fetched ahead of use in two steps: hash and index line, and later the row that the line points to. A
 * few at a time, for a burst of prefetches has to wait until the cache can take them. */
#define FEW 8
#define LINES_AHEAD 48
#define ROWS_AHEAD 24
#define HASHES 64
_Static_assert(ROWS_AHEAD <= LINES_AHEAD && LINES_AHEAD + FEW <= HASHES,
               "a hash is there from its line on until its use");

typedef struct rows {
    th_column ts, key, ns;
    size_t n;
    uint64_t hash[HASHES]; /* of the arguments on their way */
} rows;

TH_INLINE void fetch_lines(const th_heap *h, rows *r, size_t i, size_t few) {
    for (size_t end = i + few < r->n ? i + few : r->n; i < end; i++) {
        uint64_t hash = th_hash(h, th_at(r->ts, i), th_at(r->key, i), th_at(r->ns, i));
        r->hash[i % HASHES] = hash;
        TH_PREFETCH(&h->line[th_home(h, hash)]);
    }
}

TH_INLINE void fetch_rows(const th_heap *h, const rows *r, size_t i, size_t few) {
    for (size_t end = i + few < r->n ? i + few : r->n; i < end; i++) {
        uint64_t hash = r->hash[i % HASHES];
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

/* To be called for each argument in sequence; returns its hash. */
TH_INLINE uint64_t fetch(const th_heap *h, rows *r, size_t i, bool with_rows) {
    if (i % FEW == 0) {
        if (i == 0) {
            fetch_lines(h, r, 0, LINES_AHEAD);
            if (with_rows) fetch_rows(h, r, 0, ROWS_AHEAD);
        }
        fetch_lines(h, r, i + LINES_AHEAD, FEW);
        if (with_rows) fetch_rows(h, r, i + ROWS_AHEAD, FEW);
    }
    return r->hash[i % HASHES];
}

/* ---- push ---- */

/* Appends the rows that are absent, in no order yet, until done or full; returns the first row not looked at. `where`
 * gets each identity's row number. */
static size_t append(th_heap *heap, rows *r, uint8_t *added, uint32_t *where) {
    th_heap h = *heap; /* a copy that stays in registers: stores to bytes might change any memory */
    size_t i = 0;
    for (; i < r->n; i++) {
        uint64_t hash = fetch(&h, r, i, where);
        int64_t ts = th_at(r->ts, i), key = th_at(r->key, i), ns = th_at(r->ns, i);
        size_t row = th_lookup(&h, hash, ts, key, ns);
        added[i] = row == SIZE_MAX;
        if (row == SIZE_MAX) {
            if (h.len == h.cap) break;
            row = h.len++;
            h.ts[row] = ts;
            h.key[row] = key;
            h.ns[row] = ns;
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

/* Moves the timers of the rows that were there before; restores the order behind `first` as well. */
static void move(th_heap *h, size_t first, const rows *r, const uint8_t *added, const uint32_t *where) {
    if (large(h, r->n)) {
        for (size_t i = 0; i < r->n; i++)
            if (!added[i]) h->ts[where[i]] = th_at(r->ts, i);
        th_heapify(h);
        return;
    }
    for (size_t i = 0; i < r->n; i++) {
        size_t row;
        if (added[i]) continue;
        th_heap_find(h, 0, th_at(r->key, i), th_at(r->ns, i), &row); /* moves before this one may have moved it too */
        th_row x = th_get(h, row);
        x.ts = th_at(r->ts, i);
        if (row < first) th_settle(h, row, first, x); /* a heap of its own until the tail is settled */
        else th_put(h, row, x);
    }
    settle_tail(h, first);
}

th_status th_heap_push_many(th_heap *h, th_column ts, th_column key, th_column ns, size_t n, uint8_t *added,
                            uint32_t *where, size_t *need) {
    rows r = {.ts = ts, .key = key, .ns = ns, .n = n};
    size_t first = h->len, done = h->cap ? append(h, &r, added, h->by_key ? where : NULL) : 0;
    if (done < n) {
        *need = h->len + n - done;
        while (h->len > first) {
            size_t last = --h->len;
            th_leave(h, th_hash_row(h, last), h->slot[last]);
        }
        return TH_FULL;
    }
    if (h->by_key && h->len - first < n) move(h, first, &r, added, where);
    else settle_tail(h, first);
    h->changes++;
    return TH_YES;
}

/* ---- find, remove, reschedule ---- */

void th_heap_find_many(const th_heap *h, th_column key, th_column ns, size_t n, uint8_t *found, int64_t *ts) {
    rows r = {.ts = key, .key = key, .ns = ns, .n = n};
    if (!h->len) {
        memset(found, 0, n);
        memset(ts, 0, n * sizeof *ts);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t hash = fetch(h, &r, i, true);
        size_t row = th_lookup(h, hash, 0, th_at(key, i), th_at(ns, i));
        found[i] = row != SIZE_MAX;
        ts[i] = found[i] ? h->ts[row] : 0;
    }
}

void th_heap_remove_many(th_heap *h, th_column ts, th_column key, th_column ns, size_t n, uint8_t *removed) {
    bool loose = large(h, n);
    rows r = {.ts = ts, .key = key, .ns = ns, .n = n};
    if (!h->len) {
        memset(removed, 0, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t hash = fetch(h, &r, i, true);
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
        uint64_t hash = fetch(h, &from, i, true), new_hash = fetch(h, &to, i, false);
        size_t row = th_lookup(h, hash, th_at(ts, i), th_at(key, i), th_at(ns, i));
        moved[i] = row != SIZE_MAX;
        if (row != SIZE_MAX) th_reschedule(h, row, hash, th_at(new_ts, i), new_hash, loose);
    }
    if (loose) th_heapify(h);
    h->changes++;
}

/* ---- remove by key ---- */

/* Where a key is in the set, or could be: open addressing over `size` entries, each the key's number + 1. */
static uint32_t *entry_of(const th_heap *h, th_column key, uint32_t *table, size_t size, int64_t wanted) {
    size_t at = th_mix((uint64_t)wanted ^ h->seed[0], h->seed[2]) & (size - 1);
    while (table[at] && th_at(key, table[at] - 1) != wanted) at = (at + 1) & (size - 1);
    return &table[at];
}

size_t th_heap_count_keys(const th_heap *h, th_column key, size_t n, uint32_t *table, size_t size) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) *entry_of(h, key, table, size, th_at(key, i)) = (uint32_t)i + 1;
    for (size_t i = 0; i < h->len; i++) count += *entry_of(h, key, table, size, h->key[i]) != 0;
    return count;
}

void th_heap_remove_keys(th_heap *h, th_column key, uint32_t *table, size_t size) {
    for (size_t i = h->len; i--;) /* from the end, so that the row that fills a gap has been looked at */
        if (*entry_of(h, key, table, size, h->key[i])) th_drop(h, i, th_hash_row(h, i), true);
    th_heapify(h);
    h->changes++;
}
