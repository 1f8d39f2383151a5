# Views of Arrow arrays, on csrc/th_array.h.

BITS, FIXED, FLOAT, TEXT = TH_BITS, TH_FIXED, TH_FLOAT, TH_TEXT


cdef const unsigned char[::1] _no_bytes = b""


cdef inline const unsigned char[::1] _buffer(object data, str name):
    """Return the bytes of a contiguous buffer; None has none."""
    return _no_bytes if data is None else _bytes_of(data, name)


cdef inline const uint8_t *_front(const unsigned char[::1] data) noexcept:
    return &data[0] if data.shape[0] else NULL


@cython.final
@cython.auto_pickle(False)
cdef class ArrayView:
    """A part of an Arrow array whose values have bits, a fixed number of bytes, or offsets.

    `kind` is BITS, FIXED, FLOAT (compared as numbers) or TEXT. `width` is the bytes of a value, for TEXT those of an
    offset (4 or 8). `start` and `n` count values. A ValueError is raised if a buffer is too short for the values.
    """

    cdef th_array a
    cdef const unsigned char[::1] validity
    cdef const unsigned char[::1] offsets
    cdef const unsigned char[::1] data

    def __cinit__(self, kind, width, start, n, validity, offsets, data):
        cdef int64_t number = _int64(kind, "kind"), size = _int64(width, "width")
        cdef int64_t first = _int64(start, "start"), rows = _int64(n, "n")
        if not TH_BITS <= number <= TH_TEXT:
            raise ValueError(f"kind must be BITS, FIXED, FLOAT or TEXT, got {number}")
        if not 0 <= size < 1 << 16 or (number >= TH_FLOAT and size != 4 and size != 8):
            raise ValueError(f"width must be 4 or 8 bytes for FLOAT and TEXT, and below 65536 for FIXED, got {size}")
        if not 0 <= first <= 1 << 46 or not 0 <= rows <= 1 << 46:
            raise ValueError(f"start and n must be from 0 to 2**46, got {first} and {rows}")
        self.validity, self.offsets = _buffer(validity, "validity"), _buffer(offsets, "offsets")
        self.data = _buffer(data, "data")
        self.a.kind, self.a.width, self.a.start, self.a.n = <th_kind>number, <unsigned>size, first, rows
        if validity is not None:
            self.a.valid = _front(self.validity)
        self.a.offset, self.a.data, self.a.size = _front(self.offsets), _front(self.data), self.data.shape[0]
        if not rows:
            return
        cdef int64_t bits = (first + rows + 7) // 8
        self.hold("validity", self.validity, 0 if validity is None else bits)
        self.hold("offsets", self.offsets, (first + rows + 1) * size if number == TH_TEXT else 0)
        if number != TH_TEXT:
            self.hold("data", self.data, bits if number == TH_BITS else (first + rows) * size)

    cdef int hold(self, str name, const unsigned char[::1] buffer, int64_t size) except -1:
        if buffer.shape[0] < size:
            raise ValueError(f"{name} must have {size} bytes or more, got {buffer.shape[0]}")
        return 0

    @property
    def kind(self):
        """int: kind of the values."""
        return self.a.kind

    @property
    def width(self):
        """int: number of bytes of a value or an offset, 0 for BITS."""
        return self.a.width

    def __len__(self):
        return self.a.n

    def compare(self, ArrayView stored not None, places, same):
        """Clear `same` (bool, changed in place) where a value of this array differs from the stored one. O(n).

        `places` (int64) has the number of each stored value; `stored` is of the same kind, for TEXT of any width.
        Rows whose `same` is False are not compared. Null equals null only. A ValueError is raised if a place or an
        offset lies outside of its array; `same` is then of no use.
        """
        cdef cnp.ndarray at = _column_of(places, "places", cnp.NPY_INT64, self.a.n)
        cdef cnp.ndarray result = _column_of(same, "same", cnp.NPY_BOOL, self.a.n)
        if self.a.kind != stored.a.kind or (self.a.kind != TH_TEXT and self.a.width != stored.a.width):
            raise ValueError("stored must have the kind and the width of this array, got others")
        if not cnp.PyArray_ISWRITEABLE(result):
            raise ValueError("same must be writeable")
        if th_array_compare(&stored.a, _int64s(at), &self.a, _uint8s(result)) != TH_YES:
            raise ValueError("a place or an offset lies outside of its array")


def secret_hashes(columns, n, seed):
    """Return a hash of each row of `n`, int64, with a secret seed of 128 bits: SipHash-1-3. O(bytes).

    Rows that `ArrayView.compare` finds equal have the same hash, also with offsets of another width. A ValueError is
    raised if an offset lies outside of its data.
    """
    cdef list held = list(columns)
    cdef int64_t rows = _int64(n, "n")
    cdef size_t count = len(held), k
    cdef uint64_t seeds[2]
    cdef ArrayView view
    if rows < 0:
        raise ValueError(f"n must not be negative, got {rows}")
    seeds[0], seeds[1] = seed & 0xFFFFFFFFFFFFFFFF, seed >> 64
    for one in held:
        view = one
        if <int64_t>view.a.n != rows:
            raise ValueError(f"columns must have {rows} values each, got {view.a.n}")
    cdef cnp.ndarray arrays = _empty(count * sizeof(th_array), cnp.NPY_UINT8), hashes = _empty(rows, cnp.NPY_INT64)
    cdef th_array *array = <th_array *>cnp.PyArray_DATA(arrays)
    for k in range(count):
        array[k] = (<ArrayView>held[k]).a
    if th_array_hash_many(array, count, rows, seeds, _int64s(hashes)) != TH_YES:
        raise ValueError("an offset lies outside of its array")
    return hashes


cdef cnp.ndarray _column_of(object value, str name, int dtype, size_t n):
    """Check that a value is a contiguous array of n numbers of a type."""
    cdef cnp.ndarray array
    if not cnp.PyArray_Check(value):
        raise TypeError(f"{name} must be an array, got {_shown(value)}")
    array = value
    if array.ndim != 1 or cnp.PyArray_TYPE(array) != dtype or not cnp.PyArray_ISCARRAY_RO(array):
        raise ValueError(f"{name} must be a contiguous array of one dimension and the right type, got {_shown(value)}")
    if <size_t>array.shape[0] != n:
        raise ValueError(f"{name} must have {n} values, got {array.shape[0]}")
    return array
