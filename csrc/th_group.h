/* Gives numbers to the keys of rows and to their groups, and ranks to the rows of each key. A group contains the rows
 * of one key in one slice of time.
 *
 * Keys are values of Arrow arrays, which stay where they are; a key is known by its first row. The rows come in parts.
 * It follows the rules of th_array.h. */
#ifndef TH_GROUP_H
#define TH_GROUP_H

#include "th_array.h"

/* The maximum number of keys, of groups, of parts and of rows of a part. */
#define TH_MAX_NUMBERED ((size_t)1 << 31)

/* An entry of a hash table; `number` is 0 in a free one, else the number plus 1. */
typedef struct th_entry {
    int64_t of; /* the hash of a key, or the slice of a group */
    uint32_t key;
    uint32_t number;
} th_entry;

/* A key that has a number, and where its last row was. */
typedef struct th_known {
    int64_t hash;  /* that it is entered under */
    int64_t slice; /* the slice of the last row */
    uint32_t group; /* the group of the last row, UINT32_MAX if it is unknown */
    uint32_t part, row;
} th_known;

/* A group: a key, a slice of time, and the number of its rows. */
typedef struct th_slice {
    int64_t slice;
    uint64_t rows;
    uint32_t key;
} th_slice;

typedef struct th_groups {
    th_entry *key_entry, *group_entry;
    th_known *key;
    th_slice *group;
    size_t keys, groups;
    size_t key_cap, group_cap;
    uint64_t seed[3];
} th_groups;

void th_groups_init(th_groups *t, uint64_t seed);

/* The bytes that th_groups_move needs for so many keys and groups, each 0 or a power of two up to TH_MAX_NUMBERED. */
size_t th_groups_size(size_t key_cap, size_t group_cap);

/* Moves all to a block of th_groups_size bytes, aligned to 8, with room for what there is. */
void th_groups_move(th_groups *t, void *block, size_t key_cap, size_t group_cap);

/* The rows of a part, and the key columns of all parts up to it, `columns` arrays for each. The arrays of one column
 * have one kind and, except for text, one width, and n values in this part. The hashes of equal keys must be equal. */
typedef struct th_rows {
    const int64_t *hash, *slice;
    size_t n;
    const th_array *key;
    size_t columns;
    uint32_t part;
} th_rows;

/* Numbers the group of each row from number *done on, writes it to group[], and counts the rows of the groups. Returns
 * TH_YES; TH_FULL if there is no room for one more key or group, with *done at the row to continue at; or TH_CORRUPT if
 * an offset lies outside of its array. */
th_status th_groups_add(th_groups *t, const th_rows *rows, size_t *done, uint32_t *group);

/* Removes the first `done` rows of the last part again, if there were so many keys and groups before it. */
void th_groups_undo(th_groups *t, size_t keys, size_t groups, const uint32_t *group, size_t done);

/* Writes the first rows of the keys from number `keys` on, which are all of the last part. */
void th_groups_firsts(const th_groups *t, size_t keys, int64_t *row);

/* Writes the positions of n rows, counted from `first`, to where the rows of their groups go. */
void th_groups_order(const uint32_t *group, size_t n, int64_t first, int64_t *next, int64_t *order);

/* Numbers n keys, of which each has a place of its own in [0, places): from *keys on, as they first occur. number_of[]
 * has the number of each place plus 1, or 0 for a key without one. Sets added[i] if key i had none. Returns TH_YES; or
 * TH_CORRUPT, with the keys before it numbered, if there is another place. */
th_status th_group_numbers(const int64_t *place, size_t n, size_t places, uint32_t *number_of, size_t *keys,
                           int64_t *number, uint8_t *added);

/* Rows in an order: row[i] is the i-th of them, of `rows`, and number[row] the number of its key, of [0, keys). */
typedef struct th_ordered {
    const int64_t *row, *number;
    size_t n, rows, keys;
} th_ordered;

/* Ranks rows among those of their keys: 0 for the first row of a key, and so on. `seen` is of zeros, one for each key.
 * Returns TH_YES with the number of different ranks in *waves; or TH_CORRUPT if a row or a key has another number. */
th_status th_group_ranks(const th_ordered *ordered, uint32_t *seen, uint32_t *rank, size_t *waves);

/* Writes the rows that were ranked, and the numbers of their keys, by rank, and where each rank ends; `stop` is of
 * zeros, one for each rank. Rows of one rank stay in their order. */
void th_group_waves(const th_ordered *ordered, const uint32_t *rank, size_t waves, int64_t *stop, int64_t *row,
                    int64_t *number);

#endif
