# The heaps: what each kind has beside the methods of _heap.pxi.


cdef class TimerHeap(_Heap):
    """A priority queue of timers from which any timer can be removed in O(log n).

    A timer is a (timestamp, key_hash, namespace) of three int64, and the heap holds each at most once, like Flink's
    HeapPriorityQueueSet. All int64 values are valid.

    Parameters
    ----------
    capacity : int, default 0
        Number of timers to reserve memory for; see `reserve`.

    Notes
    -----
    Threads may share a heap under the GIL: each call is atomic.

    Examples
    --------
    >>> heap = TimerHeap()
    >>> heap.push(5000, key_hash=1), heap.push(5000, key_hash=1), heap.push(3000, key_hash=2)
    (True, False, True)
    >>> heap.peek()
    Timer(timestamp=3000, key_hash=2, namespace=0)
    >>> heap.reschedule(5000, 2000, key_hash=1)
    True
    >>> heap.push_many([7000, 8000], key_hashes=[3, 4]).tolist()
    [True, True]
    >>> heap.pop_due(7000).timestamps.tolist()
    [2000, 3000, 7000]
    """

    def remove(self, timestamp, key_hash, namespace=0):
        """Remove a timer. O(log n).

        Parameters
        ----------
        timestamp, key_hash, namespace : int
            The identity of the timer, each int64.

        Returns
        -------
        bool
            Whether the timer was in the heap.

        Raises
        ------
        ArgumentTypeError, ArgumentRangeError
            If an argument is not an integer, or does not fit int64.
        """
        cdef int64_t ts = _int64(timestamp, "timestamp")
        cdef int64_t key = _int64(key_hash, "key_hash")
        cdef bint there = th_heap_remove(&self.h, ts, key, _int64(namespace, "namespace"))
        self.give_back()
        return there

    def reschedule(self, timestamp, new_timestamp, key_hash, namespace=0):
        """Move a timer to another time, like `remove` and, if the timer was in the heap, `push`. O(log n).

        Parameters
        ----------
        timestamp, new_timestamp, key_hash, namespace : int
            Each int64. If the heap already holds a timer at `new_timestamp`, only one remains.

        Returns
        -------
        bool
            Whether the timer was in the heap.

        Raises
        ------
        ArgumentTypeError, ArgumentRangeError
            If an argument is not an integer, or does not fit int64.
        """
        cdef int64_t ts = _int64(timestamp, "timestamp")
        cdef int64_t new_ts = _int64(new_timestamp, "new_timestamp")
        cdef int64_t key = _int64(key_hash, "key_hash")
        return th_heap_reschedule(&self.h, ts, new_ts, key, _int64(namespace, "namespace"))

    def remove_many(self, timestamps, key_hashes, namespaces=0):
        """Remove many timers at once, with the same result as removing them one by one in order.

        O(n log(len)), O(n + len) for a large part of the heap.

        Parameters
        ----------
        timestamps, key_hashes, namespaces : array_like of int, shape (n,), or int
            The identities of the timers, as in `push_many`.

        Returns
        -------
        ndarray of bool, shape (n,)
            Whether each timer was in the heap.

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            As `push_many`.
        """
        return self.remove_rows(timestamps, key_hashes, namespaces, False)

    def reschedule_many(self, timestamps, new_timestamps, key_hashes, namespaces=0):
        """Move many timers to other times at once, with the same result as moving them one by one in order.

        O(n log(len)), O(n + len) for a large part of the heap.

        Parameters
        ----------
        timestamps, new_timestamps, key_hashes, namespaces : array_like of int, shape (n,), or int
            As in `push_many`; at most three may be an int, which applies to all rows.

        Returns
        -------
        ndarray of bool, shape (n,)
            Whether each timer was in the heap.

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            As `push_many`.
        """
        cdef _Columns rows = _Columns(self)
        cdef th_column ts = rows.take(timestamps, "timestamps")
        cdef th_column new_ts = rows.take(new_timestamps, "new_timestamps")
        cdef th_column key = rows.take(key_hashes, "key_hashes")
        cdef th_column ns = rows.take(namespaces, "namespaces")
        cdef size_t n = rows.count()
        cdef cnp.ndarray moved = _empty(n, cnp.NPY_BOOL)
        th_heap_reschedule_many(&self.h, ts, new_ts, key, ns, n, _uint8s(moved))
        self.give_back()
        return moved

    def __contains__(self, timer):
        """Return whether a `Timer` or a tuple (timestamp, key_hash[, namespace]) is in the heap. O(1)."""
        cdef size_t row
        if not isinstance(timer, tuple) or not 2 <= len(timer) <= 3:
            raise ArgumentTypeError(f"a timer must be a tuple (timestamp, key_hash[, namespace]), got {_shown(timer)}")
        timestamp, key_hash, namespace = timer if len(timer) == 3 else (*timer, 0)
        return th_heap_find(&self.h, _int64(timestamp, "timestamp"), _int64(key_hash, "key_hash"),
                            _int64(namespace, "namespace"), &row)


cdef class KeyTimerHeap(_Heap):
    """A priority queue with one timer for each (key_hash, namespace); pushing an existing timer moves it.

    It suits session timeouts, because the caller need not know the old timestamp. Otherwise it works like `TimerHeap`.

    Parameters
    ----------
    capacity : int, default 0
        Number of timers to reserve memory for; see `reserve`.

    Notes
    -----
    Threads may share a heap under the GIL: each call is atomic.

    Examples
    --------
    >>> heap = KeyTimerHeap()
    >>> heap.push(5000, key_hash=1), heap.push(9000, key_hash=1)
    (True, False)
    >>> heap.timestamp_of(1), len(heap)
    (9000, 1)
    """

    def remove(self, key_hash, namespace=0):
        """Remove the timer of an identity. O(log n).

        Parameters
        ----------
        key_hash, namespace : int
            Each int64.

        Returns
        -------
        bool
            Whether the timer was in the heap.

        Raises
        ------
        ArgumentTypeError, ArgumentRangeError
            If an argument is not an integer, or does not fit int64.
        """
        cdef int64_t key = _int64(key_hash, "key_hash")
        cdef bint there = th_heap_remove(&self.h, 0, key, _int64(namespace, "namespace"))
        self.give_back()
        return there

    def timestamp_of(self, key_hash, namespace=0):
        """Return the timestamp of the timer of an identity. O(1).

        Parameters
        ----------
        key_hash, namespace : int
            Each int64.

        Returns
        -------
        int or None
            Epoch milliseconds; None if there is no such timer.

        Raises
        ------
        ArgumentTypeError, ArgumentRangeError
            If an argument is not an integer, or does not fit int64.
        """
        cdef size_t row
        cdef int64_t key = _int64(key_hash, "key_hash")
        return self.h.ts[row] if th_heap_find(&self.h, 0, key, _int64(namespace, "namespace"), &row) else None

    def timestamps_of(self, key_hashes, namespaces=0):
        """Return the timestamps of the timers of many identities. O(n).

        Parameters
        ----------
        key_hashes, namespaces : array_like of int, shape (n,), or int
            As in `push_many`.

        Returns
        -------
        timestamps : ndarray of int64, shape (n,)
            Epoch milliseconds; 0 where there is no timer.
        found : ndarray of bool, shape (n,)
            Whether there is a timer.

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            As `push_many`.
        """
        cdef _Columns rows = _Columns(self)
        cdef th_column key = rows.take(key_hashes, "key_hashes")
        cdef th_column ns = rows.take(namespaces, "namespaces")
        cdef size_t n = rows.count()
        cdef cnp.ndarray timestamps = _empty(n, cnp.NPY_INT64), found = _empty(n, cnp.NPY_BOOL)
        th_heap_find_many(&self.h, key, ns, n, _uint8s(found), _int64s(timestamps))
        return timestamps, found

    def remove_many(self, key_hashes, namespaces=0):
        """Remove the timers of many identities at once, with the same result as removing them one by one in order.

        O(n log(len)), O(n + len) for a large part of the heap.

        Parameters
        ----------
        key_hashes, namespaces : array_like of int, shape (n,), or int
            As in `push_many`.

        Returns
        -------
        ndarray of bool, shape (n,)
            Whether each timer was in the heap.

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            As `push_many`.
        """
        return self.remove_rows(0, key_hashes, namespaces, False)

    def __contains__(self, timer):
        """Return whether a key_hash, a tuple (key_hash, namespace) or a `Timer` is in the heap. O(1)."""
        cdef size_t row
        cdef int64_t ts = 0, key, ns
        if not isinstance(timer, tuple):
            timer = timer, 0
        if not 2 <= len(timer) <= 3:
            raise ArgumentTypeError(f"a timer must be a key_hash, (key_hash, namespace) or Timer, got {_shown(timer)}")
        *timestamp, key_hash, namespace = timer
        if timestamp:
            ts = _int64(timestamp[0], "timestamp")
        key, ns = _int64(key_hash, "key_hash"), _int64(namespace, "namespace")
        return th_heap_find(&self.h, 0, key, ns, &row) and (not timestamp or self.h.ts[row] == ts)


cdef class NamedTimerHeap(TimerHeap):
    """A `TimerHeap` in which timers with a name, in another namespace than 0, move as in a `KeyTimerHeap`.

    Where a method removes or finds a named timer, its timestamp is ignored.
    """

    def timestamp_of(self, key_hash, namespace):
        """Return the timestamp of a named timer, or None. O(1)."""
        cdef size_t row
        cdef int64_t key = _int64(key_hash, "key_hash")
        return self.h.ts[row] if th_heap_find(&self.h, 0, key, _int64(namespace, "namespace"), &row) else None

    def find_many(self, timestamps, key_hashes, namespaces):
        """Return the timestamps of many timers, and which of them there are: int64 and bool, shape (n,). O(n)."""
        cdef _Columns rows = _Columns(self)
        cdef th_column ts = rows.take(timestamps, "timestamps")
        cdef th_column key = rows.take(key_hashes, "key_hashes")
        cdef th_column ns = rows.take(namespaces, "namespaces")
        cdef size_t n = rows.count(), row
        cdef Py_ssize_t i
        cdef cnp.ndarray at = _zeros(n, cnp.NPY_INT64), found = _empty(n, cnp.NPY_BOOL)
        for i in range(<Py_ssize_t>n):
            _uint8s(found)[i] = th_heap_find(&self.h, ts.data[i * ts.step], key.data[i * key.step],
                                             ns.data[i * ns.step], &row)
            if _uint8s(found)[i]:
                _int64s(at)[i] = self.h.ts[row]
        return at, found

    def take(self, timestamp, key_hash, namespace):
        """Remove a timer if it is at `timestamp`, and return whether it was. O(log n)."""
        return (timestamp, key_hash, namespace) in self and self.remove(timestamp, key_hash, namespace)

    def take_many(self, timestamps, key_hashes, namespaces):
        """Remove many timers that are at `timestamps`, one by one; return whether each was: bool, shape (n,)."""
        return self.remove_rows(timestamps, key_hashes, namespaces, True)

    def __contains__(self, timer):
        """Return whether a tuple (timestamp, key_hash, namespace) is in the heap, at that timestamp. O(1)."""
        cdef size_t row
        timestamp, key_hash, namespace = timer
        cdef int64_t ts = _int64(timestamp, "timestamp"), key = _int64(key_hash, "key_hash")
        return th_heap_find(&self.h, ts, key, _int64(namespace, "namespace"), &row) and self.h.ts[row] == ts
