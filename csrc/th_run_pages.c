/* The pages of runs: how they are read, written and told from others. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#if !defined(_FILE_OFFSET_BITS)
#define _FILE_OFFSET_BITS 64
#endif

#include "th_run_private.h"

#include <errno.h>

#if defined(__unix__) || defined(__APPLE__)
#include <fcntl.h>
#include <unistd.h>

#ifndef TH_PREAD
#define TH_PREAD pread
#define TH_PWRITE pwrite
#endif

/* Reads or writes all bytes. Returns TH_RUN_DAMAGED if the file ends before. */
static th_run_status transfer(int fd, uint8_t *p, size_t size, uint64_t at, bool write) {
    while (size) {
        ssize_t n = write ? TH_PWRITE(fd, p, size, (off_t)at) : TH_PREAD(fd, p, size, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return TH_RUN_FAILED;
        if (!n) {
            errno = ENOSPC;
            return write ? TH_RUN_FAILED : TH_RUN_DAMAGED;
        }
        p += n, at += (uint64_t)n, size -= (size_t)n;
    }
    return TH_RUN_DONE;
}

void th_pages_want(const th_run *r, size_t page, size_t n) {
#if defined(POSIX_FADV_WILLNEED)
    (void)!posix_fadvise(r->fd, (off_t)(r->at + page * TH_RUN_PAGE), (off_t)(n * TH_RUN_PAGE), POSIX_FADV_WILLNEED);
#else
    (void)r, (void)page, (void)n;
#endif
}
#else
static th_run_status transfer(int fd, uint8_t *p, size_t size, uint64_t at, bool write) {
    (void)fd, (void)p, (void)size, (void)at, (void)write;
    errno = ENOSYS;
    return TH_RUN_FAILED;
}

void th_pages_want(const th_run *r, size_t page, size_t n) { (void)r, (void)page, (void)n; }
#endif

static uint64_t checksum(const th_run *r, const uint8_t *bytes) {
    th_xxh64 x;
    th_xxh64_begin(&x, r->seed);
    th_xxh64_add(&x, bytes + 8, TH_RUN_PAGE - 8);
    return th_xxh64_end(&x);
}

th_run_status th_pages_read(const th_run *r, size_t page, size_t n, uint8_t *buffer) {
    th_run_status status = transfer(r->fd, buffer, n * TH_RUN_PAGE, r->at + page * TH_RUN_PAGE, false);
    for (size_t k = 0; k < n && status == TH_RUN_DONE; k++) {
        const uint8_t *bytes = buffer + k * TH_RUN_PAGE;
        if ((uint64_t)th_int64_at(bytes, 0) != checksum(r, bytes)) status = TH_RUN_DAMAGED;
    }
    return status;
}

th_run_status th_pages_write(const th_run *r, size_t page, size_t n, uint8_t *buffer) {
    for (size_t k = 0; k < n; k++) {
        uint64_t sum = checksum(r, buffer + k * TH_RUN_PAGE);
        memcpy(buffer + k * TH_RUN_PAGE, &sum, 8);
    }
    return transfer(r->fd, buffer, n * TH_RUN_PAGE, r->at + page * TH_RUN_PAGE, true);
}

/* ---- what is in a page ---- */

void th_page_begin(uint8_t *page, th_page_kind kind, size_t first, size_t n) {
    uint32_t number = (uint32_t)first;
    uint16_t count = (uint16_t)n, is = (uint16_t)kind;
    memcpy(page + 8, &number, 4);
    memcpy(page + 12, &count, 2);
    memcpy(page + 14, &is, 2);
}

bool th_page_is(const uint8_t *page, th_page_kind kind, size_t first, size_t n) {
    return th_uint32_at(page, 2) == first && th_uint16_at(page, 6) == n && th_uint16_at(page, 7) == (size_t)kind;
}

size_t th_records_of(const th_run *r, size_t page) {
    return (page + 1 < r->record_pages ? r->first_number[page + 1] : r->records) - r->first_number[page];
}

size_t th_times_of(const th_run *r, size_t page) {
    size_t left = r->times - page * TH_RUN_TIMES;
    return left < TH_RUN_TIMES ? left : TH_RUN_TIMES;
}

bool th_records_view(const th_run *r, size_t page, const uint8_t *bytes, th_records *v) {
    v->first = r->first_number[page], v->n = th_records_of(r, page);
    if (!th_page_is(bytes, TH_RECORDS_PAGE, v->first, v->n) || 10 * v->n > TH_RUN_PAGE - TH_RUN_HEADER) return false;
    v->id = bytes + TH_RUN_HEADER;
    v->end = v->id + 8 * v->n;
    v->data = v->end + 2 * v->n;
    size_t room = TH_RUN_PAGE - TH_RUN_HEADER - 10 * v->n;
    for (size_t k = 0; k < v->n; k++)
        if (th_record_end(v, k) < th_record_start(v, k) || th_record_end(v, k) > room) return false;
    return th_record_id(v, 0) == r->first_id[page];
}

bool th_times_sound(const th_run *r, size_t page, const uint8_t *bytes) {
    size_t n = th_times_of(r, page);
    if (!th_page_is(bytes, TH_TIMES_PAGE, page * TH_RUN_TIMES, n) || th_time_ts(bytes, 0) != r->first_ts[page])
        return false;
    for (size_t k = 0; k < n; k++)
        if (th_time_number(bytes, k) >= r->records) return false;
    return true;
}

th_run_status th_pass_to(th_pass *p, size_t page, const uint8_t **bytes) {
    if (page >= p->first + p->held) {
        size_t left = p->end - page;
        p->held = left < TH_RUN_CHUNK ? left : TH_RUN_CHUNK;
        p->first = page;
        if (p->held < left)
            th_pages_want(p->run, page + p->held, left - p->held < TH_RUN_CHUNK ? left - p->held : TH_RUN_CHUNK);
        th_run_status status = th_pages_read(p->run, page, p->held, p->buffer);
        if (status != TH_RUN_DONE) return status;
    }
    *bytes = p->buffer + (page - p->first) * TH_RUN_PAGE;
    return TH_RUN_DONE;
}

/* ---- the index ---- */

void th_index_bytes(const th_run *r, size_t at, size_t n, uint8_t *bytes, bool write) {
    struct {
        void *start;
        size_t size;
    } parts[] = {
        {r->first_id, 8 * r->record_pages}, {r->first_ts, 8 * r->time_pages}, {r->first_number, 4 * r->record_pages}};
    for (int k = 0; k < 3; k++) {
        if (at >= parts[k].size) {
            at -= parts[k].size;
            continue;
        }
        size_t size = parts[k].size - at < n ? parts[k].size - at : n;
        if (write) memcpy(bytes, (uint8_t *)parts[k].start + at, size);
        else memcpy((uint8_t *)parts[k].start + at, bytes, size);
        bytes += size, n -= size, at = 0;
        if (!n) return;
    }
}
