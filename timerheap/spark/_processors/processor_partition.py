"""Runs a StatefulProcessor on key groups: its rows by key, then its timers in order, as Spark does."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, TimerValues
from pyspark.sql.types import StructType

from timerheap._contents import EXPIRING
from timerheap._native._core import RowSource
from timerheap.spark._arrow import KeyedRows
from timerheap.spark._columns import AT
from timerheap.spark._exchange.packer import Part, by_key_group, unpack, unpacked_rows
from timerheap.spark._exchange.placement import label_of
from timerheap.spark._group.checkpoint import Manifest, Stored
from timerheap.spark._group.columns import python_values, row_class
from timerheap.spark._group.key_group import KeyGroup, UserState
from timerheap.spark._group.timers import JournalledTimers, KeyTimers
from timerheap.spark._group.watermark import WatermarkState, decode_clock
from timerheap.spark._processors.processor_records import FrameRecords, FrameSettings, Records, RowRecords
from timerheap.spark._processors.processor_states import (
    STATES,
    DeclaredState,
    ProcessorHandle,
    ProcessorState,
    Scope,
)
from timerheap.spark._processors.spark_values import UnsafeOrder, reader_of
from timerheap.spark._query import Query
from timerheap.spark._worker.driver_mail import Mail
from timerheap.spark._worker.operator import Rehearsal, Task, TaskPartition, Work
from timerheap.spark._worker.output import ResultBuffer, flat_frames, result_frames
from timerheap.spark._worker.partition import Partition
from timerheap.spark._worker.states import GroupExpiryClock, KeyTimerService
from timerheap.timer import MIN_WATERMARK


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

    timer_values: the times of the micro-batch, as the processor receives them
    fired_timers: how many timers have fired
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
        self._now: int = timer_values.getCurrentProcessingTimeInMs()
        self._handle = ProcessorHandle(query.time_mode, self._scope, self._declared)
        key_type = StructType([query.rows[name] for name in query.key])
        self._key_readers = [reader_of(query.schema.field(name).type) for name in query.key]
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
            stored.append(_declared(group, name, state))
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
            error.add_note(f"timerheap: in {method}, key {tuple(key)!r}{more}")


def _key_order(columns: list[pa.Array]) -> np.ndarray:
    """Return the rows in the order of their keys, nulls first, those of one key in their own order."""
    parts: list[pa.Array] = []
    for column in columns:
        parts += [column.is_valid(), column] if column.null_count else [column]
    names = [str(number) for number in range(len(parts))]
    keys = [(name, "ascending") for name in names]
    return pc.sort_indices(pa.table(parts, names=names), sort_keys=keys).to_numpy()


_log = logging.getLogger("timerheap")


def initial_query(query: Query) -> Query:
    """Return the query whose rows are those of the initial state."""
    work: ProcessorWork = query.work
    assert work.initial is not None
    return replace(query, rows=work.initial, key=list(work.initial_key))


class ProcessorPartition(Partition):
    """Runs the key groups of one partition in one micro-batch.

    Spark calls the operator for the rows of a partition, then for its Spark timers. Whichever call comes
    first runs everything that is due in the partition, so that timers fire in the order of their timestamps
    across its key groups. A key group has one Spark timer, at the first of its own or before it. The
    first key group of a partition has one right after now: it runs in every micro-batch, so that the metrics
    are those of all groups.

    Rows are late if their event time is not after the watermark of the micro-batch before, which Spark does
    not tell. So the first key group of a partition, which sees each watermark, keeps the last one.
    """

    def __init__(self, work: ProcessorWork, task: Task) -> None:
        super().__init__(task)
        query, timer_values = task.query, task.timer_values
        self._work = work
        self._output = ResultBuffer(query.result_schema)
        self._runner = ProcessorRunner(work, query, timer_values, self._output)
        self._watermark: int = timer_values.getCurrentWatermarkInMs()
        self._follows = query.time_mode == "EventTime"
        self._now = self._watermark if self._follows else timer_values.getCurrentProcessingTimeInMs()
        self._spark_now = self._now
        self._timed = query.time_mode != "None"
        self._done: set[int] = set()  # the partitions that have been run
        self._late_rows = 0
        self._runner.open()

    def close(self) -> None:
        self._runner.close()

    def run(self, partition: int, packed: list[tuple[int, bytes]]) -> Iterator[pd.DataFrame]:
        return self._run(partition, unpack(self._query, packed)[0], partition)

    def wake_up(self, key_group: int, fired: int) -> Iterator[pd.DataFrame]:
        """Fire the due timers in the partition of the key group."""
        partition = key_group % self._placement.partitions
        if partition not in self._done:
            return self._run(partition, [], key_group, fired)
        if self._is_due(self._manifest(key_group)):
            # A timer is due and waits for the next micro-batch. From now on Spark's waits for that, too.
            now = self._spark_now
            self._store.register_timer(now if fired != now else now - 1)
        self._store.settle()
        return iter(())

    def restore(self, packed: Mapping[str, Iterable[Any]]) -> None:
        """Pass the packed rows of the initial state to the processor, or load state to start from."""
        if self._work.initial is None:
            for key_group, group, stored, data in self._restored(packed):
                seen = max(group.watermark, decode_clock(data).watermark if data else MIN_WATERMARK)
                bound = self._runner.bind(group.loaded())
                self._save(key_group, bound, stored, seen, firing=None, first=False, whole=True)
            self._store.settle()
            return
        initial = initial_query(self._query)
        parts, _ = unpack(initial, zip(packed["sequence"], packed["blob"], strict=True))
        by_group = by_key_group(parts)
        opened = {group: self._open(group) for group in sorted(by_group)}
        self._runner.initialise([(opened[group][0], rows) for group, rows in by_group.items()], initial)
        for key_group, (bound, stored) in opened.items():
            self._save(key_group, bound, stored, bound.group.watermark, firing=None, first=False)
        self._store.settle()

    def _run(
        self, partition: int, parts: list[Part], called: int, fired: int | None = None
    ) -> Iterator[pd.DataFrame]:
        """Process rows and fire due timers, then select the key group that Spark has called."""
        self._done.add(partition)
        by_group = by_key_group(parts)
        key_groups = self._placement.key_groups(partition)
        self._store.ask_for_manifests(map(label_of, key_groups))
        manifests = {group: self._manifest(group) for group in key_groups if group not in by_group}
        seen = max((manifest.watermark for manifest in manifests.values()), default=MIN_WATERMARK)
        opened = {group: self._open(group) for group in sorted(by_group)}
        if self._follows:
            seen = max([seen, *(bound.group.watermark for bound, _ in opened.values())])
            if seen > self._watermark:  # it has begun with an initial state, which Spark's does not know
                self._watermark = self._now = seen
                self._runner.follow(seen)
        due = [group for group, manifest in manifests.items() if self._is_due(manifest)]
        opened |= {group: self._open(group) for group in due}
        opened = dict(sorted(opened.items()))
        if self._timed and partition not in opened:
            opened[partition] = self._open(partition)
        bound = {group: bound for group, (bound, _) in opened.items()}
        rows = [(bound[group], self._timely(rows, seen, bound[group])) for group, rows in by_group.items()]
        self._runner.process([(group, some) for group, some in rows if len(some)])
        if self._timed:
            self._runner.fire(list(bound.values()), self._now)
        for group, each in opened.items():
            self._save(group, *each, max(seen, self._watermark), fired, first=group == partition)
            manifests[group] = each[1].manifest
        for manifest in manifests.values():
            self._metrics.add_group(manifest)
        self._leave(called)
        if self._watermark > 0:  # Spark's begins at 0, and is -1 in other time modes
            self._metrics.add_times(self._watermark, MIN_WATERMARK, time.time_ns() // 1_000_000)
        frames = flat_frames if self._work.has_event_time else result_frames
        late = self._late_rows
        return frames(
            self._output.table(),
            self._counted(
                fired_timers=self._runner.fired_timers, late_rows=late, dropped_rows=late, out_of_order_rows=0
            ),
        )

    def _is_due(self, manifest: Manifest) -> bool:
        return self._timed and manifest.wake_up is not None and manifest.wake_up <= self._now

    def _open(self, key_group: int) -> tuple[BoundGroup, Stored]:
        group, stored = self._load(key_group)
        return self._runner.bind(group), stored

    def _timely(self, rows: KeyedRows, seen: int, bound: BoundGroup) -> KeyedRows:
        if not (self._follows and self._work.event_time):
            return rows
        late = _late_in_spark(rows.rows, self._work.event_time, max(seen, 0))  # Spark's watermark begins at 0
        if not late.any():
            return rows
        count = int(late.sum())
        bound.group.late_rows += count
        self._late_rows += count
        _log.warning("dropped %d late rows", count)
        return rows.where(~late)

    def _save(
        self,
        key_group: int,
        bound: BoundGroup,
        stored: Stored,
        watermark: int,
        firing: int | None,
        first: bool,
        whole: bool = False,
    ) -> None:
        """Save a key group, given the last watermark that the partition has seen."""
        # `firing` is the timestamp of the Spark timer that fires now, None in the row phase; `first` tells
        # whether the group has to see the next watermark.
        label = label_of(key_group)
        self._store.select(label)
        self._runner.purge(bound)
        group = bound.group
        group.watermark = watermark
        if self._timed:
            self._set_wake_up(bound, firing, first)
        clock = WatermarkState((), ())
        clock.follow(watermark)
        self._groups.save(label, group, stored, clock.to_bytes(), whole=whole)

    def _set_wake_up(self, bound: BoundGroup, firing: int | None, first: bool) -> None:
        """Keep one Spark timer at the next timer of the group, or before it."""
        # A timer that is due already waits for the next micro-batch. In the row phase, Spark's timer for it
        # would fire immediately: `wake_up` then sets it again.
        now, group = self._spark_now, bound.group
        wanted = group.next_due(self._query.time_mode == "EventTime")
        if wanted is not None and wanted <= self._now:
            wanted = now if firing != now else now - 1
        if first:
            wanted = now + 1 if wanted is None else min(wanted, now + 1)
        group.wake_up = self._store.keep_timer(group.wake_up, wanted, now)


@dataclass(frozen=True)
class ProcessorWork(Work):
    """A StatefulProcessor to run."""

    processor: StatefulProcessor
    style: Literal["rows", "frames"]  # what it receives and yields: Row objects or pandas DataFrames
    states: dict[str, DeclaredState]  # that its init declares
    event_time: tuple[str, ...]  # the path of the column with Spark's watermark, whose late rows are dropped
    initial: StructType | None  # the type of the rows of the initial state
    initial_key: tuple[str, ...]  # their key columns, whose names may differ from those of the rows
    zone: str  # time zone of the timestamps that the processor receives
    frames: FrameSettings
    has_event_time: bool = False  # whether a column of the results is the event time of what follows

    def rehearse(
        self, query: Query, max_parallelism: int, group: KeyGroup | None, streaming: bool
    ) -> Rehearsal:
        """Have a key group that the query starts from hold the states that ``init`` has declared."""
        times_to_live = {}
        for name, declared in self.states.items():
            if group is not None and name not in query.drop_state:
                state = STATES[declared.shape](name, declared, Scope())
                _declared(group, name, state)
                if state.ttl is not None:
                    times_to_live[name] = state.ttl
        return Rehearsal(times_to_live=times_to_live, keeps_expiries=True)

    def partition(self, task: Task) -> TaskPartition:
        return ProcessorPartition(self, task)

    def batch(self, query: Query, packed: pa.Table, initial: pa.Table | None, mail: Mail) -> ResultBuffer:
        """Run a partition as one key group; `initial` are the rows of the initial state."""
        rows = unpacked_rows(query, packed)
        of_initial, first = query, None
        if initial is not None:
            of_initial = initial_query(query)
            first = unpacked_rows(of_initial, initial)
        now = (packed if packed.num_rows or initial is None else initial).column(AT)[0].as_py()
        times = TimerValues() if query.time_mode == "None" else TimerValues(now, -1)
        output = ResultBuffer(query.result_schema)
        runner = ProcessorRunner(self, query, times, output)
        runner.open()
        bound = runner.bind(KeyGroup(query.layout))
        runner.initialise(_of(bound, first), of_initial)
        runner.process(_of(bound, rows))
        if query.time_mode == "ProcessingTime":
            runner.fire([bound], times.getCurrentProcessingTimeInMs())
        elif query.time_mode == "EventTime":
            runner.fire([bound], times.getCurrentWatermarkInMs())
        runner.close()
        return output


def _of(bound: BoundGroup, rows: KeyedRows | None) -> list[tuple[BoundGroup, KeyedRows]]:
    return [] if rows is None else [(bound, rows)]


def _late_in_spark(rows: pa.RecordBatch, event_time: tuple[str, ...], watermark: int) -> np.ndarray:
    """Return which rows Spark's operator calls late, shape (n,): those up to a watermark in ms, not null."""
    name, *fields = event_time
    column = rows.column(name)
    for inner in fields:
        column = pc.struct_field(column, inner)
    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return pc.less_equal(micros, watermark * 1000).fill_null(False).to_numpy(zero_copy_only=False)


def _declared(group: KeyGroup, name: str, state: ProcessorState) -> UserState:
    """Return the contents of a state that a processor has declared; raise ValueError if it has changed."""
    try:
        return group.state(name, state.shape, state.type)
    except ValueError as e:
        why = str(e).partition("; ")[0]  # what follows is for functions
        raise ValueError(
            f"state {name!r} must keep what it holds and whether it has a time to live; choose another name "
            f"for the new one, and call handle.deleteIfExists({name!r}) for the old: {why}"
        ) from None
