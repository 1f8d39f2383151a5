# Runs: sorted records in a part of a file, on csrc/th_run.h.

cdef int _run_done(th_run_status status, int error) except -1:
    """Raise the error of a call, whose errno is `error`."""
    if status == TH_RUN_FAILED:
        raise OSError(error, os.strerror(error))
    if status == TH_RUN_DAMAGED:
        raise ValueError("a run must be as it was written, but a page of it is damaged or missing")
    if status == TH_RUN_TWICE:
        raise ValueError("ids must not be in the run before, unless they are dead there, but one is")
    return 0


cdef cnp.ndarray _ascending(object values, str name, int64_t low, int64_t high, bint strictly):
    """Return a copy of a column of int64, whose values must ascend and lie within bounds."""
    cdef cnp.ndarray column = np.array(_int64_array(_as_array(values, name), values, name))
    cdef const int64_t *at = _int64s(column)
    cdef Py_ssize_t i, n = column.shape[0]
    if n and not (low <= at[0] and at[n - 1] <= high):
        raise ValueError(f"{name} must be from {low} to {high}, got {at[0]} to {at[n - 1]}")
    for i in range(1, n):
        if at[i] < at[i - 1] or (strictly and at[i] == at[i - 1]):
            raise ValueError(f"{name} must ascend, got {at[i]} after {at[i - 1]}")
    return column


@cython.final
@cython.auto_pickle(False)
cdef class Run:
    """An immutable part of a file: records by id, and times in order, each of a record.

    A record is an id, int64, and up to 4,070 bytes. Its number is its place in the order of ids. Records die, which
    whoever has the run keeps in `dead`: uint8, a bit for each record by number, the lowest first. `Run.merged` writes a
    run, and `Run.open` finds it again by its `head`. Neither keeps the file open.

    Reading asks the kernel for all pages that a call needs, and then reads each, of 4 KB. A page that is not what was
    written is a ValueError, and what the system refuses an OSError. Calls release the GIL. Memory is 20 bytes for each
    page of records, and 8 for each of times.
    """

    cdef th_run r
    cdef cnp.ndarray first_id, first_number, first_ts  # the index

    cdef int place(self, cnp.ndarray first_id, cnp.ndarray first_number, cnp.ndarray first_ts) except -1:
        self.first_id, self.first_number, self.first_ts = first_id, first_number, first_ts
        self.r.first_id, self.r.first_ts = _int64s(first_id), _int64s(first_ts)
        self.r.first_number = <uint32_t *>cnp.PyArray_DATA(first_number)
        return 0

    def __init__(self):
        raise TypeError("a run must be made by Run.merged() or Run.open()")

    @staticmethod
    def open(fd, head):
        """Return the run that a `head` describes in the file of a descriptor. O(pages of its index)."""
        cdef Run run = Run.__new__(Run)
        cdef int64_t file = _int64(fd, "fd"), size
        cdef th_run_status status
        cdef int error
        if len(head) != 6 or not all(type(field) is int and 0 <= field < 1 << 64 for field in head):
            raise ValueError(f"head must be the head of a run, got {_shown(head)}")
        at, records, times, record_pages, time_pages, seed = head
        size = os.fstat(file).st_size
        if at + (record_pages + time_pages) * TH_RUN_PAGE > size or records > record_pages * TH_RUN_PAGE:
            raise ValueError(f"head must describe a run within the {size} bytes of its file, got {head}")
        run.r.fd, run.r.at, run.r.seed = <int>file, at, seed
        run.r.records, run.r.times, run.r.record_pages, run.r.time_pages = records, times, record_pages, time_pages
        run.place(_empty(record_pages, cnp.NPY_INT64), _empty(record_pages, cnp.NPY_UINT32),
                  _empty(time_pages, cnp.NPY_INT64))
        with nogil:
            status = th_run_open(&run.r)
            error = errno
        _run_done(status, error)
        return run

    @staticmethod
    def merged(fd, at, ids, ends, data, timestamps, owners, Run before=None, dead=None, low=INT64_MIN, high=INT64_MAX):
        """Write a run into a file, from byte `at` on, and return it. O(records and times of both), in a stream.

        It has the records of `before` with ids from `low` to `high` that are not `dead`, with their times, and n more
        between these bounds. `ids` ascend; the bytes of record i are `data` from ends[i - 1], or 0, to ends[i]. Time k
        is of the record number owners[k] of these; times ascend, and where they are equal, their owners. `ids`, `ends`,
        `timestamps` and `owners` are int64, `data` is a buffer. Beside these it takes 4 bytes for each record of both.

        An OSError, such as a full disk, leaves what is written of the run; `before` may still be used.
        """
        cdef Run run = Run.__new__(Run)
        cdef int64_t least = _int64(low, "low"), most = _int64(high, "high"), start = _int64(at, "at")
        cdef cnp.ndarray id_ = _ascending(ids, "ids", least, most, True)
        cdef const unsigned char[::1] bytes_ = bytes(_bytes_of(data, "data"))
        cdef cnp.ndarray end = _ascending(ends, "ends", 0, bytes_.shape[0], False)
        cdef size_t n = id_.shape[0], records = n, i, record_pages, time_pages
        cdef int64_t begin = 0
        if start < 0:
            raise ValueError(f"at must not be negative, got {start}")
        if <size_t>end.shape[0] != n:
            raise ValueError(f"ends must have {n} values, got {end.shape[0]}")
        for i in range(n):
            if _int64s(end)[i] - begin > TH_RUN_LONGEST:
                raise ValueError(f"records must have up to {TH_RUN_LONGEST} bytes, got {_int64s(end)[i] - begin}")
            begin = _int64s(end)[i]
        cdef cnp.ndarray ts = _ascending(timestamps, "timestamps", INT64_MIN, INT64_MAX, False)
        cdef cnp.ndarray of = _owners(owners, ts, n)
        if before is not None:
            records += before.r.records
        if records > TH_RUN_RECORDS:
            raise ValueError(f"a run must have at most {TH_RUN_RECORDS} records, got {records}")
        if <size_t>ts.shape[0] + (0 if before is None else before.r.times) > <size_t>0xFFFFFFFF:
            raise ValueError("a run must have fewer than 2**32 times")
        cdef cnp.ndarray bits = None if before is None else before.bits(dead)
        cdef cnp.ndarray buffers = _empty(2 * TH_RUN_CHUNK * TH_RUN_PAGE, cnp.NPY_UINT8)
        cdef cnp.ndarray numbers = _empty(records, cnp.NPY_UINT32)
        cdef th_run_input more = th_run_input(n, ts.shape[0], _int64s(id_), _int64s(end), _front(bytes_), _int64s(ts),
                                              <const uint32_t *>cnp.PyArray_DATA(of))
        cdef th_run_scratch scratch
        cdef const th_run *old = NULL if before is None else &before.r
        cdef const uint8_t *gone = NULL if bits is None else _uint8s(bits)
        cdef th_run_status status
        cdef int error
        scratch.in_, scratch.out = _uint8s(buffers), _uint8s(buffers) + TH_RUN_CHUNK * TH_RUN_PAGE
        scratch.added = <uint32_t *>cnp.PyArray_DATA(numbers)
        scratch.old = scratch.added + n
        th_run_most_pages(old, n, _int64s(end)[n - 1] if n else 0, ts.shape[0], &record_pages, &time_pages)
        run.place(_empty(record_pages, cnp.NPY_INT64), _empty(record_pages, cnp.NPY_UINT32),
                  _empty(time_pages, cnp.NPY_INT64))
        run.r.fd, run.r.at, run.r.seed = <int>_int64(fd, "fd"), start, int.from_bytes(os.urandom(8), "little")
        with nogil:
            status = th_run_merge(&run.r, old, gone, least, most, &more, &scratch)
            error = errno
        _run_done(status, error)
        run.place(run.first_id[:run.r.record_pages].copy(), run.first_number[:run.r.record_pages].copy(),
                  run.first_ts[:run.r.time_pages].copy())
        return run

    @staticmethod
    def most_bytes(n, nbytes, times, Run before=None):
        """Return how many bytes `merged` writes at most, given n records of so many bytes in all, and their times."""
        cdef th_run bound
        th_run_most_pages(NULL if before is None else &before.r, _int64(n, "n"), _int64(nbytes, "nbytes"),
                          _int64(times, "times"), &bound.record_pages, &bound.time_pages)
        return th_run_pages(&bound) * TH_RUN_PAGE

    # ---- reading ----

    def find(self, ids, dead=None):
        """Return the records of n ids, which ascend: their numbers, their ends, and their bytes. O(pages).

        The number of an id that is absent or `dead` is -1. The bytes of record i are from ends[i - 1], or 0, to ends[i].
        The first two are int64 of shape (n,), the bytes are uint8.
        """
        cdef cnp.ndarray id_ = _ascending(ids, "ids", INT64_MIN, INT64_MAX, False), bits = self.bits(dead)
        cdef cnp.ndarray number = _empty(id_.shape[0], cnp.NPY_INT64)
        return number, *self.take(number, id_, bits, True)

    def gather(self, numbers):
        """Return the records of n numbers, which ascend: their ids, their ends, and their bytes, as `find` does."""
        cdef cnp.ndarray number = _ascending(numbers, "numbers", 0, <int64_t>self.r.records - 1, False)
        cdef cnp.ndarray id_ = _empty(number.shape[0], cnp.NPY_INT64)
        return id_, *self.take(number, id_, None, False)

    cdef tuple take(self, cnp.ndarray number, cnp.ndarray id_, cnp.ndarray bits, bint by_id):
        cdef size_t n = number.shape[0]
        cdef cnp.ndarray end = _empty(n, cnp.NPY_INT64), data = _empty(64 * n, cnp.NPY_UINT8), more
        cdef th_taken t = th_taken(n, _int64s(number), _int64s(id_), _int64s(end), _uint8s(data), 64 * n, 0, 0)
        cdef const uint8_t *gone = NULL if bits is None else _uint8s(bits)
        cdef th_run_status status = TH_RUN_FULL
        cdef int error
        while status == TH_RUN_FULL:
            with nogil:
                status = th_run_find(&self.r, gone, &t) if by_id else th_run_gather(&self.r, &t)
                error = errno
            _run_done(status, error)
            if status == TH_RUN_FULL:
                more = _empty(2 * t.room + TH_RUN_LONGEST, cnp.NPY_UINT8)
                memcpy(_uint8s(more), t.data, t.used)
                data, t.data, t.room = more, _uint8s(more), more.shape[0]
        return end, data[:t.used].copy()

    def due(self, time, start=0, dead=None, most=None):
        """Return the times up to `time`, from number `start` of all times on, of records that are not `dead`.

        The results are the timestamps and the numbers of the records, int64 of shape (n,), in order, and the number of
        the first time that is later, or that comes after the last one of `most`. O(pages).
        """
        cdef int64_t until = _int64(time, "time"), first = _int64(start, "start")
        cdef cnp.ndarray bits = self.bits(dead), ts = _empty(512, cnp.NPY_INT64), number = _empty(512, cnp.NPY_INT64)
        cdef int64_t limit = -1 if most is None else _int64(most, "most")
        cdef th_due_times d = th_due_times(_int64s(ts), _int64s(number), 512, 0, first)
        cdef const uint8_t *gone = NULL if bits is None else _uint8s(bits)
        cdef th_run_status status = TH_RUN_FULL
        cdef int error
        cdef list found = []
        if not 0 <= first <= <int64_t>self.r.times:
            raise ValueError(f"start must be from 0 to {self.r.times}, got {first}")
        if not (most is None or 0 <= limit <= 512):
            raise ValueError(f"most must be from 0 to 512, got {limit}")
        if most is not None:
            d.room = limit
        while status == TH_RUN_FULL:
            with nogil:
                status = th_run_due(&self.r, gone, until, &d)
                error = errno
            _run_done(status, error)
            found.append((ts[:d.n], number[:d.n]))
            if most is not None:
                break
            if status == TH_RUN_FULL:
                d.room = min(4 * d.room, 1 << 20)
                ts, number = _empty(d.room, cnp.NPY_INT64), _empty(d.room, cnp.NPY_INT64)
                d.ts, d.number = _int64s(ts), _int64s(number)
        return np.concatenate([each[0] for each in found]), np.concatenate([each[1] for each in found]), d.next

    cdef cnp.ndarray bits(self, object dead):
        """Return a copy of the bits of dead records, or None."""
        if dead is None:
            return None
        return np.array(_column_of(dead, "dead", cnp.NPY_UINT8, (self.r.records + 7) // 8))

    # ---- as a part of a file ----

    @property
    def head(self):
        """list: integers with which `Run.open` finds the run again."""
        return [self.r.at, self.r.records, self.r.times, self.r.record_pages, self.r.time_pages, self.r.seed]

    def __len__(self):
        return self.r.records

    @property
    def times(self):
        """int: number of times."""
        return self.r.times

    @property
    def nbytes(self):
        """int: number of bytes in the file."""
        return th_run_pages(&self.r) * TH_RUN_PAGE

    def check(self):
        """Read the whole run; raise as reading does if anything in it is not what was written, or not in order."""
        cdef cnp.ndarray buffer = _empty(TH_RUN_CHUNK * TH_RUN_PAGE, cnp.NPY_UINT8)
        cdef uint8_t *pages = _uint8s(buffer)
        cdef th_run_status status
        cdef int error
        with nogil:
            status = th_run_check(&self.r, pages)
            error = errno
        _run_done(status, error)


cdef cnp.ndarray _owners(object owners, cnp.ndarray ts, size_t n):
    """Return a copy of the numbers of the records that times are of, as uint32."""
    cdef cnp.ndarray column = _int64_array(_as_array(owners, "owners"), owners, "owners"), result
    cdef Py_ssize_t i, count = ts.shape[0]
    if column.shape[0] != count:
        raise ValueError(f"owners must have {count} values, got {column.shape[0]}")
    result = np.array(column)
    cdef const int64_t *of = _int64s(result)
    for i in range(count):
        if not 0 <= of[i] < <int64_t>n:
            raise ValueError(f"owners must be numbers of the {n} records, got {of[i]}")
        if i and _int64s(ts)[i] == _int64s(ts)[i - 1] and of[i] < of[i - 1]:
            raise ValueError("owners of equal timestamps must ascend")
    return result.astype(np.uint32)
