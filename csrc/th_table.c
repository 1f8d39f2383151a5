/* The table of ids. Four entries fill a line, which is a cache line. An id is in the first line with a free entry from
 * its home line on, so a search ends at such a line. A removal moves a later entry back and leaves no tombstone.
 * Entries move only then, and when the table moves to another block.
 *
 * A free entry has the id 0. The entry of the id 0 itself is in an extra line behind the others, with the id 1; no
 * other id has its home there. */
#include "th_table.h"

#include "th_private.h"

_Static_assert(sizeof(th_ids) == TH_LINE, "a line must be a cache line");

/* Lines are at most 5/8 full: a fuller table passes more lines, and a branch for a full line is mispredicted. */
static size_t lines_of(size_t cap) { return (2 * cap + 4) / 5; }

size_t th_table_size(size_t cap) { return cap ? (lines_of(cap) + 1) * sizeof(th_ids) : 0; }

void th_table_init(th_table *t, uint64_t seed) {
    *t = (th_table){0};
    th_seed(t->seed, seed);
}

void th_table_place(th_table *t, void *block, size_t cap) {
    t->line = block;
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

/* Returns a mask with bit 2k for each entry k of a line that has this id, and bit 2k + 8 for each free one. */
TH_INLINE unsigned match(const th_ids *line, int64_t id) {
#if TH_SSE2
    __m128i low = _mm_load_si128((const __m128i *)line->id), high = _mm_load_si128((const __m128i *)line->id + 1);
    __m128i wanted = _mm_set1_epi64x(id), none = _mm_setzero_si128();
    __m128i same = _mm_packs_epi32(_mm_cmpeq_epi32(low, wanted), _mm_cmpeq_epi32(high, wanted));
    __m128i free = _mm_packs_epi32(_mm_cmpeq_epi32(low, none), _mm_cmpeq_epi32(high, none));
    unsigned halves = (unsigned)_mm_movemask_epi8(_mm_packs_epi16(same, free));
    return halves & halves >> 1 & 0x5555;
#else
    unsigned m = 0;
    for (unsigned k = 0; k < TH_IDS; k++)
        m |= (unsigned)(line->id[k] == id) << 2 * k | (unsigned)(line->id[k] == 0) << (2 * k + 8);
    return m;
#endif
}

/* An entry with an id, or the free entry where the id belongs. */
typedef struct spot {
    size_t line; /* SIZE_MAX if no line has a free entry, which is possible only in a damaged table */
    unsigned lane;
    bool found;
} spot;

TH_INLINE spot spot_in(size_t line, unsigned matches) {
    unsigned first = th_ctz(matches);
    return (spot){line, first >> 1 & 3, first < 8};
}

/* Continues a search behind a full line. */
static spot search_on(const th_table *t, place p) {
    for (size_t left = t->lines; left; left--) {
        if (++p.line >= t->lines) p.line = 0;
        unsigned m = match(&t->line[p.line], p.id);
        if (m) return spot_in(p.line, m);
    }
    return (spot){SIZE_MAX, 0, false};
}

TH_INLINE spot search(const th_table *t, place p) {
    unsigned m = match(&t->line[p.line], p.id);
    return TH_UNLIKELY(!m) ? search_on(t, p) : spot_in(p.line, m);
}

static bool full(const th_ids *line) { return !(match(line, 1) >> 8); }

/* Returns whether an id of line `at` may move to line `to`, which comes before: its home does not lie between. */
static bool may_move(const th_table *t, int64_t id, size_t at, size_t to) {
    size_t home = place_of(t, id).line;
    size_t back = at >= to ? at - to : at + t->lines - to, from_home = at >= home ? at - home : at + t->lines - home;
    return from_home >= back;
}

/* Returns the first entry behind the full line `to` that may move there, if one is found. */
static spot next_to_move(const th_table *t, size_t to) {
    for (size_t at = to + 1 < t->lines ? to + 1 : 0; at != to; at = at + 1 < t->lines ? at + 1 : 0) {
        const th_ids *line = &t->line[at];
        for (unsigned k = 0; k < TH_IDS; k++)
            if (line->id[k] && may_move(t, line->id[k], at, to)) return (spot){at, k, true};
        if (!full(line)) break; /* no entry has passed this line */
    }
    return (spot){to, 0, false};
}

static void free_entry(th_table *t, spot s) {
    while (full(&t->line[s.line])) { /* other entries may have passed this line */
        spot next = next_to_move(t, s.line);
        if (!next.found) break;
        t->line[s.line].id[s.lane] = t->line[next.line].id[next.lane];
        t->line[s.line].value[s.lane] = t->line[next.line].value[next.lane];
        s = next;
    }
    t->line[s.line].id[s.lane] = 0;
    t->len--;
}

/* ---- many ids ---- */

/* The number of ids whose lines are fetched while the ids before them are used. */
#define AHEAD 32

/* Reads the arguments [i, i + AHEAD), each once, since the caller's memory may change at any time. */
TH_INLINE void fetch(const th_table *t, th_column id, size_t i, size_t n, place *places) {
    for (size_t end = i + AHEAD < n ? i + AHEAD : n; i < end; i++) {
        place p = *places++ = place_of(t, th_at(id, i));
        TH_PREFETCH(&t->line[p.line]);
    }
}

/* Finds n ids and, where this is inlined with `remove`, removes them; returns the number of ids in the table. */
TH_INLINE size_t find_many(const th_table *table, th_column id, size_t n, int64_t *value, uint8_t *found, bool remove) {
    th_table t = *table; /* a copy stays in registers, since stores to bytes may alias any memory */
    place places[2][AHEAD];
    if (!t.len) {
        memset(found, 0, n);
        memset(value, 0, n * sizeof *value);
        return 0;
    }
    fetch(&t, id, 0, n, places[0]);
    for (size_t i = 0; i < n;) {
        const place *p = places[i / AHEAD % 2];
        fetch(&t, id, i + AHEAD, n, places[i / AHEAD % 2 ^ 1]);
        for (size_t end = i + AHEAD < n ? i + AHEAD : n; i < end; i++, p++) {
            spot s = search(&t, *p);
            found[i] = s.found;
            value[i] = s.found ? t.line[s.line].value[s.lane] : 0;
            if (remove && s.found) free_entry(&t, s);
        }
    }
    return t.len;
}

void th_table_find_many(const th_table *table, th_column id, size_t n, int64_t *value, uint8_t *found) {
    find_many(table, id, n, value, found, false);
}

void th_table_remove_many(th_table *table, th_column id, size_t n, int64_t *value, uint8_t *removed) {
    table->len = find_many(table, id, n, value, removed, true);
}

/* Takes back the first n puts, last to first. Entries do not move, so this restores each line as it was. */
static void undo_puts(th_table *t, size_t n, const uint8_t *added, th_undo undo) {
    while (n--) {
        th_ids *line = &t->line[undo.entry[n] / TH_IDS];
        line->value[undo.entry[n] % TH_IDS] = undo.value[n];
        if (!added[n]) continue;
        line->id[undo.entry[n] % TH_IDS] = 0;
        t->len--;
    }
}

/* Counts the ids from i on that are absent, of which i is one. */
static size_t count_absent(const th_table *t, th_column id, size_t i, size_t n) {
    size_t absent = 1;
    while (++i < n) absent += !search(t, place_of(t, th_at(id, i))).found;
    return absent;
}

th_status th_table_put_many(th_table *table, th_column id, th_column value, size_t n, uint8_t *added, th_undo undo,
                            size_t *need) {
    th_table t = *table;
    place places[2][AHEAD];
    if (t.cap) fetch(&t, id, 0, n, places[0]);
    for (size_t i = 0; i < n;) {
        const place *p = places[i / AHEAD % 2];
        if (t.cap) fetch(&t, id, i + AHEAD, n, places[i / AHEAD % 2 ^ 1]);
        for (size_t end = i + AHEAD < n ? i + AHEAD : n; i < end; i++, p++) {
            spot s = t.cap ? search(&t, *p) : (spot){SIZE_MAX, 0, false};
            if (TH_UNLIKELY(s.line == SIZE_MAX || (!s.found && t.len == t.cap))) {
                *need = t.len + (t.cap ? count_absent(&t, id, i, n) : n);
                undo_puts(&t, i, added, undo);
                return TH_FULL;
            }
            th_ids *line = &t.line[s.line];
            undo.entry[i] = (uint32_t)(s.line * TH_IDS + s.lane);
            undo.value[i] = line->value[s.lane];
            added[i] = !s.found;
            t.len += !s.found;
            line->id[s.lane] = p->id;
            line->value[s.lane] = th_at(value, i);
        }
    }
    table->len = t.len;
    return TH_YES;
}

void th_table_number_many(th_table *table, th_column id, size_t n, int64_t *number, int64_t *ids) {
    th_table t = *table;
    place places[2][AHEAD];
    if (n) fetch(&t, id, 0, n, places[0]);
    for (size_t i = 0; i < n;) {
        const place *p = places[i / AHEAD % 2];
        fetch(&t, id, i + AHEAD, n, places[i / AHEAD % 2 ^ 1]);
        for (size_t end = i + AHEAD < n ? i + AHEAD : n; i < end; i++, p++) {
            spot s = search(&t, *p);
            th_ids *line = &t.line[s.line];
            if (!s.found) {
                line->id[s.lane] = p->id;
                line->value[s.lane] = (int64_t)t.len;
                ids[t.len++] = p->line < t.lines ? p->id : 0;
            }
            number[i] = line->value[s.lane];
        }
    }
    table->len = t.len;
}

/* ---- all ids ---- */

/* The number of lines of a block, with that of the id 0. */
static size_t all_lines(const th_table *t) { return t->cap ? t->lines + 1 : 0; }

/* The id of an entry, which is in use. */
TH_INLINE int64_t id_of(const th_table *t, size_t line, unsigned lane) {
    return line < t->lines ? t->line[line].id[lane] : 0;
}

/* Entries on their way to another block. */
typedef struct movers {
    size_t n;
    int64_t id[AHEAD + TH_IDS], value[AHEAD + TH_IDS];
} movers;

/* Enters ids that are absent. */
static void enter(th_table *t, movers *m) {
    place places[AHEAD + TH_IDS];
    for (size_t k = 0; k < m->n; k++) {
        places[k] = place_of(t, m->id[k]);
        TH_PREFETCH(&t->line[places[k].line]);
    }
    for (size_t k = 0; k < m->n; k++) {
        spot s = search(t, places[k]);
        t->line[s.line].id[s.lane] = places[k].id;
        t->line[s.line].value[s.lane] = m->value[k];
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
    for (size_t i = 0; i < all_lines(t); i++) {
        for (unsigned k = 0; k < TH_IDS; k++) { /* without a branch: a free entry is overwritten by the next one */
            m.id[m.n] = id_of(t, i, k);
            m.value[m.n] = t->line[i].value[k];
            m.n += t->line[i].id[k] != 0;
        }
        if (to.len + m.n > t->len) return TH_CORRUPT;
        if (m.n >= AHEAD) enter(&to, &m);
    }
    enter(&to, &m);
    if (to.len != t->len) return TH_CORRUPT;
    *t = to;
    return TH_YES;
}

size_t th_table_items(const th_table *t, int64_t *id, int64_t *value) {
    size_t n = 0;
    for (size_t i = 0; i < all_lines(t); i++) {
        for (unsigned k = 0; k < TH_IDS && n < t->len; k++) { /* here, too */
            id[n] = id_of(t, i, k);
            if (value) value[n] = t->line[i].value[k];
            n += t->line[i].id[k] != 0;
        }
    }
    return n;
}

/* ---- invariants ---- */

/* Adds the number of entries in use of a line to *used; returns whether a search finds each of them. */
static bool sound(const th_table *t, size_t line, size_t *used) {
    for (unsigned k = 0; k < TH_IDS; k++) {
        if (!t->line[line].id[k]) continue;
        spot s = search(t, place_of(t, id_of(t, line, k)));
        if (!s.found || s.line != line || s.lane != k) return false;
        ++*used;
    }
    return true;
}

th_status th_table_check(const th_table *t) {
    size_t used = 0;
    if (t->len > t->cap || t->cap > TH_TABLE_MAX || t->lines != lines_of(t->cap)) return TH_CORRUPT;
    for (size_t i = 0; i < all_lines(t); i++)
        if (!sound(t, i, &used)) return TH_CORRUPT;
    return used == t->len ? TH_YES : TH_CORRUPT;
}

/* Small tables are checked completely. In a large one, most ids of any few lines are in their home lines. */
bool th_table_plausible(const th_table *t) {
    if (t->lines <= AHEAD) return th_table_check(t) == TH_YES;
    size_t used = 0, at_home = 0, step = t->lines / AHEAD;
    for (size_t i = 0; i < t->lines; i += step) {
        for (unsigned k = 0; k < TH_IDS; k++) {
            int64_t id = t->line[i].id[k];
            used += id != 0;
            at_home += id && place_of(t, id).line == i;
        }
    }
    const int64_t *zero = t->line[t->lines].id;
    return at_home >= used - at_home && (used || t->len < t->lines) && !(zero[0] >> 1 | zero[1] | zero[2] | zero[3]);
}
