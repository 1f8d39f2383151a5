/* Internal definitions shared by th_*.c: compiler differences, rows, and the inner loops of the index. */
#ifndef TH_PRIVATE_H
#define TH_PRIVATE_H

#include "th_heap.h"

#include <string.h>

#if defined(__SSE2__) || defined(_M_X64)
#define TH_SSE2 1
#include <emmintrin.h>
#endif

#if defined(_MSC_VER) && !defined(__clang__)
#include <intrin.h>
#define TH_INLINE static __forceinline
#define TH_UNLIKELY(c) (c)
#if defined(_M_X64)
#define TH_PREFETCH(p) _mm_prefetch((const char *)(p), _MM_HINT_T0)
#else
#define TH_PREFETCH(p) __prefetch(p)
#endif
TH_INLINE unsigned th_ctz(unsigned x) {
    unsigned long i;
    _BitScanForward(&i, x);
    return i;
}
TH_INLINE unsigned th_bits(uint64_t x) {
    unsigned long i;
    return _BitScanReverse64(&i, x) ? i + 1 : 0;
}
#else
#define TH_INLINE static inline __attribute__((always_inline))
#define TH_PREFETCH(p) __builtin_prefetch(p)
#define TH_UNLIKELY(c) __builtin_expect(!!(c), 0)
TH_INLINE unsigned th_ctz(unsigned x) { return (unsigned)__builtin_ctz(x); }
TH_INLINE unsigned th_bits(uint64_t x) { return x ? 64 - (unsigned)__builtin_clzll(x) : 0; }
#endif

/* The number of rows processed together, so that their cache misses overlap. */
#define TH_GROUP 32

/* Returns the xor of both halves of the 128-bit product. */
TH_INLINE uint64_t th_mix(uint64_t a, uint64_t b) {
#if defined(__SIZEOF_INT128__)
    unsigned __int128 p = (unsigned __int128)a * b;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
#elif defined(_M_X64)
    uint64_t hi, lo = _umul128(a, b, &hi);
    return lo ^ hi;
#else
    uint64_t al = (uint32_t)a, ah = a >> 32, bl = (uint32_t)b, bh = b >> 32;
    uint64_t mid = ah * bl + (al * bl >> 32), low = al * bh + (uint32_t)mid;
    return (a * b) ^ (ah * bh + (mid >> 32) + (low >> 32));
#endif
}

/* Derives the seeds of a hash function (th_heap.c). */
void th_seed(uint64_t out[3], uint64_t seed);

TH_INLINE uint64_t th_load_le64(const void *p) {
    uint64_t x;
    memcpy(&x, p, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    x = __builtin_bswap64(x);
#endif
    return x;
}

TH_INLINE uint32_t th_load_le32(const void *p) {
    uint32_t x;
    memcpy(&x, p, 4);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    x = __builtin_bswap32(x);
#endif
    return x;
}

/* ---- rows ---- */

typedef struct th_row {
    int64_t ts, key, ns;
    uint32_t slot;
} th_row;

/* Reads an argument. Volatile, so that the compiler reads it only once: another thread may write to it. */
#ifndef TH_READ
#define TH_READ(p) (*(const volatile int64_t *)(p))
#endif
TH_INLINE int64_t th_at(th_column c, size_t i) { return TH_READ(c.data + (ptrdiff_t)i * c.step); }

TH_INLINE th_row th_get(const th_heap *h, size_t i) { return (th_row){h->ts[i], h->key[i], h->ns[i], h->slot[i]}; }

/* Writes x, which was in a different row, to row i and updates the index. In most heaps all namespaces are the same: a
 * page of a mapped file that gets what it has would be written to the disk, too. */
TH_INLINE void th_put(th_heap *h, size_t i, th_row x) {
    h->ts[i] = x.ts;
    h->key[i] = x.key;
    if (h->ns[i] != x.ns) h->ns[i] = x.ns;
    h->slot[i] = x.slot;
    h->line[x.slot >> 4].row[x.slot & 15] = (uint32_t)i;
}

/* Does the same for x that may have been in row i: then only its timestamp can differ. */
TH_INLINE void th_put_back(th_heap *h, size_t i, th_row x) {
    bool there = h->slot[i] == x.slot && h->key[i] == x.key && h->line[x.slot >> 4].row[x.slot & 15] == i;
    if (!there || h->ns[i] != x.ns) th_put(h, i, x);
    else if (h->ts[i] != x.ts) h->ts[i] = x.ts;
}

/* Returns whether row i precedes x. */
TH_INLINE bool th_row_less(const th_heap *h, size_t i, th_row x) {
    if (h->ts[i] != x.ts) return h->ts[i] < x.ts;
    if (h->key[i] != x.key) return h->key[i] < x.key;
    return h->ns[i] < x.ns;
}

/* Returns whether x precedes row i. */
TH_INLINE bool th_less_row(const th_heap *h, th_row x, size_t i) {
    if (h->ts[i] != x.ts) return x.ts < h->ts[i];
    if (h->key[i] != x.key) return x.key < h->key[i];
    return x.ns < h->ns[i];
}

/* Fetches the timestamps of the children of row i ahead of their use. */
TH_INLINE void th_prefetch_children(const th_heap *h, size_t i) {
    TH_PREFETCH((const char *)((uintptr_t)h->ts + (TH_ARITY * i + 1) * sizeof *h->ts)); /* may be out of bounds */
}

/* ---- the index ---- */

/* Returns whether the identity of a timer of this namespace is (key, ns). */
TH_INLINE bool th_moves(const th_heap *h, int64_t ns) {
    return h->identity == TH_BY_KEY || (h->identity == TH_BY_NAME && ns);
}

/* An attacker who knows the keys but not the seed cannot make them collide. */
TH_INLINE uint64_t th_hash_identity(const th_heap *h, int64_t ts, int64_t key, int64_t ns) {
    return th_mix(th_mix((uint64_t)ts ^ h->seed[0], (uint64_t)key ^ h->seed[1]) ^ (uint64_t)ns, h->seed[2]);
}

TH_INLINE uint64_t th_hash(const th_heap *h, int64_t ts, int64_t key, int64_t ns) {
    return th_hash_identity(h, th_moves(h, ns) ? 0 : ts, key, ns);
}

TH_INLINE size_t th_home(const th_heap *h, uint64_t hash) { return (size_t)((hash >> 32) * h->lines >> 32); }

TH_INLINE uint8_t th_tag(uint64_t hash) { return (uint8_t)(hash | ((uint8_t)hash == 0)); }

/* Returns a mask of the lanes with this tag. */
TH_INLINE unsigned th_match(const th_line *b, uint8_t tag) {
#if TH_SSE2
    __m128i eq = _mm_cmpeq_epi8(_mm_load_si128((const __m128i *)b), _mm_set1_epi8((char)tag));
    return (unsigned)_mm_movemask_epi8(eq) & 0xFFF;
#else
    const uint64_t low7 = 0x7F7F7F7F7F7F7F7F, gather = 0x0102040810204080;
    uint64_t x = th_load_le64(b->tag) ^ ((uint64_t)0x0101010101010101 * tag);
    uint64_t y = (th_load_le32(b->tag + 8) | 0xFFFFFFFF00000000) ^ ((uint64_t)0x01010101 * tag);
    x = ~(((x & low7) + low7) | x | low7) >> 7; /* 1 in each byte that was zero */
    y = ~(((y & low7) + low7) | y | low7) >> 7;
    return (unsigned)(((x * gather) >> 56) | ((y * gather) >> 56 << 8));
#endif
}

TH_INLINE bool th_same(const th_heap *h, size_t i, int64_t ts, int64_t key, int64_t ns) {
    return h->key[i] == key && h->ns[i] == ns && (th_moves(h, ns) || h->ts[i] == ts);
}

/* Returns the row of an identity, or SIZE_MAX. The search ends after all lines, since every line may be passed. */
TH_INLINE size_t th_lookup(const th_heap *h, uint64_t hash, int64_t ts, int64_t key, int64_t ns) {
    size_t at = th_home(h, hash);
    for (size_t left = h->lines; left; left--) {
        const th_line *b = &h->line[at];
        for (unsigned m = th_match(b, th_tag(hash)); m; m &= m - 1) {
            size_t i = b->row[th_ctz(m)];
            if (th_same(h, i, ts, key, ns)) return i;
        }
        if (!b->passed) break;
        if (++at == h->lines) at = 0;
    }
    return SIZE_MAX;
}

/* Enters row i in a line if a lane is free and returns whether it is, and the slot. Otherwise counts it as passed. */
TH_INLINE bool th_enter_line(th_heap *h, size_t at, uint8_t tag, size_t i, uint32_t *slot) {
    th_line *b = &h->line[at];
    unsigned free = th_match(b, 0);
    if (!free) {
        b->passed++; /* cannot overflow, since there are fewer than 2^32 rows */
        return false;
    }
    unsigned lane = th_ctz(free);
    b->tag[lane] = tag;
    b->row[lane] = (uint32_t)i;
    *slot = (uint32_t)(at << 4 | lane);
    return true;
}

/* Enters row i, whose identity must be absent, and returns its slot. There is always a free lane. */
TH_INLINE uint32_t th_enter(th_heap *h, uint64_t hash, size_t i) {
    uint32_t slot;
    for (size_t at = th_home(h, hash); !th_enter_line(h, at, th_tag(hash), i, &slot);)
        if (++at == h->lines) at = 0;
    return slot;
}

/* Removes an entry. Instead of leaving a tombstone, decrements the counts of the lines it passed. */
TH_INLINE void th_leave(th_heap *h, uint64_t hash, uint32_t slot) {
    size_t end = slot >> 4;
    h->line[end].tag[slot & 15] = 0;
    for (size_t at = th_home(h, hash); TH_UNLIKELY(at != end);) {
        h->line[at].passed--;
        if (++at == h->lines) at = 0;
    }
}

TH_INLINE uint64_t th_hash_row(const th_heap *h, size_t i) { return th_hash(h, h->ts[i], h->key[i], h->ns[i]); }

/* ---- order (th_heap.c) ---- */

/* Places x on the path from the empty row i to the root. */
void th_sift_up(th_heap *h, size_t i, th_row x);

/* Places x in the subtree of the empty row i, among the rows before `end`. */
void th_sift_down(th_heap *h, size_t i, size_t end, th_row x);

/* Sifts x up or down from the empty row i. */
void th_settle(th_heap *h, size_t i, size_t end, th_row x);

/* Moves row i to another timestamp; drops it if there is already a timer with the new identity. */
void th_reschedule(th_heap *h, size_t i, uint64_t hash, int64_t new_ts, uint64_t new_hash, bool loose);

/* Rows that sift down together, so that their cache misses overlap. None is a descendant of another. */
typedef struct th_sinkers {
    size_t n, highest;
    size_t at[TH_GROUP]; /* empty rows, descending */
    th_row x[TH_GROUP];  /* the timers to place in them */
} th_sinkers;

/* Returns whether row i, which is lower than all added rows, can be added. */
TH_INLINE bool th_sink_takes(const th_sinkers *s, size_t i) {
    return !s->n || (s->n < TH_GROUP && TH_ARITY * i + 1 > s->highest);
}

void th_sink_add(th_heap *h, th_sinkers *s, size_t i, th_row x);

/* Places all timers and empties s. */
void th_sink(th_heap *h, th_sinkers *s);

/* Sifts down rows [lo, hi), all of which have children, from last to first. */
void th_sweep(th_heap *h, size_t lo, size_t hi);

/* Restores the heap order of all rows by Floyd's algorithm. */
void th_heapify(th_heap *h);

/* Removes row i from the index and the columns; if `loose`, leaves the order to a later th_heapify. */
void th_drop(th_heap *h, size_t i, uint64_t hash, bool loose);

/* Sorts `rows`, ascending row numbers, into total order and writes them to `a`; `b` is scratch (th_sort.c). */
void th_sort_rows(const th_heap *h, const uint32_t *rows, size_t n, uint64_t *a, uint64_t *b);

#endif
