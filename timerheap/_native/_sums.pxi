# Exact sums of doubles by group, on csrc/th_sum.h.

SUM_BASE, SUM_DIGITS = TH_SUM_BASE, TH_SUM_DIGITS


def sum_doubles(values, weights, order, sizes, power=1):
    """Return the exact sums of doubles, or of their squares if `power` is 2, in groups of rows. O(n).

    `values` (float64) and `weights` (int64, or None) have the shape (n,). `order` has the rows, those of each group side
    by side, and `sizes` how many there are in each of g groups: int64. The results are the number of entries of each
    sum, and the entries: int64, shape (g,) and (m,).
    """
    cdef size_t n = len(values)
    cdef cnp.ndarray value = _column_of(values, "values", cnp.NPY_DOUBLE, n), weight
    cdef th_sum_rows rows
    if power not in (1, 2):
        raise ValueError(f"power must be 1 or 2, got {_shown(power)}")
    rows.value, rows.power, rows.weight = <const double *>cnp.PyArray_DATA(value), power, NULL
    if weights is not None:
        weight = _column_of(weights, "weights", cnp.NPY_INT64, n)
        rows.weight = _int64s(weight)
    return _summed_rows(&rows, n, order, sizes)


def add_sums(entries, offsets, order, sizes):
    """Return the sums of exact sums in groups, as `sum_doubles` does; sum i is entries[offsets[i]:offsets[i + 1]]."""
    cdef th_sum_rows rows
    cdef cnp.ndarray entry = _column_of(entries, "entries", cnp.NPY_INT64, len(entries))
    cdef cnp.ndarray offset = _offsets_of(offsets, entry.shape[0])
    rows.value, rows.weight, rows.power = NULL, NULL, 1
    rows.entry, rows.offset = _int64s(entry), _int64s(offset)
    return _summed_rows(&rows, offset.shape[0] - 1, order, sizes)


def round_sums(entries, offsets):
    """Return the doubles nearest to exact sums: float64, shape (n,). O(entries)."""
    cdef cnp.ndarray entry = _column_of(entries, "entries", cnp.NPY_INT64, len(entries))
    cdef cnp.ndarray offset = _offsets_of(offsets, entry.shape[0])
    cdef size_t n = offset.shape[0] - 1
    cdef cnp.ndarray found = _empty(n, cnp.NPY_DOUBLE)
    if not th_sum_round(_int64s(entry), _int64s(offset), n, <double *>cnp.PyArray_DATA(found)):
        raise ValueError("entries must be of places that a sum has")
    return found


cdef cnp.ndarray _offsets_of(object offsets, int64_t end):
    """Check that a value has offsets of rows, which ascend from 0 to `end`."""
    cdef cnp.ndarray offset = _column_of(offsets, "offsets", cnp.NPY_INT64, len(offsets))
    cdef const int64_t *at = _int64s(offset)
    cdef Py_ssize_t i, n = offset.shape[0]
    if not n or at[0] != 0 or at[n - 1] != end:
        raise ValueError(f"offsets must be from 0 to {end}, the number of entries")
    for i in range(1, n):
        if at[i] < at[i - 1]:
            raise ValueError("offsets must not descend")
    return offset


cdef tuple _summed_rows(th_sum_rows *rows, int64_t n, object order, object sizes):
    cdef size_t i, count = len(order), groups = len(sizes), room = 0
    cdef cnp.ndarray place = _column_of(order, "order", cnp.NPY_INT64, count)
    cdef cnp.ndarray size = _column_of(sizes, "sizes", cnp.NPY_INT64, groups)
    cdef cnp.ndarray length = _empty(groups, cnp.NPY_INT64), entry = _empty(0, cnp.NPY_INT64), more
    cdef th_sum_done done = th_sum_done(0, 0, 0)
    cdef int64_t left = count
    for i in range(count):
        if not 0 <= _int64s(place)[i] < n:
            raise ValueError(f"order must be of rows from 0 to {n - 1}")
    for i in range(groups):
        if not 0 <= _int64s(size)[i] <= left:
            raise ValueError(f"sizes must add up to the {count} rows of order")
        left -= _int64s(size)[i]
    rows.order, rows.size, rows.groups = _int64s(place), _int64s(size), groups
    while done.group < groups:
        room = 2 * room + 4 * groups + TH_SUM_PLACES
        more = _empty(room, cnp.NPY_INT64)
        if done.entries:
            memcpy(cnp.PyArray_DATA(more), cnp.PyArray_DATA(entry), done.entries * sizeof(int64_t))
        entry = more
        if not th_sum_add(rows, &done, _int64s(entry), room, _int64s(length)):
            raise ValueError("entries must be of places that a sum has")
    return length, entry[:done.entries].copy()
