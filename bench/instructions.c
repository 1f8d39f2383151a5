/* Runs each operation of csrc/ once on fixed timers or ids, and lets callgrind dump the instructions of each under the
 * name of the operation. instructions.py builds it, runs it and reads the dumps. */
#include "th_group.h"
#include "th_heap.h"
#include "th_pack.h"
#include "th_table.h"
#include "th_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <valgrind/callgrind.h>

#define N ((size_t)50000)
#define SPAN 1000000000u

static int64_t ts[N], key[N], moved[N], old_ts[N], old_key[N], out_ts[N], out_key[N], out_ns[N];
static uint8_t done[N];
static uint32_t where[N];
static int64_t table[(1 << 17) + 1];
static const int64_t zero;
static const th_column ns = {&zero, 0};

static th_column column(const int64_t *data) { return (th_column){data, 1}; }

static uint64_t next(void) {
    static uint64_t state = 20130101;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * 0x2545F4914F6CDD1D;
}

/* Creates the timers, and the same timers in another order with the timestamps to move to. */
static void draw(void) {
    for (size_t i = 0; i < N; i++) {
        ts[i] = (int64_t)(next() % SPAN);
        moved[i] = (int64_t)(next() % SPAN);
        key[i] = (int64_t)next();
        size_t j = next() % (i + 1);
        old_ts[i] = old_ts[j];
        old_key[i] = old_key[j];
        old_ts[j] = ts[i];
        old_key[j] = key[i];
    }
}

static void *memory(size_t size) {
    void *p = aligned_alloc(64, (size + 63) / 64 * 64);
    if (!p) abort();
    return memset(p, 0, size);
}

static th_heap empty(bool by_key) {
    th_heap h;
    th_heap_init(&h, by_key, 1);
    h.cap = N;
    h.lines = th_index_lines(N);
    h.ts = memory(N * sizeof *h.ts);
    h.key = memory(N * sizeof *h.key);
    h.ns = memory(N * sizeof *h.ns);
    h.slot = memory(N * sizeof *h.slot);
    h.line = memory(h.lines * sizeof *h.line);
    return h;
}

static void push_many(th_heap *h, const int64_t *times, const int64_t *keys) {
    size_t need;
    if (th_heap_push_many(h, column(times), column(keys), ns, N, done, where, &need) != TH_YES) abort();
}

static th_heap filled(bool by_key) {
    th_heap h = empty(by_key);
    push_many(&h, ts, key);
    return h;
}

static void pop_due(th_heap *h, int64_t watermark) {
    static uint64_t words[N];
    th_due due = {.watermark = watermark, .limit = SIZE_MAX, .scratch = words, .words = N, .room = SIZE_MAX};
    due.ts = out_ts, due.key = out_key, due.ns = out_ns;
    if (th_heap_pop_due(h, &due) != TH_FULL || due.need) abort();
    due.room = due.n;
    if (th_heap_pop_due(h, &due) != TH_YES) abort();
}

#define COUNT(name, heap, call)                                                                                        \
    do {                                                                                                               \
        th_heap h = heap;                                                                                              \
        CALLGRIND_ZERO_STATS;                                                                                          \
        call;                                                                                                          \
        CALLGRIND_DUMP_STATS_AT(name);                                                                                 \
        if (th_heap_check(&h) != TH_YES) abort();                                                                      \
        free(h.ts), free(h.key), free(h.ns), free(h.slot), free(h.line);                                               \
    } while (0)

static th_table an_index(void) {
    th_table t;
    th_table_init(&t, 1);
    if (th_table_move(&t, memory(th_table_size(N)), N, 1) != TH_YES) abort();
    return t;
}

static void put_ids(th_table *t, const int64_t *ids) {
    size_t need;
    if (th_table_put_many(t, column(ids), column(ts), N, done, (th_undo){where, out_ts}, &need) != TH_YES) abort();
}

static th_table filled_index(void) {
    th_table t = an_index();
    put_ids(&t, key);
    return t;
}

#define COUNT_IDS(name, table, call)                                                                                   \
    do {                                                                                                               \
        th_table t = table;                                                                                            \
        void *block = t.line;                                                                                          \
        CALLGRIND_ZERO_STATS;                                                                                          \
        call;                                                                                                          \
        CALLGRIND_DUMP_STATS_AT(name);                                                                                 \
        if (th_table_check(&t) != TH_YES) abort();                                                                     \
        if (t.line != block) free(t.line);                                                                             \
        free(block);                                                                                                   \
    } while (0)

/* Texts of 13 bytes, such as "user-00000042", and two places for each: its own, and that of another one. */
static uint8_t letters[13 * N];
static int64_t offsets[N + 1], place[N];
static int64_t read_offsets[N + 1]; /* of 4 bytes, which may have had 8 at the base */
static const th_array texts = {TH_TEXT, 8, 0, N, NULL, (const uint8_t *)offsets, letters, sizeof letters};
static const th_array times = {TH_FIXED, 8, 0, N, NULL, NULL, (const uint8_t *)ts, sizeof ts};

#define RANKS 16
static uint16_t rank_of[RANKS], rank[N];
static th_need need[2][RANKS];
static uint8_t lengths[N], moved_letters[sizeof letters], short_times[4 * N];

static void draw_texts(void) {
    for (size_t i = 0; i < sizeof letters; i++) letters[i] = (uint8_t)next();
    for (size_t i = 0; i <= N; i++) offsets[i] = (int64_t)(13 * i);
    for (size_t i = 0; i < N; i++) {
        size_t j = next() % (i + 1);
        place[i] = place[j];
        place[j] = (int64_t)i;
    }
    for (size_t r = 0; r < RANKS; r++) rank_of[r] = (uint16_t)(r * 7 % RANKS);
}

static void resolve(void) {
    memset(done, 1, sizeof done);
    if (th_array_compare(&texts, place, &texts, done) != TH_YES) abort();
}

static void hash_texts(void) {
    if (th_pack_hash(&texts, out_key) != TH_YES) abort();
}

/* Numbers the keys of rows, of which each has two, and puts the rows into waves. */
static void waves(void) {
    static int64_t number[N], stop[N], order[N], ordered[N];
    static uint32_t number_of[N], seen[N], rank_of_row[N];
    size_t n, keys = 0;
    if (th_group_numbers(out_key, N, N, number_of, &keys, number, done) != TH_YES) abort();
    const th_ordered rows = {place, number, N, N, keys};
    if (th_group_ranks(&rows, seen, rank_of_row, &n) != TH_YES || n != 2) abort();
    th_group_waves(&rows, rank_of_row, n, stop, order, ordered);
}

static void order_rows(void) {
    static uint64_t order[N], scratch[N];
    th_row_order((const int64_t *const[]){ts, key, moved}, N, order, scratch);
}

static int64_t ascending[N];
static uint8_t text[sizeof ts / 7 * 8 + 8];

/* Fills what a chunk of a snapshot has: timers in order of time, and their bytes as text. */
static void write_chunk(void) {
    for (size_t i = 0; i < N; i++) ascending[i] = (int64_t)(i * (SPAN / N));
    th_text_write((const uint8_t *)ts, sizeof ts, text);
}

static uint64_t count[RANKS];

static void measure(void) {
    memset(count, 0, sizeof count);
    th_pack_rank(out_key, N, RANKS, rank_of, rank, count);
    for (size_t r = 0; r < RANKS; r++) need[0][r] = need[1][r] = (th_need){.low = INT64_MAX, .high = INT64_MIN};
    if (th_pack_measure(&texts, rank, need[0]) != TH_YES || th_pack_measure(&times, rank, need[1]) != TH_YES) abort();
}

static void put_rows(void) {
    th_target target[2][RANKS];
    uint8_t *length = lengths, *text = moved_letters, *time = short_times;
    for (size_t r = 0; r < RANKS; r++) {
        target[0][r] = (th_target){.value = length, .text = text, .end = text + need[0][r].size, .width = 1};
        target[1][r] = (th_target){.value = time, .width = 4};
        length += count[r], text += need[0][r].size, time += 4 * count[r];
    }
    if (th_pack_put(&texts, rank, false, target[0]) != TH_YES) abort();
    if (th_pack_put(&times, rank, false, target[1]) != TH_YES) abort();
}

static void read_rows(void) {
    th_pack_widen(short_times, 4, 0, N, out_ts);
    if (th_pack_offsets(lengths, 1, N, sizeof letters, (void *)read_offsets) != TH_YES) abort();
}

#define COUNT_ROWS(name, call)                                                                                         \
    do {                                                                                                               \
        CALLGRIND_ZERO_STATS;                                                                                          \
        call;                                                                                                          \
        CALLGRIND_DUMP_STATS_AT(name);                                                                                 \
    } while (0)

#define EACH(call)                                                                                                     \
    for (size_t i = 0; i < N; i++) call

int main(void) {
    draw();
    COUNT("push", empty(false), EACH(th_heap_push(&h, ts[i], key[i], 0)));
    COUNT("push that moves", filled(true), EACH(th_heap_push(&h, moved[i], old_key[i], 0)));
    COUNT("remove", filled(false), EACH(th_heap_remove(&h, old_ts[i], old_key[i], 0)));
    COUNT("reschedule", filled(false), EACH(th_heap_reschedule(&h, old_ts[i], moved[i], old_key[i], 0)));
    COUNT("pop", filled(false), EACH(th_heap_pop(&h)));
    COUNT("push_many", empty(false), push_many(&h, ts, key));
    COUNT("push_many that moves", filled(true), push_many(&h, moved, old_key));
    COUNT("find_many", filled(true), th_heap_find_many(&h, column(old_key), ns, N, done, out_ts));
    COUNT("remove_many", filled(false), th_heap_remove_many(&h, column(old_ts), column(old_key), ns, N, done));
    COUNT("reschedule_many", filled(false),
          th_heap_reschedule_many(&h, column(old_ts), column(moved), column(old_key), ns, N, done));
    COUNT("remove_keys", filled(false),
          (th_heap_count_keys(&h, column(old_key), N / 10, table, sizeof table / sizeof *table - 1),
           th_heap_remove_keys(&h, table, sizeof table / sizeof *table - 1)));
    COUNT("pop_due, all due", filled(false), pop_due(&h, SPAN));
    COUNT("pop_due, 30 % due", filled(false), pop_due(&h, SPAN / 10 * 3));
    COUNT("pop_due, 10 % due", filled(false), pop_due(&h, SPAN / 10));
    COUNT("pop_due, 1 % due", filled(false), pop_due(&h, SPAN / 100));
    COUNT("reindex", filled(false), (memset(h.line, 0, h.lines * sizeof *h.line), th_heap_reindex(&h)));
    COUNT("restore", filled(false), (memset(h.line, 0, h.lines * sizeof *h.line), th_heap_restore(&h)));
    COUNT_IDS("ids, put_many", an_index(), put_ids(&t, key));
    COUNT_IDS("ids, put_many that sets", filled_index(), put_ids(&t, old_key));
    COUNT_IDS("ids, find_many", filled_index(), th_table_find_many(&t, column(old_key), N, out_ts, done));
    COUNT_IDS("ids, find_many, absent", filled_index(), th_table_find_many(&t, column(ts), N, out_ts, done));
    COUNT_IDS("ids, remove_many", filled_index(), th_table_remove_many(&t, column(old_key), N, out_ts, done));
    COUNT_IDS("ids, number_many", an_index(), th_table_number_many(&t, column(key), N, out_ts, (void *)out_key));
    COUNT_IDS("ids, grow", filled_index(), th_table_move(&t, memory(th_table_size(2 * N)), 2 * N, 1));
    COUNT_ROWS("rows, order", order_rows());
    write_chunk();
    COUNT_ROWS("load, text", th_text_read(text, th_text_size(sizeof ts), (uint8_t *)out_ts));
    COUNT("load, timers", empty(true), push_many(&h, ascending, key));
    draw_texts();
    for (size_t i = 0; i < N; i++) out_key[i] = place[i] / 2;
    COUNT_ROWS("rows, waves", waves());
    COUNT_ROWS("rows, resolve", resolve());
    COUNT_ROWS("rows, hash", hash_texts());
    COUNT_ROWS("rows, measure", measure());
    COUNT_ROWS("rows, put", put_rows());
    COUNT_ROWS("rows, read", read_rows());
    th_xxh64 x;
    COUNT("xxh64", empty(false), (th_xxh64_begin(&x, 0), th_xxh64_add(&x, ts, sizeof ts), th_xxh64_end(&x)));
    return 0;
}
