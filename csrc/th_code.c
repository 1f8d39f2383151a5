/* Codes, field by field: a byte that says whether the value is null, then its bytes, the highest first, inverted if the
 * order descends. The sign of an integer is flipped, and so is that of a float, or all its bits if it is negative. A
 * text has its bytes and ends with 0; bytes of 0 and 1 in it have a 1 before them, and are 1 higher.
 *
 * A zero in the lead is a 0.0 there. Its sign follows behind the lead, a byte for each float of the lead that is 0. */
#include "th_code.h"

#include "th_array_private.h"
#include "th_code_private.h"

enum { NONE_FIRST = 0, SOME = 1, NONE_LAST = 2 };

/* ---- formats ---- */

static bool fits(const th_field *f) {
    switch (f->kind) {
    case TH_OF_FIELDS:
        return f->span > 0;
    case TH_OF_NOTHING:
    case TH_OF_BIT:
    case TH_OF_TEXT:
        return f->span == 1;
    case TH_OF_SIGNED:
    case TH_OF_UNSIGNED:
    case TH_OF_BYTES:
        return f->span == 1 && (f->kind == TH_OF_BYTES || f->width);
    case TH_OF_FLOAT:
        return f->span == 1 && (f->width == 4 || f->width == 8);
    default:
        return false;
    }
}

bool th_format_check(const th_format *f) {
    size_t floats = 0;
    if (!f->fields || f->field[0].span != f->fields || !f->lead || f->lead > f->fields) return false;
    for (size_t i = 0; i < f->fields; i++) {
        const th_field *one = &f->field[i];
        if (!fits(one) || one->span > f->fields - i) return false;
        floats += i < f->lead && one->kind == TH_OF_FLOAT;
        for (size_t k = i + 1; one->kind == TH_OF_FIELDS && k < i + one->span; k++)
            if (f->field[k].span > i + one->span - k) return false;
        if (i && i < f->lead && i + one->span > f->lead) return false; /* it ends within a struct */
    }
    return floats <= TH_LEAD_MAX;
}

bool th_codes_check(const th_codes *codes, size_t size) {
    int64_t before = 0;
    if (codes->n && codes->offset[0] < 0) return false;
    for (size_t i = 0; i <= codes->n; i++) {
        int64_t at = codes->offset[i];
        if (at < before || (i && at - before > (int64_t)TH_CODE_MAX)) return false;
        before = at;
    }
    return (uint64_t)before <= size;
}

/* ---- writing ---- */

TH_INLINE uint64_t float_bits(const uint8_t *from, unsigned width) {
    if (width == 4) {
        uint32_t four;
        memcpy(&four, from, 4);
        if ((four & 0x7FFFFFFF) > 0x7F800000) four = 0x7FC00000; /* each NaN is the same */
        return (uint64_t)four << 32;
    }
    uint64_t eight;
    memcpy(&eight, from, 8);
    return (eight & INT64_MAX) > 0x7FF0000000000000 ? 0x7FF8000000000000 : eight;
}

static const uint64_t SIGN = (uint64_t)1 << 63;

/* Turns the bits of a float, from the highest on, into a number that orders it, and back. */
TH_INLINE uint64_t float_order(uint64_t bits) { return bits & SIGN ? ~bits : bits ^ SIGN; }
TH_INLINE uint64_t float_of(uint64_t order) { return order & SIGN ? order ^ SIGN : ~order; }

static size_t escapes(th_text text) {
    size_t n = 0;
    for (size_t k = 0; k < text.size; k++) n += text.at[k] <= 1;
    return n;
}

/* The signs of the zeros of a lead. */
typedef struct zeros {
    uint64_t positive;
    unsigned n;
} zeros;

/* Returns the size of the value of a field behind its first byte; SIZE_MAX if text lies outside of its data. */
TH_INLINE size_t value_size(const th_field *f, const th_array *a, size_t i) {
    th_text text;
    switch (f->kind) {
    case TH_OF_FIELDS:
        return 0;
    case TH_OF_BIT:
        return 1;
    case TH_OF_TEXT:
        return th_text_at(a, i, &text) ? text.size + escapes(text) + 1 : SIZE_MAX;
    default:
        return f->width;
    }
}

TH_INLINE bool is_null(const th_field *f, const th_array *a, size_t i) {
    return f->kind == TH_OF_NOTHING || !th_is_valid(a, i);
}

TH_INLINE bool is_zero(const th_field *f, const th_array *a, size_t i) {
    return f->kind == TH_OF_FLOAT && !(float_bits(a->data + (a->start + i) * f->width, f->width) & ~SIGN);
}

th_status th_code_measure(const th_format *f, const th_array *column, size_t n, int64_t *offset) {
    uint64_t total = 0;
    offset[0] = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t size = 0;
        for (size_t k = 0; k < f->fields;) {
            const th_field *one = &f->field[k];
            size++;
            if (is_null(one, &column[k], i)) {
                k += one->span;
                continue;
            }
            size_t more = value_size(one, &column[k], i);
            if (more == SIZE_MAX) return TH_CORRUPT;
            size += more;
            size += k < f->lead && is_zero(one, &column[k], i);
            k++;
        }
        if (size > TH_CODE_MAX || total > INT64_MAX - size) return TH_FULL;
        offset[i + 1] = (int64_t)(total += size);
    }
    return TH_YES;
}

TH_INLINE uint8_t *put_high(uint8_t *to, uint64_t bits, unsigned width) {
    if (width == 8) {
        bits = th_swap64(bits);
        for (unsigned k = 0; k < 8; k++) to[k] = (uint8_t)(bits >> 8 * k);
    } else {
        for (unsigned k = 0; k < width; k++) to[k] = (uint8_t)(bits >> (56 - 8 * k));
    }
    return to + width;
}

static uint8_t *put_text(uint8_t *to, uint8_t *end, th_text text, uint8_t mask) {
    for (size_t k = 0; k < text.size; k++) {
        uint8_t byte = text.at[k];
        if (end - to < (byte <= 1 ? 3 : 2)) return NULL;
        if (byte <= 1) {
            *to++ = 1 ^ mask;
            byte++;
        }
        *to++ = byte ^ mask;
    }
    *to++ = mask;
    return to;
}

/* Writes a value, which is not null, with at most the bytes up to `end`; returns the end of it, or NULL. */
TH_INLINE uint8_t *put_value(uint8_t *to, uint8_t *end, const th_field *f, const th_array *a, size_t i, bool lead,
                             zeros *z) {
    const uint8_t mask = f->descending ? 0xFF : 0;
    const uint64_t wide_mask = f->descending ? UINT64_MAX : 0;
    const uint8_t *from = a->data + (a->start + i) * f->width;
    th_text text;
    if (f->kind == TH_OF_TEXT) return th_text_at(a, i, &text) && end > to ? put_text(to, end, text, mask) : NULL;
    if ((size_t)(end - to) < (f->kind == TH_OF_BIT ? 1u : f->width)) return NULL;
    switch (f->kind) {
    case TH_OF_BIT:
        *to = (uint8_t)(th_bit(a->data, a->start + i) ^ mask);
        return to + 1;
    case TH_OF_FLOAT: {
        uint64_t bits = float_bits(from, f->width);
        if (lead && !(bits & ~SIGN)) {
            z->positive |= (uint64_t)!bits << z->n++;
            bits = 0;
        }
        return put_high(to, float_order(bits) ^ wide_mask, f->width);
    }
    case TH_OF_SIGNED:
    case TH_OF_UNSIGNED:
        if (f->width <= 8 && !(f->width & (f->width - 1))) {
            uint64_t x = (uint64_t)th_integer(from, f->width) << (64 - 8 * f->width);
            return put_high(to, x ^ (f->kind == TH_OF_SIGNED ? SIGN : 0) ^ wide_mask, f->width);
        }
        for (unsigned k = 0; k < f->width; k++) to[k] = from[f->width - 1 - k] ^ mask;
        if (f->kind == TH_OF_SIGNED) to[0] ^= 0x80;
        return to + f->width;
    default:
        for (unsigned k = 0; k < f->width; k++) to[k] = from[k] ^ mask;
        return to + f->width;
    }
}

th_status th_code_write(const th_format *f, const th_array *column, size_t n, const int64_t *offset, uint8_t *data) {
    for (size_t i = 0; i < n; i++) {
        uint8_t *to = data + offset[i], *end = data + offset[i + 1];
        zeros z = {0, 0};
        for (size_t k = 0; k < f->fields || z.n;) {
            if (k >= f->lead && z.n) { /* the signs of the zeros of the lead */
                if ((size_t)(end - to) < z.n) return TH_CORRUPT;
                for (unsigned s = 0; s < z.n; s++) *to++ = z.positive >> s & 1;
                z = (zeros){0, 0};
                continue;
            }
            const th_field *one = &f->field[k];
            if (to == end) return TH_CORRUPT;
            if (is_null(one, &column[k], i)) {
                *to++ = one->nulls_last ? NONE_LAST : NONE_FIRST;
                k += one->span;
                continue;
            }
            *to++ = SOME;
            if (one->kind != TH_OF_FIELDS) {
                to = put_value(to, end, one, &column[k], i, k < f->lead, &z);
                if (!to) return TH_CORRUPT;
            }
            k++;
        }
        if (to != end) return TH_CORRUPT;
    }
    return TH_YES;
}

/* ---- reading ---- */

/* A code that is read, which may be any bytes. */
typedef struct reading {
    const uint8_t *at, *end;
    size_t field;
    unsigned zeros; /* of the lead, whose signs follow behind it */
} reading;

/* One field of a code. */
typedef struct found {
    const uint8_t *value; /* behind the first byte; NULL if it is null */
    size_t size, text; /* bytes of it, and of the text in it */
} found;

TH_INLINE uint64_t high_bits(const uint8_t *from, const th_field *f) {
    return th_front(from, f->width) ^ (f->descending ? UINT64_MAX << (64 - 8 * f->width) : 0);
}

static bool find_end_of_text(reading *r, uint8_t mask, found *x) {
    for (const uint8_t *p = r->at; p < r->end; p++, x->text++) {
        uint8_t byte = *p ^ mask;
        if (!byte) {
            x->size = (size_t)(p + 1 - r->at);
            return true;
        }
        if (byte != 1) continue;
        if (++p == r->end || (byte = *p ^ mask) < 1 || byte > 2) return false;
    }
    return false;
}

/* Reads the next field; returns whether it is one. */
TH_INLINE bool next_field(reading *r, const th_format *f, found *x) {
    const th_field *one = &f->field[r->field];
    *x = (found){NULL, 0, 0};
    if (r->at == r->end) return false;
    uint8_t first = *r->at++;
    if (first != SOME) {
        r->field += one->span;
        return first == (one->nulls_last ? NONE_LAST : NONE_FIRST);
    }
    if (one->kind == TH_OF_NOTHING) return false;
    if (one->kind == TH_OF_TEXT) {
        if (!find_end_of_text(r, one->descending ? 0xFF : 0, x)) return false;
    } else {
        x->size = one->kind == TH_OF_BIT ? 1 : one->kind == TH_OF_FIELDS ? 0 : one->width;
        if ((size_t)(r->end - r->at) < x->size) return false;
        if (one->kind == TH_OF_FLOAT && r->field < f->lead)
            r->zeros += high_bits(r->at, one) == SIGN; /* 0.0, as float_order has it */
    }
    x->value = r->at;
    r->at += x->size;
    r->field++;
    return true;
}

/* Passes the signs of zeros; returns whether they are there. */
TH_INLINE bool pass_signs(reading *r) {
    if ((size_t)(r->end - r->at) < r->zeros) return false;
    for (; r->zeros; r->zeros--)
        if (*r->at++ > 1) return false;
    return true;
}

size_t th_code_lead(const th_format *f, const uint8_t *code, size_t size) {
    reading r = {code, code + size, 0, 0};
    found x;
    while (r.field < f->lead)
        if (!next_field(&r, f, &x)) return SIZE_MAX;
    return (size_t)(r.at - code);
}

/* Counts what the fields from k up to `end` have for a struct that is null. */
TH_INLINE void count_nulls(th_values *values, size_t k, size_t end) {
    while (k < end) values[k++].nulls++;
}

th_status th_code_sizes(const th_format *f, const th_codes *codes, th_values *values) {
    for (size_t k = 0; k < f->fields; k++) values[k].size = values[k].nulls = 0;
    for (size_t i = 0; i < codes->n; i++) {
        reading r = {codes->data + codes->offset[i], codes->data + codes->offset[i + 1], 0, 0};
        found x;
        while (r.field < f->fields) {
            size_t k = r.field;
            if (k >= f->lead && r.zeros && !pass_signs(&r)) return TH_CORRUPT;
            if (!next_field(&r, f, &x)) return TH_CORRUPT;
            if (!x.value) count_nulls(values, k, r.field);
            else values[k].size += x.text;
        }
        if (!pass_signs(&r) || r.at != r.end) return TH_CORRUPT;
    }
    return TH_YES;
}

static void read_text(const uint8_t *from, size_t size, uint8_t mask, uint8_t *to) {
    for (const uint8_t *end = from + size; from < end; from++) {
        uint8_t byte = *from ^ mask;
        if (byte == 1) byte = (*++from ^ mask) - 1;
        *to++ = byte;
    }
}

static void read_value(const th_field *f, const found *x, size_t i, th_values *v) {
    const uint8_t mask = f->descending ? 0xFF : 0, *from = x->value;
    uint8_t *to = f->kind == TH_OF_FIELDS ? NULL : v->data + i * f->width;
    switch (f->kind) {
    case TH_OF_FIELDS:
        return;
    case TH_OF_BIT:
        v->data[i >> 3] |= (uint8_t)(((*from ^ mask) & 1) << (i & 7));
        return;
    case TH_OF_TEXT:
        read_text(from, x->size - 1, mask, v->data + v->offset[i]);
        return;
    case TH_OF_FLOAT: {
        uint64_t bits = float_of(high_bits(from, f));
        th_put_number(to, f->width, f->width == 4 ? bits >> 32 : bits);
        return;
    }
    case TH_OF_SIGNED:
    case TH_OF_UNSIGNED:
        if (f->width <= 8 && !(f->width & (f->width - 1))) {
            uint64_t bits = high_bits(from, f) ^ (f->kind == TH_OF_SIGNED ? SIGN : 0);
            th_put_number(to, f->width, bits >> (64 - 8 * f->width));
            return;
        }
        for (unsigned k = 0; k < f->width; k++) to[f->width - 1 - k] = from[k] ^ mask;
        if (f->kind == TH_OF_SIGNED) to[f->width - 1] ^= 0x80;
        return;
    default:
        for (unsigned k = 0; k < f->width; k++) to[k] = from[k] ^ mask;
    }
}

/* Sets the signs of the zeros of a lead, which begin at r->at, in row i. */
static void read_signs(const th_format *f, reading *r, size_t i, th_values *values) {
    for (size_t k = 0; r->zeros; k++) {
        th_values *v = &values[k];
        unsigned width = f->field[k].width;
        if (f->field[k].kind != TH_OF_FLOAT || !th_bit(v->valid, i)) continue;
        uint8_t *value = v->data + i * width;
        if (float_bits(value, width)) continue;
        if (!*r->at++) th_put_number(value, width, (uint64_t)1 << (8 * width - 1));
        r->zeros--;
    }
}

void th_code_read(const th_format *f, const th_codes *codes, th_values *values) {
    for (size_t i = 0; i < codes->n; i++) {
        reading r = {codes->data + codes->offset[i], codes->data + codes->offset[i + 1], 0, 0};
        found x;
        while (r.field < f->fields || r.zeros) {
            size_t k = r.field;
            if (k >= f->lead && r.zeros) {
                read_signs(f, &r, i, values);
                continue;
            }
            next_field(&r, f, &x);
            for (size_t j = k; j < r.field; j++)
                if (f->field[j].kind == TH_OF_TEXT) values[j].offset[i + 1] = values[j].offset[i] + (int64_t)x.text;
            if (!x.value) continue;
            values[k].valid[i >> 3] |= (uint8_t)(1 << (i & 7));
            read_value(&f->field[k], &x, i, &values[k]);
        }
    }
}

/* ---- adding up ---- */

/* Compares two rows of equal ids and heads. */
static int compare_rest(const th_codes *codes, size_t a, size_t b) {
    const int64_t *offset = codes->offset;
    size_t size_a = (size_t)(offset[a + 1] - offset[a]), size_b = (size_t)(offset[b + 1] - offset[b]);
    size_t both = size_a < size_b ? size_a : size_b;
    int order = both > 8 ? memcmp(codes->data + offset[a] + 8, codes->data + offset[b] + 8, both - 8) : 0;
    return order ? order : (size_a > size_b) - (size_a < size_b);
}

TH_INLINE bool in_order(const th_codes *codes, const th_placed *a, const th_placed *b) {
    if (a->id != b->id) return a->id < b->id;
    if (a->head != b->head) return a->head < b->head;
    return compare_rest(codes, a->row, b->row) <= 0;
}

/* Sorts by merging runs, which is stable; returns where the result is, `from` or `to`. */
static th_placed *sorted(const th_codes *codes, th_placed *from, th_placed *to, size_t n) {
    enum { RUN = 8 };
    for (size_t start = 0; start < n; start += RUN) {
        size_t stop = start + RUN < n ? start + RUN : n;
        for (size_t i = start + 1; i < stop; i++) {
            th_placed x = from[i];
            size_t at = i;
            for (; at > start && !in_order(codes, &from[at - 1], &x); at--) from[at] = from[at - 1];
            from[at] = x;
        }
    }
    for (size_t width = RUN; width < n; width *= 2) {
        for (size_t start = 0; start < n; start += 2 * width) {
            size_t middle = start + width < n ? start + width : n, stop = middle + width < n ? middle + width : n;
            if (middle == stop || in_order(codes, &from[middle - 1], &from[middle])) {
                memcpy(to + start, from + start, (stop - start) * sizeof *to);
                continue;
            }
            for (size_t a = start, b = middle, at = start; at < stop; at++) {
                bool left = b == stop || (a < middle && in_order(codes, &from[a], &from[b]));
                to[at] = left ? from[a++] : from[b++];
            }
        }
        th_placed *other = from;
        from = to;
        to = other;
    }
    return from;
}

size_t th_code_add_up(const th_weighted *rows, th_placed *scratch, int64_t *row, int64_t *sum) {
    const th_codes *codes = &rows->codes;
    size_t n = codes->n, distinct = 0;
    bool ordered = true;
    for (size_t i = 0; i < n; i++) {
        const uint8_t *code = codes->data + codes->offset[i];
        scratch[i] = (th_placed){rows->id[i], th_front(code, (size_t)(codes->offset[i + 1] - codes->offset[i])), i};
        ordered = ordered && (!i || in_order(codes, &scratch[i - 1], &scratch[i]));
    }
    const th_placed *at = ordered ? scratch : sorted(codes, scratch, scratch + n, n);
    for (size_t i = 0; i < n; i++) {
        int64_t weight = rows->weight[at[i].row];
        bool same = i && at[i].id == at[i - 1].id && at[i].head == at[i - 1].head &&
                    !compare_rest(codes, at[i - 1].row, at[i].row);
        if (!same) {
            row[distinct] = (int64_t)at[i].row;
            sum[distinct++] = 0;
        }
        if (!th_add_weights(sum[distinct - 1], weight, &sum[distinct - 1])) return SIZE_MAX;
    }
    return distinct;
}
