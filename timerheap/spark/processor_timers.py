"""`ProcessorTimers`: timers for each key of a ``StatefulProcessor``."""

from __future__ import annotations

from typing import Self
from weakref import WeakSet

from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessorHandle, TimerValues

from timerheap._native._heap import from_text, to_text
from timerheap.spark._stored_timers import FIELD, Heap, StoredTimers
from timerheap.timer import Timer

__all__ = ["ProcessorTimers"]

# Part of the users' checkpoints: changing them breaks running queries.
_STATE = "timerheap"
_STATE_SCHEMA = f"{FIELD} string, wake_up bigint"  # text, since Spark passes bytes character by character

_taken: WeakSet[object] = WeakSet()  # handles that have a ProcessorTimers


class ProcessorTimers(StoredTimers):
    """A timer heap for each key of a ``StatefulProcessor``.

    Create it in ``init``, and `open` it in a ``with`` block in each method that Spark calls. Inside the block
    it has, for the current key, all methods of `TimerHeap` (push, remove, reschedule, peek, pop, push_many,
    pop_due, ``len``, ``in`` and the rest), and `due`. Leaving the block saves the timers and registers one
    Spark timer, so that Spark calls ``handleExpiredTimer`` in the first micro-batch whose watermark has
    reached the first timer. An exception in the block leaves the timers unchanged.

    Parameters
    ----------
    handle : pyspark.sql.streaming.StatefulProcessorHandle
        The handle that Spark passes to ``init``. The timers are stored in a ValueState named ``timerheap``
        with the schema ``timers string, wake_up bigint``.
    processing_time : bool, default False
        False for a query with timeMode ``EventTime``, True for ``ProcessingTime``.
    one_timer_per_key : bool, default False
        If True, use a `KeyTimerHeap`, where a push replaces the timer of the same key_hash and namespace.

    Raises
    ------
    TypeError
        If `handle` is not a StatefulProcessorHandle.
    ValueError
        On entering the block: if the text in the state is not such a heap.
    RuntimeError
        If timers are used outside the block, if blocks are nested, or if the handle already has a
        ProcessorTimers.

    Notes
    -----
    A timer is due when timestamp <= watermark, or, with `processing_time`, when timestamp <= the
    micro-batch's processing time. Spark passes the rows of a micro-batch first, then the expired timers. If
    due timers stay in the heap after a call with rows, Spark calls again in the same micro-batch; after a
    call for an expired timer it calls again once the clock has advanced.

    In a generator the block may contain ``yield``: Spark reads the result of each call to its end before the
    next call. Reading the timers is one round trip to Spark. If they have changed, writing them is another,
    and moving Spark's timer is up to two; each takes about 0.1 ms. The class works with
    ``transformWithStateInPandas`` and with ``transformWithState``.

    Examples
    --------
    Report planes that have not been seen for an hour, in Spark's test harness:

    >>> from pyspark.sql import Row
    >>> from pyspark.sql.streaming import StatefulProcessor
    >>> from pyspark.sql.streaming.tws_tester import TwsTester
    >>> class Overdue(StatefulProcessor):
    ...     def init(self, handle):
    ...         self.timers = ProcessorTimers(handle, one_timer_per_key=True)
    ...     def handleInputRows(self, key, rows, timerValues):
    ...         with self.timers.open(timerValues) as timers:
    ...             timers.push(max(row.at for row in rows) + 3_600_000, key_hash=0)
    ...         return iter([])
    ...     def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
    ...         with self.timers.open(timerValues, expiredTimerInfo) as timers:
    ...             for timer in timers.due():
    ...                 yield Row(plane=key[0], since=timer.timestamp - 3_600_000)
    >>> tester = TwsTester(Overdue(), timeMode="EventTime", eventTimeExtractor=lambda row: row.at)
    >>> tester.test("N14228", [Row(at=1_000_000)])
    []
    >>> tester.setWatermark(4_600_000)
    [Row(plane='N14228', since=1000000)]
    """

    def __init__(
        self,
        handle: StatefulProcessorHandle,
        *,
        processing_time: bool = False,
        one_timer_per_key: bool = False,
    ) -> None:
        super().__init__(handle, one_timer_per_key)
        if not isinstance(handle, StatefulProcessorHandle):
            raise TypeError(
                f"handle must be the StatefulProcessorHandle that init() receives, got {handle!r}"
            )
        if handle in _taken:
            raise RuntimeError(
                "handle must not have another ProcessorTimers; use one for all timers of a key"
            )
        self._handle = handle
        self._processing_time = processing_time
        self._value = handle.getValueState(_STATE, _STATE_SCHEMA)
        _taken.add(handle)
        self._time: int | None = None  # from open() to the end of its block
        self._firing: int | None = None
        self._stored: tuple[str | None, int | None] = None, None

    def open(self, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo | None = None) -> Self:
        """Open the timers of the current key, for a ``with`` block.

        Parameters
        ----------
        timerValues : pyspark.sql.streaming.stateful_processor.TimerValues
            The argument that Spark passes to the method.
        expiredTimerInfo : pyspark.sql.streaming.stateful_processor.ExpiredTimerInfo, optional
            The argument that Spark passes to ``handleExpiredTimer``, and required there, because Spark
            removes the expired timer itself after the call.

        Returns
        -------
        ProcessorTimers
            The same object.

        Raises
        ------
        TypeError
            If an argument has another type.
        ValueError
            If the query has another timeMode.
        RuntimeError
            If the timers are already open.
        """
        if not isinstance(timerValues, TimerValues):
            raise TypeError(f"timerValues must be Spark's TimerValues, got {timerValues!r}")
        if not isinstance(expiredTimerInfo, ExpiredTimerInfo | None):
            raise TypeError(f"expiredTimerInfo must be Spark's ExpiredTimerInfo, got {expiredTimerInfo!r}")
        self._check_closed()
        if self._processing_time:
            mode, time = "ProcessingTime", timerValues.getCurrentProcessingTimeInMs()
        else:
            mode, time = "EventTime", timerValues.getCurrentWatermarkInMs()
        if time == -1:
            raise ValueError(f"timeMode must be {mode!r} for these timers; start the query with it")
        self._time = time
        self._firing = None if expiredTimerInfo is None else expiredTimerInfo.getExpiryTimeInMs()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            super().__exit__(kind, *error)
        finally:
            self._time = None

    def _now(self) -> int:
        if self._time is None:
            raise RuntimeError("ProcessorTimers must be opened: write `with timers.open(timerValues)`")
        return self._time

    def _load(self) -> bytes | None:
        self._now()
        self._stored = text, _ = self._value.get() or (None, None)
        return None if text is None else from_text(text)

    def _save(self, heap: Heap) -> None:
        self._write(to_text(heap.to_bytes()) if heap else None, heap.peek())

    def _keep(self) -> None:
        if self._firing is not None:
            self._write(self._stored[0], self._first)

    def _write(self, text: str | None, head: Timer | None) -> None:
        registered = self._stored[1] if self._stored[1] != self._firing else None
        wake_up = self._wake_up(head, registered)
        if wake_up != registered:
            if registered is not None:
                self._handle.deleteTimer(registered)
            if wake_up is not None:
                self._handle.registerTimer(wake_up)
        if (text, wake_up) != self._stored:
            if text is None:
                self._value.clear()
            else:
                self._value.update((text, wake_up))

    def _wake_up(self, head: Timer | None, registered: int | None) -> int | None:
        """Return the time of Spark's timer: the first timer's, or the earliest that Spark still calls for."""
        if head is None:
            return None
        now = self._now()
        if head.timestamp <= now:
            if registered is not None and registered <= now:
                return registered
            if self._firing is not None:
                return now + 1  # a timer registered while another fires must wait for the next micro-batch
        return head.timestamp
