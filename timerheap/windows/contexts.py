"""The contexts passed to assigners, triggers, evictors and window functions, with the timers of windows."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from timerheap._moments import epoch_millis
from timerheap.functions import KeyedProcessFunction, RuntimeContext, TimerService
from timerheap.output_tag import OutputTag
from timerheap.state import MapStateDescriptor, StateDescriptor
from timerheap.types import Types
from timerheap.windows.assigners import WindowAssigner
from timerheap.windows.evictors import Evictor
from timerheap.windows.states import WindowStates, WindowStateStore
from timerheap.windows.triggers import Trigger
from timerheap.windows.window import WINDOW_TYPE, Window, window_of
from timerheap.windows.window_functions import ProcessWindowFunction


class WindowTimers:
    """The timers of the current key's windows, in one time domain.

    Windows with the same timestamp share a timer. It is registered for the first of them, and deleted when
    none of them needs it any more. Each call is O(windows with the timestamp).
    """

    timer_service: TimerService  # the operator sets it before each call

    def __init__(self, runtime_context: RuntimeContext, event_time: bool) -> None:
        self._event_time = event_time
        name = "window.event-timers" if event_time else "window.processing-timers"
        # From a timestamp to its windows, in the order of their registration.
        descriptor = MapStateDescriptor(name, Types.LONG(), Types.LIST(WINDOW_TYPE))
        self._waiting = runtime_context.get_map_state(descriptor)

    def register(self, time: int | datetime, window: Window) -> None:
        timestamp = epoch_millis("time", time)
        waiting = self._windows(timestamp)
        if not waiting:
            if self._event_time:
                self.timer_service.register_event_time_timer(timestamp)
            else:
                self.timer_service.register_processing_time_timer(timestamp)
        if window not in waiting:
            self._waiting.put(timestamp, [*waiting, window])

    def delete(self, time: int | datetime, window: Window) -> None:
        timestamp = epoch_millis("time", time)
        waiting = self._windows(timestamp)
        if window in waiting:
            waiting.remove(window)
            self._put(timestamp, waiting)
            if waiting:
                return
            if self._event_time:
                self.timer_service.delete_event_time_timer(timestamp)
            else:
                self.timer_service.delete_processing_time_timer(timestamp)

    def pop(self, timestamp: int) -> Window | None:
        """Remove and return the first window with a timer at `timestamp`, which has fired, or None."""
        waiting = self._windows(timestamp)
        if not waiting:
            return None
        window = waiting.pop(0)
        self._put(timestamp, waiting)
        return window

    def _windows(self, timestamp: int) -> list[Window]:
        return [window_of(window) for window in self._waiting.get(timestamp) or ()]

    def _put(self, timestamp: int, waiting: list[Window]) -> None:
        if waiting:
            self._waiting.put(timestamp, waiting)
        else:
            self._waiting.remove(timestamp)


class OperatorContext(Trigger.OnMergeContext, WindowAssigner.WindowAssignerContext, Evictor.EvictorContext):
    """Context of an assigner, a trigger and an evictor; the operator sets the attributes before each call."""

    timer_service: TimerService
    window: Window  # of the trigger, as the windows that have been merged into it
    merged: Iterable[Window] = ()

    def __init__(
        self,
        runtime_context: RuntimeContext,
        event_timers: WindowTimers,
        processing_timers: WindowTimers,
        states: WindowStates,
    ) -> None:
        self._runtime_context = runtime_context
        self._event_timers = event_timers
        self._processing_timers = processing_timers
        self._states = states

    def get_current_processing_time(self) -> int:
        return self.timer_service.current_processing_time()

    def get_current_watermark(self) -> int:
        return self.timer_service.current_watermark()

    def get_runtime_context(self) -> RuntimeContext:
        return self._runtime_context

    def register_processing_time_timer(self, time: int | datetime) -> None:
        self._processing_timers.register(time, self.window)

    def register_event_time_timer(self, time: int | datetime) -> None:
        self._event_timers.register(time, self.window)

    def delete_processing_time_timer(self, time: int | datetime) -> None:
        self._processing_timers.delete(time, self.window)

    def delete_event_time_timer(self, time: int | datetime) -> None:
        self._event_timers.delete(time, self.window)

    def get_partitioned_state(self, state_descriptor: StateDescriptor) -> Any:
        return self._states.of(state_descriptor, self.window)

    def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
        self._states.merge(state_descriptor, self.window, self.merged)


class WindowContext(ProcessWindowFunction.Context):
    """Context of a ProcessWindowFunction; the operator sets the attributes before each call."""

    timer_service: TimerService
    current: Window
    ctx: KeyedProcessFunction.Context  # of the call of the operator
    timestamp: int | None  # the output timestamp of that call

    def __init__(self, runtime_context: RuntimeContext, states: WindowStates | None) -> None:
        self._runtime_context = runtime_context
        self._states = states

    def window(self) -> Window:
        return self.current

    def current_processing_time(self) -> int:
        return self.timer_service.current_processing_time()

    def current_watermark(self) -> int:
        return self.timer_service.current_watermark()

    def window_state(self) -> WindowStateStore:
        return WindowStateStore(self._states, self.current)

    def global_state(self) -> RuntimeContext:
        return self._runtime_context

    def output(self, tag: OutputTag, value: Any) -> None:
        self.ctx.set_output_timestamp(self.current.max_timestamp())
        self.ctx.output(tag, value)
        self.ctx.set_output_timestamp(self.timestamp)
