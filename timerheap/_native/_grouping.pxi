# Rows by key and slice, and the order of rows, on csrc/th_group.h and th_heap.h.

cdef enum:
    _FIRST_GROUPS = 64


@cython.final
@cython.auto_pickle(False)
cdef class SliceGroups:
    """The groups of rows that have one key and one slice, numbered as they first occur; rows are added in parts.

    There are `columns` key columns; without any, keys are equal if their hashes are. Adding n rows costs O(n). Key
    columns are not copied: their buffers are held.
    """

    cdef th_groups t
    cdef _Memory memory
    cdef size_t columns
    cdef list held  # the views of all parts
    cdef cnp.ndarray arrays  # th_array of each part and column
    cdef size_t parts
    cdef list numbers  # the group of each row of each part
    cdef size_t rows
    cdef bint adding

    def __cinit__(self, columns):
        cdef int64_t count = _int64(columns, "columns")
        if not 0 <= count <= 1 << 16:
            raise ValueError(f"columns must be from 0 to 65536, got {count}")
        self.columns, self.held, self.numbers = count, [], []
        self.arrays = _empty(0, cnp.NPY_UINT8)
        th_groups_init(&self.t, _new_seed())

    def __len__(self):
        """Return the number of groups."""
        return self.t.groups

    def add(self, hashes, slices, keys):
        """Add a part; return the first row of each key that is new, int64, in the order of the keys' numbers.

        `hashes` and `slices` are int64 of shape (n,), and `keys` are ArrayViews of n values. Equal keys must have
        the same hash; keys with the same hash may differ. Null equals null, NaN equals NaN, and 0.0 equals -0.0. The
        groups are unchanged after an error: a ValueError if an offset lies outside of its data, a MemoryError, or a
        RuntimeError if an allocation calls this while rows are added.
        """
        cdef size_t n = len(hashes)
        cdef cnp.ndarray hash = _column_of(hashes, "hashes", cnp.NPY_INT64, n)
        cdef cnp.ndarray slice_ = _column_of(slices, "slices", cnp.NPY_INT64, n)
        cdef list held = list(keys)
        self.expect_whole()
        self.adding = True
        try:
            return self.add_part(hash, slice_, held)
        finally:
            self.adding = False

    cdef int expect_whole(self) except -1:
        """Refuse calls of other methods while a part is added: the groups then count rows that no part has yet."""
        if self.adding:
            raise RuntimeError("SliceGroups must not be used while rows are added to it")
        return 0

    cdef cnp.ndarray add_part(self, cnp.ndarray hash, cnp.ndarray slice_, list held):
        cdef size_t n = hash.shape[0], done = 0, before = self.t.keys, groups = self.t.groups, k
        cdef cnp.ndarray numbers, firsts
        cdef th_rows rows
        cdef th_status status
        cdef uint32_t *group
        if n >= TH_MAX_NUMBERED or self.parts >= TH_MAX_NUMBERED:
            raise ValueError(f"hashes must have fewer than {TH_MAX_NUMBERED} rows and parts, got {n} rows")
        self.expect(held, n)
        self.make_room()
        numbers = _empty(n, cnp.NPY_UINT32)
        group = <uint32_t *>cnp.PyArray_DATA(numbers)
        for k in range(self.columns):
            (<th_array *>cnp.PyArray_DATA(self.arrays))[self.parts * self.columns + k] = (<ArrayView>held[k]).a
        rows.hash, rows.slice = _int64s(hash), _int64s(slice_)
        rows.key, rows.columns = <const th_array *>cnp.PyArray_DATA(self.arrays), self.columns
        rows.n, rows.part = n, self.parts
        try:
            status = th_groups_add(&self.t, &rows, &done, group)
            while status == TH_FULL:
                self.grow()
                status = th_groups_add(&self.t, &rows, &done, group)
            if status != TH_YES:
                raise ValueError("an offset lies outside of its array")
            firsts = _empty(self.t.keys - before, cnp.NPY_INT64)
            self.numbers.append(numbers)
            self.held.append(held)
        except BaseException:
            del self.numbers[self.parts:]
            th_groups_undo(&self.t, before, groups, group, done)
            raise
        th_groups_firsts(&self.t, before, _int64s(firsts))
        self.parts += 1
        self.rows += n
        return firsts

    cdef int expect(self, list keys, size_t n) except -1:
        """Check the key columns of a part."""
        cdef ArrayView view
        cdef size_t k
        cdef const th_array *first
        if len(keys) != <Py_ssize_t>self.columns:
            raise ValueError(f"keys must have {self.columns} columns, got {len(keys)}")
        for k in range(self.columns):
            if not isinstance(keys[k], ArrayView):
                raise TypeError(f"keys must be of ArrayView alone, got {_shown(keys[k])}")
            view = keys[k]
            if view.a.n != n:
                raise ValueError(f"keys must have {n} values, like hashes, got {view.a.n}")
            if self.parts:
                first = <const th_array *>cnp.PyArray_DATA(self.arrays) + k
                if view.a.kind != first.kind or (view.a.kind != TH_TEXT and view.a.width != first.width):
                    raise ValueError("keys must have the kind and the width of the parts before, got others")
        return 0

    cdef int make_room(self) except -1:
        """Make room for the arrays of one more part."""
        cdef size_t size = (self.parts + 1) * self.columns * sizeof(th_array)
        cdef cnp.ndarray more
        if <size_t>self.arrays.shape[0] < size:
            more = _empty(2 * size, cnp.NPY_UINT8)
            memcpy(cnp.PyArray_DATA(more), cnp.PyArray_DATA(self.arrays), self.parts * self.columns * sizeof(th_array))
            self.arrays = more
        return 0

    cdef int grow(self) except -1:
        """Double the room for keys, for groups, or for both, where it is used up."""
        cdef size_t keys = self.t.key_cap, groups = self.t.group_cap, size
        cdef _Memory memory
        if self.t.keys == keys:
            keys = max(2 * keys, <size_t>_FIRST_GROUPS)
        if self.t.groups == groups:
            groups = max(2 * groups, <size_t>_FIRST_GROUPS)
        if max(keys, groups) > TH_MAX_NUMBERED:
            raise MemoryError(f"there must be at most {TH_MAX_NUMBERED} keys and groups")
        size = th_groups_size(keys, groups)
        memory = _memory(size)
        th_groups_move(&self.t, _start(memory, size, 0), keys, groups)
        self.memory = memory
        return 0

    def groups(self):
        """Return the number of the key, the slice and the number of rows of each group: int64, shape (g,) each."""
        cdef size_t n = SIZE_MAX, i
        cdef cnp.ndarray keys, slices, sizes
        self.expect_whole()
        while n != self.t.groups:  # otherwise an allocation has added some
            n = self.t.groups
            keys, slices, sizes = _empty(n, cnp.NPY_INT64), _empty(n, cnp.NPY_INT64), _empty(n, cnp.NPY_INT64)
        for i in range(n):
            _int64s(keys)[i] = self.t.group[i].key
            _int64s(slices)[i] = self.t.group[i].slice
            _int64s(sizes)[i] = self.t.group[i].rows
        return keys, slices, sizes

    def order(self):
        """Return the positions of the rows, in one sequence of all parts, by group and then as they came: int64."""
        cdef cnp.ndarray order, nexts, part
        cdef int64_t *next_
        cdef int64_t first = 0
        cdef size_t parts = SIZE_MAX, i
        self.expect_whole()
        while parts != self.parts:  # otherwise an allocation has added some
            parts = self.parts
            order, nexts = _empty(self.rows, cnp.NPY_INT64), _empty(self.t.groups, cnp.NPY_INT64)
        next_ = _int64s(nexts)
        for i in range(self.t.groups):
            next_[i] = first
            first += self.t.group[i].rows
        first = 0
        for part in self.numbers:
            th_groups_order(<const uint32_t *>cnp.PyArray_DATA(part), part.shape[0], first, next_, _int64s(order))
            first += part.shape[0]
        return order


@cython.final
@cython.auto_pickle(False)
cdef class PlaceNumbers:
    """Numbers for keys that have a place in [0, places) each, as they occur; it clears 4 bytes for each place."""

    cdef cnp.ndarray number_of  # of each place, plus 1
    cdef size_t places
    cdef size_t keys

    def __cinit__(self, places):
        cdef int64_t limit = _int64(places, "places")
        if limit < 0 or <size_t>limit > TH_MAX_ROWS:
            raise ValueError(f"places must be from 0 to {TH_MAX_ROWS}, got {limit}")
        self.number_of, self.places = _zeros(limit, cnp.NPY_UINT32), limit

    def __len__(self):
        """Return the number of keys."""
        return self.keys

    def number_many(self, places):
        """Return the numbers of n keys, int64, and whether each had none, bool. O(n)."""
        # Of equal places, only the first can have had none. A ValueError is raised if a place is too large; those
        # before it may have got numbers.
        cdef size_t n = len(places)
        cdef cnp.ndarray at = _column_of(places, "places", cnp.NPY_INT64, n)
        cdef cnp.ndarray numbers = _empty(n, cnp.NPY_INT64), added = _empty(n, cnp.NPY_BOOL)
        result = numbers, added
        if th_group_numbers(_int64s(at), n, self.places, <uint32_t *>cnp.PyArray_DATA(self.number_of), &self.keys,
                            _int64s(numbers), _uint8s(added)) != TH_YES:
            raise ValueError(f"places must be from 0 to {<int64_t>self.places - 1}")
        return result


def wave_order(rows, numbers, keys):
    """Return the order that puts the first row of each key before the second ones, and so on. O(n).

    `rows` (int64, shape (n,)) are in the order that they have within a wave. `numbers` (int64, shape (m,)) has the
    number of each row's key, less than `keys`; there may be other rows. The result is the rows by wave, the number
    of the key of each of them, and where each wave ends in that order.
    """
    cdef size_t n = len(rows), count = len(numbers), waves = 0
    cdef cnp.ndarray row = _column_of(rows, "rows", cnp.NPY_INT64, n)
    cdef cnp.ndarray number = _column_of(numbers, "numbers", cnp.NPY_INT64, count)
    cdef int64_t limit = _int64(keys, "keys")
    if limit < 0 or <size_t>limit > TH_MAX_ROWS or n > TH_MAX_ROWS:
        raise ValueError(f"rows and keys must be at most {TH_MAX_ROWS}, got {n} and {limit}")
    cdef cnp.ndarray seen = _zeros(limit, cnp.NPY_UINT32), ranks = _empty(n, cnp.NPY_UINT32)
    cdef cnp.ndarray order = _empty(n, cnp.NPY_INT64), ordered_numbers = _empty(n, cnp.NPY_INT64), stops
    cdef uint32_t *rank = <uint32_t *>cnp.PyArray_DATA(ranks)
    cdef th_ordered ordered = th_ordered(_int64s(row), _int64s(number), n, count, limit)
    if th_group_ranks(&ordered, <uint32_t *>cnp.PyArray_DATA(seen), rank, &waves) != TH_YES:
        raise ValueError(f"rows must be from 0 to {<int64_t>count - 1}, and numbers from 0 to {limit - 1}")
    stops = _zeros(waves, cnp.NPY_INT64)
    th_group_waves(&ordered, rank, waves, _int64s(stops), _int64s(order), _int64s(ordered_numbers))
    return order, ordered_numbers, stops


def row_order(first, second, third):
    """Return the order of rows by three columns of int64; equal rows stay in their order. O(n)."""
    cdef size_t n = len(first)
    cdef const int64_t *data[3]
    if n > TH_MAX_ROWS:
        raise ValueError(f"first must have at most {TH_MAX_ROWS} rows, got {n}")
    cdef cnp.ndarray a = _column_of(first, "first", cnp.NPY_INT64, n)
    cdef cnp.ndarray b = _column_of(second, "second", cnp.NPY_INT64, n)
    cdef cnp.ndarray c = _column_of(third, "third", cnp.NPY_INT64, n)
    cdef cnp.ndarray order = _empty(n, cnp.NPY_INT64), scratch = _empty(n, cnp.NPY_UINT64)
    data[0], data[1] = _int64s(a), _int64s(b)
    data[2] = _int64s(c)
    th_row_order(data, n, <uint64_t *>cnp.PyArray_DATA(order), <uint64_t *>cnp.PyArray_DATA(scratch))
    return order
