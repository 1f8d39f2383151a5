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

    These are the number of rows, the description, the key groups in the order of their rows, the number of rows of
    each, and for each column the parameters of an `ArrayView` of all rows: kind, width, validity, offsets, data. Text
    has offsets of 4 bytes. A nested column has the kind NESTED, and the bytes of the caller as its data. The bytes of
    the frame must not change as long as the result is in use. Raises ValueError if they are not a frame.
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
        if th_pack_offsets(_at(view, at), width, rows, column.size, <int32_t *>cnp.PyArray_DATA(wide)) != TH_YES:
            raise _wrong_frame("the lengths of a text do not add up")
        at += _padded(values)
        return TEXT, 4, validity, wide, bytes_[at:at + column.size]
    if column.size or column.kind not in (TH_BITS, TH_FIXED, TH_FLOAT):
        raise _wrong_frame(f"a column has the kind {column.kind}, a width of {width} and {column.size} more bytes")
    if column.kind == TH_FIXED and column.narrow:
        if width not in (1, 2, 4):
            raise _wrong_frame(f"numbers cannot have {width} bytes")
        wide = _empty(rows, cnp.NPY_INT64)
        th_pack_widen(_at(view, at), width, column.base, rows, <int64_t *>cnp.PyArray_DATA(wide))
        return FIXED, 8, validity, None, wide
    return column.kind, width, validity, None, data


cdef const uint8_t *_at(const unsigned char[::1] view, uint64_t at) noexcept:
    return &view[0] + at
