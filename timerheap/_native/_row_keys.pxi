# The current key of a function that is called with one row or timer at a time, and the numbers of such keys.


@cython.final
@cython.auto_pickle(False)
cdef class KeyNumbers:
    """Numbers key ids from 0 on, in the order in which they are first asked for."""

    cdef IdIndex index
    cdef cnp.ndarray array  # the ids by number
    cdef int64_t *ids
    cdef size_t n, cap
    cdef bint used  # by a state
    cdef readonly bint stale  # whether a state has forgotten values of these keys

    def __cinit__(self):
        self.index = IdIndex()

    cdef int make_room(self, size_t more) except -1:
        """Make room for more ids."""
        cdef size_t cap
        cdef cnp.ndarray grown
        while self.cap - self.n < more or self.index.t.cap - self.n < more:
            if self.index.t.cap - self.n < more:
                self.index.grow(self.n + more)
                continue
            cap = max(64, 2 * self.cap, self.n + more)
            grown = _empty(cap, cnp.NPY_INT64)
            if self.n <= cap:
                if self.n:
                    memcpy(cnp.PyArray_DATA(grown), self.ids, self.n * sizeof(int64_t))
                self.array, self.ids, self.cap = grown, _int64s(grown), cap
        return 0

    cdef Py_ssize_t number(self, int64_t id) except -1:
        cdef int64_t number
        self.make_room(1)
        th_table_number_many(&self.index.t, th_column(&id, 0), 1, &number, self.ids)
        self.n = self.index.t.len
        return number

    def number_many(self, ids):
        """Return the numbers of n ids: int64, shape (n,)."""
        cdef _Columns rows = _Columns(None)
        cdef th_column id_ = rows.take(ids, "ids")
        cdef size_t n = rows.count()
        cdef cnp.ndarray numbers = _empty(n, cnp.NPY_INT64)
        self.make_room(n)
        th_table_number_many(&self.index.t, id_, n, _int64s(numbers), self.ids)
        self.n = self.index.t.len
        return numbers

    def __len__(self):
        return self.n


cdef enum:
    _ROW_BITS = 40  # of the place of a key; the others are the number of its source


@cython.final
@cython.auto_pickle(False)
cdef class KnownKeys:
    """The keys of rows by their ids; a key is read from its row when it is asked for."""

    cdef KeyNumbers numbers
    cdef list sources
    cdef cnp.ndarray array  # the places of the keys by number
    cdef int64_t *places
    cdef size_t cap
    cdef int64_t next  # the number behind the largest that has been found

    def __cinit__(self):
        self.clear()

    def add(self, ids, RowSource rows not None):
        """Add the keys of n rows, whose ids are int64 of shape (n,)."""
        cdef size_t n = len(rows), i
        cdef int64_t source
        cdef KeyNumbers known = self.numbers
        cdef cnp.ndarray array
        cdef const int64_t *number
        if len(ids) != <Py_ssize_t>n or n >> _ROW_BITS:
            raise ValueError(f"ids must have one value for each of {n} rows, got {len(ids)}")
        array = known.number_many(ids)
        self.make_room()
        if known is not self.numbers or <size_t>array.shape[0] != n:
            raise RuntimeError("the keys must not be cleared while some are added")
        number = _int64s(array)
        source = len(self.sources)
        self.sources.append(rows)
        for i in range(n):
            if self.places[number[i]] < 0:
                self.places[number[i]] = source << _ROW_BITS | <int64_t>i

    cdef int make_room(self) except -1:
        """Make room for the places of all keys that have numbers; a place that is not known yet is -1."""
        cdef size_t cap
        cdef cnp.ndarray grown
        while self.numbers.n > self.cap:
            cap = max(2 * self.cap, self.numbers.n)
            grown = _empty(cap, cnp.NPY_INT64)
            if self.cap < cap:
                memset(cnp.PyArray_DATA(grown), 0xFF, cap * sizeof(int64_t))
                if self.cap:
                    memcpy(cnp.PyArray_DATA(grown), self.places, self.cap * sizeof(int64_t))
                self.array, self.places, self.cap = grown, _int64s(grown), cap
        return 0

    def clear(self):
        """Forget all keys."""
        numbers, sources = KeyNumbers(), []
        self.numbers, self.sources = numbers, sources
        self.array, self.places, self.cap, self.next = None, NULL, 0, 0

    cdef bint find(self, int64_t id, int64_t *place) noexcept:
        """Return whether the key of an id is known, and its place for `at`."""
        # Keys are mostly asked for in the order in which they were added, which needs no search.
        cdef int64_t number = self.next
        cdef uint8_t found = <size_t>number < self.numbers.n and self.numbers.ids[number] == id
        if not found:
            th_table_find_many(&self.numbers.index.t, th_column(&id, 0), 1, &number, &found)
        place[0] = self.places[number] if found and <size_t>number < self.cap else -1
        self.next = max(self.next, number + 1)
        return place[0] >= 0

    cdef object at(self, int64_t place):
        cdef RowSource source = self.sources[place >> _ROW_BITS]
        return source.key_at(place & ((<int64_t>1 << _ROW_BITS) - 1))

    def __contains__(self, id):
        cdef int64_t place
        return self.find(_int64(id, "id"), &place)

    def __getitem__(self, id):
        cdef int64_t place
        if not self.find(_int64(id, "id"), &place):
            raise KeyError(id)
        return self.at(place)


@cython.final
@cython.auto_pickle(False)
cdef class CurrentKey:
    """The id of the current key, which timers and states use: an int64, or None before the first one."""

    cdef int64_t id
    cdef bint known
    cdef object boxed  # the id as an object, once it has been asked for
    cdef readonly KeyNumbers numbers
    cdef Py_ssize_t number  # of the key, or -1 if it is not known yet

    def __cinit__(self):
        self.renumber()

    cdef inline void set(self, int64_t id, Py_ssize_t number) noexcept:
        self.id, self.known, self.boxed, self.number = id, True, None, number  # `boxed` is an int: nothing runs

    cdef inline object get(self):
        if self.boxed is None and self.known:
            self.boxed = self.id
        return self.boxed

    cdef inline Py_ssize_t find_number(self) except -1:
        cdef KeyNumbers numbers
        cdef int64_t id
        cdef Py_ssize_t number
        while self.number < 0:
            numbers, id = self.numbers, self.id
            number = numbers.number(id)
            if numbers is self.numbers and id == self.id:
                self.number = number
        return self.number

    def renumber(self):
        """Number keys from 0 again; see `numbers`."""
        self.numbers, self.number = KeyNumbers(), -1

    def announce(self, ids):
        """Record that the states of these keys may be read; the first read then loads them all."""
        cdef KeyNumbers numbers = self.numbers
        if numbers.used:
            numbers.number_many(ids)

    @property
    def current_key(self):
        """int or None."""
        return self.get()

    @current_key.setter
    def current_key(self, key):
        self.set(0 if key is None else _int64(key, "current_key"), -1)
        self.known = key is not None
