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

/* From this many due for each one taken, and for a few, sifting them out one by one beats handling all that are due. */
#define MANY 16

static bool singly(size_t due, size_t take) { return take < 10 || take < due / MANY; }

/* As many due rows as make a difference. */
static size_t enough(size_t limit) { return limit < SIZE_MAX / MANY - 1 ? (limit + 1) * MANY : SIZE_MAX; }

/* Collects the due rows in the scratch, ascending, until there are enough; false if they need more of it. Breadth
 * first: a queue of rows whose children are still to be looked at is what is wanted in the end. */
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
        if (c >= h->len) break; /* nor has any row behind it children */
        if (room < due->found + TH_ARITY) return false;
        if (due->seen + TH_GROUP < due->found) th_prefetch_children(h, rows[due->seen + TH_GROUP]);
        for (; c < end; c++) {
            rows[due->found] = (uint32_t)c; /* without a branch: the last guess is not counted */
            due->found += h->ts[c] <= due->watermark;
        }
    }
    return true;
}

/* Writes the rows in their order. A column of the result may hold `sorted`: each record is read before its row is
 * written over it. */
static void gather(const th_heap *h, const uint64_t *sorted, const th_due *due) {
    for (size_t i = 0; i < due->n; i++) {
        size_t row = sorted[i];
        if (i + TH_GROUP < due->n) {
            TH_PREFETCH(h->ts + sorted[i + TH_GROUP]);
            TH_PREFETCH(h->key + sorted[i + TH_GROUP]);
            TH_PREFETCH(h->ns + sorted[i + TH_GROUP]);
        }
        due->ts[i] = h->ts[row];
        due->key[i] = h->key[row];
        due->ns[i] = h->ns[row];
    }
}

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

/* The same for many holes: the order is made when they are filled. */
static void fill_many_holes(th_heap *h, const uint32_t *rows, size_t n) {
    unindex(h, rows, n);
    for (size_t k = n; k--;) {
        size_t last = --h->len;
        if (last >= TH_GROUP) TH_PREFETCH(&h->line[h->slot[last - TH_GROUP] >> 4]);
        if (rows[k] != last) th_put(h, rows[k], th_get(h, last));
    }
    th_heapify(h);
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
        due->need = 4 * due->words + TH_ARITY;
        return TH_FULL;
    }
    size_t found = due->found, take = found < due->limit ? found : due->limit;
    size_t rows_end = (found + 1) / 2, all = rows_end + 2 * found;
    if (take < found && !singly(found, take) && due->words < all) {
        due->need = all;
        return TH_FULL;
    }
    due->n = take;
    if (due->room != take) return TH_FULL;

    if (singly(found, take)) {
        pop_singly(h, due);
        return TH_YES;
    }
    /* To sort takes two words a row: of the result's, when it has as many rows. */
    uint32_t *rows = (uint32_t *)due->scratch;
    uint64_t *sorted = take < found ? due->scratch + rows_end : (uint64_t *)due->key;
    th_sort_rows(h, rows, found, sorted, take < found ? sorted + found : (uint64_t *)due->ts);
    if (take < found) { /* the earliest are a top of the tree as well */
        th_row bound = th_get(h, sorted[take - 1]);
        size_t n = 0;
        for (size_t k = 0; k < found; k++)
            if (!th_less_row(h, bound, rows[k])) rows[n++] = rows[k];
    }
    gather(h, sorted, due);
    if (take == h->len) th_heap_clear(h);
    else if (take > h->len / 4 * 3) close_holes(h, rows, take);
    else if (take > h->len / 8) fill_many_holes(h, rows, take);
    else fill_holes(h, rows, take);
    h->changes++;
    return TH_YES;
}
