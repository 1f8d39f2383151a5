"""The files of live key groups on one executor: which worker has which, and which are left over."""

from __future__ import annotations

import errno
import math
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import quote

from timerheap.spark._group.live_file import LiveFile

__all__ = ["LiveStore"]

_NAME = re.compile(r"([0-9a-f]{8,64})\.([0-9a-f]{8,64})(\.taken)?")
_IDLE, _LEFT = 3600.0, 86400.0  # seconds
_GONE = math.inf


class LiveStore:
    """The live files of one query in the directories of an executor.

    The name of a released file is the id of its key group and the token under which the group was saved, so
    its contents are those of the state store at that token, and nothing in it needs to be compared. A worker
    takes a file by renaming it. Of several tasks for one group, such as an attempt and its retry, one
    gets the file, and the others load the group from the state store. After the save the worker renames the
    file to the new token.

    While a worker has a file, it holds a lock on it. A file that is taken and not locked belonged to a
    worker that died, and is removed. So is a released file of the group with another token: that save was
    never committed, or the group has been loaded elsewhere since.

    Parameters
    ----------
    directories : list of str
        The local directories of the executor, which all of its workers see and which Spark removes.
    query : str
        The id of the query.
    """

    def __init__(self, directories: list[str], query: str) -> None:
        self._homes = [os.path.join(directory, "timerheap") for directory in directories]
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
        for one in (os.path.dirname(directory), directory):
            _make_private(one)
        return LiveFile.create(_taken(directory, group))

    def take(self, group: bytes, token: bytes, known: LiveFile | None = None) -> LiveFile | None:
        """Claim and return the released file of a group, or None; remove its other files without an owner.

        Parameters
        ----------
        group : bytes
            The id of the group.
        token : bytes
            The token in the state store.
        known : LiveFile, optional
            The file that this process has mapped; if it has the same file, it keeps the mapping.

        Returns
        -------
        LiveFile or None
            None if there is no such file, or if it cannot be opened.
        """
        directory = self._directory(group)
        path = _released(directory, group, token)
        for other in self._found.pop(group, []):
            if other != path:
                _remove_unless_locked(other)
        file = known if known is not None and known.relock(path) else _locked(path)
        if file is not None:
            try:
                file.move(_taken(directory, group))
            except OSError:  # it was taken and released again just before the lock
                file.discard()
                return None
        return file

    def release(self, file: LiveFile, group: bytes, token: bytes) -> None:
        """Release a file that has a head for the worker that reads this token from the state store."""
        try:
            file.move(_released(self._directory(group), group, token))
            file.unlock()
        except OSError as e:
            file.give_up(e)

    def sweep(self) -> None:
        """Remove the files of dead workers, and all files of other queries that have been idle for an hour.

        Costs one look into a few directories. Other files of the query are remembered for `take`.
        """
        self._found = {}
        then = time.time() - _IDLE
        for query in (each for home in self._homes if _is_private(home) for each in _entries(home)):
            if not _is_private(query.path):
                continue
            if query.name == self._query:
                self._look_into(query.path)
                continue
            idle = _changed(query) < then
            for file in _entries(query.path):
                if idle or file.name.endswith(".taken"):  # it may have had its last micro-batch
                    _remove_unless_locked(file.path)
            if idle:
                with suppress(OSError):  # a file in it may be in use
                    os.rmdir(query.path)

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


def _released(directory: str, group: bytes, token: bytes) -> str:
    return os.path.join(directory, f"{group.hex()}.{token.hex()}")


def _taken(directory: str, group: bytes) -> str:
    return os.path.join(directory, f"{group.hex()}.{os.urandom(8).hex()}.taken")


def _make_private(directory: str) -> None:
    """Make a directory that nobody else can read; raise OSError if others can write to an existing one."""
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        if not _is_private(directory):
            raise PermissionError(
                errno.EACCES, "must be a directory that only this user can read and write", directory
            ) from None


def _is_private(directory: str) -> bool:
    """Return whether a path is a directory, no link to one, that nobody else can use."""
    try:
        found = os.lstat(directory)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


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
