/* XXH64, the checksum of all stored data, implemented from its specification (xxHash, Yann Collet). */
#include "th_xxh64_private.h"

static uint64_t merge(uint64_t acc, uint64_t value) { return (acc ^ th_round64(0, value)) * P1 + P4; }

/* Processes complete stripes of 32 bytes and returns a pointer to the rest. */
static const uint8_t *stripes(uint64_t acc[4], const uint8_t *p, size_t size) {
    uint64_t a = acc[0], b = acc[1], c = acc[2], d = acc[3];
    for (const uint8_t *end = p + (size & ~(size_t)31); p != end; p += 32) {
        a = th_round64(a, th_load_le64(p));
        b = th_round64(b, th_load_le64(p + 8));
        c = th_round64(c, th_load_le64(p + 16));
        d = th_round64(d, th_load_le64(p + 24));
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
    uint64_t h = x->seed + P5;
    if (x->total >= 32) {
        h = th_rotl(v[0], 1) + th_rotl(v[1], 7) + th_rotl(v[2], 12) + th_rotl(v[3], 18);
        for (int k = 0; k < 4; k++) h = merge(h, v[k]);
    }
    return th_finish(th_add_rest(h + x->total, x->rest, x->total & 31));
}
