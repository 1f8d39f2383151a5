"""Triggers that fire again and again before a window ends."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from timerheap.types import Types
from timerheap.watermarks.strategy import milliseconds
from timerheap.windows.states import ReducingState, ReducingStateDescriptor
from timerheap.windows.triggers import QuietTrigger, Trigger, TriggerResult
from timerheap.windows.window import Window

__all__ = ["ContinuousEventTimeTrigger", "ContinuousProcessingTimeTrigger"]


class _Continuous(QuietTrigger):
    """What the two continuous triggers share: the next time to fire, in state."""

    _fire_time = ReducingStateDescriptor("fire-time", min, Types.LONG())

    def __init__(self, interval: int | timedelta) -> None:
        self.interval = milliseconds("interval", interval)
        if self.interval == 0:
            raise ValueError(f"interval: {interval!r} must be more than 0 ms")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.interval})"

    def can_merge(self) -> bool:
        """See `Trigger.can_merge`."""
        return True

    def _state(self, ctx: Trigger.TriggerContext) -> ReducingState:
        state: ReducingState = ctx.get_partitioned_state(self._fire_time)
        return state

    def _before(self, time: int) -> int:
        """Give the multiple of the interval before `time`; toward 1970, as Java's % has it."""
        return time - (time % self.interval if time >= 0 else -(-time % self.interval))

    def _next(self, time: int, window: Window, state: ReducingState) -> int:
        next_time = min(time + self.interval, window.max_timestamp())
        state.add(next_time)
        return next_time

    def _merged(self, ctx: Trigger.OnMergeContext) -> int | None:
        ctx.merge_partitioned_state(self._fire_time)
        next_time: int | None = self._state(ctx).get()
        return next_time


class ContinuousEventTimeTrigger(_Continuous):
    """Fires whenever the watermark has gone on by an interval, and at the window's end: early results.

    Where several multiples of the interval lie below one watermark, it fires once for each of them.

    Parameters
    ----------
    interval : int or timedelta
        In ms, more than 0.
    """

    @staticmethod
    def of(interval: int | timedelta) -> ContinuousEventTimeTrigger:
        """Make one."""
        return ContinuousEventTimeTrigger(interval)

    def on_element(
        self, element: Any, timestamp: int, window: Any, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """See `Trigger.on_element`."""
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        state = self._state(ctx)
        if state.get() is None:
            ctx.register_event_time_timer(self._next(self._before(timestamp), window, state))
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        """See `Trigger.on_event_time`."""
        if time == window.max_timestamp():
            return TriggerResult.FIRE
        state = self._state(ctx)
        if state.get() != time:
            return TriggerResult.CONTINUE
        state.clear()
        ctx.register_event_time_timer(self._next(time, window, state))
        return TriggerResult.FIRE

    def on_merge(self, window: Any, ctx: Trigger.OnMergeContext) -> None:
        """See `Trigger.on_merge`."""
        next_time = self._merged(ctx)
        if next_time is not None:
            ctx.register_event_time_timer(next_time)

    def clear(self, window: Any, ctx: Trigger.TriggerContext) -> None:
        """See `Trigger.clear`."""
        state = self._state(ctx)
        next_time = state.get()
        if next_time is not None:
            ctx.delete_event_time_timer(next_time)
            state.clear()


class ContinuousProcessingTimeTrigger(_Continuous):
    """Fires at every interval of processing time, and at the window's end: early results.

    Parameters
    ----------
    interval : int or timedelta
        In ms, more than 0.
    """

    @staticmethod
    def of(interval: int | timedelta) -> ContinuousProcessingTimeTrigger:
        """Make one."""
        return ContinuousProcessingTimeTrigger(interval)

    def on_element(
        self, element: Any, timestamp: int, window: Any, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """See `Trigger.on_element`."""
        state = self._state(ctx)
        if state.get() is None:
            now = ctx.get_current_processing_time()
            ctx.register_processing_time_timer(self._next(self._before(now), window, state))
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        """See `Trigger.on_processing_time`."""
        if time == window.max_timestamp():
            return TriggerResult.FIRE
        state = self._state(ctx)
        if state.get() != time:
            return TriggerResult.CONTINUE
        state.clear()
        ctx.register_processing_time_timer(self._next(time, window, state))
        return TriggerResult.FIRE

    def on_merge(self, window: Any, ctx: Trigger.OnMergeContext) -> None:
        """See `Trigger.on_merge`."""
        next_time = self._merged(ctx)
        if next_time is not None:
            ctx.register_processing_time_timer(next_time)

    def clear(self, window: Any, ctx: Trigger.TriggerContext) -> None:
        """See `Trigger.clear`."""
        state = self._state(ctx)
        next_time = state.get()
        if next_time is not None:
            ctx.delete_processing_time_timer(next_time)
            state.clear()
