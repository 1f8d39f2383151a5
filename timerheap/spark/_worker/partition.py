"""One shuffle partition in one micro-batch: what runs its key groups, their clock, their metrics."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from heapq import heappop
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from timerheap._native._core import IdIndex
from timerheap.metrics import Metrics
from timerheap.spark._arrow import KeyedRows
from timerheap.spark._columns import TIME, shown_name
from timerheap.spark._exchange.codec import counts_of, merged
from timerheap.spark._exchange.packer import broadcast_rows, by_key_group, pairs_of, unpack, unpacked_rows
from timerheap.spark._exchange.placement import Placement, label_of
from timerheap.spark._group.checkpoint import Manifest, Stored, read_clock
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.split import restore
from timerheap.spark._group.watermark import WatermarkState, is_late
from timerheap.spark._query import Query
from timerheap.spark._worker.driver_mail import Mail
from timerheap.spark._worker.operator import Task, TaskPartition, Work
from timerheap.spark._worker.output import ResultBuffer, result_frames
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK, lateness, shown_time

Combine = Literal["sum", "min", "max"]


class Metric(NamedTuple):
    """One number of a task.

    combine: what makes one number of those of several key groups or tasks
    of_all: whether the number says something only if all key groups are in it
    """

    name: str
    combine: Combine
    of_all: bool = False


TASK_METRICS = (
    Metric("watermark", "max"),
    Metric("newest_event_time", "max"),
    Metric("event_time_lag", "max"),
    Metric("clock_lag", "max"),
    Metric("pending_event_time_timers", "sum", of_all=True),
    Metric("pending_processing_time_timers", "sum", of_all=True),
    Metric("next_event_time_timer", "min", of_all=True),
    Metric("next_processing_time_timer", "min", of_all=True),
    Metric("fired_timers", "sum"),
    Metric("late_rows", "sum"),
    Metric("dropped_rows", "sum"),
    Metric("null_time_rows", "max"),
    Metric("ahead_rows", "max"),
    Metric("out_of_order_rows", "sum"),
    Metric("keys", "sum", of_all=True),
    Metric("buffered_rows", "sum", of_all=True),
    Metric("state_bytes", "sum", of_all=True),
    Metric("largest_group_bytes", "max", of_all=True),
    Metric("groups_handed_over", "sum"),
    Metric("groups_loaded", "sum"),
    Metric("groups", "sum"),
    Metric("max_parallelism", "max"),
)

OF_CHANNEL = "channel "
"""What begins the name of a metric that is the watermark of a channel."""

_COMBINE: dict[Combine, Callable[[int, int], int]] = {"sum": int.__add__, "min": min, "max": max}
_COMBINE_BY_NAME = {metric.name: _COMBINE[metric.combine] for metric in TASK_METRICS}
_MANY = 1 << 12  # results, for which a DataFrame of their own is worth its cost


class TaskMetrics:
    """Collects the metrics of one task."""

    def __init__(self) -> None:
        self.channels: dict[str, int] = {}  # their watermarks
        self._values: dict[str, int] = {}
        self._totals: dict[str, int] = {}

    def add(self, **values: int | None) -> None:
        """Combine values with those so far; None adds nothing."""
        found = self._values
        for name, value in values.items():
            if value is not None:
                before = found.get(name)
                found[name] = value if before is None else _COMBINE_BY_NAME[name](before, value)

    def add_times(self, watermark: int, newest: int, now: int) -> None:
        """Add the times of a key group, epoch ms; MIN_WATERMARK is none.

        watermark, newest: the watermark, and the largest event time so far
        now: what the clock shows
        """
        known = watermark != MIN_WATERMARK
        if known:
            self.add(watermark=watermark, clock_lag=now - watermark)
        if newest != MIN_WATERMARK:
            self.add(newest_event_time=newest, event_time_lag=newest - watermark if known else None)

    def add_totals(self, **totals: int) -> None:
        """Add what has been counted since the last call, given all that the task has counted so far."""
        self.add(**{name: total - self._totals.get(name, 0) for name, total in totals.items()})
        self._totals = totals

    def add_group(self, manifest: Manifest) -> None:
        """Add what a key group holds, as of its last save."""
        nbytes = manifest.nbytes
        self.add(**manifest.standing._asdict(), state_bytes=nbytes, largest_group_bytes=nbytes, groups=1)

    def take(self, metrics: Metrics | None = None) -> pa.Array:
        """Return the values so far, with those of the metrics of a function, and begin anew."""
        # The driver merges the JSON object (shape (1,)) by the names in it: "sum", "min", "max" and so on.
        values, self._values = self._values, {}
        objects: dict[str, dict[str, Any]] = {combine: {} for combine in _COMBINE}
        for metric in TASK_METRICS:
            objects[metric.combine][metric.name] = values.get(metric.name)
        channels, self.channels = self.channels, {}
        objects["max"] |= {OF_CHANNEL + name: mark for name, mark in channels.items()}
        if metrics is not None:
            distributions = {name: asdict(each) for name, each in metrics.take_distributions().items()}
            objects |= {"counters": metrics.take_counters(), "distributions": distributions}
        return pa.array([json.dumps(objects)])


class Runner(ABC):
    """Runs the work of a query in one task, on one key group after the other.

    The engine calls `open`, then for each key group of each micro-batch `begin`, `process` and `advance` or
    `replay` in their place, and `advance_clock`; finally `close`. Work that is always in event-time order has
    neither `process` nor `advance`.

    rows_ahead: the rows that were processed ahead of due timers
    fired_timers: the number of timers that have fired so far
    metrics: those of the function, None if it has none
    any_order: whether `replay` takes rows in any order
    decides_lateness: whether `process` itself decides which rows are late
    """

    any_order = False
    decides_lateness = False
    rows_ahead: RowsAhead

    @property
    @abstractmethod
    def fired_timers(self) -> int: ...

    @property
    def metrics(self) -> Metrics | None:
        return None

    def open(self) -> None:  # noqa: B027
        """Prepare for the first key group."""

    def close(self) -> None:  # noqa: B027
        """End the task."""

    @abstractmethod
    def begin(self, group: KeyGroup, now: int | None, output: ResultBuffer) -> None:
        """Begin a key group, at its watermark.

        now: time of the micro-batch in epoch ms, None in a query without processing time
        output: receives the results
        """

    def broadcast(self, rows: pa.Table) -> None:
        """Process rows that go to every key group."""
        raise NotImplementedError(f"{type(self).__name__} takes no rows that go to every key group")

    def process(self, rows: KeyedRows, watermark: int) -> None:
        """Process rows in the order of arrival; `watermark` follows, so that timers up to it are due."""
        raise NotImplementedError(f"{type(self).__name__} has its rows in event-time order")

    @abstractmethod
    def replay(self, rows: KeyedRows, order: np.ndarray, watermark: int) -> None:
        """Process rows in event-time order, fire timers between them, and advance to `watermark`.

        The watermark is t - 1 while rows of timestamp t are processed.

        order (int64, shape (n,)): the positions of the rows to process, in event-time order; there may be
            other rows
        """

    def advance(self, watermark: int) -> None:
        """Advance the watermark, and fire the event-time timers that it passes."""
        raise NotImplementedError(f"{type(self).__name__} has its rows in event-time order")

    def advance_clock(self, now: int) -> None:  # noqa: B027
        """Fire the processing-time timers before `now`, if there can be any."""


def _earliest(ids: np.ndarray, timestamps: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the earliest timestamp of each wanted id, MAX_WATERMARK for one that is not in `ids`."""
    latest_first = np.argsort(timestamps)[::-1]
    earliest = IdIndex()
    earliest.put_many(ids[latest_first], timestamps[latest_first])  # of an id the last value stays
    timestamps, found = earliest.find_many(wanted)
    return np.where(found, timestamps, MAX_WATERMARK)


class RowsAhead:
    """Counts the rows that were processed ahead of a due timer of their key, and what else to warn of.

    In event-time order the timer would have fired first. A timer is due if its timestamp is at most the
    watermark that follows on the rows.

    count: the number of such rows so far
    warnings: a message about the first of them, and one about a timer that is far too early, by "about"
    """

    def __init__(self) -> None:
        self.count = 0
        self.warnings: dict[str, str] = {}
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
        after = self.due()
        if not len(before[0]) + len(after[0]):
            return
        # The first row of a key may have moved a timer that was before its other rows.
        first = _earliest(rows.ids, rows.timestamps, rows.ids) == rows.timestamps
        timers = np.where(first, _earliest(*before, rows.ids), MAX_WATERMARK)
        timers = np.minimum(timers, _earliest(*after, rows.ids))
        ahead = np.flatnonzero(timers < rows.timestamps)
        if len(ahead):
            row = ahead[0]
            self._add(len(ahead), int(rows.timestamps[row]), int(timers[row]))

    def _add(self, count: int, timestamp: int, timer: int) -> None:
        self.count += count
        if "rows ahead" not in self.warnings:
            self.warnings["rows ahead"] = (
                f"in order of arrival, a row with timestamp {timestamp} was processed before a timer of its "
                f'key at {timer}, which was due; order="event_time" fires the timer first'
            )

    def too_early(self, timer: int, now: int) -> None:
        """Warn of a timer that is more than 30 years before its row."""
        if "too early" not in self.warnings:
            self.warnings["too early"] = (
                f"a timer was registered for {timer}, more than 30 years before {now}, the time of its row; "
                "timers are in epoch milliseconds: pass seconds * 1000, or a datetime"
            )


def run_key_group(
    query: Query,
    runner: Runner,
    group: KeyGroup,
    rows: KeyedRows | None,
    now: int | None,
    watermark: int,
    output: ResultBuffer,
    broadcast: pa.Table | None = None,
) -> None:
    """Run one key group in one micro-batch: `broadcast` rows, its rows, the watermark, then the clock."""
    before = group.watermark
    runner.begin(group, now, output)
    if broadcast is not None:
        runner.broadcast(broadcast)
    admitted = None if rows is None else admit(query, runner, group, rows, output)
    group.watermark = watermark
    if query.order == "event_time":
        if admitted is not None:
            group.rows.append(admitted)
        runner.replay(*group.rows.release(watermark, in_order=not runner.any_order), watermark)
    else:
        if admitted is not None:
            runner.process(admitted, watermark)
        if query.event_time is not None or watermark > before:
            runner.advance(watermark)
    if now is not None:
        runner.advance_clock(now)


def admit(query: Query, runner: Runner, group: KeyGroup, rows: KeyedRows, output: ResultBuffer) -> KeyedRows:
    """Return the rows that are not late."""
    if query.event_time in query.schema.names and not runner.decides_lateness:
        late = is_late(rows.timestamps, group.watermark)
        group.late_rows += (count := int(np.count_nonzero(late)))
        if count and query.late != "process":
            if query.late_row is not None:
                columns = rows.rows.select(list(query.late_columns)).filter(pa.array(late))
                output.late(columns, lateness(group.watermark, rows.timestamps[late]))
            rows = rows.where(~late)
    ids, places = group.keys.locate(rows.ids, [rows.rows.column(name) for name in query.key])
    return KeyedRows(rows.rows, ids, rows.timestamps, places)


class _Clock(NamedTuple):
    """The clock of all key groups of a partition after a micro-batch.

    watermark, newest: the watermark, and the largest event time so far
    next_change: when it changes without rows
    data: what a load needs
    has_new_channels: whether the micro-batch has added channels
    """

    watermark: int
    newest: int
    next_change: int | None
    data: bytes
    has_new_channels: bool

    @classmethod
    def of(cls, state: WatermarkState) -> _Clock:
        data, new = state.to_bytes(), state.has_new_channels
        return cls(state.watermark, state.newest(), state.next_change(), data, new)


class Partition(TaskPartition):
    """The key groups of one partition in one micro-batch, as they are stored, and the metrics of them all."""

    def __init__(self, task: Task) -> None:
        self._query = task.query
        self._placement = task.placement
        self._store = task.store
        self._groups = task.groups
        self._metrics = TaskMetrics()

    def _load(self, key_group: int) -> tuple[KeyGroup, Stored]:
        label = label_of(key_group)
        self._store.select(label)
        return self._groups.load(label)

    def _restored(
        self, initial: Mapping[str, Iterable[Any]]
    ) -> Iterator[tuple[int, KeyGroup, Stored, bytes | None]]:
        """Yield the key groups that state to start from belongs to, with it, and its clock if it has one."""
        by_group: dict[int, list[tuple[bytes | None, bytes | None]]] = {}
        columns = (initial[name] for name in ("key_group", "clock", "contents"))
        for key_group, data, contents in zip(*columns, strict=True):
            by_group.setdefault(key_group, []).append((data, contents))
        for key_group, pairs in sorted(by_group.items()):
            group, stored = self._load(key_group)
            for _, contents in pairs:
                if contents:
                    restore(group, contents)
            yield key_group, group, stored, next((data for data, _ in pairs if data), None)

    def _manifest(self, key_group: int) -> Manifest:
        self._store.select(label_of(key_group))
        return self._store.read_manifest() or Manifest(self._placement.max_parallelism)

    def _leave(self, key_group: int) -> None:
        """Select the key group that Spark has called, and wait until all calls have succeeded."""
        self._store.select(label_of(key_group))
        self._store.settle()

    def _counted(self, metrics: Metrics | None = None, **totals: int) -> pa.Array:
        """Return the metrics since the last call, given what the task has counted so far."""
        handed_over, loaded = (self._groups.origins[origin] for origin in ("handed over", "loaded"))
        self._metrics.add_totals(groups_handed_over=handed_over, groups_loaded=loaded, **totals)
        self._metrics.add(max_parallelism=self._placement.max_parallelism)
        return self._metrics.take(metrics)


class GroupwisePartition(Partition):
    """Runs the key groups of one partition in one micro-batch, each at most once, one after the other."""

    def __init__(self, task: Task, runner: Runner) -> None:
        super().__init__(task)
        self._runner = runner
        self._mail = task.mail
        self._run = task.run
        self._drained = task.drained
        clocked = task.query.time_mode == "ProcessingTime"
        self._now: int | None = task.timer_values.getCurrentProcessingTimeInMs() if clocked else None
        self._wall_clock = time.time_ns() // 1_000_000 if self._now is None else self._now
        self._shared: _Clock | None = None  # by all key groups
        self._dropped = 0  # late rows
        self._done: set[int] = set()
        self._is_first_task = False

    def close(self) -> None:
        self._runner.close()

    def run(self, partition: int, packed: list[tuple[int, bytes]]) -> Iterator[pd.DataFrame]:
        # Many results are sent before the next group runs, so that Spark writes them meanwhile.
        parts, observed = unpack(self._query, packed)
        rules = self._query.broadcast
        broadcast = None if rules is None else broadcast_rows(rules, packed)
        self._is_first_task = partition == 0
        self._metrics.add(**counts_of(observed))
        by_group = by_key_group(parts)
        key_groups = self._placement.key_groups(partition)
        self._store.ask_for_manifests(map(label_of, key_groups))
        output = ResultBuffer(*self._query.outputs)
        for key_group in key_groups:
            self._run_group(key_group, by_group.get(key_group), observed, output, broadcast)
            if len(output) >= _MANY:
                yield from result_frames(output.table())
        self._leave(partition)
        yield from self._frames(output)

    def restore(self, initial: Mapping[str, Iterable[Any]]) -> None:
        for key_group, group, stored, data in self._restored(initial):
            clock = _Clock.of(self._clock_state(data or read_clock(stored.manifest, self._store)))
            group.watermark = clock.watermark
            self._set_wake_up(key_group, group.loaded(), clock)
            self._groups.save(label_of(key_group), group, stored, clock.data, whole=True)
        self._store.settle()

    def wake_up(self, key_group: int, fired: int) -> Iterator[pd.DataFrame]:
        """Run a key group whose wake-up, a Spark timer, has fired, unless its rows have run it."""
        if key_group in self._done:
            return iter(())
        output = ResultBuffer(*self._query.outputs)
        self._run_group(key_group, None, merged([]), output)
        if self._is_first(key_group):
            self._count_others(key_group)
        self._leave(key_group)
        return self._frames(output)

    def _run_group(
        self,
        key_group: int,
        rows: KeyedRows | None,
        observed: pa.Table,
        output: ResultBuffer,
        broadcast: pa.Table | None = None,
    ) -> None:
        group, stored = self._load(key_group)
        self._done.add(key_group)
        clock = self._clock_for(key_group, stored.manifest, observed)
        late_rows, watermark = group.late_rows, max(group.watermark, clock.watermark)
        run_key_group(self._query, self._runner, group, rows, self._now, watermark, output, broadcast)
        self._mail.warn(group.notices())
        for about, message in self._runner.rows_ahead.warnings.items():
            self._mail.warn([message], about)
        self._set_wake_up(key_group, group, clock)
        writes_clock = clock.has_new_channels or self._is_first(key_group)
        self._groups.save(label_of(key_group), group, stored, clock.data, writes_clock=writes_clock)
        late_rows = group.late_rows - late_rows
        self._metrics.add_times(watermark, clock.newest, self._wall_clock)
        dropped = late_rows * (self._query.late == "drop")
        self._dropped += dropped
        self._metrics.add(late_rows=late_rows, dropped_rows=dropped)
        self._metrics.add_group(stored.manifest)

    def _is_first(self, key_group: int) -> bool:
        return key_group < self._placement.partitions

    def _count_others(self, partition: int) -> None:
        """Add to the metrics what those key groups hold that this task does not run."""
        assert self._now is not None
        for key_group in self._placement.key_groups(partition):
            if key_group in self._done:
                continue
            manifest = self._manifest(key_group)
            if manifest.wake_up is None or manifest.wake_up > self._now:
                self._metrics.add_group(manifest)

    def _clock_for(self, key_group: int, manifest: Manifest, observed: pa.Table) -> _Clock:
        """Return the clock after this micro-batch, given the group that runs now: that of the first group."""
        # A group that has been in another partition may have a higher watermark.
        if self._shared is None:
            if not self._is_first(key_group):
                self._store.select(label_of(key_group % self._placement.partitions))
                manifest = self._store.read_manifest() or manifest
            self._shared = self._advance(manifest, observed, key_group % self._placement.partitions == 0)
            self._store.select(label_of(key_group))
        return self._shared

    def _advance(self, manifest: Manifest, observed: pa.Table, tells: bool) -> _Clock:
        """Return the clock of the selected group after this micro-batch."""
        state = self._clock_state(read_clock(manifest, self._store), manifest.clock_stale)
        state.follow(manifest.watermark)
        state.observe(observed, self._now, self._run, self._wall_clock, self._drained)
        if state.ahead is not None and self._is_first_task:
            self._warn_of_rows_ahead(*state.ahead)
        self._mail.warn(state.notices)
        if tells:  # the first partition, for all
            self._metrics.channels = state.channels()
        return _Clock.of(state)

    def _clock_state(self, data: bytes, stale: bool = False) -> WatermarkState:
        query = self._query
        if data:
            return WatermarkState.from_bytes(data, query.watermarks, query.channels, stale)
        return WatermarkState(query.watermarks, query.channels)  # of new groups

    def _set_wake_up(self, key_group: int, group: KeyGroup, clock: _Clock) -> None:
        """Keep one Spark timer after now, at the time when the group has to run, or before it."""
        # The first group of a partition runs in every micro-batch, so that the metrics are those of all
        # groups. Spark would drop a timer for the time that is firing.
        now = self._now
        if now is None:
            return
        times = [clock.next_change, group.next_due(event_time=False)]
        if self._is_first(key_group):
            times.append(now)
        next_ = min((time for time in times if time is not None), default=MAX_WATERMARK)
        wanted = max(next_, now) + 1 if next_ < MAX_WATERMARK else None  # MAX_WATERMARK never passes
        group.wake_up = self._store.keep_timer(group.wake_up, wanted, now)

    def _frames(self, output: ResultBuffer) -> Iterator[pd.DataFrame]:
        """Yield the results, and the metrics since the last call."""
        own = self._runner.metrics
        if own is not None and not self._query.has_metrics:
            raise RuntimeError(
                "get_metrics_group() must be called in open(), also on the driver, which then knows that the "
                "function has metrics; move the call there, before any check of TaskContext.get()"
            )
        if self._dropped:
            assert self._shared is not None
            tell_of_late_rows(self._mail, self._query, self._shared.watermark, self._dropped)
            self._dropped = 0
        runner = self._runner
        counted = self._counted(
            own, fired_timers=runner.fired_timers, out_of_order_rows=runner.rows_ahead.count
        )
        yield from result_frames(output.table(), counted)

    def _warn_of_rows_ahead(self, channel: str | None, time: int) -> None:
        where = "" if channel is None else f" of channel {channel!r}"
        self._mail.tally(
            "rows ahead of the clock",
            "{} micro-batches so far had rows more than a day ahead of the clock, the last one a row"
            f"{where} at {shown_time(time)}, which does not advance the watermark; correct or drop such rows "
            "(a bigint is epoch milliseconds), or set the limit with WatermarkStrategy.with_max_ahead(), "
            "None for no limit",
        )


def tell_of_late_rows(mail: Mail, query: Query, watermark: int, dropped: int) -> None:
    """Tell the driver how many rows were dropped that were late."""
    column = "" if query.event_time in (None, TIME) else f" of column {shown_name(query.event_time)!r}"
    mail.tally(
        "late rows",
        f"dropped {{}} rows so far that came behind the watermark{column}, which is at "
        f"{shown_time(watermark)}; give the watermark more delay, or each source a watermark of its own "
        '(EventTime(channel=...)), or have such rows returned (late="emit")',
        dropped,
    )


class KeyedWork(Work):
    """Work that runs each key group by itself, as `run_key_group` does."""

    @abstractmethod
    def runner(self, query: Query, placement: Placement) -> Runner:
        """Return what runs it in one task."""

    def partition(self, task: Task) -> TaskPartition:
        runner = self.runner(task.query, task.placement)
        runner.open()
        return GroupwisePartition(task, runner)

    def batch(self, query: Query, packed: pa.Table, initial: pa.Table | None, mail: Mail) -> ResultBuffer:
        """Run the keys of a partition as one key group, up to the end of time."""
        rows, broadcast = unpacked_rows(query, packed), None
        if query.broadcast is not None:
            broadcast = broadcast_rows(query.broadcast, pairs_of(packed))
        runner = self.runner(query, Placement.running(query.max_parallelism))
        output = ResultBuffer(*query.outputs)
        runner.open()
        run_key_group(query, runner, KeyGroup(query.layout), rows, None, MAX_WATERMARK, output, broadcast)
        runner.close()
        for about, message in runner.rows_ahead.warnings.items():
            mail.warn([message], about)
        return output
