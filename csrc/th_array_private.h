/* Reading the values of views. */
#ifndef TH_ARRAY_PRIVATE_H
#define TH_ARRAY_PRIVATE_H

#include "th_array.h"
#include "th_private.h"

TH_INLINE bool th_bit(const uint8_t *bits, size_t i) { return bits[i >> 3] >> (i & 7) & 1; }

TH_INLINE bool th_is_valid(const th_array *a, size_t i) { return !a->valid || th_bit(a->valid, a->start + i); }

/* The bytes of one text. */
typedef struct th_text {
    const uint8_t *at;
    size_t size;
} th_text;

/* Finds text i; returns whether its offsets are in order and within the data. */
TH_INLINE bool th_text_at(const th_array *a, size_t i, th_text *text) {
    uint64_t from, to;
    if (a->width == 4) {
        from = th_load_le32(a->offset + (a->start + i) * 4);
        to = th_load_le32(a->offset + (a->start + i) * 4 + 4);
    } else {
        from = th_load_le64(a->offset + (a->start + i) * 8);
        to = th_load_le64(a->offset + (a->start + i) * 8 + 8);
    }
    if (from > to || to > a->size) return false;
    *text = (th_text){from == to ? a->data : a->data + from, (size_t)(to - from)};
    return true;
}

/* Copies a short text with two loads and stores that overlap, since a call of memcpy costs more. */
TH_INLINE void th_copy(uint8_t *to, const uint8_t *from, size_t size) {
    if (size >= 8 && size <= 16) {
        uint64_t low, high;
        memcpy(&low, from, 8);
        memcpy(&high, from + size - 8, 8);
        memcpy(to, &low, 8);
        memcpy(to + size - 8, &high, 8);
    } else if (size) {
        memcpy(to, from, size);
    }
}

/* Compares bytes in the same way. */
TH_INLINE bool th_same_bytes(const uint8_t *a, const uint8_t *b, size_t size) {
    if (size >= 8 && size <= 16)
        return !((th_load_le64(a) ^ th_load_le64(b)) | (th_load_le64(a + size - 8) ^ th_load_le64(b + size - 8)));
    return !size || !memcmp(a, b, size);
}

#endif
