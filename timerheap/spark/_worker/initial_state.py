"""The state of another query: split by key group of this one, in the tasks that read its checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from timerheap._native._heap import from_text
from timerheap.spark._exchange.placement import Placement, key_group_of, label_of
from timerheap.spark._group.checkpoint import Stored, read_clock
from timerheap.spark._group.clock_bytes import decode_clock
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.manifest import MANIFEST, Manifest
from timerheap.spark._group.query import Query
from timerheap.spark._group.resplit import split

__all__ = ["INITIAL", "Splitter"]

INITIAL = "label int, key_group int, clock binary, contents binary"
"""What one key group of the checkpoint gives to one of the new query; the clock only once for each.

The label is that of the partition that has the key group; see `timerheap.spark._exchange.pack.PACKED`.
"""

_SCHEMA = pa.schema(
    [("label", pa.int32()), ("key_group", pa.int32()), ("clock", pa.binary()), ("contents", pa.binary())]
)


class _Chunks:
    """The `ChunkStore` of a key group whose values have been read; it is not written."""

    def __init__(self, values: pa.Table) -> None:
        kinds, ids = (values.column(name).to_pylist() for name in ("kind", "id"))
        self._chunks = dict(zip(zip(kinds, ids, strict=True), values.column("text"), strict=True))

    def read(self, kind: int, id_: int) -> bytes | None:
        text = self._chunks.get((kind, id_))
        return None if text is None else from_text(text.as_py())

    def read_manifest(self) -> Manifest:
        return Manifest.from_bytes(from_text(self._chunks[MANIFEST, 0].as_py()))

    def write(self, kind: int, id_: int, data: bytes) -> None:
        raise NotImplementedError

    def remove(self, kind: int, id_: int) -> None:
        raise NotImplementedError

    def write_manifest(self, manifest: Manifest) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Splitter:
    """Splits one key group of a checkpoint (``applyInArrow``) into rows of `INITIAL`.

    Its input has the columns label, kind, id and text, and a row for each chunk, also for the manifest.

    Parameters
    ----------
    query : Query
        The new query.
    """

    query: Query

    def __call__(self, values: pa.Table) -> pa.Table:
        """Split the key group whose values these are."""
        placement = Placement.running(self.query.max_parallelism)
        store = _Chunks(values)
        manifest = store.read_manifest()
        clock = read_clock(manifest, store.read)
        group = KeyGroup(self.query)
        Stored.load(store, manifest, group.part, self.query.drop_state)
        group.watermark = decode_clock(clock).watermark
        found = dict(split(group.loaded(), placement.max_parallelism))
        clocked = key_group_of(values.column("label")[0].as_py()) == 0  # the clocks of all groups are equal
        key_groups = range(placement.max_parallelism) if clocked else found
        rows = [
            (
                label_of(key_group % placement.partitions),
                key_group,
                clock if clocked else None,
                found.get(key_group),
            )
            for key_group in key_groups
        ]
        columns = zip(*rows, strict=True) if rows else ([] for _ in _SCHEMA)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
        return pa.Table.from_arrays(arrays, schema=_SCHEMA)
