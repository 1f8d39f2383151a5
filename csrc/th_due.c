/* Bulk removal of due timers. The parent of a due row is due, so the due rows are the top of the tree. */
#include "th_private.h"

/* Returns the number of due rows in the subtree of the due row i. The recursion is as deep as the heap. */
static size_t count_below(const th_heap *h, size_t i, int64_t watermark) {
    size_t n = 1, c = TH_ARITY * i + 1, end = c + TH_ARITY < h->len ? c + TH_ARITY : h->len;
    for (; c < end; c++)
        if (h->ts[c] <= watermark) n += TH_ARITY * c + 1 < h->len ? count_below(h, c, watermark) : 1;
    return n;
}

size_t th_heap_count_due(const th_heap *h, int64_t watermark) {
    return h->len && h->ts[0] <= watermark ? count_below(h, 0, watermark) : 0;
}

size_t th_heap_due_rows(const th_heap *h, int64_t watermark, int64_t *row, size_t n) {
    size_t found = 0;
    if (n && h->len && h->ts[0] <= watermark) row[found++] = 0;
    for (size_t seen = 0; seen < found && found < n; seen++) {
        size_t c = TH_ARITY * (size_t)row[seen] + 1, end = c + TH_ARITY < h->len ? c + TH_ARITY : h->len;
        for (; c < end && found < n; c++)
            if (h->ts[c] <= watermark) row[found++] = (int64_t)c;
    }
    return found;
}

/* Popping timers one by one is faster for a few timers, or if there are this many due rows for each popped one. */
#define FEW 10
#define MANY 16

static bool singly(size_t due, size_t take) { return take < FEW || take < due / MANY; }

/* Returns the number of due rows after which the choice of `singly` is known. */
static size_t enough(size_t limit) { return limit < SIZE_MAX / MANY - 1 ? (limit + 1) * MANY : SIZE_MAX; }

/* Collects the due rows in scratch, ascending, until there are enough; returns false if it needs more scratch. The
 * search is breadth-first, and its queue of rows is also the result. */
static bool collect(const th_heap *h, th_due *due) {
    uint32_t *rows = (uint32_t *)due->scratch;
    size_t room = 2 * due->words, most = enough(due->limit);
    if (!due->found || due->changes != h->changes) {
        due->changes = h->changes;
        due->found = due->seen = 0;
        if (!h->len || h->ts[0] > due->watermark) return true;
        if (!room) return false;
        rows[due->found++] = 0;
    }
    for (; due->seen < due->found && due->found < most; due->seen++) {
        size_t c = TH_ARITY * (size_t)rows[due->seen] + 1, end = c + TH_ARITY < h->len ? c + TH_ARITY : h->len;
        if (c >= h->len) break; /* the following rows have no children either */
        if (room < due->found + TH_ARITY) return false;
        if (due->seen + TH_GROUP < due->found) th_prefetch_children(h, rows[due->seen + TH_GROUP]);
        for (; c < end; c++) {
            rows[due->found] = (uint32_t)c; /* without a branch: a row that is not due is overwritten */
            due->found += h->ts[c] <= due->watermark;
        }
    }
    return true;
}

/* Writes the rows in order, and removes them from the index if it is kept. `sorted` may be stored in a column of the
 * result, since each record is read before it is overwritten. */
TH_INLINE void gather(th_heap *heap, const uint64_t *sorted, const th_due *due, bool kept) {
    th_heap h = *heap; /* a copy stays in registers, since stores to tags may alias any memory */
    for (size_t i = 0; i < due->n; i++) {
        size_t row = sorted[i];
        if (i + 2 * TH_GROUP < due->n) {
            size_t next = sorted[i + 2 * TH_GROUP];
            TH_PREFETCH(h.ts + next);
            TH_PREFETCH(h.key + next);
            TH_PREFETCH(h.ns + next);
            if (kept) TH_PREFETCH(h.slot + next);
        }
        if (kept && i + TH_GROUP < due->n) TH_PREFETCH(&h.line[h.slot[sorted[i + TH_GROUP]] >> 4]);
        int64_t ts = h.ts[row], key = h.key[row], ns = h.ns[row];
        if (kept) th_leave(&h, th_hash(&h, ts, key, ns), h.slot[row]);
        due->ts[i] = ts;
        due->key[i] = key;
        due->ns[i] = ns;
    }
}

/* How the holes of n popped rows are closed is chosen by their part of the heap, as measured: up to an eighth, each
 * last row sinks from a hole; up to three quarters, the order is restored once; above, the index is built anew, too. */
static bool keeps_index(const th_heap *h, size_t n) { return n <= h->len / 4 * 3; }
static bool leaves_many(const th_heap *h, size_t n) { return n > h->len / 8; }

/* Fills each hole with the last row, from the last hole to the first. The rows below a hole are then in order and those
 * above it are still holes, so the row only sinks. Several sink together, and are placed before the last row is one. */
static void fill_holes(th_heap *h, const uint32_t *rows, size_t n) {
    th_sinkers s;
    s.n = 0;
    for (size_t k = n; k--;) {
        size_t hole = rows[k];
        if (!th_sink_takes(&s, hole) || (s.n && h->len - 1 <= s.highest)) th_sink(h, &s);
        if (hole != --h->len) th_sink_add(h, &s, hole, th_get(h, h->len));
    }
    th_sink(h, &s);
}

/* Fills many holes, and restores the order afterwards. */
static void fill_many_holes(th_heap *h, const uint32_t *rows, size_t n) {
    for (size_t k = n; k--;) {
        size_t last = --h->len;
        if (last >= TH_GROUP) TH_PREFETCH(&h->line[h->slot[last - TH_GROUP] >> 4]);
        if (rows[k] != last) th_put(h, rows[k], th_get(h, last));
    }
    th_heapify(h);
}

/* Closes the holes by moving the remaining rows up, and rebuilds the index and the order. */
static void close_holes(th_heap *h, const uint32_t *rows, size_t n) {
    size_t to = rows[0];
    for (size_t k = 0; k < n; k++) {
        size_t from = (size_t)rows[k] + 1, end = k + 1 < n ? rows[k + 1] : h->len;
        for (; from < end; from++, to++) {
            h->ts[to] = h->ts[from];
            h->key[to] = h->key[from];
            h->ns[to] = h->ns[from];
        }
    }
    th_heap_clear(h);
    h->len = to;
    th_heap_reindex(h);
    th_heapify(h);
}

static void pop_singly(th_heap *h, const th_due *due) {
    for (size_t i = 0; i < due->n; i++) {
        due->ts[i] = h->ts[0];
        due->key[i] = h->key[0];
        due->ns[i] = h->ns[0];
        th_heap_pop(h);
    }
}

th_status th_heap_pop_due(th_heap *h, th_due *due) {
    due->need = 0;
    if (!collect(h, due)) {
        due->need = 4 * due->words + TH_ARITY; /* at least one more row fits; few calls for many rows */
        return TH_FULL;
    }
    size_t found = due->found, take = found < due->limit ? found : due->limit;
    size_t rows_end = (found + 1) / 2, all = rows_end + 2 * found;
    if (take < found && !singly(found, take) && due->words < all) {
        due->need = all;
        return TH_FULL;
    }
    due->n = take;
    if (due->room != take) return TH_FULL; /* with need = 0: the caller allocates the result */

    if (singly(found, take)) {
        pop_singly(h, due);
        return TH_YES;
    }
    /* Sorting takes two words per row, from the result if it has as many rows. */
    uint32_t *rows = (uint32_t *)due->scratch;
    uint64_t *sorted = take < found ? due->scratch + rows_end : (uint64_t *)due->key;
    th_sort_rows(h, rows, found, sorted, take < found ? sorted + found : (uint64_t *)due->ts);
    if (take < found) { /* the rows taken are the top of the tree, too */
        th_row bound = th_get(h, sorted[take - 1]);
        size_t n = 0;
        for (size_t k = 0; k < found; k++)
            if (!th_less_row(h, bound, rows[k])) rows[n++] = rows[k];
    }
    bool kept = keeps_index(h, take);
    if (kept) gather(h, sorted, due, true);
    else gather(h, sorted, due, false);
    if (take == h->len) th_heap_clear(h);
    else if (!kept) close_holes(h, rows, take);
    else if (leaves_many(h, take)) fill_many_holes(h, rows, take);
    else fill_holes(h, rows, take);
    h->changes++;
    return TH_YES;
}
