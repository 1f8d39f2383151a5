"""One shuffle partition in one micro-batch: all of its key groups, and Spark's timers that wake them up."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa

from timerheap.spark._exchange.observed import merged
from timerheap.spark._exchange.placement import Placement, label_of
from timerheap.spark._exchange.unpack import HashedRows, Part, by_key_group
from timerheap.spark._group.checkpoint import read_clock
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.manifest import Manifest
from timerheap.spark._group.resplit import restore
from timerheap.spark._group.watermark import WatermarkState
from timerheap.spark._query import Query
from timerheap.spark._worker.driver_mail import Mail
from timerheap.spark._worker.key_group_batch import run_key_group
from timerheap.spark._worker.live_groups import LiveGroups
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.result_frames import result_frames
from timerheap.spark._worker.runner import Runner
from timerheap.spark._worker.spark_store import SparkStore
from timerheap.spark._worker.task_metrics import TaskMetrics
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK

__all__ = ["PartitionBatch"]

_MANY = 1 << 12  # results, for which a DataFrame of their own is worth its cost


class _Clock(NamedTuple):
    """The clock of all key groups of a partition after a micro-batch.

    Parameters
    ----------
    watermark, newest : int
        The watermark, and the largest event time so far.
    next_change : int or None
        When it changes without rows.
    data : bytes
        What a load needs.
    has_new_channels : bool
        Whether the micro-batch has added channels.
    """

    watermark: int
    newest: int
    next_change: int | None
    data: bytes
    has_new_channels: bool

    @classmethod
    def of(cls, state: WatermarkState) -> _Clock:
        """Return the clock of a state."""
        data, new = state.to_bytes(), state.has_new_channels
        return cls(state.watermark, state.newest(), state.next_change(), data, new)


class PartitionBatch:
    """Runs the key groups of one partition in one micro-batch, each at most once.

    Parameters
    ----------
    query : Query
    placement : Placement
    runner : Runner
    store : SparkStore
    groups : LiveGroups
    mail : Mail
    run : str or None
        Run of the query.
    timer_values : TimerValues
        The times of the micro-batch.
    """

    def __init__(
        self,
        query: Query,
        placement: Placement,
        runner: Runner,
        store: SparkStore,
        groups: LiveGroups,
        mail: Mail,
        run: str | None,
        timer_values: Any,
    ) -> None:
        self._query = query
        self._placement = placement
        self._runner = runner
        self._store = store
        self._groups = groups
        self._mail = mail
        self._run = run
        self._follows = query.time_mode == "EventTime"
        clocked = query.time_mode == "ProcessingTime"
        self._now: int | None = timer_values.getCurrentProcessingTimeInMs() if clocked else None
        self._wall_clock = time.time_ns() // 1_000_000 if self._now is None else self._now
        # Rows at Spark's watermark may still come; rows at ours may not.
        self._watermark: int | None = timer_values.getCurrentWatermarkInMs() - 1 if self._follows else None
        self._at = self._now
        self._shared: _Clock | None = None  # by all key groups
        self._done: set[int] = set()
        self._metrics = TaskMetrics()

    def run(
        self,
        partition: int,
        parts: list[Part],
        observed: pa.Table,
        at: int | None,
        broadcast: pa.Table | None = None,
    ) -> Iterator[pd.DataFrame]:
        """Run the key groups of a partition: all that its rows or the watermark may change.

        Spark's own watermark changes a group only with a timer of Spark's, see `wake_up`. The first group is
        always run, so that a partition tells the max_parallelism that its groups were made for. Many results
        are sent before the next group runs, so that Spark writes them meanwhile. The micro-batch is that of
        the time `at`.
        """
        self._at = at
        by_group = by_key_group(parts)
        key_groups = self._placement.key_groups(partition)
        self._store.ask_for_manifests(map(label_of, key_groups))
        due = sorted({partition, *by_group}) if self._follows else key_groups
        output = ResultBuffer(*self._query.outputs)
        for key_group in due:
            self._run_group(key_group, by_group.get(key_group), observed, output, broadcast)
            if len(output) >= _MANY:
                yield from result_frames(output.table())
                output = ResultBuffer(*self._query.outputs)
        self._count_others(partition)
        self._store.select(label_of(partition))  # as Spark had left it
        self._store.settle()
        yield from self._frames(output)

    def restore(self, rows: Iterable[tuple[int, bytes | None, bytes | None]]) -> None:
        """Load the state of another query into key groups: their clocks, and contents of `split`."""
        by_group: dict[int, list[tuple[bytes | None, bytes | None]]] = {}
        for key_group, data, contents in rows:
            by_group.setdefault(key_group, []).append((data, contents))
        for key_group, pairs in sorted(by_group.items()):
            label = label_of(key_group)
            self._store.select(label)
            group, stored = self._groups.load(label)
            stored_clock = next((data for data, _ in pairs if data), stored.read_clock(self._store))
            for _, contents in pairs:
                if contents:
                    restore(group, contents)
            clock = _Clock.of(self._clock_state(stored_clock))
            group.watermark = clock.watermark
            self._set_wake_up(key_group, group.loaded(), clock)
            self._groups.save(label, group, stored, clock.data, whole=True)
        self._store.settle()

    def wake_up(self, key_group: int) -> Iterator[pd.DataFrame]:
        """Run a key group whose wake-up, a timer of Spark's, has fired, unless its rows have run it."""
        if key_group in self._done:
            return iter(())
        output = ResultBuffer(*self._query.outputs)
        self._run_group(key_group, None, merged([]), output)
        if self._is_first(key_group):
            self._count_others(key_group)
            self._store.select(label_of(key_group))
        self._store.settle()
        return self._frames(output)

    def _run_group(
        self,
        key_group: int,
        rows: HashedRows | None,
        observed: pa.Table,
        output: ResultBuffer,
        broadcast: pa.Table | None = None,
    ) -> None:
        label = label_of(key_group)
        self._store.select(label)
        group, stored = self._groups.load(label)
        self._done.add(key_group)
        clock = self._clock_for(key_group, stored.manifest, observed)
        late_rows, watermark = group.late_rows, max(group.watermark, clock.watermark)
        run_key_group(self._query, self._runner, group, rows, self._now, watermark, output, broadcast)
        self._mail.warn(group.notices())
        if self._runner.rows_ahead.first is not None:
            self._mail.warn([self._runner.rows_ahead.first], "rows ahead")
        self._set_wake_up(key_group, group, clock)
        group.forget_dead_keys()
        writes_clock = clock.has_new_channels or self._is_first(key_group)
        self._groups.save(label, group, stored, clock.data, writes_clock=writes_clock)
        late_rows = group.late_rows - late_rows
        self._metrics.add_times(watermark, clock.newest, self._wall_clock)
        self._metrics.add(late_rows=late_rows, dropped_rows=late_rows * (self._query.late == "drop"))
        self._metrics.add_group(stored.manifest)

    def _is_first(self, key_group: int) -> bool:
        """Return whether a key group is the first of its partition."""
        return key_group < self._placement.partitions

    def _count_others(self, partition: int) -> None:
        """Add to the metrics what those key groups hold that this task does not run."""
        for key_group in self._placement.key_groups(partition):
            if key_group in self._done:
                continue
            self._store.select(label_of(key_group))
            manifest = self._store.read_manifest() or Manifest(self._placement.max_parallelism)
            if manifest.wake_up is None or manifest.wake_up > self._over:
                self._metrics.add_group(manifest)

    @property
    def _over(self) -> int:
        """The time up to which Spark's timers fire in this micro-batch."""
        if self._now is not None:
            return self._now
        return MIN_WATERMARK if self._watermark is None else self._watermark + 1

    def _clock_for(self, key_group: int, manifest: Manifest, observed: pa.Table) -> _Clock:
        """Return the clock after this micro-batch, given the group that runs now: that of the first group.

        A group that has been in another partition may have a higher watermark.
        """
        if self._shared is None:
            if not self._is_first(key_group):
                self._store.select(label_of(key_group % self._placement.partitions))
                manifest = self._store.read_manifest() or manifest
            self._shared = self._advance(manifest, observed)
            self._store.select(label_of(key_group))
        return self._shared

    def _advance(self, manifest: Manifest, observed: pa.Table) -> _Clock:
        """Return the clock of the selected group after this micro-batch."""
        state = self._clock_state(read_clock(manifest, self._store.read), manifest.clock_stale)
        state.follow(manifest.watermark)
        if self._watermark is not None:
            state.follow(self._watermark)
        else:
            state.observe(observed, self._now, self._run, self._at)
        self._mail.warn(state.notices)
        return _Clock.of(state)

    def _clock_state(self, data: bytes, stale: bool = False) -> WatermarkState:
        query = self._query
        if data:
            return WatermarkState.from_bytes(data, query.watermarks, query.channels, stale)
        return WatermarkState(query.watermarks, query.channels)  # of new groups

    def _set_wake_up(self, key_group: int, group: KeyGroup, clock: _Clock) -> None:
        """Keep one timer of Spark's after now, at the time when the group has to run, or before it.

        The first group of a partition runs in every micro-batch, so that the metrics are those of all groups.
        Spark would drop a timer for the time that is firing.
        """
        if self._query.time_mode == "None":
            return
        now = self._now
        window = None if group.slices is None else group.slices.windows.next_timer()
        if now is None:  # Spark fires a timer once its watermark is above it
            times, after, over = [window], 0, group.watermark + 1
        else:
            times = [clock.next_change, group.next_due(event_time=False)]
            times += [] if self._query.event_time is not None else [window]
            after, over = 1, now
        if self._is_first(key_group):
            times.append(over)
        next_ = min((time for time in times if time is not None), default=MAX_WATERMARK)
        wanted = max(next_ + after, over + 1) if next_ < MAX_WATERMARK else None  # MAX_WATERMARK never passes
        group.wake_up = self._store.keep_timer(group.wake_up, wanted, over)

    def _frames(self, output: ResultBuffer) -> Iterator[pd.DataFrame]:
        """Yield the results, and the metrics since the last call."""
        own = self._runner.metrics
        if own is not None and not self._query.has_metrics:
            raise RuntimeError(
                "get_metrics_group() must be called in open(), also on the driver, which then knows that the "
                "function has metrics; move the call there, before any check of TaskContext.get()"
            )
        counts = self._groups.counts
        self._metrics.add_totals(
            fired_timers=self._runner.fired_timers,
            out_of_order_rows=self._runner.rows_ahead.count,
            groups_handed_over=counts.handed_over,
            groups_loaded=counts.loaded,
        )
        self._metrics.add(max_parallelism=self._placement.max_parallelism)
        yield from result_frames(output.table(), self._metrics.take(own))
