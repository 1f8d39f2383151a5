"""Chunks, the values of the state store: record batches in timerheap's checksummed envelope."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from timerheap._native._heap import seal, unseal
from timerheap.spark._group.offsets import fitting, narrow

__all__ = [
    "CLOCK",
    "EVENT_TIMERS",
    "KEYS",
    "PROCESSING_TIMERS",
    "ROWS",
    "SLICES",
    "USER_STATE",
    "pieces",
    "read_chunk",
    "write_chunk",
]

# The kinds of chunks; frozen, since checkpoints contain them. User states have USER_STATE and up.
EVENT_TIMERS = 16
PROCESSING_TIMERS = 17
KEYS = 18
ROWS = 20
CLOCK = 21
SLICES = 22
USER_STATE = 64

_TARGET_BYTES = 256 << 10
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)  # a thread costs more than it saves


def write_chunk(kind: int, batch: pa.RecordBatch) -> bytes:
    """Return `batch` as sealed bytes: a compressed Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_OPTIONS) as writer:
        writer.write_batch(batch)
    return seal(kind, sink.getvalue())


def read_chunk(kind: int, data: bytes) -> pa.RecordBatch:
    """Return the batch that `write_chunk` wrote; raise ValueError for any other bytes, even hostile ones."""
    payload = unseal(kind, data)
    try:
        with pa.ipc.open_stream(payload) as reader:
            batch = reader.read_next_batch()
        batch.validate(full=True)
    except (pa.ArrowException, StopIteration, OSError) as e:
        raise ValueError(f"a chunk of kind {kind} must hold a valid record batch: {e}") from e
    return batch


def pieces(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Split `batch` into pieces of about 256 KiB, so that the size of a chunk does not grow with the state.

    The pieces have the given schema. `batch` may have 64-bit offsets (`timerheap.spark._group.offsets`).
    """
    for start, stop in fitting(batch, _TARGET_BYTES, 4 * _TARGET_BYTES):
        yield narrow(batch.slice(start, stop - start), schema)
