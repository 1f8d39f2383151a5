/* Runs: immutable parts of a file, with records by id, and with times in order, each of a record.
 *
 * A run is written once, from records and from a run before it, and then read by page. First the kernel is asked for
 * all pages that a call needs, then each is read and its checksum is compared, whose seed depends on the run and the
 * page. So a page that is damaged, missing, of another place or of another run is an error, and never another result.
 * The file is not mapped: a fault for each page would wait for the disk, one after the other.
 *
 * A record is an id and some bytes. Its number is its place in the order of ids, from 0 on. A record may die, which
 * whoever has the run keeps as bits by number; a merge leaves dead ones out.
 *
 * It follows the rules of th_heap.h: C11, no allocation. Any number of threads may read a run. Bytes are in the order
 * of this machine. It needs pread and pwrite of POSIX; elsewhere each call fails. */
#ifndef TH_RUN_H
#define TH_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TH_RUN_PAGE 4096
#define TH_RUN_HEADER 16
#define TH_RUN_TIMES ((TH_RUN_PAGE - TH_RUN_HEADER) / 12) /* of a page */

/* The maximum number of bytes of a record, and of records of a run. */
#define TH_RUN_LONGEST (TH_RUN_PAGE - TH_RUN_HEADER - 10)
#define TH_RUN_RECORDS ((size_t)1 << 31)

/* The pages that are read or written together by calls that pass over a run. */
#define TH_RUN_CHUNK 64

typedef enum th_run_status {
    TH_RUN_DONE = 0,
    TH_RUN_FULL = 1,    /* more memory is needed; the call can be repeated with it, and continues */
    TH_RUN_FAILED = 2,  /* the system has refused to read or write: errno says why */
    TH_RUN_DAMAGED = 3, /* a page is not what was written there */
    TH_RUN_TWICE = 4    /* two records have one id */
} th_run_status;

/* A run, and its index in memory of the caller: what each page begins with. Pages of records come first, then those of
 * times, then those of the index. */
typedef struct th_run {
    int fd;
    uint64_t at, seed; /* where it begins in the file, and the seed of its checksums */
    size_t records, times, record_pages, time_pages;
    int64_t *first_id;      /* of each page of records */
    uint32_t *first_number; /* of its first record */
    int64_t *first_ts;      /* of each page of times */
} th_run;

/* Returns the number of pages of a run. */
size_t th_run_pages(const th_run *r);

/* Reads the index of a run whose other fields are set. */
th_run_status th_run_open(th_run *r);

/* Reads all pages and checks all invariants; `buffer` has TH_RUN_CHUNK pages. */
th_run_status th_run_check(const th_run *r, uint8_t *buffer);

/* ---- reading ---- */

/* What is taken from a run: the records of n ids, or of n numbers, which ascend and may be repeated. */
typedef struct th_taken {
    size_t n;
    int64_t *number; /* of each record; of ids an output, -1 for those that are absent or dead */
    int64_t *id;     /* of each record; of numbers an output */
    int64_t *end;    /* where the bytes of each end in `data`, which begin where those of the one before end */
    uint8_t *data;
    size_t room, used; /* bytes of `data`, and how many are in use */
    size_t done;       /* records; 0 at the first call */
} th_taken;

/* Take the records of ids, or of numbers, which must be below `records`. `dead` has a bit for each record, or is NULL.
 * TH_RUN_FULL: `data` needs TH_RUN_LONGEST more bytes than are in use, or more. */
th_run_status th_run_find(const th_run *r, const uint8_t *dead, th_taken *t);
th_run_status th_run_gather(const th_run *r, th_taken *t);

/* Times that are due, in order, with the number of the record of each. */
typedef struct th_due_times {
    int64_t *ts, *number;
    size_t room, n;
    size_t next; /* the first time to look at, and after the call the first that was not looked at */
} th_due_times;

/* Takes the times up to `time` of records that are not dead. TH_RUN_FULL: there may be more. */
th_run_status th_run_due(const th_run *r, const uint8_t *dead, int64_t time, th_due_times *d);

/* ---- writing ---- */

/* Records in ascending order of different ids. The bytes of record i are from end[i - 1], or 0, to end[i], and at most
 * TH_RUN_LONGEST. Time k is of record of[k]; times are in the order of (ts, of). */
typedef struct th_run_input {
    size_t n, times;
    const int64_t *id, *end;
    const uint8_t *data;
    const int64_t *ts;
    const uint32_t *of;
} th_run_input;

/* Scratch memory of a merge. */
typedef struct th_run_scratch {
    uint8_t *in, *out; /* TH_RUN_CHUNK pages each */
    uint32_t *old;     /* one for each record of the run before */
    uint32_t *added;   /* one for each record that is added */
} th_run_scratch;

/* Returns how many pages of records and of times a merge may write, for the memory of the index, given n more records
 * of `size` bytes in all and their times. */
void th_run_most_pages(const th_run *from, size_t n, size_t size, size_t times, size_t *record_pages,
                       size_t *time_pages);

/* Writes a run: the records of `from` (or NULL) with ids from `low` to `high` that are not dead, and more records, all
 * between the same ids, with the times of both. `fd`, `at`, `seed` and the memory of the index of `to` are set. It
 * reads and writes a chunk at a time. TH_RUN_TWICE: a record that is added is in `from`, too, and not dead there. */
th_run_status th_run_merge(th_run *to, const th_run *from, const uint8_t *dead, int64_t low, int64_t high,
                           const th_run_input *more, const th_run_scratch *s);

#endif
