"""Runs a StatefulProcessor on key groups: its rows by key, then its timers in order, as Spark does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues
from pyspark.sql.types import StructType

from timerheap._native._heap import RowSource
from timerheap.spark._exchange.unpack import HashedRows
from timerheap.spark._group.journalled_timers import JournalledTimers, KeyTimers
from timerheap.spark._group.key_group import KeyGroup, expiry_namespace
from timerheap.spark._group.python_values import python_values
from timerheap.spark._group.user_states import UserState
from timerheap.spark._query import DeclaredState, ProcessorWork, Query
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.processor_frames import FrameRecords
from timerheap.spark._worker.processor_handle import ProcessorHandle
from timerheap.spark._worker.processor_records import Records
from timerheap.spark._worker.processor_rows import RowRecords
from timerheap.spark._worker.processor_states import Scope
from timerheap.spark._worker.processor_values import reader
from timerheap.spark._worker.row_classes import row_class
from timerheap.spark._worker.row_context import KeyTimerService
from timerheap.spark._worker.unsafe_order import UnsafeOrder
from timerheap.timer import MAX_WATERMARK

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
    delete_timer : callable
        Deletes a timer of the current key in the query's time mode.
    tables : dict of str to UserState
    expiries : list of (timestamp, key id, name of the state)
        See `timerheap.spark._worker.processor_states.Scope`.
    """

    group: KeyGroup
    timers: JournalledTimers
    service: KeyTimerService
    delete_timer: Callable[[int], None]
    tables: dict[str, UserState]
    expiries: list[tuple[int, int, str]] = field(default_factory=list)

    def announce(self, ids: np.ndarray) -> None:
        """Have the states of these keys loaded together."""
        for table in self.tables.values():
            table.announce(ids)


class ProcessorRunner:
    """Runs one copy of a processor in one task.

    Parameters
    ----------
    work : ProcessorWork
    query : Query
    timer_values : TimerValues
        The times of the micro-batch, as the processor receives them.
    output : ResultBuffer

    Attributes
    ----------
    fired_timers : int
        How many timers have fired.
    """

    def __init__(
        self, work: ProcessorWork, query: Query, timer_values: TimerValues, output: ResultBuffer
    ) -> None:
        self._processor = work.processor
        self._work = work
        self._query = query
        self._times = timer_values
        self.fired_timers = 0
        self._scope = Scope()
        self._scope.now = timer_values.getCurrentProcessingTimeInMs()
        self._handle = ProcessorHandle(query.time_mode, self._scope, self._declared)
        key_type = StructType([query.rows[name] for name in query.key])
        self._key_readers = [reader(field.dataType) for field in key_type]
        self._key_order = UnsafeOrder(key_type)
        self._records: Records = (
            RowRecords(query.result_schema, work.zone, output)
            if work.style == "rows"
            else FrameRecords(query.result, work.zone, work.frames, output)
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
        tables: dict[str, UserState] = {}
        for name, state in self._handle.states.items():
            try:
                tables[name] = group.state(name, state.shape, state.type)
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
        in_event_time = mine is group.event_timers
        delete = service.delete_event_time_timer if in_event_time else service.delete_processing_time_timer
        return BoundGroup(group, mine, service, delete, tables)

    def process(self, parts: list[tuple[BoundGroup, HashedRows]]) -> None:
        """Call ``handleInputRows`` for each key, in the order of the keys."""
        handle, times, emit = self._processor.handleInputRows, self._times, self._records.emit
        for key, rows in self._by_key(parts, self._query):
            with _noting("handleInputRows", key):
                emit(handle(key, rows, times))
        self._records.flush()

    def initialise(self, parts: list[tuple[BoundGroup, HashedRows]], query: Query) -> None:
        """Call ``handleInitialState`` for each row, or each frame, of a query's rows."""
        for key, rows in self._by_key(parts, query):
            for initial in rows:
                with _noting("handleInitialState", key):
                    self._processor.handleInitialState(key, initial, self._times)

    def _by_key(
        self, parts: list[tuple[BoundGroup, HashedRows]], query: Query
    ) -> Iterator[tuple[tuple[Any, ...], Iterator[Any]]]:
        """Make each key current and yield it, and its rows."""
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
        scope, current, groups = self._scope, self._scope.keys, [bound for bound, _ in parts]
        for key, start, stop, id_, owner in zip(
            inputs.keys(starts.tolist()),
            starts.tolist(),
            stops,
            key_ids[starts].tolist(),
            owners[starts].tolist(),
            strict=True,
        ):
            scope.group = groups[owner]
            current.current_key = id_
            yield key, inputs.slice(start, stop)
        current.current_key = None

    def fire(self, groups: list[BoundGroup], time: int) -> None:
        """Call ``handleExpiredTimer`` for the timers that are due now, in their order, then remove them.

        A timer that a call registers waits for the next micro-batch, even if it is due; one that a call
        deletes fires all the same.
        """
        self._handle.stage = "DATA_PROCESSED"
        handle, times, emit = self._processor.handleExpiredTimer, self._times, self._records.emit
        scope, current = self._scope, self._scope.keys
        for timestamp, key, id_, bound in self._due(groups, time):
            scope.group = bound
            current.current_key = id_
            with _noting("handleExpiredTimer", key, f", timestamp {timestamp}"):
                emit(handle(key=key, timerValues=times, expiredTimerInfo=ExpiredTimerInfo(timestamp)))
            bound.delete_timer(timestamp)
            self.fired_timers += 1
        current.current_key = None
        self._records.flush()

    def _due(
        self, groups: list[BoundGroup], time: int
    ) -> Iterator[tuple[int, tuple[Any, ...], int, BoundGroup]]:
        """Yield the timers that are due: by timestamp, those of one timestamp in the order of their keys."""
        timestamps: list[int] = []
        ids: list[int] = []
        keys: list[tuple[Any, ...]] = []
        owners: list[BoundGroup] = []
        for bound in groups:
            heap = bound.timers.heap
            rows = heap._due_rows(time)
            if len(rows):
                own = heap.key_hashes[rows]
                bound.announce(np.unique(own))
                columns = [python_values(column) for column in bound.group.keys.keys(own).columns]
                timestamps += heap.timestamps[rows].tolist()
                ids += own.tolist()
                keys += zip(*columns, strict=True)
                owners += [bound] * len(rows)
        if owners:
            order = self._firing_order(timestamps, keys)
            rows_of_keys = self._key_rows(keys)
            for at in order:
                yield timestamps[at], rows_of_keys[at], ids[at], owners[at]

    def _firing_order(self, timestamps: list[int], keys: list[tuple[Any, ...]]) -> list[int]:
        _, place, count = np.unique(timestamps, return_inverse=True, return_counts=True)
        tied = (count > 1)[place].tolist()
        bytes_of = self._key_order.bytes_of
        marks = [bytes_of(key) if tie else b"" for key, tie in zip(keys, tied, strict=True)]
        pairs = list(zip(timestamps, marks, strict=True))
        return sorted(range(len(pairs)), key=pairs.__getitem__)

    def _key_rows(self, keys: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Return keys as timers receive them."""
        columns: list[Any] = [
            list(map(read, values))
            for read, values in zip(self._key_readers, zip(*keys, strict=True), strict=True)
        ]
        class_ = row_class(tuple(self._query.key))
        rows: list[tuple[Any, ...]] = RowSource(class_, self._query.key, columns, []).tolist()
        return rows

    def purge(self, bound: BoundGroup) -> None:
        """Remove what has expired in a key group, and keep the expiries of what has been written."""
        group, states = (
            bound.group,
            {name: state for name, state in self._handle.states.items() if state.timed},
        )
        self._scope.group = bound
        for name, ids in group.due_expiries(False, self._scope.now, states.keys()):
            bound.announce(ids)
            for id_ in ids.tolist():
                states[name].purge(id_)
        if bound.expiries:
            ordered = sorted(each for each in set(bound.expiries) if each[0] < MAX_WATERMARK)
            bound.expiries.clear()
            rows = np.array([(at, id_, expiry_namespace(name)) for at, id_, name in ordered], np.int64)
            group.expiries(event_time=False).push_many(*np.ascontiguousarray(rows.reshape(-1, 3).T))


class _noting:
    """Adds to an error what a method of the processor was called for; costs 0.2 us."""

    def __init__(self, method: str, key: tuple[Any, ...], more: str = "") -> None:
        self._called = method, key, more

    def __enter__(self) -> None:
        pass

    def __exit__(self, type_: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            method, key, more = self._called
            error.add_note(f"timerheap: in {method}, key {tuple(key)!r}{more}")


def _key_order(columns: list[pa.Array]) -> np.ndarray:
    """Return the rows in the order of their keys, nulls first, those of one key in their own order."""
    parts: list[pa.Array] = []
    for column in columns:
        parts += [column.is_valid(), column] if column.null_count else [column]
    names = [str(number) for number in range(len(parts))]
    keys = [(name, "ascending") for name in names]
    order: np.ndarray = pc.sort_indices(pa.table(parts, names=names), sort_keys=keys).to_numpy()
    return order
