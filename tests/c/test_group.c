/* Groups random rows in parts, and compares every group with what a plain loop over all rows finds. */
#include "testing.h"
#include "th_group.h"

#define PARTS 6
#define MOST 150
#define COLUMNS 2

/* A part: a column of text and one of bytes of a fixed width, in memory of exactly the size that they need. */
typedef struct part {
    size_t n;
    int64_t *hash, *slice;
    th_array key[COLUMNS];
    uint32_t *group;
    size_t key_number[MOST]; /* equal keys have equal numbers */
} part;

static part make(size_t kinds, unsigned width) {
    part p = {.n = below(MOST)};
    size_t start = below(9), all = start + p.n, size = 0;
    uint8_t *offset = memory((all + 1) * width), *text = memory(4 * all), *fixed = memory(3 * all);
    uint8_t *valid = memory((all + 7) / 8);
    p.hash = memory(p.n * 8);
    p.slice = memory(p.n * 8);
    p.group = memory(p.n * 4);
    memset(offset, 0, width);
    memset(valid, 0, (all + 7) / 8);
    for (size_t i = 0; i < all; i++) {
        size_t key = below(kinds), length = key % 5;
        bool null = key % 7 == 3;
        memset(text + size, (int)(key / 35), length);
        if (!null) size += length;
        valid[i / 8] = (uint8_t)(valid[i / 8] | (unsigned)!null << i % 8);
        uint64_t end = size;
        memcpy(offset + (i + 1) * width, &end, width); /* little-endian, as this machine is */
        memset(fixed + 3 * i, (int)(null || length == 0 ? key : key % 35), 3);
        if (i < start) continue;
        p.key_number[i - start] = key;
        p.hash[i - start] = (int64_t)(key % 11);
        p.slice[i - start] = below(2) ? INT64_MIN : (int64_t)below(3);
    }
    uint8_t *exact = memory(size);
    memcpy(exact, text, size);
    free(text);
    p.key[0] = (th_array){TH_TEXT, width, start, p.n, valid, offset, exact, size};
    p.key[1] = (th_array){TH_FIXED, 3, start, p.n, NULL, NULL, fixed, 3 * all};
    return p;
}

static void drop(part *p) {
    free((void *)p->key[0].valid), free((void *)p->key[0].offset), free((void *)p->key[0].data);
    free((void *)p->key[1].data);
    free(p->hash), free(p->slice), free(p->group);
}

/* Makes room for one more key and group, in exactly as much memory as is asked for. */
static void grow(th_groups *t, void **block) {
    size_t keys = t->key_cap, groups = t->group_cap;
    if (t->keys == keys) keys = keys ? 2 * keys : 1;
    if (t->groups == groups) groups = groups ? 2 * groups : 1;
    void *more = memory(th_groups_size(keys, groups));
    th_groups_move(t, more, keys, groups);
    free(*block);
    *block = more;
}

static th_status add(th_groups *t, void **block, const th_array *keys, const part *p, uint32_t number, size_t *done) {
    th_rows rows = {p->hash, p->slice, p->n, keys, COLUMNS, number};
    th_status status;
    *done = 0;
    while ((status = th_groups_add(t, &rows, done, p->group)) == TH_FULL) grow(t, block);
    return status;
}

/* Checks that two rows are in one group if, and only if, they have one key and one slice. */
static void check_rows(const th_groups *t, const part *parts, size_t n) {
    uint64_t rows = 0;
    for (size_t a = 0; a < n; a++)
        for (size_t i = 0; i < parts[a].n; i++) {
            uint32_t group = parts[a].group[i];
            CHECK(group < t->groups && t->group[group].slice == parts[a].slice[i]);
            for (size_t j = 0; j < parts[n - 1].n; j++) {
                const part *b = &parts[n - 1];
                bool same_key = parts[a].key_number[i] == b->key_number[j];
                CHECK(same_key == (t->group[group].key == t->group[b->group[j]].key));
                CHECK((same_key && parts[a].slice[i] == b->slice[j]) == (group == b->group[j]));
            }
        }
    for (size_t g = 0; g < t->groups; g++) rows += t->group[g].rows;
    for (size_t a = 0; a < n; a++) rows -= parts[a].n;
    CHECK(!rows);
}

static void check_order(const th_groups *t, const part *parts, size_t n) {
    size_t rows = 0, at = 0;
    for (size_t a = 0; a < n; a++) rows += parts[a].n;
    int64_t *order = memory(rows * 8), *next_row = memory(t->groups * 8);
    uint32_t *group = memory(rows * 4);
    for (size_t g = 0; g < t->groups; g++) next_row[g] = (int64_t)at, at += t->group[g].rows;
    at = 0;
    for (size_t a = 0; a < n; a++) {
        if (parts[a].n) memcpy(group + at, parts[a].group, parts[a].n * 4);
        th_groups_order(parts[a].group, parts[a].n, (int64_t)at, next_row, order);
        at += parts[a].n;
    }
    for (size_t i = 1; i < rows; i++) {
        uint32_t before = group[order[i - 1]], here = group[order[i]];
        CHECK(before < here || (before == here && order[i - 1] < order[i]));
    }
    free(order), free(next_row), free(group);
}

/* Adds a part with a wrong offset, and takes back what was added of it. */
static void refuse(th_groups *t, void **block, th_array *keys, const part *p, uint32_t number) {
    size_t before = t->keys, groups = t->groups, done, at = p->key[0].start + below(p->n + 1);
    uint64_t rows = 0, after = 0;
    uint8_t *offset = memory((p->key[0].start + p->n + 1) * p->key[0].width);
    memcpy(offset, p->key[0].offset, (p->key[0].start + p->n + 1) * p->key[0].width);
    memset(offset + at * p->key[0].width, 0xEE, p->key[0].width);
    keys[number * COLUMNS].offset = offset;
    for (size_t g = 0; g < t->groups; g++) rows += t->group[g].rows;
    th_status status = add(t, block, keys, p, number, &done);
    CHECK(status == TH_CORRUPT || (status == TH_YES && done == p->n)); /* a key alone with its hash is not read */
    th_groups_undo(t, before, groups, p->group, done);
    for (size_t g = 0; g < t->groups; g++) after += t->group[g].rows;
    CHECK(rows == after);
    keys[number * COLUMNS].offset = p->key[0].offset;
    free(offset);
}

static void group_parts(void) {
    th_groups t;
    void *block = NULL;
    part parts[PARTS];
    th_array keys[PARTS * COLUMNS];
    size_t n = 1 + below(PARTS), kinds = 1 + below(below(2) ? 12 : 245), done;
    unsigned width = below(2) ? 4 : 8;
    th_groups_init(&t, next());
    for (size_t a = 0; a < n; a++) {
        size_t known = t.keys;
        parts[a] = make(kinds, width);
        memcpy(keys + a * COLUMNS, parts[a].key, sizeof parts[a].key);
        if (below(2)) refuse(&t, &block, keys, &parts[a], (uint32_t)a);
        CHECK(add(&t, &block, keys, &parts[a], (uint32_t)a, &done) == TH_YES && done == parts[a].n);
        check_rows(&t, parts, a + 1);
        int64_t *first = memory((t.keys - known) * 8);
        th_groups_firsts(&t, known, first);
        for (size_t k = known; k < t.keys; k++) CHECK(t.group[parts[a].group[first[k - known]]].key == k);
        free(first);
    }
    check_order(&t, parts, n);
    for (size_t a = 0; a < n; a++) drop(&parts[a]);
    free(block);
}

/* Compares the rank of each row with the number of rows of its key before it. */
static void waves(void) {
    size_t rows = 1 + below(MOST), n = below(rows), keys = 1 + below(below(2) ? 4 : MOST), waves, at = 0;
    int64_t *number = memory(rows * 8), *row = memory(n * 8), *order = memory(n * 8), *ordered = memory(n * 8), *stop;
    uint32_t *seen = calloc(keys, 4), *rank = memory(n * 4);
    const th_ordered o = {row, number, n, rows, keys};
    for (size_t i = 0; i < rows; i++) number[i] = (int64_t)below(keys);
    for (size_t i = 0; i < n; i++) row[i] = (int64_t)below(rows);
    CHECK(th_group_ranks(&o, seen, rank, &waves) == TH_YES);
    stop = calloc(waves + 1, 8);
    th_group_waves(&o, rank, waves, stop, order, ordered);
    for (size_t wave = 0; wave < waves; wave++) {
        for (size_t i = 0; i < n; i++) {
            size_t before = 0;
            for (size_t j = 0; j < i; j++) before += number[row[j]] == number[row[i]];
            if (before != wave) continue;
            CHECK(order[at] == row[i] && ordered[at] == number[row[i]]);
            at++;
        }
        CHECK(stop[wave] == (int64_t)at);
    }
    CHECK(at == n);
    if (n) {
        size_t i = below(n);
        if (below(2)) number[row[i]] = below(2) ? -1 : (int64_t)keys;
        else row[i] = below(2) ? -1 : (int64_t)rows;
        CHECK(th_group_ranks(&o, seen, rank, &waves) == TH_CORRUPT);
    }
    free(number), free(row), free(order), free(ordered), free(stop), free(seen), free(rank);
}

/* Compares the number of each place with the number of places that came before it. */
static void numbers(void) {
    size_t n = below(MOST), places = 1 + below(below(2) ? 4 : MOST), keys = 0, wanted = 0;
    int64_t *place = memory(n * 8), *number = memory(n * 8);
    uint32_t *number_of = calloc(places, 4);
    uint8_t *added = memory(n);
    for (size_t i = 0; i < n; i++) place[i] = (int64_t)below(places);
    size_t cut = below(n + 1);
    CHECK(th_group_numbers(place, cut, places, number_of, &keys, number, added) == TH_YES);
    CHECK(th_group_numbers(place + cut, n - cut, places, number_of, &keys, number + cut, added + cut) == TH_YES);
    for (size_t i = 0; i < n; i++) {
        size_t first = 0;
        while (place[first] != place[i]) first++;
        CHECK(added[i] == (first == i) && number[i] == (first == i ? (int64_t)wanted++ : number[first]));
    }
    CHECK(keys == wanted);
    int64_t bad = below(2) ? -1 : (int64_t)places;
    CHECK(th_group_numbers(&bad, 1, places, number_of, &keys, number, added) == TH_CORRUPT && keys == wanted);
    free(place), free(number), free(number_of), free(added);
}

unsigned long compared;

/* Adds many keys that have one hash, twice: the number of comparisons is in proportion to that of the rows. */
static void made_on_purpose(void) {
    enum { KEYS = 5000 };
    static int64_t hash[2 * KEYS], slice[2 * KEYS], key[2 * KEYS];
    static uint32_t group[2 * KEYS];
    th_groups t;
    void *block = NULL;
    size_t done = 0;
    for (size_t i = 0; i < 2 * KEYS; i++) key[i] = (int64_t)(i % KEYS);
    th_array column = {TH_FIXED, 8, 0, 2 * KEYS, NULL, NULL, (const uint8_t *)key, sizeof key};
    th_rows rows = {hash, slice, 2 * KEYS, &column, 1, 0};
    th_groups_init(&t, next());
    compared = 0;
    while (th_groups_add(&t, &rows, &done, group) == TH_FULL) grow(&t, &block);
    CHECK(done == 2 * KEYS && t.keys == KEYS && compared < 5 * KEYS);
    for (size_t i = 0; i < 2 * KEYS; i++) CHECK(group[i] == i % KEYS);
    free(block);
}

void test_group(size_t steps) {
    made_on_purpose();
    for (size_t step = 0; step < steps / 100; step++) {
        group_parts();
        waves();
        numbers();
    }
}
