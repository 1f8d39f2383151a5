"""The two stages of a query in real-time mode, each a task that lives as long as an epoch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from timerheap.spark._arrow import event_millis
from timerheap.spark._columns import AHEAD
from timerheap.spark._compat import to_arrow_schema
from timerheap.spark._exchange.codec import frames_of, key_hashes
from timerheap.spark._exchange.packer import Packer
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._query import Query
from timerheap.spark._real_time.bursts import burst
from timerheap.spark._real_time.epoch import Epoch
from timerheap.spark._worker.driver_mail import Mail
from timerheap.spark._worker.operator import reported
from timerheap.timer import MIN_WATERMARK
from timerheap.watermarks.strategy import MAX_AHEAD

PUSH = "push"
"""The column that tells a row from the copy behind it, which makes Spark send it."""

OPERATOR = "real_time_"
"""What the name of an operator in a plan begins with."""

_LONG = 3600.0


class Arrivals:
    """The batches of an iterator that waits, read by a thread of its own."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._ended = False
        Thread(target=self._read, args=(batches,), daemon=True).start()

    def _read(self, batches: Iterator[pa.RecordBatch]) -> None:
        put = self._queue.put
        try:
            for batch in batches:
                put(batch)
            put(None)
        except BaseException as error:
            put(error)

    def take(self, timeout: float) -> list[pa.RecordBatch] | None:
        """Return the batches that have arrived, at least one unless the time is over; None at the end."""
        found: list[pa.RecordBatch] = []
        with suppress(Empty):
            while not self._ended:
                item = self._queue.get(block=not found, timeout=timeout)
                if isinstance(item, BaseException):
                    raise item
                if item is None:
                    self._ended = True
                else:
                    found.append(item)
        return found if found or not self._ended else None


def pushed(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the batches, of one row each, without the copies that pushed them out of Spark."""
    return [batch for batch in batches if not batch.column(PUSH)[0].as_py()]


@dataclass(frozen=True)
class RealTimePacker:
    """The first stage: sends rows by partition as soon as they come, and with them their event times.

    by_source: whether each task is a channel of its own; in the first epoch it announces itself, so that it
        holds the watermark back before its first row
    guarded: whether times of more than a day ahead of the clock do not count
    """

    packer: Packer
    by_source: bool
    guarded: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task: Any = TaskContext.get()
        placement, sequence = Placement.running(self.packer.max_parallelism), task.partitionId() << 32
        arrivals = Arrivals(batches)
        timed = self.packer.event_time is not None
        if self.by_source and timed and task.getLocalProperty("streaming.sql.batchId") == "0":
            yield burst({}, range(placement.used), sequence, MIN_WATERMARK, 1)
        while (found := arrivals.take(_LONG)) is not None:
            rows = [batch.drop_columns([PUSH]) for batch in pushed(found)]
            if not self.by_source:
                yield from self.packer(iter(rows))
            elif rows:
                yield self._burst(pa.concat_batches(rows), placement, sequence)

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
    result_type: StructType
    mail: Mail
    name: str  # that tells the operator from others

    @property
    def __name__(self) -> str:
        """Return the name that Spark shows in the plan, by which the driver finds the operator again."""
        return f"{OPERATOR}{self.name}"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrivals = Arrivals(batches)
        with reported():
            epoch = Epoch(self.query, self.name, self.mail)
            schema = to_arrow_schema(self.result_type)
            while (found := arrivals.take(epoch.pause())) is not None:
                packed = (
                    (batch.column("sequence")[0].as_py(), batch.column("blob")[0].as_py())
                    for batch in pushed(found)
                )
                results = epoch.step(list(packed))
                if results.num_rows:
                    yield from results.cast(schema).to_batches()
            epoch.end()
