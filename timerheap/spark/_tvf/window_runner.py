"""Windows of rows on key groups: which rows are added, and which windows are emitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap.spark._aggregates.accumulator_columns import input_column, result_column
from timerheap.spark._arrow import KeyedRows
from timerheap.spark._columns import KEY_HASH
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._memory.blocks import PROCESS, Memory
from timerheap.spark._query import Query
from timerheap.spark._tvf.sessions_part import SessionsPart
from timerheap.spark._tvf.sliced_rows import WindowSpec
from timerheap.spark._tvf.windows_part import WindowsPart
from timerheap.spark._worker.keyed_work import KeyedWork
from timerheap.spark._worker.lateness import set_aside
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import Runner
from timerheap.timer import MAX_WATERMARK
from timerheap.tvf.aggregates import Partials
from timerheap.tvf.slices import SessionUnsliceAssigner
from timerheap.tvf.window_aggregate import GlobalWindowAggregate, LateRows, WindowResults, late_slices

_WINDOWS_AT_ONCE = 4096  # of a key; more would only take memory


@dataclass(frozen=True)
class WindowWork(KeyedWork):
    """Windows to aggregate; also the layout of what key groups have for them, an `OwnLayout`."""

    spec: WindowSpec
    keys: list[str]  # of the result
    inputs: dict[str, np.dtype[Any]]  # columns that the aggregates read, and the types they read them as
    pre_aggregated: bool  # in the pack stage by key and slice; otherwise the operator gets the rows
    results: list[pa.Field]  # one for each aggregate
    emit_every: int | None  # ms of event time
    bounds: list[pa.Field]  # of the result: the start, the end and the time of the window

    def runner(self, query: Query, placement: Placement) -> Runner:
        return WindowRunner(self, query)

    @property
    def name(self) -> str:
        return self.spec.name

    def part(self, memory: Memory = PROCESS, head: Sequence[Any] = ()) -> WindowsPart:
        settles = self.emit_every is None and isinstance(self.spec.assigner, SessionUnsliceAssigner)
        return (SessionsPart if settles else WindowsPart)(self.spec, memory, head)


class WindowRunner(Runner):
    """Runs windows."""

    decides_lateness = True  # a row is late when its slice is over
    fired_timers = 0

    def __init__(self, work: WindowWork, query: Query) -> None:
        self._work = work
        self._query, self._names = query, query.result.names

    def begin(self, group: KeyGroup, now: int | None, output: ResultBuffer) -> None:
        (own,) = group.own
        assert isinstance(own, WindowsPart)
        self._take(group, own, now, output)

    def _take(self, group: KeyGroup, own: WindowsPart, now: int | None, output: ResultBuffer) -> None:
        self._group, self._open, self._output = group, own, output
        self._windows = own.windows
        self._now = now

    def replay(self, waiting: KeyedRows, order: np.ndarray, watermark: int) -> None:
        """Process rows, then advance: the order of its rows does not change the result of a window."""
        self.process(waiting.take(order), watermark)
        self.advance(watermark)

    def process(self, waiting: KeyedRows, watermark: int) -> None:
        """Add rows, or the accumulators that the pack stage has made of them."""
        rows = waiting.rows
        if self._work.pre_aggregated:
            assert isinstance(self._windows, GlobalWindowAggregate)
            partials = self._slices(waiting)
            found = late_slices(self._windows.assigner, partials.slice_ends, self._windows.watermark)
            self._windows.merge(partials)
            self._drop_slices(waiting, partials, found)
            return
        times = waiting.timestamps
        if not self._windows.assigner.is_event_time:
            assert self._now is not None
            times = np.full(len(times), self._now)
        self._drop(waiting, self._windows.add(waiting.ids, times, self._inputs(rows)))

    def _inputs(self, rows: pa.RecordBatch) -> dict[str, np.ma.MaskedArray[Any, Any]]:
        """Return the columns that the aggregates read."""
        return {name: input_column(rows.column(name), dtype) for name, dtype in self._work.inputs.items()}

    def _slices(self, waiting: KeyedRows) -> Partials:
        """Return the accumulators that the pack stage has made of rows."""
        return self._open.columns.from_arrow(waiting.rows.append_column(KEY_HASH, pa.array(waiting.ids)))

    def _drop(self, waiting: KeyedRows, late: LateRows) -> None:
        if len(late.rows):
            gone = waiting.take(late.rows)
            set_aside(self._query, self.dropped, self._group, gone, late.late_by, self._output)

    def _drop_slices(self, waiting: KeyedRows, partials: Partials, late: LateRows) -> None:
        count = int(partials.rows[late.rows].sum())
        self._group.late_rows += count
        if count and self.dropped is not None:
            assert isinstance(self._windows, GlobalWindowAggregate)
            ends = self._windows.assigner.timers(partials.slice_ends[late.rows]) + 1
            gone = waiting.take(late.rows)
            self.dropped.add(self._group, gone, late.late_by, ends, count=count, before=True)

    def advance(self, watermark: int) -> None:
        """Advance the watermark, and emit the windows that it ends."""
        before = self._windows.watermark
        span = self._windows.assigner.interval * _WINDOWS_AT_ONCE
        while (head := self._windows.next_timer()) is not None and head < watermark - span:
            self._emit(self._windows.advance_watermark(head + span), early=False)
        self._emit(self._windows.advance_watermark(watermark), early=False)
        every = self._work.emit_every
        if every is not None and watermark < MAX_WATERMARK and watermark // every > before // every:
            self._emit(self._windows.open_windows(), early=True)

    def advance_clock(self, now: int) -> None:
        """Emit the windows of processing time that are over."""
        if isinstance(self._windows, GlobalWindowAggregate) and not self._windows.assigner.is_event_time:
            self._emit(self._windows.advance_watermark(now - 1), early=False)

    def _emit(self, results: WindowResults, early: bool) -> None:
        if not len(results):
            return
        if not early:
            self.fired_timers += len(results)
        columns = self._columns(results)
        if self._work.emit_every is not None:
            columns.append(pa.array(np.full(len(results), early)))
        self._output.batch(pa.RecordBatch.from_arrays(columns, names=self._names), "a window")

    def _columns(self, results: WindowResults) -> list[pa.Array]:
        """Return the keys, the bounds and the results of windows."""
        keys = self._group.keys.keys(results.key_ids)
        columns = [keys.column(name) for name in self._work.keys]
        # Bounds are local times; where the result has them as instants, the windows follow UTC.
        bounds = [results.window_starts, results.window_ends, results.window_times]
        for field, ms in zip(self._work.bounds, bounds, strict=True):
            columns.append(pa.array(ms * 1000).cast(field.type))
        for field, result in zip(self._work.results, results.results, strict=True):
            columns.append(result_column(result, field))
        return columns
