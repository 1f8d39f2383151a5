"""One shuffle partition of a StatefulProcessor in one micro-batch: all rows, then all timers that are due."""

from __future__ import annotations

import logging
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
from timerheap.spark._group.processor_work import ProcessorWork
from timerheap.spark._group.query import Query
from timerheap.spark._group.watermark import WatermarkState
from timerheap.spark._worker.live_groups import LiveGroups
from timerheap.spark._worker.output import ResultBuffer, frame
from timerheap.spark._worker.processor_runner import BoundGroup, ProcessorRunner
from timerheap.spark._worker.spark_store import SparkStore
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
    across its key groups. A key group has one timer of Spark's, at the first of its own or before it.

    Rows are late if their event time is not after the watermark of the micro-batch before, which Spark does
    not tell. So the first key group of a partition keeps the watermark that it has seen last, and has a timer
    of Spark's right after it: it sees each watermark.

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

    def run(self, partition: int, parts: list[Part], observed: pa.Table) -> Iterator[pd.DataFrame]:
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
        if manifest is not None and manifest.wake_up is not None and manifest.wake_up <= self._now:
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
        seen, due = self._survey(partition, set(by_group)) if self._timed else (MIN_WATERMARK, set())
        opened = {group: self._open(group) for group in sorted({*by_group, *due})}
        if self._follows:
            seen = max([seen, *(each.bound.group.watermark for each in opened.values())])
            if partition not in opened and seen < self._watermark:
                opened[partition] = self._open(partition)
        bound = {group: each.bound for group, each in opened.items()}
        rows = [(bound[group], self._timely(rows, seen, bound[group])) for group, rows in by_group.items()]
        self._runner.process([(group, some) for group, some in rows if len(some.hashes)])
        if self._timed:
            self._runner.fire(list(bound.values()), self._now)
        for group, each in opened.items():
            self._save(each, max(seen, self._watermark), fired, first=self._follows and group == partition)
        self._store.select(label)
        self._store.settle()
        return map(frame, self._output.table().to_batches())

    def _survey(self, partition: int, known: set[int]) -> tuple[int, set[int]]:
        """Return the last watermark that key groups without rows have seen, and those with due timers."""
        seen, due = MIN_WATERMARK, set()
        for key_group in self._placement.key_groups(partition):
            if key_group in known:
                continue
            self._store.select(label_of(key_group))
            manifest = self._store.read_manifest()
            if manifest is None:
                continue
            seen = max(seen, manifest.watermark)
            if manifest.wake_up is not None and manifest.wake_up <= self._now:
                due.add(key_group)
        return seen, due

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
        bound.group.late_rows += int(late.sum())
        _log.warning("dropped %d late rows", late.sum())
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
        wanted = bound.next_timer()
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
