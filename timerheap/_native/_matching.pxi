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
    the preferred one: same instruction, same registers, and same start if that matters.

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
        cdef int64_t ahead
        while row < stop:  # the next row does not end what time ends before
            ahead = bits[row + 1] if row + 1 < stop and not self.timed_out else -1
            self._add(row, times[row], bits[row], ahead, row == first)
            row += 1

    cdef int _add(
        self, int64_t row, int64_t time, int64_t bits, int64_t ahead, bint first
    ) except -1:
        """Add a row; partial matches that the next row, of the bits `ahead`, ends are not kept."""
        cdef list left
        cdef Attempt attempt
        cdef size_t count = 0
        cdef int32_t[::1] starts = self.first_of_all if first else self.first
        cdef bint begins = self._begins(bits, ahead, starts)
        if not self.attempts and not begins:
            return 0
        if self.attempts:
            self.expire(time)
        if begins:
            attempt = Attempt(row, time)
            attempt.complete = starts[starts.shape[0] - 1] == _ACCEPT  # nothing follows it
            attempt.threads = [(pc, None, self.nothing) for pc in starts[:starts.shape[0] - attempt.complete]]
            self.attempts.append(attempt)
        left = []
        self.stamp += 1
        seen = set() if self.merges and self.registers else None
        for attempt in self.attempts:
            if not self.merges:
                self.stamp += 1
                seen = set() if self.registers and len(attempt.threads) > 1 else None
            taken = self._step(attempt, row, bits, ahead, seen)
            if attempt.threads or attempt.complete:
                left.append(attempt)
                count += len(attempt.threads)
            if taken and self.past_last:
                break  # a match from an earlier row has this one
        if count > self.most:
            self.rules.too_many(count)
        self.attempts = left
        if left and not (<Attempt>left[0]).threads:
            self._decide()
        return 0

    cdef bint _begins(self, int64_t bits, int64_t ahead, int32_t[::1] starts) noexcept:
        """Return whether a partial match that starts here is left after the row."""
        cdef int32_t pc, at
        cdef Py_ssize_t each
        for each in range(starts.shape[0]):
            pc = starts[each]
            if pc == _ACCEPT or self.variables[pc] < 0:
                return True
            if bits >> self.variables[pc] & 1:
                for at in range(self.bounds[pc], self.bounds[pc + 1]):
                    if self._lives(self.after[at], ahead):
                        return True
        return False

    cdef inline bint _lives(self, int32_t pc, int64_t ahead) noexcept:
        return pc == _ACCEPT or self.variables[pc] < 0 or ahead >> self.variables[pc] & 1

    cdef bint _step(self, Attempt attempt, int64_t row, int64_t bits, int64_t ahead, set seen) except -1:
        """Add a row to the partial matches of one start, and return whether one is complete with it."""
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

    cpdef int expire(self, int64_t time) except -1:
        """Drop partial matches that a row of this time or later would make too long."""
        cdef Attempt attempt
        if not self.attempts or not self._is_over(<Attempt>self.attempts[0], time):
            return 0
        for attempt in self.attempts:
            if not self._is_over(attempt, time):
                break
            self._end(attempt)
        return self._decide()

    cdef inline bint _is_over(self, Attempt attempt, int64_t time) noexcept:
        return time > attempt.time and time - attempt.time >= self.within

    def finish(self):
        """End the partition."""
        cdef Attempt attempt
        for attempt in self.attempts:
            for pc, cell, _ in attempt.threads:
                if self.rules.pattern.at_end[pc]:
                    attempt.best, attempt.complete = cell, True
                    break
            self._end(attempt)
        self._decide()

    cdef int _end(self, Attempt attempt) except -1:
        if self.timed_out and attempt.threads and not attempt.complete:
            attempt.best, attempt.lost = attempt.threads[0][1], True
        attempt.threads = []
        return 0

    cdef int _decide(self) except -1:
        """Add the matches that are decided to those that were found."""
        cdef Attempt attempt
        cdef list rows, taken
        while self.attempts and not (<Attempt>self.attempts[0]).threads:
            attempt = self.attempts.pop(0)
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
        return 0
