/* Bytes come back from text, in memory of exactly the size that they need. */
#include "testing.h"
#include "th_text.h"

static unsigned bit(const uint8_t *from, size_t i, unsigned width) { return from[i / width] >> i % width & 1u; }

static void comes_back(size_t n) {
    size_t size = th_text_size(n);
    uint8_t *from = memory(n), *text = memory(size), *to = memory(n);
    for (size_t i = 0; i < n; i++) from[i] = (uint8_t)next();
    th_text_write(from, n, text);
    CHECK(size == (8 * n + 6) / 7 && th_text_bytes(size) == n);
    for (size_t i = 0; i < size; i++) CHECK(text[i] < 0x80);
    for (size_t i = 0; i < 8 * n; i++) CHECK(bit(from, i, 8) == bit(text, i, 7));
    for (size_t i = 0; i < size; i++) text[i] |= (uint8_t)(below(2) << 7);
    th_text_read(text, size, to);
    CHECK(!n || !memcmp(from, to, n));
    free(from), free(text), free(to);
}

void test_text(size_t steps) {
    for (size_t n = 0; n < 70; n++) comes_back(n);
    for (size_t done = 0; done < steps; done += 100) comes_back(below(1000));
}
