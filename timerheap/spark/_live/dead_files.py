"""Files of dead workers and executors: how they are told from others, and removed.

Each directory of live files has a link that names the process that has started its workers. A file that is
taken and not locked belonged to a worker that has died.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from glob import escape, iglob

from timerheap._private import is_private
from timerheap.spark._live.live_file import LiveFile

_LOOK = 5.0  # between two searches for dead neighbours
_LOCAL = "blockmgr-*"  # Spark's names of the local directories of executors
HOME, _OWNER = "timerheap", "owner"
GONE = math.inf
_looked: dict[str, float] = {}  # when the neighbours of a directory were looked for


def _owner() -> str:
    """Return what names the process that has started this one, such as the daemon of an executor."""
    parent = os.getppid()
    return f"{_namespace()}-{parent}-{_started(parent)}"


def own(home: str) -> None:
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


def remove_dead_neighbours(mine: str) -> None:
    """Remove the files of the dead executors whose local directories are next to that of `mine`."""
    around, now = os.path.dirname(os.path.dirname(mine)), time.monotonic()
    if now < _looked.get(around, -math.inf) + _LOOK:
        return
    _looked[around] = now
    within = escape(around)
    if os.path.basename(around).startswith("executor-"):  # of a standalone worker, in a directory of its own
        within = os.path.join(escape(os.path.dirname(os.path.dirname(around))), "*", "executor-*")
    for home in iglob(os.path.join(within, _LOCAL, HOME)):
        if home == mine or not is_private(home):
            continue
        with suppress(OSError):  # it has no owner yet, or a worker that has survived it has a file
            if _is_dead(os.readlink(os.path.join(home, _OWNER))):
                for query in files_in(home):
                    if is_private(query.path):
                        remove_query(query.path)
                if os.listdir(home) == [_OWNER]:
                    os.unlink(os.path.join(home, _OWNER))
                    os.rmdir(home)


def remove_query(directory: str) -> None:
    """Remove a directory of files, but for those that are in use."""
    for file in files_in(directory):
        remove_unless_locked(file.path)
    with suppress(OSError):  # a file in it may be in use
        os.rmdir(directory)


def files_in(directory: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as found:
            yield from found
    except OSError:
        return


def changed_at(entry: os.DirEntry[str]) -> float:
    """Return when a file was last renamed, or a directory was last changed; `GONE` if it is gone."""
    try:
        return entry.stat(follow_symlinks=False).st_ctime
    except OSError:
        return GONE


def remove_unless_locked(path: str) -> None:
    file = locked_file(path)
    if file is not None:
        file.discard()


def locked_file(path: str) -> LiveFile | None:
    try:
        return LiveFile.lock(path)
    except OSError:
        return None
