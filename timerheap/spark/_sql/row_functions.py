"""Functions that SQL is planned with: the sides of joins, and the rows of sessions.

Rows of windows wait in the row buffer until their window ends, with that as their event time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from timerheap.functions import BatchProcessFunction, BatchRuntimeContext, DueTimers
from timerheap.spark._columns import SIDES, WINDOW
from timerheap.spark._sql.ranking import groups_of
from timerheap.state import ValueStateDescriptor
from timerheap.timer import MIN_WATERMARK
from timerheap.tvf.aggregates import Count
from timerheap.tvf.session import SessionWindowAggregate
from timerheap.tvf.slices import SessionUnsliceAssigner
from timerheap.watermarks import WatermarkGenerator

GROUPED = ["rows of the left side", "rows of the right side"]
"""Names of the columns with the rows of a window and a key: lists of structs."""


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


class SessionRows(BatchProcessFunction):
    """Emits the rows of each session with its bounds, once it has ended.

    Of each key the state has the rows of the sessions that have not; a timer waits for the first to end.
    Which rows are late is as in `SessionWindowAggregate`.
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
        every = sessions.snapshot()  # by key and start
        local = zone.to_local(rows.field("time").to_numpy())
        order = np.lexsort((local, ids))
        numbers = np.repeat(np.arange(len(every)), every.rows)  # of the session of each row in this order
        watermark = ctx.timer_service().current_watermark()
        over = (every.slice_ends - 1 <= zone.passed(watermark))[numbers]
        sessions.advance_watermark(watermark)
        emitted = rows.take(pa.array(order[over])).field("row")
        ended = every[numbers[over]]
        assert ended.starts is not None
        times = ended.starts, ended.slice_ends, zone.to_epoch(ended.slice_ends - 1)
        bounds = zip(times, self._bounds.types, strict=True)
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
        still = sessions.snapshot()
        found, first = np.unique(still.key_ids, return_index=True)
        times = self._assigner.zone.passes_at(still.slice_ends[first] - 1)
        ctx.timer_service().register_event_time_timers(found, times, name="end")


class FlinkDelay(WatermarkGenerator):
    """Emits the largest time minus a delay, as Flink's SQL does; strategies emit 1 ms less."""

    def __init__(self, delay: int) -> None:
        self._delay = delay

    def on_batch(self, max_timestamp: int, count: int, now: int | None) -> int:
        return max(max_timestamp, MIN_WATERMARK + self._delay) - self._delay
