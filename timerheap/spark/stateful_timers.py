"""Timers inside a user's own stateful function: a heap in its state, and one wake-up of Spark's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Self
from weakref import WeakSet

from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessorHandle, TimerValues
from pyspark.sql.types import BinaryType, StructType

from timerheap._native._heap import KeyTimerHeap, TimerHeap
from timerheap.timer import Timer, TimerBatch

__all__ = ["GroupTimers", "ProcessorTimers"]

# Frozen: they are in the users' checkpoints.
_FIELD = "timers"
_STATE = "timerheap"
_STATE_SCHEMA = f"{_FIELD} binary, wake_up bigint"

_open: WeakSet[object] = WeakSet()  # states whose timers are in a block
_taken: WeakSet[object] = WeakSet()  # handles that have a ProcessorTimers

_Heap = TimerHeap | KeyTimerHeap


class _Timers(ABC):
    """A heap that a ``with`` block takes out of `owner` and puts back; inside, its methods are the heap's."""

    def __init__(self, owner: object, one_timer_per_key: bool) -> None:
        self._owner = owner
        self._heap_class: type[_Heap] = KeyTimerHeap if one_timer_per_key else TimerHeap
        self._heap: _Heap | None = None
        self._first: Timer | None = None  # when the block began

    @abstractmethod
    def _now(self) -> int:
        """Return the time up to which timers are due."""

    @abstractmethod
    def _load(self) -> bytes | None:
        """Read the heap's bytes."""

    @abstractmethod
    def _save(self, heap: _Heap) -> None:
        """Write the heap and set when Spark calls again."""

    @abstractmethod
    def _keep(self) -> None:
        """After an error in the block: have Spark call again for the timers that were there before."""

    def due(self, limit: int | None = None) -> TimerBatch:
        """Remove and return what the watermark has passed, on a data call and on a timeout alike.

        Parameters
        ----------
        limit : int, optional
            Return at most so many, the first ones.

        Returns
        -------
        TimerBatch
            All timers with timestamp <= watermark, or <= the micro-batch's own time where that is the clock,
            sorted by (timestamp, key_hash, namespace).

        Raises
        ------
        RuntimeError
            Outside the block.
        TypeError, ValueError, OverflowError
            `limit` is no such number.

        Notes
        -----
        O(k log n) for k timers. Spark's watermark is that of the micro-batches before this one, at first 0.
        """
        return self._opened().pop_due(self._now(), limit)

    def __enter__(self) -> Self:
        self._check_closed()
        data = self._load()
        try:
            heap = self._heap_class() if data is None else self._heap_class.from_bytes(data)
        except ValueError as error:
            raise ValueError(
                f"state field {_FIELD!r} holds no {self._heap_class.__name__}: {error} (it must have been "
                "written by timerheap, with the same one_timer_per_key)"
            ) from error
        self._heap, self._first = heap, heap.peek()
        _open.add(self._owner)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        heap, self._heap = self._opened(), None
        _open.discard(self._owner)
        if kind is None:
            self._save(heap)
        elif issubclass(kind, Exception):  # not when the worker, or an unread generator, is closed
            self._keep()

    def _check_closed(self) -> None:
        if self._owner in _open:
            raise RuntimeError("these timers are open already: leave one `with` block before the next begins")

    def _opened(self) -> _Heap:
        if self._heap is None:
            raise RuntimeError(f"{type(self).__name__} has its timers only inside its `with` block")
        return self._heap

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(self._heap_class, name):
            raise AttributeError(f"there is no {name!r} in {type(self).__name__}, nor in its heap")
        return getattr(self._opened(), name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(name for name in dir(self._heap_class) if not name.startswith("_"))]

    def __len__(self) -> int:
        return len(self._opened())

    def __iter__(self) -> Iterator[Timer]:
        return iter(self._opened())

    def __contains__(self, timer: Any) -> bool:
        return timer in self._opened()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {'closed' if self._heap is None else self._heap}>"


class GroupTimers(_Timers):
    """Timers in the state of a function for ``applyInPandasWithState``, as a priority queue.

    Inside its ``with`` block it has all methods of `TimerHeap` (push, remove, reschedule, peek, pop,
    push_many, pop_due, ``len``, ``in`` and the rest), and `due`. Leaving the block saves the timers and sets
    the group's one timeout: Spark calls again, with rows or without, in the first micro-batch whose watermark
    has reached the first timer. An exception in the block leaves the state as it was.

    Parameters
    ----------
    state : pyspark.sql.streaming.state.GroupState
        What Spark handed to the function. The last field of its schema is ``timers binary``, the others are
        the function's own: see `state`. The block alone updates the state and sets the timeout.
    one_timer_per_key : bool, default False
        True: a `KeyTimerHeap`, where a push moves the timer of its key_hash and namespace.

    Raises
    ------
    TypeError
        `state` is no GroupState, or its schema does not end in ``timers binary``.
    ValueError
        The query has no timeouts, so that no timer would ever fire. On entering the block: the bytes in the
        state are of no such heap.
    RuntimeError
        Use outside the block; a block inside a block; on leaving it: the state was updated past it.

    Notes
    -----
    A timer is due when timestamp <= watermark with ``EventTimeTimeout``, and when timestamp <= the
    micro-batch's own time with ``ProcessingTimeTimeout``. If timers that are due stay in the queue, Spark
    calls again when that clock has moved. The group is the key; tell its timers apart by key_hash and
    namespace.

    Any state store will do. Timers and state are one value, read and written whole at each call: 24 bytes a
    timer.

    Examples
    --------
    Planes that have not been seen for an hour:

    >>> import pandas as pd
    >>> def overdue(key, batches, state):
    ...     with GroupTimers(state, one_timer_per_key=True) as timers:
    ...         (seen,) = timers.state or (0,)
    ...         for batch in batches:
    ...             if len(batch):  # a timeout brings an empty one
    ...                 seen = max(seen, int(batch["at"].max()))
    ...                 timers.push(seen + 3_600_000, key_hash=0)
    ...         due = timers.due()
    ...         timers.state = (seen,) if timers else None
    ...     yield pd.DataFrame({"plane": key[0], "since": due.timestamps - 3_600_000})
    >>> df.withWatermark("time", "5 minutes").groupBy("plane").applyInPandasWithState(
    ...     overdue, "plane string, since bigint", "seen bigint, timers binary", "append", "EventTimeTimeout"
    ... )  # doctest: +SKIP
    """

    def __init__(self, state: GroupState, *, one_timer_per_key: bool = False) -> None:
        super().__init__(state, one_timer_per_key)
        if not isinstance(state, GroupState):
            raise TypeError(f"state must be the GroupState that Spark hands to the function, got {state!r}")
        if state._timeout_conf == GroupStateTimeout.NoTimeout:
            raise ValueError(
                "timeoutConf is NoTimeout, so that no timer would ever fire: give applyInPandasWithState "
                "GroupStateTimeout.EventTimeTimeout or ProcessingTimeTimeout"
            )
        self._group = state
        self._names = _own_fields(state._value_schema)
        self._before: tuple[Any, ...] | None = None
        self._state: tuple[Any, ...] | None = None

    @property
    def state(self) -> tuple[Any, ...] | None:
        """The fields before ``timers``: a tuple to read and to set, None where there is no state.

        A state of nothing but nulls is no state. Without state and without timers the group is removed.
        """
        self._opened()
        return self._state

    @state.setter
    def state(self, value: tuple[Any, ...] | None) -> None:
        self._opened()
        wanted = f"state must be None or a tuple ({', '.join(self._names)})"
        if value is not None and not isinstance(value, tuple | list):
            raise TypeError(f"{wanted}, got {value!r}")
        if value is not None and len(value) != len(self._names):
            raise ValueError(f"{wanted}, got {value!r}")
        self._state = _none_if_empty(value)

    def _now(self) -> int:
        if self._group._timeout_conf == GroupStateTimeout.ProcessingTimeTimeout:
            return self._group.getCurrentProcessingTimeMs()
        return self._group.getCurrentWatermarkMs()

    def _load(self) -> bytes | None:
        self._before = self._group.getOption
        if self._before is None:
            self._state = None
            return None
        self._state = _none_if_empty(self._before[:-1])
        data: bytes | None = self._before[-1]
        return data

    def _save(self, heap: _Heap) -> None:
        if self._group.getOption != self._before:
            raise RuntimeError("the state was updated inside the block, which does that: set `timers.state`")
        if heap or self._state is not None:
            fields = self._state or (None,) * len(self._names)
            self._group.update((*fields, heap.to_bytes() if heap else None))
        elif self._group.exists:
            self._group.remove()
        self._set_timeout(heap.peek())

    def _keep(self) -> None:
        self._set_timeout(self._first)  # with every call Spark forgets the old one

    def _set_timeout(self, head: Timer | None) -> None:
        group = self._group
        group._timeout_timestamp = group.NO_TIMESTAMP
        if head is None:
            return
        # Spark calls when its clock is beyond the timeout; a timer is due when the clock has reached it.
        timeout = head.timestamp - 1
        if group._timeout_conf == GroupStateTimeout.ProcessingTimeTimeout:
            group.setTimeoutDuration(max(timeout - self._now(), 1))
        else:
            group.setTimeoutTimestamp(max(timeout, self._now(), 1))


def _own_fields(schema: StructType) -> list[str]:
    if schema.names[-1:] != [_FIELD] or not isinstance(schema.fields[-1].dataType, BinaryType):
        raise TypeError(
            f"stateStructType must end in a field '{_FIELD} binary', where the timers are kept, "
            f"got {schema.simpleString()}"
        )
    return schema.names[:-1]


def _none_if_empty(state: tuple[Any, ...] | list[Any] | None) -> tuple[Any, ...] | None:
    return None if state is None or all(value is None for value in state) else tuple(state)


class ProcessorTimers(_Timers):
    """Timers for each key of a ``StatefulProcessor``, as a priority queue.

    Make one in ``init``, and `open` it in a ``with`` block wherever Spark calls. Inside the block it has, for
    the key at hand, all methods of `TimerHeap` (push, remove, reschedule, peek, pop, push_many, pop_due,
    ``len``, ``in`` and the rest), and `due`. Leaving the block saves the timers and keeps one timer of
    Spark's, so that it calls ``handleExpiredTimer`` in the first micro-batch whose watermark has reached the
    first timer. An exception in the block leaves the timers as they were.

    Parameters
    ----------
    handle : pyspark.sql.streaming.StatefulProcessorHandle
        What Spark handed to ``init``. It gets a ValueState called ``timerheap``, of ``timers binary,
        wake_up bigint``.
    processing_time : bool, default False
        False for a query of timeMode ``EventTime``, True for ``ProcessingTime``.
    one_timer_per_key : bool, default False
        True: a `KeyTimerHeap`, where a push moves the timer of its key_hash and namespace.

    Raises
    ------
    TypeError
        `handle` is no StatefulProcessorHandle.
    ValueError
        On entering the block: the bytes in the state are of no such heap.
    RuntimeError
        Use outside the block; a block inside a block; a second ProcessorTimers on one handle.

    Notes
    -----
    A timer is due when timestamp <= watermark, or, with `processing_time`, <= the micro-batch's own time.
    Spark hands over a micro-batch's rows first, then what has expired. Timers that are due and stay in the
    queue are called for in the same micro-batch if the call was one with rows, else when the clock has moved.

    In a generator the block may contain ``yield``: Spark reads each call's result to its end before the next.
    Reading the timers is one round trip to Spark; if they have changed, writing them is another, and moving
    Spark's timer up to two: about 0.1 ms each. Besides ``transformWithStateInPandas`` it serves
    ``transformWithState``.

    Examples
    --------
    Planes that have not been seen for an hour, in Spark's test harness:

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
            raise TypeError(f"handle must be the StatefulProcessorHandle that init() gets, got {handle!r}")
        if handle in _taken:
            raise RuntimeError("handle has a ProcessorTimers already, and one keeps all the timers")
        self._handle = handle
        self._processing_time = processing_time
        self._value = handle.getValueState(_STATE, _STATE_SCHEMA)
        _taken.add(handle)
        self._time: int | None = None  # from open() to the end of its block
        self._firing: int | None = None
        self._stored: tuple[bytes | None, int | None] = None, None

    def open(self, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo | None = None) -> Self:
        """Give the timers of the key at hand to a ``with`` block.

        Parameters
        ----------
        timerValues : pyspark.sql.streaming.stateful_processor.TimerValues
            What Spark handed to the method.
        expiredTimerInfo : pyspark.sql.streaming.stateful_processor.ExpiredTimerInfo, optional
            The same, in ``handleExpiredTimer``: Spark forgets the timer that is firing when the call is over.

        Returns
        -------
        ProcessorTimers
            This one.

        Raises
        ------
        TypeError
            An argument is something else.
        ValueError
            The query's timeMode is another.
        RuntimeError
            The timers are in a block.
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
            raise ValueError(f"timerValues has no such time: start the query with timeMode {mode!r}")
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
            raise RuntimeError("ProcessorTimers must know the time: with timers.open(timerValues) as ...")
        return self._time

    def _load(self) -> bytes | None:
        self._now()
        self._stored = self._value.get() or (None, None)
        return self._stored[0]

    def _save(self, heap: _Heap) -> None:
        self._write(heap.to_bytes() if heap else None, heap.peek())

    def _keep(self) -> None:
        if self._firing is not None:
            self._write(self._stored[0], self._first)

    def _write(self, data: bytes | None, head: Timer | None) -> None:
        registered = self._stored[1] if self._stored[1] != self._firing else None
        wake_up = self._wake_up(head, registered)
        if wake_up != registered:
            if registered is not None:
                self._handle.deleteTimer(registered)
            if wake_up is not None:
                self._handle.registerTimer(wake_up)
        if (data, wake_up) != self._stored:
            if data is None:
                self._value.clear()
            else:
                self._value.update((data, wake_up))

    def _wake_up(self, head: Timer | None, registered: int | None) -> int | None:
        """Return where Spark's timer belongs: at the head, or as soon as Spark will call when that is due."""
        if head is None:
            return None
        now = self._now()
        if head.timestamp <= now:
            if registered is not None and registered <= now:
                return registered
            if self._firing is not None:
                return now + 1  # a timer registered while another fires waits for the next micro-batch
        return head.timestamp
