/* Writing runs: the records and times of a run and of more records, in one pass over each. */
#include "th_run_private.h"

#define MOST_RECORDS ((TH_RUN_PAGE - TH_RUN_HEADER) / 10)

/* Pages on their way to the file. */
typedef struct writer {
    th_run *run;
    uint8_t *out;
    size_t page, held; /* pages that have been written, and that are in `out` */
} writer;

/* Sets a pointer to the next page, all 0. */
static th_run_status next_page(writer *w, uint8_t **bytes) {
    th_run_status status = TH_RUN_DONE;
    if (w->held == TH_RUN_CHUNK) {
        status = th_pages_write(w->run, w->page, w->held, w->out);
        w->page += w->held, w->held = 0;
    }
    *bytes = memset(w->out + w->held++ * TH_RUN_PAGE, 0, TH_RUN_PAGE);
    return status;
}

/* ---- records ---- */

/* The records of the next page. */
typedef struct collected {
    size_t n, used;
    int64_t id[MOST_RECORDS];
    uint16_t end[MOST_RECORDS];
    uint8_t data[TH_RUN_PAGE];
} collected;

static th_run_status put_records(writer *w, collected *c) {
    th_run *r = w->run;
    uint8_t *page;
    if (!c->n) return TH_RUN_DONE;
    th_run_status status = next_page(w, &page);
    th_page_begin(page, TH_RECORDS_PAGE, r->records, c->n);
    memcpy(page + TH_RUN_HEADER, c->id, 8 * c->n);
    memcpy(page + TH_RUN_HEADER + 8 * c->n, c->end, 2 * c->n);
    memcpy(page + TH_RUN_HEADER + 10 * c->n, c->data, c->used);
    r->first_id[r->record_pages] = c->id[0];
    r->first_number[r->record_pages++] = (uint32_t)r->records;
    r->records += c->n;
    c->n = c->used = 0;
    return status;
}

static th_run_status add_record(writer *w, collected *c, int64_t id, const uint8_t *data, size_t size) {
    th_run_status status = TH_RUN_DONE;
    if (TH_RUN_HEADER + 10 * (c->n + 1) + c->used + size > TH_RUN_PAGE) status = put_records(w, c);
    if (size) memcpy(c->data + c->used, data, size);
    c->used += size;
    c->id[c->n] = id;
    c->end[c->n++] = (uint16_t)c->used;
    return status;
}

/* The records of the run before, one after the other. */
typedef struct old_records {
    th_pass pass;
    const uint8_t *dead;
    int64_t high;
    uint32_t *number; /* in the new run, of each record */
    size_t page, k;
    th_records v;
    bool any; /* whether there is a record at k */
} old_records;

/* Goes on to the next record between the bounds that is not dead, from k on. */
static th_run_status seek(old_records *o, int64_t low) {
    const uint8_t *bytes;
    o->any = false;
    for (; o->page < o->pass.end; o->page++, o->k = 0) {
        if (!o->k) {
            th_run_status status = th_pass_to(&o->pass, o->page, &bytes);
            if (status != TH_RUN_DONE) return status;
            if (!th_records_view(o->pass.run, o->page, bytes, &o->v)) return TH_RUN_DAMAGED;
        }
        for (; o->k < o->v.n; o->k++) {
            int64_t id = th_record_id(&o->v, o->k);
            if (id > o->high) return TH_RUN_DONE;
            if (id >= low && !th_is_dead(o->dead, o->v.first + o->k)) {
                o->any = true;
                return TH_RUN_DONE;
            }
        }
    }
    return TH_RUN_DONE;
}

static th_run_status merge_records(writer *w, old_records *o, int64_t low, const th_run_input *more, uint32_t *added) {
    collected c;
    c.n = c.used = 0;
    th_run_status status = seek(o, low);
    for (size_t i = 0; status == TH_RUN_DONE && (o->any || i < more->n);) {
        int64_t id = o->any ? th_record_id(&o->v, o->k) : 0;
        size_t number = w->run->records + c.n;
        if (o->any && i < more->n && id == more->id[i]) return TH_RUN_TWICE;
        if (o->any && (i == more->n || id < more->id[i])) {
            size_t start = th_record_start(&o->v, o->k);
            status = add_record(w, &c, id, o->v.data + start, th_record_end(&o->v, o->k) - start);
            o->number[o->v.first + o->k++] = (uint32_t)number;
            if (status == TH_RUN_DONE) status = seek(o, low);
        } else {
            size_t start = i ? (size_t)more->end[i - 1] : 0;
            status = add_record(w, &c, more->id[i], more->data + start, (size_t)more->end[i] - start);
            added[i++] = (uint32_t)number;
        }
    }
    return status == TH_RUN_DONE ? put_records(w, &c) : status;
}

/* ---- times ---- */

/* The times of the run before, one after the other. */
typedef struct old_times {
    th_pass pass;
    const uint32_t *number; /* in the new run, of each record */
    size_t next;
    const uint8_t *page;
    int64_t ts;
    uint32_t of; /* NO_RECORD at the end */
} old_times;

/* Goes on to the next time of a record that is in the new run. */
static th_run_status seek_time(old_times *o) {
    const th_run *r = o->pass.run;
    o->of = NO_RECORD;
    for (; r && o->next < r->times; o->next++) {
        size_t page = o->next / TH_RUN_TIMES, k = o->next % TH_RUN_TIMES;
        if (!k) {
            th_run_status status = th_pass_to(&o->pass, r->record_pages + page, &o->page);
            if (status != TH_RUN_DONE) return status;
            if (!th_times_sound(r, page, o->page)) return TH_RUN_DAMAGED;
        }
        o->ts = th_time_ts(o->page, k);
        o->of = o->number[th_time_number(o->page, k)];
        if (o->of == NO_RECORD) continue;
        o->next++;
        return TH_RUN_DONE;
    }
    return TH_RUN_DONE;
}

static th_run_status add_time(writer *w, uint8_t **page, int64_t ts, uint32_t of) {
    th_run *r = w->run;
    th_run_status status = TH_RUN_DONE;
    size_t k = r->times % TH_RUN_TIMES;
    if (!k) {
        status = next_page(w, page);
        r->first_ts[r->time_pages++] = ts;
    }
    memcpy(*page + TH_RUN_HEADER + 8 * k, &ts, 8);
    memcpy(*page + TH_RUN_HEADER + 8 * TH_RUN_TIMES + 4 * k, &of, 4);
    th_page_begin(*page, TH_TIMES_PAGE, r->times - k, k + 1);
    r->times++;
    return status;
}

static th_run_status merge_times(writer *w, old_times *o, const th_run_input *more, const uint32_t *added) {
    uint8_t *page = NULL;
    th_run_status status = seek_time(o);
    for (size_t i = 0; status == TH_RUN_DONE && (o->of != NO_RECORD || i < more->times);) {
        uint32_t of = i < more->times ? added[more->of[i]] : NO_RECORD;
        bool old =
            i == more->times || (o->of != NO_RECORD && (o->ts < more->ts[i] || (o->ts == more->ts[i] && o->of < of)));
        status = old ? add_time(w, &page, o->ts, o->of) : add_time(w, &page, more->ts[i], of);
        if (!old) i++;
        else if (status == TH_RUN_DONE) status = seek_time(o);
    }
    return status;
}

/* ---- the run ---- */

static th_run_status put_index(writer *w) {
    th_run_status status = TH_RUN_DONE;
    size_t size = th_index_size(w->run);
    for (size_t at = 0; at < size && status == TH_RUN_DONE; at += TH_INDEX_PART) {
        size_t n = size - at < TH_INDEX_PART ? size - at : TH_INDEX_PART;
        uint8_t *page;
        status = next_page(w, &page);
        th_page_begin(page, TH_INDEX_PAGE, at, n);
        th_index_bytes(w->run, at, n, page + TH_RUN_HEADER, true);
    }
    if (status == TH_RUN_DONE && w->held) status = th_pages_write(w->run, w->page, w->held, w->out);
    return status;
}

/* Of two pages that follow each other, the records of both have no room in one. */
void th_run_most_pages(const th_run *from, size_t n, size_t size, size_t times, size_t *record_pages,
                       size_t *time_pages) {
    size += 10 * n;
    *record_pages = 2 * ((from ? from->record_pages : 0) + size / (TH_RUN_PAGE - TH_RUN_HEADER)) + 3;
    *time_pages = (times + (from ? from->times : 0)) / TH_RUN_TIMES + 1;
}

th_run_status th_run_merge(th_run *to, const th_run *from, const uint8_t *dead, int64_t low, int64_t high,
                           const th_run_input *more, const th_run_scratch *s) {
    writer w = {.run = to, .out = s->out};
    old_records records = {.pass = {.run = from, .buffer = s->in}, .dead = dead, .high = high, .number = s->old};
    old_times times = {.pass = {.run = from, .buffer = s->in}, .number = s->old};
    to->records = to->times = to->record_pages = to->time_pages = 0;
    if (from) {
        size_t page = th_page_of_id(from, 0, low);
        records.page = page == SIZE_MAX ? 0 : page;
        records.pass.end = from->record_pages;
        times.pass.end = from->record_pages + from->time_pages;
        memset(s->old, 0xFF, from->records * sizeof *s->old);
    }
    th_run_status status = merge_records(&w, &records, low, more, s->added);
    if (status == TH_RUN_DONE) status = merge_times(&w, &times, more, s->added);
    return status == TH_RUN_DONE ? put_index(&w) : status;
}
