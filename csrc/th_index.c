/* Size and construction of the dedup index. The inner loops are in th_private.h. */
#include "th_private.h"

_Static_assert(sizeof(th_line) == 64, "an index line must be a cache line");

/* Lines are at most 3/4 full. */
size_t th_index_lines(size_t cap) { return (cap + 8) / 9; }

/* The number of rows whose lines are fetched ahead. More than a group, since nothing else is waited for here. */
#define BLOCK 32

/* The home line and the tag of the entry of a row. */
typedef struct place {
    uint32_t home;
    uint8_t tag;
} place;

/* Pairs of rows with the same tag in the same line, which are fetched first and compared later. */
typedef struct suspects {
    size_t n;
    uint32_t row[TH_GROUP], other[TH_GROUP];
} suspects;

TH_INLINE void fetch(const th_heap *h, size_t i, place *places) {
    for (size_t end = i + BLOCK < h->len ? i + BLOCK : h->len; i < end; i++) {
        uint64_t hash = th_hash_row(h, i);
        size_t home = th_home(h, hash);
        *places++ = (place){(uint32_t)home, th_tag(hash)};
        TH_PREFETCH(&h->line[home]);
    }
}

/* Returns whether the rows of any pair have the same identity, and empties s. */
static bool compare(const th_heap *h, suspects *s) {
    bool same = false;
    for (size_t k = 0; k < s->n; k++) {
        size_t i = s->row[k];
        same |= th_same(h, s->other[k], h->ts[i], h->key[i], h->ns[i]);
    }
    s->n = 0;
    return same;
}

/* Adds the rows in this line that may have the identity of row i; returns whether a comparison found a duplicate. */
TH_INLINE bool suspect(const th_heap *h, suspects *s, const th_line *b, uint8_t tag, size_t i) {
    bool same = false;
    for (unsigned m = th_match(b, tag); TH_UNLIKELY(m); m &= m - 1) {
        size_t other = b->row[th_ctz(m)];
        TH_PREFETCH(h->key + other);
        TH_PREFETCH(h->ns + other);
        TH_PREFETCH(h->ts + other);
        s->row[s->n] = (uint32_t)i;
        s->other[s->n++] = (uint32_t)other;
        if (s->n == TH_GROUP) same |= compare(h, s);
    }
    return same;
}

/* Builds the index; if `verify`, checks for duplicate identities. */
TH_INLINE th_status build(th_heap *heap, bool verify) {
    th_heap h = *heap; /* a copy stays in registers, since stores to tags may alias any memory */
    place places[2][BLOCK];
    suspects s = {0};
    bool same = false;
    fetch(&h, 0, places[0]);
    for (size_t i = 0; i < h.len && !same;) {
        const place *p = places[i / BLOCK % 2];
        fetch(&h, i + BLOCK, places[i / BLOCK % 2 ^ 1]);
        for (size_t end = i + BLOCK < h.len ? i + BLOCK : h.len; i < end; i++, p++) {
            /* Lines only fill up here, so an equal entry is found before the first line with a free lane. */
            size_t at = p->home;
            uint32_t slot;
            while (true) {
                if (verify) same |= suspect(&h, &s, &h.line[at], p->tag, i);
                if (th_enter_line(&h, at, p->tag, i, &slot)) break;
                if (++at == h.lines) at = 0;
            }
            h.slot[i] = slot;
        }
    }
    return same || compare(&h, &s) ? TH_DUPLICATE : TH_YES;
}

void th_heap_reindex(th_heap *h) { build(h, false); }

/* Returns whether no row precedes its parent. */
static bool ordered(const th_heap *h) {
    for (size_t p = 0, c = 1; c < h->len; p++) {
        size_t end = c + TH_ARITY < h->len ? c + TH_ARITY : h->len;
        for (; c < end; c++)
            if (TH_UNLIKELY(h->ts[c] <= h->ts[p]) && th_row_less(h, c, (th_row){h->ts[p], h->key[p], h->ns[p], 0}))
                return false;
    }
    return true;
}

th_status th_heap_restore(th_heap *h) {
    h->changes++;
    return ordered(h) ? build(h, true) : TH_DISORDER;
}
