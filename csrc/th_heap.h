/* timerheap's native heap: an addressable 8-ary min-heap of timers over parallel columns, with a dedup index.
 *
 * C11, no dependency. Nothing here allocates, calls back, locks or knows Python: the caller owns every byte, lends
 * it by pointer, and keeps two threads from being inside one heap. See README.md for the layout and the costs.
 *
 * A timer is (timestamp, key hash, namespace), three int64 without sentinels. Order is total, in that sequence.
 * Its identity is all three, or (key hash, namespace) in a heap `by_key`, which holds one timer for each of them. */
#ifndef TH_HEAP_H
#define TH_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TH_ARITY 8
#define TH_LANES 12

/* Most timers a heap can hold: an entry is addressed by line * 16 + lane in 32 bits, with 9 to a line. */
#define TH_MAX_ROWS ((size_t)9 << 28)

typedef enum th_status {
    TH_NO = 0,       /* nothing was done: already there, or not there */
    TH_YES = 1,      /* done */
    TH_FULL = 2,     /* the row needs memory first; nothing was done */
    TH_DISORDER = 3, /* a row precedes its parent */
    TH_DUPLICATE = 4, /* two rows have one identity */
    TH_CORRUPT = 5   /* row and index entry do not point at each other */
} th_status;

/* One cache line of the index. All zero is an empty line. */
typedef struct th_line {
    uint8_t tag[TH_LANES];  /* 8 bits of the entry's hash, 0: the lane is free */
    uint32_t passed;        /* live entries that belong here or before and had to go on */
    uint32_t row[TH_LANES]; /* where in the columns the entry's timer is */
} th_line;

typedef struct th_heap {
    int64_t *ts, *key, *ns; /* the columns, in heap order; fastest when row 1 begins a 64-byte line */
    uint32_t *slot;         /* row -> index entry, line * 16 + lane */
    th_line *line;          /* the index, 64-byte aligned */
    size_t len, cap, lines;
    uint64_t changes;       /* differs after every change of rows, so that an iterator can tell */
    uint64_t seed[3];
    bool by_key;
} th_heap;

/* A column of arguments: `step` in elements, 0 for one value that stands for all. A call reads each once; if others
 * write to them meanwhile, it does so with one value or the other, and the heap stays valid. */
typedef struct th_column {
    const int64_t *data;
    ptrdiff_t step;
} th_column;

/* Makes an empty heap without memory (cap 0) whose hash is drawn from `seed`. */
void th_heap_init(th_heap *h, bool by_key, uint64_t seed);

/* Index lines that a heap of `cap` rows needs (0 for 0). */
size_t th_index_lines(size_t cap);

/* Builds the index anew over rows [0, len), whose identities differ; the lines must be zero. */
void th_heap_reindex(th_heap *h);

/* Takes rows [0, len), just written by the caller, for a heap and builds the index, whose lines must be zero:
 * TH_YES, or TH_DISORDER or TH_DUPLICATE where they are none (then the heap may only be thrown away). */
th_status th_heap_restore(th_heap *h);

/* Makes `to`, of the same cap and lines, a copy of h. */
void th_heap_copy(th_heap *to, const th_heap *h);

/* Empties the heap and keeps its memory. */
void th_heap_clear(th_heap *h);

/* Finds a timer by its identity (`ts` is ignored in a heap by_key): true, and its row. */
bool th_heap_find(const th_heap *h, int64_t ts, int64_t key, int64_t ns, size_t *row);

/* Adds a timer: TH_YES; TH_NO if it is there (a heap by_key then moves it to `ts`); TH_FULL if len == cap. */
th_status th_heap_push(th_heap *h, int64_t ts, int64_t key, int64_t ns);

/* Removes a timer by its identity: whether it was there. */
bool th_heap_remove(th_heap *h, int64_t ts, int64_t key, int64_t ns);

/* As remove(ts) and, if that was there, push(new_ts): whether it was there. Not for a heap by_key. */
bool th_heap_reschedule(th_heap *h, int64_t ts, int64_t new_ts, int64_t key, int64_t ns);

/* Removes row 0, the least timer; len > 0. */
void th_heap_pop(th_heap *h);

/* Pushes n timers as if in their sequence, added[i] as th_heap_push: TH_YES; or TH_FULL, the heap as before, and in
 * *need a cap that suffices for sure. `where` is scratch of n words, for a heap by_key only. */
th_status th_heap_push_many(th_heap *h, th_column ts, th_column key, th_column ns, size_t n, uint8_t *added,
                            uint32_t *where, size_t *need);

/* Looks up n identities in a heap by_key: found[i], and ts[i], 0 where it is not there. */
void th_heap_find_many(const th_heap *h, th_column key, th_column ns, size_t n, uint8_t *found, int64_t *ts);

/* Removes n timers in their sequence, removed[i] as th_heap_remove. */
void th_heap_remove_many(th_heap *h, th_column ts, th_column key, th_column ns, size_t n, uint8_t *removed);

/* Reschedules n timers in their sequence, moved[i] as th_heap_reschedule. */
void th_heap_reschedule_many(th_heap *h, th_column ts, th_column new_ts, th_column key, th_column ns, size_t n,
                             uint8_t *moved);

/* Counts the timers of n keys in one scan. `table` is zeroed scratch of size + 1 words, `size` a power of two > n; it
 * holds the keys afterwards. */
size_t th_heap_count_keys(const th_heap *h, th_column key, size_t n, int64_t *table, size_t size);

/* Removes every timer of the keys that th_heap_count_keys has put into `table`, in one more scan. */
void th_heap_remove_keys(th_heap *h, const int64_t *table, size_t size);

/* Counts the timers with timestamp <= watermark. */
size_t th_heap_count_due(const th_heap *h, int64_t watermark);

/* A pop_due on its way: what is asked for, and the memory that it works in and writes to. */
typedef struct th_due {
    int64_t watermark;
    size_t limit;
    uint64_t *scratch; /* `words` of them */
    size_t words, need;
    int64_t *ts, *key, *ns; /* the result, `room` rows of it */
    size_t room, n;
    size_t found, seen; /* the heap's own: due rows, and those of them whose children have been looked at */
    uint64_t changes;
} th_due;

/* Removes the first timers with timestamp <= watermark, at most `limit` of them, and writes them in total order:
 * TH_YES. Or TH_FULL, the heap as before, until there is memory: where `need` is not 0, scratch of so many words that
 * holds what it has held; else a result with room for exactly n rows. Begin with found = 0, and a room that no result
 * has. */
th_status th_heap_pop_due(th_heap *h, th_due *due);

/* Validates every invariant: TH_YES, or the first that is broken. Leaves the heap as it was. */
th_status th_heap_check(th_heap *h);

/* XXH64 in pieces: begin, add any number of times, end. */
typedef struct th_xxh64 {
    uint64_t acc[4], total, seed;
    uint8_t rest[32];
} th_xxh64;

void th_xxh64_begin(th_xxh64 *x, uint64_t seed);
void th_xxh64_add(th_xxh64 *x, const void *data, size_t size);
uint64_t th_xxh64_end(const th_xxh64 *x);

#endif
