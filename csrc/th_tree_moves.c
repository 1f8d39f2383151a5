/* The tree in another block, and what tells a tree from other bytes. */
#include "th_tree.h"

#include "th_tree_private.h"

#define FEW 32 /* pages of a tree that is checked completely */

enum { FIRST_CODE = 8 }; /* 0 is no code */

static void set_block(th_tree *t, void *block, size_t pages) {
    t->top = block;
    t->page = (th_page *)(t->top + 1);
    t->code = (uint8_t *)(t->page + pages);
}

/* Makes a tree without entries. */
static void begin(th_tree *t, void *block, size_t pages, size_t codes) {
    set_block(t, block, pages);
    *t->top = (th_tree_top){.magic = TH_TREE_MAGIC, .pages = pages, .codes = codes};
    t->top->used_codes = FIRST_CODE;
    t->top->levels = t->top->used_pages = 1;
    t->page[0].is = (th_page_head){0, 0, 0};
}

void th_tree_move(th_tree *t, void *block, size_t pages, size_t codes) {
    th_tree to;
    if (!t->top) {
        begin(t, block, pages, codes);
        return;
    }
    set_block(&to, block, pages);
    *to.top = *t->top;
    to.top->pages = pages;
    to.top->codes = codes;
    memcpy(to.page, t->page, t->top->used_pages * sizeof *t->page);
    memcpy(to.code, t->code, t->top->used_codes);
    *t = to;
}

static void copy_code(const th_tree *t, th_tree *to, th_key *key) {
    if (key->size <= TH_INLINE_CODE) return;
    memcpy(to->code + to->top->used_codes, t->code + key->tail, key->size);
    key->tail = to->top->used_codes;
    to->top->used_codes += th_code_room(key->size);
}

/* Copies a page and those below it; returns its number. */
static uint32_t copy_page(const th_tree *t, th_tree *to, uint32_t number) {
    const th_page *from = &t->page[number];
    uint32_t at = to->top->used_pages++;
    th_page *page = &to->page[at];
    *page = *from;
    for (size_t k = 0; k < from->is.n; k++) {
        if (!from->is.level) {
            copy_code(t, to, &page->leaf.key[k]);
            continue;
        }
        uint32_t child = copy_page(t, to, from->branch.key[k].child);
        page->branch.key[k] = to->page[child].leaf.key[0];
        page->branch.key[k].child = child;
    }
    return at;
}

void th_tree_pack(th_tree *t, void *block, size_t pages, size_t codes) {
    th_tree to;
    begin(&to, block, pages, codes);
    to.top->used_pages = 0;
    to.top->root = copy_page(t, &to, t->top->root);
    to.top->entries = t->top->entries;
    to.top->levels = t->top->levels;
    to.top->branches = t->top->branches;
    *t = to;
}

/* ---- whether it is a tree ---- */

static bool fits_page(const th_tree *t, uint64_t number, unsigned level) {
    if (number >= t->top->used_pages) return false;
    const th_page *page = &t->page[number];
    return page->is.level == level && page->is.n <= (level ? TH_BRANCH : TH_LEAF) &&
           (page->is.n || (!level && t->top->levels == 1));
}

static bool fits_code(const th_tree *t, const th_key *key) {
    if (key->size <= TH_INLINE_CODE) return true;
    size_t room = th_code_room(key->size), used = t->top->used_codes;
    return key->tail >= FIRST_CODE && key->tail % 8 == 0 && room <= used && key->tail <= used - room;
}

static bool same_key(const th_key *a, const th_key *b) {
    return a->id == b->id && a->head == b->head && a->tail == b->tail && a->size == b->size;
}

static bool ascends(const th_tree *t, const th_key *a, const th_key *b) {
    uint8_t room[2][TH_INLINE_CODE];
    if (a->id != b->id) return a->id < b->id;
    if (a->head != b->head) return a->head < b->head;
    size_t size = a->size < b->size ? a->size : b->size;
    int order = size ? memcmp(th_code_of(t, a, room[0]), th_code_of(t, b, room[1]), size) : 0;
    return order ? order < 0 : a->size < b->size;
}

/* What has been found below a page. */
typedef struct census {
    size_t pages, branches, entries, codes;
    th_key last;
} census;

static bool sound(const th_tree *t, uint32_t number, unsigned level, census *c) {
    if (!fits_page(t, number, level) || ++c->pages > t->top->used_pages) return false;
    const th_page *page = &t->page[number];
    c->branches += level > 0;
    for (size_t k = 0; k < page->is.n; k++) {
        const th_key *key = &page->leaf.key[k];
        if (!fits_code(t, key)) return false;
        if (level) {
            if (!sound(t, key->child, level - 1, c)) return false;
            const th_page *below = &t->page[key->child];
            th_sum sum = th_page_sum(below), known = page->branch.sum[k];
            if (!same_key(key, below->leaf.key) || sum.rows != known.rows || sum.entries != known.entries) return false;
            continue;
        }
        if (!page->leaf.weight[k] || (c->entries && !ascends(t, &c->last, key))) return false;
        c->entries++;
        c->codes += th_code_room(key->size);
        c->last = *key;
    }
    return true;
}

static bool sound_free_pages(const th_tree *t) {
    uint64_t at = t->top->free_page;
    for (size_t n = 0; n < t->top->free_pages; n++) {
        if (!at || at > t->top->used_pages) return false;
        at = t->page[at - 1].is.next;
    }
    return !at;
}

static bool sound_free_codes(const th_tree *t, size_t *pieces) {
    size_t most = t->top->used_codes / 8;
    for (unsigned class = 0; class < TH_CODE_CLASSES; class++) {
        uint64_t at = t->top->free_code[class];
        for (; at; memcpy(&at, t->code + at, 8)) {
            if (at % 8 || at < FIRST_CODE || at > t->top->used_codes - 8 || ++*pieces > most) return false;
        }
    }
    return true;
}

th_status th_tree_check(const th_tree *t) {
    const th_tree_top *top = t->top;
    census c = {0};
    size_t pieces = 0;
    if (!top) return TH_YES;
    if (top->used_pages > top->pages || top->used_codes > top->codes || top->used_codes < FIRST_CODE) return TH_CORRUPT;
    if (!top->levels || top->levels > TH_TREE_LEVELS || !sound(t, top->root, top->levels - 1, &c)) return TH_CORRUPT;
    if (!sound_free_pages(t) || !sound_free_codes(t, &pieces)) return TH_CORRUPT;
    bool counted = c.pages + top->free_pages == top->used_pages && c.branches == top->branches &&
                   c.entries == top->entries && c.codes + top->free_codes + FIRST_CODE == top->used_codes;
    return counted && !pieces == !top->free_codes ? TH_YES : TH_CORRUPT;
}

/* Returns whether the root and the pages below it look like those of a tree. */
static bool plausible(const th_tree *t) {
    const th_tree_top *top = t->top;
    if (!top->levels || top->levels > TH_TREE_LEVELS || !fits_page(t, top->root, top->levels - 1)) return false;
    const th_page *root = &t->page[top->root];
    for (size_t k = 0; k < root->is.n && root->is.level; k++) {
        const th_key *key = &root->branch.key[k];
        if (!fits_page(t, key->child, top->levels - 2U) || !same_key(key, t->page[key->child].leaf.key)) return false;
    }
    return top->free_pages < top->used_pages && top->free_codes < top->used_codes && top->free_page <= top->used_pages;
}

bool th_tree_place(th_tree *t, void *block, size_t size) {
    const th_tree_top *top = block;
    *t = (th_tree){0};
    if (size < sizeof *top || top->magic != TH_TREE_MAGIC || top->pages > size / sizeof(th_page) || top->codes > size)
        return false;
    if (th_tree_size(top->pages, top->codes) > size) return false;
    if (top->used_pages > top->pages || !top->used_pages || top->used_codes > top->codes ||
        top->used_codes < FIRST_CODE)
        return false;
    set_block(t, block, top->pages);
    return top->used_pages <= FEW ? th_tree_check(t) == TH_YES : plausible(t);
}
