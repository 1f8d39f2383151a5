# Frames: the rows that one task sends to one shuffle partition, on csrc/th_pack.h. A frame lives for one micro-batch.
#
# All numbers are in the order of the machine, and all parts start at multiples of 8 bytes: a header; for each column a
# _Column; for each key group its number and its rows, u32 each; bytes that the caller describes the columns with; and
# for each column the validity if it has nulls, and its values. The values of text are lengths, and the text follows.
# Those of a nested column are bytes of the caller. The checksum is the XXH64 of all that comes before the values.

cdef enum:
    _FRAME_VERSION = 1
    _NESTED = 4  # beside the kinds of th_array.h

NESTED = _NESTED


cdef struct _Frame:
    uint32_t magic
    uint16_t version
    uint16_t columns
    uint64_t size
    uint64_t rows
    uint32_t groups
    uint32_t described
    uint64_t checksum


cdef struct _Column:
    uint32_t kind
    uint16_t width  # of a value as it is written
    uint8_t narrow  # whether it was an integer of 8 bytes, less the base
    uint8_t nulls
    int64_t base
    uint64_t size  # bytes of text, or of a nested column


cdef uint32_t _FRAME_MAGIC = 0x46484D54  # "TMHF"


cdef inline uint64_t _padded(uint64_t size) noexcept:
    return (size + 7) & ~<uint64_t>7


cdef uint64_t _values_size(const _Column *column, uint64_t rows) noexcept:
    if column.kind == TH_BITS:
        return (rows + 7) // 8
    return 0 if column.kind == _NESTED else rows * column.width


cdef uint64_t _column_size(const _Column *column, uint64_t rows) noexcept:
    """Return the number of bytes of a column; no part may have 2**62 or more."""
    cdef uint64_t size = _padded(_values_size(column, rows)) + _padded(column.size)
    return size + _padded((rows + 7) // 8) if column.nulls else size


cdef uint64_t _front_size(const _Frame *frame) noexcept:
    return (sizeof(_Frame) + frame.columns * sizeof(_Column) + 8 * <uint64_t>frame.groups
            + _padded(frame.described))


cdef uint64_t _frame_checksum(const uint8_t *start, uint64_t size) noexcept:
    """Return the checksum of the first `size` bytes of a frame, without that of the header."""
    cdef th_xxh64 x
    cdef size_t head = sizeof(_Frame) - sizeof(uint64_t)
    th_xxh64_begin(&x, _FRAME_VERSION)
    th_xxh64_add(&x, start, head)
    th_xxh64_add(&x, start + sizeof(_Frame), size - sizeof(_Frame))
    return th_xxh64_end(&x)


cdef object _wrong_frame(str why):
    return ValueError(f"data must be a frame of this version of timerheap, got other or damaged bytes: {why}")


def read_frame(data):
    """Return what a frame of `Packing.frames` holds, without copying what was not written with fewer bytes.

    `data` may be any bytes; they must not change as long as the result is in use. A ValueError is raised if they are
    not a frame. The result is the number of rows; the description; the key groups in the order of their rows, and
    the number of rows of each (int64); and for each column the parameters (kind, width, validity, offsets, data) of
    an `ArrayView` of all rows. Text has offsets of 4 bytes. A nested column has the kind NESTED, and the bytes of
    the caller as its data.
    """
    cdef const unsigned char[::1] view = _bytes_of(data, "data")
    cdef _Frame head
    cdef _Column column
    cdef uint64_t at, rows = 0
    cdef uint32_t pair[2]
    cdef size_t k
    if view.shape[0] < <Py_ssize_t>sizeof(_Frame):
        raise _wrong_frame(f"{view.shape[0]} bytes, a header alone has {sizeof(_Frame)}")
    memcpy(&head, &view[0], sizeof(_Frame))
    if head.magic != _FRAME_MAGIC:
        raise _wrong_frame("it begins otherwise")
    if head.version != _FRAME_VERSION:
        raise _wrong_frame(f"it has the version {head.version}, not {_FRAME_VERSION}")
    if head.size != <uint64_t>view.shape[0]:
        raise _wrong_frame(f"{view.shape[0]} bytes, its header says {head.size}")
    if _front_size(&head) > head.size or head.rows >= <uint64_t>1 << 46:
        raise _wrong_frame("its header says more than it can hold")
    if head.checksum != _frame_checksum(&view[0], _front_size(&head)):
        raise _wrong_frame("its checksum is wrong")
    bytes_ = memoryview(data).cast("B")
    at = sizeof(_Frame) + head.columns * sizeof(_Column)
    groups, counts = _empty(head.groups, cnp.NPY_INT64), _empty(head.groups, cnp.NPY_INT64)
    for k in range(head.groups):
        memcpy(pair, &view[at + k * sizeof(pair)], sizeof(pair))
        groups[k], counts[k] = pair[0], pair[1]
        rows += pair[1]
    if rows != head.rows:
        raise _wrong_frame(f"its key groups have {rows} rows, its header says {head.rows}")
    at += head.groups * sizeof(pair)
    description = bytes_[at:at + head.described]
    at = _front_size(&head)
    columns = []
    for k in range(head.columns):
        memcpy(&column, &view[sizeof(_Frame) + k * sizeof(_Column)], sizeof(_Column))
        if column.size > head.size or at + _column_size(&column, rows) > head.size:
            raise _wrong_frame(f"column {k} lies outside of it")
        columns.append(_read_column(view, bytes_, at, &column, rows))
        at += _column_size(&column, rows)
    if at != head.size:
        raise _wrong_frame(f"{head.size} bytes, its columns have {at}")
    return rows, description, groups, counts, columns


cdef tuple _read_column(const unsigned char[::1] view, object bytes_, uint64_t at, const _Column *column, uint64_t rows):
    """Return a column of a frame, which lies within its bytes."""
    cdef uint64_t values = _values_size(column, rows)
    cdef unsigned width = column.width
    cdef cnp.ndarray wide
    validity = None
    if column.nulls:
        validity = bytes_[at:at + (rows + 7) // 8]
        at += _padded((rows + 7) // 8)
    data = bytes_[at:at + values]
    if column.kind == _NESTED:
        return NESTED, 0, validity, None, bytes_[at:at + column.size]
    if column.kind == TH_TEXT and width in (1, 2, 4):
        wide = _empty(rows + 1, cnp.NPY_INT32)
        if th_pack_offsets(&view[0] + at, width, rows, column.size, <int32_t *>cnp.PyArray_DATA(wide)) != TH_YES:
            raise _wrong_frame("the lengths of a text do not add up")
        at += _padded(values)
        return TEXT, 4, validity, wide, bytes_[at:at + column.size]
    if column.size or column.kind not in (TH_BITS, TH_FIXED, TH_FLOAT):
        raise _wrong_frame(f"a column has the kind {column.kind}, a width of {width} and {column.size} more bytes")
    if column.kind == TH_FIXED and column.narrow:
        if width not in (1, 2, 4):
            raise _wrong_frame(f"numbers cannot have {width} bytes")
        wide = _empty(rows, cnp.NPY_INT64)
        th_pack_widen(&view[0] + at, width, column.base, rows, _int64s(wide))
        return FIXED, 8, validity, None, wide
    return column.kind, width, validity, None, data

# Rows to frames, on csrc/th_pack.h.


def spark_hashes(ArrayView values not None, seeds=None):
    """Return Spark's xxhash64 of each value with its seed, int64, by default 42; null leaves the seed.

    The values are TEXT, or FIXED with a width of 1, 2, 4 or 8: integers. A ValueError is raised if an offset lies
    outside of the data.
    """
    cdef unsigned width = values.a.width
    cdef size_t n = values.a.n, i
    if values.a.kind != TH_TEXT and (values.a.kind != TH_FIXED or width not in (1, 2, 4, 8)):
        raise ValueError("values must be TEXT, or FIXED with a width of 1, 2, 4 or 8 bytes, got others")
    cdef cnp.ndarray hashes
    if seeds is None:
        hashes = _empty(n, cnp.NPY_INT64)
        for i in range(n):
            _int64s(hashes)[i] = 42
    else:
        hashes = _column_of(seeds, "seeds", cnp.NPY_INT64, n).copy()
    if th_pack_hash(&values.a, _int64s(hashes)) != TH_YES:
        raise ValueError("an offset lies outside of its array")
    return hashes


@cython.final
@cython.auto_pickle(False)
cdef class Packing:
    """The order in which rows are packed: by shuffle partition, then by key group, then as they came.

    `hashes` are those of the keys, int64, in parts. A row is in the key group of its hash modulo `max_parallelism`,
    and a group on the partition of its number modulo `partitions`. The attributes are the partitions that have rows,
    and their numbers of rows, int64.
    """

    cdef readonly cnp.ndarray partitions
    cdef readonly cnp.ndarray rows
    cdef list ranks  # of the rows of each part
    cdef cnp.ndarray counts  # rows of each rank
    cdef cnp.ndarray groups  # of each rank
    cdef cnp.ndarray starts  # the first rank of each partition with rows, and the end of the last

    def __cinit__(self, hashes, max_parallelism, partitions):
        cdef int64_t n = _int64(max_parallelism, "max_parallelism"), count = _int64(partitions, "partitions")
        cdef cnp.ndarray part, ranks
        if not 1 <= n <= <int64_t>TH_MAX_GROUPS:
            raise ValueError(f"max_parallelism must be from 1 to {TH_MAX_GROUPS}, got {n}")
        if count < 1:
            raise ValueError(f"partitions must be 1 or more, got {count}")
        self.groups, self.counts = _empty(n, cnp.NPY_INT64), _zeros(n, cnp.NPY_UINT64)
        cdef cnp.ndarray rank_of = _empty(n, cnp.NPY_UINT16)
        cdef size_t used = min(n, count), rank = 0, group, partition
        for partition in range(used):
            for group in range(partition, n, count):
                _int64s(self.groups)[rank] = group
                (<uint16_t *>cnp.PyArray_DATA(rank_of))[group] = rank
                rank += 1
        self.ranks = []
        for k, one in enumerate(hashes):
            part = _column_of(one, f"hashes[{k}]", cnp.NPY_INT64, len(one))
            ranks = _empty(part.shape[0], cnp.NPY_UINT16)
            th_pack_rank(_int64s(part), part.shape[0], n,
                         <const uint16_t *>cnp.PyArray_DATA(rank_of), <uint16_t *>cnp.PyArray_DATA(ranks),
                         <uint64_t *>cnp.PyArray_DATA(self.counts))
            self.ranks.append(ranks)
        self.find_partitions(n, count)

    cdef int find_partitions(self, size_t n, size_t count) except -1:
        """Find the partitions that have rows. A loop, as NumPy's own do not survive every failed allocation."""
        cdef const uint64_t *counts = <const uint64_t *>cnp.PyArray_DATA(self.counts)
        cdef size_t used = min(n, count), partition, rank = 0, end, found = 0
        cdef uint64_t rows
        cdef cnp.ndarray columns = _empty(3 * used, cnp.NPY_INT64)
        cdef int64_t *column = _int64s(columns)
        for partition in range(used):
            rows, end = 0, rank + (n - partition + count - 1) // count
            for r in range(rank, end):
                rows += counts[r]
            if rows:
                column[found], column[used + found], column[2 * used + found] = partition, rows, rank
                found += 1
            rank = end
        self.partitions = columns[:found]
        self.rows = columns[used:used + found]
        self.starts = columns[2 * used:2 * used + found]
        return 0

    def order(self):
        """Return the positions of the rows, in one sequence of all parts, in the order of packing: int64. O(n)."""
        cdef const uint64_t *counts = <const uint64_t *>cnp.PyArray_DATA(self.counts)
        cdef size_t n_ranks = self.counts.shape[0], r, i, row = 0, rows = 0
        cdef cnp.ndarray starts = _empty(n_ranks, cnp.NPY_UINT64), part
        cdef uint64_t *next_ = <uint64_t *>cnp.PyArray_DATA(starts)
        cdef const uint16_t *rank
        for r in range(n_ranks):
            next_[r] = rows
            rows += counts[r]
        cdef cnp.ndarray order = _empty(rows, cnp.NPY_INT64)
        for part in self.ranks:
            rank = <const uint16_t *>cnp.PyArray_DATA(part)
            for i in range(<size_t>part.shape[0]):
                _int64s(order)[next_[rank[i]]] = row
                next_[rank[i]] += 1
                row += 1
        return order

    def frames(self, description, columns):
        """Return one frame for each partition that has rows, one after the other, and where each ends.

        `description` are bytes that `read_frame` returns beside the columns. `columns` has for each column a list:
        of an ArrayView for each part or, for a nested column, of bytes for each partition. A ValueError is raised if
        the parts of a column differ in kind, have other lengths than the hashes, or have an offset that lies outside
        of the data.
        """
        cdef _FrameWriter writer = _FrameWriter(self, _bytes_of(description, "description"), columns)
        writer.measure()
        writer.write()
        return writer.data, writer.ends


@cython.final
@cython.auto_pickle(False)
cdef class _FrameWriter:
    """Writes the frames of one `Packing`: first measures all columns, then copies them."""

    cdef Packing packing
    cdef const unsigned char[::1] description
    cdef list columns
    cdef list nested  # for each column the bytes of each partition, or None
    cdef size_t count, frames, n_ranks
    cdef cnp.ndarray described  # _Column of each frame and column
    cdef cnp.ndarray sizes  # bytes of text of each column and rank
    cdef cnp.ndarray heads  # _Frame of each frame
    cdef readonly cnp.ndarray ends
    cdef readonly cnp.ndarray data

    def __cinit__(self, Packing packing, const unsigned char[::1] description, list columns):
        self.packing, self.description = packing, description
        self.columns = [list(column) for column in columns]  # the caller may change its lists after the checks
        self.count, self.frames = len(self.columns), packing.partitions.shape[0]
        self.n_ranks = packing.counts.shape[0]
        if self.count >= 1 << 16 or description.shape[0] >= 1 << 31:
            raise ValueError("a frame must have fewer than 65536 columns and 2**31 bytes of description")
        self.nested = []
        for k, column in enumerate(self.columns):
            if column and isinstance(column[0], ArrayView):
                self.expect(column, f"columns[{k}]")
                self.nested.append(None)
            elif len(column) == <Py_ssize_t>self.frames:
                self.nested.append([_bytes_of(one, f"columns[{k}]") for one in column])
            else:
                raise ValueError(f"columns[{k}] must have bytes for {self.frames} partitions, got {len(column)}")

    cdef int expect(self, list column, str name) except -1:
        """Check that the views of a column are of one kind, and have the rows that were counted."""
        cdef ArrayView first = column[0], view
        if len(column) != len(self.packing.ranks):
            raise ValueError(f"{name} must have {len(self.packing.ranks)} parts, got {len(column)}")
        for one, ranks in zip(column, self.packing.ranks):
            if not isinstance(one, ArrayView):
                raise TypeError(f"{name} must be of ArrayView alone, got {_shown(one)}")
            view = one
            if view.a.kind != first.a.kind or (view.a.kind != TH_TEXT and view.a.width != first.a.width):
                raise ValueError(f"{name} must have parts of one kind and width, got several")
            if len(view) != len(ranks):
                raise ValueError(f"{name} must have parts as long as the hashes, got {len(view)} for {len(ranks)} rows")
        return 0

    cdef int measure(self) except -1:
        """Describe each column of each frame."""
        cdef ArrayView view
        cdef size_t k, f, r, end
        cdef cnp.ndarray scratch = _empty(max(1, self.n_ranks * sizeof(th_need)), cnp.NPY_UINT8), ranks
        cdef th_need *need = <th_need *>cnp.PyArray_DATA(scratch)
        self.described = _zeros(self.frames * self.count * sizeof(_Column), cnp.NPY_UINT8)
        self.sizes = _zeros(self.count * self.n_ranks, cnp.NPY_UINT64)
        cdef uint64_t *sizes = <uint64_t *>cnp.PyArray_DATA(self.sizes)
        cdef _Column *column
        for k in range(self.count):
            if self.nested[k] is not None:
                for f in range(self.frames):
                    column = self.column(f, k)
                    column.kind, column.size = _NESTED, len(self.nested[k][f])
                continue
            for r in range(self.n_ranks):
                need[r] = th_need(0, 0, 0, INT64_MAX, INT64_MIN)
            for one, part in zip(self.columns[k], self.packing.ranks):
                view, ranks = one, part
                if th_pack_measure(&view.a, <const uint16_t *>cnp.PyArray_DATA(ranks), need) != TH_YES:
                    raise ValueError(f"an offset of columns[{k}] lies outside of its data")
            for r in range(self.n_ranks):
                sizes[k * self.n_ranks + r] = need[r].size
            view = self.columns[k][0]
            for f in range(self.frames):
                _describe(self.column(f, k), &view.a, need, self.rank(f), self.rank(f + 1))
        return 0

    cdef _Column *column(self, size_t frame, size_t k) noexcept:
        return <_Column *>cnp.PyArray_DATA(self.described) + frame * self.count + k

    cdef size_t rank(self, size_t frame) noexcept:
        """Return the first rank of a frame, or the end of the ranks."""
        cdef cnp.ndarray starts = self.packing.starts
        return _int64s(starts)[frame] if frame < self.frames else self.n_ranks

    cdef int write(self) except -1:
        cdef size_t f, k, r
        cdef uint64_t at = 0, size
        cdef uint64_t *ends
        cdef uint64_t *counts = <uint64_t *>cnp.PyArray_DATA(self.packing.counts)
        cdef _Frame *head
        self.ends = _empty(self.frames, cnp.NPY_INT64)
        self.heads = _zeros(self.frames * sizeof(_Frame), cnp.NPY_UINT8)
        ends = <uint64_t *>cnp.PyArray_DATA(self.ends)
        for f in range(self.frames):
            head = <_Frame *>cnp.PyArray_DATA(self.heads) + f
            head.magic, head.version, head.columns = _FRAME_MAGIC, _FRAME_VERSION, self.count
            for r in range(self.rank(f), self.rank(f + 1)):
                head.rows += counts[r]
                head.groups += counts[r] != 0
            head.described = self.description.shape[0]
            head.size = _front_size(head)
            for k in range(self.count):
                head.size += _column_size(self.column(f, k), head.rows)
            at += head.size
            ends[f] = at
        self.data = _empty(at, cnp.NPY_UINT8)
        at = 0
        for f in range(self.frames):
            head = <_Frame *>cnp.PyArray_DATA(self.heads) + f
            self.write_front(_uint8s(self.data) + at, head, f)
            at = ends[f]
        self.write_columns()
        return 0

    cdef int write_front(self, uint8_t *start, _Frame *head, size_t f) except -1:
        cdef uint64_t *counts = <uint64_t *>cnp.PyArray_DATA(self.packing.counts)
        cdef int64_t *groups = _int64s(self.packing.groups)
        cdef uint8_t *to = start + sizeof(_Frame)
        cdef uint32_t pair[2]
        cdef size_t r
        if self.count:
            memcpy(to, self.column(f, 0), self.count * sizeof(_Column))
            to += self.count * sizeof(_Column)
        for r in range(self.rank(f), self.rank(f + 1)):
            if counts[r]:
                pair[0], pair[1] = <uint32_t>groups[r], <uint32_t>counts[r]
                memcpy(to, pair, sizeof(pair))
                to += sizeof(pair)
        memset(to, 0, _padded(head.described))
        if head.described:
            memcpy(to, &self.description[0], head.described)
        memcpy(start, head, sizeof(_Frame))
        head.checksum = _frame_checksum(start, _front_size(head))
        memcpy(start, head, sizeof(_Frame))
        return 0

    cdef int write_columns(self) except -1:
        cdef cnp.ndarray scratch = _zeros(max(1, self.n_ranks * sizeof(th_target)), cnp.NPY_UINT8), ranks
        cdef cnp.ndarray places = _empty(self.frames, cnp.NPY_UINT64)  # where the next column of each frame starts
        cdef uint64_t *place = <uint64_t *>cnp.PyArray_DATA(places)
        cdef th_target *targets = <th_target *>cnp.PyArray_DATA(scratch)
        cdef const unsigned char[::1] piece
        cdef ArrayView view
        cdef const _Frame *head
        cdef const _Column *column
        cdef size_t f, k
        cdef bint nulls
        cdef uint8_t *start = _uint8s(self.data)
        cdef uint64_t at = 0
        for f in range(self.frames):
            head = <const _Frame *>cnp.PyArray_DATA(self.heads) + f
            place[f] = at + _front_size(head)
            at += head.size
        for k in range(self.count):
            nulls = False
            for f in range(self.frames):
                head = <const _Frame *>cnp.PyArray_DATA(self.heads) + f
                column = self.column(f, k)
                nulls |= column.nulls
                if self.nested[k] is None:
                    self.aim(targets, start + place[f], column, head.rows, f, k)
                elif column.size:
                    piece = self.nested[k][f]
                    memcpy(start + place[f], &piece[0], column.size)
                    memset(start + place[f] + column.size, 0, _padded(column.size) - column.size)
                place[f] += _column_size(column, head.rows)
            if self.nested[k] is not None:
                continue
            for one, part in zip(self.columns[k], self.packing.ranks):
                view, ranks = one, part
                if th_pack_put(&view.a, <const uint16_t *>cnp.PyArray_DATA(ranks), nulls, targets) != TH_YES:
                    raise ValueError(f"columns[{k}] must not change while it is packed, but it has changed")
        return 0

    cdef int aim(self, th_target *targets, uint8_t *to, const _Column *column, uint64_t rows, size_t f, size_t k) except -1:
        """Point the targets of the ranks of a frame to one column in it, and clear its padding and its bits."""
        cdef uint64_t *counts = <uint64_t *>cnp.PyArray_DATA(self.packing.counts)
        cdef uint64_t values = _values_size(column, rows), bits = _padded((rows + 7) // 8)
        cdef uint64_t row = 0
        cdef const uint64_t *sizes = <const uint64_t *>cnp.PyArray_DATA(self.sizes) + k * self.n_ranks
        cdef size_t r
        cdef uint8_t *valid = NULL
        cdef uint8_t *text
        cdef th_target *target
        if column.nulls:
            valid = to
            memset(valid, 0, bits)
            to += bits
        if column.kind == TH_BITS:
            memset(to, 0, _padded(values))
        else:
            memset(to + values, 0, _padded(values) - values)
        text = to + _padded(values)
        memset(text + column.size, 0, _padded(column.size) - column.size)
        for r in range(self.rank(f), self.rank(f + 1)):
            target = &targets[r]
            target.valid, target.row, target.base, target.width = valid, row, column.base, column.width
            target.value = to if column.kind == TH_BITS else to + row * column.width
            target.text = text
            text += sizes[r]
            target.end = text
            row += counts[r]
        return 0


cdef void _describe(_Column *column, const th_array *a, const th_need *need, size_t first, size_t end) noexcept:
    """Choose how the values of ranks [first, end) are written: in as few bytes as all of them allow."""
    cdef int64_t low = INT64_MAX, high = INT64_MIN
    cdef uint64_t longest = 0, nulls = 0
    cdef size_t r
    for r in range(first, end):
        nulls += need[r].nulls
        column.size += need[r].size
        longest = max(longest, need[r].longest)
        low, high = min(low, need[r].low), max(high, need[r].high)
    column.kind, column.width, column.nulls = a.kind, a.width, nulls != 0
    if a.kind == TH_TEXT:
        column.width = _fewest(longest)
    elif a.kind == TH_FIXED and a.width == 8:
        column.width = 1 if low > high else _fewest(<uint64_t>high - <uint64_t>low)
        column.narrow = column.width < 8
        column.base = low if low <= high and column.narrow else 0


cdef unsigned _fewest(uint64_t largest) noexcept:
    """Return the number of bytes that a number takes: 1, 2, 4 or 8."""
    if largest < <uint64_t>1 << 16:
        return 1 if largest < 1 << 8 else 2
    return 4 if largest < <uint64_t>1 << 32 else 8
