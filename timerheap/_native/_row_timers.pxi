# The timers of a function that is called with one row or timer at a time, and their journal.

cdef enum:
    _PUSH = 0  # the operations of timerheap/spark/_group/timers.py
    _REMOVE = 1
    _VOID = -1  # a push that has been undone; `take` leaves it out

THIRTY_YEARS = 30 * 365 * 86_400_000  # in ms
cdef int64_t _thirty_years = THIRTY_YEARS


cdef int64_t _time(object timestamp) except? -1:
    """Return a timer's time, which may also be a datetime, as epoch ms."""
    return _int64(timestamp if PyLong_CheckExact(timestamp) else epoch_millis("timestamp", timestamp), "timestamp")


@cython.final
@cython.auto_pickle(False)
cdef class TimerChanges:
    """A journal of changes of one timer each: rows of (operation, timestamp, key hash, namespace).

    Where keys have numbers, the removal of a timer that was pushed since the last `take` undoes the push instead, and
    the next push of the key takes its row. So a key that moves its timer many times has two rows. A timer with a name
    has one, which later changes of it overwrite. Timers that have fired have none: the largest of their timestamps
    stands for all of them.
    """

    cdef cnp.ndarray array
    cdef int64_t *rows
    cdef size_t n, cap, voids
    cdef uint64_t version  # counts changes, so that `take` can detect those that come in between
    cdef KeyNumbers numbers  # by which keys are in `latest`
    cdef cnp.ndarray latest_array
    cdef int64_t *latest  # 1 + the row of the key's last change; or 0 for none, or one that must stay
    cdef size_t latest_cap
    cdef bint popped  # whether timers have fired since the last `take`
    cdef int64_t until, gone, fired_key
    cdef size_t fired_at  # the number of rows when a timer of `fired_key` fired

    def __cinit__(self):
        self.forget_fired()

    cdef void forget_fired(self) noexcept:
        self.popped, self.until, self.gone, self.fired_at = False, INT64_MIN, 0, SIZE_MAX

    cdef int make_room(self, size_t rows) except -1:
        """Make room for more rows."""
        cdef size_t cap
        cdef cnp.ndarray more
        while self.cap - self.n < rows:
            cap = max(64, 2 * self.cap, self.n + rows)
            more = _empty(4 * cap, cnp.NPY_INT64)
            if self.n <= cap:
                if self.n:
                    memcpy(cnp.PyArray_DATA(more), self.rows, 4 * self.n * sizeof(int64_t))
                self.array, self.rows, self.cap = more, _int64s(more), cap
        return 0

    cdef void write(self, int64_t op, int64_t ts, int64_t key, int64_t ns) noexcept:
        cdef int64_t *row = self.rows + 4 * self.n
        row[0], row[1], row[2], row[3] = op, ts, key, ns
        self.n += 1

    cdef inline bint tracks(self, CurrentKey keys) noexcept:
        """Return whether there is room for the last change of the current key."""
        return keys.number >= 0 and self.numbers is keys.numbers and <size_t>keys.number < self.latest_cap

    cdef Py_ssize_t make_room_for(self, CurrentKey keys) except -2:
        """Make room for one change of the current key; return its number, or -1 if its changes are not tracked."""
        while self.n == self.cap or (keys.numbers.used and not self.tracks(keys)):
            self.make_room(1)
            if keys.numbers.used:
                self.track(keys)
        return keys.number if keys.numbers.used else -1

    cdef int track(self, CurrentKey keys) except -1:
        """Make room for the last changes of all keys that have numbers; the current key gets one."""
        cdef KeyNumbers numbers = keys.numbers
        cdef size_t cap
        cdef cnp.ndarray latest
        keys.find_number()
        if self.tracks(keys):
            return 0
        cap = max(64, numbers.n + numbers.n // 2)
        latest = _zeros(cap, cnp.NPY_INT64)
        if numbers is not keys.numbers or (self.numbers is numbers and self.latest_cap >= cap):
            return 0
        if self.numbers is numbers and self.latest_cap:
            memcpy(cnp.PyArray_DATA(latest), self.latest, self.latest_cap * sizeof(int64_t))
        self.latest_array, self.latest, self.latest_cap = latest, _int64s(latest), cap
        self.numbers = numbers
        return 0

    cdef void push(self, int64_t ts, int64_t key, int64_t ns, Py_ssize_t number, bint added) noexcept:
        """Record a push, which was `added` unless the timer existed."""
        cdef int64_t *row
        self.version += 1
        if self.fired_at == self.n and self.fired_key == key:
            self.fired_at = SIZE_MAX
            self.gone -= 1
        if number >= 0 and (added or ns) and self.latest[number]:
            row = self.rows + 4 * (self.latest[number] - 1)
            if row[2] == key and row[3] == ns and (ns or row[0] == _VOID):
                row[0], row[1] = _PUSH, ts
                self.voids -= not ns
                return
        self.write(_PUSH, ts, key, ns)
        if number >= 0:
            self.latest[number] = self.n if added or ns else 0

    cdef void remove(self, int64_t ts, int64_t key, int64_t ns, Py_ssize_t number) noexcept:
        """Record the removal of a timer."""
        cdef int64_t *row
        self.version += 1
        if number >= 0 and self.latest[number]:
            row = self.rows + 4 * (self.latest[number] - 1)
            if row[2] == key and row[3] == ns and (ns or (row[0] == _PUSH and row[1] == ts)):
                row[0] = _REMOVE if ns else _VOID  # an older timer of that name may have been moved
                self.voids += not ns
                return
        self.write(_REMOVE, ts, key, ns)
        if number >= 0:
            self.latest[number] = self.n

    cdef void fire(self, int64_t ts, int64_t key) noexcept:
        """Record that a timer, the first of all, has fired."""
        self.version += 1
        self.popped, self.until = True, max(self.until, ts)
        self.gone += 1
        self.fired_key, self.fired_at = key, self.n

    def push_many(self, timestamps, key_hashes, namespaces):
        """Record that timers have been pushed; the columns are as for the heap's ``push_many``."""
        cdef _Columns rows = _Columns(None)
        cdef th_column ts = rows.take(timestamps, "timestamps")
        cdef th_column key = rows.take(key_hashes, "key_hashes")
        cdef th_column ns = rows.take(namespaces, "namespaces")
        cdef size_t n = rows.count(), i
        self.make_room(n)
        self.version += 1
        for i in range(n):
            self.write(_PUSH, ts.data[<Py_ssize_t>i * ts.step], key.data[<Py_ssize_t>i * key.step],
                       ns.data[<Py_ssize_t>i * ns.step])

    def take(self):
        """Remove and return all changes, int64, shape (n, 4), but the timers that have fired; of those two numbers."""
        # The first is the largest of their timestamps, or None: timers that are left up to it were pushed later. The
        # second is how many have fired whose key did not push another one right away.
        cdef size_t n
        cdef uint64_t version = self.version - 1
        while version != self.version:
            n, version = self.n, self.version
            array = _empty(0, cnp.NPY_INT64) if self.array is None else self.array[: 4 * n]
            array = array.reshape(n, 4)
            if self.voids:
                array = array[array[:, 0] != _VOID]
            taken = array, self.until if self.popped else None, self.gone
        self.version += 1
        self.array, self.rows, self.n, self.cap, self.voids = None, NULL, 0, 0, 0
        self.numbers, self.latest_array, self.latest, self.latest_cap = None, None, NULL, 0
        self.forget_fired()
        return taken

    def __len__(self):
        return self.n + self.popped


@cython.nonecheck(True)
@cython.auto_pickle(False)
cdef class RowTimers:
    """The timers of one time domain of a key group, changed for the current key and journalled in `changes`."""

    cdef TimerHeap heap
    cdef TimerChanges changes
    cdef CurrentKey keys
    cdef object names  # whose method `new` gives a name a namespace, and `find` returns that, or 0
    cdef dict known  # namespaces by name, which both fill
    cdef object pushed  # called with (timestamp, key id, namespace), or None
    cdef dict due  # a heap of (timestamp, namespace) by key id, or None
    cdef int64_t until
    cdef int64_t latest_name  # the namespace of the name that was registered last, or 0
    cdef public list steps  # receives how to undo each change, or None

    def __init__(self, TimerHeap heap not None, TimerChanges changes not None, CurrentKey keys not None, names):
        self.heap, self.changes, self.keys, self.names, self.known = heap, changes, keys, names, names.known

    def on_push(self, pushed):
        """Call ``pushed(timestamp, key_id, namespace)`` after each registration from now on."""
        self.pushed = pushed

    def collect_due(self, dict due, int64_t until):
        """Push registered timers up to `until` to the lists in `due`, by key id, or to none if it is None."""
        self.due, self.until = due, until

    cdef int64_t namespace_of(self, object name, bint is_new) except? -1:
        cdef PyObject *known
        if not isinstance(name, str):
            raise ArgumentTypeError(f"name must be a str, got {_shown(name)}")
        known = PyDict_GetItemWithError(self.known, name)
        if known is not NULL:
            return <object>known
        return self.names.new(name) if is_new else self.names.find(name)

    cdef int64_t register(self, object timestamp, object name) except? -1:
        """Register a timer, and return its time."""
        cdef int64_t ts = _time(timestamp)
        cdef int64_t ns = 0 if name is None else self.namespace_of(name, True), key = self.keys.id
        if self.steps is not None:
            self.note(ts, key, ns)
        self.push(ts, key, ns)
        self.latest_name = ns
        return ts

    cdef inline void fetch(self, const int64_t *key, Py_ssize_t left) noexcept:
        """Fetch the memory of the timers that are probably moved next, given the keys of the rows from now on."""
        if self.latest_name and left > 2:
            th_heap_fetch_line(&self.heap.h, 0, key[2], self.latest_name)
            th_heap_fetch_row(&self.heap.h, 0, key[1], self.latest_name)

    cdef int push(self, int64_t ts, int64_t key, int64_t ns) except -1:
        """Register a timer of the current key."""
        cdef TimerHeap heap = self.heap
        cdef TimerChanges changes = self.changes
        cdef th_status status = TH_FULL
        cdef Py_ssize_t number
        while status == TH_FULL:  # growing the heap may take the room in the journal, or the number, away again
            number = self.number_of(changes, key)
            status = th_heap_push(&heap.h, ts, key, ns)
            if status == TH_FULL:
                heap.grow(heap.h.len + 1)
        changes.push(ts, key, ns, number, status == TH_YES)
        if self.pushed is not None:
            self.pushed(ts, key, ns)
        if self.due is not None and ts <= self.until:
            heappush(self.due.setdefault(key, []), (ts, ns))
        return 0

    cdef int delete(self, object timestamp, object name) except -1:
        cdef int64_t ts = 0, ns = 0
        if name is None:
            ts = _time(timestamp)
        elif timestamp is not None:
            raise ArgumentTypeError(f"timestamp must be left out for the timer with the name {name!r}, got "
                                    f"{timestamp!r}")
        else:
            ns = self.namespace_of(name, False)
            if not ns:
                return 0
        if self.steps is not None:
            self.note(ts, self.keys.id, ns)
        return self.remove(ts, self.keys.id, ns)

    cdef int remove(self, int64_t ts, int64_t key, int64_t ns) except -1:
        """Delete a timer of the current key, if there is one."""
        cdef TimerHeap heap = self.heap
        cdef TimerChanges changes = self.changes
        cdef Py_ssize_t number = self.number_of(changes, key)
        if th_heap_remove(&heap.h, ts, key, ns):
            changes.remove(ts, key, ns, number)
            heap.give_back()
        return 0

    cdef int note(self, int64_t ts, int64_t key, int64_t ns) except -1:
        """Keep how to put the timer of this identity back, as it is now."""
        cdef size_t row
        cdef bint there = th_heap_find(&self.heap.h, ts, key, ns, &row)
        if there:
            ts = self.heap.h.ts[row]
        self.steps.append((self.put_back, key, ts, ns, there))
        return 0

    def put_back(self, int64_t key, int64_t ts, int64_t ns, bint there):
        """Make `key` the current key, and register or delete its timer, so that it is `there` or not."""
        self.keys.set(key, -1)
        if there:
            self.push(ts, key, ns)
        else:
            self.remove(ts, key, ns)

    def timestamp_of(self, name):
        """Return the timestamp of the current key's timer of this name, or None. O(1)."""
        cdef size_t row
        cdef TimerHeap heap = self.heap
        cdef int64_t ns = self.namespace_of(name, False)
        return heap.h.ts[row] if ns and th_heap_find(&heap.h, 0, self.keys.id, ns, &row) else None

    cdef inline Py_ssize_t number_of(self, TimerChanges changes, int64_t key) except -2:
        """Make room for one change of `key`, which is current, and return its number."""
        cdef CurrentKey keys = self.keys
        cdef Py_ssize_t number = changes.make_room_for(keys)
        if keys.id != key:
            raise RuntimeError("the current key must not change while a timer is registered or deleted")
        return number

    cdef bint take_due(self, int64_t time, int64_t *timestamp, int64_t *namespace) except -1:
        """Remove the first timer if its timestamp is <= `time`, and make its key current; return whether it was."""
        cdef TimerHeap heap = self.heap
        cdef int64_t ts, key, ns
        if not heap.h.len or heap.h.ts[0] > time:
            return False
        ts, key, ns = heap.h.ts[0], heap.h.key[0], heap.h.ns[0]
        self.keys.set(key, -1)
        self.changes.fire(ts, key)
        th_heap_pop(&heap.h)
        heap.give_back()
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
    cdef int64_t at  # the time of the current row or timer; or 0 for none
    cdef object now
    cdef public object too_early  # called with the time of a timer that may be in seconds, and the present time

    def bind(self, RowTimers event not None, RowTimers processing not None, int64_t watermark, now):
        """Use these timers from now on; `now` is the processing time, or None in a query without it."""
        self.event, self.processing, self.watermark, self.now = event, processing, watermark, now
        self.at = 0

    cdef int check(self, int64_t timestamp, int64_t now) except -1:
        """Tell of a timer that is more than 30 years early, as one in seconds is."""
        if 0 < timestamp < now - _thirty_years and self.too_early is not None:
            self.too_early(timestamp, now)
        return 0

    def current_watermark(self):
        return self.watermark

    def current_processing_time(self):
        if self.now is None:
            self._no_processing_time()
        return self.now

    def register_event_time_timer(self, timestamp, *, name=None):
        cdef RowTimers timers = self.event
        cdef int64_t ts = timers.register(timestamp, name)
        if self.at > _thirty_years:
            self.check(ts, self.at)

    def register_processing_time_timer(self, timestamp, *, name=None):
        cdef RowTimers timers = self.processing
        if self.now is None:
            self._no_processing_time()
        self.check(timers.register(timestamp, name), self.now)

    def delete_event_time_timer(self, timestamp=None, *, name=None):
        cdef RowTimers timers = self.event
        timers.delete(timestamp, name)

    def delete_processing_time_timer(self, timestamp=None, *, name=None):
        cdef RowTimers timers = self.processing
        timers.delete(timestamp, name)
