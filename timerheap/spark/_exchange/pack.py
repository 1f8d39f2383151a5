"""The pack stage: packs a task's rows into one blob per key group, and sends event times to all key groups.

A stateful operator in Python has a cost per group and per row, so it is fast with few, large rows. The stage
has no state between micro-batches.
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
"""Name of the column with a row's channel, a string; present if watermarks are generated per channel."""

AHEAD = "__timerheap_ahead"
"""Name of the column that is true if the event time is too far ahead; present if the query checks this."""

KEPT = "__timerheap_kept"
"""Name of the column that is false if a row only advances the watermark; present if rows are filtered."""

INPUT = "__timerheap_input"
"""Name of the column with the number of a row's input, 0 or 1; present if there are two inputs."""

PACKED = "label int, sequence bigint, blob binary"
"""The stage's output: blobs of rows, each with its position in the input; at `_OBSERVED`, event times."""

_SCHEMA = pa.schema([("label", pa.int32()), ("sequence", pa.int64()), ("blob", pa.binary())])
_OBSERVED = -1
_ROWS = 1 << 19
_BYTES = 64 << 20


def event_millis(column: pa.Array) -> np.ndarray:
    """Return a column of timestamp[us], or int64 in ms, as epoch ms, rounded down: int64, shape (n,)."""
    values: np.ndarray = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return values // 1000 if pa.types.is_timestamp(column.type) else values


@dataclass(frozen=True)
class Packer:
    """The function of the stage (``mapInArrow``).

    Parameters
    ----------
    columns : list of (argument, column)
        The columns that must not be null, each with the argument that named it in the user's call.
    event_time : str or None
        The event time's column.
    labels : ndarray of int32, shape (max_parallelism,)
        The label of each key group.
    broadcasts : bool, default True
        Whether to send the event times to every key group; if not, only key groups with rows are called.
    reduce : callable, optional
        Aggregates rows into fewer rows, which are sent instead.
    """

    columns: list[tuple[str, str]]
    event_time: str | None
    labels: np.ndarray
    broadcasts: bool = True
    reduce: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack the rows of a task."""
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
                    f"{argument} must not be null, got {nulls} of {batch.num_rows} rows with null in column "
                    f"{name!r}; filter them out (df.where(df[{name!r}].isNotNull())) or fill in a value"
                )

    def _observe(self, batch: pa.RecordBatch) -> pa.Table:
        """Return the event times of a batch, a table of schema `OBSERVED`."""
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
    """Return a key group's rows in input order, or None, and the event times that all tasks have observed.

    The rows have 64-bit offsets, since the text of all blobs may exceed 32-bit offsets.

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
