/* The comparison of values with stored ones. */
#include "th_array_private.h"

/* The rows whose stored values are fetched together. */
#define BLOCK 32

/* Fetches where the stored values of rows are: first their offsets, then, `deep`, their bytes. */
TH_INLINE void fetch(th_kind kind, unsigned width, const th_array *a, const int64_t *place, const uint8_t *same,
                     size_t n, bool deep) {
    for (size_t i = 0; i < n; i++) {
        th_text text;
        if (!same[i] || (uint64_t)place[i] >= a->n) continue;
        if (kind != TH_TEXT) {
            TH_PREFETCH(a->data + (a->start + (size_t)place[i]) * width);
        } else if (!deep) {
            TH_PREFETCH(a->offset + (a->start + (size_t)place[i]) * a->width);
        } else if (th_text_at(a, (size_t)place[i], &text)) {
            TH_PREFETCH(text.at);
        }
    }
}

TH_INLINE th_status compare(th_kind kind, unsigned width, const th_array *a, const int64_t *place, const th_array *b,
                            uint8_t *same) {
    bool sound = true;
    for (size_t at = 0; at < b->n; at += BLOCK) {
        size_t end = at + BLOCK < b->n ? at + BLOCK : b->n;
        if (kind != TH_BITS) fetch(kind, width, a, place + at, same + at, end - at, false);
        if (kind == TH_TEXT) fetch(kind, width, a, place + at, same + at, end - at, true);
        for (size_t i = at; i < end; i++) {
            if (!same[i]) continue;
            if ((uint64_t)place[i] >= a->n) return TH_CORRUPT;
            bool valid = th_is_valid(a, (size_t)place[i]);
            same[i] =
                valid == th_is_valid(b, i) && (!valid || th_same_value(kind, width, a, (size_t)place[i], b, i, &sound));
        }
    }
    return sound ? TH_YES : TH_CORRUPT;
}

th_status th_array_compare(const th_array *stored, const int64_t *place, const th_array *value, uint8_t *same) {
    switch (value->kind) {
    case TH_TEXT:
        return compare(TH_TEXT, 0, stored, place, value, same);
    case TH_BITS:
        return compare(TH_BITS, 0, stored, place, value, same);
    case TH_FLOAT:
        return compare(TH_FLOAT, value->width, stored, place, value, same);
    default:
        break;
    }
    if (value->width == 8) return compare(TH_FIXED, 8, stored, place, value, same);
    if (value->width == 4) return compare(TH_FIXED, 4, stored, place, value, same);
    return compare(TH_FIXED, value->width, stored, place, value, same);
}
