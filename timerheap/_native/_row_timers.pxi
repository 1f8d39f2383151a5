# The timers of a function that is called with one row or timer at a time, and their journal.

cdef enum:
    _PUSH = 0  # the operations of timerheap/spark/_group/timer_journal.py
    _REMOVE = 1


@cython.final
@cython.auto_pickle(False)
cdef class TimerChanges:
    """A journal of changes of one timer each: rows of (operation, timestamp, key hash, namespace)."""

    cdef cnp.ndarray array
    cdef int64_t *rows
    cdef size_t n, cap

    cdef int make_room(self, size_t rows=1) except -1:
        """Make room for more rows, so that `write` cannot fail."""
        cdef size_t cap
        cdef cnp.ndarray more
        if self.n + rows > self.cap:
            cap = max(64, 2 * self.cap, self.n + rows)
            more = _empty(4 * cap, cnp.NPY_INT64)
            if self.n:
                memcpy(cnp.PyArray_DATA(more), self.rows, 4 * self.n * sizeof(int64_t))
            self.array, self.rows, self.cap = more, <int64_t *>cnp.PyArray_DATA(more), cap
        return 0

    cdef void write(self, int64_t op, int64_t ts, int64_t key, int64_t ns) noexcept:
        cdef int64_t *row = self.rows + 4 * self.n
        row[0], row[1], row[2], row[3] = op, ts, key, ns
        self.n += 1

    def push_many(self, timestamps, key_hashes, namespaces):
        """Record that timers have been pushed; the columns are as for the heap's ``push_many``."""
        cdef _Columns rows = _Columns(None)
        cdef th_column ts = rows.take(timestamps, "timestamps")
        cdef th_column key = rows.take(key_hashes, "key_hashes")
        cdef th_column ns = rows.take(namespaces, "namespaces")
        cdef size_t n = rows.count(), i
        self.make_room(n)
        for i in range(n):
            self.write(_PUSH, ts.data[<Py_ssize_t>i * ts.step], key.data[<Py_ssize_t>i * key.step],
                       ns.data[<Py_ssize_t>i * ns.step])

    def take(self):
        """Remove and return all changes: int64, shape (n, 4)."""
        cdef size_t n = self.n
        array = _empty(0, cnp.NPY_INT64) if self.array is None else self.array[: 4 * n]
        self.array, self.rows, self.n, self.cap = None, NULL, 0, 0
        return array.reshape(n, 4)

    def __len__(self):
        return self.n


@cython.nonecheck(True)
@cython.auto_pickle(False)
cdef class RowTimers:
    """The timers of one time domain of a key group, changed for the current key and journalled.

    Parameters
    ----------
    heap : TimerHeap
    changes : TimerChanges
        Receives each change.
    keys : CurrentKey
    """

    cdef TimerHeap heap
    cdef TimerChanges changes
    cdef CurrentKey keys
    cdef object pushed  # called with (timestamp, key id), or None
    cdef dict due  # a heap of timestamps by key id, or None
    cdef int64_t until

    def __init__(self, TimerHeap heap not None, TimerChanges changes not None, CurrentKey keys not None):
        self.heap, self.changes, self.keys = heap, changes, keys

    def on_push(self, pushed):
        """Call ``pushed(timestamp, key_id)`` after each registration from now on."""
        self.pushed = pushed

    def collect_due(self, dict due, int64_t until):
        """Push registered timestamps up to `until` to the lists in `due`, by key id, or to none if it is None."""
        self.due, self.until = due, until

    cdef int register(self, object timestamp) except -1:
        cdef int64_t ts = _int64(timestamp, "timestamp"), key = self.keys.id
        self.changes.make_room()
        self.heap.add(ts, key, 0)
        self.changes.write(_PUSH, ts, key, 0)
        if self.pushed is not None:
            self.pushed(ts, key)
        if self.due is not None and ts <= self.until:
            heappush(self.due.setdefault(key, []), ts)
        return 0

    cdef int delete(self, object timestamp) except -1:
        cdef int64_t ts = _int64(timestamp, "timestamp"), key = self.keys.id
        self.changes.make_room()
        if th_heap_remove(&self.heap.h, ts, key, 0):
            self.changes.write(_REMOVE, ts, key, 0)
            self.heap.give_back()
        return 0

    cdef bint take_due(self, int64_t time, int64_t *timestamp, int64_t *namespace) except -1:
        """Remove the first timer if its timestamp is <= `time`, and make its key current; return whether it was."""
        cdef th_heap *h = &self.heap.h
        cdef int64_t ts, key, ns
        self.changes.make_room()
        if not h.len or h.ts[0] > time:
            return False
        ts, key, ns = h.ts[0], h.key[0], h.ns[0]
        th_heap_pop(h)
        self.changes.write(_REMOVE, ts, key, ns)
        self.heap.give_back()
        self.keys.set(key, -1)
        timestamp[0], namespace[0] = ts, ns
        return True


@cython.nonecheck(True)
@cython.auto_pickle(False)
@cython.binding(False)  # CPython calls plain methods faster
cdef class RowTimerService:
    """The methods of a `timerheap.TimerService` that change one timer of the current key.

    A subclass has the other methods, and `_no_processing_time`, which raises the error of a query without
    processing time.
    """

    cdef RowTimers event, processing
    cdef int64_t watermark
    cdef object now

    def bind(self, RowTimers event not None, RowTimers processing not None, int64_t watermark, now):
        """Use these timers from now on; `now` is the processing time, or None in a query without it."""
        self.event, self.processing, self.watermark, self.now = event, processing, watermark, now

    def current_watermark(self):
        """See `timerheap.TimerService`."""
        return self.watermark

    def current_processing_time(self):
        """See `timerheap.TimerService`."""
        if self.now is None:
            self._no_processing_time()
        return self.now

    def register_event_time_timer(self, timestamp):
        """See `timerheap.TimerService`."""
        self.event.register(timestamp)

    def register_processing_time_timer(self, timestamp):
        """See `timerheap.TimerService`."""
        if self.now is None:
            self._no_processing_time()
        self.processing.register(timestamp)

    def delete_event_time_timer(self, timestamp):
        """See `timerheap.TimerService`."""
        self.event.delete(timestamp)

    def delete_processing_time_timer(self, timestamp):
        """See `timerheap.TimerService`."""
        self.processing.delete(timestamp)
