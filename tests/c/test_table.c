/* Compares the table of ids with an unsorted array after random operations. */
#include "testing.h"
#include "th_table.h"

#define MOST 4096

typedef struct pair {
    int64_t id, value;
} pair;

static pair model[MOST];
static size_t model_len;
static th_table t;
static uint64_t table_seed;

static pair *find(int64_t id) {
    for (pair *p = model; p < model + model_len; p++)
        if (p->id == id) return p;
    return NULL;
}

static void same(void) {
    int64_t *ids = memory(t.len * 8), *values = memory(t.len * 8), *only = memory(t.len * 8);
    CHECK(th_table_check(&t) == TH_YES);
    CHECK(t.len == model_len);
    CHECK(th_table_items(&t, ids, values) == t.len && th_table_items(&t, only, NULL) == t.len);
    for (size_t i = 0; i < t.len; i++) {
        const pair *p = find(ids[i]);
        CHECK(p && p->value == values[i] && only[i] == ids[i]);
    }
    free(ids), free(values), free(only);
}

/* Moves to a new block; a table that shrinks must change its seed. */
static void resize(size_t cap) {
    th_table old = t;
    if (cap < t.cap || !below(4)) table_seed = next();
    CHECK(th_table_move(&t, lines(th_table_size(cap)), cap, table_seed) == TH_YES);
    CHECK(t.cap == cap && t.len == old.len);
    free(old.line);
}

/* Continues on the same block, as another process does. */
static void attach(void) {
    th_table old = t;
    th_table_init(&t, table_seed);
    th_table_place(&t, old.line, old.cap);
    t.len = old.len;
    CHECK(!memcmp(&t, &old, sizeof t));
}

static int64_t any_id(size_t spread) {
    static const int64_t extremes[] = {0, 1, -1, INT64_MIN, INT64_MAX, (int64_t)1 << 32};
    if (model_len && below(2)) return model[below(model_len)].id;
    return below(16) ? (int64_t)below(spread) : extremes[below(6)];
}

static int64_t any_argument(void) { return any_id(1000); }

/* Arguments, and copies of them that are passed; the results. */
typedef struct batch {
    size_t n;
    int64_t *id, *value, *lent, *old;
    uint8_t *done;
    th_undo undo;
} batch;

static batch any_batch(size_t n, size_t spread) {
    batch b = {n, memory(n * 8), memory(n * 8), memory(n * 16), memory(n * 8), memory(n), {0}};
    b.undo = (th_undo){memory(n * 4), memory(n * 8)};
    for (size_t i = 0; i < n; i++) b.id[i] = any_id(spread), b.value[i] = (int64_t)next();
    return b;
}

static void free_batch(batch b) {
    free(b.id), free(b.value), free(b.lent), free(b.old), free(b.done), free(b.undo.entry), free(b.undo.value);
}

static void lend(batch b) {
    if (b.n) memcpy(b.lent, b.id, b.n * 8), memcpy(b.lent + b.n, b.value, b.n * 8);
    other_argument = any_argument;
}

static void put_many(batch b) {
    th_column id = {b.lent, 1}, value = {b.lent + b.n, 1};
    size_t need = 0, size = th_table_size(t.cap);
    uint8_t *before = memory(size);
    if (size) memcpy(before, t.line, size);
    lend(b);
    while (th_table_put_many(&t, id, value, b.n, b.done, b.undo, &need) == TH_FULL) {
        CHECK(need > t.cap && t.len == model_len);
        CHECK(!size || !memcmp(before, t.line, size)); /* not a byte has changed */
        resize(need);
        size = 0;
        lend(b);
    }
    other_argument = NULL;
    for (size_t i = 0; i < b.n; i++) {
        pair *p = find(b.id[i]);
        CHECK(b.done[i] == !p);
        if (!p) (p = &model[model_len++])->id = b.id[i];
        p->value = b.value[i];
    }
    free(before);
}

static void number_many(batch b) {
    static int64_t ids[1 << 16];
    if (t.cap < t.len + b.n) resize(t.len + b.n);
    lend(b);
    th_table_number_many(&t, (th_column){b.lent, 1}, b.n, b.old, ids);
    other_argument = NULL;
    for (size_t i = 0; i < b.n; i++) {
        pair *p = find(b.id[i]);
        if (!p) {
            CHECK(ids[model_len] == b.id[i]);
            model[model_len] = (pair){b.id[i], (int64_t)model_len}, p = &model[model_len++];
        }
        CHECK(b.old[i] == p->value);
    }
}

static void find_many(batch b) {
    lend(b);
    th_table_find_many(&t, (th_column){b.lent, 1}, b.n, b.old, b.done);
    other_argument = NULL;
    for (size_t i = 0; i < b.n; i++) {
        const pair *p = find(b.id[i]);
        CHECK(b.done[i] == (p != NULL) && b.old[i] == (p ? p->value : 0));
    }
}

static void remove_many(batch b) {
    lend(b);
    th_table_remove_many(&t, (th_column){b.lent, 1}, b.n, b.old, b.done);
    other_argument = NULL;
    for (size_t i = 0; i < b.n; i++) {
        pair *p = find(b.id[i]);
        CHECK(b.done[i] == (p != NULL) && b.old[i] == (p ? p->value : 0));
        if (p) *p = model[--model_len];
    }
}

static void start(void) {
    model_len = 0;
    table_seed = next();
    th_table_init(&t, table_seed);
}

static void random_steps(size_t steps) {
    size_t spread = 5;
    start();
    for (size_t step = 0; step < steps; step++) {
        if (!below(50)) spread = (size_t)1 << below(20);
        size_t most = below(3) ? 20 : 500, room = MOST - model_len;
        batch b = any_batch(below(most < room ? most : room), spread);
        switch (below(7)) {
        case 0:
        case 1:
        case 2:
            put_many(b);
            break;
        case 5:
            number_many(b);
            break;
        case 3:
            remove_many(b);
            break;
        case 4:
            find_many(b);
            break;
        default:
            if (below(2)) attach();
            else resize(t.len + below(t.len + 2));
        }
        free_batch(b);
        same();
        CHECK(th_table_plausible(&t));
    }
    free(t.line);
}

/* Uses ids that all belong to the last lines, so that they pass many full lines and wrap around at the end. */
static void crowded_lines(void) {
    start();
    resize(300);
    for (int64_t id = 0; model_len < 150; id++) { /* as th_table.c finds the home line of an id */
        uint64_t hash = th_mix(th_mix((uint64_t)id ^ t.seed[0], t.seed[1]), t.seed[2]);
        if ((hash >> 32) * t.lines >> 32 < t.lines - 3) continue;
        batch b = any_batch(1, 1);
        b.id[0] = id;
        put_many(b);
        free_batch(b);
    }
    CHECK(t.cap == 300);
    same();
    while (model_len) {
        batch b = any_batch(1 + below(3), 1000);
        if (below(8)) remove_many(b);
        else find_many(b);
        free_batch(b);
        same();
    }
    free(t.line);
}

/* The bytes of others are noticed. A search ends in any bytes, and a move does not write beyond the new block. */
static void foreign_bytes(void) {
    start();
    batch b = any_batch(400, SIZE_MAX >> 33);
    put_many(b);
    th_table good = t;
    size_t size = th_table_size(t.cap);
    uint8_t *saved = memory(size);
    memcpy(saved, t.line, size);
    for (int kind = 0; kind < 6; kind++) {
        uint64_t other = table_seed;
        if (kind == 0) memset(t.line, 0, size);
        if (kind == 1) memset(t.line, 0xFF, size);
        if (kind == 2)
            for (size_t i = 0; i < size; i++) ((uint8_t *)t.line)[i] = (uint8_t)next();
        if (kind == 3) other = next();
        if (kind == 4) t.len--;
        if (kind == 5) t.line[t.lines].id[0] = t.line[t.lines].id[0] ? 0 : 1;
        uint64_t derived[3];
        th_seed(derived, other);
        memcpy(t.seed, derived, sizeof derived);
        CHECK(th_table_check(&t) == TH_CORRUPT);
        CHECK(kind > 3 || !th_table_plausible(&t));
        size_t need;
        th_column id = {b.id, 1}, value = {b.value, 1};
        th_table_find_many(&t, id, b.n, b.old, b.done);
        th_table_put_many(&t, id, value, b.n, b.done, b.undo, &need);
        th_table_remove_many(&t, id, b.n, b.old, b.done);
        memcpy(t.line, saved, size);
        t = good;
    }
    memset(t.line, 0xFF, size);
    void *block = lines(th_table_size(500));
    CHECK(th_table_move(&t, block, 500, 1) == TH_CORRUPT);
    CHECK(!memcmp(&t, &good, sizeof t));
    memset(t.line, 0, size);
    CHECK(th_table_move(&t, block, 500, 1) == TH_CORRUPT);
    free(block), free(saved), free(t.line);
    free_batch(b);
}

void test_table(size_t steps) {
    foreign_bytes();
    crowded_lines();
    for (size_t done = 0; done < steps; done += 200) random_steps(200);
}
