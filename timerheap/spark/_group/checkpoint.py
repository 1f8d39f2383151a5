"""What a key group keeps in the state store, and the worker's cache of live groups.

A group is made of parts (timers, keys, waiting rows, each user state, the clock). In the store a part is a
run of chunks, numbered from 0: replayed in order they give the part. A save appends what has changed, and
writes the part anew where that is no more, or where the run has come to hold twice what the part is worth.
The manifest says which chunks count.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import pyarrow as pa

from timerheap.spark._group.chunks import USER_STATE, pieces, read_chunk, write_chunk

__all__ = [
    "CHUNKS_KEY",
    "CHUNKS_VALUE",
    "FORMAT",
    "MANIFEST",
    "Cache",
    "CheckpointedPart",
    "ChunkStore",
    "Manifest",
    "Owner",
    "Run",
    "Stored",
]

# Frozen: every checkpoint has this schema.
FORMAT = 2
CHUNKS_KEY = "kind smallint, id int"
CHUNKS_VALUE = "data binary"
MANIFEST = (
    "format int, token binary, max_parallelism int, partitions int, "
    "kinds array<struct<kind:smallint,name:string,count:int>>"
)
_SLACK = 16 << 10


class CheckpointedPart(Protocol):
    """Something that a group keeps: replaying snapshot and changes in order gives it back."""

    @property
    def kind(self) -> int:
        """Kind of its chunks."""

    @property
    def name(self) -> str:
        """The user state's name; for the other parts what they are, where a restart must agree."""

    @property
    def schema(self) -> pa.Schema:
        """Schema of its chunks."""

    def changes(self) -> pa.RecordBatch | None:
        """Give what was done since the last call, None where nothing was; its offsets may be of 64 bits."""

    def snapshot(self) -> pa.RecordBatch:
        """Give everything, likewise."""

    def replay(self, batch: pa.RecordBatch) -> None:
        """Do again what one of them recorded; ValueError where the batch is none of its own."""

    def nbytes(self) -> int:
        """Give the size of a snapshot, roughly."""


class ChunkStore(Protocol):
    """The state variables of the current key group, as Spark offers them."""

    def read_all(self) -> Iterator[tuple[int, int, bytes]]:
        """Give all chunks as (kind, id, data), in any order."""

    def write(self, kind: int, id_: int, data: bytes) -> None:
        """Put a chunk."""

    def remove(self, kind: int, id_: int) -> None:
        """Remove a chunk."""

    def read_manifest(self) -> Manifest | None:
        """Give the manifest, None in a new group."""

    def write_manifest(self, manifest: Manifest) -> None:
        """Put the manifest."""


@dataclass(slots=True)
class Run:
    """The chunks of one part: ids 0 to before `count`."""

    kind: int
    name: str
    count: int = 0
    nbytes: int = 0


@dataclass(slots=True)
class Manifest:
    """A group's table of contents; `token` is new with every save, and no other attempt has it."""

    max_parallelism: int
    partitions: int
    token: bytes = b""
    runs: list[Run] = field(default_factory=list)

    def check(self, max_parallelism: int, partitions: int) -> None:
        """Refuse a query that was changed in what a checkpoint fixes."""
        if self.max_parallelism != max_parallelism:
            raise ValueError(
                f"max_parallelism: this checkpoint has {self.max_parallelism} key groups, the query asks for "
                f"{max_parallelism}; pass max_parallelism={self.max_parallelism}, or start a new checkpoint"
            )
        if self.partitions != partitions:
            raise ValueError(partitions_changed(self.partitions, partitions))


def partitions_changed(was: int | None, now: int) -> str:
    """Say that the shuffle partitions are not those of the plan; `was`: the checkpoint's, if known."""
    conf = "spark.sql.shuffle.partitions"
    number = "the number that the checkpoint was started with" if was is None else str(was)
    return (
        f"{conf}: process() has planned for {now} shuffle partitions, and the query runs with "
        f"{'another number' if was is None else was}; a checkpoint keeps the number it was started with: "
        f"set {conf} to {number} before calling process(), or start a new checkpoint"
    )


class Stored:
    """The runs of one group, as the store has them."""

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
        """Read a group: `make_part` gives the part of a run, and the chunks are replayed into it.

        The user's states that `drop_state` names are not read, and gone with the next save.
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
        """Write what has changed, then the manifest under a new token."""
        for run in self._dropped:  # first, since a new state may be of their kind
            for id_ in range(run.count):
                store.remove(run.kind, id_)
        self._dropped = []
        for part in parts:
            run = self._runs.setdefault((part.kind, part.name), Run(part.kind, part.name))
            changes = part.changes()
            worth = part.nbytes()
            if run.nbytes > 2 * worth + _SLACK or (changes is not None and changes.nbytes >= worth):
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


class Owner(NamedTuple):
    """Whose a live group is: an operator's, in a query."""

    query: str | None
    operator: str


class _Turn(NamedTuple):
    """When an operator has been here last: in which run of its query, in which micro-batch."""

    run: str | None
    batch: int
    began: float


class Cache:
    """Live groups of this worker, each good only for the token that its store shows.

    A group is taken out before it is touched, so one that failed half-way is never seen again. One that was
    not asked for in the last `_KEEP` micro-batches has moved to another worker, and is dropped. So are the
    groups of a query that has not run here for `_IDLE` seconds, and as soon as a query has been started
    again, those of its earlier runs: of a query no more than one run's groups live.
    """

    _KEEP = 8
    _IDLE = 600.0

    def __init__(self) -> None:
        self._groups: dict[tuple[Owner, int], tuple[bytes, int, object]] = {}
        self._turns: dict[Owner, _Turn] = {}

    def begin(self, owner: Owner, run: str | None, batch: int) -> None:
        """Say which micro-batch, in which run of the query, begins for an operator."""
        before = self._turns.get(owner)
        if before is not None and (before.run, before.batch) == (run, batch):
            return
        now = time.monotonic()
        self._turns[owner] = _Turn(run, batch, now)
        self._turns = {
            other: turn
            for other, turn in self._turns.items()
            if turn.began > now - self._IDLE and (other.query != owner.query or turn.run == run)
        }
        self._groups = {
            at: held
            for at, held in self._groups.items()
            if at[0] in self._turns and held[1] >= self._turns[at[0]].batch - self._KEEP
        }

    def take(self, owner: Owner, label: int, token: bytes) -> object | None:
        """Take out the group of `label` if it has this token."""
        found = self._groups.pop((owner, label), None)
        return found[2] if found is not None and found[0] == token else None

    def put(self, owner: Owner, label: int, token: bytes, group: object) -> None:
        """Keep a group that has just been saved under `token`."""
        self._groups[owner, label] = (token, self._turns[owner].batch, group)
