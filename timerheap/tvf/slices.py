"""Slices for TUMBLE, HOP and CUMULATE: a row is stored once, and windows share slices.

A slice is identified by its end, and so is a window. Ends are exclusive and in local ms (`TimeZone`),
because windows follow local time. A timestamp is in epoch ms. Methods accept and return columns of int64;
each ``get_...`` method is the variant for one number.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from timerheap._arguments import Length, int64, milliseconds, multiple, window_length
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK
from timerheap.tvf.zone import Int64s, TimeZone, add, column, floor_to


class SliceAssigner(ABC):
    """Defines windows of one kind and the slices that they consist of.

    Attributes
    ----------
    interval : int
        The distance between the ends of two slices, ms.
    offset : int
        The shift of the windows from the epoch, ms.
    size : int
        The length of the longest window, ms.
    zone : TimeZone
        The time zone whose local time the windows follow.
    is_event_time : bool
        Whether windows are in event time; if not, in processing time.

    Notes
    -----
    Flink: ``SliceAssigners``. All methods are array arithmetic, O(n); a time zone adds one search per row.
    """

    interval: int
    offset: int
    size: int
    zone: TimeZone
    is_event_time: bool

    def assign_slice_ends(self, timestamps: Int64s) -> NDArray[np.int64]:
        """Return the end of each row's slice.

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
            If the timestamps are not integers, or some are null: a row without a time is in no window.
        OverflowError
            If the end of a slice does not fit into int64.
        """
        local = self.zone.to_local(column("timestamps", timestamps))
        starts = floor_to(local, self.interval, self.offset, "a slice's start")
        return add(starts, self.interval, "a slice's end")

    def get_slice_end(self, timestamp: int) -> int:
        """Return the end of the slice of one timestamp; see `assign_slice_ends`."""
        return int(self.assign_slice_ends([timestamp])[0])

    @abstractmethod
    def last_window_ends(self, slice_ends: Int64s) -> NDArray[np.int64]:
        """Return the end of the last window that each slice is part of."""

    def get_last_window_end(self, slice_end: int) -> int:
        """Return the end of the last window of one slice; see `last_window_ends`."""
        return int(self.last_window_ends([slice_end])[0])

    @abstractmethod
    def window_starts(self, window_ends: Int64s) -> NDArray[np.int64]:
        """Return the start of each window, inclusive."""

    def get_window_start(self, window_end: int) -> int:
        """Return the start of one window; see `window_starts`."""
        return int(self.window_starts([window_end])[0])

    def window_times(self, window_ends: Int64s) -> NDArray[np.int64]:
        """Return SQL's ``window_time``: the last instant of each window, epoch ms.

        If that local time occurs twice, this is the first of the two instants.
        """
        return self.zone.to_epoch(add(column("window_ends", window_ends), -1, "a window's time"))

    def timers(self, window_ends: Int64s) -> NDArray[np.int64]:
        """Return the watermark at which each window fires, epoch ms: when its last local ms has passed."""
        return self.zone.passes_at(add(column("window_ends", window_ends), -1, "a window's time"))

    def is_window_fired(self, window_end: int, progress: int) -> bool:
        """Return whether Flink has fired a window at this watermark (``isWindowFired``).

        In zones whose clocks change by an hour on the hour, this is whether the watermark has reached the
        window's timer (`timers`). For other zones see `TimeZone.to_epoch_for_timer`.

        Examples
        --------
        >>> hop = HoppingSliceAssigner(10, 5)
        >>> hop.is_window_fired(20, 18), hop.is_window_fired(20, 19)
        (False, True)
        """
        last = int64("window_end", window_end) - 1
        return window_end != MAX_WATERMARK and int(self.zone.to_epoch_for_timer([last])[0]) <= progress

    def get_next_trigger_watermark(self, watermark: int) -> int:
        """Return the first watermark after this one at which a window may end.

        No window ends before it in UTC and in zones with daylight saving time. In other zones this is, as in
        Flink (FLINK-38075), computed on the grid of UTC, which can be too late where the offset is not a
        multiple of `interval`. The operators of this package therefore do not use it.

        Examples
        --------
        >>> TumblingSliceAssigner(10).get_next_trigger_watermark(12)
        19
        """
        watermark = int64("watermark", watermark)
        if watermark == MAX_WATERMARK:
            return watermark
        now = np.array([watermark])
        local = self.zone.to_local(now) if self.zone.uses_dst else now
        start = floor_to(local, self.interval, self.offset, "a window's start")
        last = add(start, self.interval - 1, "a window's time")
        trigger = int((self.zone.to_epoch_for_timer(last) if self.zone.uses_dst else last)[0])
        return trigger if trigger > watermark else int64("a watermark", trigger + self.interval)

    def last_passed(self, watermark: int) -> int:
        """Return the end of the last window, empty or not, that is over at this watermark.

        Examples
        --------
        >>> TumblingSliceAssigner(10).last_passed(18), TumblingSliceAssigner(10).last_passed(19)
        (10, 20)
        """
        end = self.zone.passed(watermark) + 1
        return max(min(end - (end - self.offset) % self.interval, MAX_WATERMARK), MIN_WATERMARK)

    def expired_slices(self, window_end: int) -> list[int]:
        """Return the ends of the slices that no later window needs once this window has fired."""
        return [window_end]

    def merged_slices(self, window_end: int) -> tuple[int | None, list[int]]:
        """Return the slices of a window as in Flink.

        The first element is the slice that the others are merged into, or None; then the others, last first.
        """
        return None, [window_end]

    def get_next_window_end(self, window_end: int, is_empty: bool) -> int | None:
        """Return the end of the next window of the same key to fire even if no more rows arrive, or None."""
        return None


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
    TypeError, ValueError, OverflowError
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
        self.offset = milliseconds("offset", offset)
        if abs(self.offset) >= self.size:
            raise ValueError(
                f"offset must be less than size ({self.size} ms) in either direction, got {self.offset} ms"
            )
        self.zone, self.is_event_time = TimeZone(time_zone), event_time

    def last_window_ends(self, slice_ends: Int64s) -> NDArray[np.int64]:
        """Return the slices themselves: each slice is one window."""
        return column("slice_ends", slice_ends)

    def window_starts(self, window_ends: Int64s) -> NDArray[np.int64]:
        """Return the start of each window."""
        return add(column("window_ends", window_ends), -self.size, "a window's start")

    def __repr__(self) -> str:
        return f"TUMBLE(size={self.size} ms{_where(self)})"


class HoppingSliceAssigner(SliceAssigner):
    """HOP: windows of one size, one per slide; a slice is as long as a slide and shared by its windows.

    Parameters
    ----------
    size, slide : int, timedelta or str
        The length of the windows, a multiple of their distance; an int is in ms.
    offset, time_zone, event_time
        As in `TumblingSliceAssigner`, but the offset is not limited.

    Raises
    ------
    TypeError, ValueError, OverflowError
        As in `TumblingSliceAssigner`, or if `size` is not a multiple of `slide`.

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
        self.zone, self.is_event_time = TimeZone(time_zone), event_time

    def last_window_ends(self, slice_ends: Int64s) -> NDArray[np.int64]:
        """Return the end of the window that starts with each slice."""
        return add(column("slice_ends", slice_ends), self.size - self.interval, "a window's end")

    def window_starts(self, window_ends: Int64s) -> NDArray[np.int64]:
        """Return the start of each window."""
        return add(column("window_ends", window_ends), -self.size, "a window's start")

    def expired_slices(self, window_end: int) -> list[int]:
        """Return the first slice of the window."""
        return [self.get_window_start(window_end) + self.interval]

    def merged_slices(self, window_end: int) -> tuple[int | None, list[int]]:
        """Return None and all slices of the window."""
        return None, list(range(window_end, self.get_window_start(window_end), -self.interval))

    def get_next_window_end(self, window_end: int, is_empty: bool) -> int | None:
        """Return the end of the window one slide later, or None if no slice is left."""
        return None if is_empty else window_end + self.interval

    def __repr__(self) -> str:
        return f"HOP(size={self.size} ms, slide={self.interval} ms{_where(self)})"


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
    TypeError, ValueError, OverflowError
        As in `HoppingSliceAssigner`.

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
        self.zone, self.is_event_time = TimeZone(time_zone), event_time

    def last_window_ends(self, slice_ends: Int64s) -> NDArray[np.int64]:
        """Return the end of the longest window with the same start as the slice's windows."""
        return add(self.window_starts(slice_ends), self.size, "a window's end")

    def window_starts(self, window_ends: Int64s) -> NDArray[np.int64]:
        """Return the common start of the windows that may end there."""
        last = add(column("window_ends", window_ends), -1, "a window's time")
        return floor_to(last, self.size, self.offset, "a window's start")

    def expired_slices(self, window_end: int) -> list[int]:
        """Return the window's last slice, which is merged into the first; after the longest window, both.

        A window of one slice has no expired slices in Flink, even if it is the longest window; Flink then
        never removes that slice. The operators of this package remove it.
        """
        first = self.get_window_start(window_end) + self.interval
        if window_end == first:
            return []
        return [window_end] if window_end < self.get_last_window_end(window_end) else [window_end, first]

    def merged_slices(self, window_end: int) -> tuple[int | None, list[int]]:
        """Return the first slice, and the last one to merge into it."""
        first = self.get_window_start(window_end) + self.interval
        return first, [] if window_end == first else [window_end]

    def get_next_window_end(self, window_end: int, is_empty: bool) -> int | None:
        """Return the end of the window one step longer, or None after the longest."""
        following = window_end + self.interval
        return following if following <= self.get_last_window_end(window_end) else None

    def __repr__(self) -> str:
        return f"CUMULATE(max_size={self.size} ms, step={self.interval} ms{_where(self)})"


class WindowedSliceAssigner(SliceAssigner):
    """An assigner for rows that already have windows, such as the results of another aggregation.

    `assign_slice_ends` then expects the ends of the windows in local ms instead of timestamps.

    Parameters
    ----------
    inner : SliceAssigner
        The assigner of those windows.

    Raises
    ------
    TypeError
        If `inner` is not a slice assigner.

    Examples
    --------
    >>> again = WindowedSliceAssigner(HoppingSliceAssigner(3_600_000, 600_000))
    >>> again.get_last_window_end(1_200_000), again.get_window_start(1_200_000)
    (1200000, -2400000)
    """

    def __init__(self, inner: SliceAssigner) -> None:
        if not isinstance(inner, SliceAssigner):
            raise TypeError(
                f"inner must be a SliceAssigner, such as TumblingSliceAssigner(...), got {inner!r}"
            )
        self.inner = inner
        self.interval, self.offset, self.size = inner.interval, inner.offset, inner.size
        self.zone, self.is_event_time = inner.zone, True

    def assign_slice_ends(self, timestamps: Int64s) -> NDArray[np.int64]:
        """Return the ends themselves: the slice of a row is its window."""
        return column("window_ends", timestamps)

    def last_window_ends(self, slice_ends: Int64s) -> NDArray[np.int64]:
        """Return the slices themselves: each slice is one window."""
        return column("slice_ends", slice_ends)

    def window_starts(self, window_ends: Int64s) -> NDArray[np.int64]:
        """Return the start of each window, as `inner` defines it."""
        return self.inner.window_starts(window_ends)

    def __repr__(self) -> str:
        return f"windowed {self.inner!r}"


def _where(assigner: SliceAssigner) -> str:
    moved = f", offset={assigner.offset} ms" if assigner.offset else ""
    zone = assigner.zone.name
    return (
        moved
        + (f", {zone}" if zone != "UTC" else "")
        + ("" if assigner.is_event_time else ", processing time")
    )
