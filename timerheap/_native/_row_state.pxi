# The handle of a value state in a function that is called with one row or timer at a time.


@cython.nonecheck(True)
@cython.auto_pickle(False)
@cython.binding(False)
cdef class RowValue:
    """The methods of a `timerheap.ValueState` on the values that a micro-batch has read and written.

    Parameters
    ----------
    keys : CurrentKey
    codec : timerheap._state_handles.Codec
        Checks and copies values.
    exact : type or None
        Values of exactly this class are kept as they are, without the codec, unless they are NaN.
    bits : int
        The size of the integers that the state holds, up to 64; 0 for another type.
    no_key : callable
        Raises the error for a call without a current key.
    """

    cdef CurrentKey keys
    cdef object codec, exact, no_key, table
    cdef int bits
    cdef dict loaded, stored

    def __init__(self, CurrentKey keys not None, codec, exact, int bits, no_key):
        self.keys, self.codec, self.exact, self.bits, self.no_key = keys, codec, exact, bits, no_key

    def bind(self, table, dict loaded not None, dict stored not None):
        """Use this table from now on.

        Parameters
        ----------
        table : timerheap._state_handles.ValueContents
        loaded, stored : dict of int to object
            The values that the table has loaded, and those that it has stored since, which count first. The table
            may change them.
        """
        self.table, self.loaded, self.stored = table, loaded, stored

    def value(self):
        """See `timerheap.ValueState`."""
        key = self.keys.get()
        if key is None or self.table is None:
            return self.no_key()
        cdef PyObject *found = PyDict_GetItemWithError(self.stored, key)
        if found == NULL:
            found = PyDict_GetItemWithError(self.loaded, key)
        kept = self.table.load(key) if found == NULL else <object>found
        return kept if self.exact is not None else self.codec.decode(kept)

    def update(self, value):
        """See `timerheap.ValueState`."""
        key = self.keys.get()
        if key is None or self.table is None:
            self.no_key()
        kept = value if self.is_exact(value) else self.codec.encode(value)
        if kept is None:
            self.table.store(key, None)
        else:
            self.stored[key] = kept

    def clear(self):
        """See `timerheap.state.State.clear`."""
        key = self.keys.get()
        if key is None or self.table is None:
            self.no_key()
        self.table.store(key, None)

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
