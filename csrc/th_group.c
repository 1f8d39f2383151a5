/* Two hash tables with linear probing, at most half full: from hashes to keys, and from keys and slices to groups. The
 * rows of a key mostly come in the order of their times, so a key remembers the group of its last row.
 *
 * The first key with a hash is entered under it. Others with that hash, which may have been made on purpose, are
 * entered under a hash of their values with a secret seed. */
#include "th_group.h"

#include "th_array_private.h"

/* The number of rows whose entries are fetched together. */
#define BLOCK 32

void th_groups_init(th_groups *t, uint64_t seed) {
    *t = (th_groups){0};
    th_seed(t->seed, seed);
}

size_t th_groups_size(size_t key_cap, size_t group_cap) {
    return key_cap * (2 * sizeof(th_entry) + sizeof(th_known)) + group_cap * (2 * sizeof(th_entry) + sizeof(th_slice));
}

/* The home of an entry in a table of 2 * cap entries. */
TH_INLINE size_t home(const th_groups *t, int64_t of, uint32_t key, size_t cap) {
    uint64_t hash = th_mix(th_mix((uint64_t)of ^ t->seed[0], t->seed[1]) ^ key, t->seed[2]);
    return (size_t)(hash >> 32) & (2 * cap - 1);
}

TH_INLINE size_t after(size_t at, size_t cap) { return (at + 1) & (2 * cap - 1); }

static void insert(const th_groups *t, th_entry *table, size_t cap, th_entry entry) {
    size_t at = home(t, entry.of, entry.key, cap);
    while (table[at].number) at = after(at, cap);
    table[at] = entry;
}

/* Fills both tables from the keys and groups. */
static void index_all(th_groups *t) {
    if (t->key_cap) memset(t->key_entry, 0, 2 * t->key_cap * sizeof *t->key_entry);
    if (t->group_cap) memset(t->group_entry, 0, 2 * t->group_cap * sizeof *t->group_entry);
    for (uint32_t i = 0; i < t->keys; i++) insert(t, t->key_entry, t->key_cap, (th_entry){t->key[i].hash, 0, i + 1});
    for (uint32_t i = 0; i < t->groups; i++)
        insert(t, t->group_entry, t->group_cap, (th_entry){t->group[i].slice, t->group[i].key, i + 1});
}

void th_groups_move(th_groups *t, void *block, size_t key_cap, size_t group_cap) {
    th_entry *entry = block;
    th_known *key = (th_known *)(entry + 2 * (key_cap + group_cap));
    th_slice *group = (th_slice *)(key + key_cap);
    if (t->keys) memcpy(key, t->key, t->keys * sizeof *key);
    if (t->groups) memcpy(group, t->group, t->groups * sizeof *group);
    t->key_entry = entry;
    t->group_entry = entry + 2 * key_cap;
    t->key = key;
    t->group = group;
    t->key_cap = key_cap;
    t->group_cap = group_cap;
    index_all(t);
}

/* Returns whether row i has a known key. */
TH_INLINE bool same_key(const th_rows *rows, size_t i, const th_known *known, bool *sound) {
    const th_array *a = rows->key + known->part * rows->columns, *b = rows->key + rows->part * rows->columns;
    TH_COMPARED();
    for (size_t k = 0; k < rows->columns; k++) {
        bool valid = th_is_valid(a + k, known->row);
        if (valid != th_is_valid(b + k, i)) return false;
        if (valid && !th_same_value(b[k].kind, b[k].width, a + k, known->row, b + k, i, sound)) return false;
    }
    return true;
}

/* Returns the entry of the key of row i, or the free one where it belongs, and the hash that it is entered under. */
TH_INLINE th_entry *key_entry(const th_groups *t, const th_rows *rows, size_t i, int64_t *hash, size_t at,
                              bool *sound) {
    for (bool second = false;;) {
        th_entry *entry = &t->key_entry[at];
        if (!entry->number) return entry;
        bool clash = entry->of == *hash;
        if (clash && same_key(rows, i, &t->key[entry->number - 1], sound)) return entry;
        if (TH_UNLIKELY(clash && !second)) {
            second = true;
            *hash = th_array_hash(rows->key + rows->part * rows->columns, rows->columns, i, t->seed, sound);
            at = home(t, *hash, 0, t->key_cap);
        } else {
            at = after(at, t->key_cap);
        }
    }
}

static th_entry *group_entry(const th_groups *t, uint32_t key, int64_t slice) {
    for (size_t at = home(t, slice, key, t->group_cap);; at = after(at, t->group_cap)) {
        th_entry *entry = &t->group_entry[at];
        if (!entry->number || (entry->of == slice && entry->key == key)) return entry;
    }
}

/* Hashes the rows [i, end) and fetches the entries and then the keys that they may have. */
TH_INLINE void fetch(const th_groups *t, const th_rows *rows, size_t i, size_t end, int64_t *hash, size_t *at) {
    for (size_t k = 0; i + k < end; k++) {
        hash[k] = TH_READ(rows->hash + i + k);
        at[k] = home(t, hash[k], 0, t->key_cap);
        TH_PREFETCH(&t->key_entry[at[k]]);
    }
    for (size_t k = 0; i + k < end; k++) {
        const th_entry *entry = &t->key_entry[at[k]];
        if (entry->number) TH_PREFETCH(&t->key[entry->number - 1]);
    }
}

th_status th_groups_add(th_groups *groups, const th_rows *rows, size_t *done, uint32_t *group) {
    th_groups t = *groups;
    th_status status = t.key_cap && t.group_cap ? TH_YES : TH_FULL;
    int64_t hash[BLOCK];
    size_t at[BLOCK], i = *done;
    bool sound = true;
    while (i < rows->n && status == TH_YES) {
        size_t begin = i, end = i + BLOCK < rows->n ? i + BLOCK : rows->n;
        fetch(&t, rows, i, end, hash, at);
        for (; i < end; i++) {
            int64_t slice = TH_READ(rows->slice + i);
            th_entry *entry = key_entry(&t, rows, i, &hash[i - begin], at[i - begin], &sound);
            if (TH_UNLIKELY(!sound)) {
                status = TH_CORRUPT;
                break;
            }
            if (TH_UNLIKELY(!entry->number)) {
                if (t.keys == t.key_cap) {
                    status = TH_FULL;
                    break;
                }
                t.key[t.keys] = (th_known){hash[i - begin], 0, UINT32_MAX, rows->part, (uint32_t)i};
                *entry = (th_entry){hash[i - begin], 0, (uint32_t)++t.keys};
            }
            uint32_t number = entry->number - 1;
            th_known *key = &t.key[number];
            if (key->slice != slice || key->group == UINT32_MAX) {
                th_entry *found = group_entry(&t, number, slice);
                if (!found->number) {
                    if (t.groups == t.group_cap) {
                        status = TH_FULL;
                        break;
                    }
                    t.group[t.groups] = (th_slice){slice, 0, number};
                    *found = (th_entry){slice, number, (uint32_t)++t.groups};
                }
                key->slice = slice;
                key->group = found->number - 1;
            }
            group[i] = key->group;
            t.group[key->group].rows++;
        }
    }
    *groups = t;
    *done = i;
    return status;
}

void th_groups_undo(th_groups *t, size_t keys, size_t groups, const uint32_t *group, size_t done) {
    for (size_t i = 0; i < done; i++) t->group[group[i]].rows--;
    t->keys = keys;
    t->groups = groups;
    for (size_t i = 0; i < keys; i++) t->key[i].group = UINT32_MAX;
    index_all(t);
}

void th_groups_firsts(const th_groups *t, size_t keys, int64_t *row) {
    for (size_t i = keys; i < t->keys; i++) row[i - keys] = t->key[i].row;
}

void th_groups_order(const uint32_t *group, size_t n, int64_t first, int64_t *next, int64_t *order) {
    for (size_t i = 0; i < n; i++) order[next[group[i]]++] = first + (int64_t)i;
}

th_status th_group_numbers(const int64_t *place, size_t n, size_t places, uint32_t *number_of, size_t *keys,
                           int64_t *number, uint8_t *added) {
    size_t count = *keys;
    th_status status = TH_YES;
    for (size_t i = 0; i < n; i++) {
        uint64_t at = (uint64_t)TH_READ(place + i);
        if (TH_UNLIKELY(at >= places)) {
            status = TH_CORRUPT;
            break;
        }
        added[i] = !number_of[at];
        if (added[i]) number_of[at] = (uint32_t)++count;
        number[i] = (int64_t)number_of[at] - 1;
    }
    *keys = count;
    return status;
}

th_status th_group_ranks(const th_ordered *ordered, uint32_t *seen, uint32_t *rank, size_t *waves) {
    const th_ordered o = *ordered;
    uint32_t most = 0;
    for (size_t i = 0; i < o.n; i++) {
        uint64_t row = (uint64_t)TH_READ(o.row + i), key;
        if (TH_UNLIKELY(row >= o.rows)) return TH_CORRUPT;
        key = (uint64_t)TH_READ(o.number + row);
        if (TH_UNLIKELY(key >= o.keys)) return TH_CORRUPT;
        rank[i] = seen[key]++;
        most = seen[key] > most ? seen[key] : most;
    }
    *waves = most;
    return TH_YES;
}

void th_group_waves(const th_ordered *ordered, const uint32_t *rank, size_t waves, int64_t *stop, int64_t *row,
                    int64_t *number) {
    const th_ordered o = *ordered;
    for (size_t i = 0; i < o.n; i++) stop[rank[i]]++;
    for (size_t k = 0, sum = 0; k < waves; k++) {
        size_t count = (size_t)stop[k];
        stop[k] = (int64_t)sum;
        sum += count;
    }
    for (size_t i = 0; i < o.n; i++) {
        size_t at = (size_t)stop[rank[i]]++;
        uint64_t from = (uint64_t)TH_READ(o.row + i);
        if (TH_UNLIKELY(from >= o.rows)) from = 0; /* it has changed since it was ranked */
        row[at] = (int64_t)from;
        number[at] = o.number[from];
    }
}
