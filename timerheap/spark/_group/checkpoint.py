"""The contents of a key group in the state store.

A group consists of parts: its timers, keys, buffered rows, windows and each user state. The store holds a
part as a run: a stack of segments, each a few chunks, whose batches rebuild the part when they are replayed
in order. The manifest says how many there are.

A save pushes the changes of a part as a new segment; nothing is written for a part that has not changed.
Segments have levels by their size, each level of 8 times the size of the one below. Once about 8 segments of
a level are on top of the stack, they are merged into one (`Tiers`). So a part of n bytes has O(log n)
segments, and a byte is written again a few times per level: O(log n) times. A merge reads only the segments
that it merges, and none of the small ones that this process has written itself.

A part is written anew from memory where that is less: if the changes are as large as the part, if a merge
would take in the whole stack, or if the stack has grown to about twice the size of the part. The last costs
O(1) for each byte written since, and keeps the checkpoint within a constant factor of the live state, as long
as entries are about as large as they were in the last snapshot. These limits depend a little on the group's
id, so that not all groups merge in the same micro-batch.

The clock is the same in all groups of a task. A large one is written by the first of them. The others keep
what they have written when a channel last was new: if Spark repartitions a checkpoint, one of them may become
the first of its task, and then knows all channels.

What a save writes is a function of the stored state and the input: it does not depend on buffers, orders and
thresholds of the process that happens to have the group. So all attempts of a task write the same chunks, and
what Spark puts together from several attempts (speculation, checkpoint format 1) is whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Protocol

import pyarrow as pa

from timerheap._native._heap import seal, unseal, xxh64
from timerheap.spark._group.chunks import (
    CLOCK,
    USER_STATE,
    pieces,
    read_chunk,
    read_schema,
    write_chunk,
    write_schema,
)
from timerheap.spark._group.clock_bytes import halves
from timerheap.spark._group.manifest import INLINE_CLOCK, Manifest, Run, Segment, digest, joint_digest
from timerheap.spark._group.offsets import size_of, widen
from timerheap.spark._group.standing import NOTHING, Standing
from timerheap.spark._group.tiers import Tiers
from timerheap.timer import MIN_WATERMARK

__all__ = [
    "CheckpointedPart",
    "ChunkStore",
    "LoadedPart",
    "Stored",
    "read_clock",
]

_HALVES = (0, 1)  # the ids of the chunks of a clock: times and names


class LoadedPart(Protocol):
    """A part of a group that is built by replaying its snapshot and changes in order."""

    def replay(self, batch: pa.RecordBatch) -> None:
        """Apply a batch of `changes`, `snapshot` or `merge`; raise ValueError if it belongs to another part.

        A load calls this for each chunk, so it must not copy the part.
        """

    def reserve(self, times: float) -> None:
        """Make room for `times` the present contents; a load calls it after the first of several chunks."""


class CheckpointedPart(LoadedPart, Protocol):
    """A part of a group that is saved by its changes."""

    @property
    def kind(self) -> int:
        """The kind of its chunks."""

    @property
    def name(self) -> str:
        """The name of the user state; for other parts a description that a restart must match."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of its chunks."""

    @property
    def id_column(self) -> int:
        """The number of the column with key ids; names do not tell, since users name columns, too."""

    def changes(self) -> pa.RecordBatch | None:
        """Return the changes since the last call, or None if there are none; offsets may have 64 bits."""

    def snapshot(self) -> pa.RecordBatch:
        """Return the whole part; offsets may have 64 bits."""

    def merge(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        """Return one batch whose replay has the effect of replaying these; the part does not change.

        Batches have 64-bit offsets, and may be pieces of what `changes`, `snapshot` or `merge` returned.
        There may be older ones, so what removes something must stay.
        """

    def __len__(self) -> int:
        """Return the number of entries, from which the size of a snapshot is estimated."""


class ChunkStore(Protocol):
    """The Spark state variables of the current key group."""

    def read(self, kind: int, id_: int) -> bytes | None:
        """Return a chunk, or None if there is none."""

    def write(self, kind: int, id_: int, data: bytes) -> None:
        """Write a chunk."""

    def remove(self, kind: int, id_: int) -> None:
        """Remove a chunk."""

    def read_manifest(self) -> Manifest | None:
        """Return the manifest, or None for a new group."""

    def write_manifest(self, manifest: Manifest) -> None:
        """Write the manifest."""


def read_clock(manifest: Manifest, read: Callable[[int, int], bytes | None]) -> bytes:
    """Return the clock of a manifest; `read` returns a chunk by kind and id, or None."""
    if not manifest.clock_apart:
        return manifest.clock
    return b"".join(_read_half(read, half, manifest.clock[16 * half : 16 * half + 16]) for half in _HALVES)


def _read_half(read: Callable[[int, int], bytes | None], id_: int, wanted: bytes) -> bytes:
    data = read(CLOCK, id_)
    if data is None:
        raise ValueError("the checkpoint lacks a chunk of the watermark's state")
    try:
        with pa.CompressedInputStream(pa.BufferReader(unseal(CLOCK, data)), "lz4") as stream:
            half = bytes(stream.read())
    except (pa.ArrowException, OSError) as e:
        raise ValueError(f"a chunk of the watermark's state must hold a clock: {e}") from e
    if digest(half) != wanted:
        raise ValueError("a chunk of the watermark's state is not that of the manifest")
    return half


class Stored:
    """The runs of one group as they are in the store.

    All that it has to know is in the manifest, so ``Stored(manifest)`` continues what another process saved.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._runs = {run.kind: run for run in manifest.runs}
        self._tiers = Tiers(manifest.id)
        self._dropped: list[Run] = []
        self._checked: set[int] = set()  # the kinds whose schema is known to be that of chunk 0
        self._recent: dict[tuple[int, int], bytes] = {}  # small chunks that a merge will want soon

    @classmethod
    def load(
        cls,
        store: ChunkStore,
        manifest: Manifest,
        make_part: Callable[[int, str, pa.Schema], LoadedPart],
        drop_state: Collection[str] = (),
    ) -> Stored:
        """Load a group: replay the chunks of each run into the part of this kind, name and schema.

        User states named in `drop_state` are not read, and the next save removes them.
        """
        dropped = []
        for run in manifest.runs:
            if not run.segments and run.kind < USER_STATE:
                continue
            name, schema = read_schema(run.kind, _read(store, run.kind, 0, ""))
            if run.kind >= USER_STATE and name in drop_state:
                dropped.append(run)
                continue
            part = make_part(run.kind, name, schema)
            first = 1
            for segment in run.segments:
                joint = 0
                for id_ in range(first, first + segment.count):
                    data = _read(store, run.kind, id_, name)
                    joint = joint_digest(data, joint)
                    batch = read_chunk(run.kind, data, schema)
                    part.replay(batch)
                    if id_ == 1:
                        # If its rows are longer than most, the number of rows would say too much.
                        times = min(run.rows / max(1, batch.num_rows), 17 / 16 * run.nbytes / len(data))
                        if times > 1:
                            part.reserve(times)
                if joint != segment.digest:
                    raise ValueError(_mixed(run.kind, name))
                first += segment.count
        manifest.runs = [run for run in manifest.runs if run not in dropped]
        stored = cls(manifest)
        stored._dropped = dropped
        return stored

    @property
    def drops(self) -> bool:
        """Whether the next save removes a state."""
        return bool(self._dropped)

    def read_clock(self, store: ChunkStore) -> bytes:
        """Return the clock of the last save."""
        return read_clock(self.manifest, store.read)

    def save(
        self,
        store: ChunkStore,
        parts: Iterable[CheckpointedPart],
        clock: bytes,
        losses: Callable[[], int] = int,
        late_rows: int = 0,
        wake_up: int | None = None,
        standing: Standing = NOTHING,
        whole: bool = False,
        watermark: int = MIN_WATERMARK,
        writes_clock: bool = True,
    ) -> None:
        """Write the changes, or all parts as a `whole`, then the manifest with a new token.

        A large clock is left as it was stored, unless the group `writes_clock`. `losses` is called after the
        parts, which may count some when they are written.
        """
        manifest = self.manifest
        self._save_clock(store, clock, writes_clock)
        manifest.watermark = watermark
        manifest.late_rows, manifest.wake_up, manifest.standing = late_rows, wake_up, standing
        for run in self._dropped:  # first, since a new state may reuse their kind
            for id_ in range(run.count + 1):
                store.remove(run.kind, id_)
        self._dropped = []
        for part in parts:
            self._save_part(store, part, whole)
        manifest.losses = losses()
        manifest.runs = sorted(self._runs.values(), key=lambda run: run.kind)
        manifest.token = os.urandom(16)
        store.write_manifest(manifest)

    def _save_clock(self, store: ChunkStore, clock: bytes, writes: bool) -> None:
        """Put the clock into the manifest, or what has changed of a large one into chunks."""
        manifest = self.manifest
        before = manifest.clock if manifest.clock_apart else b""
        if len(clock) <= INLINE_CLOCK:
            for half in _HALVES if before else ():
                store.remove(CLOCK, half)
            manifest.clock, manifest.clock_apart, manifest.clock_stale = clock, False, False
        elif writes or not before:
            manifest.clock, manifest.clock_apart, manifest.clock_stale = b"", True, False
            for half, data in zip(_HALVES, halves(clock), strict=True):
                now = digest(data)
                if now != before[16 * half : 16 * half + 16]:
                    store.write(CLOCK, half, seal(CLOCK, pa.compress(data, "lz4", asbytes=True)))
                manifest.clock += now
        else:
            manifest.clock_stale = True

    def _save_part(self, store: ChunkStore, part: CheckpointedPart, whole: bool) -> None:
        changes = part.changes()
        run = self._runs.get(part.kind)
        if run is None:
            run = Run(part.kind)
            if run.kind >= USER_STATE:  # even an empty one, so that its name keeps its kind
                self._runs[run.kind] = run
                self._check_schema(store, part, run)
        changed = 0 if changes is None else size_of(changes)
        live = run.size * len(part) // max(1, run.entries)
        rewrite = whole or self._tiers.overgrown(run.nbytes, changed, live)
        if not rewrite and changes is None:
            return
        self._runs[part.kind] = run
        rewrite |= self._check_schema(store, part, run)
        if changes is None or rewrite:
            self._rewrite(store, part, run)
            return
        sizes = [segment.nbytes for segment in run.segments]
        start = self._tiers.merge_from([*sizes, changed])
        if start == 0:
            self._rewrite(store, part, run)
            return
        if start < len(sizes):
            changes = part.merge([*self._read_segments(store, part, run, start), changes])
        self._push(store, part, run, start, changes)

    def _rewrite(self, store: ChunkStore, part: CheckpointedPart, run: Run) -> None:
        snapshot = part.snapshot()
        run.size, run.entries = size_of(snapshot), len(part)
        self._push(store, part, run, 0, snapshot)

    def _check_schema(self, store: ChunkStore, part: CheckpointedPart, run: Run) -> bool:
        """Write chunk 0 if the part's schema is not that of the run, and return whether it was not."""
        if part.kind in self._checked:
            return False
        self._checked.add(part.kind)
        data = write_schema(part.kind, part.name, part.schema)
        fingerprint = xxh64(data) & 0xFFFFFFFF
        if run.schema == fingerprint:
            return False
        store.write(part.kind, 0, data)
        run.schema = fingerprint
        return True

    def _read_segments(
        self, store: ChunkStore, part: CheckpointedPart, run: Run, start: int
    ) -> Iterator[pa.RecordBatch]:
        first = 1 + sum(segment.count for segment in run.segments[:start])
        for id_ in range(first, run.count + 1):
            data = self._recent.get((run.kind, id_)) or _read(store, run.kind, id_, part.name)
            yield widen(read_chunk(run.kind, data, part.schema))

    def _push(
        self, store: ChunkStore, part: CheckpointedPart, run: Run, start: int, batch: pa.RecordBatch
    ) -> None:
        """Replace the segments from `start` on by one that holds `batch`."""
        kind, before = run.kind, run.count
        del run.segments[start:]
        id_, nbytes, joint = run.count, 0, 0
        first = id_ + 1
        for piece in pieces(batch, part.schema):
            id_ += 1
            data = write_chunk(kind, piece)
            store.write(kind, id_, data)
            nbytes += len(data)
            joint = joint_digest(data, joint)
            self._keep(kind, id_, data)
        for left in range(id_ + 1, before + 1):
            store.remove(kind, left)
            self._recent.pop((kind, left), None)
        if id_ >= first:
            run.segments.append(Segment(id_ - first + 1, nbytes, batch.num_rows, joint))

    def _keep(self, kind: int, id_: int, data: bytes) -> None:
        if self._tiers.small(len(data)):
            self._recent[kind, id_] = data
        else:
            self._recent.pop((kind, id_), None)


def _read(store: ChunkStore, kind: int, id_: int, name: str) -> bytes:
    data = store.read(kind, id_)
    if data is None:
        raise ValueError(f"the checkpoint lacks chunk {id_} of kind {kind} {name!r}")
    return data


def _mixed(kind: int, name: str) -> str:
    """Return the error for chunks that another attempt of a task has written."""
    return (
        f"the checkpoint mixes chunks of kind {kind} {name!r} from two attempts of a task, as may come of "
        "spark.speculation; start from an older version of the checkpoint, or a new one, and set "
        "spark.sql.streaming.stateStore.checkpointFormatVersion to 2"
    )
