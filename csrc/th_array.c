/* The comparison of values with stored ones, and the hash of rows with a secret seed. */
#include "th_array_private.h"

/* The rows whose stored values are fetched together. */
#define BLOCK 32

/* Fetches where the stored values of rows are: first their offsets, then, `deep`, their bytes. */
TH_INLINE void fetch(th_kind kind, unsigned width, const th_array *a, const int64_t *place, const uint8_t *same,
                     size_t n, bool deep) {
    for (size_t i = 0; i < n; i++) {
        th_text text;
        if (!same[i] || (uint64_t)place[i] >= a->n) continue;
        if (kind != TH_TEXT) {
            TH_PREFETCH(a->data + (a->start + (size_t)place[i]) * width);
        } else if (!deep) {
            TH_PREFETCH(a->offset + (a->start + (size_t)place[i]) * a->width);
        } else if (th_text_at(a, (size_t)place[i], &text)) {
            TH_PREFETCH(text.at);
        }
    }
}

TH_INLINE th_status compare(th_kind kind, unsigned width, const th_array *a, const int64_t *place, const th_array *b,
                            uint8_t *same) {
    bool sound = true;
    for (size_t at = 0; at < b->n; at += BLOCK) {
        size_t end = at + BLOCK < b->n ? at + BLOCK : b->n;
        if (kind != TH_BITS) fetch(kind, width, a, place + at, same + at, end - at, false);
        if (kind == TH_TEXT) fetch(kind, width, a, place + at, same + at, end - at, true);
        for (size_t i = at; i < end; i++) {
            if (!same[i]) continue;
            if ((uint64_t)place[i] >= a->n) return TH_CORRUPT;
            bool valid = th_is_valid(a, (size_t)place[i]);
            same[i] =
                valid == th_is_valid(b, i) && (!valid || th_same_value(kind, width, a, (size_t)place[i], b, i, &sound));
        }
    }
    return sound ? TH_YES : TH_CORRUPT;
}

th_status th_array_compare(const th_array *stored, const int64_t *place, const th_array *value, uint8_t *same) {
    if (value->kind == TH_TEXT) return compare(TH_TEXT, 0, stored, place, value, same);
    if (value->kind == TH_BITS) return compare(TH_BITS, 0, stored, place, value, same);
    if (value->kind == TH_FLOAT) return compare(TH_FLOAT, value->width, stored, place, value, same);
    if (value->width == 8) return compare(TH_FIXED, 8, stored, place, value, same);
    if (value->width == 4) return compare(TH_FIXED, 4, stored, place, value, same);
    return compare(TH_FIXED, value->width, stored, place, value, same);
}

/* ---- SipHash-1-3 (Aumasson, Bernstein), of words of 8 bytes ---- */

typedef struct siphash {
    uint64_t v[4], words;
} siphash;

TH_INLINE uint64_t rotl(uint64_t x, int r) { return x << r | x >> (64 - r); }

static void sip_round(uint64_t v[4]) {
    v[0] += v[1], v[2] += v[3];
    v[1] = rotl(v[1], 13) ^ v[0], v[3] = rotl(v[3], 16) ^ v[2];
    v[0] = rotl(v[0], 32);
    v[2] += v[1], v[0] += v[3];
    v[1] = rotl(v[1], 17) ^ v[2], v[3] = rotl(v[3], 21) ^ v[0];
    v[2] = rotl(v[2], 32);
}

static void sip_add(siphash *s, uint64_t word) {
    s->v[3] ^= word;
    sip_round(s->v);
    s->v[0] ^= word;
    s->words++;
}

static void sip_add_bytes(siphash *s, const uint8_t *p, size_t size) {
    uint8_t rest[8] = {0};
    for (; size >= 8; p += 8, size -= 8) sip_add(s, th_load_le64(p));
    if (!size) return;
    memcpy(rest, p, size);
    sip_add(s, th_load_le64(rest));
}

/* Adds a float as a double: both zeros are the same, and all NaNs. */
static void sip_add_float(siphash *s, const uint8_t *p, unsigned width) {
    float small;
    double x;
    uint64_t bits;
    memcpy(&small, p, 4);
    if (width == 8) memcpy(&x, p, 8);
    else x = small;
    memcpy(&bits, &x, 8);
    sip_add(s, x != x ? UINT64_MAX : x == 0 ? 0 : bits);
}

int64_t th_array_hash(const th_array *column, size_t columns, size_t row, const uint64_t seed[2], bool *sound) {
    siphash s = {{seed[0] ^ 0x736F6D6570736575, seed[1] ^ 0x646F72616E646F6D, seed[0] ^ 0x6C7967656E657261,
                  seed[1] ^ 0x7465646279746573},
                 0};
    for (const th_array *a = column; a < column + columns; a++) {
        bool valid = th_is_valid(a, row);
        th_text text = {NULL, 0};
        const uint8_t *fixed =
            a->kind == TH_FIXED || a->kind == TH_FLOAT ? a->data + (a->start + row) * a->width : NULL;
        if (valid && a->kind == TH_TEXT && !th_text_at(a, row, &text)) *sound = false;
        sip_add(&s, valid ? text.size : UINT64_MAX); /* so that no column runs into the next one */
        if (!valid) continue;
        if (a->kind == TH_TEXT) sip_add_bytes(&s, text.at, text.size);
        else if (a->kind == TH_BITS) sip_add(&s, th_bit(a->data, a->start + row));
        else if (a->kind == TH_FLOAT) sip_add_float(&s, fixed, a->width);
        else sip_add_bytes(&s, fixed, a->width);
    }
    sip_add(&s, s.words << 59); /* the number of bytes, modulo 256, in the highest byte */
    s.v[2] ^= 0xFF;
    for (int k = 0; k < 3; k++) sip_round(s.v);
    return (int64_t)(s.v[0] ^ s.v[1] ^ s.v[2] ^ s.v[3]);
}

th_status th_array_hash_many(const th_array *column, size_t columns, size_t n, const uint64_t seed[2], int64_t *hash) {
    bool sound = true;
    for (size_t i = 0; i < n; i++) hash[i] = th_array_hash(column, columns, i, seed, &sound);
    return sound ? TH_YES : TH_CORRUPT;
}
