"""Windows whose results are corrected: what was shown of them, and what replaces it.

A window is kept for some time after its end, the allowed lateness. The operators of windows do that by
themselves, with a watermark that is so much lower; here is what they emit meanwhile. Nothing that was shown
is stored: it is computed again from the accumulators, in the same way, to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK
from timerheap.tvf.aggregates import Partials
from timerheap.tvf.columns import Int64s, column, group_by
from timerheap.tvf.session import SessionWindowAggregate
from timerheap.tvf.slices import CumulativeSliceAssigner, HoppingSliceAssigner, SliceAssigner
from timerheap.tvf.window_aggregate import (
    GlobalWindowAggregate,
    LateRows,
    WindowResults,
    evaluate,
    late_slices,
    lay_out,
)

_WINDOWS_AT_ONCE = 4096  # of a key; more would only take memory


class Revision(NamedTuple):
    """Results of some windows: those that were shown before, and those that are right now."""

    before: WindowResults
    after: WindowResults


def delayed(watermark: int, delay: int) -> int:
    """Return a watermark that is lower, except at the beginning and at the end of time."""
    return watermark if watermark in (MIN_WATERMARK, MAX_WATERMARK) else max(watermark - delay, MIN_WATERMARK)


class SliceRevisions:
    """What TUMBLE, HOP and CUMULATE show of windows before they are final.

    Parameters
    ----------
    windows : GlobalWindowAggregate
        The rows whose windows are not final, at a watermark `delayed` by the allowed lateness; not folded.
    unshown : GlobalWindowAggregate or None
        The rows of which windows that have not ended show nothing yet, at the lowest watermark. None: these
        show nothing at all.
    delay : int
        The allowed lateness, in ms.
    """

    def __init__(
        self, windows: GlobalWindowAggregate, unshown: GlobalWindowAggregate | None, delay: int
    ) -> None:
        self._windows, self._unshown, self._delay = windows, unshown, delay
        self._assigner, self._aggregation = windows.assigner, windows.aggregation

    def timely(
        self, key_ids: Int64s, timestamps: Int64s, inputs: Mapping[str, object] | None = None
    ) -> tuple[Partials, LateRows]:
        """Return the accumulators of rows for `revise`, without late ones, and the late rows."""
        times = column("timestamps", timestamps, np.size(key_ids))
        slice_ends = self._assigner.assign_slice_ends(times)
        late = late_slices(self._assigner, slice_ends, self._windows.watermark)
        partials = self._aggregation.accumulate(key_ids, slice_ends, inputs)
        return self.timely_slices(partials)[0], late

    def timely_slices(self, partials: Partials) -> tuple[Partials, LateRows]:
        """Return the accumulators of a local stage without late ones, and those."""
        late = late_slices(self._assigner, partials.slice_ends, self._windows.watermark)
        return partials.without(late.rows), late

    def revise(self, rows: Partials, before: int, watermark: int, shows: bool = True) -> Iterator[Revision]:
        """Add rows, advance the watermark, and yield what this changes in what windows show.

        All revisions are to be taken. No window is in two of them.

        before, watermark: what the watermark was, and what it is now
        shows: whether windows that have not ended show what they have so far
        """
        windows, unshown, step = self._windows, self._unshown, self._assigner.interval
        fresh, held = self._aggregation.merge([rows]), windows.snapshot()
        waiting = self._aggregation.empty() if unshown is None else unshown.snapshot()
        new = self._aggregation.merge([waiting, fresh])
        ended, ends = self._assigner.last_passed(before), self._assigner.last_passed(watermark)
        yield from self._revisions([held, waiting], [held, new], fresh, (windows.fired + step, ended))
        if unshown is None:
            yield from self._revisions([], [held, fresh], None, (ended + step, ends))
            windows.merge(fresh)
        else:
            last = MAX_WATERMARK if shows else ends
            yield from self._revisions([held], [held, new], new, (ended + step, last))
            unshown.merge(fresh)
            waiting = unshown.snapshot()
            # Windows that have ended show all their rows.
            shown = np.full(len(waiting), shows) | (
                self._assigner.last_window_ends(waiting.slice_ends) <= ends
            )
            if shown.any():
                windows.merge(unshown.take(shown))
        windows.close_windows(max(delayed(watermark, self._delay), windows.watermark))

    def _revisions(
        self,
        old: Sequence[Partials],
        new: Sequence[Partials],
        changed: Partials | None,
        bounds: tuple[int, int],
    ) -> Iterator[Revision]:
        """Yield the results of windows with two sets of rows.

        changed: slices, one of which each window has, None for all windows
        bounds: the first and the last end of these windows
        """
        slices = self._aggregation.concatenate(new) if changed is None else changed
        near = None if changed is None or not len(changed) else _Changed(self._assigner, changed)
        for first, last in _window_spans(self._assigner, np.sort(slices.slice_ends), *bounds):
            yield Revision(*(self._results(parts, near, first, last) for parts in (old, new)))

    def _results(
        self, parts: Sequence[Partials], changed: _Changed | None, first: int, last: int
    ) -> WindowResults:
        """Compute windows, each in the same way, whichever other windows and slices there are."""
        assigner, reach = self._assigner, self._assigner.size - self._assigner.interval
        near = []
        for part in parts:
            begin, end = np.searchsorted(part.slice_ends, [first - reach, last + 1]).tolist()
            slices = part[begin:end]
            kept = assigner.last_window_ends(slices.slice_ends) >= first
            if changed is not None:
                kept &= changed.near(slices.key_ids, slices.slice_ends, reach)
            near.append(slices[np.flatnonzero(kept)])
        slices = self._aggregation.merge(near)
        low, high = first, last
        if isinstance(assigner, HoppingSliceAssigner):  # lines begin at the same places
            low = first - (first - assigner.offset) % assigner.size
            high = max(last, low + reach)
        elif isinstance(assigner, CumulativeSliceAssigner) and len(slices):  # lines have all slices
            low = min(first, int(assigner.window_starts(slices.slice_ends).min()) + assigner.interval)
        layout = lay_out(assigner, slices.key_ids, slices.slice_ends, low, high)
        layout = replace(layout, wanted=(first, last))
        keys, ends, results = evaluate(self._aggregation, slices, layout, assigner)
        if changed is not None:
            kept = changed.near(keys, ends)
            keys, ends, results = keys[kept], ends[kept], tuple(column[kept] for column in results)
        return WindowResults(keys, assigner.window_starts(ends), ends, assigner.window_times(ends), results)


def _window_spans(
    assigner: SliceAssigner, slice_ends: NDArray[np.int64], first: int, last: int
) -> Iterator[tuple[int, int]]:
    """Yield the bounds of windows with these slices, which are sorted: of a number of windows at a time."""
    if not len(slice_ends):
        return
    first = max(first, int(slice_ends[0]))
    last = min(last, int(assigner.last_window_ends(slice_ends[-1:])[0]))
    while first <= last:
        end = min(last, first + (_WINDOWS_AT_ONCE - 1) * assigner.interval)
        yield first, end
        following = slice_ends[np.searchsorted(slice_ends, end + 2 * assigner.interval - assigner.size) :]
        first = max(end + assigner.interval, int(following[0]) if len(following) else last + 1)


class _Changed:
    """The windows that have a slice that has changed: for each key, those from one end to another."""

    def __init__(self, assigner: SliceAssigner, slices: Partials) -> None:
        groups = group_by(slices.key_ids)
        ends = slices.slice_ends[groups.order]
        self._keys = slices.key_ids[groups.firsts]
        self._first = np.minimum.reduceat(ends, groups.starts)
        self._last = assigner.last_window_ends(np.maximum.reduceat(ends, groups.starts))

    def near(self, key_ids: NDArray[np.int64], ends: NDArray[np.int64], before: int = 0) -> NDArray[np.bool_]:
        """Return which ends are among those of the key, or up to so many ms before."""
        at = np.minimum(np.searchsorted(self._keys, key_ids), len(self._keys) - 1)
        near: NDArray[np.bool_] = self._keys[at] == key_ids
        near &= (ends >= self._first[at] - before) & (ends <= self._last[at])
        return near


class SessionRevisions:
    """What SESSION shows of windows before they are final; as `SliceRevisions`.

    Once a session of a key shows a row, all of its sessions show all their rows.
    """

    def __init__(
        self, windows: SessionWindowAggregate, unshown: SessionWindowAggregate | None, delay: int
    ) -> None:
        self._windows, self._unshown, self._delay = windows, unshown, delay
        self._zone = windows.assigner.zone

    def timely(
        self, key_ids: Int64s, timestamps: Int64s, inputs: Mapping[str, object] | None = None
    ) -> tuple[Partials, LateRows]:
        """Return rows, each as a session, for `revise`, without late ones, and the late rows."""
        windows = self._windows
        rows = windows.single_rows(key_ids, timestamps, inputs)
        near = rows.key_ids[rows.slice_ends - 1 <= self._zone.passed(windows.watermark)]
        late = windows.late_of(rows, self._sessions_of(np.unique(near)))
        return rows.without(late.rows), late

    def revise(self, rows: Partials, before: int, watermark: int, shows: bool = True) -> Iterator[Revision]:
        """See `SliceRevisions.revise`."""
        windows, unshown = self._windows, self._unshown
        if unshown is None:
            keys = np.unique(rows.key_ids)
            yield self._merged(rows, keys, self._zone.passed(before), self._zone.passed(watermark))
        else:
            unshown.merge(rows)
            waiting = unshown.snapshot().key_ids
            keys = np.unique(waiting) if shows else self._to_show(rows, self._zone.passed(watermark))
            new = unshown.take(np.isin(waiting, keys))
            yield self._merged(new, keys, MAX_WATERMARK, MAX_WATERMARK)
        windows.close_windows(max(delayed(watermark, self._delay), windows.watermark))

    def _merged(self, rows: Partials, keys: NDArray[np.int64], ended: int, ends: int) -> Revision:
        """Merge rows of some keys; return what their sessions show, and others that end now.

        ended, ends: the times at which the sessions end that show something, before and now
        """
        windows = self._windows
        before = _ended_by(windows.snapshot()[windows.rows_of(keys)], ended)
        windows.merge(rows)
        sessions = windows.snapshot()
        last = sessions.slice_ends - 1
        others = np.flatnonzero((last > ended) & (last <= ends))
        others = others[~np.isin(sessions.key_ids[others], keys)]
        after = _ended_by(sessions[np.append(windows.rows_of(keys), others)], ends)
        changed = _changed(before, after)
        return Revision(
            *(windows.results(each[which]) for each, which in zip((before, after), changed, strict=True))
        )

    def _to_show(self, rows: Partials, ends: int) -> NDArray[np.int64]:
        """Return the keys of which a session that has ended, now or before `rows`, shows something else."""
        assert self._unshown is not None
        waiting = self._unshown.snapshot()
        # A session that ends now has no part that ends later.
        keys = np.unique(np.append(rows.key_ids, waiting.key_ids[waiting.slice_ends - 1 <= ends]))
        windows = self._windows
        shown = _ended_by(windows.snapshot()[windows.rows_of(keys)], ends)
        whole = _ended_by(self._sessions_of(keys), ends)
        changed = zip((shown, whole), _changed(shown, whole), strict=True)
        return np.unique(np.concatenate([each.key_ids[which] for each, which in changed]))

    def _sessions_of(self, keys: NDArray[np.int64]) -> Partials:
        """Return all sessions of distinct sorted keys, by key and start, whether they are shown or not."""
        windows, unshown = self._windows, self._unshown
        held = windows.snapshot()[windows.rows_of(keys)]
        if unshown is None or not len(waiting := unshown.snapshot()[unshown.rows_of(keys)]):
            return held
        both = windows.empty_copy()
        both.restore(held, windows.watermark)
        both.merge(waiting)
        return both.snapshot()


def _ended_by(sessions: Partials, ends: int) -> Partials:
    return sessions[np.flatnonzero(sessions.slice_ends - 1 <= ends)]


def _changed(before: Partials, after: Partials) -> list[NDArray[np.intp]]:
    """Return which sessions are not the same before and after.

    Rows are only added: a session with the same end and as many rows is the same.
    """
    both = (before, after)
    groups = group_by(
        np.concatenate([each.key_ids for each in both]),
        np.concatenate([each.slice_ends for each in both]),
        np.concatenate([each.rows for each in both]),
    )
    single = groups.sizes[groups.of_rows] == 1
    return [np.flatnonzero(single[: len(before)]), np.flatnonzero(single[len(before) :])]
