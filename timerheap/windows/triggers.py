"""Flink's triggers, which decide when a window emits its result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import datetime
from enum import Enum
from operator import add
from typing import Any, ClassVar, Self

from timerheap._arguments import Length, instance, not_negative, positive, positive_int
from timerheap.errors import UnsupportedError
from timerheap.state import ReducingStateDescriptor, StateDescriptor, ValueStateDescriptor
from timerheap.types import Types, _Subscripted
from timerheap.windows.window_functions import Delta, checked_delta, distance


class TriggerResult(Enum):
    """The action of a trigger on a window (``pyflink.datastream.window.TriggerResult``).

    FIRE emits the result of the window, PURGE deletes its contents, FIRE_AND_PURGE does both in this order,
    and CONTINUE does nothing. An empty window has no result.
    """

    CONTINUE = (False, False)
    FIRE_AND_PURGE = (True, True)
    FIRE = (True, False)
    PURGE = (False, True)

    def is_fire(self) -> bool:
        """Return whether the window emits its result."""
        return self.value[0]

    def is_purge(self) -> bool:
        """Return whether the contents of the window are deleted."""
        return self.value[1]


class Trigger(_Subscripted, ABC):
    """Decides for each key and window when it fires (``pyflink.datastream.window.Trigger``).

    A subclass keeps its parameters in ``self`` and its state in ``ctx.get_partitioned_state(descriptor)``.
    The methods for elements and timers return a `TriggerResult`.

    Examples
    --------
    Fire at every tenth element and at the end of the window:

    >>> from timerheap import ValueStateDescriptor
    >>> class EachTenth(EventTimeTrigger):
    ...     seen = ValueStateDescriptor("seen", Types.LONG())
    ...     def on_element(self, element, timestamp, window, ctx):
    ...         seen = ctx.get_partitioned_state(self.seen)
    ...         seen.update((seen.value() or 0) + 1)
    ...         result = super().on_element(element, timestamp, window, ctx)
    ...         return result if seen.value() % 10 else TriggerResult.FIRE
    ...     def clear(self, window, ctx):
    ...         super().clear(window, ctx)
    ...         ctx.get_partitioned_state(self.seen).clear()
    ...     def can_merge(self):
    ...         return False
    """

    class TriggerContext(_Subscripted, ABC):
        """Context of a trigger, with the timers and the state of one key and one window."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """Return the processing time, epoch ms."""

        @abstractmethod
        def get_current_watermark(self) -> int:
            """Return the watermark, epoch ms."""

        @abstractmethod
        def register_processing_time_timer(self, time: int | datetime) -> None:
            """Register a timer that calls `Trigger.on_processing_time` after `time`, epoch ms."""

        @abstractmethod
        def register_event_time_timer(self, time: int | datetime) -> None:
            """Register a timer that calls `Trigger.on_event_time` when the watermark reaches `time`."""

        @abstractmethod
        def delete_processing_time_timer(self, time: int | datetime) -> None:
            """Delete the processing-time timer of the window, if there is one."""

        @abstractmethod
        def delete_event_time_timer(self, time: int | datetime) -> None:
            """Delete the event-time timer of the window, if there is one."""

        @abstractmethod
        def get_partitioned_state(self, state_descriptor: StateDescriptor) -> Any:
            """Return the value, list, map or reducing state of the window that the descriptor describes."""

    class OnMergeContext(TriggerContext, ABC):
        """Context of `Trigger.on_merge`."""

        @abstractmethod
        def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
            """Merge the reducing or list states of the merged windows into that of the new window."""

    @abstractmethod
    def on_element(
        self, element: Any, timestamp: int, window: Any, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """Handle a new element of the window; `timestamp` is its event time, or None."""

    @abstractmethod
    def on_processing_time(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Handle a processing-time timer of the window; `time` is the time it was registered for."""

    @abstractmethod
    def on_event_time(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Handle an event-time timer of the window; `time` is the time it was registered for."""

    def can_merge(self) -> bool:
        """Return whether the trigger implements `on_merge`, which session windows need."""
        return False

    def on_merge(self, window: Any, ctx: Trigger.OnMergeContext) -> None:
        """Merge the state of the merged windows, and register the timers of the new `window`."""
        raise UnsupportedError(
            f"{type(self).__name__} must have on_merge(), because its can_merge() returns True"
        )

    @abstractmethod
    def clear(self, window: Any, ctx: Trigger.TriggerContext) -> None:
        """Delete the timers and clear the state of the window, which ends."""


TriggerContext = Trigger.TriggerContext


class QuietTrigger(Trigger):
    """Base of triggers whose methods do nothing unless overridden."""

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: Trigger.OnMergeContext) -> None:
        """See `Trigger.on_merge`."""

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        """See `Trigger.clear`."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class NeverTrigger(QuietTrigger):
    """Never fires; the default trigger of `GlobalWindows`."""


class EndOfStreamTrigger(QuietTrigger):
    """Fires at the end of the input; see ``GlobalWindows.create_with_end_of_stream_trigger()``."""

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        ctx.register_event_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE


class EventTimeTrigger(QuietTrigger):
    """Fires when the watermark reaches the end of the window, and at every later element."""

    @staticmethod
    def create() -> EventTimeTrigger:
        """Return a new trigger."""
        return EventTimeTrigger()

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, ctx: Trigger.OnMergeContext) -> None:
        if window.max_timestamp() > ctx.get_current_watermark():  # otherwise on_element() fires
            ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        ctx.delete_event_time_timer(window.max_timestamp())


class ProcessingTimeTrigger(QuietTrigger):
    """Fires when processing time passes the end of the window."""

    @staticmethod
    def create() -> ProcessingTimeTrigger:
        """Return a new trigger."""
        return ProcessingTimeTrigger()

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        ctx.register_processing_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, ctx: Trigger.OnMergeContext) -> None:
        if window.max_timestamp() > ctx.get_current_processing_time():
            ctx.register_processing_time_timer(window.max_timestamp())

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        ctx.delete_processing_time_timer(window.max_timestamp())


class CountTrigger(QuietTrigger):
    """Fires after every `window_size` elements of a window, but not at the end of the window.

    Parameters
    ----------
    window_size : int
        Number of elements, 1 or more.
    """

    _count = ReducingStateDescriptor("count", add, Types.LONG())

    def __init__(self, window_size: int) -> None:
        self.window_size = positive_int("window_size", window_size)

    @staticmethod
    def of(window_size: int) -> CountTrigger:
        """Return a new trigger."""
        return CountTrigger(window_size)

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        count = ctx.get_partitioned_state(self._count)
        count.add(1)
        if count.get() < self.window_size:
            return TriggerResult.CONTINUE
        count.clear()
        return TriggerResult.FIRE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, ctx: Trigger.OnMergeContext) -> None:
        ctx.merge_partitioned_state(self._count)

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        ctx.get_partitioned_state(self._count).clear()

    def __repr__(self) -> str:
        return f"CountTrigger({self.window_size})"


class DeltaTrigger(QuietTrigger):
    """Fires when the distance of an element from the last one that fired exceeds a threshold.

    Before the first firing, the distance is measured from the first element.

    Parameters
    ----------
    threshold : float
    delta_function : DeltaFunction or callable
        ``(old_data_point, new_data_point) -> delta``.
    type_info : optional
        The type of an element, because the trigger keeps one in state: a ``Types.*``, a DDL string, a Spark
        or a pyarrow type. The default is the operator's `element_type`, which an AggregateFunction without an
        evictor does not have.

    Examples
    --------
    The top speed of the last ten seconds, every 50 metres, as in Flink's ``TopSpeedWindowing``:

    >>> from timerheap.windows import GlobalWindows, TimeEvictor
    >>> top_speed = dict(
    ...     assigner=GlobalWindows.create(),
    ...     trigger=DeltaTrigger.of(50, lambda old, new: new["metres"] - old["metres"]),
    ...     evictor=TimeEvictor.of(10_000),
    ... )
    """

    def __init__(self, threshold: float, delta_function: Delta, type_info: object = None) -> None:
        self.threshold, self.delta_function = checked_delta(threshold, delta_function)
        self._last = ValueStateDescriptor("last-element", type_info)

    @staticmethod
    def of(threshold: float, delta_function: Delta, type_info: object = None) -> DeltaTrigger:
        """Return a new trigger."""
        return DeltaTrigger(threshold, delta_function, type_info)

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        state = ctx.get_partitioned_state(self._last)
        last = state.value()
        if last is None:
            state.update(element)
        elif distance(self.delta_function, last, element) > self.threshold:
            state.update(element)
            return TriggerResult.FIRE
        return TriggerResult.CONTINUE

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        ctx.get_partitioned_state(self._last).clear()

    def __repr__(self) -> str:
        return f"DeltaTrigger({self.threshold}, {self.delta_function!r})"


class PurgingTrigger(Trigger):
    """Fires when another trigger fires, and then deletes the contents of the window."""

    def __init__(self, nested_trigger: Trigger) -> None:
        self.nested_trigger: Trigger = instance("nested_trigger", nested_trigger, Trigger)

    @staticmethod
    def of(nested_trigger: Trigger) -> PurgingTrigger:
        """Return a new trigger."""
        return PurgingTrigger(nested_trigger)

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return _purging(self.nested_trigger.on_element(element, timestamp, window, ctx))

    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return _purging(self.nested_trigger.on_processing_time(time, window, ctx))

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return _purging(self.nested_trigger.on_event_time(time, window, ctx))

    def can_merge(self) -> bool:
        return self.nested_trigger.can_merge()

    def on_merge(self, window: Any, ctx: Trigger.OnMergeContext) -> None:
        self.nested_trigger.on_merge(window, ctx)

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        self.nested_trigger.clear(window, ctx)

    def __repr__(self) -> str:
        return f"PurgingTrigger({self.nested_trigger!r})"


def _purging(result: TriggerResult) -> TriggerResult:
    return TriggerResult.FIRE_AND_PURGE if result.is_fire() else result


class _Continuous(QuietTrigger):
    """Base of the continuous triggers: keeps the next time to fire in state and registers its timer."""

    _fire_time = ReducingStateDescriptor("fire-time", min, Types.LONG())
    _event_time: ClassVar[bool]

    def __init__(self, interval: Length) -> None:
        self.interval = positive("interval", interval)

    @classmethod
    def of(cls, interval: Length) -> Self:
        """Return a new trigger."""
        return cls(interval)

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, ctx: Trigger.OnMergeContext) -> None:
        ctx.merge_partitioned_state(self._fire_time)
        next_time = ctx.get_partitioned_state(self._fire_time).get()
        if next_time is not None:
            self._register(next_time, ctx)

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        state = ctx.get_partitioned_state(self._fire_time)
        next_time = state.get()
        if next_time is not None:
            self._delete(next_time, ctx)
            state.clear()

    def _start(self, time: int, window: Any, ctx: TriggerContext) -> None:
        """Schedule a firing at the next multiple of the interval, unless one is already scheduled."""
        if ctx.get_partitioned_state(self._fire_time).get() is None:
            # Java's % rounds toward zero, so the previous multiple is the one nearer to 1970.
            before = time - (time % self.interval if time >= 0 else -(-time % self.interval))
            self._next(before, window, ctx)

    def _register(self, time: int, ctx: TriggerContext) -> None:
        if self._event_time:
            ctx.register_event_time_timer(time)
        else:
            ctx.register_processing_time_timer(time)

    def _delete(self, time: int, ctx: TriggerContext) -> None:
        if self._event_time:
            ctx.delete_event_time_timer(time)
        else:
            ctx.delete_processing_time_timer(time)

    def _next(self, time: int, window: Any, ctx: TriggerContext) -> None:
        next_time = min(time + self.interval, window.max_timestamp())
        ctx.get_partitioned_state(self._fire_time).add(next_time)
        self._register(next_time, ctx)

    def _on_timer(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        if time == window.max_timestamp():
            return TriggerResult.FIRE
        state = ctx.get_partitioned_state(self._fire_time)
        if state.get() != time:
            return TriggerResult.CONTINUE
        state.clear()
        self._next(time, window, ctx)
        return TriggerResult.FIRE

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.interval})"


class ContinuousEventTimeTrigger(_Continuous):
    """Fires early results each time the watermark passes an interval, and the result at the window's end.

    If one watermark passes several multiples of the interval, the trigger fires once for each of them.

    Parameters
    ----------
    interval : int, timedelta or str
        In ms, more than 0.
    """

    _event_time = True

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        self._start(timestamp, window, ctx)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return self._on_timer(time, window, ctx)


class ContinuousProcessingTimeTrigger(_Continuous):
    """Fires early results at every interval of processing time, and the result at the window's end.

    Parameters
    ----------
    interval : int, timedelta or str
        In ms, more than 0.
    """

    _event_time = False

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        self._start(ctx.get_current_processing_time(), window, ctx)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return self._on_timer(time, window, ctx)


class ProcessingTimeoutTrigger(Trigger):
    """Fires when another trigger fires, or when a timeout after the first element expires before that.

    As in Flink, the trigger fires at any timer of the window, including those of the nested trigger.

    Parameters
    ----------
    nested_trigger : Trigger
    timeout : int, timedelta or str
        In ms of processing time.
    reset_timer_on_new_record : bool, default False
        Whether each element restarts the timeout.
    should_clear_on_timeout : bool, default True
        Whether the state of the nested trigger is cleared when the timeout expires.

    Examples
    --------
    Batches of three rows, or of the rows that arrive within a minute of the first:

    >>> from timerheap.windows import CountTrigger, GlobalWindows, PurgingTrigger
    >>> batches = dict(
    ...     assigner=GlobalWindows.create(),
    ...     trigger=PurgingTrigger.of(ProcessingTimeoutTrigger.of(CountTrigger.of(3), 60_000)),
    ... )
    """

    _timeout = ValueStateDescriptor("timeout", Types.LONG())

    def __init__(
        self,
        nested_trigger: Trigger,
        timeout: Length,
        reset_timer_on_new_record: bool = False,
        should_clear_on_timeout: bool = True,
    ) -> None:
        self.nested_trigger: Trigger = instance("nested_trigger", nested_trigger, Trigger)
        self.timeout = not_negative("timeout", timeout)
        self.reset_timer_on_new_record = reset_timer_on_new_record
        self.should_clear_on_timeout = should_clear_on_timeout

    @staticmethod
    def of(
        nested_trigger: Trigger,
        timeout: Length,
        reset_timer_on_new_record: bool = False,
        should_clear_on_timeout: bool = True,
    ) -> ProcessingTimeoutTrigger:
        """Return a new trigger."""
        return ProcessingTimeoutTrigger(
            nested_trigger, timeout, reset_timer_on_new_record, should_clear_on_timeout
        )

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        result = self.nested_trigger.on_element(element, timestamp, window, ctx)
        if result.is_fire():
            self.clear(window, ctx)
            return result
        state = ctx.get_partitioned_state(self._timeout)
        waits_until = state.value()
        if waits_until is not None and self.reset_timer_on_new_record:
            ctx.delete_processing_time_timer(waits_until)
            waits_until = None
        if waits_until is None:
            waits_until = ctx.get_current_processing_time() + self.timeout
            state.update(waits_until)
            ctx.register_processing_time_timer(waits_until)
        return result

    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return self._fire(self.nested_trigger.on_processing_time(time, window, ctx), window, ctx)

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return self._fire(self.nested_trigger.on_event_time(time, window, ctx), window, ctx)

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        state = ctx.get_partitioned_state(self._timeout)
        waits_until = state.value()
        if waits_until is not None:
            ctx.delete_processing_time_timer(waits_until)
            state.clear()
        self.nested_trigger.clear(window, ctx)

    def _fire(self, nested: TriggerResult, window: Any, ctx: TriggerContext) -> TriggerResult:
        if self.should_clear_on_timeout:
            self.clear(window, ctx)
        return TriggerResult.FIRE_AND_PURGE if nested.is_purge() else TriggerResult.FIRE

    def __repr__(self) -> str:
        return f"ProcessingTimeoutTrigger({self.nested_trigger!r}, {self.timeout})"
