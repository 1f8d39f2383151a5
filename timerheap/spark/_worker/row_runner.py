"""Runs a KeyedProcessFunction on key groups, row by row."""

from __future__ import annotations

from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.types import StructType

from timerheap.flink.internal_timer import InternalTimer
from timerheap.flink.internal_timer_service import InternalTimerService, KeyContext
from timerheap.flink.operators.function_context import FunctionContext
from timerheap.flink.processing_time import ProcessingTimeCallback, ProcessingTimeService
from timerheap.flink.simple_timer_service import SimpleTimerService
from timerheap.functions import KeyedProcessFunction
from timerheap.spark._group.journalled_timers import JournalledQueue
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.query import Query
from timerheap.spark._group.row_buffer import KeyedRows
from timerheap.spark._group.timers_of_keys import due_keys
from timerheap.spark._group.user_states import UserState
from timerheap.spark._worker.group_state import GroupRuntimeContext
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.rows import rows_of
from timerheap.time import TimeDomain
from timerheap.timer import MAX_WATERMARK

__all__ = ["RowRunner", "no_processing_time"]

_AHEAD = 1 << 16  # timers whose keys are looked up at once


def no_processing_time() -> NoReturn:
    """Raise the error for processing time in a query without it."""
    raise RuntimeError(
        "processing_time must be True for a function that uses it, got False; processing-time timers need "
        "process(..., processing_time=True)"
    )


class _NoClock:
    """The clock of a query without processing time."""

    def get_current_processing_time(self) -> int:
        no_processing_time()

    def register_timer(self, timestamp: int, callback: object, /) -> NoReturn:
        no_processing_time()

    def is_terminated(self) -> bool:
        return False


class _WakeUp(NamedTuple):
    timestamp: int
    callback: ProcessingTimeCallback

    def cancel(self) -> bool:
        """Do nothing: the clock keeps only the latest wake-up, which has replaced this one."""
        return True


class _BatchClock:
    """The clock of a micro-batch; timers of time t fire when it shows t + 1."""

    def __init__(self, now: int) -> None:
        self._now = now
        self._next: _WakeUp | None = None  # a timer service registers one at a time

    def get_current_processing_time(self) -> int:
        return self._now

    def register_timer(self, timestamp: int, callback: ProcessingTimeCallback, /) -> _WakeUp:
        self._next = _WakeUp(timestamp, callback)
        return self._next

    def is_terminated(self) -> bool:
        return False

    def set_current_time(self, now: int) -> None:
        """Advance the clock, and call back for each time that has passed."""
        self._now = now
        while (next_ := self._next) is not None and next_.timestamp < now:
            self._next = None
            next_.callback(next_.timestamp)


class RowRunner:
    """Runs one copy of a function; see `timerheap.spark._worker.runner.Runner`.

    Parameters
    ----------
    function : KeyedProcessFunction
    query : Query
    max_parallelism : int
    """

    def __init__(self, function: KeyedProcessFunction, query: Query, max_parallelism: int) -> None:
        self._function = function
        self._row_type = query.rows
        self._key_of_row = itemgetter(*map(query.rows.names.index, query.key))
        self._key_of_key = itemgetter(*range(len(query.key)))
        self._key_type = StructType([query.rows[name] for name in query.key])
        self._timed = query.event_time is not None
        self._ids: KeyContext[int] = KeyContext()
        self._states = GroupRuntimeContext(self._ids, max_parallelism)
        self._context = FunctionContext()
        self._keys: dict[int, Any] = {}  # of the rows of the micro-batch
        self._timer_keys: dict[int, Any] = {}  # of some timers that may fire

    def open(self) -> None:
        """Open the function."""
        self._function.open(self._states)

    def close(self) -> None:
        """Close the function."""
        self._function.close()

    def begin(self, group: KeyGroup, now: int | None, output: ResultBuffer) -> None:
        """Begin a key group."""
        self._group = group
        self._output = output
        self._keys, self._timer_keys = {}, {}
        self._state_tables: list[UserState] = self._states.bind(group)
        self._clock = _BatchClock(now) if now is not None else None
        clock: ProcessingTimeService = self._clock if self._clock is not None else _NoClock()
        self._service: InternalTimerService[int, None] = InternalTimerService(
            self,
            clock,
            self._ids,
            event_time_timers=JournalledQueue(group.event_timers),
            processing_time_timers=JournalledQueue(group.processing_timers),
        )
        self._context.timers = SimpleTimerService(self._service)
        self._service.advance_watermark(group.watermark)  # up to there all timers have fired

    def replay(self, waiting: KeyedRows, watermark: int) -> None:
        """Process rows in event-time order."""
        rows = self._prepare(waiting)
        starts = np.flatnonzero(np.diff(waiting.timestamps, prepend=waiting.timestamps[:1] - 1)).tolist()
        for start, stop in pairwise([*starts, len(rows)]):
            self._step_to(rows[start][2] - 1)
            self._process(rows[start:stop])
        self._step_to(watermark)

    def process(self, waiting: KeyedRows) -> None:
        """Process rows in the order of arrival."""
        self._process(self._prepare(waiting))

    def advance(self, watermark: int) -> None:
        """Advance the watermark, and fire event-time timers."""
        self._service.advance_watermark(watermark)

    def advance_clock(self, now: int) -> None:
        """Fire processing-time timers."""
        if self._clock is not None:
            self._clock.set_current_time(now)

    def _step_to(self, watermark: int) -> None:
        """Advance to one timer after the other: each callback sees its own timestamp as the watermark."""
        heap = self._group.event_timers.heap
        while (head := heap.peek()) is not None and head.timestamp <= watermark:
            self._service.advance_watermark(max(head.timestamp, self._service.current_watermark()))
        if watermark > self._service.current_watermark():
            self._service.advance_watermark(watermark)

    def _prepare(self, waiting: KeyedRows) -> list[tuple[Any, int, Any]]:
        """Return (Row, key id, timestamp) of each row; announce their keys to the states."""
        ids = waiting.ids.tolist()
        table = pa.Table.from_batches([waiting.rows]).select(self._row_type.names)
        rows = rows_of(table, self._row_type, self._key_type.names)
        self._keys.update(zip(ids, map(self._key_of_row, rows), strict=True))
        self._announce(pd.unique(waiting.ids))
        timestamps = waiting.timestamps.tolist() if self._timed else [None] * len(ids)
        return list(zip(rows, ids, timestamps, strict=True))

    def _announce(self, ids: np.ndarray) -> None:
        for table in self._state_tables:
            table.announce(ids)

    def _process(self, rows: list[tuple[Any, int, Any]]) -> None:
        context, ids, keys = self._context, self._ids, self._keys
        process, emit = self._function.process_element, self._output.rows
        for row, id_, timestamp in rows:
            ids.current_key = id_
            context.key = keys[id_]
            context.at = timestamp
            try:
                emit(process(row, context), "process_element")
            except Exception as e:
                e.add_note(f"timerheap: in process_element, key {context.key!r}, timestamp {timestamp}")
                raise

    def on_event_time(self, timer: InternalTimer[int, None]) -> None:
        """See `timerheap.flink.internal_timer_service.Triggerable`."""
        self._on_timer(timer, TimeDomain.EVENT_TIME)

    def on_processing_time(self, timer: InternalTimer[int, None]) -> None:
        """See `timerheap.flink.internal_timer_service.Triggerable`."""
        self._on_timer(timer, TimeDomain.PROCESSING_TIME)

    def _on_timer(self, timer: InternalTimer[int, None], domain: TimeDomain) -> None:
        context = self._context
        key = self._keys.get(timer.key)
        if key is None:
            if timer.key not in self._timer_keys:
                self._learn_keys(timer)
            key = self._timer_keys[timer.key]
        context.key = key
        context.at = timer.timestamp
        context.domain = domain
        try:
            self._output.rows(self._function.on_timer(timer.timestamp, context), "on_timer")
        except Exception as e:
            e.add_note(f"timerheap: in on_timer, key {context.key!r}, timestamp {timer.timestamp}")
            raise

    def _learn_keys(self, timer: InternalTimer[int, None]) -> None:
        """Look up the keys of the next timers that may fire; a lookup of one key costs as much."""
        due = [np.array([timer.key])]
        for timers, time in (
            (self._group.event_timers, max(self._group.watermark, timer.timestamp)),
            (self._group.processing_timers, MAX_WATERMARK if self._clock is None else self._now()),
        ):
            due.append(due_keys(timers.heap, time, _AHEAD))
        ids = np.unique(np.concatenate(due))
        keys = pa.Table.from_batches([self._group.keys.keys(ids)])
        rows = rows_of(keys, self._key_type, self._key_type.names, as_tuples=True)
        self._timer_keys = dict(zip(ids.tolist(), map(self._key_of_key, rows), strict=True))
        self._announce(ids)

    def _now(self) -> int:
        assert self._clock is not None
        return self._clock.get_current_processing_time()
