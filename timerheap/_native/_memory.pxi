# Memory from NumPy or lent by the Spark layer, and the objects that the heaps return.
#
# What allocates may run Python code: a Memory of the Spark layer is Python, and so are finalizers, signal handlers, and
# what converts an argument. That code may call anything, also the structure that allocates. Therefore a change has two
# steps, in every file of this folder:
#
# 1. Convert the arguments, make the results, and make all room, in a loop that ends when a pass has allocated nothing:
#    `while not (all room is there): allocate`. After an allocation, read pointers, lengths and capacities again, and
#    use the new memory only if it is still larger than the old.
# 2. Write, with code that allocates nothing, raises nothing, and releases nothing but arrays of its own.
#
# Who collects changes builds the result first and resets last, and begins anew if the structure has changed in between.
# A call of a method of an attribute that others can replace needs a local variable, which holds the object.

cdef extern from "Python.h":
    object PyType_GenericAlloc(PyTypeObject *type, Py_ssize_t items)

cdef extern from *:
    """
    #if defined(__linux__)
    #include <sys/mman.h>
    #include <unistd.h>
    #endif

    /* Request huge pages, as NumPy does for its arrays: page faults of new memory cost more than filling it. */
    static void ask_huge_pages(void *start, size_t size) {
    #if defined(MADV_HUGEPAGE)
        if (size < (size_t)4 << 20) return;
        const long found = sysconf(_SC_PAGESIZE); /* 16 or 64 KiB on some aarch64, where 4 KiB is no boundary */
        if (found <= 0) return;
        const size_t page = (size_t)found, skip = (page - (size_t)start % page) % page;
        madvise((char *)start + skip, (size - skip) / page * page, MADV_HUGEPAGE);
    #else
        (void)start, (void)size;
    #endif
    }
    """
    void ask_huge_pages(void *start, size_t size) noexcept

cdef enum:
    _LINE = 64
    _HUGE_PAGE = 2 << 20


cdef inline object _timer(const th_heap *h, size_t row):
    """Create a Timer as tuple.__new__ does, which takes a third of the time of calling the class."""
    cdef object timestamp = h.ts[row], key_hash = h.key[row], namespace = h.ns[row], timer
    cdef tuple arguments
    if PY_VERSION_HEX >= 0x030E0000:  # tuples have a hash field that only CPython can initialize
        arguments = ((timestamp, key_hash, namespace),)
        return (<PyTypeObject *>tuple).tp_new(Timer, <PyObject *>arguments, NULL)
    timer = PyType_GenericAlloc(<PyTypeObject *>Timer, 3)
    Py_INCREF(timestamp)
    Py_INCREF(key_hash)
    Py_INCREF(namespace)
    PyTuple_SET_ITEM(timer, 0, timestamp)
    PyTuple_SET_ITEM(timer, 1, key_hash)
    PyTuple_SET_ITEM(timer, 2, namespace)
    return timer


cdef inline object _batch(cnp.ndarray timestamps, cnp.ndarray key_hashes, cnp.ndarray namespaces):
    """Create a TimerBatch without checking the columns."""
    cdef tuple arguments = ()
    batch = (<PyTypeObject *>object).tp_new(TimerBatch, <PyObject *>arguments, NULL)
    PyObject_GenericSetAttr(batch, "timestamps", timestamps)
    PyObject_GenericSetAttr(batch, "key_hashes", key_hashes)
    PyObject_GenericSetAttr(batch, "namespaces", namespaces)
    return batch


cdef inline cnp.ndarray _empty(size_t n, int dtype):
    cdef cnp.npy_intp shape = n
    return cnp.PyArray_EMPTY(1, &shape, dtype, 0)


cdef inline cnp.ndarray _zeros(size_t n, int dtype):
    cdef cnp.npy_intp shape = n
    return cnp.PyArray_ZEROS(1, &shape, dtype, 0)


cdef inline int64_t *_int64s(cnp.ndarray array) noexcept:
    return <int64_t *>cnp.PyArray_DATA(array)


cdef inline uint8_t *_uint8s(cnp.ndarray array) noexcept:
    return <uint8_t *>cnp.PyArray_DATA(array)


@cython.final
@cython.no_gc  # otherwise the array could be reached with gc.get_referents()
@cython.auto_pickle(False)
cdef class _Memory:
    """Memory from NumPy, and the base of all its views."""
    # It has no buffer, so NumPy cannot make the views writeable. If the array were the base, one call could.

    cdef cnp.ndarray array
    cdef object block  # the Block of a Memory that has lent the array, or None


cdef inline size_t _spare(size_t size) noexcept:
    """Return how many bytes to allocate in addition to `size`, so that _start can align the memory."""
    # It is aligned to a cache line or, from 4 MiB on, to a huge page, as requested by NumPy, which saves most of the
    # page faults of a new heap.
    return _LINE if size < 2 * _HUGE_PAGE else _HUGE_PAGE


cdef _Memory _memory(size_t size, bint zeroed=False):
    cdef _Memory memory = _Memory.__new__(_Memory)
    size += _spare(size)
    memory.array = _zeros(size, cnp.NPY_UINT8) if zeroed else _empty(size, cnp.NPY_UINT8)
    return memory


cdef inline void *_start(_Memory memory, size_t size, size_t before) noexcept:
    """Return the start of `size` bytes in memory, `before` bytes before a boundary."""
    cdef size_t address = <size_t>cnp.PyArray_DATA(memory.array)
    return <void *>(address + (0 - address - before) % _spare(size))


cdef inline int64_t *_move(_Memory memory, size_t cap, const int64_t *column, size_t n) noexcept:
    cdef int64_t *start = <int64_t *>_start(memory, cap * sizeof(int64_t), sizeof(int64_t))
    if n:
        memcpy(start, column, n * sizeof(int64_t))
    return start


cdef _Memory _NOTHING = _memory(0)  # the columns of a heap without memory

cdef uint64_t _seeds


def _draw_seeds():
    """Start a new sequence of seeds."""
    global _seeds
    _seeds = int.from_bytes(os.urandom(8), "little")


cdef uint64_t _new_seed() noexcept:
    global _seeds
    _seeds += 1  # the C code scrambles it
    return _seeds


_draw_seeds()
if hasattr(os, "register_at_fork"):  # an index may not be filled in the order of another one with the same seed
    os.register_at_fork(after_in_child=_draw_seeds)

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

    cdef size_t capacity(self) noexcept:
        return 0

    cdef int resize(self, size_t cap) except -1:
        """Move the structure to new memory. Allocating may run other threads: read the structure again."""
        return 0

    cdef int shrink(self, size_t cap) except -1:
        """Move the structure to less memory, unless allocating it fails."""
        cap = max(cap, self.reserved)
        if cap < self.capacity():
            try:
                self.resize(cap)
            except Exception:  # MemoryError, or whatever else a Memory raises
                pass
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
