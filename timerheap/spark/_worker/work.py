"""What a feature hands the engine: the work of a query, and what runs it in a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from timerheap._native._core import IdIndex
from timerheap.metrics import Metrics
from timerheap.spark._arrow import KeyedRows
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._query import Query
from timerheap.spark._worker.driver_mail import Mail
from timerheap.spark._worker.live_groups import LiveGroups
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.rehearsal import Rehearsal
from timerheap.spark._worker.spark_store import SparkStore


@dataclass(frozen=True)
class Task:
    """One task of a micro-batch.

    `run` is the run of the query, and `timer_values` are the times of the micro-batch. The sources are
    `drained` if the run before it has read all rows that there were.
    """

    query: Query
    placement: Placement
    store: SparkStore
    groups: LiveGroups
    mail: Mail
    run: str | None
    timer_values: Any
    drained: bool


class Work(ABC):
    """What a query runs; a feature has a class of its own, in the module of what runs it in a worker.

    It is pickled with the query, so it is data.
    """

    def rehearse(
        self, query: Query, max_parallelism: int, group: KeyGroup | None, streaming: bool
    ) -> Rehearsal:
        """Run on the driver what only a worker would otherwise find wrong.

        group: one with the keys and states that the query starts from, None without any
        """
        return Rehearsal()

    @abstractmethod
    def partition(self, task: Task) -> TaskPartition:
        """Return what runs the key groups of a partition in a micro-batch of a stream."""

    @abstractmethod
    def batch(self, query: Query, packed: pa.Table, initial: pa.Table | None, mail: Mail) -> ResultBuffer:
        """Return the results of one partition of a batch DataFrame.

        packed, initial: rows as the pack stage has sent them, those of the input and those to start with
        """


class TaskPartition(ABC):
    """The key groups of one partition in one micro-batch of a stream."""

    @abstractmethod
    def run(self, partition: int, packed: list[tuple[int, bytes]]) -> Iterator[pd.DataFrame]:
        """Process what the pack stage has sent to a partition; yield the results."""

    @abstractmethod
    def restore(self, initial: Mapping[str, Iterable[Any]]) -> None:
        """Load what Spark passes of the state to start from."""

    @abstractmethod
    def wake_up(self, key_group: int, fired: int) -> Iterator[pd.DataFrame]:
        """Process a key group whose Spark timer for the time `fired` has fired; yield the results."""

    @abstractmethod
    def close(self) -> None:
        """End the task."""


class Runner(ABC):
    """Runs the work of a query in one task, on one key group after the other.

    The engine calls `open`, then for each key group of each micro-batch `begin`, `process` and `advance` or
    `replay` in their place, and `advance_clock`; finally `close`.

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

    @abstractmethod
    def process(self, rows: KeyedRows, watermark: int) -> None:
        """Process rows in the order of arrival; `watermark` follows, so that timers up to it are due."""

    @abstractmethod
    def replay(self, rows: KeyedRows, order: np.ndarray, watermark: int) -> None:
        """Process rows in event-time order, fire timers between them, and advance to `watermark`.

        The watermark is t - 1 while rows of timestamp t are processed.

        order (int64, shape (n,)): the positions of the rows to process, in event-time order; there may be
            other rows
        """

    @abstractmethod
    def advance(self, watermark: int) -> None:
        """Advance the watermark, and fire the event-time timers that it passes."""

    @abstractmethod
    def advance_clock(self, now: int) -> None:
        """Fire the processing-time timers before `now`."""


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
        ids, timestamps = (np.concatenate(pair) for pair in zip(before, self.due(), strict=True))
        if not len(ids):
            return
        latest_first = np.argsort(timestamps)[::-1]
        earliest = IdIndex()
        earliest.put_many(ids[latest_first], timestamps[latest_first])  # of an id the last value stays
        timers, found = earliest.find_many(rows.ids)
        ahead = np.flatnonzero(found & (timers < rows.timestamps))
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
