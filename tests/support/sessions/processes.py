"""The processes below a process, from /proc."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["below", "children", "command", "kill", "python_daemons", "python_workers"]


def children(process: int) -> list[int]:
    """Return the ids of the children of a process; none if it has ended."""
    found: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            with suppress(OSError):  # it has ended since
                found += map(int, (thread / "children").read_text().split())
    return found


def below(process: int) -> Iterator[int]:
    """Yield the ids of the children of a process, of their children, and so on."""
    for child in children(process):
        yield child
        yield from below(child)


def command(process: int) -> str:
    """Return the command line of a process; nothing if it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def python_daemons(jvm: int) -> list[int]:
    """Return the ids of the daemons of a JVM of Spark that fork its Python workers."""
    return [child for child in children(jvm) if ".daemon pyspark." in command(child)]


def python_workers(jvm: int) -> list[int]:
    """Return the ids of the Python workers of a JVM of Spark."""
    return [worker for daemon in python_daemons(jvm) for worker in children(daemon)]


def kill(process: int) -> None:
    """End a process at once, if it has not ended yet."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
