/* Radix sort of rows into total order. A record is one word: the difference from the least value of the column in the
 * high bits, the row number in the low bits. The sort adapts to the range of the values: it sorts only enough bits to
 * separate n evenly distributed values, then sorts each run of equal bits by its own range, and finally by the next
 * column. Any input, even a skewed one, takes only a few passes; a million timestamps of one week take two. */
#include "th_private.h"

#define SMALL 24
#define DIGIT 11
#define AHEAD 16 /* how far ahead of their use values are fetched, whose rows are far apart */

typedef struct sorter {
    const int64_t *column[3];
    unsigned row_bits;
    uint64_t row_mask;
    uint64_t *scratch;
    uint32_t count[1 << DIGIT];
} sorter;

static bool record_less(const sorter *s, uint64_t a, uint64_t b, int column) {
    if (a >> s->row_bits != b >> s->row_bits) return a < b;
    a &= s->row_mask, b &= s->row_mask;
    for (int k = column; k < 3; k++)
        if (s->column[k][a] != s->column[k][b]) return s->column[k][a] < s->column[k][b];
    return false;
}

static void insertion_sort(const sorter *s, uint64_t *a, size_t n, int column) {
    for (size_t i = 1; i < n; i++) {
        uint64_t x = a[i];
        size_t k = i;
        for (; k && record_less(s, x, a[k - 1], column); k--) a[k] = a[k - 1];
        a[k] = x;
    }
}

/* Sorts by the bits [low, high), least significant digit first. */
static void radix_sort(sorter *s, uint64_t *a, size_t n, unsigned low, unsigned high) {
    unsigned passes = (high - low + DIGIT - 1) / DIGIT, width = (high - low + passes - 1) / passes;
    uint64_t *from = a, *to = s->scratch, mask = ((uint64_t)1 << width) - 1;
    for (; low < high; low += width) {
        uint32_t sum = 0;
        memset(s->count, 0, sizeof(uint32_t) << width);
        for (size_t i = 0; i < n; i++) s->count[from[i] >> low & mask]++;
        for (size_t d = 0; d <= mask; d++) {
            uint32_t c = s->count[d];
            s->count[d] = sum;
            sum += c;
        }
        for (size_t i = 0; i < n; i++) to[s->count[from[i] >> low & mask]++] = from[i];
        uint64_t *swap = from;
        from = to, to = swap;
    }
    if (from != a) memcpy(a, from, n * sizeof *a);
}

/* Sorts records that contain row numbers and are equal in the columns before `column`. */
static void sort_run(sorter *s, uint64_t *a, size_t n, int column) {
    if (n <= SMALL) {
        insertion_sort(s, a, n, column);
        return;
    }
    uint64_t least = 0, most = 0;
    for (; column < 3 && least == most; column++) {
        const int64_t *values = s->column[column];
        least = UINT64_MAX, most = 0;
        for (size_t i = 0; i < n; i++) {
            uint64_t v = (uint64_t)values[a[i] & s->row_mask] ^ (uint64_t)1 << 63;
            s->scratch[i] = v;
            least = v < least ? v : least;
            most = v > most ? v : most;
        }
    }
    if (least == most) return; /* they are equal in all columns */

    unsigned range = th_bits(most - least), room = 64 - s->row_bits, cut = range > room ? range - room : 0;
    for (size_t i = 0; i < n; i++) a[i] = (s->scratch[i] - least) >> cut << s->row_bits | (a[i] & s->row_mask);

    unsigned high = s->row_bits + range - cut, enough = th_bits(n - 1) + 2;
    unsigned low = range - cut > enough ? high - enough : s->row_bits;
    radix_sort(s, a, n, low, high);
    int next = low == s->row_bits && !cut ? column : column - 1;
    for (size_t i = 0, k; i < n; i = k) {
        for (k = i + 1; k < n && a[k] >> low == a[i] >> low;) k++;
        for (size_t f = i + AHEAD; next < 3 && f < k + AHEAD && f < n; f++)
            TH_PREFETCH(s->column[next] + (a[f] & s->row_mask));
        if (k - i > 1) sort_run(s, a + i, k - i, next);
    }
}

static void sort_rows(const int64_t *const column[3], size_t rows, size_t n, uint64_t *a, uint64_t *b) {
    unsigned bits = th_bits(rows);
    sorter s = {.row_bits = bits, .row_mask = ((uint64_t)1 << bits) - 1, .scratch = b};
    memcpy(s.column, column, sizeof s.column);
    sort_run(&s, a, n, 0);
    for (size_t i = 0; i < n; i++) a[i] &= s.row_mask;
}

void th_sort_rows(const th_heap *h, const uint32_t *rows, size_t n, uint64_t *a, uint64_t *b) {
    for (size_t i = 0; i < n; i++) a[i] = rows[i];
    sort_rows((const int64_t *const[]){h->ts, h->key, h->ns}, h->len, n, a, b);
}

void th_row_order(const int64_t *const column[3], size_t n, uint64_t *order, uint64_t *scratch) {
    for (size_t i = 0; i < n; i++) order[i] = i;
    sort_rows(column, n, n, order, scratch);
}
