"""Control groups of Linux, v1 or v2, whose memory has a limit; for root."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["forget", "is_in_memory", "limited", "members", "missing_cgroups", "pages_read"]

ROOT = Path("/sys/fs/cgroup")
V1 = ROOT / "memory"


def missing_cgroups() -> str:
    """Say what `limited` needs and does not find; nothing if it works."""
    if not (V1 if V1.exists() else ROOT / "cgroup.subtree_control").exists():
        return "there are no control groups of memory"
    return "" if os.access(V1 if V1.exists() else ROOT, os.W_OK) else "this user may make no control groups"


@contextmanager
def limited(processes: Iterable[int], limit: int) -> Iterator[Path]:
    """Put processes, and those that they start, into a cgroup whose memory has a limit; yield its folder.

    What they have touched before counts where they were.
    """
    old = V1.exists()
    parent = V1 if old else ROOT
    if not old:
        (ROOT / "cgroup.subtree_control").write_text("+memory")
    group = parent / f"timerheap-{os.getpid()}"
    group.mkdir()
    (group / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(limit))
    for process in processes:
        (group / "cgroup.procs").write_text(str(process))
    try:
        yield group
    finally:
        for left in (group / "cgroup.procs").read_text().split():
            (parent / "cgroup.procs").write_text(left)
        group.rmdir()


def pages_read(group: Path) -> int:
    """Return how many faults of a cgroup have waited for the disk."""
    lines = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int(lines["pgmajfault"])


def members(group: Path) -> set[int]:
    """Return the processes of a cgroup."""
    return set(map(int, (group / "cgroup.procs").read_text().split()))


def forget(files: Iterable[Path]) -> None:
    """Write files to the disk, and drop their pages from the cache; no process may map them."""
    for path in files:
        with path.open("rb") as file:
            os.fsync(file)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def is_in_memory(folder: Path) -> bool:
    """Return whether the files of a folder have no disk, so that their pages stay in memory."""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts = map(str.split, Path("/proc/self/mountinfo").read_text().splitlines())
    return any(fields[2] == number and fields[fields.index("-") + 1] == "tmpfs" for fields in mounts)
