"""The stage before the exchange: rows packed into one blob for each shuffle partition.

A stateful operator in Python has a cost per group and per row of its input, so it is fast with few, large
rows: Spark sees one group per partition. The stage has no state between micro-batches. Beside the rows it
sends what it has observed of their event times.

What a task sends depends on its rows alone. After a lost executor tasks are run again, and Spark ends a query
whose tasks then send anything else, since other tasks may have used what the first attempt sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from timerheap.errors import ArgumentValueError
from timerheap.spark._arrow import event_millis
from timerheap.spark._columns import AHEAD, CHANNEL, INPUT, KEPT, SEEN, shown_name
from timerheap.spark._exchange.codec import frames_of, key_hashes
from timerheap.spark._exchange.followed_watermarks import FollowedWatermarks
from timerheap.spark._exchange.observed_times import counted, merged, observed
from timerheap.spark._exchange.packed import OBSERVATION, packed_blobs, packed_copies
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._exchange.reached import take
from timerheap.spark._frozen_modules import freeze_modules
from timerheap.spark._query import NullTime, TimeColumn

_ROWS = 1 << 19
_BYTES = 64 << 20


class Reducer(Protocol):
    """Aggregates rows into fewer."""

    def add(self, rows: pa.RecordBatch, hashes: np.ndarray) -> None:
        """Add rows, with the hashes of their keys."""

    def drain(self) -> pa.RecordBatch:
        """Remove all rows, and return those they have become, with `HASH`."""


@dataclass(frozen=True)
class Packer:
    """The function of the stage (``mapInArrow``)."""

    key: str  # the key column, if the rows come without `HASH`
    event_time: str | None
    max_parallelism: int | None  # None: the default for the number of partitions
    times: tuple[TimeColumn, ...] = ()  # what `event_time` is called, for each input; without, it may be null
    null_time: NullTime = "error"
    inputs: int = 1  # how many have a watermark each; of several, the column `INPUT` tells them apart
    announces: bool = False  # whether the first micro-batch calls every partition even without rows
    reduce: Callable[[], Reducer] | None = None  # its rows are sent instead
    followed: FollowedWatermarks | None = None  # if the rows are results of other operators
    sends_channel: bool = False  # whether `CHANNEL` is sent beside the rows, if they have it

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_modules()
        task = TaskContext.get()
        sequence = (task.partitionId() if task is not None else 0) << 32
        placement = Placement.running(self.max_parallelism)
        seen: list[pa.Table] = []
        reducer = None if self.reduce is None else self.reduce()
        held: list[pa.RecordBatch] = []
        rows = nbytes = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            if self.times and batch.column(self.event_time).null_count:
                seen.append(counted("null_time_rows", self.untimed(batch)))
                batch = batch.filter(batch.column(self.event_time).is_valid())
            if self.followed is None or self.followed.mixed:
                seen.append(self._observe(batch))
            names = batch.schema.names
            if AHEAD in names and (ahead := batch.column(AHEAD).true_count):
                seen.append(counted("ahead_rows", ahead))
            batch = self.sent(batch)
            if batch.num_rows:
                rows, nbytes = rows + batch.num_rows, nbytes + batch.nbytes
                if reducer is None:
                    held.append(batch)
                else:
                    reducer.add(batch, key_hashes(batch, self.key))
            if rows >= _ROWS or nbytes >= _BYTES:
                yield self._split(held if reducer is None else [reducer.drain()], sequence, placement)
                held, sequence, rows, nbytes = [], sequence + 1, 0, 0
        if rows:
            yield self._split(held if reducer is None else [reducer.drain()], sequence, placement)
        if self.followed is not None and task is not None:
            seen = self.followed.seen(seen, take(task))
        begins = task is not None and task.getLocalProperty("streaming.sql.batchId") == "0"
        if seen or (self.announces and begins):
            everywhere = np.arange(placement.used)
            yield packed_copies(everywhere, OBSERVATION, merged(seen))

    def sent(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that are not there for the watermark alone, without the marks that are."""
        names = batch.schema.names
        if KEPT in names:
            batch = batch.filter(batch.column(KEPT))
        marks = (AHEAD, KEPT, SEEN) if self.sends_channel else (CHANNEL, AHEAD, KEPT, SEEN)
        return batch.drop_columns([name for name in marks if name in names])

    def untimed(self, batch: pa.RecordBatch) -> int:
        """Return the number of rows without an event time, of which there are some, unless it is an error."""
        none = batch.column(self.event_time).is_null()
        if self.null_time == "drop":
            return int(none.true_count)
        first = none.index(True).as_py()
        time = self.times[batch.column(INPUT)[first].as_py() if len(self.times) > 1 else 0]
        name = shown_name(time.column)
        where = f"column {name!r}" + ("" if time.df == "df" else f" of {time.df}")
        column = f"{time.df}[{name!r}]" if name == time.column else f"F.expr({name!r})"
        raise ArgumentValueError(
            f"{time.argument} must not be null, got {none.true_count} of {batch.num_rows} rows with null in "
            f"{where}; filter them out ({time.df}.where({column}.isNotNull()), or WHERE in a query), fill in "
            'a value, or pass EventTime(column, null="drop") to a function that takes it'
        )

    def _observe(self, batch: pa.RecordBatch) -> pa.Table:
        names, time = batch.schema.names, self.event_time
        if SEEN in names:
            time, batch = SEEN, batch.filter(batch.column(SEEN).is_valid())
        return observed(
            batch.num_rows,
            None if time is None else event_millis(batch.column(time)),
            ~batch.column(AHEAD).to_numpy(zero_copy_only=False) if AHEAD in names else None,
            batch.column(INPUT).to_numpy() if self.inputs > 1 and INPUT in names else None,
            batch.column(CHANNEL) if CHANNEL in names else None,
        )

    def _split(self, batches: list[pa.RecordBatch], sequence: int, placement: Placement) -> pa.RecordBatch:
        hashes = [key_hashes(batch, self.key) for batch in batches]
        present, blobs = frames_of(batches, hashes, placement)
        return packed_blobs(present, sequence, blobs)
