"""The directories of Spark's Unix sockets.

Whoever can connect to one of these sockets is asked for no secret. Some of them run code: the daemon's sends
what it receives to a worker, and the one of the driver unpickles it. So they are in a directory that nobody
else can use.

Spark has one setting for this directory, which the driver and all executors read, on other hosts and perhaps
as another user, where a private directory of the driver does not exist. But Spark replaces ``${env:NAME}`` in
the value of a setting by the environment variable, where it has one. So the directory of the driver is called
``/tmp/${env:timerheap_...}`` itself. The driver has no such variable, and takes the name as it is. Executors
are given one, with the value ".": they read /tmp/., which is their own /tmp, and their daemon then makes a
private directory of its own (`protect_daemon`).
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import sys
import tempfile
from contextlib import suppress

from timerheap._private import is_private

if sys.platform != "win32":
    import fcntl

_ROOT = "/tmp"  # every host has it, and the path of a socket is limited to about 100 bytes
_PREFIX, _SUFFIX = "${env:timerheap_", "}"
_DAEMON_SOCKETS = "PYTHON_WORKER_FACTORY_SOCK_DIR"

_mine: dict[int, str] = {}  # by process, since one that is forked ends at another time


def socket_directory() -> str:
    """Return a directory in /tmp that only this user can use; this process removes it when it ends."""
    # Removes those of processes that are dead. A process locks its own. Raises OSError if that is impossible.
    found = _mine.get(os.getpid())
    if found is None or not is_private(found):
        _remove_dead()
        found = _mine[os.getpid()] = _make()
    return found


def executor_variable(directory: str) -> tuple[str, str]:
    """Return the environment variable with which executors understand a directory as /tmp."""
    return os.path.basename(directory).removeprefix("${env:").removesuffix(_SUFFIX), "."


def protect_daemon() -> None:
    """Have Spark's daemon, which this process is about to become, listen where only this user can connect."""
    given = os.environ.get(_DAEMON_SOCKETS)
    if given is None or is_private(given):
        return
    umask = os.umask(0o077)
    os.umask(umask)
    if umask & 0o022 != 0o022:
        print(
            f"timerheap: the umask of this executor is {umask:03o}, so other users of this host can connect "
            f"to the sockets in {given} through which Spark offers state to a task; set it to 022 or 077",
            file=sys.stderr,
        )
    with suppress(OSError):
        os.environ[_DAEMON_SOCKETS] = socket_directory()


def _make() -> str:
    root = os.stat(_ROOT)
    if root.st_mode & 0o022 and not root.st_mode & stat.S_ISVTX:
        raise PermissionError(f"{_ROOT} must have the sticky bit, since others can write to it")
    while True:
        directory = tempfile.mkdtemp(prefix=_PREFIX, suffix=_SUFFIX, dir=_ROOT)
        lock = os.open(directory, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(directory):  # nobody has removed it before the lock
            os.set_inheritable(lock, True)  # by a program that replaces this one
            atexit.register(_remove_directory, directory, os.getpid())
            return directory
        os.close(lock)


def _remove_directory(directory: str, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(directory, ignore_errors=True)


def _remove_dead() -> None:
    for entry in os.scandir(_ROOT):
        if not entry.name.startswith(_PREFIX) or not is_private(entry.path):
            continue
        with suppress(OSError):
            lock = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry.path)
            finally:
                os.close(lock)
