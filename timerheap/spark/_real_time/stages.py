"""The two stages of a query in real-time mode, each a task that lives as long as an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.types import StructType

from timerheap.spark._columns import CHANNEL
from timerheap.spark._compat import to_arrow_schema
from timerheap.spark._exchange.codec import OBSERVED
from timerheap.spark._exchange.packer import OBSERVATION, Packer, packed_copies
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._query import Query
from timerheap.spark._real_time.epoch import Epoch
from timerheap.spark._worker.driver_mail import Mail
from timerheap.spark._worker.operator import reported

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
    """Return the rows of batches without the copies that pushed them out of Spark."""
    if not batches:
        return []
    table = pa.Table.from_batches(batches)
    at = table.schema.get_field_index(PUSH)
    rows = table.filter(pc.equal(table.column(at), 0)).remove_column(at)
    return list(rows.combine_chunks().to_batches())


@dataclass(frozen=True)
class RealTimePacker:
    """The first stage: sends rows by partition as soon as they come, and after them their event times.

    by_source: whether each task is a channel of its own; in the first epoch it announces itself, so that it
        holds the watermark back before its first row
    """

    packer: Packer
    by_source: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack the rows of an epoch."""
        task: Any = TaskContext.get()
        source = str(task.partitionId())
        arrivals = Arrivals(batches)
        if self.by_source and task.getLocalProperty("streaming.sql.batchId") == "0":
            announced = pa.table([[0], [source], [None], [1]], schema=OBSERVED)
            everywhere = np.arange(Placement.running(self.packer.max_parallelism).used)
            yield packed_copies(everywhere, OBSERVATION, announced)
        while (found := arrivals.take(_LONG)) is not None:
            rows = pushed(found)
            if self.by_source:
                names = [pa.array([source] * len(batch), pa.string()) for batch in rows]
                rows = [b.append_column(CHANNEL, name) for b, name in zip(rows, names, strict=True)]
            yield from self.packer(iter(rows))


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
        """Run an epoch."""
        arrivals = Arrivals(batches)
        with reported():
            epoch = Epoch(self.query, self.name, self.mail)
            schema = to_arrow_schema(self.result_type)
            while (found := arrivals.take(epoch.pause())) is not None:
                packed: list[tuple[int, bytes]] = []
                for batch in pushed(found):
                    columns = (batch.column(name).to_pylist() for name in ("sequence", "blob"))
                    packed += zip(*columns, strict=True)
                results = epoch.step(packed)
                if results is not None and results.num_rows:
                    yield from results.cast(schema).to_batches()
            epoch.end()
