# The handle of a value state in a function that is called with one row or timer at a time.

cdef enum:
    _HELD = 1  # the key has a value
    _CHANGED = 2  # since the last `take`
    _KNOWN = 4  # the value has been loaded or written

cdef dict _CELL_KINDS = {int: TH_FIXED, float: TH_FLOAT, bool: TH_BITS}


@cython.final
@cython.auto_pickle(False)
cdef class RowCells:
    """The values of one state of class int, float or bool, by the number of their key.

    `load` is called with an array of key ids; it returns the bits of their values, int64, and which of them have
    one, bool. `cleared` counts the values that have been removed so far.
    """

    cdef readonly KeyNumbers numbers
    cdef object load
    cdef int kind
    cdef cnp.ndarray bits, flags
    cdef int64_t *bit
    cdef uint8_t *flag
    cdef size_t cap, loaded  # up to this number
    cdef readonly int64_t cleared

    def __cinit__(self, KeyNumbers numbers not None, class_, load):
        self.kind, self.numbers, self.load = _CELL_KINDS[class_], numbers, load
        numbers.used = True

    cdef int make_room(self) except -1:
        """Make room for all keys that have numbers."""
        cdef size_t cap
        cdef cnp.ndarray bits, flags
        while self.numbers.n > self.cap:
            cap = max(64, 2 * self.cap, self.numbers.n)
            bits, flags = _empty(cap, cnp.NPY_INT64), _zeros(cap, cnp.NPY_UINT8)
            if self.cap < cap:
                if self.cap:
                    memcpy(cnp.PyArray_DATA(bits), self.bit, self.cap * sizeof(int64_t))
                    memcpy(cnp.PyArray_DATA(flags), self.flag, self.cap)
                self.bits, self.flags, self.cap = bits, flags, cap
                self.bit, self.flag = _int64s(bits), _uint8s(flags)
        return 0

    cdef int know(self, size_t number) except -1:
        """Load the values of all keys that have come since the last time, unless that of `number` is known."""
        cdef size_t start = self.loaded, n = self.numbers.n, i
        cdef cnp.ndarray ids, bits, held
        if number < self.cap and self.flag[number] & _KNOWN:
            return 0
        self.make_room()
        ids = _empty(n - start, cnp.NPY_INT64)
        memcpy(cnp.PyArray_DATA(ids), self.numbers.ids + start, (n - start) * sizeof(int64_t))
        values, present = self.load(ids)
        bits, held = _contiguous(values, "values"), np.ascontiguousarray(present, np.uint8)
        if <size_t>bits.shape[0] != n - start or <size_t>cnp.PyArray_SIZE(held) != n - start:
            raise ValueError(f"load must return values for {n - start} keys, got {len(bits)} and {len(held)}")
        if self.cap < n or self.loaded != start:
            raise RuntimeError("load must not change the values")
        for i in range(start, n):
            if not self.flag[i] & _KNOWN:
                self.bit[i] = _int64s(bits)[i - start]
                self.flag[i] = _KNOWN | (_uint8s(held)[i - start] & _HELD)
        self.loaded = n
        return 0

    cdef object get(self, size_t number):
        """Return the value of a key, or None."""
        cdef double real
        self.know(number)
        if not self.flag[number] & _HELD:
            return None
        if self.kind == TH_FLOAT:
            memcpy(&real, &self.bit[number], sizeof(real))
            return real
        return self.bit[number] if self.kind == TH_FIXED else bool(self.bit[number])

    cdef int put(self, size_t number, object value) except -1:
        """Set the value of a key; None removes it."""
        cdef int64_t bits
        cdef double real
        if value is None:
            self.make_room()
            self.flag[number] = _KNOWN | _CHANGED
            self.cleared += 1
            return 0
        if self.kind == TH_FLOAT:
            real = value
            memcpy(&bits, &real, sizeof(real))
        else:
            bits = value
        self.make_room()
        self.bit[number], self.flag[number] = bits, _KNOWN | _CHANGED | _HELD
        return 0

    cdef size_t count_changed(self) noexcept:
        cdef size_t n = 0, i
        for i in range(min(self.cap, self.numbers.n)):
            n += self.flag[i] & _CHANGED != 0
        return n

    def take(self):
        """Return the ids of keys whose values have changed since the last call, the values, and which have one."""
        # The values are int64, of floats the bits; anything for a key without one.
        cdef size_t n = SIZE_MAX, i
        cdef cnp.ndarray ids, bits, held
        while n != self.count_changed():
            n = self.count_changed()
            ids, bits, held = _empty(n, cnp.NPY_INT64), _empty(n, cnp.NPY_INT64), _empty(n, cnp.NPY_BOOL)
            taken = ids, bits, held
        n = 0
        for i in range(min(self.cap, self.numbers.n)):
            if self.flag[i] & _CHANGED:
                _int64s(ids)[n] = self.numbers.ids[i]
                _int64s(bits)[n] = self.bit[i]
                _uint8s(held)[n] = self.flag[i] & _HELD
                self.flag[i] &= ~_CHANGED
                n += 1
        return taken

    def forget(self):
        """Release the memory; values are loaded again when they are read. All changes must have been taken."""
        self.bits = self.flags = None
        self.bit, self.flag, self.cap, self.loaded, self.numbers.stale = NULL, NULL, 0, 0, True


@cython.nonecheck(True)
@cython.auto_pickle(False)
@cython.binding(False)
cdef class RowValue:
    """The methods of a `timerheap.ValueState` on the values that a micro-batch has read and written.

    They are in `RowCells`, or for other types in the dicts of a table. `codec` checks and copies values; those of
    exactly the class `exact` are kept as they are instead, unless they are NaN. `bits` is the size of the integers
    that the state holds, up to 64; 0 for another type. `no_key` raises the error for a call without a current key.
    """

    cdef CurrentKey keys
    cdef object codec, exact, no_key, table
    cdef RowCells cells
    cdef int bits
    cdef dict loaded, stored
    cdef public list steps  # receives how to undo each change, or None

    def __init__(self, CurrentKey keys not None, codec, exact, int bits, no_key):
        self.keys, self.codec, self.exact, self.bits, self.no_key = keys, codec, exact, bits, no_key

    def bind(self, table, dict loaded not None, dict stored not None, RowCells cells=None):
        """Use this table, a `timerheap._states.ValueContents`, from now on.

        `loaded` has the values that the table has loaded by key id, and `stored` those that it has stored since,
        which count first; the table may change them. If given, `cells`, of the class `exact`, has the values
        instead.
        """
        self.table, self.loaded, self.stored, self.cells = table, loaded, stored, cells

    def value(self):
        cdef RowCells cells = self.cells
        if cells is not None:
            return cells.get(self.number(cells))
        key = self.keys.get()
        if key is None or self.table is None:
            return self.no_key()
        cdef PyObject *found = PyDict_GetItemWithError(self.stored, key)
        if found == NULL:
            found = PyDict_GetItemWithError(self.loaded, key)
        kept = self.table.load(key) if found == NULL else <object>found
        return kept if self.exact is not None else self.codec.decode(kept)

    def update(self, value):
        if self.steps is not None:
            self.note()
        self.write(value)

    cdef int write(self, object value) except -1:
        cdef RowCells cells = self.cells
        if cells is not None:
            return cells.put(self.number(cells), value if self.is_exact(value) else self.codec.encode(value))
        key = self.keys.get()
        if key is None or self.table is None:
            self.no_key()
        kept = value if self.is_exact(value) else self.codec.encode(value)
        if kept is None:
            self.table.store(key, None)
        else:
            self.stored[key] = kept
        return 0

    cdef int note(self) except -1:
        """Keep how to put the value of the current key back, as it is now."""
        self.steps.append((self.put_back, self.keys.get(), self.value()))
        return 0

    def put_back(self, int64_t key, value):
        """Make `key` the current key, and `value` its value."""
        self.keys.set(key, -1)
        self.write(value)

    def clear(self):
        if self.steps is not None:
            self.note()
        cdef RowCells cells = self.cells
        if cells is not None:
            cells.put(self.number(cells), None)
            return
        key = self.keys.get()
        if key is None or self.table is None:
            self.no_key()
        self.table.store(key, None)

    cdef Py_ssize_t number(self, RowCells cells) except -1:
        """Return the number of the current key in `cells`."""
        cdef CurrentKey keys = self.keys
        cdef int64_t id
        cdef Py_ssize_t number
        if not keys.known:
            self.no_key()
        if keys.number >= 0 and keys.numbers is cells.numbers:
            return keys.number
        id = keys.id
        number = cells.numbers.number(id)
        if keys.numbers is cells.numbers and keys.id == id:
            keys.number = number
        return number

    cdef bint is_exact(self, object value) except -1:
        cdef int overflow = 0
        cdef int64_t number, bound
        if type(value) is not self.exact:
            return False
        if not self.bits:
            return type(value) is not float or value == value
        number = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow or self.bits >= 64:
            return not overflow
        bound = <int64_t>1 << (self.bits - 1)
        return -bound <= number < bound
