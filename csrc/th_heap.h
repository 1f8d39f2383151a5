/* timerheap's native heap: an addressable 8-ary min-heap of timers over parallel columns, with a dedup index.
 *
 * C11 without dependencies. The heap never allocates, locks, calls back or uses Python. The caller owns all memory,
 * lends it by pointer, and ensures that only one thread uses a heap at a time. Layout, costs: docs/native-heap.md.
 *
 * A timer is (timestamp, key hash, namespace), three int64 without sentinels, ordered in that sequence. Its identity is
 * all three, or (key hash, namespace) if it moves: th_identity says which do. A heap holds one timer per identity. */
#ifndef TH_HEAP_H
#define TH_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TH_ARITY 8
#define TH_LANES 12
#define TH_LINE 64 /* bytes of a cache line */

/* The maximum number of timers: entries are addressed by line * 16 + lane in 32 bits, with 9 entries per line. */
#define TH_MAX_ROWS ((size_t)9 << 28)

typedef enum th_status {
    TH_NO = 0,       /* nothing done: the timer is already present, or absent */
    TH_YES = 1,      /* done */
    TH_FULL = 2,     /* nothing done: more memory is needed */
    TH_DISORDER = 3, /* a row precedes its parent */
    TH_DUPLICATE = 4, /* two rows have one identity */
    TH_CORRUPT = 5   /* a row and its index entry do not point at each other */
} th_status;

/* Which timers move: pushing one that is present changes its timestamp. */
typedef enum th_identity {
    TH_BY_TIMER = 0, /* none */
    TH_BY_KEY = 1,   /* all */
    TH_BY_NAME = 2   /* those of another namespace than 0 */
} th_identity;

/* One cache line of the index. All zero is an empty line. */
typedef struct th_line {
    uint8_t tag[TH_LANES];  /* 8 bits of the hash of the entry, or 0 for a free lane */
    uint32_t passed;        /* number of live entries that were placed in a later line because this one was full */
    uint32_t row[TH_LANES]; /* the row of the timer of the entry */
} th_line;

typedef struct th_heap {
    int64_t *ts, *key, *ns; /* the columns in heap order; fastest if row 1 is aligned to 64 bytes */
    uint32_t *slot;         /* row -> index entry, line * 16 + lane */
    th_line *line;          /* the index, 64-byte aligned */
    size_t len, cap, lines;
    uint64_t changes;       /* counts changes of rows, so that an iterator can detect them */
    uint64_t seed[3];
    th_identity identity;
    uint32_t path[12]; /* the rows that the next pop can move up, and UINT32_MAX ... */
    uint64_t path_of;  /* ... if this is `changes` */
} th_heap;

/* A column of arguments: `step` is in elements, 0 for a single value for all rows. A call reads each value once. If
 * another thread writes to it in the meantime, the call uses the old or the new value and the heap stays valid. */
typedef struct th_column {
    const int64_t *data;
    ptrdiff_t step;
} th_column;

/* Initializes an empty heap without memory (cap 0); `seed` determines its hash function. */
void th_heap_init(th_heap *h, th_identity identity, uint64_t seed);

/* Returns the number of index lines that a heap of `cap` rows needs (0 for 0). */
size_t th_index_lines(size_t cap);

/* Rebuilds the index of rows [0, len), whose identities must differ; the lines must be zero. */
void th_heap_reindex(th_heap *h);

/* Validates rows [0, len), written by the caller, as a heap and builds the index; the lines must be zero. Returns
 * TH_YES, or TH_DISORDER or TH_DUPLICATE if the rows are not a heap, which must then be discarded. */
th_status th_heap_restore(th_heap *h);

/* The columns and the index of a heap may be in one block of memory, aligned to a cache line. It holds no pointers, so
 * another process can continue with the same bytes. */

/* Returns the number of bytes of a block for `cap` timers (0 for 0). */
size_t th_heap_size(size_t cap);

/* Points h to a block for `cap` timers, which a heap with the same seed has written; the caller sets `len`. */
void th_heap_place(th_heap *h, void *block, size_t cap);

/* Moves the heap from its memory to a block for `cap` timers; it must not hold more. */
void th_heap_move(th_heap *h, void *block, size_t cap);

/* Returns whether some rows are where their index entries say and in order, or some lines of an empty heap are empty.
 * O(1). It tells a heap from other bytes, but does not prove that the heap is intact. */
bool th_heap_plausible(const th_heap *h);

/* Makes `to`, of the same cap and lines, a copy of h. */
void th_heap_copy(th_heap *to, const th_heap *h);

/* Empties the heap and keeps its memory. */
void th_heap_clear(th_heap *h);

/* Finds a timer by its identity (without `ts` if it moves). Returns whether it is present, and its row. */
bool th_heap_find(const th_heap *h, int64_t ts, int64_t key, int64_t ns, size_t *row);

/* Fetch the memory that an operation on one timer will use, while others are under way: first its line of the index,
 * and when that has come, its row and what is below it. */
void th_heap_fetch_line(const th_heap *h, int64_t ts, int64_t key, int64_t ns);
void th_heap_fetch_row(const th_heap *h, int64_t ts, int64_t key, int64_t ns);

/* Adds a timer. Returns TH_YES; TH_NO if it is present (one that moves is then at `ts`); TH_FULL if len == cap. */
th_status th_heap_push(th_heap *h, int64_t ts, int64_t key, int64_t ns);

/* Removes a timer by its identity. Returns whether it was present. */
bool th_heap_remove(th_heap *h, int64_t ts, int64_t key, int64_t ns);

/* Removes a timer and, if it was present, pushes it at `new_ts`. Returns whether it was present. */
bool th_heap_reschedule(th_heap *h, int64_t ts, int64_t new_ts, int64_t key, int64_t ns);

/* Removes row 0, the first timer; len must not be 0. */
void th_heap_pop(th_heap *h);

/* Pushes n timers as if one by one; added[i] is the result of th_heap_push. Returns TH_YES; or TH_FULL with the heap
 * unchanged and a sufficient capacity in *need. `where` is scratch of n words, unused by a heap TH_BY_TIMER. */
th_status th_heap_push_many(th_heap *h, th_column ts, th_column key, th_column ns, size_t n, uint8_t *added,
                            uint32_t *where, size_t *need);

/* Looks up n identities in a heap TH_BY_KEY: sets found[i], and ts[i] or 0 if it is absent. */
void th_heap_find_many(const th_heap *h, th_column key, th_column ns, size_t n, uint8_t *found, int64_t *ts);

/* Removes n timers one by one; removed[i] is the result of th_heap_remove. */
void th_heap_remove_many(th_heap *h, th_column ts, th_column key, th_column ns, size_t n, uint8_t *removed);

/* Removes n timers one by one if they are at `ts`, also those that move; taken[i] is whether it was removed. */
void th_heap_take_many(th_heap *h, th_column ts, th_column key, th_column ns, size_t n, uint8_t *taken);

/* Reschedules n timers one by one; moved[i] is the result of th_heap_reschedule. */
void th_heap_reschedule_many(th_heap *h, th_column ts, th_column new_ts, th_column key, th_column ns, size_t n,
                             uint8_t *moved);

/* Counts the timers of n keys in one scan. `table` is zeroed scratch of size + 1 words, where `size` is a power of two
 * greater than n; it holds the keys afterwards. */
size_t th_heap_count_keys(const th_heap *h, th_column key, size_t n, int64_t *table, size_t size);

/* Removes all timers of the keys that th_heap_count_keys stored in `table`, in another scan. */
void th_heap_remove_keys(th_heap *h, const int64_t *table, size_t size);

/* Counts the timers with timestamp <= watermark. */
size_t th_heap_count_due(const th_heap *h, int64_t watermark);

/* Writes the rows, ascending, of the timers with timestamp <= watermark, of n at most; returns their number. */
size_t th_heap_due_rows(const th_heap *h, int64_t watermark, int64_t *row, size_t n);

/* The arguments, scratch memory and result of th_heap_pop_due. */
typedef struct th_due {
    int64_t watermark;
    size_t limit;
    uint64_t *scratch; /* of `words` words */
    size_t words, need;
    int64_t *ts, *key, *ns; /* the result, of `room` rows */
    size_t room, n;
    size_t found, seen; /* internal: due rows found, and those whose children have been visited */
    uint64_t changes;
} th_due;

/* Removes the first timers with timestamp <= watermark, at most `limit`, and writes them in order. Returns TH_YES;
 * or TH_FULL with the heap unchanged if memory is missing, which only the caller can allocate. Then it calls again,
 * with the same th_due, until the timers are removed:
 *
 * 1. At first, found = 0, and room = SIZE_MAX, a number of rows that no result has.
 * 2. TH_FULL with need > 0: there are more due rows than scratch can hold. Call again with scratch of `need` words that
 *    begins with the old contents: the search goes on where it was.
 * 3. TH_FULL with need = 0: the result has n rows. Call again with ts, key and ns of exactly n rows, and room = n.
 *
 * If the heap has changed in between, as `changes` tells, the search begins anew, and step 2 or 3 may come again. */
th_status th_heap_pop_due(th_heap *h, th_due *due);

/* Writes the order of n rows, at most TH_MAX_ROWS, by three columns. It is stable; `scratch` is of n words. */
void th_row_order(const int64_t *const column[3], size_t n, uint64_t *order, uint64_t *scratch);

/* Checks all invariants and leaves the heap unchanged. Returns TH_YES or the first violation. */
th_status th_heap_check(th_heap *h);

/* Incremental XXH64: call begin, add any number of times, and end. */
typedef struct th_xxh64 {
    uint64_t acc[4], total, seed;
    uint8_t rest[32];
} th_xxh64;

void th_xxh64_begin(th_xxh64 *x, uint64_t seed);
void th_xxh64_add(th_xxh64 *x, const void *data, size_t size);
uint64_t th_xxh64_end(const th_xxh64 *x);

#endif
