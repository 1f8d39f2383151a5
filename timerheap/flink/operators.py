"""Operators that run process functions in this process, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any, Self

from timerheap._arguments import instance, int64
from timerheap._contents import DictEntries, KeyContext, RowClock, WholeMaps
from timerheap._moments import epoch_millis
from timerheap._values import records
from timerheap.flink.internal_timer_service import InternalTimerService
from timerheap.flink.memory_states import MemoryRuntimeContext
from timerheap.flink.processing_time import (
    Cancellable,
    ManualProcessingTimeService,
    ProcessingTimeCallback,
    ProcessingTimeService,
)
from timerheap.flink.timer_queue import InternalTimer, KeyedTimerQueue, TimerQueue
from timerheap.flink.valves import CombinedWatermarkStatus
from timerheap.functions import KeyedCoProcessFunction, KeyedProcessFunction, TimerService
from timerheap.output_tag import OutputTag, is_tagged
from timerheap.time import TimeDomain
from timerheap.timer import MAX_WATERMARK
from timerheap.watermarks.output import StreamRecord, Watermark, WatermarkStatus

StreamElement = StreamRecord[Any] | Watermark | WatermarkStatus
"""An element that an operator sends downstream."""


class SimpleTimerService(TimerService):
    """The timers of the current key in an internal timer service, like Flink's ``SimpleTimerService``.

    The namespace of a timer is its name, or None. To list the timers of a key, all are scanned.
    """

    def __init__(self, internal_timer_service: InternalTimerService[Any, Any]) -> None:
        internal = internal_timer_service
        self._internal = internal
        self._event = _Timers(internal, internal.event_time_timers, internal.register_event_time_timer)
        self._processing = _Timers(
            internal, internal.processing_time_timers, internal.register_processing_time_timer
        )

    def current_processing_time(self) -> int:
        return self._internal.current_processing_time()

    def current_watermark(self) -> int:
        return self._internal.current_watermark()

    def register_event_time_timer(self, timestamp: int | datetime, *, name: str | None = None) -> None:
        self._event.register(timestamp, name)

    def register_processing_time_timer(self, timestamp: int | datetime, *, name: str | None = None) -> None:
        self._processing.register(timestamp, name)

    def delete_event_time_timer(
        self, timestamp: int | datetime | None = None, *, name: str | None = None
    ) -> None:
        self._event.delete(timestamp, name)

    def delete_processing_time_timer(
        self, timestamp: int | datetime | None = None, *, name: str | None = None
    ) -> None:
        self._processing.delete(timestamp, name)

    def event_time_timers(self) -> list[int]:
        return self._event.timestamps()

    def processing_time_timers(self) -> list[int]:
        return self._processing.timestamps()

    def next_event_time_timer(self, *, name: str | None = None) -> int | None:
        return self._event.next(name)

    def next_processing_time_timer(self, *, name: str | None = None) -> int | None:
        return self._processing.next(name)

    def delete_all_timers(self) -> int:
        return self._event.delete_all() + self._processing.delete_all()

    def forget(self, domain: TimeDomain, timer: InternalTimer[Any, Any]) -> None:
        """Record that a timer has fired."""
        (self._event if domain is TimeDomain.EVENT_TIME else self._processing).forget(timer)


class _Timers:
    """The timers of one time domain, and the times of those with a name, of which a key has one each."""

    def __init__(
        self,
        internal: InternalTimerService[Any, Any],
        queue: KeyedTimerQueue[Any, Any],
        register: Callable[[Any, int], None],
    ) -> None:
        self._keys = internal.key_context
        self._queue = queue
        self._register = register
        self._times = WholeMaps(DictEntries())  # from names, by key
        for timestamp, key, name in queue:
            if name is not None:
                self._times.put(key, {name: timestamp})

    def register(self, timestamp: int | datetime, name: str | None) -> None:
        time, key = epoch_millis("timestamp", timestamp), self._keys.current_key
        before = None if name is None else self._time_of(name)
        self._register(name, time)
        if before is not None and before != time:
            self._queue.remove((before, key, name))
        if name is not None:
            self._times.put(key, {name: time})

    def delete(self, timestamp: int | datetime | None, name: str | None) -> None:
        time, key = epoch_millis("timestamp", timestamp), self._keys.current_key
        if name is not None:
            if time is not None:
                raise TypeError(
                    f"timestamp must be left out for the timer with the name {name!r}, got {timestamp!r}"
                )
            time = self._time_of(name)
            if time is None:
                return
            self._times.remove(key, name)
        self._queue.remove((time, key, name))

    def _time_of(self, name: str) -> int | None:
        instance("name", name, str)
        return self._times.find(self._keys.current_key, name)[1]

    def forget(self, timer: InternalTimer[Any, Any]) -> None:
        self._times.remove(timer.key, timer.namespace)

    def next(self, name: str | None) -> int | None:
        return next(iter(self.timestamps()), None) if name is None else self._time_of(name)

    def timestamps(self) -> list[int]:
        return [timer.timestamp for timer in self._queue.timers_of_key(self._keys.current_key)]

    def delete_all(self) -> int:
        key = self._keys.current_key
        self._times.remove_all(key)
        return self._queue.remove_keys([key])


class FunctionContext(KeyedCoProcessFunction.OnTimerContext):
    """One object for all calls, as in PyFlink; whoever calls the function sets its attributes first."""

    def __init__(
        self, keys: KeyContext[Any], timers: TimerService, send: Callable[[OutputTag, Any], None]
    ) -> None:
        self.at: int | None = None  # the timestamp of the element or timer
        self.output_timestamp: int | None = None  # of the records that are emitted next
        self.domain = TimeDomain.EVENT_TIME  # of the timer, as its name
        self.name: str | None = None
        self._keys = keys
        self._timers = timers
        self._send = send

    def get_current_key(self) -> Any:
        return self._keys.current_key

    def timestamp(self) -> int:
        return self.at  # type: ignore[return-value]  # None without a timestamp, as in PyFlink

    def timer_service(self) -> TimerService:
        return self._timers

    def time_domain(self) -> TimeDomain:
        return self.domain

    def timer_name(self) -> str | None:
        return self.name

    def input_has_ended(self) -> bool:
        return self._timers.current_watermark() == MAX_WATERMARK

    def set_output_timestamp(self, timestamp: int | None) -> None:
        self.output_timestamp = None if timestamp is None else int64("timestamp", timestamp)

    def output(self, tag: OutputTag, value: Any) -> None:
        self._send(tag, value)


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
        event_time_timers: KeyedTimerQueue[Any, str | None] | None,
        processing_time_timers: KeyedTimerQueue[Any, str | None] | None,
    ) -> None:
        self._clock = ManualProcessingTimeService() if clock is None else clock
        self._lock: AbstractContextManager[object] = getattr(self._clock, "lock", None) or nullcontext()
        self._event_time_timers, self._processing_time_timers = (
            TimerQueue[Any, str | None](max_parallelism) if timers is None else timers
            for timers in (event_time_timers, processing_time_timers)
        )
        self._keys: KeyContext[Any] = KeyContext()
        self._states = MemoryRuntimeContext(self._keys, max_parallelism)
        self._function = function
        self._alarm = _Alarm(self._clock)
        self._is_closed = False
        self._emitted: list[StreamElement] = []
        self._side_outputs: dict[OutputTag, list[StreamRecord[Any]]] = {}
        self._emit = self._emitted.append if output is None else output

    def open(self) -> Self:
        """Open the function and start the timers; a ``with`` statement does the same.

        Raises
        ------
        RuntimeError
            If the operator has been closed. A new operator may use its queues.
        """
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the operator is closed; create a new one")
            if not self._alarm.is_on:
                self._service: InternalTimerService[Any, str | None] = InternalTimerService(
                    self,
                    self._alarm,
                    self._keys,
                    event_time_timers=self._event_time_timers,
                    processing_time_timers=self._processing_time_timers,
                )
                self._timers = SimpleTimerService(self._service)
                self._context = FunctionContext(self._keys, self._timers, self._send)
                self._states.clock = _ExpiryClock(self._context)
                self._function.open(self._states)
                self._alarm.is_on = True
        return self

    def close(self) -> None:
        """Close the function and stop the timers, which remain in their queues."""
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
        TypeError
            If the clock is not a `ManualProcessingTimeService`.
        """
        if not isinstance(self._clock, ManualProcessingTimeService):
            raise TypeError(f"clock must be a ManualProcessingTimeService to be set, got {self._clock!r}")
        self._expect_open()
        self._clock.set_current_time(timestamp)
        return self._take()

    def num_event_time_timers(self) -> int:
        """Return the number of event-time timers of all keys; O(1)."""
        return len(self._event_time_timers)

    def num_processing_time_timers(self) -> int:
        """Return the number of processing-time timers of all keys; O(1)."""
        return len(self._processing_time_timers)

    def num_keyed_state_entries(self) -> int:
        """Return the number of values, lists and maps of all keys, for example to find state left behind."""
        return self._states.num_keyed_state_entries()

    def get_side_output(self, tag: OutputTag) -> list[StreamRecord[Any]]:
        """Return the records that the function has sent to a side output so far."""
        return list(self._side_outputs.get(tag, ()))

    # The methods of `timerheap.flink.internal_timer_service.Triggerable`:

    def on_event_time(self, timer: InternalTimer[Any, str | None]) -> None:
        """Call the function with a timer that the watermark has reached."""
        self._on_timer(TimeDomain.EVENT_TIME, timer, timer.timestamp)

    def on_processing_time(self, timer: InternalTimer[Any, str | None]) -> None:
        """Call the function with a timer whose time has passed."""
        self._on_timer(TimeDomain.PROCESSING_TIME, timer, None)

    def _on_timer(
        self, domain: TimeDomain, timer: InternalTimer[Any, str | None], output_timestamp: int | None
    ) -> None:
        self._timers.forget(domain, timer)
        self._context.domain, self._context.name = domain, timer.namespace
        self._call(self._function.on_timer, timer.timestamp, timer.timestamp, output_timestamp)

    def _process(
        self,
        call: Callable[..., Iterable[Any] | None],
        key_selector: Callable[[Any], Any],
        value: Any,
        timestamp: int | None,
    ) -> list[StreamElement]:
        at = None if timestamp is None else int64("timestamp", timestamp)
        with self._lock:
            self._expect_open()
            self._keys.current_key = _checked_key(key_selector(value), value)
            self._context.domain, self._context.name = TimeDomain.EVENT_TIME, None
            self._call(call, value, at, at)
            return self._take()

    def _call(
        self,
        call: Callable[..., Iterable[Any] | None],
        argument: Any,
        timestamp: int | None,
        output_timestamp: int | None,
    ) -> None:
        context = self._context
        context.at = timestamp
        context.output_timestamp = output_timestamp
        try:
            for result in records(call.__name__, call(argument, context)):
                if is_tagged(result):
                    self._send(*result)
                else:
                    self._emit(StreamRecord(result, context.output_timestamp))
        except Exception as e:
            e.add_note(
                f"timerheap: in {call.__name__}, key {context.get_current_key()!r}, timestamp {timestamp}"
            )
            raise

    def _send(self, tag: OutputTag, value: Any) -> None:
        instance("tag", tag, OutputTag)
        record = StreamRecord(value, self._context.output_timestamp)
        self._side_outputs.setdefault(tag, []).append(record)

    def _advance(self, watermark: int) -> None:
        """Fire the due timers, then send the watermark downstream."""
        self._service.advance_watermark(watermark)
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
        raise TypeError(f"key must be hashable, got {key!r} from {value!r}") from None
    if key is None or key != key:
        raise ValueError(f"key must not be None and must be equal to itself, got {key!r} from {value!r}")
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
    clock, max_parallelism, output, event_time_timers, processing_time_timers
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
        event_time_timers: KeyedTimerQueue[Any, str | None] | None = None,
        processing_time_timers: KeyedTimerQueue[Any, str | None] | None = None,
    ) -> None:
        instance("function", function, KeyedCoProcessFunction)
        super().__init__(function, clock, max_parallelism, output, event_time_timers, processing_time_timers)
        self._process_element1 = function.process_element1
        self._process_element2 = function.process_element2
        self._key_selector1 = key_selector1
        self._key_selector2 = key_selector2
        self._inputs = CombinedWatermarkStatus(range(2))
        self._sent_watermark = self._inputs.combined_watermark

    def process_element1(self, value: Any, timestamp: int | None = None) -> list[StreamElement]:
        """Process an element of the first input; see `KeyedProcessOperator.process_element`."""
        return self._process(self._process_element1, self._key_selector1, value, timestamp)

    def process_element2(self, value: Any, timestamp: int | None = None) -> list[StreamElement]:
        """Process an element of the second input; see `KeyedProcessOperator.process_element`."""
        return self._process(self._process_element2, self._key_selector2, value, timestamp)

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
        A function ``value -> key``. A key must be hashable, equal to itself and not None. For timers, the
        timer queue must support it.
    clock : ProcessingTimeService, optional
        By default a `ManualProcessingTimeService`, for `set_processing_time`. A `SystemProcessingTimeService`
        fires timers in its own thread and holds its ``lock``, which all methods of the operator acquire.
    max_parallelism : int, default 128
        The number of key groups, 1 to 32768.
    output : callable, optional
        Called with each element when it is emitted, in the thread that emits it; the methods then return
        empty lists. Needed with a clock that fires timers between calls.
    event_time_timers, processing_time_timers : KeyedTimerQueue, optional
        The queues of the timers; by default two new ones, ``TimerQueue(max_parallelism)``. Timers that a
        queue already holds belong to the operator. The namespace of a timer is its name, or None.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.

    Notes
    -----
    Flink: ``KeyedProcessOperator`` over ``InternalTimerServiceImpl``, and the methods of
    ``KeyedOneInputStreamOperatorTestHarness``. State is kept in memory, with the checks of state on
    Spark.

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
        event_time_timers: KeyedTimerQueue[Any, str | None] | None = None,
        processing_time_timers: KeyedTimerQueue[Any, str | None] | None = None,
    ) -> None:
        instance("function", function, KeyedProcessFunction)
        super().__init__(function, clock, max_parallelism, output, event_time_timers, processing_time_timers)
        self._process_element = function.process_element
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
        TypeError, OverflowError, ValueError
            If `timestamp` is not an int64, or the key is invalid. The function is not called then.
        RuntimeError
            If the operator is not open.
        Exception
            The exception of the function.
        """
        return self._process(self._process_element, self._key_selector, value, timestamp)

    def process_watermark(self, watermark: int) -> list[StreamElement]:
        """Fire the event-time timers with timestamp <= `watermark`, then send the watermark downstream.

        Raises
        ------
        TypeError, OverflowError
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
