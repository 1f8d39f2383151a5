"""Timers of windows, where the timer service has one for each key and timestamp only."""

from __future__ import annotations

from collections.abc import Callable

from timerheap.functions import RuntimeContext
from timerheap.state import MapStateDescriptor
from timerheap.types import Types
from timerheap.windows.window import WINDOW, Window, window_of

__all__ = ["WindowTimers"]


class WindowTimers:
    """Which windows of the current key wait for which timestamp, in one time domain.

    The first window that waits for a timestamp has the timer registered, the last that no longer does has it
    deleted. Each call is O(windows that wait for the timestamp).

    Parameters
    ----------
    runtime_context : RuntimeContext
    name : str
        Of the state: timestamp -> windows, in the order in which they registered.
    """

    def __init__(self, runtime_context: RuntimeContext, name: str) -> None:
        self._waiting = runtime_context.get_map_state(
            MapStateDescriptor(name, Types.LONG(), Types.LIST(WINDOW))
        )

    def register(self, timestamp: int, window: Window, register_timer: Callable[[int], object]) -> None:
        """Have `window` wait for `timestamp`; ``register_timer(timestamp)`` is called for the first one."""
        waiting = self._windows(timestamp)
        if not waiting:
            register_timer(timestamp)
        if window not in waiting:
            self._waiting.put(timestamp, [*waiting, window])

    def delete(self, timestamp: int, window: Window, delete_timer: Callable[[int], object]) -> None:
        """Have `window` no longer wait; ``delete_timer(timestamp)`` is called where no other one does."""
        waiting = self._windows(timestamp)
        if window in waiting:
            waiting.remove(window)
            self._put(timestamp, waiting)
            if not waiting:
                delete_timer(timestamp)

    def pop(self, timestamp: int) -> Window | None:
        """Take out the first window that waits for `timestamp`, the timer having fired; None: none does."""
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
