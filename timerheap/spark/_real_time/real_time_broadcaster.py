"""The stage of a query in real-time mode that sends rows to every partition, beside that of rows by key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from timerheap.spark._compat import TaskInput
from timerheap.spark._exchange.packed import packed_copies
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._real_time.arrivals import LONG, Arrivals
from timerheap.spark._real_time.broadcasts import announcement, first_position
from timerheap.spark._real_time.epoch_runner import is_first_epoch, location_of
from timerheap.spark._real_time.linger import to_pack


@dataclass(frozen=True)
class RealTimeBroadcaster:
    """Sends rows to every partition that has key groups, as soon as they come.

    input: of the task, with columns of these names
    announces: whether each task announces itself in the first epoch, in which operators wait for all tasks
    """

    max_parallelism: int | None
    input: TaskInput
    names: list[str]
    announces: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task: Any = TaskContext.get()
        location_of(task)  # without it, rows do not come one by one
        arrivals = Arrivals(self.input, self.names, batches, *to_pack(task))
        everywhere = np.arange(Placement.running(self.max_parallelism).used)
        if self.announces and is_first_epoch(task):
            yield announcement(everywhere, task.partitionId())
        position = first_position(task.partitionId())
        while (found := arrivals.take(LONG)) is not None:
            for rows in found:
                yield packed_copies(everywhere, position, pa.Table.from_batches([rows]))
                position += 1
