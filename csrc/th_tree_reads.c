/* Reading a tree: the entries of an id in order, its totals, and all ids. */
#include "th_tree.h"

#include "th_tree_private.h"

/* ---- places ---- */

/* Returns the first of n keys whose id is not less than `id`, or with `after`, is greater. */
TH_INLINE size_t first_of(const th_key *key, size_t n, int64_t id, bool after) {
    size_t low = 0;
    while (low < n) {
        size_t middle = (low + n) / 2;
        if (after ? key[middle].id <= id : key[middle].id < id) low = middle + 1;
        else n = middle;
    }
    return low;
}

/* Finds the first entry of an id, or with `after` the place behind its last one, and adds what comes before it to *sum.
 */
static void find_id(const th_tree *t, int64_t id, bool after, th_path *path, th_sum *sum) {
    uint32_t number = t->top->root;
    for (unsigned level = t->top->levels - 1;; level--) {
        const th_page *page = &t->page[number];
        size_t at = first_of(page->leaf.key, page->is.n, id, after);
        if (level && at) at--; /* it may be below the page before */
        path->page[level] = number;
        path->at[level] = (uint32_t)at;
        for (size_t k = 0; sum && k < at; k++) {
            int64_t weight = level ? 0 : page->leaf.weight[k];
            sum->rows += level ? page->branch.sum[k].rows : (uint64_t)(weight > 0 ? weight : 0);
            sum->entries += level ? page->branch.sum[k].entries : (uint64_t)(weight > 0);
        }
        if (!level) return;
        number = page->branch.key[at].child;
    }
}

/* Goes down to the first or the last entry below the page at `level`. */
static void go_down(const th_tree *t, th_path *path, unsigned level, bool last) {
    for (; level; level--) {
        uint32_t child = t->page[path->page[level]].branch.key[path->at[level]].child;
        path->page[level - 1] = child;
        path->at[level - 1] = last ? t->page[child].is.n - 1U : 0;
    }
}

/* Goes from a place behind the last entry of a page to the next page; returns whether there is an entry. */
static bool settle(const th_tree *t, th_path *path) {
    if (path->at[0] < t->page[path->page[0]].is.n) return true;
    for (unsigned level = 1; level < t->top->levels; level++) {
        if (path->at[level] + 1U >= t->page[path->page[level]].is.n) continue;
        path->at[level]++;
        go_down(t, path, level, false);
        return true;
    }
    return false;
}

static bool go_back(const th_tree *t, th_path *path) {
    for (unsigned level = 0; level < t->top->levels; level++) {
        if (!path->at[level]) continue;
        path->at[level]--;
        go_down(t, path, level, true);
        return true;
    }
    return false;
}

/* ---- picking ---- */

/* What has been picked of an id. */
typedef struct picking {
    const th_pick *pick;
    int64_t left;        /* of what may be picked */
    const uint8_t *lead; /* of the entry before */
    size_t size;
    uint8_t room[TH_INLINE_CODE];
} picking;

/* Returns whether the lead of a code differs from the one before; SIZE_MAX for a size if it has none. */
static bool new_lead(picking *p, const th_format *f, const uint8_t *code, uint32_t size, size_t *lead) {
    *lead = th_code_lead(f, code, size);
    if (*lead == SIZE_MAX || (p->lead && p->size == *lead && !memcmp(p->lead, code, *lead))) return false;
    p->size = *lead;
    p->lead = code;
    if (size <= TH_INLINE_CODE) p->lead = memcpy(p->room, code, size);
    return true;
}

TH_INLINE int64_t cut(int64_t weight, int64_t most) { return weight < most ? weight : most > 0 ? most : 0; }

/* Returns what is picked of an entry of positive weight, 0 for nothing; -1 ends it, and -2 if the code is none. */
static int64_t picked(picking *p, const th_format *f, const uint8_t *code, uint32_t size, int64_t weight) {
    size_t lead;
    int64_t part;
    switch (p->pick->kind) {
    case TH_PICK_ROWS:
        part = cut(weight, p->left);
        p->left -= part;
        return part ? part : -1;
    case TH_PICK_REST:
        part = cut(weight, p->left);
        p->left -= part;
        return weight - part;
    default:
        if (new_lead(p, f, code, size, &lead)) {
            if (p->left <= 0) return -1;
            if (p->pick->kind == TH_PICK_LEADS) p->left--;
        } else if (lead == SIZE_MAX) {
            return -2;
        }
        if (p->pick->kind == TH_PICK_TIES) p->left = p->left > weight ? p->left - weight : 0;
        return weight;
    }
}

static void put(th_picked *found, const th_key *key, const uint8_t *code, int64_t weight) {
    if (found->length) {
        memcpy(found->code + found->size, code, key->size);
        found->weight[found->entries] = weight;
        found->offset[found->entries + 1] = (int64_t)(found->size + key->size);
    }
    found->size += key->size;
    found->entries++;
}

static th_status pick_of(const th_tree *t, const th_format *f, const th_pick *pick, int64_t id, int64_t most,
                         th_picked *found) {
    th_path path;
    picking p = {.pick = pick, .left = most};
    if (most <= 0 && pick->kind != TH_PICK_ALL && pick->kind != TH_PICK_REST) return TH_YES;
    find_id(t, id, pick->backwards, &path, NULL);
    bool on = pick->backwards ? go_back(t, &path) : settle(t, &path);
    while (on) {
        const th_page *page = &t->page[path.page[0]];
        const th_key *key = &page->leaf.key[path.at[0]];
        int64_t weight = page->leaf.weight[path.at[0]];
        uint8_t room[TH_INLINE_CODE];
        if (key->id != id) break;
        if (pick->kind == TH_PICK_ALL || weight > 0) {
            const uint8_t *code = th_code_of(t, key, room);
            int64_t part = pick->kind == TH_PICK_ALL ? weight : picked(&p, f, code, key->size, weight);
            if (pick->kind != TH_PICK_ALL && part < 0) return part == -1 ? TH_YES : TH_CORRUPT;
            if (part) put(found, key, code, part);
            if (pick->kind == TH_PICK_ROWS && !p.left) break;
        }
        if (pick->backwards) {
            on = go_back(t, &path);
        } else {
            path.at[0]++;
            on = settle(t, &path);
        }
    }
    return TH_YES;
}

th_status th_tree_pick(const th_tree *t, const th_format *f, const th_pick *pick, const int64_t *id,
                       const int64_t *most, size_t n, th_picked *found) {
    found->entries = found->size = 0;
    if (found->length) found->offset[0] = 0;
    for (size_t i = 0; i < n; i++) {
        size_t before = found->entries;
        if (t->top && pick_of(t, f, pick, id[i], most[i], found) != TH_YES) return TH_CORRUPT;
        if (found->length) found->length[i] = (int64_t)(found->entries - before);
    }
    return TH_YES;
}

/* ---- all of an id, and all ids ---- */

void th_tree_totals(const th_tree *t, const int64_t *id, size_t n, int64_t *rows, int64_t *entries) {
    for (size_t i = 0; i < n; i++) {
        th_sum before = {0, 0}, with = {0, 0};
        th_path path;
        if (t->top) {
            find_id(t, id[i], false, &path, &before);
            find_id(t, id[i], true, &path, &with);
        }
        rows[i] = (int64_t)(with.rows - before.rows);
        entries[i] = (int64_t)(with.entries - before.entries);
    }
}

/* Counts the ids of the entries below a page that differ from the one before, and writes them. */
static size_t ids_below(const th_tree *t, uint32_t number, size_t n, int64_t *last, int64_t *id) {
    const th_page *page = &t->page[number];
    for (size_t k = 0; k < page->is.n; k++) {
        const th_key *key = &page->leaf.key[k];
        if (page->is.level) {
            n = ids_below(t, key->child, n, last, id);
        } else if (!n || key->id != *last) {
            if (id) id[n] = key->id;
            *last = key->id;
            n++;
        }
    }
    return n;
}

size_t th_tree_ids(const th_tree *t, int64_t *id) {
    int64_t last = 0;
    return t->top ? ids_below(t, t->top->root, 0, &last, id) : 0;
}
