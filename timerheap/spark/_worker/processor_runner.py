"""Runs a StatefulProcessor on key groups: its rows by key, then its timers in order, as Spark does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues
from pyspark.sql.types import StructType

from timerheap.spark._exchange.unpack import HashedRows
from timerheap.spark._group.journalled_timers import JournalledTimers, KeyTimers
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.processor_work import DeclaredState, ProcessorWork
from timerheap.spark._group.python_values import python_values
from timerheap.spark._group.query import Query
from timerheap.spark._group.timers_of_keys import due_rows
from timerheap.spark._group.user_states import UserState
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.processor_frames import FrameRecords
from timerheap.spark._worker.processor_handle import ProcessorHandle
from timerheap.spark._worker.processor_records import Records
from timerheap.spark._worker.processor_rows import RowRecords
from timerheap.spark._worker.processor_states import ProcessorState, Scope
from timerheap.spark._worker.processor_values import reader
from timerheap.spark._worker.row_context import KeyTimerService
from timerheap.spark._worker.unsafe_order import UnsafeOrder

__all__ = ["BoundGroup", "ProcessorRunner"]


@dataclass(eq=False)
class BoundGroup:
    """A key group with the tables of the processor's states.

    Parameters
    ----------
    group : KeyGroup
    timers : JournalledTimers
        Those of the query's time mode.
    service : KeyTimerService
    tables : list of (ProcessorState, UserState)
    expiries : list of (timestamp, key id, namespace)
        See `timerheap.spark._worker.processor_states.Scope`.
    """

    group: KeyGroup
    timers: JournalledTimers
    service: KeyTimerService
    tables: list[tuple[ProcessorState, UserState]]
    expiries: list[tuple[int, int, int]] = field(default_factory=list)

    def announce(self, ids: np.ndarray) -> None:
        """Have the states of these keys loaded together."""
        for _, table in self.tables:
            table.announce(ids)

    def next_timer(self) -> int | None:
        """Return when the next timer or expiry is due, None for never."""
        head = self.timers.heap.peek()
        return None if head is None else head.timestamp


class ProcessorRunner:
    """Runs one copy of a processor in one task.

    Parameters
    ----------
    work : ProcessorWork
    query : Query
    timer_values : TimerValues
        The times of the micro-batch, as the processor receives them.
    output : ResultBuffer
    """

    def __init__(
        self, work: ProcessorWork, query: Query, timer_values: TimerValues, output: ResultBuffer
    ) -> None:
        self._processor = work.processor
        self._work = work
        self._query = query
        self._times = timer_values
        self._scope = Scope()
        self._scope.now = timer_values.getCurrentProcessingTimeInMs()
        self._handle = ProcessorHandle(query.time_mode, self._scope, self._declared)
        self._bound: BoundGroup | None = None
        self._key_row = Row(*query.key)
        key_type = StructType([query.rows[name] for name in query.key])
        self._key_readers = [reader(field.dataType) for field in key_type]
        self._key_order = UnsafeOrder(key_type)
        self._records: Records = (
            RowRecords(query.result_schema, work.zone, output)
            if work.style == "rows"
            else FrameRecords(query.result, work.zone, work.frame_rows, output)
        )

    def _declared(self, name: str, *_: object) -> DeclaredState:
        declared = self._work.states.get(name)
        if declared is None:
            raise ValueError(
                f"init() must ask for the same states on the driver and in tasks, got {name!r} only in a "
                "task; ask for all states each time"
            )
        return declared

    def open(self) -> None:
        """Call ``init``."""
        self._processor.init(self._handle)
        self._handle.stage = "INITIALIZED"

    def close(self) -> None:
        """Call ``close``."""
        self._scope.keys.current_key = None
        self._processor.close()

    def bind(self, group: KeyGroup) -> BoundGroup:
        """Return a key group ready for the processor."""
        tables: list[tuple[ProcessorState, UserState]] = []
        for name, state in self._handle.states.items():
            try:
                tables.append((state, group.state(name, state.shape, state.type)))
            except ValueError as e:
                raise ValueError(
                    f"state {name!r} must keep its schema and whether it has a time to live; choose another "
                    f"name for the new one, and call handle.deleteIfExists({name!r}) for the old one: {e}"
                ) from None
        service = KeyTimerService()
        keys = self._scope.keys
        event, processing = KeyTimers(group.event_timers, keys), KeyTimers(group.processing_timers, keys)
        service.bind_group(event, processing, group.watermark, self._scope.now)
        mine = group.event_timers if self._query.time_mode == "EventTime" else group.processing_timers
        return BoundGroup(group, mine, service, tables)

    def _switch(self, bound: BoundGroup) -> None:
        if bound is not self._bound:
            self._bound = bound
            self._handle.timers = bound.service
            self._scope.expiries = bound.expiries
            for state, table in bound.tables:
                state.bind(table)

    def process(self, parts: list[tuple[BoundGroup, HashedRows]]) -> None:
        """Call ``handleInputRows`` for each key, in the order of the keys."""
        handle, times, emit = self._processor.handleInputRows, self._times, self._records.emit
        for key, rows in self._by_key(parts, self._query):
            emit(handle(key, rows(), times))
        self._records.flush()

    def initialise(self, parts: list[tuple[BoundGroup, HashedRows]], query: Query) -> None:
        """Call ``handleInitialState`` for each row, or each frame, of a query's rows."""
        for key, rows in self._by_key(parts, query):
            for initial in rows():
                self._processor.handleInitialState(key, initial, self._times)

    def _by_key(
        self, parts: list[tuple[BoundGroup, HashedRows]], query: Query
    ) -> Iterator[tuple[tuple[Any, ...], Callable[[], Iterator[Any]]]]:
        """Make each key current and yield it, and what returns its rows."""
        if not parts:
            return
        rows = HashedRows.concatenated([part for _, part in parts])
        ids, owners = [], np.repeat(np.arange(len(parts)), [len(part.hashes) for _, part in parts])
        for bound, part in parts:
            own = bound.group.keys.resolve(part.hashes, [part.rows.column(name) for name in query.key])
            bound.announce(np.unique(own))
            ids.append(own)
        order = _key_order([rows.rows.column(name) for name in query.key])
        key_ids, owners = np.concatenate(ids)[order], owners[order]
        starts = np.flatnonzero((np.diff(key_ids, prepend=0) != 0) | (np.diff(owners, prepend=-1) != 0))
        stops = [*starts[1:].tolist(), len(order)]
        schema = query.schema
        table = rows.rows.select(schema.names).take(pa.array(order))
        inputs = self._records.inputs(table, schema, query.key)
        keys = inputs.keys(starts.tolist())
        current = self._scope.keys
        for key, start, stop, id_, owner in zip(
            keys, starts.tolist(), stops, key_ids[starts].tolist(), owners[starts].tolist(), strict=True
        ):
            self._switch(parts[owner][0])
            current.current_key = id_
            yield key, partial(inputs.slice, start, stop)
        current.current_key = None

    def fire(self, groups: list[BoundGroup], time: int) -> None:
        """Call ``handleExpiredTimer`` for the timers that are due now, in their order, then remove them.

        A timer that a call registers waits for the next micro-batch, even if it is due; one that a call
        deletes fires all the same.
        """
        self._handle.stage = "DATA_PROCESSED"
        handle, emit = self._processor.handleExpiredTimer, self._records.emit
        for timestamp, _, key, id_, bound in sorted(self._due(groups, time), key=lambda due: due[:2]):
            self._switch(bound)
            self._scope.keys.current_key = id_
            emit(handle(key=key, timerValues=self._times, expiredTimerInfo=ExpiredTimerInfo(timestamp)))
            self._handle.deleteTimer(timestamp)
        self._scope.keys.current_key = None
        self._records.flush()

    def _due(
        self, groups: list[BoundGroup], time: int
    ) -> Iterator[tuple[int, bytes, tuple[Any, ...], int, BoundGroup]]:
        for bound in groups:
            heap = bound.timers.heap
            rows = due_rows(heap, time)
            rows = rows[heap.namespaces[rows] == 0]
            if not len(rows):
                continue
            ids, timestamps = heap.key_hashes[rows], heap.timestamps[rows].tolist()
            bound.announce(np.unique(ids))
            batch = bound.group.keys.keys(ids)
            keys = zip(*(python_values(column) for column in batch.columns), strict=True)
            for timestamp, id_, kept in zip(timestamps, ids.tolist(), keys, strict=True):
                key = self._key_row(*(read(v) for read, v in zip(self._key_readers, kept, strict=True)))
                yield timestamp, self._key_order.bytes_of(kept), key, id_, bound

    def purge(self, bound: BoundGroup) -> None:
        """Remove what has expired in a key group, and keep the expiries of what has been written."""
        heap, journalled = bound.timers.heap, bound.timers
        if any(state.timed for state, _ in bound.tables):
            rows = due_rows(heap, self._scope.now)
            rows = rows[heap.namespaces[rows] != 0]
            timestamps, ids, spaces = heap.timestamps[rows], heap.key_hashes[rows], heap.namespaces[rows]
            self._switch(bound)
            bound.announce(np.unique(ids))
            states = {table.kind: state for state, table in bound.tables}
            for id_, space in zip(ids.tolist(), spaces.tolist(), strict=True):
                if space in states:  # else the state has been deleted
                    states[space].purge(id_)
            if len(rows):
                journalled.remove_many(timestamps, ids, spaces)
        if bound.expiries:
            at = np.unique(np.array(bound.expiries, np.int64), axis=0)
            bound.expiries.clear()
            journalled.push_many(*(np.ascontiguousarray(column) for column in at.T))


def _key_order(columns: list[pa.Array]) -> np.ndarray:
    """Return the rows in the order of their keys, nulls first, those of one key in their own order."""
    parts: list[pa.Array] = []
    for column in columns:
        parts += [column.is_valid(), column] if column.null_count else [column]
    names = [str(number) for number in range(len(parts))]
    keys = [(name, "ascending") for name in names]
    order: np.ndarray = pc.sort_indices(pa.table(parts, names=names), sort_keys=keys).to_numpy()
    return order
