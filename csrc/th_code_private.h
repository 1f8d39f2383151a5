/* Codes as the tree compares them, and sums of weights. */
#ifndef TH_CODE_PRIVATE_H
#define TH_CODE_PRIVATE_H

#include "th_code.h"
#include "th_private.h"

TH_INLINE uint64_t th_swap64(uint64_t x) {
    x = (x & 0x00FF00FF00FF00FF) << 8 | (x >> 8 & 0x00FF00FF00FF00FF);
    x = (x & 0x0000FFFF0000FFFF) << 16 | (x >> 16 & 0x0000FFFF0000FFFF);
    return x << 32 | x >> 32;
}

/* Returns up to 8 bytes as a number that orders them: the first byte counts most, and missing ones are 0. */
TH_INLINE uint64_t th_front(const uint8_t *from, size_t size) {
    uint64_t x = 0;
    if (size >= 8) return th_swap64(th_load_le64(from));
    for (size_t k = 0; k < size; k++) x |= (uint64_t)from[k] << (56 - 8 * k);
    return x;
}

/* Writes the bytes that th_front has read. */
TH_INLINE void th_put_front(uint8_t *to, uint64_t x, size_t size) {
    for (size_t k = 0; k < size && k < 8; k++) to[k] = (uint8_t)(x >> (56 - 8 * k));
}

/* Adds two weights. The result lies within (INT64_MIN, INT64_MAX], so that it can be negated; returns whether it does.
 */
TH_INLINE bool th_add_weights(int64_t a, int64_t b, int64_t *sum) {
    if (b > 0 ? a > INT64_MAX - b : a <= INT64_MIN - b) return false;
    *sum = a + b;
    return true;
}

#endif
