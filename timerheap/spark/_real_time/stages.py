"""The two stages of a query in real-time mode, each a task that lives as long as an epoch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.types import StructType

from timerheap.spark._arrow import event_millis
from timerheap.spark._columns import AHEAD, INPUT, MARK, SEEN
from timerheap.spark._compat import TaskInput
from timerheap.spark._exchange.codec import frames_of, key_hashes
from timerheap.spark._exchange.followed_watermarks import UNBOUNDED
from timerheap.spark._exchange.packed import PACKED_SCHEMA
from timerheap.spark._exchange.packer import Packer, Reducer
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._exchange.unpacker import packed_pairs
from timerheap.spark._query import Query
from timerheap.spark._real_time.arrivals import LONG, Arrivals
from timerheap.spark._real_time.bursts import Seen, burst
from timerheap.spark._real_time.epoch_runner import (
    WITH_FOLLOWERS,
    Epoch,
    is_first_epoch,
    location_of,
)
from timerheap.spark._real_time.linger import to_pack, to_run
from timerheap.spark._real_time.senders import PlaceInQuery
from timerheap.spark._real_time.sent_rows import Sent
from timerheap.spark._worker.driver_mail import Mail
from timerheap.spark._worker.errors import reported_errors
from timerheap.timer import MIN_WATERMARK
from timerheap.watermarks.strategy import MAX_AHEAD

OPERATOR = "real_time_"
"""What the name of an operator in a plan begins with."""


@dataclass(frozen=True)
class RealTimePacker:
    """The first stage: sends rows by partition as soon as they come, and with them their event times.

    input: of the task, with columns of these names
    by_source: whether each task is a channel of its own; in the first epoch it announces itself, so that it
        holds the watermark back before its first row
    follows: whether the channel has the watermark of the operators before it, which rows with `MARK` tell
    guarded: for each input, whether times of more than a day ahead of the clock do not count
    """

    packer: Packer
    input: TaskInput
    names: list[str]
    by_source: bool
    follows: bool
    guarded: tuple[bool, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task: Any = TaskContext.get()
        placement, sequence = Placement.running(self.packer.max_parallelism), task.partitionId() << 32
        location_of(task)  # without it, rows do not come one by one
        arrivals = Arrivals(self.input, self.names, batches, *to_pack(task))
        timed = self.packer.event_time is not None
        if self.by_source and timed and is_first_epoch(task):
            announced = [Seen(MIN_WATERMARK, 1)] * len(self.guarded)
            yield burst({}, range(placement.used), sequence, announced)
        reducer = None if self.packer.reduce is None else self.packer.reduce()
        while (found := arrivals.take(LONG)) is not None:
            if self.by_source or self.follows:
                yield from (self._burst(rows, placement, sequence, reducer) for rows in found)
            else:
                yield from self.packer(iter(found))

    def _burst(
        self, rows: pa.RecordBatch, placement: Placement, sequence: int, reducer: Reducer | None
    ) -> pa.RecordBatch:
        packer = self.packer
        if self.follows:
            marks = rows.column(MARK)
            rows = rows.filter(marks.is_null()).drop_columns([MARK])
            marked = marks.null_count < len(marks)
            seen = [Seen(pc.max(marks).as_py() if marked else MIN_WATERMARK, int(marked))] * len(self.guarded)
        if packer.times and rows.column(packer.event_time).null_count:
            packer.untimed(rows)
            rows = rows.filter(rows.column(packer.event_time).is_valid())
        if not self.follows:
            seen = self._seen(rows)
        rows = packer.sent(rows)
        frames: dict[int, bytes] = {}
        if rows.num_rows:
            if reducer is not None:
                reducer.add(rows, key_hashes(rows, packer.key))
                rows = reducer.drain()
            present, blobs = frames_of([rows], [key_hashes(rows, packer.key)], placement)
            frames = dict(zip(present.tolist(), blobs.to_pylist(), strict=True))
        targets = frames if packer.event_time is None else range(placement.used)
        return burst(frames, targets, sequence, seen)

    def _seen(self, rows: pa.RecordBatch) -> list[Seen]:
        """Return the largest event time of each input, and how many rows it has here."""
        names, n = rows.schema.names, len(self.guarded)
        if self.packer.event_time is None:
            return [Seen(MIN_WATERMARK, rows.num_rows)] * n
        inputs = rows.column(INPUT).to_numpy() if n > 1 else np.zeros(rows.num_rows, np.int8)
        counts = np.bincount(inputs, minlength=n).tolist()
        column = rows.column(SEEN if SEEN in names else self.packer.event_time)
        keep = ~rows.column(AHEAD).to_numpy(zero_copy_only=False) if AHEAD in names else np.True_
        if column.null_count:
            keep = keep & column.is_valid().to_numpy(zero_copy_only=False)
            column = column.fill_null(pa.scalar(0).cast(column.type))
        times = event_millis(column)
        if any(self.guarded):
            ahead = times > time.time() * 1000 + MAX_AHEAD
            keep = keep & ~(ahead & np.array(self.guarded)[inputs])
        times = np.where(keep, times, MIN_WATERMARK)
        newest = [int(times[inputs == each].max(initial=MIN_WATERMARK)) for each in range(n)]
        return [Seen(*pair) for pair in zip(newest, counts, strict=True)]


@dataclass(frozen=True)
class RealTimeOperator:
    """The second stage: runs the key groups of a partition as rows come."""

    query: Query
    input: TaskInput
    result_type: StructType
    mail: Mail
    name: str  # that tells the operator from others
    place: PlaceInQuery

    @property
    def __name__(self) -> str:
        """Return the name that Spark shows in the plan, by which the driver finds the operator again."""
        return f"{OPERATOR}{self.name}"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with reported_errors():
            task: Any = TaskContext.get()
            epoch = Epoch(self.query, self.name, self.mail, self.place)
            is_followed = self.name in task.getLocalProperty(WITH_FOLLOWERS).split()
            if is_followed and self.query.work.results_behind is None:
                self.mail.warn([UNBOUNDED], "unbounded results")
            sent = Sent(self.result_type, is_followed=is_followed)
            yield from sent.batches(None, epoch.reached)
            arrivals = Arrivals(self.input, PACKED_SCHEMA.names, batches, *to_run(task))
            while (found := arrivals.take(epoch.pause())) is not None:
                results = epoch.step([pair for rows in found for pair in packed_pairs(rows)])
                yield from sent.batches(results, epoch.reached)
            while epoch.is_behind:
                yield from sent.batches(epoch.step([]), epoch.reached)
            epoch.end()
            yield sent.metrics(epoch.metrics())
