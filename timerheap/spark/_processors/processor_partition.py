"""The key groups of one partition that a StatefulProcessor runs on, and which of their rows are late."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues
from pyspark.sql.types import StructType

from timerheap.spark._arrow import KeyedRows
from timerheap.spark._columns import AT
from timerheap.spark._exchange.observed_times import watermark_limit
from timerheap.spark._exchange.placement import label_of
from timerheap.spark._exchange.unpacker import Part, by_key_group, unpack, unpacked_rows
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.saving import Stored
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._group.stored.watermark_bytes import decode_watermark
from timerheap.spark._group.watermark import WatermarkState
from timerheap.spark._processors.processor_records import FrameRecords, FrameSettings, Records, RowRecords
from timerheap.spark._processors.processor_runner import BoundGroup, ProcessorRunner, declared_state
from timerheap.spark._processors.processor_states import (
    STATES,
    DeclaredState,
    Scope,
)
from timerheap.spark._query import Query
from timerheap.spark._worker.driver_mail import Mail
from timerheap.spark._worker.dropped_rows import DroppedRows
from timerheap.spark._worker.now import processing_time, wall_clock
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.partition import Partition
from timerheap.spark._worker.spark_frames import flat_frames, result_frames
from timerheap.spark._worker.work import Rehearsal, Task, TaskPartition, Work
from timerheap.timer import MIN_WATERMARK, lateness


def initial_query(query: Query) -> Query:
    """Return the query whose rows are those of the initial state."""
    work: ProcessorWork = query.work
    assert work.initial is not None
    return replace(query, rows=work.initial, key=list(work.initial_key))


@dataclass(eq=False)
class _Turn:
    """One run of a partition.

    rows: those that came, by key group
    manifests: of its key groups; until the run ends, of those without rows
    opened: the key groups that have rows or due timers, and the first one, which sees each watermark
    seen: the watermark of the micro-batch before, up to which rows are late
    """

    rows: dict[int, KeyedRows]
    manifests: dict[int, Manifest]
    opened: dict[int, tuple[BoundGroup, Stored]]
    seen: int


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
        self._runner = work.runner(query, timer_values, self._output)
        self._watermark: int = timer_values.getCurrentWatermarkInMs()
        if query.follows is not None:  # until tasks have told of the operators before this one
            self._watermark = 0
        self._follows = query.time_mode == "EventTime"
        now = processing_time(query, timer_values)
        self._now = self._watermark if now is None else now
        self._spark_now = timer_values.getCurrentWatermarkInMs() if self._follows else self._now
        self._timed = query.time_mode != "None"
        self._done: set[int] = set()  # the partitions that have been run
        self._late_rows = 0
        self._mail = task.mail
        self._dropped = DroppedRows(query, ".".join(work.event_time), "give withWatermark() a longer delay")
        self._runner.open()

    def close(self) -> None:
        self._runner.close()

    def reached(self) -> int | None:
        if not self._done or not self._follows:
            return None
        return self._watermark if self._watermark > 0 else MIN_WATERMARK  # Spark's begins at 0

    def run(self, partition: int, packed: list[tuple[int, bytes]]) -> Iterator[pd.DataFrame]:
        parts, observed = unpack(self._query, packed)
        limit = watermark_limit(self._query, observed)
        if limit is not None and self._follows:
            self._watermark = self._now = max(limit, 0)
            self._runner.follow(self._watermark)
        return self._run(partition, parts, partition)

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
                seen = max(group.watermark, decode_watermark(data).watermark if data else MIN_WATERMARK)
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
        turn = self._turn(partition, parts)
        bound = {group: bound for group, (bound, _) in turn.opened.items()}
        rows = [
            (bound[group], self._timely(rows, turn.seen, bound[group])) for group, rows in turn.rows.items()
        ]
        self._runner.process([(group, some) for group, some in rows if len(some)])
        if self._timed:
            self._runner.fire(list(bound.values()), self._now)
        for group, each in turn.opened.items():
            self._save(group, *each, max(turn.seen, self._watermark), fired, first=group == partition)
            turn.manifests[group] = each[1].manifest
        self._leave(called)
        return self._results(turn)

    def _turn(self, partition: int, parts: list[Part]) -> _Turn:
        """Begin a run: open the key groups that have something to do, at the watermark that they have."""
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
        return _Turn(by_group, manifests, opened, seen)

    def _results(self, turn: _Turn) -> Iterator[pd.DataFrame]:
        """Return the results of a run, and count what it has done."""
        for manifest in turn.manifests.values():
            self._metrics.add_group(manifest)
        if self._watermark > 0:  # Spark's begins at 0, and is -1 in other time modes
            self._metrics.add_times(self._watermark, MIN_WATERMARK, wall_clock())
        self._dropped.tell(self._mail, max(turn.seen, 0))
        frames = flat_frames if self._work.has_event_time else result_frames
        counts = self._counted(
            fired_timers=self._runner.fired_timers,
            late_rows=self._late_rows,
            dropped_rows=self._late_rows,
            out_of_order_rows=0,
        )
        return frames(self._output.table(), counts)

    def _is_due(self, manifest: Manifest) -> bool:
        return self._timed and manifest.wake_up is not None and manifest.wake_up <= self._now

    def _open(self, key_group: int) -> tuple[BoundGroup, Stored]:
        group, stored = self._load(key_group)
        return self._runner.bind(group), stored

    def _timely(self, rows: KeyedRows, seen: int, bound: BoundGroup) -> KeyedRows:
        if not (self._follows and self._work.event_time):
            return rows
        seen = max(seen, 0)  # where Spark's watermark begins
        micros = _micros(rows.rows, self._work.event_time)
        late = pc.less_equal(micros, seen * 1000).fill_null(False).to_numpy(zero_copy_only=False)
        if not late.any():
            return rows
        count = int(late.sum())
        bound.group.late_rows += count
        self._late_rows += count
        gone = rows.where(late)
        times = micros.to_numpy(zero_copy_only=False)[late].astype(np.int64) // 1000
        self._dropped.add(bound.group, gone, lateness(seen, times), times)
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
        state = WatermarkState((), ())
        state.follow(watermark)
        self._groups.save(label, group, stored, state.to_bytes(), whole=whole)

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
            if group is not None and name not in query.state_changes.drop:
                state = STATES[declared.shape](name, declared, Scope())
                declared_state(group, name, state)
                if state.ttl is not None:
                    times_to_live[name] = state.ttl
        return Rehearsal(times_to_live=times_to_live, keeps_expiries=True)

    def runner(self, query: Query, times: TimerValues, output: ResultBuffer) -> ProcessorRunner:
        """Return what calls the processor."""
        records: Records = (
            RowRecords(query.result_schema, self.zone, output)
            if self.style == "rows"
            else FrameRecords(query.result, self.zone, self.frames, output)
        )
        return ProcessorRunner(self.processor, self.states, records, query, times)

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
        runner = self.runner(query, times, output)
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


def _micros(rows: pa.RecordBatch, event_time: tuple[str, ...]) -> pa.Array:
    """Return the event times of rows in epoch microseconds, by which Spark's operator calls rows late."""
    name, *fields = event_time
    column = rows.column(name)
    for inner in fields:
        column = pc.struct_field(column, inner)
    return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
