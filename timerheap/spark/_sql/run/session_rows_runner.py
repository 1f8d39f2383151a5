"""The rows of sessions in tasks: they wait until their session ends.

Rows of windows wait in the row buffer until their window ends, those of sessions in a state: a later row may
move the end.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from timerheap.functions import BatchProcessFunction, BatchRuntimeContext, DueTimers
from timerheap.state import ValueStateDescriptor
from timerheap.tvf.aggregates import Count
from timerheap.tvf.session import SessionWindowAggregate
from timerheap.tvf.slices import SessionUnsliceAssigner


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
