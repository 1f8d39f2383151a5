"""Flink's triggers, which decide when a window emits its result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from operator import add
from typing import Any

from timerheap._arguments import positive_int
from timerheap._subscripts import Subscripted
from timerheap.state import ReducingStateDescriptor, StateDescriptor
from timerheap.types import Types

__all__ = [
    "CountTrigger",
    "EndOfStreamTrigger",
    "EventTimeTrigger",
    "NeverTrigger",
    "ProcessingTimeTrigger",
    "PurgingTrigger",
    "QuietTrigger",
    "Trigger",
    "TriggerResult",
]


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


class Trigger(Subscripted, ABC):
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

    class TriggerContext(Subscripted, ABC):
        """Context of a trigger, with the timers and the state of one key and one window."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """Return the processing time, epoch ms."""

        @abstractmethod
        def get_current_watermark(self) -> int:
            """Return the watermark, epoch ms."""

        @abstractmethod
        def register_processing_time_timer(self, time: int) -> None:
            """Register a timer that calls `Trigger.on_processing_time` after `time`, epoch ms."""

        @abstractmethod
        def register_event_time_timer(self, time: int) -> None:
            """Register a timer that calls `Trigger.on_event_time` when the watermark reaches `time`."""

        @abstractmethod
        def delete_processing_time_timer(self, time: int) -> None:
            """Delete the processing-time timer of the window, if there is one."""

        @abstractmethod
        def delete_event_time_timer(self, time: int) -> None:
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
        raise NotImplementedError(
            f"{type(self).__name__} must have on_merge(), because its can_merge() returns True"
        )

    @abstractmethod
    def clear(self, window: Any, ctx: Trigger.TriggerContext) -> None:
        """Delete the timers and clear the state of the window, which ends."""


class QuietTrigger(Trigger):
    """Base of triggers whose methods do nothing unless overridden."""

    def on_element(
        self, element: Any, timestamp: int, window: Any, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """See `Trigger.on_element`."""
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        """See `Trigger.on_processing_time`."""
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        """See `Trigger.on_event_time`."""
        return TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: Trigger.OnMergeContext) -> None:
        """See `Trigger.on_merge`."""

    def clear(self, window: Any, ctx: Trigger.TriggerContext) -> None:
        """See `Trigger.clear`."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class NeverTrigger(QuietTrigger):
    """Never fires; the default trigger of `GlobalWindows`."""


class EndOfStreamTrigger(QuietTrigger):
    """Fires at the end of the input; see ``GlobalWindows.create_with_end_of_stream_trigger()``."""

    def on_element(
        self, element: Any, timestamp: int, window: Any, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """See `Trigger.on_element`."""
        ctx.register_event_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        """See `Trigger.on_event_time`."""
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE


class EventTimeTrigger(QuietTrigger):
    """Fires when the watermark reaches the end of the window, and at every later element."""

    @staticmethod
    def create() -> EventTimeTrigger:
        """Return a new trigger."""
        return EventTimeTrigger()

    def on_element(
        self, element: Any, timestamp: int, window: Any, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """See `Trigger.on_element`."""
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        """See `Trigger.on_event_time`."""
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        """See `Trigger.can_merge`."""
        return True

    def on_merge(self, window: Any, ctx: Trigger.OnMergeContext) -> None:
        """See `Trigger.on_merge`."""
        if window.max_timestamp() > ctx.get_current_watermark():  # otherwise on_element() fires
            ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window: Any, ctx: Trigger.TriggerContext) -> None:
        """See `Trigger.clear`."""
        ctx.delete_event_time_timer(window.max_timestamp())


class ProcessingTimeTrigger(QuietTrigger):
    """Fires when processing time passes the end of the window."""

    @staticmethod
    def create() -> ProcessingTimeTrigger:
        """Return a new trigger."""
        return ProcessingTimeTrigger()

    def on_element(
        self, element: Any, timestamp: int, window: Any, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """See `Trigger.on_element`."""
        ctx.register_processing_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        """See `Trigger.on_processing_time`."""
        return TriggerResult.FIRE

    def can_merge(self) -> bool:
        """See `Trigger.can_merge`."""
        return True

    def on_merge(self, window: Any, ctx: Trigger.OnMergeContext) -> None:
        """See `Trigger.on_merge`."""
        if window.max_timestamp() > ctx.get_current_processing_time():
            ctx.register_processing_time_timer(window.max_timestamp())

    def clear(self, window: Any, ctx: Trigger.TriggerContext) -> None:
        """See `Trigger.clear`."""
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

    def on_element(
        self, element: Any, timestamp: int, window: Any, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """See `Trigger.on_element`."""
        count = ctx.get_partitioned_state(self._count)
        count.add(1)
        if count.get() < self.window_size:
            return TriggerResult.CONTINUE
        count.clear()
        return TriggerResult.FIRE

    def can_merge(self) -> bool:
        """See `Trigger.can_merge`."""
        return True

    def on_merge(self, window: Any, ctx: Trigger.OnMergeContext) -> None:
        """See `Trigger.on_merge`."""
        ctx.merge_partitioned_state(self._count)

    def clear(self, window: Any, ctx: Trigger.TriggerContext) -> None:
        """See `Trigger.clear`."""
        ctx.get_partitioned_state(self._count).clear()

    def __repr__(self) -> str:
        return f"CountTrigger({self.window_size})"


class PurgingTrigger(Trigger):
    """Fires when another trigger fires, and then deletes the contents of the window.

    Parameters
    ----------
    nested_trigger : Trigger
    """

    def __init__(self, nested_trigger: Trigger) -> None:
        if not isinstance(nested_trigger, Trigger):
            raise TypeError(f"nested_trigger must be a Trigger, got {nested_trigger!r}")
        self.nested_trigger = nested_trigger

    @staticmethod
    def of(nested_trigger: Trigger) -> PurgingTrigger:
        """Return a new trigger."""
        return PurgingTrigger(nested_trigger)

    def on_element(
        self, element: Any, timestamp: int, window: Any, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """See `Trigger.on_element`."""
        return _purging(self.nested_trigger.on_element(element, timestamp, window, ctx))

    def on_processing_time(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        """See `Trigger.on_processing_time`."""
        return _purging(self.nested_trigger.on_processing_time(time, window, ctx))

    def on_event_time(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        """See `Trigger.on_event_time`."""
        return _purging(self.nested_trigger.on_event_time(time, window, ctx))

    def can_merge(self) -> bool:
        """See `Trigger.can_merge`."""
        return self.nested_trigger.can_merge()

    def on_merge(self, window: Any, ctx: Trigger.OnMergeContext) -> None:
        """See `Trigger.on_merge`."""
        self.nested_trigger.on_merge(window, ctx)

    def clear(self, window: Any, ctx: Trigger.TriggerContext) -> None:
        """See `Trigger.clear`."""
        self.nested_trigger.clear(window, ctx)

    def __repr__(self) -> str:
        return f"PurgingTrigger({self.nested_trigger!r})"


def _purging(result: TriggerResult) -> TriggerResult:
    return TriggerResult.FIRE_AND_PURGE if result.is_fire() else result
