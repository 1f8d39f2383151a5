# The partial matches of a row pattern.

cdef int32_t _ACCEPT = -1  # in what follows an instruction: the match is complete


@cython.final
@cython.auto_pickle(False)
@cython.freelist(64)
cdef class Attempt:
    """The partial matches that start at one row, the preferred first.

    threads: the number of the next instruction, the last cell and the registers of each
    complete: whether there is a match that is preferred to all that were dropped
    best: its last cell; None if it is empty
    lost: whether time has ended the partial matches, and `best` is of the preferred one
    """

    cdef public int64_t start, time
    cdef public list threads
    cdef public object best
    cdef public bint complete, lost

    def __init__(self, int64_t start, int64_t time):
        self.start, self.time, self.threads = start, time, []


@cython.final
@cython.auto_pickle(False)
cdef class Matcher:
    """Finds the matches in the rows of one key, in the standard's order of preference.

    A row is looked at once for each partial match. Those that would take the same rows from here on are one,
    the preferred one: same instruction, same registers, and same start. Where the start does not matter, as
    without WITHIN, all of them go on together; else those of the oldest start alone, and the next ones later.

    rules: see `timerheap.spark._patterns.Rules`
    columns: what conditions read, by row
    attempts: the partial matches, by their start; those of another key may replace them
    starts, ends: where each match that was found starts, and where its rows end in the next two lists
    rows, taken: the rows of the matches, and what they are taken as
    lost: whether each of them is a partial match that has timed out
    """

    cdef public list attempts
    cdef readonly list starts, ends, rows, taken, lost
    cdef object rules, columns
    cdef tuple conditions, registers, takes
    cdef readonly tuple nothing
    cdef bint merges, past_last, timed_out
    cdef int64_t within, stamp
    cdef size_t most
    cdef int32_t[::1] variables, after, bounds, first, first_of_all
    cdef const int64_t[::1] times, bits
    cdef int64_t stop, top
    cdef int64_t[::1] stamps

    def __init__(self, rules, columns):
        pattern = rules.pattern
        self.rules, self.columns, self.attempts = rules, columns, []
        self.starts, self.ends, self.rows, self.taken, self.lost = [], [], [], [], []
        self.timed_out = rules.timed_out
        self.conditions, self.takes = rules.conditions, pattern.takes
        self.registers = tuple([
            (at, one.variables, one.kind, one.size, one) for at, one in enumerate(rules.registers)
        ])
        self.nothing = tuple([one.empty for one in rules.registers])
        self.merges, self.past_last = rules.merges, rules.skip == "past last row"
        self.within, self.most = INT64_MAX if rules.within is None else rules.within, rules.most
        self.variables = np.array([take >> 1 for take in pattern.takes], np.int32)
        self.after = np.array([one for some in pattern.after for one in some], np.int32)
        self.bounds = np.cumsum([0, *map(len, pattern.after)]).astype(np.int32)
        self.first, self.first_of_all = (np.array(one, np.int32) for one in (pattern.starts, pattern.first_starts))
        self.stamps = np.zeros(len(pattern.takes), np.int64)

    def run(self, int64_t row, int64_t stop, const int64_t[::1] times, const int64_t[::1] bits, int64_t first):
        """Add the rows up to `stop`; `first` is the first one of the partition.

        bits: which variables each row can be, as far as that depends on the row
        """
        cdef list left
        cdef Attempt attempt
        cdef size_t count
        self.times, self.bits, self.stop, self.top = times, bits, stop, first
        if not self.merges:
            self._go_on(row)
            return
        while row < stop:
            if (attempt := self._begun(row)) is not None:
                self.attempts.append(attempt)
            left, count = [], 0
            self.stamp += 1
            seen = set() if self.registers else None
            for attempt in self.attempts:
                taken = self._step(attempt, row, seen)
                if attempt.threads or attempt.complete:
                    left.append(attempt)
                    count += len(attempt.threads)
                if taken:
                    break  # a match from an earlier row has this one
            if count > self.most:
                self.rules.too_many(count)
            self.attempts = left
            self._decide()
            row += 1

    cdef int _go_on(self, int64_t row) except -1:
        """Add rows from `row` on to the oldest partial matches; once they end, begin again behind their start."""
        cdef Attempt attempt
        while True:
            while not self.attempts:
                if row == self.stop:
                    return 0
                attempt = self._begun(row)
                if attempt is None:
                    row += 1
                else:
                    self.attempts = [attempt]
            attempt = self.attempts[0]
            while attempt.threads and row < self.stop:
                if self._is_over(attempt, self.times[row]):
                    self._end(attempt)
                    break
                self.stamp += 1
                self._step(attempt, row, set() if self.registers and len(attempt.threads) > 1 else None)
                if len(attempt.threads) > self.most:
                    self.rules.too_many(len(attempt.threads))
                row += 1
            if attempt.threads:
                return 0
            row = self._decide()

    cdef inline int64_t _ahead(self, int64_t row) noexcept:
        """Return the bits of the next row, if it ends partial matches before time does."""
        return self.bits[row + 1] if row + 1 < self.stop and not self.timed_out else -1

    cdef Attempt _begun(self, int64_t row):
        """Return the partial matches that start here, None if none is left after the row."""
        cdef int32_t[::1] starts = self.first_of_all if row == self.top else self.first
        cdef int64_t bits = self.bits[row], ahead = self._ahead(row)
        cdef int32_t pc, at
        cdef Py_ssize_t each
        cdef bint lives = False
        cdef Attempt attempt
        for each in range(starts.shape[0]):
            pc = starts[each]
            lives = pc == _ACCEPT or self.variables[pc] < 0
            if not lives and bits >> self.variables[pc] & 1:
                for at in range(self.bounds[pc], self.bounds[pc + 1]):
                    lives |= self._lives(self.after[at], ahead)
            if lives:
                attempt = Attempt(row, self.times[row])
                attempt.complete = starts[starts.shape[0] - 1] == _ACCEPT  # nothing follows it
                attempt.threads = [(pc, None, self.nothing) for pc in starts[:starts.shape[0] - attempt.complete]]
                return attempt
        return None

    cdef inline bint _lives(self, int32_t pc, int64_t ahead) noexcept:
        return pc == _ACCEPT or self.variables[pc] < 0 or ahead >> self.variables[pc] & 1

    cdef bint _step(self, Attempt attempt, int64_t row, set seen) except -1:
        """Add a row to the partial matches of one start, and return whether one is complete with it."""
        cdef int64_t bits = self.bits[row], ahead = self._ahead(row)
        cdef list old = attempt.threads, threads = []
        cdef tuple thread, here, registers
        cdef int32_t pc, follower, at, variable
        attempt.threads = threads
        number = row
        for thread in old:
            pc = thread[0]
            variable = self.variables[pc]
            if variable < 0 or not bits >> variable & 1:
                continue
            registers = thread[2]
            if self.registers:
                registers = self.taken_with(registers, number, variable)
            condition = self.conditions[variable]
            if condition is not None and not condition(self.columns, number, registers):
                continue
            here = (thread[1], number, self.takes[pc])
            for at in range(self.bounds[pc], self.bounds[pc + 1]):
                follower = self.after[at]
                if follower == _ACCEPT:
                    attempt.best, attempt.complete = here, True
                    return True
                if not self._lives(follower, ahead):
                    continue
                if seen is not None:
                    place = (follower, registers)
                    if place in seen:
                        continue
                    seen.add(place)
                elif not self.registers:
                    if self.stamps[follower] == self.stamp:
                        continue
                    self.stamps[follower] = self.stamp
                threads.append((follower, here, registers))
        return False

    cpdef tuple taken_with(self, tuple registers, row, int32_t variable):
        """Return the registers of a partial match with one more row."""
        cdef list found = list(registers)
        for at, of, kind, size, one in self.registers:
            if of is None or variable in of:
                value = registers[at]
                if kind == "last":
                    found[at] = (row, *value[:size - 1]) if size > 1 else (row,)
                elif kind != "first":
                    found[at] = one.add(value, self.columns, row)
                elif len(value) < size:
                    found[at] = (*value, row)
        return tuple(found)

    def expire(self, int64_t time):
        """Drop partial matches that a row of this time or later would make too long."""
        while self.attempts and self._is_over(<Attempt>self.attempts[0], time):
            self._end(<Attempt>self.attempts[0])
            self._go_on(self._decide())

    cdef inline bint _is_over(self, Attempt attempt, int64_t time) noexcept:
        return time > attempt.time and time - attempt.time >= self.within

    def finish(self):
        """End the partition."""
        cdef Attempt attempt
        while self.attempts:
            for attempt in self.attempts:
                for pc, cell, _ in attempt.threads:
                    if self.rules.pattern.at_end[pc]:
                        attempt.best, attempt.complete = cell, True
                        break
                self._end(attempt)
            row = self._decide()
            if not self.merges:
                self._go_on(row)

    cdef int _end(self, Attempt attempt) except -1:
        if self.timed_out and attempt.threads and not attempt.complete:
            attempt.best, attempt.lost = attempt.threads[0][1], True
        attempt.threads = []
        return 0

    cdef int64_t _decide(self) except -1:
        """Add the matches that are decided to those that were found; return where the next one can start."""
        cdef Attempt attempt
        cdef int64_t resume = 0
        cdef list rows, taken
        while self.attempts and not (<Attempt>self.attempts[0]).threads:
            attempt = self.attempts.pop(0)
            resume = attempt.start + 1
            if attempt.complete or attempt.lost:
                rows, taken, cell = [], [], attempt.best
                while cell is not None:
                    cell, row, as_ = <tuple>cell
                    rows.append(row)
                    taken.append(as_)
                rows.reverse()
                taken.reverse()
                self.starts.append(attempt.start)
                self.rows += rows
                self.taken += taken
                self.ends.append(len(self.rows))
                self.lost.append(attempt.lost)
                if attempt.lost:
                    continue
                resume = rows[-1] + 1 if rows and self.past_last else self.rules.resume(attempt.start, rows, taken)
                self.attempts = [one for one in self.attempts if (<Attempt>one).start >= resume]
        return resume
