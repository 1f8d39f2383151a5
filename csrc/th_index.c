/* The dedup index as a whole: its size and its making. The inner loops are in th_private.h. */
#include "th_private.h"

/* Lines are at most 4/5 full: 48 rows to 5 lines. */
size_t th_index_lines(size_t cap) { return (cap * 5 + 47) / 48; }

void th_heap_reindex(th_heap *h) {
    uint64_t hash[TH_GROUP];
    for (size_t i = 0; i < h->len; i += TH_GROUP) {
        size_t n = h->len - i < TH_GROUP ? h->len - i : TH_GROUP;
        for (size_t k = 0; k < n; k++) {
            hash[k] = th_hash_row(h, i + k);
            TH_PREFETCH(&h->line[th_home(h, hash[k])]);
        }
        for (size_t k = 0; k < n; k++) h->slot[i + k] = th_enter(h, hash[k], i + k);
    }
}

th_status th_heap_restore(th_heap *h) {
    uint64_t hash[TH_GROUP];
    for (size_t i = 1; i < h->len; i++) {
        size_t p = (i - 1) / TH_ARITY;
        if (TH_UNLIKELY(h->ts[i] <= h->ts[p]) && th_less_row(h, (th_row){h->ts[i], h->key[i], h->ns[i], 0}, p))
            return TH_DISORDER;
    }
    for (size_t i = 0; i < h->len; i += TH_GROUP) {
        size_t n = h->len - i < TH_GROUP ? h->len - i : TH_GROUP;
        for (size_t k = 0; k < n; k++) {
            hash[k] = th_hash_row(h, i + k);
            TH_PREFETCH(&h->line[th_home(h, hash[k])]);
        }
        for (size_t k = 0; k < n; k++) {
            size_t at = i + k;
            if (th_lookup(h, hash[k], h->ts[at], h->key[at], h->ns[at]) != SIZE_MAX) return TH_DUPLICATE;
            h->slot[at] = th_enter(h, hash[k], at);
        }
    }
    h->changes++;
    return TH_YES;
}
