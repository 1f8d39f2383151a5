# The loop that calls a KeyedProcessFunction with one row or timer at a time.

cdef enum:
    _FIRINGS = 100_000  # that register a timer each count as a loop without end,
    _FIRINGS_EACH = 10_000  # and as many more for each pending timer

FIRINGS, FIRINGS_EACH = _FIRINGS, _FIRINGS_EACH


@cython.nonecheck(True)
@cython.auto_pickle(False)
@cython.binding(False)
cdef class RowContext:
    """The methods of the context that a function is handed, for the current row or timer."""

    cdef RowSource source
    cdef tuple row
    cdef Py_ssize_t place  # of the row in `source`
    cdef int64_t set_items  # before the row
    cdef object key, at, domain, timers
    cdef int64_t namespace  # of the timer
    cdef bint ends  # whether the input ends with these rows
    cdef Py_ssize_t next_row  # the first row that has not been processed
    cdef cnp.ndarray ids  # of the rows
    cdef dict last  # the last row by key id, once it has been asked for
    cdef CurrentKey current
    cdef public object names  # as in `RowTimers`; its method `name` returns that of a namespace

    def __init__(self, timers):
        self.timers = timers

    cdef object current_key(self):
        if self.row is not None:
            if self.set_items == _set_items:
                self.key = self.source.key_of(self.row)
            else:  # the function may have changed the row
                self.key = self.source.key_at(self.place)
            self.row = None
        return self.key

    def get_current_key(self):
        return self.current_key()

    def timestamp(self):
        return self.at

    def timer_service(self):
        return self.timers

    def time_domain(self):
        return self.domain

    def timer_name(self):
        return self.names.name(self.namespace) if self.namespace else None

    def input_has_ended(self):
        if not self.ends or self.all_read():
            return self.ends
        if self.last is None:
            self.last = dict(zip(self.ids.tolist(), range(len(self.ids))))
        return self.last.get(self.current.get(), -1) < self.next_row

    cdef bint all_read(self) except -1:
        """Return whether the input has ended for all keys: it ends with these rows, and none of them is left."""
        return self.ends and (self.ids is None or self.next_row == len(self.ids))

    cdef void begin_rows(self, cnp.ndarray ids, bint ends) noexcept:
        self.ids, self.ends, self.next_row, self.last = ids, ends, 0, None


@cython.final
@cython.nonecheck(True)
@cython.auto_pickle(False)
cdef class RowLoop:
    """Calls a function with the rows and timers of one key group after the other; `fired` counts the timers so far.

    With `guard`, a call that raises an exception ends, and the others go on; `calls` counts those that have returned.
    """

    cdef readonly int64_t fired, calls
    cdef list steps  # how to undo what the current call has done, or None
    cdef object failed, mark
    cdef Py_ssize_t kept  # the records in `columns` before the current call, or -1 if it has added none to them alone
    cdef int64_t wait, latest, allowed
    cdef int64_t again  # firings since `latest` that have registered a timer in place of theirs
    cdef object function, emit, find_key, event_time, processing_time
    cdef RecordColumns columns
    cdef RowContext context
    cdef RowTimerService service
    cdef CurrentKey current
    cdef KnownKeys ahead, seen

    def __init__(self, function, RowContext context not None, RowTimerService service not None,
                 CurrentKey keys not None, event_time, processing_time):
        self.function, self.context, self.service, self.current = function, context, service, keys
        self.event_time, self.processing_time = event_time, processing_time
        context.domain, context.current = event_time, keys

    def guard(self, list steps not None, failed):
        """Have what a call does undone if it raises an exception, and go on with the next call.

        `steps` receives how, from states, timers and, when its method `rows` is called, from the output of `begin`,
        whose ``mark(n)`` returns it: `n` is the number of records in its columns to go back to. It is empty at the
        begin of a call. Then ``failed(error, method, rows, place)`` is called: the rows and the place of one among
        them, or None and -1 of a timer. It has to empty `steps`, or to raise.
        """
        self.steps, self.failed, self.kept = steps, failed, -1

    def begin(self, output, KnownKeys ahead not None, KnownKeys seen not None, find_key, int64_t wait=0):
        """Begin a key group.

        `output`, a ResultBuffer, receives what the methods of the function return. `find_key` is called with the id
        and the timestamp of a timer whose key is neither in `ahead` nor in `seen`, and returns the key. A timer
        waits in `replay` for rows that are later than it by up to `wait` ms.
        """
        self.emit, self.columns = output.rows, output.columns
        self.mark, self.kept = None if self.steps is None else output.mark, -1
        self.ahead, self.seen, self.find_key, self.wait = ahead, seen, find_key, wait
        self.context.domain, self.latest, self.again = self.event_time, INT64_MIN, 0
        self.context.begin_rows(None, False)

    def process(self, RowSource rows not None, ids, timestamps, check=None):
        """Call ``process_element`` with rows in their order; `ids` and `timestamps`, or None, are int64.

        `check` is called with the key id and the timestamp of each row of a key for which ``collect_due`` of the
        event-time timers has found a timer, before the row is processed.
        """
        self.run(rows, ids, timestamps, False, False, check)

    def replay(self, RowSource rows not None, ids, timestamps, int64_t watermark):
        """Call ``process_element`` with rows sorted by timestamp, and fire event-time timers between them.

        While rows of timestamp t are processed, the watermark is t - 1 - wait, or more if it was. In the end it is
        `watermark` - wait, or more; the largest watermark is the end of all waiting.
        """
        self.run(rows, ids, timestamps, True, watermark == INT64_MAX, None)
        if watermark == INT64_MAX or watermark < INT64_MIN + self.wait:
            self.step_to(watermark)
        else:
            self.step_to(watermark - self.wait)

    def advance(self, int64_t watermark):
        """Set the watermark, and fire the event-time timers up to it."""
        self.context.begin_rows(None, watermark == INT64_MAX)
        self.advance_to(watermark)

    def advance_clock(self, int64_t now):
        """Fire the processing-time timers before `now`."""
        self.latest, self.again = INT64_MIN, 0
        if now > INT64_MIN:
            self.fire(self.service.processing, now - 1, self.processing_time)

    cdef int advance_to(self, int64_t watermark) except -1:
        cdef RowTimerService service = self.service
        service.watermark = watermark
        return self.fire(service.event, watermark, self.event_time)

    cdef int run(self, RowSource rows, object ids_, object timestamps_, bint stepping, bint ends,
                 object check) except -1:
        cdef cnp.ndarray ids = _contiguous(ids_, "ids"), timestamps = None, numbers
        cdef const int64_t *id = _int64s(ids)
        cdef const int64_t *ts = NULL
        cdef const int64_t *number = NULL
        cdef Py_ssize_t n = len(rows), i
        cdef RowContext context = self.context
        cdef CurrentKey current = self.current
        cdef KeyNumbers numbered = current.numbers
        cdef dict due = None if check is None else self.service.event.due
        cdef tuple row = None
        if timestamps_ is not None:
            timestamps = _contiguous(timestamps_, "timestamps")
            ts = _int64s(timestamps)
        elif stepping:
            raise TypeError("timestamps must be an array of int64, got None")
        if len(ids) != n or (ts and len(timestamps) != n):
            raise ValueError(f"ids and timestamps must have one value for each of {n} rows")
        if numbered.used:
            numbers = numbered.number_many(ids)
            number = _int64s(numbers)
        process = self.function.process_element
        context.source, context.namespace = rows, 0
        context.begin_rows(ids, ends)
        for i in range(n):
            if stepping and ts[i] > INT64_MIN + self.wait and (i == 0 or ts[i] != ts[i - 1]):
                context.next_row = i
                self.step_to(ts[i] - 1 - self.wait)
            self.service.event.fetch(id + i, n - i)
            row = rows.row(i, row)
            current.set(id[i], number[i] if number and current.numbers is numbered else -1)
            context.row, context.place, context.set_items = row, i, _set_items
            context.at = ts[i] if ts else None
            self.service.at = ts[i] if ts else 0
            if due is not None and PyDict_Contains(due, current.get()):
                check(current.get(), context.at)
            try:
                returned = process(row, context)
                if returned is not None:
                    self.collect(returned, "process_element")
            except Exception as e:
                if self.steps is None:
                    e.add_note(self.note("process_element"))
                    raise
                self.fail(e, "process_element", rows, i)
            else:
                if self.steps is not None:
                    self.end_call()
            context.row = None  # so that nobody has the row, unless the function has kept it
        context.source, context.next_row = None, n
        return 0

    cdef int collect(self, object returned, str method) except -1:
        """Append records to the columns, and hand everything else to `emit`."""
        cdef RecordColumns columns
        if self.steps is not None:
            self.kept = self.columns.n
        if not PyGen_CheckExact(returned) and type(returned) is not list:
            return self.emit_rows(returned, method)
        for record in returned:
            columns = self.columns
            if not columns.append(record):
                self.emit_rows([record], method)
        return 0

    cdef int emit_rows(self, object rows, str method) except -1:
        """Hand rows to `emit`; before a call does so for the first time, keep how to undo its results."""
        if self.kept >= 0:
            self.steps.append(self.mark(self.kept))
            self.kept = -1
        self.emit(rows, method)
        return 0

    cdef int end_call(self) except -1:
        """Keep what a call has done."""
        self.calls += 1
        self.kept = -1
        if self.steps:
            del self.steps[:]
        return 0

    cdef int fail(self, object error, str method, object rows, Py_ssize_t place) except -1:
        """Undo what a call has done, and report its error."""
        cdef RecordColumns columns = self.columns
        if self.kept >= 0:
            columns.n = self.kept
            self.kept = -1
        self.failed(error, method, rows, place)
        return 0

    cdef str note(self, str method):
        return f"timerheap: in {method}, key {self.context.current_key()!r}, timestamp {self.context.at}"

    cdef int step_to(self, int64_t watermark) except -1:
        """Advance to one timer after the other: each callback sees its own timestamp as the watermark."""
        cdef RowTimerService service = self.service
        cdef th_heap *h = &service.event.heap.h
        while h.len and h.ts[0] <= watermark:
            self.advance_to(max(h.ts[0], service.watermark))
            h = &service.event.heap.h  # a callback may have bound others
        service.watermark = max(service.watermark, watermark)
        return 0

    cdef int fire(self, RowTimers timers, int64_t time, object domain) except -1:
        """Fire the timers up to `time`, also those that callbacks register."""
        cdef RowContext context = self.context
        cdef KnownKeys keys
        cdef int64_t timestamp, namespace, place
        cdef size_t pending
        on_timer = None
        while timers.take_due(time, &timestamp, &namespace):
            pending = timers.heap.h.len
            at = timestamp
            keys = self.ahead
            if not keys.find(self.current.id, &place):
                keys = self.seen
            if keys.find(self.current.id, &place):
                context.key = keys.at(place)
            else:
                context.key = self.find_key(self.current.get(), at)
            context.row = None
            context.at, context.domain, context.namespace = at, domain, namespace
            self.service.at = timestamp if domain is self.event_time else 0
            self.fired += 1
            if on_timer is None:
                on_timer = self.function.on_timer
            try:
                returned = on_timer(at, context)
                if returned is not None:
                    self.collect(returned, "on_timer")
            except Exception as e:
                if self.steps is None:
                    e.add_note(self.note("on_timer"))
                    raise
                self.fail(e, "on_timer", None, -1)
            else:
                if self.steps is not None:
                    self.end_call()
            if timers.heap.h.len > pending:
                self.repeat(timestamp, pending)
        return 0

    cdef int repeat(self, int64_t timestamp, size_t pending) except -1:
        """Count a firing that has registered a timer; raise if firings without end do not advance the time."""
        # After the last row there is no end to advance to.
        cdef RowContext context = self.context
        cdef bint ended = context.all_read()
        if timestamp > self.latest and not ended:
            self.latest, self.again = timestamp, 0
        if not self.again:
            self.allowed = _FIRINGS + _FIRINGS_EACH * <int64_t>(pending + 1)
        self.again += 1
        if self.again > self.allowed:
            context.endless(ended)
        return 0
