"""The state variables of a key group in Spark's state store."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from timerheap.spark._group.checkpoint import CHUNKS_KEY, CHUNKS_VALUE, FORMAT, MANIFEST, Manifest, Run

__all__ = ["SparkStore"]


class SparkStore:
    """The `ChunkStore` over the state variables of the group that Spark has made current."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._chunks = handle.getMapState("chunks", CHUNKS_KEY, CHUNKS_VALUE)
        self._manifest = handle.getValueState("manifest", MANIFEST)

    def read_all(self) -> Iterator[tuple[int, int, bytes]]:
        for (kind, id_), (data,) in self._chunks.iterator():
            yield kind, id_, bytes(data)

    def write(self, kind: int, id_: int, data: bytes) -> None:
        self._chunks.updateValue((kind, id_), (data,))

    def remove(self, kind: int, id_: int) -> None:
        self._chunks.removeKey((kind, id_))

    def read_manifest(self) -> Manifest | None:
        row = self._manifest.get()
        if row is None:
            return None
        format_, token, max_parallelism, partitions, runs = row
        if format_ != FORMAT:
            raise ValueError(
                f"this checkpoint has timerheap's state format {format_}, and this version reads {FORMAT}: "
                "use the version that wrote it, or start a new checkpoint"
            )
        return Manifest(max_parallelism, partitions, bytes(token), [Run(*run) for run in runs])

    def write_manifest(self, manifest: Manifest) -> None:
        runs = [(run.kind, run.name, run.count) for run in manifest.runs]
        self._manifest.update((FORMAT, manifest.token, manifest.max_parallelism, manifest.partitions, runs))
