/* Bytes as text, eight characters at a time: 56 bits are spread over 64 in three steps. */
#include "th_text.h"

#include "th_private.h"

static uint64_t spread(uint64_t x) {
    x = (x & 0x000000000fffffff) | (x & 0x00fffffff0000000) << 4;
    x = (x & 0x00003fff00003fff) | (x & 0x0fffc0000fffc000) << 2;
    return (x & 0x007f007f007f007f) | (x & 0x3f803f803f803f80) << 1;
}

static uint64_t joined(uint64_t x) {
    x = (x & 0x007f007f007f007f) | (x & 0x7f007f007f007f00) >> 1;
    x = (x & 0x00003fff00003fff) | (x & 0x3fff00003fff0000) >> 2;
    return (x & 0x000000000fffffff) | (x & 0x0fffffff00000000) >> 4;
}

static uint64_t load_few(const uint8_t *from, size_t n) {
    uint64_t x = 0;
    for (size_t i = 0; i < n; i++) x |= (uint64_t)from[i] << 8 * i;
    return x;
}

/* With a constant n the compiler makes one store of it. */
TH_INLINE void store_few(uint8_t *to, uint64_t x, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] = (uint8_t)(x >> 8 * i);
}

size_t th_text_size(size_t n) { return n + n / 7 + (n % 7 != 0); }

size_t th_text_bytes(size_t size) { return size - size / 8 - (size % 8 != 0); }

void th_text_write(const uint8_t *from, size_t n, uint8_t *to) {
    for (; n >= 8; from += 7, to += 8, n -= 7) store_few(to, spread(th_load_le64(from)), 8);
    if (n >= 7) {
        store_few(to, spread(load_few(from, 7)), 8);
        from += 7, to += 8, n -= 7;
    }
    if (n) store_few(to, spread(load_few(from, n)), n + 1);
}

void th_text_read(const uint8_t *from, size_t size, uint8_t *to) {
    for (; size >= 16; from += 8, to += 7, size -= 8) store_few(to, joined(th_load_le64(from)), 8); /* one too many */
    if (size >= 8) {
        store_few(to, joined(th_load_le64(from)), 7);
        from += 8, to += 7, size -= 8;
    }
    if (size) store_few(to, joined(load_few(from, size)), th_text_bytes(size));
}
