# Arguments of the heaps: converts to int64 without loss, or raises an error that names the argument.


cdef str _shown(object value):
    cdef str text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


cdef str _hint(object value):
    if isinstance(value, datetime.datetime):
        return "; convert it first: int(x.timestamp() * 1000) is epoch milliseconds"
    unit = {"M": "datetime64[ms]", "m": "timedelta64[ms]"}.get(getattr(getattr(value, "dtype", None), "kind", ""))
    return f"; convert it first: np.asarray(x, '{unit}').astype(np.int64) is in milliseconds" if unit else ""


cdef inline int64_t _int64(object value, str name) except? -1:
    """Convert an int, or an object with `__index__`, to int64."""
    cdef int overflow = 0
    cdef int64_t result
    if PyLong_CheckExact(value):  # inlined, because arguments take half of the time of a call
        result = PyLong_AsLongLongAndOverflow(value, &overflow)
        if not overflow:
            return result
    return _int64_of(value, name)


cdef int64_t _int64_of(object value, str name) except? -1:
    cdef int overflow = 0
    cdef int64_t result
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        value = operator.index(value)
    except TypeError:
        raise ArgumentTypeError(f"{name} must be an integer, got {_shown(value)}{_hint(value)}") from None
    result = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow:
        raise ArgumentRangeError(f"{name} must fit in int64, got {value}")
    return result


cdef cnp.ndarray _as_array(object value, str name):
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ArgumentValueError(f"{name} must not have masked values; fill or drop them first")
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ArgumentValueError(f"{name} must be one-dimensional: {error}") from None


cdef cnp.ndarray _int64_array(cnp.ndarray array, object value, str name):
    """Return `array`, which was made from `value`, as one-dimensional native int64; copy only if necessary."""
    if array.ndim != 1:
        raise ArgumentValueError(f"{name} must be one-dimensional, got shape {(<object>array).shape}")
    kind = array.dtype.kind
    if isinstance(value, (list, tuple, range)):
        if not value:
            return np.empty(0, np.int64)  # [] has no dtype of its own
        if kind not in "iu":
            for row, item in enumerate(value):
                _int64(item, f"{name}[{row}]")  # raises an error that names the row
    if kind not in "iu":
        first = f", {name}[0] = {array[0]}" if len(array) else ""
        raise ArgumentTypeError(f"{name} must be integers (int64), got dtype {array.dtype}{first}{_hint(array)}")
    if kind == "u" and array.dtype.itemsize == 8:
        array = array.astype(np.int64)  # a copy, which nobody can change after the check
        over = np.flatnonzero(array < 0)
        if len(over):
            raise ArgumentRangeError(f"{name} must fit in int64, got {name}[{over[0]}] = {int(array[over[0]]) + 2**64}")
    return np.require(array, np.int64, "A")


cdef cnp.ndarray _contiguous(object value, str name):
    """Return a contiguous column of int64."""
    return np.ascontiguousarray(_int64_array(_as_array(value, name), value, name))


cdef inline bint _overlap(const char *low, const char *high, const int64_t *column, size_t cap):
    """Return whether values from `low` to `high` lie in a column."""
    return high + sizeof(int64_t) > <const char *>column and low < <const char *>(column + cap)


cdef class _HeapMemory


cdef class _Columns:
    """The arguments of one bulk call, each a column or a value for all rows; `heap` is what it may change, or None."""

    cdef _HeapMemory heap
    cdef list owners
    cdef int64_t[4] values
    cdef size_t used
    cdef Py_ssize_t rows
    cdef str rows_of

    def __cinit__(self, _HeapMemory heap):
        self.heap = heap
        self.owners = []
        self.rows = -1

    cdef th_column take(self, object value, str name) except *:
        cdef cnp.ndarray array
        cdef Py_ssize_t stride
        if PyLong_CheckExact(value):
            return self.take_one(value, name)
        if cnp.PyArray_CheckExact(value):
            array = value
        else:
            array = _as_array(value, name)
        if array.ndim == 0:
            return self.take_one(value, name)
        if array.ndim != 1 or cnp.PyArray_TYPE(array) != cnp.NPY_INT64 or not cnp.PyArray_ISBEHAVED_RO(array):
            array = _int64_array(array, value, name)
        if self.rows < 0:
            self.rows, self.rows_of = array.shape[0], name
        elif self.rows != array.shape[0]:
            raise ArgumentValueError(f"{name} has {array.shape[0]} rows but {self.rows_of} has {self.rows}; "
                             "columns must have equal lengths")
        stride = array.strides[0]
        if stride % 8 or self.lent(array):
            array = array.copy()
            stride = 8
        self.owners.append(array)
        return th_column(_int64s(array), stride // 8)

    cdef th_column take_one(self, object value, str name) except *:
        cdef int64_t *cell = &self.values[self.used]
        cell[0] = _int64(value, name)
        self.used += 1
        return th_column(cell, 0)

    cdef bint lent(self, cnp.ndarray array):
        """Return whether a column overlaps the columns of the heap, which the call changes."""
        if self.heap is None:
            return False
        cdef th_heap *h = &self.heap.h
        cdef const char *low = <const char *>cnp.PyArray_DATA(array)
        cdef const char *high = low
        cdef Py_ssize_t reach = (array.shape[0] - 1) * array.strides[0]
        if not array.shape[0]:
            return False
        if reach < 0:
            low += reach
        else:
            high += reach
        return _overlap(low, high, h.ts, h.cap) or _overlap(low, high, h.key, h.cap) or _overlap(low, high, h.ns, h.cap)

    cdef size_t count(self) except? 0:
        if self.rows < 0:
            hint = "" if self.heap is None else "; use push for one timer"
            raise ArgumentTypeError("one of the columns must be an array, got only integers" + hint)
        return self.rows
