/* The steps of XXH64, from its specification (xxHash, Yann Collet). */
#ifndef TH_XXH64_PRIVATE_H
#define TH_XXH64_PRIVATE_H

#include "th_private.h"

static const uint64_t P1 = 0x9E3779B185EBCA87, P2 = 0xC2B2AE3D27D4EB4F, P3 = 0x165667B19E3779F9,
                      P4 = 0x85EBCA77C2B2AE63, P5 = 0x27D4EB2F165667C5;

TH_INLINE uint64_t th_rotl(uint64_t x, int r) { return x << r | x >> (64 - r); }

TH_INLINE uint64_t th_round64(uint64_t acc, uint64_t input) { return th_rotl(acc + input * P2, 31) * P1; }

/* Add 8 or 4 bytes to a hash. */
TH_INLINE uint64_t th_add8(uint64_t h, uint64_t x) { return th_rotl(h ^ th_round64(0, x), 27) * P1 + P4; }

TH_INLINE uint64_t th_add4(uint64_t h, uint32_t x) { return th_rotl(h ^ x * P1, 23) * P2 + P3; }

/* Adds the last bytes, fewer than 32, to a hash. */
TH_INLINE uint64_t th_add_rest(uint64_t h, const uint8_t *p, size_t size) {
    const uint8_t *end = p + size;
    for (; end - p >= 8; p += 8) h = th_add8(h, th_load_le64(p));
    if (end - p >= 4) {
        h = th_add4(h, th_load_le32(p));
        p += 4;
    }
    for (; p != end; p++) h = th_rotl(h ^ *p * P5, 11) * P1;
    return h;
}

TH_INLINE uint64_t th_finish(uint64_t h) {
    h = (h ^ h >> 33) * P2;
    h = (h ^ h >> 29) * P3;
    return h ^ h >> 32;
}

#endif
