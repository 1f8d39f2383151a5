"""What the stage that packs rows sends: a blob for each partition, with its position in the input."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from timerheap.spark._exchange.codec import blobs_of
from timerheap.spark._exchange.placement import labels_of

OBSERVATION = -1
"""The position of event times, a table of `OBSERVED`."""
PACKED_SCHEMA = pa.schema([("label", pa.int32()), ("sequence", pa.int64()), ("blob", pa.binary())])
"""That of `PACKED`."""


def packed_blobs(partitions: np.ndarray, sequence: int, blobs: pa.Array) -> pa.RecordBatch:
    """Return a row of `PACKED` for each partition; its first key group has its number."""
    columns = [pa.array(labels_of(partitions)), pa.array(np.full(len(partitions), sequence)), blobs]
    return pa.RecordBatch.from_arrays(columns, schema=PACKED_SCHEMA)


def packed_copies(partitions: np.ndarray, sequence: int, table: pa.Table) -> pa.RecordBatch:
    """Return a row of `PACKED` for each partition, with a table as an Arrow stream."""
    times = len(partitions)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    stream = np.frombuffer(sink.getvalue(), np.uint8)
    blobs = blobs_of(np.tile(stream, times), np.arange(1, times + 1) * len(stream))
    return packed_blobs(partitions, sequence, blobs)
