"""The state variables and timers of key groups in Spark's state store."""

from __future__ import annotations

from collections.abc import Callable

from pyspark import __version__
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from pyspark.sql.types import BinaryType, IntegerType, ShortType, StructField, StructType

from timerheap.spark._group.manifest import Manifest

__all__ = ["SparkStore"]

# Frozen: every checkpoint has these schemas. As types, since Spark parses text anew in each task.
_CHUNKS_KEY = StructType([StructField("kind", ShortType()), StructField("id", IntegerType())])
_DATA = StructType([StructField("data", BinaryType())])


class SparkStore:
    """The `ChunkStore` of the selected key group, and its timers.

    Spark calls the operator once for all key groups of a partition, but the state of each group is under its
    own label, so that Spark can move the groups when it repartitions a checkpoint. This takes one call that
    PySpark does not promise to keep: the client's ``set_implicit_key``.
    """

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        client = getattr(handle, "_statefulProcessorApiClient", None)
        set_key = getattr(client, "set_implicit_key", None)
        if set_key is None:
            raise RuntimeError(
                "pyspark must have StatefulProcessorApiClient.set_implicit_key(), which keeps the state of a "
                f"key group under its label, got pyspark {__version__}; install pyspark 4.3"
            )
        self._set_key: Callable[[tuple[int]], None] = set_key
        self._handle = handle
        self._chunks = handle.getMapState("chunks", _CHUNKS_KEY, _DATA)
        self._manifest = handle.getValueState("manifest", _DATA)

    def select(self, label: int) -> None:
        """Make the state and the timers of a key group the current ones."""
        self._set_key((label,))

    def register_timer(self, timestamp: int) -> None:
        """Have Spark call the selected group at `timestamp`."""
        self._handle.registerTimer(timestamp)

    def delete_timer(self, timestamp: int) -> None:
        """Delete a timer of the selected group."""
        self._handle.deleteTimer(timestamp)

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
