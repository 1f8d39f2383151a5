"""The base of keyed operators: keys, states, timers and output."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Self

from timerheap._arguments import int64
from timerheap._returned import records
from timerheap.flink.elements import StreamRecord, Watermark
from timerheap.flink.internal_timer import InternalTimer, KeyedTimerQueue
from timerheap.flink.internal_timer_service import InternalTimerService, KeyContext
from timerheap.flink.manual_processing_time import ManualProcessingTimeService
from timerheap.flink.operators.function_context import FunctionContext
from timerheap.flink.operators.memory_state import MemoryRuntimeContext
from timerheap.flink.processing_time import (
    Cancellable,
    ProcessingTimeCallback,
    ProcessingTimeService,
)
from timerheap.flink.simple_timer_service import SimpleTimerService
from timerheap.flink.timer_queue import TimerQueue
from timerheap.functions import KeyedCoProcessFunction, KeyedProcessFunction
from timerheap.output_tag import OutputTag, is_tagged
from timerheap.time import TimeDomain
from timerheap.timer import MIN_WATERMARK
from timerheap.watermarks.output import WatermarkStatus

__all__ = ["KeyedOperator", "StreamElement", "checked_selector", "checked_status"]

StreamElement = StreamRecord[Any] | Watermark | WatermarkStatus
"""An element that an operator sends downstream."""


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


class _ExpiryClock:
    """The clock of state with a time to live, which is removed when it is next used."""

    def __init__(self, context: FunctionContext) -> None:
        self._context = context

    def now(self, event_time: bool) -> int:
        timers = self._context.timers
        if not event_time:
            return timers.current_processing_time()
        at = self._context.at if self._context.domain is TimeDomain.EVENT_TIME else None
        return max(timers.current_watermark(), MIN_WATERMARK if at is None else at)

    def is_purged(self, time: int, event_time: bool) -> bool:
        return False

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
        event_time_timers: KeyedTimerQueue[Any, None] | None,
        processing_time_timers: KeyedTimerQueue[Any, None] | None,
    ) -> None:
        if output is not None and not callable(output):
            raise TypeError(f"output must be callable, got {output!r}")
        self._clock = ManualProcessingTimeService() if clock is None else clock
        self._lock: AbstractContextManager[object] = getattr(self._clock, "lock", None) or nullcontext()
        self._event_time_timers, self._processing_time_timers = (
            TimerQueue[Any, None](max_parallelism) if timers is None else timers
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
                self._service: InternalTimerService[Any, None] = InternalTimerService(
                    self,
                    self._alarm,
                    self._keys,
                    event_time_timers=self._event_time_timers,
                    processing_time_timers=self._processing_time_timers,
                )
                self._context = FunctionContext()
                self._context.timers = SimpleTimerService(self._service)
                self._context.send = self._send
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

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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

    def on_event_time(self, timer: InternalTimer[Any, None]) -> None:
        """Call the function with a timer that the watermark has reached."""
        self._context.domain = TimeDomain.EVENT_TIME
        self._call(self._function.on_timer, timer.timestamp, timer.timestamp, timer.timestamp)

    def on_processing_time(self, timer: InternalTimer[Any, None]) -> None:
        """Call the function with a timer whose time has passed."""
        self._context.domain = TimeDomain.PROCESSING_TIME
        self._call(self._function.on_timer, timer.timestamp, timer.timestamp, None)

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
        context.key = self._keys.current_key
        context.at = timestamp
        context.output_timestamp = output_timestamp
        try:
            for result in records(call.__name__, call(argument, context)):
                if is_tagged(result):
                    self._send(*result)
                else:
                    self._emit(StreamRecord(result, context.output_timestamp))
        except Exception as e:
            e.add_note(f"timerheap: in {call.__name__}, key {context.key!r}, timestamp {timestamp}")
            raise

    def _send(self, tag: OutputTag, value: Any) -> None:
        if not isinstance(tag, OutputTag):
            raise TypeError(f"tag must be an OutputTag, got {tag!r}")
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


def checked_selector(name: str, selector: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `selector` if it is callable; otherwise raise a TypeError that names the argument."""
    if not callable(selector):
        raise TypeError(f"{name} must be a callable (value) -> key, got {selector!r}")
    return selector


def _checked_key(key: Any, value: Any) -> Any:
    try:
        hash(key)
    except TypeError:
        raise TypeError(f"key must be hashable, got {key!r} from {value!r}") from None
    if key is None or key != key:
        raise ValueError(f"key must not be None and must be equal to itself, got {key!r} from {value!r}")
    return key


def checked_status(status: WatermarkStatus) -> WatermarkStatus:
    """Return `status` if it is a WatermarkStatus; otherwise raise a TypeError."""
    if not isinstance(status, WatermarkStatus):
        raise TypeError(f"status must be a WatermarkStatus, got {status!r}")
    return status
