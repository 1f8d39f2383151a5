"""The pack stage: packs a task's rows into one blob per shuffle partition, and sends event times to all.

A stateful operator in Python has a cost per group and per row of its input, so it is fast with few, large
rows: Spark sees one group per partition. The stage has no state between micro-batches.

What a task sends depends on its rows alone. After a lost executor tasks are run again, and Spark ends a query
whose tasks then send anything else, since other tasks may have used what the first attempt sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from timerheap.spark._exchange.frames import blobs_of, frames_of, hashes_of
from timerheap.spark._exchange.garbage import freeze_modules
from timerheap.spark._exchange.observed import merged, observed
from timerheap.spark._exchange.placement import Placement, labels_of
from timerheap.spark._query import shown_name

__all__ = [
    "AHEAD",
    "AT",
    "BROADCAST",
    "CHANNEL",
    "HASH",
    "INPUT",
    "KEPT",
    "OBSERVATION",
    "PACKED",
    "Packer",
    "Reducer",
    "event_millis",
    "key_hashes",
    "packed_copies",
]

HASH = "__timerheap_hash"
"""Name of the column with Spark's xxhash64 of the key; present if the key is not hashed in the pack stage."""

CHANNEL = "__timerheap_channel"
"""Name of the column with a row's channel, a string; present if watermarks are generated per channel."""

AHEAD = "__timerheap_ahead"
"""Name of the column that is true if the event time is too far ahead; present if the query checks this."""

KEPT = "__timerheap_kept"
"""Name of the column that is false if a row only advances the watermark; present if rows are filtered."""

INPUT = "__timerheap_input"
"""Name of the column with the number of a row's input, 0 or 1; present if there are two inputs."""

PACKED = "label int, sequence bigint, blob binary"
"""The stage's output: blobs of rows, each with its position in the input; at `OBSERVATION`, event times.

The label of a partition is that of its first key group. Rows are in frames, ordered by key group.
"""

BROADCAST = -(1 << 62)
"""The first position of rows that go to all partitions, all of which are below `OBSERVATION`."""

OBSERVATION = -1
"""The position of event times, a table of `timerheap.spark._exchange.observed.OBSERVED`."""

AT = "at"
"""Name of the column beside `PACKED` with the time of the micro-batch, or of a batch DataFrame, in epoch ms.

The driver fixes it, so that it is the same in all tasks and in all of their attempts.
"""

_SCHEMA = pa.schema([("label", pa.int32()), ("sequence", pa.int64()), ("blob", pa.binary())])
_ROWS = 1 << 19
_BYTES = 64 << 20


def event_millis(column: pa.Array) -> np.ndarray:
    """Return a column of timestamp[us], or int64 in ms, as epoch ms, rounded down: int64, shape (n,)."""
    if pa.types.is_int64(column.type):
        return cast(np.ndarray, column.to_numpy(zero_copy_only=False))
    return cast(np.ndarray, column.view(pa.int64()).to_numpy(zero_copy_only=False)) // 1000


class Reducer(Protocol):
    """Aggregates rows into fewer."""

    def add(self, rows: pa.RecordBatch, hashes: np.ndarray) -> None:
        """Add rows, with the hashes of their keys."""

    def drain(self) -> pa.RecordBatch:
        """Remove all rows, and return those they have become, with `HASH`."""


@dataclass(frozen=True)
class Packer:
    """The function of the stage (``mapInArrow``).

    Parameters
    ----------
    key : str
        The key column, if the rows come without `HASH`.
    columns : list of (argument, column)
        The columns that must not be null, each with the argument that named it in the user's call.
    event_time : str or None
        The event time's column.
    max_parallelism : int or None
        Number of key groups; None: the default for the number of partitions.
    announces : bool, default False
        Whether the first micro-batch calls every partition even if it has no rows.
    reduce : callable, optional
        Returns a `Reducer`, whose rows are sent instead.
    """

    key: str
    columns: list[tuple[str, str]]
    event_time: str | None
    max_parallelism: int | None
    announces: bool = False
    reduce: Callable[[], Reducer] | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack the rows of a task."""
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
            self._check(batch)
            seen.append(self._observe(batch))
            names = batch.schema.names
            if KEPT in names:
                batch = batch.filter(batch.column(KEPT))
            if batch.num_rows:
                batch = batch.drop_columns([name for name in (CHANNEL, AHEAD, KEPT) if name in names])
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
        if seen or (self.announces and task is not None and _is_first(task)):
            everywhere = np.arange(placement.used)
            yield packed_copies(everywhere, OBSERVATION, merged(seen))

    def _check(self, batch: pa.RecordBatch) -> None:
        for argument, name in self.columns:
            nulls = batch.column(name).null_count
            if nulls:
                shown = shown_name(name)
                raise ValueError(
                    f"{argument} must not be null, got {nulls} of {batch.num_rows} rows with null in column "
                    f"{shown!r}; filter them out (df.where(df[{shown!r}].isNotNull())) or fill in a value"
                )

    def _observe(self, batch: pa.RecordBatch) -> pa.Table:
        names = batch.schema.names
        return observed(
            batch.num_rows,
            None if self.event_time is None else event_millis(batch.column(self.event_time)),
            ~batch.column(AHEAD).to_numpy(zero_copy_only=False) if AHEAD in names else None,
            batch.column(INPUT).to_numpy() if INPUT in names else None,
            batch.column(CHANNEL) if CHANNEL in names else None,
        )

    def _split(self, batches: list[pa.RecordBatch], sequence: int, placement: Placement) -> pa.RecordBatch:
        hashes = [key_hashes(batch, self.key) for batch in batches]
        present, blobs = frames_of(batches, hashes, placement)
        return _packed(present, sequence, blobs)


def _is_first(task: TaskContext) -> bool:
    """Return whether a task is of the first micro-batch of a query."""
    return task.getLocalProperty("streaming.sql.batchId") == "0"


def key_hashes(rows: pa.RecordBatch, key: str) -> np.ndarray:
    """Return the hash of each row's key, from `HASH` or from the key itself: int64, shape (n,)."""
    if HASH in rows.schema.names:
        return cast(np.ndarray, rows.column(HASH).to_numpy())
    return hashes_of(rows.column(key))


def _packed(partitions: np.ndarray, sequence: int, blobs: pa.Array) -> pa.RecordBatch:
    """Return a row of `PACKED` for each partition; its first key group has its number."""
    columns = [pa.array(labels_of(partitions)), pa.array(np.full(len(partitions), sequence)), blobs]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def packed_copies(partitions: np.ndarray, sequence: int, table: pa.Table) -> pa.RecordBatch:
    """Return a row of `PACKED` for each partition, with a table as an Arrow stream."""
    times = len(partitions)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    stream = np.frombuffer(sink.getvalue(), np.uint8)
    blobs = blobs_of(np.tile(stream, times), np.arange(1, times + 1) * len(stream))
    return _packed(partitions, sequence, blobs)
