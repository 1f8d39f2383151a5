"""One row of each run of a key: rows of which each comes a short time after the one before it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from timerheap.functions import BatchProcessFunction, BatchRuntimeContext, DueTimers
from timerheap.spark._arrow import event_times
from timerheap.spark._event_times import times_after
from timerheap.state import ValueStateDescriptor
from timerheap.timer import MAX_WATERMARK

TIME, MICROS = "time", "micros"
END = "end"  # the timer of a key: from then on no row can belong to its run


class OneOfRun(BatchProcessFunction):
    """Emits the first row of each run, or the last.

    The state of a key has the newest time of its run and, if rows wait for their run to end, the newest row.

    columns: of the rows
    last: whether the last row is emitted, not the first
    gap: the ms within which a row of the run comes after the one before it; None: any time
    waits: whether the last row is emitted when its run has ended, not with each change
    number: the name of a column that is added to the rows, with the number 1
    time: the column with the microseconds of the time, for the last row of rows that arrive in any order
    """

    _takes_all = True

    def __init__(
        self,
        columns: pa.Schema,
        last: bool = False,
        gap: int | None = None,
        waits: bool = False,
        number: str | None = None,
        time: str | None = None,
    ) -> None:
        self._columns, self._last, self._gap, self._number = columns, last, gap, number
        self._waits = last and waits
        self._results_behind = gap if self._waits else 0
        self._time = time if last and not waits else None
        micros = [] if self._time is None else [pa.field(MICROS, pa.int64())]
        self._type = pa.struct([pa.field(TIME, pa.int64()), *micros, *(columns if self._waits else ())])

    def open(self, runtime_context: BatchRuntimeContext) -> None:  # type: ignore[override]
        self._newest = runtime_context.get_state(ValueStateDescriptor("newest", self._type))

    def process_batch(
        self, batch: pa.RecordBatch, ctx: BatchProcessFunction.Context
    ) -> Iterator[pa.RecordBatch]:
        batch = batch.select(self._columns.names)
        times = np.zeros(len(batch), np.int64) if ctx.timestamps is None else ctx.timestamps
        micros = np.zeros(len(batch), np.int64)
        if self._time is not None:
            micros = event_times(batch.column(self._time)) % 1000
        order = np.lexsort((micros, times, ctx.ids))
        micros = micros[order]
        ids, times = ctx.ids[order], times[order]
        first = np.append(True, ids[1:] != ids[:-1])
        final = np.append(first[1:], True)
        held = self._newest.values(ids[first])
        known = np.asarray(held.is_valid())
        newest = held.field(0).fill_null(0).to_numpy()
        held_micros = np.zeros(len(held), np.int64)
        if self._time is not None:
            held_micros = held.field(MICROS).fill_null(0).to_numpy()
        of_key = np.cumsum(first) - 1
        same = times == newest[of_key]
        new = first & ~known[of_key]
        if self._gap is not None:
            before = np.append(times[:1], times[:-1])
            before[first] = np.where(known, newest, times[first])
            before = np.where(known[of_key], np.maximum(before, newest[of_key]), before)
            new |= times - before > self._gap
        if not self._last:
            chosen = new
        elif self._waits:
            yield self._of_state(held, known & new[first])
            chosen = np.append(new[1:] & ~first[1:], False)
        else:
            chosen = np.append(new[1:], True) | final
            chosen &= ~known[of_key] | (times > newest[of_key]) | (same & (micros >= held_micros[of_key]))
        yield self._numbered(batch.take(pa.array(np.sort(order[chosen]))))
        later = (times > newest[of_key]) | (same & (micros >= held_micros[of_key]))
        changed = ~known | ((self._gap is not None or self._last) & later[final])
        ids, times, rows = ids[final][changed], times[final][changed], order[final][changed]
        columns = [pa.array(times)]
        if self._time is not None:
            columns.append(pa.array(micros[final][changed]))
        if self._waits:
            columns += batch.take(pa.array(rows)).columns
        self._newest.update_many(ids, pa.StructArray.from_arrays(columns, self._type.names))
        if self._gap is not None or self._waits:
            gap = MAX_WATERMARK if self._gap is None else self._gap
            ctx.timer_service().register_event_time_timers(ids, times_after(times, gap), name=END)

    def on_timers(self, due: DueTimers, ctx: BatchProcessFunction.Context) -> Iterator[pa.RecordBatch]:
        if self._waits:
            yield self._of_state(self._newest.values(due.ids), np.ones(len(due.ids), bool))
        self._newest.update_many(due.ids, pa.nulls(len(due.ids), self._type))

    def _of_state(self, held: pa.StructArray, where: np.ndarray) -> pa.RecordBatch:
        columns = held.filter(pa.array(where)).flatten()[1:]
        return self._numbered(pa.RecordBatch.from_arrays(columns, names=self._columns.names))

    def _numbered(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self._number is None:
            return rows
        return rows.append_column(self._number, pa.array(np.ones(len(rows), np.int64)))
