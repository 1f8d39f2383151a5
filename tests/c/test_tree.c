/* Compares the tree of weighted codes with a sorted array after random changes. A block has exactly the pages and bytes
 * of codes that a change asks for, so that the sanitizers detect a change that needs more. */
#include "testing.h"
#include "th_tree.h"

#define MOST 3000
#define TEXT 400

/* A value: a struct of a number and a text, each of which may be null; the number is its lead. */
typedef struct value {
    bool no_number, no_text;
    int64_t number;
    size_t size;
    uint8_t text[TEXT];
} value;

typedef struct entry {
    int64_t id, weight;
    value value;
} entry;

static entry model[MOST + 600];
static size_t model_len;
static th_tree t;
static th_field fields[3];
static th_format format = {fields, 3, 2};
static size_t spread;

static void any_format(void) {
    fields[0] = (th_field){.kind = TH_OF_FIELDS, .span = 3};
    fields[1] = (th_field){TH_OF_SIGNED, (uint8_t)below(2), (uint8_t)below(2), 8, 1};
    fields[2] = (th_field){TH_OF_TEXT, (uint8_t)below(2), (uint8_t)below(2), 0, 1};
    CHECK(th_format_check(&format));
}

static value any_value(void) {
    static const size_t sizes[] = {3, 3, 8, 20, TEXT};
    value v = {!below(20), !below(4), (int64_t)below(spread) - (int64_t)spread / 2, 0, {0}};
    if (v.no_number) v.number = 0;
    if (!v.no_text) v.size = below(sizes[below(5)]);
    for (size_t k = 0; k < v.size; k++) v.text[k] = (uint8_t)below(4) * (below(3) ? 1 : 85);
    return v;
}

/* ---- the model ---- */

static int turned(int order, const th_field *f) { return f->descending ? -order : order; }

static int by_null(bool a, bool b, const th_field *f) { return (f->nulls_last ? 1 : -1) * (a - b); }

static int compare_number(const value *a, const value *b) {
    if (a->no_number != b->no_number) return by_null(a->no_number, b->no_number, &fields[1]);
    return turned((a->number > b->number) - (a->number < b->number), &fields[1]);
}

static int compare(const void *pa, const void *pb) {
    const entry *a = pa, *b = pb;
    if (a->id != b->id) return a->id < b->id ? -1 : 1;
    int order = compare_number(&a->value, &b->value);
    if (order) return order;
    if (a->value.no_text != b->value.no_text) return by_null(a->value.no_text, b->value.no_text, &fields[2]);
    size_t size = a->value.size < b->value.size ? a->value.size : b->value.size;
    order = memcmp(a->value.text, b->value.text, size);
    if (!order) order = (a->value.size > b->value.size) - (a->value.size < b->value.size);
    return turned(order, &fields[2]);
}

/* Returns where an entry is in the model, or belongs. */
static size_t place(const entry *e) {
    size_t at = 0;
    while (at < model_len && compare(&model[at], e) < 0) at++;
    return at;
}

static int64_t change(const entry *e) {
    size_t at = place(e);
    bool held = at < model_len && !compare(&model[at], e);
    int64_t before = held ? model[at].weight : 0;
    if (!held) {
        memmove(&model[at + 1], &model[at], (model_len++ - at) * sizeof *model);
        model[at] = *e;
    } else {
        model[at].weight += e->weight;
    }
    if (!model[at].weight) memmove(&model[at], &model[at + 1], (--model_len - at) * sizeof *model);
    return before;
}

/* ---- codes ---- */

static void put_bit(uint8_t *bits, size_t i, bool bit) {
    bits[i >> 3] = (uint8_t)((bits[i >> 3] & ~(1 << (i & 7))) | bit << (i & 7));
}

/* Codes of n values, each of the arrays of the exact size. */
static th_codes encoded(const entry *e, size_t n) {
    size_t bits = (n + 7) / 8, size = 0, at = 0;
    for (size_t i = 0; i < n; i++) size += e[i].value.size;
    uint8_t *numbers_valid = memory(bits), *texts_valid = memory(bits), *text = memory(size);
    int64_t *numbers = memory(n * 8), *ends = memory((n + 1) * 8), *offset = memory((n + 1) * 8);
    if (bits) memset(numbers_valid, 0, bits), memset(texts_valid, 0, bits);
    ends[0] = 0;
    for (size_t i = 0; i < n; i++) {
        const value *v = &e[i].value;
        put_bit(numbers_valid, i, !v->no_number), put_bit(texts_valid, i, !v->no_text);
        numbers[i] = v->number;
        memcpy(text + at, v->text, v->size);
        ends[i + 1] = (int64_t)(at += v->size);
    }
    const th_array columns[3] = {
        {TH_FIXED, 0, 0, n, NULL, NULL, NULL, 0},
        {TH_FIXED, 8, 0, n, numbers_valid, NULL, (uint8_t *)numbers, n * 8},
        {TH_TEXT, 8, 0, n, texts_valid, (uint8_t *)ends, text, size},
    };
    CHECK(th_code_measure(&format, columns, n, offset) == TH_YES);
    uint8_t *data = memory((size_t)offset[n]);
    CHECK(th_code_write(&format, columns, n, offset, data) == TH_YES);
    th_codes codes = {data, offset, n};
    CHECK(th_codes_check(&codes, (size_t)offset[n]));
    free(numbers_valid), free(texts_valid), free(text), free(numbers), free(ends);
    return codes;
}

static void free_codes(th_codes codes) { free((void *)codes.data), free((void *)codes.offset); }

/* Reads codes again and compares them with the values. */
static void same_values(const th_codes *codes, const entry *e) {
    size_t n = codes->n, bits = (n + 7) / 8;
    th_values values[3] = {{0}};
    CHECK(th_code_sizes(&format, codes, values) == TH_YES);
    for (size_t k = 0; k < 3; k++) values[k].valid = calloc(bits + 1, 1);
    values[1].data = calloc(n + 1, 8);
    values[2].data = memory(values[2].size);
    values[2].offset = calloc(n + 1, 8);
    th_code_read(&format, codes, values);
    for (size_t i = 0; i < n; i++) {
        const value *v = &e[i].value;
        CHECK((values[1].valid[i >> 3] >> (i & 7) & 1) == !v->no_number);
        CHECK((values[2].valid[i >> 3] >> (i & 7) & 1) == !v->no_text);
        CHECK(((int64_t *)values[1].data)[i] == v->number);
        CHECK((size_t)(values[2].offset[i + 1] - values[2].offset[i]) == v->size);
        CHECK(!memcmp(values[2].data + values[2].offset[i], v->text, v->size));
    }
    free(values[0].valid), free(values[1].valid), free(values[2].valid);
    free(values[1].data), free(values[2].data), free(values[2].offset);
}

/* Any bytes are codes, or are found to be none. */
static void damaged_codes(th_codes codes) {
    th_values values[3] = {{0}};
    uint8_t *data = (uint8_t *)codes.data;
    if (!codes.n || !codes.offset[codes.n]) return;
    data[below((size_t)codes.offset[codes.n])] = below(2) ? (uint8_t)next() : (uint8_t)below(3);
    for (size_t i = 0; i < codes.n; i++)
        th_code_lead(&format, data + codes.offset[i], (size_t)(codes.offset[i + 1] - codes.offset[i]));
    if (th_code_sizes(&format, &codes, values) != TH_YES) return;
    size_t n = codes.n;
    for (size_t k = 0; k < 3; k++) values[k].valid = calloc(n / 8 + 1, 1);
    values[1].data = calloc(n, 8), values[2].data = memory(values[2].size), values[2].offset = calloc(n + 1, 8);
    th_code_read(&format, &codes, values);
    CHECK((uint64_t)values[2].offset[n] == values[2].size);
    for (size_t k = 0; k < 3; k++) free(values[k].valid), free(values[k].data), free(values[k].offset);
}

/* ---- the tree ---- */

static void resize(size_t pages, size_t codes, bool pack) {
    void *old = t.top, *block = lines(th_tree_size(pages, codes));
    memset(block, 0xA5, th_tree_size(pages, codes));
    if (pack) th_tree_pack(&t, block, pages, codes);
    else th_tree_move(&t, block, pages, codes);
    free(old);
}

static void pack(void) {
    th_tree_use use = th_tree_usage(&t);
    resize(use.used_pages - use.free_pages, use.used_codes - use.free_codes, true);
    use = th_tree_usage(&t);
    CHECK(use.used_pages == use.pages && use.used_codes == use.codes && !use.free_pages && !use.free_codes);
}

static void attach(void) {
    th_tree_use use = th_tree_usage(&t);
    th_tree old = t;
    if (!t.top) return;
    CHECK(th_tree_place(&t, old.top, th_tree_size(use.pages, use.codes)));
    CHECK(t.top == old.top && t.page == old.page && t.code == old.code);
}

/* Other bytes than those of a tree are refused, or at least do not lead a check out of the block. */
static void damage(void) {
    th_tree_use use = th_tree_usage(&t);
    if (!t.top) return;
    size_t size = th_tree_size(use.pages, use.codes);
    uint8_t *block = lines(size);
    th_tree other;
    memcpy(block, t.top, size);
    for (size_t k = 1 + below(3); k; k--) block[below(below(3) ? size : 1000)] = below(2) ? (uint8_t)next() : 0;
    if (th_tree_place(&other, block, size)) th_tree_check(&other);
    CHECK(!th_tree_place(&other, block, below(64)));
    free(block);
}

static void add(entry *e, size_t n) {
    int64_t *ids = memory(n * 8), *weights = memory(n * 8), *rows = memory(n * 8), *sums = memory(n * 8);
    int64_t *before = memory(n * 8);
    th_placed *scratch = memory(2 * n * sizeof *scratch);
    th_codes codes = encoded(e, n);
    th_tree_need need;
    th_status status;
    for (size_t i = 0; i < n; i++) ids[i] = e[i].id, weights[i] = e[i].weight;
    size_t distinct = th_code_add_up(&(th_weighted){ids, weights, codes}, scratch, rows, sums), losses = 0;
    CHECK(distinct <= n);
    th_changes changes = {{ids, weights, codes}, rows, sums, distinct};
    while ((status = th_tree_plan(&t, &changes, before, &need)) == TH_FULL) {
        th_tree_use use = th_tree_usage(&t);
        size_t pages = use.used_pages + need.pages - (use.free_pages < need.pages ? use.free_pages : need.pages);
        resize(t.top ? pages : need.pages, use.used_codes + need.codes + (t.top ? 0 : 8), false);
    }
    CHECK(status == TH_YES);
    for (size_t k = 0; k < distinct; k++) {
        entry one = e[rows[k]];
        CHECK(!k || compare(&e[rows[k - 1]], &one) < 0);
        one.weight = sums[k];
        CHECK(change(&one) == before[k]);
    }
    for (size_t k = 0, removed = 0; k < distinct; k++) {
        removed |= before[k] && !(before[k] + sums[k]);
        if (k + 1 < distinct && ids[rows[k + 1]] == ids[rows[k]]) continue;
        bool left = false;
        for (size_t i = 0; i < model_len; i++) left |= model[i].id == ids[rows[k]];
        losses += removed && !left;
        removed = false;
    }
    CHECK(th_tree_add(&t, &changes) == losses);
    damaged_codes(codes);
    free(ids), free(weights), free(rows), free(sums), free(before), free(scratch), free_codes(codes);
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Picks from the model: the entries of an id in this order, with the weights. */
static size_t pick_of_model(const th_pick *pick, int64_t id, int64_t most, entry *found) {
    size_t n = 0, leads = 0;
    int64_t rows = 0, before = 0;
    const value *last = NULL;
    for (size_t k = 0; k < model_len; k++) {
        const entry *e = &model[pick->backwards ? model_len - 1 - k : k];
        int64_t weight = e->weight;
        if (e->id != id || (weight <= 0 && pick->kind != TH_PICK_ALL)) continue;
        if (!last || compare_number(last, &e->value)) leads++, before = rows;
        last = &e->value;
        int64_t first = most > rows ? least(weight, most - rows) : 0;
        rows += weight;
        if (pick->kind == TH_PICK_ROWS) weight = first;
        if (pick->kind == TH_PICK_REST) weight -= first;
        if (pick->kind == TH_PICK_TIES && before >= most) weight = 0;
        if (pick->kind == TH_PICK_LEADS && (int64_t)leads > most) weight = 0;
        if (!weight) continue;
        found[n] = *e;
        found[n++].weight = weight;
    }
    return n;
}

static void pick(void) {
    static entry expected[MOST + 600];
    th_pick how = {below(5), below(2)};
    int64_t id = (int64_t)below(spread), ids[2] = {id, id + 1};
    int64_t most[2] = {(int64_t)below(9) - 1, (int64_t)below(9) - 1};
    th_picked found = {0};
    CHECK(th_tree_pick(&t, &format, &how, ids, most, 2, &found) == TH_YES);
    size_t entries = found.entries, size = found.size, of_first = pick_of_model(&how, id, most[0], expected);
    CHECK(entries == of_first + pick_of_model(&how, id + 1, most[1], expected + of_first));
    int64_t length[2];
    found.length = length, found.weight = memory(entries * 8), found.offset = memory((entries + 1) * 8);
    found.code = memory(size);
    CHECK(th_tree_pick(&t, &format, &how, ids, most, 2, &found) == TH_YES);
    CHECK(found.entries == entries && found.size == size && (size_t)found.offset[entries] == size);
    CHECK(length[0] == (int64_t)of_first && length[1] == (int64_t)(entries - of_first));
    th_codes codes = {found.code, found.offset, entries};
    same_values(&codes, expected);
    for (size_t k = 0; k < entries; k++) CHECK(found.weight[k] == expected[k].weight && found.weight[k]);
    free(found.weight), free(found.offset), free(found.code);
}

static void totals(void) {
    int64_t id = (int64_t)below(spread + 2) - 1, rows, entries, expected_rows = 0, expected = 0;
    th_tree_totals(&t, &id, 1, &rows, &entries);
    for (size_t k = 0; k < model_len; k++) {
        bool counts = model[k].id == id && model[k].weight > 0;
        expected += counts;
        expected_rows += counts ? model[k].weight : 0;
    }
    CHECK(rows == expected_rows && entries == expected);
}

static void same(void) {
    size_t n = 0, count = th_tree_ids(&t, NULL);
    int64_t *ids = memory(count * 8);
    CHECK(th_tree_check(&t) == TH_YES);
    CHECK(th_tree_usage(&t).entries == model_len);
    CHECK(th_tree_ids(&t, ids) == count);
    for (size_t k = 0; k < model_len; k++)
        if (!k || model[k].id != model[k - 1].id) CHECK(n < count && ids[n++] == model[k].id);
    CHECK(n == count);
    free(ids);
}

static void random_steps(size_t steps) {
    static entry batch[600];
    for (size_t step = 0; step < steps; step++) {
        size_t n = below(below(4) ? 20 : 500), removals = below(3);
        bool ascending = !below(4);
        if (model_len > MOST - 600) removals = 2, n = 500;
        for (size_t i = 0; i < n; i++) {
            entry *e = &batch[i];
            *e = (entry){(int64_t)below(ascending ? 1 : spread), (int64_t)below(4) - 1, any_value()};
            if (ascending && !e->value.no_number) e->value.number = (int64_t)(step * 1000 + i);
            if (!model_len || below(3) >= removals) continue;
            *e = model[removals == 2 && below(8) ? below(model_len < 200 ? model_len : 200) : below(model_len)];
            e->weight = below(4) ? -e->weight : 1;
        }
        add(batch, n);
        if (!below(5)) pack();
        if (!below(5)) attach();
        if (!below(3)) damage();
        for (size_t k = 0; k < 5; k++) pick(), totals();
        same();
    }
}

/* Weights at the limits of int64 are refused before anything changes. */
static void overflow(void) {
    entry e[2] = {{1, INT64_MAX, {.number = 1}}, {1, 1, {.number = 1}}};
    th_codes codes = encoded(e, 2);
    int64_t ids[2] = {1, 1}, weights[2] = {INT64_MAX, 1}, rows[2], sums[2], before;
    th_placed scratch[4];
    th_weighted both = {ids, weights, codes};
    CHECK(th_code_add_up(&both, scratch, rows, sums) == SIZE_MAX);
    weights[0] = INT64_MIN, weights[1] = 0;
    CHECK(th_code_add_up(&both, scratch, rows, sums) == SIZE_MAX);
    add(e, 1);
    th_tree_need need;
    int64_t row = 0, sum = 1;
    CHECK(th_tree_plan(&t, &(th_changes){both, &row, &sum, 1}, &before, &need) == TH_NO);
    e[0].weight = -INT64_MAX;
    add(e, 1);
    free_codes(codes);
}

static void formats(void) {
    th_field bad[3];
    th_format f = {bad, 3, 2};
    for (size_t k = 0; k < 200; k++) {
        memcpy(bad, fields, sizeof bad);
        ((uint8_t *)bad)[below(sizeof bad)] = (uint8_t)below(12);
        f.lead = below(5);
        th_format_check(&f);
    }
    bad[1] = fields[1], bad[2] = fields[2], bad[0] = fields[0], f.lead = 2;
    bad[2].span = 2;
    CHECK(!th_format_check(&f));
    bad[2].span = 1, f.lead = 4;
    CHECK(!th_format_check(&f));
    f.lead = 0;
    CHECK(!th_format_check(&f));
}

void test_tree(size_t steps) {
    for (size_t done = 0; done < steps / 40; done += 40) {
        any_format();
        spread = (size_t)2 << below(12);
        model_len = 0;
        formats();
        overflow();
        random_steps(40);
        free(t.top);
        t = (th_tree){0};
    }
}
