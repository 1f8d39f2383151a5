"""The contexts passed to assigners, triggers, evictors and window functions, with the timers of windows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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

    name: the name of the state, which maps a timestamp to its windows in the order of their registration
    """

    def __init__(self, runtime_context: RuntimeContext, name: str) -> None:
        self._waiting = runtime_context.get_map_state(
            MapStateDescriptor(name, Types.LONG(), Types.LIST(WINDOW_TYPE))
        )

    def register(self, time: int | datetime, window: Window, register_timer: Callable[[int], object]) -> None:
        """Register a timer of `window`; call ``register_timer(timestamp)`` for the first one at a time."""
        timestamp = epoch_millis("time", time)
        waiting = self._windows(timestamp)
        if not waiting:
            register_timer(timestamp)
        if window not in waiting:
            self._waiting.put(timestamp, [*waiting, window])

    def delete(self, time: int | datetime, window: Window, delete_timer: Callable[[int], object]) -> None:
        """Delete the timer of `window`; call ``delete_timer(timestamp)`` for the last one at a time."""
        timestamp = epoch_millis("time", time)
        waiting = self._windows(timestamp)
        if window in waiting:
            waiting.remove(window)
            self._put(timestamp, waiting)
            if not waiting:
                delete_timer(timestamp)

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


class AssignerContext(WindowAssigner.WindowAssignerContext):
    """Context of an assigner; the operator sets `timer_service` before each call."""

    timer_service: TimerService

    def __init__(self, runtime_context: RuntimeContext) -> None:
        self._runtime_context = runtime_context

    def get_current_processing_time(self) -> int:
        return self.timer_service.current_processing_time()

    def get_runtime_context(self) -> RuntimeContext:
        return self._runtime_context


class EvictorContext(Evictor.EvictorContext):
    """Context of an evictor; the operator sets `timer_service` before each call."""

    timer_service: TimerService

    def get_current_processing_time(self) -> int:
        return self.timer_service.current_processing_time()

    def get_current_watermark(self) -> int:
        return self.timer_service.current_watermark()


class TriggerContext(Trigger.OnMergeContext):
    """Context of a trigger; the operator sets `timer_service`, `window` and `merged` before each call."""

    timer_service: TimerService
    window: Window
    merged: Iterable[Window] = ()

    def __init__(
        self, event_timers: WindowTimers, processing_timers: WindowTimers, states: WindowStates
    ) -> None:
        self._event_timers = event_timers
        self._processing_timers = processing_timers
        self._states = states

    def get_current_processing_time(self) -> int:
        return self.timer_service.current_processing_time()

    def get_current_watermark(self) -> int:
        return self.timer_service.current_watermark()

    def register_processing_time_timer(self, time: int | datetime) -> None:
        register = self.timer_service.register_processing_time_timer
        self._processing_timers.register(time, self.window, register)

    def register_event_time_timer(self, time: int | datetime) -> None:
        self._event_timers.register(time, self.window, self.timer_service.register_event_time_timer)

    def delete_processing_time_timer(self, time: int | datetime) -> None:
        self._processing_timers.delete(time, self.window, self.timer_service.delete_processing_time_timer)

    def delete_event_time_timer(self, time: int | datetime) -> None:
        self._event_timers.delete(time, self.window, self.timer_service.delete_event_time_timer)

    def get_partitioned_state(self, state_descriptor: StateDescriptor) -> Any:
        return self._states.of(state_descriptor, self.window)

    def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
        self._states.merge(state_descriptor, self.window, self.merged)


class WindowContext(ProcessWindowFunction.Context):
    """Context of a ProcessWindowFunction; the operator sets the attributes before each call.

    ctx: the context of the call of the operator
    timestamp: the output timestamp of that call
    states: None for merging windows
    """

    timer_service: TimerService
    current: Window
    ctx: KeyedProcessFunction.Context
    timestamp: int | None

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
