/* Compares values with stored ones, and each result with that of a plain loop. */
#include "testing.h"
#include "th_array.h"

#include <math.h>

#define MOST 100

/* An array, in memory of exactly the size that it needs, and what it holds. */
typedef struct held {
    th_array a;
    uint8_t *valid, *offset, *data;
    size_t value[MOST]; /* equal values have equal numbers */
    bool null[MOST];
} held;

static void set_bit(uint8_t *bits, size_t i, bool on) {
    bits[i / 8] = (uint8_t)((bits[i / 8] & ~(1u << i % 8)) | (unsigned)on << i % 8);
}

/* Value number v: its bytes, of text also their number. */
static size_t bytes_of(th_kind kind, unsigned width, size_t v, uint8_t *to) {
    if (kind == TH_FLOAT) {
        const double doubles[] = {0.0, 1.5, -1e300, (double)NAN, 7, 8};
        double d = v == 0 && below(2) ? -0.0 : v == 3 && below(2) ? -(double)NAN : doubles[v];
        float f = (float)d;
        memcpy(to, width == 4 ? (void *)&f : (void *)&d, width);
        return width;
    }
    size_t size = kind == TH_TEXT ? (size_t[]){0, 3, 8, 13, 17, 40}[v] : width;
    for (size_t k = 0; k < size; k++) to[k] = (uint8_t)(k + 1 == size ? v + 1 : 7);
    return size;
}

static held *make(th_kind kind, unsigned width, size_t start, size_t n, bool nulls) {
    held *h = memory(sizeof *h);
    uint8_t *bytes = memory((start + n) * 64 + 64);
    size_t size = 0, all = start + n, bits = (all + 7) / 8;
    h->valid = memory(bits);
    h->offset = memory((all + 1) * width);
    memset(h->offset, 0, width);
    for (size_t i = 0; i < all; i++) {
        size_t v = below(kind == TH_BITS ? 2 : 6);
        bool null = nulls && !below(4);
        set_bit(h->valid, i, !null);
        if (kind == TH_BITS) set_bit(bytes, i, v);
        else size += bytes_of(kind, width, v, bytes + size);
        if (kind == TH_TEXT) {
            uint64_t end = size;
            memcpy(h->offset + (i + 1) * width, &end, width); /* little-endian, as Arrow's are on this machine */
        }
        if (i >= start) h->value[i - start] = v, h->null[i - start] = null;
    }
    if (kind == TH_BITS) size = bits;
    h->data = memory(size);
    memcpy(h->data, bytes, size);
    free(bytes);
    h->a = (th_array){kind, width, start, n, nulls ? h->valid : NULL, h->offset, h->data, size};
    return h;
}

static void drop(held *h) { free(h->valid), free(h->offset), free(h->data), free(h); }

static void compares(th_kind kind, unsigned width, unsigned other_width) {
    held *stored = make(kind, width, below(20), 1 + below(MOST - 1), below(2));
    held *value = make(kind, other_width, below(20), below(MOST), below(2));
    size_t n = value->a.n;
    int64_t *place = memory(n * sizeof *place);
    uint8_t *same = memory(n), *asked = memory(n);
    for (size_t i = 0; i < n; i++) {
        asked[i] = same[i] = below(4) != 0;
        place[i] = asked[i] ? (int64_t)below(stored->a.n) : -1;
    }
    CHECK(th_array_compare(&stored->a, place, &value->a, same) == TH_YES);
    for (size_t i = 0; i < n; i++) {
        if (!asked[i]) {
            CHECK(!same[i]);
            continue;
        }
        size_t at = (size_t)place[i];
        bool equal = stored->null[at] || value->null[i] ? stored->null[at] && value->null[i]
                                                        : stored->value[at] == value->value[i];
        CHECK(same[i] == equal);
    }
    if (n) {
        size_t bad = below(n);
        memset(same, 1, n);
        for (size_t i = 0; i < n; i++) place[i] = (int64_t)below(stored->a.n);
        place[bad] = below(2) ? (int64_t)stored->a.n : INT64_MIN;
        CHECK(th_array_compare(&stored->a, place, &value->a, same) == TH_CORRUPT);
    }
    drop(stored), drop(value), free(place), free(same), free(asked);
}

/* Offsets may be any bytes: no read is outside of the data. */
static void hostile_offsets(unsigned width) {
    held *stored = make(TH_TEXT, width, below(20), 1 + below(MOST - 1), false);
    held *value = make(TH_TEXT, width, below(20), 1 + below(MOST - 1), false);
    held *either = below(2) ? stored : value;
    either->offset[below((either->a.start + either->a.n + 1) * width)] = (uint8_t)next();
    int64_t place[MOST];
    uint8_t same[MOST];
    memset(same, 1, sizeof same);
    for (size_t i = 0; i < value->a.n; i++) place[i] = (int64_t)below(stored->a.n);
    th_array_compare(&stored->a, place, &value->a, same);
    drop(stored), drop(value);
}

void test_array(size_t steps) {
    static const unsigned widths[] = {1, 2, 3, 4, 8, 16, 17};
    for (size_t done = 0; done < steps; done += 100) {
        unsigned width = widths[below(7)];
        compares(TH_BITS, 0, 0);
        compares(TH_FIXED, width, width);
        width = below(2) ? 4 : 8;
        compares(TH_FLOAT, width, width);
        compares(TH_TEXT, width, below(2) ? 4 : 8);
        hostile_offsets(width);
    }
}
