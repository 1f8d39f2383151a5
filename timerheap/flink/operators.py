"""Operators that run process functions in this process, without Spark.

The function runs on what runs it on Spark: the loop over rows and timers, the timer service and the heap are
the same native code. Here are the keys, which need no type, the output, and a clock that calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any, Self, SupportsIndex

import numpy as np

from timerheap._arguments import instance, int64
from timerheap._contents import DictEntries, WholeValues
from timerheap._expiry import RowClock
from timerheap._key_timers import KeyTimers, KeyTimerService, Names
from timerheap._native._core import (
    CurrentKey,
    KnownKeys,
    NamedTimerHeap,
    RecordColumns,
    RowLoop,
    RowSource,
    TimerChanges,
)
from timerheap._row_context import RowFunctionContext
from timerheap._values import records
from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.flink.key_groups import compute_key_group_range_for_operator_index
from timerheap.flink.memory_states import MemoryRuntimeContext
from timerheap.flink.processing_time import (
    Cancellable,
    ManualProcessingTimeService,
    ProcessingTimeCallback,
    ProcessingTimeService,
    WakeUp,
)
from timerheap.flink.valves import CombinedWatermarkStatus
from timerheap.functions import KeyedCoProcessFunction, KeyedProcessFunction, TimerService
from timerheap.output_tag import OutputTag, is_tagged
from timerheap.time import TimeDomain
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK
from timerheap.watermarks.output import StreamRecord, Watermark, WatermarkStatus

StreamElement = StreamRecord[Any] | Watermark | WatermarkStatus
"""An element that an operator sends downstream."""

_FIELDS = ["value", "key", "input"]
_FEW = 1 << 10  # keys, or changes of timers, that are kept though nobody needs them


class _Element(tuple[Any, ...]):
    """An element with its key and the number of its input, as the loop hands it on."""

    __fields__: list[str]


class _Keys:
    """The ids of the keys, and the current one. A key whose timers have gone is forgotten some time later."""

    def __init__(self) -> None:
        self.current = CurrentKey()
        self._ids: dict[Any, int] = {}
        self._keys: dict[int, Any] = {}
        self._last = 0
        self._most = _FEW

    @property
    def current_key(self) -> Any:
        return self._keys.get(self.current.current_key)

    def id_of(self, key: Any) -> int:
        id_ = self._ids.get(key)
        if id_ is None:
            id_ = self._last = self._last + 1
            self._ids[key] = id_
            self._keys[id_] = key
        return id_

    def key(self, id_: int, timestamp: int) -> Any:
        """Return the key of a timer that fires."""
        return self._keys[id_]

    def forget(self, *heaps: NamedTimerHeap) -> None:
        """Forget the keys without timers, if there may be many of them."""
        if len(self._ids) > self._most:
            pending = np.unique(np.concatenate([heap.key_hashes for heap in heaps])).tolist()
            self._keys = {id_: self._keys[id_] for id_ in pending}
            self._ids = {key: id_ for id_, key in self._keys.items()}
            self._most = max(_FEW, 2 * len(pending))


class _Names(Names):
    """The names of the timers of an operator."""

    def part(self) -> WholeValues:
        if self.table is None:
            self.table = WholeValues(DictEntries())
        return self.table  # type: ignore[no-any-return]


class _Timers:
    """The timers of one time domain, `NamedTimers` of which nobody asks what has changed."""

    def __init__(self) -> None:
        self.heap = NamedTimerHeap()
        self.single = TimerChanges()

    def remove_many(self, timestamps: np.ndarray, key_hashes: Any, namespaces: np.ndarray) -> np.ndarray:
        """Remove timers; return a bool array that is True where there was one."""
        return self.heap.remove_many(timestamps, key_hashes, namespaces)

    def forget_changes(self) -> None:
        if len(self.single) > _FEW:
            self.single.take()

    def first(self) -> int | None:
        """Return the time of the first timer."""
        head = self.heap.peek()
        return None if head is None else head.timestamp


class _Service(KeyTimerService):
    """The timer service of the current key, with a clock that goes on while it is used."""

    clock: ProcessingTimeService
    wake_up: WakeUp
    pending: NamedTimerHeap  # of processing time

    def current_processing_time(self) -> int:
        return self.clock.get_current_processing_time()

    def register_processing_time_timer(
        self, timestamp: SupportsIndex | datetime, *, name: str | None = None
    ) -> None:
        held, first = len(self.pending), self.pending.peek()
        before = None if name is None else self.next_processing_time_timer(name=name)
        super().register_processing_time_timer(timestamp, name=name)
        head = self.pending.peek()
        assert head is not None
        time = head.timestamp
        if time == MAX_WATERMARK or (first is not None and first.timestamp <= time):
            return  # the largest time never passes
        try:
            self.wake_up.for_first()
        except BaseException:
            if before is not None:
                super().register_processing_time_timer(before, name=name)
            elif len(self.pending) > held:
                super().delete_processing_time_timer(None if name else timestamp, name=name)
            raise


class _Context(RowFunctionContext):
    """One object for all calls, as in PyFlink, which says when records are emitted."""

    output_timestamp: int | None = None  # of the records that are emitted next

    def input_has_ended(self) -> bool:
        timers: TimerService = self.timer_service()
        return timers.current_watermark() == MAX_WATERMARK

    def set_output_timestamp(self, timestamp: int | None) -> None:
        self.output_timestamp = None if timestamp is None else int64("timestamp", timestamp)


class _Calls:
    """The function as the loop calls it: `methods` process the elements of each input."""

    def __init__(
        self, function: KeyedProcessFunction | KeyedCoProcessFunction, methods: Sequence[Callable[..., Any]]
    ) -> None:
        self._methods = methods
        self._on_timer = function.on_timer

    def process_element(self, element: _Element, ctx: _Context) -> Iterable[Any] | None:
        """Call the function with an element."""
        value, _, number = element
        ctx.output_timestamp = ctx.timestamp()
        method = self._methods[number]
        returned: Iterable[Any] | None = method(value, ctx)
        return returned if len(self._methods) == 1 else records(method.__name__, returned)

    def on_timer(self, timestamp: int, ctx: _Context) -> Iterable[Any] | None:
        """Call the function with a timer."""
        ctx.output_timestamp = timestamp if ctx.time_domain() is TimeDomain.EVENT_TIME else None
        return self._on_timer(timestamp, ctx)


class _Alarm:
    """The clock of an operator, whose callbacks run only while the operator is open."""

    def __init__(self, clock: ProcessingTimeService) -> None:
        self._clock = clock
        self.is_on = False

    def get_current_processing_time(self) -> int:
        return self._clock.get_current_processing_time()

    def register_timer(self, timestamp: int, callback: ProcessingTimeCallback, /) -> Cancellable:
        return self._clock.register_timer(timestamp, lambda at: callback(at) if self.is_on else None)

    def is_terminated(self) -> bool:
        return not self.is_on or self._clock.is_terminated()


class _ExpiryClock(RowClock):
    """The clock of state with a time to live, which is removed when it is next used."""

    def now(self, event_time: bool) -> int:
        return self.event_time() if event_time else self._timers.current_processing_time()

    def purge_at(self, time: int, key: Any, table: Any, event_time: bool) -> None:
        return None


class KeyedOperator:
    """Base of the operators with one and with two inputs: keys, states, timers and output."""

    def __init__(
        self,
        function: KeyedProcessFunction | KeyedCoProcessFunction,
        clock: ProcessingTimeService | None,
        max_parallelism: int,
        output: Callable[[StreamElement], object] | None,
        *methods: Callable[..., Any],
    ) -> None:
        compute_key_group_range_for_operator_index(max_parallelism, 1, 0)  # checks it
        self._calls = _Calls(function, methods)
        self._clock = ManualProcessingTimeService() if clock is None else clock
        self._lock: AbstractContextManager[object] = getattr(self._clock, "lock", None) or nullcontext()
        self._keys = _Keys()
        self._event, self._processing = _Timers(), _Timers()
        self._states = MemoryRuntimeContext(self._keys, max_parallelism)
        self._function = function
        self._alarm = _Alarm(self._clock)
        self._is_closed = False
        self._emitted: list[StreamElement] = []
        self._side_outputs: dict[OutputTag, list[StreamRecord[Any]]] = {}
        self._emit = self._emitted.append if output is None else output
        self.columns = RecordColumns([], 0, OutputTag)  # which take no record, so that `rows` gets all

    def open(self) -> Self:
        """Open the function and start the timers; a ``with`` statement does the same.

        Raises
        ------
        RuntimeError
            If the operator has been closed.
        """
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the operator is closed; create a new one")
            if not self._alarm.is_on:
                names, current = _Names(), self._keys.current
                event, processing = (
                    KeyTimers(timers, current, names) for timers in (self._event, self._processing)
                )
                self._service = service = _Service()
                service.bind_group(
                    event, processing, MIN_WATERMARK, self._clock.get_current_processing_time()
                )
                service.clock, service.pending = self._alarm, self._processing.heap
                service.wake_up = WakeUp(self._alarm, self._processing.first, self._fire_processing_time)
                self._context = context = _Context(service)
                context.send, context.function, context.names = self._send, self._function, names
                self._states.clock = _ExpiryClock(context)
                self._loop = RowLoop(
                    self._calls,
                    context,
                    service,
                    current,
                    TimeDomain.EVENT_TIME,
                    TimeDomain.PROCESSING_TIME,
                )
                self._function.open(self._states)
                self._alarm.is_on = True
        return self

    def close(self) -> None:
        """Close the function and stop the timers."""
        with self._lock:
            self._is_closed = True
            if self._alarm.is_on:
                self._alarm.is_on = False
                self._function.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *error: object) -> None:
        self.close()

    def set_processing_time(self, timestamp: int) -> list[StreamElement]:
        """Set a manual clock to `timestamp` and fire the due processing-time timers.

        Raises
        ------
        ArgumentTypeError
            If the clock is not a `ManualProcessingTimeService`.
        """
        if not isinstance(self._clock, ManualProcessingTimeService):
            raise ArgumentTypeError(
                f"clock must be a ManualProcessingTimeService to be set, got {self._clock!r}"
            )
        self._expect_open()
        self._clock.set_current_time(timestamp)
        return self._take()

    def num_event_time_timers(self) -> int:
        """Return the number of event-time timers of all keys; O(1)."""
        return len(self._event.heap)

    def num_processing_time_timers(self) -> int:
        """Return the number of processing-time timers of all keys; O(1)."""
        return len(self._processing.heap)

    def num_keyed_state_entries(self) -> int:
        """Return the number of values, lists and maps of all keys, for example to find state left behind."""
        return self._states.num_keyed_state_entries()

    def get_side_output(self, tag: OutputTag) -> list[StreamRecord[Any]]:
        """Return the records that the function has sent to a side output so far."""
        return list(self._side_outputs.get(tag, ()))

    def rows(self, returned: Any, method: str) -> None:
        """Emit the records that a method of the function has returned."""
        for result in records(method, returned):
            if is_tagged(result):
                self._send(*result)
            else:
                self._emit(StreamRecord(result, self._context.output_timestamp))

    def _process(
        self, input_: int, key_selector: Callable[[Any], Any], value: Any, timestamp: int | None
    ) -> list[StreamElement]:
        at = None if timestamp is None else np.array([int64("timestamp", timestamp)])
        with self._lock:
            self._expect_open()
            self._keys.forget(self._event.heap, self._processing.heap)
            key = _checked_key(key_selector(value), value)
            row = RowSource(_Element, _FIELDS, [[value], [key], [input_]], [1])
            self._begin()
            self._loop.process(row, np.array([self._keys.id_of(key)]), at)
            return self._take()

    def _begin(self) -> None:
        known = KnownKeys()  # none: a key is asked for when its timer fires
        self._loop.begin(self, known, known, self._keys.key)
        self._event.forget_changes()
        self._processing.forget_changes()

    def _fire_processing_time(self, timestamp: int) -> None:
        self._begin()
        self._loop.advance_clock(timestamp + 1)

    def _send(self, tag: OutputTag, value: Any) -> None:
        instance("tag", tag, OutputTag)
        record = StreamRecord(value, self._context.output_timestamp)
        self._side_outputs.setdefault(tag, []).append(record)

    def _advance(self, watermark: int) -> None:
        """Fire the due timers, then send the watermark downstream."""
        self._begin()
        self._loop.advance(watermark)
        self._emit(Watermark(watermark))

    def _expect_open(self) -> None:
        if not self._alarm.is_on:
            raise RuntimeError("the operator is not open; call open(), or use it in a with statement")

    def _take(self) -> list[StreamElement]:
        taken = self._emitted.copy()
        self._emitted.clear()
        return taken


def _checked_key(key: Any, value: Any) -> Any:
    try:
        hash(key)
    except TypeError:
        raise ArgumentTypeError(f"key must be hashable, got {key!r} from {value!r}") from None
    if key is None or key != key:
        raise ArgumentValueError(
            f"key must not be None and must be equal to itself, got {key!r} from {value!r}"
        )
    return key


class KeyedCoProcessOperator(KeyedOperator):
    """Runs a `KeyedCoProcessFunction` in this process, without Spark.

    Like `KeyedProcessOperator`, but with two inputs. Timers fire on the combined watermark, which is also
    sent downstream: the minimum of the watermarks of the two inputs, or the watermark of the active input if
    the other is idle.

    Parameters
    ----------
    function : KeyedCoProcessFunction
    key_selector1, key_selector2 : callable
        A function ``value -> key`` for each input.
    clock, max_parallelism, output
        As in `KeyedProcessOperator`.

    Notes
    -----
    Flink: ``KeyedCoProcessOperator``, ``IndexedCombinedWatermarkStatus`` and the methods of
    ``KeyedTwoInputStreamOperatorTestHarness``.

    Examples
    --------
    >>> from timerheap import Types, ValueStateDescriptor
    >>> class Enrich(KeyedCoProcessFunction):
    ...     def open(self, runtime_context):
    ...         self.model = runtime_context.get_state(ValueStateDescriptor("model", Types.STRING()))
    ...     def process_element1(self, value, ctx):
    ...         yield value["plane"], value["dest"], self.model.value()
    ...     def process_element2(self, value, ctx):
    ...         self.model.update(value["model"])
    >>> plane = lambda value: value["plane"]
    >>> with KeyedCoProcessOperator(Enrich(), plane, plane) as operator:
    ...     operator.process_element2({"plane": "N14228", "model": "737-824"})
    ...     operator.process_element1({"plane": "N14228", "dest": "IAH"}, timestamp=1_000)
    ...     operator.process_watermark1(2_000)
    ...     operator.process_watermark2(1_500)
    ...     operator.process_watermark_status2(WatermarkStatus.IDLE)
    []
    [StreamRecord(value=('N14228', 'IAH', '737-824'), timestamp=1000)]
    []
    [Watermark(timestamp=1500)]
    [Watermark(timestamp=2000)]
    """

    def __init__(
        self,
        function: KeyedCoProcessFunction,
        key_selector1: Callable[[Any], Any],
        key_selector2: Callable[[Any], Any],
        *,
        clock: ProcessingTimeService | None = None,
        max_parallelism: int = 128,
        output: Callable[[StreamElement], object] | None = None,
    ) -> None:
        instance("function", function, KeyedCoProcessFunction)
        super().__init__(
            function, clock, max_parallelism, output, function.process_element1, function.process_element2
        )
        self._key_selector1 = key_selector1
        self._key_selector2 = key_selector2
        self._inputs = CombinedWatermarkStatus(range(2))
        self._sent_watermark = self._inputs.combined_watermark

    def process_element1(self, value: Any, timestamp: int | None = None) -> list[StreamElement]:
        """Process an element of the first input; see `KeyedProcessOperator.process_element`."""
        return self._process(0, self._key_selector1, value, timestamp)

    def process_element2(self, value: Any, timestamp: int | None = None) -> list[StreamElement]:
        """Process an element of the second input; see `KeyedProcessOperator.process_element`."""
        return self._process(1, self._key_selector2, value, timestamp)

    def process_watermark1(self, watermark: int) -> list[StreamElement]:
        """Process a watermark of the first input.

        If the combined watermark rises, the due timers fire, and it is sent downstream.
        Raises as `KeyedProcessOperator.process_watermark`.
        """
        return self._process_watermark(0, watermark)

    def process_watermark2(self, watermark: int) -> list[StreamElement]:
        """Process a watermark of the second input; see `process_watermark1`."""
        return self._process_watermark(1, watermark)

    def process_watermark_status1(self, status: WatermarkStatus) -> list[StreamElement]:
        """Set the status of the first input, idle or active.

        The combined watermark may rise, as in `process_watermark1`. `status` is sent downstream when both
        inputs have become idle, and when one of them becomes active again.
        """
        return self._process_status(0, status)

    def process_watermark_status2(self, status: WatermarkStatus) -> list[StreamElement]:
        """Set the status of the second input; see `process_watermark_status1`."""
        return self._process_status(1, status)

    def _process_watermark(self, index: int, watermark: int) -> list[StreamElement]:
        with self._lock:
            self._expect_open()
            self._inputs.set_watermark(index, int64("watermark", watermark))
            self._advance_to_combined()
            return self._take()

    def _process_status(self, index: int, status: WatermarkStatus) -> list[StreamElement]:
        with self._lock:
            self._expect_open()
            was_idle = self._inputs.is_idle
            self._inputs.set_idle(index, instance("status", status, WatermarkStatus) is WatermarkStatus.IDLE)
            self._advance_to_combined()
            if self._inputs.is_idle != was_idle:
                self._emit(status)
            return self._take()

    def _advance_to_combined(self) -> None:
        """Advance if the combined watermark has risen, or if an exception stopped the last advance."""
        self._inputs.update_combined_watermark()
        watermark = self._inputs.combined_watermark
        if watermark > self._sent_watermark:
            self._advance(watermark)
            self._sent_watermark = watermark


class KeyedProcessOperator(KeyedOperator):
    """Runs a `KeyedProcessFunction` in this process, without Spark.

    Every call returns the elements emitted since the previous call, in order: a `StreamRecord` for each
    record that the function yields, and a `Watermark` after the records of the timers that it fires.

    Parameters
    ----------
    function : KeyedProcessFunction
    key_selector : callable
        A function ``value -> key``. A key must be hashable, equal to itself and not None.
    clock : ProcessingTimeService, optional
        By default a `ManualProcessingTimeService`, for `set_processing_time`. A `SystemProcessingTimeService`
        fires timers in its own thread and holds its ``lock``, which all methods of the operator acquire.
    max_parallelism : int, default 128
        The number of key groups, 1 to 32768.
    output : callable, optional
        Called with each element when it is emitted, in the thread that emits it; the methods then return
        empty lists. Needed with a clock that fires timers between calls.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If an argument is invalid.

    Notes
    -----
    Flink: ``KeyedProcessOperator``, and the methods of ``KeyedOneInputStreamOperatorTestHarness``. The loop
    that calls the function, its timer service and its states are those of `timerheap.spark.process`; state
    and timers are kept in memory.

    An exception of the function is raised with a note that names the key and the timestamp. Elements emitted
    before the exception are returned by the next call. If a timer raises an exception, the watermark is not
    sent downstream, and the remaining timers fire at the next one.

    Examples
    --------
    >>> from timerheap import KeyedProcessFunction
    >>> class Timeout(KeyedProcessFunction):
    ...     def process_element(self, value, ctx):
    ...         ctx.timer_service().register_event_time_timer(ctx.timestamp() + 60_000)
    ...     def on_timer(self, timestamp, ctx):
    ...         yield ctx.get_current_key(), "silent"
    >>> with KeyedProcessOperator(Timeout(), key_selector=lambda value: value["plane"]) as operator:
    ...     operator.process_element({"plane": "N14228"}, timestamp=1_000)
    ...     operator.process_watermark(60_999)
    ...     operator.process_watermark(61_000)
    []
    [Watermark(timestamp=60999)]
    [StreamRecord(value=('N14228', 'silent'), timestamp=61000), Watermark(timestamp=61000)]
    """

    def __init__(
        self,
        function: KeyedProcessFunction,
        key_selector: Callable[[Any], Any],
        *,
        clock: ProcessingTimeService | None = None,
        max_parallelism: int = 128,
        output: Callable[[StreamElement], object] | None = None,
    ) -> None:
        instance("function", function, KeyedProcessFunction)
        super().__init__(function, clock, max_parallelism, output, function.process_element)
        self._key_selector = key_selector

    def process_element(self, value: Any, timestamp: int | None = None) -> list[StreamElement]:
        """Process an element.

        Parameters
        ----------
        value : object
        timestamp : int, optional
            The event time of the element, epoch milliseconds, which ``ctx.timestamp()`` returns.

        Raises
        ------
        ArgumentTypeError, ArgumentRangeError, ArgumentValueError
            If `timestamp` is not an int64, or the key is invalid. The function is not called then.
        RuntimeError
            If the operator is not open.
        Exception
            The exception of the function.
        """
        return self._process(0, self._key_selector, value, timestamp)

    def process_watermark(self, watermark: int) -> list[StreamElement]:
        """Fire the event-time timers with timestamp <= `watermark`, then send the watermark downstream.

        Raises
        ------
        ArgumentTypeError, ArgumentRangeError
            If `watermark` is not an int64.
        RuntimeError
            If the operator is not open.
        Exception
            The exception of the function.
        """
        with self._lock:
            self._expect_open()
            self._advance(int64("watermark", watermark))
            return self._take()

    def process_watermark_status(self, status: WatermarkStatus) -> list[StreamElement]:
        """Send the status of the input, idle or active, downstream."""
        with self._lock:
            self._expect_open()
            self._emit(instance("status", status, WatermarkStatus))
            return self._take()
