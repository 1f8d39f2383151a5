# Rows made one at a time from the buffers of Arrow columns, and records written to such buffers as they come.


@cython.final
@cython.auto_pickle(False)
cdef class ColumnReader:
    """Reads the Python values of one Arrow column, one at a time.

    `format` is "integer", of FIXED with a width of 1, 2, 4 or 8; "float", of FLOAT; "bool", of BITS; or "string" or
    "binary", of TEXT.
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
            return th_integer(a.data + (a.start + row) * a.width, a.width)
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

    `otherwise` is the method for what is neither one of the names in `places` nor a number from 0 to the last.

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


cdef int64_t _set_items = 0  # since the process began


def set_item(row, item, value):
    """Set the value of an instance of a subclass of tuple at a number, or its values at a slice.

    Examples
    --------
    >>> class Point(tuple):
    ...     __setitem__ = set_item
    >>> point = Point((7, 8))
    >>> point[-1] = 9
    >>> point
    (7, 9)
    """
    global _set_items
    cdef tuple values
    cdef Py_ssize_t at
    if not PyTuple_Check(row) or type(row) is tuple:
        raise TypeError(f"row must be of a subclass of tuple, got {row!r}")
    values = <tuple>row
    if isinstance(item, slice):
        numbers, given = range(*item.indices(len(values))), list(value)
        if len(numbers) != len(given):
            raise ValueError(f"a slice of {len(numbers)} values must become as many, got {len(given)}")
        for number, each in zip(numbers, given):
            set_item(row, number, each)
        return
    at = operator.index(item)
    at += len(values) if at < 0 else 0
    if not 0 <= at < len(values):
        raise IndexError(f"the row must have more than {item} values, got {len(values)}")
    old = <object>PyTuple_GET_ITEM(values, at)
    Py_INCREF(value)
    PyTuple_SET_ITEM(values, at, value)
    Py_DECREF(old)
    _forget_hash(values)
    _set_items += 1


@cython.final
@cython.auto_pickle(False)
cdef class RowSource:
    """The rows of a batch as objects of a subclass of tuple with the attribute ``__fields__``, made one at a time.

    `row_class` is such as ``pyspark.sql.Row``; its ``__new__`` is not called. `columns` are all of the same length.
    `key` has the numbers of the key columns, one or more if keys are asked for.
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
        """Return the row at a position, which must be less than n."""
        # `spare` is a row that this method has returned, or None. If the caller has the only reference to it, and it
        # has the attributes that it was made with, it is filled again, which is faster than another object.
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

# Records of a function, whose values are written to the buffers of Arrow columns as they come.

cdef extern from "Python.h":
    bint PyObject_TypeCheck(object o, PyTypeObject *type)

cdef enum:
    _FEW_RECORDS = 256  # the least room that columns make
    _MISFIT = 0  # what `put` returns
    _FITS = 1
    _MOVED = 2


@cython.final
@cython.auto_pickle(False)
cdef class _ColumnWriter:
    """The values of one column of `RecordColumns`; what `keep` makes of them in a list if there is no format."""

    cdef int kind
    cdef unsigned width  # of a value in bytes
    cdef bint text  # whether TEXT is str
    cdef list objects
    cdef object keep
    cdef cnp.ndarray held, values, bounds, bytes
    cdef uint8_t *is_held  # whether each value is not None
    cdef uint8_t *value
    cdef int32_t *bound  # where the bytes of a text start; has one more
    cdef uint8_t *byte
    cdef size_t cap, room  # of values, and of bytes of text

    def __cinit__(self, format, unsigned width=0):
        if callable(format):
            self.keep, self.objects = format, []
            return
        if format not in _KINDS:
            raise ValueError(f"format must be one of {', '.join(_KINDS)}, got {format!r}")
        self.kind, self.text = _KINDS[format], format == "string"
        self.width = {TH_FIXED: width, TH_FLOAT: 8, TH_BITS: 1}.get(self.kind, 0)
        if self.kind == TH_FIXED and width not in (1, 2, 4, 8):
            raise ValueError(f"width must be 1, 2, 4 or 8, got {width}")

    cdef int make_room(self, size_t cap) except -1:
        """Make room for values."""
        cdef cnp.ndarray held = _empty(cap, cnp.NPY_BOOL), values = None, bounds = None
        if self.kind == TH_TEXT:
            bounds = _empty(cap + 1, cnp.NPY_INT32)
            (<int32_t *>cnp.PyArray_DATA(bounds))[0] = 0
        else:
            values = _empty(cap * self.width, cnp.NPY_UINT8)
        if self.cap >= cap:
            return 0
        if self.cap:
            memcpy(cnp.PyArray_DATA(held), self.is_held, self.cap)
            if bounds is not None:
                memcpy(cnp.PyArray_DATA(bounds), self.bound, (self.cap + 1) * sizeof(int32_t))
            else:
                memcpy(cnp.PyArray_DATA(values), self.value, self.cap * self.width)
        self.held, self.values, self.bounds, self.cap = held, values, bounds, cap
        self.is_held = _uint8s(held)
        if bounds is not None:
            self.bound = <int32_t *>cnp.PyArray_DATA(bounds)
        else:
            self.value = _uint8s(values)
        return 0

    cdef int make_text_room(self, size_t room) except -1:
        """Make room for bytes of text."""
        cdef cnp.ndarray more = _empty(room, cnp.NPY_UINT8)
        if self.room >= room:
            return 0
        if self.room:
            memcpy(cnp.PyArray_DATA(more), self.byte, self.room)
        self.bytes, self.byte, self.room = more, _uint8s(more), room
        return 0

    cdef int put(self, size_t row, object value) except -1:
        """Write the value of the row after the last; return _FITS, _MISFIT, or _MOVED if it has made room instead."""
        cdef Py_ssize_t size
        cdef const char *text
        cdef double real
        if self.objects is not None:
            if <size_t>len(self.objects) > row:  # of a record that was not written to its end
                self.objects[row] = value
            else:
                self.objects.append(value)
            return _FITS
        if row >= self.cap:
            self.make_room(max(2 * self.cap, <size_t>_FEW_RECORDS))
            return _MOVED
        if self.kind == TH_TEXT:
            text, size = NULL, 0
            if self.text and type(value) is str:
                try:
                    text = PyUnicode_AsUTF8AndSize(value, &size)  # runs nothing unless it fails
                except UnicodeEncodeError:
                    return _MISFIT
            elif not self.text and type(value) is bytes:
                text, size = PyBytes_AS_STRING(value), len(<bytes>value)
            elif value is not None:
                return _MISFIT
            self.is_held[row] = value is not None
            return self.put_text(row, text, size)
        self.is_held[row] = value is not None
        if value is None:
            memset(self.value + row * self.width, 0, self.width)
            return _FITS
        if self.kind == TH_FIXED:
            return _FITS if PyLong_CheckExact(value) and self.put_integer(row, value) else _MISFIT
        if self.kind == TH_BITS:
            self.value[row] = value is True
            return _FITS if type(value) is bool else _MISFIT
        if type(value) is not float:
            return _MISFIT
        real = value
        memcpy(self.value + 8 * row, &real, 8)
        return _FITS

    cdef int put_text(self, size_t row, const char *text, size_t size) except -1:
        cdef size_t start = self.bound[row]
        if size > INT32_MAX - start:
            return _MISFIT
        if start + size > self.room:
            self.make_text_room(max(2 * self.room, start + size, <size_t>16 * _FEW_RECORDS))
            return _MOVED
        if size:
            memcpy(self.byte + start, text, size)
        self.bound[row + 1] = <int32_t>(start + size)
        return _FITS

    cdef bint put_integer(self, size_t row, object value) except -1:
        cdef int overflow = 0
        cdef int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow)
        cdef uint8_t *at = self.value + row * self.width
        th_put_number(at, self.width, number)
        return not overflow and th_integer(at, self.width) == number

    cdef object taken(self, size_t n):
        """Return the first n values, of one or more, as `RecordColumns.take` does."""
        if self.objects is not None:
            return self.objects[:n]
        validity = None if memchr(self.is_held, 0, n) == NULL else _bitmap(self.held, n)
        if self.kind == TH_TEXT:
            data = _empty(0, cnp.NPY_UINT8) if self.bytes is None else self.bytes[: self.bound[n]]
            return validity, self.bounds[: n + 1], data
        return validity, None, _bitmap(self.values, n) if self.kind == TH_BITS else self.values[: n * self.width]


cdef cnp.ndarray _bitmap(cnp.ndarray of, size_t n):
    """Return flags of 0 or 1 as bits, the first one lowest."""
    cdef cnp.ndarray bits = _zeros((n + 7) // 8, cnp.NPY_UINT8)
    cdef const uint8_t *flags = _uint8s(of)
    cdef uint8_t *byte = _uint8s(bits)
    cdef size_t i
    for i in range(n):
        byte[i >> 3] |= flags[i] << (i & 7)
    return bits


@cython.final
@cython.auto_pickle(False)
cdef class RecordColumns:
    """Columns to which records are appended, tuples of one value for each column.

    `formats` has for each column its format, as for `ColumnReader`, and the number of bytes of an integer; or, for
    one without a format, a callable that returns what is kept of a value, in a list, as whoever appended it may
    change it. There is room for `most` records. Tuples that start with an instance of `tag` are no records.
    """

    cdef list formats, writers
    cdef object tag
    cdef size_t n, most
    cdef Py_ssize_t width
    cdef bint closed

    def __cinit__(self, formats not None, size_t most, type tag not None):
        self.formats, self.most, self.tag, self.width = list(formats), most, tag, len(formats)
        self.writers = self.fresh()

    cdef list fresh(self):
        return [_ColumnWriter(format) if callable(format) else _ColumnWriter(*format) for format in self.formats]

    cpdef bint append(self, record) except -1:
        """Append a record, and return whether it was."""
        # It is not if it has another length, if there is no room, or if a value does not have exactly the class and the
        # range of its column. From then on no record is, until `take` is called, so that records stay in order.
        cdef Py_ssize_t k = 0
        cdef int done
        cdef list writers
        cdef _ColumnWriter writer
        cdef size_t n
        if not PyTuple_Check(record) or PyTuple_GET_SIZE(record) != self.width or not self.width:
            return False
        if PyObject_TypeCheck(<object>PyTuple_GET_ITEM(record, 0), <PyTypeObject *>self.tag):
            return False
        writers, n = self.writers, self.n
        while k < self.width:
            if self.closed or n >= self.most:
                return False
            writer, value = writers[k], <object>PyTuple_GET_ITEM(record, k)
            if writer.objects is not None:
                value = writer.keep(value)
            # Where something may have run, other records may have been appended or taken: begin anew.
            if self.writers is writers and self.n == n:
                done = writer.put(n, value)
                if done == _MISFIT:
                    self.closed = True
                    return False
                if done == _FITS and self.writers is writers and self.n == n:
                    k += 1
                    continue
            writers, n, k = self.writers, self.n, 0
        self.n += 1
        return True

    def rewind(self, size_t n, bint closed):
        """Keep the first n records alone; `closed`: whether no more are appended until `take` is called."""
        if n > self.n:
            raise ValueError(f"n must be at most {self.n}, the number of records, got {n}")
        self.n, self.closed = n, closed

    def take(self):
        """Remove all records, of which there must be some, and return their columns."""
        # A column is its list, or Arrow's buffers as arrays: validity or None, offsets or None, and data.
        cdef size_t n = 0
        cdef list writers = None
        while self.writers is not writers or self.n != n:
            writers, n = self.writers, self.n
            if not n:
                raise ValueError("there must be records, got none")
            taken = [(<_ColumnWriter>writer).taken(n) for writer in writers]
            fresh = self.fresh()
        self.writers, self.n, self.closed = fresh, 0, False
        return taken

    def __len__(self):
        return self.n
