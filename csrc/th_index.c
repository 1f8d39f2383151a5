/* The dedup index as a whole: its size and its making. The inner loops are in th_private.h. */
#include "th_private.h"

_Static_assert(sizeof(th_line) == 64, "a line of the index is a cache line");

/* Lines are at most 3/4 full. */
size_t th_index_lines(size_t cap) { return (cap + 8) / 9; }

/* `verify`: that no identity is there twice. */
TH_INLINE th_status build(th_heap *heap, bool verify) {
    th_heap h = *heap; /* a copy that stays in registers: stores to tags might change any memory */
    uint64_t hash[TH_GROUP];
    for (size_t i = 0; i < h.len; i += TH_GROUP) {
        size_t n = h.len - i < TH_GROUP ? h.len - i : TH_GROUP;
        for (size_t k = 0; k < n; k++) {
            hash[k] = th_hash_row(&h, i + k);
            TH_PREFETCH(&h.line[th_home(&h, hash[k])]);
        }
        for (size_t k = 0; k < n; k++) {
            size_t at = i + k;
            if (verify && th_lookup(&h, hash[k], h.ts[at], h.key[at], h.ns[at]) != SIZE_MAX) return TH_DUPLICATE;
            h.slot[at] = th_enter(&h, hash[k], at);
        }
    }
    return TH_YES;
}

void th_heap_reindex(th_heap *h) { build(h, false); }

th_status th_heap_restore(th_heap *h) {
    for (size_t i = 1; i < h->len; i++) {
        size_t p = (i - 1) / TH_ARITY;
        if (TH_UNLIKELY(h->ts[i] <= h->ts[p]) && th_row_less(h, i, (th_row){h->ts[p], h->key[p], h->ns[p], 0}))
            return TH_DISORDER;
    }
    h->changes++;
    return build(h, true);
}
