# The index of ids, on csrc/th_table.h.


@cython.final
cdef class IdIndex(_Borrower):
    """A map from int64 ids to int64 values, read and changed many at a time.

    It lives in one block of `memory`, a Memory, or in memory of its own. Each call is atomic under the GIL. All
    int64 are valid ids and values. An id takes 26 to 39 bytes in a large index that grows.
    """

    cdef th_table t

    def __cinit__(self, memory=None):
        self.memory = memory
        self.seed = _new_seed()
        th_table_init(&self.t, self.seed)

    # ---- memory ----

    cdef int resize(self, size_t cap) except -1:
        cdef size_t size = th_table_size(cap)
        cdef _Memory old, room = None
        cdef void *start = NULL
        if cap > TH_TABLE_MAX:
            raise MemoryError(f"an index must hold at most {TH_TABLE_MAX} ids, got {cap}")
        if self.memory is not None:
            room = self.borrow(size)
            start = NULL if room is None else cnp.PyArray_DATA(room.array)
        elif size:
            room = _memory(size)
            start = _start(room, size, 0)
        if self.t.len > cap:  # another thread has added ids
            self.give(room)
            return 0
        cdef uint64_t seed = _new_seed() if cap < self.t.cap else self.seed
        if th_table_move(&self.t, start, cap, seed) != TH_YES:
            self.give(room)
            raise RuntimeError("the block of an index must not be written by others, but it has been")
        old, self.room, self.seed = self.room, room, seed
        self.give(old)
        return 0

    cdef int grow(self, size_t need) except -1:
        cdef size_t cap = self.t.cap
        cap = 2 * cap + 9 if cap < _LARGE else min(cap + cap // 2, TH_TABLE_MAX)
        return self.resize(max(cap, need))

    def reserve(self, n):
        """Make room for `n` ids in all; removals release it. A MemoryError changes nothing. O(len) if it moves."""
        cdef int64_t cap = _int64(n, "n")
        if cap < 0:
            raise ValueError(f"n must not be negative, got {cap}")
        if <size_t>cap > self.t.cap:
            self.resize(cap)

    cdef size_t capacity(self) noexcept:
        return self.t.cap

    @property
    def nbytes(self):
        """int: number of bytes allocated. O(1)."""
        return th_table_size(self.t.cap)

    def _head(self):
        """Return a list of integers with which `_attach` finds the index again, in any process. O(1)."""
        return self.describe(_ID_INDEX, self.t.cap, self.t.len)

    @staticmethod
    def _attach(memory, head):
        """Return the index that `head`, of `_head`, describes, on the bytes that it has in `memory`. O(1).

        The index must not have been changed since, and one process may use it at a time. A ValueError is raised if
        `head` cannot be the head of an index in this memory.
        """
        cdef IdIndex index = IdIndex.__new__(IdIndex)
        cdef _Head h = _head_of(head, _ID_INDEX)
        cdef void *start = index.find(memory, &h, th_table_size(h.cap))
        th_table_init(&index.t, h.seed)
        th_table_place(&index.t, start, h.cap)
        index.t.len = h.n
        if not th_table_plausible(&index.t):
            raise ValueError("head must be that of an index, but its block holds other bytes")
        return index

    # ---- many ids ----

    def find_many(self, ids):
        """Return the values of n ids, int64, and which are present, bool; the value of an absent id is 0. O(n)."""
        cdef _Columns rows = _Columns(None)
        cdef th_column id_ = rows.take(ids, "ids")
        cdef size_t n = rows.count()
        cdef cnp.ndarray values = _empty(n, cnp.NPY_INT64), found = _empty(n, cnp.NPY_BOOL)
        result = values, found
        th_table_find_many(&self.t, id_, n, _int64s(values), _uint8s(found))
        return result

    def put_many(self, ids, values):
        """Set the values of n ids, and return which were absent: of equal ids, only the first can be. O(n) on average.

        One of the columns may be an int. The last value of a repeated id counts. The index is unchanged after a
        MemoryError, or any other error of the memory.
        """
        cdef _Columns rows = _Columns(None)
        cdef th_column id_ = rows.take(ids, "ids"), value = rows.take(values, "values")
        cdef size_t n = rows.count(), need = 0, cap = self.t.cap
        cdef cnp.ndarray added = _empty(n, cnp.NPY_BOOL)
        cdef cnp.ndarray entries = _empty(n, cnp.NPY_UINT32), old = _empty(n, cnp.NPY_INT64)
        cdef th_undo undo = th_undo(<uint32_t *>cnp.PyArray_DATA(entries), _int64s(old))
        while th_table_put_many(&self.t, id_, value, n, _uint8s(added), undo, &need) == TH_FULL:
            self.grow(need)
        if self.t.cap > cap and self.t.cap - self.t.len > self.t.len // 2:  # the index grew for ids that were not new
            self.shrink(max(self.t.len + self.t.len // 8, <size_t>_SMALL))
        return added

    def remove_many(self, ids):
        """Remove n ids; return their values, 0 if absent, and which were present, of equal ids the first. O(n)."""
        cdef _Columns rows = _Columns(None)
        cdef th_column id_ = rows.take(ids, "ids")
        cdef size_t n = rows.count()
        cdef cnp.ndarray values = _empty(n, cnp.NPY_INT64), found = _empty(n, cnp.NPY_BOOL)
        result = values, found
        th_table_remove_many(&self.t, id_, n, _int64s(values), _uint8s(found))
        if self.t.len < self.t.cap // 4:
            self.shrink(max(2 * self.t.len, <size_t>_SMALL))
        return result

    # ---- as a container ----

    def ids(self):
        """Return a copy of all ids, shape (len,), int64, in arbitrary order. O(len)."""
        cdef cnp.ndarray ids = _empty(self.t.len, cnp.NPY_INT64)
        while <size_t>ids.shape[0] != self.t.len:  # another thread has changed the index
            ids = _empty(self.t.len, cnp.NPY_INT64)
        th_table_items(&self.t, _int64s(ids), NULL)
        return ids

    def items(self):
        """Return copies of all ids and of their values, each of shape (len,), int64, in arbitrary order. O(len)."""
        cdef cnp.ndarray ids, values
        cdef size_t n
        while True:
            n = self.t.len
            ids, values = _empty(n, cnp.NPY_INT64), _empty(n, cnp.NPY_INT64)
            result = ids, values
            if n == self.t.len:  # otherwise another thread has changed the index
                break
        th_table_items(&self.t, _int64s(ids), _int64s(values))
        return result

    def __len__(self):
        return self.t.len

    def clear(self):
        """Remove all ids and release all memory. O(1)."""
        cdef _Memory old = self.room
        self.room, self.seed = None, _new_seed()
        th_table_init(&self.t, self.seed)
        self.give(old)

    def _check(self):
        """Raise AssertionError if an invariant of the index is broken. O(n)."""
        if th_table_check(&self.t) != TH_YES:
            raise AssertionError("an id is not where a search looks for it")
