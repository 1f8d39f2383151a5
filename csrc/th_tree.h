/* A tree of weighted codes by id, in memory that the caller lends as one block: for each id a multiset, in order.
 *
 * It follows the rules of th_heap.h: C11, no allocation, one thread at a time. All entries (id, code, weight) are in
 * one B+ tree by id and then by code, so an id costs what its entries do. A weight is never 0. Pages know the sums of
 * the pages below them. The block holds no pointers, so another process can continue with the same bytes. */
#ifndef TH_TREE_H
#define TH_TREE_H

#include "th_code.h"

#define TH_TREE_LEVELS 16

typedef struct th_tree_top th_tree_top; /* the first bytes of a block */
typedef union th_page th_page;

typedef struct th_tree {
    th_tree_top *top; /* 64-byte aligned; NULL: no block, which has no entries */
    th_page *page;
    uint8_t *code; /* of codes that are too long for a page */
} th_tree;

/* How much is in a block. */
typedef struct th_tree_use {
    size_t entries;
    size_t pages, codes;           /* the room: pages, and bytes of codes */
    size_t used_pages, used_codes; /* what has been used of it so far */
    size_t free_pages, free_codes; /* what of that is free again */
} th_tree_use;

/* Returns the number of bytes of a block. */
size_t th_tree_size(size_t pages, size_t codes);

th_tree_use th_tree_usage(const th_tree *t);

/* Points t to a block of `size` bytes that a tree has written. Returns whether it looks like that: small trees are
 * checked completely, of large ones a few pages are. */
bool th_tree_place(th_tree *t, void *block, size_t size);

/* Moves the tree to another block with room for as many pages and codes, at least as many as it uses. */
void th_tree_move(th_tree *t, void *block, size_t pages, size_t codes);

/* Moves the tree to another block as th_tree_move does, and leaves out what is free. The room must be enough for the
 * rest: that is used less what is free. */
void th_tree_pack(th_tree *t, void *block, size_t pages, size_t codes);

/* Changes of distinct entries by id and code: entry k has the id and the code of row[k], and changes by sum[k]. */
typedef struct th_changes {
    th_weighted rows;
    const int64_t *row, *sum;
    size_t n;
} th_changes;

/* What a change needs: pages, and bytes of codes. */
typedef struct th_tree_need {
    size_t pages, codes;
} th_tree_need;

/* Looks up what th_tree_add will change: sets before[k] to the weight of each entry, and *need. Returns TH_YES; TH_FULL
 * if there is not as much room; or TH_NO if a weight would be beyond INT64_MAX, or not above INT64_MIN. */
th_status th_tree_plan(const th_tree *t, const th_changes *changes, int64_t *before, th_tree_need *need);

/* Changes the weights, once th_tree_plan has returned TH_YES for the same tree and changes. Returns how many ids have
 * lost their last entry. */
size_t th_tree_add(th_tree *t, const th_changes *changes);

/* Which entries of an id are picked: in order, or backwards from the last one on. */
typedef enum th_pick_kind {
    TH_PICK_ALL,
    TH_PICK_ROWS, /* those of positive weights until their weights add up to most[i]; the last weight is cut to that */
    TH_PICK_TIES, /* these, whole, and all whose leads equal that of the last one */
    TH_PICK_LEADS, /* those of positive weights that have one of the first most[i] leads */
    TH_PICK_REST /* what TH_PICK_ROWS leaves of positive weights */
} th_pick_kind;

typedef struct th_pick {
    th_pick_kind kind;
    bool backwards;
} th_pick;

typedef struct th_picked {
    size_t entries, size; /* the number of entries, and of the bytes of their codes */
    int64_t *length; /* the number of entries of each id; NULL: only `entries` and `size` are set */
    int64_t *weight, *offset;
    uint8_t *code;
} th_picked;

/* Picks entries of n ids, one id after the other; `most` has a number for each. Call it first to know the size. Returns
 * TH_YES, or TH_CORRUPT if a code is none of this format. */
th_status th_tree_pick(const th_tree *t, const th_format *f, const th_pick *pick, const int64_t *id,
                       const int64_t *most, size_t n, th_picked *found);

/* Sets the sum of the positive weights of each of n ids, and the number of these. O(log entries) for each. */
void th_tree_totals(const th_tree *t, const int64_t *id, size_t n, int64_t *rows, int64_t *entries);

/* Writes the ids that have entries, ascending, unless `id` is NULL, and returns their number. O(entries). */
size_t th_tree_ids(const th_tree *t, int64_t *id);

/* Checks all invariants, and that nothing lies outside of the block. Returns TH_YES or TH_CORRUPT. */
th_status th_tree_check(const th_tree *t);

#endif
