/* Reading runs: their index, records by id or by number, times in order, and the check of all invariants. */
#include "th_run_private.h"

size_t th_run_pages(const th_run *r) {
    return r->record_pages + r->time_pages + (th_index_size(r) + TH_INDEX_PART - 1) / TH_INDEX_PART;
}

/* Returns whether the index can be that of a run with these counts. */
static bool index_sound(const th_run *r) {
    for (size_t k = 0; k < r->record_pages; k++) {
        size_t next = k + 1 < r->record_pages ? r->first_number[k + 1] : r->records;
        if (r->first_number[k] >= next || (!k && r->first_number[k])) return false;
        if (k && r->first_id[k - 1] >= r->first_id[k]) return false;
    }
    for (size_t k = 1; k < r->time_pages; k++)
        if (r->first_ts[k - 1] > r->first_ts[k]) return false;
    return true;
}

/* Reads the pages of the index, and sets the index from them or compares it with them. */
static th_run_status read_index(const th_run *r, bool compare) {
    uint8_t page[TH_RUN_PAGE], own[TH_RUN_PAGE];
    size_t size = th_index_size(r), start = r->record_pages + r->time_pages;
    th_pages_want(r, start, th_run_pages(r) - start);
    for (size_t at = 0, k = start; at < size; at += TH_INDEX_PART, k++) {
        size_t n = size - at < TH_INDEX_PART ? size - at : TH_INDEX_PART;
        th_run_status status = th_pages_read(r, k, 1, page);
        if (status != TH_RUN_DONE) return status;
        if (!th_page_is(page, TH_INDEX_PAGE, at, n)) return TH_RUN_DAMAGED;
        th_index_bytes(r, at, n, compare ? own : page + TH_RUN_HEADER, compare);
        if (compare && memcmp(own, page + TH_RUN_HEADER, n)) return TH_RUN_DAMAGED;
    }
    return TH_RUN_DONE;
}

th_run_status th_run_open(th_run *r) {
    if (r->records > TH_RUN_RECORDS || (r->records != 0) != (r->record_pages != 0)) return TH_RUN_DAMAGED;
    if (r->times > UINT32_MAX || r->time_pages != (r->times + TH_RUN_TIMES - 1) / TH_RUN_TIMES) return TH_RUN_DAMAGED;
    th_run_status status = read_index(r, false);
    return status == TH_RUN_DONE && !index_sound(r) ? TH_RUN_DAMAGED : status;
}

/* ---- records ---- */

size_t th_page_of_id(const th_run *r, size_t from, int64_t id) {
    size_t lo = from, hi = r->record_pages; /* the pages before lo begin up to id, those from hi on behind it */
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (r->first_id[mid] <= id) lo = mid + 1;
        else hi = mid;
    }
    return lo ? lo - 1 : SIZE_MAX;
}

static size_t page_of_number(const th_run *r, size_t from, size_t number) {
    size_t lo = from, hi = r->record_pages;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (r->first_number[mid] <= number) lo = mid + 1;
        else hi = mid;
    }
    return lo - 1; /* page 0 begins with number 0 */
}

static size_t page_of(const th_run *r, const th_taken *t, bool by_id, size_t from, size_t i) {
    return by_id ? th_page_of_id(r, from, t->id[i]) : page_of_number(r, from, (size_t)t->number[i]);
}

/* Asks for all pages that are needed, neighbours together. */
static void want(const th_run *r, const th_taken *t, bool by_id) {
    size_t first = 0, n = 0, page = 0;
    for (size_t i = 0; i < t->n; i++) {
        size_t found = page_of(r, t, by_id, page, i);
        if (found == SIZE_MAX || (n && found == first + n - 1)) continue;
        page = found;
        if (n && found == first + n) {
            n++;
            continue;
        }
        if (n) th_pages_want(r, first, n);
        first = found, n = 1;
    }
    if (n) th_pages_want(r, first, n);
}

/* Returns the place of an id in a page, or n. */
static size_t search(const th_records *v, int64_t id) {
    size_t lo = 0, hi = v->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (th_record_id(v, mid) < id) lo = mid + 1;
        else hi = mid;
    }
    return lo < v->n && th_record_id(v, lo) == id ? lo : v->n;
}

TH_INLINE th_run_status take(const th_run *r, const uint8_t *dead, th_taken *t, bool by_id) {
    uint8_t bytes[TH_RUN_PAGE];
    th_records v = {0};
    size_t page = 0;
    bool loaded = false;
    if (!t->done) want(r, t, by_id);
    for (; t->done < t->n; t->done++) {
        size_t i = t->done, found = r->record_pages ? page_of(r, t, by_id, page, i) : SIZE_MAX, k = 0;
        if (found != SIZE_MAX && (!loaded || found != page)) {
            th_run_status status = th_pages_read(r, found, 1, bytes);
            if (status != TH_RUN_DONE) return status;
            if (!th_records_view(r, found, bytes, &v)) return TH_RUN_DAMAGED;
            page = found, loaded = true;
        }
        if (by_id) {
            k = found == SIZE_MAX ? v.n : search(&v, t->id[i]);
            bool there = k < v.n && !th_is_dead(dead, v.first + k);
            t->number[i] = there ? (int64_t)(v.first + k) : -1;
            t->end[i] = (int64_t)t->used;
            if (!there) continue;
        } else {
            k = (size_t)t->number[i] - v.first;
            t->id[i] = th_record_id(&v, k);
        }
        size_t start = th_record_start(&v, k), size = th_record_end(&v, k) - start;
        if (t->room - t->used < size) return TH_RUN_FULL;
        if (size) memcpy(t->data + t->used, v.data + start, size);
        t->end[i] = (int64_t)(t->used += size);
    }
    return TH_RUN_DONE;
}

th_run_status th_run_find(const th_run *r, const uint8_t *dead, th_taken *t) { return take(r, dead, t, true); }

th_run_status th_run_gather(const th_run *r, th_taken *t) { return take(r, NULL, t, false); }

/* ---- times ---- */

/* Asks for the pages of times that are due, at most a chunk of them, when the first of them is needed. */
static void want_times(const th_run *r, size_t page, int64_t time) {
    size_t n = 1;
    while (n < TH_RUN_CHUNK && page + n < r->time_pages && r->first_ts[page + n] <= time) n++;
    th_pages_want(r, r->record_pages + page, n);
}

th_run_status th_run_due(const th_run *r, const uint8_t *dead, int64_t time, th_due_times *d) {
    uint8_t bytes[TH_RUN_PAGE];
    size_t begin = d->next / TH_RUN_TIMES;
    d->n = 0;
    for (size_t page = begin; d->next < r->times && r->first_ts[page] <= time; page++) {
        if ((page - begin) % TH_RUN_CHUNK == 0) want_times(r, page, time);
        th_run_status status = th_pages_read(r, r->record_pages + page, 1, bytes);
        if (status != TH_RUN_DONE) return status;
        if (!th_times_sound(r, page, bytes)) return TH_RUN_DAMAGED;
        for (size_t k = d->next % TH_RUN_TIMES, n = th_times_of(r, page); k < n; k++, d->next++) {
            if (th_time_ts(bytes, k) > time) return TH_RUN_DONE;
            if (d->n == d->room) return TH_RUN_FULL;
            if (th_is_dead(dead, th_time_number(bytes, k))) continue;
            d->ts[d->n] = th_time_ts(bytes, k);
            d->number[d->n++] = th_time_number(bytes, k);
        }
    }
    return TH_RUN_DONE;
}

/* ---- invariants ---- */

static th_run_status check_records(const th_run *r, uint8_t *buffer) {
    th_pass pass = {.run = r, .buffer = buffer, .end = r->record_pages};
    const uint8_t *bytes;
    th_records v;
    for (size_t page = 0; page < r->record_pages; page++) {
        th_run_status status = th_pass_to(&pass, page, &bytes);
        if (status != TH_RUN_DONE) return status;
        if (!th_records_view(r, page, bytes, &v)) return TH_RUN_DAMAGED;
        for (size_t k = 1; k < v.n; k++)
            if (th_record_id(&v, k - 1) >= th_record_id(&v, k)) return TH_RUN_DAMAGED;
        if (page + 1 < r->record_pages && th_record_id(&v, v.n - 1) >= r->first_id[page + 1]) return TH_RUN_DAMAGED;
    }
    return TH_RUN_DONE;
}

static th_run_status check_times(const th_run *r, uint8_t *buffer) {
    th_pass pass = {.run = r, .buffer = buffer, .end = r->record_pages + r->time_pages};
    const uint8_t *bytes;
    int64_t ts = INT64_MIN;
    uint32_t number = 0;
    for (size_t page = 0; page < r->time_pages; page++) {
        th_run_status status = th_pass_to(&pass, r->record_pages + page, &bytes);
        if (status != TH_RUN_DONE) return status;
        if (!th_times_sound(r, page, bytes)) return TH_RUN_DAMAGED;
        for (size_t k = 0; k < th_times_of(r, page); k++) {
            if (th_time_ts(bytes, k) < ts || (th_time_ts(bytes, k) == ts && th_time_number(bytes, k) < number))
                return TH_RUN_DAMAGED;
            ts = th_time_ts(bytes, k), number = th_time_number(bytes, k);
        }
    }
    return TH_RUN_DONE;
}

th_run_status th_run_check(const th_run *r, uint8_t *buffer) {
    th_run_status status = index_sound(r) ? read_index(r, true) : TH_RUN_DAMAGED;
    if (status == TH_RUN_DONE) status = check_records(r, buffer);
    return status == TH_RUN_DONE ? check_times(r, buffer) : status;
}
