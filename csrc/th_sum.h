/* Sums of doubles without rounding, as integers in units of 2**-TH_SUM_BASE.
 *
 * A sum is a list of entries, one for each of its digits of 32 bits that is not 0, from the lowest on. Digits are
 * balanced: from -2**31 to 2**31 - 1; so a number has one list. An entry has its place in the upper 16 bits and the
 * digit in the lower 48. NaN, inf and -inf are counted at the places from TH_SUM_DIGITS on. It allocates nothing. */
#ifndef TH_SUM_H
#define TH_SUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TH_SUM_BASE 2272
#define TH_SUM_DIGITS 144
#define TH_SUM_PLACES (TH_SUM_DIGITS + 3)

/* Rows by group: `order` has the rows, those of each group side by side, and `size` how many each has.
 *
 * A row is a number, or its square if `power` is 2, as often as its weight says, once if `weight` is NULL; or, if
 * `value` is NULL, a sum: the entries from offset[i] to offset[i + 1]. */
typedef struct th_sum_rows {
    const double *value;
    const int64_t *weight;
    int power;
    const int64_t *entry;
    const int64_t *offset;
    const int64_t *order;
    const int64_t *size;
    size_t groups;
} th_sum_rows;

/* How far th_sum_add has come. */
typedef struct th_sum_done {
    size_t group, row, entries;
} th_sum_done;

/* Adds up groups as long as there is room for TH_SUM_PLACES entries more; sets the number of entries of each. Returns
 * whether all entries have a place that there is. */
bool th_sum_add(const th_sum_rows *rows, th_sum_done *done, int64_t *entry, size_t room, int64_t *length);

/* Writes the doubles nearest to n sums, of two equally near ones the even one. Returns as th_sum_add. */
bool th_sum_round(const int64_t *entry, const int64_t *offset, size_t n, double *value);

#endif
