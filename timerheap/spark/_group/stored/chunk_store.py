"""Where the chunks of a key group are read and written."""

from __future__ import annotations

from typing import Protocol

from timerheap.spark._group.stored.kinds import MANIFEST
from timerheap.spark._group.stored.manifest import Manifest


class ChunkReader(Protocol):
    """Reads the chunks of a key group."""

    def read(self, kind: int, id_: int) -> bytes | None:
        """Return a chunk, or None if there is none."""


class ChunkStore(ChunkReader, Protocol):
    """Reads and writes the chunks of a key group, of which the manifest is one."""

    def write(self, kind: int, id_: int, data: bytes) -> None:
        """Write a chunk."""

    def remove(self, kind: int, id_: int) -> None:
        """Remove a chunk."""

    def read_manifest(self) -> Manifest | None:
        """Return the manifest, or None for a new group."""
        data = self.read(MANIFEST, 0)
        return None if data is None else Manifest.from_bytes(data)

    def write_manifest(self, manifest: Manifest) -> None:
        """Write the manifest."""
        self.write(MANIFEST, 0, manifest.to_bytes())


class Chunks(dict[tuple[int, int], bytes], ChunkStore):
    """Chunks in memory, by kind and id."""

    def read(self, kind: int, id_: int) -> bytes | None:
        return self.get((kind, id_))

    def write(self, kind: int, id_: int, data: bytes) -> None:
        self[kind, id_] = data

    def remove(self, kind: int, id_: int) -> None:
        del self[kind, id_]
