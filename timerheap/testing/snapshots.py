"""Snapshots of a key group in memory: the chunks of a checkpoint in one Arrow stream."""

from __future__ import annotations

import pyarrow as pa

from timerheap.spark._group import key_group
from timerheap.spark._group.checkpoint import Chunks, Manifest, Stored
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._query import Query

_SCHEMA = pa.schema([("kind", pa.int16()), ("id", pa.int32()), ("data", pa.binary())])
_CLOCK = b"timerheap.now"


def save_group(group: KeyGroup, max_parallelism: int, now: int | None) -> bytes:
    """Return a key group as bytes, which `load_group` reads."""
    store = Chunks()
    stored = Stored(Manifest(max_parallelism))
    stored.save(store, group, b"", whole=True)
    columns = zip(*((kind, id_, data) for (kind, id_), data in sorted(store.items())), strict=True)
    arrays = [pa.array(column, type_) for column, type_ in zip(columns, _SCHEMA.types, strict=True)]
    schema = _SCHEMA.with_metadata({_CLOCK: b"" if now is None else str(now).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return bytes(sink.getvalue())


def load_group(query: Query, max_parallelism: int, data: bytes) -> tuple[KeyGroup, int | None]:
    """Return the key group of a query and the time that `save_group` has written.

    ValueError: if these are other bytes, or do not fit the query
    """
    try:
        stream = pa.ipc.open_stream(data)
        now = (stream.schema.metadata or {}).get(_CLOCK)
        if now is None or stream.schema.remove_metadata() != _SCHEMA:
            raise ValueError("got another Arrow stream")
        batch = stream.read_next_batch()
        batch.validate(full=True)
    except (ValueError, pa.ArrowException, OSError, StopIteration) as e:
        raise ValueError(f"snapshot must be what snapshot() has returned: {e}") from e
    kinds, ids, chunks = (column.to_pylist() for column in batch.columns)
    store = Chunks(zip(zip(kinds, ids, strict=True), chunks, strict=True))
    manifest = store.read_manifest()
    if manifest is None:
        raise ValueError("snapshot must be what snapshot() has returned, got one without a manifest")
    manifest.check(max_parallelism)
    group, _ = key_group.load_group(store, manifest, query.layout)
    return group, int(now) if now else None
