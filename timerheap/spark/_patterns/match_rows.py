"""MATCH_RECOGNIZE in a key group: rows in event-time order, partial matches as state, measures as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap._native._core import Attempt, Matcher, row_order
from timerheap.functions import BatchProcessFunction, BatchRuntimeContext, DueTimers
from timerheap.spark._patterns.conditions import (
    Column,
    Term,
    columns_of,
    computed,
    condition,
    leaves,
    of_rows,
    plain,
    register_of,
)
from timerheap.spark._patterns.matcher import Rules
from timerheap.spark._patterns.measures import Measure, Shown
from timerheap.spark._patterns.pattern import ACCEPT, Pattern
from timerheap.state import ValueStateDescriptor
from timerheap.timer import MAX_WATERMARK

_CELL = pa.struct([(name, pa.int32()) for name in ("before", "row", "taken")])
_THREAD = pa.struct([(name, pa.int32()) for name in ("start", "next", "cell")])
_TIMER = "match"


@dataclass(frozen=True)
class MatchPlan:
    """What to find and to emit.

    defined: what each variable asks of a row; None for nothing
    keys, shown: the columns of the result before those of the measures
    rows: the columns that a partial match remembers
    mark: tells queries with different patterns and conditions apart
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


class MatchRows(BatchProcessFunction):
    """Emits the matches of each key once they are decided.

    Of each key the state has its partial matches, the rows that they need, and a timer for the end of the
    oldest one.
    """

    _takes_all = True

    def __init__(self, plan: MatchPlan) -> None:
        self._plan = plan
        terms = [term for term in plan.defined if term is not None and not of_rows(term)]
        self._columns = {column: at for at, column in enumerate(dict.fromkeys(_all_columns(terms)))}
        found = dict.fromkeys(leaf for term in terms for leaf in leaves(term) if leaf[0] != "row")
        registers = tuple(dict.fromkeys(register_of(leaf, self._columns) for leaf in found))
        conditions = tuple(
            None if term is None or of_rows(term) else condition(term, self._columns, registers)
            for term in plan.defined
        )
        self._rules = Rules(plan.pattern, conditions, registers, plan.within, plan.skip, plan.target)
        backs = [back for term in plan.defined if term for _, back in columns_of(term)]
        self._back = max([*backs, *(one.column[1] for one in plan.measures if one.column)], default=0)
        self._counts = any(one.kind == "number" for one in plan.measures)

    def open(self, runtime_context: BatchRuntimeContext) -> None:  # type: ignore[override]
        rows = pa.struct([pa.field("time", pa.int64()), *self._plan.rows])
        fields = {"mark": pa.int64(), "number": pa.int64(), "rows": pa.list_(rows)}
        self._type = pa.struct({**fields, "cells": pa.list_(_CELL), "threads": pa.list_(_THREAD)})
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
        rows = _Rows(keys, held, batch, ids[: len(times)], times)
        bits = self._bits(rows)
        values = [plain(rows.column(column)) for column in self._columns]
        kept, matcher = _Kept(self._plan.mark), Matcher(rules, values)
        counts = [0]
        for key, (low, new, high) in enumerate(rows.spans()):
            matcher.attempts = held.attempts(key, low, rows.times, matcher)
            matcher.run(new, high, rows.times, bits, low)
            if watermark == MAX_WATERMARK:
                matcher.finish()
            else:
                matcher.expire(watermark + 1)
                attempts = matcher.attempts
                keep = (attempts[0].start if attempts else high) - self._back
                count = held.numbers[key] + len(matcher.starts) - counts[-1] if self._counts else 0
                kept.add(attempts, max(low, keep), high, count)
            counts.append(len(matcher.starts))
        if watermark == MAX_WATERMARK:
            changed = held.lengths >= 0
            self._state.update_many(keys[changed], pa.nulls(np.count_nonzero(changed), self._type))
        else:
            self._keep(keys, held, rows, kept, ctx)
        if matcher.starts:
            found = matcher.starts, matcher.ends, matcher.rows, matcher.taken
            of_match = np.repeat(np.arange(len(keys)), np.diff(counts))
            numbers = np.arange(1, counts[-1] + 1) + (np.array(held.numbers) - counts[:-1])[of_match]
            shown = Shown(found, self._plan.all_rows, self._plan.shows_empty)
            yield self._emitted(shown, of_match, numbers, keys, rows, ctx)

    def _bits(self, rows: _Rows) -> np.ndarray:
        """Return which variables each row can be, as far as conditions on rows say it."""
        bits = np.zeros(len(rows), np.int64)
        for number, term in enumerate(self._plan.defined):
            if term is None or not of_rows(term):
                bits |= 1 << number
            else:
                met = computed(term, rows.column).fill_null(False)
                bits |= np.asarray(met).astype(np.int64) << number
        return bits

    def _keep(
        self, keys: np.ndarray, held: _Held, rows: _Rows, kept: _Kept, ctx: BatchProcessFunction.Context
    ) -> None:
        """Save what later rows may need, and wait for the end of the oldest partial matches."""
        values = kept.states(rows.stored(kept.rows()), self._type)
        changed = np.asarray(values.is_valid()) | (held.lengths >= 0)
        self._state.update_many(keys[changed], values.filter(pa.array(changed)))
        timers, oldest = ctx.timer_service(), np.array(kept.oldest, np.int64)
        waits = oldest < MAX_WATERMARK
        ends = np.full(len(oldest), MAX_WATERMARK)
        if self._rules.within is not None:
            ends[waits] = oldest[waits] + self._rules.within - 1
        if waits.any():
            timers.register_event_time_timers(keys[waits], ends[waits], name=_TIMER)
        if (gone := held.waits & ~waits).any():
            timers.delete_event_time_timers(keys[gone], name=_TIMER)

    def _emitted(
        self,
        shown: Shown,
        of_match: np.ndarray,
        numbers: np.ndarray,
        keys: np.ndarray,
        rows: _Rows,
        ctx: BatchProcessFunction.Context,
    ) -> pa.RecordBatch:
        """Return the rows that matches show, with their measures.

        of_match: the place of the key of each match
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
        return pa.RecordBatch.from_arrays(columns, names=names)


def _all_columns(terms: Sequence[Term]) -> Iterator[Column]:
    for term in terms:
        yield from columns_of(term)


class _Held:
    """The states of keys.

    lengths: the number of rows of each key; -1 without a state
    waits: whether a key has partial matches
    """

    def __init__(self, states: pa.StructArray, mark: int) -> None:
        valid = np.asarray(states.is_valid())
        marks = states.field("mark").filter(pa.array(valid))
        if len(marks) and not (np.asarray(marks) == mark).all():
            raise ValueError(
                "query: MATCH_RECOGNIZE must be the one that the checkpoint was written with; keep it, or "
                "start with a new checkpoint"
            )
        self.numbers = states.field("number").fill_null(0).to_pylist()
        lists = {name: states.field(name) for name in ("rows", "cells", "threads")}
        lengths = {name: np.asarray(one.value_lengths().fill_null(0)) * valid for name, one in lists.items()}
        self.rows = lists["rows"].flatten()
        self.counts = lengths["rows"].astype(np.int64)
        self.lengths = np.where(valid, self.counts, -1)
        self.waits = lengths["threads"] > 0
        self._cells, self._threads = (
            list(zip(*(part.to_pylist() for part in lists[name].flatten().flatten()), strict=True))
            for name in ("cells", "threads")
        )
        self._ends = {name: np.cumsum(lengths[name]).tolist() for name in ("cells", "threads")}

    def _of(self, name: str, key: int) -> list[Any]:
        ends, all_ = self._ends[name], self._cells if name == "cells" else self._threads
        return all_[ends[key - 1] if key else 0 : ends[key]]

    def attempts(self, key: int, low: int, times: np.ndarray, matcher: Matcher) -> list[Attempt]:
        """Return the partial matches of a key, whose rows begin at `low`."""
        if not self.waits[key]:
            return []
        cells: list[Any] = [None]  # the last of them is that of no row
        registers = [matcher.nothing]
        for before, row, taken in self._of("cells", key):
            cells.append((cells[before + 1], row + low, taken))
            registers.append(matcher.taken_with(registers[before + 1], row + low, taken >> 1))
        found: list[Attempt] = []
        for start, pc, cell in self._of("threads", key):
            if not found or found[-1].start != start + low:
                found.append(Attempt(start + low, times[start + low]))
            if pc == ACCEPT:
                found[-1].best, found[-1].complete = cells[cell + 1], True
            else:
                found[-1].threads.append((pc, cells[cell + 1], registers[cell + 1]))
        return found


class _Rows:
    """The rows of keys, those of the state and those that came, by key and time."""

    def __init__(
        self, keys: np.ndarray, held: _Held, batch: pa.RecordBatch | None, ids: np.ndarray, times: np.ndarray
    ) -> None:
        self._held, self._batch, self._count = held, batch, len(held.rows)
        all_ids = np.concatenate([np.repeat(keys, held.counts), ids])
        all_times = np.concatenate([np.asarray(held.rows.field("time")), times])
        order = row_order(all_ids, all_times, all_times)  # stable: what has come is in its order
        self._order, self.times = pa.array(order), all_times[order]
        self._bounds = np.searchsorted(all_ids[order], keys), np.searchsorted(all_ids[order], keys, "right")
        self._numbers = np.arange(len(order)) - np.repeat(self._bounds[0], self._bounds[1] - self._bounds[0])
        self._columns: dict[Column, pa.Array] = {}

    def __len__(self) -> int:
        return len(self.times)

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """Yield where the rows of each key begin, those that came, and where they end."""
        lows, highs = self._bounds
        yield from zip(lows.tolist(), (lows + self._held.counts).tolist(), highs.tolist(), strict=True)

    def column(self, column: Column) -> pa.Array:
        """Return a column, null in rows of the state that do not have it, and before the first row."""
        found = self._columns.get(column)
        if found is None:
            name, back = column
            if back:
                at = np.arange(len(self)) - back
                found = self.column((name, 0)).take(pa.array(at, mask=self._numbers < back))
            else:
                found = self._whole(name).take(self._order)
            self._columns[column] = found
        return found

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

    def stored(self, at: np.ndarray) -> pa.StructArray:
        """Return rows as the state has them."""
        fields = list(self._held.rows.type)
        columns = [pa.array(self.times[at])]
        columns += [self.column((field.name, 0)).take(pa.array(at)) for field in fields[1:]]
        return pa.StructArray.from_arrays(
            [column.cast(field.type) for column, field in zip(columns, fields, strict=True)], fields=fields
        )


class _Kept:
    """Collects the states of keys.

    oldest: the time of the first row of the partial matches of each key, `MAX_WATERMARK` if there are none
    """

    def __init__(self, mark: int) -> None:
        self._mark = mark
        self.oldest: list[int] = []
        self._spans: list[tuple[int, int, int]] = []
        self._cells: tuple[list[int], list[int], list[int]] = ([], [], [])
        self._threads: tuple[list[int], list[int], list[int]] = ([], [], [])
        self._ends: tuple[list[int], list[int]] = ([0], [0])

    def add(self, attempts: list[Attempt], low: int, high: int, number: int) -> None:
        """Add the state of the next key, whose rows are those from `low` to `high`."""
        self.oldest.append(attempts[0].time if attempts else MAX_WATERMARK)
        self._spans.append((low, high, number))
        numbers: dict[int, int] = {id(None): -1}
        for one in attempts:
            threads: list[tuple[int, Any]] = [(pc, cell) for pc, cell, _ in one.threads]
            for pc, cell in [*threads, (ACCEPT, one.best)] if one.complete else threads:
                new = []
                while id(cell) not in numbers:
                    new.append(cell)
                    cell = cell[0]
                before = numbers[id(cell)]
                for each in reversed(new):
                    _put(self._cells, before, each[1] - low, each[2])
                    before = numbers[id(each)] = len(numbers) - 1
                _put(self._threads, one.start - low, pc, before)
        self._ends[0].append(len(self._cells[0]))
        self._ends[1].append(len(self._threads[0]))

    def rows(self) -> np.ndarray:
        """Return the places of all rows."""
        lows, highs = (np.array([one[at] for one in self._spans], np.int64) for at in (0, 1))
        counts = highs - lows
        places: np.ndarray = np.arange(counts.sum()) + np.repeat(lows - np.cumsum(counts) + counts, counts)
        return places

    def states(self, rows: pa.StructArray, type_: pa.StructType) -> pa.StructArray:
        """Return the states, null for a key that needs none."""
        counts = np.array([high - low for low, high, _ in self._spans])
        numbers = np.array([number for *_, number in self._spans])
        lists = [pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(counts)), pa.int32()), rows)]
        for ends, parts, of in zip(self._ends, (self._cells, self._threads), (_CELL, _THREAD), strict=True):
            values = pa.StructArray.from_arrays([pa.array(one, pa.int32()) for one in parts], fields=list(of))
            lists.append(pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values))
        marks = pa.array(np.full(len(counts), self._mark))
        columns = [marks, pa.array(numbers), *lists]
        fields = [field.with_type(one.type) for field, one in zip(type_, columns, strict=True)]
        empty = (counts == 0) & (numbers == 0) & (np.array(self.oldest) == MAX_WATERMARK)
        return pa.StructArray.from_arrays(columns, fields=fields, mask=pa.array(empty)).cast(type_)


def _put(columns: tuple[list[int], ...], *values: int) -> None:
    for column, value in zip(columns, values, strict=True):
        column.append(value)
