"""Runs a KeyedProcessFunction on key groups, row by row."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import StructType

from timerheap._native._heap import CurrentKey, IdIndex, KnownKeys, RowLoop, RowSource
from timerheap.functions import KeyedProcessFunction
from timerheap.metrics import Metrics
from timerheap.spark._arrow import KeyedRows
from timerheap.spark._group.growing_state import UserState
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.timers import KeyTimers, due_keys
from timerheap.spark._query import Query
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.rows import row_class, row_source
from timerheap.spark._worker.states import (
    KeyTimerService,
    RowExpiryClock,
    RowFunctionContext,
    RowRuntimeContext,
    no_processing_time,
)
from timerheap.time import TimeDomain
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK


class VisibleRows:
    """Calls a function with the first columns of the rows.

    names: the names of these columns
    """

    def __init__(self, function: KeyedProcessFunction, names: list[str]) -> None:
        self._process_element = function.process_element
        self._names, self._class = names, row_class(tuple(names))
        self.on_timer = function.on_timer

    def process_element(self, value: Row, ctx: Any) -> Iterable[Any] | None:
        """Process one row."""
        row = tuple.__new__(self._class, value[: len(self._names)])
        row.__fields__ = self._names
        return self._process_element(row, ctx)


class RowsAhead:
    """Counts the rows that were processed ahead of a due timer of their key, and describes the first.

    In event-time order the timer would have fired first. A timer is due if its timestamp is at most the
    watermark that follows on the rows.

    count: the number of such rows so far
    first: a message about the first of them
    """

    def __init__(self) -> None:
        self.count = 0
        self.first: str | None = None
        self._timers: dict[int, list[tuple[int, int]]] = {}

    def begin(self, group: KeyGroup, watermark: int) -> None:
        """Begin the rows of a key group, on which `watermark` follows."""
        self._group, self._watermark = group, watermark

    def due(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the key ids and the timestamps of the due timers, both of shape (n,)."""
        heap = self._group.event_timers.heap
        rows = heap._due_rows(self._watermark)
        return heap.key_hashes[rows], heap.timestamps[rows]

    def due_by_key(self) -> dict[int, list[tuple[int, int]]]:
        """Return a heap of (timestamp, namespace) of each key's due timers, to which more may be pushed."""
        heap = self._group.event_timers.heap
        rows = heap._due_rows(self._watermark)
        columns = (column[rows].tolist() for column in (heap.timestamps, heap.key_hashes, heap.namespaces))
        due = sorted(zip(*columns, strict=True))
        self._timers = {}
        for timestamp, id_, namespace in due:  # a sorted list is a heap
            self._timers.setdefault(id_, []).append((timestamp, namespace))
        return self._timers

    def check(self, id_: int, timestamp: int) -> None:
        """Check a row of a key in `due_by_key` that is about to be processed."""
        timers, heap = self._timers[id_], self._group.event_timers.heap
        while (timers[0][0], id_, timers[0][1]) not in heap:  # deleted
            heappop(timers)
            if not timers:
                del self._timers[id_]
                return
        if timers[0][0] < timestamp:
            self._add(1, timestamp, timers[0][0])

    def check_many(self, rows: KeyedRows, before: tuple[np.ndarray, np.ndarray]) -> None:
        """Check rows that were processed in one call; `before` is what `due` returned before the call."""
        ids, timestamps = (np.concatenate(pair) for pair in zip(before, self.due(), strict=True))
        if not len(ids):
            return
        latest_first = np.argsort(timestamps)[::-1]
        earliest = IdIndex()
        earliest.put_many(ids[latest_first], timestamps[latest_first])  # of an id the last value stays
        timers, found = earliest.find_many(rows.ids)
        ahead = np.flatnonzero(found & (timers < rows.timestamps))
        if len(ahead):
            row = ahead[0]
            self._add(len(ahead), int(rows.timestamps[row]), int(timers[row]))

    def _add(self, count: int, timestamp: int, timer: int) -> None:
        self.count += count
        if self.first is None:
            self.first = (
                f"in order of arrival, a row with timestamp {timestamp} was processed before a timer of its "
                f'key at {timer}, which was due; order="event_time" fires the timer first'
            )


_AHEAD = 1 << 16  # timers whose keys are looked up at once


class RowRunner:
    """Runs one copy of a function; see `timerheap.spark._worker.partition.Runner`."""

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
        self._current = CurrentKey()
        self._states = RowRuntimeContext(self._current, max_parallelism)
        self._service = KeyTimerService()
        self._context = self.context_class(self._service)
        self._states.clock = self._clock = RowExpiryClock(self._context, self._service)
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

    @property
    def metrics(self) -> Metrics | None:
        return self._states.metrics

    def open(self) -> None:
        self._function.open(self._states)

    def close(self) -> None:
        self._function.close()

    def begin(self, group: KeyGroup, now: int | None, output: ResultBuffer) -> None:
        self._group = group
        self._now = now
        self._context.send = output.side
        self._rows: list[tuple[np.ndarray, RowSource]] = []  # whose keys are not in `_seen`
        self._seen = KnownKeys()
        self._ahead = KnownKeys()  # of some timers that may fire
        self._looked_up = False
        self._clock.begin(group, now)
        self._current.renumber()
        self._state_tables: list[UserState] = self._states.bind(group)
        if now is None and len(group.processing_timers.heap):
            no_processing_time()
        self._context.names = group.timer_names
        self._event_timers = KeyTimers(group.event_timers, self._current, group.timer_names)
        self._service.bind_group(
            self._event_timers,
            KeyTimers(group.processing_timers, self._current, group.timer_names),
            max(group.watermark - self._timers_wait, MIN_WATERMARK),
            now,
        )
        self._loop.begin(output, self._ahead, self._seen, self._find_key, self._timers_wait)

    def replay(self, waiting: KeyedRows, order: np.ndarray, watermark: int) -> None:
        waiting = waiting.select(self._row_type.names).take(order)
        self._loop.replay(self._prepare(waiting), waiting.ids, waiting.timestamps, watermark)
        self._clock.purge(True, watermark)

    def process(self, waiting: KeyedRows, watermark: int) -> None:
        """Process rows in the order of arrival."""
        rows = self._prepare(waiting)
        if not self._timed or self._function._any_order:
            self._loop.process(rows, waiting.ids, waiting.timestamps if self._timed else None)
            return
        self.rows_ahead.begin(self._group, watermark)
        self._event_timers.collect_due(self.rows_ahead.due_by_key(), watermark)
        self._loop.process(rows, waiting.ids, waiting.timestamps, self.rows_ahead.check)
        self._event_timers.collect_due(None, watermark)

    def advance(self, watermark: int) -> None:
        """Advance the watermark, and fire event-time timers."""
        self._loop.advance(watermark)
        self._clock.purge(True, watermark)

    def advance_clock(self, now: int) -> None:
        """Fire processing-time timers."""
        self._loop.advance_clock(now)
        self._clock.purge(False, now)

    def _prepare(self, waiting: KeyedRows) -> RowSource:
        """Return the rows; announce their keys to the states."""
        table = pa.Table.from_batches([waiting.rows]).select(self._row_type.names)
        rows = row_source(table, self._row_type, self._key)
        self._rows.append((waiting.ids, rows))
        if self._state_tables:
            self._announce(pd.unique(waiting.ids))
        return rows

    def _announce(self, ids: np.ndarray) -> None:
        for table in self._state_tables:
            table.announce(ids)

    def _find_key(self, id_: int, timestamp: int) -> Any:
        """Return the key of a timer that fires, and keep those of timers that fire next.

        A lookup of one key costs as much as one of many. The keys of the rows are kept only if that does not
        suffice, as when rows register timers that fire in the same micro-batch.
        """
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
        ids = pd.unique(np.concatenate(due))
        keys = pa.Table.from_batches([self._group.keys.keys(ids)])
        self._ahead.clear()
        self._ahead.add(ids, row_source(keys, self._key_type, self._key))
        self._announce(ids)
        self._current.announce(ids)
