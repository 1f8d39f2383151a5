"""Calls a StatefulProcessor for the rows of key groups by key, then for their timers in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, TimerValues
from pyspark.sql.types import StructType

from timerheap._expiry import EXPIRING
from timerheap._key_timers import KeyTimers, KeyTimerService
from timerheap._native._core import RowSource
from timerheap.errors import ArgumentValueError, CheckpointMismatchError
from timerheap.spark._arrow import KeyedRows
from timerheap.spark._functions.expiry_clocks import GroupExpiryClock
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.timers import JournalledTimers
from timerheap.spark._group.user_states import UserState
from timerheap.spark._processors.processor_records import Records
from timerheap.spark._processors.processor_states import DeclaredState, ProcessorHandle, ProcessorState, Scope
from timerheap.spark._processors.state_codec import UnsafeOrder, reader_of
from timerheap.spark._python_rows import python_values, row_class
from timerheap.spark._query import Query
from timerheap.spark._worker.errors import add_call


@dataclass(eq=False)
class BoundGroup:
    """A key group with the tables of the processor's states.

    timers: those of the query's time mode
    tables: the contents of the states, by name
    stored: the tables that they are in
    """

    group: KeyGroup
    timers: JournalledTimers
    service: KeyTimerService
    tables: dict[str, Any]
    stored: list[UserState]
    expiries: GroupExpiryClock

    def announce(self, ids: np.ndarray) -> None:
        """Have the states of these keys loaded together."""
        for table in self.stored:
            table.announce(ids)


class ProcessorRunner:
    """Runs one copy of a processor in one task.

    states: that its init has declared on the driver
    timer_values: the times of the micro-batch, as the processor receives them
    fired_timers: how many timers have fired
    """

    def __init__(
        self,
        processor: StatefulProcessor,
        states: Mapping[str, DeclaredState],
        records: Records,
        query: Query,
        timer_values: TimerValues,
    ) -> None:
        self._processor, self._states, self._records = processor, states, records
        self._query = query
        self._times = timer_values
        self.fired_timers = 0
        self._scope = Scope()
        self._now: int = timer_values.getCurrentProcessingTimeInMs()
        self._handle = ProcessorHandle(query.time_mode, self._scope, self._declared)
        key_type = StructType([query.rows[name] for name in query.key])
        self._key_readers = [reader_of(query.schema.field(name).type) for name in query.key]
        self._key_order = UnsafeOrder(key_type)

    def _declared(self, name: str, *_: object) -> DeclaredState:
        declared = self._states.get(name)
        if declared is None:
            raise ArgumentValueError(
                f"init() must ask for the same states on the driver and in tasks, got {name!r} only in a "
                "task; ask for all states each time"
            )
        return declared

    def open(self) -> None:
        self._processor.init(self._handle)
        self._handle.stage = "INITIALIZED"

    def close(self) -> None:
        self._scope.keys.current_key = None
        self._processor.close()

    def bind(self, group: KeyGroup) -> BoundGroup:
        """Return a key group ready for the processor."""
        tables: dict[str, Any] = {}
        stored: list[UserState] = []
        expiries = GroupExpiryClock()
        expiries.begin(group, self._now)
        for name, state in self._handle.states.items():
            stored.append(declared_state(group, name, state))
            tables[name] = stored[-1]
            if state.ttl is not None:
                tables[name] = EXPIRING[state.shape](stored[-1], state.ttl, expiries, fixed=True)
                expiries.add(tables[name])
        service = KeyTimerService()
        timers = group.event_timers if self._query.time_mode == "EventTime" else group.processing_timers
        of_key = KeyTimers(timers, self._scope.keys, group.timer_names)
        service.bind_group(of_key, of_key, group.watermark, self._now)
        return BoundGroup(group, timers, service, tables, stored, expiries)

    def process(self, parts: list[tuple[BoundGroup, KeyedRows]]) -> None:
        """Call ``handleInputRows`` for each key, in the order of the keys."""
        handle, times, emit = self._processor.handleInputRows, self._times, self._records.emit
        for key, rows in self._by_key(parts, self._query):
            with _noting("handleInputRows", key):
                emit(handle(key, rows, times))
        self._records.flush()

    def initialise(self, parts: list[tuple[BoundGroup, KeyedRows]], query: Query) -> None:
        """Call ``handleInitialState`` for each row, or each frame, of a query's rows."""
        for key, rows in self._by_key(parts, query):
            for initial in rows:
                with _noting("handleInitialState", key):
                    self._processor.handleInitialState(key, initial, self._times)

    def _by_key(
        self, parts: list[tuple[BoundGroup, KeyedRows]], query: Query
    ) -> Iterator[tuple[tuple[Any, ...], Iterator[Any]]]:
        """Make each key current and yield it, and its rows."""
        if not parts:
            return
        rows = KeyedRows.concatenated([part for _, part in parts])
        ids, owners = [], np.repeat(np.arange(len(parts)), [len(part) for _, part in parts])
        for bound, part in parts:
            own = bound.group.keys.resolve(part.ids, [part.rows.column(name) for name in query.key])
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
        """Call ``handleExpiredTimer`` for the timers that are due now, in their order, then remove them."""
        # A timer that a call registers waits for the next micro-batch, even if it is due; one that a call
        # deletes fires all the same.
        self._handle.stage = "DATA_PROCESSED"
        handle, times, emit = self._processor.handleExpiredTimer, self._times, self._records.emit
        scope, current = self._scope, self._scope.keys
        for timestamp, key, id_, bound in self._due(groups, time):
            scope.group = bound
            current.current_key = id_
            with _noting("handleExpiredTimer", key, f", timestamp {timestamp}"):
                emit(handle(key=key, timerValues=times, expiredTimerInfo=ExpiredTimerInfo(timestamp)))
            bound.service.delete_event_time_timer(timestamp)
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
            bound.group.settling.bring_due(self._query.time_mode == "EventTime", time)
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
        columns: list[Any] = [
            list(map(read, values))
            for read, values in zip(self._key_readers, zip(*keys, strict=True), strict=True)
        ]
        class_ = row_class(tuple(self._query.key))
        return RowSource(class_, self._query.key, columns, []).tolist()

    def follow(self, watermark: int) -> None:
        """Show the processor another watermark than Spark's."""
        self._times = TimerValues(self._now, watermark)

    def purge(self, bound: BoundGroup) -> None:
        bound.expiries.purge(False, self._now)


class _noting:
    """Adds to an error what a method of the processor was called for; costs 0.2 us."""

    def __init__(self, method: str, key: tuple[Any, ...], more: str = "") -> None:
        self._called = method, key, more

    def __enter__(self) -> None:
        pass

    def __exit__(self, type_: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            method, key, more = self._called
            add_call(error, f"in {method}, key {tuple(key)!r}{more}")


def _key_order(columns: list[pa.Array]) -> np.ndarray:
    """Return the rows in the order of their keys, nulls first, those of one key in their own order."""
    parts: list[pa.Array] = []
    for column in columns:
        parts += [column.is_valid(), column] if column.null_count else [column]
    names = [str(number) for number in range(len(parts))]
    keys = [(name, "ascending") for name in names]
    order: np.ndarray = pc.sort_indices(pa.table(parts, names=names), sort_keys=keys).to_numpy()
    return order


def declared_state(group: KeyGroup, name: str, state: ProcessorState) -> UserState:
    """Return the contents of a state that a processor has declared; raise if it is another one."""
    try:
        return group.state(name, state.shape, state.type)
    except ValueError as e:
        why = str(e).partition("; ")[0]  # what follows is for functions
        raise CheckpointMismatchError(
            f"state {name!r} must keep what it holds and whether it has a time to live; choose another name "
            f"for the new one, and call handle.deleteIfExists({name!r}) for the old: {why}"
        ) from None
