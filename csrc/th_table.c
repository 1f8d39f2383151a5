/* The table of ids. Lines of four entries fill a cache line each. An id is in the first line with a free entry from its
 * home line on, so a search ends at such a line. A removal moves later entries back and leaves no tombstone. Entries
 * move only then, and when the table moves to another block.
 *
 * A free entry has the id 0. The entry of the id 0 itself is in an extra line behind the others, with the id 1; no
 * other id has its home there. */
#include "th_table.h"

#include "th_private.h"

#define LANES 4

_Static_assert(sizeof(th_entry) * LANES == 64, "a line must be a cache line");

/* Lines are at most 3/4 full. */
static size_t lines_of(size_t cap) { return (cap + 2) / 3; }

size_t th_table_size(size_t cap) { return cap ? (lines_of(cap) + 1) * LANES * sizeof(th_entry) : 0; }

void th_table_init(th_table *t, uint64_t seed) {
    *t = (th_table){0};
    th_seed(t->seed, seed);
}

void th_table_place(th_table *t, void *block, size_t cap) {
    t->entry = block;
    t->cap = cap;
    t->lines = lines_of(cap);
}

/* ---- one id ---- */

/* Where to look for an id: the id that its entry has, and its home line. */
typedef struct place {
    int64_t id;
    size_t line;
} place;

TH_INLINE place place_of(const th_table *t, int64_t id) {
    uint64_t hash = th_mix(th_mix((uint64_t)id ^ t->seed[0], t->seed[1]), t->seed[2]);
    size_t home = (size_t)((hash >> 32) * t->lines >> 32); /* ascends with the hash, for any number of lines */
    return id ? (place){id, home} : (place){1, t->lines};
}

/* Returns a mask of the entries of a line with this id, which may be 0. */
TH_INLINE unsigned match(const th_entry *line, int64_t id) {
    return (unsigned)(line[0].id == id) | (unsigned)(line[1].id == id) << 1 | (unsigned)(line[2].id == id) << 2 |
           (unsigned)(line[3].id == id) << 3;
}

/* Finds the entry with an id, or the free entry where it belongs; returns SIZE_MAX if no line has a free entry, which
 * is possible only in a damaged table. */
TH_INLINE size_t search(const th_table *t, place p, bool *found) {
    *found = false;
    for (size_t left = t->lines + 1; left; left--) {
        const th_entry *line = t->entry + LANES * p.line;
        unsigned same = match(line, p.id), free = match(line, 0);
        *found = same != 0;
        if (!TH_UNLIKELY(!(same | free))) return LANES * p.line + th_ctz(same ? same : free);
        if (++p.line >= t->lines) p.line = 0;
    }
    return SIZE_MAX;
}

/* Returns whether an entry of line `at` may move to line `to`, which comes before: its home does not lie between. */
static bool may_move(const th_table *t, size_t entry, size_t at, size_t to) {
    size_t home = place_of(t, t->entry[entry].id).line;
    size_t back = at >= to ? at - to : at + t->lines - to, from_home = at >= home ? at - home : at + t->lines - home;
    return from_home >= back;
}

/* Returns the first entry behind line `to` that may move there, or SIZE_MAX. Only full lines are passed by others. */
static size_t next_to_move(const th_table *t, size_t to) {
    for (size_t at = to + 1 < t->lines ? to + 1 : 0; at != to; at = at + 1 < t->lines ? at + 1 : 0) {
        const th_entry *line = t->entry + LANES * at;
        for (size_t k = 0; k < LANES; k++)
            if (line[k].id && may_move(t, LANES * at + k, at, to)) return LANES * at + k;
        if (match(line, 0)) break;
    }
    return SIZE_MAX;
}

static void free_entry(th_table *t, size_t entry) {
    while (!match(t->entry + entry / LANES * LANES, 0)) { /* entries may have passed this line because it was full */
        size_t next = next_to_move(t, entry / LANES);
        if (next == SIZE_MAX) break;
        t->entry[entry] = t->entry[next];
        entry = next;
    }
    t->entry[entry] = (th_entry){0, 0};
    t->len--;
}

/* ---- many ids ---- */

/* The number of ids whose lines are fetched while the ones before them are used. */
#define AHEAD 32

/* The arguments of a call, each read once, since the caller's memory may change at any time. */
typedef struct ids {
    th_column id;
    size_t n;
    place ahead[2 * AHEAD];
} ids;

TH_INLINE void fetch(const th_table *t, ids *r, size_t i) {
    for (size_t end = i + AHEAD < r->n ? i + AHEAD : r->n; i < end; i++) {
        place p = r->ahead[i % (2 * AHEAD)] = place_of(t, th_at(r->id, i));
        TH_PREFETCH(t->entry + LANES * p.line);
    }
}

/* Must be called for each argument in sequence. */
TH_INLINE place next(const th_table *t, ids *r, size_t i) {
    if (i % AHEAD == 0) {
        if (i == 0) fetch(t, r, 0);
        fetch(t, r, i + AHEAD);
    }
    return r->ahead[i % (2 * AHEAD)];
}

void th_table_find_many(const th_table *t, th_column id, size_t n, int64_t *value, uint8_t *found) {
    ids r = {.id = id, .n = n};
    if (!t->len) {
        memset(found, 0, n);
        memset(value, 0, n * sizeof *value);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        bool there;
        size_t entry = search(t, next(t, &r, i), &there);
        found[i] = there;
        value[i] = there ? t->entry[entry].value : 0;
    }
}

/* Takes back the first n puts, last to first. No entry has moved since, so freeing an entry that was added restores its
 * line. */
static void undo_puts(th_table *t, size_t n, const uint8_t *added, th_undo undo) {
    while (n--) {
        t->entry[undo.entry[n]].value = undo.value[n];
        if (added[n]) {
            t->entry[undo.entry[n]].id = 0;
            t->len--;
        }
    }
}

th_status th_table_put_many(th_table *t, th_column id, th_column value, size_t n, uint8_t *added, th_undo undo,
                            size_t *need) {
    ids r = {.id = id, .n = n};
    size_t i = 0;
    for (; i < n && t->cap; i++) {
        bool there;
        place p = next(t, &r, i);
        size_t entry = search(t, p, &there);
        if (TH_UNLIKELY(entry == SIZE_MAX || (!there && t->len == t->cap))) break;
        undo.entry[i] = (uint32_t)entry;
        undo.value[i] = t->entry[entry].value;
        added[i] = !there;
        t->len += !there;
        t->entry[entry] = (th_entry){p.id, th_at(value, i)};
    }
    if (i == n) return TH_YES;
    *need = t->len + n - i;
    undo_puts(t, i, added, undo);
    return TH_FULL;
}

void th_table_remove_many(th_table *t, th_column id, size_t n, int64_t *value, uint8_t *removed) {
    ids r = {.id = id, .n = n};
    if (!t->len) {
        memset(removed, 0, n);
        memset(value, 0, n * sizeof *value);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        bool there;
        size_t entry = search(t, next(t, &r, i), &there);
        removed[i] = there;
        value[i] = there ? t->entry[entry].value : 0;
        if (there) free_entry(t, entry);
    }
}

/* ---- all ids ---- */

/* Entries that were fetched ahead and are to be entered in another block. */
typedef struct movers {
    size_t n;
    place to[AHEAD];
    int64_t value[AHEAD];
} movers;

static void enter(th_table *t, movers *m) {
    for (size_t k = 0; k < m->n; k++) {
        bool there;
        t->entry[search(t, m->to[k], &there)] = (th_entry){m->to[k].id, m->value[k]};
    }
    t->len += m->n;
    m->n = 0;
}

th_status th_table_move(th_table *t, void *block, size_t cap, uint64_t seed) {
    th_table to;
    movers m = {.n = 0};
    th_table_init(&to, seed);
    th_table_place(&to, block, cap);
    if (cap) memset(block, 0, th_table_size(cap));
    for (size_t i = 0, end = t->cap ? LANES * (t->lines + 1) : 0; i < end; i++) {
        th_entry e = t->entry[i];
        if (!e.id) continue;
        if (to.len + m.n == t->len) return TH_CORRUPT;
        place p = m.to[m.n] = place_of(&to, i < LANES * t->lines ? e.id : 0);
        m.value[m.n++] = e.value;
        TH_PREFETCH(to.entry + LANES * p.line);
        if (m.n == AHEAD) enter(&to, &m);
    }
    enter(&to, &m);
    if (to.len != t->len) return TH_CORRUPT;
    *t = to;
    return TH_YES;
}

size_t th_table_items(const th_table *t, int64_t *id, int64_t *value) {
    size_t n = 0;
    for (size_t i = 0, end = t->cap ? LANES * (t->lines + 1) : 0; i < end && n < t->len; i++) {
        id[n] = i < LANES * t->lines ? t->entry[i].id : 0; /* without a branch: a free entry is overwritten */
        if (value) value[n] = t->entry[i].value;
        n += t->entry[i].id != 0;
    }
    return n;
}

/* ---- invariants ---- */

/* Adds the number of used entries of a line to *used; returns whether a search for each of their ids ends there. */
static bool line_is_sound(const th_table *t, size_t at, size_t *used) {
    for (size_t i = LANES * at; i < LANES * (at + 1); i++) {
        bool there;
        if (!t->entry[i].id) continue;
        if (search(t, place_of(t, at < t->lines ? t->entry[i].id : 0), &there) != i) return false;
        ++*used;
    }
    return true;
}

bool th_table_plausible(const th_table *t) {
    size_t used = 0, step = t->lines / AHEAD + 1;
    if (!t->cap) return !t->len;
    for (size_t at = 0; at < t->lines; at += step)
        if (!line_is_sound(t, at, &used)) return false;
    return line_is_sound(t, t->lines, &used) && used <= t->len && (step > 1 || used == t->len);
}

th_status th_table_check(const th_table *t) {
    size_t used = 0;
    if (t->len > t->cap || t->cap > TH_TABLE_MAX || t->lines != lines_of(t->cap)) return TH_CORRUPT;
    for (size_t at = 0; t->cap && at <= t->lines; at++)
        if (!line_is_sound(t, at, &used)) return TH_CORRUPT;
    return used == t->len ? TH_YES : TH_CORRUPT;
}
