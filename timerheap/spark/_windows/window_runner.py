"""Runs windows on key groups: adds rows to slices or sessions, and emits windows that end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap._values import Misfit
from timerheap.spark._arrow import KeyedRows, narrow_column
from timerheap.spark._columns import EARLY, KEY_HASH, shown_name
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.memory import PROCESS, Memory
from timerheap.spark._query import Query
from timerheap.spark._windows.open_windows import SessionsPart, SlicesPart, WindowsPart
from timerheap.spark._windows.partial_aggregates import WindowSpec, input_column
from timerheap.spark._worker.output import ResultBuffer, column_of
from timerheap.spark._worker.partition import KeyedWork, RowsAhead, Runner
from timerheap.timer import MAX_WATERMARK
from timerheap.tvf.slices import SliceAssigner
from timerheap.tvf.window_aggregate import GlobalWindowAggregate, WindowResults

WINDOW_BOUND = "timerheap.window_bound"
"""Metadata key of a column with a bound of windows: which of `WINDOW_COLUMNS` it is.

Windows with the same time are emitted in one micro-batch.
"""

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
        """Return what runs the windows."""
        return WindowRunner(self, query)

    @property
    def name(self) -> str:
        """Describe the windows and their aggregates."""
        return self.spec.name

    def part(self, memory: Memory = PROCESS, head: Sequence[Any] = ()) -> WindowsPart:
        """Return the windows of one key group."""
        sliced = isinstance(self.spec.assigner, SliceAssigner)
        return (SlicesPart if sliced else SessionsPart)(self.spec, memory, head)


class WindowRunner(Runner):
    """Runs windows."""

    decides_lateness = True  # a row is late when its slice is over
    fired_timers = 0

    def __init__(self, work: WindowWork, query: Query) -> None:
        self._work = work
        self._late_columns, self._names = list(query.late_columns), query.result.names
        self.rows_ahead = RowsAhead()  # none: a window has its rows in any order

    def begin(self, group: KeyGroup, now: int | None, output: ResultBuffer) -> None:
        assert isinstance(group.own, WindowsPart)
        self._group, self._open, self._output = group, group.own, output
        self._windows = group.own.windows
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
            before = self._windows.late_rows
            slices = rows.append_column(KEY_HASH, pa.array(waiting.ids))
            self._windows.merge(self._open.columns.from_arrow(slices))
            self._group.late_rows += self._windows.late_rows - before
            return
        inputs = {name: input_column(rows.column(name), dtype) for name, dtype in self._work.inputs.items()}
        times = waiting.timestamps
        if not self._windows.assigner.is_event_time:
            assert self._now is not None
            times = np.full(len(times), self._now)
        late = self._windows.add(waiting.ids, times, inputs)
        if len(late.rows):
            self._group.late_rows += len(late.rows)
            if self._output.takes_late:
                taken = rows.select(self._late_columns).take(pa.array(late.rows))
                self._output.late(taken, late.late_by)

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
        keys = self._group.keys.keys(results.key_ids)
        columns = [keys.column(name) for name in self._work.keys]
        fields = [keys.schema.field(name) for name in self._work.keys]
        # Bounds are local times; where the result has them as instants, the windows follow UTC.
        bounds = [results.window_starts, results.window_ends, results.window_times]
        for field, ms in zip(self._work.bounds, bounds, strict=True):
            columns.append(pa.array(ms * 1000).cast(field.type))
            fields.append(field)
        for field, result in zip(self._work.results, results.results, strict=True):
            columns.append(result_column(result, field))
            fields.append(field)
        if self._work.emit_every is not None:
            columns.append(pa.array(np.full(len(results), early)))
            fields.append(pa.field(EARLY, pa.bool_()))
        batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
        self._output.batch(batch.rename_columns(self._names), "a window")


def result_column(result: np.ma.MaskedArray[Any, Any], field: pa.Field) -> pa.Array:
    """Return the results of an aggregate in the type of a field."""
    type_ = field.type
    data, mask = np.ma.getdata(result), np.ma.getmaskarray(result)
    if data.dtype.kind == "O":
        values = zip(data.tolist(), mask.tolist(), strict=True)
        try:
            column = column_of([None if null else value for value, null in values], type_)
        except Misfit as e:
            raise ValueError(f"agg: the result {shown_name(field.name)!r}: {e}") from None
        return narrow_column(column, type_)
    column = pa.array(data, mask=mask)
    return column.cast(pa.int32()).cast(type_) if pa.types.is_date32(type_) else column.cast(type_)
