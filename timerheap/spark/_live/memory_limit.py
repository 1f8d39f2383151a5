"""How much memory the processes of this executor may use, and how much of it a live group may take."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path, PurePosixPath

from timerheap.spark._group.settling import SETTLING, Settling

_ROOT, _SELF = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_SHARE = 4  # of one part in so many of the memory, keys are in memory that could settle
_LEAST = 1 << 20
_RECORD = 256  # bytes of that for each record of a range, at least


@cache
def settling_of(groups: int, waits: bool = False, process: Path = _SELF, root: Path = _ROOT) -> Settling:
    """Return when keys settle in one of so many groups on this executor.

    waits: whether it is the turn of others, so that they settle only if there are a fourth more
    process, root: where the system tells the control groups of the process, and has their folders
    """
    share = max(_LEAST, _memory_limit(process, root) // _SHARE // max(1, groups))
    above = min(SETTLING.above, share)
    # The keys of a range are copied when it is written. What a micro-batch writes in all stays the same.
    records = min(SETTLING.records, share // _RECORD)
    finer = SETTLING.records // records
    return replace(
        SETTLING,
        above=above * 5 // 4 if waits else above,
        records=records,
        ranges=SETTLING.ranges * finer,
        least=max(1, SETTLING.least // finer),
    )


def _memory_limit(process: Path, root: Path) -> int:
    """Return the memory of the machine, or the limit of the control group of a process, in bytes."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError):
        for path in _limits(process.read_text(), root):
            with suppress(OSError, ValueError):  # "max", or the folder is that of a different container
                found.append(int(path.read_text()))
    return min(found)  # of version 1, a large number is none


def _limits(groups: str, root: Path) -> Iterator[Path]:
    """Yield the files that may have a limit, given what /proc/self/cgroup says."""
    for line in groups.splitlines():
        _, kinds, name = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        folder, file = (root / "memory", "memory.limit_in_bytes") if kinds else (root, "memory.max")
        path = PurePosixPath(name.lstrip("/"))
        for each in (path, *path.parents):
            yield folder / each / file
