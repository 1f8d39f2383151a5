"""The two stages of a query in real-time mode, each a task that lives as long as an epoch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from timerheap.spark._arrow import event_millis
from timerheap.spark._columns import AHEAD
from timerheap.spark._compat import TaskInput, to_arrow_schema
from timerheap.spark._exchange.codec import frames_of, key_hashes
from timerheap.spark._exchange.packed import PACKED_SCHEMA
from timerheap.spark._exchange.packer import Packer
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._exchange.unpacker import packed_pairs
from timerheap.spark._query import Query
from timerheap.spark._real_time.arrivals import Arrivals
from timerheap.spark._real_time.bursts import burst
from timerheap.spark._real_time.epoch_runner import FIRST, Epoch, location_of
from timerheap.spark._real_time.linger import to_pack, to_run
from timerheap.spark._worker.driver_mail import Mail
from timerheap.spark._worker.errors import reported_errors
from timerheap.timer import MIN_WATERMARK
from timerheap.watermarks.strategy import MAX_AHEAD

OPERATOR = "real_time_"
"""What the name of an operator in a plan begins with."""

_LONG = 3600.0


@dataclass(frozen=True)
class RealTimePacker:
    """The first stage: sends rows by partition as soon as they come, and with them their event times.

    input: of the task, with columns of these names
    by_source: whether each task is a channel of its own; in the first epoch it announces itself, so that it
        holds the watermark back before its first row
    guarded: whether times of more than a day ahead of the clock do not count
    """

    packer: Packer
    input: TaskInput
    names: list[str]
    by_source: bool
    guarded: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task: Any = TaskContext.get()
        placement, sequence = Placement.running(self.packer.max_parallelism), task.partitionId() << 32
        location_of(task)  # without it, rows do not come one by one
        arrivals = Arrivals(self.input, self.names, batches, *to_pack(task))
        timed = self.packer.event_time is not None
        is_first = task.getLocalProperty("streaming.sql.batchId") == task.getLocalProperty(FIRST)
        if self.by_source and timed and is_first:
            yield burst({}, range(placement.used), sequence, MIN_WATERMARK, 1)
        while (found := arrivals.take(_LONG)) is not None:
            if self.by_source:
                yield from (self._burst(rows, placement, sequence) for rows in found)
            else:
                yield from self.packer(iter(found))

    def _burst(self, rows: pa.RecordBatch, placement: Placement, sequence: int) -> pa.RecordBatch:
        packer, newest = self.packer, MIN_WATERMARK
        if packer.event_time is not None:
            if rows.column(packer.event_time).null_count:
                packer.untimed(rows)
                rows = rows.filter(rows.column(packer.event_time).is_valid())
            times = event_millis(rows.column(packer.event_time))
            if AHEAD in rows.schema.names:
                times = times[~rows.column(AHEAD).to_numpy(zero_copy_only=False)]
                rows = rows.drop_columns([AHEAD])
            elif self.guarded:
                times = times[times <= time.time() * 1000 + MAX_AHEAD]
            newest = int(times.max(initial=MIN_WATERMARK))
        frames: dict[int, bytes] = {}
        if rows.num_rows:
            present, blobs = frames_of([rows], [key_hashes(rows, packer.key)], placement)
            frames = dict(zip(present.tolist(), blobs.to_pylist(), strict=True))
        targets = frames if packer.event_time is None else range(placement.used)
        return burst(frames, targets, sequence, newest, rows.num_rows)


@dataclass(frozen=True)
class RealTimeOperator:
    """The second stage: runs the key groups of a partition as rows come."""

    query: Query
    input: TaskInput
    result_type: StructType
    mail: Mail
    name: str  # that tells the operator from others

    @property
    def __name__(self) -> str:
        """Return the name that Spark shows in the plan, by which the driver finds the operator again."""
        return f"{OPERATOR}{self.name}"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with reported_errors():
            epoch = Epoch(self.query, self.name, self.mail)
            waits = to_run(TaskContext.get())
            arrivals = Arrivals(self.input, PACKED_SCHEMA.names, batches, *waits)
            schema = to_arrow_schema(self.result_type)
            while (found := arrivals.take(epoch.pause())) is not None:
                results = epoch.step([pair for rows in found for pair in packed_pairs(rows)])
                if results.num_rows:
                    yield from results.cast(schema).to_batches()
            epoch.end()
