"""Windows of a fixed number of elements: PyFlink's count windows."""

from __future__ import annotations

from typing import Any

from timerheap._arguments import positive_int
from timerheap.state import ValueStateDescriptor
from timerheap.types import Types
from timerheap.windows.assigners import WindowAssigner
from timerheap.windows.triggers import CountTrigger, PurgingTrigger, Trigger
from timerheap.windows.window import CountWindow

__all__ = ["CountSlidingWindowAssigner", "CountTumblingWindowAssigner", "CountWindowAssigner", "count_window"]


class CountWindowAssigner(WindowAssigner):
    """Assigns windows by the position of an element among those of its key, which is counted in state.

    Parameters
    ----------
    name : str
        The name of the state.
    window_size, window_slide : int
        Numbers of elements, 1 or more.
    """

    def __init__(self, name: str, window_size: int, window_slide: int) -> None:
        self._size = positive_int("window_size", window_size)
        self._slide = positive_int("window_slide", window_slide)
        self._seen = ValueStateDescriptor(name, Types.LONG())

    def assign_windows(
        self, element: Any, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> list[CountWindow]:
        """Return the windows of the key's next element, the latest first; O(size / slide)."""
        state = context.get_runtime_context().get_state(self._seen)
        number = state.value() or 0
        state.update(number + 1)
        latest, earliest = number // self._slide, (number - self._size) // self._slide + 1
        return [CountWindow(id) for id in range(latest, max(earliest, 0) - 1, -1)]

    def get_default_trigger(self, env: object = None) -> Trigger:
        """Return a trigger that fires a full window and purges it."""
        return PurgingTrigger.of(CountTrigger.of(self._size))

    def is_event_time(self) -> bool:
        """Return False."""
        return False


class CountTumblingWindowAssigner(CountWindowAssigner):
    """Consecutive windows of `window_size` elements of a key.

    Parameters
    ----------
    window_size : int
        Number of elements, 1 or more.

    Notes
    -----
    PyFlink: ``pyflink.datastream.window.CountTumblingWindowAssigner``. PyFlink's windows keep their elements
    after they have fired, although nothing uses them any more; here they are deleted.
    """

    def __init__(self, window_size: int) -> None:
        super().__init__("tumble-count-assigner", window_size, window_size)

    @staticmethod
    def of(window_size: int) -> CountTumblingWindowAssigner:
        """Return a new assigner."""
        return CountTumblingWindowAssigner(window_size)

    def __repr__(self) -> str:
        return f"CountTumblingWindowAssigner({self._size})"


class CountSlidingWindowAssigner(CountWindowAssigner):
    """Windows of `window_size` elements of a key, which start every `window_slide` elements.

    A window fires when it is full. In Flink's Java API, ``countWindow(size, slide)`` fires every `slide`
    elements with the last `size` elements, or fewer at first. For that behaviour, use `GlobalWindows` with
    ``CountTrigger.of(slide)`` and ``CountEvictor.of(size)``.

    Parameters
    ----------
    window_size, window_slide : int
        Numbers of elements, 1 or more.

    Notes
    -----
    PyFlink: ``pyflink.datastream.window.CountSlidingWindowAssigner``. PyFlink's windows keep their elements
    after they have fired, although nothing uses them any more; here they are deleted.
    """

    def __init__(self, window_size: int, window_slide: int) -> None:
        super().__init__("slide-count-assigner", window_size, window_slide)

    @staticmethod
    def of(window_size: int, window_slide: int) -> CountSlidingWindowAssigner:
        """Return a new assigner."""
        return CountSlidingWindowAssigner(window_size, window_slide)

    def __repr__(self) -> str:
        return f"CountSlidingWindowAssigner({self._size}, {self._slide})"


def count_window(size: int, slide: int = 0) -> CountTumblingWindowAssigner | CountSlidingWindowAssigner:
    """Return an assigner of tumbling count windows or, with a slide, of sliding ones.

    Parameters
    ----------
    size : int
        Number of elements, 1 or more.
    slide : int, default 0
        Number of elements between the starts of two windows; 0 for tumbling windows.

    Notes
    -----
    PyFlink: ``KeyedStream.count_window``.

    Examples
    --------
    >>> count_window(4), count_window(4, 2)
    (CountTumblingWindowAssigner(4), CountSlidingWindowAssigner(4, 2))
    """
    if isinstance(slide, int) and slide == 0:
        return CountTumblingWindowAssigner(size)
    return CountSlidingWindowAssigner(size, slide)
