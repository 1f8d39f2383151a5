"""The state of another query: split by key group of this one, in the tasks that read its checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from timerheap.spark._exchange.placement import Placement, key_group_of, label_of
from timerheap.spark._group.checkpoint import Stored, read_clock
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.resplit import split
from timerheap.spark._group.stored_group import ReadChunks
from timerheap.spark._query import Query

__all__ = ["INITIAL", "Splitter"]

INITIAL = "label int, key_group int, clock binary, contents binary"
"""What one key group of the checkpoint gives to one of the new query; the clock only once for each.

The label is that of the partition that has the key group; see `timerheap.spark._exchange.pack.PACKED`.
"""

_SCHEMA = pa.schema(
    [("label", pa.int32()), ("key_group", pa.int32()), ("clock", pa.binary()), ("contents", pa.binary())]
)


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
        store = ReadChunks()
        kinds, ids = (values.column(name).to_pylist() for name in ("kind", "id"))
        for chunk in zip(kinds, ids, values.column("text"), strict=True):
            store.add(*chunk)
        manifest = store.read_manifest()
        group = KeyGroup(self.query.layout)
        Stored.load(store, manifest, group.part, self.query.drop_state)
        group.watermark = manifest.watermark
        clocked = key_group_of(values.column("label")[0].as_py()) == 0  # its clock is that of all groups
        found = dict(split(group.loaded(), placement.max_parallelism, clocked))
        clock = read_clock(manifest, store.read) if clocked else None
        key_groups = range(placement.max_parallelism) if clocked else found
        rows = [
            (
                label_of(key_group % placement.partitions),
                key_group,
                clock,
                found.get(key_group),
            )
            for key_group in key_groups
        ]
        columns = zip(*rows, strict=True) if rows else ([] for _ in _SCHEMA)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
        return pa.Table.from_arrays(arrays, schema=_SCHEMA)
