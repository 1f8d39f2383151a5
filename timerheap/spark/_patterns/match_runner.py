"""MATCH_RECOGNIZE in a key group: rows in event-time order, partial matches as state, measures as columns."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timerheap._native._core import Attempt, Matcher
from timerheap.functions import BatchProcessFunction, BatchRuntimeContext, DueTimers
from timerheap.spark._arrow import event_times
from timerheap.spark._columns import TIMED_OUT
from timerheap.spark._order_by import sort_columns
from timerheap.spark._patterns.conditions import (
    columns_read,
    condition,
    leaves,
    of_rows,
    out_of_range,
    plain,
    registers_of,
    with_range_error,
)
from timerheap.spark._patterns.match_plan import MatchPlan, rows_before
from timerheap.spark._patterns.match_rows import NOTHING, Arrived, Rows
from timerheap.spark._patterns.match_rules import Rules
from timerheap.spark._patterns.match_states import BITS, MICROS, THREAD, TIME, HeldStates, KeptStates
from timerheap.spark._patterns.measures import Shown
from timerheap.spark._patterns.spark_numbers import DoesNotFitError
from timerheap.state import ValueStateDescriptor
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK

_TIMER = "match"


class MatchRows(BatchProcessFunction):
    """Emits the matches of each key once they are decided.

    Of each key the state has its partial matches, the rows that they need, and a timer for the end of the
    oldest one.
    """

    _takes_all = True

    def __init__(self, plan: MatchPlan) -> None:
        self._plan = plan
        waits = [plan.lead_within if plan.ahead else 0, plan.within if plan.all_rows else 0]
        self._results_behind = None if None in waits else sum(filter(None, waits))
        terms = [term for term in plan.defined if term is not None and not of_rows(term)]
        columns = dict.fromkeys(column for term in terms for column in columns_read(term))
        self._columns = {column: at for at, column in enumerate(columns)}
        found = [leaf for term in terms for leaf in leaves(term) if leaf[0] != "row"]
        registers = tuple(dict.fromkeys(one for leaf in found for one in registers_of(leaf, self._columns)))
        conditions = tuple(
            None
            if term is None or of_rows(term)
            else with_range_error(name, term, condition(term, self._columns, registers))
            for name, term in zip(plan.pattern.variables, plan.defined, strict=True)
        )
        self._unit = 1 if plan.time is None else 1000  # of the time of a row, in 1 ms
        within = None if plan.within is None else min(plan.within, MAX_WATERMARK // self._unit) * self._unit
        self._rules = Rules(
            plan.pattern, conditions, registers, within, plan.skip, plan.target, plan.timed_out
        )
        self._back = rows_before(plan)
        self._counts = any(one.kind == "number" for one in plan.measures)

    def open(self, runtime_context: BatchRuntimeContext) -> None:  # type: ignore[override]
        own = [TIME, BITS, *([] if self._plan.time is None else [MICROS])]
        rows = pa.struct([*((name, pa.int64()) for name in own), *self._plan.rows])
        fields = {"mark": pa.int64(), "number": pa.int64(), "waiting": pa.int32(), "rows": pa.list_(rows)}
        self._type = pa.struct({**fields, "threads": pa.list_(THREAD)})
        self._state = runtime_context.get_state(ValueStateDescriptor("matches", self._type))

    def process_batch(
        self, batch: pa.RecordBatch, ctx: BatchProcessFunction.Context
    ) -> Iterator[pa.RecordBatch]:
        """Add rows to the partial matches of their keys."""
        assert ctx.timestamps is not None
        arrived = self._in_order(batch, ctx.ids, ctx.timestamps)
        yield from self._run(ctx.ids, arrived, ctx)

    def on_timers(self, due: DueTimers, ctx: BatchProcessFunction.Context) -> Iterator[pa.RecordBatch]:
        """End the oldest partial matches."""
        yield from self._run(due.ids, NOTHING, ctx)

    def _in_order(self, batch: pa.RecordBatch, ids: np.ndarray, times: np.ndarray) -> Arrived:
        """Return rows with their finest times, by ORDER BY if it names more than the time."""
        if self._plan.time is not None:
            times = event_times(batch.column(self._plan.time))
        if self._plan.order:
            columns, by = sort_columns(batch, self._plan.order, {"key": ids, "time": times})
            places = pc.sort_indices(pa.table(columns), by)  # which is stable
            batch, ids, times = batch.take(places), ids[places], times[places]
        return Arrived(batch, ids, times)

    def _run(
        self, ids: np.ndarray, arrived: Arrived, ctx: BatchProcessFunction.Context
    ) -> Iterator[pa.RecordBatch]:
        turn = self._turn(np.unique(ids), arrived, ctx)
        self._match(turn)
        self._save(turn)
        if turn.matcher.starts:
            yield self._emitted(turn)

    def _turn(self, keys: np.ndarray, arrived: Arrived, ctx: BatchProcessFunction.Context) -> _Turn:
        """Return a call of the function, before a row has been looked at."""
        plan = self._plan
        held = HeldStates(self._state.values(keys).cast(self._type), plan.mark)
        rows = Rows(keys, held, arrived, (plan.lead_within, plan.lag_within), self._unit)
        known = arrived.batch is None and not plan.ahead  # of all rows, of which the state may lack columns
        rows.bits = rows.known_bits(np.zeros(len(rows), np.int64) if known else self._bits(rows))
        matcher = Matcher(self._rules, [plain(rows.column(column)) for column in self._columns])
        watermark = ctx.timer_service().current_watermark()
        return _Turn(ctx, keys, watermark, held, rows, matcher, KeptStates(plan.mark))

    def _match(self, turn: _Turn) -> None:
        """Look at the rows of each key that are decided, and collect what later rows may need."""
        held, rows, matcher, counts = turn.held, turn.rows, turn.matcher, turn.counts
        times, bits, watermark, keep = rows.times, rows.bits, turn.watermark, turn.kept.add
        next_time = max(MIN_WATERMARK, min((watermark + 1) * self._unit, MAX_WATERMARK))
        with _no_collection():
            for key, (low, new, high) in enumerate(rows.spans()):
                matcher.attempts = held.attempts(key, low, times, matcher)
                stop = self._known(new, high, times, watermark)
                matcher.run(new, stop, times, bits, low)
                if watermark == MAX_WATERMARK:
                    matcher.finish()
                else:
                    matcher.expire(next_time if stop == high else min(next_time, times[stop]))
                    attempts = matcher.attempts
                    first, end = self._needed(attempts, (low, stop, high), times, next_time)
                    count = held.numbers[key] + matcher.lost[counts[-1] :].count(False) if self._counts else 0
                    keep(attempts, first, stop, high, count, end)
                counts.append(len(matcher.starts))

    def _needed(
        self, attempts: list[Attempt], span: tuple[int, int, int], times: np.ndarray, next_time: int
    ) -> tuple[int, int]:
        """Return the first row of a key that is kept, and the watermark that the key waits for.

        span: where the rows of the key begin, the first one that has not been looked at, and where they end
        next_time: the earliest time of a row that may come
        """
        (low, stop, high), lag_within = span, self._plan.lag_within
        keep = max(low, (attempts[0].start if attempts else stop) - self._back)
        if stop < high:
            return keep, _end(times[stop] // self._unit, self._plan.lead_within)
        if attempts:
            return keep, _end((attempts[0].time - 1) // self._unit, self._plan.within)
        if lag_within is None:
            return keep, MIN_WATERMARK
        oldest = max(MIN_WATERMARK, next_time - lag_within * self._unit)
        keep += int(np.searchsorted(times[keep:stop], oldest))
        return keep, _end(times[stop - 1] // self._unit, lag_within) if keep < stop else MIN_WATERMARK

    def _known(self, row: int, high: int, times: np.ndarray, watermark: int) -> int:
        """Return the first row, from `row` to `high`, behind which a row can come that it refers to."""
        ahead, within = self._plan.ahead, self._plan.lead_within
        if not ahead or watermark == MAX_WATERMARK:
            return high
        row = max(row, high - ahead)
        while row < high and within is not None and times[row] // self._unit + within <= watermark:
            row += 1
        return row

    def _bits(self, rows: Rows) -> np.ndarray:
        """Return which variables each row can be, as far as conditions on rows say it."""
        bits = np.zeros(len(rows), np.int64)
        for number, term in enumerate(self._plan.defined):
            if term is None or not of_rows(term):
                bits |= 1 << number
            else:
                try:
                    met = rows.computed(term).cast(pa.bool_()).fill_null(False)  # NULL has no type
                except DoesNotFitError as error:
                    raise out_of_range(self._plan.pattern.variables[number], term, error) from None
                bits |= np.asarray(met).astype(np.int64) << number
        return bits

    def _save(self, turn: _Turn) -> None:
        """Save what later rows may need, and wait for the end of the oldest partial matches."""
        keys, held, kept = turn.keys, turn.held, turn.kept
        if turn.watermark == MAX_WATERMARK:
            changed = held.lengths >= 0
            self._state.update_many(keys[changed], pa.nulls(np.count_nonzero(changed), self._type))
            return
        values = kept.states(turn.rows.stored, self._type)
        changed = np.asarray(values.is_valid()) | (held.lengths >= 0)
        self._state.update_many(keys[changed], values.filter(pa.array(changed)))
        timers, ends = turn.ctx.timer_service(), np.array(kept.ends, np.int64)
        waits = ends > MIN_WATERMARK
        if waits.any():
            timers.register_event_time_timers(keys[waits], ends[waits], name=_TIMER)
        if (gone := held.waits & ~waits).any():
            timers.delete_event_time_timers(keys[gone], name=_TIMER)

    def _emitted(self, turn: _Turn) -> pa.RecordBatch:
        """Return the rows that matches show, with their measures."""
        plan, rows, matcher = self._plan, turn.rows, turn.matcher
        found = matcher.starts, matcher.ends, matcher.rows, matcher.taken
        shown = Shown(found, plan.all_rows, plan.shows_empty)
        of_match, numbers = turn.of_match(), turn.numbers()
        of_key = turn.ctx.keys(turn.keys).take(pa.array(of_match[shown.matches]))
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


@dataclass(eq=False)
class _Turn:
    """One call of the function: its keys, their states and rows, and what is found in them.

    counts: for each key and the end, how many matches were found before it
    """

    ctx: BatchProcessFunction.Context
    keys: np.ndarray
    watermark: int
    held: HeldStates
    rows: Rows
    matcher: Matcher
    kept: KeptStates
    counts: list[int] = field(default_factory=lambda: [0])

    def of_match(self) -> np.ndarray:
        """Return the place of the key of each match."""
        return np.repeat(np.arange(len(self.keys)), np.diff(self.counts))

    def numbers(self) -> np.ma.MaskedArray[Any, Any]:
        """Return the number of each match in its key, none if it has timed out."""
        lost = np.array(self.matcher.lost)
        ends = np.append(0, np.cumsum(~lost))
        numbers = ends[1:] + (np.array(self.held.numbers) - ends[self.counts[:-1]])[self.of_match()]
        return np.ma.array(numbers, mask=lost)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause the collection of garbage, unless it is paused.

    Partial matches are many small objects without cycles. Again and again the collector would visit all of
    them, and free none.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _end(time: int, within: int | None) -> int:
    return MAX_WATERMARK if within is None else min(int(time) + within, MAX_WATERMARK)
