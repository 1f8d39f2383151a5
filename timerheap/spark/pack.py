"""The pack stage: rows become one blob a key group, and every key group hears of the largest timestamp.

A stateful operator in Python pays per group and per row; it is cheap only when it sees few, large rows. The
stage keeps nothing between micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

__all__ = ["HASH", "PACKED", "Observed", "Packer", "event_millis", "unpack"]

HASH = "__timerheap_hash"
"""Name of the column with Spark's xxhash64 of the key."""

PACKED = "label int, sequence bigint, blob binary, max_timestamp bigint, count bigint"
"""What the stage makes: blobs with their places in the input, and broadcast rows without a blob."""

_SCHEMA = pa.schema(
    [
        ("label", pa.int32()),
        ("sequence", pa.int64()),
        ("blob", pa.binary()),
        ("max_timestamp", pa.int64()),
        ("count", pa.int64()),
    ]
)
_ROWS = 1 << 19
_BYTES = 64 << 20


def event_millis(column: pa.Array) -> np.ndarray:
    """Give event times as epoch ms, rounded down: shape (n,), int64. The column is timestamp[us] or int64."""
    values: np.ndarray = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return values // 1000 if pa.types.is_timestamp(column.type) else values


@dataclass
class Observed:
    """What a micro-batch has seen: rows, and their largest event time in epoch ms."""

    max_timestamp: int = 0
    count: int = 0

    def add(self, max_timestamp: int, count: int) -> None:
        """Take in what one task has seen."""
        self.max_timestamp = max(self.max_timestamp, max_timestamp) if self.count else max_timestamp
        self.count += count


@dataclass(frozen=True)
class Packer:
    """The function of the stage (``mapInArrow``).

    Parameters
    ----------
    key : list of str
        Key columns, in which null is refused.
    event_time : str or None
    labels : ndarray of int32, shape (max_parallelism,)
        Label of each key group.
    """

    key: list[str]
    event_time: str | None
    labels: np.ndarray

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Split and wrap."""
        task = TaskContext.get()
        sequence = (task.partitionId() if task is not None else 0) << 32
        observed = Observed()
        held: list[pa.RecordBatch] = []
        for batch in batches:
            if not batch.num_rows:
                continue
            self._check(batch)
            observed.add(self._max_timestamp(batch), batch.num_rows)
            held.append(batch)
            if sum(b.num_rows for b in held) >= _ROWS or sum(b.nbytes for b in held) >= _BYTES:
                yield self._split(held, sequence)
                held, sequence = [], sequence + 1
        if held:
            yield self._split(held, sequence)
        if observed.count:
            n = len(self.labels)
            columns = [
                pa.array(self.labels),
                pa.array(np.zeros(n, np.int64)),
                pa.nulls(n, pa.binary()),
                pa.array(np.full(n, observed.max_timestamp)),
                pa.array(np.full(n, observed.count)),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)

    def _check(self, batch: pa.RecordBatch) -> None:
        for argument, name in [("key", k) for k in self.key] + [("event_time", self.event_time)]:
            nulls = batch.column(name).null_count if name is not None else 0
            if nulls:
                raise ValueError(
                    f"{argument}: {nulls} of {batch.num_rows} rows have null in column {name!r}; filter them "
                    f"out (df.where(df[{name!r}].isNotNull())) or give them a value before process()"
                )

    def _max_timestamp(self, batch: pa.RecordBatch) -> int:
        if self.event_time is None:
            return 0
        column = batch.column(self.event_time)
        return int(event_millis(pa.array([pc.max(column)], column.type))[0])

    def _split(self, batches: list[pa.RecordBatch], sequence: int) -> pa.RecordBatch:
        batch = pa.concat_batches(batches)
        groups = np.mod(batch.column(HASH).to_numpy(), len(self.labels)).astype(np.uint16)
        order = np.argsort(groups, kind="stable")
        counts = np.bincount(groups, minlength=len(self.labels))
        ordered = batch.take(pa.array(order))
        present = np.flatnonzero(counts)
        starts = np.cumsum(counts) - counts
        blobs = [_blob(ordered.slice(int(starts[g]), int(counts[g]))) for g in present]
        n = len(present)
        columns = [
            pa.array(self.labels[present]),
            pa.array(np.full(n, sequence)),
            pa.array(blobs, pa.binary()),
            pa.array(np.zeros(n, np.int64)),  # no nulls: pandas would make the column float
            pa.array(np.zeros(n, np.int64)),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def _blob(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def unpack(blobs: Iterator[bytes]) -> pa.RecordBatch | None:
    """Give the rows of a key group's blobs as one record batch, None where there are none."""
    batches = [pa.ipc.open_stream(blob).read_next_batch() for blob in blobs]
    return pa.concat_batches(batches) if batches else None
