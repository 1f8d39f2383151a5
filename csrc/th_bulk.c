/* Bulk operations. The index lines and rows of many arguments are fetched together, so that their cache misses overlap.
 * If a batch affects a large part of the heap, the order is restored once at the end, which costs less. */
#include "th_private.h"

/* A batch is a large part of a heap from this part of its rows on. The part is smaller in a heap larger than the
 * caches, where a row that sifts alone waits for memory at each level: from about 2**19 rows on, 14 MB of columns.
 * Measured. */
#define LARGE_PART 16
#define LARGE_PART_OUTSIDE 64
#define OUTSIDE_CACHES ((size_t)1 << 19)

static bool large(const th_heap *h, size_t n) {
    return n > h->len / (h->len < OUTSIDE_CACHES ? LARGE_PART : LARGE_PART_OUTSIDE);
}

/* Arguments are fetched ahead in two steps: first the index line of the hash, later the row that the line points to.
 * Only a few are fetched at a time, since the cache can handle a limited number of prefetches at once. The numbers are
 * measured; the ring has a power of two, so that its place is a few bits of the number of an argument. */
#define FEW 8 /* fetched at a time */
#define LINES_AHEAD 48 /* how far ahead of their use index lines are fetched */
#define ROWS_AHEAD 24 /* and rows, for which the line must have come */
#define RING 64
_Static_assert(ROWS_AHEAD <= LINES_AHEAD && LINES_AHEAD + FEW <= RING,
               "an argument must stay in the ring until it is used");

/* The arguments of a call. Each is read once, since the caller's memory may change at any time and the hash of an entry
 * must match the values in its row. */
typedef struct rows {
    th_column ts, new_ts, key, ns;
    size_t n;
    struct {
        int64_t ts[RING], new_ts[RING], key[RING], ns[RING];
        uint64_t hash[RING], new_hash[RING];
    } ahead; /* the arguments fetched ahead */
} rows;

/* The parts of the arguments that a call needs, and what of their rows it does not. They are passed as constants, so
 * that each call gets its own loops. */
enum { ROWS = 1, NO_SLOTS = 2, NEW_TS = 4, CHILDREN = 8 };

/* The timestamp of a timer that moves is not part of its identity, and the caller reads it later. */
TH_INLINE void fetch_lines(const th_heap *h, rows *r, size_t i, size_t few, int what) {
    for (size_t end = i + few < r->n ? i + few : r->n; i < end; i++) {
        size_t k = i % RING;
        int64_t key = r->ahead.key[k] = th_at(r->key, i), ns = r->ahead.ns[k] = th_at(r->ns, i);
        bool moves = th_moves(h, ns);
        int64_t ts = r->ahead.ts[k] = moves ? 0 : th_at(r->ts, i);
        uint64_t hash = r->ahead.hash[k] = th_hash_identity(h, ts, key, ns);
        TH_PREFETCH(&h->line[th_home(h, hash)]);
        if (what & NEW_TS) {
            ts = r->ahead.new_ts[k] = th_at(r->new_ts, i);
            hash = r->ahead.new_hash[k] = th_hash_identity(h, moves ? 0 : ts, key, ns);
            TH_PREFETCH(&h->line[th_home(h, hash)]);
        }
    }
}

/* The line of the hash must have come. */
TH_INLINE void fetch_row(const th_heap *h, uint64_t hash, int what) {
    const th_line *b = &h->line[th_home(h, hash)];
    unsigned m = th_match(b, th_tag(hash));
    if (TH_UNLIKELY(!m && b->passed)) { /* most that passed a line are in the next */
        b = b + 1 == h->line + h->lines ? h->line : b + 1;
        m = th_match(b, th_tag(hash));
    }
    for (; m; m &= m - 1) {
        size_t row = b->row[th_ctz(m)];
        TH_PREFETCH(h->key + row);
        TH_PREFETCH(h->ns + row);
        TH_PREFETCH(h->ts + row);
        if (!(what & NO_SLOTS)) TH_PREFETCH(h->slot + row);
        if (what & CHILDREN) th_prefetch_children(h, row);
    }
}

TH_INLINE void fetch_rows(const th_heap *h, const rows *r, size_t i, size_t few, int what) {
    for (size_t end = i + few < r->n ? i + few : r->n; i < end; i++) fetch_row(h, r->ahead.hash[i % RING], what);
}

/* Must be called for each argument in sequence; returns its position in the ring. */
TH_INLINE size_t fetch(const th_heap *h, rows *r, size_t i, int what) {
    if (i % FEW == 0) {
        if (i == 0) {
            fetch_lines(h, r, 0, LINES_AHEAD, what);
            if (what & ROWS) fetch_rows(h, r, 0, ROWS_AHEAD, what);
        }
        fetch_lines(h, r, i + LINES_AHEAD, FEW, what);
        if (what & ROWS) fetch_rows(h, r, i + ROWS_AHEAD, FEW, what);
    }
    return i % RING;
}

/* Returns the row of an argument, or SIZE_MAX. */
TH_INLINE size_t row_of(const th_heap *h, const rows *r, size_t k) {
    return th_lookup(h, r->ahead.hash[k], r->ahead.ts[k], r->ahead.key[k], r->ahead.ns[k]);
}

void th_heap_fetch_line(const th_heap *h, int64_t ts, int64_t key, int64_t ns) {
    if (h->len) TH_PREFETCH(&h->line[th_home(h, th_hash(h, ts, key, ns))]);
}

void th_heap_fetch_row(const th_heap *h, int64_t ts, int64_t key, int64_t ns) {
    if (h->len) fetch_row(h, th_hash(h, ts, key, ns), CHILDREN);
}

/* ---- push ---- */

/* Appends the absent rows, without ordering them, until the arguments end or the heap is full; returns the number of
 * processed arguments. If some timers move, stores the slot of each, which stays when its row moves, in `where`. */
static size_t append(th_heap *heap, rows *r, uint8_t *added, uint32_t *where) {
    th_heap h = *heap; /* a copy stays in registers, since stores to bytes may alias any memory */
    size_t i = 0;
    for (; i < r->n; i++) {
        size_t k = fetch(&h, r, i, where ? ROWS : 0), row = row_of(&h, r, k);
        added[i] = row == SIZE_MAX;
        if (row == SIZE_MAX) {
            if (h.len == h.cap) break;
            row = h.len++;
            h.key[row] = r->ahead.key[k];
            h.ns[row] = r->ahead.ns[k];
            h.ts[row] = where && th_moves(&h, h.ns[row]) ? th_at(r->ts, i) : r->ahead.ts[k];
            h.slot[row] = th_enter(&h, r->ahead.hash[k], row);
        }
        if (where) where[i] = h.slot[row];
    }
    heap->len = h.len;
    return i;
}

/* Restores the order after rows [first, len) were appended. Only their ancestors can be out of order, so these sift
 * down, deepest first. A few rows sift up instead. */
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

TH_INLINE size_t row_at(const th_heap *h, uint32_t slot) { return h->line[slot >> 4].row[slot & 15]; }

TH_INLINE void set_time(th_heap *h, size_t row, int64_t ts) {
    if (th_moves(h, h->ns[row])) h->ts[row] = ts;
}

/* Moves the timers that were present, if they move, and restores the order including the rows from `first` on. */
static void move(th_heap *h, size_t first, const rows *r, const uint8_t *added, const uint32_t *where) {
    if (large(h, r->n)) {
        for (size_t i = 0; i < r->n; i++)
            if (!added[i]) set_time(h, row_at(h, where[i]), th_at(r->ts, i));
        th_heapify(h);
        return;
    }
    for (size_t i = 0; i < r->n; i++) {
        if (added[i]) continue;
        size_t row = row_at(h, where[i]);
        th_row x = th_get(h, row);
        if (!th_moves(h, x.ns)) continue;
        x.ts = th_at(r->ts, i);
        if (row < first) th_settle(h, row, first, x); /* the rows before the tail are a heap */
        else th_put_back(h, row, x);
    }
    settle_tail(h, first);
}

/* Counts the arguments from i on that are absent, of which i is one. */
static size_t count_absent(const th_heap *h, rows *r, size_t i, int what) {
    size_t absent = 1;
    while (++i < r->n) absent += row_of(h, r, fetch(h, r, i, what)) == SIZE_MAX;
    return absent;
}

th_status th_heap_push_many(th_heap *h, th_column ts, th_column key, th_column ns, size_t n, uint8_t *added,
                            uint32_t *where, size_t *need) {
    rows r = {.ts = ts, .key = key, .ns = ns, .n = n};
    size_t first = h->len, done = h->cap ? append(h, &r, added, h->identity ? where : NULL) : 0;
    if (done < n) {
        *need = h->len + (h->cap ? count_absent(h, &r, done, h->identity ? ROWS : 0) : n);
        while (h->len > first) {
            size_t last = --h->len;
            th_leave(h, th_hash_row(h, last), h->slot[last]);
        }
        return TH_FULL;
    }
    if (h->identity && h->len - first < n) move(h, first, &r, added, where);
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
        size_t row = row_of(h, &r, fetch(h, &r, i, ROWS | NO_SLOTS));
        found[i] = row != SIZE_MAX;
        ts[i] = found[i] ? h->ts[row] : 0;
    }
}

TH_INLINE void remove_many(th_heap *h, th_column ts, th_column key, th_column ns, size_t n, uint8_t *removed,
                           bool exactly) {
    bool loose = large(h, n);
    rows r = {.ts = ts, .key = key, .ns = ns, .n = n};
    if (!h->len) {
        memset(removed, 0, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        size_t k = fetch(h, &r, i, ROWS), row = row_of(h, &r, k);
        removed[i] = row != SIZE_MAX && !(exactly && th_moves(h, h->ns[row]) && th_at(ts, i) != h->ts[row]);
        if (removed[i]) th_drop(h, row, r.ahead.hash[k], loose);
    }
    if (loose) th_heapify(h);
    h->changes++;
}

void th_heap_remove_many(th_heap *h, th_column ts, th_column key, th_column ns, size_t n, uint8_t *removed) {
    remove_many(h, ts, key, ns, n, removed, false);
}

void th_heap_take_many(th_heap *h, th_column ts, th_column key, th_column ns, size_t n, uint8_t *taken) {
    remove_many(h, ts, key, ns, n, taken, true);
}

void th_heap_reschedule_many(th_heap *h, th_column ts, th_column new_ts, th_column key, th_column ns, size_t n,
                             uint8_t *moved) {
    bool loose = large(h, n);
    rows r = {.ts = ts, .new_ts = new_ts, .key = key, .ns = ns, .n = n};
    if (!h->len) {
        memset(moved, 0, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        size_t k = fetch(h, &r, i, ROWS | NEW_TS), row = row_of(h, &r, k);
        moved[i] = row != SIZE_MAX;
        if (row != SIZE_MAX) th_reschedule(h, row, r.ahead.hash[k], r.ahead.new_ts[k], r.ahead.new_hash[k], loose);
    }
    if (loose) th_heapify(h);
    h->changes++;
}

/* ---- remove by key ---- */

/* A set of keys with open addressing: `size` entries, 0 for a free one, and one more entry for whether it has key 0. */
TH_INLINE size_t place_of(const th_heap *h, size_t size, int64_t key) {
    return th_mix((uint64_t)key ^ h->seed[0], h->seed[2]) & (size - 1);
}

static void put_key(const th_heap *h, int64_t *table, size_t size, int64_t key) {
    size_t at = place_of(h, size, key);
    while (table[at] && table[at] != key) at = (at + 1) & (size - 1);
    table[key ? at : size] = key ? key : 1;
}

TH_INLINE bool has_key(const th_heap *h, const int64_t *table, size_t size, int64_t key) {
    for (size_t at = place_of(h, size, key); table[at]; at = (at + 1) & (size - 1))
        if (table[at] == key) return true;
    return !key && table[size];
}

size_t th_heap_count_keys(const th_heap *h, th_column key, size_t n, int64_t *table, size_t size) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) put_key(h, table, size, th_at(key, i));
    for (size_t i = 0; i < h->len; i++) count += has_key(h, table, size, h->key[i]);
    return count;
}

void th_heap_remove_keys(th_heap *h, const int64_t *table, size_t size) {
    for (size_t i = h->len; i--;) /* from the end, since the last row fills the gap and must be checked before */
        if (has_key(h, table, size, h->key[i])) th_drop(h, i, th_hash_row(h, i), true);
    th_heapify(h);
    h->changes++;
}
