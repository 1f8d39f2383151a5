"""One shuffle partition in one micro-batch: its key groups one by one, their watermark and metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa

from timerheap.metrics import Metrics
from timerheap.spark._arrow import KeyedRows
from timerheap.spark._exchange.broadcaster import broadcast_rows
from timerheap.spark._exchange.observed_times import counts_of, merged, watermark_limit
from timerheap.spark._exchange.placement import label_of
from timerheap.spark._exchange.unpacker import by_key_group, unpack
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.saving import Stored
from timerheap.spark._group.split import restore
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._group.stored_watermark import read_watermark
from timerheap.spark._group.watermark import WatermarkState
from timerheap.spark._settling.settling_keys import SettledLost
from timerheap.spark._worker.dropped_rows import DroppedRows
from timerheap.spark._worker.key_group_run import run_key_group
from timerheap.spark._worker.now import processing_time, wall_clock
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import MicroBatch, Runner
from timerheap.spark._worker.spark_frames import result_frames
from timerheap.spark._worker.task_metrics import TaskMetrics, declared_metrics
from timerheap.spark._worker.work import Task, TaskPartition
from timerheap.timer import MAX_WATERMARK, shown_time

_MANY = 1 << 12  # results, for which a DataFrame of their own is worth its cost


class _WatermarkAfter(NamedTuple):
    """The watermark of all key groups of a partition after a micro-batch, with the state that makes it.

    watermark, newest: the watermark, and the largest event time so far
    next_change: when the watermark changes without rows
    data: the state of the watermark, as a load needs it
    has_new_channels: whether the micro-batch has added channels
    """

    watermark: int
    newest: int
    next_change: int | None
    data: bytes
    has_new_channels: bool

    @classmethod
    def of(cls, state: WatermarkState) -> _WatermarkAfter:
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
        """Yield the key groups that have state to start from, loaded with it, and their watermark's state."""
        by_group: dict[int, list[tuple[bytes | None, bytes | None]]] = {}
        columns = (initial[name] for name in ("key_group", "watermark", "contents"))
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
        self._metrics.add_totals(**self._groups.counts(), **totals)
        self._metrics.add(max_parallelism=self._placement.max_parallelism)
        return self._metrics.take(metrics)


class GroupwisePartition(Partition):
    """Runs the key groups of one partition in one micro-batch, each at most once, one after the other."""

    def __init__(self, task: Task, runner: Runner) -> None:
        super().__init__(task)
        runner.dropped = DroppedRows(task.query)
        self._runner = runner
        self._mail = task.mail
        self._run = task.run
        self._drained = task.drained
        self._now = processing_time(task.query, task.timer_values)
        self._wall_clock = wall_clock() if self._now is None else self._now
        self._batch = MicroBatch(task.query, runner, self._now, ResultBuffer(*task.query.outputs))
        self._shared: _WatermarkAfter | None = None  # by all key groups
        self._done: set[int] = set()
        self._is_first_task = False

    def close(self) -> None:
        self._runner.close()

    def reached(self) -> int | None:
        return None if self._shared is None else self._shared.watermark

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
        output = self._batch.output
        for key_group in key_groups:
            self._run_group(key_group, by_group.get(key_group), observed, broadcast)
            if len(output) >= _MANY:
                yield from result_frames(output.table())
        self._leave(partition)
        yield from self._frames()

    def restore(self, initial: Mapping[str, Iterable[Any]]) -> None:
        query = self._query
        for key_group, group, stored, data in self._restored(initial):
            state = WatermarkState(query.watermarks, query.channels)
            if data is not None:
                state = WatermarkState.continued(data, query.watermarks, query.channels)
            after = _WatermarkAfter.of(state)
            group.watermark = after.watermark
            self._set_wake_up(key_group, group.loaded(), after)
            self._groups.save(label_of(key_group), group, stored, after.data, whole=True)
        self._store.settle()

    def wake_up(self, key_group: int, fired: int) -> Iterator[pd.DataFrame]:
        """Run a key group whose wake-up, a Spark timer, has fired, unless its rows have run it."""
        if key_group in self._done:
            return iter(())
        self._run_group(key_group, None, merged([]))
        if self._is_first(key_group):
            self._count_others(key_group)
        self._leave(key_group)
        return self._frames()

    def _run_group(
        self,
        key_group: int,
        rows: KeyedRows | None,
        observed: pa.Table,
        broadcast: pa.Table | None = None,
    ) -> None:
        group, stored = self._load(key_group)
        self._done.add(key_group)
        after = self._watermark_after(key_group, stored.manifest, observed)
        late_rows, watermark = group.late_rows, max(group.watermark, after.watermark)
        reached = watermark if watermark > group.watermark else None
        try:
            run_key_group(self._batch, group, rows, reached, broadcast)
        except SettledLost as e:
            group, stored = self._groups.load_again(group, e)
            run_key_group(self._batch, group, rows, reached, broadcast)
        self._mail.warn(group.notices())
        for about, message in self._runner.warnings.items():
            self._mail.warn([message], about)
        self._set_wake_up(key_group, group, after)
        writes_state = after.has_new_channels or self._is_first(key_group)
        self._groups.save(label_of(key_group), group, stored, after.data, writes_watermark=writes_state)
        late_rows = group.late_rows - late_rows
        self._metrics.add_times(watermark, after.newest, self._wall_clock)
        dropped = late_rows * (self._query.late == "drop")
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

    def _watermark_after(self, key_group: int, manifest: Manifest, observed: pa.Table) -> _WatermarkAfter:
        """Return the watermark after this micro-batch, given the group that runs now: that of the first."""
        # A group that has been in another partition may have a higher watermark.
        if self._shared is None:
            if not self._is_first(key_group):
                self._store.select(label_of(key_group % self._placement.partitions))
                manifest = self._store.read_manifest() or manifest
            self._shared = self._advance(manifest, observed, key_group % self._placement.partitions == 0)
            self._store.select(label_of(key_group))
        return self._shared

    def _advance(self, manifest: Manifest, observed: pa.Table, tells: bool) -> _WatermarkAfter:
        """Return the watermark of the selected group after this micro-batch."""
        state = self._state_of(read_watermark(manifest, self._store), manifest.watermark_stale)
        state.follow(manifest.watermark)
        limit = watermark_limit(self._query, observed)
        state.observe(observed, self._now, self._run, self._wall_clock, self._drained, limit)
        if state.ahead is not None and self._is_first_task:
            self._warn_of_rows_ahead(*state.ahead)
        self._mail.warn(state.notices)
        if tells:  # the first partition, for all
            self._metrics.channels = state.channels()
        return _WatermarkAfter.of(state)

    def _state_of(self, data: bytes, stale: bool = False) -> WatermarkState:
        query = self._query
        if data:
            return WatermarkState.from_bytes(data, query.watermarks, query.channels, stale)
        return WatermarkState(query.watermarks, query.channels)  # of new groups

    def _set_wake_up(self, key_group: int, group: KeyGroup, after: _WatermarkAfter) -> None:
        """Keep one Spark timer after now, at the time when the group has to run, or before it."""
        # The first group of a partition runs in every micro-batch, so that the metrics are those of all
        # groups. Spark would drop a timer for the time that is firing.
        now = self._now
        if now is None:
            return
        times = [after.next_change, group.next_due(event_time=False)]
        if self._is_first(key_group):
            times.append(now)
        next_ = min((time for time in times if time is not None), default=MAX_WATERMARK)
        wanted = max(next_, now) + 1 if next_ < MAX_WATERMARK else None  # MAX_WATERMARK never passes
        group.wake_up = self._store.keep_timer(group.wake_up, wanted, now)

    def _frames(self) -> Iterator[pd.DataFrame]:
        """Yield the results, and the metrics since the last call."""
        runner = self._runner
        own = declared_metrics(runner.metrics, self._query.has_metrics)
        if self._shared is not None and runner.dropped is not None:
            runner.dropped.tell(self._mail, self._shared.watermark)
        counted = self._counted(
            own, fired_timers=runner.fired_timers, out_of_order_rows=runner.out_of_order_rows
        )
        yield from result_frames(self._batch.output.table(), counted)

    def _warn_of_rows_ahead(self, channel: str | None, time: int) -> None:
        where = "" if channel is None else f" of channel {channel!r}"
        self._mail.tally(
            "rows ahead of the clock",
            "{} micro-batches so far had rows more than a day ahead of the clock, the last one a row"
            f"{where} at {shown_time(time)}, which does not advance the watermark; correct or drop such rows "
            "(a bigint is epoch milliseconds), or set the limit with WatermarkStrategy.with_max_ahead(), "
            "None for no limit",
        )
