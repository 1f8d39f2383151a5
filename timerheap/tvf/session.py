"""SESSION: windows of one key's rows that come close enough together."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from timerheap._heap import TimerHeap
from timerheap.duration import Length, positive
from timerheap.timer import MIN_WATERMARK, int64
from timerheap.tvf.aggregate import Aggregate
from timerheap.tvf.arithmetic import Int64s, add, column
from timerheap.tvf.columns import group_by
from timerheap.tvf.partials import Aggregation, Partials
from timerheap.tvf.results import LateRows, WindowResults, how_late
from timerheap.tvf.zone import LocalClock

__all__ = ["SessionUnsliceAssigner", "SessionWindowAggregate"]


class SessionUnsliceAssigner:
    """How sessions lie in time; beside `SliceAssigner`, since no windows share a slice of them.

    Parameters
    ----------
    gap : int or timedelta
        A session ends this long after its last row; an int is ms.
    time_zone : str, default "UTC"
        Whose wall clock shows the windows' bounds.

    Attributes
    ----------
    interval : int
        The gap, ms: the ends of two sessions of a key are further apart.
    clock : LocalClock
    is_event_time : bool
        True: sessions are of the rows' own time.

    Notes
    -----
    Flink: ``SessionUnsliceAssigner``.
    """

    is_event_time = True

    def __init__(self, gap: Length, time_zone: str = "UTC") -> None:
        self.interval = positive("gap", gap)
        self.clock = LocalClock(time_zone)


class SessionWindowAggregate:
    """Windows by key that last until no row has come for a gap; each fires when the watermark is past it.

    Parameters
    ----------
    gap : int or timedelta
        A session ends this long after its last row; an int is ms.
    aggregates : sequence of Aggregate
        What is computed of each.
    time_zone : str, default "UTC"
        Whose wall clock shows the windows' bounds.

    Attributes
    ----------
    assigner, aggregation
        The `SessionUnsliceAssigner`, and the `Aggregation` of the aggregates.
    watermark : int
        Epoch ms; ``MIN_WATERMARK`` before the first.
    late_rows : int
        How many rows have been dropped: those whose session, with all that it touches, had ended.

    Notes
    -----
    Flink: ``UnsliceSyncStateWindowAggProcessor`` and ``MergingWindowSet``. Sessions that just touch are one.
    The gap, too, is one on the wall clock: an hour that the clock leaves out ends a session that is shorter
    of breath, as it does in Flink; in "UTC" it is elapsed time.
    State is one accumulator for each session, sorted by key. A batch costs a sort of it and of the state;
    Python takes a step a row only where a key has rows that come too late for a session of their own.

    Examples
    --------
    >>> from timerheap.tvf import Count
    >>> visits = SessionWindowAggregate(gap=1_800_000, aggregates=[Count()])
    >>> late = visits.add([7, 7, 7], [0, 600_000, 9_000_000])
    >>> ended = visits.advance_watermark(2_399_999)
    >>> ended.window_starts, ended.window_ends, ended.results[0].data
    (array([0]), array([2400000]), array([2]))
    """

    def __init__(self, gap: Length, aggregates: Sequence[Aggregate], time_zone: str = "UTC") -> None:
        self.assigner = SessionUnsliceAssigner(gap, time_zone)
        self.aggregation = Aggregation(aggregates)
        self.watermark = MIN_WATERMARK
        self.late_rows = 0
        self._starts = np.empty(0, np.int64)
        self._sessions = self.aggregation.empty()  # a session's slice is the session
        self._timers = TimerHeap()
        self._changed = [np.empty(0, np.int64)]  # keys whose sessions are no longer as they were

    def __len__(self) -> int:
        """The number of sessions."""
        return len(self._sessions)

    def add(
        self,
        key_ids: Int64s,
        timestamps: Int64s,
        inputs: Mapping[str, object] | None = None,
        signs: object = None,
    ) -> LateRows:
        """Take rows, in the order in which they came.

        Parameters
        ----------
        key_ids, timestamps, inputs, signs
            As `LocalWindowAggregate.add`.

        Returns
        -------
        LateRows
            Which rows were dropped.

        Raises
        ------
        KeyError, TypeError, ValueError, OverflowError
            If a column is missing, or not what is asked for; then nothing has changed.
        """
        keys = column("key_ids", key_ids, np.size(timestamps))
        starts = self.assigner.clock.to_local(column("timestamps", timestamps))
        ends = add(starts, self.assigner.interval, "a session's end")
        late = self._late(keys, starts, ends)
        # A row is a slice of its own until it is known which it touches.
        numbers = np.arange(len(keys))
        rows = self.aggregation.accumulate(keys, numbers, inputs, signs)
        kept = np.setdiff1d(numbers, late)
        self._merge(starts[kept], Partials(keys[kept], ends[kept], rows[kept].accumulators))
        self.late_rows += len(late)
        return LateRows(late, how_late(self.watermark, self.assigner.clock.passes_at(ends[late] - 1)))

    def advance_watermark(self, watermark: int) -> WindowResults:
        """Set the watermark, and fire all sessions that have ended.

        A watermark that does not rise does nothing.

        Raises
        ------
        TypeError, OverflowError
            If `watermark` is no int64, or a sum does not fit; then nothing has changed.
        Exception
            What a Python aggregate raises; then, too.
        """
        watermark = max(int64("watermark", watermark), self.watermark)
        ended = np.zeros(len(self), np.bool_)
        if (head := self._timers.peek()) is not None and head.timestamp <= watermark:
            ended = self._sessions.slice_ends - 1 <= self.assigner.clock.passed(watermark)
        results = self._evaluate(ended)
        self._changed.append(self._sessions.key_ids[ended])
        self._starts, self._sessions = self._starts[~ended], self._sessions[~ended]
        self._timers.pop_due(watermark)
        self.watermark = watermark
        return results

    def open_windows(self) -> WindowResults:
        """The current results of all sessions that have not ended."""
        return self._evaluate(np.ones(len(self), np.bool_))

    def next_timer(self) -> int | None:
        """The watermark that next ends a session, as far as is known, or None."""
        head = self._timers.peek()
        return None if head is None else head.timestamp

    def snapshot(self) -> tuple[NDArray[np.int64], Partials]:
        """Give the state: the sessions' starts, and their ends (as slices) and accumulators. O(1)."""
        return self._starts, self._sessions

    def changes(self) -> tuple[NDArray[np.int64], Partials, NDArray[np.int64]]:
        """Give what has changed since the last call, or since `restore`.

        Returns
        -------
        starts, sessions
            As of `snapshot`: all sessions of the keys of which any has changed.
        keys : ndarray of int64
            Those keys, with those that have no session any more.
        """
        keys = np.unique(np.concatenate(self._changed))
        self._changed = [np.empty(0, np.int64)]
        concerned = np.isin(self._sessions.key_ids, keys)
        return self._starts[concerned], self._sessions[concerned], keys

    def restore(
        self, starts: NDArray[np.int64], sessions: Partials, watermark: int, late_rows: int = 0
    ) -> None:
        """Take in the state of an operator with the same gap and aggregates, instead of the own."""
        self.watermark, self.late_rows = int64("watermark", watermark), int64("late_rows", late_rows)
        self._starts, self._sessions = np.empty(0, np.int64), self.aggregation.empty()
        self._timers.clear()
        self._merge(column("starts", starts, len(sessions)), sessions)
        self._changed = [np.empty(0, np.int64)]

    def _late(
        self, keys: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> NDArray[np.intp]:
        """Which rows come too late, even for the sessions that are there when they come."""
        passed = self.assigner.clock.passed(self.watermark)
        late: list[int] = []
        concerned = np.flatnonzero(np.isin(keys, keys[ends - 1 <= passed]))
        groups = group_by(keys[concerned])
        for first, size in zip(groups.starts.tolist(), groups.sizes.tolist(), strict=True):
            rows = concerned[groups.order[first : first + size]]
            key = keys[rows[0]]
            mine = slice(*(np.searchsorted(self._sessions.key_ids, key, side) for side in ("left", "right")))
            sessions = _Intervals(self._starts[mine].tolist(), self._sessions.slice_ends[mine].tolist())
            for row, start, end in zip(
                rows.tolist(), starts[rows].tolist(), ends[rows].tolist(), strict=True
            ):
                if not sessions.add(start, end, passed):
                    late.append(row)
        return np.array(sorted(late), np.intp)

    def _merge(self, starts: NDArray[np.int64], rows: Partials) -> None:
        """Unite sessions with those that they touch."""
        if not len(rows):
            return
        before = len(self._sessions)
        both = self.aggregation.concatenate([self._sessions, rows])
        both_starts = np.concatenate([self._starts, starts])
        order = np.lexsort((both_starts, both.key_ids))
        keys, begins, ends = both.key_ids[order], both_starts[order], both.slice_ends[order]
        new = np.ones(len(order), np.bool_)
        new[1:] = (keys[1:] != keys[:-1]) | (begins[1:] > _latest(keys, ends)[:-1])
        number = np.empty(len(order), np.int64)
        number[order] = np.cumsum(new)
        groups = group_by(number)
        ordered_ends = both.slice_ends[groups.order]
        merged = Partials(
            both.key_ids[groups.firsts],
            np.maximum.reduceat(ordered_ends, groups.starts),
            self.aggregation.merge_accumulators(groups, both.accumulators),
        )
        touched = np.maximum.reduceat(groups.order, groups.starts) >= before
        old = np.flatnonzero(np.repeat(touched, groups.sizes) & (groups.order < before))
        gone = groups.order[old]
        timers = self.assigner.clock.passes_at(merged.slice_ends[touched] - 1)
        gone_ends = both.slice_ends[gone]
        gone_timers = self.assigner.clock.passes_at(gone_ends - 1)

        self._starts = np.minimum.reduceat(both_starts[groups.order], groups.starts)
        self._sessions = merged
        self._changed.append(rows.key_ids)
        self._timers.remove_many(gone_timers, both.key_ids[gone], gone_ends)
        self._timers.push_many(timers, merged.key_ids[touched], merged.slice_ends[touched])

    def _evaluate(self, which: NDArray[np.bool_]) -> WindowResults:
        starts, sessions = self._starts[which], self._sessions[which]
        there = np.flatnonzero(sessions.rows != 0)
        order = there[np.argsort(sessions.slice_ends[there], kind="stable")]
        starts, sessions = starts[order], sessions[order]
        times = self.assigner.clock.to_epoch(sessions.slice_ends - 1)
        return WindowResults(
            sessions.key_ids, starts, sessions.slice_ends, times, self.aggregation.results(sessions)
        )


class _Intervals:
    """The sessions of one key: disjoint, in order, none touching another."""

    def __init__(self, starts: list[int], ends: list[int]) -> None:
        self.starts, self.ends = starts, ends

    def add(self, start: int, end: int, passed: int) -> bool:
        """Unite a session with those that it touches, unless all that has passed."""
        first, last = bisect_left(self.ends, start), bisect_right(self.starts, end)
        if first < last:
            start, end = min(start, self.starts[first]), max(end, self.ends[last - 1])
        if end - 1 <= passed:
            return False
        self.starts[first:last], self.ends[first:last] = [start], [end]
        return True


def _latest(keys: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """The latest end so far, within each key; the keys are in order."""
    ranks = np.empty(len(ends), np.int64)
    by_end = np.argsort(ends)
    ranks[by_end] = np.arange(len(ends))
    # Ranks that rise from key to key make one running maximum serve all keys.
    base = np.cumsum(np.append(0, keys[1:] != keys[:-1])) * len(ends)
    latest: NDArray[np.int64] = ends[by_end[np.maximum.accumulate(ranks + base) - base]]
    return latest
