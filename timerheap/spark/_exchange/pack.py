"""The pack stage: rows become one blob a key group, and every key group hears what all have seen of time.

A stateful operator in Python pays per group and per row; it is cheap only when it sees few, large rows. The
stage keeps nothing between micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from timerheap.spark._exchange.observed import OBSERVED, merged
from timerheap.spark._group.offsets import widen

__all__ = ["AHEAD", "CHANNEL", "HASH", "INPUT", "KEPT", "PACKED", "Packer", "event_millis", "unpack"]

HASH = "__timerheap_hash"
"""Name of the column with Spark's xxhash64 of the key."""

CHANNEL = "__timerheap_channel"
"""Name of the column with a row's channel, a string; there only where watermarks are made by channel."""

AHEAD = "__timerheap_ahead"
"""Name of the column that is true where an event time is too far ahead; there only with a guard."""

KEPT = "__timerheap_kept"
"""Name of the column that is false where a row moves the watermark alone; there only with a condition."""

INPUT = "__timerheap_input"
"""Name of the column with the number of a row's input, 0 or 1; there only where there are two."""

PACKED = "label int, sequence bigint, blob binary"
"""What the stage makes: blobs of rows with their places in the input, and at `_OBSERVED` what was seen."""

_SCHEMA = pa.schema([("label", pa.int32()), ("sequence", pa.int64()), ("blob", pa.binary())])
_OBSERVED = -1
_ROWS = 1 << 19
_BYTES = 64 << 20


def event_millis(column: pa.Array) -> np.ndarray:
    """Give event times as epoch ms, rounded down: shape (n,), int64. The column is timestamp[us] or int64."""
    values: np.ndarray = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return values // 1000 if pa.types.is_timestamp(column.type) else values


@dataclass(frozen=True)
class Packer:
    """The function of the stage (``mapInArrow``).

    Parameters
    ----------
    columns : list of (argument, column)
        Those in which null is refused, with the argument of the user's call that named each.
    event_time : str or None
    labels : ndarray of int32, shape (max_parallelism,)
        Label of each key group.
    broadcasts : bool, default True
        Every key group hears what has been seen; else only those with rows are called.
    reduce : callable, optional
        Makes fewer rows of some, which travel instead.
    """

    columns: list[tuple[str, str]]
    event_time: str | None
    labels: np.ndarray
    broadcasts: bool = True
    reduce: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Split and wrap."""
        task = TaskContext.get()
        sequence = (task.partitionId() if task is not None else 0) << 32
        seen: list[pa.Table] = []
        held: list[pa.RecordBatch] = []
        for batch in batches:
            if not batch.num_rows:
                continue
            self._check(batch)
            seen.append(self._observe(batch))
            names = batch.schema.names
            if KEPT in names:
                batch = batch.filter(batch.column(KEPT))
            if batch.num_rows:
                held.append(batch.drop_columns([name for name in (CHANNEL, AHEAD, KEPT) if name in names]))
            if sum(b.num_rows for b in held) >= _ROWS or sum(b.nbytes for b in held) >= _BYTES:
                yield self._split(held, sequence)
                held, sequence = [], sequence + 1
        if held:
            yield self._split(held, sequence)
        if seen and self.broadcasts:
            blob = _blob(merged(seen).combine_chunks().to_batches()[0])
            n = len(self.labels)
            columns = [
                pa.array(self.labels),
                pa.array(np.full(n, _OBSERVED)),
                pa.array([blob] * n, pa.binary()),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)

    def _check(self, batch: pa.RecordBatch) -> None:
        for argument, name in self.columns:
            nulls = batch.column(name).null_count
            if nulls:
                raise ValueError(
                    f"{argument}: {nulls} of {batch.num_rows} rows have null in column {name!r}; filter them "
                    f"out (df.where(df[{name!r}].isNotNull())) or give them a value before process()"
                )

    def _observe(self, batch: pa.RecordBatch) -> pa.Table:
        """Give the batch's `OBSERVED`."""
        n, names = batch.num_rows, batch.schema.names
        times = pa.nulls(n, pa.int64())
        if self.event_time is not None:
            ahead = batch.column(AHEAD).to_numpy(zero_copy_only=False) if AHEAD in names else None
            times = pa.array(event_millis(batch.column(self.event_time)), mask=ahead)
        if INPUT not in names and CHANNEL not in names:
            newest = pa.array([pc.max(times).as_py()], pa.int64())
            columns = [pa.array([0], pa.int8()), pa.nulls(1, pa.string()), newest, pa.array([n], pa.int64())]
            return pa.Table.from_arrays(columns, schema=OBSERVED)
        inputs = batch.column(INPUT) if INPUT in names else pa.array(np.zeros(n, np.int8))
        channels = batch.column(CHANNEL) if CHANNEL in names else pa.nulls(n, pa.string())
        rows = [inputs, channels, times, pa.array(np.ones(n, np.int64))]
        return merged([pa.Table.from_arrays(rows, schema=OBSERVED)])

    def _split(self, batches: list[pa.RecordBatch], sequence: int) -> pa.RecordBatch:
        batch = pa.concat_batches(batches)
        if self.reduce is not None:
            batch = self.reduce(batch)
        groups = np.mod(batch.column(HASH).to_numpy(), len(self.labels)).astype(np.uint16)
        order = np.argsort(groups, kind="stable")
        counts = np.bincount(groups, minlength=len(self.labels))
        ordered = batch.take(pa.array(order))
        present = np.flatnonzero(counts)
        starts = np.cumsum(counts) - counts
        blobs = [_blob(ordered.slice(int(starts[g]), int(counts[g]))) for g in present]
        columns = [
            pa.array(self.labels[present]),
            pa.array(np.full(len(present), sequence)),
            pa.array(blobs, pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def _blob(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def unpack(packed: Iterable[tuple[int, bytes]]) -> tuple[pa.RecordBatch | None, pa.Table]:
    """Give a key group's rows in the order of reading (None: there are none), and what all tasks have seen.

    The rows have 64-bit offsets: together they may have more text than a blob.

    Parameters
    ----------
    packed : iterable of (sequence, blob)
        In any order.
    """
    ordered = sorted((int(sequence), blob) for sequence, blob in packed)
    batches = [(sequence, pa.ipc.open_stream(blob).read_next_batch()) for sequence, blob in ordered]
    rows = [batch for sequence, batch in batches if sequence != _OBSERVED]
    seen = [pa.Table.from_batches([batch]) for sequence, batch in batches if sequence == _OBSERVED]
    return (pa.concat_batches(map(widen, rows)) if rows else None), merged(seen)
