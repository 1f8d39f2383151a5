/* A heap in one block of memory: the index lines, the columns, and the slots. */
#include "th_private.h"

/* Returns the size of a column whose row 1 is aligned to a cache line. */
static size_t column_size(size_t cap, size_t width) {
    return (cap * width + 2 * TH_LINE - width - 1) / TH_LINE * TH_LINE;
}

size_t th_heap_size(size_t cap) {
    if (!cap) return 0;
    return th_index_lines(cap) * sizeof(th_line) + 3 * column_size(cap, sizeof(int64_t)) +
           column_size(cap, sizeof(uint32_t));
}

void th_heap_place(th_heap *h, void *block, size_t cap) {
    size_t lines = th_index_lines(cap), size = column_size(cap, sizeof(int64_t));
    h->line = NULL;
    h->ts = h->key = h->ns = NULL;
    h->slot = NULL;
    h->cap = cap;
    h->lines = lines;
    if (!cap) return;
    char *columns = (char *)block + lines * sizeof(th_line);
    h->line = block;
    h->ts = (int64_t *)(columns + TH_LINE - sizeof(int64_t));
    h->key = (int64_t *)(columns + size + TH_LINE - sizeof(int64_t));
    h->ns = (int64_t *)(columns + 2 * size + TH_LINE - sizeof(int64_t));
    h->slot = (uint32_t *)(columns + 3 * size + TH_LINE - sizeof(uint32_t));
}

void th_heap_move(th_heap *h, void *block, size_t cap) {
    th_heap to = *h;
    th_heap_place(&to, block, cap);
    if (to.lines) memset(to.line, 0, to.lines * sizeof *to.line);
    if (h->len) {
        memcpy(to.ts, h->ts, h->len * sizeof *h->ts);
        memcpy(to.key, h->key, h->len * sizeof *h->key);
        memcpy(to.ns, h->ns, h->len * sizeof *h->ns);
    }
    th_heap_reindex(&to);
    *h = to;
}

/* Returns whether lines of the index, which is that of an empty heap, are empty. */
static bool lines_are_empty(const th_heap *h) {
    for (size_t i = 0; i < h->lines; i += h->lines / TH_GROUP + 1)
        if (h->line[i].passed || th_match(&h->line[i], 0) != (1 << TH_LANES) - 1) return false;
    return true;
}

bool th_heap_plausible(const th_heap *h) {
    size_t step = h->len / TH_GROUP + 1;
    if (!h->len) return lines_are_empty(h);
    for (size_t i = 0; i < h->len; i += step) {
        uint32_t line = h->slot[i] >> 4, lane = h->slot[i] & 15;
        if (line >= h->lines || lane >= TH_LANES || h->line[line].row[lane] != i) return false;
        if (h->line[line].tag[lane] != th_tag(th_hash_row(h, i))) return false;
        if (i && th_less_row(h, th_get(h, i), (i - 1) / TH_ARITY)) return false;
    }
    return true;
}
