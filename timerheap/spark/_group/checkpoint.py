"""The contents of a key group in the state store.

A group consists of parts: its timers, keys, buffered rows, watermark and each user state. The store holds a
part as a run of chunks, numbered from 0; replaying them in order rebuilds the part. A save appends the
changes. It rewrites the part instead if the changes are as large as the part, or if the run has grown to
twice the size of the part. The manifest lists the valid chunks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from timerheap.spark._group.chunks import USER_STATE, pieces, read_chunk, write_chunk

__all__ = [
    "CHUNKS_KEY",
    "CHUNKS_VALUE",
    "FORMAT",
    "MANIFEST",
    "CheckpointedPart",
    "ChunkStore",
    "Manifest",
    "Run",
    "Stored",
]

# Frozen: every checkpoint of this format has these schemas.
FORMAT = 2
CHUNKS_KEY = "kind smallint, id int"
CHUNKS_VALUE = "data binary"
MANIFEST = (
    "format int, token binary, max_parallelism int, partitions int, "
    "kinds array<struct<kind:smallint,name:string,count:int>>"
)
_SLACK = 16 << 10


class CheckpointedPart(Protocol):
    """A part of a group that is rebuilt by replaying its snapshot and changes in order."""

    @property
    def kind(self) -> int:
        """The kind of its chunks."""

    @property
    def name(self) -> str:
        """The name of the user state; for other parts a description that a restart must match."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of its chunks."""

    def changes(self) -> pa.RecordBatch | None:
        """Return the changes since the last call, or None if there are none; offsets may have 64 bits."""

    def snapshot(self) -> pa.RecordBatch:
        """Return the whole part; offsets may have 64 bits."""

    def replay(self, batch: pa.RecordBatch) -> None:
        """Apply a batch of `changes` or `snapshot`; raise ValueError if it belongs to another part."""

    def nbytes(self) -> int:
        """Return the approximate size of a snapshot."""


class ChunkStore(Protocol):
    """The Spark state variables of the current key group."""

    def read_all(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield all chunks as (kind, id, data), in any order."""

    def write(self, kind: int, id_: int, data: bytes) -> None:
        """Write a chunk."""

    def remove(self, kind: int, id_: int) -> None:
        """Remove a chunk."""

    def read_manifest(self) -> Manifest | None:
        """Return the manifest, or None for a new group."""

    def write_manifest(self, manifest: Manifest) -> None:
        """Write the manifest."""


@dataclass(slots=True)
class Run:
    """The chunks of one part, with the ids 0 to `count` - 1."""

    kind: int
    name: str
    count: int = 0
    nbytes: int = 0


@dataclass(slots=True)
class Manifest:
    """The table of contents of a group; every save, even a retried one, sets a new `token`."""

    max_parallelism: int
    partitions: int
    token: bytes = b""
    runs: list[Run] = field(default_factory=list)

    def check(self, max_parallelism: int, partitions: int) -> None:
        """Raise ValueError if the query changed a setting that a checkpoint fixes."""
        if self.max_parallelism != max_parallelism:
            raise ValueError(
                f"max_parallelism must be {self.max_parallelism}, as in the checkpoint, got "
                f"{max_parallelism}; pass max_parallelism={self.max_parallelism}, or start a new checkpoint"
            )
        if self.partitions != partitions:
            raise ValueError(partitions_changed(self.partitions, partitions))


def partitions_changed(was: int, now: int) -> str:
    """Return the error for a number of shuffle partitions other than `was`, which the query runs with."""
    conf = "spark.sql.shuffle.partitions"
    return (
        f"{conf}: process() planned for {now} shuffle partitions, but the query runs with {was}; a "
        f"checkpoint keeps the number it was started with: set {conf} to {was} before calling process(), or "
        "start a new checkpoint"
    )


class Stored:
    """The runs of one group as they are in the store."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._runs = {(run.kind, run.name): run for run in manifest.runs}
        self._dropped: list[Run] = []

    @classmethod
    def load(
        cls,
        store: ChunkStore,
        manifest: Manifest,
        make_part: Callable[[Run, pa.Schema], CheckpointedPart],
        drop_state: Collection[str] = (),
    ) -> Stored:
        """Load a group: replay the chunks of each run into the part that `make_part` creates for it.

        User states named in `drop_state` are not read, and the next save removes them.
        """
        dropped = [run for run in manifest.runs if run.kind >= USER_STATE and run.name in drop_state]
        manifest.runs = [run for run in manifest.runs if run not in dropped]
        chunks = {(kind, id_): data for kind, id_, data in store.read_all()}
        for run in manifest.runs:
            part: CheckpointedPart | None = None
            for id_ in range(run.count):
                data = chunks.get((run.kind, id_))
                if data is None:
                    raise ValueError(f"the checkpoint lacks chunk {id_} of kind {run.kind} {run.name!r}")
                batch = read_chunk(run.kind, data)
                part = part or make_part(run, batch.schema)
                part.replay(batch)
                run.nbytes += len(data)
        stored = cls(manifest)
        stored._dropped = dropped
        return stored

    def save(self, store: ChunkStore, parts: Iterator[CheckpointedPart]) -> None:
        """Write the changes, then the manifest with a new token."""
        for run in self._dropped:  # first, since a new state may reuse their kind
            for id_ in range(run.count):
                store.remove(run.kind, id_)
        self._dropped = []
        for part in parts:
            run = self._runs.setdefault((part.kind, part.name), Run(part.kind, part.name))
            changes = part.changes()
            size = part.nbytes()
            if run.nbytes > 2 * size + _SLACK or (changes is not None and changes.nbytes >= size):
                for id_ in range(run.count):
                    store.remove(run.kind, id_)
                run.count, run.nbytes = 0, 0
                changes = part.snapshot()
            elif changes is None:
                continue
            for piece in pieces(changes, part.schema):
                data = write_chunk(run.kind, piece)
                store.write(run.kind, run.count, data)
                run.count += 1
                run.nbytes += len(data)
        self.manifest.runs = [run for run in self._runs.values() if run.count]
        self.manifest.token = os.urandom(16)
        store.write_manifest(self.manifest)
