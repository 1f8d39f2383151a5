"""The state variables of one key group, in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from timerheap import MIN_WATERMARK
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.saving import Stored
from timerheap.spark._group.stored.manifest import Manifest, Standing
from timerheap.spark._group.stored.parts import CheckpointedPart


class MemoryStore:
    """Spark's state store in two variables; counts what is asked of it."""

    def __init__(self) -> None:
        self.chunks: dict[tuple[int, int], bytes] = {}
        self.manifest: bytes | None = None
        self.calls = 0
        self.written = 0  # bytes, with the manifest
        self.reads: list[tuple[int, int]] = []

    def read(self, kind: int, id_: int) -> bytes | None:
        self.calls += 1
        self.reads.append((kind, id_))
        return self.chunks.get((kind, id_))

    def write(self, kind: int, id_: int, data: bytes) -> None:
        self.calls += 1
        self.written += len(data)
        self.chunks[kind, id_] = data

    def remove(self, kind: int, id_: int) -> None:
        self.calls += 1
        del self.chunks[kind, id_]

    def read_manifest(self) -> Manifest:
        assert self.manifest is not None
        self.calls += 1
        return Manifest.from_bytes(self.manifest)

    def write_manifest(self, manifest: Manifest) -> None:
        assert self.manifest is None or manifest.token != Manifest.from_bytes(self.manifest).token
        self.calls += 1
        self.manifest = manifest.to_bytes()
        self.written += len(self.manifest)


class GroupStore(MemoryStore):
    """The state of one group, of which a new one has no manifest."""

    def read_manifest(self) -> Any:
        return None if self.manifest is None else super().read_manifest()

    def copy(self) -> GroupStore:
        other = GroupStore()
        other.chunks, other.manifest = dict(self.chunks), self.manifest
        return other


@dataclass
class Parts:
    """A group of these parts and of nothing else, as a save takes it."""

    of_group: Iterable[CheckpointedPart] = ()
    watermark: int = MIN_WATERMARK
    late_rows: int = 0
    wake_up: int | None = None
    evolved: bool = False

    def parts(self) -> Iterable[CheckpointedPart]:
        return self.of_group

    def losses(self) -> int:
        return 0

    def standing(self) -> Standing:
        return Standing()


def save(group: KeyGroup, stored: Stored, store: MemoryStore) -> None:
    """Save a group as the operator does at the end of a micro-batch."""
    stored.save(store, group, b"")


def load(store: MemoryStore, group: KeyGroup) -> Stored:
    """Load a new group as the operator does."""
    manifest = store.read_manifest()
    stored = Stored.load(store, manifest, group.part, group.layout.drops)
    group.watermark, group.late_rows = manifest.watermark, manifest.late_rows
    group.wake_up = manifest.wake_up
    group.loaded(None if stored.drops else manifest.losses)
    return stored
