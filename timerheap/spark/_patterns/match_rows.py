"""MATCH_RECOGNIZE in a key group: rows in event-time order, partial matches as state, measures as columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timerheap._native._core import Attempt, Matcher, row_order
from timerheap.functions import BatchProcessFunction, BatchRuntimeContext, DueTimers
from timerheap.spark._columns import HIDDEN, TIMED_OUT
from timerheap.spark._patterns.conditions import (
    OPERATORS,
    Column,
    Term,
    columns_of,
    condition,
    leaves,
    of_rows,
    plain,
    registers_of,
)
from timerheap.spark._patterns.matcher import Rules
from timerheap.spark._patterns.measures import Measure, Shown
from timerheap.spark._patterns.pattern import ACCEPT, Pattern
from timerheap.state import ValueStateDescriptor
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK

_THREAD = pa.struct({"start": pa.int32(), "next": pa.int32(), "taken": pa.list_(pa.int32())})
"""A partial match: its first row, its next instruction, and what its rows are taken as."""

_TIMER = "match"
_TIME, _BITS = f"{HIDDEN}time", f"{HIDDEN}bits"
"""Of the rows of a state: the ms, and which variables they can be, null for those that wait for others."""


@dataclass(frozen=True)
class MatchPlan:
    """What to find and to emit.

    defined: what each variable asks of a row; None for nothing
    keys, shown: the columns of the result before those of the measures
    rows: the columns that a partial match remembers
    mark: tells queries with different patterns and conditions apart
    ahead: how many rows behind a row are read
    lead_within: the ms that they are at most after it; None for no limit
    timed_out: whether partial matches that `within` ends are emitted, and the column `TIMED_OUT`
    """

    pattern: Pattern
    defined: tuple[Term | None, ...]
    within: int | None
    skip: str
    target: frozenset[int]
    measures: tuple[Measure, ...]
    keys: list[str]
    shown: list[str]
    rows: pa.Schema
    all_rows: bool
    shows_empty: bool
    mark: int
    ahead: int = 0
    lead_within: int | None = None
    timed_out: bool = False


class MatchRows(BatchProcessFunction):
    """Emits the matches of each key once they are decided.

    Of each key the state has its partial matches, the rows that they need, and a timer for the end of the
    oldest one.
    """

    _takes_all = True

    def __init__(self, plan: MatchPlan) -> None:
        self._plan = plan
        terms = [term for term in plan.defined if term is not None and not of_rows(term)]
        columns = dict.fromkeys(column for term in terms for column in columns_of(term))
        self._columns = {column: at for at, column in enumerate(columns)}
        found = [leaf for term in terms for leaf in leaves(term) if leaf[0] != "row"]
        registers = tuple(dict.fromkeys(one for leaf in found for one in registers_of(leaf, self._columns)))
        conditions = tuple(
            None if term is None or of_rows(term) else condition(term, self._columns, registers)
            for term in plan.defined
        )
        self._rules = Rules(
            plan.pattern, conditions, registers, plan.within, plan.skip, plan.target, plan.timed_out
        )
        backs = [back for term in plan.defined if term for _, back in columns_of(term)]
        self._back = max([*backs, *(one.column[1] for one in plan.measures if one.column)], default=0)
        self._counts = any(one.kind == "number" for one in plan.measures)

    def open(self, runtime_context: BatchRuntimeContext) -> None:  # type: ignore[override]
        rows = pa.struct([(_TIME, pa.int64()), (_BITS, pa.int64()), *self._plan.rows])
        fields = {"mark": pa.int64(), "number": pa.int64(), "waiting": pa.int32(), "rows": pa.list_(rows)}
        self._type = pa.struct({**fields, "threads": pa.list_(_THREAD)})
        self._state = runtime_context.get_state(ValueStateDescriptor("matches", self._type))

    def process_batch(
        self, batch: pa.RecordBatch, ctx: BatchProcessFunction.Context
    ) -> Iterator[pa.RecordBatch]:
        """Add rows to the partial matches of their keys."""
        assert ctx.timestamps is not None
        yield from self._run(batch, ctx.ids, ctx.timestamps, ctx)

    def on_timers(self, due: DueTimers, ctx: BatchProcessFunction.Context) -> Iterator[pa.RecordBatch]:
        """End the oldest partial matches."""
        yield from self._run(None, due.ids, np.empty(0, np.int64), ctx)

    def _run(
        self,
        batch: pa.RecordBatch | None,
        ids: np.ndarray,
        times: np.ndarray,
        ctx: BatchProcessFunction.Context,
    ) -> Iterator[pa.RecordBatch]:
        keys, timers = np.unique(ids), ctx.timer_service()
        watermark, rules = timers.current_watermark(), self._rules
        held = _Held(self._state.values(keys).cast(self._type), self._plan.mark)
        rows = _Rows(keys, held, batch, ids[: len(times)], times, self._plan.lead_within)
        known = batch is None and not self._plan.ahead  # of all rows, of which the state may lack columns
        rows.bits = bits = rows.known_bits(np.zeros(len(rows), np.int64) if known else self._bits(rows))
        values = [plain(rows.column(column)) for column in self._columns]
        kept, matcher = _Kept(self._plan.mark), Matcher(rules, values)
        counts = [0]
        for key, (low, new, high) in enumerate(rows.spans()):
            matcher.attempts = held.attempts(key, low, rows.times, matcher)
            stop = self._known(new, high, rows.times, watermark)
            matcher.run(new, stop, rows.times, bits, low)
            if watermark == MAX_WATERMARK:
                matcher.finish()
            else:
                matcher.expire(watermark + 1 if stop == high else min(watermark + 1, rows.times[stop]))
                attempts = matcher.attempts
                keep = (attempts[0].start if attempts else stop) - self._back
                count = held.numbers[key] + matcher.lost[counts[-1] :].count(False) if self._counts else 0
                end = MIN_WATERMARK
                if stop < high:
                    end = _after(rows.times[stop], self._plan.lead_within)
                elif attempts:
                    end = _after(attempts[0].time - 1, rules.within)
                kept.add(attempts, max(low, keep), stop, high, count, end)
            counts.append(len(matcher.starts))
        if watermark == MAX_WATERMARK:
            changed = held.lengths >= 0
            self._state.update_many(keys[changed], pa.nulls(np.count_nonzero(changed), self._type))
        else:
            self._keep(keys, held, rows, kept, ctx)
        if matcher.starts:
            found = matcher.starts, matcher.ends, matcher.rows, matcher.taken
            of_match, lost = np.repeat(np.arange(len(keys)), np.diff(counts)), np.array(matcher.lost)
            ends = np.append(0, np.cumsum(~lost))  # timed-out ones have no number
            numbers = ends[1:] + (np.array(held.numbers) - ends[counts[:-1]])[of_match]
            shown = Shown(found, self._plan.all_rows, self._plan.shows_empty)
            yield self._emitted(shown, of_match, np.ma.array(numbers, mask=lost), keys, rows, ctx)

    def _known(self, row: int, high: int, times: np.ndarray, watermark: int) -> int:
        """Return the first row, from `row` to `high`, behind which a row can come that it refers to."""
        ahead, within = self._plan.ahead, self._plan.lead_within
        if not ahead or watermark == MAX_WATERMARK:
            return high
        row = max(row, high - ahead)
        while row < high and within is not None and times[row] + within <= watermark:
            row += 1
        return row

    def _bits(self, rows: _Rows) -> np.ndarray:
        """Return which variables each row can be, as far as conditions on rows say it."""
        bits = np.zeros(len(rows), np.int64)
        for number, term in enumerate(self._plan.defined):
            if term is None or not of_rows(term):
                bits |= 1 << number
            else:
                met = rows.computed(term).cast(pa.bool_()).fill_null(False)  # NULL has no type
                bits |= np.asarray(met).astype(np.int64) << number
        return bits

    def _keep(
        self, keys: np.ndarray, held: _Held, rows: _Rows, kept: _Kept, ctx: BatchProcessFunction.Context
    ) -> None:
        """Save what later rows may need, and wait for the end of the oldest partial matches."""
        values = kept.states(rows, self._type)
        changed = np.asarray(values.is_valid()) | (held.lengths >= 0)
        self._state.update_many(keys[changed], values.filter(pa.array(changed)))
        timers, ends = ctx.timer_service(), np.array(kept.ends, np.int64)
        waits = ends > MIN_WATERMARK
        if waits.any():
            timers.register_event_time_timers(keys[waits], ends[waits], name=_TIMER)
        if (gone := held.waits & ~waits).any():
            timers.delete_event_time_timers(keys[gone], name=_TIMER)

    def _emitted(
        self,
        shown: Shown,
        of_match: np.ndarray,
        numbers: np.ma.MaskedArray[Any, Any],
        keys: np.ndarray,
        rows: _Rows,
        ctx: BatchProcessFunction.Context,
    ) -> pa.RecordBatch:
        """Return the rows that matches show, with their measures.

        of_match: the place of the key of each match
        numbers: of each match, none if it has timed out
        """
        plan = self._plan
        of_key = ctx.keys(keys).take(pa.array(of_match[shown.matches]))
        columns = list(of_key.columns[: len(plan.keys)])
        columns += [rows.column((name, 0)).take(pa.array(shown.rows)) for name in plan.shown]
        for one in plan.measures:
            if one.kind == "number":
                columns.append(pa.array(numbers[shown.matches], one.type))
            else:
                columns.append(shown.values(one, rows.column, plan.pattern.variables))
        names = [*plan.keys, *plan.shown, *(one.name for one in plan.measures)]
        if plan.timed_out:
            columns.append(pa.array(np.ma.getmaskarray(numbers)[shown.matches]))
            names.append(TIMED_OUT)
        return pa.RecordBatch.from_arrays(columns, names=names)


def _after(time: int, within: int | None) -> int:
    return MAX_WATERMARK if within is None else int(time) + within


class _Held:
    """The states of keys.

    lengths: the number of rows of each key; -1 without a state
    waiting: how many of them have not been looked at
    waits: whether a key has partial matches, or such rows
    """

    def __init__(self, states: pa.StructArray, mark: int) -> None:
        valid = np.asarray(states.is_valid())
        marks = states.field("mark").filter(pa.array(valid))
        if len(marks) and not (np.asarray(marks) == mark).all():
            raise ValueError(
                "query: MATCH_RECOGNIZE must have the pattern, conditions and SKIP of the checkpoint, and "
                "read the same columns; keep these, or start with a new checkpoint"
            )
        self.numbers = states.field("number").fill_null(0).to_pylist()
        self.counts, threads = (
            np.asarray(states.field(name).value_lengths().fill_null(0)).astype(np.int64) * valid
            for name in ("rows", "threads")
        )
        self.rows = states.field("rows").flatten()
        self.lengths = np.where(valid, self.counts, -1)
        self.waiting = np.asarray(states.field("waiting").fill_null(0)).astype(np.int64)
        self.waits = (threads > 0) | (self.waiting > 0)
        self._threads = states.field("threads").to_pylist()

    def attempts(self, key: int, low: int, times: np.ndarray, matcher: Matcher) -> list[Attempt]:
        """Return the partial matches of a key, whose rows begin at `low`."""
        found: list[Attempt] = []
        for start, follows, all_taken in map(dict.values, self._threads[key] or ()):
            if not found or found[-1].start != start + low:
                found.append(Attempt(start + low, times[start + low]))
            cell: Any = None
            registers = matcher.nothing
            for row, taken in enumerate(all_taken, start + low):
                cell = cell, row, taken
                registers = registers and matcher.taken_with(registers, row, taken >> 1)
            if follows == ACCEPT:
                found[-1].best, found[-1].complete = cell, True
            else:
                found[-1].threads.append((follows, cell, registers))
        return found


class _Rows:
    """The rows of keys, those of the state and those that came, by key and time."""

    def __init__(
        self,
        keys: np.ndarray,
        held: _Held,
        batch: pa.RecordBatch | None,
        ids: np.ndarray,
        times: np.ndarray,
        lead_within: int | None,
    ) -> None:
        self._held, self._batch, self._count, self._within = held, batch, len(held.rows), lead_within
        all_ids = np.concatenate([np.repeat(keys, held.counts), ids])
        all_times = np.concatenate([np.asarray(held.rows.field(_TIME)), times])
        order = row_order(all_ids, all_times, all_times)  # stable: what has come is in its order
        self._order, self.times = pa.array(order), all_times[order]
        self._bounds = np.searchsorted(all_ids[order], keys), np.searchsorted(all_ids[order], keys, "right")
        self._of_key = [np.repeat(one, self._bounds[1] - self._bounds[0]) for one in self._bounds]
        self._columns: dict[Column, pa.Array] = {}
        self.bits = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self.times)

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """Yield where the rows of each key begin, those that are to be looked at, and where they end."""
        lows, highs = self._bounds
        news = lows + self._held.counts - self._held.waiting
        yield from zip(lows.tolist(), news.tolist(), highs.tolist(), strict=True)

    def column(self, column: Column) -> pa.Array:
        """Return a column, null in rows of the state that do not have it, and beyond the rows of the key."""
        found = self._columns.get(column)
        if found is None:
            name, back = column
            if back:
                at, (low, high) = np.arange(len(self)) - back, self._of_key
                none = (at < low) | (at >= high)
                if back < 0 and self._within is not None:
                    none |= self.times[np.where(none, 0, at)] - self.times > self._within
                found = self.column((name, 0)).take(pa.array(at, mask=none))
            else:
                found = self._whole(name).take(self._order)
            self._columns[column] = found
        return found

    def computed(self, term: Term) -> pa.Array:
        """Return a term `of_rows` for all rows."""
        if term[0] == "row":
            return self.column((term[1], term[2]))
        return OPERATORS[term[0]][1](*map(self.computed, term[1:]))

    def _whole(self, name: str) -> pa.Array:
        rows, parts = self._held.rows, []
        if self._batch is not None:
            parts.append(self._batch.column(name))
        if name in [field.name for field in rows.type]:
            parts.insert(0, rows.field(name))
        elif parts:
            parts.insert(0, pa.nulls(self._count, parts[0].type))
        else:
            return pa.nulls(self._count, pa.bool_())  # no row has come, so no condition is asked
        return pa.concat_arrays([part.cast(parts[0].type) for part in parts])

    def known_bits(self, bits: np.ndarray) -> np.ndarray:
        """Return the bits of rows, for those that were looked at as the state has them."""
        known = pa.concat_arrays(
            [self._held.rows.field(_BITS), pa.nulls(len(self) - self._count, pa.int64())]
        )
        return np.asarray(pc.coalesce(known.take(self._order), pa.array(bits)))

    def stored(self, at: np.ndarray, waits: np.ndarray) -> pa.StructArray:
        """Return rows as the state has them."""
        fields = list(self._held.rows.type)
        columns = [pa.array(self.times[at]), pa.array(self.bits[at], mask=waits)]
        columns += [self.column((field.name, 0)).take(pa.array(at)) for field in fields[2:]]
        return pa.StructArray.from_arrays(
            [column.cast(field.type) for column, field in zip(columns, fields, strict=True)], fields=fields
        )


class _Kept:
    """Collects the states of keys.

    ends: the watermark for which each key waits, `MIN_WATERMARK` if it does not wait
    """

    def __init__(self, mark: int) -> None:
        self._mark = mark
        self.ends: list[int] = []
        self._spans: list[tuple[int, int, int, int]] = []
        self._threads: list[list[dict[str, Any]]] = []

    def add(self, attempts: list[Attempt], low: int, stop: int, high: int, number: int, end: int) -> None:
        """Add the state of the next key, whose rows are those from `low` to `high`.

        stop: the first of them that has not been looked at
        """
        self.ends.append(end)
        self._spans.append((low, high, number, high - stop))
        self._threads.append(
            [
                {"start": one.start - low, "next": pc, "taken": _taken(cell)}
                for one in attempts
                for pc, cell, _ in [*one.threads, *([(ACCEPT, one.best, ())] if one.complete else [])]
            ]
        )

    def states(self, rows: _Rows, type_: pa.StructType) -> pa.StructArray:
        """Return the states, null for a key that needs none."""
        lows, highs, numbers, waiting = (np.array(one, np.int64) for one in zip(*self._spans, strict=True))
        counts = highs - lows
        bounds = pa.array(np.append(0, np.cumsum(counts)), pa.int32())
        at = np.concatenate([np.arange(low, high) for low, high, *_ in self._spans])
        stored = rows.stored(at, at >= np.repeat(highs - waiting, counts))
        lists = [pa.ListArray.from_arrays(bounds, stored), pa.array(self._threads, pa.list_(_THREAD))]
        marks = pa.array(np.full(len(counts), self._mark))
        columns = [marks, pa.array(numbers), pa.array(waiting), *lists]
        fields = [field.with_type(one.type) for field, one in zip(type_, columns, strict=True)]
        empty = (counts == 0) & (numbers == 0) & (np.array(self.ends) == MIN_WATERMARK)
        return pa.StructArray.from_arrays(columns, fields=fields, mask=pa.array(empty)).cast(type_)


def _taken(cell: Any) -> list[int]:
    """Return what the rows of a partial match are taken as."""
    found = []
    while cell is not None:
        cell, _, taken = cell
        found.append(taken)
    return found[::-1]
