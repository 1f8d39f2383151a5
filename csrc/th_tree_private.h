/* The pages of a tree, and the way down to an entry. */
#ifndef TH_TREE_PRIVATE_H
#define TH_TREE_PRIVATE_H

#include "th_code_private.h"
#include "th_tree.h"

#ifndef TH_LEAF /* a test has less in a page, so that there are more */
#define TH_LEAF 64   /* entries of a page */
#define TH_BRANCH 52 /* pages below a page */
#endif
#define TH_INLINE_CODE 16
#define TH_CODE_CLASSES 117 /* of sizes: see class_of in th_tree.c */
#define TH_TREE_MAGIC 0x3A5EED0FB1E55ED1

/* An entry, or the first one of a page below. A code of up to 16 bytes is in head and tail, the first byte highest;
 * of a longer one the head has the first 8, and the tail is where the code is. */
typedef struct th_key {
    int64_t id;
    uint64_t head, tail;
    uint32_t size, child;
} th_key;

/* Of the positive weights below: modulo 2**64, so that differences are right wherever their own sum fits. */
typedef struct th_sum {
    uint64_t rows, entries;
} th_sum;

typedef struct th_page_head {
    uint16_t n, level; /* level 0 has entries */
    uint32_t next;     /* of a free page, the next one + 1 */
} th_page_head;

union th_page {
    th_page_head is;
    struct {
        uint64_t head[8];
        th_key key[TH_LEAF];
        int64_t weight[TH_LEAF];
    } leaf;
    struct {
        uint64_t head[8];
        th_key key[TH_BRANCH];
        th_sum sum[TH_BRANCH];
    } branch;
    uint64_t whole[TH_LINE * 41 / 8];
};

struct th_tree_top {
    uint64_t magic, pages, codes, entries;
    uint64_t used_codes, free_codes;
    uint32_t used_pages, free_pages, free_page; /* the first free page + 1 */
    uint32_t root, levels, branches;
    uint64_t free_code[TH_CODE_CLASSES]; /* the first free piece of each size, 0 for none */
    uint64_t reserved[2];
};

_Static_assert(sizeof(th_page) == (size_t)TH_LINE * 41, "a page must be as many cache lines");
_Static_assert(sizeof(th_tree_top) % TH_LINE == 0, "pages must be aligned");

/* The way to an entry: a page of each level, level 0 first, and a place in it. */
typedef struct th_path {
    uint32_t page[TH_TREE_LEVELS], at[TH_TREE_LEVELS];
} th_path;

/* An entry that is looked for. */
typedef struct th_probe {
    int64_t id;
    uint64_t head, tail;
    const uint8_t *code;
    size_t size;
} th_probe;

TH_INLINE th_probe th_probe_of(int64_t id, const uint8_t *code, size_t size) {
    uint64_t tail = size <= 8 ? 0 : th_front(code + 8, size - 8);
    return (th_probe){id, th_front(code, size), tail, code, size};
}

/* Returns the bytes of the code of an entry; `room` has those of a short one. */
TH_INLINE const uint8_t *th_code_of(const th_tree *t, const th_key *key, uint8_t room[TH_INLINE_CODE]) {
    if (key->size > TH_INLINE_CODE) return t->code + key->tail;
    th_put_front(room, key->head, 8);
    th_put_front(room + 8, key->tail, 8);
    return room;
}

/* Returns the number of bytes that a code takes beside its page. */
size_t th_code_room(size_t size);

/* Finds an entry, or where it belongs: sets the path, and returns whether it is there. The tree must have a block. */
bool th_tree_find(const th_tree *t, const th_probe *probe, th_path *path);

/* Returns what the positive weights of a page, or those below it, add up to. */
th_sum th_page_sum(const th_page *page);

#endif
