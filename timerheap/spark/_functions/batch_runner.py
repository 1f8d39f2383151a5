"""Runs a BatchProcessFunction on key groups: rows and timers as columns, in waves over keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap._native._core import (
    FIRINGS,
    FIRINGS_EACH,
    CurrentKey,
    wave_order,
)
from timerheap._row_context import endless
from timerheap._values import records
from timerheap.functions import BatchProcessFunction, DueTimers
from timerheap.output_tag import is_tagged
from timerheap.spark._arrow import KeyedRows, fitting, narrow
from timerheap.spark._functions.batch_contexts import BatchContext, GroupTimerService
from timerheap.spark._functions.expiry_clocks import GroupExpiryClock
from timerheap.spark._functions.function_runner import FunctionRunner
from timerheap.spark._functions.function_work import FunctionWork
from timerheap.spark._functions.guarded.failed_calls import call_in_pieces
from timerheap.spark._functions.rows_ahead import RowsAhead
from timerheap.spark._functions.staged_timers import StagedTimers, fire_before, fire_rest
from timerheap.spark._functions.state_handles import BatchGroupRuntimeContext
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.timers import JournalledTimers
from timerheap.spark._query import Query
from timerheap.spark._worker.errors import add_call
from timerheap.spark._worker.output import ResultBuffer
from timerheap.time import TimeDomain
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK, TimerBatch


class BatchRunner(FunctionRunner):
    """Runs one copy of a function, on many rows or timers at once."""

    fired_timers = 0
    _returned = 0  # the number of rows and timers for which the function has returned

    def __init__(self, function: BatchProcessFunction, query: Query, max_parallelism: int) -> None:
        self._function = function
        self.any_order = function._takes_all and function._any_order
        self._timed = query.event_time is not None
        self._schema = pa.schema([query.schema.field(name) for name in query.seen_rows.names])
        self.rows_ahead = RowsAhead()
        self._current = CurrentKey()
        self._states = BatchGroupRuntimeContext(self._current, max_parallelism)
        self._states.clock = self._clock = GroupExpiryClock()
        self._context = BatchContext(self._current)

    def begin(self, group: KeyGroup, now: int | None, output: ResultBuffer) -> None:
        self._group = group
        self._output = output
        self._clock.begin(group, now)
        self._tables = self._states.bind(group)
        self._timers = GroupTimerService(group, group.watermark, now, self.rows_ahead.too_early)
        self._timers.steps = self._states.steps
        if self._failed is not None:
            self._failed.begin(group, output)
        self._context.begin(group, self._timers)
        self._again = 0  # timers registered in place of those that have fired, since these last advanced

    def replay(self, waiting: KeyedRows, order: np.ndarray, watermark: int) -> None:
        """Process rows in event-time order, in waves of at most one row or timer of each key."""
        timers = self._timers
        group = self._group
        if self._function._takes_all:
            timers.watermark = max(watermark, timers.watermark)
            if len(order):
                due = waiting.select(self._schema.names).take(order)
                self._process(due.rows, due.ids, due.timestamps)
            self._fire(group.event_timers, watermark, TimeDomain.EVENT_TIME)
            return
        timers.staged = staged = StagedTimers(
            group.event_timers, watermark, group.keys, waiting, timers.watermark
        )
        order, numbers, stops = wave_order(order, staged.row_numbers, len(staged.ids))
        waiting = replace(waiting.select(self._schema.names), places=None).take(order)
        first = 0
        for part in self._narrowed(waiting):
            last = first + len(part)
            inside = stops[(first < stops) & (stops < last)] - first
            watermarks = part.timestamps - 1
            for begin, end in pairwise([0, *inside.tolist(), len(part)]):
                wave, of_keys = slice(begin, end), numbers[first + begin : first + end]
                ids, timestamps = part.ids[wave], part.timestamps[wave]
                fire_before(staged, of_keys, timestamps, self._fire_wave)
                staged.begin_call(ids, of_keys)
                timers.watermarks = staged.watermarks[of_keys] = watermarks[wave]
                self._process(part.rows.slice(begin, end - begin), ids, timestamps, of_keys)
            first = last
        self._context.ended = watermark == MAX_WATERMARK
        fire_rest(staged, self._fire_wave)
        staged.end()
        timers.staged = timers.watermarks = None
        timers.watermark = max(watermark, timers.watermark)

    def _fire_wave(self, numbers: np.ndarray, due: TimerBatch) -> None:
        staged = self._timers.staged
        assert staged is not None
        staged.begin_call(due.key_hashes, numbers)
        self._timers.watermarks = staged.watermarks[numbers]
        self._on_timers(self._group.event_timers, due, TimeDomain.EVENT_TIME, not staged.stalled, numbers)

    def process(self, waiting: KeyedRows, watermark: int) -> None:
        """Process rows in the order of arrival, in one call unless they exceed an Arrow column."""
        self.rows_ahead.begin(self._group, watermark)
        for part in self._narrowed(waiting):
            due = self.rows_ahead.due() if self._timed else None
            self._process(part.rows, part.ids, part.timestamps)
            if due is not None:
                self.rows_ahead.check_many(part, due)

    def _narrowed(self, waiting: KeyedRows) -> Iterator[KeyedRows]:
        """Yield the rows as the function sees them, in parts if they exceed an Arrow column."""
        for start, stop in fitting(waiting.rows):
            part = waiting.slice(start, stop)
            rows = narrow(part.rows.select(self._schema.names), self._schema)
            yield KeyedRows(rows, part.ids, part.timestamps)

    def _process(
        self,
        rows: pa.RecordBatch,
        ids: np.ndarray,
        timestamps: np.ndarray,
        numbers: np.ndarray | None = None,
    ) -> None:
        """Call the function with rows; `numbers` are those of their keys among the staged timers."""
        if self._failed is None:
            self._process_at_once(rows, ids, timestamps)
            return

        def call(piece: np.ndarray) -> None:
            of_piece = rows if len(piece) == len(rows) else rows.take(pa.array(piece))
            self._process_at_once(of_piece, ids[piece], timestamps[piece])

        def letter(error: Exception, place: int) -> None:
            at = timestamps[place].item() if self._timed else None
            self._add_letter(error, "process_batch", ids[place], at, rows=rows.slice(place, 1))

        self._call_in_pieces(ids, numbers, call, letter)

    def _process_at_once(self, rows: pa.RecordBatch, ids: np.ndarray, timestamps: np.ndarray) -> None:
        self._begin_call(ids)
        self._timers.times = self._context.timestamps = timestamps if self._timed else None
        self._emit(self._function.process_batch, rows)

    def _call_in_pieces(
        self,
        ids: np.ndarray,
        numbers: np.ndarray | None,
        call: Callable[[np.ndarray], None],
        letter: Callable[[Exception, int], None],
    ) -> None:
        """Call the function with all rows or timers of these keys; where that raises, with fewer."""
        failed, timers, watermarks = self._failed, self._timers, self._timers.watermarks
        assert failed is not None

        def attempt(piece: np.ndarray) -> None:
            if numbers is not None:
                assert timers.staged is not None
                assert watermarks is not None
                timers.watermarks = watermarks[piece]
                timers.staged.begin_call(ids[piece], numbers[piece])
            failed.mark()
            call(piece)
            timers.end_call()
            failed.steps.clear()
            self._returned += len(piece)

        def give_up(error: Exception, place: int) -> None:
            timers.forget_call()
            if place < 0:
                failed.undo()
            else:
                letter(error, place)

        call_in_pieces(len(ids), ids, attempt, give_up)

    def _add_letter(
        self,
        error: Exception,
        method: str,
        id_: np.int64,
        at: int | None,
        *,
        timer: str | None = None,
        rows: pa.RecordBatch | None = None,
    ) -> None:
        assert self._failed is not None
        of_key = np.array([id_])
        self._failed.add(error, method, self._returned, of_key, [at], timers=[timer], rows=rows)

    def advance(self, watermark: int) -> None:
        self._timers.watermark = watermark
        self._fire(self._group.event_timers, watermark, TimeDomain.EVENT_TIME)

    def advance_clock(self, now: int) -> None:
        """Fire processing-time timers; those of time t fire when the clock shows t + 1."""
        self._fire(self._group.processing_timers, now - 1, TimeDomain.PROCESSING_TIME)
        self._clock.purge(False, now)

    def _fire(self, timers: JournalledTimers, time: int, domain: TimeDomain) -> None:
        self._context.ended = domain is TimeDomain.EVENT_TIME and time == MAX_WATERMARK
        latest = MIN_WATERMARK
        while len(due := timers.pop_due(time)):
            newest = due.timestamps[-1].item()
            self._on_timers(timers, due, domain, newest > latest)
            latest = max(latest, newest)

    def _on_timers(
        self,
        timers: JournalledTimers,
        due: TimerBatch,
        domain: TimeDomain,
        advances: bool,
        numbers: np.ndarray | None = None,
    ) -> None:
        """Call the function; `advances`: whether some timer is later than those before it."""
        # `numbers` are those of the keys among the staged timers.
        # Raises RuntimeError if the function goes on registering timers in their place without an advance, or
        # after the end of the input, where there is no time to advance to.
        pending = len(timers)
        self.fired_timers += len(due)
        if self._failed is None:
            self._fire_at_once(due, domain)
        else:

            def letter(error: Exception, place: int) -> None:
                (name,) = self._group.timer_names.names(due.namespaces[place : place + 1])
                at = due.timestamps[place].item()
                self._add_letter(error, "on_timers", due.key_hashes[place], at, timer=name)

            def call(piece: np.ndarray) -> None:
                columns = due.timestamps, due.key_hashes, due.namespaces
                self._fire_at_once(TimerBatch(*(column[piece] for column in columns)), domain)

            self._call_in_pieces(due.key_hashes, numbers, call, letter)
        registered, ended = len(timers) - pending, self._context.ended
        if registered <= 0:
            return
        if advances and not ended:
            self._again = 0
        if not self._again:
            self._allowed = FIRINGS + FIRINGS_EACH * (pending + len(due))
        self._again += registered
        if self._again > self._allowed:
            key = self._group.keys.keys(due.key_hashes[:1]).to_pylist()[0]
            name = self._group.timer_names.names(due.namespaces[:1])[0]
            endless(self._function, key, due[0].timestamp, name, ended)

    def _fire_at_once(self, due: TimerBatch, domain: TimeDomain) -> None:
        self._begin_call(due.key_hashes)
        self._context.timestamps = due.timestamps
        self._timers.times = due.timestamps if domain is TimeDomain.EVENT_TIME else None
        self._context.domain = domain
        names = partial(self._group.timer_names.names, due.namespaces)
        self._emit(self._function.on_timers, DueTimers(due.timestamps, due.key_hashes, names))

    def _begin_call(self, ids: np.ndarray) -> None:
        ids.setflags(write=False)
        self._current.current_key = None  # the next key group has other keys
        for table in self._tables:
            table.announce(ids)
        self._context.ids = self._group.keys.at_hand = ids

    def _emit(self, method: Callable[[Any, Any], object], columns: object) -> None:
        """Call a method of the function with rows or timers, and emit what it returns."""
        source = method.__name__
        try:
            for batch in records(source, method(columns, self._context)):
                self._output.batch(_detached(batch), source)
        except Exception as e:
            add_call(e, f"in {source}, {len(self._context.ids):,} keys")
            raise


def _detached(batch: Any) -> Any:
    """Return a batch, or a tag and one, in memory of its own, since arrays may be NumPy's; 1 ns a value."""
    if is_tagged(batch):
        tag, batch = batch
        return tag, _detached(batch)
    if isinstance(batch, pa.Table):
        return pa.Table.from_batches(map(_detached, batch.to_batches()), batch.schema)
    if isinstance(batch, pa.RecordBatch) and batch.num_columns:
        columns = [pa.concat_arrays([column]) for column in batch.columns]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
    return batch


@dataclass(frozen=True)
class BatchWork(FunctionWork):
    """A function to run on many rows or timers at once."""

    function: BatchProcessFunction
    context_class = BatchGroupRuntimeContext
    runner_class = BatchRunner
