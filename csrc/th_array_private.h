/* Reading and comparing the values of views. */
#ifndef TH_ARRAY_PRIVATE_H
#define TH_ARRAY_PRIVATE_H

#include "th_array.h"
#include "th_private.h"

TH_INLINE bool th_bit(const uint8_t *bits, size_t i) { return bits[i >> 3] >> (i & 7) & 1; }

TH_INLINE bool th_is_valid(const th_array *a, size_t i) { return !a->valid || th_bit(a->valid, a->start + i); }

/* Reads an integer of 1, 2, 4 or 8 bytes, in the order of this machine. */
TH_INLINE int64_t th_integer(const uint8_t *from, unsigned width) {
    int16_t two;
    int32_t four;
    int64_t eight;
    if (width == 8) { /* of most columns */
        memcpy(&eight, from, 8);
        return eight;
    }
    if (width == 4) {
        memcpy(&four, from, 4);
        return four;
    }
    if (width == 1) return (int8_t)*from;
    memcpy(&two, from, 2);
    return two;
}

/* Writes the low bytes of a number, in the order of this machine. */
TH_INLINE void th_put_number(uint8_t *to, unsigned width, uint64_t x) {
    uint16_t two = (uint16_t)x;
    uint32_t four = (uint32_t)x;
    if (width == 8) memcpy(to, &x, 8);
    else if (width == 4) memcpy(to, &four, 4);
    else if (width == 2) memcpy(to, &two, 2);
    else *to = (uint8_t)x;
}

/* Counts comparisons of keys, for tests. */
#ifndef TH_COMPARED
#define TH_COMPARED() ((void)0)
#endif

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

TH_INLINE bool th_same_float(const uint8_t *a, const uint8_t *b, unsigned width) {
    if (width == 4) {
        float x, y;
        memcpy(&x, a, 4);
        memcpy(&y, b, 4);
        return x == y || (x != x && y != y);
    }
    double x, y;
    memcpy(&x, a, 8);
    memcpy(&y, b, 8);
    return x == y || (x != x && y != y);
}

/* Compares two valid values. The kind and the width are constants where this is inlined. */
TH_INLINE bool th_same_value(th_kind kind, unsigned width, const th_array *a, size_t i, const th_array *b, size_t j,
                             bool *sound) {
    if (kind == TH_TEXT) {
        th_text x, y;
        if (!th_text_at(a, i, &x) || !th_text_at(b, j, &y)) return *sound = false;
        return x.size == y.size && th_same_bytes(x.at, y.at, x.size);
    }
    if (kind == TH_BITS) return th_bit(a->data, a->start + i) == th_bit(b->data, b->start + j);
    const uint8_t *x = a->data + (a->start + i) * width, *y = b->data + (b->start + j) * width;
    return kind == TH_FLOAT ? th_same_float(x, y, width) : !memcmp(x, y, width);
}

#endif
