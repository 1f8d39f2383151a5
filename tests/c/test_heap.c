/* Compares both kinds of heap and, in test_table.c, the table of ids with an unsorted array after random operations and
 * checks all invariants after each one. All memory has exactly the documented size, so that the sanitizers detect
 * accesses beyond it. Usage: program [steps] [seed] */
#include "testing.h"

#include <time.h>

uint64_t seed;
static uint64_t state;

int64_t (*other_argument)(void);

int64_t read_argument(const int64_t *p) {
    int64_t value = *p;
    if (other_argument) *(int64_t *)p = other_argument();
    return value;
}

uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * 0x2545F4914F6CDD1D;
}

size_t below(size_t n) { return (size_t)((next() >> 32) * n >> 32); }

void *memory(size_t size) {
    void *p = malloc(size);
    CHECK(p || !size);
    return p;
}

void *lines(size_t size) {
    void *p = size ? aligned_alloc(64, size) : NULL;
    CHECK(p || !size);
    return p;
}

/* ---- the model ---- */

#define MOST 4096

typedef struct timer {
    int64_t ts, key, ns;
} timer;

static timer model[MOST];
static size_t model_len;
static th_identity identity;

static bool moves(timer x) { return identity == TH_BY_KEY || (identity == TH_BY_NAME && x.ns); }

static int compare(const void *pa, const void *pb) {
    const timer *a = pa, *b = pb;
    if (a->ts != b->ts) return a->ts < b->ts ? -1 : 1;
    if (a->key != b->key) return a->key < b->key ? -1 : 1;
    return (a->ns > b->ns) - (a->ns < b->ns);
}

static timer *model_find(timer x) {
    for (timer *t = model; t < model + model_len; t++)
        if (t->key == x.key && t->ns == x.ns && (moves(x) || t->ts == x.ts)) return t;
    return NULL;
}

static bool model_push(timer x) {
    timer *t = model_find(x);
    if (t) t->ts = x.ts;
    else model[model_len++] = x;
    return !t;
}

static bool model_remove(timer x) {
    timer *t = model_find(x);
    if (t) *t = model[--model_len];
    return t;
}

static bool model_reschedule(timer x, int64_t ts) {
    if (!model_remove(x)) return false;
    model_push((timer){ts, x.key, x.ns});
    return true;
}

/* ---- the heap's memory ---- */

static th_heap h;
static uint64_t heap_seed;
static void *block; /* the memory of h, if it is one block */
static bool use_blocks; /* whether h may move to one block */

static void free_memory(const th_heap *heap, void *of_heap) {
    if (of_heap) free(of_heap);
    else free(heap->ts), free(heap->key), free(heap->ns), free(heap->slot), free(heap->line);
}

static void move_to_block(size_t cap) {
    th_heap old = h;
    void *old_block = block;
    block = lines(th_heap_size(cap));
    th_heap_move(&h, block, cap);
    free_memory(&old, old_block);
    CHECK(h.len == old.len && h.cap == cap && h.lines == th_index_lines(cap));
    CHECK(th_heap_plausible(&h));
    CHECK(!cap || (char *)(h.slot + cap) <= (char *)block + th_heap_size(cap));
}

/* Continues on the same block, as another process does. */
static void attach(void) {
    th_heap old = h;
    th_heap_init(&h, old.identity, heap_seed);
    th_heap_place(&h, block, old.cap);
    h.len = old.len;
    h.changes = old.changes;
    CHECK(!memcmp(&h, &old, offsetof(th_heap, path)));
    CHECK(th_heap_plausible(&h));
}

static void resize(size_t cap) {
    if (use_blocks && cap && below(2)) {
        move_to_block(cap);
        return;
    }
    th_heap old = h;
    void *old_block = block;
    block = NULL;
    h.ts = memory(cap * 8), h.key = memory(cap * 8), h.ns = memory(cap * 8), h.slot = memory(cap * 4);
    h.lines = th_index_lines(cap);
    h.line = lines(h.lines * 64);
    h.cap = cap;
    if (cap) memset(h.line, 0, h.lines * 64);
    if (h.len) {
        memcpy(h.ts, old.ts, h.len * 8);
        memcpy(h.key, old.key, h.len * 8);
        memcpy(h.ns, old.ns, h.len * 8);
    }
    th_heap_reindex(&h);
    free_memory(&old, old_block);
}

static void start(th_identity which, size_t cap) {
    identity = which;
    model_len = 0;
    heap_seed = next();
    th_heap_init(&h, which, heap_seed);
    resize(cap);
}

static void finish(void) {
    h.len = 0;
    resize(0);
    free(h.ts), free(h.key), free(h.ns), free(h.slot);
    memset(&h, 0, sizeof h);
}

static void same(void) {
    static timer sorted[MOST], found[MOST];
    CHECK(th_heap_check(&h) == TH_YES);
    CHECK(h.len == model_len);
    for (size_t i = 0; i < h.len; i++) found[i] = (timer){h.ts[i], h.key[i], h.ns[i]};
    memcpy(sorted, model, model_len * sizeof *model);
    qsort(sorted, model_len, sizeof *sorted, compare);
    if (h.len) CHECK(!compare(&found[0], &sorted[0]));
    qsort(found, h.len, sizeof *found, compare);
    CHECK(!memcmp(found, sorted, h.len * sizeof *found));
}

/* ---- rows ---- */

static int64_t any_ts(size_t spread) {
    static const int64_t extremes[] = {INT64_MIN, INT64_MIN + 1, -1, INT64_MAX - 1, INT64_MAX, (int64_t)1 << 32};
    return below(16) ? (int64_t)below(spread) : extremes[below(6)];
}

static timer any(size_t spread) {
    timer x = {any_ts(spread), (int64_t)below(spread), below(4) ? 0 : any_ts(3)};
    if (model_len && below(2)) x = model[below(model_len)];
    return x;
}

/* Returns a value that is likely to be part of a timer in the heap. */
static int64_t any_argument(void) {
    timer x = any(1000);
    return below(2) ? x.ts : below(2) ? x.key : x.ns;
}

/* Rows, and copies of their columns that are passed as arguments. */
typedef struct batch {
    size_t n;
    int64_t *ts, *new_ts, *key, *ns, *lent;
    uint8_t *done;
} batch;

static batch any_batch(size_t n, size_t spread) {
    batch b = {.n = n, .ts = memory(n * 32), .lent = memory(n * 32), .done = memory(n)};
    b.new_ts = b.ts + n, b.key = b.new_ts + n, b.ns = b.key + n;
    for (size_t i = 0; i < n; i++) {
        timer x = any(spread);
        b.ts[i] = x.ts, b.key[i] = x.key, b.ns[i] = x.ns, b.new_ts[i] = any_ts(spread);
    }
    return b;
}

static void free_batch(batch b) { free(b.ts), free(b.lent), free(b.done); }

static void lend(batch b) {
    if (b.n) memcpy(b.lent, b.ts, b.n * 32);
    other_argument = any_argument;
}

/* The copy of a column of b. */
#define COLUMN(b, column) ((th_column){(b).lent + ((b).column - (b).ts), 1})

static void push_many(batch b) {
    size_t need = 0, len = h.len;
    uint32_t *where = memory(identity ? b.n * 4 : 0);
    lend(b);
    while (th_heap_push_many(&h, COLUMN(b, ts), COLUMN(b, key), COLUMN(b, ns), b.n, b.done, where, &need) == TH_FULL) {
        CHECK(h.len == len);
        CHECK(th_heap_check(&h) == TH_YES);
        CHECK(need > h.cap);
        resize(need);
        lend(b);
    }
    other_argument = NULL;
    for (size_t i = 0; i < b.n; i++) CHECK(b.done[i] == model_push((timer){b.ts[i], b.key[i], b.ns[i]}));
    free(where);
}

static void pop_due(int64_t watermark, size_t limit) {
    qsort(model, model_len, sizeof *model, compare);
    size_t due = 0;
    while (due < model_len && model[due].ts <= watermark) due++;
    CHECK(th_heap_count_due(&h, watermark) == due);
    size_t take = limit < due ? limit : due, len = h.len;
    th_due d = {.watermark = watermark, .limit = limit, .words = below(99), .room = SIZE_MAX};
    d.scratch = memory(d.words * 8);
    while (th_heap_pop_due(&h, &d) == TH_FULL) {
        CHECK(h.len == len);
        if (d.need) {
            CHECK(d.need > d.words);
            d.scratch = realloc(d.scratch, (d.words = d.need) * 8);
        } else {
            CHECK(d.n == take && d.n != d.room);
            d.ts = memory(d.n * 8), d.key = memory(d.n * 8), d.ns = memory(d.n * 8), d.room = d.n;
        }
    }
    for (size_t i = 0; i < take; i++)
        CHECK(d.ts[i] == model[i].ts && d.key[i] == model[i].key && d.ns[i] == model[i].ns);
    free(d.ts), free(d.key), free(d.ns), free(d.scratch);
    memmove(model, model + take, (model_len - take) * sizeof *model);
    model_len -= take;
}

static void remove_many(batch b) {
    lend(b);
    th_heap_remove_many(&h, COLUMN(b, ts), COLUMN(b, key), COLUMN(b, ns), b.n, b.done);
    other_argument = NULL;
    for (size_t i = 0; i < b.n; i++) CHECK(b.done[i] == model_remove((timer){b.ts[i], b.key[i], b.ns[i]}));
}

static void take_many(batch b) {
    for (size_t i = 0; i < b.n && model_len; i++) { /* some at the timestamps that they have */
        if (below(2)) {
            timer *t = model_find((timer){b.ts[i], b.key[i], b.ns[i]});
            if (t) b.ts[i] = t->ts;
        }
    }
    lend(b);
    th_heap_take_many(&h, COLUMN(b, ts), COLUMN(b, key), COLUMN(b, ns), b.n, b.done);
    other_argument = NULL;
    for (size_t i = 0; i < b.n; i++) {
        timer x = {b.ts[i], b.key[i], b.ns[i]}, *t = model_find(x);
        CHECK(b.done[i] == (t && t->ts == x.ts && model_remove(x)));
    }
}

static void reschedule_many(batch b) {
    lend(b);
    th_heap_reschedule_many(&h, COLUMN(b, ts), COLUMN(b, new_ts), COLUMN(b, key), COLUMN(b, ns), b.n, b.done);
    other_argument = NULL;
    for (size_t i = 0; i < b.n; i++)
        CHECK(b.done[i] == model_reschedule((timer){b.ts[i], b.key[i], b.ns[i]}, b.new_ts[i]));
}

static void find_many(batch b) {
    int64_t *ts = memory(b.n * 8);
    lend(b);
    th_heap_find_many(&h, COLUMN(b, key), COLUMN(b, ns), b.n, b.done, ts);
    other_argument = NULL;
    for (size_t i = 0; i < b.n; i++) {
        timer *t = model_find((timer){0, b.key[i], b.ns[i]});
        CHECK(b.done[i] == (t != NULL) && ts[i] == (t ? t->ts : 0));
    }
    free(ts);
}

static void remove_keys(batch b) {
    size_t size = 2;
    while (size < 2 * b.n) size *= 2;
    int64_t *table = calloc(size + 1, 8);
    lend(b);
    size_t before = h.len, count = th_heap_count_keys(&h, COLUMN(b, key), b.n, table, size);
    other_argument = NULL;
    CHECK(h.len == before);
    th_heap_remove_keys(&h, table, size);
    CHECK(before - h.len == count);
    for (size_t k = model_len; k--;)
        for (size_t i = 0; i < b.n; i++)
            if (model[k].key == b.key[i]) {
                model[k] = model[--model_len];
                break;
            }
    free(table);
}

/* ---- tests ---- */

static void pop_first(void) {
    timer first = {h.ts[0], h.key[0], h.ns[0]};
    th_heap_pop(&h);
    CHECK(model_remove(first));
}

static void random_steps(size_t steps, th_identity which) {
    start(which, below(50));
    size_t spread = 5;
    for (size_t step = 0; step < steps; step++) {
        timer x = any(spread);
        size_t row;
        if (!below(50)) spread = (size_t)1 << below(20);
        switch (below(13)) {
        case 0:
        case 1:
            if (model_len == MOST) break;
            if (h.len == h.cap && !model_find(x)) {
                CHECK(th_heap_push(&h, x.ts, x.key, x.ns) == TH_FULL);
                resize(h.cap + 1 + below(h.cap + 1));
            }
            CHECK(th_heap_push(&h, x.ts, x.key, x.ns) == (th_status)model_push(x));
            break;
        case 2:
            CHECK(th_heap_remove(&h, x.ts, x.key, x.ns) == model_remove(x));
            break;
        case 3: {
            int64_t ts = any_ts(spread);
            CHECK(th_heap_reschedule(&h, x.ts, ts, x.key, x.ns) == model_reschedule(x, ts));
            break;
        }
        case 4:
            th_heap_fetch_line(&h, x.ts, x.key, x.ns);
            th_heap_fetch_row(&h, x.ts, x.key, x.ns);
            CHECK(th_heap_find(&h, x.ts, x.key, x.ns, &row) == (model_find(x) != NULL));
            if (model_find(x)) CHECK(h.ts[row] == model_find(x)->ts && h.key[row] == x.key);
            break;
        case 5:
            if (h.len) pop_first();
            break;
        case 6:
            pop_due(below(8) ? x.ts : INT64_MAX, below(2) ? SIZE_MAX : below(h.len + 2));
            break;
        case 7: {
            batch b = any_batch(1 + below(20), spread);
            remove_keys(b);
            free_batch(b);
            break;
        }
        case 8:
            if (!below(40)) th_heap_clear(&h), model_len = 0;
            if (block && below(2)) attach();
            else resize(h.len + below(2 * h.len + 1));
            break;
        default: {
            size_t most = below(3) ? 40 : 1000, room = MOST - model_len;
            batch b = any_batch(below(most < room ? most : room), spread);
            size_t kind = below(6);
            if (kind < 2) push_many(b);
            else if (kind == 2) remove_many(b);
            else if (kind == 3) take_many(b);
            else if (which == TH_BY_KEY && below(2)) find_many(b);
            else reschedule_many(b);
            free_batch(b);
        }
        }
        same();
    }
    finish();
}

/* Each pop follows the path that the pop before has found, as long as pushes in between have kept it. */
static void kept_paths(th_identity which) {
    size_t kept = 0, spread = (size_t)1 << (9 + below(11));
    start(which, 700);
    for (size_t step = 0; step < 1000; step++) {
        timer x = any(spread);
        if (step > 400 && h.len && below(2)) pop_first();
        else if (h.len < h.cap) CHECK(th_heap_push(&h, x.ts, x.key, x.ns) == (th_status)model_push(x));
        kept += h.path_of == h.changes;
        if (step > 400) same();
    }
    CHECK(kept > 300);
    while (h.len) pop_first();
    same();
    finish();
}

/* Uses keys that all belong to the last two lines, so that the index wraps around at its end. */
static void crowded_lines(th_identity which) {
    start(which, 900);
    for (int64_t key = 0; h.len < 300; key++)
        if (th_home(&h, th_hash(&h, 7, key, 0)) >= h.lines - 2) {
            CHECK(th_heap_push(&h, 7, key, 0) == TH_YES);
            model_push((timer){7, key, 0});
        }
    same();
    for (int64_t key = 0; key < 1000; key++) { /* searches end, although most lines have been passed */
        timer x = {7, key, 0};
        CHECK(th_heap_remove(&h, 7, key, 0) == model_remove(x));
    }
    same();
    while (model_len) {
        timer x = model[below(model_len)];
        CHECK(th_heap_remove(&h, x.ts, x.key, x.ns) && model_remove(x));
    }
    same();
    finish();
}

/* Mutations that each break one invariant at a row i > 0, and the expected result of the check. */
static const struct mutation {
    const char *what;
    int found; /* a th_status, or -1 for any but TH_YES */
} mutations[] = {
    {"more rows than capacity", TH_CORRUPT},
    {"more capacity than row numbers", TH_CORRUPT},
    {"too few lines", TH_CORRUPT},
    {"a slot beyond the last line", TH_CORRUPT},
    {"a slot beyond the last lane", TH_CORRUPT},
    {"the slot of another row", TH_CORRUPT},
    {"an entry with another row", TH_CORRUPT},
    {"an entry with another tag", TH_CORRUPT},
    {"a row without an entry", TH_CORRUPT},
    {"an entry without a row", TH_CORRUPT},
    {"a count that is too high", TH_CORRUPT},
    {"a count that is too low", -1}, /* may end a search too early, which looks like a duplicate */
    {"a count in the wrong line", -1},
    {"a key that differs from the index", -1},
    {"a timestamp less than the parent's", TH_DISORDER},
    {"a key less than the parent's", TH_DISORDER},
    {"a namespace less than the parent's", TH_DISORDER},
    {"a duplicate identity", TH_DUPLICATE},
};

static void reindex(void) {
    memset(h.line, 0, h.lines * 64);
    th_heap_reindex(&h);
}

static void mutate(size_t kind, size_t i) {
    size_t parent = (i - 1) / TH_ARITY, other = (i + 1) % h.len, line = below(h.lines);
    th_line *entry = &h.line[h.slot[i] >> 4];
    unsigned lane = h.slot[i] & 15;
    switch (kind) {
    case 0:
        h.cap = h.len - 1;
        break;
    case 1:
        h.cap = TH_MAX_ROWS + 1;
        break;
    case 2:
        h.lines = th_index_lines(h.cap) - 1;
        break;
    case 3:
        h.slot[i] = (uint32_t)h.lines << 4;
        break;
    case 4:
        h.slot[i] |= TH_LANES;
        break;
    case 5:
        h.slot[i] = h.slot[other];
        break;
    case 6:
        entry->row[lane] = (uint32_t)other;
        break;
    case 7:
        entry->tag[lane] = (uint8_t)(entry->tag[lane] == 255 ? 1 : entry->tag[lane] + 1);
        break;
    case 8:
        entry->tag[lane] = 0;
        break;
    case 9:
        while (!th_match(&h.line[line], 0)) line = (line + 1) % h.lines;
        h.line[line].tag[th_ctz(th_match(&h.line[line], 0))] = 7;
        break;
    case 10:
        h.line[line].passed++;
        break;
    case 11:
        h.line[line].passed--;
        break;
    case 12:
        h.line[line].passed++, h.line[(line + 1) % h.lines].passed--;
        break;
    case 13: { /* with another tag, since with the same tag and line it would still be a heap */
        uint8_t tag = th_tag(th_hash_row(&h, i));
        do h.key[i] += 1 << 20;
        while (th_tag(th_hash_row(&h, i)) == tag);
        break;
    }
    case 14:
        h.ts[i] = h.ts[parent] - 1, reindex();
        break;
    case 15:
        h.ts[i] = h.ts[parent], h.key[i] = h.key[parent] - 1, reindex();
        break;
    case 16: /* no other row has this namespace, so identities stay distinct */
        h.ts[i] = h.ts[parent], h.key[i] = h.key[parent], h.ns[i] = h.ns[parent] - 1000, reindex();
        break;
    default: /* two siblings at the end, so that the order is kept */
        other = h.len - 2;
        h.ts[h.len - 1] = h.ts[other], h.key[h.len - 1] = h.key[other], h.ns[h.len - 1] = h.ns[other], reindex();
    }
}

static void check_notices(th_identity which) {
    start(which, 100); /* without spare capacity, whose bytes would be uninitialized */
    for (int64_t i = 0; i < 100; i++) th_heap_push(&h, any_ts(50) / 2, 3 * i, 0); /* avoids overflow in mutate */
    th_heap good = h, bad;
    size_t size[] = {h.cap * 8, h.cap * 8, h.cap * 8, h.cap * 4, h.lines * 64}, at[6] = {0};
    for (size_t k = 0; k < 5; k++) at[k + 1] = at[k] + size[k];
    char *saved = memory(at[5]), *broken = memory(at[5]);
    void *parts[] = {h.ts, h.key, h.ns, h.slot, h.line};
    for (size_t k = 0; k < 5; k++) memcpy(saved + at[k], parts[k], size[k]);
    for (size_t kind = 0; kind < sizeof mutations / sizeof *mutations; kind++)
        for (int round = 0; round < 20; round++) {
            mutate(kind, 1 + below(h.len - 1));
            bad = h;
            for (size_t k = 0; k < 5; k++) memcpy(broken + at[k], parts[k], size[k]);
            int found = (int)th_heap_check(&h);
            if (mutations[kind].found < 0 ? found == TH_YES : found != mutations[kind].found) {
                fprintf(stderr, "%s: found %d\n", mutations[kind].what, found);
                CHECK(found == mutations[kind].found);
            }
            CHECK(!memcmp(&h, &bad, sizeof h)); /* the check changes nothing */
            for (size_t k = 0; k < 5; k++) CHECK(!memcmp(broken + at[k], parts[k], size[k]));
            h = good;
            for (size_t k = 0; k < 5; k++) memcpy(parts[k], saved + at[k], size[k]);
            CHECK(th_heap_check(&h) == TH_YES);
        }
    free(saved), free(broken);
    finish();
}

/* Other bytes than those of the heap are noticed before they are used. */
static void implausible_blocks(th_identity which) {
    for (size_t cap = 1; cap < 2000; cap = 2 * cap + below(5)) {
        start(which, 0);
        move_to_block(cap);
        for (size_t n = 0; n < cap; n++) th_heap_push(&h, any_ts(1000), (int64_t)next(), any_ts(5));
        uint8_t *bytes = block, *saved = memory(th_heap_size(cap));
        memcpy(saved, bytes, th_heap_size(cap));
        for (int kind = 0; kind < 5; kind++) {
            if (kind == 0) memset(bytes, 0, th_heap_size(cap));
            if (kind == 1) memset(bytes, 0xFF, th_heap_size(cap));
            if (kind == 2)
                for (size_t i = 0; i < th_heap_size(cap); i++) bytes[i] = (uint8_t)next();
            if (kind == 3) th_heap_init(&h, which, next()), th_heap_place(&h, block, cap), h.len = cap;
            if (kind == 4) th_heap_init(&h, which, heap_seed), th_heap_place(&h, block, cap), h.len = cap;
            CHECK(cap < 20 || th_heap_plausible(&h) == (kind == 4));
            memcpy(bytes, saved, th_heap_size(cap));
        }
        free(saved);
        finish();
    }
}

/* Stored heaps have no index, so only the order and the identities are checked. */
static void restore_notices(void) {
    start(TH_BY_TIMER, 100);
    for (int64_t i = 0; i < 100; i++) th_heap_push(&h, i, i, 0);
    int64_t ts = h.ts[0];
    h.ts[0] = 60, h.key[0] = 1000;
    memset(h.line, 0, h.lines * 64);
    CHECK(th_heap_restore(&h) == TH_DISORDER);
    h.ts[0] = ts, h.key[0] = 0;
    h.ts[99] = h.ts[98], h.key[99] = h.key[98];
    CHECK(th_heap_restore(&h) == TH_DUPLICATE);
    finish();
}

static void copies(void) {
    start(TH_BY_KEY, 200);
    batch b = any_batch(150, 1000);
    push_many(b);
    th_heap original = h;
    th_heap_init(&h, TH_BY_KEY, 1);
    resize(original.cap);
    th_heap_copy(&h, &original);
    same();
    free(original.ts), free(original.key), free(original.ns), free(original.slot), free(original.line);
    free_batch(b);
    finish();
}

static void xxh64(void) {
    static const struct {
        const char *text;
        uint64_t sum;
    } known[] = {{"", 0xEF46DB3751D8E999}, {"a", 0xD24EC4F1A98C6E5B}, {"abc", 0x44BC2CF5AD770999}};
    uint8_t data[200];
    th_xxh64 x;
    for (size_t i = 0; i < 3; i++) {
        th_xxh64_begin(&x, 0);
        th_xxh64_add(&x, known[i].text, strlen(known[i].text));
        CHECK(th_xxh64_end(&x) == known[i].sum);
    }
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)next();
    for (size_t size = 0; size <= sizeof data; size++) {
        th_xxh64_begin(&x, seed);
        th_xxh64_add(&x, data, size);
        uint64_t whole = th_xxh64_end(&x);
        th_xxh64_begin(&x, seed);
        for (size_t at = 0, step; at < size; at += step) {
            step = 1 + below(size - at);
            th_xxh64_add(&x, data + at, step);
        }
        CHECK(th_xxh64_end(&x) == whole);
    }
}

/* Orders rows of few or many different values; equal rows keep their order. */
static void row_order(void) {
    size_t n = below(below(4) ? 100 : 3000);
    int64_t *column[3];
    uint64_t *order = memory(n * 8), *scratch = memory(n * 8);
    for (int k = 0; k < 3; k++) {
        uint64_t kinds = below(3) ? 1 + below(8) : UINT64_MAX;
        column[k] = memory(n * 8);
        for (size_t i = 0; i < n; i++) column[k][i] = (int64_t)(next() % kinds);
    }
    th_row_order((const int64_t *const[]){column[0], column[1], column[2]}, n, order, scratch);
    for (size_t i = 1; i < n; i++) {
        size_t a = order[i - 1], b = order[i];
        int k = 0;
        while (k < 3 && column[k][a] == column[k][b]) k++;
        CHECK(k == 3 ? a < b : column[k][a] < column[k][b]);
    }
    for (int k = 0; k < 3; k++) free(column[k]);
    free(order), free(scratch);
}

int main(int count, char **arguments) {
    size_t steps = count > 1 ? strtoull(arguments[1], NULL, 10) : 20000;
    seed = count > 2 ? strtoull(arguments[2], NULL, 10) : (uint64_t)time(NULL);
    state = seed * 2 + 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("%s: SEED=%llu, %zu steps\n", arguments[0], (unsigned long long)seed, steps);
    xxh64();
    restore_notices();
    copies();
    for (size_t step = 0; step < steps / 100; step++) row_order();
    test_table(steps);
    test_array(steps);
    test_pack(steps);
    test_group(steps);
    test_text(steps);
    test_tree(steps);
    test_stores();
    test_run(steps);
    for (th_identity which = TH_BY_TIMER; which <= TH_BY_NAME; which++) {
        use_blocks = false;
        check_notices(which);
        implausible_blocks(which);
        use_blocks = true;
        crowded_lines(which);
        kept_paths(which);
        for (size_t done = 0; done < steps / 2; done += 200) random_steps(200, which);
    }
    return 0;
}
