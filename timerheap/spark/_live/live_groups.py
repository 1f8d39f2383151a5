"""The live key groups of a task: kept by the worker, handed over in files, or loaded."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from timerheap._native._core import xxh64
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.layout import GroupLayout
from timerheap.spark._group.saving import Stored, loaded_group
from timerheap.spark._group.state_names import expect_stored
from timerheap.spark._group.stored.chunk_store import ChunkStore
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._live.large_groups import is_large, large_group
from timerheap.spark._live.live_cache import Cache, Held, Owner
from timerheap.spark._live.live_file import LiveFile
from timerheap.spark._live.live_store import LiveStore
from timerheap.spark._live.memory_limit import settling_of
from timerheap.spark._memory.blocks import PROCESS, Memory
from timerheap.spark._settling.settling_keys import SettledLost

_cache = Cache()
_TURNS = 4  # micro-batches, in one of which it is the turn of a group to let keys settle


class DriverLog(Protocol):
    """What messages to the driver's log are given to."""

    def warn(self, messages: Iterable[str], about: str | None = None, /) -> None:
        """Warn of each message once."""

    def tally(self, about: str, text: str, /) -> None:
        """Tell `text` with how often it has been told, in place of ``{}``."""


class LiveGroups:
    """The key groups of one operator in a task: each is loaded, saved, and kept live for the next task.

    A live group is in a file of the executor, which the next worker takes under the token of the save. The
    worker also keeps the group's objects, for the case that it gets the group again. Without a file, it is
    all there is: then a group that moves to another worker is loaded from the state store.

    store: the state of the group that Spark has made current
    origins: how many groups of the task so far were "new", "continued" in the same worker, "handed over", or
        "loaded" from the state store, which takes as long as their state is large
    settled: of the groups that the task has saved so far, how many keys had settled then ("keys"), the bytes
        of their runs ("bytes"), and how many keys had come back ("returned")
    """

    def __init__(
        self, layout: GroupLayout, store: ChunkStore, owner: Owner, max_parallelism: int, mail: DriverLog
    ) -> None:
        self._layout = layout
        self._store = store
        self._owner = owner
        self._writer = xxh64(owner.operator.encode()).to_bytes(8, "little")
        self._max_parallelism = max_parallelism
        self._mail = mail
        self._files: LiveStore | None = None
        self._batch = 0
        self._turn: int | None = None  # of the group that was saved last
        self.origins: Counter[str] = Counter()
        self.settled: Counter[str] = Counter()

    def begin(self, run: str | None, batch: int) -> None:
        turn = _cache.begin(self._owner, self._layout, run, batch)
        self._files, self._layout, self._batch = turn.files, turn.layout, turn.batch
        self._turn = None

    def load(self, label: int) -> tuple[KeyGroup, Stored]:
        """Return the current key group."""
        held = _cache.take(self._owner, label)  # also out of the cache: the batch that changes it may fail
        manifest = self._store.read_manifest()
        if manifest is None:
            self.origins["new"] += 1
            id_ = xxh64(f"{self._owner.operator} {label}".encode()).to_bytes(8, "little")  # in all attempts
            manifest = Manifest(self._max_parallelism, id_)
            return KeyGroup(self._layout, self._memory(manifest.id)), Stored(manifest)
        manifest.check(self._max_parallelism)
        if self._layout.expected and not manifest.token.startswith(self._writer):
            expect_stored(self._layout, self._store, manifest)  # before this operator has made the changes
        if held is not None and held.token == manifest.token:
            memory = held.group.memory
            if not isinstance(memory, LiveFile) or memory.failure is not None:  # in this process alone
                self.origins["continued"] += 1
                return held.group, held.stored
        found = self._handed_over(held, manifest)
        if found is None:
            del held  # so that the group is not in memory twice
            found = self._loaded(manifest)
        return found

    def counts(self) -> dict[str, int]:
        """Return the metrics of where groups and keys have come from so far, by name."""
        return {
            "groups_handed_over": self.origins["handed over"],
            "groups_loaded": self.origins["loaded"],
            "settled_keys": self.settled["keys"],
            "settled_bytes": self.settled["bytes"],
            "returned_keys": self.settled["returned"],
        }

    def load_again(self, group: KeyGroup, lost: SettledLost) -> tuple[KeyGroup, Stored]:
        """Return the current key group from the state store, since keys that have settled are lost."""
        assert isinstance(group.memory, LiveFile)
        group.memory.discard()
        self._tell_damage(lost)
        manifest = self._store.read_manifest()
        assert manifest is not None
        return self._loaded(manifest)

    def save(
        self,
        label: int,
        group: KeyGroup,
        stored: Stored,
        watermark_state: bytes,
        whole: bool = False,
        writes_watermark: bool = True,
    ) -> None:
        """Save the changes of the current key group, or the whole, with the watermark, and keep it live."""
        # In a renewal it is written without anything that has been removed, and not kept, since its memory
        # has what was removed.
        file, manifest = group.memory, stored.manifest
        renewal = manifest.renews(self._batch)
        group.forget_dead_keys(always=renewal)
        whole |= renewal
        stored.save(
            self._store,
            group,
            watermark_state,
            whole=whole,
            writes_watermark=writes_watermark,
            writer=self._writer,
        )
        if renewal:
            if isinstance(file, LiveFile):
                file.discard()
            return
        if isinstance(file, LiveFile) and self._files is not None:
            self.settled["returned"] += group.settling.came
            try:
                group.settling.settle(settling_of(self._files.groups, waits=self._waits(label)))
            except SettledLost as e:
                file.discard()
                self._tell_damage(e)
                return
            if (settled := group.settling.settled) is not None:
                self.settled.update(keys=len(settled), bytes=sum(len(run.bytes) for run in settled.places))
            if file.failure is None:
                head = json.dumps(group.head()).encode()
                self._files.release(file, head, manifest.id, manifest.token)
            if file.failure is not None:
                self._report(file.failure)
        _cache.put(self._owner, label, group, stored)

    def _waits(self, label: int) -> bool:
        """Return whether it is the turn of other groups to let keys settle."""
        # Groups grow alike, so all of them would write their runs in the same micro-batch. Those of a task
        # take turns, and their first label tells one task from another.
        self._turn = label + self._batch if self._turn is None else self._turn + 1
        return self._turn % _TURNS > 0

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
                self.origins["continued"] += 1
                if runs := held.group.settling.runs:
                    file.attached(runs)
                return held.group, held.stored
            file = file.anew()  # other workers have had it since
        try:
            head = json.loads(file.read_head())
            if not KeyGroup.fits(self._layout, head):  # the query was restarted with changes
                file.discard()
                return None
            group = KeyGroup(self._layout, file, head)
            file.attached(group.settling.runs)
        except Exception as e:  # whatever is wrong with a file, the state store has the same contents
            file.discard()
            self._tell_damage(e)
            return None
        self.origins["handed over"] += 1
        return group, Stored(manifest)

    def _loaded(self, manifest: Manifest) -> tuple[KeyGroup, Stored]:
        self.origins["loaded"] += 1
        memory = self._memory(manifest.id)
        if isinstance(memory, LiveFile) and self._files is not None:
            settling = settling_of(self._files.groups)
            if is_large(manifest, self._layout, settling):
                try:
                    group, stored = large_group(self._store, manifest, self._layout, memory, settling)
                    memory.attached(group.settling.runs)
                    return group, stored
                except (OSError, ValueError) as e:  # of a file here; if it is the state store, it comes again
                    memory.discard()
                    self._tell_damage(e)
                    memory = self._memory(manifest.id)
        return loaded_group(self._store, manifest, self._layout, memory)

    def _tell_damage(self, error: Exception) -> None:
        self._mail.tally(
            "damage",
            "live state was damaged or is of another version, and is loaded from the checkpoint, {} "
            f"times so far: {error!r}",
        )

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
