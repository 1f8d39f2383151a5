# The declarations of csrc/th_heap.h, th_table.h, th_array.h with th_array_private.h, th_pack.h, th_group.h, th_text.h,
# th_code.h, th_tree.h and th_run.h, where the contracts are documented.
from libc.stddef cimport ptrdiff_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "th_heap.h" nogil:
    const size_t TH_MAX_ROWS

    ctypedef enum th_status:
        TH_NO
        TH_YES
        TH_FULL
        TH_DISORDER
        TH_DUPLICATE
        TH_CORRUPT

    ctypedef enum th_identity:
        TH_BY_TIMER
        TH_BY_KEY
        TH_BY_NAME

    ctypedef struct th_line:
        pass

    ctypedef struct th_heap:
        int64_t *ts
        int64_t *key
        int64_t *ns
        uint32_t *slot
        th_line *line
        size_t len
        size_t cap
        size_t lines
        uint64_t changes
        th_identity identity

    ctypedef struct th_column:
        const int64_t *data
        ptrdiff_t step

    void th_heap_init(th_heap *h, th_identity identity, uint64_t seed)
    size_t th_index_lines(size_t cap)
    void th_heap_reindex(th_heap *h)
    th_status th_heap_restore(th_heap *h)
    size_t th_heap_size(size_t cap)
    void th_heap_place(th_heap *h, void *block, size_t cap)
    void th_heap_move(th_heap *h, void *block, size_t cap)
    bint th_heap_plausible(const th_heap *h)
    void th_heap_copy(th_heap *to, const th_heap *h)
    void th_heap_clear(th_heap *h)
    bint th_heap_find(const th_heap *h, int64_t ts, int64_t key, int64_t ns, size_t *row)
    void th_heap_fetch_line(const th_heap *h, int64_t ts, int64_t key, int64_t ns)
    void th_heap_fetch_row(const th_heap *h, int64_t ts, int64_t key, int64_t ns)
    th_status th_heap_push(th_heap *h, int64_t ts, int64_t key, int64_t ns)
    bint th_heap_remove(th_heap *h, int64_t ts, int64_t key, int64_t ns)
    bint th_heap_reschedule(th_heap *h, int64_t ts, int64_t new_ts, int64_t key, int64_t ns)
    void th_heap_pop(th_heap *h)
    th_status th_heap_push_many(th_heap *h, th_column ts, th_column key, th_column ns, size_t n, uint8_t *added,
                                uint32_t *where, size_t *need)
    void th_heap_find_many(const th_heap *h, th_column key, th_column ns, size_t n, uint8_t *found, int64_t *ts)
    void th_heap_remove_many(th_heap *h, th_column ts, th_column key, th_column ns, size_t n, uint8_t *removed)
    void th_heap_take_many(th_heap *h, th_column ts, th_column key, th_column ns, size_t n, uint8_t *taken)
    void th_heap_reschedule_many(th_heap *h, th_column ts, th_column new_ts, th_column key, th_column ns, size_t n,
                                 uint8_t *moved)
    size_t th_heap_count_keys(const th_heap *h, th_column key, size_t n, int64_t *table, size_t size)
    void th_heap_remove_keys(th_heap *h, const int64_t *table, size_t size)
    size_t th_heap_count_due(const th_heap *h, int64_t watermark)
    size_t th_heap_due_rows(const th_heap *h, int64_t watermark, int64_t *row, size_t n)

    ctypedef struct th_due:
        int64_t watermark
        size_t limit
        uint64_t *scratch
        size_t words
        size_t need
        int64_t *ts
        int64_t *key
        int64_t *ns
        size_t room
        size_t n
        size_t found

    th_status th_heap_pop_due(th_heap *h, th_due *due)
    void th_row_order(const int64_t *const *column, size_t n, uint64_t *order, uint64_t *scratch)
    th_status th_heap_check(th_heap *h)

    ctypedef struct th_xxh64:
        pass

    void th_xxh64_begin(th_xxh64 *x, uint64_t seed)
    void th_xxh64_add(th_xxh64 *x, const void *data, size_t size)
    uint64_t th_xxh64_end(const th_xxh64 *x)


cdef extern from "th_table.h" nogil:
    const size_t TH_TABLE_MAX

    ctypedef struct th_table:
        size_t len
        size_t cap

    ctypedef struct th_undo:
        uint32_t *entry
        int64_t *value

    void th_table_init(th_table *t, uint64_t seed)
    size_t th_table_size(size_t cap)
    void th_table_place(th_table *t, void *block, size_t cap)
    bint th_table_plausible(const th_table *t)
    th_status th_table_move(th_table *t, void *block, size_t cap, uint64_t seed)
    void th_table_find_many(const th_table *t, th_column id, size_t n, int64_t *value, uint8_t *found)
    th_status th_table_put_many(th_table *t, th_column id, th_column value, size_t n, uint8_t *added, th_undo undo,
                                size_t *need)
    void th_table_number_many(th_table *t, th_column id, size_t n, int64_t *number, int64_t *ids)
    void th_table_remove_many(th_table *t, th_column id, size_t n, int64_t *value, uint8_t *removed)
    size_t th_table_items(const th_table *t, int64_t *id, int64_t *value)
    th_status th_table_check(const th_table *t)


cdef extern from "th_array.h" nogil:
    ctypedef enum th_kind:
        TH_BITS
        TH_FIXED
        TH_FLOAT
        TH_TEXT

    ctypedef struct th_array:
        th_kind kind
        unsigned width
        size_t start
        size_t n
        const uint8_t *valid
        const uint8_t *offset
        const uint8_t *data
        size_t size

    th_status th_array_compare(const th_array *stored, const int64_t *place, const th_array *value, uint8_t *same)
    th_status th_array_hash_many(const th_array *column, size_t columns, size_t n, const uint64_t *seed, int64_t *hash)


cdef extern from "th_array_private.h" nogil:
    ctypedef struct th_text:
        const uint8_t *at
        size_t size

    int64_t th_integer(const uint8_t *from_, unsigned width)
    void th_put_number(uint8_t *to, unsigned width, uint64_t x)
    bint th_bit(const uint8_t *bits, size_t i)
    bint th_is_valid(const th_array *a, size_t i)
    bint th_text_at(const th_array *a, size_t i, th_text *text)


cdef extern from "th_pack.h" nogil:
    const size_t TH_MAX_GROUPS

    ctypedef struct th_need:
        uint64_t nulls
        uint64_t size
        uint64_t longest
        int64_t low
        int64_t high

    ctypedef struct th_target:
        uint8_t *valid
        size_t row
        uint8_t *value
        uint8_t *text
        uint8_t *end
        int64_t base
        unsigned width

    th_status th_pack_hash(const th_array *a, int64_t *hash)
    void th_pack_rank(const int64_t *hash, size_t n, size_t groups, const uint16_t *rank_of, uint16_t *rank,
                      uint64_t *count)
    th_status th_pack_measure(const th_array *a, const uint16_t *rank, th_need *need)
    th_status th_pack_put(const th_array *a, const uint16_t *rank, bint nulls, th_target *target)
    void th_pack_widen(const uint8_t *from_, unsigned width, int64_t base, size_t n, int64_t *to)
    th_status th_pack_offsets(const uint8_t *from_, unsigned width, size_t n, uint64_t size, int32_t *to)


cdef extern from "th_group.h" nogil:
    const size_t TH_MAX_NUMBERED

    ctypedef struct th_slice:
        int64_t slice
        uint64_t rows
        uint32_t key

    ctypedef struct th_groups:
        th_slice *group
        size_t keys
        size_t groups
        size_t key_cap
        size_t group_cap

    ctypedef struct th_rows:
        const int64_t *hash
        const int64_t *slice
        size_t n
        const th_array *key
        size_t columns
        uint32_t part

    void th_groups_init(th_groups *t, uint64_t seed)
    size_t th_groups_size(size_t key_cap, size_t group_cap)
    void th_groups_move(th_groups *t, void *block, size_t key_cap, size_t group_cap)
    th_status th_groups_add(th_groups *t, const th_rows *rows, size_t *done, uint32_t *group)
    void th_groups_undo(th_groups *t, size_t keys, size_t groups, const uint32_t *group, size_t done)
    void th_groups_firsts(const th_groups *t, size_t keys, int64_t *row)
    void th_groups_order(const uint32_t *group, size_t n, int64_t first, int64_t *next, int64_t *order)

    ctypedef struct th_ordered:
        const int64_t *row
        const int64_t *number
        size_t n
        size_t rows
        size_t keys

    th_status th_group_numbers(const int64_t *place, size_t n, size_t places, uint32_t *number_of, size_t *keys,
                               int64_t *number, uint8_t *added)
    th_status th_group_ranks(const th_ordered *ordered, uint32_t *seen, uint32_t *rank, size_t *waves)
    void th_group_waves(const th_ordered *ordered, const uint32_t *rank, size_t waves, int64_t *stop, int64_t *row,
                        int64_t *number)


cdef extern from "th_text.h" nogil:
    size_t th_text_size(size_t n)
    size_t th_text_bytes(size_t size)
    void th_text_write(const uint8_t *from_, size_t n, uint8_t *to)
    void th_text_read(const uint8_t *from_, size_t size, uint8_t *to)


cdef extern from "th_code.h" nogil:
    const size_t TH_CODE_MAX

    ctypedef enum th_code_kind:
        TH_OF_FIELDS
        TH_OF_NOTHING
        TH_OF_BIT
        TH_OF_SIGNED
        TH_OF_UNSIGNED
        TH_OF_FLOAT
        TH_OF_BYTES
        TH_OF_TEXT

    ctypedef struct th_field:
        uint8_t kind
        uint8_t descending
        uint8_t nulls_last
        uint16_t width
        uint32_t span

    ctypedef struct th_format:
        const th_field *field
        size_t fields
        size_t lead

    ctypedef struct th_codes:
        const uint8_t *data
        const int64_t *offset
        size_t n

    ctypedef struct th_values:
        uint8_t *valid
        uint8_t *data
        int64_t *offset
        uint64_t size
        uint64_t nulls

    ctypedef struct th_weighted:
        const int64_t *id
        const int64_t *weight
        th_codes codes

    ctypedef struct th_placed:
        pass

    bint th_format_check(const th_format *f)
    bint th_codes_check(const th_codes *codes, size_t size)
    th_status th_code_measure(const th_format *f, const th_array *column, size_t n, int64_t *offset)
    th_status th_code_write(const th_format *f, const th_array *column, size_t n, const int64_t *offset, uint8_t *to)
    th_status th_code_sizes(const th_format *f, const th_codes *codes, th_values *values)
    void th_code_read(const th_format *f, const th_codes *codes, th_values *values)
    size_t th_code_add_up(const th_weighted *rows, th_placed *scratch, int64_t *row, int64_t *sum)


cdef extern from "th_tree.h" nogil:
    ctypedef struct th_tree:
        pass

    ctypedef struct th_tree_use:
        size_t entries
        size_t pages
        size_t codes
        size_t used_pages
        size_t used_codes
        size_t free_pages
        size_t free_codes

    ctypedef struct th_changes:
        th_weighted rows
        const int64_t *row
        const int64_t *sum
        size_t n

    ctypedef struct th_tree_need:
        size_t pages
        size_t codes

    ctypedef enum th_pick_kind:
        TH_PICK_ALL
        TH_PICK_ROWS
        TH_PICK_TIES
        TH_PICK_LEADS
        TH_PICK_REST

    ctypedef struct th_pick:
        th_pick_kind kind
        bint backwards

    ctypedef struct th_picked:
        size_t entries
        size_t size
        int64_t *length
        int64_t *weight
        int64_t *offset
        uint8_t *code

    size_t th_tree_size(size_t pages, size_t codes)
    th_tree_use th_tree_usage(const th_tree *t)
    bint th_tree_place(th_tree *t, void *block, size_t size)
    void th_tree_move(th_tree *t, void *block, size_t pages, size_t codes)
    void th_tree_pack(th_tree *t, void *block, size_t pages, size_t codes)
    th_status th_tree_plan(const th_tree *t, const th_changes *changes, int64_t *before, th_tree_need *need)
    size_t th_tree_add(th_tree *t, const th_changes *changes)
    th_status th_tree_pick(const th_tree *t, const th_format *f, const th_pick *pick, const int64_t *id, const int64_t *most,
                           size_t n, th_picked *found)
    void th_tree_totals(const th_tree *t, const int64_t *id, size_t n, int64_t *rows, int64_t *entries)
    size_t th_tree_ids(const th_tree *t, int64_t *id)
    th_status th_tree_check(const th_tree *t)


cdef extern from "th_sum.h" nogil:
    enum:
        TH_SUM_BASE
        TH_SUM_DIGITS
        TH_SUM_PLACES

    ctypedef struct th_sum_rows:
        const double *value
        const int64_t *weight
        int power
        const int64_t *entry
        const int64_t *offset
        const int64_t *order
        const int64_t *size
        size_t groups

    ctypedef struct th_sum_done:
        size_t group
        size_t row
        size_t entries

    bint th_sum_add(const th_sum_rows *rows, th_sum_done *done, int64_t *entry, size_t room, int64_t *length)
    bint th_sum_round(const int64_t *entry, const int64_t *offset, size_t n, double *value)


cdef extern from "th_run.h" nogil:
    const size_t TH_RUN_PAGE
    const int64_t TH_RUN_LONGEST
    const size_t TH_RUN_RECORDS
    const size_t TH_RUN_CHUNK

    ctypedef enum th_run_status:
        TH_RUN_DONE
        TH_RUN_FULL
        TH_RUN_FAILED
        TH_RUN_DAMAGED
        TH_RUN_TWICE

    ctypedef struct th_run:
        int fd
        uint64_t at
        uint64_t seed
        size_t records
        size_t times
        size_t record_pages
        size_t time_pages
        int64_t *first_id
        uint32_t *first_number
        int64_t *first_ts

    ctypedef struct th_taken:
        size_t n
        int64_t *number
        int64_t *id
        int64_t *end
        uint8_t *data
        size_t room
        size_t used
        size_t done

    ctypedef struct th_due_times:
        int64_t *ts
        int64_t *number
        size_t room
        size_t n
        size_t next

    ctypedef struct th_run_input:
        size_t n
        size_t times
        const int64_t *id
        const int64_t *end
        const uint8_t *data
        const int64_t *ts
        const uint32_t *of

    ctypedef struct th_run_scratch:
        uint8_t *in_ "in"
        uint8_t *out
        uint32_t *old
        uint32_t *added

    size_t th_run_pages(const th_run *r)
    th_run_status th_run_open(th_run *r)
    th_run_status th_run_check(const th_run *r, uint8_t *buffer)
    th_run_status th_run_find(const th_run *r, const uint8_t *dead, th_taken *t)
    th_run_status th_run_gather(const th_run *r, th_taken *t)
    th_run_status th_run_due(const th_run *r, const uint8_t *dead, int64_t time, th_due_times *d)
    void th_run_most_pages(const th_run *from_, size_t n, size_t size, size_t times, size_t *record_pages,
                           size_t *time_pages)
    th_run_status th_run_merge(th_run *to, const th_run *from_, const uint8_t *dead, int64_t low, int64_t high,
                               const th_run_input *more, const th_run_scratch *s)
