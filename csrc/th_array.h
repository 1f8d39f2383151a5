/* Views of Arrow arrays, and the comparison of values with stored ones.
 *
 * It follows the rules of th_heap.h: C11, no allocation, one thread at a time. All reads of a view are within its
 * bounds, whatever its offsets are; who makes the view vouches for the bounds. */
#ifndef TH_ARRAY_H
#define TH_ARRAY_H

#include "th_heap.h"

typedef enum th_kind {
    TH_BITS,  /* one bit a value */
    TH_FIXED, /* `width` bytes a value */
    TH_FLOAT, /* IEEE 754, of 4 or 8 bytes: 0.0 equals -0.0, and NaN equals NaN */
    TH_TEXT   /* bytes between two offsets, which have 4 or 8 bytes each */
} th_kind;

/* The values [start, start + n) of an array. Its bytes may have any alignment. */
typedef struct th_array {
    th_kind kind;
    unsigned width;       /* bytes of a value, of text those of an offset */
    size_t start, n;
    const uint8_t *valid; /* bitmap; NULL: no value is null */
    const uint8_t *offset;
    const uint8_t *data;
    size_t size;          /* bytes of `data`; checked for text only */
} th_array;

/* Clears same[i] where `value` i differs from the stored value number place[i]; null equals null only. Skips rows whose
 * same[i] is 0. Returns TH_YES; or TH_CORRUPT if a place or an offset lies outside of the stored array, or if an offset
 * of the values does. Both arrays must be of one kind; the offsets of text may differ in width. */
th_status th_array_compare(const th_array *stored, const int64_t *place, const th_array *value, uint8_t *same);

/* Returns a hash of one row of several columns: SipHash-1-3 with a secret seed, so that nobody can choose rows that
 * collide. Rows that th_array_compare calls the same have the same hash. Clears *sound if an offset lies outside. */
int64_t th_array_hash(const th_array *column, size_t columns, size_t row, const uint64_t seed[2], bool *sound);

/* Hashes n rows. Returns TH_YES; or TH_CORRUPT if an offset lies outside of its array. */
th_status th_array_hash_many(const th_array *column, size_t columns, size_t n, const uint64_t seed[2], int64_t *hash);

#endif
