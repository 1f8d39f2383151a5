"""How much memory this executor has for files, and how much of it a live group may take."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path, PurePosixPath

from timerheap.spark._settling.settling_keys import SETTLING, Settling

_ROOT, _SELF = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_SHARE = 8  # of one part in so many of the room, keys are in memory that could settle
_LEAST = 1 << 20
_SECONDS = 16  # after which the room is looked at again
_RECORD = 256  # bytes of that for each record of a range, at least


def settling_of(groups: int, waits: bool = False, process: Path = _SELF, root: Path = _ROOT) -> Settling:
    """Return when keys settle in one of so many groups on this executor.

    waits: whether it is the turn of others, so that they settle only if there are a fourth more
    process, root: where the system tells the control groups of the process, and has their folders
    """
    share = max(_LEAST, _room(process, root, time.monotonic() // _SECONDS) // _SHARE // max(1, groups))
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


@lru_cache(maxsize=1)
def _room(process: Path, root: Path, now: float) -> int:
    """Return the memory that may have pages of files, in bytes.

    It is that of the machine, or the limit of the control group of a process, without what processes hold
    there by themselves, such as the heap of the JVM: only pages of files can be given up.
    """
    rooms = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError):
        for folder, file, held in _control_groups(process.read_text(), root):
            with suppress(OSError, ValueError):  # "max", or the folder is that of a different container
                limit = int((folder / file).read_text())
                rooms.append(max(0, limit - _own_bytes(folder / "memory.stat", held)))
    return min(rooms)  # of version 1, a large number is none


def _control_groups(text: str, root: Path) -> Iterator[tuple[Path, str, str]]:
    """Yield folder, file of the limit, and name of what is held, given what /proc/self/cgroup says."""
    for line in text.splitlines():
        _, kinds, name = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        above, *names = (
            (root / "memory", "memory.limit_in_bytes", "total_rss") if kinds else (root, "memory.max", "anon")
        )
        path = PurePosixPath(name.lstrip("/"))
        for each in (path, *path.parents):
            yield above / each, names[0], names[1]


def _own_bytes(statistics: Path, name: str) -> int:
    with suppress(OSError):
        for line in statistics.read_text().splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    return 0
