"""Slices for TUMBLE, HOP and CUMULATE: a row is stored once, and windows share slices.

A slice is identified by its end, and so is a window. Ends are exclusive and in local ms (`TimeZone`),
because windows follow local time. A timestamp is in epoch ms. Methods accept and return columns of int64.
"""

from __future__ import annotations

from math import gcd

import numpy as np
from numpy.typing import NDArray

from timerheap._arguments import Length, milliseconds, multiple, positive, window_length
from timerheap.errors import ArgumentValueError
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK
from timerheap.tvf.columns import Int64s, add, column, floor_to
from timerheap.tvf.zone import TimeZone


class SliceAssigner:
    """Defines windows of one kind and the slices that they consist of (Flink: ``SliceAssigners``).

    All methods are array arithmetic, O(n); a time zone adds one search per row.
    """

    interval: int  # the distance between the ends of two slices, ms
    size: int  # the length of the longest window, ms

    def __init__(self, offset: Length, time_zone: str, event_time: bool) -> None:
        self.offset = milliseconds("offset", offset)
        self.zone, self.is_event_time = TimeZone(time_zone), event_time

    def assign_slice_ends(self, timestamps: Int64s) -> NDArray[np.int64]:
        """Return the end of each row's slice, in local ms.

        Timestamps are in epoch ms. A row without a time is in no window: a null raises ArgumentValueError,
        and a slice whose end does not fit into int64 ArgumentRangeError.
        """
        local = self.zone.to_local(column("timestamps", timestamps))
        starts = floor_to(local, self.interval, self.offset, "a slice's start")
        return add(starts, self.interval, "a slice's end")

    def last_window_ends(self, slice_ends: Int64s) -> NDArray[np.int64]:
        """Return the end of the last window that each slice is part of."""
        return column("slice_ends", slice_ends)

    def window_starts(self, window_ends: Int64s) -> NDArray[np.int64]:
        """Return the start of each window, inclusive."""
        return add(column("window_ends", window_ends), -self.size, "a window's start")

    def next_window_ends(self, slice_ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the end of the first window, empty or not, that ends with each slice or later."""
        return slice_ends

    def window_times(self, window_ends: Int64s) -> NDArray[np.int64]:
        """Return SQL's ``window_time``: the last instant of each window, epoch ms.

        If that local time occurs twice, this is the first of the two instants.
        """
        return self.zone.to_epoch(add(column("window_ends", window_ends), -1, "a window's time"))

    def timers(self, window_ends: Int64s) -> NDArray[np.int64]:
        """Return the watermark at which each window fires, epoch ms: when its last local ms has passed."""
        return self.zone.passes_at(add(column("window_ends", window_ends), -1, "a window's time"))

    def last_passed(self, watermark: int) -> int:
        """Return the end of the last slice, empty or not, that is over at this watermark."""
        end = self.zone.passed(watermark) + 1
        return max(min(end - (end - self.offset) % self.interval, MAX_WATERMARK), MIN_WATERMARK)


class TumblingSliceAssigner(SliceAssigner):
    """TUMBLE: windows of one size that do not overlap.

    Parameters
    ----------
    size : int, timedelta or str
        The length of the windows; an int is in ms.
    offset : int, timedelta or str, default 0
        The shift of the windows; its absolute value must be less than `size`.
    time_zone : str, default "UTC"
        The time zone whose local time the windows follow.
    event_time : bool, default True
        Whether windows are in event time; if False, in processing time.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If a duration has the wrong type, is not positive, not a whole number of ms or too long; if the offset
        is too large; if the time zone is unknown.

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
        self.size = self.interval = window_length("size", size)
        super().__init__(offset, time_zone, event_time)
        if abs(self.offset) >= self.size:
            raise ArgumentValueError(
                f"offset must be less than size ({self.size} ms) in either direction, got {self.offset} ms"
            )

    def __repr__(self) -> str:
        return f"TUMBLE(size={self.size} ms{_where(self)})"


class HoppingSliceAssigner(SliceAssigner):
    """HOP: windows of one size, one per slide, which share slices.

    A slice is as long as the greatest common divisor of size and slide: a slide, if the size is a multiple.

    Parameters
    ----------
    size, slide : int, timedelta or str
        The length of the windows, and the distance between their starts; an int is in ms.
    offset, time_zone, event_time
        As in `TumblingSliceAssigner`, but the offset is not limited.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        As in `TumblingSliceAssigner`, or if `size` is less than `slide`.

    Examples
    --------
    >>> hop = HoppingSliceAssigner(size=3_600_000, slide=600_000)
    >>> hop.assign_slice_ends([0, 599_999, 600_000])
    array([ 600000,  600000, 1200000])
    >>> hop.last_window_ends([600_000]), hop.window_starts([600_000])
    (array([3600000]), array([-3000000]))
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
        self.size, self.slide = window_length("size", size), positive("slide", slide)
        if self.slide > self.size:
            raise ArgumentValueError(
                f"slide must be at most size ({self.size} ms), got {self.slide} ms: rows between two windows "
                "would be in none; filter such rows out, and use tumbling windows"
            )
        self.interval = gcd(self.size, self.slide)
        super().__init__(offset, time_zone, event_time)

    def last_window_ends(self, slice_ends: Int64s) -> NDArray[np.int64]:
        """Return the end of the last window that starts with each slice or before."""
        ends = column("slice_ends", slice_ends)
        if self.slide == self.interval:
            return add(ends, self.size - self.interval, "a window's end")
        starts = floor_to(ends - self.interval, self.slide, self.offset, "a window's start")
        return add(starts, self.size, "a window's end")

    def next_window_ends(self, slice_ends: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.slide == self.interval:
            return slice_ends
        shift = (self.size + self.offset) % self.slide
        return add(slice_ends, (shift - slice_ends % self.slide) % self.slide, "a window's end")

    def __repr__(self) -> str:
        return f"HOP(size={self.size} ms, slide={self.slide} ms{_where(self)})"


class CumulativeSliceAssigner(SliceAssigner):
    """CUMULATE: windows with a common start that grow by a step up to a maximum size.

    Parameters
    ----------
    max_size, step : int, timedelta or str
        The length of the longest window, a multiple of the step; an int is in ms.
    offset, time_zone, event_time
        As in `HoppingSliceAssigner`.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        As in `HoppingSliceAssigner`.

    Examples
    --------
    >>> so_far = CumulativeSliceAssigner(max_size=86_400_000, step=3_600_000)
    >>> so_far.window_starts([3_600_000, 86_400_000, 90_000_000]), so_far.last_window_ends([3_600_000])
    (array([       0,        0, 86400000]), array([86400000]))
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
        super().__init__(offset, time_zone, event_time)

    def last_window_ends(self, slice_ends: Int64s) -> NDArray[np.int64]:
        """Return the end of the longest window with the same start as the slice's windows."""
        return add(self.window_starts(slice_ends), self.size, "a window's end")

    def window_starts(self, window_ends: Int64s) -> NDArray[np.int64]:
        """Return the common start of the windows that may end there."""
        last = add(column("window_ends", window_ends), -1, "a window's time")
        return floor_to(last, self.size, self.offset, "a window's start")

    def __repr__(self) -> str:
        return f"CUMULATE(max_size={self.size} ms, step={self.interval} ms{_where(self)})"


class SessionUnsliceAssigner:
    """Defines sessions in event time (Flink: ``SessionUnsliceAssigner``); they do not share slices."""

    is_event_time = True

    def __init__(self, gap: Length, time_zone: str = "UTC") -> None:
        self.interval = window_length("gap", gap)  # the ends of two sessions of a key are further apart
        self.zone = TimeZone(time_zone)


def _where(assigner: SliceAssigner) -> str:
    moved = f", offset={assigner.offset} ms" if assigner.offset else ""
    zone = assigner.zone.name
    return (
        moved
        + (f", {zone}" if zone != "UTC" else "")
        + ("" if assigner.is_event_time else ", processing time")
    )
