"""Windows: intervals of time, numbered windows of elements, and the one window over all elements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from timerheap.timer import MAX_WATERMARK
from timerheap.types import Types

_LONG = (1 << 64) - 1

WINDOW_TYPE = Types.ROW_NAMED(["start", "end"], [Types.LONG(), Types.LONG()])
"""The type of a window in state. A count window has its id as the start; the global window has only nulls."""


class TimeWindow(NamedTuple):
    """The interval from `start` to `end` (exclusive), epoch ms (``pyflink.datastream.window.TimeWindow``).

    Windows compare by start, then by end.

    Examples
    --------
    >>> window = TimeWindow(0, 60_000)
    >>> window.max_timestamp(), window.intersects(TimeWindow(60_000, 90_000))
    (59999, True)
    """

    start: int
    end: int

    def max_timestamp(self) -> int:
        """Return the largest timestamp in the window, `end` - 1."""
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Return whether the windows overlap or touch; sessions that touch are merged."""
        return self.start <= other.end and self.end >= other.start

    def cover(self, other: TimeWindow) -> TimeWindow:
        """Return the smallest window that covers both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))

    @staticmethod
    def get_window_start_with_offset(timestamp: int, offset: int, window_size: int) -> int:
        """Return the start of the window that contains `timestamp`; windows start at `offset` modulo size."""
        return timestamp - (timestamp - offset) % window_size


class CountWindow(NamedTuple):
    """A numbered window of a fixed number of elements (``pyflink.datastream.window.CountWindow``).

    Its `start` and `end` are None.

    Attributes
    ----------
    id : int
        The number of the window: 0, 1, ... for each key.
    """

    id: int
    end: None = None

    @property
    def start(self) -> None:
        """None, because the window is not an interval of time."""
        return None

    def max_timestamp(self) -> int:
        """Return ``MAX_WATERMARK``, because the window does not end at a time."""
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
        """Return the window."""
        return GlobalWindow()

    def max_timestamp(self) -> int:
        """Return ``MAX_WATERMARK``, because the window ends with the input."""
        return MAX_WATERMARK


Window = TimeWindow | CountWindow | GlobalWindow


def window_of(fields: Iterable[int | None]) -> Window:
    """Return the window that has these fields in state."""
    start, end = fields
    if start is None:
        return GlobalWindow()
    return CountWindow(start) if end is None else TimeWindow(start, end)


def merge_time_windows(windows: Iterable[TimeWindow]) -> Iterator[tuple[list[TimeWindow], TimeWindow]]:
    """Yield each set of two or more windows that overlap or touch, and their cover (``mergeWindows``)."""
    together: list[TimeWindow] = []
    cover: TimeWindow | None = None
    for window in [*sorted(windows, key=lambda w: w.start), None]:
        if window is not None and cover is not None and cover.intersects(window):
            cover = cover.cover(window)
            together.append(window)
            continue
        if cover is not None and len(set(together)) > 1:
            yield _as_java_iterates(together), cover
        if window is not None:
            cover, together = window, [window]


def _as_java_iterates(windows: list[TimeWindow]) -> list[TimeWindow]:
    """Return windows in the iteration order of a ``java.util.HashSet``.

    The contents of the first window stay in place and the others are added to them. The same order as in
    Java therefore results in the same order of elements in a merged window as in Flink.
    """
    buckets = 16
    while len(windows) > buckets * 3 // 4:
        buckets *= 2
    return sorted(dict.fromkeys(windows), key=lambda window: _java_hash(window) & (buckets - 1))


def _java_hash(window: TimeWindow) -> int:
    """Return ``TimeWindow.hashCode()``, which mixes the 64 bits of start + end, as a HashMap spreads it."""
    x = (window.start + window.end) & _LONG
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _LONG
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _LONG
    x = (x ^ (x >> 31)) & 0xFFFFFFFF
    return x ^ (x >> 16)
