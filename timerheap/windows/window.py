"""What an assigner puts elements into: intervals of time, numbered windows, or one window over all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from timerheap.timer import MAX_WATERMARK
from timerheap.types import Types

__all__ = ["WINDOW", "CountWindow", "GlobalWindow", "TimeWindow", "Window", "window_of"]

WINDOW = Types.ROW_NAMED(["start", "end"], [Types.LONG(), Types.LONG()])
"""How state keeps a window: a count window has only its id, as the start, the global window has nothing."""


class TimeWindow(NamedTuple):
    """From `start` (inclusive) to `end` (exclusive), epoch ms (``pyflink.datastream.window.TimeWindow``).

    Windows are ordered by start, then end, and equal where both are.

    Examples
    --------
    >>> window = TimeWindow(0, 60_000)
    >>> window.max_timestamp(), window.intersects(TimeWindow(60_000, 90_000))
    (59999, True)
    """

    start: int
    end: int

    def max_timestamp(self) -> int:
        """Give the largest timestamp that belongs to the window: `end` - 1."""
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Tell whether both have a time in common, or just touch: sessions that touch are one."""
        return self.start <= other.end and self.end >= other.start

    def cover(self, other: TimeWindow) -> TimeWindow:
        """Give the smallest window over both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))

    @staticmethod
    def get_window_start_with_offset(timestamp: int, offset: int, window_size: int) -> int:
        """Give the start of the window of `timestamp`, where windows start at `offset` modulo size."""
        return timestamp - (timestamp - offset) % window_size


class CountWindow(NamedTuple):
    """A window of so many elements, which has a number (``pyflink.datastream.window.CountWindow``).

    Its `start` and `end` are None.

    Attributes
    ----------
    id : int
        0, 1, ... for each key.
    """

    id: int
    end: None = None

    @property
    def start(self) -> None:
        """None: the window is no interval of time."""
        return None

    def max_timestamp(self) -> int:
        """Return ``MAX_WATERMARK``: no time ends the window."""
        return MAX_WATERMARK

    def __repr__(self) -> str:
        return f"CountWindow(id={self.id})"


class GlobalWindow(NamedTuple):
    """The one window over all elements of a key (``pyflink.datastream.window.GlobalWindow``).

    Its `start` and `end` are None.
    """

    start: None = None
    end: None = None

    @staticmethod
    def get() -> GlobalWindow:
        """Give the window."""
        return GlobalWindow()

    def max_timestamp(self) -> int:
        """Give ``MAX_WATERMARK``: the window ends with the input."""
        return MAX_WATERMARK


Window = TimeWindow | CountWindow | GlobalWindow


def window_of(fields: Iterable[int | None]) -> Window:
    """Give the window back of what state has kept."""
    start, end = fields
    if start is None:
        return GlobalWindow()
    return CountWindow(start) if end is None else TimeWindow(start, end)
