/* Bulk removal of all due timers. A due row's parent is due, so the due rows are the top of the tree. */
#include "th_private.h"

/* Due rows among row i, which is due, and its descendants. Recursion ends at the depth of the heap. */
static size_t count_below(const th_heap *h, size_t i, int64_t watermark) {
    size_t n = 1, c = TH_ARITY * i + 1, end = c + TH_ARITY < h->len ? c + TH_ARITY : h->len;
    for (; c < end; c++)
        if (h->ts[c] <= watermark) n += TH_ARITY * c + 1 < h->len ? count_below(h, c, watermark) : 1;
    return n;
}

size_t th_heap_count_due(const th_heap *h, int64_t watermark) {
    return h->len && h->ts[0] <= watermark ? count_below(h, 0, watermark) : 0;
}

/* Breadth first: a queue of rows whose children are still to be looked at is what is wanted in the end. */
bool th_heap_collect_due(const th_heap *h, th_due *due) {
    if (!due->n) {
        if (!h->len || h->ts[0] > due->watermark) return true;
        due->rows[due->n++] = 0;
    }
    for (; due->seen < due->n && due->n < due->most; due->seen++) {
        size_t c = TH_ARITY * (size_t)due->rows[due->seen] + 1, end = c + TH_ARITY < h->len ? c + TH_ARITY : h->len;
        if (c >= h->len) break; /* nor has any row behind it children */
        if (due->room < due->n + TH_ARITY) return false;
        if (due->seen + TH_GROUP < due->n) th_prefetch_children(h, due->rows[due->seen + TH_GROUP]);
        for (; c < end; c++) {
            due->rows[due->n] = (uint32_t)c; /* without a branch: the last guess is not counted */
            due->n += h->ts[c] <= due->watermark;
        }
    }
    return true;
}

/* From this many due for each one taken, and for a few, sifting them out one by one beats handling all that are due. */
#define MANY 16

static bool singly(size_t due, size_t take) { return take < 10 || take < due / MANY; }

size_t th_heap_due_most(size_t take) { return take < SIZE_MAX / MANY - 1 ? (take + 1) * MANY : SIZE_MAX; }

size_t th_heap_due_room(size_t due, size_t take) { return singly(due, take) ? take : due; }

/* Takes the rows out of the index, a group of cache misses at a time. */
static void unindex(th_heap *h, const uint32_t *rows, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (i + TH_GROUP < n) TH_PREFETCH(&h->line[h->slot[rows[i + TH_GROUP]] >> 4]);
        th_leave(h, th_hash_row(h, rows[i]), h->slot[rows[i]]);
    }
}

/* Fills each hole with the last row, from the highest hole down. What is below a hole is in order by then, and what
 * is above it is a hole still, so the filler only ever sinks. Several sink together; they must be down before the
 * last row is one of theirs. */
static void fill_holes(th_heap *h, const uint32_t *rows, size_t n) {
    th_sinkers s = {0};
    unindex(h, rows, n);
    for (size_t k = n; k--;) {
        size_t hole = rows[k];
        if (!th_sink_takes(&s, hole) || (s.n && h->len - 1 <= s.highest)) th_sink(h, &s);
        if (hole != --h->len) th_sink_add(h, &s, hole, th_get(h, h->len));
    }
    th_sink(h, &s);
}

/* Closes the holes by moving up what stays, and makes index and order anew. */
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

void th_heap_pop_due(th_heap *h, const th_due *due, size_t take, int64_t *ts, int64_t *key, int64_t *ns) {
    uint32_t *rows = due->rows;
    if (singly(due->n, take)) {
        for (size_t i = 0; i < take; i++) {
            ts[i] = h->ts[0];
            key[i] = h->key[0];
            ns[i] = h->ns[0];
            th_heap_pop(h);
        }
        return;
    }
    /* Two output columns are scratch for the sort; each record is read before its row is written over it. */
    uint64_t *sorted = (uint64_t *)key;
    th_sort_rows(h, rows, due->n, sorted, (uint64_t *)ts);
    th_row bound = th_get(h, sorted[take - 1]);
    for (size_t i = 0; i < take; i++) {
        size_t row = sorted[i];
        if (i + TH_GROUP < take) {
            TH_PREFETCH(h->ts + sorted[i + TH_GROUP]);
            TH_PREFETCH(h->key + sorted[i + TH_GROUP]);
            TH_PREFETCH(h->ns + sorted[i + TH_GROUP]);
        }
        ts[i] = h->ts[row];
        key[i] = h->key[row];
        ns[i] = h->ns[row];
    }
    if (take < due->n) { /* the earliest are a top of the tree as well */
        size_t n = 0;
        for (size_t k = 0; k < due->n; k++)
            if (!th_less_row(h, bound, rows[k])) rows[n++] = rows[k];
    }
    if (take == h->len) th_heap_clear(h);
    else if (take > h->len / 4 * 3) close_holes(h, rows, take);
    else fill_holes(h, rows, take);
    h->changes++;
}
