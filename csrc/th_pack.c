/* Counting and copying rows by key group. */
#include "th_pack.h"

#include "th_array_private.h"
#include "th_xxh64_private.h"

/* ---- hashes ---- */

/* Of few bytes in one go, since a state in memory costs more than the rest. */
TH_INLINE uint64_t hash_text(uint64_t seed, th_text text) {
    if (text.size < 32) return th_finish(th_add_rest(seed + P5 + text.size, text.at, text.size));
    th_xxh64 x;
    th_xxh64_begin(&x, seed);
    th_xxh64_add(&x, text.at, text.size);
    return th_xxh64_end(&x);
}

TH_INLINE uint64_t hash_integer(uint64_t seed, const uint8_t *p, unsigned width) {
    uint64_t x = (uint64_t)th_integer(p, width);
    return th_finish(width == 8 ? th_add8(seed + P5 + 8, x) : th_add4(seed + P5 + 4, (uint32_t)x));
}

th_status th_pack_hash(const th_array *restrict a, int64_t *restrict hash) {
    for (size_t i = 0; i < a->n; i++) {
        uint64_t seed = (uint64_t)hash[i];
        th_text text;
        if (!th_is_valid(a, i)) continue;
        if (a->kind != TH_TEXT) {
            hash[i] = (int64_t)hash_integer(seed, a->data + (a->start + i) * a->width, a->width);
        } else {
            if (!th_text_at(a, i, &text)) return TH_CORRUPT;
            hash[i] = (int64_t)hash_text(seed, text);
        }
    }
    return TH_YES;
}

void th_pack_rank(const int64_t *hash, size_t n, size_t groups, const uint16_t *rank_of, uint16_t *rank,
                  uint64_t *count) {
    const bool power = !(groups & (groups - 1));
    for (size_t i = 0; i < n; i++) {
        int64_t x = TH_READ(hash + i), left = power ? x & (int64_t)(groups - 1) : x % (int64_t)groups;
        rank[i] = rank_of[left < 0 ? left + (int64_t)groups : left];
        count[rank[i]]++;
    }
}

/* ---- counting ---- */

th_status th_pack_measure(const th_array *a, const uint16_t *rank, th_need *need) {
    const bool text = a->kind == TH_TEXT, integer = a->kind == TH_FIXED && a->width == 8;
    if (!text && !integer && !a->valid) return TH_YES;
    for (size_t i = 0; i < a->n; i++) {
        th_need *to = &need[rank[i]];
        if (!th_is_valid(a, i)) {
            to->nulls++;
        } else if (text) {
            th_text found;
            if (!th_text_at(a, i, &found)) return TH_CORRUPT;
            to->size += found.size;
            if (found.size > to->longest) to->longest = found.size;
        } else if (integer) {
            int64_t x = th_integer(a->data + (a->start + i) * 8, 8);
            if (x < to->low) to->low = x;
            if (x > to->high) to->high = x;
        }
    }
    return TH_YES;
}

/* ---- copying ---- */

TH_INLINE void set_bit(uint8_t *bits, size_t i, bool on) { bits[i >> 3] |= (uint8_t)((unsigned)on << (i & 7)); }

static void put_validity(const th_array *a, const uint16_t *rank, th_target *target) {
    for (size_t i = 0; i < a->n; i++) {
        th_target *to = &target[rank[i]];
        if (to->valid) set_bit(to->valid, to->row++, th_is_valid(a, i));
    }
}

static void put_bits(const th_array *a, const uint16_t *rank, th_target *target) {
    for (size_t i = 0; i < a->n; i++) {
        th_target *to = &target[rank[i]];
        if (to->valid) set_bit(to->valid, to->row, th_is_valid(a, i));
        set_bit(to->value, to->row++, th_bit(a->data, a->start + i));
    }
}

/* The width is a constant where this is inlined. */
TH_INLINE void put_fixed(const th_array *a, const uint16_t *rank, th_target *target, unsigned width) {
    const uint8_t *from = a->data + a->start * width;
    for (size_t i = 0; i < a->n; i++, from += width) {
        th_target *to = &target[rank[i]];
        memcpy(to->value, from, width);
        to->value += width;
    }
}

static void put_integers(const th_array *a, const uint16_t *rank, th_target *target) {
    for (size_t i = 0; i < a->n; i++) {
        th_target *to = &target[rank[i]];
        int64_t x = th_integer(a->data + (a->start + i) * 8, 8);
        th_put_number(to->value, to->width, th_is_valid(a, i) ? (uint64_t)x - (uint64_t)to->base : 0);
        to->value += to->width;
    }
}

static th_status put_text(const th_array *a, const uint16_t *rank, th_target *target) {
    for (size_t i = 0; i < a->n; i++) {
        th_target *to = &target[rank[i]];
        th_text text = {NULL, 0};
        if (th_is_valid(a, i) && !th_text_at(a, i, &text)) return TH_CORRUPT;
        if (text.size > (size_t)(to->end - to->text)) return TH_CORRUPT;
        th_put_number(to->value, to->width, text.size);
        to->value += to->width;
        th_copy(to->text, text.at, text.size);
        to->text += text.size;
    }
    return TH_YES;
}

th_status th_pack_put(const th_array *a, const uint16_t *rank, bool nulls, th_target *target) {
    if (a->kind == TH_BITS) {
        put_bits(a, rank, target);
        return TH_YES;
    }
    if (nulls) put_validity(a, rank, target);
    if (a->kind == TH_TEXT) return put_text(a, rank, target);
    if (a->kind == TH_FIXED && a->width == 8) {
        put_integers(a, rank, target);
        return TH_YES;
    }
    if (a->width == 1) put_fixed(a, rank, target, 1);
    else if (a->width == 2) put_fixed(a, rank, target, 2);
    else if (a->width == 4) put_fixed(a, rank, target, 4);
    else if (a->width == 8) put_fixed(a, rank, target, 8);
    else if (a->width == 16) put_fixed(a, rank, target, 16);
    else put_fixed(a, rank, target, a->width);
    return TH_YES;
}

/* ---- reading ---- */

/* Reads a number of 1, 2 or 4 bytes without a sign. */
TH_INLINE uint64_t get_number(const uint8_t *from, unsigned width) {
    return (uint64_t)th_integer(from, width) & (UINT64_MAX >> (64 - 8 * width));
}

void th_pack_widen(const uint8_t *from, unsigned width, int64_t base, size_t n, int64_t *to) {
    for (size_t i = 0; i < n; i++) to[i] = (int64_t)((uint64_t)base + get_number(from + i * width, width));
}

th_status th_pack_offsets(const uint8_t *from, unsigned width, size_t n, uint64_t size, int32_t *to) {
    uint64_t at = 0;
    to[0] = 0;
    for (size_t i = 0; i < n; i++) {
        at += get_number(from + i * width, width);
        to[i + 1] = (int32_t)at;
    }
    return at == size && at <= INT32_MAX ? TH_YES : TH_CORRUPT; /* n lengths of 32 bits cannot exceed 64 bits */
}
