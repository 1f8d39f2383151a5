"""The live key groups of a task: kept by the worker, handed over in files, or loaded."""

from __future__ import annotations

import json
import os
import time
from typing import NamedTuple

from timerheap._native._core import xxh64
from timerheap.spark._group.checkpoint import ChunkStore, Manifest, Stored
from timerheap.spark._group.key_group import GroupLayout, KeyGroup, load_group
from timerheap.spark._group.live_file import LiveFile, LiveStore
from timerheap.spark._group.memory import PROCESS, Memory
from timerheap.spark._worker.driver_mail import Counts, Mail

_MOST = 128  # groups in files, since each keeps a few file descriptors


class Owner(NamedTuple):
    """The operator, within its query, that owns a live group."""

    query: str | None
    operator: str


class Held(NamedTuple):
    """A live group, as it was saved under a token in a micro-batch."""

    token: bytes
    batch: int
    group: KeyGroup
    stored: Stored


class Turn(NamedTuple):
    """The last micro-batch of an operator on this worker.

    run: the run of the query
    began: when it began, in seconds
    files: the files of the query; None if the executor has told no local directory
    layout: that of the first micro-batch, so that a worker keeps one copy of it, and of aggregates in Python
    """

    run: str | None
    batch: int
    began: float
    files: LiveStore | None
    layout: GroupLayout


class Cache:
    """The live groups of this worker, each valid only while its token matches the one in the store.

    A group is taken out before it is modified, so a group whose batch failed is never reused. A group that
    was not requested in the last `_KEEP` micro-batches has moved to another worker and is dropped. The
    groups of a query that has not run here for `_IDLE` seconds are dropped too. When a query is restarted,
    the groups of its earlier runs are dropped, so each query has the groups of at most one run.
    """

    _KEEP = 8
    _IDLE = 600.0

    def __init__(self) -> None:
        self._groups: dict[tuple[Owner, int], Held] = {}
        self._turns: dict[Owner, Turn] = {}

    def begin(self, owner: Owner, layout: GroupLayout, run: str | None, batch: int) -> Turn:
        """Record that a micro-batch of an operator begins, and drop the groups that are out of date."""
        before = self._turns.get(owner)
        if before is not None and (before.run, before.batch) == (run, batch):
            return before
        now = time.monotonic()
        kept = layout if before is None else before.layout
        self._turns[owner] = turn = Turn(
            run, batch, now, None if layout.encrypted else _files_of(owner.query), kept
        )
        self._turns = {
            other: turn
            for other, turn in self._turns.items()
            if turn.began > now - self._IDLE and (other.query != owner.query or turn.run == run)
        }
        self._groups = {
            at: held
            for at, held in self._groups.items()
            if at[0] in self._turns and held.batch >= self._turns[at[0]].batch - self._KEEP
        }
        return turn

    def take(self, owner: Owner, label: int) -> Held | None:
        """Remove the group of `label` and return it, whatever its token."""
        return self._groups.pop((owner, label), None)

    def put(self, owner: Owner, label: int, group: KeyGroup, stored: Stored) -> None:
        """Store a group that has just been saved."""
        self._groups[owner, label] = Held(stored.manifest.token, self._turns[owner].batch, group, stored)
        if len(self._groups) > _MOST:
            mapped = [at for at, held in self._groups.items() if isinstance(held.group.memory, LiveFile)]
            for at in mapped[:-_MOST]:
                del self._groups[at]


def _files_of(query: str | None) -> LiveStore | None:
    directories = os.environ.get("SPARK_LOCAL_DIRS")
    if not directories or query is None:
        return None
    files = LiveStore(directories.split(","), query)
    files.sweep()
    return files


_cache = Cache()


class LiveGroups:
    """The key groups of one operator in a task: each is loaded, saved, and kept live for the next task.

    A live group is in a file of the executor, which the next worker takes under the token of the save. The
    worker also keeps the group's objects, for the case that it gets the group again. Without a file, it is
    all there is: then a group that moves to another worker is loaded from the state store.

    store: the state of the group that Spark has made current
    counts: where the groups of the task so far came from
    """

    def __init__(
        self,
        layout: GroupLayout,
        store: ChunkStore,
        owner: Owner,
        max_parallelism: int,
        mail: Mail,
    ) -> None:
        self._layout = layout
        self._store = store
        self._owner = owner
        self._max_parallelism = max_parallelism
        self._mail = mail
        self._files: LiveStore | None = None
        self.counts = Counts()

    def begin(self, run: str | None, batch: int) -> None:
        """Begin a task of a micro-batch."""
        turn = _cache.begin(self._owner, self._layout, run, batch)
        self._files, self._layout = turn.files, turn.layout

    def load(self, label: int) -> tuple[KeyGroup, Stored]:
        """Return the current key group."""
        held = _cache.take(self._owner, label)
        manifest = self._store.read_manifest()
        if manifest is None:
            self._count(Counts(new=1))
            manifest = Manifest(self._max_parallelism, _id_of(self._owner.operator, label))
            return KeyGroup(self._layout, self._memory(manifest.id)), Stored(manifest)
        manifest.check(self._max_parallelism)
        if held is not None and _in_process(held.group.memory) and held.token == manifest.token:
            self._count(Counts(continued=1))
            return held.group, held.stored
        found = self._handed_over(held, manifest)
        if found is None:
            del held  # so that the group is not in memory twice
            found = self._loaded(manifest)
        return found

    def save(
        self,
        label: int,
        group: KeyGroup,
        stored: Stored,
        clock: bytes,
        whole: bool = False,
        writes_clock: bool = True,
    ) -> None:
        """Save the changes of the current key group, or the whole, and its clock, and keep it live."""
        stored.save(self._store, group, clock, whole=whole, writes_clock=writes_clock)
        file, manifest = group.memory, stored.manifest
        if isinstance(file, LiveFile) and self._files is not None:
            if file.failure is None:
                head = json.dumps(group.head()).encode()
                self._files.release(file, head, manifest.id, manifest.token)
            if file.failure is not None:
                self._report(file.failure)
        _cache.put(self._owner, label, group, stored)

    def _count(self, counts: Counts) -> None:
        self._mail.count(counts)
        self.counts = self.counts.plus(counts)

    def _handed_over(self, held: Held | None, manifest: Manifest) -> tuple[KeyGroup, Stored] | None:
        """Continue a group in its file; return None if it has none that can be used."""
        if self._files is None:
            return None
        known = held.group.memory if held is not None and isinstance(held.group.memory, LiveFile) else None
        file = self._files.take(manifest.id, manifest.token, known)
        if file is None:
            return None
        if held is not None and file is known:
            if held.token == manifest.token:
                self._count(Counts(continued=1))
                return held.group, held.stored
            file = file.anew()  # other workers have had it since
        try:
            head = json.loads(file.read_head())
            if not KeyGroup.fits(self._layout, head):  # the query was restarted with changes
                file.discard()
                return None
            group = KeyGroup(self._layout, file, head)
        except Exception as e:  # whatever is wrong with a file, the state store has the same contents
            file.discard()
            self._mail.tally(
                "damage",
                "live state was damaged or is of another version, and is loaded from the checkpoint, {} "
                f"times so far: {e!r}",
            )
            return None
        self._count(Counts(handed_over=1))
        return group, Stored(manifest)

    def _loaded(self, manifest: Manifest) -> tuple[KeyGroup, Stored]:
        """Load a group from the state store."""
        self._count(Counts(loaded=1))
        return load_group(self._store, manifest, self._layout, self._memory(manifest.id))

    def _memory(self, group: bytes) -> Memory:
        """Return a file for a group, or the memory of the process."""
        if self._files is None:
            self._warn(
                "spark.io.encryption.enabled is true, and files of live state are not encrypted"
                if self._layout.encrypted
                else "SPARK_LOCAL_DIRS names no directory"
            )
            return PROCESS
        try:
            return self._files.create(group)
        except OSError as e:
            self._report(e)
            return PROCESS

    def _report(self, failure: OSError) -> None:
        directory = os.path.dirname(failure.filename or "") or "the executor's local directory"
        self._warn(f"a file in {directory} cannot be used ({failure.strerror})")

    def _warn(self, why: str) -> None:
        self._mail.warn(
            [
                f"live state is kept in the memory of each Python worker, since {why}; a key group that "
                "moves to another worker is loaded from the state store"
            ]
        )


def _id_of(operator: str, label: int) -> bytes:
    """Return the id of a new group, which is the same in all attempts of a task."""
    return xxh64(f"{operator} {label}".encode()).to_bytes(8, "little")


def _in_process(memory: Memory) -> bool:
    return not isinstance(memory, LiveFile) or memory.failure is not None
