# Rows as codes, on csrc/th_code.h.

OF_FIELDS, OF_NOTHING, OF_BIT, OF_SIGNED = TH_OF_FIELDS, TH_OF_NOTHING, TH_OF_BIT, TH_OF_SIGNED
OF_UNSIGNED, OF_FLOAT, OF_BYTES, OF_TEXT = TH_OF_UNSIGNED, TH_OF_FLOAT, TH_OF_BYTES, TH_OF_TEXT


@cython.final
@cython.no_gc  # otherwise the array could be reached with gc.get_referents()
@cython.auto_pickle(False)
cdef class CodeFormat:
    """How the values of one type become codes, and back.

    `fields` are those of the type: (kind, width, descending, nulls_last, span) of each, a struct before its own fields.
    The first `lead` of them order the codes. A ValueError is raised if they are no format.
    """

    cdef th_format f
    cdef cnp.ndarray fields

    def __cinit__(self, fields, lead):
        cdef list held = list(fields)
        cdef size_t k, n = len(held)
        cdef cnp.ndarray array = _zeros(n * sizeof(th_field), cnp.NPY_UINT8)
        cdef th_field *field = <th_field *>cnp.PyArray_DATA(array)
        for k in range(n):
            kind, width, descending, nulls_last, span = held[k]
            field[k].kind, field[k].width, field[k].span = kind, width, span
            field[k].descending, field[k].nulls_last = bool(descending), bool(nulls_last)
        self.fields = array
        self.f.field, self.f.fields, self.f.lead = field, n, lead
        if not th_format_check(&self.f):
            raise ValueError(f"fields and lead must be those of a type, got {_shown(held)} and {_shown(lead)}")


@cython.final
@cython.no_gc
@cython.auto_pickle(False)
cdef class Codes:
    """Codes one after the other: code i is `data`, bytes, from `offsets[i]` to `offsets[i + 1]`, int64. It copies them."""

    cdef cnp.ndarray data
    cdef cnp.ndarray offsets
    cdef th_codes c

    def __cinit__(self, data=None, offsets=None):
        if data is None:  # no codes; those of C get their arrays later
            return
        cdef const unsigned char[::1] bytes_ = _bytes_of(data, "data")
        cdef cnp.ndarray at = _contiguous(offsets, "offsets").copy()
        if not at.shape[0]:
            raise ValueError("offsets must have one more than there are codes, got none")
        self.data = _empty(bytes_.shape[0], cnp.NPY_UINT8)
        if bytes_.shape[0]:
            memcpy(cnp.PyArray_DATA(self.data), &bytes_[0], bytes_.shape[0])
        self.offsets = at
        self.point()
        if not th_codes_check(&self.c, bytes_.shape[0]):
            raise ValueError("offsets must ascend from 0 or more, within data, and no code be longer than 2**32 - 1")

    cdef void point(self) noexcept:
        self.c.data, self.c.offset = _uint8s(self.data), _int64s(self.offsets)
        self.c.n = self.offsets.shape[0] - 1

    def __len__(self):
        """Return the number of codes."""
        return self.c.n

    def take(self, rows):
        """Return the codes at these positions, int64, shape (m,), which must not be negative. O(bytes)."""
        cdef _Columns columns = _Columns(None)
        cdef th_column of_rows = columns.take(rows, "rows")
        cdef size_t k, m = columns.count(), size = 0
        cdef cnp.ndarray at = _copied(of_rows, m)
        cdef const int64_t *offset = self.c.offset
        cdef const int64_t *row = _int64s(at)
        cdef cnp.ndarray offsets = _zeros(m + 1, cnp.NPY_INT64), data
        for k in range(m):
            if <uint64_t>row[k] >= self.c.n:
                raise ValueError(f"rows must be from 0 to {self.c.n} - 1, got {row[k]}")
            size += offset[row[k] + 1] - offset[row[k]]
            _int64s(offsets)[k + 1] = size
        data = _empty(size, cnp.NPY_UINT8)
        for k in range(m):
            memcpy(_uint8s(data) + _int64s(offsets)[k], self.c.data + offset[row[k]], offset[row[k] + 1] - offset[row[k]])
        return _codes_of(data, offsets)

    def columns(self):
        """Return where each code ends in the bytes of all, int64, shape (n,), and these bytes, uint8: copies. O(bytes)."""
        return self.offsets[1:] - self.offsets[0], self.data[self.offsets[0]:self.offsets[self.c.n]].copy()

    def tolist(self):
        """Return the codes as bytes."""
        cdef size_t k
        cdef int64_t start, stop
        cdef list codes = []
        for k in range(self.c.n):
            start, stop = self.c.offset[k], self.c.offset[k + 1]
            codes.append(PyBytes_FromStringAndSize(<const char *>self.c.data + start, stop - start))
        return codes


cdef Codes _codes_of(cnp.ndarray data, cnp.ndarray offsets):
    """Return codes on arrays that nobody else has."""
    cdef Codes codes = Codes.__new__(Codes)
    codes.data, codes.offsets = data, offsets
    codes.point()
    return codes


def encode(CodeFormat format not None, columns):
    """Return the Codes of rows, whose values are in an ArrayView for each field of the format. O(bytes).

    The view of a struct, and of a field that is always null, has FIXED values of the width 0. A ValueError is raised if
    an offset lies outside of its data or a code would be longer than 2**32 - 1 bytes.
    """
    cdef list held = list(columns)
    cdef size_t k, n = 0, count = format.f.fields
    if <size_t>len(held) != count:
        raise ValueError(f"columns must have a view for each of {count} fields, got {len(held)}")
    cdef cnp.ndarray arrays = _empty(count * sizeof(th_array), cnp.NPY_UINT8)
    cdef th_array *array = <th_array *>cnp.PyArray_DATA(arrays)
    cdef ArrayView view
    for k in range(count):
        view = held[k]
        n = view.a.n
        _expect_kind(&format.f.field[k], view)
        array[k] = view.a
        if n != array[0].n:
            raise ValueError(f"columns must have {array[0].n} values each, got {n}")
    cdef cnp.ndarray offsets = _empty(n + 1, cnp.NPY_INT64), data
    cdef th_status status = th_code_measure(&format.f, array, n, _int64s(offsets))
    if status == TH_FULL:
        raise ArgumentValueError(f"the code of a value must have at most {TH_CODE_MAX} bytes, got more")
    if status == TH_YES:
        data = _empty(_int64s(offsets)[n], cnp.NPY_UINT8)
        status = th_code_write(&format.f, array, n, _int64s(offsets), _uint8s(data))
    if status != TH_YES:
        raise ValueError("an offset lies outside of its array")
    return _codes_of(data, offsets)


cdef int _expect_kind(const th_field *field, ArrayView view) except -1:
    cdef th_kind kind = TH_FIXED
    if field.kind == TH_OF_BIT:
        kind = TH_BITS
    elif field.kind == TH_OF_TEXT:
        kind = TH_TEXT
    elif field.kind == TH_OF_FLOAT:
        kind = TH_FLOAT
    if view.a.kind != kind or (kind != TH_TEXT and view.a.width != field.width):
        raise ValueError(f"a column of kind {field.kind} and width {field.width} must have a view of such values")
    return 0


def decode(CodeFormat format not None, Codes codes not None):
    """Return the buffers of each field: validity or None, number of nulls, offsets (int64) or None, and data. O(bytes).

    A ValueError is raised if the codes are not of this format.
    """
    cdef size_t k, n = codes.c.n, count = format.f.fields
    cdef cnp.ndarray held = _zeros(count * sizeof(th_values), cnp.NPY_UINT8), valid, data, offsets
    cdef th_values *values = <th_values *>cnp.PyArray_DATA(held)
    cdef const th_field *field
    if th_code_sizes(&format.f, &codes.c, values) != TH_YES:
        raise ValueError("codes must be of the format, got other bytes")
    result, unused = [], []  # the bitmaps of fields without nulls are written, too
    for k in range(count):
        field = &format.f.field[k]
        valid, offsets = _zeros((n + 7) // 8, cnp.NPY_UINT8), None
        if field.kind == TH_OF_TEXT:
            offsets = _zeros(n + 1, cnp.NPY_INT64)
            data = _empty(values[k].size, cnp.NPY_UINT8)
            values[k].offset = _int64s(offsets)
        else:
            data = _zeros((n + 7) // 8 if field.kind == TH_OF_BIT else n * field.width, cnp.NPY_UINT8)
        values[k].valid, values[k].data = _uint8s(valid), _uint8s(data)
        unused.append(valid)
        result.append((valid if values[k].nulls else None, values[k].nulls, offsets, data))
    th_code_read(&format.f, &codes.c, values)
    return result


def add_up(ids, Codes codes not None, weights):
    """Add up the weights of rows, by id and code: return the first row of each, and the sums. O(n log n).

    Both are int64, in the order of ids and codes; a sum may be 0. An ArgumentRangeError is raised if a sum is beyond the
    int64 that can be negated.
    """
    return _added_up(_own_column(ids, "ids", codes), codes, _own_column(weights, "weights", codes), False)


cdef cnp.ndarray _copied(th_column column, size_t n):
    """Return a copy of an argument, to which nobody else can write."""
    cdef cnp.ndarray copy = _empty(n, cnp.NPY_INT64)
    cdef size_t k
    for k in range(n):
        _int64s(copy)[k] = column.data[<Py_ssize_t>k * column.step]
    return copy


cdef cnp.ndarray _own_column(object value, str name, Codes codes):
    """Return a copy of a column of int64 with a value for each code."""
    cdef _Columns columns = _Columns(None)
    cdef th_column column = columns.take(value, name)
    cdef size_t n = columns.count()
    if n != codes.c.n:
        raise ArgumentValueError(f"{name} must have {codes.c.n} values, one for each code, got {n}")
    return _copied(column, n)


cdef tuple _added_up(cnp.ndarray ids, Codes codes, cnp.ndarray weights, bint changed):
    """See `add_up`; or only the rows that have `changed`, whose sums are not 0."""
    cdef size_t k, n = codes.c.n, distinct, kept = 0
    cdef cnp.ndarray rows = _empty(n, cnp.NPY_INT64), sums = _empty(n, cnp.NPY_INT64)
    cdef cnp.ndarray scratch = _empty(2 * n * sizeof(th_placed), cnp.NPY_UINT8)
    cdef int64_t *row = _int64s(rows)
    cdef int64_t *sum_ = _int64s(sums)
    cdef th_weighted weighted
    weighted.id, weighted.weight, weighted.codes = _int64s(ids), _int64s(weights), codes.c
    distinct = th_code_add_up(&weighted, <th_placed *>cnp.PyArray_DATA(scratch), row, sum_)
    if distinct == SIZE_MAX:
        raise _beyond()
    for k in range(distinct):
        row[kept], sum_[kept] = row[k], sum_[k]
        kept += not changed or sum_[k] != 0
    return _front_of(rows, kept), _front_of(sums, kept)


cdef cnp.ndarray _front_of(cnp.ndarray column, size_t n):
    """Return the first n values of a column."""
    if <size_t>column.shape[0] == n:
        return column
    cdef cnp.ndarray front = _empty(n, cnp.NPY_INT64)
    memcpy(cnp.PyArray_DATA(front), cnp.PyArray_DATA(column), n * sizeof(int64_t))
    return front


cdef object _beyond():
    return ArgumentRangeError(f"the weights of a value must add up to an integer from {-INT64_MAX} to {INT64_MAX}; "
                              "nothing has been changed")
