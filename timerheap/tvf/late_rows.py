"""Which rows are late: those whose last window, or whose session, has ended."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from timerheap.timer import lateness
from timerheap.tvf.columns import group_by
from timerheap.tvf.slices import SliceAssigner


class LateRows(NamedTuple):
    """Rows, or partials, that were dropped as late."""

    rows: NDArray[np.intp]  # their positions in the input
    late_by: NDArray[np.int64]  # how much longer the watermark's delay would have had to be to keep each, ms


def late_slices(assigner: SliceAssigner, slice_ends: NDArray[np.int64], watermark: int) -> LateRows:
    """Return the slices whose last window has ended; in processing time there are none."""
    rows, late_by = np.empty(0, np.intp), np.empty(0, np.int64)
    if assigner.is_event_time:
        passed = assigner.last_passed(watermark)
        rows = np.flatnonzero(slice_ends <= passed)
    if len(rows):
        last = assigner.last_window_ends(slice_ends[rows])
        rows, last = rows[last <= passed], last[last <= passed]
        late_by = lateness(watermark, assigner.timers(last))
    return LateRows(rows, late_by)


class Intervals(NamedTuple):
    """Sessions as columns, sorted by key."""

    keys: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


def late_for_sessions(rows: Intervals, held: Intervals, passed: int) -> NDArray[np.intp]:
    """Return the rows, sessions of one each, that are late even for those which are `held` when they come."""
    late: list[int] = []
    concerned = np.flatnonzero(np.isin(rows.keys, rows.keys[rows.ends - 1 <= passed]))
    groups = group_by(rows.keys[concerned])
    for first, size in zip(groups.starts.tolist(), groups.sizes.tolist(), strict=True):
        of_key = concerned[groups.order[first : first + size]]
        key = rows.keys[of_key[0]]
        mine = slice(*(np.searchsorted(held.keys, key, side) for side in ("left", "right")))
        sessions = _Sessions(held.starts[mine].tolist(), held.ends[mine].tolist())
        starts, ends = rows.starts[of_key].tolist(), rows.ends[of_key].tolist()
        for row, start, end in zip(of_key.tolist(), starts, ends, strict=True):
            if not sessions.add(start, end, passed):
                late.append(row)
    return np.array(sorted(late), np.intp)


class _Sessions:
    """The sessions of one key: sorted, disjoint, and not touching each other."""

    def __init__(self, starts: list[int], ends: list[int]) -> None:
        self.starts, self.ends = starts, ends

    def add(self, start: int, end: int, passed: int) -> bool:
        """Merge a session with those that it touches; return False if the merged session has ended."""
        first, last = bisect_left(self.ends, start), bisect_right(self.starts, end)
        if first < last:
            start, end = min(start, self.starts[first]), max(end, self.ends[last - 1])
        if end - 1 <= passed:
            return False
        self.starts[first:last], self.ends[first:last] = [start], [end]
        return True
