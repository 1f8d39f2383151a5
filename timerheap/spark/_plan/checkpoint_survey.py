"""What the key groups of a checkpoint have in common: their parts, with names and types, and their clock."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from timerheap._native._heap import from_text, xxh64
from timerheap.spark._exchange.placement import label_of
from timerheap.spark._group.checkpoint import read_clock
from timerheap.spark._group.chunks import CLOCK, KEYS, ROWS, SLICES, USER_STATE, read_schema
from timerheap.spark._group.key_table import shown_keys
from timerheap.spark._group.manifest import MANIFEST, Manifest

__all__ = ["StoredPart", "Survey"]


class StoredPart(NamedTuple):
    """A part that key groups have.

    Parameters
    ----------
    kind : int
    name : str
    schema : pyarrow.Schema
        Of its chunks.
    """

    kind: int
    name: str
    schema: pa.Schema


class Survey:
    """The manifests of all key groups, and the parts that they list, each once.

    Parameters
    ----------
    chunks : pyspark.sql.DataFrame
        The columns label, kind, id and text. One Spark job reads the manifests and the schemas.

    Attributes
    ----------
    manifests : list of Manifest
        Of all key groups.
    parts : list of StoredPart
        By kind; the part that most groups have comes first among those of one kind.
    """

    def __init__(self, chunks: DataFrame) -> None:
        self._chunks = chunks
        heads = chunks.where((F.col("id") == 0) & (F.col("kind") != CLOCK))
        heads = heads.select("kind", "text").distinct()
        found = [(kind, from_text(text)) for kind, text in heads.collect()]
        self.manifests = [Manifest.from_bytes(data) for kind, data in found if kind == MANIFEST]
        listed = Counter(
            (run.kind, run.schema)
            for manifest in self.manifests
            for run in manifest.runs
            if run.segments or run.kind >= USER_STATE  # others are left from before a restart
        )
        parts = [(kind, data) for kind, data in found if kind != MANIFEST]
        often = {part: listed[part[0], xxh64(part[1]) & 0xFFFFFFFF] for part in parts}
        parts = sorted((part for part in parts if often[part]), key=lambda part: (part[0], -often[part]))
        self.parts = [StoredPart(kind, *read_schema(kind, data)) for kind, data in parts]

    @property
    def keys(self) -> list[pa.Field]:
        """The key columns, under their names in the rows."""
        part = self._part(KEYS)
        return [] if part is None else list(shown_keys(part.schema).values())

    @property
    def rows(self) -> pa.Schema | None:
        """The schema of the chunks of waiting rows, None if no row has ever waited."""
        part = self._part(ROWS)
        return None if part is None else part.schema

    @property
    def windows(self) -> StoredPart | None:
        """The windows."""
        return self._part(SLICES)

    @property
    def states(self) -> dict[str, list[StoredPart]]:
        """The user states by name; their kinds may differ from group to group."""
        found: dict[str, list[StoredPart]] = {}
        for part in self.parts:
            if part.kind >= USER_STATE:
                found.setdefault(part.name, []).append(part)
        return found

    def _part(self, kind: int) -> StoredPart | None:
        return next((part for part in self.parts if part.kind == kind), None)

    def clock(self) -> bytes:
        """Return the clock of the groups whose watermark is the highest; one more job if it is large."""
        highest = max(self.manifests, key=lambda manifest: manifest.watermark)
        if not highest.clock_apart:
            return highest.clock
        first = self._chunks.where((F.col("label") == label_of(0)) & F.col("kind").isin(MANIFEST, CLOCK))
        found = {(row.kind, row.id): from_text(row.text) for row in first.collect()}  # of what writes it
        return read_clock(Manifest.from_bytes(found[MANIFEST, 0]), lambda *chunk: found.get(chunk))
