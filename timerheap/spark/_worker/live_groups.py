"""The live key groups of a task: kept by the worker, handed over in files, or loaded."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from glob import escape, iglob
from typing import NamedTuple
from urllib.parse import quote

from timerheap._native._core import xxh64
from timerheap._private import is_private, make_private
from timerheap.spark._group.checkpoint import ChunkStore, Manifest, Stored
from timerheap.spark._group.key_group import GroupLayout, KeyGroup, load_group
from timerheap.spark._group.memory import PROCESS, LiveFile, Memory
from timerheap.spark._worker.driver_mail import Mail

_MOST = 128  # groups in files, since each keeps a few file descriptors
_NAME = re.compile(r"([0-9a-f]{8,64})\.([0-9a-f]{8,64})(\.taken)?")
_IDLE = 3600.0  # seconds after which the files of other queries are removed
_LEFT = 86400.0  # by which a released file is older than the newest if the group has moved away
_LOOK = 5.0  # between two searches for dead neighbours
_LOCAL = "blockmgr-*"  # Spark's names of the local directories of executors
_HOME, _OWNER = "timerheap", "owner"
_GONE = math.inf
_looked: dict[str, float] = {}  # when the neighbours of a directory were looked for


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
    origins: how many groups of the task so far were "new", "continued" in the same worker, "handed over", or
        "loaded" from the state store, which takes as long as their state is large
    """

    def __init__(
        self, layout: GroupLayout, store: ChunkStore, owner: Owner, max_parallelism: int, mail: Mail
    ) -> None:
        self._layout = layout
        self._store = store
        self._owner = owner
        self._max_parallelism = max_parallelism
        self._mail = mail
        self._files: LiveStore | None = None
        self._batch = 0
        self.origins: Counter[str] = Counter()

    def begin(self, run: str | None, batch: int) -> None:
        turn = _cache.begin(self._owner, self._layout, run, batch)
        self._files, self._layout, self._batch = turn.files, turn.layout, turn.batch

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
        # In a renewal it is written without anything that has been removed, and not kept, since its memory
        # has what was removed.
        file, manifest = group.memory, stored.manifest
        renewal = manifest.renews(self._batch)
        group.forget_dead_keys(always=renewal)
        stored.save(self._store, group, clock, whole=whole or renewal, writes_clock=writes_clock)
        if renewal:
            if isinstance(file, LiveFile):
                file.discard()
            return
        if isinstance(file, LiveFile) and self._files is not None:
            if file.failure is None:
                head = json.dumps(group.head()).encode()
                self._files.release(file, head, manifest.id, manifest.token)
            if file.failure is not None:
                self._report(file.failure)
        _cache.put(self._owner, label, group, stored)

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
        self.origins["handed over"] += 1
        return group, Stored(manifest)

    def _loaded(self, manifest: Manifest) -> tuple[KeyGroup, Stored]:
        self.origins["loaded"] += 1
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


class LiveStore:
    """The live files of one query in the local directories of an executor, which Spark removes with it.

    The name of a released file is the id of its key group and the token under which the group was saved, so
    its contents are those of the state store at that token. Its label, a hash of both and of the query, shows
    whether somebody has renamed it. A worker takes a file by renaming it. Of several tasks for one group,
    such as an attempt and its retry, one gets the file, and the others load the group from the state store.
    After the save the worker renames the file to the new token.

    While a worker has a file, it holds a lock on it. A file that is taken and not locked belonged to a worker
    that died, and is removed. So is a released file of the group with another token: that save was never
    committed, or the group has been loaded elsewhere since.

    Spark does not remove the directories of an executor that was killed while the application runs. Each
    directory of files has a link that names the process that has started its workers (`_owner`). If that
    process is dead, the executors next to it remove the directory.
    """

    def __init__(self, directories: list[str], query: str) -> None:
        self._homes = [os.path.join(directory, _HOME) for directory in directories]
        self._query = "query-" + quote(query, safe="")
        self._found: dict[bytes, list[str]] = {}

    def create(self, group: bytes) -> LiveFile:
        """Create the file of a key group, empty and taken; raise OSError if that is impossible."""
        try:
            return self._create(group)
        except FileNotFoundError:  # another worker was faster than the lock, and removed it
            return self._create(group)

    def _create(self, group: bytes) -> LiveFile:
        directory = self._directory(group)
        home = os.path.dirname(directory)
        make_private(home)
        _own(home)
        make_private(directory)
        return LiveFile.create(_taken(directory, group))

    def take(self, group: bytes, token: bytes, known: LiveFile | None = None) -> LiveFile | None:
        """Claim and return the released file of a group, or None; remove its other files without an owner."""
        # The token is that of the state store. If this process has mapped the same file, the `known` one, it
        # keeps the mapping. Returns None if there is no such file, or if it cannot be opened.
        directory = self._directory(group)
        path = _released(directory, group, token)
        for other in self._found.pop(group, []):
            if other != path:  # of a save that was never committed, or before the group was loaded elsewhere
                _remove_unless_locked(other)
        label = self._label(group, token)
        if known is not None:
            known.label = label
        file = known if known is not None and known.relock(path) else _locked(path)
        if file is not None:
            file.label = label
            try:
                file.move(_taken(directory, group))
            except OSError:  # it was taken and released again just before the lock
                file.discard()
                return None
        return file

    def release(self, file: LiveFile, head: bytes, group: bytes, token: bytes) -> None:
        """Release a file with a head for the worker that reads this token from the state store."""
        file.label = self._label(group, token)
        if not file.write_head(head):
            return
        try:  # in this order: under its name a file is whole, and it is locked until it has the name
            file.move(_released(self._directory(group), group, token))
            file.unlock()
        except OSError as e:
            file.give_up(e)

    def sweep(self) -> None:
        """Remove the files of dead workers and executors, and of other queries that are idle for an hour."""
        # Costs one look into a few directories. Other files of the query are remembered for `take`.
        self._found = {}
        for home in self._homes:
            if is_private(home):
                _own(home)
            _remove_dead_neighbours(home)
        then = time.time() - _IDLE
        for query in (each for home in self._homes if is_private(home) for each in _entries(home)):
            if not is_private(query.path):
                continue
            if query.name == self._query:
                self._look_into(query.path)
                continue
            if _changed(query) < then:
                _remove_query(query.path)
                continue
            for file in _entries(query.path):
                if file.name.endswith(".taken"):  # the query may have had its last micro-batch
                    _remove_unless_locked(file.path)

    def _look_into(self, directory: str) -> None:
        released = []
        for file in _entries(directory):
            name = _NAME.fullmatch(file.name)
            if name is None:
                continue
            if name[3]:
                _remove_unless_locked(file.path)
            elif (changed := _changed(file)) < _GONE:
                released.append((changed, file.path))
                self._found.setdefault(bytes.fromhex(name[1]), []).append(file.path)
        newest = max((changed for changed, _ in released), default=0.0)
        for changed, path in released:
            if changed < newest - _LEFT:  # Spark has given the group to another executor
                _remove_unless_locked(path)

    def _directory(self, group: bytes) -> str:
        return os.path.join(self._homes[group[0] % len(self._homes)], self._query)

    def _label(self, group: bytes, token: bytes) -> int:
        return xxh64(f"{self._query} {group.hex()} {token.hex()}".encode())


def _released(directory: str, group: bytes, token: bytes) -> str:
    return os.path.join(directory, f"{group.hex()}.{token.hex()}")


def _taken(directory: str, group: bytes) -> str:
    return os.path.join(directory, f"{group.hex()}.{os.urandom(8).hex()}.taken")


def _owner() -> str:
    """Return what names the process that has started this one, such as the daemon of an executor."""
    parent = os.getppid()
    return f"{_namespace()}-{parent}-{_started(parent)}"


def _own(home: str) -> None:
    """Make the owner of this process that of a directory of files."""
    owner, link = _owner(), os.path.join(home, _OWNER)
    with suppress(OSError):  # then nobody removes it but Spark
        if os.path.islink(link):
            if os.readlink(link) == owner:
                return
            os.unlink(link)
        os.symlink(owner, link)


def _is_dead(owner: str) -> bool:
    """Return whether an owner has ended; False if this process cannot know."""
    namespace, _, process = owner.partition("-")
    pid, _, started = process.partition("-")
    return namespace == _namespace() and pid.isdecimal() and _started(int(pid)) != started


def _namespace() -> str:
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return when a process has started, in ticks of the system; "" if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, *fields = file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return ""
    return "" if state in "ZX" else fields[18]


def _remove_dead_neighbours(mine: str) -> None:
    """Remove the files of the dead executors whose local directories are next to that of `mine`."""
    around, now = os.path.dirname(os.path.dirname(mine)), time.monotonic()
    if now < _looked.get(around, -math.inf) + _LOOK:
        return
    _looked[around] = now
    within = escape(around)
    if os.path.basename(around).startswith("executor-"):  # of a standalone worker, in a directory of its own
        within = os.path.join(escape(os.path.dirname(os.path.dirname(around))), "*", "executor-*")
    for home in iglob(os.path.join(within, _LOCAL, _HOME)):
        if home == mine or not is_private(home):
            continue
        with suppress(OSError):  # it has no owner yet, or a worker that has survived it has a file
            if _is_dead(os.readlink(os.path.join(home, _OWNER))):
                for query in _entries(home):
                    if is_private(query.path):
                        _remove_query(query.path)
                if os.listdir(home) == [_OWNER]:
                    os.unlink(os.path.join(home, _OWNER))
                    os.rmdir(home)


def _remove_query(directory: str) -> None:
    """Remove a directory of files, but for those that are in use."""
    for file in _entries(directory):
        _remove_unless_locked(file.path)
    with suppress(OSError):  # a file in it may be in use
        os.rmdir(directory)


def _entries(directory: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as found:
            yield from found
    except OSError:
        return


def _changed(entry: os.DirEntry[str]) -> float:
    """Return when a file was last renamed, or a directory was last changed; `_GONE` if it is gone."""
    try:
        return entry.stat(follow_symlinks=False).st_ctime
    except OSError:
        return _GONE


def _remove_unless_locked(path: str) -> None:
    file = _locked(path)
    if file is not None:
        file.discard()


def _locked(path: str) -> LiveFile | None:
    try:
        return LiveFile.lock(path)
    except OSError:
        return None
