"""The live files of one query: their names and labels, who may take one, and when it is removed."""

from __future__ import annotations

import os
import re
import time
from urllib.parse import quote

from timerheap._native._core import xxh64
from timerheap._private import is_private, make_private
from timerheap.spark._live.dead_files import (
    GONE,
    HOME,
    changed_at,
    files_in,
    locked_file,
    own,
    remove_dead_neighbours,
    remove_query,
    remove_unless_locked,
)
from timerheap.spark._live.live_file import LiveFile

_NAME = re.compile(r"([0-9a-f]{8,64})\.([0-9a-f]{8,64})(\.taken)?")
_IDLE = 3600.0  # seconds after which the files of other queries are removed
_LEFT = 86400.0  # by which a released file is older than the newest if the group has moved away


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
        self._homes = [os.path.join(directory, HOME) for directory in directories]
        self._query = "query-" + quote(query, safe="")
        self._found: dict[bytes, list[str]] = {}
        self.groups = 0  # key groups that have files here

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
        own(home)
        make_private(directory)
        file = LiveFile.create(taken_path(directory, group))
        self.groups += 1
        return file

    def take(self, group: bytes, token: bytes, known: LiveFile | None = None) -> LiveFile | None:
        """Claim and return the released file of a group, or None; remove its other files without an owner."""
        # The token is that of the state store. If this process has mapped the same file, the `known` one, it
        # keeps the mapping. Returns None if there is no such file, or if it cannot be opened.
        directory = self._directory(group)
        path = released_path(directory, group, token)
        for other in self._found.pop(group, []):
            if other != path:  # of a save that was never committed, or before the group was loaded elsewhere
                remove_unless_locked(other)
        label = self._label(group, token)
        if known is not None:
            known.label = label
        file = known if known is not None and known.relock(path) else locked_file(path)
        if file is not None:
            file.label = label
            try:
                file.move(taken_path(directory, group))
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
            file.move(released_path(self._directory(group), group, token))
            file.unlock()
        except OSError as e:
            file.give_up(e)

    def sweep(self) -> None:
        """Remove the files of dead workers and executors, and of other queries that are idle for an hour."""
        # Costs one look into a few directories. Other files of the query are remembered for `take`.
        self._found, self.groups = {}, 0
        for home in self._homes:
            if is_private(home):
                own(home)
            remove_dead_neighbours(home)
        then = time.time() - _IDLE
        for query in (each for home in self._homes if is_private(home) for each in files_in(home)):
            if not is_private(query.path):
                continue
            if query.name == self._query:
                self._look_into(query.path)
                continue
            if changed_at(query) < then:
                remove_query(query.path)
                continue
            for file in files_in(query.path):
                if file.name.endswith(".taken"):  # the query may have had its last micro-batch
                    remove_unless_locked(file.path)

    def _look_into(self, directory: str) -> None:
        released = []
        groups = set()
        for file in files_in(directory):
            name = _NAME.fullmatch(file.name)
            if name is None:
                continue
            groups.add(name[1])
            if name[3]:
                remove_unless_locked(file.path)
            elif (changed := changed_at(file)) < GONE:
                released.append((changed, file.path))
                self._found.setdefault(bytes.fromhex(name[1]), []).append(file.path)
        self.groups += len(groups)
        newest = max((changed for changed, _ in released), default=0.0)
        for changed, path in released:
            if changed < newest - _LEFT:  # Spark has given the group to another executor
                remove_unless_locked(path)

    def _directory(self, group: bytes) -> str:
        return os.path.join(self._homes[group[0] % len(self._homes)], self._query)

    def _label(self, group: bytes, token: bytes) -> int:
        return xxh64(f"{self._query} {group.hex()} {token.hex()}".encode())


def released_path(directory: str, group: bytes, token: bytes) -> str:
    return os.path.join(directory, f"{group.hex()}.{token.hex()}")


def taken_path(directory: str, group: bytes) -> str:
    return os.path.join(directory, f"{group.hex()}.{os.urandom(8).hex()}.taken")
