# Rows made one at a time from the buffers of Arrow columns, which the Spark layer passes without pyarrow.


@cython.final
@cython.auto_pickle(False)
cdef class ColumnReader:
    """Reads the Python values of one Arrow column, one at a time.

    Parameters
    ----------
    format : {"int8", "int16", "int32", "int64", "float", "double", "bool", "string", "binary"}
        Strings and binary values have 64-bit offsets.
    n, offset : int
        The number of values, and the position of the first one in the buffers.
    validity, values, offsets : buffer or None
        The buffers of the column; `offsets` only for strings and binary values.

    Examples
    --------
    >>> ColumnReader("int16", 2, 1, b"\\x06", np.array([7, 8, 9], np.int16)).tolist()
    [8, 9]
    """

    cdef _Format format
    cdef int64_t n, offset
    cdef const uint8_t *validity
    cdef const uint8_t *values
    cdef const int64_t *offsets
    cdef int64_t size  # of the values of a string or binary column, in bytes
    cdef tuple owners

    def __cinit__(self, str format, int64_t n, int64_t offset, validity, values, offsets=None):
        cdef int64_t end
        if format not in _FORMATS:
            raise ValueError(f"format must be one of {', '.join(_FORMATS)}, got {format!r}")
        code, bits = _FORMATS[format]
        if not (0 <= n <= _MOST_VALUES and 0 <= offset <= _MOST_VALUES):
            raise ValueError(f"n and offset must be from 0 to {_MOST_VALUES}, got {n} and {offset}")
        self.format, self.n, self.offset, end = code, n, offset, offset + n
        text = code == _STRING or code == _BINARY
        values = _flat_bytes(values, "values", 0 if text or not n else (end * bits + 7) // 8)
        offsets = _flat_bytes(offsets, "offsets", 8 * (end + 1) if text and n else 0)
        self.size, self.values = len(values), _data(values)
        self.offsets = <const int64_t *>_data(offsets)
        if validity is not None:
            validity = _flat_bytes(validity, "validity", (end + 7) // 8 if n else 0)
            self.validity = _data(validity)
        self.owners = values, offsets, validity

    cdef object get(self, int64_t row):
        """Return the value of a row, which must be less than n."""
        cdef int64_t at = self.offset + row, start, stop
        if self.validity and not self.validity[at >> 3] >> (at & 7) & 1:
            return None
        if self.format == _INT64:
            return (<const int64_t *>self.values)[at]
        if self.format == _STRING or self.format == _BINARY:
            start, stop = self.offsets[at], self.offsets[at + 1]
            if not 0 <= start <= stop <= self.size:
                raise ValueError(f"offsets must rise from 0 to {self.size}, got {start} and {stop} in row {row}")
            if self.format == _STRING:
                return PyUnicode_DecodeUTF8(<const char *>self.values + start, stop - start, NULL)
            return PyBytes_FromStringAndSize(<const char *>self.values + start, stop - start)
        if self.format == _DOUBLE:
            return (<const double *>self.values)[at]
        if self.format == _INT32:
            return (<const int32_t *>self.values)[at]
        if self.format == _BOOL:
            return self.values[at >> 3] >> (at & 7) & 1 != 0
        if self.format == _FLOAT:
            return <double>(<const float *>self.values)[at]
        if self.format == _INT16:
            return (<const int16_t *>self.values)[at]
        return (<const int8_t *>self.values)[at]

    def tolist(self):
        """Return the values as a list."""
        return [self.get(row) for row in range(self.n)]

    def __len__(self):
        return self.n


cdef enum _Format:
    _INT8, _INT16, _INT32, _INT64, _FLOAT, _DOUBLE, _BOOL, _STRING, _BINARY

cdef int64_t _MOST_VALUES = <int64_t>1 << 48

cdef dict _FORMATS = {  # by name: the code, and the number of bits of a value
    "int8": (_INT8, 8),
    "int16": (_INT16, 16),
    "int32": (_INT32, 32),
    "int64": (_INT64, 64),
    "float": (_FLOAT, 32),
    "double": (_DOUBLE, 64),
    "bool": (_BOOL, 1),
    "string": (_STRING, 0),
    "binary": (_BINARY, 0),
}


cdef cnp.ndarray _flat_bytes(object buffer, str name, int64_t least):
    """Return a buffer as an array of bytes, without copying."""
    if buffer is None:
        buffer = b""
    cdef cnp.ndarray array = np.asarray(memoryview(buffer).cast("B"))
    if len(array) < least:
        raise ValueError(f"{name} must have {least} bytes or more, got {len(array)}")
    return array


cdef inline const uint8_t *_data(cnp.ndarray array) noexcept:
    return <const uint8_t *>cnp.PyArray_DATA(array)


@cython.final
@cython.auto_pickle(False)
cdef class RowSource:
    """The rows of a batch as objects of a subclass of tuple with the attribute ``__fields__``, made one at a time.

    Parameters
    ----------
    row_class : type
        A subclass of tuple, such as ``pyspark.sql.Row``; its ``__new__`` is not called.
    fields : list of str
        The names of the columns.
    columns : list of (ColumnReader or list)
        The values of the columns, all of the same length.
    key : list of int
        The numbers of the key columns, one or more if keys are asked for.
    """

    cdef object row_class
    cdef list fields, columns, key
    cdef Py_ssize_t n

    def __cinit__(self, type row_class not None, list fields not None, list columns not None, list key not None):
        if not issubclass(row_class, tuple):
            raise TypeError(f"row_class must be a subclass of tuple, got {row_class!r}")
        if len(columns) != len(fields):
            raise ValueError(f"columns must have one column for each of {len(fields)} fields, got {len(columns)}")
        if any(not 0 <= number < len(columns) for number in key):
            raise ValueError(f"key must be numbers of columns, got {key}")
        lengths = set(map(len, columns))
        if len(lengths) != 1:
            raise ValueError(f"columns must have one length, got {sorted(lengths)}")
        (self.n,) = lengths
        self.row_class, self.fields, self.columns, self.key = row_class, fields, columns, key

    def __len__(self):
        return self.n

    cdef object value(self, Py_ssize_t column, Py_ssize_t row):
        source = self.columns[column]
        return (<ColumnReader>source).get(row) if type(source) is ColumnReader else (<list?>source)[row]

    cdef tuple row(self, Py_ssize_t row):
        """Return the row at a position, which must be less than n."""
        cdef Py_ssize_t k, width = len(self.columns)
        cdef tuple values = PyTuple_New(width), arguments
        for k in range(width):
            value = self.value(k, row)
            Py_INCREF(value)
            PyTuple_SET_ITEM(values, k, value)
        arguments = (values,)
        made = (<PyTypeObject *>tuple).tp_new(self.row_class, <PyObject *>arguments, NULL)
        PyObject_GenericSetAttr(made, "__fields__", self.fields)
        return <tuple>made

    cdef object key_of(self, tuple row):
        """Return the key of a row: a value, or a tuple if there are several key columns."""
        cdef list key = self.key
        return row[<Py_ssize_t>key[0]] if len(key) == 1 else tuple([tuple.__getitem__(row, k) for k in key])

    def tolist(self):
        """Return all rows."""
        return [self.row(row) for row in range(self.n)]

    def keys(self):
        """Return the keys of all rows: a list of values, or of tuples if there are several key columns."""
        lists = []
        for number in self.key:
            column = self.columns[number]
            lists.append((<ColumnReader>column).tolist() if type(column) is ColumnReader else column)
        return lists[0] if len(lists) == 1 else list(zip(*lists))
