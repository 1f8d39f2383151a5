"""Timers of windows, on a timer service with one timer for each key and timestamp."""

from __future__ import annotations

from collections.abc import Callable

from timerheap.functions import RuntimeContext
from timerheap.state import MapStateDescriptor
from timerheap.types import Types
from timerheap.windows.window import WINDOW_TYPE, Window, window_of

__all__ = ["WindowTimers"]


class WindowTimers:
    """The timers of the current key's windows, in one time domain.

    Windows with the same timestamp share a timer. It is registered for the first of them, and deleted when
    none of them needs it any more. Each call is O(windows with the timestamp).

    Parameters
    ----------
    runtime_context : RuntimeContext
    name : str
        The name of the state, which maps a timestamp to its windows in the order of their registration.
    """

    def __init__(self, runtime_context: RuntimeContext, name: str) -> None:
        self._waiting = runtime_context.get_map_state(
            MapStateDescriptor(name, Types.LONG(), Types.LIST(WINDOW_TYPE))
        )

    def register(self, timestamp: int, window: Window, register_timer: Callable[[int], object]) -> None:
        """Register a timer of `window`; call ``register_timer(timestamp)`` for the first one at a time."""
        waiting = self._windows(timestamp)
        if not waiting:
            register_timer(timestamp)
        if window not in waiting:
            self._waiting.put(timestamp, [*waiting, window])

    def delete(self, timestamp: int, window: Window, delete_timer: Callable[[int], object]) -> None:
        """Delete the timer of `window`; call ``delete_timer(timestamp)`` for the last one at a time."""
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
