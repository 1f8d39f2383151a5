"""Slices: what TUMBLE, HOP and CUMULATE cut a stream into, so that a row is kept once and windows share it.

A slice is named by its end, a window by its own; both are exclusive, and in local ms (`LocalClock`), because
windows are cut on the wall clock. A timestamp is epoch ms. All methods take and give columns of int64; those
called ``get_...`` are the same for one number.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from timerheap.duration import Length, milliseconds, multiple, positive
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK, int64
from timerheap.tvf.arithmetic import Int64s, add, column, floor_to
from timerheap.tvf.zone import LocalClock

__all__ = [
    "CumulativeSliceAssigner",
    "HoppingSliceAssigner",
    "SliceAssigner",
    "TumblingSliceAssigner",
    "WindowedSliceAssigner",
]


class SliceAssigner(ABC):
    """How windows of one kind lie in time, and which slices each is made of.

    Attributes
    ----------
    interval : int
        The distance between the ends of slices, ms.
    offset : int
        By how much the windows are moved from the epoch, ms.
    size : int
        The length of the longest window, ms.
    clock : LocalClock
        The wall clock that they are cut on.
    is_event_time : bool
        Whether time is the rows' own, or the machine's.

    Notes
    -----
    Flink: ``SliceAssigners``. Everything is array arithmetic, O(n); a zone adds one search a row.
    """

    interval: int
    offset: int
    size: int
    clock: LocalClock
    is_event_time: bool

    def assign_slice_ends(self, timestamps: Int64s) -> NDArray[np.int64]:
        """The end of each row's slice.

        Parameters
        ----------
        timestamps : array_like of int64, shape (n,)
            Epoch ms.

        Returns
        -------
        ndarray of int64, shape (n,)
            Local ms.

        Raises
        ------
        TypeError, ValueError
            If they are no integers, or if there are nulls: a row without a time is in no window.
        OverflowError
            If a slice would end beyond int64.
        """
        local = self.clock.to_local(column("timestamps", timestamps))
        starts = floor_to(local, self.interval, self.offset, "a slice's start")
        return add(starts, self.interval, "a slice's end")

    def get_slice_end(self, timestamp: int) -> int:
        """As `assign_slice_ends`, of one timestamp."""
        return int(self.assign_slice_ends([timestamp])[0])

    @abstractmethod
    def last_window_ends(self, slice_ends: Int64s) -> NDArray[np.int64]:
        """The end of the last window that each slice is part of."""

    def get_last_window_end(self, slice_end: int) -> int:
        """As `last_window_ends`, of one slice."""
        return int(self.last_window_ends([slice_end])[0])

    @abstractmethod
    def window_starts(self, window_ends: Int64s) -> NDArray[np.int64]:
        """The start of each window, inclusive."""

    def get_window_start(self, window_end: int) -> int:
        """As `window_starts`, of one window."""
        return int(self.window_starts([window_end])[0])

    def window_times(self, window_ends: Int64s) -> NDArray[np.int64]:
        """SQL's ``window_time``, the last instant of each window, epoch ms; of two, the first."""
        return self.clock.to_epoch(add(column("window_ends", window_ends), -1, "a window's time"))

    def timers(self, window_ends: Int64s) -> NDArray[np.int64]:
        """The watermark at which each window fires, epoch ms: when its last local ms has passed for good."""
        return self.clock.passes_at(add(column("window_ends", window_ends), -1, "a window's time"))

    def is_window_fired(self, window_end: int, progress: int) -> bool:
        """Whether Flink has fired a window by this watermark (``isWindowFired``).

        That is whether the watermark has reached the window's timer (`timers`), in zones whose clocks change
        by an hour on the hour; for others see `LocalClock.to_epoch_for_timer`.

        Examples
        --------
        >>> hop = HoppingSliceAssigner(10, 5)
        >>> hop.is_window_fired(20, 18), hop.is_window_fired(20, 19)
        (False, True)
        """
        last = int64("window_end", window_end) - 1
        return window_end != MAX_WATERMARK and int(self.clock.to_epoch_for_timer([last])[0]) <= progress

    def get_next_trigger_watermark(self, watermark: int) -> int:
        """The first watermark after this one at which some window may end.

        A local aggregate may wait for it. Until then no window ends in UTC, and in zones that change their
        clocks; in the others this is Flink's answer on the grid of UTC (FLINK-38075), which can be too late
        where the offset is no multiple of the slice. So the operators here do not ask it.

        Examples
        --------
        >>> TumblingSliceAssigner(10).get_next_trigger_watermark(12)
        19
        """
        watermark = int64("watermark", watermark)
        if watermark == MAX_WATERMARK:
            return watermark
        now = np.array([watermark])
        local = self.clock.to_local(now) if self.clock.uses_dst else now
        start = floor_to(local, self.interval, self.offset, "a window's start")
        last = add(start, self.interval - 1, "a window's time")
        trigger = int((self.clock.to_epoch_for_timer(last) if self.clock.uses_dst else last)[0])
        return trigger if trigger > watermark else int64("a watermark", trigger + self.interval)

    def last_passed(self, watermark: int) -> int:
        """The end of the last window that is over at this watermark, be it empty.

        Examples
        --------
        >>> TumblingSliceAssigner(10).last_passed(18), TumblingSliceAssigner(10).last_passed(19)
        (10, 20)
        """
        end = self.clock.passed(watermark) + 1
        return max(min(end - (end - self.offset) % self.interval, MAX_WATERMARK), MIN_WATERMARK)

    def expired_slices(self, window_end: int) -> list[int]:
        """The ends of the slices that no later window needs once this one has fired."""
        return [window_end]

    def merged_slices(self, window_end: int) -> tuple[int | None, list[int]]:
        """The slices of a window: that, if any, to which its parts are added, and the parts, last first."""
        return None, [window_end]

    def get_next_window_end(self, window_end: int, is_empty: bool) -> int | None:
        """The window of the same key that is to fire after this one, even if no more rows come."""
        return None


class TumblingSliceAssigner(SliceAssigner):
    """TUMBLE: windows of one size, side by side.

    Parameters
    ----------
    size : int or timedelta
        Their length; an int is ms.
    offset : int or timedelta, default 0
        Moves them; less than `size` either way.
    time_zone : str, default "UTC"
        Whose wall clock they follow.
    event_time : bool, default True
        False: processing time.

    Raises
    ------
    TypeError, ValueError, OverflowError
        For a duration that is none, not positive, no whole ms, or too long; for an offset too large; for an
        unknown zone.

    Examples
    --------
    >>> day = TumblingSliceAssigner(86_400_000, time_zone="America/New_York")
    >>> ends = day.assign_slice_ends([1615705200000, 1615780800000])  # 14 March 2021, 3:00; midnight
    >>> ends - day.window_starts(ends), (day.timers(ends) + 1) % 86_400_000 // 3_600_000
    (array([86400000, 86400000]), array([4, 4]))
    """

    def __init__(
        self, size: Length, offset: Length = 0, time_zone: str = "UTC", *, event_time: bool = True
    ) -> None:
        self.size = self.interval = positive("size", size)
        self.offset = milliseconds("offset", offset)
        if abs(self.offset) >= self.size:
            raise ValueError(
                f"offset must be less than size ({self.size} ms) either way, got {self.offset} ms"
            )
        self.clock, self.is_event_time = LocalClock(time_zone), event_time

    def last_window_ends(self, slice_ends: Int64s) -> NDArray[np.int64]:
        """A slice is its window."""
        return column("slice_ends", slice_ends)

    def window_starts(self, window_ends: Int64s) -> NDArray[np.int64]:
        """The start of each window."""
        return add(column("window_ends", window_ends), -self.size, "a window's start")

    def __repr__(self) -> str:
        return f"TUMBLE(size={self.size} ms{_where(self)})"


class HoppingSliceAssigner(SliceAssigner):
    """HOP: windows of one size, one every slide; a slice is a slide, shared by all windows over it.

    Parameters
    ----------
    size, slide : int or timedelta
        The windows' length, a multiple of their distance; an int is ms.
    offset, time_zone, event_time
        As of `TumblingSliceAssigner`; the offset may be any.

    Raises
    ------
    TypeError, ValueError, OverflowError
        As `TumblingSliceAssigner`, or if `size` is no multiple of `slide`.

    Examples
    --------
    >>> hop = HoppingSliceAssigner(size=3_600_000, slide=600_000)
    >>> hop.assign_slice_ends([0, 599_999, 600_000])
    array([ 600000,  600000, 1200000])
    >>> hop.get_last_window_end(600_000), hop.window_starts([600_000])
    (3600000, array([-3000000]))
    """

    def __init__(
        self,
        size: Length,
        slide: Length,
        offset: Length = 0,
        time_zone: str = "UTC",
        *,
        event_time: bool = True,
    ) -> None:
        self.size, self.interval = multiple("size", size, "slide", slide)
        self.offset = milliseconds("offset", offset)
        self.clock, self.is_event_time = LocalClock(time_zone), event_time

    def last_window_ends(self, slice_ends: Int64s) -> NDArray[np.int64]:
        """The window that begins with the slice."""
        return add(column("slice_ends", slice_ends), self.size - self.interval, "a window's end")

    def window_starts(self, window_ends: Int64s) -> NDArray[np.int64]:
        """The start of each window."""
        return add(column("window_ends", window_ends), -self.size, "a window's start")

    def expired_slices(self, window_end: int) -> list[int]:
        """The window's first slice."""
        return [self.get_window_start(window_end) + self.interval]

    def merged_slices(self, window_end: int) -> tuple[int | None, list[int]]:
        """Into a fresh accumulator: all slices of the window."""
        return None, list(range(window_end, self.get_window_start(window_end), -self.interval))

    def get_next_window_end(self, window_end: int, is_empty: bool) -> int | None:
        """One slide on, unless nothing is left."""
        return None if is_empty else window_end + self.interval

    def __repr__(self) -> str:
        return f"HOP(size={self.size} ms, slide={self.interval} ms{_where(self)})"


class CumulativeSliceAssigner(SliceAssigner):
    """CUMULATE: windows that begin together and grow by a step, up to a size; then they begin anew.

    Parameters
    ----------
    max_size, step : int or timedelta
        The longest window's length, a multiple of the step by which they grow; an int is ms.
    offset, time_zone, event_time
        As of `HoppingSliceAssigner`.

    Raises
    ------
    TypeError, ValueError, OverflowError
        As `HoppingSliceAssigner`.

    Examples
    --------
    >>> so_far = CumulativeSliceAssigner(max_size=86_400_000, step=3_600_000)
    >>> so_far.window_starts([3_600_000, 86_400_000, 90_000_000]), so_far.get_last_window_end(3_600_000)
    (array([       0,        0, 86400000]), 86400000)
    """

    def __init__(
        self,
        max_size: Length,
        step: Length,
        offset: Length = 0,
        time_zone: str = "UTC",
        *,
        event_time: bool = True,
    ) -> None:
        self.size, self.interval = multiple("max_size", max_size, "step", step)
        self.offset = milliseconds("offset", offset)
        self.clock, self.is_event_time = LocalClock(time_zone), event_time

    def last_window_ends(self, slice_ends: Int64s) -> NDArray[np.int64]:
        """The longest window that begins where the slice's windows do."""
        return add(self.window_starts(slice_ends), self.size, "a window's end")

    def window_starts(self, window_ends: Int64s) -> NDArray[np.int64]:
        """Where all windows begin that may end there."""
        last = add(column("window_ends", window_ends), -1, "a window's time")
        return floor_to(last, self.size, self.offset, "a window's start")

    def expired_slices(self, window_end: int) -> list[int]:
        """The window's last slice, which has been merged into the first; after the longest window both.

        The first slice alone is Flink's to keep, even if it is the longest window, where it is never let go.
        The operators here let it go.
        """
        first = self.get_window_start(window_end) + self.interval
        if window_end == first:
            return []
        return [window_end] if window_end < self.get_last_window_end(window_end) else [window_end, first]

    def merged_slices(self, window_end: int) -> tuple[int | None, list[int]]:
        """Into the first slice: the last."""
        first = self.get_window_start(window_end) + self.interval
        return first, [] if window_end == first else [window_end]

    def get_next_window_end(self, window_end: int, is_empty: bool) -> int | None:
        """One step on, up to the longest window."""
        following = window_end + self.interval
        return following if following <= self.get_last_window_end(window_end) else None

    def __repr__(self) -> str:
        return f"CUMULATE(max_size={self.size} ms, step={self.interval} ms{_where(self)})"


class WindowedSliceAssigner(SliceAssigner):
    """Rows that are in windows already: an aggregate of windows' results, by window.

    What `assign_slice_ends` takes is then the windows' ends, local ms, instead of timestamps.

    Parameters
    ----------
    inner : SliceAssigner
        Which made the windows.

    Raises
    ------
    TypeError
        If `inner` is no slice assigner.

    Examples
    --------
    >>> again = WindowedSliceAssigner(HoppingSliceAssigner(3_600_000, 600_000))
    >>> again.get_last_window_end(1_200_000), again.get_window_start(1_200_000)
    (1200000, -2400000)
    """

    def __init__(self, inner: SliceAssigner) -> None:
        if not isinstance(inner, SliceAssigner):
            raise TypeError(
                f"inner must be a slice assigner, such as TumblingSliceAssigner(...), got {inner!r}"
            )
        self.inner = inner
        self.interval, self.offset, self.size = inner.interval, inner.offset, inner.size
        self.clock, self.is_event_time = inner.clock, True

    def assign_slice_ends(self, timestamps: Int64s) -> NDArray[np.int64]:
        """A row's slice is its window."""
        return column("window_ends", timestamps)

    def last_window_ends(self, slice_ends: Int64s) -> NDArray[np.int64]:
        """A slice is its window."""
        return column("slice_ends", slice_ends)

    def window_starts(self, window_ends: Int64s) -> NDArray[np.int64]:
        """The start of each window, as it was made."""
        return self.inner.window_starts(window_ends)

    def __repr__(self) -> str:
        return f"windowed {self.inner!r}"


def _where(assigner: SliceAssigner) -> str:
    moved = f", offset={assigner.offset} ms" if assigner.offset else ""
    zone = assigner.clock.time_zone
    return (
        moved
        + (f", {zone}" if zone != "UTC" else "")
        + ("" if assigner.is_event_time else ", processing time")
    )
