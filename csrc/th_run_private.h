/* The pages of runs, shared by th_run*.c.
 *
 * A page has the checksum of all that follows (8 bytes), the number of its first record, time or byte of the index (4),
 * how many it has (2), and its kind (2). Then
 *   of records: n ids (8 each), where the bytes of each end (2 each), and the bytes of all;
 *   of times: TH_RUN_TIMES timestamps (8 each) and as many numbers of records (4 each);
 *   of the index: its bytes. */
#ifndef TH_RUN_PRIVATE_H
#define TH_RUN_PRIVATE_H

#include "th_private.h"
#include "th_run.h"

#define NO_RECORD UINT32_MAX

typedef enum th_page_kind { TH_RECORDS_PAGE = 1, TH_TIMES_PAGE = 2, TH_INDEX_PAGE = 3 } th_page_kind;

/* Reads n pages from `page` on, and verifies their checksums. */
th_run_status th_pages_read(const th_run *r, size_t page, size_t n, uint8_t *buffer);

/* Writes n pages, with their checksums. */
th_run_status th_pages_write(const th_run *r, size_t page, size_t n, uint8_t *buffer);

/* Asks the kernel to read n pages soon. */
void th_pages_want(const th_run *r, size_t page, size_t n);

/* Writes the header of a page, whose checksum comes later. */
void th_page_begin(uint8_t *page, th_page_kind kind, size_t first, size_t n);

/* Returns whether a page has this header. */
bool th_page_is(const uint8_t *page, th_page_kind kind, size_t first, size_t n);

/* A page of records. */
typedef struct th_records {
    size_t first, n;
    const uint8_t *id, *end, *data;
} th_records;

/* Returns how many records or times a page has. */
size_t th_records_of(const th_run *r, size_t page);
size_t th_times_of(const th_run *r, size_t page);

/* Returns the last page that begins with an id up to this one, which is not before `from`; SIZE_MAX for none. */
size_t th_page_of_id(const th_run *r, size_t from, int64_t id);

/* Sets a view of a page of records that has been read. Returns whether it is sound: then all its records lie in it. */
bool th_records_view(const th_run *r, size_t page, const uint8_t *bytes, th_records *view);

/* Returns whether a page of times is sound. */
bool th_times_sound(const th_run *r, size_t page, const uint8_t *bytes);

TH_INLINE int64_t th_int64_at(const uint8_t *p, size_t i) {
    int64_t x;
    memcpy(&x, p + 8 * i, 8);
    return x;
}

TH_INLINE uint32_t th_uint32_at(const uint8_t *p, size_t i) {
    uint32_t x;
    memcpy(&x, p + 4 * i, 4);
    return x;
}

TH_INLINE size_t th_uint16_at(const uint8_t *p, size_t i) {
    uint16_t x;
    memcpy(&x, p + 2 * i, 2);
    return x;
}

TH_INLINE int64_t th_record_id(const th_records *v, size_t k) { return th_int64_at(v->id, k); }
TH_INLINE size_t th_record_start(const th_records *v, size_t k) { return k ? th_uint16_at(v->end, k - 1) : 0; }
TH_INLINE size_t th_record_end(const th_records *v, size_t k) { return th_uint16_at(v->end, k); }

TH_INLINE int64_t th_time_ts(const uint8_t *page, size_t k) { return th_int64_at(page + TH_RUN_HEADER, k); }
TH_INLINE uint32_t th_time_number(const uint8_t *page, size_t k) {
    return th_uint32_at(page + TH_RUN_HEADER + 8 * TH_RUN_TIMES, k);
}

TH_INLINE bool th_is_dead(const uint8_t *dead, size_t number) { return dead && dead[number >> 3] >> (number & 7) & 1; }

/* Pages that are read in sequence. */
typedef struct th_pass {
    const th_run *run;
    uint8_t *buffer; /* TH_RUN_CHUNK pages */
    size_t end, first, held;
} th_pass;

/* Sets a pointer to a page, which is not before the page of the last call. */
th_run_status th_pass_to(th_pass *p, size_t page, const uint8_t **bytes);

/* The index as a sequence of bytes: reads or writes n bytes from byte `at` on. */
void th_index_bytes(const th_run *r, size_t at, size_t n, uint8_t *bytes, bool write);

#define TH_INDEX_PART (TH_RUN_PAGE - TH_RUN_HEADER)

TH_INLINE size_t th_index_size(const th_run *r) { return 12 * r->record_pages + 8 * r->time_pages; }

#endif
