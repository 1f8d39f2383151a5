"""One shuffle partition of a StatefulProcessor in one micro-batch: all rows, then all timers that are due."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from timerheap.spark._exchange.placement import Placement, label_of
from timerheap.spark._exchange.unpack import HashedRows, Part, by_key_group, unpack
from timerheap.spark._group.checkpoint import Stored
from timerheap.spark._group.manifest import Manifest
from timerheap.spark._group.watermark import WatermarkState
from timerheap.spark._query import ProcessorWork, Query
from timerheap.spark._worker.live_groups import LiveGroups
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.processor_runner import BoundGroup, ProcessorRunner
from timerheap.spark._worker.result_frames import flat_frames, result_frames
from timerheap.spark._worker.spark_store import SparkStore
from timerheap.spark._worker.task_metrics import TaskMetrics
from timerheap.timer import MIN_WATERMARK

__all__ = ["ProcessorBatch", "initial_query"]

_log = logging.getLogger("timerheap")


def initial_query(query: Query, work: ProcessorWork) -> Query:
    """Return the query whose rows are those of the initial state."""
    assert work.initial is not None
    return replace(query, rows=work.initial, key=list(work.initial_key))


@dataclass(eq=False)
class _Open:
    """A key group that has been loaded and is to be saved."""

    label: int
    bound: BoundGroup
    stored: Stored


class ProcessorBatch:
    """Runs the key groups of one partition in one micro-batch.

    Spark calls the operator for the rows of a partition, then for its timers of Spark's. Whichever call comes
    first runs everything that is due in the partition, so that timers fire in the order of their timestamps
    across its key groups. A key group has one timer of Spark's, at the first of its own or before it. The
    first key group of a partition has one right after now: it runs in every micro-batch, so that the metrics
    are those of all groups.

    Rows are late if their event time is not after the watermark of the micro-batch before, which Spark does
    not tell. So the first key group of a partition, which sees each watermark, keeps the last one.

    Parameters
    ----------
    query : Query
    work : ProcessorWork
    placement : Placement
    store : SparkStore
    groups : LiveGroups
    timer_values : TimerValues
        The times of the micro-batch.
    """

    def __init__(
        self,
        query: Query,
        work: ProcessorWork,
        placement: Placement,
        store: SparkStore,
        groups: LiveGroups,
        timer_values: Any,
    ) -> None:
        self._query = query
        self._work = work
        self._placement = placement
        self._store = store
        self._groups = groups
        self._watermark: int = timer_values.getCurrentWatermarkInMs()
        self._follows = query.time_mode == "EventTime"
        self._now = self._watermark if self._follows else timer_values.getCurrentProcessingTimeInMs()
        self._timed = query.time_mode != "None"
        self._output = ResultBuffer(query.result_schema)
        self._runner = ProcessorRunner(work, query, timer_values, self._output)
        self._runner.open()
        self._done: set[int] = set()  # the partitions that have been run
        self._metrics = TaskMetrics()
        self._late_rows = 0

    def run(
        self, partition: int, parts: list[Part], observed: pa.Table, at: int | None
    ) -> Iterator[pd.DataFrame]:
        """Process the rows of a partition and fire its due timers."""
        return self._run(partition, parts, label_of(partition))

    def wake_up(self, key_group: int, fired: int) -> Iterator[pd.DataFrame]:
        """Fire the due timers in the partition of a key group whose timer of Spark's has fired.

        Parameters
        ----------
        key_group : int
        fired : int
            The timestamp of that timer, which Spark removes afterwards.
        """
        partition = key_group % self._placement.partitions
        if partition not in self._done:
            return self._run(partition, [], label_of(key_group), fired)
        self._store.select(label_of(key_group))
        manifest = self._store.read_manifest()
        if manifest is not None and self._is_due(manifest):
            # A timer is due and waits for the next micro-batch. From now on Spark's waits for that, too.
            self._store.register_timer(self._now if fired != self._now else self._now - 1)
        self._store.settle()
        return iter(())

    def restore(self, packed: Iterable[tuple[int, bytes]]) -> None:
        """Pass the rows of the initial state to the processor."""
        initial = initial_query(self._query, self._work)
        parts, _ = unpack(initial, packed)
        by_group = by_key_group(parts)
        opened = {group: self._open(group) for group in sorted(by_group)}
        self._runner.initialise([(opened[group].bound, rows) for group, rows in by_group.items()], initial)
        for each in opened.values():
            self._save(each, each.bound.group.watermark, firing=None, first=False)
        self._store.settle()

    def close(self) -> None:
        """End the task."""
        self._runner.close()

    def _run(
        self, partition: int, parts: list[Part], label: int, fired: int | None = None
    ) -> Iterator[pd.DataFrame]:
        """Process rows and fire due timers, then select the label that Spark has called."""
        self._done.add(partition)
        by_group = by_key_group(parts)
        self._store.ask_for_manifests(map(label_of, self._placement.key_groups(partition)))
        others = self._others(partition, set(by_group))
        due = {group for group, manifest in others.items() if self._is_due(manifest)}
        seen = max((manifest.watermark for manifest in others.values()), default=MIN_WATERMARK)
        opened = {group: self._open(group) for group in sorted({*by_group, *due})}
        if self._follows:
            seen = max([seen, *(each.bound.group.watermark for each in opened.values())])
        if self._timed and partition not in opened:
            opened[partition] = self._open(partition)
        bound = {group: each.bound for group, each in opened.items()}
        rows = [(bound[group], self._timely(rows, seen, bound[group])) for group, rows in by_group.items()]
        self._runner.process([(group, some) for group, some in rows if len(some.hashes)])
        if self._timed:
            self._runner.fire(list(bound.values()), self._now)
        for group, each in opened.items():
            self._save(each, max(seen, self._watermark), fired, first=group == partition)
        held = {group: each.stored.manifest for group, each in opened.items()}
        for manifest in {**others, **held}.values():
            self._metrics.add_group(manifest)
        self._store.select(label)
        self._store.settle()
        frames = flat_frames if self._work.has_event_time else result_frames
        return frames(self._output.table(), self._counted())

    def _others(self, partition: int, known: set[int]) -> dict[int, Manifest]:
        """Return what is stored of the key groups of a partition that have no rows."""
        found = {}
        for key_group in self._placement.key_groups(partition):
            if key_group not in known:
                self._store.select(label_of(key_group))
                found[key_group] = self._store.read_manifest() or Manifest(self._placement.max_parallelism)
        return found

    def _is_due(self, manifest: Manifest) -> bool:
        return self._timed and manifest.wake_up is not None and manifest.wake_up <= self._now

    def _counted(self) -> str:
        """Return the metrics since the last call."""
        counts = self._groups.counts
        if self._watermark > 0:  # Spark's begins at 0, and is -1 in other time modes
            self._metrics.add_times(self._watermark, MIN_WATERMARK, time.time_ns() // 1_000_000)
        self._metrics.add_totals(
            fired_timers=self._runner.fired_timers,
            late_rows=self._late_rows,
            dropped_rows=self._late_rows,
            out_of_order_rows=0,
            groups_handed_over=counts.handed_over,
            groups_loaded=counts.loaded,
        )
        self._metrics.add(max_parallelism=self._placement.max_parallelism)
        return self._metrics.take()

    def _open(self, key_group: int) -> _Open:
        label = label_of(key_group)
        self._store.select(label)
        group, stored = self._groups.load(label)
        return _Open(label, self._runner.bind(group), stored)

    def _timely(self, rows: HashedRows, seen: int, bound: BoundGroup) -> HashedRows:
        """Return the rows that are not late."""
        if not (self._follows and self._work.event_time):
            return rows
        late = late_rows(rows.rows, self._work.event_time, max(seen, 0))  # Spark's watermark begins at 0
        if not late.any():
            return rows
        count = int(late.sum())
        bound.group.late_rows += count
        self._late_rows += count
        _log.warning("dropped %d late rows", count)
        return HashedRows(rows.rows.filter(pa.array(~late)), rows.hashes[~late], rows.timestamps[~late])

    def _save(self, each: _Open, watermark: int, firing: int | None, first: bool) -> None:
        """Save a key group.

        Parameters
        ----------
        each : _Open
        watermark : int
            The last watermark that the partition has seen.
        firing : int or None
            The timestamp of the timer of Spark's that fires now; None in the row phase.
        first : bool
            Whether the group has to see the next watermark.
        """
        self._store.select(each.label)
        self._runner.purge(each.bound)
        group = each.bound.group
        group.watermark = watermark
        if self._timed:
            self._set_wake_up(each.bound, firing, first)
        group.forget_dead_keys()
        clock = WatermarkState((), ())
        clock.follow(watermark)
        self._groups.save(each.label, group, each.stored, clock.to_bytes())

    def _set_wake_up(self, bound: BoundGroup, firing: int | None, first: bool) -> None:
        """Keep one timer of Spark's at the next timer of the group, or before it.

        A timer that is due already waits for the next micro-batch. In the row phase, Spark's timer for it
        would fire at once: `wake_up` then sets it again.
        """
        now, group = self._now, bound.group
        wanted = group.next_due(self._query.time_mode == "EventTime")
        if first:
            wanted = now + 1 if wanted is None else min(wanted, now + 1)
        if wanted is not None and wanted <= now:
            wanted = now if firing != now else now - 1
        group.wake_up = self._store.keep_timer(group.wake_up, wanted, now)


def late_rows(rows: pa.RecordBatch, event_time: tuple[str, ...], watermark: int) -> np.ndarray:
    """Return which rows have an event time up to a watermark in ms, shape (n,); null is not late."""
    name, *fields = event_time
    column = rows.column(name)
    for inner in fields:
        column = pc.struct_field(column, inner)
    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    late: np.ndarray = pc.less_equal(micros, watermark * 1000).fill_null(False).to_numpy(zero_copy_only=False)
    return late
