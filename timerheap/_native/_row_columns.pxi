# Rows made one at a time from the buffers of Arrow columns, which the Spark layer passes without pyarrow.


@cython.final
@cython.auto_pickle(False)
cdef class ColumnReader:
    """Reads the Python values of one Arrow column, one at a time.

    Parameters
    ----------
    format : {"integer", "float", "bool", "string", "binary"}
    view : ArrayView
        The values: FIXED with a width of 1, 2, 4 or 8 for integers, FLOAT, BITS, and TEXT for the last two.

    Examples
    --------
    >>> view = ArrayView(FIXED, 2, 1, 2, b"\\x06", None, np.array([7, 8, 9], np.int16))
    >>> ColumnReader("integer", view).tolist()
    [8, 9]
    """

    cdef ArrayView view
    cdef bint text  # whether TEXT is str

    def __cinit__(self, str format, ArrayView view not None):
        if format not in _KINDS:
            raise ValueError(f"format must be one of {', '.join(_KINDS)}, got {format!r}")
        wrong_width = view.a.kind == TH_FIXED and view.a.width not in (1, 2, 4, 8)
        if view.a.kind != _KINDS[format] or wrong_width:
            raise ValueError(f"view must have the kind and width of a column of {format!r}, got others")
        self.view, self.text = view, format == "string"

    cdef object get(self, size_t row):
        """Return the value of a row, which must be less than n."""
        cdef const th_array *a = &self.view.a
        cdef th_text text
        cdef double number
        cdef float short_number
        if not th_is_valid(a, row):
            return None
        if a.kind == TH_FIXED:
            return _integer(a.data + (a.start + row) * a.width, a.width)
        if a.kind == TH_TEXT:
            if not th_text_at(a, row, &text):
                raise ValueError(f"offsets must rise from 0 to {a.size}, got others in row {row}")
            if self.text:
                return PyUnicode_DecodeUTF8(<const char *>text.at, text.size, NULL)
            return PyBytes_FromStringAndSize(<const char *>text.at, text.size)
        row += a.start
        if a.kind == TH_BITS:
            return th_bit(a.data, row)
        if a.width == 8:
            memcpy(&number, a.data + row * 8, 8)
            return number
        memcpy(&short_number, a.data + row * 4, 4)
        return <double>short_number

    def tolist(self):
        """Return the values as a list."""
        return [self.get(row) for row in range(self.view.a.n)]

    def __len__(self):
        return self.view.a.n


cdef int64_t _integer(const uint8_t *at, unsigned width) noexcept:
    cdef int64_t x8
    cdef int32_t x4
    cdef int16_t x2
    if width == 8:
        memcpy(&x8, at, 8)
        return x8
    if width == 4:
        memcpy(&x4, at, 4)
        return x4
    if width == 2:
        memcpy(&x2, at, 2)
        return x2
    return (<const int8_t *>at)[0]


cdef dict _KINDS = {"integer": TH_FIXED, "float": TH_FLOAT, "bool": TH_BITS, "string": TH_TEXT, "binary": TH_TEXT}


@cython.final
@cython.auto_pickle(False)
cdef class RowField:
    """An attribute of a subclass of tuple: the value at a place.

    Examples
    --------
    >>> class Point(tuple):
    ...     x = RowField(0)
    >>> Point((7, 8)).x
    7
    """

    cdef Py_ssize_t place

    def __cinit__(self, Py_ssize_t place):
        if place < 0:
            raise ValueError(f"place must be 0 or more, got {place}")
        self.place = place

    def __get__(self, row, owner):
        if row is None:
            return self
        if not PyTuple_Check(row):
            raise TypeError(f"row must be a tuple, got {row!r}")
        if self.place >= PyTuple_GET_SIZE(row):
            raise AttributeError(f"the row must have more than {self.place} values, got {PyTuple_GET_SIZE(row)}")
        return <object>PyTuple_GET_ITEM(row, self.place)


def row_getter(dict places not None, otherwise not None):
    """Return the method ``__getitem__`` of a subclass of tuple that also finds values by name.

    Parameters
    ----------
    places : dict of str to int
    otherwise : callable
        The method for what is neither one of these names nor a number from 0 to the last.

    Examples
    --------
    >>> class Point(tuple):
    ...     __getitem__ = row_getter({"x": 0}, tuple.__getitem__)
    >>> Point((7, 8))["x"], Point((7, 8))[-1]
    (7, 8)
    """
    def __getitem__(row, item):
        cdef PyObject *found
        cdef object place = item
        cdef int overflow = 0
        cdef long long at = -1
        if type(item) is str:
            found = PyDict_GetItemWithError(places, item)
            if found != NULL:
                place = <object>found
        if PyLong_CheckExact(place):
            at = PyLong_AsLongLongAndOverflow(place, &overflow)
        if PyTuple_Check(row) and 0 <= at < PyTuple_GET_SIZE(row):
            return <object>PyTuple_GET_ITEM(row, <Py_ssize_t>at)
        return otherwise(row, item)

    return __getitem__


cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030E0000
    #define _forget_hash(row) ((void)(((PyTupleObject *)(row))->ob_hash = -1))
    #else
    #define _forget_hash(row) ((void)(row))
    #endif
    """
    object PyObject_GenericGetDict(object, void *)
    void _forget_hash(tuple)  # which tuples keep since Python 3.14


@cython.final
@cython.auto_pickle(False)
cdef class RowSource:
    """The rows of a batch as objects of a subclass of tuple with the attribute ``__fields__``, made one at a time.

    The subclass is one such as ``pyspark.sql.Row``; its ``__new__`` is not called. `columns` are ColumnReaders or
    lists, all of the same length, `fields` their names, and `key` the numbers of the key columns, if keys are asked
    for.
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

    cdef tuple row(self, Py_ssize_t row, tuple spare=None):
        """Return the row at a position, which must be less than n.

        `spare` is a row that this method has returned, or None. If the caller has the only reference to it, and it
        has the attributes that it was made with, it is filled again, which is faster than another object.
        """
        cdef Py_ssize_t k, width = len(self.columns)
        cdef tuple values, arguments
        if spare is not None and self.is_as_made(spare):
            for k in range(width):
                value, old = self.value(k, row), <object>PyTuple_GET_ITEM(spare, k)
                Py_INCREF(value)
                PyTuple_SET_ITEM(spare, k, value)
                Py_DECREF(old)
            _forget_hash(spare)
            return spare
        values = PyTuple_New(width)
        for k in range(width):
            value = self.value(k, row)
            Py_INCREF(value)
            PyTuple_SET_ITEM(values, k, value)
        arguments = (values,)
        made = (<PyTypeObject *>tuple).tp_new(self.row_class, <PyObject *>arguments, NULL)
        PyObject_GenericSetAttr(made, "__fields__", self.fields)
        return <tuple>made

    cdef bint is_as_made(self, tuple row) except -1:
        """Return whether a row of this class has one reference, and the attributes it was made with."""
        cdef PyObject *fields
        if Py_REFCNT(row) != 1 or type(row) is not self.row_class:
            return False
        attributes = PyObject_GenericGetDict(row, NULL)
        if Py_REFCNT(attributes) != 2 or len(<dict>attributes) != 1:  # ours and the row's
            return False
        fields = PyDict_GetItemWithError(attributes, "__fields__")
        return fields == <PyObject *>self.fields

    cdef object key_of(self, tuple row):
        """Return the key of a row: a value, or a tuple if there are several key columns."""
        cdef list key = self.key
        return row[<Py_ssize_t>key[0]] if len(key) == 1 else tuple([tuple.__getitem__(row, k) for k in key])

    cdef object key_at(self, Py_ssize_t row):
        """Return the key of the row at a position, without the row."""
        cdef list key = self.key
        if len(key) == 1:
            return self.value(key[0], row)
        return tuple([self.value(k, row) for k in key])

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
