/* Compares runs with unsorted arrays after random merges; damages, cuts off and forges each page; and lets reads and
 * writes be short, interrupted or refused. */
#include "testing.h"
#include "th_run_private.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

/* ---- files ---- */

static size_t reads_left = SIZE_MAX, writes_left = SIZE_MAX; /* until one is refused */

/* Returns how much of a transfer happens: often less than all, or none, with an interrupt. */
static long some(size_t size) {
    if (!below(16)) {
        errno = EINTR;
        return -1;
    }
    return (long)(below(4) ? size : 1 + below(size));
}

long faulty_pread(int fd, void *p, unsigned long size, long at) {
    long n = some(size);
    if (reads_left != SIZE_MAX && !reads_left--) {
        reads_left = SIZE_MAX;
        errno = EIO;
        return -1;
    }
    return n < 0 ? n : pread(fd, p, (size_t)n, at);
}

long faulty_pwrite(int fd, const void *p, unsigned long size, long at) {
    long n = some(size);
    if (writes_left != SIZE_MAX && !writes_left--) {
        writes_left = SIZE_MAX;
        errno = ENOSPC;
        return -1;
    }
    return n < 0 ? n : pwrite(fd, p, (size_t)n, at);
}

/* ---- the model ---- */

#define MOST 3000
#define TIMES 3

typedef struct record {
    int64_t id, ts[TIMES];
    size_t size, times;
    uint8_t byte; /* all of it */
} record;

typedef struct run {
    th_run r;
    record model[MOST]; /* by number */
    size_t n;
    uint8_t *dead;
} run;

static int by_id(const void *a, const void *b) {
    int64_t x = ((const record *)a)->id, y = ((const record *)b)->id;
    return (x > y) - (x < y);
}

typedef struct one_time {
    int64_t ts;
    uint32_t of;
} one_time;

static int by_time(const void *a, const void *b) {
    const one_time *x = a, *y = b;
    return x->ts != y->ts ? (x->ts > y->ts) - (x->ts < y->ts) : (x->of > y->of) - (x->of < y->of);
}

static size_t times_of(const record *records, size_t n, one_time *times) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < records[i].times; k++) times[count++] = (one_time){records[i].ts[k], (uint32_t)i};
    qsort(times, count, sizeof *times, by_time);
    return count;
}

/* The records as they are passed. */
typedef struct passed {
    th_run_input in;
    int64_t *id, *end, *ts;
    uint32_t *of;
    uint8_t *data;
} passed;

static passed pass(const record *records, size_t n) {
    static one_time times[TIMES * MOST];
    size_t used = 0, size = 0;
    for (size_t i = 0; i < n; i++) size += records[i].size;
    passed p = {.id = memory(8 * n), .end = memory(8 * n), .data = memory(size)};
    for (size_t i = 0; i < n; i++) {
        if (records[i].size) memset(p.data + used, records[i].byte, records[i].size);
        p.id[i] = records[i].id, p.end[i] = (int64_t)(used += records[i].size);
    }
    size_t count = times_of(records, n, times);
    p.ts = memory(8 * count), p.of = memory(4 * count);
    for (size_t k = 0; k < count; k++) p.ts[k] = times[k].ts, p.of[k] = times[k].of;
    p.in = (th_run_input){n, count, p.id, p.end, p.data, p.ts, p.of};
    return p;
}

static void free_passed(passed p) { free(p.id), free(p.end), free(p.data), free(p.ts), free(p.of); }

static void lend_index(th_run *r, size_t record_pages, size_t time_pages) {
    r->first_id = memory(8 * record_pages), r->first_number = memory(4 * record_pages);
    r->first_ts = memory(8 * time_pages);
}

static void free_index(th_run *r) { free(r->first_id), free(r->first_number), free(r->first_ts); }

static void free_run(run *x) { free_index(&x->r), free(x->dead), free(x); }

/* Merges into the file of `to`, whose place and seed are set. */
static th_run_status merge(th_run *to, const run *from, int64_t low, int64_t high, const record *more, size_t n) {
    passed p = pass(more, n);
    size_t record_pages, time_pages;
    const th_run *before = from ? &from->r : NULL;
    th_run_scratch s = {memory(TH_RUN_CHUNK * TH_RUN_PAGE), memory(TH_RUN_CHUNK * TH_RUN_PAGE),
                        memory(from ? 4 * before->records : 1), memory(4 * n)};
    size_t size = p.in.n ? (size_t)p.in.end[p.in.n - 1] : 0;
    th_run_most_pages(before, p.in.n, size, p.in.times, &record_pages, &time_pages);
    lend_index(to, record_pages, time_pages);
    th_run_status status = th_run_merge(to, before, from ? from->dead : NULL, low, high, &p.in, &s);
    CHECK(to->record_pages <= record_pages && to->time_pages <= time_pages);
    free(s.in), free(s.out), free(s.old), free(s.added);
    free_passed(p);
    return status;
}

/* Opens a run again, as another process does. */
static void reopen(th_run *r) {
    th_run opened = *r;
    lend_index(&opened, r->record_pages, r->time_pages);
    CHECK(th_run_open(&opened) == TH_RUN_DONE);
    free_index(r);
    *r = opened;
}

static bool is_dead(const run *x, size_t number) { return th_is_dead(x->dead, number); }

static run *new_run(int fd, uint64_t at) {
    run *x = memory(sizeof *x);
    *x = (run){.r = {.fd = fd, .at = at, .seed = next()}};
    return x;
}

/* Returns the run of what `from` has between the bounds, and more. */
static run *merged(int fd, uint64_t at, const run *from, int64_t low, int64_t high, const record *more, size_t n) {
    run *x = new_run(fd, at);
    CHECK(merge(&x->r, from, low, high, more, n) == TH_RUN_DONE);
    for (size_t i = 0; from && i < from->n; i++)
        if (!is_dead(from, i) && from->model[i].id >= low && from->model[i].id <= high)
            x->model[x->n++] = from->model[i];
    CHECK(x->n + n <= MOST);
    if (n) memcpy(x->model + x->n, more, n * sizeof *more);
    qsort(x->model, x->n += n, sizeof *x->model, by_id);
    CHECK(x->r.records == x->n);
    x->dead = memory(x->n / 8 + 1);
    memset(x->dead, 0, x->n / 8 + 1);
    reopen(&x->r);
    return x;
}

static int64_t any_id(void) {
    static const int64_t extremes[] = {INT64_MIN, INT64_MAX, 0, -1};
    return below(50) ? (int64_t)next() : extremes[below(4)];
}

/* Draws records of different ids that are not alive in a run. */
static size_t draw(const run *x, record *records, size_t n) {
    size_t longest = below(3) ? 40 : TH_RUN_LONGEST, kept = 0;
    for (size_t i = 0; i < n; i++) {
        record y = {.id = any_id(), .size = below(8) ? below(longest) : TH_RUN_LONGEST, .byte = (uint8_t)next()};
        if (x && x->n && below(2)) y.id = x->model[below(x->n)].id; /* which may have died */
        y.times = below(TIMES + 1);
        for (size_t k = 0; k < y.times; k++) y.ts[k] = below(9) ? (int64_t)below(500) : any_id();
        records[i] = y;
    }
    qsort(records, n, sizeof *records, by_id);
    for (size_t i = 0; i < n; i++) {
        bool there = kept && records[kept - 1].id == records[i].id;
        for (size_t k = 0; x && k < x->n && !there; k++) there = x->model[k].id == records[i].id && !is_dead(x, k);
        if (!there) records[kept++] = records[i];
    }
    return kept;
}

/* ---- reading, compared with the model ---- */

static th_taken room_for(size_t n) {
    return (th_taken){.n = n, .number = memory(8 * n), .id = memory(8 * n), .end = memory(8 * n)};
}

static void free_taken(th_taken t) { free(t.number), free(t.id), free(t.end), free(t.data); }

/* Repeats a call with more memory until it has all. */
static th_run_status taken(const th_run *r, const uint8_t *dead, th_taken *t, bool by_id_) {
    th_run_status status;
    while ((status = by_id_ ? th_run_find(r, dead, t) : th_run_gather(r, t)) == TH_RUN_FULL) {
        uint8_t *more = memory(t->room = t->used + TH_RUN_LONGEST + below(5000));
        if (t->used) memcpy(more, t->data, t->used);
        free(t->data);
        t->data = more;
    }
    return status;
}

static void same_record(const th_taken *t, size_t i, const record *y) {
    size_t start = i ? (size_t)t->end[i - 1] : 0;
    CHECK((size_t)t->end[i] - start == (y ? y->size : 0));
    for (size_t k = start; k < (size_t)t->end[i]; k++) CHECK(t->data[k] == y->byte);
}

static int by_int64(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Looks up many ids. Damage must be noticed, or make no difference. */
static th_run_status find(const run *x, size_t n) {
    th_taken t = room_for(n);
    for (size_t i = 0; i < n; i++) t.id[i] = x->n && below(4) ? x->model[below(x->n)].id : any_id();
    qsort(t.id, n, 8, by_int64);
    th_run_status status = taken(&x->r, x->dead, &t, true);
    for (size_t i = 0; i < t.done; i++) {
        const record key = {.id = t.id[i]}, *y = x->n ? bsearch(&key, x->model, x->n, sizeof key, by_id) : NULL;
        bool there = y && !is_dead(x, (size_t)(y - x->model));
        CHECK(t.number[i] == (there ? y - x->model : -1));
        same_record(&t, i, there ? y : NULL);
    }
    free_taken(t);
    return status;
}

static th_run_status gather(const run *x, size_t n) {
    th_taken t = room_for(x->n ? n : 0);
    for (size_t i = 0; i < t.n; i++) t.number[i] = (int64_t)below(x->n);
    qsort(t.number, t.n, 8, by_int64);
    th_run_status status = taken(&x->r, NULL, &t, false);
    for (size_t i = 0; i < t.done; i++) {
        CHECK(t.id[i] == x->model[t.number[i]].id);
        same_record(&t, i, &x->model[t.number[i]]);
    }
    free_taken(t);
    return status;
}

/* Takes what is due at two times, the second from where the first has ended, with little room. */
static th_run_status due(const run *x) {
    static one_time times[TIMES * MOST];
    int64_t ts[7], number[7], bounds[2] = {(int64_t)below(500), below(4) ? (int64_t)below(1000) : INT64_MAX};
    th_due_times d = {.ts = ts, .number = number, .room = 7};
    size_t at = 0, count = times_of(x->model, x->n, times);
    for (int k = 0; k < 2; k++) {
        th_run_status status;
        do {
            status = th_run_due(&x->r, x->dead, bounds[k], &d);
            for (size_t i = 0; i < d.n; i++, at++) {
                while (at < count && is_dead(x, times[at].of)) at++;
                CHECK(at < count && ts[i] == times[at].ts && number[i] == times[at].of && ts[i] <= bounds[k]);
            }
        } while (status == TH_RUN_FULL);
        if (status != TH_RUN_DONE) return status;
        while (at < count && is_dead(x, times[at].of)) at++;
        CHECK(at == count || times[at].ts > bounds[k]);
    }
    return TH_RUN_DONE;
}

static th_run_status check(const run *x) {
    uint8_t *buffer = memory(TH_RUN_CHUNK * TH_RUN_PAGE);
    th_run_status status = th_run_check(&x->r, buffer);
    free(buffer);
    return status;
}

static void same(const run *x) {
    CHECK(check(x) == TH_RUN_DONE);
    CHECK(find(x, below(200)) == TH_RUN_DONE && gather(x, below(200)) == TH_RUN_DONE && due(x) == TH_RUN_DONE);
}

static void kill_some(run *x) {
    for (size_t i = 0, step = 1 + below(20); i < x->n; i += 1 + below(step)) x->dead[i / 8] |= (uint8_t)(1 << i % 8);
}

/* ---- the tests ---- */

static int new_file(void) {
    FILE *file = tmpfile();
    CHECK(file);
    int fd = dup(fileno(file));
    fclose(file);
    CHECK(fd >= 0);
    return fd;
}

static void random_merges(size_t steps) {
    static record more[MOST];
    int fd = new_file();
    run *x = merged(fd, 0, NULL, INT64_MIN, INT64_MAX, more, draw(NULL, more, below(300)));
    for (size_t step = 0; step < steps; step++) {
        uint64_t behind = x->r.at + TH_RUN_PAGE * th_run_pages(&x->r);
        same(x);
        kill_some(x);
        same(x);
        if (below(4)) {
            size_t n = draw(x, more, below(1 + (MOST - x->n) / 4));
            run *y = merged(fd, below(2) ? behind : behind + 100, x, INT64_MIN, INT64_MAX, more, n);
            free_run(x);
            x = y;
        } else { /* in two, of which one goes on */
            int64_t bound = x->n ? x->model[below(x->n)].id : 0;
            run *y = merged(fd, behind, x, INT64_MIN, bound, NULL, 0);
            same(y);
            run *z = bound == INT64_MAX ? NULL : merged(fd, behind, x, bound + 1, INT64_MAX, NULL, 0);
            if (z) CHECK(check(y) == TH_RUN_DAMAGED || !y->n || !z->n); /* z is where y was */
            free_run(x), free_run(y);
            x = z ? z : new_run(fd, 0);
            if (!z) x->dead = memory(1), x->dead[0] = 0;
        }
    }
    free_run(x);
    close(fd);
}

/* A run of some pages of each kind. */
static run *small(int fd) {
    static record more[MOST];
    size_t n;
    do n = draw(NULL, more, 400);
    while (n < 300);
    return merged(fd, 0, NULL, INT64_MIN, INT64_MAX, more, n);
}

/* What has been damaged is noticed by whoever reads it, and makes no difference to the others. */
static void notices(const run *x) {
    th_run to = {.fd = new_file(), .seed = next()};
    CHECK(check(x) == TH_RUN_DAMAGED);
    th_run_status found[] = {find(x, 50), gather(x, 50), due(x), merge(&to, x, INT64_MIN, INT64_MAX, NULL, 0)};
    for (int k = 0; k < 4; k++) CHECK(found[k] == TH_RUN_DONE || found[k] == TH_RUN_DAMAGED);
    free_index(&to);
    close(to.fd);
}

static void damaged_pages(void) {
    int fd = new_file();
    run *x = small(fd);
    uint8_t page[TH_RUN_PAGE], other[TH_RUN_PAGE];
    for (size_t k = 0; k < th_run_pages(&x->r); k++) {
        off_t at = (off_t)(k * TH_RUN_PAGE);
        CHECK(pread(fd, page, sizeof page, at) == sizeof page);
        for (int bit = 0; bit < 8; bit++) {
            size_t byte = bit < 4 ? below(TH_RUN_HEADER) : below(TH_RUN_PAGE);
            memcpy(other, page, sizeof page);
            other[byte] ^= (uint8_t)(1 << bit);
            CHECK(pwrite(fd, other, sizeof page, at) == sizeof page);
            notices(x);
        }
        memset(other, 0, sizeof page); /* lost */
        CHECK(pwrite(fd, other, sizeof page, at) == sizeof page);
        notices(x);
        size_t there = k ? k - 1 : k + 1; /* of another place */
        CHECK(pread(fd, other, sizeof page, (off_t)(there * TH_RUN_PAGE)) == sizeof page);
        CHECK(pwrite(fd, other, sizeof page, at) == sizeof page);
        notices(x);
        CHECK(pwrite(fd, page, sizeof page, at) == sizeof page);
    }
    CHECK(check(x) == TH_RUN_DONE);
    for (size_t k = th_run_pages(&x->r); k--;) {
        CHECK(!ftruncate(fd, (off_t)(k * TH_RUN_PAGE + below(TH_RUN_PAGE))));
        notices(x);
    }
    free_run(x);
    close(fd);
}

/* Pages that nobody has written, with the right checksums: all accesses are within bounds. */
static void forged_pages(void) {
    int fd = new_file();
    run *x = small(fd);
    uint8_t page[TH_RUN_PAGE], other[TH_RUN_PAGE];
    for (size_t step = 0; step < 200; step++) {
        size_t k = below(th_run_pages(&x->r));
        CHECK(pread(fd, page, sizeof page, (off_t)(k * TH_RUN_PAGE)) == sizeof page);
        memcpy(other, page, sizeof page);
        for (size_t n = 1 + below(4); n--;) other[8 + below(below(2) ? 60 : TH_RUN_PAGE - 8)] = (uint8_t)next();
        CHECK(th_pages_write(&x->r, k, 1, other) == TH_RUN_DONE);
        th_run opened = x->r, to = {.fd = new_file(), .seed = next()};
        lend_index(&opened, x->r.record_pages, x->r.time_pages);
        if (th_run_open(&opened) == TH_RUN_DONE) {
            run y = {.r = opened};
            th_taken t = room_for(x->n), u = room_for(x->n);
            for (size_t i = 0; i < x->n; i++) t.id[i] = x->model[i].id, u.number[i] = (int64_t)i;
            taken(&opened, NULL, &t, true), taken(&opened, NULL, &u, false);
            int64_t ts[9], number[9];
            th_due_times d = {.ts = ts, .number = number, .room = 9};
            th_run_due(&opened, NULL, 400, &d);
            check(&y), merge(&to, &y, INT64_MIN, INT64_MAX, NULL, 0);
            free_taken(t), free_taken(u), free_index(&to);
        }
        free_index(&opened), close(to.fd);
        CHECK(th_pages_write(&x->r, k, 1, page) == TH_RUN_DONE);
    }
    free_run(x);
    close(fd);
}

static void exchange(int64_t *x, int64_t *y) {
    int64_t other = *x;
    *x = *y, *y = other;
}

/* An index whose entries are not in order, or whose counts are not those of the run. */
static void forged_indexes(void) {
    int fd = new_file();
    run *x = small(fd);
    size_t start = x->r.record_pages + x->r.time_pages, n = th_index_size(&x->r);
    CHECK(x->r.record_pages > 2 && x->r.time_pages > 1 && n <= TH_INDEX_PART);
    for (int kind = 0; kind < 6; kind++) {
        th_run forged = x->r;
        uint32_t *number = forged.first_number, before = number[1];
        if (kind == 0) exchange(&forged.first_id[0], &forged.first_id[1]);
        if (kind == 1) exchange(&forged.first_ts[0], &forged.first_ts[1]);
        if (kind == 2) number[1] = number[2];
        if (kind == 3) number[0] = 1;
        if (kind == 4) forged.records = number[forged.record_pages - 1];
        if (kind == 5) forged.times += TH_RUN_TIMES;
        uint8_t page[TH_RUN_PAGE] = {0};
        th_page_begin(page, TH_INDEX_PAGE, 0, n);
        th_index_bytes(&x->r, 0, n, page + TH_RUN_HEADER, true);
        CHECK(th_pages_write(&x->r, start, 1, page) == TH_RUN_DONE);
        CHECK(th_run_open(&forged) == TH_RUN_DAMAGED);
        if (kind == 0) exchange(&forged.first_id[0], &forged.first_id[1]);
        if (kind == 1) exchange(&forged.first_ts[0], &forged.first_ts[1]);
        number[0] = 0, number[1] = before;
    }
    free_run(x);
    close(fd);
}

/* Each write and each read is refused once. */
static void refusals(void) {
    int fd = new_file();
    run *x = small(fd);
    for (size_t k = 0, done = false; !done; k++) {
        th_run to = {.fd = fd, .at = TH_RUN_PAGE * th_run_pages(&x->r), .seed = next()};
        writes_left = k;
        th_run_status status = merge(&to, x, INT64_MIN, INT64_MAX, NULL, 0);
        done = writes_left != SIZE_MAX;
        CHECK(done ? status == TH_RUN_DONE : status == TH_RUN_FAILED && errno == ENOSPC);
        free_index(&to);
    }
    writes_left = SIZE_MAX;
    for (size_t k = 0, done = 0; done < 4; k++) {
        th_run to = {.fd = fd, .at = TH_RUN_PAGE * th_run_pages(&x->r), .seed = next()};
        done = 0;
        for (int what = 0; what < 4; what++) {
            reads_left = k;
            th_run_status status = what == 0   ? find(x, 50)
                                   : what == 1 ? gather(x, 50)
                                   : what == 2 ? due(x)
                                               : merge(&to, x, INT64_MIN, INT64_MAX, NULL, 0);
            done += reads_left != SIZE_MAX;
            CHECK(reads_left != SIZE_MAX ? status == TH_RUN_DONE : status == TH_RUN_FAILED && errno == EIO);
        }
        free_index(&to);
    }
    reads_left = SIZE_MAX;
    record again = x->model[7];
    th_run to = {.fd = fd, .at = TH_RUN_PAGE * th_run_pages(&x->r), .seed = next()};
    CHECK(merge(&to, x, INT64_MIN, INT64_MAX, &again, 1) == TH_RUN_TWICE);
    free_index(&to), free_run(x);
    close(fd);
}

void test_run(size_t steps) {
    damaged_pages();
    forged_pages();
    forged_indexes();
    refusals();
    for (size_t done = 0; done < steps; done += 1000) random_merges(10);
}
