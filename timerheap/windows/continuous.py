"""Triggers that fire repeatedly before a window ends."""

from __future__ import annotations

from abc import abstractmethod
from datetime import timedelta
from typing import Any

from timerheap._arguments import positive
from timerheap.state import ReducingStateDescriptor
from timerheap.types import Types
from timerheap.windows.triggers import QuietTrigger, Trigger, TriggerResult

__all__ = ["ContinuousEventTimeTrigger", "ContinuousProcessingTimeTrigger"]


class _Continuous(QuietTrigger):
    """Base of the continuous triggers: keeps the next time to fire in state and registers its timer."""

    _fire_time = ReducingStateDescriptor("fire-time", min, Types.LONG())

    def __init__(self, interval: int | timedelta | str) -> None:
        self.interval = positive("interval", interval)

    @abstractmethod
    def _register(self, time: int, ctx: Trigger.TriggerContext) -> None:
        """Register a timer in the trigger's time domain."""

    @abstractmethod
    def _delete(self, time: int, ctx: Trigger.TriggerContext) -> None:
        """Delete a timer in the trigger's time domain."""

    def can_merge(self) -> bool:
        """See `Trigger.can_merge`."""
        return True

    def on_merge(self, window: Any, ctx: Trigger.OnMergeContext) -> None:
        """See `Trigger.on_merge`."""
        ctx.merge_partitioned_state(self._fire_time)
        next_time = ctx.get_partitioned_state(self._fire_time).get()
        if next_time is not None:
            self._register(next_time, ctx)

    def clear(self, window: Any, ctx: Trigger.TriggerContext) -> None:
        """See `Trigger.clear`."""
        state = ctx.get_partitioned_state(self._fire_time)
        next_time = state.get()
        if next_time is not None:
            self._delete(next_time, ctx)
            state.clear()

    def _start(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> None:
        """Schedule a firing at the next multiple of the interval, unless one is already scheduled."""
        if ctx.get_partitioned_state(self._fire_time).get() is None:
            # Java's % rounds toward zero, so the previous multiple is the one nearer to 1970.
            before = time - (time % self.interval if time >= 0 else -(-time % self.interval))
            self._next(before, window, ctx)

    def _next(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> None:
        next_time = min(time + self.interval, window.max_timestamp())
        ctx.get_partitioned_state(self._fire_time).add(next_time)
        self._register(next_time, ctx)

    def _on_timer(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
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

    @staticmethod
    def of(interval: int | timedelta | str) -> ContinuousEventTimeTrigger:
        """Return a new trigger."""
        return ContinuousEventTimeTrigger(interval)

    def on_element(
        self, element: Any, timestamp: int, window: Any, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """See `Trigger.on_element`."""
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        self._start(timestamp, window, ctx)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        """See `Trigger.on_event_time`."""
        return self._on_timer(time, window, ctx)

    def _register(self, time: int, ctx: Trigger.TriggerContext) -> None:
        ctx.register_event_time_timer(time)

    def _delete(self, time: int, ctx: Trigger.TriggerContext) -> None:
        ctx.delete_event_time_timer(time)


class ContinuousProcessingTimeTrigger(_Continuous):
    """Fires early results at every interval of processing time, and the result at the window's end.

    Parameters
    ----------
    interval : int, timedelta or str
        In ms, more than 0.
    """

    @staticmethod
    def of(interval: int | timedelta | str) -> ContinuousProcessingTimeTrigger:
        """Return a new trigger."""
        return ContinuousProcessingTimeTrigger(interval)

    def on_element(
        self, element: Any, timestamp: int, window: Any, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """See `Trigger.on_element`."""
        self._start(ctx.get_current_processing_time(), window, ctx)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        """See `Trigger.on_processing_time`."""
        return self._on_timer(time, window, ctx)

    def _register(self, time: int, ctx: Trigger.TriggerContext) -> None:
        ctx.register_processing_time_timer(time)

    def _delete(self, time: int, ctx: Trigger.TriggerContext) -> None:
        ctx.delete_processing_time_timer(time)
