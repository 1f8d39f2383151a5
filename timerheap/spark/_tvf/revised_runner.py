"""Windows that are corrected, on key groups: which changes of their results are emitted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from timerheap.spark._arrow import KeyedRows
from timerheap.spark._changes.change_rows import replacements
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._query import Query
from timerheap.spark._tvf.revised_part import ShownPart, UnshownPart
from timerheap.spark._tvf.window_runner import WindowRunner, WindowWork
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import Runner
from timerheap.timer import MAX_WATERMARK
from timerheap.tvf.columns import group_by
from timerheap.tvf.revisions import Revision, SessionRevisions, SliceRevisions
from timerheap.tvf.session import SessionWindowAggregate
from timerheap.tvf.window_aggregate import GlobalWindowAggregate, WindowResults


@dataclass(frozen=True)
class RevisedWork(WindowWork):
    """Windows to aggregate whose results are corrected.

    lateness: ms from the end of a window until it is final
    early: when windows that have not ended show what they have: every so many ms of event time, in each
        micro-batch (0), or not at all (None)
    """

    lateness: int
    early: int | None

    def runner(self, query: Query, placement: Placement) -> Runner:
        return RevisedRunner(self, query)


class RevisedRunner(WindowRunner):
    """Runs windows, and emits the net change of their results in each micro-batch."""

    def __init__(self, work: RevisedWork, query: Query) -> None:
        super().__init__(work, query)
        self._lateness, self._early = work.lateness, work.early

    def begin(self, group: KeyGroup, now: int | None, output: ResultBuffer) -> None:
        shown, *others = group.own
        assert isinstance(shown, ShownPart)
        self._take(group, shown, now, output)
        self._before = group.watermark
        unshown = None
        for other in others:
            assert isinstance(other, UnshownPart)
            unshown = other.windows
        self._revisions: SliceRevisions | SessionRevisions
        if isinstance(shown.windows, GlobalWindowAggregate):
            assert not isinstance(unshown, SessionWindowAggregate)
            self._revisions = SliceRevisions(shown.windows, unshown, self._lateness)
        else:
            assert not isinstance(unshown, GlobalWindowAggregate)
            self._revisions = SessionRevisions(shown.windows, unshown, self._lateness)

    def process(self, waiting: KeyedRows, watermark: int) -> None:
        """Add rows, or the accumulators that the pack stage has made of them, and advance the watermark."""
        if self._work.pre_aggregated:
            assert isinstance(self._revisions, SliceRevisions)
            partials = self._slices(waiting)
            rows, late = self._revisions.timely_slices(partials)
            self._drop_slices(waiting, partials, late)
        else:
            rows, late = self._revisions.timely(waiting.ids, waiting.timestamps, self._inputs(waiting.rows))
            self._drop(waiting, late)
        self._emit_changes(self._revisions.revise(rows, self._before, watermark, self._shows(watermark)))
        self._before = watermark

    def advance(self, watermark: int) -> None:
        """Advance the watermark, unless the rows have."""
        if watermark > self._before:
            none = self._windows.snapshot()[:0]
            self._emit_changes(self._revisions.revise(none, self._before, watermark, self._shows(watermark)))
            self._before = watermark

    def _shows(self, watermark: int) -> bool:
        every = self._early
        if not every:
            return True
        return watermark < MAX_WATERMARK and watermark // every > self._before // every

    def _emit_changes(self, revisions: Iterable[Revision]) -> None:
        for before, after in revisions:
            keys, starts, ends = (
                np.concatenate(pair)
                for pair in (
                    (before.key_ids, after.key_ids),
                    (before.window_starts, after.window_starts),
                    (before.window_ends, after.window_ends),
                )
            )
            if not len(keys):
                continue
            windows = group_by(ends, keys, starts)
            of_window, count = windows.of_rows, len(windows.starts)
            old, new = (np.full(count, -1) for _ in range(2))
            old[of_window[: len(before)]] = np.arange(len(before))
            new[of_window[len(before) :]] = np.arange(len(after))
            changes = replacements(self._at(before, old), old >= 0, self._at(after, new), new >= 0)
            self.fired_timers += int(np.count_nonzero((old < 0) & (new >= 0)))
            self._output.batch(changes, "a window")

    def _at(self, results: WindowResults, at: np.ndarray) -> pa.RecordBatch:
        """Return results at these places, and anything where these are negative."""
        rows = pa.RecordBatch.from_arrays(self._columns(results), names=self._names[:-1])
        return rows.take(pa.array(at, mask=at < 0))
