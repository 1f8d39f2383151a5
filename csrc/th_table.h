/* A hash table from int64 ids to int64 values, in memory that the caller lends as one block.
 *
 * It follows the rules of th_heap.h: C11, no allocation, one thread at a time. Every int64 is a valid id and a valid
 * value. The block holds no pointers, so another process can continue with the same bytes. */
#ifndef TH_TABLE_H
#define TH_TABLE_H

#include "th_heap.h"

/* The maximum number of ids: entries are numbered in 32 bits. */
#define TH_TABLE_MAX TH_MAX_ROWS

#define TH_IDS 4

/* One cache line of the table. */
typedef struct th_ids {
    int64_t id[TH_IDS]; /* 0 in a free entry */
    int64_t value[TH_IDS];
} th_ids;

typedef struct th_table {
    th_ids *line; /* 64-byte aligned */
    size_t len, cap, lines;
    uint64_t seed[3];
} th_table;

/* Initializes an empty table without memory (cap 0); `seed` determines its hash function. */
void th_table_init(th_table *t, uint64_t seed);

/* Returns the number of bytes of a block for `cap` ids (0 for 0). */
size_t th_table_size(size_t cap);

/* Points t to a block for `cap` ids, which a table with the same seed has written; the caller sets `len`. */
void th_table_place(th_table *t, void *block, size_t cap);

/* Returns whether a few lines look like those of this table. O(1). It tells a table from other bytes, but does not
 * prove that the table is intact. */
bool th_table_plausible(const th_table *t);

/* Moves the table to another block for `cap` ids, with the hash function of `seed`; it must not hold more ids. The
 * bytes of the block may have any value. Returns TH_YES; or TH_CORRUPT, with the table unchanged, if it does not have
 * `len` entries, which can happen only if others have written to its block.
 *
 * A table that moves to less memory must change its seed. The order of the entries follows their hashes, so the ids
 * that remain may be those of a small range of hashes, which would crowd a small part of the new block. */
th_status th_table_move(th_table *t, void *block, size_t cap, uint64_t seed);

/* Looks up n ids: sets found[i], and value[i] or 0 if the id is absent. */
void th_table_find_many(const th_table *t, th_column id, size_t n, int64_t *value, uint8_t *found);

/* Scratch memory of th_table_put_many, n of each: the entries written, and their old values. */
typedef struct th_undo {
    uint32_t *entry;
    int64_t *value;
} th_undo;

/* Sets the values of n ids in sequence; added[i] says whether the id was absent. Returns TH_YES; or TH_FULL with the
 * table unchanged and a sufficient capacity in *need. */
th_status th_table_put_many(th_table *t, th_column id, th_column value, size_t n, uint8_t *added, th_undo undo,
                            size_t *need);

/* Looks up n ids in sequence, and puts those that are absent: the value of each is the number of ids before it. Sets
 * number[i] to the value, and ids[value] to an id that was absent. There must be room for n more ids, and the block
 * must be one to which nobody else writes. */
void th_table_number_many(th_table *t, th_column id, size_t n, int64_t *number, int64_t *ids);

/* Removes n ids in sequence: sets removed[i], and value[i] to the removed value, or 0 if the id was absent. */
void th_table_remove_many(th_table *t, th_column id, size_t n, int64_t *value, uint8_t *removed);

/* Writes the ids and, unless `value` is NULL, the values of all (`len` at most), in any order; returns how many. */
size_t th_table_items(const th_table *t, int64_t *id, int64_t *value);

/* Checks all invariants. Returns TH_YES or TH_CORRUPT. */
th_status th_table_check(const th_table *t);

#endif
