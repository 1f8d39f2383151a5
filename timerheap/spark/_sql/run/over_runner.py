"""SQL's functions OVER the rows of a key on key groups: what is emitted, what waits and what is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timerheap.spark._aggregates.accumulator_columns import AggregateCalls
from timerheap.spark._arrow import KeyedRows, fitting, narrow
from timerheap.spark._event_times import exact_times, times_after, units_in_ms
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.row_buffer import content_order
from timerheap.spark._group.value_state import StateTable
from timerheap.spark._order_by import Order, differing, run_starts, sort_columns
from timerheap.spark._query import Query
from timerheap.spark._sql.over_calls import Frame, RowCall
from timerheap.spark._sql.run.over_aggregates import Totals, over_frames
from timerheap.spark._sql.run.over_columns import (
    KeyRows,
    frames,
    needed,
    picked,
    ranks,
    values_of,
)
from timerheap.spark._worker.keyed_work import KeyedWork
from timerheap.spark._worker.lateness import set_aside
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import Runner
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK

_NEXT = "next"
"""The timer of a key: when a row no longer waits for LEAD, or the state of a key is no longer needed."""


_NEIGHBOURS = ("lag", "lead")  # which ignore the frame


@dataclass(frozen=True)
class OverWork(KeyedWork):
    """The rows of a table with functions OVER the rows of their key.

    columns: those of the table, which are emitted before the results
    calls: the ranks and the functions that return values of rows, by the names of their results
    aggregates: of each frame, with the names of their results
    order: the columns by which rows of one time follow each other, before all of their columns do
    lead_within: how far behind a row LEAD looks, in ms
    """

    columns: tuple[str, ...]
    calls: dict[str, RowCall]
    aggregates: dict[Frame, tuple[AggregateCalls, tuple[str, ...]]]
    order: tuple[Order, ...]
    lead_within: int | None

    @property
    def results_behind(self) -> int | None:
        return self.lead_within if any(call.function == "lead" for call in self.calls.values()) else 0

    def runner(self, query: Query, placement: Placement) -> Runner:
        """Return what runs the functions."""
        return OverRunner(self, query)


class OverCalls:
    """The functions of a query by what they need of other rows.

    ranks: need the numbers of rows
    picks: return a value of a row before, or of the frame
    leads: return a value of a row behind
    counted: the columns whose values that are not null are counted, with a function that counts them
    values: the columns that functions read of rows in the state
    frames: that need the rows in them
    expires: how many ms after its last row a key needs no state any more; None if it always does
    """

    def __init__(self, work: OverWork) -> None:
        calls, aggregates = work.calls, work.aggregates
        self.ranks = {name: call for name, call in calls.items() if not call.argument}
        self.leads = {name: call for name, call in calls.items() if call.function == "lead"}
        self.picks = {name: call for name, call in calls.items() if call.argument and name not in self.leads}
        reading = [*self.picks.values(), *self.leads.values()]
        self.counted = {call.argument: call for call in reading if call.ignore_nulls}
        values = [call.argument for call in reading]
        values += [call.default for call in self.leads.values() if call.default is not None]
        values += [name for frame, (of, _) in aggregates.items() if not frame.whole for name in of.inputs]
        self.values = list(dict.fromkeys(values))
        self.frames = [*aggregates, *(call.frame for call in reading if call.function not in _NEIGHBOURS)]
        self.expires = self._expires()

    def _expires(self) -> int | None:
        if self.ranks or any(call.function == "lag" for call in self.picks.values()):
            return None
        spans = [frame.preceding for frame in self.frames]
        return None if None in spans else max(filter(None, spans), default=0) * 3 // 2 + 1

    def stored(self, rows: pa.Schema, result: pa.Schema) -> pa.DataType:
        """Return the type of a row in the state, of which the results but those of LEAD are known."""
        fields = [pa.field(name, pa.int64()) for name in ("time", "number", "dense_rank")]
        fields += [
            pa.field("counts", pa.struct([pa.field(name, pa.int64()) for name in self.counted])),
            pa.field("values", pa.struct([rows.field(name) for name in self.values])),
        ]
        if self.leads:
            known = [field.with_nullable(True) for field in result if field.name not in self.leads]
            fields.append(pa.field("waiting", pa.struct(known)))
        return pa.struct([field for field in fields if field.type != pa.struct([])])


class OverRunner(Runner):
    """Computes the functions of the rows that the watermark has passed, and emits rows that have all.

    Of each key the state has rows: the last one, those that later ones refer to, and those that wait for
    LEAD, with what is known of them. Beside them it has the accumulators of aggregates of all rows.

    As in Flink, a row behind the watermark is late only if its time is not above that of the last row of its
    key, as long as the state has that row. In order of arrival no row is late: each follows all before it.
    """

    any_order = decides_lateness = True
    fired_timers = 0

    def __init__(self, work: OverWork, query: Query) -> None:
        self._work, self._result, self._query = work, query.result_schema, query
        self._calls = OverCalls(work)
        none = np.empty(0, np.int64)
        self._no_rows = KeyedRows(pa.RecordBatch.from_pylist([], query.schema), none, none)
        self._time, self._arrives = str(query.event_time), query.order == "arrival"
        self._unit = units_in_ms(query.schema.field(self._time).type)
        self._totals = {frame: Totals(of) for frame, (of, _) in work.aggregates.items() if frame.whole}
        self._type = pa.list_(self._calls.stored(query.schema, self._result))

    def begin(self, group: KeyGroup, now: int | None, output: ResultBuffer) -> None:
        self._group, self._output = group, output
        self._rows = self._table("rows", self._type)
        self._stored = {
            frame: self._table("totals" if frame.peers else "totals by row", of.type)
            for frame, of in self._totals.items()
        }

    def _table(self, name: str, type_: pa.DataType) -> StateTable:
        table = self._group.state(name, "value", type_)
        assert isinstance(table, StateTable)
        return table

    def process(self, rows: KeyedRows, watermark: int) -> None:
        """Compute the functions of rows in the order of arrival."""
        self.replay(rows, np.arange(len(rows)), watermark)

    def advance(self, watermark: int) -> None:
        """Emit what waits no longer, and forget what is needed no longer."""
        self.replay(self._no_rows, self._no_rows.ids, watermark)

    def replay(self, rows: KeyedRows, order: np.ndarray, watermark: int) -> None:
        """Compute the functions of rows, in any order, and emit those that wait for nothing more."""
        new = self._sorted(rows, order)
        more = [self._group.event_timers.pop_due(watermark).key_hashes]
        self.fired_timers += len(more[0])
        if watermark == MAX_WATERMARK:
            more.append(self._rows.ids())
        keys = new.ids[run_starts(new.ids)]
        if any(map(len, more)):
            keys = np.unique(np.concatenate([keys, *more]))
        if not len(keys):
            return
        there = self._together(keys, new)
        results = self._known(keys, there)
        at, leads, waits = self._lead(there, watermark)
        columns = self._joined(there, results)
        self._emit(there, columns, at, leads)
        if watermark < MAX_WATERMARK:
            self._keep(keys, there, columns, waits, watermark)
        elif len(self._rows):  # nothing follows on the end of time
            self._rows.put_many(keys, pa.nulls(len(keys), self._type))

    def _times(self, rows: pa.RecordBatch) -> np.ndarray:
        return exact_times(rows.column(self._time))

    def _sorted(self, rows: KeyedRows, order: np.ndarray) -> KeyedRows:
        """Return rows by key, time, ORDER BY and content; those in the order of arrival by key alone."""
        if self._arrives:
            return rows.take(np.argsort(rows.ids, kind="stable"))
        content = rows.rows.select(list(dict.fromkeys([*self._work.columns, self._time])))
        order = content_order(content, rows.ids, self._times(rows.rows), order)
        new = rows.take(order)
        if self._work.order:
            first = {"key": new.ids, "time": self._times(new.rows)}
            columns, by = sort_columns(new.rows, self._work.order, first)
            new = new.take(pc.sort_indices(pa.table(columns), by).to_numpy())  # which is stable
        return new

    def _together(self, keys: np.ndarray, new: KeyedRows) -> KeyRows:
        """Return the rows of keys that the state has, and new ones without those that are late."""
        stored = self._rows.get_many(keys)
        held = stored.flatten()
        lengths = stored.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        times = self._times(new.rows)
        if len(held):
            last = np.full(len(keys), MIN_WATERMARK)
            last[lengths > 0] = held.field("time").to_numpy()[np.cumsum(lengths)[lengths > 0] - 1]
            last = last[np.searchsorted(keys, new.ids)]
            late = times <= last
            if self._arrives:  # although the clock may have been set back
                times = np.maximum(times, last)
            elif late.any():
                self._late(new.where(late), last[late] // self._unit)
                new, times = new.where(~late), times[~late]
        counts = np.searchsorted(new.ids, keys, side="right") - np.searchsorted(new.ids, keys)
        begins = run_starts(new.ids) | run_starts(times) | self._arrives
        if self._work.order:
            columns, _ = sort_columns(new.rows, self._work.order, {})
            begins |= differing(pa.table(columns))
        return KeyRows(held, lengths, new.rows, counts, times, begins[: len(times)])

    def _late(self, rows: KeyedRows, last: np.ndarray) -> None:
        late_by = last - rows.timestamps + 1
        set_aside(self._query, self.dropped, self._group, rows, late_by, self._output)

    def _known(self, keys: np.ndarray, rows: KeyRows) -> dict[str, pa.Array]:
        """Return what is known of new rows before others follow, by result."""
        found = {name: ranks(rows, call.function) for name, call in self._calls.ranks.items()}
        for name, call in self._calls.picks.items():
            at = rows.at, *frames(rows, call.frame, self._unit)
            found[name] = values_of(rows, call, *picked(rows, call, *at), rows.at)
        for frame, (calls, names) in self._work.aggregates.items():
            first, last = frames(rows, frame, self._unit)
            if frame.whole:
                some, table = rows.counts > 0, self._stored[frame]
                last = rows.source[last] - len(rows.held)
                stored = table.get_many(keys[some])
                results, totals = self._totals[frame].add(stored, rows.counts[some], rows.new, last)
                table.put_many(keys[some], totals)
            else:
                results = over_frames(calls, rows, first, last)
            found |= zip(names, results, strict=True)
        return found

    def _lead(self, rows: KeyRows, watermark: int) -> tuple[np.ndarray, dict[str, pa.Array], np.ndarray]:
        """Return the positions of rows to emit, the results of LEAD for them, and which of all rows wait."""
        waits = np.zeros(len(rows.run), bool)
        if not self._calls.leads:
            return rows.at, {}, waits
        waits[rows.at] = True
        if len(rows.held):
            waits |= np.append(rows.held.field("waiting").is_valid(), waits[rows.at])[rows.source]
        at, within, times = np.flatnonzero(waits), self._work.lead_within, rows.times
        known, over = np.ones(len(at), bool), np.full(len(at), watermark == MAX_WATERMARK)
        if within is not None:
            over |= self._passes(times[at]) <= watermark
        chosen = {}
        for name, call in self._calls.leads.items():
            positions, found = picked(rows, call, at, at, at)
            known &= found | over
            if within is not None:  # unsigned, since int64 may overflow; what is found is not before the row
                distance = times[positions].view(np.uint64) - times[at].view(np.uint64)
                found &= distance <= np.uint64(within * self._unit)
            chosen[name] = positions, found
        at = at[known]
        waits[at] = False
        leads = {
            name: values_of(rows, self._calls.leads[name], positions[known], found[known], at)
            for name, (positions, found) in chosen.items()
        }
        return at, leads, waits

    def _passes(self, times: np.ndarray) -> np.ndarray:
        """Return the watermark at which LEAD has seen all that it looks for behind rows of these times."""
        return times_after(times // self._unit, self._work.lead_within or 0)

    def _joined(self, rows: KeyRows, results: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """Return the columns of the result that are known before others follow, by source."""
        found = {name: rows.new.column(name) for name in self._work.columns} | dict(results)
        if not self._calls.leads or not len(rows.held):
            return found
        waiting = rows.held.field("waiting")
        return {name: rows.joined(waiting.field(name), column) for name, column in found.items()}

    def _emit(
        self, rows: KeyRows, columns: Mapping[str, pa.Array], at: np.ndarray, leads: Mapping[str, pa.Array]
    ) -> None:
        """Emit the rows at these positions.

        columns: by source, or if no row waits, of the new rows
        """
        if self._calls.leads and (len(rows.held) or len(at) < len(rows.new)):  # else all, in their order
            source = pa.array(rows.source[at])
            columns = {name: column.take(source) for name, column in columns.items()}
        columns = dict(columns) | dict(leads)
        every = [columns[name] for name in self._result.names]
        emitted = pa.RecordBatch.from_arrays(every, names=self._result.names)
        for start, stop in fitting(emitted):
            self._output.batch(narrow(emitted.slice(start, stop - start), self._result), "sql")

    def _keep(
        self,
        keys: np.ndarray,
        rows: KeyRows,
        columns: Mapping[str, pa.Array],
        waits: np.ndarray,
        watermark: int,
    ) -> None:
        """Keep the rows that later ones need, and those that wait."""
        gone, due = self._next_timers(rows, waits, watermark)
        stays = waits | needed(rows, self._calls.picks.values(), self._calls.frames, self._unit)
        at = np.flatnonzero(stays & ~gone[rows.run])
        source = pa.array(rows.source[at])
        fields = {"time": rows.times, "number": rows.numbers, "dense_rank": rows.dense}
        parts = {name: pa.array(column[at]) for name, column in fields.items()}
        for name in self._type.value_type.names[3:]:
            type_, mask = self._type.value_type.field(name).type, None
            if name == "counts":
                some = [pa.array(rows.count(self._calls.counted[one]).numbers[at]) for one in type_.names]
            elif name == "values":
                some = [rows.column(one).take(source) for one in type_.names]
            else:
                mask = pa.array(~waits[at])
                some = [columns[one].take(pa.array(rows.source[at], mask=~waits[at])) for one in type_.names]
            some_fields = [field.with_type(one.type) for field, one in zip(type_, some, strict=True)]
            parts[name] = pa.StructArray.from_arrays(some, fields=some_fields, mask=mask)
        values = pa.StructArray.from_arrays(list(parts.values()), names=list(parts))
        offsets = np.append(0, np.cumsum(np.bincount(rows.run[at], minlength=len(keys))))
        lists = pa.LargeListArray.from_arrays(pa.array(offsets), values, mask=pa.array(gone))
        self._rows.put_many(keys, lists)
        pushed = due < MAX_WATERMARK
        if pushed.any():
            self._group.event_timers.push_many(due[pushed], keys[pushed], self._group.timer_names.new(_NEXT))

    def _next_timers(self, rows: KeyRows, waits: np.ndarray, watermark: int) -> tuple[np.ndarray, np.ndarray]:
        """Return which keys need no state any more, and when the timer of each fires."""
        due = np.full(len(rows.counts), MAX_WATERMARK)
        waiting = np.zeros(len(due), bool)
        waiting[rows.run[waits]] = True
        if self._calls.expires is not None:
            last = rows.times[rows.ends - 1] // self._unit
            due = times_after(last, self._calls.expires)
        gone = ~waiting & (due <= watermark)
        due[waiting | gone] = MAX_WATERMARK
        if self._work.lead_within is not None:
            first = np.flatnonzero(waits)[::-1]
            due[rows.run[first]] = self._passes(rows.times[first])  # the first of each key comes last
        return gone, due
