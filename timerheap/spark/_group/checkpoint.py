"""The contents of a key group in the state store.

A group consists of parts: its timers, keys, buffered rows, watermark and each user state. The store holds a
part as a run of chunks, numbered from 0; replaying them in order rebuilds the part. A save appends the
changes. It rewrites the part instead if the changes are as large as the part, or if the run has grown to
twice the size of the part. The manifest lists the valid chunks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Protocol

import pyarrow as pa

from timerheap._native._heap import seal, unseal
from timerheap.spark._group.chunks import CLOCK, USER_STATE, pieces, read_chunk, write_chunk
from timerheap.spark._group.manifest import INLINE_CLOCK, Manifest, Run, digest

__all__ = [
    "CHUNKS_KEY",
    "CHUNKS_VALUE",
    "MANIFEST",
    "CheckpointedPart",
    "ChunkStore",
    "Stored",
    "partitions_changed",
    "read_clock",
]

# Frozen: every checkpoint has these schemas.
CHUNKS_KEY = "kind smallint, id int"
CHUNKS_VALUE = "data binary"
MANIFEST = "data binary"
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

    def read(self, kind: int, id_: int) -> bytes | None:
        """Return a chunk, or None if there is none."""

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


def partitions_changed(was: int, now: int) -> str:
    """Return the error for a number of shuffle partitions other than `was`, which the query runs with."""
    conf = "spark.sql.shuffle.partitions"
    return (
        f"{conf}: process() planned for {now} shuffle partitions, but the query runs with {was}; a "
        f"checkpoint keeps the number it was started with: set {conf} to {was} before calling process(), or "
        "start a new checkpoint"
    )


def read_clock(manifest: Manifest, read: Callable[[int, int], bytes | None]) -> bytes:
    """Return the clock of a manifest; `read` returns a chunk by kind and id, or None."""
    if not manifest.clock_apart:
        return manifest.clock
    data = read(CLOCK, 0)
    if data is None:
        raise ValueError("the checkpoint lacks the chunk of the watermark's state")
    try:
        with pa.CompressedInputStream(pa.BufferReader(unseal(CLOCK, data)), "lz4") as stream:
            clock = bytes(stream.read())
    except (pa.ArrowException, OSError) as e:
        raise ValueError(f"the chunk of the watermark's state must hold a clock: {e}") from e
    if digest(clock) != manifest.clock:
        raise ValueError("the chunk of the watermark's state is not that of the manifest")
    return clock


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

    def read_clock(self, store: ChunkStore) -> bytes:
        """Return the clock of the last save."""
        return read_clock(self.manifest, store.read)

    def save(
        self,
        store: ChunkStore,
        parts: Iterable[CheckpointedPart],
        clock: bytes,
        late_rows: int = 0,
        wake_up: int | None = None,
    ) -> None:
        """Write the changes, then the manifest with a new token."""
        manifest = self.manifest
        self._save_clock(store, clock)
        manifest.late_rows, manifest.wake_up = late_rows, wake_up
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
        manifest.runs = [run for run in self._runs.values() if run.count]
        manifest.token = os.urandom(16)
        store.write_manifest(manifest)

    def _save_clock(self, store: ChunkStore, clock: bytes) -> None:
        """Put the clock into the manifest, or into a chunk if it is large and has changed."""
        manifest = self.manifest
        apart = len(clock) > INLINE_CLOCK
        short = digest(clock) if apart else clock
        if apart and not (manifest.clock_apart and manifest.clock == short):
            store.write(CLOCK, 0, seal(CLOCK, pa.compress(clock, "lz4", asbytes=True)))
        elif manifest.clock_apart and not apart:
            store.remove(CLOCK, 0)
        manifest.clock, manifest.clock_apart = short, apart
