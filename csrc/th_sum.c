/* Sums of doubles without rounding: digits add up in 64 bits each, and are carried when a group is complete. */
#include "th_sum.h"

#include <math.h>
#include <string.h>

#define LOW UINT64_C(0xffffffff)

/* Digits by place: those from `low` up to but not including `high` may be other than 0. */
typedef struct digits {
    uint64_t at[TH_SUM_PLACES]; /* signed; what overflows is what no rows have made */
    size_t low, high;
} digits;

static void put(digits *d, size_t place, uint64_t digit) {
    d->at[place] += digit;
    if (place < d->low) d->low = place;
    if (place >= d->high) d->high = place + 1;
}

/* Adds size * 2**shift units `count` times, where `size` has at most 54 bits. */
static void put_scaled(digits *d, uint64_t size, unsigned shift, uint64_t count) {
    size_t place = shift / 32;
    uint64_t low = (size & LOW) << shift % 32, high = (size >> 32) << shift % 32;
    put(d, place, (low & LOW) * count);
    put(d, place + 1, ((low >> 32) + (high & LOW)) * count);
    put(d, place + 2, (high >> 32) * count);
}

static void put_value(digits *d, double value, uint64_t count, int power) {
    uint64_t bits, size;
    memcpy(&bits, &value, sizeof bits);
    unsigned exponent = bits >> 52 & 0x7ff;
    size = bits & ((UINT64_C(1) << 52) - 1);
    bool negative = bits >> 63 && power == 1;
    if (exponent == 0x7ff) {
        put(d, TH_SUM_DIGITS + (size ? 0 : negative ? 2 : 1), count);
        return;
    }
    if (exponent) size |= UINT64_C(1) << 52;
    if (!size) return;
    exponent += !exponent; /* of the lowest bit, plus 1075 */
    if (power == 1) {
        put_scaled(d, size, TH_SUM_BASE - 1075 + exponent, negative ? 0 - count : count);
        return;
    }
    unsigned shift = TH_SUM_BASE - 2150 + 2 * exponent;
    uint64_t high = size >> 27, low = size & ((UINT64_C(1) << 27) - 1);
    put_scaled(d, high * high, shift + 54, count);
    put_scaled(d, high * low, shift + 28, count);
    put_scaled(d, low * low, shift, count);
}

static bool put_entries(digits *d, const int64_t *entry, int64_t start, int64_t stop) {
    for (int64_t i = start; i < stop; i++) {
        uint64_t place = (uint64_t)entry[i] >> 48;
        if (place >= TH_SUM_PLACES) return false;
        put(d, place, (uint64_t)((int64_t)((uint64_t)entry[i] << 16) >> 16));
    }
    return true;
}

/* Makes digits balanced, writes their entries, and leaves all of them 0. Returns the number of entries. */
static size_t take_entries(digits *d, int64_t *entry) {
    size_t n = 0;
    int64_t carry = 0;
    for (size_t place = d->low; place < TH_SUM_PLACES && (place < d->high || carry); place++) {
        uint64_t digit = d->at[place];
        d->at[place] = 0;
        if (place == TH_SUM_DIGITS) carry = 0;
        if (place < TH_SUM_DIGITS) {
            digit += (uint64_t)carry;
            carry = (int64_t)(digit + (UINT64_C(1) << 31)) >> 32;
            digit -= (uint64_t)carry << 32;
        }
        if (digit) entry[n++] = (int64_t)((uint64_t)place << 48 | (digit & ((UINT64_C(1) << 48) - 1)));
    }
    d->low = TH_SUM_PLACES, d->high = 0;
    return n;
}

bool th_sum_add(const th_sum_rows *rows, th_sum_done *done, int64_t *entry, size_t room, int64_t *length) {
    digits d = {.low = TH_SUM_PLACES};
    for (; done->group < rows->groups && room - done->entries >= TH_SUM_PLACES; done->group++) {
        for (int64_t k = 0; k < rows->size[done->group]; k++) {
            int64_t row = rows->order[done->row++];
            if (rows->value) {
                put_value(&d, rows->value[row], rows->weight ? (uint64_t)rows->weight[row] : 1, rows->power);
            } else if (!put_entries(&d, rows->entry, rows->offset[row], rows->offset[row + 1])) {
                return false;
            }
        }
        size_t n = take_entries(&d, entry + done->entries);
        length[done->group] = (int64_t)n;
        done->entries += n;
    }
    return true;
}

/* Returns size * 2**exponent, where `size` has at most 54 bits; inf if that is too large. */
static double scaled(uint64_t size, int exponent) {
    double value = (double)size;
    while (exponent) {
        int step = exponent > 1000 ? 1000 : exponent < -1000 ? -1000 : exponent;
        uint64_t bits = (uint64_t)(step + 1023) << 52;
        double factor;
        memcpy(&factor, &bits, sizeof factor);
        value *= factor;
        exponent -= step;
    }
    return value;
}

/* Returns the double nearest to digits, which are not balanced, and leaves all of them 0. */
static double rounded(digits *d) {
    const size_t end = d->high < TH_SUM_DIGITS ? d->high : TH_SUM_DIGITS;
    uint64_t digit[TH_SUM_DIGITS + 2];
    size_t top = 0, low = 0;
    bool negative = false, any = false;
    for (size_t pass = 0; pass < 2; pass++) { /* of a negative number, once more with the signs changed */
        int64_t carry = 0;
        any = false;
        size_t place = d->low < end ? d->low : end;
        for (; place < TH_SUM_DIGITS + 2 && (place < end || (carry && carry != -1)); place++) {
            uint64_t sum = place < end ? d->at[place] : 0;
            if (negative) sum = 0 - sum;
            sum += (uint64_t)carry;
            carry = (int64_t)sum >> 32;
            digit[place] = sum & LOW;
            if (digit[place]) {
                low = any ? low : place;
                top = place;
                any = true;
            }
        }
        if (carry != -1) break;
        negative = true;
    }
    bool nan = (int64_t)d->at[TH_SUM_DIGITS] > 0;
    bool plus = (int64_t)d->at[TH_SUM_DIGITS + 1] > 0, minus = (int64_t)d->at[TH_SUM_DIGITS + 2] > 0;
    const size_t bottom = d->low;
    for (size_t place = d->low; place < d->high; place++) d->at[place] = 0;
    d->low = TH_SUM_PLACES, d->high = 0;
    if (nan || (plus && minus)) return (double)NAN;
    if (plus || minus) return plus ? (double)INFINITY : -(double)INFINITY;
    if (!any) return 0.0;
    uint64_t third = top >= bottom + 2 ? digit[top - 2] : 0;
    uint64_t bits = digit[top] << 32 | (top >= bottom + 1 ? digit[top - 1] : 0);
    int by = 0;
    while (!(bits >> 63)) {
        bits = bits << 1 | (third >> 31 & 1);
        third = third << 1 & LOW;
        by++;
    }
    bool exact = !third && low + 2 >= top;
    uint64_t size = bits >> 11, over = bits & 0x7ff;
    size += over > 0x400 || (over == 0x400 && (!exact || (size & 1)));
    double value = scaled(size, 32 * ((int)top - 1) - TH_SUM_BASE - by + 11);
    return negative ? -value : value;
}

bool th_sum_round(const int64_t *entry, const int64_t *offset, size_t n, double *value) {
    digits d = {.low = TH_SUM_PLACES};
    for (size_t i = 0; i < n; i++) {
        if (!put_entries(&d, entry, offset[i], offset[i + 1])) return false;
        value[i] = rounded(&d);
    }
    return true;
}
