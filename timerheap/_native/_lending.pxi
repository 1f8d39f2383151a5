# Structures on memory that the Spark layer lends: each in one block of a Memory (timerheap/spark/_group/memory.py).

cdef enum:
    _TIMER_HEAP = 1  # the kinds of heads, and of sealed bytes
    _KEY_TIMER_HEAP = 2
    _ID_INDEX = 3


cdef struct _Head:
    uint64_t kind
    uint64_t at
    uint64_t size
    uint64_t cap
    uint64_t n
    uint64_t seed
    uint64_t reserved


cdef _Head _head_of(object head, uint64_t kind) except *:
    """Check a head as far as that is possible without its block."""
    cdef _Head h
    cdef uint64_t *field = <uint64_t *>&h
    cdef Py_ssize_t k, fields = sizeof(_Head) // sizeof(uint64_t)
    if not isinstance(head, (list, tuple)) or len(head) != fields:
        raise ValueError(f"head must be a list of {fields} integers, as _head() returns it, got {_shown(head)}")
    for k in range(fields):
        number = head[k]
        if type(number) is not int or not 0 <= number < 1 << 64:
            raise ValueError(f"head[{k}] must be an integer from 0 to 2**64 - 1, got {_shown(number)}")
        field[k] = number
    if h.kind != kind:
        raise ValueError(f"head must be that of {_kind_name(kind)}, got that of {_kind_name(h.kind)}")
    if h.cap > TH_MAX_ROWS or h.n > h.cap or h.reserved > h.cap:
        raise ValueError(f"head must have a length within its capacity, of at most {TH_MAX_ROWS}, got {head}")
    return h


cdef class _Borrower:
    """Base of the structures that can live in one block of a `Memory`; without one, they live in arrays of NumPy."""

    cdef object memory  # a Memory, or None
    cdef _Memory room  # where the structure lives, if that is one piece
    cdef uint64_t seed
    cdef size_t reserved

    cdef _Memory borrow(self, size_t size):
        """Return a new block, or None if `size` is 0. Allocating may run other threads."""
        return _lent(self.memory.allocate(size), size) if size else None

    cdef int give(self, _Memory room) except -1:
        """Return a block that is not in use any more."""
        if room is not None and room.block is not None:
            self.memory.release(room.block)
        return 0

    cdef list describe(self, uint64_t kind, size_t cap, size_t n):
        if self.memory is None:
            raise ValueError("_head() must be called on a structure in a Memory, got one in memory of its own")
        at, size = (0, 0) if self.room is None else (self.room.block.at, len(self.room.array))
        return [kind, at, size, cap, n, self.seed, self.reserved]

    cdef void *find(self, object memory, const _Head *head, size_t size) except? NULL:
        """Find the block of a structure that takes `size` bytes, and return its start."""
        if head.size < size or bool(size) != bool(head.size):
            raise ValueError(f"head must describe a block of {size} bytes or more, got {head.size}")
        self.memory, self.seed, self.reserved = memory, head.seed, head.reserved
        if not size:
            return NULL
        self.room = _lent(memory.attach(head.at, head.size), head.size)
        return cnp.PyArray_DATA(self.room.array)


cdef _Memory _lent(object block, size_t size):
    """Check that a block can hold `size` bytes."""
    cdef _Memory room = _Memory.__new__(_Memory)
    room.block, room.array = block, np.asarray(block.bytes)
    cdef bint of_bytes = cnp.PyArray_TYPE(room.array) == cnp.NPY_UINT8 and room.array.ndim == 1
    if not of_bytes or <size_t>cnp.PyArray_SIZE(room.array) < size:
        raise ValueError(f"a block must be an array of {size} bytes or more, got {_shown(block.bytes)}")
    if not cnp.PyArray_ISCARRAY(room.array) or <size_t>cnp.PyArray_DATA(room.array) % _LINE:
        raise ValueError(f"a block must be writable, contiguous and aligned to {_LINE} bytes")
    return room
