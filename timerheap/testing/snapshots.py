"""Snapshots of a key group in memory: the chunks of a checkpoint in one Arrow stream."""

from __future__ import annotations

import pyarrow as pa

from timerheap.spark._group.checkpoint import MANIFEST, Manifest, Stored
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._query import Query

_SCHEMA = pa.schema([("kind", pa.int16()), ("id", pa.int32()), ("data", pa.binary())])
_CLOCK = b"timerheap.now"


class _Chunks:
    """A `ChunkStore` in memory."""

    def __init__(self, chunks: dict[tuple[int, int], bytes]) -> None:
        self.chunks = chunks

    def read(self, kind: int, id_: int) -> bytes | None:
        return self.chunks.get((kind, id_))

    def write(self, kind: int, id_: int, data: bytes) -> None:
        self.chunks[kind, id_] = data

    def remove(self, kind: int, id_: int) -> None:
        del self.chunks[kind, id_]

    def read_manifest(self) -> Manifest | None:
        data = self.read(MANIFEST, 0)
        return None if data is None else Manifest.from_bytes(data)

    def write_manifest(self, manifest: Manifest) -> None:
        self.write(MANIFEST, 0, manifest.to_bytes())


def save_group(group: KeyGroup, max_parallelism: int, now: int | None) -> bytes:
    """Return a key group as bytes, which `load_group` reads."""
    store = _Chunks({})
    stored = Stored(Manifest(max_parallelism))
    parts, watermark = group.parts(), group.watermark
    stored.save(store, parts, b"", group.losses, group.late_rows, whole=True, watermark=watermark)
    columns = zip(*((kind, id_, data) for (kind, id_), data in sorted(store.chunks.items())), strict=True)
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
    store = _Chunks(dict(zip(zip(kinds, ids, strict=True), chunks, strict=True)))
    manifest = store.read_manifest()
    if manifest is None:
        raise ValueError("snapshot must be what snapshot() has returned, got one without a manifest")
    manifest.check(max_parallelism)
    group = KeyGroup(query.layout)
    stored = Stored.load(store, manifest, group.part, query.drop_state)
    group.watermark, group.late_rows = manifest.watermark, manifest.late_rows
    return group.loaded(None if stored.drops else manifest.losses), int(now) if now else None
