# The memory of the heaps: arrays from NumPy, or one block of a Memory.

cdef enum:
    _SMALL = 48  # heaps and indexes do not shrink below this capacity, unless they are cleared
    _LARGE = 4096  # they double up to this capacity; then a heap grows by a third: at most 47 bytes a timer


cdef class _HeapMemory(_Borrower):
    """A heap and its memory; `h.identity` says which timers move."""

    cdef th_heap h
    cdef _Memory ts, key, ns, slot, line  # borrowed by h

    def __cinit__(self, *args, **kwargs):
        self.seed = _new_seed()
        cdef th_identity identity = TH_BY_TIMER
        if isinstance(self, KeyTimerHeap):
            identity = TH_BY_KEY
        elif isinstance(self, NamedTimerHeap):
            identity = TH_BY_NAME
        th_heap_init(&self.h, identity, self.seed)

    def __init__(self, capacity=0):
        self.make_room(capacity, "capacity")

    # ---- memory ----

    cdef int resize(self, size_t cap) except -1:
        """See `_Borrower.resize`; views of the old memory stay valid."""
        if cap > TH_MAX_ROWS:
            raise MemoryError(f"a heap must hold at most {TH_MAX_ROWS} timers, got {cap}")
        return self.resize_arrays(cap) if self.memory is None else self.resize_block(cap)

    cdef int resize_block(self, size_t cap) except -1:
        cdef _Memory old, room = self.borrow(th_heap_size(cap))
        if self.h.len > cap:  # another thread has grown the heap beyond this capacity
            self.give(room)
            return 0
        th_heap_move(&self.h, NULL if room is None else cnp.PyArray_DATA(room.array), cap)
        old, self.room = self.room, room
        self.ts = self.key = self.ns = room
        self.slot = self.line = None
        self.give(old)
        return 0

    cdef int resize_arrays(self, size_t cap) except -1:
        cdef size_t n, lines = th_index_lines(cap)
        cdef size_t size = cap * sizeof(int64_t), slot_size = cap * sizeof(uint32_t), line_size = lines * sizeof(th_line)
        line, slot = _memory(line_size, zeroed=True), _memory(slot_size)
        ts, key, ns = _memory(size), _memory(size), _memory(size)
        n = self.h.len
        if n > cap:
            return 0  # another thread has grown the heap beyond this capacity
        # Nothing fails from here on. Old memory is released column by column to keep the peak low.
        self.h.line, self.line = <th_line *>_start(line, line_size, 0), line
        self.h.slot, self.slot = <uint32_t *>_start(slot, slot_size, sizeof(uint32_t)), slot
        self.h.ts, self.ts = _move(ts, cap, self.h.ts, n), ts
        self.h.key, self.key = _move(key, cap, self.h.key, n), key
        self.h.ns, self.ns = _move(ns, cap, self.h.ns, n), ns
        self.h.cap, self.h.lines = cap, lines
        th_heap_reindex(&self.h)
        return 0

    cdef int grow(self, size_t need) except -1:
        cdef size_t cap = self.h.cap
        cap = 2 * cap + 9 if cap < _LARGE else min(cap + cap // 3, TH_MAX_ROWS)
        return self.resize(max(cap, need))

    cdef int give_back(self) except -1:
        """Shrink a heap that is less than a quarter full until it is half full."""
        return self.shrink(max(2 * self.h.len, <size_t>_SMALL)) if self.h.len < self.h.cap // 4 else 0

    cdef size_t capacity(self) noexcept:
        return self.h.cap

    cdef int make_room(self, object n, str name) except -1:
        cdef int64_t cap = _int64(n, name)
        if cap < 0:
            raise ArgumentValueError(f"{name} must not be negative, got {cap}")
        if <size_t>cap > self.h.cap:
            self.resize(cap)
        self.reserved = cap
        return self.give_back()

    def reserve(self, n):
        """Reserve memory for `n` timers, so that the heap does not have to grow before it holds more.

        O(len) if the heap moves to new memory. A timer takes 35 bytes.

        Parameters
        ----------
        n : int
            Total number of timers. The heap keeps this memory until another call, for example with 0, releases it.

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            If `n` is not an integer, does not fit int64, or is negative.
        MemoryError
            If there is not enough memory, or `n` is more than 2,415,919,104. The heap is unchanged.
        """
        self.make_room(n, "n")

    @property
    def nbytes(self):
        """int: number of bytes allocated for timers, including unused capacity. O(1)."""
        if self.room is not None:
            return th_heap_size(self.h.cap)
        return self.h.cap * (3 * sizeof(int64_t) + sizeof(uint32_t)) + self.h.lines * sizeof(th_line)

    # ---- on memory that is lent ----

    def _lend(self, memory):
        """Let the heap, which must be empty, live in one block of `memory` from now on."""
        # Views of its columns become stale when it moves to another block, and may then show other data of the memory.
        if self.h.len or self.memory is not None:
            raise ValueError(f"_lend() must be called once, on an empty heap, got {self!r}")
        self.memory = memory
        try:
            self.resize(self.reserved)
        except BaseException:
            if self.room is None:  # otherwise an allocation has pushed timers, which live there
                self.memory = None
            raise

    def _head(self):
        """Return a list of integers with which `_attach` finds the heap again, in any process. O(1)."""
        return self.describe(1 + <int>self.h.identity, self.h.cap, self.h.len)

    @classmethod
    def _attach(cls, memory, head):
        """Return the heap that `head`, of `_head`, describes, on the bytes that it has in `memory`. O(1).

        The heap must not have been changed since, and one process may use it at a time. A ValueError is raised if
        `head` cannot be the head of a heap of this class in this memory.
        """
        cdef _HeapMemory heap = cls.__new__(cls)
        cdef _Head h = _head_of(head, 1 + <int>heap.h.identity)
        cdef void *start = heap.find(memory, &h, th_heap_size(h.cap))
        th_heap_init(&heap.h, heap.h.identity, h.seed)
        th_heap_place(&heap.h, start, h.cap)
        heap.h.len = h.n
        heap.ts = heap.key = heap.ns = heap.room
        if not th_heap_plausible(&heap.h):
            raise ValueError("head must be that of a heap, but its block holds other bytes")
        return heap
