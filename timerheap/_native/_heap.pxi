# The methods of all heaps.

cdef enum:
    _FEW = 32  # words of scratch memory on the stack, enough for 64 due rows
    _TIMER_BYTES = 24  # of a timer in `to_bytes`: three numbers of 8 bytes

    # Memory that `push_many` has allocated for rows that were not new goes back if there is more of it than a third of
    # the rows; an eighth of them stays free for the next ones.
    _FREE_PART = 3
    _SPARE_PART = 8


cdef class _Heap(_HeapMemory):
    """Base of the heaps."""

    # ---- one timer ----

    def push(self, timestamp, key_hash, namespace=0):
        """Add a timer or, in a `KeyTimerHeap`, move the timer with the same identity.

        O(1) on average in random order, O(log n) at worst; O(n) if the heap has to grow, which `reserve` avoids.

        Parameters
        ----------
        timestamp, key_hash, namespace : int
            Each int64, the timestamp in epoch milliseconds.

        Returns
        -------
        bool
            True if the timer is new, False if it was already in the heap (a `KeyTimerHeap` has moved it).

        Raises
        ------
        ArgumentTypeError, ArgumentRangeError
            If an argument is not an integer, or does not fit int64.
        MemoryError
            If there is not enough memory. The heap is unchanged.
        """
        cdef int64_t ts = _int64(timestamp, "timestamp")
        cdef int64_t key = _int64(key_hash, "key_hash")
        cdef int64_t ns = _int64(namespace, "namespace")
        return self.add(ts, key, ns)

    cdef bint add(self, int64_t ts, int64_t key, int64_t ns) except -1:
        cdef th_status status = th_heap_push(&self.h, ts, key, ns)
        while status == TH_FULL:
            self.grow(self.h.len + 1)
            status = th_heap_push(&self.h, ts, key, ns)
        return status == TH_YES

    def peek(self):
        """Return the first timer without removing it, or None if the heap is empty. O(1)."""
        return _timer(&self.h, 0) if self.h.len else None

    def pop(self):
        """Remove and return the first timer in the order (timestamp, key_hash, namespace). O(log n).

        Returns
        -------
        Timer

        Raises
        ------
        IndexError
            If the heap is empty.
        """
        cdef uint64_t changes
        while True:
            if not self.h.len:
                raise IndexError("pop from an empty heap")
            changes = self.h.changes
            timer = _timer(&self.h, 0)
            if changes == self.h.changes:  # otherwise a finalizer has changed the heap
                break
        th_heap_pop(&self.h)
        self.give_back()
        return timer

    # ---- many timers ----

    def push_many(self, timestamps, key_hashes, namespaces=0):
        """Push many timers at once, with the same result as pushing them one by one in order.

        O(n) on average, O(n + log(len)**2) sifts at worst. Columns may be views of this heap. If another thread or
        process writes to them during the call, the heap stays valid, with any of the values written.

        Parameters
        ----------
        timestamps, key_hashes, namespaces : array_like of int, shape (n,), or int
            Columns of equal length and any integer dtype; at most two may be an int, which applies to all rows.

        Returns
        -------
        ndarray of bool, shape (n,)
            The result of `push` for each row. Of rows with the same identity, only the first can be new; in a
            `KeyTimerHeap`, the last one determines the timestamp.

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            If a column is not of integers, not one-dimensional, of another length, or does not fit int64.
        MemoryError
            If there is not enough memory. The heap is unchanged.
        """
        cdef _Columns rows = _Columns(self)
        cdef th_column ts = rows.take(timestamps, "timestamps")
        cdef th_column key = rows.take(key_hashes, "key_hashes")
        cdef th_column ns = rows.take(namespaces, "namespaces")
        cdef size_t n = rows.count(), need = 0, cap = self.h.cap
        cdef cnp.ndarray added = _empty(n, cnp.NPY_BOOL), where = _empty(n if self.h.identity else 0, cnp.NPY_UINT32)
        while th_heap_push_many(&self.h, ts, key, ns, n, _uint8s(added),
                                <uint32_t *>cnp.PyArray_DATA(where), &need) == TH_FULL:
            self.grow(need)
        if self.h.cap > cap and self.h.cap - self.h.len > self.h.len // _FREE_PART:
            self.shrink(max(self.h.len + self.h.len // _SPARE_PART, <size_t>_SMALL))
        return added

    cdef cnp.ndarray remove_rows(self, object timestamps, object key_hashes, object namespaces, bint only_at):
        """Remove many timers; with `only_at`, only if they are at `timestamps`, also those that move."""
        cdef _Columns rows = _Columns(self)
        cdef th_column ts = rows.take(timestamps, "timestamps")
        cdef th_column key = rows.take(key_hashes, "key_hashes")
        cdef th_column ns = rows.take(namespaces, "namespaces")
        cdef size_t n = rows.count()
        cdef cnp.ndarray removed = _empty(n, cnp.NPY_BOOL)
        if only_at:
            th_heap_take_many(&self.h, ts, key, ns, n, _uint8s(removed))
        else:
            th_heap_remove_many(&self.h, ts, key, ns, n, _uint8s(removed))
        self.give_back()
        return removed

    def remove_keys(self, key_hashes):
        """Remove all timers of k keys, with any timestamp and namespace, by scanning the heap. O(len + k).

        Parameters
        ----------
        key_hashes : array_like of int, shape (k,), or int

        Returns
        -------
        int
            The number of timers removed.

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            As `push_many`.
        """
        cdef _Columns rows = _Columns(self)
        cdef th_column key = rows.take(key_hashes, "key_hashes")
        cdef size_t n = rows.rows if rows.rows >= 0 else 1, size = 2
        while size < 2 * n:
            size *= 2
        cdef cnp.ndarray memory = _zeros(size + 1, cnp.NPY_INT64)
        cdef int64_t *table = _int64s(memory)
        # Create the int before any change, because its allocation may fail, too.
        cdef object removed = th_heap_count_keys(&self.h, key, n, table, size)
        if removed:
            th_heap_remove_keys(&self.h, table, size)
            self.give_back()
        return removed

    def count_due(self, watermark):
        """Count the timers with timestamp <= `watermark`. O(result).

        Parameters
        ----------
        watermark : int
            Epoch milliseconds, int64.

        Returns
        -------
        int

        Raises
        ------
        ArgumentTypeError, ArgumentRangeError
            If `watermark` is not an integer, or does not fit int64.
        """
        return th_heap_count_due(&self.h, _int64(watermark, "watermark"))

    def _due_rows(self, watermark):
        """Return the rows of the columns with timestamp <= `watermark`: int64, shape (k,), ascending. O(k)."""
        cdef int64_t time = _int64(watermark, "watermark")
        cdef size_t n = th_heap_count_due(&self.h, time)
        cdef uint64_t changes = self.h.changes
        cdef cnp.ndarray rows = _empty(n, cnp.NPY_INT64)
        while changes != self.h.changes:  # another thread has changed the heap
            n, changes = th_heap_count_due(&self.h, time), self.h.changes
            rows = _empty(n, cnp.NPY_INT64)
        return rows[:th_heap_due_rows(&self.h, time, _int64s(rows), n)]

    def pop_due(self, watermark, limit=None):
        """Remove and return all timers with timestamp <= `watermark`, in total order.

        With k due timers, sorting costs O(k) and removing O(k log n) at worst; with a small limit, O(limit log n).

        Parameters
        ----------
        watermark : int
            Epoch milliseconds, int64.
        limit : int, optional
            Return at most the first `limit` timers.

        Returns
        -------
        TimerBatch
            Sorted by (timestamp, key_hash, namespace).

        Raises
        ------
        ArgumentTypeError, ArgumentRangeError
            If an argument is not an integer, or does not fit int64.
        ArgumentValueError
            If `limit` is negative.
        MemoryError
            If there is not enough memory for the result. The heap is unchanged.
        """
        cdef int64_t until = _int64(watermark, "watermark"), most = INT64_MAX
        cdef uint64_t[_FEW] few
        cdef th_due due
        cdef cnp.ndarray scratch, ts, key, ns
        if limit is not None:
            most = _int64(limit, "limit")
            if most < 0:
                raise ArgumentValueError(f"limit must not be negative, got {limit}")
        due = th_due(watermark=until, limit=most, scratch=&few[0], words=_FEW, room=SIZE_MAX, found=0)
        while th_heap_pop_due(&self.h, &due) == TH_FULL:  # it wants memory, see th_heap.h
            if due.need:  # scratch that goes on with what it has found
                more = _empty(due.need, cnp.NPY_UINT64)
                memcpy(cnp.PyArray_DATA(more), due.scratch, due.words * sizeof(uint64_t))
                scratch, due.scratch, due.words = more, <uint64_t *>cnp.PyArray_DATA(more), due.need
            else:  # the columns of the result
                ts, key, ns = _empty(due.n, cnp.NPY_INT64), _empty(due.n, cnp.NPY_INT64), _empty(due.n, cnp.NPY_INT64)
                batch = _batch(ts, key, ns)
                due.ts, due.key = _int64s(ts), _int64s(key)
                due.ns, due.room = _int64s(ns), due.n
        self.give_back()
        return batch

    # ---- as a container ----

    cdef cnp.ndarray view(self, int64_t *data, _Memory owner):
        cdef cnp.npy_intp n = self.h.len
        if owner is None:
            data, owner = _int64s(_NOTHING.array), _NOTHING
        cdef cnp.ndarray column = cnp.PyArray_SimpleNewFromData(1, &n, cnp.NPY_INT64, data)
        cnp.set_array_base(column, owner)
        cnp.PyArray_CLEARFLAGS(column, cnp.NPY_ARRAY_WRITEABLE)
        return column

    @property
    def timestamps(self):
        """ndarray of int64, shape (len,): timestamps in heap order, epoch milliseconds. O(1).

        The three columns are views of the heap. They show later changes until the heap moves to new memory; after
        that, they are valid but stale. They are read-only, and NumPy cannot make them or their views writeable. Row
        numbers are not stable: any change may move timers to other rows.
        """
        return self.view(self.h.ts, self.ts)

    @property
    def key_hashes(self):
        """ndarray of int64, shape (len,): key hashes in heap order; see `timestamps`. O(1)."""
        return self.view(self.h.key, self.key)

    @property
    def namespaces(self):
        """ndarray of int64, shape (len,): namespaces in heap order; see `timestamps`. O(1)."""
        return self.view(self.h.ns, self.ns)

    def __len__(self):
        return self.h.len

    def __iter__(self):
        """Iterate over the timers in heap order, in which only the first timer is sorted. O(1) a timer.

        Changing the heap during the iteration raises RuntimeError.
        """
        cdef size_t row, n = self.h.len
        cdef uint64_t changes = self.h.changes
        for row in range(n):
            if changes != self.h.changes:
                raise RuntimeError("heap changed during iteration")
            yield _timer(&self.h, row)

    def __repr__(self):
        head = f", first {self.peek()}" if self.h.len else ""
        return f"<timerheap.{type(self).__name__} of {self.h.len} timers{head}>"

    def clear(self):
        """Remove all timers and release all memory that is not reserved. O(capacity), to clear the index."""
        th_heap_clear(&self.h)
        self.shrink(0)

    def copy(self):
        """Return an independent heap with the same timers and the same capacity. O(len), a copy of memory.

        Returns
        -------
        TimerHeap or KeyTimerHeap
            A heap of the same class.

        Raises
        ------
        MemoryError
            If there is not enough memory.
        """
        cdef _Heap other = type(self).__new__(type(self))
        while other.h.cap != self.h.cap:  # another thread may change it in the meantime
            other.resize(self.h.cap)
        th_heap_copy(&other.h, &self.h)
        other.seed, other.reserved = self.seed, self.reserved
        return other

    __copy__ = copy

    def __deepcopy__(self, memo):
        return self.copy()

    # ---- as bytes ----

    def to_bytes(self):
        """Return the heap as versioned and checksummed bytes, equal on every machine. O(len), 24 bytes a timer.

        Returns
        -------
        bytes
            The columns in heap order, little-endian int64, in the envelope of `seal`.
        """
        cdef size_t n = self.h.len
        cdef cnp.ndarray columns = np.empty(3 * n, np.int64)
        while n != self.h.len:  # another thread may change it in the meantime
            n = self.h.len
            columns = np.empty(3 * n, np.int64)
        cdef int64_t *rows = _int64s(columns)
        if n:
            memcpy(rows, self.h.ts, n * sizeof(int64_t))
            memcpy(rows + n, self.h.key, n * sizeof(int64_t))
            memcpy(rows + 2 * n, self.h.ns, n * sizeof(int64_t))
        return seal(1 + <int>self.h.identity, columns.astype("<i8", copy=False))

    @classmethod
    def from_bytes(cls, data):
        """Return the heap that `to_bytes` wrote. O(n).

        Parameters
        ----------
        data : bytes-like
            It may come from an untrusted source, because it is verified completely.

        Returns
        -------
        TimerHeap or KeyTimerHeap
            A heap without unused capacity.

        Raises
        ------
        ArgumentTypeError
            If `data` is not bytes-like.
        CheckpointError
            If `data` is not from `to_bytes` of this class, has another format version, is damaged, or is not a valid
            heap.
        """
        cdef _Heap heap = cls.__new__(cls)
        payload = unseal(1 + <int>heap.h.identity, data)
        if len(payload) % _TIMER_BYTES:
            raise DamagedCheckpointError(f"data must be a valid heap, with 24 bytes a timer, got {len(payload)} bytes "
                                         "of columns")
        cdef size_t n = len(payload) // _TIMER_BYTES
        if not n:
            return heap
        cdef cnp.ndarray columns = np.frombuffer(payload, "<i8").astype(np.int64, copy=False)
        cdef const int64_t *rows = _int64s(columns)
        heap.resize(n)
        memcpy(heap.h.ts, rows, n * sizeof(int64_t))
        memcpy(heap.h.key, rows + n, n * sizeof(int64_t))
        memcpy(heap.h.ns, rows + 2 * n, n * sizeof(int64_t))
        heap.h.len = n
        status = th_heap_restore(&heap.h)
        if status != TH_YES:
            heap.h.len = 0
            raise DamagedCheckpointError(f"data must be a valid heap, but {_broken(status)}")
        return heap

    def __reduce__(self):
        return _restore, (type(self), self.to_bytes())

    def _check(self):
        """Raise AssertionError if an invariant of the heap is broken. O(n)."""
        status = th_heap_check(&self.h)
        if status != TH_YES:
            raise AssertionError(_broken(status))


def _restore(cls, data):
    return cls.from_bytes(data)
