/* The order of the heap, the operations on single timers, and the check of all invariants. */
#include "th_private.h"

static size_t parent(size_t i) { return (i - 1) / TH_ARITY; }

/* Returns the least of the siblings with equal timestamps; `ties` has a bit for each sibling from c on. */
static size_t least_of_ties(const th_heap *h, size_t c, unsigned ties) {
    size_t best = c + th_ctz(ties);
    int64_t least = h->key[best];
    while (ties &= ties - 1) {
        size_t i = c + th_ctz(ties);
        int64_t key = h->key[i];
        bool less = key < least;
        if (TH_UNLIKELY(key == least)) less = h->ns[i] < h->ns[best];
        best = less ? i : best;
        least = less ? key : least;
    }
    return best;
}

/* Returns the least of the children from c on. Eight children are compared by conditional moves, since the result is
 * random and a branch would be mispredicted. */
TH_INLINE size_t least_child(const th_heap *h, size_t c, size_t end) {
    const int64_t *t = h->ts + c;
    unsigned ties = 0;
    if (c + TH_ARITY <= end) {
        int64_t a = t[0] < t[1] ? t[0] : t[1], b = t[2] < t[3] ? t[2] : t[3];
        int64_t d = t[4] < t[5] ? t[4] : t[5], e = t[6] < t[7] ? t[6] : t[7];
        a = a < b ? a : b;
        d = d < e ? d : e;
        a = a < d ? a : d;
        for (unsigned k = 0; k < TH_ARITY; k++) ties |= (unsigned)(t[k] == a) << k;
    } else {
        int64_t a = t[0];
        for (size_t k = 1; k < end - c; k++) a = t[k] < a ? t[k] : a;
        for (unsigned k = 0; k < end - c; k++) ties |= (unsigned)(t[k] == a) << k;
    }
    return ties & (ties - 1) ? least_of_ties(h, c, ties) : c + th_ctz(ties);
}

/* Returns the least child, and fetches what is needed to move it up and to go on from there. */
TH_INLINE size_t fetch_least_child(const th_heap *h, size_t c, size_t end) {
    TH_PREFETCH(h->key + c); /* siblings share lines, so this needs no timestamps */
    TH_PREFETCH(h->ns + c);
    TH_PREFETCH(h->slot + c);
    if (TH_ARITY * c + 1 < end) /* the children of the least child are needed next */
        for (size_t k = 0; k < TH_ARITY; k++) th_prefetch_children(h, c + k);
    return least_child(h, c, end);
}

void th_sift_up(th_heap *h, size_t i, th_row x) {
    while (i && th_less_row(h, x, parent(i))) {
        th_put(h, i, th_get(h, parent(i)));
        i = parent(i);
    }
    th_put_back(h, i, x);
}

void th_sift_down(th_heap *h, size_t i, size_t end, th_row x) {
    for (size_t c; (c = TH_ARITY * i + 1) < end;) {
        size_t best = fetch_least_child(h, c, end);
        if (!th_row_less(h, best, x)) break;
        th_put(h, i, th_get(h, best));
        i = best;
    }
    th_put_back(h, i, x);
}

void th_settle(th_heap *h, size_t i, size_t end, th_row x) {
    if (i && th_less_row(h, x, parent(i))) th_sift_up(h, i, x);
    else th_sift_down(h, i, end, x);
}

void th_sink_add(th_heap *h, th_sinkers *s, size_t i, th_row x) {
    if (!s->n) s->highest = i;
    s->at[s->n] = i;
    s->x[s->n++] = x;
    TH_PREFETCH(&h->line[x.slot >> 4]); /* written when x is placed */
    th_prefetch_children(h, i);
}

/* Sifts all rows down by one level in two passes, so that their cache misses overlap. */
void th_sink(th_heap *h, th_sinkers *s) {
    size_t best[TH_GROUP];
    for (size_t n = s->n; n;) {
        for (size_t k = 0; k < n;) {
            size_t i = s->at[k], c = TH_ARITY * i + 1;
            best[k] = c < h->len ? least_child(h, c, h->len) : i;
            if (best[k] != i && th_row_less(h, best[k], s->x[k])) {
                TH_PREFETCH(h->key + best[k]);
                TH_PREFETCH(h->ns + best[k]);
                TH_PREFETCH(h->slot + best[k]);
                th_prefetch_children(h, best[k]);
                k++;
            } else {
                th_put_back(h, i, s->x[k]);
                s->at[k] = s->at[--n];
                s->x[k] = s->x[n];
            }
        }
        for (size_t k = 0; k < n; k++) {
            th_put(h, s->at[k], th_get(h, best[k]));
            s->at[k] = best[k];
        }
    }
    s->n = 0;
}

void th_sweep(th_heap *h, size_t lo, size_t hi) {
    th_sinkers s;
    s.n = 0;
    for (size_t i = hi; i-- > lo;) {
        if (i >= TH_GROUP) th_prefetch_children(h, i - TH_GROUP);
        if (!th_sink_takes(&s, i)) th_sink(h, &s);
        if (h->ts[least_child(h, TH_ARITY * i + 1, h->len)] <= h->ts[i]) th_sink_add(h, &s, i, th_get(h, i));
    }
    th_sink(h, &s);
}

void th_heapify(th_heap *h) {
    if (h->len > 1) th_sweep(h, 0, parent(h->len - 1) + 1);
}

void th_drop(th_heap *h, size_t i, uint64_t hash, bool loose) {
    th_leave(h, hash, h->slot[i]);
    size_t last = --h->len;
    if (i == last) return;
    if (loose && last >= TH_GROUP) TH_PREFETCH(&h->line[h->slot[last - TH_GROUP] >> 4]); /* will fill a gap soon */
    if (loose) th_put(h, i, th_get(h, last));
    else th_settle(h, i, last, th_get(h, last));
}

void th_reschedule(th_heap *h, size_t i, uint64_t hash, int64_t new_ts, uint64_t new_hash, bool loose) {
    if (h->ts[i] == new_ts) return;
    size_t there = th_lookup(h, new_hash, new_ts, h->key[i], h->ns[i]);
    if (there != SIZE_MAX && there != i) { /* a timer that moves is there itself */
        th_drop(h, i, hash, loose);
        return;
    }
    th_leave(h, hash, h->slot[i]);
    h->slot[i] = th_enter(h, new_hash, i);
    h->ts[i] = new_ts;
    if (!loose) th_settle(h, i, h->len, th_get(h, i));
}

/* ---- single operations ---- */

/* From this size on, a pop waits for memory at the last levels, and looks for the path of the next one. */
#ifndef TH_LARGE
#define TH_LARGE ((size_t)1 << 17)
#endif

/* Finds the path of the next pop and fetches its memory, so that the wait overlaps with the work until then. */
static void find_path(th_heap *h) {
    uint32_t *p = h->path;
    TH_PREFETCH(&h->line[h->slot[h->len - 1] >> 4]);
    for (size_t i = 0, c; (c = TH_ARITY * i + 1) < h->len; *p++ = (uint32_t)i) {
        i = fetch_least_child(h, c, h->len);
        TH_PREFETCH(&h->line[h->slot[i] >> 4]);
    }
    *p = UINT32_MAX;
    h->path_of = h->changes;
}

/* Keeps the path when the timer of a slot has moved from row i, unless it can be a child of a row of the path. The path
 * is that of the next pop as long as `path_of` is equal to `changes`, so it counts the change before `changes` does. */
TH_INLINE void keep_path(th_heap *h, size_t i, uint32_t slot) {
    if (h->path_of != h->changes) return;
    size_t to = h->line[slot >> 4].row[slot & 15], above = to && i ? parent(to < i ? to : i) : 0;
    const uint32_t *p = h->path;
    while (*p < above) p++;
    h->path_of += above && *p != above;
}

/* Counts the change that has moved the timer of a slot from row i. The only place where a path outlives a change. */
TH_INLINE void count_move(th_heap *h, size_t i, uint32_t slot) {
    keep_path(h, i, slot);
    h->changes++;
}

static uint64_t splitmix64(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
}

void th_seed(uint64_t out[3], uint64_t seed) {
    for (int k = 0; k < 3; k++) out[k] = splitmix64(&seed);
    out[2] |= 1;
}

void th_heap_init(th_heap *h, th_identity identity, uint64_t seed) {
    *h = (th_heap){.identity = identity, .changes = 1};
    th_seed(h->seed, seed);
}

void th_heap_copy(th_heap *to, const th_heap *h) {
    if (!h->cap) return;
    memcpy(to->ts, h->ts, h->len * sizeof *h->ts);
    memcpy(to->key, h->key, h->len * sizeof *h->key);
    memcpy(to->ns, h->ns, h->len * sizeof *h->ns);
    memcpy(to->slot, h->slot, h->len * sizeof *h->slot);
    memcpy(to->line, h->line, h->lines * sizeof *h->line);
    memcpy(to->seed, h->seed, sizeof h->seed);
    to->len = h->len;
    to->identity = h->identity;
    to->changes++;
}

void th_heap_clear(th_heap *h) {
    if (h->lines) memset(h->line, 0, h->lines * sizeof(th_line));
    h->len = 0;
    h->changes++;
}

bool th_heap_find(const th_heap *h, int64_t ts, int64_t key, int64_t ns, size_t *row) {
    *row = th_lookup(h, th_hash(h, ts, key, ns), ts, key, ns);
    return *row != SIZE_MAX;
}

th_status th_heap_push(th_heap *h, int64_t ts, int64_t key, int64_t ns) {
    uint64_t hash = th_hash(h, ts, key, ns);
    size_t i = th_lookup(h, hash, ts, key, ns);
    if (i != SIZE_MAX) {
        if (h->ts[i] != ts) {
            th_row x = th_get(h, i);
            x.ts = ts;
            th_settle(h, i, h->len, x);
            count_move(h, i, x.slot);
        }
        return TH_NO;
    }
    if (h->len == h->cap) return TH_FULL;
    th_row x = {ts, key, ns, th_enter(h, hash, h->len)};
    th_sift_up(h, h->len++, x);
    count_move(h, h->len - 1, x.slot);
    return TH_YES;
}

bool th_heap_remove(th_heap *h, int64_t ts, int64_t key, int64_t ns) {
    uint64_t hash = th_hash(h, ts, key, ns);
    size_t i = th_lookup(h, hash, ts, key, ns);
    if (i == SIZE_MAX) return false;
    th_drop(h, i, hash, false);
    h->changes++;
    return true;
}

bool th_heap_reschedule(th_heap *h, int64_t ts, int64_t new_ts, int64_t key, int64_t ns) {
    uint64_t hash = th_hash(h, ts, key, ns);
    size_t i = th_lookup(h, hash, ts, key, ns);
    if (i == SIZE_MAX) return false;
    th_reschedule(h, i, hash, new_ts, th_hash(h, new_ts, key, ns), false);
    h->changes++;
    return true;
}

void th_heap_pop(th_heap *h) {
    th_leave(h, th_hash_row(h, 0), h->slot[0]);
    th_row x = th_get(h, --h->len);
    if (h->path_of == h->changes) {
        size_t i = 0;
        for (const uint32_t *p = h->path; *p < h->len && th_row_less(h, *p, x); i = *p++) th_put(h, i, th_get(h, *p));
        th_put(h, i, x);
    } else if (h->len) th_sift_down(h, 0, h->len, x);
    h->changes++;
    if (h->len >= TH_LARGE) find_path(h);
}

/* ---- invariants ---- */

/* Adds `by` to the counts of all lines that the entries of the rows passed. */
static void count_passed(th_heap *h, uint32_t by) {
    for (size_t i = 0; i < h->len; i++) {
        size_t at = th_home(h, th_hash_row(h, i)), end = h->slot[i] >> 4;
        for (; at != end; at = at + 1 == h->lines ? 0 : at + 1) h->line[at].passed += by;
    }
}

th_status th_heap_check(th_heap *h) {
    if (h->len > h->cap || h->cap > TH_MAX_ROWS || h->lines < th_index_lines(h->cap)) return TH_CORRUPT;
    for (size_t i = 0; i < h->len; i++) {
        uint32_t line = h->slot[i] >> 4, lane = h->slot[i] & 15;
        if (line >= h->lines || lane >= TH_LANES || h->line[line].row[lane] != i) return TH_CORRUPT;
        if (h->line[line].tag[lane] != th_tag(th_hash_row(h, i))) return TH_CORRUPT;
        if (i && th_less_row(h, th_get(h, i), parent(i))) return TH_DISORDER;
    }
    for (size_t i = 0; i < h->len; i++)
        if (th_lookup(h, th_hash_row(h, i), h->ts[i], h->key[i], h->ns[i]) != i) return TH_DUPLICATE;

    size_t free = 0, passed = 0;
    count_passed(h, (uint32_t)-1);
    for (size_t at = 0; at < h->lines; at++) {
        for (unsigned m = th_match(&h->line[at], 0); m; m &= m - 1) free++;
        passed |= h->line[at].passed;
    }
    count_passed(h, 1);
    return h->lines * TH_LANES - free == h->len && passed == 0 ? TH_YES : TH_CORRUPT;
}
