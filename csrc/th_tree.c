/* The tree, and its changes of one entry: pages that are full split, and pages that have become small are joined with
 * the one beside them. What a change needs is made sure of before (th_tree_plan), so none can fail. */
#include "th_tree.h"

#include "th_tree_private.h"

/* ---- room ---- */

size_t th_tree_size(size_t pages, size_t codes) {
    if (pages > UINT32_MAX - 1 || codes > (SIZE_MAX >> 1) - UINT32_MAX * sizeof(th_page)) return SIZE_MAX;
    return sizeof(th_tree_top) + pages * sizeof(th_page) + (codes + TH_LINE - 1) / TH_LINE * TH_LINE;
}

th_tree_use th_tree_usage(const th_tree *t) {
    const th_tree_top *top = t->top;
    if (!top) return (th_tree_use){0};
    return (th_tree_use){top->entries,    top->pages,      top->codes,     top->used_pages,
                         top->used_codes, top->free_pages, top->free_codes};
}

/* Sizes of codes beside pages, in units of 8 bytes: all up to 16, then 4 between powers of 2. */
static unsigned class_of(size_t size) {
    size_t units = (size + 7) / 8;
    if (units <= 16) return (unsigned)units;
    unsigned bits = th_bits(units - 1);
    return 17 + (bits - 5) * 4 + (unsigned)((units - 1) >> (bits - 3)) - 4;
}

static size_t class_size(unsigned class) {
    if (class <= 16) return (size_t)class * 8;
    return (size_t)((class - 17) % 4 + 5) << (2 + (class - 17) / 4) << 3;
}

size_t th_code_room(size_t size) { return size > TH_INLINE_CODE ? class_size(class_of(size)) : 0; }

/* Puts a code beside the pages; returns where it is. */
static uint64_t keep_code(th_tree *t, const uint8_t *code, size_t size) {
    unsigned class = class_of(size);
    uint64_t at = t->top->free_code[class];
    if (at) {
        memcpy(&t->top->free_code[class], t->code + at, 8);
        t->top->free_codes -= class_size(class);
    } else {
        at = t->top->used_codes;
        t->top->used_codes += class_size(class);
    }
    memcpy(t->code + at, code, size);
    return at;
}

static void free_code(th_tree *t, const th_key *key) {
    if (key->size <= TH_INLINE_CODE) return;
    unsigned class = class_of(key->size);
    memcpy(t->code + key->tail, &t->top->free_code[class], 8);
    t->top->free_code[class] = key->tail;
    t->top->free_codes += class_size(class);
}

static uint32_t take_page(th_tree *t, unsigned level) {
    uint32_t at = t->top->free_page;
    if (at) {
        t->top->free_page = t->page[--at].is.next;
        t->top->free_pages--;
    } else {
        at = t->top->used_pages++;
    }
    t->top->branches += level > 0;
    t->page[at].is = (th_page_head){0, (uint16_t)level, 0};
    return at;
}

static void free_page(th_tree *t, uint32_t at) {
    t->top->branches -= t->page[at].is.level > 0;
    t->page[at].is = (th_page_head){0, 0, t->top->free_page};
    t->top->free_page = at + 1;
    t->top->free_pages++;
}

/* ---- the way down ---- */

/* Compares the codes of a key and a probe of one id and head. */
static int compare_rest(const th_tree *t, const th_key *key, const th_probe *probe) {
    if (key->size <= TH_INLINE_CODE && probe->size <= TH_INLINE_CODE) {
        if (key->tail != probe->tail) return key->tail < probe->tail ? -1 : 1;
    } else {
        uint8_t room[TH_INLINE_CODE];
        size_t size = key->size < probe->size ? key->size : probe->size;
        int order = size ? memcmp(th_code_of(t, key, room), probe->code, size) : 0;
        if (order) return order;
    }
    return (key->size > probe->size) - (key->size < probe->size);
}

TH_INLINE int compare(const th_tree *t, const th_key *key, const th_probe *probe) {
    if (key->id != probe->id) return key->id < probe->id ? -1 : 1;
    if (key->head != probe->head) return key->head < probe->head ? -1 : 1;
    return compare_rest(t, key, probe);
}

/* Returns the first of n keys that is not less than the probe, or with `after`, the first that is greater. */
TH_INLINE size_t first_from(const th_tree *t, const th_key *key, size_t n, const th_probe *probe, bool after) {
    size_t low = 0;
    while (low < n) {
        size_t middle = (low + n) / 2;
        if (compare(t, &key[middle], probe) < (after ? 1 : 0)) low = middle + 1;
        else n = middle;
    }
    return low;
}

bool th_tree_find(const th_tree *t, const th_probe *probe, th_path *path) {
    uint32_t at = t->top->root;
    for (unsigned level = t->top->levels - 1; level; level--) {
        const th_page *page = &t->page[at];
        size_t k = first_from(t, page->branch.key, page->is.n, probe, true);
        path->page[level] = at;
        path->at[level] = (uint32_t)(k ? k - 1 : 0);
        at = page->branch.key[path->at[level]].child;
    }
    const th_page *leaf = &t->page[at];
    size_t k = first_from(t, leaf->leaf.key, leaf->is.n, probe, false);
    path->page[0] = at;
    path->at[0] = (uint32_t)k;
    return k < leaf->is.n && !compare(t, &leaf->leaf.key[k], probe);
}

/* ---- what pages know of those below ---- */

th_sum th_page_sum(const th_page *page) {
    th_sum sum = {0, 0};
    for (size_t k = 0; k < page->is.n; k++) {
        if (page->is.level) {
            sum.rows += page->branch.sum[k].rows;
            sum.entries += page->branch.sum[k].entries;
        } else if (page->leaf.weight[k] > 0) {
            sum.rows += (uint64_t)page->leaf.weight[k];
            sum.entries++;
        }
    }
    return sum;
}

/* Replaces a weight in the sums of the pages above it. */
static void add_to_sums(th_tree *t, const th_path *path, int64_t before, int64_t after) {
    uint64_t rows = (uint64_t)(after > 0 ? after : 0) - (uint64_t)(before > 0 ? before : 0);
    uint64_t entries = (uint64_t)(after > 0) - (uint64_t)(before > 0);
    for (unsigned level = 1; level < t->top->levels; level++) {
        th_sum *sum = &t->page[path->page[level]].branch.sum[path->at[level]];
        sum->rows += rows;
        sum->entries += entries;
    }
}

/* Tells the pages above `level` that the page of the path there has a new first entry. */
static void set_first(th_tree *t, const th_path *path, unsigned level) {
    const th_key *first = t->page[path->page[level]].leaf.key;
    for (unsigned above = level + 1; above < t->top->levels; above++) {
        th_key *key = &t->page[path->page[above]].branch.key[path->at[above]];
        uint32_t child = key->child;
        *key = *first;
        key->child = child;
        if (path->at[above]) break;
    }
}

/* ---- one entry more ---- */

TH_INLINE void *weights_or_sums(th_page *page, size_t at) {
    return page->is.level ? (void *)&page->branch.sum[at] : (void *)&page->leaf.weight[at];
}

TH_INLINE size_t width_of(const th_page *page) { return page->is.level ? sizeof(th_sum) : sizeof(int64_t); }
TH_INLINE size_t most(const th_page *page) { return page->is.level ? TH_BRANCH : TH_LEAF; }

/* Copies n entries, or pages below, between two pages of one level. */
static void copy_items(th_page *to, size_t at, th_page *from, size_t start, size_t n) {
    memmove(&to->leaf.key[at], &from->leaf.key[start], n * sizeof(th_key));
    memmove(weights_or_sums(to, at), weights_or_sums(from, start), n * width_of(from));
}

/* Splits the full page of the path at `level`, unless it has room; the path then leads to the part where an item
 * belongs that is put at path->at[level]. Returns the new page on its right, or UINT32_MAX. */
static uint32_t split(th_tree *t, th_path *path, unsigned level) {
    th_page *left = &t->page[path->page[level]];
    if (left->is.n < most(left)) return UINT32_MAX;
    uint32_t number = take_page(t, level);
    th_page *right = &t->page[number];
    size_t kept = path->at[level] == left->is.n ? left->is.n : most(left) / 2; /* ascending items fill their pages */
    right->is.n = (uint16_t)(left->is.n - kept);
    copy_items(right, 0, left, kept, right->is.n);
    left->is.n = (uint16_t)kept;
    if (path->at[level] > kept || kept == most(left)) {
        path->page[level] = number;
        path->at[level] -= (uint32_t)kept;
    }
    return number;
}

static void put_item(th_page *page, size_t at, const th_key *key, const void *weight_or_sum) {
    copy_items(page, at + 1, page, at, page->is.n - at);
    page->leaf.key[at] = *key;
    memcpy(weights_or_sums(page, at), weight_or_sum, width_of(page));
    page->is.n++;
}

/* Puts a page that has been split off below the page of the path at `level`, behind the one it comes from. */
static void put_page(th_tree *t, th_path *path, unsigned level, uint32_t left, uint32_t number) {
    th_key key = t->page[number].leaf.key[0];
    th_sum sum = th_page_sum(&t->page[number]);
    key.child = number;
    if (level == t->top->levels) {
        uint32_t root = take_page(t, level);
        th_page *page = &t->page[root];
        page->is.n = 1;
        page->branch.key[0] = t->page[left].leaf.key[0];
        page->branch.key[0].child = left;
        page->branch.sum[0] = th_page_sum(&t->page[left]);
        put_item(page, 1, &key, &sum);
        t->top->root = root;
        t->top->levels++;
        return;
    }
    uint32_t old = path->page[level];
    th_sum *of_left = &t->page[old].branch.sum[path->at[level]];
    of_left->rows -= sum.rows;
    of_left->entries -= sum.entries;
    path->at[level]++;
    uint32_t more = split(t, path, level);
    put_item(&t->page[path->page[level]], path->at[level], &key, &sum);
    if (more != UINT32_MAX) put_page(t, path, level + 1, old, more);
}

static void insert(th_tree *t, th_path *path, const th_probe *probe, int64_t weight) {
    th_key key = {probe->id, probe->head, probe->tail, (uint32_t)probe->size, 0};
    if (probe->size > TH_INLINE_CODE) key.tail = keep_code(t, probe->code, probe->size);
    add_to_sums(t, path, 0, weight);
    th_path way = *path;
    uint32_t left = path->page[0], more = split(t, path, 0);
    put_item(&t->page[path->page[0]], path->at[0], &key, &weight);
    if (path->page[0] == left && !path->at[0]) set_first(t, &way, 0);
    if (more != UINT32_MAX) put_page(t, path, 1, left, more);
    t->top->entries++;
}

/* ---- one entry less ---- */

static void remove_item(th_page *page, size_t at) {
    copy_items(page, at, page, at + 1, page->is.n - at - 1);
    page->is.n--;
}

static void remove_page(th_tree *t, th_path *path, unsigned level);

/* Joins the pages at `left` and behind it, below the page of the path above `level`, if they fill three quarters of
 * one. */
static bool join_at(th_tree *t, th_path *path, unsigned level, uint32_t left) {
    th_page *above = &t->page[path->page[level + 1]];
    if (left + 1 >= above->is.n) return false;
    uint32_t from = above->branch.key[left + 1].child;
    th_page *one = &t->page[above->branch.key[left].child], *other = &t->page[from];
    if (one->is.n + other->is.n > most(one) * 3 / 4) return false;
    copy_items(one, one->is.n, other, 0, other->is.n);
    one->is.n = (uint16_t)(one->is.n + other->is.n);
    above->branch.sum[left].rows += above->branch.sum[left + 1].rows;
    above->branch.sum[left].entries += above->branch.sum[left + 1].entries;
    path->page[level] = from;
    path->at[level + 1] = left + 1;
    remove_page(t, path, level);
    return true;
}

/* Joins the page of the path at `level` with one beside it, if both are small. */
static void join(th_tree *t, th_path *path, unsigned level) {
    if (level + 1 == t->top->levels) return;
    uint32_t at = path->at[level + 1];
    if (!join_at(t, path, level, at) && at) join_at(t, path, level, at - 1);
}

/* Removes the page of the path at `level`, whose items are gone, from the one above. */
static void remove_page(th_tree *t, th_path *path, unsigned level) {
    unsigned up = level + 1;
    th_page *above = &t->page[path->page[up]];
    free_page(t, path->page[level]);
    remove_item(above, path->at[up]);
    if (!above->is.n) { /* it is not the root, which has two pages at least */
        remove_page(t, path, up);
        return;
    }
    if (!path->at[up]) set_first(t, path, up);
    join(t, path, up);
}

static void remove_entry(th_tree *t, th_path *path) {
    th_page *leaf = &t->page[path->page[0]];
    size_t at = path->at[0];
    add_to_sums(t, path, leaf->leaf.weight[at], 0);
    th_key gone = leaf->leaf.key[at];
    remove_item(leaf, at);
    t->top->entries--;
    if (!leaf->is.n && t->top->levels > 1) {
        remove_page(t, path, 0);
    } else {
        if (!at && leaf->is.n) set_first(t, path, 0);
        join(t, path, 0);
    }
    free_code(t, &gone);
    while (t->top->levels > 1 && t->page[t->top->root].is.n == 1) {
        uint32_t root = t->top->root;
        t->top->root = t->page[root].branch.key[0].child;
        t->top->levels--;
        free_page(t, root);
    }
}

/* ---- many entries ---- */

TH_INLINE th_probe probe_of(const th_changes *changes, size_t k) {
    const int64_t *offset = changes->rows.codes.offset;
    size_t row = (size_t)changes->row[k];
    return th_probe_of(changes->rows.id[row], changes->rows.codes.data + offset[row],
                       (size_t)(offset[row + 1] - offset[row]));
}

/* Counts the pages that entries may need: a full page splits with the first one, and then after half a page of others.
 */
typedef struct splits {
    uint32_t page;
    size_t entries, pages;
} splits;

static void end_page(const th_tree *t, splits *s) {
    if (s->entries && t->page[s->page].is.n + s->entries > TH_LEAF) s->pages += 1 + s->entries / (TH_LEAF / 2);
    s->entries = 0;
}

th_status th_tree_plan(const th_tree *t, const th_changes *changes, int64_t *before, th_tree_need *need) {
    splits s = {0, 0, 0};
    th_path path = {{0}, {0}};
    size_t added = 0;
    *need = (th_tree_need){0, 0};
    for (size_t k = 0; k < changes->n; k++) {
        th_probe probe = probe_of(changes, k);
        int64_t after;
        bool held = t->top && th_tree_find(t, &probe, &path);
        before[k] = held ? t->page[path.page[0]].leaf.weight[path.at[0]] : 0;
        if (!th_add_weights(before[k], changes->sum[k], &after)) return TH_NO;
        if (held || !after) continue;
        need->codes += th_code_room(probe.size);
        added++;
        if (!t->top) continue;
        if (path.page[0] != s.page) end_page(t, &s);
        s.page = path.page[0];
        s.entries++;
    }
    if (!t->top) {
        if (!added) return TH_YES;
        s.pages = 1 + added / (TH_LEAF / 2);
    } else {
        end_page(t, &s);
    }
    if (s.pages) { /* branches that may be full, those that fill up, and a new root */
        size_t branches = t->top ? t->top->branches : 0, levels = t->top ? t->top->levels : 1;
        size_t full = s.pages * levels < branches ? s.pages * levels : branches;
        need->pages = s.pages + full + s.pages / (TH_BRANCH / 4) + (t->top || s.pages > 1);
    }
    if (!t->top) return TH_FULL;
    size_t pages = t->top->pages - t->top->used_pages + t->top->free_pages;
    return need->pages > pages || need->codes > t->top->codes - t->top->used_codes ? TH_FULL : TH_YES;
}

/* Returns whether an id has entries. */
static bool has_entries(const th_tree *t, int64_t id) {
    th_path path;
    th_probe first = {id, 0, 0, NULL, 0};
    th_tree_find(t, &first, &path);
    for (unsigned level = 0; level < t->top->levels; level++) { /* it is the next one, of this page or another */
        const th_page *page = &t->page[path.page[level]];
        uint32_t at = path.at[level] + (level > 0);
        if (at < page->is.n) return page->leaf.key[at].id == id;
    }
    return false;
}

size_t th_tree_add(th_tree *t, const th_changes *changes) {
    th_path path;
    size_t lost = 0;
    bool removed = false; /* an entry of the id at hand */
    for (size_t k = 0; k < changes->n; k++) {
        th_probe probe = probe_of(changes, k);
        if (changes->sum[k]) {
            if (!th_tree_find(t, &probe, &path)) {
                insert(t, &path, &probe, changes->sum[k]);
            } else {
                int64_t *weight = &t->page[path.page[0]].leaf.weight[path.at[0]], after = *weight + changes->sum[k];
                if (after) {
                    add_to_sums(t, &path, *weight, after);
                    *weight = after;
                } else {
                    remove_entry(t, &path);
                    removed = true;
                }
            }
        }
        if (k + 1 == changes->n || changes->rows.id[changes->row[k + 1]] != probe.id) {
            lost += removed && !has_entries(t, probe.id);
            removed = false;
        }
    }
    return lost;
}
