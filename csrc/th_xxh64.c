/* XXH64, the checksum of all stored data, implemented from its specification (xxHash, Yann Collet). */
#include "th_private.h"

static const uint64_t P1 = 0x9E3779B185EBCA87, P2 = 0xC2B2AE3D27D4EB4F, P3 = 0x165667B19E3779F9,
                      P4 = 0x85EBCA77C2B2AE63, P5 = 0x27D4EB2F165667C5;

static uint64_t rotl(uint64_t x, int r) { return x << r | x >> (64 - r); }

static uint64_t round64(uint64_t acc, uint64_t input) { return rotl(acc + input * P2, 31) * P1; }

static uint64_t merge(uint64_t acc, uint64_t value) { return (acc ^ round64(0, value)) * P1 + P4; }

/* Processes complete stripes of 32 bytes and returns a pointer to the rest. */
static const uint8_t *stripes(uint64_t acc[4], const uint8_t *p, size_t size) {
    uint64_t a = acc[0], b = acc[1], c = acc[2], d = acc[3];
    for (const uint8_t *end = p + (size & ~(size_t)31); p != end; p += 32) {
        a = round64(a, th_load_le64(p));
        b = round64(b, th_load_le64(p + 8));
        c = round64(c, th_load_le64(p + 16));
        d = round64(d, th_load_le64(p + 24));
    }
    acc[0] = a, acc[1] = b, acc[2] = c, acc[3] = d;
    return p;
}

void th_xxh64_begin(th_xxh64 *x, uint64_t seed) {
    *x = (th_xxh64){.acc = {seed + P1 + P2, seed + P2, seed, seed - P1}, .seed = seed};
}

void th_xxh64_add(th_xxh64 *x, const void *data, size_t size) {
    const uint8_t *p = data;
    size_t held = x->total & 31;
    if (!size) return;
    x->total += size;
    if (held) {
        size_t take = 32 - held < size ? 32 - held : size;
        memcpy(x->rest + held, p, take);
        if (held + take < 32) return;
        stripes(x->acc, x->rest, 32);
        p += take;
        size -= take;
    }
    p = stripes(x->acc, p, size);
    memcpy(x->rest, p, size & 31);
}

uint64_t th_xxh64_end(const th_xxh64 *x) {
    const uint64_t *v = x->acc;
    const uint8_t *p = x->rest, *end = p + (x->total & 31);
    uint64_t h = x->seed + P5;
    if (x->total >= 32) {
        h = rotl(v[0], 1) + rotl(v[1], 7) + rotl(v[2], 12) + rotl(v[3], 18);
        for (int k = 0; k < 4; k++) h = merge(h, v[k]);
    }
    h += x->total;
    for (; end - p >= 8; p += 8) h = rotl(h ^ round64(0, th_load_le64(p)), 27) * P1 + P4;
    if (end - p >= 4) {
        h = rotl(h ^ th_load_le32(p) * P1, 23) * P2 + P3;
        p += 4;
    }
    for (; p != end; p++) h = rotl(h ^ *p * P5, 11) * P1;
    h = (h ^ h >> 33) * P2;
    h = (h ^ h >> 29) * P3;
    return h ^ h >> 32;
}
