/* Rows of Arrow arrays, copied to where the rows of their key groups go, and the hashes that say which group that is.
 *
 * Each key group has a rank, its position in the order of the output. The rows of a rank keep their order. One pass
 * counts, so that the caller can lend memory, and one pass copies. It follows the rules of th_array.h. */
#ifndef TH_PACK_H
#define TH_PACK_H

#include "th_array.h"

/* The maximum number of key groups. */
#define TH_MAX_GROUPS ((size_t)1 << 15)

/* Computes Spark's xxhash64 of each value, with the seed in `hash`: of text, of integers of up to 4 bytes as int, or of
 * 8 bytes as bigint. Null leaves the seed. Returns TH_YES; or TH_CORRUPT if an offset lies outside of the array. */
th_status th_pack_hash(const th_array *a, int64_t *hash);

/* Sets rank[i] to rank_of[hash[i] modulo groups], where the modulus is never negative, and counts the rows of each rank
 * in count[]. The hashes may be written to during the call. */
void th_pack_rank(const int64_t *hash, size_t n, size_t groups, const uint16_t *rank_of, uint16_t *rank,
                  uint64_t *count);

/* What the rows of one rank need. */
typedef struct th_need {
    uint64_t nulls;
    uint64_t size, longest; /* of text: bytes in all, and of the longest */
    int64_t low, high;      /* of integers of 8 bytes: the least and the largest; INT64_MAX and INT64_MIN for none */
} th_need;

/* Adds an array to what the ranks of its rows need. Returns TH_YES; or TH_CORRUPT if an offset lies outside of it. */
th_status th_pack_measure(const th_array *a, const uint16_t *rank, th_need *need);

/* Where the rows of one rank go. */
typedef struct th_target {
    uint8_t *valid; /* a zeroed bitmap, or NULL */
    size_t row;     /* the bit of the next row in `valid` and, of bits, in `value` */
    uint8_t *value; /* the next value, of text its length; of bits, a zeroed bitmap */
    uint8_t *text;  /* the next text */
    uint8_t *end;   /* of its text */
    int64_t base;   /* subtracted from integers of 8 bytes that are written with fewer */
    unsigned width; /* bytes of each value that is written, of text those of a length */
} th_target;

/* Copies the rows of an array and moves the targets on; `nulls` says whether a target has a bitmap `valid`. Returns
 * TH_YES; or TH_CORRUPT if an offset lies outside of the array, or if a text has no room, as can happen only if the
 * array has changed since it was measured. */
th_status th_pack_put(const th_array *a, const uint16_t *rank, bool nulls, th_target *target);

/* Reads n integers of 1, 2 or 4 bytes, adds `base`, which may wrap around, and writes them with 8 bytes. */
void th_pack_widen(const uint8_t *from, unsigned width, int64_t base, size_t n, int64_t *to);

/* Turns n lengths of 1, 2 or 4 bytes into n + 1 offsets. TH_CORRUPT: their sum is not `size`, or over 31 bits. */
th_status th_pack_offsets(const uint8_t *from, unsigned width, size_t n, uint64_t size, int32_t *to);

#endif
