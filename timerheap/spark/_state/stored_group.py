"""A key group as its manifest describes it, for a reader that does not know the query."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pyarrow as pa

from timerheap.spark._arrow import widen
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.key_table import KeyTable
from timerheap.spark._group.layout import GroupLayout
from timerheap.spark._group.row_buffer import RowBuffer
from timerheap.spark._group.saving import Stored
from timerheap.spark._group.stored.chunk_store import ChunkReader
from timerheap.spark._group.stored.kinds import KEYS, OWN, ROWS
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._group.stored.parts import LoadedPart
from timerheap.spark._group.stored.stored_runs import described


class StoredGroup(KeyGroup):
    """A key group as its manifest describes it, for a reader that does not know the query.

    Only the parts of `kinds` are loaded. Raises CheckpointError if a chunk is missing or damaged, or is of
    another save than the others.
    """

    def __init__(self, store: ChunkReader, manifest: Manifest, kinds: Collection[int]) -> None:
        self.manifest = manifest
        self.stored_own: dict[int, StoredOwn] = {}
        runs = [run for run in manifest.runs if run.kind in kinds]
        found = {run.kind: (name, schema) for run, name, schema in described(store, runs)}
        rows = found[ROWS][1] if ROWS in found else pa.schema([])
        layout = GroupLayout(
            key_fields=KeyTable.fields(found[KEYS][1]) if KEYS in found else [],
            rows=RowBuffer.rows_of(rows),
            order="event_time",
            drop_state=(),
            rename_state={},
        )
        super().__init__(layout)
        Stored.load(store, replace(manifest, runs=runs), self.part)
        self.watermark = manifest.watermark
        self.loaded()

    def part(self, kind: int, name: str, schema: pa.Schema) -> LoadedPart:
        if kind not in OWN:
            return super().part(kind, name, schema)
        self.stored_own[kind] = StoredOwn(name, schema)
        return self.stored_own[kind]


class StoredOwn:
    """An `OwnPart` as it is stored: its chunks, for a reader that knows what they mean."""

    def __init__(self, name: str, schema: pa.Schema) -> None:
        self.name = name
        self.schema = schema
        self.chunks: list[pa.RecordBatch] = []

    def replay(self, batch: pa.RecordBatch) -> None:
        self.chunks.append(widen(batch))

    def reserve(self, times: float) -> None:
        """Do nothing: chunks are kept as they are."""
