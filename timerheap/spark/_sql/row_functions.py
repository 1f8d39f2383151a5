"""Functions that SQL is planned with: the sides of joins, aggregates OVER rows, the rows of sessions.

Rows of windows wait in the row buffer until their window ends, with that as their event time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap.functions import BatchProcessFunction, BatchRuntimeContext, DueTimers
from timerheap.output_tag import OutputTag
from timerheap.spark._columns import LATE_BY, LATE_ROWS, SIDES, WINDOW
from timerheap.spark._sql.ranking import changes, groups_of
from timerheap.spark._windows.partial_aggregates import input_column
from timerheap.spark._windows.window_runner import WindowWork, result_column
from timerheap.state import ValueStateDescriptor
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK
from timerheap.tvf.aggregates import Count
from timerheap.tvf.session import SessionWindowAggregate
from timerheap.tvf.slices import SessionUnsliceAssigner, TumblingSliceAssigner
from timerheap.tvf.window_aggregate import GlobalWindowAggregate
from timerheap.types import Types
from timerheap.watermarks import WatermarkGenerator

GROUPED = ["rows of the left side", "rows of the right side"]
"""Names of the columns with the rows of a window and a key: lists of structs."""

_AT_ONCE = 1 << 22  # rows of frames
_LATE = OutputTag(LATE_ROWS, Types.ROW_NAMED([LATE_BY], [Types.LONG()]))  # only its id matters


class GroupedSides(BatchProcessFunction):
    """Emits the rows of each window and key: a list of those of the left side, and one of the right.

    As in SQL, null equals no key: a row with null in a column of `keys` is a group of its own. Null equals
    null in the other key columns, those of IS NOT DISTINCT FROM.
    """

    _takes_all = _any_order = True

    def __init__(self, keys: list[str], how: str) -> None:
        self._keys = keys
        self._needs = [how in ("inner", "left", "semi", "anti"), how in ("inner", "right", "semi")]

    def process_batch(
        self, batch: pa.RecordBatch, ctx: BatchProcessFunction.Context
    ) -> Iterator[pa.RecordBatch]:
        """Group the rows."""
        order, begins = groups_of(batch, ctx.ids)
        for name in self._keys:
            null = np.asarray(batch.column(name).is_null())[order]
            begins |= null
            begins[1:] |= null[:-1]
        starts = np.flatnonzero(begins)
        lists, wanted = [], np.ones(len(starts), bool)
        for name, needed in zip(SIDES, self._needs, strict=True):
            rows = batch.column(name)
            of_side = np.asarray(rows.is_valid())[order]
            counts = np.add.reduceat(of_side.astype(np.int32), starts)
            offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
            lists.append(pa.ListArray.from_arrays(pa.array(offsets), rows.take(pa.array(order[of_side]))))
            if needed:
                wanted &= counts > 0
        windows = [batch.column(name).take(pa.array(order[starts])) for name in WINDOW]
        grouped = pa.RecordBatch.from_arrays([*windows, *lists], names=[*WINDOW, *GROUPED])
        yield grouped.filter(pa.array(wanted))


class OverRows(BatchProcessFunction):
    """Emits each row with aggregates of its frame: the rows of its key up to it, from some ms or rows before.

    A row costs as much as its frame has rows. Of each key the state has the rows that later frames may
    contain. Those of a frame in ms are dropped by a timer, as late as Flink may drop them.

    As in Flink, a row behind the watermark is late only if its time is not above that of the last row of its
    key, as long as the state has that row.

    work: the aggregates, and the columns that they read
    columns: those of the rows that are emitted
    types: of the columns that the aggregates read
    preceding, rows: the ms, or the number of rows, before a row that are in its frame
    emits_late: whether late rows are emitted, with how far they are behind the last row of their key
    """

    _takes_all = True

    def __init__(
        self,
        work: WindowWork,
        columns: list[str],
        types: pa.Schema,
        preceding: int | None,
        rows: int | None,
        emits_late: bool,
    ) -> None:
        self._work, self._columns = work, columns
        self._preceding, self._rows, self._emits_late = preceding, rows, emits_late
        self._type = pa.struct([pa.field("time", pa.int64()), *types])

    def open(self, runtime_context: BatchRuntimeContext) -> None:  # type: ignore[override]
        self._past = runtime_context.get_state(ValueStateDescriptor("rows", pa.list_(self._type)))
        self._late = runtime_context.get_metrics_group().counter("num_late_records_dropped")

    def process_batch(self, batch: pa.RecordBatch, ctx: BatchProcessFunction.Context) -> Iterator[Any]:
        """Aggregate the frame of each row, in the order of time and content."""
        assert ctx.timestamps is not None
        keys, numbers = np.unique(ctx.ids, return_inverse=True)
        past = self._past.values(keys)
        held = past.flatten().cast(self._type)
        lengths = past.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        last = np.full(len(keys), MIN_WATERMARK)
        last[lengths > 0] = held.field("time").to_numpy()[np.cumsum(lengths)[lengths > 0] - 1]
        in_time = ctx.timestamps > last[numbers]
        if not self._emits_late:
            self._late.inc(int(np.count_nonzero(~in_time)))
        elif not in_time.all():
            late = batch.select(self._columns).filter(pa.array(~in_time))
            late_by = (last[numbers] - ctx.timestamps)[~in_time] + 1
            yield _LATE, late.append_column(LATE_BY, pa.array(late_by))
        if not in_time.any():
            return
        batch = batch.filter(pa.array(in_time))
        fields = [pa.array(ctx.timestamps[in_time]), *(batch.column(name) for name in self._type.names[1:])]
        arrived = pa.StructArray.from_arrays(fields, self._type.names).cast(self._type)
        rows = pa.concat_arrays([held, arrived])
        ids = np.concatenate([np.repeat(keys, lengths), ctx.ids[in_time]])
        times = rows.field("time").to_numpy()
        order = np.lexsort((times, ids))  # stable: what has arrived is in the order of its content
        rows, ids, times = rows.take(pa.array(order)), ids[order], times[order]
        first, last = self._frames(ids, times)
        new = np.flatnonzero(order >= len(held))
        for part in _parts(new, last - first + 1):
            emitted = batch.select(self._columns).take(pa.array(order[part] - len(held)))
            yield self._aggregated(emitted, rows, first[part], last[part])
        self._keep(keys, rows, ids, times, ctx)

    def _frames(self, ids: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of the first and the last row of each frame: int64, shape (n,)."""
        places = np.arange(len(ids))
        begins = changes(ids)
        first = np.maximum.accumulate(np.where(begins, places, 0))
        if self._preceding is None:
            return np.maximum(first, places - (self._rows or 0)), places
        peers = np.append(np.flatnonzero(begins | changes(times)), len(ids))  # rows of one key and time
        last = np.repeat(peers[1:] - 1, np.diff(peers))
        end = places
        while (first < end).any():  # a binary search for all rows together
            middle = (first + end) // 2
            before = times[middle] < times - self._preceding
            first, end = np.where(before, middle + 1, first), np.where(before, end, middle)
        return first, last

    def _aggregated(
        self, emitted: pa.RecordBatch, rows: pa.StructArray, first: np.ndarray, last: np.ndarray
    ) -> pa.RecordBatch:
        counts = last - first + 1
        frames = np.repeat(np.arange(len(first)), counts)
        inside = np.arange(len(frames)) + np.repeat(first - np.cumsum(counts) + counts, counts)
        taken = rows.take(pa.array(inside))
        inputs = {name: input_column(taken.field(name), dtype) for name, dtype in self._work.inputs.items()}
        windows = GlobalWindowAggregate(TumblingSliceAssigner(1), self._work.spec.aggregates)
        windows.add(frames, np.zeros(len(frames), np.int64), inputs)
        found = windows.advance_watermark(MAX_WATERMARK)
        order = np.argsort(found.key_ids)
        for result, field in zip(found.results, self._work.results, strict=True):
            emitted = emitted.append_column(field, result_column(result[order], field))
        return emitted

    def _keep(
        self,
        keys: np.ndarray,
        rows: pa.StructArray,
        ids: np.ndarray,
        times: np.ndarray,
        ctx: BatchProcessFunction.Context,
    ) -> None:
        """Keep the rows that later frames may contain."""
        ends = np.searchsorted(ids, keys, side="right")
        sizes = np.diff(ends, prepend=0)
        if self._preceding is None:
            kept = np.repeat(ends, sizes) - np.arange(len(ids)) <= (self._rows or 1)
        else:
            last = times[ends - 1]
            kept = times >= np.repeat(last, sizes) - self._preceding
            ctx.timer_service().register_event_time_timers(
                keys, last + self._preceding * 3 // 2 + 1, name="last"
            )
        counts = np.add.reduceat(kept.astype(np.int32), ends - sizes)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        values = rows.take(pa.array(np.flatnonzero(kept)))
        self._past.update_many(keys, pa.ListArray.from_arrays(pa.array(offsets), values))

    def on_timers(self, due: DueTimers, ctx: BatchProcessFunction.Context) -> None:
        """Drop rows that no later frame contains."""
        self._past.update_many(due.ids, pa.nulls(len(due), pa.list_(self._type)))


def _parts(rows: np.ndarray, sizes: np.ndarray) -> Iterator[np.ndarray]:
    """Yield rows in parts whose frames have about `_AT_ONCE` rows."""
    numbers = np.cumsum(sizes[rows]) // _AT_ONCE
    yield from np.split(rows, np.flatnonzero(np.diff(numbers)) + 1)


class SessionRows(BatchProcessFunction):
    """Emits the rows of each session with its bounds, once it has ended.

    Of each key the state has the rows of the sessions that have not; a timer waits for the first to end.
    Which rows are late is as in `SessionWindowAggregate`.

    types: of the columns of the rows
    bounds: the columns of the windows: start, end and time
    """

    _takes_all = True

    def __init__(self, types: pa.Schema, bounds: pa.Schema, assigner: SessionUnsliceAssigner) -> None:
        self._columns, self._bounds, self._assigner = types.names, bounds, assigner
        self._type = pa.struct([pa.field("time", pa.int64()), pa.field("row", pa.struct(list(types)))])

    def open(self, runtime_context: BatchRuntimeContext) -> None:  # type: ignore[override]
        self._rows = runtime_context.get_state(ValueStateDescriptor("rows", pa.list_(self._type)))
        self._late = runtime_context.get_metrics_group().counter("num_late_records_dropped")

    def process_batch(self, batch: pa.RecordBatch, ctx: BatchProcessFunction.Context) -> None:
        """Keep the rows that are not late."""
        assert ctx.timestamps is not None
        keys = np.unique(ctx.ids)
        ids, held, sessions = self._held(keys)
        sessions.watermark = ctx.timer_service().current_watermark()
        late = sessions.add(ctx.ids, ctx.timestamps).rows
        self._late.inc(len(late))
        new = np.delete(np.arange(len(batch)), late)
        columns = [pa.array(ctx.timestamps), batch.select(self._columns).to_struct_array()]
        arrived = pa.StructArray.from_arrays(columns, ["time", "row"]).take(pa.array(new)).cast(self._type)
        ids, rows = np.concatenate([ids, ctx.ids[new]]), pa.concat_arrays([held, arrived])
        order = np.lexsort((rows.field("time").to_numpy(), ids))
        self._keep(keys, ids[order], rows.take(pa.array(order)), sessions, ctx)

    def on_timers(self, due: DueTimers, ctx: BatchProcessFunction.Context) -> Iterator[pa.RecordBatch]:
        """Emit the sessions that have ended."""
        keys, zone = np.unique(due.ids), self._assigner.zone
        ids, rows, sessions = self._held(keys)
        starts, every = sessions.snapshot()  # by key and start
        local = zone.to_local(rows.field("time").to_numpy())
        order = np.lexsort((local, ids))
        numbers = np.repeat(np.arange(len(every)), every.rows)  # of the session of each row in this order
        watermark = ctx.timer_service().current_watermark()
        over = (every.slice_ends - 1 <= zone.passed(watermark))[numbers]
        sessions.advance_watermark(watermark)
        emitted = rows.take(pa.array(order[over])).field("row")
        starts, ends = starts[numbers[over]], every.slice_ends[numbers[over]]
        bounds = zip((starts, ends, zone.to_epoch(ends - 1)), self._bounds.types, strict=True)
        columns = [pa.array(ms * 1000).cast(type_) for ms, type_ in bounds]
        names = [*self._columns, *self._bounds.names]
        yield pa.RecordBatch.from_arrays([*emitted.flatten(), *columns], names=names)
        left = np.sort(order[~over])
        self._keep(keys, ids[left], rows.take(pa.array(left)), sessions, ctx)

    def _held(self, keys: np.ndarray) -> tuple[np.ndarray, pa.StructArray, SessionWindowAggregate]:
        """Return the rows in the state, the ids of their keys, and their sessions."""
        past = self._rows.values(keys)
        rows = past.flatten().cast(self._type)
        ids = np.repeat(keys, past.value_lengths().fill_null(0).to_numpy(zero_copy_only=False))
        sessions = SessionWindowAggregate(self._assigner.interval, [Count()], self._assigner.zone.name)
        sessions.add(ids, rows.field("time").to_numpy())
        return ids, rows, sessions

    def _keep(
        self,
        keys: np.ndarray,
        ids: np.ndarray,
        rows: pa.StructArray,
        sessions: SessionWindowAggregate,
        ctx: BatchProcessFunction.Context,
    ) -> None:
        """Replace the rows of keys by those of the sessions that have not ended, which are sorted by key."""
        ends = np.searchsorted(ids, keys, side="right")
        offsets = pa.array(np.append(0, ends).astype(np.int32))
        none = pa.array(np.diff(ends, prepend=0) == 0)
        self._rows.update_many(keys, pa.ListArray.from_arrays(offsets, rows, mask=none))
        _, still = sessions.snapshot()
        found, first = np.unique(still.key_ids, return_index=True)
        times = self._assigner.zone.passes_at(still.slice_ends[first] - 1)
        ctx.timer_service().register_event_time_timers(found, times, name="end")


class FlinkDelay(WatermarkGenerator):
    """Emits the largest time minus a delay, as Flink's SQL does; strategies emit 1 ms less."""

    def __init__(self, delay: int) -> None:
        self._delay = delay

    def on_batch(self, max_timestamp: int, count: int, now: int | None) -> int:
        return max(max_timestamp, MIN_WATERMARK + self._delay) - self._delay
