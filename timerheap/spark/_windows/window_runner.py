"""Windows on key groups: their open windows, live and in the checkpoint, and what runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap._native._core import TimerHeap
from timerheap._values import Misfit
from timerheap.spark._arrow import KeyedRows, narrow_column, widen
from timerheap.spark._columns import KEY_HASH, SESSION_START, SLICE_END, shown_name
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.memory import PROCESS, Block, Memory
from timerheap.spark._query import Query
from timerheap.spark._stored_windows import WINDOWS, latest_versions, with_version
from timerheap.spark._windows.partial_aggregates import PartialColumns, WindowSpec, input_column
from timerheap.spark._worker.output import ResultBuffer, column_of
from timerheap.spark._worker.partition import KeyedWork, RowsAhead, Runner
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK
from timerheap.tvf.aggregates import Partials
from timerheap.tvf.session import SessionWindowAggregate
from timerheap.tvf.slices import SliceAssigner
from timerheap.tvf.window_aggregate import GlobalWindowAggregate, WindowResults

_SLACK = 64 << 10
WINDOW_BOUND = "timerheap.window_bound"
"""Metadata key of a column with a bound of windows: which of `WINDOW_COLUMNS` it is.

Windows with the same time are emitted in one micro-batch.
"""

_WINDOWS_AT_ONCE = 4096  # of a key; more would only take memory


class BatchLog:
    """The changes of a part in a `Memory`, for a part whose own structures are Python objects.

    The log is at most about twice as large as the part. In the memory of a process it stays empty, since
    nobody can attach it there.
    """

    def __init__(
        self, schema: pa.Schema, memory: Memory = PROCESS, head: Sequence[tuple[int, int]] = ()
    ) -> None:
        self._schema = schema
        self._memory = memory
        # The blocks, with the number of bytes in use.
        self._blocks: list[tuple[Block, int]] = [(memory.attach(at, size), size) for at, size in head]
        self._nbytes = sum(size for _, size in self._blocks)

    def append(self, changes: pa.RecordBatch, nbytes: int, snapshot: Callable[[], pa.RecordBatch]) -> None:
        """Append changes, or replace the log by a snapshot if it would outgrow twice `nbytes`."""
        if self._memory is PROCESS:
            return
        data = changes.serialize()
        if self._nbytes + data.size > 2 * nbytes + _SLACK:
            self.replace(snapshot)
        else:
            self._add(data)

    def replace(self, snapshot: Callable[[], pa.RecordBatch]) -> None:
        if self._memory is not PROCESS:
            data = snapshot().serialize()
            self.clear()
            self._add(data)

    def _add(self, data: pa.Buffer) -> None:
        block = self._memory.allocate(data.size)
        block.bytes[: data.size] = np.frombuffer(data, np.uint8)
        self._blocks.append((block, data.size))
        self._nbytes += data.size

    def clear(self) -> None:
        for block, _ in self._blocks:
            self._memory.release(block)
        self._blocks, self._nbytes = [], 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches, valid until the next change; raise ValueError for other bytes."""
        for block, size in self._blocks:
            try:
                batch = pa.ipc.read_record_batch(pa.py_buffer(block.bytes[:size]), self._schema)
                batch.validate(full=True)
            except (pa.ArrowException, OSError) as e:
                raise ValueError(f"a block must hold a record batch: {e}") from e
            yield batch

    def head(self) -> list[tuple[int, int]]:
        return [(block.at, size) for block, size in self._blocks]


class WindowsPart:
    """Windows whose accumulators are checkpointed in groups: slices, or the sessions of a key.

    A changed group is written in full, after a row without a version, which deletes what was written of the
    group before. `memory` has the timers, and a log of the changes, from which another process rebuilds the
    windows.
    """

    kind = WINDOWS
    id_column = 0
    windows: GlobalWindowAggregate | SessionWindowAggregate
    _losses: int

    def __init__(self, spec: WindowSpec, memory: Memory = PROCESS, head: Sequence[Any] = ()) -> None:
        self._losses, watermark, log, timers = head or (0, MIN_WATERMARK, (), None)
        self.name = spec.name
        self.columns = PartialColumns(spec)
        self.schema = self.columns.schema
        self._replayed: list[pa.RecordBatch] = []
        self._log = BatchLog(self.schema, memory, log)
        # The columns with the group of an accumulator, and one that is null only in rows that delete.
        if isinstance(spec.assigner, SliceAssigner):
            self._group, self._version = SLICE_END, KEY_HASH
            self.windows = GlobalWindowAggregate(spec.assigner, spec.aggregates)
        else:
            self._group, self._version = KEY_HASH, SESSION_START
            gap, zone = spec.assigner.interval, spec.assigner.zone.name
            self.windows = SessionWindowAggregate(gap, spec.aggregates, zone)
        if timers is None:
            self.windows.timers._lend(memory)
            return
        for batch in self._log:  # O(size)
            self.replay(batch)
        self._restore(watermark, TimerHeap._attach(memory, timers))

    def head(self) -> list[Any]:
        return [self._losses, self.windows.watermark, self._log.head(), self.windows.timers._head()]

    def loaded(self, watermark: int) -> None:
        """Restore the windows at the stored watermark, after all chunks have been replayed."""
        self._restore(watermark)
        self._log.replace(self.snapshot)

    def _restore(self, watermark: int, timers: TimerHeap | None = None) -> None:
        """Restore the windows from the rows that were replayed, with timers that were attached, if any."""
        batches, self._replayed = self._replayed, []
        rows = pa.RecordBatch.from_pylist([], self.schema)
        if batches:
            rows = with_version(self.merge(batches), self._version)
        self.windows.restore(self.columns.from_arrow(rows), watermark, timers)

    def count_losses(self) -> int:
        return self._losses

    def pending(self, event_time: bool) -> tuple[int, int | None]:
        if self.windows.assigner.is_event_time != event_time:
            return 0, None
        return len(self.windows.timers), self.windows.next_timer()

    def misfit(self, stored: str) -> ValueError:
        return ValueError(
            f"the checkpoint has the windows {stored}, and the query has {self.name}; keep the "
            "windows and their aggregates as they were, or start a new checkpoint"
        )

    def ids(self) -> np.ndarray:
        return self.windows.snapshot().key_ids

    # The methods of `timerheap.spark._group.checkpoint.CheckpointedPart`.

    def changes(self) -> pa.RecordBatch | None:
        changed, gone = self.windows.changes()
        self._losses += len(gone)
        groups = changed.slice_ends if self._group == SLICE_END else changed.key_ids
        groups = np.append(np.unique(groups), gone)
        if not len(groups):
            return None
        changes = self._batch(changed, groups)
        self._log.append(changes, self.windows.snapshot().nbytes, self.snapshot)
        return changes

    def snapshot(self) -> pa.RecordBatch:
        return self._batch(self.windows.snapshot(), np.empty(0, np.int64))

    def replay(self, batch: pa.RecordBatch) -> None:
        if batch.schema != self.schema:
            raise ValueError(
                f"the checkpoint's windows must have the columns {self.schema}, got {batch.schema}; "
                "use the aggregates that the checkpoint was written with, or start a new checkpoint"
            )
        self._replayed.append(widen(batch))

    def reserve(self, times: float) -> None:
        """Do nothing: chunks are kept until `loaded`."""

    def merge(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        return latest_versions(batches, self._group, self._version)

    def __len__(self) -> int:
        return len(self.windows)

    def _batch(self, partials: Partials, deleted: np.ndarray) -> pa.RecordBatch:
        columns = self.columns.to_arrow(partials)
        deletions = [pa.nulls(len(deleted), field.type) for field in self.schema]
        deletions[self.schema.get_field_index(self._group)] = pa.array(deleted)
        both = [pa.concat_arrays(pair) for pair in zip(deletions, columns, strict=True)]
        return pa.RecordBatch.from_arrays(both, schema=self.schema)


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
        return WindowsPart(self.spec, memory, head)


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
        # Bounds are local times; where the result has them as instants, the windows follow UTC.
        bounds = [results.window_starts, results.window_ends, results.window_times]
        for field, ms in zip(self._work.bounds, bounds, strict=True):
            columns.append(pa.array(ms * 1000).cast(field.type))
        for field, result in zip(self._work.results, results.results, strict=True):
            columns.append(result_column(result, field))
        if self._work.emit_every is not None:
            columns.append(pa.array(np.full(len(results), early)))
        self._output.batch(pa.RecordBatch.from_arrays(columns, names=self._names), "a window")


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
