/* Bytes as text: 7 bits in each ASCII character, for a channel that passes text faster than bytes. */
#ifndef TH_TEXT_H
#define TH_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* Returns the number of characters for n bytes, ceil(8 n / 7). */
size_t th_text_size(size_t n);

/* Returns the number of bytes in `size` characters, floor(7 size / 8). */
size_t th_text_bytes(size_t size);

/* Writes th_text_size(n) characters. The first byte is in the low bits of the first character. */
void th_text_write(const uint8_t *from, size_t n, uint8_t *to);

/* Writes the th_text_bytes(size) bytes of `size` characters, whose highest bits are ignored. */
void th_text_read(const uint8_t *from, size_t size, uint8_t *to);

#endif
