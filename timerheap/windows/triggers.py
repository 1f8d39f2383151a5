"""When a window's results come out: Flink's triggers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from operator import add
from typing import Any

from timerheap.state import StateDescriptor
from timerheap.types import Types
from timerheap.windows.states import ReducingStateDescriptor

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
    """What becomes of a window now (``pyflink.datastream.window.TriggerResult``).

    FIRE gives out its result, PURGE forgets what it holds, FIRE_AND_PURGE does both, in this order. A window
    that holds nothing has no result.
    """

    CONTINUE = (False, False)
    FIRE_AND_PURGE = (True, True)
    FIRE = (True, False)
    PURGE = (False, True)

    def is_fire(self) -> bool:
        """Tell whether the result is given out."""
        return self.value[0]

    def is_purge(self) -> bool:
        """Tell whether the contents are forgotten."""
        return self.value[1]


class Trigger(ABC):
    """Decides for each key and window when it fires (``pyflink.datastream.window.Trigger``).

    One of your own keeps nothing in ``self`` but its parameters: what it must remember goes into
    ``ctx.get_partitioned_state(descriptor)``, and each method answers with a `TriggerResult`.

    Examples
    --------
    Fire at each tenth element, and at the window's end:

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

    class TriggerContext(ABC):
        """What a trigger is handed; its timers and its state are those of one key and one window."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """Give the processing time, epoch ms."""

        @abstractmethod
        def get_current_watermark(self) -> int:
            """Give the watermark, epoch ms."""

        @abstractmethod
        def register_processing_time_timer(self, time: int) -> None:
            """Have `Trigger.on_processing_time` called once processing time has passed `time`, epoch ms."""

        @abstractmethod
        def register_event_time_timer(self, time: int) -> None:
            """Have `Trigger.on_event_time` called once the watermark has reached `time`, epoch ms."""

        @abstractmethod
        def delete_processing_time_timer(self, time: int) -> None:
            """Delete the window's timer, if there is one."""

        @abstractmethod
        def delete_event_time_timer(self, time: int) -> None:
            """Delete the window's timer, if there is one."""

        @abstractmethod
        def get_partitioned_state(self, state_descriptor: StateDescriptor) -> Any:
            """Give the window's state: a value, list, map or reducing state, as the descriptor says."""

    class OnMergeContext(TriggerContext, ABC):
        """What `Trigger.on_merge` is handed."""

        @abstractmethod
        def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
            """Put together what the merged windows have in a reducing or list state, for the new window."""

    @abstractmethod
    def on_element(
        self, element: Any, timestamp: int, window: Any, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """Take an element that the window has just got; `timestamp` is its event time, None without one."""

    @abstractmethod
    def on_processing_time(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Take a processing-time timer of the window; `time` is the one it was registered for."""

    @abstractmethod
    def on_event_time(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Take an event-time timer of the window; `time` is the one it was registered for."""

    def can_merge(self) -> bool:
        """Tell whether `on_merge` works, as session windows need it."""
        return False

    def on_merge(self, window: Any, ctx: Trigger.OnMergeContext) -> None:
        """Register for a window that several have just become what is to be registered."""
        raise NotImplementedError(f"{type(self).__name__}.can_merge() says yes, so it must have on_merge()")

    @abstractmethod
    def clear(self, window: Any, ctx: Trigger.TriggerContext) -> None:
        """Delete the window's timers, and clear its state: it ends here."""


class QuietTrigger(Trigger):
    """Does nothing, whatever happens: what a trigger has no answer to, it has from here."""

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
    """Never fires: the default of `GlobalWindows`."""


class EndOfStreamTrigger(QuietTrigger):
    """Fires at the end of the input: the default of ``GlobalWindows.create_with_end_of_stream_trigger()``."""

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
    """Fires when the watermark reaches the window's end, and at once for an element that comes later."""

    @staticmethod
    def create() -> EventTimeTrigger:
        """Make one."""
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
        if window.max_timestamp() > ctx.get_current_watermark():  # else the late element fires it by itself
            ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window: Any, ctx: Trigger.TriggerContext) -> None:
        """See `Trigger.clear`."""
        ctx.delete_event_time_timer(window.max_timestamp())


class ProcessingTimeTrigger(QuietTrigger):
    """Fires when processing time has passed the window's end."""

    @staticmethod
    def create() -> ProcessingTimeTrigger:
        """Make one."""
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
    """Fires whenever a window has got so many elements more; not at its end.

    Parameters
    ----------
    window_size : int
        1 or more.
    """

    _count = ReducingStateDescriptor("count", add, Types.LONG())

    def __init__(self, window_size: int) -> None:
        if not isinstance(window_size, int) or isinstance(window_size, bool):
            raise TypeError(f"window_size: {window_size!r} is no number of elements; give an int")
        if window_size < 1:
            raise ValueError(f"window_size: {window_size} elements; give 1 or more")
        self.window_size = window_size

    @staticmethod
    def of(window_size: int) -> CountTrigger:
        """Make one."""
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
    """Does what another trigger does, and forgets what the window holds whenever that one fires.

    Parameters
    ----------
    nested_trigger : Trigger
    """

    def __init__(self, nested_trigger: Trigger) -> None:
        if not isinstance(nested_trigger, Trigger):
            raise TypeError(f"nested_trigger: {nested_trigger!r} is no Trigger")
        self.nested_trigger = nested_trigger

    @staticmethod
    def of(nested_trigger: Trigger) -> PurgingTrigger:
        """Make one."""
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
