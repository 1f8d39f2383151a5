/* What moves and removals of timers leave alone, since the kernel writes a page of a mapped file to the disk if
 * anything is stored in it, even what was there. */
#include "testing.h"

#include <sys/mman.h>

#define ROWS 1000
#define PAGES ((size_t)1 << 16) /* a multiple of the size of a page everywhere */

static void *pages(size_t size) {
    void *p = aligned_alloc(PAGES, (size + PAGES - 1) / PAGES * PAGES);
    CHECK(p);
    return memset(p, 0, size);
}

static void allow(void *p, int access) { CHECK(!mprotect(p, PAGES, access)); }

static th_heap filled(void) {
    static uint8_t added[ROWS];
    static uint32_t where[ROWS];
    static int64_t ts[ROWS], key[ROWS];
    const int64_t ns = -5;
    size_t need;
    th_heap h;
    th_heap_init(&h, TH_BY_KEY, next());
    h.cap = ROWS;
    h.lines = th_index_lines(ROWS);
    CHECK(h.lines * sizeof *h.line <= PAGES && ROWS * sizeof *h.ts <= PAGES);
    h.ts = pages(PAGES), h.key = pages(PAGES), h.ns = pages(PAGES), h.slot = pages(PAGES), h.line = pages(PAGES);
    for (size_t i = 0; i < ROWS; i++) ts[i] = 10 * (int64_t)below(ROWS), key[i] = (int64_t)i;
    CHECK(th_heap_push_many(&h, (th_column){ts, 1}, (th_column){key, 1}, (th_column){&ns, 0}, ROWS, added, where,
                            &need) == TH_YES);
    return h;
}

static void release(th_heap h) {
    CHECK(th_heap_check(&h) == TH_YES);
    free(h.ts), free(h.key), free(h.ns), free(h.slot), free(h.line);
}

/* Moves timers by less than what lies between them, with one call or one after the other. */
static void move(th_heap *h, int64_t by, bool many) {
    static uint8_t added[ROWS];
    static uint32_t where[ROWS];
    static int64_t ts[ROWS / 8], key[ROWS / 8]; /* so few that the heap is not ordered anew */
    size_t need;
    for (size_t i = 0; i < ROWS / 8; i++) {
        size_t row = below(ROWS);
        ts[i] = h->ts[row] / 10 * 10 + by, key[i] = h->key[row];
        if (!many) CHECK(th_heap_push(h, ts[i], key[i], h->ns[row]) == TH_NO);
    }
    if (!many) return;
    CHECK(th_heap_push_many(h, (th_column){ts, 1}, (th_column){key, 1}, (th_column){h->ns, 0}, ROWS / 8, added, where,
                            &need) == TH_YES);
}

/* Timers that stay where they are in the order: of all columns only the timestamps are stored. */
static void moved_timers(bool many) {
    th_heap h = filled();
    for (size_t i = 0; i < ROWS; i++) h.ts[i] = 10 * (int64_t)i; /* in heap order, without ties */
    void *kept[] = {h.key, h.ns, h.slot, h.line};
    for (int k = 0; k < 4; k++) allow(kept[k], PROT_READ);
    for (int64_t by = 0; by < 10; by++) move(&h, by, many);
    for (int k = 0; k < 4; k++) allow(kept[k], PROT_READ | PROT_WRITE);
    release(h);
}

/* The namespaces of a heap where all are the same. */
static void namespaces(void) {
    th_heap h = filled();
    allow(h.ns, PROT_READ);
    while (h.len > ROWS / 2) {
        size_t row = below(h.len);
        int64_t ts = h.ts[row], key = h.key[row], to = (int64_t)below(10000);
        if (below(2)) CHECK(th_heap_push(&h, to, key, -5) == TH_NO);
        else if (below(2)) CHECK(th_heap_remove(&h, ts, key, -5));
        else th_heap_pop(&h);
    }
    allow(h.ns, PROT_READ | PROT_WRITE);
    release(h);
}

void test_stores(void) {
    moved_timers(false);
    moved_timers(true);
    namespaces();
}
