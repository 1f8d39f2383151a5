"""The state variables of a key group in Spark's state store."""

from __future__ import annotations

from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from timerheap.spark._group.checkpoint import CHUNKS_KEY, CHUNKS_VALUE, MANIFEST
from timerheap.spark._group.manifest import Manifest

__all__ = ["SparkStore"]


class SparkStore:
    """The `ChunkStore` over the state variables of the group that Spark has made current."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._chunks = handle.getMapState("chunks", CHUNKS_KEY, CHUNKS_VALUE)
        self._manifest = handle.getValueState("manifest", MANIFEST)

    def read(self, kind: int, id_: int) -> bytes | None:
        row = self._chunks.getValue((kind, id_))
        return None if row is None else bytes(row[0])

    def write(self, kind: int, id_: int, data: bytes) -> None:
        self._chunks.updateValue((kind, id_), (data,))

    def remove(self, kind: int, id_: int) -> None:
        self._chunks.removeKey((kind, id_))

    def read_manifest(self) -> Manifest | None:
        row = self._manifest.get()
        return None if row is None else Manifest.from_bytes(bytes(row[0]))

    def write_manifest(self, manifest: Manifest) -> None:
        self._manifest.update((manifest.to_bytes(),))
