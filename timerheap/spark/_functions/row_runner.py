"""Runs a KeyedProcessFunction on key groups, row by row, on rows that are made one at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import StructType

from timerheap._key_timers import KeyTimers, KeyTimerService, no_processing_time
from timerheap._native._core import CurrentKey, KnownKeys, RowLoop, RowSource
from timerheap._row_context import RowFunctionContext
from timerheap.functions import KeyedProcessFunction
from timerheap.spark._arrow import KeyedRows
from timerheap.spark._functions.expiry_clocks import RowExpiryClock
from timerheap.spark._functions.function_runner import FunctionRunner
from timerheap.spark._functions.function_work import FunctionWork
from timerheap.spark._functions.guarded.dead_letters import Guard
from timerheap.spark._functions.rows_ahead import RowsAhead
from timerheap.spark._functions.state_handles import RowRuntimeContext
from timerheap.spark._functions.wrapped_functions import Tagged
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.timers import due_keys
from timerheap.spark._group.user_states import UserState
from timerheap.spark._memory.id_table import distinct_ids
from timerheap.spark._python_rows import changeable_class
from timerheap.spark._query import Query
from timerheap.spark._row_objects import RowSources, row_source
from timerheap.spark._worker.errors import add_call
from timerheap.spark._worker.output import ResultBuffer
from timerheap.time import TimeDomain
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK

_AHEAD = 1 << 16  # timers whose keys are looked up at once
_KNOWN = 1 << 12  # keys whose values stay in native cells


class VisibleRows:
    """Calls a function with the first columns of the rows.

    names: the names of these columns
    """

    def __init__(self, function: KeyedProcessFunction, names: list[str]) -> None:
        self._process_element = function.process_element
        self._names, self._class = names, changeable_class(tuple(names))
        self.on_timer = function.on_timer

    def process_element(self, value: Row, ctx: Any) -> Iterable[Any] | None:
        row = tuple.__new__(self._class, value[: len(self._names)])
        row.__fields__ = self._names
        return self._process_element(row, ctx)


class RowRunner(FunctionRunner):
    """Runs one copy of a function, row by row."""

    context_class: ClassVar[type[RowFunctionContext]] = RowFunctionContext

    def __init__(self, function: KeyedProcessFunction, query: Query, max_parallelism: int) -> None:
        self._function = function
        seen = query.seen_rows
        computed = [query.rows[name] for name in query.key if name not in seen.names]
        self._row_type = StructType([*seen, *computed])
        self._key = query.key
        self._key_type = StructType([query.rows[name] for name in query.key])
        self._timed = query.event_time is not None
        self._timers_wait = function._timers_wait if query.order == "event_time" else 0
        self.rows_ahead = RowsAhead()
        self.sources = RowSources()
        self._last: KeyGroup | None = None
        self._current = CurrentKey()
        self._states = RowRuntimeContext(self._current, max_parallelism)
        self._service = KeyTimerService()
        self._service.too_early = self.rows_ahead.too_early
        self._context = self.context_class(self._service)
        self._context.function = function
        self._states.clock = self._clock = RowExpiryClock(self._context)
        self._loop = RowLoop(
            VisibleRows(function, seen.names) if computed else function,
            self._context,
            self._service,
            self._current,
            TimeDomain.EVENT_TIME,
            TimeDomain.PROCESSING_TIME,
        )

    @property
    def fired_timers(self) -> int:
        return self._loop.fired

    def guard(self, guard: Guard, query: Query) -> None:
        super().guard(guard, query)
        assert self._failed is not None
        self._loop.guard(self._failed.steps, self._fail)

    def _fail(self, error: Exception, method: str, rows: RowSource | None, place: int) -> None:
        """Undo the call of a row or a timer, and make it a dead letter."""
        assert self._failed is not None
        context, row = self._context, None
        id_, at, timer = self._current.current_key, context.timestamp(), context.timer_name()
        add_call(error, f"in {method}, key {context.get_current_key()!r}, timestamp {at}")
        if rows is not None:
            row = self._batch.slice(place, 1)
            method = self._function.method_of(row) if isinstance(self._function, Tagged) else method
        of_key = np.array([id_], np.int64)
        self._failed.add(error, method, self._loop.calls, of_key, [at], timers=[timer], rows=row)
        self._current.current_key = id_

    def begin(self, group: KeyGroup, now: int | None, output: ResultBuffer) -> None:
        # What is known of a few keys is of use again if the group has not been saved since.
        numbers = self._current.numbers
        if group is not self._last or numbers.stale or len(numbers) > _KNOWN:
            self._current.renumber()
        self._last = self._group = group
        self._now = now
        self._context.send = output.side if self._failed is None else self._failed.send
        if self._failed is not None:
            self._failed.begin(group, output)
        self._rows: list[tuple[np.ndarray, RowSource]] = []  # whose keys are not in `_seen`
        self._seen = KnownKeys()
        self._ahead = KnownKeys()  # of some timers that may fire
        self._looked_up = False
        self._clock.begin(group, now)
        self._state_tables: list[UserState] = self._states.bind(group)
        if now is None and len(group.processing_timers):
            no_processing_time()
        self._context.names = group.timer_names
        self._event_timers, processing_timers = (
            KeyTimers(timers, self._current, group.timer_names)
            for timers in (group.event_timers, group.processing_timers)
        )
        self._event_timers.steps = processing_timers.steps = self._states.steps
        self._service.bind_group(
            self._event_timers,
            processing_timers,
            max(group.watermark - self._timers_wait, MIN_WATERMARK),
            now,
        )
        self._loop.begin(output, self._ahead, self._seen, self._find_key, self._timers_wait)

    def replay(self, waiting: KeyedRows, order: np.ndarray, watermark: int) -> None:
        waiting = waiting.select(self._row_type.names).take(order)
        self._loop.replay(self._prepare(waiting), waiting.ids, waiting.timestamps, watermark)
        self._clock.purge(True, watermark)

    def process(self, waiting: KeyedRows, watermark: int) -> None:
        rows = self._prepare(waiting.select(self._row_type.names))
        if not self._timed or self._function._any_order:
            self._loop.process(rows, waiting.ids, waiting.timestamps if self._timed else None)
            return
        self.rows_ahead.begin(self._group, watermark)
        self._event_timers.collect_due(self.rows_ahead.due_by_key(), watermark)
        self._loop.process(rows, waiting.ids, waiting.timestamps, self.rows_ahead.check)
        self._event_timers.collect_due(None, watermark)

    def advance(self, watermark: int) -> None:
        self._loop.advance(watermark)
        self._clock.purge(True, watermark)

    def advance_clock(self, now: int) -> None:
        self._loop.advance_clock(now)
        self._clock.purge(False, now)

    _batch: pa.RecordBatch  # the rows of the current calls

    def _prepare(self, waiting: KeyedRows) -> RowSource:
        """Return the rows; announce their keys to the states."""
        rows = self.sources.of(waiting, self._row_type, self._key)
        self._rows.append((waiting.ids, rows))
        self._batch = waiting.rows
        if self._state_tables:
            self._announce(distinct_ids(waiting.ids))
        return rows

    def _announce(self, ids: np.ndarray) -> None:
        for table in self._state_tables:
            table.announce(ids)

    def _find_key(self, id_: int, timestamp: int) -> Any:
        """Return the key of a timer that fires, and keep those of timers that fire next."""
        # A lookup of one key costs as much as one of many. The keys of the rows are kept only if that does
        # not suffice, as when rows register timers that fire in the same micro-batch.
        if self._looked_up:
            for ids, rows in self._rows:
                self._seen.add(ids, rows)
            self._rows.clear()
            if id_ in self._seen:
                return self._seen[id_]
        self._looked_up = True
        self._look_up(id_, timestamp)
        return self._ahead[id_]

    def _look_up(self, id_: int, timestamp: int) -> None:
        due = [np.array([id_])]
        for timers, time in (
            (self._group.event_timers, max(self._group.watermark, timestamp)),
            (self._group.processing_timers, MAX_WATERMARK if self._now is None else self._now),
        ):
            due.append(due_keys(timers.heap, time, _AHEAD))
        ids = distinct_ids(np.concatenate(due))
        self._ahead.clear()
        self._ahead.add(ids, row_source(self._group.keys.keys(ids), self._key_type, self._key))
        self._announce(ids)
        self._current.announce(ids)


@dataclass(frozen=True)
class RowWork(FunctionWork):
    """A function to run row by row."""

    function: KeyedProcessFunction
    runner_class = RowRunner
