"""A trigger that adds a timeout to another trigger."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from timerheap._arguments import not_negative
from timerheap.state import ValueStateDescriptor
from timerheap.types import Types
from timerheap.windows.triggers import Trigger, TriggerResult

__all__ = ["ProcessingTimeoutTrigger"]


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
        timeout: int | timedelta | str,
        reset_timer_on_new_record: bool = False,
        should_clear_on_timeout: bool = True,
    ) -> None:
        if not isinstance(nested_trigger, Trigger):
            raise TypeError(f"nested_trigger must be a Trigger, got {nested_trigger!r}")
        self.nested_trigger = nested_trigger
        self.timeout = not_negative("timeout", timeout)
        self.reset_timer_on_new_record = reset_timer_on_new_record
        self.should_clear_on_timeout = should_clear_on_timeout

    @staticmethod
    def of(
        nested_trigger: Trigger,
        timeout: int | timedelta | str,
        reset_timer_on_new_record: bool = False,
        should_clear_on_timeout: bool = True,
    ) -> ProcessingTimeoutTrigger:
        """Return a new trigger."""
        return ProcessingTimeoutTrigger(
            nested_trigger, timeout, reset_timer_on_new_record, should_clear_on_timeout
        )

    def on_element(
        self, element: Any, timestamp: int, window: Any, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """See `Trigger.on_element`."""
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

    def on_processing_time(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        """See `Trigger.on_processing_time`."""
        return self._fire(self.nested_trigger.on_processing_time(time, window, ctx), window, ctx)

    def on_event_time(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        """See `Trigger.on_event_time`."""
        return self._fire(self.nested_trigger.on_event_time(time, window, ctx), window, ctx)

    def clear(self, window: Any, ctx: Trigger.TriggerContext) -> None:
        """See `Trigger.clear`."""
        state = ctx.get_partitioned_state(self._timeout)
        waits_until = state.value()
        if waits_until is not None:
            ctx.delete_processing_time_timer(waits_until)
            state.clear()
        self.nested_trigger.clear(window, ctx)

    def _fire(self, nested: TriggerResult, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        if self.should_clear_on_timeout:
            self.clear(window, ctx)
        return TriggerResult.FIRE_AND_PURGE if nested.is_purge() else TriggerResult.FIRE

    def __repr__(self) -> str:
        return f"ProcessingTimeoutTrigger({self.nested_trigger!r}, {self.timeout})"
