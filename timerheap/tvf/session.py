"""SESSION: windows of rows of one key that follow each other within a gap."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from timerheap._arguments import Length, int64
from timerheap._native._core import TimerHeap
from timerheap.timer import MIN_WATERMARK, lateness
from timerheap.tvf.accumulators import Aggregate
from timerheap.tvf.aggregates import Aggregation, Partials
from timerheap.tvf.columns import Int64s, add, column, group_by
from timerheap.tvf.slices import SessionUnsliceAssigner
from timerheap.tvf.window_aggregate import LateRows, WindowResults


class Intervals(NamedTuple):
    """Sessions as columns, sorted by key."""

    keys: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, sessions: Partials) -> Intervals:
        return cls(sessions.key_ids, _starts(sessions), sessions.slice_ends)


class SessionWindowAggregate:
    """Keyed windows that end a gap after their last row; each fires at a watermark of its end minus 1 ms.

    Parameters
    ----------
    gap : int, timedelta or str
        A session ends this long after its last row; an int is in ms.
    aggregates : sequence of Aggregate
        What to compute for each session, made by `aggregate`.
    time_zone : str, default "UTC"
        The time zone of the window bounds.

    Attributes
    ----------
    watermark : int
        Epoch ms; ``MIN_WATERMARK`` before the first watermark.
    late_rows : int
        The number of rows dropped as late: the session of the row, merged with all it touches, had ended.
    timers : TimerHeap
        The ends of sessions, in epoch ms, with the key as the key hash and the end as the namespace.

    Notes
    -----
    Flink: ``UnsliceSyncStateWindowAggProcessor`` and ``MergingWindowSet``. Sessions that touch are merged.
    The gap is measured in local time, as in Flink: where local time skips an hour, a session with a gap of
    less than an hour ends. In "UTC" the gap is elapsed time.
    State is one accumulator per session, sorted by key. A batch costs a sort of its rows and of the sessions
    of their keys, and a copy of the state; there is a Python step per row only for keys with rows that are
    too late for a session of their own.

    Examples
    --------
    >>> from timerheap.tvf import aggregate
    >>> visits = SessionWindowAggregate(gap=1_800_000, aggregates=[aggregate("count")])
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
        self._sessions = replace(self.aggregation.empty(), starts=np.empty(0, np.int64))
        self.timers = TimerHeap()
        self._changed = [np.empty(0, np.int64)]  # the keys whose sessions have changed

    def empty_copy(self) -> SessionWindowAggregate:
        """Return an operator with the same windows and aggregates, and no sessions."""
        return SessionWindowAggregate(
            self.assigner.interval, self.aggregation.aggregates, self.assigner.zone.name
        )

    def __len__(self) -> int:
        """Return the number of sessions."""
        return len(self._sessions)

    def add(
        self, key_ids: Int64s, timestamps: Int64s, inputs: Mapping[str, object] | None = None
    ) -> LateRows:
        """Add rows, in arrival order, as `GlobalWindowAggregate.add`; return those dropped as late."""
        rows = self.single_rows(key_ids, timestamps, inputs)
        late = self.late_of(rows, self._sessions)
        self.merge(rows.without(late.rows))
        self.late_rows += len(late.rows)
        return late

    def single_rows(
        self, key_ids: Int64s, timestamps: Int64s, inputs: Mapping[str, object] | None = None
    ) -> Partials:
        """Return rows in arrival order, each as a session of its own."""
        keys = column("key_ids", key_ids, np.size(timestamps))
        starts = self.assigner.zone.to_local(column("timestamps", timestamps))
        ends = add(starts, self.assigner.interval, "a session's end")
        rows = self.aggregation.accumulate(keys, np.arange(len(keys)), inputs)
        return Partials(keys, ends, rows.accumulators, starts)

    def late_of(self, rows: Partials, held: Partials) -> LateRows:
        """Return which of `single_rows` are late, also for the sessions that are `held`, by key and start."""
        passed = self.assigner.zone.passed(self.watermark)
        late = _late(Intervals.of(rows), Intervals.of(held), passed)
        passes = self.assigner.zone.passes_at(rows.slice_ends[late] - 1)
        return LateRows(late, lateness(self.watermark, passes))

    def advance_watermark(self, watermark: int) -> WindowResults:
        """Set the watermark and fire the sessions that have ended, as `GlobalWindowAggregate`.

        A watermark that is not higher than the current one has no effect.
        """
        watermark = max(int64("watermark", watermark), self.watermark)
        ended = self._ended(watermark)
        results = self.results(self._sessions[np.flatnonzero(ended)])
        self._close(ended, watermark)
        return results

    def close_windows(self, watermark: int) -> None:
        """Set the watermark as `advance_watermark` does, and compute no results.

        watermark: that of the operator, or a later one
        """
        self._close(self._ended(watermark), watermark)

    def _ended(self, watermark: int) -> NDArray[np.bool_]:
        """Return which sessions end at a watermark."""
        if (head := self.timers.peek()) is None or head.timestamp > watermark:
            return np.zeros(len(self), np.bool_)
        return self._sessions.slice_ends - 1 <= self.assigner.zone.passed(watermark)

    def _close(self, ended: NDArray[np.bool_], watermark: int) -> None:
        if ended.any():
            self._changed.append(self._sessions.key_ids[ended])
            self._sessions = self._sessions[~ended]
        self.timers.pop_due(watermark)
        self.watermark = watermark

    def take(self, rows: NDArray[np.bool_]) -> Partials:
        """Remove some of the sessions of `snapshot`, and return them."""
        taken, self._sessions = self._sessions[rows], self._sessions[~rows]
        self._changed.append(taken.key_ids)
        self.timers.remove_many(*self._timers_of(taken))
        return taken

    def set_aside(self, keys: NDArray[np.int64]) -> None:
        """Remove the sessions of distinct sorted keys, which is no change: `put_back` brings them back."""
        rows = self.rows_of(keys)
        self.timers.remove_many(*self._timers_of(self._sessions[rows]))
        self._sessions = self._sessions.without(rows)

    def put_back(self, sessions: Partials) -> None:
        """Add sessions of keys that have none, which is no change."""
        self._replace(np.empty(0, np.intp), self.sorted_sessions([sessions]))
        self.timers.push_many(*self._timers_of(sessions))

    def sorted_sessions(self, parts: list[Partials]) -> Partials:
        """Return sessions by key and start."""
        both = self.aggregation.concatenate(parts)
        return both[_by_key(both.key_ids, _starts(both))]

    def open_windows(self) -> WindowResults:
        """Return the current results of the sessions that have not ended, without firing them."""
        return self.results(self._sessions)

    def next_timer(self) -> int | None:
        """Return the watermark at which the next session ends if no more rows arrive, or None."""
        head = self.timers.peek()
        return None if head is None else head.timestamp

    def snapshot(self) -> Partials:
        """Return the state: the sessions, whose ends are those of slices, by key and start. O(1)."""
        return self._sessions

    def changes(self) -> tuple[Partials, NDArray[np.int64]]:
        """Return what has changed since the last call, or since `restore`.

        All sessions of the keys with a changed session; and the keys that no longer have a session.
        """
        keys = np.unique(np.concatenate(self._changed))
        self._changed = [np.empty(0, np.int64)]
        changed = self._sessions[self.rows_of(keys)]
        return changed, np.setdiff1d(keys, changed.key_ids)

    def restore(self, sessions: Partials, watermark: int, timers: TimerHeap | None = None) -> None:
        """Replace the state with that of an operator with the same gap; see `GlobalWindowAggregate.restore`.

        sessions: what `snapshot` returned, or the collected sessions of `changes`, in any order
        """
        self.watermark = int64("watermark", watermark)
        self._sessions = sessions[_by_key(sessions.key_ids, _starts(sessions))]
        self._changed = [np.empty(0, np.int64)]
        if timers is not None:
            self.timers = timers
        else:
            self.timers.clear()
            self.timers.push_many(*self._timers_of(self._sessions))

    def _timers_of(
        self, sessions: Partials
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the timers of sessions, for `TimerHeap.push_many`."""
        return self.assigner.zone.passes_at(sessions.slice_ends - 1), sessions.key_ids, sessions.slice_ends

    def counts(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many sessions each of the keys has."""
        first, last = (np.searchsorted(self._sessions.key_ids, keys, side) for side in ("left", "right"))
        return last - first

    def rows_of(self, keys: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the positions of the sessions of distinct sorted keys, in order."""
        first, sizes = np.searchsorted(self._sessions.key_ids, keys), self.counts(keys)
        rows: NDArray[np.intp] = np.arange(sizes.sum()) + np.repeat(first - np.cumsum(sizes) + sizes, sizes)
        return rows

    def merge(self, rows: Partials) -> None:
        """Merge sessions with those of the state that they touch."""
        if not len(rows):
            return
        held = self.rows_of(np.unique(rows.key_ids))
        before = len(held)
        both = self.aggregation.concatenate([self._sessions[held], rows])
        both_starts = _starts(both)
        order = np.lexsort((both_starts, both.key_ids))
        keys, begins, ends = both.key_ids[order], both_starts[order], both.slice_ends[order]
        new = np.ones(len(order), np.bool_)
        new[1:] = (keys[1:] != keys[:-1]) | (begins[1:] > _latest(keys, ends)[:-1])
        number = np.empty(len(order), np.int64)
        number[order] = np.cumsum(new)
        groups = group_by(number)
        merged = Partials(
            both.key_ids[groups.firsts],
            np.maximum.reduceat(both.slice_ends[groups.order], groups.starts),
            self.aggregation.merge_accumulators(groups, both.accumulators),
            np.minimum.reduceat(both_starts[groups.order], groups.starts),
        )
        touched = np.maximum.reduceat(groups.order, groups.starts) >= before
        old = np.flatnonzero(np.repeat(touched, groups.sizes) & (groups.order < before))
        gone, come = self._timers_of(both[groups.order[old]]), self._timers_of(merged[touched])
        self._replace(held, merged)
        self._changed.append(rows.key_ids)
        self.timers.remove_many(*gone)
        self.timers.push_many(*come)

    def _replace(self, held: NDArray[np.intp], sessions: Partials) -> None:
        """Replace all sessions of some keys, which are `held`, by others of these keys, sorted."""
        size, key_ids = len(self._sessions), self._sessions.key_ids
        kept = np.delete(np.arange(size), held)
        places = np.searchsorted(key_ids[kept], sessions.key_ids)
        order = np.insert(kept, places, size + np.arange(len(sessions)))
        self._sessions = self.aggregation.concatenate([self._sessions, sessions])[order]

    def results(self, sessions: Partials) -> WindowResults:
        """Return the results of sessions, ordered by their ends."""
        there = np.flatnonzero(sessions.rows != 0)
        sessions = sessions[there[np.argsort(sessions.slice_ends[there], kind="stable")]]
        keys, ends, results = sessions.key_ids, sessions.slice_ends, self.aggregation.results(sessions)
        return WindowResults(keys, _starts(sessions), ends, self.assigner.zone.to_epoch(ends - 1), results)


def _starts(sessions: Partials) -> NDArray[np.int64]:
    assert sessions.starts is not None
    return sessions.starts


def _by_key(key_ids: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the order of sessions by key and start; fast if they are mostly in order."""
    order = np.argsort(key_ids, kind="stable")
    keys, begins = key_ids[order], starts[order]
    if ((keys[1:] == keys[:-1]) & (begins[1:] < begins[:-1])).any():
        return np.lexsort((starts, key_ids))
    return order


def _latest(keys: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the latest end so far within each key; the keys are sorted."""
    ranks = np.empty(len(ends), np.int64)
    by_end = np.argsort(ends)
    ranks[by_end] = np.arange(len(ends))
    # Ranks that rise from key to key allow one running maximum for all keys.
    base = np.cumsum(np.append(0, keys[1:] != keys[:-1])) * len(ends)
    latest: NDArray[np.int64] = ends[by_end[np.maximum.accumulate(ranks + base) - base]]
    return latest


def _late(rows: Intervals, held: Intervals, passed: int) -> NDArray[np.intp]:
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
