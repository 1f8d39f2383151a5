"""What the benchmarks of state larger than memory share: their options, cgroups and the page cache."""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

__all__ = ["HOT", "disk", "forget", "limited", "medians", "members", "options", "pages_read"]

ROOT = Path("/sys/fs/cgroup")
HOT = 100  # one key in so many is hot


def options(about: str) -> argparse.ArgumentParser:
    """Return a parser of the options that all have."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--keys", type=lambda n: int(float(n)), default=4_000_000)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5, 2, 4], help="1/n of the files fits")
    parser.add_argument("--batches", type=int, default=5, help="of each kind")
    parser.add_argument("--json", type=Path, help="where the figures go")
    return parser


@contextmanager
def limited(processes: Iterable[int], limit: int) -> Iterator[Path]:
    """Put processes, and those that they start, into a cgroup whose memory has a limit; yield its folder.

    What they have touched before counts where they were.
    """
    old = (ROOT / "memory").exists()  # v1
    parent = ROOT / "memory" if old else ROOT
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


def disk(processes: Iterable[int]) -> tuple[float, float]:
    """Return how many megabytes processes have read from the disk, and written."""
    read = written = 0
    for process in processes:
        with suppress(OSError):  # it has ended
            text = Path(f"/proc/{process}/io").read_text()
            fields = dict(line.split(": ") for line in text.splitlines())
            read, written = read + int(fields["read_bytes"]), written + int(fields["write_bytes"])
    return read / 1e6, written / 1e6


def forget(files: Iterable[Path]) -> None:
    """Write files to the disk, and drop their pages from the cache; no process may map them."""
    for path in files:
        with path.open("rb") as file:
            os.fsync(file)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def medians(names: Sequence[str], took: list[tuple[float, ...]]) -> dict[str, Any]:
    """Return the medians of what micro-batches took, with the first and the spread of the seconds."""
    found: dict[str, Any] = dict(zip(names, map(statistics.median, zip(*took, strict=True)), strict=True))
    seconds = [one[0] for one in took]
    return found | {"first": seconds[0], "spread": [min(seconds), max(seconds)]}
