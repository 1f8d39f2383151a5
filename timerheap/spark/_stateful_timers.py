"""`GroupStateTimers` and `ProcessorTimers`: a timer heap inside a user's own stateful function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Self
from weakref import WeakSet

from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessorHandle, TimerValues
from pyspark.sql.types import BinaryType

from timerheap._native._core import KeyTimerHeap, TimerHeap, from_text, to_text
from timerheap.errors import ArgumentTypeError, ArgumentValueError, CheckpointMismatchError
from timerheap.spark._compat import forget_timeout, timeout_kind, type_of_state
from timerheap.timer import Timer, TimerBatch

FIELD = "timers"
"""The state field that holds the heap; part of the users' checkpoints."""

Heap = TimerHeap | KeyTimerHeap

_open: WeakSet[object] = WeakSet()  # states whose timers are in a block

# Part of the users' checkpoints: changing them breaks running queries.
_STATE = "timerheap"
_STATE_SCHEMA = f"{FIELD} string, wake_up bigint"  # text, since Spark passes bytes character by character

_taken: WeakSet[object] = WeakSet()  # handles that have a ProcessorTimers


class StoredTimers(ABC):
    """Timers in the state of `owner`, which a ``with`` block reads and writes.

    Inside the block the object has all methods of its heap.
    """

    def __init__(self, owner: object, one_timer_per_key: bool) -> None:
        self._owner = owner
        self._heap_class: type[Heap] = KeyTimerHeap if one_timer_per_key else TimerHeap
        self._heap: Heap | None = None
        self._first: Timer | None = None  # the first timer at the start of the block

    @abstractmethod
    def _now(self) -> int:
        """Return the time up to which timers are due."""

    @abstractmethod
    def _load(self) -> bytes | None:
        """Read the heap's bytes."""

    @abstractmethod
    def _save(self, heap: Heap) -> None:
        """Write the heap and schedule Spark's next call."""

    @abstractmethod
    def _keep(self) -> None:
        """After an error in the block, schedule Spark's next call for the timers from before it."""

    def due(self, limit: int | None = None) -> TimerBatch:
        """Remove and return the due timers; call it both when rows arrive and on a timeout.

        Parameters
        ----------
        limit : int, optional
            Return at most this many; the rest stay in the heap.

        Returns
        -------
        TimerBatch
            All timers with timestamp <= watermark, or <= the micro-batch's processing time if the query uses
            processing time, sorted by (timestamp, key_hash, namespace).

        Raises
        ------
        RuntimeError
            If called outside the block.
        ArgumentTypeError, ArgumentValueError
            If `limit` is not a count.

        Notes
        -----
        O(k log n) for k of n timers. Spark's watermark covers the micro-batches before the current one and
        starts at 0.
        """
        return self._opened().pop_due(self._now(), limit)

    def __enter__(self) -> Self:
        self._check_closed()
        try:
            data = self._load()
            heap = self._heap_class() if data is None else self._heap_class.from_bytes(data)
        except ValueError as error:
            raise CheckpointMismatchError(
                f"state field {FIELD!r} must hold a {self._heap_class.__name__} written by timerheap with "
                f"the same one_timer_per_key: {error}"
            ) from error
        self._heap, self._first = heap, heap.peek()
        _open.add(self._owner)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        heap, self._heap = self._opened(), None
        _open.discard(self._owner)
        if kind is None:
            self._save(heap)
        elif issubclass(kind, Exception):  # not for GeneratorExit or the end of the worker
            self._keep()

    def _check_closed(self) -> None:
        if self._owner in _open:
            raise RuntimeError("these timers are already open; leave the first `with` block before the next")

    def _opened(self) -> Heap:
        if self._heap is None:
            raise RuntimeError(f"{type(self).__name__} must be used inside its `with` block")
        return self._heap

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(self._heap_class, name):
            raise AttributeError(f"neither {type(self).__name__} nor its heap has an attribute {name!r}")
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


class GroupStateTimers(StoredTimers):
    """A timer heap in the state of a function for ``applyInPandasWithState``.

    Inside its ``with`` block it has all methods of `TimerHeap` (push, remove, reschedule, peek, pop,
    push_many, pop_due, ``len``, ``in`` and the rest), and `due`. Leaving the block saves the timers and sets
    the group's timeout: Spark calls again, with or without rows, in the first micro-batch whose watermark has
    reached the first timer. An exception in the block leaves the state unchanged.

    Parameters
    ----------
    state : pyspark.sql.streaming.state.GroupState
        The state that Spark passes to the function. The last field of its schema must be ``timers binary``;
        the other fields belong to the function and are available as `state`. Do not update the state or set
        the timeout yourself: leaving the block does both.
    one_timer_per_key : bool, default False
        If True, use a `KeyTimerHeap`, where a push replaces the timer of the same key_hash and namespace.

    Raises
    ------
    ArgumentTypeError
        If `state` is not a GroupState, or its schema does not end in ``timers binary``.
    ArgumentValueError
        If the query has no timeouts, so that no timer would ever fire.
    CheckpointMismatchError
        On entering the block: if the bytes in the state are not such a heap.
    RuntimeError
        If timers are used outside the block, if blocks are nested, or, on leaving the block, if the state was
        updated directly.

    Notes
    -----
    A timer is due when timestamp <= watermark with ``EventTimeTimeout``, and when timestamp <= the
    micro-batch's processing time with ``ProcessingTimeTimeout``. If due timers stay in the heap, Spark calls
    again once that clock has advanced. The group is the key; key_hash and namespace distinguish its timers.

    It is for a function that Spark's operator has to run. `process` runs a `KeyedProcessFunction` with timers
    of its own, and without a call of Python for each group.

    Any state store works. Timers and state are one value, which is read and written as a whole at each call,
    with 24 bytes per timer.

    Examples
    --------
    Report planes that have not been seen for an hour:

    >>> import pandas as pd
    >>> def overdue(key, batches, state):
    ...     with GroupStateTimers(state, one_timer_per_key=True) as timers:
    ...         (seen,) = timers.state or (0,)
    ...         for batch in batches:
    ...             if len(batch):  # empty on a timeout
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
            raise ArgumentTypeError(
                f"state must be the GroupState that Spark passes to the function, got {state!r}"
            )
        if timeout_kind(state) == GroupStateTimeout.NoTimeout:
            raise ArgumentValueError(
                "timeoutConf must be GroupStateTimeout.EventTimeTimeout or ProcessingTimeTimeout, got "
                "NoTimeout, with which no timer would ever fire; pass one to applyInPandasWithState"
            )
        schema = type_of_state(state)
        if schema.names[-1:] != [FIELD] or not isinstance(schema.fields[-1].dataType, BinaryType):
            raise ArgumentTypeError(
                f"stateStructType must end in a field '{FIELD} binary', which stores the timers, "
                f"got {schema.simpleString()}"
            )
        self._group, self._names = state, schema.names[:-1]
        self._before: tuple[Any, ...] | None = None
        self._state: tuple[Any, ...] | None = None

    @property
    def state(self) -> tuple[Any, ...] | None:
        """The values of the fields before ``timers``, as a tuple; None without state. Can be set.

        A state with only nulls counts as None. A group with neither state nor timers is removed.
        """
        self._opened()
        return self._state

    @state.setter
    def state(self, value: tuple[Any, ...] | None) -> None:
        self._opened()
        wanted = f"state must be None or a tuple ({', '.join(self._names)})"
        if value is not None and not isinstance(value, tuple | list):
            raise ArgumentTypeError(f"{wanted}, got {value!r}")
        if value is not None and len(value) != len(self._names):
            raise ArgumentValueError(f"{wanted}, got {value!r}")
        self._state = _none_if_empty(value)

    def _now(self) -> int:
        if timeout_kind(self._group) == GroupStateTimeout.ProcessingTimeTimeout:
            return self._group.getCurrentProcessingTimeMs()
        return self._group.getCurrentWatermarkMs()

    def _load(self) -> bytes | None:
        self._before = self._group.getOption
        if self._before is None:
            self._state = None
            return None
        self._state = _none_if_empty(self._before[:-1])
        timers: bytes | None = self._before[-1]
        return timers

    def _save(self, heap: Heap) -> None:
        if self._group.getOption != self._before:
            raise RuntimeError("state must not be updated inside the block; set `timers.state` instead")
        if heap or self._state is not None:
            fields = self._state or (None,) * len(self._names)
            self._group.update((*fields, heap.to_bytes() if heap else None))
        elif self._group.exists:
            self._group.remove()
        self._set_timeout(heap.peek())

    def _keep(self) -> None:
        self._set_timeout(self._first)  # each call discards the previous timeout

    def _set_timeout(self, head: Timer | None) -> None:
        group = self._group
        forget_timeout(group)
        if head is None:
            return
        # Spark calls when its clock is past the timeout; a timer is due when the clock has reached it.
        timeout = head.timestamp - 1
        if timeout_kind(group) == GroupStateTimeout.ProcessingTimeTimeout:
            group.setTimeoutDuration(max(timeout - self._now(), 1))
        else:
            group.setTimeoutTimestamp(max(timeout, self._now(), 1))


def _none_if_empty(state: tuple[Any, ...] | list[Any] | None) -> tuple[Any, ...] | None:
    return None if state is None or all(value is None for value in state) else tuple(state)


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
    ArgumentTypeError
        If `handle` is not a StatefulProcessorHandle.
    CheckpointMismatchError
        On entering the block: if the text in the state is not such a heap.
    RuntimeError
        If timers are used outside the block, if blocks are nested, or if the handle already has a
        ProcessorTimers.

    Notes
    -----
    It is for a processor that Spark's operator has to run. `transform_with_state` runs the same processor,
    with the timers of its handle in process, and needs no other ones.

    A timer is due when timestamp <= watermark, or, with `processing_time`, when timestamp <= the
    micro-batch's processing time. Spark passes the rows of a micro-batch first, then the expired timers. If
    due timers stay in the heap after a call with rows, Spark calls again in the same micro-batch; after a
    call for an expired timer it calls again once the clock has advanced.

    In a generator the block may contain ``yield``: Spark reads the result of each call to its end before the
    next call. Reading the timers is one round trip to Spark. If they have changed, writing them is another,
    and moving Spark's timer is up to two. The class works with
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
            raise ArgumentTypeError(
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
        ArgumentTypeError
            If an argument has another type.
        ArgumentValueError
            If the query has another timeMode.
        RuntimeError
            If the timers are already open.
        """
        if not isinstance(timerValues, TimerValues):
            raise ArgumentTypeError(f"timerValues must be Spark's TimerValues, got {timerValues!r}")
        if not isinstance(expiredTimerInfo, ExpiredTimerInfo | None):
            raise ArgumentTypeError(
                f"expiredTimerInfo must be Spark's ExpiredTimerInfo, got {expiredTimerInfo!r}"
            )
        self._check_closed()
        if self._processing_time:
            mode, time = "ProcessingTime", timerValues.getCurrentProcessingTimeInMs()
        else:
            mode, time = "EventTime", timerValues.getCurrentWatermarkInMs()
        if time == -1:
            raise ArgumentValueError(f"timeMode must be {mode!r} for these timers; start the query with it")
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
