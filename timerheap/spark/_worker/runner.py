"""What runs key groups in a task: the methods that a feature writes, and what they are called with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from timerheap.metrics import Metrics
from timerheap.spark._arrow import KeyedRows
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._query import Query
from timerheap.spark._worker.dropped_rows import DroppedRows
from timerheap.spark._worker.output import ResultBuffer


class Runner(ABC):
    """Runs the work of a query in one task, on one key group after the other.

    The engine calls `open`, then for each key group of each micro-batch `begin`, `process` and `advance` or
    `replay` in their place, and `advance_clock`; finally `close`. Work that is always in event-time order has
    neither `process` nor `advance`.

    fired_timers: the number of timers that have fired so far
    out_of_order_rows: how many rows so far were processed ahead of timers that were due before them
    warnings: messages for the driver's log, each by what it is about, of which it logs the first
    metrics: those of the function, None if it has none
    any_order: whether `replay` takes rows in any order
    decides_lateness: whether `process` itself decides which rows are late
    dropped: the late rows that were dropped, None where nobody is told of them
    """

    any_order = False
    decides_lateness = False
    dropped: DroppedRows | None = None

    @property
    @abstractmethod
    def fired_timers(self) -> int: ...

    @property
    def out_of_order_rows(self) -> int:
        return 0

    @property
    def warnings(self) -> Mapping[str, str]:
        return {}

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


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What a task runs its key groups with in one micro-batch.

    now: the processing time in epoch ms, None in a query without
    output: receives the results
    """

    query: Query
    runner: Runner
    now: int | None
    output: ResultBuffer
